/* bench/bench_attention.c - how near to the machine's limits is attention?
 *
 * Geometry: 32 query heads, 8 KV heads, dimension 128, blocks of 32 tokens in shuffled rows, unless the
 * case says otherwise. Layers are visited in turn over a store of a gigabyte (kv_store.h).
 *
 *   decode CODEC bN cT    N sequences of T tokens, one query each
 *   prefill CODEC qN cT   N queries after T tokens
 *
 * Both bounds are given of each: memory (bytes of K and V, those that sequences share once, against
 * reading memory), and arithmetic (4 operations a query head, visible position and element, against
 * independent fused multiply-adds). "in cache" is the same kernel over K and V that the caches hold:
 * its instructions, without memory, bound what decoding can reach.
 *
 * Options: --part decode|codecs|shared|dims|prefill (all), --mb N (bytes of a store).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kv_store.h"

#define MIB       (1024ull * 1024)
#define Q_HEADS   32
#define KV_HEADS  8
#define DIM       128
#define DEEP      32768u
#define PREFIX    16384u
#define CHUNK     512u
#define IN_CACHE  512u /* tokens: 2 MiB of K and V in bf16 */
#define N_SHARERS 8u

typedef struct question {
    bench *b;
    uint64_t bytes;  /* of a store */
    uint32_t divide; /* lengths are divided by this; 1 but for tests */
} question;

#define DECODE_COLUMNS                                                                         \
    {"a layer", "us"}, {"K and V", "GB/s"}, {"of read bandwidth", "ratio"},                    \
        {"median", "of read bandwidth"},                                                       \
    {                                                                                          \
        "of FMA peak", "ratio"                                                                 \
    }

static const bench_column decode_columns[] = {DECODE_COLUMNS};
static const bench_column codec_columns[] = {DECODE_COLUMNS, {"as fast as bf16", "times"}};
static const bench_column shared_columns[] = {DECODE_COLUMNS, {"as fast as apart", "times"}};
static const bench_column prefill_columns[] = {{"a layer", "us"},
                                               {"done", "GFLOP/s"},
                                               {"of FMA peak", "ratio"},
                                               {"median", "of FMA peak"}};

static const char *codecs_name(const kv_shape *p, char *name, size_t size)
{
    if (p->codec_k == p->codec_v) return sheaf_codec_name(p->codec_k);
    snprintf(name, size, "%s/%s", sheaf_codec_name(p->codec_k), sheaf_codec_name(p->codec_v));
    return name;
}

static kv_shape make_shape(const question *q, uint32_t codec, uint32_t n_items,
                           uint32_t n_tokens)
{
    return (kv_shape){.q_heads = Q_HEADS,
                      .kv_heads = KV_HEADS,
                      .dim = DIM,
                      .codec_k = codec,
                      .codec_v = codec,
                      .block_tokens = 32,
                      .n_items = n_items,
                      .n_tokens = n_tokens / q->divide};
}

/* A store and what is done with it. */
typedef struct setting {
    kv_store store;
    kv_work work;
} setting;

static bool setting_open(setting *s, const question *q, kv_shape shape, uint32_t n_queries)
{
    *s = (setting){0};
    if (shape.n_layers == 0) shape.n_layers = kv_layers(&shape, q->bytes);
    if (kv_store_open(&s->store, &shape, KV_SHUFFLED) &&
        kv_work_open(&s->work, q->b, &s->store, n_queries, SHEAF_ATTN_FUSED))
        return true;
    bench_note(q->b, "a store of %.0f MiB: no memory", (double)s->store.bytes / MIB);
    return false;
}

static void setting_close(setting *s)
{
    kv_work_close(&s->work);
    kv_store_close(&s->store);
}

/* ---- decode ------------------------------------------------------------------------------- */

