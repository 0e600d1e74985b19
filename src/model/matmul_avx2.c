/* model/matmul_avx2.c - the streamed matrix product on AVX2: lanes side by side, weights read
 * once.
 *
 * The 16 lanes of a dot are two vectors of 8, its halves. Weights of bf16 are widened by one
 * instruction that also loads them, putting zeros below them, four of each half of a register:
 *
 *     bf16:  half 0 = lanes 0 .. 3, 8 .. 11        f16, f32:  half 0 = lanes 0 .. 7
 *            half 1 = lanes 4 .. 7, 12 .. 15                  half 1 = lanes 8 .. 15
 *
 * One row runs one dot after another, both halves of it: so memory is read in the order of
 * addresses, which the processor foresees best. More rows run 2 x 4, 3 x 3 or 4 x 3 dots (rows of
 * x by outputs), first one half of all of them, then the other: so each vector of weights is
 * loaded and widened once for all rows and each of x once for all outputs, and 12 running vectors
 * are all that the registers hold beside operands. Instructions decide here more than
 * multiplications do, the more so while another thread runs on the same core: hence CHUNK steps
 * are unrolled, and prepare_x puts the x of one turn in the order in which it is read:
 *
 *     x of a turn:  [block of k][half][step][row][8]
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
#    define CHUNK        8            /* steps in one go */
#    define PANEL_COLS   24           /* a multiple of every shape's outputs */
#    define PANEL_BYTES  (64u * 1024) /* with the next one, a part of the second-level cache */
#    define ROW_AHEAD    1536u        /* bytes between what one row reads and asks for */
#    define LINE         64u

/* Zeros made where they are used: a compiler that kept them in a register would have one too few
 * for the running vectors. */
INLINE __m256i fresh_zeros(void)
{
    __m256i zeros;
    __asm__ volatile("vpxor %x0, %x0, %x0" : "=x"(zeros));
    return zeros;
}

INLINE __m256 load_half(const unsigned char *p, uint32_t dtype, int half, __m256i zeros)
{
    if (dtype == SHEAF_DTYPE_BF16) {
        __m256i both = _mm256_loadu_si256((const __m256i *)(const void *)p);
        return _mm256_castsi256_ps(half == 0 ? _mm256_unpacklo_epi16(zeros, both)
                                             : _mm256_unpackhi_epi16(zeros, both));
    }
    if (dtype == SHEAF_DTYPE_F16)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * half)));
    return _mm256_loadu_ps((const float *)(const void *)(p + 32 * half));
}

/* A group's share of one block of k. */
typedef struct group {
    const float *x;                   /* [2, steps, rows, 8] */
    const unsigned char *w[MAX_COLS]; /* each one's `size` weights */
    uint32_t size;
    uint32_t n_cols;           /* outputs that count: the others are the last one again */
    const unsigned char *next; /* what memory is asked for */
    uint64_t share;            /* bytes of it, in half a block */
    bool alone;                /* no other turn asks for its share */
    bool first;                /* block of k */
    float *y;                  /* [rows, y_stride] */
    uint64_t y_stride;
} group;

INLINE void multiply_add(__m256 *acc, __m256 a, __m256 b)
{
    /* not by the intrinsic: compilers choose forms of it that need copies of running vectors */
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*acc) : "x"(a), "x"(b));
}

/* One step of 16 along k, one half of it, for rows x cols dots: acc[row * cols + col].
 *   x: [rows, 8]; offset: bytes into each output's weights */
INLINE void step(__m256 *acc, const group *g, const float *x, uint64_t offset, uint32_t dtype,
                 int half, int rows, int cols)
{
    __m256 weights[MAX_COLS];
    __m256i zeros = dtype == SHEAF_DTYPE_BF16 && rows * cols == MAX_DOTS
                        ? fresh_zeros()
                        : _mm256_setzero_si256();
#    pragma GCC unroll 4
    for (int c = 0; c < cols; c++) {
        weights[c] = load_half(g->w[c] + offset, dtype, half, zeros);
        KEEP(weights[c]);
    }
#    pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m256 numbers = _mm256_loadu_ps(x + 8 * r);
        KEEP(numbers);
#    pragma GCC unroll 4
        for (int c = 0; c < cols; c++) multiply_add(&acc[r * cols + c], numbers, weights[c]);
    }
}

/* The last, short step of a block: what lies behind a row of weights is not ours to read. */
INLINE void tail_step(__m256 *acc, const group *g, const float *x, uint32_t whole,
                      uint32_t dtype, int half, int rows, int cols)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    unsigned char tails[MAX_COLS][64] = {{0}};
    group last = {.x = x};
    for (int c = 0; c < cols; c++) {
        memcpy(tails[c], g->w[c] + whole * bytes, (g->size - whole) * bytes);
        last.w[c] = tails[c];
    }
    step(acc, &last, x, 0, dtype, half, rows, cols);
}

/* Asks for n lines. Weights that are used once go into the first-level cache alone, others into
 * the second. */
