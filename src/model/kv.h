/* model/kv.h - where one sequence's K and V live: in the pool's blocks, or in a dense buffer.
 *
 * Owns: the choice, so that the forward pass is one text for both. The dense form stands beside
 * the paged one as baseline and oracle.
 */
#ifndef SHEAF_MODEL_KV_H
#define SHEAF_MODEL_KV_H

#include <stdbool.h>

#include "cache/dense.h"
#include "sheaf/cache.h"

enum { SHEAF__KV_PAGED = 0, SHEAF__KV_DENSE = 1 };

typedef struct sheaf__kv {
    uint32_t backend;
    sheaf_sequence *sequence; /* paged */
    sheaf__dense *dense;      /* dense */
} sheaf__kv;

/* Each as the function of the same name in sheaf/cache.h (src/cache/dense.h). */
sheaf_status sheaf__kv_extend(sheaf__kv *kv, uint32_t n);
sheaf_status sheaf__kv_write(sheaf__kv *kv, uint32_t layer, uint32_t pos, uint32_t n,
                             const sheaf_kv_source *src);
sheaf_status sheaf__kv_commit(sheaf__kv *kv, uint32_t n, const int32_t *tokens);
sheaf_status sheaf__kv_truncate(sheaf__kv *kv, uint32_t length);
sheaf_status sheaf__kv_slide(sheaf__kv *kv, uint32_t max_draft); /* dense: keeps everything */
sheaf_status sheaf__kv_view(const sheaf__kv *kv, uint32_t layer, sheaf_kv_view *out);
sheaf_status sheaf__kv_fork(sheaf__kv *kv, sheaf__kv *out); /* dense: copies everything */
uint32_t sheaf__kv_length(const sheaf__kv *kv);
uint32_t sheaf__kv_reserved(const sheaf__kv *kv);
const int32_t *sheaf__kv_tokens(const sheaf__kv *kv);

/* Whether it has all that position length - 1 sees. SHEAF_E_RANGE: longer than it is.
 * SHEAF_E_SLID: a window has let go of some of it. */
sheaf_status sheaf__kv_covers(const sheaf__kv *kv, uint32_t length);

/* How many of its tokens, from the first on, are those of `tokens`: [n]. */
uint32_t sheaf__kv_common(const sheaf__kv *kv, const int32_t *tokens, uint32_t n);

/* Whether both name one cache (forks are two). */
bool sheaf__kv_same(const sheaf__kv *a, const sheaf__kv *b);

/* Returns what it holds and leaves it empty; harmless on a zeroed struct. */
void sheaf__kv_destroy(sheaf__kv *kv);

#endif
