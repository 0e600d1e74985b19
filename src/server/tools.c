/* server/tools.c - what is answered without the engine: tokens, templates, what is served. */
#include "server/answer.h"

#include <stdio.h>

#include "base/status.h"

static bool no_memory(sheaf__api_error *error)
{
    return sheaf__api_error_set(error, 500, "out_of_memory", NULL, "no memory for the reply");
}

/* ---- /tokenize, /detokenize -------------------------------------------------------------- */

/* A tree of values would take a hundred times the bytes of its text. SHEAF_REFUSED: too many for one
 * reply. */
static sheaf_status put_tokens(const sheaf__tokenizer *tok, const sheaf__ids *ids,
                               bool with_pieces, uint64_t most, sheaf__text *out)
{
    char part[48];
    int n = snprintf(part, sizeof part, "{\"tokens\":[");
    for (uint32_t i = 0; i < ids->n; i++) {
        SHEAF__TRY(sheaf__text_append(out, part, (uint64_t)n));
        if (out->n > most) return SHEAF_REFUSED;
        n = snprintf(part, sizeof part, with_pieces ? "{\"id\":%d,\"piece\":" : "%d",
                     ids->data[i]);
        SHEAF__TRY(sheaf__text_append(out, part, (uint64_t)n));
        if (with_pieces) SHEAF__TRY(sheaf__json_put(out, sheaf__token_name(tok, ids->data[i])));
        n = snprintf(part, sizeof part, with_pieces ? "}," : ",");
    }
    if (ids->n != 0) n--; /* no comma after the last */
    SHEAF__TRY(sheaf__text_append(out, part, (uint64_t)n));
    n = snprintf(part, sizeof part, "],\"count\":%u}", ids->n);
    return sheaf__text_append(out, part, (uint64_t)n);
}

void sheaf__serve_tokenize(void *ctx, sheaf__exchange *x)
{
    const sheaf__server *server = ctx;
    const sheaf__api_limits limits = sheaf__server_limits(server);
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    sheaf__text_request r = {0};
    sheaf__api_error error = {0};
    sheaf__ids ids = {0};
    sheaf__text text = {0};
    bool good = sheaf__api_read_tokenize(body, n, &limits, &r, &error);
    uint32_t flags = r.add_special ? SHEAF__ENCODE_POST_PROCESS : SHEAF__ENCODE_PLAIN;
    if (good)
        good = r.messages != NULL
                   ? sheaf__encode_messages(server, r.messages, r.n_messages, &ids, &error)
                   : sheaf__encode_prompt(server, &r.prompt, flags, &ids, &error);
    if (good) {
        uint64_t most = server->options.max_reply_bytes;
        sheaf_status st =
            put_tokens(server->model->tokenizer, &ids, r.with_pieces, most, &text);
        if (st == SHEAF_REFUSED)
            good = sheaf__api_error_set(&error, 400, "reply_too_large", NULL,
                                        "the tokens are more than a reply of %llu bytes has "
                                        "room for: send the text in parts",
                                        (unsigned long long)most);
        else if (st != SHEAF_OK)
            good = no_memory(&error);
    }
    if (good)
        sheaf__exchange_reply(x, 200, "application/json", &text);
    else
        sheaf__exchange_fail(x, &error);
    sheaf__text_free(&text);
    sheaf__ids_free(&ids);
    sheaf__text_request_free(&r);
}

/* Replies with one text, and frees it. */
static void reply_text(sheaf__exchange *x, const char *name, sheaf__text *text)
{
    sheaf__exchange_reply_json(
        x, json_pack("{s:o}", name,
                     json_stringn(text->n != 0 ? text->data : "", (size_t)text->n)));
    sheaf__text_free(text);
}

void sheaf__serve_detokenize(void *ctx, sheaf__exchange *x)
{
    const sheaf__server *server = ctx;
    const sheaf__api_limits limits = sheaf__server_limits(server);
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    sheaf__text_request r = {0};
    sheaf__api_error error = {0};
    sheaf__text text = {0};
    bool good = sheaf__api_read_detokenize(body, n, &limits, &r, &error);
    if (good && sheaf__tokenizer_decode(server->model->tokenizer, r.prompt.tokens,
                                        r.prompt.n_tokens, false, &text) != SHEAF_OK)
        good = no_memory(&error);
    if (good)
        reply_text(x, "content", &text);
    else
        sheaf__exchange_fail(x, &error);
    sheaf__text_request_free(&r);
}

