/* tests/cache/fixture.h - what the tests of the cache floor share: numbers told by a seed,
 * sources in every type and order, host memory and slab memory that can be made to fail.
 *
 * Numbers: number d of head h of K (side 0) or V (side 1) of a layer is a function of the seed
 * that names a position's content. Expected values are narrowed and widened by base/half.h,
 * apart from the codec floor.
 */
#ifndef TESTS_CACHE_FIXTURE_H
#define TESTS_CACHE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "base/half.h"
#include "sheaf/cache.h"

/* ---- random numbers ---------------------------------------------------------------------- */

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t random_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return mix64(*state);
}

/* 0 to n - 1. */
static inline uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(random_next(state) % n);
}

/* SHEAF_SEED, or the given one; printed, so that a failure can be repeated. */
static inline uint64_t seed_from_environment(uint64_t otherwise)
{
    const char *text = getenv("SHEAF_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : otherwise;
    fprintf(stderr, "SHEAF_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* ---- numbers ----------------------------------------------------------------------------- */

/* In [-4, 4), with more bits than f16 or bf16 can hold. */
static inline float number_of(uint32_t seed, uint32_t layer, uint32_t side, uint32_t head,
                              uint32_t d)
{
    uint64_t h =
        mix64(((uint64_t)seed << 32) ^ (layer << 20) ^ (side << 19) ^ (head << 12) ^ d);
    return (float)((int32_t)(h >> 40) - (1 << 23)) / (float)(1 << 21);
}

/* A number after it was stored in a type. */
static inline float stored_as(uint32_t type, float x)
{
    if (type == SHEAF_DTYPE_F16) return sheaf__f32_of_f16(sheaf__f16_of_f32(x));
    if (type == SHEAF_DTYPE_BF16) return sheaf__f32_of_bf16(sheaf__bf16_of_f32(x));
    return x;
}

/* What becomes of a row in a tile: encoded, and decoded again. */
static inline void store_row(uint32_t codec, uint32_t dim, float *row)
{
    unsigned char segment[4096];
    uint64_t bytes = 0;
    assert_int_equal(sheaf_codec_segment_bytes(codec, 1, dim, &bytes), SHEAF_OK);
    assert_true(bytes <= sizeof segment);
    assert_int_equal(
        sheaf_codec_encode(codec, segment, 1, dim, 0, 1, SHEAF_DTYPE_F32, row, dim), SHEAF_OK);
    assert_int_equal(sheaf_codec_decode(codec, segment, 1, dim, 0, 1, row), SHEAF_OK);
}

static inline void put_number(void *array, uint64_t index, uint32_t dtype, float x)
{
    if (dtype == SHEAF_DTYPE_F32) {
        ((float *)array)[index] = x;
        return;
    }
    ((uint16_t *)array)[index] =
        dtype == SHEAF_DTYPE_F16 ? sheaf__f16_of_f32(x) : sheaf__bf16_of_f32(x);
}

/* A source of n positions and the arrays behind it. */
typedef struct source {
    sheaf_kv_source src;
    float k[1 << 14]; /* room for any dtype */
    float v[1 << 14];
} source;

/* Fills it for positions whose contents are named by seeds: [n]. */
static inline const sheaf_kv_source *source_fill(source *s, const sheaf_layer *shape,
                                                 uint32_t layer, const uint32_t *seeds,
                                                 uint32_t n, uint32_t dtype, uint32_t order)
{
    s->src = (sheaf_kv_source)SHEAF_KV_SOURCE_INIT;
    s->src.dtype = dtype, s->src.order = order;
    s->src.n_kv_heads = shape->n_kv_heads;
    s->src.key_dim = shape->key_dim, s->src.value_dim = shape->value_dim;
    s->src.k = s->k, s->src.v = shape->value_dim != 0 ? s->v : NULL;
    for (uint32_t side = 0; side < 2; side++) {
        uint32_t dim = side == 0 ? shape->key_dim : shape->value_dim;
        assert_true((uint64_t)n * shape->n_kv_heads * dim <= 1 << 14);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t h = 0; h < shape->n_kv_heads; h++)
                for (uint32_t d = 0; d < dim; d++) {
                    uint64_t row = order == SHEAF_TOKEN_MAJOR
                                       ? (uint64_t)i * shape->n_kv_heads + h
                                       : (uint64_t)h * n + i;
                    put_number(side == 0 ? s->k : s->v, row * dim + d, dtype,
                               number_of(seeds[i], layer, side, h, d));
                }
    }
    return &s->src;
}

/* Compares a gather of a layer with contents named by seeds: [end], of which [begin, end) are
 * visible; dtypes: [end], of their sources. gathered: [n_kv_heads, end - begin, dim]. */
static inline bool gathered_equals(const float *gathered, const sheaf_layer *shape,
                                   uint32_t layer, uint32_t side, const uint32_t *seeds,
                                   const uint8_t *dtypes, uint32_t begin, uint32_t end)
{
    uint32_t dim = side == 0 ? shape->key_dim : shape->value_dim;
    uint32_t codec = side == 0 ? shape->codec_k : shape->codec_v;
    for (uint32_t h = 0; h < shape->n_kv_heads; h++)
        for (uint32_t pos = begin; pos < end; pos++, gathered += dim) {
            float row[1024];
            assert_true(dim <= sizeof row / sizeof row[0]);
            for (uint32_t d = 0; d < dim; d++)
                row[d] = stored_as(dtypes != NULL ? dtypes[pos] : SHEAF_DTYPE_F32,
                                   number_of(seeds[pos], layer, side, h, d));
            store_row(codec, dim, row);
            if (memcmp(gathered, row, dim * sizeof *row) != 0) return false;
        }
    return true;
}

/* ---- host memory that counts and fails --------------------------------------------------- */

typedef struct host {
    uint64_t n_allocs; /* so far */
    uint64_t n_live;
    uint64_t fail_at; /* the allocation of this number, from 1, fails; 0: none */
    int fail_on;      /* and all after it */
} host;

static inline int host_fails(host *h)
{
    h->n_allocs++;
    if (h->fail_at == 0 || h->n_allocs < h->fail_at) return 0;
    return h->n_allocs == h->fail_at || h->fail_on;
}

static inline void *host_alloc(void *ctx, uint64_t size, uint64_t align)
{
    host *h = ctx;
    void *ptr = NULL;
    if (host_fails(h) || posix_memalign(&ptr, align, size) != 0) return NULL;
    h->n_live++;
    return ptr;
}

static inline void host_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)size, (void)align;
    ((host *)ctx)->n_live--;
    free(ptr);
}

