/* Clients that leave, or stop reading, at every phase: the handler is told once and soon, and nothing is
 * left behind. */
#include <sys/socket.h>
#include <unistd.h>

#include "site.h"
#include "testing.h"

#define HOST    "Host: localhost\r\n"
#define SOON_MS 100 /* the quickest of TRIES: the machine may be busy */
#define TRIES   5

static site server, patient; /* one has short timeouts, the other long ones */

static int open_impatient(void **state)
{
    sheaf__http_options o = {.timeout_s = 1, .keepalive_s = 1, .n_workers = 4};
    (void)state;
    site_open(&server, &o);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    site_close(&server);
    return 0;
}

static void release(void)
{
    assert_true(web_until(site_is_released, &server));
}

/* A request that is held by its handler. */
static int ask_and_wait(const char *path)
{
    char request[128];
    uint32_t held = server.n_held;
    int fd = web_connect(server.port);
    snprintf(request, sizeof request,
             "POST %s HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody", path);
    web_send(fd, request);
    assert_true(site_holds(&server, held + 1));
    return fd;
}

/* Waits until one more handler has been told: how long that took. */
static uint64_t expect_told(uint32_t left_before)
{
    uint64_t start = web_ms();
    assert_true(site_left(&server, left_before + 1, 5000));
    return web_ms() - start;
}

/* Has clients come and `leave` a few times: they must be noticed, one of them at once. */
static void expect_noticed(const char *path, void (*leave)(int fd))
{
    uint64_t quickest = UINT64_MAX;
    uint32_t before = server.left;
    for (uint32_t i = 0; i < TRIES; i++) {
        int fd = ask_and_wait(path);
        if (strcmp(path, "/hang") == 0) assert_true(web_await(fd, "begun\n", 5000));
        leave(fd);
        uint64_t ms = expect_told(before + i);
        if (ms < quickest) quickest = ms;
    }
    if (strcmp(path, "/hang") == 0)
        assert_int_equal(sheaf__exchange_write(server.held[0], "more", 4), SHEAF_E_CANCELLED);
    release();
    assert_int_equal(server.left, before + TRIES); /* each once */
    assert_true(quickest <= SOON_MS);
}

static void leave_well(int fd)
{
    close(fd);
}

