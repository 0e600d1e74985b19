/* base/fpenv.h - the default floating-point environment, set and restored.
 *
 * A host may run us with flush-to-zero (any library built with -ffast-math sets it) or an odd
 * rounding mode; bits must not depend on it. Every entry point that computes, and every worker,
 * encloses its work in enter and leave.
 *
 * Compilers do not know that arithmetic depends on the environment: what is written to memory stays
 * between the two, but a value that lives in registers may be computed before or after (clang 14 does
 * so). Short work that is inlined there passes its inputs and results through volatile.
 */
#ifndef SHEAF_BASE_FPENV_H
#define SHEAF_BASE_FPENV_H

#include <float.h>
#include <stdint.h>

_Static_assert(FLT_EVAL_METHOD == 0, "float expressions must be evaluated as float");

/* No access to memory moves across. */
#define SHEAF__FPENV_BARRIER() __asm__ volatile("" : : : "memory")

#if defined(__x86_64__)
#    include <immintrin.h>

#    define SHEAF__MXCSR_DEFAULT                                                               \
        0x1f80u /* round to nearest, denormals kept, exceptions masked */

static inline uint64_t sheaf__fpenv_enter(void)
{
    uint32_t saved = _mm_getcsr();
    if (saved != SHEAF__MXCSR_DEFAULT) _mm_setcsr(SHEAF__MXCSR_DEFAULT);
    SHEAF__FPENV_BARRIER();
    return saved;
}

static inline void sheaf__fpenv_leave(uint64_t saved)
{
    SHEAF__FPENV_BARRIER();
    if ((uint32_t)saved != SHEAF__MXCSR_DEFAULT) _mm_setcsr((uint32_t)saved);
}

#elif defined(__aarch64__)

static inline uint64_t sheaf__fpenv_enter(void)
{
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    if (saved != 0) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    SHEAF__FPENV_BARRIER();
    return saved;
}

static inline void sheaf__fpenv_leave(uint64_t saved)
{
    SHEAF__FPENV_BARRIER();
    if (saved != 0) __asm__ volatile("msr fpcr, %0" : : "r"(saved));
}

#else
#    error "sheaf needs x86-64 or AArch64"
#endif

#endif
