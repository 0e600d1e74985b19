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

/* What a kernel needs to read one layer of one sequence: plain addresses, no handles. The key of
 * position p and head h, with the codecs that store plain numbers, is [key_dim] numbers at
 *
 *     base + rows[p / block_tokens - first_block] * row_stride_k + k_offset
 *          + h * k_head_stride + (p % block_tokens) * key_dim * bytes of a number
 *
 * and the value the same with v_ and value_dim. What precedes the last term is a segment; where the
 * codes and scales of a quantized codec lie in it: sheaf/codec.h. Positions before first_block *
 * block_tokens and from n_tokens on are not there: rows end with the block of n_tokens - 1, whose
 * later slots are undefined. All products in 64 bits. A whole segment decodes by sheaf_codec_decode.
 *
 * A page table as paged kernels of the field take it is the rows of each view one after another;
 * the last page holds n_tokens - (first_block + n_rows - 1) * block_tokens positions; strides
 * are these, divided by the bytes of a number. Frozen per library version. */
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
    uint32_t window; /* of the layer, 0: unlimited; says nothing about what is there */
    uint32_t codec_k;
    uint32_t codec_v;
} sheaf_kv_view;

#ifdef __cplusplus
}
#endif
#endif
