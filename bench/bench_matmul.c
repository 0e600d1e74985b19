/* bench/bench_matmul.c - how near do matrix products come to what the machine can do?
 *
 * One row must be as fast as memory gives the weights, so it is compared with reading memory;
 * the weights are many matrices that no cache holds together, multiplied in turn, as the layers
 * of a network are. Eight rows should cost little more than one. 512 rows are compared with
 * multiplying registers alone.
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/matmul.h"

#define MAX_ROWS  512u
#define MIB       (1024ull * 1024)
#define BYTES     (768 * MIB) /* of weights: beyond any last-level cache */
#define FEW_BYTES (192 * MIB)
#define CASES     2

typedef struct setup {
    sheaf__memory memory;
    sheaf__matmul *mm;
    uint16_t *weights; /* [n_matrices, n, k] bf16 */
    uint64_t n_matrices;
    uint32_t n, k;
    uint32_t rows;
    uint64_t repeat; /* matrices a run multiplies */
    float *x;        /* [MAX_ROWS, k] */
    float *y;        /* [MAX_ROWS, n] */
    sheaf_status status;
} setup;

static void multiply(void *arg)
{
    setup *s = arg;
    for (uint64_t i = 0; i < s->repeat; i++) {
        const sheaf__matrix w = {s->weights + i * s->n * s->k, SHEAF_DTYPE_BF16, s->n, s->k};
        sheaf_status status = sheaf__matmul_run(s->mm, &w, s->x, s->k, s->rows, s->y, s->n);
        if (status != SHEAF_OK) s->status = status;
    }
}

static void fill(setup *s)
{
    uint32_t state = 1;
    for (uint64_t i = 0; i < s->n_matrices * s->n * s->k; i++) {
        state = state * 1664525u + 1013904223u;
        s->weights[i] = (uint16_t)(0x3c00u + (state >> 25) + (state >> 31 << 15));
    }
    for (uint64_t i = 0; i < (uint64_t)MAX_ROWS * s->k; i++) {
        state = state * 1664525u + 1013904223u;
        s->x[i] = (float)(int32_t)state * 0x1p-31f;
    }
}

static bool prepare(setup *s, bench *b, uint32_t n, uint32_t k)
{
    uint64_t bytes = b->quick ? FEW_BYTES : BYTES;
    s->n = n;
    s->k = k;
    s->n_matrices = bytes / ((uint64_t)n * k * sizeof *s->weights);
    s->weights = bench_map(bytes);
    s->x = malloc(sizeof *s->x * MAX_ROWS * k);
    s->y = malloc(sizeof *s->y * MAX_ROWS * n);
    if (s->weights == NULL || s->x == NULL || s->y == NULL) return false;
    fill(s);
    sheaf__memory_init(&s->memory, NULL);
    return sheaf__matmul_create(b->threads, b->isa, &s->memory, &s->mm) == SHEAF_OK &&
           sheaf__matmul_reserve(s->mm, MAX_ROWS, n, k) == SHEAF_OK;
}

static void release(setup *s, const bench *b)
{
    sheaf__matmul_destroy(s->mm);
    bench_unmap(s->weights, b->quick ? FEW_BYTES : BYTES);
    free(s->x);
    free(s->y);
}

/* One shape: `rows` of it in turn. */
static void measure_shape(bench *b, setup *s, const uint32_t *rows, uint32_t n_rows)
{
    double one_row = NAN;
    for (uint32_t i = 0; i < n_rows; i++) {
        bool many = rows[i] > 16;
        s->rows = rows[i];
        s->repeat = many ? 1 : s->n_matrices;
        double products = (double)s->repeat * s->n * s->k;
        double work = many ? 2.0 * products * s->rows : products * sizeof *s->weights;
        bench_best best;
        bench_measure(b, many ? BENCH_FMA_PEAK : BENCH_MEMORY_READ, work, multiply, s, &best);
        double seconds = best.seconds / (double)s->repeat;
        if (rows[i] == 1) one_row = seconds;
        char name[64];
        snprintf(name, sizeof name, "%ux%u, %u row%s", s->n, s->k, s->rows,
                 s->rows == 1 ? "" : "s");
        bench_row(b, name, seconds * 1e6, 2e-9 * s->n * s->k * s->rows / seconds,
                  many ? best.ratio : NAN, many ? NAN : best.ratio, seconds / one_row);
    }
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "matmul", "how near to the machine's limits are matrix products?",
                     argc, argv))
        return 2;
    static const bench_column columns[] = {{"a product", "us"},
                                           {"arithmetic", "GFLOP/s"},
                                           {"of FMA peak", "ratio"},
                                           {"of memory read", "ratio"},
                                           {"of one row", "times"}};
    static const uint32_t shapes[CASES][2] = {{3072, 1024}, {8192, 2048}};
    uint32_t own = bench_option_u32(&b, "--rows", 0);
    const uint32_t usual[] = {1, 8, 512}, chosen[] = {1, own};
    int code = 0;
    bench_table(&b, columns, 5);
    for (uint32_t i = 0; i < CASES; i++) {
        setup s = {.status = SHEAF_OK};
        if (own > MAX_ROWS || !prepare(&s, &b, shapes[i][0], shapes[i][1])) {
            fprintf(stderr, "bench_matmul: no memory, or over %u rows\n", MAX_ROWS);
            code = 1;
        } else {
            measure_shape(&b, &s, own ? chosen : usual, own ? 2 : 3);
            if (s.status != SHEAF_OK) code = 1;
        }
        release(&s, &b);
    }
    bench_note(&b, "bf16 weights, n x k; f32 rows; kernels: %s", sheaf_isa_name(b.isa));
    int end = bench_end(&b);
    return code ? code : end;
}
