/* model/matmul_panel.h - the packed form's kernels, one file an instruction set, named for the
 * tables of model/matmul_kernels.h. */
#ifndef SHEAF_MODEL_MATMUL_PANEL_H
#define SHEAF_MODEL_MATMUL_PANEL_H

#include "model/matmul_kernels.h"

#define SHEAF__PANEL_AVX2_ROWS    6
#define SHEAF__PANEL_AVX2_COLS    16
#define SHEAF__PANEL_AVX2_GROUP   4
#define SHEAF__PANEL_AVX512_ROWS  12
#define SHEAF__PANEL_AVX512_COLS  32
#define SHEAF__PANEL_AVX512_GROUP 2
#define SHEAF__PANEL_NEON_ROWS    6
#define SHEAF__PANEL_NEON_COLS    16
#define SHEAF__PANEL_NEON_GROUP   4

/* The lane at each place of a packed panel. */
static const uint32_t sheaf__panel_lane[16] = {0, 8, 4, 12, 2, 10, 6, 14,
                                               1, 9, 5, 13, 3, 11, 7, 15};

void sheaf__panel_avx2_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                              sheaf__matmul_span span, float *out);
void sheaf__panel_avx2_pack_w(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                              sheaf__matmul_span span, float *out);
void sheaf__panel_avx2_tiles(const float *x_packed, const float *w_packed,
                             sheaf__matmul_span span, uint32_t n_rows, uint32_t n_cols,
                             float *y, uint64_t y_stride);
void sheaf__panel_avx512_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                                sheaf__matmul_span span, float *out);
void sheaf__panel_avx512_pack_w(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                                sheaf__matmul_span span, float *out);
void sheaf__panel_avx512_tiles(const float *x_packed, const float *w_packed,
                               sheaf__matmul_span span, uint32_t n_rows, uint32_t n_cols,
                               float *y, uint64_t y_stride);
void sheaf__panel_neon_pack_x(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                              sheaf__matmul_span span, float *out);
void sheaf__panel_neon_pack_w(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                              sheaf__matmul_span span, float *out);
void sheaf__panel_neon_tiles(const float *x_packed, const float *w_packed,
                             sheaf__matmul_span span, uint32_t n_rows, uint32_t n_cols,
                             float *y, uint64_t y_stride);

#endif
