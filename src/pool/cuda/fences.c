/* pool/cuda/fences.c - points in the work of streams.
 *
 * A fence is a number, and an event that is kept until it has been seen to pass:
 *
 *     events   | 4 | 6 | 7 |   spare | e | e |      last_fence 7: 1, 2, 3 and 5 have passed
 *
 * Fences of different streams pass in any order. Those at the front are dropped as they pass, so
 * that the first one left says up to where all have; one in the middle waits to be asked. Events
 * are used again.
 */
#include <stdlib.h>

#include "base/cuda_error.h"
#include "base/status.h"
#include "pool/cuda/device.h"

/* Drops entry i; its event becomes a spare one. */
static void drop(sheaf__cuda_device *device, uint64_t i)
{
    sheaf__cuda_event passed = device->events[i];
    uint64_t after = device->n_events - i - 1;
    memmove(device->events + i, device->events + i + 1, after * sizeof passed);
    device->events[--device->n_events] = passed;
    device->n_spare++;
}

/* Drops what has passed at the front. */
static void reap(sheaf__cuda_device *device)
{
    uint64_t n = 0;
    while (n < device->n_events && cudaEventQuery(device->events[n].event) != cudaErrorNotReady)
        n++;
    (void)cudaGetLastError(); /* "not ready" is an answer */
    for (; n != 0; n--) drop(device, n - 1);
}

/* Room for one more entry, with an event in it. */
static sheaf_status prepare(sheaf__cuda_device *device)
{
    if (device->n_spare != 0) return SHEAF_OK;
    if (device->n_events == device->events_capacity) {
        uint64_t capacity = device->events_capacity == 0 ? 64 : 2 * device->events_capacity;
        void *larger = realloc(device->events, capacity * sizeof device->events[0]);
        if (larger == NULL) return SHEAF_E_NO_MEMORY;
        device->events = larger;
        device->events_capacity = capacity;
    }
    cudaEvent_t event;
    SHEAF__TRY(sheaf__cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                  "an event", NULL));
    device->events[device->n_events].event = event;
    device->n_spare = 1;
    return SHEAF_OK;
}

sheaf_status sheaf__cuda_fence_take(sheaf__cuda_device *device, cudaStream_t stream,
                                    uint64_t *value)
{
    reap(device);
    SHEAF__TRY(prepare(device));
    sheaf__cuda_event *next = &device->events[device->n_events];
    SHEAF__TRY(sheaf__cuda_status(cudaEventRecord(next->event, stream), "a fence", NULL));
    next->value = *value = ++device->last_fence;
    device->n_events++;
    device->n_spare--;
    return SHEAF_OK;
}

/* The entry of a fence that may still wait; null: it has passed. */
static sheaf__cuda_event *find(const sheaf__cuda_device *device, uint64_t value)
{
    for (uint64_t i = 0; i < device->n_events && device->events[i].value <= value; i++)
        if (device->events[i].value == value) return &device->events[i];
    return NULL;
}

bool sheaf__cuda_fence_passed(sheaf__cuda_device *device, uint64_t value, sheaf_status *st)
{
    *st = SHEAF_OK;
    sheaf__cuda_event *entry = find(device, value);
    if (entry == NULL) return true;
    cudaError_t error = cudaEventQuery(entry->event);
    (void)cudaGetLastError();
    if (error == cudaErrorNotReady) return false;
    *st = sheaf__cuda_status(error, "the work before a fence", NULL);
    drop(device, (uint64_t)(entry - device->events));
    return true;
}

bool sheaf__cuda_fences_passed(sheaf__cuda_device *device, uint64_t value)
{
    reap(device);
    return device->n_events == 0 || device->events[0].value > value;
}

void sheaf__cuda_fences_wait(sheaf__cuda_device *device, uint64_t value)
{
    for (uint64_t i = 0; i < device->n_events && device->events[i].value <= value; i++)
        (void)cudaEventSynchronize(device->events[i].event); /* a failed one is over, too */
    reap(device);
}

void sheaf__cuda_fences_close(sheaf__cuda_device *device)
{
    for (uint64_t i = 0; i < device->n_events + device->n_spare; i++)
        (void)cudaEventDestroy(device->events[i].event);
    free(device->events);
}

/* ---- public -------------------------------------------------------------------------------- */

sheaf_status sheaf_cuda_fence(sheaf_device *device, void *stream, sheaf_fence *out)
{
    sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    if (cuda == NULL || out == NULL) return SHEAF_E_INVALID;
    int before = sheaf__cuda_enter(cuda);
    sheaf_status st =
        sheaf__cuda_fence_take(cuda, stream != NULL ? stream : cuda->stream, &out->value);
    sheaf__cuda_leave(before);
    return st;
}

sheaf_status sheaf_cuda_wait(sheaf_device *device, sheaf_fence fence, void *stream)
{
    sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    if (cuda == NULL || fence.value > cuda->last_fence) return SHEAF_E_INVALID;
    const sheaf__cuda_event *entry = find(cuda, fence.value);
    if (entry == NULL) return SHEAF_OK;
    int before = sheaf__cuda_enter(cuda);
    cudaError_t error = stream != NULL ? cudaStreamWaitEvent(stream, entry->event, 0)
                                       : cudaEventSynchronize(entry->event);
    sheaf_status st = sheaf__cuda_status(error, "waiting for a fence", NULL);
    sheaf__cuda_leave(before);
    return st;
}

sheaf_status sheaf_cuda_passed(sheaf_device *device, sheaf_fence fence)
{
    sheaf__cuda_device *cuda = sheaf__cuda_device_of(device);
    if (cuda == NULL || fence.value > cuda->last_fence) return SHEAF_E_INVALID;
    sheaf_status st;
    int before = sheaf__cuda_enter(cuda);
    bool passed = sheaf__cuda_fence_passed(cuda, fence.value, &st);
    sheaf__cuda_leave(before);
    return passed ? st : SHEAF_PENDING;
}
