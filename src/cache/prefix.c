/* cache/prefix.c - opening and closing a prefix cache, and what stands around every call.
 *
 *     enter --- a call: match, publish, reserve, pin, evict ... --- leave
 *                                                                     | limits hold
 *     the pool, after a call that changed it --- settle ------------->| statistics are what they are
 *                                                                     | both snapshots say so
 */
#include "cache/tree.h"

#include <string.h>

#include "base/clock.h"

#define DEFAULT_CLAIM_TIMEOUT_NS 30000000000ull /* sheaf/prefix.h: 30 s */

uint32_t sheaf__prefix_window(const sheaf_prefix *cache, uint32_t group)
{
    return sheaf__pool_layout(cache->pool)->groups[group].window;
}

uint64_t sheaf__prefix_block_bytes(const sheaf_prefix *cache, uint32_t group)
{
    return sheaf__pool_layout(cache->pool)->groups[group].block_bytes;
}

uint32_t sheaf__prefix_first_needed(const sheaf_prefix *cache, uint32_t group, uint32_t length)
{
    uint32_t bt = cache->block_tokens, whole = length - length % bt;
    return sheaf__visible_begin(whole, sheaf__prefix_window(cache, group)) / bt;
}

uint64_t sheaf__prefix_entry_bytes(const sheaf_prefix *cache, uint32_t n)
{
    uint32_t bt = cache->block_tokens;
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        uint32_t first = sheaf__prefix_first_needed(cache, g, n);
        bytes +=
            (uint64_t)(sheaf__blocks_of(n, bt) - first) * sheaf__prefix_block_bytes(cache, g);
    }
    return bytes;
}

uint64_t sheaf__prefix_now(const sheaf_prefix *cache)
{
    return cache->clock.now_ns(cache->clock.ctx);
}

/* ---- around every call ------------------------------------------------------------------- */

void sheaf__prefix_enter(sheaf_prefix *cache)
{
    cache->inside++;
}

static void verify(const sheaf_prefix *cache)
{
#if SHEAF_CHECK >= 2
    sheaf_error err = {0};
    sheaf_status st = sheaf_prefix_check(cache, &err);
    sheaf__assert(st == SHEAF_OK, err.text, __FILE__, __LINE__);
#else
    (void)cache;
#endif
}

void sheaf__prefix_leave(sheaf_prefix *cache)
{
    if (cache->inside == 1) {
        sheaf__ledger_settle(cache);
        sheaf__pool_publish(cache->pool);
        sheaf__ledger_publish(cache);
        verify(cache);
#if SHEAF_CHECK >= 2
        SHEAF__ASSERT(sheaf_pool_check(cache->pool, NULL) == SHEAF_OK);
#endif
    }
    cache->inside--;
}

sheaf_status sheaf__prompt_check(const sheaf_prompt *prompt)
{
    if (prompt == NULL || prompt->struct_size < sizeof *prompt) return SHEAF_E_INVALID;
    if (prompt->space == NULL || prompt->n_tokens > INT32_MAX) return SHEAF_E_INVALID;
    if (prompt->tokens == NULL && prompt->n_tokens != 0) return SHEAF_E_INVALID;
    if (prompt->priority < SHEAF_PRIORITY_MIN || prompt->priority > SHEAF_PRIORITY_MAX)
        return SHEAF_E_INVALID;
    int32_t any = 0;
    for (uint32_t i = 0; i < prompt->n_tokens; i++) any |= prompt->tokens[i];
    return any >= 0 ? SHEAF_OK : SHEAF_E_INVALID;
}

/* ---- as the pool sees it ----------------------------------------------------------------- */

static void visit_blocks(const sheaf__owner *owner, sheaf__named_fn *fn, void *ctx)
{
    const sheaf_prefix *cache = SHEAF__CONTAINER(owner, const sheaf_prefix, owner);
    for (const sheaf__node *node = sheaf__nodes_first(cache); node != NULL;
         node = sheaf__nodes_next(cache, node))
        for (uint32_t g = 0; g < cache->n_groups; g++)
            for (uint32_t i = 0; i < node->n_blocks; i++) {
                sheaf_block block = sheaf__node_block(node, g, i);
                if (block.row != SHEAF_ROW_NONE) fn(ctx, block);
            }
}

static void block_moved(sheaf__keeper *keeper, void *holder, uint32_t index, sheaf_block to)
{
    (void)keeper;
    sheaf__place *place = sheaf__node_place(holder, to.group, index);
    place->row = to.row;
    place->generation = to.generation;
}

/* Cheap when nothing has to be done: the pool asks after each of its calls. */
static void settle(sheaf__keeper *keeper)
{
    sheaf_prefix *cache = SHEAF__CONTAINER(keeper, sheaf_prefix, keeper);
    if (cache->inside != 0) return;
    uint64_t alone = sheaf__pool_tree_only_bytes(cache->pool);
    if (alone == cache->stats.bytes_exclusive) return;
    cache->inside++;
    if (alone > cache->limits.capacity_bytes) sheaf__ledger_settle(cache);
    sheaf__ledger_publish(cache);
    cache->inside--;
    verify(cache);
}

