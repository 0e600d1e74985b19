/* server/api.c - the bodies of requests for answers, and the tables of their fields. */
#include "server/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "engine/logprobs.h"
#include "server/api_parts.h"
#include "sheaf/ledger.h"

#define COUNT(table) ((uint32_t)(sizeof(table) / sizeof(table)[0]))

#define READ(field)                                                                            \
    {                                                                                          \
        .name = field                                                                          \
    }
#define IGNORED(field, kind)                                                                   \
    {                                                                                          \
        .name = field, .how = SHEAF__FIELD_IGNORED, .type = kind                               \
    }
#define NEUTRAL(field, values)                                                                 \
    {                                                                                          \
        .name = field, .how = SHEAF__FIELD_NEUTRAL, .neutral = values                          \
    }

#define FIELDS_OF_BOTH                                                                         \
    READ("model"), READ("temperature"), READ("top_p"), READ("top_k"), READ("min_p"),           \
        READ("seed"), READ("presence_penalty"), READ("frequency_penalty"), READ("logit_bias"), \
        READ("stop"), READ("ignore_eos"), READ("stream"), READ("stream_options"), READ("n"),   \
        READ("max_tokens"), READ("logprobs"), READ("cache_salt"), READ("prompt_cache_key"),    \
        READ("priority"), IGNORED("user", JSON_STRING)

/* checklist: docs/api.md lists the same */
static const sheaf__known chat_fields[] = {
    FIELDS_OF_BOTH,
    READ("messages"),
    READ("max_completion_tokens"),
    READ("top_logprobs"),
    IGNORED("metadata", JSON_OBJECT),
    IGNORED("parallel_tool_calls", JSON_TRUE),
    IGNORED("safety_identifier", JSON_STRING),
    IGNORED("prompt_cache_retention", JSON_STRING),
    NEUTRAL("store", "false"),
    NEUTRAL("service_tier", "\"auto\", \"default\""),
    NEUTRAL("tools", "[]"),
    NEUTRAL("tool_choice", "\"none\", \"auto\""),
    NEUTRAL("functions", "[]"),
    NEUTRAL("function_call", "\"none\", \"auto\""),
    NEUTRAL("response_format", "{\"type\": \"text\"}"),
    NEUTRAL("modalities", "[\"text\"]"),
    NEUTRAL("audio", ""),
    NEUTRAL("prediction", ""),
    NEUTRAL("reasoning_effort", ""),
    NEUTRAL("verbosity", "\"medium\""),
    NEUTRAL("web_search_options", ""),
};

static const sheaf__known completion_fields[] = {
    FIELDS_OF_BOTH, READ("prompt"), READ("echo"), READ("best_of"), NEUTRAL("suffix", "\"\""),
};

static const sheaf__known preload_fields[] = {
    READ("model"),    READ("messages"), READ("prompt"),           READ("cache_salt"),
    READ("priority"), READ("pin"),      READ("prompt_cache_key"),
};

/* ---- what they have in common ------------------------------------------------------------- */

bool sheaf__api_begin(const char *body, uint64_t n, const sheaf__known *known, uint32_t n_known,
                      json_t **root, sheaf__fields *f, sheaf__api_error *error)
{
    if (!sheaf__body_parse(body, n, error, root)) return false;
    *f = (sheaf__fields){"", *root, error};
    return sheaf__fields_known(f, known, n_known);
}

bool sheaf__api_read_model(const sheaf__fields *f, const sheaf__api_limits *limits)
{
    const char *model = NULL;
    if (!sheaf__field_string(f, "model", 0, UINT32_MAX, &model)) return false;
    if (model == NULL || strcmp(model, limits->model) == 0) return true;
    return sheaf__api_error_set(
        f->error, 404, "model_not_found", "model",
        "the model '%.128s' is not served here: this server has '%.128s'", model,
        limits->model);
}