static void decode_row(const question *q, const char *name, const setting *s,
                       const bench_best *best, double faster)
{
    double layers = s->store.shape.n_layers, peak = bench_ceiling(q->b, BENCH_FMA_PEAK);
    if (!kv_work_done(&s->work)) {
        bench_note(q->b, "%s: not what was asked for", name);
        return;
    }
    bench_row(q->b, name, best->seconds / layers * 1e6, best->rate / 1e9, best->ratio,
              best->median, kv_work_flop(&s->work) / best->seconds / peak, faster);
}

static void decode(const question *q, const char *label, const kv_shape *shape)
{
    setting s;
    char name[64], codecs[32];
    snprintf(name, sizeof name, "decode %s b%u c%u%s",
             codecs_name(shape, codecs, sizeof codecs), shape->n_items, shape->n_tokens, label);
    if (setting_open(&s, q, *shape, 1)) {
        bench_best best;
        bench_measure(q->b, BENCH_MEMORY_READ, (double)s.store.bytes, kv_work_run, &s.work,
                      &best);
        decode_row(q, name, &s, &best, (double)NAN);
    }
    setting_close(&s);
}

static void decode_rows(const question *q)
{
    static const uint32_t cases[][2] = {{1, 4096}, {1, 16384}, {1, DEEP}, {8, 4096}};
    bench_table(q->b, decode_columns, 5);
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kv_shape shape = make_shape(q, SHEAF_CODEC_BF16, cases[i][0], cases[i][1]);
        decode(q, "", &shape);
    }
}

/* `shape` against bf16 of the same length, in turns; then against memory. */
static void decode_codec(const question *q, setting *bf16, uint32_t codec_k, uint32_t codec_v)
{
    setting s;
    char name[64], codecs[32];
    kv_shape shape = make_shape(q, codec_k, 1, DEEP);
    shape.codec_v = codec_v;
    snprintf(name, sizeof name, "decode %s b1 c%u", codecs_name(&shape, codecs, sizeof codecs),
             shape.n_tokens);
    if (setting_open(&s, q, shape, 1)) {
        bench_best best, turns;
        double layers = s.store.shape.n_layers, others = bf16->store.shape.n_layers;
        bench_compare(q->b, 1, kv_work_run, &s.work, kv_work_run, &bf16->work, &turns);
        bench_measure(q->b, BENCH_MEMORY_READ, (double)s.store.bytes, kv_work_run, &s.work,
                      &best);
        decode_row(q, name, &s, &best, turns.ratio * layers / others);
    }
    setting_close(&s);
}

/* The same instructions over K and V in the caches. */
static void decode_cached(const question *q, uint32_t codec)
{
    setting s;
    char name[64];
    kv_shape shape = make_shape(q, codec, 1, IN_CACHE);
    shape.n_layers = 1;
    snprintf(name, sizeof name, "decode %s b1 c%u in cache", sheaf_codec_name(codec),
             shape.n_tokens);
    if (setting_open(&s, q, shape, 1)) {
        bench_best best;
        bench_measure(q->b, BENCH_MEMORY_READ, (double)s.store.bytes, kv_work_run, &s.work,
                      &best);
        decode_row(q, name, &s, &best, (double)NAN);
    }
    setting_close(&s);
}

static void codec_rows(const question *q)
{
    setting bf16;
    bench_table(q->b, codec_columns, 6);
    if (setting_open(&bf16, q, make_shape(q, SHEAF_CODEC_BF16, 1, DEEP), 1)) {
        for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++)
            if (codec != SHEAF_CODEC_BF16) decode_codec(q, &bf16, codec, codec);
    }
    setting_close(&bf16);
    for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++) decode_cached(q, codec);
    bench_note(q->b, "against bf16 of the same length: in turns, by the time of a layer");
}

