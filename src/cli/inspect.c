/* cli/inspect.c - `sheaf inspect`: what a model is, and what its keys and values cost.
 *
 * Opens the weights' files, whose pages nobody touches, and a pool of the model's layout, which commits
 * no memory: the sizes are what the pool itself says. How many tokens fit a budget is asked of it
 * too, with the blocks that a sequence of n tokens needs of each group:
 *
 *     all positions    ceil(n / block_tokens)
 *     window w         the same, at most ceil(w / block_tokens) + 1: what the window and the next
 *                      position can span, since blocks that the window has left are given back
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "cli/cli.h"

#define RANDOM_PREFIX "random:"

typedef struct inspect_state {
    const char *path;
    sheaf__kv_dtypes kv_dtypes;
    uint64_t budget_bytes;
    sheaf__config config;
    uint64_t n_parameters;
    uint64_t bytes_mapped;
    uint64_t bytes_resident;
    uint32_t dtype; /* of the matrices: SHEAF_DTYPE_... */
    bool is_random;
    sheaf_layer *layers; /* [config.n_layers] */
    sheaf_pool *pool;
} inspect_state;

static sheaf_status parse(int argc, char **argv, inspect_state *s, bool *done, sheaf_error *err)
{
    sheaf__flags flags = {0};
    sheaf__flags_add(&flags, SHEAF__FLAG_TEXT, "model,m=DIR", &s->path,
                     "Hugging Face directory, or random:NAME[:layers=N]");
    sheaf__kv_dtype_flags_add(&s->kv_dtypes, &flags);
    sheaf__flags_add(&flags, SHEAF__FLAG_BYTES, "budget=BYTES", &s->budget_bytes,
                     "memory for K and V (default: the machine's)");
    SHEAF__TRY(sheaf__flags_parse(&sheaf__command_inspect, &flags, argc, argv, done, err));
    if (*done) return sheaf__cli_flush(err);
    return sheaf__cli_need_model(s->path, err);
}

/* ---- reading ----------------------------------------------------------------------------- */

static sheaf_status read_weights(inspect_state *s, sheaf_error *err)
{
    const sheaf__weights_options options = {0};
    sheaf__weights *w = NULL;
    SHEAF__TRY(sheaf__weights_open(s->path, &s->config, &options, &w, err));
    s->n_parameters = w->n_parameters;
    s->bytes_mapped = w->bytes_mapped;
    s->bytes_resident = w->bytes_resident;
    s->dtype = w->embedding.dtype;
    sheaf__weights_close(w);
    return SHEAF_OK;
}

static sheaf_status read_model(inspect_state *s, sheaf_error *err)
{
    s->is_random = strncmp(s->path, RANDOM_PREFIX, strlen(RANDOM_PREFIX)) == 0;
    if (!s->is_random) {
        SHEAF__TRY(sheaf__config_read(s->path, &s->config, err));
        return read_weights(s, err);
    }
    SHEAF__TRY(sheaf__weights_random_config(s->path, &s->config, err));
    s->dtype = SHEAF_DTYPE_BF16;
    return sheaf__weights_random_size(&s->config, &s->n_parameters, &s->bytes_resident, err);
}

static sheaf_status open_pool(inspect_state *s, sheaf_error *err)
{
    s->layers = calloc(s->config.n_layers, sizeof *s->layers);
    if (s->layers == NULL) return SHEAF_E_NO_MEMORY;
    sheaf__forward_layout(&s->config, sheaf__kv_dtype_k(&s->kv_dtypes),
                          sheaf__kv_dtype_v(&s->kv_dtypes), s->layers);
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = s->layers;
    options.n_layers = s->config.n_layers;
    options.budget_bytes = s->budget_bytes;
    return sheaf_pool_open(&options, &s->pool, err);
}

/* ---- how much fits ----------------------------------------------------------------------- */

/* SHEAF_OK or SHEAF_FULL: whether the pool has room for a sequence of n tokens. */
static sheaf_status has_room(const inspect_state *s, uint32_t n)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0}, block = sheaf_pool_block_tokens(s->pool);
    for (uint32_t g = 0; g < sheaf_pool_groups(s->pool); g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        SHEAF__TRY(sheaf_pool_group_info(s->pool, g, &info));
        uint64_t need = sheaf__ceil_div_u64(n, block);
        if (info.window != 0)
            need = sheaf__min_u64(need, sheaf__ceil_div_u64(info.window, block) + 1);
        counts[g] = (uint32_t)need;
    }
    return sheaf_pool_can_acquire(s->pool, counts);
}

/* The longest sequence that fits, by halving. */
static sheaf_status find_most(const inspect_state *s, uint32_t *out)
{
    uint32_t fits = 0, beyond = INT32_MAX; /* positions are below 2^31 */
    while (beyond - fits > 1) {
        uint32_t middle = fits + (beyond - fits) / 2;
        sheaf_status status = has_room(s, middle);
        if (status < 0) return status;
        *(status == SHEAF_OK ? &fits : &beyond) = middle;
    }
    *out = fits;
    return SHEAF_OK;
}

