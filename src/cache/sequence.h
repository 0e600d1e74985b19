/* cache/sequence.h - what the files of the cache floor know of a sequence.
 *
 * A parked sequence is the same struct in its other state: parking and adopting re-label its
 * references and allocate nothing, so they cannot fail for want of memory. `sheaf_parked` stays
 * an incomplete type, so that the compiler refuses to write to one or to extend it.
 */
#ifndef SHEAF_CACHE_SEQUENCE_H
#define SHEAF_CACHE_SEQUENCE_H

#include "cache/progress.h"
#include "cache/table.h"
#include "pool/pool.h"
#include "sheaf/cache.h"

struct sheaf_sequence {
    sheaf__owner owner; /* in the pool's registry; its kind is TABLE, or PARKED */
    sheaf_pool *pool;
    uint32_t n_groups;
    uint32_t block_tokens;
    uint32_t compared; /* positions whose blocks a publication has compared with the cache's */
    uint32_t in_step;  /* mark of a door that looks whether two of its steps name one */
    sheaf__progress progress;
    sheaf__room room;
    uint32_t written[]; /* [n_layers] of progress */
};

static inline sheaf_sequence *sheaf__sequence_of(sheaf_parked *parked)
{
    return (sheaf_sequence *)(void *)parked;
}

static inline const sheaf_sequence *sheaf__sequence_of_const(const sheaf_parked *parked)
{
    return (const sheaf_sequence *)(const void *)parked;
}

/* The rows that it has in a group. Good until the next call on it. */
static inline const sheaf__table *sheaf__sequence_table(const sheaf_sequence *seq,
                                                        uint32_t group)
{
    return &seq->room.tables[group];
}

/* An empty running sequence with room for `positions`. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__sequence_new(sheaf_pool *pool, uint32_t positions, sheaf_sequence **out);

/* A running sequence of the first `length` tokens, which `from` must cover. Blocks are shared;
 * with copy_tail a partial last block is copied instead. SHEAF_FULL, SHEAF_E_NO_MEMORY,
 * SHEAF_E_OVERFLOW. */
sheaf_status sheaf__sequence_duplicate(const sheaf_sequence *from, uint32_t length,
                                       bool copy_tail, sheaf_sequence **out);

/* The window of a group; 0: unlimited. */
uint32_t sheaf__sequence_window(const sheaf_sequence *seq, uint32_t group);

/* Whether a sequence cut to `length` has all that its last position and later ones see.
 * SHEAF_E_RANGE, SHEAF_E_SLID. */
sheaf_status sheaf__sequence_covers(const sheaf_sequence *seq, uint32_t length);

/* Makes `length` the committed length, closes the reservation and returns the blocks after it.
 * The sequence covers `length`, and all before it is committed or written. */
void sheaf__sequence_cut(sheaf_sequence *seq, uint32_t length);

/* A layer as kernels see it, with n_tokens = end. */
sheaf_kv_view sheaf__sequence_view_to(const sheaf_sequence *seq, uint32_t layer, uint32_t end);

/* Ends every call that changes a sequence: brings the pool's statistics up to date, and at
 * SHEAF_CHECK 2 verifies the whole state. */
void sheaf__sequence_changed(const sheaf_sequence *seq);

/* Real bytes of either state; `out` has its struct_size. */
sheaf_status sheaf__sequence_usage_of(const sheaf_sequence *seq, sheaf_usage *out);

/* Verifies the invariants of either state. */
sheaf_status sheaf__sequence_check_of(const sheaf_sequence *seq, sheaf_error *err);

#endif
