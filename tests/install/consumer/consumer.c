/* A program that embeds libsheaf as installed: its version, then a tiny pool, a sequence of six
 * tokens, its fork, and attention over it. Keys are all zero, so that the answer is the mean of the
 * values: 2.5. */
#include <stdio.h>

#include <sheaf/sheaf.h>

#define TOKENS 6
#define DIM    4

#define TRY(call)                                                                              \
    do {                                                                                       \
        sheaf_status status_ = (call);                                                         \
        if (status_ != SHEAF_OK) {                                                             \
            fprintf(stderr, "%s: %s\n", #call, sheaf_status_text(status_));                    \
            return 1;                                                                          \
        }                                                                                      \
    } while (0)

static int attend(const sheaf_sequence *sequence)
{
    sheaf_attn_options options = SHEAF_ATTN_OPTIONS_INIT;
    options.n_q_heads = options.n_kv_heads = 1;
    options.key_dim = options.value_dim = DIM;
    sheaf_attn_plan *plan = NULL;
    TRY(sheaf_attn_plan_create(&options, NULL, &plan));
    sheaf_attn_item item = {1, TOKENS - 1, TOKENS, 0};
    TRY(sheaf_attn_plan_batch(plan, &item, 1));
    sheaf_kv_view view;
    TRY(sheaf_sequence_view(sequence, 0, &view));
    float query[DIM] = {1, 2, 3, 4}, out[DIM] = {0};
    TRY(sheaf_attn_run(plan, &view, query, out, NULL));
    printf("attention %.3f\n", (double)out[0]);
    sheaf_attn_plan_destroy(plan);
    return 0;
}

static int use(sheaf_pool *pool)
{
    float keys[TOKENS][DIM] = {{0}}, values[TOKENS][DIM];
    for (int t = 0; t < TOKENS; t++)
        for (int d = 0; d < DIM; d++) values[t][d] = (float)t;
    sheaf_kv_source source = SHEAF_KV_SOURCE_INIT;
    source.n_kv_heads = 1;
    source.key_dim = source.value_dim = DIM;
    source.k = keys;
    source.v = values;

    sheaf_sequence *sequence = NULL, *twin = NULL;
    TRY(sheaf_sequence_create(pool, &sequence));
    TRY(sheaf_sequence_extend(sequence, TOKENS));
    TRY(sheaf_sequence_write(sequence, 0, 0, TOKENS, &source));
    TRY(sheaf_sequence_commit(sequence, TOKENS, NULL));
    TRY(sheaf_sequence_fork(sequence, &twin));
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    TRY(sheaf_pool_stats_read(pool, &stats));
    printf("blocks %d shared %d\n", (int)stats.blocks_held, (int)stats.blocks_shared);
    sheaf_sequence_destroy(sequence);
    int failed = attend(twin);
    sheaf_sequence_destroy(twin);
    return failed;
}

int main(void)
{
    printf("sheaf %s\n", sheaf_version());
    sheaf_layer layer = {1, DIM, DIM, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F32};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = &layer;
    options.n_layers = 1;
    options.block_tokens = 4;
    options.budget_bytes = 1 << 20;
    sheaf_pool *pool = NULL;
    sheaf_error error = {SHEAF_OK, ""};
    if (sheaf_pool_open(&options, &pool, &error) != SHEAF_OK) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    int failed = use(pool);
    TRY(sheaf_pool_close(pool));
    return failed;
}
