/* model/matmul_panel_avx512.c - the packed matrix product on AVX-512: tiles of 12 rows by 32
 * outputs.
 *
 * 24 running vectors, each 16 outputs of one row, run down one lane's steps; then the lane's
 * tile joins the tree on a small stack (see model/matmul_kernels.h).
 */
#if defined(__x86_64__)

#    include <immintrin.h>

#    include "model/matmul_panel.h"

#    define INLINE static inline __attribute__((always_inline))
#    define ROWS   SHEAF__PANEL_AVX512_ROWS
#    define COLS   SHEAF__PANEL_AVX512_COLS
#    define TILE   (ROWS * COLS)
#    define GROUP  SHEAF__PANEL_AVX512_GROUP

/* The numbers at p that `mask` names, the others +0. */
INLINE __m512 load_step(const unsigned char *p, uint32_t dtype, __mmask16 mask)
{
    if (dtype == SHEAF_DTYPE_F32) return _mm512_maskz_loadu_ps(mask, p);
    __m256i halves = _mm256_maskz_loadu_epi16(mask, p);
    if (dtype == SHEAF_DTYPE_F16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* v[row][lane] to v[lane][row], 16 x 16: 4 x 4 inside quarters, then the quarters. */
INLINE void transpose16(__m512 v[16])
{
    __m512 t[16];
#    pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
        __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]);
        __m512 d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    /* t[4 i + j]: rows 4i .. 4i+3 of lanes j, j+4, j+8, j+12 */
#    pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512 a = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x88);
        __m512 b = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x88);
        __m512 c = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xdd);
        __m512 d = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xdd);
        v[j] = _mm512_shuffle_f32x4(a, b, 0x88);
        v[j + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        v[j + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        v[j + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

/* The lanes of the step at `at` that lie before k. */
INLINE __mmask16 lanes_before(uint64_t at, uint32_t k)
{
    uint64_t left = k - at;
    return (__mmask16)(left >= 16 ? 0xffffu : (1u << left) - 1);
}

void sheaf__panel_avx512_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                                sheaf__matmul_span span, float *out)
{
    const uint64_t lane_floats = span.n_steps * (uint64_t)ROWS;
    for (uint32_t s = 0; s < span.n_steps; s++, out += ROWS) {
        uint64_t at = span.begin + s * (uint64_t)SHEAF__MATMUL_LANES;
        __mmask16 lanes = lanes_before(at, k);
        __m512 v[16];
#    pragma GCC unroll 16
        for (uint32_t r = 0; r < 16; r++)
            v[r] = r < n_rows ? _mm512_maskz_loadu_ps(lanes, x + r * x_stride + at)
                              : _mm512_setzero_ps();
        transpose16(v);
#    pragma GCC unroll 16
        for (int place = 0; place < 16; place++)
            _mm512_mask_storeu_ps(out + place * lane_floats, (1u << ROWS) - 1,
                                  v[sheaf__panel_lane[place]]);
    }
}

INLINE void pack_w_typed(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                         sheaf__matmul_span span, float *out, uint32_t dtype)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    const uint64_t lane_floats = (span.n_steps + 1) * (uint64_t)COLS;
    for (uint32_t half = 0; half < COLS; half += 16) {
        uint64_t first = (uint64_t)(begin + half) * w->k + span.begin;
        const unsigned char *corner = (const unsigned char *)w->data + first * bytes;
        for (uint32_t s = 0; s < span.n_steps; s++) {
            uint64_t offset = s * (uint64_t)SHEAF__MATMUL_LANES;
            __mmask16 lanes = lanes_before(span.begin + offset, w->k);
            float *place = out + s * (uint64_t)COLS + half;
            __m512 v[16];
#    pragma GCC unroll 16
            for (uint32_t c = 0; c < 16; c++)
                v[c] = half + c < n_cols
                           ? load_step(corner + (c * (uint64_t)w->k + offset) * bytes, dtype,
                                       lanes)
                           : _mm512_setzero_ps();
            transpose16(v);
#    pragma GCC unroll 16
            for (int i = 0; i < 16; i++)
                _mm512_store_ps(place + i * lane_floats, v[sheaf__panel_lane[i]]);
        }
    }
}

void sheaf__panel_avx512_pack_w(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                                sheaf__matmul_span span, float *out)
{
    if (w->dtype == SHEAF_DTYPE_BF16)
        pack_w_typed(w, begin, n_cols, span, out, SHEAF_DTYPE_BF16);
    else if (w->dtype == SHEAF_DTYPE_F16)
        pack_w_typed(w, begin, n_cols, span, out, SHEAF_DTYPE_F16);
    else
        pack_w_typed(w, begin, n_cols, span, out, SHEAF_DTYPE_F32);
}

/* Runs one lane's chains for the whole tile, then joins it with the tiles that wait for it. The
 * number of joins after the lane at `place` is the number of ones that end it in binary.
 * Meanwhile the second-level cache is asked for the tile a group further on: x comes from
 * beyond it. */
INLINE void lane_tile(const float *x, const float *w, uint32_t n_steps, uint32_t place,
                      float *stack)
{
    const uint64_t next = GROUP * SHEAF__MATMUL_LANES * ROWS * (uint64_t)n_steps;
    __m512 acc[ROWS][2];
#    pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
    for (uint32_t s = 0; s < n_steps; s++) {
        __m512 w0 = _mm512_load_ps(w), w1 = _mm512_load_ps(w + 16);
#    pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            __m512 number = _mm512_set1_ps(x[r]);
            acc[r][0] = _mm512_fmadd_ps(number, w0, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(number, w1, acc[r][1]);
        }
        if (s % 2 == 0) _mm_prefetch((const char *)(x + next), _MM_HINT_T1);
        w += COLS;
        x += ROWS;
    }
    for (; place & 1; place >>= 1) {
        stack -= TILE;
#    pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            acc[r][0] = _mm512_add_ps(_mm512_load_ps(stack + r * COLS), acc[r][0]);
            acc[r][1] = _mm512_add_ps(_mm512_load_ps(stack + r * COLS + 16), acc[r][1]);
        }
    }
#    pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        _mm512_store_ps(stack + r * COLS, acc[r][0]);
        _mm512_store_ps(stack + r * COLS + 16, acc[r][1]);
    }
}

void sheaf__panel_avx512_tiles(const float *x_packed, const float *w_packed,
                               sheaf__matmul_span span, uint32_t n_rows, uint32_t n_cols,
                               float *y, uint64_t y_stride)
{
    float tiles[GROUP][5 * TILE] __attribute__((aligned(64)));
    const uint64_t x_lane = span.n_steps * (uint64_t)ROWS;
    const uint64_t w_lane = (span.n_steps + 1) * (uint64_t)COLS;
    for (uint32_t place = 0, depth = 0; place < SHEAF__MATMUL_LANES; place++) {
        const float *x = x_packed + place * x_lane, *w = w_packed + place * w_lane;
        for (uint32_t t = 0; t * ROWS < n_rows; t++, x += SHEAF__MATMUL_LANES * x_lane)
            lane_tile(x, w, span.n_steps, place, tiles[t] + depth * TILE);
        depth += 1 - (uint32_t)__builtin_ctz(~place);
    }
    for (uint32_t r = 0; r < n_rows; r++, y += y_stride) {
        const float *sums = tiles[r / ROWS] + r % ROWS * COLS;
        for (uint32_t c = 0; c < n_cols; c++) y[c] = span.begin == 0 ? sums[c] : y[c] + sums[c];
    }
}

#endif
