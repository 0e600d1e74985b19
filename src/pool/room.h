/* pool/room.h - would a request find room if certain blocks were released?
 *
 * Owns: the foresight by which a prefix cache evicts only when that will help. Does not own: the plan of
 * the request itself (pool/grow.h).
 */
#ifndef SHEAF_POOL_ROOM_H
#define SHEAF_POOL_ROOM_H

#include "pool/pool.h"

/* Whether a held row may be counted on. */
typedef bool sheaf__may_go_fn(const void *ctx, const sheaf__record *record);

/* Whether counts[g] blocks of each group could be had once every row for which may_go() is true had been
 * released. O(rows). */
bool sheaf__room_after(const sheaf_pool *pool, const uint32_t *counts, sheaf__may_go_fn *may_go,
                       const void *ctx);

/* The same, by counts alone: freed[g] rows of each group would be released. True is certain; false only
 * that it takes a look at the rows. O(groups). */
bool sheaf__room_surely(const sheaf_pool *pool, const uint32_t *counts, const uint64_t *freed);

/* How many rows of a group may go. O(rows). */
uint64_t sheaf__room_count(const sheaf_pool *pool, uint32_t group, sheaf__may_go_fn *may_go,
                           const void *ctx);

#endif
