/* attn/kernels.c - which table belongs to which instruction set. */
#include "attn/kernels.h"

const sheaf__attn_kernels *sheaf__attn_kernels_of(uint32_t isa)
{
    switch (isa) {
    case SHEAF_ISA_SCALAR: return &sheaf__attn_scalar;
#if defined(__x86_64__)
    case SHEAF_ISA_AVX2: return &sheaf__attn_avx2;
    case SHEAF_ISA_AVX512: return &sheaf__attn_avx512;
#elif defined(__aarch64__)
    case SHEAF_ISA_NEON: return &sheaf__attn_neon;
#endif
    default: return NULL;
    }
}
