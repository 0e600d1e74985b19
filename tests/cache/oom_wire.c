/* Host memory or slabs that fail while blocks leave and come back: the call fails, nothing else. */
#include "cache/wire_fixture.h"

/* Two sequences that share, and a slid window. */
static void make_parked(fixture *f, sheaf_parked **parked)
{
    fixture_open(f, odd_layers, N_ODD, 2, 64);
    sheaf_sequence *a = sequence_of_length(f, 18, 1), *b = fork_of(a);
    assert_int_equal(append(f, b, 60, 100), SHEAF_OK);
    assert_int_equal(sheaf_sequence_slide(a, 0), SHEAF_OK);
    parked[0] = park(a), parked[1] = park(b);
}

/* Fails the nth request of h, and all after it if asked. True: it was met. */
static bool arm(host *h, uint64_t nth, int and_after)
{
    h->fail_at = h->n_allocs + nth;
    h->fail_on = and_after;
    return true;
}

static bool disarm(host *h)
{
    bool met = h->n_allocs >= h->fail_at;
    h->fail_at = 0;
    return met;
}

/* ---- saving -------------------------------------------------------------------------------- */

static void saving_without_memory_fails_and_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    sheaf_parked *parked[2];
    make_parked(&f, parked);
    bytes whole = save_all(parked, 2);
    sheaf_pool_stats before = fixture_stats(&f);
    uint64_t live = f.host.n_live, met = 0;
    for (int and_after = 0; and_after < 2; and_after++)
        for (uint64_t nth = 1; arm(&f.host, nth, and_after); nth++) {
            bytes b;
            sheaf_sink sink = bytes_sink(&b);
            sheaf_error err = {0};
            sheaf_status st = sheaf_wire_save(parked, 2, &some_space, &sink, &err);
            bool failed = disarm(&f.host);
            assert_int_equal(st, failed ? SHEAF_E_NO_MEMORY : SHEAF_OK);
            assert_int_equal(err.status, st);
            assert_int_equal(f.host.n_live, live);
            if (!failed) assert_memory_equal(b.data, whole.data, whole.n);
            free(b.data);
            if (!failed) break;
            met++;
        }
    assert_true(met >= 2 * 7); /* three lists a group, scratch, a buffer */
    sheaf_pool_stats after = fixture_stats(&f);
    assert_memory_equal(&before, &after, sizeof before);
    sheaf_parked_destroy(parked[0]);
    sheaf_parked_destroy(parked[1]);
    fixture_close(&f);
    free(whole.data);
}

/* ---- loading ------------------------------------------------------------------------------- */

/* One load with a fault in h (the pool's host or slab memory). False: there was no nth. */
static bool load_with_fault(fixture *g, host *h, bytes *b, uint64_t nth, int and_after)
{
    sheaf_parked *loaded[2];
    uint32_t n = 77;
    sheaf_error err = {0};
    sheaf_pool_stats before = held_of(g);
    arm(h, nth, and_after);
    sheaf_status st = load_all(g->pool, b, loaded, 2, &n, &err);
    bool failed = disarm(h);
    if (!failed) {
        assert_int_equal(st, SHEAF_OK);
        sheaf_parked_destroy(loaded[0]);
        sheaf_parked_destroy(loaded[1]);
    } else {
        assert_int_equal(st, h == &g->host ? SHEAF_E_NO_MEMORY : SHEAF_FULL);
        assert_true(err.status == st && err.text[0] != 0);
        assert_int_equal(n, 77);
    }
    sheaf_pool_stats after = held_of(g);
    assert_memory_equal(&before, &after, sizeof before);
    assert_whole(g, NULL);
    return failed;
}

static void fail_every_load(bool slabs, uint64_t at_least)
{
    fixture f;
    sheaf_parked *parked[2];
    make_parked(&f, parked);
    bytes b = save_all(parked, 2);
    for (int and_after = 0; and_after < 2; and_after++) {
        uint64_t nth = 1;
        for (bool failed = true; failed; nth++) {
            fixture g; /* a fresh pool each time, so that its records are needed each time */
            fixture_open(&g, odd_layers, N_ODD, 2, 64);
            failed = load_with_fault(&g, slabs ? &g.slabs : &g.host, &b, nth, and_after);
            fixture_close(&g);
        }
        assert_true(nth > at_least);
    }
    sheaf_parked_destroy(parked[0]);
    sheaf_parked_destroy(parked[1]);
    fixture_close(&f);
    free(b.data);
}

static void loading_without_host_memory_leaves_the_pool_as_it_was(void **state)
{
    (void)state;
    fail_every_load(false, 15);
}

static void loading_without_slabs_leaves_the_pool_as_it_was(void **state)
{
    (void)state;
    fail_every_load(true, 10);
}

static void a_block_without_memory_is_neither_saved_nor_loaded(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 1, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 4, 1);
    sheaf_block block = sheaf__table_block(&seq->room.tables[0], 0, 0), loaded;
    int32_t tokens[4];
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    const int32_t *own = sheaf_sequence_tokens(seq);
    arm(&f.host, 1, 0);
    assert_int_equal(sheaf_wire_save_block(f.pool, &block, &some_space, own, &sink, NULL),
                     SHEAF_E_NO_MEMORY);
    disarm(&f.host);
    assert_int_equal(sheaf_wire_save_block(f.pool, &block, &some_space, own, &sink, NULL),
                     SHEAF_OK);
    sheaf_pool_stats before = held_of(&f);
    uint64_t nth = 1;
    for (bool failed = true; failed; nth++) {
        sheaf_source from = bytes_source(&b);
        arm(&f.host, nth, 0);
        sheaf_status st = sheaf_wire_load_block(f.pool, NULL, &from, &loaded, tokens, NULL);
        failed = disarm(&f.host);
        assert_int_equal(st, failed ? SHEAF_E_NO_MEMORY : SHEAF_OK);
        if (!failed)
            assert_int_equal(sheaf_pool_release(f.pool, loaded, SHEAF_OWNER_HOST), SHEAF_OK);
        sheaf_pool_stats after = held_of(&f);
        assert_memory_equal(&before, &after, sizeof before);
    }
    assert_true(nth > 3);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
    free(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saving_without_memory_fails_and_changes_nothing),
        cmocka_unit_test(loading_without_host_memory_leaves_the_pool_as_it_was),
        cmocka_unit_test(loading_without_slabs_leaves_the_pool_as_it_was),
        cmocka_unit_test(a_block_without_memory_is_neither_saved_nor_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
