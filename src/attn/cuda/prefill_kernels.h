/* attn/cuda/prefill_kernels.h - what prefill.cu chooses from. Each queues one layer. */
#ifndef SHEAF_ATTN_CUDA_PREFILL_KERNELS_H
#define SHEAF_ATTN_CUDA_PREFILL_KERNELS_H

#include "attn/cuda/prefill.h"

#include <cuda_runtime.h>

#define SHEAF__CUDA_PREFILL_WGMMA_ROWS 128

sheaf_status sheaf__cuda_prefill_mma_bf16(const sheaf__cuda_prefill *layer,
                                          cudaStream_t stream);
sheaf_status sheaf__cuda_prefill_mma_f16(const sheaf__cuda_prefill *layer, cudaStream_t stream);
sheaf_status sheaf__cuda_prefill_mma_int8(const sheaf__cuda_prefill *layer,
                                          cudaStream_t stream);
sheaf_status sheaf__cuda_prefill_mma_turbo4(const sheaf__cuda_prefill *layer,
                                            cudaStream_t stream);

/* bf16 and f16 on Hopper; SHEAF_E_UNSUPPORTED: the driver makes no tensor map of the view. */
sheaf_status sheaf__cuda_prefill_wgmma(const sheaf__cuda_prefill *layer, cudaStream_t stream);

#endif
