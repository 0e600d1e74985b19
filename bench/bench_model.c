/* bench/bench_model.c - how near to the machine's limits is a whole model?
 *
 * Steps of random:qwen3-0.6b at depths 0, 4,096 and 16,384, K and V in bf16 in a pool. What lies behind
 * a step is written, not computed (model_rig.h). Each step is reserved, run, and taken back.
 *
 *   prefill qN dD   a chunk of N tokens, logits of the last; against the FMA peak. Work: 2 operations
 *                   a weight and token (of the head one token), and attention's
 *   decode bN dD    one token of each of N sequences, logits of all; against reading memory. Work: the
 *                   bytes of all matrices, and of the K and V behind the step
 *
 * Options: --model SPEC, --part prefill|decode (both), --depth N (all), --kv-dtype CODEC.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_rig.h"

#define MAX_CHUNK 512u
#define MAX_SEQS  8u
#define ANY_DEPTH UINT32_MAX

typedef struct rig {
    bench *b;
    sheaf__model *model;
    void *numbers;
    sheaf__kv kv[MAX_SEQS];
    uint32_t n_seqs;
    uint32_t n_tokens; /* of each sequence a step */
    int32_t tokens[MAX_CHUNK];
    float *logits; /* [MAX_SEQS, vocab] */
} rig;

/* One step, whose positions are given back. */
static void step(void *arg)
{
    rig *r = arg;
    sheaf__forward_item items[MAX_SEQS];
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        model_must(r->b, sheaf__kv_extend(&r->kv[i], r->n_tokens), "reserve");
        items[i] = (sheaf__forward_item){
            .kv = &r->kv[i], .tokens = r->tokens, .n_tokens = r->n_tokens, .n_logits = 1};
    }
    model_must(r->b, sheaf__forward_run(r->model->forward, items, r->n_seqs, r->logits),
               "step");
    for (uint32_t i = 0; i < r->n_seqs; i++)
        model_must(r->b, sheaf__kv_commit(&r->kv[i], 0, NULL), "give back");
}

/* Of one step: matrices, and attention. */
static double flop(const rig *r, uint32_t depth)
{
    const sheaf__config *c = &r->model->config;
    double head = (double)c->vocab * c->hidden, seen = 0;
    double layers = (double)model_weight_bytes(r->model) / 2 - head; /* bf16 */
    for (uint32_t i = 0; i < r->n_tokens; i++) seen += depth + i + 1;
    return r->n_seqs * (2 * layers * r->n_tokens + 2 * head +
                        4 * seen * c->n_heads * c->head_dim * c->n_layers);
}

static void set_depth(rig *r, uint32_t n_seqs, uint32_t depth)
{
    for (uint32_t i = 0; i < MAX_SEQS; i++) sheaf__kv_destroy(&r->kv[i]);
    for (uint32_t i = 0; i < n_seqs; i++) {
        model_must(r->b, sheaf__model_new_kv(r->model, &r->kv[i]), "a sequence");
        model_fill(r->b, r->model, r->numbers, &r->kv[i], depth);
    }
    r->n_seqs = n_seqs;
}

static void prefill_row(rig *r, uint32_t chunk, uint32_t depth, uint32_t groups)
{
    char name[64];
    bench_best best;
    set_depth(r, 1, depth);
    r->n_tokens = chunk;
    r->b->groups = groups;
    bench_measure(r->b, BENCH_FMA_PEAK, flop(r, depth), step, r, &best);
    r->b->groups = 0;
    snprintf(name, sizeof name, "prefill q%u d%u", chunk, depth);
    bench_row(r->b, name, best.seconds * 1e3, chunk / best.seconds, best.rate * 1e-9,
              best.ratio, (double)NAN, best.median);
}

