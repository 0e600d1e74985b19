/* tests/attn/test_cuda_step.c - a step for the GPU, checked and made into one table: needs no GPU.
 *
 * Random steps of ragged items, windows, shared rows and several queries are made; then every query
 * row lies in one tile, every position that a query sees is found at its row through the table, and
 * nothing lies outside of what was counted.
 */
#include "testing.h"

#include <time.h>

#include "attn/cuda/step.h"

#define ITEMS  24
#define BLOCKS 128

typedef struct world {
    sheaf_attn_options options;
    sheaf__cuda_rules rules;
    sheaf_attn_item items[ITEMS];
    sheaf_kv_view views[ITEMS];
    uint32_t rows[ITEMS][BLOCKS];
    uint32_t n;
    sheaf__cuda_step step;
    sheaf__memory memory;
    unsigned char *table;
} world;

static uint32_t below(uint64_t *random, uint32_t n)
{
    return (uint32_t)(testing_random(random) % n);
}

static void begin_world(world *w)
{
    memset(w, 0, sizeof *w);
    w->options = (sheaf_attn_options)SHEAF_ATTN_OPTIONS_INIT;
    w->options.n_q_heads = 32, w->options.n_kv_heads = 8;
    w->options.key_dim = w->options.value_dim = 128;
    w->rules = (sheaf__cuda_rules){
        .options = &w->options, .n_processors = 132, .decodes = 1, .prefill_rows = 128};
    sheaf__memory_init(&w->memory, NULL);
}

/* Item i: n_queries, the last of n_tokens, whose blocks before first_block are not held. */
static void add_item(world *w, uint32_t n_queries, uint32_t n_tokens, uint32_t first_block,
                     uint32_t block_tokens)
{
    uint32_t i = w->n++, end = (n_tokens + block_tokens - 1) / block_tokens;
    w->items[i] = (sheaf_attn_item){n_queries, n_tokens - n_queries, n_tokens, 0};
    for (uint32_t b = 0; b < BLOCKS; b++) w->rows[i][b] = 1000 * (i + 1) + b;
    w->views[i] = (sheaf_kv_view){
        .base = (const unsigned char *)w,
        .rows = &w->rows[i][first_block],
        .n_rows = end - first_block,
        .first_block = first_block,
        .block_tokens = block_tokens,
        .n_tokens = n_tokens,
        .n_kv_heads = w->options.n_kv_heads,
        .key_dim = w->options.key_dim,
        .value_dim = w->options.value_dim,
        .codec_k = SHEAF_CODEC_BF16,
        .codec_v = SHEAF_CODEC_BF16,
    };
}

static sheaf_status set_step(world *w)
{
    return sheaf__cuda_step_set(&w->step, &w->memory, &w->rules, w->items, w->views, w->n);
}

static void begin_table(world *w, uint64_t bytes)
{
    free(w->table);
    w->table = aligned_alloc(256, bytes);
    assert_non_null(w->table);
    memset(w->table, 0xee, bytes);
}

/* The next step may write into a table of so many bytes before it is known whether they do. */
static void look_ahead(world *w, uint64_t bytes)
{
    begin_table(w, bytes);
    w->step.ahead = w->table, w->step.ahead_bytes = bytes;
}

/* Writes the table, whose bytes the sanitizer watches to the last one: where rows may be already, or
 * anew. */
static void write_table(world *w)
{
    if (w->step.ahead == NULL || w->step.ahead_bytes < w->step.places.bytes) {
        w->step.ahead = NULL;
        unsigned char *before = w->table;
        w->table = NULL; /* another one lies elsewhere */
        begin_table(w, w->step.places.bytes);
        free(before);
    }
    sheaf__cuda_step_write(&w->step, w->views, w->table);
    for (uint64_t i = 0; i < w->step.places.begin && w->step.rows_in == NULL; i++)
        assert_int_equal(w->table[i], 0xee);
    w->step.ahead = NULL;
}

static void end_world(world *w)
{
    free(w->table);
    sheaf__cuda_step_free(&w->step, &w->memory);
    assert_int_equal(w->memory.live_bytes, 0);
}

/* ---- what is found in a table ---------------------------------------------------------------- */

