/* attn/kernels_avx2.c - the defined order of attention in vectors of eight.
 *
 * Two forms give the same bits:
 *
 *   few rows    (decode) vectors lie along the head dimension and K and V are widened in registers
 *               as they are read, once for every four query rows. Scores: [row][position]
 *   many rows   (prefill) positions are widened to f32 a few at a time; scores have vectors along
 *               the query rows, the head dimension walked lane by lane (d = lane, lane + 16, ..)
 *               so that each of the 16 lanes is one chain, lanes meeting in tree order.
 *               Scores: [position][row]
 *
 * The order of both is the one of sheaf/attn.h; only who holds which number differs. No product
 * here feeds a plain add, so no compiler can contract anything.
 */
#if defined(__x86_64__)

#    include <immintrin.h>
#    include <math.h>
#    include <string.h>

#    include "attn/fetch.h"
#    include "attn/kernels.h"
#    include "codec/codec.h"

#    define INLINE   static inline __attribute__((always_inline))
#    define NOINLINE __attribute__((noinline))
#    define W        8  /* floats a vector */
#    define FEW_ROWS 16 /* below: the form for few rows */
#    define STEP     16 /* positions of V between changes of the output columns */
#    define SPLIT    SHEAF__ATTN_SPLIT

/* --- numbers ------------------------------------------------------------------------------ */

/* Eight numbers of a codec from p. */
INLINE __m256 widen8(const uint32_t codec, const unsigned char *p)
{
    if (codec == SHEAF_CODEC_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (codec == SHEAF_CODEC_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The first n < 8 numbers from p, then zeros; reads no byte beyond them. */
INLINE __m256 widen_tail(const uint32_t codec, const unsigned char *p, uint32_t n)
{
    unsigned char copy[W * 4] __attribute__((aligned(32))) = {0};
    memcpy(copy, p, (size_t)n * sheaf__attn_number_bytes(codec));
    return widen8(codec, copy);
}

/* Vector i of a row of dim numbers, zeros behind its end. */
INLINE __m256 widen_at(const uint32_t codec, const unsigned char *row, uint32_t i, uint32_t dim)
{
    const unsigned char *p = row + (size_t)i * W * sheaf__attn_number_bytes(codec);
    uint32_t left = dim > i * W ? dim - i * W : 0;
    if (left == 0) return _mm256_setzero_ps();
    return left >= W ? widen8(codec, p) : widen_tail(codec, p, left);
}

/* exp, operation by operation as in the text of base/fmath.h. */
INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f);
    __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ);
    x = _mm256_min_ps(x, _mm256_set1_ps(88.0f));
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504f), magic);
    __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    __m256 y = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    __m256i e = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(magic));
    e = _mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(below, _mm256_mul_ps(y, _mm256_castsi256_ps(e)));
}

