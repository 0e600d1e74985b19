/* tests/server/test_api_bodies.c - bodies as such: JSON, messages, prompts. */
#include "server/api_cases.h"

/* ---- JSON ---------------------------------------------------------------------------------- */

static void check_body(const char *body, uint64_t n, const char *message)
{
    reader *const readers[] = {sheaf__api_read_chat, sheaf__api_read_completion,
                               sheaf__api_read_preload};
    for (size_t i = 0; i < COUNT(readers); i++) {
        sheaf__completion c = {0};
        sheaf__api_error e = {0};
        if (readers[i](body, n, &limits, &c, &e)) fail_msg("%s was accepted", body);
        check_error(&e, body, 400, NULL, message);
        assert_string_equal(e.code, "invalid_json");
    }
}

static void bodies_that_are_not_json_are_refused_with_their_place(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "the body is empty: a JSON object is expected"},
        {" \n", "the body is not valid JSON: line 2"},
        {"{", "line 1, column 1"},
        {"{\"a\": 1,}", "line 1, column 9"},
        {"{\"a\": 1}\n}", "line 2, column 1: end of file expected"},
        {"{\"a\": 1} x", "end of file expected"},
        {"{\"a\": nul}", "invalid token near 'nul'"},
        {"{'a': 1}", "line 1"},
        {"{\"a\": NaN}", "invalid token near 'NaN'"},
        {"{\"a\": 01}", "line 1"},
        {"{\"a\": 1e999}", "real number overflow"},
        {"{\"a\": -9223372036854775809}", "too big negative integer"},
        {"{\"a\": 99999999999999999999}", "too big integer"},
        {"{\"a\": \"\\ud800\"}", "invalid Unicode"},
        {"{\"a\": \"\n\"}", "unexpected newline"},
        {"{\"a\": \"\xff\"}", "unable to decode byte 0xff"},
        {"{\"a\": \"\xc0\x80\"}", "unable to decode byte 0xc0"},
        {"{\"a\": \"\xed\xa0\x80\"}", "unable to decode byte 0xed"},
        {"{\"a\": \xe2\x98\x83}", "line 1, column"},
        {"{\"a\": 1, \"a\": 2}", "duplicate object key"},
        {"{\"a\\u0000\": 1}", "NUL byte in object key"},
        {"[]", "must be a JSON object, found an array"},
        {"null", "must be a JSON object, found null"},
        {"\"{}\"", "must be a JSON object, found \"{}\""},
        {"3", "must be a JSON object, found 3"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) check_body(bad[i][0], strlen(bad[i][0]), bad[i][1]);
    check_body("{\"a\": \"\0\"}", 10, "line 1");
    check_body("{}\0", 3, "line 1");
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 60000 };
    char *body = malloc(DEPTH + 8);
    assert_non_null(body);
    memcpy(body, "{\"a\": ", 6);
    memset(body + 6, '[', DEPTH);
    check_body(body, DEPTH + 6, "maximum parsing depth reached");
    for (uint32_t i = 0; i < DEPTH / 5; i++) memcpy(body + 5 * i, "{\"a\":", 5);
    check_body(body, DEPTH, "maximum parsing depth reached");
    free(body);
}

/* {"prompt": [UNIT, UNIT, ... n times]}: its length. To be freed. */
static uint64_t list_of(const char *unit, uint32_t n, char **out)
{
    const char head[] = "{\"prompt\": [";
    size_t unit_size = strlen(unit);
    char *body = malloc(sizeof head + n * (unit_size + 1) + 2), *end = body;
    assert_non_null(body);
    end = stpcpy(end, head);
    for (uint32_t i = 0; i < n; i++) {
        memcpy(end, unit, unit_size);
        end += unit_size;
        *end++ = ',';
    }
    stpcpy(end - 1, "]}");
    *out = body;
    return (uint64_t)(end + 1 - body);
}