/* ---- slab memory that counts and fails --------------------------------------------------- */

/* Granularity 64, so that a slab is no larger than its tiles; what is committed is all ones,
 * which is NaN in every raw codec. Commits count as `host` counts allocations. */
static inline void *slab_reserve(void *ctx, uint64_t bytes)
{
    (void)ctx;
    void *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return addr == MAP_FAILED ? NULL : addr;
}

static inline int slab_commit(void *ctx, void *addr, uint64_t bytes)
{
    host *h = ctx;
    if (host_fails(h)) return 1;
    h->n_live++;
    memset(addr, 0xff, bytes);
    return 0;
}

static inline void slab_decommit(void *ctx, void *addr, uint64_t bytes)
{
    ((host *)ctx)->n_live--;
    memset(addr, 0xff, bytes);
}

static inline void slab_release(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx;
    munmap(addr, bytes);
}

/* ---- pools ------------------------------------------------------------------------------- */

typedef struct fixture {
    host host;
    host slabs;
    sheaf_pool *pool;
    uint32_t n_layers;
    const sheaf_layer *layers; /* [n_layers] */
} fixture;

/* A pool of block_tokens 4 whose budget is `budget_blocks` blocks of every group together. */
static inline sheaf_status fixture_try_open(fixture *f, const sheaf_layer *layers,
                                            uint32_t n_layers, uint32_t slab_blocks,
                                            uint64_t budget_bytes)
{
    sheaf_allocator allocator = {&f->host, host_alloc, host_free};
    sheaf_slab_memory slabs = {&f->slabs,     64,          slab_reserve, slab_commit,
                               slab_decommit, slab_release};
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    o.layers = layers, o.n_layers = n_layers;
    o.block_tokens = 4, o.slab_blocks = slab_blocks;
    o.budget_bytes = budget_bytes;
    o.allocator = &allocator, o.slab_memory = &slabs;
    f->layers = layers, f->n_layers = n_layers;
    return sheaf_pool_open(&o, &f->pool, NULL);
}

