/* From layers to groups, offsets and sizes; what is refused; the fingerprint. */
#include "pool/fixture.h"

static sheaf_layer layers[SHEAF_MAX_LAYERS + 1];

static sheaf_pool_options options_of(uint32_t n_layers)
{
    for (uint32_t i = 0; i < n_layers; i++)
        layers[i] = (sheaf_layer){.n_kv_heads = 8,
                                  .key_dim = 128,
                                  .value_dim = 128,
                                  .codec_k = SHEAF_CODEC_BF16,
                                  .codec_v = SHEAF_CODEC_BF16};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers;
    options.n_layers = n_layers;
    options.budget_bytes = 1ull << 30;
    return options;
}

static sheaf_group_info group_of(const sheaf_pool *pool, uint32_t g)
{
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_group_info(pool, g, &info), SHEAF_OK);
    return info;
}

static sheaf_layer_info layer_of(const sheaf_pool *pool, uint32_t i)
{
    sheaf_layer_info info = SHEAF_LAYER_INFO_INIT;
    assert_int_equal(sheaf_pool_layer_info(pool, i, &info), SHEAF_OK);
    return info;
}

static void refused(const sheaf_pool_options *options, sheaf_status status, const char *word)
{
    sheaf_pool *pool = (sheaf_pool *)&layers;
    sheaf_error err = {0};
    assert_int_equal(sheaf_pool_open(options, &pool, &err), status);
    assert_int_equal(err.status, status);
    if (strstr(err.text, word) == NULL) fail_msg("\"%s\" does not name %s", err.text, word);
    assert_ptr_equal(pool, &layers);
    assert_int_equal(sheaf_pool_open(options, &pool, NULL), status);
}

static void a_real_model_has_the_sizes_that_its_numbers_have(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(28);
    sheaf_pool *pool = open_pool(&options);
    sheaf_group_info group = group_of(pool, 0);
    assert_int_equal(sheaf_pool_layers(pool), 28);
    assert_int_equal(sheaf_pool_groups(pool), 1);
    assert_int_equal(sheaf_pool_block_tokens(pool), 32);
    assert_int_equal(group.n_layers, 28);
    assert_int_equal(group.tile_bytes, 28 * 2 * 65536);
    assert_int_equal(group.block_bytes, 28 * 2 * 65536);
    assert_int_equal(group.slab_blocks, 16); /* 32 would be 112 MiB */
    assert_int_equal(group.slab_bytes, 56ull << 20);
    assert_true(group.max_rows * group.block_bytes >= options.budget_bytes);
    for (uint32_t i = 0; i < 28; i++) {
        sheaf_layer_info layer = layer_of(pool, i);
        assert_int_equal(layer.k_offset, i * 131072);
        assert_int_equal(layer.v_offset, i * 131072 + 65536);
        assert_int_equal(layer.k_segment_bytes, 8192);
        assert_int_equal(layer.v_segment_bytes, 8192);
    }
    close_pool(pool);
}

static void layers_with_one_window_form_a_group_in_order_of_appearance(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(6);
    static const uint32_t windows[6] = {512, 0, 512, 7, 0, 512};
    static const uint32_t groups[6] = {0, 1, 0, 2, 1, 0};
    for (int i = 0; i < 6; i++) layers[i].window = windows[i];
    sheaf_pool *pool = open_pool(&options);
    assert_int_equal(sheaf_pool_groups(pool), 3);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(layer_of(pool, i).group, groups[i]);
    assert_int_equal(group_of(pool, 0).window, 512);
    assert_int_equal(group_of(pool, 0).n_layers, 3);
    assert_int_equal(group_of(pool, 1).window, 0);
    assert_int_equal(group_of(pool, 2).n_layers, 1);
    assert_int_equal(layer_of(pool, 5).k_offset, 2 * 131072);
    assert_int_equal(layer_of(pool, 4).k_offset, 131072);
    close_pool(pool);
}

