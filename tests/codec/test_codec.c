/* Encoding and decoding of tiles: every f16 and bf16, every halfway case, any caller's
 * floating-point environment, any alignment and stride. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/half.h"
#include "codec/codec.h"
#include "odd_fpenv.h"
#include "sheaf/codec.h"

#define ALL_HALVES 65536

static uint16_t *all_halves;  /* [65536] */
static unsigned char *wide;   /* [65536] f32 */
static unsigned char *narrow; /* [65536] of any codec */

/* As one segment of 64 positions of 1024 numbers. */
static void encode_all(uint32_t codec, void *to, uint32_t dtype, const void *from)
{
    assert_int_equal(sheaf_codec_encode(codec, to, 64, 1024, 0, 64, dtype, from, 1024),
                     SHEAF_OK);
}

static void decode_all(uint32_t codec, const void *from, void *to)
{
    assert_int_equal(sheaf_codec_decode(codec, from, 64, 1024, 0, 64, to), SHEAF_OK);
}

static uint16_t narrow_one(uint32_t codec, uint32_t bits)
{
    uint16_t half = 0x5555;
    assert_int_equal(sheaf_codec_encode(codec, &half, 1, 1, 0, 1, SHEAF_DTYPE_F32, &bits, 1),
                     SHEAF_OK);
    return half;
}

static uint32_t f32_at(const void *array, uint64_t i)
{
    uint32_t bits;
    memcpy(&bits, (const unsigned char *)array + 4 * i, 4);
    return bits;
}

static uint16_t half_at(const void *array, uint64_t i)
{
    uint16_t bits;
    memcpy(&bits, (const unsigned char *)array + 2 * i, 2);
    return bits;
}

static int make_arrays(void **state)
{
    (void)state;
    all_halves = malloc(ALL_HALVES * sizeof *all_halves);
    wide = malloc(ALL_HALVES * 4);
    narrow = malloc(ALL_HALVES * 4);
    if (all_halves == NULL || wide == NULL || narrow == NULL) return -1;
    for (uint32_t i = 0; i < ALL_HALVES; i++) all_halves[i] = (uint16_t)i;
    return 0;
}

static int free_arrays(void **state)
{
    (void)state;
    free(all_halves);
    free(wide);
    free(narrow);
    return 0;
}

/* The value of an f16 by its definition, in double. */
static double f16_value(uint16_t h)
{
    int exponent = (h >> 10) & 0x1f, mantissa = h & 0x3ff;
    double magnitude =
        exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

static void names_and_codecs_belong_together(void **state)
{
    (void)state;
    static const char *const names[] = {"f32", "f16", "bf16", "int8", "turbo4"};
    for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++) {
        uint32_t found = 99;
        assert_string_equal(sheaf_codec_name(codec), names[codec]);
        assert_int_equal(sheaf_codec_from_name(names[codec], &found), SHEAF_OK);
        assert_int_equal(found, codec);
    }
    uint32_t untouched = 77;
    assert_null(sheaf_codec_name(SHEAF_CODEC_COUNT));
    assert_null(sheaf_codec_name(UINT32_MAX));
    assert_int_equal(sheaf_codec_from_name("bf1", &untouched), SHEAF_E_CODEC);
    assert_int_equal(sheaf_codec_from_name("", &untouched), SHEAF_E_CODEC);
    assert_int_equal(sheaf_codec_from_name(NULL, &untouched), SHEAF_E_CODEC);
    assert_int_equal(sheaf_codec_from_name("f32", NULL), SHEAF_E_INVALID);
    assert_int_equal(untouched, 77);
}

static void segment_bytes_are_exact_and_checked(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_BF16, 32, 128, &bytes), SHEAF_OK);
    assert_int_equal(bytes, 8192);
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_F32, 4, 3, &bytes), SHEAF_OK);
    assert_int_equal(bytes, 48);
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_F16, 32, 0, &bytes), SHEAF_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_F16, 65536, 65536, &bytes),
                     SHEAF_OK);
    assert_int_equal(bytes, 1ull << 33);
    bytes = 5;
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_F32, UINT32_MAX, UINT32_MAX, &bytes),
                     SHEAF_E_OVERFLOW);
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_COUNT, 32, 128, &bytes),
                     SHEAF_E_CODEC);
    assert_int_equal(sheaf_codec_segment_bytes(SHEAF_CODEC_F32, 32, 128, NULL),
                     SHEAF_E_INVALID);
    assert_int_equal(bytes, 5);
}

