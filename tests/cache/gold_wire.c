/* The committed streams of tests/data/wire/: what the writer makes is exactly they; and each of them,
 * cut at any byte or with any bit flipped, is refused.
 *
 * SHEAF_WRITE_WIRE=1 writes them anew, which is right only with a new version of the format. */
#include "cache/wire_fixture.h"
#include "cache/wire_golden.h"

/* ---- what they hold ------------------------------------------------------------------------ */

/* 10 tokens, and a fork that goes on from the 7th: the first block is shared. */
static bytes make_forked(fixture *f, const sheaf_layer *layers)
{
    fixture_open(f, layers, N_GOLDEN, 4, 16);
    sheaf_sequence *a = sequence_of_length(f, 6, 1), *b = fork_of(a);
    assert_int_equal(append(f, a, 4, 50), SHEAF_OK);
    assert_int_equal(append(f, b, 3, 90), SHEAF_OK);
    sheaf_parked *parked[] = {park(a), park(b)};
    bytes b_ = save_all(parked, 2);
    sheaf_parked_destroy(parked[0]);
    sheaf_parked_destroy(parked[1]);
    return b_;
}

static bytes make_one(fixture *f)
{
    return make_forked(f, golden_one);
}

static bytes make_quant(fixture *f)
{
    return make_forked(f, golden_quant);
}

/* 15 tokens of which the window has let go of two blocks; and a sequence without tokens. */
static bytes make_two(fixture *f)
{
    fixture_open(f, golden_two, N_GOLDEN, 4, 16);
    sheaf_sequence *seq = sequence_of_length(f, 15, 1);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    sheaf_parked *parked[] = {park(seq), park(sequence_of_length(f, 0, 1))};
    bytes b = save_all(parked, 2);
    sheaf_parked_destroy(parked[0]);
    sheaf_parked_destroy(parked[1]);
    return b;
}

/* The second block of a sequence, in both groups. */
static bytes make_block(fixture *f)
{
    fixture_open(f, golden_two, N_GOLDEN, 4, 16);
    sheaf_sequence *seq = sequence_of_length(f, 8, 1);
    sheaf_block blocks[2];
    for (uint32_t g = 0; g < 2; g++) blocks[g] = sheaf__table_block(&seq->room.tables[g], g, 1);
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    assert_int_equal(sheaf_wire_save_block(f->pool, blocks, &some_space,
                                           sheaf_sequence_tokens(seq) + 4, &sink, NULL),
                     SHEAF_OK);
    sheaf_sequence_destroy(seq);
    return b;
}

static void is_golden(bytes (*make)(fixture *), const char *path)
{
    fixture f;
    bytes made = make(&f);
    if (getenv("SHEAF_WRITE_WIRE") != NULL) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(made.data, 1, made.n, file), made.n);
        assert_int_equal(fclose(file), 0);
    }
    bytes golden = bytes_of_file(path);
    assert_int_equal(made.n, golden.n);
    assert_memory_equal(made.data, golden.data, made.n);
    fixture_close(&f);
    free(made.data);
    free(golden.data);
}

static void the_writer_makes_exactly_the_committed_streams(void **state)
{
    (void)state;
    is_golden(make_one, GOLDEN_ONE);
    is_golden(make_two, GOLDEN_TWO);
    is_golden(make_quant, GOLDEN_QUANT);
    is_golden(make_block, GOLDEN_BLOCK);
}

