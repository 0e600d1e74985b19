/* attn/cuda/describe.cu - whether this build's kernels run on a GPU. */
#include "attn/cuda/describe.h"

#include "base/cuda_error.h"
#include "base/status.h"

/* Does nothing: there is code for it on the GPU, or there is not. */
__global__ void sheaf__cuda_probe() {}

sheaf_status sheaf__cuda_kernels_run(uint32_t ordinal, sheaf_error *err)
{
    int before = 0;
    SHEAF__TRY(sheaf__cuda_status(cudaGetDevice(&before), "no GPU", err));
    SHEAF__TRY(sheaf__cuda_status(cudaSetDevice((int)ordinal), "no such GPU", err));
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, sheaf__cuda_probe);
    (void)cudaSetDevice(before);
    return sheaf__cuda_status(error, "the kernels are built for compute capability 9.0", err);
}
