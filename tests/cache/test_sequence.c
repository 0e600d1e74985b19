/* tests/cache/test_sequence.c - growing, writing, committing, truncating and forking. */
#include "fixture.h"

#include "cache/sequence.h"

/* Two groups; in each, layers that differ in heads, dimensions and codecs. */
static const sheaf_layer two_groups[] = {
    {.n_kv_heads = 2, .key_dim = 6, .value_dim = 4, .codec_k = SHEAF_CODEC_BF16},
    {.n_kv_heads = 1, .key_dim = 8, .value_dim = 8, .window = 6, .codec_v = SHEAF_CODEC_F16},
    {.n_kv_heads = 3, .key_dim = 5, .value_dim = 0, .codec_k = SHEAF_CODEC_F16},
    {.n_kv_heads = 2, .key_dim = 4, .value_dim = 3, .window = 6},
};
#define N_LAYERS 4

static void open_two_groups(fixture *f, uint32_t budget_blocks)
{
    fixture_open(f, two_groups, N_LAYERS, 1, budget_blocks);
}

static sheaf_usage usage_of(const sheaf_sequence *seq)
{
    sheaf_usage usage = SHEAF_USAGE_INIT;
    assert_int_equal(sheaf_sequence_usage(seq, &usage), SHEAF_OK);
    return usage;
}

static void assert_blocks(const sheaf_sequence *seq, uint64_t group0, uint64_t group1)
{
    sheaf_usage usage = usage_of(seq);
    assert_int_equal(usage.blocks_by_group[0], group0);
    assert_int_equal(usage.blocks_by_group[1], group1);
    assert_int_equal(usage.blocks, group0 + group1);
}

static void a_new_sequence_holds_no_block(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 8);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_length(seq), 0);
    assert_int_equal(sheaf_sequence_reserved(seq), 0);
    assert_blocks(seq, 0, 0);
    assert_int_equal(fixture_stats(&f).slabs, 0);
    assert_holds_its_tokens(&f, seq); /* empty layers are an answer */
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_E_BUSY);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(NULL);
    fixture_close(&f);
}

