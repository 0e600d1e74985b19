/* sheaf/attn.h - what blocks answer a query, on the CPU.
 *
 * Owns: plans and the kernels behind them. Does not own: sequences, blocks, eviction; it reads
 * plain views (sheaf/view.h), which the caller keeps valid and held while a call runs.
 *
 *     sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
 *     o.n_q_heads = 32, o.n_kv_heads = 8, o.key_dim = o.value_dim = 128;
 *     sheaf_attn_plan *plan = NULL;
 *     st = sheaf_attn_plan_create(&o, threads, &plan);
 *     st = sheaf_attn_plan_views(plan, items, views, n_items);          // once a step
 *     for (layer ...) st = sheaf_attn_run(plan, views, q, out, NULL);   // once a layer
 *     sheaf_attn_plan_destroy(plan);
 *
 * Order of the arithmetic (docs/adr/0003): the result for a query is a function of the query, the
 * keys and values it sees and their absolute positions, to the bit: not of the batch, the chunk, the
 * rows, the threads, the instruction set or the path.
 *
 *  - score: 16 lanes along the key dimension, element d in lane d mod 16: lane = fma(q, k, lane) from
 *    +0 in ascending d, the last step padded with (+0, +0); lanes summed by the tree (i, i+8) (i, i+4)
 *    (i, i+2) (i, i+1); times scale; soft cap c: c * tanh(s / c). Raw K and V are widened exactly
 *  - score with quantized keys (sheaf/codec.h): the query q' is the query, for turbo4 rotated as the
 *    keys are; its unit is max|q'| / 32767, its levels are q' / unit rounded to nearest even, within
 *    +-32767 (all 0 where the unit is 0); the products of its levels and the key's are summed
 *    exactly; ((float)sum * the key's scale) * (unit * scale); soft cap
 *  - split: 256 absolute positions: exact maximum m of what is seen, p = exp(s - m); denominator l:
 *    16 lanes, position mod 16, plain sums in ascending order, the same tree; output o: one
 *    fma(p, v, o) from +0 over ascending positions. What is not seen is skipped
 *  - output with quantized values: fma(p * the value's scale, (float)level, o) instead; for turbo4 it
 *    stays rotated until the end
 *  - merge, left to right: m = max(m1, m2), a = exp(each - m), l = fma(l2, a2, l1 * a1),
 *    o = fma(o2, a2, o1 * a1); by the fixed binary tree over absolute split indices, a node being an
 *    aligned power of two of them; an absent half passes the other unchanged
 *  - a sink joins last: m' = max(m, sink), a = exp(m - m'), l = fma(l, a, exp(sink - m')), o = o * a
 *  - result: o / l, for turbo4 values rotated back then; a query that sees nothing gets zeros
 *
 * exp and tanh: base/fmath.h, operation by operation.
 *
 * SHEAF_ATTN_REFERENCE accumulates in double in plain order: it is for tests, to a tolerance.
 *
 * Layers that differ in heads, dimensions, window, sinks or any other option take a plan each: a
 * model with local and global layers has two, both planned once a step. A plan takes its memory
 * from the C library. Blocks that are read may be read by other plans in other threads meanwhile;
 * nobody may write, release or slide them.
 */
#ifndef SHEAF_ATTN_H
#define SHEAF_ATTN_H

#include "sheaf/status.h"
#include "sheaf/view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_attn_plan sheaf_attn_plan;

#define SHEAF_ATTN_SPLIT_TOKENS 256
#define SHEAF_ATTN_MAX_DIM      512

/* Paths. FUSED reads the blocks in place; GATHER first brings them into a contiguous buffer of the
 * plan, raw codecs widened to f32, then attends to that: the same bits; REFERENCE is the
 * double-precision oracle. */
enum { SHEAF_ATTN_FUSED = 0, SHEAF_ATTN_GATHER = 1, SHEAF_ATTN_REFERENCE = 2 };

/* Query i of an item (absolute position first_pos + i) sees the positions p <= first_pos + i, or
 * all written ones with `not_causal`; and with a window w only p > first_pos + i - w. The window
 * is this one, whatever the views say. Query head h attends to KV head
 * h / (n_q_heads / n_kv_heads). */
