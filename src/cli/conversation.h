/* cli/conversation.h - turns of question and answer that keep their K and V.
 *
 * Owns: the messages, and one cache. Each turn renders and encodes the whole conversation, keeps of
 * the cache the tokens that it begins with already, and prefills the rest:
 *
 *     cache     [system][question 1][answer 1]
 *     turn 2    [system][question 1][answer 1][question 2]
 *               |<----------- kept ---------->|<prefilled>|
 *
 * What is kept is found by comparing tokens, so it does not matter why they differ: a template that
 * shows old answers otherwise, an answer that encodes otherwise than it was decoded, a new system
 * message. Where a window has slid past what is to be kept, the cache starts again from nothing.
 */
#ifndef SHEAF_CLI_CONVERSATION_H
#define SHEAF_CLI_CONVERSATION_H

#include <signal.h>

#include "cli/answer.h"

/* What one turn did. */
typedef struct sheaf__turn {
    uint32_t n_kept;
    uint32_t n_prefilled;
    uint32_t n_decoded;
    uint64_t prefill_ns;
    uint64_t decode_ns;
} sheaf__turn;

enum {
    SHEAF__TURN_DONE = 0,
    SHEAF__TURN_STOPPED = 1,     /* by *stop; the answer stays as far as it went */
    SHEAF__TURN_TAKEN_BACK = 2,  /* by *stop before the answer began: as if it was not asked */
    SHEAF__TURN_MAX_TOKENS = 3,  /* the answer has max_tokens */
    SHEAF__TURN_CONTEXT_FULL = 4 /* the answer ends because the context does */
};

/* The first five are set by the caller before init, and belong to it. */
typedef struct sheaf__conversation {
    sheaf__model *model;
    uint32_t family;                   /* SHEAF__CHAT_... */
    uint32_t max_tokens;               /* of an answer; 0: what the context has room for */
    const volatile sig_atomic_t *stop; /* non-zero: stop the turn */
    sheaf__progress_fn *progress;      /* of prefill, with progress_ctx; may be null */
    void *progress_ctx;
    sheaf__sampler *sampler;
    sheaf__kv kv;
    float *logits;            /* [vocab] */
    char *system;             /* null: none */
    sheaf__message *messages; /* [capacity]; the first is the system's place */
    uint32_t n, capacity;
    sheaf__stream stream;
    sheaf_status stream_status;
    sheaf__answer answer;
    sheaf__turn last; /* all zero before the first turn */
    uint32_t n_turns;
} sheaf__conversation;

/* An empty conversation. SHEAF_E_NO_MEMORY, SHEAF_E_INVALID. Closed also after a failure. */
sheaf_status sheaf__conversation_init(sheaf__conversation *c,
                                      const sheaf__sampler_options *sampling);
void sheaf__conversation_close(sheaf__conversation *c);

/* Sets the system message; null: none. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__conversation_system(sheaf__conversation *c, const char *text);

/* Forgets all turns; the system message stays. Every block goes back. */
sheaf_status sheaf__conversation_reset(sheaf__conversation *c);

/* Asks, and streams the answer to standard output. *outcome: SHEAF__TURN_...
 * SHEAF_E_CONTEXT: the question does not fit. On any failure before a text has begun the question is
 * taken back; later, the answer stays as far as it went. SHEAF_E_IO: standard output is gone. */
sheaf_status sheaf__conversation_ask(sheaf__conversation *c, const char *text,
                                     uint32_t *outcome, sheaf_error *err);

#endif
