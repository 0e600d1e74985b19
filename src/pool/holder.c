/* pool/holder.c - who names a block in the tree, and how many blocks trees alone own. The counts are
 * kept where references change, in pool.c. */
#include "pool/holder.h"

sheaf_status sheaf__pool_set_keeper(sheaf_pool *pool, sheaf__keeper *keeper)
{
    if (pool->keeper != NULL) return SHEAF_E_BUSY;
    pool->keeper = keeper;
    return SHEAF_OK;
}

void sheaf__pool_clear_keeper(sheaf_pool *pool)
{
    pool->keeper = NULL;
}

void sheaf__block_set_holder(sheaf_pool *pool, sheaf_block block, void *holder, uint32_t index)
{
    sheaf__record *record = sheaf__pool_live(pool, block);
    SHEAF__ASSERT(record != NULL && record->by_kind[SHEAF_OWNER_TREE] != 0);
    if (record == NULL) return;
    sheaf__slab *slab = sheaf__slab_for_row_mut(&pool->groups[block.group], block.row);
    slab->n_movable -= sheaf__record_movable(record);
    record->holder = holder;
    record->holder_index = index;
    slab->n_movable += sheaf__record_movable(record);
}

void *sheaf__block_holder(const sheaf_pool *pool, sheaf_block block, uint32_t *index)
{
    const sheaf__record *record = sheaf__pool_live(pool, block);
    if (record == NULL || record->holder == NULL) return NULL;
    *index = record->holder_index;
    return record->holder;
}

uint64_t sheaf__pool_tree_only(const sheaf_pool *pool, uint32_t group)
{
    return pool->groups[group].counts.tree_only;
}

uint64_t sheaf__pool_tree_only_bytes(const sheaf_pool *pool)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        bytes += pool->groups[g].counts.tree_only * pool->layout.groups[g].block_bytes;
    return bytes;
}
