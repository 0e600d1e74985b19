/* bench/ceiling.c - what the machine can do at best, and measuring against it. */
#include "bench.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/thread.h"
#include "ceilings.h"

#define MIB           (1024ull * 1024)
#define MEMORY_BYTES  (1280 * MIB) /* beyond any last-level cache */
#define QUICK_BYTES   (320 * MIB)
#define PIECE_BYTES   (2 * MIB) /* what one task reads or copies */
#define FMA_TASKS     64
#define FMA_SECONDS   0.1
#define RUNS          8
#define QUICK_RUNS    3
#define LEAST_SECONDS 1.0 /* a measurement takes this long at least, more runs if need be */
#define QUICK_SECONDS 0.2
#define MOST_RUNS     200

static _Atomic uint64_t sink; /* where results go, so that no loop is optimised away */

double bench_seconds(void)
{
    return (double)sheaf__clock_ns() * 1e-9;
}

void *bench_map(uint64_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes); /* untouched pages would all be the one zero page */
    return memory;
}

void bench_unmap(void *memory, uint64_t bytes)
{
    if (memory != NULL) munmap(memory, bytes);
}

static const bench__loops *loops_of(const bench *b)
{
#if defined(__x86_64__)
    if (b->isa == SHEAF_ISA_AVX512) return &bench__loops_avx512;
    if (b->isa == SHEAF_ISA_AVX2) return &bench__loops_avx2;
#endif
    (void)b;
    return &bench__loops_scalar;
}

typedef struct sample {
    const bench__loops *loops;
    unsigned char *memory;
    uint64_t half_bytes;
    uint64_t rounds;
} sample;

static void sum_piece(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const sample *s = arg;
    uint64_t total = s->loops->sum(s->memory + task * PIECE_BYTES, PIECE_BYTES);
    atomic_fetch_add_explicit(&sink, total, memory_order_relaxed);
}

static void copy_piece(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const sample *s = arg;
    unsigned char *from = s->memory + task * PIECE_BYTES;
    memcpy(from + s->half_bytes, from, PIECE_BYTES);
}

static void fma_piece(void *arg, uint32_t task, uint32_t thread)
{
    (void)task, (void)thread;
    const sample *s = arg;
    float value = s->loops->fma(s->rounds);
    atomic_fetch_add_explicit(&sink, (uint64_t)value, memory_order_relaxed);
}

static double time_tasks(bench *b, sheaf__task_fn *fn, sample *s, uint32_t n_tasks)
{
    double start = bench_seconds();
    sheaf__threads_run(b->threads, fn, s, n_tasks);
    return bench_seconds() - start;
}

/* Rounds so that one sample takes FMA_SECONDS; 1e5 rounds are some tens of microseconds a task. */
static double sample_fma(bench *b, sample *s)
{
    s->rounds = 100000;
    double seconds = time_tasks(b, fma_piece, s, FMA_TASKS);
    if (seconds < FMA_SECONDS) {
        s->rounds = (uint64_t)((double)s->rounds * FMA_SECONDS / (seconds + 1e-6)) + 1;
        seconds = time_tasks(b, fma_piece, s, FMA_TASKS);
    }
    return (double)s->rounds * s->loops->flop_a_round * FMA_TASKS / seconds;
}

double bench_ceiling(bench *b, uint32_t which)
{
    if (which != BENCH_FMA_PEAK && b->memory == NULL) {
        b->memory_bytes = b->quick ? QUICK_BYTES : MEMORY_BYTES;
        b->memory = bench_map(b->memory_bytes);
        if (b->memory == NULL) {
            fprintf(stderr, "%s: no memory for the ceiling's buffer\n", b->name);
            return b->ceilings[which];
        }
    }
    sample s = {loops_of(b), b->memory, b->memory_bytes / 2, 0};
    double rate;
    if (which == BENCH_FMA_PEAK) {
        rate = sample_fma(b, &s);
    } else if (which == BENCH_MEMORY_COPY) {
        uint32_t pieces = (uint32_t)(s.half_bytes / PIECE_BYTES);
        rate = (double)s.half_bytes / time_tasks(b, copy_piece, &s, pieces);
    } else {
        uint32_t pieces = (uint32_t)(b->memory_bytes / PIECE_BYTES);
        rate = (double)b->memory_bytes / time_tasks(b, sum_piece, &s, pieces);
    }
    if (rate > b->ceilings[which]) b->ceilings[which] = rate;
    return b->ceilings[which];
}

const char *bench_ceiling_name(uint32_t which)
{
    static const char *const names[] = {"memory read", "memory copy", "FMA peak"};
    return which < BENCH_CEILINGS ? names[which] : "unknown";
}

const char *bench_ceiling_unit(uint32_t which)
{
    return which == BENCH_FMA_PEAK ? "FLOP/s" : "B/s";
}

static double time_call(void (*fn)(void *arg), void *arg)
{
    double start = bench_seconds();
    fn(arg);
    return bench_seconds() - start;
}

static bool enough(const bench *b, uint32_t runs, double seconds)
{
    if (runs >= MOST_RUNS) return true;
    return runs >= (b->quick ? QUICK_RUNS : RUNS) &&
           seconds >= (b->quick ? QUICK_SECONDS : LEAST_SECONDS);
}

void bench_measure(bench *b, uint32_t ceiling, double work, void (*fn)(void *arg), void *arg,
                   bench_best *best)
{
    double least = 0, spent = 0;
    uint32_t runs = 0;
    fn(arg); /* pages, caches, code */
    for (; !enough(b, runs, spent); runs++) {
        if (runs < RUNS) bench_ceiling(b, ceiling); /* of short runs not before every one */
        double seconds = time_call(fn, arg);
        spent += seconds;
        if (runs == 0 || seconds < least) least = seconds;
    }
    double top = bench_ceiling(b, ceiling);
    double rate = work / least;
    *best = (bench_best){rate, least, top, top > 0 ? rate / top : 0, runs};
}

void bench_compare(bench *b, double work, void (*fn)(void *arg), void *arg,
                   void (*baseline)(void *arg), void *baseline_arg, bench_best *best)
{
    double least = 0, least_baseline = 0, spent = 0;
    uint32_t runs = 0;
    fn(arg);
    baseline(baseline_arg);
    for (; !enough(b, runs, spent); runs++) {
        double other = time_call(baseline, baseline_arg);
        double seconds = time_call(fn, arg);
        spent += seconds;
        if (runs == 0 || seconds < least) least = seconds;
        if (runs == 0 || other < least_baseline) least_baseline = other;
    }
    *best =
        (bench_best){work / least, least, work / least_baseline, least_baseline / least, runs};
}
