/* attn/levels_neon.c - scores of quantized keys, eight levels a vector.
 *
 * Levels of queries and keys are multiplied as int16 and added to int32, exactly, whatever the
 * order (attn/levels.h). Queries lie in the scratch:
 *
 *   few rows    [row][padded]; vectors lie along the head dimension
 *   many rows   [padded][stride]; vectors of eight rows against one level of a key that was
 *               unpacked before
 */
#if defined(__aarch64__)

#    include "attn/levels.h"
#    include "attn/vector_neon.h"

#    define L SHEAF__LEVELS_STEP

/* A step of 32 levels from p. */
INLINE void levels32(const uint32_t codec, const unsigned char *p, int16x8_t out[4])
{
    int8x16_t first, second;
    if (codec == SHEAF_CODEC_INT8) {
        first = vreinterpretq_s8_u8(vld1q_u8(p));
        second = vreinterpretq_s8_u8(vld1q_u8(p + 16));
    } else {
        const int8x16_t table = vld1q_s8(sheaf__turbo4_levels);
        uint8x16_t codes = vld1q_u8(p);
        first = vqtbl1q_s8(table, vandq_u8(codes, vdupq_n_u8(15)));
        second = vqtbl1q_s8(table, vshrq_n_u8(codes, 4));
    }
    out[0] = vmovl_s8(vget_low_s8(first));
    out[1] = vmovl_high_s8(first);
    out[2] = vmovl_s8(vget_low_s8(second));
    out[3] = vmovl_high_s8(second);
}

/* The first n < 32 levels from p, then any; reads no byte beyond them. */
INLINE void levels_tail(const uint32_t codec, const unsigned char *p, uint32_t n,
                        int16x8_t out[4])
{
    unsigned char copy[L] = {0};
    memcpy(copy, p, (size_t)sheaf__codec_row_bytes(codec, n));
    levels32(codec, copy, out);
}

/* --- few rows ----------------------------------------------------------------------------- */

/* One step along the head dimension for rows x keys sums. x: [rows, padded] from the step on */
INLINE void few_step(const int rows, const int keys, const int16_t *x, size_t padded,
                     int16x8_t key[4][4], int32x4_t sum[4][2])
{
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < 4; j++) {
            int16x8_t q = vld1q_s16(x + (size_t)r * padded + j * 8);
            for (int i = 0; i < keys; i++) {
                int32x4_t *to = sum[r * keys + i];
                to[0] = vmlal_s16(to[0], vget_low_s16(q), vget_low_s16(key[i][j]));
                to[1] = vmlal_high_s16(to[1], q, key[i][j]);
            }
        }
}

/* rows x keys scores; either one row with four keys, or two with two, or four with one, from row
 * `row` and position `at` on. s: that score's place in [rows, SPLIT] */
INLINE void few_scores4(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                        uint32_t row, const unsigned char *const *k, const float *scales,
                        float *s)
{
    const int keys = 4 / rows;
    const uint32_t dim = in->key_dim;
    const size_t padded = sheaf__levels_padded(dim);
    const int16_t *q = sheaf__levels_queries(in) + row * padded;
    const float *units = sheaf__levels_units(in) + row;
    int32x4_t sum[4][2];
    int16x8_t key[4][4];
    for (int i = 0; i < 4; i++) sum[i][0] = sum[i][1] = vdupq_n_s32(0);
    uint32_t d = 0;
    for (; d + L <= dim; d += L) {
        for (int i = 0; i < keys; i++) levels32(codec, k[i] + bytes_of(codec, d), key[i]);
        few_step(rows, keys, q + d, padded, key, sum);
    }
    if (d < dim) {
        for (int i = 0; i < keys; i++)
            levels_tail(codec, k[i] + bytes_of(codec, d), dim - d, key[i]);
        few_step(rows, keys, q + d, padded, key, sum);
    }
    for (int i = 0; i < 4; i++) sum[i][0] = vaddq_s32(sum[i][0], sum[i][1]);
    int32x4_t sums =
        vpaddq_s32(vpaddq_s32(sum[0][0], sum[1][0]), vpaddq_s32(sum[2][0], sum[3][0]));
    float scale_of[4], unit_of[4], score[4];
    for (int i = 0; i < 4; i++) {
        scale_of[i] = scales[i % keys];
        unit_of[i] = units[i / keys] * in->scale;
    }
    float32x4_t x = vmulq_f32(vcvtq_f32_s32(sums), vld1q_f32(scale_of));
    vst1q_f32(score, vmulq_f32(x, vld1q_f32(unit_of)));
    for (int i = 0; i < 4; i++) s[(size_t)(i / keys) * SPLIT + (size_t)(i % keys)] = score[i];
}

