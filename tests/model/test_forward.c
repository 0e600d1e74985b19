/* tests/model/test_forward.c - what a forward pass refuses, what it leaves, and what it
 * allocates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <malloc.h>

#include <cmocka.h>

#include "model/rig.h"

#define LLAMA  "tests/data/fixtures/llama3-tied"
#define DEMO   "models/sheaf-demo"
#define PROMPT 40

static const int32_t some_tokens[PROMPT] = {5,   9, 200, 17, 33, 4,   77,
                                            150, 6, 12,  9,  9,  300, 45};

/* ---- refusals ---------------------------------------------------------------------------- */

static void expect_refusal(rig *r, const sheaf__forward_item *items, uint32_t n_items,
                           sheaf_status wanted)
{
    float logits[4 * 320], untouched[4 * 320];
    memset(logits, 0x5a, sizeof logits);
    memcpy(untouched, logits, sizeof logits);
    assert_int_equal(sheaf__forward_run(r->forward, items, n_items, logits), wanted);
    assert_memory_equal(logits, untouched, sizeof logits);
    for (uint32_t i = 0; i < n_items; i++) {
        sheaf_kv_view view;
        if (items[i].kv == NULL) continue;
        assert_int_equal(sheaf__kv_view(items[i].kv, 0, &view), SHEAF_OK);
        assert_int_equal(view.n_tokens, sheaf__kv_length(items[i].kv)); /* nothing written */
    }
}

static void refusals_of(uint32_t backend)
{
    const rig_options o = {.dir = LLAMA, .backend = backend};
    rig r;
    rig_open(&r, &o);
    sheaf__kv a = rig_kv(&r), b = rig_kv(&r);
    int32_t bad[3] = {1, 2, 320}, negative[3] = {1, -1, 2};
    assert_int_equal(sheaf__kv_extend(&a, 3), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&b, 2), SHEAF_OK);
    const sheaf__forward_item good = {&a, some_tokens, 3, 1, 0};

    expect_refusal(&r, NULL, 0, SHEAF_E_INVALID);
    sheaf__forward_item items[2] = {good, {&b, bad, 0, 0, 0}};
    expect_refusal(&r, items, 2, SHEAF_E_INVALID); /* an empty item */
    items[1] = (sheaf__forward_item){&b, some_tokens, 2, 3, 0};
    expect_refusal(&r, items, 2, SHEAF_E_INVALID); /* more logits than tokens */
    items[1] = (sheaf__forward_item){&b, some_tokens, 3, 1, 0};
    expect_refusal(&r, items, 2, SHEAF_E_RANGE); /* only two reserved */
    items[1] = (sheaf__forward_item){NULL, some_tokens, 1, 1, 0};
    expect_refusal(&r, items, 2, SHEAF_E_INVALID);
    items[1] = (sheaf__forward_item){&b, bad + 1, 2, 1, 0};
    expect_refusal(&r, items, 2, SHEAF_E_INVALID); /* beyond the vocabulary */
    items[1] = (sheaf__forward_item){&b, negative, 2, 1, 0};
    expect_refusal(&r, items, 2, SHEAF_E_INVALID);
    items[1] = good;
    expect_refusal(&r, items, 2, SHEAF_E_INVALID); /* one cache twice */
    sheaf__kv alias = a;
    items[1].kv = &alias;
    expect_refusal(&r, items, 2, SHEAF_E_INVALID); /* the same by another name */
    assert_int_equal(sheaf__forward_run(r.forward, &good, 1, NULL), SHEAF_E_INVALID);

    sheaf__kv_destroy(&a);
    sheaf__kv_destroy(&b);
    rig_close(&r);
}

static void a_batch_that_cannot_be_run_is_refused_before_anything_is_written(void **state)
{
    (void)state;
    refusals_of(SHEAF__KV_PAGED);
    refusals_of(SHEAF__KV_DENSE);
}

