/* server/answer_json.c - what chunks and whole replies look like.
 *
 * Values are jansson's work. Replies grow as tokens come, and with 20 log-probabilities a token a tree of
 * values would be ten times its text: so what is kept is text, and what is put together at the end is
 * pieces of JSON.
 */
#include "server/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "model/utf8.h"

/* ---- pieces ------------------------------------------------------------------------------ */

static int append(const char *data, size_t n, void *out)
{
    return sheaf__text_append(out, data, n) == SHEAF_OK ? 0 : -1;
}

sheaf_status sheaf__json_put(sheaf__text *out, json_t *value)
{
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9);
    bool good = value != NULL && json_dump_callback(value, append, out, flags) == 0;
    json_decref(value);
    return good ? SHEAF_OK : SHEAF_E_NO_MEMORY;
}

void sheaf__exchange_reply_json(sheaf__exchange *x, json_t *value)
{
    sheaf__text text = {0};
    if (sheaf__json_put(&text, value) == SHEAF_OK) {
        sheaf__exchange_reply(x, 200, "application/json", &text);
    } else {
        sheaf__api_error error;
        sheaf__api_error_set(&error, 500, "out_of_memory", NULL, "no memory for the reply");
        sheaf__exchange_fail(x, &error);
    }
    sheaf__text_free(&text);
}

/* Appends what stands between values. */
static sheaf_status put(sheaf__text *out, const char *literal)
{
    return sheaf__text_append(out, literal, strlen(literal));
}

static sheaf_status put_text(sheaf__text *out, const sheaf__text *text)
{
    return sheaf__json_put(out, json_stringn(text->n != 0 ? text->data : "", text->n));
}

/* ---- tokens ------------------------------------------------------------------------------ */

/* Bytes as OpenAI writes those that are no text. */
static sheaf_status escape(const sheaf__text *bytes, const char *prefix, sheaf__text *out)
{
    SHEAF__TRY(put(out, prefix));
    for (uint64_t i = 0; i < bytes->n; i++) {
        char hex[5];
        snprintf(hex, sizeof hex, "\\x%02x", (unsigned char)bytes->data[i]);
        SHEAF__TRY(put(out, hex));
    }
    return SHEAF_OK;
}

/* bytes: what the token stands for. */
static sheaf_status name_token(int32_t token, const sheaf__text *bytes, const char *prefix,
                               sheaf__text *out)
{
    if (bytes->n == 0) {
        char name[32];
        snprintf(name, sizeof name, "token_id:%d", token);
        return put(out, name);
    }
    if (memchr(bytes->data, 0, bytes->n) != NULL ||
        sheaf__utf8_valid_prefix(bytes->data, bytes->n) != bytes->n)
        return escape(bytes, prefix, out);
    return sheaf__text_append(out, bytes->data, bytes->n);
}

json_t *sheaf__token_name(const sheaf__tokenizer *tok, int32_t token)
{
    sheaf__text bytes = {0}, name = {0};
    json_t *value = NULL;
    if (sheaf__tokenizer_bytes(tok, token, &bytes) == SHEAF_OK &&
        name_token(token, &bytes, "", &name) == SHEAF_OK)
        value = json_stringn(name.data, name.n);
    sheaf__text_free(&bytes);
    sheaf__text_free(&name);
    return value;
}

/* ---- log-probabilities ------------------------------------------------------------------- */

