/* tests/cache/test_prefix_stats.c - what another thread reads while the cache works. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CAPACITY = 4, ENTRIES = 3 };

typedef struct reader {
    const rig *r;
    atomic_bool stop;
    _Atomic uint64_t reads;
    uint64_t wrong;
} reader;

static void *read_all(void *arg)
{
    reader *me = arg;
    while (!atomic_load(&me->stop)) {
        sheaf_prefix_stats s = SHEAF_PREFIX_STATS_INIT;
        if (sheaf_prefix_stats_read(me->r->cache, &s) != SHEAF_OK) me->wrong++;
        bool limited = s.bytes_exclusive <= CAPACITY * BLOCK && s.entries <= ENTRIES &&
                       s.bytes_pinned <= CAPACITY * BLOCK;
        bool whole = s.bytes_held == s.blocks_held * BLOCK && s.nodes >= s.entries &&
                     s.bytes_exclusive <= s.bytes_held && s.spaces <= s.entries &&
                     s.hits <= s.lookups && s.hit_tokens <= s.lookup_tokens &&
                     s.tokens <= s.blocks_held * 4;
        me->wrong += !limited || !whole;
        me->reads++;
    }
    return NULL;
}

static void limits_hold_whenever_another_thread_looks(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = limits_of(CAPACITY, ENTRIES, 50);
    rig_open(&r, 1, 64, &o);
    reader me = {.r = &r};
    pthread_t thread;
    uint64_t most = 0, entries = 0;
    assert_int_equal(pthread_create(&thread, NULL, read_all, &me), 0);
    /* on until the reader has been there too */
    for (uint32_t round = 0; round < 300 || atomic_load(&me.reads) == 0; round++, r.now += 7) {
        char letters[] = "aaaabbbbccccdd";
        sheaf_sequence *running[4];
        for (uint32_t i = 0; i < 4; i++) {
            letters[4] = (char)('e' + (round + i) % 7), letters[12] = (char)('p' + i);
            running[i] = typed(&r, letters);
            assert_int_equal(publish_as(&r, running[i], i, 0, SHEAF_PUBLISH_TAIL, NULL),
                             SHEAF_OK);
        }
        for (uint32_t i = 0; i < 4; i++) {
            sheaf_sequence_destroy(running[i ^ 1]);
            sheaf_prefix_stats s = rig_stats(&r);
            most = s.bytes_exclusive > most ? s.bytes_exclusive : most;
            entries = s.entries > entries ? s.entries : entries;
        }
        assert_matches(&r, "aaaaz", 4, 0);
    }
    atomic_store(&me.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(most, CAPACITY * BLOCK); /* both are met */
    assert_int_equal(entries, ENTRIES);
    assert_int_equal(me.wrong, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_hold_whenever_another_thread_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
