/* model/matmul_kernels.h - what one instruction set brings to a matrix product.
 *
 * Two forms, the same bits. The streamed form reads each weight once, from memory, for up to
 * `stream_rows` rows of x, with the 16 lanes of a dot side by side in vector registers. The
 * packed form is for more rows: it copies weights and x so that one lane of a dot is a vector
 * along the outputs, and computes tiles of tile_rows x tile_cols outputs lane after lane:
 *
 *     x, w:  k =  0  1 ... 15 | 16 17 ... 31 | ...          a block: up to 1024 of k
 *     packed:     0 16 32 ... | 8 24 40 ... | 4 20 ...   [lane][step][tile_rows or _cols]
 *
 * Lanes lie in the order 0 8 4 12 2 10 6 14 1 9 5 13 3 11 7 15 (i with its four bits reversed),
 * in which the tree (i, i+8) (i, i+4) (i, i+2) (i, i+1) joins neighbours first: like a binary
 * counter, it needs four waiting tiles at most. What lies beyond a tail of k, or beyond the
 * last row or output, is +0.
 */
#ifndef SHEAF_MODEL_MATMUL_KERNELS_H
#define SHEAF_MODEL_MATMUL_KERNELS_H

#include "model/matmul.h"

#define SHEAF__MATMUL_LANES 16u
#define SHEAF__MATMUL_BLOCK 1024u

/* One product, as the streamed form sees it. */
typedef struct sheaf__matmul_rows {
    const sheaf__matrix *w;
    const float *x; /* [m, x_stride], or what prepare_x made of it */
    uint64_t x_stride;
    uint32_t m;
    float *y; /* [m, y_stride] */
    uint64_t y_stride;
} sheaf__matmul_rows;

/* A block of k: columns [begin, begin + n_steps * 16) of x and w, cut at k. */
typedef struct sheaf__matmul_span {
    uint32_t begin;
    uint32_t n_steps; /* 1 to 64 */
} sheaf__matmul_span;

typedef struct sheaf__matmul_kernels {
    uint32_t isa;
    uint32_t stream_rows; /* most rows that the streamed form is faster for */
    uint32_t tile_rows;   /* 0: no packed form, all rows are streamed */
    uint32_t tile_cols;
    uint32_t group_tiles; /* most tiles, one below the other, that a call of `tiles` takes */

    /* Copies the job's x to out, as many floats as [m, out_stride] has (out_stride: k rounded up
     * to a multiple of 16 at least), in the order that stream wants. Null: stream reads x in
     * place. */
    void (*prepare_x)(const sheaf__matmul_rows *job, float *out, uint64_t out_stride);

    /* y[:, begin..end) of the product. */
    void (*stream)(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end);

    /* Packs one tile's rows of x: [16, n_steps, tile_rows]; n_rows <= tile_rows. */
    void (*pack_x)(const float *x, uint64_t x_stride, uint32_t n_rows, uint32_t k,
                   sheaf__matmul_span span, float *out);

    /* Packs weight rows [begin, begin + n_cols): [16, n_steps + 1, tile_cols], the last step of
     * each lane unused: without it all lanes would fall into one set of the cache. */
    void (*pack_w)(const sheaf__matrix *w, uint32_t begin, uint32_t n_cols,
                   sheaf__matmul_span span, float *out);

    /* The block's sums of the tiles that n_rows make, packed one after another: stored to y
     * when the block is the first, else added to it. A lane's weights are read for all of them
     * while they lie in the first-level cache. */
    void (*tiles)(const float *x_packed, const float *w_packed, sheaf__matmul_span span,
                  uint32_t n_rows, uint32_t n_cols, float *y, uint64_t y_stride);
} sheaf__matmul_kernels;

extern const sheaf__matmul_kernels sheaf__matmul_scalar;
#if defined(__x86_64__)
extern const sheaf__matmul_kernels sheaf__matmul_avx2;
extern const sheaf__matmul_kernels sheaf__matmul_avx512;
#elif defined(__aarch64__)
extern const sheaf__matmul_kernels sheaf__matmul_neon;
#endif

/* Bytes between two numbers of a dtype. */
static inline uint64_t sheaf__dtype_bytes(uint32_t dtype)
{
    return dtype == SHEAF_DTYPE_F32 ? 4 : 2;
}

#endif