static json_t *bytes_value(const sheaf__text *bytes)
{
    if (bytes->n == 0) return json_null();
    json_t *list = json_array();
    for (uint64_t i = 0; i < bytes->n && list != NULL; i++)
        if (json_array_append_new(list, json_integer((unsigned char)bytes->data[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* A chat's object of one token, without the likeliest beside it. */
static json_t *token_value(const sheaf__tokenizer *tok, int32_t token, float logprob)
{
    sheaf__text bytes = {0};
    json_t *object = json_object();
    bool good = object != NULL && sheaf__tokenizer_bytes(tok, token, &bytes) == SHEAF_OK &&
                json_object_set_new(object, "token", sheaf__token_name(tok, token)) == 0 &&
                json_object_set_new(object, "logprob", json_real((double)logprob)) == 0 &&
                json_object_set_new(object, "bytes", bytes_value(&bytes)) == 0;
    sheaf__text_free(&bytes);
    if (good) return object;
    json_decref(object);
    return NULL;
}

static sheaf_status put_comma(sheaf__text *list)
{
    return list->n == 0 ? SHEAF_OK : put(list, ",");
}

static sheaf_status add_to_chat(sheaf__told *told, const sheaf__tokenizer *tok, int32_t token,
                                const sheaf__logprobs *logprobs)
{
    sheaf__text *list = &told->lists[SHEAF__LIST_TOKENS];
    json_t *object = token_value(tok, token, logprobs->value), *top = json_array();
    bool good = object != NULL && json_object_set_new(object, "top_logprobs", top) == 0;
    for (uint32_t i = 0; i < logprobs->n_top && good; i++)
        good = json_array_append_new(
                   top, token_value(tok, logprobs->top[i].token, logprobs->top[i].value)) == 0;
    if (object == NULL) json_decref(top);
    if (!good) {
        json_decref(object);
        return SHEAF_E_NO_MEMORY;
    }
    sheaf_status st = put_comma(list);
    if (st == SHEAF_OK) return sheaf__json_put(list, object);
    json_decref(object);
    return st;
}

/* A member of the likeliest of a completion's token: by its name, and each name once. */
static sheaf_status set_top(json_t *object, const sheaf__tokenizer *tok, int32_t token,
                            float logprob)
{
    sheaf__text bytes = {0}, name = {0};
    sheaf_status st = sheaf__tokenizer_bytes(tok, token, &bytes);
    if (st == SHEAF_OK) st = name_token(token, &bytes, "bytes:", &name);
    if (st == SHEAF_OK && json_object_get(object, name.data) == NULL &&
        json_object_set_new(object, name.data, json_real((double)logprob)) != 0)
        st = SHEAF_E_NO_MEMORY;
    sheaf__text_free(&bytes);
    sheaf__text_free(&name);
    return st;
}

/* The likeliest, and the token itself. */
static json_t *tops_value(const sheaf__tokenizer *tok, int32_t token,
                          const sheaf__logprobs *logprobs)
{
    if (logprobs == NULL) return json_null();
    json_t *object = json_object();
    if (object == NULL) return NULL;
    sheaf_status st = SHEAF_OK;
    for (uint32_t i = 0; i < logprobs->n_top && st == SHEAF_OK; i++)
        st = set_top(object, tok, logprobs->top[i].token, logprobs->top[i].value);
    if (st == SHEAF_OK) st = set_top(object, tok, token, logprobs->value);
    if (st == SHEAF_OK) return object;
    json_decref(object);
    return NULL;
}

static sheaf_status add_to_completion(sheaf__told *told, const sheaf__tokenizer *tok,
                                      int32_t token, const sheaf__logprobs *logprobs,
                                      bool shown)
{
    sheaf__text bytes = {0}, name = {0};
    json_t *value = logprobs != NULL ? json_real((double)logprobs->value) : json_null();
    json_t *members[SHEAF__LISTS] = {NULL, value, tops_value(tok, token, logprobs),
                                     json_integer((json_int_t)told->n_chars)};
    sheaf_status st = sheaf__tokenizer_bytes(tok, token, &bytes);
    if (st == SHEAF_OK) st = name_token(token, &bytes, "bytes:", &name);
    if (st == SHEAF_OK) members[SHEAF__LIST_TOKENS] = json_stringn(name.data, name.n);
    for (uint32_t i = 0; i < SHEAF__LISTS; i++) {
        if (st == SHEAF_OK) st = put_comma(&told->lists[i]);
        if (st == SHEAF_OK)
            st = sheaf__json_put(&told->lists[i], members[i]);
        else
            json_decref(members[i]);
    }
    for (uint64_t i = 0; shown && i < bytes.n; i++)
        told->n_chars += ((unsigned char)bytes.data[i] & 0xC0) != 0x80;
    sheaf__text_free(&bytes);
    sheaf__text_free(&name);
    return st;
}

sheaf_status sheaf__told_add(sheaf__told *told, const sheaf__reply *reply, int32_t token,
                             const sheaf__logprobs *logprobs, bool shown)
{
    const sheaf__tokenizer *tok = reply->server->model->tokenizer;
    if (reply->endpoint == SHEAF__ENDPOINT_CHAT) return add_to_chat(told, tok, token, logprobs);
    return add_to_completion(told, tok, token, logprobs, shown);
}

sheaf_status sheaf__told_join(sheaf__told *told, const sheaf__told *more)
{
    for (uint32_t i = 0; i < SHEAF__LISTS; i++) {
        if (more->lists[i].n == 0) continue;
        SHEAF__TRY(put_comma(&told->lists[i]));
        SHEAF__TRY(sheaf__text_append(&told->lists[i], more->lists[i].data, more->lists[i].n));
    }
    told->n_chars += more->n_chars;
    return SHEAF_OK;
}

void sheaf__told_clear(sheaf__told *told)
{
    for (uint32_t i = 0; i < SHEAF__LISTS; i++) told->lists[i].n = 0;
}

void sheaf__told_free(sheaf__told *told)
{
    for (uint32_t i = 0; i < SHEAF__LISTS; i++) sheaf__text_free(&told->lists[i]);
}

/* "logprobs": what was told; null where it was not wanted, or a chunk says nothing of a token. */
static sheaf_status put_logprobs(sheaf__text *out, const sheaf__reply *reply,
                                 const sheaf__told *told)
{
    static const char *const names[SHEAF__LISTS] = {"tokens", "token_logprobs", "top_logprobs",
                                                    "text_offset"};
    bool chat = reply->endpoint == SHEAF__ENDPOINT_CHAT;
    SHEAF__TRY(put(out, ",\"logprobs\":"));
    if (!reply->logprobs || (reply->stream && told->lists[0].n == 0)) return put(out, "null");
    for (uint32_t i = 0; i < (chat ? 1 : SHEAF__LISTS); i++) {
        SHEAF__TRY(put(out, i == 0 ? "{\"" : ",\""));
        SHEAF__TRY(put(out, chat ? "content" : names[i]));
        SHEAF__TRY(put(out, "\":["));
        SHEAF__TRY(sheaf__text_append(out, told->lists[i].data, told->lists[i].n));
        SHEAF__TRY(put(out, "]"));
    }
    return put(out, chat ? ",\"refusal\":null}" : "}");
}

/* ---- what chunks and whole replies share ------------------------------------------------- */

static const char *object_name(const sheaf__reply *reply)
{
    if (reply->endpoint != SHEAF__ENDPOINT_CHAT) return "text_completion";
    return reply->stream ? "chat.completion.chunk" : "chat.completion";
}

sheaf_status sheaf__reply_make_head(sheaf__reply *reply)
{
    bool chat = reply->endpoint == SHEAF__ENDPOINT_CHAT;
    const unsigned char *digest = reply->server->options.identity.bytes;
    char id[160], fingerprint[32];
    snprintf(id, sizeof id, "%s%s", chat ? "chatcmpl-" : "cmpl-",
             sheaf__exchange_id(reply->exchange));
    snprintf(fingerprint, sizeof fingerprint, "fp_%02x%02x%02x%02x%02x", digest[0], digest[1],
             digest[2], digest[3], digest[4]);
    sheaf_status st = sheaf__json_put(
        &reply->head,
        json_pack("{s:s,s:s,s:I,s:s,s:s}", "id", id, "object", object_name(reply), "created",
                  (json_int_t)time(NULL), "model", reply->server->options.model_name,
                  "system_fingerprint", fingerprint));
    if (st == SHEAF_OK) reply->head.n--; /* the object goes on */
    return st;
}

/* ,"usage":{...} */
static sheaf_status put_usage(sheaf__text *out, const sheaf__reply *reply)
{
    json_int_t prompt = (json_int_t)reply->prompt_tokens;
    json_int_t answer = (json_int_t)reply->answer_tokens;
    SHEAF__TRY(put(out, ",\"usage\":"));
    return sheaf__json_put(out, json_pack("{s:I,s:I,s:I,s:{s:I}}", "prompt_tokens", prompt,
                                          "completion_tokens", answer, "total_tokens",
                                          prompt + answer, "prompt_tokens_details",
                                          "cached_tokens", (json_int_t)reply->cached_tokens));
}

/* finish: SHEAF__FINISH_NONE while it goes on. */
static sheaf_status put_finish(sheaf__text *out, uint32_t finish)
{
    if (finish == SHEAF__FINISH_NONE) return put(out, ",\"finish_reason\":null}");
    return put(out, finish == SHEAF__FINISH_STOP ? ",\"finish_reason\":\"stop\"}"
                                                 : ",\"finish_reason\":\"length\"}");
}

static sheaf_status put_index(sheaf__text *out, const char *before, uint32_t index)
{
    SHEAF__TRY(put(out, before));
    return sheaf__json_put(out, json_integer(index));
}

/* A completion's choice: streamed and whole ones look alike. */
static sheaf_status put_completion(sheaf__text *out, const sheaf__reply *reply, uint32_t index,
                                   uint32_t finish)
{
    const sheaf__reply_choice *choice = &reply->choices[index];
    SHEAF__TRY(put(out, "{\"text\":"));
    SHEAF__TRY(put_text(out, &choice->text));
    SHEAF__TRY(put_index(out, ",\"index\":", index));
    SHEAF__TRY(put_logprobs(out, reply, &choice->told));
    return put_finish(out, finish);
}

/* ---- chunks ------------------------------------------------------------------------------ */

static sheaf_status put_delta(sheaf__text *out, const sheaf__reply *reply, uint32_t index,
                              uint32_t kind)
{
    const sheaf__reply_choice *choice = &reply->choices[index];
    SHEAF__TRY(put_index(out, "{\"index\":", index));
    if (kind == SHEAF__CHUNK_ROLE) {
        SHEAF__TRY(put(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"));
    } else if (kind == SHEAF__CHUNK_TEXT) {
        SHEAF__TRY(put(out, ",\"delta\":{\"content\":"));
        SHEAF__TRY(put_text(out, &choice->text));
        SHEAF__TRY(put(out, "}"));
    } else {
        SHEAF__TRY(put(out, ",\"delta\":{}"));
    }
    if (kind == SHEAF__CHUNK_TEXT)
        SHEAF__TRY(put_logprobs(out, reply, &choice->told));
    else
        SHEAF__TRY(put(out, ",\"logprobs\":null"));
    return put_finish(out, kind == SHEAF__CHUNK_LAST ? choice->finish : SHEAF__FINISH_NONE);
}

sheaf_status sheaf__reply_make_chunk(sheaf__reply *reply, uint32_t index, uint32_t kind)
{
    sheaf__text *out = &reply->out;
    sheaf__reply_choice *choice = &reply->choices[index];
    out->n = 0;
    SHEAF__TRY(put(out, "data: "));
    SHEAF__TRY(sheaf__text_append(out, reply->head.data, reply->head.n));
    SHEAF__TRY(put(out, ",\"choices\":["));
    if (kind != SHEAF__CHUNK_USAGE) {
        uint32_t finish = kind == SHEAF__CHUNK_LAST ? choice->finish : SHEAF__FINISH_NONE;
        SHEAF__TRY(reply->endpoint == SHEAF__ENDPOINT_CHAT
                       ? put_delta(out, reply, index, kind)
                       : put_completion(out, reply, index, finish));
        choice->text.n = 0;
        sheaf__told_clear(&choice->told);
    }
    SHEAF__TRY(put(out, "]"));
    if (kind == SHEAF__CHUNK_USAGE)
        SHEAF__TRY(put_usage(out, reply));
    else if (reply->include_usage)
        SHEAF__TRY(put(out, ",\"usage\":null"));
    return put(out, "}\n\n");
}

/* ---- whole replies ----------------------------------------------------------------------- */

static sheaf_status put_message(sheaf__text *out, const sheaf__reply *reply, uint32_t index)
{
    const sheaf__reply_choice *choice = &reply->choices[index];
    SHEAF__TRY(put_index(out, "{\"index\":", index));
    SHEAF__TRY(put(out, ",\"message\":{\"role\":\"assistant\",\"content\":"));
    SHEAF__TRY(put_text(out, &choice->text));
    SHEAF__TRY(put(out, ",\"refusal\":null}"));
    SHEAF__TRY(put_logprobs(out, reply, &choice->told));
    return put_finish(out, choice->finish);
}

static sheaf_status put_preload(sheaf__text *out, const sheaf__reply *reply)
{
    json_t *pin = reply->pin != 0 ? json_integer((json_int_t)reply->pin) : json_null();
    return sheaf__json_put(out, json_pack("{s:s,s:I,s:I,s:I,s:I,s:o}", "object",
                                          "cache.preload", "prompt_tokens",
                                          (json_int_t)reply->prompt_tokens, "cached_tokens",
                                          (json_int_t)reply->cached_tokens, "computed_tokens",
                                          (json_int_t)reply->computed_tokens, "pinned_tokens",
                                          (json_int_t)reply->pinned_tokens, "pin", pin));
}

sheaf_status sheaf__reply_make_whole(sheaf__reply *reply, sheaf__text *out)
{
    if (reply->endpoint == SHEAF__ENDPOINT_PRELOAD) return put_preload(out, reply);
    SHEAF__TRY(sheaf__text_append(out, reply->head.data, reply->head.n));
    SHEAF__TRY(put(out, ",\"choices\":["));
    for (uint32_t i = 0; i < reply->n_prompts * reply->n; i++) {
        sheaf__reply_choice *choice = &reply->choices[i];
        if (i != 0) SHEAF__TRY(put(out, ","));
        SHEAF__TRY(reply->endpoint == SHEAF__ENDPOINT_CHAT
                       ? put_message(out, reply, i)
                       : put_completion(out, reply, i, choice->finish));
        sheaf__text_free(&choice->text);
        sheaf__told_free(&choice->told);
    }
    SHEAF__TRY(put(out, "]"));
    SHEAF__TRY(put_usage(out, reply));
    SHEAF__TRY(put(out, ",\"seed\":"));
    SHEAF__TRY(sheaf__json_put(out, json_integer((json_int_t)reply->seed)));
    return put(out, "}");
}