static void every_f16_decodes_to_its_value(void **state)
{
    (void)state;
    decode_all(SHEAF_CODEC_F16, all_halves, wide);
    for (uint32_t i = 0; i < ALL_HALVES; i++) {
        uint32_t bits = f32_at(wide, i);
        assert_int_equal(bits, sheaf__bits_of_f32(sheaf__f32_of_f16((uint16_t)i)));
        if ((i & 0x7c00) != 0x7c00) {
            float expected = (float)f16_value((uint16_t)i);
            assert_int_equal(bits, sheaf__bits_of_f32(expected));
        } else if ((i & 0x3ff) == 0) {
            assert_int_equal(bits, i & 0x8000 ? 0xff800000u : 0x7f800000u);
        } else {
            assert_true((bits & 0x7fc00000u) == 0x7fc00000u);
            assert_int_equal(bits >> 31, i >> 15);
        }
    }
}

static void every_f16_survives_a_round_trip(void **state)
{
    (void)state;
    decode_all(SHEAF_CODEC_F16, all_halves, wide);
    encode_all(SHEAF_CODEC_F16, narrow, SHEAF_DTYPE_F32, wide);
    for (uint32_t i = 0; i < ALL_HALVES; i++) {
        bool is_nan = (i & 0x7fff) > 0x7c00;
        assert_int_equal(half_at(narrow, i), is_nan ? i | 0x200 : i);
    }
}

static void every_bf16_survives_a_round_trip(void **state)
{
    (void)state;
    decode_all(SHEAF_CODEC_BF16, all_halves, wide);
    for (uint32_t i = 0; i < ALL_HALVES; i++) assert_int_equal(f32_at(wide, i), i << 16);
    encode_all(SHEAF_CODEC_BF16, narrow, SHEAF_DTYPE_F32, wide);
    for (uint32_t i = 0; i < ALL_HALVES; i++) {
        bool is_nan = (i & 0x7fff) > 0x7f80;
        assert_int_equal(half_at(narrow, i), is_nan ? i | 0x40 : i);
    }
}

/* Between neighbours a < b: the middle goes to the even one, what is beside it to the nearer. The
 * neighbour above the largest finite number is infinity, whose bits follow on. */
static void check_halfway(uint32_t codec, uint32_t infinity, uint32_t middle_of(uint32_t))
{
    for (uint32_t a = 0; a < infinity; a++) {
        uint32_t middle = middle_of(a), even = a + (a & 1);
        for (uint32_t sign = 0; sign <= 1; sign++) {
            uint32_t s32 = sign << 31, s16 = sign << 15;
            assert_int_equal(narrow_one(codec, s32 | middle), s16 | even);
            assert_int_equal(narrow_one(codec, s32 | (middle - 1)), s16 | a);
            assert_int_equal(narrow_one(codec, s32 | (middle + 1)), s16 | (a + 1));
        }
    }
}

static uint32_t middle_f16(uint32_t a)
{
    double above = a + 1 == 0x7c00 ? 65536.0 : f16_value((uint16_t)(a + 1));
    return sheaf__bits_of_f32((float)((f16_value((uint16_t)a) + above) / 2));
}

static uint32_t middle_bf16(uint32_t a)
{
    return (a << 16) | 0x8000u;
}

static void narrowing_to_f16_rounds_halves_to_even(void **state)
{
    (void)state;
    check_halfway(SHEAF_CODEC_F16, 0x7c00, middle_f16);
}

static void narrowing_to_bf16_rounds_halves_to_even(void **state)
{
    (void)state;
    check_halfway(SHEAF_CODEC_BF16, 0x7f80, middle_bf16);
}

static void nan_stays_nan_and_overflow_is_infinite(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7f800001u, 0x7fc00000u, 0xff800001u,
                                    0xffffffffu, 0x7fffffffu, 0x7f802000u};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        uint32_t sign = (nans[i] >> 16) & 0x8000u;
        uint16_t f16 = narrow_one(SHEAF_CODEC_F16, nans[i]);
        uint16_t bf16 = narrow_one(SHEAF_CODEC_BF16, nans[i]);
        assert_int_equal(f16 & 0xfe00u, sign | 0x7e00u);
        assert_int_equal(bf16 & 0xffc0u, sign | 0x7fc0u);
        assert_int_equal(f16 & 0x1ffu, (nans[i] >> 13) & 0x1ffu);
        assert_int_equal(bf16 & 0x3fu, (nans[i] >> 16) & 0x3fu);
    }
    assert_int_equal(narrow_one(SHEAF_CODEC_F16, 0x7f7fffffu), 0x7c00);
    assert_int_equal(narrow_one(SHEAF_CODEC_F16, 0xff800000u), 0xfc00);
    assert_int_equal(narrow_one(SHEAF_CODEC_BF16, 0x7f7fffffu), 0x7f80);
    assert_int_equal(narrow_one(SHEAF_CODEC_BF16, 0xff7fffffu), 0xff80);
    assert_int_equal(narrow_one(SHEAF_CODEC_BF16, 1), 0);
    assert_int_equal(narrow_one(SHEAF_CODEC_BF16, 0x00018000u), 2);
}

