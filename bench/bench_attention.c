/* bench/bench_attention.c - how near to the machine's limits is attention, and what do its choices
 * cost? Figures for docs/adr/0001.
 *
 * Geometry: 32 query heads, 8 KV heads, dimension 128, bf16, blocks of 32 tokens. Layers are
 * visited in turn over a pool of a gigabyte or more (see "layers"), so that nothing is found in a
 * cache by luck:
 *
 *   paged        one span a block [layer][K tile, V tile], rows shuffled, heads outermost in a tile
 *   dense        one contiguous buffer a layer, [head][token][dim]
 *   token-major  as paged, with tokens outermost in a tile (a view of one-token blocks)
 *
 * Decoding is compared with the memory read ceiling (work: bytes of K and V once), prefill with
 * the FMA ceiling (work: 4 operations a query head, visible position and element).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "sheaf/attn.h"

#define Q_HEADS      32
#define KV_HEADS     8
#define DIM          128
#define BLOCK_TOKENS 32
#define TOKEN_BYTES  ((uint64_t)KV_HEADS * DIM * 2) /* of K, or of V, in one layer */
#define TILE_BYTES   (TOKEN_BYTES * BLOCK_TOKENS)
#define PATTERN      (1u << 20)

enum { PAGED, DENSE, TOKEN_MAJOR };

/* Sequences of one length, all layers. */
typedef struct store {
    unsigned char *memory;
    uint64_t bytes;
    uint32_t n_items;
    uint32_t n_tokens;
    uint32_t n_layers;
    uint32_t **rows;      /* [n_items], of blocks or tokens; null where dense */
    sheaf_kv_view *views; /* [n_layers, n_items] */
} store;

/* What one measured run does: every layer once. */
typedef struct work {
    const store *kv;
    sheaf_attn_plan *plan;
    sheaf_attn_report report;
    float *q;
    float *out;
    bool failed;
} work;

static uint64_t random_state = 0x9e3779b97f4a7c15ull;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % n;
}

/* bf16 numbers in (-2, 2), an odd stretch of a pattern after the other. */
static void fill(unsigned char *memory, uint64_t bytes)
{
    static uint16_t pattern[PATTERN];
    for (uint32_t i = 0; i < PATTERN; i++)
        pattern[i] = (uint16_t)(random_below(2) << 15 | (0x3e00u + random_below(0x200)));
    const uint64_t stretch = sizeof pattern - 2 * 31;
    for (uint64_t at = 0; at < bytes; at += stretch) {
        uint64_t n = bytes - at < stretch ? bytes - at : stretch;
        memcpy(memory + at, pattern + random_below(31), n);
    }
}

/* Block rows of all items, dealt from one shuffled deck; by token for TOKEN_MAJOR. */
static void deal_rows(store *s, int layout)
{
    uint32_t blocks = s->n_tokens / BLOCK_TOKENS, total = blocks * s->n_items;
    uint32_t *deck = malloc(total * sizeof *deck);
    for (uint32_t i = 0; i < total; i++) deck[i] = i;
    for (uint32_t i = total - 1; i > 0; i--) {
        uint32_t j = random_below(i + 1), t = deck[i];
        deck[i] = deck[j], deck[j] = t;
    }
    uint32_t each = layout == TOKEN_MAJOR ? BLOCK_TOKENS : 1;
    uint32_t step = layout == TOKEN_MAJOR ? BLOCK_TOKENS * 2 * s->n_layers : 1;
    for (uint32_t item = 0; item < s->n_items; item++) {
        s->rows[item] = malloc((uint64_t)blocks * each * sizeof *deck);
        for (uint32_t b = 0; b < blocks; b++)
            for (uint32_t t = 0; t < each; t++)
                s->rows[item][b * each + t] = deck[item * blocks + b] * step + t;
    }
    free(deck);
}

