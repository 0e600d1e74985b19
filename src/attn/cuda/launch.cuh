// attn/cuda/launch.cuh - a kernel queued on a stream.
#ifndef SHEAF_ATTN_CUDA_LAUNCH_CUH
#define SHEAF_ATTN_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "attn/cuda/decode.h"

namespace sheaf_cuda
{

// early: before the kernel ahead of it in the stream has ended (wait_for_previous).
template <typename K, typename... A>
static cudaError_t launch(K kernel, uint32_t grid, dim3 block, size_t shared,
                          cudaStream_t stream, bool early, A... args)
{
    // the most there is, whatever this launch takes: graphs of other plans launch the kernel, too
    cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHEAF__CUDA_MAX_SHARED);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid), config.blockDim = block;
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

} // namespace sheaf_cuda

#endif