static void bodies_of_more_values_than_memory_allows_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *unit;
        uint32_t most; /* times it may stand there */
    } cases[] = {{"1", (1u << 20) - 1}, {"[]", (1u << 16) - 2}, {"{}", (1u << 16) - 2}};
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        bool one_more = i % 2;
        sheaf__completion c = {0};
        sheaf__api_error e = {0};
        char *body;
        uint64_t n = list_of(cases[i / 2].unit, cases[i / 2].most + one_more, &body);
        bool ok = sheaf__api_read_completion(body, n, &limits, &c, &e);
        if (one_more)
            check_error(&e, cases[i / 2].unit, 413, NULL,
                        "1048576 values and names or 65536 objects");
        else
            assert_true(ok || e.status == 400);
        sheaf__completion_free(&c);
        free(body);
    }
}

/* What stands in strings is no value, whatever is escaped there. */
static void strings_may_hold_any_number_of_brackets(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    char *source = malloc(6 * N + 64), *end = source;
    assert_non_null(source);
    end = stpcpy(end, "\"prompt\": \"");
    for (uint32_t i = 0; i < N; i++) end = stpcpy(end, "\\\"[\\\\");
    stpcpy(end, "\"");
    sheaf__completion c = accepted(sheaf__api_read_completion, source, "");
    assert_int_equal(c.prompts[0].n_bytes, 3 * N);
    assert_memory_equal(c.prompts[0].text, "\"[\\\"", 4);
    sheaf__completion_free(&c);
    free(source);
}

/* ---- messages ------------------------------------------------------------------------------ */

#define CHAT(list) "\"messages\": [" list "]"
#define USER(rest) CHAT("{\"role\": \"user\"" rest "}")

static void each_role_is_taken_and_developers_are_the_system(void **state)
{
    (void)state;
    static const char *const wanted[] = {"system", "system", "user", "assistant"};
    sheaf__completion c = accepted(sheaf__api_read_chat,
                                   CHAT("{\"role\": \"system\", \"content\": \"0\"}, "
                                        "{\"role\": \"developer\", \"content\": \"1\"}, "
                                        "{\"content\": \"2\", \"role\": \"user\"}, "
                                        "{\"role\": \"assistant\", \"content\": \"3\"}"),
                                   "");
    assert_int_equal(c.n_messages, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const char content[2] = {(char)('0' + i), 0};
        assert_string_equal(c.messages[i].role, wanted[i]);
        assert_string_equal(c.messages[i].content, content);
    }
    sheaf__completion_free(&c);
}

static void parts_of_a_content_are_joined(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"[{\"type\": \"text\", \"text\": \"one\"}]", "one"},
        {"[{\"type\": \"text\", \"text\": \"one \"}, {\"text\": \"\\u00fc\", \"type\": "
         "\"text\"}, "
         "{\"type\": \"text\", \"text\": \"\"}, {\"type\": \"text\", \"text\": \"!\"}]",
         "one \xc3\xbc!"},
        {"[{\"type\": \"text\", \"text\": \"\"}]", ""},
        {"\"\"", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char source[512];
        snprintf(source, sizeof source, USER(", \"content\": %s"), cases[i][0]);
        sheaf__completion c = accepted(sheaf__api_read_chat, source, "");
        assert_string_equal(c.messages[0].content, cases[i][1]);
        sheaf__completion_free(&c);
    }
}

static void answers_may_be_sent_back_as_they_came(void **state)
{
    (void)state;
    sheaf__completion c = accepted(
        sheaf__api_read_chat,
        CHAT("{\"role\": \"assistant\", \"content\": \"a\", \"refusal\": null, "
             "\"annotations\": [], \"tool_calls\": [], \"function_call\": null, "
             "\"audio\": null}, {\"role\": \"user\", \"content\": \"q\", \"name\": \"Ada\"}"),
        "");
    assert_int_equal(c.n_messages, 2);
    sheaf__completion_free(&c);
}

