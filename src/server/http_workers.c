/* server/http_workers.c - the threads that run handlers: they read JSON and make tokens, which takes too
 * long for the network's thread. */
#include <stdlib.h>

#include "server/http_private.h"

/* The next exchange to handle; null: the server closes and none is left. */
static sheaf__exchange *take(sheaf__http *http, bool *closing)
{
    pthread_mutex_lock(&http->lock);
    while (http->jobs == NULL && !http->closing) pthread_cond_wait(&http->changed, &http->lock);
    sheaf__exchange *x = http->jobs;
    if (x != NULL) {
        http->jobs = x->next_job;
        if (http->jobs == NULL) http->jobs_end = &http->jobs;
    }
    *closing = http->closing;
    pthread_mutex_unlock(&http->lock);
    return x;
}

static void handle(sheaf__exchange *x, bool closing)
{
    sheaf__api_error e;
    pthread_mutex_lock(&x->lock);
    bool left = x->left;
    pthread_mutex_unlock(&x->lock);
    if (closing) {
        sheaf__api_error_set(&e, 503, NULL, NULL, "The server is shutting down.");
        sheaf__exchange_fail(x, &e);
    } else if (left)
        sheaf__exchange_drop(x);
    else
        x->route->handler(x->http->options.ctx, x);
}

static void *work(void *http)
{
    bool closing = false;
    for (sheaf__exchange *x; (x = take(http, &closing)) != NULL;) handle(x, closing);
    return NULL;
}

sheaf_status sheaf__http_workers_start(sheaf__http *http)
{
    uint32_t n = http->options.n_workers;
    http->workers = calloc(n, sizeof *http->workers);
    if (http->workers == NULL) return SHEAF_E_NO_MEMORY;
    while (http->n_workers < n) {
        if (pthread_create(&http->workers[http->n_workers], NULL, work, http) != 0)
            return SHEAF_E_IO;
        http->n_workers++;
    }
    return SHEAF_OK;
}

void sheaf__http_workers_stop(sheaf__http *http)
{
    for (uint32_t i = 0; i < http->n_workers; i++) pthread_join(http->workers[i], NULL);
    free(http->workers);
    http->workers = NULL;
    http->n_workers = 0;
}

void sheaf__http_run_later(sheaf__exchange *x)
{
    sheaf__http *http = x->http;
    x->next_job = NULL;
    pthread_mutex_lock(&http->lock);
    bool closing = http->closing; /* the workers end, or have ended: nobody would take it */
    if (!closing) {
        *http->jobs_end = x;
        http->jobs_end = &x->next_job;
        pthread_cond_broadcast(&http->changed);
    }
    pthread_mutex_unlock(&http->lock);
    if (closing) handle(x, true);
}
