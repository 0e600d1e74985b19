/* tests/server/web.c - a client of raw sockets. */
#include "web.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "testing.h"

/* Bytes that came after the reply that was read, by descriptor. */
#define MAX_FD 4096
static struct {
    char *data;
    uint64_t n;
} kept[MAX_FD];

uint64_t web_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

bool web_until(bool (*check)(void *ctx), void *ctx)
{
    for (uint64_t end = web_ms() + WEB_PATIENCE_MS; !check(ctx);) {
        if (web_ms() > end) return false;
        usleep(1000);
    }
    return true;
}

int web_descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n - 3; /* ".", "..", its own */
}

int web_connect(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0 && fd < MAX_FD);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    free(kept[fd].data);
    kept[fd].data = NULL;
    kept[fd].n = 0;
    return fd;
}

bool web_send_bytes(int fd, const void *data, uint64_t n)
{
    const char *at = data;
    while (n > 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, WEB_PATIENCE_MS) <= 0) return false;
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (sent <= 0) return false;
        at += sent;
        n -= (uint64_t)sent;
    }
    return true;
}

void web_send(int fd, const char *text)
{
    (void)web_send_bytes(fd, text, strlen(text));
}

/* Adds what comes next to kept[fd]: the bytes added, 0 at the end, -1 after ms without any. */
static int more(int fd, int ms)
{
    char buffer[65536];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, ms) <= 0) return -1;
    ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n <= 0) return 0;
    kept[fd].data = realloc(kept[fd].data, kept[fd].n + (uint64_t)n + 1);
    assert_non_null(kept[fd].data);
    memcpy(kept[fd].data + kept[fd].n, buffer, (size_t)n);
    kept[fd].n += (uint64_t)n;
    kept[fd].data[kept[fd].n] = 0;
    return (int)n;
}

static void drop(int fd, uint64_t n)
{
    memmove(kept[fd].data, kept[fd].data + n, kept[fd].n - n + 1);
    kept[fd].n -= n;
}

/* Makes kept[fd] hold n bytes; false: the peer has closed, or is silent. */
static bool need(int fd, uint64_t n)
{
    while (kept[fd].n < n)
        if (more(fd, WEB_PATIENCE_MS) <= 0) return false;
    return true;
}

/* The offset just after `mark`, from `from` on; 0: it does not come. */
static uint64_t find(int fd, const char *mark, uint64_t from)
{
    for (;;) {
        const char *at = kept[fd].n > from ? memmem(kept[fd].data + from, kept[fd].n - from,
                                                    mark, strlen(mark))
                                           : NULL;
        if (at != NULL) return (uint64_t)(at - kept[fd].data) + strlen(mark);
        if (more(fd, WEB_PATIENCE_MS) <= 0) return 0;
    }
}

static void add(web_reply *r, const char *data, uint64_t n)
{
    r->body = realloc(r->body, r->n + n + 1);
    assert_non_null(r->body);
    memcpy(r->body + r->n, data, n);
    r->n += n;
    r->body[r->n] = 0;
}

static bool read_chunks(int fd, web_reply *r)
{
    for (;;) {
        uint64_t line = find(fd, "\r\n", 0);
        if (line == 0) return false;
        uint64_t n = strtoull(kept[fd].data, NULL, 16);
        if (!need(fd, line + n + 2)) {
            if (kept[fd].n > line) add(r, kept[fd].data + line, kept[fd].n - line);
            return false;
        }
        add(r, kept[fd].data + line, n);
        drop(fd, line + n + 2);
        if (n == 0) return true;
    }
}

static bool read_reply(int fd, web_reply *r, bool bodiless)
{
    *r = (web_reply){0};
    add(r, "", 0);
    uint64_t head = find(fd, "\r\n\r\n", 0);
    if (head == 0) return false;
    r->head = strndup(kept[fd].data, head);
    r->status = atoi(r->head + strlen("HTTP/1.1 "));
    drop(fd, head);
    if (r->status == 100) { /* go on */
        free(r->head);
        free(r->body);
        return read_reply(fd, r, bodiless);
    }
    const char *length = web_header(r, "Content-Length"), *coding;
    uint64_t n = length != NULL ? strtoull(length, NULL, 10) : 0;
    coding = web_header(r, "Transfer-Encoding");
    r->chunked = coding != NULL && strcmp(coding, "chunked") == 0;
    r->whole = true;
    if (bodiless || r->status == 204 || r->status == 304) return true;
    if (r->chunked)
        r->whole = read_chunks(fd, r);
    else if (web_header(r, "Content-Length") != NULL) {
        r->whole = need(fd, n);
        if (!r->whole) n = kept[fd].n;
        add(r, kept[fd].data != NULL ? kept[fd].data : "", n);
        if (kept[fd].data != NULL) drop(fd, n);
    } else { /* to the end of the connection */
        while (more(fd, WEB_PATIENCE_MS) > 0) {
        }
        add(r, kept[fd].data, kept[fd].n);
        drop(fd, kept[fd].n);
    }
    return true;
}

bool web_read(int fd, web_reply *r)
{
    return read_reply(fd, r, false);
}

bool web_read_bodiless(int fd, web_reply *r)
{
    return read_reply(fd, r, true);
}

void web_reply_free(web_reply *r)
{
    free(r->head);
    free(r->body);
    *r = (web_reply){0};
}

void web_ask(uint16_t port, const char *request, web_reply *r)
{
    int fd = web_connect(port);
    web_send(fd, request);
    if (!web_read(fd, r)) r->status = -1;
    close(fd);
}

const char *web_header(const web_reply *r, const char *name)
{
    static char value[1024];
    size_t n = strlen(name);
    for (const char *line = strstr(r->head, "\r\n"); line != NULL;
         line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, n) != 0 || at[n] != ':') continue;
        at += n + 1;
        at += strspn(at, " ");
        snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
        return value;
    }
    return NULL;
}

bool web_await(int fd, const char *text, int ms)
{
    for (uint64_t end = web_ms() + (uint64_t)ms;;) {
        if (kept[fd].data != NULL &&
            memmem(kept[fd].data, kept[fd].n, text, strlen(text)) != NULL)
            return true;
        uint64_t now = web_ms();
        if (now >= end || more(fd, (int)(end - now)) <= 0) return false;
    }
}

bool web_closed(int fd, int ms)
{
    for (uint64_t end = web_ms() + (uint64_t)ms;;) {
        uint64_t now = web_ms();
        int n = now < end ? more(fd, (int)(end - now)) : -1;
        if (n <= 0) return n == 0;
    }
}