static void extending_reserves_in_every_group_at_once(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 5, 100);
    assert_blocks(seq, 2, 2);
    assert_int_equal(sheaf_sequence_extend(seq, 3), SHEAF_OK); /* fills the second block */
    assert_blocks(seq, 2, 2);
    assert_int_equal(sheaf_sequence_reserved(seq), 3);
    assert_int_equal(sheaf_sequence_extend(seq, 2), SHEAF_OK); /* already reserved */
    assert_int_equal(sheaf_sequence_reserved(seq), 3);
    assert_int_equal(sheaf_sequence_extend(seq, 4), SHEAF_OK); /* in all, not on top */
    assert_int_equal(sheaf_sequence_reserved(seq), 4);
    assert_blocks(seq, 3, 3);
    assert_int_equal(sheaf_sequence_length(seq), 5);
    assert_whole(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

/* Blocks held in all, per group. */
static void held_by_group(const fixture *f, uint64_t held[2])
{
    for (uint32_t g = 0; g < 2; g++) {
        sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
        assert_int_equal(sheaf_pool_group_stats(f->pool, g, &stats), SHEAF_OK);
        held[g] = stats.blocks_held;
    }
}

static void need_blocks_tells_exactly_what_extend_takes(void **state)
{
    (void)state;
    for (uint32_t length = 0; length <= 9; length++)
        for (uint32_t open = 0; open <= 5; open++)
            for (uint32_t n = 0; n <= 9; n++)
                for (uint32_t shared = 0; shared < 2; shared++) {
                    fixture f;
                    open_two_groups(&f, 16);
                    sheaf_sequence *seq = sequence_of_length(&f, length, 0), *twin = NULL;
                    if (shared) assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
                    assert_int_equal(sheaf_sequence_extend(seq, open), SHEAF_OK);
                    uint32_t counts[2];
                    uint64_t before[2], after[2];
                    held_by_group(&f, before);
                    assert_int_equal(sheaf_sequence_need_blocks(seq, n, counts), SHEAF_OK);
                    assert_int_equal(sheaf_sequence_extend(seq, n), SHEAF_OK);
                    held_by_group(&f, after);
                    uint32_t end = length + (n > open ? n : open);
                    uint32_t fresh = (end + 3) / 4 - (length + open + 3) / 4;
                    bool copies = shared && open == 0 && n > 0 && length % 4 != 0;
                    for (uint32_t g = 0; g < 2; g++) {
                        assert_int_equal(counts[g], fresh + copies);
                        assert_int_equal(after[g] - before[g], counts[g]);
                    }
                    sheaf_sequence_destroy(seq);
                    sheaf_sequence_destroy(twin);
                    fixture_close(&f);
                }
}

static void a_full_pool_is_an_answer_that_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 3);
    sheaf_sequence *seq = sequence_of_length(&f, 7, 0), *twin = NULL;
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
    sheaf_pool_stats before = fixture_stats(&f);
    sheaf_usage usage = usage_of(seq);
    assert_int_equal(sheaf_sequence_extend(seq, 2), SHEAF_FULL);   /* a copy and a block */
    assert_int_equal(sheaf_sequence_extend(seq, 300), SHEAF_FULL); /* a larger table too */
    sheaf_pool_stats after = fixture_stats(&f);
    assert_int_equal(after.full_answers, before.full_answers + 2);
    before.full_answers = after.full_answers;
    before.slab_releases = after.slab_releases;
    assert_memory_equal(&before, &after, sizeof before);
    sheaf_usage same = usage_of(seq);
    assert_memory_equal(&usage, &same, sizeof usage);
    assert_int_equal(sheaf_sequence_reserved(seq), 0);
    assert_holds_its_tokens(&f, seq);
    assert_int_equal(append(&f, seq, 1, 7), SHEAF_OK);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(twin);
    fixture_close(&f);
}