static void the_committed_streams_are_read(void **state)
{
    (void)state;
    fixture f;
    bytes b = bytes_of_file(GOLDEN_TWO);
    fixture_open(&f, golden_two, N_GOLDEN, 2, 16);
    sheaf_parked *loaded[2];
    sheaf_sequence *seq = NULL;
    uint32_t n = 0;
    assert_int_equal(load_all(f.pool, &b, loaded, 2, &n, NULL), SHEAF_OK);
    assert_int_equal(n, 2);
    assert_int_equal(sheaf_parked_length(loaded[1]), 0);
    assert_int_equal(sheaf_parked_adopt(loaded[0], &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_length(seq), 15);
    assert_int_equal(seq->room.tables[1].first_block, 2);
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    sheaf_parked_destroy(loaded[1]);
    fixture_close(&f);
    free(b.data);
}

typedef struct seen {
    uint32_t n_frames;
    uint64_t next; /* offset of the next frame */
    char kinds[128];
} seen;

static void see_frame(void *ctx, uint64_t offset, const char *kind, uint64_t n_bytes)
{
    seen *s = ctx;
    assert_int_equal(offset, s->next);
    s->next += n_bytes;
    s->n_frames++;
    strcat(strcat(s->kinds, kind), " ");
}

static void scanning_tells_what_a_stream_says_of_itself(void **state)
{
    (void)state;
    bytes b = bytes_of_file(GOLDEN_TWO);
    sheaf_source from = bytes_source(&b);
    sheaf_wire_info info = SHEAF_WIRE_INFO_INIT;
    seen s = {.next = SHEAF__WIRE_PROLOGUE};
    assert_int_equal(sheaf_wire_scan(&from, see_frame, &s, &info, NULL), SHEAF_OK);
    assert_string_equal(s.kinds, "head sequence sequence block block block block block block "
                                 "done ");
    assert_int_equal(s.next, b.n);
    assert_int_equal(info.n_frames, s.n_frames);
    assert_int_equal(info.version, 1);
    assert_int_equal(info.kind, 0);
    assert_int_equal(info.n_layers, N_GOLDEN);
    assert_int_equal(info.n_groups, 2);
    assert_int_equal(info.block_tokens, GOLDEN_TOKENS);
    assert_int_equal(info.n_sequences, 2);
    assert_int_equal(info.n_tokens, 15);
    assert_int_equal(info.n_bytes, b.n);
    assert_int_equal(info.blocks[0], 4);
    assert_int_equal(info.blocks[1], 2);
    assert_int_equal(info.block_bytes[0], 4 * (4 * 2 + 3 * 4));
    assert_int_equal(info.block_bytes[1], 4 * 2 * 2 * 2);
    assert_int_equal(info.windows[1], 6);
    assert_memory_equal(&info.space, &some_space, sizeof some_space);
    free(b.data);
}

/* ---- damage -------------------------------------------------------------------------------- */

/* A single block is not loaded. */
static void block_refused(const fixture *f, bytes *b)
{
    sheaf_block blocks[2] = {{7, 7, 7}, {7, 7, 7}};
    int32_t tokens[GOLDEN_TOKENS] = {-7, -7, -7, -7};
    sheaf_source from = bytes_source(b);
    sheaf_error err = {0};
    sheaf_pool_stats before = held_of(f);
    sheaf_status st = sheaf_wire_load_block(f->pool, NULL, &from, blocks, tokens, &err);
    assert_true(st < 0 && err.status == st && err.text[0] != 0);
    assert_true(blocks[0].row == 7 && tokens[0] == -7);
    sheaf_pool_stats after = held_of(f);
    assert_memory_equal(&before, &after, sizeof before);
}

static void refused_by_all(const fixture *f, bytes *b, bool block)
{
    sheaf_wire_info info = SHEAF_WIRE_INFO_INIT, as_before = info;
    sheaf_source from = bytes_source(b);
    sheaf_error err = {0};
    sheaf_status st = sheaf_wire_scan(&from, NULL, NULL, &info, &err);
    assert_true(st == SHEAF_E_FORMAT || st == SHEAF_E_DAMAGED || st == SHEAF_E_FOREIGN);
    assert_true(err.status == st && err.text[0] != 0);
    assert_memory_equal(&info, &as_before, sizeof info);
    if (block) {
        block_refused(f, b);
        return;
    }
    sheaf_parked *parked[2];
    uint32_t n = 77;
    sheaf_pool_stats before = held_of(f);
    st = load_all(f->pool, b, parked, 2, &n, &err);
    assert_true(st < 0 && st != SHEAF_E_NO_MEMORY && n == 77);
    sheaf_pool_stats after = held_of(f);
    assert_memory_equal(&before, &after, sizeof before);
}

/* Runs over a stream with a pool that holds something. */
static void damage(const char *path, const sheaf_layer *layers, bool block, bool cut)
{
    bytes b = bytes_of_file(path);
    fixture f;
    assert_true(b.n > 0);
    fixture_open(&f, layers, N_GOLDEN, 2, 32);
    sheaf_sequence *seq = sequence_of_length(&f, 7, 1);
    uint64_t size = b.n;
    for (uint64_t i = 0; i < size; i++) {
        if (cut) {
            b.n = i;
            refused_by_all(&f, &b, block);
        }
        for (uint32_t bit = 0; bit < 8 && !cut; bit++) {
            b.data[i] ^= (unsigned char)(1 << bit);
            refused_by_all(&f, &b, block);
            b.data[i] ^= (unsigned char)(1 << bit);
        }
        if (i % 16 == 0) assert_whole(&f, NULL);
    }
    assert_holds_its_tokens(&f, seq);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
    free(b.data);
}

static void a_stream_cut_at_any_byte_is_refused(void **state)
{
    (void)state;
    damage(GOLDEN_ONE, golden_one, false, true);
    damage(GOLDEN_TWO, golden_two, false, true);
    damage(GOLDEN_QUANT, golden_quant, false, true);
    damage(GOLDEN_BLOCK, golden_two, true, true);
}

static void a_stream_with_any_bit_flipped_is_refused(void **state)
{
    (void)state;
    damage(GOLDEN_ONE, golden_one, false, false);
    damage(GOLDEN_TWO, golden_two, false, false);
    damage(GOLDEN_QUANT, golden_quant, false, false);
    damage(GOLDEN_BLOCK, golden_two, true, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_writer_makes_exactly_the_committed_streams),
        cmocka_unit_test(the_committed_streams_are_read),
        cmocka_unit_test(scanning_tells_what_a_stream_says_of_itself),
        cmocka_unit_test(a_stream_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_stream_with_any_bit_flipped_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
