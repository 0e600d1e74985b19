/* examples/prefix.c - an engine's loop with the prefix cache, from the installed headers alone.
 *
 * Four prompts come one after another, a step apart: each begins with the same 40 tokens, and the last
 * is the first again. Every step reserves for all that run, 32 tokens at most for each; what was
 * computed is published at once, so that the next request shares it while the first still runs.
 *
 *     cc prefix.c -o prefix $(pkg-config --cflags --libs sheaf)
 */
#include <inttypes.h>
#include <stdio.h>

#include <sheaf/sheaf.h>

enum { LAYERS = 2, KV_HEADS = 2, DIM = 32, WIDTH = KV_HEADS * DIM, BLOCK_TOKENS = 16 };
enum { COMMON = 40, MOST = 128, CHUNK = 32, REQUESTS = 4 };

#define TRY(call)                                                                              \
    do {                                                                                       \
        sheaf_status status_ = (call);                                                         \
        if (status_ == SHEAF_OK) break;                                                        \
        fprintf(stderr, "%s: %s\n", #call, sheaf_status_text(status_));                        \
        return status_;                                                                        \
    } while (0)

typedef struct request {
    int32_t tokens[MOST];
    sheaf_prompt prompt;
    sheaf_sequence *seq; /* null: it waits, or has ended */
    uint32_t ended;
} request;

/* Stands for a model's K and V of a position: as there, they depend on every token up to it. */
static void project(const int32_t *tokens, uint32_t pos, uint32_t layer, float *out)
{
    uint32_t x = layer;
    for (uint32_t i = 0; i <= pos; i++) x = (x ^ (uint32_t)tokens[i]) * 16777619u + 1;
    for (uint32_t i = 0; i < WIDTH; i++, x = x * 1664525u + 1013904223u)
        out[i] = (float)(x >> 8) / 8388608.0f - 1.0f;
}

/* The forward pass of one request: writes what the step reserved, layer by layer, and commits it. */
static sheaf_status compute(const request *r, uint32_t n)
{
    static float kv[CHUNK][WIDTH];
    uint32_t from = sheaf_sequence_length(r->seq);
    sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
    src.dtype = SHEAF_DTYPE_F32, src.order = SHEAF_TOKEN_MAJOR, src.k = kv, src.v = kv;
    src.n_kv_heads = KV_HEADS, src.key_dim = DIM, src.value_dim = DIM;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < n; i++) project(r->tokens, from + i, layer, kv[i]);
        TRY(sheaf_sequence_write(r->seq, layer, from, n, &src));
    }
    return sheaf_sequence_commit(r->seq, n, r->tokens + from);
}

/* Whether its last layer holds what computing every position gives. */
static int right(const request *r)
{
    static float k[WIDTH * MOST], own[WIDTH]; /* k: [KV_HEADS, n, DIM] */
    uint32_t n = sheaf_sequence_length(r->seq);
    if (sheaf_sequence_gather_f32(r->seq, LAYERS - 1, k, WIDTH * MOST, NULL, 0)) return 0;
    for (uint32_t pos = 0; pos < n; pos++) {
        project(r->tokens, pos, LAYERS - 1, own);
        for (uint32_t i = 0; i < WIDTH; i++)
            if (k[(i / DIM * n + pos) * DIM + i % DIM] != own[i]) return 0;
    }
    return 1;
}

