/* pool/check.c - verifies the invariants that are numbered at the top of pool.c. */
#include <string.h>

#include "pool/pool.h"

#define BROKEN(number, format, ...)                                                            \
    sheaf__error_set(err, SHEAF_E_CORRUPT, "pool invariant " #number ": " format, __VA_ARGS__)

/* What the rows of a group add up to. */
typedef struct sums {
    uint64_t capacity, free, held, retiring, shared, tree_only, movable, slabs, empty, bytes,
        listed;
    uint64_t by_kind[SHEAF_OWNER_KINDS];
} sums;

/* Invariants 1, 2 and 10 for one row. */
static sheaf_status check_row(const sheaf__slab *slab, uint32_t slot, sums *sum,
                              sheaf_error *err)
{
    const sheaf__record *record = &slab->records[slot];
    bool bit = (slab->free_bits[slot / 64] >> (slot % 64)) & 1;
    uint64_t references = 0;
    for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++) references += record->by_kind[k];
    if (bit != (slot < slab->n_rows && record->state == SHEAF__ROW_FREE))
        return BROKEN(1, "slot %u: bit %d, state %u", slot, bit, record->state);
    if (slot >= slab->n_rows && record->state != SHEAF__ROW_FREE)
        return BROKEN(1, "slot %u is not committed, state %u", slot, record->state);
    if (record->total != references || (record->state == SHEAF__ROW_HELD) != (references != 0))
        return BROKEN(2, "slot %u: total %u, state %u", slot, record->total, record->state);
    if (record->generation == 0) return BROKEN(2, "slot %u: generation 0", slot);
    if (record->holder != NULL && record->by_kind[SHEAF_OWNER_TREE] == 0)
        return BROKEN(10, "slot %u has a holder, state %u", slot, record->state);
    sum->free += bit;
    sum->held += record->state == SHEAF__ROW_HELD;
    sum->retiring += record->state == SHEAF__ROW_RETIRING;
    sum->shared += record->total > 1;
    sum->tree_only += sheaf__record_tree_only(record);
    sum->movable += sheaf__record_movable(record);
    for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++) sum->by_kind[k] += record->by_kind[k];
    return SHEAF_OK;
}

/* Invariants 1 to 3, 9 and 10 for one slab. */
static sheaf_status check_slab(const sheaf__group *group, uint32_t index, sums *sum,
                               sheaf_error *err)
{
    const sheaf__slab *slab = &group->slabs[index];
    uint32_t blocks = group->layout->slab_blocks;
    uint64_t free_before = sum->free, movable_before = sum->movable;
    for (uint32_t slot = 0; slot < blocks; slot++) {
        sheaf_status st = check_row(slab, slot, sum, err);
        if (st != SHEAF_OK) return st;
    }
    if (sum->free - free_before != slab->n_free)
        return BROKEN(1, "slab %u: n_free is %u", index, slab->n_free);
    if (sum->movable - movable_before != slab->n_movable)
        return BROKEN(9, "slab %u: n_movable is %u", index, slab->n_movable);
    bool empty = slab->n_rows != 0 && slab->n_free == slab->n_rows;
    uint32_t list = slab->n_rows == 0   ? 0
                    : empty             ? blocks
                    : slab->n_free != 0 ? slab->n_free
                                        : SHEAF__SLAB_NONE;
    if (slab->list != list) return BROKEN(3, "slab %u is in list %u", index, slab->list);
    sum->listed += list != SHEAF__SLAB_NONE;
    sum->capacity += slab->n_rows;
    sum->slabs += slab->n_rows != 0;
    sum->empty += empty;
    sum->bytes += slab->bytes;
    return SHEAF_OK;
}

/* Invariant 3: walking the lists finds each slab that is in one, once. */
static sheaf_status check_lists(const sheaf__group *group, uint64_t listed, sheaf_error *err)
{
    uint64_t found = 0;
    for (uint32_t list = 0; list <= group->layout->slab_blocks; list++) {
        uint32_t head = group->heads[list], index = head;
        bool occupied = (group->occupied[list / 64] >> (list % 64)) & 1;
        if (occupied != (head != SHEAF__SLAB_NONE)) return BROKEN(3, "list %u: bit", list);
        if (!occupied) continue;
        do {
            const sheaf__slab *slab = &group->slabs[index];
            if (slab->list != list || group->slabs[slab->next].prev != index ||
                ++found > listed)
                return BROKEN(3, "list %u is broken at slab %u", list, index);
            index = slab->next;
        } while (index != head);
    }
    if (found != listed) return BROKEN(3, "%llu slabs in lists", (unsigned long long)found);
    return SHEAF_OK;
}

/* Invariant 5. */
static sheaf_status check_retiring(const sheaf__group *group, sheaf_error *err)
{
    uint64_t found = 0;
    for (uint32_t row = group->retiring; row != SHEAF_ROW_NONE;) {
        if (sheaf__slab_for_row(group, row) == NULL || ++found > group->counts.retiring)
            return BROKEN(5, "the list goes wrong at row %u", row);
        const sheaf__record *record = sheaf__record_for_row(group, row);
        if (record->state != SHEAF__ROW_RETIRING)
            return BROKEN(5, "row %u: state %u", row, record->state);
        row = record->next_retiring;
    }
    if (found != group->counts.retiring)
        return BROKEN(5, "%llu rows in the list", (unsigned long long)found);
    return SHEAF_OK;
}

