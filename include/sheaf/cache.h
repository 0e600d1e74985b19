/* sheaf/cache.h - whose tokens are in which blocks.
 *
 * Owns: running sequences and parked ones: their token ids, their tables of rows, the life of a
 * position (reserved, written, committed) and the rules of sharing. Does not own: the blocks
 * themselves (sheaf/pool.h), what is computed from them (sheaf/attn.h).
 *
 *     sheaf_sequence *seq = NULL;
 *     st = sheaf_sequence_create(pool, &seq);
 *     st = sheaf_sequence_extend(seq, n);                      // room in every group, or FULL
 *     for (layer ...) {
 *         st = sheaf_sequence_write(seq, layer, pos, n, &src); // K and V of this layer
 *         st = sheaf_sequence_view(seq, layer, &view);         // what is written, for attention
 *     }
 *     st = sheaf_sequence_commit(seq, n, tokens);              // now part of the sequence
 *     st = sheaf_sequence_fork(seq, &twin);                    // shares every block
 *     sheaf_sequence_destroy(seq);
 *
 * The life of a position:
 *
 *     absent --extend--> reserved --write, every layer--> written --commit--> committed
 *        ^                  |                                |                    |
 *        +------------------+---- commit of fewer, truncate -+----- truncate -----+
 *
 * What is not committed is seen by views of its own sequence only, once written: not by forks,
 * parking, gathering, lengths or statistics of sharing.
 *
 * Positions are absolute, from 0. A group with a window keeps blocks until sheaf_sequence_slide
 * lets go of those that no query can see any more; the other groups keep all.
 *
 * What a length needs: of each group with window w, the positions [max(0, length - w), length),
 * which are those that its last position sees; the next one sees no earlier one. Going back to
 * a length is SHEAF_E_SLID when one of these was let go, in any group. Length 0 needs nothing
 * and is always allowed: the tables start again at block 0.
 */
#ifndef SHEAF_CACHE_H
#define SHEAF_CACHE_H

#include "sheaf/pool.h"
#include "sheaf/view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_sequence sheaf_sequence;
typedef struct sheaf_parked sheaf_parked;

/* The id of a position whose token the caller did not name. */
#define SHEAF_TOKEN_NONE (-1)

/* Order of the numbers handed to sheaf_sequence_write. */
enum { SHEAF_TOKEN_MAJOR = 0, SHEAF_HEAD_MAJOR = 1 };

/* K and V of one layer for n positions, dense, read during the call alone; no alignment is asked.
 * Shape and types are compared with the layout each time.
 *   token-major  k: [n, n_kv_heads, key_dim], v: [n, n_kv_heads, value_dim]
 *   head-major   k: [n_kv_heads, n, key_dim], v: [n_kv_heads, n, value_dim] */
typedef struct sheaf_kv_source {
    uint32_t struct_size;
    uint32_t dtype; /* of both: SHEAF_DTYPE_... */
    uint32_t order;
    uint32_t n_kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    const void *k;
    const void *v; /* null when value_dim is 0 */
} sheaf_kv_source;
#define SHEAF_KV_SOURCE_INIT SHEAF_STRUCT_INIT(sheaf_kv_source)

/* ---- life -------------------------------------------------------------------------------- */

/* An empty sequence, the caller's to destroy, before the pool closes. Holds no block.
 * SHEAF_E_NO_MEMORY. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_create(sheaf_pool *pool, sheaf_sequence **out);

/* Returns every reference, of reserved positions too. Null is allowed. O(blocks). */
SHEAF_API void sheaf_sequence_destroy(sheaf_sequence *seq);

/* Committed positions; the next one to be committed. */
SHEAF_API uint32_t sheaf_sequence_length(const sheaf_sequence *seq);

/* Positions reserved beyond the committed ones. */
SHEAF_API uint32_t sheaf_sequence_reserved(const sheaf_sequence *seq);

/* Token ids of the committed positions: [length]. Valid until the next call that changes the
 * sequence. */
SHEAF_API const int32_t *sheaf_sequence_tokens(const sheaf_sequence *seq);

/* ---- growing ----------------------------------------------------------------------------- */

