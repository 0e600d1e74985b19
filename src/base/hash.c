/* base/hash.c - checksums and table hashes (XXH3). */
#include "base/hash.h"

#include <xxhash.h>

uint64_t sheaf__hash64(const void *data, uint64_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

/* sheaf__hash_state is XXH3_state_t under a name of our own. */

sheaf__hash_state *sheaf__hash_create(void)
{
    return (sheaf__hash_state *)XXH3_createState();
}

void sheaf__hash_destroy(sheaf__hash_state *state)
{
    XXH3_freeState((XXH3_state_t *)state);
}

void sheaf__hash_begin(sheaf__hash_state *state)
{
    XXH3_64bits_reset((XXH3_state_t *)state);
}

void sheaf__hash_add(sheaf__hash_state *state, const void *data, uint64_t size)
{
    if (size != 0) XXH3_64bits_update((XXH3_state_t *)state, data, size);
}

uint64_t sheaf__hash_value(const sheaf__hash_state *state)
{
    return XXH3_64bits_digest((const XXH3_state_t *)state);
}
