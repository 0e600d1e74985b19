/* sheaf/codec.h - how the numbers of K and V are stored in a tile.
 *
 * Owns: the list of codecs, the byte sizes that follow from them, and encoding and decoding of
 * rows. Does not own: blocks, sequences, memory.
 *
 * A tile holds one layer's K (or V) for `block_tokens` positions: [n_kv_heads, block_tokens, dim].
 * Per head it is one contiguous segment of sheaf_codec_segment_bytes() bytes:
 *
 *     f32, f16, bf16   [block_tokens][dim] numbers, little-endian
 *     int8             [block_tokens][dim] bytes, then [block_tokens] f32 scales
 *     turbo4           [block_tokens][(dim + 1) / 2] bytes, then [block_tokens] f32 scales
 *
 * The first three are raw, the others quantized: their side data lies inside the segment, so that
 * it is shared, copied, saved and freed with the numbers. docs/format.md defines both to the bit.
 *
 * Narrowing to a raw codec is by integer round to nearest, ties to even, on every instruction set:
 * overflow gives infinity, denormals are kept, NaN stays NaN (quieted, payload truncated). Widening
 * is exact.
 *
 * What quantized rows lose, as tests/codec/test_quantized_rows.c has it: int8 misses no number by
 * more than 1/253 of the row's largest magnitude, if that is at least 2^-118. The norm of turbo4's
 * error is a tenth of the row's: in rows of 64 numbers and more 0.115 on average and 0.25 at most.
 * Where the dimension is no power of two, a few numbers much larger than the others are not spread as
 * well (0.35 and 0.5); 0.8 is not passed even by rows made to be uneven after the rotation. A row with
 * one number that is not zero is kept to within rounding if its dimension is a power of two.
 *
 * A quantized row that holds a NaN or an infinity decodes to NaN throughout; a zero row to zeros.
 */
#ifndef SHEAF_CODEC_H
#define SHEAF_CODEC_H

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SHEAF_CODEC_F32 = 0, /* the raw codecs are numbered like the element types */
    SHEAF_CODEC_F16 = 1,
    SHEAF_CODEC_BF16 = 2,
    SHEAF_CODEC_INT8 = 3,  /* one byte a number, one scale a row */
    SHEAF_CODEC_TURBO4 = 4 /* rotated, then half a byte a number, one scale a row */
};
#define SHEAF_CODEC_COUNT 5

#define SHEAF_CODEC_MAX_DIM 512 /* numbers of a row that quantized codecs take */

/* "f32", "f16", "bf16", "int8", "turbo4"; null for an unknown codec. Any thread. */
SHEAF_API const char *sheaf_codec_name(uint32_t codec);

/* The codec of a name. SHEAF_E_CODEC: none has it. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_from_name(const char *name, uint32_t *codec);

/* 1 for codecs of levels and scales, 0 for raw and unknown ones. Any thread. */
SHEAF_API uint32_t sheaf_codec_is_quantized(uint32_t codec);

/* Bytes of one position's numbers or codes, without its scale. In a segment position s of a block
 * has its codes at s * row_bytes, and its scale (quantized codecs, an f32 that need not be aligned)
 * at block_tokens * row_bytes + 4 * s.
 * SHEAF_E_CODEC: unknown, or quantized and dim > SHEAF_CODEC_MAX_DIM. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_row_bytes(uint32_t codec, uint32_t dim,
                                                        uint64_t *bytes);

/* Bytes of one head's segment of `block_tokens` positions of `dim` numbers. 0 when dim is 0.
 * SHEAF_E_CODEC: as sheaf_codec_row_bytes. SHEAF_E_OVERFLOW. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_segment_bytes(uint32_t codec,
                                                            uint32_t block_tokens, uint32_t dim,
                                                            uint64_t *bytes);

/* Encodes `n` positions of one head into a segment, from slot `first_slot` on.
 *   segment: one head's segment of block_tokens positions
 *   src:     [n, dim] of `dtype`, consecutive positions `src_stride` elements apart
 * Source numbers are widened exactly to f32, then narrowed as the codec says; for a raw codec a
 * source of its own type is copied byte for byte. Neither pointer need be aligned; they do not overlap.
 * SHEAF_E_CODEC; SHEAF_E_INVALID: dtype, or first_slot + n > block_tokens. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_encode(uint32_t codec, void *segment,
                                                     uint32_t block_tokens, uint32_t dim,
                                                     uint32_t first_slot, uint32_t n,
                                                     uint32_t dtype, const void *src,
                                                     uint64_t src_stride);

/* Decodes `n` positions of one head from slot `first_slot` on into dst: [n, dim] f32, dense (turbo4
 * rotated back).
 * SHEAF_E_CODEC; SHEAF_E_INVALID: first_slot + n > block_tokens. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_decode(uint32_t codec, const void *segment,
                                                     uint32_t block_tokens, uint32_t dim,
                                                     uint32_t first_slot, uint32_t n,
                                                     float *dst);

#ifdef __cplusplus
}
#endif
#endif