uint64_t sheaf__api_session(const char *name)
{
    unsigned char digest[SHEAF__SHA256_BYTES];
    uint64_t session = 0;
    if (sheaf__sha256_of(name, strlen(name), digest) != SHEAF_OK) return 0;
    for (uint32_t i = 8; i > 0; i--) session = session << 8 | digest[i - 1];
    return session != 0 ? session : 1;
}

void sheaf__completion_free(sheaf__completion *c)
{
    for (uint32_t i = 0; i < c->n_prompts; i++) free(c->prompts[i].tokens);
    free(c->prompts);
    free(c->messages);
    free(c->bias);
    json_decref(c->root);
    *c = (sheaf__completion){0};
}

/* Hands over what was read, or frees it. */
static bool settle(bool ok, sheaf__completion *c, json_t *root, sheaf__completion *out)
{
    c->root = root;
    if (ok)
        *out = *c;
    else
        sheaf__completion_free(c);
    return ok;
}

/* ---- chats -------------------------------------------------------------------------------- */

static bool read_chat_length(const sheaf__fields *f, sheaf__completion *c)
{
    int64_t most = 0;
    if (sheaf__field_get(f, "max_tokens") != NULL &&
        sheaf__field_get(f, "max_completion_tokens") != NULL)
        return sheaf__field_fail(f, "max_tokens", "invalid_value",
                                 "and max_completion_tokens are the same: say one of them");
    if (!sheaf__field_integer(f, "max_tokens", 1, INT32_MAX, &most) ||
        !sheaf__field_integer(f, "max_completion_tokens", 1, INT32_MAX, &most))
        return false;
    c->max_tokens = (uint32_t)most;
    c->has_max_tokens = most != 0;
    return true;
}

static bool read_chat_logprobs(const sheaf__fields *f, sheaf__completion *c)
{
    int64_t n_top = 0;
    if (!sheaf__field_bool(f, "logprobs", &c->logprobs) ||
        !sheaf__field_integer(f, "top_logprobs", 0, SHEAF__MAX_TOP, &n_top))
        return false;
    if (sheaf__field_get(f, "top_logprobs") != NULL && !c->logprobs)
        return sheaf__field_fail(f, "top_logprobs", "invalid_value",
                                 "is only allowed when logprobs is true");
    c->n_top = (uint32_t)n_top;
    return true;
}

bool sheaf__api_read_chat(const char *body, uint64_t n, const sheaf__api_limits *limits,
                          sheaf__completion *out, sheaf__api_error *error)
{
    sheaf__completion c = {.chat = true};
    sheaf__fields f;
    json_t *root = NULL;
    bool ok = sheaf__api_begin(body, n, chat_fields, COUNT(chat_fields), &root, &f, error) &&
              sheaf__api_read_model(&f, limits) &&
              sheaf__api_read_messages(&f, &c.messages, &c.n_messages) &&
              sheaf__api_read_sampling(&f, limits, &c) && read_chat_length(&f, &c) &&
              read_chat_logprobs(&f, &c) && sheaf__api_read_cache(&f, &c);
    return settle(ok, &c, root, out);
}

/* ---- completions -------------------------------------------------------------------------- */

/* The best of more answers than are told is not looked for. */
static bool read_best_of(const sheaf__fields *f, const sheaf__completion *c)
{
    int64_t best_of = c->n;
    if (!sheaf__field_integer(f, "best_of", 1, INT32_MAX, &best_of)) return false;
    return best_of == c->n ||
           sheaf__field_fail(
               f, "best_of", "unsupported_parameter",
               "is not supported by this server: leave it out, or say what n says");
}

static bool read_completion_length(const sheaf__fields *f, sheaf__completion *c)
{
    int64_t most = 16;
    if (!sheaf__field_bool(f, "echo", &c->echo) ||
        !sheaf__field_integer(f, "max_tokens", 0, INT32_MAX, &most))
        return false;
    if (most == 0 && !c->echo)
        return sheaf__field_fail(f, "max_tokens", "invalid_value",
                                 "must be at least 1; 0 is only allowed when echo is true");
    c->max_tokens = (uint32_t)most;
    c->has_max_tokens = sheaf__field_get(f, "max_tokens") != NULL;
    return true;
}

