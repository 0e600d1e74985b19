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
 * prepare_x puts x into the same order. One row runs one dot after another, both halves of it: so
 * memory is read in the order of addresses, which the processor foresees best. More rows run
 * 2 x 4, 3 x 3 or 4 x 3 dots (rows of x by outputs), first one half of all of them, then the other:
 * so each vector of weights is loaded and widened once for all rows and each of x once for all
 * outputs, and 12 running vectors are all that the registers hold beside operands.
 *
 * A panel is some outputs, all of k: one stretch of memory. Rows beyond four take turns over it,
 * block of k by block of k. Meanwhile memory is asked for the next panel, line after line in the
 * order of addresses, evenly over all the steps: what the processor fetches of its own accord
 * then agrees with it.
 */
#if defined(__x86_64__)

#    include <immintrin.h>
#    include <stdbool.h>
#    include <string.h>

#    include "model/matmul_panel.h"

#    define INLINE   static inline __attribute__((always_inline))
#    define NOINLINE static __attribute__((noinline))
/* Keeps a loaded vector in its register: compilers would rather load it again for each use, and
 * loads are what these loops are short of. */
#    define KEEP(vector) __asm__("" : "+x"(vector))
#    define MAX_COLS     4
#    define MAX_DOTS     12           /* rows * cols of a group */
#    define PANEL_COLS   24           /* a multiple of every shape's outputs */
#    define PANEL_BYTES  (64u * 1024) /* with the next one, a part of the second-level cache */
#    define ROW_AHEAD    1536u        /* bytes between what one row reads and asks for */
#    define LINE         64u

/* What keeps the odd ones of 16 bf16 numbers. Loaded where it is used: a compiler that kept it in
 * a register would have one too few for the running vectors. */
INLINE __m256i odd_mask(void)
{
    static const uint32_t odd[8]
        __attribute__((aligned(32))) = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                                        0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    __m256i mask;
    __asm__ volatile("vmovdqa %1, %0" : "=x"(mask) : "m"(odd));
    return mask;
}

INLINE __m256 load_half(const unsigned char *p, uint32_t dtype, int half, __m256i mask)
{
    if (dtype == SHEAF_DTYPE_BF16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)p);
        return _mm256_castsi256_ps(half == 0 ? _mm256_slli_epi32(both, 16)
                                             : _mm256_and_si256(both, mask));
    }
    if (dtype == SHEAF_DTYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * half)));
    return _mm256_loadu_ps((const float *)(const void *)(p + 32 * half));
}

/* A group's share of one block of k. */
typedef struct group {
    const float *x; /* [rows, x_stride]: half 0 of every step, then half 1 */
    uint64_t x_stride, x_half;
    const unsigned char *w[MAX_COLS]; /* each one's `size` weights */
    uint32_t size;
    const unsigned char *next; /* what memory is asked for */
    uint64_t next_step;        /* bytes, a step and pass */
} group;

