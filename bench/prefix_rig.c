/* bench/prefix_rig.c - a pool with a prefix cache, and sequences of random tokens for it. */
#include "prefix_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHUNK     512 /* positions written at once */
#define MAX_LAYER 64

double rig_cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void rig_must(sheaf_status status, const char *what)
{
    if (status == SHEAF_OK) return;
    fprintf(stderr, "bench_prefix: %s: %s\n", what, sheaf_status_text(status));
    exit(1);
}

void rig_open(rig *r, const sheaf_layer *layer, uint32_t n_layers, uint64_t budget_bytes,
              uint32_t slab_blocks, uint32_t slack_slabs, uint64_t seed)
{
    *r = (rig){.n_layers = n_layers, .random = seed * 2 + 1};
    sheaf_layer layers[MAX_LAYER];
    for (uint32_t i = 0; i < n_layers; i++) layers[i] = *layer;
    sheaf_pool_options pool = SHEAF_POOL_OPTIONS_INIT;
    pool.layers = layers;
    pool.n_layers = n_layers;
    pool.budget_bytes = budget_bytes;
    pool.block_tokens = RIG_BLOCK_TOKENS;
    pool.slab_blocks = slab_blocks;
    pool.slack_slabs = slack_slabs;
    rig_must(sheaf_pool_open(&pool, &r->pool, NULL), "open a pool");
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    rig_must(sheaf_pool_group_info(r->pool, 0, &info), "ask for a group");
    r->block_bytes = info.block_bytes;
    r->slab_bytes = info.slab_bytes;
    const sheaf_field field = {"model", "bench", 5};
    rig_must(sheaf_space_make(r->pool, &field, 1, &r->space), "make a namespace");
    const sheaf_prefix_options cache = SHEAF_PREFIX_OPTIONS_INIT;
    rig_must(sheaf_prefix_open(r->pool, &cache, &r->cache, NULL), "open a cache");
    uint64_t bytes = 2ull * CHUNK * layer->n_kv_heads * (layer->key_dim + layer->value_dim);
    r->numbers = malloc(bytes);
    if (r->numbers == NULL) rig_must(SHEAF_E_NO_MEMORY, "make numbers");
    for (uint64_t i = 0; i < bytes; i++) r->numbers[i] = (unsigned char)(rig_random(r) & 0x3f);
    r->source = (sheaf_kv_source)SHEAF_KV_SOURCE_INIT;
    r->source.dtype = SHEAF_DTYPE_BF16;
    r->source.order = SHEAF_TOKEN_MAJOR;
    r->source.n_kv_heads = layer->n_kv_heads;
    r->source.key_dim = layer->key_dim;
    r->source.value_dim = layer->value_dim;
    r->source.k = r->numbers;
    if (layer->value_dim != 0)
        r->source.v = r->numbers + 2ull * CHUNK * layer->n_kv_heads * layer->key_dim;
}

void rig_close(rig *r)
{
    sheaf_prefix_close(r->cache);
    rig_must(sheaf_pool_close(r->pool), "close the pool");
    free(r->numbers);
}

/* splitmix64 (Steele, Lea and Flood 2014) */
uint64_t rig_random(rig *r)
{
    uint64_t z = r->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void rig_tokens(rig *r, int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(rig_random(r) % 150000);
}

void rig_shuffle(rig *r, uint32_t *order, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)(rig_random(r) % (i + 1));
        order[i] = order[j];
        order[j] = i;
    }
}

void rig_append(rig *r, sheaf_sequence **seq, const int32_t *tokens, uint32_t n)
{
    if (*seq == NULL) rig_must(sheaf_sequence_create(r->pool, seq), "create a sequence");
    uint32_t pos = sheaf_sequence_length(*seq);
    rig_must(sheaf_sequence_extend(*seq, n), "extend a sequence");
    for (uint32_t at = 0; at < n; at += CHUNK)
        for (uint32_t layer = 0; layer < r->n_layers; layer++)
            rig_must(sheaf_sequence_write(*seq, layer, pos + at,
                                          n - at < CHUNK ? n - at : CHUNK, &r->source),
                     "write");
    rig_must(sheaf_sequence_commit(*seq, n, tokens), "commit");
}

sheaf_prompt rig_prompt(const rig *r, const int32_t *tokens, uint32_t n)
{
    sheaf_prompt prompt = SHEAF_PROMPT_INIT;
    prompt.space = &r->space;
    prompt.tokens = tokens;
    prompt.n_tokens = n;
    return prompt;
}

void rig_publish(rig *r, sheaf_sequence *seq)
{
    const sheaf_prompt prompt =
        rig_prompt(r, sheaf_sequence_tokens(seq), sheaf_sequence_length(seq));
    rig_must(sheaf_prefix_publish(r->cache, &prompt, seq, SHEAF_PUBLISH_TAIL, NULL), "publish");
}

void rig_reset(rig *r)
{
    rig_must(sheaf_prefix_reset(r->cache, NULL, NULL), "reset the cache");
}
