/* cache/progress.h - the life of positions: reserved, written, committed.
 *
 * Owns: the counts, and the rules of sheaf/cache.h about them, for the paged sequence and the
 * dense buffer alike. Does not own: where the numbers lie.
 *
 *     0            length        written[layer]      length + reserved
 *     | committed ...|... written ....|... reserved only ...|
 *
 * Invariants: length <= written[layer] <= length + reserved <= INT32_MAX for every layer; so
 * what lay there before a truncation never counts as written.
 */
#ifndef SHEAF_CACHE_PROGRESS_H
#define SHEAF_CACHE_PROGRESS_H

#include "base/bits.h"
#include "base/status.h"

typedef struct sheaf__progress {
    uint32_t length;
    uint32_t reserved;
    uint32_t n_layers;
    uint32_t *written; /* [n_layers], absolute ends; memory of whoever holds this */
} sheaf__progress;

/* The end of the positions once n are reserved. SHEAF_E_OVERFLOW: beyond 2^31 - 1. */
static inline sheaf_status sheaf__progress_end(const sheaf__progress *progress, uint32_t n,
                                               uint32_t *end)
{
    uint32_t more = n > progress->reserved ? n : progress->reserved;
    uint64_t wanted = (uint64_t)progress->length + more;
    if (wanted > INT32_MAX) return SHEAF_E_OVERFLOW;
    *end = (uint32_t)wanted;
    return SHEAF_OK;
}

/* Whether a layer may write [pos, pos + n) now. SHEAF_E_INVALID, SHEAF_E_RANGE. */
static inline sheaf_status sheaf__progress_may_write(const sheaf__progress *progress,
                                                     uint32_t layer, uint32_t pos, uint32_t n)
{
    if (layer >= progress->n_layers) return SHEAF_E_INVALID;
    uint64_t reserved_end = (uint64_t)progress->length + progress->reserved;
    if (pos < progress->length || pos > progress->written[layer]) return SHEAF_E_RANGE;
    return (uint64_t)pos + n <= reserved_end ? SHEAF_OK : SHEAF_E_RANGE;
}

static inline void sheaf__progress_wrote(sheaf__progress *progress, uint32_t layer,
                                         uint32_t end)
{
    if (progress->written[layer] < end) progress->written[layer] = end;
}

/* Whether n positions may join now. SHEAF_E_RANGE, SHEAF_E_UNWRITTEN. */
static inline sheaf_status sheaf__progress_may_commit(const sheaf__progress *progress,
                                                      uint32_t n)
{
    if (n > progress->reserved) return SHEAF_E_RANGE;
    for (uint32_t layer = 0; layer < progress->n_layers; layer++)
        if (progress->written[layer] < progress->length + n) return SHEAF_E_UNWRITTEN;
    return SHEAF_OK;
}

/* Makes `length` the committed length and closes the reservation. */
static inline void sheaf__progress_settle(sheaf__progress *progress, uint32_t length)
{
    progress->length = length;
    progress->reserved = 0;
    for (uint32_t layer = 0; layer < progress->n_layers; layer++)
        progress->written[layer] = length;
}

/* The first of `length` positions that the last one sees; a next one sees no earlier one. */
static inline uint32_t sheaf__visible_begin(uint32_t length, uint32_t window)
{
    return window != 0 && length > window ? length - window : 0;
}

/* Blocks that [0, end) takes. */
static inline uint32_t sheaf__blocks_of(uint32_t end, uint32_t block_tokens)
{
    return (uint32_t)sheaf__ceil_div_u64(end, block_tokens);
}

#endif
