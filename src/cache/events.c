/* cache/events.c - what others need to keep a mirror of the cache: numbered, whole blocks alone.
 *
 * An event gets its number whether or not somebody listens, so that a listener that was away can
 * tell by sheaf_prefix_stats.events that it has missed some.
 */
#include "cache/prefix.h"

static void tell(sheaf_prefix *cache, sheaf_event *event)
{
    event->number = ++cache->stats.events;
    if (cache->on_event != NULL) cache->on_event(cache->on_event_ctx, event);
}

/* Of blocks [first, first + n) of a node, how many are whole. */
static uint32_t whole_of(const sheaf_prefix *cache, const sheaf__node *node, uint32_t first,
                         uint32_t n)
{
    uint32_t whole = node->n_tokens / cache->block_tokens;
    if (first >= whole) return 0;
    return n < whole - first ? n : whole - first;
}

void sheaf__event_stored(sheaf_prefix *cache, const sheaf__node *node, uint32_t first_block,
                         uint32_t n_blocks)
{
    sheaf_event event = {.struct_size = sizeof event, .kind = SHEAF_EVENT_STORED};
    event.n_keys = whole_of(cache, node, first_block, n_blocks);
    if (event.n_keys == 0) return;
    event.parent = first_block == 0 ? node->before : node->keys[first_block - 1];
    event.keys = node->keys + first_block;
    event.tokens = node->tokens + (uint64_t)first_block * cache->block_tokens;
    tell(cache, &event);
}

void sheaf__event_removed(sheaf_prefix *cache, const sheaf__node *node, uint32_t first_block,
                          uint32_t n_blocks, uint32_t cause)
{
    sheaf_event event = {.struct_size = sizeof event, .kind = SHEAF_EVENT_REMOVED};
    event.n_keys = whole_of(cache, node, first_block, n_blocks);
    if (event.n_keys == 0) return;
    event.keys = node->keys + first_block;
    event.cause = cause;
    tell(cache, &event);
}

void sheaf__event_cleared(sheaf_prefix *cache, const sheaf_key *space)
{
    sheaf_event event = {.struct_size = sizeof event, .kind = SHEAF_EVENT_CLEARED};
    event.keys = space;
    event.n_keys = space != NULL;
    tell(cache, &event);
}
