/* attn/levels.h - query rows as integers, laid as the SIMD forms of quantized keys meet them.
 *
 * A score of a quantized key is an exact sum of integers, which may be added in any order. The
 * order here is the one in which unpacking 32 codes leaves them:
 *
 *     int8     0 1 2 3 .. 31
 *     turbo4   the low halves of sixteen bytes, then the high ones: 0 2 4 .. 30, 1 3 5 .. 31
 *
 * Behind the end of a row lie zeros up to a whole step of 32, so that whatever unpacking a key
 * finds there counts for nothing.
 */
#ifndef SHEAF_ATTN_LEVELS_H
#define SHEAF_ATTN_LEVELS_H

#include <math.h>
#include <string.h>

#include "attn/kernels.h"
#include "codec/codec.h"

#define SHEAF__LEVELS_STEP 32
#define SHEAF__LEVELS_MOST 32767 /* of a query; 512 of them times 127 stay below 2^31 */

static inline uint32_t sheaf__levels_padded(uint32_t dim)
{
    return (dim + SHEAF__LEVELS_STEP - 1) & ~(uint32_t)(SHEAF__LEVELS_STEP - 1);
}

/* The levels of all rows in the scratch, aligned. */
static inline int16_t *sheaf__levels_queries(const sheaf__attn_split *in)
{
    return (int16_t *)(void *)(in->scratch + sheaf__attn_scratch_queries());
}

/* Their units, [SHEAF__ATTN_ROWS], aligned. */
static inline float *sheaf__levels_units(const sheaf__attn_split *in)
{
    return in->scratch + sheaf__attn_scratch_units(in->key_dim);
}

/* Where element d of a row lies. */
static inline uint32_t sheaf__levels_place(uint32_t codec, uint32_t d)
{
    if (codec != SHEAF_CODEC_TURBO4) return d;
    return d / 32 * 32 + d % 2 * 16 + d % 32 / 2;
}

/* The levels of one query row, rotated as the keys are; returns their unit.
 * levels: [sheaf__levels_padded(dim)] */
static inline float sheaf__levels_of(uint32_t codec, const float *q, uint32_t dim,
                                     int16_t *levels)
{
    float x[SHEAF_ATTN_MAX_DIM], most = 0.0f;
    memcpy(x, q, dim * sizeof *x);
    if (codec == SHEAF_CODEC_TURBO4) sheaf__turbo4_rotate(x, dim);
    for (uint32_t d = 0; d < dim; d++) most = fabsf(x[d]) > most ? fabsf(x[d]) : most;
    const float unit = most / (float)SHEAF__LEVELS_MOST, top = (float)SHEAF__LEVELS_MOST;
    memset(levels, 0, sheaf__levels_padded(dim) * sizeof *levels);
    for (uint32_t d = 0; d < dim && unit != 0.0f; d++) {
        float level = rintf(x[d] / unit);
        level = level > -top ? level : -top; /* a NaN, too */
        level = level < top ? level : top;
        levels[sheaf__levels_place(codec, d)] = (int16_t)level;
    }
    return unit;
}

/* The query rows of a tile, and their units (0 behind the last). stride 0, few rows: [row][padded];
 * else many: `group` elements of a row lie together, [padded / group][stride][group]. */
static inline void sheaf__levels_pack(const sheaf__attn_split *in, uint32_t stride,
                                      const uint32_t group)
{
    const uint32_t padded = sheaf__levels_padded(in->key_dim);
    int16_t *q = sheaf__levels_queries(in), row[SHEAF_ATTN_MAX_DIM];
    float *units = sheaf__levels_units(in);
    memset(units, 0, SHEAF__ATTN_ROWS * sizeof *units);
    memset(q, 0, (size_t)stride * padded * sizeof *q);
    for (uint32_t r = 0; r < in->n_rows; r++) {
        int16_t *to = stride == 0 ? q + (size_t)r * padded : row;
        units[r] = sheaf__levels_of(in->codec_k, in->q[r], in->key_dim, to);
        for (uint32_t d = 0; d < padded && stride != 0; d++)
            q[((size_t)(d / group) * stride + r) * group + d % group] = row[d];
    }
}

#endif
