/* codec/quantized.c - the tables of turbo4, and which forms of the quantized codecs run. */
#include "codec/quantized.h"

#include <stdatomic.h>

#include "codec/codec.h"

/* The Lloyd-Max levels of a unit Gaussian for 16 codes, times 127 / 2.7326, rounded. */
const int8_t sheaf__turbo4_levels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                         6,    18,  31,  44,  58,  75,  96,  127};

/* The first outputs of splitmix64 from state 0. */
const uint64_t sheaf__turbo4_signs[8] = {
    0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec,
    0x1b39896a51a8749b, 0x53cb9f0c747ea2ea, 0x2c829abe1f4532e1, 0xc584133ac916ab3c};

const sheaf__quantized_kernels *sheaf__quantized_kernels_of(uint32_t isa)
{
    switch (isa) {
    case SHEAF_ISA_SCALAR: return &sheaf__quantized_scalar;
#if defined(__x86_64__)
    case SHEAF_ISA_AVX2: return &sheaf__quantized_avx2;
    case SHEAF_ISA_AVX512: return &sheaf__quantized_avx512;
#elif defined(__aarch64__)
    case SHEAF_ISA_NEON: return &sheaf__quantized_neon;
#endif
    default: return NULL;
    }
}

const sheaf__quantized_kernels *sheaf__quantized_kernels_best(void)
{
    static const sheaf__quantized_kernels *_Atomic known;
    const sheaf__quantized_kernels *best = atomic_load_explicit(&known, memory_order_acquire);
    if (best != NULL) return best;
    best = sheaf__quantized_kernels_of(sheaf_isa_best()); /* scalar at worst */
    atomic_store_explicit(&known, best, memory_order_release);
    return best;
}

void sheaf__turbo4_rotate(float *x, uint32_t dim)
{
    sheaf__quantized_kernels_best()->rotate(x, dim);
}

void sheaf__turbo4_unrotate(float *x, uint32_t dim)
{
    sheaf__quantized_kernels_best()->unrotate(x, dim);
}
