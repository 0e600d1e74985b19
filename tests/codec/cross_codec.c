/* tests/codec/cross_codec.c - int8 and turbo4: every instruction set gives the portable form's bytes. */
#include "quantized_rows.h"

#include <string.h>

#include "codec/quantized.h"

#define GUARD 0x5a

/* One row's encoding and what is decoded from it, all misaligned, with guards around. */
typedef struct result {
    unsigned char codes[SHEAF_CODEC_MAX_DIM + 3], scale[7];
    unsigned char decoded[4 * SHEAF_CODEC_MAX_DIM + 3];
} result;

static void code_row(const sheaf__quantized_kernels *kernels, uint32_t codec, uint32_t dtype,
                     uint32_t dim, const unsigned char *x, result *out)
{
    bool int8 = codec == SHEAF_CODEC_INT8;
    float scale;
    memset(out, GUARD, sizeof *out);
    (int8 ? kernels->encode_int8 : kernels->encode_turbo4)(x, dtype, dim, out->codes + 1,
                                                           out->scale + 1);
    memcpy(&scale, out->scale + 1, 4);
    (int8 ? kernels->decode_int8 : kernels->decode_turbo4)(out->codes + 1, scale, dim,
                                                           out->decoded + 1);
}

/* Decoded numbers, NaN without its sign: x86 and AArch64 give different ones. */
static void quiet_nan(result *r, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t bits;
        memcpy(&bits, r->decoded + 1 + 4 * d, 4);
        if ((bits & 0x7fffffffu) > 0x7f800000u) bits = SHEAF__QUANTIZED_NAN;
        memcpy(r->decoded + 1 + 4 * d, &bits, 4);
    }
}

static void compare_rows(const sheaf__quantized_kernels *kernels, uint64_t *random,
                         uint32_t dim, row_kind kind)
{
    float x[SHEAF_CODEC_MAX_DIM];
    unsigned char source[4 * SHEAF_CODEC_MAX_DIM + 1];
    static result wanted, got;
    fill_row(kind, random, dim, x);
    for (uint32_t dtype = 0; dtype < SHEAF_DTYPE_COUNT; dtype++) {
        narrow_row(dtype, x, dim, source + 1);
        for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++) {
            code_row(&sheaf__quantized_scalar, codec, dtype, dim, source + 1, &wanted);
            code_row(kernels, codec, dtype, dim, source + 1, &got);
            quiet_nan(&wanted, dim);
            quiet_nan(&got, dim);
            if (memcmp(&wanted, &got, sizeof got) != 0)
                fail_msg("%s of dtype %u, dim %u, row kind %d differs", sheaf_codec_name(codec),
                         dtype, dim, kind);
        }
    }
}

static void compare_rotations(const sheaf__quantized_kernels *kernels, uint64_t *random,
                              uint32_t dim)
{
    float wanted[SHEAF_CODEC_MAX_DIM + 1] = {0}, got[SHEAF_CODEC_MAX_DIM + 1] = {0};
    fill_row(ROW_GAUSSIAN, random, dim, wanted + 1);
    memcpy(got, wanted, sizeof got);
    sheaf__quantized_scalar.rotate(wanted + 1, dim);
    kernels->rotate(got + 1, dim);
    assert_memory_equal(wanted, got, sizeof got);
    sheaf__quantized_scalar.unrotate(wanted + 1, dim);
    kernels->unrotate(got + 1, dim);
    assert_memory_equal(wanted, got, sizeof got);
}

static void compare(uint32_t isa)
{
    uint32_t resolved;
    uint64_t random = testing_seed(20261130);
    if (sheaf_isa_resolve(isa, &resolved) != SHEAF_OK) {
        fprintf(stderr, "SKIPPED: this processor or build lacks %s\n", sheaf_isa_name(isa));
        skip();
    }
    const sheaf__quantized_kernels *kernels = sheaf__quantized_kernels_of(isa);
    assert_non_null(kernels);
    assert_int_equal(kernels->isa, isa);
    for (uint32_t dim = 1; dim <= SHEAF_CODEC_MAX_DIM; dim++) {
        for (row_kind kind = 0; kind < N_ROW_KINDS; kind++)
            compare_rows(kernels, &random, dim, kind);
        compare_rotations(kernels, &random, dim);
    }
}

static void avx2_equals_portable(void **state)
{
    (void)state;
    compare(SHEAF_ISA_AVX2);
}

static void avx512_equals_portable(void **state)
{
    (void)state;
    compare(SHEAF_ISA_AVX512);
}

static void neon_equals_portable(void **state)
{
    (void)state;
    compare(SHEAF_ISA_NEON);
}

static void the_best_instruction_set_is_the_one_that_runs(void **state)
{
    (void)state;
    assert_int_equal(sheaf__quantized_kernels_best()->isa, sheaf_isa_best());
    assert_null(sheaf__quantized_kernels_of(SHEAF_ISA_AUTO));
    assert_null(sheaf__quantized_kernels_of(99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(avx2_equals_portable),
        cmocka_unit_test(avx512_equals_portable),
        cmocka_unit_test(neon_equals_portable),
        cmocka_unit_test(the_best_instruction_set_is_the_one_that_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