/* One step of the first n requests: room for all that run is reserved, and who is complete ends. */
static sheaf_status step(sheaf_prefix *cache, request *requests, uint32_t n)
{
    sheaf_step steps[REQUESTS];
    request *of[REQUESTS];
    uint32_t n_steps = 0;
    for (request *r = requests; r < requests + n; r++) {
        if (r->ended) continue;
        uint32_t left = r->prompt.n_tokens - (r->seq ? sheaf_sequence_length(r->seq) : 0);
        steps[n_steps] = (sheaf_step)SHEAF_STEP_INIT;
        steps[n_steps].prompt = &r->prompt, steps[n_steps].sequence = r->seq;
        steps[n_steps].n = left < CHUNK ? left : CHUNK;
        of[n_steps++] = r;
    }
    /* SHEAF_FULL is an answer: nothing has changed, and a real engine takes fewer or preempts one. */
    TRY(sheaf_prefix_reserve(cache, steps, n_steps, NULL));
    for (uint32_t i = 0; i < n_steps; i++) {
        const sheaf_match *m = &steps[i].match;
        if (of[i]->seq == NULL)
            printf("request %d: %d tokens, %d shared, %d copied\n", (int)(of[i] - requests),
                   (int)of[i]->prompt.n_tokens, (int)m->shared, (int)m->copied);
        of[i]->seq = steps[i].sequence;
    }
    for (uint32_t i = 0; i < n_steps; i++) {
        request *r = of[i];
        if (steps[i].reserved != 0) TRY(compute(r, steps[i].reserved));
        r->ended = sheaf_sequence_length(r->seq) == r->prompt.n_tokens;
        uint32_t flags = r->ended ? SHEAF_PUBLISH_TAIL : 0; /* else whole blocks */
        TRY(sheaf_prefix_publish(cache, &r->prompt, r->seq, flags, NULL));
        if (!r->ended) continue;
        if (!right(r)) return SHEAF_E_CORRUPT;
        sheaf_sequence_destroy(r->seq), r->seq = NULL; /* its blocks stay in the cache */
    }
    return SHEAF_OK;
}

static sheaf_status serve(sheaf_pool *pool, sheaf_prefix *cache, request *requests)
{
    static const uint32_t lengths[REQUESTS] = {90, 49, 64, 90};
    sheaf_field fields[] = {{"model", "toy", 3}, {"salt", "client", 6}};
    sheaf_key space; /* what else K and V depend on: only equal namespaces share */
    TRY(sheaf_space_make(pool, fields, 2, &space));
    for (int32_t i = 0; i < REQUESTS; i++) {
        request *r = &requests[i];
        for (int32_t t = 0; t < MOST; t++) r->tokens[t] = t < COMMON ? t : 1000 * (i % 3) + t;
        r->prompt = (sheaf_prompt)SHEAF_PROMPT_INIT;
        r->prompt.tokens = r->tokens, r->prompt.n_tokens = lengths[i], r->prompt.space = &space;
    }
    for (uint32_t n = 1; n < REQUESTS + 4; n++) /* one joins, a step apart */
        TRY(step(cache, requests, n < REQUESTS ? n : REQUESTS));
    sheaf_prefix_stats s = SHEAF_PREFIX_STATS_INIT;
    TRY(sheaf_prefix_stats_read(cache, &s));
    printf("found: %" PRIu64 " of %" PRIu64 " tokens, in %" PRIu64 " of %" PRIu64 " lookups\n",
           s.hit_tokens, s.lookup_tokens, s.hits, s.lookups);
    printf("cached: %" PRIu64 " tokens, %" PRIu64 " blocks, %" PRIu64
           " bytes, exclusive %" PRIu64 "\n",
           s.tokens, s.blocks_held, s.bytes_held, s.bytes_exclusive);
    return SHEAF_OK;
}

int main(void)
{
    const sheaf_layer layer = {KV_HEADS, DIM, DIM, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F32};
    const sheaf_layer layers[LAYERS] = {layer, layer};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers, options.n_layers = LAYERS;
    options.block_tokens = BLOCK_TOKENS, options.budget_bytes = 4 << 20;
    sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
    limits.capacity_bytes = 1 << 20; /* what the cache may keep that nobody runs */
    static request requests[REQUESTS];
    sheaf_pool *pool = NULL;
    sheaf_prefix *cache = NULL;
    sheaf_status st = sheaf_pool_open(&options, &pool, NULL);
    if (st == SHEAF_OK) st = sheaf_prefix_open(pool, &limits, &cache, NULL);
    if (st == SHEAF_OK) st = serve(pool, cache, requests);
    for (int i = 0; i < REQUESTS; i++) sheaf_sequence_destroy(requests[i].seq);
    sheaf_prefix_close(cache);
    sheaf_status closed = sheaf_pool_close(pool);
    return st == SHEAF_OK && closed == SHEAF_OK ? 0 : 1;
}
