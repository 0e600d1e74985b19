/* tests/server/test_api.c - every parameter of requests for answers: defaults, limits, refusals. */
#include "server/api_cases.h"

#include <float.h>

static sheaf__completion chat(const char *said)
{
    return accepted(sheaf__api_read_chat, QUESTION, said);
}

static sheaf__completion completion(const char *said)
{
    return accepted(sheaf__api_read_completion, PROMPT, said);
}

/* The fields that may be left out: of both kinds of requests, and of one alone. */
static const char *const of_both[] = {"model",
                                      "temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "seed",
                                      "n",
                                      "max_tokens",
                                      "logprobs",
                                      "stop",
                                      "ignore_eos",
                                      "stream",
                                      "logit_bias",
                                      "cache_salt",
                                      "priority",
                                      "stream_options",
                                      "user",
                                      "presence_penalty",
                                      "prompt_cache_key",
                                      "frequency_penalty"};
static const char *const of_chats[] = {"max_completion_tokens",
                                       "top_logprobs",
                                       "metadata",
                                       "parallel_tool_calls",
                                       "safety_identifier",
                                       "store",
                                       "service_tier",
                                       "tools",
                                       "tool_choice",
                                       "functions",
                                       "audio",
                                       "function_call",
                                       "response_format",
                                       "modalities",
                                       "prediction",
                                       "reasoning_effort",
                                       "verbosity",
                                       "web_search_options",
                                       "prompt_cache_retention"};
static const char *const of_completions[] = {"echo", "best_of", "suffix"};

/* ---- what is said by default --------------------------------------------------------------- */

static void check_defaults(const sheaf__completion *c)
{
    assert_int_equal(c->n, 1);
    assert_false(c->stream || c->include_usage || c->echo || c->logprobs || c->ignore_eos);
    assert_int_equal(c->n_top, 0);
    assert_true(c->sampler.temperature == 1 && c->sampler.top_p == 1);
    assert_true(c->sampler.min_p == 0 && c->sampler.top_k == 0 && !c->has_seed);
    assert_true(c->presence_penalty == 0 && c->frequency_penalty == 0);
    assert_true(c->n_bias == 0 && c->n_stops == 0 && !c->has_max_tokens);
    assert_null(c->cache_salt);
    assert_true(c->session == 0 && c->priority == 0 && !c->pin);
}

static void a_chat_has_defaults(void **state)
{
    (void)state;
    sheaf__completion c = chat("");
    check_defaults(&c);
    assert_true(c.chat);
    assert_int_equal(c.n_messages, 1);
    assert_string_equal(c.messages[0].role, "user");
    assert_string_equal(c.messages[0].content, "q");
    assert_int_equal(c.max_tokens, 0);
    sheaf__completion_free(&c);
}

static void a_completion_has_defaults(void **state)
{
    (void)state;
    sheaf__completion c = completion("");
    check_defaults(&c);
    assert_false(c.chat);
    assert_int_equal(c.n_prompts, 1);
    assert_memory_equal(c.prompts[0].text, "once", 4);
    assert_int_equal(c.prompts[0].n_bytes, 4);
    assert_int_equal(c.max_tokens, 16);
    sheaf__completion_free(&c);
}

static void null_is_the_default_of_what_may_be_left_out(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(of_both) + COUNT(of_chats); i++) {
        char said[64];
        snprintf(said, sizeof said, "\"%s\": null",
                 i < COUNT(of_both) ? of_both[i] : of_chats[i - COUNT(of_both)]);
        sheaf__completion c = chat(said);
        check_defaults(&c);
        sheaf__completion_free(&c);
    }
    for (size_t i = 0; i < COUNT(of_both) + COUNT(of_completions); i++) {
        char said[64];
        snprintf(said, sizeof said, "\"%s\": null",
                 i < COUNT(of_both) ? of_both[i] : of_completions[i - COUNT(of_both)]);
        sheaf__completion c = completion(said);
        check_defaults(&c);
        assert_int_equal(c.max_tokens, 16);
        sheaf__completion_free(&c);
    }
}

/* ---- limits -------------------------------------------------------------------------------- */

