/* server/server.c - one model, served: life, the table of routes, and what becomes of each request.
 *
 * The engine's thread outlives the engine's last request: what handlers post to it in the meantime
 * (statistics, a map) is still answered, so no exchange waits for ever, and the network can be closed
 * while nobody can reach an engine that is gone:
 *
 *     engine's thread    sheaf__engine_run ... no request left: over | posted jobs, until closing | ends
 *     close              stop, wait for over | close the network     | closing, join, destroy
 */
#include "server/server.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/status.h"

#define MAX_REPLY_BYTES (64u << 20)
#define LOOK_MS         10 /* between two looks at what nobody tells of */

/* Of the server alone; the page has a table of its own. */
static const sheaf__http_route api_routes[] = {
    {"POST", "/v1/chat/completions", sheaf__serve_chat, 0},
    {"POST", "/v1/completions", sheaf__serve_completion, 0},
    {"GET", "/v1/models", sheaf__serve_models, 0},
    {"GET", "/v1/cache/stats", sheaf__serve_stats, 0},
    {"GET", "/v1/cache/map", sheaf__serve_map, 0},
    {"POST", "/v1/cache/reset", sheaf__serve_reset, 0},
    {"POST", "/v1/cache/preload", sheaf__serve_preload, 0},
    {"GET", "/health", sheaf__serve_health, SHEAF__ROUTE_OPEN | SHEAF__ROUTE_INLINE},
    {"GET", "/metrics", sheaf__serve_metrics, 0},
    {"GET", "/props", sheaf__serve_props, 0},
    {"GET", "/slots", sheaf__serve_slots, 0},
    {"POST", "/tokenize", sheaf__serve_tokenize, 0},
    {"POST", "/detokenize", sheaf__serve_detokenize, 0},
    {"POST", "/apply-template", sheaf__serve_template, 0},
};
#define N_API_ROUTES ((uint32_t)(sizeof api_routes / sizeof api_routes[0]))

/* ---- what the network asks and tells ------------------------------------------------------ */

static uint32_t state_of(sheaf__server *server)
{
    return atomic_load_explicit(&server->state, memory_order_acquire);
}

static bool is_ready(void *ctx, const char **why_not)
{
    uint32_t state = state_of(ctx);
    if (state == SHEAF__SERVER_LOADING) *why_not = "the model is being loaded";
    if (state == SHEAF__SERVER_STOPPED) *why_not = "the server is stopping";
    return state == SHEAF__SERVER_READY || state == SHEAF__SERVER_DRAINING;
}

static uint32_t endpoint_of(const sheaf__http_route *route)
{
    sheaf__http_handler *handler = route != NULL ? route->handler : NULL;
    if (handler == sheaf__serve_chat) return SHEAF__ENDPOINT_CHAT;
    if (handler == sheaf__serve_completion) return SHEAF__ENDPOINT_COMPLETION;
    if (handler == sheaf__serve_preload) return SHEAF__ENDPOINT_PRELOAD;
    return SHEAF__ENDPOINT_OTHER;
}

/* What machines and the page ask every few seconds is worth a line to those alone who look for it. */
static uint32_t level_of(const sheaf__http_done *done)
{
    static sheaf__http_handler *const polled[] = {sheaf__serve_health, sheaf__serve_metrics,
                                                  sheaf__serve_stats,  sheaf__serve_slots,
                                                  sheaf__serve_map,    sheaf__serve_page};
    for (size_t i = 0; i < sizeof polled / sizeof polled[0]; i++) {
        if (done->route != NULL && done->route->handler == polled[i]) return SHEAF__LOG_DEBUG;
    }
    return SHEAF__LOG_INFO;
}

static void on_done(void *ctx, const sheaf__http_done *done)
{
    sheaf__server *server = ctx;
    uint32_t status = done->left ? 499 : done->status;
    sheaf__metrics_reply(&server->metrics, endpoint_of(done->route), status);
    sheaf__log_line(server->log, level_of(done), "request", "id", "s", done->id, "method", "s",
                    done->method, "path", "s", done->path, "status", "u", status,
                    "request_bytes", "U", done->request_bytes, "reply_bytes", "U",
                    done->reply_bytes, "ms", "f", (double)done->total_ns * 1e-6, "client", "s",
                    done->client, NULL);
}

