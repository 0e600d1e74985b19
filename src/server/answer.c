/* server/answer.c - from the body of a request to the engine's asks. */
#include "server/answer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"

#define DEFAULT_MAX_TOKENS 16 /* of completions, as OpenAI's */

/* ---- life of a reply --------------------------------------------------------------------- */

static bool no_memory(sheaf__api_error *error)
{
    return sheaf__api_error_set(error, 500, "out_of_memory", NULL, "no memory for the request");
}

static void free_prompt(sheaf__reply_prompt *prompt)
{
    sheaf__ids_free(&prompt->ids);
    sheaf__text_free(&prompt->text);
    sheaf__told_free(&prompt->told);
}

static void free_choice(sheaf__reply_choice *choice)
{
    sheaf__reply_text_free(&choice->decoder);
    sheaf__text_free(&choice->text);
    sheaf__told_free(&choice->told);
}

void sheaf__reply_free(sheaf__reply *reply)
{
    for (uint32_t i = 0; i < reply->n_prompts; i++) free_prompt(&reply->prompts[i]);
    if (reply->choices != NULL)
        for (uint32_t i = 0; i < reply->n_prompts * reply->n; i++)
            free_choice(&reply->choices[i]);
    for (uint32_t i = 0; i < reply->n_stops; i++) free(reply->stops[i]);
    free(reply->choices);
    sheaf__text_free(&reply->head);
    sheaf__text_free(&reply->out);
    pthread_mutex_destroy(&reply->gate);
    free(reply);
}

static bool copy_stops(sheaf__reply *reply, const sheaf__completion *c)
{
    for (; reply->n_stops < c->n_stops; reply->n_stops++) {
        reply->stops[reply->n_stops] = strdup(c->stops[reply->n_stops]);
        if (reply->stops[reply->n_stops] == NULL) return false;
    }
    return true;
}

static sheaf__reply *create(sheaf__server *server, sheaf__exchange *x,
                            const sheaf__completion *c, uint32_t endpoint)
{
    uint32_t n_prompts = c->chat ? 1 : c->n_prompts;
    sheaf__reply *reply = calloc(1, sizeof *reply + n_prompts * sizeof *reply->prompts);
    if (reply == NULL) return NULL;
    pthread_mutex_init(&reply->gate, NULL);
    reply->server = server;
    reply->exchange = x;
    reply->endpoint = endpoint;
    reply->stream = c->stream;
    reply->include_usage = c->include_usage;
    reply->echo = c->echo;
    reply->logprobs = c->logprobs;
    reply->n = c->n == 0 ? 1 : c->n;
    reply->seed = c->sampler.seed;
    reply->n_prompts = n_prompts;
    reply->choices = calloc((size_t)n_prompts * reply->n, sizeof *reply->choices);
    if (reply->choices == NULL || !copy_stops(reply, c) ||
        sheaf__reply_make_head(reply) != SHEAF_OK) {
        sheaf__reply_free(reply);
        return NULL;
    }
    for (uint32_t i = 0; i < n_prompts; i++) {
        reply->prompts[i].served.hear = sheaf__reply_hear;
        reply->prompts[i].served.id = sheaf__exchange_id(x);
        reply->prompts[i].served.endpoint = endpoint;
        reply->prompts[i].reply = reply;
        reply->prompts[i].index = i;
    }
    for (uint32_t i = 0; i < n_prompts * reply->n; i++)
        sheaf__reply_text_init(&reply->choices[i].decoder, server->model->tokenizer,
                               (const char *const *)reply->stops, reply->n_stops);
    return reply;
}

/* ---- prompts ----------------------------------------------------------------------------- */

