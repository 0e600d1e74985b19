/* sheaf/cuda.h - slabs in the memory of an NVIDIA GPU.
 *
 * Owns: the device `cuda` of a pool, points in the work of its streams (fences), and copies of
 * whole blocks between it and host memory. Does not own: the kernels that read blocks there
 * (sheaf/cuda_attn.h), and streams, which are the caller's. Built with SHEAF_CUDA=ON only. No
 * header of CUDA's is needed to include this: a `void *stream` is a cudaStream_t.
 *
 *     sheaf_cuda_options o = SHEAF_CUDA_OPTIONS_INIT;
 *     o.stream = stream;                           // on which the engine computes
 *     sheaf_device *gpu = NULL;
 *     st = sheaf_cuda_open(&o, &gpu, &err);
 *     pool_options.device = gpu;
 *     st = sheaf_pool_open(&pool_options, &pool, &err);
 *     ... sequences and prefix caches as on the processor; views hold addresses of the GPU ...
 *     st = sheaf_pool_close(pool);
 *     st = sheaf_device_close(gpu);                // sheaf/pool.h
 *
 * Order. Every copy that the pool makes by itself (copy-on-write, compaction, what the host
 * writes or reads) is queued on the device's stream. Kernels in the same stream therefore see it
 * (sheaf/cuda_attn.h: what a step reads must be in place before it is planned),
 * and a block freed while such kernels still read it may be taken again at once: what is written
 * to it comes later in the stream. Work in another stream is ordered by hand: sheaf_cuda_fence
 * after it and sheaf_pool_release_after with that fence, sheaf_cuda_wait before it. A slab that
 * falls empty goes back to the driver when all fences that were taken before, and all work in the
 * device's stream, have passed: never while kernels may still read it. While that stream is captured
 * into a graph no call that changes the pool may be made: it would be captured, or break the capture.
 *
 * Memory. An address range is reserved and physical memory is mapped behind it slab by slab, in
 * granules of the driver (2 MiB), which therefore is what slab bytes are rounded to. Where the
 * driver has no such management, or `whole_range` asks for it, the whole range is allocated when
 * the pool opens: the budget is then taken at once.
 *
 * Host calls. What reads numbers of a GPU pool on the host (sheaf_sequence_gather_raw and _f32,
 * the wire) and what writes them there (sheaf_sequence_write, loading) copies through host memory
 * and waits for the copy. The attention of sheaf/attn.h cannot read such blocks.
 *
 * Errors. A fault of CUDA's is SHEAF_E_DEVICE, or SHEAF_FULL where the card has no memory for a
 * slab. A fault in a kernel stays with the process: every later call then answers SHEAF_E_DEVICE,
 * and closing still gives back what the host holds.
 *
 * Threads. A device belongs to one thread at a time, with all pools on it.
 */
#ifndef SHEAF_CUDA_H
#define SHEAF_CUDA_H

#include "sheaf/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_cuda_options {
    uint32_t struct_size;
    uint32_t ordinal;     /* of the GPU */
    uint32_t whole_range; /* non-zero: allocate a pool's whole range when it opens */
    uint32_t reserved;
    void *stream; /* on which copies are queued, outlives the device; null: one of its own */
} sheaf_cuda_options;
#define SHEAF_CUDA_OPTIONS_INIT SHEAF_STRUCT_INIT(sheaf_cuda_options)

/* What a device is made of. */
typedef struct sheaf_cuda_info {
    uint32_t struct_size;
    uint32_t ordinal;
    uint32_t compute_major; /* compute capability */
    uint32_t compute_minor;
    uint32_t n_multiprocessors;
    uint32_t whole_range;   /* 1: no memory is mapped slab by slab */
    uint64_t granularity;   /* to which slab bytes are rounded */
    uint64_t memory_bytes;  /* of the card */
    uint64_t bytes_leaving; /* of slabs given back, whose fences have not passed yet */
    uint64_t slabs_mapped;  /* mapped since it was opened */
    uint64_t slabs_kept;    /* of these, taken again before they had left: nothing was mapped */
    char name[64];
} sheaf_cuda_info;
#define SHEAF_CUDA_INFO_INIT SHEAF_STRUCT_INIT(sheaf_cuda_info)

