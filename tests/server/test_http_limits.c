/* Requests that are too large, too slow, malformed or not allowed: each gets its 4xx, and the server goes
 * on. */
#include <sys/socket.h>
#include <unistd.h>

#include "site.h"
#include "testing.h"

#define HOST "Host: localhost\r\n"

static site server;

static int open_limited(void **state)
{
    static const char *const keys[] = {"sk-first", "sk-second-and-longer"};
    static const char *const origins[] = {"https://chat.example", "http://localhost:3000"};
    sheaf__http_options o = {.api_keys = keys,
                             .n_api_keys = 2,
                             .origins = origins,
                             .n_origins = 2,
                             .max_body_bytes = 100000,
                             .max_head_bytes = 4096};
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

#define KEY "Authorization: Bearer sk-first\r\n"

static void ask(const char *request, web_reply *r)
{
    web_ask(server.port, request, r);
    if (r->status <= 0) fail_msg("no reply to: %.60s", request);
}

/* Asks, and expects an error of this status in OpenAI's shape. */
static void expect_error(const char *request, int status, const char *part)
{
    web_reply r;
    ask(request, &r);
    if (r.status != status) fail_msg("%d, not %d: %.80s", r.status, status, request);
    assert_memory_equal(r.body, "{\"error\":{\"message\":\"", 21);
    if (strstr(r.body, part) == NULL) fail_msg("%s does not say %s", r.body, part);
    assert_string_equal(web_header(&r, "Content-Type"), "application/json");
    assert_string_equal(web_header(&r, "X-Content-Type-Options"), "nosniff");
    assert_int_equal(strlen(web_header(&r, "X-Request-Id")), 20);
    web_reply_free(&r);
}

static void expect_ok(const char *request, const char *body)
{
    web_reply r;
    ask(request, &r);
    if (r.status != 200) fail_msg("%d: %.80s", r.status, request);
    assert_string_equal(r.body, body);
    web_reply_free(&r);
}

/* ---- keys -------------------------------------------------------------------------------- */

static void a_key_opens_the_routes_that_need_one(void **state)
{
    (void)state;
    expect_ok("GET /hello HTTP/1.1\r\n" HOST KEY "\r\n", "hello\n");
    expect_ok("GET /hello HTTP/1.1\r\n" HOST
              "authorization: bearer  sk-second-and-longer\r\n\r\n",
              "hello\n");
    expect_ok("GET /open HTTP/1.1\r\n" HOST "\r\n", "hello\n");
}

static void a_wrong_key_is_a_401_that_says_how(void **state)
{
    static const char *const wrong[] = {"",
                                        "Authorization: Bearer sk-firs\r\n",
                                        "Authorization: Bearer sk-firstx\r\n",
                                        "Authorization: Bearer \r\n",
                                        "Authorization: Basic sk-first\r\n",
                                        "Authorization: sk-first\r\n",
                                        "X-Api-Key: sk-first\r\n"};
    (void)state;
    uint32_t handled = server.handled;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char request[256];
        web_reply r;
        snprintf(request, sizeof request, "GET /hello HTTP/1.1\r\n" HOST "%s\r\n", wrong[i]);
        expect_error(request, 401, "authentication_error");
        snprintf(request, sizeof request,
                 "POST /echo HTTP/1.1\r\n" HOST "%sContent-Length: 5\r\n\r\nhello", wrong[i]);
        ask(request, &r);
        assert_int_equal(r.status, 401);
        assert_string_equal(web_header(&r, "WWW-Authenticate"), "Bearer");
        web_reply_free(&r);
    }
    assert_int_equal(server.handled, handled);
}

