/* examples/own_allocators.c - a host that brings its own memory, of both kinds.
 *
 * Host memory (tables, records, token ids) comes from an allocator that counts and has a limit. The
 * memory of slabs (the K and V numbers) comes from one region mapped at the start, as a host would
 * that pins it or registers it with a network card once: reserving hands out addresses of the region,
 * committing takes bytes from what the host grants. Both limits are met here, and both are survived.
 *
 *     cc own_allocators.c -o own_allocators $(pkg-config --cflags --libs sheaf)
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <sheaf/sheaf.h>

#define TRY(call)                                                                              \
    do {                                                                                       \
        sheaf_status status_ = (call);                                                         \
        if (status_ == SHEAF_OK) break;                                                        \
        fprintf(stderr, "%s: %s\n", #call, sheaf_status_text(status_));                        \
        return status_;                                                                        \
    } while (0)

/* The example's own claims. */
#define EXPECT(condition)                                                                      \
    do {                                                                                       \
        if (condition) break;                                                                  \
        fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                        \
        return SHEAF_E_CORRUPT;                                                                \
    } while (0)

/* ---- host memory --------------------------------------------------------------------------- */

typedef struct heap {
    uint64_t live, most, limit; /* bytes */
} heap;

static void *heap_alloc(void *ctx, uint64_t size, uint64_t align)
{
    heap *h = ctx;
    if (size > h->limit || h->live > h->limit - size)
        return NULL;                                    /* an answer, like any other */
    uint64_t whole = (size + align - 1) & ~(align - 1); /* aligned_alloc wants that */
    void *ptr = aligned_alloc((size_t)align, (size_t)whole);
    if (ptr == NULL) return NULL;
    h->live += size;
    if (h->live > h->most) h->most = h->live;
    return ptr;
}

/* The size comes back with the pointer: an allocator need not keep it. */
static void heap_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)align;
    ((heap *)ctx)->live -= size;
    free(ptr);
}

/* ---- slab memory --------------------------------------------------------------------------- */

enum { GRANULE = 65536 }; /* a multiple of every page size in use */

typedef struct region {
    unsigned char *base;
    uint64_t bytes;
    uint64_t handed;    /* of the addresses: ranges lie one after the other */
    uint64_t granted;   /* bytes that the host gives to caches */
    uint64_t committed; /* bytes in use of these */
    uint32_t n_ranges;
} region;

