/* pool/pool.c - opening and closing, and who holds which block.
 *
 * Invariants, between public calls; sheaf_pool_check verifies them by number:
 *
 *   1. In each slab, n_free is the number of set bits in free_bits, and these are the rows whose
 *      state is free. Only committed rows have another state than free.
 *   2. A held row has total > 0 references, the sum of by_kind; a free or retiring row has none.
 *   3. A committed slab with a free row is in the list of its free rows (the empty list when all
 *      are); one without is in none; a slab that is not committed is in the list of those.
 *   4. free + held + retiring = capacity in each group, and each count is what the rows say.
 *   5. A group's retiring list names each retiring row once.
 *   6. Committed bytes are the sum over slabs, at most the budget; slabs appended less slabs
 *      released are those committed now.
 *   7. The pool's counts of references by kind are the sums over all rows.
 *   8. For tables, parked sequences and trees: each row's count of the kind is the number of times
 *      that the registered owners of this kind name it.
 *   9. A group's count of blocks that trees alone own, and a slab's of those that can move, are what
 *      the rows say.
 *  10. Only a row with a reference of kind TREE has a holder.
 *
 * A handle's generation is compared with its row's, which changes when the last reference goes: so
 * a handle is valid exactly as long as its block is held. After 2^32 uses of one row a handle kept
 * all the while would be taken for the new one.
 */
#include "pool/pool.h"

#include <string.h>

#include "base/bits.h"
#include "pool/flight.h"
#include "pool/grow.h"
#include "pool/holder.h"

#define NO_KIND SHEAF_OWNER_KINDS

/* ---- entering and leaving ------------------------------------------------------------------ */

void sheaf__pool_enter(sheaf_pool *pool)
{
#if SHEAF_CHECK >= 1
    SHEAF__ASSERT(atomic_exchange_explicit(&pool->entered, 1, memory_order_acquire) == 0);
#else
    (void)pool;
#endif
}

void sheaf__pool_leave(sheaf_pool *pool)
{
    sheaf__pool_publish(pool);
#if SHEAF_CHECK >= 1
    atomic_store_explicit(&pool->entered, 0, memory_order_release);
#endif
}

void sheaf__pool_publish(sheaf_pool *pool)
{
    if (pool->keeper != NULL) pool->keeper->settle(pool->keeper);
    sheaf__stats_store(pool);
#if SHEAF_CHECK >= 2
    SHEAF__ASSERT(sheaf__pool_check_rows(pool, NULL) == SHEAF_OK);
#endif
}

/* ---- opening ------------------------------------------------------------------------------- */

static sheaf_status check_hooks(const sheaf_allocator *allocator,
                                const sheaf_slab_memory *memory, sheaf_error *err)
{
    if (allocator != NULL && (allocator->alloc == NULL || allocator->free == NULL))
        return sheaf__error_set(err, SHEAF_E_INVALID, "allocator: alloc or free is null");
    if (memory->reserve == NULL || memory->commit == NULL || memory->decommit == NULL ||
        memory->release == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "slab_memory: a function is null");
    if (!sheaf__is_pow2(memory->granularity) || memory->granularity < SHEAF__TILE_ALIGN)
        return sheaf__error_set(err, SHEAF_E_INVALID,
                                "slab_memory: granularity must be a power of two from %d",
                                SHEAF__TILE_ALIGN);
    return SHEAF_OK;
}

static sheaf_status check_budget(sheaf_pool *pool, uint64_t budget, sheaf_error *err)
{
    if (budget == 0) budget = pool->device.memory_bytes;
    pool->budget_bytes = budget != 0 ? budget : sheaf__device_machine_bytes();
    pool->usable_bytes = pool->budget_bytes & ~(pool->layout.granularity - 1);
    uint64_t least = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        if (!sheaf__add_u64(least, sheaf__layout_slab_bytes(&pool->layout, g, 1), &least))
            return sheaf__error_set(err, SHEAF_E_OVERFLOW, "the blocks do not fit 64 bits");
    if (least > pool->usable_bytes)
        return sheaf__error_set(
            err, SHEAF_E_LAYOUT,
            "budget_bytes is %llu; one block of each group takes %llu bytes",
            (unsigned long long)pool->budget_bytes, (unsigned long long)least);
    return SHEAF_OK;
}

/* As many slabs as the budget can hold, and one for a short one. With several groups short slabs come
 * where another group has shrunk, so the range has twice the room; and at the budget's edge, down to
 * one row each. It is only addresses. */
