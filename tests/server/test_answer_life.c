/* tests/server/test_answer_life.c - what is refused and why, and what is left of answers that are not
 * waited for: nothing. */
#include "server/servers.h"

#include <unistd.h>

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define LONG        "'ignore_eos': true, 'max_tokens': 7000, 'temperature': 0"

static serving server;

static int open_server(void **state)
{
    (void)state;
    serving_open(&server, NULL);
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    serving_close(&server);
    return 0;
}

static void must_be_error(json_t *r, const char *code, const char *type)
{
    const char *found = json_string_value(json_at(r, "error.code"));
    if (found == NULL || strcmp(found, code) != 0) fail_msg("%s", json_dumps(r, 0));
    assert_string_equal(text_at(r, "error.type"), type);
    assert_true(strlen(text_at(r, "error.message")) > 0);
    json_decref(r);
}

/* ---- refused ----------------------------------------------------------------------------- */

static void a_prompt_beyond_the_context_is_refused_with_both_numbers(void **state)
{
    (void)state;
    serving small;
    serving_open(&small, &(serving_options){.model.ctx_size = 64});
    char tokens[1024] = "1";
    for (uint32_t i = 1; i < 80; i++) strcat(tokens, ",1");
    json_t *r = serving_post(&small, COMPLETIONS, 400, "{'prompt': [%s]}", tokens);
    const char *message = text_at(r, "error.message");
    assert_non_null(strstr(message, "80"));
    assert_non_null(strstr(message, "64"));
    assert_string_equal(text_at(r, "error.param"), "prompt");
    must_be_error(r, "context_length_exceeded", "invalid_request_error");
    r = serving_post(&small, COMPLETIONS, 200,
                     "{'prompt': [1, 1, 1], 'max_tokens': 1000, 'ignore_eos': true}");
    assert_string_equal(text_at(r, "choices.0.finish_reason"),
                        "length"); /* the context's end */
    json_decref(r);
    serving_close(&small);
}

/* Trying again, as after a 429, would not help. */
static void more_prompts_than_may_wait_are_refused_for_good(void **state)
{
    (void)state;
    serving small;
    serving_open(&small, &(serving_options){.server.engine.max_queue = 2});
    json_t *r = serving_post(&small, COMPLETIONS, 400, "{'prompt': ['a', 'b', 'c']}");
    assert_string_equal(text_at(r, "error.param"), "prompt");
    must_be_error(r, "invalid_value", "invalid_request_error");
    json_decref(serving_post(&small, COMPLETIONS, 200, "{'prompt': ['a', 'b']}"));
    serving_close(&small);
}

static void a_prompt_that_pins_leave_no_room_for_is_told_so(void **state)
{
    (void)state;
    serving small; /* 16 blocks of 32 tokens, in f32 */
    serving_open(&small, &(serving_options){.model.kv_budget_bytes = 16u << 18});
    char tokens[2048] = "1";
    for (uint32_t i = 1; i < 300; i++) strcat(tokens, ",1");
    json_t *r =
        serving_post(&small, "/v1/cache/preload", 200, "{'prompt': [%s], 'pin': true}", tokens);
    assert_int_equal(number_at(r, "pinned_tokens"), 300);
    json_decref(r);
    memset(tokens, '2', 1); /* another prompt */
    r = serving_post(&small, COMPLETIONS, 503, "{'prompt': [%s]}", tokens);
    must_be_error(r, "no_room", "server_error");
    json_decref(serving_post(&small, "/v1/cache/reset", 200, "{'unpin': true}"));
    json_decref(serving_post(&small, COMPLETIONS, 200, "{'prompt': [%s]}", tokens));
    serving_close(&small);
}

static void what_a_body_or_a_template_refuses_is_told(void **state)
{
    (void)state;
    json_t *r = serving_post(&server, CHAT, 400, "{'messages': 5}");
    assert_string_equal(text_at(r, "error.param"), "messages");
    json_decref(r);
    r = serving_post(&server, COMPLETIONS, 400, "{'prompt': ''}");
    assert_string_equal(text_at(r, "error.param"), "prompt");
    json_decref(r);
    r = serving_post(&server, CHAT, 400, "not JSON");
    assert_string_equal(text_at(r, "error.type"), "invalid_request_error");
    json_decref(r);
}

static void a_model_without_a_template_refuses_chats(void **state)
{
    (void)state;
    serving plain;
    serving_open(&plain, &(serving_options){.no_chat = true});
    json_t *r =
        serving_post(&plain, CHAT, 400, "{'messages': [{'role': 'user', 'content': 'a'}]}");
    must_be_error(r, "no_chat_template", "invalid_request_error");
    serving_close(&plain);
}

/* One request runs, one waits; of two prompts more one can wait, and the other is too many: neither is
 * answered. */
