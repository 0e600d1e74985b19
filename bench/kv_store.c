/* bench/kv_store.c - K and V of many sequences in memory mapped as slabs are, and attention over them. */
#include "kv_store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_SEGMENTS                                                                             \
    61 /* different ones; a prime, so that no pattern of rows meets the same again */

static uint64_t random_state = 0x9e3779b97f4a7c15ull;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(((random_state >> 32) * n) >> 32);
}

/* The sum of twelve uniform numbers is near enough to a normal one. */
static float random_normal(void)
{
    float sum = -6.0f;
    for (int i = 0; i < 12; i++) sum += (float)random_below(1u << 24) * 0x1p-24f;
    return sum;
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- numbers ------------------------------------------------------------------------------ */

/* N_SEGMENTS encoded segments, one after another. Null: no memory. */
static unsigned char *make_segments(uint32_t codec, uint64_t segment_bytes,
                                    uint32_t block_tokens, uint32_t dim)
{
    unsigned char *segments = calloc(N_SEGMENTS, segment_bytes);
    float *numbers = malloc(sizeof *numbers * block_tokens * dim);
    bool ok = segments != NULL && numbers != NULL;
    for (uint32_t s = 0; ok && s < N_SEGMENTS; s++) {
        for (uint32_t i = 0; i < block_tokens * dim; i++) numbers[i] = random_normal();
        ok = sheaf_codec_encode(codec, segments + s * segment_bytes, block_tokens, dim, 0,
                                block_tokens, SHEAF_DTYPE_F32, numbers, dim) == SHEAF_OK;
    }
    free(numbers);
    if (ok) return segments;
    free(segments);
    return NULL;
}

/* Blocks of all sequences, what they share once. */
static uint32_t blocks_of(const kv_shape *p)
{
    return (p->n_shared + (p->n_tokens - p->n_shared) * p->n_items) / p->block_tokens;
}

/* Tiles of K and V in turn, whatever the order of rows: [block or (item, layer, run)][K, V]. */
static bool fill(kv_store *s)
{
    const kv_shape *p = &s->shape;
    unsigned char *k = make_segments(p->codec_k, s->k_segment, p->block_tokens, p->dim);
    unsigned char *v = make_segments(p->codec_v, s->v_segment, p->block_tokens, p->dim);
    bool ok = k != NULL && v != NULL;
    uint64_t tiles = (uint64_t)blocks_of(p) * p->n_layers;
    const bool apart = s->order == KV_DENSE; /* a layer's K and V of a sequence: two buffers */
    uint64_t run = apart ? p->n_tokens / p->block_tokens : 1;
    unsigned char *to = s->memory;
    for (uint64_t i = 0; ok && i < tiles; i += run)
        for (int side = 0; side < 2; side++) {
            const uint64_t bytes = side ? s->v_segment : s->k_segment;
            for (uint64_t j = 0; j < run * p->kv_heads; j++)
                memcpy(to + j * bytes, (side ? v : k) + random_below(N_SEGMENTS) * bytes,
                       bytes);
            to += run * (side ? s->v_tile : s->k_tile);
        }
    free(k);
    free(v);
    return ok;
}

/* ---- rows --------------------------------------------------------------------------------- */

static void shuffle(uint32_t *deck, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = random_below(i), t = deck[i - 1];
        deck[i - 1] = deck[j], deck[j] = t;
    }
}

/* Rows of one item: of blocks, or of their tokens. */
static void set_rows(kv_store *s, uint32_t item, const uint32_t *deck)
{
    const kv_shape *p = &s->shape;
    uint32_t shared = p->n_shared / p->block_tokens, blocks = p->n_tokens / p->block_tokens;
    uint32_t own = blocks - shared;
    const bool by_token = s->order == KV_TOKEN_MAJOR;
    uint64_t row_bytes = (s->k_tile + s->v_tile) * p->n_layers;
    uint32_t each = by_token ? p->block_tokens : 1;
    uint32_t step = by_token ? (uint32_t)(row_bytes / (s->k_tile / p->block_tokens)) : 1;
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t at = b < shared ? b : shared + item * own + b - shared;
        if (b >= shared && s->order == KV_INTERLEAVED)
            at = shared + (b - shared) * p->n_items + item;
        for (uint32_t t = 0; t < each; t++) s->rows[item][b * each + t] = deck[at] * step + t;
    }
}

static sheaf_kv_view make_view(const kv_store *s, uint32_t layer, uint32_t item)
{
    const kv_shape *p = &s->shape;
    sheaf_kv_view v = {.base = s->memory,
                       .rows = s->rows[item],
                       .block_tokens = s->order == KV_TOKEN_MAJOR ? 1 : p->block_tokens,
                       .n_tokens = p->n_tokens,
                       .n_kv_heads = p->kv_heads,
                       .key_dim = p->dim,
                       .value_dim = p->dim,
                       .codec_k = p->codec_k,
                       .codec_v = p->codec_v};
    uint64_t pair = s->k_tile + s->v_tile;
    v.n_rows = p->n_tokens / v.block_tokens;
    v.k_offset = layer * pair;
    v.v_offset = v.k_offset + s->k_tile;
    v.row_stride_k = v.row_stride_v = pair * p->n_layers;
    v.k_head_stride = s->k_segment;
    v.v_head_stride = s->v_segment;
    if (s->order == KV_TOKEN_MAJOR) {
        v.row_stride_k = v.row_stride_v = s->k_tile / p->block_tokens;
        v.k_head_stride = v.v_head_stride = v.row_stride_k / p->kv_heads;
    }
    if (s->order == KV_DENSE) {
        v.rows = NULL;
        v.k_offset = ((uint64_t)layer * p->n_items + item) * v.n_rows * pair;
        v.v_offset = v.k_offset + v.n_rows * s->k_tile;
        v.row_stride_k = s->k_segment;
        v.row_stride_v = s->v_segment;
        v.k_head_stride = s->k_segment * v.n_rows;
        v.v_head_stride = s->v_segment * v.n_rows;
    }
    return v;
}

