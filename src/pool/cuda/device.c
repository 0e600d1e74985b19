/* pool/cuda/device.c - opening and closing a GPU, and the door through which pools use it.
 *
 * What crosses between the host and slabs goes over the device's stream and is waited for there:
 * it then stands in one order with the copies that the pool queues by itself, and with kernels of
 * that stream.
 */
#include "pool/cuda/device.h"

#include <stdlib.h>

#include "base/cuda_error.h"
#include "base/status.h"
#include "pool/pool.h"

#define POISON_BYTE 0xff /* NaN in f32, f16 and bf16 */

int sheaf__cuda_enter(const sheaf__cuda_device *device)
{
    int before = -1;
    if (cudaGetDevice(&before) != cudaSuccess || before != device->ordinal)
        (void)cudaSetDevice(device->ordinal);
    return before == device->ordinal ? -1 : before;
}

void sheaf__cuda_leave(int before)
{
    if (before >= 0) (void)cudaSetDevice(before);
}

/* ---- the door ------------------------------------------------------------------------------ */

static sheaf_status move(sheaf__cuda_device *device, void *to, const void *from, uint64_t bytes,
                         enum cudaMemcpyKind kind, const char *what)
{
    int before = sheaf__cuda_enter(device);
    sheaf_status st =
        sheaf__cuda_status(cudaMemcpyAsync(to, from, bytes, kind, device->stream), what, NULL);
    if (st == SHEAF_OK && kind != cudaMemcpyDeviceToDevice)
        st = sheaf__cuda_status(cudaStreamSynchronize(device->stream), what, NULL);
    sheaf__cuda_leave(before);
    return st == SHEAF_OK ? SHEAF_OK : SHEAF_E_DEVICE;
}

static sheaf_status door_copy(void *ctx, void *to, const void *from, uint64_t bytes)
{
    return move(ctx, to, from, bytes, cudaMemcpyDeviceToDevice, "copying a block");
}

static sheaf_status door_read(void *ctx, void *to, const void *from, uint64_t bytes)
{
    return move(ctx, to, from, bytes, cudaMemcpyDeviceToHost, "reading a block");
}

static sheaf_status door_write(void *ctx, void *to, const void *from, uint64_t bytes)
{
    return move(ctx, to, from, bytes, cudaMemcpyHostToDevice, "writing a block");
}

static void door_poison(void *ctx, void *addr, uint64_t bytes)
{
    sheaf__cuda_device *device = ctx;
    int before = sheaf__cuda_enter(device);
    (void)cudaMemsetAsync(addr, POISON_BYTE, bytes, device->stream);
    sheaf__cuda_leave(before);
}

/* A fence whose work failed has passed: nothing more will be done to its blocks. */
static bool door_fence_passed(void *ctx, sheaf_fence fence)
{
    sheaf__cuda_device *device = ctx;
    sheaf_status st;
    int before = sheaf__cuda_enter(device);
    bool passed = sheaf__cuda_fence_passed(device, fence.value, &st);
    sheaf__cuda_leave(before);
    return passed;
}

static void door_settle(void *ctx)
{
    sheaf__cuda_device *device = ctx;
    if (device->n_leavers == 0) return;
    int before = sheaf__cuda_enter(device);
    sheaf__cuda_memory_settle(device);
    sheaf__cuda_leave(before);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void close_device(sheaf_device *base)
{
    sheaf__cuda_device *device = (sheaf__cuda_device *)base;
    int before = sheaf__cuda_enter(device);
    sheaf__cuda_memory_close(device);
    sheaf__cuda_fences_close(device);
    if (device->own_stream) (void)cudaStreamDestroy(device->stream);
    sheaf__cuda_leave(before);
    free(device);
}

sheaf__cuda_device *sheaf__cuda_device_of(const sheaf_device *device)
{
    if (device == NULL || device->close != close_device) return NULL;
    return (sheaf__cuda_device *)(uintptr_t)device;
}

static sheaf_status describe(sheaf__cuda_device *device, sheaf_error *err)
{
    struct cudaDeviceProp properties;
    SHEAF__TRY(sheaf__cuda_status(cudaGetDeviceProperties(&properties, device->ordinal),
                                  "reading what the GPU is", err));
    device->info.ordinal = (uint32_t)device->ordinal;
    device->info.compute_major = (uint32_t)properties.major;
    device->info.compute_minor = (uint32_t)properties.minor;
    device->info.n_multiprocessors = (uint32_t)properties.multiProcessorCount;
    device->info.memory_bytes = properties.totalGlobalMem;
    _Static_assert(sizeof properties.name >= sizeof device->info.name, "the name is cut");
    memcpy(device->info.name, properties.name, sizeof device->info.name - 1);
    device->base.door.memory_bytes = properties.totalGlobalMem;
    return SHEAF_OK;
}

static sheaf_status open_stream(sheaf__cuda_device *device, void *stream, sheaf_error *err)
{
    if (stream != NULL) {
        device->stream = stream;
        return SHEAF_OK;
    }
    SHEAF__TRY(sheaf__cuda_status(
        cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking), "a stream", err));
    device->own_stream = true;
    return SHEAF_OK;
}