static void positions_beyond_the_context_are_refused(void **state)
{
    (void)state;
    const rig_options o = {.dir = LLAMA};
    rig r;
    rig_open(&r, &o);
    sheaf__kv kv = rig_kv(&r);
    const sheaf__forward_options f = {.max_positions = 10, .memory = &r.memory};
    sheaf__forward *forward = NULL;
    float logits[320];
    assert_int_equal(sheaf__forward_create(&r.config, r.weights, &f, &forward), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&kv, 11), SHEAF_OK);
    sheaf__forward_item item = {&kv, some_tokens, 11, 1, 0};
    assert_int_equal(sheaf__forward_run(forward, &item, 1, logits), SHEAF_E_CONTEXT);
    item.n_tokens = 10;
    assert_int_equal(sheaf__forward_run(forward, &item, 1, logits), SHEAF_OK);
    assert_int_equal(sheaf__kv_commit(&kv, 10, some_tokens), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&kv, 1), SHEAF_OK);
    item.n_tokens = 1;
    assert_int_equal(sheaf__forward_run(forward, &item, 1, logits), SHEAF_E_CONTEXT);
    sheaf__kv_destroy(&kv);
    sheaf__forward_destroy(forward);
    rig_close(&r);
}

/* ---- results that are not finite --------------------------------------------------------- */

static void a_logit_that_is_not_finite_is_a_fault_and_harms_nothing(void **state)
{
    (void)state;
    const rig_options o = {.dir = LLAMA};
    rig r;
    rig_open(&r, &o);
    sheaf__kv kv = rig_kv(&r);
    float before[320], after[320];
    rig_prefill(&r, &kv, some_tokens, 20, before);
    float *broken = calloc(r.config.hidden, sizeof *broken);
    assert_non_null(broken);
    broken[3] = __builtin_inff();
    sheaf__weights weights = *r.weights;
    weights.final_norm = broken;
    const sheaf__forward_options f = {.memory = &r.memory};
    sheaf__forward *forward = NULL;
    assert_int_equal(sheaf__forward_create(&r.config, &weights, &f, &forward), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&kv, 2), SHEAF_OK);
    const sheaf__forward_item item = {&kv, some_tokens, 2, 1, 0};
    assert_int_equal(sheaf__forward_run(forward, &item, 1, after), SHEAF_E_NONFINITE);
    assert_int_equal(sheaf__kv_commit(&kv, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf__kv_length(&kv), 20);

    sheaf__kv cold = rig_kv(&r); /* the cache goes on as if nothing had been tried */
    rig_prefill(&r, &kv, some_tokens + 3, 5, after);
    rig_prefill(&r, &cold, some_tokens, 20, before);
    rig_prefill(&r, &cold, some_tokens + 3, 5, before);
    assert_memory_equal(after, before, sizeof after);
    sheaf__kv_destroy(&cold);
    sheaf__kv_destroy(&kv);
    sheaf__forward_destroy(forward);
    free(broken);
    rig_close(&r);
}

/* ---- which logits ------------------------------------------------------------------------ */

static void logits_come_in_item_order_for_the_last_tokens_only(void **state)
{
    (void)state;
    const rig_options o = {.dir = LLAMA};
    rig r;
    rig_open(&r, &o);
    enum { V = 320 };
    static float all[PROMPT * V], got[6 * V];
    sheaf__kv whole = rig_kv(&r), kv[3] = {rig_kv(&r), rig_kv(&r), rig_kv(&r)};
    rig_feed(&r, &whole, some_tokens, PROMPT, 0, all);
    const uint32_t n_tokens[3] = {9, 17, 40}, n_logits[3] = {2, 0, 4};
    sheaf__forward_item items[3];
    for (uint32_t i = 0; i < 3; i++) {
        items[i] = (sheaf__forward_item){&kv[i], some_tokens, n_tokens[i], n_logits[i], 0};
        assert_int_equal(sheaf__kv_extend(&kv[i], n_tokens[i]), SHEAF_OK);
    }
    assert_int_equal(sheaf__forward_run(r.forward, items, 3, got), SHEAF_OK);
    assert_memory_equal(got, all + 7 * V, 2 * V * sizeof *got);
    assert_memory_equal(got + 2 * V, all + 36 * V, 4 * V * sizeof *got);
    for (uint32_t i = 0; i < 3; i++) sheaf__kv_destroy(&kv[i]);
    sheaf__kv_destroy(&whole);
    rig_close(&r);
}

