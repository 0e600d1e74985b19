/* tests/attn/test_plan.c - what plans accept, refuse and report, and where memory goes. */
#include <malloc.h>
#include <sys/mman.h>

#include "attn/fixture.h"
#include "attn/plan.h"

static sheaf_attn_options small_options(void)
{
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = 4;
    o.n_kv_heads = 2;
    o.key_dim = 32;
    o.value_dim = 16;
    return o;
}

static numbers small_numbers(uint32_t n_tokens)
{
    return (numbers){7, n_tokens, 2, 32, 16, SHEAF_CODEC_BF16, SHEAF_CODEC_F16};
}

static void expect_create(const sheaf_attn_options *o, sheaf_status status)
{
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(o, NULL, &plan), status);
    assert_null(plan);
}

static void impossible_options_are_refused(void **state)
{
    (void)state;
    sheaf_attn_options o = small_options();
    float sinks[4] = {0.0f, 1.0f, NAN, 2.0f};
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(NULL, NULL, &plan), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, NULL), SHEAF_E_INVALID);
#define EXPECT(field, value)                                                                   \
    o = small_options();                                                                       \
    o.field = value;                                                                           \
    expect_create(&o, SHEAF_E_INVALID)
    EXPECT(struct_size, 0);
    EXPECT(n_q_heads, 0);
    EXPECT(n_q_heads, 3);
    EXPECT(n_kv_heads, 0);
    EXPECT(key_dim, 0);
    EXPECT(key_dim, SHEAF_ATTN_MAX_DIM + 1);
    EXPECT(value_dim, 0);
    EXPECT(value_dim, SHEAF_ATTN_MAX_DIM + 1);
    EXPECT(scale, NAN);
    EXPECT(scale, INFINITY);
    EXPECT(softcap, -1.0f);
    EXPECT(softcap, NAN);
    EXPECT(not_causal, 2);
    EXPECT(path, 3);
    EXPECT(isa, 99);
    EXPECT(sinks, sinks);
#undef EXPECT
}

static void an_absent_instruction_set_is_refused(void **state)
{
    (void)state;
    uint32_t refused = 0;
    for (uint32_t isa = SHEAF_ISA_SCALAR; isa <= SHEAF_ISA_NEON; isa++) {
        uint32_t resolved;
        if (sheaf_isa_resolve(isa, &resolved) == SHEAF_OK) continue;
        sheaf_attn_options o = small_options();
        o.isa = isa;
        expect_create(&o, SHEAF_E_UNSUPPORTED);
        refused++;
    }
    assert_true(refused > 0); /* no processor has all of them */
}

