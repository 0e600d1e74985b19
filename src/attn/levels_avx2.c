/* attn/levels_avx2.c - quantized keys and values, sixteen levels a vector.
 *
 * Levels of queries and keys are multiplied as int16 and added in pairs to int32, exactly, whatever
 * the order. Queries lie in the scratch:
 *
 *   few rows    [row][padded]; vectors lie along the head dimension, eight positions of a row being
 *               summed together. For turbo4 in steps of 64, as 32 bytes of codes fall apart:
 *
 *                 low halves of even bytes    0 4 8 .. 60      of odd bytes    2 6 10 .. 62
 *                 high halves of even bytes   1 5 9 .. 61      of odd bytes    3 7 11 .. 63
 *
 *   many rows   [padded / 2][stride][2]; vectors of eight rows, two elements each, against two
 *               levels of a key that was unpacked before (attn/levels.h has its order)
 */
#if defined(__x86_64__)

#    include "attn/fetch.h"
#    include "attn/levels.h"
#    include "attn/vector_avx2.h"

#    define STEP4 64  /* levels of turbo4 at a time, few rows */
#    define BIAS  127 /* makes levels bytes without a sign */

INLINE __m128i load16(const unsigned char *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

INLINE __m128i table16(void)
{
    return load16((const unsigned char *)sheaf__turbo4_levels);
}

INLINE __m256i multiply_add(__m256i sum, __m256i x, __m256i y)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
}

/* The same, added now: gcc would rather add products to each other first, and keep them in memory
 * for want of registers. */
INLINE __m256i multiply_add_now(__m256i sum, __m256i x, __m256i y)
{
    sum = multiply_add(sum, x, y);
    __asm__("" : "+x"(sum));
    return sum;
}

/* Of eight vectors: the sum of each, in order. */
INLINE __m256i sums8(const __m256i v[8])
{
    __m256i a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = _mm256_add_epi32(_mm256_permute2x128_si256(v[i], v[i + 4], 0x21),
                                _mm256_blend_epi32(v[i], v[i + 4], 0xf0));
    for (int i = 0; i < 2; i++)
        b[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
                                _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    return _mm256_hadd_epi32(b[0], b[1]);
}

/* --- few rows ----------------------------------------------------------------------------- */

/* Levels between two rows of queries. */
INLINE uint32_t few_stride(uint32_t codec, uint32_t dim)
{
    if (codec == SHEAF_CODEC_TURBO4) return (dim + STEP4 - 1) / STEP4 * STEP4;
    return sheaf__levels_padded(dim);
}

/* Two vectors of levels of a key: a step of int8, or half of one of turbo4 (the low halves of its
 * bytes, then the high ones), each level of turbo4 BIAS too large. */
INLINE void few_unpack(const uint32_t codec, const int part, const unsigned char *p,
                       __m256i key[2])
{
    if (codec == SHEAF_CODEC_INT8) {
        for (int i = 0; i < 2; i++) key[i] = _mm256_cvtepi8_epi16(load16(p + i * 16));
        return;
    }
    const __m256i low = _mm256_set1_epi8(15), even = _mm256_set1_epi16(255);
    const __m256i table =
        _mm256_add_epi8(_mm256_broadcastsi128_si256(table16()), _mm256_set1_epi8(BIAS));
    __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (part == 1) codes = _mm256_srli_epi16(codes, 4);
    codes = _mm256_shuffle_epi8(table, _mm256_and_si256(codes, low));
    key[0] = _mm256_and_si256(codes, even);
    key[1] = _mm256_srli_epi16(codes, 8);
}

/* Adds a step of two positions to their sums. q: of the step's first level. A vector of a query
 * meets both keys before the next is loaded, so that eight sums and four vectors of keys are all
 * that stays in registers. */
INLINE void few_step(const uint32_t codec, const int rows, const int16_t *q, size_t stride,
                     const unsigned char *const *k, size_t at, __m256i sum[8])
{
    const int parts = codec == SHEAF_CODEC_INT8 ? 1 : 2;
    for (int part = 0; part < parts; part++, q += 2 * 16) {
        __m256i key[2][2];
        for (int i = 0; i < 2; i++) few_unpack(codec, part, k[i] + at, key[i]);
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < 2; j++) {
                const int16_t *from = q + (size_t)r * stride + (size_t)j * 16;
                __m256i x = _mm256_load_si256((const __m256i *)(const void *)from);
                for (int i = 0; i < 2; i++)
                    sum[2 * r + i] = multiply_add_now(sum[2 * r + i], x, key[i][j]);
            }
    }
}

