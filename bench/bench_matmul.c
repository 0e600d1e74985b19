/* bench/bench_matmul.c - how near do matrix products come to what the machine can do?
 *
 * One row must be as fast as memory gives the weights, so it is compared with reading memory;
 * the weights are many matrices that no cache holds together, multiplied in turn, as the layers
 * of a network are. Eight rows should cost little more than one. 512 rows are compared with
 * multiplying registers alone. Both bounds are told of each.
 *
 * Options: --rows N (one row and N), --type bf16|f16|f32.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/matmul.h"

#define MAX_ROWS 512u
#define MIB      (1024ull * 1024)
#define CASES    2

typedef struct setup {
    sheaf__memory memory;
    sheaf__matmul *mm;
    unsigned char *weights; /* [n_matrices, n, k] of `dtype` */
    uint64_t bytes;
    uint64_t n_matrices;
    uint32_t dtype;
    uint32_t n, k;
    uint32_t rows;
    uint64_t repeat; /* matrices a run multiplies */
    float *x;        /* [MAX_ROWS, k] */
    float *y;        /* [MAX_ROWS, n] */
    sheaf_status status;
} setup;

static uint64_t matrix_bytes(const setup *s)
{
    return (uint64_t)s->n * s->k * (s->dtype == SHEAF_DTYPE_F32 ? 4 : 2);
}

static void multiply(void *arg)
{
    setup *s = arg;
    for (uint64_t i = 0; i < s->repeat; i++) {
        const sheaf__matrix w = {s->weights + i * matrix_bytes(s), s->dtype, s->n, s->k};
        sheaf_status status = sheaf__matmul_run(s->mm, &w, s->x, s->k, s->rows, s->y, s->n);
        if (status != SHEAF_OK) s->status = status;
    }
}

/* Bits that are small normal numbers in any of the types. */
static void fill(setup *s)
{
    uint32_t state = 1;
    for (uint64_t i = 0; i < s->n_matrices * matrix_bytes(s) / 2; i++) {
        state = state * 1664525u + 1013904223u;
        uint16_t bits = (uint16_t)(0x3c00u + (state >> 25) + (state >> 31 << 15));
        memcpy(s->weights + 2 * i, &bits, sizeof bits);
    }
    for (uint64_t i = 0; i < (uint64_t)MAX_ROWS * s->k; i++) {
        state = state * 1664525u + 1013904223u;
        s->x[i] = (float)(int32_t)state * 0x1p-31f;
    }
}

static bool prepare(setup *s, bench *b)
{
    s->bytes = bench_size(b, 1024 * MIB, 192 * MIB, matrix_bytes(s));
    s->n_matrices = s->bytes / matrix_bytes(s);
    s->weights = bench_map(s->bytes);
    s->x = malloc(sizeof *s->x * MAX_ROWS * s->k);
    s->y = malloc(sizeof *s->y * MAX_ROWS * s->n);
    if (s->weights == NULL || s->x == NULL || s->y == NULL) return false;
    fill(s);
    sheaf__memory_init(&s->memory, NULL);
    return sheaf__matmul_create(b->threads, b->isa, &s->memory, &s->mm) == SHEAF_OK &&
           sheaf__matmul_reserve(s->mm, MAX_ROWS, s->n, s->k) == SHEAF_OK;
}

static void release(setup *s)
{
    sheaf__matmul_destroy(s->mm);
    bench_unmap(s->weights, s->bytes);
    free(s->x);
    free(s->y);
}

/* A few rows against one row, in turns. */
static double times_one_row(bench *b, setup *s)
{
    setup one = *s;
    bench_best best;
    one.rows = 1;
    bench_compare(b, 1, multiply, s, multiply, &one, &best);
    return 1 / best.ratio;
}

/* One shape: `rows` of it in turn. */
static void measure_shape(bench *b, setup *s, const uint32_t *rows, uint32_t n_rows)
{
    static const char *const types[] = {"f32", "f16", "bf16"};
    for (uint32_t i = 0; i < n_rows; i++) {
        const bool many = rows[i] > 16;
        s->rows = rows[i];
        s->repeat = many ? 1 : s->n_matrices;
        double flop = 2.0 * (double)s->repeat * s->n * s->k * s->rows;
        double bytes = (double)(s->repeat * matrix_bytes(s)), peak = NAN, read = NAN;
        bench_best best;
        bench_measure(b, many ? BENCH_FMA_PEAK : BENCH_MEMORY_READ, many ? flop : bytes,
                      multiply, s, &best);
        if (many)
            peak = best.ratio;
        else
            peak = flop / best.seconds / bench_ceiling(b, BENCH_FMA_PEAK), read = best.ratio;
        char name[64];
        snprintf(name, sizeof name, "%ux%u %s m%u", s->n, s->k, types[s->dtype], s->rows);
        bench_row(b, name, best.seconds / (double)s->repeat * 1e6, flop / best.seconds * 1e-9,
                  peak, read, best.median,
                  many || rows[i] == 1 ? (double)NAN : times_one_row(b, s));
    }
}

/* bf16 at all rows, the others at one and at the most. */
static int measure_type(bench *b, uint32_t dtype, uint32_t own)
{
    static const uint32_t shapes[CASES][2] = {{3072, 1024}, {8192, 2048}};
    const uint32_t most = (uint32_t)bench_size(b, MAX_ROWS, MAX_ROWS, 32);
    const uint32_t usual[] = {1, 8, most}, few[] = {1, most}, chosen[] = {1, own};
    const bool bf16 = dtype == SHEAF_DTYPE_BF16;
    int code = 0;
    for (uint32_t i = 0; i < (bf16 ? CASES : 1u); i++) {
        setup s = {.status = SHEAF_OK, .dtype = dtype, .n = shapes[i][0], .k = shapes[i][1]};
        if (own > MAX_ROWS || !prepare(&s, b)) {
            fprintf(stderr, "bench_matmul: no memory, or over %u rows\n", MAX_ROWS);
            code = 1;
        } else {
            measure_shape(b, &s, own ? chosen : bf16 ? usual : few, own || !bf16 ? 2 : 3);
            if (s.status != SHEAF_OK) code = 1;
        }
        release(&s);
    }
    return code;
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "matmul", "how near to the machine's limits are matrix products?",
                     argc, argv))
        return 2;
    static const bench_column columns[] = {{"a product", "us"},
                                           {"done", "GFLOP/s"},
                                           {"of FMA peak", "ratio"},
                                           {"of read bandwidth", "ratio"},
                                           {"median of its bound", "ratio"},
                                           {"as long as one row", "times"}};
    uint32_t own = bench_option_u32(&b, "--rows", 0);
    const char *type = bench_option_text(&b, "--type", "");
    int code = 0;
    bench_table(&b, columns, 6);
    if (!*type || strcmp(type, "bf16") == 0) code |= measure_type(&b, SHEAF_DTYPE_BF16, own);
    if (!*type || strcmp(type, "f16") == 0) code |= measure_type(&b, SHEAF_DTYPE_F16, own);
    if (!*type || strcmp(type, "f32") == 0) code |= measure_type(&b, SHEAF_DTYPE_F32, own);
    bench_note(&b, "NxK: weights; mM: rows, f32; kernels: %s", sheaf_isa_name(b.isa));
    int end = bench_end(&b);
    return code ? code : end;
}
