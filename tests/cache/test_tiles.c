/* tests/cache/test_tiles.c - the same numbers give the same bytes in a paged sequence and in a
 * dense buffer, whatever the chunks, types and orders they come in. */
#include "fixture.h"

#include "cache/dense.h"
#include "pool/pool.h"

static const sheaf_layer mixed[] = {
    {.n_kv_heads = 2, .key_dim = 6, .value_dim = 4, .window = 0, .codec_k = SHEAF_CODEC_BF16},
    {.n_kv_heads = 1, .key_dim = 8, .value_dim = 8, .window = 6, .codec_v = SHEAF_CODEC_F16},
    {.n_kv_heads = 3, .key_dim = 5, .value_dim = 0, .window = 0, .codec_k = SHEAF_CODEC_F16},
    {.n_kv_heads = 2, .key_dim = 4, .value_dim = 3, .window = 6, .codec_k = SHEAF_CODEC_F32},
};
#define N_MIXED 4

/* Writes the same source to both. */
static void write_both(const fixture *f, sheaf_sequence *seq, sheaf__dense *dense, uint32_t n,
                       uint64_t *random)
{
    static source s;
    uint32_t seeds[64], pos = sheaf__dense_length(dense);
    for (uint32_t i = 0; i < n; i++) seeds[i] = (uint32_t)random_next(random);
    for (uint32_t layer = 0; layer < f->n_layers; layer++) {
        source_fill(&s, &f->layers[layer], layer, seeds, n, random_below(random, 3),
                    random_below(random, 2));
        assert_int_equal(sheaf_sequence_write(seq, layer, pos, n, &s.src), SHEAF_OK);
        assert_int_equal(sheaf__dense_write(dense, layer, pos, n, &s.src), SHEAF_OK);
    }
}

static void assert_gathers_are_equal(const fixture *f, const sheaf_sequence *seq,
                                     const sheaf__dense *dense)
{
    static float k[2][1 << 14], v[2][1 << 14];
    for (uint32_t layer = 0; layer < f->n_layers; layer++) {
        memset(k, 0x55, sizeof k), memset(v, 0x55, sizeof v);
        assert_int_equal(sheaf_sequence_gather_f32(seq, layer, k[0], 1 << 14, v[0], 1 << 14),
                         SHEAF_OK);
        assert_int_equal(sheaf__dense_gather_f32(dense, layer, k[1], 1 << 14, v[1], 1 << 14),
                         SHEAF_OK);
        assert_memory_equal(k[0], k[1], sizeof k[0]);
        assert_memory_equal(v[0], v[1], sizeof v[0]);
    }
}

static void chunks_of_any_size_type_and_order_give_the_same_bytes(void **state)
{
    (void)state;
    uint64_t random = seed_from_environment(20);
    for (uint32_t round = 0; round < 20; round++) {
        fixture f;
        fixture_open(&f, mixed, N_MIXED, 2, 64);
        host h = {0};
        sheaf__memory memory;
        sheaf__dense *dense = NULL;
        sheaf_allocator allocator = {&h, host_alloc, host_free};
        sheaf__memory_init(&memory, &allocator);
        assert_int_equal(sheaf__dense_create(&memory, mixed, N_MIXED, 4,
                                             1 + random_below(&random, 20), &dense),
                         SHEAF_OK);
        sheaf_sequence *seq = NULL;
        assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
        while (sheaf__dense_length(dense) < 150) {
            uint32_t n = 1 + random_below(&random, 19), m = random_below(&random, n + 1);
            assert_int_equal(sheaf_sequence_extend(seq, n), SHEAF_OK);
            assert_int_equal(sheaf__dense_extend(dense, n), SHEAF_OK);
            write_both(&f, seq, dense, n, &random);
            assert_int_equal(sheaf_sequence_commit(seq, m, NULL), SHEAF_OK);
            assert_int_equal(sheaf__dense_commit(dense, m, NULL), SHEAF_OK);
            assert_gathers_are_equal(&f, seq, dense);
            if (random_below(&random, 2) == 0)
                assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
        }
        sheaf__dense_destroy(dense);
        sheaf_sequence_destroy(seq);
        assert_int_equal(h.n_live, 0);
        fixture_close(&f);
    }
}

static void rows_far_beyond_four_gigabytes_are_written_and_read(void **state)
{
    (void)state;
    fixture f = {.n_layers = N_MIXED, .layers = mixed};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = mixed, options.n_layers = N_MIXED;
    options.block_tokens = 4, options.slab_blocks = 65536;
    options.budget_bytes = 1ull << 40; /* address range, hardly any memory */
    sheaf__device device = sheaf__device_cpu(NULL);
    const uint32_t first_slab = 512;
    assert_int_equal(sheaf__pool_open_on(&options, &device, first_slab, &f.pool, NULL),
                     SHEAF_OK);
    sheaf_sequence *seq = sequence_of_length(&f, 9, 0), *twin = NULL;
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
    assert_int_equal(append(&f, twin, 6, 40), SHEAF_OK);
    for (uint32_t layer = 0; layer < N_MIXED; layer++) {
        sheaf_kv_view view;
        assert_int_equal(sheaf_sequence_view(twin, layer, &view), SHEAF_OK);
        assert_true(view.rows[0] >= first_slab * 65536u);
        assert_true(view.rows[0] * view.row_stride_k > 2 * (uint64_t)UINT32_MAX);
    }
    assert_holds_its_tokens(&f, seq);
    assert_holds_its_tokens(&f, twin);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(twin);
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_any_size_type_and_order_give_the_same_bytes),
        cmocka_unit_test(rows_far_beyond_four_gigabytes_are_written_and_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
