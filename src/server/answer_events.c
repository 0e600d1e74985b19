/* server/answer_events.c - what the engine tells, and what is made of it: on the engine's thread.
 *
 * A step waits for what is done here, so it is little: a token's text, its JSON, one write that never
 * waits. After an error (also of a client that has left) only the ends are counted.
 */
#include "server/answer.h"

#include "base/clock.h"
#include "base/status.h"

#define DONE "data: [DONE]\n\n"

/* ---- what goes wrong --------------------------------------------------------------------- */

static bool failed(const sheaf__reply *reply)
{
    return reply->error.status != 0;
}

/* The first error is the reply's; what still runs is not wanted any more. */
static void fail(sheaf__reply *reply, sheaf_status st)
{
    if (failed(reply)) return;
    if (st == SHEAF_FULL)
        sheaf__api_error_set(&reply->error, 503, "no_room", NULL,
                             "pins leave no room for this prompt in the KV cache");
    else if (st != SHEAF_E_CANCELLED)
        sheaf__api_error_set(&reply->error, 500, NULL, NULL, "the answer failed: %s",
                             sheaf_status_text(st));
    else if (atomic_load(&reply->left))
        sheaf__api_error_set(&reply->error, 503, NULL, NULL, "the client has left");
    else
        sheaf__api_error_set(&reply->error, 503, "shutting_down", NULL,
                             "the server is shutting down");
    sheaf__reply_cancel(reply);
}

/* Bytes that are kept until the reply, or its next chunk, is made. */
static uint64_t bytes_of(const sheaf__text *text, const sheaf__told *told)
{
    uint64_t n = text->n;
    for (uint32_t i = 0; i < SHEAF__LISTS; i++) n += told->lists[i].n;
    return n;
}

/* Counts what has been kept since there were `before` bytes: too much is the reply's error. */
static void count_held(sheaf__reply *reply, uint64_t before, uint64_t now)
{
    uint64_t most = reply->server->options.max_reply_bytes;
    reply->held_bytes += now - before;
    if (failed(reply) || reply->held_bytes <= most) return;
    sheaf__api_error_set(&reply->error, 400, "reply_too_large", NULL,
                         "the reply has more than %llu bytes: ask for fewer choices, tokens or "
                         "log-probabilities, or for a stream",
                         (unsigned long long)most);
    sheaf__reply_cancel(reply);
}

/* ---- chunks ------------------------------------------------------------------------------ */

static void write_chunk(sheaf__reply *reply, uint32_t index, uint32_t kind)
{
    sheaf_status st = sheaf__reply_make_chunk(reply, index, kind);
    if (st == SHEAF_OK)
        st = sheaf__exchange_write(reply->exchange, reply->out.data, reply->out.n);
    if (st == SHEAF_E_CANCELLED) atomic_store(&reply->left, true); /* or reads nothing */
    if (st != SHEAF_OK) fail(reply, st);
}

static sheaf__reply_choice *choice_of(const sheaf__reply_prompt *prompt, uint32_t choice)
{
    return &prompt->reply->choices[prompt->index * prompt->reply->n + choice];
}

/* Before the first token of a choice, or its end: who speaks, or what is echoed. */
static void begin(sheaf__reply_prompt *prompt, uint32_t index)
{
    sheaf__reply *reply = prompt->reply;
    sheaf__reply_choice *choice = &reply->choices[index];
    if (choice->begun) return;
    choice->begun = true;
    if (reply->echo && !failed(reply)) {
        sheaf_status st = sheaf__text_append(&choice->text, prompt->text.data, prompt->text.n);
        if (st == SHEAF_OK) st = sheaf__told_join(&choice->told, &prompt->told);
        if (st != SHEAF_OK) fail(reply, st);
        if (!reply->stream) count_held(reply, 0, bytes_of(&choice->text, &choice->told));
        if (reply->stream && !failed(reply)) write_chunk(reply, index, SHEAF__CHUNK_TEXT);
    } else if (reply->stream && reply->endpoint == SHEAF__ENDPOINT_CHAT) {
        write_chunk(reply, index, SHEAF__CHUNK_ROLE);
    }
}

