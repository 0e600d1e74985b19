/* bench/model_rig.c - a whole model, and sequences whose depth costs no computing. */
#include "model_rig.h"

#include <stdio.h>
#include <stdlib.h>

#define PIECE 256u /* positions written at a time */

void model_must(const bench *b, sheaf_status status, const char *what)
{
    if (status == SHEAF_OK) return;
    fprintf(stderr, "bench_%s: %s: %s\n", b->name, what, sheaf_status_text(status));
    exit(1);
}

sheaf__model *model_open(const bench *b, const char *path, const sheaf__model_options *options)
{
    sheaf__model *model = NULL;
    sheaf_error err = {0};
    sheaf_status status = sheaf__model_open(path, options, &model, &err);
    if (status == SHEAF_OK) return model;
    fprintf(stderr, "bench_%s: %s: %s\n", b->name, path, err.text);
    exit(1);
}

static uint64_t layer_numbers(const sheaf__config *c)
{
    return (uint64_t)PIECE * c->n_kv_heads * c->head_dim;
}

void *model_numbers(const bench *b, const sheaf__model *model)
{
    uint64_t n = layer_numbers(&model->config) * 2;
    uint16_t *numbers = malloc(n * sizeof *numbers);
    uint32_t state = 1;
    if (numbers == NULL) model_must(b, SHEAF_E_NO_MEMORY, "random K and V");
    for (uint64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        numbers[i] = (uint16_t)(0x3e00u + (state >> 25) + (state >> 31 << 15));
    }
    return numbers;
}

int32_t model_token(const sheaf__model *model, uint32_t i)
{
    return (int32_t)((i * 2654435761u >> 8) % (model->config.vocab / 2));
}

void model_fill(const bench *b, const sheaf__model *model, const void *numbers, sheaf__kv *kv,
                uint32_t n)
{
    const sheaf__config *c = &model->config;
    int32_t tokens[PIECE];
    sheaf_kv_source source = SHEAF_KV_SOURCE_INIT;
    source.dtype = SHEAF_DTYPE_BF16;
    source.order = SHEAF_TOKEN_MAJOR;
    source.n_kv_heads = c->n_kv_heads;
    source.key_dim = source.value_dim = c->head_dim;
    source.k = numbers;
    source.v = (const uint16_t *)numbers + layer_numbers(c);
    for (uint32_t done = 0, m; done < n; done += m) {
        uint32_t pos = sheaf__kv_length(kv);
        m = n - done < PIECE ? n - done : PIECE;
        model_must(b, sheaf__kv_extend(kv, m), "reserve");
        for (uint32_t layer = 0; layer < c->n_layers; layer++)
            model_must(b, sheaf__kv_write(kv, layer, pos, m, &source), "write");
        for (uint32_t i = 0; i < m; i++) tokens[i] = model_token(model, pos + i);
        model_must(b, sheaf__kv_commit(kv, m, tokens), "commit");
    }
}

static uint64_t segments(const sheaf__model *model, uint32_t layer, uint32_t codec,
                         uint32_t dim)
{
    uint64_t bytes = 0;
    uint32_t block_tokens = model->options.block_tokens;
    if (sheaf_codec_segment_bytes(codec, block_tokens, dim, &bytes) != SHEAF_OK) return 0;
    return bytes / block_tokens * model->layers[layer].n_kv_heads;
}

uint64_t model_token_bytes(const sheaf__model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->config.n_layers; i++)
        bytes += segments(model, i, model->layers[i].codec_k, model->layers[i].key_dim) +
                 segments(model, i, model->layers[i].codec_v, model->layers[i].value_dim);
    return bytes;
}

static uint64_t matrix_bytes(const sheaf__matrix *m)
{
    return (uint64_t)m->n * m->k * (m->dtype == SHEAF_DTYPE_F32 ? 4 : 2);
}

uint64_t model_weight_bytes(const sheaf__model *model)
{
    uint64_t bytes = matrix_bytes(&model->weights->head);
    for (uint32_t i = 0; i < model->config.n_layers; i++) {
        const sheaf__layer_weights *w = &model->weights->layers[i];
        bytes += matrix_bytes(&w->q) + matrix_bytes(&w->k) + matrix_bytes(&w->v) +
                 matrix_bytes(&w->o) + matrix_bytes(&w->gate) + matrix_bytes(&w->up) +
                 matrix_bytes(&w->down);
    }
    return bytes;
}
