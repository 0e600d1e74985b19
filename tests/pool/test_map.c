/* sheaf_pool_map: what each row is, as the statistics count it, and nothing for rows without memory. */
#include "pool/fixture.h"

#include "sheaf/rows.h"

static sheaf_row row_at(const sheaf_pool *pool, uint32_t group, uint32_t row)
{
    sheaf_row seen;
    memset(&seen, 0xee, sizeof seen);
    assert_int_equal(sheaf_pool_map(pool, group, row, 1, &seen), SHEAF_OK);
    return seen;
}

static void each_kind_of_owner_shows_as_a_state(void **state)
{
    (void)state;
    static const uint32_t states[SHEAF_OWNER_KINDS] = {
        SHEAF_ROW_RUNNING, SHEAF_ROW_PARKED, SHEAF_ROW_CACHED, SHEAF_ROW_IO, SHEAF_ROW_HOST};
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    uint32_t counts[2] = {0, 1};
    sheaf_block block;
    for (uint32_t kind = 0; kind < SHEAF_OWNER_KINDS; kind++) {
        assert_int_equal(sheaf_pool_acquire(pool, counts, kind, &block), SHEAF_OK);
        sheaf_row seen = row_at(pool, 1, block.row);
        assert_int_equal(seen.state, states[kind]);
        assert_int_equal(seen.references, 1);
        assert_int_equal(seen.generation, block.generation);
        for (uint32_t other = 0; other < SHEAF_OWNER_KINDS; other++) {
            assert_int_equal(sheaf_pool_retain(pool, block, other), SHEAF_OK);
            seen = row_at(pool, 1, block.row);
            assert_int_equal(seen.state, SHEAF_ROW_SHARED);
            assert_int_equal(seen.references, 2);
            assert_int_equal(sheaf_pool_release(pool, block, other), SHEAF_OK);
        }
        assert_int_equal(sheaf_pool_release(pool, block, kind), SHEAF_OK);
        seen = row_at(pool, 1, block.row);
        assert_int_equal(seen.state, SHEAF_ROW_FREE);
        assert_int_equal(seen.references + seen.generation, 0);
    }
    assert_int_equal(row_at(pool, 0, 0).state, SHEAF_ROW_ABSENT);
    close_pool(pool);
}

/* Slabs: 0 in use, 1 given back, 2 in use again, and nothing after it. */
static void rows_without_memory_are_absent(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 64 * PAGE);
    options.no_slack = 1;
    sheaf_pool *pool = open_pool(&options);
    assert_int_equal(sheaf_pool_rows(pool, 0), 0);
    assert_int_equal(sheaf_pool_rows(pool, 1), 0);
    assert_int_equal(sheaf_pool_rows(NULL, 0), 0);
    sheaf_block b[12];
    take(pool, 0, 12, b);
    give(pool, 4, b + 4);
    assert_int_equal(sheaf_pool_rows(pool, 0), 12);
    sheaf_row rows[16];
    assert_int_equal(sheaf_pool_map(pool, 0, 0, 16, rows), SHEAF_OK);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(rows[i].state,
                         i / 4 == 0 || i / 4 == 2 ? SHEAF_ROW_HOST : SHEAF_ROW_ABSENT);
    /* beyond all rows there are, and beyond all numbers */
    assert_int_equal(sheaf_pool_map(pool, 0, UINT32_MAX - 2, 16, rows), SHEAF_OK);
    for (uint32_t i = 0; i < 16; i++) assert_int_equal(rows[i].state, SHEAF_ROW_ABSENT);
    give(pool, 4, b), give(pool, 4, b + 8);
    close_pool(pool);
}

/* A budget of six pages: a slab of 16 blocks in four, and a short one of 8. */
static void a_short_slab_shows_only_its_rows(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 6 * PAGE);
    options.slab_blocks = 16;
    sheaf_pool *pool = open_pool(&options);
    sheaf_block b[20];
    take(pool, 0, 20, b);
    sheaf_row rows[40];
    assert_int_equal(sheaf_pool_map(pool, 0, 0, 40, rows), SHEAF_OK);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(rows[i].state, i < 20   ? SHEAF_ROW_HOST
                                        : i < 24 ? SHEAF_ROW_FREE
                                                 : SHEAF_ROW_ABSENT);
    give(pool, 20, b);
    close_pool(pool);
}

static void a_row_that_waits_for_a_fence_is_retiring(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 64 * PAGE);
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL);
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    sheaf_block b;
    take(pool, 0, 1, &b);
    assert_int_equal(sheaf_pool_release_after(pool, b, SHEAF_OWNER_HOST, (sheaf_fence){3}),
                     SHEAF_OK);
    sheaf_row seen = row_at(pool, 0, b.row);
    assert_int_equal(seen.state, SHEAF_ROW_RETIRING);
    assert_int_equal(seen.references + seen.generation, 0);
    slow.passed = 3;
    assert_int_equal(sheaf_pool_poll(pool), 0);
    assert_int_equal(row_at(pool, 0, b.row).state, SHEAF_ROW_FREE);
    close_pool(pool);
}

static void a_group_that_is_not_there_has_no_map(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    sheaf_row rows[2];
    memset(rows, 0xee, sizeof rows);
    assert_int_equal(sheaf_pool_map(pool, 1, 0, 2, rows), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_map(NULL, 0, 0, 2, rows), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_map(pool, 0, 0, 2, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_map(pool, 0, 0, 0, NULL), SHEAF_OK);
    assert_int_equal(rows[0].state, 0xeeeeeeee);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_of_owner_shows_as_a_state),
        cmocka_unit_test(rows_without_memory_are_absent),
        cmocka_unit_test(a_short_slab_shows_only_its_rows),
        cmocka_unit_test(a_row_that_waits_for_a_fence_is_retiring),
        cmocka_unit_test(a_group_that_is_not_there_has_no_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