static bool read_completion_logprobs(const sheaf__fields *f, sheaf__completion *c)
{
    int64_t n_top = 0;
    if (!sheaf__field_integer(f, "logprobs", 0, SHEAF__MAX_TOP, &n_top)) return false;
    c->logprobs = sheaf__field_get(f, "logprobs") != NULL;
    c->n_top = (uint32_t)n_top;
    return true;
}

static bool check_choices(const sheaf__fields *f, const sheaf__api_limits *limits,
                          const sheaf__completion *c)
{
    uint32_t most = sheaf__api_max_choices(limits);
    if ((uint64_t)c->n * c->n_prompts <= most) return true;
    char rest[96];
    snprintf(rest, sizeof rest, "times %u prompts is more than the %u answers of one request",
             c->n_prompts, most);
    return sheaf__field_fail(f, "n", "invalid_value", rest);
}

bool sheaf__api_read_completion(const char *body, uint64_t n, const sheaf__api_limits *limits,
                                sheaf__completion *out, sheaf__api_error *error)
{
    sheaf__completion c = {0};
    sheaf__fields f;
    json_t *root = NULL;
    bool ok = sheaf__api_begin(body, n, completion_fields, COUNT(completion_fields), &root, &f,
                               error) &&
              sheaf__api_read_model(&f, limits) &&
              sheaf__api_read_prompts(&f, limits->vocab, sheaf__api_max_choices(limits),
                                      &c.prompts, &c.n_prompts) &&
              sheaf__api_read_sampling(&f, limits, &c) && check_choices(&f, limits, &c) &&
              read_best_of(&f, &c) && read_completion_length(&f, &c) &&
              read_completion_logprobs(&f, &c) && sheaf__api_read_cache(&f, &c);
    return settle(ok, &c, root, out);
}

/* ---- preloading --------------------------------------------------------------------------- */

static bool read_pin(const sheaf__fields *f, sheaf__completion *c)
{
    const json_t *value = sheaf__field_get(f, "pin");
    const char *word = json_string_value(value);
    if (value == NULL || json_is_boolean(value)) {
        c->pin = json_is_true(value);
        return true;
    }
    if (word == NULL || strcmp(word, "revocable") != 0)
        return sheaf__field_refuse(f, "pin", "true, false or \"revocable\"", value);
    c->pin = true;
    c->pin_flags = SHEAF_PIN_REVOCABLE;
    return true;
}

static bool read_preloaded(const sheaf__fields *f, const sheaf__api_limits *limits,
                           sheaf__completion *c)
{
    c->chat = sheaf__field_get(f, "messages") != NULL;
    if (c->chat && sheaf__field_get(f, "prompt") != NULL)
        return sheaf__field_fail(f, "prompt", "invalid_value",
                                 "and messages exclude each other: say one of them");
    if (c->chat) return sheaf__api_read_messages(f, &c->messages, &c->n_messages);
    if (sheaf__field_get(f, "prompt") == NULL)
        return sheaf__field_missing(f, "prompt",
                                    "a string or an array of token ids; or messages");
    return sheaf__api_read_prompts(f, limits->vocab, 1, &c->prompts, &c->n_prompts);
}

bool sheaf__api_read_preload(const char *body, uint64_t n, const sheaf__api_limits *limits,
                             sheaf__completion *out, sheaf__api_error *error)
{
    sheaf__completion c = {.n = 1};
    sheaf__fields f;
    json_t *root = NULL;
    bool ok =
        sheaf__api_begin(body, n, preload_fields, COUNT(preload_fields), &root, &f, error) &&
        sheaf__api_read_model(&f, limits) && read_preloaded(&f, limits, &c) &&
        sheaf__api_read_cache(&f, &c) && read_pin(&f, &c);
    return settle(ok, &c, root, out);
}
