/* sheaf_pool_check finds each kind of damage and names the invariant; owners are compared with the
 * counts of their kind. */
#include "pool/fixture.h"

#include <stdio.h>

typedef struct holder {
    sheaf__owner owner;
    sheaf_block blocks[8];
    uint32_t n;
} holder;

static void name_blocks(const sheaf__owner *owner, sheaf__named_fn *fn, void *ctx)
{
    const holder *h = SHEAF__CONTAINER(owner, const holder, owner);
    for (uint32_t i = 0; i < h->n; i++) fn(ctx, h->blocks[i]);
}

static void found(const sheaf_pool *pool, int invariant)
{
    sheaf_error err = {0};
    char expected[32];
    snprintf(expected, sizeof expected, "pool invariant %d:", invariant);
    assert_int_equal(sheaf_pool_check(pool, &err), SHEAF_E_CORRUPT);
    if (strncmp(err.text, expected, strlen(expected)) != 0)
        fail_msg("\"%s\" does not name %d", err.text, invariant);
    assert_int_equal(sheaf_pool_check(pool, NULL), SHEAF_E_CORRUPT);
}

/* Damages one field, expects to be found out, and repairs it. */
#define DAMAGE(pool, field, value, invariant)                                                  \
    do {                                                                                       \
        uint64_t kept_ = (field);                                                              \
        (field) = (value);                                                                     \
        found(pool, invariant);                                                                \
        (field) = (__typeof__(field))kept_;                                                    \
        check_pool(pool);                                                                      \
    } while (0)

static void every_broken_invariant_is_named(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 64 * PAGE);
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL);
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    sheaf_block b[6];
    take(pool, 0, 6, b);
    assert_int_equal(sheaf_pool_release_after(pool, b[5], SHEAF_OWNER_HOST, (sheaf_fence){9}),
                     SHEAF_OK);
    assert_int_equal(sheaf_pool_retain(pool, b[0], SHEAF_OWNER_IO), SHEAF_OK);
    check_pool(pool);
    sheaf__group *group = &pool->groups[0];
    sheaf__slab *slab = &group->slabs[1]; /* rows 4 held, 5 retiring, 6 and 7 free */
    DAMAGE(pool, slab->free_bits[0], slab->free_bits[0] & ~4ull, 1);
    DAMAGE(pool, slab->free_bits[0], slab->free_bits[0] | 1, 1);
    DAMAGE(pool, slab->n_free, 1, 1);
    DAMAGE(pool, slab->records[0].total, 2, 2);
    DAMAGE(pool, slab->records[0].by_kind[SHEAF_OWNER_HOST], 0, 2);
    DAMAGE(pool, slab->records[2].by_kind[SHEAF_OWNER_TREE], 1, 2);
    DAMAGE(pool, slab->records[3].generation, 0, 2);
    DAMAGE(pool, slab->list, 3, 3);
    DAMAGE(pool, group->slabs[0].list, 1, 3);
    DAMAGE(pool, group->occupied[0], 0, 3);
    DAMAGE(pool, slab->next, 0, 3);
    DAMAGE(pool, group->counts.free, 3, 4);
    DAMAGE(pool, group->counts.held, 4, 4);
    DAMAGE(pool, group->counts.shared, 0, 4);
    DAMAGE(pool, group->retiring, SHEAF_ROW_NONE, 5);
    DAMAGE(pool, group->retiring, 4, 5);
    DAMAGE(pool, group->retiring, 400, 5);
    DAMAGE(pool, slab->records[1].next_retiring, 5, 5);
    DAMAGE(pool, slab->bytes, 2 * PAGE, 6);
    DAMAGE(pool, group->counts.slabs, 3, 6);
    DAMAGE(pool, group->counts.slabs_empty, 1, 6);
    DAMAGE(pool, group->counts.slab_appends, 3, 6);
    DAMAGE(pool, pool->budget_bytes, PAGE, 6);
    DAMAGE(pool, pool->owner_counts[SHEAF_OWNER_IO], 0, 7);
    DAMAGE(pool, pool->owner_counts[SHEAF_OWNER_TREE], 1, 7);
    DAMAGE(pool, group->counts.tree_only, 1, 9);
    DAMAGE(pool, slab->n_movable, 1, 9);
    slab->records[0].holder = slab;
    found(pool, 10);
    slab->records[0].holder = NULL;
    assert_int_equal(sheaf_pool_release(pool, b[0], SHEAF_OWNER_IO), SHEAF_OK);
    give(pool, 5, b);
    slow.passed = 9;
    close_pool(pool);
}

