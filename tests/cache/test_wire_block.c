/* cache/wire_block.c: single blocks leave under their content keys, and come back under them alone. */
#include "cache/wire_fixture.h"

static void blocks_at(const sheaf_sequence *seq, uint32_t index, sheaf_block *blocks)
{
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        const sheaf__table *table = &seq->room.tables[g];
        blocks[g] = index < table->first_block
                        ? (sheaf_block){g, SHEAF_ROW_NONE, 0}
                        : sheaf__table_block(table, g, index - table->first_block);
    }
}

static bytes save_block(const sheaf_sequence *seq, uint32_t index)
{
    sheaf_block blocks[SHEAF_MAX_GROUPS];
    blocks_at(seq, index, blocks);
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    sheaf_error err = {0};
    sheaf_status st = sheaf_wire_save_block(
        seq->pool, blocks, &some_space, sheaf_sequence_tokens(seq) + index * 4, &sink, &err);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
    assert_int_equal(b.n_flushes, 1);
    return b;
}

static sheaf_key key_at(const sheaf_sequence *seq, uint32_t index)
{
    sheaf_key key;
    assert_int_equal(
        sheaf_key_next(&some_space, sheaf_sequence_tokens(seq) + index * 4, 4, &key), SHEAF_OK);
    return key;
}

static sheaf_status load_block(const fixture *f, bytes *b, const sheaf_key *key,
                               sheaf_block *blocks, int32_t *tokens, sheaf_error *err)
{
    sheaf_source from = bytes_source(b);
    return sheaf_wire_load_block(f->pool, key, &from, blocks, tokens, err);
}

/* The tiles of two rows of two pools, byte for byte. */
static void assert_same_tiles(const sheaf_pool *a, sheaf_block x, const sheaf_pool *b,
                              sheaf_block y)
{
    uint32_t next = 0;
    uint64_t offset, size;
    while (sheaf__wire_next_run(sheaf__pool_layout(a), x.group, &next, &offset, &size))
        assert_memory_equal(sheaf__pool_row(a, x.group, x.row) + offset,
                            sheaf__pool_row(b, y.group, y.row) + offset, size);
}

static void a_block_comes_back_under_its_key(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    fixture_open(&g, odd_layers, N_ODD, 8, 64);
    sheaf_sequence *seq = sequence_of_length(&f, 21, 1);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    for (uint32_t index = 0; index < 5; index++) {
        bytes b = save_block(seq, index);
        sheaf_key key = key_at(seq, index);
        sheaf_block from[SHEAF_MAX_GROUPS], blocks[SHEAF_MAX_GROUPS];
        int32_t tokens[4];
        blocks_at(seq, index, from);
        assert_int_equal(load_block(&g, &b, &key, blocks, tokens, NULL), SHEAF_OK);
        assert_int_equal(b.at, b.n);
        assert_memory_equal(tokens, sheaf_sequence_tokens(seq) + index * 4, sizeof tokens);
        for (uint32_t group = 0; group < 2; group++) {
            assert_int_equal(blocks[group].group, group);
            bool none = group == 1 && index < 3; /* the window has let go of it */
            assert_int_equal(blocks[group].row == SHEAF_ROW_NONE, none);
            if (none) continue;
            assert_same_tiles(f.pool, from[group], g.pool, blocks[group]);
            uint32_t total, by_kind[SHEAF_OWNER_KINDS];
            assert_int_equal(sheaf_pool_references(g.pool, blocks[group], &total, by_kind),
                             SHEAF_OK);
            assert_true(total == 1 && by_kind[SHEAF_OWNER_HOST] == 1);
            assert_int_equal(sheaf_pool_release(g.pool, blocks[group], SHEAF_OWNER_HOST),
                             SHEAF_OK);
        }
        free(b.data);
    }
    sheaf_sequence_destroy(seq);
    fixture_close(&g);
    fixture_close(&f);
}

