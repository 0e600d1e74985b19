/* model/forward.h - one step of the network over a ragged batch.
 *
 * Owns: the activations' workspace, the rope tables, the attention plans (one a window), the
 * order of layers. Does not own: weights, caches, requests.
 *
 *     st = sheaf__kv_extend(items[i].kv, items[i].n_tokens), for each       // reserved before
 *     st = sheaf__forward_run(fwd, items, n_items, logits);                    // written
 *     st = sheaf__kv_commit(items[i].kv, items[i].n_tokens, items[i].tokens)   // by the caller
 *
 * An item may begin with positions that its cache has already (n_cached): their queries are
 * computed again, over the K and V that are there, which are not written again. So a prompt that
 * was found as a whole gets its last logits without a position of its own:
 *
 *     item = {kv, sheaf__kv_tokens(kv) + length - 1, 1, 1, 1}    // nothing to reserve or commit
 *
 * A row's logits are a function of its sequence's tokens alone, to the bit: not of the batch,
 * the chunks, the threads, the backend or the path.
 */
#ifndef SHEAF_MODEL_FORWARD_H
#define SHEAF_MODEL_FORWARD_H

#include "model/kv.h"
#include "model/weights.h"
#include "sheaf/attn.h"

typedef struct sheaf__forward sheaf__forward;

typedef struct sheaf__forward_options {
    sheaf_threads *threads; /* null: one */
    uint32_t isa;           /* SHEAF_ISA_... */
    uint32_t attn_path;     /* SHEAF_ATTN_... */
    uint32_t max_positions; /* rope tables; 0: the config's */
    sheaf__memory *memory;  /* must outlive it */
    void (*on_layer)(void *ctx, uint32_t done, uint32_t n_layers); /* after each; may be null */
    void *on_layer_ctx;
} sheaf__forward_options;

typedef struct sheaf__forward_item {
    sheaf__kv *kv;         /* n_tokens - n_cached positions reserved beyond its length */
    const int32_t *tokens; /* [n_tokens], each below the vocabulary */
    uint32_t n_tokens;     /* >= 1 */
    uint32_t n_logits;     /* the last n_logits tokens' logits are wanted: 0 to n_tokens */
    uint32_t n_cached; /* the first n_cached tokens are the last that kv has: 0 to n_tokens */
} sheaf__forward_item;

/* `config` is copied; `weights` and the threads must outlive it.
 * SHEAF_E_UNSUPPORTED: the processor lacks `isa`. SHEAF_E_LAYOUT: more than SHEAF_MAX_GROUPS
 * distinct windows. SHEAF_E_INVALID, SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__forward_create(const sheaf__config *config, const sheaf__weights *weights,
                                   const sheaf__forward_options *options, sheaf__forward **out);
void sheaf__forward_destroy(sheaf__forward *fwd);

/* The pool layout of the model: [config->n_layers]. */
void sheaf__forward_layout(const sheaf__config *config, uint32_t codec_k, uint32_t codec_v,
                           sheaf_layer *layers);

/* Runs the items' tokens through the network; K and V of those that are not cached are written,
 * not committed. Items may share blocks (forks), but each has a cache of its own.
 *   logits: [sum of n_logits, vocab] f32, in item order; may be null when none is wanted
 * On any failure the caller drops the reservations (sheaf__kv_commit of 0): every sequence is
 * as before. What can be refused is refused before anything is written:
 * SHEAF_E_INVALID: a token outside the vocabulary, a cached one that is another than the cache
 * says, an empty item, one cache named twice. SHEAF_E_CONTEXT: a position beyond max_positions.
 * SHEAF_E_RANGE: not reserved, or more cached than kv has. SHEAF_E_SLID: a window has let go of
 * positions that the first cached one sees. SHEAF_E_BUSY: an item of cached tokens alone, and a
 * reservation is open. SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW. Only then: SHEAF_E_NONFINITE: a
 * logit. Buffers grow at the beginning of a run that is larger than those before it; a run like
 * the last one allocates nothing. */
sheaf_status sheaf__forward_run(sheaf__forward *fwd, const sheaf__forward_item *items,
                                uint32_t n_items, float *logits);

/* What attention did in the last run. */
void sheaf__forward_report(const sheaf__forward *fwd, sheaf_attn_report *out);

#endif
