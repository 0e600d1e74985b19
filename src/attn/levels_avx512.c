/* attn/levels_avx512.c - scores of quantized keys, 32 levels a vector.
 *
 * Levels of queries and keys are multiplied as int16 and added in pairs to int32, exactly, whatever
 * the order (attn/levels.h). Queries lie in the scratch:
 *
 *   few rows    [row][padded]; vectors lie along the head dimension, sixteen positions of a row
 *               being summed together
 *   many rows   [padded / 2][stride][2]; vectors of sixteen rows, two elements each, against two
 *               levels of a key that was unpacked before
 */
#if defined(__x86_64__)

#    include "attn/fetch.h"
#    include "attn/levels.h"
#    include "attn/vector_avx512.h"

#    define L SHEAF__LEVELS_STEP

/* The levels of sixteen bytes' low halves, then those of their high halves. */
INLINE __m512i levels_turbo4(__m128i codes)
{
    const __m256i shift = _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)sheaf__turbo4_levels));
    __m256i x = _mm256_srlv_epi16(_mm256_broadcastsi128_si256(codes), shift);
    x = _mm256_and_si256(x, _mm256_set1_epi8(15));
    return _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(table, x));
}

/* A step of 32 levels from p. */
INLINE __m512i levels32(const uint32_t codec, const unsigned char *p)
{
    if (codec == SHEAF_CODEC_INT8)
        return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return levels_turbo4(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* The first n < 32 levels from p, then any; reads no byte beyond them. */
INLINE __m512i levels_tail(const uint32_t codec, const unsigned char *p, uint32_t n)
{
    if (codec == SHEAF_CODEC_INT8)
        return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8((1u << n) - 1, p));
    return levels_turbo4(_mm_maskz_loadu_epi8((__mmask16)((1u << (n + 1) / 2) - 1), p));
}

INLINE __m512i multiply_add(__m512i sum, __m512i x, __m512i y)
{
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, y));
}

/* --- few rows ----------------------------------------------------------------------------- */

/* Vectors of partial sums of four positions from `at` on. q: [rows, padded] */
INLINE void few_sums(const uint32_t codec, const int rows, const int at, uint32_t dim,
                     const int16_t *q, const unsigned char *const k[16], __m512i sums[4][16])
{
    const size_t padded = sheaf__levels_padded(dim);
    __m512i sum[4][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++) sum[r][i] = _mm512_setzero_si512();
    uint32_t d = 0;
    for (; d + L <= dim; d += L) {
        __m512i key[4];
        for (int i = 0; i < 4; i++) key[i] = levels32(codec, k[at + i] + bytes_of(codec, d));
        for (int r = 0; r < rows; r++) {
            __m512i x = _mm512_load_si512(q + (size_t)r * padded + d);
            for (int i = 0; i < 4; i++) sum[r][i] = multiply_add(sum[r][i], x, key[i]);
        }
    }
    for (int i = 0; i < 4 && d < dim; i++) {
        __m512i key = levels_tail(codec, k[at + i] + bytes_of(codec, d), dim - d);
        for (int r = 0; r < rows; r++)
            sum[r][i] =
                multiply_add(sum[r][i], _mm512_load_si512(q + (size_t)r * padded + d), key);
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < 4; i++) sums[r][at + i] = sum[r][i];
}

/* Scores of 16 positions, whose scales are given, for `rows` query rows.
 * units: [rows]; s: [rows, SPLIT] from the first position */
INLINE void few_scores16(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                         const int16_t *q, const float *units, const unsigned char *const k[16],
                         __m512 scales, float *s)
{
    __m512i sums[4][16];
    few_sums(codec, rows, 0, in->key_dim, q, k, sums);
    few_sums(codec, rows, 4, in->key_dim, q, k, sums);
    few_sums(codec, rows, 8, in->key_dim, q, k, sums);
    few_sums(codec, rows, 12, in->key_dim, q, k, sums);
    for (int r = 0; r < rows; r++) {
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sums16(sums[r])), scales);
        _mm512_store_ps(s + (size_t)r * SPLIT,
                        _mm512_mul_ps(x, _mm512_set1_ps(units[r] * in->scale)));
    }
}