static void messages_that_cannot_be_read_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        refusal wanted;
    } bad[] = {
        {"", {"", "messages", "messages is required: an array of at least one message"}},
        {"\"messages\": null", {"", "messages", "messages is required"}},
        {"\"messages\": \"q\"", {"", "messages", "found \"q\""}},
        {CHAT(""), {"", "messages", "an array of at least one message, found an array"}},
        {CHAT("3"), {"", "messages[0]", "must be an object with role and content, found 3"}},
        {CHAT("{\"content\": \"q\"}"), {"", "messages[0].role", "is required"}},
        {CHAT("{\"role\": 1, \"content\": \"q\"}"),
         {"", "messages[0].role", "a string, found 1"}},
        {CHAT("{\"role\": \"tool\", \"content\": \"q\"}"),
         {"", "messages[0].role", "system, developer, user or assistant, found \"tool\""}},
        {CHAT("{\"role\": \"User\", \"content\": \"q\"}"),
         {"", "messages[0].role", "\"User\""}},
        {USER(""), {"", "messages[0].content", "is required"}},
        {USER(", \"content\": null"), {"", "messages[0].content", "found null"}},
        {USER(", \"content\": 3"), {"", "messages[0].content", "found 3"}},
        {USER(", \"content\": \"a\\u0000b\""), {"", "messages[0].content", "U+0000"}},
        {USER(", \"content\": []"), {"", "messages[0].content", "found an array"}},
        {USER(", \"content\": [\"a\"]"), {"", "messages[0].content[0]", "found \"a\""}},
        {USER(", \"content\": [{\"text\": \"a\"}]"),
         {"", "messages[0].content[0].type", "is required: \"text\""}},
        {USER(", \"content\": [{\"type\": \"text\"}]"),
         {"", "messages[0].content[0].text", "is required"}},
        {USER(", \"content\": [{\"type\": \"text\", \"text\": 1}]"),
         {"", "messages[0].content[0].text", "a string, found 1"}},
        {USER(", \"content\": [{\"type\": \"text\", \"text\": \"\\u0000\"}]"),
         {"", "messages[0].content[0].text", "U+0000"}},
        {USER(", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
              "{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]"),
         {"", "messages[0].content[1].type", "served here, found \"image_url\""}},
        {USER(", \"content\": [{\"type\": \"text\", \"text\": \"a\", \"x\": 1}]"),
         {"", "messages[0].content[0].x", "Unrecognized"}},
        {USER(", \"content\": \"a\", \"tool_calls\": [{}]"),
         {"", "messages[0].tool_calls", "not supported"}},
        {USER(", \"content\": \"a\", \"name\": 1"), {"", "messages[0].name", "a string"}},
        {USER(", \"content\": \"a\", \"x\": 1"), {"", "messages[0].x", "Unrecognized"}},
        {CHAT("{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\"}"),
         {"", "messages[1].content", "is required"}},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        check_refusals(sheaf__api_read_chat, bad[i].source, &bad[i].wanted, 1);
}

/* ---- prompts ------------------------------------------------------------------------------- */

static sheaf__completion prompts(const char *value)
{
    char source[256];
    snprintf(source, sizeof source, "\"prompt\": %s", value);
    return accepted(sheaf__api_read_completion, source, "");
}

static void a_prompt_is_a_text_tokens_or_a_list_of_these(void **state)
{
    (void)state;
    sheaf__completion c = prompts("\"\"");
    assert_true(c.n_prompts == 1 && c.prompts[0].text != NULL && c.prompts[0].n_bytes == 0);
    sheaf__completion_free(&c);
    c = prompts("\"a\\u0000b\"");
    assert_int_equal(c.prompts[0].n_bytes, 3);
    assert_memory_equal(c.prompts[0].text, "a\0b", 3);
    sheaf__completion_free(&c);
    c = prompts("[\"a\", \"bc\"]");
    assert_int_equal(c.n_prompts, 2);
    assert_string_equal(c.prompts[1].text, "bc");
    sheaf__completion_free(&c);
    c = prompts("[0, 999, 5]");
    assert_true(c.n_prompts == 1 && c.prompts[0].text == NULL && c.prompts[0].n_tokens == 3);
    assert_true(c.prompts[0].tokens[0] == 0 && c.prompts[0].tokens[1] == 999);
    sheaf__completion_free(&c);
    c = prompts("[[1, 2], [3]]");
    assert_true(c.n_prompts == 2 && c.prompts[0].n_tokens == 2 && c.prompts[1].n_tokens == 1);
    assert_int_equal(c.prompts[1].tokens[0], 3);
    sheaf__completion_free(&c);
    c = prompts("[\"a\", [7]]");
    assert_true(c.n_prompts == 2 && c.prompts[0].text != NULL && c.prompts[1].tokens[0] == 7);
    sheaf__completion_free(&c);
}

