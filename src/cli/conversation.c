/* cli/conversation.c - turns of question and answer that keep their K and V. */
#include "cli/conversation.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/clock.h"
#include "cli/cli.h"

/* Tokens prefilled between two looks at *stop: enough that reading the weights for them costs little
 * beside the arithmetic, few enough that a stop is obeyed within a second on models of this size. */
#define SLICE_TOKENS 128

/* ---- messages ---------------------------------------------------------------------------- */

static sheaf_status push(sheaf__conversation *c, const char *role, const char *content)
{
    if (c->n == c->capacity) {
        uint32_t capacity = c->capacity == 0 ? 16 : 2 * c->capacity;
        sheaf__message *messages = realloc(c->messages, capacity * sizeof *messages);
        if (messages == NULL) return SHEAF_E_NO_MEMORY;
        c->messages = messages;
        c->capacity = capacity;
    }
    char *copy = strdup(content);
    if (copy == NULL) return SHEAF_E_NO_MEMORY;
    c->messages[c->n++] = (sheaf__message){role, copy};
    return SHEAF_OK;
}

static void pop(sheaf__conversation *c)
{
    free((char *)(uintptr_t)c->messages[--c->n].content);
}

sheaf_status sheaf__conversation_init(sheaf__conversation *c,
                                      const sheaf__sampler_options *sampling)
{
    sheaf__model *model = c->model;
    uint32_t vocab = model->config.vocab;
    SHEAF__TRY(push(c, "system", ""));
    c->logits = malloc(vocab * sizeof *c->logits);
    if (c->logits == NULL) return SHEAF_E_NO_MEMORY;
    SHEAF__TRY(sheaf__sampler_create(sampling, vocab, &model->memory, &c->sampler));
    return sheaf__model_new_kv(model, &c->kv);
}

void sheaf__conversation_close(sheaf__conversation *c)
{
    while (c->n != 0) pop(c);
    free(c->messages);
    free(c->system);
    free(c->logits);
    sheaf__ids_free(&c->answer.tokens);
    sheaf__stream_free(&c->stream);
    sheaf__sampler_destroy(c->sampler);
    sheaf__kv_destroy(&c->kv);
}

sheaf_status sheaf__conversation_system(sheaf__conversation *c, const char *text)
{
    char *copy = NULL;
    if (text != NULL && (copy = strdup(text)) == NULL) return SHEAF_E_NO_MEMORY;
    free(c->system);
    c->system = copy;
    return SHEAF_OK;
}

sheaf_status sheaf__conversation_reset(sheaf__conversation *c)
{
    sheaf__kv fresh;
    SHEAF__TRY(sheaf__model_new_kv(c->model, &fresh));
    sheaf__kv_destroy(&c->kv);
    c->kv = fresh;
    while (c->n > 1) pop(c);
    c->n_turns = 0;
    c->last = (sheaf__turn){0};
    return SHEAF_OK;
}

/* ---- the question ------------------------------------------------------------------------ */

static sheaf_status encode(sheaf__conversation *c, sheaf__ids *ids, sheaf_error *err)
{
    sheaf__text text = {0};
    uint32_t first = c->system == NULL; /* the system's place is left out when it is empty */
    sheaf__message held = c->messages[0];
    c->messages[0].content = c->system;
    sheaf_status status =
        sheaf__chat_render(c->family, c->messages + first, c->n - first, true, &text, err);
    c->messages[0] = held;
    if (status == SHEAF_OK)
        status = sheaf__tokenizer_encode(c->model->tokenizer, text.data, text.n,
                                         SHEAF__ENCODE_PLAIN, ids);
    sheaf__text_free(&text);
    return status;
}

/* Cuts the cache back to what it has in common with the prompt; the last token is always run, since
 * its logits are wanted. */
static sheaf_status keep_prefix(sheaf__conversation *c, const sheaf__ids *ids)
{
    uint32_t n = sheaf__kv_common(&c->kv, ids->data, ids->n - 1);
    sheaf_status status = sheaf__kv_truncate(&c->kv, n);
    if (status == SHEAF_E_SLID) {
        n = 0;
        status = sheaf__kv_truncate(&c->kv, n);
    }
    c->last.n_kept = n;
    return status;
}

/* Runs what the cache does not have yet. SHEAF_E_CANCELLED: *stop; what was run stays in it. */
static sheaf_status prefill(sheaf__conversation *c, const sheaf__ids *ids, sheaf_error *err)
{
    uint32_t begin = c->last.n_kept, total = ids->n - begin, done = 0;
    uint32_t slice = (uint32_t)sheaf__min_u64(c->model->options.prefill_chunk, SLICE_TOKENS);
    uint64_t start = sheaf__clock_ns();
    while (done < total) {
        if (*c->stop) return SHEAF_E_CANCELLED;
        uint32_t n = (uint32_t)sheaf__min_u64(slice, total - done);
        sheaf_status status =
            sheaf__model_prefill(c->model, &c->kv, ids->data + begin + done, n,
                                 done + n == total ? c->logits : NULL, err);
        if (status == SHEAF_FULL || status == SHEAF_E_NO_MEMORY)
            return sheaf__error_set(err, status, "prefill stopped after %u of %u tokens: %s",
                                    done, total, sheaf_status_text(status));
        if (status != SHEAF_OK) return status;
        c->last.n_prefilled = done += n;
        c->last.prefill_ns = sheaf__clock_ns() - start;
        if (c->progress != NULL) c->progress(c->progress_ctx, "prefill", done, total);
    }
    return SHEAF_OK;
}

