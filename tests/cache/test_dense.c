/* tests/cache/test_dense.c - the dense buffer by itself. */
#include "fixture.h"

#include "cache/dense.h"

static const sheaf_layer mixed[] = {
    {.n_kv_heads = 2, .key_dim = 6, .value_dim = 4, .window = 0, .codec_k = SHEAF_CODEC_BF16},
    {.n_kv_heads = 1, .key_dim = 8, .value_dim = 8, .window = 6, .codec_v = SHEAF_CODEC_F16},
    {.n_kv_heads = 3, .key_dim = 5, .value_dim = 0, .window = 0, .codec_k = SHEAF_CODEC_F16},
    {.n_kv_heads = 2, .key_dim = 4, .value_dim = 3, .window = 6, .codec_k = SHEAF_CODEC_F32},
};
#define N_MIXED 4

static sheaf__dense *dense_open(host *h, sheaf__memory *memory, uint32_t capacity)
{
    sheaf_allocator allocator = {h, host_alloc, host_free};
    sheaf__memory_init(memory, &allocator);
    sheaf__dense *dense = NULL;
    assert_int_equal(sheaf__dense_create(memory, mixed, N_MIXED, 4, capacity, &dense),
                     SHEAF_OK);
    return dense;
}

/* Writes n reserved positions of every layer, contents named by first, first + 1, ... */
static void dense_write_all(sheaf__dense *dense, uint32_t n, uint32_t first)
{
    static source s;
    uint32_t seeds[64], pos = sheaf__dense_length(dense);
    for (uint32_t i = 0; i < n; i++) seeds[i] = first + i;
    for (uint32_t layer = 0; layer < N_MIXED; layer++) {
        source_fill(&s, &mixed[layer], layer, seeds, n, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
        assert_int_equal(sheaf__dense_write(dense, layer, pos, n, &s.src), SHEAF_OK);
    }
}

static void dense_append(sheaf__dense *dense, uint32_t n, uint32_t first)
{
    int32_t tokens[64];
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)(first + i);
    assert_int_equal(sheaf__dense_extend(dense, n), SHEAF_OK);
    dense_write_all(dense, n, first);
    assert_int_equal(sheaf__dense_commit(dense, n, tokens), SHEAF_OK);
}

static void assert_dense_holds_its_tokens(const sheaf__dense *dense)
{
    static float k[1 << 14], v[1 << 14];
    const uint32_t *seeds = (const uint32_t *)sheaf__dense_tokens(dense);
    uint32_t end = sheaf__dense_length(dense);
    for (uint32_t layer = 0; layer < N_MIXED; layer++) {
        uint32_t w = mixed[layer].window, begin = w != 0 && end > w ? end - w : 0;
        assert_int_equal(sheaf__dense_gather_f32(dense, layer, k, 1 << 14, v, 1 << 14),
                         SHEAF_OK);
        assert_true(gathered_equals(k, &mixed[layer], layer, 0, seeds, NULL, begin, end));
        assert_true(gathered_equals(v, &mixed[layer], layer, 1, seeds, NULL, begin, end));
    }
}

static void growing_copies_everything_and_says_so(void **state)
{
    (void)state;
    host h = {0};
    sheaf__memory memory;
    sheaf__dense *dense = dense_open(&h, &memory, 8);
    uint64_t bytes = sheaf__dense_bytes(dense);
    dense_append(dense, 8, 100);
    assert_int_equal(sheaf__dense_bytes_copied(dense), 0);
    assert_int_equal(sheaf__dense_bytes(dense), bytes);
    dense_append(dense, 1, 108);
    assert_in_range(sheaf__dense_bytes(dense), 2 * bytes - 64 * N_MIXED, 2 * bytes);
    /* two blocks of four positions: the bytes of every number of every layer */
    uint64_t numbers = 8 * (2 * (6 * 2 + 4 * 4) + (8 * 4 + 8 * 2) + 3 * 5 * 2 + 2 * 7 * 4);
    assert_int_equal(sheaf__dense_bytes_copied(dense), numbers);
    for (uint32_t i = 9; i < 60; i++) dense_append(dense, 1, 100 + i);
    assert_dense_holds_its_tokens(dense);
    sheaf__dense_destroy(dense);
    assert_int_equal(h.n_live, 0);
    assert_int_equal(memory.live_bytes, 0);
}

