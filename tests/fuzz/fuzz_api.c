/* fuzz/fuzz_api.c - the body of a request. The first byte says which one reads it: its lowest three bits
 * one of the seven (two say tokenize); bit 3, for a server of few choices. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "engine/logprobs.h"
#include "model/utf8.h"
#include "server/api.h"
#include "sheaf/ledger.h"
#include "sheaf/prefix.h"

#define VOCAB 1000

static bool is_utf8(const char *text)
{
    return sheaf__utf8_valid_prefix(text, strlen(text)) == strlen(text);
}

/* What is refused says why, in UTF-8 and in JSON. */
static void check_error(const sheaf__api_error *e)
{
    sheaf__text text = {NULL, 0, 0};
    FUZZ_CHECK(e->status == 400 || e->status == 404 || e->status == 413);
    FUZZ_CHECK(e->type != NULL && e->code != NULL && e->message[0] != 0);
    FUZZ_CHECK(is_utf8(e->message) && is_utf8(e->param));
    FUZZ_CHECK(sheaf__api_error_render(e, &text) == SHEAF_OK);
    sheaf__text_free(&text);
}

static void check_name(const char *name)
{
    FUZZ_CHECK(name[0] != 0 && strlen(name) <= 256 && is_utf8(name));
}

static void check_messages(const sheaf__message *messages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *role = messages[i].role;
        FUZZ_CHECK(strcmp(role, "system") == 0 || strcmp(role, "user") == 0 ||
                   strcmp(role, "assistant") == 0);
        FUZZ_CHECK(is_utf8(messages[i].content));
    }
}

static void check_prompt(const sheaf__api_prompt *prompt)
{
    if (prompt->text != NULL) {
        FUZZ_CHECK(prompt->tokens == NULL && prompt->text[prompt->n_bytes] == 0);
        FUZZ_CHECK(sheaf__utf8_valid_prefix(prompt->text, prompt->n_bytes) == prompt->n_bytes);
        return;
    }
    FUZZ_CHECK(prompt->tokens != NULL);
    for (uint32_t i = 0; i < prompt->n_tokens; i++)
        FUZZ_CHECK(prompt->tokens[i] >= 0 && prompt->tokens[i] < VOCAB);
}

static bool within(float value, float limit)
{
    return value >= -limit && value <= limit;
}

static void check_sampling(const sheaf__completion *c)
{
    FUZZ_CHECK(sheaf__sampler_check(&c->sampler) == SHEAF_OK);
    FUZZ_CHECK(c->sampler.temperature <= 2 && c->sampler.top_p > 0 &&
               c->sampler.top_k <= VOCAB);
    FUZZ_CHECK(within(c->presence_penalty, 2) && within(c->frequency_penalty, 2));
    FUZZ_CHECK(c->n_top <= SHEAF__MAX_TOP && (c->logprobs || c->n_top == 0));
    FUZZ_CHECK(c->stream || !c->include_usage);
    FUZZ_CHECK(c->n_bias <= 1024 && c->n_stops <= SHEAF__MAX_STOPS);
    for (uint32_t i = 0; i < c->n_bias; i++) {
        FUZZ_CHECK(c->bias[i].token >= 0 && c->bias[i].token < VOCAB);
        FUZZ_CHECK(within(c->bias[i].value, 100));
        for (uint32_t j = 0; j < i; j++) FUZZ_CHECK(c->bias[i].token != c->bias[j].token);
    }
    for (uint32_t i = 0; i < c->n_stops; i++) check_name(c->stops[i]);
}

static void check_completion(const sheaf__completion *c, uint32_t most)
{
    FUZZ_CHECK(c->root != NULL && c->n >= 1 && c->n <= most);
    FUZZ_CHECK(c->chat ? c->n_messages >= 1 && c->n_prompts == 0
                       : c->n_messages == 0 && c->n_prompts >= 1);
    FUZZ_CHECK((uint64_t)c->n * c->n_prompts <= most);
    FUZZ_CHECK(c->max_tokens <= INT32_MAX);
    FUZZ_CHECK(c->priority >= SHEAF_PRIORITY_MIN && c->priority <= SHEAF_PRIORITY_MAX);
    FUZZ_CHECK(c->pin || c->pin_flags == 0);
    check_messages(c->messages, c->n_messages);
    for (uint32_t i = 0; i < c->n_prompts; i++) {
        check_prompt(&c->prompts[i]);
        FUZZ_CHECK(c->prompts[i].text != NULL || c->prompts[i].n_tokens >= 1);
    }
    if (c->cache_salt != NULL) check_name(c->cache_salt);
}

static void read_completion(int which, const char *body, size_t n,
                            const sheaf__api_limits *limits)
{
    sheaf__completion c = {0};
    sheaf__api_error e = {0};
    bool ok = which == 0   ? sheaf__api_read_chat(body, n, limits, &c, &e)
              : which == 1 ? sheaf__api_read_completion(body, n, limits, &c, &e)
                           : sheaf__api_read_preload(body, n, limits, &c, &e);
    if (!ok) {
        check_error(&e);
        FUZZ_CHECK(c.root == NULL && c.prompts == NULL && c.bias == NULL);
        return;
    }
    check_completion(&c, which == 2 ? 1 : limits->max_choices);
    if (which != 2) check_sampling(&c);
    FUZZ_CHECK(which != 0 || (c.chat && !c.echo && (c.max_tokens >= 1 || !c.has_max_tokens)));
    FUZZ_CHECK(which != 1 || (!c.chat && (c.max_tokens >= 1 || c.echo)));
    sheaf__completion_free(&c);
}

static void read_reset(const char *body, size_t n)
{
    sheaf__cache_reset r = {0};
    sheaf__api_error e = {0};
    if (!sheaf__api_read_reset(body, n, &r, &e)) {
        check_error(&e);
        return;
    }
    FUZZ_CHECK(r.cache_salt == NULL || r.session == 0);
    FUZZ_CHECK(r.session == 0 || !r.unpin);
    if (r.cache_salt != NULL) check_name(r.cache_salt);
    sheaf__cache_reset_free(&r);
}

static void read_text(int which, const char *body, size_t n, const sheaf__api_limits *limits)
{
    sheaf__text_request r = {0};
    sheaf__api_error e = {0};
    bool ok = which == 4   ? sheaf__api_read_tokenize(body, n, limits, &r, &e)
              : which == 5 ? sheaf__api_read_detokenize(body, n, limits, &r, &e)
                           : sheaf__api_read_template(body, n, &r, &e);
    if (!ok) {
        check_error(&e);
        FUZZ_CHECK(r.root == NULL);
        return;
    }
    FUZZ_CHECK(which != 5 || r.prompt.tokens != NULL);
    FUZZ_CHECK(which != 6 || r.n_messages >= 1);
    check_messages(r.messages, r.n_messages);
    if (r.n_messages == 0) check_prompt(&r.prompt);
    sheaf__text_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    int which = data[0] % 8;
    const sheaf__api_limits limits = {"demo", VOCAB, 512, data[0] & 8 ? 3 : 128};
    char *body = malloc(size); /* what follows the first byte, and a zero */
    FUZZ_CHECK(body != NULL);
    memcpy(body, data + 1, size - 1);
    body[size - 1] = 0;
    if (which <= 2)
        read_completion(which, body, size - 1, &limits);
    else if (which == 3)
        read_reset(body, size - 1);
    else
        read_text(which == 7 ? 4 : which, body, size - 1, &limits);
    free(body);
    return 0;
}