/* ---- what the engine asks and tells ------------------------------------------------------- */

static int on_event(void *ctx, const sheaf__engine_event *event)
{
    (void)ctx;
    sheaf__served *served = event->ctx;
    return served->hear(served, event);
}

static sheaf_status make_space(void *ctx, const sheaf_pool *pool, const void *salt,
                               uint64_t salt_bytes, sheaf_key *out)
{
    const sheaf__server *server = ctx;
    return sheaf__identity_space(pool, &server->options.identity, salt, salt_bytes, out);
}

/* ---- opening ------------------------------------------------------------------------------ */

/* The last part of a model's path, where it is one; else all of it. */
static char *name_of(const char *path)
{
    char real[PATH_MAX];
    const char *whole = realpath(path, real) != NULL ? real : path;
    const char *slash = strrchr(whole, '/');
    return strdup(slash != NULL && slash[1] != 0 ? slash + 1 : whole);
}

static sheaf_status copy_options(sheaf__server *server, const sheaf__server_options *options)
{
    sheaf__server_options *o = &server->options;
    *o = *options;
    o->model_path = strdup(options->model_path);
    o->model_name = NULL;
    if (o->model_path == NULL) return SHEAF_E_NO_MEMORY;
    o->model_name =
        options->model_name != NULL ? strdup(options->model_name) : name_of(o->model_path);
    if (o->model_name == NULL) return SHEAF_E_NO_MEMORY;
    if (o->engine.prefix != NULL) {
        server->prefix = *o->engine.prefix;
        o->engine.prefix = &server->prefix;
    }
    if (o->max_reply_bytes == 0) o->max_reply_bytes = MAX_REPLY_BYTES;
    server->log = o->log;
    return SHEAF_OK;
}

static sheaf_status open_network(sheaf__server *server, sheaf_error *err)
{
    uint32_t n = N_API_ROUTES + sheaf__n_page_routes;
    sheaf__http_route *routes = calloc(n, sizeof *routes);
    if (routes == NULL) return SHEAF_E_NO_MEMORY;
    memcpy(routes, api_routes, sizeof api_routes);
    memcpy(routes + N_API_ROUTES, sheaf__page_routes, sheaf__n_page_routes * sizeof *routes);
    sheaf__http_options o = server->options.http;
    o.routes = routes;
    o.n_routes = n;
    o.ctx = server;
    o.ready = is_ready;
    o.on_done = on_done;
    sheaf_status status = sheaf__http_open(&o, &server->http, err);
    free(routes);
    server->options.http = (sheaf__http_options){0}; /* the caller's, read by now */
    return status;
}

static void init_lock(sheaf__server *server)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&server->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&server->mutex, NULL);
}

sheaf_status sheaf__server_open(const sheaf__server_options *options, sheaf__server **out,
                                sheaf_error *err)
{
    sheaf__server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory for a server");
    init_lock(server);
    server->created = (int64_t)time(NULL);
    server->started_ns = sheaf__clock_ns();
    sheaf_status status = copy_options(server, options);
    if (status == SHEAF_OK) status = open_network(server, err);
    if (status != SHEAF_OK) {
        sheaf__server_close(server);
        return status;
    }
    *out = server;
    return SHEAF_OK;
}

/* ---- the engine's thread ------------------------------------------------------------------ */

/* Waits for a change, or a moment. Under the mutex. */
static void wait_a_moment(sheaf__server *server)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&server->changed, &server->mutex, &until);
}

static void *run_engine(void *arg)
{
    sheaf__server *server = arg;
    sheaf__engine_run(server->engine);
    pthread_mutex_lock(&server->mutex);
    server->engine_over = true;
    pthread_cond_broadcast(&server->changed);
    while (!server->closing) {
        pthread_mutex_unlock(&server->mutex);
        sheaf__engine_run(server->engine); /* jobs that were posted since */
        pthread_mutex_lock(&server->mutex);
        if (!server->closing) wait_a_moment(server);
    }
    pthread_mutex_unlock(&server->mutex);
    return NULL;
}

