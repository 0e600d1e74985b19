/* bench/kv_store.h - K and V of many sequences in memory mapped as slabs are, and attention over them.
 *
 * A store lies as a pool's blocks do: one span a block, [layer][K tile, V tile], heads outermost in a
 * tile, tiles rounded to 64 bytes. Only the tables say which rows are whose, so one store is read in
 * many orders. Two other layouts stand beside it: one contiguous buffer a sequence and layer
 * ([head][token][dim], dense), and tokens outermost in a tile (codecs of plain numbers only).
 *
 * Layers are visited in turn, as a model does, over a store that no cache holds: kv_layers() tells how
 * many that takes.
 */
#ifndef SHEAF_BENCH_KV_STORE_H
#define SHEAF_BENCH_KV_STORE_H

#include "bench.h"
#include "sheaf/attn.h"

/* Which rows the sequences have. */
enum {
    KV_IN_ORDER,    /* one sequence after another, ascending */
    KV_SHUFFLED,    /* dealt from one shuffled deck */
    KV_INTERLEAVED, /* in turns, as sequences get them that grow together */
    KV_TOKEN_MAJOR, /* shuffled; a tile is [token][head][dim], seen as blocks of one token */
    KV_DENSE        /* no rows: a buffer a sequence */
};

typedef struct kv_shape {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t dim;
    uint32_t codec_k;
    uint32_t codec_v;
    uint32_t block_tokens;
    uint32_t n_items;
    uint32_t n_tokens; /* of each */
    uint32_t n_shared; /* of these, the first ones, in the same blocks for all; not dense */
    uint32_t n_layers;
} kv_shape;

typedef struct kv_store {
    kv_shape shape;
    int order;
    unsigned char *memory;
    uint64_t bytes;       /* of K and V, each once, padding included */
    uint64_t layer_bytes; /* of these, in one layer */
    uint64_t k_segment, v_segment;
    uint64_t k_tile, v_tile;
    uint32_t **rows;      /* [n_items], of blocks or tokens; null where dense */
    sheaf_kv_view *views; /* [n_layers, n_items] */
} kv_store;

/* Fills it with encoded normal numbers. False: no memory. Close it in any case. */
bool kv_store_open(kv_store *s, const kv_shape *shape, int order);
void kv_store_close(kv_store *s);

/* Other rows for the same numbers; from and to any order but KV_DENSE. */
void kv_store_deal(kv_store *s, int order);

/* So many layers that they take `bytes`, at least one. */
uint32_t kv_layers(const kv_shape *shape, uint64_t bytes);

/* Attention of every sequence's last n_queries positions over a store. */
typedef struct kv_work {
    const kv_store *store;
    sheaf_attn_plan *plan;
    sheaf_attn_report report;
    uint32_t n_queries;
    uint32_t path;
    float *q;
    float *out;
    bool failed;
} kv_work;

/* path: SHEAF_ATTN_... False: no memory, or the plan was refused. Close it in any case. */
bool kv_work_open(kv_work *w, bench *b, const kv_store *store, uint32_t n_queries,
                  uint32_t path);
void kv_work_close(kv_work *w);

/* All layers once; `arg` is a kv_work. */
void kv_work_run(void *arg);

/* Whether all runs went well, and by the path that was asked for. */
bool kv_work_done(const kv_work *w);

/* Operations of one run: 4 a query head, visible position and element. */
double kv_work_flop(const kv_work *w);

#endif
