/* attn/cuda/tensor_map.h - K or V of a layer as Hopper's copy engine sees them.
 *
 * A tensor map covers the whole range of a group: [row][head][token of a block][byte]. A copy is some
 * bytes of some tokens of one block, which it leaves in shared memory row by row, 16-byte chunks
 * swizzled: with `width` bytes a row, chunk c of the row that lies r rows of `width` bytes from an
 * address aligned to 8 * width is where chunk c ^ (r * width / 128 % (width / 16)) was. What lies
 * outside the map is zeros.
 */
#ifndef SHEAF_ATTN_CUDA_TENSOR_MAP_H
#define SHEAF_ATTN_CUDA_TENSOR_MAP_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf__cuda_tiles {
    const void *base; /* of head 0 in row 0; aligned to 16 bytes, as are the strides */
    uint64_t head_stride, row_stride;
    uint32_t n_heads, block_tokens;
    uint32_t token_bytes;
    uint32_t width, tokens; /* of a copy; width: 32, 64 or 128 bytes */
} sheaf__cuda_tiles;

/* false: this driver makes no such map. Calls no GPU. */
bool sheaf__cuda_map_tiles(CUtensorMap *map, const sheaf__cuda_tiles *tiles);

#ifdef __cplusplus
}
#endif
#endif
