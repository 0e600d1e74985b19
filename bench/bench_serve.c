/* bench/bench_serve.c - how fast does a server answer many clients, and what memory does it take?
 *
 * Scenarios, of N clients, prompts of P tokens and answers of A:
 *   idle                 short prompts one after another: what a request costs alone, and an idle server
 *   shared_prefix_burst  N at once, one prefix of P and a question of each one's own
 *   distinct_burst       N at once, each a prompt of its own
 *   sequential_share     as shared_prefix_burst, one after another
 *   multiturn            N conversations at once; each turn has all that was said, answers too
 *   churn                3 N visits of 2 N sessions of P, some often, N / 4 at once, in a prompt cache
 *                        with room for N / 2 of them
 *
 * `sheaf serve` of the same build is started anew for each scenario and backend and asked the same
 * prompts, after one request that is not measured; answers are greedy and exactly A long. With --url any
 * server of OpenAI's API is asked; then what only our statistics tell is a dash, prompts are sized by
 * four characters a token, answers may end before A, and churn's cache is as large as it is.
 *
 * Options: --model DIR|random:NAME (default models/sheaf-demo; with --url the model's name there),
 * --backend paged|dense|both, --scenario NAME[,NAME...], --clients N, --prompt-tokens N,
 * --answer-tokens N, --chat (ask /chat/completions), --seed N, --url http://HOST:PORT[/v1],
 * --api-key KEY.
 *
 * Time to the first token is measured from before the connection is made to the first text, or token:
 * random models are asked for log-probabilities, since what they tell is often no text. Percentiles are
 * of all answers of a scenario. Tokens a second are those of all answers over the scenario's whole time.
 * Memory is the most that was seen: resident by the system (mapped weights included), reserved and in
 * use, of K and V, by the server's statistics every 10 ms.
 */
#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "serve_load.h"
#include "serve_program.h"
#include "serve_watch.h"

#define MIB         (1024.0 * 1024.0)
#define ROOM_TOKENS 64u /* more than a session's question and a partial block */
#define N_BACKENDS  2u

static const char *const backends[N_BACKENDS] = {"paged", "dense"};

typedef struct options {
    const char *url, *model, *api_key, *scenarios;
    bool backends[N_BACKENDS];
    bool chat;
    uint32_t n_clients, prompt_tokens, answer_tokens, n_turns;
    uint64_t seed;
} options;

/* NAN: not known. */
typedef struct figures {
    double first_p50, first_p95;       /* seconds */
    double rate;                       /* answer tokens a second */
    double computed, reused;           /* tokens */
    double resident, reserved, in_use; /* bytes, the most */
} figures;

