/* base/bits.h - powers of two, and 64-bit arithmetic that says when it does not fit. */
#ifndef SHEAF_BASE_BITS_H
#define SHEAF_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool sheaf__is_pow2(uint64_t x)
{
    return x != 0 && (x & (x - 1)) == 0;
}

/* Index of the highest bit set; x != 0. */
static inline uint32_t sheaf__log2(uint64_t x)
{
    return 63u - (uint32_t)__builtin_clzll(x);
}

/* Each returns false, *out untouched, when the result does not fit. */
static inline bool sheaf__add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool sheaf__mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* Rounds up to a multiple of a power of two. */
static inline bool sheaf__round_up_u64(uint64_t x, uint64_t multiple, uint64_t *out)
{
    uint64_t r;
    if (!sheaf__add_u64(x, multiple - 1, &r)) return false;
    *out = r & ~(multiple - 1);
    return true;
}

static inline uint64_t sheaf__min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t sheaf__max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t sheaf__ceil_div_u64(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static inline uint32_t sheaf__bits_of_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float sheaf__f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#endif
