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

#define LANES 16

/* Number i of an encoded row. */
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

static float score(const sheaf__attn_split *in, const float *q, const unsigned char *k)
{
    float lanes[LANES] = {0};
    for (uint32_t d = 0; d < sheaf__attn_padded(in->key_dim); d++) {
        int inside = d < in->key_dim;
        float a = inside ? q[d] : 0.0f;
        float b = inside ? number(in->codec_k, k, d) : 0.0f;
        lanes[d % LANES] = fmaf(a, b, lanes[d % LANES]);
    }
    float s = lanes_sum(lanes) * in->scale;
    if (in->softcap != 0.0f) s = in->softcap * sheaf__tanhf(s / in->softcap);
    return s;
}

static void split_row(const sheaf__attn_split *in, uint32_t row, float *m_out, float *l_out,
                      float *o)
{
    float s[SHEAF__ATTN_SPLIT];
    uint32_t lo = in->lo[row], hi = in->hi[row];
    float m = -INFINITY;
    for (uint32_t p = lo; p < hi; p++) {
        s[p] = score(in, in->q[row], in->k[p]);
        if (s[p] > m) m = s[p];
    }
    float lanes[LANES] = {0};
    for (uint32_t p = lo; p < hi; p++) {
        s[p] = sheaf__expf(s[p] - m);
        lanes[p % LANES] = lanes[p % LANES] + s[p];
    }
    for (uint32_t d = 0; d < in->o_stride; d++) o[d] = 0.0f;
    for (uint32_t p = lo; p < hi; p++)
        for (uint32_t d = 0; d < in->value_dim; d++)
            o[d] = fmaf(s[p], number(in->codec_v, in->v[p], d), o[d]);
    *m_out = m;
    *l_out = lo < hi ? lanes_sum(lanes) : 0.0f;
}

static void split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    for (uint32_t r = 0; r < in->n_rows; r++)
        split_row(in, r, &out.m[r], &out.l[r], out.o + (size_t)r * in->o_stride);
}

static void pack(const sheaf__attn_split *in)
{
    (void)in; /* the queries are read where they are */
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

static void finish(uint32_t n_rows, uint32_t value_dim, uint32_t o_stride,
                   sheaf__attn_part part, const float *sinks, float *const *out)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *o = part.o + (size_t)r * o_stride;
        float m = part.m[r], l = part.l[r], a = 1.0f;
        if (l == 0.0f) {
            for (uint32_t d = 0; d < value_dim; d++) out[r][d] = 0.0f;
            continue;
        }
        if (sinks != NULL) {
            float joint = sinks[r] > m ? sinks[r] : m;
            a = sheaf__expf(m - joint);
            l = fmaf(l, a, sheaf__expf(sinks[r] - joint));
        }
        for (uint32_t d = 0; d < value_dim; d++) out[r][d] = o[d] * a / l;
    }
}

static void widen(uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    for (uint32_t i = 0; i < n; i++) dst[i] = number(codec, src, i);
}

const sheaf__attn_kernels sheaf__attn_scalar = {
    SHEAF_ISA_SCALAR, pack, split, merge, finish, widen,
};
