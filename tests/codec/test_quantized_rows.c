/* tests/codec/test_quantized_rows.c - int8 and turbo4: the document's example, what they lose, rows that
 * are special, and the tables they are made from. */
#include "quantized_rows.h"

#include "codec/codec.h"
#include "codec/quantized.h"
#include "odd_fpenv.h"

#define MAX_DIM SHEAF_CODEC_MAX_DIM

static void code(uint32_t codec, uint32_t dim, const float *x, float *decoded)
{
    unsigned char segment[MAX_DIM + 4];
    assert_int_equal(sheaf_codec_encode(codec, segment, 1, dim, 0, 1, SHEAF_DTYPE_F32, x, dim),
                     SHEAF_OK);
    assert_int_equal(sheaf_codec_decode(codec, segment, 1, dim, 0, 1, decoded), SHEAF_OK);
}

static double largest_of(const float *x, uint32_t dim)
{
    double largest = 0;
    for (uint32_t d = 0; d < dim; d++)
        if (fabs((double)x[d]) > largest) largest = fabs((double)x[d]);
    return largest;
}

/* Norm of the difference over the norm of x. */
static double error_of(const float *x, const float *y, uint32_t dim)
{
    double difference = 0, norm = 0;
    for (uint32_t d = 0; d < dim; d++) {
        difference += ((double)y[d] - (double)x[d]) * ((double)y[d] - (double)x[d]);
        norm += (double)x[d] * (double)x[d];
    }
    return sqrt(difference / norm);
}

static void the_example_of_the_document_is_true(void **state)
{
    (void)state;
    static const float x[4] = {1, 2, -3, 0.5f};
    static const unsigned char int8[] = {0x2a, 0x55, 0x81, 0x15, 0x06, 0x83, 0xc1, 0x3c};
    static const unsigned char turbo4[] = {0xc7, 0x52, 0xbd, 0xa2, 0x1a, 0x3d};
    unsigned char segment[8];
    assert_int_equal(
        sheaf_codec_encode(SHEAF_CODEC_INT8, segment, 1, 4, 0, 1, SHEAF_DTYPE_F32, x, 4),
        SHEAF_OK);
    assert_memory_equal(segment, int8, sizeof int8);
    assert_int_equal(
        sheaf_codec_encode(SHEAF_CODEC_TURBO4, segment, 1, 4, 0, 1, SHEAF_DTYPE_F32, x, 4),
        SHEAF_OK);
    assert_memory_equal(segment, turbo4, sizeof turbo4);
}

static void int8_misses_no_number_by_more_than_half_a_step(void **state)
{
    (void)state;
    uint64_t random = testing_seed(1);
    float x[MAX_DIM], y[MAX_DIM];
    for (uint32_t dim = 1; dim <= MAX_DIM; dim++)
        for (row_kind kind = 0; kind < ROW_ZERO; kind++) {
            fill_row(kind, &random, dim, x);
            code(SHEAF_CODEC_INT8, dim, x, y);
            double bound = largest_of(x, dim) / 253;
            for (uint32_t d = 0; d < dim; d++)
                if (fabs((double)y[d] - (double)x[d]) > bound)
                    fail_msg("dim %u, row kind %d: %g became %g", dim, kind, (double)x[d],
                             (double)y[d]);
        }
}

static void turbo4_loses_a_tenth_of_any_row(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 80, 96, 100, 128, 250, 256, 511, 512};
    uint64_t random = testing_seed(2);
    float x[MAX_DIM], y[MAX_DIM];
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (row_kind kind = 0; kind <= ROW_CONSTANT; kind++) {
            /* outliers of other dimensions are not spread as evenly */
            bool even = kind != ROW_OUTLIERS || sheaf__is_pow2(dims[i]);
            double sum = 0;
            for (uint32_t round = 0; round < 40; round++) {
                fill_row(kind, &random, dims[i], x);
                code(SHEAF_CODEC_TURBO4, dims[i], x, y);
                double error = error_of(x, y, dims[i]);
                if (error > (even ? 0.25 : 0.5))
                    fail_msg("dim %u, kind %d: %g", dims[i], kind, error);
                sum += error;
            }
            if (sum > (even ? 0.115 : 0.35) * 40)
                fail_msg("dim %u, kind %d: %g", dims[i], kind, sum / 40);
        }
}

