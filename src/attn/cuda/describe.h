/* attn/cuda/describe.h - whether this build's kernels run on a GPU. */
#ifndef SHEAF_ATTN_CUDA_DESCRIBE_H
#define SHEAF_ATTN_CUDA_DESCRIBE_H

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* SHEAF_E_UNSUPPORTED: no driver, no such GPU, or one that the kernels are not built for.
 * SHEAF_E_DEVICE. */
SHEAF_WARN sheaf_status sheaf__cuda_kernels_run(uint32_t ordinal, sheaf_error *err);

#ifdef __cplusplus
}
#endif
#endif
