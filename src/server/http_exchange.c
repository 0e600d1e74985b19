/* server/http_exchange.c - replies and streams: what handlers say, on any thread, and how it gets to
 * libmicrohttpd.
 *
 * A stream's bytes wait in one buffer, [queue_start, queue_end) of it, from which libmicrohttpd reads.
 * When it is empty the connection is suspended and `wants_wake` set, under the lock that a writer takes:
 * so no byte is added between the look and the suspension, and no wake is lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "server/http_private.h"

/* ---- life -------------------------------------------------------------------------------- */

sheaf__exchange *sheaf__exchange_create(sheaf__http *http)
{
    sheaf__exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    if (pthread_mutex_init(&x->lock, NULL) != 0) {
        free(x);
        return NULL;
    }
    x->http = http;
    x->refs = 1;
    x->started_ns = sheaf__clock_ns();
    pthread_mutex_lock(&http->lock);
    http->n_exchanges++;
    pthread_mutex_unlock(&http->lock);
    return x;
}

void sheaf__exchange_retain(sheaf__exchange *x)
{
    atomic_fetch_add(&x->refs, 1);
}

static void drop_queue(sheaf__exchange *x)
{
    atomic_fetch_sub(&x->http->queued_bytes, x->queue_end - x->queue_start);
    free(x->queue);
    x->queue = NULL;
    x->queue_start = x->queue_end = x->queue_capacity = 0;
}

/* It is empty: large ones are not kept. */
static void rest_queue(sheaf__exchange *x)
{
    x->queue_start = x->queue_end = 0;
    if (x->queue_capacity > 65536) drop_queue(x);
}

void sheaf__exchange_drop_body(sheaf__exchange *x)
{
    atomic_fetch_sub(&x->http->body_bytes, x->body_capacity);
    free(x->body);
    x->body = NULL;
    x->body_capacity = x->body_bytes = 0;
}

void sheaf__exchange_release(sheaf__exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1) return;
    sheaf__http *http = x->http;
    drop_queue(x);
    sheaf__exchange_drop_body(x);
    atomic_fetch_sub(&http->reply_bytes, x->reply.counted);
    sheaf__text_free(&x->query);
    sheaf__text_free(&x->reply.headers);
    sheaf__text_free(&x->reply.body);
    pthread_mutex_destroy(&x->lock);
    free(x);
    pthread_mutex_lock(&http->lock);
    if (--http->n_exchanges == 0) pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock); /* from here on the server may be gone */
}

void sheaf__exchange_suspend(sheaf__exchange *x)
{
    x->wants_wake = true;
    x->suspended = true;
    MHD_suspend_connection(x->mhd);
}

void sheaf__exchange_resume(sheaf__exchange *x)
{
    if (x->mhd == NULL || !x->suspended) return;
    x->suspended = false;
    MHD_resume_connection(x->mhd);
}

void sheaf__exchange_leave(sheaf__exchange *x)
{
    pthread_mutex_lock(&x->lock);
    /* a stream that was cut off is not sent as if it were whole, even if its end was written */
    bool news = x->dispatched && !x->left && (!x->given_back || x->stuck);
    if (news) {
        x->left = true;
        drop_queue(x);
        if (x->on_left != NULL) x->on_left(x->on_left_ctx);
        x->on_left = NULL;
    }
    pthread_mutex_unlock(&x->lock);
    if (!news || x->mhd == NULL) return;
    shutdown(x->conn->fd, SHUT_RDWR);
    sheaf__exchange_resume(x);
}

/* The last thing that a handler does with an exchange, whose lock is held. */
static void give_back(sheaf__exchange *x)
{
    SHEAF__ASSERT(x->dispatched && !x->given_back);
    x->given_back = true;
    x->on_left = NULL;
    sheaf__exchange_drop_body(x);
    if (x->wants_wake) sheaf__http_wake(x);
    pthread_mutex_unlock(&x->lock);
    sheaf__exchange_release(x);
}

void sheaf__exchange_drop(sheaf__exchange *x)
{
    pthread_mutex_lock(&x->lock);
    give_back(x);
}

/* ---- to libmicrohttpd -------------------------------------------------------------------- */

/* What it asks for the next bytes of a stream. */
static ssize_t read_queue(void *ctx, uint64_t pos, char *out, size_t room)
{
    sheaf__exchange *x = ctx;
    (void)pos;
    pthread_mutex_lock(&x->lock);
    uint64_t n = x->queue_end - x->queue_start;
    ssize_t answer = 0;
    if (n != 0) {
        if (n > room) n = room;
        memcpy(out, x->queue + x->queue_start, n);
        x->queue_start += n;
        x->sent += n;
        atomic_fetch_sub(&x->http->queued_bytes, n);
        if (x->queue_start == x->queue_end) rest_queue(x);
        answer = (ssize_t)n;
    } else if (x->left || x->stuck)
        answer = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (x->ended)
        answer = MHD_CONTENT_READER_END_OF_STREAM;
    else
        sheaf__exchange_suspend(x);
    pthread_mutex_unlock(&x->lock);
    return answer;
}

