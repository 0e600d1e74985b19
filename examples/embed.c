/* examples/embed.c - a paged KV cache in an engine's step, from the installed headers alone.
 *
 * A prompt of 40 tokens is computed once and forked. The two sequences then go different ways, 12
 * tokens and 4, in one ragged batch. They share the prompt's whole blocks; only the half-full one at
 * its end is copied, by the first of them to write there.
 *
 *     cc embed.c -o embed $(pkg-config --cflags --libs sheaf)
 */
#include <inttypes.h>
#include <stdio.h>

#include <sheaf/sheaf.h>

enum { LAYERS = 2, Q_HEADS = 4, KV_HEADS = 2, DIM = 32, BLOCK_TOKENS = 16 };
enum { PROMPT = 40, LEFT = 12, RIGHT = 4, MOST_ROWS = PROMPT, MOST_RUNS = 2 };

/* 0 is success, negative a fault, and SHEAF_FULL an answer: nothing has changed, so that an engine
 * may evict or wait and ask again. This program just stops, and says where. */
#define TRY(call)                                                                              \
    do {                                                                                       \
        sheaf_status status_ = (call);                                                         \
        if (status_ == SHEAF_OK) break;                                                        \
        fprintf(stderr, "%s: %s\n", #call, sheaf_status_text(status_));                        \
        return status_;                                                                        \
    } while (0)

/* What one sequence adds in this step. */
typedef struct run {
    sheaf_sequence *seq;
    const int32_t *tokens;
    uint32_t n;
} run;

/* Stands for a model's projections of a row: `n` numbers in [-1, 1) from what they depend on. */
static void project(uint32_t layer, uint32_t pos, int32_t token, float *out, uint32_t n)
{
    uint32_t x = (layer * 1031u + pos) * 65537u + (uint32_t)token;
    for (uint32_t i = 0; i < n; i++, x += 0x9e3779b9u) {
        uint32_t h = (x ^ x >> 15) * 0x2c1b3c6du;
        h = (h ^ h >> 12) * 0x297a2d39u;
        out[i] = (float)(h >> 8) / 8388608.0f - 1.0f;
    }
}

/* One forward step over a ragged batch: reserve for all of it, then layer by layer write K and V
 * and attend, then commit; committing 0 would drop it. *checksum takes in the outputs' every bit. */
static sheaf_status step(sheaf_attn_plan *plan, const run *runs, uint32_t n_runs,
                         uint64_t *checksum)
{
    static float q[MOST_ROWS][Q_HEADS][DIM], out[MOST_ROWS][Q_HEADS][DIM];
    static float k[MOST_ROWS][KV_HEADS][DIM], v[MOST_ROWS][KV_HEADS][DIM];
    sheaf_attn_item items[MOST_RUNS];
    for (uint32_t i = 0; i < n_runs; i++) {
        uint32_t first = sheaf_sequence_length(runs[i].seq);
        TRY(sheaf_sequence_extend(runs[i].seq, runs[i].n)); /* here SHEAF_FULL may come */
        items[i] = (sheaf_attn_item){runs[i].n, first, first + runs[i].n, 0};
    }
    TRY(sheaf_attn_plan_batch(plan, items, n_runs)); /* once a step */

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        sheaf_kv_view views[MOST_RUNS];
        uint32_t row = 0; /* of the batch: its sequences' rows follow one another */
        for (uint32_t i = 0; i < n_runs; i++) {
            sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
            src.dtype = SHEAF_DTYPE_F32, src.order = SHEAF_TOKEN_MAJOR;
            src.n_kv_heads = KV_HEADS, src.key_dim = DIM, src.value_dim = DIM;
            src.k = k[row], src.v = v[row];
            for (uint32_t t = 0; t < runs[i].n; t++, row++) {
                uint32_t pos = items[i].first_pos + t;
                project(3 * layer, pos, runs[i].tokens[t], q[row][0], Q_HEADS * DIM);
                project(3 * layer + 1, pos, runs[i].tokens[t], k[row][0], KV_HEADS * DIM);
                project(3 * layer + 2, pos, runs[i].tokens[t], v[row][0], KV_HEADS * DIM);
            }
            TRY(sheaf_sequence_write(runs[i].seq, layer, items[i].first_pos, runs[i].n, &src));
            TRY(sheaf_sequence_view(runs[i].seq, layer, &views[i]));
        }
        TRY(sheaf_attn_run(plan, views, q[0][0], out[0][0], NULL));
        for (const unsigned char *p = (const unsigned char *)out, *end = p + row * sizeof *out;
             p < end; p++)
            *checksum = (*checksum ^ *p) * 1099511628211u; /* FNV-1a */
    }
    for (uint32_t i = 0; i < n_runs; i++)
        TRY(sheaf_sequence_commit(runs[i].seq, runs[i].n, runs[i].tokens));
    return SHEAF_OK;
}

