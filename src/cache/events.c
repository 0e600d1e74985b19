/* cache/events.c - what a mirror of the cache is kept by: numbered, whole blocks alone.
 *
 * An event gets its number whether or not somebody listens, so that a listener that was away
 * can tell by sheaf_prefix_stats.events that it has missed some.
 */
#include "cache/prefix.h"

static void tell(sheaf_prefix *cache, sheaf_event *event)
{
    event->number = ++cache->stats.events;
    if (cache->on_event != NULL) cache->on_event(cache->on_event_ctx, event);
}

void sheaf__event_stored(sheaf_prefix *cache, const sheaf__node *node, uint32_t first_block,
                         uint32_t n_blocks)
{
    sheaf_event event = SHEAF_EVENT_INIT;
    event.kind = SHEAF_EVENT_STORED;
    if (n_blocks == 0) return;
    SHEAF__ASSERT((first_block + n_blocks) * cache->block_tokens <= node->n_tokens);
    event.n_keys = n_blocks;
    event.parent = first_block == 0 ? node->before : node->keys[first_block - 1];
    event.keys = node->keys + first_block;
    event.tokens = sheaf__node_tokens(node) + (uint64_t)first_block * cache->block_tokens;
    tell(cache, &event);
}

void sheaf__event_removed(sheaf_prefix *cache, const sheaf__node *node, uint32_t first_block,
                          uint32_t n_blocks, uint32_t cause)
{
    if (n_blocks == 0) return;
    SHEAF__ASSERT((first_block + n_blocks) * cache->block_tokens <= node->n_tokens);
    if (cache->on_event == NULL) { /* many go at once: none is made for nobody */
        cache->stats.events++;
        return;
    }
    sheaf_event event = SHEAF_EVENT_INIT;
    event.kind = SHEAF_EVENT_REMOVED;
    event.n_keys = n_blocks;
    event.keys = node->keys + first_block;
    event.cause = cause;
    tell(cache, &event);
}

void sheaf__event_cleared(sheaf_prefix *cache, const sheaf_key *space)
{
    sheaf_event event = SHEAF_EVENT_INIT;
    event.kind = SHEAF_EVENT_CLEARED;
    event.keys = space;
    event.n_keys = space != NULL;
    tell(cache, &event);
}
