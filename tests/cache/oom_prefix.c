/* tests/cache/oom_prefix.c - every host allocation and every slab commit fails once, alone and with all
 * after it; what failed has changed nothing but what was evicted, and nothing leaks. */
#include "rig.h"

static uint32_t n_failures;

/* What an observer sees of the cache when nothing was evicted. Its own memory may have grown. */
static sheaf_prefix_stats observe(const rig *r)
{
    sheaf_prefix_stats stats = rig_stats(r);
    stats.host_bytes = 0;
    return stats;
}

/* Repeats a call until it succeeds: the fault is lifted after the first failure. */
#define UNTIL_OK(r, call)                                                                      \
    do {                                                                                       \
        for (;;) {                                                                             \
            sheaf_prefix_stats before_ = observe(r);                                           \
            uint64_t held_ = fixture_stats(&(r)->f).blocks_held;                               \
            sheaf_status st_ = (call);                                                         \
            assert_cache_whole(r);                                                             \
            if (st_ == SHEAF_OK) break;                                                        \
            assert_true(st_ == SHEAF_E_NO_MEMORY || st_ == SHEAF_FULL);                        \
            assert_true((r)->f.host.fail_at != 0 || (r)->f.slabs.fail_at != 0);                \
            sheaf_prefix_stats after_ = observe(r);                                            \
            assert_memory_equal(&before_, &after_, sizeof after_);                             \
            assert_int_equal(fixture_stats(&(r)->f).blocks_held, held_);                       \
            (r)->f.host.fail_at = (r)->f.slabs.fail_at = 0;                                    \
            n_failures++;                                                                      \
        }                                                                                      \
    } while (0)

static void compute(rig *r, sheaf_sequence *seq, const char *letters)
{
    text t = text_of(letters);
    UNTIL_OK(r, sheaf_sequence_extend(seq, t.n));
    write_all(&r->f, seq, sheaf_sequence_length(seq), t.n, (const uint32_t *)t.tokens);
    assert_int_equal(sheaf_sequence_commit(seq, t.n, t.tokens), SHEAF_OK);
}

static sheaf_sequence *computed(rig *r, const char *letters)
{
    sheaf_sequence *seq = NULL;
    UNTIL_OK(r, sheaf_sequence_create(r->f.pool, &seq));
    compute(r, seq, letters);
    return seq;
}

static void publish_and_end(rig *r, const char *letters, uint64_t session)
{
    sheaf_sequence *seq = computed(r, letters);
    UNTIL_OK(r, publish_as(r, seq, session, 0, SHEAF_PUBLISH_TAIL, NULL));
    sheaf_sequence_destroy(seq);
    assert_cache_whole(r);
}

/* Matches a text of which so much is found; without the copied tail where no slab can be had. */
static sheaf_sequence *find(rig *r, const char *letters, uint32_t shared, uint32_t copied)
{
    text t = text_of(letters);
    sheaf_prompt prompt = prompt_of(r, &t);
    sheaf_sequence *seq = NULL;
    sheaf_match match = SHEAF_MATCH_INIT;
    UNTIL_OK(r, sheaf_prefix_match(r->cache, &prompt, &seq, &match));
    assert_int_equal(match.shared, shared);
    assert_true(match.copied == copied || (match.copied == 0 && r->f.slabs.fail_at != 0));
    assert_holds_its_tokens(&r->f, seq);
    return seq;
}

