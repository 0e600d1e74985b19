/* engine/request.h - one request and its life.
 *
 * Owns: what was asked (a copy), the tokens of each answer so far, where each answer stands. Does not
 * own: blocks (an answer's sequence goes back by sheaf__kv_destroy), queues, who runs next.
 *
 * A request has n choices: answers to one prompt. The first one runs the prompt, the others are
 * forked from it where it ends. From then on each choice is scheduled by itself:
 *
 *     HELD ----the prompt is there----> RUNNING --its end, cancelled, an error--> OVER
 *                                        ^    |
 *     WAITING ---admitted: matched-------+    |      WAITING may hold a ticket: another request
 *        ^                                    |      computes the blocks that it needs next
 *        +--------------preempted-------------+
 *
 * A running choice is prefilling while more than one of its tokens is still to be run, else
 * decoding. The last of its tokens is never in its cache between steps: it is what the next
 * step runs.
 */
#ifndef SHEAF_ENGINE_REQUEST_H
#define SHEAF_ENGINE_REQUEST_H

#include <stdatomic.h>

#include "base/list.h"
#include "engine/generate.h"
#include "sheaf/prefix.h"

#define SHEAF__MAX_BIAS 1024 /* of one ask */

/* What becomes of a prompt when it has been run. */
enum {
    SHEAF__ASK_ANSWER = 0, /* answers are sampled */
    SHEAF__ASK_PROMPT =
        1 /* none is: the prompt is put into the prompt cache, its log-probabilities
                              are told where they are wanted, and each choice ends with LENGTH */
};

/* What is asked. Copied, with all that it points to. */
typedef struct sheaf__ask {
    const int32_t *tokens; /* [n_tokens], n_tokens >= 1 */
    uint32_t n_tokens;
    uint32_t n_choices;  /* 0: 1 */
    uint32_t max_tokens; /* of each choice; 0: as many as the context has room for */
    uint32_t kind;       /* SHEAF__ASK_... */
    bool ignore_eos;     /* a token that ends the text is told like any other */
    bool logprobs;       /* each token of an answer is told with its log-probability */
    bool
        prompt_logprobs; /* so are those of the prompt, from its second on. Nothing of it is then taken
                             from the prompt cache: each row's logits are wanted */
    uint32_t n_top; /* with either: so many of the likeliest tokens beside; to SHEAF__MAX_TOP */
    float presence_penalty; /* taken off the logit of each token that is in the answer so far */
    float frequency_penalty; /* the same, times how often it is there */
    const sheaf__bias *bias; /* [n_bias] */
    uint32_t n_bias;         /* at most SHEAF__MAX_BIAS */
    bool pin; /* PROMPT: what of it is in the prompt cache is pinned for `pin_owner` */
    uint32_t pin_flags; /* SHEAF_PIN_... */
    uint64_t pin_owner;
    int32_t priority; /* SHEAF_PRIORITY_MIN to SHEAF_PRIORITY_MAX: higher ones go first */
    sheaf__sampler_options sampler; /* its choice is set for each */
    uint64_t session;               /* as in sheaf_prompt */
    const void *salt;               /* requests with different ones share nothing; null: none */
    uint64_t salt_bytes;
    void *ctx; /* handed back in each event */
} sheaf__ask;

enum { SHEAF__CHOICE_HELD, SHEAF__CHOICE_WAITING, SHEAF__CHOICE_RUNNING, SHEAF__CHOICE_OVER };

typedef struct sheaf__request sheaf__request;

typedef struct sheaf__choice {
    sheaf__request *request;
    uint32_t index;
    uint32_t state;
    sheaf__kv kv; /* of a running one */
    int32_t *ids; /* [n_ids] of [ids_capacity]: the prompt, then the answer. HELD: null */
    uint32_t n_ids;
    uint32_t published; /* positions of it that were offered to the prefix cache */
    uint64_t ids_capacity;
    uint64_t ticket; /* a claim of a running one, a place to wait of a waiting one; 0: none */
    uint64_t served; /* its last turn; the lowest has waited longest for rows */
    bool careful;    /* runs a block a step at most and publishes at its end alone, so that what
                        windows have let go of is free and they stay in few slabs */
} sheaf__choice;

struct sheaf__request {
    sheaf__list link; /* of the inbox, then of those that are live */
    uint64_t id;
    void *ctx;
    uint32_t n_prompt, n_choices, max_tokens;
    uint32_t kind; /* SHEAF__ASK_... */
    bool ignore_eos, logprobs, prompt_logprobs, wants_pin;
    uint32_t n_top;
    float presence_penalty, frequency_penalty;
    sheaf__bias *bias; /* [n_bias], its own */
    uint32_t n_bias;
    uint32_t pin_flags;
    uint64_t pin_owner;
    int32_t priority;
    sheaf__sampler_options sampler;
    sheaf_key space;
    uint64_t session;
    _Atomic bool cancelled;
    bool admitted;          /* has left the queue */
    bool failed, cut;       /* some choice was: an error, cancelled */
    uint32_t n_over;        /* choices */
    uint32_t cached_tokens; /* of the prompt, found when it was admitted */
    uint64_t n_computed;    /* positions run for it */
    uint32_t
        told_prompt; /* with prompt_logprobs: the first position that is still to be told, or
                               n_prompt; position 0 never is */
    uint64_t pin;    /* what was pinned; 0: nothing */
    uint32_t pinned_tokens;
    sheaf__choice choices[];
};

/* A request of an ask that has been checked, max_tokens settled. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__request_create(const sheaf__ask *ask, const sheaf_key *space,
                                   sheaf__memory *memory, sheaf__request **out);

/* None of its choices runs or has a ticket any more. */
void sheaf__request_destroy(sheaf__request *request, sheaf__memory *memory);

/* Copies the prompt, which only the first choice has while the others are held: many choices of long
 * prompts may wait in the queue. SHEAF_E_NO_MEMORY: as before. */
sheaf_status sheaf__choice_take_prompt(sheaf__choice *choice, sheaf__memory *memory);

/* Appends a token to the answer. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__choice_push(sheaf__choice *choice, int32_t token, sheaf__memory *memory);

/* Tokens that are not in its cache. */
uint32_t sheaf__choice_left(const sheaf__choice *choice);

/* Whether running it tells log-probabilities of the prompt, from told_prompt on. Then the rows from
 * told_prompt - 1 on have to be run. */
bool sheaf__choice_tells_prompt(const sheaf__choice *choice);

/* What it is to the prefix cache: all its tokens so far, good while these are not changed. */
sheaf_prompt sheaf__choice_prompt(const sheaf__choice *choice);

/* Higher priorities first, then the older requests, then the lower choices. Negative: a is before b. */
int sheaf__choice_order(const sheaf__choice *a, const sheaf__choice *b);

#endif
