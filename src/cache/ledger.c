/* cache/ledger.c - the accounts of a prefix cache: limits, pins' bytes, resets, refusals, statistics.
 *
 *     named by the cache      held_blocks: counted where the tree takes and lets go
 *     by the cache alone      the pool counts them (pool/holder.h): also sequences change that
 *     kept by pins            pinned_blocks: blocks of nodes that are pinned, or above a pinned one
 */
#include "cache/tree.h"

#include <string.h>

/* ---- pins -------------------------------------------------------------------------------- */

/* Adds the resident blocks of a node, n times, to the pinned ones. */
static void count_pinned(sheaf_prefix *cache, const sheaf__node *node, int64_t n)
{
    for (uint32_t g = 0; g < cache->n_groups; g++)
        for (uint32_t i = 0; i < node->n_blocks; i++)
            if (sheaf__node_place(node, g, i)->state == SHEAF__BLOCK_RESIDENT)
                cache->pinned_blocks[g] += (uint64_t)n;
}

void sheaf__ledger_pin(sheaf_prefix *cache, sheaf__node *node, bool firm)
{
    node->n_pins++;
    for (sheaf__node *at = node; at != NULL; at = at->parent) {
        if (at->pinned_below == 0) count_pinned(cache, at, 1);
        at->pinned_below++;
        at->firm_below += firm;
    }
    sheaf__ledger_touch(cache, node);
}

void sheaf__ledger_unpin(sheaf_prefix *cache, sheaf__node *node, bool firm)
{
    node->n_pins--;
    for (sheaf__node *at = node; at != NULL; at = at->parent) {
        at->pinned_below--;
        at->firm_below -= firm;
        if (at->pinned_below == 0) count_pinned(cache, at, -1);
    }
    sheaf__ledger_touch(cache, node);
    sheaf__tree_tidy(cache, node);
}

/* ---- limits ------------------------------------------------------------------------------ */

static uint64_t pinned_bytes(const sheaf_prefix *cache)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < cache->n_groups; g++)
        bytes += cache->pinned_blocks[g] * sheaf__prefix_block_bytes(cache, g);
    return bytes;
}

/* Entries that are left when all has gone that may. */
static uint64_t pinned_entries(const sheaf_prefix *cache)
{
    uint64_t n = 0;
    for (const sheaf__node *node = sheaf__nodes_first(cache); node != NULL;
         node = sheaf__nodes_next(cache, node))
        n += node->n_pins != 0 && node->pinned_below == node->n_pins;
    return n;
}

sheaf_status sheaf_prefix_set_limits(sheaf_prefix *cache, const sheaf_prefix_options *options)
{
    sheaf_prefix_options complete;
    if (cache == NULL || options == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__prefix_read_options(options, &complete, NULL));
    sheaf__limits limits = sheaf__prefix_limits(cache->pool, &complete);
    uint64_t bytes = pinned_bytes(cache);
    sheaf__prefix_enter(cache);
    sheaf_status st = SHEAF_OK;
    if (bytes > limits.capacity_bytes || pinned_entries(cache) > limits.max_entries)
        st = sheaf__ledger_refuse(cache, SHEAF_REFUSED_PINS, bytes, limits.capacity_bytes, 0);
    else
        cache->limits = limits;
    if (st == SHEAF_OK) sheaf__ledger_expire(cache);
    sheaf__prefix_leave(cache);
    return st;
}

sheaf_status sheaf_prefix_evict(sheaf_prefix *cache, uint64_t bytes, uint64_t *freed)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    sheaf__prefix_enter(cache);
    uint64_t n = sheaf__evict_bytes(cache, bytes);
    sheaf__prefix_leave(cache);
    if (freed != NULL) *freed = n;
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_expire(sheaf_prefix *cache, uint32_t *n_entries)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    sheaf__prefix_enter(cache);
    uint32_t n = sheaf__ledger_expire(cache);
    sheaf__prefix_leave(cache);
    if (n_entries != NULL) *n_entries = n;
    return SHEAF_OK;
}

/* ---- letting go of what is named --------------------------------------------------------- */

/* Which leaves go: of a namespace (null: any), of a session (0: any). */
typedef struct choice {
    const sheaf_key *space;
    uint64_t session;
} choice;

static bool chosen(const choice *which, const sheaf__node *node)
{
    return sheaf__node_is_leaf(node) && node->parent != NULL && node->pinned_below == 0 &&
           (which->session == 0 || node->session == which->session);
}

