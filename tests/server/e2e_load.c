/* tests/server/e2e_load.c - the same tokens and the same bits, whatever else is asked for.
 *
 * What is compared is the names of all tokens, their log-probabilities and those of the likeliest as they
 * are printed, the texts, and why each answer ended. What it is compared with was asked for alone, one
 * after the other, of a server that keeps nothing and has room for all.
 *
 * What goes wrong when caches serve many clients, and the case that keeps it out, here or elsewhere
 * (tests/cache/test_hazards.c has the library's; tools/check_tests.sh looks for every name):
 *
 *   output depends on what else runs         | a_mixed_load_in_a_tiny_pool_gives_each_request_its_bits
 *   a warm cache changes log-probabilities   | a_warm_cache_changes_no_bit_of_it
 *   a prompt's are lost to a preemption      | what_was_told_before_a_preemption_is_not_told_again
 *   preemption changes an answer             | the_youngest_is_preempted_and_gives_the_same
 *   the oldest does not finish               | where_only_one_fits_all_finish_the_oldest_first
 *   a prompt larger than the pool            | a_prompt_beyond_the_pool_is_a_400_and_the_queue_goes_on
 *   a prompt larger than the context         | a_prompt_beyond_the_context_is_refused_with_both_numbers
 *   the context is full                      | the_end_of_the_context_ends_an_answer
 *   prompts begin that cannot end together   | prompts_that_cannot_end_together_do_not_begin_together
 *   cancelled at every phase                 | cancelling_at_every_phase_returns_every_block
 *   thousands leave                          | nothing_stays_of_thousands_who_leave_at_any_moment
 *   an empty salt                            | names_have_1_to_256_bytes
 *   two tenants share                        | salts_and_no_prompt_cache_share_nothing
 *   cached_tokens differ when streamed       | a_prompt_that_comes_again_is_found_whole_and_streamed
 *   queued claims hold up others             | who_waits_for_room_claims_nothing
 *   an owner dies with its claims            | a_waiter_takes_over_from_who_is_preempted
 *   pins leave no room                       | a_prompt_that_pins_leave_no_room_for_is_told_so
 *   what cannot be done is ignored           | what_is_not_served_is_refused_by_name
 */
#include "server/client.h"
#include "server/program.h"

#include <unistd.h>

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define N_ASKS      20
#define N_LEAVERS   (N_ASKS / 2)
#define N_BOOKS     3

typedef struct ask {
    const char *path;
    json_t *body;
    json_t *told; /* alone */
} ask;

static uint64_t seed;
static char *books[N_BOOKS]; /* catalogues: what prompts begin with */
static ask asks[N_ASKS];

/* ---- what is asked ----------------------------------------------------------------------- */

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(testing_random(&seed) % n);
}

static bool one_of(uint32_t n)
{
    return draw(n) == 0;
}

/* The system prompts of the demo model's first questions. */
static void read_books(void)
{
    FILE *file = fopen(SERVERS_DEMO "/eval_recall.jsonl", "r");
    assert_non_null(file);
    for (uint32_t i = 0; i < N_BOOKS; i++) {
        json_t *row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
        books[i] = strdup(text_at(row, "messages.0.content"));
        json_decref(row);
    }
    fclose(file);
}

static void set(json_t *body, const char *name, json_t *value)
{
    assert_int_equal(json_object_set_new(body, name, value), 0);
}

/* A prompt that begins with more or less of a catalogue. */
static void set_prompt(json_t *body, bool chat)
{
    static const uint32_t sizes[] = {0, 40, 150, 400, 800, 1300};
    static const char *const ends[] = {"What can you do?", "Where is item 3360 kept?",
                                       "Once upon a time there was a", "1 2 3 4 5 6"};
    int n = (int)(sizes[draw(6)] + draw(150));
    const char *book = books[one_of(2) ? 0 : draw(N_BOOKS)], *end = ends[draw(4)];
    char text[4096];
    if (chat) {
        set(body, "messages",
            json_pack("[{s:s, s:s#}, {s:s, s:s}]", "role", "system", "content", book, n, "role",
                      "user", "content", end));
        return;
    }
    snprintf(text, sizeof text, "%.*s%s", n, book, end);
    set(body, "prompt", json_string(text));
}

