/* tests/engine/test_sharing.c - requests that share a prefix through the cache give the bits of
 * requests that share nothing.
 *
 * Three models of one group (the demo model, a Qwen3 and a Llama) and one of two (Gemma 3, a
 * window of 16 in three of four layers), by every codec. Every logit that a request computed is
 * compared by memcmp with that of a cold run in a dense cache, and so are the greedy answers.
 * After each step the invariants of pool and cache are verified.
 */
#include "engine/requests.h"
#include "sheaf/rows.h"
#include "testing.h"

#define DEMO  "models/sheaf-demo"
#define QWEN  "tests/data/fixtures/qwen3-headdim"
#define LLAMA "tests/data/fixtures/llama3-tied"
#define GEMMA "tests/data/fixtures/gemma3-mixed"

#define MAX_IDS  300
#define N_ANSWER 12
#define CHUNK    40 /* no multiple of a block */

typedef struct model {
    const char *dir;
    uint32_t prompt; /* of its golden file, at least MAX_IDS long */
    uint32_t codec_k, codec_v;
    uint32_t block_tokens;
} model;

static const model models[] = {{DEMO, 12, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 32},
                               {LLAMA, 4, SHEAF_CODEC_F32, SHEAF_CODEC_F32, 32},
                               {LLAMA, 4, SHEAF_CODEC_TURBO4, SHEAF_CODEC_TURBO4, 32},
                               {QWEN, 4, SHEAF_CODEC_F16, SHEAF_CODEC_F16, 32},
                               {QWEN, 4, SHEAF_CODEC_INT8, SHEAF_CODEC_INT8, 32},
                               {GEMMA, 4, SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4, 8},
                               {GEMMA, 4, SHEAF_CODEC_F32, SHEAF_CODEC_F32, 8}};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_EMULATED)
#    define FEWER 1 /* without the demo model, which takes minutes there */
#else
#    define FEWER 0
#endif
#define N_MODELS (sizeof models / sizeof models[0])

/* A model with a cache, the same without one, and a text. */
typedef struct stage {
    scene warm, cold;
    int32_t *text;  /* [MAX_IDS] */
    uint32_t block; /* tokens of one */
} stage;

static void stage_open(stage *st, const model *m)
{
    rig_options o = {.dir = m->dir,
                     .codec_k = m->codec_k,
                     .codec_v = m->codec_v,
                     .block_tokens = m->block_tokens,
                     .slab_blocks = 4,
                     .n_threads = 2};
    const sheaf_prefix_options p = SHEAF_PREFIX_OPTIONS_INIT;
    scene_open(&st->warm, &o, &p);
    o.backend = SHEAF__KV_DENSE;
    scene_open(&st->cold, &o, NULL);
    rig_ids ids = rig_prompt(m->dir, m->prompt, MAX_IDS);
    assert_int_equal(ids.n, MAX_IDS);
    st->text = ids.data;
    st->block = m->block_tokens;
}

static void stage_close(stage *st)
{
    free(st->text);
    scene_close(&st->warm);
    scene_close(&st->cold);
}

/* Of n positions, those in whole blocks. */
static uint32_t whole(const stage *st, uint32_t n)
{
    return n - n % st->block;
}

typedef void case_fn(stage *st);

static void with_models(case_fn *run, uint32_t first)
{
    for (uint32_t m = first; m < N_MODELS; m++) {
        stage st;
        stage_open(&st, &models[m]);
        run(&st);
        stage_close(&st);
    }
}

static void with_every_model(case_fn *run)
{
    with_models(run, FEWER);
}

static void with_every_fixture(case_fn *run)
{
    with_models(run, 1); /* the demo model takes longer than all of them */
}

/* Runs the same text cold and all at once, whose last token it must pick itself; compares,
 * and forgets both. */
static void equals_cold(stage *st, request *q)
{
    request cold;
    request_begin(&cold, &st->cold, q->ids, q->n_ids - 1, 1);
    request_run(&cold, MAX_IDS);
    request_compare(q, &cold);
    request_free(&cold);
    request_free(q);
}