bool sheaf__render_messages(const sheaf__server *server, const sheaf__message *messages,
                            uint32_t n, bool generate, sheaf__text *out,
                            sheaf__api_error *error)
{
    sheaf_error err = {0};
    uint32_t family = server->options.chat_family;
    if (family == SHEAF__CHAT_NONE)
        return sheaf__api_error_set(error, 400, "no_chat_template", "messages",
                                    "this model has no chat template");
    sheaf_status st = sheaf__chat_render(family, messages, n, generate, out, &err);
    if (st == SHEAF_OK) return true;
    if (st != SHEAF_E_CONFIG) return no_memory(error);
    return sheaf__api_error_set(error, 400, NULL, "messages", "%s", err.text);
}

static bool encode(const sheaf__server *server, const char *text, uint64_t n, uint32_t flags,
                   sheaf__ids *ids, sheaf__api_error *error)
{
    sheaf_status st = sheaf__tokenizer_encode(server->model->tokenizer, text, n, flags, ids);
    if (st == SHEAF_OK) return true;
    if (st == SHEAF_E_NO_MEMORY) return no_memory(error);
    return sheaf__api_error_set(error, 400, NULL, NULL, "the text cannot be tokenized: %s",
                                sheaf_status_text(st));
}

bool sheaf__encode_messages(const sheaf__server *server, const sheaf__message *messages,
                            uint32_t n, sheaf__ids *ids, sheaf__api_error *error)
{
    sheaf__text text = {0};
    bool good = sheaf__render_messages(server, messages, n, true, &text, error) &&
                encode(server, text.data, text.n, SHEAF__ENCODE_PLAIN, ids, error);
    sheaf__text_free(&text);
    return good;
}

bool sheaf__encode_prompt(const sheaf__server *server, const sheaf__api_prompt *prompt,
                          uint32_t flags, sheaf__ids *ids, sheaf__api_error *error)
{
    if (prompt->text != NULL)
        return encode(server, prompt->text, prompt->n_bytes, flags, ids, error);
    for (uint32_t i = 0; i < prompt->n_tokens; i++)
        if (sheaf__ids_push(ids, prompt->tokens[i]) != SHEAF_OK) return no_memory(error);
    return true;
}

/* Whether the first token's text is where an echo begins: one that the tokenizer has put before a text
 * (a BOS) is not. */
static bool begins_echo(const sheaf__tokenizer *tok, int32_t token, const sheaf__text *echo)
{
    sheaf__text bytes = {0};
    bool begins =
        !sheaf__tokenizer_is_special(tok, token) ||
        (sheaf__tokenizer_bytes(tok, token, &bytes) == SHEAF_OK && bytes.n <= echo->n &&
         bytes.n != 0 && memcmp(bytes.data, echo->data, bytes.n) == 0);
    sheaf__text_free(&bytes);
    return begins;
}

/* What `echo` gives back: the text as it was sent, or that of the tokens. */
static bool keep_echo(const sheaf__reply *reply, sheaf__reply_prompt *prompt,
                      const sheaf__api_prompt *sent, sheaf__api_error *error)
{
    const sheaf__tokenizer *tok = reply->server->model->tokenizer;
    sheaf_status st = sent->text != NULL
                          ? sheaf__text_append(&prompt->text, sent->text, sent->n_bytes)
                          : sheaf__tokenizer_decode(tok, prompt->ids.data, prompt->ids.n, false,
                                                    &prompt->text);
    if (st == SHEAF_OK && reply->logprobs && prompt->ids.n != 0)
        st = sheaf__told_add(&prompt->told, reply, prompt->ids.data[0], NULL,
                             begins_echo(tok, prompt->ids.data[0], &prompt->text));
    return st == SHEAF_OK || no_memory(error);
}

static bool encode_all(sheaf__reply *reply, const sheaf__completion *c, sheaf__api_error *error)
{
    for (uint32_t i = 0; i < reply->n_prompts; i++) {
        sheaf__reply_prompt *prompt = &reply->prompts[i];
        if (c->chat)
            return sheaf__encode_messages(reply->server, c->messages, c->n_messages,
                                          &prompt->ids, error);
        if (!sheaf__encode_prompt(reply->server, &c->prompts[i], SHEAF__ENCODE_POST_PROCESS,
                                  &prompt->ids, error))
            return false;
        if (reply->echo && !keep_echo(reply, prompt, &c->prompts[i], error)) return false;
    }
    return true;
}

