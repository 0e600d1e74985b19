/* model/matmul_panel_avx2.c - the packed matrix product on AVX2: tiles of 6 rows by 16 outputs.
 *
 * 12 running vectors, each 8 outputs of one row, run down one lane's steps; then the lane's tile joins
 * the tree on a small stack (see model/matmul_kernels.h).
 */
#if defined(__x86_64__)

#    include <immintrin.h>
#    include <stdbool.h>
#    include <string.h>

#    include "model/matmul_panel.h"

#    define INLINE static inline __attribute__((always_inline))
#    define ROWS   SHEAF__PANEL_AVX2_ROWS
#    define COLS   SHEAF__PANEL_AVX2_COLS
#    define TILE   (ROWS * COLS)

void sheaf__panel_avx2_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                              sheaf__matmul_span span, float *out)
{
    for (uint32_t place = 0; place < SHEAF__MATMUL_LANES; place++) {
        uint64_t at = span.begin + sheaf__panel_lane[place];
        for (uint32_t s = 0; s < span.n_steps; s++, at += SHEAF__MATMUL_LANES)
            for (uint32_t r = 0; r < ROWS; r++)
                *out++ = r < n_rows && at < k ? x[r * x_stride + at] : 0.0f;
    }
}

/* A step of one weight row in two vectors, lanes 0 .. 7 and 8 .. 15. */
typedef struct pair {
    __m256 low, high;
} pair;

INLINE pair load_step(const unsigned char *p, uint32_t dtype)
{
    if (dtype == SHEAF_DTYPE_F32)
        return (pair){_mm256_loadu_ps((const float *)(const void *)p),
                      _mm256_loadu_ps((const float *)(const void *)(p + 32))};
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i high = _mm_loadu_si128((const __m128i *)(const void *)(p + 16));
    if (dtype == SHEAF_DTYPE_F16) return (pair){_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)};
    return (pair){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))};
}

/* rows[c][lane] to rows[lane][c], eight by eight. */
INLINE void transpose8(__m256 rows[8])
{
    __m256 pairs[8], quads[8];
#    pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
#    pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
#    pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
}

/* One step of eight weight rows to their places in the 16 lanes. */
INLINE void pack_step(const unsigned char *const *rows, uint32_t dtype, uint64_t lane_floats,
                      float *out)
{
    __m256 low[8], high[8];
#    pragma GCC unroll 8
    for (int c = 0; c < 8; c++) {
        pair both = load_step(rows[c], dtype);
        low[c] = both.low;
        high[c] = both.high;
    }
    transpose8(low);
    transpose8(high);
#    pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        /* lane i + 8 lies right behind lane i */
        float *place = out + sheaf__panel_lane[i] * lane_floats;
        _mm256_store_ps(place, low[i]);
        _mm256_store_ps(place + lane_floats, high[i]);
    }
}

INLINE void pack_w_typed(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                         sheaf__matmul_span span, float *out, uint32_t dtype)
{
    static const unsigned char zeros[64];
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    const uint64_t lane_floats = (span.n_steps + 1) * (uint64_t)COLS;
    for (uint32_t half = 0; half < COLS; half += 8) {
        const unsigned char *row[8];
        for (uint32_t c = 0; c < 8; c++) {
            uint64_t first = (uint64_t)(begin + half + c) * w->k + span.begin;
            row[c] = half + c < n_cols ? (const unsigned char *)w->data + first * bytes : NULL;
        }
        for (uint32_t s = 0; s < span.n_steps; s++) {
            uint64_t left = w->k - span.begin - s * (uint64_t)SHEAF__MATMUL_LANES;
            unsigned char tails[8][64];
            const unsigned char *at[8];
            for (uint32_t c = 0; c < 8; c++) {
                at[c] = row[c] == NULL ? zeros : row[c] + s * SHEAF__MATMUL_LANES * bytes;
                if (left >= SHEAF__MATMUL_LANES || row[c] == NULL) continue;
                memset(tails[c], 0, sizeof tails[c]);
                memcpy(tails[c], at[c], left * bytes);
                at[c] = tails[c];
            }
            pack_step(at, dtype, lane_floats, out + s * (uint64_t)COLS + half);
        }
    }
}

void sheaf__panel_avx2_pack_w(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                              sheaf__matmul_span span, float *out)
{
    if (w->dtype == SHEAF_DTYPE_BF16)
        pack_w_typed(w, begin, n_cols, span, out, SHEAF_DTYPE_BF16);
    else if (w->dtype == SHEAF_DTYPE_F16)
        pack_w_typed(w, begin, n_cols, span, out, SHEAF_DTYPE_F16);
    else
        pack_w_typed(w, begin, n_cols, span, out, SHEAF_DTYPE_F32);
}

/* Runs one lane's chains for the whole tile, then joins it with the tiles that wait for it. The number
 * of joins after the lane at `place` is the number of ones that end it in binary. */
INLINE float *lane_tile(const float *x, const float *w, uint32_t n_steps, uint32_t place,
                        float *stack)
{
    __m256 acc[ROWS][2];
#    pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
#    pragma GCC unroll 4
    for (uint32_t s = 0; s < n_steps; s++) {
        __m256 w0 = _mm256_load_ps(w), w1 = _mm256_load_ps(w + 8);
#    pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            __m256 number = _mm256_broadcast_ss(x + r);
            acc[r][0] = _mm256_fmadd_ps(number, w0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(number, w1, acc[r][1]);
        }
        w += COLS;
        x += ROWS;
    }
    for (; place & 1; place >>= 1) {
        stack -= TILE;
#    pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            acc[r][0] = _mm256_add_ps(_mm256_load_ps(stack + r * COLS), acc[r][0]);
            acc[r][1] = _mm256_add_ps(_mm256_load_ps(stack + r * COLS + 8), acc[r][1]);
        }
    }
#    pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        _mm256_store_ps(stack + r * COLS, acc[r][0]);
        _mm256_store_ps(stack + r * COLS + 8, acc[r][1]);
    }
    return stack + TILE;
}

void sheaf__panel_avx2_tile(const float *x_packed, const float *w_packed,
                            sheaf__matmul_span span, uint32_t n_rows, uint32_t n_cols, float *y,
                            uint64_t y_stride)
{
    float tiles[5 * TILE] __attribute__((aligned(32)));
    float *top = tiles;
    for (uint32_t place = 0; place < SHEAF__MATMUL_LANES; place++) {
        top = lane_tile(x_packed, w_packed, span.n_steps, place, top);
        x_packed += span.n_steps * (uint64_t)ROWS;
        w_packed += (span.n_steps + 1) * (uint64_t)COLS;
    }
    for (uint32_t r = 0; r < n_rows; r++, y += y_stride)
        for (uint32_t c = 0; c < n_cols; c++)
            y[c] = span.begin == 0 ? tiles[r * COLS + c] : y[c] + tiles[r * COLS + c];
}

#endif