static void prompts_that_cannot_be_read_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        refusal wanted;
    } bad[] = {
        {"", {"", "prompt", "prompt is required: a string, an array of token ids, or"}},
        {"\"prompt\": null", {"", "prompt", "prompt is required"}},
        {"\"prompt\": 5", {"", "prompt", "found 5"}},
        {"\"prompt\": {}", {"", "prompt", "found an object"}},
        {"\"prompt\": []", {"", "prompt", "found an array"}},
        {"\"prompt\": [[]]", {"", "prompt[0]", "at least one token id, found an array"}},
        {"\"prompt\": [[1], []]", {"", "prompt[1]", "at least one token id"}},
        {"\"prompt\": [[1], 2]", {"", "prompt[1]", "found 2"}},
        {"\"prompt\": [\"a\", 2]", {"", "prompt[1]", "found 2"}},
        {"\"prompt\": [\"a\", null]", {"", "prompt[1]", "found null"}},
        {"\"prompt\": [null]", {"", "prompt[0]", "found null"}},
        {"\"prompt\": [1, \"a\"]", {"", "prompt[1]", "a token id from 0 to 999, found \"a\""}},
        {"\"prompt\": [1, [2]]", {"", "prompt[1]", "found an array"}},
        {"\"prompt\": [1000]", {"", "prompt[0]", "from 0 to 999, found 1000"}},
        {"\"prompt\": [-1]", {"", "prompt[0]", "found -1"}},
        {"\"prompt\": [4294967296]", {"", "prompt[0]", "found 4294967296"}},
        {"\"prompt\": [1.0]", {"", "prompt[0]", "found 1.0"}},
        {"\"prompt\": [[3], [4, 1000]]", {"", "prompt[1][1]", "found 1000"}},
        {"\"prompt\": [[3], [[4]]]", {"", "prompt[1][0]", "found an array"}},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        check_refusals(sheaf__api_read_completion, bad[i].source, &bad[i].wanted, 1);
}

/* A list of n texts. */
static char *texts(uint32_t n)
{
    char *source = calloc(n + 4, 5);
    assert_non_null(source);
    strcpy(source, "\"prompt\": [\"\"");
    char *end = source + strlen(source);
    for (uint32_t i = 1; i < n; i++, end += 3) memcpy(end, ",\"\"", 3);
    *end = ']';
    return source;
}

static void choices_times_prompts_have_a_limit(void **state)
{
    (void)state;
    char *source = texts(128);
    sheaf__completion c = accepted(sheaf__api_read_completion, source, "\"n\": 1");
    assert_int_equal(c.n_prompts, 128);
    sheaf__completion_free(&c);
    const refusal twice = {"\"n\": 2", "n",
                           "n times 128 prompts is more than the 128 answers of one request"};
    check_refusals(sheaf__api_read_completion, source, &twice, 1);
    free(source);
    source = texts(129);
    const refusal many = {"", "prompt",
                          "has 129 prompts, but at most 128 are answered at once"};
    check_refusals(sheaf__api_read_completion, source, &many, 1);
    free(source);
    const sheaf__api_limits few = {"demo", 1000, 512, 5};
    sheaf__api_error e = {0};
    const char *body = "{" QUESTION ", \"n\": 6}";
    assert_false(sheaf__api_read_chat(body, strlen(body), &few, &c, &e));
    check_error(&e, body, 400, "n", "from 1 to 5");
    body = "{\"prompt\": [\"a\", \"b\"], \"n\": 3}";
    assert_false(sheaf__api_read_completion(body, strlen(body), &few, &c, &e));
    check_error(&e, body, 400, "n", "n times 2 prompts is more than the 5 answers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_that_are_not_json_are_refused_with_their_place),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(bodies_of_more_values_than_memory_allows_are_refused),
        cmocka_unit_test(strings_may_hold_any_number_of_brackets),
        cmocka_unit_test(each_role_is_taken_and_developers_are_the_system),
        cmocka_unit_test(parts_of_a_content_are_joined),
        cmocka_unit_test(answers_may_be_sent_back_as_they_came),
        cmocka_unit_test(messages_that_cannot_be_read_are_refused),
        cmocka_unit_test(a_prompt_is_a_text_tokens_or_a_list_of_these),
        cmocka_unit_test(prompts_that_cannot_be_read_are_refused),
        cmocka_unit_test(choices_times_prompts_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