static void items_lie_one_after_another(const world *w)
{
    const sheaf__cuda_item *items = (const void *)(w->table + w->step.places.items);
    const uint32_t *rows = (const void *)w->table;
    uint32_t at = (uint32_t)(w->step.places.begin / sizeof *rows), query = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        const sheaf_kv_view *v = &w->views[i];
        assert_int_equal(items[i].rows_at, at);
        assert_int_equal(items[i].query_at, query);
        assert_int_equal(items[i].n_queries, w->items[i].n_queries);
        for (uint32_t r = 0; r < v->n_rows; r++)
            assert_int_equal(rows[at + r], v->rows != NULL ? v->rows[r] : r);
        uint32_t first = w->items[i].first_pos / v->block_tokens - v->first_block;
        if (first < v->n_rows) assert_int_equal(items[i].first_row, rows[at + first]);
        at += v->n_rows, query += w->items[i].n_queries;
    }
    assert_int_equal(query, w->step.n_queries);
    assert_int_equal(at, w->step.row_room);
}

/* Tables lie in order, each with room for what was counted, on boundaries that kernels ask for. */
static void tables_do_not_overlap(const world *w)
{
    const sheaf__cuda_places *at = &w->step.places;
    const sheaf__cuda_layout *l = &w->step.layout;
    const uint64_t places[] = {at->items,  at->prefill_items, at->tile_item, at->units,
                               at->merges, at->prefix_units,  at->members,   at->bytes};
    const uint64_t bytes[] = {
        w->n * sizeof(sheaf__cuda_item),
        w->step.n_prefill * sizeof(sheaf__cuda_prefill_item),
        w->step.n_tiles * sizeof(uint32_t),
        l->n_units * sizeof(sheaf__cuda_unit),
        l->n_merges * sizeof(sheaf__cuda_merge),
        l->n_prefix_units * sizeof(sheaf__cuda_prefix_unit),
        l->n_members * sizeof(uint32_t),
    };
    assert_true(at->begin <= at->items && at->items == w->step.row_room * sizeof(uint32_t));
    for (int i = 0; i < 7; i++) {
        assert_true(places[i] + bytes[i] <= places[i + 1]);
        assert_int_equal(places[i] % 256, 0);
    }
}

/* Each query row of each KV head lies in one tile, in order. */
static void tiles_cover_queries(const world *w)
{
    const sheaf__cuda_prefill_item *items =
        (const void *)(w->table + w->step.places.prefill_items);
    const uint32_t *tile_item = (const void *)(w->table + w->step.places.tile_item);
    uint64_t group = w->options.n_q_heads / w->options.n_kv_heads, query = 0;
    uint32_t n = 0, tile = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t queries = w->items[i].n_queries;
        if (queries != 1) {
            const sheaf__cuda_prefill_item *item = &items[n];
            uint64_t rows = queries * group, each = w->rules.prefill_rows;
            assert_true(item->first_query == query && item->n_queries == queries);
            assert_int_equal(item->rows_at, w->step.items[i].rows_at);
            assert_int_equal(item->first_tile, tile);
            assert_true(item->n_tiles * each >= rows && (item->n_tiles - 1) * each < rows);
            for (uint32_t t = 0; t < item->n_tiles; t++, tile++)
                assert_int_equal(tile_item[tile], n);
            n++;
        }
        query += queries;
    }
    assert_int_equal(n, w->step.n_prefill);
    assert_int_equal(tile, w->step.n_tiles);
}

static uint32_t item_of_query(const world *w, uint32_t query)
{
    uint32_t i = 0;
    while (w->step.items[i].query_at != query) i++;
    return i;
}

/* Marks positions [begin, end), which must be seen by item i, and looks their rows up as kernels do:
 * rows[(uint32_t)(rows_at + block)]. */
