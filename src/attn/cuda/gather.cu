/* attn/cuda/gather.cu - the encoded tiles of a step's items, copied out side by side.
 *
 * One block of threads copies one tile, 16 bytes a thread where all tiles begin at such multiples.
 * Addresses of up to ITEMS items travel as arguments of the launch, so that nothing is uploaded.
 */
#include "attn/cuda/append.h"
#include "base/cuda_error.h"
#include "base/status.h"

#define THREADS 256
#define ITEMS   128

typedef struct gather_side {
    const unsigned char *base; /* of row 0's tile */
    uint64_t row_stride;
    uint64_t tile_bytes;
    unsigned char *to[ITEMS];
} gather_side;

typedef struct gather_args {
    gather_side side[2];
    sheaf__cuda_batch batch;
    uint32_t first_item, block_tokens;
} gather_args;

/* The first block that the last of n_tokens positions sees. */
static __host__ __device__ __forceinline__ uint32_t first_seen(uint32_t n_tokens,
                                                               uint32_t window,
                                                               uint32_t block_tokens)
{
    uint32_t begin = window != 0 && n_tokens > window ? n_tokens - window : 0;
    return begin / block_tokens;
}

template <typename T>
static __device__ __forceinline__ void copy_tile(unsigned char *to, const unsigned char *from,
                                                 uint64_t bytes)
{
    for (uint64_t i = threadIdx.x; i < bytes / sizeof(T); i += THREADS)
        ((T *)to)[i] = ((const T *)from)[i];
}

/* blockIdx: the block from the first seen one, the item, the side. */
__global__ void __launch_bounds__(THREADS)
    gather_tiles(const __grid_constant__ gather_args args)
{
    const gather_side &side = args.side[blockIdx.z];
    sheaf__cuda_item item = args.batch.items[args.first_item + blockIdx.y];
    uint32_t first = first_seen(item.n_tokens, args.batch.window, args.block_tokens);
    uint32_t block = first + blockIdx.x;
    unsigned char *to = side.to[blockIdx.y];
    if (to == NULL || (uint64_t)block * args.block_tokens >= item.n_tokens) return;
    uint64_t row = args.batch.rows[item.rows_at + (block - item.first_block)];
    const unsigned char *from = side.base + row * side.row_stride;
    to += blockIdx.x * side.tile_bytes;
    uint64_t places = (uintptr_t)to | (uintptr_t)from | side.tile_bytes;
    if (places % 16 == 0)
        copy_tile<uint4>(to, from, side.tile_bytes);
    else if (places % 4 == 0)
        copy_tile<uint32_t>(to, from, side.tile_bytes);
    else
        copy_tile<unsigned char>(to, from, side.tile_bytes);
}

/* Items [args->first_item, + n), n <= ITEMS. */
static sheaf_status launch(gather_args *args, uint32_t n, void *const *k, void *const *v,
                           cudaStream_t stream)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) {
        const sheaf__cuda_item *item = &args->batch.host[args->first_item + i];
        uint32_t first = first_seen(item->n_tokens, args->batch.window, args->block_tokens);
        uint32_t end = (item->n_tokens + args->block_tokens - 1) / args->block_tokens;
        most = end - first > most ? end - first : most;
        args->side[0].to[i] = k != NULL ? (unsigned char *)k[args->first_item + i] : NULL;
        args->side[1].to[i] = v != NULL ? (unsigned char *)v[args->first_item + i] : NULL;
    }
    if (most == 0) return SHEAF_OK;
    gather_tiles<<<dim3(most, n, args->side[1].tile_bytes != 0 ? 2 : 1), THREADS, 0, stream>>>(
        *args);
    return sheaf__cuda_launched("gather", NULL);
}

sheaf_status sheaf__cuda_gather_batch(const sheaf__cuda_batch *batch,
                                      const sheaf_kv_view *layer, void *const *k,
                                      void *const *v, void *stream)
{
    gather_args args = {};
    args.batch = *batch;
    args.block_tokens = layer->block_tokens;
    args.side[0].base = layer->base + layer->k_offset;
    args.side[0].row_stride = layer->row_stride_k;
    args.side[0].tile_bytes = layer->n_kv_heads * layer->k_head_stride;
    args.side[1].base = layer->base + layer->v_offset;
    args.side[1].row_stride = layer->row_stride_v;
    args.side[1].tile_bytes =
        layer->value_dim != 0 ? layer->n_kv_heads * layer->v_head_stride : 0;
    for (uint32_t i = 0; i < batch->n_items; i += ITEMS) {
        uint32_t left = batch->n_items - i;
        args.first_item = i;
        SHEAF__TRY(launch(&args, left < ITEMS ? left : ITEMS, k, v, (cudaStream_t)stream));
    }
    return SHEAF_OK;
}

/* Whether an item's rows hold all that is gathered: a plan asks only for what queries see. */
static bool is_held(const sheaf__cuda_item *item, uint32_t window, uint32_t block_tokens)
{
    uint64_t end = ((uint64_t)item->n_tokens + block_tokens - 1) / block_tokens;
    return item->n_tokens == 0 ||
           (first_seen(item->n_tokens, window, block_tokens) >= item->first_block &&
            end <= (uint64_t)item->first_block + item->n_rows);
}

sheaf_status sheaf_cuda_gather(sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                               void *const *k, void *const *v, void *stream)
{
    if (plan == NULL || layer == NULL) return SHEAF_E_INVALID;
    sheaf__cuda_batch batch;
    SHEAF__TRY(sheaf__cuda_plan_tables(plan, layer, &batch));
    for (uint32_t i = 0; i < batch.n_items; i++)
        if (!is_held(&batch.host[i], batch.window, layer->block_tokens)) return SHEAF_E_PLAN;
    return sheaf__cuda_gather_batch(&batch, layer, k, v, stream);
}
