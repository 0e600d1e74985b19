/* tests/cache/test_gather.c - encoded tiles copied out by runs of rows, and numbers decoded. */
#include "fixture.h"

static const sheaf_layer layers[] = {
    {.n_kv_heads = 2, .key_dim = 6, .value_dim = 4, .codec_k = SHEAF_CODEC_BF16},
    {.n_kv_heads = 1, .key_dim = 8, .value_dim = 8, .window = 6, .codec_v = SHEAF_CODEC_F16},
    {.n_kv_heads = 3, .key_dim = 5, .value_dim = 0, .codec_k = SHEAF_CODEC_F16},
};
#define N_LAYERS 3

/* A layer that is alone in its blocks, its K tile a multiple of 64 bytes: tile and block are
 * one. */
static const sheaf_layer keys_only[] = {{.n_kv_heads = 1, .key_dim = 8}};

static uint64_t tile_bytes(const sheaf_layer *shape, uint32_t side)
{
    uint32_t dim = side == 0 ? shape->key_dim : shape->value_dim;
    uint32_t codec = side == 0 ? shape->codec_k : shape->codec_v;
    return 4ull * shape->n_kv_heads * dim * (codec == SHEAF_CODEC_F32 ? 4 : 2);
}

/* Gathers a layer raw and compares every tile with the memory that the view names. */
static uint32_t check_raw(const fixture *f, const sheaf_sequence *seq, uint32_t layer)
{
    static unsigned char k[1 << 14], v[1 << 14];
    memset(k, 0x55, sizeof k), memset(v, 0x55, sizeof v);
    sheaf_gather_info info = SHEAF_GATHER_INFO_INIT;
    assert_int_equal(sheaf_sequence_gather_raw(seq, layer, k, sizeof k, v, sizeof v, &info),
                     SHEAF_OK);
    sheaf_kv_view view;
    uint32_t begin, end, runs = 0;
    assert_int_equal(sheaf_sequence_view(seq, layer, &view), SHEAF_OK);
    assert_int_equal(sheaf_sequence_visible(seq, layer, &begin, &end), SHEAF_OK);
    uint64_t k_tile = tile_bytes(&f->layers[layer], 0),
             v_tile = tile_bytes(&f->layers[layer], 1);
    uint32_t first = begin / 4, last = (end + 3) / 4;
    for (uint32_t i = first; i < last; i++) {
        const uint32_t *row = view.rows + (i - view.first_block);
        const unsigned char *at = view.base + *row * view.row_stride_k;
        assert_memory_equal(k + (i - first) * k_tile, at + view.k_offset, k_tile);
        if (v_tile != 0)
            assert_memory_equal(v + (i - first) * v_tile, at + view.v_offset, v_tile);
        runs += i == first || row[0] != row[-1] + 1;
    }
    assert_int_equal(info.n_blocks, last - first);
    assert_int_equal(info.n_runs, runs);
    assert_int_equal(info.first_slot, begin % 4);
    assert_int_equal(info.k_bytes, (last - first) * k_tile);
    assert_int_equal(info.v_bytes, (last - first) * v_tile);
    assert_int_equal(k[info.k_bytes], 0x55); /* not a byte more */
    assert_int_equal(v[info.v_bytes], 0x55);
    return info.n_runs;
}

static void adjacent_rows_are_one_run(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, layers, N_LAYERS, 16, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 41, 0);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        assert_int_equal(check_raw(&f, seq, layer), 1);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void scattered_rows_are_gathered_in_order(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, layers, N_LAYERS, 4, 40);
    sheaf_sequence *a = sequence_of_length(&f, 4, 0), *b = sequence_of_length(&f, 4, 500);
    for (uint32_t i = 1; i < 12; i++) { /* b takes a block at every second of a's */
        assert_int_equal(append(&f, a, 4, 4 * i), SHEAF_OK);
        if (i % 2) assert_int_equal(append(&f, b, 4, 500 + 4 * i), SHEAF_OK);
    }
    assert_in_range(check_raw(&f, a, 0), 2, 12);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) check_raw(&f, b, layer);
    sheaf_sequence_destroy(b); /* its rows are taken again, out of order */
    for (uint32_t i = 12; i < 20; i++) assert_int_equal(append(&f, a, 4, 4 * i), SHEAF_OK);
    assert_int_equal(sheaf_sequence_slide(a, 0), SHEAF_OK);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) check_raw(&f, a, layer);
    assert_holds_its_tokens(&f, a);
    sheaf_sequence_destroy(a);
    fixture_close(&f);
}

