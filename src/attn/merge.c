/* attn/merge.c - the binary counter behind the tree of merges. */
#include "attn/merge.h"

#include "base/status.h"

static void merge(const sheaf__attn_stack *stack, sheaf__attn_part left, sheaf__attn_part right)
{
    stack->kernels->merge(stack->n_rows, stack->value_dim, stack->o_stride, left, right);
}

void sheaf__attn_stack_init(sheaf__attn_stack *stack, const sheaf_attn_plan *plan,
                            uint32_t n_rows, float *floats, uint32_t n_levels)
{
    stack->kernels = plan->kernels;
    stack->n_rows = n_rows;
    stack->value_dim = plan->options.value_dim;
    stack->o_stride = plan->o_stride;
    stack->filled = 0;
    if (floats == NULL) return;
    uint64_t each = sheaf__attn_part_floats(n_rows, plan->o_stride);
    stack->leaf = sheaf__attn_part_at(floats, n_rows);
    for (uint32_t n = 0; n < n_levels; n++)
        stack->slot[n] = sheaf__attn_part_at(floats + (n + 1) * each, n_rows);
}

/* The leaf and a slot change places, so that neither is copied. */
static void swap(sheaf__attn_stack *stack, uint32_t level)
{
    sheaf__attn_part part = stack->slot[level];
    stack->slot[level] = stack->leaf;
    stack->leaf = part;
}

void sheaf__attn_stack_push(sheaf__attn_stack *stack, uint32_t index, uint32_t level)
{
    for (; index >> level & 1; level++) {
        if (!(stack->filled >> level & 1)) continue;
        merge(stack, stack->slot[level], stack->leaf);
        swap(stack, level);
        stack->filled &= ~(1ull << level);
    }
    SHEAF__ASSERT(!(stack->filled >> level & 1));
    swap(stack, level);
    stack->filled |= 1ull << level;
}

sheaf__attn_part sheaf__attn_stack_fold(sheaf__attn_stack *stack)
{
    uint32_t level = (uint32_t)__builtin_ctzll(stack->filled);
    sheaf__attn_part node = stack->slot[level];
    for (level++; level < SHEAF__ATTN_LEVELS; level++) {
        if (!(stack->filled >> level & 1)) continue;
        merge(stack, stack->slot[level], node);
        node = stack->slot[level];
    }
    stack->filled = 0;
    return node;
}
