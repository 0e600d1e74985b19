/* test_engine_backends.c - dense and paged backends through the same scheduler, alone and batched: equal
 * bits.
 *
 * The same asks are put to four engines: on the paged and on the dense backend, each ask when the one
 * before it is done, and all at once. What each is told is compared byte by byte.
 */
#include "engine/engines.h"
#include "testing.h"

#define N_ASKS 9

static const sheaf__bias BIAS[] = {{7, -100}, {11, 3}, {12, -2.5f}};

static want mixed(uint32_t i)
{
    const uint32_t lengths[N_ASKS] = {1, 7, 8, 9, 40, 41, 97, 60, 130};
    want w = {.n = lengths[i],
              .kind = 1 + i,
              .shared = i % 2 != 0 ? 32 : 0,
              .max_tokens = 6 + i,
              .logprobs = true,
              .n_top = i % 4,
              .tells_prompt = i % 3 == 1};
    if (i % 2 == 0) w.seed = 7 + i;
    if (i % 3 == 0) w.n_choices = 3;
    if (i % 4 == 1) w.frequency_penalty = 0.5f;
    if (i % 4 == 2) w.bias = BIAS, w.n_bias = sizeof BIAS / sizeof BIAS[0];
    return w;
}

typedef struct run {
    asked asked[N_ASKS];
    sheaf__engine_stats stats;
} run;

static void run_all(run *r, const char *dir, sheaf__model_options m, bool alone)
{
    static host h;
    host_open(&h, dir, m, (sheaf__engine_options){.parallel = 6, .batch_tokens = 40});
    for (uint32_t i = 0; i < N_ASKS; i++) {
        host_submit(&h, &r->asked[i], mixed(i));
        if (alone) host_idle(&h);
    }
    host_idle(&h);
    for (uint32_t i = 0; i < N_ASKS; i++) assert_true(r->asked[i].done && !r->asked[i].broken);
    r->stats = host_stats(&h);
    host_close(&h);
}

static void expect_equal(const run *a, const run *b)
{
    for (uint32_t i = 0; i < N_ASKS; i++) {
        const asked *x = &a->asked[i], *y = &b->asked[i];
        assert_memory_equal(x->n_tokens, y->n_tokens, sizeof x->n_tokens);
        assert_memory_equal(x->finish, y->finish, sizeof x->finish);
        assert_memory_equal(x->tokens, y->tokens, sizeof x->tokens);
        assert_memory_equal(x->logprobs, y->logprobs, sizeof x->logprobs);
        assert_int_equal(x->n_prompt_told, y->n_prompt_told);
        assert_memory_equal(x->prompt_told, y->prompt_told, sizeof x->prompt_told);
    }
}

/* room: of the pool, in tokens; 0: without limit. */
static void compare(const char *dir, sheaf__model_options m, uint32_t room)
{
    static run runs[4];
    m.block_tokens = 8;
    m.slab_blocks = 1;
    if (room != 0) m.kv_budget_bytes = host_budget(dir, m, room);
    run_all(&runs[0], dir, m, true);
    run_all(&runs[1], dir, m, false);
    m.kv_budget_bytes = 0;
    m.kv_backend = SHEAF__KV_DENSE;
    run_all(&runs[2], dir, m, true);
    run_all(&runs[3], dir, m, false);
    for (uint32_t i = 1; i < 4; i++) expect_equal(&runs[0], &runs[i]);
    assert_true(runs[0].stats.steps > runs[1].stats.steps);
    assert_true(runs[2].stats.steps > runs[3].stats.steps);
    assert_true(runs[0].stats.tokens_reused > 0);
    assert_int_equal(runs[2].stats.tokens_reused + runs[3].stats.tokens_reused, 0);
    assert_int_equal(runs[2].stats.preemptions + runs[3].stats.preemptions, 0);
    assert_true(room == 0 || runs[1].stats.preemptions > 0);
}

static void backends_give_equal_bits_alone_and_batched(void **state)
{
    (void)state;
    compare(RUNS_LLAMA, (sheaf__model_options){0}, 0);
    compare(RUNS_QWEN, (sheaf__model_options){0}, 0);
    compare(RUNS_LLAMA, (sheaf__model_options){0}, 160);
}

static void backends_give_equal_bits_with_windows(void **state)
{
    (void)state;
    compare(RUNS_GEMMA, (sheaf__model_options){0}, 0);
}

static void backends_give_equal_bits_by_other_codecs(void **state)
{
    (void)state;
    compare(RUNS_LLAMA,
            (sheaf__model_options){.codec_k = SHEAF_CODEC_F16, .codec_v = SHEAF_CODEC_BF16}, 0);
    compare(RUNS_LLAMA,
            (sheaf__model_options){.codec_k = SHEAF_CODEC_TURBO4, .codec_v = SHEAF_CODEC_INT8},
            160);
    compare(RUNS_GEMMA,
            (sheaf__model_options){.codec_k = SHEAF_CODEC_INT8, .codec_v = SHEAF_CODEC_TURBO4},
            0);
}

/* ---- what the dense backend lacks -------------------------------------------------------- */