static void owners_must_name_what_is_counted_for_them(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    uint32_t counts[2] = {3, 1};
    holder one = {.owner = {.kind = SHEAF_OWNER_TABLE, .visit = name_blocks}, .n = 4};
    holder two = {.owner = {.kind = SHEAF_OWNER_PARKED, .visit = name_blocks}};
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_TABLE, one.blocks), SHEAF_OK);
    found(pool, 8); /* nobody is registered yet */
    sheaf__pool_register(pool, &one.owner);
    sheaf__pool_register(pool, &two.owner);
    check_pool(pool);
    two.blocks[two.n++] = one.blocks[3];
    found(pool, 8); /* named, not counted */
    assert_int_equal(sheaf__block_retain(pool, one.blocks[3], SHEAF_OWNER_PARKED), SHEAF_OK);
    check_pool(pool);
    one.n = 3;
    found(pool, 8); /* counted, not named */
    one.blocks[3] = one.blocks[2], one.n = 4;
    found(pool, 8); /* one twice, the other not at all */
    one.blocks[3] = two.blocks[0];
    check_pool(pool);
    one.owner.kind = SHEAF_OWNER_TREE;
    found(pool, 8);
    for (int i = 0; i < 4; i++)
        assert_int_equal(
            sheaf__block_transfer(pool, one.blocks[i], SHEAF_OWNER_TABLE, SHEAF_OWNER_TREE),
            SHEAF_OK);
    check_pool(pool);
    for (int i = 0; i < 4; i++)
        assert_int_equal(sheaf__block_release(pool, one.blocks[i], SHEAF_OWNER_TREE), SHEAF_OK);
    found(pool, 8); /* names blocks that are not held */
    one.n = 0;
    assert_int_equal(sheaf__block_release(pool, two.blocks[0], SHEAF_OWNER_PARKED), SHEAF_OK);
    two.n = 0;
    sheaf__pool_publish(pool);
    check_pool(pool);
    sheaf__pool_unregister(pool, &one.owner);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_E_BUSY);
    sheaf__pool_unregister(pool, &two.owner);
    close_pool(pool);
}

static void host_and_io_references_need_no_owner(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    sheaf_block block;
    take(pool, 0, 1, &block);
    assert_int_equal(sheaf_pool_retain(pool, block, SHEAF_OWNER_IO), SHEAF_OK);
    check_pool(pool);
    assert_int_equal(sheaf_pool_release(pool, block, SHEAF_OWNER_IO), SHEAF_OK);
    give(pool, 1, &block);
    assert_int_equal(sheaf_pool_check(NULL, NULL), SHEAF_E_INVALID);
    close_pool(pool);
}

static void rows_are_reached_without_a_handle(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 64 * PAGE);
    uint32_t counts[2] = {5, 5};
    sheaf_block blocks[10];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    for (int i = 0; i < 10; i++) {
        void *addr = NULL;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr), SHEAF_OK);
        assert_ptr_equal(sheaf__pool_row(pool, blocks[i].group, blocks[i].row), addr);
        assert_false(sheaf__pool_row_shared(pool, blocks[i].group, blocks[i].row));
    }
    assert_int_equal(sheaf_pool_retain(pool, blocks[0], SHEAF_OWNER_HOST), SHEAF_OK);
    assert_true(sheaf__pool_row_shared(pool, 0, blocks[0].row));
    give(pool, 1, blocks);
    give(pool, 10, blocks);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_broken_invariant_is_named),
        cmocka_unit_test(owners_must_name_what_is_counted_for_them),
        cmocka_unit_test(host_and_io_references_need_no_owner),
        cmocka_unit_test(rows_are_reached_without_a_handle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