/* Every codec from every type, through the bulk loops, against one number at a time. */
static void check_all_pairs(void)
{
    for (uint32_t i = 0; i < ALL_HALVES; i++) {
        uint32_t bits = i * 0x9e3779b9u; /* all exponents, NaN among them */
        memcpy(wide + 4 * i, &bits, 4);
    }
    for (uint32_t codec = 0; codec < SHEAF_DTYPE_COUNT; codec++)
        for (uint32_t dtype = 0; dtype < SHEAF_DTYPE_COUNT; dtype++) {
            const void *from = dtype == SHEAF_DTYPE_F32 ? (const void *)wide : all_halves;
            encode_all(codec, narrow, dtype, from);
            for (uint32_t i = 0; i < ALL_HALVES; i++) {
                uint32_t bits = dtype == SHEAF_DTYPE_F32 ? f32_at(wide, i)
                                : dtype == SHEAF_DTYPE_BF16
                                    ? i << 16
                                    : sheaf__bits_of_f32(sheaf__f32_of_f16((uint16_t)i));
                uint32_t got =
                    codec == SHEAF_CODEC_F32 ? f32_at(narrow, i) : half_at(narrow, i);
                float value = sheaf__f32_of_bits(bits);
                uint32_t expected = codec == SHEAF_CODEC_F32    ? bits
                                    : codec == dtype            ? i
                                    : codec == SHEAF_CODEC_BF16 ? sheaf__bf16_of_f32(value)
                                                                : sheaf__f16_of_f32(value);
                if (got != expected) fail_msg("codec %u dtype %u: %x", codec, dtype, i);
            }
        }
}

static void every_codec_takes_every_type(void **state)
{
    (void)state;
    check_all_pairs();
}

static void bits_do_not_depend_on_the_floating_point_environment(void **state)
{
    (void)state;
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        fpenv_set(ODD_FPENV);
        fesetround(modes[i]);
        check_all_pairs();
        decode_all(SHEAF_CODEC_F16, all_halves, wide);
        for (uint32_t h = 0; h < 0x400; h++) {
            uint32_t positive = f32_at(wide, h), negative = f32_at(wide, h | 0x8000);
            assert_int_equal(negative, positive | 0x80000000u);
            assert_int_equal(positive, sheaf__bits_of_f32(sheaf__f32_of_f16((uint16_t)h)));
        }
    }
    fpenv_set(DEFAULT_FPENV);
}

static void rows_are_taken_a_stride_apart_and_put_at_their_slot(void **state)
{
    (void)state;
    enum { TOKENS = 8, DIM = 5, STRIDE = 9, N = 3, FIRST = 4 };
    float source[N * STRIDE];
    for (int i = 0; i < N * STRIDE; i++) source[i] = (float)i + 0.25f;
    for (uint32_t codec = 0; codec < SHEAF_DTYPE_COUNT; codec++) {
        unsigned char segment[TOKENS * DIM * 4 + 1], before[sizeof segment];
        memset(segment, 0xa5, sizeof segment);
        memcpy(before, segment, sizeof segment);
        unsigned char *odd = segment + 1; /* misaligned for every type */
        assert_int_equal(sheaf_codec_encode(codec, odd, TOKENS, DIM, FIRST, N, SHEAF_DTYPE_F32,
                                            source, STRIDE),
                         SHEAF_OK);
        float decoded[N * DIM];
        assert_int_equal(sheaf_codec_decode(codec, odd, TOKENS, DIM, FIRST, N, decoded),
                         SHEAF_OK);
        for (int t = 0; t < N; t++)
            for (int d = 0; d < DIM; d++)
                assert_true(decoded[t * DIM + d] == source[t * STRIDE + d]);
        size_t bytes = codec == SHEAF_CODEC_F32 ? 4 : 2;
        size_t begin = 1 + FIRST * DIM * bytes, end = begin + N * DIM * bytes;
        assert_memory_equal(segment, before, begin);
        assert_memory_equal(segment + end, before + end, sizeof segment - end);
    }
}

