/* test_asks.c - what an ask wishes beside its tokens: bias, penalties, log-probabilities. */
#include "engine/engines.h"
#include "testing.h"

#define BLOCK 8

static const sheaf__model_options SMALL = {.block_tokens = BLOCK, .slab_blocks = 1};

static const sheaf__bias BIAS[] = {{7, -100}, {11, 3}, {12, -2.5f}, {99, -1000}, {3, 1.5f}};

/* One of each kind of wish; all prompts begin alike. */
static want mixed(uint32_t i)
{
    want w = {.n = 30 + i * 5 % 17,
              .kind = 1 + i,
              .shared = 24,
              .max_tokens = 10 + i % 5,
              .logprobs = i % 4 != 3,
              .n_top = i % 4 * 3};
    if (i % 2 != 0) w.seed = 100 + i;
    if (i % 5 == 4) w.tells_prompt = true;
    if (i % 3 == 0) w.n_choices = 3;
    if (i % 3 == 1) w.presence_penalty = 0.7f;
    if (i % 5 < 2) w.frequency_penalty = 0.4f;
    if (i % 4 >= 2) w.bias = BIAS, w.n_bias = sizeof BIAS / sizeof BIAS[0];
    return w;
}

#define N_MIXED 12

static void run_mixed(const char *dir, sheaf__model_options m, sheaf__engine_options e,
                      bool tight)
{
    static host h;
    static asked a[N_MIXED];
    host_open(&h, dir, m, e);
    for (uint32_t i = 0; i < N_MIXED; i++) {
        host_submit(&h, &a[i], mixed(i));
        if (i % 3 == 2) (void)sheaf__engine_step(h.engine);
    }
    host_idle(&h);
    for (uint32_t i = 0; i < N_MIXED; i++) host_expect(&h, &a[i]);
    assert_true(!tight || host_stats(&h).preemptions > 3);
    host_close(&h);
}

static void a_mixed_batch_answers_as_each_alone(void **state)
{
    (void)state;
    run_mixed(RUNS_LLAMA, SMALL, (sheaf__engine_options){.parallel = 12}, false);
    run_mixed(RUNS_GEMMA, SMALL, (sheaf__engine_options){.batch_tokens = 20}, false);
}

static void dense_buffers_give_the_same_bits(void **state)
{
    (void)state;
    sheaf__model_options m = {.block_tokens = BLOCK, .kv_backend = SHEAF__KV_DENSE};
    run_mixed(RUNS_LLAMA, m, (sheaf__engine_options){.parallel = 5}, false);
}

static void preemption_changes_no_bit_of_it(void **state)
{
    (void)state;
    sheaf__model_options m = SMALL;
    m.kv_budget_bytes = host_budget(RUNS_LLAMA, m, 100);
    run_mixed(RUNS_LLAMA, m, (sheaf__engine_options){.parallel = 12}, true);
}

static void a_warm_cache_changes_no_bit_of_it(void **state)
{
    (void)state;
    static host h;
    static asked cold, warm;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    for (uint32_t i = 0; i < 4; i++) {
        host_submit(&h, &cold, mixed(i));
        host_idle(&h);
        host_submit(&h, &warm, mixed(i));
        host_idle(&h);
        assert_int_equal(warm.cached, warm.ask.n_tokens - 1);
        assert_memory_equal(cold.tokens, warm.tokens, sizeof cold.tokens);
        assert_memory_equal(cold.logprobs, warm.logprobs, sizeof cold.logprobs);
    }
    host_close(&h);
}

/* ---- what is told ------------------------------------------------------------------------ */

static void log_probabilities_are_of_the_logits_as_they_are(void **state)
{
    (void)state;
    static host h;
    static asked plain, bent;
    want w = {.n = 30, .kind = 2, .max_tokens = 1, .logprobs = true, .n_top = 5};
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_submit(&h, &plain, w);
    const sheaf__bias second[] = {{0, 100}};
    w.bias = second, w.n_bias = 1;
    host_submit(&h, &bent, w);
    host_idle(&h);
    host_expect(&h, &bent);
    const sheaf__logprobs *a = &plain.logprobs[0][0], *b = &bent.logprobs[0][0];
    assert_int_equal(bent.tokens[0][0], 0);
    assert_int_equal(a->top[0].token, plain.tokens[0][0]); /* greedy: the likeliest */
    assert_true(a->top[0].value == a->value && b->value <= a->value);
    assert_memory_equal(a->top, b->top, sizeof a->top);
    for (uint32_t i = 1; i < 5; i++) assert_true(a->top[i].value <= a->top[i - 1].value);
    host_close(&h);
}

static void a_token_that_ends_the_text_may_be_ignored(void **state)
{
    (void)state;
    static host h;
    static asked a;
    want w = {.n = 30, .kind = 3, .max_tokens = 12, .seed = 5, .ignore_eos = true};
    int32_t alone[ENGINES_TOKENS];
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_ask(&h, &a, w);
    assert_int_equal(host_alone(&h, &a, 0, alone), 12);
    h.model->config.n_eos = 1;
    h.model->config.eos[0] = alone[6];
    host_submit(&h, &a, w);
    host_idle(&h);
    host_expect(&h, &a);
    assert_int_equal(a.n_tokens[0], 12);
    host_close(&h);
}

