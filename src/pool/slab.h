/* pool/slab.h - the slabs of one group: which rows exist, which are free, and who counts on them.
 *
 * Owns: a group's address range, its slabs, the record of every row, and the lists by which the
 * fullest slab with room is found. Does not own: the budget, which spans groups (pool/grow.h), and
 * the rules of holding (pool/pool.c).
 *
 *   range     | slab 0 | slab 1 | (given back) | slab 3, short |  never used ...  |
 *   lists     heads[0]                slabs given back
 *             heads[f]                partly used slabs with f free rows, 0 < f < slab_blocks
 *             heads[slab_blocks]      empty slabs: every row free
 *             heads[slab_blocks + 1]  slabs set aside, while a compaction empties them
 *             (slabs without a free row are in no list)
 *
 * A row's record lives as long as the pool, so that a handle from before its slab was given back
 * is still refused after the slab has come again.
 */
#ifndef SHEAF_POOL_SLAB_H
#define SHEAF_POOL_SLAB_H

#include <stddef.h>

#include "base/memory.h"
#include "pool/device.h"
#include "pool/layout.h"

enum { SHEAF__ROW_FREE = 0, SHEAF__ROW_HELD = 1, SHEAF__ROW_RETIRING = 2 };

typedef struct sheaf__record {
    uint32_t generation; /* of the handle that is or will be valid; from 1, 0 is never valid */
    uint32_t total;      /* references; 0 unless held */
    uint32_t by_kind[SHEAF_OWNER_KINDS];
    uint32_t state;
    uint64_t fence;         /* while retiring */
    uint32_t next_retiring; /* row, or SHEAF_ROW_NONE */
    uint32_t named;         /* scratch of sheaf_pool_check */
    void *holder;           /* who names it in a tree; null: nobody that can be told */
    uint32_t holder_index;  /* and where */
} sheaf__record;

_Static_assert(sizeof(sheaf__record) == 64, "a record is a line of memory, and aligned as one");

#define SHEAF__SLAB_NONE UINT32_MAX

typedef struct sheaf__slab {
    uint32_t prev, next; /* in its list, circular */
    uint32_t list;       /* index into heads, or SHEAF__SLAB_NONE */
    uint32_t n_rows;     /* committed: slab_blocks, fewer in a short slab, 0 when given back */
    uint32_t n_free;
    uint32_t n_movable;     /* rows that sheaf__record_movable is true of */
    uint64_t bytes;         /* committed */
    sheaf__record *records; /* [slab_blocks]; null until it is first committed */
    uint64_t *free_bits;    /* [ceil(slab_blocks / 64)]: bit s says that slot s is free */
} sheaf__slab;

/* Running counts of one group; sheaf_pool_stats says what each means. */
typedef struct sheaf__counts {
    uint64_t bytes_reserved;
    uint64_t capacity;
    uint64_t free;
    uint64_t held;
    uint64_t retiring;
    uint64_t shared;
    uint64_t tree_only; /* every reference of kind TREE */
    uint64_t slabs;
    uint64_t slabs_empty;
    uint64_t slab_appends;
    uint64_t slab_releases;
    uint64_t slab_failures;
    uint64_t acquired;
    uint64_t released;
    uint64_t copied;
} sheaf__counts;

typedef struct sheaf__group {
    const sheaf__group_layout *layout;
    unsigned char *base;
    uint64_t range_bytes;
    uint32_t max_slabs;  /* that the range has room for */
    uint32_t first_slab; /* slabs before it are never used */
    uint32_t n_slabs;    /* end of those that were ever committed */
    sheaf__slab *slabs;  /* [slabs_capacity] */
    uint64_t slabs_capacity;
    uint32_t *heads;    /* [slab_blocks + 2] */
    uint64_t *occupied; /* [slab_blocks / 64 + 1]: bit f says that heads[f] is not empty */
    uint32_t retiring;  /* first row of the list, or SHEAF_ROW_NONE */
    sheaf__counts counts;
} sheaf__group;

/* Reserves room for max_slabs slabs and commits none. SHEAF_E_NO_MEMORY; SHEAF_E_OVERFLOW;
 * SHEAF_E_INVALID: the hook gave a misaligned range. Close it also after a failure. */
sheaf_status sheaf__group_open(sheaf__group *group, const sheaf__group_layout *layout,
                               uint32_t max_slabs, const sheaf__device *device,
                               sheaf__memory *memory);

/* Gives everything back. Harmless on a group of zeros. */
void sheaf__group_close(sheaf__group *group, const sheaf__device *device,
                        sheaf__memory *memory);