static void mark(const world *w, uint32_t i, uint32_t rows_at, uint32_t begin, uint32_t end,
                 unsigned char *seen)
{
    const sheaf_kv_view *v = &w->views[i];
    const uint32_t *rows = (const void *)w->table;
    for (uint32_t p = begin; p < end; p++) {
        uint32_t block = p / v->block_tokens, at = block - v->first_block;
        assert_true(at < v->n_rows);
        assert_int_equal(rows[(uint32_t)(rows_at + block)], v->rows[at]);
        assert_int_equal(seen[p]++, 0);
    }
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Each position that an item's only query sees is computed once, by a unit or by its set's. */
static void units_cover_positions(const world *w)
{
    const sheaf__cuda_layout *l = &w->step.layout;
    const unsigned char *t = w->table;
    const sheaf__cuda_unit *units = (const void *)(t + w->step.places.units);
    const sheaf__cuda_prefix_unit *prefix = (const void *)(t + w->step.places.prefix_units);
    const uint32_t *members = (const void *)(t + w->step.places.members);
    static unsigned char seen[ITEMS][BLOCKS * 64];
    memset(seen, 0, sizeof seen);
    for (uint32_t n = 0; n < l->n_units; n++) {
        const sheaf__cuda_unit *u = &units[n];
        mark(w, item_of_query(w, u->query), u->rows_at,
             max_u32(u->lo, u->first_leaf * SHEAF__CUDA_LEAF),
             min_u32(u->hi, u->end_leaf * SHEAF__CUDA_LEAF), seen[item_of_query(w, u->query)]);
        if (u->merge != SHEAF__CUDA_NO_MERGE) assert_true(u->merge < l->n_merges);
    }
    for (uint32_t n = 0; n < l->n_prefix_units; n++) {
        const sheaf__cuda_prefix_unit *u = &prefix[n];
        assert_true(u->members_at + u->n_members <= l->n_members);
        for (uint32_t m = 0; m < u->n_members && u->first_row == 0; m++) {
            uint32_t i = item_of_query(w, members[u->members_at + m]);
            mark(w, i, u->rows_at, u->first_span * SHEAF__CUDA_SPAN,
                 u->end_span * SHEAF__CUDA_SPAN, seen[i]);
        }
    }
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t lo, hi;
        sheaf__cuda_item_sees(&w->step.shape, &w->step.items[i], &lo, &hi);
        for (uint32_t p = 0; p < sizeof seen[i]; p++)
            assert_int_equal(seen[i][p], w->items[i].n_queries == 1 && p >= lo && p < hi);
    }
}

/* ---- random steps ---------------------------------------------------------------------------- */

static void random_world(uint64_t *random, world *w, uint32_t block_tokens)
{
    static const uint32_t dims[] = {64, 128, 256};
    w->options.n_kv_heads = 1 + below(random, 8);
    w->options.n_q_heads = w->options.n_kv_heads * (1 + below(random, 16));
    w->options.key_dim = w->options.value_dim = dims[below(random, 3)];
    w->options.window = below(random, 3) == 0 ? 1 + below(random, 3000) : 0;
    w->options.not_causal = below(random, 4) == 0;
    w->rules.n_processors = 1 + below(random, 132);
    w->rules.prefill_rows = w->options.key_dim == 256 ? 64 : 128;
    w->rules.prefix_min = below(random, 2) * (1 + below(random, 1500));
    w->n = 0;
    uint32_t n = 1 + below(random, ITEMS), same = below(random, BLOCKS),
             kind = below(random, 3);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t most = BLOCKS * block_tokens;
        uint32_t tokens = 1 + below(random, below(random, 4) == 0 ? 100 : most);
        uint32_t queries = kind == 0 || (kind == 1 && below(random, 3) != 0)
                               ? 1
                               : 1 + below(random, min_u32(tokens, 400));
        uint32_t first = tokens - queries, window = w->options.window, gone = 0;
        if (window != 0 && first >= window)
            gone = below(random, (first + 1 - window) / block_tokens + 1);
        add_item(w, queries, tokens, gone, block_tokens);
        for (uint32_t b = 0; b < same; b++) w->rows[i][b] = b;
    }
}

