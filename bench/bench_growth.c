/* bench/bench_growth.c - what does it cost to grow a cache of real depth?
 *
 * The pool commits a slab: no block moves, whatever the pool holds. A dense buffer that grows is
 * allocated anew, copied and freed, and both copies exist meanwhile. (On Linux realloc can remap
 * pages instead; device memory and pinned memory cannot, and caches for them copy.)
 *
 * The mark: committing a slab and touching it for the first time costs the same at any size. What it
 * costs is given as a multiple of what it costs in an empty pool, measured in turns with it.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sheaf/pool.h"

#define N_LAYERS 28
#define REPEATS  5

typedef struct rig {
    sheaf_pool *pool;
    uint64_t slab_bytes;
    uint32_t slab_blocks;
    uint32_t max_slabs;
    sheaf_block *blocks; /* [max_slabs * slab_blocks] */
    uint32_t n_slabs;
} rig;

static bool rig_open(rig *r, uint64_t bytes)
{
    sheaf_layer layers[N_LAYERS];
    for (int i = 0; i < N_LAYERS; i++)
        layers[i] = (sheaf_layer){.n_kv_heads = 8,
                                  .key_dim = 128,
                                  .value_dim = 128,
                                  .codec_k = SHEAF_CODEC_BF16,
                                  .codec_v = SHEAF_CODEC_BF16};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers;
    options.n_layers = N_LAYERS;
    options.budget_bytes = bytes;
    options.no_slack = 1;
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    if (sheaf_pool_open(&options, &r->pool, NULL) != SHEAF_OK ||
        sheaf_pool_group_info(r->pool, 0, &info) != SHEAF_OK)
        return false;
    r->slab_bytes = info.slab_bytes;
    r->slab_blocks = info.slab_blocks;
    r->max_slabs = (uint32_t)(bytes / info.slab_bytes);
    r->blocks = calloc((uint64_t)r->max_slabs * r->slab_blocks, sizeof *r->blocks);
    r->n_slabs = 0;
    return r->blocks != NULL;
}

static sheaf_block *last_slab(const rig *r)
{
    return r->blocks + (uint64_t)(r->n_slabs - 1) * r->slab_blocks;
}

/* Takes the blocks of one more slab; returns the seconds, of which nearly all is the commit. */
static double grow(rig *r)
{
    double start = bench_seconds();
    sheaf_status st = sheaf_pool_acquire(r->pool, &r->slab_blocks, SHEAF_OWNER_HOST,
                                         r->blocks + (uint64_t)r->n_slabs * r->slab_blocks);
    double seconds = bench_seconds() - start;
    if (st != SHEAF_OK) abort();
    r->n_slabs++;
    return seconds;
}

static double touch_last(const rig *r)
{
    void *addr;
    double start = bench_seconds();
    if (sheaf_pool_address(r->pool, last_slab(r)[0], &addr) != SHEAF_OK) abort();
    memset(addr, 1, r->slab_bytes);
    return bench_seconds() - start;
}

/* Gives the last slab back to the system. */
static double shrink(rig *r)
{
    const sheaf_block *blocks = last_slab(r);
    double start = bench_seconds();
    for (uint32_t i = 0; i < r->slab_blocks; i++)
        if (sheaf_pool_release(r->pool, blocks[i], SHEAF_OWNER_HOST) != SHEAF_OK) abort();
    r->n_slabs--;
    return bench_seconds() - start;
}

/* Allocates for `more` bytes beyond `used`, copies and frees; the source is memory in use. */
static double grow_dense(uint64_t used, uint64_t more)
{
    unsigned char *old = bench_map(used);
    double start = bench_seconds();
    unsigned char *grown =
        mmap(NULL, used + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (old == NULL || grown == MAP_FAILED) abort();
    madvise(grown, used + more, MADV_HUGEPAGE);
    memcpy(grown, old, used);
    bench_unmap(old, used);
    memset(grown + used, 1, more);
    double seconds = bench_seconds() - start;
    bench_unmap(grown, used + more);
    return seconds;
}

static double least(double a, double b)
{
    return a == 0 || b < a ? b : a;
}

static void measure(bench *b, rig *r, rig *empty, bool with_dense)
{
    double commit = 0, touch = 0, release = 0, whole = 0, first = 0, dense = 0;
    for (int i = 0; i < REPEATS; i++) {
        double there = grow(empty) + touch_last(empty);
        double grown = grow(r), touched = touch_last(r);
        shrink(empty);
        commit = least(commit, grown);
        touch = least(touch, touched);
        whole = least(whole, grown + touched);
        first = least(first, there);
        release = least(release, shrink(r));
    }
    for (int i = 0; i < (b->quick ? 1 : 2) && with_dense; i++)
        dense = least(dense, grow_dense(r->n_slabs * r->slab_bytes, r->slab_bytes));
    char name[64];
    double used = (double)r->n_slabs;
    snprintf(name, sizeof name, "%.0f MiB held", used * (double)r->slab_bytes / (1 << 20));
    bench_row(b, name, commit * 1e6, touch * 1e3, whole / first, release * 1e6,
              with_dense ? dense * 1e3 : NAN, with_dense ? dense / whole : NAN);
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "growth", "what does it cost to grow a cache?", argc, argv)) return 2;
    uint64_t mebibytes =
        bench_option_u32(&b, "--mib", (uint32_t)bench_size(&b, 3584, 512, 112));
    rig r, empty;
    if (!rig_open(&r, mebibytes << 20) || !rig_open(&empty, 64 << 20)) return 1;
    static const bench_column columns[] = {
        {"commit a slab", "us"}, {"its first touch", "ms"}, {"times an empty pool's", "times"},
        {"give it back", "us"},  {"dense: copy", "ms"},     {"dense to pool", "times"}};
    static const bench_column counts[] = {{"copied by growth", "bytes"},
                                          {"committed", "slabs"}};
    bench_table(&b, columns, 6);
    for (uint32_t next = 0; next < r.max_slabs; next = next == 0 ? 1 : next * 2) {
        while (r.n_slabs < next) {
            grow(&r);
            touch_last(&r);
        }
        measure(&b, &r, &empty, next != 0);
    }
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    if (sheaf_pool_stats_read(r.pool, &stats) != SHEAF_OK) return 1;
    bench_table(&b, counts, 2);
    bench_row(&b, "the pool", (double)stats.bytes_copied_by_growth, (double)stats.slab_appends);
    bench_note(&b, "a slab is %.0f MiB (%u blocks, 28 layers, bf16)",
               (double)r.slab_bytes / (1 << 20), r.slab_blocks);
    bench_note(
        &b, "dense: the same bytes more in a buffer that is allocated anew, copied and freed");
    while (r.n_slabs != 0) shrink(&r);
    if (sheaf_pool_close(r.pool) != SHEAF_OK || sheaf_pool_close(empty.pool) != SHEAF_OK)
        return 1;
    free(r.blocks);
    free(empty.blocks);
    return bench_end(&b);
}
