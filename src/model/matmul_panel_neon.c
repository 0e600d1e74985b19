/* model/matmul_panel_neon.c - the packed matrix product on NEON: tiles of 6 rows by 16 outputs.
 *
 * 24 running vectors, each 4 outputs of one row, run down one lane's steps; then the lane's tile
 * joins the tree on a small stack (see model/matmul_kernels.h).
 */
#if defined(__aarch64__)

#    include <arm_neon.h>
#    include <string.h>

#    include "model/matmul_panel.h"

#    define INLINE static inline __attribute__((always_inline))
#    define ROWS   SHEAF__PANEL_NEON_ROWS
#    define COLS   SHEAF__PANEL_NEON_COLS
#    define VECS   (COLS / 4)
#    define TILE   (ROWS * COLS)
#    define GROUP  SHEAF__PANEL_NEON_GROUP

void sheaf__panel_neon_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                              sheaf__matmul_span span, float *out)
{
    for (uint32_t place = 0; place < SHEAF__MATMUL_LANES; place++) {
        uint64_t at = span.begin + sheaf__panel_lane[place];
        for (uint32_t s = 0; s < span.n_steps; s++, at += SHEAF__MATMUL_LANES)
            for (uint32_t r = 0; r < ROWS; r++)
                *out++ = r < n_rows && at < k ? x[r * x_stride + at] : 0.0f;
    }
}

/* Four weights from p, which may have any alignment. */
INLINE float32x4_t load4(const unsigned char *p, const uint32_t dtype)
{
    if (dtype == SHEAF_DTYPE_F32) return vreinterpretq_f32_u8(vld1q_u8(p));
    uint8x8_t half = vld1_u8(p);
    if (dtype == SHEAF_DTYPE_F16) return vcvt_f32_f16(vreinterpret_f16_u8(half));
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(half), 16));
}

/* rows[c][lane] to rows[lane][c], four by four. */
INLINE void transpose4(float32x4_t rows[4])
{
    float32x4_t a = vzip1q_f32(rows[0], rows[2]), b = vzip2q_f32(rows[0], rows[2]);
    float32x4_t c = vzip1q_f32(rows[1], rows[3]), d = vzip2q_f32(rows[1], rows[3]);
    rows[0] = vzip1q_f32(a, c);
    rows[1] = vzip2q_f32(a, c);
    rows[2] = vzip1q_f32(b, d);
    rows[3] = vzip2q_f32(b, d);
}

/* One step of four weight rows to their places in the 16 lanes. */
INLINE void pack_step(const unsigned char *const rows[4], const uint32_t dtype,
                      uint64_t lane_floats, float *out)
{
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
#    pragma GCC unroll 4
    for (uint32_t lane = 0; lane < SHEAF__MATMUL_LANES; lane += 4) {
        float32x4_t quad[4];
#    pragma GCC unroll 4
        for (int c = 0; c < 4; c++) quad[c] = load4(rows[c] + lane * bytes, dtype);
        transpose4(quad);
#    pragma GCC unroll 4
        for (uint32_t i = 0; i < 4; i++)
            vst1q_f32(out + sheaf__panel_lane[lane + i] * lane_floats, quad[i]);
    }
}

INLINE void pack_w_typed(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                         sheaf__matmul_span span, float *out, const uint32_t dtype)
{
    static const unsigned char zeros[64];
    const uint64_t bytes = sheaf__dtype_bytes(dtype);
    const uint64_t lane_floats = (span.n_steps + 1) * (uint64_t)COLS;
    for (uint32_t quarter = 0; quarter < COLS; quarter += 4) {
        const unsigned char *row[4];
        for (uint32_t c = 0; c < 4; c++) {
            uint64_t first = (uint64_t)(begin + quarter + c) * w->k + span.begin;
            row[c] =
                quarter + c < n_cols ? (const unsigned char *)w->data + first * bytes : NULL;
        }
        for (uint32_t s = 0; s < span.n_steps; s++) {
            uint64_t left = w->k - span.begin - s * (uint64_t)SHEAF__MATMUL_LANES;
            unsigned char tails[4][64];
            const unsigned char *at[4];
            for (uint32_t c = 0; c < 4; c++) {
                at[c] = row[c] == NULL ? zeros : row[c] + s * SHEAF__MATMUL_LANES * bytes;
                if (left >= SHEAF__MATMUL_LANES || row[c] == NULL) continue;
                memset(tails[c], 0, sizeof tails[c]);
                memcpy(tails[c], at[c], left * bytes);
                at[c] = tails[c];
            }
            pack_step(at, dtype, lane_floats, out + s * (uint64_t)COLS + quarter);
        }
    }
}

void sheaf__panel_neon_pack_w(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
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
 * number of joins after the lane at `place` is the number of ones that end it in binary. */
INLINE void lane_tile(const float *x, const float *w, uint32_t n_steps, uint32_t place,
                      float *stack)
{
    float32x4_t acc[ROWS][VECS];
#    pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#    pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) acc[r][v] = vdupq_n_f32(0.0f);
    for (uint32_t s = 0; s < n_steps; s++, w += COLS, x += ROWS) {
        float32x4_t weights[VECS];
#    pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) weights[v] = vld1q_f32(w + 4 * v);
        /* six numbers in two registers: one each would leave too few for the running vectors */
        float32x4_t rows0123 = vld1q_f32(x);
        float32x2_t rows45 = vld1_f32(x + 4);
#    pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) {
            acc[0][v] = vfmaq_laneq_f32(acc[0][v], weights[v], rows0123, 0);
            acc[1][v] = vfmaq_laneq_f32(acc[1][v], weights[v], rows0123, 1);
            acc[2][v] = vfmaq_laneq_f32(acc[2][v], weights[v], rows0123, 2);
            acc[3][v] = vfmaq_laneq_f32(acc[3][v], weights[v], rows0123, 3);
            acc[4][v] = vfmaq_lane_f32(acc[4][v], weights[v], rows45, 0);
            acc[5][v] = vfmaq_lane_f32(acc[5][v], weights[v], rows45, 1);
        }
    }
    for (; place & 1; place >>= 1) {
        stack -= TILE;
#    pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++)
#    pragma GCC unroll 4
            for (int v = 0; v < VECS; v++)
                acc[r][v] = vaddq_f32(vld1q_f32(stack + r * COLS + 4 * v), acc[r][v]);
    }
#    pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++)
#    pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) vst1q_f32(stack + r * COLS + 4 * v, acc[r][v]);
}

void sheaf__panel_neon_tiles(const float *x_packed, const float *w_packed,
                             sheaf__matmul_span span, uint32_t n_rows, uint32_t n_cols,
                             float *y, uint64_t y_stride)
{
    float tiles[GROUP][5 * TILE];
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