/* One step of 16 along k, one half of it, for rows x cols dots: acc[row * cols + col]. */
INLINE void step(__m256 *acc, const group *g, uint32_t k, uint32_t dtype, int half, int rows,
                 int cols)
{
    const uint64_t offset = k * sheaf__dtype_bytes(dtype);
    const float *x = g->x + (half == 0 ? 0 : g->x_half) + k / 2;
    __m256 weights[MAX_COLS];
    __m256i mask = half == 0 || dtype != SHEAF_DTYPE_BF16 ? _mm256_setzero_si256() : odd_mask();
#    pragma GCC unroll 4
    for (int c = 0; c < cols; c++) weights[c] = load_half(g->w[c] + offset, dtype, half, mask);
#    pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m256 numbers = _mm256_loadu_ps(x + (uint64_t)r * g->x_stride);
        KEEP(numbers);
#    pragma GCC unroll 4
        for (int c = 0; c < cols; c++) {
            __m256 *a = &acc[r * cols + c];
            *a = _mm256_fmadd_ps(numbers, weights[c], *a);
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

/* The last, short step of a block: what lies behind a row of weights is not ours to read. */
INLINE void tail_step(__m256 *acc, const group *g, uint32_t whole, uint32_t dtype, int half,
                      int rows, int cols)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    unsigned char tails[MAX_COLS][64] = {{0}};
    group last = {.x = g->x + whole / 2, .x_stride = g->x_stride, .x_half = g->x_half};
    for (int c = 0; c < cols; c++) {
        memcpy(tails[c], g->w[c] + whole * bytes, (g->size - whole) * bytes);
        last.w[c] = tails[c];
    }
    step(acc, &last, 0, dtype, half, rows, cols);
}

/* Weights that are used once go into the first-level cache alone, others into the second. */
INLINE void ask_for(const unsigned char *line, bool nearest)
{
    if (nearest)
        _mm_prefetch((const char *)line, _MM_HINT_NTA);
    else
        _mm_prefetch((const char *)line, _MM_HINT_T1);
}

/* Goes down a block of k with n_halves halves of the dots, from `half` on. Its callers stand out of
 * line, so that the running vectors have the registers to themselves. */
INLINE void pass(const group *g, uint32_t dtype, int half, int n_halves, int rows, int cols,
                 __m256 sums[2][MAX_DOTS])
{
    const uint64_t step_bytes = 8 * (uint64_t)(n_halves * cols) * sheaf__dtype_bytes(dtype);
    const int dots = rows * cols, lines = (int)((step_bytes + LINE - 1) / LINE);
    const uint32_t whole = g->size & ~15u;
    const bool nearest = rows == 1;
    const unsigned char *next = g->next + (uint64_t)half * g->next_step * (whole / 16);
    __m256 acc[2][MAX_DOTS];
#    pragma GCC unroll 2
    for (int h = 0; h < n_halves; h++)
#    pragma GCC unroll 12
        for (int i = 0; i < dots; i++) acc[h][i] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < whole; k += 16, next += g->next_step) {
#    pragma GCC unroll 4
        for (int i = 0; i < lines; i++) ask_for(next + (uint64_t)i * LINE, nearest);
#    pragma GCC unroll 2
        for (int h = 0; h < n_halves; h++) step(acc[h], g, k, dtype, half + h, rows, cols);
    }
#    pragma GCC unroll 2
    for (int h = 0; h < n_halves; h++)
#    pragma GCC unroll 12
        for (int i = 0; i < dots; i++) sums[half + h][i] = acc[h][i];
    if (g->size > whole)
        for (int h = 0; h < n_halves; h++)
            tail_step(sums[half + h], g, whole, dtype, half + h, rows, cols);
}

/* The dots' numbers from their vectors: out[row * cols + col], and the last one again up to a
 * multiple of four. */
INLINE void join(__m256 sums[2][MAX_DOTS], uint32_t dtype, int dots, float *out)
{
#    pragma GCC unroll 3
    for (int i = 0; i < dots; i += 4) {
        __m256 joined[4];
#    pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            int dot = i + j < dots ? i + j : dots - 1;
            joined[j] = join_halves(sums[0][dot], sums[1][dot], dtype);
        }
        _mm_storeu_ps(out + i, join_four(joined[0], joined[1], joined[2], joined[3]));
    }
}

/* How many rows take the next turn, of `left`; never one of several. */
static uint32_t rows_of_turn(uint32_t left)
{
    return left <= 3 ? left : left == 5 || left == 6 ? 3 : 4;
}

/* One function a shape and element type, so that the loops around them exist once. */
#    define SHAPE(name, dtype, rows, cols)                                                     \
        NOINLINE void name##_even(const group *g, __m256 sums[2][MAX_DOTS])                    \
        {                                                                                      \
            pass(g, dtype, 0, 1, rows, cols, sums);                                            \
        }                                                                                      \
        NOINLINE void name##_odd(const group *g, __m256 sums[2][MAX_DOTS])                     \
        {                                                                                      \
            pass(g, dtype, 1, 1, rows, cols, sums);                                            \
        }                                                                                      \
        static void name(const group *g, float *out)                                           \
        {                                                                                      \
            __m256 sums[2][MAX_DOTS];                                                          \
            name##_even(g, sums);                                                              \
            name##_odd(g, sums);                                                               \
            join(sums, dtype, rows *cols, out);                                                \
        }