/* ---- asks -------------------------------------------------------------------------------- */

static sheaf__ask make_ask(const sheaf__reply *reply, sheaf__reply_prompt *prompt,
                           const sheaf__completion *c)
{
    bool preload = reply->endpoint == SHEAF__ENDPOINT_PRELOAD;
    bool no_answer = preload || (c->has_max_tokens && c->max_tokens == 0);
    return (sheaf__ask){
        .tokens = prompt->ids.data,
        .n_tokens = prompt->ids.n,
        .n_choices = reply->n,
        .max_tokens = c->has_max_tokens ? c->max_tokens
                      : c->chat         ? 0
                                        : DEFAULT_MAX_TOKENS,
        .kind = no_answer ? SHEAF__ASK_PROMPT : SHEAF__ASK_ANSWER,
        .ignore_eos = c->ignore_eos,
        .logprobs = c->logprobs,
        .prompt_logprobs = c->logprobs && c->echo,
        .n_top = c->n_top,
        .presence_penalty = c->presence_penalty,
        .frequency_penalty = c->frequency_penalty,
        .bias = c->bias,
        .n_bias = c->n_bias,
        .pin = preload && c->pin,
        .pin_flags = c->pin_flags,
        .pin_owner = c->session,
        .priority = c->priority,
        .sampler = c->sampler,
        .session = c->session,
        .salt = c->cache_salt,
        .salt_bytes = c->cache_salt != NULL ? strlen(c->cache_salt) : 0,
        .ctx = prompt,
    };
}

/* Why the engine has not taken a request. */
static bool refuse(sheaf__reply *reply, sheaf_status st, const char *sentence, bool chat)
{
    sheaf__api_error *error = &reply->error;
    const char *param = chat ? "messages" : "prompt";
    switch (st) {
    case SHEAF_FULL:
        atomic_fetch_add_explicit(&reply->server->metrics.refused_queue, 1,
                                  memory_order_relaxed);
        return sheaf__api_error_set(error, 429, "queue_full", NULL, "%s", sentence);
    case SHEAF_REFUSED:
        return sheaf__api_error_set(error, 400, "prompt_cache_full", param, "%s", sentence);
    case SHEAF_E_CONTEXT:
        return sheaf__api_error_set(error, 400, "context_length_exceeded", param, "%s",
                                    sentence);
    case SHEAF_E_INVALID:
        return sheaf__api_error_set(error, 400, "invalid_value", param, "%s", sentence);
    case SHEAF_E_UNSUPPORTED:
        return sheaf__api_error_set(error, 400, "unsupported_parameter", NULL, "%s", sentence);
    case SHEAF_E_CANCELLED:
        return sheaf__api_error_set(error, 503, "shutting_down", NULL, "%s", sentence);
    default:
        return sheaf__api_error_set(error, 500, NULL, NULL, "the request was not taken: %s",
                                    sentence);
    }
}

void sheaf__reply_cancel(sheaf__reply *reply)
{
    for (uint32_t i = 0; i < reply->n_prompts; i++) {
        uint64_t id = atomic_load(&reply->prompts[i].id);
        if (id != 0) (void)sheaf__engine_cancel(reply->server->engine, id);
    }
}

/* The network's thread, at any moment from the registration on. Who submits looks at `left` after it
 * has written a number, this reads the numbers after it has written `left`: none is missed. */
static void on_left(void *ctx)
{
    sheaf__reply *reply = ctx;
    atomic_store(&reply->left, true);
    sheaf__reply_cancel(reply);
}

