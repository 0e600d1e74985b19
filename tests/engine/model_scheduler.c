/* model_scheduler.c - random requests on an engine whose pool is too small for them, against each
 * alone.
 *
 * Prompts of any length come, some that begin alike, with one to four choices, greedy and seeded, of
 * any priority, some with bent logits or with log-probabilities, of their prompt too; the pool has room
 * for a few of them. Meanwhile some are cancelled at any phase, blocks are evicted, everything is reset.
 * Who comes to an end has the tokens of a cold run of it alone on the dense backend; afterwards no
 * sequence holds a block. SHEAF_SEED sets the seed.
 */
#include "engine/engines.h"
#include "testing.h"

#define N_ASKED 24 /* at a time */
#define N_STEPS 500
#define MAX_IDS 120

static const sheaf__bias BIAS[] = {{5, -100}, {17, 2}, {40, -3.5f}};

typedef struct world {
    host h;
    uint64_t random;
    asked asked[N_ASKED];
    bool used[N_ASKED];
    struct {
        uint32_t finished, cancelled, choices;
    } seen;
} world;

static uint32_t below(world *w, uint32_t n)
{
    return (uint32_t)(testing_random(&w->random) % n);
}

static void submit_one(world *w)
{
    uint32_t i = 0;
    while (i < N_ASKED && w->used[i]) i++;
    if (i == N_ASKED) return;
    want x = {.n = 1 + below(w, MAX_IDS), .kind = below(w, 6), .max_tokens = 1 + below(w, 20)};
    if (below(w, 2) == 0) x.shared = below(w, MAX_IDS);
    if (below(w, 3) == 0) x.n_choices = 1 + below(w, 4);
    if (below(w, 2) == 0) x.seed = 1 + below(w, 1000);
    if (below(w, 4) == 0) x.priority = (int32_t)below(w, 7) - 3;
    if (below(w, 6) == 0) x.salt = "another";
    x.tells_prompt = below(w, 6) == 0;
    x.logprobs = below(w, 3) == 0;
    x.n_top = below(w, 4);
    if (below(w, 4) == 0) x.presence_penalty = (float)below(w, 8) / 4 - 1;
    if (below(w, 4) == 0) x.frequency_penalty = (float)below(w, 8) / 8;
    if (below(w, 4) == 0) x.bias = BIAS, x.n_bias = 1 + below(w, 3);
    host_ask(&w->h, &w->asked[i], x);
    if (below(w, 5) == 0) w->asked[i].stop_after[below(w, 3)] = 1 + below(w, 20);
    host_send(&w->h, &w->asked[i]);
    w->used[i] = true;
}

static void look_at_what_is_done(world *w)
{
    for (uint32_t i = 0; i < N_ASKED; i++) {
        asked *a = &w->asked[i];
        assert_false(a->broken);
        if (!w->used[i] || !a->done) continue;
        w->used[i] = false;
        if (a->finish[0] == SHEAF__FINISH_CANCELLED) {
            w->seen.cancelled++;
            continue;
        }
        host_expect(&w->h, a);
        w->seen.finished++;
        w->seen.choices += a->ask.n_choices == 0 ? 1 : a->ask.n_choices;
    }
}

static void disturb(world *w)
{
    sheaf_prefix *prefix = sheaf__engine_prefix(w->h.engine);
    uint32_t i = below(w, N_ASKED);
    for (uint32_t k = 0; k < N_ASKED && !w->used[i]; k++) i = (i + 1) % N_ASKED;
    switch (prefix != NULL ? below(w, 6) : 2) {
    case 0: assert_int_equal(sheaf_prefix_reset(prefix, NULL, NULL), SHEAF_OK); break;
    case 1:
        assert_int_equal(sheaf_prefix_evict(prefix, below(w, 1u << 16), NULL), SHEAF_OK);
        break;
    default:
        if (!w->used[i]) break;
        /* all its choices, or none: what is compared afterwards is a whole request */
        if (w->asked[i].n_tokens[0] == 0 || w->asked[i].ask.n_choices <= 1)
            assert_int_equal(sheaf__engine_cancel(w->h.engine, w->asked[i].id), SHEAF_OK);
    }
}

