/* attn/kernels_scalar.c - the defined order of attention, one number after the other.
 *
 * Written from the text at the head of sheaf/attn.h; what the vector forms are measured against.
 * Nothing here is meant to be fast.
 */
#include <math.h>
#include <string.h>

#include "attn/kernels.h"
#include "base/fmath.h"
#include "base/half.h"
#include "codec/codec.h"

#define LANES     16
#define MAX_LEVEL 32767 /* of a query */

/* Number i of a row of a raw codec. */
static float number(uint32_t codec, const unsigned char *row, uint32_t i)
{
    if (codec == SHEAF_CODEC_F32) {
        float x;
        memcpy(&x, row + (size_t)i * 4, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, row + (size_t)i * 2, 2);
    return codec == SHEAF_CODEC_F16 ? sheaf__f32_of_f16(h) : sheaf__f32_of_bf16(h);
}

/* (i, i+8) (i, i+4) (i, i+2) (i, i+1); uses the lanes up. */
static float lanes_sum(float lanes[LANES])
{
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

/* Level i of a row of a quantized codec. */
static int32_t level(uint32_t codec, const unsigned char *row, uint32_t i)
{
    if (codec == SHEAF_CODEC_INT8) return row[i] < 128 ? row[i] : row[i] - 256;
    uint32_t code = i % 2 == 0 ? row[i / 2] & 15u : row[i / 2] >> 4;
    return sheaf__turbo4_levels[code];
}

/* The levels of the query rows, [n_rows, padded key_dim], and their units, [n_rows]. */
static int16_t *query_levels(const sheaf__attn_split *in)
{
    return (int16_t *)(void *)(in->scratch + sheaf__attn_scratch_queries());
}

static float *query_units(const sheaf__attn_split *in)
{
    return in->scratch + sheaf__attn_scratch_units(in->key_dim);
}

static float raw_score(const sheaf__attn_split *in, const float *q, const unsigned char *k)
{
    float lanes[LANES] = {0};
    for (uint32_t d = 0; d < sheaf__attn_padded(in->key_dim); d++) {
        int inside = d < in->key_dim;
        float a = inside ? q[d] : 0.0f;
        float b = inside ? number(in->codec_k, k, d) : 0.0f;
        lanes[d % LANES] = fmaf(a, b, lanes[d % LANES]);
    }
    return lanes_sum(lanes) * in->scale;
}

static float quantized_score(const sheaf__attn_split *in, uint32_t row, uint32_t p)
{
    const int16_t *q = query_levels(in) + (size_t)row * sheaf__attn_padded(in->key_dim);
    int32_t sum = 0;
    for (uint32_t d = 0; d < in->key_dim; d++) sum += q[d] * level(in->codec_k, in->k[p], d);
    float s = (float)sum * in->k_scale[p];
    return s * (query_units(in)[row] * in->scale);
}

static float score(const sheaf__attn_split *in, uint32_t row, uint32_t p)
{
    float s = sheaf__codec_is_quantized(in->codec_k) ? quantized_score(in, row, p)
                                                     : raw_score(in, in->q[row], in->k[p]);
    if (in->softcap != 0.0f) s = in->softcap * sheaf__tanhf(s / in->softcap);
    return s;
}

/* o += the weight of position p times its value */
static void add_value(const sheaf__attn_split *in, float weight, uint32_t p, float *o)
{
    const unsigned char *v = in->v[p];
    if (!sheaf__codec_is_quantized(in->codec_v)) {
        for (uint32_t d = 0; d < in->value_dim; d++)
            o[d] = fmaf(weight, number(in->codec_v, v, d), o[d]);
        return;
    }
    float w = weight * in->v_scale[p];
    for (uint32_t d = 0; d < in->value_dim; d++)
        o[d] = fmaf(w, (float)level(in->codec_v, v, d), o[d]);
}

static void split_row(const sheaf__attn_split *in, uint32_t row, float *m_out, float *l_out,
                      float *o)
{
    float s[SHEAF__ATTN_SPLIT];
    uint32_t lo = in->lo[row], hi = in->hi[row];
    float m = -INFINITY;
    for (uint32_t p = lo; p < hi; p++) {
        s[p] = score(in, row, p);
        if (s[p] > m) m = s[p];
    }
    float lanes[LANES] = {0};
    for (uint32_t p = lo; p < hi; p++) {
        s[p] = sheaf__expf(s[p] - m);
        lanes[p % LANES] = lanes[p % LANES] + s[p];
    }
    for (uint32_t d = 0; d < in->o_stride; d++) o[d] = 0.0f;
    for (uint32_t p = lo; p < hi; p++) add_value(in, s[p], p, o);
    *m_out = m;
    *l_out = lo < hi ? lanes_sum(lanes) : 0.0f;
}

static void split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    for (uint32_t r = 0; r < in->n_rows; r++)
        split_row(in, r, &out.m[r], &out.l[r], out.o + (size_t)r * in->o_stride);
}

/* Rounds a query, rotated where the keys are, to levels; returns the unit. levels: [key_dim] */
static float quantize_query(const sheaf__attn_split *in, const float *q, int16_t *levels)
{
    float rotated[SHEAF_ATTN_MAX_DIM], most = 0.0f;
    memcpy(rotated, q, in->key_dim * sizeof *q);
    if (in->codec_k == SHEAF_CODEC_TURBO4) sheaf__turbo4_rotate(rotated, in->key_dim);
    for (uint32_t d = 0; d < in->key_dim; d++)
        if (fabsf(rotated[d]) > most) most = fabsf(rotated[d]);
    float unit = most / (float)MAX_LEVEL;
    for (uint32_t d = 0; d < in->key_dim; d++) {
        float x = unit == 0.0f ? 0.0f : rintf(rotated[d] / unit);
        if (!(x > -MAX_LEVEL)) x = -MAX_LEVEL; /* a NaN, too */
        if (x > MAX_LEVEL) x = MAX_LEVEL;
        levels[d] = (int16_t)x;
    }
    return unit;
}

/* For raw keys the queries are read where they are. */
static void pack(const sheaf__attn_split *in)
{
    if (!sheaf__codec_is_quantized(in->codec_k)) return;
    const size_t padded = sheaf__attn_padded(in->key_dim);
    for (uint32_t r = 0; r < in->n_rows; r++)
        query_units(in)[r] = quantize_query(in, in->q[r], query_levels(in) + r * padded);
}

static void merge(uint32_t n_rows, uint32_t value_dim, uint32_t o_stride, sheaf__attn_part left,
                  sheaf__attn_part right)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        float *o1 = left.o + (size_t)r * o_stride;
        const float *o2 = right.o + (size_t)r * o_stride;
        if (right.l[r] == 0.0f) continue;
        if (left.l[r] == 0.0f) {
            left.m[r] = right.m[r];
            left.l[r] = right.l[r];
            memcpy(o1, o2, value_dim * sizeof *o1);
            continue;
        }
        float m = right.m[r] > left.m[r] ? right.m[r] : left.m[r];
        float a1 = sheaf__expf(left.m[r] - m), a2 = sheaf__expf(right.m[r] - m);
        left.m[r] = m;
        left.l[r] = fmaf(right.l[r], a2, left.l[r] * a1);
        for (uint32_t d = 0; d < value_dim; d++) o1[d] = fmaf(o2[d], a2, o1[d] * a1);
    }
}

static void finish(const sheaf__attn_rows *rows, sheaf__attn_part part)
{
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        const float *o = part.o + (size_t)r * rows->o_stride;
        float *out = rows->out[r];
        float m = part.m[r], l = part.l[r], a = 1.0f;
        if (l == 0.0f) {
            for (uint32_t d = 0; d < rows->value_dim; d++) out[d] = 0.0f;
            continue;
        }
        if (rows->sinks != NULL) {
            float joint = rows->sinks[r] > m ? rows->sinks[r] : m;
            a = sheaf__expf(m - joint);
            l = fmaf(l, a, sheaf__expf(rows->sinks[r] - joint));
        }
        for (uint32_t d = 0; d < rows->value_dim; d++) out[d] = o[d] * a / l;
        if (rows->codec_v == SHEAF_CODEC_TURBO4) sheaf__turbo4_unrotate(out, rows->value_dim);
    }
}

static void widen(uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    for (uint32_t i = 0; i < n; i++) dst[i] = number(codec, src, i);
}

const sheaf__attn_kernels sheaf__attn_scalar = {
    SHEAF_ISA_SCALAR, 0, pack, split, merge, finish, widen,
};