/* Where the nodes of a choice begin. */
static sheaf__node *first_of(const sheaf_prefix *cache, const choice *which)
{
    if (which->space == NULL) return sheaf__nodes_first(cache);
    sheaf__node *node = sheaf__space_find(cache, which->space);
    while (node != NULL && !sheaf__node_is_leaf(node)) node = sheaf__node_first_child(node);
    return node;
}

/* Children come before their parents, so that a parent left alone goes in the same pass. Joining
 * waits until a node's own turn, and roots until the end: what comes next then stays. */
static uint32_t let_go_of(sheaf_prefix *cache, const choice *which)
{
    uint64_t before = cache->stats.evictions[SHEAF_LEFT_RESET];
    sheaf__node *root;
    sheaf__order_fall_begin(cache);
    for (sheaf__node *node = first_of(cache, which), *next; node != NULL; node = next) {
        bool last = node->parent == NULL && which->space != NULL;
        next = last ? NULL : sheaf__nodes_next(cache, node);
        if (chosen(which, node))
            sheaf__tree_take_out(cache, node, SHEAF_LEFT_RESET);
        else if (node->parent != NULL)
            sheaf__tree_tidy(cache, node);
    }
    sheaf__order_fall_end(cache);
    if (which->space == NULL)
        sheaf__space_sweep(cache);
    else if ((root = sheaf__space_find(cache, which->space)) != NULL)
        sheaf__tree_tidy(cache, root);
    return (uint32_t)(cache->stats.evictions[SHEAF_LEFT_RESET] - before);
}

void sheaf__ledger_clear(sheaf_prefix *cache)
{
    let_go_of(cache, &(choice){.space = NULL});
}

sheaf_status sheaf_prefix_reset(sheaf_prefix *cache, const sheaf_key *space,
                                uint32_t *n_entries)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    sheaf__prefix_enter(cache);
    sheaf__pins_revoke_space(cache, space);
    sheaf__claims_reset(cache, space);
    uint32_t n = let_go_of(cache, &(choice){.space = space});
    bool empty = space != NULL ? sheaf__space_find(cache, space) == NULL : cache->n_spaces == 0;
    if (empty) sheaf__event_cleared(cache, space);
    sheaf__prefix_leave(cache);
    if (n_entries != NULL) *n_entries = n;
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_release_session(sheaf_prefix *cache, uint64_t session,
                                          uint32_t *n_entries)
{
    if (cache == NULL || session == 0) return SHEAF_E_INVALID;
    sheaf__prefix_enter(cache);
    uint32_t n = let_go_of(cache, &(choice){.session = session});
    sheaf__prefix_leave(cache);
    if (n_entries != NULL) *n_entries = n;
    return SHEAF_OK;
}

/* ---- refusals and statistics ------------------------------------------------------------- */

sheaf_status sheaf__ledger_refuse(sheaf_prefix *cache, uint32_t reason, uint64_t needed,
                                  uint64_t possible, uint64_t tokens)
{
    sheaf_prefix_stats *stats = &cache->stats;
    stats->refusals[reason]++;
    stats->last_refusal = reason;
    stats->last_refusal_needed = needed;
    stats->last_refusal_possible = possible;
    stats->last_refusal_tokens = tokens;
    return SHEAF_REFUSED;
}

/* 0 stands for no limit, as in the options. */
static uint64_t shown(uint64_t limit)
{
    return limit == UINT64_MAX ? 0 : limit;
}

void sheaf__ledger_publish(sheaf_prefix *cache)
{
    sheaf_prefix_stats *stats = &cache->stats;
    stats->capacity_bytes = cache->limits.capacity_bytes;
    stats->max_entries = shown(cache->limits.max_entries);
    stats->ttl_ns = shown(cache->limits.ttl_ns);
    stats->spaces = cache->n_spaces;
    stats->blocks_held = stats->bytes_held = 0;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        stats->blocks_held += cache->held_blocks[g];
        stats->bytes_held += cache->held_blocks[g] * sheaf__prefix_block_bytes(cache, g);
    }
    stats->bytes_exclusive = sheaf__pool_tree_only_bytes(cache->pool);
    stats->bytes_pinned = pinned_bytes(cache);
    sheaf__snapshot_store(&cache->snapshot, cache->snapshot_words, stats,
                          sizeof *stats / sizeof(uint64_t));
}

sheaf_status sheaf_prefix_stats_read(const sheaf_prefix *cache, sheaf_prefix_stats *out)
{
    if (cache == NULL || out == NULL) return SHEAF_E_INVALID;
    sheaf_prefix_stats stats;
    sheaf__snapshot_load(&cache->snapshot, cache->snapshot_words, &stats,
                         sizeof stats / sizeof(uint64_t));
    return sheaf__struct_give(out, &stats, sizeof stats);
}
