/* server/api.h - what the bodies of requests say: JSON, checked whole, into plain structs.
 *
 * Owns: every field of every body, its range, its default, the sentence for what is wrong with it, and
 * which of OpenAI's fields are ignored, and which refused by name. Does not own: sockets, the model
 * (beyond its vocabulary and its context), replies. Bodies come from strangers: fuzz_api feeds this.
 *
 *     sheaf__completion c;
 *     if (!sheaf__api_read_chat(body, n, &limits, &c, &error)) return sheaf__exchange_fail(x, &error);
 *     ...
 *     sheaf__completion_free(&c);
 *
 * Every function returns false with *error filled in (a 400, or a 413 for a body of too many values,
 * unless it says otherwise), and then there is nothing to free. Any thread.
 */
#ifndef SHEAF_SERVER_API_H
#define SHEAF_SERVER_API_H

#include "engine/request.h"
#include "model/chat.h"
#include "server/http.h"

/* What is checked against. */
typedef struct sheaf__api_limits {
    const char *model; /* the served name: another one in `model` is a 404, "model_not_found" */
    uint32_t vocab;
    uint32_t ctx_size;
    uint32_t max_choices; /* `n` times the prompts of a request; 0: 128 */
} sheaf__api_limits;

/* A text, or tokens. */
typedef struct sheaf__api_prompt {
    const char *text; /* [n_bytes]; null: tokens. May hold zero bytes */
    uint64_t n_bytes;
    int32_t *tokens; /* [n_tokens], each below vocab */
    uint32_t n_tokens;
} sheaf__api_prompt;

#define SHEAF__MAX_STOPS 16

/* A body of /v1/chat/completions, /v1/completions or /v1/cache/preload. Strings are its own. */
typedef struct sheaf__completion {
    void *root; /* the JSON it points into */
    bool chat;
    sheaf__message *messages; /* chat: [n_messages] */
    uint32_t n_messages;
    sheaf__api_prompt *prompts; /* else: [n_prompts]: a text, tokens, or a list of either */
    uint32_t n_prompts;
    uint32_t n;          /* choices of each prompt */
    uint32_t max_tokens; /* of each choice; also max_completion_tokens */
    bool
        has_max_tokens; /* completions without it have 16, chats what the context has room for */
    bool stream, include_usage;
    bool echo;     /* completions: the prompt's text goes before the answer's */
    bool logprobs; /* chat: `logprobs`; completions: a number, which is n_top */
    uint32_t n_top;
    bool ignore_eos;
    sheaf__sampler_options sampler; /* temperature (default 1), top_p, top_k, min_p, seed */
    bool has_seed;                  /* else the server draws one and tells it */
    float presence_penalty, frequency_penalty;
    sheaf__bias *bias; /* [n_bias] */
    uint32_t n_bias;
    const char *stops[SHEAF__MAX_STOPS]; /* [n_stops] */
    uint32_t n_stops;
    const char *cache_salt; /* null: none. Empty: a 400 */
    uint64_t session;       /* of `prompt_cache_key`; 0: none */
    int32_t priority;
    bool pin; /* preload: `pin`: false, true or "revocable" */
    uint32_t pin_flags;
} sheaf__completion;

bool sheaf__api_read_chat(const char *body, uint64_t n, const sheaf__api_limits *limits,
                          sheaf__completion *out, sheaf__api_error *error);
bool sheaf__api_read_completion(const char *body, uint64_t n, const sheaf__api_limits *limits,
                                sheaf__completion *out, sheaf__api_error *error);

/* {"messages": [...]} or {"prompt": ...}, "cache_salt", "prompt_cache_key", "priority", "pin". */
bool sheaf__api_read_preload(const char *body, uint64_t n, const sheaf__api_limits *limits,
                             sheaf__completion *out, sheaf__api_error *error);
void sheaf__completion_free(sheaf__completion *c); /* harmless on a zeroed one */

/* The number of a session's name: the first 8 bytes of its SHA-256, little endian, and 1 where
 * these are 0. 0: the system has no SHA-256. */
uint64_t sheaf__api_session(const char *name);

/* {"cache_salt": ...}, {"prompt_cache_key": ...} (also "session"), or nothing: everything. An empty body
 * is nothing. `unpin`: pins go too (with the namespace, or all). */
typedef struct sheaf__cache_reset {
    void *root;
    const char *cache_salt; /* null: none */
    uint64_t session;       /* 0: none */
    bool unpin;
} sheaf__cache_reset;
bool sheaf__api_read_reset(const char *body, uint64_t n, sheaf__cache_reset *out,
                           sheaf__api_error *error);
void sheaf__cache_reset_free(sheaf__cache_reset *r);

/* /tokenize: {"content" or "prompt": text, "add_special": bool, "with_pieces": bool}, or {"messages"} as
 * rendered for an answer. /detokenize: {"tokens": [...]}. /apply-template: {"messages", and optionally
 * "add_generation_prompt"}. */
typedef struct sheaf__text_request {
    void *root;
    sheaf__message *messages;
    uint32_t n_messages;
    sheaf__api_prompt prompt;
    bool add_special; /* default true for a text */
    bool with_pieces;
    bool generate; /* default true */
} sheaf__text_request;
bool sheaf__api_read_tokenize(const char *body, uint64_t n, const sheaf__api_limits *limits,
                              sheaf__text_request *out, sheaf__api_error *error);
bool sheaf__api_read_detokenize(const char *body, uint64_t n, const sheaf__api_limits *limits,
                                sheaf__text_request *out, sheaf__api_error *error);
bool sheaf__api_read_template(const char *body, uint64_t n, sheaf__text_request *out,
                              sheaf__api_error *error);
void sheaf__text_request_free(sheaf__text_request *r);

#endif
