/* pool/stats.c - the statistics, and the snapshot of them that any thread may read. */
#include <string.h>

#include "base/bits.h"
#include "pool/pool.h"

_Static_assert(sizeof(sheaf_pool_stats) % sizeof(uint64_t) == 0, "the snapshot is whole words");

static void add_group(const sheaf__group *group, sheaf_pool_stats *out)
{
    const sheaf__counts *counts = &group->counts;
    uint64_t block_bytes = group->layout->block_bytes;
    out->bytes_reserved += counts->bytes_reserved;
    out->bytes_in_use += counts->held * block_bytes;
    out->bytes_retiring += counts->retiring * block_bytes;
    out->bytes_shared += counts->shared * block_bytes;
    out->bytes_address += group->range_bytes;
    out->blocks_capacity += counts->capacity;
    out->blocks_free += counts->free;
    out->blocks_held += counts->held;
    out->blocks_retiring += counts->retiring;
    out->blocks_shared += counts->shared;
    out->slabs += counts->slabs;
    out->slabs_empty += counts->slabs_empty;
    out->slabs_least +=
        sheaf__ceil_div_u64(counts->held + counts->retiring, group->layout->slab_blocks);
    out->slab_appends += counts->slab_appends;
    out->slab_releases += counts->slab_releases;
    out->slab_failures += counts->slab_failures;
    out->blocks_acquired += counts->acquired;
    out->blocks_released += counts->released;
    out->blocks_copied += counts->copied;
    out->bytes_copied += counts->copied * block_bytes;
}

void sheaf__stats_of_group(const sheaf_pool *pool, uint32_t group, sheaf_pool_stats *out)
{
    memset(out, 0, sizeof *out);
    add_group(&pool->groups[group], out);
}

void sheaf__stats_of_pool(const sheaf_pool *pool, sheaf_pool_stats *out)
{
    memset(out, 0, sizeof *out);
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) add_group(&pool->groups[g], out);
    out->n_groups = pool->layout.n_groups;
    out->budget_bytes = pool->budget_bytes;
    out->host_bytes = pool->memory.live_bytes;
    for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++) out->owners[k] = pool->owner_counts[k];
    out->full_answers = pool->full_answers;
}

void sheaf__stats_store(sheaf_pool *pool)
{
    sheaf_pool_stats stats;
    sheaf__stats_of_pool(pool, &stats);
    sheaf__snapshot_store(&pool->snapshot, pool->snapshot_words, &stats, SHEAF__STATS_WORDS);
}

sheaf_status sheaf__struct_give(void *to, const void *from, uint64_t from_bytes)
{
    uint32_t size;
    memcpy(&size, to, sizeof size);
    if (size < sizeof size) return SHEAF_E_INVALID;
    uint64_t known = size < from_bytes ? size : from_bytes;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, known - sizeof size);
    memset((char *)to + known, 0, size - known);
    return SHEAF_OK;
}

sheaf_status sheaf__struct_take(void *to, uint64_t to_bytes, const void *from, sheaf_error *err)
{
    uint32_t size;
    memcpy(&size, from, sizeof size);
    if (size < sizeof size)
        return sheaf__error_set(err, SHEAF_E_INVALID, "struct_size is %u", size);
    memset(to, 0, to_bytes);
    memcpy(to, from, size < to_bytes ? size : to_bytes);
    for (const unsigned char *p = from; size > to_bytes; size--)
        if (p[size - 1] != 0)
            return sheaf__error_set(err, SHEAF_E_INVALID,
                                    "an option is set that this version does not know");
    return SHEAF_OK;
}

sheaf_status sheaf_pool_stats_read(const sheaf_pool *pool, sheaf_pool_stats *out)
{
    if (pool == NULL || out == NULL) return SHEAF_E_INVALID;
    sheaf_pool_stats stats;
    sheaf__snapshot_load(&pool->snapshot, pool->snapshot_words, &stats, SHEAF__STATS_WORDS);
    return sheaf__struct_give(out, &stats, sizeof stats);
}

sheaf_status sheaf_pool_group_stats(const sheaf_pool *pool, uint32_t group,
                                    sheaf_pool_stats *out)
{
    if (pool == NULL || out == NULL || group >= pool->layout.n_groups) return SHEAF_E_INVALID;
    sheaf_pool_stats stats;
    sheaf__stats_of_group(pool, group, &stats);
    return sheaf__struct_give(out, &stats, sizeof stats);
}
