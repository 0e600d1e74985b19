/* Statistics: what they count, per group and in all; versions of the struct; readers in other
 * threads. */
#include "pool/fixture.h"

#include <pthread.h>

static void every_byte_is_counted_once(void **state)
{
    (void)state;
    sheaf_layer layers[2];
    sheaf_pool_options options = tiny_options(layers, 2, 64 * PAGE);
    watched_heap heap;
    sheaf_allocator allocator = watch_heap(&heap);
    options.allocator = &allocator;
    sheaf_pool *pool = open_pool(&options);
    uint32_t counts[2] = {6, 3};
    sheaf_block blocks[9];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    assert_int_equal(sheaf_pool_retain(pool, blocks[0], SHEAF_OWNER_IO), SHEAF_OK);
    give(pool, 1, &blocks[8]);
    sheaf_pool_stats s = stats_of(pool);
    assert_int_equal(s.n_groups, 2);
    assert_int_equal(s.budget_bytes, 64 * PAGE);
    assert_int_equal(s.bytes_reserved, 3 * PAGE);
    assert_int_equal(s.bytes_in_use, 8 * 1024);
    assert_int_equal(s.bytes_shared, 1024);
    assert_int_equal(s.blocks_capacity, 12);
    assert_int_equal(s.blocks_held, 8);
    assert_int_equal(s.blocks_free, 4);
    assert_int_equal(s.blocks_shared, 1);
    assert_int_equal(s.owners[SHEAF_OWNER_HOST], 8);
    assert_int_equal(s.owners[SHEAF_OWNER_IO], 1);
    assert_int_equal(s.slabs, 3);
    assert_int_equal(s.slabs_least, 3);
    assert_int_equal(s.slab_appends, 3);
    assert_int_equal(s.blocks_acquired, 9);
    assert_int_equal(s.blocks_released, 1);
    assert_int_equal(s.host_bytes, heap.live_bytes);
    assert_int_equal(sheaf_pool_release(pool, blocks[0], SHEAF_OWNER_IO), SHEAF_OK);
    give(pool, 8, blocks);
    close_pool(pool);
}

/* The counts of the groups add up to those of the pool, field by field. */
static void groups_add_up_to_the_pool(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(3, 64 * PAGE);
    uint32_t counts[3] = {9, 1, 5};
    sheaf_block blocks[15];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    assert_int_equal(sheaf_pool_copy(pool, blocks[0], blocks[1]), SHEAF_OK);
    give(pool, 1, &blocks[14]);
    sheaf_pool_stats all = stats_of(pool), sum = SHEAF_POOL_STATS_INIT;
    uint64_t *to = &sum.bytes_reserved, *last = &sum.slabs_least;
    for (uint32_t g = 0; g < 3; g++) {
        sheaf_pool_stats one = SHEAF_POOL_STATS_INIT;
        assert_int_equal(sheaf_pool_group_stats(pool, g, &one), SHEAF_OK);
        assert_int_equal(one.n_groups + one.budget_bytes + one.host_bytes + one.full_answers,
                         0);
        for (uint64_t *p = to, *from = &one.bytes_reserved; p <= last; p++, from++) *p += *from;
    }
    sum.n_groups = all.n_groups;
    sum.budget_bytes = all.budget_bytes;
    sum.host_bytes = all.host_bytes;
    sum.full_answers = all.full_answers;
    memcpy(sum.owners, all.owners, sizeof sum.owners);
    assert_memory_equal(&sum, &all, sizeof sum);
    give(pool, 14, blocks);
    close_pool(pool);
}

static void a_shorter_struct_gets_only_its_bytes(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    sheaf_block block;
    take(pool, 0, 1, &block);
    sheaf_pool_stats whole = stats_of(pool);
    for (uint32_t size = 4; size <= sizeof whole; size += 4) {
        sheaf_pool_stats stats;
        unsigned char *bytes = (unsigned char *)&stats;
        memset(&stats, 0x77, sizeof stats);
        stats.struct_size = size;
        assert_int_equal(sheaf_pool_stats_read(pool, &stats), SHEAF_OK);
        assert_int_equal(stats.struct_size, size);
        assert_memory_equal(bytes + 4, (unsigned char *)&whole + 4, size - 4);
        for (size_t i = size; i < sizeof stats; i++) assert_int_equal(bytes[i], 0x77);
    }
    give(pool, 1, &block);
    close_pool(pool);
}

static void a_longer_struct_reads_zero_in_what_is_unknown(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    struct {
        sheaf_pool_stats known;
        uint64_t later[3];
    } stats;
    memset(&stats, 0x77, sizeof stats);
    stats.known.struct_size = sizeof stats - 8;
    assert_int_equal(sheaf_pool_stats_read(pool, &stats.known), SHEAF_OK);
    assert_int_equal(stats.known.budget_bytes, 64 * PAGE);
    assert_int_equal(stats.later[0], 0);
    assert_int_equal(stats.later[1], 0);
    assert_int_equal(stats.later[2], 0x7777777777777777ull);
    close_pool(pool);
}

static void host_bytes_follow_a_publish(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    uint64_t before = stats_of(pool).host_bytes;
    void *memory = sheaf__memory_alloc(sheaf__pool_memory(pool), 10, 100);
    assert_non_null(memory);
    sheaf__pool_publish(pool);
    assert_int_equal(stats_of(pool).host_bytes, before + 1000);
    sheaf__memory_free(sheaf__pool_memory(pool), memory, 10, 100);
    sheaf__pool_publish(pool);
    assert_int_equal(stats_of(pool).host_bytes, before);
    close_pool(pool);
}

typedef struct reader {
    const sheaf_pool *pool;
    _Atomic bool stop;
    _Atomic uint64_t reads;
    uint64_t torn;
} reader;

static void *read_stats(void *arg)
{
    reader *r = arg;
    while (!atomic_load(&r->stop)) {
        sheaf_pool_stats s = SHEAF_POOL_STATS_INIT;
        if (sheaf_pool_stats_read(r->pool, &s) != SHEAF_OK) r->torn++;
        bool whole = s.blocks_free + s.blocks_held + s.blocks_retiring == s.blocks_capacity &&
                     s.blocks_acquired - s.blocks_released == s.blocks_held &&
                     s.slab_appends - s.slab_releases == s.slabs &&
                     s.bytes_in_use == s.blocks_held * 1024 &&
                     s.owners[SHEAF_OWNER_HOST] == s.blocks_held;
        r->torn += !whole;
        r->reads++;
    }
    return NULL;
}

static void another_thread_reads_whole_snapshots(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    reader r = {.pool = pool};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_stats, &r), 0);
    uint32_t counts[2] = {9, 5};
    sheaf_block blocks[14];
    /* on until the reader has been there too */
    for (int round = 0; round < 3000 || atomic_load(&r.reads) == 0; round++) {
        assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
        give(pool, 14, blocks);
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(r.torn, 0);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_counted_once),
        cmocka_unit_test(groups_add_up_to_the_pool),
        cmocka_unit_test(a_shorter_struct_gets_only_its_bytes),
        cmocka_unit_test(a_longer_struct_reads_zero_in_what_is_unknown),
        cmocka_unit_test(host_bytes_follow_a_publish),
        cmocka_unit_test(another_thread_reads_whole_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