static void numbers_are_taken_up_to_their_limits(void **state)
{
    (void)state;
    sheaf__completion c =
        chat("\"temperature\": 0, \"top_p\": 1, \"min_p\": 0, \"top_k\": -1, \"n\": 1, "
             "\"seed\": -9223372036854775808, \"presence_penalty\": -2, "
             "\"frequency_penalty\": -2.0, \"max_tokens\": 1, \"priority\": -3, "
             "\"logprobs\": true, \"top_logprobs\": 0");
    assert_true(c.sampler.temperature == 0 && c.sampler.top_p == 1 && c.sampler.min_p == 0);
    assert_true(c.sampler.top_k == 0 && c.n == 1 && c.has_seed);
    assert_true(c.sampler.seed == (uint64_t)INT64_MIN);
    assert_true(c.presence_penalty == -2 && c.frequency_penalty == -2 && c.priority == -3);
    assert_true(c.max_tokens == 1 && c.has_max_tokens && c.logprobs && c.n_top == 0);
    sheaf__completion_free(&c);
    c = chat("\"temperature\": 2, \"top_p\": 0.5, \"min_p\": 1, \"top_k\": 1000, \"n\": 128, "
             "\"seed\": 9223372036854775807, \"presence_penalty\": 2, \"priority\": 3, "
             "\"frequency_penalty\": 2, \"max_completion_tokens\": 2147483647, "
             "\"logprobs\": true, \"top_logprobs\": 20");
    assert_true(c.sampler.temperature == 2 && c.sampler.top_p == 0.5f && c.sampler.min_p == 1);
    assert_true(c.sampler.top_k == 1000 && c.n == 128 && c.sampler.seed == INT64_MAX);
    assert_true(c.presence_penalty == 2 && c.frequency_penalty == 2 && c.priority == 3);
    assert_true(c.max_tokens == INT32_MAX && c.has_max_tokens && c.n_top == 20);
    sheaf__completion_free(&c);
}

static void whole_numbers_may_be_written_with_a_point(void **state)
{
    (void)state;
    sheaf__completion c =
        chat("\"n\": 2.0, \"max_tokens\": 1e2, \"seed\": -5.0, \"top_k\": 4.0");
    assert_true(c.n == 2 && c.max_tokens == 100 && c.sampler.top_k == 4);
    assert_true(c.sampler.seed == (uint64_t)-5);
    sheaf__completion_free(&c);
}

static void the_smallest_top_p_is_not_off(void **state)
{
    (void)state;
    static const char *const said[] = {"\"top_p\": 0", "\"top_p\": 1e-60", "\"top_p\": 0.0"};
    for (size_t i = 0; i < COUNT(said); i++) {
        sheaf__completion c = chat(said[i]);
        assert_true(c.sampler.top_p == FLT_MIN);
        assert_int_equal(sheaf__sampler_check(&c.sampler), SHEAF_OK);
        sheaf__completion_free(&c);
    }
}

