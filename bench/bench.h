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
 * Options of every bench: --quick (smaller, noisier), --threads N (default: one per online
 * processor), --save FILE (each number also goes there, as an object a line), --json (objects instead
 * of tables; head and notes go to standard error). What a bench does not ask for is refused by
 * bench_end, so that a misspelt option does not pass for a measurement. --tiny is for tests: sizes so
 * small that the figures mean nothing.
 *
 * An object has four fields, the number's meaning in the last; a row gives one for each column:
 *
 *     {"bench":"attention","case":"decode bf16 b1 c32768","value":0.87,"unit":"of read bandwidth"}
 */
#ifndef SHEAF_BENCH_H
#define SHEAF_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

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

/* The unit in JSON is the title where `unit` is "ratio" or "times" ("of read bandwidth", "times one
 * row"), else the unit and the title ("GB/s, K and V"). */
typedef struct bench_column {
    const char *title;
    const char *unit;
} bench_column;

typedef struct bench {
    const char *name;
    bool json;
    bool quick;
    bool tiny;       /* and quick */
    FILE *save;      /* null: nowhere */
    uint32_t groups; /* of runs, at most 8; 0: the usual number */
    uint32_t isa;    /* SHEAF_ISA_...: what the ceilings use */
    sheaf_threads *threads;
    int argc;
    char **argv;
    bool used[BENCH_MAX_ARGS]; /* arguments that some bench_option call has asked for */
    const bench_column *columns;
    uint32_t n_columns;
    unsigned char *memory; /* [memory_bytes], huge pages where the system gives them; lazily */
    uint64_t memory_bytes;
} bench;

/* The result of bench_measure. */
typedef struct bench_best {
    double rate;    /* work a second of the best run */
    double seconds; /* of the best run */
    double ceiling; /* the higher of the two samples beside the best run */
    double ratio;   /* rate / ceiling */
    double median;  /* of the ratios of all groups of runs to their neighbouring samples */
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

/* Of three sizes the one that was asked for. */
uint64_t bench_size(const bench *b, uint64_t usual, uint64_t quick, uint64_t tiny);

/* Takes one sample of a ceiling (a tenth of a second or so). 0: no memory, and a sentence was
 * printed. */
double bench_ceiling(bench *b, uint32_t which);

/* The ceiling's name ("memory read") and the unit of its rate ("B/s", "FLOP/s"). */
const char *bench_ceiling_name(uint32_t which);
const char *bench_ceiling_unit(uint32_t which);

/* Runs `fn` in 8 groups (3 with --quick) of one run or more, a sample of the ceiling before each and
 * after the last. What is reported is the fastest run, against the higher of the two samples beside its
 * group: the ceiling of a shared machine swings within seconds, and the same swing is in the run.
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

/* 0 to n - 1 in an order that is random and always the same. */
void bench_shuffled(uint32_t *rows, uint32_t n);

#endif
