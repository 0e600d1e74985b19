/* attn/kernels_neon.c - the defined order of attention in vectors of four.
 *
 * Two forms give the same bits:
 *
 *   few rows    (decode) the 16 lanes of a score are four vectors along the head dimension, and
 *               K and V are widened in registers as they are read. Scores: [row][position]
 *   many rows   (prefill) positions are widened to f32 a few at a time; scores have vectors
 *               along the query rows, the head dimension walked lane by lane (d = lane,
 *               lane + 16, ..) so that each of the 16 lanes is one chain, lanes meeting in tree
 *               order. Scores: [position][row]
 *
 * The order of both is the one of sheaf/attn.h; only who holds which number differs. No product
 * here feeds a plain add, so no compiler can contract anything. Maxima are compared and
 * selected: the processor's own maximum spreads a NaN, the scalar form passes it by.
 */
#if defined(__aarch64__)

#    include <math.h>

#    include "attn/levels.h"
#    include "attn/vector_neon.h"

#    define FEW_ROWS 16 /* below: the form for few rows */
#    define STEP     32 /* positions of V between changes of the output columns */

/* --- few rows ----------------------------------------------------------------------------- */

/* One step of 16 along the head dimension, from d on, for rows x keys scores. Behind the end of
 * a key lies +0. sum: [rows][keys]; q: [rows, padded] */
INLINE void few_step(const uint32_t codec, const int rows, const int keys, const int whole,
                     uint32_t dim, const float *q, const unsigned char *const *k, uint32_t d,
                     float32x4_t sum[4][4])
{
    const uint32_t padded = sheaf__attn_padded(dim);
    float32x4_t key[4][4];
    for (int i = 0; i < keys; i++)
        if (whole)
            widen16(codec, k[i] + bytes_of(codec, d), key[i]);
        else
            widen_tail(codec, k[i] + bytes_of(codec, d), dim - d, key[i]);
    for (uint32_t j = 0; j < 4; j++)
        for (int r = 0; r < rows; r++) {
            float32x4_t x = vld1q_f32(q + (size_t)r * padded + d + j * W);
            for (int i = 0; i < keys; i++)
                sum[r * keys + i][j] = vfmaq_f32(sum[r * keys + i][j], x, key[i][j]);
        }
}

/* rows x keys scores; either one row with four keys, or two with two, or four with one.
 * s: [rows, SPLIT] from the first position; written at four positions of one row, two of two, or
 * one of four. */