static void the_layout_repeats_the_config(void **state)
{
    (void)state;
    sheaf__config c = {.n_layers = 2, .n_kv_heads = 3, .head_dim = 16, .window = {0, 64}};
    sheaf_layer layers[2];
    sheaf__forward_layout(&c, SHEAF_CODEC_BF16, SHEAF_CODEC_F16, layers);
    const sheaf_layer wanted = {3, 16, 16, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_F16};
    assert_memory_equal(&layers[1], &wanted, sizeof wanted);
    assert_int_equal(layers[0].window, 0);
}

/* ---- steady state ------------------------------------------------------------------------ */

static uint64_t n_allocations;

static void *counting_alloc(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx;
    void *ptr = NULL;
    n_allocations++;
    return posix_memalign(&ptr, align, size) == 0 ? ptr : NULL;
}

static void counting_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

#define N_BATCH 3

/* One decode step of all caches together. */
static void decode_step(rig *r, sheaf__kv *kv, float *logits)
{
    sheaf__forward_item items[N_BATCH];
    int32_t token = 7;
    for (uint32_t i = 0; i < N_BATCH; i++) {
        assert_int_equal(sheaf__kv_extend(&kv[i], 1), SHEAF_OK);
        items[i] = (sheaf__forward_item){&kv[i], &token, 1, 1, 0};
    }
    assert_int_equal(sheaf__forward_run(r->forward, items, N_BATCH, logits), SHEAF_OK);
    for (uint32_t i = 0; i < N_BATCH; i++)
        assert_int_equal(sheaf__kv_commit(&kv[i], 1, &token), SHEAF_OK);
}

/* Decoding from 40 to 63 positions a cache: no slab, no block and no table is crossed. */
static void a_decode_step_allocates_nothing(void **state)
{
    (void)state;
    const sheaf_allocator counting = {NULL, counting_alloc, counting_free};
    for (uint32_t path = SHEAF_ATTN_FUSED; path <= SHEAF_ATTN_GATHER; path++) {
        const rig_options o = {
            .dir = DEMO, .n_threads = 2, .attn_path = path, .allocator = &counting};
        rig r;
        rig_open(&r, &o);
        float *logits = malloc(N_BATCH * r.config.vocab * sizeof *logits);
        assert_non_null(logits);
        sheaf__kv kv[N_BATCH];
        for (uint32_t i = 0; i < N_BATCH; i++) {
            kv[i] = rig_kv(&r);
            rig_prefill(&r, &kv[i], some_tokens, PROMPT, logits);
        }
        decode_step(&r, kv, logits);
        uint64_t before = n_allocations;
        size_t in_use = mallinfo2().uordblks + mallinfo2().hblkhd;
        for (uint32_t step = 0; step < 22; step++) decode_step(&r, kv, logits);
        assert_int_equal(n_allocations - before, 0);
        assert_int_equal(mallinfo2().uordblks + mallinfo2().hblkhd, in_use);
        for (uint32_t i = 0; i < N_BATCH; i++) sheaf__kv_destroy(&kv[i]);
        free(logits);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_that_cannot_be_run_is_refused_before_anything_is_written),
        cmocka_unit_test(positions_beyond_the_context_are_refused),
        cmocka_unit_test(a_logit_that_is_not_finite_is_a_fault_and_harms_nothing),
        cmocka_unit_test(logits_come_in_item_order_for_the_last_tokens_only),
        cmocka_unit_test(the_layout_repeats_the_config),
        cmocka_unit_test(a_decode_step_allocates_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
