/* server/http.c - a server opened and closed: its options, its threads, libmicrohttpd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/status.h"
#include "server/http_private.h"

/* ---- options ----------------------------------------------------------------------------- */

static void set_defaults(sheaf__http_options *o)
{
    if (o->host == NULL) o->host = "127.0.0.1";
    if (o->max_body_bytes == 0) o->max_body_bytes = 16u << 20;
    if (o->max_reply_bytes == 0) o->max_reply_bytes = 256u << 20;
    if (o->max_head_bytes == 0) o->max_head_bytes = 32u << 10;
    if (o->max_connections == 0) o->max_connections = 512;
    if (o->timeout_s == 0) o->timeout_s = 30;
    if (o->upload_timeout_s == 0) o->upload_timeout_s = 120;
    if (o->keepalive_s == 0) o->keepalive_s = 5;
    if (o->n_workers == 0) o->n_workers = 2;
}

/* Takes copies of what is kept; of the keys only their digests. */
static sheaf_status copy_options(sheaf__http *http, const sheaf__http_options *options)
{
    sheaf__http_options *o = &http->options;
    *o = *options;
    o->api_keys = NULL;
    o->origins = NULL;
    o->routes = NULL;
    set_defaults(o);
    http->key_digests = calloc(o->n_api_keys + 1u, sizeof *http->key_digests);
    char **origins = calloc(o->n_origins + 1u, sizeof *origins);
    sheaf__http_route *routes = calloc(o->n_routes + 1u, sizeof *routes);
    o->origins = (const char *const *)origins;
    o->routes = routes;
    o->host = strdup(o->host);
    if (http->key_digests == NULL || origins == NULL || routes == NULL || o->host == NULL)
        return SHEAF_E_NO_MEMORY;
    for (uint32_t i = 0; i < o->n_origins; i++)
        if ((origins[i] = strdup(options->origins[i])) == NULL) return SHEAF_E_NO_MEMORY;
    if (o->n_routes != 0) memcpy(routes, options->routes, o->n_routes * sizeof *routes);
    for (uint32_t i = 0; i < o->n_api_keys; i++) {
        const char *key = options->api_keys[i];
        SHEAF__TRY(sheaf__sha256_of(key, strlen(key), http->key_digests[i]));
    }
    return SHEAF_OK;
}

static void free_options(sheaf__http *http)
{
    sheaf__http_options *o = &http->options;
    for (uint32_t i = 0; o->origins != NULL && i < o->n_origins; i++)
        free((void *)(uintptr_t)o->origins[i]);
    free((void *)(uintptr_t)o->origins);
    free((void *)(uintptr_t)o->routes);
    free((void *)(uintptr_t)o->host);
    free(http->key_digests);
}

/* ---- libmicrohttpd ----------------------------------------------------------------------- */

/* What it has to say is kept while the server opens; later it is of clients' mistakes. */
static void mhd_log(void *ctx, const char *format, va_list args)
{
    sheaf__http *http = ctx;
    if (!http->thread_runs) vsnprintf(http->mhd_said, sizeof http->mhd_said, format, args);
}

/* Of a path, or of a name or value in a query. What has a zero in it stays as it came: it is not what
 * stands before the zero. */
static size_t unescape(void *ctx, struct MHD_Connection *mhd, char *text)
{
    (void)ctx, (void)mhd;
    return strstr(text, "%00") != NULL ? strlen(text) : MHD_http_unescape(text);
}

static sheaf_status start_mhd(sheaf__http *http, sheaf_error *err)
{
    const sheaf__http_options *o = &http->options;
    /* room for a head and what is made of it, twice over: so that a head somewhat too long is refused in
     * the words of ours, and only one beyond that in libmicrohttpd's */
    size_t memory = (size_t)o->max_head_bytes * 2 + 16384;
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        sheaf__http_access, http, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, http,
        MHD_OPTION_LISTEN_SOCKET, http->listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned int)o->max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned int)o->timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory,
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)8192, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_COMPLETED, sheaf__http_completed, http, MHD_OPTION_NOTIFY_CONNECTION,
        sheaf__http_connected, http, MHD_OPTION_URI_LOG_CALLBACK, sheaf__http_request_line,
        http, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
    if (http->daemon == NULL)
        return sheaf__error_set(err, SHEAF_E_IO, "libmicrohttpd does not start: %s",
                                http->mhd_said);
    return SHEAF_OK;
}