INLINE void few_scores4(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                        const float *q, const unsigned char *const *k, float *s)
{
    const int keys = 4 / rows;
    const uint32_t dim = in->key_dim;
    float32x4_t sum[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = vdupq_n_f32(0.0f);
    uint32_t d = 0;
    for (; d + 16 <= dim; d += 16) few_step(codec, rows, keys, 1, dim, q, k, d, sum);
    if (d < dim) few_step(codec, rows, keys, 0, dim, q, k, d, sum);
    float32x4_t low = vcombine_f32(tree_to_two(sum[0]), tree_to_two(sum[1]));
    float32x4_t high = vcombine_f32(tree_to_two(sum[2]), tree_to_two(sum[3]));
    float32x4_t scores = vmulq_f32(vpaddq_f32(low, high), vdupq_n_f32(in->scale));
    if (rows == 1) {
        vst1q_f32(s, scores);
    } else if (rows == 2) {
        vst1_f32(s, vget_low_f32(scores));
        vst1_f32(s + SPLIT, vget_high_f32(scores));
    } else {
        vst1q_lane_f32(s, scores, 0);
        vst1q_lane_f32(s + SPLIT, scores, 1);
        vst1q_lane_f32(s + 2 * SPLIT, scores, 2);
        vst1q_lane_f32(s + 3 * SPLIT, scores, 3);
    }
}

/* s: [n_rows, SPLIT], whole groups of four around [first, end). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, const float *q,
                       float *s)
{
    const size_t padded = sheaf__attn_padded(in->key_dim);
    for (uint32_t at = in->first & ~3u; at < in->end; at += 4) {
        const unsigned char *k[4];
        for (uint32_t i = 0; i < 4; i++)
            k[i] = in->k[least(greatest(at + i, in->first), in->end - 1)];
        const float *x = q;
        float *to = s + at;
        uint32_t left = in->n_rows;
        for (; left >= 4; left -= 4, x += 4 * padded, to += 4 * SPLIT)
            for (uint32_t i = 0; i < 4; i++) few_scores4(codec, 4, in, x, k + i, to + i);
        if (left >= 2) {
            few_scores4(codec, 2, in, x, k, to);
            few_scores4(codec, 2, in, x, k + 2, to + 2);
            left -= 2, x += 2 * padded, to += 2 * SPLIT;
        }
        if (left == 1) few_scores4(codec, 1, in, x, k, to);
    }
}

/* Scores of one row to weights, with their maximum and denominator. s: [SPLIT] */
static void few_softmax(const sheaf__attn_split *in, uint32_t row, float *s, float *m_out,
                        float *l_out)
{
    static const uint32_t count[4] = {0, 1, 2, 3};
    const uint32_t lo = in->lo[row], hi = in->hi[row];
    const uint32x4_t los = vdupq_n_u32(lo), his = vdupq_n_u32(hi), iota = vld1q_u32(count);
    const float32x4_t none = vdupq_n_f32(-INFINITY);
    float32x4_t top = none;
    for (uint32_t at = lo & ~3u; at < hi; at += W) {
        float32x4_t x = vld1q_f32(s + at);
        if (in->softcap != 0.0f) x = cap4(x, in->softcap);
        x = vbslq_f32(inside4(vaddq_u32(iota, vdupq_n_u32(at)), los, his), x, none);
        vst1q_f32(s + at, x);
        top = greater4(x, top);
    }
    float tops[W], m = -INFINITY;
    vst1q_f32(tops, top);
    for (int i = 0; i < W; i++) m = tops[i] > m ? tops[i] : m;
    float32x4_t ms = vdupq_n_f32(m), lanes[4];
    for (int j = 0; j < 4; j++) lanes[j] = vdupq_n_f32(0.0f);
    for (uint32_t at = lo & ~3u; at < hi; at += W) {
        float32x4_t p = exp4(vsubq_f32(vld1q_f32(s + at), ms));
        vst1q_f32(s + at, p);
        lanes[at / W % 4] = vaddq_f32(lanes[at / W % 4], p);
    }
    *m_out = m;
    *l_out = lo < hi ? tree16(lanes) : 0.0f;
}

/* Weights of one row times the scales of the values. s: [SPLIT] */
static void few_weigh(const sheaf__attn_split *in, uint32_t row, float *s)
{
    for (uint32_t p = in->lo[row]; p < in->hi[row]; p++) s[p] = s[p] * in->v_scale[p];
}

/* o += weights times values over positions [a, b), `sets` times sixteen columns from set c on.
 * s: [rows, SPLIT]; o: [rows, o_stride] */
INLINE void few_values_columns(const uint32_t codec, const int rows, const int sets,
                               const int whole, const sheaf__attn_split *in, uint32_t c,
                               uint32_t a, uint32_t b, const float *s, float *o)
{
    float32x4_t sum[4][8];
    o += (size_t)c * 16;
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < sets * 4; j++)
            sum[r][j] = vld1q_f32(o + (size_t)r * in->o_stride + j * W);
    for (uint32_t p = a; p < b; p++) {
        float32x4_t v[8];
        for (int j = 0; j < sets; j++)
            if (whole)
                widen16(codec, in->v[p] + bytes_of(codec, (c + (uint32_t)j) * 16), v + j * 4);
            else
                widen_at(codec, in->v[p], c + (uint32_t)j, in->value_dim, v + j * 4);
        for (int r = 0; r < rows; r++) {
            float32x4_t w = vld1q_dup_f32(s + (size_t)r * SPLIT + p);
            for (int j = 0; j < sets * 4; j++) sum[r][j] = vfmaq_f32(sum[r][j], w, v[j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < sets * 4; j++)
            vst1q_f32(o + (size_t)r * in->o_stride + j * W, sum[r][j]);
}

/* The same for all columns. */
INLINE void few_values(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                       uint32_t a, uint32_t b, const float *s, float *o)
{
    if (a >= b) return;
    const uint32_t sets = in->value_dim / 16;
    uint32_t c = 0;
    if (rows == 1)
        for (; c + 2 <= sets; c += 2) few_values_columns(codec, 1, 2, 1, in, c, a, b, s, o);
    for (; c < sets; c++) few_values_columns(codec, rows, 1, 1, in, c, a, b, s, o);
    if (c * 16 < in->value_dim) few_values_columns(codec, rows, 1, 0, in, c, a, b, s, o);
}

/* `rows` query rows from `row` on over the positions [a, b): together where all of them see. */
INLINE void few_values_rows(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                            uint32_t row, uint32_t a, uint32_t b, const float *s, float *o)
{
    uint32_t lo = a, hi = b;
    for (uint32_t r = row; r < row + (uint32_t)rows; r++) {
        lo = greatest(lo, in->lo[r]);
        hi = least(hi, in->hi[r]);
    }
    if (lo >= hi) lo = hi = b;
    s += (size_t)row * SPLIT;
    o += (size_t)row * in->o_stride;
    for (uint32_t r = 0; r < (uint32_t)rows && lo > a; r++)
        few_values(codec, 1, in, greatest(a, in->lo[row + r]), least(lo, in->hi[row + r]),
                   s + (size_t)r * SPLIT, o + (size_t)r * in->o_stride);
    few_values(codec, rows, in, lo, hi, s, o);
    for (uint32_t r = 0; r < (uint32_t)rows && hi < b; r++)
        few_values(codec, 1, in, greatest(hi, in->lo[row + r]), least(b, in->hi[row + r]),
                   s + (size_t)r * SPLIT, o + (size_t)r * in->o_stride);
}

INLINE void few_outputs(const uint32_t codec, const sheaf__attn_split *in, const float *s,
                        float *o)
{
    memset(o, 0, (size_t)in->n_rows * in->o_stride * sizeof *o);
    for (uint32_t a = in->first; a < in->end; a += STEP) {
        uint32_t b = least(a + STEP, in->end), row = 0;
        for (; row + 4 <= in->n_rows; row += 4) few_values_rows(codec, 4, in, row, a, b, s, o);
        if (in->n_rows - row >= 2) {
            few_values_rows(codec, 2, in, row, a, b, s, o);
            row += 2;
        }
        if (row < in->n_rows) few_values_rows(codec, 1, in, row, a, b, s, o);
    }
}

static void few_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    const float *q = in->scratch + sheaf__attn_scratch_queries();
    switch (in->codec_k) {
    case SHEAF_CODEC_F32: few_scores(SHEAF_CODEC_F32, in, q, s); break;
    case SHEAF_CODEC_F16: few_scores(SHEAF_CODEC_F16, in, q, s); break;
    case SHEAF_CODEC_BF16: few_scores(SHEAF_CODEC_BF16, in, q, s); break;
    default: sheaf__levels_neon_few(in, s); break;
    }
    for (uint32_t r = 0; r < in->n_rows; r++) {
        few_softmax(in, r, s + (size_t)r * SPLIT, &out.m[r], &out.l[r]);
        if (sheaf__codec_is_quantized(in->codec_v)) few_weigh(in, r, s + (size_t)r * SPLIT);
    }
    switch (in->codec_v) {
    case SHEAF_CODEC_F32: few_outputs(SHEAF_CODEC_F32, in, s, out.o); break;
    case SHEAF_CODEC_F16: few_outputs(SHEAF_CODEC_F16, in, s, out.o); break;
    case SHEAF_CODEC_BF16: few_outputs(SHEAF_CODEC_BF16, in, s, out.o); break;
    case SHEAF_CODEC_INT8: few_outputs(SHEAF_CODEC_INT8, in, s, out.o); break;
    default: few_outputs(SHEAF_CODEC_TURBO4, in, s, out.o); break;
    }
}

/* --- many rows ---------------------------------------------------------------------------- */

INLINE void widen_row_of(const uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    for (uint32_t i = 0; i < n; i += 16) {
        float32x4_t v[4];
        float rest[16];
        widen_at(codec, src, i / 16, n, v);
        float *to = n - i >= 16 ? dst + i : rest;
        for (uint32_t j = 0; j < 4; j++) vst1q_f32(to + j * W, v[j]);
        if (to == rest) memcpy(dst + i, rest, (n - i) * sizeof *dst);
    }
}

static void widen_row(uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    switch (codec) {
    case SHEAF_CODEC_F32: memcpy(dst, src, n * sizeof *dst); break;
    case SHEAF_CODEC_F16: widen_row_of(SHEAF_CODEC_F16, src, n, dst); break;
    case SHEAF_CODEC_BF16: widen_row_of(SHEAF_CODEC_BF16, src, n, dst); break;
    case SHEAF_CODEC_INT8: widen_row_of(SHEAF_CODEC_INT8, src, n, dst); break;
    default: widen_row_of(SHEAF_CODEC_TURBO4, src, n, dst); break;
    }
}

/* n rows to dst: [n, padded dim], zeros behind each row. */
static void widen_rows(uint32_t codec, const unsigned char *const *rows, uint32_t dim,
                       uint32_t n, float *dst)
{
    const uint32_t padded = sheaf__attn_padded(dim);
    for (uint32_t i = 0; i < n; i++, dst += padded) {
        widen_row(codec, rows[i], dim, dst);
        for (uint32_t d = dim; d < padded; d++) dst[d] = 0.0f;
    }
}

/* Scores of `keys` positions for `vecs` vectors of query rows.
 * q: [padded, stride] from the first of these rows; k: [keys, padded]; s: [keys, stride] */
INLINE void many_scores_tile(const int keys, const int vecs, const float *q, uint32_t stride,
                             const float *k, uint32_t padded, float scale, float *s)
{
    /* The lanes in the order in which a tree walked depth first meets its leaves. */
    static const uint8_t order[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    float32x4_t wait[4][4][4], sum[4][4];
    for (uint32_t i = 0; i < 16; i++) {
        for (int x = 0; x < keys; x++)
            for (int j = 0; j < vecs; j++) sum[x][j] = vdupq_n_f32(0.0f);
        for (uint32_t d = order[i]; d < padded; d += 16) {
            float32x4_t rows[4];
            for (int j = 0; j < vecs; j++) rows[j] = vld1q_f32(q + (size_t)d * stride + j * W);
            for (int x = 0; x < keys; x++) {
                float32x4_t key = vld1q_dup_f32(k + (size_t)x * padded + d);
                for (int j = 0; j < vecs; j++) sum[x][j] = vfmaq_f32(sum[x][j], rows[j], key);
            }
        }
        uint32_t level = 0;
        for (; i >> level & 1; level++)
            for (int x = 0; x < keys; x++)
                for (int j = 0; j < vecs; j++)
                    sum[x][j] = vaddq_f32(wait[level][x][j], sum[x][j]);
        if (level == 4) break;
        for (int x = 0; x < keys; x++)
            for (int j = 0; j < vecs; j++) wait[level][x][j] = sum[x][j];
    }
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++)
            vst1q_f32(s + (size_t)x * stride + j * W, vmulq_f32(sum[x][j], vdupq_n_f32(scale)));
}

INLINE void many_scores_rows(const int vecs, const float *q, uint32_t stride, const float *k,
                             uint32_t padded, uint32_t n, float scale, float *s)
{
    uint32_t x = 0;
    for (; x + 4 <= n; x += 4)
        many_scores_tile(4, vecs, q, stride, k + (size_t)x * padded, padded, scale,
                         s + (size_t)x * stride);
    for (; x < n; x++)
        many_scores_tile(1, vecs, q, stride, k + (size_t)x * padded, padded, scale,
                         s + (size_t)x * stride);
}

/* s: [SPLIT, stride], positions [first, end). */
static void many_scores(const sheaf__attn_split *in, const float *q, float *k, float *s)
{
    const uint32_t stride = many_stride(in->n_rows), padded = sheaf__attn_padded(in->key_dim);
    for (uint32_t a = in->first; a < in->end; a += SHEAF__ATTN_KEYS) {
        uint32_t n = least(SHEAF__ATTN_KEYS, in->end - a), row = 0;
        float *to = s + (size_t)a * stride;
        widen_rows(in->codec_k, in->k + a, in->key_dim, n, k);
        for (; row + 4 * W <= stride; row += 4 * W)
            many_scores_rows(4, q + row, stride, k, padded, n, in->scale, to + row);
        if (row < stride)
            many_scores_rows(2, q + row, stride, k, padded, n, in->scale, to + row);
    }
}

/* Scores of four rows from `row` on to weights. s: [SPLIT, stride] from the first of them */
static void many_softmax4(const sheaf__attn_split *in, uint32_t row, uint32_t stride, float *s,
                          sheaf__attn_part out)
{
    uint32_t lo_of[W] = {0}, hi_of[W] = {0};
    uint32_t n = least(W, in->n_rows - row), first = SPLIT, end = 0;
    for (uint32_t r = 0; r < n; r++) {
        if (in->lo[row + r] >= in->hi[row + r]) continue;
        lo_of[r] = in->lo[row + r], hi_of[r] = in->hi[row + r];
        first = least(first, lo_of[r]), end = greatest(end, hi_of[r]);
    }
    const uint32x4_t lo = vld1q_u32(lo_of), hi = vld1q_u32(hi_of);
    const float32x4_t none = vdupq_n_f32(-INFINITY);
    float32x4_t m = none, lanes[16];
    for (uint32_t p = first; p < end; p++) {
        float32x4_t x = vld1q_f32(s + (size_t)p * stride);
        if (in->softcap != 0.0f) x = cap4(x, in->softcap);
        x = vbslq_f32(inside4(vdupq_n_u32(p), lo, hi), x, none);
        vst1q_f32(s + (size_t)p * stride, x);
        m = greater4(x, m);
    }
    for (int i = 0; i < 16; i++) lanes[i] = vdupq_n_f32(0.0f);
    for (uint32_t p = first; p < end; p++) {
        float32x4_t w = exp4(vsubq_f32(vld1q_f32(s + (size_t)p * stride), m));
        vst1q_f32(s + (size_t)p * stride, w);
        lanes[p % 16] = vaddq_f32(lanes[p % 16], w);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = vaddq_f32(lanes[i], lanes[i + half]);
    float ms[W], ls[W];
    vst1q_f32(ms, m), vst1q_f32(ls, lanes[0]);
    for (uint32_t r = 0; r < n; r++) {
        out.m[row + r] = ms[r];
        out.l[row + r] = lo_of[r] < hi_of[r] ? ls[r] : 0.0f;
    }
}

/* Weights times the scales of the values. s: [SPLIT, stride] */
static void many_weigh(const sheaf__attn_split *in, uint32_t stride, float *s)
{
    for (uint32_t p = in->first; p < in->end; p++)
        for (uint32_t row = 0; row < stride; row += W) {
            float *at = s + (size_t)p * stride + row;
            vst1q_f32(at, vmulq_f32(vld1q_f32(at), vdupq_n_f32(in->v_scale[p])));
        }
}

/* o += weights times values over n positions, for `rows` rows and four vectors of columns.
 * w: [n, stride]; v: [n, o_stride]; o: [rows, o_stride] */
INLINE void many_values_tile(const int rows, const float *w, uint32_t stride, const float *v,
                             uint32_t n, uint32_t o_stride, float *o)
{
    float32x4_t sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < 4; j++) sum[r][j] = vld1q_f32(o + (size_t)r * o_stride + j * W);
    for (uint32_t p = 0; p < n; p++, w += stride, v += o_stride) {
        float32x4_t value[4];
        for (int j = 0; j < 4; j++) value[j] = vld1q_f32(v + j * W);
        for (int r = 0; r < rows; r++) {
            float32x4_t weight = vld1q_dup_f32(w + r);
            for (int j = 0; j < 4; j++) sum[r][j] = vfmaq_f32(sum[r][j], weight, value[j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < 4; j++) vst1q_f32(o + (size_t)r * o_stride + j * W, sum[r][j]);
}

/* The same for all columns and the positions [a, b) of the split; v begins at `from`. */
INLINE void many_values(const int rows, const sheaf__attn_split *in, const float *s,
                        const float *v, uint32_t from, uint32_t a, uint32_t b, float *o)
{
    if (a >= b) return;
    const uint32_t stride = many_stride(in->n_rows);
    const float *w = s + (size_t)a * stride;
    v += (size_t)(a - from) * in->o_stride;
    for (uint32_t c = 0; c < in->o_stride; c += 4 * W)
        many_values_tile(rows, w, stride, v + c, b - a, in->o_stride, o + c);
}

/* `rows` query rows from `row` on over the positions [a, b): together where all of them see. */
INLINE void many_values_rows(const int rows, const sheaf__attn_split *in, uint32_t row,
                             const float *s, const float *v, uint32_t a, uint32_t b, float *o)
{
    uint32_t lo = a, hi = b;
    for (uint32_t r = row; r < row + (uint32_t)rows; r++) {
        lo = greatest(lo, in->lo[r]);
        hi = least(hi, in->hi[r]);
    }
    if (lo >= hi) lo = hi = b;
    s += row;
    o += (size_t)row * in->o_stride;
    for (uint32_t r = 0; r < (uint32_t)rows && lo > a; r++)
        many_values(1, in, s + r, v, a, greatest(a, in->lo[row + r]),
                    least(lo, in->hi[row + r]), o + (size_t)r * in->o_stride);
    many_values(rows, in, s, v, a, lo, hi, o);
    for (uint32_t r = 0; r < (uint32_t)rows && hi < b; r++)
        many_values(1, in, s + r, v, a, greatest(hi, in->lo[row + r]),
                    least(b, in->hi[row + r]), o + (size_t)r * in->o_stride);
}

static void many_outputs(const sheaf__attn_split *in, const float *s, float *v, float *o)
{
    memset(o, 0, (size_t)in->n_rows * in->o_stride * sizeof *o);
    for (uint32_t a = in->first; a < in->end; a += SHEAF__ATTN_KEYS) {
        uint32_t b = least(a + SHEAF__ATTN_KEYS, in->end), row = 0;
        widen_rows(in->codec_v, in->v + a, in->value_dim, b - a, v);
        for (; row + 4 <= in->n_rows; row += 4) many_values_rows(4, in, row, s, v, a, b, o);
        for (; row < in->n_rows; row++) many_values_rows(1, in, row, s, v, a, b, o);
    }
}

static void many_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    const float *q = in->scratch + sheaf__attn_scratch_queries();
    float *widened = in->scratch + sheaf__attn_scratch_widened(in->key_dim);
    const uint32_t stride = many_stride(in->n_rows);
    if (sheaf__codec_is_quantized(in->codec_k))
        sheaf__levels_neon_many(in, s);
    else
        many_scores(in, q, widened, s);
    for (uint32_t row = 0; row < in->n_rows; row += W)
        many_softmax4(in, row, stride, s + row, out);
    if (sheaf__codec_is_quantized(in->codec_v)) many_weigh(in, stride, s);
    many_outputs(in, s, widened, out.o);
}

/* --- the table ---------------------------------------------------------------------------- */

/* Queries to scratch, zeros behind: [row][d] for few rows, [d][row] for many. */
static void pack(const sheaf__attn_split *in)
{
    const uint32_t padded = sheaf__attn_padded(in->key_dim), dim = in->key_dim;
    float *q = in->scratch + sheaf__attn_scratch_queries();
    if (sheaf__codec_is_quantized(in->codec_k)) {
        sheaf__levels_pack(in, in->n_rows < FEW_ROWS ? 0 : many_stride(in->n_rows), 1);
        return;
    }
    if (in->n_rows < FEW_ROWS) {
        memset(q, 0, (size_t)in->n_rows * padded * sizeof *q);
        for (uint32_t r = 0; r < in->n_rows; r++)
            memcpy(q + (size_t)r * padded, in->q[r], dim * sizeof *q);
        return;
    }
    const uint32_t stride = many_stride(in->n_rows);
    memset(q, 0, (size_t)stride * padded * sizeof *q);
    for (uint32_t r = 0; r < in->n_rows; r++)
        for (uint32_t d = 0; d < dim; d++) q[(size_t)d * stride + r] = in->q[r][d];
}

static void split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    if (in->n_rows < FEW_ROWS)
        few_split(in, out);
    else
        many_split(in, out);
}

static void merge(uint32_t n_rows, uint32_t value_dim, uint32_t o_stride, sheaf__attn_part left,
                  sheaf__attn_part right)
{
    (void)value_dim; /* padding merges along: it is zero */
    for (uint32_t r = 0; r < n_rows; r++) {
        float *o1 = left.o + (size_t)r * o_stride;
        const float *o2 = right.o + (size_t)r * o_stride;
        if (right.l[r] == 0.0f) continue;
        if (left.l[r] == 0.0f) {
            left.m[r] = right.m[r];
            left.l[r] = right.l[r];
            memcpy(o1, o2, o_stride * sizeof *o1);
            continue;
        }
        float32x4_t m1 = vdupq_n_f32(left.m[r]), m2 = vdupq_n_f32(right.m[r]);
        float32x4_t m = greater4(m2, m1);
        float32x4_t a1 = exp4(vsubq_f32(m1, m)), a2 = exp4(vsubq_f32(m2, m));
        float32x4_t l =
            vfmaq_f32(vmulq_f32(vdupq_n_f32(left.l[r]), a1), vdupq_n_f32(right.l[r]), a2);
        left.m[r] = vgetq_lane_f32(m, 0);
        left.l[r] = vgetq_lane_f32(l, 0);
        for (uint32_t d = 0; d < o_stride; d += W) {
            float32x4_t x = vmulq_f32(vld1q_f32(o1 + d), a1);
            vst1q_f32(o1 + d, vfmaq_f32(x, vld1q_f32(o2 + d), a2));
        }
    }
}

static void finish(const sheaf__attn_rows *rows, sheaf__attn_part part)
{
    const uint32_t value_dim = rows->value_dim, o_stride = rows->o_stride;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        float *o = part.o + (size_t)r * o_stride;
        if (part.l[r] == 0.0f) {
            memset(rows->out[r], 0, value_dim * sizeof *o);
            continue;
        }
        float32x4_t l = vdupq_n_f32(part.l[r]), a = vdupq_n_f32(1.0f);
        if (rows->sinks != NULL) {
            float32x4_t m = vdupq_n_f32(part.m[r]), sink = vdupq_n_f32(rows->sinks[r]);
            float32x4_t joint = greater4(sink, m);
            a = exp4(vsubq_f32(m, joint));
            l = vfmaq_f32(exp4(vsubq_f32(sink, joint)), l, a);
        }
        for (uint32_t d = 0; d < o_stride; d += W)
            vst1q_f32(o + d, vdivq_f32(vmulq_f32(vld1q_f32(o + d), a), l));
        if (rows->codec_v == SHEAF_CODEC_TURBO4) sheaf__turbo4_unrotate(o, value_dim);
        memcpy(rows->out[r], o, value_dim * sizeof *o);
    }
}

const sheaf__attn_kernels sheaf__attn_neon = {
    SHEAF_ISA_NEON, 0, pack, split, merge, finish, widen_row,
};

#endif