void sheaf__serve_template(void *ctx, sheaf__exchange *x)
{
    const sheaf__server *server = ctx;
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    sheaf__text_request r = {0};
    sheaf__api_error error = {0};
    sheaf__text text = {0};
    if (sheaf__api_read_template(body, n, &r, &error) &&
        sheaf__render_messages(server, r.messages, r.n_messages, r.generate, &text, &error))
        reply_text(x, "prompt", &text);
    else
        sheaf__exchange_fail(x, &error);
    sheaf__text_request_free(&r);
}

/* ---- /v1/models, /props ------------------------------------------------------------------ */

void sheaf__serve_models(void *ctx, sheaf__exchange *x)
{
    const sheaf__server *server = ctx;
    const sheaf__config *config = &server->model->config;
    json_t *meta =
        json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "n_vocab", (json_int_t)config->vocab,
                  "n_ctx", (json_int_t)server->model->options.ctx_size, "n_ctx_train",
                  (json_int_t)config->max_positions, "n_layers", (json_int_t)config->n_layers,
                  "n_embd", (json_int_t)config->hidden, "n_heads", (json_int_t)config->n_heads,
                  "n_kv_heads", (json_int_t)config->n_kv_heads);
    sheaf__exchange_reply_json(x, json_pack("{s:s,s:[{s:s,s:s,s:I,s:s,s:o}]}", "object", "list",
                                            "data", "id", server->options.model_name, "object",
                                            "model", "created", (json_int_t)server->created,
                                            "owned_by", "sheaf", "meta", meta));
}

/* What a request has that says nothing of sampling. */
static json_t *sampling_defaults(void)
{
    return json_pack("{s:f,s:f,s:I,s:f,s:f,s:f,s:I,s:n}", "temperature", 1.0, "top_p", 1.0,
                     "top_k", (json_int_t)0, "min_p", 0.0, "presence_penalty", 0.0,
                     "frequency_penalty", 0.0, "n", (json_int_t)1, "seed");
}

static json_t *limits_value(const sheaf__server *server)
{
    const sheaf__engine_options *o = sheaf__engine_settings(server->engine);
    return json_pack("{s:I,s:I,s:I,s:I}", "parallel", (json_int_t)o->parallel, "max_queue",
                     (json_int_t)o->max_queue, "batch_tokens", (json_int_t)o->batch_tokens,
                     "prefill_chunk", (json_int_t)o->prefill_chunk);
}

static json_t *kv_value(const sheaf__server *server)
{
    const sheaf__model_options *o = &server->model->options;
    const sheaf_pool *pool = server->model->pool;
    json_t *block = pool != NULL ? json_integer(sheaf_pool_block_tokens(pool)) : json_null();
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    json_t *budget = pool != NULL && sheaf_pool_stats_read(pool, &stats) == SHEAF_OK
                         ? json_integer((json_int_t)stats.budget_bytes)
                         : json_null();
    bool cache = pool != NULL && !server->options.engine.no_prompt_cache;
    return json_pack("{s:s,s:s,s:s,s:o,s:o,s:b}", "backend", pool != NULL ? "paged" : "dense",
                     "k_dtype", sheaf_codec_name(o->codec_k), "v_dtype",
                     sheaf_codec_name(o->codec_v), "budget_bytes", budget, "block_size", block,
                     "prompt_cache", cache);
}

void sheaf__serve_props(void *ctx, sheaf__exchange *x)
{
    const sheaf__server *server = ctx;
    uint32_t family = server->options.chat_family;
    json_t *chat =
        family != SHEAF__CHAT_NONE ? json_string(sheaf__chat_name(family)) : json_null();
    sheaf__exchange_reply_json(
        x, json_pack("{s:s,s:s,s:s?,s:s,s:I,s:o,s:o,s:o,s:o}", "object", "props", "version",
                     sheaf_version(), "model_path", server->options.model_path, "model",
                     server->options.model_name, "n_ctx",
                     (json_int_t)server->model->options.ctx_size, "chat_template", chat,
                     "default_sampling", sampling_defaults(), "limits", limits_value(server),
                     "kv", kv_value(server)));
}
