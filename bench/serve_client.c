/* bench/serve_client.c - a client of OpenAI's API over plain HTTP that says when each thing came.
 *
 * What is received goes through three hands: take_head splits off the head, take_body undoes the
 * chunks and knows the end, and a sink gets the body's bytes as they come.
 */
#include "serve_client.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench.h"

#define HEAD_MAX    32768
#define PATIENCE_S  600
#define EVENT_START "data:"

typedef void (*sink_fn)(void *arg, const char *data, size_t n);

typedef struct body_reader {
    bool chunked;
    enum {
        SIZE,
        DATA,
        AFTER,
        END
    } at;           /* of a chunk: its size line, its bytes, their line's end */
    bool extension; /* what follows the size in its line */
    size_t left;    /* bytes of the chunk, or of the body */
    sink_fn sink;
    void *arg;
} body_reader;

/* ---- addresses and connections ------------------------------------------------------------ */

bool serve_target_parse(serve_target *target, const char *url)
{
    static const char scheme[] = "http://";
    *target = (serve_target){.port = "80", .base = "/v1"};
    if (strncmp(url, scheme, strlen(scheme)) != 0) return false;
    const char *host = url + strlen(scheme);
    bool brackets = *host == '[';
    host += brackets;
    size_t n_host = strcspn(host, brackets ? "]" : ":/");
    const char *rest = host + n_host + (brackets && host[n_host] == ']');
    if (n_host == 0 || n_host >= sizeof target->host) return false;
    memcpy(target->host, host, n_host);
    if (*rest == ':') {
        size_t n = strspn(++rest, "0123456789");
        if (n == 0 || n >= sizeof target->port) return false;
        snprintf(target->port, sizeof target->port, "%.*s", (int)n, rest);
        rest += n;
    }
    size_t n_base = strlen(rest);
    while (n_base > 0 && rest[n_base - 1] == '/') n_base--;
    if (n_base >= sizeof target->base || (*rest != 0 && *rest != '/')) return false;
    if (n_base > 0) snprintf(target->base, sizeof target->base, "%.*s", (int)n_base, rest);
    return true;
}

static int connect_to(const serve_target *target)
{
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    struct addrinfo *found = NULL;
    int fd = -1;
    if (getaddrinfo(target->host, target->port, &want, &found) != 0) return -1;
    for (struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
        if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static bool send_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        data += sent;
        n -= (size_t)sent;
    }
    return true;
}

static bool send_request(int fd, const serve_target *target, const char *path, const char *body)
{
    char head[2048];
    int n = snprintf(head, sizeof head,
                     "%s %s HTTP/1.1\r\nHost: %s:%s\r\nConnection: close\r\nAccept: */*\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n%s%s%s\r\n",
                     body != NULL ? "POST" : "GET", path, target->host, target->port,
                     body != NULL ? strlen(body) : 0,
                     target->api_key != NULL ? "Authorization: Bearer " : "",
                     target->api_key != NULL ? target->api_key : "",
                     target->api_key != NULL ? "\r\n" : "");
    if (n < 0 || (size_t)n >= sizeof head) return false;
    return send_all(fd, head, (size_t)n) && (body == NULL || send_all(fd, body, strlen(body)));
}

/* ---- replies ------------------------------------------------------------------------------ */

static void take_size(body_reader *r, char c)
{
    if (c == '\n') {
        r->at = r->left == 0 ? END : DATA;
        r->extension = false;
        return;
    }
    const char *digits = "0123456789abcdef", *at = c > 0 ? strchr(digits, tolower(c)) : NULL;
    if (at == NULL) r->extension = true;
    if (!r->extension && r->left <= SIZE_MAX >> 4)
        r->left = r->left * 16 + (size_t)(at - digits);
}

