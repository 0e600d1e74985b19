/* model/matmul_avx512.c - the streamed matrix product on AVX-512: the 16 lanes of a dot are one
 * register, in their own order, so x is read where it lies and tails are masked loads.
 *
 * A group is up to 6 rows of x by 4 outputs, or one row by 8: 24 running vectors at most. Where more
 * rows are asked for, they take turns inside a block of k, so that its weights come from the
 * first-level cache from the second turn on.
 */
#if defined(__x86_64__)

#    include <immintrin.h>

#    include "model/matmul_panel.h"

#    define INLINE   static inline __attribute__((always_inline))
#    define MAX_COLS 8
#    define MAX_SUMS 24

/* The numbers at p that `mask` names, the others +0. */
INLINE __m512 load_weights(const unsigned char *p, uint32_t dtype, __mmask16 mask)
{
    if (dtype == SHEAF_DTYPE_F32) return _mm512_maskz_loadu_ps(mask, p);
    __m256i halves = _mm256_maskz_loadu_epi16(mask, p);
    if (dtype == SHEAF_DTYPE_F16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* A group's share of one block of k. */
typedef struct group {
    const float *x; /* [rows, x_stride] */
    uint64_t x_stride;
    const unsigned char *w[MAX_COLS]; /* each one's `size` weights */
    uint32_t size;
} group;

/* 16 numbers along k from `k` on, those that `mask` names. */
typedef struct place {
    uint32_t k;
    __mmask16 mask;
} place;

/* One step for rows x cols dots: acc[row * cols + col]. */
INLINE void step(__m512 *acc, const group *g, place at, uint32_t dtype, int rows, int cols)
{
    const uint64_t offset = at.k * sheaf__dtype_bytes(dtype);
    __m512 weights[MAX_COLS];
#    pragma GCC unroll 8
    for (int c = 0; c < cols; c++) weights[c] = load_weights(g->w[c] + offset, dtype, at.mask);
#    pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const float *from = g->x + (uint64_t)r * g->x_stride + at.k;
        __m512 numbers = _mm512_maskz_loadu_ps(at.mask, from);
#    pragma GCC unroll 8
        for (int c = 0; c < cols; c++)
            acc[r * cols + c] = _mm512_fmadd_ps(numbers, weights[c], acc[r * cols + c]);
    }
}

/* First level of the tree: lane i + lane i+8. */
INLINE __m256 join_halves(__m512 lanes)
{
    return _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
}

/* The rest of the tree for four dots at once, each eight lanes after its first level. */
INLINE __m128 join_four(__m256 a, __m256 b, __m256 c, __m256 d)
{
    /* four lanes of a | of b; of c | of d */
    __m256 ab =
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd =
        _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    /* two lanes of a, two of c | two of b, two of d */
    __m256 two =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    /* a c a c | b d b d */
    __m256 one =
        _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xdd));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

/* One block of k for rows x cols dots: sums[row * cols + col]. */
INLINE void block_sums(const group *g, uint32_t dtype, int rows, int cols, float *sums)
{
    __m512 acc[MAX_SUMS];
#    pragma GCC unroll 24
    for (int i = 0; i < rows * cols; i++) acc[i] = _mm512_setzero_ps();
    uint32_t whole = g->size & ~15u;
    for (uint32_t k = 0; k < whole; k += 16)
        step(acc, g, (place){k, 0xffff}, dtype, rows, cols);
    if (g->size > whole) {
        __mmask16 mask = (__mmask16)((1u << (g->size - whole)) - 1);
        step(acc, g, (place){whole, mask}, dtype, rows, cols);
    }
#    pragma GCC unroll 6
    for (int i = 0; i < rows * cols; i += 4)
        _mm_storeu_ps(sums + i, join_four(join_halves(acc[i]), join_halves(acc[i + 1]),
                                          join_halves(acc[i + 2]), join_halves(acc[i + 3])));
}

/* The next rows' turn in one block of k: how many they were. */
INLINE uint32_t turn(const group *g, uint32_t rows_left, uint32_t cols, uint32_t dtype,
                     float *sums)
{
    if (cols == 8) {
        block_sums(g, dtype, 1, 8, sums);
        return 1;
    }
    switch (rows_left) {
    case 1: block_sums(g, dtype, 1, 4, sums); return 1;
    case 2: block_sums(g, dtype, 2, 4, sums); return 2;
    case 3:
    case 5: block_sums(g, dtype, 3, 4, sums); return 3;
    case 4:
    case 7:
    case 8: block_sums(g, dtype, 4, 4, sums); return 4;
    default: block_sums(g, dtype, 6, 4, sums); return 6;
    }
}

/* Outputs [col, col + n_cols) of all rows; where n_cols < cols, the last one is computed again. */
INLINE void columns(const sheaf__matmul_rows *job, uint32_t col, uint32_t n_cols, uint32_t cols,
                    uint32_t dtype)
{
    const sheaf__matrix *w = job->w;
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    group g = {.x_stride = job->x_stride};
    for (uint64_t begin = 0; begin < w->k; begin += SHEAF__MATMUL_BLOCK) {
        uint64_t left = w->k - begin;
        g.size = (uint32_t)(left < SHEAF__MATMUL_BLOCK ? left : SHEAF__MATMUL_BLOCK);
        for (uint32_t c = 0; c < cols; c++) {
            uint64_t first = (uint64_t)(col + (c < n_cols ? c : n_cols - 1)) * w->k + begin;
            g.w[c] = (const unsigned char *)w->data + first * bytes;
        }
        for (uint32_t row = 0; row < job->m;) {
            float sums[MAX_SUMS];
            g.x = job->x + row * job->x_stride + begin;
            uint32_t rows = turn(&g, job->m - row, cols, dtype, sums);
            for (uint32_t r = 0; r < rows; r++, row++)
                for (uint32_t c = 0; c < n_cols; c++) {
                    float *y = job->y + row * job->y_stride + col + c;
                    *y = begin == 0 ? sums[r * cols + c] : *y + sums[r * cols + c];
                }
        }
    }
}

INLINE void stream_typed(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end,
                         uint32_t dtype)
{
    uint32_t cols = job->m == 1 ? 8 : 4;
    for (uint32_t col = begin; col < end; col += cols) {
        uint32_t n_cols = end - col < cols ? end - col : cols;
        if (cols == 8)
            columns(job, col, n_cols, 8, dtype);
        else
            columns(job, col, n_cols, 4, dtype);
    }
}

static void stream(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end)
{
    if (job->w->dtype == SHEAF_DTYPE_BF16)
        stream_typed(job, begin, end, SHEAF_DTYPE_BF16);
    else if (job->w->dtype == SHEAF_DTYPE_F16)
        stream_typed(job, begin, end, SHEAF_DTYPE_F16);
    else
        stream_typed(job, begin, end, SHEAF_DTYPE_F32);
}

const sheaf__matmul_kernels sheaf__matmul_avx512 = {
    .isa = SHEAF_ISA_AVX512,
    .stream_rows = 16,
    .tile_rows = SHEAF__PANEL_AVX512_ROWS,
    .tile_cols = SHEAF__PANEL_AVX512_COLS,
    .stream = stream,
    .pack_x = sheaf__panel_avx512_pack_x,
    .pack_w = sheaf__panel_avx512_pack_w,
    .tile = sheaf__panel_avx512_tile,
};

#endif
