/* tests/engine/model_sharing.c - random requests on real models in a pool that is too small for
 * them, against cold runs.
 *
 * Prompts of a few families come and go, at most four at a time, in batches of any make-up and
 * chunks of any size, through the door. Where there is no room one of them is preempted, never
 * the oldest, and found again or computed again later. Meanwhile requests are cancelled, blocks
 * evicted and moved, everything reset. Every answer and every logit must be those of a cold
 * run, and at the end the pool is empty. SHEAF_SEED sets the seed.
 */
#include "engine/requests.h"
#include "sheaf/rows.h"
#include "testing.h"

#define LLAMA "tests/data/fixtures/llama3-tied"
#define GEMMA "tests/data/fixtures/gemma3-mixed"

#define N_STEPS   700
#define N_RUNNING 4
#define BLOCK     8
#define MAX_IDS   260
#define MAX_CHUNK 60

typedef struct world {
    scene warm, cold;
    int32_t *text; /* [MAX_IDS] */
    uint64_t random;
    request running[N_RUNNING]; /* oldest first */
    uint32_t n_running;
    struct {
        uint32_t finished, preempted, cancelled;
        uint64_t hit_tokens;
    } seen;
} world;

static uint32_t below(world *w, uint32_t n)
{
    return (uint32_t)(testing_random(&w->random) % n);
}

static void take_out(world *w, uint32_t index)
{
    w->n_running--;
    for (uint32_t i = index; i < w->n_running; i++) w->running[i] = w->running[i + 1];
}

/* ---- what happens ------------------------------------------------------------------------ */

/* One of three texts that part at a position of its own from the common one. */
static void begin_one(world *w)
{
    if (w->n_running == N_RUNNING) return;
    int32_t ids[MAX_IDS];
    uint32_t part = below(w, 200), n = 1 + below(w, MAX_IDS - 30), family = 1 + below(w, 3);
    part -= below(w, 3) != 0 ? part % 50 : 0; /* mostly where others part too */
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i < part ? w->text[i] : 3 + (w->text[i] + 71 * (int32_t)family) % 300;
    request how = {.door = true, .may_slide = true};
    if (below(w, 4) == 0) how.prompt.max_match = below(w, n);
    request_begin_as(&w->running[w->n_running++], &how, &w->warm, ids, n, 1 + below(w, 9));
}

static void compare_with_cold(world *w, request *q)
{
    request cold;
    request_begin(&cold, &w->cold, q->ids, q->n_ids - 1, 1);
    request_run(&cold, MAX_IDS);
    request_compare(q, &cold);
    request_free(&cold);
}

static void finish_what_is_done(world *w)
{
    for (uint32_t i = w->n_running; i-- > 0;) {
        request *q = &w->running[i];
        if (!request_done(q)) continue;
        if (below(w, 3) != 0) request_end(q);
        compare_with_cold(w, q);
        request_free(q);
        take_out(w, i);
        w->seen.finished++;
    }
}

/* The oldest of a batch is never preempted, so that somebody always gets on. */
static void make_way(world *w)
{
    if (w->n_running > 1) {
        request_preempt(&w->running[1 + below(w, w->n_running - 1)]);
        w->seen.preempted++;
        return;
    }
    assert_int_equal(sheaf_pool_compact(w->warm.r.pool, UINT32_MAX, NULL), SHEAF_OK);
}

/* Steps some of those that run, the oldest among them. */
static void step_some(world *w)
{
    request *batch[N_RUNNING];
    uint32_t n = 0, chunk = 1 + below(w, MAX_CHUNK);
    for (uint32_t i = 0; i < w->n_running; i++)
        if (i == 0 || below(w, 3) != 0) batch[n++] = &w->running[i];
    if (n == 0) return;
    if (!request_step_if_room(batch, n, chunk)) {
        make_way(w);
        if (!request_step_if_room(batch, 1, 1))
            for (uint32_t i = 1; i < w->n_running; i++) request_preempt(&w->running[i]);
    }
    finish_what_is_done(w);
}