static void tiles_are_aligned_and_padding_counts(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(3);
    layers[0] = (sheaf_layer){1, 3, 5, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_F32};
    layers[1] = (sheaf_layer){2, 7, 0, 0, SHEAF_CODEC_F16, 99};
    layers[2] = (sheaf_layer){1, 1, 1, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F16};
    options.block_tokens = 4;
    options.slab_blocks = 8;
    sheaf_pool *pool = open_pool(&options);
    /* K of 24 bytes, V of 80; K of 2 * 56; K of 16, V of 8: each from a multiple of 64 */
    assert_int_equal(layer_of(pool, 0).k_offset, 0);
    assert_int_equal(layer_of(pool, 0).v_offset, 64);
    assert_int_equal(layer_of(pool, 1).k_offset, 192);
    assert_int_equal(layer_of(pool, 1).v_offset, 320);
    assert_int_equal(layer_of(pool, 1).v_segment_bytes, 0);
    assert_int_equal(layer_of(pool, 2).k_offset, 320);
    assert_int_equal(layer_of(pool, 2).v_offset, 384);
    assert_int_equal(group_of(pool, 0).tile_bytes, 24 + 80 + 112 + 16 + 8);
    assert_int_equal(group_of(pool, 0).block_bytes, 512); /* 448, so that 8 rows are a page */
    assert_int_equal(group_of(pool, 0).slab_bytes, 4096);
    sheaf_layer layer;
    assert_int_equal(sheaf_pool_layer(pool, 1, &layer), SHEAF_OK);
    assert_int_equal(layer.codec_v, 0);
    close_pool(pool);
}

