/* pool/device.h - the one door to the memory of slabs, and to the device that works on it.
 *
 * Owns: reserving, committing, copying and poisoning slab memory, the way between it and memory
 * of the host, and asking whether a point in the device's work has passed. Does not own: which
 * slabs exist.
 *
 * Nobody above reads or writes a byte of a slab through a pointer unless sheaf__device_is_host
 * says that this is memory like any other. What a device copies is queued in one order of its
 * own: copy, read and write see what earlier ones did.
 */
#ifndef SHEAF_POOL_DEVICE_H
#define SHEAF_POOL_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "sheaf/pool.h"

typedef struct sheaf__device {
    const char *kind; /* "cpu", or "cuda": whose arithmetic what lies there comes from */
    sheaf_slab_memory memory;
    uint64_t memory_bytes; /* that the device has; 0: as much as the machine */
    void *ctx;
    /* From one place of slab memory to another. May return before it is done. SHEAF_E_DEVICE. */
    sheaf_status (*copy)(void *ctx, void *to, const void *from, uint64_t bytes);
    /* From slab memory to the host and back; done when they return. SHEAF_E_DEVICE. Both null: slab
     * memory is the host's own. */
    sheaf_status (*read)(void *ctx, void *to, const void *from, uint64_t bytes);
    sheaf_status (*write)(void *ctx, void *to, const void *from, uint64_t bytes);
    void (*poison)(void *ctx, void *addr, uint64_t bytes); /* fills with NaN */
    bool (*fence_passed)(void *ctx, sheaf_fence fence);
    void (*settle)(
        void *ctx); /* looks after what has passed meanwhile; null: there is nothing */
} sheaf__device;

/* What sheaf_pool_options names: a door, and how many pools go through it. Part of a larger
 * struct of whoever opened it. */
struct sheaf_device {
    sheaf__device door;
    _Atomic uint32_t n_pools;
    void (*close)(sheaf_device *device); /* gives everything back, `device` too */
};

/* The processor itself: every fence has passed. `memory` null: the system's anonymous memory. */
sheaf__device sheaf__device_cpu(const sheaf_slab_memory *memory);

static inline bool sheaf__device_is_host(const sheaf__device *device)
{
    return device->read == NULL;
}

/* Copies slab memory to the host's. SHEAF_E_DEVICE. */
SHEAF_WARN static inline sheaf_status sheaf__device_read(const sheaf__device *device, void *to,
                                                         const void *from, uint64_t bytes)
{
    if (!sheaf__device_is_host(device)) return device->read(device->ctx, to, from, bytes);
    memcpy(to, from, bytes);
    return SHEAF_OK;
}

/* Copies memory of the host's to a slab's. SHEAF_E_DEVICE. */
SHEAF_WARN static inline sheaf_status sheaf__device_write(const sheaf__device *device, void *to,
                                                          const void *from, uint64_t bytes)
{
    if (!sheaf__device_is_host(device)) return device->write(device->ctx, to, from, bytes);
    memcpy(to, from, bytes);
    return SHEAF_OK;
}

/* Bytes of memory of this machine; 0 when the system does not tell. */
uint64_t sheaf__device_machine_bytes(void);

#endif
