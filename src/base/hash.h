/* base/hash.h - checksums and table hashes (XXH3). Never for identity: what is compared is compared. */
#ifndef SHEAF_BASE_HASH_H
#define SHEAF_BASE_HASH_H

#include <stdint.h>

/* 64 bits over `size` bytes, the same in every process and on every machine. */
uint64_t sheaf__hash64(const void *data, uint64_t size, uint64_t seed);

/* The same value with seed 0, of bytes that come in pieces. The state is the library's own memory, not
 * counted. create: null when there is none; destroy: null is allowed; begin before each value. */
typedef struct sheaf__hash_state sheaf__hash_state;
sheaf__hash_state *sheaf__hash_create(void);
void sheaf__hash_destroy(sheaf__hash_state *state);
void sheaf__hash_begin(sheaf__hash_state *state);
void sheaf__hash_add(sheaf__hash_state *state, const void *data, uint64_t size);
uint64_t sheaf__hash_value(const sheaf__hash_state *state);

#endif
