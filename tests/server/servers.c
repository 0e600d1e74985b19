/* servers.c - a server on a small model, and requests to it over plain sockets. */
#include "server/servers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "sheaf/pool.h"

#define PATIENCE_NS 20000000000ull

/* ---- the server -------------------------------------------------------------------------- */

void serving_open(serving *s, const serving_options *options)
{
    serving_options o = options != NULL ? *options : (serving_options){0};
    const sheaf__identity_options quick = {.kind = SHEAF__IDENTITY_QUICK};
    sheaf_error err = {0};
    *s = (serving){0};
    if (o.dir == NULL) o.dir = SERVERS_DEMO;
    if (o.model.n_threads == 0) o.model.n_threads = 1;
    o.server.http.any_port = true;
    o.server.model_path = o.dir;
    if (o.server.chat_family == SHEAF__CHAT_NONE && !o.no_chat &&
        sheaf__chat_detect(o.dir, &o.server.chat_family, &err) != SHEAF_OK)
        o.server.chat_family = SHEAF__CHAT_NONE;
    sheaf_status st = sheaf__identity_read(o.dir, &quick, &o.server.identity, &err);
    if (st == SHEAF_OK) st = sheaf__model_open(o.dir, &o.model, &s->model, &err);
    if (st == SHEAF_OK) st = sheaf__server_open(&o.server, &s->server, &err);
    if (st == SHEAF_OK) st = sheaf__server_serve(s->server, s->model, &err);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
    s->port = sheaf__http_port(s->server->http);
}

void serving_close(serving *s)
{
    sheaf__server_close(s->server);
    if (s->model->pool != NULL) {
        sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
        assert_int_equal(sheaf_pool_stats_read(s->model->pool, &stats), SHEAF_OK);
        assert_int_equal(stats.blocks_held, 0);
    }
    sheaf__model_close(s->model);
    *s = (serving){0};
}

sheaf__engine_stats serving_stats(const serving *s)
{
    sheaf__engine_stats stats;
    sheaf__engine_stats_read(s->server->engine, &stats);
    return stats;
}

static bool is_idle(const sheaf__engine_stats *stats, uint64_t n)
{
    (void)n;
    return stats->running + stats->waiting == 0;
}

static bool has_running(const sheaf__engine_stats *stats, uint64_t n)
{
    return stats->running == n;
}

static void wait_for(const serving *s, bool (*holds)(const sheaf__engine_stats *, uint64_t),
                     uint64_t n)
{
    uint64_t start = sheaf__clock_ns();
    for (;;) {
        sheaf__engine_stats stats = serving_stats(s);
        if (holds(&stats, n)) return;
        if (sheaf__clock_ns() - start > PATIENCE_NS)
            fail_msg("%llu requests run and %llu wait, for 20 s",
                     (unsigned long long)stats.running, (unsigned long long)stats.waiting);
        usleep(1000);
    }
}

void serving_idle(const serving *s)
{
    wait_for(s, is_idle, 0);
}

void serving_running(const serving *s, uint64_t n)
{
    wait_for(s, has_running, n);
}

/* ---- sockets ----------------------------------------------------------------------------- */

static bool send_all(int fd, const char *data, size_t n)
{
    while (n != 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        data += sent;
        n -= (size_t)sent;
    }
    return true;
}

int http_send(uint16_t port, const char *method, const char *path, const char *body)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char head[512];
    size_t n = body != NULL ? strlen(body) : 0;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    snprintf(head, sizeof head,
             "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
             "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             method, path, n);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
        send_all(fd, head, strlen(head)) && send_all(fd, body, n))
        return fd;
    close(fd);
    return -1;
}

bool http_await(int fd, const char *text)
{
    char seen[4096] = {0};
    size_t n = 0;
    while (strstr(seen, text) == NULL) {
        if (n == sizeof seen - 1) { /* what was looked at may go, save its end */
            memmove(seen, seen + n / 2, n - n / 2);
            n -= n / 2;
            memset(seen + n, 0, sizeof seen - n);
        }
        ssize_t got = recv(fd, seen + n, sizeof seen - 1 - n, 0);
        if (got <= 0) return false;
        n += (size_t)got;
    }
    return true;
}

/* Takes the frames of chunks out of a body, in place; returns its size. */
static size_t join_chunks(char *body, size_t n)
{
    size_t from = 0, to = 0;
    while (from < n) {
        char *end;
        size_t size = strtoul(body + from, &end, 16);
        from = (size_t)(end - body) + 2;
        if (size == 0 || from + size > n) break;
        memmove(body + to, body + from, size);
        to += size;
        from += size + 2;
    }
    body[to] = 0;
    return to;
}

