/* bench/ceilings.h - loops that do nothing but read memory or multiply, one set an instruction set. */
#ifndef SHEAF_BENCH_CEILINGS_H
#define SHEAF_BENCH_CEILINGS_H

#include <stdint.h>

typedef struct bench__loops {
    /* Sums `bytes` (a multiple of 1024) from `from`; the sum keeps the loads alive. */
    uint64_t (*sum)(const void *from, uint64_t bytes);
    /* Runs independent chains of fused multiply-adds, `rounds` long; returns something of all. */
    float (*fma)(uint64_t rounds);
    uint32_t flop_a_round; /* of `fma`: chains * lanes * 2 */
} bench__loops;

extern const bench__loops bench__loops_scalar;
#if defined(__x86_64__)
extern const bench__loops bench__loops_avx2;
extern const bench__loops bench__loops_avx512;
#endif

#endif