static void numbers_beyond_their_limits_are_refused(void **state)
{
    (void)state;
    static const refusal both[] = {
        {"\"temperature\": -0.001", "temperature",
         "must be a number from 0 to 2, found -0.001"},
        {"\"temperature\": 2.001", "temperature", "from 0 to 2"},
        {"\"temperature\": 1e308", "temperature", "from 0 to 2"},
        {"\"top_p\": -1", "top_p", "from 0 to 1"},
        {"\"top_p\": 1.0000001", "top_p", "from 0 to 1"},
        {"\"min_p\": 1.1", "min_p", "from 0 to 1"},
        {"\"min_p\": -0.1", "min_p", "from 0 to 1"},
        {"\"top_k\": -2", "top_k", "a whole number from -1 to 1000, found -2"},
        {"\"top_k\": 1001", "top_k", "from -1 to 1000"},
        {"\"presence_penalty\": 2.1", "presence_penalty", "from -2 to 2"},
        {"\"presence_penalty\": -2.1", "presence_penalty", "from -2 to 2"},
        {"\"frequency_penalty\": 3", "frequency_penalty", "from -2 to 2"},
        {"\"frequency_penalty\": -3", "frequency_penalty", "from -2 to 2"},
        {"\"n\": 0", "n", "from 1 to 128"},
        {"\"n\": 129", "n", "from 1 to 128"},
        {"\"n\": -1", "n", "from 1 to 128"},
        {"\"n\": 1.5", "n", "from 1 to 128, found 1.5"},
        {"\"max_tokens\": -1", "max_tokens", "found -1"},
        {"\"max_tokens\": 2147483648", "max_tokens", "found 2147483648"},
        {"\"seed\": 0.5", "seed", "a whole number"},
        {"\"seed\": 9223372036854775808.0", "seed", "a whole number"},
        {"\"priority\": 4", "priority", "from -3 to 3"},
        {"\"priority\": -4", "priority", "from -3 to 3"},
    };
    static const refusal chats[] = {
        {"\"max_tokens\": 0", "max_tokens", "from 1 to 2147483647"},
        {"\"max_completion_tokens\": 0", "max_completion_tokens", "from 1 to"},
        {"\"max_completion_tokens\": 4, \"max_tokens\": 4", "max_tokens", "say one of them"},
        {"\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs", "from 0 to 20"},
        {"\"logprobs\": true, \"top_logprobs\": -1", "top_logprobs", "from 0 to 20"},
        {"\"top_logprobs\": 2", "top_logprobs", "only allowed when logprobs is true"},
        {"\"logprobs\": false, \"top_logprobs\": 0", "top_logprobs", "only allowed when"},
    };
    static const refusal completions[] = {
        {"\"max_tokens\": 0", "max_tokens", "only allowed when echo is true"},
        {"\"logprobs\": 21", "logprobs", "from 0 to 20"},
        {"\"logprobs\": -1", "logprobs", "from 0 to 20"},
        {"\"best_of\": 2", "best_of", "is not supported"},
        {"\"best_of\": 1, \"n\": 2", "best_of", "is not supported"},
        {"\"best_of\": 0", "best_of", "from 1 to"},
    };
    check_refusals(sheaf__api_read_chat, QUESTION, both, COUNT(both));
    check_refusals(sheaf__api_read_completion, PROMPT, both, COUNT(both));
    check_refusals(sheaf__api_read_chat, QUESTION, chats, COUNT(chats));
    check_refusals(sheaf__api_read_completion, PROMPT, completions, COUNT(completions));
}

static void wrong_types_are_refused(void **state)
{
    (void)state;
    static const char *const numbers[] = {"temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "seed",
                                          "n",
                                          "max_tokens",
                                          "priority",
                                          "presence_penalty",
                                          "frequency_penalty"};
    static const char *const not_numbers[] = {"\"1\"", "true", "[1]", "{\"a\": 1}"};
    for (size_t i = 0; i < COUNT(numbers); i++)
        for (size_t j = 0; j < COUNT(not_numbers); j++) {
            char said[64];
            snprintf(said, sizeof said, "\"%s\": %s", numbers[i], not_numbers[j]);
            const refusal r = {said, numbers[i], "number from"};
            check_refusals(sheaf__api_read_chat, QUESTION, &r, 1);
            check_refusals(sheaf__api_read_completion, PROMPT, &r, 1);
        }
    static const refusal others[] = {
        {"\"stream\": 1", "stream", "true or false, found 1"},
        {"\"stream\": \"true\"", "stream", "true or false, found \"true\""},
        {"\"ignore_eos\": 0", "ignore_eos", "true or false"},
        {"\"model\": 3", "model", "a string, found 3"},
        {"\"user\": 3", "user", "a string, found 3"},
        {"\"cache_salt\": 1", "cache_salt", "a string of 1 to 256 bytes, found 1"},
        {"\"prompt_cache_key\": []", "prompt_cache_key", "found an array"},
        {"\"stop\": 3", "stop", "found 3"},
        {"\"stop\": {}", "stop", "found an object"},
        {"\"stop\": [\"a\", 3]", "stop[1]", "found 3"},
        {"\"stop\": [null]", "stop[0]", "found null"},
        {"\"logit_bias\": []", "logit_bias", "found an array"},
        {"\"logit_bias\": {\"5\": \"1\"}", "logit_bias.5", "a number from -100 to 100"},
        {"\"logit_bias\": {\"5\": null}", "logit_bias.5", "found null"},
        {"\"stream\": true, \"stream_options\": true", "stream_options", "an object"},
        {"\"stream\": true, \"stream_options\": {\"include_usage\": 1}",
         "stream_options.include_usage", "true or false"},
    };
    static const refusal chats[] = {
        {"\"logprobs\": 3", "logprobs", "true or false, found 3"},
        {"\"metadata\": \"a\"", "metadata", "an object"},
        {"\"parallel_tool_calls\": \"a\"", "parallel_tool_calls", "true or false"},
        {"\"safety_identifier\": {}", "safety_identifier", "a string"},
        {"\"max_completion_tokens\": \"9\"", "max_completion_tokens", "a whole number"},
    };
    static const refusal completions[] = {
        {"\"logprobs\": true", "logprobs", "a whole number from 0 to 20, found true"},
        {"\"echo\": \"yes\"", "echo", "true or false"},
        {"\"best_of\": \"1\"", "best_of", "a whole number"},
    };
    check_refusals(sheaf__api_read_chat, QUESTION, others, COUNT(others));
    check_refusals(sheaf__api_read_completion, PROMPT, others, COUNT(others));
    check_refusals(sheaf__api_read_chat, QUESTION, chats, COUNT(chats));
    check_refusals(sheaf__api_read_completion, PROMPT, completions, COUNT(completions));
}

