/* What the pool knows of a prefix cache: who names a block, how many blocks trees alone own, and that
 * the keeper settles before anybody sees the statistics. */
#include "pool/fixture.h"

#include "pool/holder.h"

static void ok(sheaf_status st)
{
    assert_int_equal(st, SHEAF_OK);
}

/* Every way in which a block comes to be, and stops being, the tree's alone. TREE references without
 * an owner that names them are not checked by the invariants of rows. */
static void blocks_that_trees_alone_own_are_counted(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    uint32_t counts[2] = {3, 2};
    sheaf_block b[5];
    ok(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_TREE, b));
    assert_int_equal(sheaf__pool_check_rows(pool, NULL), SHEAF_OK);
    assert_int_equal(sheaf__pool_tree_only(pool, 0), 3);
    assert_int_equal(sheaf__pool_tree_only(pool, 1), 2);
    assert_int_equal(sheaf__pool_tree_only_bytes(pool), 5 * 1024);
    const struct {
        bool retain;
        uint32_t kind;
        uint64_t after;
    } steps[] = {{true, SHEAF_OWNER_TABLE, 2},  {true, SHEAF_OWNER_TREE, 2},
                 {false, SHEAF_OWNER_TABLE, 3}, {false, SHEAF_OWNER_TREE, 3},
                 {true, SHEAF_OWNER_IO, 2},     {false, SHEAF_OWNER_TREE, 2},
                 {true, SHEAF_OWNER_TREE, 2},   {false, SHEAF_OWNER_IO, 3}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        ok(steps[i].retain ? sheaf_pool_retain(pool, b[0], steps[i].kind)
                           : sheaf_pool_release(pool, b[0], steps[i].kind));
        assert_int_equal(sheaf__pool_tree_only(pool, 0), steps[i].after);
        assert_int_equal(sheaf__pool_check_rows(pool, NULL), SHEAF_OK);
    }
    ok(sheaf_pool_transfer(pool, b[1], SHEAF_OWNER_TREE, SHEAF_OWNER_PARKED));
    assert_int_equal(sheaf__pool_tree_only(pool, 0), 2);
    ok(sheaf_pool_transfer(pool, b[1], SHEAF_OWNER_PARKED, SHEAF_OWNER_TREE));
    assert_int_equal(sheaf__pool_tree_only(pool, 0), 3);
    for (int i = 0; i < 5; i++) ok(sheaf_pool_release(pool, b[i], SHEAF_OWNER_TREE));
    assert_int_equal(sheaf__pool_tree_only(pool, 0), 0);
    assert_int_equal(sheaf__pool_tree_only_bytes(pool), 0);
    close_pool(pool);
}

static void a_holder_is_known_until_the_last_reference_of_a_tree_goes(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    uint32_t count = 2, index = 99;
    sheaf_block b[2], again;
    int node_a, node_b;
    ok(sheaf_pool_acquire(pool, &count, SHEAF_OWNER_TREE, b));
    assert_null(sheaf__block_holder(pool, b[0], &index));
    assert_int_equal(index, 99);
    sheaf__block_set_holder(pool, b[0], &node_a, 7);
    sheaf__block_set_holder(pool, b[1], &node_a, 8);
    assert_ptr_equal(sheaf__block_holder(pool, b[0], &index), &node_a);
    assert_int_equal(index, 7);
    sheaf__block_set_holder(pool, b[0], &node_b, 1);
    ok(sheaf_pool_retain(pool, b[0], SHEAF_OWNER_TABLE));
    ok(sheaf_pool_retain(pool, b[0], SHEAF_OWNER_TREE));
    ok(sheaf_pool_release(pool, b[0], SHEAF_OWNER_TREE));
    assert_ptr_equal(sheaf__block_holder(pool, b[0], &index), &node_b);
    assert_int_equal(index, 1);
    ok(sheaf_pool_release(pool, b[0], SHEAF_OWNER_TREE)); /* the table holds it still */
    assert_null(sheaf__block_holder(pool, b[0], &index));
    ok(sheaf_pool_retain(pool, b[0], SHEAF_OWNER_TREE));
    assert_null(sheaf__block_holder(pool, b[0], &index));
    sheaf__block_set_holder(pool, b[0], &node_b, 1);
    ok(sheaf_pool_transfer(pool, b[0], SHEAF_OWNER_TREE, SHEAF_OWNER_PARKED));
    assert_null(sheaf__block_holder(pool, b[0], &index));
    ok(sheaf_pool_release(pool, b[1], SHEAF_OWNER_TREE));
    assert_null(sheaf__block_holder(pool, b[1], &index)); /* stale */
    count = 1;
    ok(sheaf_pool_acquire(pool, &count, SHEAF_OWNER_TREE, &again));
    assert_int_equal(again.row, b[1].row);
    assert_null(sheaf__block_holder(pool, again, &index)); /* the row's next use knows nobody */
    ok(sheaf_pool_release(pool, again, SHEAF_OWNER_TREE));
    ok(sheaf_pool_release(pool, b[0], SHEAF_OWNER_PARKED));
    ok(sheaf_pool_release(pool, b[0], SHEAF_OWNER_TABLE));
    close_pool(pool);
}