static void cancel_one(world *w)
{
    if (w->n_running == 0) return;
    uint32_t i = below(w, w->n_running);
    request_free(&w->running[i]);
    take_out(w, i);
    w->seen.cancelled++;
}

static void disturb(world *w)
{
    sheaf_prefix *cache = w->warm.cache;
    switch (below(w, 8)) {
    case 0: assert_int_equal(sheaf_prefix_reset(cache, NULL, NULL), SHEAF_OK); break;
    case 1:
    case 2:
        assert_int_equal(sheaf_prefix_evict(cache, below(w, 1u << 16), NULL), SHEAF_OK);
        break;
    case 3: cancel_one(w); break;
    default:
        assert_true(sheaf_pool_compact(w->warm.r.pool, 1 + below(w, 20), NULL) >= SHEAF_OK);
    }
    scene_check(&w->warm);
}

/* ---- the world --------------------------------------------------------------------------- */

/* o: the model, its codecs and the pool's budget. */
static void run_world(rig_options o, uint64_t seed)
{
    static world w;
    w = (world){.random = seed};
    o.block_tokens = BLOCK, o.slab_blocks = 4, o.n_threads = 2;
    const sheaf_prefix_options p = SHEAF_PREFIX_OPTIONS_INIT;
    scene_open(&w.warm, &o, &p);
    o.backend = SHEAF__KV_DENSE;
    scene_open(&w.cold, &o, NULL);
    rig_ids text = rig_prompt(o.dir, 4, MAX_IDS);
    w.text = text.data;
    for (uint32_t i = 0; i < N_STEPS; i++) {
        uint32_t what = below(&w, 12);
        if (what < 3) begin_one(&w);
        step_some(&w);
        if (what == 11) disturb(&w);
    }
    for (uint32_t i = 0; w.n_running != 0; i++) {
        assert_true(i < N_STEPS); /* the oldest always finishes */
        step_some(&w);
    }
    w.seen.hit_tokens = scene_check(&w.warm).hit_tokens;
    fprintf(stderr, "%s: %u finished, %u preempted, %u cancelled, %llu tokens found\n", o.dir,
            w.seen.finished, w.seen.preempted, w.seen.cancelled,
            (unsigned long long)w.seen.hit_tokens);
    assert_true(w.seen.finished > 30 && w.seen.preempted > 5 && w.seen.hit_tokens > 1000);
    free(w.text);
    scene_close(&w.warm);
    scene_close(&w.cold);
}

static void requests_of_one_group_answer_as_cold(void **state)
{
    (void)state;
    run_world((rig_options){.dir = LLAMA, .budget_bytes = 192u << 10}, testing_seed(4));
}

static void requests_of_two_groups_answer_as_cold(void **state)
{
    (void)state;
    run_world((rig_options){.dir = GEMMA, .budget_bytes = 160u << 10}, testing_seed(5));
}

/* K and V by codecs with scales, which blocks carry wherever they go. */
static void requests_with_quantized_keys_and_values_answer_as_cold(void **state)
{
    (void)state;
    run_world((rig_options){.dir = LLAMA,
                            .budget_bytes = 48u << 10,
                            .codec_k = SHEAF_CODEC_TURBO4,
                            .codec_v = SHEAF_CODEC_INT8},
              testing_seed(6));
    run_world((rig_options){.dir = GEMMA,
                            .budget_bytes = 56u << 10,
                            .codec_k = SHEAF_CODEC_INT8,
                            .codec_v = SHEAF_CODEC_TURBO4},
              testing_seed(7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_one_group_answer_as_cold),
        cmocka_unit_test(requests_of_two_groups_answer_as_cold),
        cmocka_unit_test(requests_with_quantized_keys_and_values_answer_as_cold),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
