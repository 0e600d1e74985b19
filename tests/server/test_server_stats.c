/* The figures, the map and the live requests of a whole server, asked over HTTP. */
#include "testing.h"

#include <unistd.h>

#include "server/figures.h"
#include "server/metrics_text.h"
#include "server/servers.h"
#include "server/web.h"

/* ---- whether it is there ----------------------------------------------------------------- */

static void expect_health(uint16_t port, uint32_t status, const char *word)
{
    http_reply reply = http_receive(http_send(port, "GET", "/health", NULL));
    assert_int_equal(reply.status, status);
    json_t *root = json_loads(reply.body, 0, NULL);
    assert_string_equal(text_at(root, "status"), word);
    assert_int_equal(strstr(reply.all, "Retry-After: 1") != NULL, status == 503);
    json_decref(root);
    http_reply_free(&reply);
}

static uint32_t status_of(uint16_t port, const char *path)
{
    http_reply reply = http_receive(http_send(port, "GET", path, NULL));
    uint32_t status = reply.status;
    http_reply_free(&reply);
    return status;
}

static void health_follows_the_servers_life(void **state)
{
    (void)state;
    sheaf_error err = {0};
    sheaf__server_options o = {.model_path = SERVERS_DEMO, .http = {.any_port = true}};
    sheaf__server *loading = NULL;
    assert_int_equal(sheaf__server_open(&o, &loading, &err), SHEAF_OK);
    uint16_t port = sheaf__http_port(loading->http);
    expect_health(port, 503, "loading");
    assert_int_equal(status_of(port, "/v1/cache/stats"), 503);
    assert_int_equal(status_of(port, "/metrics"), 503);
    assert_int_equal(status_of(port, "/slots"), 503);
    assert_int_equal(status_of(port, "/v1/cache/map"), 503);
    sheaf__server_close(loading);

    serving s;
    serving_open(&s, NULL);
    expect_health(s.port, 200, "ok");
    serving_close(&s);
}

/* New connections are turned away by then, one that is there is heard. */
static void a_draining_server_still_tells(void **state)
{
    (void)state;
    serving s;
    static const char *const paths[] = {"/health", "/v1/cache/stats", "/slots", "/v1/cache/map",
                                        "/metrics"};
    static const uint32_t wanted[] = {503, 200, 200, 200, 200};
    int fds[5];
    serving_open(&s, NULL);
    for (size_t i = 0; i < 5; i++) {
        char head[128];
        fds[i] = web_connect(s.port);
        assert_true(fds[i] >= 0);
        snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: a\r\n", paths[i]);
        assert_int_equal(write(fds[i], head, strlen(head)), strlen(head));
    }
    expect_health(s.port, 200, "ok"); /* so the others have been accepted */
    sheaf__server_drain(s.server);
    for (size_t i = 0; i < 5; i++) {
        static const char rest[] = "Connection: close\r\n\r\n";
        assert_int_equal(write(fds[i], rest, sizeof rest - 1), sizeof rest - 1);
        http_reply reply = http_receive(fds[i]);
        assert_int_equal(reply.status, wanted[i]);
        if (i == 0) assert_string_equal(reply.body, "{\"status\":\"draining\"}");
        http_reply_free(&reply);
    }
    serving_close(&s);
}

/* ---- figures ----------------------------------------------------------------------------- */

/* What holds of every server that has nothing to do. */
static void check_sums(json_t *stats)
{
    assert_int_equal(number_at(stats, "paged_blocks_live") +
                         number_at(stats, "paged_blocks_free") +
                         number_at(stats, "paged_blocks_retiring"),
                     number_at(stats, "paged_blocks_allocated"));
    assert_int_equal(number_at(stats, "paged_bytes_in_use"),
                     number_at(stats, "paged_blocks_live") * number_at(stats, "block_bytes"));
    assert_int_equal(number_at(stats, "bytes"),
                     number_at(stats, "blocks") * number_at(stats, "block_bytes"));
    assert_int_equal(number_at(stats, "paged_blocks_live"), number_at(stats, "blocks"));
    assert_int_equal(number_at(stats, "bytes_exclusive"), number_at(stats, "bytes"));
    assert_int_equal(number_at(stats, "blocks_by_owner.cached"), number_at(stats, "blocks"));
    assert_int_equal(number_at(stats, "blocks_by_owner.running"), 0);
    assert_true(number_at(stats, "paged_bytes_reserved") <= number_at(stats, "budget_bytes"));
    assert_int_equal(number_at(stats, "slabs"),
                     number_at(stats, "slab_appends") - number_at(stats, "slab_releases"));
    assert_int_equal(number_at(stats, "bytes_copied_by_growth"), 0);
    assert_int_equal(number_at(stats, "requests_running"), 0);
    assert_true(json_number_value(json_at(stats, "uptime_seconds")) > 0);
    assert_true(number_at(stats, "resident_bytes") > 1 << 20);
    assert_true(number_at(stats, "resident_peak_bytes") > 1 << 20);
}

