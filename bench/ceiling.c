/* bench/ceiling.c - what the machine can do at best, and measuring against it. */
#include "bench.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/thread.h"
#include "ceilings.h"

#define MIB           (1024ull * 1024)
#define MEMORY_BYTES  (1280 * MIB) /* beyond any last-level cache */
#define QUICK_BYTES   (320 * MIB)
#define TINY_BYTES    (8 * MIB)
#define PIECE_BYTES   (2 * MIB) /* what one task reads or copies */
#define FMA_TASKS     64
#define FMA_SECONDS   0.1
#define TINY_SECONDS  0.001
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

void bench_shuffled(uint32_t *rows, uint32_t n)
{
    uint64_t random = 1;
    for (uint32_t i = 0; i < n; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t j = (uint32_t)((random >> 33) % (i + 1));
        rows[i] = rows[j];
        rows[j] = i;
    }
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

/* Rounds so that one sample takes FMA_SECONDS; 1,000 rounds are some microseconds a task. */
static double sample_fma(bench *b, sample *s)
{
    const double wanted = b->tiny ? TINY_SECONDS : FMA_SECONDS;
    s->rounds = 1000;
    double seconds = time_tasks(b, fma_piece, s, FMA_TASKS);
    if (seconds < wanted) {
        s->rounds = (uint64_t)((double)s->rounds * wanted / (seconds + 1e-6)) + 1;
        seconds = time_tasks(b, fma_piece, s, FMA_TASKS);
    }
    return (double)s->rounds * s->loops->flop_a_round * FMA_TASKS / seconds;
}

double bench_ceiling(bench *b, uint32_t which)
{
    if (which != BENCH_FMA_PEAK && b->memory == NULL) {
        b->memory_bytes = bench_size(b, MEMORY_BYTES, QUICK_BYTES, TINY_BYTES);
        b->memory = bench_map(b->memory_bytes);
        if (b->memory == NULL) {
            fprintf(stderr, "%s: no memory for the ceiling's buffer\n", b->name);
            return 0;
        }
    }
    sample s = {loops_of(b), b->memory, b->memory_bytes / 2, 0};
    if (which == BENCH_FMA_PEAK) return sample_fma(b, &s);
    if (which == BENCH_MEMORY_COPY) {
        uint32_t pieces = (uint32_t)(s.half_bytes / PIECE_BYTES);
        return (double)s.half_bytes / time_tasks(b, copy_piece, &s, pieces);
    }
    uint32_t pieces = (uint32_t)(b->memory_bytes / PIECE_BYTES);
    return (double)b->memory_bytes / time_tasks(b, sum_piece, &s, pieces);
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

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static uint32_t groups_of(const bench *b)
{
    if (b->groups != 0 && !b->tiny) return b->groups < RUNS ? b->groups : RUNS;
    return (uint32_t)bench_size(b, RUNS, QUICK_RUNS, 1);
}

/* The seconds that a group of runs takes at least. */
static double group_seconds(const bench *b)
{
    if (b->tiny) return 0;
    return (b->quick ? QUICK_SECONDS : LEAST_SECONDS) / groups_of(b);
}

/* Runs until the group's seconds are over; returns those of the fastest run. */
static double run_group(const bench *b, void (*fn)(void *arg), void *arg, uint32_t *runs)
{
    double least = 0, spent = 0;
    for (uint32_t i = 0; i == 0 || (i < MOST_RUNS && spent < group_seconds(b)); i++) {
        double seconds = time_call(fn, arg);
        spent += seconds;
        if (i == 0 || seconds < least) least = seconds;
        ++*runs;
    }
    return least;
}

void bench_measure(bench *b, uint32_t ceiling, double work, void (*fn)(void *arg), void *arg,
                   bench_best *best)
{
    double ratios[RUNS];
    const uint32_t n = groups_of(b);
    *best = (bench_best){0};
    fn(arg); /* pages, caches, code */
    double before = bench_ceiling(b, ceiling);
    for (uint32_t i = 0; i < n; i++) {
        double seconds = run_group(b, fn, arg, &best->runs);
        double after = bench_ceiling(b, ceiling), top = before > after ? before : after;
        ratios[i] = top > 0 ? work / seconds / top : 0;
        if (i == 0 || seconds < best->seconds) {
            best->seconds = seconds;
            best->rate = work / seconds;
            best->ceiling = top;
            best->ratio = ratios[i];
        }
        before = after;
    }
    qsort(ratios, n, sizeof *ratios, by_value);
    best->median = ratios[n / 2];
}

void bench_compare(bench *b, double work, void (*fn)(void *arg), void *arg,
                   void (*baseline)(void *arg), void *baseline_arg, bench_best *best)
{
    double ratios[RUNS], least_baseline = 0;
    const uint32_t n = groups_of(b);
    *best = (bench_best){0};
    fn(arg);
    baseline(baseline_arg);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t others = 0;
        double other = run_group(b, baseline, baseline_arg, &others);
        double seconds = run_group(b, fn, arg, &best->runs);
        ratios[i] = other / seconds;
        if (i == 0 || seconds < best->seconds) best->seconds = seconds;
        if (i == 0 || other < least_baseline) least_baseline = other;
    }
    qsort(ratios, n, sizeof *ratios, by_value);
    best->rate = work / best->seconds;
    best->ceiling = work / least_baseline;
    best->ratio = least_baseline / best->seconds;
    best->median = ratios[n / 2];
}