static void set_sampling(json_t *body)
{
    bool greedy = one_of(2);
    set(body, "temperature", json_real(greedy ? 0 : 0.4 + draw(100) / 100.0));
    set(body, "seed", json_integer(draw(1u << 30)));
    set(body, "n", json_integer(one_of(4) ? 3 : 1));
    set(body, "max_tokens", json_integer(one_of(3) ? 90 + draw(60) : 12 + draw(40)));
    set(body, "ignore_eos", json_boolean(!one_of(4)));
    if (one_of(3)) set(body, "top_p", json_real(0.5 + draw(50) / 100.0));
    if (one_of(4)) set(body, "top_k", json_integer(1 + draw(50)));
    if (one_of(4)) set(body, "min_p", json_real(draw(20) / 100.0));
    if (one_of(4)) set(body, "presence_penalty", json_real(draw(200) / 100.0));
    if (one_of(4)) set(body, "frequency_penalty", json_real(draw(200) / 100.0));
    if (one_of(6)) set(body, "logit_bias", json_pack("{s:i, s:i}", "300", 3, "44", -100));
    if (one_of(6)) set(body, "stop", json_pack("[s, s]", " the", "7"));
}

static void make_ask(ask *a)
{
    bool chat = one_of(2);
    a->path = chat ? CHAT : COMPLETIONS;
    a->body = json_object();
    set_prompt(a->body, chat);
    set_sampling(a->body);
    if (chat) {
        set(a->body, "logprobs", json_true());
        set(a->body, "top_logprobs", json_integer(draw(6)));
    } else {
        set(a->body, "logprobs", json_integer(draw(6)));
        if (one_of(4)) set(a->body, "echo", json_true());
    }
    if (one_of(6)) set(a->body, "cache_salt", json_string("salt"));
    if (one_of(4)) set(a->body, "priority", json_integer((int)draw(5) - 2));
    if (one_of(2)) {
        set(a->body, "stream", json_true());
        set(a->body, "stream_options", json_pack("{s:b}", "include_usage", 1));
    }
}

static client client_of(const ask *a)
{
    return (client){.path = a->path, .body = json_dumps(a->body, JSON_COMPACT)};
}

/* One that asks for the same and goes away: before it is served, in its prompt, or in its answer. */
static client leaver_of(const ask *a)
{
    client c = {.path = a->path,
                .leaves = true,
                .leaves_events = draw(2) * draw(12),
                .leaves_us = draw(60000)};
    json_t *body = json_copy(a->body);
    set(body, "stream", json_true());
    set(body, "max_tokens", json_integer(400));
    c.body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return c;
}

/* ---- what is told ------------------------------------------------------------------------ */

static void must_equal(const ask *a, json_t *told)
{
    static const char *const names[] = {"choices", "usage.prompt_tokens",
                                        "usage.completion_tokens"};
    for (uint32_t i = 0; i < 3; i++) {
        json_t *found = json_at(told, names[i]), *wanted = json_at(a->told, names[i]);
        if (json_equal(found, wanted)) continue;
        const size_t flags = JSON_ENCODE_ANY | JSON_COMPACT;
        fail_msg("%s\ngives\n%s\nand alone\n%s", json_dumps(a->body, flags),
                 json_dumps(found, flags), json_dumps(wanted, flags));
    }
}

/* Compares what clients[step * i] was told with what ask i was told alone. Returns the sum of the tokens
 * that came out of the prompt cache. */
static int64_t compare(const client *clients, uint32_t step)
{
    int64_t cached = 0;
    for (uint32_t i = 0; i < N_ASKS; i++) {
        json_t *told = client_told(&clients[step * i]);
        must_equal(&asks[i], told);
        cached += number_at(told, "usage.prompt_tokens_details.cached_tokens");
        json_decref(told);
    }
    return cached;
}

/* Asks for each `step`th of them, one after the other. */
static void ask_alone(const program *p, uint32_t step)
{
    for (uint32_t i = 0; i < N_ASKS; i += step) {
        client c = client_of(&asks[i]);
        clients_run(p->net.port, &c, 1);
        json_t *told = client_told(&c);
        if (asks[i].told == NULL)
            asks[i].told = json_incref(told);
        else
            must_equal(&asks[i], told);
        json_decref(told);
        clients_free(&c, 1);
    }
}

