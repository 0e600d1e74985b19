/* tests/cache/test_parked.c - windows that slide; parking, adopting, cloning, trimming. */
#include "fixture.h"

/* Windows of 6 and 3 positions beside an unlimited group; 4 tokens a block. */
static const sheaf_layer three_groups[] = {
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4, .codec_k = SHEAF_CODEC_BF16},
    {.n_kv_heads = 2, .key_dim = 3, .value_dim = 5, .window = 6, .codec_v = SHEAF_CODEC_F16},
    {.n_kv_heads = 1, .key_dim = 5, .value_dim = 2, .window = 3},
};
static const uint32_t windows[] = {0, 6, 3};
#define N_GROUPS 3

static void open_three_groups(fixture *f, uint32_t budget_blocks)
{
    fixture_open(f, three_groups, N_GROUPS, 2, budget_blocks);
}

/* The first block of a group that is held, as a view tells. */
static uint32_t first_block(const sheaf_sequence *seq, uint32_t layer)
{
    sheaf_kv_view view;
    assert_int_equal(sheaf_sequence_view(seq, layer, &view), SHEAF_OK);
    return view.first_block;
}

static uint32_t needs_from(uint32_t length, uint32_t window)
{
    return window != 0 && length > window ? length - window : 0;
}

static void sliding_lets_go_of_whole_blocks_before_what_is_needed(void **state)
{
    (void)state;
    for (uint32_t length = 0; length <= 24; length++)
        for (uint32_t draft = 0; draft <= 9; draft++) {
            fixture f;
            open_three_groups(&f, 16);
            sheaf_sequence *seq = sequence_of_length(&f, length, 0);
            assert_int_equal(sheaf_sequence_slide(seq, draft), SHEAF_OK);
            uint32_t shortest = length > draft ? length - draft : 0;
            uint64_t held = 0;
            for (uint32_t g = 0; g < N_GROUPS; g++) {
                uint32_t first = needs_from(shortest, windows[g]) / 4;
                assert_int_equal(first_block(seq, g), first);
                held += (length + 3) / 4 - first;
            }
            assert_int_equal(fixture_stats(&f).blocks_held, held);
            assert_holds_its_tokens(&f, seq);
            assert_int_equal(sheaf_sequence_slide(seq, 20), SHEAF_OK); /* never back */
            assert_int_equal(fixture_stats(&f).blocks_held, held);
            assert_int_equal(append(&f, seq, 3, length), SHEAF_OK);
            assert_holds_its_tokens(&f, seq);
            sheaf_sequence_destroy(seq);
            fixture_close(&f);
        }
}

static void going_back_is_refused_where_a_window_has_let_go(void **state)
{
    (void)state;
    for (uint32_t draft = 0; draft <= 9; draft++)
        for (uint32_t length = 0; length <= 22; length++) {
            fixture f;
            open_three_groups(&f, 20);
            sheaf_sequence *seq = sequence_of_length(&f, 22, 0);
            assert_int_equal(sheaf_sequence_slide(seq, draft), SHEAF_OK);
            bool slid = false; /* the stricter of the windows decides */
            for (uint32_t g = 0; g < N_GROUPS; g++)
                slid = slid || needs_from(length, windows[g]) < 4 * first_block(seq, g);
            slid = slid && length != 0;
            if (length >= 22 - draft) assert_false(slid);
            sheaf_pool_stats before = fixture_stats(&f);
            sheaf_status st = sheaf_sequence_truncate(seq, length);
            assert_int_equal(st, slid ? SHEAF_E_SLID : SHEAF_OK);
            assert_int_equal(sheaf_sequence_length(seq), slid ? 22 : length);
            sheaf_pool_stats after = fixture_stats(&f);
            if (slid) assert_memory_equal(&before, &after, sizeof before);
            assert_holds_its_tokens(&f, seq);
            assert_int_equal(append(&f, seq, 5, 50), SHEAF_OK);
            assert_holds_its_tokens(&f, seq);
            sheaf_sequence_destroy(seq);
            fixture_close(&f);
        }
}

