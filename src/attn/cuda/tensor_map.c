/* attn/cuda/tensor_map.c - the driver's encoding of a tensor map. */
#include "attn/cuda/tensor_map.h"

#include <stddef.h>

#include "base/cuda_driver.h"

/* Beyond what any pool can hold. */
#define MAX_ROWS (1u << 30)

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

bool sheaf__cuda_map_tiles(CUtensorMap *map, const sheaf__cuda_tiles *t)
{
    const cuuint64_t dims[4] = {t->token_bytes, t->block_tokens, t->n_heads, MAX_ROWS};
    // NVIDIA asks that each be a multiple of the one before; drivers do not, where a segment has scales
    const cuuint64_t strides[3] = {t->token_bytes, t->head_stride, t->row_stride};
    const cuuint32_t box[4] = {t->width, t->tokens, 1, 1}, steps[4] = {1, 1, 1, 1};
    const CUtensorMapSwizzle swizzle = t->width == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : t->width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                        : CU_TENSOR_MAP_SWIZZLE_32B;
    static void *kept = NULL;
    encode_fn *encode = NULL;
    return sheaf__cuda_kept_call(&kept, "cuTensorMapEncodeTiled", &encode) &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, (void *)(uintptr_t)t->base, dims,
                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
