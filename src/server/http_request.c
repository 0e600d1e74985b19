/* server/http_request.c - from a request's head to the call of its handler, on the network's thread.
 *
 * libmicrohttpd calls sheaf__http_request_line, then sheaf__http_access once for the head, once for each
 * piece of the body, once at its end, and again each time that it is resumed without a reply; at last
 * sheaf__http_completed.
 *
 * A reply before the end of a request would reach few clients: they are still sending, and what they
 * send meets a closed socket, whose reset takes the reply with it. So a refused request is read to its
 * end, dropped, and then answered. A body that is too long, or too slow, is answered straight to the
 * socket, which is then half closed and read for a little while.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/http_private.h"

static sheaf__http_conn *conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

/* ---- who is asked ------------------------------------------------------------------------ */

static bool serves(const sheaf__http_route *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(route->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

/* The methods of a path, as Allow lists them: false where the path is unknown. */
static bool methods_of(const sheaf__http *http, const char *path, char *out, size_t room)
{
    bool known = false;
    int n = 0;
    for (uint32_t i = 0; i < http->options.n_routes; i++) {
        const sheaf__http_route *route = &http->options.routes[i];
        if (strcmp(route->path, path) != 0) continue;
        bool get = strcmp(route->method, "GET") == 0;
        if (n >= 0 && (size_t)n < room)
            n += snprintf(out + n, room - (size_t)n, "%s%s, ", route->method,
                          get ? ", HEAD" : "");
        known = true;
    }
    if (known && n >= 0 && (size_t)n < room) snprintf(out + n, room - (size_t)n, "OPTIONS");
    return known;
}

static const sheaf__http_route *route_of(const sheaf__http *http, const char *method,
                                         const char *path)
{
    for (uint32_t i = 0; i < http->options.n_routes; i++) {
        const sheaf__http_route *route = &http->options.routes[i];
        if (strcmp(route->path, path) == 0 && serves(route, method)) return route;
    }
    return NULL;
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void append_header(void *text, const char *name, const char *value)
{
    sheaf__text *out = text;
    (void)(sheaf__text_append(out, name, strlen(name)) == SHEAF_OK &&
           sheaf__text_append(out, ": ", 2) == SHEAF_OK &&
           sheaf__text_append(out, value, strlen(value)) == SHEAF_OK &&
           sheaf__text_append(out, "\r\n", 2) == SHEAF_OK);
}

/* Sends the reply, which is set, past libmicrohttpd, which has sent nothing for this request. */
static void send_raw(sheaf__exchange *x)
{
    sheaf__text out = {0};
    char line[128];
    const sheaf__http_reply *reply = &x->reply;
    int n = snprintf(
        line, sizeof line, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Length: %llu\r\n",
        reply->status, MHD_get_reason_phrase_for(reply->status), (unsigned long long)reply->n);
    if (sheaf__text_append(&out, line, (uint64_t)n) == SHEAF_OK) {
        sheaf__http_reply_headers(x, append_header, &out);
        if (sheaf__text_append(&out, "\r\n", 2) == SHEAF_OK &&
            sheaf__text_append(&out, reply->data, reply->n) == SHEAF_OK)
            x->sent += reply->n;
        /* a few hundred bytes into an empty buffer: they fit, or the client is past helping */
        (void)!send(x->conn->fd, out.data, out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    sheaf__text_free(&out);
}

void sheaf__http_cut(sheaf__exchange *x, const sheaf__api_error *e)
{
    sheaf__exchange_refuse(x, x->refusal.status != 0 ? &x->refusal : e);
    send_raw(x);
    shutdown(x->conn->fd, SHUT_WR);
    x->phase = SHEAF__PHASE_LINGER;
    x->linger_until_ns = sheaf__clock_ns() + SHEAF__HTTP_LINGER_NS;
}

static void set_too_long(const sheaf__exchange *x, sheaf__api_error *e)
{
    sheaf__api_error_set(e, 413, "request_too_large", NULL,
                         "The request body is larger than the limit of %llu bytes.",
                         (unsigned long long)x->http->options.max_body_bytes);
}

void sheaf__http_cut_slow(sheaf__exchange *x)
{
    sheaf__api_error e;
    sheaf__api_error_set(&e, 408, "request_timeout", NULL,
                         "The request took too long to arrive.");
    sheaf__http_cut(x, &e);
}

/* ---- the head ---------------------------------------------------------------------------- */

/* "req_" and a number that no other request of this process has, well mixed (SplitMix64). */
static void make_id(sheaf__http *http, char *id)
{
    uint64_t z = http->id_seed + ++http->n_ids * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    snprintf(id, SHEAF__HTTP_ID_BYTES, "req_%016llx", (unsigned long long)z);
}

void *sheaf__http_request_line(void *arg, const char *uri, struct MHD_Connection *mhd)
{
    sheaf__http *http = arg;
    sheaf__http_conn *conn = conn_of(mhd);
    (void)uri;
    if (conn == NULL) return NULL;
    sheaf__exchange *x = sheaf__exchange_create(http);
    if (x == NULL) return NULL;
    make_id(http, x->id);
    x->mhd = mhd;
    x->conn = conn;
    conn->x = x;
    return x;
}

static bool id_is_plain(const char *id)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = id != NULL ? strlen(id) : 0;
    return n > 0 && n < SHEAF__HTTP_ID_BYTES && strspn(id, plain) == n;
}

static void set_no_memory(sheaf__api_error *e)
{
    sheaf__api_error_set(e, 503, NULL, NULL,
                         "The server has no memory for this request at the moment.");
}

static enum MHD_Result keep_argument(void *arg, enum MHD_ValueKind kind, const char *name,
                                     const char *value)
{
    sheaf__exchange *x = arg;
    (void)kind;
    if (sheaf__http_pair_add(&x->query, name, value != NULL ? value : "") == SHEAF_OK)
        return MHD_YES;
    set_no_memory(&x->refusal);
    return MHD_NO;
}

/* The reply to OPTIONS: what a browser asks before it lets a page of another origin ask. */
static void answer_options(sheaf__exchange *x, const sheaf__http_head *head,
                           const char *methods)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ";
    sheaf__text *headers = &x->reply.headers;
    (void)sheaf__http_pair_add(headers, "Allow", methods);
    if (x->allowed_origin != NULL && head->asked_method != NULL) {
        const char *asked = head->asked_headers;
        if (asked == NULL || strlen(asked) > 1024 || strspn(asked, plain) != strlen(asked))
            asked = "Authorization, Content-Type, X-Request-Id";
        (void)sheaf__http_pair_add(headers, "Access-Control-Allow-Methods", methods);
        (void)sheaf__http_pair_add(headers, "Access-Control-Allow-Headers", asked);
        (void)sheaf__http_pair_add(headers, "Access-Control-Max-Age", "600");
    }
    x->reply.status = 204;
}

/* Whether x may be handled, its path known: fills in the refusal. */
static void check(sheaf__exchange *x, const sheaf__http_head *head, const char *methods)
{
    const sheaf__http *http = x->http;
    sheaf__api_error *e = &x->refusal;
    const char *why = "The server is not ready.";
    if (x->route == NULL) {
        (void)sheaf__http_pair_add(&x->reply.headers, "Allow", methods);
        sheaf__api_error_set(e, 405, NULL, NULL, "%s does not take %s.", x->path, x->method);
        return;
    }
    if ((x->route->flags & SHEAF__ROUTE_OPEN) != 0) return;
    const char *stranger = sheaf__http_stranger(http, head);
    if (stranger != NULL) {
        sheaf__api_error_set(
            e, 403, NULL, NULL,
            "Pages of %.128s may not ask: name it by --cors-origin, or ask for "
            "an --api-key.",
            stranger);
        return;
    }
    if (!sheaf__http_key_is_good(http, head->authorization)) {
        (void)sheaf__http_pair_add(&x->reply.headers, "WWW-Authenticate", "Bearer");
        if (head->authorization == NULL)
            sheaf__api_error_set(e, 401, NULL, NULL,
                                 "No API key was given: send \"Authorization: Bearer KEY\".");
        else
            sheaf__api_error_set(e, 401, "invalid_api_key", NULL, "The API key is not known.");
    } else if (http->options.ready != NULL && !http->options.ready(http->options.ctx, &why))
        sheaf__api_error_set(e, 503, NULL, NULL, "%s", why);
}

/* What libmicrohttpd knows of the request, copied: its own copy goes with the connection. */
static void copy_head(sheaf__exchange *x, const char *method, const char *url,
                      const sheaf__http_head *head)
{
    snprintf(x->method, sizeof x->method, "%s", method);
    snprintf(x->path, sizeof x->path, "%s", url);
    if (id_is_plain(head->request_id)) snprintf(x->id, sizeof x->id, "%s", head->request_id);
    x->allowed_origin = sheaf__http_allowed_origin(x->http, head->origin);
}

/* Decides what becomes of a request by its head. */
static void judge(sheaf__exchange *x, const sheaf__http_head *head, const char *method,
                  const char *url)
{
    sheaf__http *http = x->http;
    char methods[128] = "";
    bool known = methods_of(http, url, methods, sizeof methods);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    x->route = route_of(http, method, url);
    if (head->ambiguous)
        sheaf__api_error_set(&x->refusal, 400, NULL, NULL,
                             "Where the request body ends cannot be told.");
    else if (info != NULL && info->header_size > http->options.max_head_bytes)
        sheaf__api_error_set(&x->refusal, 431, NULL, NULL,
                             "The request's head is larger than the limit of %u bytes.",
                             http->options.max_head_bytes);
    else if (!known)
        sheaf__api_error_set(&x->refusal, 404, NULL, NULL, "There is nothing at %s.", x->path);
    else if (strcmp(method, "OPTIONS") == 0 && x->route == NULL)
        answer_options(x, head, methods);
    else
        check(x, head, methods);
}

/* Nobody waits for a reply, or the server ends: libmicrohttpd closes the connection. */
static enum MHD_Result let_go(sheaf__exchange *x)
{
    x->let_go = true;
    return MHD_NO;
}

/* The first call. */
static enum MHD_Result read_head(sheaf__exchange *x, const char *method, const char *url)
{
    sheaf__http *http = x->http;
    sheaf__http_head head;
    if (sheaf__http_is_closing(http)) return let_go(x);
    sheaf__http_head_read(x->mhd, &head);
    copy_head(x, method, url, &head);
    judge(x, &head, method, url);
    x->phase = SHEAF__PHASE_BODY;
    if (x->refusal.status == 0)
        MHD_get_connection_values(x->mhd, MHD_GET_ARGUMENT_KIND, keep_argument, x);
    if (head.content_length > http->options.max_body_bytes && !head.ambiguous) {
        if (x->refusal.status == 0) set_too_long(x, &x->refusal);
        if (!head.expects) {
            sheaf__http_cut(x, &x->refusal);
            return MHD_YES;
        }
    }
    /* without a body, or while the client still waits for a word, the reply may go at once; after
     * what cannot be told apart, it must */
    if (x->refusal.status != 0 && (head.ambiguous || (head.has_body && head.expects))) {
        sheaf__exchange_refuse(x, &x->refusal);
        return sheaf__exchange_send(x);
    }
    return MHD_YES;
}

/* ---- the body ---------------------------------------------------------------------------- */

/* Makes room for `need` bytes and a zero. */
static bool grow_body(sheaf__exchange *x, uint64_t need)
{
    sheaf__http *http = x->http;
    uint64_t each = http->options.max_body_bytes;
    uint64_t limit =
        each < UINT64_MAX / SHEAF__HTTP_BODIES ? each * SHEAF__HTTP_BODIES : UINT64_MAX;
    if (need + 1 <= x->body_capacity) return true;
    uint64_t capacity = x->body_capacity != 0 ? x->body_capacity : 4096;
    while (capacity < need + 1) capacity *= 2;
    uint64_t more = capacity - x->body_capacity;
    if (atomic_fetch_add(&http->body_bytes, more) + more <= limit) {
        char *body = realloc(x->body, capacity);
        if (body != NULL) {
            x->body = body;
            x->body_capacity = capacity;
            return true;
        }
    }
    atomic_fetch_sub(&http->body_bytes, more);
    return false;
}

static enum MHD_Result read_body(sheaf__exchange *x, const char *data, size_t n)
{
    x->received += n;
    if (x->received > x->http->options.max_body_bytes) {
        sheaf__api_error e;
        set_too_long(x, &e);
        sheaf__http_cut(x, &e);
        return MHD_YES;
    }
    if (x->refusal.status != 0 || x->reply.status != 0) return MHD_YES; /* dropped */
    if (!grow_body(x, x->body_bytes + n)) {
        sheaf__exchange_drop_body(x);
        set_no_memory(&x->refusal);
        return MHD_YES;
    }
    memcpy(x->body + x->body_bytes, data, n);
    x->body_bytes += n;
    x->body[x->body_bytes] = 0;
    return MHD_YES;
}

/* ---- the handler, and after ---------------------------------------------------------------- */

/* The reply, if there is one; else the connection sleeps until there is. */
static enum MHD_Result reply_or_wait(sheaf__exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool replied = x->reply.status != 0, left = x->left;
    if (!replied && !left) sheaf__exchange_suspend(x);
    pthread_mutex_unlock(&x->lock);
    if (left) return MHD_NO; /* nobody reads it, were it there */
    return replied ? sheaf__exchange_send(x) : MHD_YES;
}

static enum MHD_Result run(sheaf__exchange *x)
{
    if (x->refusal.status != 0) sheaf__exchange_refuse(x, &x->refusal);
    if (x->reply.status != 0) return sheaf__exchange_send(x);
    bool at_once = (x->route->flags & SHEAF__ROUTE_INLINE) != 0;
    if (sheaf__http_is_closing(x->http) || (x->conn->hung_up && !at_once)) return let_go(x);
    x->phase = SHEAF__PHASE_RUNNING;
    pthread_mutex_lock(&x->lock);
    x->dispatched = true;
    sheaf__exchange_retain(x); /* the handler's */
    if (!at_once) sheaf__exchange_suspend(x);
    pthread_mutex_unlock(&x->lock);
    if (!at_once) {
        sheaf__http_run_later(x);
        return MHD_YES;
    }
    x->route->handler(x->http->options.ctx, x);
    return reply_or_wait(x);
}

enum MHD_Result sheaf__http_access(void *http, struct MHD_Connection *mhd, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *n, void **context)
{
    sheaf__exchange *x = *context;
    size_t got = *n;
    (void)http, (void)mhd, (void)version;
    if (x == NULL) return MHD_NO;
    *n = 0;
    switch (x->phase) {
    case SHEAF__PHASE_HEAD: return read_head(x, method, url);
    case SHEAF__PHASE_BODY: return got != 0 ? read_body(x, data, got) : run(x);
    case SHEAF__PHASE_RUNNING: return reply_or_wait(x);
    case SHEAF__PHASE_LINGER: return got != 0 ? MHD_YES : MHD_NO;
    default: return MHD_NO;
    }
}

/* ---- the end ----------------------------------------------------------------------------- */

static void report(sheaf__exchange *x, bool whole, enum MHD_RequestTerminationCode how)
{
    const sheaf__http_options *o = &x->http->options;
    sheaf__http_done done = {.id = x->id,
                             .method = x->method,
                             .path = x->path,
                             .route = x->route,
                             .client = x->conn->client,
                             .left = !whole,
                             .request_bytes = x->received,
                             .reply_bytes = x->sent,
                             .total_ns = sheaf__clock_ns() - x->started_ns};
    if (o->on_done == NULL) return;
    if (x->phase == SHEAF__PHASE_SENDING || x->phase == SHEAF__PHASE_LINGER)
        done.status = x->reply.status;
    else
        done.status = 499;
    if (x->phase < SHEAF__PHASE_RUNNING && !x->let_go &&
        how == MHD_REQUEST_TERMINATED_WITH_ERROR) {
        done.status = 400; /* libmicrohttpd refused what it read, with a page of its own */
        done.left = false;
    }
    o->on_done(o->ctx, &done);
}

void sheaf__http_completed(void *http, struct MHD_Connection *mhd, void **context,
                           enum MHD_RequestTerminationCode how)
{
    sheaf__exchange *x = *context;
    (void)http, (void)mhd;
    if (x == NULL) return;
    *context = NULL;
    if (how == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED && x->phase < SHEAF__PHASE_RUNNING)
        sheaf__http_cut_slow(x);
    bool whole = how == MHD_REQUEST_TERMINATED_COMPLETED_OK || x->phase == SHEAF__PHASE_LINGER;
    if (whole && x->phase == SHEAF__PHASE_SENDING && !x->reply.stream &&
        strcmp(x->method, "HEAD") != 0)
        x->sent = x->reply.n;
    x->mhd = NULL;
    x->suspended = false;
    sheaf__exchange_leave(x); /* a handler that still writes is told */
    report(x, whole, how);
    x->conn->idle_since_ns = sheaf__clock_ns();
    x->conn->x = NULL;
    x->conn = NULL;
    sheaf__exchange_release(x);
}
