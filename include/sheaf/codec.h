/* sheaf/codec.h - how the numbers of K and V are stored in a tile.
 *
 * Owns: the list of codecs, the byte sizes that follow from them, and encoding and decoding of
 * rows. Does not own: blocks, sequences, memory.
 *
 * A tile holds one layer's K (or V) for `block_tokens` positions: [n_kv_heads, block_tokens, dim].
 * Per head it is one contiguous segment of sheaf_codec_segment_bytes() bytes:
 *
 *     f32, f16, bf16   [block_tokens][dim] numbers, little-endian
 *
 * Codecs that need side data (scales, norms) keep it inside the segment, so that it is shared,
 * copied, saved and freed with the numbers.
 *
 * Narrowing is by integer round to nearest, ties to even, on every instruction set: overflow gives
 * infinity, denormals are kept, NaN stays NaN (quieted, payload truncated). Widening is exact.
 */
#ifndef SHEAF_CODEC_H
#define SHEAF_CODEC_H

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHEAF_CODEC_F32 = 0, SHEAF_CODEC_F16 = 1, SHEAF_CODEC_BF16 = 2 };
#define SHEAF_CODEC_COUNT 3

/* "f32", "f16", "bf16"; null for an unknown codec. Any thread. */
SHEAF_API const char *sheaf_codec_name(uint32_t codec);

/* The codec of a name. SHEAF_E_CODEC: none has it. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_from_name(const char *name, uint32_t *codec);

/* Bytes of one head's segment of `block_tokens` positions of `dim` numbers. 0 when dim is 0.
 * SHEAF_E_CODEC, SHEAF_E_OVERFLOW. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_segment_bytes(uint32_t codec,
                                                            uint32_t block_tokens, uint32_t dim,
                                                            uint64_t *bytes);

/* Encodes `n` positions of one head into a segment, from slot `first_slot` on.
 *   segment: one head's segment of block_tokens positions
 *   src:     [n, dim] of `dtype`, consecutive positions `src_stride` elements apart
 * Source numbers are widened exactly to f32, then narrowed as the codec says; a source of the
 * codec's own type is copied byte for byte. Neither pointer need be aligned; they do not overlap.
 * SHEAF_E_CODEC; SHEAF_E_INVALID: dtype, or first_slot + n > block_tokens. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_encode(uint32_t codec, void *segment,
                                                     uint32_t block_tokens, uint32_t dim,
                                                     uint32_t first_slot, uint32_t n,
                                                     uint32_t dtype, const void *src,
                                                     uint64_t src_stride);

/* Decodes `n` positions of one head from slot `first_slot` on into dst: [n, dim] f32, dense.
 * SHEAF_E_CODEC; SHEAF_E_INVALID: first_slot + n > block_tokens. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_codec_decode(uint32_t codec, const void *segment,
                                                     uint32_t block_tokens, uint32_t dim,
                                                     uint32_t first_slot, uint32_t n,
                                                     float *dst);

#ifdef __cplusplus
}
#endif
#endif
