/* bench/bench_append.c - what does it cost to append a token's K and V?
 *
 * 28 layers of 8 KV heads, dimension 128, as qwen3-0.6b has them. A run appends tokens to sequences in
 * turn until every sequence has its length: sheaf_sequence_extend, sheaf_sequence_write of each layer,
 * sheaf_sequence_commit. The sequences' blocks are kept from run to run (what is given back stays
 * committed as slack), so that no page is touched for the first time.
 *
 * The baseline is memcpy of the bytes that are written, K and V of each layer apart, into one buffer as
 * large: the least that a cache of any form must do. Both read the same source.
 *
 *   write     the writes alone; reserved before, committed after
 *   token     extend, writes and commit of one token at a time
 *   chunk     extend, writes and commit of 512 tokens at a time
 *
 * What the source is narrowed or quantized to is in the case's name: "bf16 from f32".
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "sheaf/cache.h"

#define N_LAYERS    28u
#define KV_HEADS    8u
#define DIM         128u
#define N_SEQS      8u
#define MAX_CHUNK   512u
#define MIB         (1024ull * 1024)
#define LEAST_TURNS 3u  /* of slow codecs; the others get 8 */
#define N_SOURCES   16u /* tokens' numbers that are written in turn: each layer's are its own */
#define TOKEN_DIMS  ((uint64_t)KV_HEADS * DIM)

typedef struct rig {
    sheaf_pool *pool;
    sheaf_sequence *seqs[N_SEQS];
    sheaf_kv_source source;
    unsigned char *numbers; /* source: `chunk` tokens' K and V of each layer */
    unsigned char *flat;    /* the baseline's buffer */
    uint64_t flat_bytes;
    uint64_t k_bytes;      /* of a token and layer as stored, K or V */
    uint64_t number_bytes; /* of the source */
    uint32_t chunk;
    uint32_t n_tokens; /* each sequence's */
    uint32_t codec;
    double writing; /* seconds, of the last run */
    bool failed;
} rig;

static void must(rig *r, sheaf_status st)
{
    if (st != SHEAF_OK) r->failed = true;
}

/* K and V of a layer: tokens [first, ...) of the source. */
static const sheaf_kv_source *source_of(rig *r, uint32_t layer, uint32_t token)
{
    uint64_t layer_bytes = r->chunk * TOKEN_DIMS * r->number_bytes;
    r->source.k = r->numbers + 2 * layer * layer_bytes + token * TOKEN_DIMS * r->number_bytes;
    r->source.v = (const unsigned char *)r->source.k + layer_bytes;
    return &r->source;
}

static void write_layers(rig *r, sheaf_sequence *seq, uint32_t pos, uint32_t n)
{
    double start = bench_seconds();
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        must(r, sheaf_sequence_write(
                    seq, layer, pos, n,
                    source_of(r, layer, n == 1 ? pos % N_SOURCES % r->chunk : 0)));
    r->writing += bench_seconds() - start;
}

static void append(rig *r, uint32_t n)
{
    r->writing = 0;
    for (uint32_t i = 0; i < N_SEQS; i++) must(r, sheaf_sequence_truncate(r->seqs[i], 0));
    for (uint32_t pos = 0; pos < r->n_tokens; pos += n)
        for (uint32_t i = 0; i < N_SEQS && !r->failed; i++) {
            must(r, sheaf_sequence_extend(r->seqs[i], n));
            write_layers(r, r->seqs[i], pos, n);
            must(r, sheaf_sequence_commit(r->seqs[i], n, NULL));
        }
}

/* The same bytes, in the same order: as many of them as are stored. */
static void copy(rig *r, uint32_t n)
{
    unsigned char *to = r->flat;
    r->writing = 0;
    for (uint32_t pos = 0; pos < r->n_tokens; pos += n)
        for (uint32_t i = 0; i < N_SEQS; i++) {
            double start = bench_seconds();
            for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
                const sheaf_kv_source *s =
                    source_of(r, layer, n == 1 ? pos % N_SOURCES % r->chunk : 0);
                memcpy(to, s->k, n * r->k_bytes);
                memcpy(to + n * r->k_bytes, s->v, n * r->k_bytes);
                to += 2 * n * r->k_bytes;
            }
            r->writing += bench_seconds() - start;
        }
}

static bool pool_open(rig *r)
{
    sheaf_layer layers[N_LAYERS];
    for (uint32_t i = 0; i < N_LAYERS; i++)
        layers[i] = (sheaf_layer){.n_kv_heads = KV_HEADS,
                                  .key_dim = DIM,
                                  .value_dim = DIM,
                                  .codec_k = r->codec,
                                  .codec_v = r->codec};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers;
    options.n_layers = N_LAYERS;
    options.budget_bytes = 4096 * MIB;
    options.slack_slabs = UINT32_MAX;
    if (sheaf_pool_open(&options, &r->pool, NULL) != SHEAF_OK) return false;
    for (uint32_t i = 0; i < N_SEQS; i++)
        if (sheaf_sequence_create(r->pool, &r->seqs[i]) != SHEAF_OK) return false;
    return true;
}

