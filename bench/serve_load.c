/* bench/serve_load.c - what clients of a server ask, and who asks when: conversations. */
#include "serve_load.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTION_TOKENS 16u /* of what is asked about a shared text */
#define MAX_TRIES       8
#define NEAR_ENOUGH     1 /* tokens */

/* Ends the bench: without memory there is nothing to measure. */
static void *must_have(void *memory)
{
    if (memory != NULL) return memory;
    fprintf(stderr, "bench_serve: out of memory\n");
    exit(1);
}

/* ---- texts -------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state) /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The first n words of the text that begins at a state of the generator. */
static char *write_words(uint64_t state, uint32_t n, size_t *size)
{
    static const char *const words[] = {
        "the",    "lamp",  "green",   "crown", "and",    "shelf", "brass",   "of",
        "kettle", "old",   "north",   "river", "stone",  "in",    "market",  "seven",
        "blue",   "paper", "to",      "found", "bridge", "wool",  "quiet",   "from",
        "garden", "a",     "silver",  "horse", "that",   "door",  "winter",  "told",
        "map",    "with",  "lantern", "grey",  "ship",   "is",    "harbour", "small",
        "bread",  "on",    "copper",  "field", "bell",   "was",   "letter",  "red",
        "candle", "for",   "iron",    "clock", "under",  "hill",  "glass",   "made",
        "tower",  "by",    "linen",   "road",  "island", "near",  "salt",    "window"};
    char *text = NULL;
    FILE *file = must_have(open_memstream(&text, size));
    for (uint32_t i = 0; i < n; i++)
        fprintf(file, "%s%s", i != 0 ? " " : "", words[draw(&state) >> 58]);
    fclose(file);
    return must_have(text);
}

/* Tokens of a text; 0: the tokenizer does not answer. */
static uint64_t count_tokens(const serve_texts *texts, const char *text, size_t size)
{
    uint64_t n = 0;
    if (texts->tokenizer == NULL) return (size + 3) / 4;
    json_t *ask = json_pack("{s:s, s:b}", "content", text, "add_special", 0);
    char *body = must_have(json_dumps(ask, 0));
    json_t *reply = serve_post(texts->tokenizer, "/tokenize", body);
    if (!serve_number(reply, "count", &n)) n = 0;
    json_decref(reply);
    json_decref(ask);
    free(body);
    return n;
}

/* A text of its own of about n tokens; null: the tokenizer does not answer. */
static char *make_text(serve_texts *texts, uint32_t n)
{
    const uint64_t state = draw(&texts->seed);
    if (texts->words_a_token == 0) texts->words_a_token = 0.8;
    double n_words = fmax(1, n * texts->words_a_token);
    for (int i = 0;; i++) {
        size_t size = 0;
        char *text = write_words(state, (uint32_t)lround(n_words), &size);
        uint64_t n_tokens = count_tokens(texts, text, size);
        double missing = (double)n - (double)n_tokens;
        if (n_tokens != 0) texts->words_a_token = n_words / (double)n_tokens;
        if (n_tokens != 0 && (fabs(missing) <= NEAR_ENOUGH || i == MAX_TRIES)) return text;
        free(text);
        if (n_tokens == 0) return NULL;
        n_words = fmax(1, round(n_words + missing * texts->words_a_token));
    }
}

/* ---- scenarios ---------------------------------------------------------------------------- */

const char *serve_scenario_name(uint32_t scenario)
{
    static const char *const names[SERVE_SCENARIOS] = {
        [SERVE_IDLE] = "idle",
        [SERVE_SHARED_PREFIX_BURST] = "shared_prefix_burst",
        [SERVE_DISTINCT_BURST] = "distinct_burst",
        [SERVE_SEQUENTIAL_SHARE] = "sequential_share",
        [SERVE_MULTITURN] = "multiturn",
        [SERVE_CHURN] = "churn"};
    return names[scenario];
}

uint32_t serve_churn_kept(uint32_t n_clients)
{
    return n_clients < 4 ? 2 : n_clients / 2;
}

/* Rooms for so many of both. */
static void make_rooms(serve_load *load, uint32_t n_conversations, uint32_t n_openings)
{
    load->n_conversations = n_conversations;
    load->n_openings = n_openings;
    load->conversations = must_have(calloc(n_conversations, sizeof *load->conversations));
    load->openings = must_have(calloc(n_openings + 1, sizeof *load->openings));
}

/* Visits of sessions in a random order: some come often, some once, some never. */
static void choose_sessions(serve_load *load, serve_texts *texts)
{
    for (uint32_t i = 0; i < load->n_conversations; i++) {
        double r = (double)(draw(&texts->seed) >> 11) * 0x1p-53;
        uint32_t session = (uint32_t)(r * r * load->n_openings);
        load->conversations[i].opening = load->openings[session];
    }
}