static uint32_t slabs_in_range(const sheaf_pool *pool, uint32_t g)
{
    const sheaf__group_layout *layout = &pool->layout.groups[g];
    uint64_t slabs = pool->usable_bytes / layout->slab_bytes + 1;
    uint64_t edge = sheaf__min_u64(sheaf__grow_edge_bytes(pool), pool->usable_bytes);
    if (pool->layout.n_groups > 1) slabs *= 2;
    slabs += edge / sheaf__layout_slab_bytes(&pool->layout, g, 1);
    return (uint32_t)sheaf__min_u64(slabs, SHEAF_ROW_NONE / layout->slab_blocks);
}

static sheaf_status skip_slabs(sheaf_pool *pool, sheaf__group *group, uint32_t first_slab)
{
    void *slabs = NULL;
    group->first_slab = group->n_slabs = first_slab;
    sheaf_status st = sheaf__memory_grow(&pool->memory, &slabs, &group->slabs_capacity,
                                         first_slab, sizeof group->slabs[0]);
    group->slabs = slabs;
    return st;
}

/* Why sheaf__group_open failed. */
static sheaf_status explain(const sheaf_pool *pool, uint32_t g, sheaf_status st,
                            sheaf_error *err)
{
    const sheaf__group *group = &pool->groups[g];
    unsigned long long range = group->range_bytes, budget = pool->budget_bytes;
    if (st == SHEAF_E_OVERFLOW)
        return sheaf__error_set(
            err, st, "group %u: the address range for a budget_bytes of %llu does not fit", g,
            budget);
    if (st == SHEAF_E_INVALID)
        return sheaf__error_set(
            err, st, "slab_memory: reserve gave an address that is no multiple of granularity");
    if (group->heads == NULL || group->occupied == NULL)
        return sheaf__error_set(err, st, "no host memory");
    return sheaf__error_set(
        err, st, "group %u: no address range of %llu bytes for a budget_bytes of %llu", g,
        range, budget);
}

static sheaf_status open_groups(sheaf_pool *pool, uint32_t first_slab, sheaf_error *err)
{
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        sheaf_status st =
            sheaf__group_open(&pool->groups[g], &pool->layout.groups[g],
                              slabs_in_range(pool, g), &pool->device, &pool->memory);
        if (st == SHEAF_OK && first_slab != 0)
            st = skip_slabs(pool, &pool->groups[g], first_slab);
        if (st != SHEAF_OK) return explain(pool, g, st, err);
    }
    return SHEAF_OK;
}

