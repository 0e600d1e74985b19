/* tests/server/test_answer.c - chats and completions, whole and streamed: their shapes, and that both say
 * the same. */
#include "server/servers.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define ASK_CHAT    "'messages': [{'role': 'user', 'content': 'What is on shelf 63?'}]"

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

/* What all chunks of a stream say of one choice. */
typedef struct joined {
    char text[16384];
    char finish[16];
    uint32_t n_chunks; /* with something of its own */
    json_t *logprobs;  /* chats: content. Completions: an object of all lists */
} joined;

static void join_lists(json_t *to, json_t *from)
{
    const char *name;
    json_t *list;
    json_object_foreach(from, name, list)
    {
        if (!json_is_array(list)) continue;
        if (json_object_get(to, name) == NULL) json_object_set_new(to, name, json_array());
        json_array_extend(json_object_get(to, name), list);
    }
}

/* Joins what the stream says of a choice, and checks the shape of each of its chunks. */
static void join(json_t *events, bool chat, uint32_t index, joined *out)
{
    *out = (joined){.logprobs = json_object()};
    size_t n = json_array_size(events);
    assert_string_equal(json_string_value(json_array_get(events, n - 1)), "[DONE]");
    for (size_t i = 0; i + 1 < n; i++) {
        json_t *event = json_array_get(events, i), *choice = json_at(event, "choices.0");
        assert_string_equal(text_at(event, "object"),
                            chat ? "chat.completion.chunk" : "text_completion");
        assert_string_equal(text_at(event, "id"), text_at(json_array_get(events, 0), "id"));
        if (choice == NULL || number_at(choice, "index") != index) continue;
        assert_string_equal(out->finish, ""); /* nothing comes after the last */
        const char *text = json_string_value(json_at(choice, chat ? "delta.content" : "text"));
        if (text != NULL) strcat(out->text, text);
        if (chat) {
            const char *role = json_string_value(json_at(choice, "delta.role"));
            assert_int_equal(role != NULL, out->n_chunks == 0);
        }
        join_lists(out->logprobs, json_object_get(choice, "logprobs"));
        if (!json_is_null(json_object_get(choice, "finish_reason")))
            snprintf(out->finish, sizeof out->finish, "%s", text_at(choice, "finish_reason"));
        out->n_chunks++;
    }
    assert_string_not_equal(out->finish, "");
}

static void must_equal(json_t *a, json_t *b)
{
    if (json_equal(a, b)) return;
    fail_msg("%s\nis not\n%s", json_dumps(a, JSON_ENCODE_ANY), json_dumps(b, JSON_ENCODE_ANY));
}

/* Asks for the same whole and as a stream, and compares all that both say. Returns the whole. */
static json_t *ask_both(const char *path, const char *fields)
{
    bool chat = strcmp(path, CHAT) == 0;
    json_t *whole = serving_post(&server, path, 200, "{%s}", fields);
    json_t *events = serving_stream(
        &server, path, "{%s, 'stream': true, 'stream_options': {'include_usage': true}}",
        fields);
    json_t *choices = json_at(whole, "choices");
    static joined stream;
    assert_string_equal(text_at(whole, "object"), chat ? "chat.completion" : "text_completion");
    for (uint32_t i = 0; i < json_array_size(choices); i++) {
        json_t *choice = json_array_get(choices, i);
        join(events, chat, i, &stream);
        assert_int_equal(number_at(choice, "index"), i);
        assert_string_equal(stream.text, text_at(choice, chat ? "message.content" : "text"));
        assert_string_equal(stream.finish, text_at(choice, "finish_reason"));
        json_t *lists = json_object();
        join_lists(lists, json_object_get(choice, "logprobs"));
        must_equal(stream.logprobs, lists);
        json_decref(lists);
        json_decref(stream.logprobs);
    }
    json_t *last = json_array_get(events, json_array_size(events) - 2);
    assert_int_equal(json_array_size(json_object_get(last, "choices")), 0);
    assert_int_equal(number_at(last, "usage.completion_tokens"),
                     number_at(whole, "usage.completion_tokens"));
    assert_int_equal(number_at(last, "usage.prompt_tokens"),
                     number_at(whole, "usage.prompt_tokens"));
    assert_true(json_is_null(json_at(json_array_get(events, 0), "usage")));
    json_decref(events);
    return whole;
}

