/* tests/server/test_api_tools.c - the bodies beside answers: preload, reset, tokens and texts; and how
 * errors are written. */
#include "server/api_cases.h"

#include <jansson.h>

#include "sheaf/ledger.h"

/* ---- preload ------------------------------------------------------------------------------- */

static void a_preload_is_a_chat_or_one_prompt(void **state)
{
    (void)state;
    sheaf__completion c = accepted(sheaf__api_read_preload, QUESTION, "");
    assert_true(c.chat && c.n_messages == 1 && c.n == 1 && !c.pin && c.pin_flags == 0);
    sheaf__completion_free(&c);
    c = accepted(sheaf__api_read_preload, PROMPT,
                 "\"cache_salt\": \"s\", \"prompt_cache_key\": \"k\", \"priority\": 2, "
                 "\"pin\": true, \"model\": null");
    assert_true(!c.chat && c.n_prompts == 1 && c.priority == 2);
    assert_true(c.pin && c.pin_flags == 0);
    assert_string_equal(c.cache_salt, "s");
    assert_int_equal(c.session, sheaf__api_session("k"));
    sheaf__completion_free(&c);
    c = accepted(sheaf__api_read_preload, "\"prompt\": [1, 2, 3]", "\"pin\": \"revocable\"");
    assert_true(c.prompts[0].n_tokens == 3 && c.pin && c.pin_flags == SHEAF_PIN_REVOCABLE);
    sheaf__completion_free(&c);
    c = accepted(sheaf__api_read_preload, PROMPT, "\"pin\": false");
    assert_false(c.pin);
    sheaf__completion_free(&c);
}

static void preloads_refuse_what_they_cannot_do(void **state)
{
    (void)state;
    static const refusal bad[] = {
        {QUESTION, "prompt", "exclude each other"},
        {"\"pin\": 1", "pin", "true, false or \"revocable\", found 1"},
        {"\"pin\": \"always\"", "pin", "found \"always\""},
        {"\"max_tokens\": 1", "max_tokens", "Unrecognized"},
        {"\"cache_salt\": \"\"", "cache_salt", "1 to 256"},
        {"\"priority\": 9", "priority", "from -3 to 3"},
    };
    check_refusals(sheaf__api_read_preload, PROMPT, bad, COUNT(bad));
    const refusal two = {"", "prompt", "has 2 prompts, but at most 1"};
    check_refusals(sheaf__api_read_preload, "\"prompt\": [\"a\", \"b\"]", &two, 1);
    const refusal none = {"", "prompt",
                          "prompt is required: a string or an array of token ids; or messages"};
    check_refusals(sheaf__api_read_preload, "", &none, 1);
}

/* Computed with Python's hashlib. */
static void sessions_are_numbered_by_their_names(void **state)
{
    (void)state;
    assert_true(sheaf__api_session("") == 0x141cfc9842c4b0e3u);
    assert_true(sheaf__api_session("abc") == 0xeacf018fbf1678bau);
}

/* ---- reset --------------------------------------------------------------------------------- */

static sheaf__cache_reset reset(const char *body)
{
    sheaf__cache_reset r;
    sheaf__api_error e = {0};
    memset(&r, 0x55, sizeof r);
    if (!sheaf__api_read_reset(body, strlen(body), &r, &e)) fail_msg("%s: %s", body, e.message);
    return r;
}