/* Host memory for one tile of any layer, where slab memory is not the host's. */
static sheaf_status open_staging(sheaf_pool *pool, sheaf_error *err)
{
    uint64_t most = 0;
    if (sheaf__pool_is_host(pool)) return SHEAF_OK;
    for (uint32_t i = 0; i < pool->layout.n_layers; i++) {
        const sheaf__layer_layout *place = &pool->layout.layers[i];
        uint64_t heads = place->layer.n_kv_heads;
        most = sheaf__max_u64(most, heads * place->k_segment_bytes);
        most = sheaf__max_u64(most, heads * place->v_segment_bytes);
    }
    pool->staging = sheaf__memory_alloc_aligned(&pool->memory, most, 1, SHEAF__TILE_ALIGN);
    if (pool->staging == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory for a tile");
    pool->staging_bytes = most;
    return SHEAF_OK;
}

static void destroy(sheaf_pool *pool)
{
    sheaf__memory_free_aligned(&pool->memory, pool->staging, pool->staging_bytes, 1,
                               SHEAF__TILE_ALIGN);
    sheaf__memory_free(&pool->memory, pool->flights, pool->flights_capacity,
                       sizeof pool->flights[0]);
    for (uint32_t g = 0; g < SHEAF_MAX_GROUPS; g++)
        sheaf__group_close(&pool->groups[g], &pool->device, &pool->memory);
    sheaf__layout_destroy(&pool->layout, &pool->memory);
    sheaf__memory memory = pool->memory;
    if (pool->opened_on != NULL)
        atomic_fetch_sub_explicit(&pool->opened_on->n_pools, 1, memory_order_release);
    SHEAF__ASSERT(memory.live_bytes == sizeof *pool);
    sheaf__memory_free(&memory, pool, 1, sizeof *pool);
}

static sheaf_status open_complete(const sheaf_pool_options *options,
                                  const sheaf__device *device, uint32_t first_slab,
                                  sheaf_pool **out, sheaf_error *err)
{
    SHEAF__TRY(check_hooks(options->allocator, &device->memory, err));
    sheaf__memory memory;
    sheaf__memory_init(&memory, options->allocator);
    sheaf_pool *pool = sheaf__memory_alloc(&memory, 1, sizeof *pool);
    if (pool == NULL) return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory");
    pool->memory = memory;
    pool->device = *device;
    pool->slack_slabs =
        options->slack_slabs == 0 && !options->no_slack ? 1 : options->slack_slabs;
    sheaf__list_init(&pool->owners);
    sheaf_status st = sheaf__layout_create(options, device->memory.granularity, &pool->memory,
                                           &pool->layout, err);
    if (st == SHEAF_OK) st = check_budget(pool, options->budget_bytes, err);
    if (st == SHEAF_OK) st = open_staging(pool, err);
    if (st == SHEAF_OK) st = open_groups(pool, first_slab, err);
    if (st != SHEAF_OK) {
        destroy(pool);
        return st;
    }
    sheaf__pool_publish(pool);
    *out = pool;
    return SHEAF_OK;
}

sheaf_status sheaf__pool_open_on(const sheaf_pool_options *options, const sheaf__device *device,
                                 uint32_t first_slab, sheaf_pool **out, sheaf_error *err)
{
    if (options == NULL || out == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "options or out is null");
    sheaf_pool_options complete;
    SHEAF__TRY(sheaf__struct_take(&complete, sizeof complete, options, err));
    return open_complete(&complete, device, first_slab, out, err);
}

sheaf_status sheaf_pool_open(const sheaf_pool_options *options, sheaf_pool **out,
                             sheaf_error *err)
{
    if (options == NULL || out == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "options or out is null");
    sheaf_pool_options complete;
    SHEAF__TRY(sheaf__struct_take(&complete, sizeof complete, options, err));
    if (complete.device == NULL) {
        sheaf__device device = sheaf__device_cpu(complete.slab_memory);
        return open_complete(&complete, &device, 0, out, err);
    }
    if (complete.slab_memory != NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID,
                                "slab_memory and device: a device brings its own memory");
    sheaf_pool *pool = NULL;
    SHEAF__TRY(open_complete(&complete, &complete.device->door, 0, &pool, err));
    pool->opened_on = complete.device;
    atomic_fetch_add_explicit(&complete.device->n_pools, 1, memory_order_relaxed);
    *out = pool;
    return SHEAF_OK;
}

sheaf_status sheaf_pool_close(sheaf_pool *pool)
{
    if (pool == NULL) return SHEAF_OK;
    sheaf__pool_enter(pool);
    bool busy = sheaf__pool_collect(pool) != 0 || !sheaf__list_empty(&pool->owners);
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        busy = busy || pool->groups[g].counts.held != 0;
    sheaf__pool_leave(pool);
    if (busy) return SHEAF_E_BUSY;
    destroy(pool);
    return SHEAF_OK;
}

/* ---- layout -------------------------------------------------------------------------------- */

uint32_t sheaf_pool_layers(const sheaf_pool *pool)
{
    return pool->layout.n_layers;
}

uint32_t sheaf_pool_groups(const sheaf_pool *pool)
{
    return pool->layout.n_groups;
}

uint32_t sheaf_pool_block_tokens(const sheaf_pool *pool)
{
    return pool->layout.block_tokens;
}

uint64_t sheaf_pool_fingerprint(const sheaf_pool *pool)
{
    return pool->layout.fingerprint;
}

const void *sheaf_pool_base(const sheaf_pool *pool, uint32_t group)
{
    return group < pool->layout.n_groups ? pool->groups[group].base : NULL;
}

sheaf_status sheaf_pool_layer(const sheaf_pool *pool, uint32_t layer, sheaf_layer *out)
{
    if (pool == NULL || out == NULL || layer >= pool->layout.n_layers) return SHEAF_E_INVALID;
    *out = pool->layout.layers[layer].layer;
    return SHEAF_OK;
}

sheaf_status sheaf_pool_layer_info(const sheaf_pool *pool, uint32_t layer,
                                   sheaf_layer_info *out)
{
    if (pool == NULL || out == NULL || layer >= pool->layout.n_layers) return SHEAF_E_INVALID;
    const sheaf__layer_layout *layout = &pool->layout.layers[layer];
    sheaf_layer_info info = {.group = layout->group,
                             .k_offset = layout->k_offset,
                             .v_offset = layout->v_offset,
                             .k_segment_bytes = layout->k_segment_bytes,
                             .v_segment_bytes = layout->v_segment_bytes};
    return sheaf__struct_give(out, &info, sizeof info);
}

sheaf_status sheaf_pool_group_info(const sheaf_pool *pool, uint32_t group,
                                   sheaf_group_info *out)
{
    if (pool == NULL || out == NULL || group >= pool->layout.n_groups) return SHEAF_E_INVALID;
    const sheaf__group_layout *layout = &pool->layout.groups[group];
    uint64_t slabs = pool->groups[group].max_slabs;
    sheaf_group_info info = {.n_layers = layout->n_layers,
                             .window = layout->window,
                             .slab_blocks = layout->slab_blocks,
                             .block_bytes = layout->block_bytes,
                             .tile_bytes = layout->tile_bytes,
                             .slab_bytes = layout->slab_bytes,
                             .max_rows = slabs << layout->slab_shift};
    return sheaf__struct_give(out, &info, sizeof info);
}

/* ---- taking -------------------------------------------------------------------------------- */

static void take_rows(sheaf_pool *pool, uint32_t g, uint32_t count, uint32_t owner,
                      sheaf_block *blocks)
{
    sheaf__group *group = &pool->groups[g];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t row = sheaf__group_take(group);
        sheaf__record *record = sheaf__record_for_row(group, row);
        record->state = SHEAF__ROW_HELD;
        record->total = record->by_kind[owner] = 1;
        blocks[i] = (sheaf_block){g, row, record->generation};
    }
    group->counts.held += count;
    group->counts.acquired += count;
    if (owner == SHEAF_OWNER_TREE) group->counts.tree_only += count;
    pool->owner_counts[owner] += count;
}

