/* tests/engine/test_accounting.c - what the cache books for long prompts of the demo model is
 * what the pool holds, byte by byte.
 *
 * Three prompts of about 3,800 tokens, different from the first token on, under a capacity of
 * two and a half of them. Every step of every prefill compares the accounts of the cache with
 * the counts of the pool.
 */
#include "engine/requests.h"
#include "testing.h"

#define DEMO      "models/sheaf-demo"
#define BLOCK     32
#define CHUNK     512
#define N_PROMPTS 3
#define MAX_IDS   3823
#define VOCAB     4096

static const uint32_t sizes[N_PROMPTS] = {3800, 3777, MAX_IDS}; /* whole blocks: none */

typedef struct prompt {
    int32_t *ids;
    uint32_t n;
    uint64_t bytes; /* of the blocks that it takes */
    float *logits;  /* [VOCAB] of its last token */
} prompt;

typedef struct books {
    scene s;
    prompt prompts[N_PROMPTS];
    uint64_t block_bytes;
} books;

static uint64_t bytes_of(const books *b, uint32_t n)
{
    return (n + BLOCK - 1) / BLOCK * b->block_bytes;
}

static void open_books(books *b)
{
    const rig_options o = {
        .dir = DEMO, .codec_k = SHEAF_CODEC_BF16, .codec_v = SHEAF_CODEC_BF16, .n_threads = 2};
    sheaf_prefix_options p = SHEAF_PREFIX_OPTIONS_INIT;
    /* 8 layers, K and V, 2 heads of 64 dimensions of 2 bytes */
    b->block_bytes = 8 * 2 * 2 * 64 * 2 * BLOCK;
    p.capacity_bytes = bytes_of(b, sizes[0]) * 5 / 2;
    scene_open(&b->s, &o, &p);
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_group_info(b->s.r.pool, 0, &info), SHEAF_OK);
    assert_int_equal(info.block_bytes, b->block_bytes);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        rig_ids ids = rig_prompt(DEMO, 17 + i, sizes[i]);
        assert_int_equal(ids.n, sizes[i]);
        ids.data[0] = (int32_t)(100 + i);
        b->prompts[i] = (prompt){.ids = ids.data, .n = ids.n, .bytes = bytes_of(b, ids.n)};
        b->prompts[i].logits = malloc(VOCAB * sizeof(float));
        assert_non_null(b->prompts[i].logits);
    }
}

static void close_books(books *b)
{
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        free(b->prompts[i].ids);
        free(b->prompts[i].logits);
    }
    scene_close(&b->s);
}

/* What the cache holds, in all and alone, must be this; the pool must say so too. */
static void expect_bytes(const books *b, uint64_t held, uint64_t exclusive)
{
    sheaf_prefix_stats stats = scene_check(&b->s);
    assert_int_equal(stats.bytes_held, held);
    assert_int_equal(stats.bytes_exclusive, exclusive);
    assert_int_equal(stats.blocks_held * b->block_bytes, held);
    sheaf_pool_stats pool = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_stats_read(b->s.r.pool, &pool), SHEAF_OK);
    assert_int_equal(pool.owners[SHEAF_OWNER_TREE] * b->block_bytes, held);
    assert_int_equal(pool.bytes_shared, held - exclusive);
}

/* The entries must be these, in the order in which they would leave, each at the bytes that
 * its prompt takes. */
static void expect_entries(const books *b, const prompt *const *prompts, uint32_t n_prompts)
{
    sheaf_entry entries[N_PROMPTS + 1];
    uint32_t n = 0;
    assert_int_equal(sheaf_prefix_entries(b->s.cache, entries, N_PROMPTS + 1, &n), SHEAF_OK);
    assert_int_equal(n, n_prompts);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(entries[i].n_tokens, prompts[i]->n);
        assert_int_equal(entries[i].bytes, prompts[i]->bytes);
        assert_int_equal(entries[i].bytes_exclusive, prompts[i]->bytes);
    }
}

/* Prefills a prompt that is not there, publishing after each chunk; `before`: bytes of the
 * entries that are there. */
static void insert(books *b, prompt *p, uint64_t before)
{
    request q;
    const request how = {.logits_from = p->n - 1};
    request_begin_as(&q, &how, &b->s, p->ids, p->n, 1);
    assert_int_equal(q.match.length, 0);
    while (!request_done(&q)) {
        request *one = &q;
        request_step(&one, 1, CHUNK);
        uint32_t whole = sheaf__kv_length(&q.kv) / BLOCK * BLOCK;
        expect_bytes(b, before + bytes_of(b, whole), before);
    }
    memcpy(p->logits, q.logits, VOCAB * sizeof *p->logits);
    request_end(&q);
    request_free(&q);
}