static void committing_fewer_gives_the_rest_back(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    const uint32_t seeds[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int32_t tokens[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(seq, 10), SHEAF_OK);
    write_all(&f, seq, 0, 10, seeds);
    assert_int_equal(sheaf_sequence_commit(seq, 5, tokens), SHEAF_OK);
    assert_int_equal(sheaf_sequence_length(seq), 5);
    assert_int_equal(sheaf_sequence_reserved(seq), 0);
    assert_blocks(seq, 2, 2);
    assert_holds_its_tokens(&f, seq);
    assert_int_equal(sheaf_sequence_extend(seq, 4), SHEAF_OK);
    assert_int_equal(sheaf_sequence_commit(seq, 0, NULL), SHEAF_OK);
    assert_blocks(seq, 2, 2);
    assert_int_equal(sheaf_sequence_commit(seq, 1, NULL), SHEAF_E_RANGE);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void only_what_every_layer_has_written_can_be_committed(void **state)
{
    (void)state;
    fixture f;
    static source s;
    open_two_groups(&f, 16);
    const uint32_t seeds[5] = {10, 11, 12, 13, 14};
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(seq, 5), SHEAF_OK);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        assert_int_equal(sheaf_sequence_commit(seq, 5, NULL), SHEAF_E_UNWRITTEN);
        assert_int_equal(sheaf_sequence_length(seq), 0);
        assert_int_equal(sheaf_sequence_reserved(seq), 5);
        uint32_t n = layer == 2 ? 4 : 5;
        source_fill(&s, &two_groups[layer], layer, seeds, n, SHEAF_DTYPE_F32, SHEAF_HEAD_MAJOR);
        assert_int_equal(sheaf_sequence_write(seq, layer, 0, n, &s.src), SHEAF_OK);
    }
    assert_int_equal(sheaf_sequence_commit(seq, 5, NULL), SHEAF_E_UNWRITTEN);
    assert_int_equal(sheaf_sequence_commit(seq, 4, NULL), SHEAF_OK);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(sheaf_sequence_tokens(seq)[i], SHEAF_TOKEN_NONE);
    assert_whole(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void after_a_truncation_old_numbers_do_not_count_as_written(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    const uint32_t seeds[4] = {50, 51, 52, 53};
    sheaf_sequence *seq = sequence_of_length(&f, 7, 0);
    assert_int_equal(sheaf_sequence_extend(seq, 4), SHEAF_OK);
    write_all(&f, seq, 7, 4, seeds);
    assert_int_equal(sheaf_sequence_truncate(seq, 6), SHEAF_OK);
    assert_int_equal(sheaf_sequence_reserved(seq), 0);
    assert_blocks(seq, 2, 2);
    assert_int_equal(sheaf_sequence_extend(seq, 2), SHEAF_OK);
    assert_int_equal(sheaf_sequence_commit(seq, 1, NULL), SHEAF_E_UNWRITTEN);
    sheaf_kv_view view;
    assert_int_equal(sheaf_sequence_view(seq, 0, &view), SHEAF_OK);
    assert_int_equal(view.n_tokens, 6);
    assert_int_equal(sheaf_sequence_truncate(seq, 7), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_commit(seq, 0, NULL), SHEAF_OK);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void writes_keep_to_reserved_positions_in_order(void **state)
{
    (void)state;
    fixture f;
    static source s;
    open_two_groups(&f, 16);
    const uint32_t seeds[4] = {20, 21, 22, 23};
    sheaf_sequence *seq = sequence_of_length(&f, 3, 0);
    const sheaf_kv_source *src =
        source_fill(&s, &two_groups[0], 0, seeds, 4, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
    assert_int_equal(sheaf_sequence_write(seq, 0, 3, 1, src), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_write(seq, 0, 3, 0, src), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(seq, 4), SHEAF_OK);
    assert_int_equal(sheaf_sequence_write(seq, 0, 2, 1, src), SHEAF_E_RANGE); /* committed */
    assert_int_equal(sheaf_sequence_write(seq, 0, 4, 1, src), SHEAF_E_RANGE); /* a hole */
    assert_int_equal(sheaf_sequence_write(seq, 0, 4, UINT32_MAX, src), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_write(seq, 0, 3, 5, src), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_write(seq, 0, 3, 2, src), SHEAF_OK);
    assert_int_equal(sheaf_sequence_write(seq, 0, 6, 1, src), SHEAF_E_RANGE); /* a hole */
    assert_int_equal(sheaf_sequence_write(seq, 0, 5, 2, src), SHEAF_OK);
    assert_int_equal(sheaf_sequence_write(seq, 0, 3, 1, src), SHEAF_OK); /* again */
    sheaf_kv_view view;
    assert_int_equal(sheaf_sequence_view(seq, 0, &view), SHEAF_OK);
    assert_int_equal(view.n_tokens, 7); /* writing again does not take back */
    write_all(&f, seq, 3, 4, seeds);
    assert_int_equal(sheaf_sequence_commit(seq, 4, (const int32_t *)seeds), SHEAF_OK);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void another_shape_or_type_is_refused(void **state)
{
    (void)state;
    fixture f;
    static source s;
    open_two_groups(&f, 16);
    const uint32_t seeds[2] = {0, 1};
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(seq, 2), SHEAF_OK);
    source_fill(&s, &two_groups[0], 0, seeds, 2, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
    const sheaf_kv_source good = s.src;
    struct {
        sheaf_kv_source src;
        sheaf_status status;
    } cases[9];
    for (uint32_t i = 0; i < 9; i++) cases[i].src = good, cases[i].status = SHEAF_E_SHAPE;
    cases[0].src.n_kv_heads = 1;
    cases[1].src.key_dim = 7;
    cases[2].src.value_dim = 0;
    cases[3].src.dtype = SHEAF_DTYPE_BF16 + 1;
    cases[4].src.order = SHEAF_HEAD_MAJOR + 1;
    cases[5].src.n_kv_heads = 3;
    cases[6].src.k = NULL, cases[6].status = SHEAF_E_INVALID;
    cases[7].src.v = NULL, cases[7].status = SHEAF_E_INVALID;
    cases[8].src.struct_size = 0, cases[8].status = SHEAF_E_INVALID;
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(sheaf_sequence_write(seq, 0, 0, 2, &cases[i].src), cases[i].status);
    assert_int_equal(sheaf_sequence_write(seq, N_LAYERS, 0, 2, &good), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_write(seq, 0, 0, 2, NULL), SHEAF_E_INVALID);
    sheaf_kv_view view;
    assert_int_equal(sheaf_sequence_view(seq, 0, &view), SHEAF_OK);
    assert_int_equal(view.n_tokens, 0); /* nothing was written */
    assert_int_equal(sheaf_sequence_write(seq, 0, 0, 2, &good), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void nulls_are_refused(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 4);
    sheaf_sequence *seq = sequence_of_length(&f, 1, 0);
    uint32_t n;
    assert_int_equal(sheaf_sequence_create(NULL, &seq), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_create(f.pool, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_need_blocks(seq, 1, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_need_blocks(NULL, 1, &n), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_extend(NULL, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_commit(NULL, 0, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_truncate(NULL, 0), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_slide(NULL, 0), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_fork(seq, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_park(seq, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_view(seq, 0, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_visible(seq, N_LAYERS, &n, &n), SHEAF_E_INVALID);
    sheaf_usage usage = {0};
    assert_int_equal(sheaf_sequence_usage(seq, &usage), SHEAF_E_INVALID);
    assert_int_equal(sheaf_sequence_check(NULL, NULL), SHEAF_E_INVALID);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void forks_that_diverge_inside_a_block_leave_each_other_alone(void **state)
{
    (void)state;
    for (uint32_t length = 1; length <= 9; length++) {
        fixture f;
        open_two_groups(&f, 16);
        sheaf_sequence *seq = sequence_of_length(&f, length, 0), *twin = NULL, *third = NULL;
        assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
        assert_int_equal(sheaf_sequence_fork(twin, &third), SHEAF_OK);
        assert_int_equal(fixture_stats(&f).blocks_held, 2 * ((length + 3) / 4));
        assert_int_equal(append(&f, twin, 3, 200), SHEAF_OK);
        assert_int_equal(append(&f, seq, 5, 100), SHEAF_OK);
        assert_holds_its_tokens(&f, seq);
        assert_holds_its_tokens(&f, twin);
        assert_holds_its_tokens(&f, third);
        /* the third is alone with the old tail now: it copies nothing */
        uint64_t copied = fixture_stats(&f).blocks_copied;
        assert_int_equal(copied, length % 4 != 0 ? 4 : 0);
        assert_int_equal(append(&f, third, 1, 300), SHEAF_OK);
        assert_int_equal(fixture_stats(&f).blocks_copied, copied);
        sheaf_sequence_destroy(seq);
        assert_holds_its_tokens(&f, twin);
        sheaf_sequence_destroy(twin);
        assert_holds_its_tokens(&f, third);
        sheaf_sequence_destroy(third);
        fixture_close(&f);
    }
}

#if SHEAF_CHECK < 2 /* level 2 would stop at the count that this test forges */
static void a_fork_that_no_block_can_count_is_undone(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 11, 0), *twin = NULL;
    sheaf__record *record =
        sheaf__pool_live(f.pool, sheaf__table_block(&seq->room.tables[1], 1, 1));
    const sheaf__record saved = *record;
    record->total = record->by_kind[SHEAF_OWNER_TABLE] = UINT32_MAX;
    uint64_t live = f.host.n_live;
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_E_OVERFLOW);
    assert_null(twin);
    assert_int_equal(f.host.n_live, live);
    *record = saved;
    assert_int_equal(usage_of(seq).bytes_exclusive, usage_of(seq).bytes);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}
#endif

static void a_copied_tail_stays_when_nothing_is_committed(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 6, 0), *twin = NULL;
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(twin, 4), SHEAF_OK);
    assert_int_equal(sheaf_sequence_commit(twin, 0, NULL), SHEAF_OK);
    uint32_t counts[2];
    assert_int_equal(sheaf_sequence_need_blocks(twin, 2, counts), SHEAF_OK);
    assert_int_equal(counts[0] + counts[1], 0);
    assert_int_equal(usage_of(twin).bytes_exclusive, usage_of(twin).bytes / 2);
    assert_holds_its_tokens(&f, twin);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(twin);
    fixture_close(&f);
}

static void an_open_reservation_is_neither_forked_nor_parked_nor_slid(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 20, 0), *twin = NULL;
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_extend(seq, 1), SHEAF_OK);
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_E_BUSY);
    assert_int_equal(sheaf_sequence_park(seq, &parked), SHEAF_E_BUSY);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_E_BUSY);
    assert_null(twin);
    assert_null(parked);
    assert_blocks(seq, 6, 6);
    assert_int_equal(sheaf_sequence_commit(seq, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void views_span_what_each_layer_has_written(void **state)
{
    (void)state;
    fixture f;
    static source s;
    open_two_groups(&f, 16);
    const uint32_t seeds[6] = {3, 4, 5, 6, 7, 8};
    sheaf_sequence *seq = sequence_of_length(&f, 3, 0);
    assert_int_equal(sheaf_sequence_extend(seq, 9), SHEAF_OK);
    source_fill(&s, &two_groups[3], 3, seeds, 6, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
    assert_int_equal(sheaf_sequence_write(seq, 3, 3, 6, &s.src), SHEAF_OK);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        sheaf_kv_view view;
        assert_int_equal(sheaf_sequence_view(seq, layer, &view), SHEAF_OK);
        assert_int_equal(view.n_tokens, layer == 3 ? 9 : 3);
        assert_int_equal(view.n_rows, layer == 3 ? 3 : 1);
        assert_non_null(view.rows);
        assert_int_equal(view.block_tokens, 4);
        assert_int_equal(view.first_block, 0);
        assert_int_equal(view.n_kv_heads, two_groups[layer].n_kv_heads);
        assert_int_equal(view.key_dim, two_groups[layer].key_dim);
        assert_int_equal(view.value_dim, two_groups[layer].value_dim);
        assert_int_equal(view.window, two_groups[layer].window);
        assert_int_equal(view.codec_k, two_groups[layer].codec_k);
        assert_int_equal(view.row_stride_k, view.row_stride_v);
    }
    /* by the view's own rule: position 8, head 1, K number 2 of layer 3 (f32) */
    sheaf_kv_view view;
    assert_int_equal(sheaf_sequence_view(seq, 3, &view), SHEAF_OK);
    const unsigned char *at = view.base + view.rows[8 / 4] * view.row_stride_k + view.k_offset +
                              view.k_head_stride + (8 % 4 * 4 + 2) * 4;
    float expected = number_of(8, 3, 0, 1, 2);
    assert_memory_equal(at, &expected, 4);
    at = view.base + view.rows[8 / 4] * view.row_stride_v + view.v_offset + view.v_head_stride +
         (8 % 4 * 3 + 2) * 4;
    expected = number_of(8, 3, 1, 1, 2);
    assert_memory_equal(at, &expected, 4);
    /* what is not committed shows in no other place */
    uint32_t begin, end;
    assert_int_equal(sheaf_sequence_visible(seq, 3, &begin, &end), SHEAF_OK);
    assert_int_equal(end, 3);
    assert_int_equal(usage_of(seq).n_tokens, 3);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void a_failed_step_leaves_every_group_and_layer_at_the_same_length(void **state)
{
    (void)state;
    fixture f;
    static source s;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 6, 0);
    const uint32_t seeds[3] = {6, 7, 8};
    assert_int_equal(sheaf_sequence_extend(seq, 3), SHEAF_OK);
    for (uint32_t layer = 0; layer < 2; layer++) { /* the step dies after two layers */
        source_fill(&s, &two_groups[layer], layer, seeds, 3, SHEAF_DTYPE_F32,
                    SHEAF_TOKEN_MAJOR);
        assert_int_equal(sheaf_sequence_write(seq, layer, 6, 3, &s.src), SHEAF_OK);
    }
    assert_int_equal(sheaf_sequence_commit(seq, 3, NULL), SHEAF_E_UNWRITTEN);
    assert_int_equal(sheaf_sequence_commit(seq, 0, NULL), SHEAF_OK);
    assert_blocks(seq, 2, 2);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        sheaf_kv_view view;
        assert_int_equal(sheaf_sequence_view(seq, layer, &view), SHEAF_OK);
        assert_int_equal(view.n_tokens, 6);
    }
    assert_holds_its_tokens(&f, seq);
    assert_int_equal(append(&f, seq, 3, 6), SHEAF_OK);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void nan_beyond_the_last_committed_slot_is_never_seen(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    static source s;
    sheaf_sequence *seq = sequence_of_length(&f, 5, 0), *twin = NULL;
    assert_int_equal(sheaf_sequence_extend(seq, 3), SHEAF_OK);
    memset(&s, 0xff, sizeof s);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        const uint32_t none = 0;
        float k[1 << 6], v[1 << 6];
        source_fill(&s, &two_groups[layer], layer, &none, 0, SHEAF_DTYPE_F32,
                    SHEAF_TOKEN_MAJOR);
        memset(k, 0xff, sizeof k), memset(v, 0xff, sizeof v);
        s.src.k = k, s.src.v = v;
        assert_int_equal(sheaf_sequence_write(seq, layer, 5, 3, &s.src), SHEAF_OK);
    }
    assert_int_equal(sheaf_sequence_commit(seq, 0, NULL), SHEAF_OK);
    assert_holds_its_tokens(&f, seq);
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
    assert_int_equal(append(&f, twin, 2, 80), SHEAF_OK); /* the copy brings the NaN along */
    assert_holds_its_tokens(&f, twin);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(twin);
    fixture_close(&f);
}

static void positions_end_at_two_to_the_31st(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 3, 0);
    uint32_t counts[2] = {7, 7};
    assert_int_equal(sheaf_sequence_extend(seq, INT32_MAX - 2), SHEAF_E_OVERFLOW);
    assert_int_equal(sheaf_sequence_extend(seq, UINT32_MAX), SHEAF_E_OVERFLOW);
    assert_int_equal(sheaf_sequence_need_blocks(seq, UINT32_MAX, counts), SHEAF_E_OVERFLOW);
    assert_int_equal(counts[0], 7);
    uint64_t allocs = f.host.n_allocs;
    assert_int_equal(sheaf_sequence_extend(seq, INT32_MAX - 3), SHEAF_FULL);
    assert_int_equal(f.host.n_allocs, allocs); /* no table for what can never be */
    assert_int_equal(sheaf_sequence_need_blocks(seq, INT32_MAX - 3, counts), SHEAF_OK);
    assert_int_equal(counts[0], (1u << 29) - 1);
    assert_whole(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void a_decode_step_allocates_nothing(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, two_groups, N_LAYERS, 64, 256);
    sheaf_sequence *seq = sequence_of_length(&f, 65, 0);
    uint64_t allocs = f.host.n_allocs, commits = f.slabs.n_allocs;
    for (uint32_t i = 65; i < 128; i++) {
        assert_int_equal(append(&f, seq, 1, i), SHEAF_OK);
        assert_int_equal(sheaf_sequence_slide(seq, 4), SHEAF_OK);
    }
    assert_int_equal(f.host.n_allocs, allocs);
    assert_int_equal(f.slabs.n_allocs, commits);
    for (uint32_t i = 128; i < 512; i++) assert_int_equal(append(&f, seq, 1, i), SHEAF_OK);
    assert_in_range(f.host.n_allocs - allocs, 2, 8); /* doubling, and the pool's slabs */
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

/* Breaks one thing at a time behind the library's back; the check must name its number. */
static void a_broken_invariant_is_named_by_its_number(void **state)
{
    (void)state;
    fixture f;
    open_two_groups(&f, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 9, 0), *twin = NULL;
    sheaf_error err;
    const char *expected[] = {"invariant 1", "invariant 1", "invariant 2", "invariant 3",
                              "invariant 4", "invariant 5", "invariant 6"};
    for (uint32_t i = 0; i < 7; i++) {
        sheaf_sequence saved = *seq;
        uint32_t written = seq->written[1], generation = seq->room.tables[1].generations[2];
        if (i == 0) seq->written[1] = 8;
        if (i == 1) seq->room.capacity = 8;
        if (i == 2) seq->room.tables[1].n_blocks--;
        if (i == 3) seq->room.tables[0].first_block++, seq->room.tables[0].n_blocks--;
        if (i == 4) seq->room.tables[1].generations[2]++;
        if (i == 5) {
            assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
            seq->progress.reserved = 1;
        }
        if (i == 6) seq->progress.reserved = 1, seq->owner.kind = SHEAF_OWNER_PARKED;
        assert_int_equal(sheaf_sequence_check(seq, &err), SHEAF_E_CORRUPT);
        assert_non_null(strstr(err.text, expected[i]));
        seq->progress = saved.progress, seq->room = saved.room;
        seq->owner.kind = saved.owner.kind;
        seq->written[1] = written, seq->room.tables[1].generations[2] = generation;
        sheaf_sequence_destroy(twin);
        twin = NULL;
        assert_whole(&f, seq);
    }
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_sequence_holds_no_block),
        cmocka_unit_test(extending_reserves_in_every_group_at_once),
        cmocka_unit_test(need_blocks_tells_exactly_what_extend_takes),
        cmocka_unit_test(a_full_pool_is_an_answer_that_changes_nothing),
        cmocka_unit_test(committing_fewer_gives_the_rest_back),
        cmocka_unit_test(only_what_every_layer_has_written_can_be_committed),
        cmocka_unit_test(after_a_truncation_old_numbers_do_not_count_as_written),
        cmocka_unit_test(writes_keep_to_reserved_positions_in_order),
        cmocka_unit_test(another_shape_or_type_is_refused),
        cmocka_unit_test(nulls_are_refused),
        cmocka_unit_test(forks_that_diverge_inside_a_block_leave_each_other_alone),
#if SHEAF_CHECK < 2
        cmocka_unit_test(a_fork_that_no_block_can_count_is_undone),
#endif
        cmocka_unit_test(a_copied_tail_stays_when_nothing_is_committed),
        cmocka_unit_test(an_open_reservation_is_neither_forked_nor_parked_nor_slid),
        cmocka_unit_test(views_span_what_each_layer_has_written),
        cmocka_unit_test(a_failed_step_leaves_every_group_and_layer_at_the_same_length),
        cmocka_unit_test(nan_beyond_the_last_committed_slot_is_never_seen),
        cmocka_unit_test(positions_end_at_two_to_the_31st),
        cmocka_unit_test(a_decode_step_allocates_nothing),
        cmocka_unit_test(a_broken_invariant_is_named_by_its_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