void kv_store_deal(kv_store *s, int order)
{
    const kv_shape *p = &s->shape;
    uint32_t total = blocks_of(p);
    uint32_t *deck = malloc(sizeof *deck * total);
    if (deck == NULL) abort();
    s->order = order;
    for (uint32_t i = 0; i < total; i++) deck[i] = i;
    if (order == KV_SHUFFLED || order == KV_TOKEN_MAJOR) shuffle(deck, total);
    for (uint32_t item = 0; item < p->n_items && order != KV_DENSE; item++)
        set_rows(s, item, deck);
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        for (uint32_t item = 0; item < p->n_items; item++)
            s->views[layer * p->n_items + item] = make_view(s, layer, item);
    free(deck);
}

/* ---- life --------------------------------------------------------------------------------- */

static bool set_sizes(kv_store *s)
{
    const kv_shape *p = &s->shape;
    if (sheaf_codec_segment_bytes(p->codec_k, p->block_tokens, p->dim, &s->k_segment) !=
            SHEAF_OK ||
        sheaf_codec_segment_bytes(p->codec_v, p->block_tokens, p->dim, &s->v_segment) !=
            SHEAF_OK)
        return false;
    s->k_tile = round_up(s->k_segment * p->kv_heads);
    s->v_tile = round_up(s->v_segment * p->kv_heads);
    s->layer_bytes = (s->k_tile + s->v_tile) * blocks_of(p);
    s->bytes = s->layer_bytes * p->n_layers;
    return true;
}

bool kv_store_open(kv_store *s, const kv_shape *shape, int order)
{
    *s = (kv_store){.shape = *shape, .order = order};
    if (!set_sizes(s)) return false;
    s->memory = bench_map(s->bytes);
    s->rows = calloc(shape->n_items, sizeof *s->rows);
    s->views = calloc((size_t)shape->n_layers * shape->n_items, sizeof *s->views);
    if (s->memory == NULL || s->rows == NULL || s->views == NULL) return false;
    for (uint32_t i = 0; i < shape->n_items; i++)
        if ((s->rows[i] = malloc(sizeof **s->rows * shape->n_tokens)) == NULL) return false;
    if (!fill(s)) return false;
    kv_store_deal(s, order);
    return true;
}

void kv_store_close(kv_store *s)
{
    for (uint32_t i = 0; s->rows != NULL && i < s->shape.n_items; i++) free(s->rows[i]);
    free(s->rows);
    free(s->views);
    bench_unmap(s->memory, s->bytes);
}

uint32_t kv_layers(const kv_shape *shape, uint64_t bytes)
{
    kv_store s = {.shape = *shape};
    if (!set_sizes(&s)) return 1;
    uint64_t n = (bytes + s.layer_bytes - 1) / s.layer_bytes;
    return n < 1 ? 1 : (uint32_t)n;
}

/* ---- attention ---------------------------------------------------------------------------- */

bool kv_work_open(kv_work *w, bench *b, const kv_store *store, uint32_t n_queries,
                  uint32_t path)
{
    const kv_shape *p = &store->shape;
    *w = (kv_work){
        .store = store, .report = SHEAF_ATTN_REPORT_INIT, .n_queries = n_queries, .path = path};
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = p->q_heads;
    o.n_kv_heads = p->kv_heads;
    o.key_dim = o.value_dim = p->dim;
    o.path = path;
    sheaf_attn_item *items = calloc(p->n_items, sizeof *items);
    uint64_t numbers = (uint64_t)p->n_items * n_queries * p->q_heads * p->dim;
    w->q = malloc(numbers * sizeof *w->q);
    w->out = malloc(numbers * sizeof *w->out);
    bool ok = items != NULL && w->q != NULL && w->out != NULL;
    for (uint32_t i = 0; ok && i < p->n_items; i++)
        items[i] = (sheaf_attn_item){n_queries, p->n_tokens - n_queries, p->n_tokens, 0};
    for (uint64_t i = 0; ok && i < numbers; i++) w->q[i] = random_normal();
    ok = ok && sheaf_attn_plan_create(&o, b->threads, &w->plan) == SHEAF_OK &&
         sheaf_attn_plan_views(w->plan, items, store->views, p->n_items) == SHEAF_OK;
    free(items);
    return ok;
}

void kv_work_close(kv_work *w)
{
    sheaf_attn_plan_destroy(w->plan);
    free(w->q);
    free(w->out);
}

void kv_work_run(void *arg)
{
    kv_work *w = arg;
    const kv_shape *p = &w->store->shape;
    for (uint32_t layer = 0; layer < p->n_layers; layer++)
        if (sheaf_attn_run(w->plan, w->store->views + (size_t)layer * p->n_items, w->q, w->out,
                           &w->report) != SHEAF_OK)
            w->failed = true;
}

bool kv_work_done(const kv_work *w)
{
    return !w->failed && w->report.path == w->path;
}

double kv_work_flop(const kv_work *w)
{
    const kv_shape *p = &w->store->shape;
    double seen = 0;
    for (uint32_t i = 0; i < w->n_queries; i++) seen += p->n_tokens - w->n_queries + i + 1;
    return seen * p->n_items * p->n_layers * p->q_heads * p->dim * 4.0;
}