static void everything_lies_where_kernels_look(void **state)
{
    (void)state;
    uint64_t random = testing_seed((uint64_t)time(NULL));
    static world w;
    uint32_t paths[3] = {0}, ahead = 0;
    begin_world(&w);
    for (int round = 0; round < 150; round++) {
        random_world(&random, &w, 16u << below(&random, 3));
        sheaf__cuda_room room;
        assert_int_equal(sheaf__cuda_step_room(&w.rules, w.n, BLOCKS * 64ull, &room), SHEAF_OK);
        w.step.row_room = below(&random, 2) * room.n_rows;
        if (below(&random, 2) == 0)
            look_ahead(&w, 256 * (1 + testing_random(&random) % (room.table_bytes / 256)));
        assert_int_equal(set_step(&w), SHEAF_OK);
        ahead += w.step.rows_in != NULL;
        write_table(&w);
        tables_do_not_overlap(&w);
        items_lie_one_after_another(&w);
        tiles_cover_queries(&w);
        if (w.step.n_prefill != w.n) units_cover_positions(&w);
        assert_true(w.step.row_room <= room.n_rows);
        assert_true(w.step.places.bytes <= room.table_bytes);
        assert_true(w.step.n_prefill == w.n ||
                    sheaf__cuda_step_counters(&w.step) <= room.n_counters);
        assert_true(w.step.layout.n_parts <= room.n_parts);
        paths[w.step.path]++;
    }
    assert_true(paths[0] != 0 && paths[1] != 0 && paths[2] != 0);
    assert_in_range(ahead, 1, 149);
    end_world(&w);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void a_prompt_is_cut_into_tiles(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    add_item(&w, 100, 164, 0, 32);
    add_item(&w, 1, 4096, 0, 32);
    add_item(&w, 32, 32, 0, 32); /* 128 query rows: one whole tile */
    add_item(&w, 33, 33, 0, 32);
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.n_prefill, 3);
    assert_int_equal(w.step.n_tiles, 4 + 1 + 2);
    assert_int_equal(w.step.path, SHEAF_CUDA_PREFILL);
    write_table(&w);
    tiles_cover_queries(&w);
    units_cover_positions(&w);
    end_world(&w);
}

static void an_item_that_sees_nothing_is_one_empty_unit(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    add_item(&w, 1, 64, 0, 32);
    w.items[0].n_tokens = w.views[0].n_tokens = w.views[0].n_rows = 0;
    w.views[0].rows = NULL, w.views[0].base = NULL;
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.layout.n_units, 1);
    assert_int_equal(w.step.layout.n_merges, 0);
    write_table(&w);
    const sheaf__cuda_unit *u = (const void *)(w.table + w.step.places.units);
    assert_int_equal(u->first_leaf, u->end_leaf);
    assert_int_equal(u->merge, SHEAF__CUDA_NO_MERGE);
    end_world(&w);
}

static void rows_of_a_contiguous_buffer_count_up(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    add_item(&w, 1, 1000, 0, 32);
    add_item(&w, 5, 900, 0, 32);
    w.views[0].rows = w.views[1].rows = NULL;
    assert_int_equal(set_step(&w), SHEAF_OK);
    write_table(&w);
    items_lie_one_after_another(&w);
    end_world(&w);
}

static void fewer_rows_move_nothing(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    for (uint32_t i = 0; i < 4; i++) add_item(&w, 1, 4000, 0, 32);
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.row_room, 512); /* of 500, in 256 bytes each */
    assert_int_equal(w.step.places.begin, 12 * sizeof(uint32_t));
    const sheaf__cuda_places before = w.step.places;
    for (uint32_t i = 0; i < 4; i++) w.items[i].n_tokens = w.views[i].n_tokens = 3900;
    for (uint32_t i = 0; i < 4; i++) w.items[i].first_pos = 3899, w.views[i].n_rows = 122;
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.places.begin, 24 * sizeof(uint32_t));
    assert_int_equal(w.step.places.units, before.units);
    assert_int_equal(w.step.places.bytes, before.bytes);
    write_table(&w);
    items_lie_one_after_another(&w);
    w.views[3].n_rows = 4000;
    w.views[3].key_dim = 64;
    assert_int_equal(set_step(&w), SHEAF_E_PLAN);
    assert_int_equal(w.step.row_room, 512); /* what is refused takes no room */
    end_world(&w);
}

static void a_prefix_is_read_once_for_all_that_share_it(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    for (uint32_t i = 0; i < 6; i++) {
        add_item(&w, 1, 4000, 0, 32);
        for (uint32_t b = 0; i != 5 && b < 100; b++) w.rows[i][b] = b; /* 3,200 positions */
    }
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.path, SHEAF_CUDA_PREFIX);
    assert_int_equal(w.step.layout.n_sets, 1);
    assert_int_equal(w.step.layout.n_members, 5);
    assert_int_equal(w.step.layout.prefix_tokens, 4 * 3072);
    write_table(&w);
    units_cover_positions(&w);
    w.views[0].rows += 1; /* the leader's rows are others now */
    w.views[0].n_rows -= 1;
    w.items[0].n_tokens = w.views[0].n_tokens = 3968;
    w.items[0].first_pos = 3967;
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.layout.n_members, 4);
    w.rules.prefix_min = 4000; /* more than they share */
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.path, SHEAF_CUDA_DECODE);
    assert_int_equal(w.step.layout.n_sets, 0);
    end_world(&w);
}