/* ---- texts and lists ----------------------------------------------------------------------- */

/* "KEY": "aaa..." of n bytes. */
static const char *long_text(char *out, size_t size, const char *key, size_t n)
{
    int length = snprintf(out, size, "\"%s\": \"", key);
    assert_true(length > 0 && (size_t)length + n + 2 < size);
    memset(out + length, 'a', n);
    memcpy(out + (size_t)length + n, "\"", 2);
    return out;
}

static void names_have_1_to_256_bytes(void **state)
{
    (void)state;
    static const char *const keys[] = {"cache_salt", "prompt_cache_key", "stop"};
    char said[512];
    for (size_t i = 0; i < COUNT(keys); i++) {
        sheaf__completion c = chat(long_text(said, sizeof said, keys[i], 256));
        assert_true((c.cache_salt != NULL) + (c.session != 0) + c.n_stops == 1);
        sheaf__completion_free(&c);
        const refusal r = {long_text(said, sizeof said, keys[i], 257), keys[i],
                           "a string of 1 to 256 bytes, found a string of 257 bytes"};
        check_refusals(sheaf__api_read_chat, QUESTION, &r, 1);
    }
    static const refusal others[] = {
        {"\"cache_salt\": \"\"", "cache_salt", "a string of 1 to 256 bytes, found \"\""},
        {"\"prompt_cache_key\": \"\"", "prompt_cache_key", "1 to 256 bytes"},
        {"\"stop\": \"\"", "stop", "1 to 256 bytes"},
        {"\"stop\": [\"a\", \"\"]", "stop[1]", "1 to 256 bytes"},
        {"\"cache_salt\": \"a\\u0000b\"", "cache_salt", "U+0000"},
        {"\"prompt_cache_key\": \"\\u0000\"", "prompt_cache_key", "U+0000"},
        {"\"stop\": [\"\\u0000\"]", "stop[0]", "U+0000"},
    };
    check_refusals(sheaf__api_read_chat, QUESTION, others, COUNT(others));
    check_refusals(sheaf__api_read_completion, PROMPT, others, COUNT(others));
}

static void stop_is_a_text_or_up_to_sixteen(void **state)
{
    (void)state;
    sheaf__completion c = chat("\"stop\": \"\\n\"");
    assert_int_equal(c.n_stops, 1);
    assert_string_equal(c.stops[0], "\n");
    sheaf__completion_free(&c);
    c = completion("\"stop\": []");
    assert_int_equal(c.n_stops, 0);
    sheaf__completion_free(&c);
#define EIGHT "\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\""
    c = completion("\"stop\": [" EIGHT ", " EIGHT "]");
    assert_int_equal(c.n_stops, 16);
    assert_string_equal(c.stops[15], "h");
    sheaf__completion_free(&c);
    const refusal r = {"\"stop\": [" EIGHT ", " EIGHT ", \"i\"]", "stop", "at most 16 strings"};
    check_refusals(sheaf__api_read_chat, QUESTION, &r, 1);
}

