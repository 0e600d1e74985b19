/* bench/bench_layout.c - does it cost reading speed to keep all layers of a block in one span?
 *
 * The same tiles in three orders; a kernel's way of reading: layers visited in turn, per layer the K
 * and V tiles of all blocks, rows shuffled. And the other side: taking whole blocks out, as copy, save
 * and hand-off do, in one span or in a piece per tile.
 *
 *   span     [row][layer][K, V]     the pool's
 *   layers   [layer][row][K, V]
 *   tensors  [layer][K or V][row]
 */
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "ceilings.h"

#define N_LAYERS   28
#define TASK_BYTES 65536

enum { SPAN, LAYERS, TENSORS };
static const char *const order_names[] = {"span", "layers", "tensors"};

typedef struct rig {
    bench *b;
    const bench__loops *loops;
    unsigned char *memory; /* n_rows * N_LAYERS * 2 tiles, in any of the orders */
    unsigned char *out;    /* a block a thread */
    uint32_t *rows;        /* [n_rows], shuffled */
    uint32_t n_rows;
    uint32_t rows_a_task; /* so that a task is never less than a big block's tile */
    uint64_t tile_bytes;
} rig;

typedef struct job {
    const rig *r;
    uint32_t order;
    uint32_t layer;
    bool in_pieces;
    _Atomic uint64_t sink;
} job;

static const unsigned char *tile_of(const rig *r, uint32_t order, uint64_t row, uint64_t layer,
                                    uint64_t v)
{
    uint64_t tile = order == SPAN     ? (row * N_LAYERS + layer) * 2 + v
                    : order == LAYERS ? (layer * r->n_rows + row) * 2 + v
                                      : (layer * 2 + v) * r->n_rows + row;
    return r->memory + tile * r->tile_bytes;
}

static void read_rows(void *arg, uint32_t task, uint32_t thread)
{
    job *j = arg;
    const rig *r = j->r;
    const uint32_t *rows = r->rows + (uint64_t)task * r->rows_a_task;
    (void)thread;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->rows_a_task; i++)
        for (uint64_t v = 0; v < 2; v++)
            sum += r->loops->sum(tile_of(r, j->order, rows[i], j->layer, v), r->tile_bytes);
    j->sink += sum;
}

static void read_all(void *arg)
{
    job *j = arg;
    const rig *r = j->r;
    for (j->layer = 0; j->layer < N_LAYERS; j->layer++)
        sheaf__threads_run(r->b->threads, read_rows, j, r->n_rows / r->rows_a_task);
}

static void copy_row(const rig *r, uint32_t row, bool in_pieces, unsigned char *to)
{
    if (!in_pieces) {
        memcpy(to, tile_of(r, SPAN, row, 0, 0), 2 * N_LAYERS * r->tile_bytes);
        return;
    }
    for (uint64_t layer = 0; layer < N_LAYERS; layer++)
        for (uint64_t v = 0; v < 2; v++, to += r->tile_bytes)
            memcpy(to, tile_of(r, TENSORS, row, layer, v), r->tile_bytes);
}

static void copy_rows(void *arg, uint32_t task, uint32_t thread)
{
    job *j = arg;
    const rig *r = j->r;
    const uint32_t *rows = r->rows + (uint64_t)task * r->rows_a_task;
    unsigned char *to = r->out + thread * 2 * N_LAYERS * r->tile_bytes;
    for (uint32_t i = 0; i < r->rows_a_task; i++) copy_row(r, rows[i], j->in_pieces, to);
}

static void copy_all(void *arg)
{
    job *j = arg;
    const rig *r = j->r;
    sheaf__threads_run(r->b->threads, copy_rows, j, r->n_rows / r->rows_a_task);
}

static bool rig_open(rig *r, bench *b, uint32_t n_rows, uint64_t tile_bytes)
{
    *r = (rig){
        .b = b, .loops = &bench__loops_scalar, .n_rows = n_rows, .tile_bytes = tile_bytes};
#if defined(__x86_64__)
    if (b->isa == SHEAF_ISA_AVX2) r->loops = &bench__loops_avx2;
    if (b->isa == SHEAF_ISA_AVX512) r->loops = &bench__loops_avx512;
#endif
    r->rows_a_task = tile_bytes < TASK_BYTES ? (uint32_t)(TASK_BYTES / tile_bytes) : 1;
    uint64_t block_bytes = 2 * N_LAYERS * tile_bytes;
    r->memory = bench_map(n_rows * block_bytes);
    r->out = bench_map(sheaf_threads_count(b->threads) * block_bytes);
    r->rows = malloc(n_rows * sizeof *r->rows);
    if (r->memory == NULL || r->out == NULL || r->rows == NULL) return false;
    bench_shuffled(r->rows, n_rows);
    return true;
}

static void rig_close(rig *r)
{
    uint64_t block_bytes = 2 * N_LAYERS * r->tile_bytes;
    bench_unmap(r->memory, r->n_rows * block_bytes);
    bench_unmap(r->out, sheaf_threads_count(r->b->threads) * block_bytes);
    free(r->rows);
}

static void measure(rig *r)
{
    double work = (double)r->n_rows * 2 * N_LAYERS * (double)r->tile_bytes;
    job span = {.r = r, .order = SPAN};
    char name[64];
    bench_best best;
    bench_measure(r->b, BENCH_MEMORY_READ, work, read_all, &span, &best);
    double ceiling = best.ceiling;
    for (uint32_t order = SPAN; order <= TENSORS; order++) {
        job j = {.r = r, .order = order};
        bench_best other = best;
        if (order != SPAN) bench_compare(r->b, work, read_all, &j, read_all, &span, &other);
        snprintf(name, sizeof name, "read, %u blocks of %.0f KiB, %s", r->n_rows,
                 2 * N_LAYERS * (double)r->tile_bytes / 1024, order_names[order]);
        bench_row(r->b, name, other.rate / 1e9, other.rate / ceiling,
                  order == SPAN ? 1.0 : other.ratio);
    }
    job pieces = {.r = r, .in_pieces = true};
    bench_compare(r->b, work, copy_all, &pieces, copy_all, &span, &best);
    snprintf(name, sizeof name, "copy out, %u blocks, one span each", r->n_rows);
    bench_row(r->b, name, best.ceiling / 1e9, NAN, 1.0);
    snprintf(name, sizeof name, "copy out, %u blocks, %d pieces each", r->n_rows, 2 * N_LAYERS);
    bench_row(r->b, name, best.rate / 1e9, NAN, best.ratio);
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "layout", "one span a block: what does it cost, what does it give?",
                     argc, argv))
        return 2;
    uint32_t n_rows = bench_option_u32(&b, "--blocks", b.quick ? 64 : 320);
    static const bench_column columns[] = {
        {"speed", "GB/s"}, {"of memory read", "ratio"}, {"of span", "ratio"}};
    bench_table(&b, columns, 3);
    /* tiles of 8 heads, 32 tokens, 128 numbers in bf16; then of 1 head, 4 tokens */
    static const uint64_t tiles[] = {TASK_BYTES, 1024};
    for (int i = 0; i < 2; i++) {
        rig r;
        if (!rig_open(&r, &b, n_rows * (uint32_t)(tiles[0] / tiles[i]), tiles[i])) return 1;
        measure(&r);
        rig_close(&r);
    }
    bench_note(&b,
               "28 layers visited in turn, K and V of every block, rows shuffled; all threads");
    return bench_end(&b);
}