static void impossible_batches_are_refused(void **state)
{
    (void)state;
    sheaf_attn_options o = small_options();
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    sheaf_attn_item item = {1, 0, 1, 0};
    assert_int_equal(sheaf_attn_plan_batch(NULL, &item, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_plan_batch(plan, NULL, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_plan_batch(plan, &item, 0), SHEAF_E_INVALID);
    item.n_queries = 0;
    assert_int_equal(sheaf_attn_plan_batch(plan, &item, 1), SHEAF_E_INVALID);
    item = (sheaf_attn_item){2, UINT32_MAX - 1, 5, 0};
    assert_int_equal(sheaf_attn_plan_batch(plan, &item, 1), SHEAF_E_OVERFLOW);
    item = (sheaf_attn_item){UINT32_MAX / 2, 0, 5, 0};
    assert_int_equal(sheaf_attn_plan_batch(plan, &item, 1), SHEAF_E_OVERFLOW);
    sheaf_attn_plan_destroy(plan);
    sheaf_attn_plan_destroy(NULL);
}

static void a_view_that_does_not_fit_its_item_is_refused_and_nothing_is_written(void **state)
{
    (void)state;
    numbers n = small_numbers(100);
    layout l = layout_make(&n, (shape){16, 0, 1});
    sheaf_attn_options o = small_options();
    sheaf_attn_plan *plan = NULL;
    float *q = queries(&n, 4, 90, 10), out[10 * 4 * 16], before[10 * 4 * 16];
    memset(out, 0x55, sizeof out), memset(before, 0x55, sizeof before);
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, NULL), SHEAF_E_PLAN);
    sheaf_attn_item item = {10, 90, 100, 0};
    assert_int_equal(sheaf_attn_plan_batch(plan, &item, 1), SHEAF_OK);
    sheaf_kv_view v;
#define EXPECT(field, value)                                                                   \
    v = l.view;                                                                                \
    v.field = value;                                                                           \
    assert_int_equal(sheaf_attn_run(plan, &v, q, out, NULL), SHEAF_E_PLAN)
    EXPECT(n_kv_heads, 1);
    EXPECT(key_dim, 16);
    EXPECT(value_dim, 32);
    EXPECT(n_tokens, 99);
    EXPECT(n_tokens, 101);
    EXPECT(codec_k, SHEAF_CODEC_COUNT);
    EXPECT(codec_v, 77);
    EXPECT(block_tokens, 0);
    EXPECT(block_tokens, 24);
    EXPECT(block_tokens, 2048);
    EXPECT(n_rows, 6); /* 96 positions */
    EXPECT(first_block, 1);
    EXPECT(base, NULL);
#undef EXPECT
    assert_memory_equal(out, before, sizeof out);
    assert_int_equal(sheaf_attn_run(NULL, &l.view, q, out, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_run(plan, NULL, q, out, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_run(plan, &l.view, NULL, out, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_attn_run(plan, &l.view, q, NULL, NULL), SHEAF_E_INVALID);
    sheaf_attn_report report = {0};
    assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, &report), SHEAF_E_INVALID);
    assert_memory_equal(out, before, sizeof out);
    assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, NULL), SHEAF_OK);
    assert_true(all_finite(out, 640));
    sheaf_attn_plan_destroy(plan);
    layout_free(&l);
    free(q);
}

static void a_query_that_sees_nothing_gets_zeros(void **state)
{
    (void)state;
    static const float sinks[4] = {1.0f, 2.0f, -3.0f, 40.0f};
    numbers n = small_numbers(20);
    layout l = layout_make(&n, (shape){16, 0, 1});
    float *q = queries(&n, 4, 0, 120);
    sheaf_kv_view empty = l.view;
    empty.n_tokens = empty.n_rows = 0, empty.base = NULL, empty.rows = NULL;
    uint32_t isas[4], n_isas = isas_here(isas);
    for (uint32_t i = 0; i < n_isas * 3; i++) {
        sheaf_attn_options o = small_options();
        o.isa = isas[i / 3];
        o.path = i % 3;
        o.sinks = i % 2 ? sinks : NULL;
        sheaf_attn_item none = {120, 0, 0, 0};
        float *out = attend(&o, NULL, &none, 1, &empty, q);
        for (uint32_t j = 0; j < 120 * 64; j++) assert_true(out[j] == 0.0f);
        free(out);
        o.window = 8; /* positions 0 to 26 see some of the 20, the others nothing */
        sheaf_attn_item late = {120, 0, 20, 0};
        out = attend(&o, NULL, &late, 1, &l.view, q);
        for (uint32_t j = 0; j < 120 * 64; j++) {
            assert_true(isfinite(out[j]));
            if (j / 64 >= 27) assert_true(out[j] == 0.0f && !signbit(out[j]));
        }
        for (uint32_t r = 0; r < 27; r++) assert_true(out[r * 64] != 0.0f);
        free(out);
    }
    free(q);
    layout_free(&l);
}

static void numbers_that_no_query_sees_may_be_nan(void **state)
{
    (void)state;
    numbers n = small_numbers(600);
    layout clean = layout_make(&n, (shape){32, 0, 1}),
           dirty = layout_make(&n, (shape){32, 0, 1});
    for (uint32_t block = 0; block < 9; block++) /* positions below 288 */
        memset(dirty.memory + dirty.rows[block] * dirty.view.row_stride_k, 0xff,
               dirty.view.row_stride_k);
    uint32_t isas[4], n_isas = isas_here(isas);
    static const uint32_t counts[] = {1, 3, 30};
    for (uint32_t i = 0; i < n_isas * 3; i++) {
        uint32_t count = counts[i % 3];
        float *q = queries(&n, 4, 590, count);
        sheaf_attn_options o = small_options();
        o.isa = isas[i / 3];
        o.window = 300; /* from position 291 on */
        sheaf_attn_item item = {count, 590, 600, 0};
        for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_REFERENCE; o.path++) {
            float *a = attend(&o, NULL, &item, 1, &clean.view, q);
            float *b = attend(&o, NULL, &item, 1, &dirty.view, q);
            assert_true(all_finite(b, count * 64));
            assert_memory_equal(a, b, count * 64 * sizeof *a);
            free(a), free(b);
        }
        free(q);
    }
    layout_free(&clean);
    layout_free(&dirty);
}

