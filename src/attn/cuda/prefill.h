/* attn/cuda/prefill.h - attention of many queries of one sequence at once, on tensor cores.
 *
 * Owns: how such items are cut into tiles of query rows, and the kernels that compute them. Does not
 * own: plans, uploads, items of one query.
 *
 *     query row   row r of an item's KV head: query r / group of head kv_head * group + r % group
 *     tile        SHEAF__CUDA_PREFILL_ROWS (or fewer) consecutive query rows: one thread block's
 *     key tile    a fixed number of absolute positions, aligned to that number
 *
 * Bits: a row's result is a fold over the absolute key tiles that it sees, in ascending order; rows
 * of a tile do not touch each other, and a key tile of which a row sees nothing leaves it as it is.
 * So a result does not depend on the batch, on the rows of blocks, nor on how a prompt was cut into
 * chunks. It is not the bits of the decode kernels, nor those of the processor: other instructions
 * and another order.
 *
 * Products: K and V as they are stored (bf16, f16) or as the integer levels of int8 and turbo4,
 * which bf16 holds exactly, their scales applied to scores and probabilities. Sums are f32. What is
 * rounded: queries to the type of the product (f16: after an exact power of two), and
 * probabilities. With f32 queries and outputs both are split into a high and a low bf16.
 */
#ifndef SHEAF_ATTN_CUDA_PREFILL_H
#define SHEAF_ATTN_CUDA_PREFILL_H

#include "sheaf/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One item of more than one query, as the device reads it. */
typedef struct sheaf__cuda_prefill_item {
    uint64_t first_query; /* in the rows of q and out */
    uint64_t rows_at;     /* of its first block, in `rows` */
    uint32_t n_queries;
    uint32_t first_pos;
    uint32_t n_tokens;
    uint32_t first_block;
    uint32_t n_rows;
    uint32_t first_tile; /* in `tile_item` */
    uint32_t n_tiles;
    uint32_t reserved;
} sheaf__cuda_prefill_item;

/* Kernels. BEST: the fastest that can compute the shape. */
enum {
    SHEAF__CUDA_PREFILL_BEST = 0,
    SHEAF__CUDA_PREFILL_MMA = 1,      /* mma.sync, any shape supported */
    SHEAF__CUDA_PREFILL_WGMMA = 2,    /* Hopper: wgmma, bf16 and f16 */
    SHEAF__CUDA_PREFILL_PINGPONG = 3, /* the same, warpgroups taking turns */
};

/* A layer of a step. Pointers are the device's; passed by value into kernels. */
typedef struct sheaf__cuda_prefill {
    sheaf_kv_view view; /* geometry, base and codecs; its rows and tokens are not read */
    const void *q; /* [queries, n_q_heads, dim] of io_dtype, aligned to 16 bytes as is out */
    void *out;     /* the same shape and type */
    const sheaf__cuda_prefill_item *items;
    const uint32_t *tile_item; /* [n_tiles] the item of each tile */
    const uint32_t *rows;      /* every item's rows */
    const float *sinks;        /* [n_q_heads] or null */
    uint32_t n_tiles;
    uint32_t n_q_heads;
    uint32_t io_dtype; /* SHEAF_DTYPE_F32, _F16, _BF16 */
    uint32_t window;
    uint32_t not_causal;
    float scale; /* resolved */
    float softcap;
    uint32_t kernel; /* SHEAF__CUDA_PREFILL_... */
} sheaf__cuda_prefill;

/* The kernel that BEST stands for, or `kernel` itself; BEST: no kernel computes this shape
 * (dimensions other than 64, 128 and 256, or unequal ones; f32 codecs; two different codecs), or
 * `kernel` does not. */
uint32_t sheaf__cuda_prefill_kernel(const sheaf_kv_view *view, uint32_t io_dtype,
                                    uint32_t kernel);

/* Query rows of its tiles; 0: no kernel. */
uint32_t sheaf__cuda_prefill_rows(const sheaf_kv_view *view, uint32_t io_dtype,
                                  uint32_t kernel);

/* Sets first_tile and n_tiles of the items and, where not null, tile_item. Returns the tiles.
 * group = n_q_heads / n_kv_heads; tile_rows as above; tiles fit 31 bits. step.c */
uint32_t sheaf__cuda_prefill_tiles(sheaf__cuda_prefill_item *items, uint32_t n_items,
                                   uint32_t group, uint32_t tile_rows, uint32_t *tile_item);

/* Queues one layer on a stream (a cudaStream_t). Allocates nothing; can be captured in a graph.
 * SHEAF_E_UNSUPPORTED: the shape; SHEAF_E_INVALID: alignment; SHEAF_E_DEVICE: the launch failed. */
SHEAF_WARN sheaf_status sheaf__cuda_prefill_run(const sheaf__cuda_prefill *layer, void *stream);

#ifdef __cplusplus
}
#endif
#endif
