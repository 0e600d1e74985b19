// emulated: a kernel run at once.
#ifndef SHEAF_ATTN_CUDA_LAUNCH_CUH
#define SHEAF_ATTN_CUDA_LAUNCH_CUH

#include "attn/cuda/decode.h"
#include "runtime.h"

namespace sheaf_cuda
{

template <typename K, typename... A>
static cudaError_t launch(K kernel, uint32_t grid, dim3 block, size_t shared, cudaStream_t,
                          bool, A... args)
{
    if (shared > emulated::SHARED) return cudaErrorInvalidValue;
    emulated::queue([=] { emulated::run([=] { kernel(args...); }, grid, block.x); });
    return cudaSuccess;
}

} // namespace sheaf_cuda

#endif
