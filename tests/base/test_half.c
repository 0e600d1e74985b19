/* base/half.h against a formula of its own in double precision, and against the processor's F16C. */
#include "testing.h"

#include <math.h>

#include "base/half.h"
#include "odd_fpenv.h"
#include "sheaf/status.h"

/* f16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. bf16: the upper half of an f32. */
typedef struct format {
    int mantissa_bits;
    int least_exponent; /* of normal numbers */
    double overflow;    /* the least magnitude that narrows to infinity */
    uint32_t infinity;
    float (*widen)(uint16_t h);
    uint16_t (*narrow)(float x);
} format;

static const format f16 = {10, -14, 65520.0, 0x7c00, sheaf__f32_of_f16, sheaf__f16_of_f32};
static const format bf16 = {7,
                            -126,
                            3.3961775292304957e38, /* (2 - 2^-8) * 2^127 */
                            0x7f80,
                            sheaf__f32_of_bf16,
                            sheaf__bf16_of_f32};

static double value_of(const format *f, uint32_t h)
{
    uint32_t magnitude = h & 0x7fffu;
    int exponent = (int)(magnitude >> f->mantissa_bits);
    double mantissa = (double)(magnitude & ((1u << f->mantissa_bits) - 1));
    double whole = (double)(1u << f->mantissa_bits);
    double value = exponent == 0
                       ? ldexp(mantissa / whole, f->least_exponent)
                       : ldexp(1.0 + mantissa / whole, exponent - 1 + f->least_exponent);
    return (h & 0x8000u) ? -value : value;
}

/* The number of the format nearest to x, ties to even: counted in units of the last place. */
static double nearest(const format *f, double x)
{
    if (fabs(x) >= f->overflow) return copysign(HUGE_VAL, x);
    int exponent = x == 0 ? f->least_exponent : ilogb(x);
    if (exponent < f->least_exponent) exponent = f->least_exponent;
    return copysign(
        ldexp(nearbyint(ldexp(x, f->mantissa_bits - exponent)), exponent - f->mantissa_bits),
        x);
}

static int is_nan(const format *f, uint32_t h)
{
    return (h & 0x7fffu) > f->infinity;
}

static void check_widening(const format *f)
{
    for (uint32_t h = 0; h <= 0xffff; h++) {
        float x = f->widen((uint16_t)h);
        if (is_nan(f, h)) {
            assert_true(isnan(x));
            assert_int_equal(signbit(x) != 0, h >> 15);
        } else if ((h & 0x7fffu) == f->infinity) {
            assert_true(isinf(x) && (signbit(x) != 0) == (h >> 15));
        } else {
            assert_true((double)x == value_of(f, h));
            assert_int_equal(signbit(x) != 0, h >> 15);
        }
    }
}

static void f16_widens_exactly(void **state)
{
    (void)state;
    check_widening(&f16);
}

static void bf16_widens_exactly(void **state)
{
    (void)state;
    check_widening(&bf16);
}

static void every_number_narrows_back_to_itself(void **state)
{
    (void)state;
    const format *formats[] = {&f16, &bf16};
    for (int i = 0; i < 2; i++)
        for (uint32_t h = 0; h <= 0xffff; h++)
            if (!is_nan(formats[i], h))
                assert_int_equal(formats[i]->narrow(formats[i]->widen((uint16_t)h)), h);
}

static void check_narrowing_of(const format *f, float x)
{
    double expected = nearest(f, (double)x), got = (double)f->widen(f->narrow(x));
    assert_true(got == expected);
    assert_int_equal(signbit(got) != 0, signbit(x) != 0);
}

/* Halfway between each number and the next, and the floats on both sides of that. */
static void ties_narrow_to_even(void **state)
{
    (void)state;
    const format *formats[] = {&f16, &bf16};
    for (int i = 0; i < 2; i++) {
        for (uint32_t h = 0; h < formats[i]->infinity; h++) {
            double low = value_of(formats[i], h);
            double high = h + 1 == formats[i]->infinity ? ldexp(1.0, i == 0 ? 16 : 128)
                                                        : value_of(formats[i], h + 1);
            float tie = (float)((low + high) / 2);
            assert_true((double)tie == (low + high) / 2);
            assert_int_equal(formats[i]->narrow(tie), h + (h & 1));
            assert_int_equal(formats[i]->narrow(-tie), 0x8000u | (h + (h & 1)));
            assert_int_equal(formats[i]->narrow(nextafterf(tie, 0)), h);
            assert_int_equal(formats[i]->narrow(nextafterf(tie, INFINITY)), h + 1);
        }
    }
}

