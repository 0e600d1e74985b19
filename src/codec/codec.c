/* codec/codec.c - encoding and decoding the rows of a tile.
 *
 * Quantized codecs are encoded row by row by the forms of codec/quantized.h. Every conversion
 * between raw codecs is a loop over one run of numbers, widened to the bits of an f32 and narrowed
 * again. All of it is integer arithmetic on bits, apart from one exact subtraction that widens f16
 * denormals: so neither the rounding mode nor flush to zero of the calling thread can show in a
 * result, and the loops need no floating-point environment of their own. Numbers are loaded and
 * stored through memcpy, since sources need not be aligned.
 */
#include "codec/codec.h"

#include <string.h>

#include "base/bits.h"
#include "base/fpenv.h"
#include "base/half.h"
#include "base/status.h"
#include "codec/quantized.h"

_Static_assert((int)SHEAF_CODEC_F32 == (int)SHEAF_DTYPE_F32 &&
                   (int)SHEAF_CODEC_F16 == (int)SHEAF_DTYPE_F16 &&
                   (int)SHEAF_CODEC_BF16 == (int)SHEAF_DTYPE_BF16,
               "the raw codecs are numbered like the element types that they store");

/* Converts `count` numbers; neither side need be aligned. */
typedef void convert_fn(unsigned char *restrict dst, const unsigned char *restrict src,
                        uint64_t count);

static const char *const names[SHEAF_CODEC_COUNT] = {"f32", "f16", "bf16", "int8", "turbo4"};

const char *sheaf_codec_name(uint32_t codec)
{
    return codec < SHEAF_CODEC_COUNT ? names[codec] : NULL;
}

sheaf_status sheaf_codec_from_name(const char *name, uint32_t *codec)
{
    if (codec == NULL) return SHEAF_E_INVALID;
    if (name == NULL) return SHEAF_E_CODEC;
    for (uint32_t i = 0; i < SHEAF_CODEC_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *codec = i;
            return SHEAF_OK;
        }
    return SHEAF_E_CODEC;
}

uint32_t sheaf_codec_is_quantized(uint32_t codec)
{
    return sheaf__codec_is_quantized(codec);
}

/* SHEAF_E_CODEC unless the codec is known and takes rows of `dim` numbers. */
static sheaf_status check_codec(uint32_t codec, uint32_t dim)
{
    if (codec >= SHEAF_CODEC_COUNT) return SHEAF_E_CODEC;
    if (sheaf__codec_is_quantized(codec) && dim > SHEAF_CODEC_MAX_DIM) return SHEAF_E_CODEC;
    return SHEAF_OK;
}

/* As check_codec; SHEAF_E_INVALID: the slots are not of the segment. */
static sheaf_status check_slots(uint32_t codec, uint32_t dim, uint32_t block_tokens,
                                uint32_t first_slot, uint32_t n)
{
    SHEAF__TRY(check_codec(codec, dim));
    if (first_slot > block_tokens || n > block_tokens - first_slot) return SHEAF_E_INVALID;
    return SHEAF_OK;
}

sheaf_status sheaf_codec_row_bytes(uint32_t codec, uint32_t dim, uint64_t *bytes)
{
    SHEAF__TRY(check_codec(codec, dim));
    if (bytes == NULL) return SHEAF_E_INVALID;
    *bytes = sheaf__codec_row_bytes(codec, dim);
    return SHEAF_OK;
}

sheaf_status sheaf_codec_segment_bytes(uint32_t codec, uint32_t block_tokens, uint32_t dim,
                                       uint64_t *bytes)
{
    SHEAF__TRY(check_codec(codec, dim));
    if (bytes == NULL) return SHEAF_E_INVALID;
    uint64_t row = sheaf__codec_row_bytes(codec, dim), product;
    if (sheaf__codec_is_quantized(codec) && dim != 0) row += 4; /* the scale */
    if (!sheaf__mul_u64(row, block_tokens, &product)) return SHEAF_E_OVERFLOW;
    *bytes = product;
    return SHEAF_OK;
}

/* ---- one number, as bits ------------------------------------------------------------------- */

static inline uint32_t load_u32(const unsigned char *p, uint64_t i)
{
    uint32_t u;
    memcpy(&u, p + i * 4, 4);
    return u;
}