static void a_reset_is_of_everything_a_salt_or_a_session(void **state)
{
    (void)state;
    static const struct {
        const char *body, *salt, *session;
        bool unpin;
    } cases[] = {
        {"", NULL, NULL, false},
        {"{}", NULL, NULL, false},
        {"{\"unpin\": true}", NULL, NULL, true},
        {"{\"cache_salt\": \"s\"}", "s", NULL, false},
        {"{\"cache_salt\": \"s\", \"unpin\": true, \"session\": null}", "s", NULL, true},
        {"{\"prompt_cache_key\": \"k\"}", NULL, "k", false},
        {"{\"session\": \"k\", \"unpin\": false}", NULL, "k", false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        sheaf__cache_reset r = reset(cases[i].body);
        assert_int_equal(r.unpin, cases[i].unpin);
        assert_int_equal(r.cache_salt != NULL, cases[i].salt != NULL);
        if (r.cache_salt != NULL) assert_string_equal(r.cache_salt, cases[i].salt);
        assert_true(r.session ==
                    (cases[i].session != NULL ? sheaf__api_session(cases[i].session) : 0));
        sheaf__cache_reset_free(&r);
    }
}

static void resets_refuse_what_they_cannot_do(void **state)
{
    (void)state;
    static const refusal bad[] = {
        {"{\"cache_salt\": \"\"}", "cache_salt", "1 to 256 bytes"},
        {"{\"session\": 7}", "session", "found 7"},
        {"{\"session\": \"\"}", "session", "1 to 256 bytes"},
        {"{\"unpin\": 1}", "unpin", "true or false"},
        {"{\"cache_salt\": \"s\", \"session\": \"k\"}", "session", "one too many"},
        {"{\"cache_salt\": \"s\", \"prompt_cache_key\": \"k\"}", "prompt_cache_key",
         "one too many"},
        {"{\"session\": \"s\", \"prompt_cache_key\": \"k\"}", "prompt_cache_key",
         "one too many"},
        {"{\"session\": \"k\", \"unpin\": true}", "unpin", "not for one session"},
        {"{\"all\": true}", "all", "Unrecognized"},
        {"[]", NULL, "must be a JSON object"},
        {"{", NULL, "not valid JSON"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        sheaf__cache_reset r = {0};
        sheaf__api_error e = {0};
        const char *body = bad[i].said;
        if (sheaf__api_read_reset(body, strlen(body), &r, &e))
            fail_msg("%s was accepted", body);
        check_error(&e, body, 400, bad[i].param, bad[i].message);
        assert_null(r.root);
    }
}

/* ---- tokens and texts ---------------------------------------------------------------------- */

enum { TOKENIZE, DETOKENIZE, TEMPLATE };

static bool read_text(int what, const char *body, sheaf__text_request *r, sheaf__api_error *e)
{
    uint64_t n = strlen(body);
    if (what == TOKENIZE) return sheaf__api_read_tokenize(body, n, &limits, r, e);
    if (what == DETOKENIZE) return sheaf__api_read_detokenize(body, n, &limits, r, e);
    return sheaf__api_read_template(body, n, r, e);
}

static sheaf__text_request text_request(int what, const char *body)
{
    sheaf__text_request r;
    sheaf__api_error e = {0};
    memset(&r, 0x55, sizeof r);
    if (!read_text(what, body, &r, &e)) fail_msg("%s: %s", body, e.message);
    return r;
}

static void tokenize_takes_a_text_or_messages(void **state)
{
    (void)state;
    sheaf__text_request r = text_request(TOKENIZE, "{\"content\": \"a\\u0000\"}");
    assert_true(r.prompt.n_bytes == 2 && r.add_special && !r.with_pieces && r.n_messages == 0);
    sheaf__text_request_free(&r);
    r = text_request(TOKENIZE,
                     "{\"prompt\": \"\", \"add_special\": false, \"with_pieces\": true, "
                     "\"model\": \"demo\"}");
    assert_true(r.prompt.text != NULL && r.prompt.n_bytes == 0);
    assert_true(!r.add_special && r.with_pieces);
    sheaf__text_request_free(&r);
    r = text_request(TOKENIZE, "{" QUESTION "}");
    assert_true(r.n_messages == 1 && r.generate && !r.add_special && r.prompt.text == NULL);
    sheaf__text_request_free(&r);
}

static void detokenize_takes_tokens(void **state)
{
    (void)state;
    sheaf__text_request r = text_request(DETOKENIZE, "{\"tokens\": [0, 999]}");
    assert_true(r.prompt.text == NULL && r.prompt.n_tokens == 2 && r.prompt.tokens[1] == 999);
    sheaf__text_request_free(&r);
    r = text_request(DETOKENIZE, "{\"tokens\": []}");
    assert_int_equal(r.prompt.n_tokens, 0);
    sheaf__text_request_free(&r);
}

static void templates_take_messages(void **state)
{
    (void)state;
    sheaf__text_request r = text_request(TEMPLATE, "{" QUESTION "}");
    assert_true(r.n_messages == 1 && r.generate);
    sheaf__text_request_free(&r);
    r = text_request(TEMPLATE, "{" QUESTION ", \"add_generation_prompt\": false}");
    assert_false(r.generate);
    sheaf__text_request_free(&r);
}

static void tools_refuse_what_they_cannot_read(void **state)
{
    (void)state;
    static const struct {
        int what;
        refusal wanted;
    } bad[] = {
        {TOKENIZE, {"{}", "content", "content is required: a string; or messages"}},
        {TOKENIZE, {"{\"content\": 1}", "content", "a string, found 1"}},
        {TOKENIZE, {"{\"prompt\": [1]}", "prompt", "a string, found an array"}},
        {TOKENIZE, {"{\"content\": \"a\", \"prompt\": \"a\"}", "content", "one too many"}},
        {TOKENIZE, {"{\"prompt\": \"a\", " QUESTION "}", "prompt", "one too many"}},
        {TOKENIZE, {"{" QUESTION ", \"add_special\": true}", "add_special", "is for texts"}},
        {TOKENIZE,
         {"{\"content\": \"a\", \"add_special\": 1}", "add_special", "true or false"}},
        {TOKENIZE,
         {"{\"content\": \"a\", \"with_pieces\": 1}", "with_pieces", "true or false"}},
        {TOKENIZE, {"{\"content\": \"a\", \"x\": 1}", "x", "Unrecognized"}},
        {DETOKENIZE, {"{}", "tokens", "tokens is required: an array of token ids"}},
        {DETOKENIZE, {"{\"tokens\": 3}", "tokens", "found 3"}},
        {DETOKENIZE, {"{\"tokens\": [1000]}", "tokens[0]", "from 0 to 999, found 1000"}},
        {DETOKENIZE, {"{\"tokens\": [1, \"a\"]}", "tokens[1]", "found \"a\""}},
        {DETOKENIZE, {"{\"tokens\": [], \"x\": 1}", "x", "Unrecognized"}},
        {TEMPLATE, {"{}", "messages", "messages is required"}},
        {TEMPLATE, {"{" QUESTION ", \"x\": 1}", "x", "Unrecognized"}},
        {TEMPLATE,
         {"{" QUESTION ", \"add_generation_prompt\": 0}", "add_generation_prompt", "found 0"}},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        sheaf__text_request r = {0};
        sheaf__api_error e = {0};
        const refusal *wanted = &bad[i].wanted;
        if (read_text(bad[i].what, wanted->said, &r, &e))
            fail_msg("%s was accepted", wanted->said);
        check_error(&e, wanted->said, 400, wanted->param, wanted->message);
        assert_null(r.root);
    }
}

static void freeing_what_was_never_read_is_harmless(void **state)
{
    (void)state;
    sheaf__completion c = {0};
    sheaf__text_request t = {0};
    sheaf__cache_reset r = {0};
    sheaf__completion_free(&c);
    sheaf__text_request_free(&t);
    sheaf__cache_reset_free(&r);
}

/* ---- errors -------------------------------------------------------------------------------- */

static json_t *rendered(const sheaf__api_error *e)
{
    sheaf__text text = {NULL, 0, 0};
    assert_int_equal(sheaf__api_error_render(e, &text), SHEAF_OK);
    json_t *root = json_loadb(text.data, (size_t)text.n, 0, NULL);
    assert_non_null(root);
    sheaf__text_free(&text);
    return root;
}

static void errors_have_the_shape_of_openai(void **state)
{
    (void)state;
    static const struct {
        uint32_t status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                 {403, "permission_error"},      {404, "not_found_error"},
                 {405, "invalid_request_error"}, {413, "invalid_request_error"},
                 {429, "rate_limit_error"},      {500, "server_error"},
                 {503, "server_error"}};
    for (size_t i = 0; i < COUNT(types); i++) {
        sheaf__api_error e;
        const char *message = NULL, *type = NULL, *param = NULL, *code = NULL;
        assert_false(
            sheaf__api_error_set(&e, types[i].status, "why", "n", "%d \"%s\"", 3, "x"));
        json_t *root = rendered(&e);
        assert_int_equal(json_unpack(root, "{s:{s:s,s:s,s:s,s:s!}!}", "error", "message",
                                     &message, "type", &type, "param", &param, "code", &code),
                         0);
        assert_string_equal(message, "3 \"x\"");
        assert_string_equal(type, types[i].type);
        assert_string_equal(param, "n");
        assert_string_equal(code, "why");
        json_decref(root);
    }
    sheaf__api_error e;
    sheaf__api_error_set(&e, 400, NULL, NULL, "no");
    json_t *root = rendered(&e), *error = json_object_get(root, "error");
    assert_true(json_is_null(json_object_get(error, "param")));
    assert_true(json_is_null(json_object_get(error, "code")));
    json_decref(root);
}

static void errors_are_utf8_whatever_they_quote(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "plain"},
        {"\xff", "?"},
        {"a\xc3\xbc\xffz", "a\xc3\xbc?z"},
        {"a\xe2\x98", "a"}, /* cut */
        {"a\xe2\x98z", "a??z"},
        {"\xed\xa0\x80", "???"},
        {"\x80\xf0\x9f\x8d\x83", "?\xf0\x9f\x8d\x83"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        sheaf__api_error e;
        sheaf__api_error_set(&e, 404, NULL, cases[i][0], "%s", cases[i][0]);
        assert_string_equal(e.message, cases[i][1]);
        assert_string_equal(e.param, cases[i][1]);
        json_decref(rendered(&e));
    }
    char text[600] = "x";
    while (strlen(text) < 590) strcat(text, "\xf0\x9f\x8d\x83");
    sheaf__api_error e;
    sheaf__api_error_set(&e, 404, NULL, text, "%s", text);
    assert_int_equal(strlen(e.message), 381); /* x and 95 leaves */
    assert_int_equal(strlen(e.param), 61);
    json_decref(rendered(&e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_preload_is_a_chat_or_one_prompt),
        cmocka_unit_test(preloads_refuse_what_they_cannot_do),
        cmocka_unit_test(sessions_are_numbered_by_their_names),
        cmocka_unit_test(a_reset_is_of_everything_a_salt_or_a_session),
        cmocka_unit_test(resets_refuse_what_they_cannot_do),
        cmocka_unit_test(tokenize_takes_a_text_or_messages),
        cmocka_unit_test(detokenize_takes_tokens),
        cmocka_unit_test(templates_take_messages),
        cmocka_unit_test(tools_refuse_what_they_cannot_read),
        cmocka_unit_test(freeing_what_was_never_read_is_harmless),
        cmocka_unit_test(errors_have_the_shape_of_openai),
        cmocka_unit_test(errors_are_utf8_whatever_they_quote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