/* Our epoll set: libmicrohttpd's, and the eventfd; connections come later. */
static sheaf_status open_events(sheaf__http *http, sheaf_error *err)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct epoll_event mhd = {.events = EPOLLIN, .data.ptr = http};
    struct epoll_event poke = {.events = EPOLLIN, .data.ptr = &http->event_fd};
    http->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    http->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (info == NULL || http->epoll_fd < 0 || http->event_fd < 0 ||
        epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, info->epoll_fd, &mhd) != 0 ||
        epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, http->event_fd, &poke) != 0)
        return sheaf__error_set(err, SHEAF_E_IO, "no event descriptors for the HTTP server");
    return SHEAF_OK;
}

/* ---- life -------------------------------------------------------------------------------- */

static sheaf_status start(sheaf__http *http, const sheaf__http_options *options,
                          sheaf_error *err)
{
    sheaf_status st = copy_options(http, options);
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "no memory for the HTTP server's options");
    if (getrandom(&http->id_seed, sizeof http->id_seed, 0) != sizeof http->id_seed)
        return sheaf__error_set(err, SHEAF_E_IO, "the system has no random numbers");
    SHEAF__TRY(sheaf__http_listen(&http->options, &http->listen_fd, &http->port,
                                  &http->loopback, err));
    SHEAF__TRY(start_mhd(http, err));
    SHEAF__TRY(open_events(http, err));
    st = sheaf__http_workers_start(http);
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "cannot start %u workers", http->options.n_workers);
    http->thread_runs = true;
    if (pthread_create(&http->thread, NULL, sheaf__http_network, http) != 0) {
        http->thread_runs = false;
        return sheaf__error_set(err, SHEAF_E_IO, "cannot start the network's thread");
    }
    return SHEAF_OK;
}

sheaf_status sheaf__http_open(const sheaf__http_options *options, sheaf__http **out,
                              sheaf_error *err)
{
    sheaf__http *http = calloc(1, sizeof *http);
    if (http == NULL) return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory");
    http->listen_fd = http->epoll_fd = http->event_fd = -1;
    http->jobs_end = &http->jobs;
    if (pthread_mutex_init(&http->lock, NULL) != 0 ||
        pthread_cond_init(&http->changed, NULL) != 0) {
        free(http);
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory");
    }
    sheaf_status st = start(http, options, err);
    if (st != SHEAF_OK) {
        sheaf__http_close(http);
        return st;
    }
    *out = http;
    return SHEAF_OK;
}

uint16_t sheaf__http_port(const sheaf__http *http)
{
    return http->port;
}

void sheaf__http_quiesce(sheaf__http *http)
{
    bool inside = pthread_equal(pthread_self(), http->thread);
    pthread_mutex_lock(&http->lock);
    http->quiesce = true;
    sheaf__http_poke(http);
    while (!inside && !http->quiet) pthread_cond_wait(&http->changed, &http->lock);
    pthread_mutex_unlock(&http->lock);
}

/* Ends the threads: all that is begun is ended first. */
static void stop_threads(sheaf__http *http)
{
    pthread_mutex_lock(&http->lock);
    http->closing = true;
    http->quiesce = true;
    pthread_cond_broadcast(&http->changed);
    pthread_mutex_unlock(&http->lock);
    if (http->event_fd >= 0) sheaf__http_poke(http);
    sheaf__http_workers_stop(http);
    if (!http->thread_runs) return;
    pthread_mutex_lock(&http->lock);
    while (http->n_exchanges != 0) pthread_cond_wait(&http->changed, &http->lock);
    http->stop = true;
    pthread_mutex_unlock(&http->lock);
    sheaf__http_poke(http);
    pthread_join(http->thread, NULL);
}

void sheaf__http_close(sheaf__http *http)
{
    if (http == NULL) return;
    stop_threads(http);
    if (http->daemon != NULL)
        MHD_stop_daemon(http->daemon); /* closes its listening socket */
    else if (http->listen_fd >= 0)
        close(http->listen_fd);
    if (http->event_fd >= 0) close(http->event_fd);
    if (http->epoll_fd >= 0) close(http->epoll_fd);
    free_options(http);
    pthread_cond_destroy(&http->changed);
    pthread_mutex_destroy(&http->lock);
    free(http);
}

void sheaf__http_stats_read(sheaf__http *http, sheaf__http_stats *out)
{
    pthread_mutex_lock(&http->lock);
    *out = (sheaf__http_stats){.connections = http->n_conns,
                               .exchanges = http->n_exchanges,
                               .queued_bytes = atomic_load(&http->queued_bytes)};
    pthread_mutex_unlock(&http->lock);
}
