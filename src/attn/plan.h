/* attn/plan.h - the work of one step, laid out: shared by plan, run and the paths.
 *
 *     item        one sequence of the batch
 *     query row   row r of an item's KV head: query r / group of head kv_head * group + r % group,
 *                 where group = n_q_heads / n_kv_heads
 *     tile        up to SHEAF__ATTN_ROWS query rows of one item; the same for each KV head
 *     unit        tiles whose rows attend together to a range of splits: one tile, or several whose
 *                 items hold the same blocks there
 *     member      one tile in one unit. The units of a tile cover its splits, each once
 *     task        a part of a unit's range, for one KV head or, where there are few rows, several
 *                 neighbouring ones, whose keys lie side by side; what one thread computes in one
 *                 go: the splits whose index >> run_shift is equal
 *
 *     splits        0       4        8     10
 *     tile 0        [ unit 0        ][ unit 1 ]       units 0 and 2 have several members; rows of
 *     tile 1        [ unit 0 ][ unit 2 ][unit 3]      tile 1 are read from three units
 *
 * A unit that is its tile's only one and is not cut is finished by its task. The tasks of the others
 * leave parts in the workspace, one a node of the tree over absolute split indices, and a second
 * pass merges those of each tile by the same tree.
 *
 * Workspace, in floats:
 *
 *     [n_threads] scratch of the kernels, then a stack of parts       thread_floats each
 *     parts of the units that leave some: unit, KV head, node         part_floats
 *     one item's keys and values, gathered (gather.c)                 gather_floats
 *
 * A plan has two layouts: the one that runs use, and the one that planning writes, which changes
 * places with it when nothing can fail any more. Their lists grow together.
 */
#ifndef SHEAF_ATTN_PLAN_H
#define SHEAF_ATTN_PLAN_H

#include "attn/kernels.h"
#include "base/memory.h"

#define SHEAF__ATTN_NONE UINT32_MAX

typedef struct sheaf__attn_range {
    uint32_t lo; /* [lo, hi); empty: lo == hi */
    uint32_t hi;
} sheaf__attn_range;

typedef struct sheaf__attn_planned {
    sheaf_attn_item item;
    sheaf__attn_range seen; /* positions that some query sees */
    uint64_t first_query;   /* in the rows of q and out */
    uint32_t first_tile;
    uint32_t n_tiles;
    uint32_t first_task; /* GATHER: of the item's own tasks */
    uint32_t n_tasks;
} sheaf__attn_planned;

typedef struct sheaf__attn_tile {
    uint32_t item;
    uint32_t first_row;
    uint32_t n_rows;
    sheaf__attn_range splits; /* that its rows see, together */
    uint32_t covered;         /* while planning: the units so far end here */
    uint32_t first_member;    /* its units in ascending order, linked */
    uint32_t last_member;
} sheaf__attn_tile;

typedef struct sheaf__attn_member {
    uint32_t tile;
    uint32_t unit;
    uint32_t first_row; /* in the unit */
    uint32_t next;      /* of the tile; SHEAF__ATTN_NONE: the last */
} sheaf__attn_member;

typedef struct sheaf__attn_unit {
    uint64_t part;    /* its first, floats into the parts */
    uint32_t n_parts; /* of each KV head; 0: its task finishes the rows */
    uint32_t n_rows;
    uint32_t first_member;
    uint32_t n_members;
    sheaf__attn_range splits; /* empty: its rows see nothing */
    uint32_t whole;           /* all that its tile sees */
} sheaf__attn_unit;

typedef struct sheaf__attn_task {
    uint32_t unit;
    uint32_t kv_head; /* the first */
    uint32_t n_heads;
    uint32_t first_part; /* of those of each of the unit's KV heads */
    sheaf__attn_range splits;
} sheaf__attn_task;

/* A node of the tree over splits, cut to what a task has of it. */
typedef struct sheaf__attn_node {
    uint32_t end; /* split */
    uint32_t level;
} sheaf__attn_node;

/* The work of one step, and its sizes. */
typedef struct sheaf__attn_layout {
    uint32_t n_items;
    uint32_t n_tiles;
    uint32_t n_units;
    uint32_t n_members;
    uint32_t n_tasks;
    uint32_t n_shared_units; /* the first ones may have several members, the others have one */
    uint32_t run_shift;
    uint32_t task_heads; /* KV heads of a task at most */
    uint32_t n_levels;   /* of the stack of parts */
    uint64_t n_splits;
    uint64_t n_shared_splits;
    uint64_t thread_floats;
    uint64_t part_floats;
    uint64_t gather_floats;
    sheaf__attn_planned *items;
    sheaf__attn_tile *tiles;
    sheaf__attn_unit *units;
    sheaf__attn_member *members;
    sheaf__attn_task *tasks;
} sheaf__attn_layout;