static void a_refused_request_leaves_its_connection_usable(void **state)
{
    int fd = web_connect(server.port);
    web_reply r;
    (void)state;
    web_send(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello");
    assert_true(web_read(fd, &r) && r.status == 401);
    web_reply_free(&r);
    web_send(fd, "POST /nowhere HTTP/1.1\r\n" HOST KEY
                 "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    assert_true(web_read(fd, &r) && r.status == 404);
    web_reply_free(&r);
    web_send(fd, "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: 5\r\n\r\nhello");
    assert_true(web_read(fd, &r) && r.status == 200);
    assert_string_equal(r.body, "hello");
    web_reply_free(&r);
    close(fd);
}

/* ---- readiness --------------------------------------------------------------------------- */

static void a_server_that_is_not_ready_says_when_to_come_back(void **state)
{
    web_reply r;
    (void)state;
    server.not_ready = true;
    ask("GET /hello HTTP/1.1\r\n" HOST KEY "\r\n", &r);
    assert_int_equal(r.status, 503);
    assert_string_equal(web_header(&r, "Retry-After"), "1");
    assert_non_null(strstr(r.body, "The model is being loaded."));
    web_reply_free(&r);
    expect_ok("GET /open HTTP/1.1\r\n" HOST "\r\n", "hello\n");
    expect_error("GET /hello HTTP/1.1\r\n" HOST "\r\n", 401, "key"); /* strangers learn less */
    server.not_ready = false;
    expect_ok("GET /hello HTTP/1.1\r\n" HOST KEY "\r\n", "hello\n");
}

/* ---- names of requests ------------------------------------------------------------------- */

static void a_plain_request_id_is_taken_over(void **state)
{
    web_reply r;
    char request[256], name[70];
    (void)state;
    ask("GET /open HTTP/1.1\r\n" HOST "X-Request-Id: my-id_1.Z\r\n\r\n", &r);
    assert_string_equal(web_header(&r, "X-Request-Id"), "my-id_1.Z");
    web_reply_free(&r);
    memset(name, 'a', sizeof name);
    for (int n = 64; n <= 65; n++) { /* the longest, and one too long */
        name[n] = 0;
        snprintf(request, sizeof request,
                 "GET /open HTTP/1.1\r\n" HOST "X-Request-Id: %s\r\n\r\n", name);
        ask(request, &r);
        assert_int_equal(strcmp(web_header(&r, "X-Request-Id"), name) == 0, n == 64);
        web_reply_free(&r);
        name[n] = 'a';
    }
    static const char *const odd[] = {"a b", "a\"b", "a\xc3\xa9", "a;b"};
    for (int i = 0; i < 4; i++) {
        snprintf(request, sizeof request,
                 "GET /open HTTP/1.1\r\n" HOST "X-Request-Id: %s\r\n\r\n", odd[i]);
        ask(request, &r);
        assert_memory_equal(web_header(&r, "X-Request-Id"), "req_", 4);
        web_reply_free(&r);
    }
}

/* ---- origins ----------------------------------------------------------------------------- */

static void allowed_origins_may_read_replies_errors_and_streams(void **state)
{
    static const char *const asked[] = {
        "GET /hello HTTP/1.1\r\n" HOST KEY "Origin: https://chat.example\r\n\r\n",
        "GET /stream?n=1 HTTP/1.1\r\n" HOST KEY "Origin: https://chat.example\r\n\r\n",
        "GET /hello HTTP/1.1\r\n" HOST "Origin: https://chat.example\r\n\r\n",
        "GET /nowhere HTTP/1.1\r\n" HOST "Origin: https://chat.example\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST KEY
        "Origin: https://chat.example\r\nContent-Length: 100001\r\n\r\n"};
    static const int statuses[] = {200, 200, 401, 404, 413};
    (void)state;
    for (int i = 0; i < 5; i++) {
        web_reply r;
        ask(asked[i], &r);
        assert_int_equal(r.status, statuses[i]);
        assert_string_equal(web_header(&r, "Access-Control-Allow-Origin"),
                            "https://chat.example");
        assert_string_equal(web_header(&r, "Vary"), "Origin");
        web_reply_free(&r);
    }
}

static void other_origins_may_not(void **state)
{
    static const char *const origins[] = {"https://chat.example.evil", "http://chat.example",
                                          "null", "https://chat.example:444"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char request[256];
        web_reply r;
        snprintf(request, sizeof request, "GET /open HTTP/1.1\r\n" HOST "Origin: %s\r\n\r\n",
                 origins[i]);
        ask(request, &r);
        assert_int_equal(r.status, 200);
        assert_null(web_header(&r, "Access-Control-Allow-Origin"));
        assert_string_equal(web_header(&r, "Vary"), "Origin");
        web_reply_free(&r);
    }
}

static void a_preflight_needs_no_key_and_lists_what_is_allowed(void **state)
{
    web_reply r;
    (void)state;
    ask("OPTIONS /echo HTTP/1.1\r\n" HOST "Origin: http://localhost:3000\r\n"
        "Access-Control-Request-Method: POST\r\n"
        "Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n",
        &r);
    assert_int_equal(r.status, 204);
    assert_string_equal(web_header(&r, "Access-Control-Allow-Origin"), "http://localhost:3000");
    assert_string_equal(web_header(&r, "Access-Control-Allow-Methods"), "POST, OPTIONS");
    assert_string_equal(web_header(&r, "Access-Control-Allow-Headers"),
                        "authorization, x-stainless-os");
    web_reply_free(&r);
    ask("OPTIONS /echo HTTP/1.1\r\n" HOST "Origin: http://evil\r\n"
        "Access-Control-Request-Method: POST\r\n\r\n",
        &r);
    assert_int_equal(r.status, 204);
    assert_null(web_header(&r, "Access-Control-Allow-Origin"));
    assert_null(web_header(&r, "Access-Control-Allow-Methods"));
    web_reply_free(&r);
    expect_error("OPTIONS /nowhere HTTP/1.1\r\n" HOST "\r\n", 404, "/nowhere");
    ask("OPTIONS /echo HTTP/1.1\r\n" HOST "Content-Length: 100001\r\n\r\n", &r);
    assert_int_equal(r.status, 413);
    web_reply_free(&r);
}

/* ---- sizes ------------------------------------------------------------------------------- */

/* A POST to /echo of n bytes; chunk 0: with a Content-Length. */
static void post(uint64_t n, uint64_t chunk, web_reply *r)
{
    static char data[400000];
    char head[256];
    int fd = web_connect(server.port);
    memset(data, 'x', sizeof data);
    if (chunk == 0) {
        snprintf(head, sizeof head,
                 "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: %llu\r\n\r\n",
                 (unsigned long long)n);
        web_send(fd, head);
        web_send_bytes(fd, data, n);
    } else {
        web_send(fd, "POST /echo HTTP/1.1\r\n" HOST KEY "Transfer-Encoding: chunked\r\n\r\n");
        for (uint64_t left = n; left != 0; left -= chunk < left ? chunk : left) {
            uint64_t now = chunk < left ? chunk : left;
            snprintf(head, sizeof head, "%llx\r\n", (unsigned long long)now);
            web_send(fd, head);
            web_send_bytes(fd, data, now);
            web_send(fd, "\r\n");
        }
        web_send(fd, "0\r\nTrailer: yes\r\n\r\n");
    }
    if (!web_read(fd, r)) r->status = -1;
    close(fd);
}

static void bodies_up_to_the_limit_arrive_whole(void **state)
{
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 65536, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint64_t chunk = 0; chunk <= 20000; chunk += 10000) {
            web_reply r;
            post(sizes[i], chunk, &r);
            assert_int_equal(r.status, 200);
            assert_int_equal(r.n, sizes[i]);
            web_reply_free(&r);
        }
}

static void chunks_with_extensions_are_read_or_refused(void **state)
{
    web_reply r;
    (void)state;
    ask("POST /echo HTTP/1.1\r\n" HOST KEY "Transfer-Encoding: chunked\r\n\r\n"
        "5;a=b\r\nhello\r\n6;c\r\n, you!\r\n0\r\n\r\n",
        &r);
    if (r.status == 200)
        assert_string_equal(r.body, "hello, you!");
    else
        assert_int_equal(r.status, 400); /* libmicrohttpd 1.0.1 */
    web_reply_free(&r);
}

static void bodies_over_the_limit_are_a_413_that_can_be_read(void **state)
{
    static const uint64_t sizes[] = {100001, 400000};
    (void)state;
    uint32_t handled = server.handled;
    for (int i = 0; i < 2; i++)
        for (uint64_t chunk = 0; chunk <= 20000; chunk += 10000) {
            web_reply r;
            post(sizes[i], chunk, &r);
            assert_int_equal(r.status, 413);
            assert_non_null(strstr(r.body, "100000 bytes"));
            assert_string_equal(web_header(&r, "Connection"), "close");
            web_reply_free(&r);
        }
    assert_int_equal(server.handled, handled);
}

static void bodies_that_are_too_much_together_are_a_503(void **state)
{
    enum { N = 30 };
    static char data[99999];
    int fds[N], n_taken = 0, n_refused = 0;
    web_reply r;
    (void)state;
    for (int i = 0; i < N; i++) { /* all but their last byte */
        fds[i] = web_connect(server.port);
        web_send(fds[i], "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: 100000\r\n\r\n");
        assert_true(web_send_bytes(fds[i], data, sizeof data));
    }
    for (int i = N - 1; i >= 0;
         i--) { /* the later ones first: the earlier hold what they have */
        web_send(fds[i], "x");
        assert_true(web_read(fds[i], &r));
        if (r.status == 200) n_taken++;
        if (r.status == 503 && web_header(&r, "Retry-After") != NULL) n_refused++;
        web_reply_free(&r);
        close(fds[i]);
    }
    assert_int_equal(n_taken + n_refused, N);
    assert_true(n_taken > 0 && n_refused > 0); /* 16 * 100,000 bytes hold 12 of 131,072 */
    post(100000, 0, &r);                       /* and afterwards there is room */
    assert_int_equal(r.status, 200);
    web_reply_free(&r);
}

static void a_length_over_the_limit_is_refused_before_the_body(void **state)
{
    static const char *const lengths[] = {"100001", "9999999999", "99999999999999999999999"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char request[256];
        web_reply r;
        snprintf(request, sizeof request,
                 "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: %s\r\n\r\n", lengths[i]);
        ask(request, &r);
        assert_int_equal(r.status, 413);
        web_reply_free(&r);
    }
    expect_error("POST /echo HTTP/1.1\r\n" HOST KEY
                 "Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n",
                 413, "request_too_large");
}

static void who_expects_to_be_told_is_told_to_go_on(void **state)
{
    int fd = web_connect(server.port);
    web_reply r;
    (void)state;
    web_send(fd, "POST /echo HTTP/1.1\r\n" HOST KEY
                 "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_true(web_await(fd, "HTTP/1.1 100 Continue\r\n\r\n", 5000));
    web_send(fd, "hello");
    assert_true(web_read(fd, &r));
    assert_string_equal(r.body, "hello");
    web_reply_free(&r);
    close(fd);
    expect_error("POST /echo HTTP/1.1\r\n" HOST
                 "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n",
                 401, "key"); /* without having to send it */
}

static void a_head_over_the_limit_is_a_431(void **state)
{
    static char request[70000];
    static const int sizes[] = {3000, 4300, 8000, 60000};
    (void)state;
    for (int i = 0; i < 4; i++) {
        web_reply r;
        int n = snprintf(request, sizeof request, "GET /hello HTTP/1.1\r\n" HOST KEY "X: ");
        memset(request + n, 'x', (size_t)sizes[i]);
        snprintf(request + n + sizes[i], 8, "\r\n\r\n");
        ask(request, &r);
        assert_int_equal(r.status, sizes[i] == 3000 ? 200 : 431);
        /* far over it, the reply is libmicrohttpd's own */
        if (sizes[i] > 3000 && sizes[i] < 8001) assert_non_null(strstr(r.body, "4096 bytes"));
        web_reply_free(&r);
    }
    int n = snprintf(request, sizeof request, "GET /hello?");
    memset(request + n, 'x', 60000);
    snprintf(request + n + 60000, 64, " HTTP/1.1\r\n" HOST KEY "\r\n");
    web_reply r;
    ask(request, &r);
    assert_true(r.status == 431 || r.status == 414);
    web_reply_free(&r);
}

/* ---- shapes ------------------------------------------------------------------------------ */

static void bodies_whose_end_cannot_be_told_are_refused(void **state)
{
    static const char *const framings[] = {
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    };
    (void)state;
    uint32_t handled = server.handled;
    for (size_t i = 0; i < sizeof framings / sizeof framings[0]; i++) {
        char request[512];
        int fd = web_connect(server.port);
        web_reply r;
        snprintf(request, sizeof request, "POST /echo HTTP/1.1\r\n" HOST KEY "%s\r\n",
                 framings[i]);
        web_send(fd, request);
        assert_true(web_read(fd, &r));
        assert_int_equal(r.status, 400);
        web_reply_free(&r);
        assert_true(web_closed(fd, 5000)); /* what follows is nobody's */
        close(fd);
    }
    assert_int_equal(server.handled, handled);
}

static void malformed_requests_are_a_4xx_or_closed(void **state)
{
    static const char *const requests[] = {
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", /* TLS */
        "GET\r\n\r\n",
        "GET /hello\r\n\r\n",
        "GET /hello HTTP/9.9\r\n\r\n",
        "GET /hello HTTP/1.1 extra\r\n" HOST "\r\n",
        " GET /hello HTTP/1.1\r\n" HOST "\r\n",
        "GET  HTTP/1.1\r\n" HOST "\r\n",
        "GET /hello HTTP/1.1\r\n\r\n", /* no Host */
        "GET /hello HTTP/1.1\r\nNo colon\r\n\r\n",
        "GET /hello HTTP/1.1\r\n" HOST ": no name\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: -1\r\n\r\n",
        "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: 5x\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\n" HOST KEY "Content-Length: 0x5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\n" HOST KEY "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
        "POST /echo HTTP/1.1\r\n" HOST KEY "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        "POST /echo HTTP/1.1\r\n" HOST KEY
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n",
        "POST /echo HTTP/1.1\r\n" HOST KEY
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello\r\n",
    };
    (void)state;
    uint32_t handled = server.handled;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        int fd = web_connect(server.port);
        web_reply r;
        web_send(fd, requests[i]);
        shutdown(fd, SHUT_WR); /* some wait for more */
        if (!web_read(fd, &r)) r.status = -1;
        close(fd);
        if (r.status != -1 && (r.status < 400 || r.status > 505))
            fail_msg("%d to %s", r.status, requests[i]);
        web_reply_free(&r);
    }
    assert_int_equal(server.handled, handled);
    expect_ok("GET /hello HTTP/1.1\r\n" HOST KEY "\r\n", "hello\n");
}

static void random_bytes_never_stop_the_server(void **state)
{
    static const char *const words[] = {"GET ",
                                        "POST ",
                                        "/echo",
                                        "/hello",
                                        " HTTP/1.1",
                                        "\r\n",
                                        "\r\n\r\n",
                                        HOST,
                                        KEY,
                                        "Content-Length: ",
                                        "5",
                                        "99",
                                        "Transfer-Encoding: chunked\r\n",
                                        "\n",
                                        "\t",
                                        ":",
                                        "%00",
                                        "%",
                                        "?q=",
                                        "Expect: 100-continue\r\n",
                                        "0\r\n\r\n"};
    uint64_t seed = testing_seed(5);
    (void)state;
    for (int i = 0; i < 300; i++) {
        char request[2048];
        uint64_t n = 0;
        int fd = web_connect(server.port);
        for (uint64_t parts = testing_random(&seed) % 30; parts > 0; parts--) {
            if (testing_random(&seed) % 8 == 0)
                request[n++] = (char)testing_random(&seed);
            else {
                const char *w = words[testing_random(&seed) % (sizeof words / sizeof words[0])];
                memcpy(request + n, w, strlen(w));
                n += strlen(w);
            }
        }
        web_send_bytes(fd, request, n);
        close(fd);
    }
    assert_true(web_until(site_is_idle, &server));
    expect_ok("GET /hello HTTP/1.1\r\n" HOST KEY "\r\n", "hello\n");
}

/* ---- slowness ---------------------------------------------------------------------------- */

/* One connection for each way to be slow, all at once, so that the case takes no longer than one. */
static void slow_requests_are_a_408_and_idle_connections_close(void **state)
{
    static const char *const starts[] = {
        "POST /echo HTTP/1.1\r\n" HOST KEY
        "Content-Length: 1000\r\n\r\n", /* a body that drips */
        "GET /hello HTTP/1.1\r\nX: ",   /* a head that drips */
        "GET /hel",                     /* a line that drips */
        "POST /echo HTTP/1.1\r\n" HOST KEY
        "Content-Length: 1000\r\n\r\nx", /* a body that stops */
        "",                              /* nothing at all */
    };
    int fds[5], said_408[5] = {0};
    bool open[5];
    sheaf__http_options o = {.timeout_s = 1, .upload_timeout_s = 1};
    static site hasty;
    (void)state;
    site_open(&hasty, &o);
    for (int i = 0; i < 5; i++) {
        fds[i] = web_connect(hasty.port);
        open[i] = true;
        web_send(fds[i], starts[i]);
    }
    uint64_t start = web_ms();
    for (int n_open = 5; n_open > 0 && web_ms() < start + WEB_PATIENCE_MS;) {
        for (int i = 0; i < 5; i++) {
            if (!open[i]) continue;
            if (i < 3) web_send_bytes(fds[i], "x", 1);
            bool closed = web_closed(fds[i], 20);
            if (web_await(fds[i], "HTTP/1.1 408 Request Timeout\r\n", 0)) said_408[i] = 1;
            if (!closed) continue;
            open[i] = false;
            n_open--;
            close(fds[i]);
        }
    }
    for (int i = 0; i < 5; i++) assert_false(open[i]);
    assert_true(said_408[0] && said_408[1] && said_408[3]);
    assert_true(web_until(site_is_idle, &hasty));
    site_close(&hasty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_opens_the_routes_that_need_one),
        cmocka_unit_test(a_wrong_key_is_a_401_that_says_how),
        cmocka_unit_test(a_refused_request_leaves_its_connection_usable),
        cmocka_unit_test(a_server_that_is_not_ready_says_when_to_come_back),
        cmocka_unit_test(a_plain_request_id_is_taken_over),
        cmocka_unit_test(allowed_origins_may_read_replies_errors_and_streams),
        cmocka_unit_test(other_origins_may_not),
        cmocka_unit_test(a_preflight_needs_no_key_and_lists_what_is_allowed),
        cmocka_unit_test(bodies_up_to_the_limit_arrive_whole),
        cmocka_unit_test(chunks_with_extensions_are_read_or_refused),
        cmocka_unit_test(bodies_over_the_limit_are_a_413_that_can_be_read),
        cmocka_unit_test(bodies_that_are_too_much_together_are_a_503),
        cmocka_unit_test(a_length_over_the_limit_is_refused_before_the_body),
        cmocka_unit_test(who_expects_to_be_told_is_told_to_go_on),
        cmocka_unit_test(a_head_over_the_limit_is_a_431),
        cmocka_unit_test(bodies_whose_end_cannot_be_told_are_refused),
        cmocka_unit_test(malformed_requests_are_a_4xx_or_closed),
        cmocka_unit_test(random_bytes_never_stop_the_server),
        cmocka_unit_test(slow_requests_are_a_408_and_idle_connections_close),
    };
    return cmocka_run_group_tests(tests, open_limited, close_all);
}
