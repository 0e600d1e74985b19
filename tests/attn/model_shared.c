/* tests/attn/model_shared.c - blocks that several items hold are read once, and no bit shows it.
 *
 * The model of a plan made with views is the same plan made without: random batches of sequences
 * that begin alike, in any order, of any length, are attended to both ways.
 */
#include <malloc.h>

#include "attn/fixture.h"
#include "attn/plan.h"

enum { N_ROWS = 220, MAX_ITEMS = 48 };

/* One layer's blocks, all of them written. */
typedef struct store {
    unsigned char *memory;
    sheaf_kv_view view; /* of a sequence; without rows */
} store;

static uint64_t state_of_random;

static uint32_t below(uint32_t n)
{
    state_of_random = mix(state_of_random);
    return (uint32_t)((state_of_random >> 32) * n >> 32);
}

static store store_make(const numbers *n, uint32_t block_tokens, uint32_t n_rows)
{
    store s = {0};
    sheaf_kv_view *v = &s.view;
    v->block_tokens = block_tokens;
    v->n_kv_heads = n->n_kv_heads;
    v->key_dim = n->key_dim;
    v->value_dim = n->value_dim;
    v->codec_k = n->codec_k;
    v->codec_v = n->codec_v;
    v->k_head_stride = segment_bytes(n->codec_k, block_tokens, n->key_dim);
    v->v_head_stride = segment_bytes(n->codec_v, block_tokens, n->value_dim);
    v->v_offset = (v->k_head_stride * n->n_kv_heads + 63) / 64 * 64;
    v->row_stride_k = v->row_stride_v =
        (v->v_offset + v->v_head_stride * n->n_kv_heads + 63) / 64 * 64;
    v->n_rows = n_rows; /* all of them, in order: position p lies in row p / block_tokens */
    v->base = s.memory = malloc(v->row_stride_k * n_rows);
    for (uint32_t p = 0; p < n_rows * block_tokens; p++) write_position(n, v, p);
    return s;
}

/* A sequence of n_tokens over some rows. */
static sheaf_kv_view view_over(const store *s, const uint32_t *rows, uint32_t n_tokens)
{
    sheaf_kv_view v = s->view;
    v.rows = rows;
    v.n_tokens = n_tokens;
    v.n_rows = (n_tokens + v.block_tokens - 1) / v.block_tokens;
    return v;
}

/* A batch of sequences: item i at views[i], rows of its own. */
typedef struct batch {
    uint32_t n;
    sheaf_attn_item items[MAX_ITEMS];
    sheaf_kv_view views[MAX_ITEMS];
    uint32_t rows[MAX_ITEMS][N_ROWS];
    uint64_t n_queries;
} batch;

/* Attends with a plan made with views, or without. Returns what is to be freed. */
static float *attend_batch(const sheaf_attn_options *o, sheaf_threads *threads, const batch *b,
                           const float *q, int shared, sheaf_attn_report *report)
{
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(o, threads, &plan), SHEAF_OK);
    if (shared)
        assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, b->n), SHEAF_OK);
    else
        assert_int_equal(sheaf_attn_plan_batch(plan, b->items, b->n), SHEAF_OK);
    uint64_t count = b->n_queries * o->n_q_heads * o->value_dim;
    float *out = malloc(count * sizeof *out);
    memset(out, 0xff, count * sizeof *out);
    *report = (sheaf_attn_report)SHEAF_ATTN_REPORT_INIT;
    assert_int_equal(sheaf_attn_run(plan, b->views, q, out, report), SHEAF_OK);
    sheaf_attn_plan_destroy(plan);
    return out;
}

/* Both ways give the same bits. Returns how many splits were shared. */
static uint64_t expect_same(const sheaf_attn_options *o, sheaf_threads *threads, const batch *b)
{
    numbers n = {.seed = below(1000), .n_kv_heads = o->n_kv_heads, .key_dim = o->key_dim};
    float *q = queries(&n, o->n_q_heads, 0, (uint32_t)b->n_queries);
    sheaf_attn_report apart, shared;
    float *want = attend_batch(o, NULL, b, q, 0, &apart);
    float *out = attend_batch(o, threads, b, q, 1, &shared);
    uint64_t count = b->n_queries * o->n_q_heads * o->value_dim;
    assert_true(all_finite(want, count));
    assert_memory_equal(out, want, count * sizeof *out);
    assert_int_equal(apart.n_shared_splits, 0);
    assert_int_equal(apart.n_splits, shared.n_splits);
    free(q), free(want), free(out);
    return shared.n_shared_splits;
}

