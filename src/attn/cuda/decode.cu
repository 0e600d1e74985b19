// attn/cuda/decode.cu - which decode kernels a layer takes.
#include "attn/cuda/decode_kernels.h"

#include "base/cuda_error.h"

sheaf_status sheaf__cuda_decode_check(const sheaf_kv_view *view, uint32_t io_dtype)
{
    const uint32_t dim = view->key_dim, tokens = view->block_tokens;
    if (io_dtype > SHEAF_DTYPE_BF16) return SHEAF_E_UNSUPPORTED;
    if (dim != view->value_dim || (dim != 64 && dim != 128 && dim != 256))
        return SHEAF_E_UNSUPPORTED;
    if (tokens != 16 && tokens != 32 && tokens != 64) return SHEAF_E_UNSUPPORTED;
    if (view->codec_k != view->codec_v || view->codec_k == SHEAF_CODEC_F32)
        return SHEAF_E_UNSUPPORTED;
    // bulk copies: 16 bytes are the grain of addresses
    const uint64_t all = (uint64_t)(uintptr_t)view->base | view->row_stride_k |
                         view->row_stride_v | view->k_offset | view->v_offset |
                         view->k_head_stride | view->v_head_stride;
    return all % 16 == 0 ? SHEAF_OK : SHEAF_E_UNSUPPORTED;
}

sheaf_status sheaf__cuda_decode_run(const sheaf__cuda_decode *layer, void *stream)
{
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    cudaError_t error = cudaErrorInvalidValue;
    switch (layer->codec) {
    case SHEAF_CODEC_F16: error = sheaf__cuda_decode_f16(layer, on); break;
    case SHEAF_CODEC_BF16: error = sheaf__cuda_decode_bf16(layer, on); break;
    case SHEAF_CODEC_INT8: error = sheaf__cuda_decode_int8(layer, on); break;
    case SHEAF_CODEC_TURBO4: error = sheaf__cuda_decode_turbo4(layer, on); break;
    default: break;
    }
    return sheaf__cuda_status(error, "decode", nullptr);
}