static sheaf_kv_view make_view(const store *s, int layout, uint32_t layer, uint32_t item)
{
    sheaf_kv_view v = {
        .base = s->memory,
        .rows = s->rows[item],
        .block_tokens = layout == TOKEN_MAJOR ? 1 : BLOCK_TOKENS,
        .n_tokens = s->n_tokens,
        .n_kv_heads = KV_HEADS,
        .key_dim = DIM,
        .value_dim = DIM,
        .codec_k = SHEAF_CODEC_BF16,
        .codec_v = SHEAF_CODEC_BF16,
    };
    v.n_rows = s->n_tokens / v.block_tokens;
    v.k_offset = layer * TILE_BYTES * 2;
    v.v_offset = v.k_offset + TILE_BYTES;
    v.row_stride_k = TILE_BYTES * 2 * s->n_layers;
    v.k_head_stride = TILE_BYTES / KV_HEADS;
    if (layout == TOKEN_MAJOR) {
        v.row_stride_k = TOKEN_BYTES;
        v.k_head_stride = DIM * 2;
    }
    if (layout == DENSE) {
        uint64_t half = TOKEN_BYTES * s->n_tokens;
        v.k_offset = ((uint64_t)layer * s->n_items + item) * half * 2;
        v.v_offset = v.k_offset + half;
        v.row_stride_k = TILE_BYTES / KV_HEADS;
        v.k_head_stride = half / KV_HEADS;
    }
    v.row_stride_v = v.row_stride_k;
    v.v_head_stride = v.k_head_stride;
    return v;
}

static bool store_open(store *s, int layout, uint32_t n_items, uint32_t n_tokens,
                       uint32_t n_layers)
{
    *s = (store){.n_items = n_items, .n_tokens = n_tokens, .n_layers = n_layers};
    s->bytes = (uint64_t)n_items * n_tokens * n_layers * TOKEN_BYTES * 2;
    s->memory = bench_map(s->bytes);
    if (s->memory == NULL) return false;
    fill(s->memory, s->bytes);
    s->rows = calloc(n_items, sizeof *s->rows);
    if (layout != DENSE) deal_rows(s, layout);
    s->views = calloc((size_t)n_layers * n_items, sizeof *s->views);
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t item = 0; item < n_items; item++)
            s->views[layer * n_items + item] = make_view(s, layout, layer, item);
    return true;
}

static void store_close(store *s)
{
    for (uint32_t i = 0; s->rows != NULL && i < s->n_items; i++) free(s->rows[i]);
    free(s->rows);
    free(s->views);
    bench_unmap(s->memory, s->bytes);
}

static void run_layers(void *arg)
{
    work *w = arg;
    for (uint32_t layer = 0; layer < w->kv->n_layers; layer++)
        if (sheaf_attn_run(w->plan, w->kv->views + (size_t)layer * w->kv->n_items, w->q, w->out,
                           &w->report) != SHEAF_OK)
            w->failed = true;
}

static bool work_open(work *w, bench *b, const store *kv, uint32_t n_queries, uint32_t path)
{
    *w = (work){.kv = kv, .report = SHEAF_ATTN_REPORT_INIT};
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = Q_HEADS;
    o.n_kv_heads = KV_HEADS;
    o.key_dim = o.value_dim = DIM;
    o.path = path;
    sheaf_attn_item *items = calloc(kv->n_items, sizeof *items);
    for (uint32_t i = 0; i < kv->n_items; i++)
        items[i] = (sheaf_attn_item){n_queries, kv->n_tokens - n_queries, kv->n_tokens, 0};
    uint64_t numbers = (uint64_t)kv->n_items * n_queries * Q_HEADS * DIM;
    w->q = malloc(numbers * sizeof *w->q);
    w->out = malloc(numbers * sizeof *w->out);
    for (uint64_t i = 0; i < numbers; i++) w->q[i] = (float)random_below(2001) * 1e-3f - 1.0f;
    bool ok = sheaf_attn_plan_create(&o, b->threads, &w->plan) == SHEAF_OK &&
              sheaf_attn_plan_batch(w->plan, items, kv->n_items) == SHEAF_OK;
    free(items);
    return ok;
}

static void work_close(work *w)
{
    sheaf_attn_plan_destroy(w->plan);
    free(w->q);
    free(w->out);
}

/* Operations of one pass over all layers. */
static double prefill_flop(const store *kv, uint32_t n_queries)
{
    double seen = 0;
    for (uint32_t i = 0; i < n_queries; i++) seen += kv->n_tokens - n_queries + i + 1;
    return seen * kv->n_items * kv->n_layers * Q_HEADS * DIM * 4.0;
}