static void views_that_no_kernel_reads_are_placed_but_do_not_run(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    add_item(&w, 1, 100, 0, 32);
    add_item(&w, 3, 100, 0, 32);
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.can_run, 1);
    w.rules.decodes = 0;
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.can_run, 0);
    assert_int_equal(w.step.layout.n_units, 0);
    w.rules.decodes = 1, w.rules.prefill_rows = 0;
    assert_int_equal(set_step(&w), SHEAF_OK);
    assert_int_equal(w.step.can_run, 0);
    assert_int_equal(w.step.n_tiles, 0);
    write_table(&w);
    items_lie_one_after_another(&w);
    end_world(&w);
}

/* Sets the step, which is refused, and nothing is planned then. */
static void refused(world *w, sheaf_status status)
{
    assert_int_equal(set_step(w), status);
    assert_int_equal(w->step.n_items, 0);
    assert_int_equal(w->step.can_run, 0);
}

static void what_cannot_be_computed_is_refused(void **state)
{
    (void)state;
    static world w, good;
    begin_world(&good);
    add_item(&good, 1, 1000, 0, 32);
    add_item(&good, 4, 500, 0, 32);
#define WRONG(change, status)                                                                  \
    do {                                                                                       \
        w = good;                                                                              \
        w.rules.options = &w.options;                                                          \
        assert_int_equal(set_step(&w), SHEAF_OK);                                              \
        change;                                                                                \
        refused(&w, status);                                                                   \
        end_world(&w);                                                                         \
    } while (0)
    WRONG(w.n = 0, SHEAF_E_INVALID);
    WRONG(w.items[1].n_queries = 0, SHEAF_E_INVALID);
    WRONG(w.items[0].first_pos = UINT32_MAX, SHEAF_E_OVERFLOW);
    WRONG(w.n = UINT32_MAX, SHEAF_E_OVERFLOW);
    WRONG(w.items[1].n_tokens = w.views[1].n_tokens = UINT32_MAX, SHEAF_E_OVERFLOW);
    WRONG(w.views[0].block_tokens = 0, SHEAF_E_PLAN);
    WRONG(w.views[0].block_tokens = 48, SHEAF_E_PLAN);
    WRONG(w.views[0].block_tokens = 2048, SHEAF_E_PLAN);
    WRONG(w.views[1].block_tokens = 64, SHEAF_E_PLAN);
    WRONG(w.views[1].n_kv_heads = 4, SHEAF_E_PLAN);
    WRONG(w.views[1].key_dim = 64, SHEAF_E_PLAN);
    WRONG(w.views[1].value_dim = 64, SHEAF_E_PLAN);
    WRONG(w.views[1].n_tokens = 499, SHEAF_E_PLAN);
    WRONG(w.views[1].codec_k = SHEAF_CODEC_INT8, SHEAF_E_PLAN);
    WRONG(w.views[1].codec_v = SHEAF_CODEC_INT8, SHEAF_E_PLAN);
    WRONG(w.views[1].v_offset = 16, SHEAF_E_PLAN);
    WRONG(w.views[1].row_stride_v = 16, SHEAF_E_PLAN);
    WRONG(w.views[1].k_head_stride = 16, SHEAF_E_PLAN);
    WRONG(w.views[1].base = NULL, SHEAF_E_PLAN);
    WRONG(w.views[0].n_rows--, SHEAF_E_PLAN);
    WRONG(w.items[0].first_pos = 10; w.views[0].n_rows = 1, SHEAF_E_PLAN); /* it sees but one */
    WRONG(w.views[0].first_block = 1, SHEAF_E_PLAN);
    WRONG(w.options.window = 100; w.views[0].first_block = 29, SHEAF_E_PLAN);
    WRONG(w.options.window = 100; w.options.not_causal = 1;
          w.views[1].n_rows = 5, SHEAF_E_PLAN);
#undef WRONG
    end_world(&good);
}

