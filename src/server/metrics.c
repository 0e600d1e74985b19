/* server/metrics.c - adding to counts and histograms; the bounds of their buckets. */
#include "server/metrics.h"

#define MS 1000000ull
#define S  1000000000ull

/* From a step of a small model to the longest that a client waits for. */
static const uint64_t waits[] = {
    1 * MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS, 1 * S,
    2 * S,  5 * S,  10 * S, 20 * S,  30 * S,  60 * S,  120 * S,  300 * S,  600 * S};

/* Between tokens: closer together where a reader feels the difference. */
static const uint64_t gaps[] = {1 * MS,   2 * MS,   5 * MS,   10 * MS,  15 * MS,
                                20 * MS,  30 * MS,  40 * MS,  50 * MS,  75 * MS,
                                100 * MS, 150 * MS, 200 * MS, 300 * MS, 500 * MS,
                                1 * S,    2 * S,    5 * S,    10 * S};

static const uint64_t lengths[] = {1,   2,    4,    8,    16,   32,    64,    128,   256,
                                   512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))
_Static_assert(COUNT(waits) <= SHEAF__MAX_BUCKETS, "a histogram has room for them");
_Static_assert(COUNT(gaps) <= SHEAF__MAX_BUCKETS, "a histogram has room for them");
_Static_assert(COUNT(lengths) <= SHEAF__MAX_BUCKETS, "a histogram has room for them");

const uint64_t *sheaf__metrics_time_bounds(uint32_t kind, uint32_t *n)
{
    const uint64_t *bounds = kind == SHEAF__TIME_NEXT_TOKEN ? gaps : waits;
    *n = bounds == gaps ? COUNT(gaps) : COUNT(waits);
    return bounds;
}

const uint64_t *sheaf__metrics_size_bounds(uint32_t kind, uint32_t *n)
{
    (void)kind; /* prompts and answers have the same */
    *n = COUNT(lengths);
    return lengths;
}

static void add(_Atomic uint64_t *count, uint64_t n)
{
    atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

static void observe(sheaf__histogram *h, const uint64_t *bounds, uint32_t n, uint64_t value)
{
    uint32_t i = 0;
    while (i < n && value > bounds[i]) i++;
    add(&h->counts[i == n ? SHEAF__MAX_BUCKETS : i], 1);
    add(&h->sum, value);
}

void sheaf__metrics_time(sheaf__metrics *m, uint32_t kind, uint64_t ns)
{
    uint32_t n;
    const uint64_t *bounds = sheaf__metrics_time_bounds(kind, &n);
    observe(&m->times[kind], bounds, n, ns);
}

void sheaf__metrics_size(sheaf__metrics *m, uint32_t kind, uint64_t n_tokens)
{
    uint32_t n;
    const uint64_t *bounds = sheaf__metrics_size_bounds(kind, &n);
    observe(&m->sizes[kind], bounds, n, n_tokens);
}

void sheaf__metrics_reply(sheaf__metrics *m, uint32_t endpoint, uint32_t status)
{
    uint32_t hundreds = status / 100;
    if (hundreds > 5 || status == 499) hundreds = 0;
    add(&m->replies[endpoint < SHEAF__ENDPOINT_KINDS ? endpoint : SHEAF__ENDPOINT_OTHER]
                   [hundreds],
        1);
}