static void logit_bias_names_tokens(void **state)
{
    (void)state;
    sheaf__completion c = chat("\"logit_bias\": {\"0\": -100, \"999\": 100, \"17\": 0.5}");
    assert_int_equal(c.n_bias, 3);
    float sum = 0;
    for (uint32_t i = 0; i < 3; i++) sum += c.bias[i].value * (float)(c.bias[i].token + 1);
    assert_true(sum == -100 + 100 * 1000 + 0.5f * 18);
    sheaf__completion_free(&c);
    c = chat("\"logit_bias\": {}");
    assert_int_equal(c.n_bias, 0);
    sheaf__completion_free(&c);
    static const refusal bad[] = {
        {"\"logit_bias\": {\"1000\": 1}", "logit_bias.1000", "no token id from 0 to 999"},
        {"\"logit_bias\": {\"-1\": 1}", "logit_bias.-1", "no token id"},
        {"\"logit_bias\": {\"\": 1}", "logit_bias.", "no token id"},
        {"\"logit_bias\": {\"1.0\": 1}", "logit_bias.1.0", "no token id"},
        {"\"logit_bias\": {\"01\": 1}", "logit_bias.01", "no token id"},
        {"\"logit_bias\": {\"99999999999999999999999\": 1}",
         "logit_bias.99999999999999999999999", "no token id"},
        {"\"logit_bias\": {\"1\": 100.5}", "logit_bias.1", "from -100 to 100"},
        {"\"logit_bias\": {\"1\": -101}", "logit_bias.1", "from -100 to 100"},
        {"\"logit_bias\": {\"1\": 1, \"1\": 2}", NULL, "duplicate object key"},
    };
    check_refusals(sheaf__api_read_chat, QUESTION, bad, COUNT(bad));
}

static void logit_bias_has_at_most_1024_tokens(void **state)
{
    (void)state;
    const sheaf__api_limits large = {"demo", 5000, 512, 0};
    for (uint32_t n = 1024; n <= 1025; n++) {
        char *body = malloc(32768);
        assert_non_null(body);
        int at = snprintf(body, 32768, "{%s, \"logit_bias\": {", QUESTION);
        for (uint32_t i = 0; i < n; i++)
            at += snprintf(body + at, 32768 - (size_t)at, "%s\"%u\": 1", i ? ", " : "", i);
        at += snprintf(body + at, 32768 - (size_t)at, "}}");
        sheaf__completion c = {0};
        sheaf__api_error e = {0};
        assert_int_equal(sheaf__api_read_chat(body, (uint64_t)at, &large, &c, &e), n == 1024);
        if (n == 1024) assert_int_equal(c.n_bias, 1024);
        if (n != 1024) check_error(&e, "1025", 400, "logit_bias", "at most 1024 token ids");
        sheaf__completion_free(&c);
        free(body);
    }
}

static void streams_may_tell_their_usage(void **state)
{
    (void)state;
    sheaf__completion c = chat("\"stream\": true");
    assert_true(c.stream && !c.include_usage);
    sheaf__completion_free(&c);
    c = chat("\"stream\": true, \"stream_options\": {\"include_usage\": true, "
             "\"include_obfuscation\": false}");
    assert_true(c.stream && c.include_usage);
    sheaf__completion_free(&c);
    c = completion("\"stream\": true, \"stream_options\": {\"include_usage\": null}");
    assert_true(c.stream && !c.include_usage);
    sheaf__completion_free(&c);
    static const refusal bad[] = {
        {"\"stream_options\": {}", "stream_options", "only allowed when stream is true"},
        {"\"stream\": false, \"stream_options\": {\"include_usage\": true}", "stream_options",
         "only allowed when stream is true"},
        {"\"stream\": true, \"stream_options\": {\"often\": 1}", "stream_options.often",
         "Unrecognized request argument supplied: stream_options.often"},
    };
    check_refusals(sheaf__api_read_chat, QUESTION, bad, COUNT(bad));
    check_refusals(sheaf__api_read_completion, PROMPT, bad, COUNT(bad));
}

static void completions_have_echo_and_a_number_of_logprobs(void **state)
{
    (void)state;
    sheaf__completion c = completion("\"echo\": true, \"max_tokens\": 0, \"logprobs\": 0");
    assert_true(c.echo && c.max_tokens == 0 && c.has_max_tokens && c.logprobs && c.n_top == 0);
    sheaf__completion_free(&c);
    c = completion("\"logprobs\": 20, \"max_tokens\": 7, \"best_of\": 3, \"n\": 3");
    assert_true(!c.echo && c.max_tokens == 7 && c.logprobs && c.n_top == 20 && c.n == 3);
    sheaf__completion_free(&c);
}

