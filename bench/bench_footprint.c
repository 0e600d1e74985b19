/* bench/bench_footprint.c - what memory do eight distinct prompts of 4,000 tokens take, paged and dense?
 *
 * Each way runs in a process of its own, on random:qwen3-0.6b with K and V in bf16; what it takes is
 * read from outside, as the system counts it (VmRSS, VmHWM of /proc/PID/status):
 *
 *   paged          blocks of a pool
 *   dense grown    a buffer a sequence and layer, grown by reallocation to twice as much, all copied
 *   dense exact    a buffer of just the length that the sequence will reach, known before
 *
 * The prompts have 3,900 to 4,100 tokens and grow together, 512 positions of each in turn. Their K
 * and V are written as the forward pass writes them, but of random numbers, not computed (computing
 * 32,000 tokens takes minutes and changes no byte of what is held); the last 64 of each are
 * computed: one step of 512 rows over all eight sequences at their full depth, then eight steps of
 * one token each, so that the step's buffers are those of real steps.
 *
 *   peak           VmHWM, less VmRSS when the model was open and had made no cache
 *   live           bytes of K and V of the tokens that the sequences have at the end
 *   step           what VmHWM rose by in the steps, less what was committed for K and V meanwhile
 *   committed      bytes of slabs, or of buffers: what a device takes that has no lazy pages
 *   times live     (peak - step - one slab) / live; dense has no slab. The mark is at most 1.05
 *
 * Options: --model SPEC, --prompts N, --prompt-tokens N.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model_rig.h"

#define MIB          (1024.0 * 1024.0)
#define MAX_PROMPTS  8u
#define TURN         512u /* positions that a sequence grows by before the next one does */
#define STEP_TOKENS  64u  /* of each prompt, computed */
#define DECODE_STEPS 8u
#define N_WAYS       3u

enum { PAGED, GROWN, EXACT };
static const char *const ways[N_WAYS] = {"paged", "dense grown", "dense exact"};

typedef struct options {
    const char *model;
    uint32_t n_prompts, n_tokens;
} options;

/* What a child tells when it is done. */
typedef struct told {
    uint64_t live, slab, committed_before, committed, copied;
} told;

/* ---- the child ---------------------------------------------------------------------------- */

typedef struct child {
    const bench *b;
    const options *o;
    uint32_t way;
    sheaf__model *model;
    sheaf__kv kv[MAX_PROMPTS];
    uint32_t lengths[MAX_PROMPTS];
    float *logits; /* [MAX_PROMPTS, vocab] */
} child;

/* Distinct lengths about n. */
static uint32_t length_of(const options *o, uint32_t i)
{
    uint32_t spread = o->n_tokens / 40;
    return o->n_tokens - spread + (i * 5 % MAX_PROMPTS) * 2 * spread / (MAX_PROMPTS - 1);
}

static void open_kv(child *c, uint32_t i)
{
    if (c->way != EXACT) {
        model_must(c->b, sheaf__model_new_kv(c->model, &c->kv[i]), "a cache");
        return;
    }
    c->kv[i].backend = SHEAF__KV_DENSE;
    model_must(c->b,
               sheaf__dense_create(&c->model->memory, c->model->layers,
                                   c->model->config.n_layers, c->model->options.block_tokens,
                                   c->lengths[i] + DECODE_STEPS, &c->kv[i].dense),
               "a buffer");
}

/* All prompts together, a turn each, up to what is computed. */
static void fill(child *c)
{
    void *numbers = model_numbers(c->b, c->model);
    for (uint32_t at = 0; at < c->o->n_tokens * 2; at += TURN)
        for (uint32_t i = 0; i < c->o->n_prompts; i++) {
            uint32_t end = c->lengths[i] - STEP_TOKENS;
            if (at >= end) continue;
            model_fill(c->b, c->model, numbers, &c->kv[i], end - at < TURN ? end - at : TURN);
        }
    free(numbers);
}