typedef struct counter {
    uint64_t allocs;
    uint64_t live;
} counter;

static void *counted_alloc(void *ctx, uint64_t size, uint64_t align)
{
    counter *c = ctx;
    void *ptr = NULL;
    if (posix_memalign(&ptr, align < sizeof(void *) ? sizeof(void *) : align, size) != 0)
        return NULL;
    c->allocs++;
    c->live += size;
    return ptr;
}

static void counted_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)align;
    ((counter *)ctx)->live -= size;
    free(ptr);
}

static void running_allocates_nothing_and_planning_again_neither(void **state)
{
    (void)state;
    numbers n = small_numbers(700);
    layout l = layout_make(&n, (shape){32, 0, 1});
    float *q = queries(&n, 4, 600, 100), *out = malloc(100 * 64 * sizeof *out);
    sheaf_threads *threads = NULL;
    assert_int_equal(sheaf_threads_create(2, &threads), SHEAF_OK);
    for (uint32_t path = SHEAF_ATTN_FUSED; path <= SHEAF_ATTN_REFERENCE; path++) {
        counter c = {0, 0};
        sheaf_allocator allocator = {&c, counted_alloc, counted_free};
        sheaf_attn_options o = small_options();
        o.path = path;
        sheaf_attn_plan *plan = NULL;
        assert_int_equal(sheaf__attn_plan_create(&o, threads, &allocator, &plan), SHEAF_OK);
        sheaf_attn_item all = {100, 600, 700, 0}, last = {1, 699, 700, 0};
        assert_int_equal(sheaf_attn_plan_batch(plan, &all, 1), SHEAF_OK);
        uint64_t allocs = c.allocs;
        size_t in_use = mallinfo2().uordblks;
        assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, NULL), SHEAF_OK);
        assert_int_equal(sheaf_attn_plan_batch(plan, &last, 1), SHEAF_OK);
        assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, NULL), SHEAF_OK);
        assert_int_equal(sheaf_attn_plan_batch(plan, &all, 1), SHEAF_OK);
        assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, NULL), SHEAF_OK);
        assert_int_equal(c.allocs, allocs);
        assert_int_equal(mallinfo2().uordblks, in_use);
        sheaf_attn_plan_destroy(plan);
        assert_int_equal(c.live, 0);
    }
    sheaf_threads_destroy(threads);
    layout_free(&l);
    free(q), free(out);
}

static void a_growing_context_seldom_allocates(void **state)
{
    (void)state;
    counter c = {0, 0};
    sheaf_allocator allocator = {&c, counted_alloc, counted_free};
    sheaf_attn_options o = small_options();
    o.path = SHEAF_ATTN_GATHER;
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf__attn_plan_create(&o, NULL, &allocator, &plan), SHEAF_OK);
    for (uint32_t n = 1; n <= 20000; n++) {
        sheaf_attn_item item = {1, n - 1, n, 0};
        assert_int_equal(sheaf_attn_plan_batch(plan, &item, 1), SHEAF_OK);
    }
    assert_true(c.allocs < 40);
    sheaf_attn_plan_destroy(plan);
}

