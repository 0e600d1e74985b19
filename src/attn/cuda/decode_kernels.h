/* attn/cuda/decode_kernels.h - what decode.cu chooses from. Each queues one layer of its codec. */
#ifndef SHEAF_ATTN_CUDA_DECODE_KERNELS_H
#define SHEAF_ATTN_CUDA_DECODE_KERNELS_H

#include <cuda_runtime_api.h>

#include "attn/cuda/decode.h"

cudaError_t sheaf__cuda_decode_bf16(const sheaf__cuda_decode *layer, cudaStream_t stream);
cudaError_t sheaf__cuda_decode_f16(const sheaf__cuda_decode *layer, cudaStream_t stream);
cudaError_t sheaf__cuda_decode_int8(const sheaf__cuda_decode *layer, cudaStream_t stream);
cudaError_t sheaf__cuda_decode_turbo4(const sheaf__cuda_decode *layer, cudaStream_t stream);

#endif
