/* cache/spaces.c - from namespaces to the roots of their trees.
 *
 * Open addressing with linear probing, as in index.c. A namespace is compared, always: the hash only
 * finds candidates. A root is here as long as it has a child.
 */
#include "cache/tree.h"

#include <string.h>

#define FIRST_CAPACITY 8

static uint64_t home_of(const sheaf_prefix *cache, const sheaf_key *space)
{
    return sheaf__index_hash(space) & (cache->spaces_capacity - 1);
}

sheaf__node *sheaf__space_find(const sheaf_prefix *cache, const sheaf_key *space)
{
    if (cache->spaces_capacity == 0) return NULL;
    uint64_t mask = cache->spaces_capacity - 1;
    for (uint64_t i = home_of(cache, space); cache->spaces[i] != NULL; i = (i + 1) & mask)
        if (memcmp(&cache->spaces[i]->before, space, sizeof *space) == 0)
            return cache->spaces[i];
    return NULL;
}

static void put(sheaf_prefix *cache, sheaf__node *root)
{
    uint64_t mask = cache->spaces_capacity - 1, i = home_of(cache, &root->before);
    while (cache->spaces[i] != NULL) i = (i + 1) & mask;
    cache->spaces[i] = root;
}

sheaf_status sheaf__space_reserve(sheaf_prefix *cache)
{
    uint64_t old = cache->spaces_capacity, capacity = old != 0 ? old : FIRST_CAPACITY;
    if ((cache->n_spaces + 1) * 4 > capacity * 3) capacity *= 2;
    if (capacity == old) return SHEAF_OK;
    sheaf__node **from = cache->spaces;
    sheaf__node **larger = sheaf__prefix_alloc(cache, capacity, sizeof(sheaf__node *));
    if (larger == NULL) return SHEAF_E_NO_MEMORY;
    cache->spaces = larger;
    cache->spaces_capacity = capacity;
    for (uint64_t i = 0; i < old; i++)
        if (from[i] != NULL) put(cache, from[i]);
    sheaf__prefix_free(cache, from, old, sizeof(sheaf__node *));
    return SHEAF_OK;
}

void sheaf__space_insert(sheaf_prefix *cache, sheaf__node *root)
{
    put(cache, root);
    cache->n_spaces++;
}

static uint64_t slot_of(const sheaf_prefix *cache, const sheaf__node *root)
{
    uint64_t mask = cache->spaces_capacity - 1, i = home_of(cache, &root->before);
    while (cache->spaces[i] != root) i = (i + 1) & mask;
    return i;
}

/* Empties slot i, and moves what probed past it back, as in index.c. */
static void empty_slot(sheaf_prefix *cache, uint64_t i)
{
    uint64_t mask = cache->spaces_capacity - 1;
    for (uint64_t j = (i + 1) & mask; cache->spaces[j] != NULL; j = (j + 1) & mask) {
        uint64_t home = home_of(cache, &cache->spaces[j]->before);
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        cache->spaces[i] = cache->spaces[j];
        i = j;
    }
    cache->spaces[i] = NULL;
    cache->n_spaces--;
}

void sheaf__space_remove(sheaf_prefix *cache, const sheaf__node *root)
{
    empty_slot(cache, slot_of(cache, root));
}

void sheaf__space_sweep(sheaf_prefix *cache)
{
    uint64_t i = 0;
    while (i < cache->spaces_capacity) {
        sheaf__node *root = cache->spaces[i];
        if (root == NULL || !sheaf__node_is_leaf(root)) {
            i++;
            continue;
        }
        empty_slot(cache, i); /* what has moved here is looked at next */
        sheaf__node_destroy(cache, root);
    }
}

static sheaf__node *from_slot(const sheaf_prefix *cache, uint64_t i)
{
    while (i < cache->spaces_capacity && cache->spaces[i] == NULL) i++;
    return i < cache->spaces_capacity ? cache->spaces[i] : NULL;
}

sheaf__node *sheaf__space_first(const sheaf_prefix *cache)
{
    return from_slot(cache, 0);
}

sheaf__node *sheaf__space_next(const sheaf_prefix *cache, const sheaf__node *root)
{
    return from_slot(cache, slot_of(cache, root) + 1);
}
