/* pool/cuda/blocks.c - copies of whole blocks between a GPU and the host, on their way while
 * other work runs.
 *
 * A block is one span, so n adjacent rows are one copy. Each block is held by a flight
 * (pool/flight.h) until the fence behind the copies has passed.
 */
#include "base/cuda_error.h"
#include "base/status.h"
#include "pool/cuda/device.h"
#include "pool/flight.h"

typedef struct transfer {
    sheaf_pool *pool;
    sheaf__cuda_device *device;
    cudaStream_t stream;
    unsigned char *host;
    bool to_host;
} transfer;

/* Queues the copy of n adjacent rows; `first` counts the blocks before them. */
static sheaf_status queue_run(const transfer *t, sheaf_block block, uint32_t first, uint32_t n)
{
    const sheaf__layout *layout = sheaf__pool_layout(t->pool);
    uint64_t block_bytes = layout->groups[block.group].block_bytes;
    unsigned char *row = sheaf__pool_row(t->pool, block.group, block.row);
    unsigned char *host = t->host + first * block_bytes;
    cudaError_t error =
        t->to_host
            ? cudaMemcpyAsync(host, row, n * block_bytes, cudaMemcpyDeviceToHost, t->stream)
            : cudaMemcpyAsync(row, host, n * block_bytes, cudaMemcpyHostToDevice, t->stream);
    return sheaf__cuda_status(error, "copying blocks", NULL);
}

/* Rows next to each other may lie in two slabs, which are two mappings: the driver copies across.
 * */
static sheaf_status queue_all(const transfer *t, const sheaf_block *blocks, uint32_t n)
{
    for (uint32_t i = 0, run; i < n; i += run) {
        run = 1;
        while (i + run < n && blocks[i + run].row == blocks[i].row + run) run++;
        SHEAF__TRY(queue_run(t, blocks[i], i, run));
    }
    return SHEAF_OK;
}

static sheaf_status carry_out(const transfer *t, const sheaf_block *blocks, uint32_t n,
                              sheaf_fence *out)
{
    SHEAF__TRY(sheaf__flights_start(t->pool, blocks, n));
    sheaf_fence fence = {0};
    sheaf_status st = queue_all(t, blocks, n);
    if (st == SHEAF_OK) st = sheaf__cuda_fence_take(t->device, t->stream, &fence.value);
    if (st != SHEAF_OK) {
        (void)cudaStreamSynchronize(t->stream); /* what was queued must not outlive its hold */
        sheaf__flights_abandon(t->pool, n);
        return st;
    }
    sheaf__flights_fence(t->pool, n, fence);
    if (out != NULL) *out = fence;
    return SHEAF_OK;
}

static sheaf_status transfer_blocks(transfer *t, const sheaf_block *blocks, uint32_t n,
                                    void *stream, sheaf_fence *out)
{
    if (t->pool == NULL || (n != 0 && (blocks == NULL || t->host == NULL)))
        return SHEAF_E_INVALID;
    t->device = sheaf__cuda_device_of(t->pool->opened_on);
    if (t->device == NULL) return SHEAF_E_INVALID;
    for (uint32_t i = 1; i < n; i++)
        if (blocks[i].group != blocks[0].group) return SHEAF_E_INVALID;
    t->stream = stream != NULL ? stream : t->device->stream;
    sheaf__pool_enter(t->pool);
    int before = sheaf__cuda_enter(t->device);
    sheaf_status st = carry_out(t, blocks, n, out);
    sheaf__cuda_leave(before);
    sheaf__pool_leave(t->pool);
    return st;
}

sheaf_status sheaf_cuda_blocks_to_host(sheaf_pool *pool, const sheaf_block *blocks, uint32_t n,
                                       void *host, void *stream, sheaf_fence *out)
{
    transfer t = {.pool = pool, .host = host, .to_host = true};
    return transfer_blocks(&t, blocks, n, stream, out);
}

sheaf_status sheaf_cuda_blocks_from_host(sheaf_pool *pool, const sheaf_block *blocks,
                                         uint32_t n, const void *host, void *stream,
                                         sheaf_fence *out)
{
    transfer t = {.pool = pool, .host = (unsigned char *)(uintptr_t)host};
    return transfer_blocks(&t, blocks, n, stream, out);
}
