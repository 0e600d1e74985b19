/* tests/attn/test_merge.c - the tree of merges against its definition.
 *
 * Leaves carry numbers, and a stand-in for the kernels' merge folds two of them into a hash that
 * depends on both and on their order; so two results are equal only if the trees were.
 */
#include "attn/fixture.h"
#include "attn/merge.h"

static uint64_t n_merges;

static void fold_hashes(uint32_t n_rows, uint32_t value_dim, uint32_t o_stride,
                        sheaf__attn_part left, sheaf__attn_part right)
{
    (void)n_rows, (void)value_dim, (void)o_stride;
    uint64_t a, b;
    memcpy(&a, left.o, sizeof a);
    memcpy(&b, right.o, sizeof b);
    a = mix(a ^ mix(b + 1));
    memcpy(left.o, &a, sizeof a);
    n_merges++;
}

static uint64_t leaf_hash(uint32_t index)
{
    return mix(index + 12345);
}

/* The node that covers the indices [from, from + 2^level), of which [lo, hi) are there, written
 * down as defined. Returns whether there is any. */
static int define(uint64_t from, uint32_t level, uint32_t lo, uint32_t hi, uint64_t *hash)
{
    if (hi <= from || lo >= from + (1ull << level)) return 0;
    if (level == 0) {
        *hash = leaf_hash((uint32_t)from);
        return 1;
    }
    uint64_t left = 0, right = 0;
    int has_left = define(from, level - 1, lo, hi, &left);
    int has_right = define(from + (1ull << (level - 1)), level - 1, lo, hi, &right);
    *hash = has_left && has_right ? mix(left ^ mix(right + 1)) : has_left ? left : right;
    return has_left || has_right;
}

static uint64_t stack_hash(uint32_t lo, uint32_t hi, float *floats)
{
    static const sheaf__attn_kernels kernels = {.merge = fold_hashes};
    sheaf_attn_plan plan = {.kernels = &kernels, .options.value_dim = 2, .o_stride = 16};
    sheaf__attn_stack stack;
    sheaf__attn_stack_init(&stack, &plan, 1, floats, 24);
    for (uint32_t i = lo; i < hi; i++) {
        uint64_t hash = leaf_hash(i);
        memcpy(stack.leaf.o, &hash, sizeof hash);
        sheaf__attn_stack_push(&stack, i, 0);
    }
    uint64_t hash;
    memcpy(&hash, sheaf__attn_stack_fold(&stack).o, sizeof hash);
    return hash;
}

static void every_range_of_leaves_is_merged_by_the_fixed_tree(void **state)
{
    (void)state;
    float *floats = malloc(25 * sheaf__attn_part_floats(1, 16) * sizeof *floats);
    for (uint32_t lo = 0; lo < 40; lo++) {
        for (uint32_t hi = lo + 1; hi <= 72; hi++) {
            uint64_t want = 0;
            assert_true(define(0, 8, lo, hi, &want));
            n_merges = 0;
            assert_true(stack_hash(lo, hi, floats) == want);
            assert_int_equal(n_merges, hi - lo - 1);
        }
    }
    uint64_t want = 0;
    assert_true(define(0, 24, 1000003, 1000100, &want));
    assert_true(stack_hash(1000003, 1000100, floats) == want);
    free(floats);
}

/* Runs of any aligned power of two, each reduced apart, then merged by their own indices. */
static void reducing_aligned_runs_apart_gives_the_same_tree(void **state)
{
    (void)state;
    static const sheaf__attn_kernels kernels = {.merge = fold_hashes};
    sheaf_attn_plan plan = {.kernels = &kernels, .options.value_dim = 2, .o_stride = 16};
    const uint64_t each = sheaf__attn_part_floats(1, 16);
    float *floats = malloc(25 * each * sizeof *floats),
          *runs = malloc(80 * each * sizeof *runs);
    for (uint32_t shift = 0; shift < 7; shift++) {
        for (uint32_t lo = 0; lo < 40; lo += 3) {
            uint32_t hi = lo + 37, first = lo >> shift, last = (hi - 1) >> shift;
            sheaf__attn_stack stack;
            sheaf__attn_stack_init(&stack, &plan, 1, NULL, 0);
            for (uint32_t run = first; run <= last; run++) {
                uint32_t a = run << shift, b = (run + 1) << shift;
                uint64_t hash = stack_hash(a > lo ? a : lo, b < hi ? b : hi, floats);
                stack.leaf = sheaf__attn_part_at(runs + (run - first) * each, 1);
                memcpy(stack.leaf.o, &hash, sizeof hash);
                sheaf__attn_stack_push(&stack, run, 0);
            }
            uint64_t hash, want = 0;
            memcpy(&hash, sheaf__attn_stack_fold(&stack).o, sizeof hash);
            assert_true(define(0, 8, lo, hi, &want));
            assert_true(hash == want);
        }
    }
    free(floats), free(runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_range_of_leaves_is_merged_by_the_fixed_tree),
        cmocka_unit_test(reducing_aligned_runs_apart_gives_the_same_tree),
    };
    return cmocka_run_group_tests_name("test_merge", tests, NULL, NULL);
}
