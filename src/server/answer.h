/* server/answer.h - a reply that the engine makes, on its way: what the files that answer share.
 *
 * Owns: the asks of one HTTP request, the text and log-probabilities of each choice so far, who frees
 * them. Does not own: bodies (server/api.h), sockets (server/http.h), tokens (the engine).
 *
 *     answer.c         a worker: body -> prompts -> asks, all submitted or an error
 *     answer_events.c  the engine's thread: events -> texts, chunks, the end
 *     answer_json.c    what a chunk and a whole reply look like
 *
 *     worker     gate ( submit, ..., begin the stream )      touches nothing any more
 *     engine                                           hear, ..., the last DONE: reply, free
 *     network    on_left: cancels whatever has a number by then
 *
 * The gate is held by the worker until all is submitted, and passed once by the engine's thread for each
 * prompt; from then on the reply is the engine's thread's alone, save `left` and the numbers of requests.
 * The last DONE gives the exchange back, and frees the reply. Where nothing could be submitted, the
 * worker does both.
 */
#ifndef SHEAF_SERVER_ANSWER_H
#define SHEAF_SERVER_ANSWER_H

#include <jansson.h>
#include <pthread.h>

#include "engine/reply_text.h"
#include "server/server.h"

/* Log-probabilities as lists in JSON, without their brackets. Chats have the first alone, of objects that
 * say all. */
enum {
    SHEAF__LIST_TOKENS = 0,
    SHEAF__LIST_VALUES = 1,
    SHEAF__LIST_TOPS = 2,
    SHEAF__LIST_OFFSETS = 3,
    SHEAF__LISTS = 4
};

typedef struct sheaf__told {
    sheaf__text lists[SHEAF__LISTS];
    uint64_t n_chars; /* that the tokens so far have begun: the next one's offset in the text */
} sheaf__told;

/* One of the texts that are answered. */
typedef struct sheaf__reply_choice {
    sheaf__reply_text decoder;
    sheaf__text text; /* streamed: what the next chunk says. Whole: all so far */
    sheaf__told told; /* the same for log-probabilities */
    uint64_t told_ns; /* its last token came; 0: none has */
    uint32_t finish;  /* SHEAF__FINISH_... */
    bool begun;
} sheaf__reply_choice;

typedef struct sheaf__reply sheaf__reply;

/* One prompt: what the engine knows as a request. */
typedef struct sheaf__reply_prompt {
    sheaf__served served; /* the first: an ask's ctx */
    sheaf__reply *reply;
    uint32_t index;
    bool heard;          /* the gate was passed */
    _Atomic uint64_t id; /* the engine's; 0: not submitted */
    sheaf__ids ids;      /* until it is submitted */
    sheaf__text text;    /* with `echo` */
    sheaf__told told;    /* with `echo` and `logprobs` */
    uint32_t n_tokens, n_answer;
} sheaf__reply_prompt;

struct sheaf__reply {
    sheaf__server *server;
    sheaf__exchange *exchange;
    uint32_t endpoint; /* SHEAF__ENDPOINT_... */
    bool stream, include_usage, echo, logprobs;
    bool begun; /* the stream */
    uint32_t n; /* choices of each prompt */
    uint64_t seed;
    char *stops[SHEAF__MAX_STOPS]; /* [n_stops] */
    uint32_t n_stops;
    sheaf__text head; /* what each chunk or the whole begins with, up to its choices */
    sheaf__text out;  /* a chunk while it is made */
    pthread_mutex_t gate;
    _Atomic bool left;
    sheaf__api_error error; /* the first; status 0: none */
    uint64_t held_bytes;    /* of prompts and choices: all that was ever kept */
    uint32_t n_live;        /* prompts that are not done */
    uint64_t prompt_tokens, cached_tokens, answer_tokens, computed_tokens;
    uint64_t pin;
    uint32_t pinned_tokens;
    sheaf__reply_choice *choices; /* [n_prompts * n]: those of the first prompt first */
    uint32_t n_prompts;
    sheaf__reply_prompt prompts[]; /* [n_prompts] */
};

/* ---- answer.c ---------------------------------------------------------------------------- */

/* Answers `c`, which is freed, on an exchange, which is given back at the end. */
void sheaf__reply_start(sheaf__server *server, sheaf__exchange *x, sheaf__completion *c,
                        uint32_t endpoint);
void sheaf__reply_free(sheaf__reply *reply);

/* Cancels all of its requests that have a number. Any thread. */
void sheaf__reply_cancel(sheaf__reply *reply);

/* Appends the tokens of messages as an answer to them begins, or of a prompt. False: *error says why. */
bool sheaf__encode_messages(const sheaf__server *server, const sheaf__message *messages,
                            uint32_t n, sheaf__ids *ids, sheaf__api_error *error);
bool sheaf__encode_prompt(const sheaf__server *server, const sheaf__api_prompt *prompt,
                          uint32_t flags, sheaf__ids *ids, sheaf__api_error *error);

/* Messages as the model's template writes them, appended. */
bool sheaf__render_messages(const sheaf__server *server, const sheaf__message *messages,
                            uint32_t n, bool generate, sheaf__text *out,
                            sheaf__api_error *error);

/* ---- answer_events.c --------------------------------------------------------------------- */

/* Of a prompt's `served`. */
int sheaf__reply_hear(sheaf__served *served, const sheaf__engine_event *event);

/* ---- answer_json.c: all SHEAF_E_NO_MEMORY where there is none ----------------------------- */

/* Appends a value, which is taken; null: there was no memory for it. */
sheaf_status sheaf__json_put(sheaf__text *out, json_t *value);

/* Replies 200 with a value, which is taken, and gives the exchange back; null: a 500. */
void sheaf__exchange_reply_json(sheaf__exchange *x, json_t *value);

/* A token as it is shown: its text; bytes that are no whole characters, or a zero, are written \xe2\x80,
 * as OpenAI does; "token_id:5" for one that has no text. */
json_t *sheaf__token_name(const sheaf__tokenizer *tok, int32_t token);

/* Fills reply->head. */
sheaf_status sheaf__reply_make_head(sheaf__reply *reply);

/* Appends a token to the lists. logprobs: null for the first of a prompt. shown: whether its text is part
 * of the reply's. */
sheaf_status sheaf__told_add(sheaf__told *told, const sheaf__reply *reply, int32_t token,
                             const sheaf__logprobs *logprobs, bool shown);

/* Appends the lists of `more`. */
sheaf_status sheaf__told_join(sheaf__told *told, const sheaf__told *more);
void sheaf__told_clear(sheaf__told *told); /* empty, and its memory is used again */
void sheaf__told_free(sheaf__told *told);

enum {
    SHEAF__CHUNK_ROLE = 0, /* the first of a chat's choice */
    SHEAF__CHUNK_TEXT = 1, /* what text and lists of the choice hold */
    SHEAF__CHUNK_LAST = 2, /* the same, and why it has ended; without text in a chat */
    SHEAF__CHUNK_USAGE = 3 /* of the whole request; no choice */
};

/* Makes the event of a chunk in reply->out. index: of the choice. */
sheaf_status sheaf__reply_make_chunk(sheaf__reply *reply, uint32_t index, uint32_t kind);

/* The whole reply, appended. The texts of choices are freed on the way. */
sheaf_status sheaf__reply_make_whole(sheaf__reply *reply, sheaf__text *out);

#endif