/* Opens a GPU as the device of pools. Close it with sheaf_device_close, after them.
 * SHEAF_E_UNSUPPORTED: no driver, or no such GPU: `err` says which. SHEAF_E_INVALID;
 * SHEAF_E_NO_MEMORY; SHEAF_E_DEVICE. Creates CUDA's primary context where there is none yet,
 * which takes a tenth of a second. Any compute capability will do; the kernels
 * (sheaf/cuda_attn.h) ask for 9.0. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_open(const sheaf_cuda_options *options,
                                                  sheaf_device **out, sheaf_error *err);

/* Fills *out. SHEAF_E_INVALID: not a device of sheaf_cuda_open, or struct_size is not set. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_info_read(const sheaf_device *device,
                                                       sheaf_cuda_info *out);

/* The device's stream, a cudaStream_t. Null: not a device of sheaf_cuda_open. */
SHEAF_API void *sheaf_cuda_stream(const sheaf_device *device);

/* ---- fences ------------------------------------------------------------------------------ */

/* A point in the work of a stream: all that is queued there now. Values grow from call to call.
 * Not while the stream is captured. `stream` null: the device's. SHEAF_E_DEVICE;
 * SHEAF_E_NO_MEMORY. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_fence(sheaf_device *device, void *stream,
                                                   sheaf_fence *out);

/* Makes a stream wait for a fence, without waiting itself; `stream` null: this call waits.
 * SHEAF_E_INVALID: no fence of this device. SHEAF_E_DEVICE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_wait(sheaf_device *device, sheaf_fence fence,
                                                  void *stream);

/* SHEAF_OK: the fence has passed; SHEAF_PENDING: not yet. SHEAF_E_DEVICE: the work before it
 * failed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_passed(sheaf_device *device, sheaf_fence fence);

/* ---- whole blocks ------------------------------------------------------------------------ */

/* Copies n blocks of one group into host memory, or from there, asynchronously.
 *   host:   [n, block_bytes], page-locked (sheaf_cuda_host_alloc) or the call waits for the copy;
 *     stays as it
 *           is until the fence has passed
 *   stream: on which the copies are queued; null: the device's
 *   out:    the fence after them; may be null
 * Each block gets a reference of kind IO, which the first sheaf_pool_poll (or acquire that lacks
 * room) after the fence has passed takes back: late, repeated or missing polls are harmless, and
 * a block may be released meanwhile. Adjacent rows go as one copy. SHEAF_E_STALE,
 * SHEAF_E_OVERFLOW, SHEAF_E_NO_MEMORY: nothing was queued. SHEAF_E_INVALID: a pool of another
 * device, or blocks of two groups. SHEAF_E_DEVICE: what was queued before stays queued, and no
 * block keeps a reference. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_blocks_to_host(sheaf_pool *pool,
                                                            const sheaf_block *blocks,
                                                            uint32_t n, void *host,
                                                            void *stream, sheaf_fence *out);
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_blocks_from_host(sheaf_pool *pool,
                                                              const sheaf_block *blocks,
                                                              uint32_t n, const void *host,
                                                              void *stream, sheaf_fence *out);

/* Page-locked host memory, which the GPU copies at full speed. SHEAF_E_NO_MEMORY, SHEAF_E_DEVICE.
 * Slow: take it once. The second gives it back; null is allowed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_cuda_host_alloc(sheaf_device *device, uint64_t bytes,
                                                        void **out);
SHEAF_API void sheaf_cuda_host_free(sheaf_device *device, void *memory);

#ifdef __cplusplus
}
#endif
#endif
