/* model/matmul.h - matrix products in the defined order.
 *
 * Owns: y[m][n] = sum over k of x[m][k] * w[n][k] for weights of f32, f16 or bf16, read in
 * place and widened exactly; the packing buffers; the dealing out to threads. Does not own:
 * weights.
 *
 * Order (docs/adr/0003), a function of k alone: blocks of 1024 along k; inside a block 16 lanes
 * (k mod 16), each a chain of fused multiply-adds from +0 over ascending k, reduced by the tree
 * (i, i+8) (i, i+4) (i, i+2) (i, i+1). Where k is no multiple of 16, the lanes that the last
 * step lacks take fma(+0, +0, lane), which makes +0 of -0. The first block's sum starts the
 * result and the others are added to it in ascending order. So a row's bits depend on neither
 * its batch, nor threads, nor the instruction set.
 */
#ifndef SHEAF_MODEL_MATMUL_H
#define SHEAF_MODEL_MATMUL_H

#include "base/memory.h"
#include "base/thread.h"

typedef struct sheaf__matmul sheaf__matmul;

/* A weight matrix, row-major: [n, k] of `dtype` (SHEAF_DTYPE_...). `data` may be misaligned. */
typedef struct sheaf__matrix {
    const void *data;
    uint32_t dtype;
    uint32_t n;
    uint32_t k;
} sheaf__matrix;

/* isa: SHEAF_ISA_..., resolved here. threads: null for one; must outlive it.
 * SHEAF_E_UNSUPPORTED, SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__matmul_create(sheaf_threads *threads, uint32_t isa, sheaf__memory *memory,
                                  sheaf__matmul **out);
void sheaf__matmul_destroy(sheaf__matmul *mm);

/* Makes room for products of up to m rows with k columns and n outputs; sheaf__matmul_run then
 * allocates nothing. */
sheaf_status sheaf__matmul_reserve(sheaf__matmul *mm, uint32_t m, uint32_t n, uint32_t k);

/* x: [m, k], rows x_stride floats apart; y: [m, n], rows y_stride apart; x and y do not
 * overlap. SHEAF_E_INVALID: larger than reserved, or k = 0. */
sheaf_status sheaf__matmul_run(sheaf__matmul *mm, const sheaf__matrix *w, const float *x,
                               uint64_t x_stride, uint32_t m, float *y, uint64_t y_stride);

/* The instruction set its kernels use: tests assert it. */
uint32_t sheaf__matmul_isa(const sheaf__matmul *mm);

#endif
