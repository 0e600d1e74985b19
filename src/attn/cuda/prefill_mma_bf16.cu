/* attn/cuda/prefill_mma_bf16.cu - the instances of prefill_mma.cuh for bf16. */
#include "attn/cuda/prefill_mma.cuh"
#include "attn/cuda/prefill_kernels.h"

sheaf_status sheaf__cuda_prefill_mma_bf16(const sheaf__cuda_prefill *layer, cudaStream_t stream)
{
    return dispatch_mma<SHEAF_CODEC_BF16>(layer, stream);
}
