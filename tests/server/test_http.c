/* Requests and replies as they should be: whole ones, streams, connections that go on, routes, keys,
 * origins. */
#include <unistd.h>

#include "site.h"
#include "testing.h"

#define HOST "Host: localhost\r\n"

static site *server;

static int open_plain(void **state)
{
    static site s;
    sheaf__http_options o = {0};
    (void)state;
    site_open(&s, &o);
    server = &s;
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    site_close(server);
    return 0;
}

static void ask(const char *request, web_reply *r)
{
    web_ask(server->port, request, r);
    assert_true(r->status > 0);
}

static void a_whole_reply_has_status_headers_and_body(void **state)
{
    web_reply r;
    (void)state;
    ask("GET /hello HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "hello\n");
    assert_string_equal(web_header(&r, "Content-Length"), "6");
    assert_string_equal(web_header(&r, "Content-Type"), "text/plain");
    assert_string_equal(web_header(&r, "X-Extra"), "one");
    assert_string_equal(web_header(&r, "X-Content-Type-Options"), "nosniff");
    const char *id = web_header(&r, "X-Request-Id");
    assert_non_null(id);
    assert_int_equal(strlen(id), 20);
    assert_memory_equal(id, "req_", 4);
    assert_int_equal(strspn(id + 4, "0123456789abcdef"), 16);
    web_reply_free(&r);
}

static void a_stream_arrives_in_pieces_as_it_is_written(void **state)
{
    int fd = web_connect(server->port);
    web_reply r;
    (void)state;
    web_send(fd, "POST /hang HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n");
    assert_true(web_await(fd, "\r\n6\r\nbegun\n\r\n", 5000)); /* the handler goes on */
    assert_true(site_holds(server, 1));
    assert_int_equal(sheaf__exchange_write(server->held[0], "", 0), SHEAF_OK); /* not the end */
    assert_int_equal(sheaf__exchange_write(server->held[0], "and\n", 4), SHEAF_OK);
    assert_true(web_await(fd, "\r\n4\r\nand\n\r\n", 5000));
    assert_int_equal(sheaf__exchange_write(server->held[0], "ended\n", 6), SHEAF_OK);
    site_release(server);
    assert_true(web_read(fd, &r));
    assert_int_equal(r.status, 200);
    assert_true(r.chunked && r.whole);
    assert_string_equal(r.body, "begun\nand\nended\n");
    assert_string_equal(web_header(&r, "Content-Type"), "text/event-stream");
    assert_string_equal(web_header(&r, "Cache-Control"), "no-cache");
    web_reply_free(&r);
    close(fd);
}

static void a_client_of_http_1_0_gets_a_stream_up_to_the_connection_s_end(void **state)
{
    web_reply r;
    (void)state;
    ask("GET /stream?n=2 HTTP/1.0\r\n\r\n", &r);
    assert_int_equal(r.status, 200);
    assert_false(r.chunked);
    assert_string_equal(r.body, "piece 0\npiece 1\n");
    web_reply_free(&r);
}

static void a_connection_serves_one_request_after_another(void **state)
{
    int fd = web_connect(server->port);
    web_reply r;
    char last[80] = "";
    (void)state;
    for (int i = 0; i < 20; i++) {
        web_send(fd, i % 2 != 0 ? "GET /hello HTTP/1.1\r\n" HOST "\r\n"
                                : "POST /echo HTTP/1.1\r\n" HOST
                                  "Content-Length: 6\r\n\r\nhello\n");
        assert_true(web_read(fd, &r));
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "hello\n");
        assert_string_not_equal(web_header(&r, "X-Request-Id"), last);
        snprintf(last, sizeof last, "%s", web_header(&r, "X-Request-Id"));
        web_reply_free(&r);
    }
    web_send(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n"); /* a stream does not end it either */
    assert_true(web_read(fd, &r) && r.whole);
    web_reply_free(&r);
    web_send(fd, "GET /quick HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n");
    assert_true(web_read(fd, &r) && r.status == 200);
    web_reply_free(&r);
    assert_true(web_closed(fd, 5000));
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    int fd = web_connect(server->port);
    web_reply r;
    (void)state;
    web_send(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\none"
                 "GET /quick HTTP/1.1\r\n" HOST "\r\n"
                 "GET /stream?n=2 HTTP/1.1\r\n" HOST "\r\n"
                 "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nfour");
    static const char *const bodies[] = {"one", "hello\n", "piece 0\npiece 1\n", "four"};
    for (int i = 0; i < 4; i++) {
        assert_true(web_read(fd, &r));
        assert_string_equal(r.body, bodies[i]);
        web_reply_free(&r);
    }
    close(fd);
}

static void head_is_get_without_a_body(void **state)
{
    static const char *const paths[] = {"/hello", "/quick", "/static", "/stream"};
    int fd = web_connect(server->port);
    (void)state;
    for (int i = 0; i < 4; i++) {
        char request[128];
        web_reply r;
        snprintf(request, sizeof request, "HEAD %s HTTP/1.1\r\n" HOST "\r\n", paths[i]);
        web_send(fd, request);
        assert_true(web_read_bodiless(fd, &r));
        assert_int_equal(r.status, 200);
        if (i < 2) assert_string_equal(web_header(&r, "Content-Length"), "6");
        web_reply_free(&r);
    }
    web_reply r;
    web_send(fd, "GET /hello HTTP/1.1\r\n" HOST "\r\n"); /* nothing came between */
    assert_true(web_read(fd, &r));
    assert_string_equal(r.body, "hello\n");
    web_reply_free(&r);
    close(fd);
}

static void a_query_is_decoded(void **state)
{
    web_reply r;
    (void)state;
    ask("GET /query?a=b&q=x%20y%2Bz&q2 HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_string_equal(r.body, "x y+z");
    web_reply_free(&r);
    ask("GET /query HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_string_equal(r.body, "(none)");
    web_reply_free(&r);
}

static void errors_have_openai_s_shape(void **state)
{
    web_reply r;
    (void)state;
    ask("GET /nowhere?x HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_int_equal(r.status, 404);
    assert_string_equal(r.body, "{\"error\":{\"message\":\"There is nothing at /nowhere.\","
                                "\"type\":\"not_found_error\",\"param\":null,\"code\":null}}");
    assert_string_equal(web_header(&r, "Content-Type"), "application/json");
    assert_non_null(web_header(&r, "X-Request-Id"));
    assert_string_equal(web_header(&r, "X-Content-Type-Options"), "nosniff");
    web_reply_free(&r);
    ask("GET /%ff%00%22 HTTP/1.1\r\n" HOST "\r\n", &r); /* whatever they quote */
    assert_int_equal(r.status, 404);
    assert_non_null(strstr(r.body, "There is nothing at /"));
    web_reply_free(&r);
    ask("POST /fail HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", &r);
    assert_int_equal(r.status, 429);
    assert_string_equal(web_header(&r, "Retry-After"), "1");
    assert_non_null(strstr(r.body, "\"rate_limit_error\""));
    web_reply_free(&r);
}

static void a_wrong_method_is_told_the_right_ones(void **state)
{
    web_reply r;
    (void)state;
    ask("DELETE /hello HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_int_equal(r.status, 405);
    assert_string_equal(web_header(&r, "Allow"), "GET, HEAD, OPTIONS");
    web_reply_free(&r);
    ask("GET /echo HTTP/1.1\r\n" HOST "\r\n", &r);
    assert_int_equal(r.status, 405);
    assert_string_equal(web_header(&r, "Allow"), "POST, OPTIONS");
    web_reply_free(&r);
}

/* A page needs no permission to send a plain request, and its own name may lead here. */
static void pages_of_strangers_may_not_ask(void **state)
{
    static const char *const heads[] = {
        HOST "Origin: http://evil.example\r\n",
        HOST "Origin: null\r\n",
        HOST "Origin: http://localhost:81\r\nSec-Fetch-Site: same-site\r\n",
        HOST "Origin: http://localhost.evil.example\r\n",
        "Host: evil.example\r\n",
        "Host: evil.example:8080\r\nOrigin: http://evil.example:8080\r\n",
        "Host: 127.0.0.1.evil.example\r\nSec-Fetch-Site: same-origin\r\n"};
    uint32_t handled = server->handled;
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        char request[256];
        web_reply r;
        snprintf(request, sizeof request,
                 "POST /echo HTTP/1.1\r\n%sContent-Length: 3\r\n\r\none", heads[i]);
        ask(request, &r);
        assert_int_equal(r.status, 403);
        assert_non_null(strstr(r.body, "permission_error"));
        web_reply_free(&r);
        snprintf(request, sizeof request, "GET /open HTTP/1.1\r\n%s\r\n", heads[i]);
        ask(request, &r);
        assert_int_equal(r.status, 200);
        web_reply_free(&r);
        handled++;
    }
    assert_int_equal(server->handled, handled);
}

static void the_server_s_own_page_may_ask_by_any_name_of_it(void **state)
{
    static const char *const heads[] = {
        HOST "Origin: http://localhost\r\n",
        HOST "Origin: https://proxy.example\r\nSec-Fetch-Site: same-origin\r\n",
        "Host: 127.0.0.1:8080\r\nOrigin: http://127.0.0.1:8080\r\n",
        "Host: [::1]:8080\r\nOrigin: http://[::1]:8080\r\n",
        "Host: box:8080\r\n",
        "Host: sheaf.localhost:8080\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        char request[256];
        web_reply r;
        snprintf(request, sizeof request, "GET /hello HTTP/1.1\r\n%s\r\n", heads[i]);
        ask(request, &r);
        assert_int_equal(r.status, 200);
        web_reply_free(&r);
    }
}

static void a_name_is_good_where_its_origin_is_allowed(void **state)
{
    static const char *const origins[] = {"https://chat.example"};
    static site s;
    sheaf__http_options o = {.origins = origins, .n_origins = 1};
    web_reply r;
    (void)state;
    site_open(&s, &o);
    web_ask(s.port, "GET /hello HTTP/1.1\r\nHost: Chat.example:443\r\n\r\n", &r);
    assert_int_equal(r.status, 200);
    web_reply_free(&r);
    web_ask(s.port, "GET /hello HTTP/1.1\r\n" HOST "Origin: https://chat.example\r\n\r\n", &r);
    assert_int_equal(r.status, 200);
    web_reply_free(&r);
    web_ask(s.port, "GET /hello HTTP/1.1\r\nHost: other.example\r\n\r\n", &r);
    assert_int_equal(r.status, 403);
    web_reply_free(&r);
    site_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_reply_has_status_headers_and_body),
        cmocka_unit_test(a_stream_arrives_in_pieces_as_it_is_written),
        cmocka_unit_test(a_client_of_http_1_0_gets_a_stream_up_to_the_connection_s_end),
        cmocka_unit_test(a_connection_serves_one_request_after_another),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(head_is_get_without_a_body),
        cmocka_unit_test(a_query_is_decoded),
        cmocka_unit_test(errors_have_openai_s_shape),
        cmocka_unit_test(a_wrong_method_is_told_the_right_ones),
        cmocka_unit_test(pages_of_strangers_may_not_ask),
        cmocka_unit_test(the_server_s_own_page_may_ask_by_any_name_of_it),
        cmocka_unit_test(a_name_is_good_where_its_origin_is_allowed),
    };
    return cmocka_run_group_tests(tests, open_plain, close_all);
}
