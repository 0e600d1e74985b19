/* attn/cuda/prefill_mma_turbo4.cu - the instances of prefill_mma.cuh for turbo4. */
#include "attn/cuda/prefill_mma.cuh"
#include "attn/cuda/prefill_kernels.h"

sheaf_status sheaf__cuda_prefill_mma_turbo4(const sheaf__cuda_prefill *layer,
                                            cudaStream_t stream)
{
    return dispatch_mma<SHEAF_CODEC_TURBO4>(layer, stream);
}