/* ---- events ------------------------------------------------------------------------------ */

static void count_token(sheaf__reply_prompt *prompt, sheaf__reply_choice *choice, uint32_t n)
{
    sheaf__metrics *metrics = &prompt->reply->server->metrics;
    uint64_t now = sheaf__clock_ns();
    if (choice->told_ns != 0)
        sheaf__metrics_time(metrics, SHEAF__TIME_NEXT_TOKEN, now - choice->told_ns);
    else if (n == 0)
        sheaf__metrics_time(metrics, SHEAF__TIME_FIRST_TOKEN, now - prompt->served.asked_ns);
    choice->told_ns = now;
    prompt->n_answer++;
}

/* A token of the prompt itself. */
static void hear_prompt(sheaf__reply_prompt *prompt, const sheaf__engine_event *e)
{
    sheaf__reply *reply = prompt->reply;
    if (failed(reply)) return;
    uint64_t before = bytes_of(&prompt->text, &prompt->told);
    sheaf_status st = sheaf__told_add(&prompt->told, reply, e->token, e->logprobs, true);
    if (st != SHEAF_OK) fail(reply, st);
    count_held(reply, before, bytes_of(&prompt->text, &prompt->told));
}

/* Non-zero: a stop text has been met. */
static int hear_token(sheaf__reply_prompt *prompt, const sheaf__engine_event *e)
{
    sheaf__reply *reply = prompt->reply;
    sheaf__reply_choice *choice = choice_of(prompt, e->choice);
    uint32_t index = (uint32_t)(choice - reply->choices);
    const sheaf__tokenizer *tok = reply->server->model->tokenizer;
    bool stopped = false;
    count_token(prompt, choice, e->choice);
    begin(prompt, index);
    if (failed(reply)) return 0;
    uint64_t before = bytes_of(&choice->text, &choice->told);
    sheaf_status st =
        sheaf__reply_text_push(&choice->decoder, e->token, &choice->text, &stopped);
    if (st == SHEAF_OK && reply->logprobs)
        st = sheaf__told_add(&choice->told, reply, e->token, e->logprobs,
                             !sheaf__tokenizer_is_special(tok, e->token));
    if (!reply->stream) count_held(reply, before, bytes_of(&choice->text, &choice->told));
    if (st != SHEAF_OK)
        fail(reply, st);
    else if (reply->stream && (choice->text.n != 0 || reply->logprobs))
        write_chunk(reply, index, SHEAF__CHUNK_TEXT);
    return stopped;
}

static void hear_over(sheaf__reply_prompt *prompt, const sheaf__engine_event *e)
{
    sheaf__reply *reply = prompt->reply;
    sheaf__reply_choice *choice = choice_of(prompt, e->choice);
    uint32_t index = (uint32_t)(choice - reply->choices);
    bool whole = e->finish == SHEAF__FINISH_STOP || e->finish == SHEAF__FINISH_LENGTH;
    atomic_fetch_add_explicit(&reply->server->metrics.finishes[e->finish], 1,
                              memory_order_relaxed);
    if (!whole) fail(reply, e->finish == SHEAF__FINISH_ERROR ? e->status : SHEAF_E_CANCELLED);
    if (failed(reply) || reply->endpoint == SHEAF__ENDPOINT_PRELOAD) return;
    begin(prompt, index);
    sheaf_status st = sheaf__reply_text_finish(&choice->decoder, &choice->text);
    choice->finish = choice->decoder.stopped ? SHEAF__FINISH_STOP : e->finish;
    sheaf__reply_text_free(&choice->decoder);
    if (st != SHEAF_OK) fail(reply, st);
    if (failed(reply) || !reply->stream) return;
    if (reply->endpoint == SHEAF__ENDPOINT_CHAT && choice->text.n != 0)
        write_chunk(reply, index, SHEAF__CHUNK_TEXT);
    if (!failed(reply)) write_chunk(reply, index, SHEAF__CHUNK_LAST);
}

/* ---- the end ----------------------------------------------------------------------------- */