/* Invariants 1 to 6, 9 and 10 for one group; sum->by_kind and sum->bytes go on over the groups. */
static sheaf_status check_group(const sheaf_pool *pool, uint32_t g, sums *total,
                                sheaf_error *err)
{
    const sheaf__group *group = &pool->groups[g];
    const sheaf__counts *counts = &group->counts;
    sums sum = {0};
    for (uint32_t i = group->first_slab; i < group->n_slabs; i++) {
        sheaf_status st = check_slab(group, i, &sum, err);
        if (st != SHEAF_OK) return st;
    }
    sheaf_status st = check_lists(group, sum.listed, err);
    if (st == SHEAF_OK) st = check_retiring(group, err);
    if (st != SHEAF_OK) return st;
    if (counts->free + counts->held + counts->retiring != counts->capacity)
        return BROKEN(4, "group %u: free + held + retiring is not the capacity", g);
    if (sum.capacity != counts->capacity || sum.free != counts->free ||
        sum.held != counts->held || sum.retiring != counts->retiring ||
        sum.shared != counts->shared)
        return BROKEN(4, "group %u: a count of blocks is not what its rows say", g);
    if (sum.bytes != counts->bytes_reserved || sum.slabs != counts->slabs ||
        sum.empty != counts->slabs_empty ||
        counts->slab_appends - counts->slab_releases != counts->slabs)
        return BROKEN(6, "group %u: a count of slabs is not what its slabs say", g);
    if (sum.tree_only != counts->tree_only)
        return BROKEN(9, "group %u: %llu blocks are owned by trees alone", g,
                      (unsigned long long)sum.tree_only);
    total->bytes += sum.bytes;
    for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++) total->by_kind[k] += sum.by_kind[k];
    return SHEAF_OK;
}

sheaf_status sheaf__pool_check_rows(const sheaf_pool *pool, sheaf_error *err)
{
    sums total = {0};
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        sheaf_status st = check_group(pool, g, &total, err);
        if (st != SHEAF_OK) return st;
    }
    if (total.bytes > pool->budget_bytes)
        return BROKEN(6, "%llu bytes are above the budget", (unsigned long long)total.bytes);
    for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++)
        if (total.by_kind[k] != pool->owner_counts[k])
            return BROKEN(7, "references of kind %u are miscounted", k);
    return SHEAF_OK;
}

/* ---- owners -------------------------------------------------------------------------------- */

typedef struct names {
    const sheaf_pool *pool;
    bool stale;
    sheaf_block block;
} names;

static void count_named(void *ctx, sheaf_block block)
{
    names *seen = ctx;
    sheaf__record *record = sheaf__pool_live(seen->pool, block);
    if (record != NULL) {
        record->named++;
        return;
    }
    seen->stale = true;
    seen->block = block;
}

/* Calls nothing for slabs that were never committed. Returns the first row whose count of the kind
 * differs from what was named, SHEAF_ROW_NONE if none does; clears the names. */
static uint32_t compare_named(const sheaf__group *group, uint32_t kind)
{
    uint32_t wrong = SHEAF_ROW_NONE, blocks = group->layout->slab_blocks;
    for (uint32_t i = group->first_slab; i < group->n_slabs; i++)
        for (uint32_t slot = 0; slot < blocks; slot++) {
            sheaf__record *record = &group->slabs[i].records[slot];
            if (record->named != record->by_kind[kind] && wrong == SHEAF_ROW_NONE)
                wrong = sheaf__row_at(group, i, slot);
            record->named = 0;
        }
    return wrong;
}

/* Invariant 8 for one kind. */
static sheaf_status check_kind(const sheaf_pool *pool, uint32_t kind, sheaf_error *err)
{
    names seen = {.pool = pool};
    for (const sheaf__list *node = pool->owners.next; node != &pool->owners;
         node = node->next) {
        const sheaf__owner *owner = SHEAF__CONTAINER(node, const sheaf__owner, link);
        if (owner->kind == kind) owner->visit(owner, count_named, &seen);
    }
    uint32_t wrong_row = SHEAF_ROW_NONE, wrong_group = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        uint32_t row = compare_named(&pool->groups[g], kind);
        if (row == SHEAF_ROW_NONE || wrong_row != SHEAF_ROW_NONE) continue;
        wrong_row = row;
        wrong_group = g;
    }
    if (seen.stale)
        return BROKEN(8, "an owner of kind %u names group %u row %u generation %u, not held",
                      kind, seen.block.group, seen.block.row, seen.block.generation);
    if (wrong_row != SHEAF_ROW_NONE)
        return BROKEN(8,
                      "group %u row %u: owners of kind %u name it more or less often than "
                      "its count",
                      wrong_group, wrong_row, kind);
    return SHEAF_OK;
}

sheaf_status sheaf_pool_check(const sheaf_pool *pool, sheaf_error *err)
{
    if (pool == NULL) return sheaf__error_set(err, SHEAF_E_INVALID, "pool is null");
    static const uint32_t kinds[] = {SHEAF_OWNER_TABLE, SHEAF_OWNER_PARKED, SHEAF_OWNER_TREE};
    sheaf_status st = sheaf__pool_check_rows(pool, err);
    for (size_t i = 0; st == SHEAF_OK && i < sizeof kinds / sizeof kinds[0]; i++)
        st = check_kind(pool, kinds[i], err);
    return st;
}