/* --- random batches ------------------------------------------------------------------------- */

/* An item that begins like one before it, up to anywhere, or like none. */
static void grow_item(batch *b, const store *s, uint32_t max_tokens, uint32_t window)
{
    uint32_t i = b->n++, bt = s->view.block_tokens, *rows = b->rows[i];
    uint32_t n_tokens = 1 + below(max_tokens), n_rows = (n_tokens + bt - 1) / bt, same = 0;
    for (uint32_t r = 0; r < N_ROWS; r++) rows[r] = below(s->view.n_rows);
    if (i > 0 && below(4) > 0) {
        uint32_t from = below(i), held = b->views[from].n_rows + b->views[from].first_block;
        same = below(3) ? held : below(held + 1);
        memcpy(rows, b->rows[from], same * sizeof *rows);
        if (below(4) == 0 && n_rows > same) n_tokens -= below(n_tokens - same * bt + 1) / 2;
        if (n_tokens == 0) n_tokens = 1;
    }
    uint32_t n = below(3) ? 1 : 1 + below(20);
    if (below(12) == 0) n = 1 + below(120);
    if (n > n_tokens) n = n_tokens;
    b->items[i] = (sheaf_attn_item){n, n_tokens - n, n_tokens, 0};
    b->views[i] = view_over(s, rows, n_tokens);
    if (window > 0 && below(2) && b->items[i].first_pos >= window) { /* has slid */
        uint32_t gone = (b->items[i].first_pos + 1 - window) / bt;
        b->views[i].first_block = gone;
        b->views[i].rows += gone;
        b->views[i].n_rows -= gone;
    }
    b->n_queries += n;
}

static void exchange(batch *b, uint32_t i, uint32_t j)
{
    sheaf_attn_item item = b->items[i];
    sheaf_kv_view view = b->views[i];
    b->items[i] = b->items[j], b->views[i] = b->views[j];
    b->items[j] = item, b->views[j] = view;
}

static void random_batches_have_the_bits_of_plans_without_views(void **state)
{
    (void)state;
    const char *given = getenv("SHEAF_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10) : 20260601;
    fprintf(stderr, "# seed %llu (SHEAF_SEED)\n", (unsigned long long)seed);
    state_of_random = seed;
    uint32_t isas[4], n_isas = isas_here(isas);
    static const uint32_t tokens[] = {16, 32, 256, 512};
    static const float sinks[10] = {0.5f, -3.0f, 4.0f, 0.0f, -90.0f, 7.0f, 1.0f, 2.0f};
    batch *b = malloc(sizeof *b);
    uint64_t n_shared = 0;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t heads = 1 + below(2), bt = tokens[below(4)];
        numbers n = {round, 0, heads, 16 + below(9), 16 + below(9), below(5), below(5)};
        store s = store_make(&n, bt, bt >= 256 ? 12 : 60);
        sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
        o.n_kv_heads = heads;
        o.n_q_heads = heads * (1 + below(5));
        o.key_dim = n.key_dim, o.value_dim = n.value_dim;
        o.isa = isas[n_isas - 1 - (below(3) == 0 ? below(n_isas) : 0)];
        o.window = below(3) == 0 ? 1 + below(700) : 0;
        o.softcap = below(4) == 0 ? 2.0f : 0.0f;
        o.sinks = below(3) == 0 ? sinks : NULL;
        o.not_causal = below(8) == 0;
        b->n = 0, b->n_queries = 0;
        uint32_t n_items = 2 + below(14);
        while (b->n < n_items) grow_item(b, &s, 1400, o.window);
        for (uint32_t i = b->n - 1; i > 0; i--) exchange(b, i, below(i + 1));
        sheaf_threads *threads = NULL;
        assert_int_equal(sheaf_threads_create(1 + below(4), &threads), SHEAF_OK);
        n_shared += expect_same(&o, threads, b);
        sheaf_threads_destroy(threads);
        free(s.memory);
    }
    assert_true(n_shared > 100);
    free(b);
}

/* --- what is shared ------------------------------------------------------------------------- */

static const numbers plain = {3, 0, 2, 16, 16, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};

static sheaf_attn_options plain_options(void)
{
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = 8;
    o.n_kv_heads = 2;
    o.key_dim = o.value_dim = 16;
    return o;
}