/* One row of the table: a store of its own, so that memory is not kept. */
static void measure(bench *b, int layout, uint32_t path, uint32_t n_items, uint32_t n_tokens,
                    uint32_t n_queries, uint32_t n_layers)
{
    static const char *const layouts[] = {"paged", "dense", "token-major"};
    static const char *const paths[] = {"fused", "gather"};
    char name[96];
    store kv;
    work w;
    snprintf(name, sizeof name, "%u x %u, %s, %s", n_items, n_tokens, layouts[layout],
             paths[path]);
    if (!store_open(&kv, layout, n_items, n_tokens, n_layers)) {
        bench_note(b, "%s: no memory", name);
        return;
    }
    bench_best best;
    bool prefill = n_queries > 1;
    double bytes = (double)kv.bytes, flop = prefill_flop(&kv, n_queries);
    if (work_open(&w, b, &kv, n_queries, path)) {
        bench_measure(b, prefill ? BENCH_FMA_PEAK : BENCH_MEMORY_READ, prefill ? flop : bytes,
                      run_layers, &w, &best);
        if (w.failed || w.report.path != path)
            bench_note(b, "%s: not what was asked for", name);
        else
            bench_row(b, name, (double)n_layers, best.seconds / n_layers * 1e6,
                      bytes / best.seconds / 1e9, flop / best.seconds / 1e9, best.ratio);
    } else {
        bench_note(b, "%s: no memory", name);
    }
    work_close(&w);
    store_close(&kv);
}

/* Layers enough for `mb` megabytes, or the model's 28 where that is less. */
static uint32_t layers_for(uint32_t mb, uint32_t n_items, uint32_t n_tokens)
{
    uint64_t layer = (uint64_t)n_items * n_tokens * TOKEN_BYTES * 2;
    uint64_t n = (((uint64_t)mb << 20) + layer - 1) / layer;
    return n < 1 ? 1 : (uint32_t)n;
}

static const bench_column decode_columns[] = {{"layers", ""},
                                              {"a layer", "us"},
                                              {"K and V", "GB/s"},
                                              {"done", "GFLOP/s"},
                                              {"of memory read", "ratio"}};
static const bench_column prefill_columns[] = {{"layers", ""},
                                               {"a layer", "us"},
                                               {"K and V", "GB/s"},
                                               {"done", "GFLOP/s"},
                                               {"of FMA peak", "ratio"}};

static void bench_decode(bench *b, uint32_t mb, bool all)
{
    static const struct {
        uint32_t n_items, n_tokens;
    } cases[] = {{1, 4096}, {1, 16384}, {1, 32768}, {8, 4096}};
    bench_table(b, decode_columns, 5);
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t items = cases[i].n_items, tokens = cases[i].n_tokens;
        uint32_t layers = layers_for(mb, items, tokens);
        measure(b, PAGED, SHEAF_ATTN_FUSED, items, tokens, 1, layers);
        if (!all) continue;
        measure(b, DENSE, SHEAF_ATTN_FUSED, items, tokens, 1, layers);
        measure(b, TOKEN_MAJOR, SHEAF_ATTN_FUSED, items, tokens, 1, layers);
        measure(b, PAGED, SHEAF_ATTN_GATHER, items, tokens, 1, layers);
        measure(b, DENSE, SHEAF_ATTN_GATHER, items, tokens, 1, layers);
    }
    bench_note(b, "decode: one query a sequence; each byte of K and V counted once");
}

static void bench_prefill(bench *b, bool all)
{
    bench_table(b, prefill_columns, 5);
    for (uint32_t chunk = 512; chunk >= 32; chunk /= 4) {
        uint32_t tokens = 4096 + chunk;
        measure(b, PAGED, SHEAF_ATTN_FUSED, 1, tokens, chunk, 4);
        if (!all) continue;
        measure(b, DENSE, SHEAF_ATTN_FUSED, 1, tokens, chunk, 4);
        measure(b, PAGED, SHEAF_ATTN_GATHER, 1, tokens, chunk, 4);
    }
    bench_note(b, "prefill: a chunk of 512, 128 or 32 queries after 4096 tokens");
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "attention", "how near to the machine's limits is attention?", argc,
                     argv))
        return 2;
    uint32_t mb = bench_option_u32(&b, "--mb", 1024);
    bool paged_only = bench_option_flag(&b, "--paged-only");
    bool no_decode = bench_option_flag(&b, "--no-decode");
    bool no_prefill = bench_option_flag(&b, "--no-prefill");
    if (!no_decode) bench_decode(&b, mb, !paged_only);
    if (!no_prefill) bench_prefill(&b, !paged_only);
    return bench_end(&b);
}
