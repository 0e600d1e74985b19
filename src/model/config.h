/* model/config.h - what config.json says of a network.
 *
 * Owns: reading and checking config.json and generation_config.json, in the style of published
 * checkpoints (rope_theta, rope_scaling) and that of transformers 5 (rope_parameters).
 */
#ifndef SHEAF_MODEL_CONFIG_H
#define SHEAF_MODEL_CONFIG_H

#include <stdbool.h>

#include "sheaf/pool.h"

enum {
    SHEAF__ARCH_LLAMA = 0,
    SHEAF__ARCH_QWEN3 = 1,
    SHEAF__ARCH_QWEN2 = 2,
    SHEAF__ARCH_MISTRAL = 3,
    SHEAF__ARCH_GEMMA3 = 4
};
enum { SHEAF__ACT_SILU = 0, SHEAF__ACT_GELU_TANH = 1 };
enum { SHEAF__ROPE_PLAIN = 0, SHEAF__ROPE_LINEAR = 1, SHEAF__ROPE_LLAMA3 = 2 };

#define SHEAF__MAX_EOS 16

typedef struct sheaf__rope_config {
    uint32_t kind;
    double theta;
    double factor;
    double low_freq_factor;
    double high_freq_factor;
    uint32_t original_max_positions;
} sheaf__rope_config;

typedef struct sheaf__config {
    uint32_t arch;
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t intermediate;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t vocab;
    uint32_t max_positions;
    float rms_eps;
    bool tied_head;
    bool qk_norm;          /* RMSNorm on each head's q and k, before rope */
    bool qkv_bias;         /* q, k and v have biases */
    bool block_norms;      /* RMSNorm also on what each block adds (Gemma) */
    bool norm_plus_one;    /* norms multiply by 1 + w (Gemma) */
    uint32_t activation;   /* of the gated block: SHEAF__ACT_... */
    float embedding_scale; /* embeddings are multiplied by it; 0: they are not */
    float attn_scale;      /* of scores; 0: 1 / sqrt(head_dim) */
    float attn_softcap;    /* of scores; 0: none */
    float logit_softcap;   /* of the final logits; 0: none */
    sheaf__rope_config rope;
    sheaf__rope_config local_rope; /* of layers with a window; theta 0: as the others */
    uint32_t n_eos;                /* from generation_config.json, else config.json */
    int32_t eos[SHEAF__MAX_EOS];
    int32_t bos;                       /* -1: none */
    uint32_t window[SHEAF_MAX_LAYERS]; /* per layer; 0: full attention */
} sheaf__config;

/* Reads DIR/config.json (and generation_config.json where there is one).
 * SHEAF_E_IO, SHEAF_E_FORMAT, SHEAF_E_CONFIG (the sentence names file and field), SHEAF_E_ARCH (names
 * the architecture found and those known). */
sheaf_status sheaf__config_read(const char *dir, sheaf__config *out, sheaf_error *err);

/* The same from memory; generation may be null. `name` stands for the path in sentences. The fuzz
 * targets' door. */
sheaf_status sheaf__config_parse(const char *name, const char *json, uint64_t size,
                                 const char *generation, uint64_t generation_size,
                                 sheaf__config *out, sheaf_error *err);

/* Whether `token` ends a text. */
bool sheaf__config_is_eos(const sheaf__config *config, int32_t token);

#endif
