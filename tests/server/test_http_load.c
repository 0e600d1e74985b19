/* Many connections, and the server's end amid them. */
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "site.h"
#include "testing.h"

#define HOST "Host: localhost\r\n"

static site server;

/* ---- many -------------------------------------------------------------------------------- */

static void sixty_four_streams_at_once_are_each_whole(void **state)
{
    enum { N = 64 };
    int fds[N];
    sheaf__http_options o = {.n_workers = N};
    (void)state;
    site_open(&server, &o);
    for (int i = 0; i < N; i++) {
        char request[128];
        fds[i] = web_connect(server.port);
        snprintf(request, sizeof request, "GET /stream?n=%d&ms=2 HTTP/1.1\r\n" HOST "\r\n",
                 50 + i);
        web_send(fds[i], request);
    }
    for (int i = 0; i < N; i++) {
        web_reply r;
        char last[32];
        assert_true(web_read(fds[i], &r));
        assert_true(r.whole);
        snprintf(last, sizeof last, "\npiece %d\n", 49 + i);
        assert_true(r.n > strlen(last));
        assert_string_equal(r.body + r.n - strlen(last), last);
        web_reply_free(&r);
        close(fds[i]);
    }
    assert_true(web_until(site_is_idle, &server));
    assert_int_equal(server.left, 0);
    site_close(&server);
}

