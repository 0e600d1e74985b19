/* model/matmul_avx2.c - the streamed matrix product on AVX2: lanes side by side, weights read
 * once.
 *
 * The 16 lanes of a dot are two vectors of 8, its halves. Weights of bf16 are widened without a
 * shuffle: 16 of them in one register, shifted left for the even ones and masked for the odd
 * ones:
 *
 *     bf16:  half 0 = lanes 0 2 4 6 8 10 12 14     f16, f32:  half 0 = lanes 0 .. 7
 *            half 1 = lanes 1 3 5 7 9 11 13 15                half 1 = lanes 8 .. 15
 *
 * prepare_x puts x into the same order. A group is 1 x 4, 2 x 2 or 3 x 2 dots (rows of x by
 * outputs): 8 or 12 running vectors, all that the registers hold beside operands. Where more
 * rows are asked for, they take turns over a panel of outputs, one block of k long; meanwhile
 * memory is asked for the next one, evenly over the turns.
 */
#if defined(__x86_64__)

#    include <immintrin.h>
#    include <stdbool.h>
#    include <string.h>

#    include "model/matmul_panel.h"

#    define INLINE static inline __attribute__((always_inline))
/* Keeps a loaded vector in its register: compilers would rather load it again for each use, and
 * loads are what these loops are short of. */
#    define KEEP(vector) __asm__("" : "+x"(vector))
#    define MAX_COLS     4
#    define PANEL_COLS   24
#    define MAX_SUMS     8 /* rows * cols, rounded up to a multiple of four */

INLINE __m256 load_half(const unsigned char *p, uint32_t dtype, int half)
{
    if (dtype == SHEAF_DTYPE_BF16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)p);
        return _mm256_castsi256_ps(
            half == 0 ? _mm256_slli_epi32(both, 16)
                      : _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
    }
    if (dtype == SHEAF_DTYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * half)));
    return _mm256_loadu_ps((const float *)(const void *)(p + 32 * half));
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

/* One step of 16 along k for rows x cols dots: acc[(row * cols + col) * 2 + half]. */
INLINE void step(__m256 *acc, const group *g, uint32_t k, uint32_t dtype, int rows, int cols)
{
    const uint64_t offset = k * sheaf__dtype_bytes(dtype);
#    pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        __m256 weights[MAX_COLS];
#    pragma GCC unroll 4
        for (int c = 0; c < cols; c++) weights[c] = load_half(g->w[c] + offset, dtype, half);
#    pragma GCC unroll 3
        for (int r = 0; r < rows; r++) {
            __m256 numbers = _mm256_loadu_ps(g->x + (uint64_t)r * g->x_stride + k + 8 * half);
            KEEP(numbers);
#    pragma GCC unroll 4
            for (int c = 0; c < cols; c++) {
                __m256 *a = &acc[(r * cols + c) * 2 + half];
                *a = _mm256_fmadd_ps(numbers, weights[c], *a);
            }
        }
    }
}