static int set_up(void **state)
{
    program p;
    (void)state;
    seed = testing_seed(20261201);
    read_books();
    for (uint32_t i = 0; i < N_ASKS; i++) make_ask(&asks[i]);
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, "--no-prompt-cache", NULL});
    ask_alone(&p, 1);
    assert_int_equal(program_figure(&p, "preemptions"), 0);
    assert_int_equal(program_figure(&p, "tokens_reused"), 0);
    program_stop(&p);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_ASKS; i++) {
        json_decref(asks[i].body);
        json_decref(asks[i].told);
    }
    for (uint32_t i = 0; i < N_BOOKS; i++) free(books[i]);
    return 0;
}

/* ---- the same bits ----------------------------------------------------------------------- */

/* 24 blocks for requests that want several times as many. */
static void a_mixed_load_in_a_tiny_pool_gives_each_request_its_bits(void **state)
{
    (void)state;
    enum { N = N_ASKS + N_LEAVERS };
    client clients[N];
    program p;
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, "--kv-cache-budget", "3MiB",
                                       "--parallel", "8", "--batch-tokens", "96",
                                       "--prefill-chunk", "64", NULL});
    for (uint32_t i = 0; i < N; i++) /* one in three goes away */
        clients[i] = i % 3 != 1 ? client_of(&asks[i / 3 * 2 + i % 3 / 2])
                                : leaver_of(&asks[draw(N_ASKS)]);
    clients_run(p.net.port, clients, N);
    program_idle(&p);

    client stayed[N_ASKS];
    for (uint32_t i = 0; i < N_ASKS; i++) stayed[i] = clients[i / 2 * 3 + i % 2 * 2];
    int64_t cached = compare(stayed, 1), preempted = program_figure(&p, "preemptions");
    int64_t left = program_figure(&p, "requests.cancelled");
    print_message("# %lld tokens cached, %lld preemptions, %lld of %d cancelled\n",
                  (long long)cached, (long long)preempted, (long long)left, N_LEAVERS);
    assert_true(cached > 0);
    assert_true(preempted > 0);
    assert_true(left > 0);
    assert_int_equal(program_figure(&p, "paged_blocks_live"), program_figure(&p, "blocks"));
    assert_true(program_figure(&p, "paged_bytes_reserved") <= 3 << 20);
    json_decref(serving_post(&p.net, "/v1/cache/reset", 200, "{}"));
    assert_int_equal(program_figure(&p, "paged_blocks_live"), 0);
    clients_free(clients, N);
    program_stop(&p);
}

static void dense_buffers_give_the_same_bits_alone_and_together(void **state)
{
    (void)state;
    client clients[N_ASKS];
    program p;
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, "--kv-backend", "dense", "--threads",
                                       "1", "--batch-tokens", "200", NULL});
    ask_alone(&p, 3);
    for (uint32_t i = 0; i < N_ASKS; i++) clients[i] = client_of(&asks[i]);
    clients_run(p.net.port, clients, N_ASKS);
    assert_int_equal(compare(clients, 1), 0);
    clients_free(clients, N_ASKS);
    program_idle(&p);
    assert_int_equal(program_figure(&p, "dense_bytes"), 0);
    program_stop(&p);
}

/* ---- no room ----------------------------------------------------------------------------- */

/* The ids [first, first + n) as JSON. */
static char *ids_text(uint32_t first, uint32_t n)
{
    char *text = calloc(n, 8), *at = text;
    assert_non_null(text);
    for (uint32_t i = 0; i < n; i++)
        at += sprintf(at, "%s%u", i == 0 ? "" : ",", 300 + (first + i * 7) % 3000);
    return text;
}

/* A request of n tokens whose answer has n_answer, in a client that has begun. */
static void begin(const program *p, client *c, uint32_t first, uint32_t n, uint32_t n_answer)
{
    char *ids = ids_text(first, n);
    *c = (client){.path = COMPLETIONS,
                  .body = serving_body("{'prompt': [%s], 'temperature': 0, 'max_tokens': %u, "
                                       "'ignore_eos': true}",
                                       ids, n_answer)};
    free(ids);
    client_begin(p->net.port, c);
}

/* Waits until so many requests have come ever, none of which was cancelled. */
static void await_requests(const program *p, int64_t n)
{
    for (uint32_t i = 0; i < 30000; i++) {
        json_t *stats = serving_get(&p->net, "/v1/cache/stats", 200);
        int64_t found = number_at(stats, "requests_running") +
                        number_at(stats, "requests_waiting") +
                        number_at(stats, "requests.finished");
        json_decref(stats);
        if (found == n) return;
        usleep(1000);
    }
    fail_msg("there are never %lld requests", (long long)n);
}