static void a_slid_sequence_cut_to_nothing_starts_again_at_block_0(void **state)
{
    (void)state;
    fixture f;
    open_three_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 20, 0);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    assert_int_equal(sheaf_sequence_truncate(seq, 1), SHEAF_E_SLID);
    assert_int_equal(sheaf_sequence_truncate(seq, 0), SHEAF_OK);
    assert_int_equal(fixture_stats(&f).blocks_held, 0);
    assert_int_equal(append(&f, seq, 9, 70), SHEAF_OK);
    for (uint32_t g = 0; g < N_GROUPS; g++) assert_int_equal(first_block(seq, g), 0);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void a_query_beside_the_last_block_finds_its_window_after_every_cut(void **state)
{
    (void)state;
    /* A window of one block whose length ends on a block's end: what the next query sees begins
     * with the last block, what the last position sees one before it. */
    static const sheaf_layer one[] = {
        {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4, .window = 4}};
    fixture f;
    fixture_open(&f, one, 1, 1, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 15, 0);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    assert_int_equal(first_block(seq, 0), 2); /* needs 11 */
    assert_int_equal(sheaf_sequence_truncate(seq, 12), SHEAF_OK);
    assert_holds_its_tokens(&f, seq);
    assert_int_equal(sheaf_sequence_truncate(seq, 11), SHEAF_E_SLID);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void parking_and_adopting_move_references_and_allocate_nothing(void **state)
{
    (void)state;
    fixture f;
    open_three_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 10, 0);
    uint64_t allocs = f.host.n_allocs;
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_park(seq, &parked), SHEAF_OK);
    sheaf_pool_stats stats = fixture_stats(&f);
    assert_int_equal(stats.owners[SHEAF_OWNER_TABLE], 0);
    assert_int_equal(stats.owners[SHEAF_OWNER_PARKED], 9);
    assert_int_equal(sheaf_parked_length(parked), 10);
    assert_int_equal(sheaf_parked_tokens(parked)[9], 9);
    assert_int_equal(sheaf_parked_check(parked, NULL), SHEAF_OK);
    assert_whole(&f, NULL);
    assert_int_equal(sheaf_parked_adopt(parked, &seq), SHEAF_OK);
    stats = fixture_stats(&f);
    assert_int_equal(stats.owners[SHEAF_OWNER_TABLE], 9);
    assert_int_equal(stats.owners[SHEAF_OWNER_PARKED], 0);
    assert_int_equal(f.host.n_allocs, allocs);
    assert_holds_its_tokens(&f, seq);
    assert_int_equal(append(&f, seq, 4, 30), SHEAF_OK);
    assert_int_equal(fixture_stats(&f).blocks_copied, 0);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void a_clone_of_any_length_shares_whole_blocks_and_copies_the_tail(void **state)
{
    (void)state;
    for (uint32_t length = 0; length <= 13; length++) {
        fixture f;
        open_three_groups(&f, 32);
        sheaf_parked *parked = NULL;
        assert_int_equal(sheaf_sequence_park(sequence_of_length(&f, 13, 0), &parked), SHEAF_OK);
        sheaf_sequence *first = NULL, *second = NULL;
        assert_int_equal(sheaf_parked_clone(parked, length, &first), SHEAF_OK);
        assert_int_equal(sheaf_parked_clone(parked, length, &second), SHEAF_OK);
        uint32_t tails = length % 4 != 0 ? N_GROUPS : 0;
        sheaf_pool_stats stats = fixture_stats(&f);
        assert_int_equal(stats.blocks_held, 4 * N_GROUPS + 2 * tails);
        assert_int_equal(stats.blocks_copied, 2 * tails);
        assert_int_equal(stats.blocks_shared, length / 4 * N_GROUPS);
        assert_holds_its_tokens(&f, first);
        assert_int_equal(append(&f, first, 6, 100), SHEAF_OK);
        assert_int_equal(append(&f, second, 6, 200), SHEAF_OK);
        assert_int_equal(fixture_stats(&f).blocks_copied, 2 * tails);
        assert_holds_its_tokens(&f, first);
        assert_holds_its_tokens(&f, second);
        sheaf_sequence_destroy(first);
        sheaf_sequence_destroy(second);
        assert_int_equal(sheaf_parked_length(parked), 13);
        sheaf_sequence *seq = NULL;
        assert_int_equal(sheaf_parked_adopt(parked, &seq), SHEAF_OK);
        assert_holds_its_tokens(&f, seq);
        sheaf_sequence_destroy(seq);
        fixture_close(&f);
    }
}

static void a_clone_without_room_for_the_tail_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    open_three_groups(&f, 4);
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_park(sequence_of_length(&f, 14, 0), &parked), SHEAF_OK);
    sheaf_pool_stats before = fixture_stats(&f);
    uint64_t live = f.host.n_live;
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_parked_clone(parked, 10, &seq), SHEAF_FULL);
    assert_int_equal(sheaf_parked_clone(parked, 15, &seq), SHEAF_E_RANGE);
    assert_null(seq);
    sheaf_pool_stats after = fixture_stats(&f);
    assert_int_equal(f.host.n_live, live);
    before.full_answers++;
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(sheaf_parked_clone(parked, 8, &seq), SHEAF_OK); /* needs no block */
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