static void decode_row(rig *r, uint32_t n_seqs, uint32_t depth)
{
    char name[64];
    bench_best best;
    set_depth(r, n_seqs, depth);
    r->n_tokens = 1;
    double bytes = (double)model_weight_bytes(r->model) +
                   (double)model_token_bytes(r->model) * n_seqs * depth;
    bench_measure(r->b, BENCH_MEMORY_READ, bytes, step, r, &best);
    double done = flop(r, depth) / best.seconds;
    snprintf(name, sizeof name, "decode b%u d%u", n_seqs, depth);
    bench_row(r->b, name, best.seconds * 1e3, n_seqs / best.seconds, done * 1e-9,
              done / bench_ceiling(r->b, BENCH_FMA_PEAK), best.ratio, best.median);
}

static void prefill_rows(rig *r, uint32_t only)
{
    const bench *b = r->b;
    uint32_t chunk = (uint32_t)bench_size(b, MAX_CHUNK, MAX_CHUNK, 32);
    uint32_t few = chunk / 4, groups = b->quick ? 1 : 2;
    if (only == ANY_DEPTH || only == 0) prefill_row(r, chunk, 0, b->quick ? 2 : 0);
    if (only == ANY_DEPTH || only == 4096) prefill_row(r, chunk, b->tiny ? 64 : 4096, groups);
    if (only == ANY_DEPTH || only == 16384) prefill_row(r, few, b->tiny ? 128 : 16384, groups);
}

static void decode_rows(rig *r, uint32_t only)
{
    const bool tiny = r->b->tiny;
    if (only == ANY_DEPTH || only == 0) {
        decode_row(r, 1, 0);
        decode_row(r, 8, 0);
    }
    if (only == ANY_DEPTH || only == 4096) {
        decode_row(r, 1, tiny ? 64 : 4096);
        decode_row(r, 8, tiny ? 64 : 4096);
    }
    if (only == ANY_DEPTH || only == 16384) decode_row(r, 1, tiny ? 128 : 16384);
}

int main(int argc, char **argv)
{
    static const bench_column columns[] = {{"a step", "ms"},
                                           {"run", "tokens/s"},
                                           {"done", "GFLOP/s"},
                                           {"of FMA peak", "ratio"},
                                           {"of read bandwidth", "ratio"},
                                           {"median of its bound", "ratio"}};
    bench b;
    if (!bench_begin(&b, "model", "how near to the machine's limits is a whole model?", argc,
                     argv))
        return 2;
    const char *path = b.tiny    ? "models/sheaf-demo"
                       : b.quick ? "random:qwen3-0.6b:layers=4"
                                 : "random:qwen3-0.6b";
    path = bench_option_text(&b, "--model", path);
    const char *part = bench_option_text(&b, "--part", "");
    const char *codec = bench_option_text(&b, "--kv-dtype", "bf16");
    uint32_t only = bench_option_u32(&b, "--depth", ANY_DEPTH);
    sheaf__model_options o = {.n_threads = sheaf_threads_count(b.threads)};
    model_must(&b, sheaf_codec_from_name(codec, &o.codec_k), codec);
    o.codec_v = o.codec_k;
    rig r = {.b = &b, .model = model_open(&b, path, &o)};
    r.numbers = model_numbers(&b, r.model);
    r.logits = calloc((size_t)MAX_SEQS * r.model->config.vocab, sizeof *r.logits);
    if (r.logits == NULL) model_must(&b, SHEAF_E_NO_MEMORY, "logits");
    for (uint32_t i = 0; i < MAX_CHUNK; i++) r.tokens[i] = model_token(r.model, i);
    bench_table(&b, columns, 6);
    if (*part == 0 || strcmp(part, "prefill") == 0) prefill_rows(&r, only);
    if (*part == 0 || strcmp(part, "decode") == 0) decode_rows(&r, only);
    bench_note(
        &b,
        "%s, KV %s, %.0f MiB of matrices; d: positions behind the step, written, not computed",
        path, codec, (double)model_weight_bytes(r.model) / (1 << 20));
    set_depth(&r, 0, 0);
    sheaf__model_close(r.model);
    free(r.numbers);
    free(r.logits);
    return bench_end(&b);
}