static void turbo4_never_loses_more_than_its_bound(void **state)
{
    (void)state;
    uint64_t random = testing_seed(3);
    float x[MAX_DIM], y[MAX_DIM];
    for (uint32_t dim = 1; dim <= MAX_DIM; dim++)
        for (uint32_t n = 1; n <= 4 && n <= dim; n++) { /* n numbers of the rotated row */
            memset(x, 0, sizeof x);
            for (uint32_t i = 0; i < n; i++)
                x[testing_random(&random) % dim] = row_gaussian(&random) + 7;
            sheaf__turbo4_unrotate(x, dim);
            code(SHEAF_CODEC_TURBO4, dim, x, y);
            double error = error_of(x, y, dim);
            if (error > 0.8) fail_msg("dim %u, %u numbers: %g", dim, n, error);
        }
}

static void turbo4_keeps_a_row_of_one_number(void **state)
{
    (void)state;
    uint64_t random = testing_seed(4);
    float x[MAX_DIM], y[MAX_DIM];
    for (uint32_t dim = 1; dim <= MAX_DIM; dim *= 2) {
        fill_row(ROW_ONE, &random, dim, x);
        code(SHEAF_CODEC_TURBO4, dim, x, y);
        assert_true(error_of(x, y, dim) < 1e-6);
    }
}

static void denormal_rows_stay_finite_and_near(void **state)
{
    (void)state;
    uint64_t random = testing_seed(5);
    float x[MAX_DIM], y[MAX_DIM];
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (uint32_t dim = 1; dim <= MAX_DIM; dim += 7) {
            fill_row(ROW_DENORMAL, &random, dim, x);
            code(codec, dim, x, y);
            for (uint32_t d = 0; d < dim; d++)
                assert_true(fabs((double)y[d]) <= 600 * 0x1p-149);
        }
}

static void rows_of_zeros_and_rows_that_are_not_finite_are_special(void **state)
{
    (void)state;
    uint64_t random = testing_seed(6);
    float x[MAX_DIM], y[MAX_DIM];
    unsigned char segment[MAX_DIM + 4], codes[MAX_DIM];
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (uint32_t dim = 1; dim <= MAX_DIM; dim += 3)
            for (uint32_t kind = 0; kind < 3; kind++) {
                uint64_t row = sheaf__codec_row_bytes(codec, dim);
                uint32_t scale = kind == 0 ? 0 : 0x7fc00000u;
                memset(codes, codec == SHEAF_CODEC_INT8 ? 0 : 0x88, sizeof codes);
                fill_row(kind == 0 ? ROW_ZERO : ROW_INFINITE, &random, dim, x);
                if (kind == 2) x[dim / 2] = sheaf__f32_of_bits(0xff800001u);
                assert_int_equal(
                    sheaf_codec_encode(codec, segment, 1, dim, 0, 1, SHEAF_DTYPE_F32, x, dim),
                    SHEAF_OK);
                assert_memory_equal(segment, codes, row);
                assert_memory_equal(segment + row, &scale, 4);
                assert_int_equal(sheaf_codec_decode(codec, segment, 1, dim, 0, 1, y), SHEAF_OK);
                for (uint32_t d = 0; d < dim; d++)
                    assert_true(kind == 0 ? y[d] == 0.0f : isnan(y[d]) != 0);
            }
}

