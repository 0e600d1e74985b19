/* attn/cuda/step.h - a step for the GPU made into one table, on the host.
 *
 * Owns: what is checked of items and views, the cutting of queries and contexts (layout.h), and where
 * everything lies in the table that kernels read. Does not own: memory of the GPU, copies, launches;
 * nothing here needs a GPU, nor CUDA.
 *
 *     rows | items | prefill items | tiles' items | units | merges | prefix units | members
 *
 * Rows end where the rest begins, so that how many there are moves nothing else, and where they lie is
 * known before anything is cut: they are copied while items are checked, as the one waits for memory
 * and the other for instructions.
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

/* Bytes from the table's start, which is rows[0]: items count their rows_at from there. */
typedef struct sheaf__cuda_places {
    uint64_t begin; /* of the first row; before it nothing is written */
    uint64_t items, prefill_items, tile_item;
    uint64_t units, merges, prefix_units, members;
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
    uint64_t row_room;    /* rows before the items, a multiple of 64; grows and stays */
    unsigned char *ahead; /* the table that the next step is written into, or null */
    uint64_t ahead_bytes;
    const unsigned char *rows_in; /* the table that has this step's rows, or null */
    uint32_t n_items;             /* 0: nothing is planned */
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
    uint64_t n_rows;     /* for sheaf__cuda_step.row_room */
    uint64_t n_counters; /* as sheaf__cuda_step_counters */
} sheaf__cuda_room;

/* Checks and cuts a step and places its table. Writes the rows into `ahead` if that has room for them.
 * Statuses as sheaf_cuda_plan_batch; after any but SHEAF_OK it is a step of nothing. */
SHEAF_WARN sheaf_status sheaf__cuda_step_set(sheaf__cuda_step *step, sheaf__memory *memory,
                                             const sheaf__cuda_rules *rules,
                                             const sheaf_attn_item *items,
                                             const sheaf_kv_view *views, uint32_t n_items);
/* Writes the table, [places.bytes] on a 16-byte boundary, from the views that it was set from: all of
 * it, or, into the one that was `ahead` then, what is not there yet. */
void sheaf__cuda_step_write(sheaf__cuda_step *step, const sheaf_kv_view *views,
                            unsigned char *table);
/* Counters that its kernels find at 0 and leave at 0: of units that have left their part, one a merge
 * and query head; then one of units that were taken. */
uint64_t sheaf__cuda_step_counters(const sheaf__cuda_step *step);
void sheaf__cuda_step_free(sheaf__cuda_step *step, sheaf__memory *memory);

/* An upper bound, blocks of 16 positions or more. SHEAF_E_OVERFLOW. */
SHEAF_WARN sheaf_status sheaf__cuda_step_room(const sheaf__cuda_rules *rules,
                                              uint64_t max_items, uint64_t max_tokens,
                                              sheaf__cuda_room *out);

#ifdef __cplusplus
}
#endif
#endif
