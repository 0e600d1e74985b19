/* sheaf/cuda_attn.h - what blocks in the memory of a GPU answer a query, and how numbers get into
 * them.
 *
 * Owns: plans and kernels of the GPU. Does not own: sequences, blocks, pools; it reads plain
 * views (sheaf/view.h) whose addresses are of the GPU, which the caller keeps valid and held
 * until the work has passed. Built with SHEAF_CUDA=ON only. A `void *stream` is a cudaStream_t.
 *
 *     sheaf_cuda_plan *plan = NULL;
 *     st = sheaf_cuda_plan_create(&attn_options, NULL, &plan, &err);
 *     ... each sequence: extend, sheaf_sequence_wrote, sheaf_sequence_view of layer 0 ...
 *     st = sheaf_cuda_plan_batch(plan, items, views, n_items, stream);      // once a step
 *     for (layer ...) {
 *         st = sheaf_cuda_append(plan, &view_of_layer, &source, stream);
 *         st = sheaf_cuda_run(plan, &view_of_layer, q, out, stream, NULL);
 *     }
 *
 * Layers of a group differ in offsets alone, so a step is planned once a group, with any layer's
 * views, and a call gets one view of its layer, of which it takes what all items share: base,
 * strides, offsets, heads, dimensions, codecs. Rows are the plan's. Layers with other options, or
 * of another group, take another plan.
 *
 * Same bits here means: a query's result depends on the query, the keys and values that it sees
 * and their absolute positions; not on the batch, the rows, how many slabs there are, or whether
 * others share a prefix with it. Decode and prefill differ in the last bits, and both from the
 * processor's (docs/adr/0003).
 *
 * Graphs. append, run and gather only launch kernels, so they can be captured. A captured graph
 * keeps the plan's tables: after another plan_batch it computes the new step as long as `generation`
 * of the report is the same. That changes with all a launch is made of: the items and queries, how
 * contexts are cut and shared (a context that grows by a block may do), the room for tables.
 *
 * Threads. A plan belongs to one thread at a time, and to one stream until what it queued has
 * passed. The plan's GPU is the thread's current one (cudaSetDevice) in every call but create.
 */
#ifndef SHEAF_CUDA_ATTN_H
#define SHEAF_CUDA_ATTN_H

#include "sheaf/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_cuda_plan sheaf_cuda_plan;

typedef struct sheaf_cuda_attn_options {
    uint32_t struct_size;
    uint32_t ordinal;    /* of the GPU */
    uint32_t io_dtype;   /* of q and out: SHEAF_DTYPE_... */
    uint32_t prefix_min; /* least shared positions worth a pass of their own; 0: the default */
    uint32_t max_items;  /* of a batch, and */
    uint32_t
        max_tokens; /* of an item: create takes the room, so that graphs stay valid; 0: as it comes */
} sheaf_cuda_attn_options;
#define SHEAF_CUDA_ATTN_OPTIONS_INIT SHEAF_STRUCT_INIT(sheaf_cuda_attn_options)

/* Numbers of the positions that a step adds, on the GPU. N: the sum of n_queries over the items.
 *   token-major  k: [N, n_kv_heads, key_dim]   v: [N, n_kv_heads, value_dim]
 *   head-major   k: [n_kv_heads, N, key_dim]   v: [n_kv_heads, N, value_dim] */
typedef struct sheaf_cuda_source {
    uint32_t struct_size;
    uint32_t dtype;      /* SHEAF_DTYPE_... */
    uint32_t head_major; /* 0: token-major, 1: head-major */
    uint32_t reserved;
    const void *k; /* aligned to their type */
    const void *v; /* null where value_dim is 0 */
} sheaf_cuda_source;
#define SHEAF_CUDA_SOURCE_INIT SHEAF_STRUCT_INIT(sheaf_cuda_source)

/* Which path a call took; see sheaf_cuda_report. */
enum {
    SHEAF_CUDA_DECODE = 0,  /* one query an item, split over the context and merged */
    SHEAF_CUDA_PREFIX = 1,  /* decode, with shared prefixes read once for all that share them */
    SHEAF_CUDA_PREFILL = 2, /* many queries of some item, on tensor cores */
};