static uint64_t count_of(const char *states, char letter)
{
    uint64_t n = 0;
    for (; *states != 0; states++) n += *states == letter;
    return n;
}

/* The map of a server that has nothing to do. */
static void check_map(const serving *s, json_t *stats)
{
    json_t *map = serving_get(s, "/v1/cache/map", 200);
    const char *states = text_at(map, "groups.0.states");
    assert_int_equal(json_array_size(json_at(map, "groups")), 1);
    assert_int_equal(strlen(states), number_at(map, "groups.0.rows"));
    assert_int_equal(count_of(states, 'c'), number_at(stats, "blocks"));
    assert_int_equal(count_of(states, '.'), number_at(stats, "paged_blocks_free"));
    assert_int_equal(strlen(states) - count_of(states, '-'),
                     number_at(stats, "paged_blocks_allocated"));
    assert_int_equal(number_at(map, "groups.0.block_bytes"), number_at(stats, "block_bytes"));
    assert_int_equal(json_array_size(json_at(map, "groups.0.owners")), 0);
    json_decref(map);
}

static char *metrics_of(const serving *s)
{
    http_reply reply = serving_ask(s, "GET", "/metrics", NULL);
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.all, "text/plain; version=0.0.4"));
    metrics_text_check(reply.body);
    char *text = strdup(reply.body);
    assert_non_null(text);
    http_reply_free(&reply);
    return text;
}

/* Those that the asking itself changes, or time. */
static bool stands_still(const char *field)
{
    static const char *const moving[] = {"uptime",      "resident",  "replies",
                                         "connections", "exchanges", "queued_bytes"};
    for (size_t i = 0; i < sizeof moving / sizeof moving[0]; i++)
        if (strncmp(field, moving[i], strlen(moving[i])) == 0) return false;
    return true;
}

/* A server that has nothing to do tells the same in /metrics. */
static void check_metrics(const serving *s, json_t *stats)
{
    uint32_t n_compared = 0;
    char *metrics = metrics_of(s);
    for (uint32_t i = 0; i < sheaf__n_figure_sections; i++) {
        for (uint32_t k = 0; k < sheaf__figure_sections[i].n; k++) {
            const sheaf__figure *figure = &sheaf__figure_sections[i].figures[k];
            double told;
            if (figure->field == NULL || figure->metric == NULL || figure->by[0] != NULL ||
                figure->type > SHEAF__FIGURE_COUNTER || !stands_still(figure->field))
                continue;
            json_t *value = json_at(stats, figure->field);
            assert_int_equal(metrics_text_find(metrics, figure->metric, &told), value != NULL);
            if (value == NULL) continue;
            double wanted =
                json_is_boolean(value) ? json_boolean_value(value) : json_number_value(value);
            if (told != wanted) fail_msg("%s: %g, not %g", figure->metric, told, wanted);
            n_compared++;
        }
    }
    assert_true(n_compared > 60);
    assert_true(metrics_text_value(metrics, "sheaf_replies_total{endpoint=\"completion\","
                                            "status=\"2xx\"}") == 2);
    assert_true(metrics_text_value(metrics, "sheaf_time_to_first_token_seconds_count") == 2);
    free(metrics);
}

/* More than a block, and not much more: the sanitizers run it too. */
static const char *const prompt =
    "Once upon a time there was a pool of blocks, and none of them was lost, nor counted twice "
    "by anybody who came to look at it, and so they lived.";

/* Waits until so many completions ended like that: a reply is counted once it is away. */
static void await_replies(const serving *s, const char *ended, int64_t n)
{
    char path[64];
    int64_t counted = -1;
    snprintf(path, sizeof path, "replies.completion.%s", ended);
    for (uint64_t end = web_ms() + WEB_PATIENCE_MS; counted != n && web_ms() < end;
         usleep(1000)) {
        json_t *stats = serving_get(s, "/v1/cache/stats", 200);
        counted = number_at(stats, path);
        json_decref(stats);
    }
    assert_int_equal(counted, n);
}

/* The n-th whole answer to the prompt: who has it finds it counted. */
static void ask_whole(const serving *s, int64_t n)
{
    json_decref(serving_post(s, "/v1/completions", 200,
                             "{'prompt': '%s', 'max_tokens': 8, 'ignore_eos': true}", prompt));
    json_t *stats = serving_get(s, "/v1/cache/stats", 200);
    assert_int_equal(number_at(stats, "requests.finished"), n);
    assert_int_equal(number_at(stats, "requests_running"), 0);
    assert_int_equal(number_at(stats, "tokens_told"), 8 * n);
    assert_int_equal(number_at(stats, "request_time.count"), n);
    json_decref(stats);
    await_replies(s, "2xx", n);
}

