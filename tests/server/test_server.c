/* server/server.c: what each state of a server answers, the orders in which it may end, and its log. */
#include "testing.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server.h"

#define DEMO  "models/sheaf-demo"
#define LONG  "{\"prompt\":\"Once\",\"ignore_eos\":true,\"stream\":true,\"max_tokens\":%u}"
#define REPLY 65536

static sheaf__model *model; /* of all cases, one after the other */

/* ---- a server ------------------------------------------------------------------------------ */

static sheaf__server *open_server(sheaf__log *log)
{
    sheaf__server *server = NULL;
    sheaf_error err = {0};
    const sheaf__server_options o = {
        .http = {.any_port = true}, .model_path = DEMO, .log = log};
    if (sheaf__server_open(&o, &server, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return server;
}

static void serve(sheaf__server *server)
{
    sheaf_error err = {0};
    server->options.chat_family = SHEAF__CHAT_CHATML;
    if (sheaf__server_serve(server, model, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static sheaf__server *open_serving(void)
{
    sheaf__server *server = open_server(NULL);
    serve(server);
    return server;
}

/* Ends it, and the model has no block any more. */
static void close_server(sheaf__server *server)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    sheaf__server_close(server);
    assert_int_equal(sheaf_pool_stats_read(model->pool, &stats), SHEAF_OK);
    assert_int_equal(stats.blocks_held, 0);
}

/* ---- a client ------------------------------------------------------------------------------ */

static int connect_to(const sheaf__server *server)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval patience = {.tv_sec = 20};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(sheaf__http_port(server->http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void send_request(int fd, const char *method, const char *path, const char *body)
{
    char text[1024];
    int n = snprintf(text, sizeof text,
                     "%s %s HTTP/1.1\r\nHost: here\r\nContent-Length: %zu\r\n\r\n%s", method,
                     path, strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
}

/* Reads until `mark` has come behind what is in text. False: the connection ended before. */
static bool read_on(int fd, const char *mark, char text[static REPLY])
{
    enum { KEPT = 64 };
    for (size_t n = strlen(text); strstr(text, mark) == NULL; text[n] = 0) {
        /* of a long stream the latest part: a mark may have begun there */
        if (n + 1 == REPLY) {
            memmove(text, text + n - KEPT, KEPT);
            n = KEPT;
        }
        ssize_t got = recv(fd, text + n, REPLY - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
    }
    return true;
}

/* The same from an empty text on. */
static bool read_until(int fd, const char *mark, char text[static REPLY])
{
    text[0] = 0;
    return read_on(fd, mark, text);
}

/* Asks on a connection that stays; returns the reply's status. */
static int ask(int fd, const char *method, const char *path, const char *body,
               char text[static REPLY])
{
    send_request(fd, method, path, body);
    if (!read_until(fd, "\r\n\r\n", text)) return 0;
    const char *length = strstr(text, "Content-Length: ");
    if (length != NULL) { /* the rest of it, so that the next reply begins afresh */
        char *end = strstr(text, "\r\n\r\n") + 4;
        size_t have = strlen(end), need = strtoul(length + 16, NULL, 10);
        while (have < need && need < REPLY / 2) {
            ssize_t got = recv(fd, end + have, need - have, 0);
            if (got <= 0) break;
            have += (size_t)got;
            end[have] = 0;
        }
    }
    return atoi(text + strlen("HTTP/1.1 "));
}

static int ask_once(const sheaf__server *server, const char *method, const char *path,
                    const char *body, char text[static REPLY])
{
    int fd = connect_to(server), status = ask(fd, method, path, body, text);
    close(fd);
    return status;
}

/* A stream whose first piece has come, into text; maybe more has. */
static int begin_stream(const sheaf__server *server, uint32_t n_tokens, char text[static REPLY])
{
    char body[256];
    int fd = connect_to(server);
    snprintf(body, sizeof body, LONG, n_tokens);
    send_request(fd, "POST", "/v1/completions", body);
    assert_true(read_until(fd, "data: {", text));
    return fd;
}

/* ---- states -------------------------------------------------------------------------------- */

static void while_it_loads_only_health_is_answered(void **state)
{
    (void)state;
    static char text[REPLY];
    sheaf__server *server = open_server(NULL);
    assert_int_equal(ask_once(server, "GET", "/health", "", text), 503);
    assert_non_null(strstr(text, "loading"));
    assert_int_equal(ask_once(server, "POST", "/v1/completions", "{\"prompt\":\"a\"}", text),
                     503);
    assert_non_null(strstr(text, "the model is being loaded"));
    assert_non_null(strstr(text, "Retry-After"));
    assert_int_equal(ask_once(server, "GET", "/metrics", "", text), 503);
    serve(server);
    assert_int_equal(ask_once(server, "GET", "/health", "", text), 200);
    assert_int_equal(ask_once(server, "POST", "/v1/completions", "{\"prompt\":\"a\"}", text),
                     200);
    close_server(server);
}

static void a_server_that_never_served_is_closed(void **state)
{
    (void)state;
    sheaf__server *server = open_server(NULL);
    assert_true(sheaf__server_wait(server, 0));
    close_server(server);
    close_server(NULL);
}

static void an_address_in_use_is_refused(void **state)
{
    (void)state;
    sheaf__server *server = open_server(NULL), *other = NULL;
    sheaf_error err = {0};
    const sheaf__server_options o = {.http = {.port = sheaf__http_port(server->http)},
                                     .model_path = DEMO};
    assert_int_equal(sheaf__server_open(&o, &other, &err), SHEAF_E_IO);
    assert_null(other);
    assert_non_null(strstr(err.text, "in use"));
    close_server(server);
}

static void a_model_is_named_after_its_directory(void **state)
{
    (void)state;
    static const char *const names[][2] = {{DEMO, "sheaf-demo"},
                                           {DEMO "/", "sheaf-demo"},
                                           {"random:x:layers=1", "random:x:layers=1"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        sheaf__server *server = NULL;
        const sheaf__server_options o = {.http = {.any_port = true}, .model_path = names[i][0]};
        assert_int_equal(sheaf__server_open(&o, &server, NULL), SHEAF_OK);
        assert_string_equal(server->options.model_name, names[i][1]);
        sheaf__server_close(server);
    }
}

/* ---- the end ------------------------------------------------------------------------------- */

static void a_drained_server_ends_its_streams_whole(void **state)
{
    (void)state;
    static char text[REPLY], streamed[REPLY];
    sheaf__server *server = open_serving();
    int others[2] = {connect_to(server), connect_to(server)}; /* each is answered once more */
    for (int i = 0; i < 2; i++)
        assert_int_equal(ask(others[i], "GET", "/health", "", text), 200);
    int stream = begin_stream(server, 40, streamed);
    sheaf__server_drain(server);
    sheaf__server_drain(server); /* any number */
    assert_int_equal(ask(others[0], "GET", "/health", "", text), 503);
    assert_non_null(strstr(text, "draining"));
    assert_int_equal(ask(others[1], "POST", "/v1/completions", "{\"prompt\":\"a\"}", text),
                     503);
    assert_true(read_on(stream, "data: [DONE]", streamed));
    assert_true(sheaf__server_wait(server, 20000));
    close(stream);
    for (int i = 0; i < 2; i++) close(others[i]);
    close_server(server);
}

static void statistics_are_told_after_the_engine_has_ended(void **state)
{
    (void)state;
    static char text[REPLY];
    sheaf__server *server = open_serving();
    int fds[2] = {connect_to(server), connect_to(server)};
    for (int i = 0; i < 2; i++) assert_int_equal(ask(fds[i], "GET", "/health", "", text), 200);
    sheaf__server_drain(server);
    assert_true(sheaf__server_wait(server, 20000));
    assert_int_equal(ask(fds[0], "GET", "/v1/cache/stats", "", text), 200);
    assert_int_equal(ask(fds[1], "GET", "/slots", "", text), 200); /* by a job of the engine */
    assert_true(sheaf__server_wait(server, 20000));
    for (int i = 0; i < 2; i++) close(fds[i]);
    close_server(server);
}

static void a_stopped_server_cuts_its_streams(void **state)
{
    (void)state;
    static char text[REPLY];
    sheaf__server *server = open_serving();
    int stream = begin_stream(server, 7000, text);
    assert_false(sheaf__server_wait(server, 0));
    assert_false(sheaf__server_wait(server, 30));
    sheaf__server_stop(server);
    sheaf__server_drain(server); /* changes nothing any more */
    assert_true(sheaf__server_wait(server, 20000));
    assert_int_equal(atomic_load(&server->state), SHEAF__SERVER_STOPPED);
    assert_true(read_on(stream, "\r\n0\r\n\r\n", text)); /* what there was came whole */
    close(stream);
    close_server(server);
}

static void closing_alone_is_enough(void **state)
{
    (void)state;
    static char text[REPLY];
    int streams[3];
    sheaf__server *server = open_serving();
    for (int i = 0; i < 3; i++) streams[i] = begin_stream(server, 7000, text);
    close(streams[0]);
    close_server(server);
    close(streams[1]);
    close(streams[2]);
}

static void drained_while_it_loads_it_does_not_serve(void **state)
{
    (void)state;
    sheaf_error err = {0};
    sheaf__server *server = open_server(NULL);
    sheaf__server_drain(server);
    assert_true(sheaf__server_wait(server, 0));
    assert_int_equal(sheaf__server_serve(server, model, &err), SHEAF_E_CANCELLED);
    close_server(server);
}

static void *drain_and_stop(void *arg)
{
    sheaf__server *server = arg;
    sheaf__server_drain(server);
    usleep(2000);
    sheaf__server_stop(server);
    (void)sheaf__server_wait(server, 5);
    return NULL;
}

static void many_threads_may_end_it_while_clients_ask(void **state)
{
    (void)state;
    enum { N = 4 };
    static char text[REPLY];
    pthread_t threads[N];
    int clients[N];
    sheaf__server *server = open_serving();
    for (int i = 0; i < N; i++) clients[i] = connect_to(server);
    for (int i = 0; i < N; i++)
        assert_int_equal(ask(clients[i], "GET", "/health", "", text), 200);
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, drain_and_stop, server), 0);
    for (int i = 0; i < N; i++)
        send_request(clients[i], "POST", "/v1/completions", "{\"prompt\":\"a\"}");
    for (int i = 0; i < N; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_true(sheaf__server_wait(server, 20000));
    for (int i = 0; i < N; i++) close(clients[i]);
    close_server(server);
}

/* ---- the log ------------------------------------------------------------------------------- */

static void each_request_has_a_line(void **state)
{
    (void)state;
    static char text[REPLY];
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    sheaf__log log = {.fd = ends[1], .level = SHEAF__LOG_INFO, .form = SHEAF__LOG_JSON};
    sheaf__server *server = open_server(&log);
    serve(server);
    assert_int_equal(ask_once(server, "GET", "/v1/models", "", text), 200);
    assert_int_equal(ask_once(server, "GET", "/health", "", text), 200); /* none of its own */
    assert_int_equal(ask_once(server, "GET", "/nothing", "", text), 404);
    close_server(server);
    close(ends[1]);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    assert_true(n > 0);
    text[n] = 0;
    assert_non_null(strstr(text, "\"path\":\"/v1/models\",\"status\":200"));
    assert_non_null(strstr(text, "\"path\":\"/nothing\",\"status\":404"));
    assert_null(strstr(text, "/health"));
    assert_non_null(strstr(text, "\"id\":\"req_"));
    assert_non_null(strstr(text, "\"client\":\"127.0.0.1"));
}

static int open_model(void **state)
{
    (void)state;
    sheaf_error err = {0};
    const sheaf__model_options o = {
        .codec_k = SHEAF_CODEC_BF16, .codec_v = SHEAF_CODEC_BF16, .kv_budget_bytes = 64u << 20};
    if (sheaf__model_open(DEMO, &o, &model, &err) == SHEAF_OK) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int close_model(void **state)
{
    (void)state;
    sheaf__model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_it_loads_only_health_is_answered),
        cmocka_unit_test(a_server_that_never_served_is_closed),
        cmocka_unit_test(an_address_in_use_is_refused),
        cmocka_unit_test(a_model_is_named_after_its_directory),
        cmocka_unit_test(a_drained_server_ends_its_streams_whole),
        cmocka_unit_test(statistics_are_told_after_the_engine_has_ended),
        cmocka_unit_test(a_stopped_server_cuts_its_streams),
        cmocka_unit_test(closing_alone_is_enough),
        cmocka_unit_test(drained_while_it_loads_it_does_not_serve),
        cmocka_unit_test(many_threads_may_end_it_while_clients_ask),
        cmocka_unit_test(each_request_has_a_line),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