static void count_done(sheaf__reply_prompt *prompt, const sheaf__engine_event *e)
{
    sheaf__reply *reply = prompt->reply;
    sheaf__metrics *metrics = &reply->server->metrics;
    reply->prompt_tokens += e->n_prompt;
    reply->cached_tokens += e->cached_tokens;
    reply->computed_tokens += e->n_computed;
    reply->answer_tokens += prompt->n_answer;
    reply->pin = e->pin;
    reply->pinned_tokens = e->pinned_tokens;
    if (failed(reply)) return;
    sheaf__metrics_time(metrics, SHEAF__TIME_REQUEST,
                        sheaf__clock_ns() - prompt->served.asked_ns);
    sheaf__metrics_size(metrics, SHEAF__SIZE_PROMPT, e->n_prompt);
    sheaf__metrics_size(metrics, SHEAF__SIZE_ANSWER, prompt->n_answer);
    atomic_fetch_add_explicit(&metrics->prompt_tokens, e->n_prompt, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->cached_tokens, e->cached_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->answer_tokens, prompt->n_answer, memory_order_relaxed);
}

static void end_stream(sheaf__reply *reply)
{
    if (!failed(reply) && reply->include_usage) write_chunk(reply, 0, SHEAF__CHUNK_USAGE);
    sheaf__text *out = &reply->out;
    out->n = 0;
    sheaf_status st;
    if (failed(reply)) {
        st = sheaf__text_append(out, "data: ", 6);
        if (st == SHEAF_OK) st = sheaf__api_error_render(&reply->error, out);
        if (st == SHEAF_OK) st = sheaf__text_append(out, "\n\n", 2);
    } else {
        st = sheaf__text_append(out, DONE, sizeof DONE - 1);
    }
    /* A client that gets no last event knows that the stream was cut. */
    if (st == SHEAF_OK) (void)sheaf__exchange_write(reply->exchange, out->data, out->n);
    sheaf__exchange_end(reply->exchange);
}

static void finish(sheaf__reply *reply)
{
    sheaf__text whole = {0};
    sheaf__log_line(reply->server->log, SHEAF__LOG_INFO, "answer done", "id", "s",
                    sheaf__exchange_id(reply->exchange), "prompt_tokens", "U",
                    reply->prompt_tokens, "cached_tokens", "U", reply->cached_tokens,
                    "answer_tokens", "U", reply->answer_tokens, "error", "s",
                    failed(reply) ? reply->error.message : NULL, NULL);
    if (reply->begun) {
        end_stream(reply);
    } else {
        if (!failed(reply)) {
            sheaf_status st = sheaf__reply_make_whole(reply, &whole);
            if (st != SHEAF_OK) fail(reply, st);
        }
        if (failed(reply))
            sheaf__exchange_fail(reply->exchange, &reply->error);
        else
            sheaf__exchange_reply(reply->exchange, 200, "application/json", &whole);
    }
    sheaf__text_free(&whole);
    sheaf__reply_free(reply);
}

int sheaf__reply_hear(sheaf__served *served, const sheaf__engine_event *e)
{
    sheaf__reply_prompt *prompt = (sheaf__reply_prompt *)served;
    sheaf__reply *reply = prompt->reply;
    if (!prompt->heard) { /* the worker has submitted all */
        pthread_mutex_lock(&reply->gate);
        pthread_mutex_unlock(&reply->gate);
        prompt->heard = true;
    }
    switch (e->kind) {
    case SHEAF__EVENT_ADMITTED:
        sheaf__metrics_time(&reply->server->metrics, SHEAF__TIME_QUEUE,
                            sheaf__clock_ns() - served->asked_ns);
        return 0;
    case SHEAF__EVENT_PROMPT: hear_prompt(prompt, e); return 0;
    case SHEAF__EVENT_TOKEN: return hear_token(prompt, e);
    case SHEAF__EVENT_OVER: hear_over(prompt, e); return 0;
    case SHEAF__EVENT_DONE:
        count_done(prompt, e);
        sheaf__text_free(&prompt->text);
        sheaf__told_free(&prompt->told);
        if (--reply->n_live == 0) finish(reply);
        return 0;
    default: return 0;
    }
}