static void response_freed(void *x)
{
    sheaf__exchange_release(x);
}

static void add_to_response(void *response, const char *name, const char *value)
{
    MHD_add_response_header(response, name, value);
}

enum MHD_Result sheaf__exchange_send(sheaf__exchange *x)
{
    sheaf__http_reply *reply = &x->reply;
    /* libmicrohttpd 0.9.75 ends a stream's reply to HEAD with a last chunk, which nobody waits for */
    bool head = strcmp(x->method, "HEAD") == 0;
    sheaf__exchange_retain(x); /* the response's */
    struct MHD_Response *response =
        reply->stream && !head
            ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, read_queue, x,
                                                response_freed)
            : MHD_create_response_from_buffer_with_free_callback_cls(
                  reply->n, (void *)(uintptr_t)reply->data, response_freed, x);
    if (response == NULL) {
        sheaf__exchange_release(x);
        return MHD_NO;
    }
    x->phase = SHEAF__PHASE_SENDING;
    sheaf__http_reply_headers(x, add_to_response, response);
    enum MHD_Result queued = MHD_queue_response(x->mhd, reply->status, response);
    MHD_destroy_response(response);
    return queued;
}

/* ---- the reply --------------------------------------------------------------------------- */

static void set_type(sheaf__http_reply *reply, const char *type)
{
    if (type != NULL) snprintf(reply->content_type, sizeof reply->content_type, "%s", type);
}

void sheaf__exchange_add_header(sheaf__exchange *x, const char *name, const char *value)
{
    /* without memory the reply goes without it */
    pthread_mutex_lock(&x->lock);
    if (x->reply.status == 0) (void)sheaf__http_pair_add(&x->reply.headers, name, value);
    pthread_mutex_unlock(&x->lock);
}

/* Takes body (may be null), unless there is a reply already. */
static void set_whole(sheaf__exchange *x, uint32_t status, const char *type, sheaf__text *body)
{
    sheaf__http_reply *reply = &x->reply;
    SHEAF__ASSERT(reply->status == 0);
    reply->status = status;
    set_type(reply, type);
    if (body == NULL) return;
    reply->body = *body;
    *body = (sheaf__text){0};
    reply->data = reply->body.data;
    reply->n = reply->body.n;
}

/* Whether there is room for a whole reply, which clients may be slow to read; then it is counted. */
static bool count_reply(sheaf__exchange *x, uint64_t n)
{
    sheaf__http *http = x->http;
    if (n <= SHEAF__HTTP_SMALL) return true;
    uint64_t before = atomic_fetch_add(&http->reply_bytes, n);
    if (before != 0 && before + n > http->options.max_reply_bytes) {
        atomic_fetch_sub(&http->reply_bytes, n);
        return false;
    }
    x->reply.counted = n;
    return true;
}

void sheaf__exchange_reply(sheaf__exchange *x, uint32_t status, const char *content_type,
                           sheaf__text *body)
{
    if (body != NULL && !count_reply(x, body->capacity)) {
        sheaf__api_error e;
        sheaf__text_free(body);
        sheaf__api_error_set(&e, 503, NULL, NULL,
                             "The server has no memory for this reply at the moment.");
        sheaf__exchange_fail(x, &e);
        return;
    }
    pthread_mutex_lock(&x->lock);
    set_whole(x, status, content_type, body);
    give_back(x);
}

void sheaf__exchange_reply_static(sheaf__exchange *x, uint32_t status, const char *content_type,
                                  const void *data, uint64_t n)
{
    pthread_mutex_lock(&x->lock);
    set_whole(x, status, content_type, NULL);
    x->reply.data = data;
    x->reply.n = n;
    give_back(x);
}

/* The lock is held. */
static void set_error(sheaf__exchange *x, const sheaf__api_error *e)
{
    static const char plain[] = "{\"error\":{\"message\":\"The server is out of memory.\","
                                "\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    static const char json[] = "application/json";
    sheaf__text text = {0};
    if ((e->status == 429 || e->status == 503) &&
        sheaf__http_pair_find(&x->reply.headers, "Retry-After") == NULL)
        (void)sheaf__http_pair_add(&x->reply.headers, "Retry-After", "1");
    if (sheaf__api_error_render(e, &text) == SHEAF_OK)
        set_whole(x, e->status, json, &text);
    else {
        set_whole(x, e->status, json, NULL);
        x->reply.data = plain;
        x->reply.n = sizeof plain - 1;
    }
    sheaf__text_free(&text);
}

