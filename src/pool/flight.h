/* pool/flight.h - copies of blocks that are on their way between a device and the host.
 *
 * Owns: the list of blocks that such copies hold, a reference of kind IO each, until their fences
 * have passed and the pool's thread takes note of it. Does not own: the copies.
 *
 *     SHEAF__TRY(sheaf__flights_start(pool, blocks, n));     // each holds its block
 *     ... queue the copies; on failure: sheaf__flights_abandon(pool, n) ...
 *     sheaf__flights_fence(pool, n, fence);                  // lands once this has passed
 */
#ifndef SHEAF_POOL_FLIGHT_H
#define SHEAF_POOL_FLIGHT_H

#include "pool/pool.h"

typedef struct sheaf__flight {
    sheaf_block block;
    uint32_t has_fence; /* 0: still being queued, does not land */
    uint64_t fence;
} sheaf__flight;

/* Adds a flight of each block. SHEAF_E_STALE, SHEAF_E_OVERFLOW, SHEAF_E_NO_MEMORY: none was
 * added. */
SHEAF_WARN sheaf_status sheaf__flights_start(sheaf_pool *pool, const sheaf_block *blocks,
                                             uint32_t n);

/* Gives the last n flights their fence. */
void sheaf__flights_fence(sheaf_pool *pool, uint32_t n, sheaf_fence fence);

/* Drops the last n flights, which have no fence, and their references. */
void sheaf__flights_abandon(sheaf_pool *pool, uint32_t n);

/* Drops the flights whose fences have passed, and their references; returns how many are left.
 * O(flights). */
uint64_t sheaf__flights_land(sheaf_pool *pool);

#endif