sheaf_status sheaf_pool_acquire(sheaf_pool *pool, const uint32_t *counts, uint32_t owner,
                                sheaf_block *blocks)
{
    if (pool == NULL || counts == NULL || owner >= SHEAF_OWNER_KINDS) return SHEAF_E_INVALID;
    uint64_t total = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) total += counts[g];
    if (total != 0 && blocks == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(pool->fault);
    sheaf__pool_enter(pool);
    sheaf_status st = sheaf__pool_grow(pool, counts);
    for (uint32_t g = 0; st == SHEAF_OK && g < pool->layout.n_groups; g++) {
        take_rows(pool, g, counts[g], owner, blocks);
        blocks = blocks == NULL ? NULL : blocks + counts[g];
    }
    sheaf__pool_leave(pool);
    return st;
}

sheaf_status sheaf_pool_can_acquire(const sheaf_pool *pool, const uint32_t *counts)
{
    if (pool == NULL || counts == NULL) return SHEAF_E_INVALID;
    sheaf__plan plan;
    if (sheaf__plan_make(pool, counts, &plan)) return SHEAF_OK;
    /* As acquire does: look whether retiring blocks have become free. No pool is a const object. */
    sheaf_pool_poll((sheaf_pool *)pool);
    return sheaf__plan_make(pool, counts, &plan) ? SHEAF_OK : SHEAF_FULL;
}

