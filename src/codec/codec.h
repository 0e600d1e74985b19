/* codec/codec.h - what floors above do to encoded rows besides sheaf/codec.h. */
#ifndef SHEAF_CODEC_CODEC_H
#define SHEAF_CODEC_CODEC_H

#include <stdbool.h>

#include "sheaf/codec.h"

/* The levels of turbo4's codes; see docs/format.md. */
extern const int8_t sheaf__turbo4_levels[16];

static inline bool sheaf__codec_is_quantized(uint32_t codec)
{
    return codec == SHEAF_CODEC_INT8 || codec == SHEAF_CODEC_TURBO4;
}

/* Bytes of one position's numbers or codes, its scale not counted; `codec` is known. */
static inline uint64_t sheaf__codec_row_bytes(uint32_t codec, uint32_t dim)
{
    if (codec == SHEAF_CODEC_F32) return 4ull * dim;
    if (codec == SHEAF_CODEC_INT8) return dim;
    if (codec == SHEAF_CODEC_TURBO4) return ((uint64_t)dim + 1) / 2;
    return 2ull * dim;
}

/* The rotation of turbo4 and its inverse, in place; x: [dim], dim <= SHEAF_CODEC_MAX_DIM. The caller
 * has set the default floating-point environment. Any thread. */
void sheaf__turbo4_rotate(float *x, uint32_t dim);
void sheaf__turbo4_unrotate(float *x, uint32_t dim);

/* Zeroes all that a segment holds of positions [first_slot, first_slot + n), numbers and side data.
 * SHEAF_E_CODEC; SHEAF_E_INVALID: first_slot + n > block_tokens. */
SHEAF_WARN sheaf_status sheaf__codec_clear(uint32_t codec, void *segment, uint32_t block_tokens,
                                           uint32_t dim, uint32_t first_slot, uint32_t n);

#endif
