/* tests/server/test_tools.c - tokens, templates and what is served, asked over HTTP. */
#include "server/servers.h"

static serving server;

static int open_server(void **state)
{
    (void)state;
    serving_open(&server, &(serving_options){.server.engine = {.parallel = 3}});
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    serving_close(&server);
    return 0;
}

static void tokens_become_the_text_that_they_came_of(void **state)
{
    (void)state;
    const char *text = "Item 12 costs 5 \xe2\x82\xac.\\n";
    json_t *t = serving_post(&server, "/tokenize", 200, "{'content': '%s'}", text);
    json_t *tokens = json_at(t, "tokens");
    assert_true(json_array_size(tokens) > 3);
    assert_int_equal(number_at(t, "count"), json_array_size(tokens));
    char *list = json_dumps(tokens, 0);
    json_t *d = serving_post(&server, "/detokenize", 200, "{'tokens': %s}", list);
    assert_string_equal(text_at(d, "content"), "Item 12 costs 5 \xe2\x82\xac.\n");
    json_t *pieces =
        serving_post(&server, "/tokenize", 200, "{'content': '%s', 'with_pieces': true}", text);
    assert_string_equal(text_at(pieces, "tokens.0.piece"), "Item");
    assert_int_equal(number_at(pieces, "tokens.1.id"), number_at(t, "tokens.1"));
    free(list);
    json_decref(t);
    json_decref(d);
    json_decref(pieces);
    t = serving_post(&server, "/tokenize", 200, "{'content': ''}");
    assert_int_equal(number_at(t, "count"), 0);
    json_decref(t);
    d = serving_post(&server, "/detokenize", 200, "{'tokens': []}");
    assert_string_equal(text_at(d, "content"), "");
    json_decref(d);
    json_decref(serving_post(&server, "/detokenize", 400, "{'tokens': [4096]}"));
}

static void more_tokens_than_a_reply_holds_are_refused(void **state)
{
    char text[400] = {0};
    serving small;
    (void)state;
    memset(text, '!', 300); /* each more than 20 bytes */
    serving_open(&small, &(serving_options){.server.max_reply_bytes = 2000});
    json_t *r =
        serving_post(&small, "/tokenize", 400, "{'content': '%s', 'with_pieces': true}", text);
    assert_string_equal(text_at(r, "error.code"), "reply_too_large");
    json_decref(r);
    text[50] = 0;
    r = serving_post(&small, "/tokenize", 200, "{'content': '%s', 'with_pieces': true}", text);
    json_decref(r);
    serving_close(&small);
}

static void messages_are_tokenized_as_the_template_writes_them(void **state)
{
    (void)state;
    const char *chat = "'messages': [{'role': 'user', 'content': 'a question'}]";
    json_t *p = serving_post(&server, "/apply-template", 200, "{%s}", chat);
    const char *prompt = text_at(p, "prompt");
    assert_non_null(strstr(prompt, "a question"));
    json_t *open = serving_post(&server, "/apply-template", 200,
                                "{%s, 'add_generation_prompt': false}", chat);
    assert_true(strlen(text_at(open, "prompt")) < strlen(prompt));
    json_t *t = serving_post(&server, "/tokenize", 200, "{%s}", chat);
    char *list = json_dumps(json_at(t, "tokens"), 0);
    json_t *d = serving_post(&server, "/detokenize", 200, "{'tokens': %s}", list);
    assert_string_equal(text_at(d, "content"), prompt);
    json_t *r =
        serving_post(&server, "/v1/chat/completions", 200, "{%s, 'max_tokens': 1}", chat);
    assert_int_equal(number_at(r, "usage.prompt_tokens"), number_at(t, "count"));
    free(list);
    json_decref(p);
    json_decref(open);
    json_decref(t);
    json_decref(d);
    json_decref(r);
}

static void the_model_is_listed(void **state)
{
    (void)state;
    json_t *r = serving_get(&server, "/v1/models", 200);
    assert_string_equal(text_at(r, "object"), "list");
    assert_int_equal(json_array_size(json_at(r, "data")), 1);
    assert_string_equal(text_at(r, "data.0.id"), "sheaf-demo");
    assert_string_equal(text_at(r, "data.0.object"), "model");
    assert_string_equal(text_at(r, "data.0.owned_by"), "sheaf");
    assert_int_equal(number_at(r, "data.0.meta.n_vocab"), 4096);
    assert_int_equal(number_at(r, "data.0.meta.n_layers"), 8);
    assert_true(number_at(r, "data.0.created") > 1600000000);
    json_decref(r);
}

static void properties_are_those_that_are_in_force(void **state)
{
    (void)state;
    json_t *r = serving_get(&server, "/props", 200);
    assert_string_equal(text_at(r, "version"), sheaf_version());
    assert_string_equal(text_at(r, "model_path"), SERVERS_DEMO);
    assert_int_equal(number_at(r, "n_ctx"), 8192);
    assert_string_equal(text_at(r, "chat_template"), "chatml");
    assert_int_equal(number_at(r, "limits.parallel"), 3);
    assert_int_equal(number_at(r, "limits.max_queue"), 256); /* a default */
    assert_true(number_at(r, "limits.batch_tokens") >= number_at(r, "limits.prefill_chunk"));
    assert_string_equal(text_at(r, "kv.backend"), "paged");
    assert_true(number_at(r, "kv.budget_bytes") > 0);
    assert_int_equal(number_at(r, "kv.block_size"), 32);
    assert_true(json_is_true(json_at(r, "kv.prompt_cache")));
    assert_true(json_number_value(json_at(r, "default_sampling.temperature")) > 0.99);
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_become_the_text_that_they_came_of),
        cmocka_unit_test(more_tokens_than_a_reply_holds_are_refused),
        cmocka_unit_test(messages_are_tokenized_as_the_template_writes_them),
        cmocka_unit_test(the_model_is_listed),
        cmocka_unit_test(properties_are_those_that_are_in_force),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
