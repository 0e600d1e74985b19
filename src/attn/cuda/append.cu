/* attn/cuda/append.cu - numbers of a step's new positions into their blocks.
 *
 * A row is one position's K or V of one head. Where its bytes are copied as they are, a thread moves
 * 16 of them; else a thread converts one number, or, for the quantized codecs, a warp encodes a row.
 * Position and block of a row come from the plan's tables, so that a captured append follows each new
 * step.
 */
#include "attn/cuda/append.h"
#include "attn/cuda/encode.cuh"
#include "base/bits.h"
#include "base/cuda_error.h"
#include "base/status.h"

#define THREADS 256
#define WARPS   4 /* of a block that encodes: 2 KiB of shared memory each */

/* K or V. */
typedef struct append_side {
    const unsigned char *src;
    unsigned char *base; /* of row 0's tile */
    uint64_t row_stride, head_stride;
    uint32_t codec, dim;
    uint32_t row_bytes; /* of a position in a segment */
    uint32_t
        units; /* of 16 bytes, of one number, or 1: what a thread, or a warp, does of a row */
} append_side;

typedef struct append_args {
    append_side side[2];
    sheaf__cuda_batch batch;
    uint32_t n_kv_heads, block_tokens, block_shift, dtype, dtype_bytes, head_major;
} append_args;

/* ---- places -------------------------------------------------------------------------------- */

/* The item of query i: the last one that begins at or before it. */
static __device__ __forceinline__ sheaf__cuda_item item_of(const sheaf__cuda_batch &batch,
                                                           uint32_t query)
{
    if (batch.n_items == batch.n_queries) return batch.items[query];
    uint32_t low = 0, high = batch.n_items;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (batch.items[middle].query_at <= query)
            low = middle;
        else
            high = middle;
    }
    return batch.items[low];
}

/* The segment of a query's position and head, and the slot in it. */
static __device__ __forceinline__ unsigned char *segment_of(const append_args &args,
                                                            const append_side &side,
                                                            uint32_t query, uint32_t head,
                                                            uint32_t *slot)
{
    sheaf__cuda_item item = item_of(args.batch, query);
    uint32_t pos = item.first_pos + (query - item.query_at);
    uint32_t block = pos >> args.block_shift;
    /* of the block that most steps write to the item itself knows the row: one read less to wait for */
    uint64_t row = block == item.first_pos >> args.block_shift
                       ? item.first_row
                       : args.batch.rows[item.rows_at + (block - item.first_block)];
    *slot = pos & (args.block_tokens - 1);
    return side.base + row * side.row_stride + head * side.head_stride;
}

static __device__ __forceinline__ const unsigned char *
source_of(const append_args &args, const append_side &side, uint32_t query, uint32_t head)
{
    uint64_t row = args.head_major ? (uint64_t)head * args.batch.n_queries + query
                                   : (uint64_t)query * args.n_kv_heads + head;
    return side.src + row * side.dim * args.dtype_bytes;
}

/* ---- kernels: blockIdx.y is the side ------------------------------------------------------- */

/* blockIdx.x is the query; its item is read while its numbers are on their way. */
__global__ void __launch_bounds__(THREADS) append_copy(const __grid_constant__ append_args args)
{
    const append_side &side = args.side[blockIdx.y];
    const uint32_t n = side.units * args.n_kv_heads;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t head = i / side.units, unit = i - head * side.units, slot;
        uint4 v = __ldcs((const uint4 *)source_of(args, side, blockIdx.x, head) + unit);
        unsigned char *segment = segment_of(args, side, blockIdx.x, head, &slot);
        ((uint4 *)(segment + (uint64_t)slot * side.row_bytes))[unit] = v;
    }
}

/* A block of 32 * WARPS threads; a warp takes a row. */
__global__ void __launch_bounds__(32 * WARPS)
    append_encode(const __grid_constant__ append_args args)
{
    __shared__ float numbers[WARPS][ENCODE_MAX_DIM];
    const append_side &side = args.side[blockIdx.y];
    uint32_t warp = threadIdx.x / 32, row = blockIdx.x * WARPS + warp, slot;
    if (row >= args.batch.n_queries * args.n_kv_heads || side.dim == 0) return;
    uint32_t query = row / args.n_kv_heads, head = row - query * args.n_kv_heads;
    const unsigned char *from = source_of(args, side, query, head);
    unsigned char *segment = segment_of(args, side, query, head, &slot);
    unsigned char *codes = segment + (uint64_t)slot * side.row_bytes;
    unsigned char *scale = segment + (uint64_t)args.block_tokens * side.row_bytes + 4ull * slot;
    if (side.codec == SHEAF_CODEC_INT8)
        encode_int8(from, args.dtype, side.dim, numbers[warp], codes, scale);
    else if (side.codec == SHEAF_CODEC_TURBO4)
        encode_turbo4(from, args.dtype, side.dim, numbers[warp], codes, scale);
    else
        for (uint32_t d = threadIdx.x % 32; d < side.dim; d += 32)
            encode_element(side.codec, codes, from, args.dtype, d);
}

