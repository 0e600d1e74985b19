/* tests/pool/fixture.h - pools to test on, and memory and devices that fail, count or wait.
 *
 * The slab memory here is the system's, seen through: it keeps every committed range, and notes as
 * `misuse` whatever the contract in sheaf/pool.h forbids the pool to ask for. Poisoning is left out
 * where a test wants memory to stay untouched.
 */
#ifndef SHEAF_TESTS_POOL_FIXTURE_H
#define SHEAF_TESTS_POOL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "pool/device.h"
#include "pool/pool.h"
#include "sheaf/pool.h"

#define PAGE 4096u

/* ---- slab memory that watches -------------------------------------------------------------- */

typedef struct watched_range {
    unsigned char *addr;
    uint64_t bytes;
} watched_range;

typedef struct watched_memory {
    sheaf_slab_memory system;
    uint64_t granularity;
    uint64_t reserves, commits, decommits, releases;
    uint64_t fail_reserve, fail_commit; /* the Nth call from 1 fails; 0: none */
    uint64_t fail_commits_from;         /* this and all later ones */
    uint64_t misalign;                  /* bytes added to what reserve returns */
    uint64_t committed_bytes, most_committed_bytes;
    uint64_t misuse;
    watched_range reserved[SHEAF_MAX_GROUPS];
    watched_range committed[4096];
    uint32_t n_reserved, n_committed;
} watched_memory;

static inline void *watched_reserve(void *ctx, uint64_t bytes)
{
    watched_memory *w = ctx;
    if (++w->reserves == w->fail_reserve) return NULL;
    w->misuse += bytes == 0 || bytes % w->granularity != 0;
    unsigned char *addr = w->system.reserve(w->system.ctx, bytes + w->granularity);
    if (addr == NULL) return NULL;
    w->reserved[w->n_reserved++] = (watched_range){addr, bytes};
    return addr + w->misalign;
}

static inline int watched_commit(void *ctx, void *addr, uint64_t bytes)
{
    watched_memory *w = ctx;
    unsigned char *begin = addr;
    bool inside = false;
    ++w->commits;
    if (w->commits == w->fail_commit) return -1;
    if (w->fail_commits_from != 0 && w->commits >= w->fail_commits_from) return -1;
    for (uint32_t i = 0; i < w->n_reserved; i++)
        inside |= begin >= w->reserved[i].addr &&
                  begin + bytes <= w->reserved[i].addr + w->reserved[i].bytes;
    for (uint32_t i = 0; i < w->n_committed; i++)
        w->misuse += begin < w->committed[i].addr + w->committed[i].bytes &&
                     w->committed[i].addr < begin + bytes;
    w->misuse += !inside || bytes == 0 || bytes % w->granularity != 0 ||
                 (uintptr_t)addr % w->granularity != 0;
    w->committed[w->n_committed++] = (watched_range){begin, bytes};
    w->committed_bytes += bytes;
    if (w->committed_bytes > w->most_committed_bytes)
        w->most_committed_bytes = w->committed_bytes;
    return w->system.commit(w->system.ctx, addr, bytes);
}

static inline void watched_decommit(void *ctx, void *addr, uint64_t bytes)
{
    watched_memory *w = ctx;
    uint32_t i = 0;
    w->decommits++;
    while (i < w->n_committed &&
           (w->committed[i].addr != addr || w->committed[i].bytes != bytes))
        i++;
    if (i == w->n_committed) {
        w->misuse++;
        return;
    }
    w->committed[i] = w->committed[--w->n_committed];
    w->committed_bytes -= bytes;
    w->system.decommit(w->system.ctx, addr, bytes);
}

static inline void watched_release(void *ctx, void *addr, uint64_t bytes)
{
    watched_memory *w = ctx;
    unsigned char *begin = (unsigned char *)addr - w->misalign;
    uint32_t i = 0;
    w->releases++;
    while (i < w->n_reserved && (w->reserved[i].addr != begin || w->reserved[i].bytes != bytes))
        i++;
    if (i == w->n_reserved) {
        w->misuse++;
        return;
    }
    for (uint32_t c = 0; c < w->n_committed; c++)
        w->misuse += w->committed[c].addr >= begin && w->committed[c].addr < begin + bytes;
    w->reserved[i] = w->reserved[--w->n_reserved];
    w->system.release(w->system.ctx, begin, bytes + w->granularity);
}

static inline sheaf_slab_memory watch_memory(watched_memory *w)
{
    memset(w, 0, sizeof *w);
    w->system = sheaf__device_cpu(NULL).memory;
    w->granularity = PAGE;
    return (sheaf_slab_memory){
        w, w->granularity, watched_reserve, watched_commit, watched_decommit, watched_release};
}

/* ---- an allocator that counts and fails ---------------------------------------------------- */