/* Exactly the blocks that sheaf_sequence_extend(seq, n) would take, per group: fresh ones, and
 * one for a shared partial tail. counts: [n_groups]. SHEAF_E_OVERFLOW: more than 2^31 - 1
 * positions. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_need_blocks(const sheaf_sequence *seq,
                                                             uint32_t n, uint32_t *counts);

/* Reserves room so that n positions beyond the committed ones are reserved, in every group at
 * once; what is reserved already counts, and stays. A partial last block that others share is
 * copied first. All or nothing, host memory included. SHEAF_FULL; SHEAF_E_OVERFLOW: more than
 * 2^31 - 1 positions; SHEAF_E_NO_MEMORY. Allocates only when the positions outgrow twice what
 * they last did. O(new blocks), and a copy of a block where one is shared. After SHEAF_FULL make
 * room (destroy, truncate or slide a sequence) and ask again. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_extend(sheaf_sequence *seq, uint32_t n);

/* Fills reserved positions [pos, pos + n) of one layer. Positions of a layer are written in
 * order: pos is at most the end of what this layer has written (writing again is allowed).
 * SHEAF_E_INVALID: no such layer, or k (or v where the layer has values) is null.
 * SHEAF_E_SHAPE: heads, dimensions, dtype or order. SHEAF_E_RANGE: not reserved, or a hole.
 * SHEAF_E_DEVICE: some are written, and the layer does not count them. Allocates nothing. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_write(sheaf_sequence *seq, uint32_t layer,
                                                       uint32_t pos, uint32_t n,
                                                       const sheaf_kv_source *src);

/* Counts reserved positions [pos, pos + n) of one layer as written: the caller has filled them by
 * itself, through the addresses of the view, or has queued work of the device's that will
 * (sheaf/cuda_attn.h). From here on the view spans them. SHEAF_E_INVALID, SHEAF_E_RANGE: as
 * above. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_wrote(sheaf_sequence *seq, uint32_t layer,
                                                       uint32_t pos, uint32_t n);

/* Makes the first n reserved positions part of the sequence and gives the rest back: blocks
 * past the new end are released, numbers written past it are gone. n = 0 drops the reservation.
 * tokens: [n], or null for SHEAF_TOKEN_NONE. SHEAF_E_RANGE: more than reserved.
 * SHEAF_E_UNWRITTEN: some layer has not written them all. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_commit(sheaf_sequence *seq, uint32_t n,
                                                        const int32_t *tokens);

/* ---- shrinking and sharing --------------------------------------------------------------- */

/* Drops everything from position `length` on, the reservation too.
 * SHEAF_E_RANGE: longer than it is. SHEAF_E_SLID: a window group has let go of positions that
 * `length` needs (see the top). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_truncate(sheaf_sequence *seq, uint32_t length);

/* Returns the blocks of window groups that lie wholly before what length - max_draft needs, so
 * that this and every greater length can still be truncated to. max_draft: the most positions
 * that may still be rejected. SHEAF_E_BUSY: a reservation is open. O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_slide(sheaf_sequence *seq, uint32_t max_draft);

/* A second sequence with the same tokens and the same blocks, one reference each; whoever first
 * extends into a shared partial block copies it. SHEAF_E_BUSY: a reservation is open (commit or
 * drop it first). SHEAF_E_NO_MEMORY. SHEAF_E_OVERFLOW: a block has all the references it can.
 * O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_fork(sheaf_sequence *seq,
                                                      sheaf_sequence **out);

/* Detaches the sequence: its blocks stay held, nothing runs. Consumes `seq`, which is gone on
 * success. SHEAF_E_BUSY: a reservation is open. Allocates nothing. O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_park(sheaf_sequence *seq, sheaf_parked **out);

/* Turns it back into a sequence, whole. Consumes `parked` on success. Allocates nothing.
 * O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_parked_adopt(sheaf_parked *parked,
                                                     sheaf_sequence **out);

/* A sequence of its first `length` tokens; `parked` stays. Whole blocks are shared, a partial
 * last block is copied. SHEAF_FULL: no block for the copy. SHEAF_E_RANGE: longer than it is.
 * SHEAF_E_SLID: as for truncate. SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW: as for fork.
 * O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_parked_clone(sheaf_parked *parked, uint32_t length,
                                                     sheaf_sequence **out);

/* Drops everything from `length` on. SHEAF_E_RANGE, SHEAF_E_SLID. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_parked_trim(sheaf_parked *parked, uint32_t length);

/* Returns every reference. Null is allowed. O(blocks). */
SHEAF_API void sheaf_parked_destroy(sheaf_parked *parked);