bool serve_load_make(serve_load *load, serve_texts *texts, const serve_plan *plan)
{
    const uint32_t n = plan->n_clients;
    const bool shares =
        plan->scenario == SERVE_SHARED_PREFIX_BURST || plan->scenario == SERVE_SEQUENTIAL_SHARE;
    const bool burst = plan->scenario == SERVE_SHARED_PREFIX_BURST ||
                       plan->scenario == SERVE_DISTINCT_BURST ||
                       plan->scenario == SERVE_MULTITURN;
    const bool churn = plan->scenario == SERVE_CHURN;
    uint32_t first = plan->prompt_tokens, n_turns = 1;
    *load = (serve_load){.n_at_once = burst ? n : churn && n >= 4 ? n / 4 : 1};
    if (plan->scenario == SERVE_MULTITURN) n_turns = plan->n_turns;
    if (plan->scenario == SERVE_IDLE) first = QUESTION_TOKENS;
    make_rooms(load, churn ? 3 * n : n, churn ? 2 * n : shares ? 1 : 0);
    for (uint32_t i = 0; i < load->n_openings; i++)
        if ((load->openings[i] = make_text(texts, first)) == NULL) return false;
    if (churn) choose_sessions(load, texts);
    for (uint32_t i = 0; i < load->n_conversations; i++) {
        serve_conversation *c = &load->conversations[i];
        if (shares) c->opening = load->openings[0];
        c->n_turns = n_turns;
        for (uint32_t turn = 0; turn < n_turns; turn++) {
            uint32_t size = c->opening != NULL ? QUESTION_TOKENS : first / n_turns;
            if ((c->turns[turn] = make_text(texts, size)) == NULL) return false;
        }
    }
    return true;
}

void serve_load_clear(serve_load *load)
{
    for (uint32_t i = 0; i < load->n_conversations; i++) {
        serve_conversation *c = &load->conversations[i];
        for (uint32_t turn = 0; turn < SERVE_MAX_TURNS; turn++) {
            free(c->turns[turn]);
            for (uint32_t run = 0; run < SERVE_RUNS; run++)
                serve_answer_clear(&c->answers[run][turn]);
        }
    }
    for (uint32_t i = 0; i < load->n_openings; i++) free(load->openings[i]);
    free(load->conversations);
    free(load->openings);
    *load = (serve_load){0};
}

/* ---- asking ------------------------------------------------------------------------------- */

typedef struct crew {
    serve_load *load;
    const serve_asking *asking;
    uint32_t run;
    atomic_uint next; /* the conversation that nobody has begun */
} crew;

/* What has been said so far, as the endpoint takes it. */
static json_t *make_prompt(const serve_conversation *c, uint32_t run, uint32_t turn, bool chat)
{
    json_t *messages = json_array();
    char *text = NULL;
    size_t size = 0;
    FILE *all = must_have(open_memstream(&text, &size));
    for (uint32_t i = 0; i <= turn; i++) {
        const serve_answer *a = &c->answers[run][i];
        const char *opening = i == 0 && c->opening != NULL ? c->opening : "";
        char *said = NULL;
        if (asprintf(&said, "%s%s%s", opening, *opening != 0 ? "\n" : "", c->turns[i]) < 0)
            must_have(NULL);
        fprintf(all, "%s%s\n", i != 0 ? "\n" : "", said);
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "user", "content", said));
        free(said);
        if (i == turn) break;
        fwrite(a->text, 1, a->n, all);
        json_array_append_new(
            messages, json_pack("{s:s, s:s%}", "role", "assistant", "content", a->text, a->n));
    }
    fclose(all);
    json_t *prompt = chat ? json_incref(messages) : json_stringn(must_have(text), size);
    json_decref(messages);
    free(text);
    return must_have(prompt);
}

/* False: the answer failed, and the conversation cannot go on. */
static bool ask_turn(const crew *w, serve_conversation *c, uint32_t turn)
{
    const serve_asking *asking = w->asking;
    serve_answer *answer = &c->answers[w->run][turn];
    json_t *body = json_pack("{s:s*, s:o, s:i, s:i, s:b, s:{s:b}}", "model", asking->model,
                             asking->chat ? "messages" : "prompt",
                             make_prompt(c, w->run, turn, asking->chat), "max_tokens",
                             (int)asking->answer_tokens, "temperature", 0, "stream", 1,
                             "stream_options", "include_usage", 1);
    if (asking->ignore_eos) json_object_set_new(body, "ignore_eos", json_true());
    if (asking->logprobs) json_object_set_new(body, "logprobs", json_integer(0));
    char *text = must_have(json_dumps(body, 0));
    serve_stream(asking->target, asking->chat ? "/chat/completions" : "/completions", text,
                 answer);
    json_decref(body);
    free(text);
    return answer->status == 200 && answer->done;
}

static void *converse(void *arg)
{
    crew *w = arg;
    for (;;) {
        uint32_t i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
        if (i >= w->load->n_conversations) return NULL;
        serve_conversation *c = &w->load->conversations[i];
        for (uint32_t turn = 0; turn < c->n_turns; turn++)
            if (!ask_turn(w, c, turn)) break;
    }
}

bool serve_load_run(serve_load *load, const serve_asking *asking, uint32_t run)
{
    crew w = {.load = load, .asking = asking, .run = run};
    pthread_t *threads = must_have(calloc(load->n_at_once, sizeof *threads));
    uint32_t n = 0;
    while (n < load->n_at_once && pthread_create(&threads[n], NULL, converse, &w) == 0) n++;
    for (uint32_t i = 0; i < n; i++) pthread_join(threads[i], NULL);
    free(threads);
    return n == load->n_at_once;
}

bool serve_load_equal(const serve_load *load, uint32_t *n)
{
    bool equal = true;
    *n = 0;
    for (uint32_t i = 0; i < load->n_conversations; i++) {
        const serve_conversation *c = &load->conversations[i];
        for (uint32_t turn = 0; turn < c->n_turns; turn++, ++*n) {
            const serve_answer *a = &c->answers[0][turn], *b = &c->answers[1][turn];
            if (a->n != b->n || memcmp(a->text, b->text, a->n) != 0 ||
                strcmp(a->tokens, b->tokens) != 0)
                equal = false;
        }
    }
    return equal;
}
