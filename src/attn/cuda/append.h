/* attn/cuda/append.h - append and gather for a batch whose tables the caller has, not a plan. */
#ifndef SHEAF_ATTN_CUDA_APPEND_H
#define SHEAF_ATTN_CUDA_APPEND_H

#include "attn/cuda/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As sheaf_cuda_append and sheaf_cuda_gather; arguments are complete. batch->host is there. */
SHEAF_WARN sheaf_status sheaf__cuda_append_batch(const sheaf__cuda_batch *batch,
                                                 const sheaf_kv_view *layer,
                                                 const sheaf_cuda_source *source, void *stream);
SHEAF_WARN sheaf_status sheaf__cuda_gather_batch(const sheaf__cuda_batch *batch,
                                                 const sheaf_kv_view *layer, void *const *k,
                                                 void *const *v, void *stream);

#ifdef __cplusplus
}
#endif
#endif
