/* engine/generate.h - a loaded model, and answers out of it.
 *
 * Owns: all that belongs to one open model (config, weights, tokenizer, pool, forward pass),
 * prompts prefilled in chunks, and a batch of answers decoded together. Does not own: queues,
 * sockets.
 *
 *     st = sheaf__model_open("DIR", &o, &model, &err);
 *     st = sheaf__model_new_kv(model, &kv);
 *     st = sheaf__model_prefill(model, &kv, ids, n, logits, &err);  // of the last token
 *     st = sheaf__model_decode(model, answers, n_answers, on_token, ctx);
 */
#ifndef SHEAF_ENGINE_GENERATE_H
#define SHEAF_ENGINE_GENERATE_H

#include "engine/sampler.h"
#include "model/chat.h"
#include "model/forward.h"

typedef struct sheaf__model_options {
    uint32_t n_threads;  /* 0: one a processor */
    uint32_t isa;        /* SHEAF_ISA_... */
    uint32_t kv_backend; /* SHEAF__KV_... */
    uint32_t codec_k;    /* SHEAF_CODEC_... */
    uint32_t codec_v;
    uint32_t attn_path;       /* SHEAF_ATTN_... */
    uint32_t ctx_size;        /* positions a sequence may have; 0: the model's */
    uint32_t block_tokens;    /* 0: the pool's default */
    uint32_t slab_blocks;     /* 0: the pool's default */
    uint32_t prefill_chunk;   /* 0: 512 */
    bool copy_weights;        /* into huge pages */
    bool no_tokenizer;        /* leave it null: tests of directories that have none */
    uint64_t kv_budget_bytes; /* of the pool; 0: the machine's memory */
    sheaf__progress_fn
        *progress; /* may be null; also told "prefill", tokens done, tokens in all */
    void *progress_ctx;
    const sheaf_allocator *allocator; /* null: the C library's */
} sheaf__model_options;

typedef struct sheaf__model {
    sheaf__config config;
    sheaf__weights *weights;
    sheaf__tokenizer *tokenizer;
    sheaf_threads *threads;
    sheaf_pool *pool; /* null with the dense backend */
    sheaf__forward *forward;
    sheaf__memory memory;         /* of the forward pass and dense caches */
    sheaf__model_options options; /* defaults filled in */
    sheaf_layer *layers;          /* [config.n_layers] */
    struct {                      /* the prompt being run, for progress; total 0: none */
        uint32_t done, chunk, total;
    } prefill;
} sheaf__model;

/* path: a Hugging Face directory, or "random:..." (which has the byte tokenizer). `options` may
 * be null.
 * SHEAF_E_CONTEXT: ctx_size beyond what the model allows. SHEAF_E_UNSUPPORTED: the processor
 * lacks `isa`.
 * SHEAF_E_INVALID: an unknown backend or path. Else as the parts say (model/config.h,
 * model/weights.h, model/tokenizer.h, sheaf/pool.h, sheaf/status.h). */
sheaf_status sheaf__model_open(const char *path, const sheaf__model_options *options,
                               sheaf__model **out, sheaf_error *err);

/* All caches must have been destroyed. Null is allowed. */
void sheaf__model_close(sheaf__model *model);

/* An empty cache of the model's backend. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__model_new_kv(sheaf__model *model, sheaf__kv *out);

/* Runs n >= 1 tokens through the network in chunks of prefill_chunk, each reserved, written and
 * committed. logits: [vocab] of the last token, or null. `err` may be null.
 * SHEAF_E_CONTEXT: beyond ctx_size; SHEAF_E_INVALID: no token, or one outside the vocabulary:
 * nothing run.
 * SHEAF_FULL, SHEAF_E_NO_MEMORY, SHEAF_E_NONFINITE: the chunks before the failing one stay. */
sheaf_status sheaf__model_prefill(sheaf__model *model, sheaf__kv *kv, const int32_t *tokens,
                                  uint32_t n, float *logits, sheaf_error *err);

/* The logits of the last token that the cache holds: [vocab], the same bits as when that token was
 * run. For a prompt that was found as a whole: nothing is reserved or written. `err` may be null.
 * SHEAF_E_INVALID: an empty cache, or one that does not know its last token. SHEAF_E_BUSY: a
 * reservation is open. SHEAF_E_CONTEXT: longer than ctx_size. SHEAF_E_NO_MEMORY,
 * SHEAF_E_NONFINITE. */
sheaf_status sheaf__model_logits(sheaf__model *model, sheaf__kv *kv, float *logits,
                                 sheaf_error *err);

enum {
    SHEAF__FINISH_NONE = 0,
    SHEAF__FINISH_STOP = 1,
    SHEAF__FINISH_LENGTH = 2,
    SHEAF__FINISH_CANCELLED = 3,
    SHEAF__FINISH_ERROR = 4 /* of an engine's request (engine/request.h) alone */
};

/* One answer of a batch. The caller sets the first five and what bends its logits, and zeroes the
 * rest before the first call. */
typedef struct sheaf__answer {
    sheaf__kv *kv; /* holds the prompt */
    sheaf__sampler *sampler;
    uint32_t max_tokens;
    float
        *logits; /* [vocab]: on entry of the prompt's last token, afterwards of the last run */
    float *all_logits; /* null, or [max_tokens, vocab]: row i is what token i was picked from */
    sheaf__ids tokens; /* the answer; a token that ends the text is not in it */
    uint32_t finish;   /* SHEAF__FINISH_... */
    sheaf__bending bending; /* zero: nothing does. Its `tokens` are the answer's */
} sheaf__answer;

/* Called after each token of each answer (not for the one that ends it); non-zero ends that
 * answer. */
typedef int sheaf__token_fn(void *ctx, uint32_t answer, int32_t token);

/* Decodes all answers together, one ragged batch a step, until each is finished. on_token may
 * be null. An answer ends with STOP at a token that ends the text, LENGTH at max_tokens or when
 * its cache has ctx_size positions, CANCELLED by on_token. Those that are finished on entry are
 * left alone. A step is reserved as a whole before anything of it is seen: on SHEAF_FULL (and
 * when the reservation fails otherwise) every answer and cache is as after the step before, and
 * a later call goes on from there with the same tokens. On any other failure of a step the
 * caches are as before it, and the answers may hold a last token that was not run.
 * SHEAF_E_INVALID: two answers with one cache, an empty cache. */
sheaf_status sheaf__model_decode(sheaf__model *model, sheaf__answer *answers, uint32_t n,
                                 sheaf__token_fn *on_token, void *ctx, sheaf_error *err);

#endif
