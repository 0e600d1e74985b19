/* cache/test_device.c - pools on a device whose memory the host cannot touch: every way in and
 * out goes through the door, and moves the same bytes as in the machine's own memory. */
#include "fake_device.h" /* its `bytes` are numbers of bytes */

#include "cache/device_twins.h"

static void sequences_hold_the_same_bytes_as_in_the_machines_memory(void **state)
{
    (void)state;
    static twins t;
    static fake_device fake;
    uint64_t seed = seed_from_environment(20), n_copies = 0;
    for (uint64_t round = 0; round < 3; round++) {
        sheaf_device *device = fake_open(&fake, 4096);
        twins_open(&t, device, seed + round);
        twins_run(&t, 400);
        assert_true(fake.reads > 100 && fake.writes > 100);
        n_copies += fake.copies;
        twins_close(&t);
        assert_int_equal(fake.committed_bytes, 0);
        assert_int_equal(sheaf_device_close(device), SHEAF_OK);
        assert_true(fake.closed);
    }
    assert_true(n_copies > 0); /* of shared tails */
}

static sheaf_pool *pool_on(sheaf_device *device)
{
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    o.layers = even_layers, o.n_layers = N_EVEN;
    o.block_tokens = 4, o.slab_blocks = 4;
    o.budget_bytes = 1 << 20;
    o.device = device;
    if (sheaf_pool_open(&o, &pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return pool;
}

static void single_blocks_travel_between_devices(void **state)
{
    (void)state;
    static fake_device fake;
    sheaf_pool *a = pool_on(fake_open(&fake, 4096)), *b = pool_on(NULL);
    fixture f = {.pool = a, .layers = even_layers, .n_layers = N_EVEN};
    sheaf_sequence *seq = sequence_of_length(&f, 4, 7);
    sheaf_block block = {0, seq->room.tables[0].rows[0], seq->room.tables[0].generations[0]};
    sheaf_key parent = {{1}}, key;
    int32_t tokens[SHEAF__WIRE_MAX_TOKENS];
    bytes saved[2];
    sheaf_sink sink = bytes_sink(&saved[0]);
    assert_int_equal(sheaf_key_next(&parent, sheaf_sequence_tokens(seq), 4, &key), SHEAF_OK);
    assert_int_equal(
        sheaf_wire_save_block(a, &block, &parent, sheaf_sequence_tokens(seq), &sink, NULL),
        SHEAF_OK);
    sheaf_block there, back;
    sheaf_source from = bytes_source(&saved[0]);
    assert_int_equal(sheaf_wire_load_block(b, &key, &from, &there, tokens, NULL), SHEAF_OK);
    sink = bytes_sink(&saved[1]);
    assert_int_equal(sheaf_wire_save_block(b, &there, &parent, tokens, &sink, NULL), SHEAF_OK);
    assert_int_equal(saved[0].n, saved[1].n);
    assert_memory_equal(saved[0].data, saved[1].data, saved[0].n);
    from = bytes_source(&saved[1]);
    assert_int_equal(sheaf_wire_load_block(a, &key, &from, &back, tokens, NULL), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(a, back, SHEAF_OWNER_HOST), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(b, there, SHEAF_OWNER_HOST), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_int_equal(sheaf_pool_close(a), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(b), SHEAF_OK);
    for (int i = 0; i < 2; i++) free(saved[i].data);
}

/* Every read, write and copy in turn fails, with all after it. */
static void a_device_that_fails_is_told_and_leaks_nothing(void **state)
{
    (void)state;
    static fake_device fake;
    bool finished = false;
    for (uint64_t at = 1; !finished; at++) {
        sheaf_pool *pool = pool_on(fake_open(&fake, 4096));
        fixture f = {.pool = pool, .layers = even_layers, .n_layers = N_EVEN};
        static source s;
        static float k[4096], v[4096];
        uint32_t seeds[6] = {1, 2, 3, 4, 5, 6};
        sheaf_sequence *seq = NULL, *twin = NULL;
        fake.fail_at = at;
        assert_int_equal(sheaf_sequence_create(pool, &seq), SHEAF_OK);
        sheaf_status st = sheaf_sequence_extend(seq, 6);
        for (uint32_t layer = 0; st == SHEAF_OK && layer < N_EVEN; layer++) {
            source_fill(&s, &even_layers[layer], layer, seeds, 6, SHEAF_DTYPE_F32, 0);
            st = sheaf_sequence_write(seq, layer, 0, 6, &s.src);
        }
        if (st == SHEAF_OK) st = sheaf_sequence_commit(seq, 6, NULL);
        if (st == SHEAF_OK) st = sheaf_sequence_fork(seq, &twin);
        if (st == SHEAF_OK) st = sheaf_sequence_extend(twin, 1); /* copies the shared tail */
        if (st == SHEAF_OK)
            st = sheaf_sequence_extend(seq, 9); /* a fault of that copy shows here */
        if (st == SHEAF_OK) st = sheaf_sequence_gather_f32(seq, 0, k, 4096, v, 4096);
        if (st == SHEAF_OK) st = sheaf_sequence_gather_raw(seq, 1, k, 4096, v, 4096, NULL);
        finished = st == SHEAF_OK;
        assert_true(finished || st == SHEAF_E_DEVICE);
        if (!finished) /* and stays with the pool */
            assert_int_equal(sheaf_sequence_extend(seq, 60), SHEAF_E_DEVICE);
        assert_whole(&f, seq);
        sheaf_sequence_destroy(seq);
        sheaf_sequence_destroy(twin);
        assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
        assert_int_equal(fake.committed_bytes, 0);
        assert_true(at < 100);
    }
    assert_true(fake.copies > 0);
}

static void saving_and_loading_tell_of_a_device_that_fails(void **state)
{
    (void)state;
    static fake_device fake;
    sheaf_pool *pool = pool_on(fake_open(&fake, 4096));
    fixture f = {.pool = pool, .layers = even_layers, .n_layers = N_EVEN};
    sheaf_parked *parked = park(sequence_of_length(&f, 6, 3)), *loaded = NULL;
    bytes good = save_all(&parked, 1), bad;
    sheaf_sink sink = bytes_sink(&bad);
    sheaf_source from = bytes_source(&good);
    sheaf_error err = {0};
    uint32_t n = 0;
    fake.fail_at = 1;
    assert_int_equal(sheaf_wire_save(&parked, 1, &some_space, &sink, &err), SHEAF_E_DEVICE);
    assert_non_null(strstr(err.text, "device"));
    assert_int_equal(sheaf_wire_load(pool, &some_space, &from, &loaded, 1, &n, &err),
                     SHEAF_E_DEVICE);
    assert_int_equal(n, 0);
    sheaf_parked_destroy(parked);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    free(good.data);
    free(bad.data);
}

static void a_namespace_names_the_kind_of_device(void **state)
{
    (void)state;
    static fake_device fake;
    sheaf_pool *a = pool_on(fake_open(&fake, 4096)), *b = pool_on(NULL);
    const sheaf_field field = {"model", "m", 1};
    sheaf_key x, y;
    assert_int_equal(sheaf_space_make(a, &field, 1, &x), SHEAF_OK);
    assert_int_equal(sheaf_space_make(b, &field, 1, &y), SHEAF_OK);
    assert_memory_not_equal(&x, &y, sizeof x);
    fake.base.door.kind = "cpu"; /* the rest is equal: layouts do not know where slabs lie */
    assert_int_equal(sheaf_pool_fingerprint(a), sheaf_pool_fingerprint(b));
    assert_int_equal(sheaf_pool_close(a), SHEAF_OK);
    a = pool_on(&fake.base);
    assert_int_equal(sheaf_space_make(a, &field, 1, &x), SHEAF_OK);
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(sheaf_pool_close(a), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(b), SHEAF_OK);
}

static void a_device_stays_open_while_a_pool_is(void **state)
{
    (void)state;
    static fake_device fake;
    sheaf_device *device = fake_open(&fake, 4096);
    sheaf_pool *a = pool_on(device), *b = pool_on(device);
    assert_int_equal(sheaf_device_close(device), SHEAF_E_BUSY);
    assert_int_equal(sheaf_pool_close(a), SHEAF_OK);
    assert_int_equal(sheaf_device_close(device), SHEAF_E_BUSY);
    assert_int_equal(sheaf_pool_close(b), SHEAF_OK);
    assert_false(fake.closed);
    assert_int_equal(sheaf_device_close(device), SHEAF_OK);
    assert_true(fake.closed);
    assert_int_equal(sheaf_device_close(NULL), SHEAF_OK);
}

static void a_device_brings_its_own_memory(void **state)
{
    (void)state;
    static fake_device fake;
    host h = {0};
    sheaf_slab_memory slabs = {&h, 64, slab_reserve, slab_commit, slab_decommit, slab_release};
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    o.layers = even_layers, o.n_layers = N_EVEN;
    o.device = fake_open(&fake, 4096);
    o.slab_memory = &slabs;
    assert_int_equal(sheaf_pool_open(&o, &pool, &err), SHEAF_E_INVALID);
    assert_non_null(strstr(err.text, "device"));
    o.slab_memory = NULL;
    assert_int_equal(sheaf_pool_open(&o, &pool, &err), SHEAF_OK);
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_stats_read(pool, &stats), SHEAF_OK);
    assert_int_equal(stats.budget_bytes, 1ull << 30); /* what the device has */
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

static void numbers_written_by_the_caller_count_as_written(void **state)
{
    (void)state;
    sheaf_pool *pool = pool_on(NULL);
    sheaf_sequence *seq = NULL;
    sheaf_kv_view view;
    assert_int_equal(sheaf_sequence_create(pool, &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_wrote(seq, 0, 0, 1), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_wrote(NULL, 0, 0, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_extend(seq, 6), SHEAF_OK);
    assert_int_equal(sheaf_sequence_wrote(seq, N_EVEN, 0, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_wrote(seq, 0, 1, 1), SHEAF_E_RANGE); /* a hole */
    assert_int_equal(sheaf_sequence_wrote(seq, 0, 0, 7), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_wrote(seq, 0, 0, 5), SHEAF_OK);
    assert_int_equal(sheaf_sequence_commit(seq, 5, NULL), SHEAF_E_UNWRITTEN);
    assert_int_equal(sheaf_sequence_wrote(seq, 1, 0, 6), SHEAF_OK);
    assert_int_equal(sheaf_sequence_view(seq, 0, &view), SHEAF_OK);
    assert_int_equal(view.n_tokens, 5);
    assert_int_equal(sheaf_sequence_commit(seq, 5, NULL), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_hold_the_same_bytes_as_in_the_machines_memory),
        cmocka_unit_test(single_blocks_travel_between_devices),
        cmocka_unit_test(a_device_that_fails_is_told_and_leaks_nothing),
        cmocka_unit_test(saving_and_loading_tell_of_a_device_that_fails),
        cmocka_unit_test(a_namespace_names_the_kind_of_device),
        cmocka_unit_test(a_device_stays_open_while_a_pool_is),
        cmocka_unit_test(a_device_brings_its_own_memory),
        cmocka_unit_test(numbers_written_by_the_caller_count_as_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