/* ---- shapes ------------------------------------------------------------------------------ */

static void a_chat_has_the_shape_that_clients_expect(void **state)
{
    (void)state;
    json_t *r = ask_both(CHAT, ASK_CHAT ", 'max_tokens': 6, 'temperature': 0");
    assert_memory_equal(text_at(r, "id"), "chatcmpl-", 9);
    assert_string_equal(text_at(r, "model"), "sheaf-demo");
    assert_memory_equal(text_at(r, "system_fingerprint"), "fp_", 3);
    assert_true(number_at(r, "created") > 1600000000);
    assert_string_equal(text_at(r, "choices.0.message.role"), "assistant");
    assert_true(json_is_null(json_at(r, "choices.0.message.refusal")));
    assert_true(json_is_null(json_at(r, "choices.0.logprobs")));
    assert_true(strlen(text_at(r, "choices.0.message.content")) > 0);
    assert_int_equal(number_at(r, "usage.total_tokens"),
                     number_at(r, "usage.prompt_tokens") +
                         number_at(r, "usage.completion_tokens"));
    assert_true(number_at(r, "usage.prompt_tokens_details.cached_tokens") >= 0);
    json_decref(r);
}

static void a_completion_has_the_shape_that_clients_expect(void **state)
{
    (void)state;
    json_t *r = ask_both(COMPLETIONS, "'prompt': 'Item 12 is the', 'temperature': 0");
    assert_memory_equal(text_at(r, "id"), "cmpl-", 5);
    assert_int_equal(json_array_size(json_at(r, "choices")), 1);
    assert_true(number_at(r, "usage.completion_tokens") <= 16); /* OpenAI's default */
    json_decref(r);
    r = serving_post(&server, COMPLETIONS, 200,
                     "{'prompt': [5, 6, 7], 'max_tokens': 3, 'ignore_eos': true}");
    assert_int_equal(number_at(r, "usage.prompt_tokens"), 3);
    assert_int_equal(number_at(r, "usage.completion_tokens"), 3);
    assert_string_equal(text_at(r, "choices.0.finish_reason"), "length");
    json_decref(r);
}

static void a_stream_tells_no_more_than_a_chunk_a_token(void **state)
{
    (void)state;
    json_t *events = serving_stream(&server, CHAT,
                                    "{" ASK_CHAT ", 'max_tokens': 9, 'temperature': 0,"
                                    "'ignore_eos': true, 'stream': true}");
    static joined stream;
    join(events, true, 0, &stream);
    assert_true(stream.n_chunks <= 9 + 2); /* the role, the tokens, the end */
    assert_int_equal(json_array_size(events), stream.n_chunks + 1);
    json_t *last = json_array_get(events, stream.n_chunks - 1);
    assert_int_equal(json_object_size(json_at(last, "choices.0.delta")), 0);
    assert_null(json_at(last, "usage"));
    json_decref(stream.logprobs);
    json_decref(events);
}

static void choices_stand_in_order_of_prompt_and_number(void **state)
{
    (void)state;
    json_t *r = ask_both(COMPLETIONS,
                         "'prompt': ['Item 12 is the', [5, 6, 7, 8]], 'n': 3, 'max_tokens': 4,"
                         "'seed': 11, 'temperature': 1.2, 'ignore_eos': true");
    assert_int_equal(json_array_size(json_at(r, "choices")), 6);
    assert_int_equal(number_at(r, "usage.completion_tokens"), 6 * 4);
    json_t *second =
        serving_post(&server, COMPLETIONS, 200,
                     "{'prompt': [5, 6, 7, 8], 'n': 3, 'max_tokens': 4, 'seed': 11,"
                     "'temperature': 1.2, 'ignore_eos': true}");
    for (uint32_t i = 0; i < 3; i++) {
        char at[32], of[32];
        snprintf(at, sizeof at, "choices.%u.text", i);
        snprintf(of, sizeof of, "choices.%u.text", i + 3);
        assert_string_equal(text_at(second, at), text_at(r, of));
    }
    assert_string_not_equal(text_at(second, "choices.0.text"),
                            text_at(second, "choices.1.text"));
    json_decref(second);
    json_decref(r);
    json_decref(ask_both(CHAT, ASK_CHAT ", 'n': 3, 'max_tokens': 3, 'seed': 4"));
}

