/* base/fmath.h: near enough to the true functions, and the same bits in every build. */
#include "testing.h"

#include "base/fmath.h"
#include "base/hash.h"

/* The worst error of f against the true function, in units of the last place of the result. */
static double worst_ulp(float (*f)(float), double (*exact)(double), float from, float to,
                        float step)
{
    double worst = 0;
    for (float x = from; x < to; x += step) {
        double want = exact((double)x), got = (double)f(x);
        double ulp = ldexp(1.0, ilogb(want) - 23);
        worst = fmax(worst, fabs(got - want) / ulp);
    }
    return worst;
}

static double exact_silu(double x)
{
    return x / (1.0 + exp(-x));
}

static void exp_is_within_two_units_of_the_last_place(void **state)
{
    (void)state;
    assert_true(worst_ulp(sheaf__expf, exp, -86.9f, 88.0f, 0.00037f) < 2.0);
    assert_true(worst_ulp(sheaf__expf, exp, -1.0f, 1.0f, 0.0000031f) < 2.0);
}

static void tanh_and_silu_are_within_a_few_units(void **state)
{
    (void)state;
    assert_true(worst_ulp(sheaf__tanhf, tanh, 0.0001f, 10.0f, 0.00013f) < 4.0);
    assert_true(worst_ulp(sheaf__tanhf, tanh, -10.0f, -0.0001f, 0.00013f) < 4.0);
    assert_true(worst_ulp(sheaf__siluf, exact_silu, 0.001f, 60.0f, 0.0011f) < 4.0);
    assert_true(worst_ulp(sheaf__siluf, exact_silu, -60.0f, -0.001f, 0.0011f) < 4.0);
}

static void exp_has_its_defined_ends(void **state)
{
    (void)state;
    assert_int_equal(sheaf__bits_of_f32(sheaf__expf(0.0f)), sheaf__bits_of_f32(1.0f));
    assert_int_equal(sheaf__bits_of_f32(sheaf__expf(-87.00001f)), 0);
    assert_int_equal(sheaf__bits_of_f32(sheaf__expf(-INFINITY)), 0);
    assert_true(sheaf__expf(-87.0f) > 0.0f);
    assert_true(sheaf__expf(1000.0f) == sheaf__expf(88.0f));
    assert_true(isfinite(sheaf__expf(INFINITY)));
    assert_true(isnan(sheaf__expf(NAN)));
}

static void tanh_is_odd_and_bounded(void **state)
{
    (void)state;
    for (float x = 0.0001f; x < 100.0f; x += 0.0173f) {
        float y = sheaf__tanhf(x);
        assert_int_equal(sheaf__bits_of_f32(sheaf__tanhf(-x)),
                         sheaf__bits_of_f32(y) ^ 0x80000000u);
        assert_true(y <= 1.0f);
    }
    assert_true(sheaf__tanhf(50.0f) == 1.0f);
}

static void a_fused_product_is_rounded_once(void **state)
{
    (void)state;
    /* (1 + 2^-12)^2 + 2^-80 lies just above the middle of two floats; rounded to double first,
     * it would lie in the middle and then go down, to the even one. */
    volatile float a = 1.0f + 0x1p-12f, c = 0x1p-80f;
    assert_true(fmaf(a, a, c) == 1.0f + 0x1p-11f + 0x1p-23f);
    assert_true(fmaf(a, a, -c) == 1.0f + 0x1p-11f);
}

static uint64_t hash_of(float (*f)(float))
{
    static float results[200001];
    for (int i = 0; i <= 200000; i++) results[i] = f((float)(i - 100000) * 0.001f);
    return sheaf__hash64(results, sizeof results, 0);
}

/* Computed once with gcc 12 -O3; the same with -O0, with clang 14, and without hardware FMA. */
static void the_bits_are_the_same_in_every_build(void **state)
{
    (void)state;
    assert_true(hash_of(sheaf__expf) == 0xc25177d26b1517e7u);
    assert_true(hash_of(sheaf__tanhf) == 0xa5e20048ee96a9eeu);
    assert_true(hash_of(sheaf__siluf) == 0x145af7143d625841u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_units_of_the_last_place),
        cmocka_unit_test(tanh_and_silu_are_within_a_few_units),
        cmocka_unit_test(exp_has_its_defined_ends),
        cmocka_unit_test(tanh_is_odd_and_bounded),
        cmocka_unit_test(a_fused_product_is_rounded_once),
        cmocka_unit_test(the_bits_are_the_same_in_every_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
