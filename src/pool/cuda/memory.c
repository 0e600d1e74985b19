/* pool/cuda/memory.c - reserving addresses of a GPU, and putting memory behind them slab by slab.
 *
 *     reserve    cuMemAddressReserve                     a range, no memory
 *     commit     cuMemCreate, cuMemMap, cuMemSetAccess   a slab; the mapping alone keeps the
 *       memory, since the
 *                                                        handle is released at once
 *     decommit   the slab leaves: a fence is taken, and it is unmapped when that and all before
 *       it have
 *                passed, so never under a kernel that was queued before
 *     release    all that leave are waited for; cuMemAddressFree
 *
 * Memory that is leaving is still the GPU's, so a commit waits for it before it takes more: a
 * budget holds at every moment. A slab that is committed again while it leaves simply stays.
 */
#include <stdlib.h>

#include "base/cuda_driver.h"
#include "base/cuda_error.h"
#include "base/status.h"
#include "pool/cuda/device.h"

#define WHOLE_RANGE_GRANULARITY 256 /* what cudaMalloc's addresses are multiples of at least */

/* ---- the driver ---------------------------------------------------------------------------- */

static sheaf_status find_all(sheaf__cuda_driver *driver, sheaf_error *err)
{
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemAddressReserve", &driver->address_reserve, err));
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemAddressFree", &driver->address_free, err));
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemCreate", &driver->mem_create, err));
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemRelease", &driver->mem_release, err));
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemMap", &driver->mem_map, err));
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemUnmap", &driver->mem_unmap, err));
    SHEAF__TRY(sheaf__cuda_driver_call("cuMemSetAccess", &driver->set_access, err));
    SHEAF__TRY(
        sheaf__cuda_driver_call("cuMemGetAllocationGranularity", &driver->granularity, err));
    return sheaf__cuda_driver_call("cuDeviceGetAttribute", &driver->attribute, err);
}

static CUmemAllocationProp properties(const sheaf__cuda_device *device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
}

/* The least size of a mapping. False: the driver maps nothing here. */
static bool find_granularity(sheaf__cuda_device *device, uint64_t *granularity)
{
    int managed = 0;
    size_t bytes = 0;
    CUmemAllocationProp prop = properties(device);
    if (device->driver.attribute(&managed,
                                 CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                 device->ordinal) != CUDA_SUCCESS ||
        managed == 0)
        return false;
    if (device->driver.granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
            CUDA_SUCCESS ||
        bytes == 0)
        return false;
    *granularity = bytes;
    return true;
}

/* ---- mapping ------------------------------------------------------------------------------- */

static bool map(sheaf__cuda_device *device, CUdeviceptr addr, uint64_t bytes)
{
    const sheaf__cuda_driver *driver = &device->driver;
    CUmemAllocationProp prop = properties(device);
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    if (driver->mem_create(&handle, bytes, &prop, 0) != CUDA_SUCCESS) return false;
    bool mapped = driver->mem_map(addr, bytes, 0, handle, 0) == CUDA_SUCCESS;
    (void)driver->mem_release(handle);
    if (mapped && driver->set_access(addr, bytes, &access, 1) != CUDA_SUCCESS) {
        (void)driver->mem_unmap(addr, bytes);
        mapped = false;
    }
    return mapped;
}

static void unmap_first(sheaf__cuda_device *device, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        const sheaf__cuda_leaver *leaver = &device->leavers[i];
        (void)device->driver.mem_unmap((CUdeviceptr)(uintptr_t)leaver->addr, leaver->bytes);
        device->info.bytes_leaving -= leaver->bytes;
    }
    device->n_leavers -= n;
    memmove(device->leavers, device->leavers + n,
            device->n_leavers * sizeof device->leavers[0]);
}

void sheaf__cuda_memory_settle(sheaf__cuda_device *device)
{
    uint64_t n = 0;
    while (n < device->n_leavers && sheaf__cuda_fences_passed(device, device->leavers[n].fence))
        n++;
    if (n != 0) unmap_first(device, n);
}

static void wait_for_leavers(sheaf__cuda_device *device)
{
    if (device->n_leavers == 0) return;
    sheaf__cuda_fences_wait(device, device->leavers[device->n_leavers - 1].fence);
    unmap_first(device, device->n_leavers);
}

/* Whether the slab at addr is leaving and now stays. */
static bool call_back(sheaf__cuda_device *device, const unsigned char *addr, uint64_t bytes)
{
    for (uint64_t i = 0; i < device->n_leavers; i++) {
        if (device->leavers[i].addr != addr || device->leavers[i].bytes != bytes) continue;
        device->n_leavers--;
        memmove(device->leavers + i, device->leavers + i + 1,
                (device->n_leavers - i) * sizeof device->leavers[0]);
        device->info.bytes_leaving -= bytes;
        device->info.slabs_kept++;
        return true;
    }
    return false;
}

