/* server/api_tools.c - the bodies of /tokenize, /detokenize, /apply-template and /v1/cache/reset. */
#include <stdlib.h>
#include <string.h>

#include "server/api_parts.h"

#define COUNT(table) ((uint32_t)(sizeof(table) / sizeof(table)[0]))

static const sheaf__known tokenize_fields[] = {
    {.name = "content"}, {.name = "prompt"},      {.name = "messages"},
    {.name = "model"},   {.name = "add_special"}, {.name = "with_pieces"},
};
static const sheaf__known detokenize_fields[] = {{.name = "tokens"}, {.name = "model"}};
static const sheaf__known template_fields[] = {{.name = "messages"},
                                               {.name = "add_generation_prompt"}};
static const sheaf__known reset_fields[] = {{.name = "cache_salt"},
                                            {.name = "prompt_cache_key"},
                                            {.name = "session"},
                                            {.name = "unpin"}};

/* ---- texts and tokens --------------------------------------------------------------------- */

void sheaf__text_request_free(sheaf__text_request *r)
{
    free(r->messages);
    free(r->prompt.tokens);
    json_decref(r->root);
    *r = (sheaf__text_request){0};
}

static bool settle(bool ok, sheaf__text_request *r, json_t *root, sheaf__text_request *out)
{
    r->root = root;
    if (ok)
        *out = *r;
    else
        sheaf__text_request_free(r);
    return ok;
}

/* One of content, prompt (another name for it) and messages. */
static bool read_source(const sheaf__fields *f, sheaf__text_request *r)
{
    const char *name = sheaf__field_get(f, "content") != NULL ? "content" : "prompt";
    const json_t *text = sheaf__field_get(f, name);
    bool chat = sheaf__field_get(f, "messages") != NULL;
    uint32_t n = (sheaf__field_get(f, "content") != NULL) +
                 (sheaf__field_get(f, "prompt") != NULL) + chat;
    if (n == 0) return sheaf__field_missing(f, "content", "a string; or messages");
    if (n > 1)
        return sheaf__field_fail(f, name, "invalid_value",
                                 "is one too many: say one of content, prompt and messages");
    r->add_special = !chat; /* a rendered conversation has its special tokens */
    if (!sheaf__field_bool(f, "add_special", &r->add_special)) return false;
    if (chat && r->add_special)
        return sheaf__field_fail(f, "add_special", "invalid_value",
                                 "is for texts: rendered messages have their special tokens");
    if (chat) return sheaf__api_read_messages(f, &r->messages, &r->n_messages);
    if (!json_is_string(text)) return sheaf__field_refuse(f, name, "a string", text);
    r->prompt.text = json_string_value(text);
    r->prompt.n_bytes = json_string_length(text);
    return true;
}

bool sheaf__api_read_tokenize(const char *body, uint64_t n, const sheaf__api_limits *limits,
                              sheaf__text_request *out, sheaf__api_error *error)
{
    sheaf__text_request r = {.generate = true};
    sheaf__fields f;
    json_t *root = NULL;
    bool ok =
        sheaf__api_begin(body, n, tokenize_fields, COUNT(tokenize_fields), &root, &f, error) &&
        sheaf__api_read_model(&f, limits) && read_source(&f, &r) &&
        sheaf__field_bool(&f, "with_pieces", &r.with_pieces);
    return settle(ok, &r, root, out);
}

static bool read_token_list(const sheaf__fields *f, uint32_t vocab, sheaf__text_request *r)
{
    const json_t *tokens = sheaf__field_get(f, "tokens");
    if (tokens == NULL) return sheaf__field_missing(f, "tokens", "an array of token ids");
    if (!json_is_array(tokens))
        return sheaf__field_refuse(f, "tokens", "an array of token ids", tokens);
    return sheaf__api_read_tokens(f, "tokens", tokens, vocab, &r->prompt);
}

bool sheaf__api_read_detokenize(const char *body, uint64_t n, const sheaf__api_limits *limits,
                                sheaf__text_request *out, sheaf__api_error *error)
{
    sheaf__text_request r = {0};
    sheaf__fields f;
    json_t *root = NULL;
    bool ok = sheaf__api_begin(body, n, detokenize_fields, COUNT(detokenize_fields), &root, &f,
                               error) &&
              sheaf__api_read_model(&f, limits) && read_token_list(&f, limits->vocab, &r);
    return settle(ok, &r, root, out);
}

bool sheaf__api_read_template(const char *body, uint64_t n, sheaf__text_request *out,
                              sheaf__api_error *error)
{
    sheaf__text_request r = {.generate = true};
    sheaf__fields f;
    json_t *root = NULL;
    bool ok =
        sheaf__api_begin(body, n, template_fields, COUNT(template_fields), &root, &f, error) &&
        sheaf__api_read_messages(&f, &r.messages, &r.n_messages) &&
        sheaf__field_bool(&f, "add_generation_prompt", &r.generate);
    return settle(ok, &r, root, out);
}

/* ---- reset -------------------------------------------------------------------------------- */

void sheaf__cache_reset_free(sheaf__cache_reset *r)
{
    json_decref(r->root);
    *r = (sheaf__cache_reset){0};
}

static bool read_reset(const sheaf__fields *f, sheaf__cache_reset *r)
{
    const char *key = NULL, *session = NULL;
    if (!sheaf__field_string(f, "cache_salt", 1, SHEAF__API_MAX_NAME, &r->cache_salt) ||
        !sheaf__field_string(f, "prompt_cache_key", 1, SHEAF__API_MAX_NAME, &key) ||
        !sheaf__field_string(f, "session", 1, SHEAF__API_MAX_NAME, &session) ||
        !sheaf__field_bool(f, "unpin", &r->unpin))
        return false;
    if ((r->cache_salt != NULL) + (key != NULL) + (session != NULL) > 1)
        return sheaf__field_fail(f, key != NULL ? "prompt_cache_key" : "session",
                                 "invalid_value",
                                 "is one too many: say one of cache_salt, prompt_cache_key and "
                                 "session, or none for everything");
    if (key == NULL) key = session;
    if (key == NULL) return true;
    if (r->unpin)
        return sheaf__field_fail(f, "unpin", "invalid_value",
                                 "is for a cache_salt or for everything, not for one session");
    r->session = sheaf__api_session(key);
    return r->session != 0 || sheaf__fields_no_memory(f);
}

bool sheaf__api_read_reset(const char *body, uint64_t n, sheaf__cache_reset *out,
                           sheaf__api_error *error)
{
    sheaf__cache_reset r = {0};
    sheaf__fields f;
    json_t *root = NULL;
    if (n == 0) {
        *out = r;
        return true;
    }
    bool ok = sheaf__api_begin(body, n, reset_fields, COUNT(reset_fields), &root, &f, error) &&
              read_reset(&f, &r);
    r.root = root;
    if (ok)
        *out = r;
    else
        sheaf__cache_reset_free(&r);
    return ok;
}