/* Bytes of one block of each group, tiles padded to 64 as sheaf/pool.h says. */
static inline uint64_t block_bytes_of(const sheaf_layer *layers, uint32_t n_layers)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n_layers; i++)
        for (uint32_t side = 0; side < 2; side++) {
            uint32_t dim = side == 0 ? layers[i].key_dim : layers[i].value_dim;
            uint32_t codec = side == 0 ? layers[i].codec_k : layers[i].codec_v;
            uint64_t tile = 0;
            assert_int_equal(sheaf_codec_segment_bytes(codec, 4, dim, &tile), SHEAF_OK);
            tile *= layers[i].n_kv_heads;
            bytes += (tile + 63) / 64 * 64;
        }
    return bytes;
}

static inline void fixture_open(fixture *f, const sheaf_layer *layers, uint32_t n_layers,
                                uint32_t slab_blocks, uint32_t budget_blocks)
{
    *f = (fixture){0};
    uint64_t budget = block_bytes_of(layers, n_layers) * budget_blocks;
    assert_int_equal(fixture_try_open(f, layers, n_layers, slab_blocks, budget), SHEAF_OK);
}

/* Closes the pool, which holds nothing any more, and looks for leaks. */
static inline void fixture_close(fixture *f)
{
    sheaf_error err;
    if (sheaf_pool_check(f->pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    assert_int_equal(sheaf_pool_close(f->pool), SHEAF_OK);
    assert_int_equal(f->host.n_live, 0);
    assert_int_equal(f->slabs.n_live, 0);
}

static inline sheaf_pool_stats fixture_stats(const fixture *f)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_stats_read(f->pool, &stats), SHEAF_OK);
    return stats;
}

/* Pool and sequence say that they are whole. */
static inline void assert_whole(const fixture *f, const sheaf_sequence *seq)
{
    sheaf_error err = {0};
    if (seq != NULL && sheaf_sequence_check(seq, &err) != SHEAF_OK) fail_msg("%s", err.text);
    if (sheaf_pool_check(f->pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

/* ---- sequences --------------------------------------------------------------------------- */

/* Writes reserved positions [pos, pos + n) of every layer, contents named by seeds: [n]. */
static inline void write_all(const fixture *f, sheaf_sequence *seq, uint32_t pos, uint32_t n,
                             const uint32_t *seeds)
{
    static source s;
    for (uint32_t layer = 0; layer < f->n_layers; layer++) {
        source_fill(&s, &f->layers[layer], layer, seeds, n, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
        assert_int_equal(sheaf_sequence_write(seq, layer, pos, n, &s.src), SHEAF_OK);
    }
}

/* Extends, writes and commits n positions with seeds and tokens first, first + 1, ... */
static inline sheaf_status append(const fixture *f, sheaf_sequence *seq, uint32_t n,
                                  uint32_t first)
{
    uint32_t seeds[512];
    int32_t tokens[512];
    assert_true(n <= 512);
    for (uint32_t i = 0; i < n; i++) seeds[i] = first + i, tokens[i] = (int32_t)(first + i);
    sheaf_status st = sheaf_sequence_extend(seq, n);
    if (st != SHEAF_OK) return st;
    write_all(f, seq, sheaf_sequence_length(seq), n, seeds);
    return sheaf_sequence_commit(seq, n, tokens);
}

static inline sheaf_sequence *sequence_of_length(const fixture *f, uint32_t n, uint32_t first)
{
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f->pool, &seq), SHEAF_OK);
    assert_int_equal(append(f, seq, n, first), SHEAF_OK);
    return seq;
}

/* The sequence holds exactly the contents named by its tokens, in every layer. */
static inline void assert_holds_its_tokens(const fixture *f, const sheaf_sequence *seq)
{
    static float k[1 << 14], v[1 << 14];
    const uint32_t *seeds = (const uint32_t *)sheaf_sequence_tokens(seq);
    for (uint32_t layer = 0; layer < f->n_layers; layer++) {
        const sheaf_layer *shape = &f->layers[layer];
        uint32_t begin, end;
        assert_int_equal(sheaf_sequence_visible(seq, layer, &begin, &end), SHEAF_OK);
        assert_int_equal(sheaf_sequence_gather_f32(seq, layer, k, 1 << 14, v, 1 << 14),
                         SHEAF_OK);
        assert_true(gathered_equals(k, shape, layer, 0, seeds, NULL, begin, end));
        assert_true(gathered_equals(v, shape, layer, 1, seeds, NULL, begin, end));
    }
    assert_whole(f, seq);
}

#endif