static sheaf_status tell(const sheaf_pool *pool, sheaf_sequence *const *seqs)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    TRY(sheaf_pool_stats_read(pool, &stats));
    uint64_t blocks = 0, bytes = 0;
    for (int i = 0; i < MOST_RUNS; i++) {
        sheaf_usage usage = SHEAF_USAGE_INIT;
        TRY(sheaf_sequence_usage(seqs[i], &usage));
        blocks += usage.blocks, bytes += usage.bytes;
    }
    printf("held: %" PRIu64 " blocks, %" PRIu64 " bytes; unshared: %" PRIu64 " blocks, %" PRIu64
           " bytes\n",
           stats.blocks_held, stats.bytes_in_use, blocks, bytes);
    return SHEAF_OK;
}

/* Leaves its sequences in seqs, also when it fails: the caller destroys them. */
static sheaf_status converse(sheaf_pool *pool, sheaf_attn_plan *plan, sheaf_sequence **seqs)
{
    int32_t prompt[PROMPT], left[LEFT], right[RIGHT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 100 + i;
    for (int i = 0; i < LEFT; i++) left[i] = 200 + i;
    for (int i = 0; i < RIGHT; i++) right[i] = 300 + i;
    uint64_t checksum = 14695981039346656037u;

    TRY(sheaf_sequence_create(pool, &seqs[0]));
    TRY(step(plan, &(run){seqs[0], prompt, PROMPT}, 1, &checksum));
    printf("prompt: %" PRIu32 " tokens, outputs %016" PRIx64 "\n",
           sheaf_sequence_length(seqs[0]), checksum);

    TRY(sheaf_sequence_fork(seqs[0], &seqs[1]));
    TRY(tell(pool, seqs));
    run runs[MOST_RUNS] = {{seqs[0], left, LEFT}, {seqs[1], right, RIGHT}};
    TRY(step(plan, runs, MOST_RUNS, &checksum));
    printf("forks: %" PRIu32 " and %" PRIu32 " tokens, outputs %016" PRIx64 "\n",
           sheaf_sequence_length(seqs[0]), sheaf_sequence_length(seqs[1]), checksum);
    return tell(pool, seqs);
}

int main(void)
{
    sheaf_layer layers[LAYERS]; /* heads, numbers a key and a value, window (0: none), codecs */
    for (int i = 0; i < LAYERS; i++)
        layers[i] = (sheaf_layer){KV_HEADS, DIM, DIM, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers, options.n_layers = LAYERS;
    options.block_tokens = BLOCK_TOKENS, options.budget_bytes = 4 << 20;
    sheaf_attn_options attn = SHEAF_ATTN_OPTIONS_INIT;
    attn.n_q_heads = Q_HEADS, attn.n_kv_heads = KV_HEADS, attn.key_dim = attn.value_dim = DIM;

    sheaf_pool *pool = NULL;
    sheaf_attn_plan *plan = NULL;
    sheaf_sequence *seqs[MOST_RUNS] = {NULL, NULL};
    sheaf_error err = {SHEAF_OK, ""};
    sheaf_status st = sheaf_pool_open(&options, &pool, &err);
    if (st != SHEAF_OK) fprintf(stderr, "%s\n", err.text);
    if (st == SHEAF_OK) st = sheaf_attn_plan_create(&attn, NULL, &plan);
    if (st == SHEAF_OK) st = converse(pool, plan, seqs);
    for (int i = 0; i < MOST_RUNS; i++) sheaf_sequence_destroy(seqs[i]);
    sheaf_attn_plan_destroy(plan);
    sheaf_status closed = sheaf_pool_close(pool); /* SHEAF_E_BUSY if a block were still held */
    return st == SHEAF_OK && closed == SHEAF_OK ? 0 : 1;
}
