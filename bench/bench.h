/* bench/bench.h - what all benches share: options, the head that names machine, commit and command,
 * tables, and ceilings measured in the same process.
 *
 * A bench answers one question, prints figures and never passes or fails on time.
 *
 *     int main(int argc, char **argv)
 *     {
 *         bench b;
 *         if (!bench_begin(&b, "attn", "how near to memory speed is decoding?", argc, argv)) return 2;
 *         uint32_t tokens = bench_option_u32(&b, "--tokens", 4096);
 *         static const bench_column columns[] = {{"read", "GB/s"}, {"of memory read", "ratio"}};
 *         bench_table(&b, columns, 2);
 *         bench_best best;
 *         bench_measure(&b, BENCH_MEMORY_READ, bytes, run_once, &state, &best);
 *         bench_row(&b, "decode, 4096 tokens", best.rate / 1e9, best.ratio);
 *         return bench_end(&b);
 *     }
 *
 * Options of every bench: --json (one object a line instead of tables), --quick (smaller, noisier),
 * --threads N (default: one per online processor). What a bench does not ask for is refused by
 * bench_end, so that a misspelt option does not pass for a measurement.
 */
#ifndef SHEAF_BENCH_H
#define SHEAF_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "sheaf/status.h"

#define BENCH_MAX_COLUMNS 8
#define BENCH_MAX_ARGS    64

/* What a rate is compared with. */
enum {
    BENCH_MEMORY_READ = 0, /* bytes a second, all threads summing a buffer beyond any cache */
    BENCH_MEMORY_COPY = 1, /* bytes copied a second by memcpy, all threads */
    BENCH_FMA_PEAK = 2, /* f32 operations a second (a fused multiply-add is two), all threads */
    BENCH_CEILINGS = 3
};

typedef struct bench_column {
    const char *title;
    const char *unit;
} bench_column;

typedef struct bench {
    const char *name;
    bool json;
    bool quick;
    uint32_t isa; /* SHEAF_ISA_...: what the ceilings use */
    sheaf_threads *threads;
    int argc;
    char **argv;
    bool used[BENCH_MAX_ARGS]; /* arguments that some bench_option call has asked for */
    const bench_column *columns;
    uint32_t n_columns;
    unsigned char *memory; /* [memory_bytes], huge pages where the system gives them; lazily */
    uint64_t memory_bytes;
    double ceilings[BENCH_CEILINGS]; /* the best sample so far; 0: not sampled */
} bench;

/* The result of bench_measure. */
typedef struct bench_best {
    double rate;    /* work a second of the best run */
    double seconds; /* of the best run */
    double ceiling; /* the best sample of the ceiling */
    double ratio;   /* rate / ceiling */
    uint32_t runs;
} bench_best;

/* Reads the options and prints the head. False: they are unusable, and a sentence was printed. */
bool bench_begin(bench *b, const char *name, const char *question, int argc, char **argv);

/* Value of an option of the bench's own: `--name value`; a flag: `--name`. */
uint32_t bench_option_u32(bench *b, const char *name, uint32_t otherwise);
const char *bench_option_text(bench *b, const char *name, const char *otherwise);
bool bench_option_flag(bench *b, const char *name);

/* Returns the exit code of the program: 2 when an argument was never asked for. Frees. */
int bench_end(bench *b);

/* Starts a table; `columns` must stay valid until the next one. A row has a case name and one double
 * a column; NAN prints as a dash and is left out of JSON. */
void bench_table(bench *b, const bench_column *columns, uint32_t n_columns);
void bench_row(bench *b, const char *name, ...);

/* A sentence under the table; a "note" object in JSON. */
void bench_note(bench *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Seconds from an arbitrary start. */
double bench_seconds(void);

/* Takes one sample of a ceiling (a tenth of a second or so) and returns the best one so far. */
double bench_ceiling(bench *b, uint32_t which);

/* The ceiling's name ("memory read") and the unit of its rate ("B/s", "FLOP/s"). */
const char *bench_ceiling_name(uint32_t which);
const char *bench_ceiling_unit(uint32_t which);

/* Runs `fn` at least 8 times (3 with --quick), the ceiling sampled between, and reports the best
 * run against the best sample: on a machine whose speed swings, best against best is the ratio that
 * repeats.
 *   work: what one run does, in the ceiling's unit (bytes, operations) */
void bench_measure(bench *b, uint32_t ceiling, double work, void (*fn)(void *arg), void *arg,
                   bench_best *best);

/* As above for two ways to do the same work, run in turns: the baseline's best rate stands for the
 * ceiling. */
void bench_compare(bench *b, double work, void (*fn)(void *arg), void *arg,
                   void (*baseline)(void *arg), void *baseline_arg, bench_best *best);

/* Memory as slabs are: anonymous, huge pages advised, every page written. Null: no memory. */
void *bench_map(uint64_t bytes);
void bench_unmap(void *memory, uint64_t bytes);

#endif