static void rows_lie_where_the_header_says_and_nothing_else_is_written(void **state)
{
    (void)state;
    enum { TOKENS = 8, DIM = 13, STRIDE = 29, FIRST = 3, N = 4 };
    uint64_t random = testing_seed(7), row, whole;
    float x[N * STRIDE];
    unsigned char source[4 * N * STRIDE + 1], segment[TOKENS * (DIM + 4) + 1], one[DIM + 4],
        wanted[sizeof segment];
    for (uint32_t i = 0; i < N; i++) fill_row(ROW_GAUSSIAN, &random, STRIDE, x + i * STRIDE);
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (uint32_t dtype = 0; dtype < SHEAF_DTYPE_COUNT; dtype++) {
            uint32_t size = dtype == SHEAF_DTYPE_F32 ? 4 : 2;
            assert_int_equal(sheaf_codec_row_bytes(codec, DIM, &row), SHEAF_OK);
            assert_int_equal(sheaf_codec_segment_bytes(codec, TOKENS, DIM, &whole), SHEAF_OK);
            assert_int_equal(whole, TOKENS * (row + 4));
            narrow_row(dtype, x, N * STRIDE, source + 1);
            memset(segment, 0x5a, sizeof segment);
            memset(wanted, 0x5a, sizeof wanted);
            for (uint32_t i = 0; i < N; i++) {
                assert_int_equal(sheaf_codec_encode(codec, one, 1, DIM, 0, 1, dtype,
                                                    source + 1 + i * STRIDE * size, DIM),
                                 SHEAF_OK);
                memcpy(wanted + 1 + (FIRST + i) * row, one, row);
                memcpy(wanted + 1 + TOKENS * row + 4 * (FIRST + i), one + row, 4);
            }
            assert_int_equal(sheaf_codec_encode(codec, segment + 1, TOKENS, DIM, FIRST, N,
                                                dtype, source + 1, STRIDE),
                             SHEAF_OK);
            assert_memory_equal(segment, wanted, sizeof segment);
            assert_int_equal(sheaf__codec_clear(codec, segment + 1, TOKENS, DIM, FIRST, N),
                             SHEAF_OK);
            memset(wanted + 1 + FIRST * row, 0, N * row);
            memset(wanted + 1 + TOKENS * row + 4 * FIRST, 0, 4 * N);
            assert_memory_equal(segment, wanted, sizeof segment);
        }
}

static void bytes_do_not_depend_on_the_floating_point_environment(void **state)
{
    (void)state;
    uint64_t random = testing_seed(8);
    float x[96], plain[96], odd[96];
    unsigned char wanted[100], got[100];
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (row_kind kind = 0; kind < ROW_BITS; kind++) {
            memset(wanted, 0, sizeof wanted);
            memset(got, 0, sizeof got);
            fill_row(kind, &random, 96, x);
            assert_int_equal(sheaf_codec_encode(codec, wanted, 1, 96, 0, 1, 0, x, 96),
                             SHEAF_OK);
            assert_int_equal(sheaf_codec_decode(codec, wanted, 1, 96, 0, 1, plain), SHEAF_OK);
            fpenv_set(ODD_FPENV);
            sheaf_status encoded = sheaf_codec_encode(codec, got, 1, 96, 0, 1, 0, x, 96);
            sheaf_status decoded = sheaf_codec_decode(codec, got, 1, 96, 0, 1, odd);
            fpenv_set(DEFAULT_FPENV);
            assert_int_equal(encoded, SHEAF_OK);
            assert_int_equal(decoded, SHEAF_OK);
            assert_memory_equal(wanted, got, sizeof got);
            assert_memory_equal(plain, odd, sizeof odd);
        }
}

static void the_rotation_keeps_norms_and_has_an_inverse(void **state)
{
    (void)state;
    uint64_t random = testing_seed(9);
    float x[MAX_DIM], y[MAX_DIM];
    for (uint32_t dim = 1; dim <= MAX_DIM; dim++) {
        double before = 0, after = 0;
        fill_row(ROW_GAUSSIAN, &random, dim, x);
        memcpy(y, x, sizeof y);
        sheaf__turbo4_rotate(y, dim);
        for (uint32_t d = 0; d < dim; d++)
            before += (double)x[d] * (double)x[d], after += (double)y[d] * (double)y[d];
        assert_true(fabs(after / before - 1) < 2e-6);
        sheaf__turbo4_unrotate(y, dim);
        assert_true(error_of(x, y, dim) < 1e-6);
    }
}

