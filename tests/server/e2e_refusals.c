/* tests/server/e2e_refusals.c - whatever is wrong with a request, the reply is a 4xx in the shape of
 * errors, and the server answers the next one. test_api has each sentence; here the real program is
 * asked. */
#include "server/program.h"
#include "server/web.h"

#include <unistd.h>

#define COUNT(table) (sizeof(table) / sizeof(table)[0])
#define CHAT         "/v1/chat/completions"
#define COMPLETIONS  "/v1/completions"
#define GOOD         "{\"prompt\": \"Once upon a time\", \"max_tokens\": 3, \"temperature\": 0}"
#define N_MUTATIONS  1500
#define DEPTH        100000

static program server;
static char *answer; /* to GOOD */

/* ---- asking ------------------------------------------------------------------------------ */

static char *request_of(const char *path, const char *body, uint64_t n, uint64_t *size)
{
    char *request = calloc(n + 257, 1);
    assert_non_null(request);
    int head =
        snprintf(request, 256, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %llu\r\n\r\n",
                 path, (unsigned long long)n);
    memcpy(request + head, body, n);
    *size = (uint64_t)head + n;
    return request;
}

/* An error with everything that errors have; `what` was sent. */
static void check_error(const web_reply *r, const char *what)
{
    json_t *said = json_loadb(r->body, r->n, JSON_REJECT_DUPLICATES, NULL);
    json_t *error = json_object_get(said, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    json_t *param = json_object_get(error, "param"), *code = json_object_get(error, "code");
    if (r->status < 400 || r->status > 499 || message == NULL || message[0] == 0 ||
        !json_is_string(json_object_get(error, "type")) ||
        !(json_is_string(param) || json_is_null(param)) ||
        !(json_is_string(code) || json_is_null(code)))
        fail_msg("%.300s: %d %.600s", what, r->status, r->body != NULL ? r->body : "");
    json_decref(said);
}

static void check_refused_bytes(const char *path, const char *body, uint64_t n)
{
    uint64_t size;
    char *request = request_of(path, body, n, &size);
    int fd = web_connect(server.net.port);
    web_reply r;
    web_send_bytes(fd, request, size);
    if (!web_read(fd, &r)) fail_msg("%s %.300s: no reply", path, body);
    check_error(&r, request);
    web_reply_free(&r);
    close(fd);
    free(request);
}

static void check_refused(const char *path, const char *body)
{
    check_refused_bytes(path, body, strlen(body));
}

static void still_answers(void)
{
    json_t *said = serving_post(&server.net, COMPLETIONS, 200, "%s", GOOD);
    if (answer == NULL) answer = strdup(text_at(said, "choices.0.text"));
    assert_string_equal(text_at(said, "choices.0.text"), answer);
    json_decref(said);
}

static int begin(void **state)
{
    (void)state;
    program_start(&server,
                  (const char *[]){"-m", SERVERS_DEMO, "--kv-cache-budget", "16MiB",
                                   "--max-body-bytes", "4MiB", "--log-level", "warn", NULL});
    still_answers();
    return 0;
}

static int end(void **state)
{
    (void)state;
    char *log = program_log(&server);
    if (strstr(log, " error ") != NULL) fail_msg("%s", log);
    free(log);
    free(answer);
    program_stop(&server);
    return 0;
}

/* ---- bodies ------------------------------------------------------------------------------ */

static const char *const endpoints[] = {
    CHAT,        COMPLETIONS,   "/v1/cache/preload", "/v1/cache/reset",
    "/tokenize", "/detokenize", "/apply-template"};

static void bodies_that_are_no_json_object(void **state)
{
    (void)state;
    static const char *const bad[] = {" ",
                                      "{",
                                      "}",
                                      "[]",
                                      "null",
                                      "3",
                                      "\"a\"",
                                      "{\"a\"}",
                                      "{\"a\":}",
                                      "{\"a\": 1,}",
                                      "{,}",
                                      "{'prompt': 'a'}",
                                      "{\"prompt\": \"a\"} {}",
                                      "{\"prompt\": \"a\"",
                                      "{\"prompt\": \"a}",
                                      "{\"prompt\": \"a\", \"prompt\": \"b\"}",
                                      "{\"prompt\": NaN}",
                                      "{\"prompt\": 01}",
                                      "{\"seed\": 99999999999999999999}",
                                      "{\"temperature\": 1e999}",
                                      "{\"prompt\": \"\\ud800\"}",
                                      "{\"prompt\": \"\\x\"}",
                                      "{\"prompt\": \"\n\"}",
                                      "{\"prompt\": \"\xff\"}",
                                      "{\"prompt\": \"\xc0\x80\"}",
                                      "{\"prompt\": \"\xed\xa0\x80\"}",
                                      "{\"prompt\": \"\xf4\x90\x80\x80\"}",
                                      "{\"prompt\": \"\xe2\x82\"}",
                                      "\xef\xbb\xbf{\"prompt\": \"a\"}",
                                      "{\"a\\u0000\": 1}",
                                      "prompt=a&max_tokens=3",
                                      "<xml/>",
                                      "\x1f\x8b\x08"};
    for (size_t i = 0; i < COUNT(endpoints); i++) {
        for (size_t j = 0; j < COUNT(bad); j++) check_refused(endpoints[i], bad[j]);
        check_refused_bytes(endpoints[i], "{\"prompt\": \"\0\"}", 14);
        if (strcmp(endpoints[i], "/v1/cache/reset") != 0) check_refused(endpoints[i], "");
    }
    still_answers();
}

static void deep_nesting(void **state)
{
    (void)state;
    static const char *const units[] = {"[", "{\"a\":", "[{\"a\":"};
    char *body = malloc(8 * DEPTH + 64);
    assert_non_null(body);
    for (size_t i = 0; i < COUNT(units); i++) {
        char *at = stpcpy(body, "{\"prompt\": ");
        for (uint32_t j = 0; j < DEPTH; j++) at = stpcpy(at, units[i]);
        for (size_t j = 0; j < COUNT(endpoints); j++) check_refused(endpoints[j], body);
    }
    free(body);
    still_answers();
}

static void huge_bodies(void **state)
{
    (void)state;
    static const char *const fills[] = {" ", "[],", "\"a\",", "\"prompt\":1,"};
    uint64_t n = 5u << 20;
    char *body = malloc(n + 64);
    assert_non_null(body);
    for (size_t i = 0; i < COUNT(fills); i++) {
        char *at = stpcpy(body, i == 3 ? "{" : "{\"prompt\": [");
        while ((uint64_t)(at - body) < n) at = stpcpy(at, fills[i]);
        check_refused(COMPLETIONS, body);
        body[4 << 20] = 0; /* as long as is allowed, and no JSON */
        check_refused(COMPLETIONS, body);
    }
    free(body);
    still_answers();
}

/* ---- parameters -------------------------------------------------------------------------- */

/* What no field of either endpoint may be; more where a table says so. */
typedef struct field {
    const char *name;
    const char *bad[8];
} field;

#define NO_NUMBER "\"1\"", "true", "[1]", "{\"a\": 1}"
#define NO_TEXT   "3", "true", "[\"a\"]", "{\"a\": 1}"
#define NO_SWITCH "1", "\"true\"", "[true]", "{}"

static const field both[] = {
    {"model", {NO_TEXT, "\"another\"", "\"\""}},
    {"temperature", {NO_NUMBER, "-0.001", "2.001", "1e308"}},
    {"top_p", {NO_NUMBER, "-0.001", "1.001", "-1e308"}},
    {"top_k", {NO_NUMBER, "-2", "4097", "1.5"}},
    {"min_p", {NO_NUMBER, "-0.001", "1.001"}},
    {"seed", {NO_NUMBER, "0.5", "1e30", "-9223372036854775809"}},
    {"n", {NO_NUMBER, "0", "129", "1.5", "-1"}},
    {"max_tokens", {NO_NUMBER, "-1", "2147483648", "0.5", "0"}},
    {"presence_penalty", {NO_NUMBER, "-2.001", "2.001"}},
    {"frequency_penalty", {NO_NUMBER, "-2.001", "2.001"}},
    {"priority", {NO_NUMBER, "-4", "4", "0.5"}},
    {"logit_bias",
     {"3", "[]", "{\"a\": 1}", "{\"-1\": 1}", "{\"4096\": 1}", "{\"1\": 101}",
      "{\"1\": \"1\"}"}},
    {"stop", {"3", "true", "{}", "\"\"", "[3]", "[\"a\", null]", "[[\"a\"]]"}},
    {"cache_salt", {NO_TEXT, "\"\"", "\"\\u0000\""}},
    {"prompt_cache_key", {NO_TEXT, "\"\"", "\"a\\u0000\""}},
    {"ignore_eos", {NO_SWITCH}},
    {"stream", {NO_SWITCH}},
    {"stream_options", {"true", "3", "[]", "{\"include_usage\": true}"}},
    {"user", {NO_TEXT}},
    {"temprature", {"1"}},
};
static const field of_chats[] = {
    {"messages", {NO_TEXT, "[]", "[3]", "[{}]", "[[]]"}},
    {"messages",
     {"\"a\"", "[{\"role\": \"user\"}]", "[{\"role\": 3, \"content\": \"a\"}]",
      "[{\"role\": \"wizard\", \"content\": \"a\"}]", "[{\"role\": \"user\", \"content\": 3}]",
      "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]",
      "[{\"role\": \"user\", \"content\": \"a\", \"x\": 1}]"}},
    {"max_completion_tokens", {NO_NUMBER, "0", "2147483648"}},
    {"logprobs", {"3", "\"true\"", "[]"}},
    {"top_logprobs", {NO_NUMBER, "21", "-1", "2"}},
    {"metadata", {"\"a\"", "3", "[]"}},
    {"tools", {"[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "3"}},
    {"tool_choice", {"\"required\"", "{\"type\": \"function\"}", "3"}},
    {"response_format", {"{\"type\": \"json_object\"}", "\"text\"", "{}"}},
    {"modalities", {"[\"audio\"]", "\"text\""}},
    {"audio", {"{\"voice\": \"alloy\"}", "3"}},
    {"prediction", {"{\"type\": \"content\"}"}},
    {"reasoning_effort", {"\"high\"", "3"}},
    {"store", {"true", "3"}},
    {"prompt", {"\"a\""}},
};
static const field of_completions[] = {
    {"prompt", {"3", "true", "{}", "[]", "[true]", "[[]]", "[\"a\", 3]", "[-1]"}},
    {"prompt", {"[4096]", "[1.5]", "[2147483648]", "[[[3]]]", "\"\""}},
    {"echo", {NO_SWITCH}},
    {"logprobs", {NO_NUMBER, "21", "-1"}},
    {"best_of", {NO_NUMBER, "0", "2", "-1"}},
    {"suffix", {NO_TEXT, "\"a\""}},
    {"messages", {"[{\"role\": \"user\", \"content\": \"a\"}]"}},
};
static const field of_preloads[] = {
    {"pin", {"3", "\"yes\"", "[]", "{}"}},
    {"prompt", {"3", "[\"a\", \"b\"]", "[4096]", "{}"}},
    {"cache_salt", {NO_TEXT, "\"\""}},
    {"priority", {NO_NUMBER, "-4", "4"}},
    {"max_tokens", {"3"}},
};
static const field of_resets[] = {
    {"cache_salt", {NO_TEXT, "\"\""}}, {"prompt_cache_key", {NO_TEXT, "\"\""}},
    {"session", {NO_TEXT, "\"\""}},    {"unpin", {NO_SWITCH}},
    {"everything", {"true"}},
};
static const field of_tokenize[] = {
    {"content", {NO_TEXT}},       {"messages", {NO_TEXT, "[]"}}, {"add_special", {NO_SWITCH}},
    {"with_pieces", {NO_SWITCH}}, {"text", {"\"a\""}},
};
static const field of_detokenize[] = {
    {"tokens", {NO_TEXT, "[\"a\"]", "[-1]", "[4096]", "[1.5]"}},
    {"content", {"\"a\""}},
};
static const field of_templates[] = {
    {"messages", {NO_TEXT, "[]", "[{\"role\": \"wizard\", \"content\": \"a\"}]"}},
    {"add_generation_prompt", {NO_SWITCH}},
};

/* Each bad value beside what is needed, unless it takes its place. */
static void check_fields(const char *path, const char *needed, const field *table, size_t n)
{
    char name[64], body[512];
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "\"%s\"", table[i].name);
        bool instead = needed[0] == 0 || strncmp(needed, name, strlen(name)) == 0;
        for (size_t j = 0; j < 8 && table[i].bad[j] != NULL; j++) {
            snprintf(body, sizeof body, "{%s%s%s: %s}", instead ? "" : needed,
                     instead ? "" : ", ", name, table[i].bad[j]);
            check_refused(path, body);
        }
    }
}

static void every_parameter_of_a_wrong_type_or_out_of_range(void **state)
{
    (void)state;
    static const char message[] = "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]";
    static const char prompt[] = "\"prompt\": \"a\"";
    check_fields(CHAT, message, both, COUNT(both));
    check_fields(CHAT, message, of_chats, COUNT(of_chats));
    check_fields(COMPLETIONS, prompt, both, COUNT(both));
    check_fields(COMPLETIONS, prompt, of_completions, COUNT(of_completions));
    check_fields("/v1/cache/preload", prompt, of_preloads, COUNT(of_preloads));
    check_fields("/v1/cache/reset", "", of_resets, COUNT(of_resets));
    check_fields("/tokenize", "\"content\": \"a\"", of_tokenize, COUNT(of_tokenize));
    check_fields("/detokenize", "\"tokens\": [5]", of_detokenize, COUNT(of_detokenize));
    check_fields("/apply-template", message, of_templates, COUNT(of_templates));
    still_answers();
}

/* Bytes of a good body changed, taken out and doubled: an answer, or a refusal. */
static void bodies_with_random_faults(void **state)
{
    (void)state;
    static const char good[] =
        "{\"prompt\": \"It was\", \"max_tokens\": 1, \"stop\": [\"a\", \"\xc3\xa9\"], "
        "\"seed\": 7, \"logit_bias\": {\"5\": -1.5}, \"stream\": false}";
    uint64_t seed = testing_seed(6);
    uint32_t n_good = 0;
    for (uint32_t i = 0; i < N_MUTATIONS; i++) {
        char body[2 * sizeof good];
        uint64_t n = sizeof good - 1, size;
        memcpy(body, good, n);
        for (uint64_t k = 1 + testing_random(&seed) % 2; k > 0; k--) {
            uint64_t at = testing_random(&seed) % n, how = testing_random(&seed) % 3;
            if (how == 0) body[at] = (char)testing_random(&seed);
            if (how == 1) memmove(body + at, body + at + 1, --n - at);
            if (how == 2) memmove(body + at + 1, body + at, n++ - at);
        }
        char *request = request_of(COMPLETIONS, body, n, &size);
        int fd = web_connect(server.net.port);
        web_reply r;
        web_send_bytes(fd, request, size);
        if (!web_read(fd, &r)) fail_msg("%.*s: no reply", (int)size, request);
        if (r.status == 200)
            n_good++;
        else
            check_error(&r, request);
        web_reply_free(&r);
        close(fd);
        free(request);
    }
    print_message("# %u of %u were answered\n", n_good, N_MUTATIONS);
    assert_in_range(n_good, 1, N_MUTATIONS - 1);
    still_answers();
}

/* ---- heads ------------------------------------------------------------------------------- */

#define HOST       "Host: x\r\n"
#define POST       "POST " COMPLETIONS " HTTP/1.1\r\n" HOST
#define GET_HEALTH "GET /health HTTP/1.1\r\n" HOST

/* shaped: the server refuses it itself. Else the HTTP library does, which has words of its own, or
 * closes. */
static void check_head(const char *text, uint64_t n, bool shaped)
{
    int fd = web_connect(server.net.port);
    web_reply r;
    web_send_bytes(fd, text, n);
    bool replied = web_read(fd, &r);
    if (shaped && !replied) fail_msg("%.300s: no reply", text);
    if (shaped)
        check_error(&r, text);
    else if (replied && r.status != 505 && (r.status < 400 || r.status > 499))
        fail_msg("%.300s: %d", text, r.status);
    if (!shaped) assert_true(web_closed(fd, WEB_PATIENCE_MS));
    web_reply_free(&r);
    close(fd);
}

static void heads_that_say_what_is_not_served(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "GET /nothing HTTP/1.1\r\n" HOST "\r\n",
        "GET /../etc/passwd HTTP/1.1\r\n" HOST "\r\n",
        "GET /%ff%fe HTTP/1.1\r\n" HOST "\r\n",
        "GET /%00 HTTP/1.1\r\n" HOST "\r\n",
        "GET /health%00/x HTTP/1.1\r\n" HOST "\r\n",
        "GET \xff\xfe HTTP/1.1\r\n" HOST "\r\n",
        "PATCH /health HTTP/1.1\r\n" HOST "\r\n",
        "TRACE / HTTP/1.1\r\n" HOST "\r\n",
        "DELETE " COMPLETIONS " HTTP/1.1\r\n" HOST "\r\n",
        "GET " COMPLETIONS " HTTP/1.1\r\n" HOST "\r\n",
        POST "Content-Length: 99999999999\r\n\r\n",
        POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\n{}  ",
        POST "\r\n",
    };
    for (size_t i = 0; i < COUNT(bad); i++) check_head(bad[i], strlen(bad[i]), true);
    still_answers();
}

