/* cache/dense.h - the cache that engines usually have: one contiguous buffer a sequence.
 *
 * Owns: per layer a buffer of K and then V, head-major, grown by reallocation (twice the
 * positions, all copied). It stands beside the paged sequence as baseline and oracle: same
 * codecs, same views, none of the sharing, and no sliding: it keeps what a window no longer
 * sees. Nothing of libsheaf's public interface.
 *
 *   K of a layer: [n_kv_heads][capacity / block_tokens] segments of block_tokens positions,
 *   which for f32, f16 and bf16 is exactly [n_kv_heads, capacity, key_dim].
 */
#ifndef SHEAF_CACHE_DENSE_H
#define SHEAF_CACHE_DENSE_H

#include "base/memory.h"
#include "sheaf/cache.h"

typedef struct sheaf__dense sheaf__dense;

/* layers: [n_layers], copied. block_tokens: as the pool's, a power of two. `memory` must
 * outlive it. capacity: positions to hold at first; 0: 256. SHEAF_E_INVALID, SHEAF_E_CODEC,
 * SHEAF_E_OVERFLOW, SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__dense_create(sheaf__memory *memory, const sheaf_layer *layers,
                                 uint32_t n_layers, uint32_t block_tokens, uint32_t capacity,
                                 sheaf__dense **out);
void sheaf__dense_destroy(sheaf__dense *dense); /* null is allowed */

/* Each as the function of the same name in sheaf/cache.h, without SHEAF_FULL and SHEAF_E_SLID.
 * Fork copies everything. The first position of a view's row i is i * block_tokens. */
sheaf_status sheaf__dense_extend(sheaf__dense *dense, uint32_t n);
sheaf_status sheaf__dense_write(sheaf__dense *dense, uint32_t layer, uint32_t pos, uint32_t n,
                                const sheaf_kv_source *src);
sheaf_status sheaf__dense_commit(sheaf__dense *dense, uint32_t n, const int32_t *tokens);
sheaf_status sheaf__dense_truncate(sheaf__dense *dense, uint32_t length);
sheaf_status sheaf__dense_fork(const sheaf__dense *dense, sheaf__dense **out);
sheaf_status sheaf__dense_view(const sheaf__dense *dense, uint32_t layer, sheaf_kv_view *out);
sheaf_status sheaf__dense_gather_f32(const sheaf__dense *dense, uint32_t layer, float *k,
                                     uint64_t k_capacity, float *v, uint64_t v_capacity);
uint32_t sheaf__dense_length(const sheaf__dense *dense);
uint32_t sheaf__dense_reserved(const sheaf__dense *dense);
const int32_t *sheaf__dense_tokens(const sheaf__dense *dense);
uint64_t sheaf__dense_bytes(const sheaf__dense *dense);        /* of buffers, real */
uint64_t sheaf__dense_bytes_copied(const sheaf__dense *dense); /* by growth, ever */

#endif