static void a_seed_gives_the_same_answer_and_is_told(void **state)
{
    (void)state;
    json_t *a = serving_post(&server, CHAT, 200, "{" ASK_CHAT ", 'max_tokens': 6}");
    json_t *b = serving_post(&server, CHAT, 200, "{" ASK_CHAT ", 'max_tokens': 6}");
    int64_t seed = number_at(a, "seed");
    assert_true(seed >= 0 && seed != number_at(b, "seed"));
    json_t *c = serving_post(&server, CHAT, 200,
                             "{" ASK_CHAT ", 'max_tokens': 6, 'seed': %lld}", (long long)seed);
    assert_int_equal(number_at(c, "seed"), seed);
    assert_string_equal(text_at(c, "choices.0.message.content"),
                        text_at(a, "choices.0.message.content"));
    json_decref(a);
    json_decref(b);
    json_decref(c);
    a = serving_post(&server, CHAT, 200, "{" ASK_CHAT ", 'max_tokens': 4, 'seed': -7}");
    assert_int_equal(number_at(a, "seed"), -7);
    json_decref(a);
}

static void an_answer_stops_at_a_stop_text(void **state)
{
    (void)state;
    const char *base = "'prompt': 'Item 12 is the', 'temperature': 0, 'ignore_eos': true,"
                       "'max_tokens': 24";
    char fields[512], stop[8] = {0};
    json_t *r = serving_post(&server, COMPLETIONS, 200, "{%s}", base);
    const char *text = text_at(r, "choices.0.text");
    assert_true(strlen(text) > 16);
    memcpy(stop, text + 9, 3);
    size_t n = (size_t)(strstr(text, stop) - text);
    if (strpbrk(stop, "\\\"\n") != NULL) fail_msg("'%s' cannot be asked for simply", stop);
    snprintf(fields, sizeof fields, "%s, 'stop': ['never', '%s']", base, stop);
    json_t *cut = ask_both(COMPLETIONS, fields);
    assert_int_equal(strlen(text_at(cut, "choices.0.text")), n);
    assert_memory_equal(text_at(cut, "choices.0.text"), text, n);
    assert_string_equal(text_at(cut, "choices.0.finish_reason"), "stop");
    assert_true(number_at(cut, "usage.completion_tokens") < 24);
    json_decref(cut);
    json_decref(r);
}

/* ---- log-probabilities ------------------------------------------------------------------- */

static void a_chat_tells_log_probabilities_of_its_tokens(void **state)
{
    (void)state;
    json_t *r =
        ask_both(CHAT, ASK_CHAT ", 'max_tokens': 10, 'temperature': 0, 'logprobs': true,"
                                "'top_logprobs': 4, 'ignore_eos': true");
    json_t *list = json_at(r, "choices.0.logprobs.content");
    assert_true(json_is_null(json_at(r, "choices.0.logprobs.refusal")));
    assert_int_equal(json_array_size(list), 10);
    for (uint32_t i = 0; i < 10; i++) {
        json_t *entry = json_array_get(list, i), *top = json_at(entry, "top_logprobs");
        double value = json_number_value(json_at(entry, "logprob"));
        assert_int_equal(json_array_size(top), 4);
        assert_true(value <= 0);
        /* the likeliest is picked */
        assert_string_equal(text_at(entry, "token"), text_at(top, "0.token"));
        assert_true(fabs(value - json_number_value(json_at(top, "0.logprob"))) < 1e-6);
        for (uint32_t t = 1; t < 4; t++)
            assert_true(json_number_value(json_at(json_array_get(top, t), "logprob")) <=
                        json_number_value(json_at(json_array_get(top, t - 1), "logprob")));
        assert_true(json_array_size(json_at(entry, "bytes")) > 0);
    }
    json_decref(r);
}

