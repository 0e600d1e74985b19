/* attn/merge.h - parts of a tile merged by the fixed tree over absolute indices.
 *
 * A node of the tree covers an aligned power of two of indices; where one half of it is absent
 * the other passes unchanged. Leaves pushed in ascending order fill a stack like the digits of a
 * binary counter: slot[n] holds a finished node of 2^n leaves, and a carry is a merge.
 *
 *     push 4, 5, 6:   slot[0] = 4;   slot[1] = (4 5);   slot[1] = (4 5), slot[0] = 6
 *     fold:           ((4 5) 6)
 */
#ifndef SHEAF_ATTN_MERGE_H
#define SHEAF_ATTN_MERGE_H

#include "attn/plan.h"

#define SHEAF__ATTN_LEVELS 33

typedef struct sheaf__attn_stack {
    const sheaf__attn_kernels *kernels;
    uint32_t n_rows;
    uint32_t value_dim;
    uint32_t o_stride;
    uint64_t filled;       /* bit n: slot[n] holds a node */
    sheaf__attn_part leaf; /* write the next leaf here */
    sheaf__attn_part slot[SHEAF__ATTN_LEVELS];
} sheaf__attn_stack;

/* An empty stack for tiles of n_rows rows.
 * floats: room for n_levels + 1 parts; null if the caller sets `leaf` itself before each push, to
 * memory that stays until the fold. */
void sheaf__attn_stack_init(sheaf__attn_stack *stack, const sheaf_attn_plan *plan,
                            uint32_t n_rows, float *floats, uint32_t n_levels);

/* Takes `leaf` as the node of 2^level leaves that leaf `index` is in, beyond all before. */
void sheaf__attn_stack_push(sheaf__attn_stack *stack, uint32_t index, uint32_t level);

/* Merges what there is into one part. At least one leaf was pushed. */
sheaf__attn_part sheaf__attn_stack_fold(sheaf__attn_stack *stack);

#endif