static void a_block_of_another_key_is_refused(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 8, 1);
    bytes b = save_block(seq, 1);
    sheaf_key other = key_at(seq, 0);
    sheaf_block blocks[SHEAF_MAX_GROUPS];
    int32_t tokens[4];
    sheaf_error err = {0};
    sheaf_pool_stats before = fixture_stats(&f);
    assert_int_equal(load_block(&f, &b, &other, blocks, tokens, &err), SHEAF_E_FOREIGN);
    sheaf_pool_stats after = fixture_stats(&f);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(load_block(&f, &b, NULL, blocks, tokens, &err), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(f.pool, blocks[0], SHEAF_OWNER_HOST), SHEAF_OK);
    /* tokens that are not those of the stored key, behind a right checksum */
    uint64_t name = SHEAF__WIRE_PROLOGUE + SHEAF__WIRE_FRAME + SHEAF__WIRE_HEAD_FIXED +
                    sizeof(sheaf__wire_group) + N_EVEN * sizeof(sheaf_layer);
    b.data[name + 16 + 64] ^= 1;
    wire_reseal(b.data, b.n);
    assert_int_equal(load_block(&f, &b, NULL, blocks, tokens, &err), SHEAF_E_FORMAT);
    assert_non_null(strstr(err.text, "key"));
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
    free(b.data);
}

static void streams_of_the_other_kind_are_refused(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 8, 1);
    bytes block = save_block(seq, 1);
    sheaf_parked *parked = park(seq);
    bytes sequences = save_all(&parked, 1);
    sheaf_block blocks[SHEAF_MAX_GROUPS];
    int32_t tokens[4];
    sheaf_error err = {0};
    assert_int_equal(load_block(&f, &sequences, NULL, blocks, tokens, &err), SHEAF_E_FORMAT);
    assert_non_null(strstr(err.text, "parked sequences"));
    assert_refused(&f, &block, SHEAF_E_FORMAT);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(block.data);
    free(sequences.data);
}

static void blocks_that_cannot_be_saved_are_refused(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_sequence *seq = sequence_of_length(&f, 8, 1);
    const int32_t tokens[4] = {1, 2, 3, 4};
    sheaf_block right[2], blocks[2];
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    blocks_at(seq, 0, right);
    const struct {
        sheaf_block first, second;
        sheaf_status status;
    } cases[] = {
        {{0, SHEAF_ROW_NONE, 0}, right[1], SHEAF_E_INVALID}, /* it has no window */
        {right[1], right[0], SHEAF_E_INVALID},
        {right[0], {1, right[1].row, right[1].generation + 1}, SHEAF_E_STALE},
        {{0, 999, 1}, right[1], SHEAF_E_STALE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        blocks[0] = cases[i].first, blocks[1] = cases[i].second;
        sheaf_error err = {0};
        assert_int_equal(
            sheaf_wire_save_block(f.pool, blocks, &some_space, tokens, &sink, &err),
            cases[i].status);
        assert_int_equal(err.status, cases[i].status);
        assert_true(err.text[0] != 0);
    }
    assert_int_equal(sheaf_wire_save_block(f.pool, right, NULL, tokens, &sink, NULL),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_save_block(f.pool, right, &some_space, NULL, &sink, NULL),
                     SHEAF_E_INVALID);
    assert_int_equal(b.n, 0);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void a_full_pool_takes_no_block(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 1, 8);
    fixture_open(&g, odd_layers, N_ODD, 1, 2);
    sheaf_sequence *seq = sequence_of_length(&f, 8, 1), *full = sequence_of_length(&g, 8, 1);
    bytes b = save_block(seq, 1);
    sheaf_block blocks[SHEAF_MAX_GROUPS];
    int32_t tokens[4];
    sheaf_pool_stats before = held_of(&g);
    assert_int_equal(load_block(&g, &b, NULL, blocks, tokens, NULL), SHEAF_FULL);
    sheaf_pool_stats after = held_of(&g);
    assert_memory_equal(&before, &after, sizeof before);
    assert_holds_its_tokens(&g, full);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(full);
    fixture_close(&f);
    fixture_close(&g);
    free(b.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_comes_back_under_its_key),
        cmocka_unit_test(a_block_of_another_key_is_refused),
        cmocka_unit_test(streams_of_the_other_kind_are_refused),
        cmocka_unit_test(blocks_that_cannot_be_saved_are_refused),
        cmocka_unit_test(a_full_pool_takes_no_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
