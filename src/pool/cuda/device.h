/* pool/cuda/device.h - what the files of the device cuda know of it.
 *
 * Owns: the struct, and the order in which its parts stand on each other:
 *
 *     fences.c   points in the work of streams: events, by growing values
 *     memory.c   reserving, mapping, and letting slabs leave once the fences before have passed
 *     blocks.c   copies of whole blocks
 *     device.c   opening, closing, and the door
 *
 * Every call that enters CUDA stands between sheaf__cuda_enter and sheaf__cuda_leave, which make
 * the device's GPU the thread's current one and put the caller's back.
 */
#ifndef SHEAF_POOL_CUDA_DEVICE_H
#define SHEAF_POOL_CUDA_DEVICE_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "pool/device.h"
#include "sheaf/cuda.h"

/* The driver's calls that the runtime does not offer. */
typedef struct sheaf__cuda_driver {
    CUresult (*address_reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*address_free)(CUdeviceptr, size_t);
    CUresult (*mem_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                           unsigned long long);
    CUresult (*mem_release)(CUmemGenericAllocationHandle);
    CUresult (*mem_map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                        unsigned long long);
    CUresult (*mem_unmap)(CUdeviceptr, size_t);
    CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
} sheaf__cuda_driver;

/* A fence that has not been seen to pass. */
typedef struct sheaf__cuda_event {
    uint64_t value;
    cudaEvent_t event;
} sheaf__cuda_event;

/* A slab that was given back, still mapped. */
typedef struct sheaf__cuda_leaver {
    unsigned char *addr;
    uint64_t bytes;
    uint64_t fence; /* this and all before it must have passed */
} sheaf__cuda_leaver;

typedef struct sheaf__cuda_device {
    sheaf_device base; /* first: a sheaf_device is one of these */
    sheaf__cuda_driver driver;
    int ordinal;
    bool own_stream;
    bool whole_range;
    cudaStream_t stream;
    uint64_t last_fence;       /* given out; they begin at 1 */
    sheaf__cuda_event *events; /* [events_capacity], n_events waiting, by growing values, */
    uint64_t n_events;         /* then n_spare whose events may be used again */
    uint64_t n_spare;
    uint64_t events_capacity;
    sheaf__cuda_leaver *leavers; /* [leavers_capacity], by growing fences */
    uint64_t n_leavers, leavers_capacity;
    sheaf_cuda_info info; /* what does not change, and the running counts */
} sheaf__cuda_device;

/* Makes the GPU current; returns the one that was. */
int sheaf__cuda_enter(const sheaf__cuda_device *device);
void sheaf__cuda_leave(int before);

/* The device behind a sheaf_device; null: it is none of ours. */
sheaf__cuda_device *sheaf__cuda_device_of(const sheaf_device *device);

/* ---- fences.c ---------------------------------------------------------------------------- */

/* As the public calls, the GPU being current. */
SHEAF_WARN sheaf_status sheaf__cuda_fence_take(sheaf__cuda_device *device, cudaStream_t stream,
                                               uint64_t *value);
/* Whether a fence has passed; one that failed has. *st: what CUDA says of the work before it. */
bool sheaf__cuda_fence_passed(sheaf__cuda_device *device, uint64_t value, sheaf_status *st);
/* Whether it and all before it have. */
bool sheaf__cuda_fences_passed(sheaf__cuda_device *device, uint64_t value);
/* Waits for it and all before it. */
void sheaf__cuda_fences_wait(sheaf__cuda_device *device, uint64_t value);
void sheaf__cuda_fences_close(sheaf__cuda_device *device);

/* ---- memory.c ---------------------------------------------------------------------------- */

/* Finds the driver's calls and the granularity, and fills in the door's memory. `whole_range`:
 * does without them. SHEAF_E_UNSUPPORTED, SHEAF_E_DEVICE. */
SHEAF_WARN sheaf_status sheaf__cuda_memory_open(sheaf__cuda_device *device, bool whole_range,
                                                sheaf_error *err);

/* Unmaps the slabs whose fences have passed. */
void sheaf__cuda_memory_settle(sheaf__cuda_device *device);

/* Waits for all that are leaving, and unmaps them. */
void sheaf__cuda_memory_close(sheaf__cuda_device *device);

#endif
