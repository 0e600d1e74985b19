/* server/http.h - requests in, replies out, over libmicrohttpd.
 *
 * Owns: the listening socket, connections, reading bodies, limits and timeouts, API keys, CORS, worker
 * threads, streams, and noticing that a client has left. Does not own: what a request means.
 *
 *     sheaf__http_options o = {.routes = routes, .n_routes = n, .ctx = server};
 *     st = sheaf__http_open(&o, &http, &err);              // handlers are called from now on
 *     void handler(void *ctx, sheaf__exchange *x) {        // on a worker, the whole body is there
 *         sheaf__exchange_reply(x, 200, "application/json", &text);                      // or:
 *         sheaf__exchange_begin(x, "text/event-stream", NULL); ..._write(x, data, n); ..._end(x);
 *     }
 *     sheaf__http_close(http);
 *
 * A client has left when it ends its side of the connection, even if it only shuts that half: one cannot
 * be told from the other, and what computes for somebody who has left holds memory that others wait for.
 *
 * A handler need not have replied when it returns: whoever replies, on any thread, gives the exchange
 * back by its last call (reply, error or end) and must not touch it afterwards. Until then it is good,
 * even if the client has long left: what is written then is dropped.
 *
 *     the network's thread        workers                        anybody
 *     accept, head, key, CORS --> handler(x) --> (submits) -->   begin, write, write, end
 *        ^ suspended while nothing is to be sent  <------------- wakes it
 */
#ifndef SHEAF_SERVER_HTTP_H
#define SHEAF_SERVER_HTTP_H

#include <stdarg.h>

#include "model/tokenizer.h"

typedef struct sheaf__http sheaf__http;         /* a server's sockets and threads */
typedef struct sheaf__exchange sheaf__exchange; /* one request and its reply */

typedef void sheaf__http_handler(void *ctx, sheaf__exchange *x);

enum {
    SHEAF__ROUTE_OPEN = 1,  /* needs no API key */
    SHEAF__ROUTE_INLINE = 2 /* on the network's thread: quick, no body, never waits */
};

typedef struct sheaf__http_route {
    const char *method; /* "GET" also serves HEAD */
    const char *path;   /* whole */
    sheaf__http_handler *handler;
    uint32_t flags;
} sheaf__http_route;

/* What has become of an exchange: for the log and for metrics. */
typedef struct sheaf__http_done {
    const char *id; /* as in the reply's X-Request-Id */
    const char *method, *path;
    const sheaf__http_route *route; /* null: none */
    const char *client;             /* address */
    /* of the reply; 499: the client left, or the server ended, before there was one */
    uint32_t status;
    bool left; /* the client went before the reply's end */
    uint64_t request_bytes, reply_bytes;
    uint64_t total_ns;
} sheaf__http_done;

/* Strings and arrays are copied; zero is the default. */
typedef struct sheaf__http_options {
    const char *host; /* null: "127.0.0.1"; a name is resolved; "::1", "0.0.0.0" */
    uint16_t port;
    bool any_port; /* the system chooses: sheaf__http_port */
    const char *const
        *api_keys; /* [n_api_keys]; none: no key is asked for. "Authorization: Bearer KEY" */
    uint32_t n_api_keys;
    /* [n_origins] that CORS allows; "*": any. Without a key what browsers ask for pages of others is a
     * 403, and on a loopback address so is what is asked by a name that is not this machine's. */
    const char *const *origins;
    uint32_t n_origins;
    uint64_t max_body_bytes; /* 0: 16 MiB; more is a 413. 16 times it, all together: a 503 */
    uint64_t
        max_reply_bytes; /* of whole replies that wait to be read, all together; 0: 256 MiB. A 503
                                * for what is beyond it, unless it is the only one, or small */
    uint32_t max_head_bytes;   /* request line and headers; 0: 32 KiB; more is a 431 */
    uint32_t max_connections;  /* 0: 512 */
    uint32_t timeout_s;        /* without progress in reading or sending; 0: 30 */
    uint32_t upload_timeout_s; /* from the first byte of a request to its last; 0: 120. A 408 */
    uint32_t keepalive_s; /* a stream that says nothing gets a comment line after this; 0: 5 */
    uint32_t n_workers;   /* 0: 2 */
    const sheaf__http_route *routes; /* [n_routes] */
    uint32_t n_routes;
    void *ctx; /* of handlers, ready and on_done */
    /* Whether handlers may run; null: always. False: all routes but OPEN ones get a 503 with this
     * sentence and Retry-After. Any thread. */
    bool (*ready)(void *ctx, const char **why_not);
    void (*on_done)(void *ctx, const sheaf__http_done *done); /* may be null; any thread */
} sheaf__http_options;

