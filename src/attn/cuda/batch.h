/* attn/cuda/batch.h - a planned step as kernels see it: its items and their rows, on the GPU.
 *
 * Owns: the two tables that plan_batch uploads and that every kernel reads. For C and for
 * kernels.
 *
 *     items  | item 0 | item 1 | ...                 rows of item i: rows[items[i].rows_at ...)
 *     rows   | rows of item 0 | rows of item 1 | ... the row of block b: rows[rows_at + b -
 *       first_block]
 */
#ifndef SHEAF_ATTN_CUDA_BATCH_H
#define SHEAF_ATTN_CUDA_BATCH_H

#include <stdint.h>

#include "sheaf/cuda_attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf__cuda_item {
    uint32_t rows_at;
    uint32_t first_block;
    uint32_t n_rows;
    uint32_t n_tokens;
    uint32_t n_queries;
    uint32_t first_pos;
    uint32_t query_at;  /* queries of the items before it */
    uint32_t first_row; /* the row of the block that holds first_pos */
} sheaf__cuda_item;

typedef struct sheaf__cuda_batch {
    const sheaf__cuda_item *items; /* [n_items], on the GPU */
    const uint32_t *rows;          /* on the GPU */
    const sheaf__cuda_item *host;  /* [n_items], the same items on the host; null in a kernel */
    uint32_t n_items;
    uint32_t n_queries; /* of all items */
    uint32_t window;    /* of the plan's options */
    uint32_t causal;
} sheaf__cuda_batch;

/* The planned step, if `layer` has the planned heads, dimensions and block_tokens. SHEAF_E_PLAN:
 * it has not, or nothing is planned. plan.c */
SHEAF_WARN sheaf_status sheaf__cuda_plan_tables(const sheaf_cuda_plan *plan,
                                                const sheaf_kv_view *layer,
                                                sheaf__cuda_batch *out);

#ifdef __cplusplus
}
#endif
#endif