static bool rig_open(rig *r, const bench *b, uint32_t codec, uint32_t dtype)
{
    uint64_t segment;
    *r = (rig){.codec = codec, .source = SHEAF_KV_SOURCE_INIT};
    r->chunk = (uint32_t)bench_size(b, MAX_CHUNK, MAX_CHUNK, 4);
    r->n_tokens = (uint32_t)bench_size(b, MAX_CHUNK, MAX_CHUNK / 4, 4);
    if (r->chunk > r->n_tokens) r->chunk = r->n_tokens;
    r->number_bytes = dtype == SHEAF_DTYPE_F32 ? 4 : 2;
    r->source.dtype = dtype;
    r->source.order = SHEAF_TOKEN_MAJOR;
    r->source.n_kv_heads = KV_HEADS;
    r->source.key_dim = r->source.value_dim = DIM;
    uint64_t n_numbers = 2 * N_LAYERS * r->chunk * TOKEN_DIMS;
    r->numbers = bench_map(n_numbers * r->number_bytes);
    if (r->numbers == NULL || !pool_open(r) ||
        sheaf_codec_segment_bytes(codec, 32, DIM, &segment) != SHEAF_OK)
        return false;
    r->k_bytes = segment / 32 * KV_HEADS;
    r->flat_bytes = 2 * r->k_bytes * N_LAYERS * N_SEQS * r->n_tokens;
    r->flat = bench_map(r->flat_bytes);
    uint32_t state = 1;
    for (uint64_t i = 0; i < n_numbers; i++) {
        state = state * 1664525u + 1013904223u;
        float number = (float)(int32_t)state * 0x1p-30f;
        uint16_t bits = (uint16_t)(0x3c00u + (state >> 25) + (state >> 31 << 15));
        if (r->number_bytes == 4)
            memcpy(r->numbers + 4 * i, &number, sizeof number);
        else
            memcpy(r->numbers + 2 * i, &bits, sizeof bits);
    }
    return r->flat != NULL;
}

static void rig_close(rig *r)
{
    for (uint32_t i = 0; i < N_SEQS; i++) sheaf_sequence_destroy(r->seqs[i]);
    if (sheaf_pool_close(r->pool) != SHEAF_OK) r->failed = true;
    bench_unmap(r->numbers, 2 * N_LAYERS * r->chunk * TOKEN_DIMS * r->number_bytes);
    bench_unmap(r->flat, r->flat_bytes);
}

static double least(double a, double b)
{
    return a == 0 || b < a ? b : a;
}

/* In turns; seconds a token. */
static void measure(bench *b, rig *r, const char *name, uint32_t n, bool writes_alone)
{
    double ours = 0, plain = 0;
    const double tokens = (double)N_SEQS * r->n_tokens;
    const double begin = bench_seconds(), most = b->quick ? 0.5 : 4;
    append(r, n); /* pages, caches */
    for (uint64_t i = 0; i < bench_size(b, 8, 4, 1); i++) {
        if (i >= LEAST_TURNS && bench_seconds() - begin > most) break;
        copy(r, n);
        plain = least(plain, r->writing);
        double start = bench_seconds();
        append(r, n);
        ours = least(ours, writes_alone ? r->writing : bench_seconds() - start);
    }
    double bytes = (double)r->k_bytes * 2 * N_LAYERS;
    bench_row(b, name, ours / tokens * 1e6, plain / tokens * 1e6, bytes * tokens / ours * 1e-9,
              ours / plain);
}

static bool measure_codec(bench *b, uint32_t codec, uint32_t dtype)
{
    rig r;
    char name[64];
    const char *from = dtype == SHEAF_DTYPE_F32 ? "f32" : "bf16", *to = sheaf_codec_name(codec);
    bool ok = rig_open(&r, b, codec, dtype);
    if (ok) {
        snprintf(name, sizeof name, "write %s from %s", to, from);
        measure(b, &r, name, 1, true);
        snprintf(name, sizeof name, "token %s from %s", to, from);
        measure(b, &r, name, 1, false);
        snprintf(name, sizeof name, "chunk %s from %s", to, from);
        measure(b, &r, name, r.chunk, false);
    }
    rig_close(&r);
    return ok && !r.failed;
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "append", "what does it cost to append a token's K and V?", argc,
                     argv))
        return 2;
    static const bench_column columns[] = {
        {"a token", "us"}, {"memcpy", "us"}, {"stored", "GB/s"}, {"times memcpy", "times"}};
    bool ok = true;
    bench_table(&b, columns, 4);
    ok = measure_codec(&b, SHEAF_CODEC_BF16, SHEAF_DTYPE_BF16) && ok;
    for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++)
        ok = measure_codec(&b, codec, SHEAF_DTYPE_F32) && ok;
    bench_note(&b, "%u layers, %u heads of %u, one thread; memcpy of the bytes as stored",
               N_LAYERS, KV_HEADS, DIM);
    int code = bench_end(&b);
    return ok ? code : 1;
}