static void a_source_of_the_same_type_is_copied_byte_for_byte(void **state)
{
    (void)state;
    static const uint32_t signalling[2] = {0x7f800001u, 0xffbfffffu};
    static const uint16_t half[2] = {0x7c01u, 0xfc01u};
    uint32_t out[2];
    assert_int_equal(
        sheaf_codec_encode(SHEAF_CODEC_F32, out, 1, 2, 0, 1, SHEAF_DTYPE_F32, signalling, 2),
        SHEAF_OK);
    assert_memory_equal(out, signalling, sizeof signalling);
    assert_int_equal(
        sheaf_codec_encode(SHEAF_CODEC_F16, out, 1, 2, 0, 1, SHEAF_DTYPE_F16, half, 2),
        SHEAF_OK);
    assert_memory_equal(out, half, sizeof half);
}

static void impossible_arguments_are_refused_and_write_nothing(void **state)
{
    (void)state;
    float source[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {0}, zeros[8] = {0};
    struct {
        uint32_t codec, first, n, dtype;
        sheaf_status status;
    } cases[] = {
        {SHEAF_CODEC_COUNT, 0, 1, SHEAF_DTYPE_F32, SHEAF_E_CODEC},
        {SHEAF_CODEC_F32, 0, 1, 3, SHEAF_E_INVALID},
        {SHEAF_CODEC_F32, 0, 5, SHEAF_DTYPE_F32, SHEAF_E_INVALID},
        {SHEAF_CODEC_F32, 3, 2, SHEAF_DTYPE_F32, SHEAF_E_INVALID},
        {SHEAF_CODEC_F32, 5, 0, SHEAF_DTYPE_F32, SHEAF_E_INVALID},
        {SHEAF_CODEC_F32, UINT32_MAX, 2, SHEAF_DTYPE_F32, SHEAF_E_INVALID},
        {SHEAF_CODEC_F32, 4, 0, SHEAF_DTYPE_F32, SHEAF_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(sheaf_codec_encode(cases[i].codec, out, 4, 2, cases[i].first,
                                            cases[i].n, cases[i].dtype, source, 2),
                         cases[i].status);
    assert_int_equal(sheaf_codec_decode(SHEAF_CODEC_COUNT, source, 4, 2, 0, 1, out),
                     SHEAF_E_CODEC);
    assert_int_equal(sheaf_codec_decode(SHEAF_CODEC_F32, source, 4, 2, 3, 2, out),
                     SHEAF_E_INVALID);
    assert_memory_equal(out, zeros, sizeof zeros);
}

static void clearing_zeroes_its_slots_and_nothing_else(void **state)
{
    (void)state;
    for (uint32_t codec = 0; codec < SHEAF_DTYPE_COUNT; codec++) {
        unsigned char segment[4 * 3 * 4 + 1], row = codec == SHEAF_CODEC_F32 ? 12 : 6;
        for (uint32_t first = 0; first <= 4; first++)
            for (uint32_t n = 0; n <= 4 - first; n++) {
                memset(segment, 0xee, sizeof segment);
                assert_int_equal(sheaf__codec_clear(codec, segment, 4, 3, first, n), SHEAF_OK);
                for (uint32_t i = 0; i < sizeof segment; i++) {
                    bool in = i >= first * row && i < (first + n) * row;
                    assert_int_equal(segment[i], in ? 0 : 0xee);
                }
            }
        assert_int_equal(sheaf__codec_clear(codec, segment, 4, 3, 3, 2), SHEAF_E_INVALID);
        assert_int_equal(sheaf__codec_clear(codec, segment, 4, 3, 5, 0), SHEAF_E_INVALID);
    }
    assert_int_equal(sheaf__codec_clear(SHEAF_CODEC_COUNT, NULL, 4, 3, 0, 1), SHEAF_E_CODEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_codecs_belong_together),
        cmocka_unit_test(segment_bytes_are_exact_and_checked),
        cmocka_unit_test(every_f16_decodes_to_its_value),
        cmocka_unit_test(every_f16_survives_a_round_trip),
        cmocka_unit_test(every_bf16_survives_a_round_trip),
        cmocka_unit_test(narrowing_to_f16_rounds_halves_to_even),
        cmocka_unit_test(narrowing_to_bf16_rounds_halves_to_even),
        cmocka_unit_test(nan_stays_nan_and_overflow_is_infinite),
        cmocka_unit_test(every_codec_takes_every_type),
        cmocka_unit_test(bits_do_not_depend_on_the_floating_point_environment),
        cmocka_unit_test(rows_are_taken_a_stride_apart_and_put_at_their_slot),
        cmocka_unit_test(a_source_of_the_same_type_is_copied_byte_for_byte),
        cmocka_unit_test(impossible_arguments_are_refused_and_write_nothing),
        cmocka_unit_test(clearing_zeroes_its_slots_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, make_arrays, free_arrays);
}
