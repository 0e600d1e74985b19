/* bench/bench_plan.c - what does planning a step for a GPU cost on the host?
 *
 * A step of decoding is checked, cut and written into the table that a GPU reads (attn/cuda/step.h).
 * This part needs no GPU; what is left out are the calls of CUDA's (one to three) that queue the
 * table's copy. The baseline copies the step's rows one sequence's after another's, which any plan of
 * paged attention does.
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/cuda/step.h"

#define BLOCK    32
#define Q_HEADS  32
#define KV_HEADS 8
#define DIM      128
#define REPEATS  200 /* plans of one run, so that the clock is of no matter */

typedef struct step_case {
    const char *name;
    uint32_t n_items, n_tokens, n_shared;
} step_case;

typedef struct rig {
    sheaf_attn_options options;
    sheaf__cuda_rules rules;
    sheaf__memory memory;
    sheaf__cuda_step step;
    sheaf_attn_item *items;
    sheaf_kv_view *views;
    uint32_t *rows, *copied;
    unsigned char *table;
    uint32_t n_items, n_blocks;
    uint64_t repeats;
    bool failed;
} rig;

static void plan_steps(void *arg)
{
    rig *r = arg;
    for (uint64_t i = 0; i < r->repeats; i++) {
        r->step.ahead = r->table, r->step.ahead_bytes = r->step.places.bytes;
        if (sheaf__cuda_step_set(&r->step, &r->memory, &r->rules, r->items, r->views,
                                 r->n_items) != SHEAF_OK) {
            r->failed = true;
            return;
        }
        sheaf__cuda_step_write(&r->step, r->views, r->table);
    }
}

static void copy_rows(void *arg)
{
    rig *r = arg;
    for (uint64_t n = 0; n < r->repeats; n++) {
        for (uint32_t i = 0; i < r->n_items; i++)
            memcpy(r->copied + (size_t)i * r->n_blocks, r->views[i].rows,
                   r->n_blocks * sizeof *r->copied);
        __asm__ volatile("" ::"r"(r->copied) : "memory"); /* each copy is made */
    }
}

/* Rows of distinct blocks, shuffled; the first n_common of each sequence are the first one's. */
static void fill_rows(rig *r, uint32_t n_common)
{
    uint32_t n = r->n_items * r->n_blocks;
    bench_shuffled(r->rows, n);
    for (uint32_t i = 1; i < r->n_items; i++)
        memcpy(r->rows + (size_t)i * r->n_blocks, r->rows, n_common * sizeof *r->rows);
}

static bool rig_open(rig *r, const step_case *c, uint64_t repeats)
{
    memset(r, 0, sizeof *r);
    r->n_items = c->n_items, r->n_blocks = (c->n_tokens + BLOCK - 1) / BLOCK;
    r->repeats = repeats;
    r->options = (sheaf_attn_options)SHEAF_ATTN_OPTIONS_INIT;
    r->options.n_q_heads = Q_HEADS, r->options.n_kv_heads = KV_HEADS;
    r->options.key_dim = r->options.value_dim = DIM;
    r->rules = (sheaf__cuda_rules){
        .options = &r->options, .n_processors = 132, .decodes = 1, .prefill_rows = 128};
    sheaf__memory_init(&r->memory, NULL);
    size_t n = (size_t)r->n_items * r->n_blocks;
    r->items = calloc(r->n_items, sizeof *r->items);
    r->views = calloc(r->n_items, sizeof *r->views);
    r->rows = malloc(n * sizeof *r->rows);
    r->copied = malloc(n * sizeof *r->copied);
    if (r->items == NULL || r->views == NULL || r->rows == NULL || r->copied == NULL)
        return false;
    fill_rows(r, c->n_shared / BLOCK);
    for (uint32_t i = 0; i < r->n_items; i++) {
        r->items[i] = (sheaf_attn_item){1, c->n_tokens - 1, c->n_tokens, 0};
        r->views[i] = (sheaf_kv_view){
            .base = (const unsigned char *)r, /* never read */
            .rows = r->rows + (size_t)i * r->n_blocks,
            .n_rows = r->n_blocks,
            .block_tokens = BLOCK,
            .n_tokens = c->n_tokens,
            .n_kv_heads = KV_HEADS,
            .key_dim = DIM,
            .value_dim = DIM,
            .codec_k = SHEAF_CODEC_BF16,
            .codec_v = SHEAF_CODEC_BF16,
        };
    }
    if (sheaf__cuda_step_set(&r->step, &r->memory, &r->rules, r->items, r->views, r->n_items) !=
        SHEAF_OK)
        return false;
    r->table = aligned_alloc(4096, (r->step.places.bytes + 4095) / 4096 * 4096);
    return r->table != NULL;
}

static void rig_close(rig *r)
{
    sheaf__cuda_step_free(&r->step, &r->memory);
    free(r->items);
    free(r->views);
    free(r->rows);
    free(r->copied);
    free(r->table);
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "plan", "what does planning a GPU's step cost on the host?", argc,
                     argv))
        return 2;
    static const step_case cases[] = {
        {"64 x 4k", 64, 4096, 0},
        {"1 x 32k", 1, 32768, 0},
        {"32 x 16k", 32, 16384, 0},
        {"64 sharing 16k, 256 own each", 64, 16384 + 256, 16384},
    };
    static const bench_column columns[] = {
        {"a plan", "us"}, {"copy of its rows", "us"}, {"times the copy", "times"}};
    uint64_t repeats = bench_size(&b, REPEATS, REPEATS, 2);
    bench_table(&b, columns, 3);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        bench_best best = {0};
        bool opened = rig_open(&r, &cases[i], repeats);
        if (opened) bench_compare(&b, (double)repeats, plan_steps, &r, copy_rows, &r, &best);
        if (!opened || r.failed) {
            fprintf(stderr, "bench plan: %s cannot be planned\n", cases[i].name);
            rig_close(&r);
            return 1;
        }
        bench_row(&b, cases[i].name, 1e6 / best.rate, 1e6 / best.ceiling, 1 / best.ratio);
        rig_close(&r);
    }
    bench_note(&b, "32 query heads, 8 KV heads, blocks of 32 in shuffled rows; one thread; "
                   "without the calls of CUDA's that queue the table's copy");
    return bench_end(&b);
}