/* A life with every call that takes memory. */
static void live(rig *r)
{
    sheaf_sequence *grown = computed(r, "aaaabbbb");
    UNTIL_OK(r, publish_as(r, grown, 0, 0, 0, NULL)); /* a root and a leaf */
    compute(r, grown, "ccccddddee");
    UNTIL_OK(r, publish_as(r, grown, 0, 0, SHEAF_PUBLISH_TAIL, NULL)); /* the leaf grows */
    publish_and_end(r, "aaaabbbbxxxxyyyy", 0);                         /* a split, a child */
    publish_and_end(r, "aaaabbbbccccddddeefgg", 2);                    /* a tail is continued */
    r->space = r->other;
    publish_and_end(r, "aaaabb", 0); /* a second root */
    r->space = space_of(r, "a");
    sheaf_sequence_destroy(grown);
    sheaf_sequence *found = find(r, "aaaabbbbxxzz", 8, 2);
    sheaf_sequence_destroy(found);
    found = find(r, "aaaabbbbccccdddd", 16, 0);
    UNTIL_OK(r,
             sheaf_prefix_evict(r->cache, 2 * BLOCK, NULL)); /* a join, where memory allows */
    sheaf_sequence_destroy(found);
    for (uint32_t i = 0; i < 20; i++) { /* the tables of namespaces and keys grow */
        char letters[] = "aaaabbbbcccc", salt[] = "a";
        salt[0] = letters[0] = (char)('a' + i);
        r->space = space_of(r, salt);
        publish_and_end(r, letters, 0);
    }
    UNTIL_OK(r, sheaf_prefix_reset(r->cache, NULL, NULL));
    assert_int_equal(rig_stats(r).nodes, 0);
}

/* One life with the nth allocation of a kind failing; false when there was no nth. */
static bool live_with_fault(uint64_t nth, bool slabs, int and_after)
{
    rig r;
    rig_open(&r, 2, 200, NULL);
    host *h = slabs ? &r.f.slabs : &r.f.host;
    h->fail_at = h->n_allocs + nth;
    h->fail_on = and_after;
    uint64_t due = h->fail_at;
    n_failures = 0;
    live(&r);
    bool met = h->n_allocs >= due;
    r.f.host.fail_at = r.f.slabs.fail_at = 0;
    rig_close(&r);
    return met;
}

static void fail_every_one(bool slabs, int and_after, uint64_t at_least)
{
    uint64_t nth = 1, failed = 0;
    for (; live_with_fault(nth, slabs, and_after); nth++) failed += n_failures;
    assert_true(nth > at_least && failed > at_least / 2);
}

static void a_host_allocation_that_fails_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(false, 0, 100);
}

static void host_memory_that_stays_exhausted_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(false, 1, 100);
}

static void a_slab_that_cannot_be_committed_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(true, 0, 10);
}

static void slab_memory_that_stays_exhausted_changes_nothing(void **state)
{
    (void)state;
    fail_every_one(true, 1, 10);
}

/* ---- opening ----------------------------------------------------------------------------- */

static void a_cache_that_cannot_open_leaves_the_pool_as_it_is(void **state)
{
    (void)state;
    for (int and_after = 0; and_after < 2; and_after++)
        for (uint64_t nth = 1;; nth++) {
            rig r;
            rig_open(&r, 2, 12, NULL);
            sheaf_prefix_close(r.cache);
            r.cache = NULL;
            uint64_t live_before = r.f.host.n_live;
            r.f.host.fail_at = r.f.host.n_allocs + nth;
            r.f.host.fail_on = and_after;
            sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
            sheaf_status st = rig_try_open_cache(&r, &o);
            r.f.host.fail_at = 0;
            if (st == SHEAF_OK) {
                rig_close(&r);
                assert_true(nth > 1);
                break;
            }
            assert_int_equal(st, SHEAF_E_NO_MEMORY);
            assert_null(r.cache);
            assert_int_equal(r.f.host.n_live, live_before);
            fixture_close(&r.f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_allocation_that_fails_changes_nothing),
        cmocka_unit_test(host_memory_that_stays_exhausted_changes_nothing),
        cmocka_unit_test(a_slab_that_cannot_be_committed_changes_nothing),
        cmocka_unit_test(slab_memory_that_stays_exhausted_changes_nothing),
        cmocka_unit_test(a_cache_that_cannot_open_leaves_the_pool_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
