/* base/hash.c - checksums and table hashes (XXH3). */
#include "base/hash.h"

#include <xxhash.h>

uint64_t sheaf__hash64(const void *data, uint64_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}
