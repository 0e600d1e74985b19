/* bench/bench_prefix.c - what does the prefix cache cost? Looking up, inserting, evicting, moving.
 *
 * Marks (they are reported, nothing fails on them): a lookup of 32k tokens against 10,000 siblings at
 * 30 million tokens a second; a block inserted in 1 microsecond beside its content key; evicting
 * costs each entry the same in caches of 1,000, 10,000 and 100,000; saving and loading at 80% of plain
 * write and read; a compacted cache holds at most 1.25 times what it uses.
 *
 * Options: --part lookup|insert|evict|wire|churn (one alone), --folder DIR (a disk to save on; default:
 * here), --seed N.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefix_rig.h"

#define BLOCK        RIG_BLOCK_TOKENS
#define LONG_TOKENS  32768u
#define N_SIBLINGS   10000u
#define CHUNK_TOKENS 512u
#define BATCH        100u /* sequences alive at a time */
#define PIECE        500u /* entries evicted in one call */

/* Blocks of 64 bytes: the tree is measured, not what it holds. */
static const sheaf_layer tiny_layer = {
    .n_kv_heads = 1, .key_dim = 1, .value_dim = 0, .codec_k = SHEAF_CODEC_BF16};

static double least(double a, double b)
{
    return a == 0 || b < a ? b : a;
}

static void *must_have(void *memory)
{
    if (memory == NULL) rig_must(SHEAF_E_NO_MEMORY, "prepare");
    return memory;
}

/* ---- looking up --------------------------------------------------------------------------- */

typedef struct lookup {
    rig r;
    int32_t *run;    /* [LONG_TOKENS], in the cache */
    int32_t *prompt; /* [LONG_TOKENS], looked up */
    uint32_t found;
} lookup;

static void peek(void *arg)
{
    lookup *l = arg;
    const sheaf_prompt prompt = rig_prompt(&l->r, l->prompt, LONG_TOKENS);
    sheaf_match match = SHEAF_MATCH_INIT;
    rig_must(sheaf_prefix_peek(l->r.cache, &prompt, &match), "peek");
    l->found = match.length;
}

static void match(void *arg)
{
    lookup *l = arg;
    const sheaf_prompt prompt = rig_prompt(&l->r, l->prompt, LONG_TOKENS);
    sheaf_match found = SHEAF_MATCH_INIT;
    sheaf_sequence *seq = NULL;
    rig_must(sheaf_prefix_match(l->r.cache, &prompt, &seq, &found), "match");
    sheaf_sequence_destroy(seq);
    l->found = found.length;
}

static void compare(void *arg)
{
    lookup *l = arg;
    volatile int result = memcmp(l->run, l->prompt, LONG_TOKENS * sizeof *l->run);
    (void)result;
}

/* The run, and siblings of its block that begins at `at`, each of which leaves it at a random token. */
static void lookup_fill(lookup *l, uint32_t at, uint32_t n_siblings)
{
    sheaf_sequence *run = NULL, *base = NULL;
    rig_append(&l->r, &run, l->run, LONG_TOKENS);
    rig_publish(&l->r, run);
    sheaf_sequence_destroy(run);
    if (at != 0) rig_append(&l->r, &base, l->run, at);
    for (uint32_t i = 0; i < n_siblings; i++) {
        sheaf_sequence *sibling = NULL;
        int32_t tokens[BLOCK];
        uint32_t same = (uint32_t)(rig_random(&l->r) % BLOCK);
        rig_tokens(&l->r, tokens, BLOCK);
        memcpy(tokens, l->run + at, same * sizeof *tokens);
        if (base != NULL) rig_must(sheaf_sequence_fork(base, &sibling), "fork");
        rig_append(&l->r, &sibling, tokens, BLOCK);
        rig_publish(&l->r, sibling);
        sheaf_sequence_destroy(sibling);
    }
    sheaf_sequence_destroy(base);
}

static void lookup_row(bench *b, lookup *l, const char *name, void (*fn)(void *))
{
    bench_best best;
    bench_compare(b, LONG_TOKENS, fn, l, compare, l, &best);
    bench_row(b, name, best.rate * 1e-6, best.seconds * 1e6, best.ratio, l->found * 1.0);
}

/* leaves: the prompt leaves the run inside its last block, too. */
static void lookup_case(bench *b, uint64_t seed, uint32_t at, const char *where)
{
    lookup l;
    rig_open(&l.r, &tiny_layer, 1, 64ull << 20, 1024, 1, seed);
    l.run = must_have(malloc(LONG_TOKENS * sizeof *l.run));
    l.prompt = must_have(malloc(LONG_TOKENS * sizeof *l.prompt));
    rig_tokens(&l.r, l.run, LONG_TOKENS);
    memcpy(l.prompt, l.run, LONG_TOKENS * sizeof *l.run);
    l.prompt[LONG_TOKENS - 5] = 150001; /* the last block is copied from the nearest sibling */
    lookup_fill(&l, at, b->quick ? N_SIBLINGS / 10 : N_SIBLINGS);
    char name[64];
    snprintf(name, sizeof name, "peek, siblings of the %s block", where);
    lookup_row(b, &l, name, peek);
    snprintf(name, sizeof name, "match and destroy, the same");
    lookup_row(b, &l, name, match);
    rig_close(&l.r);
    free(l.run);
    free(l.prompt);
}