static void lists_have_one_member_a_token(json_t *logprobs, size_t n)
{
    assert_int_equal(json_array_size(json_at(logprobs, "tokens")), n);
    assert_int_equal(json_array_size(json_at(logprobs, "token_logprobs")), n);
    assert_int_equal(json_array_size(json_at(logprobs, "top_logprobs")), n);
    assert_int_equal(json_array_size(json_at(logprobs, "text_offset")), n);
}

static void an_echo_tells_the_prompt_and_its_log_probabilities(void **state)
{
    (void)state;
    json_t *r = ask_both(COMPLETIONS, "'prompt': 'Item 12 is the silk ring.', 'echo': true,"
                                      "'logprobs': 2, 'max_tokens': 5, 'temperature': 0,"
                                      "'ignore_eos': true, 'n': 2");
    size_t n_prompt = (size_t)number_at(r, "usage.prompt_tokens");
    char text[1024] = {0};
    json_t *first = json_at(r, "choices.0.logprobs"), *token;
    size_t i;
    assert_memory_equal(text_at(r, "choices.0.text"), "Item 12 is the silk ring.", 25);
    assert_int_equal(number_at(r, "usage.completion_tokens"), 10);
    lists_have_one_member_a_token(first, n_prompt + 5);
    must_equal(first, json_at(r, "choices.1.logprobs"));
    assert_true(json_is_null(json_at(first, "token_logprobs.0")));
    assert_true(json_is_null(json_at(first, "top_logprobs.0")));
    assert_int_equal(number_at(r, "usage.prompt_tokens_details.cached_tokens"), 0);
    json_array_foreach(json_at(first, "tokens"), i, token)
    {
        assert_int_equal(json_integer_value(json_array_get(json_at(first, "text_offset"), i)),
                         strlen(text));
        if (i > 0)
            assert_true(
                json_number_value(json_array_get(json_at(first, "token_logprobs"), i)) <= 0);
        strcat(text, json_string_value(token));
    }
    assert_string_equal(text, text_at(r, "choices.0.text"));
    json_decref(r);
}

/* As evaluation harnesses ask: nothing is to be answered. */
static void a_prompt_is_judged_without_an_answer(void **state)
{
    (void)state;
    json_t *r = ask_both(COMPLETIONS, "'prompt': 'Item 12 is the silk ring.', 'echo': true,"
                                      "'logprobs': 1, 'max_tokens': 0");
    assert_string_equal(text_at(r, "choices.0.text"), "Item 12 is the silk ring.");
    assert_int_equal(number_at(r, "usage.completion_tokens"), 0);
    assert_string_equal(text_at(r, "choices.0.finish_reason"), "length");
    lists_have_one_member_a_token(json_at(r, "choices.0.logprobs"),
                                  (size_t)number_at(r, "usage.prompt_tokens"));
    json_decref(r);
}

/* Offsets are into the text, which special tokens are no part of. */
static void a_token_without_text_moves_no_offset(void **state)
{
    (void)state;
    json_t *r = ask_both(COMPLETIONS, "'prompt': 'a<|im_end|>b', 'echo': true, 'logprobs': 0,"
                                      "'max_tokens': 3, 'temperature': 0, 'ignore_eos': true,"
                                      "'logit_bias': {'4095': 100}");
    static const int64_t offsets[] = {0, 1, 11, 12, 12, 12};
    assert_string_equal(text_at(r, "choices.0.text"), "a<|im_end|>b");
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        json_t *list = json_at(r, "choices.0.logprobs.text_offset");
        assert_int_equal(json_integer_value(json_array_get(list, i)), offsets[i]);
    }
    json_decref(r);
}