static void slabs_are_whole_pages_whatever_their_blocks(void **state)
{
    (void)state;
    for (uint32_t blocks = 1; blocks <= 65536; blocks *= 2) {
        sheaf_pool_options options = options_of(1);
        layers[0] = (sheaf_layer){1, 5, 3, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
        options.block_tokens = 1;
        options.slab_blocks = blocks;
        sheaf_pool *pool = open_pool(&options);
        sheaf_group_info group = group_of(pool, 0);
        assert_int_equal(group.slab_bytes % PAGE, 0);
        assert_int_equal(group.slab_bytes, group.block_bytes * blocks);
        assert_int_equal(group.block_bytes % 64, 0);
        assert_true(group.block_bytes >= 128);
        close_pool(pool);
    }
}

static void impossible_layouts_are_refused_by_name(void **state)
{
    (void)state;
    struct {
        uint32_t *field, value;
        sheaf_status status;
        const char *word;
    } cases[] = {
        {&layers[1].n_kv_heads, 0, SHEAF_E_LAYOUT, "layers[1].n_kv_heads"},
        {&layers[1].key_dim, 0, SHEAF_E_LAYOUT, "layers[1].key_dim"},
        {&layers[0].codec_k, SHEAF_CODEC_COUNT, SHEAF_E_CODEC, "layers[0].codec_k"},
        {&layers[1].codec_v, SHEAF_CODEC_COUNT, SHEAF_E_CODEC, "layers[1].codec_v"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf_pool_options options = options_of(2);
        *cases[i].field = cases[i].value;
        refused(&options, cases[i].status, cases[i].word);
    }
    sheaf_pool_options options = options_of(2);
    options.n_layers = 0;
    refused(&options, SHEAF_E_LAYOUT, "n_layers");
    options = options_of(SHEAF_MAX_LAYERS + 1);
    refused(&options, SHEAF_E_LAYOUT, "n_layers");
    options = options_of(2);
    options.layers = NULL;
    refused(&options, SHEAF_E_INVALID, "layers");
    static const uint32_t bad_tokens[] = {3, 33, 2048, UINT32_MAX};
    static const uint32_t bad_blocks[] = {3, 31, 131072, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        options = options_of(2);
        options.block_tokens = bad_tokens[i];
        refused(&options, SHEAF_E_LAYOUT, "block_tokens");
        options = options_of(2);
        options.slab_blocks = bad_blocks[i];
        refused(&options, SHEAF_E_LAYOUT, "slab_blocks");
    }
    options = options_of(SHEAF_MAX_GROUPS + 1);
    for (uint32_t i = 0; i <= SHEAF_MAX_GROUPS; i++) layers[i].window = i;
    refused(&options, SHEAF_E_LAYOUT, "window");
    options.n_layers = SHEAF_MAX_GROUPS;
    close_pool(open_pool(&options));
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(1);
    layers[0].n_kv_heads = layers[0].key_dim = UINT32_MAX;
    refused(&options, SHEAF_E_OVERFLOW, "layers[0]");
    options = options_of(SHEAF_MAX_LAYERS);
    for (uint32_t i = 0; i < SHEAF_MAX_LAYERS; i++) {
        layers[i].n_kv_heads = 1u << 20;
        layers[i].key_dim = 1u << 28;
        layers[i].codec_k = SHEAF_CODEC_F32;
    }
    refused(&options, SHEAF_E_OVERFLOW, "64 bits");
    options = options_of(1);
    layers[0].n_kv_heads = 1u << 24;
    layers[0].key_dim = 1u << 24;
    options.slab_blocks = 65536; /* the block fits, the slab does not */
    refused(&options, SHEAF_E_OVERFLOW, "slab");
    options = options_of(1);
    layers[0].n_kv_heads = 1u << 20; /* a block of 2^37 bytes */
    layers[0].value_dim = 0;
    layers[0].key_dim = 1u << 11;
    options.budget_bytes = UINT64_MAX;
    refused(&options, SHEAF_E_OVERFLOW, "address range");
    options.budget_bytes = 1ull << 50; /* beyond what processes can address */
    refused(&options, SHEAF_E_NO_MEMORY, "address range");
}

static void a_budget_below_one_block_of_each_group_is_refused(void **state)
{
    (void)state;
    sheaf_layer two[2];
    sheaf_pool_options options = tiny_options(two, 2, 2 * PAGE - 1);
    refused(&options, SHEAF_E_LAYOUT, "budget_bytes");
    options.budget_bytes = 2 * PAGE;
    sheaf_pool *pool = open_pool(&options);
    uint32_t counts[2] = {1, 1};
    sheaf_block blocks[2];
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    give(pool, 2, blocks);
    close_pool(pool);
}

static void without_a_budget_the_machines_memory_is_the_budget(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 0);
    assert_int_equal(stats_of(pool).budget_bytes, sheaf__device_machine_bytes());
    assert_true(group_of(pool, 0).max_rows <= UINT32_MAX);
    close_pool(pool);
}

static void the_fingerprint_tells_every_field_and_nothing_else(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(2);
    sheaf_pool *pool = open_pool(&options);
    uint64_t first = sheaf_pool_fingerprint(pool);
    close_pool(pool);
    uint32_t *fields[] = {&layers[0].n_kv_heads, &layers[0].key_dim, &layers[1].value_dim,
                          &layers[1].window,     &layers[0].codec_k, &layers[1].codec_v,
                          &options.block_tokens, &options.n_layers};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        options = options_of(2);
        options.block_tokens = 32;
        *fields[i] = *fields[i] == 0 ? 1 : *fields[i] == 2 ? 1 : *fields[i] * 2;
        pool = open_pool(&options);
        assert_true(sheaf_pool_fingerprint(pool) != first);
        close_pool(pool);
    }
    options = options_of(2);
    options.slab_blocks = 4;
    options.budget_bytes *= 2;
    pool = open_pool(&options);
    assert_true(sheaf_pool_fingerprint(pool) == first);
    close_pool(pool);
    options = options_of(2); /* fields swapped between layers are another layout */
    layers[0].key_dim = 64;
    pool = open_pool(&options);
    uint64_t a = sheaf_pool_fingerprint(pool);
    close_pool(pool);
    layers[0].key_dim = 128;
    layers[1].key_dim = 64;
    pool = open_pool(&options);
    assert_true(sheaf_pool_fingerprint(pool) != a);
    close_pool(pool);
}

/* Recorded from the first version: parked sets and wire frames of any machine carry it. */
static void the_fingerprint_is_the_same_everywhere(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(28);
    sheaf_pool *pool = open_pool(&options);
    assert_int_equal(sheaf_pool_fingerprint(pool), 0x3a12f605d8465cdaull);
    close_pool(pool);
}

static void what_asks_for_an_unknown_layer_or_group_is_refused(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(2, 1 << 20);
    sheaf_layer layer;
    sheaf_layer_info layer_info = SHEAF_LAYER_INFO_INIT;
    sheaf_group_info group_info = SHEAF_GROUP_INFO_INIT;
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_layer(pool, 2, &layer), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_layer_info(pool, 2, &layer_info), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_group_info(pool, 2, &group_info), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_group_stats(pool, 2, &stats), SHEAF_E_INVALID);
    assert_null(sheaf_pool_base(pool, 2));
    assert_non_null(sheaf_pool_base(pool, 1));
    layer_info.struct_size = group_info.struct_size = stats.struct_size = 0;
    assert_int_equal(sheaf_pool_layer_info(pool, 0, &layer_info), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_group_info(pool, 0, &group_info), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_stats_read(pool, &stats), SHEAF_E_INVALID);
    close_pool(pool);
}