/* Adds a slab to those that leave. False: no host memory, or no fence. */
static bool begin_to_leave(sheaf__cuda_device *device, unsigned char *addr, uint64_t bytes)
{
    if (device->n_leavers == device->leavers_capacity) {
        uint64_t capacity = device->leavers_capacity == 0 ? 64 : 2 * device->leavers_capacity;
        void *larger = realloc(device->leavers, capacity * sizeof device->leavers[0]);
        if (larger == NULL) return false;
        device->leavers = larger;
        device->leavers_capacity = capacity;
    }
    uint64_t fence;
    if (sheaf__cuda_fence_take(device, device->stream, &fence) != SHEAF_OK) return false;
    device->leavers[device->n_leavers++] = (sheaf__cuda_leaver){addr, bytes, fence};
    device->info.bytes_leaving += bytes;
    return true;
}

/* ---- the door's hooks ---------------------------------------------------------------------- */

static void *range_reserve(void *ctx, uint64_t bytes)
{
    sheaf__cuda_device *device = ctx;
    CUdeviceptr addr = 0;
    int before = sheaf__cuda_enter(device);
    CUresult result =
        device->driver.address_reserve(&addr, bytes, device->info.granularity, 0, 0);
    sheaf__cuda_leave(before);
    return result == CUDA_SUCCESS ? (void *)(uintptr_t)addr : NULL;
}

static int range_commit(void *ctx, void *addr, uint64_t bytes)
{
    sheaf__cuda_device *device = ctx;
    int before = sheaf__cuda_enter(device);
    bool there = call_back(device, addr, bytes);
    if (!there) {
        wait_for_leavers(device);
        there = map(device, (CUdeviceptr)(uintptr_t)addr, bytes);
        device->info.slabs_mapped += there;
    }
    sheaf__cuda_leave(before);
    return there ? 0 : -1;
}

static void range_decommit(void *ctx, void *addr, uint64_t bytes)
{
    sheaf__cuda_device *device = ctx;
    int before = sheaf__cuda_enter(device);
    sheaf__cuda_memory_settle(device);
    if (!begin_to_leave(device, addr, bytes)) {
        (void)cudaDeviceSynchronize(); /* no way to be told: wait for everything */
        (void)device->driver.mem_unmap((CUdeviceptr)(uintptr_t)addr, bytes);
    }
    sheaf__cuda_leave(before);
}

static void range_release(void *ctx, void *addr, uint64_t bytes)
{
    sheaf__cuda_device *device = ctx;
    int before = sheaf__cuda_enter(device);
    wait_for_leavers(device);
    (void)device->driver.address_free((CUdeviceptr)(uintptr_t)addr, bytes);
    sheaf__cuda_leave(before);
}

/* Without virtual-memory management: the range is memory from the start. */
static void *whole_reserve(void *ctx, uint64_t bytes)
{
    void *addr = NULL;
    int before = sheaf__cuda_enter(ctx);
    if (cudaMalloc(&addr, bytes) != cudaSuccess) {
        addr = NULL;
        (void)cudaGetLastError();
    }
    sheaf__cuda_leave(before);
    return addr;
}

static int whole_commit(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx, (void)addr, (void)bytes;
    return 0;
}

static void whole_decommit(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx, (void)addr, (void)bytes;
}

static void whole_release(void *ctx, void *addr, uint64_t bytes)
{
    (void)bytes;
    int before = sheaf__cuda_enter(ctx);
    (void)cudaFree(addr); /* which waits for the GPU */
    sheaf__cuda_leave(before);
}

/* ---- life ---------------------------------------------------------------------------------- */

sheaf_status sheaf__cuda_memory_open(sheaf__cuda_device *device, bool whole_range,
                                     sheaf_error *err)
{
    uint64_t granularity = WHOLE_RANGE_GRANULARITY;
    if (!whole_range) {
        SHEAF__TRY(find_all(&device->driver, err));
        whole_range = !find_granularity(device, &granularity);
    }
    device->whole_range = whole_range;
    device->info.whole_range = whole_range;
    device->info.granularity = granularity;
    device->base.door.memory =
        whole_range ? (sheaf_slab_memory){device,       granularity,    whole_reserve,
                                          whole_commit, whole_decommit, whole_release}
                    : (sheaf_slab_memory){device,       granularity,    range_reserve,
                                          range_commit, range_decommit, range_release};
    return SHEAF_OK;
}

void sheaf__cuda_memory_close(sheaf__cuda_device *device)
{
    wait_for_leavers(device);
    free(device->leavers);
}