/* A request from beginning to end, which must find so many positions. */
static void ask(stage *st, const request *how, const int32_t *ids, uint32_t n, uint32_t found)
{
    request q;
    request_begin_as(&q, how, &st->warm, ids, n, N_ANSWER);
    assert_int_equal(q.match.length, found);
    assert_int_equal(q.match.shared, whole(st, found));
    assert_int_equal(q.match.copied, found % st->block);
    assert_int_equal(q.match.cached_tokens, found < n ? found : n - 1);
    request_run(&q, CHUNK);
    /* what was found was not run; of a prompt that was found whole the last query was */
    assert_int_equal(request_ran(&q), n + N_ANSWER - 1 - q.match.cached_tokens);
    request_end(&q);
    equals_cold(st, &q);
}

static const request plainly = {0};

/* Makes an entry of exactly these tokens: the one token of the answer is not run. */
static void put(stage *st, const int32_t *ids, uint32_t n)
{
    request q;
    request_begin(&q, &st->warm, ids, n, 1);
    request_run(&q, CHUNK);
    request_end(&q);
    equals_cold(st, &q);
}

/* The first n of `ids`, then others. */
static void diverge(const int32_t *ids, uint32_t n, uint32_t in_all, int32_t *out)
{
    for (uint32_t i = 0; i < in_all; i++) out[i] = i < n ? ids[i] : 3 + (ids[i] + 101) % 300;
}

/* ---- the whole prefix -------------------------------------------------------------------- */

static void case_whole(stage *st)
{
    static const uint32_t lengths[] = {1, 8, 31, 32, 33, 101};
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t n = lengths[i];
        ask(st, &plainly, st->text, n, 0);
        ask(st, &plainly, st->text, n, n); /* by a query of what is there */
        const request again = {.prompt.max_match = n - 1};
        if (n > 1) ask(st, &again, st->text, n, n - 1); /* by writing into a copy */
        assert_int_equal(sheaf_prefix_reset(st->warm.cache, NULL, NULL), SHEAF_OK);
    }
}

static void a_prompt_that_is_there_as_a_whole_is_shared_as_a_whole(void **state)
{
    (void)state;
    with_every_model(case_whole);
}

/* A conversation: the next prompt is the last one with its answer and something new. */
static void case_conversation(stage *st)
{
    int32_t ids[MAX_IDS];
    uint32_t n = 75, found = 0;
    memcpy(ids, st->text, n * sizeof *ids);
    while (n < 250) {
        request q;
        request_begin(&q, &st->warm, ids, n, N_ANSWER);
        assert_int_equal(q.match.length, found);
        request_run(&q, CHUNK);
        request_end(&q);
        found = n + N_ANSWER - 1; /* the last token of an answer is not run */
        memcpy(ids, q.ids, (n + N_ANSWER) * sizeof *ids);
        n += N_ANSWER;
        memcpy(ids + n, st->text + n, 20 * sizeof *ids);
        n += 20;
        equals_cold(st, &q);
    }
}

static void a_prompt_that_continues_an_answer_takes_all_of_it_over(void **state)
{
    (void)state;
    with_every_fixture(case_conversation);
}

/* ---- a part of it ------------------------------------------------------------------------ */

static void case_divergence(stage *st)
{
    static const uint32_t shared[] = {1, 7, 31, 42, 64, 150};
    ask(st, &plainly, st->text, 200, 0);
    for (uint32_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        int32_t ids[MAX_IDS];
        diverge(st->text, shared[i], 180, ids);
        ask(st, &plainly, ids, 180, shared[i]);
        ask(st, &plainly, ids, 180, 180);      /* both are there now, */
        ask(st, &plainly, st->text, 200, 200); /* and the first is as it was */
    }
}

static void a_prompt_that_diverges_inside_a_block_copies_the_common_part(void **state)
{
    (void)state;
    with_every_model(case_divergence);
}

/* ---- two at once ------------------------------------------------------------------------- */