/* Sums of two positions for `rows` rows: [row][2] vectors. */
INLINE void few_pair(const uint32_t codec, const int rows, uint32_t dim, const int16_t *q,
                     const unsigned char *const *k, const unsigned char *const *ends,
                     __m256i sum[8])
{
    const uint32_t step = codec == SHEAF_CODEC_INT8 ? SHEAF__LEVELS_STEP : STEP4;
    const size_t stride = few_stride(codec, dim);
    for (int i = 0; i < 2 * rows; i++) sum[i] = _mm256_setzero_si256();
    uint32_t d = 0;
    for (; d + step <= dim; d += step)
        few_step(codec, rows, q + d, stride, k, codec == SHEAF_CODEC_INT8 ? d : d / 2, sum);
    if (d < dim) few_step(codec, rows, q + d, stride, ends, 0, sum);
}

/* Of four vectors, each of two positions and four rows, [row][2]: a vector of eight positions for
 * each row. */
INLINE void rows_of_pairs(const __m256i pairs[4], __m256i rows[4])
{
    __m256i a = _mm256_unpacklo_epi64(pairs[0], pairs[1]); /* rows 0 and 2 */
    __m256i b = _mm256_unpackhi_epi64(pairs[0], pairs[1]); /* rows 1 and 3 */
    __m256i c = _mm256_unpacklo_epi64(pairs[2], pairs[3]);
    __m256i d = _mm256_unpackhi_epi64(pairs[2], pairs[3]);
    rows[0] = _mm256_permute2x128_si256(a, c, 0x20);
    rows[1] = _mm256_permute2x128_si256(b, d, 0x20);
    rows[2] = _mm256_permute2x128_si256(a, c, 0x31);
    rows[3] = _mm256_permute2x128_si256(b, d, 0x31);
}

/* Scores of eight positions, whose scales are given, for `rows` query rows, four or fewer.
 * ends: the last, partial step of each position, padded; units and biases: [rows];
 * s: [rows, SPLIT] from the first position */
INLINE void few_scores8(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                        const int16_t *q, const unsigned char *const *k,
                        const unsigned char *const *ends, const float *units,
                        const int32_t *biases, __m256 scales, float *s)
{
    __m256i of_row[4], pairs[4], sums[2][8];
    for (int i = 0; i < 8; i += 2) {
        __m256i sum[8];
        few_pair(codec, rows, in->key_dim, q, k + i, ends + i, sum);
        if (rows == 4) pairs[i / 2] = sums8(sum);
        for (int r = 0; r < rows && rows < 4; r++)
            sums[r][i] = sum[2 * r], sums[r][i + 1] = sum[2 * r + 1];
    }
    if (rows == 4) rows_of_pairs(pairs, of_row);
    for (int r = 0; r < rows; r++) {
        __m256i sum = rows == 4 ? of_row[r] : sums8(sums[r % 2]);
        if (codec == SHEAF_CODEC_TURBO4)
            sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(biases[r]));
        __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scales);
        _mm256_store_ps(s + (size_t)r * SPLIT,
                        _mm256_mul_ps(x, _mm256_set1_ps(units[r] * in->scale)));
    }
}

