/* model/matmul_avx512.c - the streamed matrix product on AVX-512: the 16 lanes of a dot are one
 * register, in their own order, so x is read where it lies and tails are masked loads.
 *
 * A group is up to 6 rows of x by 4 outputs, or one row by 8: 24 running vectors at most. Where
 * more rows are asked for, they take turns over a panel of outputs, one block of k long;
 * meanwhile memory is asked for the next one, evenly over the turns.
 */
#if defined(__x86_64__)

#    include <immintrin.h>

#    include "model/matmul_panel.h"

#    define INLINE     static inline __attribute__((always_inline))
#    define MAX_COLS   8
#    define PANEL_COLS 24
#    define MAX_SUMS   24

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
    uint64_t ahead,
        ahead_step; /* bytes from w to what memory is asked for, and its growth a step */
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
    uint64_t ahead = g->ahead;
    for (uint32_t k = 0; k < whole; k += 16, ahead += g->ahead_step) {
#    pragma GCC unroll 8
        for (int c = 0; c < cols; c++) _mm_prefetch((const char *)g->w[c] + ahead, _MM_HINT_T0);
        step(acc, g, (place){k, 0xffff}, dtype, rows, cols);
    }
    if (g->size > whole) {
        __mmask16 mask = (__mmask16)((1u << (g->size - whole)) - 1);
        step(acc, g, (place){whole, mask}, dtype, rows, cols);
    }
#    pragma GCC unroll 6
    for (int i = 0; i < rows * cols; i += 4)
        _mm_storeu_ps(sums + i, join_four(join_halves(acc[i]), join_halves(acc[i + 1]),
                                          join_halves(acc[i + 2]), join_halves(acc[i + 3])));
}

/* How many rows take the next turn, of `left`. */
static uint32_t rows_of_turn(uint32_t left)
{
    if (left <= 4) return left;
    return left == 5 ? 3 : left == 7 || left == 8 ? 4 : 6;
}

/* One function a shape and element type, so that the loops around them exist once. */
#    define SHAPES(name, dtype)                                                                \
        static void name##_1x8(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 1, 8, sums);                                                  \
        }                                                                                      \
        static void name##_1x4(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 1, 4, sums);                                                  \
        }                                                                                      \
        static void name##_2x4(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 2, 4, sums);                                                  \
        }                                                                                      \
        static void name##_3x4(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 3, 4, sums);                                                  \
        }                                                                                      \
        static void name##_4x4(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 4, 4, sums);                                                  \
        }                                                                                      \
        static void name##_6x4(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 6, 4, sums);                                                  \
        }

SHAPES(f32, SHEAF_DTYPE_F32)
SHAPES(f16, SHEAF_DTYPE_F16)
SHAPES(bf16, SHEAF_DTYPE_BF16)

typedef void block_fn(const group *g, float *sums);

/* By element type, then rows of the turn; [0] is one row alone, by 8 outputs. */
static block_fn *const blocks[3][7] = {
    [SHEAF_DTYPE_F32] = {f32_1x8, f32_1x4, f32_2x4, f32_3x4, f32_4x4, NULL, f32_6x4},
    [SHEAF_DTYPE_F16] = {f16_1x8, f16_1x4, f16_2x4, f16_3x4, f16_4x4, NULL, f16_6x4},
    [SHEAF_DTYPE_BF16] = {bf16_1x8, bf16_1x4, bf16_2x4, bf16_3x4, bf16_4x4, NULL, bf16_6x4},
};

/* The outputs [col, end) of a panel, one block of k from `begin` on, in one turn of rows. */
typedef struct part {
    uint32_t col, end, width; /* width: of a whole panel */
    uint32_t row, n_rows;
    uint32_t turn, n_turns;
    uint64_t begin;
} part;

/* From a block's weights to those that are wanted next: the next block of the same outputs, or
 * the first one of the next panel. Each turn asks for its share of them. */
static uint64_t distance_ahead(const part *at, uint64_t k, uint64_t size, uint64_t bytes)
{
    uint64_t next = at->begin + size < k ? size : at->width * k - at->begin;
    return (next + at->turn * size / at->n_turns) * bytes;
}

static void part_sums(const sheaf__matmul_rows *job, const part *at)
{
    const sheaf__matrix *w = job->w;
    const uint64_t bytes = sheaf__dtype_bytes(w->dtype);
    const uint32_t cols = job->m == 1 ? 8 : 4;
    block_fn *block = blocks[w->dtype][job->m == 1 ? 0 : at->n_rows];
    uint64_t left = w->k - at->begin;
    group g = {.x = job->x + at->row * job->x_stride + at->begin, .x_stride = job->x_stride};
    g.size = (uint32_t)(left < SHEAF__MATMUL_BLOCK ? left : SHEAF__MATMUL_BLOCK);
    g.ahead = distance_ahead(at, w->k, g.size, bytes);
    g.ahead_step = 16 * bytes / at->n_turns;
    for (uint32_t col = at->col; col < at->end; col += cols) {
        float sums[MAX_SUMS];
        uint32_t n_cols = at->end - col < cols ? at->end - col : cols;
        for (uint32_t c = 0; c < cols; c++) { /* where outputs end, the last one again */
            uint64_t row = col + (c < n_cols ? c : n_cols - 1);
            g.w[c] = (const unsigned char *)w->data + (row * w->k + at->begin) * bytes;
        }
        block(&g, sums);
        for (uint32_t r = 0; r < at->n_rows; r++)
            for (uint32_t c = 0; c < n_cols; c++) {
                float *y = job->y + (at->row + r) * job->y_stride + col + c;
                float sum = sums[r * cols + c];
                *y = at->begin == 0 ? sum : *y + sum;
            }
    }
}

/* A panel is as wide as one group where one turn takes all rows, else PANEL_COLS: a block of it
 * stays in the second-level cache while the rows take their turns. */
static void stream(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end)
{
    part at = {.n_turns = 0};
    for (uint32_t row = 0; row < job->m; row += rows_of_turn(job->m - row)) at.n_turns++;
    at.width = at.n_turns == 1 ? MAX_COLS : PANEL_COLS;
    for (at.col = begin; at.col < end; at.col += at.width) {
        at.end = end - at.col < at.width ? end : at.col + at.width;
        for (at.begin = 0; at.begin < job->w->k; at.begin += SHEAF__MATMUL_BLOCK) {
            at.turn = 0;
            for (at.row = 0; at.row < job->m; at.row += at.n_rows) {
                at.n_rows = rows_of_turn(job->m - at.row);
                part_sums(job, &at);
                at.turn++;
            }
        }
    }
}

const sheaf__matmul_kernels sheaf__matmul_avx512 = {
    .isa = SHEAF_ISA_AVX512,
    .stream_rows = 32,
    .tile_rows = SHEAF__PANEL_AVX512_ROWS,
    .tile_cols = SHEAF__PANEL_AVX512_COLS,
    .stream = stream,
    .pack_x = sheaf__panel_avx512_pack_x,
    .pack_w = sheaf__panel_avx512_pack_w,
    .group_tiles = SHEAF__PANEL_AVX512_GROUP,
    .tiles = sheaf__panel_avx512_tiles,
};

#endif