static void a_fork_shares_nothing(void **state)
{
    (void)state;
    host h = {0};
    sheaf__memory memory;
    sheaf__dense *dense = dense_open(&h, &memory, 0), *twin = NULL;
    dense_append(dense, 10, 0);
    assert_int_equal(sheaf__dense_extend(dense, 1), SHEAF_OK);
    assert_int_equal(sheaf__dense_fork(dense, &twin), SHEAF_E_BUSY);
    assert_int_equal(sheaf__dense_commit(dense, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf__dense_fork(dense, &twin), SHEAF_OK);
    dense_append(dense, 20, 200);
    dense_append(twin, 3, 300);
    assert_dense_holds_its_tokens(dense);
    assert_dense_holds_its_tokens(twin);
    sheaf__dense_destroy(dense);
    assert_dense_holds_its_tokens(twin);
    sheaf__dense_destroy(twin);
    assert_int_equal(h.n_live, 0);
}

static void positions_live_as_in_a_paged_sequence(void **state)
{
    (void)state;
    host h = {0};
    sheaf__memory memory;
    static source s;
    const uint32_t seeds[4] = {1, 2, 3, 4};
    sheaf__dense *dense = dense_open(&h, &memory, 4);
    source_fill(&s, &mixed[0], 0, seeds, 4, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
    assert_int_equal(sheaf__dense_write(dense, 0, 0, 1, &s.src), SHEAF_E_RANGE);
    assert_int_equal(sheaf__dense_extend(dense, 3), SHEAF_OK);
    assert_int_equal(sheaf__dense_write(dense, 0, 1, 1, &s.src), SHEAF_E_RANGE);
    assert_int_equal(sheaf__dense_write(dense, 0, 0, 4, &s.src), SHEAF_E_RANGE);
    assert_int_equal(sheaf__dense_write(dense, 1, 0, 3, &s.src), SHEAF_E_SHAPE);
    assert_int_equal(sheaf__dense_write(dense, N_MIXED, 0, 3, &s.src), SHEAF_E_INVALID);
    assert_int_equal(sheaf__dense_write(dense, 0, 0, 3, &s.src), SHEAF_OK);
    assert_int_equal(sheaf__dense_commit(dense, 3, NULL), SHEAF_E_UNWRITTEN);
    assert_int_equal(sheaf__dense_commit(dense, 4, NULL), SHEAF_E_RANGE);
    dense_write_all(dense, 3, 7);
    assert_int_equal(sheaf__dense_commit(dense, 2, NULL), SHEAF_OK);
    assert_int_equal(sheaf__dense_length(dense), 2);
    assert_int_equal(sheaf__dense_tokens(dense)[1], SHEAF_TOKEN_NONE);
    assert_int_equal(sheaf__dense_truncate(dense, 3), SHEAF_E_RANGE);
    assert_int_equal(sheaf__dense_truncate(dense, 1), SHEAF_OK);
    /* what lay at position 1 does not count as written */
    assert_int_equal(sheaf__dense_extend(dense, 1), SHEAF_OK);
    assert_int_equal(sheaf__dense_commit(dense, 1, NULL), SHEAF_E_UNWRITTEN);
    assert_int_equal(sheaf__dense_extend(dense, INT32_MAX), SHEAF_E_OVERFLOW);
    float k[12];
    assert_int_equal(sheaf__dense_gather_f32(dense, 0, k, 11, NULL, 0), SHEAF_E_RANGE);
    assert_int_equal(sheaf__dense_gather_f32(dense, 0, k, 12, NULL, 0), SHEAF_OK);
    sheaf__dense_destroy(dense);
    assert_int_equal(h.n_live, 0);
}

static void impossible_buffers_are_refused(void **state)
{
    (void)state;
    host h = {0};
    sheaf_allocator allocator = {&h, host_alloc, host_free};
    sheaf__memory memory;
    sheaf__memory_init(&memory, &allocator);
    sheaf__dense *dense = NULL;
    sheaf_layer bad = mixed[0];
    assert_int_equal(sheaf__dense_create(&memory, mixed, 4, 3, 0, &dense), SHEAF_E_INVALID);
    assert_int_equal(sheaf__dense_create(&memory, mixed, 0, 4, 0, &dense), SHEAF_E_INVALID);
    bad.codec_k = SHEAF_CODEC_COUNT;
    assert_int_equal(sheaf__dense_create(&memory, &bad, 1, 4, 0, &dense), SHEAF_E_CODEC);
    bad = (sheaf_layer){.n_kv_heads = UINT32_MAX, .key_dim = UINT32_MAX, .value_dim = 1};
    assert_int_equal(sheaf__dense_create(&memory, &bad, 1, 4, 16, &dense), SHEAF_E_OVERFLOW);
    bad.n_kv_heads = 0;
    assert_int_equal(sheaf__dense_create(&memory, &bad, 1, 4, 0, &dense), SHEAF_E_INVALID);
    assert_null(dense);
    assert_int_equal(h.n_live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growing_copies_everything_and_says_so),
        cmocka_unit_test(a_fork_shares_nothing),
        cmocka_unit_test(positions_live_as_in_a_paged_sequence),
        cmocka_unit_test(impossible_buffers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
