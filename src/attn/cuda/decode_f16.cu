// attn/cuda/decode_f16.cu - the decode kernels for K and V stored as f16.
#include "attn/cuda/decode_kernels.h"
#include "attn/cuda/decode_launch.cuh"

cudaError_t sheaf__cuda_decode_f16(const sheaf__cuda_decode *layer, cudaStream_t stream)
{
    return sheaf_cuda::run_codec<sheaf_cuda::F16>(*layer, stream);
}
