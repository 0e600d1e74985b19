/* attn/cuda/step.h - a step for the GPU made into one table, on the host.
 *
 * Owns: what is checked of items and views, the cutting of queries and contexts (layout.h), and where
 * everything lies in the table that kernels read. Does not own: memory of the GPU, copies, launches;
 * nothing here needs a GPU, nor CUDA.
 *
 *     items | prefill items | tiles' items | units | merges | prefix units | members | arrived | rows
 */
#ifndef SHEAF_ATTN_CUDA_STEP_H
#define SHEAF_ATTN_CUDA_STEP_H

#include "attn/cuda/layout.h"
#include "attn/cuda/prefill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is the same for all steps of a plan, and what its kernels do with the step's views. */
typedef struct sheaf__cuda_rules {
    const sheaf_attn_options *options; /* checked, scale resolved */
    uint32_t n_processors;
    uint32_t prefix_min;
    uint32_t decodes;      /* 0: no kernel decodes these views */
    uint32_t prefill_rows; /* of a tile; 0: no kernel prefills these views */
    sheaf__cuda_tuning tuning;
} sheaf__cuda_rules;

/* Bytes from the table's start. Rows come last: how many there are moves nothing else. */
typedef struct sheaf__cuda_places {
    uint64_t items, prefill_items, tile_item;
    uint64_t units, merges, prefix_units, members;
    uint64_t arrived; /* counters of units, zeros */
    uint64_t rows;
    uint64_t bytes;
} sheaf__cuda_places;

/* A step. Zeros are a step of nothing; arrays grow and stay. */
typedef struct sheaf__cuda_step {
    sheaf__cuda_item *items;
    sheaf__cuda_prefill_item *prefill_items;
    uint64_t item_capacity, prefill_capacity;
    sheaf__cuda_layout layout; /* of the items of one query */
    sheaf__cuda_shape shape;
    sheaf__cuda_places places;
    uint32_t n_items; /* 0: nothing is planned */
    uint32_t n_queries;
    uint32_t n_prefill; /* items of several queries, */
    uint32_t n_tiles;   /* and their tiles */
    uint32_t
        can_run;   /* 0: no kernel computes the views; they can be appended to and gathered */
    uint32_t path; /* SHEAF_CUDA_... */
} sheaf__cuda_step;

/* Room that any step of so many items and tokens each takes. */
typedef struct sheaf__cuda_room {
    uint64_t table_bytes, n_parts;
} sheaf__cuda_room;

/* Checks and cuts a step and places its table. Statuses as sheaf_cuda_plan_batch; after any but
 * SHEAF_OK it is a step of nothing. */
SHEAF_WARN sheaf_status sheaf__cuda_step_set(sheaf__cuda_step *step, sheaf__memory *memory,
                                             const sheaf__cuda_rules *rules,
                                             const sheaf_attn_item *items,
                                             const sheaf_kv_view *views, uint32_t n_items);
/* Writes the table, [places.bytes] on a 16-byte boundary, from the views that it was set from. */
void sheaf__cuda_step_write(sheaf__cuda_step *step, const sheaf_kv_view *views,
                            unsigned char *table);
void sheaf__cuda_step_free(sheaf__cuda_step *step, sheaf__memory *memory);

/* An upper bound, blocks of 16 positions or more. SHEAF_E_OVERFLOW. */
SHEAF_WARN sheaf_status sheaf__cuda_step_room(const sheaf__cuda_rules *rules,
                                              uint64_t max_items, uint64_t max_tokens,
                                              sheaf__cuda_room *out);

#ifdef __cplusplus
}
#endif
#endif
