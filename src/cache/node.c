/* cache/node.c - a node's memory, and going through all nodes.
 *
 * One allocation is behind a node's keys, places and tokens, so that it grows as a whole or not at
 * all. With place for c blocks, of t tokens each, in g groups:
 *
 *     | keys [c] | places [g][c] | tokens [c * t] |
 */
#include "cache/tree.h"

#include <string.h>

#include "base/bits.h"

/* ---- memory ------------------------------------------------------------------------------ */

void *sheaf__prefix_alloc(sheaf_prefix *cache, uint64_t n, uint64_t size)
{
    void *ptr = sheaf__memory_alloc(sheaf__pool_memory(cache->pool), n, size);
    if (ptr != NULL) cache->stats.host_bytes += n * size;
    return ptr;
}

void sheaf__prefix_free(sheaf_prefix *cache, void *ptr, uint64_t n, uint64_t size)
{
    if (ptr == NULL) return;
    cache->stats.host_bytes -= n * size;
    sheaf__memory_free(sheaf__pool_memory(cache->pool), ptr, n, size);
}

static uint64_t bytes_of_block(const sheaf_prefix *cache)
{
    return sizeof(sheaf_key) + cache->n_groups * sizeof(sheaf__place) +
           cache->block_tokens * sizeof(int32_t);
}

/* Points keys, places and tokens into memory for `capacity` blocks. */
static void set_body(const sheaf_prefix *cache, sheaf__node *node, void *body,
                     uint32_t capacity)
{
    node->keys = body;
    node->places = (sheaf__place *)(void *)(node->keys + capacity);
    node->tokens = (int32_t *)(void *)(node->places + (uint64_t)cache->n_groups * capacity);
    node->capacity_blocks = capacity;
    node->sibling.tokens = node->tokens;
}

sheaf__node *sheaf__node_create(sheaf_prefix *cache, uint32_t n_blocks)
{
    sheaf__node *node = sheaf__prefix_alloc(cache, 1, sizeof *node);
    if (node == NULL) return NULL;
    sheaf__list_init(&node->use);
    if (sheaf__node_reserve(cache, node, n_blocks) == SHEAF_OK) return node;
    sheaf__node_destroy(cache, node);
    return NULL;
}

void sheaf__node_destroy(sheaf_prefix *cache, sheaf__node *node)
{
    sheaf__prefix_free(cache, node->keys, node->capacity_blocks, bytes_of_block(cache));
    sheaf__prefix_free(cache, node, 1, sizeof *node);
}

sheaf_status sheaf__node_reserve(sheaf_prefix *cache, sheaf__node *node, uint32_t n_blocks)
{
    if (n_blocks <= node->capacity_blocks) return SHEAF_OK;
    uint64_t doubled = sheaf__min_u64(2ull * node->capacity_blocks, INT32_MAX);
    uint32_t capacity = (uint32_t)sheaf__max_u64(n_blocks, doubled);
    void *body = sheaf__prefix_alloc(cache, capacity, bytes_of_block(cache));
    if (body == NULL) return SHEAF_E_NO_MEMORY;
    sheaf__node old = *node;
    set_body(cache, node, body, capacity);
    if (old.n_blocks != 0) {
        memcpy(node->keys, old.keys, sheaf__node_whole(cache, node) * sizeof *node->keys);
        memcpy(node->tokens, old.tokens, node->n_tokens * sizeof *node->tokens);
        for (uint32_t g = 0; g < cache->n_groups; g++)
            memcpy(sheaf__node_place(node, g, 0), sheaf__node_place(&old, g, 0),
                   node->n_blocks * sizeof *node->places);
    }
    sheaf__prefix_free(cache, old.keys, old.capacity_blocks, bytes_of_block(cache));
    return SHEAF_OK;
}

void sheaf__node_set_length(const sheaf_prefix *cache, sheaf__node *node, uint32_t n_tokens)
{
    node->n_tokens = n_tokens;
    node->n_blocks = sheaf__blocks_of(n_tokens, cache->block_tokens);
    node->sibling.n = n_tokens < cache->block_tokens ? n_tokens : cache->block_tokens;
}

/* ---- all nodes --------------------------------------------------------------------------- */

static sheaf__node *deepest_first(sheaf__node *node)
{
    while (node != NULL && !sheaf__node_is_leaf(node)) node = sheaf__node_first_child(node);
    return node;
}

sheaf__node *sheaf__nodes_first(const sheaf_prefix *cache)
{
    return deepest_first(sheaf__space_first(cache));
}

sheaf__node *sheaf__nodes_next(const sheaf_prefix *cache, const sheaf__node *node)
{
    if (node->parent == NULL) return deepest_first(sheaf__space_next(cache, node));
    sheaf__node *next = sheaf__node_next_sibling(node);
    return next != NULL ? deepest_first(next) : node->parent;
}
