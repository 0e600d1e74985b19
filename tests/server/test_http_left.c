/* Clients that leave, or stop reading, at every phase: the handler is told once, at once, and nothing is
 * left behind. At once means without any timeout: those of the server are far longer than anybody waits
 * here, but for the one whose timeouts are tried. */
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "site.h"
#include "testing.h"

#define HOST      "Host: localhost\r\n"
#define TRIES     5
#define N_WORKERS 4

static site server, impatient, other; /* one has long timeouts, the next short ones */

static int open_both(void **state)
{
    sheaf__http_options o = {.timeout_s = 300, .keepalive_s = 300, .n_workers = N_WORKERS};
    (void)state;
    site_open(&server, &o);
    o.timeout_s = o.keepalive_s = 1;
    site_open(&impatient, &o);
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    site_close(&server);
    site_close(&impatient);
    return 0;
}

static void release(void)
{
    assert_true(web_until(site_is_released, &server));
}

/* A request that is held by its handler. */
static int ask_and_wait(site *s, const char *path)
{
    char request[128];
    uint32_t held = s->n_held;
    int fd = web_connect(s->port);
    snprintf(request, sizeof request,
             "POST %s HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody", path);
    web_send(fd, request);
    assert_true(site_holds(s, held + 1));
    return fd;
}

/* Has clients come and `leave` a few times: they must be noticed. */
static void expect_noticed(const char *path, void (*leave)(int fd))
{
    uint32_t before = server.left;
    for (uint32_t i = 0; i < TRIES; i++) {
        int fd = ask_and_wait(&server, path);
        if (strcmp(path, "/hang") == 0) assert_true(web_await(fd, "begun\n", WEB_PATIENCE_MS));
        leave(fd);
        assert_true(site_left(&server, before + i + 1));
    }
    if (strcmp(path, "/hang") == 0)
        assert_int_equal(sheaf__exchange_write(server.held[0], "more", 4), SHEAF_E_CANCELLED);
    release();
    assert_int_equal(server.left, before + TRIES); /* each once */
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
        leave_well(ask_and_wait(&server, "/hold"));
        for (uint64_t end = web_ms() + WEB_PATIENCE_MS; server.left == left; sched_yield())
            assert_true(web_ms() < end);
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
    int fd = ask_and_wait(&server, "/hold");
    shutdown(fd, SHUT_WR);
    assert_true(site_left(&server, left + 1));
    assert_true(web_closed(fd, WEB_PATIENCE_MS));
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

static bool all_have_come(void *s)
{
    sheaf__http_stats stats;
    sheaf__http_stats_read(((site *)s)->http, &stats);
    return stats.exchanges == N_WORKERS + 50;
}

static void who_waits_for_a_worker_and_leaves_is_never_handled(void **state)
{
    int blocked[N_WORKERS], fds[50];
    (void)state;
    uint32_t handled = server.handled, done = server.done_499, before = server.n_blocked;
    for (int i = 0; i < N_WORKERS; i++) { /* every worker */
        blocked[i] = web_connect(server.port);
        web_send(blocked[i], "POST /block HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n");
    }
    for (uint64_t end = web_ms() + WEB_PATIENCE_MS; server.n_blocked < before + N_WORKERS;
         usleep(1000))
        assert_true(web_ms() < end);
    for (int i = 0; i < 50; i++) {
        fds[i] = web_connect(server.port);
        web_send(fds[i], "GET /hello HTTP/1.1\r\n" HOST "\r\n");
    }
    assert_true(web_until(all_have_come, &server));
    for (int i = 0; i < 50; i++) close(fds[i]);
    for (uint64_t end = web_ms() + WEB_PATIENCE_MS; server.done_499 < done + 50; usleep(1000))
        assert_true(web_ms() < end);
    for (int i = 0; i < N_WORKERS; i++) sem_post(&server.open);
    for (int i = 0; i < N_WORKERS; i++) {
        web_reply r;
        assert_true(web_read(blocked[i], &r) && r.status == 200);
        web_reply_free(&r);
        close(blocked[i]);
    }
    assert_true(web_until(site_is_idle, &server));
    assert_int_equal(server.handled, handled + N_WORKERS);
    assert_int_equal(server.done_499, done + 50);
}

/* The request, and the client's end right after it: whichever of both is seen first. */
static void who_asks_and_leaves_at_once_counts_as_left(void **state)
{
    (void)state;
    uint32_t done = server.done, done_499 = server.done_499;
    for (uint32_t i = 0; i < 200; i++) {
        int fd = web_connect(server.port);
        web_send(fd, "POST /hold HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody");
        close(fd);
        for (uint64_t end = web_ms() + WEB_PATIENCE_MS; server.done == done + i; usleep(100))
            assert_true(web_ms() < end);
    }
    assert_int_equal(server.done_499, done_499 + 200);
    release();
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
    close(ask_and_wait(&server, "/hold"));
    assert_true(site_left(&server, left + 1));
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
    int fd = ask_and_wait(&server, "/hold");
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
        int first = ask_and_wait(&server, "/hold");
        close(first); /* the server closes its side, and the next one gets the number */
        assert_true(site_left(&server, left + 1 + (uint32_t)i));
    }
    int last = ask_and_wait(&server, "/hang");
    assert_true(web_await(last, "begun\n", WEB_PATIENCE_MS));
    assert_int_equal(server.left, left + 100);
    assert_int_equal(sheaf__exchange_write(server.held[100], "still here\n", 11), SHEAF_OK);
    assert_true(web_await(last, "still here\n", WEB_PATIENCE_MS));
    close(last);
    assert_true(site_left(&server, left + 101));
    release();
}

