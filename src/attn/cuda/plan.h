/* attn/cuda/plan.h - a plan of the GPU: its step (step.h), tables and room there. */
#ifndef SHEAF_ATTN_CUDA_PLAN_H
#define SHEAF_ATTN_CUDA_PLAN_H

#include <cuda_runtime_api.h>

#include "attn/cuda/step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned copies of the table, so that a step need not wait for the last one's to have left. They are
 * taken in turn; an event stands for a half of them, so that few calls are made for it: asking one that
 * has passed takes 1.5 us, recording 0.4. As many as these bytes hold, from 2 to MOST. */
#define SHEAF__CUDA_STAGING     (1u << 20)
#define SHEAF__CUDA_MOST_COPIES 32

/* A driver writes up to some 24 KiB into its commands instead of having them copied, a call of 2.6 us
 * for 1 KiB and of 4 for 24; from 26 KiB on it takes 2 (driver 580, H200). What lies between BRIEF and
 * LEAST is uploaded as LEAST, and is there earlier, too. */
#define SHEAF__CUDA_BRIEF_UPLOAD (12u << 10)
#define SHEAF__CUDA_LEAST_UPLOAD (26u << 10)
#define SHEAF__CUDA_LEAST_TABLE  (32u << 10)

/* All that a captured launch keeps. */
typedef struct sheaf__cuda_launch {
    sheaf__cuda_decode decode; /* without a layer */
    sheaf__cuda_places places; /* without their end */
    const unsigned char *table;
    uint32_t n_items, n_queries, n_prefill, n_tiles;
} sheaf__cuda_launch;

struct sheaf_cuda_plan {
    sheaf__memory memory;
    sheaf_attn_options options; /* scale resolved; sinks on the GPU */
    sheaf_cuda_attn_options cuda;
    int n_processors;
    float *sinks; /* on the GPU, or null */
    sheaf__cuda_tuning tuning;
    sheaf__cuda_step step;
    sheaf_kv_view geometry;  /* of the planned views; rows and tokens are not of interest */
    uint32_t prefill_kernel; /* that the step's tiles were cut for */

    unsigned char *staging; /* [n_copies][table_capacity], pinned */
    unsigned char *table;   /* on the GPU */
    uint64_t table_capacity;
    uint32_t n_copies, copy; /* which is written next */
    cudaEvent_t left[2];     /* each half: its copies have been uploaded */

    float *parts; /* on the GPU */
    uint64_t part_floats;

    uint32_t *counters; /* on the GPU, zeros between kernels */
    uint64_t n_counters;

    uint64_t generation;
    sheaf__cuda_launch launched; /* the last step's */
};

/* How the next steps are cut (layout.h): for benches and tests. */
void sheaf__cuda_plan_tune(sheaf_cuda_plan *plan, const sheaf__cuda_tuning *tuning);

#ifdef __cplusplus
}
#endif
#endif