static void heads_that_are_no_http(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "GET\r\n\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n",
        "GET /health HTTP/9.9\r\n" HOST "\r\n",
        "GET /health JUNK/1.1\r\n" HOST "\r\n",
        "GET /health HTTP/1.1\r\n" HOST "no colon\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        POST "Content-Length: ten\r\n\r\n",
        POST "Content-Length: -1\r\n\r\n",
        POST "Content-Length: 99999999999999999999999\r\n\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    };
    for (size_t i = 0; i < COUNT(bad); i++) check_head(bad[i], strlen(bad[i]), false);
    still_answers();
}

static void heads_that_are_too_long(void **state)
{
    (void)state;
    enum { LONG = 40000, TOO_LONG = 400000 };
    static const char *const begins[] = {"GET /health?", GET_HEALTH "a: ", GET_HEALTH};
    static const char *const units[] = {"a", "b", "a: b\r\n"};
    static const char *const ends[] = {" HTTP/1.1\r\n" HOST "\r\n", "\r\n\r\n", "\r\n"};
    char *head = malloc(TOO_LONG + 128);
    assert_non_null(head);
    for (size_t i = 0; i < 2 * COUNT(begins); i++) {
        bool shaped = i < 2; /* what the library has no room for is refused by it */
        char *at = stpcpy(head, begins[i % 3]);
        while (at - head < (i < 3 ? LONG : TOO_LONG)) at = stpcpy(at, units[i % 3]);
        at = stpcpy(at, ends[i % 3]);
        check_head(head, (uint64_t)(at - head), shaped);
    }
    free(head);
    still_answers();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_that_are_no_json_object),
        cmocka_unit_test(deep_nesting),
        cmocka_unit_test(huge_bodies),
        cmocka_unit_test(every_parameter_of_a_wrong_type_or_out_of_range),
        cmocka_unit_test(bodies_with_random_faults),
        cmocka_unit_test(heads_that_say_what_is_not_served),
        cmocka_unit_test(heads_that_are_no_http),
        cmocka_unit_test(heads_that_are_too_long),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, begin, end);
}