/* What the bias of turbo4's levels adds to every sum of a row, modulo 2^32. */
static void few_biases(const sheaf__attn_split *in, int32_t *biases)
{
    const uint32_t stride = few_stride(in->codec_k, in->key_dim);
    for (uint32_t r = 0; r < in->n_rows; r++) {
        const int16_t *q = sheaf__levels_queries(in) + (size_t)r * stride;
        uint32_t sum = 0;
        for (uint32_t d = 0; d < stride && in->codec_k == SHEAF_CODEC_TURBO4; d++)
            sum += (uint32_t)q[d];
        biases[r] = (int32_t)(sum * BIAS);
    }
}

/* The same of all rows, positions [at, at + 8). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in,
                       const unsigned char *const *k, const unsigned char *const *ends,
                       __m256 scales, const int32_t *biases, float *s)
{
    const size_t stride = few_stride(codec, in->key_dim);
    const int16_t *q = sheaf__levels_queries(in);
    const float *units = sheaf__levels_units(in);
    uint32_t r = 0;
    for (; r + 4 <= in->n_rows; r += 4)
        few_scores8(codec, 4, in, q + r * stride, k, ends, units + r, biases + r, scales,
                    s + (size_t)r * SPLIT);
    for (; r + 2 <= in->n_rows; r += 2)
        few_scores8(codec, 2, in, q + r * stride, k, ends, units + r, biases + r, scales,
                    s + (size_t)r * SPLIT);
    if (r < in->n_rows)
        few_scores8(codec, 1, in, q + r * stride, k, ends, units + r, biases + r, scales,
                    s + (size_t)r * SPLIT);
}

/* Whole groups of eight around [first, end); those that are not seen whole are clamped to what is. */
INLINE void few_groups(const uint32_t codec, const sheaf__attn_split *in, const int32_t *biases,
                       float *s)
{
    const uint32_t step = codec == SHEAF_CODEC_INT8 ? SHEAF__LEVELS_STEP : STEP4;
    const size_t whole = (size_t)sheaf__codec_row_bytes(codec, in->key_dim / step * step),
                 bytes = (size_t)sheaf__codec_row_bytes(codec, in->key_dim);
    unsigned char padded[8][32] = {{0}};
    const unsigned char *ends[8];
    for (uint32_t i = 0; i < 8; i++) ends[i] = padded[i];
    for (uint32_t at = in->first & ~7u; at < in->end; at += 8) {
        const unsigned char *const *k = in->k + at, *clamped[8];
        const float *scales = in->k_scale + at;
        float clamped_scales[8];
        if (at >= in->first && at + 8 <= in->end) {
            sheaf__attn_fetch_ahead(sheaf__attn_ahead_of_keys(in, at, 8), 8, bytes,
                                    SHEAF__ATTN_EACH_QUANTIZED);
        } else {
            for (uint32_t i = 0; i < 8; i++) {
                uint32_t p = least(greatest(at + i, in->first), in->end - 1);
                clamped[i] = in->k[p];
                clamped_scales[i] = in->k_scale[p];
            }
            k = clamped;
            scales = clamped_scales;
        }
        for (uint32_t i = 0; i < 8 && bytes > whole; i++)
            memcpy(padded[i], k[i] + whole, bytes - whole);
        few_scores(codec, in, k, ends, _mm256_loadu_ps(scales), biases, s + at);
    }
}

void sheaf__levels_avx2_few(const sheaf__attn_split *in, float *s)
{
    int32_t biases[FEW_ROWS];
    few_biases(in, biases);
    if (in->codec_k == SHEAF_CODEC_INT8)
        few_groups(SHEAF_CODEC_INT8, in, biases, s);
    else
        few_groups(SHEAF_CODEC_TURBO4, in, biases, s);
}

/* --- many rows ---------------------------------------------------------------------------- */

/* A step of 32 levels from p, in the order of attn/levels.h. */
INLINE void unpack32(const uint32_t codec, const unsigned char *p, int16_t *dst)
{
    __m128i a = load16(p), b;
    if (codec == SHEAF_CODEC_INT8) {
        b = load16(p + 16);
    } else {
        const __m128i low = _mm_set1_epi8(15), table = table16();
        b = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(a, 4), low));
        a = _mm_shuffle_epi8(table, _mm_and_si128(a, low));
    }
    _mm256_store_si256((__m256i *)(void *)dst, _mm256_cvtepi8_epi16(a));
    _mm256_store_si256((__m256i *)(void *)(dst + 16), _mm256_cvtepi8_epi16(b));
}

