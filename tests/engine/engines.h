/* engines.h - an engine on a small model, what it told of each request, and what each gives alone.
 *
 *     host_open(&h, RUNS_LLAMA, model_options, engine_options);
 *     host_submit(&h, &a, (want){.n = 40, .kind = 1, .max_tokens = 8});
 *     host_idle(&h);
 *     host_expect(&h, &a);               // the tokens that a cold run of it alone gives
 *     host_close(&h);                    // no block is left
 */
#ifndef SHEAF_TESTS_ENGINE_ENGINES_H
#define SHEAF_TESTS_ENGINE_ENGINES_H

#include "engine/runs.h"
#include "engine/scheduler.h"
#include "sheaf/ledger.h"

#define ENGINES_CHOICES 8
#define ENGINES_TOKENS  64 /* an answer has at most */
#define ENGINES_PROMPT  512

typedef struct host {
    sheaf__model *model;
    const char *dir;
    sheaf__model *oracle; /* the same on the dense backend; opened when it is asked */
    sheaf__model_options oracle_options;
    sheaf__engine *engine;
    uint32_t n_done;
} host;

/* What a test asks for. */
typedef struct want {
    uint32_t n;      /* tokens of the prompt */
    uint32_t kind;   /* which text it is */
    uint32_t shared; /* so many of its first tokens are of text 0 */
    uint32_t max_tokens;
    uint32_t n_choices;
    int32_t priority;
    uint64_t seed; /* 0: greedy; else temperature 1.1, top-p 0.95 */
    const char *salt;
    bool tells_prompt; /* with log-probabilities of the prompt */
    bool ignore_eos, logprobs;
    uint32_t n_top;
    float presence_penalty, frequency_penalty;
    const sheaf__bias *bias; /* [n_bias], good as long as the asked is looked at */
    uint32_t n_bias;
} want;

/* A request, and what was told of it. */
typedef struct asked {
    host *host;
    uint64_t id;
    sheaf__ask ask;
    int32_t prompt[ENGINES_PROMPT];
    int32_t tokens[ENGINES_CHOICES][ENGINES_TOKENS];
    uint32_t n_tokens[ENGINES_CHOICES];
    sheaf__logprobs logprobs[ENGINES_CHOICES][ENGINES_TOKENS]; /* of them, where wanted */
    uint32_t finish[ENGINES_CHOICES];
    sheaf_status status;                  /* by the last choice that ended */
    uint32_t stop_after[ENGINES_CHOICES]; /* tokens after which the callback ends it; 0: none */
    uint32_t n_prompt_told;               /* positions of the prompt */
    sheaf__logprobs prompt_told[ENGINES_PROMPT];
    uint64_t pin;
    uint32_t pinned_tokens;
    bool admitted;
    bool done;
    bool broken;         /* it was told what it must not be */
    uint32_t place;      /* it was the so-manieth to be done, from 1 on */
    uint32_t cached;     /* by the last event */
    uint64_t n_computed; /* by the last event */
} asked;

void host_open(host *h, const char *dir, sheaf__model_options m, sheaf__engine_options e);

/* The same sizes, in tokens of room that the pool has: at least so many. */
uint64_t host_budget(const char *dir, sheaf__model_options m, uint32_t tokens);

/* Destroys the engine; then a pool has no block any more. */
void host_close(host *h);

void host_ask(host *h, asked *a, want w);
void host_submit(host *h, asked *a, want w);

/* Submits a->ask as it is by now. */
void host_send(host *h, asked *a);

/* Steps until nothing is left, and checks what then must hold. */
void host_idle(host *h);

/* Verifies pool and prefix cache, where there are. */
void host_check(const host *h);

/* Blocks that sequences hold. */
uint64_t host_held(const host *h);

sheaf__engine_stats host_stats(const host *h);

/* Done, each choice at its length or where it was stopped, with the tokens of a cold run, and the
 * log-probabilities to the bit where these were wanted. */
void host_expect(host *h, const asked *a);

/* The tokens of one choice, of a cold run: [max_tokens]; returns how many. */
uint32_t host_alone(host *h, const asked *a, uint32_t choice, int32_t *tokens);

/* The same, each token's log-probabilities: [max_tokens], or null. */
uint32_t host_alone_told(host *h, const asked *a, uint32_t choice, int32_t *tokens,
                         sheaf__logprobs *logprobs);

#endif
