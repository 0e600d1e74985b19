/* server/figures.h - every number that the server tells about itself: one table.
 *
 * Owns: what each is called in /v1/cache/stats and in /metrics, its unit, its sentence, where it is
 * found; a snapshot of all of them; both texts. Does not own: counting, sockets. docs/statistics.md
 * has the table's lines, compared by a test.
 *
 *     sheaf__figures f;                           // plain: whoever wants to may fill one in
 *     sheaf__figures_read(server, &f);            // any thread, waits for nobody
 *     st = sheaf__figures_json(&f, &text);        // {"enabled":true,"block_size":32, ...}
 *     st = sheaf__figures_prometheus(&f, &text);  // text format 0.0.4
 *
 * Whatever does not exist (the pool of the dense backend, the engine while the model is loaded) is
 * absent.
 */
#ifndef SHEAF_SERVER_FIGURES_H
#define SHEAF_SERVER_FIGURES_H

#include "server/server.h"
#include "sheaf/ledger.h"

/* What must be there for a figure to be told. */
enum {
    SHEAF__HAS_MODEL = 1 << 0,
    SHEAF__HAS_POOL = 1 << 1, /* also the prefix cache on it */
    SHEAF__HAS_DENSE = 1 << 2,
    SHEAF__HAS_ENGINE = 1 << 3,
    SHEAF__HAS_HTTP = 1 << 4,
    SHEAF__HAS_PROCESS = 1 << 5, /* /proc/self/status could be read */
    SHEAF__HAS_REFUSAL = 1 << 6, /* there has been one */
    SHEAF__HAS_START = 1 << 7
};

/* A histogram as it was read. */
typedef struct sheaf__tally {
    uint64_t counts[SHEAF__MAX_BUCKETS + 1];
    uint64_t sum;
} sheaf__tally;

/* All of one moment, as far as each source gives it: the pool's numbers agree with each other, so do
 * the prefix cache's, and the engine's. */
typedef struct sheaf__figures {
    uint32_t has; /* SHEAF__HAS_... */

    const char *version, *model, *backend;
    uint64_t enabled; /* the prompt cache */
    uint64_t uptime_ns;
    uint64_t n_parameters, weights_bytes_mapped, weights_bytes_resident;
    uint64_t block_tokens, block_bytes;
    uint64_t resident_bytes, resident_peak_bytes;

    sheaf_pool_stats pool;
    sheaf_prefix_stats cache;
    sheaf__engine_stats engine;
    sheaf__http_stats http;

    uint64_t replies[SHEAF__ENDPOINT_KINDS][6];
    uint64_t finishes[5];
    uint64_t refused_queue, prompt_tokens, cached_tokens, answer_tokens;
    sheaf__tally times[SHEAF__TIME_KINDS];
    sheaf__tally sizes[SHEAF__SIZE_KINDS];

    /* made of the others by sheaf__figures_derive */
    uint64_t evictions_lru;
    double hit_rate, token_hit_rate, fragmentation, slab_occupancy;
    const char *last_refusal;
} sheaf__figures;

/* ---- the table --------------------------------------------------------------------------- */

enum {
    SHEAF__FIGURE_GAUGE = 0,
    SHEAF__FIGURE_COUNTER = 1, /* only goes up */
    SHEAF__FIGURE_HISTOGRAM = 2,
    SHEAF__FIGURE_INFO = 3 /* a text: a label of its metric, which is 1 */
};

/* How a value lies in sheaf__figures. */
enum {
    SHEAF__VALUE_U64 = 0,
    SHEAF__VALUE_NS = 1,   /* uint64_t, told in seconds */
    SHEAF__VALUE_REAL = 2, /* double */
    SHEAF__VALUE_FLAG = 3, /* uint64_t */
    SHEAF__VALUE_TEXT = 4  /* const char * */
};

/* What an array of values goes by. */
typedef struct sheaf__dimension {
    const char *label;
    const char *const *values; /* [n] */
    uint32_t n;
} sheaf__dimension;

typedef struct sheaf__figure {
    const char *field;  /* of /v1/cache/stats; "a.b": b in the object a. Null: not there */
    const char *metric; /* of /metrics; null: not there */
    const char *unit;
    const char *help;              /* a sentence: what it is, and when it changes */
    uint32_t type;                 /* SHEAF__FIGURE_... */
    uint32_t kind;                 /* SHEAF__VALUE_...; of a histogram's sum */
    uint32_t needs;                /* SHEAF__HAS_...; 0: nothing */
    size_t offset;                 /* in sheaf__figures */
    const sheaf__dimension *by[2]; /* null: a value alone. Else [by[0]->n][by[1]->n] of them */
    const uint64_t *(*bounds)(uint32_t kind, uint32_t *n); /* of a histogram */
    uint32_t bounds_kind;
} sheaf__figure;

typedef struct sheaf__figure_section {
    const char *title; /* as in docs/statistics.md */
    const sheaf__figure *figures;
    uint32_t n;
} sheaf__figure_section;
extern const sheaf__figure_section sheaf__figure_sections[]; /* [sheaf__n_figure_sections] */
extern const uint32_t sheaf__n_figure_sections;

/* Whether the figure is told now. */
bool sheaf__figure_there(const sheaf__figure *figure, const sheaf__figures *f);

/* Where its values lie: uint64_t, or as its kind says. */
const void *sheaf__figure_at(const sheaf__figure *figure, const sheaf__figures *f);

/* ---- the snapshot, and the texts --------------------------------------------------------- */

/* Sets what is made of other figures. */
void sheaf__figures_derive(sheaf__figures *f);

/* Any thread; `server` in any state. */
void sheaf__figures_read(sheaf__server *server, sheaf__figures *f);

/* Each appends. SHEAF_E_NO_MEMORY: nothing was, or a part of it. */
sheaf_status sheaf__figures_json(const sheaf__figures *f, sheaf__text *out);
sheaf_status sheaf__figures_prometheus(const sheaf__figures *f, sheaf__text *out);

#endif