/* Publishes the engine, unless it is too late for one. Under the mutex. */
static sheaf_status start_engine(sheaf__server *server, sheaf__model *model,
                                 sheaf__engine *engine, sheaf_error *err)
{
    if (state_of(server) != SHEAF__SERVER_LOADING)
        return sheaf__error_set(err, SHEAF_E_CANCELLED, "the server was stopped while loading");
    server->model = model;
    server->engine = engine;
    int failed = pthread_create(&server->engine_thread, NULL, run_engine, server);
    if (failed != 0) {
        server->engine = NULL;
        return sheaf__error_set(err, SHEAF_E_IO, "the engine's thread cannot be started: %s",
                                strerror(failed));
    }
    server->engine_runs = true;
    atomic_store_explicit(&server->state, SHEAF__SERVER_READY, memory_order_release);
    return SHEAF_OK;
}

sheaf_status sheaf__server_serve(sheaf__server *server, sheaf__model *model, sheaf_error *err)
{
    sheaf__engine *engine = NULL;
    sheaf__engine_options o = server->options.engine;
    o.on_event = on_event;
    o.on_event_ctx = server;
    o.space = make_space;
    o.space_ctx = server;
    SHEAF__TRY(sheaf__engine_create(model, &o, &engine, err));
    pthread_mutex_lock(&server->mutex);
    sheaf_status status = start_engine(server, model, engine, err);
    pthread_mutex_unlock(&server->mutex);
    if (status != SHEAF_OK) sheaf__engine_destroy(engine);
    return status;
}

/* ---- ending ------------------------------------------------------------------------------- */

/* Raises the state to `state`, and turns new connections away. */
static void enter(sheaf__server *server, uint32_t state)
{
    pthread_mutex_lock(&server->mutex);
    if (state_of(server) < state)
        atomic_store_explicit(&server->state, state, memory_order_release);
    bool quiesce = !server->quiesced && server->http != NULL;
    server->quiesced = true;
    sheaf__engine *engine = server->engine;
    pthread_mutex_unlock(&server->mutex);
    if (engine != NULL && state == SHEAF__SERVER_STOPPED) sheaf__engine_stop(engine);
    if (engine != NULL && state == SHEAF__SERVER_DRAINING) sheaf__engine_drain(engine);
    if (quiesce) sheaf__http_quiesce(server->http);
}

void sheaf__server_drain(sheaf__server *server)
{
    enter(server, SHEAF__SERVER_DRAINING);
}

void sheaf__server_stop(sheaf__server *server)
{
    enter(server, SHEAF__SERVER_STOPPED);
}

/* Under the mutex. */
static bool has_ended(sheaf__server *server)
{
    sheaf__http_stats stats = {0};
    if (server->engine_runs && !server->engine_over) return false;
    sheaf__http_stats_read(server->http, &stats);
    return stats.exchanges == 0;
}

bool sheaf__server_wait(sheaf__server *server, uint64_t timeout_ms)
{
    uint64_t start = sheaf__clock_ns(), timeout_ns = timeout_ms * 1000000;
    pthread_mutex_lock(&server->mutex);
    bool ended = has_ended(server);
    while (!ended && sheaf__clock_ns() - start < timeout_ns) {
        wait_a_moment(server);
        ended = has_ended(server);
    }
    pthread_mutex_unlock(&server->mutex);
    return ended;
}

/* The engine's thread has told all that it had to, and ends. */
static void end_engine(sheaf__server *server)
{
    if (!server->engine_runs) return;
    pthread_mutex_lock(&server->mutex);
    server->closing = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
    pthread_join(server->engine_thread, NULL);
    sheaf__engine_destroy(server->engine);
}

void sheaf__server_close(sheaf__server *server)
{
    if (server == NULL) return;
    sheaf__server_stop(server);
    sheaf__http_close(server->http);
    end_engine(server);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->mutex);
    free((char *)server->options.model_path);
    free((char *)server->options.model_name);
    free(server);
}

sheaf__api_limits sheaf__server_limits(const sheaf__server *server)
{
    return (sheaf__api_limits){.model = server->options.model_name,
                               .vocab = server->model->config.vocab,
                               .ctx_size = server->model->options.ctx_size};
}
