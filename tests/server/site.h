/* tests/server/site.h - a small HTTP server to test: its handlers, and what is seen of them.
 *
 *   GET  /hello    "hello\n", by a worker          GET  /quick    the same, on the network's thread
 *   POST /echo     the body                        GET  /query    the value of ?q=
 *   POST /fail     a 429                           GET  /static   SITE_STATIC_BYTES of bytes
 *   GET  /stream   ?n=  &ms= : a stream of n pieces "piece 0\n" ..., with a pause between them
 *   POST /hold     is kept for site_release        POST /hang     a stream begun and kept
 *   POST /block    keeps its worker until one may go on; then "hello\n"
 *   GET  /big      writes a stream until it may not any more
 *   GET  /open     needs no key
 */
#ifndef SHEAF_TESTS_SITE_H
#define SHEAF_TESTS_SITE_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "server/http.h"
#include "web.h"

#define SITE_STATIC_BYTES (8u << 20)
#define SITE_MAX_HELD     4096

typedef struct site {
    sheaf__http *http;
    uint16_t port;
    _Atomic uint32_t handled; /* calls of handlers */
    _Atomic uint32_t left;    /* calls of on_left */
    _Atomic uint32_t done, done_left, done_499;
    _Atomic uint32_t last_status;
    _Atomic uint64_t most_queued; /* bytes, seen by /big */
    _Atomic bool not_ready;
    pthread_mutex_t lock; /* of what is held, for whoever changes it */
    _Atomic uint32_t n_held;
    sheaf__exchange *held[SITE_MAX_HELD];
    bool begun[SITE_MAX_HELD];  /* held[i]: its stream */
    sem_t open;                 /* for /block: one goes on for each post */
    _Atomic uint32_t n_blocked; /* that have begun to wait for it, ever */
    char last_id[80];
} site;

/* Starts it: routes, ctx, on_done and any_port of `options` are set here. */
void site_open(site *s, sheaf__http_options *options);
void site_close(site *s); /* gives back what is held, asserts that nothing is left */

/* Gives back what is held: with a reply, or the stream's end. */
void site_release(site *s);

bool site_is_idle(void *site);        /* no exchange is there */
bool site_is_released(void *site);    /* the same; what is held is given back first */
bool site_holds(site *s, uint32_t n); /* waits until n are held */
bool site_left(site *s, uint32_t n);  /* waits until n have left */

#endif