static void a_bos_that_is_no_part_of_an_echo_moves_no_offset(void **state)
{
    static const char dir[] = "../shared/models/TinyStories-656K";
    serving stories;
    (void)state;
    if (access(dir, R_OK) != 0) TESTING_SKIP("there is no %s", dir);
    serving_open(&stories, &(serving_options){.dir = dir});
    json_t *r = serving_post(&stories, COMPLETIONS, 200,
                             "{'prompt': '', 'echo': true, 'logprobs': 0, 'max_tokens': 2,"
                             " 'temperature': 0}");
    assert_int_equal(number_at(r, "usage.prompt_tokens"), 1);
    assert_int_equal(number_at(r, "choices.0.logprobs.text_offset.1"), 0);
    assert_int_equal(number_at(r, "choices.0.logprobs.text_offset.2"),
                     strlen(text_at(r, "choices.0.logprobs.tokens.1")));
    json_decref(r);
    serving_close(&stories);
}

/* A prompt's log-probabilities, once for each of its answers. */
static void a_reply_too_large_for_memory_is_refused(void **state)
{
    char text[100 * 2 + 1] = {0};
    serving small;
    (void)state;
    for (int i = 0; i < 100; i++) memcpy(text + 2 * i, " a", 2);
    serving_open(&small, &(serving_options){.server.max_reply_bytes = 200000});
    json_t *r = serving_post(&small, COMPLETIONS, 400,
                             "{'prompt': '%s', 'echo': true, 'logprobs': 20, 'n': 16,"
                             " 'max_tokens': 1}",
                             text);
    assert_string_equal(text_at(r, "error.code"), "reply_too_large");
    assert_string_equal(text_at(r, "error.type"), "invalid_request_error");
    json_decref(r);
    serving_idle(&small);
    r = serving_post(&small, COMPLETIONS, 200,
                     "{'prompt': 'a', 'echo': true, 'logprobs': 20, 'n': 16, 'max_tokens': 1}");
    assert_int_equal(json_array_size(json_at(r, "choices")), 16);
    json_decref(r);
    serving_close(&small);
}

static void tokens_that_cut_characters_are_named_by_their_bytes(void **state)
{
    (void)state;
    json_t *t = serving_post(&server, "/tokenize", 200,
                             "{'content': '\xf0\x9f\x90\x9f', 'with_pieces': true}");
    assert_true(number_at(t, "count") > 1);
    assert_string_equal(text_at(t, "tokens.0.piece"), "\\xf0");
    json_t *r = ask_both(COMPLETIONS, "'prompt': '\xf0\x9f\x90\x9f', 'echo': true,"
                                      "'logprobs': 0, 'max_tokens': 2, 'ignore_eos': true,"
                                      "'temperature': 0");
    assert_string_equal(text_at(r, "choices.0.logprobs.tokens.0"), "bytes:\\xf0");
    assert_memory_equal(text_at(r, "choices.0.text"), "\xf0\x9f\x90\x9f", 4);
    assert_int_equal(number_at(r, "choices.0.logprobs.text_offset.1"), 1);
    json_decref(r);
    json_decref(t);
}

/* ---- usage ------------------------------------------------------------------------------- */

static void a_prompt_that_comes_again_is_found_whole_and_streamed(void **state)
{
    (void)state;
    char text[2048] = {0};
    for (uint32_t i = 0; i < 20; i++) sprintf(text + strlen(text), "cached word %u. ", i);
    json_t *r =
        serving_post(&server, COMPLETIONS, 200, "{'prompt': '%s', 'max_tokens': 2}", text);
    assert_int_equal(number_at(r, "usage.prompt_tokens_details.cached_tokens"), 0);
    json_decref(r);
    r = serving_post(&server, COMPLETIONS, 200, "{'prompt': '%s', 'max_tokens': 2}", text);
    int64_t cached = number_at(r, "usage.prompt_tokens_details.cached_tokens");
    int64_t n = number_at(r, "usage.prompt_tokens");
    assert_true(n > 64 && cached >= n / 32 * 32 - 32 && cached < n);
    json_decref(r);
    json_t *events = serving_stream(&server, COMPLETIONS,
                                    "{'prompt': '%s', 'max_tokens': 2, 'stream': true,"
                                    "'stream_options': {'include_usage': true}}",
                                    text);
    json_t *usage = json_array_get(events, json_array_size(events) - 2);
    assert_int_equal(number_at(usage, "usage.prompt_tokens_details.cached_tokens"), cached);
    json_decref(events);
    r = serving_post(&server, COMPLETIONS, 200, "{'prompt': ['%s', '%s'], 'max_tokens': 2}",
                     text, text);
    assert_int_equal(number_at(r, "usage.prompt_tokens_details.cached_tokens"), 2 * cached);
    assert_int_equal(number_at(r, "usage.prompt_tokens"), 2 * n);
    json_decref(r);
}

