/* tests/cache/oom_cache.c - every host allocation and every slab commit fails once, alone and
 * with all after it; what failed has changed nothing, and nothing leaks. */
#include "fixture.h"

#include "cache/dense.h"

static const sheaf_layer layers[] = {
    {.n_kv_heads = 2, .key_dim = 3, .value_dim = 4, .codec_k = SHEAF_CODEC_BF16},
    {.n_kv_heads = 1, .key_dim = 8, .value_dim = 8, .window = 6},
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 0},
};
#define N_LAYERS 3

/* What an observer sees of a sequence. */
typedef struct observed {
    uint32_t length, reserved;
    sheaf_usage usage;
    sheaf_pool_stats stats;
} observed;

/* Counters of what was tried, and the pool's own memory, may move when a call fails: slabs that
 * were committed, or taken back from another group, before the failure. */
static observed observe(const fixture *f, const sheaf_sequence *seq)
{
    observed o;
    memset(&o, 0, sizeof o);
    o.usage = (sheaf_usage)SHEAF_USAGE_INIT;
    if (seq != NULL) {
        o.length = sheaf_sequence_length(seq);
        o.reserved = sheaf_sequence_reserved(seq);
        assert_int_equal(sheaf_sequence_usage(seq, &o.usage), SHEAF_OK);
    }
    o.stats = fixture_stats(f);
    o.stats.full_answers = o.stats.slab_failures = o.stats.host_bytes = 0;
    o.stats.slabs = o.stats.slabs_empty = o.stats.slab_appends = o.stats.slab_releases = 0;
    o.stats.bytes_reserved = o.stats.blocks_capacity = o.stats.blocks_free = 0;
    return o;
}

static void assert_unchanged(const fixture *f, const sheaf_sequence *seq,
                             const observed *before)
{
    observed now = observe(f, seq);
    assert_memory_equal(before, &now, sizeof now);
    if (seq != NULL && now.reserved == 0) assert_holds_its_tokens(f, seq);
    assert_whole(f, seq);
}

/* Repeats a call until it succeeds; a failure must have changed nothing. With `all after it`
 * failing it would never succeed: the fault is lifted after the first failure. Counts failures.
 * */
#define UNTIL_OK(f, seq, call)                                                                 \
    do {                                                                                       \
        for (uint32_t tries = 0;; tries++) {                                                   \
            observed before_ = observe(f, seq);                                                \
            sheaf_status st_ = (call);                                                         \
            if (st_ == SHEAF_OK) break;                                                        \
            assert_true(st_ == SHEAF_E_NO_MEMORY || st_ == SHEAF_FULL);                        \
            assert_true(tries < 3);                                                            \
            assert_unchanged(f, seq, &before_);                                                \
            (f)->host.fail_at = (f)->slabs.fail_at = 0;                                        \
            n_failures++;                                                                      \
        }                                                                                      \
    } while (0)

static uint64_t n_failures;

static void grow(fixture *f, sheaf_sequence *seq, uint32_t n, uint32_t first)
{
    uint32_t seeds[128];
    for (uint32_t i = 0; i < n; i++) seeds[i] = first + i;
    UNTIL_OK(f, seq, sheaf_sequence_extend(seq, n));
    write_all(f, seq, sheaf_sequence_length(seq), n, seeds);
    assert_int_equal(sheaf_sequence_commit(seq, n, (const int32_t *)seeds), SHEAF_OK);
    assert_holds_its_tokens(f, seq);
}

/* A life with every operation that takes memory. */
static void live(fixture *f)
{
    sheaf_sequence *seq = NULL, *twin = NULL, *clone = NULL;
    sheaf_parked *parked = NULL;
    UNTIL_OK(f, NULL, sheaf_sequence_create(f->pool, &seq));
    grow(f, seq, 6, 0);
    UNTIL_OK(f, seq, sheaf_sequence_fork(seq, &twin));
    grow(f, twin, 70, 100); /* a copy of the tail, and a larger room */
    grow(f, seq, 3, 6);
    assert_int_equal(sheaf_sequence_slide(twin, 2), SHEAF_OK);
    assert_int_equal(sheaf_sequence_truncate(twin, 75), SHEAF_OK);
    assert_int_equal(sheaf_sequence_park(twin, &parked), SHEAF_OK);
    UNTIL_OK(f, seq, sheaf_parked_clone(parked, 75, &clone));
    grow(f, clone, 2, 300);
    grow(f, seq, 100, 400);
    assert_int_equal(sheaf_parked_check(parked, NULL), SHEAF_OK);
    sheaf_parked_destroy(parked);
    sheaf_sequence_destroy(clone);
    sheaf_sequence_destroy(seq);
}

