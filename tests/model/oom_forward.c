/* tests/model/oom_forward.c - a forward pass whose Nth allocation fails.
 *
 * For every N, alone and from N on: create, reserve, run, commit; the fault is
 * SHEAF_E_NO_MEMORY, the cache is as before, nothing leaks, and once memory is back the same
 * call gives the right bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/rig.h"

#define LLAMA    "tests/data/fixtures/llama3-tied"
#define VOCAB    320
#define N_TOKENS 50

static struct {
    uint64_t count;   /* allocations so far */
    uint64_t fail_at; /* this one fails; 0: none */
    bool from_then_on;
} plan;

static void *failing_alloc(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx;
    plan.count++;
    if (plan.fail_at != 0 &&
        (plan.count == plan.fail_at || (plan.from_then_on && plan.count > plan.fail_at)))
        return NULL;
    void *ptr = NULL;
    return posix_memalign(&ptr, align, size) == 0 ? ptr : NULL;
}

static void failing_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

static const sheaf_allocator failing = {NULL, failing_alloc, failing_free};

typedef struct scene {
    rig *r; /* its own memory never fails: the weights and the reference come from it */
    int32_t tokens[N_TOKENS];
    float wanted[VOCAB];
} scene;

/* Two prefill chunks into a fresh cache. `kv` is left as the last successful step left it. */
static sheaf_status run_steps(scene *s, sheaf__forward *forward, sheaf__kv *kv, float *logits)
{
    while (sheaf__kv_length(kv) < N_TOKENS) {
        uint32_t at = sheaf__kv_length(kv), n = at == 0 ? 18 : N_TOKENS - at;
        const sheaf__forward_item item = {kv, s->tokens + at, n, 1, 0};
        sheaf_status st = sheaf__kv_extend(kv, n);
        if (st == SHEAF_OK) st = sheaf__forward_run(forward, &item, 1, logits);
        if (st == SHEAF_OK) st = sheaf__kv_commit(kv, n, item.tokens);
        if (st != SHEAF_OK) {
            assert_int_equal(sheaf__kv_commit(kv, 0, NULL), SHEAF_OK);
            assert_int_equal(sheaf__kv_length(kv), at);
            return st;
        }
    }
    return SHEAF_OK;
}

/* Everything once under the plan; what failed is done again with memory. Returns whether any
 * did. */
static bool play(scene *s, uint32_t backend)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, &failing);
    sheaf__forward *forward = NULL;
    sheaf__kv kv = {.backend = backend};
    float logits[VOCAB];
    bool failed = false;
    const sheaf__forward_options f = {.memory = &memory};
    sheaf_status st = sheaf__forward_create(&s->r->config, s->r->weights, &f, &forward);
    if (st == SHEAF_OK && backend == SHEAF__KV_DENSE)
        st =
            sheaf__dense_create(&memory, s->r->layers, s->r->config.n_layers, 4, 16, &kv.dense);
    else if (st == SHEAF_OK)
        st = sheaf_sequence_create(s->r->pool, &kv.sequence);
    if (st == SHEAF_OK) {
        st = run_steps(s, forward, &kv, logits);
        failed = st != SHEAF_OK;
        if (failed) assert_int_equal(st, SHEAF_E_NO_MEMORY);
        plan.fail_at = 0;
        if (failed) assert_int_equal(run_steps(s, forward, &kv, logits), SHEAF_OK);
        assert_memory_equal(logits, s->wanted, sizeof logits);
    } else {
        assert_int_equal(st, SHEAF_E_NO_MEMORY);
        failed = true;
    }
    sheaf__kv_destroy(&kv);
    sheaf__forward_destroy(forward);
    assert_int_equal(memory.live_bytes, 0);
    return failed;
}

static void fail_each(uint32_t backend)
{
    const rig_options o = {.dir = LLAMA};
    rig r;
    scene s = {.r = &r};
    rig_open(&r, &o);
    for (uint32_t i = 0; i < N_TOKENS; i++) s.tokens[i] = (int32_t)(3 + i * 31 % 300);
    sheaf__kv kv = rig_kv(&r);
    rig_prefill(&r, &kv, s.tokens, N_TOKENS, s.wanted);
    sheaf__kv_destroy(&kv);
    for (int from_then_on = 0; from_then_on <= 1; from_then_on++) {
        uint64_t n = 1;
        for (;; n++) {
            plan.count = 0;
            plan.fail_at = n;
            plan.from_then_on = from_then_on;
            if (!play(&s, backend)) break;
        }
        assert_true(n > 5); /* the plan did hit something */
    }
    plan.fail_at = 0;
    rig_close(&r);
}

static void any_allocation_may_fail_with_a_paged_cache(void **state)
{
    (void)state;
    fail_each(SHEAF__KV_PAGED);
}

static void any_allocation_may_fail_with_a_dense_cache(void **state)
{
    (void)state;
    fail_each(SHEAF__KV_DENSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_may_fail_with_a_paged_cache),
        cmocka_unit_test(any_allocation_may_fail_with_a_dense_cache),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
