/* base/memory.h: the embedder's allocator, its counts, and growth that fails without a trace. */
#include "testing.h"

#include <sys/mman.h>

#include "base/memory.h"

/* An allocator that knows what is live, checks what comes back, and fails on demand. */
typedef struct ledger {
    uint64_t live_bytes, live_blocks, calls;
    uint64_t fail_from; /* the number of the first call that fails; 0: none */
    uint64_t last_align;
} ledger;

typedef struct header {
    uint64_t size, align;
    unsigned char padding[48];
} header; /* 64 bytes: what follows is aligned to that */

static void *ledger_alloc(void *ctx, uint64_t size, uint64_t align)
{
    ledger *l = ctx;
    if (++l->calls >= l->fail_from && l->fail_from != 0) return NULL;
    assert_true(size != 0 && align <= 64);
    header *h = NULL;
    assert_int_equal(posix_memalign((void **)&h, 64, sizeof *h + size), 0);
    *h = (header){size, align, {0}};
    memset(h + 1, 0xa5, size);
    l->live_bytes += size;
    l->live_blocks++;
    l->last_align = align;
    return h + 1;
}

static void ledger_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    ledger *l = ctx;
    header *h = (header *)ptr - 1;
    assert_true(h->size == size && h->align == align);
    l->live_bytes -= size;
    l->live_blocks--;
    free(h);
}

static void start(ledger *l, sheaf__memory *memory)
{
    *l = (ledger){0};
    sheaf_allocator allocator = {l, ledger_alloc, ledger_free};
    sheaf__memory_init(memory, &allocator);
}

static void memory_is_counted_and_comes_back_with_its_size(void **state)
{
    (void)state;
    ledger l;
    sheaf__memory memory;
    start(&l, &memory);
    unsigned char *a = sheaf__memory_alloc(&memory, 3, 7);
    void *b = sheaf__memory_alloc_aligned(&memory, 5, 64, 64);
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < 21; i++) assert_int_equal(a[i], 0);
    assert_true(memory.live_bytes == 21 + 320 && l.live_bytes == memory.live_bytes);
    assert_true(l.last_align == 64 && (uintptr_t)b % 64 == 0);
    sheaf__memory_free(&memory, a, 3, 7);
    sheaf__memory_free_aligned(&memory, b, 5, 64, 64);
    sheaf__memory_free(&memory, NULL, 3, 7);
    assert_true(memory.live_bytes == 0 && l.live_bytes == 0 && l.live_blocks == 0);
}

static void impossible_sizes_do_not_reach_the_allocator(void **state)
{
    (void)state;
    ledger l;
    sheaf__memory memory;
    start(&l, &memory);
    assert_null(sheaf__memory_alloc(&memory, UINT64_MAX, 2));
    assert_null(sheaf__memory_alloc(&memory, (uint64_t)1 << 32, (uint64_t)1 << 32));
    assert_null(sheaf__memory_alloc(&memory, 0, 8));
    assert_null(sheaf__memory_alloc(&memory, 8, 0));
    assert_true(l.calls == 0 && memory.live_bytes == 0);
}

static void a_refused_allocation_counts_nothing(void **state)
{
    (void)state;
    ledger l;
    sheaf__memory memory;
    start(&l, &memory);
    l.fail_from = 1;
    assert_null(sheaf__memory_alloc(&memory, 4, 4));
    assert_true(l.calls == 1 && memory.live_bytes == 0);
}

static void growth_keeps_what_was_there_and_zeroes_the_rest(void **state)
{
    (void)state;
    ledger l;
    sheaf__memory memory;
    start(&l, &memory);
    uint32_t *array = NULL;
    uint64_t capacity = 0;
    for (uint32_t n = 1; n < 3000; n++) {
        uint64_t before = capacity;
        assert_int_equal(
            sheaf__memory_grow(&memory, (void **)&array, &capacity, n, sizeof *array),
            SHEAF_OK);
        assert_true(capacity >= n && (capacity == before || capacity >= 2 * before));
        for (uint64_t i = n; i < capacity; i++)
            assert_int_equal(array[i - 1] != n && array[i], 0);
        array[n - 1] = n;
        assert_true(memory.live_bytes == capacity * sizeof *array);
    }
    for (uint32_t n = 1; n < 3000; n++) assert_int_equal(array[n - 1], n);
    assert_true(l.calls < 12); /* doubling, not creeping */
    sheaf__memory_free(&memory, array, capacity, sizeof *array);
    assert_true(memory.live_bytes == 0 && l.live_blocks == 0);
}