/* 16 blocks of 32 tokens. */
static void a_prompt_beyond_the_pool_is_a_400_and_the_queue_goes_on(void **state)
{
    (void)state;
    enum { N = 3 };
    client clients[N];
    program p;
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, "--kv-cache-budget", "2MiB", NULL});
    for (uint32_t i = 0; i < N; i++) begin(&p, &clients[i], i * 50, 300, 100);
    await_requests(&p, N);
    char *ids = ids_text(0, 600);
    json_t *r = serving_post(&p.net, COMPLETIONS, 400, "{'prompt': [%s]}", ids);
    free(ids);
    assert_string_equal(text_at(r, "error.code"), "context_length_exceeded");
    const char *message = text_at(r, "error.message");
    print_message("# %s\n", message);
    assert_non_null(strstr(message, "600"));
    assert_non_null(strstr(message, "512"));
    json_decref(r);
    clients_join(clients, N);
    for (uint32_t i = 0; i < N; i++) {
        json_t *told = client_told(&clients[i]);
        assert_int_equal(number_at(told, "usage.completion_tokens"), 100);
        json_decref(told);
    }
    clients_free(clients, N);
    program_stop(&p);
}

/* The place of a reply in the log: of the line with its request's id. */
static const char *place_in_log(const char *log, const client *c)
{
    json_t *reply = json_loadb(c->reply.body, c->reply.n, 0, NULL);
    const char *place = strstr(log, text_at(reply, "id") + strlen("cmpl-"));
    json_decref(reply);
    assert_non_null(place);
    return place;
}

/* 16 blocks; each request comes to 13. */
static void where_only_one_fits_all_finish_the_oldest_first(void **state)
{
    (void)state;
    enum { N = 6 };
    client clients[N];
    program p;
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, "--kv-cache-budget", "2MiB", NULL});
    for (uint32_t i = 0; i < N; i++) {
        begin(&p, &clients[i], i * 50, 300, 100);
        await_requests(&p, i + 1);
    }
    clients_join(clients, N);
    char *log = program_log(&p);
    for (uint32_t i = 0; i < N; i++) {
        json_t *told = client_told(&clients[i]);
        assert_int_equal(number_at(told, "usage.completion_tokens"), 100);
        assert_string_equal(text_at(told, "choices.0.finish_reason"), "length");
        json_decref(told);
        if (i > 0)
            assert_true(place_in_log(log, &clients[i - 1]) < place_in_log(log, &clients[i]));
    }
    free(log);
    clients_free(clients, N);
    program_stop(&p);
}

static void a_full_queue_is_a_429_that_says_when_to_come_again(void **state)
{
    (void)state;
    enum { N = 2 };
    client waiting[N];
    program p;
    program_start(
        &p, (const char *[]){"-m", SERVERS_DEMO, "--parallel", "1", "--max-queue", "2", NULL});
    int fd = http_send(p.net.port, "POST", COMPLETIONS,
                       "{\"prompt\": \"a\", \"max_tokens\": 7000, \"ignore_eos\": true, "
                       "\"stream\": true}");
    assert_true(http_await(fd, "data: ")); /* it runs */
    for (uint32_t i = 0; i < N; i++) begin(&p, &waiting[i], i, 20, 4);
    await_requests(&p, 1 + N);
    http_reply reply = serving_ask(&p.net, "POST", COMPLETIONS, "{\"prompt\": \"a\"}");
    assert_int_equal(reply.status, 429);
    const char *after = strcasestr(reply.all, "\r\nretry-after: ");
    assert_non_null(after);
    assert_in_range(strtoul(after + strlen("\r\nretry-after: "), NULL, 10), 1, 3600);
    json_t *error = json_loads(reply.body, 0, NULL);
    assert_string_equal(text_at(error, "error.code"), "queue_full");
    json_decref(error);
    http_reply_free(&reply);
    close(fd);
    clients_join(waiting, N);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(waiting[i].reply.status, 200);
    assert_int_equal(program_figure(&p, "refused_queue"), 1);
    clients_free(waiting, N);
    program_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixed_load_in_a_tiny_pool_gives_each_request_its_bits),
        cmocka_unit_test(dense_buffers_give_the_same_bits_alone_and_together),
        cmocka_unit_test(a_prompt_beyond_the_pool_is_a_400_and_the_queue_goes_on),
        cmocka_unit_test(where_only_one_fits_all_finish_the_oldest_first),
        cmocka_unit_test(a_full_queue_is_a_429_that_says_when_to_come_again),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