/* What a call did: tests and benches assert it. */
typedef struct sheaf_cuda_report {
    uint32_t struct_size;
    uint32_t path;       /* SHEAF_CUDA_... */
    uint32_t n_prefixes; /* shared by several items and read once for them */
    uint32_t reserved;
    uint64_t n_parts;         /* that the contexts were cut into */
    uint64_t prefix_tokens;   /* positions that were not read again */
    uint64_t workspace_bytes; /* of the GPU */
    uint64_t generation;      /* changes when graphs captured before are no longer valid */
} sheaf_cuda_report;
#define SHEAF_CUDA_REPORT_INIT SHEAF_STRUCT_INIT(sheaf_cuda_report)

/* options: as for the processor, but `path` and `isa` are not used. cuda: null means the
 * defaults. SHEAF_E_INVALID: an option out of its range. SHEAF_E_UNSUPPORTED: the kernels do not
 * do it (head dimensions other than 64, 128 and 256), or there is no such GPU. SHEAF_E_NO_MEMORY,
 * SHEAF_E_DEVICE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_plan_create(const sheaf_attn_options *options,
                                                         const sheaf_cuda_attn_options *cuda,
                                                         sheaf_cuda_plan **out,
                                                         sheaf_error *err);
SHEAF_API void sheaf_cuda_plan_destroy(sheaf_cuda_plan *plan); /* null is allowed */

/* Lays out the work of one step, finds which items share their first blocks, and queues one
 * copy of its tables to the GPU. views: [n_items], host structs with host rows, copied; of one
 * pool's group and layer, so that they differ in rows, n_rows, first_block and n_tokens alone.
 * Items of one query are decoded, the others take the prefill kernels, in any mixture: an
 * item's bits are those of the item alone. K and V of positions before an item's first query
 * must be in place on the stream by then, written by whatever was queued before: `run` may read
 * them ahead of the kernel before it, so nothing but `append` may write between the two, and no
 * item may see what is appended for another item of the step. A second call with the same or
 * smaller sizes allocates nothing. O(rows). SHEAF_E_INVALID, SHEAF_E_PLAN: views that differ,
 * lack what a query sees, or end before n_tokens; SHEAF_E_OVERFLOW: 2^31 rows of queries, 2^32
 * rows of blocks, 2^29 items, or 2^31 units times heads; SHEAF_E_NO_MEMORY; SHEAF_E_DEVICE:
 * nothing is planned then. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_plan_batch(sheaf_cuda_plan *plan,
                                                        const sheaf_attn_item *items,
                                                        const sheaf_kv_view *views,
                                                        uint32_t n_items, void *stream);

/* Computes one layer.
 *   q:   [sum of n_queries, n_q_heads, key_dim] of io_dtype, on the GPU, 16-byte aligned
 *   out: [sum of n_queries, n_q_heads, value_dim] of io_dtype, every element written; not over q
 * report: may be null. SHEAF_E_PLAN: nothing is planned, or the view is not of the planned
 * geometry. SHEAF_E_UNSUPPORTED: codecs that the path does not read, or a driver that makes no tensor
 * maps (before CUDA 12). SHEAF_E_INVALID: q or out
 * not aligned. SHEAF_E_DEVICE. Its kernels let the next one on the stream start early: one that is
 * launched with programmatic serialization after them must wait (griddepcontrol.wait) for them. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_run(sheaf_cuda_plan *plan,
                                                 const sheaf_kv_view *layer, const void *q,
                                                 void *out, void *stream,
                                                 sheaf_cuda_report *report);

/* Encodes K and V of each item's queries, positions [first_pos, first_pos + n_queries), into
 * their blocks: the bytes that sheaf_sequence_write gives, in every codec. SHEAF_E_PLAN,
 * SHEAF_E_INVALID, SHEAF_E_DEVICE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_append(sheaf_cuda_plan *plan,
                                                    const sheaf_kv_view *layer,
                                                    const sheaf_cuda_source *source,
                                                    void *stream);

/* Copies each item's encoded tiles, from the block of the first position that its last one sees to the
 * last block, into arrays of the GPU: the bytes that sheaf_sequence_gather_raw gives.
 *   k: [n_items] host array of addresses, each [n_blocks, n_kv_heads * k_head_stride], null to leave
 *     one out;
 *      v the same; either array may be null. Fastest where they are multiples of 16
 * A captured gather keeps addresses and numbers of blocks. SHEAF_E_PLAN: also where a view lacks such
 * a block. SHEAF_E_INVALID, SHEAF_E_DEVICE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_gather(sheaf_cuda_plan *plan,
                                                    const sheaf_kv_view *layer, void *const *k,
                                                    void *const *v, void *stream);

#ifdef __cplusplus
}
#endif
#endif