/* Submits all, with the gate held. n_live: those that were. */
static void submit_all(sheaf__reply *reply, const sheaf__completion *c)
{
    for (uint32_t i = 0; i < reply->n_prompts; i++) {
        sheaf__reply_prompt *prompt = &reply->prompts[i];
        sheaf__ask ask = make_ask(reply, prompt, c);
        sheaf_error err = {0};
        uint64_t id = 0;
        prompt->served.asked_ns = sheaf__clock_ns();
        prompt->n_tokens = prompt->ids.n;
        sheaf_status st = sheaf__engine_submit(reply->server->engine, &ask, &id, &err);
        if (st != SHEAF_OK) {
            refuse(reply, st, err.text, c->chat);
            break;
        }
        sheaf__ids_free(&prompt->ids);
        atomic_store(&prompt->id, id);
        reply->n_live++;
    }
    if (reply->error.status != 0 || atomic_load(&reply->left)) sheaf__reply_cancel(reply);
}

/* ---- the handlers ------------------------------------------------------------------------ */

/* 53 random bits: clients in JavaScript can read the number, and send it back. */
static bool draw_seed(uint64_t *seed)
{
    if (getrandom(seed, sizeof *seed, 0) != (ssize_t)sizeof *seed) return false;
    *seed >>= 64 - 53;
    return true;
}

void sheaf__reply_start(sheaf__server *server, sheaf__exchange *x, sheaf__completion *c,
                        uint32_t endpoint)
{
    sheaf__api_error error = {0};
    if (!c->has_seed && !draw_seed(&c->sampler.seed))
        sheaf__api_error_set(&error, 500, NULL, NULL, "the system gives no random numbers");
    sheaf__reply *reply = NULL;
    uint32_t most = sheaf__engine_settings(server->engine)->max_queue;
    if (!c->chat && c->n_prompts > most)
        sheaf__api_error_set(&error, 400, "invalid_value", "prompt",
                             "%u prompts are more than the %u requests that may wait here",
                             c->n_prompts, most);
    if (error.status == 0 && (reply = create(server, x, c, endpoint)) == NULL)
        no_memory(&error);
    if (error.status != 0 || !encode_all(reply, c, &error)) {
        if (reply != NULL) sheaf__reply_free(reply);
        sheaf__completion_free(c);
        sheaf__exchange_fail(x, &error);
        return;
    }
    sheaf__exchange_on_left(x, on_left, reply);
    pthread_mutex_lock(&reply->gate);
    submit_all(reply, c);
    bool none = reply->n_live == 0;
    reply->begun = reply->stream && reply->error.status == 0;
    if (reply->begun) sheaf__exchange_begin(x, "text/event-stream", ": keepalive\n\n");
    pthread_mutex_unlock(&reply->gate);
    sheaf__completion_free(c);
    if (!none) return; /* the engine's thread has it */
    sheaf__exchange_fail(x, &reply->error);
    sheaf__reply_free(reply);
}

typedef bool reader(const char *body, uint64_t n, const sheaf__api_limits *limits,
                    sheaf__completion *out, sheaf__api_error *error);

static void serve(sheaf__server *server, sheaf__exchange *x, reader *read, uint32_t endpoint)
{
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    const sheaf__api_limits limits = sheaf__server_limits(server);
    sheaf__completion c = {0};
    sheaf__api_error error = {0};
    if (read(body, n, &limits, &c, &error))
        sheaf__reply_start(server, x, &c, endpoint);
    else
        sheaf__exchange_fail(x, &error);
}

void sheaf__serve_chat(void *ctx, sheaf__exchange *x)
{
    serve(ctx, x, sheaf__api_read_chat, SHEAF__ENDPOINT_CHAT);
}

void sheaf__serve_completion(void *ctx, sheaf__exchange *x)
{
    serve(ctx, x, sheaf__api_read_completion, SHEAF__ENDPOINT_COMPLETION);
}
