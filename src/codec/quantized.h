/* codec/quantized.h - the forms of int8 and turbo4 for each instruction set.
 *
 * docs/format.md defines both codecs, operation by operation; every form gives the same bits. All
 * of them expect the default floating-point environment (base/fpenv.h), which their callers set.
 */
#ifndef SHEAF_CODEC_QUANTIZED_H
#define SHEAF_CODEC_QUANTIZED_H

#include <stdint.h>

/* A row with NaN or infinity has this scale, and codes of level 0 (int8) or SHEAF__TURBO4_ZERO. */
#define SHEAF__QUANTIZED_NAN 0x7fc00000u
/* The codes of an all-zero row of turbo4, both halves of a byte. */
#define SHEAF__TURBO4_ZERO 0x88u

/* Encodes x: [dim] of `dtype` into one row's codes and its f32 scale; nothing need be aligned. */
typedef void sheaf__encode_row_fn(const unsigned char *x, uint32_t dtype, uint32_t dim,
                                  unsigned char *codes, unsigned char *scale);
/* Decodes one row into out: [dim] f32, which need not be aligned. */
typedef void sheaf__decode_row_fn(const unsigned char *codes, float scale, uint32_t dim,
                                  unsigned char *out);
/* x: [dim], in place. */
typedef void sheaf__rotate_fn(float *x, uint32_t dim);

typedef struct sheaf__quantized_kernels {
    uint32_t isa;
    sheaf__encode_row_fn *encode_int8, *encode_turbo4;
    sheaf__decode_row_fn *decode_int8, *decode_turbo4;
    sheaf__rotate_fn *rotate, *unrotate;
} sheaf__quantized_kernels;

extern const sheaf__quantized_kernels sheaf__quantized_scalar;
#if defined(__x86_64__)
extern const sheaf__quantized_kernels sheaf__quantized_avx2;
extern const sheaf__quantized_kernels sheaf__quantized_avx512;
#elif defined(__aarch64__)
extern const sheaf__quantized_kernels sheaf__quantized_neon;
#endif

/* Bit d % 64 of word d / 64: whether the rotation turns the sign of element d. */
extern const uint64_t sheaf__turbo4_signs[8];

/* The kernels of an instruction set; null for one that this build lacks. The scalar ones run
 * everywhere, the others where sheaf_isa_resolve says so. */
const sheaf__quantized_kernels *sheaf__quantized_kernels_of(uint32_t isa);

/* The best kernels of this machine. Any thread. */
const sheaf__quantized_kernels *sheaf__quantized_kernels_best(void);

#endif
