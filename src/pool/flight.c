/* pool/flight.c - copies of blocks that are on their way between a device and the host. */
#include "pool/flight.h"

/* The reference is there: it was taken when the flight started, and nobody else drops that kind.
 * Who does breaks the rule of owners; then it is gone already. */
static void let_go(sheaf_pool *pool, sheaf_block block)
{
    sheaf_status st = sheaf__block_release(pool, block, SHEAF_OWNER_IO);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
}

sheaf_status sheaf__flights_start(sheaf_pool *pool, const sheaf_block *blocks, uint32_t n)
{
    void *flights = pool->flights;
    sheaf_status st = sheaf__memory_grow(&pool->memory, &flights, &pool->flights_capacity,
                                         pool->n_flights + n, sizeof pool->flights[0]);
    pool->flights = flights;
    uint32_t started = 0;
    for (; st == SHEAF_OK && started < n; started++) {
        st = sheaf__block_retain(pool, blocks[started], SHEAF_OWNER_IO);
        if (st != SHEAF_OK) break;
        pool->flights[pool->n_flights++] = (sheaf__flight){.block = blocks[started]};
    }
    if (st != SHEAF_OK) sheaf__flights_abandon(pool, started);
    return st;
}

void sheaf__flights_fence(sheaf_pool *pool, uint32_t n, sheaf_fence fence)
{
    for (uint64_t i = pool->n_flights - n; i < pool->n_flights; i++) {
        pool->flights[i].has_fence = 1;
        pool->flights[i].fence = fence.value;
    }
}

void sheaf__flights_abandon(sheaf_pool *pool, uint32_t n)
{
    for (; n != 0; n--) let_go(pool, pool->flights[--pool->n_flights].block);
}

uint64_t sheaf__flights_land(sheaf_pool *pool)
{
    uint64_t kept = 0, asked = 0; /* fences count from 1 */
    bool passed = true; /* fence `asked`: a copy has one; the empty fence has always passed */
    for (uint64_t i = 0; i < pool->n_flights; i++) {
        sheaf__flight flight = pool->flights[i];
        if (flight.fence != asked) {
            asked = flight.fence;
            passed = pool->device.fence_passed(pool->device.ctx, (sheaf_fence){asked});
        }
        if (flight.has_fence && passed)
            let_go(pool, flight.block);
        else
            pool->flights[kept++] = flight;
    }
    pool->n_flights = kept;
    return kept;
}
