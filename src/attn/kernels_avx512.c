/* attn/kernels_avx512.c - the defined order of attention in vectors of sixteen.
 *
 * Two forms give the same bits:
 *
 *   few rows    (decode) vectors lie along the head dimension, one vector being all 16 lanes, and
 *               K and V are widened in registers as they are read, once for every four query
 *               rows. Scores: [row][position]
 *   many rows   (prefill) positions are widened to f32 a few at a time; scores have vectors along
 *               the query rows, the head dimension walked lane by lane (d = lane, lane + 16, ..)
 *               so that each of the 16 lanes is one chain, lanes meeting in tree order.
 *               Scores: [position][row]
 *
 * The order of both is the one of sheaf/attn.h; only who holds which number differs. No product
 * here feeds a plain add, so no compiler can contract anything.
 */
#if defined(__x86_64__)

#    include <math.h>

#    include "attn/fetch.h"
#    include "attn/levels.h"
#    include "attn/vector_avx512.h"

#    define NOINLINE __attribute__((noinline))
#    define FEW_ROWS 16 /* below: the form for few rows */
#    define STEP     32 /* positions of V between changes of the output columns */

/* --- few rows ----------------------------------------------------------------------------- */

/* The lanes of four positions from `at` on for `rows` rows. q: [rows, padded key_dim] */
INLINE void few_lanes(const uint32_t codec, const int rows, const int at,
                      const sheaf__attn_split *in, const float *q,
                      const unsigned char *const k[16], __m512 lanes[4][16])
{
    const uint32_t dim = in->key_dim, padded = sheaf__attn_padded(dim);
    __m512 sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++) sum[r][i] = _mm512_setzero_ps();
    uint32_t d = 0;
    for (; d + W <= dim; d += W) {
        __m512 key[4];
        for (int i = 0; i < 4; i++) key[i] = widen16(codec, k[at + i] + bytes_of(codec, d));
        for (int r = 0; r < rows; r++) {
            __m512 x = _mm512_load_ps(q + (size_t)r * padded + d);
            for (int i = 0; i < 4; i++) sum[r][i] = _mm512_fmadd_ps(x, key[i], sum[r][i]);
        }
    }
    for (int i = 0; i < 4 && d < dim; i++) { /* the padded step: behind the end is +0 */
        __m512 key = widen_at(codec, k[at + i], d / W, dim);
        for (int r = 0; r < rows; r++)
            sum[r][i] =
                _mm512_fmadd_ps(_mm512_load_ps(q + (size_t)r * padded + d), key, sum[r][i]);
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++) lanes[r][at + i] = sum[r][i];
}

/* Scores of 16 positions for `rows` query rows. s: [rows, SPLIT] from the first position */
INLINE void few_scores16(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                         const float *q, const unsigned char *const k[16], float *s)
{
    __m512 lanes[4][16], scale = _mm512_set1_ps(in->scale);
    few_lanes(codec, rows, 0, in, q, k, lanes);
    few_lanes(codec, rows, 4, in, q, k, lanes);
    few_lanes(codec, rows, 8, in, q, k, lanes);
    few_lanes(codec, rows, 12, in, q, k, lanes);
    for (int r = 0; r < rows; r++)
        _mm512_store_ps(s + (size_t)r * SPLIT, _mm512_mul_ps(trees16(lanes[r]), scale));
}