static sheaf_status open_device(sheaf__cuda_device *device, const sheaf_cuda_options *options,
                                sheaf_error *err)
{
    int n = 0;
    SHEAF__TRY(sheaf__cuda_status(cudaGetDeviceCount(&n), "no GPU can be used", err));
    if (options->ordinal >= (uint32_t)n)
        return sheaf__error_set(err, SHEAF_E_UNSUPPORTED, "there is no GPU %u; there are %d",
                                options->ordinal, n);
    device->ordinal = (int)options->ordinal;
    SHEAF__TRY(sheaf__cuda_status(cudaSetDevice(device->ordinal), "making a context", err));
    SHEAF__TRY(describe(device, err));
    SHEAF__TRY(sheaf__cuda_memory_open(device, options->whole_range != 0, err));
    return open_stream(device, options->stream, err);
}

sheaf_status sheaf_cuda_open(const sheaf_cuda_options *options, sheaf_device **out,
                             sheaf_error *err)
{
    if (options == NULL || out == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "options or out is null");
    sheaf_cuda_options complete;
    SHEAF__TRY(sheaf__struct_take(&complete, sizeof complete, options, err));
    sheaf__cuda_device *device = calloc(1, sizeof *device);
    if (device == NULL) return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory");
    device->base.close = close_device;
    device->base.door.kind = "cuda";
    device->base.door.ctx = device;
    device->base.door.copy = door_copy;
    device->base.door.read = door_read;
    device->base.door.write = door_write;
    device->base.door.poison = door_poison;
    device->base.door.fence_passed = door_fence_passed;
    device->base.door.settle = door_settle;
    int before = -1;
    if (cudaGetDevice(&before) != cudaSuccess) (void)cudaGetLastError();
    sheaf_status st = open_device(device, &complete, err);
    sheaf__cuda_leave(before);
    if (st != SHEAF_OK) {
        free(device);
        return st;
    }
    *out = &device->base;
    return SHEAF_OK;
}

sheaf_status sheaf_cuda_info_read(const sheaf_device *device, sheaf_cuda_info *out)
{
    const sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    if (cuda == NULL || out == NULL) return SHEAF_E_INVALID;
    return sheaf__struct_give(out, &cuda->info, sizeof cuda->info);
}

void *sheaf_cuda_stream(const sheaf_device *device)
{
    const sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    return cuda != NULL ? cuda->stream : NULL;
}

sheaf_status sheaf_cuda_host_alloc(sheaf_device *device, uint64_t bytes, void **out)
{
    const sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    if (cuda == NULL || out == NULL || bytes == 0) return SHEAF_E_INVALID;
    void *memory = NULL;
    int before = sheaf__cuda_enter(cuda);
    sheaf_status st = sheaf__cuda_status(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable),
                                         "page-locked memory", NULL);
    sheaf__cuda_leave(before);
    if (st == SHEAF_OK) *out = memory;
    return st;
}

void sheaf_cuda_host_free(sheaf_device *device, void *memory)
{
    const sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    if (cuda == NULL || memory == NULL) return;
    int before = sheaf__cuda_enter(cuda);
    (void)cudaFreeHost(memory);
    sheaf__cuda_leave(before);
}