static int region_open(region *r, uint64_t bytes, uint64_t granted)
{
    memset(r, 0, sizeof *r);
    void *base =
        mmap(NULL, bytes + GRANULE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return -1;
    r->base = base; /* a host would now pin it, or register it with its card */
    r->bytes = bytes + GRANULE;
    r->handed = (uint64_t) - (uintptr_t)r->base & (GRANULE - 1); /* start at a multiple */
    r->granted = granted;
    return 0;
}

static void *region_reserve(void *ctx, uint64_t bytes)
{
    region *r = ctx;
    if (bytes > r->bytes - r->handed) return NULL;
    void *range = r->base + r->handed;
    r->handed += bytes;
    r->n_ranges++;
    return range;
}

static int region_commit(void *ctx, void *addr, uint64_t bytes)
{
    region *r = ctx;
    (void)addr;
    if (bytes > r->granted - r->committed) return -1;
    r->committed += bytes;
    return 0;
}

static void region_decommit(void *ctx, void *addr, uint64_t bytes)
{
    region *r = ctx;
    (void)addr;
    r->committed -= bytes;
}

static void region_release(void *ctx, void *addr, uint64_t bytes)
{
    region *r = ctx;
    (void)addr, (void)bytes; /* the addresses are not used again */
    r->n_ranges--;
}

/* ---- a pool on them ------------------------------------------------------------------------ */

/* One layer, 8 KiB a block of 16 tokens, 8 blocks a slab: 64 KiB a slab. */
enum { KV_HEADS = 2, DIM = 64, STEP = 16, SLAB_BLOCKS = 8, SLAB_BYTES = 65536, SLABS = 15 };

/* Adds STEP tokens, or answers SHEAF_FULL. */
static sheaf_status grow(sheaf_sequence *seq)
{
    static float numbers[STEP * KV_HEADS * DIM];
    sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
    src.n_kv_heads = KV_HEADS;
    src.key_dim = src.value_dim = DIM;
    src.k = src.v = numbers;
    sheaf_status st = sheaf_sequence_extend(seq, STEP);
    if (st == SHEAF_FULL) return st;
    TRY(st);
    TRY(sheaf_sequence_write(seq, 0, sheaf_sequence_length(seq), STEP, &src));
    TRY(sheaf_sequence_commit(seq, STEP, NULL));
    return SHEAF_OK;
}

/* The region ends before the pool's budget does: the pool says so, and goes on. */
static sheaf_status meet_the_end_of_slabs(sheaf_pool *pool, region *r, sheaf_sequence *seq)
{
    sheaf_status st;
    while ((st = grow(seq)) == SHEAF_OK) continue;
    if (st != SHEAF_FULL) return st;
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    TRY(sheaf_pool_stats_read(pool, &stats));
    printf("full at %" PRIu32 " tokens: %" PRIu64 " slabs, %" PRIu64 " of %" PRIu64
           " bytes of budget\n",
           sheaf_sequence_length(seq), stats.slabs, stats.bytes_reserved, stats.budget_bytes);
    EXPECT(stats.bytes_reserved == r->committed && r->committed == r->granted);
    EXPECT(stats.slab_failures == 1); /* the memory refused, not the budget */
    EXPECT(sheaf_sequence_reserved(seq) == 0);
    TRY(sheaf_pool_check(pool, NULL));

    TRY(sheaf_sequence_truncate(seq, 256)); /* an engine would evict, or preempt */
    TRY(grow(seq));
    r->granted += SLAB_BYTES; /* or its host grants more, any time */
    while ((st = grow(seq)) == SHEAF_OK) continue;
    if (st != SHEAF_FULL) return st;
    printf("with a slab more: %" PRIu32 " tokens\n", sheaf_sequence_length(seq));
    return SHEAF_OK;
}

/* Host memory that ends is a fault, SHEAF_E_NO_MEMORY, and nothing has changed either. */
static sheaf_status meet_the_end_of_heap(sheaf_pool *pool, heap *h)
{
    uint64_t limit = h->limit;
    sheaf_sequence *seq = NULL;
    h->limit = h->live;
    sheaf_status st = sheaf_sequence_create(pool, &seq);
    h->limit = limit;
    printf("no host memory: %s\n", sheaf_status_text(st));
    EXPECT(st == SHEAF_E_NO_MEMORY && seq == NULL);
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    TRY(sheaf_pool_stats_read(pool, &stats));
    EXPECT(stats.host_bytes == h->live); /* the pool's account is the allocator's */
    return SHEAF_OK;
}

static sheaf_status use(heap *h, region *r)
{
    sheaf_allocator allocator = {h, heap_alloc, heap_free};
    sheaf_slab_memory memory = {
        r, GRANULE, region_reserve, region_commit, region_decommit, region_release};
    sheaf_layer layer = {.n_kv_heads = KV_HEADS,
                         .key_dim = DIM,
                         .value_dim = DIM,
                         .codec_k = SHEAF_CODEC_F16,
                         .codec_v = SHEAF_CODEC_F16};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = &layer;
    options.n_layers = 1;
    options.block_tokens = STEP;
    options.slab_blocks = SLAB_BLOCKS;
    options.budget_bytes = (uint64_t)SLABS * SLAB_BYTES;
    options.allocator = &allocator; /* both are copied; their ctx must outlive the pool */
    options.slab_memory = &memory;

    sheaf_pool *pool = NULL;
    sheaf_sequence *seq = NULL;
    sheaf_error err = {SHEAF_OK, ""};
    sheaf_status st = sheaf_pool_open(&options, &pool, &err);
    if (st != SHEAF_OK) fprintf(stderr, "%s\n", err.text);
    if (st == SHEAF_OK) {
        printf("open: %" PRIu32 " range of %" PRIu64 " bytes, %" PRIu64 " bytes committed\n",
               r->n_ranges, (uint64_t)(SLABS + 1) * SLAB_BYTES, r->committed);
        st = sheaf_sequence_create(pool, &seq);
    }
    if (st == SHEAF_OK) st = meet_the_end_of_slabs(pool, r, seq);
    if (st == SHEAF_OK) st = meet_the_end_of_heap(pool, h);
    sheaf_sequence_destroy(seq);
    sheaf_status closed = sheaf_pool_close(pool);
    return st != SHEAF_OK ? st : closed;
}

int main(void)
{
    heap h = {.limit = 1 << 20};
    region r;
    /* The pool reserves a slab more than the budget holds (sheaf/pool.h says why). */
    if (region_open(&r, (uint64_t)(SLABS + 1) * SLAB_BYTES, (uint64_t)4 * SLAB_BYTES) != 0) {
        perror("mmap");
        return 1;
    }
    sheaf_status st = use(&h, &r);
    printf("returned: %" PRIu64 " host bytes, %" PRIu64 " slab bytes, %" PRIu32
           " ranges are left\n",
           h.live, r.committed, r.n_ranges);
    printf("# at most %" PRIu64 " host bytes were in use\n", h.most);
    int left = h.live != 0 || r.committed != 0 || r.n_ranges != 0;
    munmap(r.base, r.bytes);
    return st == SHEAF_OK && !left ? 0 : 1;
}