static void options_of_other_versions_are_understood_or_refused(void **state)
{
    (void)state;
    struct {
        sheaf_pool_options known;
        uint64_t later;
    } longer = {.known = options_of(1)};
    longer.known.struct_size = sizeof longer;
    close_pool(open_pool(&longer.known));
    longer.later = 1;
    refused(&longer.known, SHEAF_E_INVALID, "does not know");
    sheaf_pool_options shorter = options_of(1);
    shorter.struct_size = offsetof(sheaf_pool_options, block_tokens);
    shorter.block_tokens = 3; /* beyond what this caller knows: not looked at */
    shorter.allocator = (const sheaf_allocator *)1;
    sheaf_pool *pool = open_pool(&shorter);
    assert_int_equal(sheaf_pool_block_tokens(pool), 32);
    close_pool(pool);
    shorter.struct_size = 0;
    refused(&shorter, SHEAF_E_INVALID, "struct_size");
}

static void hooks_that_cannot_work_are_refused(void **state)
{
    (void)state;
    sheaf_pool_options options = options_of(1);
    static watched_memory watched;
    sheaf_slab_memory good = watch_memory(&watched), memory = good;
    watched_heap heap;
    sheaf_allocator allocator = watch_heap(&heap);
    options.slab_memory = &memory;
    static const uint64_t bad[] = {0, 3, 32, 4097};
    for (int i = 0; i < 4; i++) {
        memory.granularity = bad[i];
        refused(&options, SHEAF_E_INVALID, "granularity");
    }
    memory = good;
    memory.commit = NULL;
    refused(&options, SHEAF_E_INVALID, "slab_memory");
    memory = good;
    watched.misalign = 64;
    refused(&options, SHEAF_E_INVALID, "granularity");
    assert_int_equal(watched.reserves, watched.releases);
    watched.misalign = 0;
    allocator.free = NULL;
    options.allocator = &allocator;
    refused(&options, SHEAF_E_INVALID, "allocator");
    assert_int_equal(watched.misuse, 0);
    assert_int_equal(sheaf_pool_open(NULL, NULL, NULL), SHEAF_E_INVALID);
}

static void rows_are_whole_pages_of_any_granularity(void **state)
{
    (void)state;
    static watched_memory watched;
    sheaf_slab_memory memory = watch_memory(&watched);
    memory.granularity = watched.granularity = 2ull << 20;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 64ull << 20);
    options.slab_memory = &memory;
    sheaf_pool *pool = open_pool(&options);
    assert_int_equal(group_of(pool, 0).block_bytes, 512ull << 10);
    assert_int_equal(group_of(pool, 0).slab_bytes, 2ull << 20);
    sheaf_block blocks[5];
    take(pool, 0, 5, blocks);
    assert_int_equal(watched.commits, 2);
    give(pool, 5, blocks);
    close_pool(pool);
    assert_int_equal(watched.misuse, 0);
    assert_int_equal(watched.n_reserved + watched.n_committed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_real_model_has_the_sizes_that_its_numbers_have),
        cmocka_unit_test(layers_with_one_window_form_a_group_in_order_of_appearance),
        cmocka_unit_test(tiles_are_aligned_and_padding_counts),
        cmocka_unit_test(slabs_are_whole_pages_whatever_their_blocks),
        cmocka_unit_test(impossible_layouts_are_refused_by_name),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(a_budget_below_one_block_of_each_group_is_refused),
        cmocka_unit_test(without_a_budget_the_machines_memory_is_the_budget),
        cmocka_unit_test(the_fingerprint_tells_every_field_and_nothing_else),
        cmocka_unit_test(the_fingerprint_is_the_same_everywhere),
        cmocka_unit_test(what_asks_for_an_unknown_layer_or_group_is_refused),
        cmocka_unit_test(options_of_other_versions_are_understood_or_refused),
        cmocka_unit_test(hooks_that_cannot_work_are_refused),
        cmocka_unit_test(rows_are_whole_pages_of_any_granularity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