INLINE void ask_for(const unsigned char *first, int n, bool nearest)
{
#    pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        if (nearest)
            _mm_prefetch((const char *)first + (uint64_t)i * LINE, _MM_HINT_NTA);
        else
            _mm_prefetch((const char *)first + (uint64_t)i * LINE, _MM_HINT_T1);
    }
}

/* Goes down a block of k with n_halves halves of the dots, from `half` on. Its callers stand out of
 * line, so that the running vectors have the registers to themselves. */
INLINE void pass(const group *g, uint32_t dtype, int half, int n_halves, int rows, int cols,
                 __m256 sums[2][MAX_DOTS])
{
    const uint64_t step_bytes = 16 * sheaf__dtype_bytes(dtype);
    const int dots = rows * cols, n = 8 * rows; /* floats of x in a step */
    const int lines = (int)(step_bytes * CHUNK * (uint64_t)(cols * n_halves) / 2 / LINE);
    const uint32_t whole = g->size / 16, all = (g->size + 15) / 16;
    const float *x[2] = {g->x + (uint64_t)half * all * (uint64_t)n,
                         g->x + (uint64_t)all * (uint64_t)n};
    const unsigned char *next = g->next + (half == 0 ? 0 : g->share * whole);
    uint64_t at = 0, chunks_end = rows == 1 ? 0 : whole / CHUNK * (CHUNK * step_bytes);
    __m256 acc[2][MAX_DOTS];
#    pragma GCC unroll 2
    for (int h = 0; h < n_halves; h++)
#    pragma GCC unroll 12
        for (int i = 0; i < dots; i++) acc[h][i] = _mm256_setzero_ps();
    for (; at != chunks_end; at += CHUNK * step_bytes, next += CHUNK * g->share) {
#    pragma GCC unroll 8
        for (int u = 0; u < CHUNK; u++) {
            const int asked = lines / 2 * u / CHUNK, asked_then = lines / 2 * (u + 1) / CHUNK;
            ask_for(next + (uint64_t)asked * LINE, asked_then - asked, rows == 1);
            if (u == CHUNK / 2 && g->alone)
                ask_for(next + (uint64_t)(lines / 2) * LINE, lines - lines / 2, rows == 1);
#    pragma GCC unroll 2
            for (int h = 0; h < n_halves; h++)
                step(acc[h], g, x[h] + n * u, at + (uint64_t)u * step_bytes, dtype, half + h,
                     rows, cols);
        }
#    pragma GCC unroll 2
        for (int h = 0; h < n_halves; h++) x[h] += n * CHUNK;
    }
    for (; at != whole * step_bytes; at += step_bytes, next += g->share) {
        ask_for(next, 1, rows == 1);
#    pragma GCC unroll 2
        for (int h = 0; h < n_halves; h++) {
            step(acc[h], g, x[h], at, dtype, half + h, rows, cols);
            x[h] += n;
        }
    }
#    pragma GCC unroll 2
    for (int h = 0; h < n_halves; h++)
#    pragma GCC unroll 12
        for (int i = 0; i < dots; i++) sums[half + h][i] = acc[h][i];
    if (all > whole)
        for (int h = 0; h < n_halves; h++)
            tail_step(sums[half + h], g, x[h], whole * 16, dtype, half + h, rows, cols);
}

/* The halves of a register of each, added: lanes 0 .. 3 of a, then of b. */
INLINE __m256 fold(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20),
                         _mm256_permute2f128_ps(a, b, 0x31));
}

/* Two levels of the tree for dots i and j, (lane, lane + 8) and (lane, lane + 4): four lanes of
 * i, then of j. */
INLINE __m256 join_pair(__m256 sums[2][MAX_DOTS], uint32_t dtype, int i, int j)
{
    if (dtype == SHEAF_DTYPE_BF16)
        return _mm256_add_ps(fold(sums[0][i], sums[0][j]), fold(sums[1][i], sums[1][j]));
    return fold(_mm256_add_ps(sums[0][i], sums[1][i]), _mm256_add_ps(sums[0][j], sums[1][j]));
}

/* The other two for four dots at once, as join_pair left them. */
INLINE __m128 join_four(__m256 ab, __m256 cd)
{
    /* two lanes of a, two of c | two of b, two of d */
    __m256 two =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    /* a c a c | b d b d */
    __m256 one =
        _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xdd));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

/* The dots' numbers from their vectors, to y. */
INLINE void finish(const group *g, __m256 sums[2][MAX_DOTS], uint32_t dtype, int rows, int cols)
{
    const int dots = rows * cols;
    float dot[MAX_DOTS];
#    pragma GCC unroll 3
    for (int i = 0; i < dots; i += 4) {
        int j = i + 1 < dots ? i + 1 : i, k = i + 2 < dots ? i + 2 : i,
            l = i + 3 < dots ? i + 3 : i;
        _mm_storeu_ps(dot + i,
                      join_four(join_pair(sums, dtype, i, j), join_pair(sums, dtype, k, l)));
    }
#    pragma GCC unroll 4
    for (int c = 0; c < cols; c++) {
        if (c == (int)g->n_cols) break;
        float *y = g->y + c;
#    pragma GCC unroll 4
        for (int r = 0; r < rows; r++, y += g->y_stride)
            *y = g->first ? dot[r * cols + c] : *y + dot[r * cols + c];
    }
}