static void figures_follow_requests(void **state)
{
    (void)state;
    serving s;
    serving_open(&s, NULL);
    json_t *before = serving_get(&s, "/v1/cache/stats", 200);
    assert_true(json_is_true(json_at(before, "enabled")));
    assert_string_equal(text_at(before, "backend"), "paged");
    assert_string_equal(text_at(before, "model"), "sheaf-demo");
    assert_int_equal(number_at(before, "block_size"), 32);
    assert_int_equal(number_at(before, "lookups"), 0);
    assert_true(json_number_value(json_at(before, "hit_rate")) == 0);
    assert_int_equal(number_at(before, "entries"), 0);
    check_sums(before);
    check_map(&s, before);

    ask_whole(&s, 1);
    json_t *cold = serving_get(&s, "/v1/cache/stats", 200);
    int64_t n_prompt = number_at(cold, "prompt_tokens");
    assert_in_range(n_prompt, 33, 1000); /* more than a block */
    assert_int_equal(number_at(cold, "lookups"), 1);
    assert_int_equal(number_at(cold, "hits"), 0);
    assert_int_equal(number_at(cold, "entries"), 1);
    assert_int_equal(number_at(cold, "tokens_computed"), n_prompt + 7);
    assert_int_equal(number_at(cold, "tokens_told"), 8);
    assert_int_equal(number_at(cold, "tokens"), n_prompt + 7);
    assert_int_equal(number_at(cold, "blocks"), (n_prompt + 7 + 31) / 32);
    check_sums(cold);
    check_map(&s, cold);

    ask_whole(&s, 2);
    json_t *warm = serving_get(&s, "/v1/cache/stats", 200);
    int64_t reused = number_at(warm, "tokens_reused");
    assert_in_range(reused, 32, n_prompt);
    assert_int_equal(number_at(warm, "lookups"), 2);
    assert_int_equal(number_at(warm, "hits"), 1);
    assert_true(json_number_value(json_at(warm, "hit_rate")) == 0.5);
    assert_int_equal(number_at(warm, "lookup_tokens"), 2 * n_prompt);
    assert_int_equal(number_at(warm, "requests.finished"), 2);
    assert_int_equal(number_at(warm, "choices.length"), 2);
    assert_int_equal(number_at(warm, "prompt_tokens"), 2 * n_prompt);
    assert_int_equal(number_at(warm, "answer_tokens"), 16);
    assert_int_equal(number_at(warm, "cached_tokens"), reused);
    assert_int_equal(number_at(warm, "queue_time.count"), 2);
    assert_int_equal(number_at(warm, "time_to_first_token.count"), 2);
    assert_int_equal(number_at(warm, "time_between_tokens.count"), 14);
    assert_int_equal(number_at(warm, "request_time.count"), 2);
    assert_int_equal(number_at(warm, "prompt_size.sum"), 2 * n_prompt);
    assert_int_equal(number_at(warm, "answer_size.sum"), 16);
    check_sums(warm);
    check_metrics(&s, warm);
    json_decref(before), json_decref(cold), json_decref(warm);
    serving_close(&s);
}

/* A refusal by a capacity that is too small, told with its details. */
static void a_refusal_is_told_in_detail(void **state)
{
    (void)state;
    serving s;
    sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
    limits.capacity_bytes = 4096;
    serving_options o = {.server.engine.prefix = &limits};
    serving_open(&s, &o);
    json_t *stats = serving_get(&s, "/v1/cache/stats", 200);
    assert_null(json_at(stats, "last_refusal"));
    json_decref(stats);
    ask_whole(&s, 1);
    stats = serving_get(&s, "/v1/cache/stats", 200);
    assert_true(number_at(stats, "refusals.too_large") > 0);
    assert_string_equal(text_at(stats, "last_refusal.reason"), "too_large");
    assert_int_equal(number_at(stats, "last_refusal.possible_bytes"), 4096);
    assert_true(number_at(stats, "last_refusal.needed_bytes") > 4096);
    assert_int_equal(number_at(stats, "bytes"), 0);
    json_decref(stats);
    serving_close(&s);
}