/* s: [n_rows, SPLIT], whole groups of sixteen around [first, end). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, const float *q,
                       float *s)
{
    const uint32_t padded = sheaf__attn_padded(in->key_dim);
    const size_t k_bytes = bytes_of(codec, in->key_dim);
    for (uint32_t at = in->first & ~15u; at < in->end; at += 16) {
        const unsigned char *k[16];
        for (uint32_t i = 0; i < 16; i++) {
            k[i] = in->k[least(greatest(at + i, in->first), in->end - 1)];
            if (at + i < in->end)
                sheaf__attn_fetch_after_key(in, greatest(at + i, in->first), 0, k_bytes);
        }
        uint32_t r = 0;
        for (; r + 4 <= in->n_rows; r += 4)
            few_scores16(codec, 4, in, q + (size_t)r * padded, k, s + (size_t)r * SPLIT + at);
        const float *rest = q + (size_t)r * padded;
        float *to = s + (size_t)r * SPLIT + at;
        if (in->n_rows - r == 3) few_scores16(codec, 3, in, rest, k, to);
        if (in->n_rows - r == 2) few_scores16(codec, 2, in, rest, k, to);
        if (in->n_rows - r == 1) few_scores16(codec, 1, in, rest, k, to);
    }
}

/* Scores of one row to weights, with their maximum and denominator. s: [SPLIT] */
static void few_softmax(const sheaf__attn_split *in, uint32_t row, float *s, float *m_out,
                        float *l_out)
{
    const uint32_t lo = in->lo[row], hi = in->hi[row];
    const __m512i los = _mm512_set1_epi32((int)lo), his = _mm512_set1_epi32((int)hi);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 top = none;
    for (uint32_t at = lo & ~15u; at < hi; at += 16) {
        __m512 x = _mm512_load_ps(s + at);
        if (in->softcap != 0.0f) x = cap16(x, in->softcap);
        x = _mm512_mask_blend_ps(inside16(positions16(at), los, his), none, x);
        _mm512_store_ps(s + at, x);
        top = _mm512_max_ps(top, x);
    }
    float m = max16(top);
    __m512 ms = _mm512_set1_ps(m), lanes = _mm512_setzero_ps();
    for (uint32_t at = lo & ~15u; at < hi; at += 16) {
        __m512 p = exp16(_mm512_sub_ps(_mm512_load_ps(s + at), ms));
        _mm512_store_ps(s + at, p);
        lanes = _mm512_add_ps(lanes, p);
    }
    *m_out = m;
    *l_out = lo < hi ? tree16(lanes) : 0.0f;
}

/* Weights of one row times the scales of the values. s: [SPLIT] */
static void few_weigh(const sheaf__attn_split *in, uint32_t row, float *s)
{
    const __m512i lo = _mm512_set1_epi32((int)in->lo[row]);
    const __m512i hi = _mm512_set1_epi32((int)in->hi[row]);
    for (uint32_t at = in->lo[row] & ~15u; at < in->hi[row]; at += 16) {
        __m512 scales =
            _mm512_maskz_loadu_ps(inside16(positions16(at), lo, hi), in->v_scale + at);
        _mm512_store_ps(s + at, _mm512_mul_ps(_mm512_load_ps(s + at), scales));
    }
}

/* Vectors of values lie in two orders while they are summed: as they are, or, where that takes fewer
 * instructions to widen, two vectors at a time as their even and their odd numbers. */
INLINE int is_halved(const uint32_t codec, const int vecs, const int whole)
{
    return (codec == SHEAF_CODEC_BF16 || codec == SHEAF_CODEC_TURBO4) && whole && vecs % 2 == 0;
}

/* Two vectors to even and odd numbers. */
INLINE void part_halves(__m512 v[2])
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 evens = _mm512_permutex2var_ps(v[0], even, v[1]);
    v[1] = _mm512_permutex2var_ps(v[0], _mm512_add_epi32(even, _mm512_set1_epi32(1)), v[1]);
    v[0] = evens;
}

/* And back. */
INLINE void join_halves(__m512 v[2])
{
    const __m512i low =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    __m512 first = _mm512_permutex2var_ps(v[0], low, v[1]);
    v[1] = _mm512_permutex2var_ps(v[0], _mm512_add_epi32(low, _mm512_set1_epi32(8)), v[1]);
    v[0] = first;
}

/* `vecs` vectors of a row of values, from vector c on, in their order. */
INLINE void widen_columns(const uint32_t codec, const int vecs, const int whole,
                          const unsigned char *row, uint32_t c, uint32_t dim, __m512 v[8])
{
    for (int j = 0; j < vecs; j++) {
        uint32_t i = c + (uint32_t)j;
        if (!is_halved(codec, vecs, whole))
            v[j] = whole ? widen16(codec, row + bytes_of(codec, i * W))
                         : widen_at(codec, row, i, dim);
        else if (j % 2 == 0)
            widen_halves(codec, row + bytes_of(codec, i * W), v + j);
    }
}

