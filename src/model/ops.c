/* model/ops.c - which table of operations an instruction set has. */
#include "model/ops_tables.h"

const sheaf__ops *sheaf__ops_for(uint32_t isa)
{
#if defined(__x86_64__)
    if (isa == SHEAF_ISA_AVX512) return &sheaf__ops_avx512;

    if (isa == SHEAF_ISA_AVX2) return &sheaf__ops_avx2;
#elif defined(__aarch64__)
    if (isa == SHEAF_ISA_NEON) return &sheaf__ops_neon;
#endif
    return isa == SHEAF_ISA_SCALAR ? &sheaf__ops_scalar : NULL;
}