/* One query each, at the end of so many tokens; the first `same` rows as those of item `like`. */
static void add_decode(batch *b, const store *s, uint32_t n_tokens, uint32_t like,
                       uint32_t same)
{
    uint32_t i = b->n++;
    for (uint32_t r = 0; r < N_ROWS; r++)
        b->rows[i][r] = r < same ? b->rows[like][r] : below(s->view.n_rows);
    if (same < N_ROWS) b->rows[i][same] = i; /* surely another */
    b->items[i] = (sheaf_attn_item){1, n_tokens - 1, n_tokens, 0};
    b->views[i] = view_over(s, b->rows[i], n_tokens);
    b->n_queries++;
}

static void a_common_prefix_is_read_once_for_all(void **state)
{
    (void)state;
    store s = store_make(&plain, 32, 64);
    batch *b = calloc(1, sizeof *b);
    sheaf_attn_options o = plain_options();
    for (uint32_t i = 0; i < 8; i++) add_decode(b, &s, 800 + 40 * i, 0, i == 0 ? 0 : 21);
    assert_int_equal(expect_same(&o, NULL, b), 2 * 2); /* 672 positions: two whole splits */
    b->n = 0, b->n_queries = 0; /* 40 items of 4 rows do not fit one unit of 96 */
    for (uint32_t i = 0; i < 40; i++) add_decode(b, &s, 600, 0, i == 0 ? 0 : 16);
    assert_int_equal(expect_same(&o, NULL, b), 2 * 2 * 2);
    o.n_q_heads = 200; /* 100 rows each: nothing to gain */
    assert_int_equal(expect_same(&o, NULL, b), 0);
    free(b), free(s.memory);
}

static void prefixes_within_prefixes_are_found_in_any_order(void **state)
{
    (void)state;
    store s = store_make(&plain, 32, 64);
    batch *b = calloc(1, sizeof *b);
    sheaf_attn_options o = plain_options();
    /* 0 to 5 share one split; 0, 2, 4 three more; 2 and 4 one more; 6 and 7 have another prefix */
    add_decode(b, &s, 1500, 0, 0);
    add_decode(b, &s, 1500, 0, 8);
    add_decode(b, &s, 1500, 0, 32);
    add_decode(b, &s, 300, 0, 8);
    add_decode(b, &s, 1500, 2, 40);
    add_decode(b, &s, 257, 0, 8);
    add_decode(b, &s, 1100, 0, 0);
    add_decode(b, &s, 1100, 6, 32);
    for (uint32_t i = 0; i < 30; i++) {
        assert_int_equal(expect_same(&o, NULL, b), 2 * (1 + 3 + 1 + 4));
        exchange(b, below(8), below(8));
    }
    free(b), free(s.memory);
}

static void other_memory_paths_and_codecs_are_not_shared(void **state)
{
    (void)state;
    store s = store_make(&plain, 32, 64), t = store_make(&plain, 32, 64);
    batch *b = calloc(1, sizeof *b);
    sheaf_attn_options o = plain_options();
    add_decode(b, &s, 600, 0, 0);
    add_decode(b, &s, 600, 0, 16);
    assert_int_equal(expect_same(&o, NULL, b), 4);
    for (o.path = SHEAF_ATTN_GATHER; o.path <= SHEAF_ATTN_REFERENCE; o.path++) {
        float *q = queries(&plain, 8, 0, 2);
        sheaf_attn_report report;
        free(attend_batch(&o, NULL, b, q, 1, &report));
        assert_int_equal(report.n_shared_splits, 0);
        free(q);
    }
    o.path = SHEAF_ATTN_FUSED;
    b->views[1].base = t.memory;
    assert_int_equal(expect_same(&o, NULL, b), 0);
    b->views[1].base = s.memory;
    b->views[1].codec_v = SHEAF_CODEC_F16;
    assert_int_equal(expect_same(&o, NULL, b), 0);
    free(b), free(s.memory), free(t.memory);
}

static void a_view_may_end_before_the_step_writes(void **state)
{
    (void)state;
    store s = store_make(&plain, 32, 64);
    batch *b = calloc(1, sizeof *b);
    add_decode(b, &s, 513, 0, 0);
    add_decode(b, &s, 513, 0, 16);
    sheaf_kv_view before[2];
    for (uint32_t i = 0; i < 2; i++) before[i] = view_over(&s, b->rows[i], 512);
    sheaf_attn_options o = plain_options();
    sheaf_attn_plan *plan = NULL;
    sheaf_attn_report report = SHEAF_ATTN_REPORT_INIT;
    float q[2 * 8 * 16] = {0}, out[2 * 8 * 16];
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_views(plan, b->items, before, 2), SHEAF_OK);
    assert_int_equal(sheaf_attn_run(plan, b->views, q, out, &report), SHEAF_OK);
    assert_int_equal(report.n_shared_splits, 4);
    sheaf_attn_plan_destroy(plan);
    free(b), free(s.memory);
}