/* o += weights times values over positions [a, b), `vecs` vectors of columns from vector c on.
 * The first pass over a row fetches all that is read later of another.
 * s: [rows, SPLIT]; o: [rows, o_stride] */
INLINE void few_values_columns(const uint32_t codec, const int rows, const int vecs,
                               const int whole, const sheaf__attn_split *in, uint32_t c,
                               uint32_t a, uint32_t b, const float *s, float *o)
{
    const size_t v_bytes = bytes_of(codec, in->value_dim);
    const int halved = is_halved(codec, vecs, whole);
    __m512 sum[4][8];
    o += (size_t)c * W;
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm512_load_ps(o + (size_t)r * in->o_stride + (size_t)j * W);
        for (int j = 0; halved && j < vecs; j += 2) part_halves(sum[r] + j);
    }
    for (uint32_t p = a; p < b; p++) {
        if (c == 0) sheaf__attn_fetch_after_value(in, p, 0, v_bytes);
        __m512 v[8];
        widen_columns(codec, vecs, whole, in->v[p], c, in->value_dim, v);
        for (int r = 0; r < rows; r++) {
            __m512 w = _mm512_set1_ps(s[(size_t)r * SPLIT + p]);
            for (int j = 0; j < vecs; j++) sum[r][j] = _mm512_fmadd_ps(w, v[j], sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int j = 0; halved && j < vecs; j += 2) join_halves(sum[r] + j);
        for (int j = 0; j < vecs; j++)
            _mm512_store_ps(o + (size_t)r * in->o_stride + (size_t)j * W, sum[r][j]);
    }
}

/* The same for all columns. */
INLINE void few_values(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                       uint32_t a, uint32_t b, const float *s, float *o)
{
    if (a >= b) return;
    const uint32_t vecs = in->value_dim / W;
    uint32_t c = 0;
    if (rows == 1)
        for (; c + 8 <= vecs; c += 8) few_values_columns(codec, 1, 8, 1, in, c, a, b, s, o);
    for (; c + 4 <= vecs; c += 4) few_values_columns(codec, rows, 4, 1, in, c, a, b, s, o);
    for (; c + 2 <= vecs; c += 2) few_values_columns(codec, rows, 2, 1, in, c, a, b, s, o);
    if (c < vecs) few_values_columns(codec, rows, 1, 1, in, c++, a, b, s, o);
    if (c * W < in->value_dim) few_values_columns(codec, rows, 1, 0, in, c, a, b, s, o);
}

/* The same for one row, out of line: it is called for the ends of what rows see together, and every
 * caller would else hold a copy. */
static NOINLINE void few_values_f32(const sheaf__attn_split *in, uint32_t a, uint32_t b,
                                    const float *s, float *o)
{
    few_values(SHEAF_CODEC_F32, 1, in, a, b, s, o);
}

static NOINLINE void few_values_f16(const sheaf__attn_split *in, uint32_t a, uint32_t b,
                                    const float *s, float *o)
{
    few_values(SHEAF_CODEC_F16, 1, in, a, b, s, o);
}

static NOINLINE void few_values_bf16(const sheaf__attn_split *in, uint32_t a, uint32_t b,
                                     const float *s, float *o)
{
    few_values(SHEAF_CODEC_BF16, 1, in, a, b, s, o);
}

static NOINLINE void few_values_int8(const sheaf__attn_split *in, uint32_t a, uint32_t b,
                                     const float *s, float *o)
{
    few_values(SHEAF_CODEC_INT8, 1, in, a, b, s, o);
}

static NOINLINE void few_values_turbo4(const sheaf__attn_split *in, uint32_t a, uint32_t b,
                                       const float *s, float *o)
{
    few_values(SHEAF_CODEC_TURBO4, 1, in, a, b, s, o);
}

