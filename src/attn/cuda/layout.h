/* attn/cuda/layout.h - a step of decoding cut into units, parts and sets, on the host.
 *
 * Owns: which unit computes what, and where parts lie. Does not own: memory of the GPU; nothing here
 * needs one. No choice made here can be seen in the results (decode.h).
 */
#ifndef SHEAF_ATTN_CUDA_LAYOUT_H
#define SHEAF_ATTN_CUDA_LAYOUT_H

#include "attn/cuda/decode.h"
#include "base/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a step is cut; zeros: by the sizes of the step. Benches set it. */
typedef struct sheaf__cuda_tuning {
    uint32_t each;    /* leaves of a warp: 1 or 4 */
    uint32_t slots;   /* of a warp's ring */
    uint32_t overlap; /* 1: kernels start before those they wait for have ended, 2: not */
    uint32_t spans;   /* of a prefix unit */
} sheaf__cuda_tuning;

/* What is the same for all items of a step. */
typedef struct sheaf__cuda_shape {
    uint32_t n_q_heads, n_kv_heads, dim;
    uint32_t codec, block_tokens;
    uint32_t window, causal;
    uint32_t n_processors; /* of the GPU */
    uint32_t prefix_min;   /* 0: the default, of several items */
    sheaf__cuda_tuning tuning;
} sheaf__cuda_shape;

typedef struct sheaf__cuda_set sheaf__cuda_set;
typedef struct sheaf__cuda_cut sheaf__cuda_cut;

/* A step. Arrays grow and stay; the counts are of this step. */
typedef struct sheaf__cuda_layout {
    sheaf__cuda_cut *cuts; /* [n_items] */
    sheaf__cuda_set *sets; /* [n_found] */
    uint32_t *table;       /* scratch: of sets, by their first row */
    uint64_t cut_capacity, set_capacity, table_capacity;
    uint32_t n_items;
    uint32_t n_units, n_merges, n_prefix_units, n_members;
    uint32_t n_sets;  /* that are read once for all their members, */
    uint32_t n_found; /* of those that were looked at */
    uint32_t table_bits, least_spans;
    uint32_t unit_spans; /* of a prefix unit */
    uint32_t slots, overlap;
    uint32_t all_chunks; /* whether all its units are */
    uint64_t n_parts;
    uint64_t prefix_tokens; /* that were not read again */
} sheaf__cuda_layout;

/* Where a step's tables are written: [n_units] and so on. */
typedef struct sheaf__cuda_tables {
    sheaf__cuda_unit *units;
    sheaf__cuda_merge *merges;
    sheaf__cuda_prefix_unit *prefix_units;
    uint32_t *members;
} sheaf__cuda_tables;

/* Cuts a step and counts. items: rows_at as the rows will lie; those of several queries are left out.
 * views: for their rows. O(items), and O(rows) of items whose first rows are alike.
 * SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW: too many parts. */
SHEAF_WARN sheaf_status sheaf__cuda_layout_set(sheaf__cuda_layout *layout,
                                               sheaf__memory *memory,
                                               const sheaf__cuda_shape *shape,
                                               const sheaf__cuda_item *items,
                                               const sheaf_kv_view *views, uint32_t n_items);
/* Writes what layout_set has cut, from the same shape and items, each table from its start to its
 * end. */
void sheaf__cuda_layout_write(sheaf__cuda_layout *layout, const sheaf__cuda_shape *shape,
                              const sheaf__cuda_item *items, const sheaf__cuda_tables *to);
/* A step of nothing. */
void sheaf__cuda_layout_clear(sheaf__cuda_layout *layout);
void sheaf__cuda_layout_free(sheaf__cuda_layout *layout, sheaf__memory *memory);

/* Positions [lo, hi) that the item's only query sees. */
static inline void sheaf__cuda_item_sees(const sheaf__cuda_shape *shape,
                                         const sheaf__cuda_item *item, uint32_t *lo,
                                         uint32_t *hi)
{
    *hi = item->n_tokens;
    if (shape->causal && item->first_pos < *hi) *hi = item->first_pos + 1;
    *lo = 0;
    if (shape->window != 0 && item->first_pos >= shape->window)
        *lo = item->first_pos + 1 - shape->window;
    if (*lo > *hi) *lo = *hi;
}

#ifdef __cplusplus
}
#endif
#endif