static inline uint16_t load_u16(const unsigned char *p, uint64_t i)
{
    uint16_t u;
    memcpy(&u, p + i * 2, 2);
    return u;
}

static inline void store_u32(unsigned char *p, uint64_t i, uint32_t u)
{
    memcpy(p + i * 4, &u, 4);
}

static inline void store_u16(unsigned char *p, uint64_t i, uint16_t u)
{
    memcpy(p + i * 2, &u, 2);
}

/* sheaf__bf16_of_f32 by selection instead of a branch, so that the loop vectorises. */
static inline uint16_t narrow_bf16(uint32_t u)
{
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* sheaf__f32_of_f16 by selection. A denormal m * 2^-24 is the exact difference of two normal
 * numbers, (2^-14 + m * 2^-24) - 2^-14; the sign is masked because a zero difference is negative
 * when rounding is downwards. */
static inline uint32_t widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t shifted = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t exponent = shifted & 0x0f800000u;
    uint32_t normal = shifted + (112u << 23);
    uint32_t special = (shifted + (224u << 23)) | (shifted & 0x7fffffu ? 0x400000u : 0u);
    float difference =
        sheaf__f32_of_bits(shifted + (113u << 23)) - sheaf__f32_of_bits(113u << 23);
    uint32_t denormal = sheaf__bits_of_f32(difference) & 0x7fffffffu;
    uint32_t magnitude = exponent == 0 ? denormal : exponent == 0x0f800000u ? special : normal;
    return sign | magnitude;
}

static inline uint16_t narrow_f16(uint32_t u)
{
    return sheaf__f16_of_f32(sheaf__f32_of_bits(u));
}

/* ---- runs of numbers ----------------------------------------------------------------------- */

static void copy_32(unsigned char *restrict dst, const unsigned char *restrict src,
                    uint64_t count)
{
    memcpy(dst, src, count * 4);
}

static void copy_16(unsigned char *restrict dst, const unsigned char *restrict src,
                    uint64_t count)
{
    memcpy(dst, src, count * 2);
}

static void f16_of_f32(unsigned char *restrict dst, const unsigned char *restrict src,
                       uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) store_u16(dst, i, narrow_f16(load_u32(src, i)));
}

static void bf16_of_f32(unsigned char *restrict dst, const unsigned char *restrict src,
                        uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) store_u16(dst, i, narrow_bf16(load_u32(src, i)));
}

static void f32_of_f16(unsigned char *restrict dst, const unsigned char *restrict src,
                       uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) store_u32(dst, i, widen_f16(load_u16(src, i)));
}

static void f32_of_bf16(unsigned char *restrict dst, const unsigned char *restrict src,
                        uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) store_u32(dst, i, (uint32_t)load_u16(src, i) << 16);
}

static void bf16_of_f16(unsigned char *restrict dst, const unsigned char *restrict src,
                        uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        store_u16(dst, i, narrow_bf16(widen_f16(load_u16(src, i))));
}

static void f16_of_bf16(unsigned char *restrict dst, const unsigned char *restrict src,
                        uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        store_u16(dst, i, narrow_f16((uint32_t)load_u16(src, i) << 16));
}

/* [to][from] */
static convert_fn *const conversions[SHEAF_DTYPE_COUNT][SHEAF_DTYPE_COUNT] = {
    [SHEAF_CODEC_F32] = {copy_32, f32_of_f16, f32_of_bf16},
    [SHEAF_CODEC_F16] = {f16_of_f32, copy_16, f16_of_bf16},
    [SHEAF_CODEC_BF16] = {bf16_of_f32, bf16_of_f16, copy_16},
};

/* ---- rows of a segment --------------------------------------------------------------------- */

/* Where the codes and the scale of a slot lie. */
static uint64_t codes_at(uint32_t codec, uint32_t dim, uint32_t slot)
{
    return slot * sheaf__codec_row_bytes(codec, dim);
}

static uint64_t scale_at(uint32_t codec, uint32_t dim, uint32_t block_tokens, uint32_t slot)
{
    return codes_at(codec, dim, block_tokens) + 4ull * slot;
}