/* --- what is refused ------------------------------------------------------------------------ */

static void rows_that_no_longer_agree_are_refused_and_nothing_is_written(void **state)
{
    (void)state;
    store s = store_make(&plain, 32, 64);
    batch *b = calloc(1, sizeof *b);
    add_decode(b, &s, 600, 0, 0);
    add_decode(b, &s, 600, 0, 16);
    sheaf_attn_options o = plain_options();
    sheaf_attn_plan *plan = NULL;
    float q[2 * 8 * 16] = {0}, out[2 * 8 * 16], before[2 * 8 * 16];
    memset(out, 0x55, sizeof out), memset(before, 0x55, sizeof before);
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_views(NULL, b->items, b->views, 2), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_plan_views(plan, NULL, b->views, 2), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_plan_views(plan, b->items, NULL, 2), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, 0), SHEAF_E_INVALID);
    b->views[1].key_dim = 8;
    assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, 2), SHEAF_E_PLAN);
    b->views[1].key_dim = 16;
    assert_int_equal(sheaf_attn_run(plan, b->views, q, out, NULL), SHEAF_E_PLAN);
    assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, 2), SHEAF_OK);
    b->rows[1][15]++;
    assert_int_equal(sheaf_attn_run(plan, b->views, q, out, NULL), SHEAF_E_PLAN);
    b->rows[1][15]--;
    b->views[1].v_offset += 64;
    assert_int_equal(sheaf_attn_run(plan, b->views, q, out, NULL), SHEAF_E_PLAN);
    b->views[1].v_offset -= 64;
    assert_memory_equal(out, before, sizeof out);
    b->rows[1][16]++; /* nobody shares it */
    assert_int_equal(sheaf_attn_run(plan, b->views, q, out, NULL), SHEAF_OK);
    assert_true(all_finite(out, 2 * 8 * 16));
    sheaf_attn_plan_destroy(plan);
    free(b), free(s.memory);
}

static void planning_again_and_running_allocate_nothing(void **state)
{
    (void)state;
    store s = store_make(&plain, 32, 64);
    batch *b = calloc(1, sizeof *b);
    for (uint32_t i = 0; i < 30; i++) add_decode(b, &s, 800 + i, 0, i % 3 ? 16 + i % 3 : 0);
    sheaf_attn_options o = plain_options();
    sheaf_attn_plan *plan = NULL;
    sheaf_threads *threads = NULL;
    float *q = queries(&plain, 8, 0, 30), *out = malloc(30 * 8 * 16 * sizeof *out);
    assert_int_equal(sheaf_threads_create(2, &threads), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_create(&o, threads, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, 30), SHEAF_OK);
    size_t in_use = mallinfo2().uordblks;
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, 30 - i), SHEAF_OK);
        assert_int_equal(sheaf_attn_run(plan, b->views, q, out, NULL), SHEAF_OK);
        assert_int_equal(sheaf_attn_plan_views(plan, b->items, b->views, 30), SHEAF_OK);
        assert_int_equal(sheaf_attn_run(plan, b->views, q, out, NULL), SHEAF_OK);
    }
    assert_int_equal(mallinfo2().uordblks, in_use);
    sheaf_attn_plan_destroy(plan);
    sheaf_threads_destroy(threads);
    free(q), free(out), free(b), free(s.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches_have_the_bits_of_plans_without_views),
        cmocka_unit_test(a_common_prefix_is_read_once_for_all),
        cmocka_unit_test(prefixes_within_prefixes_are_found_in_any_order),
        cmocka_unit_test(other_memory_paths_and_codecs_are_not_shared),
        cmocka_unit_test(a_view_may_end_before_the_step_writes),
        cmocka_unit_test(rows_that_no_longer_agree_are_refused_and_nothing_is_written),
        cmocka_unit_test(planning_again_and_running_allocate_nothing),
    };
    return cmocka_run_group_tests_name("model_shared", tests, NULL, NULL);
}