INLINE __m256 tanh8(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 a = _mm256_andnot_ps(sign, x);
    __m256 z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(-5.70498872745e-3f);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(2.06390887954e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-5.37397155531e-2f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(1.33314422036e-1f));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(-3.33332819422e-1f));
    __m256 inner = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one);
    __m256 y = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), e));
    y = _mm256_or_ps(_mm256_andnot_ps(sign, y), _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(y, inner, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

INLINE __m256 cap8(__m256 s, float softcap)
{
    __m256 c = _mm256_set1_ps(softcap);
    return _mm256_mul_ps(c, tanh8(_mm256_div_ps(s, c)));
}

/* Of eight vectors that hold the pairs (i, i+8): the rest of each tree, sums in order. */
INLINE __m256 trees8(const __m256 v[8])
{
    __m256 a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_add_ps(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20),
                             _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    for (int i = 0; i < 2; i++)
        b[i] = _mm256_add_ps(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88),
                         _mm256_shuffle_ps(b[0], b[1], 0xdd));
}

/* The whole tree of one set of 16 lanes. */
INLINE float tree16(__m256 low, __m256 high)
{
    __m256 a = _mm256_add_ps(low, high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE float max8(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

INLINE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

INLINE uint32_t greatest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* --- few rows ----------------------------------------------------------------------------- */

/* Half of the lanes, those of vector `half` of every two, of `keys` positions and `rows` rows: the
 * halves go one after the other so that twelve chains fit the registers.
 * sum: [rows][keys]; q: [rows, padded key_dim] */
INLINE void few_lanes(const uint32_t codec, const int rows, const int keys, const int half,
                      const sheaf__attn_split *in, const float *q,
                      const unsigned char *const *k, __m256 sum[4][3])
{
    const uint32_t dim = in->key_dim, padded = sheaf__attn_padded(dim);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < keys; i++) sum[r][i] = _mm256_setzero_ps();
    uint32_t d = (uint32_t)half * W;
    for (; d + W <= dim; d += 16) {
        __m256 key[3];
        for (int i = 0; i < keys; i++)
            key[i] = widen8(codec, k[i] + (size_t)d * sheaf__attn_number_bytes(codec));
        for (int r = 0; r < rows; r++) {
            __m256 x = _mm256_load_ps(q + (size_t)r * padded + d);
            for (int i = 0; i < keys; i++) sum[r][i] = _mm256_fmadd_ps(x, key[i], sum[r][i]);
        }
    }
    if (d >= padded) return;
    for (int i = 0; i < keys; i++) { /* the padded step: what lies behind the end is +0 */
        __m256 key = widen_at(codec, k[i], d / W, dim);
        for (int r = 0; r < rows; r++)
            sum[r][i] =
                _mm256_fmadd_ps(_mm256_load_ps(q + (size_t)r * padded + d), key, sum[r][i]);
    }
}

/* The pairs (i, i+8) of `keys` positions from `at` on. */
INLINE void few_pairs(const uint32_t codec, const int rows, const int keys, const int at,
                      const sheaf__attn_split *in, const float *q,
                      const unsigned char *const k[8], __m256 pairs[4][8])
{
    __m256 sum[4][3];
    few_lanes(codec, rows, keys, 0, in, q, k + at, sum);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < keys; i++) pairs[r][at + i] = sum[r][i];
    few_lanes(codec, rows, keys, 1, in, q, k + at, sum);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < keys; i++)
            pairs[r][at + i] = _mm256_add_ps(pairs[r][at + i], sum[r][i]);
}

/* Scores of eight positions for `rows` query rows. s: [rows, SPLIT] from the first position */
INLINE void few_scores8(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                        const float *q, const unsigned char *const k[8], float *s)
{
    __m256 pairs[4][8];
    few_pairs(codec, rows, 3, 0, in, q, k, pairs);
    few_pairs(codec, rows, 3, 3, in, q, k, pairs);
    few_pairs(codec, rows, 2, 6, in, q, k, pairs);
    __m256 scale = _mm256_set1_ps(in->scale);
    for (int r = 0; r < rows; r++)
        _mm256_store_ps(s + (size_t)r * SPLIT, _mm256_mul_ps(trees8(pairs[r]), scale));
}

/* s: [n_rows, SPLIT], whole groups of eight around [first, end). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, const float *q,
                       float *s)
{
    const uint32_t padded = sheaf__attn_padded(in->key_dim);
    const uint32_t k_bytes = in->key_dim * sheaf__attn_number_bytes(codec);
    for (uint32_t at = in->first & ~7u; at < in->end; at += 8) {
        const unsigned char *k[8];
        for (uint32_t i = 0; i < 8; i++) {
            k[i] = in->k[least(greatest(at + i, in->first), in->end - 1)];
            if (at + i < in->end)
                sheaf__attn_fetch_after_key(in, greatest(at + i, in->first), 0, k_bytes);
        }
        uint32_t r = 0;
        for (; r + 4 <= in->n_rows; r += 4)
            few_scores8(codec, 4, in, q + (size_t)r * padded, k, s + (size_t)r * SPLIT + at);
        const float *rest = q + (size_t)r * padded;
        float *to = s + (size_t)r * SPLIT + at;
        if (in->n_rows - r == 3) few_scores8(codec, 3, in, rest, k, to);
        if (in->n_rows - r == 2) few_scores8(codec, 2, in, rest, k, to);
        if (in->n_rows - r == 1) few_scores8(codec, 1, in, rest, k, to);
    }
}

/* All ones where a position, given by its vector, lies in [lo, hi). */
INLINE __m256 inside8(__m256i position, __m256i lo, __m256i hi)
{
    __m256i before = _mm256_cmpgt_epi32(lo, position);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before, _mm256_cmpgt_epi32(hi, position)));
}