/* ---- what is ignored and what is refused --------------------------------------------------- */

static void fields_without_effect_are_ignored(void **state)
{
    (void)state;
    static const char *const said[] = {
        "\"user\": \"u\"",
        "\"metadata\": {\"a\": \"b\"}",
        "\"parallel_tool_calls\": true",
        "\"safety_identifier\": \"s\"",
        "\"prompt_cache_retention\": \"24h\"",
        "\"store\": false",
        "\"service_tier\": \"auto\"",
        "\"service_tier\": \"default\"",
        "\"tools\": []",
        "\"tool_choice\": \"none\"",
        "\"tool_choice\": \"auto\"",
        "\"functions\": []",
        "\"function_call\": \"auto\"",
        "\"response_format\": {\"type\": \"text\"}",
        "\"modalities\": [\"text\"]",
        "\"verbosity\": \"medium\"",
    };
    for (size_t i = 0; i < COUNT(said); i++) {
        sheaf__completion c = chat(said[i]);
        check_defaults(&c);
        sheaf__completion_free(&c);
    }
    sheaf__completion c = completion("\"user\": \"u\", \"suffix\": \"\", \"best_of\": 1");
    check_defaults(&c);
    sheaf__completion_free(&c);
}

static void what_is_not_served_is_refused_by_name(void **state)
{
    (void)state;
    static const refusal chats[] = {
        {"\"store\": true", "store", "store is not supported by this server: leave it out"},
        {"\"service_tier\": \"flex\"", "service_tier", "or say \"auto\", \"default\""},
        {"\"tools\": [{\"type\": \"function\"}]", "tools", "not supported"},
        {"\"tool_choice\": \"required\"", "tool_choice", "not supported"},
        {"\"tool_choice\": {\"type\": \"function\"}", "tool_choice", "not supported"},
        {"\"functions\": [{}]", "functions", "not supported"},
        {"\"function_call\": {\"name\": \"f\"}", "function_call", "not supported"},
        {"\"response_format\": {\"type\": \"json_object\"}", "response_format",
         "or say {\"type\": \"text\"}"},
        {"\"modalities\": [\"text\", \"audio\"]", "modalities", "not supported"},
        {"\"audio\": {}", "audio", "audio is not supported by this server: leave it out"},
        {"\"prediction\": {}", "prediction", "not supported"},
        {"\"reasoning_effort\": \"low\"", "reasoning_effort", "not supported"},
        {"\"verbosity\": \"low\"", "verbosity", "not supported"},
        {"\"web_search_options\": {}", "web_search_options", "not supported"},
        {"\"echo\": true", "echo", "Unrecognized request argument supplied: echo"},
        {"\"prompt\": \"a\"", "prompt", "Unrecognized request argument"},
        {"\"Temperature\": 1", "Temperature", "Unrecognized request argument"},
        {"\"pin\": true", "pin", "Unrecognized request argument"},
    };
    static const refusal completions[] = {
        {"\"suffix\": \"end\"", "suffix", "not supported"},
        {"\"top_logprobs\": 1", "top_logprobs", "Unrecognized request argument"},
        {"\"messages\": []", "messages", "Unrecognized request argument"},
        {"\"tools\": []", "tools", "Unrecognized request argument"},
        {"\"x\": null", "x", "Unrecognized request argument supplied: x"},
    };
    check_refusals(sheaf__api_read_chat, QUESTION, chats, COUNT(chats));
    check_refusals(sheaf__api_read_completion, PROMPT, completions, COUNT(completions));
}

/* The program runs from the repository's root. */
static void every_field_is_documented(void **state)
{
    (void)state;
    static char text[1 << 17];
    FILE *file = fopen("docs/api.md", "rb");
    assert_non_null(file);
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    assert_true(n > 0 && n < sizeof text - 1);
    const char *const *const lists[] = {of_both, of_chats, of_completions};
    const size_t sizes[] = {COUNT(of_both), COUNT(of_chats), COUNT(of_completions)};
    for (size_t i = 0; i < COUNT(lists); i++)
        for (size_t j = 0; j < sizes[i]; j++) {
            char name[64];
            snprintf(name, sizeof name, "`%s`", lists[i][j]);
            if (strstr(text, name) == NULL) fail_msg("docs/api.md has no %s", name);
        }
}