/* ---- what bends -------------------------------------------------------------------------- */

static uint32_t count_different(const asked *a)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n_tokens[0]; i++) {
        bool first = true;
        for (uint32_t k = 0; k < i; k++) first = first && a->tokens[0][k] != a->tokens[0][i];
        n += first;
    }
    return n;
}

static bool has_token(const asked *a, int32_t token)
{
    for (uint32_t i = 0; i < a->n_tokens[0]; i++)
        if (a->tokens[0][i] == token) return true;
    return false;
}

static void penalties_take_repetition_away(void **state)
{
    (void)state;
    static host h;
    static asked plain, presence, frequency, negative;
    want w = {.n = 20, .kind = 1, .max_tokens = 48};
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_submit(&h, &plain, w);
    w.presence_penalty = 1000; /* each token once */
    host_submit(&h, &presence, w);
    w.presence_penalty = 0;
    w.frequency_penalty = 1;
    host_submit(&h, &frequency, w);
    w.frequency_penalty = -100; /* the first one for ever */
    host_submit(&h, &negative, w);
    host_idle(&h);
    host_expect(&h, &presence);
    host_expect(&h, &frequency);
    host_expect(&h, &negative);
    assert_int_equal(count_different(&presence), 48);
    assert_int_equal(count_different(&negative), 1);
    assert_true(count_different(&plain) < count_different(&frequency));
    host_close(&h);
}

/* What it would answer anyway is in the prompt; were that counted, it could not come. */
static void penalties_do_not_count_the_prompt(void **state)
{
    (void)state;
    static host h;
    static asked a;
    uint32_t met = 0;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    for (uint32_t kind = 0; kind < 12; kind++) {
        host_submit(&h, &a,
                    (want){.n = 200, .kind = kind, .max_tokens = 1, .presence_penalty = 1000});
        host_idle(&h);
        host_expect(&h, &a);
        for (uint32_t i = 0; i < 200; i++) met += a.prompt[i] == a.tokens[0][0];
    }
    assert_true(met > 0);
    host_close(&h);
}

static void a_banned_token_never_comes_and_a_wanted_one_always(void **state)
{
    (void)state;
    static host h;
    static asked plain, banned, wanted;
    want w = {.n = 20, .kind = 4, .max_tokens = 40, .seed = 8};
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_submit(&h, &plain, w);
    host_idle(&h);
    sheaf__bias bias[ENGINES_TOKENS];
    w.bias = bias;
    for (uint32_t i = 0; i < plain.n_tokens[0]; i++) { /* each of them, once */
        uint32_t k = 0;
        while (k < w.n_bias && bias[k].token != plain.tokens[0][i]) k++;
        if (k == w.n_bias) bias[w.n_bias++] = (sheaf__bias){plain.tokens[0][i], -100};
    }
    host_submit(&h, &banned, w);
    host_idle(&h);
    host_expect(&h, &banned);
    for (uint32_t i = 0; i < w.n_bias; i++) assert_false(has_token(&banned, bias[i].token));
    bias[0].value = 100;
    w.n_bias = 1;
    host_submit(&h, &wanted, w);
    host_idle(&h);
    host_expect(&h, &wanted);
    assert_true(has_token(&wanted, bias[0].token));
    assert_int_equal(count_different(&wanted), 1);
    host_close(&h);
}

static void *count_alloc(void *ctx, uint64_t size, uint64_t align)
{
    *(uint64_t *)ctx += size;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void count_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

/* Else a full queue of them would hold many times what was sent. */
static void choices_that_wait_share_one_prompt(void **state)
{
    static host h;
    static asked a;
    uint64_t bytes = 0;
    const sheaf_allocator allocator = {&bytes, count_alloc, count_free};
    sheaf__model_options m = SMALL;
    (void)state;
    m.allocator = &allocator;
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){0});
    uint64_t before = bytes;
    host_submit(&h, &a, (want){.n = 400, .kind = 1, .max_tokens = 5, .n_choices = 8});
    assert_true(bytes - before < 4 * 400 * sizeof(int32_t));
    host_idle(&h);
    host_expect(&h, &a);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixed_batch_answers_as_each_alone),
        cmocka_unit_test(dense_buffers_give_the_same_bits),
        cmocka_unit_test(preemption_changes_no_bit_of_it),
        cmocka_unit_test(a_warm_cache_changes_no_bit_of_it),
        cmocka_unit_test(log_probabilities_are_of_the_logits_as_they_are),
        cmocka_unit_test(a_token_that_ends_the_text_may_be_ignored),
        cmocka_unit_test(penalties_take_repetition_away),
        cmocka_unit_test(penalties_do_not_count_the_prompt),
        cmocka_unit_test(a_banned_token_never_comes_and_a_wanted_one_always),
        cmocka_unit_test(choices_that_wait_share_one_prompt),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