static void a_full_queue_refuses_all_prompts_of_a_request(void **state)
{
    (void)state;
    serving narrow;
    serving_open(&narrow, &(serving_options){.server.engine = {.parallel = 1, .max_queue = 2}});
    char *body = serving_body("{'prompt': 'first', " LONG ", 'stream': true}");
    int fd = http_send(narrow.port, "POST", COMPLETIONS, body);
    free(body);
    assert_true(http_await(fd, "data: "));
    body = serving_body("{'prompt': 'second', " LONG ", 'stream': true}");
    int waits = http_send(narrow.port, "POST", COMPLETIONS, body);
    free(body);
    assert_true(http_await(waits, "text/event-stream")); /* it was submitted */
    body = serving_body("{'prompt': ['a', 'b'], " LONG ", 'stream': true}");
    http_reply reply = serving_ask(&narrow, "POST", COMPLETIONS, body);
    assert_int_equal(reply.status, 429);
    assert_non_null(strcasestr(reply.all, "retry-after: "));
    must_be_error(json_loads(reply.body, 0, NULL), "queue_full", "rate_limit_error");
    assert_int_equal(atomic_load(&narrow.server->metrics.refused_queue), 1);
    http_reply_free(&reply);
    free(body);
    close(fd);
    close(waits);
    serving_idle(&narrow);
    assert_int_equal(serving_stats(&narrow).cancelled, 3);
    json_t *r =
        serving_post(&narrow, COMPLETIONS, 200, "{'prompt': ['a', 'b'], 'max_tokens': 2}");
    json_decref(r);
    serving_close(&narrow);
}

/* ---- left -------------------------------------------------------------------------------- */

static void a_client_that_leaves_cancels_its_answer(void **state)
{
    (void)state;
    const char *const streams[] = {"false", "true"};
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t cancelled = serving_stats(&server).cancelled;
        char *body =
            serving_body("{'prompt': ['a', 'b'], 'n': 2, " LONG ", 'stream': %s}", streams[i]);
        int fd = http_send(server.port, "POST", COMPLETIONS, body);
        free(body);
        assert_true(fd >= 0);
        serving_running(&server, 2);
        close(fd);
        serving_idle(&server);
        assert_int_equal(serving_stats(&server).cancelled - cancelled, 2);
    }
}

static void clients_that_leave_at_any_time_leave_nothing(void **state)
{
    (void)state;
    uint64_t seed = testing_seed(20261130);
    for (uint32_t i = 0; i < 40; i++) {
        char *body = serving_body("{'prompt': ['a b c', 'd'], 'n': 2, " LONG ", 'stream': %s}",
                                  i % 2 == 0 ? "true" : "false");
        int fd = http_send(server.port, "POST", COMPLETIONS, body);
        free(body);
        assert_true(fd >= 0);
        usleep((useconds_t)(testing_random(&seed) % 3000));
        close(fd);
    }
    json_t *r = serving_post(&server, COMPLETIONS, 200, "{'prompt': 'a', 'max_tokens': 2}");
    json_decref(r);
    serving_idle(&server);
}

static void a_stopped_server_says_so(void **state)
{
    (void)state;
    serving s;
    serving_open(&s, NULL);
    char *whole = serving_body("{'prompt': 'a', " LONG "}");
    char *stream = serving_body("{'prompt': 'a', " LONG ", 'stream': true}");
    int fds[2] = {http_send(s.port, "POST", COMPLETIONS, whole),
                  http_send(s.port, "POST", COMPLETIONS, stream)};
    serving_running(&s, 2);
    sheaf__server_stop(s.server);
    http_reply reply = http_receive(fds[0]);
    assert_int_equal(reply.status, 503);
    assert_non_null(strstr(reply.body, "\"shutting_down\""));
    http_reply_free(&reply);
    reply = http_receive(fds[1]);
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "data: {\"error\":{"));
    assert_null(strstr(reply.body, "[DONE]"));
    http_reply_free(&reply);
    free(whole);
    free(stream);
    serving_close(&s);
}

/* ---- the prompt cache -------------------------------------------------------------------- */

static const char *long_text(void)
{
    static char text[2048];
    text[0] = 0;
    for (uint32_t i = 0; i < 20; i++) sprintf(text + strlen(text), "kept word %u. ", i);
    return text;
}

/* How much of the text is found. */
static int64_t cached(const char *fields)
{
    json_t *r = serving_post(&server, COMPLETIONS, 200, "{'prompt': '%s', 'max_tokens': 1%s}",
                             long_text(), fields);
    int64_t n = number_at(r, "usage.prompt_tokens_details.cached_tokens");
    json_decref(r);
    return n;
}

/* Entries that are gone. */
static int64_t reset(const char *body)
{
    json_t *r = serving_post(&server, "/v1/cache/reset", 200, "%s", body);
    int64_t n = number_at(r, "entries");
    assert_string_equal(text_at(r, "object"), "cache.reset");
    json_decref(r);
    return n;
}

