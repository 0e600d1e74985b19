/* base/dmath.h: within one unit of the true functions, and the same bits in every build. */
#include "testing.h"

#include <float.h>
#include <math.h>

#include "base/dmath.h"
#include "base/hash.h"

/* Error of `got` in units of the last place of the true value, known to more bits than a double
 * has where long double is wider. */
static double error_ulp(double got, long double exact)
{
    double ulp = ldexp(1.0, ilogb((double)exact) - 52);
    return (double)fabsl((long double)got - exact) / ulp;
}

/* Uniform in [from, to). */
static double uniform(uint64_t *state, double from, double to)
{
    return from + (to - from) * ((double)(testing_random(state) >> 11) * 0x1p-53);
}

static void sine_and_cosine_are_within_one_unit(void **state)
{
    (void)state;
    static const double ranges[] = {1.0, 10.0, 1000.0, 0x1p20, 0x1p30};
    uint64_t seed = testing_seed(1);
    for (int r = 0; r < 5; r++)
        for (int i = 0; i < 100000; i++) {
            double x = uniform(&seed, -ranges[r], ranges[r]);
            if (i % 2) x = (double)(float)x; /* what rope asks for */
            double sine, cosine;
            sheaf__dsincos(x, &sine, &cosine);
            assert_true(error_ulp(sine, sinl((long double)x)) < 1.0);
            assert_true(error_ulp(cosine, cosl((long double)x)) < 1.0);
            assert_true(sine == sheaf__dsin(x) && cosine == sheaf__dcos(x));
        }
}

static void multiples_of_a_quarter_turn_keep_their_digits(void **state)
{
    (void)state;
    const double half_pi = 0x1.921fb54442d18p+0;
    for (int64_t n = 1; n < (1 << 29); n = 3 * n + 1) {
        double x = (double)n * half_pi;
        assert_true(error_ulp(sheaf__dsin(x), sinl((long double)x)) < 1.0);
        assert_true(error_ulp(sheaf__dcos(x), cosl((long double)x)) < 1.0);
    }
}

static void exp_and_log_are_within_one_unit(void **state)
{
    (void)state;
    uint64_t seed = testing_seed(2);
    for (int i = 0; i < 300000; i++) {
        double x = uniform(&seed, -700.0, 709.0), near = uniform(&seed, 0.5, 2.0);
        double e = sheaf__dexp(x);
        assert_true(error_ulp(e, expl((long double)x)) < 1.0);
        assert_true(error_ulp(sheaf__dlog(e), logl((long double)e)) < 1.0);
        assert_true(error_ulp(sheaf__dlog(near), logl((long double)near)) < 1.0);
    }
}

static void ends_and_special_values_are_defined(void **state)
{
    (void)state;
    assert_true(sheaf__dsin(0.0) == 0.0 && sheaf__dcos(0.0) == 1.0);
    assert_true(isnan(sheaf__dsin(INFINITY)) && isnan(sheaf__dcos(NAN)));
    assert_true(isnan(sheaf__dsin(0x1.8p30)));
    assert_true(sheaf__dexp(0.0) == 1.0 && isnan(sheaf__dexp(NAN)));
    assert_true(sheaf__dexp(709.79) == INFINITY && isfinite(sheaf__dexp(709.78)));
    assert_true(sheaf__dexp(INFINITY) == INFINITY && sheaf__dexp(-INFINITY) == 0.0);
    assert_true(sheaf__dexp(-745.14) == 0.0 && sheaf__dexp(-745.13) == 0x1p-1074);
    assert_true(sheaf__dlog(1.0) == 0.0 && sheaf__dlog(0.0) == -INFINITY);
    assert_true(isnan(sheaf__dlog(-1.0)) && isnan(sheaf__dlog(NAN)));
    assert_true(sheaf__dlog(INFINITY) == INFINITY);
    assert_true(error_ulp(sheaf__dlog(0x1p-1074), logl(0x1p-1074L)) < 1.0);
}

static void powers_round_to_the_right_float(void **state)
{
    (void)state;
    static const double bases[] = {1e4, 5e5, 1e6, 1e7};
    for (int b = 0; b < 4; b++)
        for (int dim = 16; dim <= 256; dim *= 2)
            for (int i = 0; i < dim; i += 2) {
                float y = (float)i / (float)dim;
                assert_true((float)sheaf__dpow(bases[b], (double)y) ==
                            (float)powl((long double)bases[b], (long double)y));
            }
}

static void the_bits_are_the_same_in_every_build(void **state)
{
    (void)state;
    static double results[4 * 50001];
    for (int i = 0; i <= 50000; i++) {
        double *at = results + (size_t)i * 4;
        sheaf__dsincos((double)(i - 25000) * 41.9437, at, at + 1);
        at[2] = sheaf__dexp((double)(i - 25000) * 0.028);
        at[3] = sheaf__dlog((double)(i + 1) * 0.0173);
    }
    /* computed once with gcc 12 -O3; the same with -O0, with clang 14, and without hardware FMA */
    assert_true(sheaf__hash64(results, sizeof results, 0) == 0x279abaa01feb8b33u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sine_and_cosine_are_within_one_unit),
        cmocka_unit_test(multiples_of_a_quarter_turn_keep_their_digits),
        cmocka_unit_test(exp_and_log_are_within_one_unit),
        cmocka_unit_test(ends_and_special_values_are_defined),
        cmocka_unit_test(powers_round_to_the_right_float),
        cmocka_unit_test(the_bits_are_the_same_in_every_build),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
