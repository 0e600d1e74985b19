/* model/matmul_neon.c - the streamed matrix product on NEON: the 16 lanes of a dot are four
 * vectors.
 *
 * Four dots run at a time, one row with four outputs or two rows with two: their 16 running
 * vectors, with a step's weights and x, fill most of the 32 registers. x is read in place.
 */
#if defined(__aarch64__)

#    include <arm_neon.h>
#    include <string.h>

#    include "model/matmul_panel.h"

#    define INLINE static inline __attribute__((always_inline))
#    define DOTS   4

/* Four weights from p, which may have any alignment. */
INLINE float32x4_t load4(const unsigned char *p, const uint32_t dtype)
{
    if (dtype == SHEAF_DTYPE_F32) return vreinterpretq_f32_u8(vld1q_u8(p));
    uint8x8_t half = vld1_u8(p);
    if (dtype == SHEAF_DTYPE_F16) return vcvt_f32_f16(vreinterpret_f16_u8(half));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(half), 16));
}

/* A group's share of one block of k. */
typedef struct group {
    const float *x[DOTS];         /* a row's `size` numbers each */
    const unsigned char *w[DOTS]; /* an output's `size` weights each */
    uint32_t size;
} group;

/* One step of 16 along k for rows x cols dots. acc: [rows * cols][vector] */
INLINE void step(float32x4_t acc[DOTS][4], const group *g, uint32_t k, const uint32_t dtype,
                 const int rows, const int cols)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
#    pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        float32x4_t weights[DOTS];
#    pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            weights[c] = load4(g->w[c] + (k + 4 * (uint64_t)j) * bytes, dtype);
#    pragma GCC unroll 2
        for (int r = 0; r < rows; r++) {
            float32x4_t numbers = vld1q_f32(g->x[r] + k + 4 * j);
#    pragma GCC unroll 4
            for (int c = 0; c < cols; c++) {
                float32x4_t *a = &acc[r * cols + c][j];
                *a = vfmaq_f32(*a, numbers, weights[c]);
            }
        }
    }
}

/* The levels (i, i+8) (i, i+4) (i, i+2) of one dot. */
INLINE float32x2_t join_to_two(const float32x4_t v[4])
{
    float32x4_t four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    return vadd_f32(vget_low_f32(four), vget_high_f32(four));
}

/* One block of k for rows x cols = 4 dots: sums[row * cols + col]. */
INLINE void block_sums(const group *g, const uint32_t dtype, const int rows, const int cols,
                       float sums[DOTS])
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    float32x4_t acc[DOTS][4];
#    pragma GCC unroll 4
    for (int i = 0; i < DOTS; i++)
#    pragma GCC unroll 4
        for (int j = 0; j < 4; j++) acc[i][j] = vdupq_n_f32(0.0f);
    uint32_t whole = g->size & ~15u;
    for (uint32_t k = 0; k < whole; k += 16) step(acc, g, k, dtype, rows, cols);
    if (g->size > whole) {
        /* a short step: behind the ends of x and w lies +0 */
        const uint32_t left = g->size - whole;
        float numbers[DOTS][16] = {{0}};
        unsigned char tails[DOTS][64] = {{0}};
        group last = {.size = left};
        for (int r = 0; r < rows; r++) {
            memcpy(numbers[r], g->x[r] + whole, left * sizeof(float));
            last.x[r] = numbers[r];
        }
        for (int c = 0; c < cols; c++) {
            memcpy(tails[c], g->w[c] + whole * bytes, left * bytes);
            last.w[c] = tails[c];
        }
        step(acc, &last, 0, dtype, rows, cols);
    }
    float32x4_t low = vcombine_f32(join_to_two(acc[0]), join_to_two(acc[1]));
    float32x4_t high = vcombine_f32(join_to_two(acc[2]), join_to_two(acc[3]));
    vst1q_f32(sums, vpaddq_f32(low, high));
}

/* Outputs [col, col + n_cols) of all rows, `rows` by `cols` at a time; where rows or columns
 * run out, the last one is computed again. */
INLINE void columns(const sheaf__matmul_rows *job, uint32_t col, uint32_t n_cols,
                    const int rows, const int cols, const uint32_t dtype)
{
    const sheaf__matrix *w = job->w;
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    for (uint64_t begin = 0; begin < w->k; begin += SHEAF__MATMUL_BLOCK) {
        uint64_t left = w->k - begin;
        group g = {.size = (uint32_t)(left < SHEAF__MATMUL_BLOCK ? left : SHEAF__MATMUL_BLOCK)};
        for (uint32_t c = 0; c < (uint32_t)cols; c++) {
            uint64_t first = (uint64_t)(col + (c < n_cols ? c : n_cols - 1)) * w->k + begin;
            g.w[c] = (const unsigned char *)w->data + first * bytes;
        }
        for (uint32_t row = 0; row < job->m; row += (uint32_t)rows) {
            float sums[DOTS];
            uint32_t n_rows = job->m - row < (uint32_t)rows ? job->m - row : (uint32_t)rows;
            for (uint32_t r = 0; r < (uint32_t)rows; r++)
                g.x[r] = job->x + (row + (r < n_rows ? r : n_rows - 1)) * job->x_stride + begin;
            block_sums(&g, dtype, rows, cols, sums);
            for (uint32_t r = 0; r < n_rows; r++)
                for (uint32_t c = 0; c < n_cols; c++) {
                    float *y = job->y + (row + r) * job->y_stride + col + c;
                    float sum = sums[r * (uint32_t)cols + c];
                    *y = begin == 0 ? sum : *y + sum;
                }
        }
    }
}

INLINE void stream_typed(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end,
                         const uint32_t dtype)
{
    const uint32_t cols = job->m == 1 ? 4 : 2;
    for (uint32_t col = begin; col < end; col += cols) {
        uint32_t n_cols = end - col < cols ? end - col : cols;
        if (cols == 4)
            columns(job, col, n_cols, 1, 4, dtype);
        else
            columns(job, col, n_cols, 2, 2, dtype);
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

const sheaf__matmul_kernels sheaf__matmul_neon = {
    .isa = SHEAF_ISA_NEON,
    .stream_rows = 4,
    .tile_rows = SHEAF__PANEL_NEON_ROWS,
    .tile_cols = SHEAF__PANEL_NEON_COLS,
    .stream = stream,
    .pack_x = sheaf__panel_neon_pack_x,
    .pack_w = sheaf__panel_neon_pack_w,
    .group_tiles = SHEAF__PANEL_NEON_GROUP,
    .tiles = sheaf__panel_neon_tiles,
};

#endif
