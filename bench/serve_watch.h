/* bench/serve_watch.h - the memory that a server of ours says it has, read again and again.
 *
 *     serve_watch w;
 *     serve_watch_begin(&w, &target);
 *     ...                                    // load
 *     serve_watch_end(&w);                   // waits until the server is idle
 *     w.reserved, w.in_use, w.computed, w.reused;
 */
#ifndef SHEAF_BENCH_SERVE_WATCH_H
#define SHEAF_BENCH_SERVE_WATCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve_client.h"

typedef struct serve_watch {
    const serve_target *target;
    pthread_t thread;
    bool runs;
    atomic_bool stop;
    bool known;                /* the server has such figures; else the following are 0 */
    uint64_t reserved, in_use; /* bytes for K and V, the most that was seen */
    uint64_t computed, reused; /* tokens, in between */
} serve_watch;

void serve_watch_begin(serve_watch *w, const serve_target *target);
void serve_watch_end(serve_watch *w);

#endif