/* A keeper that lets its blocks go, the last one first, while trees alone own more than `most`. */
typedef struct small_keeper {
    sheaf__keeper keeper;
    sheaf_pool *pool;
    sheaf_block blocks[8];
    uint32_t n;
    uint64_t most;
    uint64_t settled;
} small_keeper;

static void settle_small(sheaf__keeper *keeper)
{
    small_keeper *k = SHEAF__CONTAINER(keeper, small_keeper, keeper);
    k->settled++;
    while (k->n != 0 && sheaf__pool_tree_only(k->pool, 0) > k->most)
        ok(sheaf__block_release(k->pool, k->blocks[--k->n], SHEAF_OWNER_TREE));
}

static void the_keeper_settles_before_the_statistics_are_seen(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    small_keeper k = {.keeper = {.settle = settle_small}, .pool = pool, .n = 5, .most = 2};
    small_keeper other = {.keeper = {.settle = settle_small}, .pool = pool};
    uint32_t count = 5;
    ok(sheaf_pool_acquire(pool, &count, SHEAF_OWNER_TABLE, k.blocks));
    for (int i = 0; i < 5; i++) ok(sheaf_pool_retain(pool, k.blocks[i], SHEAF_OWNER_TREE));
    ok(sheaf__pool_set_keeper(pool, &k.keeper));
    assert_int_equal(sheaf__pool_set_keeper(pool, &other.keeper), SHEAF_E_BUSY);
    assert_int_equal(k.settled, 0);
    sheaf_block b[5];
    memcpy(b, k.blocks, sizeof b);
    /* at the third it lets go of b[4] and b[3], which tables hold, and of b[2], which nobody does */
    const uint64_t shared_after[5] = {4, 3, 0, 0, 0}, held_after[5] = {5, 5, 2, 2, 2};
    for (int i = 0; i < 5; i++) { /* a running sequence leaves, the tree owns more and more */
        ok(sheaf_pool_release(pool, b[i], SHEAF_OWNER_TABLE));
        assert_int_equal(k.settled, i + 1);
        assert_true(sheaf__pool_tree_only(pool, 0) <= 2);
        assert_int_equal(stats_of(pool).owners[SHEAF_OWNER_TREE], k.n);
        uint64_t tables = stats_of(pool).owners[SHEAF_OWNER_TABLE];
        assert_int_equal(tables, 4 - i);
        assert_int_equal(stats_of(pool).blocks_shared, shared_after[i]);
        assert_int_equal(k.n, held_after[i]);
    }
    sheaf__pool_clear_keeper(pool);
    uint64_t settled = k.settled;
    for (uint32_t i = 0; i < k.n; i++)
        ok(sheaf_pool_release(pool, k.blocks[i], SHEAF_OWNER_TREE));
    assert_int_equal(k.settled, settled);
    assert_int_equal(stats_of(pool).blocks_held, 0);
    ok(sheaf__pool_set_keeper(pool, &other.keeper)); /* the place is free again */
    sheaf__pool_clear_keeper(pool);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_that_trees_alone_own_are_counted),
        cmocka_unit_test(a_holder_is_known_until_the_last_reference_of_a_tree_goes),
        cmocka_unit_test(the_keeper_settles_before_the_statistics_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