static void parse(http_reply *reply, size_t n)
{
    char *head_end = strstr(reply->all, "\r\n\r\n");
    if (head_end == NULL || strncmp(reply->all, "HTTP/1.1 ", 9) != 0) return;
    reply->status = (uint32_t)strtoul(reply->all + 9, NULL, 10);
    reply->body = head_end + 4;
    reply->n = n - (size_t)(reply->body - reply->all);
    *head_end = 0;
    if (strcasestr(reply->all, "transfer-encoding: chunked") != NULL)
        reply->n = join_chunks(reply->body, reply->n);
}

http_reply http_receive(int fd)
{
    http_reply reply = {0};
    size_t n = 0, capacity = 1 << 16;
    reply.all = malloc(capacity);
    while (reply.all != NULL) {
        ssize_t got = recv(fd, reply.all + n, capacity - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        if (n == capacity - 1) {
            char *grown = realloc(reply.all, capacity *= 2);
            if (grown == NULL) break;
            reply.all = grown;
        }
    }
    if (fd >= 0) close(fd);
    if (reply.all == NULL) return reply;
    reply.all[n] = 0;
    parse(&reply, n);
    return reply;
}

void http_reply_free(http_reply *reply)
{
    free(reply->all);
    *reply = (http_reply){0};
}

http_reply serving_ask(const serving *s, const char *method, const char *path, const char *body)
{
    int fd = http_send(s->port, method, path, body);
    assert_true(fd >= 0);
    return http_receive(fd);
}

/* ---- JSON over sockets ------------------------------------------------------------------- */

static char *make_body(const char *format, va_list args)
{
    char *body = NULL;
    if (vasprintf(&body, format, args) < 0) fail_msg("no memory for a body");
    for (char *at = body; *at != 0; at++)
        if (*at == '\'') *at = '"';
    return body;
}

char *serving_body(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *body = make_body(format, args);
    va_end(args);
    return body;
}

static json_t *parse_json(const char *text, size_t n)
{
    json_error_t error;
    json_t *value = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (value == NULL) fail_msg("%s: %.*s", error.text, (int)n, text);
    return value;
}

/* Takes the reply. */
static json_t *json_of(http_reply reply, uint32_t status)
{
    if (reply.status != status)
        fail_msg("status %u: %s", reply.status, reply.body != NULL ? reply.body : "");
    json_t *value = parse_json(reply.body, reply.n);
    http_reply_free(&reply);
    return value;
}

json_t *serving_get(const serving *s, const char *path, uint32_t status)
{
    return json_of(serving_ask(s, "GET", path, NULL), status);
}

json_t *serving_post(const serving *s, const char *path, uint32_t status, const char *format,
                     ...)
{
    va_list args;
    va_start(args, format);
    char *body = make_body(format, args);
    va_end(args);
    http_reply reply = serving_ask(s, "POST", path, body);
    free(body);
    return json_of(reply, status);
}

json_t *http_events(const http_reply *reply)
{
    if (reply->status != 200) fail_msg("status %u: %s", reply->status, reply->body);
    assert_non_null(strcasestr(reply->all, "content-type: text/event-stream"));
    json_t *events = json_array();
    for (char *at = reply->body, *end; *at != 0; at = end + 2) {
        end = strstr(at, "\n\n");
        if (end == NULL) fail_msg("an event has no end: %s", at);
        if (at[0] == ':') continue;
        assert_memory_equal(at, "data: ", 6);
        size_t n = (size_t)(end - at) - 6;
        bool done = n == 6 && memcmp(at + 6, "[DONE]", 6) == 0;
        json_array_append_new(events, done ? json_string("[DONE]") : parse_json(at + 6, n));
    }
    return events;
}

json_t *serving_stream(const serving *s, const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *body = make_body(format, args);
    va_end(args);
    http_reply reply = serving_ask(s, "POST", path, body);
    free(body);
    json_t *events = http_events(&reply);
    http_reply_free(&reply);
    return events;
}

/* ---- looking into JSON ------------------------------------------------------------------- */

json_t *json_at(json_t *root, const char *path)
{
    char name[64];
    while (root != NULL && *path != 0) {
        size_t n = strcspn(path, ".");
        assert_true(n < sizeof name);
        memcpy(name, path, n);
        name[n] = 0;
        root = json_is_array(root) ? json_array_get(root, strtoul(name, NULL, 10))
                                   : json_object_get(root, name);
        path += n + (path[n] == '.');
    }
    return root;
}

const char *text_at(json_t *root, const char *path)
{
    json_t *value = json_at(root, path);
    if (!json_is_string(value)) {
        char *text = json_dumps(root, 0);
        fail_msg("no text at %s of %s", path, text);
    }
    return json_string_value(value);
}

int64_t number_at(json_t *root, const char *path)
{
    json_t *value = json_at(root, path);
    if (!json_is_integer(value)) {
        char *text = json_dumps(root, 0);
        fail_msg("no whole number at %s of %s", path, text);
    }
    return json_integer_value(value);
}
