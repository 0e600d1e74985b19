/* attn/plan.h - the work of one step, laid out: shared by plan, run and the paths.
 *
 *     item        one sequence of the batch
 *     query row   row r of an item's KV head: query r / group of head kv_head * group + r % group,
 *                 where group = n_q_heads / n_kv_heads
 *     unit        up to SHEAF__ATTN_ROWS query rows of one item and KV head
 *     run         the splits of a unit whose index >> run_shift is equal: an aligned power of two
 *     task        one run of one unit; what one thread computes in one go
 *
 * A unit of one run is finished by its task; the runs of others leave their parts in the
 * workspace, and a second pass merges them by the same tree.
 *
 * Workspace, in floats:
 *
 *     [n_threads] scratch of the kernels, then a stack of parts       thread_floats each
 *     parts of the runs of units with more than one                   part_floats
 *     one item's keys and values, gathered (gather.c)                 gather_floats
 */
#ifndef SHEAF_ATTN_PLAN_H
#define SHEAF_ATTN_PLAN_H

#include "attn/kernels.h"
#include "base/memory.h"

typedef struct sheaf__attn_range {
    uint32_t lo; /* [lo, hi); empty: lo == hi */
    uint32_t hi;
} sheaf__attn_range;

typedef struct sheaf__attn_planned {
    sheaf_attn_item item;
    sheaf__attn_range seen; /* positions that some query sees */
    uint64_t first_query;   /* in the rows of q and out */
    uint32_t first_task;
    uint32_t n_tasks;
} sheaf__attn_planned;

typedef struct sheaf__attn_unit {
    uint64_t part; /* of its first run, floats into the parts; only if n_runs > 1 */
    uint32_t item;
    uint32_t kv_head;
    uint32_t first_row;
    uint32_t n_rows;
    uint32_t first_run; /* absolute index >> run_shift */
    uint32_t n_runs;
} sheaf__attn_unit;

typedef struct sheaf__attn_task {
    uint32_t unit;
    uint32_t run; /* 0 to n_runs - 1 */
    uint32_t first_split;
    uint32_t end_split; /* equal: nothing is seen */
} sheaf__attn_task;

/* The sizes of one step. */
typedef struct sheaf__attn_sizes {
    uint32_t n_items;
    uint32_t n_units;
    uint32_t n_tasks;
    uint32_t run_shift;
    uint32_t n_levels; /* of the stack of parts */
    uint64_t n_splits;
    uint64_t thread_floats;
    uint64_t part_floats;
    uint64_t gather_floats;
} sheaf__attn_sizes;

struct sheaf_attn_plan {
    sheaf__memory memory;
    sheaf_attn_options options; /* resolved: scale, isa; sinks points into the plan */
    float *sinks;               /* [n_q_heads] or null */
    sheaf_threads *threads;
    uint32_t n_threads;
    uint32_t group;
    uint32_t o_stride;
    const sheaf__attn_kernels *kernels;
    sheaf__attn_sizes sizes;
    sheaf__attn_planned *items; /* [item_capacity], sizes.n_items used, and so on */
    sheaf__attn_unit *units;
    sheaf__attn_task *tasks;
    uint64_t item_capacity;
    uint64_t unit_capacity;
    uint64_t task_capacity;
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

/* Floats that a gathered position takes: as many numbers as `dim`, or codes, and a scale. */
static inline uint64_t sheaf__attn_gathered_floats(uint32_t dim)
{
    return (uint64_t)dim + 1;
}

#endif
