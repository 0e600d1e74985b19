/* base/cuda_error.c - CUDA's errors as statuses. */
#include "base/cuda_error.h"

#include "base/status.h"

static sheaf_status status_of(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return SHEAF_OK;
    case cudaErrorMemoryAllocation: return SHEAF_E_NO_MEMORY;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported: return SHEAF_E_UNSUPPORTED;
    default: return SHEAF_E_DEVICE;
    }
}

sheaf_status sheaf__cuda_status(cudaError_t error, const char *what, sheaf_error *err)
{
    if (error == cudaSuccess) return SHEAF_OK;
    (void)cudaGetLastError(); /* it is told here, and not to the next caller too */
    return sheaf__error_set(err, status_of(error), "%s: %s", what, cudaGetErrorString(error));
}

sheaf_status sheaf__cuda_launched(const char *what, sheaf_error *err)
{
    return sheaf__cuda_status(cudaGetLastError(), what, err);
}
