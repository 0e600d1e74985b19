/* attn/cuda/prefill_mma_f16.cu - the instances of prefill_mma.cuh for f16. */
#include "attn/cuda/prefill_mma.cuh"
#include "attn/cuda/prefill_kernels.h"

sheaf_status sheaf__cuda_prefill_mma_f16(const sheaf__cuda_prefill *layer, cudaStream_t stream)
{
    return dispatch_mma<SHEAF_CODEC_F16>(layer, stream);
}