typedef struct watched_heap {
    uint64_t allocs, frees, live_bytes;
    uint64_t fail_alloc; /* the Nth from 1; 0: none */
    uint64_t fail_from;  /* this and all later ones */
} watched_heap;

static inline void *watched_alloc(void *ctx, uint64_t size, uint64_t align)
{
    watched_heap *heap = ctx;
    heap->allocs++;
    if (heap->allocs == heap->fail_alloc) return NULL;
    if (heap->fail_from != 0 && heap->allocs >= heap->fail_from) return NULL;
    void *ptr = NULL;
    if (posix_memalign(&ptr, align, size) != 0) return NULL;
    memset(ptr, 0xa5, size);
    heap->live_bytes += size;
    return ptr;
}

static inline void watched_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    watched_heap *heap = ctx;
    (void)align;
    heap->frees++;
    heap->live_bytes -= size;
    free(ptr);
}

static inline sheaf_allocator watch_heap(watched_heap *heap)
{
    memset(heap, 0, sizeof *heap);
    return (sheaf_allocator){heap, watched_alloc, watched_free};
}

/* ---- a device whose fences pass when the test says so -------------------------------------- */

typedef struct slow_device {
    uint64_t passed; /* fences up to this value have */
    uint64_t poisoned_bytes;
} slow_device;

static inline bool slow_fence_passed(void *ctx, sheaf_fence fence)
{
    return fence.value <= ((slow_device *)ctx)->passed;
}

static inline void slow_poison(void *ctx, void *addr, uint64_t bytes)
{
    (void)addr;
    ((slow_device *)ctx)->poisoned_bytes += bytes; /* leaves the memory untouched */
}

static inline sheaf__device slow_device_of(slow_device *slow, const sheaf_slab_memory *memory)
{
    sheaf__device device = sheaf__device_cpu(memory);
    memset(slow, 0, sizeof *slow);
    device.ctx = slow;
    device.fence_passed = slow_fence_passed;
    device.poison = slow_poison;
    return device;
}

/* ---- pools --------------------------------------------------------------------------------- */

/* Layers whose blocks of 4 tokens are exactly 1024 bytes a layer: 2 heads, 32 and 32 numbers,
 * bf16. With slab_blocks 4 and one layer a slab is one page. */
static inline sheaf_layer tiny_layer(uint32_t window)
{
    return (sheaf_layer){.n_kv_heads = 2,
                         .key_dim = 32,
                         .value_dim = 32,
                         .window = window,
                         .codec_k = SHEAF_CODEC_BF16,
                         .codec_v = SHEAF_CODEC_BF16};
}

/* layers: [n_groups]: one a group; group g's block has 1024 bytes, its slab one page. */
static inline sheaf_pool_options tiny_options(sheaf_layer *layers, uint32_t n_groups,
                                              uint64_t budget)
{
    for (uint32_t g = 0; g < n_groups; g++) layers[g] = tiny_layer(g * 8);
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers;
    options.n_layers = n_groups;
    options.block_tokens = 4;
    options.slab_blocks = 4;
    options.budget_bytes = budget;
    return options;
}

static inline sheaf_pool *open_pool(const sheaf_pool_options *options)
{
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    if (sheaf_pool_open(options, &pool, &err) != SHEAF_OK) fail_msg("open: %s", err.text);
    return pool;
}

static inline sheaf_pool *open_tiny(uint32_t n_groups, uint64_t budget)
{
    sheaf_layer layers[SHEAF_MAX_GROUPS];
    sheaf_pool_options options = tiny_options(layers, n_groups, budget);
    return open_pool(&options);
}

static inline sheaf_pool_stats stats_of(const sheaf_pool *pool)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_stats_read(pool, &stats), SHEAF_OK);
    return stats;
}

static inline void check_pool(const sheaf_pool *pool)
{
    sheaf_error err = {0};
    if (sheaf_pool_check(pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

/* What a refused call may count: nothing else may differ. Host memory that was prepared for slabs
 * stays prepared. */
static inline void assert_unchanged(const sheaf_pool *pool, sheaf_pool_stats before)
{
    sheaf_pool_stats after = stats_of(pool);
    before.full_answers = after.full_answers;
    before.slab_failures = after.slab_failures;
    before.host_bytes = after.host_bytes;
    assert_memory_equal(&before, &after, sizeof before);
    check_pool(pool);
}

/* `n` blocks of group g, or a failed test. */
static inline void take(sheaf_pool *pool, uint32_t g, uint32_t n, sheaf_block *blocks)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    counts[g] = n;
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
}

static inline void give(sheaf_pool *pool, uint32_t n, const sheaf_block *blocks)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(sheaf_pool_release(pool, blocks[i], SHEAF_OWNER_HOST), SHEAF_OK);
}

static inline void close_pool(sheaf_pool *pool)
{
    check_pool(pool);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

#endif
