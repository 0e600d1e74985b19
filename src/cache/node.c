/* cache/node.c - a node's memory, and going through all nodes.
 *
 * Nodes lie in chunks, which are allocated when all are full and freed when they are empty. Making and
 * freeing a node then touches what is in use anyway, where freeing would have an allocator look at the
 * neighbours of each: an eviction of many waits for memory above all. Each new chunk has place for as
 * many as all before it, and is a huge page from half of one on: what is used at random then takes few
 * entries of the page tables, and at most two thirds of it lie idle when nothing has left. A chunk goes
 * when all of it has left, so that few that stay may hold many.
 *
 * One piece of memory is behind a node's keys, places and tokens, so that it grows as a whole or not at
 * all. For one block, and of a moderate size, it is in the chunk, right behind the node; otherwise an
 * allocation. With place for c blocks, of t tokens each, in g groups:
 *
 *     | keys [c] | places [g][c] | tokens [c * t] |
 *
 *     chunk | node, body | node, body | (free) | node, not used | node, body | ...
 */
#include "cache/tree.h"

#include <string.h>

#include "base/bits.h"

#define LINE       64  /* bytes that come from memory together */
#define INNER_MOST 512 /* bytes: a node that has grown past one block leaves them unused */

#if SHEAF_CHECK >= 2
#    define FIRST_NODES                                                                        \
        1 /* and each alone: so that whoever uses a node after its end is found out */
#else
#    define FIRST_NODES 32
#endif

struct sheaf__chunk {
    sheaf__list link;   /* in cache->chunks, or alone: it is full */
    sheaf__node *free;  /* freed ones, the last one first; each has the next as its parent */
    uint32_t n_touched; /* nodes before this one are or were in use */
    uint32_t n_used;
    uint32_t n; /* nodes in all */
    uint64_t bytes;
    char rest[LINE - 3 * sizeof(void *) - 6 * sizeof(uint32_t)];
};
_Static_assert(sizeof(struct sheaf__chunk) == LINE, "nodes lie on lines of their own");

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
    node->capacity_blocks = capacity;
    node->sibling.tokens =
        (const int32_t *)(const void *)sheaf__node_place(node, cache->n_groups, 0);
}

/* Blocks that the body behind a node has place for. */
static uint32_t inner_capacity(const sheaf_prefix *cache)
{
    return bytes_of_block(cache) <= INNER_MOST;
}

static void *inner_body(sheaf__node *node)
{
    return node + 1;
}

static void free_body(sheaf_prefix *cache, sheaf__node *node)
{
    if (node->keys != inner_body(node))
        sheaf__prefix_free(cache, node->keys, node->capacity_blocks, bytes_of_block(cache));
}

/* ---- chunks ------------------------------------------------------------------------------ */

static uint64_t bytes_of_slot(const sheaf_prefix *cache)
{
    uint64_t bytes = sizeof(sheaf__node) + inner_capacity(cache) * bytes_of_block(cache);
    return sheaf__ceil_div_u64(bytes, LINE) * LINE;
}

static uint64_t bytes_of_chunk(const sheaf_prefix *cache, uint64_t n)
{
    return sizeof(struct sheaf__chunk) + n * bytes_of_slot(cache);
}

/* Of a chunk for as many nodes as there are now; a huge page if it is half of one or more. */
static uint64_t bytes_of_next(const sheaf_prefix *cache)
{
    uint64_t n = cache->n_slots;
    if (n < FIRST_NODES || FIRST_NODES == 1) n = FIRST_NODES;
    uint64_t bytes = bytes_of_chunk(cache, n);
    return bytes < SHEAF__HUGE_PAGE / 2 ? bytes : SHEAF__HUGE_PAGE;
}

static struct sheaf__chunk *chunk_create(sheaf_prefix *cache)
{
    sheaf__memory *memory = sheaf__pool_memory(cache->pool);
    uint64_t bytes = bytes_of_next(cache), least = bytes_of_chunk(cache, FIRST_NODES);
    struct sheaf__chunk *chunk = sheaf__memory_alloc_aligned(memory, bytes, 1, LINE);
    if (chunk == NULL && bytes > least) /* a small one will do */
        chunk = sheaf__memory_alloc_aligned(memory, bytes = least, 1, LINE);
    if (chunk == NULL) return NULL;
    *chunk = (struct sheaf__chunk){.bytes = bytes};
    chunk->n = (uint32_t)((bytes - sizeof *chunk) / bytes_of_slot(cache));
    cache->n_slots += chunk->n;
    cache->stats.host_bytes += bytes;
    sheaf__list_insert(&cache->chunks, &chunk->link);
    return chunk;
}