static void a_tile_that_is_the_whole_block_is_copied_in_spans(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, keys_only, 1, 4, 16);
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_group_info(f.pool, 0, &info), SHEAF_OK);
    assert_int_equal(info.block_bytes, tile_bytes(&keys_only[0], 0));
    sheaf_sequence *a = sequence_of_length(&f, 12, 0), *b = sequence_of_length(&f, 4, 90);
    assert_int_equal(append(&f, a, 9, 12), SHEAF_OK);
    assert_int_equal(check_raw(&f, a, 0), 2);
    assert_holds_its_tokens(&f, a);
    sheaf_sequence_destroy(a);
    sheaf_sequence_destroy(b);
    fixture_close(&f);
}

static void too_small_an_array_is_refused_and_untouched(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, layers, N_LAYERS, 4, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 9, 0);
    float k[9 * 12], v[9 * 8];
    const float before = 7.0f;
    k[0] = v[0] = before;
    assert_int_equal(sheaf_sequence_gather_f32(seq, 0, k, 9 * 12 - 1, v, 9 * 8), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_gather_f32(seq, 0, k, 9 * 12, v, 9 * 8 - 1), SHEAF_E_RANGE);
    assert_memory_equal(k, &before, 4);
    assert_memory_equal(v, &before, 4);
    assert_int_equal(sheaf_sequence_gather_f32(seq, 0, NULL, 0, v, 9 * 8), SHEAF_OK);
    assert_int_equal(sheaf_sequence_gather_f32(seq, 0, k, 9 * 12, NULL, 0), SHEAF_OK);
    assert_int_equal(sheaf_sequence_gather_f32(seq, N_LAYERS, k, 9 * 12, v, 9 * 8),
                     SHEAF_E_INVALID);
    sheaf_gather_info info = SHEAF_GATHER_INFO_INIT;
    assert_int_equal(sheaf_sequence_gather_raw(seq, 0, NULL, 0, NULL, 0, &info), SHEAF_OK);
    assert_int_equal(info.n_blocks, 3);
    unsigned char raw[3 * 2 * 4 * 6 * 2];
    raw[0] = 9;
    assert_int_equal(info.k_bytes, sizeof raw);
    info.n_blocks = 77;
    assert_int_equal(sheaf_sequence_gather_raw(seq, 0, raw, sizeof raw - 1, NULL, 0, &info),
                     SHEAF_E_RANGE);
    assert_int_equal(raw[0], 9);
    assert_int_equal(info.n_blocks, 77);
    assert_int_equal(sheaf_sequence_gather_raw(seq, 0, NULL, 0, raw, 1, &info), SHEAF_E_RANGE);
    assert_int_equal(sheaf_sequence_gather_raw(seq, 0, raw, sizeof raw, NULL, 0, NULL),
                     SHEAF_OK);
    info.struct_size = 0;
    assert_int_equal(sheaf_sequence_gather_raw(seq, 0, NULL, 0, NULL, 0, &info),
                     SHEAF_E_INVALID);
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

static void an_empty_layer_is_an_answer(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, layers, N_LAYERS, 4, 16);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(seq, 3), SHEAF_OK);
    float none;
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        sheaf_gather_info info = SHEAF_GATHER_INFO_INIT;
        assert_int_equal(sheaf_sequence_gather_f32(seq, layer, &none, 0, &none, 0), SHEAF_OK);
        assert_int_equal(sheaf_sequence_gather_raw(seq, layer, &none, 0, &none, 0, &info),
                         SHEAF_OK);
        assert_int_equal(info.n_blocks + info.n_runs + info.k_bytes + info.v_bytes, 0);
    }
    sheaf_sequence_destroy(seq);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adjacent_rows_are_one_run),
        cmocka_unit_test(scattered_rows_are_gathered_in_order),
        cmocka_unit_test(a_tile_that_is_the_whole_block_is_copied_in_spans),
        cmocka_unit_test(too_small_an_array_is_refused_and_untouched),
        cmocka_unit_test(an_empty_layer_is_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
