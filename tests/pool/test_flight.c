/* pool/test_flight.c - blocks held by copies in flight, on a device whose fences pass when told.
 * */
#include "pool/fixture.h"

#include "fake_device.h"
#include "pool/flight.h"

static sheaf_pool *pool_on(sheaf_device *device)
{
    sheaf_layer layers[1];
    sheaf_pool_options options = tiny_options(layers, 1, 64 * PAGE);
    options.device = device;
    return open_pool(&options);
}

static uint64_t io_references(const sheaf_pool *pool)
{
    return stats_of(pool).owners[SHEAF_OWNER_IO];
}

static void a_copy_in_flight_holds_its_blocks_until_the_writer_looks(void **state)
{
    (void)state;
    fake_device fake;
    sheaf_pool *pool = pool_on(fake_open(&fake, PAGE));
    sheaf_block blocks[6];
    take(pool, 0, 6, blocks);
    assert_int_equal(sheaf__flights_start(pool, blocks, 4), SHEAF_OK);
    assert_int_equal(sheaf_pool_poll(pool), 4); /* without a fence none lands */
    sheaf__flights_fence(pool, 4, (sheaf_fence){1});
    assert_int_equal(sheaf__flights_start(pool, blocks + 2, 4), SHEAF_OK);
    sheaf__flights_fence(pool, 4, (sheaf_fence){2});
    give(pool, 6, blocks); /* whoever had them has gone */
    assert_int_equal(sheaf_pool_poll(pool), 8);
    assert_int_equal(stats_of(pool).blocks_held, 6);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_E_BUSY);
    fake.passed = 1;
    assert_int_equal(io_references(pool), 8); /* nothing happens by itself */
    assert_int_equal(sheaf_pool_poll(pool), 4);
    assert_int_equal(stats_of(pool).blocks_held, 4);
    check_pool(pool);
    assert_int_equal(sheaf_pool_poll(pool), 4); /* once more: harmless */
    fake.passed = 2;
    assert_int_equal(sheaf_pool_poll(pool), 0);
    assert_int_equal(io_references(pool), 0);
    assert_int_equal(stats_of(pool).blocks_held, 0);
    close_pool(pool);
}

static void a_refused_flight_holds_nothing(void **state)
{
    (void)state;
    fake_device fake;
    sheaf_pool *pool = pool_on(fake_open(&fake, PAGE));
    sheaf_block blocks[3];
    take(pool, 0, 3, blocks);
    assert_int_equal(sheaf_pool_release(pool, blocks[2], SHEAF_OWNER_HOST), SHEAF_OK);
    assert_int_equal(sheaf__flights_start(pool, blocks, 3), SHEAF_E_STALE);
    assert_int_equal(io_references(pool), 0);
    assert_int_equal(sheaf__flights_start(pool, blocks, 2), SHEAF_OK);
    sheaf__flights_abandon(pool, 2);
    give(pool, 2, blocks);
    assert_int_equal(sheaf_pool_poll(pool), 0);
    close_pool(pool);
}

static void a_request_that_lacks_room_takes_what_has_landed(void **state)
{
    (void)state;
    fake_device fake;
    sheaf_layer layers[1];
    sheaf_pool_options options = tiny_options(layers, 1, 2 * PAGE); /* 8 blocks */
    options.device = fake_open(&fake, PAGE);
    sheaf_pool *pool = open_pool(&options);
    sheaf_block blocks[8], more[4];
    uint32_t counts[1] = {4};
    take(pool, 0, 8, blocks);
    assert_int_equal(sheaf__flights_start(pool, blocks, 8), SHEAF_OK);
    sheaf__flights_fence(pool, 8, (sheaf_fence){5});
    give(pool, 8, blocks);
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, more), SHEAF_FULL);
    fake.passed = 5;
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, more), SHEAF_OK);
    give(pool, 4, more);
    close_pool(pool);
}

/* Opening on a device, which takes staging, and starting flights: the Nth allocation fails. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    bool finished = false;
    for (uint64_t at = 1; !finished; at++) {
        fake_device fake;
        watched_heap heap;
        sheaf_layer layers[1];
        sheaf_pool_options options = tiny_options(layers, 1, 16 * PAGE);
        sheaf_allocator allocator = watch_heap(&heap);
        sheaf_pool *pool = NULL;
        sheaf_block blocks[20];
        options.device = fake_open(&fake, PAGE);
        options.allocator = &allocator;
        heap.fail_alloc = at;
        sheaf_status st = sheaf_pool_open(&options, &pool, NULL);
        assert_int_equal(atomic_load(&options.device->n_pools), st == SHEAF_OK);
        if (st == SHEAF_OK) {
            uint32_t n = 20;
            st = sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, blocks);
            uint32_t held = st == SHEAF_OK ? n : 0;
            if (st == SHEAF_OK) st = sheaf__flights_start(pool, blocks, n);
            assert_int_equal(io_references(pool), 0); /* not published yet, or refused */
            if (st == SHEAF_OK) sheaf__flights_fence(pool, n, (sheaf_fence){0});
            give(pool, held, blocks);
            assert_int_equal(sheaf_pool_poll(pool), 0);
            close_pool(pool);
        }
        finished = st == SHEAF_OK;
        assert_true(finished || st == SHEAF_E_NO_MEMORY);
        assert_int_equal(heap.live_bytes, 0);
        assert_true(at < 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_in_flight_holds_its_blocks_until_the_writer_looks),
        cmocka_unit_test(a_refused_flight_holds_nothing),
        cmocka_unit_test(a_request_that_lacks_room_takes_what_has_landed),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
