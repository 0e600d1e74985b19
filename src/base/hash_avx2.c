/* base/hash_avx2.c - XXH3 of pieces with AVX2: the same values. The system's library is built for any
 * processor of the family, and three times slower on what is in cache. */
#if defined(__x86_64__)

#    define XXH_INLINE_ALL
#    include <xxhash.h>

#    include "base/hash_code.h"

static void *create(void)
{
    return XXH3_createState();
}

static void destroy(void *state)
{
    XXH3_freeState(state);
}

static void begin(void *state)
{
    XXH3_64bits_reset(state);
}

static void add(void *state, const void *data, uint64_t size)
{
    XXH3_64bits_update(state, data, size);
}

static uint64_t value(const void *state)
{
    return XXH3_64bits_digest(state);
}

const sheaf__hash_code sheaf__hash_avx2 = {create, destroy, begin, add, value};

#endif