static void requests_that_ended_well_are_counted(void **state)
{
    (void)state;
    sheaf__metrics *m = &server.server->metrics;
    uint64_t answers = atomic_load(&m->answer_tokens), prompts = atomic_load(&m->prompt_tokens);
    uint64_t lengths = atomic_load(&m->finishes[SHEAF__FINISH_LENGTH]);
    json_t *r =
        serving_post(&server, COMPLETIONS, 200,
                     "{'prompt': [5, 6, 7], 'max_tokens': 4, 'ignore_eos': true, 'n': 2}");
    assert_int_equal(atomic_load(&m->answer_tokens) - answers, 8);
    assert_int_equal(atomic_load(&m->prompt_tokens) - prompts, 3);
    assert_int_equal(atomic_load(&m->finishes[SHEAF__FINISH_LENGTH]) - lengths, 2);
    json_decref(r);
}

/* ---- many at once ------------------------------------------------------------------------ */

typedef struct client {
    pthread_t thread;
    char *body;
    http_reply reply;
} client;

static void *run_client(void *arg)
{
    client *c = arg;
    c->reply = http_receive(http_send(server.port, "POST", COMPLETIONS, c->body));
    return NULL;
}

static void each_of_many_gets_its_own_answer(void **state)
{
    (void)state;
    enum { N = 4 };
    client clients[N];
    for (uint32_t i = 0; i < N; i++) {
        clients[i].body = serving_body("{'prompt': 'Item %u is', 'max_tokens': 5, 'seed': %u,"
                                       "'n': 2, 'logprobs': 1}",
                                       i * 7, i);
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < N; i++) pthread_join(clients[i].thread, NULL);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(clients[i].reply.status, 200);
        json_t *together = json_loads(clients[i].reply.body, 0, NULL);
        http_reply again = serving_ask(&server, "POST", COMPLETIONS, clients[i].body);
        json_t *alone = json_loads(again.body, 0, NULL);
        assert_non_null(together);
        must_equal(json_at(together, "choices"), json_at(alone, "choices"));
        json_decref(together);
        json_decref(alone);
        http_reply_free(&again);
        http_reply_free(&clients[i].reply);
        free(clients[i].body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_has_the_shape_that_clients_expect),
        cmocka_unit_test(a_completion_has_the_shape_that_clients_expect),
        cmocka_unit_test(a_stream_tells_no_more_than_a_chunk_a_token),
        cmocka_unit_test(choices_stand_in_order_of_prompt_and_number),
        cmocka_unit_test(a_seed_gives_the_same_answer_and_is_told),
        cmocka_unit_test(an_answer_stops_at_a_stop_text),
        cmocka_unit_test(a_chat_tells_log_probabilities_of_its_tokens),
        cmocka_unit_test(an_echo_tells_the_prompt_and_its_log_probabilities),
        cmocka_unit_test(a_prompt_is_judged_without_an_answer),
        cmocka_unit_test(a_token_without_text_moves_no_offset),
        cmocka_unit_test(a_bos_that_is_no_part_of_an_echo_moves_no_offset),
        cmocka_unit_test(a_reply_too_large_for_memory_is_refused),
        cmocka_unit_test(tokens_that_cut_characters_are_named_by_their_bytes),
        cmocka_unit_test(a_prompt_that_comes_again_is_found_whole_and_streamed),
        cmocka_unit_test(requests_that_ended_well_are_counted),
        cmocka_unit_test(each_of_many_gets_its_own_answer),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