/* Its positions, and their token ids: [length], valid until it changes. */
SHEAF_API uint32_t sheaf_parked_length(const sheaf_parked *parked);
SHEAF_API const int32_t *sheaf_parked_tokens(const sheaf_parked *parked);

/* ---- reading ----------------------------------------------------------------------------- */

/* The layer as kernels see it, up to what this layer has written, committed or not. K and V have
 * the same row stride. The layers of a group have the same rows. `rows` is never null, and valid
 * until the next call that changes the sequence; writing does not. An empty layer has no row.
 * SHEAF_E_INVALID: no such layer. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_view(const sheaf_sequence *seq, uint32_t layer,
                                                      sheaf_kv_view *out);

/* The committed positions of a layer that are visible to the last one: [*begin, *end). With a
 * window w, begin is the larger of 0 and length - w. SHEAF_E_INVALID: no such layer. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_visible(const sheaf_sequence *seq,
                                                         uint32_t layer, uint32_t *begin,
                                                         uint32_t *end);

/* Sizes and runs of a raw gather. */
typedef struct sheaf_gather_info {
    uint32_t struct_size;
    uint32_t n_blocks;   /* blocks that hold visible positions */
    uint32_t n_runs;     /* maximal runs of adjacent rows among them */
    uint32_t first_slot; /* slot of the first visible position in the first block */
    uint64_t k_bytes;    /* n_blocks K tiles */
    uint64_t v_bytes;
} sheaf_gather_info;
#define SHEAF_GATHER_INFO_INIT SHEAF_STRUCT_INIT(sheaf_gather_info)

/* Copies the encoded tiles of the blocks that hold visible positions, in order: k: [n_blocks,
 * tile], v: [n_blocks, tile], each tile whole, slots that are not visible as they are. Either
 * may be null to leave it out; `info` may be null. Capacities are in bytes. SHEAF_E_RANGE: too
 * small, nothing written. SHEAF_E_DEVICE: some are copied. An empty layer is SHEAF_OK. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_gather_raw(const sheaf_sequence *seq,
                                                            uint32_t layer, void *k,
                                                            uint64_t k_capacity, void *v,
                                                            uint64_t v_capacity,
                                                            sheaf_gather_info *info);

/* Decodes the visible positions: k: [n_kv_heads, visible, key_dim], v: [n_kv_heads, visible,
 * value_dim], f32, dense. Capacities in floats; either pointer may be null to leave it out.
 * SHEAF_E_RANGE: too small, nothing written. SHEAF_E_DEVICE: some are decoded. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_gather_f32(const sheaf_sequence *seq,
                                                            uint32_t layer, float *k,
                                                            uint64_t k_capacity, float *v,
                                                            uint64_t v_capacity);

/* Real bytes of a running or parked sequence. */
typedef struct sheaf_usage {
    uint32_t struct_size;
    uint32_t n_tokens;
    uint64_t blocks;          /* held, all groups */
    uint64_t bytes;           /* block_bytes of each */
    uint64_t bytes_exclusive; /* of these, with one reference: what destroying it frees */
    uint64_t host_bytes;      /* tables and token ids */
    uint64_t blocks_by_group[SHEAF_MAX_GROUPS];
} sheaf_usage;
#define SHEAF_USAGE_INIT SHEAF_STRUCT_INIT(sheaf_usage)

/* SHEAF_E_INVALID: struct_size is not set. O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_usage(const sheaf_sequence *seq,
                                                       sheaf_usage *out);
SHEAF_API SHEAF_WARN sheaf_status sheaf_parked_usage(const sheaf_parked *parked,
                                                     sheaf_usage *out);

/* Verifies the numbered invariants at the top of src/cache/sequence.c. SHEAF_E_CORRUPT: `err`
 * names the first that is broken. O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_sequence_check(const sheaf_sequence *seq,
                                                       sheaf_error *err);
SHEAF_API SHEAF_WARN sheaf_status sheaf_parked_check(const sheaf_parked *parked,
                                                     sheaf_error *err);

#ifdef __cplusplus
}
#endif
#endif
