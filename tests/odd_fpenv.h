/* odd_fpenv.h - a floating-point environment on which no bit may depend: denormals flushed to
 * zero, read and written, and rounding up; on AArch64 also default NaNs and the other f16. */
#ifndef SHEAF_TESTS_ODD_FPENV_H
#define SHEAF_TESTS_ODD_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#    include <immintrin.h>

#    define DEFAULT_FPENV 0x1f80u
#    define ODD_FPENV     (0x1f80u | 0x8000u | 0x0040u | 0x4000u)

static inline uint32_t fpenv_now(void)
{
    return _mm_getcsr() & ~0x3fu; /* less the flags that say what happened */
}

static inline void fpenv_set(uint32_t value)
{
    _mm_setcsr(value);
}

#else

#    define DEFAULT_FPENV 0u
#    define ODD_FPENV     (1u << 24 | 1u << 25 | 1u << 26 | 1u << 22)

static inline uint32_t fpenv_now(void)
{
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return (uint32_t)value;
}

static inline void fpenv_set(uint32_t value)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)value) : "memory");
}

#endif
#endif