/* Scores of one row to weights, with their maximum and denominator. s: [SPLIT] */
static void few_softmax(const sheaf__attn_split *in, uint32_t row, float *s, float *m_out,
                        float *l_out)
{
    const uint32_t lo = in->lo[row], hi = in->hi[row];
    const __m256i los = _mm256_set1_epi32((int)lo), his = _mm256_set1_epi32((int)hi);
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 top = none;
    for (uint32_t at = lo & ~7u; at < hi; at += 8) {
        __m256i position = _mm256_add_epi32(iota, _mm256_set1_epi32((int)at));
        __m256 x = _mm256_load_ps(s + at);
        if (in->softcap != 0.0f) x = cap8(x, in->softcap);
        x = _mm256_blendv_ps(none, x, inside8(position, los, his));
        _mm256_store_ps(s + at, x);
        top = _mm256_max_ps(top, x);
    }
    float m = max8(top);
    __m256 ms = _mm256_set1_ps(m), lanes[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t at = lo & ~7u; at < hi; at += 8) {
        __m256 p = exp8(_mm256_sub_ps(_mm256_load_ps(s + at), ms));
        _mm256_store_ps(s + at, p);
        lanes[at / 8 % 2] = _mm256_add_ps(lanes[at / 8 % 2], p);
    }
    *m_out = m;
    *l_out = lo < hi ? tree16(lanes[0], lanes[1]) : 0.0f;
}

/* o += weights times values over positions [a, b), `vecs` vectors of columns from vector c on.
 * Each pass fetches its own columns of what is read later.
 * s: [rows, SPLIT]; o: [rows, o_stride] */
