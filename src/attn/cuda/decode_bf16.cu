// attn/cuda/decode_bf16.cu - the decode kernels for K and V stored as bf16.
#include "attn/cuda/decode_kernels.h"
#include "attn/cuda/decode_launch.cuh"

cudaError_t sheaf__cuda_decode_bf16(const sheaf__cuda_decode *layer, cudaStream_t stream)
{
    return sheaf_cuda::run_codec<sheaf_cuda::BF16>(*layer, stream);
}