/* ---- opening ----------------------------------------------------------------------------- */

sheaf_status sheaf__prefix_read_options(const sheaf_prefix_options *from,
                                        sheaf_prefix_options *to, sheaf_error *err)
{
    SHEAF__TRY(sheaf__struct_take(to, sizeof *to, from, err));
    if (to->clock != NULL && to->clock->now_ns == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "clock: now_ns is null");
    return SHEAF_OK;
}

sheaf__limits sheaf__prefix_limits(const sheaf_pool *pool, const sheaf_prefix_options *options)
{
    sheaf__limits limits = {pool->budget_bytes, UINT64_MAX, UINT64_MAX};
    if (options->capacity_bytes != 0) limits.capacity_bytes = options->capacity_bytes;
    if (options->max_entries != 0) limits.max_entries = options->max_entries;
    if (options->ttl_ns != 0) limits.ttl_ns = options->ttl_ns;
    return limits;
}

static uint64_t system_now(void *ctx)
{
    (void)ctx;
    return sheaf__clock_ns();
}

static void set_up(sheaf_prefix *cache, sheaf_pool *pool, const sheaf_prefix_options *options)
{
    cache->pool = pool;
    cache->n_groups = pool->layout.n_groups;
    cache->block_tokens = pool->layout.block_tokens;
    cache->owner.kind = SHEAF_OWNER_TREE;
    cache->owner.visit = visit_blocks;
    cache->keeper.moved = block_moved;
    cache->keeper.settle = settle;
    cache->limits = sheaf__prefix_limits(pool, options);
    cache->clock = (sheaf_clock){NULL, system_now};
    if (options->clock != NULL) cache->clock = *options->clock;
    for (uint32_t i = 0; i < SHEAF__LEVELS; i++) sheaf__list_init(&cache->levels[i]);
    sheaf__list_init(&cache->chunks);
    sheaf__list_init(&cache->pins);
    sheaf__list_init(&cache->claims);
    cache->next_id = 1;
    cache->claim_timeout_ns =
        options->claim_timeout_ns != 0 ? options->claim_timeout_ns : DEFAULT_CLAIM_TIMEOUT_NS;
    cache->on_event = options->on_event;
    cache->on_event_ctx = options->on_event_ctx;
    cache->stats.struct_size = sizeof cache->stats;
    cache->stats.host_bytes = sizeof *cache;
    cache->twigs.memory = sheaf__pool_memory(pool);
    cache->twigs.host_bytes = &cache->stats.host_bytes;
}

static sheaf_status open_complete(sheaf_pool *pool, const sheaf_prefix_options *options,
                                  sheaf_prefix **out, sheaf_error *err)
{
    sheaf_key key = {{0}};
    if (sheaf_key_next(&key, &(int32_t){0}, 1, &key) != SHEAF_OK)
        return sheaf__error_set(err, SHEAF_E_UNSUPPORTED, "libcrypto has no SHA-256");
    sheaf_prefix *cache = sheaf__memory_alloc(sheaf__pool_memory(pool), 1, sizeof *cache);
    if (cache == NULL) return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory");
    set_up(cache, pool, options);
    sheaf_status st = sheaf__index_open(cache);
    if (st != SHEAF_OK) {
        st = sheaf__error_set(err, st, "no host memory");
    } else {
        st = sheaf__pool_set_keeper(pool, &cache->keeper);
        if (st != SHEAF_OK) sheaf__error_set(err, st, "the pool has a prefix cache");
    }
    if (st != SHEAF_OK) {
        sheaf__index_close(cache);
        sheaf__memory_free(sheaf__pool_memory(pool), cache, 1, sizeof *cache);
        return st;
    }
    sheaf__pool_register(pool, &cache->owner);
    sheaf__prefix_enter(cache);
    sheaf__prefix_leave(cache);
    *out = cache;
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_open(sheaf_pool *pool, const sheaf_prefix_options *options,
                               sheaf_prefix **out, sheaf_error *err)
{
    if (pool == NULL || options == NULL || out == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "pool, options or out is null");
    sheaf_prefix_options complete;
    SHEAF__TRY(sheaf__prefix_read_options(options, &complete, err));
    return open_complete(pool, &complete, out, err);
}

void sheaf_prefix_close(sheaf_prefix *cache)
{
    if (cache == NULL) return;
    sheaf_pool *pool = cache->pool;
    sheaf__prefix_enter(cache);
    sheaf__claims_close(cache);
    sheaf__pins_close(cache);
    sheaf__ledger_clear(cache);
    sheaf__reserve_close(cache);
    sheaf__twigs_close(&cache->twigs);
    sheaf__pool_unregister(pool, &cache->owner);
    sheaf__pool_clear_keeper(pool);
    sheaf__prefix_free(cache, cache->spaces, cache->spaces_capacity, sizeof(sheaf__node *));
    sheaf__index_close(cache);
    SHEAF__ASSERT(cache->stats.host_bytes == sizeof *cache);
    sheaf__memory_free(sheaf__pool_memory(pool), cache, 1, sizeof *cache);
    sheaf__pool_publish(pool);
}