static void the_report_counts_splits_and_names_what_ran(void **state)
{
    (void)state;
    numbers n = small_numbers(700);
    layout l = layout_make(&n, (shape){32, 0, 1});
    float *q = queries(&n, 4, 0, 700), *out = malloc(700 * 64 * sizeof *out);
    sheaf_attn_options o = small_options();
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    sheaf_attn_item item = {700, 0, 700, 0};
    assert_int_equal(sheaf_attn_plan_batch(plan, &item, 1), SHEAF_OK);
    sheaf_attn_report r = SHEAF_ATTN_REPORT_INIT;
    assert_int_equal(sheaf_attn_run(plan, &l.view, q, out, &r), SHEAF_OK);
    assert_int_equal(r.path, SHEAF_ATTN_FUSED);
    assert_int_equal(r.isa, sheaf_isa_best());
    assert_int_equal(r.n_threads, 1);
    /* two KV heads: 256 queries see one split, 256 two, 188 three */
    assert_int_equal(r.n_splits, 2 * (256 + 2 * 256 + 3 * 188));
    assert_int_equal(r.n_tasks, 2 * ((1400 + 95) / 96));
    assert_true(r.workspace_bytes > 0);
    sheaf_attn_plan_destroy(plan);
    layout_free(&l);
    free(q), free(out);
}

/* A sequence laid out over `memory`, rows three gigabytes apart and heads five, gives the bits that it
 * gives laid out closely. */
static void expect_far_as_near(unsigned char *memory, const numbers *n)
{
    static const uint32_t rows[3] = {2, 0, 1};
    layout near = layout_make(n, (shape){16, 0, 1});
    sheaf_kv_view far = near.view;
    far.base = memory;
    far.rows = rows;
    far.n_rows = 3;
    far.row_stride_k = far.row_stride_v = 3ull << 30;
    far.k_head_stride = far.v_head_stride = 5ull << 30;
    far.v_offset = far.k_offset + (1ull << 20);
    for (uint32_t p = 0; p < n->n_tokens; p++) write_position(n, &far, p);
    float *q = queries(n, 4, 0, 40);
    sheaf_attn_item item = {40, 0, 40, 0}, last = {1, 39, 40, 0};
    uint32_t isas[4], n_isas = isas_here(isas);
    for (uint32_t i = 0; i < n_isas * 3; i++) {
        sheaf_attn_options o = small_options();
        o.isa = isas[i / 3];
        o.path = i % 3;
        float *a = attend(&o, NULL, &item, 1, &near.view, q);
        float *b = attend(&o, NULL, &item, 1, &far, q);
        assert_memory_equal(a, b, 40 * 64 * sizeof *a);
        float *one = attend(&o, NULL, &last, 1, &far, q + 39 * 4 * 32);
        assert_memory_equal(a + 39 * 64, one, 64 * sizeof *a);
        free(a), free(b), free(one);
    }
    free(q);
    layout_free(&near);
}

/* Only the pages touched exist. */
static void offsets_beyond_4_gib_reach_the_right_bytes(void **state)
{
    (void)state;
    static const uint32_t codecs[][2] = {{SHEAF_CODEC_BF16, SHEAF_CODEC_F16},
                                         {SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4},
                                         {SHEAF_CODEC_TURBO4, SHEAF_CODEC_INT8}};
    const uint64_t bytes = 14ull << 30;
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "# SKIPPED: the system gives no 14 GiB of address space\n");
        skip();
    }
    for (uint32_t i = 0; i < 3; i++) {
        numbers n = small_numbers(40);
        n.codec_k = codecs[i][0], n.codec_v = codecs[i][1];
        expect_far_as_near(memory, &n);
    }
    munmap(memory, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(an_absent_instruction_set_is_refused),
        cmocka_unit_test(impossible_batches_are_refused),
        cmocka_unit_test(a_view_that_does_not_fit_its_item_is_refused_and_nothing_is_written),
        cmocka_unit_test(a_query_that_sees_nothing_gets_zeros),
        cmocka_unit_test(numbers_that_no_query_sees_may_be_nan),
        cmocka_unit_test(running_allocates_nothing_and_planning_again_neither),
        cmocka_unit_test(a_growing_context_seldom_allocates),
        cmocka_unit_test(the_report_counts_splits_and_names_what_ran),
        cmocka_unit_test(offsets_beyond_4_gib_reach_the_right_bytes),
    };
    return cmocka_run_group_tests_name("test_plan", tests, NULL, NULL);
}