sheaf_status sheaf_pool_presize(sheaf_pool *pool, const uint32_t *counts)
{
    if (pool == NULL || counts == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(pool->fault);
    sheaf__pool_enter(pool);
    sheaf_status st = sheaf__pool_grow(pool, counts);
    sheaf__pool_leave(pool);
    return st;
}

/* ---- holding ------------------------------------------------------------------------------- */

/* Turns a reference of a held row of kind `from` into one of kind `to`, either of which may be
 * NO_KIND, and keeps the counts that follow from references. There is one of kind `from`. */
static void change_reference(sheaf_pool *pool, sheaf_block block, uint32_t from, uint32_t to)
{
    sheaf__group *group = &pool->groups[block.group];
    sheaf__slab *slab = sheaf__slab_for_row_mut(group, block.row);
    sheaf__record *record = sheaf__record_for_row(group, block.row);
    group->counts.shared -= record->total > 1;
    group->counts.tree_only -= sheaf__record_tree_only(record);
    slab->n_movable -= sheaf__record_movable(record);
    if (from != NO_KIND) {
        record->by_kind[from]--;
        record->total--;
        pool->owner_counts[from]--;
    }
    if (to != NO_KIND) {
        record->by_kind[to]++;
        record->total++;
        pool->owner_counts[to]++;
    }
    if (record->by_kind[SHEAF_OWNER_TREE] == 0) record->holder = NULL;
    group->counts.shared += record->total > 1;
    group->counts.tree_only += sheaf__record_tree_only(record);
    slab->n_movable += sheaf__record_movable(record);
}

sheaf_status sheaf__block_retain(sheaf_pool *pool, sheaf_block block, uint32_t owner)
{
    if (owner >= SHEAF_OWNER_KINDS) return SHEAF_E_INVALID;
    sheaf__record *record = sheaf__pool_live(pool, block);
    if (record == NULL) return SHEAF_E_STALE;
    if (record->total == UINT32_MAX) return SHEAF_E_OVERFLOW;
    change_reference(pool, block, NO_KIND, owner);
    return SHEAF_OK;
}

/* The empty fence has always passed, on every device. */
static bool fence_passed(const sheaf_pool *pool, uint64_t fence)
{
    if (fence == 0) return true;
    return pool->device.fence_passed(pool->device.ctx, (sheaf_fence){fence});
}

/* The last reference has gone: the handle is stale from here on, the row free or retiring. */
static void retire(sheaf_pool *pool, sheaf__group *group, uint32_t row, sheaf_fence fence)
{
    sheaf__record *record = sheaf__record_for_row(group, row);
    record->generation = sheaf__generation_after(record->generation);
    group->counts.held--;
    group->counts.released++;
    if (fence_passed(pool, fence.value)) {
        record->state = SHEAF__ROW_FREE;
        sheaf__group_put(group, row, pool->slack_slabs, &pool->device);
        return;
    }
    record->state = SHEAF__ROW_RETIRING;
    record->fence = fence.value;
    record->next_retiring = group->retiring;
    group->retiring = row;
    group->counts.retiring++;
}

static sheaf_status drop(sheaf_pool *pool, sheaf_block block, uint32_t owner, sheaf_fence fence)
{
    if (owner >= SHEAF_OWNER_KINDS) return SHEAF_E_INVALID;
    sheaf__record *record = sheaf__pool_live(pool, block);
    if (record == NULL) return SHEAF_E_STALE;
    if (record->by_kind[owner] == 0) return SHEAF_E_NOT_OWNED;
    change_reference(pool, block, owner, NO_KIND);
    if (record->total == 0) retire(pool, &pool->groups[block.group], block.row, fence);
    return SHEAF_OK;
}

sheaf_status sheaf__block_release(sheaf_pool *pool, sheaf_block block, uint32_t owner)
{
    return drop(pool, block, owner, (sheaf_fence){0});
}

sheaf_status sheaf__block_transfer(sheaf_pool *pool, sheaf_block block, uint32_t from,
                                   uint32_t to)
{
    if (from >= SHEAF_OWNER_KINDS || to >= SHEAF_OWNER_KINDS) return SHEAF_E_INVALID;
    sheaf__record *record = sheaf__pool_live(pool, block);
    if (record == NULL) return SHEAF_E_STALE;
    if (record->by_kind[from] == 0) return SHEAF_E_NOT_OWNED;
    change_reference(pool, block, from, to);
    return SHEAF_OK;
}

uint64_t sheaf__pool_collect(sheaf_pool *pool)
{
    uint64_t left = sheaf__flights_land(pool);
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        sheaf__group *group = &pool->groups[g];
        uint32_t *link = &group->retiring;
        while (*link != SHEAF_ROW_NONE) {
            uint32_t row = *link;
            sheaf__record *record = sheaf__record_for_row(group, row);
            if (!fence_passed(pool, record->fence)) {
                link = &record->next_retiring;
                continue;
            }
            *link = record->next_retiring;
            record->state = SHEAF__ROW_FREE;
            group->counts.retiring--;
            sheaf__group_put(group, row, pool->slack_slabs, &pool->device);
        }
        left += group->counts.retiring;
    }
    if (pool->device.settle != NULL) pool->device.settle(pool->device.ctx);
    return left;
}

sheaf_status sheaf_pool_retain(sheaf_pool *pool, sheaf_block block, uint32_t owner)
{
    if (pool == NULL) return SHEAF_E_INVALID;
    sheaf__pool_enter(pool);
    sheaf_status st = sheaf__block_retain(pool, block, owner);
    sheaf__pool_leave(pool);
    return st;
}