static void a_reset_is_of_all_or_of_a_salt_or_of_a_session(void **state)
{
    (void)state;
    reset("");
    assert_int_equal(cached(""), 0);
    assert_int_equal(cached(", 'cache_salt': 'a'"), 0);
    assert_int_equal(cached(", 'cache_salt': 'b', 'prompt_cache_key': 'k'"), 0);
    assert_true(cached("") > 0);
    assert_true(cached(", 'cache_salt': 'a'") > 0);
    assert_true(reset("{'cache_salt': 'a'}") > 0);
    assert_int_equal(cached(", 'cache_salt': 'a'"), 0);
    assert_true(cached("") > 0);
    assert_true(cached(", 'cache_salt': 'b', 'prompt_cache_key': 'k'") > 0);
    assert_int_equal(reset("{'prompt_cache_key': 'other'}"), 0);
    assert_true(reset("{'prompt_cache_key': 'k'}") > 0);
    assert_int_equal(cached(", 'cache_salt': 'b'"), 0);
    assert_true(cached("") > 0);
    assert_true(reset("{}") > 0);
    assert_int_equal(cached(""), 0);
}

static void a_preload_fills_the_cache_and_pins(void **state)
{
    (void)state;
    reset("{'unpin': true}");
    json_t *r =
        serving_post(&server, "/v1/cache/preload", 200, "{'prompt': '%s'}", long_text());
    int64_t n = number_at(r, "prompt_tokens");
    assert_string_equal(text_at(r, "object"), "cache.preload");
    assert_int_equal(number_at(r, "cached_tokens"), 0);
    assert_int_equal(number_at(r, "computed_tokens"), n);
    assert_true(json_is_null(json_at(r, "pin")));
    assert_int_equal(number_at(r, "pinned_tokens"), 0);
    json_decref(r);
    assert_int_equal(cached(""), n - 1);
    r = serving_post(&server, "/v1/cache/preload", 200, "{'prompt': '%s', 'pin': true}",
                     long_text());
    assert_true(number_at(r, "pin") > 0);
    assert_true(number_at(r, "pinned_tokens") >= n / 32 * 32);
    assert_true(number_at(r, "computed_tokens") <= 1);
    json_decref(r);
    reset("{}");
    assert_true(cached("") >= n / 32 * 32 - 32); /* pinned */
    r = serving_post(&server, "/v1/cache/reset", 200, "{'unpin': true}");
    assert_int_equal(number_at(r, "unpinned"), 1);
    assert_true(number_at(r, "entries") > 0);
    json_decref(r);
    assert_int_equal(cached(""), 0);
}

static void messages_are_preloaded_as_they_are_answered(void **state)
{
    (void)state;
    const char *chat = "'messages': [{'role': 'user', 'content': 'a word before others'}]";
    json_t *r = serving_post(&server, "/v1/cache/preload", 200, "{%s}", chat);
    int64_t n = number_at(r, "prompt_tokens");
    json_decref(r);
    r = serving_post(&server, CHAT, 200, "{%s, 'max_tokens': 1}", chat);
    assert_int_equal(number_at(r, "usage.prompt_tokens"), n);
    assert_int_equal(number_at(r, "usage.prompt_tokens_details.cached_tokens"), n - 1);
    json_decref(r);
}

static void a_server_without_a_prompt_cache_refuses_its_calls(void **state)
{
    (void)state;
    const serving_options kinds[] = {{.server.engine.no_prompt_cache = true},
                                     {.model.kv_backend = SHEAF__KV_DENSE}};
    for (uint32_t i = 0; i < 2; i++) {
        serving s;
        serving_open(&s, &kinds[i]);
        must_be_error(serving_post(&s, "/v1/cache/preload", 400, "{'prompt': 'a'}"),
                      "no_prompt_cache", "invalid_request_error");
        must_be_error(serving_post(&s, "/v1/cache/reset", 400, "{}"), "no_prompt_cache",
                      "invalid_request_error");
        json_t *r = serving_post(&s, COMPLETIONS, 200, "{'prompt': 'a', 'max_tokens': 2}");
        json_decref(r);
        serving_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_beyond_the_context_is_refused_with_both_numbers),
        cmocka_unit_test(more_prompts_than_may_wait_are_refused_for_good),
        cmocka_unit_test(a_prompt_that_pins_leave_no_room_for_is_told_so),
        cmocka_unit_test(what_a_body_or_a_template_refuses_is_told),
        cmocka_unit_test(a_model_without_a_template_refuses_chats),
        cmocka_unit_test(a_full_queue_refuses_all_prompts_of_a_request),
        cmocka_unit_test(a_client_that_leaves_cancels_its_answer),
        cmocka_unit_test(clients_that_leave_at_any_time_leave_nothing),
        cmocka_unit_test(a_stopped_server_says_so),
        cmocka_unit_test(a_reset_is_of_all_or_of_a_salt_or_of_a_session),
        cmocka_unit_test(a_preload_fills_the_cache_and_pins),
        cmocka_unit_test(messages_are_preloaded_as_they_are_answered),
        cmocka_unit_test(a_server_without_a_prompt_cache_refuses_its_calls),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
