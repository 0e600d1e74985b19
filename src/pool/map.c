/* pool/map.c - what each row is, for whoever draws the pool. */
#include "pool/pool.h"
#include "sheaf/rows.h"

static uint32_t state_of(const sheaf__record *record)
{
    static const uint32_t of_kind[SHEAF_OWNER_KINDS] = {
        [SHEAF_OWNER_TABLE] = SHEAF_ROW_RUNNING, [SHEAF_OWNER_PARKED] = SHEAF_ROW_PARKED,
        [SHEAF_OWNER_TREE] = SHEAF_ROW_CACHED,   [SHEAF_OWNER_IO] = SHEAF_ROW_IO,
        [SHEAF_OWNER_HOST] = SHEAF_ROW_HOST,
    };
    if (record->state == SHEAF__ROW_FREE) return SHEAF_ROW_FREE;
    if (record->state == SHEAF__ROW_RETIRING) return SHEAF_ROW_RETIRING;
    if (record->total > 1) return SHEAF_ROW_SHARED;
    uint32_t kind = 0;
    while (record->by_kind[kind] == 0) kind++;
    return of_kind[kind];
}

/* Rows of slabs that were given back have records, and no memory. */
static sheaf_row look_at(const sheaf__group *group, uint64_t row)
{
    sheaf_row seen = {.state = SHEAF_ROW_ABSENT};
    if (row >= SHEAF_ROW_NONE) return seen;
    const sheaf__slab *slab = sheaf__slab_for_row(group, (uint32_t)row);
    if (slab == NULL || (row & (group->layout->slab_blocks - 1)) >= slab->n_rows) return seen;
    const sheaf__record *record = sheaf__record_for_row(group, (uint32_t)row);
    seen.state = state_of(record);
    seen.references = record->total;
    seen.generation = record->total != 0 ? record->generation : 0;
    return seen;
}

sheaf_status sheaf_pool_map(const sheaf_pool *pool, uint32_t group, uint32_t first_row,
                            uint32_t n, sheaf_row *rows)
{
    if (pool == NULL || group >= pool->layout.n_groups || (n != 0 && rows == NULL))
        return SHEAF_E_INVALID;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = look_at(&pool->groups[group], (uint64_t)first_row + i);
    return SHEAF_OK;
}

uint32_t sheaf_pool_rows(const sheaf_pool *pool, uint32_t group)
{
    if (pool == NULL || group >= pool->layout.n_groups) return 0;
    return pool->groups[group].n_slabs << pool->layout.groups[group].slab_shift;
}
