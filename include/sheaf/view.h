/* sheaf/view.h - one layer of one sequence as kernels see it.
 *
 * Owns: the plain struct that passes from whoever holds blocks to whoever reads them. Does not
 * own: anything else; it names no sequence, no handle and no pool, so that a kernel, an
 * embedder's own or a GPU's, needs nothing but this.
 *
 * The same struct describes a contiguous buffer: `rows` null, row_stride the bytes of one
 * segment, head_stride the bytes of one head's whole run of segments.
 */
#ifndef SHEAF_VIEW_H
#define SHEAF_VIEW_H

#include "sheaf/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a kernel needs to read one layer of one sequence: plain addresses, no handles. Position
 * p lies in slot p % block_tokens of row rows[p / block_tokens - first_block]; head h of that
 * row's K starts at base + row * row_stride + k_offset + h * k_head_stride. Frozen per library
 * version. */
typedef struct sheaf_kv_view {
    const unsigned char *base;
    const uint32_t *rows;  /* [n_rows]; null: row i is the i-th (a contiguous buffer) */
    uint64_t row_stride_k; /* bytes from row to row, of K */
    uint64_t row_stride_v;
    uint64_t k_offset; /* bytes */
    uint64_t v_offset;
    uint64_t k_head_stride; /* bytes from head to head */
    uint64_t v_head_stride;
    uint32_t n_rows;
    uint32_t first_block; /* blocks before rows[0], no longer held */
    uint32_t block_tokens;
    uint32_t n_tokens; /* end of the written positions, absolute */
    uint32_t n_kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t window;
    uint32_t codec_k;
    uint32_t codec_v;
} sheaf_kv_view;

#ifdef __cplusplus
}
#endif
#endif