/* The prompt is there to its last token, and its last query gives the bits of its prefill. */
static void expect_whole(books *b, const prompt *p)
{
    request q;
    const request how = {.logits_from = p->n - 1};
    request_begin_as(&q, &how, &b->s, p->ids, p->n, 1);
    assert_int_equal(q.match.length, p->n);
    assert_int_equal(q.match.cached_tokens, p->n - 1);
    request_run(&q, CHUNK);
    assert_int_equal(request_ran(&q), 1);
    assert_memory_equal(q.logits, p->logits, VOCAB * sizeof *p->logits);
    request_end(&q);
    request_free(&q);
}

static uint64_t evicted(const books *b)
{
    return scene_check(&b->s).evictions[SHEAF_LEFT_CAPACITY];
}

static void long_prompts_are_booked_at_their_bytes_and_the_oldest_leaves(void **state)
{
    (void)state;
    books b = {0};
    open_books(&b);
    prompt *p = b.prompts;
    insert(&b, &p[0], 0);
    expect_bytes(&b, p[0].bytes, p[0].bytes);
    expect_entries(&b, (const prompt *const[]){&p[0]}, 1);
    insert(&b, &p[1], p[0].bytes);
    expect_bytes(&b, p[0].bytes + p[1].bytes, p[0].bytes + p[1].bytes);
    expect_entries(&b, (const prompt *const[]){&p[0], &p[1]}, 2);
    assert_int_equal(evicted(&b), 0);
    insert(&b, &p[2], p[0].bytes + p[1].bytes);
    expect_bytes(&b, p[1].bytes + p[2].bytes, p[1].bytes + p[2].bytes);
    expect_entries(&b, (const prompt *const[]){&p[1], &p[2]}, 2);
    sheaf_prefix_stats stats = scene_check(&b.s);
    assert_int_equal(stats.evictions[SHEAF_LEFT_CAPACITY], 1);
    assert_int_equal(stats.evicted_blocks[SHEAF_LEFT_CAPACITY] * b.block_bytes, p[0].bytes);

    sheaf_match gone = SHEAF_MATCH_INIT;
    sheaf_prompt ask = SHEAF_PROMPT_INIT;
    ask.tokens = p[0].ids, ask.n_tokens = p[0].n, ask.space = &b.s.space;
    assert_int_equal(sheaf_prefix_peek(b.s.cache, &ask, &gone), SHEAF_OK);
    assert_int_equal(gone.length, 0);
    expect_whole(&b, &p[1]);
    expect_whole(&b, &p[2]);
    expect_bytes(&b, p[1].bytes + p[2].bytes, p[1].bytes + p[2].bytes);
    assert_int_equal(sheaf_prefix_reset(b.s.cache, NULL, NULL), SHEAF_OK);
    expect_bytes(&b, 0, 0);
    close_books(&b);
}

/* 45 tokens of the large prompt, then 50 others: one block is shared, 13 positions are copied. */
static void a_small_partial_match_leaves_the_large_entry_whole(void **state)
{
    (void)state;
    enum { COMMON = 45, N = 95 };
    books b = {0};
    open_books(&b);
    prompt *large = &b.prompts[0];
    int32_t small[N];
    for (uint32_t i = 0; i < N; i++) small[i] = i < COMMON ? large->ids[i] : (int32_t)(200 + i);
    insert(&b, large, 0);
    expect_whole(&b, large);

    request q;
    const request how = {.prompt.session = 7};
    request_begin_as(&q, &how, &b.s, small, N, 1);
    assert_int_equal(q.match.length, COMMON);
    assert_int_equal(q.match.shared, BLOCK);
    assert_int_equal(q.match.copied, COMMON - BLOCK);
    expect_bytes(&b, large->bytes, large->bytes - b.block_bytes);
    expect_whole(&b, large); /* while the small one runs, */
    request_run(&q, CHUNK);
    assert_int_equal(request_ran(&q), N - COMMON);
    request_end(&q);
    request_free(&q);
    expect_bytes(&b, large->bytes + 2 * b.block_bytes, large->bytes + 2 * b.block_bytes);
    expect_whole(&b, large); /* after it, */

    uint32_t n = 0;
    assert_int_equal(sheaf_prefix_release_session(b.s.cache, 7, &n), SHEAF_OK);
    assert_int_equal(n, 1);
    expect_bytes(&b, large->bytes, large->bytes);
    expect_whole(&b, large); /* and when it has gone */
    close_books(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_prompts_are_booked_at_their_bytes_and_the_oldest_leaves),
        cmocka_unit_test(a_small_partial_match_leaves_the_large_entry_whole),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
