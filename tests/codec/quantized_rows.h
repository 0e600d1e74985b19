/* tests/codec/quantized_rows.h - rows of every kind for the tests of quantized codecs. */
#ifndef SHEAF_TESTS_QUANTIZED_ROWS_H
#define SHEAF_TESTS_QUANTIZED_ROWS_H

#include "testing.h"

#include <math.h>

#include "base/bits.h"
#include "base/half.h"
#include "sheaf/codec.h"

typedef enum row_kind {
    ROW_GAUSSIAN,
    ROW_UNIFORM,
    ROW_SMALL,    /* about 1e-30 */
    ROW_HUGE,     /* about 1e30 */
    ROW_OUTLIERS, /* three elements a hundred times the others */
    ROW_CONSTANT,
    ROW_ONE, /* one element, the others zero */
    ROW_ZERO,
    ROW_DENORMAL,
    ROW_BITS,     /* any f32, NaN and infinities with them */
    ROW_INFINITE, /* Gaussian with one infinity */
    N_ROW_KINDS
} row_kind;

static inline float row_unit(uint64_t *random) /* [0, 1) */
{
    return (float)(testing_random(random) >> 40) * 0x1p-24f;
}

static inline float row_gaussian(uint64_t *random)
{
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += row_unit(random);
    return sum;
}

static inline void fill_row(row_kind kind, uint64_t *random, uint32_t dim, float *x)
{
    static const float factor[N_ROW_KINDS] = {[ROW_SMALL] = 1e-30f, [ROW_HUGE] = 1e30f};
    uint32_t at = (uint32_t)(testing_random(random) % dim);
    float constant = row_gaussian(random) + 10;
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t bits = (uint32_t)testing_random(random);
        switch (kind) {
        case ROW_UNIFORM: x[d] = row_unit(random) - 0.5f; break;
        case ROW_CONSTANT: x[d] = constant; break;
        case ROW_ONE: x[d] = d == at ? constant : 0.0f; break;
        case ROW_ZERO: x[d] = d % 3 == 0 ? -0.0f : 0.0f; break;
        case ROW_DENORMAL: x[d] = sheaf__f32_of_bits(bits & 0x800000ffu); break;
        case ROW_BITS: x[d] = sheaf__f32_of_bits(bits); break;
        default: x[d] = row_gaussian(random);
        }
        if (factor[kind] != 0) x[d] *= factor[kind];
        if (kind == ROW_OUTLIERS && (d + 8 - at % 8) % 8 == 0 && d < 24) x[d] *= 100;
    }
    if (kind == ROW_INFINITE) x[at] = sheaf__f32_of_bits(at % 2 ? 0x7f800000u : 0xff800000u);
}

/* The row in another type, rounded to it. */
static inline void narrow_row(uint32_t dtype, const float *x, uint32_t dim, unsigned char *to)
{
    for (uint32_t d = 0; d < dim; d++) {
        uint16_t half =
            dtype == SHEAF_DTYPE_F16 ? sheaf__f16_of_f32(x[d]) : sheaf__bf16_of_f32(x[d]);
        if (dtype == SHEAF_DTYPE_F32)
            memcpy(to + 4 * d, &x[d], 4);
        else
            memcpy(to + 2 * d, &half, 2);
    }
}

#endif