/* False: the body is whole, or is none. */
static bool take_body(body_reader *r, const char *data, size_t n)
{
    while (n > 0 && r->at != END) {
        size_t taken = 1;
        if (r->at == SIZE) {
            take_size(r, *data);
        } else if (r->at == AFTER) {
            if (*data == '\n') r->at = SIZE;
        } else {
            taken = n < r->left ? n : r->left;
            r->sink(r->arg, data, taken);
            r->left -= taken;
            if (r->left == 0) r->at = r->chunked ? AFTER : END;
        }
        data += taken;
        n -= taken;
    }
    return r->at != END;
}

/* The status of a head that is whole; 0: it is none. */
static uint32_t take_head(body_reader *r, const char *head)
{
    unsigned status = 0;
    if (sscanf(head, "HTTP/1.%*1[01] %3u", &status) != 1) return 0;
    const char *length = strcasestr(head, "\r\ncontent-length:");
    r->chunked = strcasestr(head, "\r\ntransfer-encoding: chunked") != NULL;
    r->at = r->chunked ? SIZE : DATA;
    r->left = r->chunked ? 0 : SIZE_MAX;
    if (length != NULL && !r->chunked) r->left = strtoul(strchr(length, ':') + 1, NULL, 10);
    if (r->left == 0 && !r->chunked) r->at = END;
    return status;
}

/* Returns the status, and gives the sink the body; 0: no reply. */
static uint32_t receive(int fd, sink_fn sink, void *arg)
{
    char *data = malloc(HEAD_MAX + 1), *end = NULL;
    body_reader r = {.sink = sink, .arg = arg};
    uint32_t status = 0;
    size_t n = 0;
    while (data != NULL && end == NULL && n < HEAD_MAX) {
        ssize_t got = recv(fd, data + n, HEAD_MAX - n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
        data[n] = 0;
        end = strstr(data, "\r\n\r\n");
    }
    if (end != NULL) {
        size_t n_head = (size_t)(end - data) + 4;
        end[2] = 0;
        status = take_head(&r, data);
        bool more = status != 0 && take_body(&r, data + n_head, n - n_head) && r.at != END;
        while (more) {
            ssize_t got = recv(fd, data, HEAD_MAX, 0);
            if (got < 0 && errno == EINTR) continue;
            more = got > 0 && take_body(&r, data, (size_t)got);
        }
    }
    free(data);
    return status;
}

static uint32_t ask(const serve_target *target, const char *path, const char *body,
                    sink_fn sink, void *arg)
{
    int fd = connect_to(target);
    if (fd < 0) return 0;
    uint32_t status = send_request(fd, target, path, body) ? receive(fd, sink, arg) : 0;
    close(fd);
    return status;
}

/* ---- whole replies ------------------------------------------------------------------------ */

static void write_to_file(void *arg, const char *data, size_t n)
{
    fwrite(data, 1, n, arg);
}

static json_t *ask_json(const serve_target *target, const char *path, const char *body)
{
    char *text = NULL;
    size_t n = 0;
    json_t *value = NULL;
    FILE *file = open_memstream(&text, &n);
    if (file == NULL) return NULL;
    uint32_t status = ask(target, path, body, write_to_file, file);
    if (fclose(file) == 0 && status == 200) value = json_loadb(text, n, 0, NULL);
    free(text);
    return value;
}

json_t *serve_get(const serve_target *target, const char *path)
{
    return ask_json(target, path, NULL);
}

json_t *serve_post(const serve_target *target, const char *path, const char *body)
{
    return ask_json(target, path, body);
}

bool serve_number(const json_t *root, const char *path, uint64_t *value)
{
    char name[64];
    while (root != NULL && *path != 0) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        root = json_object_get(root, name);
        path += n + (path[n] == '.');
    }
    if (!json_is_integer(root) || json_integer_value(root) < 0) return false;
    *value = (uint64_t)json_integer_value(root);
    return true;
}

/* ---- streams ------------------------------------------------------------------------------ */