/* Whole groups of four around [first, end). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, float *s)
{
    for (uint32_t at = in->first & ~3u; at < in->end; at += 4) {
        const unsigned char *k[4];
        float scales[4];
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t p = least(greatest(at + i, in->first), in->end - 1);
            k[i] = in->k[p];
            scales[i] = in->k_scale[p];
        }
        float *to = s + at;
        uint32_t row = 0;
        for (; row + 4 <= in->n_rows; row += 4, to += 4 * SPLIT)
            for (uint32_t i = 0; i < 4; i++)
                few_scores4(codec, 4, in, row, k + i, scales + i, to + i);
        if (in->n_rows - row >= 2) {
            few_scores4(codec, 2, in, row, k, scales, to);
            few_scores4(codec, 2, in, row, k + 2, scales + 2, to + 2);
            row += 2, to += 2 * SPLIT;
        }
        if (row < in->n_rows) few_scores4(codec, 1, in, row, k, scales, to);
    }
}

void sheaf__levels_neon_few(const sheaf__attn_split *in, float *s)
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
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t d = 0; d < dim; d += L, dst += L) {
            int16x8_t v[4];
            if (dim - d >= L)
                levels32(codec, keys[i] + bytes_of(codec, d), v);
            else
                levels_tail(codec, keys[i] + bytes_of(codec, d), dim - d, v);
            for (int j = 0; j < 4; j++) vst1q_s16(dst + j * 8, v[j]);
        }
}

/* Scores of `keys` positions for `eights` times eight query rows from `row` on.
 * k: [keys, padded]; scales: [keys]; s: [keys, stride], from that row on */
INLINE void many_scores_tile(const int keys, const int eights, const sheaf__attn_split *in,
                             uint32_t row, const int16_t *k, const float *scales, float *s)
{
    const uint32_t stride = many_stride(in->n_rows), padded = sheaf__levels_padded(in->key_dim);
    const int16_t *q = sheaf__levels_queries(in) + row;
    const float *units = sheaf__levels_units(in) + row;
    int32x4_t sum[4][4];
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < 2 * eights; j++) sum[x][j] = vdupq_n_s32(0);
    for (uint32_t d = 0; d < padded; d++, q += stride)
        for (int j = 0; j < eights; j++) {
            int16x8_t rows = vld1q_s16(q + j * 8);
            for (int x = 0; x < keys; x++) {
                int16x8_t key = vld1q_dup_s16(k + (size_t)x * padded + d);
                sum[x][2 * j] = vmlal_s16(sum[x][2 * j], vget_low_s16(rows), vget_low_s16(key));
                sum[x][2 * j + 1] = vmlal_high_s16(sum[x][2 * j + 1], rows, key);
            }
        }
    for (int x = 0; x < keys; x++)
        for (int j = 0; j < 2 * eights; j++) {
            float32x4_t unit = vmulq_f32(vld1q_f32(units + j * W), vdupq_n_f32(in->scale));
            float32x4_t y = vmulq_f32(vcvtq_f32_s32(sum[x][j]), vdupq_n_f32(scales[x]));
            vst1q_f32(s + (size_t)x * stride + j * W, vmulq_f32(y, unit));
        }
}

/* The same for n positions. */
INLINE void many_scores_rows(const int eights, const sheaf__attn_split *in, uint32_t row,
                             const int16_t *k, const float *scales, uint32_t n, float *s)
{
    const size_t stride = many_stride(in->n_rows), padded = sheaf__levels_padded(in->key_dim);
    uint32_t x = 0;
    for (; x + 4 <= n; x += 4)
        many_scores_tile(4, eights, in, row, k + x * padded, scales + x, s + x * stride);
    for (; x < n; x++)
        many_scores_tile(1, eights, in, row, k + x * padded, scales + x, s + x * stride);
}

void sheaf__levels_neon_many(const sheaf__attn_split *in, float *s)
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
        for (; row + 4 * W <= stride; row += 4 * W)
            many_scores_rows(2, in, row, k, in->k_scale + a, n, to + row);
        if (row < stride) many_scores_rows(1, in, row, k, in->k_scale + a, n, to + row);
    }
}

#endif
