/* base/bits.h: powers of two and arithmetic at the edge of 64 bits. */
#include "testing.h"

#include "base/bits.h"

static void powers_of_two_are_told_from_others(void **state)
{
    (void)state;
    assert_false(sheaf__is_pow2(0));
    for (uint32_t i = 0; i < 64; i++) {
        uint64_t x = (uint64_t)1 << i;
        assert_true(sheaf__is_pow2(x));
        assert_int_equal(sheaf__log2(x), i);
        if (i < 2) continue;
        assert_false(sheaf__is_pow2(x - 1));
        assert_false(sheaf__is_pow2(x + 1));
        assert_int_equal(sheaf__log2(x + 1), i);
        assert_int_equal(sheaf__log2(x - 1), i - 1);
    }
}

static void sums_and_products_that_fit_are_exact(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_true(sheaf__add_u64(UINT64_MAX - 1, 1, &out));
    assert_true(out == UINT64_MAX);
    assert_true(sheaf__mul_u64(UINT32_MAX, UINT32_MAX, &out));
    assert_true(out == (uint64_t)UINT32_MAX * UINT32_MAX);
    assert_true(sheaf__mul_u64(0, UINT64_MAX, &out));
    assert_true(out == 0);
    assert_true(sheaf__mul_u64(UINT64_MAX / 3, 3, &out));
    assert_true(out == UINT64_MAX);
}

static void results_that_do_not_fit_leave_the_output_alone(void **state)
{
    (void)state;
    uint64_t out = 7;
    assert_false(sheaf__add_u64(UINT64_MAX, 1, &out));
    assert_false(sheaf__mul_u64((uint64_t)1 << 32, (uint64_t)1 << 32, &out));
    assert_false(sheaf__mul_u64(UINT64_MAX / 3 + 1, 3, &out));
    assert_false(sheaf__round_up_u64(UINT64_MAX - 62, 64, &out));
    assert_true(out == 7);
}

static void rounding_up_reaches_the_next_multiple(void **state)
{
    (void)state;
    for (uint64_t multiple = 1; multiple <= 4096; multiple *= 2) {
        for (uint64_t x = 0; x < 9000; x += 7) {
            uint64_t out = 0;
            assert_true(sheaf__round_up_u64(x, multiple, &out));
            assert_true(out >= x && out - x < multiple && out % multiple == 0);
        }
    }
    uint64_t out = 0;
    assert_true(sheaf__round_up_u64(UINT64_MAX - 63, 64, &out));
    assert_true(out == UINT64_MAX - 63);
}

static void division_rounds_up_without_overflow(void **state)
{
    (void)state;
    assert_true(sheaf__ceil_div_u64(0, 32) == 0);
    assert_true(sheaf__ceil_div_u64(1, 32) == 1);
    assert_true(sheaf__ceil_div_u64(32, 32) == 1);
    assert_true(sheaf__ceil_div_u64(33, 32) == 2);
    assert_true(sheaf__ceil_div_u64(UINT64_MAX, 2) == (uint64_t)1 << 63);
    assert_true(sheaf__min_u64(3, UINT64_MAX) == 3 &&
                sheaf__max_u64(3, UINT64_MAX) == UINT64_MAX);
}

static void floats_and_their_bits_convert_both_ways(void **state)
{
    (void)state;
    assert_int_equal(sheaf__bits_of_f32(1.0f), 0x3f800000u);
    assert_int_equal(sheaf__bits_of_f32(-0.0f), 0x80000000u);
    for (uint64_t i = 0; i <= UINT32_MAX; i += 65521) {
        if ((i & 0x7fffffffu) > 0x7f800000u) continue; /* a NaN may be quieted on its way */
        assert_int_equal(sheaf__bits_of_f32(sheaf__f32_of_bits((uint32_t)i)), (uint32_t)i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powers_of_two_are_told_from_others),
        cmocka_unit_test(sums_and_products_that_fit_are_exact),
        cmocka_unit_test(results_that_do_not_fit_leave_the_output_alone),
        cmocka_unit_test(rounding_up_reaches_the_next_multiple),
        cmocka_unit_test(division_rounds_up_without_overflow),
        cmocka_unit_test(floats_and_their_bits_convert_both_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