static sheaf_status read_question(sheaf__conversation *c, sheaf_error *err)
{
    sheaf__ids ids = {0};
    uint32_t limit = c->model->options.ctx_size;
    sheaf_status status = encode(c, &ids, err);
    if (status == SHEAF_OK && ids.n == 0)
        status = sheaf__error_set(err, SHEAF_E_INVALID, "the conversation has no tokens");
    if (status == SHEAF_OK && ids.n > limit)
        status = sheaf__error_set(err, SHEAF_E_CONTEXT,
                                  "with this question the conversation has %u tokens, the "
                                  "context %u",
                                  ids.n, limit);
    if (status == SHEAF_OK) status = keep_prefix(c, &ids);
    if (status == SHEAF_OK) status = prefill(c, &ids, err);
    sheaf__ids_free(&ids);
    return status;
}

/* ---- the answer -------------------------------------------------------------------------- */

/* Streams a token. Non-zero stops the answer: as the user wants, or standard output is gone. */
static int on_token(void *ctx, uint32_t answer, int32_t token)
{
    (void)answer;
    sheaf__conversation *c = ctx;
    c->stream_status = sheaf__stream_token(&c->stream, token);
    return c->stream_status != SHEAF_OK || *c->stop;
}

static sheaf_status write_answer(sheaf__conversation *c, sheaf_error *err)
{
    c->answer.tokens.n = 0;
    c->answer = (sheaf__answer){.kv = &c->kv,
                                .sampler = c->sampler,
                                .max_tokens = c->max_tokens == 0 ? UINT32_MAX : c->max_tokens,
                                .logits = c->logits,
                                .tokens = c->answer.tokens};
    c->stream_status = SHEAF_OK;
    sheaf__stream_begin(&c->stream, c->model->tokenizer, NULL);
    uint64_t start = sheaf__clock_ns();
    sheaf_status status = sheaf__model_decode(c->model, &c->answer, 1, on_token, c, err);
    c->last.decode_ns = sheaf__clock_ns() - start;
    c->last.n_decoded = c->answer.tokens.n;
    bool whole = status == SHEAF_OK && c->answer.finish != SHEAF__FINISH_CANCELLED;
    sheaf_status ended = sheaf__stream_end(&c->stream, whole, status == SHEAF_OK ? err : NULL);
    if (status != SHEAF_OK) return status;
    return c->stream_status != SHEAF_OK && ended == SHEAF_OK ? c->stream_status : ended;
}

static uint32_t outcome_of(const sheaf__conversation *c)
{
    switch (c->answer.finish) {
    case SHEAF__FINISH_CANCELLED: return SHEAF__TURN_STOPPED;
    case SHEAF__FINISH_LENGTH:
        return sheaf__kv_length(&c->kv) >= c->model->options.ctx_size ? SHEAF__TURN_CONTEXT_FULL
                                                                      : SHEAF__TURN_MAX_TOKENS;
    default: return SHEAF__TURN_DONE;
    }
}

/* Puts the answer's text into the conversation; a question without one is taken back. */
static sheaf_status remember(sheaf__conversation *c, bool answered)
{
    const char *text = c->stream.text.n == 0 ? "" : c->stream.text.data;
    sheaf_status status = answered ? push(c, "assistant", text) : SHEAF_OK;
    if (!answered || status != SHEAF_OK)
        pop(c);
    else
        c->n_turns++;
    return status;
}

sheaf_status sheaf__conversation_ask(sheaf__conversation *c, const char *text,
                                     uint32_t *outcome, sheaf_error *err)
{
    c->last = (sheaf__turn){0};
    SHEAF__TRY(push(c, "user", text));
    sheaf_status status = read_question(c, err);
    if (status != SHEAF_OK) {
        pop(c);
        *outcome = SHEAF__TURN_TAKEN_BACK;
        return status == SHEAF_E_CANCELLED ? SHEAF_OK : status;
    }
    status = write_answer(c, err);
    uint32_t how = outcome_of(c);
    bool began = c->stream.text.n != 0;
    bool answered = began || (status == SHEAF_OK && how != SHEAF__TURN_STOPPED);
    *outcome = answered ? how : SHEAF__TURN_TAKEN_BACK;
    sheaf_status remembered = remember(c, answered);
    return status == SHEAF_OK ? remembered : status;
}
