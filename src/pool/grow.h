/* pool/grow.h - how many slabs a request needs, and committing them within the budget.
 *
 * Owns: the one plan by which acquire, presize and can_acquire decide, so that they agree.
 */
#ifndef SHEAF_POOL_GROW_H
#define SHEAF_POOL_GROW_H

#include "pool/pool.h"

/* Per group: slabs to commit, and empty ones that must stay. */
typedef struct sheaf__plan {
    uint32_t n_full[SHEAF_MAX_GROUPS];
    uint32_t last_rows[SHEAF_MAX_GROUPS]; /* rows of one more slab, 0: none; may be full too */
    uint32_t n_keep[SHEAF_MAX_GROUPS];    /* from the head of the list of empty slabs */
    uint64_t commit_bytes;
} sheaf__plan;

/* Plans for counts[g] free rows in each group g. False: the budget or a range has no room. */
bool sheaf__plan_make(const sheaf_pool *pool, const uint32_t *counts, sheaf__plan *plan);

/* The last bytes of a budget, in which slabs are no longer than what is asked for. */
uint64_t sheaf__grow_edge_bytes(const sheaf_pool *pool);

/* Plans, if need be after collecting what has retired, and commits. SHEAF_FULL: counted; empty slabs
 * of other groups that were taken back to make room stay given back. SHEAF_E_NO_MEMORY: no host
 * memory for the records. */
SHEAF_WARN sheaf_status sheaf__pool_grow(sheaf_pool *pool, const uint32_t *counts);

#endif
