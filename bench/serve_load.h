/* bench/serve_load.h - what clients of a server ask, and who asks when: conversations.
 *
 *     serve_texts texts = {.seed = 1, .tokenizer = &target};
 *     serve_load load = {0};
 *     serve_load_make(&load, &texts, &(serve_plan){"multiturn", .n_clients = 8, ...});
 *     serve_load_run(&load, &asking, 0);           // fills the answers of run 0 in
 *     bool equal = serve_load_equal(&load, &n);    // of runs 0 and 1
 *     serve_load_clear(&load);
 *
 * So many conversations at a time as the load says; each asks its turns one after another, and what was
 * answered becomes part of what it asks next.
 */
#ifndef SHEAF_BENCH_SERVE_LOAD_H
#define SHEAF_BENCH_SERVE_LOAD_H

#include "serve_client.h"

#define SERVE_MAX_TURNS 4
#define SERVE_RUNS      2

/* Texts of a given length, out of a generator: the same seed gives the same ones. */
typedef struct serve_texts {
    uint64_t seed;
    const serve_target
        *tokenizer;       /* has /tokenize; null: a token is taken for four characters */
    double words_a_token; /* found out */
} serve_texts;

typedef struct serve_conversation {
    const char *opening; /* what its first turn begins with, shared or null */
    char *turns[SERVE_MAX_TURNS];
    uint32_t n_turns;
    serve_answer answers[SERVE_RUNS][SERVE_MAX_TURNS];
} serve_conversation;

typedef struct serve_load {
    serve_conversation *conversations;
    uint32_t n_conversations;
    uint32_t n_at_once;
    char **openings; /* owned */
    uint32_t n_openings;
} serve_load;

enum {
    SERVE_IDLE,
    SERVE_SHARED_PREFIX_BURST,
    SERVE_DISTINCT_BURST,
    SERVE_SEQUENTIAL_SHARE,
    SERVE_MULTITURN,
    SERVE_CHURN,
    SERVE_SCENARIOS
};

typedef struct serve_plan {
    uint32_t scenario; /* SERVE_... */
    uint32_t n_clients;
    uint32_t prompt_tokens;
    uint32_t n_turns; /* of multiturn */
} serve_plan;

/* How the conversations are asked. */
typedef struct serve_asking {
    const serve_target *target;
    const char *model; /* null: the one that the server has */
    uint32_t answer_tokens;
    bool chat;       /* /chat/completions, else /completions */
    bool ignore_eos; /* a field that sheaf knows */
    bool logprobs;   /* of completions: tokens without any text are seen, too */
} serve_asking;

const char *serve_scenario_name(uint32_t scenario);

/* Sessions that churn keeps in the cache, of those that it has. */
uint32_t serve_churn_kept(uint32_t n_clients);

/* False: no memory, or the tokenizer does not answer. */
bool serve_load_make(serve_load *load, serve_texts *texts, const serve_plan *plan);

/* Returns when all is answered. Answers that failed say so. False: no memory, no threads. */
bool serve_load_run(serve_load *load, const serve_asking *asking, uint32_t run);

/* Whether both runs told the same texts and tokens, of how many answers. */
bool serve_load_equal(const serve_load *load, uint32_t *n);
void serve_load_clear(serve_load *load);

#endif