/* One that goes on where the entry ends, and one that leaves it inside a block, in one batch. */
static void case_two_borrowers(stage *st)
{
    for (uint32_t first = 0; first < 2; first++) {
        put(st, st->text, 133);
        int32_t other[MAX_IDS];
        diverge(st->text, 77, 120, other);
        request q[2];
        request_begin(&q[0], &st->warm, st->text, 170, N_ANSWER);
        request_begin(&q[1], &st->warm, other, 120, N_ANSWER + 9);
        assert_int_equal(q[0].match.length, 133);
        assert_int_equal(q[1].match.length, 77);
        sheaf_prefix_stats stats = scene_check(&st->warm);
        assert_true(stats.bytes_exclusive < stats.bytes_held);
        request *both[2] = {&q[0], &q[1]};
        for (uint32_t step = 0; step < 4; step++) request_step(both, 2, 10);
        ask(st, &plainly, st->text, 133, 133); /* the entry stays meanwhile */
        while (!request_done(both[first])) request_step(both, 2, 10);
        request_end(both[first]);
        request_run(both[1 - first], 10);
        request_end(both[1 - first]);
        equals_cold(st, &q[0]);
        equals_cold(st, &q[1]);
        ask(st, &plainly, st->text, 133, 133);
        assert_int_equal(sheaf_prefix_reset(st->warm.cache, NULL, NULL), SHEAF_OK);
    }
}

static void an_entry_serves_two_borrowers_at_once_and_stays(void **state)
{
    (void)state;
    with_every_model(case_two_borrowers);
}

/* The second comes when the first is half through its prefill, and the two are in step from then on. */
static void case_joined(stage *st)
{
    request q[2];
    request_begin(&q[0], &st->warm, st->text, 230, N_ANSWER);
    request *both[2] = {&q[0], &q[1]};
    request_step(both, 1, CHUNK);
    request_step(both, 1, CHUNK);
    int32_t other[MAX_IDS];
    diverge(st->text, 200, 210, other);
    request_begin(&q[1], &st->warm, other, 210, N_ANSWER);
    assert_int_equal(q[1].match.length, whole(st, 2 * CHUNK)); /* what is whole by then */
    while (!request_done(&q[0]) || !request_done(&q[1])) request_step(both, 2, CHUNK);
    assert_true(scene_check(&st->warm).duplicate_blocks > 0); /* both ran [80, 192) */
    request_end(&q[1]);
    request_end(&q[0]);
    equals_cold(st, &q[0]);
    equals_cold(st, &q[1]);
    ask(st, &plainly, st->text, 230, 230);
    ask(st, &plainly, other, 210, 210);
}

static void a_request_joins_in_the_middle_of_anothers_prefill(void **state)
{
    (void)state;
    with_every_fixture(case_joined);
}

/* Two identical prompts that start together: one copy stays, both answers are right. */
static void case_twins(stage *st)
{
    request q[2];
    request *both[2] = {&q[0], &q[1]};
    for (uint32_t i = 0; i < 2; i++) request_begin(&q[i], &st->warm, st->text, 96, N_ANSWER);
    while (!request_done(&q[0])) request_step(both, 2, 32);
    for (uint32_t i = 0; i < 2; i++) request_end(&q[i]);
    sheaf_prefix_stats stats = scene_check(&st->warm);
    uint32_t blocks = (96 + N_ANSWER - 1 + st->block - 1) / st->block;
    assert_int_equal(stats.blocks_held, blocks * sheaf_pool_groups(st->warm.r.pool));
    assert_true(stats.duplicate_blocks >= 3);
    for (uint32_t i = 0; i < 2; i++) equals_cold(st, &q[i]);
}

static void twins_in_one_batch_leave_one_copy(void **state)
{
    (void)state;
    with_every_fixture(case_twins);
}

/* Four requests of one step, which match and reserve through the door: one finds its prompt
 * whole, one all but the last position, one a part that ends inside a block, one nothing. */
static void case_door(stage *st)
{
    enum { N = 4 };
    static const uint32_t sizes[N] = {133, 133, 150, 60}, found[N] = {133, 132, 77, 0};
    put(st, st->text, 133);
    int32_t ids[N][MAX_IDS];
    for (uint32_t i = 0; i < 2; i++) memcpy(ids[i], st->text, 133 * sizeof(int32_t));
    diverge(st->text, 77, 150, ids[2]);
    diverge(st->text, 0, 60, ids[3]);
    request q[N];
    request *all[N];
    for (uint32_t i = 0; i < N; i++) {
        const request how = {.door = true, .prompt.max_match = i == 1 ? 132 : 0};
        request_begin_as(&q[i], &how, &st->warm, ids[i], sizes[i], N_ANSWER + 3 * i);
        all[i] = &q[i];
    }
    request_step(all, N, CHUNK);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(q[i].match.length, found[i]);
    for (uint32_t step = 0; step < N_ANSWER + 3 * N; step++) request_step(all, N, CHUNK);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(request_done(&q[i]));
        assert_int_equal(request_ran(&q[i]), q[i].n_ids - 1 - q[i].match.cached_tokens);
        request_end(&q[i]);
        equals_cold(st, &q[i]);
    }
    ask(st, &plainly, st->text, 133, 133);
}