/* ---- host ---------------------------------------------------------------------------------- */

static uint32_t row_bytes_of(uint32_t codec, uint32_t dim)
{
    if (codec == SHEAF_CODEC_F32) return 4 * dim;
    if (codec == SHEAF_CODEC_INT8) return dim;
    if (codec == SHEAF_CODEC_TURBO4) return (dim + 1) / 2;
    return 2 * dim;
}

/* Whether a side's rows are copied as they are, 16 bytes at a time. */
static bool is_copy(const append_args *args, const append_side *side)
{
    uint64_t places = (uintptr_t)side->src | (uintptr_t)side->base | side->row_stride |
                      side->head_stride | side->row_bytes;
    return side->codec == args->dtype && places % 16 == 0;
}

static sheaf_status launch(append_args *args, cudaStream_t stream)
{
    uint32_t rows = args->batch.n_queries * args->n_kv_heads;
    uint32_t n_sides = args->side[1].dim != 0 ? 2 : 1, units = 0;
    bool copy = true;
    for (uint32_t i = 0; i < n_sides; i++) {
        copy = copy && is_copy(args, &args->side[i]);
        args->side[i].units = args->side[i].row_bytes / 16;
        units = args->side[i].units > units ? args->side[i].units : units;
    }
    uint32_t threads = (units * args->n_kv_heads + 31) / 32 * 32;
    threads = threads < THREADS ? threads : THREADS;
    if (copy)
        append_copy<<<dim3(args->batch.n_queries, n_sides), threads, 0, stream>>>(*args);
    else
        append_encode<<<dim3((rows + WARPS - 1) / WARPS, n_sides), 32 * WARPS, 0, stream>>>(
            *args);
    return sheaf__cuda_launched("append", NULL);
}

sheaf_status sheaf__cuda_append_batch(const sheaf__cuda_batch *batch,
                                      const sheaf_kv_view *layer,
                                      const sheaf_cuda_source *source, void *stream)
{
    append_args args = {};
    args.batch = *batch;
    args.batch.host = NULL;
    args.n_kv_heads = layer->n_kv_heads;
    args.block_tokens = layer->block_tokens;
    args.block_shift = sheaf__log2(layer->block_tokens);
    args.dtype = source->dtype;
    args.dtype_bytes = source->dtype == SHEAF_DTYPE_F32 ? 4 : 2;
    args.head_major = source->head_major;
    unsigned char *base = (unsigned char *)(uintptr_t)layer->base;
    args.side[0].src = (const unsigned char *)source->k;
    args.side[0].base = base + layer->k_offset;
    args.side[0].row_stride = layer->row_stride_k;
    args.side[0].head_stride = layer->k_head_stride;
    args.side[0].codec = layer->codec_k;
    args.side[0].dim = layer->key_dim;
    args.side[1].src = (const unsigned char *)source->v;
    args.side[1].base = base + layer->v_offset;
    args.side[1].row_stride = layer->row_stride_v;
    args.side[1].head_stride = layer->v_head_stride;
    args.side[1].codec = layer->codec_v;
    args.side[1].dim = layer->value_dim;
    for (int i = 0; i < 2; i++)
        args.side[i].row_bytes = row_bytes_of(args.side[i].codec, args.side[i].dim);
    return launch(&args, (cudaStream_t)stream);
}

/* Whether an item's rows hold the positions of its queries. */
static bool has_place(const sheaf__cuda_item *item, uint32_t block_tokens)
{
    uint64_t end = (uint64_t)item->first_pos + item->n_queries;
    return end <= item->n_tokens && item->first_pos / block_tokens >= item->first_block &&
           (end - 1) / block_tokens < (uint64_t)item->first_block + item->n_rows;
}

sheaf_status sheaf_cuda_append(sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                               const sheaf_cuda_source *source, void *stream)
{
    if (plan == NULL || layer == NULL || source == NULL ||
        source->struct_size != sizeof *source || source->k == NULL ||
        (source->v == NULL && layer->value_dim != 0) || source->dtype > SHEAF_DTYPE_BF16 ||
        source->head_major > 1)
        return SHEAF_E_INVALID;
    const uintptr_t number = source->dtype == SHEAF_DTYPE_F32 ? 4 : 2;
    if (((uintptr_t)source->k | (uintptr_t)source->v) % number != 0) return SHEAF_E_INVALID;
    sheaf__cuda_batch batch;
    SHEAF__TRY(sheaf__cuda_plan_tables(plan, layer, &batch));
    for (uint32_t i = 0; i < batch.n_items; i++)
        if (!has_place(&batch.host[i], layer->block_tokens)) return SHEAF_E_PLAN;
    return sheaf__cuda_append_batch(&batch, layer, source, stream);
}