INLINE void few_values_columns(const uint32_t codec, const int rows, const int vecs,
                               const int whole, const sheaf__attn_split *in, uint32_t c,
                               uint32_t a, uint32_t b, const float *s, float *o)
{
    const size_t from = (size_t)c * W * sheaf__attn_number_bytes(codec),
                 to = from + (size_t)vecs * W * sheaf__attn_number_bytes(codec);
    __m256 sum[4][8];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm256_load_ps(o + (size_t)r * in->o_stride + (c + (uint32_t)j) * W);
    for (uint32_t p = a; p < b; p++) {
        const unsigned char *row = in->v[p];
        sheaf__attn_fetch_after_value(in, p, from, to);
        __m256 v[8];
        for (int j = 0; j < vecs; j++) {
            uint32_t i = c + (uint32_t)j;
            v[j] = whole ? widen8(codec, row + (size_t)i * W * sheaf__attn_number_bytes(codec))
                         : widen_at(codec, row, i, in->value_dim);
        }
        for (int r = 0; r < rows; r++) {
            __m256 w = _mm256_broadcast_ss(s + (size_t)r * SPLIT + p);
            for (int j = 0; j < vecs; j++) sum[r][j] = _mm256_fmadd_ps(w, v[j], sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            _mm256_store_ps(o + (size_t)r * in->o_stride + (c + (uint32_t)j) * W, sum[r][j]);
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
    while (vecs - c > 4 || vecs - c == 3) {
        few_values_columns(codec, rows, 3, 1, in, c, a, b, s, o);
        c += 3;
    }
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

INLINE void few_values_one(const uint32_t codec, const sheaf__attn_split *in, uint32_t a,
                           uint32_t b, const float *s, float *o)
{
    switch (codec) {
    case SHEAF_CODEC_F32: few_values_f32(in, a, b, s, o); break;
    case SHEAF_CODEC_F16: few_values_f16(in, a, b, s, o); break;
    default: few_values_bf16(in, a, b, s, o); break;
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

static void few_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    const float *q = in->scratch + sheaf__attn_scratch_queries();
    switch (in->codec_k) {
    case SHEAF_CODEC_F32: few_scores(SHEAF_CODEC_F32, in, q, s); break;
    case SHEAF_CODEC_F16: few_scores(SHEAF_CODEC_F16, in, q, s); break;
    default: few_scores(SHEAF_CODEC_BF16, in, q, s); break;
    }
    for (uint32_t r = 0; r < in->n_rows; r++)
        few_softmax(in, r, s + (size_t)r * SPLIT, &out.m[r], &out.l[r]);
    switch (in->codec_v) {
    case SHEAF_CODEC_F32: few_outputs(SHEAF_CODEC_F32, in, s, out.o); break;
    case SHEAF_CODEC_F16: few_outputs(SHEAF_CODEC_F16, in, s, out.o); break;
    default: few_outputs(SHEAF_CODEC_BF16, in, s, out.o); break;
    }
}

/* --- many rows ---------------------------------------------------------------------------- */

/* Rows of the tile rounded up to whole vectors: the stride of scores and of packed queries. */
INLINE uint32_t many_stride(uint32_t n_rows)
{
    return (n_rows + W - 1) / W * W;
}

static void widen_row(uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    uint32_t bytes = sheaf__attn_number_bytes(codec), i = 0;
    switch (codec) {
    case SHEAF_CODEC_F32:
        for (; i + W <= n; i += W)
            _mm256_storeu_ps(dst + i, widen8(SHEAF_CODEC_F32, src + (size_t)i * bytes));
        break;
    case SHEAF_CODEC_F16:
        for (; i + W <= n; i += W)
            _mm256_storeu_ps(dst + i, widen8(SHEAF_CODEC_F16, src + (size_t)i * bytes));
        break;
    default:
        for (; i + W <= n; i += W)
            _mm256_storeu_ps(dst + i, widen8(SHEAF_CODEC_BF16, src + (size_t)i * bytes));
        break;
    }
    if (i < n) {
        float rest[W];
        _mm256_storeu_ps(rest, widen_tail(codec, src + (size_t)i * bytes, n - i));
        memcpy(dst + i, rest, (n - i) * sizeof *dst);
    }
}

/* n rows from position a on to dst: [n, padded dim], zeros behind each row. */
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
    __m256 wait[4][4][3], sum[4][3];
    for (uint32_t i = 0; i < 16; i++) {
        for (int x = 0; x < keys; x++)
            for (int j = 0; j < vecs; j++) sum[x][j] = _mm256_setzero_ps();
        for (uint32_t d = order[i]; d < padded; d += 16) {
            __m256 rows[3];
            for (int j = 0; j < vecs; j++)
                rows[j] = _mm256_load_ps(q + (size_t)d * stride + (size_t)j * W);
            for (int x = 0; x < keys; x++) {
                __m256 key = _mm256_broadcast_ss(k + (size_t)x * padded + d);
                for (int j = 0; j < vecs; j++)
                    sum[x][j] = _mm256_fmadd_ps(rows[j], key, sum[x][j]);
            }
        }
        uint32_t level = 0;
        for (; i >> level & 1; level++)
            for (int x = 0; x < keys; x++)
                for (int j = 0; j < vecs; j++)
                    sum[x][j] = _mm256_add_ps(wait[level][x][j], sum[x][j]);
        if (level == 4) break;
        for (int x = 0; x < keys; x++)
            for (int j = 0; j < vecs; j++) wait[level][x][j] = sum[x][j];
    }
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++)
            _mm256_store_ps(s + (size_t)x * stride + (size_t)j * W,
                            _mm256_mul_ps(sum[x][j], _mm256_set1_ps(scale)));
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
        for (; row + 3 * W <= stride; row += 3 * W)
            many_scores_rows(3, q + row, stride, k, padded, n, in->scale, to + row);
        if (stride - row == 2 * W)
            many_scores_rows(2, q + row, stride, k, padded, n, in->scale, to + row);
        if (stride - row == W)
            many_scores_rows(1, q + row, stride, k, padded, n, in->scale, to + row);
    }
}

/* Scores of eight rows from `row` on to weights. s: [SPLIT, stride] from the first of them */
static void many_softmax8(const sheaf__attn_split *in, uint32_t row, uint32_t stride, float *s,
                          sheaf__attn_part out)
{
    int32_t lo_of[W] = {0}, hi_of[W] = {0};
    uint32_t n = least(W, in->n_rows - row), first = SPLIT, end = 0;
    for (uint32_t r = 0; r < n; r++) {
        if (in->lo[row + r] >= in->hi[row + r]) continue;
        lo_of[r] = (int32_t)in->lo[row + r], hi_of[r] = (int32_t)in->hi[row + r];
        first = least(first, in->lo[row + r]), end = greatest(end, in->hi[row + r]);
    }
    const __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)lo_of);
    const __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)hi_of);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 m = none, lanes[16];
    for (uint32_t p = first; p < end; p++) {
        __m256 x = _mm256_load_ps(s + (size_t)p * stride);
        if (in->softcap != 0.0f) x = cap8(x, in->softcap);
        x = _mm256_blendv_ps(none, x, inside8(_mm256_set1_epi32((int)p), lo, hi));
        _mm256_store_ps(s + (size_t)p * stride, x);
        m = _mm256_max_ps(m, x);
    }
    for (int i = 0; i < 16; i++) lanes[i] = _mm256_setzero_ps();
    for (uint32_t p = first; p < end; p++) {
        __m256 w = exp8(_mm256_sub_ps(_mm256_load_ps(s + (size_t)p * stride), m));
        _mm256_store_ps(s + (size_t)p * stride, w);
        lanes[p % 16] = _mm256_add_ps(lanes[p % 16], w);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = _mm256_add_ps(lanes[i], lanes[i + half]);
    float ms[W], ls[W];
    _mm256_storeu_ps(ms, m), _mm256_storeu_ps(ls, lanes[0]);
    for (uint32_t r = 0; r < n; r++) {
        out.m[row + r] = ms[r];
        out.l[row + r] = lo_of[r] < hi_of[r] ? ls[r] : 0.0f;
    }
}

