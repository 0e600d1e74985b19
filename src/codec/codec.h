/* codec/codec.h - what floors above do to encoded rows besides sheaf/codec.h. */
#ifndef SHEAF_CODEC_CODEC_H
#define SHEAF_CODEC_CODEC_H

#include "sheaf/codec.h"

/* Zeroes all that a segment holds of positions [first_slot, first_slot + n), numbers and side data.
 * SHEAF_E_CODEC; SHEAF_E_INVALID: first_slot + n > block_tokens. */
SHEAF_WARN sheaf_status sheaf__codec_clear(uint32_t codec, void *segment, uint32_t block_tokens,
                                           uint32_t dim, uint32_t first_slot, uint32_t n);

#endif
