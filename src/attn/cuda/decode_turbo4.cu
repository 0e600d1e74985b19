// attn/cuda/decode_turbo4.cu - the decode kernels for K and V stored as turbo4.
#include "attn/cuda/decode_kernels.h"
#include "attn/cuda/decode_launch.cuh"

cudaError_t sheaf__cuda_decode_turbo4(const sheaf__cuda_decode *layer, cudaStream_t stream)
{
    return sheaf_cuda::run_codec<sheaf_cuda::TURBO4>(*layer, stream);
}
