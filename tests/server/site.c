/* tests/server/site.c - a small HTTP server to test. */
#include "site.h"

#include <unistd.h>

#include "testing.h"

static void reply_text(sheaf__exchange *x, const char *data, uint64_t n)
{
    sheaf__text text = {0};
    assert_int_equal(sheaf__text_append(&text, data, n), SHEAF_OK);
    sheaf__exchange_reply(x, 200, "text/plain", &text);
    assert_null(text.data);
}

static void serve_hello(void *ctx, sheaf__exchange *x)
{
    ((site *)ctx)->handled++;
    sheaf__exchange_add_header(x, "X-Extra", "one");
    reply_text(x, "hello\n", 6);
}

static void serve_echo(void *ctx, sheaf__exchange *x)
{
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    ((site *)ctx)->handled++;
    assert_int_equal(body[n], 0);
    reply_text(x, body, n);
}

static void serve_query(void *ctx, sheaf__exchange *x)
{
    const char *q = sheaf__exchange_query(x, "q");
    ((site *)ctx)->handled++;
    if (q == NULL) q = "(none)";
    reply_text(x, q, strlen(q));
}

static void serve_fail(void *ctx, sheaf__exchange *x)
{
    sheaf__api_error e;
    ((site *)ctx)->handled++;
    sheaf__api_error_set(&e, 429, "queue_full", NULL, "Later, please.");
    sheaf__exchange_fail(x, &e);
}

static void serve_static(void *ctx, sheaf__exchange *x)
{
    static char bytes[SITE_STATIC_BYTES];
    ((site *)ctx)->handled++;
    sheaf__exchange_reply_static(x, 200, "application/octet-stream", bytes, sizeof bytes);
}

static void note_left(void *ctx)
{
    ((site *)ctx)->left++;
}

static void serve_stream(void *ctx, sheaf__exchange *x)
{
    const char *n = sheaf__exchange_query(x, "n"), *ms = sheaf__exchange_query(x, "ms");
    int pieces = n != NULL ? atoi(n) : 3;
    ((site *)ctx)->handled++;
    sheaf__exchange_on_left(x, note_left, ctx);
    sheaf__exchange_begin(x, "text/event-stream", NULL);
    for (int i = 0; i < pieces; i++) {
        char piece[32];
        int len = snprintf(piece, sizeof piece, "piece %d\n", i);
        if (ms != NULL) usleep((useconds_t)atoi(ms) * 1000);
        if (sheaf__exchange_write(x, piece, (uint64_t)len) != SHEAF_OK) break;
    }
    sheaf__exchange_end(x);
}

static void hold(site *s, sheaf__exchange *x, bool begun)
{
    sheaf__exchange_on_left(x, note_left, s);
    s->handled++;
    pthread_mutex_lock(&s->lock);
    assert_true(s->n_held < SITE_MAX_HELD);
    s->begun[s->n_held] = begun;
    s->held[s->n_held] = x;
    s->n_held++;
    pthread_mutex_unlock(&s->lock);
}

static void serve_hold(void *ctx, sheaf__exchange *x)
{
    hold(ctx, x, false);
}

static void serve_hang(void *ctx, sheaf__exchange *x)
{
    sheaf__exchange_begin(x, "text/event-stream", ": keepalive\n\n");
    assert_int_not_equal(sheaf__exchange_write(x, "begun\n", 6), SHEAF_E_NO_MEMORY);
    hold(ctx, x, true);
}

static void serve_block(void *ctx, sheaf__exchange *x)
{
    ((site *)ctx)->n_blocked++;
    while (sem_wait(&((site *)ctx)->open) != 0) continue;
    serve_hello(ctx, x);
}

static void serve_big(void *ctx, sheaf__exchange *x)
{
    static char piece[65536];
    site *s = ctx;
    sheaf__http_stats stats;
    s->handled++;
    sheaf__exchange_on_left(x, note_left, ctx);
    sheaf__exchange_begin(x, "text/event-stream", NULL);
    for (int i = 0; i < 100000; i++) {
        sheaf_status st = sheaf__exchange_write(x, piece, sizeof piece);
        if (st != SHEAF_OK) {
            assert_int_equal(st, SHEAF_E_CANCELLED);
            break;
        }
        do /* the first one has been sent */
            sheaf__http_stats_read(s->http, &stats);
        while (i == 0 && stats.queued_bytes != 0);
        if (stats.queued_bytes > s->most_queued) s->most_queued = stats.queued_bytes;
    }
    sheaf__exchange_end(x);
}

static const sheaf__http_route routes[] = {
    {"GET", "/hello", serve_hello, 0},
    {"GET", "/quick", serve_hello, SHEAF__ROUTE_INLINE},
    {"GET", "/open", serve_hello, SHEAF__ROUTE_INLINE | SHEAF__ROUTE_OPEN},
    {"POST", "/echo", serve_echo, 0},
    {"GET", "/query", serve_query, 0},
    {"POST", "/fail", serve_fail, 0},
    {"GET", "/static", serve_static, 0},
    {"GET", "/stream", serve_stream, 0},
    {"POST", "/hold", serve_hold, 0},
    {"POST", "/hang", serve_hang, 0},
    {"POST", "/block", serve_block, 0},
    {"GET", "/big", serve_big, 0},
};

static bool is_ready(void *ctx, const char **why_not)
{
    site *s = ctx;
    *why_not = "The model is being loaded.";
    return !s->not_ready;
}

static void note_done(void *ctx, const sheaf__http_done *done)
{
    site *s = ctx;
    s->last_status = done->status;
    snprintf(s->last_id, sizeof s->last_id, "%s", done->id);
    if (done->left) s->done_left++;
    if (done->status == 499) s->done_499++;
    s->done++;
}

void site_open(site *s, sheaf__http_options *options)
{
    sheaf_error err;
    memset((void *)s, 0, sizeof *s);
    assert_int_equal(pthread_mutex_init(&s->lock, NULL), 0);
    assert_int_equal(sem_init(&s->open, 0, 0), 0);
    options->any_port = true;
    options->routes = routes;
    options->n_routes = sizeof routes / sizeof routes[0];
    options->ctx = s;
    options->ready = is_ready;
    options->on_done = note_done;
    if (sheaf__http_open(options, &s->http, &err) != SHEAF_OK) fail_msg("%s", err.text);
    s->port = sheaf__http_port(s->http);
}

void site_release(site *s)
{
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->n_held; i++) {
        if (s->begun[i])
            sheaf__exchange_end(s->held[i]);
        else
            sheaf__exchange_reply_static(s->held[i], 200, "text/plain", "held\n", 5);
    }
    s->n_held = 0;
    pthread_mutex_unlock(&s->lock);
}

bool site_is_idle(void *arg)
{
    site *s = arg;
    sheaf__http_stats stats;
    sheaf__http_stats_read(s->http, &stats);
    return stats.exchanges == 0 && stats.queued_bytes == 0;
}

bool site_is_released(void *arg)
{
    site_release(arg);
    return site_is_idle(arg);
}

void site_close(site *s)
{
    site_release(s);
    sheaf__http_close(s->http);
    s->http = NULL;
    sem_destroy(&s->open);
    pthread_mutex_destroy(&s->lock);
}

typedef struct count {
    _Atomic uint32_t *is;
    uint32_t want;
} count;

static bool reached(void *ctx)
{
    count *c = ctx;
    return *c->is >= c->want;
}

bool site_holds(site *s, uint32_t n)
{
    count c = {&s->n_held, n};
    return web_until(reached, &c);
}

bool site_left(site *s, uint32_t n)
{
    count c = {&s->left, n};
    return web_until(reached, &c);
}
