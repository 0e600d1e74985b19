/* model/matmul_panel_avx2.c - the packed matrix product on AVX2: tiles of 6 rows by 16 outputs.
 *
 * 12 running vectors, each 8 outputs of one row, run down one lane's steps; then the lane's
 * tile joins the tree on a small stack (see model/matmul_kernels.h).
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
#    define GROUP  SHEAF__PANEL_AVX2_GROUP

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

/* Eight rows of weights or of x, from a block's begin on; missing ones are zeros. */
typedef struct eight {
    const unsigned char *row[8];
} eight;

static const unsigned char zeros[SHEAF__MATMUL_BLOCK * sizeof(float)];

INLINE eight eight_rows(const void *first, uint64_t row_bytes, uint32_t n_rows)
{
    eight e;
    for (uint32_t i = 0; i < 8; i++)
        e.row[i] = i < n_rows ? (const unsigned char *)first + i * row_bytes : zeros;
    return e;
}

/* The step at `offset` bytes: low[i] is lane i of the eight rows, high[i] lane i + 8. */
INLINE void load_lanes(const eight *e, uint64_t offset, uint32_t dtype, __m256 low[8],
                       __m256 high[8])
{
#    pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        pair both = load_step(e->row[i] + offset, dtype);
        low[i] = both.low;
        high[i] = both.high;
    }
    transpose8(low);
    transpose8(high);
}

/* The same for a last step of n < 16 numbers: what lies behind a row is not ours to read. */
INLINE void load_tail(const eight *e, uint64_t offset, uint32_t n, uint32_t dtype,
                      __m256 low[8], __m256 high[8])
{
    unsigned char tails[8][64] = {{0}};
    for (int i = 0; i < 8; i++)
        memcpy(tails[i], e->row[i] + offset, n * sheaf__dtype_bytes(dtype));
    eight cut = eight_rows(tails, sizeof tails[0], 8);
    load_lanes(&cut, 0, dtype, low, high);
}

/* How many of a span's steps are whole, and how many numbers the last one has otherwise. */
INLINE uint32_t whole_steps(sheaf__matmul_span span, uint32_t k, uint32_t *tail)
{
    uint64_t left = k - span.begin, all = span.n_steps * (uint64_t)SHEAF__MATMUL_LANES;
    *tail = left < all ? (uint32_t)(left % SHEAF__MATMUL_LANES) : 0;
    return span.n_steps - (*tail != 0);
}

void sheaf__panel_avx2_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                              sheaf__matmul_span span, float *out)
{
    const uint64_t lane_floats = span.n_steps * (uint64_t)ROWS;
    eight rows = eight_rows(x + span.begin, x_stride * sizeof *x, n_rows);
    uint32_t tail, whole = whole_steps(span, k, &tail);
    for (uint32_t s = 0; s < span.n_steps; s++, out += ROWS) {
        __m256 low[8], high[8];
        if (s < whole)
            load_lanes(&rows, s * sizeof(float[16]), SHEAF_DTYPE_F32, low, high);
        else
            load_tail(&rows, s * sizeof(float[16]), tail, SHEAF_DTYPE_F32, low, high);
#    pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            /* six of the eight; lane i + 8 lies right behind lane i */
            float *place = out + sheaf__panel_lane[i] * lane_floats;
            _mm_storeu_ps(place, _mm256_castps256_ps128(low[i]));
            _mm_storel_pi((__m64 *)(void *)(place + 4), _mm256_extractf128_ps(low[i], 1));
            place += lane_floats;
            _mm_storeu_ps(place, _mm256_castps256_ps128(high[i]));
            _mm_storel_pi((__m64 *)(void *)(place + 4), _mm256_extractf128_ps(high[i], 1));
        }
    }
}

INLINE void pack_w_typed(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                         sheaf__matmul_span span, float *out, uint32_t dtype)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype), step = SHEAF__MATMUL_LANES * bytes;
    const uint64_t lane_floats = (span.n_steps + 1) * (uint64_t)COLS;
    uint32_t tail, whole = whole_steps(span, w->k, &tail);
    for (uint32_t half = 0; half < COLS; half += 8) {
        uint64_t first = (uint64_t)(begin + half) * w->k + span.begin;
        eight rows = eight_rows((const unsigned char *)w->data + first * bytes, w->k * bytes,
                                n_cols > half ? n_cols - half : 0);
        for (uint32_t s = 0; s < span.n_steps; s++) {
            __m256 low[8], high[8];
            if (s < whole)
                load_lanes(&rows, s * step, dtype, low, high);
            else
                load_tail(&rows, s * step, tail, dtype, low, high);
            float *at = out + s * (uint64_t)COLS + half;
#    pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                float *place = at + sheaf__panel_lane[i] * lane_floats;
                _mm256_store_ps(place, low[i]);
                _mm256_store_ps(place + lane_floats, high[i]);
            }
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

/* Runs one lane's chains for the whole tile, then joins it with the tiles that wait for it. The
 * number of joins after the lane at `place` is the number of ones that end it in binary.
 * Meanwhile the second-level cache is asked for the tile a group further on: x comes from
 * beyond it. */
INLINE void lane_tile(const float *x, const float *w, uint32_t n_steps, uint32_t place,
                      float *stack)
{
    const uint64_t next = GROUP * SHEAF__MATMUL_LANES * ROWS * (uint64_t)n_steps;
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
        if (s % 2 == 0) _mm_prefetch((const char *)(x + next), _MM_HINT_T1);
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
}

void sheaf__panel_avx2_tiles(const float *x_packed, const float *w_packed,
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