static void leave_by_reset(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

/* ---- leaving ----------------------------------------------------------------------------- */

static void who_leaves_before_the_reply_is_noticed_at_once(void **state)
{
    (void)state;
    uint32_t done = server.done_499;
    expect_noticed("/hold", leave_well);
    assert_int_equal(server.done_499, done + TRIES);
}

/* The handler replies at the moment it is told: the client has left all the same. */
static void what_is_replied_to_who_has_left_is_not_sent(void **state)
{
    (void)state;
    uint32_t done = server.done_499;
    for (uint32_t i = 0; i < 200; i++) {
        uint32_t left = server.left;
        leave_well(ask_and_wait("/hold"));
        while (server.left == left) {
        }
        release();
    }
    assert_int_equal(server.done_499, done + 200);
}

static void who_leaves_amid_a_stream_is_noticed_at_once(void **state)
{
    (void)state;
    expect_noticed("/hang", leave_well);
    assert_int_equal(server.last_status, 200);
}

static void a_connection_that_is_reset_is_noticed_at_once(void **state)
{
    (void)state;
    expect_noticed("/hold", leave_by_reset);
    expect_noticed("/hang", leave_by_reset);
}

static void who_shuts_the_sending_half_has_left(void **state)
{
    (void)state;
    uint32_t left = server.left;
    int fd = ask_and_wait("/hold");
    shutdown(fd, SHUT_WR);
    (void)expect_told(left);
    assert_true(web_closed(fd, 5000));
    close(fd);
    release();
}

static void what_needs_no_waiting_is_answered_even_then(void **state)
{
    web_reply r;
    int fd = web_connect(server.port);
    (void)state;
    web_send(fd, "GET /quick HTTP/1.1\r\n" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    assert_true(web_read(fd, &r));
    assert_string_equal(r.body, "hello\n");
    web_reply_free(&r);
    close(fd);
}

static void who_waits_for_a_worker_and_leaves_is_never_handled(void **state)
{
    int slow[4], fds[50];
    (void)state;
    for (int i = 0; i < 4; i++) { /* every worker */
        slow[i] = web_connect(server.port);
        web_send(slow[i], "GET /stream?n=1&ms=400 HTTP/1.1\r\n" HOST "\r\n");
        assert_true(web_await(slow[i], "\r\n\r\n", 5000));
    }
    uint32_t handled = server.handled, done = server.done_499;
    for (int i = 0; i < 50; i++) {
        fds[i] = web_connect(server.port);
        web_send(fds[i], "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    }
    usleep(100000);
    for (int i = 0; i < 50; i++) close(fds[i]);
    assert_true(web_until(site_is_idle, &server));
    assert_int_equal(server.handled, handled);
    assert_int_equal(server.done_499, done + 50);
    for (int i = 0; i < 4; i++) close(slow[i]);
}

static void note(void *ctx)
{
    ++*(int *)ctx;
}

static void who_asks_late_is_told_at_once(void **state)
{
    int told = 0;
    (void)state;
    uint32_t left = server.left;
    close(ask_and_wait("/hold"));
    (void)expect_told(left);
    sheaf__exchange_on_left(server.held[0], note, &told);
    assert_int_equal(told, 1);
    sheaf__exchange_on_left(server.held[0], NULL, NULL);
    release();
    assert_int_equal(told, 1);
}

static void who_is_answered_is_not_told_to_have_left(void **state)
{
    int told = 0;
    web_reply r;
    (void)state;
    uint32_t left = server.left;
    int fd = ask_and_wait("/hold");
    sheaf__exchange_on_left(server.held[0], note, &told);
    site_release(&server);
    assert_true(web_read(fd, &r));
    assert_string_equal(r.body, "held\n");
    web_reply_free(&r);
    close(fd);
    assert_true(web_until(site_is_idle, &server));
    assert_int_equal(told, 0);
    assert_int_equal(server.left, left);
}

static void a_number_used_again_is_not_cancelled_for_a_stranger(void **state)
{
    (void)state;
    uint32_t left = server.left;
    for (int i = 0; i < 100; i++) {
        int first = ask_and_wait("/hold");
        close(first); /* the server closes its side, and the next one gets the number */
        assert_true(site_left(&server, left + 1 + (uint32_t)i, 5000));
    }
    int last = ask_and_wait("/hang");
    assert_true(web_await(last, "begun\n", 5000));
    assert_int_equal(server.left, left + 100);
    assert_int_equal(sheaf__exchange_write(server.held[100], "still here\n", 11), SHEAF_OK);
    assert_true(web_await(last, "still here\n", 5000));
    close(last);
    (void)expect_told(left + 100);
    release();
}

static bool nobody_is_there(void *ctx)
{
    site *s = ctx;
    sheaf__http_stats stats;
    sheaf__http_stats_read(s->http, &stats);
    return stats.connections == 0;
}

static void an_end_that_comes_with_the_last_bytes_is_not_missed(void **state)
{
    sheaf__http_options o = {.timeout_s = 300};
    (void)state;
    site_open(&patient, &o);
    for (int i = 0; i < 50; i++) {
        int fd = web_connect(patient.port);
        web_send(fd, i % 2 != 0 ? "GET /hel"
                                : "POST /echo HTTP/1.1\r\n" HOST
                                  "Content-Length: 5\r\n\r\nhel");
        close(fd);
    }
    assert_true(web_until(nobody_is_there, &patient)); /* no timeout was needed */
    site_close(&patient);
}

/* ---- silence ----------------------------------------------------------------------------- */

static void a_silent_stream_gets_comments(void **state)
{
    (void)state;
    int fd = ask_and_wait("/hang");
    uint64_t start = web_ms();
    assert_true(web_await(fd, "begun\n", 5000));
    assert_true(web_await(fd, ": keepalive\n\n", 5000));
    assert_true(web_ms() - start >= 900);
    site_release(&server);
    web_reply r;
    assert_true(web_read(fd, &r) && r.whole);
    assert_non_null(strstr(r.body, "begun\n: keepalive\n\n"));
    web_reply_free(&r);
    close(fd);
    assert_true(web_until(site_is_idle, &server));
}

/* A handler that is slow keeps its connection beyond the timeout, with nothing sent. */
static void waiting_for_a_handler_is_not_a_timeout(void **state)
{
    web_reply r;
    (void)state;
    int fd = ask_and_wait("/hold");
    assert_false(web_closed(fd, 1300));
    site_release(&server);
    assert_true(web_read(fd, &r));
    assert_string_equal(r.body, "held\n");
    web_reply_free(&r);
    close(fd);
}

/* ---- not reading ------------------------------------------------------------------------- */

static bool one_has_left(void *ctx)
{
    return ((site *)ctx)->done_left == 1;
}

static void a_stream_that_is_not_read_ends_with_memory_bounded(void **state)
{
    sheaf__http_options o = {.timeout_s = 300};
    web_reply r;
    (void)state;
    site_open(&patient, &o);
    int fd = web_connect(patient.port);
    web_send(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    assert_true(web_until(one_has_left, &patient)); /* no timeout was needed */
    assert_true(web_until(site_is_idle, &patient));
    assert_true(patient.most_queued > 65536);
    assert_true(patient.most_queued <= (4u << 20) + 65536);
    assert_true(web_read(fd, &r));
    assert_false(r.whole); /* what was cut off does not look complete */
    web_reply_free(&r);
    close(fd);
    site_close(&patient);
}

static void a_reply_that_is_not_read_ends_by_timeout(void **state)
{
    int fd = web_connect(server.port), small = 4096;
    (void)state;
    uint32_t done_left = server.done_left;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    web_send(fd, "GET /static HTTP/1.1\r\n" HOST "\r\n");
    uint64_t start = web_ms();
    while (server.done_left == done_left && web_ms() - start < 10000) usleep(10000);
    assert_int_equal(server.done_left, done_left + 1);
    assert_true(web_ms() - start >= 700);
    assert_true(web_until(site_is_idle, &server));
    close(fd);
}

/* Pieces so small that the system's buffers take them for ever: the peer's shut window is what tells. */
static void a_slow_stream_that_is_not_read_ends_too(void **state)
{
    static char piece[10000];
    int small = 4096;
    (void)state;
    uint32_t left = server.left;
    int fd = ask_and_wait("/hang");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 100 && server.left == left; i++) {
        (void)!sheaf__exchange_write(server.held[0], piece, sizeof piece);
        usleep(50000);
    }
    assert_int_equal(server.left, left + 1);
    close(fd);
    release();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_leaves_before_the_reply_is_noticed_at_once),
        cmocka_unit_test(what_is_replied_to_who_has_left_is_not_sent),
        cmocka_unit_test(who_leaves_amid_a_stream_is_noticed_at_once),
        cmocka_unit_test(a_connection_that_is_reset_is_noticed_at_once),
        cmocka_unit_test(who_shuts_the_sending_half_has_left),
        cmocka_unit_test(what_needs_no_waiting_is_answered_even_then),
        cmocka_unit_test(who_waits_for_a_worker_and_leaves_is_never_handled),
        cmocka_unit_test(who_asks_late_is_told_at_once),
        cmocka_unit_test(who_is_answered_is_not_told_to_have_left),
        cmocka_unit_test(a_number_used_again_is_not_cancelled_for_a_stranger),
        cmocka_unit_test(an_end_that_comes_with_the_last_bytes_is_not_missed),
        cmocka_unit_test(a_silent_stream_gets_comments),
        cmocka_unit_test(waiting_for_a_handler_is_not_a_timeout),
        cmocka_unit_test(a_stream_that_is_not_read_ends_with_memory_bounded),
        cmocka_unit_test(a_reply_that_is_not_read_ends_by_timeout),
        cmocka_unit_test(a_slow_stream_that_is_not_read_ends_too),
    };
    return cmocka_run_group_tests(tests, open_impatient, close_all);
}