/* First level of the tree: lane i + lane i+8, as [0 2 4 6 | 1 3 5 7]. */
INLINE __m256 join_halves(__m256 half0, __m256 half1, uint32_t dtype)
{
    if (dtype == SHEAF_DTYPE_BF16) {
        __m256 low = _mm256_permute2f128_ps(half0, half1, 0x20);
        __m256 high = _mm256_permute2f128_ps(half0, half1, 0x31);
        return _mm256_add_ps(low, high);
    }
    __m256 sum = _mm256_add_ps(half0, half1);
    return _mm256_permutevar8x32_ps(sum, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

/* The rest of the tree for four dots at once, each [0 2 4 6 | 1 3 5 7] after the first level. */
INLINE __m128 join_four(__m256 a, __m256 b, __m256 c, __m256 d)
{
    /* of a, then of b: (0,4) (2,6) | (1,5) (3,7) */
    __m256 ab = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    __m256 cd = _mm256_add_ps(_mm256_shuffle_ps(c, d, 0x44), _mm256_shuffle_ps(c, d, 0xee));
    /* the even lanes of a b c d | the odd lanes */
    __m256 all =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

/* One block of k for rows x cols dots: sums[row * cols + col]. */
INLINE void block_sums(const group *g, uint32_t dtype, int rows, int cols, float *sums)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    __m256 acc[2 * MAX_SUMS];
#    pragma GCC unroll 16
    for (int i = 0; i < 2 * MAX_SUMS; i++) acc[i] = _mm256_setzero_ps();
    uint32_t whole = g->size & ~15u;
    uint64_t ahead = g->ahead;
    for (uint32_t k = 0; k < whole; k += 16, ahead += g->ahead_step) {
#    pragma GCC unroll 4
        for (int c = 0; c < cols; c++) _mm_prefetch((const char *)g->w[c] + ahead, _MM_HINT_T0);
        step(acc, g, k, dtype, rows, cols);
    }
    if (g->size > whole) {
        /* a short step: what lies behind a row of weights is not ours to read */
        unsigned char tails[MAX_COLS][64] = {{0}};
        group last = {.x = g->x + whole, .x_stride = g->x_stride};
        for (int c = 0; c < cols; c++) {
            memcpy(tails[c], g->w[c] + whole * bytes, (g->size - whole) * bytes);
            last.w[c] = tails[c];
        }
        step(acc, &last, 0, dtype, rows, cols);
    }
#    pragma GCC unroll 2
    for (int i = 0; i < rows * cols; i += 4) {
        __m256 joined[4];
#    pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            joined[j] = join_halves(acc[2 * (i + j)], acc[2 * (i + j) + 1], dtype);
        _mm_storeu_ps(sums + i, join_four(joined[0], joined[1], joined[2], joined[3]));
    }
}

/* How many rows take the next turn, of `left`; never one of several. */
static uint32_t rows_of_turn(uint32_t left)
{
    return left == 1 ? 1 : left == 2 || left == 4 ? 2 : 3;
}

/* One function a shape and element type, so that the loops around them exist once. */
#    define SHAPES(name, dtype)                                                                \
        static void name##_1x4(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 1, 4, sums);                                                  \
        }                                                                                      \
        static void name##_2x2(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 2, 2, sums);                                                  \
        }                                                                                      \
        static void name##_3x2(const group *g, float *sums)                                    \
        {                                                                                      \
            block_sums(g, dtype, 3, 2, sums);                                                  \
        }

SHAPES(f32, SHEAF_DTYPE_F32)
SHAPES(f16, SHEAF_DTYPE_F16)
SHAPES(bf16, SHEAF_DTYPE_BF16)

typedef void block_fn(const group *g, float *sums);

/* By element type, then rows of the turn. */
static block_fn *const blocks[3][4] = {
    [SHEAF_DTYPE_F32] = {NULL, f32_1x4, f32_2x2, f32_3x2},
    [SHEAF_DTYPE_F16] = {NULL, f16_1x4, f16_2x2, f16_3x2},
    [SHEAF_DTYPE_BF16] = {NULL, bf16_1x4, bf16_2x2, bf16_3x2},
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
    const uint32_t cols = job->m == 1 ? 4 : 2;
    block_fn *block = blocks[w->dtype][at->n_rows];
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

/* Order of a step for bf16 weights: even lanes, then odd ones. */
static void prepare_x(const float *x, uint32_t k, uint32_t dtype, float *out)
{
    const __m256i halves = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (uint64_t i = 0; i < k; i += 16) {
        float padded[16] = {0};
        const float *from = x + i;
        if (k - i < 16) {
            memcpy(padded, from, (k - i) * sizeof(float));
            from = padded;
        }
        __m256 low = _mm256_loadu_ps(from), high = _mm256_loadu_ps(from + 8);
        if (dtype == SHEAF_DTYPE_BF16) {
            low = _mm256_permutevar8x32_ps(low, halves);
            high = _mm256_permutevar8x32_ps(high, halves);
            __m256 even = _mm256_permute2f128_ps(low, high, 0x20);
            high = _mm256_permute2f128_ps(low, high, 0x31);
            low = even;
        }
        _mm256_store_ps(out + i, low);
        _mm256_store_ps(out + i + 8, high);
    }
}

const sheaf__matmul_kernels sheaf__matmul_avx2 = {
    .isa = SHEAF_ISA_AVX2,
    .stream_rows = 48,
    .tile_rows = SHEAF__PANEL_AVX2_ROWS,
    .tile_cols = SHEAF__PANEL_AVX2_COLS,
    .prepare_x = prepare_x,
    .stream = stream,
    .pack_x = sheaf__panel_avx2_pack_x,
    .pack_w = sheaf__panel_avx2_pack_w,
    .group_tiles = SHEAF__PANEL_AVX2_GROUP,
    .tiles = sheaf__panel_avx2_tiles,
};

#endif
