/* base/hash.h - checksums and table hashes (XXH3). Never for identity: what is compared is compared. */
#ifndef SHEAF_BASE_HASH_H
#define SHEAF_BASE_HASH_H

#include <stdint.h>

/* 64 bits over `size` bytes, the same in every process and on every machine. */
uint64_t sheaf__hash64(const void *data, uint64_t size, uint64_t seed);

#endif