static void a_batch_matches_and_reserves_through_the_door(void **state)
{
    (void)state;
    with_every_fixture(case_door);
}

/* ---- moved ------------------------------------------------------------------------------- */

/* Six texts grow side by side, so that their blocks interleave; the older three leave, and
 * what is left is moved together while a request runs on one of them. */
static void case_compacted(stage *st)
{
    enum { N = 6, LENGTH = 150 };
    static int32_t ids[N][MAX_IDS];
    request q[N];
    request *all[N];
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t t = 0; t < MAX_IDS; t++)
            ids[i][t] = 3 + (st->text[t] + 13 * ((int32_t)i + 1)) % 300;
        request_begin(&q[i], &st->warm, ids[i], LENGTH, 1);
        all[i] = &q[i];
    }
    for (uint32_t step = 0; step * 10 < LENGTH; step++) request_step(all, N, 10);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(request_done(&q[i]));
        request_end(&q[i]);
        equals_cold(st, &q[i]);
    }
    uint64_t bytes = scene_check(&st->warm).bytes_held / 2;
    assert_int_equal(sheaf_prefix_evict(st->warm.cache, bytes, NULL), SHEAF_OK);
    assert_int_equal(scene_check(&st->warm).entries, N / 2);
    request borrower;
    request_begin(&borrower, &st->warm, ids[3], LENGTH, N_ANSWER);
    request_step((request *[]){&borrower}, 1, CHUNK);
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    assert_int_equal(sheaf_pool_compact(st->warm.r.pool, 1000, &done), SHEAF_OK);
    assert_true(done.blocks_moved > 0);
    scene_check(&st->warm);
    request_run(&borrower, CHUNK);
    request_end(&borrower);
    assert_int_equal(borrower.match.length, LENGTH);
    equals_cold(st, &borrower);
    for (uint32_t i = 0; i < N; i++) ask(st, &plainly, ids[i], LENGTH, i < N / 2 ? 0 : LENGTH);
}

static void what_compaction_moved_is_found_and_right(void **state)
{
    (void)state;
    with_every_fixture(case_compacted);
}

/* ---- clones ------------------------------------------------------------------------------ */

/* What was taken over can be parked and cloned like any sequence, to its odd end and,
 * without a window, before it. */
static void case_clone(stage *st)
{
    static const uint32_t lengths[] = {144, 143, 97, 64};
    uint32_t n_lengths = sheaf_pool_groups(st->warm.r.pool) == 1 ? 4 : 1;
    ask(st, &plainly, st->text, 133, 0);
    request q, cold;
    request_begin(&cold, &st->cold, st->text, 133, N_ANSWER);
    request_run(&cold, MAX_IDS);
    request_begin(&q, &st->warm, cold.ids, 145, 0); /* the entry's 144 tokens, and one */
    assert_int_equal(q.match.length, 144);
    assert_int_equal(q.match.copied, 144 % st->block);
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_park(q.kv.sequence, &parked), SHEAF_OK);
    q.kv.sequence = NULL;
    for (uint32_t i = 0; i < n_lengths; i++) {
        request go;
        request_begin(&go, &st->warm, cold.ids, 145, N_ANSWER);
        sheaf__kv_destroy(&go.kv);
        assert_int_equal(sheaf_parked_clone(parked, lengths[i], &go.kv.sequence), SHEAF_OK);
        request_run(&go, CHUNK);
        request_end(&go);
        equals_cold(st, &go);
    }
    sheaf_parked_destroy(parked);
    request_free(&cold);
    request_free(&q);
    ask(st, &plainly, st->text, 133, 133);
}

static void an_unaligned_entry_is_cloned_and_continued(void **state)
{
    (void)state;
    with_every_fixture(case_clone);
}

/* ---- a window ---------------------------------------------------------------------------- */

#define WINDOW 16 /* of group 0; group 1 has none */