#    define SHAPES(name, dtype)                                                                \
        static void name##_1x1(const group *g, float *out)                                     \
        {                                                                                      \
            __m256 sums[2][MAX_DOTS];                                                          \
            pass(g, dtype, 0, 2, 1, 1, sums);                                                  \
            join(sums, dtype, 1, out);                                                         \
        }                                                                                      \
        SHAPE(name##_2x4, dtype, 2, 4)                                                         \
        SHAPE(name##_3x3, dtype, 3, 3)                                                         \
        SHAPE(name##_4x3, dtype, 4, 3)

SHAPES(f32, SHEAF_DTYPE_F32)
SHAPES(f16, SHEAF_DTYPE_F16)
SHAPES(bf16, SHEAF_DTYPE_BF16)

typedef void block_fn(const group *g, float *sums);

/* By element type, then rows of the turn; and the outputs of a turn's groups. */
static block_fn *const blocks[3][5] = {
    [SHEAF_DTYPE_F32] = {NULL, f32_1x1, f32_2x4, f32_3x3, f32_4x3},
    [SHEAF_DTYPE_F16] = {NULL, f16_1x1, f16_2x4, f16_3x3, f16_4x3},
    [SHEAF_DTYPE_BF16] = {NULL, bf16_1x1, bf16_2x4, bf16_3x3, bf16_4x3},
};
static const uint32_t group_cols[5] = {0, 1, 4, 3, 3};

/* The outputs [col, end) of a panel, one block of k from `begin` on, in one turn of rows. */
typedef struct part {
    uint32_t col, end;
    uint32_t row, n_rows, n_turns;
    uint64_t begin;
    const unsigned char *next; /* what memory is asked for */
} part;

static void part_sums(const sheaf__matmul_rows *job, part *at)
{
    const sheaf__matrix *w = job->w;
    const uint64_t bytes = sheaf__dtype_bytes(w->dtype);
    const uint32_t cols = group_cols[at->n_rows];
    block_fn *block = blocks[w->dtype][at->n_rows];
    uint64_t left = w->k - at->begin;
    group g = {.x = job->x + at->row * job->x_stride + at->begin, .x_stride = job->x_stride};
    g.size = (uint32_t)(left < SHEAF__MATMUL_BLOCK ? left : SHEAF__MATMUL_BLOCK);
    g.x_half = (g.size + 15) / 16 * 8;
    uint64_t share = cols * g.size * bytes / at->n_turns;
    g.next_step = cols * 16 * bytes / at->n_turns / (job->m == 1 ? 1 : 2);
    for (uint32_t col = at->col; col < at->end; col += cols, at->next += share) {
        float sums[MAX_DOTS];
        uint32_t n_cols = at->end - col < cols ? at->end - col : cols;
        for (uint32_t c = 0; c < cols; c++) { /* where outputs end, the last one again */
            uint64_t row = col + (c < n_cols ? c : n_cols - 1);
            g.w[c] = (const unsigned char *)w->data + (row * w->k + at->begin) * bytes;
        }
        g.next = at->next;
        block(&g, sums);
        for (uint32_t r = 0; r < at->n_rows; r++)
            for (uint32_t c = 0; c < n_cols; c++) {
                float *y = job->y + (at->row + r) * job->y_stride + col + c;
                float sum = sums[r * cols + c];
                *y = at->begin == 0 ? sum : *y + sum;
            }
    }
}

/* Outputs of a panel: one group where one turn takes all rows, else many, while two panels stay
 * in the second-level cache. */
static uint32_t panel_cols(const sheaf__matmul_rows *job, uint32_t n_turns)
{
    if (n_turns == 1) return group_cols[job->m];
    uint64_t row_bytes = job->w->k * sheaf__dtype_bytes(job->w->dtype);
    return row_bytes * PANEL_COLS <= PANEL_BYTES ? PANEL_COLS : PANEL_COLS / 2;
}

static void stream(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end)
{
    const uint64_t row_bytes = job->w->k * sheaf__dtype_bytes(job->w->dtype);
    part at = {.n_turns = 0};
    for (uint32_t row = 0; row < job->m; row += rows_of_turn(job->m - row)) at.n_turns++;
    const uint32_t width = panel_cols(job, at.n_turns);
    const uint64_t ahead = job->m == 1 ? ROW_AHEAD : width * row_bytes;
    for (at.col = begin; at.col < end; at.col += width) {
        at.end = end - at.col < width ? end : at.col + width;
        at.next = (const unsigned char *)job->w->data + at.col * row_bytes + ahead;
        for (at.begin = 0; at.begin < job->w->k; at.begin += SHEAF__MATMUL_BLOCK)
            for (at.row = 0; at.row < job->m; at.row += at.n_rows) {
                at.n_rows = rows_of_turn(job->m - at.row);
                part_sums(job, &at);
            }
    }
}

/* Order of a step for bf16 weights: even lanes, then odd ones. A block's first halves lie before
 * its second ones, so that a pass touches nothing else. */
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
        uint64_t block = i / SHEAF__MATMUL_BLOCK * SHEAF__MATMUL_BLOCK, left = k - block;
        float *place = out + block + (i - block) / 2;
        _mm256_store_ps(place, low);
        place += left < SHEAF__MATMUL_BLOCK ? (left + 15) / 16 * 8 : SHEAF__MATMUL_BLOCK / 2;
        _mm256_store_ps(place, high);
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