static void encode_raw(uint32_t codec, unsigned char *to, uint32_t dim, uint32_t n,
                       uint32_t dtype, const unsigned char *from, uint64_t src_stride)
{
    convert_fn *convert = conversions[codec][dtype];
    if (src_stride == dim) {
        convert(to, from, (uint64_t)n * dim);
        return;
    }
    uint64_t row_bytes = sheaf__codec_row_bytes(codec, dim);
    uint64_t step = sheaf__codec_row_bytes(dtype, 1) * src_stride;
    for (uint32_t i = 0; i < n; i++) convert(to + i * row_bytes, from + i * step, dim);
}

sheaf_status sheaf_codec_encode(uint32_t codec, void *segment, uint32_t block_tokens,
                                uint32_t dim, uint32_t first_slot, uint32_t n, uint32_t dtype,
                                const void *src, uint64_t src_stride)
{
    SHEAF__TRY(check_slots(codec, dim, block_tokens, first_slot, n));
    if (dtype >= SHEAF_DTYPE_COUNT) return SHEAF_E_INVALID;
    if (n == 0 || dim == 0) return SHEAF_OK;
    unsigned char *codes = (unsigned char *)segment + codes_at(codec, dim, first_slot);
    if (!sheaf__codec_is_quantized(codec)) {
        encode_raw(codec, codes, dim, n, dtype, src, src_stride);
        return SHEAF_OK;
    }
    unsigned char *scales =
        (unsigned char *)segment + scale_at(codec, dim, block_tokens, first_slot);
    const sheaf__quantized_kernels *kernels = sheaf__quantized_kernels_best();
    sheaf__encode_row_fn *encode =
        codec == SHEAF_CODEC_INT8 ? kernels->encode_int8 : kernels->encode_turbo4;
    uint64_t row_bytes = sheaf__codec_row_bytes(codec, dim);
    uint64_t step = sheaf__codec_row_bytes(dtype, 1) * src_stride;
    uint64_t fpenv = sheaf__fpenv_enter();
    for (uint32_t i = 0; i < n; i++)
        encode((const unsigned char *)src + i * step, dtype, dim, codes + i * row_bytes,
               scales + 4ull * i);
    sheaf__fpenv_leave(fpenv);
    return SHEAF_OK;
}

sheaf_status sheaf_codec_decode(uint32_t codec, const void *segment, uint32_t block_tokens,
                                uint32_t dim, uint32_t first_slot, uint32_t n, float *dst)
{
    SHEAF__TRY(check_slots(codec, dim, block_tokens, first_slot, n));
    if (n == 0 || dim == 0) return SHEAF_OK;
    const unsigned char *codes =
        (const unsigned char *)segment + codes_at(codec, dim, first_slot);
    unsigned char *to = (unsigned char *)dst;
    if (!sheaf__codec_is_quantized(codec)) {
        conversions[SHEAF_CODEC_F32][codec](to, codes, (uint64_t)n * dim);
        return SHEAF_OK;
    }
    const unsigned char *scales =
        (const unsigned char *)segment + scale_at(codec, dim, block_tokens, first_slot);
    const sheaf__quantized_kernels *kernels = sheaf__quantized_kernels_best();
    sheaf__decode_row_fn *decode =
        codec == SHEAF_CODEC_INT8 ? kernels->decode_int8 : kernels->decode_turbo4;
    uint64_t row_bytes = sheaf__codec_row_bytes(codec, dim);
    uint64_t fpenv = sheaf__fpenv_enter();
    for (uint32_t i = 0; i < n; i++) {
        float scale;
        memcpy(&scale, scales + 4ull * i, 4);
        decode(codes + i * row_bytes, scale, dim, to + 4ull * i * dim);
    }
    sheaf__fpenv_leave(fpenv);
    return SHEAF_OK;
}

sheaf_status sheaf__codec_clear(uint32_t codec, void *segment, uint32_t block_tokens,
                                uint32_t dim, uint32_t first_slot, uint32_t n)
{
    SHEAF__TRY(check_slots(codec, dim, block_tokens, first_slot, n));
    if (n == 0 || dim == 0) return SHEAF_OK;
    unsigned char *bytes = segment;
    memset(bytes + codes_at(codec, dim, first_slot), 0, codes_at(codec, dim, n));
    if (sheaf__codec_is_quantized(codec))
        memset(bytes + scale_at(codec, dim, block_tokens, first_slot), 0, 4ull * n);
    return SHEAF_OK;
}