static void refusals_have_codes(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\"x\": 1", "unknown_parameter"},
        {"\"audio\": 1", "unsupported_parameter"},
        {"\"n\": 0", "invalid_value"},
        {"\"messages\": []", "invalid_json"}, /* a second one */
        {"\"n\": ", "invalid_json"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        sheaf__completion c;
        sheaf__api_error e = {0};
        char *body = body_of(QUESTION, cases[i][0]);
        assert_false(sheaf__api_read_chat(body, strlen(body), &limits, &c, &e));
        assert_string_equal(e.code, cases[i][1]);
        assert_string_equal(e.type, "invalid_request_error");
        free(body);
    }
}

/* The place of a name in a sentence is small: whole characters of it stand there. */
static void long_names_are_quoted_in_part(void **state)
{
    (void)state;
    char said[1024] = "\"x";
    while (strlen(said) < 900) strcat(said, "\xf0\x9f\x8d\x83");
    strcat(said, "\": 1");
    sheaf__completion c;
    sheaf__api_error e = {0};
    char *body = body_of(QUESTION, said);
    assert_false(sheaf__api_read_chat(body, strlen(body), &limits, &c, &e));
    assert_int_equal(strlen(e.param), 61); /* x and 15 leaves */
    assert_int_equal(sheaf__utf8_valid_prefix(e.param, 61), 61);
    check_error(&e, body, 400, e.param, "Unrecognized request argument supplied: x\xf0");
    assert_string_equal(strstr(e.message, ": x") + 2, e.param);
    free(body);
    char bias[1100]; /* and in the middle of a sentence, too */
    snprintf(bias, sizeof bias, "\"logit_bias\": {%s}", said);
    body = body_of(QUESTION, bias);
    assert_false(sheaf__api_read_chat(body, strlen(body), &limits, &c, &e));
    check_error(&e, body, 400, e.param, "\xf0\x9f\x8d\x83 is no token id");
    free(body);
}

static void another_model_is_not_found(void **state)
{
    (void)state;
    sheaf__completion c = chat("\"model\": \"demo\"");
    sheaf__completion_free(&c);
    reader *const readers[] = {sheaf__api_read_chat, sheaf__api_read_completion,
                               sheaf__api_read_preload};
    for (size_t i = 0; i < COUNT(readers); i++) {
        sheaf__api_error e = {0};
        char *body = body_of(i == 0 ? QUESTION : PROMPT, "\"model\": \"gpt-4\"");
        assert_false(readers[i](body, strlen(body), &limits, &c, &e));
        check_error(&e, body, 404, "model",
                    "'gpt-4' is not served here: this server has 'demo'");
        assert_string_equal(e.code, "model_not_found");
        assert_string_equal(e.type, "not_found_error");
        free(body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_has_defaults),
        cmocka_unit_test(a_completion_has_defaults),
        cmocka_unit_test(null_is_the_default_of_what_may_be_left_out),
        cmocka_unit_test(numbers_are_taken_up_to_their_limits),
        cmocka_unit_test(whole_numbers_may_be_written_with_a_point),
        cmocka_unit_test(the_smallest_top_p_is_not_off),
        cmocka_unit_test(numbers_beyond_their_limits_are_refused),
        cmocka_unit_test(wrong_types_are_refused),
        cmocka_unit_test(names_have_1_to_256_bytes),
        cmocka_unit_test(stop_is_a_text_or_up_to_sixteen),
        cmocka_unit_test(logit_bias_names_tokens),
        cmocka_unit_test(logit_bias_has_at_most_1024_tokens),
        cmocka_unit_test(streams_may_tell_their_usage),
        cmocka_unit_test(completions_have_echo_and_a_number_of_logprobs),
        cmocka_unit_test(fields_without_effect_are_ignored),
        cmocka_unit_test(what_is_not_served_is_refused_by_name),
        cmocka_unit_test(every_field_is_documented),
        cmocka_unit_test(refusals_have_codes),
        cmocka_unit_test(long_names_are_quoted_in_part),
        cmocka_unit_test(another_model_is_not_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
