/* base/hash.c - checksums and table hashes (XXH3). */
#include "base/hash.h"

#include <stdatomic.h>
#include <stddef.h>
#include <xxhash.h>

#include "base/hash_code.h"
#include "sheaf/status.h"

uint64_t sheaf__hash64(const void *data, uint64_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, size, seed);
}

/* ---- in pieces ----------------------------------------------------------------------------- */

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

static const sheaf__hash_code plain = {create, destroy, begin, add, value};

/* The form for this processor; asking it is slow where there is a hypervisor, so it is asked once. */
static const sheaf__hash_code *code(void)
{
#if defined(__x86_64__)
    static _Atomic(const sheaf__hash_code *) chosen;
    const sheaf__hash_code *form = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (form != NULL) return form;
    form = sheaf_isa_best() == SHEAF_ISA_SCALAR ? &plain : &sheaf__hash_avx2;
    atomic_store_explicit(&chosen, form, memory_order_relaxed);
    return form;
#else
    return &plain;
#endif
}

/* sheaf__hash_state is the form's state under a name of our own. */

sheaf__hash_state *sheaf__hash_create(void)
{
    return code()->create();
}

void sheaf__hash_destroy(sheaf__hash_state *state)
{
    if (state != NULL) code()->destroy(state);
}

void sheaf__hash_begin(sheaf__hash_state *state)
{
    code()->begin(state);
}

void sheaf__hash_add(sheaf__hash_state *state, const void *data, uint64_t size)
{
    if (size != 0) code()->add(state, data, size);
}

uint64_t sheaf__hash_value(const sheaf__hash_state *state)
{
    return code()->value(state);
}