static bool nobody_is_there(void *ctx)
{
    site *s = ctx;
    sheaf__http_stats stats;
    sheaf__http_stats_read(s->http, &stats);
    return s->done == 25 && stats.connections == 0;
}

static void an_end_that_comes_with_the_last_bytes_is_not_missed(void **state)
{
    sheaf__http_options o = {.timeout_s = 300};
    (void)state;
    site_open(&other, &o);
    for (int i = 0; i < 50; i++) { /* the last is one of those that are told of */
        int fd = web_connect(other.port);
        web_send(fd, i % 2 == 0 ? "GET /hel"
                                : "POST /echo HTTP/1.1\r\n" HOST
                                  "Content-Length: 5\r\n\r\nhel");
        close(fd);
    }
    assert_true(web_until(nobody_is_there, &other)); /* no timeout was needed */
    site_close(&other);
}

/* ---- silence ----------------------------------------------------------------------------- */

static void a_silent_stream_gets_comments(void **state)
{
    (void)state;
    uint64_t start = web_ms();
    int fd = ask_and_wait(&impatient, "/hang");
    assert_true(web_await(fd, "begun\n", WEB_PATIENCE_MS));
    assert_true(web_await(fd, ": keepalive\n\n", WEB_PATIENCE_MS));
    assert_true(web_ms() - start >= 900);
    site_release(&impatient);
    web_reply r;
    assert_true(web_read(fd, &r) && r.whole);
    assert_non_null(strstr(r.body, "begun\n: keepalive\n\n"));
    web_reply_free(&r);
    close(fd);
    assert_true(web_until(site_is_idle, &impatient));
}

/* A handler that is slow keeps its connection beyond the timeout, with nothing sent. */
static void waiting_for_a_handler_is_not_a_timeout(void **state)
{
    web_reply r;
    (void)state;
    int fd = ask_and_wait(&impatient, "/hold");
    assert_false(web_closed(fd, 1300));
    site_release(&impatient);
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
    site_open(&other, &o);
    int fd = web_connect(other.port);
    web_send(fd, "GET /big HTTP/1.1\r\n" HOST "\r\n");
    assert_true(web_until(one_has_left, &other)); /* no timeout was needed */
    assert_true(web_until(site_is_idle, &other));
    assert_true(other.most_queued > 65536);
    assert_true(other.most_queued <= (4u << 20) + 65536);
    assert_true(web_read(fd, &r));
    assert_false(r.whole); /* what was cut off does not look complete */
    web_reply_free(&r);
    close(fd);
    site_close(&other);
}

static void a_reply_that_is_not_read_ends_by_timeout(void **state)
{
    int fd = web_connect(impatient.port), small = 4096;
    (void)state;
    uint32_t done_left = impatient.done_left;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    uint64_t start = web_ms();
    web_send(fd, "GET /static HTTP/1.1\r\n" HOST "\r\n");
    while (impatient.done_left == done_left && web_ms() - start < WEB_PATIENCE_MS)
        usleep(10000);
    assert_int_equal(impatient.done_left, done_left + 1);
    assert_true(web_ms() - start >= 700);
    assert_true(web_until(site_is_idle, &impatient));
    close(fd);
}

/* Pieces so small that the system's buffers take them for ever: the peer's shut window is what tells. */
static void a_slow_stream_that_is_not_read_ends_too(void **state)
{
    static char piece[10000];
    int small = 4096;
    (void)state;
    uint32_t left = impatient.left;
    int fd = ask_and_wait(&impatient, "/hang");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 100 && impatient.left == left; i++) {
        (void)!sheaf__exchange_write(impatient.held[0], piece, sizeof piece);
        usleep(50000);
    }
    assert_true(site_left(&impatient, left + 1));
    assert_int_equal(impatient.left, left + 1);
    close(fd);
    assert_true(web_until(site_is_released, &impatient));
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
        cmocka_unit_test(who_asks_and_leaves_at_once_counts_as_left),
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
    return cmocka_run_group_tests(tests, open_both, close_both);
}
