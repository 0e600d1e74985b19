/* pool/grow.c - how many slabs a request needs, and committing them within the budget.
 *
 * The plan, for all groups at once:
 *
 *   1. free rows in partly used slabs serve first, then empty slabs from the head of their list;
 *      the empty slabs that are left over could be given back. Where that does not fit, all empty
 *      slabs are: a whole one kept for a single row may be what another group lacks
 *   2. what is still missing is so many whole slabs and a remainder; at the least, the remainder
 *      takes a short slab of just so many rows
 *   3. that least must fit: budget - committed + what could be given back
 *   4. what is left of the budget then makes the remainders' slabs whole, or as long as it can. With
 *      several groups the last of it, a slab of each, is not for that: a group would take rows that
 *      it may never need, and the others could not go on
 *
 * So a request fails only when no choice of slabs would serve it, and slabs are short only at the
 * edge of the budget.
 */
#include "pool/grow.h"

#include <string.h>

#include "base/bits.h"

/* Step 1. Returns the rows that are missing; *spare_bytes grows by what could be given back, which
 * without `keep` is every empty slab. */
static uint64_t rows_missing(const sheaf__group *group, uint64_t count, bool keep,
                             uint32_t *n_keep, uint64_t *spare_bytes)
{
    uint32_t first = sheaf__group_first_empty(group), index = first;
    uint64_t in_empty = 0, n_empty = group->counts.slabs_empty;
    for (uint64_t i = 0; i < n_empty; i++, index = group->slabs[index].next)
        in_empty += group->slabs[index].n_free;
    uint64_t partly = group->counts.free - in_empty;
    uint64_t missing = count > partly ? count - partly : 0;
    *n_keep = 0;
    index = first;
    for (uint64_t i = 0; i < n_empty; i++, index = group->slabs[index].next) {
        const sheaf__slab *slab = &group->slabs[index];
        if (missing == 0 || !keep) {
            *spare_bytes += slab->bytes;
            continue;
        }
        missing -= sheaf__min_u64(missing, slab->n_free);
        ++*n_keep;
    }
    return missing;
}

/* Step 2. False: the range has no room for so many slabs, or the bytes do not fit. */
static bool plan_group(const sheaf_pool *pool, uint32_t g, uint64_t missing, sheaf__plan *plan)
{
    const sheaf__group *group = &pool->groups[g];
    uint64_t n_full = missing >> group->layout->slab_shift;
    uint64_t rest = missing & (group->layout->slab_blocks - 1);
    uint64_t room = group->max_slabs - group->first_slab - group->counts.slabs, bytes;
    if (n_full + (rest != 0) > room) return false;
    if (!sheaf__mul_u64(n_full, group->layout->slab_bytes, &bytes) ||
        !sheaf__add_u64(bytes, sheaf__layout_slab_bytes(&pool->layout, g, rest), &bytes) ||
        !sheaf__add_u64(plan->commit_bytes, bytes, &plan->commit_bytes))
        return false;
    plan->n_full[g] = (uint32_t)n_full;
    plan->last_rows[g] = (uint32_t)rest;
    return true;
}

uint64_t sheaf__grow_edge_bytes(const sheaf_pool *pool)
{
    uint64_t bytes = 0;
    if (pool->layout.n_groups == 1) return 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        if (!sheaf__add_u64(bytes, pool->layout.groups[g].slab_bytes, &bytes))
            return UINT64_MAX;
    return bytes;
}

/* Step 4. */
static void lengthen_last_slabs(const sheaf_pool *pool, uint64_t left, sheaf__plan *plan)
{
    uint64_t edge = sheaf__grow_edge_bytes(pool);
    left = left > edge ? left - edge : 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        const sheaf__group_layout *layout = &pool->layout.groups[g];
        if (plan->last_rows[g] == 0) continue;
        uint64_t least = sheaf__layout_slab_bytes(&pool->layout, g, plan->last_rows[g]);
        uint64_t rows =
            sheaf__min_u64((least + left) / layout->block_bytes, layout->slab_blocks);
        uint64_t bytes = sheaf__layout_slab_bytes(&pool->layout, g, rows);
        plan->last_rows[g] = (uint32_t)rows;
        plan->commit_bytes += bytes - least;
        left -= bytes - least;
    }
}

