/* The page's files: as they are in the tree, with a policy, sent once, and whole without anybody else. */
#include <unistd.h>

#include "server/page.h"
#include "testing.h"
#include "web.h"

#define HOST "Host: localhost\r\n"

static sheaf__http *server;
static uint16_t port;

static int open_server(void **state)
{
    static const char *const keys[] = {"secret"};
    sheaf__http_options o = {.any_port = true,
                             .api_keys = keys,
                             .n_api_keys = 1,
                             .routes = sheaf__page_routes,
                             .n_routes = sheaf__n_page_routes};
    (void)state;
    assert_int_equal(sheaf__http_open(&o, &server, NULL), SHEAF_OK);
    port = sheaf__http_port(server);
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    sheaf__http_close(server);
    return 0;
}

static void ask(const char *method, const char *path, const char *headers, web_reply *r)
{
    char request[512];
    snprintf(request, sizeof request, "%s %s HTTP/1.1\r\n" HOST "%s\r\n", method, path,
             headers);
    web_ask(port, request, r);
    assert_true(r->status > 0);
}

/* The file of a route in the tree: its bytes, to be freed. */
static char *read_source(const char *path, size_t *n)
{
    char name[256];
    const char *tail = strcmp(path, "/") == 0 ? "/page/index.html" : path;
    snprintf(name, sizeof name, "src/server%s", tail);
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (1 << 20) - 1, file);
    bytes[*n] = 0;
    fclose(file);
    return bytes;
}

static void every_file_comes_as_it_is_in_the_tree_without_a_key(void **state)
{
    (void)state;
    assert_true(sheaf__n_page_routes > 10);
    for (uint32_t i = 0; i < sheaf__n_page_routes; i++) {
        const char *path = sheaf__page_routes[i].path;
        web_reply r;
        size_t n;
        char *source = read_source(path, &n);
        ask("GET", path, "", &r);
        assert_int_equal(r.status, 200);
        assert_int_equal(r.n, n);
        assert_memory_equal(r.body, source, n);
        assert_non_null(web_header(&r, "ETag"));
        assert_string_equal(web_header(&r, "Cache-Control"), "no-cache");
        assert_non_null(
            strstr(web_header(&r, "Content-Security-Policy"), "default-src 'self'"));
        free(source);
        web_reply_free(&r);
    }
}

static void files_say_what_they_are(void **state)
{
    static const char *const types[][2] = {
        {"/", "text/html; charset=utf-8"},
        {"/page/main.js", "text/javascript; charset=utf-8"},
        {"/page/page.css", "text/css; charset=utf-8"},
        {"/page/icon.svg", "image/svg+xml"},
        {"/page/vendor/uplot/LICENSE", "text/plain; charset=utf-8"}};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        web_reply r;
        ask("GET", types[i][0], "", &r);
        assert_int_equal(r.status, 200);
        assert_string_equal(web_header(&r, "Content-Type"), types[i][1]);
        web_reply_free(&r);
    }
}

static void a_file_that_the_client_has_is_not_sent_again(void **state)
{
    web_reply r;
    char tag[64], header[128];
    (void)state;
    ask("GET", "/", "", &r);
    snprintf(tag, sizeof tag, "%s", web_header(&r, "ETag"));
    web_reply_free(&r);
    static const char *const before[] = {"", "W/", "\"other\", "};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++) {
        snprintf(header, sizeof header, "If-None-Match: %s%s\r\n", before[i], tag);
        ask("GET", "/", header, &r);
        assert_int_equal(r.status, 304);
        assert_int_equal(r.n, 0);
        assert_string_equal(web_header(&r, "ETag"), tag);
        web_reply_free(&r);
    }
    ask("GET", "/", "If-None-Match: \"other\"\r\n", &r);
    assert_int_equal(r.status, 200);
    assert_true(r.n > 0);
    web_reply_free(&r);
}

static bool is_served(const char *path, size_t n)
{
    for (uint32_t i = 0; i < sheaf__n_page_routes; i++) {
        const char *served = sheaf__page_routes[i].path + 1;
        if (strlen(served) == n && memcmp(served, path, n) == 0) return true;
    }
    return false;
}

static void all_that_the_document_names_is_served(void **state)
{
    size_t n;
    uint32_t found = 0;
    char *html = read_source("/", &n);
    (void)state;
    for (const char *at = html; (at = strstr(at, "\"page/")) != NULL; found++) {
        const char *end = strchr(++at, '"');
        assert_non_null(end);
        if (!is_served(at, (size_t)(end - at))) fail_msg("%.40s is not served", at);
    }
    assert_true(found >= 5);
    free(html);
}

static void all_that_a_module_imports_is_served(void **state)
{
    uint32_t found = 0;
    (void)state;
    for (uint32_t i = 0; i < sheaf__n_page_routes; i++) {
        size_t n;
        char *source = read_source(sheaf__page_routes[i].path, &n), path[64];
        for (const char *at = source; (at = strstr(at, " from './")) != NULL; found++) {
            at += strlen(" from './");
            int len = snprintf(path, sizeof path, "page/%.*s", (int)strcspn(at, "'"), at);
            if (!is_served(path, (size_t)len)) fail_msg("%s is not served", path);
        }
        free(source);
    }
    assert_true(found >= 10);
}

/* The policy would refuse it, and the page would be broken only in a browser. */
static void the_document_has_nothing_inline_and_names_nobody_else(void **state)
{
    static const char *const refused[] = {"://", " style=", "<style", " onclick",
                                          "javascript:"};
    size_t n;
    char *html = read_source("/", &n);
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (strstr(html, refused[i]) != NULL) fail_msg("index.html has %s", refused[i]);
    for (const char *at = html; (at = strstr(at, "<script")) != NULL; at++)
        assert_memory_equal(at, "<script src=\"page/", 18);
    free(html);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_comes_as_it_is_in_the_tree_without_a_key),
        cmocka_unit_test(files_say_what_they_are),
        cmocka_unit_test(a_file_that_the_client_has_is_not_sent_again),
        cmocka_unit_test(all_that_the_document_names_is_served),
        cmocka_unit_test(all_that_a_module_imports_is_served),
        cmocka_unit_test(the_document_has_nothing_inline_and_names_nobody_else),
    };
    return cmocka_run_group_tests(tests, open_server, close_server);
}