/* ---- showing ----------------------------------------------------------------------------- */

static void show_model(const inspect_state *s)
{
    static const char *const archs[] = {
        [SHEAF__ARCH_LLAMA] = "llama",   [SHEAF__ARCH_QWEN3] = "qwen3",
        [SHEAF__ARCH_QWEN2] = "qwen2",   [SHEAF__ARCH_MISTRAL] = "mistral",
        [SHEAF__ARCH_GEMMA3] = "gemma3",
    };
    static const char *const dtypes[] = {
        [SHEAF_DTYPE_F32] = "f32", [SHEAF_DTYPE_F16] = "f16", [SHEAF_DTYPE_BF16] = "bf16"};
    const sheaf__config *c = &s->config;
    printf("architecture  %s, %u layers, hidden %u, feed-forward %u, vocabulary %u\n",
           archs[c->arch], c->n_layers, c->hidden, c->intermediate, c->vocab);
    printf("attention     %u heads, %u KV heads, dimension %u\n", c->n_heads, c->n_kv_heads,
           c->head_dim);
    printf("context       %u positions\n", c->max_positions);
    printf("parameters    %llu%s\n", (unsigned long long)s->n_parameters,
           c->tied_head ? ", head tied to the embedding" : "");
    printf("weights       %s, %llu bytes mapped, %llu resident%s\n", dtypes[s->dtype],
           (unsigned long long)s->bytes_mapped, (unsigned long long)s->bytes_resident,
           s->is_random ? " once they are made" : "");
}

static sheaf_status show_groups(const inspect_state *s)
{
    uint32_t block = sheaf_pool_block_tokens(s->pool);
    sheaf__kv_name name =
        sheaf__cli_kv_name(sheaf__kv_dtype_k(&s->kv_dtypes), sheaf__kv_dtype_v(&s->kv_dtypes));
    printf("KV            %s, blocks of %u tokens\n\n", name.text, block);
    printf("group  layers  window  bytes/token  bytes/block   padding  blocks/slab    "
           "bytes/slab\n");
    for (uint32_t g = 0; g < sheaf_pool_groups(s->pool); g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        char window[16] = "none";
        SHEAF__TRY(sheaf_pool_group_info(s->pool, g, &info));
        if (info.window != 0) snprintf(window, sizeof window, "%u", info.window);
        printf("%5u  %6u  %6s  %11llu  %11llu  %8llu  %11u  %12llu\n", g, info.n_layers, window,
               (unsigned long long)(info.tile_bytes / block),
               (unsigned long long)info.block_bytes,
               (unsigned long long)(info.block_bytes - info.tile_bytes), info.slab_blocks,
               (unsigned long long)info.slab_bytes);
    }
    return SHEAF_OK;
}

static sheaf_status show_budget(const inspect_state *s)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    uint32_t n = 0;
    SHEAF__TRY(sheaf_pool_stats_read(s->pool, &stats));
    SHEAF__TRY(find_most(s, &n));
    printf("\nbudget        %llu bytes: one sequence of %u tokens fits",
           (unsigned long long)stats.budget_bytes, n);
    if (n > s->config.max_positions) printf(", the model allows %u", s->config.max_positions);
    putchar('\n');
    return SHEAF_OK;
}

static sheaf_status inspect(inspect_state *s, sheaf_error *err)
{
    SHEAF__TRY(read_model(s, err));
    SHEAF__TRY(open_pool(s, err));
    show_model(s);
    SHEAF__TRY(show_groups(s));
    SHEAF__TRY(show_budget(s));
    return sheaf__cli_flush(err);
}

static int inspect_main(int argc, char **argv)
{
    inspect_state *s = calloc(1, sizeof *s);
    sheaf_error err = {0};
    bool done = false;
    if (s == NULL) return sheaf__cli_fail("inspect", SHEAF_E_NO_MEMORY, NULL);
    s->kv_dtypes = (sheaf__kv_dtypes)SHEAF__KV_DTYPES_INIT;
    sheaf_status status = parse(argc, argv, s, &done, &err);
    if (status == SHEAF_OK && !done) status = inspect(s, &err);
    sheaf_status closed = sheaf_pool_close(s->pool);
    SHEAF__ASSERT(closed == SHEAF_OK);
    (void)closed;
    free(s->layers);
    free(s);
    return status == SHEAF_OK ? 0 : sheaf__cli_fail("inspect", status, &err);
}

const sheaf__command sheaf__command_inspect = {
    .name = "inspect",
    .arguments = "-m DIR [--kv-dtype[-k|-v] TYPE] [--budget BYTES]",
    .summary = "show a model's sizes, and how many tokens fit",
    .details = "Nothing of the weights is read but their files' headers and the norms.\n",
    .run = inspect_main,
};