static void lookup_rows(bench *b, uint64_t seed)
{
    static const bench_column columns[] = {{"looked up", "M tokens/s"},
                                           {"one lookup", "us"},
                                           {"of memcmp", "ratio"},
                                           {"found", "tokens"}};
    bench_table(b, columns, 4);
    lookup_case(b, seed, LONG_TOKENS - BLOCK, "last");
    lookup_case(b, seed, 0, "first");
    bench_note(b, "%u tokens against %u siblings; mark: 30 M tokens/s", LONG_TOKENS,
               b->quick ? N_SIBLINGS / 10 : N_SIBLINGS);
}

/* ---- inserting ---------------------------------------------------------------------------- */

typedef struct insertion {
    double publish, key; /* seconds a block */
} insertion;

/* Keys of n blocks: one after another as publishing computes them, or each the first after the
 * namespace. */
static double time_keys(const rig *r, const int32_t *tokens, uint32_t n, bool chained)
{
    sheaf_key key = r->space;
    double start = rig_cpu_seconds();
    for (uint32_t i = 0; i < n; i++)
        rig_must(sheaf_key_next(chained ? &key : &r->space, tokens + (uint64_t)i * BLOCK, BLOCK,
                                &key),
                 "make a key");
    return rig_cpu_seconds() - start;
}

/* A run of n blocks, published in pieces of `chunk` tokens as a prefill does. */
static void insert_run(rig *r, uint32_t n, uint32_t chunk, insertion *best)
{
    int32_t *tokens = must_have(malloc((uint64_t)n * BLOCK * sizeof *tokens));
    rig_tokens(r, tokens, n * BLOCK);
    sheaf_sequence *seq = NULL;
    double seconds = 0;
    for (uint32_t at = 0; at < n * BLOCK; at += chunk) {
        rig_append(r, &seq, tokens + at, chunk);
        double start = rig_cpu_seconds();
        rig_publish(r, seq);
        seconds += rig_cpu_seconds() - start;
    }
    best->publish = least(best->publish, seconds / n);
    best->key = least(best->key, time_keys(r, tokens, n, true) / n);
    sheaf_sequence_destroy(seq);
    rig_reset(r);
    free(tokens);
}

/* n entries of one block each, all siblings, published soon after they were computed. */
static void insert_siblings(rig *r, uint32_t n, insertion *best)
{
    int32_t *tokens = must_have(malloc((uint64_t)n * BLOCK * sizeof *tokens));
    double seconds = 0;
    rig_tokens(r, tokens, n * BLOCK);
    for (uint32_t at = 0; at < n; at += BATCH) {
        sheaf_sequence *seqs[BATCH] = {NULL};
        for (uint32_t i = 0; i < BATCH; i++)
            rig_append(r, &seqs[i], tokens + (uint64_t)(at + i) * BLOCK, BLOCK);
        double start = rig_cpu_seconds();
        for (uint32_t i = 0; i < BATCH; i++) rig_publish(r, seqs[i]);
        seconds += rig_cpu_seconds() - start;
        for (uint32_t i = 0; i < BATCH; i++) sheaf_sequence_destroy(seqs[i]);
    }
    best->publish = least(best->publish, seconds / n);
    best->key = least(best->key, time_keys(r, tokens, n, false) / n);
    rig_reset(r);
    free(tokens);
}

static void insert_row(bench *b, const char *name, const insertion *best)
{
    double beside = (best->publish - best->key) * 1e9;
    bench_row(b, name, best->publish * 1e9, best->key * 1e9, beside, beside / 1000);
}

static void insert_rows(bench *b, uint64_t seed)
{
    static const bench_column columns[] = {{"publish a block", "ns"},
                                           {"its content key", "ns"},
                                           {"beside the key", "ns"},
                                           {"of the mark", "ratio"}};
    bench_table(b, columns, 4);
    uint32_t repeats = b->quick ? 3 : 10, n = b->quick ? N_SIBLINGS / 10 : N_SIBLINGS;
    insertion whole = {0}, chunks = {0}, siblings = {0};
    rig r;
    rig_open(&r, &tiny_layer, 1, 64ull << 20, 1024, 64, seed);
    for (uint32_t i = 0; i < repeats; i++) {
        insert_run(&r, LONG_TOKENS / BLOCK, LONG_TOKENS, &whole);
        insert_run(&r, LONG_TOKENS / BLOCK, CHUNK_TOKENS, &chunks);
        insert_siblings(&r, n, &siblings);
    }
    rig_close(&r);
    insert_row(b, "a run of 1,024 blocks", &whole);
    insert_row(b, "the same in chunks of 512 tokens", &chunks);
    insert_row(b, "entries of one block, siblings", &siblings);
    bench_note(b, "processor time; mark: 1,000 ns beside the key; a publication compares all "
                  "earlier tokens");
}

