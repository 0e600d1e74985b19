/* bench/prefix_rig.h - a pool with a prefix cache, and sequences of random tokens for it.
 *
 * Blocks are as large as the layout asks; what they hold is never looked at, but by what moves them.
 * Whatever fails ends the program with a sentence: a figure of a bench that failed is none.
 */
#ifndef SHEAF_BENCH_PREFIX_RIG_H
#define SHEAF_BENCH_PREFIX_RIG_H

#include "bench.h"
#include "sheaf/ledger.h"
#include "sheaf/rows.h"

#define RIG_BLOCK_TOKENS 32

typedef struct rig {
    sheaf_pool *pool;
    sheaf_prefix *cache;
    sheaf_key space;
    uint64_t block_bytes;
    uint64_t slab_bytes;
    uint32_t n_layers;
    sheaf_kv_source source; /* numbers for up to RIG_CHUNK positions */
    unsigned char *numbers;
    uint64_t random; /* state */
} rig;

/* Processor time of this thread: what computes, and waits for nothing, is timed with it, so that others
 * on the machine do not count. */
double rig_cpu_seconds(void);

/* Ends the program unless the status is SHEAF_OK. */
void rig_must(sheaf_status status, const char *what);

/* layer: one of n_layers equal ones. slab_blocks: 0 for the pool's own choice. slack_slabs: kept when
 * they fall empty. */
void rig_open(rig *r, const sheaf_layer *layer, uint32_t n_layers, uint64_t budget_bytes,
              uint32_t slab_blocks, uint32_t slack_slabs, uint64_t seed);
void rig_close(rig *r);

/* The next random number; token ids; an order of 0 to n - 1. */
uint64_t rig_random(rig *r);
void rig_tokens(rig *r, int32_t *tokens, uint32_t n);
void rig_shuffle(rig *r, uint32_t *order, uint32_t n);

/* Adds committed positions to a sequence, a new one where *seq is null. */
void rig_append(rig *r, sheaf_sequence **seq, const int32_t *tokens, uint32_t n);

sheaf_prompt rig_prompt(const rig *r, const int32_t *tokens, uint32_t n);

/* Publishes all that the sequence has. */
void rig_publish(rig *r, sheaf_sequence *seq);

/* Everything leaves the cache. */
void rig_reset(rig *r);

/* ---- bench/prefix_move.c: what moves blocks ------------------------------------------------- */

void bench_wire_rows(bench *b, uint64_t seed, const char *folder);
void bench_churn_rows(bench *b, uint64_t seed);

#endif