/* Whole groups of sixteen around [first, end). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, float *s)
{
    const size_t padded = sheaf__levels_padded(in->key_dim);
    const size_t k_bytes = (size_t)sheaf__codec_row_bytes(codec, in->key_dim);
    const __m512i first = _mm512_set1_epi32((int)in->first),
                  end = _mm512_set1_epi32((int)in->end);
    for (uint32_t at = in->first & ~15u; at < in->end; at += 16) {
        const unsigned char *k[16];
        for (uint32_t i = 0; i < 16; i++) {
            k[i] = in->k[least(greatest(at + i, in->first), in->end - 1)];
            if (at + i < in->end)
                sheaf__attn_fetch_after_key(in, greatest(at + i, in->first), 0, k_bytes);
        }
        __m512 scales =
            _mm512_maskz_loadu_ps(inside16(positions16(at), first, end), in->k_scale + at);
        const int16_t *q = sheaf__levels_queries(in);
        const float *units = sheaf__levels_units(in);
        float *to = s + at;
        uint32_t left = in->n_rows;
        for (; left >= 4; left -= 4, q += 4 * padded, units += 4, to += 4 * SPLIT)
            few_scores16(codec, 4, in, q, units, k, scales, to);
        if (left == 3) few_scores16(codec, 3, in, q, units, k, scales, to);
        if (left == 2) few_scores16(codec, 2, in, q, units, k, scales, to);
        if (left == 1) few_scores16(codec, 1, in, q, units, k, scales, to);
    }
}

void sheaf__levels_avx512_few(const sheaf__attn_split *in, float *s)
{
    if (in->codec_k == SHEAF_CODEC_INT8)
        few_scores(SHEAF_CODEC_INT8, in, s);
    else
        few_scores(SHEAF_CODEC_TURBO4, in, s);
}

/* --- many rows ---------------------------------------------------------------------------- */

/* n keys to dst: [n, padded]. */
INLINE void unpack_keys(const uint32_t codec, const unsigned char *const *keys, uint32_t dim,
                        uint32_t n, int16_t *dst)
{
    for (uint32_t i = 0; i < n; i++, dst += sheaf__levels_padded(dim)) {
        uint32_t d = 0;
        for (; d + L <= dim; d += L)
            _mm512_store_si512(dst + d, levels32(codec, keys[i] + bytes_of(codec, d)));
        if (d < dim)
            _mm512_store_si512(dst + d,
                               levels_tail(codec, keys[i] + bytes_of(codec, d), dim - d));
    }
}

/* Scores of `keys` positions for `vecs` vectors of query rows.
 * q: [padded / 2, stride, 2] from the first of these rows; units: of these rows; k: [keys, padded];
 * scales: [keys]; s: [keys, stride] */
INLINE void many_scores_tile(const int keys, const int vecs, const int16_t *q, uint32_t stride,
                             const __m512 units[3], const int16_t *k, uint32_t padded,
                             const float *scales, float *s)
{
    __m512i sum[8][3];
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++) sum[x][j] = _mm512_setzero_si512();
    for (uint32_t d = 0; d < padded; d += 2, q += 2 * (size_t)stride) {
        __m512i rows[3];
        for (int j = 0; j < vecs; j++) rows[j] = _mm512_load_si512(q + (size_t)j * 2 * W);
        for (int x = 0; x < keys; x++) {
            int32_t pair;
            memcpy(&pair, k + (size_t)x * padded + d, sizeof pair);
            __m512i key = _mm512_set1_epi32(pair);
            for (int j = 0; j < vecs; j++) sum[x][j] = multiply_add(sum[x][j], rows[j], key);
        }
    }
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < vecs; j++) {
            __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[x][j]), _mm512_set1_ps(scales[x]));
            _mm512_store_ps(s + (size_t)x * stride + (size_t)j * W, _mm512_mul_ps(y, units[j]));
        }
}

/* The same for n positions; `row` is the first of the rows, s that of position 0. */
INLINE void many_scores_rows(const int vecs, const sheaf__attn_split *in, uint32_t row,
                             const int16_t *k, const float *scales, uint32_t n, float *s)
{
    const uint32_t stride = many_stride(in->n_rows), padded = sheaf__levels_padded(in->key_dim);
    const int16_t *q = sheaf__levels_queries(in) + 2 * (size_t)row;
    __m512 units[3];
    for (int j = 0; j < vecs; j++)
        units[j] = _mm512_mul_ps(_mm512_load_ps(sheaf__levels_units(in) + row + (size_t)j * W),
                                 _mm512_set1_ps(in->scale));
    uint32_t x = 0;
    for (s += row; x + 8 <= n; x += 8)
        many_scores_tile(8, vecs, q, stride, units, k + (size_t)x * padded, padded, scales + x,
                         s + (size_t)x * stride);
    for (; x < n; x++)
        many_scores_tile(1, vecs, q, stride, units, k + (size_t)x * padded, padded, scales + x,
                         s + (size_t)x * stride);
}

void sheaf__levels_avx512_many(const sheaf__attn_split *in, float *s)
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

#endif
