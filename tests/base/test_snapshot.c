/* base/snapshot.c: what was stored is loaded, whole, also while another store is under way. */
#include "testing.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/snapshot.h"

#define N_WORDS 40

typedef struct shown {
    sheaf__snapshot snapshot;
    _Atomic uint64_t words[N_WORDS];
} shown;

static void an_unwritten_snapshot_is_zeros(void **state)
{
    (void)state;
    static shown s;
    uint64_t got[N_WORDS];
    memset(got, 0xff, sizeof got);
    sheaf__snapshot_load(&s.snapshot, s.words, got, N_WORDS);
    for (size_t i = 0; i < N_WORDS; i++) assert_int_equal(got[i], 0);
}

/* Neither side need be aligned, and no byte beyond the words is touched. */
static void the_last_store_is_what_loads(void **state)
{
    (void)state;
    static shown s;
    unsigned char from[5 * 8 + 2], to[5 * 8 + 2];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof from; i++) from[i] = (unsigned char)(i * 7 + 100 + round);
        memset(to, 0xee, sizeof to);
        sheaf__snapshot_store(&s.snapshot, s.words, from + 1, 5);
        sheaf__snapshot_load(&s.snapshot, s.words, to + 1, 5);
        assert_memory_equal(to + 1, from + 1, 5 * 8);
        assert_int_equal(to[0], 0xee);
        assert_int_equal(to[sizeof to - 1], 0xee);
    }
    assert_int_equal(atomic_load(&s.snapshot.sequence), 6);
    assert_int_equal(atomic_load(&s.words[5]), 0);
}

#define N_STORES  20000
#define N_READERS 2

typedef struct watch {
    shown shown;
    _Atomic uint32_t stop;
    _Atomic uint32_t begun; /* readers that have loaded one */
    _Atomic uint32_t torn;
    _Atomic uint32_t backwards;
} watch;

/* A whole snapshot has word i = v * (i + 1), and v never goes back. */
static void *read_on(void *arg)
{
    watch *w = arg;
    uint64_t last = 0, got[N_WORDS];
    for (bool begun = false; atomic_load(&w->stop) == 0; begun = true) {
        sheaf__snapshot_load(&w->shown.snapshot, w->shown.words, got, N_WORDS);
        for (uint64_t i = 0; i < N_WORDS; i++)
            if (got[i] != got[0] * (i + 1)) atomic_fetch_add(&w->torn, 1);
        if (got[0] < last) atomic_fetch_add(&w->backwards, 1);
        last = got[0];
        if (!begun) atomic_fetch_add(&w->begun, 1);
    }
    return NULL;
}

static void readers_in_other_threads_see_whole_snapshots(void **state)
{
    (void)state;
    static watch w;
    pthread_t readers[N_READERS];
    for (int i = 0; i < N_READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, read_on, &w), 0);
    uint64_t values[N_WORDS];
    /* on until the readers have been there too */
    for (uint64_t v = 1; v <= N_STORES || atomic_load(&w.begun) < N_READERS; v++) {
        for (uint64_t i = 0; i < N_WORDS; i++) values[i] = v * (i + 1);
        sheaf__snapshot_store(&w.shown.snapshot, w.shown.words, values, N_WORDS);
    }
    atomic_store(&w.stop, 1);
    for (int i = 0; i < N_READERS; i++) assert_int_equal(pthread_join(readers[i], NULL), 0);
    assert_int_equal(w.torn, 0);
    assert_int_equal(w.backwards, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unwritten_snapshot_is_zeros),
        cmocka_unit_test(the_last_store_is_what_loads),
        cmocka_unit_test(readers_in_other_threads_see_whole_snapshots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
