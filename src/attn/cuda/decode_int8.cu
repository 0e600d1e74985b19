// attn/cuda/decode_int8.cu - the decode kernels for K and V stored as int8.
#include "attn/cuda/decode_kernels.h"
#include "attn/cuda/decode_launch.cuh"

cudaError_t sheaf__cuda_decode_int8(const sheaf__cuda_decode *layer, cudaStream_t stream)
{
    return sheaf_cuda::run_codec<sheaf_cuda::INT8>(*layer, stream);
}