/* n keys to dst: [n, padded]. */
INLINE void unpack_keys(const uint32_t codec, const unsigned char *const *keys, uint32_t dim,
                        uint32_t n, int16_t *dst)
{
    const uint32_t padded = sheaf__levels_padded(dim), L = SHEAF__LEVELS_STEP;
    for (uint32_t i = 0; i < n; i++, dst += padded) {
        uint32_t d = 0;
        for (; d + L <= dim; d += L)
            unpack32(codec, keys[i] + sheaf__codec_row_bytes(codec, d), dst + d);
        if (d == dim) continue;
        unsigned char rest[32] = {0};
        memcpy(rest, keys[i] + sheaf__codec_row_bytes(codec, d),
               (size_t)sheaf__codec_row_bytes(codec, dim - d));
        unpack32(codec, rest, dst + d);
    }
}

/* Scores of `keys` positions for `vecs` vectors of query rows.
 * q: [padded / 2, stride, 2] from the first of these rows; units: theirs, times the scale;
 * k: [keys, padded]; scales: [keys]; s: [keys, stride] */
INLINE void many_scores_tile(const int keys, const int vecs, const int16_t *q, uint32_t stride,
                             const __m256 units[3], const int16_t *k, uint32_t padded,
                             const float *scales, float *s)
{
    __m256i sum[4][3];
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++) sum[x][j] = _mm256_setzero_si256();
    for (uint32_t d = 0; d < padded; d += 2, q += 2 * (size_t)stride) {
        for (int x = 0; x < keys; x++) {
            int32_t pair;
            memcpy(&pair, k + (size_t)x * padded + d, sizeof pair);
            __m256i key = _mm256_set1_epi32(pair);
            for (int j = 0; j < vecs; j++)
                sum[x][j] = multiply_add(
                    sum[x][j],
                    _mm256_load_si256((const __m256i *)(const void *)(q + (size_t)j * 2 * W)),
                    key);
        }
    }
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++) {
            __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[x][j]), _mm256_set1_ps(scales[x]));
            _mm256_store_ps(s + (size_t)x * stride + (size_t)j * W, _mm256_mul_ps(y, units[j]));
        }
}

/* The same for n positions; `row` is the first of the rows, s that of position 0. */
INLINE void many_scores_rows(const int vecs, const sheaf__attn_split *in, uint32_t row,
                             const int16_t *k, const float *scales, uint32_t n, float *s)
{
    const uint32_t stride = many_stride(in->n_rows), padded = sheaf__levels_padded(in->key_dim);
    const int16_t *q = sheaf__levels_queries(in) + 2 * (size_t)row;
    __m256 units[3];
    for (int j = 0; j < vecs; j++)
        units[j] = _mm256_mul_ps(_mm256_load_ps(sheaf__levels_units(in) + row + (size_t)j * W),
                                 _mm256_set1_ps(in->scale));
    uint32_t x = 0;
    for (s += row; x + 4 <= n; x += 4)
        many_scores_tile(4, vecs, q, stride, units, k + (size_t)x * padded, padded, scales + x,
                         s + (size_t)x * stride);
    for (; x < n; x++)
        many_scores_tile(1, vecs, q, stride, units, k + (size_t)x * padded, padded, scales + x,
                         s + (size_t)x * stride);
}