typedef struct sheaf_attn_options {
    uint32_t struct_size;
    uint32_t n_q_heads; /* a multiple of n_kv_heads */
    uint32_t n_kv_heads;
    uint32_t key_dim;   /* 1 to SHEAF_ATTN_MAX_DIM */
    uint32_t value_dim; /* 1 to SHEAF_ATTN_MAX_DIM */
    uint32_t window;    /* 0: unlimited */
    float scale;        /* 0: 1 / sqrt(key_dim) */
    float softcap;      /* 0: none */
    uint32_t not_causal;
    uint32_t path; /* SHEAF_ATTN_... */
    uint32_t isa;  /* SHEAF_ISA_...; 0: the best */
    uint32_t reserved;
    const float *sinks; /* [n_q_heads] finite logits, or null; copied */
} sheaf_attn_options;
#define SHEAF_ATTN_OPTIONS_INIT SHEAF_STRUCT_INIT(sheaf_attn_options)

/* One sequence of a ragged batch: n_queries queries at absolute positions first_pos and on, over
 * keys [.., n_tokens) as the view has them. */
typedef struct sheaf_attn_item {
    uint32_t n_queries;
    uint32_t first_pos;
    uint32_t n_tokens; /* of the views that sheaf_attn_run will get */
    uint32_t reserved;
} sheaf_attn_item;

/* What a call did: tests and benches assert it. */
typedef struct sheaf_attn_report {
    uint32_t struct_size;
    uint32_t path;
    uint32_t isa;
    uint32_t n_threads; /* that the work was dealt to */
    uint64_t n_tasks;   /* that the work was cut into */
    uint64_t n_splits;  /* (query, KV head, split) triples with something seen; 0: REFERENCE */
    uint64_t workspace_bytes;
    uint64_t n_shared_splits; /* (KV head, split) pairs read once for several items */
} sheaf_attn_report;
#define SHEAF_ATTN_REPORT_INIT SHEAF_STRUCT_INIT(sheaf_attn_report)

/* threads: null means the calling thread alone; must outlive the plan.
 * SHEAF_E_INVALID: an option out of its range. SHEAF_E_UNSUPPORTED: the isa is not here.
 * SHEAF_E_NO_MEMORY. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_attn_plan_create(const sheaf_attn_options *options,
                                                         sheaf_threads *threads,
                                                         sheaf_attn_plan **out);
SHEAF_API void sheaf_attn_plan_destroy(sheaf_attn_plan *plan); /* null is allowed */

/* Lays out the work of one step; the workspace grows here and never in a run. A second call with the
 * same or smaller sizes allocates nothing. items: [n_items], copied; n_items and each n_queries at
 * least 1. O(queries + tasks). A context that grows token by token allocates O(log n) times: room
 * grows by half at least.
 * SHEAF_E_INVALID; SHEAF_E_OVERFLOW; SHEAF_E_NO_MEMORY: the earlier plan stands. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_attn_plan_batch(sheaf_attn_plan *plan,
                                                        const sheaf_attn_item *items,
                                                        uint32_t n_items);

/* The same, and finds which items hold the same blocks, so that sheaf_attn_run reads each of those
 * once for all: whole splits that sequences which begin alike hold in the same rows of the same
 * memory. FUSED only; items of more than 48 query rows a KV head attend by themselves. No bit of a
 * result changes.
 *   views: [n_items], one layer's. A view may end before its item does, where the step has yet to
 *          write; heads, dimensions, codecs and block_tokens are as they will be
 * O(rows of the views), too. sheaf_attn_run takes the views of any layer whose items hold the same
 * blocks in common.
 * As sheaf_attn_plan_batch; and SHEAF_E_PLAN: a view has other heads or dimensions than the plan. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_attn_plan_views(sheaf_attn_plan *plan,
                                                        const sheaf_attn_item *items,
                                                        const sheaf_kv_view *views,
                                                        uint32_t n_items);

/* Computes one layer.
 *   views: [n_items], as planned: heads, dimensions, n_tokens; block_tokens (a power of two, 1 to
 *          1024) and codecs, of K and V apart, may differ from item to item. The window is the
 *          plan's, not the view's
 *   q:     [sum of n_queries, n_q_heads, key_dim] f32, item after item
 *   out:   [sum of n_queries, n_q_heads, value_dim] f32, every element written; not over q
 *   report: may be null
 * The views' rows must stay valid, and their blocks held, while this runs: no call on a sequence
 * of the batch meanwhile. SHEAF_E_PLAN: nothing is planned, a view does not fit its item, lacks a
 * position that a query sees, or no longer holds blocks that were planned as shared; nothing
 * written. SHEAF_E_INVALID. Bits are promised for finite inputs. Allocates nothing. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_attn_run(sheaf_attn_plan *plan,
                                                 const sheaf_kv_view *views, const float *q,
                                                 float *out, sheaf_attn_report *report);

#ifdef __cplusplus
}
#endif
#endif