sheaf_status sheaf_pool_release(sheaf_pool *pool, sheaf_block block, uint32_t owner)
{
    return sheaf_pool_release_after(pool, block, owner, (sheaf_fence){0});
}

sheaf_status sheaf_pool_release_after(sheaf_pool *pool, sheaf_block block, uint32_t owner,
                                      sheaf_fence fence)
{
    if (pool == NULL) return SHEAF_E_INVALID;
    sheaf__pool_enter(pool);
    sheaf_status st = drop(pool, block, owner, fence);
    sheaf__pool_leave(pool);
    return st;
}

sheaf_status sheaf_pool_transfer(sheaf_pool *pool, sheaf_block block, uint32_t from,
                                 uint32_t to)
{
    if (pool == NULL) return SHEAF_E_INVALID;
    sheaf__pool_enter(pool);
    sheaf_status st = sheaf__block_transfer(pool, block, from, to);
    sheaf__pool_leave(pool);
    return st;
}

uint64_t sheaf_pool_poll(sheaf_pool *pool)
{
    if (pool == NULL) return 0;
    sheaf__pool_enter(pool);
    uint64_t left = sheaf__pool_collect(pool);
    sheaf__pool_leave(pool);
    return left;
}

/* ---- reaching ------------------------------------------------------------------------------ */

/* Keeps the first fault; no pool is a const object. */
static sheaf_status note_fault(const sheaf_pool *pool, sheaf_status st)
{
    if (st != SHEAF_OK && pool->fault == SHEAF_OK) ((sheaf_pool *)pool)->fault = st;
    return st;
}

sheaf_status sheaf__pool_read(const sheaf_pool *pool, void *to, const unsigned char *from,
                              uint64_t bytes)
{
    return note_fault(pool, sheaf__device_read(&pool->device, to, from, bytes));
}

sheaf_status sheaf__pool_write(const sheaf_pool *pool, unsigned char *to, const void *from,
                               uint64_t bytes)
{
    return note_fault(pool, sheaf__device_write(&pool->device, to, from, bytes));
}

sheaf_status sheaf__pool_copy_row(sheaf_pool *pool, uint32_t g, uint32_t from, uint32_t to)
{
    sheaf__group *group = &pool->groups[g];
    group->counts.copied++;
    return note_fault(pool, pool->device.copy(pool->device.ctx, sheaf__row_address(group, to),
                                              sheaf__row_address(group, from),
                                              group->layout->block_bytes));
}

static sheaf_status copy(sheaf_pool *pool, sheaf_block from, sheaf_block to)
{
    if (sheaf__pool_live(pool, from) == NULL || sheaf__pool_live(pool, to) == NULL)
        return SHEAF_E_STALE;
    if (from.group != to.group) return SHEAF_E_INVALID;
    if (from.row == to.row) return SHEAF_OK;
    return sheaf__pool_copy_row(pool, from.group, from.row, to.row);
}

sheaf_status sheaf_pool_copy(sheaf_pool *pool, sheaf_block from, sheaf_block to)
{
    if (pool == NULL) return SHEAF_E_INVALID;
    sheaf__pool_enter(pool);
    sheaf_status st = copy(pool, from, to);
    sheaf__pool_leave(pool);
    return st;
}

sheaf_status sheaf_pool_address(sheaf_pool *pool, sheaf_block block, void **out)
{
    if (pool == NULL || out == NULL) return SHEAF_E_INVALID;
    if (sheaf__pool_live(pool, block) == NULL) return SHEAF_E_STALE;
    *out = sheaf__pool_row(pool, block.group, block.row);
    return SHEAF_OK;
}

sheaf_status sheaf_pool_references(const sheaf_pool *pool, sheaf_block block, uint32_t *total,
                                   uint32_t *by_kind)
{
    if (pool == NULL || total == NULL) return SHEAF_E_INVALID;
    const sheaf__record *record = sheaf__pool_live(pool, block);
    if (record == NULL) return SHEAF_E_STALE;
    *total = record->total;
    if (by_kind != NULL) memcpy(by_kind, record->by_kind, sizeof record->by_kind);
    return SHEAF_OK;
}

/* ---- owners -------------------------------------------------------------------------------- */

void sheaf__pool_register(sheaf_pool *pool, sheaf__owner *owner)
{
    sheaf__list_insert(&pool->owners, &owner->link);
}

void sheaf__pool_unregister(sheaf_pool *pool, sheaf__owner *owner)
{
    (void)pool;
    sheaf__list_remove(&owner->link);
}
