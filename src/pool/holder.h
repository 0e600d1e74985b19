/* pool/holder.h - what the pool knows of a prefix cache: where its blocks are named, and that it may
 * have to let some go.
 *
 * Owns: the back-pointer in a block's record, and the count of blocks that trees alone own. Does not
 * own: the tree.
 */
#ifndef SHEAF_POOL_HOLDER_H
#define SHEAF_POOL_HOLDER_H

#include "pool/pool.h"

typedef struct sheaf__keeper sheaf__keeper;
struct sheaf__keeper {
    /* A block has moved: whoever `holder` is names `to` at `index` from now on. */
    void (*moved)(sheaf__keeper *keeper, void *holder, uint32_t index, sheaf_block to);
    /* Called at the end of calls that changed the pool, before its snapshot is stored: may release
     * blocks with sheaf__block_release, and must not call the pool otherwise. */
    void (*settle)(sheaf__keeper *keeper);
};

/* A pool has at most one. SHEAF_E_BUSY: it has one. */
SHEAF_WARN sheaf_status sheaf__pool_set_keeper(sheaf_pool *pool, sheaf__keeper *keeper);
void sheaf__pool_clear_keeper(sheaf_pool *pool);

/* Who names a live block in the tree, and at which index; null: nobody that can be told, so the block
 * does not move. Forgotten when the last TREE reference goes. */
void sheaf__block_set_holder(sheaf_pool *pool, sheaf_block block, void *holder, uint32_t index);
void *sheaf__block_holder(const sheaf_pool *pool, sheaf_block block, uint32_t *index);

/* Blocks of a group, and bytes of all, whose every reference is of kind TREE. O(1). */
uint64_t sheaf__pool_tree_only(const sheaf_pool *pool, uint32_t group);
uint64_t sheaf__pool_tree_only_bytes(const sheaf_pool *pool);

#endif
