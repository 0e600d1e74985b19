/* attn/cuda/plan.h - a plan of the GPU: its tables and its room. */
#ifndef SHEAF_ATTN_CUDA_PLAN_H
#define SHEAF_ATTN_CUDA_PLAN_H

#include <cuda_runtime_api.h>

#include "attn/cuda/layout.h"
#include "attn/cuda/prefill.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How an item's bytes lie in the one table that a step uploads. */
typedef struct sheaf__cuda_places {
    uint64_t items, rows;                          /* bytes from its start; */
    uint64_t units, merges, prefix_units, members; /* decode */
    uint64_t prefill_items, tile_item;             /* prefill */
    uint64_t bytes;
} sheaf__cuda_places;

struct sheaf_cuda_plan {
    sheaf__memory memory;
    sheaf_attn_options options; /* scale resolved; sinks on the GPU */
    sheaf_cuda_attn_options cuda;
    int n_processors;
    float *sinks; /* on the GPU, or null */
    sheaf__cuda_layout layout;
    sheaf__cuda_tuning tuning;

    unsigned char *staging; /* pinned; what is uploaded */
    unsigned char *table;   /* on the GPU */
    uint64_t table_capacity;
    sheaf__cuda_places places;
    cudaEvent_t uploaded; /* staging may be written again */

    float *parts; /* on the GPU */
    uint64_t part_floats;

    sheaf_kv_view geometry; /* of the planned views; rows and tokens are not of interest */
    sheaf__cuda_item *items;
    sheaf__cuda_prefill_item *prefill_items;
    uint64_t item_capacity, prefill_capacity;
    uint32_t n_items; /* 0: nothing is planned */
    uint32_t n_queries;
    uint32_t path;      /* SHEAF_CUDA_... */
    uint32_t n_prefill; /* items of several queries, */
    uint32_t n_tiles;   /* and their tiles */
    uint32_t can_run;   /* 0: no kernel reads the planned views; append and gather do */
    uint64_t generation;
    sheaf__cuda_decode launched; /* the last step's, without a layer */
};

/* How the next steps are cut (layout.h): for benches and tests. */
void sheaf__cuda_plan_tune(sheaf_cuda_plan *plan, const sheaf__cuda_tuning *tuning);

#ifdef __cplusplus
}
#endif
#endif
