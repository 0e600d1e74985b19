/* Who holds which block: handles, references, kinds, copies, fences, closing. */
#include "pool/fixture.h"
#include "testing.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static uint32_t references(const sheaf_pool *pool, sheaf_block block)
{
    uint32_t total = UINT32_MAX;
    assert_int_equal(sheaf_pool_references(pool, block, &total, NULL), SHEAF_OK);
    return total;
}

/* Every call that takes a handle refuses this one, and nothing changes. */
static void refused_as_stale(sheaf_pool *pool, sheaf_block block, sheaf_block live)
{
    sheaf_pool_stats before = stats_of(pool);
    uint32_t total = 7;
    void *addr = &total;
    sheaf_fence fence = {0};
    assert_int_equal(sheaf_pool_retain(pool, block, SHEAF_OWNER_HOST), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_release(pool, block, SHEAF_OWNER_HOST), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_release_after(pool, block, SHEAF_OWNER_HOST, fence),
                     SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_transfer(pool, block, SHEAF_OWNER_HOST, SHEAF_OWNER_IO),
                     SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_copy(pool, block, live), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_copy(pool, live, block), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_address(pool, block, &addr), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_references(pool, block, &total, NULL), SHEAF_E_STALE);
    assert_int_equal(total, 7);
    assert_ptr_equal(addr, &total);
    assert_unchanged(pool, before);
}

static void a_block_has_an_address_and_one_reference(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    uint32_t counts[2] = {3, 2}, total, by_kind[SHEAF_OWNER_KINDS];
    sheaf_block blocks[5];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_IO, blocks), SHEAF_OK);
    for (uint32_t i = 0; i < 5; i++) {
        void *addr = NULL;
        assert_int_equal(blocks[i].group, i < 3 ? 0 : 1);
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr), SHEAF_OK);
        assert_ptr_equal(addr, (const char *)sheaf_pool_base(pool, blocks[i].group) +
                                   blocks[i].row * 1024);
        memset(addr, (int)i, 1024);
        assert_int_equal(sheaf_pool_references(pool, blocks[i], &total, by_kind), SHEAF_OK);
        assert_int_equal(total, 1);
        for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++)
            assert_int_equal(by_kind[k], k == SHEAF_OWNER_IO);
    }
    for (uint32_t i = 0; i < 5; i++) {
        void *addr = NULL;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr), SHEAF_OK);
        assert_int_equal(((unsigned char *)addr)[1023], i);
        assert_int_equal(sheaf_pool_release(pool, blocks[i], SHEAF_OWNER_IO), SHEAF_OK);
    }
    close_pool(pool);
}

static void blocks_taken_together_lie_together(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    sheaf_block blocks[11];
    take(pool, 0, 11, blocks);
    for (uint32_t i = 0; i < 11; i++) assert_int_equal(blocks[i].row, i);
    give(pool, 11, blocks);
    close_pool(pool);
}

static void releasing_a_block_twice_is_refused(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block blocks[2];
    take(pool, 0, 2, blocks);
    give(pool, 1, blocks);
    refused_as_stale(pool, blocks[0], blocks[1]);
    give(pool, 1, blocks + 1);
    close_pool(pool);
}

static void a_handle_is_stale_once_its_row_is_used_again(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block live, first, again;
    take(pool, 0, 1, &live);
    take(pool, 0, 1, &first);
    give(pool, 1, &first);
    take(pool, 0, 1, &again);
    assert_int_equal(again.row, first.row);
    assert_int_not_equal(again.generation, first.generation);
    refused_as_stale(pool, first, live);
    give(pool, 1, &again);
    give(pool, 1, &live);
    close_pool(pool);
}

static void a_handle_stays_stale_when_its_slab_comes_back(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 16 * PAGE);
    options.no_slack = 1;
    sheaf_pool *pool = open_pool(&options);
    sheaf_block old[8], young[8];
    take(pool, 0, 8, old);
    give(pool, 8, old);
    assert_int_equal(stats_of(pool).slabs, 0);
    take(pool, 0, 8, young);
    for (int i = 0; i < 8; i++) refused_as_stale(pool, old[i], young[i]);
    give(pool, 8, young);
    close_pool(pool);
}

