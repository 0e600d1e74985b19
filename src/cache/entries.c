/* cache/entries.c - the cache as it is drawn: its entries, and the rows that pins keep.
 *
 * The ledger's lists, lowest level first and each from its front, are the order of leaving;
 * entries are the leaves in them. Pinned ones are in no list and do not leave: they come last,
 * in the order in which they were pinned.
 */
#include <string.h>

#include "cache/prefix.h"

/* ---- entries ----------------------------------------------------------------------------- */

/* Where the next entry goes. */
typedef struct listing {
    const sheaf_prefix *cache;
    sheaf_entry *out; /* [capacity] */
    uint32_t capacity;
    uint32_t n;
    uint64_t now;
} listing;

static void add_bytes(const sheaf_prefix *cache, const sheaf__node *node, sheaf_entry *entry)
{
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        uint64_t bytes = sheaf__pool_layout(cache->pool)->groups[g].block_bytes;
        for (uint32_t b = 0; b < node->n_blocks; b++) {
            const sheaf__place *place = sheaf__node_place(node, g, b);
            if (place->state != SHEAF__BLOCK_RESIDENT) continue;
            const sheaf__record *record =
                sheaf__record_for_row(&cache->pool->groups[g], place->row);
            entry->bytes += bytes;
            if (record->total == record->by_kind[SHEAF_OWNER_TREE])
                entry->bytes_exclusive += bytes;
        }
    }
}

static void list_entry(listing *l, const sheaf__node *node)
{
    if (l->n++ >= l->capacity) return;
    sheaf_entry *entry = &l->out[l->n - 1];
    uint32_t whole = node->n_tokens / l->cache->block_tokens;
    const sheaf__node *root = node;
    while (root->parent != NULL) root = root->parent;
    memset(entry, 0, sizeof *entry);
    entry->n_tokens = node->n_tokens;
    entry->start = node->start;
    entry->priority = node->priority;
    entry->pinned = node->pinned_below != 0;
    entry->age_ns = l->now - node->last_use_ns;
    entry->session = node->session;
    entry->space = root->before;
    entry->key = whole != 0 ? node->keys[whole - 1] : node->before;
    add_bytes(l->cache, node, entry);
}

static void list_level(listing *l, const sheaf__list *level)
{
    for (sheaf__list *use = level->next; use != level; use = use->next) {
        const sheaf__node *node = SHEAF__CONTAINER(use, const sheaf__node, use);
        if (sheaf__node_is_leaf(node)) list_entry(l, node);
    }
}

static void list_pinned(void *ctx, const sheaf__node *node)
{
    if (sheaf__node_is_leaf(node)) list_entry(ctx, node);
}

sheaf_status sheaf_prefix_entries(const sheaf_prefix *cache, sheaf_entry *out,
                                  uint32_t capacity, uint32_t *n)
{
    if (cache == NULL || n == NULL || (out == NULL && capacity != 0)) return SHEAF_E_INVALID;
    listing l = {.cache = cache, .out = out, .capacity = capacity};
    l.now = sheaf__prefix_now(cache);
    for (uint32_t i = 0; i < SHEAF__LEVELS; i++) list_level(&l, &cache->levels[i]);
    sheaf__pins_visit(cache, list_pinned, &l);
    *n = l.n;
    return SHEAF_OK;
}

/* ---- rows -------------------------------------------------------------------------------- */

/* A window of a group's rows. */
typedef struct window {
    const sheaf_prefix *cache;
    uint32_t group;
    uint32_t first_row;
    uint32_t n;
    sheaf_row *rows; /* [n] */
} window;

static void mark_pinned(void *ctx, const sheaf__node *node)
{
    const window *w = ctx;
    for (; node != NULL; node = node->parent)
        for (uint32_t b = 0; b < node->n_blocks; b++) {
            const sheaf__place *place = sheaf__node_place(node, w->group, b);
            uint32_t i = place->row - w->first_row; /* of earlier rows it wraps, beyond n */
            if (place->state == SHEAF__BLOCK_RESIDENT && i < w->n)
                w->rows[i].state = SHEAF_ROW_PINNED;
        }
}

sheaf_status sheaf_prefix_map(const sheaf_prefix *cache, uint32_t group, uint32_t first_row,
                              uint32_t n, sheaf_row *rows)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf_pool_map(cache->pool, group, first_row, n, rows));
    window w = {cache, group, first_row, n, rows};
    sheaf__pins_visit(cache, mark_pinned, &w);
    return SHEAF_OK;
}