void sheaf__exchange_fail(sheaf__exchange *x, const sheaf__api_error *e)
{
    pthread_mutex_lock(&x->lock);
    set_error(x, e);
    give_back(x);
}

void sheaf__exchange_refuse(sheaf__exchange *x, const sheaf__api_error *e)
{
    pthread_mutex_lock(&x->lock);
    x->reply.status = 0; /* OPTIONS has its reply before its body, which may be too long */
    set_error(x, e);
    pthread_mutex_unlock(&x->lock);
}

/* ---- streams ----------------------------------------------------------------------------- */

void sheaf__exchange_begin(sheaf__exchange *x, const char *content_type, const char *keepalive)
{
    pthread_mutex_lock(&x->lock);
    set_whole(x, 200, content_type, NULL);
    x->reply.stream = true;
    x->keepalive = keepalive;
    x->written_ns = sheaf__clock_ns();
    if (x->wants_wake) sheaf__http_wake(x);
    pthread_mutex_unlock(&x->lock);
}

/* Makes room for n bytes at the queue's end. */
static sheaf_status make_room(sheaf__exchange *x, uint64_t n)
{
    uint64_t held = x->queue_end - x->queue_start;
    if (x->queue_end + n <= x->queue_capacity) return SHEAF_OK;
    uint64_t capacity = x->queue_capacity != 0 ? x->queue_capacity : 1024;
    while (capacity / 2 < held + n) capacity *= 2; /* so that bytes are seldom moved */
    char *queue = x->queue;
    if (capacity != x->queue_capacity) {
        queue = malloc(capacity);
        if (queue == NULL) return SHEAF_E_NO_MEMORY;
    }
    if (held != 0) memmove(queue, x->queue + x->queue_start, held);
    if (queue != x->queue) free(x->queue);
    x->queue = queue;
    x->queue_capacity = capacity;
    x->queue_start = 0;
    x->queue_end = held;
    return SHEAF_OK;
}

/* The lock is held. */
static sheaf_status append(sheaf__exchange *x, const char *data, uint64_t n)
{
    if (x->left || x->stuck) return SHEAF_E_CANCELLED;
    if (n == 0) return SHEAF_OK;
    if (x->queue_end - x->queue_start > SHEAF__HTTP_MAX_QUEUED) {
        x->stuck = true;
        sheaf__http_wake(x);
        return SHEAF_E_CANCELLED;
    }
    SHEAF__TRY(make_room(x, n));
    memcpy(x->queue + x->queue_end, data, n);
    x->queue_end += n;
    x->written_ns = sheaf__clock_ns();
    atomic_fetch_add(&x->http->queued_bytes, n);
    if (x->wants_wake) sheaf__http_wake(x);
    return SHEAF_OK;
}

sheaf_status sheaf__exchange_write(sheaf__exchange *x, const char *data, uint64_t n)
{
    pthread_mutex_lock(&x->lock);
    SHEAF__ASSERT(x->reply.stream && !x->ended);
    sheaf_status st = append(x, data, n);
    pthread_mutex_unlock(&x->lock);
    return st;
}

void sheaf__exchange_keep_alive(sheaf__exchange *x, uint64_t now_ns)
{
    uint64_t after_ns = (uint64_t)x->http->options.keepalive_s * 1000000000u;
    pthread_mutex_lock(&x->lock);
    if (x->reply.stream && x->keepalive != NULL && !x->ended && x->queue_end == 0 &&
        now_ns >= x->written_ns + after_ns)
        (void)append(x, x->keepalive, strlen(x->keepalive)); /* no memory: next time */
    pthread_mutex_unlock(&x->lock);
}

void sheaf__exchange_end(sheaf__exchange *x)
{
    pthread_mutex_lock(&x->lock);
    SHEAF__ASSERT(x->reply.stream);
    x->ended = true;
    give_back(x);
}

void sheaf__exchange_on_left(sheaf__exchange *x, void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&x->lock);
    x->on_left = x->left ? NULL : fn;
    x->on_left_ctx = ctx;
    if (x->left && fn != NULL) fn(ctx);
    pthread_mutex_unlock(&x->lock);
}

/* ---- the request ------------------------------------------------------------------------- */

const char *sheaf__exchange_id(const sheaf__exchange *x)
{
    return x->id;
}

const char *sheaf__exchange_body(const sheaf__exchange *x, uint64_t *n)
{
    *n = x->body_bytes;
    return x->body != NULL ? x->body : "";
}

const char *sheaf__exchange_query(const sheaf__exchange *x, const char *name)
{
    return sheaf__http_pair_find(&x->query, name);
}

const char *sheaf__exchange_path(const sheaf__exchange *x)
{
    return x->path;
}

const char *sheaf__exchange_header(const sheaf__exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, name);
}