void sheaf__levels_avx2_many(const sheaf__attn_split *in, float *s)
{
    const uint32_t stride = many_stride(in->n_rows);
    int16_t *k = (int16_t *)(void *)(in->scratch + sheaf__attn_scratch_widened(in->key_dim));
    for (uint32_t a = in->first; a < in->end; a += SHEAF__ATTN_KEYS) {
        uint32_t n = least(SHEAF__ATTN_KEYS, in->end - a), row = 0;
        float *to = s + (size_t)a * stride;
        if (in->codec_k == SHEAF_CODEC_INT8)
            unpack_keys(SHEAF_CODEC_INT8, in->k + a, in->key_dim, n, k);
        else
            unpack_keys(SHEAF_CODEC_TURBO4, in->k + a, in->key_dim, n, k);
        for (; row + 3 * W <= stride; row += 3 * W)
            many_scores_rows(3, in, row, k, in->k_scale + a, n, to);
        if (stride - row == 2 * W) many_scores_rows(2, in, row, k, in->k_scale + a, n, to);
        if (stride - row == W) many_scores_rows(1, in, row, k, in->k_scale + a, n, to);
    }
}

/* --- queries ------------------------------------------------------------------------------ */

/* Where element d of a query row lies for few_unpack. */
static uint32_t turbo4_place(uint32_t d)
{
    uint32_t byte = d % STEP4 / 2;
    return d / STEP4 * STEP4 + (d % 2 * 2 + byte % 2) * 16 + byte / 2;
}

void sheaf__levels_avx2_pack(const sheaf__attn_split *in)
{
    const uint32_t dim = in->key_dim, stride = few_stride(in->codec_k, dim);
    if (in->n_rows >= FEW_ROWS) {
        sheaf__levels_pack(in, many_stride(in->n_rows), 2);
        return;
    }
    if (in->codec_k == SHEAF_CODEC_INT8) {
        sheaf__levels_pack(in, 0, 1);
        return;
    }
    int16_t *q = sheaf__levels_queries(in), row[SHEAF_ATTN_MAX_DIM];
    memset(q, 0, (size_t)in->n_rows * stride * sizeof *q);
    for (uint32_t r = 0; r < in->n_rows; r++, q += stride) {
        sheaf__levels_units(in)[r] = sheaf__levels_of(in->codec_k, in->q[r], dim, row);
        for (uint32_t d = 0; d < dim; d++)
            q[turbo4_place(d)] = row[sheaf__levels_place(in->codec_k, d)];
    }
}

/* --- values ------------------------------------------------------------------------------- */

/* The low and the high bytes of the 16 levels as bf16, which has seven binary digits and so holds
 * each exactly. */
INLINE void bf16_tables(__m256i *low, __m256i *high)
{
    __m256 a = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(table16()));
    __m256 b = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(table16(), 8)));
    __m256i words = _mm256_packus_epi32(_mm256_srli_epi32(_mm256_castps_si256(a), 16),
                                        _mm256_srli_epi32(_mm256_castps_si256(b), 16));
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m256i l = _mm256_and_si256(words, _mm256_set1_epi16(255));
    __m256i h = _mm256_srli_epi16(words, 8);
    *low = _mm256_permute4x64_epi64(_mm256_packus_epi16(l, l), 0x88);
    *high = _mm256_permute4x64_epi64(_mm256_packus_epi16(h, h), 0x88);
}

/* 64 levels as bf16: the two bytes of each are looked up apart.
 *
 *     to[0]   0  2 .. 14    32 34 .. 46        to[2]   1  3 .. 15    33 35 .. 47
 *     to[1]  16 18 .. 30    48 50 .. 62        to[3]  17 19 .. 31    49 51 .. 63
 */
INLINE void bf16_of_64(__m256i codes, __m256i low_table, __m256i high_table, __m256i to[4])
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i a = _mm256_and_si256(codes, low);
    __m256i b = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
    __m256i a0 = _mm256_shuffle_epi8(low_table, a), a1 = _mm256_shuffle_epi8(high_table, a);
    __m256i b0 = _mm256_shuffle_epi8(low_table, b), b1 = _mm256_shuffle_epi8(high_table, b);
    to[0] = _mm256_unpacklo_epi8(a0, a1), to[1] = _mm256_unpackhi_epi8(a0, a1);
    to[2] = _mm256_unpacklo_epi8(b0, b1), to[3] = _mm256_unpackhi_epi8(b0, b1);
}