static void the_signs_are_the_first_numbers_of_splitmix64(void **state)
{
    (void)state;
    uint64_t random = 0;
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(sheaf__turbo4_signs[i], testing_random(&random));
}

/* Lloyd's iteration: levels are the means of a unit Gaussian between their midpoints. */
static void the_levels_are_those_of_max_and_lloyd(void **state)
{
    (void)state;
    double level[8]; /* the positive ones */
    for (uint32_t i = 0; i < 8; i++) level[i] = 0.15 + 0.3 * i;
    for (uint32_t round = 0; round < 5000; round++)
        for (uint32_t i = 0; i < 8; i++) {
            double a = i == 0 ? 0 : (level[i - 1] + level[i]) / 2;
            double b = i == 7 ? 40 : (level[i] + level[i + 1]) / 2;
            double mass = (erf(b / sqrt(2)) - erf(a / sqrt(2))) / 2;
            level[i] =
                (exp(-a * a / 2) - exp(-b * b / 2)) / sqrt(2 * 3.14159265358979324) / mass;
        }
    assert_true(fabs(level[7] - 2.7326) < 1e-4);
    for (uint32_t i = 0; i < 8; i++) {
        double exact = level[i] * 127 / level[7];
        assert_true(fabs(exact - sheaf__turbo4_levels[8 + i]) <= 0.51);
        assert_int_equal(sheaf__turbo4_levels[7 - i], -sheaf__turbo4_levels[8 + i]);
    }
}

static void long_rows_and_odd_codecs_are_refused(void **state)
{
    (void)state;
    uint64_t bytes = 5;
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++) {
        assert_int_equal(sheaf_codec_is_quantized(codec), 1);
        assert_int_equal(sheaf_codec_row_bytes(codec, MAX_DIM + 1, &bytes), SHEAF_E_CODEC);
        assert_int_equal(sheaf_codec_segment_bytes(codec, 1, MAX_DIM + 1, &bytes),
                         SHEAF_E_CODEC);
        assert_int_equal(sheaf_codec_encode(codec, NULL, 1, MAX_DIM + 1, 0, 0, 0, NULL, 0),
                         SHEAF_E_CODEC);
        assert_int_equal(sheaf_codec_row_bytes(codec, 9, NULL), SHEAF_E_INVALID);
    }
    for (uint32_t codec = 0; codec < SHEAF_DTYPE_COUNT; codec++)
        assert_int_equal(sheaf_codec_is_quantized(codec), 0);
    assert_int_equal(sheaf_codec_is_quantized(SHEAF_CODEC_COUNT), 0);
    assert_int_equal(sheaf_codec_row_bytes(SHEAF_CODEC_COUNT, 9, &bytes), SHEAF_E_CODEC);
    assert_int_equal(bytes, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_document_is_true),
        cmocka_unit_test(int8_misses_no_number_by_more_than_half_a_step),
        cmocka_unit_test(turbo4_loses_a_tenth_of_any_row),
        cmocka_unit_test(turbo4_never_loses_more_than_its_bound),
        cmocka_unit_test(turbo4_keeps_a_row_of_one_number),
        cmocka_unit_test(denormal_rows_stay_finite_and_near),
        cmocka_unit_test(rows_of_zeros_and_rows_that_are_not_finite_are_special),
        cmocka_unit_test(rows_lie_where_the_header_says_and_nothing_else_is_written),
        cmocka_unit_test(bytes_do_not_depend_on_the_floating_point_environment),
        cmocka_unit_test(the_rotation_keeps_norms_and_has_an_inverse),
        cmocka_unit_test(the_signs_are_the_first_numbers_of_splitmix64),
        cmocka_unit_test(the_levels_are_those_of_max_and_lloyd),
        cmocka_unit_test(long_rows_and_odd_codecs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