/* An item whose blocks others may hold, too; only while planning. */
typedef struct sheaf__attn_sharer {
    uint32_t tile;            /* its only one */
    sheaf__attn_range splits; /* seen, and held from end to end */
    uint32_t next;            /* of the same set */
    uint32_t n;               /* the first of a set: how many there are */
} sheaf__attn_sharer;

/* Sharers that hold the same blocks in split `from`, and before. */
typedef struct sheaf__attn_set {
    uint32_t first;
    uint32_t from;
} sheaf__attn_set;

struct sheaf_attn_plan {
    sheaf__memory memory;
    sheaf_attn_options options; /* resolved: scale, isa; sinks points into the plan */
    float *sinks;               /* [n_q_heads] or null */
    sheaf_threads *threads;
    uint32_t n_threads;
    uint32_t group;
    uint32_t o_stride;
    const sheaf__attn_kernels *kernels;
    sheaf__attn_layout now;  /* what runs use; n_items 0: nothing is planned */
    sheaf__attn_layout next; /* what planning writes */
    uint64_t item_capacity;  /* of the lists of either */
    uint64_t tile_capacity;
    uint64_t unit_capacity;
    uint64_t member_capacity;
    uint64_t task_capacity;
    sheaf__attn_sharer *sharers; /* [sharer_capacity], and so on */
    sheaf__attn_set *sets;
    uint32_t *slots; /* of a hash table, a power of two */
    uint64_t sharer_capacity;
    uint64_t set_capacity;
    uint64_t slot_capacity;
    float *workspace; /* [workspace_floats] */
    uint64_t workspace_floats;
};

/* As sheaf_attn_plan_create, with memory from `allocator` (null: the C library's). */
sheaf_status sheaf__attn_plan_create(const sheaf_attn_options *options, sheaf_threads *threads,
                                     const sheaf_allocator *allocator, sheaf_attn_plan **out);

/* What the query at position `pos` sees of n_tokens written positions. */
sheaf__attn_range sheaf__attn_visible(const sheaf_attn_options *options, uint64_t pos,
                                      uint32_t n_tokens);

/* Floats of the part of a tile, a multiple of SHEAF__ATTN_PAD; and its pieces. */
uint64_t sheaf__attn_part_floats(uint32_t n_rows, uint32_t o_stride);
sheaf__attn_part sheaf__attn_part_at(float *floats, uint32_t n_rows);

/* The next layout gets a unit over `splits` that nobody is in yet; the tile joins the last unit. */
sheaf_status sheaf__attn_open_unit(sheaf_attn_plan *plan, sheaf__attn_range splits);
sheaf_status sheaf__attn_join_unit(sheaf_attn_plan *plan, uint32_t tile);

/* Adds units for what items of the next layout share. views: [n_items] */
sheaf_status sheaf__attn_share(sheaf_attn_plan *plan, const sheaf_kv_view *views);

/* Whether the members of the units still hold the same blocks. SHEAF_E_PLAN. */
sheaf_status sheaf__attn_shared_check(const sheaf_attn_plan *plan, const sheaf_kv_view *views);

/* Whether a view has the heads and dimensions of the plan, and codecs and blocks that can be.
 * SHEAF_E_PLAN. */
sheaf_status sheaf__attn_view_shape(const sheaf_attn_plan *plan, const sheaf_kv_view *view);

/* Floats that a gathered position takes: as many numbers as `dim`, or codes, and a scale. */
static inline uint64_t sheaf__attn_gathered_floats(uint32_t dim)
{
    return (uint64_t)dim + 1;
}

/* The node that begins a task's range, or what is left of it, [lo, hi). Where other units have
 * the rest of the node it ends with what is whole of it; else nobody else has any. */
static inline sheaf__attn_node
sheaf__attn_first_node(const sheaf__attn_unit *unit, uint32_t run_shift, sheaf__attn_range left)
{
    if (unit->whole) return (sheaf__attn_node){left.hi, run_shift};
    uint32_t level = 0;
    while (!(left.lo >> level & 1) && level < run_shift && (left.hi - left.lo) >> level > 1)
        level++;
    return (sheaf__attn_node){left.lo + (1u << level), level};
}

/* The splits of a unit from `split` on that belong to the same run. */
static inline sheaf__attn_range sheaf__attn_run_at(const sheaf__attn_unit *unit,
                                                   uint32_t run_shift, uint32_t split)
{
    uint64_t past = (((uint64_t)split >> run_shift) + 1) << run_shift;
    uint32_t hi = unit->splits.hi;
    return (sheaf__attn_range){split, past < hi ? (uint32_t)past : hi};
}

#endif
