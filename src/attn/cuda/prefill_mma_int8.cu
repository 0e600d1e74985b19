/* attn/cuda/prefill_mma_int8.cu - the instances of prefill_mma.cuh for int8. */
#include "attn/cuda/prefill_mma.cuh"
#include "attn/cuda/prefill_kernels.h"

sheaf_status sheaf__cuda_prefill_mma_int8(const sheaf__cuda_prefill *layer, cudaStream_t stream)
{
    return dispatch_mma<SHEAF_CODEC_INT8>(layer, stream);
}
