/* pool/device.h - the one door to the memory of slabs, and to the device that works on it.
 *
 * Owns: reserving, committing, copying and poisoning slab memory, and asking whether a point in
 * the device's work has passed. Does not own: which slabs exist.
 */
#ifndef SHEAF_POOL_DEVICE_H
#define SHEAF_POOL_DEVICE_H

#include <stdbool.h>

#include "sheaf/pool.h"

typedef struct sheaf__device {
    sheaf_slab_memory memory;
    void *ctx;
    void (*copy)(void *ctx, void *to, const void *from, uint64_t bytes);
    void (*poison)(void *ctx, void *addr, uint64_t bytes); /* fills with NaN */
    bool (*fence_passed)(void *ctx, sheaf_fence fence);
} sheaf__device;

/* The processor itself: every fence has passed. `memory` null: the system's anonymous memory. */
sheaf__device sheaf__device_cpu(const sheaf_slab_memory *memory);

/* Bytes of memory of this machine; 0 when the system does not tell. */
uint64_t sheaf__device_machine_bytes(void);

#endif