static void narrowing_takes_the_nearest_number(void **state)
{
    (void)state;
    for (uint64_t u = 0; u <= UINT32_MAX;
         u += 1009) { /* a prime: all exponents, any mantissa */
        float x = sheaf__f32_of_bits((uint32_t)u);
        if (isnan(x)) continue;
        check_narrowing_of(&f16, x);
        check_narrowing_of(&bf16, x);
    }
}

static void overflow_gives_infinity(void **state)
{
    (void)state;
    assert_int_equal(sheaf__f16_of_f32(65519.996f), 0x7bff);
    assert_int_equal(sheaf__f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(sheaf__f16_of_f32(-1e30f), 0xfc00);
    assert_int_equal(sheaf__bf16_of_f32(3.4028235e38f), 0x7f80);
    assert_int_equal(sheaf__bf16_of_f32(-INFINITY), 0xff80);
}

static void nan_stays_a_quiet_nan(void **state)
{
    (void)state;
    for (uint32_t sign = 0; sign <= 1; sign++) {
        for (uint32_t mantissa = 1; mantissa < 0x800000; mantissa += 4099) {
            float x = sheaf__f32_of_bits(sign << 31 | 0x7f800000u | mantissa);
            uint16_t a = sheaf__f16_of_f32(x), b = sheaf__bf16_of_f32(x);
            assert_int_equal(a & 0x7e00, 0x7e00);
            assert_int_equal(b & 0x7fc0, 0x7fc0);
            assert_int_equal(a >> 15, sign);
            assert_int_equal(b >> 15, sign);
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static float hardware_widen(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

__attribute__((target("f16c"))) static uint16_t hardware_narrow(float x)
{
    return (uint16_t)_mm_extract_epi16(
        _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 0);
}
#endif

static void f16_equals_the_processors_conversions(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (sheaf_isa_best() == SHEAF_ISA_SCALAR) TESTING_SKIP("the processor may lack F16C");
    for (uint32_t h = 0; h <= 0xffff; h++)
        assert_int_equal(sheaf__bits_of_f32(sheaf__f32_of_f16((uint16_t)h)),
                         sheaf__bits_of_f32(hardware_widen((uint16_t)h)));
    for (uint64_t u = 0; u <= UINT32_MAX; u += 997) {
        float x = sheaf__f32_of_bits((uint32_t)u);
        assert_int_equal(sheaf__f16_of_f32(x), hardware_narrow(x));
    }
#else
    TESTING_SKIP("F16C is an x86 extension");
#endif
}

static void the_floating_point_environment_does_not_matter(void **state)
{
    (void)state;
    for (uint64_t u = 0; u <= UINT32_MAX; u += 50021) {
        float x = sheaf__f32_of_bits((uint32_t)u);
        uint16_t h = (uint16_t)(u >> 7);
        uint16_t a = sheaf__f16_of_f32(x), b = sheaf__bf16_of_f32(x);
        uint32_t wide = sheaf__bits_of_f32(sheaf__f32_of_f16(h));
        fpenv_set(ODD_FPENV);
        uint16_t odd_a = sheaf__f16_of_f32(x), odd_b = sheaf__bf16_of_f32(x);
        uint32_t odd_wide = sheaf__bits_of_f32(sheaf__f32_of_f16(h));
        fpenv_set(DEFAULT_FPENV);
        assert_int_equal(a, odd_a);
        assert_int_equal(b, odd_b);
        assert_int_equal(wide, odd_wide);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_widens_exactly),
        cmocka_unit_test(bf16_widens_exactly),
        cmocka_unit_test(every_number_narrows_back_to_itself),
        cmocka_unit_test(ties_narrow_to_even),
        cmocka_unit_test(narrowing_takes_the_nearest_number),
        cmocka_unit_test(overflow_gives_infinity),
        cmocka_unit_test(nan_stays_a_quiet_nan),
        cmocka_unit_test(f16_equals_the_processors_conversions),
        cmocka_unit_test(the_floating_point_environment_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
