/* tests/model/rig.c - a model, a cache backend and a forward pass, put together for tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "model/rig.h"

#define DENSE_BLOCK_TOKENS 32
#define PREFILL_CHUNK      512

static void must(sheaf_status st, const char *what, const sheaf_error *err)
{
    if (st == SHEAF_OK) return;
    print_error("%s: %s%s%s\n", what, sheaf_status_text(st), err ? ": " : "",
                err ? err->text : "");
    fail();
}

/* ---- life -------------------------------------------------------------------------------- */

static void open_pool(rig *r)
{
    sheaf_error err = {0};
    sheaf_pool_options p = SHEAF_POOL_OPTIONS_INIT;
    p.layers = r->layers;
    p.n_layers = r->config.n_layers;
    p.block_tokens = r->options.block_tokens;
    p.slab_blocks = r->options.slab_blocks;
    p.budget_bytes = r->options.budget_bytes != 0 ? r->options.budget_bytes : 1ull << 30;
    p.allocator = r->options.allocator;
    must(sheaf_pool_open(&p, &r->pool, &err), "pool", &err);
}

void rig_open(rig *r, const rig_options *options)
{
    sheaf_error err = {0};
    memset(r, 0, sizeof *r);
    r->options = *options;
    sheaf__memory_init(&r->memory, options->allocator);
    must(sheaf__config_read(options->dir, &r->config, &err), options->dir, &err);
    const sheaf__weights_options w = {0};
    must(sheaf__weights_open(options->dir, &r->config, &w, &r->weights, &err), options->dir,
         &err);
    if (options->n_threads > 1)
        must(sheaf_threads_create(options->n_threads, &r->threads), "threads", NULL);
    r->layers = calloc(r->config.n_layers, sizeof *r->layers);
    assert_non_null(r->layers);
    sheaf__forward_layout(&r->config, options->codec_k, options->codec_v, r->layers);
    if (options->backend == SHEAF__KV_PAGED) open_pool(r);
    const sheaf__forward_options f = {.threads = r->threads,
                                      .isa = options->isa,
                                      .attn_path = options->attn_path,
                                      .memory = &r->memory};
    must(sheaf__forward_create(&r->config, r->weights, &f, &r->forward), "forward", NULL);
}

void rig_close(rig *r)
{
    sheaf__forward_destroy(r->forward);
    must(sheaf_pool_close(r->pool), "closing the pool", NULL);
    free(r->layers);
    sheaf_threads_destroy(r->threads);
    sheaf__weights_close(r->weights);
    assert_int_equal(r->memory.live_bytes, 0);
}

sheaf__kv rig_kv(rig *r)
{
    sheaf__kv kv = {.backend = r->options.backend};
    if (kv.backend == SHEAF__KV_DENSE) {
        uint32_t block = r->options.block_tokens ? r->options.block_tokens : DENSE_BLOCK_TOKENS;
        must(
            sheaf__dense_create(&r->memory, r->layers, r->config.n_layers, block, 0, &kv.dense),
            "dense cache", NULL);
    } else {
        must(sheaf_sequence_create(r->pool, &kv.sequence), "sequence", NULL);
    }
    return kv;
}

/* ---- running ----------------------------------------------------------------------------- */

static void run_chunk(rig *r, sheaf__kv *kv, const int32_t *tokens, uint32_t n,
                      uint32_t n_logits, float *logits)
{
    const sheaf__forward_item item = {kv, tokens, n, n_logits, 0};
    must(sheaf__kv_extend(kv, n), "extend", NULL);
    must(sheaf__forward_run(r->forward, &item, 1, logits), "forward", NULL);
    must(sheaf__kv_commit(kv, n, tokens), "commit", NULL);
}

void rig_feed(rig *r, sheaf__kv *kv, const int32_t *tokens, uint32_t n, uint32_t chunk,
              float *logits)
{
    uint64_t vocab = r->config.vocab;
    if (chunk == 0) chunk = n;
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t m = n - at < chunk ? n - at : chunk;
        run_chunk(r, kv, tokens + at, m, logits ? m : 0, logits ? logits + at * vocab : NULL);
    }
}

void rig_prefill(rig *r, sheaf__kv *kv, const int32_t *tokens, uint32_t n, float *logits)
{
    for (uint32_t at = 0; at < n; at += PREFILL_CHUNK) {
        uint32_t m = n - at < PREFILL_CHUNK ? n - at : PREFILL_CHUNK;
        run_chunk(r, kv, tokens + at, m, at + m == n, logits);
    }
}

void rig_greedy(rig *r, sheaf__kv *kv, float *logits, uint32_t n, int32_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = rig_argmax(logits, r->config.vocab);
        if (i + 1 < n) run_chunk(r, kv, &out[i], 1, 1, logits);
    }
}

int32_t rig_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

double rig_error(const float *a, const float *b, uint32_t n)
{
    double difference = 0, norm = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)a[i] - b[i];
        difference += d * d;
        norm += (double)b[i] * b[i];
    }
    return __builtin_sqrt(difference / norm);
}

/* ---- reference files --------------------------------------------------------------------- */

/* Line `index` of a file of JSON lines, parsed. */
static json_t *load_line(const char *path, uint32_t index)
{
    sheaf__file file = {0};
    sheaf_error err = {0};
    must(sheaf__file_map(path, &file, &err), path, &err);
    const char *at = (const char *)file.data, *end = at + file.size, *stop;
    for (;; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (index-- == 0) break;
        assert_non_null(stop);
    }
    json_t *json = json_loadb(at, (size_t)((stop ? stop : end) - at), 0, NULL);
    assert_non_null(json);
    sheaf__file_unmap(&file);
    return json;
}

rig_ids rig_prompt(const char *dir, uint32_t index, uint32_t limit)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_t *root = NULL, *prompt;
    if (sheaf__file_exists(path)) {
        root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        prompt = json_array_get(json_object_get(root, "prompts"), index);
    } else {
        snprintf(path, sizeof path, "%s/golden.jsonl", dir);
        prompt = root = load_line(path, index);
    }
    json_t *list = json_object_get(prompt, "ids");
    size_t n = json_array_size(list);
    assert_true(n > 0);
    rig_ids ids = {NULL, n < limit ? (uint32_t)n : limit};
    ids.data = calloc(ids.n, sizeof *ids.data);
    assert_non_null(ids.data);
    for (uint32_t i = 0; i < ids.n; i++)
        ids.data[i] = (int32_t)json_integer_value(json_array_get(list, i));
    json_decref(root);
    return ids;
}
