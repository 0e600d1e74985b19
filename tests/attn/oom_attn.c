/* tests/attn/oom_attn.c - every allocation of a plan fails once, alone and from then on. */
#include "attn/fixture.h"
#include "attn/plan.h"

typedef struct failing {
    uint64_t count;
    uint64_t fail_at;
    int from_then_on;
    uint64_t live;
} failing;

static void *failing_alloc(void *ctx, uint64_t size, uint64_t align)
{
    failing *f = ctx;
    f->count++;
    if (f->fail_at != 0 &&
        (f->count == f->fail_at || (f->from_then_on && f->count > f->fail_at)))
        return NULL;
    void *ptr = NULL;
    if (posix_memalign(&ptr, align < sizeof(void *) ? sizeof(void *) : align, size) != 0)
        return NULL;
    f->live += size;
    return ptr;
}

static void failing_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)align;
    ((failing *)ctx)->live -= size;
    free(ptr);
}

static const float sinks[4] = {1.0f, 2.0f, 3.0f, 4.0f};
static const sheaf_attn_item one_item = {1, 0, 1, 0};
static const sheaf_attn_item bigger[2] = {{50, 10, 60, 0}, {1, 399, 400, 0}};

static sheaf_attn_options options_of(uint32_t path)
{
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = 4;
    o.n_kv_heads = 2;
    o.key_dim = o.value_dim = 32;
    o.sinks = sinks;
    o.path = path;
    return o;
}

/* Two that share a split: the first 18 of 26 blocks. */
static const sheaf_attn_item sharing[2] = {{1, 299, 300, 0}, {1, 409, 410, 0}};

static sheaf_status plan_sharing(sheaf_attn_plan *plan, const sheaf_kv_view *view)
{
    static const uint32_t rows[26] = {0};
    sheaf_kv_view views[2] = {*view, *view};
    for (uint32_t i = 0; i < 2; i++) {
        views[i].rows = rows;
        views[i].n_rows = i == 0 ? 19 : 26;
        views[i].n_tokens = sharing[i].n_tokens;
    }
    return sheaf_attn_plan_views(plan, sharing, views, 2);
}

/* Runs the small step that was planned first; its result must not change. */
static void expect_first_plan_stands(sheaf_attn_plan *plan, const sheaf_kv_view *view,
                                     const float *q, const float *want)
{
    float out[4 * 32];
    assert_int_equal(sheaf_attn_run(plan, view, q, out, NULL), SHEAF_OK);
    assert_memory_equal(out, want, sizeof out);
}

static void a_failed_allocation_leaves_no_plan_or_the_earlier_one(void **state)
{
    (void)state;
    numbers n = {5, 1, 2, 32, 32, SHEAF_CODEC_F32, SHEAF_CODEC_F32};
    layout l = layout_make(&n, (shape){16, 0, 0});
    float *q = queries(&n, 4, 0, 1);
    uint64_t failures = 0;
    for (uint32_t i = 0; i < 6; i++) {
        sheaf_attn_options o = options_of(i / 2);
        float *want = attend(&o, NULL, &one_item, 1, &l.view, q);
        for (uint64_t at = 1;; at++) {
            failing f = {.fail_at = at, .from_then_on = i % 2};
            sheaf_allocator allocator = {&f, failing_alloc, failing_free};
            sheaf_attn_plan *plan = NULL;
            sheaf_status st = sheaf__attn_plan_create(&o, NULL, &allocator, &plan);
            int first_planned = 0, failed = st != SHEAF_OK;
            if (st == SHEAF_OK) {
                st = sheaf_attn_plan_batch(plan, &one_item, 1);
                first_planned = st == SHEAF_OK;
                if (st == SHEAF_OK) st = plan_sharing(plan, &l.view);
                first_planned = first_planned && st != SHEAF_OK;
                if (st == SHEAF_OK) st = sheaf_attn_plan_batch(plan, bigger, 2);
                failed = st != SHEAF_OK;
                if (failed && first_planned) expect_first_plan_stands(plan, &l.view, q, want);
            } else {
                assert_null(plan);
            }
            if (failed) assert_int_equal(st, SHEAF_E_NO_MEMORY);
            if (failed && plan != NULL) { /* and with memory again it works */
                f.fail_at = 0;
                assert_int_equal(sheaf_attn_plan_batch(plan, bigger, 2), SHEAF_OK);
            }
            sheaf_attn_plan_destroy(plan);
            assert_int_equal(f.live, 0);
            if (!failed) break;
            failures++;
        }
        free(want);
    }
    assert_true(failures >= 6 * 15); /* plan, sinks, five lists of two layouts, workspaces */
    free(q);
    layout_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_leaves_no_plan_or_the_earlier_one),
    };
    return cmocka_run_group_tests_name("oom_attn", tests, NULL, NULL);
}