static void gemma_open(stage *st)
{
    stage_open(st, &models[N_MODELS - 1]);
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_groups(st->warm.r.pool), 2);
    assert_int_equal(sheaf_pool_group_info(st->warm.r.pool, 0, &info), SHEAF_OK);
    assert_int_equal(info.window, WINDOW);
}

static uint64_t window_block_bytes(const stage *st)
{
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_group_info(st->warm.r.pool, 0, &info), SHEAF_OK);
    return info.block_bytes;
}

static sheaf_usage usage_of(const request *q)
{
    sheaf_usage usage = SHEAF_USAGE_INIT;
    assert_int_equal(sheaf_sequence_usage(q->kv.sequence, &usage), SHEAF_OK);
    return usage;
}

/* The sequence lets go of what its window has left; the cache keeps it, and later ones
 * branch off there. */
static void what_a_window_leaves_behind_stays_in_the_cache(void **state)
{
    (void)state;
    stage st;
    gemma_open(&st);
    request q;
    request_begin(&q, &st.warm, st.text, 200, 1);
    request_run(&q, CHUNK);
    assert_int_equal(usage_of(&q).blocks_by_group[0], WINDOW / st.block);
    assert_int_equal(usage_of(&q).blocks_by_group[1], 200 / st.block);
    sheaf_prefix_stats stats = scene_check(&st.warm);
    assert_int_equal(stats.blocks_held, 2 * 200 / st.block);
    assert_int_equal(stats.bytes_exclusive,
                     (200 - WINDOW) / st.block * window_block_bytes(&st));
    for (uint32_t i = 0; i < 3; i++) {
        static const uint32_t shared[] = {150, 80, 9};
        int32_t ids[MAX_IDS];
        diverge(st.text, shared[i], 170, ids);
        ask(&st, &plainly, ids, 170, shared[i]);
    }
    request_end(&q);
    equals_cold(&st, &q);
    stage_close(&st);
}

/* Of a match longer than the window, the window's group gives what the next position sees alone. */
static void a_match_past_a_window_holds_what_is_in_sight(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {8, 16, 24, 104, 200, 203};
    stage st;
    gemma_open(&st);
    put(&st, st.text, 203);
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t n = lengths[i], begin = n > WINDOW ? n - WINDOW : 0;
        request q;
        request_begin(&q, &st.warm, st.text, n, N_ANSWER);
        assert_int_equal(q.match.length, n);
        uint32_t blocks = (n + st.block - 1) / st.block;
        assert_int_equal(usage_of(&q).blocks_by_group[1], blocks);
        assert_int_equal(usage_of(&q).blocks_by_group[0], blocks - begin / st.block);
        request_run(&q, CHUNK);
        request_end(&q);
        equals_cold(&st, &q);
    }
    stage_close(&st);
}

/* The front of the window's group has gone from the cache: only at the entry's end is there
 * all that a window asks for. What branches off before it is refused, and computed; the
 * whole is found. */
static void expect_end_alone(stage *st, const int32_t *text, uint32_t n)
{
    const uint32_t shared[] = {n - st->block - 3, n / 3, WINDOW, 9};
    for (uint32_t i = 0; i < 4; i++) {
        request q;
        int32_t ids[MAX_IDS];
        diverge(text, shared[i], 170, ids);
        request_begin(&q, &st->warm, ids, 170, N_ANSWER);
        assert_int_equal(q.match.length, 0);
        q.quiet = true; /* else it would bring the front back */
        while (!request_done(&q)) request_step((request *[]){&q}, 1, CHUNK);
        equals_cold(st, &q);
    }
    ask(st, &plainly, text, n, n);
}

static void a_match_that_a_window_does_not_allow_is_refused(void **state)
{
    (void)state;
    stage st;
    gemma_open(&st);
    put(&st, st.text, 200);
    uint64_t freed, front = (200 - WINDOW) / st.block * window_block_bytes(&st);
    assert_int_equal(sheaf_prefix_evict(st.warm.cache, front, &freed), SHEAF_OK);
    assert_int_equal(freed, front);
    sheaf_prefix_stats stats = scene_check(&st.warm);
    assert_int_equal(stats.window_blocks_dropped, (200 - WINDOW) / st.block);
    assert_int_equal(stats.entries, 1);
    expect_end_alone(&st, st.text, 200);
    /* who computes it anew brings the front back */
    int32_t ids[MAX_IDS];
    diverge(st.text, 80, 170, ids);
    ask(&st, &plainly, ids, 170, 0);
    ask(&st, &plainly, ids, 170, 170);
    diverge(st.text, 75, 170, ids);
    ask(&st, &plainly, ids, 170, 75);
    stage_close(&st);
}