static void run_steps(world *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (below(w, 4) == 0) submit_one(w);
        if (below(w, 10) == 0) disturb(w);
        (void)sheaf__engine_step(w->h.engine);
        if (i % 8 == 0) host_check(&w->h);
        look_at_what_is_done(w);
    }
    host_idle(&w->h);
    look_at_what_is_done(w);
    for (uint32_t i = 0; i < N_ASKED; i++) assert_false(w->used[i]);
}

/* room: tokens that the pool has room for; 0: on the dense backend. m: its codecs. */
static void run_world(const char *dir, sheaf__model_options m, uint32_t room,
                      sheaf__engine_options e, uint64_t seed)
{
    static world w;
    m.block_tokens = 8, m.slab_blocks = 2, m.n_threads = 2;
    w = (world){.random = seed};
    if (room != 0)
        m.kv_budget_bytes = host_budget(dir, m, room);
    else
        m.kv_backend = SHEAF__KV_DENSE;
    host_open(&w.h, dir, m, e);
    run_steps(&w, room != 0 ? N_STEPS : N_STEPS / 3);
    sheaf__engine_stats s = host_stats(&w.h);
    fprintf(stderr,
            "%s: %u finished (%u choices), %u cancelled, %llu preemptions, %llu positions "
            "computed, %llu found\n",
            dir, w.seen.finished, w.seen.choices, w.seen.cancelled,
            (unsigned long long)s.preemptions, (unsigned long long)s.tokens_computed,
            (unsigned long long)s.tokens_reused);
    assert_int_equal(s.failed, 0);
    assert_true(w.seen.finished > 10 && w.seen.cancelled > 0);
    if (room != 0)
        assert_true(s.preemptions > 2 && s.tokens_reused > 300);
    else
        assert_int_equal(s.preemptions + s.tokens_reused, 0);
    host_close(&w.h);
}

static const sheaf__model_options f32 = {0};
static const sheaf__model_options mixed = {.codec_k = SHEAF_CODEC_INT8,
                                           .codec_v = SHEAF_CODEC_TURBO4};

static void requests_of_one_group_answer_as_alone(void **state)
{
    (void)state;
    run_world(RUNS_LLAMA, f32, 320,
              (sheaf__engine_options){.batch_tokens = 64, .prefill_chunk = 40},
              testing_seed(4));
}

static void requests_of_two_groups_answer_as_alone(void **state)
{
    (void)state;
    run_world(RUNS_GEMMA, f32, 176, (sheaf__engine_options){.batch_tokens = 40},
              testing_seed(5));
}

static void requests_with_quantized_keys_and_values_answer_as_alone(void **state)
{
    (void)state;
    run_world(RUNS_GEMMA, mixed, 176,
              (sheaf__engine_options){.batch_tokens = 40, .prefill_chunk = 16},
              testing_seed(9));
}

static void small_limits_change_nothing(void **state)
{
    (void)state;
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.max_entries = 3;
    run_world(RUNS_QWEN, f32, 200,
              (sheaf__engine_options){.batch_tokens = 12, .parallel = 5, .prefix = &o},
              testing_seed(6));
}

static void requests_on_the_dense_backend_answer_as_alone(void **state)
{
    (void)state;
    run_world(RUNS_GEMMA, f32, 0, (sheaf__engine_options){.batch_tokens = 40}, testing_seed(7));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_one_group_answer_as_alone),
        cmocka_unit_test(requests_of_two_groups_answer_as_alone),
        cmocka_unit_test(requests_with_quantized_keys_and_values_answer_as_alone),
        cmocka_unit_test(small_limits_change_nothing),
        cmocka_unit_test(requests_on_the_dense_backend_answer_as_alone),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