static void step(child *c, uint32_t n_tokens)
{
    int32_t tokens[STEP_TOKENS];
    sheaf__forward_item items[MAX_PROMPTS];
    for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = model_token(c->model, i);
    for (uint32_t i = 0; i < c->o->n_prompts; i++) {
        model_must(c->b, sheaf__kv_extend(&c->kv[i], n_tokens), "reserve");
        items[i] = (sheaf__forward_item){
            .kv = &c->kv[i], .tokens = tokens, .n_tokens = n_tokens, .n_logits = 1};
    }
    model_must(c->b, sheaf__forward_run(c->model->forward, items, c->o->n_prompts, c->logits),
               "step");
    for (uint32_t i = 0; i < c->o->n_prompts; i++)
        model_must(c->b, sheaf__kv_commit(&c->kv[i], n_tokens, tokens), "commit");
}

static uint64_t committed_bytes(const child *c)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    uint64_t bytes = 0;
    if (c->way == PAGED) {
        model_must(c->b, sheaf_pool_stats_read(c->model->pool, &stats), "statistics");
        return stats.bytes_reserved;
    }
    for (uint32_t i = 0; i < c->o->n_prompts; i++) bytes += sheaf__dense_bytes(c->kv[i].dense);
    return bytes;
}

/* Says that a point is reached, and waits until it has been looked at. */
static void reached(const void *what, size_t size)
{
    char go;
    if (write(STDOUT_FILENO, what, size) != (ssize_t)size || read(STDIN_FILENO, &go, 1) != 1)
        exit(1);
}

static told tell(const child *c, uint64_t before)
{
    told t = {.committed_before = before, .committed = committed_bytes(c)};
    for (uint32_t i = 0; i < c->o->n_prompts; i++) {
        t.live += model_token_bytes(c->model) * sheaf__kv_length(&c->kv[i]);
        if (c->way != PAGED) t.copied += sheaf__dense_bytes_copied(c->kv[i].dense);
    }
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    if (c->way == PAGED) {
        model_must(c->b, sheaf_pool_group_info(c->model->pool, 0, &info), "the pool");
        t.slab = info.slab_bytes;
    }
    return t;
}

/* Never returns. Three points: the model is open, K and V are there, the steps are done. */
static _Noreturn void be_child(const bench *b, const options *o, uint32_t way)
{
    child c = {.b = b, .o = o, .way = way};
    const sheaf__model_options mo = {.n_threads = sheaf_threads_count(b->threads),
                                     .codec_k = SHEAF_CODEC_BF16,
                                     .codec_v = SHEAF_CODEC_BF16,
                                     .kv_backend =
                                         way == PAGED ? SHEAF__KV_PAGED : SHEAF__KV_DENSE};
    c.model = model_open(b, o->model, &mo);
    c.logits = calloc((size_t)MAX_PROMPTS * c.model->config.vocab, sizeof *c.logits);
    if (c.logits == NULL) model_must(b, SHEAF_E_NO_MEMORY, "logits");
    const told nothing = {0};
    reached(&nothing, sizeof nothing);
    for (uint32_t i = 0; i < o->n_prompts; i++) {
        c.lengths[i] = length_of(o, i);
        open_kv(&c, i);
    }
    fill(&c);
    const uint64_t before = committed_bytes(&c);
    reached(&nothing, sizeof nothing);
    step(&c, STEP_TOKENS);
    for (uint32_t i = 0; i < DECODE_STEPS; i++) step(&c, 1);
    const told t = tell(&c, before);
    reached(&t, sizeof t);
    exit(0);
}

/* ---- the parent --------------------------------------------------------------------------- */

/* A line "NAME:  123 kB" of a process's status, in bytes. */
static double status_bytes(pid_t pid, const char *name)
{
    char path[64], line[128];
    double kib = NAN;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0) kib = strtod(line + strlen(name) + 1, NULL);
    if (file != NULL) fclose(file);
    return kib * 1024;
}

typedef struct process {
    pid_t pid;
    int to, from; /* its standard input and output */
} process;

