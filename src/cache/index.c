/* cache/index.c - from content keys to blocks of nodes.
 *
 * Open addressing with linear probing; a slot keeps 32 bits of the hash, so that probing and moving
 * touch no node. What is found is compared: the hash only finds candidates. A block is named by its
 * number from the namespace's beginning, which splitting and joining nodes does not change.
 */
#include "cache/tree.h"

#include <string.h>

#define FIRST_CAPACITY 64

typedef struct slot {
    sheaf__node *node; /* null: empty */
    uint32_t block;    /* from position 0 on */
    uint32_t hash;
} slot;

struct sheaf__index {
    slot *slots; /* [capacity] */
    uint64_t capacity;
    uint64_t count;
};

/* Keys are digests: any 64 bits of one will do. */
static uint64_t first_bytes(const sheaf_key *key)
{
    uint64_t h;
    memcpy(&h, key->bytes, sizeof h);
    return h;
}

uint64_t (*sheaf__index_hash)(const sheaf_key *key) = first_bytes;

sheaf_status sheaf__index_open(sheaf_prefix *cache)
{
    cache->index = sheaf__prefix_alloc(cache, 1, sizeof *cache->index);
    return cache->index != NULL ? SHEAF_OK : SHEAF_E_NO_MEMORY;
}

void sheaf__index_close(sheaf_prefix *cache)
{
    struct sheaf__index *index = cache->index;
    if (index == NULL) return;
    sheaf__prefix_free(cache, index->slots, index->capacity, sizeof(slot));
    sheaf__prefix_free(cache, index, 1, sizeof *index);
}

uint64_t sheaf__index_count(const sheaf_prefix *cache)
{
    return cache->index->count;
}

static uint32_t first_block_of(const sheaf_prefix *cache, const sheaf__node *node)
{
    return node->start / cache->block_tokens;
}

static const sheaf_key *key_of(const sheaf_prefix *cache, const slot *s)
{
    return &s->node->keys[s->block - first_block_of(cache, s->node)];
}

/* ---- entering ---------------------------------------------------------------------------- */

static void put(struct sheaf__index *index, slot s)
{
    uint64_t mask = index->capacity - 1, i = s.hash & mask;
    while (index->slots[i].node != NULL) i = (i + 1) & mask;
    index->slots[i] = s;
}

sheaf_status sheaf__index_reserve(sheaf_prefix *cache, uint64_t n)
{
    struct sheaf__index *index = cache->index;
    uint64_t capacity = index->capacity != 0 ? index->capacity : FIRST_CAPACITY;
    while ((index->count + n) * 4 > capacity * 3) capacity *= 2;
    if (capacity == index->capacity) return SHEAF_OK;
    struct sheaf__index larger = {.capacity = capacity, .count = index->count};
    larger.slots = sheaf__prefix_alloc(cache, capacity, sizeof(slot));
    if (larger.slots == NULL) return SHEAF_E_NO_MEMORY;
    for (uint64_t i = 0; i < index->capacity; i++)
        if (index->slots[i].node != NULL) put(&larger, index->slots[i]);
    sheaf__prefix_free(cache, index->slots, index->capacity, sizeof(slot));
    *index = larger;
    return SHEAF_OK;
}

void sheaf__index_insert(sheaf_prefix *cache, sheaf__node *node, uint32_t first, uint32_t n)
{
    uint32_t base = first_block_of(cache, node);
    for (uint32_t i = first; i < first + n; i++)
        put(cache->index, (slot){node, base + i, (uint32_t)sheaf__index_hash(&node->keys[i])});
    cache->index->count += n;
}

/* ---- finding ----------------------------------------------------------------------------- */

/* The slot of a node's block; it is there. */
static uint64_t slot_of(const sheaf_prefix *cache, const sheaf__node *node, uint32_t block,
                        const sheaf_key *key)
{
    const struct sheaf__index *index = cache->index;
    uint64_t mask = index->capacity - 1, i = (uint32_t)sheaf__index_hash(key) & mask;
    while (index->slots[i].node != node || index->slots[i].block != block) {
        SHEAF__ASSERT(index->slots[i].node != NULL);
        i = (i + 1) & mask;
    }
    return i;
}

void sheaf__index_fetch(const sheaf_prefix *cache, const sheaf_key *key)
{
    const struct sheaf__index *index = cache->index;
    uint64_t i = (uint32_t)sheaf__index_hash(key) & (index->capacity - 1);
    __builtin_prefetch(&index->slots[i], 1);
}

sheaf__node *sheaf__index_find(const sheaf_prefix *cache, const sheaf_key *key, uint32_t *block)
{
    const struct sheaf__index *index = cache->index;
    if (index->capacity == 0) return NULL;
    uint32_t hash = (uint32_t)sheaf__index_hash(key);
    uint64_t mask = index->capacity - 1;
    for (uint64_t i = hash & mask; index->slots[i].node != NULL; i = (i + 1) & mask) {
        const slot *s = &index->slots[i];
        if (s->hash != hash || memcmp(key_of(cache, s), key, sizeof *key) != 0) continue;
        *block = s->block - first_block_of(cache, s->node);
        return s->node;
    }
    return NULL;
}

/* ---- leaving ----------------------------------------------------------------------------- */

/* Empties slot i, and moves what probed past it back (Knuth, volume 3, algorithm 6.4 R). */
static void empty_slot(struct sheaf__index *index, uint64_t i)
{
    uint64_t mask = index->capacity - 1;
    for (uint64_t j = (i + 1) & mask; index->slots[j].node != NULL; j = (j + 1) & mask) {
        uint64_t home = index->slots[j].hash & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue; /* its home is after the gap */
        index->slots[i] = index->slots[j];
        i = j;
    }
    index->slots[i] = (slot){0};
}

void sheaf__index_remove(sheaf_prefix *cache, const sheaf__node *node, uint32_t first,
                         uint32_t n)
{
    uint32_t base = first_block_of(cache, node);
    for (uint32_t i = first; i < first + n; i++)
        empty_slot(cache->index, slot_of(cache, node, base + i, &node->keys[i]));
    cache->index->count -= n;
}

void sheaf__index_rename(sheaf_prefix *cache, const sheaf__node *from, sheaf__node *node,
                         uint32_t first, uint32_t n)
{
    uint32_t base = first_block_of(cache, node);
    for (uint32_t i = first; i < first + n; i++)
        cache->index->slots[slot_of(cache, from, base + i, &node->keys[i])].node = node;
}