INLINE void few_values_one(const uint32_t codec, const sheaf__attn_split *in, uint32_t a,
                           uint32_t b, const float *s, float *o)
{
    switch (codec) {
    case SHEAF_CODEC_F32: few_values_f32(in, a, b, s, o); break;
    case SHEAF_CODEC_F16: few_values_f16(in, a, b, s, o); break;
    case SHEAF_CODEC_BF16: few_values_bf16(in, a, b, s, o); break;
    case SHEAF_CODEC_INT8: few_values_int8(in, a, b, s, o); break;
    default: few_values_turbo4(in, a, b, s, o); break;
    }
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
        few_values_one(codec, in, greatest(a, in->lo[row + r]), least(lo, in->hi[row + r]),
                       s + (size_t)r * SPLIT, o + (size_t)r * in->o_stride);
    if (rows == 1)
        few_values_one(codec, in, lo, hi, s, o);
    else
        few_values(codec, rows, in, lo, hi, s, o);
    for (uint32_t r = 0; r < (uint32_t)rows && hi < b; r++)
        few_values_one(codec, in, greatest(hi, in->lo[row + r]), least(b, in->hi[row + r]),
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

static void few_levels(const sheaf__attn_split *in, float *s)
{
    if (sheaf__levels_vnni_is_here())
        sheaf__levels_vnni_few(in, s);
    else
        sheaf__levels_avx512_few(in, s);
}

static void few_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    const float *q = in->scratch + sheaf__attn_scratch_queries();
    switch (in->codec_k) {
    case SHEAF_CODEC_F32: few_scores(SHEAF_CODEC_F32, in, q, s); break;
    case SHEAF_CODEC_F16: few_scores(SHEAF_CODEC_F16, in, q, s); break;
    case SHEAF_CODEC_BF16: few_scores(SHEAF_CODEC_BF16, in, q, s); break;
    default: few_levels(in, s); break;
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
    uint32_t i = 0;
    for (; i + W <= n; i += W)
        _mm512_storeu_ps(dst + i, widen16(codec, src + bytes_of(codec, i)));
    if (i < n)
        _mm512_mask_storeu_ps(dst + i, (__mmask16)((1u << (n - i)) - 1),
                              widen_tail(codec, src + bytes_of(codec, i), n - i));
}

static void widen_row(uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    switch (codec) {
    case SHEAF_CODEC_F32: widen_row_of(SHEAF_CODEC_F32, src, n, dst); break;
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
    uint32_t padded = sheaf__attn_padded(dim);
    for (uint32_t i = 0; i < n; i++) {
        widen_row(codec, rows[i], dim, dst + (size_t)i * padded);
        for (uint32_t d = dim; d < padded; d++) dst[(size_t)i * padded + d] = 0.0f;
    }
}

/* Scores of `keys` positions for `vecs` vectors of query rows.
 * q: [padded, stride] from the first of these rows; k: [keys, padded]; s: [keys, stride] */
INLINE void many_scores_tile(const int keys, const int vecs, const float *q, uint32_t stride,
                             const float *k, uint32_t padded, float scale, float *s)
{
    /* The lanes in the order in which a tree walked depth first meets its leaves. */
    static const uint8_t order[16] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    __m512 wait[4][8][3], sum[8][3];
    for (uint32_t i = 0; i < 16; i++) {
        for (int x = 0; x < keys; x++)
            for (int j = 0; j < vecs; j++) sum[x][j] = _mm512_setzero_ps();
        for (uint32_t d = order[i]; d < padded; d += 16) {
            __m512 rows[3];
            for (int j = 0; j < vecs; j++)
                rows[j] = _mm512_load_ps(q + (size_t)d * stride + (size_t)j * W);
            for (int x = 0; x < keys; x++) {
                __m512 key = _mm512_set1_ps(k[(size_t)x * padded + d]);
                for (int j = 0; j < vecs; j++)
                    sum[x][j] = _mm512_fmadd_ps(rows[j], key, sum[x][j]);
            }
        }
        uint32_t level = 0;
        for (; i >> level & 1; level++)
            for (int x = 0; x < keys; x++)
                for (int j = 0; j < vecs; j++)
                    sum[x][j] = _mm512_add_ps(wait[level][x][j], sum[x][j]);
        if (level == 4) break;
        for (int x = 0; x < keys; x++)
            for (int j = 0; j < vecs; j++) wait[level][x][j] = sum[x][j];
    }
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++)
            _mm512_store_ps(s + (size_t)x * stride + (size_t)j * W,
                            _mm512_mul_ps(sum[x][j], _mm512_set1_ps(scale)));
}

INLINE void many_scores_rows(const int vecs, const float *q, uint32_t stride, const float *k,
                             uint32_t padded, uint32_t n, float scale, float *s)
{
    uint32_t x = 0;
    for (; x + 8 <= n; x += 8)
        many_scores_tile(8, vecs, q, stride, k + (size_t)x * padded, padded, scale,
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
        for (; row + 3 * W <= stride; row += 3 * W)
            many_scores_rows(3, q + row, stride, k, padded, n, in->scale, to + row);
        if (stride - row == 2 * W)
            many_scores_rows(2, q + row, stride, k, padded, n, in->scale, to + row);
        if (stride - row == W)
            many_scores_rows(1, q + row, stride, k, padded, n, in->scale, to + row);
    }
}

/* Scores of sixteen rows from `row` on to weights. s: [SPLIT, stride] from the first of them */
static void many_softmax16(const sheaf__attn_split *in, uint32_t row, uint32_t stride, float *s,
                           sheaf__attn_part out)
{
    int32_t lo_of[W] = {0}, hi_of[W] = {0};
    uint32_t n = least(W, in->n_rows - row), first = SPLIT, end = 0;
    for (uint32_t r = 0; r < n; r++) {
        if (in->lo[row + r] >= in->hi[row + r]) continue;
        lo_of[r] = (int32_t)in->lo[row + r], hi_of[r] = (int32_t)in->hi[row + r];
        first = least(first, in->lo[row + r]), end = greatest(end, in->hi[row + r]);
    }
    const __m512i lo = _mm512_loadu_si512(lo_of), hi = _mm512_loadu_si512(hi_of);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 m = none, lanes[16];
    for (uint32_t p = first; p < end; p++) {
        __m512 x = _mm512_load_ps(s + (size_t)p * stride);
        if (in->softcap != 0.0f) x = cap16(x, in->softcap);
        x = _mm512_mask_blend_ps(inside16(_mm512_set1_epi32((int)p), lo, hi), none, x);
        _mm512_store_ps(s + (size_t)p * stride, x);
        m = _mm512_max_ps(m, x);
    }
    for (int i = 0; i < 16; i++) lanes[i] = _mm512_setzero_ps();
    for (uint32_t p = first; p < end; p++) {
        __m512 w = exp16(_mm512_sub_ps(_mm512_load_ps(s + (size_t)p * stride), m));
        _mm512_store_ps(s + (size_t)p * stride, w);
        lanes[p % 16] = _mm512_add_ps(lanes[p % 16], w);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = _mm512_add_ps(lanes[i], lanes[i + half]);
    float ms[W], ls[W];
    _mm512_storeu_ps(ms, m), _mm512_storeu_ps(ls, lanes[0]);
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
            _mm512_store_ps(at,
                            _mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(in->v_scale[p])));
        }
}

/* o += weights times values over n positions, for `rows` rows and `vecs` vectors of columns.
 * w: [n, stride]; v: [n, o_stride]; o: [rows, o_stride] */
INLINE void many_values_tile(const int rows, const int vecs, const float *w, uint32_t stride,
                             const float *v, uint32_t n, uint32_t o_stride, float *o)
{
    __m512 sum[6][4];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm512_load_ps(o + (size_t)r * o_stride + (size_t)j * W);
    for (uint32_t p = 0; p < n; p++, w += stride, v += o_stride) {
        __m512 value[4];
        for (int j = 0; j < vecs; j++) value[j] = _mm512_load_ps(v + (size_t)j * W);
        for (int r = 0; r < rows; r++) {
            __m512 weight = _mm512_set1_ps(w[r]);
            for (int j = 0; j < vecs; j++)
                sum[r][j] = _mm512_fmadd_ps(weight, value[j], sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            _mm512_store_ps(o + (size_t)r * o_stride + (size_t)j * W, sum[r][j]);
}

/* The same for all columns and the positions [a, b) of the split; v begins at position `from`. */
INLINE void many_values(const int rows, const sheaf__attn_split *in, const float *s,
                        const float *v, uint32_t from, uint32_t a, uint32_t b, float *o)
{
    if (a >= b) return;
    const uint32_t stride = many_stride(in->n_rows), n = b - a, columns = in->o_stride;
    const float *w = s + (size_t)a * stride;
    uint32_t c = 0;
    v += (size_t)(a - from) * columns;
    for (; c + 4 * W <= columns; c += 4 * W)
        many_values_tile(rows, 4, w, stride, v + c, n, columns, o + c);
    for (; c + 2 * W <= columns; c += 2 * W)
        many_values_tile(rows, 2, w, stride, v + c, n, columns, o + c);
    if (c < columns) many_values_tile(rows, 1, w, stride, v + c, n, columns, o + c);
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
        for (; row + 6 <= in->n_rows; row += 6) many_values_rows(6, in, row, s, v, a, b, o);
        for (; row + 2 <= in->n_rows; row += 2) many_values_rows(2, in, row, s, v, a, b, o);
        if (row < in->n_rows) many_values_rows(1, in, row, s, v, a, b, o);
    }
}

static void many_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    const float *q = in->scratch + sheaf__attn_scratch_queries();
    float *widened = in->scratch + sheaf__attn_scratch_widened(in->key_dim);
    const uint32_t stride = many_stride(in->n_rows);
    if (sheaf__codec_is_quantized(in->codec_k))
        sheaf__levels_avx512_many(in, s);
    else
        many_scores(in, q, widened, s);
    for (uint32_t row = 0; row < in->n_rows; row += W)
        many_softmax16(in, row, stride, s + row, out);
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
        if (in->n_rows < FEW_ROWS && sheaf__levels_vnni_is_here())
            sheaf__levels_vnni_pack(in);
        else
            sheaf__levels_pack(in, in->n_rows < FEW_ROWS ? 0 : many_stride(in->n_rows), 2);
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
        __m512 m1 = _mm512_set1_ps(left.m[r]), m2 = _mm512_set1_ps(right.m[r]);
        __m512 m = _mm512_max_ps(m1, m2);
        __m512 a1 = exp16(_mm512_sub_ps(m1, m)), a2 = exp16(_mm512_sub_ps(m2, m));
        __m512 l = _mm512_fmadd_ps(_mm512_set1_ps(right.l[r]), a2,
                                   _mm512_mul_ps(_mm512_set1_ps(left.l[r]), a1));
        left.m[r] = _mm512_cvtss_f32(m);
        left.l[r] = _mm512_cvtss_f32(l);
        for (uint32_t d = 0; d < o_stride; d += W) {
            __m512 x = _mm512_mul_ps(_mm512_load_ps(o1 + d), a1);
            _mm512_store_ps(o1 + d, _mm512_fmadd_ps(_mm512_load_ps(o2 + d), a2, x));
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
        __m512 l = _mm512_set1_ps(part.l[r]);
        if (rows->sinks != NULL) {
            __m512 m = _mm512_set1_ps(part.m[r]), sink = _mm512_set1_ps(rows->sinks[r]);
            __m512 joint = _mm512_max_ps(m, sink);
            __m512 a = exp16(_mm512_sub_ps(m, joint));
            l = _mm512_fmadd_ps(l, a, exp16(_mm512_sub_ps(sink, joint)));
            for (uint32_t d = 0; d < o_stride; d += W)
                _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), a));
        }
        for (uint32_t d = 0; d < o_stride; d += W)
            _mm512_store_ps(o + d, _mm512_div_ps(_mm512_load_ps(o + d), l));
        if (rows->codec_v == SHEAF_CODEC_TURBO4) sheaf__turbo4_unrotate(o, value_dim);
        memcpy(rows->out[r], o, value_dim * sizeof *o);
    }
}

const sheaf__attn_kernels sheaf__attn_avx512 = {
    SHEAF_ISA_AVX512, 0, pack, split, merge, finish, widen_row,
};

#endif