/* Eight sequences that have one prefix in the same blocks, against eight that have it each. */
static void shared_rows(const question *q)
{
    setting shared, distinct;
    char name[64];
    bench_table(q->b, shared_columns, 6);
    kv_shape shape = make_shape(q, SHEAF_CODEC_BF16, N_SHARERS, PREFIX);
    bool ok = setting_open(&distinct, q, shape, 1);
    shape.n_shared = shape.n_tokens;
    shape.n_tokens += shape.block_tokens;
    ok = setting_open(&shared, q, shape, 1) && ok;
    if (ok) {
        bench_best best, turns;
        double layers = shared.store.shape.n_layers, others = distinct.store.shape.n_layers;
        bench_compare(q->b, 1, kv_work_run, &shared.work, kv_work_run, &distinct.work, &turns);
        bench_measure(q->b, BENCH_MEMORY_READ, (double)distinct.store.bytes, kv_work_run,
                      &distinct.work, &best);
        snprintf(name, sizeof name, "decode bf16 b%u c%u", N_SHARERS, shape.n_shared);
        decode_row(q, name, &distinct, &best, (double)NAN);
        bench_measure(q->b, BENCH_MEMORY_READ, (double)shared.store.bytes, kv_work_run,
                      &shared.work, &best);
        snprintf(name, sizeof name, "decode bf16 b%u c%u shared", N_SHARERS, shape.n_shared);
        decode_row(q, name, &shared, &best, turns.ratio * layers / others);
    }
    setting_close(&shared);
    setting_close(&distinct);
    bench_note(q->b,
               "shared: one prefix, and a block of each one's own; against distinct ones in "
               "turns, by the time of a layer; K and V: unique bytes");
}

static void dim_rows(const question *q)
{
    static const uint32_t dims[] = {64, 80, 96, 256};
    bench_table(q->b, decode_columns, 5);
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        char label[32];
        kv_shape shape = make_shape(q, SHEAF_CODEC_BF16, 1, PREFIX);
        shape.dim = dims[i];
        snprintf(label, sizeof label, " d%u", dims[i]);
        decode(q, label, &shape);
    }
}

/* ---- prefill ------------------------------------------------------------------------------ */

static void prefill(const question *q, uint32_t codec, uint32_t dim)
{
    setting s;
    char name[64], label[16] = "";
    uint32_t chunk = CHUNK / q->divide;
    kv_shape shape = make_shape(q, codec, 1, 4096 + CHUNK);
    shape.dim = dim;
    shape.n_layers = q->divide > 1 ? 1 : 4;
    if (dim != DIM) snprintf(label, sizeof label, " d%u", dim);
    snprintf(name, sizeof name, "prefill %s q%u c%u%s", sheaf_codec_name(codec), chunk,
             shape.n_tokens - chunk, label);
    if (setting_open(&s, q, shape, chunk)) {
        bench_best best;
        bench_measure(q->b, BENCH_FMA_PEAK, kv_work_flop(&s.work), kv_work_run, &s.work, &best);
        if (kv_work_done(&s.work))
            bench_row(q->b, name, best.seconds / shape.n_layers * 1e6, best.rate / 1e9,
                      best.ratio, best.median);
        else
            bench_note(q->b, "%s: not what was asked for", name);
    }
    setting_close(&s);
}

static void prefill_rows(const question *q)
{
    static const uint32_t dims[] = {64, 80, 96, 256};
    bench_table(q->b, prefill_columns, 4);
    for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++) prefill(q, codec, DIM);
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        prefill(q, SHEAF_CODEC_BF16, dims[i]);
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "attention", "how near to the machine's limits is attention?", argc,
                     argv))
        return 2;
    uint32_t mb = bench_option_u32(&b, "--mb", (uint32_t)bench_size(&b, 1024, 192, 1));
    const question q = {&b, mb * MIB, (uint32_t)bench_size(&b, 1, 1, 16)};
    const char *part = bench_option_text(&b, "--part", "");
    bool all = part[0] == 0;
    if (all || strcmp(part, "decode") == 0) decode_rows(&q);
    if (all || strcmp(part, "codecs") == 0) codec_rows(&q);
    if (all || strcmp(part, "shared") == 0) shared_rows(&q);
    if (all || strcmp(part, "dims") == 0) dim_rows(&q);
    if (all || strcmp(part, "prefill") == 0) prefill_rows(&q);
    return bench_end(&b);
}