/* SHEAF_E_IO: the address cannot be had; the sentence says which and why. SHEAF_E_USAGE: the host has
 * no address. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__http_open(const sheaf__http_options *options, sheaf__http **out,
                              sheaf_error *err);
uint16_t sheaf__http_port(const sheaf__http *http);

/* Takes no new connection; those that are there go on, so that who drains a server can still be asked
 * how far it is. Any thread, any number of times. */
void sheaf__http_quiesce(sheaf__http *http);

/* All exchanges have been given back, or will be without waiting for this thread. Null is allowed. */
void sheaf__http_close(sheaf__http *http);

typedef struct sheaf__http_stats {
    uint64_t connections;  /* now */
    uint64_t exchanges;    /* now */
    uint64_t queued_bytes; /* of streams, not sent yet */
} sheaf__http_stats;
void sheaf__http_stats_read(sheaf__http *http, sheaf__http_stats *out); /* any thread */

/* ---- the request ------------------------------------------------------------------------- */

/* All good until the exchange is given back. */
const char *
sheaf__exchange_id(const sheaf__exchange *x); /* "req_" and 16 hexadecimal digits; or the
                                                               client's X-Request-Id, where it is short
                                                               and plain */
const char *sheaf__exchange_body(const sheaf__exchange *x, uint64_t *n); /* zero-terminated */
const char *sheaf__exchange_query(const sheaf__exchange *x, const char *name); /* null: none */
const char *sheaf__exchange_path(const sheaf__exchange *x); /* without the query */

/* Null: none. In an INLINE handler alone, and good until it returns. */
const char *sheaf__exchange_header(const sheaf__exchange *x, const char *name);

/* ---- the reply --------------------------------------------------------------------------- */

/* Adds a header to the reply; before it begins. Names and values are the program's own. */
void sheaf__exchange_add_header(sheaf__exchange *x, const char *name, const char *value);

/* The whole reply, and the exchange is given back. body: taken, and left empty; null: none. */
void sheaf__exchange_reply(sheaf__exchange *x, uint32_t status, const char *content_type,
                           sheaf__text *body);

/* The same with bytes that are good for ever. */
void sheaf__exchange_reply_static(sheaf__exchange *x, uint32_t status, const char *content_type,
                                  const void *data, uint64_t n);

/* What is wrong with a request, as OpenAI says it. */
typedef struct sheaf__api_error {
    uint32_t status; /* HTTP's; 0: nothing is wrong */
    const char
        *type; /* static; null: by the status: invalid_request_error, authentication_error,
                          not_found_error, rate_limit_error, server_error ... */
    const char *code;  /* static; null: none */
    char param[64];    /* "": none */
    char message[384]; /* UTF-8 */
} sheaf__api_error;

/* Fills one in. param may be null. Returns false, for `return sheaf__api_error_set(...)`. */
bool sheaf__api_error_set(sheaf__api_error *e, uint32_t status, const char *code,
                          const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* {"error": {"message", "type", "param", "code"}}: appended. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__api_error_render(const sheaf__api_error *e, sheaf__text *out);

/* The whole reply: an error, and the exchange is given back. With Retry-After: 1 for 429 and 503. */
void sheaf__exchange_fail(sheaf__exchange *x, const sheaf__api_error *e);

/* Begins a stream of unknown length with status 200. keepalive: written (a string that is good for ever)
 * when nothing else has been for keepalive_s; null: nothing. */
void sheaf__exchange_begin(sheaf__exchange *x, const char *content_type, const char *keepalive);

/* Adds bytes to the stream; copied, sent soon. SHEAF_E_CANCELLED: the client has left (so does all that
 * follows), or has more than 4 MiB to read. SHEAF_E_NO_MEMORY: nothing was added. Never waits. */
sheaf_status sheaf__exchange_write(sheaf__exchange *x, const char *data, uint64_t n);

/* Ends the stream, and the exchange is given back. What is queued is still sent. */
void sheaf__exchange_end(sheaf__exchange *x);

/* fn(ctx) is called once, on any thread, when the client leaves before the reply is whole: at once if it
 * has left already, never after the exchange was given back. It may cancel a request of the engine and
 * set flags; it must not call an exchange. Null: nobody any more. */
void sheaf__exchange_on_left(sheaf__exchange *x, void (*fn)(void *ctx), void *ctx);

#endif