static bool start(const bench *b, const options *o, uint32_t way, process *p)
{
    int in[2], out[2];
    char way_text[16], prompts[16], tokens[16], threads[16];
    if (pipe(in) != 0 || pipe(out) != 0) return false;
    snprintf(way_text, sizeof way_text, "%u", way);
    snprintf(prompts, sizeof prompts, "%u", o->n_prompts);
    snprintf(tokens, sizeof tokens, "%u", o->n_tokens);
    snprintf(threads, sizeof threads, "%u", sheaf_threads_count(b->threads));
    p->pid = fork();
    if (p->pid < 0) return false;
    if (p->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        close(out[0]);
        execl("/proc/self/exe", b->argv[0], "--child", way_text, "--model", o->model,
              "--prompts", prompts, "--prompt-tokens", tokens, "--threads", threads,
              "--no-head", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p->to = in[1];
    p->from = out[0];
    return true;
}

/* Waits for the next point, reads a figure there, and lets the child go on. */
static bool look(const process *p, const char *figure, told *t, double *bytes)
{
    if (read(p->from, t, sizeof *t) != (ssize_t)sizeof *t) return false;
    *bytes = status_bytes(p->pid, figure);
    return write(p->to, "g", 1) == 1;
}

static bool measure(bench *b, const options *o, uint32_t way, double *paged_peak)
{
    process p;
    told t;
    double open, filled, peak;
    int code = 1;
    if (!start(b, o, way, &p)) return false;
    bool ok = look(&p, "VmRSS", &t, &open) && look(&p, "VmHWM", &t, &filled) &&
              look(&p, "VmHWM", &t, &peak);
    close(p.to);
    close(p.from);
    ok = waitpid(p.pid, &code, 0) == p.pid && code == 0 && ok;
    if (!ok) return false;
    double live = (double)t.live, slab = (double)t.slab;
    double rise = peak - filled - (double)(t.committed - t.committed_before);
    double steps = rise > 0 ? rise : 0, above = peak - open;
    if (way == PAGED) *paged_peak = above;
    bench_row(b, ways[way], above / MIB, live / MIB, steps / MIB, (double)t.committed / MIB,
              slab / MIB, (above - steps - slab) / live, above / *paged_peak,
              (double)t.copied / MIB);
    return true;
}

int main(int argc, char **argv)
{
    static const bench_column columns[] = {{"peak", "MiB"},
                                           {"live K and V", "MiB"},
                                           {"the step's buffers", "MiB"},
                                           {"committed", "MiB"},
                                           {"a slab", "MiB"},
                                           {"times live K and V", "times"},
                                           {"times the paged peak", "times"},
                                           {"copied by growth", "MiB"}};
    bench b;
    if (!bench_begin(&b, "footprint", "what memory do eight distinct prompts take?", argc,
                     argv))
        return 2;
    const char *model = b.tiny    ? "models/sheaf-demo"
                        : b.quick ? "random:qwen3-0.6b:layers=4"
                                  : "random:qwen3-0.6b";
    options o = {.model = bench_option_text(&b, "--model", model),
                 .n_prompts = bench_option_u32(&b, "--prompts", MAX_PROMPTS),
                 .n_tokens = bench_option_u32(&b, "--prompt-tokens",
                                              (uint32_t)bench_size(&b, 4000, 1500, 120))};
    uint32_t way = bench_option_u32(&b, "--child", N_WAYS);
    if (o.n_prompts < 1 || o.n_prompts > MAX_PROMPTS || o.n_tokens < 2 * STEP_TOKENS - 8) {
        fprintf(stderr, "bench_footprint: 1 to %u prompts of %u tokens or more\n", MAX_PROMPTS,
                2 * STEP_TOKENS - 8);
        return 2;
    }
    if (way < N_WAYS) be_child(&b, &o, way);
    double paged_peak = NAN;
    bool ok = true;
    bench_table(&b, columns, 8);
    for (way = 0; way < N_WAYS; way++) ok = measure(&b, &o, way, &paged_peak) && ok;
    if (!ok) fprintf(stderr, "bench_footprint: a process ended early\n");
    bench_note(
        &b,
        "%s: %u prompts of about %u tokens; all but the last %u of each written, not computed",
        o.model, o.n_prompts, o.n_tokens, STEP_TOKENS);
    bench_note(
        &b,
        "times live K and V: peak above the open model, less the steps' buffers and a slab");
    int code = bench_end(&b);
    return ok ? code : 1;
}
