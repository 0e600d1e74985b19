/* base/isa.c - which instruction sets the processor and this build have. */
#include "sheaf/status.h"

#if defined(__x86_64__)
#    include <cpuid.h>
#endif

static const char *const names[] = {"auto", "scalar", "avx2", "avx512", "neon"};

#if defined(__x86_64__)
/* clang 14 has no __builtin_cpu_supports("f16c"). */
static int f16c_present(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

static int isa_present(uint32_t isa)
{
#if defined(__x86_64__)
    /* The scalar form too is built with fused multiply-add: see docs/adr/0003. */
    int fma = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") && f16c_present();
    if (isa == SHEAF_ISA_SCALAR || isa == SHEAF_ISA_AVX2) return fma;
    if (isa == SHEAF_ISA_AVX512)
        return fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return 0;
#else
    /* NEON with fused multiply-add is part of every AArch64. */
    return isa == SHEAF_ISA_SCALAR || isa == SHEAF_ISA_NEON;
#endif
}

uint32_t sheaf_isa_best(void)
{
    static const uint32_t order[] = {SHEAF_ISA_AVX512, SHEAF_ISA_AVX2, SHEAF_ISA_NEON};
    for (uint32_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (isa_present(order[i])) return order[i];
    return SHEAF_ISA_SCALAR;
}

sheaf_status sheaf_isa_resolve(uint32_t isa, uint32_t *resolved)
{
    if (resolved == NULL || isa > SHEAF_ISA_NEON) return SHEAF_E_INVALID;
    uint32_t wanted = isa == SHEAF_ISA_AUTO ? sheaf_isa_best() : isa;
    if (!isa_present(wanted)) return SHEAF_E_UNSUPPORTED;
    *resolved = wanted;
    return SHEAF_OK;
}

const char *sheaf_isa_name(uint32_t isa)
{
    return isa < sizeof names / sizeof names[0] ? names[isa] : "unknown";
}