/* Host memory for the next n_slabs commits, which then cannot fail for want of it.
 * SHEAF_E_NO_MEMORY: what was taken so far stays with the group and is used by a later call. */
sheaf_status sheaf__group_prepare(sheaf__group *group, uint32_t n_slabs, sheaf__memory *memory);

/* Commits a slab of n_rows rows at the end of the empty list; prepared before. False: the system
 * has no memory, nothing changed but slab_failures. */
bool sheaf__group_commit(sheaf__group *group, uint32_t n_rows, uint64_t bytes,
                         const sheaf__device *device);

/* Gives an empty slab back. */
void sheaf__group_decommit(sheaf__group *group, uint32_t slab, const sheaf__device *device);

/* As if the slab at the end of the empty list had never been committed. */
void sheaf__group_undo_commit(sheaf__group *group, const sheaf__device *device);

/* Takes a free row, of the fullest slab that has one; the group has one. O(slab_blocks / 64). */
uint32_t sheaf__group_take(sheaf__group *group);

/* Makes a row free again; an empty slab is given back if it is short, or one beyond the slack. */
void sheaf__group_put(sheaf__group *group, uint32_t row, uint64_t slack_slabs,
                      const sheaf__device *device);

/* Takes a slab with held rows out of its list, so that no row is taken from it, and puts it at the
 * end of those that are set aside. */
void sheaf__group_set_aside(sheaf__group *group, uint32_t slab);

/* Makes a row of a slab that is set aside free. */
void sheaf__group_vacate(sheaf__group *group, uint32_t row, const sheaf__device *device);

/* Puts a slab that was set aside back into the list that its free rows call for; nothing is given
 * back. True: it has fallen empty. */
bool sheaf__group_put_back(sheaf__group *group, uint32_t slab);

/* The first of the slabs that are set aside; SHEAF__SLAB_NONE when there is none. */
static inline uint32_t sheaf__group_first_aside(const sheaf__group *group)
{
    return group->heads[group->layout->slab_blocks + 1];
}

/* The greatest f below `list` for which heads[f] is not empty; 0 when there is none from 1 on.
 * O(slab_blocks / 64). */
uint32_t sheaf__group_list_below(const sheaf__group *group, uint32_t list);

/* The first empty slab; SHEAF__SLAB_NONE when there is none. Empty slabs are used from here on. */
static inline uint32_t sheaf__group_first_empty(const sheaf__group *group)
{
    return group->heads[group->layout->slab_blocks];
}

/* The last one, to be given back first; there is one. */
static inline uint32_t sheaf__group_last_empty(const sheaf__group *group)
{
    return group->slabs[sheaf__group_first_empty(group)].prev;
}

/* The slab of a row; null when the row was never committed. Every way from a row to its slab and
 * its memory goes through these. */
static inline const sheaf__slab *sheaf__slab_for_row(const sheaf__group *group, uint32_t row)
{
    uint32_t slab = row >> group->layout->slab_shift;
    if (slab >= group->n_slabs || group->slabs[slab].records == NULL) return NULL;
    return &group->slabs[slab];
}

static inline sheaf__slab *sheaf__slab_for_row_mut(sheaf__group *group, uint32_t row)
{
    return (sheaf__slab *)sheaf__slab_for_row(group, row);
}

/* The record of a row that sheaf__slab_for_row knows. */
static inline sheaf__record *sheaf__record_for_row(const sheaf__group *group, uint32_t row)
{
    return &group->slabs[row >> group->layout->slab_shift]
                .records[row & (group->layout->slab_blocks - 1)];
}

/* The row of a slot. */
static inline uint32_t sheaf__row_at(const sheaf__group *group, uint32_t slab, uint32_t slot)
{
    return (slab << group->layout->slab_shift) + slot;
}

/* The generation of a row's next use. */
static inline uint32_t sheaf__generation_after(uint32_t generation)
{
    return generation == UINT32_MAX ? 1 : generation + 1;
}

/* True when trees hold the row, and nobody else does. */
static inline bool sheaf__record_tree_only(const sheaf__record *record)
{
    return record->total != 0 && record->by_kind[SHEAF_OWNER_TREE] == record->total;
}

/* True when the row's one reference is of a tree's node that can be told of a move. */
static inline bool sheaf__record_movable(const sheaf__record *record)
{
    return record->holder != NULL && record->total == 1;
}

static inline unsigned char *sheaf__row_address(const sheaf__group *group, uint32_t row)
{
    return group->base + (uint64_t)row * group->layout->block_bytes;
}

#endif
