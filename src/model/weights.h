/* model/weights.h - a network's numbers, mapped into memory and used in place.
 *
 * Owns: finding each tensor in the safetensors files of a directory, checking its shape against
 * the config, mapping files, and making random weights. Does not own: arithmetic.
 *
 *     sheaf__weights_options o = {0};
 *     st = sheaf__weights_open("DIR", &config, &o, &weights, &err);
 */
#ifndef SHEAF_MODEL_WEIGHTS_H
#define SHEAF_MODEL_WEIGHTS_H

#include "base/memory.h"
#include "model/config.h"
#include "model/matmul.h"

/* Norms and biases are widened to f32 when opened (norms with 1 added where the model does that);
 * matrices stay as stored. */
typedef struct sheaf__layer_weights {
    const float *attn_norm;      /* [hidden] */
    const float *q_norm;         /* [head_dim], or null */
    const float *k_norm;         /* [head_dim], or null */
    const float *mlp_norm;       /* [hidden] */
    const float *attn_post_norm; /* [hidden] of what attention adds, or null */
    const float *mlp_post_norm;  /* [hidden] of what the gated block adds, or null */
    const float *q_bias;         /* [n_heads * head_dim], or null */
    const float *k_bias;         /* [n_kv_heads * head_dim], or null */
    const float *v_bias;         /* [n_kv_heads * head_dim], or null */
    sheaf__matrix q;             /* [n_heads * head_dim, hidden] */
    sheaf__matrix k;             /* [n_kv_heads * head_dim, hidden] */
    sheaf__matrix v;             /* [n_kv_heads * head_dim, hidden] */
    sheaf__matrix o;             /* [hidden, n_heads * head_dim] */
    sheaf__matrix gate;          /* [intermediate, hidden] */
    sheaf__matrix up;            /* [intermediate, hidden] */
    sheaf__matrix down;          /* [hidden, intermediate] */
} sheaf__layer_weights;

typedef struct sheaf__weights {
    sheaf__matrix embedding;            /* [vocab, hidden] */
    sheaf__matrix head;                 /* [vocab, hidden]; the embedding's data when tied */
    const float *final_norm;            /* [hidden] */
    const sheaf__layer_weights *layers; /* [n_layers] */
    uint64_t n_parameters;              /* tied ones once */
    uint64_t bytes_mapped;              /* of files, shared with the page cache */
    uint64_t bytes_resident; /* allocated: this, widened norms, copies, random weights */
    struct sheaf__weights_private *private_;
} sheaf__weights;

/* Called from the opening thread, at most about every 100 ms, while copying or random making takes
 * longer than that, and a last time at the end; done and total in bytes. */
typedef void sheaf__progress_fn(void *ctx, const char *what, uint64_t done, uint64_t total);

typedef struct sheaf__weights_options {
    bool
        copy_to_huge_pages; /* copies every tensor into huge pages instead of using files in place */
    uint64_t random_seed;         /* random weights only; 0: 1 */
    sheaf_threads *threads;       /* for copying and random weights; may be null */
    sheaf__progress_fn *progress; /* may be null */
    void *progress_ctx;
    const sheaf_allocator *allocator; /* null: the C library's */
} sheaf__weights_options;

/* Opens DIR/model.safetensors, or the shards of DIR/model.safetensors.index.json. Tensors are named
 * with or without a leading "model."; a tied network may store its one matrix as lm_head.weight.
 * SHEAF_E_IO, SHEAF_E_FORMAT, SHEAF_E_CONFIG (a tensor is missing or has another shape: the sentence
 * names file, tensor, shape found and shape wanted), SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__weights_open(const char *dir, const sheaf__config *config,
                                 const sheaf__weights_options *options, sheaf__weights **out,
                                 sheaf_error *err);

/* Seeded random bf16 weights of the config's geometry, scaled so that activations stay finite. The
 * same numbers for the same seed on every machine and any number of threads. */
sheaf_status sheaf__weights_random(const sheaf__config *config,
                                   const sheaf__weights_options *options, sheaf__weights **out,
                                   sheaf_error *err);

/* What they will be, without making them: parameters, and bytes resident. SHEAF_E_NO_MEMORY,
 * SHEAF_E_OVERFLOW. */
sheaf_status sheaf__weights_random_size(const sheaf__config *config, uint64_t *n_parameters,
                                        uint64_t *bytes_resident, sheaf_error *err);

/* The config of a "random:NAME[:layers=N]" model: qwen3-0.6b, llama-3.2-1b.
 * SHEAF_E_CONFIG: the sentence lists the names. */
sheaf_status sheaf__weights_random_config(const char *spec, sheaf__config *out,
                                          sheaf_error *err);

void sheaf__weights_close(sheaf__weights *weights);

#endif