typedef struct stream_reader {
    serve_answer *answer;
    FILE *text;   /* of the answer */
    FILE *tokens; /* of it */
    char *line;   /* [n_line], and room for a zero: what has come of a line */
    size_t n_line;
    size_t capacity;
} stream_reader;

static const json_t *text_of(const json_t *choice)
{
    const json_t *text = json_object_get(choice, "text");
    return text != NULL ? text : json_object_get(json_object_get(choice, "delta"), "content");
}

static void take_event(stream_reader *s, const char *data)
{
    serve_answer *a = s->answer;
    double now = bench_seconds();
    while (*data == ' ') data++;
    if (strcmp(data, "[DONE]") == 0) a->done = true;
    json_t *event = json_loads(data, JSON_ALLOW_NUL, NULL);
    if (json_object_get(event, "error") != NULL)
        snprintf(a->error, sizeof a->error, "%s", data);
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *text = text_of(choice), *tokens = json_object_get(choice, "logprobs");
    size_t n = json_is_string(text) ? json_string_length(text) : 0;
    if ((n > 0 || json_is_object(tokens)) && a->n_events++ == 0) a->first = now;
    if (n > 0) fwrite(json_string_value(text), 1, n, s->text);
    if (json_is_object(tokens)) json_dumpf(tokens, s->tokens, JSON_SORT_KEYS);
    if (serve_number(event, "usage.prompt_tokens", &a->prompt_tokens) &&
        serve_number(event, "usage.completion_tokens", &a->answer_tokens))
        a->has_usage = true;
    if (serve_number(event, "usage.prompt_tokens_details.cached_tokens", &a->cached_tokens))
        a->has_cached = true;
    json_decref(event);
}

/* A line is whole: an event's, a comment, the empty one between, or part of an error's reply. */
static void take_line(stream_reader *s)
{
    size_t n = s->n_line;
    if (n > 0 && s->line[n - 1] == '\r') n--;
    s->n_line = 0;
    if (n == 0) return;
    s->line[n] = 0;
    if (strncmp(s->line, EVENT_START, strlen(EVENT_START)) == 0)
        take_event(s, s->line + strlen(EVENT_START));
    else if (s->line[0] == '{')
        snprintf(s->answer->error, sizeof s->answer->error, "%s", s->line);
}

static bool add_to_line(stream_reader *s, const char *data, size_t n)
{
    if (s->capacity - s->n_line <= n) {
        size_t capacity = 2 * (s->n_line + n) + 256;
        char *line = realloc(s->line, capacity);
        if (line == NULL) return false;
        s->line = line;
        s->capacity = capacity;
    }
    memcpy(s->line + s->n_line, data, n);
    s->n_line += n;
    return true;
}

static void take_stream(void *arg, const char *data, size_t n)
{
    stream_reader *s = arg;
    while (n > 0) {
        const char *end = memchr(data, '\n', n);
        size_t part = end != NULL ? (size_t)(end - data) : n;
        if (!add_to_line(s, data, part) || end == NULL) break;
        take_line(s);
        data += part + 1;
        n -= part + 1;
    }
}

void serve_stream(const serve_target *target, const char *path, const char *body,
                  serve_answer *answer)
{
    char whole[512];
    size_t n_tokens = 0;
    stream_reader s = {.answer = answer};
    *answer = (serve_answer){.start = bench_seconds()};
    s.text = open_memstream(&answer->text, &answer->n);
    s.tokens = open_memstream(&answer->tokens, &n_tokens);
    if (s.text != NULL && s.tokens != NULL) {
        snprintf(whole, sizeof whole, "%s%s", target->base, path);
        answer->status = ask(target, whole, body, take_stream, &s);
        take_line(&s); /* an error's reply has no line end */
    }
    answer->last = bench_seconds();
    if (s.text != NULL) fclose(s.text);
    if (s.tokens != NULL) fclose(s.tokens);
    free(s.line);
}

void serve_answer_clear(serve_answer *answer)
{
    free(answer->text);
    free(answer->tokens);
    *answer = (serve_answer){0};
}