static _Noreturn void give_up(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "bench_serve: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

/* ---- figures ------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By nearest rank, of sorted values. */
static double percentile(const double *values, uint32_t n, double p)
{
    uint32_t rank = (uint32_t)ceil(p * n);
    return n == 0 ? (double)NAN : values[rank == 0 ? 0 : rank - 1];
}

static void must_be_answered(const serve_answer *a, const char *scenario)
{
    if (a->status != 200 || !a->done)
        give_up("%s: an answer failed: status %u, %s", scenario, a->status,
                a->error[0] != 0 ? a->error : "the stream has no end");
}

static figures read_answers(const serve_load *load, uint32_t run, const char *scenario)
{
    double *firsts = calloc((size_t)load->n_conversations * SERVE_MAX_TURNS, sizeof *firsts);
    double start = INFINITY, last = 0, tokens = 0, cached = 0;
    bool knows_cached = false;
    uint32_t n = 0;
    if (firsts == NULL) give_up("out of memory");
    for (uint32_t i = 0; i < load->n_conversations; i++) {
        const serve_conversation *c = &load->conversations[i];
        for (uint32_t turn = 0; turn < c->n_turns; turn++) {
            const serve_answer *a = &c->answers[run][turn];
            must_be_answered(a, scenario);
            start = fmin(start, a->start);
            last = fmax(last, a->last);
            tokens += (double)(a->has_usage ? a->answer_tokens : a->n_events);
            cached += (double)a->cached_tokens;
            knows_cached = knows_cached || a->has_cached;
            if (a->n_events != 0) firsts[n++] = a->first - a->start;
        }
    }
    qsort(firsts, n, sizeof *firsts, by_value);
    const double none = (double)NAN;
    figures f = {.first_p50 = percentile(firsts, n, 0.5),
                 .first_p95 = percentile(firsts, n, 0.95),
                 .rate = tokens / (last - start),
                 .computed = none,
                 .reused = knows_cached ? cached : none,
                 .resident = none,
                 .reserved = none,
                 .in_use = none};
    free(firsts);
    return f;
}

static void print_row(bench *b, const char *name, const figures *f)
{
    bench_row(b, name, f->first_p50 * 1e3, f->first_p95 * 1e3, f->rate, f->computed, f->reused,
              f->resident / MIB, f->reserved / MIB, f->in_use / MIB);
}

/* One request that is not measured: what the first one alone pays is none of the scenario's. */
static void warm_up(const serve_asking *asking, const char *scenario)
{
    char text[] = "Good morning.";
    serve_conversation first = {.turns = {text}, .n_turns = 1};
    serve_load load = {.conversations = &first, .n_conversations = 1, .n_at_once = 1};
    if (!serve_load_run(&load, asking, 0)) give_up("%s: no threads", scenario);
    must_be_answered(&first.answers[0][0], scenario);
    serve_answer_clear(&first.answers[0][0]);
}

/* One load on one server. */
static figures measure(serve_load *load, const serve_asking *asking, uint32_t run,
                       const char *scenario)
{
    serve_watch watch;
    warm_up(asking, scenario);
    serve_watch_begin(&watch, asking->target);
    if (!serve_load_run(load, asking, run)) give_up("%s: no threads", scenario);
    serve_watch_end(&watch);
    figures f = read_answers(load, run, scenario);
    if (watch.known) {
        f.computed = (double)watch.computed;
        f.reused = (double)watch.reused;
        f.reserved = (double)watch.reserved;
        f.in_use = (double)watch.in_use;
    }
    return f;
}

/* ---- servers of ours ---------------------------------------------------------------------- */

static void start(bench *b, const options *o, serve_program *p, const char *backend,
                  uint64_t cache_bytes)
{
    char threads[16], parallel[16], capacity[32];
    const char *flags[16] = {"-m",    o->model,     "--kv-backend", backend,       "--threads",
                             threads, "--parallel", parallel,       "--log-level", "error"};
    snprintf(threads, sizeof threads, "%u", sheaf_threads_count(b->threads));
    snprintf(parallel, sizeof parallel, "%u", o->n_clients);
    snprintf(capacity, sizeof capacity, "%llu", (unsigned long long)cache_bytes);
    if (cache_bytes != 0) {
        flags[10] = "--prompt-cache-capacity-bytes";
        flags[11] = capacity;
    }
    if (!serve_program_start(p, flags)) give_up("the server does not start");
}

static void stop(serve_program *p)
{
    if (!serve_program_stop(p)) give_up("the server did not end well");
}

/* Makes the texts of all chosen scenarios, and finds what a token's K and V take. */
static uint64_t prepare(bench *b, const options *o, const bool *chosen, serve_load *loads)
{
    serve_program p;
    serve_texts texts = {.tokenizer = &p.target};
    uint64_t block_bytes = 0, block_tokens = 1;
    start(b, o, &p, "paged", 0);
    for (uint32_t i = 0; i < SERVE_SCENARIOS; i++) {
        const serve_plan plan = {i, o->n_clients, o->prompt_tokens, o->n_turns};
        texts.seed = o->seed * SERVE_SCENARIOS + i;
        if (chosen[i] && !serve_load_make(&loads[i], &texts, &plan))
            give_up("the server counts no tokens");
    }
    json_t *stats = serve_get(&p.target, "/v1/cache/stats");
    serve_number(stats, "block_bytes", &block_bytes);
    serve_number(stats, "block_size", &block_tokens);
    json_decref(stats);
    stop(&p);
    return block_bytes / block_tokens;
}

static figures measure_backend(bench *b, const options *o, uint32_t scenario, uint32_t backend,
                               serve_load *load, uint64_t cache_bytes)
{
    const char *name = serve_scenario_name(scenario);
    serve_program p;
    char row[64];
    start(b, o, &p, backends[backend], backend == 0 ? cache_bytes : 0);
    const serve_asking asking = {.target = &p.target,
                                 .answer_tokens = o->answer_tokens,
                                 .chat = o->chat,
                                 .ignore_eos = true,
                                 .logprobs = strncmp(o->model, "random:", 7) == 0};
    figures f = measure(load, &asking, backend, name);
    f.resident = (double)serve_program_peak(&p);
    stop(&p);
    snprintf(row, sizeof row, "%s, %s", name, backends[backend]);
    print_row(b, row, &f);
    return f;
}

static void print_ratios(bench *b, const bool *chosen, figures found[][N_BACKENDS])
{
    static const bench_column columns[] = {
        {"first token p50", "ratio"}, {"first token p95", "ratio"}, {"answers", "ratio"},
        {"computed", "ratio"},        {"peak resident", "ratio"},   {"K, V in use", "ratio"}};
    bench_table(b, columns, 6);
    for (uint32_t i = 0; i < SERVE_SCENARIOS; i++) {
        const figures *paged = &found[i][0], *dense = &found[i][1];
        char row[64];
        if (!chosen[i]) continue;
        snprintf(row, sizeof row, "%s, paged to dense", serve_scenario_name(i));
        bench_row(b, row, paged->first_p50 / dense->first_p50,
                  paged->first_p95 / dense->first_p95, paged->rate / dense->rate,
                  paged->computed / dense->computed, paged->resident / dense->resident,
                  paged->in_use / dense->in_use);
    }
}

static void measure_ours(bench *b, const options *o, const bool *chosen)
{
    serve_load loads[SERVE_SCENARIOS] = {{0}};
    figures found[SERVE_SCENARIOS][N_BACKENDS];
    uint32_t n_answers = 0;
    bool equal = true, both = o->backends[0] && o->backends[1];
    uint64_t token_bytes = prepare(b, o, chosen, loads);
    uint64_t session_bytes = (o->prompt_tokens + o->answer_tokens + ROOM_TOKENS) * token_bytes;
    for (uint32_t i = 0; i < SERVE_SCENARIOS; i++) {
        uint64_t cache_bytes =
            i == SERVE_CHURN ? serve_churn_kept(o->n_clients) * session_bytes : 0;
        uint32_t n = 0;
        for (uint32_t k = 0; chosen[i] && k < N_BACKENDS; k++)
            if (o->backends[k])
                found[i][k] = measure_backend(b, o, i, k, &loads[i], cache_bytes);
        if (chosen[i] && both && !serve_load_equal(&loads[i], &n)) {
            equal = false;
            bench_note(b, "%s: the backends tell different answers", serve_scenario_name(i));
        }
        n_answers += n;
    }
    if (both)
        bench_note(b, "answers equal on both backends: %s (%u answers)", equal ? "yes" : "no",
                   n_answers);
    if (both) print_ratios(b, chosen, found);
    for (uint32_t i = 0; i < SERVE_SCENARIOS; i++) serve_load_clear(&loads[i]);
}

/* ---- any server --------------------------------------------------------------------------- */

/* The first model that the server lists. */
static json_t *find_model(const serve_target *target)
{
    char path[512];
    snprintf(path, sizeof path, "%s/models", target->base);
    json_t *list = serve_get(target, path);
    json_t *id = json_object_get(json_array_get(json_object_get(list, "data"), 0), "id");
    if (!json_is_string(id)) give_up("%s lists no model: give --model", path);
    json_incref(id);
    json_decref(list);
    return id;
}

static void measure_url(bench *b, const options *o, const bool *chosen)
{
    serve_target target;
    if (!serve_target_parse(&target, o->url))
        give_up("--url wants http://HOST:PORT[/v1], not \"%s\"", o->url);
    target.api_key = o->api_key;
    json_t *model = o->model != NULL ? json_string(o->model) : find_model(&target);
    const serve_asking asking = {.target = &target,
                                 .model = json_string_value(model),
                                 .answer_tokens = o->answer_tokens,
                                 .chat = o->chat};
    bench_note(b, "model    %s", asking.model);
    for (uint32_t i = 0; i < SERVE_SCENARIOS; i++) {
        const serve_plan plan = {i, o->n_clients, o->prompt_tokens, o->n_turns};
        serve_texts texts = {.seed = o->seed * SERVE_SCENARIOS + i};
        serve_load load = {0};
        if (!chosen[i]) continue;
        if (!serve_load_make(&load, &texts, &plan)) give_up("no texts");
        figures f = measure(&load, &asking, 0, serve_scenario_name(i));
        print_row(b, serve_scenario_name(i), &f);
        serve_load_clear(&load);
    }
    json_decref(model);
}

/* ---- options ------------------------------------------------------------------------------ */

static void choose_scenarios(const char *names, bool *chosen)
{
    for (const char *at = names; *at != 0;) {
        size_t n = strcspn(at, ",");
        uint32_t i = 0;
        while (i < SERVE_SCENARIOS && (strlen(serve_scenario_name(i)) != n ||
                                       memcmp(serve_scenario_name(i), at, n) != 0))
            i++;
        if (i == SERVE_SCENARIOS) give_up("no scenario is called \"%.*s\"", (int)n, at);
        chosen[i] = true;
        at += n + (at[n] == ',');
    }
    for (uint32_t i = 0; *names == 0 && i < SERVE_SCENARIOS; i++) chosen[i] = true;
}

static void read_options(bench *b, options *o)
{
    o->url = bench_option_text(b, "--url", NULL);
    const char *backend = o->url != NULL ? "both" : bench_option_text(b, "--backend", "both");
    o->model = bench_option_text(b, "--model", o->url != NULL ? NULL : "models/sheaf-demo");
    o->api_key = o->url != NULL ? bench_option_text(b, "--api-key", NULL) : NULL;
    o->scenarios = bench_option_text(b, "--scenario", "");
    o->chat = bench_option_flag(b, "--chat");
    o->n_clients = bench_option_u32(b, "--clients", b->quick ? 3 : 8);
    o->prompt_tokens = bench_option_u32(b, "--prompt-tokens", b->quick ? 96 : 1024);
    o->answer_tokens = bench_option_u32(b, "--answer-tokens", b->quick ? 6 : 32);
    o->n_turns = b->quick ? 2 : SERVE_MAX_TURNS;
    /* a server that goes on from run to run must not know the prompts yet */
    o->seed = bench_option_u32(b, "--seed", o->url != NULL ? (uint32_t)time(NULL) : 1);
    o->backends[0] = strcmp(backend, "dense") != 0;
    o->backends[1] = strcmp(backend, "paged") != 0;
    if (o->backends[0] && o->backends[1] && strcmp(backend, "both") != 0)
        give_up("--backend wants paged, dense or both, not \"%s\"", backend);
    if (o->n_clients == 0 || o->n_clients > 1024 || o->prompt_tokens < 16 ||
        o->prompt_tokens > 1 << 20 || o->answer_tokens == 0 || o->answer_tokens > 1 << 20)
        give_up("wanted are 1 to 1,024 clients, prompts of 16 tokens or more, answers of 1 or "
                "more");
}

int main(int argc, char **argv)
{
    static const bench_column columns[] = {{"first token p50", "ms"}, {"first token p95", "ms"},
                                           {"answers", "tokens/s"},   {"computed", "tokens"},
                                           {"reused", "tokens"},      {"peak resident", "MiB"},
                                           {"K, V reserved", "MiB"},  {"K, V in use", "MiB"}};
    bool chosen[SERVE_SCENARIOS] = {false};
    double busy[1] = {0};
    options o;
    bench b;
    if (!bench_begin(
            &b, "serve",
            "how fast does a server answer many clients, and what memory does it take?", argc,
            argv))
        return 2;
    read_options(&b, &o);
    choose_scenarios(o.scenarios, chosen);
    bench_note(&b, "seed     %llu", (unsigned long long)o.seed);
    bench_note(&b, "load     %u clients, prompts of %u tokens, answers of %u", o.n_clients,
               o.prompt_tokens, o.answer_tokens);
    if (getloadavg(busy, 1) == 1)
        bench_note(&b, "busy     %.1f processes ran or waited for a core before the start",
                   busy[0]);
    bench_table(&b, columns, 8);
    if (o.url != NULL)
        measure_url(&b, &o, chosen);
    else
        measure_ours(&b, &o, chosen);
    return bench_end(&b);
}