/* ---- evicting ----------------------------------------------------------------------------- */

/* n entries of a block, last used in a random order. */
static void fill_entries(rig *r, uint32_t n)
{
    int32_t *tokens = must_have(malloc((uint64_t)n * BLOCK * sizeof *tokens));
    uint32_t *order = must_have(malloc(n * sizeof *order));
    rig_tokens(r, tokens, n * BLOCK);
    rig_shuffle(r, order, n);
    for (uint32_t i = 0; i < n; i++) {
        sheaf_sequence *seq = NULL;
        rig_append(r, &seq, tokens + (uint64_t)i * BLOCK, BLOCK);
        rig_publish(r, seq);
        sheaf_sequence_destroy(seq);
    }
    for (uint32_t i = 0; i < n; i++) {
        const sheaf_prompt prompt = rig_prompt(r, tokens + (uint64_t)order[i] * BLOCK, BLOCK);
        sheaf_sequence *seq = NULL;
        rig_must(sheaf_prefix_match(r->cache, &prompt, &seq, NULL), "match");
        sheaf_sequence_destroy(seq);
    }
    free(order);
    free(tokens);
}

/* Evicts n entries, a piece of them at a time; best: of each piece the least seconds so far. */
static void evict_entries(rig *r, uint32_t n, double *best)
{
    fill_entries(r, n);
    for (uint32_t at = 0; at < n; at += PIECE) {
        uint64_t freed = 0, bytes = at + PIECE < n ? PIECE * r->block_bytes : UINT64_MAX;
        double start = rig_cpu_seconds();
        rig_must(sheaf_prefix_evict(r->cache, bytes, &freed), "evict");
        best[at / PIECE] = least(best[at / PIECE], rig_cpu_seconds() - start);
        if (freed != PIECE * r->block_bytes) rig_must(SHEAF_FULL, "evict what was asked for");
    }
}

/* Short pieces, as many times in each size and the sizes in turns: so that what else runs on the machine
 * tells as much in a small cache as in a large one. */
static void evict_rows(bench *b, uint64_t seed)
{
    static const bench_column columns[] = {{"all, an entry", "ns"},
                                           {"against 1,000", "ratio"},
                                           {"first 500, each", "ns"},
                                           {"against 1,000", "ratio"}};
    static const struct {
        uint32_t n;
        const char *name;
    } sizes[] = {
        {1000, "1,000 entries"}, {10000, "10,000 entries"}, {100000, "100,000 entries"}};
    double *best[3], all[3] = {0};
    for (uint32_t s = 0; s < 3; s++)
        best[s] = must_have(calloc(sizes[s].n / PIECE, sizeof *best[s]));
    bench_table(b, columns, 4);
    rig r;
    rig_open(&r, &tiny_layer, 1, 64ull << 20, 1024, 256, seed);
    for (uint32_t i = 0; i < (b->quick ? 4 : 16); i++)
        for (uint32_t s = 0; s < 3; s++) evict_entries(&r, sizes[s].n, best[s]);
    rig_close(&r);
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t i = 0; i < sizes[s].n / PIECE; i++) all[s] += best[s][i] / sizes[s].n;
        bench_row(b, sizes[s].name, all[s] * 1e9, all[s] / all[0], best[s][0] / PIECE * 1e9,
                  best[s][0] / best[0][0]);
    }
    for (uint32_t s = 0; s < 3; s++) free(best[s]);
    bench_note(b,
               "entries of one block, siblings, last used in a random order; mark: 10,000 as "
               "1,000");
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "prefix", "what does the prefix cache cost?", argc, argv)) return 2;
    uint64_t seed = bench_option_u32(&b, "--seed", 1);
    const char *folder = bench_option_text(&b, "--folder", ".");
    bench_note(&b, "seed     %llu", (unsigned long long)seed);
    const char *part = bench_option_text(&b, "--part", "");
    bool all = part[0] == 0;
    if (all || strcmp(part, "lookup") == 0) lookup_rows(&b, seed);
    if (all || strcmp(part, "insert") == 0) insert_rows(&b, seed);
    if (all || strcmp(part, "evict") == 0) evict_rows(&b, seed);
    if (all || strcmp(part, "wire") == 0) bench_wire_rows(&b, seed, folder);
    if (all || strcmp(part, "churn") == 0) bench_churn_rows(&b, seed);
    return bench_end(&b);
}
