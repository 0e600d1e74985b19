/* pool/pool.h - the pool as the floors above see it: fast accessors, and the registry of owners.
 *
 * Owns: struct sheaf_pool. For callers inside libsheaf that take or return many blocks in one
 * operation: the sheaf__block_ calls do what the public ones do for one block, but leave the
 * statistics snapshot and the whole-state check to one sheaf__pool_publish at the end.
 *
 *     sheaf__pool_register(pool, &seq->owner);            // visit() names every block it holds
 *     for (...) SHEAF__TRY(sheaf__block_retain(pool, block, SHEAF_OWNER_TABLE));
 *     sheaf__pool_publish(pool);
 *     sheaf__pool_unregister(pool, &seq->owner);
 */
#ifndef SHEAF_POOL_POOL_H
#define SHEAF_POOL_POOL_H

#include "base/list.h"
#include "base/memory.h"
#include "base/snapshot.h"
#include "base/status.h"
#include "pool/device.h"
#include "pool/layout.h"
#include "pool/slab.h"
#include "sheaf/pool.h"

/* ---- owners ------------------------------------------------------------------------------ */

typedef struct sheaf__owner sheaf__owner;

/* Called once for every reference that an owner holds. */
typedef void sheaf__named_fn(void *ctx, sheaf_block block);

/* Something that holds blocks and can name them: a sequence, a parked sequence, a tree. Embedded
 * in it. kind: SHEAF_OWNER_TABLE, _PARKED or _TREE; the other kinds are not enumerated. Its kind
 * may change while it is registered. */
struct sheaf__owner {
    sheaf__list link;
    uint32_t kind;
    void (*visit)(const sheaf__owner *owner, sheaf__named_fn *fn, void *ctx);
};

/* While an owner is registered the pool cannot close, and sheaf_pool_check compares the counts of
 * its kind with what all registered owners of the kind name. Neither call allocates. */
void sheaf__pool_register(sheaf_pool *pool, sheaf__owner *owner);
void sheaf__pool_unregister(sheaf_pool *pool, sheaf__owner *owner);

/* ---- the pool ---------------------------------------------------------------------------- */

#define SHEAF__STATS_WORDS (sizeof(sheaf_pool_stats) / sizeof(uint64_t))

struct sheaf_pool {
    sheaf__memory memory;
    sheaf__device device;
    sheaf_device *opened_on; /* null: a device that is nobody's, as the processor */
    sheaf_status fault;      /* SHEAF_OK, or what the device said when it failed first */
    unsigned char *staging;  /* [staging_bytes] of the host, where slabs are not: a tile */
    uint64_t staging_bytes;
    struct sheaf__flight *flights; /* [n_flights]; flight.h */
    uint64_t n_flights, flights_capacity;
    sheaf__layout layout;
    sheaf__group groups[SHEAF_MAX_GROUPS];
    sheaf__list owners;
    uint64_t budget_bytes; /* as the options say, or the machine's memory */
    uint64_t usable_bytes; /* of these, whole granules */
    uint64_t slack_slabs;
    uint64_t owner_counts[SHEAF_OWNER_KINDS];
    uint64_t full_answers;
    struct sheaf__keeper *keeper; /* null: there is no prefix cache */
    _Atomic uint32_t entered;     /* a call is inside: catches a second thread, and re-entry */
    sheaf__snapshot snapshot;
    _Atomic uint64_t snapshot_words[SHEAF__STATS_WORDS]; /* a sheaf_pool_stats */
};

/* As sheaf_pool_open, on a device of the caller's (copied). The options' slab_memory is not used.
 * first_slab: slabs before this one are never used, so that a test can reach rows beyond 2^31. */
SHEAF_WARN sheaf_status sheaf__pool_open_on(const sheaf_pool_options *options,
                                            const sheaf__device *device, uint32_t first_slab,
                                            sheaf_pool **out, sheaf_error *err);

/* The counted memory: what is allocated from it shows as host_bytes at the next publish. */
static inline sheaf__memory *sheaf__pool_memory(sheaf_pool *pool)
{
    return &pool->memory;
}

static inline const sheaf__layout *sheaf__pool_layout(const sheaf_pool *pool)
{
    return &pool->layout;
}

/* Address of a row of a group. Nothing is checked. */
static inline unsigned char *sheaf__pool_row(const sheaf_pool *pool, uint32_t group,
                                             uint32_t row)
{
    return sheaf__row_address(&pool->groups[group], row);
}