static uint64_t committed_bytes(const sheaf_pool *pool)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        bytes += pool->groups[g].counts.bytes_reserved;
    return bytes;
}

static bool make_plan(const sheaf_pool *pool, const uint32_t *counts, bool keep,
                      sheaf__plan *plan)
{
    memset(plan, 0, sizeof *plan);
    uint64_t room = pool->usable_bytes - committed_bytes(pool);
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        uint64_t missing =
            rows_missing(&pool->groups[g], counts[g], keep, &plan->n_keep[g], &room);
        if (!plan_group(pool, g, missing, plan)) return false;
    }
    if (plan->commit_bytes > room) return false;
    lengthen_last_slabs(pool, room - plan->commit_bytes, plan);
    return true;
}

bool sheaf__plan_make(const sheaf_pool *pool, const uint32_t *counts, sheaf__plan *plan)
{
    return make_plan(pool, counts, true, plan) || make_plan(pool, counts, false, plan);
}

/* ---- doing it ------------------------------------------------------------------------------ */

static uint32_t slabs_of(const sheaf__plan *plan, uint32_t g)
{
    return plan->n_full[g] + (plan->last_rows[g] != 0);
}

/* Gives back empty slabs that the plan does not need, until the new ones fit the budget. */
static void make_room(sheaf_pool *pool, const sheaf__plan *plan)
{
    uint64_t committed = committed_bytes(pool);
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        sheaf__group *group = &pool->groups[g];
        while (committed + plan->commit_bytes > pool->usable_bytes &&
               group->counts.slabs_empty > plan->n_keep[g]) {
            uint32_t last = sheaf__group_last_empty(group);
            committed -= group->slabs[last].bytes;
            sheaf__group_decommit(group, last, &pool->device);
        }
    }
}

/* Commits slab `i` of a group's plan: the whole ones first. */
static bool commit_planned(sheaf_pool *pool, const sheaf__plan *plan, uint32_t g, uint32_t i)
{
    sheaf__group *group = &pool->groups[g];
    uint32_t rows = i < plan->n_full[g] ? group->layout->slab_blocks : plan->last_rows[g];
    return sheaf__group_commit(group, rows, sheaf__layout_slab_bytes(&pool->layout, g, rows),
                               &pool->device);
}

static sheaf_status carry_out(sheaf_pool *pool, const sheaf__plan *plan)
{
    uint32_t n_groups = pool->layout.n_groups, done[SHEAF_MAX_GROUPS] = {0};
    for (uint32_t g = 0; g < n_groups; g++)
        SHEAF__TRY(sheaf__group_prepare(&pool->groups[g], slabs_of(plan, g), &pool->memory));
    make_room(pool, plan);
    bool given = true;
    for (uint32_t g = 0; g < n_groups && given; g++)
        while (done[g] < slabs_of(plan, g) && (given = commit_planned(pool, plan, g, done[g])))
            done[g]++;
    if (given) return SHEAF_OK;
    for (uint32_t g = 0; g < n_groups; g++)
        for (; done[g] != 0; done[g]--)
            sheaf__group_undo_commit(&pool->groups[g], &pool->device);
    return SHEAF_FULL;
}

sheaf_status sheaf__pool_grow(sheaf_pool *pool, const uint32_t *counts)
{
    sheaf__plan plan;
    bool possible = sheaf__plan_make(pool, counts, &plan);
    if (!possible) {
        sheaf__pool_collect(pool);
        possible = sheaf__plan_make(pool, counts, &plan);
    }
    sheaf_status st = possible ? carry_out(pool, &plan) : SHEAF_FULL;
    if (st == SHEAF_FULL) pool->full_answers++;
    return st;
}