static void the_dense_backend_tells_no_figures_of_a_pool(void **state)
{
    (void)state;
    serving s;
    serving_options o = {.model.kv_backend = SHEAF__KV_DENSE};
    serving_open(&s, &o);
    ask_whole(&s, 1);
    json_t *stats = serving_get(&s, "/v1/cache/stats", 200);
    assert_true(json_is_false(json_at(stats, "enabled")));
    assert_string_equal(text_at(stats, "backend"), "dense");
    assert_int_equal(number_at(stats, "tokens_told"), 8);
    assert_int_equal(number_at(stats, "dense_bytes"), 0);
    static const char *const absent[] = {"paged_bytes_in_use", "block_size", "hits", "entries",
                                         "budget_bytes"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        assert_null(json_at(stats, absent[i]));
    json_decref(stats);
    char *metrics = metrics_of(&s);
    assert_null(strstr(metrics, "sheaf_pool_"));
    assert_true(metrics_text_value(metrics, "sheaf_cache_enabled") == 0);
    free(metrics);
    json_t *error = serving_get(&s, "/v1/cache/map", 404);
    assert_string_equal(text_at(error, "error.code"), "no_pool");
    json_decref(error);
    json_t *slots = serving_get(&s, "/slots", 200);
    assert_int_equal(json_array_size(slots), 0);
    json_decref(slots);
    serving_close(&s);
}

/* ---- requests and blocks ----------------------------------------------------------------- */

/* Begins a stream that goes on until its client leaves. */
static int begin_stream(const serving *s, const char *id_header)
{
    char *body = serving_body("{'prompt': '%s', 'max_tokens': 7000, 'ignore_eos': true, "
                              "'stream': true}",
                              prompt);
    char head[512];
    int fd = web_connect(s->port);
    assert_true(fd >= 0);
    int n = snprintf(head, sizeof head,
                     "POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Request-Id: %s\r\n"
                     "Content-Length: %zu\r\n\r\n",
                     id_header, strlen(body));
    assert_int_equal(write(fd, head, (size_t)n), n);
    assert_int_equal(write(fd, body, strlen(body)), strlen(body));
    free(body);
    return fd;
}

/* Asks until so many requests are there. */
static json_t *slots_of(const serving *s, size_t n)
{
    for (uint64_t end = web_ms() + WEB_PATIENCE_MS; web_ms() < end; usleep(1000)) {
        json_t *slots = serving_get(s, "/slots", 200);
        if (json_array_size(slots) == n) return slots;
        json_decref(slots);
    }
    fail_msg("there are never %zu requests", n);
    return NULL;
}

static void live_requests_and_their_blocks_are_shown(void **state)
{
    (void)state;
    serving s;
    serving_options o = {.server.engine.parallel = 1};
    serving_open(&s, &o);
    int first = begin_stream(&s, "the-first");
    assert_true(http_await(first, "data: "));
    int second = begin_stream(&s, "the-second");
    json_t *slots = slots_of(&s, 2), *map = serving_get(&s, "/v1/cache/map", 200);
    assert_string_equal(text_at(slots, "0.request_id"), "the-first");
    assert_string_equal(text_at(slots, "0.endpoint"), "completion");
    assert_string_equal(text_at(slots, "0.state"), "decode");
    assert_true(number_at(slots, "0.n_run") >= number_at(slots, "0.n_prompt"));
    assert_in_range(number_at(slots, "0.n_told"), 1, 7000);
    assert_string_equal(text_at(slots, "1.request_id"), "the-second");
    assert_string_equal(text_at(slots, "1.state"), "queued");
    assert_int_equal(number_at(slots, "1.n_run"), 0);

    const char *states = text_at(map, "groups.0.states");
    json_t *owners = json_at(map, "groups.0.owners");
    uint64_t owned = 0;
    assert_int_equal(number_at(map, "block_tokens"), 32);
    assert_int_equal(strlen(states), number_at(map, "groups.0.rows"));
    for (size_t i = 0; i < json_array_size(owners); i++) {
        json_t *run = json_array_get(owners, i);
        assert_int_equal(number_at(run, "2"), number_at(slots, "0.id"));
        owned += (uint64_t)number_at(run, "1");
    }
    assert_int_equal(owned, count_of(states, 'r') + count_of(states, 's'));
    assert_true(owned >= (uint64_t)number_at(slots, "0.n_prompt") / 32);
    close(first);
    close(second);
    json_decref(slots), json_decref(map);
    json_decref(slots_of(&s, 0));
    await_replies(&s, "left", 2); /* before its stream, and within it */
    await_replies(&s, "2xx", 0);
    serving_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(health_follows_the_servers_life),
        cmocka_unit_test(a_draining_server_still_tells),
        cmocka_unit_test(figures_follow_requests),
        cmocka_unit_test(a_refusal_is_told_in_detail),
        cmocka_unit_test(the_dense_backend_tells_no_figures_of_a_pool),
        cmocka_unit_test(live_requests_and_their_blocks_are_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
