/* oom_scheduler.c - an engine whose host memory runs out at any allocation.
 *
 * The Nth allocation after the engine stands fails, alone or with all that follow it in that step,
 * for every N. Requests then end with the tokens of a cold run or with an error; nothing is lost, and
 * the next request is answered.
 */
#include "engine/engines.h"
#include "testing.h"

/* Allocations until one fails; 0: none does. `stay`: those after it fail too. */
typedef struct failing {
    uint64_t left;
    bool stay, failed;
} failing;

static void *fail_alloc(void *ctx, uint64_t size, uint64_t align)
{
    failing *f = ctx;
    if (f->failed && f->stay) return NULL;
    if (f->left != 0 && --f->left == 0) {
        f->failed = true;
        return NULL;
    }
    size = (size + align - 1) / align * align;
    return aligned_alloc(align, size);
}

static void fail_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

static void submit_if_memory(host *h, asked *a, want w)
{
    host_ask(h, a, w);
    sheaf_status st = sheaf__engine_submit(h->engine, &a->ask, &a->id, NULL);
    assert_true(st == SHEAF_OK || st == SHEAF_E_NO_MEMORY);
    if (st != SHEAF_OK) a->id = 0;
}

/* What a request gives that nothing has failed for: by a cold run once, then as it was known to be. */
static void expect_known(host *h, const asked *a, asked *known)
{
    if (!known->done) {
        host_expect(h, a);
        *known = *a;
        return;
    }
    assert_false(a->broken);
    assert_memory_equal(a->finish, known->finish, sizeof a->finish);
    assert_memory_equal(a->n_tokens, known->n_tokens, sizeof a->n_tokens);
    assert_memory_equal(a->tokens, known->tokens, sizeof a->tokens);
}

/* False: there was no Nth allocation. */
static bool run_with_failure(uint64_t n, bool stay, uint32_t backend, uint32_t *n_errors)
{
    static host h;
    static asked a[3], after, known[4];
    failing f = {0};
    const sheaf_allocator allocator = {&f, fail_alloc, fail_free};
    sheaf__model_options m = {.block_tokens = 8, .slab_blocks = 1, .allocator = &allocator};
    m.kv_backend = backend;
    if (backend == SHEAF__KV_PAGED) m.kv_budget_bytes = 9u << 16;
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){.batch_tokens = 24});
    f.left = n;
    f.stay = stay;
    submit_if_memory(&h, &a[0], (want){.n = 30, .kind = 1, .shared = 20, .max_tokens = 6});
    const sheaf__bias bias = {5, 1};
    submit_if_memory(&h, &a[1],
                     (want){.n = 26,
                            .kind = 2,
                            .shared = 20,
                            .max_tokens = 20,
                            .n_choices = 3,
                            .seed = 4,
                            .bias = &bias,
                            .n_bias = 1});
    submit_if_memory(&h, &a[2], (want){.n = 12, .kind = 3, .max_tokens = 9});
    for (uint32_t i = 0; sheaf__engine_step(h.engine); i++) {
        assert_true(i < 1000);
        if (f.failed) f.stay = false; /* for the rest of the step in which it ran out */
    }
    bool failed = f.failed;
    f = (failing){0};
    host_idle(&h);
    for (uint32_t i = 0; i < 3; i++) {
        if (a[i].id == 0) continue;
        bool error = false;
        assert_true(a[i].done && !a[i].broken);
        for (uint32_t c = 0; c < ENGINES_CHOICES; c++)
            error |= a[i].finish[c] == SHEAF__FINISH_ERROR;
        *n_errors += error;
        if (!error) expect_known(&h, &a[i], &known[i]);
    }
    host_submit(&h, &after, (want){.n = 33, .kind = 1, .shared = 20, .max_tokens = 6});
    host_idle(&h);
    expect_known(&h, &after, &known[3]);
    host_close(&h);
    return failed;
}

static void run_all(bool stay, uint32_t backend)
{
    uint32_t n_errors = 0;
    uint64_t n = 1;
    while (run_with_failure(n, stay, backend, &n_errors)) n++;
    fprintf(stderr, "%llu allocations failed, %u requests with them\n",
            (unsigned long long)n - 1, n_errors);
    assert_true(n > 20 && n_errors > 0);
}

static void one_failed_allocation_costs_a_request_at_most_its_end(void **state)
{
    (void)state;
    run_all(false, SHEAF__KV_PAGED);
    run_all(false, SHEAF__KV_DENSE);
}

static void a_step_without_memory_costs_requests_at_most_their_end(void **state)
{
    (void)state;
    run_all(true, SHEAF__KV_PAGED);
    run_all(true, SHEAF__KV_DENSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_failed_allocation_costs_a_request_at_most_its_end),
        cmocka_unit_test(a_step_without_memory_costs_requests_at_most_their_end),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