/* How many rows take the next turn, of `left`; never one of several. */
static uint32_t rows_of_turn(uint32_t left)
{
    return left <= 3 ? left : left == 5 || left == 6 ? 3 : 4;
}

/* One function a shape and element type, so that the loops around them exist once. */
#    define SHAPE(name, dtype, rows, cols)                                                     \
        NOINLINE void name##_low(const group *g, __m256 sums[2][MAX_DOTS])                     \
        {                                                                                      \
            pass(g, dtype, 0, 1, rows, cols, sums);                                            \
        }                                                                                      \
        NOINLINE void name##_high(const group *g, __m256 sums[2][MAX_DOTS])                    \
        {                                                                                      \
            pass(g, dtype, 1, 1, rows, cols, sums);                                            \
        }                                                                                      \
        static void name(const group *g)                                                       \
        {                                                                                      \
            __m256 sums[2][MAX_DOTS];                                                          \
            name##_low(g, sums);                                                               \
            name##_high(g, sums);                                                              \
            finish(g, sums, dtype, rows, cols);                                                \
        }
#    define SHAPES(name, dtype)                                                                \
        static void name##_1x1(const group *g)                                                 \
        {                                                                                      \
            __m256 sums[2][MAX_DOTS];                                                          \
            pass(g, dtype, 0, 2, 1, 1, sums);                                                  \
            finish(g, sums, dtype, 1, 1);                                                      \
        }                                                                                      \
        SHAPE(name##_2x4, dtype, 2, 4)                                                         \
        SHAPE(name##_3x3, dtype, 3, 3)                                                         \
        SHAPE(name##_4x3, dtype, 4, 3)

SHAPES(f32, SHEAF_DTYPE_F32)
SHAPES(f16, SHEAF_DTYPE_F16)
SHAPES(bf16, SHEAF_DTYPE_BF16)

typedef void block_fn(const group *g);

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
    const uint64_t bytes = sheaf__dtype_bytes(w->dtype), left = w->k - at->begin;
    const uint32_t cols = group_cols[at->n_rows];
    block_fn *block = blocks[w->dtype][at->n_rows];
    group g = {.x = job->x + at->row * job->x_stride + at->begin * at->n_rows,
               .alone = at->n_turns == 1,
               .first = at->begin == 0,
               .y_stride = job->y_stride};
    g.size = (uint32_t)(left < SHEAF__MATMUL_BLOCK ? left : SHEAF__MATMUL_BLOCK);
    g.share = cols * 16 * bytes / at->n_turns / (job->m == 1 ? 1 : 2);
    uint64_t asked = cols * g.size * bytes / at->n_turns;
    for (uint32_t col = at->col; col < at->end; col += cols, at->next += asked) {
        g.n_cols = at->end - col < cols ? at->end - col : cols;
        for (uint32_t c = 0; c < cols; c++) { /* where outputs end, the last one again */
            uint64_t row = col + (c < g.n_cols ? c : g.n_cols - 1);
            g.w[c] = (const unsigned char *)w->data + (row * w->k + at->begin) * bytes;
        }
        g.next = at->next;
        g.y = job->y + at->row * job->y_stride + col;
        block(&g);
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

/* A step of one row in the order of its halves. */
INLINE void split_step(const float *from, uint32_t dtype, float *half0, float *half1)
{
    __m256 low = _mm256_loadu_ps(from), high = _mm256_loadu_ps(from + 8);
    if (dtype == SHEAF_DTYPE_BF16) {
        __m256 evens = _mm256_permute2f128_ps(low, high, 0x20);
        high = _mm256_permute2f128_ps(low, high, 0x31);
        low = evens;
    }
    _mm256_storeu_ps(half0, low);
    _mm256_storeu_ps(half1, high);
}

static void prepare_x(const sheaf__matmul_rows *job, float *out, uint64_t out_stride)
{
    const uint32_t k = job->w->k, dtype = job->w->dtype;
    for (uint32_t row = 0, n_rows; row < job->m; row += n_rows, out += n_rows * out_stride) {
        n_rows = rows_of_turn(job->m - row);
        for (uint64_t r = 0; r < n_rows; r++) {
            const float *x = job->x + (row + r) * job->x_stride;
            for (uint64_t i = 0; i < k; i += 16) {
                uint64_t begin = i / SHEAF__MATMUL_BLOCK * SHEAF__MATMUL_BLOCK,
                         left = k - begin;
                uint64_t n_steps =
                    left < SHEAF__MATMUL_BLOCK ? (left + 15) / 16 : SHEAF__MATMUL_BLOCK / 16;
                float *half0 = out + begin * n_rows + ((i - begin) / 16 * n_rows + r) * 8;
                float padded[16] = {0};
                if (k - i < 16) memcpy(padded, x + i, (k - i) * sizeof *x);
                split_step(k - i < 16 ? padded : x + i, dtype, half0,
                           half0 + n_steps * n_rows * 8);
            }
        }
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