/* Batches whose tables or launches would not fit their counters; only what is counted is there. */
static void what_passes_the_counters_is_refused(void **state)
{
    (void)state;
    static world w;
    begin_world(&w);
    add_item(&w, 1, 1000, 0, 32);
    add_item(&w, 1, 1000, 0, 32);
    for (uint32_t i = 0; i < 2; i++) {
        w.items[i] = (sheaf_attn_item){0x40000000, 0, 0, 0}; /* see nothing */
        w.views[i].n_tokens = 0, w.views[i].rows = NULL, w.views[i].n_rows = 0;
    }
    refused(&w, SHEAF_E_OVERFLOW); /* 2^31 queries */
    w.items[0].n_queries = w.items[1].n_queries = 0x2000000;
    refused(&w, SHEAF_E_OVERFLOW); /* 2^31 rows of them and 32 heads */
    w.n = 1, w.options.n_q_heads = 65536, w.options.n_kv_heads = 1, w.views[0].n_kv_heads = 1;
    refused(&w, SHEAF_E_OVERFLOW); /* 2^41 */
    w.n = 2, w.options.n_q_heads = w.options.n_kv_heads = 8, w.views[0].n_kv_heads = 8;
    for (uint32_t i = 0; i < 2; i++) w.items[i].n_queries = 1, w.views[i].n_rows = 0x80000000u;
    refused(&w, SHEAF_E_OVERFLOW); /* 2^32 rows */
    end_world(&w);
    begin_world(&w);
    w.options.n_q_heads = w.options.n_kv_heads = 65536;
    add_item(&w, 1, BLOCKS * 64, 0, 64);
    w.views[0].n_tokens = w.items[0].n_tokens = 1u << 28, w.items[0].first_pos = (1u << 28) - 1;
    w.views[0].n_rows = 1u << 22, w.views[0].rows = NULL;
    refused(&w, SHEAF_E_OVERFLOW); /* 2^18 units of 4 chunks, 2^16 heads each */
    sheaf__cuda_room room = {.table_bytes = 1, .n_parts = 2};
    assert_int_equal(sheaf__cuda_step_room(&w.rules, UINT32_MAX, 1, &room), SHEAF_E_OVERFLOW);
    assert_int_equal(sheaf__cuda_step_room(&w.rules, 1u << 30, UINT32_MAX, &room),
                     SHEAF_E_OVERFLOW);
    assert_true(room.table_bytes == 1 && room.n_parts == 2);
    end_world(&w);
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct failing {
    uint32_t left; /* allocations that succeed */
} failing;

static void *failing_alloc(void *ctx, uint64_t size, uint64_t align)
{
    failing *f = ctx;
    (void)align;
    return f->left != 0 ? (f->left--, malloc(size)) : NULL;
}

static void failing_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

static void no_memory_leaves_a_step_of_nothing(void **state)
{
    (void)state;
    static world w;
    uint32_t n = 0;
    for (int done = 0; !done; n++) {
        failing f = {n};
        begin_world(&w);
        sheaf__memory_init(&w.memory, &(sheaf_allocator){&f, failing_alloc, failing_free});
        for (uint32_t i = 0; i < 8; i++) add_item(&w, i == 0 ? 9 : 1, 4000, 0, 32);
        for (uint32_t i = 0; i < 8; i++) memcpy(w.rows[i], w.rows[0], sizeof w.rows[0]);
        sheaf_status status = set_step(&w);
        done = status == SHEAF_OK;
        if (!done) assert_int_equal(status, SHEAF_E_NO_MEMORY);
        if (!done) assert_int_equal(w.step.n_items, 0);
        f.left = 100;
        assert_int_equal(set_step(&w), SHEAF_OK);
        f.left = 0; /* the same again takes none */
        assert_int_equal(set_step(&w), SHEAF_OK);
        assert_int_equal(w.step.path, SHEAF_CUDA_PREFILL);
        assert_int_equal(w.step.layout.n_sets, 1);
        write_table(&w);
        units_cover_positions(&w);
        end_world(&w);
    }
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_lies_where_kernels_look),
        cmocka_unit_test(a_prompt_is_cut_into_tiles),
        cmocka_unit_test(an_item_that_sees_nothing_is_one_empty_unit),
        cmocka_unit_test(rows_of_a_contiguous_buffer_count_up),
        cmocka_unit_test(fewer_rows_move_nothing),
        cmocka_unit_test(a_prefix_is_read_once_for_all_that_share_it),
        cmocka_unit_test(views_that_no_kernel_reads_are_placed_but_do_not_run),
        cmocka_unit_test(what_cannot_be_computed_is_refused),
        cmocka_unit_test(what_passes_the_counters_is_refused),
        cmocka_unit_test(no_memory_leaves_a_step_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