/* One life with the nth allocation of a kind failing; false when there was no nth. */
static bool live_with_fault(uint64_t nth, bool slabs, int and_after)
{
    fixture f;
    fixture_open(&f, layers, N_LAYERS, 4, 64);
    host *h = slabs ? &f.slabs : &f.host;
    h->fail_at = h->n_allocs + nth;
    h->fail_on = and_after;
    n_failures = 0;
    live(&f);
    f.host.fail_at = f.slabs.fail_at = 0;
    assert_int_equal(fixture_stats(&f).blocks_held, 0);
    fixture_close(&f);
    return n_failures != 0;
}

static void fail_every_one(bool slabs, int and_after, uint64_t at_least)
{
    uint64_t nth = 1;
    while (live_with_fault(nth, slabs, and_after)) nth++;
    assert_true(nth > at_least); /* the fault was met, again and again */
}

static void a_host_allocation_that_fails_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(false, 0, 12);
}

static void host_memory_that_stays_exhausted_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(false, 1, 12);
}

static void a_slab_that_cannot_be_committed_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(true, 0, 12);
}

static void slab_memory_that_stays_exhausted_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(true, 1, 12);
}

/* ---- the dense buffer ----------------------------------------------------------------------
 * */

#define DENSE_UNTIL_OK(h, dense, call)                                                         \
    do {                                                                                       \
        for (;;) {                                                                             \
            uint64_t live_ = (h)->n_live;                                                      \
            sheaf_status st_ = (call);                                                         \
            if (st_ == SHEAF_OK) break;                                                        \
            assert_int_equal(st_, SHEAF_E_NO_MEMORY);                                          \
            assert_int_equal((h)->n_live, live_);                                              \
            assert_true((h)->fail_at != 0);                                                    \
            (h)->fail_at = 0;                                                                  \
            n_failures++;                                                                      \
        }                                                                                      \
    } while (0)

static bool dense_life_with_fault(uint64_t nth, int and_after)
{
    static source s;
    static float k[1 << 10], v[1 << 10];
    host h = {.fail_at = nth, .fail_on = and_after};
    sheaf_allocator allocator = {&h, host_alloc, host_free};
    sheaf__memory memory;
    sheaf__memory_init(&memory, &allocator);
    sheaf__dense *dense = NULL, *twin = NULL;
    uint32_t seeds[20];
    for (uint32_t i = 0; i < 20; i++) seeds[i] = i;
    n_failures = 0;
    DENSE_UNTIL_OK(&h, dense, sheaf__dense_create(&memory, layers, N_LAYERS, 4, 8, &dense));
    for (uint32_t pos = 0; pos < 20; pos += 5) {
        DENSE_UNTIL_OK(&h, dense, sheaf__dense_extend(dense, 5));
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            source_fill(&s, &layers[layer], layer, seeds + pos, 5, 0, SHEAF_TOKEN_MAJOR);
            assert_int_equal(sheaf__dense_write(dense, layer, pos, 5, &s.src), SHEAF_OK);
        }
        assert_int_equal(sheaf__dense_commit(dense, 5, NULL), SHEAF_OK);
    }
    DENSE_UNTIL_OK(&h, dense, sheaf__dense_fork(dense, &twin));
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        uint32_t begin = layers[layer].window ? 20 - layers[layer].window : 0;
        assert_int_equal(sheaf__dense_gather_f32(twin, layer, k, 1 << 10, v, 1 << 10),
                         SHEAF_OK);
        assert_true(gathered_equals(k, &layers[layer], layer, 0, seeds, NULL, begin, 20));
        assert_true(gathered_equals(v, &layers[layer], layer, 1, seeds, NULL, begin, 20));
    }
    sheaf__dense_destroy(dense);
    sheaf__dense_destroy(twin);
    assert_int_equal(h.n_live, 0);
    assert_int_equal(memory.live_bytes, 0);
    return n_failures != 0;
}

static void a_dense_buffer_that_cannot_grow_stays_as_it_is(void **state)
{
    (void)state;
    for (int and_after = 0; and_after < 2; and_after++) {
        uint64_t nth = 1;
        while (dense_life_with_fault(nth, and_after)) nth++;
        assert_true(nth > 15);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_allocation_that_fails_changes_nothing),
        cmocka_unit_test(host_memory_that_stays_exhausted_changes_nothing),
        cmocka_unit_test(a_slab_that_cannot_be_committed_changes_nothing),
        cmocka_unit_test(slab_memory_that_stays_exhausted_changes_nothing),
        cmocka_unit_test(a_dense_buffer_that_cannot_grow_stays_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