static void handles_that_never_were_are_refused(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    sheaf_block live, bad;
    take(pool, 0, 1, &live);
    static const uint32_t odd[] = {0, 1, 2, 3, 4, 1000, 0x7fffffff, 0x80000000u, UINT32_MAX};
    for (size_t g = 0; g < 9; g++)
        for (size_t r = 0; r < 9; r++)
            for (size_t n = 0; n < 9; n++) {
                bad = (sheaf_block){odd[g], odd[r], odd[n]};
                if (memcmp(&bad, &live, sizeof bad) != 0) {
                    void *addr;
                    assert_int_equal(sheaf_pool_address(pool, bad, &addr), SHEAF_E_STALE);
                }
            }
    refused_as_stale(pool, (sheaf_block){0}, live);
    refused_as_stale(pool, (sheaf_block){0, SHEAF_ROW_NONE, 1}, live);
    refused_as_stale(pool, (sheaf_block){UINT32_MAX, 0, 1}, live);
    refused_as_stale(pool, (sheaf_block){1, 0, 1}, live);
    give(pool, 1, &live);
    close_pool(pool);
}

static void references_count_by_kind(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block block;
    uint32_t total, by_kind[SHEAF_OWNER_KINDS];
    take(pool, 0, 1, &block);
    assert_int_equal(sheaf_pool_retain(pool, block, SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(sheaf_pool_retain(pool, block, SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(stats_of(pool).blocks_shared, 1);
    assert_int_equal(stats_of(pool).bytes_shared, 1024);
    assert_int_equal(stats_of(pool).owners[SHEAF_OWNER_IO], 2);
    assert_int_equal(sheaf_pool_release(pool, block, SHEAF_OWNER_TREE), SHEAF_E_NOT_OWNED);
    assert_int_equal(sheaf_pool_transfer(pool, block, SHEAF_OWNER_TREE, SHEAF_OWNER_HOST),
                     SHEAF_E_NOT_OWNED);
    assert_int_equal(sheaf_pool_transfer(pool, block, SHEAF_OWNER_IO, SHEAF_OWNER_HOST),
                     SHEAF_OK);
    assert_int_equal(sheaf_pool_references(pool, block, &total, by_kind), SHEAF_OK);
    assert_int_equal(total, 3);
    assert_int_equal(by_kind[SHEAF_OWNER_HOST], 2);
    assert_int_equal(by_kind[SHEAF_OWNER_IO], 1);
    assert_int_equal(sheaf_pool_release(pool, block, SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(pool, block, SHEAF_OWNER_IO), SHEAF_E_NOT_OWNED);
    give(pool, 1, &block);
    assert_int_equal(references(pool, block), 1);
    assert_int_equal(stats_of(pool).blocks_shared, 0);
    give(pool, 1, &block);
    assert_int_equal(stats_of(pool).blocks_held, 0);
    close_pool(pool);
}

static void unknown_kinds_and_null_arguments_are_refused(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block block, other;
    uint32_t one = 1, zero = 0, total;
    take(pool, 0, 1, &block);
    sheaf_pool_stats before = stats_of(pool);
    assert_int_equal(sheaf_pool_retain(pool, block, SHEAF_OWNER_KINDS), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_release(pool, block, UINT32_MAX), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_transfer(pool, block, SHEAF_OWNER_HOST, SHEAF_OWNER_KINDS),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_transfer(pool, block, SHEAF_OWNER_KINDS, SHEAF_OWNER_HOST),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_acquire(pool, &one, SHEAF_OWNER_KINDS, &other),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_acquire(pool, NULL, SHEAF_OWNER_HOST, &other), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_acquire(pool, &one, SHEAF_OWNER_HOST, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_acquire(NULL, &one, SHEAF_OWNER_HOST, &other), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_can_acquire(pool, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_presize(pool, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_address(pool, block, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_references(pool, block, NULL, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_references(NULL, block, &total, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_acquire(pool, &zero, SHEAF_OWNER_HOST, NULL), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(NULL), SHEAF_OK);
    assert_int_equal(sheaf_pool_poll(NULL), 0);
    assert_unchanged(pool, before);
    give(pool, 1, &block);
    close_pool(pool);
}

static void a_reference_too_many_is_an_overflow(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block block;
    take(pool, 0, 1, &block);
    sheaf__record *record = sheaf__pool_live(pool, block);
    record->total = record->by_kind[SHEAF_OWNER_HOST] = UINT32_MAX;
    assert_int_equal(sheaf__block_retain(pool, block, SHEAF_OWNER_IO), SHEAF_E_OVERFLOW);
    assert_int_equal(record->by_kind[SHEAF_OWNER_IO], 0);
    record->total = record->by_kind[SHEAF_OWNER_HOST] = 1;
    give(pool, 1, &block);
    close_pool(pool);
}

static void generations_that_wrap_skip_the_invalid_one(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block keep, block;
    take(pool, 0, 1, &keep);
    take(pool, 0, 1, &block);
    sheaf__pool_live(pool, block)->generation = UINT32_MAX;
    block.generation = UINT32_MAX;
    give(pool, 1, &block);
    take(pool, 0, 1, &block);
    assert_int_equal(block.generation, 1);
    give(pool, 1, &block);
    give(pool, 1, &keep);
    close_pool(pool);
}

static void copying_moves_every_byte_of_a_block_and_no_other(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    uint32_t counts[2] = {3, 1};
    sheaf_block blocks[4];
    unsigned char *addr[3];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    for (int i = 0; i < 3; i++) {
        void *p;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &p), SHEAF_OK);
        addr[i] = p;
        for (int b = 0; b < 1024; b++) addr[i][b] = (unsigned char)(b * 7 + i);
    }
    unsigned char last[1024];
    memcpy(last, addr[2], 1024);
    assert_int_equal(sheaf_pool_copy(pool, blocks[0], blocks[1]), SHEAF_OK);
    assert_memory_equal(addr[0], addr[1], 1024);
    assert_memory_equal(addr[2], last, 1024);
    assert_int_equal(sheaf_pool_copy(pool, blocks[0], blocks[0]), SHEAF_OK);
    assert_int_equal(sheaf_pool_copy(pool, blocks[0], blocks[3]), SHEAF_E_INVALID);
    assert_int_equal(stats_of(pool).blocks_copied, 1);
    assert_int_equal(stats_of(pool).bytes_copied, 1024);
    give(pool, 4, blocks);
    close_pool(pool);
}

static void a_block_retires_until_its_fence_has_passed(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, PAGE); /* four blocks */
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL);
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    sheaf_block blocks[4], more[4];
    uint32_t one = 1, two = 2;
    take(pool, 0, 4, blocks);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(
            sheaf_pool_release_after(pool, blocks[i], SHEAF_OWNER_HOST, (sheaf_fence){4 - i}),
            SHEAF_OK);
    check_pool(pool);
    sheaf_pool_stats stats = stats_of(pool);
    assert_int_equal(stats.blocks_retiring, 4);
    assert_int_equal(stats.bytes_retiring, 4096);
    assert_int_equal(stats.blocks_held, 0);
    assert_int_equal(stats.blocks_free, 0);
    uint32_t total;
    assert_int_equal(sheaf_pool_references(pool, blocks[0], &total, NULL), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_can_acquire(pool, &one), SHEAF_FULL);
    assert_int_equal(sheaf_pool_acquire(pool, &one, SHEAF_OWNER_HOST, more), SHEAF_FULL);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_E_BUSY);
    slow.passed = 1;
    assert_int_equal(sheaf_pool_poll(pool), 3);
    assert_int_equal(stats_of(pool).blocks_free, 1);
    slow.passed = 3;
    assert_int_equal(sheaf_pool_can_acquire(pool, &two), SHEAF_OK);
    take(pool, 0, 3, more); /* looks at the fences itself */
    check_pool(pool);
    for (int i = 0; i < 3; i++) assert_int_not_equal(more[i].row, blocks[0].row);
    give(pool, 3, more);
    slow.passed = 4;
    close_pool(pool);
}

static void acquiring_waits_for_no_fence_that_it_does_not_need(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 16 * PAGE);
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL);
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    sheaf_block block, keep;
    take(pool, 0, 1, &keep);
    for (uint64_t i = 1; i <= 20; i++) {
        take(pool, 0, 1, &block);
        assert_int_equal(
            sheaf_pool_release_after(pool, block, SHEAF_OWNER_HOST, (sheaf_fence){i}),
            SHEAF_OK);
    }
    check_pool(pool);
    assert_int_equal(stats_of(pool).blocks_retiring, 20);
    assert_int_equal(stats_of(pool).slabs, 6); /* none that holds a retiring block went back */
    slow.passed = UINT64_MAX;
    assert_int_equal(sheaf_pool_poll(pool), 0);
    assert_int_equal(stats_of(pool).slabs, 2);
    give(pool, 1, &keep);
    close_pool(pool);
}

static void freed_blocks_are_poisoned_where_checks_are_complete(void **state)
{
    (void)state;
    if (SHEAF_CHECK < 2)
        TESTING_SKIP("freed blocks are poisoned in builds with SHEAF_CHECK 2 only");
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block keep, block;
    void *addr;
    take(pool, 0, 1, &keep);
    take(pool, 0, 1, &block);
    assert_int_equal(sheaf_pool_address(pool, block, &addr), SHEAF_OK);
    float value;
    memcpy(&value, addr, sizeof value);
    assert_true(value != value); /* fresh memory too */
    memset(addr, 0, 1024);
    give(pool, 1, &block);
    for (size_t i = 0; i < 1024; i += sizeof value) {
        memcpy(&value, (char *)addr + i, sizeof value);
        assert_true(value != value);
    }
    give(pool, 1, &keep);
    close_pool(pool);
}

static void a_pool_that_is_in_use_does_not_close(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 16 * PAGE);
    sheaf_block block;
    take(pool, 0, 1, &block);
    sheaf_pool_stats before = stats_of(pool);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_E_BUSY);
    assert_unchanged(pool, before);
    give(pool, 1, &block);
    sheaf__owner owner = {.kind = SHEAF_OWNER_PARKED, .visit = NULL};
    sheaf__pool_register(pool, &owner);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_E_BUSY);
    sheaf__pool_unregister(pool, &owner);
    close_pool(pool);
}

static void the_steady_state_allocates_nothing(void **state)
{
    (void)state;
    sheaf_layer layers[2];
    sheaf_pool_options options = tiny_options(layers, 2, 64 * PAGE);
    watched_heap heap;
    static watched_memory watched;
    sheaf_allocator allocator = watch_heap(&heap);
    sheaf_slab_memory memory = watch_memory(&watched);
    options.allocator = &allocator;
    options.slab_memory = &memory;
    sheaf_pool *pool = open_pool(&options);
    uint32_t counts[2] = {6, 6};
    sheaf_block blocks[12];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    uint64_t allocs = heap.allocs, commits = watched.commits;
    for (int round = 0; round < 100; round++) {
        assert_int_equal(sheaf_pool_retain(pool, blocks[0], SHEAF_OWNER_TREE), SHEAF_OK);
        assert_int_equal(sheaf_pool_copy(pool, blocks[0], blocks[1]), SHEAF_OK);
        assert_int_equal(sheaf_pool_release(pool, blocks[0], SHEAF_OWNER_TREE), SHEAF_OK);
        give(pool, 1, &blocks[round % 6]);
        take(pool, 0, 1, &blocks[round % 6]);
    }
    assert_int_equal(heap.allocs, allocs);
    assert_int_equal(heap.frees, 0);
    assert_int_equal(watched.commits, commits);
    assert_int_equal(stats_of(pool).host_bytes, heap.live_bytes);
    give(pool, 12, blocks);
    close_pool(pool);
    assert_int_equal(heap.live_bytes, 0);
    assert_int_equal(heap.allocs, heap.frees);
    assert_int_equal(watched.misuse + watched.n_committed + watched.n_reserved, 0);
}

/* A device that calls back into the pool that called it. */
static sheaf_status re_enter(void *ctx, void *to, const void *from, uint64_t bytes)
{
    sheaf_pool **pool = ctx;
    (void)to, (void)from, (void)bytes;
    sheaf_pool_poll(*pool);
    return SHEAF_OK;
}

static void re_entering_a_call_is_caught_where_checks_are_on(void **state)
{
    (void)state;
    if (SHEAF_CHECK < 1)
        TESTING_SKIP("re-entering is caught in builds with SHEAF_CHECK 1 or 2 only");
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 16 * PAGE);
    sheaf_pool *pool = NULL;
    sheaf__device device = sheaf__device_cpu(NULL);
    device.ctx = &pool;
    device.copy = re_enter;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    sheaf_block blocks[2];
    take(pool, 0, 2, blocks);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(2);
        _exit(sheaf_pool_copy(pool, blocks[0], blocks[1]) == SHEAF_OK ? 0 : 1);
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_false(WIFEXITED(ended) && WEXITSTATUS(ended) < 2);
    give(pool, 2, blocks);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_has_an_address_and_one_reference),
        cmocka_unit_test(blocks_taken_together_lie_together),
        cmocka_unit_test(releasing_a_block_twice_is_refused),
        cmocka_unit_test(a_handle_is_stale_once_its_row_is_used_again),
        cmocka_unit_test(a_handle_stays_stale_when_its_slab_comes_back),
        cmocka_unit_test(handles_that_never_were_are_refused),
        cmocka_unit_test(references_count_by_kind),
        cmocka_unit_test(unknown_kinds_and_null_arguments_are_refused),
        cmocka_unit_test(a_reference_too_many_is_an_overflow),
        cmocka_unit_test(generations_that_wrap_skip_the_invalid_one),
        cmocka_unit_test(copying_moves_every_byte_of_a_block_and_no_other),
        cmocka_unit_test(a_block_retires_until_its_fence_has_passed),
        cmocka_unit_test(acquiring_waits_for_no_fence_that_it_does_not_need),
        cmocka_unit_test(freed_blocks_are_poisoned_where_checks_are_complete),
        cmocka_unit_test(a_pool_that_is_in_use_does_not_close),
        cmocka_unit_test(the_steady_state_allocates_nothing),
        cmocka_unit_test(re_entering_a_call_is_caught_where_checks_are_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
