/* tests/model/rig.h - a model, a cache backend and a forward pass, put together for tests.
 *
 * All failures are failed assertions of the running case. Options that are zero mean: one
 * thread, the best instruction set, fused attention, paged, f32, the pool's default block and
 * slab, a budget of 1 GiB.
 */
#ifndef SHEAF_TESTS_RIG_H
#define SHEAF_TESTS_RIG_H

#include "model/forward.h"

typedef struct rig_options {
    const char *dir;
    uint32_t n_threads;
    uint32_t isa;
    uint32_t attn_path;
    uint32_t backend; /* SHEAF__KV_... */
    uint32_t codec_k, codec_v;
    uint32_t block_tokens;
    uint32_t slab_blocks;
    uint64_t budget_bytes; /* of the pool */
    const sheaf_allocator *allocator;
} rig_options;

typedef struct rig {
    rig_options options;
    sheaf__config config;
    sheaf__weights *weights;
    sheaf_threads *threads;
    sheaf__memory memory;
    sheaf_layer *layers;
    sheaf_pool *pool; /* null with the dense backend */
    sheaf__forward *forward;
} rig;

void rig_open(rig *r, const rig_options *options);
void rig_close(rig *r);

sheaf__kv rig_kv(rig *r);

/* Runs `tokens` in chunks (0: all at once) and commits them. logits: [n, vocab] of every
 * position, or null. */
void rig_feed(rig *r, sheaf__kv *kv, const int32_t *tokens, uint32_t n, uint32_t chunk,
              float *logits);

/* The same in chunks of 512; only the last position's logits are computed: [vocab]. */
void rig_prefill(rig *r, sheaf__kv *kv, const int32_t *tokens, uint32_t n, float *logits);

/* Greedy continuation from `logits` ([vocab], overwritten): n tokens, without regard to eos. */
void rig_greedy(rig *r, sheaf__kv *kv, float *logits, uint32_t n, int32_t *out);

int32_t rig_argmax(const float *x, uint32_t n);

/* Norm of the difference over the norm of `b`. */
double rig_error(const float *a, const float *b, uint32_t n);

/* ---- reference files --------------------------------------------------------------------- */

typedef struct rig_ids {
    int32_t *data;
    uint32_t n;
} rig_ids;

/* The ids of the prompt number `index`: of DIR/golden.json (its "prompts"), or where that does
 * not exist of DIR/golden.jsonl (a prompt a line). At most `limit`; free with free(data). */
rig_ids rig_prompt(const char *dir, uint32_t index, uint32_t limit);

#endif