/* o += weights times values over n positions, for `rows` rows and `vecs` vectors of columns.
 * w: [n, stride]; v: [n, o_stride]; o: [rows, o_stride] */
INLINE void many_values_tile(const int rows, const int vecs, const float *w, uint32_t stride,
                             const float *v, uint32_t n, uint32_t o_stride, float *o)
{
    __m256 sum[6][2];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm256_load_ps(o + (size_t)r * o_stride + (size_t)j * W);
    for (uint32_t p = 0; p < n; p++, w += stride, v += o_stride) {
        __m256 value[2];
        for (int j = 0; j < vecs; j++) value[j] = _mm256_load_ps(v + (size_t)j * W);
        for (int r = 0; r < rows; r++) {
            __m256 weight = _mm256_broadcast_ss(w + r);
            for (int j = 0; j < vecs; j++)
                sum[r][j] = _mm256_fmadd_ps(weight, value[j], sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            _mm256_store_ps(o + (size_t)r * o_stride + (size_t)j * W, sum[r][j]);
}

/* The same for all columns and the positions [a, b) of the split; v begins at position `from`. */
INLINE void many_values(const int rows, const sheaf__attn_split *in, const float *s,
                        const float *v, uint32_t from, uint32_t a, uint32_t b, float *o)
{
    if (a >= b) return;
    const uint32_t stride = many_stride(in->n_rows);
    const float *w = s + (size_t)a * stride;
    v += (size_t)(a - from) * in->o_stride;
    for (uint32_t c = 0; c < in->o_stride; c += 2 * W)
        many_values_tile(rows, 2, w, stride, v + c, b - a, in->o_stride, o + c);
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
    many_scores(in, q, widened, s);
    for (uint32_t row = 0; row < in->n_rows; row += W)
        many_softmax8(in, row, stride, s + row, out);
    many_outputs(in, s, widened, out.o);
}

/* --- the table ---------------------------------------------------------------------------- */

/* Queries to scratch, zeros behind: [row][d] for few rows, [d][row] for many. */
static void pack(const sheaf__attn_split *in)
{
    const uint32_t padded = sheaf__attn_padded(in->key_dim), dim = in->key_dim;
    float *q = in->scratch + sheaf__attn_scratch_queries();
    if (sheaf__codec_is_quantized(in->codec_k)) {
        sheaf__attn_scalar.pack(in);
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

/* Quantized keys or values take the scalar form. */
static void split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    if (sheaf__codec_is_quantized(in->codec_k) || sheaf__codec_is_quantized(in->codec_v))
        sheaf__attn_scalar.split(in, out);
    else if (in->n_rows < FEW_ROWS)
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
        __m256 m1 = _mm256_set1_ps(left.m[r]), m2 = _mm256_set1_ps(right.m[r]);
        __m256 m = _mm256_max_ps(m1, m2);
        __m256 a1 = exp8(_mm256_sub_ps(m1, m)), a2 = exp8(_mm256_sub_ps(m2, m));
        __m256 l = _mm256_fmadd_ps(_mm256_set1_ps(right.l[r]), a2,
                                   _mm256_mul_ps(_mm256_set1_ps(left.l[r]), a1));
        left.m[r] = _mm256_cvtss_f32(m);
        left.l[r] = _mm256_cvtss_f32(l);
        for (uint32_t d = 0; d < o_stride; d += W) {
            __m256 x = _mm256_mul_ps(_mm256_load_ps(o1 + d), a1);
            _mm256_store_ps(o1 + d, _mm256_fmadd_ps(_mm256_load_ps(o2 + d), a2, x));
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
        __m256 l = _mm256_set1_ps(part.l[r]);
        if (rows->sinks != NULL) {
            __m256 m = _mm256_set1_ps(part.m[r]), sink = _mm256_set1_ps(rows->sinks[r]);
            __m256 joint = _mm256_max_ps(m, sink);
            __m256 a = exp8(_mm256_sub_ps(m, joint));
            l = _mm256_fmadd_ps(l, a, exp8(_mm256_sub_ps(sink, joint)));
            for (uint32_t d = 0; d < o_stride; d += W)
                _mm256_store_ps(o + d, _mm256_mul_ps(_mm256_load_ps(o + d), a));
        }
        for (uint32_t d = 0; d < o_stride; d += W)
            _mm256_store_ps(o + d, _mm256_div_ps(_mm256_load_ps(o + d), l));
        if (rows->codec_v == SHEAF_CODEC_TURBO4) sheaf__turbo4_unrotate(o, value_dim);
        memcpy(rows->out[r], o, value_dim * sizeof *o);
    }
}

const sheaf__attn_kernels sheaf__attn_avx2 = {
    SHEAF_ISA_AVX2, pack, split, merge, finish, widen_row,
};

#endif
