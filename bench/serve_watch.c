/* bench/serve_watch.c - the memory that a server of ours says it has, read again and again. */
#include "serve_watch.h"

#include <unistd.h>

#define STATS       "/v1/cache/stats"
#define INTERVAL_US 10000 /* reading costs the engine nothing, and some hundredths of a core */
#define IDLE_TRIES  500

/* Requests of the server that have not ended. */
static uint64_t look(serve_watch *w, json_t *stats)
{
    uint64_t reserved = 0, in_use = 0, running = 0, waiting = 0;
    if (serve_number(stats, "paged_bytes_reserved", &reserved))
        serve_number(stats, "paged_bytes_in_use", &in_use);
    else if (serve_number(stats, "dense_bytes", &reserved))
        in_use = reserved; /* a buffer is a request's, whole */
    if (reserved > w->reserved) w->reserved = reserved;
    if (in_use > w->in_use) w->in_use = in_use;
    serve_number(stats, "requests_running", &running);
    serve_number(stats, "requests_waiting", &waiting);
    return running + waiting;
}

static void *watch(void *arg)
{
    serve_watch *w = arg;
    while (!atomic_load_explicit(&w->stop, memory_order_acquire)) {
        json_t *stats = serve_get(w->target, STATS);
        look(w, stats);
        json_decref(stats);
        usleep(INTERVAL_US);
    }
    return NULL;
}

void serve_watch_begin(serve_watch *w, const serve_target *target)
{
    *w = (serve_watch){.target = target};
    json_t *stats = serve_get(target, STATS);
    w->known = serve_number(stats, "tokens_computed", &w->computed) &&
               serve_number(stats, "tokens_reused", &w->reused);
    json_decref(stats);
    w->runs = w->known && pthread_create(&w->thread, NULL, watch, w) == 0;
}

void serve_watch_end(serve_watch *w)
{
    if (!w->known) return;
    atomic_store_explicit(&w->stop, true, memory_order_release);
    if (w->runs) pthread_join(w->thread, NULL);
    for (int i = 0; i < IDLE_TRIES; i++) { /* figures are those after a step */
        uint64_t computed = w->computed, reused = w->reused;
        json_t *stats = serve_get(w->target, STATS);
        bool idle = stats != NULL && look(w, stats) == 0;
        serve_number(stats, "tokens_computed", &computed);
        serve_number(stats, "tokens_reused", &reused);
        json_decref(stats);
        if (idle || i + 1 == IDLE_TRIES) {
            w->computed = computed - w->computed;
            w->reused = reused - w->reused;
            return;
        }
        usleep(INTERVAL_US);
    }
}
