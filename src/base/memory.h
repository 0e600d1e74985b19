/* base/memory.h - host memory through the embedder's allocator, counted.
 *
 * Owns: the count of live bytes. Every allocation of the library goes through one of these, so that
 * `host_bytes` is exact and a test can fail any of them.
 */
#ifndef SHEAF_BASE_MEMORY_H
#define SHEAF_BASE_MEMORY_H

#include "sheaf/status.h"

typedef struct sheaf__memory {
    sheaf_allocator allocator;
    uint64_t live_bytes;
} sheaf__memory;

#define SHEAF__HUGE_PAGE (2ull << 20) /* bytes */

/* `allocator` null: the C library's; and for pieces of whole huge pages the system's own, aligned to
 * one and advised to be one, so that going through them at random looks few page tables up. */
void sheaf__memory_init(sheaf__memory *memory, const sheaf_allocator *allocator);

/* n * size bytes, zeroed, aligned to 16. Null: no memory, or the product does not fit; also for
 * zero bytes. */
void *sheaf__memory_alloc(sheaf__memory *memory, uint64_t n, uint64_t size);

/* As above with an alignment (a power of two), not zeroed. */
void *sheaf__memory_alloc_aligned(sheaf__memory *memory, uint64_t n, uint64_t size,
                                  uint64_t align);

/* Gives back what was allocated with the same n and size (and align). Null is allowed. */
void sheaf__memory_free(sheaf__memory *memory, void *ptr, uint64_t n, uint64_t size);
void sheaf__memory_free_aligned(sheaf__memory *memory, void *ptr, uint64_t n, uint64_t size,
                                uint64_t align);

/* Grows an array of `size`-byte elements so that it has room for `need`: at least doubles, moves the
 * first *capacity elements, zeroes the new ones. SHEAF_E_NO_MEMORY: *array and *capacity as before. */
sheaf_status sheaf__memory_grow(sheaf__memory *memory, void **array, uint64_t *capacity,
                                uint64_t need, uint64_t size);

#endif