static void connections_over_the_limit_wait_for_their_turn(void **state)
{
    enum { N = 40 };
    int fds[N];
    sheaf__http_options o = {.max_connections = 1};
    (void)state;
    site_open(&server, &o);
    for (int i = 0; i < N; i++) {
        fds[i] = web_connect(server.port);
        web_send(fds[i], "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    }
    for (int i = 0; i < N; i++) {
        sheaf__http_stats stats;
        web_reply r;
        assert_true(web_read(fds[i], &r));
        assert_int_equal(r.status, 200);
        web_reply_free(&r);
        sheaf__http_stats_read(server.http, &stats);
        assert_true(stats.connections <= 1);
        close(fds[i]);
    }
    site_close(&server);
}

/* One connection that is dropped at a random phase. */
static void drop_somewhere(uint64_t *seed)
{
    static const char *const requests[] = {
        "GET /hello HTTP/1.1\r\n" HOST "\r\n",
        "GET /quick HTTP/1.1\r\n" HOST "\r\n",
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 20\r\n\r\n01234567890123456789",
        "POST /echo HTTP/1.1\r\n" HOST
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /stream?n=30 HTTP/1.1\r\n" HOST "\r\n",
        "GET /static HTTP/1.1\r\n" HOST "\r\n",
        "POST /hang HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
        "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
        "GET /nowhere HTTP/1.1\r\n" HOST "\r\n",
    };
    const char *request =
        requests[testing_random(seed) % (sizeof requests / sizeof requests[0])];
    uint64_t n = strlen(request), kind = testing_random(seed) % 4;
    int fd = web_connect(server.port);
    web_send_bytes(fd, request, kind == 0 ? testing_random(seed) % n : n);
    if (kind == 2) (void)web_await(fd, "\r\n", (int)(testing_random(seed) % 4));
    if (testing_random(seed) % 3 == 0) {
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    close(fd);
}

static bool nobody_is_there(void *ctx)
{
    sheaf__http_stats stats;
    (void)ctx;
    sheaf__http_stats_read(server.http, &stats);
    return stats.connections == 0;
}

static bool descriptors_are(void *ctx)
{
    return web_descriptors() == *(const int *)ctx;
}

static void connections_dropped_at_random_phases_leave_nothing(void **state)
{
    uint64_t seed = testing_seed(11);
    sheaf__http_options o = {.n_workers = 4};
    (void)state;
    site_open(&server, &o);
    int before = web_descriptors();
    int beside = web_connect(server.port); /* an undisturbed client */
    for (int i = 0; i < 3000; i++) {
        drop_somewhere(&seed);
        if (i % 100 != 0) continue;
        web_reply r;
        web_send(beside, "GET /stream?n=20 HTTP/1.1\r\n" HOST "\r\n");
        assert_true(web_read(beside, &r) && r.whole);
        assert_int_equal(r.status, 200);
        web_reply_free(&r);
    }
    close(beside);
    web_reply last; /* connections are taken in their order: all have been */
    web_ask(server.port, "GET /quick HTTP/1.1\r\n" HOST "\r\n", &last);
    assert_int_equal(last.status, 200);
    web_reply_free(&last);
    assert_true(web_until(nobody_is_there, NULL));
    assert_true(web_until(site_is_released, &server));
    /* a descriptor is closed just after its connection is counted as gone */
    assert_true(web_until(descriptors_are, &before));
    site_close(&server);
}

/* ---- the end ----------------------------------------------------------------------------- */

static void a_quiet_server_takes_no_connection_and_serves_what_it_has(void **state)
{
    web_reply r;
    sheaf__http_options o = {0}, again = {0};
    sheaf__http *other = NULL;
    sheaf_error err;
    (void)state;
    site_open(&server, &o);
    int old = web_connect(server.port), idle = web_connect(server.port);
    web_send(idle, "GET /quick HTTP/1.1\r\n" HOST "\r\n");
    assert_true(web_read(idle, &r) && r.status == 200);
    web_reply_free(&r);
    web_send(old, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n");
    assert_true(site_holds(&server, 1));
    sheaf__http_quiesce(server.http);
    sheaf__http_quiesce(server.http); /* any number of times */
    again.port = server.port;         /* it is free */
    assert_int_equal(sheaf__http_open(&again, &other, &err), SHEAF_OK);
    sheaf__http_close(other);
    site_release(&server);
    assert_true(web_read(old, &r));
    assert_string_equal(r.body, "held\n");
    web_reply_free(&r);
    close(old);
    for (int i = 0; i < 3; i++) { /* a connection that is there goes on */
        web_send(idle, "GET /hello HTTP/1.1\r\n" HOST "\r\n");
        assert_true(web_read(idle, &r) && r.status == 200);
        web_reply_free(&r);
    }
    close(idle);
    site_close(&server);
}

/* Gives back what is held after a while, as an engine does that was told to cancel. */
static void *release_late(void *arg)
{
    (void)arg;
    while (server.left < 2) usleep(1000);
    usleep(20000);
    site_release(&server);
    return NULL;
}

static void closing_ends_requests_at_every_phase_promptly(void **state)
{
    int before = web_descriptors(), fds[6];
    pthread_t releaser;
    sheaf__http_options o = {0}; /* timeouts of 30 s and more */
    static const char *const requests[] = {
        "", /* idle */
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9\r\n\r\nhalf",
        "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
        "POST /hang HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
        "GET /static HTTP/1.1\r\n" HOST "\r\n", /* and never reads */
        "POST /echo HTTP/1.1\r\nHost",
    };
    (void)state;
    site_open(&server, &o);
    for (int i = 0; i < 6; i++) {
        fds[i] = web_connect(server.port);
        web_send(fds[i], requests[i]);
    }
    assert_true(site_holds(&server, 2));
    uint64_t start = web_ms();
    assert_int_equal(pthread_create(&releaser, NULL, release_late, NULL), 0);
    sheaf__http_close(server.http);
    assert_true(web_ms() - start < 15000); /* half of the shortest timeout */
    pthread_join(releaser, NULL);
    for (int i = 0; i < 6; i++) close(fds[i]);
    assert_int_equal(web_descriptors(), before);
}

static void closing_again_and_again_amid_requests_leaks_nothing(void **state)
{
    uint64_t seed = testing_seed(3);
    int before = web_descriptors();
    (void)state;
    for (int round = 0; round < 20; round++) {
        sheaf__http_options o = {0};
        site_open(&server, &o);
        int fds[8];
        for (int i = 0; i < 8; i++) {
            fds[i] = web_connect(server.port);
            web_send(fds[i], i % 2 != 0 ? "GET /hello HTTP/1.1\r\n" HOST "\r\n"
                                        : "GET /stream?n=100 HTTP/1.1\r\n" HOST "\r\n");
        }
        usleep((useconds_t)(testing_random(&seed) % 2000));
        site_close(&server);
        for (int i = 0; i < 8; i++) close(fds[i]);
    }
    assert_int_equal(web_descriptors(), before);
}

static void an_address_that_cannot_be_had_is_a_sentence(void **state)
{
    sheaf__http *http = NULL;
    sheaf_error err;
    sheaf__http_options o = {0};
    (void)state;
    site_open(&server, &o);
    int before = web_descriptors();
    o = (sheaf__http_options){.port = server.port};
    assert_int_equal(sheaf__http_open(&o, &http, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "Address already in use"));
    o = (sheaf__http_options){.host = "192.0.2.1", .any_port = true}; /* RFC 5737: nobody's */
    assert_int_equal(sheaf__http_open(&o, &http, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "192.0.2.1"));
    o = (sheaf__http_options){.host = "no such host", .any_port = true};
    assert_int_equal(sheaf__http_open(&o, &http, &err), SHEAF_E_USAGE);
    assert_non_null(strstr(err.text, "no such host"));
    assert_null(http);
    assert_int_equal(web_descriptors(), before);
    site_close(&server);
    sheaf__http_close(NULL);
}

/* Sends 12 MiB to /echo; the reply is as long. */
static int ask_for_much(char *body, uint64_t n)
{
    char head[128];
    int fd = web_connect(server.port);
    snprintf(head, sizeof head,
             "POST /echo HTTP/1.1\r\n" HOST "Connection: close\r\nContent-Length: %llu\r\n\r\n",
             (unsigned long long)n);
    web_send(fd, head);
    assert_true(web_send_bytes(fd, body, n));
    return fd;
}

/* A reply has begun to come; nothing of it is read. */
static void await_reply(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, WEB_PATIENCE_MS), 1);
}

static void whole_replies_that_nobody_reads_are_bounded(void **state)
{
    const uint64_t n = 12u << 20; /* more than sockets take */
    sheaf__http_options o = {.max_reply_bytes = 20u << 20};
    web_reply r;
    char *body = calloc(n, 1);
    (void)state;
    assert_non_null(body);
    site_open(&server, &o);
    int first = ask_for_much(body, n); /* not read */
    await_reply(first);
    int second = ask_for_much(body, n);
    assert_true(web_read(second, &r));
    assert_int_equal(r.status, 503);
    assert_string_equal(web_header(&r, "Retry-After"), "1");
    web_reply_free(&r);
    close(second);
    web_ask(server.port, "GET /hello HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_int_equal(r.status, 200);
    web_reply_free(&r);
    close(first);
    assert_true(web_until(site_is_idle, &server));
    second = ask_for_much(body, n);
    assert_true(web_read(second, &r));
    assert_int_equal(r.status, 200);
    assert_int_equal(r.n, n);
    web_reply_free(&r);
    close(second);
    site_close(&server);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixty_four_streams_at_once_are_each_whole),
        cmocka_unit_test(connections_over_the_limit_wait_for_their_turn),
        cmocka_unit_test(connections_dropped_at_random_phases_leave_nothing),
        cmocka_unit_test(a_quiet_server_takes_no_connection_and_serves_what_it_has),
        cmocka_unit_test(closing_ends_requests_at_every_phase_promptly),
        cmocka_unit_test(closing_again_and_again_amid_requests_leaks_nothing),
        cmocka_unit_test(whole_replies_that_nobody_reads_are_bounded),
        cmocka_unit_test(an_address_that_cannot_be_had_is_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