/* Published at its end alone, when the window has slid: the front never comes into the cache. */
static void what_slid_before_it_was_published_is_not_there(void **state)
{
    (void)state;
    stage st;
    gemma_open(&st);
    const request how = {.quiet = true};
    request q;
    request_begin_as(&q, &how, &st.warm, st.text, 200, 1);
    request_run(&q, CHUNK);
    request_end(&q);
    equals_cold(&st, &q);
    assert_int_equal(scene_check(&st.warm).blocks_held, (200 + WINDOW) / st.block);
    expect_end_alone(&st, st.text, 200);
    stage_close(&st);
}

/* Blocks of twice the window: when half the second is written, the first has slid, which
 * that whole block would need to match. */
static void what_could_never_be_matched_is_not_taken(void **state)
{
    (void)state;
    static const model coarse = {GEMMA, 4, SHEAF_CODEC_F32, SHEAF_CODEC_F32, 2 * WINDOW};
    stage st;
    stage_open(&st, &coarse);
    const request how = {.quiet = true};
    request q;
    request_begin_as(&q, &how, &st.warm, st.text, 50, 1);
    request_run(&q, CHUNK);
    for (uint32_t flags = 0; flags <= SHEAF_PUBLISH_TAIL; flags++)
        assert_int_equal(
            sheaf_prefix_publish(st.warm.cache, &q.prompt, q.kv.sequence, flags, NULL),
            SHEAF_REFUSED);
    sheaf_prefix_stats stats = scene_check(&st.warm);
    assert_int_equal(stats.blocks_held, 0);
    assert_int_equal(stats.refusals[SHEAF_REFUSED_SLID], 2);
    assert_int_equal(stats.last_refusal, SHEAF_REFUSED_SLID);
    equals_cold(&st, &q);
    stage_close(&st);
}

/* The same blocks: of 115 positions the fourth block holds the last 19, which see no others,
 * but the third is what the whole blocks need to match. It stays as long as the entry does. */
static void a_window_block_that_whole_blocks_need_stays_with_them(void **state)
{
    (void)state;
    static const model coarse = {GEMMA, 4, SHEAF_CODEC_F32, SHEAF_CODEC_F32, 2 * WINDOW};
    for (uint32_t n_blocks = 2; n_blocks <= 3; n_blocks++) {
        stage st;
        stage_open(&st, &coarse);
        put(&st, st.text, 115);
        uint64_t freed, bytes = n_blocks * window_block_bytes(&st);
        assert_int_equal(sheaf_prefix_evict(st.warm.cache, bytes, &freed), SHEAF_OK);
        assert_true(freed >= bytes);
        assert_int_equal(scene_check(&st.warm).entries, n_blocks == 2);
        ask(&st, &plainly, st.text, 115, n_blocks == 2 ? 115 : 0);
        stage_close(&st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_that_is_there_as_a_whole_is_shared_as_a_whole),
        cmocka_unit_test(a_prompt_that_continues_an_answer_takes_all_of_it_over),
        cmocka_unit_test(a_prompt_that_diverges_inside_a_block_copies_the_common_part),
        cmocka_unit_test(an_entry_serves_two_borrowers_at_once_and_stays),
        cmocka_unit_test(a_request_joins_in_the_middle_of_anothers_prefill),
        cmocka_unit_test(twins_in_one_batch_leave_one_copy),
        cmocka_unit_test(a_batch_matches_and_reserves_through_the_door),
        cmocka_unit_test(what_compaction_moved_is_found_and_right),
        cmocka_unit_test(an_unaligned_entry_is_cloned_and_continued),
        cmocka_unit_test(what_a_window_leaves_behind_stays_in_the_cache),
        cmocka_unit_test(a_match_past_a_window_holds_what_is_in_sight),
        cmocka_unit_test(a_match_that_a_window_does_not_allow_is_refused),
        cmocka_unit_test(what_slid_before_it_was_published_is_not_there),
        cmocka_unit_test(what_could_never_be_matched_is_not_taken),
        cmocka_unit_test(a_window_block_that_whole_blocks_need_stays_with_them),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