static void growth_that_fails_leaves_everything_as_it_was(void **state)
{
    (void)state;
    ledger l;
    sheaf__memory memory;
    start(&l, &memory);
    uint64_t *array = NULL, capacity = 0;
    assert_int_equal(sheaf__memory_grow(&memory, (void **)&array, &capacity, 8, 8), SHEAF_OK);
    for (uint64_t i = 0; i < 8; i++) array[i] = i;
    uint64_t *const was = array;
    l.fail_from = l.calls + 1;
    assert_int_equal(sheaf__memory_grow(&memory, (void **)&array, &capacity, 9, 8),
                     SHEAF_E_NO_MEMORY);
    l.fail_from = 0;
    assert_int_equal(sheaf__memory_grow(&memory, (void **)&array, &capacity, UINT64_MAX / 4, 8),
                     SHEAF_E_NO_MEMORY);
    assert_true(array == was && capacity == 8 && memory.live_bytes == 64);
    for (uint64_t i = 0; i < 8; i++) assert_true(array[i] == i);
    sheaf__memory_free(&memory, array, capacity, 8);
    assert_true(l.live_blocks == 0);
}

static void without_hooks_the_c_library_serves(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    for (uint64_t align = 16; align <= 4096; align *= 2) {
        void *ptr = sheaf__memory_alloc_aligned(&memory, 1, 100, align);
        assert_non_null(ptr);
        assert_true((uintptr_t)ptr % align == 0);
        sheaf__memory_free_aligned(&memory, ptr, 1, 100, align);
    }
    assert_true(memory.live_bytes == 0);
}

static void whole_huge_pages_are_aligned_to_one_and_go_back(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    for (uint64_t n = 1; n <= 3; n++) {
        unsigned char *ptr = sheaf__memory_alloc(&memory, n, SHEAF__HUGE_PAGE);
        assert_non_null(ptr);
        assert_true((uintptr_t)ptr % SHEAF__HUGE_PAGE == 0);
        assert_int_equal(memory.live_bytes, n * SHEAF__HUGE_PAGE);
        for (uint64_t i = 0; i < n * SHEAF__HUGE_PAGE; i += 4096) assert_int_equal(ptr[i], 0);
        memset(ptr, 0xa5, n * SHEAF__HUGE_PAGE);
        sheaf__memory_free(&memory, ptr, n, SHEAF__HUGE_PAGE);
        unsigned char there; /* the system knows nothing there, or what came there since */
        assert_true(mincore(ptr, 1, &there) != 0 || there == 0);
    }
    assert_null(sheaf__memory_alloc_aligned(&memory, UINT64_MAX / SHEAF__HUGE_PAGE,
                                            SHEAF__HUGE_PAGE, 64));
    assert_int_equal(memory.live_bytes, 0);
}

static void hooks_are_asked_for_huge_pages_as_for_any_size(void **state)
{
    (void)state;
    ledger l;
    sheaf__memory memory;
    start(&l, &memory);
    void *ptr = sheaf__memory_alloc_aligned(&memory, 1, SHEAF__HUGE_PAGE, 64);
    assert_non_null(ptr);
    assert_true(l.live_bytes == SHEAF__HUGE_PAGE && l.live_blocks == 1 && l.last_align == 64);
    sheaf__memory_free_aligned(&memory, ptr, 1, SHEAF__HUGE_PAGE, 64);
    assert_true(l.live_blocks == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_counted_and_comes_back_with_its_size),
        cmocka_unit_test(impossible_sizes_do_not_reach_the_allocator),
        cmocka_unit_test(a_refused_allocation_counts_nothing),
        cmocka_unit_test(growth_keeps_what_was_there_and_zeroes_the_rest),
        cmocka_unit_test(growth_that_fails_leaves_everything_as_it_was),
        cmocka_unit_test(without_hooks_the_c_library_serves),
        cmocka_unit_test(whole_huge_pages_are_aligned_to_one_and_go_back),
        cmocka_unit_test(hooks_are_asked_for_huge_pages_as_for_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
