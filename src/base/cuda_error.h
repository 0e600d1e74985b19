/* base/cuda_error.h - CUDA's errors as statuses.
 *
 * Owns: the one place where an error of the runtime's or the driver's becomes a status and a
 * sentence. For C and for C++ (kernels).
 */
#ifndef SHEAF_BASE_CUDA_ERROR_H
#define SHEAF_BASE_CUDA_ERROR_H

#include <cuda_runtime_api.h>

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* SHEAF_OK for cudaSuccess; SHEAF_E_NO_MEMORY where memory is short, SHEAF_E_UNSUPPORTED where
 * there is no driver, no such GPU or no code for it, SHEAF_E_DEVICE for the rest. Writes "<what>:
 * <CUDA's own text>" to err, which may be null, and clears CUDA's last error. */
SHEAF_WARN sheaf_status sheaf__cuda_status(cudaError_t error, const char *what,
                                           sheaf_error *err);

/* The same of what launches have left in this thread. */
SHEAF_WARN sheaf_status sheaf__cuda_launched(const char *what, sheaf_error *err);

#ifdef __cplusplus
}
#endif
#endif