static void what_a_window_has_let_go_of_cannot_be_cloned_or_trimmed_to(void **state)
{
    (void)state;
    for (uint32_t length = 0; length <= 20; length++) {
        fixture f;
        open_three_groups(&f, 20);
        sheaf_sequence *seq = sequence_of_length(&f, 20, 0), *clone = NULL;
        assert_int_equal(sheaf_sequence_slide(seq, 4),
                         SHEAF_OK); /* needs 10 and 13: blocks 2, 3 */
        sheaf_parked *parked = NULL;
        assert_int_equal(sheaf_sequence_park(seq, &parked), SHEAF_OK);
        /* window 6 holds from 8: lengths from 14; window 3 holds from 12: lengths from 15 */
        sheaf_status expected = length == 0 || length >= 15 ? SHEAF_OK : SHEAF_E_SLID;
        assert_int_equal(sheaf_parked_clone(parked, length, &clone), expected);
        if (expected == SHEAF_OK) {
            assert_holds_its_tokens(&f, clone);
            assert_int_equal(append(&f, clone, 5, 60), SHEAF_OK);
            assert_holds_its_tokens(&f, clone);
        }
        sheaf_sequence_destroy(clone);
        assert_int_equal(sheaf_parked_trim(parked, length), expected);
        assert_int_equal(sheaf_parked_length(parked), expected == SHEAF_OK ? length : 20);
        assert_int_equal(sheaf_parked_trim(parked, 21), SHEAF_E_RANGE);
        assert_int_equal(sheaf_parked_adopt(parked, &seq), SHEAF_OK);
        assert_holds_its_tokens(&f, seq);
        sheaf_sequence_destroy(seq);
        fixture_close(&f);
    }
}

static void usage_tells_real_and_exclusive_bytes(void **state)
{
    (void)state;
    fixture f;
    open_three_groups(&f, 32);
    uint64_t block = 0, group_bytes[N_GROUPS];
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        assert_int_equal(sheaf_pool_group_info(f.pool, g, &info), SHEAF_OK);
        group_bytes[g] = info.block_bytes;
        block += info.block_bytes;
    }
    sheaf_sequence *seq = sequence_of_length(&f, 14, 0), *clone = NULL;
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK); /* drops 2 and 2 blocks */
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_park(seq, &parked), SHEAF_OK);
    sheaf_usage usage = SHEAF_USAGE_INIT;
    assert_int_equal(sheaf_parked_usage(parked, &usage), SHEAF_OK);
    assert_int_equal(usage.n_tokens, 14);
    assert_int_equal(usage.blocks, 4 + 2 + 2);
    uint64_t bytes = 4 * group_bytes[0] + 2 * group_bytes[1] + 2 * group_bytes[2];
    assert_int_equal(usage.bytes, bytes);
    assert_int_equal(usage.bytes_exclusive, bytes);
    assert_int_equal(sheaf_parked_clone(parked, 14, &clone), SHEAF_OK);
    assert_int_equal(sheaf_parked_usage(parked, &usage), SHEAF_OK);
    assert_int_equal(usage.bytes, bytes);
    assert_int_equal(usage.bytes_exclusive, block); /* the tails */
    assert_int_equal(sheaf_sequence_usage(clone, &usage), SHEAF_OK);
    assert_int_equal(usage.bytes_exclusive, block);
    uint64_t in_use = fixture_stats(&f).bytes_in_use;
    assert_int_equal(in_use, bytes + block);
    sheaf_sequence_destroy(clone);
    assert_int_equal(in_use - fixture_stats(&f).bytes_in_use, block);
    sheaf_parked_destroy(parked);
    sheaf_parked_destroy(NULL);
    assert_int_equal(fixture_stats(&f).bytes_in_use, 0);
    fixture_close(&f);
}

static void nulls_are_refused(void **state)
{
    (void)state;
    fixture f;
    open_three_groups(&f, 8);
    sheaf_parked *parked = NULL;
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_park(sequence_of_length(&f, 3, 0), &parked), SHEAF_OK);
    assert_int_equal(sheaf_sequence_park(NULL, &parked), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_adopt(NULL, &seq), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_adopt(parked, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_clone(NULL, 0, &seq), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_clone(parked, 0, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_trim(NULL, 0), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_usage(parked, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_parked_check(NULL, NULL), SHEAF_E_INVALID);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sliding_lets_go_of_whole_blocks_before_what_is_needed),
        cmocka_unit_test(going_back_is_refused_where_a_window_has_let_go),
        cmocka_unit_test(a_slid_sequence_cut_to_nothing_starts_again_at_block_0),
        cmocka_unit_test(a_query_beside_the_last_block_finds_its_window_after_every_cut),
        cmocka_unit_test(parking_and_adopting_move_references_and_allocate_nothing),
        cmocka_unit_test(a_clone_of_any_length_shares_whole_blocks_and_copies_the_tail),
        cmocka_unit_test(a_clone_without_room_for_the_tail_changes_nothing),
        cmocka_unit_test(what_a_window_has_let_go_of_cannot_be_cloned_or_trimmed_to),
        cmocka_unit_test(usage_tells_real_and_exclusive_bytes),
        cmocka_unit_test(nulls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