/* Whether rows can be read and written through their addresses. */
static inline bool sheaf__pool_is_host(const sheaf_pool *pool)
{
    return sheaf__device_is_host(&pool->device);
}

/* Between rows and memory of the host; `from` and `to` lie in a row. SHEAF_E_DEVICE, also kept as
 * the pool's fault. */
SHEAF_WARN sheaf_status sheaf__pool_read(const sheaf_pool *pool, void *to,
                                         const unsigned char *from, uint64_t bytes);
SHEAF_WARN sheaf_status sheaf__pool_write(const sheaf_pool *pool, unsigned char *to,
                                          const void *from, uint64_t bytes);

/* The record of a live block; null when the handle is stale or was never one. */
static inline sheaf__record *sheaf__pool_live(const sheaf_pool *pool, sheaf_block block)
{
    if (block.group >= pool->layout.n_groups) return NULL;
    const sheaf__group *group = &pool->groups[block.group];
    if (sheaf__slab_for_row(group, block.row) == NULL) return NULL;
    sheaf__record *record = sheaf__record_for_row(group, block.row);
    if (record->total == 0 || record->generation != block.generation) return NULL;
    return record;
}

/* True when others hold the row too; the caller holds it. */
static inline bool sheaf__pool_row_shared(const sheaf_pool *pool, uint32_t group, uint32_t row)
{
    return sheaf__record_for_row(&pool->groups[group], row)->total > 1;
}

/* As the public calls of these names, without snapshot and whole-state check. None allocates. */
SHEAF_WARN sheaf_status sheaf__block_retain(sheaf_pool *pool, sheaf_block block,
                                            uint32_t owner);
SHEAF_WARN sheaf_status sheaf__block_release(sheaf_pool *pool, sheaf_block block,
                                             uint32_t owner);
SHEAF_WARN sheaf_status sheaf__block_transfer(sheaf_pool *pool, sheaf_block block,
                                              uint32_t from, uint32_t to);

/* Lets the keeper settle, then brings the statistics snapshot up to date; at SHEAF_CHECK 2 also
 * verifies the invariants that do not need the owners. After host memory changed, and after
 * sheaf__block_ calls. */
void sheaf__pool_publish(sheaf_pool *pool);

/* ---- inside the floor -------------------------------------------------------------------- */

/* Every public call that changes the pool stands between these two: the first catches, from
 * SHEAF_CHECK 1 on, a second thread and re-entry; the second publishes. */
void sheaf__pool_enter(sheaf_pool *pool);
void sheaf__pool_leave(sheaf_pool *pool);

/* Fills *out (all of it) from the running counts of one group, or of all. stats.c */
void sheaf__stats_of_group(const sheaf_pool *pool, uint32_t group, sheaf_pool_stats *out);
void sheaf__stats_of_pool(const sheaf_pool *pool, sheaf_pool_stats *out);
void sheaf__stats_store(sheaf_pool *pool);

/* The invariants that hold between any two sheaf__block_ calls. check.c */
SHEAF_WARN sheaf_status sheaf__pool_check_rows(const sheaf_pool *pool, sheaf_error *err);

/* Copies a row of a group over another. A failed copy is the pool's fault from then on. */
SHEAF_WARN sheaf_status sheaf__pool_copy_row(sheaf_pool *pool, uint32_t g, uint32_t from,
                                             uint32_t to);

/* Takes back the references of flights that have landed, and frees retiring blocks whose fences
 * have passed; returns how many of both are left. */
uint64_t sheaf__pool_collect(sheaf_pool *pool);

/* ---- structs that grow with versions ----------------------------------------------------- */

/* Copies what the caller's struct has room for (*its first field says how much), zeroes what this
 * version does not know, and leaves that field alone. SHEAF_E_INVALID: it is less than 4. */
SHEAF_WARN sheaf_status sheaf__struct_give(void *to, const void *from, uint64_t from_bytes);

/* The caller's options in this version's form: what it did not know is zero, and what we do not know
 * must be. SHEAF_E_INVALID: it is not, or the first field is less than 4. */
SHEAF_WARN sheaf_status sheaf__struct_take(void *to, uint64_t to_bytes, const void *from,
                                           sheaf_error *err);

#endif