/* The four vectors of bf16_of_64 in order of their numbers. */
INLINE void store_in_order(const __m256i from[4], uint16_t *dst)
{
    for (int half = 0; half < 2; half++) {
        __m256i x = _mm256_unpacklo_epi16(from[half], from[half + 2]);
        __m256i y = _mm256_unpackhi_epi16(from[half], from[half + 2]);
        __m128i *to = (__m128i *)(void *)(dst + half * 16);
        _mm_store_si128(to, _mm256_castsi256_si128(x));
        _mm_store_si128(to + 1, _mm256_castsi256_si128(y));
        _mm_store_si128(to + 4, _mm256_extracti128_si256(x, 1));
        _mm_store_si128(to + 5, _mm256_extracti128_si256(y, 1));
    }
}

void sheaf__levels_avx2_bf16(const unsigned char *const *rows, uint32_t n, uint32_t dim,
                             uint16_t *dst)
{
    const uint32_t padded = (dim + 63) & ~63u;
    __m256i low, high, levels[4];
    bf16_tables(&low, &high);
    for (uint32_t i = 0; i < n; i++, dst += padded) {
        uint32_t d = 0;
        for (; d + 64 <= dim; d += 64) {
            const void *from = rows[i] + d / 2;
            bf16_of_64(_mm256_loadu_si256((const __m256i *)from), low, high, levels);
            store_in_order(levels, dst + d);
        }
        if (d == dim) continue;
        unsigned char rest[32] = {0};
        memcpy(rest, rows[i] + d / 2, (dim - d + 1) / 2);
        bf16_of_64(_mm256_loadu_si256((const __m256i *)(const void *)rest), low, high, levels);
        store_in_order(levels, dst + d);
    }
}

void sheaf__levels_avx2_mixed(const unsigned char *const *rows, uint32_t n, uint32_t dim,
                              uint16_t *dst)
{
    __m256i low, high, levels[4];
    bf16_tables(&low, &high);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d += 64, dst += 64) {
            const void *from = rows[i] + d / 2;
            bf16_of_64(_mm256_loadu_si256((const __m256i *)from), low, high, levels);
            for (int j = 0; j < 4; j++)
                _mm256_store_si256((__m256i *)(void *)(dst + j * 16), levels[j]);
        }
}

/* 16 columns, and the 16 that come 32 later, of which there are
 *     from       0 4 8 12  32 36 40 44       2 6 10 14  34 38 42 46
 *     from + 32  1 5 9 13  33 37 41 45       3 7 11 15  35 39 43 47 */
INLINE void order_32(const float *from, __m256 to[4])
{
    __m256 a = _mm256_load_ps(from), b = _mm256_load_ps(from + W);
    __m256 c = _mm256_load_ps(from + 32), d = _mm256_load_ps(from + 32 + W);
    __m256 ac[2] = {_mm256_unpacklo_ps(a, c), _mm256_unpackhi_ps(a, c)};
    __m256 bd[2] = {_mm256_unpacklo_ps(b, d), _mm256_unpackhi_ps(b, d)};
    for (int i = 0; i < 2; i++) {
        __m256 x = _mm256_shuffle_ps(ac[i], bd[i], 0x44);
        __m256 y = _mm256_shuffle_ps(ac[i], bd[i], 0xee);
        to[i] = _mm256_permute2f128_ps(x, y, 0x20);
        to[i + 2] = _mm256_permute2f128_ps(x, y, 0x31);
    }
}

void sheaf__levels_avx2_order(float *o, size_t n)
{
    for (float *end = o + n; o < end; o += 64)
        for (int half = 0; half < 2; half++) {
            __m256 to[4];
            float *at = o + half * 16;
            order_32(at, to);
            _mm256_store_ps(at, to[0]), _mm256_store_ps(at + W, to[1]);
            _mm256_store_ps(at + 32, to[2]), _mm256_store_ps(at + 32 + W, to[3]);
        }
}

#endif
