/* attn/cuda/prefill.cu - which prefill kernel computes what. */
#include "attn/cuda/prefill.h"

#include "attn/cuda/prefill_kernels.h"

/* Whether 16-byte pieces of every segment are aligned. */
static bool is_aligned(const sheaf_kv_view *view)
{
    uint64_t all = (uint64_t)(uintptr_t)view->base | view->row_stride_k | view->row_stride_v |
                   view->k_offset | view->v_offset | view->k_head_stride | view->v_head_stride;
    return all % 16 == 0;
}

static bool is_shape(const sheaf_kv_view *view)
{
    bool dim = view->key_dim == 64 || view->key_dim == 128 || view->key_dim == 256;
    return dim && view->key_dim == view->value_dim && view->codec_k == view->codec_v &&
           view->codec_k != SHEAF_CODEC_F32 && is_aligned(view);
}

/* f32 queries want more than one bf16 for each number; a tensor map wants an address, which a pool
 * that holds nothing need not have. */
static bool is_wgmma_shape(const sheaf_kv_view *view, uint32_t io_dtype)
{
    bool f16 = view->codec_k == SHEAF_CODEC_F16, bf16 = view->codec_k == SHEAF_CODEC_BF16;
    return (f16 || (bf16 && io_dtype != SHEAF_DTYPE_F32)) && view->block_tokens >= 8 &&
           view->base != NULL;
}

/* Of two kernels for bf16 and f16 the one that was faster (docs/perf-log.md). */
uint32_t sheaf__cuda_prefill_kernel(const sheaf_kv_view *view, uint32_t io_dtype,
                                    uint32_t kernel)
{
    if (!is_shape(view)) return SHEAF__CUDA_PREFILL_BEST;
    if (kernel == SHEAF__CUDA_PREFILL_MMA) return kernel;
    bool wgmma = is_wgmma_shape(view, io_dtype);
    if (kernel != SHEAF__CUDA_PREFILL_BEST) return wgmma ? kernel : 0u;
    if (!wgmma) return SHEAF__CUDA_PREFILL_MMA;
    return view->key_dim == 256 ? SHEAF__CUDA_PREFILL_WGMMA : SHEAF__CUDA_PREFILL_PINGPONG;
}

uint32_t sheaf__cuda_prefill_rows(const sheaf_kv_view *view, uint32_t io_dtype, uint32_t kernel)
{
    switch (sheaf__cuda_prefill_kernel(view, io_dtype, kernel)) {
    case SHEAF__CUDA_PREFILL_BEST: return 0;
    case SHEAF__CUDA_PREFILL_MMA: return view->key_dim == 256 ? 64 : 128;
    default: return SHEAF__CUDA_PREFILL_WGMMA_ROWS;
    }
}

sheaf_status sheaf__cuda_prefill_run(const sheaf__cuda_prefill *layer, void *stream)
{
    uint32_t kernel = sheaf__cuda_prefill_kernel(&layer->view, layer->io_dtype, layer->kernel);
    if (kernel == SHEAF__CUDA_PREFILL_BEST) return SHEAF_E_UNSUPPORTED;
    if (((uintptr_t)layer->q | (uintptr_t)layer->out) % 16 != 0) return SHEAF_E_INVALID;
    if (layer->n_tiles == 0) return SHEAF_OK;
    sheaf__cuda_prefill one = *layer;
    one.kernel = kernel;
    if (kernel != SHEAF__CUDA_PREFILL_MMA)
        return sheaf__cuda_prefill_wgmma(&one, (cudaStream_t)stream);
    switch (layer->view.codec_k) {
    case SHEAF_CODEC_BF16: return sheaf__cuda_prefill_mma_bf16(&one, (cudaStream_t)stream);
    case SHEAF_CODEC_F16: return sheaf__cuda_prefill_mma_f16(&one, (cudaStream_t)stream);
    case SHEAF_CODEC_INT8: return sheaf__cuda_prefill_mma_int8(&one, (cudaStream_t)stream);
    default: return sheaf__cuda_prefill_mma_turbo4(&one, (cudaStream_t)stream);
    }
}