static void the_dense_backend_has_no_prompt_cache(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    sheaf_error err = {0};
    sheaf_row row;
    uint64_t owner;
    const sheaf__model_options m = {.block_tokens = 8, .kv_backend = SHEAF__KV_DENSE};
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){0});
    assert_null(sheaf__engine_prefix(h.engine));
    assert_int_equal(sheaf__engine_map(h.engine, 0, 0, 1, &row, &owner), SHEAF_E_UNSUPPORTED);
    const want w = {.n = 40, .kind = 1, .max_tokens = 5, .salt = "a"};
    host_ask(&h, &a, w);
    a.ask.kind = SHEAF__ASK_PROMPT;
    a.ask.pin = true;
    assert_int_equal(sheaf__engine_submit(h.engine, &a.ask, &a.id, &err), SHEAF_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no prompt cache"));
    a.ask.pin = false;
    host_send(&h, &a);
    host_idle(&h);
    assert_true(a.done && !a.broken);
    assert_int_equal(a.finish[0], SHEAF__FINISH_LENGTH);
    assert_int_equal(a.n_tokens[0], 0);
    host_submit(&h, &b, w);
    host_idle(&h);
    host_expect(&h, &b);
    assert_int_equal(b.cached, 0);
    assert_int_equal(b.n_computed, 40 + 4);
    host_close(&h);
}

static void dense_buffers_are_counted_while_they_are_there(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    sheaf__kv kv = {0};
    const sheaf__model_options m = {.block_tokens = 8, .kv_backend = SHEAF__KV_DENSE};
    const want w = {.n = 40, .kind = 1, .max_tokens = 5};
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){0});
    assert_int_equal(sheaf__model_new_kv(h.model, &kv), SHEAF_OK);
    uint64_t one =
        sheaf__dense_bytes(kv.dense); /* for more positions than are asked for here */
    sheaf__kv_destroy(&kv);
    assert_true(one > 0);
    host_submit(&h, &a, w);
    host_submit(&h, &b, w);
    assert_int_equal(host_stats(&h).dense_bytes, 0);
    while (a.n_tokens[0] == 0 || b.n_tokens[0] == 0) sheaf__engine_step(h.engine);
    assert_int_equal(host_stats(&h).dense_bytes, 2 * one);
    host_idle(&h);
    assert_int_equal(host_stats(&h).dense_bytes, 0);
    host_close(&h);
}

static void cancelling_gives_dense_buffers_back(void **state)
{
    (void)state;
    static host h;
    static asked a[4];
    const sheaf__model_options m = {.block_tokens = 8, .kv_backend = SHEAF__KV_DENSE};
    host_open(&h, RUNS_LLAMA, m,
              (sheaf__engine_options){.parallel = 3, .batch_tokens = 32, .prefill_chunk = 32});
    uint64_t idle = 0;
    for (uint32_t steps = 0; steps < 12; steps++) {
        for (uint32_t i = 0; i < 4; i++)
            host_submit(&h, &a[i],
                        (want){.n = 50, .kind = i, .max_tokens = 9, .n_choices = 1 + i % 3});
        for (uint32_t i = 0; i < 13 - steps; i++) (void)sheaf__engine_step(h.engine);
        for (uint32_t i = 0; i < 4; i++)
            if (!a[i].done) assert_int_equal(sheaf__engine_cancel(h.engine, a[i].id), SHEAF_OK);
        host_idle(&h);
        if (steps == 0) idle = h.model->memory.live_bytes; /* buffers of the pass have grown */
        assert_int_equal(h.model->memory.live_bytes, idle);
    }
    host_close(&h);
}

/* ---- the steady state -------------------------------------------------------------------- */

static void *counting_alloc(void *ctx, uint64_t size, uint64_t align)
{
    ++*(uint64_t *)ctx;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void counting_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

/* Allocations of steps [first, end). */
static uint64_t count_steps(host *h, uint32_t first, uint32_t end, const uint64_t *n_allocs)
{
    uint64_t before = *n_allocs;
    for (uint32_t i = first; i < end; i++) assert_true(sheaf__engine_step(h->engine));
    return *n_allocs - before;
}

/* Six answers whose prompts have 40 to 42 tokens: blocks of 32 end while they decode, and their token
 * lists double. Between these steps nothing is allocated. */
static void a_decode_step_allocates_nothing(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    uint64_t n_allocs = 0;
    const sheaf_allocator allocator = {&n_allocs, counting_alloc, counting_free};
    for (uint32_t backend = SHEAF__KV_PAGED; backend <= SHEAF__KV_DENSE; backend++) {
        const sheaf__model_options m = {.allocator = &allocator, .kv_backend = backend};
        host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){0});
        for (uint32_t i = 0; i < 3; i++)
            host_submit(&h, &a[i],
                        (want){.n = 40 + i,
                               .kind = i,
                               .max_tokens = 60,
                               .n_choices = 2,
                               .logprobs = true,
                               .frequency_penalty = 0.5f,
                               .seed = 3});
        assert_int_not_equal(count_steps(&h, 0, 2, &n_allocs), 0);
        assert_int_equal(count_steps(&h, 2, 22, &n_allocs), 0);
        assert_int_not_equal(count_steps(&h, 22, 26, &n_allocs), 0);
        assert_int_equal(count_steps(&h, 26, 42, &n_allocs), 0);
        host_idle(&h);
        for (uint32_t i = 0; i < 3; i++) host_expect(&h, &a[i]);
        host_close(&h);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backends_give_equal_bits_alone_and_batched),
        cmocka_unit_test(backends_give_equal_bits_with_windows),
        cmocka_unit_test(backends_give_equal_bits_by_other_codecs),
        cmocka_unit_test(the_dense_backend_has_no_prompt_cache),
        cmocka_unit_test(dense_buffers_are_counted_while_they_are_there),
        cmocka_unit_test(cancelling_gives_dense_buffers_back),
        cmocka_unit_test(a_decode_step_allocates_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
