/* server/metrics.h - counts and histograms of requests, kept for /metrics and /v1/cache/stats.
 *
 * Owns: numbers that engine and pool do not have: requests by endpoint and status, latencies. Any thread
 * adds, without a lock; who reads sees each number whole, not all of one moment.
 */
#ifndef SHEAF_SERVER_METRICS_H
#define SHEAF_SERVER_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    SHEAF__TIME_QUEUE = 0,       /* from submission to admission */
    SHEAF__TIME_FIRST_TOKEN = 1, /* from submission to the first token of the first choice */
    SHEAF__TIME_NEXT_TOKEN = 2,  /* between tokens of one choice */
    SHEAF__TIME_REQUEST = 3,     /* from submission to the end of the last choice */
    SHEAF__TIME_KINDS = 4
};
enum {
    SHEAF__SIZE_PROMPT = 0, /* tokens of a prompt */
    SHEAF__SIZE_ANSWER = 1, /* tokens of all its answers */
    SHEAF__SIZE_KINDS = 2
};
enum {
    SHEAF__ENDPOINT_CHAT = 0,
    SHEAF__ENDPOINT_COMPLETION = 1,
    SHEAF__ENDPOINT_PRELOAD = 2,
    SHEAF__ENDPOINT_OTHER = 3,
    SHEAF__ENDPOINT_KINDS = 4
};

#define SHEAF__MAX_BUCKETS 24

/* counts[i]: values at most bounds[i] and beyond bounds[i - 1];
 * counts[SHEAF__MAX_BUCKETS]: all others. */
typedef struct sheaf__histogram {
    _Atomic uint64_t counts[SHEAF__MAX_BUCKETS + 1];
    _Atomic uint64_t sum; /* nanoseconds, or tokens */
} sheaf__histogram;

/* All zero at first. */
typedef struct sheaf__metrics {
    sheaf__histogram times[SHEAF__TIME_KINDS];
    sheaf__histogram sizes[SHEAF__SIZE_KINDS];
    _Atomic uint64_t
        replies[SHEAF__ENDPOINT_KINDS][6]; /* by the hundreds of the status; [0]: the client
                                                           left before its end */
    _Atomic uint64_t finishes[5];          /* choices, by SHEAF__FINISH_... */
    _Atomic uint64_t refused_queue;        /* requests, because the queue was full */
    _Atomic uint64_t prompt_tokens, cached_tokens,
        answer_tokens; /* of requests that ended well */
} sheaf__metrics;

void sheaf__metrics_time(sheaf__metrics *m, uint32_t kind, uint64_t ns);
void sheaf__metrics_size(sheaf__metrics *m, uint32_t kind, uint64_t n);
void sheaf__metrics_reply(sheaf__metrics *m, uint32_t endpoint, uint32_t status);

/* The bounds of a kind, ascending: *n of them, in nanoseconds or tokens. */
const uint64_t *sheaf__metrics_time_bounds(uint32_t kind, uint32_t *n);
const uint64_t *sheaf__metrics_size_bounds(uint32_t kind, uint32_t *n);

#endif