static void chunk_destroy(sheaf_prefix *cache, struct sheaf__chunk *chunk)
{
    sheaf__list_remove(&chunk->link);
    cache->n_slots -= chunk->n;
    cache->stats.host_bytes -= chunk->bytes;
    sheaf__memory_free_aligned(sheaf__pool_memory(cache->pool), chunk, chunk->bytes, 1, LINE);
}

static struct sheaf__chunk *chunk_of(const sheaf_prefix *cache, const sheaf__node *node)
{
    char *first = (char *)node - node->slot * bytes_of_slot(cache);
    return (struct sheaf__chunk *)(void *)first - 1;
}

/* The memory that comes next in a chunk, for the one after this. */
static void fetch_next(const sheaf_prefix *cache, const struct sheaf__chunk *chunk)
{
    uint64_t bytes = bytes_of_slot(cache);
    const char *next = (const char *)chunk->free;
    if (next == NULL) next = (const char *)(chunk + 1) + chunk->n_touched * bytes;
    if (chunk->n_used == chunk->n) return;
    for (uint64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(next + at, 1);
}

/* A node's memory, in a chunk. Null: no memory. */
static sheaf__node *slot_take(sheaf_prefix *cache)
{
    struct sheaf__chunk *chunk =
        SHEAF__CONTAINER(cache->chunks.next, struct sheaf__chunk, link);
    if (sheaf__list_empty(&cache->chunks)) chunk = chunk_create(cache);
    if (chunk == NULL) return NULL;
    sheaf__node *node = chunk->free;
    uint32_t slot = node != NULL ? node->slot : chunk->n_touched++;
    if (node != NULL)
        chunk->free = node->parent;
    else
        node = (sheaf__node *)(void *)((char *)(chunk + 1) + slot * bytes_of_slot(cache));
    if (++chunk->n_used == chunk->n) sheaf__list_remove(&chunk->link);
    if (chunk == cache->spare) cache->spare = NULL;
    cache->n_slots_used++;
    fetch_next(cache, chunk);
    memset(node, 0, bytes_of_slot(cache));
    node->slot = (uint16_t)slot;
    return node;
}

/* One that has fallen empty is kept, last in line, so that who comes and goes at its edge does not ask
 * the system each time; where one was kept already that one goes, and both do when no node is left. */
static void chunk_spare(sheaf_prefix *cache, struct sheaf__chunk *chunk)
{
    if (cache->spare != NULL) chunk_destroy(cache, cache->spare);
    cache->spare = NULL;
    if (cache->n_slots_used == 0 || FIRST_NODES == 1) {
        chunk_destroy(cache, chunk);
        return;
    }
    cache->spare = chunk;
    sheaf__list_remove(&chunk->link);
    sheaf__list_insert(&cache->chunks, &chunk->link);
}

static void slot_give(sheaf_prefix *cache, sheaf__node *node)
{
    struct sheaf__chunk *chunk = chunk_of(cache, node);
    node->parent = chunk->free;
    chunk->free = node;
    if (chunk->n_used-- == chunk->n) sheaf__list_insert(cache->chunks.next, &chunk->link);
    cache->n_slots_used--;
    if (chunk->n_used == 0) chunk_spare(cache, chunk);
}

/* ---- a node ------------------------------------------------------------------------------ */

sheaf__node *sheaf__node_create(sheaf_prefix *cache, uint32_t n_blocks)
{
    sheaf__node *node = slot_take(cache);
    if (node == NULL) return NULL;
    sheaf__list_init(&node->use);
    if (inner_capacity(cache) != 0 && n_blocks == 1) set_body(cache, node, inner_body(node), 1);
    if (sheaf__node_reserve(cache, node, n_blocks) == SHEAF_OK) return node;
    sheaf__node_destroy(cache, node);
    return NULL;
}

void sheaf__node_destroy(sheaf_prefix *cache, sheaf__node *node)
{
    free_body(cache, node);
    slot_give(cache, node);
}

void sheaf__node_fetch(const sheaf__node *node)
{
    __builtin_prefetch(node, 1);
    __builtin_prefetch((const char *)node + LINE, 1);
    __builtin_prefetch(node + 1);
}

void sheaf__node_fetch_body(const sheaf__node *node)
{
    if (node->keys == (const void *)(node + 1)) return;
    __builtin_prefetch(node->keys);
    __builtin_prefetch(sheaf__node_place(node, 0, 0));
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
        memcpy(sheaf__node_tokens(node), old.sibling.tokens, node->n_tokens * sizeof(int32_t));
        for (uint32_t g = 0; g < cache->n_groups; g++)
            memcpy(sheaf__node_place(node, g, 0), sheaf__node_place(&old, g, 0),
                   node->n_blocks * sizeof(sheaf__place));
    }
    if (old.keys != inner_body(node))
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
