/* tests/server/web.h - a client of raw sockets, which may behave as badly as it likes.
 *
 *     int fd = web_connect(port);
 *     web_send(fd, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n");
 *     web_reply r;
 *     assert_true(web_read(fd, &r));       // a whole reply, its chunks joined
 *     assert_int_equal(r.status, 200);
 *     web_reply_free(&r);
 *     close(fd);
 *
 * Whatever waits gives up after WEB_PATIENCE_MS.
 */
#ifndef SHEAF_TESTS_WEB_H
#define SHEAF_TESTS_WEB_H

#include <stdbool.h>
#include <stdint.h>

#define WEB_PATIENCE_MS 20000

typedef struct web_reply {
    int status;
    char *head; /* status line and headers, zero-terminated */
    char *body; /* [n], and a zero */
    uint64_t n;
    bool chunked;
    bool whole; /* else the connection closed before its end */
} web_reply;

int web_connect(uint16_t port);          /* asserts that it can */
void web_send(int fd, const char *text); /* all of it, or as much as is taken */
bool web_send_bytes(int fd, const void *data, uint64_t n); /* false: the peer takes no more */

/* The next reply; a last part that came too early is kept for the next call on this fd. False: none came
 * at all. `bodiless`: to HEAD. */
bool web_read(int fd, web_reply *r);
bool web_read_bodiless(int fd, web_reply *r);
void web_reply_free(web_reply *r);

/* One request on a connection of its own. */
void web_ask(uint16_t port, const char *request, web_reply *r);

/* The value of a header, up to its line's end; null: none. Good until the next call. */
const char *web_header(const web_reply *r, const char *name);

/* Bytes until `text` has come, or nothing does for ms: whether it has. */
bool web_await(int fd, const char *text, int ms);
bool web_closed(int fd,
                int ms); /* whether the peer closes within ms; what it sends is dropped */

uint64_t web_ms(void);     /* a clock */
int web_descriptors(void); /* of this process */

/* Waits until check(ctx): false after WEB_PATIENCE_MS. */
bool web_until(bool (*check)(void *ctx), void *ctx);

#endif
