/* A script of pool calls in which the Nth host allocation, or the Nth commit, or the reservation
 * fails, alone and from N on: each call answers, changes nothing, and at the end all is given back. */
#include "pool/fixture.h"

static watched_heap heap;
static watched_memory watched;

/* Answers of a call that ran out of memory; the script goes on after each. */
static bool ran_out(const sheaf_pool *pool, sheaf_status st, const sheaf_pool_stats *before)
{
    if (st == SHEAF_OK) return false;
    assert_true(st == SHEAF_FULL || st == SHEAF_E_NO_MEMORY);
    assert_unchanged(pool, *before);
    return true;
}

static uint32_t acquire(sheaf_pool *pool, uint32_t a, uint32_t b, sheaf_block *blocks)
{
    uint32_t counts[2] = {a, b};
    sheaf_pool_stats before = stats_of(pool);
    sheaf_status st = sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks);
    return ran_out(pool, st, &before) ? 0 : a + b;
}

/* Opens, grows by one slab and by several, presizes, shrinks and grows again. Returns whether
 * everything succeeded. No call takes back a slab of the other group: the budget has room. */
static bool run_script(void)
{
    sheaf_layer layers[2];
    sheaf_pool_options options = tiny_options(layers, 2, 256 * PAGE);
    sheaf_allocator allocator = {&heap, watched_alloc, watched_free};
    sheaf_slab_memory memory = {
        &watched, PAGE, watched_reserve, watched_commit, watched_decommit, watched_release};
    options.allocator = &allocator;
    options.slab_memory = &memory;
    sheaf_pool *pool = NULL;
    sheaf_status st = sheaf_pool_open(&options, &pool, NULL);
    if (st != SHEAF_OK) {
        assert_int_equal(st, SHEAF_E_NO_MEMORY);
        assert_null(pool);
        return false;
    }
    sheaf_block blocks[128];
    uint32_t n = acquire(pool, 1, 1, blocks), expected = 2 + 30 + 12 + 60;
    n += acquire(pool, 20, 10, blocks + n);
    uint32_t counts[2] = {40, 40};
    sheaf_pool_stats before = stats_of(pool);
    bool out = ran_out(pool, sheaf_pool_presize(pool, counts), &before);
    n += acquire(pool, 6, 6, blocks + n);
    uint32_t given = n / 2;
    give(pool, given, blocks);
    n += acquire(pool, 30, 30, blocks + n);
    check_pool(pool);
    give(pool, n - given, blocks + given);
    close_pool(pool);
    return n == expected && !out;
}

static void assert_all_given_back(void)
{
    assert_int_equal(heap.live_bytes, 0);
    assert_int_equal(watched.n_committed + watched.n_reserved, 0);
    assert_int_equal(watched.committed_bytes, 0);
    assert_int_equal(watched.misuse, 0);
}

static void start(void)
{
    watch_heap(&heap);
    watch_memory(&watched);
}

/* Lets call N of a kind fail for every N that the script makes, alone and from N on. */
static void fail_each(uint64_t *one, uint64_t *from, const uint64_t *made)
{
    start();
    assert_true(run_script());
    assert_all_given_back();
    uint64_t total = *made;
    assert_true(total >= 2);
    for (uint64_t *which = one; which != NULL; which = which == one ? from : NULL)
        for (uint64_t n = 1; n <= total; n++) {
            start();
            *which = n;
            assert_false(run_script());
            assert_all_given_back();
        }
}

static void every_host_allocation_may_fail(void **state)
{
    (void)state;
    fail_each(&heap.fail_alloc, &heap.fail_from, &heap.allocs);
}

static void every_commit_may_fail(void **state)
{
    (void)state;
    fail_each(&watched.fail_commit, &watched.fail_commits_from, &watched.commits);
}

static void every_reservation_may_fail(void **state)
{
    (void)state;
    fail_each(&watched.fail_reserve, NULL, &watched.reserves);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_host_allocation_may_fail),
        cmocka_unit_test(every_commit_may_fail),
        cmocka_unit_test(every_reservation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
