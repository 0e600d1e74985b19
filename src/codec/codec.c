/* codec/codec.c - encoding and decoding the rows of a tile.
 *
 * Every conversion is a loop over one run of numbers, widened to the bits of an f32 and narrowed
 * again. All of it is integer arithmetic on bits, apart from one exact subtraction that widens f16
 * denormals: so neither the rounding mode nor flush to zero of the calling thread can show in a
 * result, and the loops need no floating-point environment of their own. Numbers are loaded and
 * stored through memcpy, since sources need not be aligned.
 */
#include "codec/codec.h"

#include <string.h>

#include "base/bits.h"
#include "base/half.h"

_Static_assert((int)SHEAF_CODEC_F32 == (int)SHEAF_DTYPE_F32 &&
                   (int)SHEAF_CODEC_F16 == (int)SHEAF_DTYPE_F16 &&
                   (int)SHEAF_CODEC_BF16 == (int)SHEAF_DTYPE_BF16,
               "the raw codecs are numbered like the element types that they store");

/* Converts `count` numbers; neither side need be aligned. */
typedef void convert_fn(unsigned char *restrict dst, const unsigned char *restrict src,
                        uint64_t count);

static const char *const names[SHEAF_CODEC_COUNT] = {"f32", "f16", "bf16"};
static const uint32_t element_bytes[SHEAF_CODEC_COUNT] = {4, 2, 2};

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

sheaf_status sheaf_codec_segment_bytes(uint32_t codec, uint32_t block_tokens, uint32_t dim,
                                       uint64_t *bytes)
{
    if (codec >= SHEAF_CODEC_COUNT) return SHEAF_E_CODEC;
    if (bytes == NULL) return SHEAF_E_INVALID;
    uint64_t numbers = (uint64_t)block_tokens * dim, product; /* 32 x 32 bits always fits */
    if (!sheaf__mul_u64(numbers, element_bytes[codec], &product)) return SHEAF_E_OVERFLOW;
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
static convert_fn *const conversions[SHEAF_CODEC_COUNT][SHEAF_CODEC_COUNT] = {
    [SHEAF_CODEC_F32] = {copy_32, f32_of_f16, f32_of_bf16},
    [SHEAF_CODEC_F16] = {f16_of_f32, copy_16, f16_of_bf16},
    [SHEAF_CODEC_BF16] = {bf16_of_f32, bf16_of_f16, copy_16},
};

/* ---- rows of a segment --------------------------------------------------------------------- */

sheaf_status sheaf_codec_encode(uint32_t codec, void *segment, uint32_t block_tokens,
                                uint32_t dim, uint32_t first_slot, uint32_t n, uint32_t dtype,
                                const void *src, uint64_t src_stride)
{
    if (codec >= SHEAF_CODEC_COUNT) return SHEAF_E_CODEC;
    if (dtype >= SHEAF_CODEC_COUNT) return SHEAF_E_INVALID;
    if (first_slot > block_tokens || n > block_tokens - first_slot) return SHEAF_E_INVALID;
    convert_fn *convert = conversions[codec][dtype];
    uint64_t row_bytes = (uint64_t)dim * element_bytes[codec];
    unsigned char *to = (unsigned char *)segment + first_slot * row_bytes;
    const unsigned char *from = src;
    if (n == 0 || dim == 0) return SHEAF_OK;
    if (src_stride == dim) {
        convert(to, from, (uint64_t)n * dim);
        return SHEAF_OK;
    }
    for (uint32_t i = 0; i < n; i++)
        convert(to + i * row_bytes, from + i * src_stride * element_bytes[dtype], dim);
    return SHEAF_OK;
}

sheaf_status sheaf_codec_decode(uint32_t codec, const void *segment, uint32_t block_tokens,
                                uint32_t dim, uint32_t first_slot, uint32_t n, float *dst)
{
    if (codec >= SHEAF_CODEC_COUNT) return SHEAF_E_CODEC;
    if (first_slot > block_tokens || n > block_tokens - first_slot) return SHEAF_E_INVALID;
    if (n == 0 || dim == 0) return SHEAF_OK;
    const unsigned char *from =
        (const unsigned char *)segment + (uint64_t)first_slot * dim * element_bytes[codec];
    conversions[SHEAF_CODEC_F32][codec]((unsigned char *)dst, from, (uint64_t)n * dim);
    return SHEAF_OK;
}

sheaf_status sheaf__codec_clear(uint32_t codec, void *segment, uint32_t block_tokens,
                                uint32_t dim, uint32_t first_slot, uint32_t n)
{
    if (codec >= SHEAF_CODEC_COUNT) return SHEAF_E_CODEC;
    if (first_slot > block_tokens || n > block_tokens - first_slot) return SHEAF_E_INVALID;
    uint64_t row_bytes = (uint64_t)dim * element_bytes[codec];
    if (n != 0 && dim != 0)
        memset((unsigned char *)segment + first_slot * row_bytes, 0, n * row_bytes);
    return SHEAF_OK;
}
