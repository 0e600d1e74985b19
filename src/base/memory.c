/* base/memory.c - host memory through the embedder's allocator, counted. */
#include "base/memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bits.h"

#define DEFAULT_ALIGN  16
#define FIRST_CAPACITY 8

/* ---- without hooks ----------------------------------------------------------------------- */

/* Whole huge pages come straight from the system, and go back to it at once. */
static bool is_huge(uint64_t size, uint64_t align)
{
    return size != 0 && size % SHEAF__HUGE_PAGE == 0 && align <= SHEAF__HUGE_PAGE;
}

/* Maps one more, and cuts off what is before the first multiple of one and after the last. */
static void *huge_alloc(uint64_t size)
{
    uint64_t total;
    if (!sheaf__add_u64(size, SHEAF__HUGE_PAGE, &total) || total > SIZE_MAX) return NULL;
    unsigned char *start =
        mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return NULL;
    uint64_t head = (uint64_t) - (uintptr_t)start & (SHEAF__HUGE_PAGE - 1);
    if (head != 0) munmap(start, head);
    munmap(start + head + size, SHEAF__HUGE_PAGE - head);
#ifdef MADV_HUGEPAGE
    madvise(start + head, size, MADV_HUGEPAGE); /* advice: may be refused */
#endif
    return start + head;
}

static void *libc_alloc(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx;
    void *ptr = NULL;
    if (is_huge(size, align)) return huge_alloc(size);
    if (size > SIZE_MAX || posix_memalign(&ptr, align, size) != 0) return NULL;
    return ptr;
}

static void libc_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx;
    if (is_huge(size, align))
        munmap(ptr, size);
    else
        free(ptr);
}

/* ---- counted ----------------------------------------------------------------------------- */

void sheaf__memory_init(sheaf__memory *memory, const sheaf_allocator *allocator)
{
    memory->live_bytes = 0;
    memory->allocator = allocator ? *allocator : (sheaf_allocator){NULL, libc_alloc, libc_free};
}

void *sheaf__memory_alloc_aligned(sheaf__memory *memory, uint64_t n, uint64_t size,
                                  uint64_t align)
{
    uint64_t bytes;
    if (!sheaf__mul_u64(n, size, &bytes) || bytes == 0) return NULL;
    void *ptr = memory->allocator.alloc(memory->allocator.ctx, bytes, align);
    if (ptr != NULL) memory->live_bytes += bytes;
    return ptr;
}

void *sheaf__memory_alloc(sheaf__memory *memory, uint64_t n, uint64_t size)
{
    void *ptr = sheaf__memory_alloc_aligned(memory, n, size, DEFAULT_ALIGN);
    if (ptr != NULL) memset(ptr, 0, n * size);
    return ptr;
}

void sheaf__memory_free_aligned(sheaf__memory *memory, void *ptr, uint64_t n, uint64_t size,
                                uint64_t align)
{
    if (ptr == NULL) return;
    memory->live_bytes -= n * size;
    memory->allocator.free(memory->allocator.ctx, ptr, n * size, align);
}

void sheaf__memory_free(sheaf__memory *memory, void *ptr, uint64_t n, uint64_t size)
{
    sheaf__memory_free_aligned(memory, ptr, n, size, DEFAULT_ALIGN);
}

sheaf_status sheaf__memory_grow(sheaf__memory *memory, void **array, uint64_t *capacity,
                                uint64_t need, uint64_t size)
{
    if (need <= *capacity) return SHEAF_OK;
    uint64_t wanted = sheaf__max_u64(need, FIRST_CAPACITY), doubled;
    if (sheaf__mul_u64(*capacity, 2, &doubled)) wanted = sheaf__max_u64(wanted, doubled);
    void *grown = sheaf__memory_alloc(memory, wanted, size);
    if (grown == NULL) return SHEAF_E_NO_MEMORY;
    if (*capacity != 0) memcpy(grown, *array, *capacity * size);
    sheaf__memory_free(memory, *array, *capacity, size);
    *array = grown;
    *capacity = wanted;
    return SHEAF_OK;
}
