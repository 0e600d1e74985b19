/* model/matmul.c - room for matrix products, and dealing them out to threads.
 *
 * Streamed products are cut along the outputs: each thread has a stretch of its own, which it takes
 * from the front in small pieces, so that it reads memory in one go; when it has none left it takes
 * pieces from the back of the others' stretches. Packed ones run in chunks of CHUNK_ROWS rows, so
 * that the copy of x stays in the caches and bounded; a task is a group of panels (tile_cols
 * outputs each) of one chunk, which packs its weights into its thread's scratch block by block
 * of k and uses them for every tile of rows. Where the outputs alone are too few for the
 * threads, the rows are cut too. Cuts change no bits: every output is computed whole, in one
 * task.
 */
#include "model/matmul_kernels.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "base/bits.h"
#include "base/status.h"

#define CHUNK_ROWS       512u /* about: rounded up to whole tiles */
#define STREAM_COLS      48u  /* outputs of a piece: whole groups of 2, 3, 4, 6 or 8 */
#define LAST_COLS        24u  /* the same, of a stretch's last pieces */
#define STREAM_PIECES    4u   /* of STREAM_COLS; with fewer left, pieces are small */
#define GROUP_COLS       64u  /* outputs of a packed task: a block of them fits L2 */
#define TASKS_PER_THREAD 4u
#define ALIGN            64u

/* What is left of a thread's stretch of outputs, on a line of its own. */
typedef struct stretch {
    _Alignas(ALIGN) _Atomic uint64_t left; /* begin << 32 | end */
} stretch;

struct sheaf__matmul {
    const sheaf__matmul_kernels *kernels;
    sheaf_threads *threads;
    sheaf__memory *memory;
    stretch *stretches; /* [threads] */
    uint32_t m, n, k;   /* reserved */
    float *x;           /* prepared or packed x */
    uint64_t x_floats;
    float *panels;         /* [threads, panel_floats]: packed weights */
    uint64_t panel_floats; /* of one thread; 0: none yet */
};

static const sheaf__matmul_kernels *kernels_for(uint32_t isa)
{
#if defined(__x86_64__)
    if (isa == SHEAF_ISA_AVX512) return &sheaf__matmul_avx512;

    if (isa == SHEAF_ISA_AVX2) return &sheaf__matmul_avx2;
#elif defined(__aarch64__)
    if (isa == SHEAF_ISA_NEON) return &sheaf__matmul_neon;
#endif
    return isa == SHEAF_ISA_SCALAR ? &sheaf__matmul_scalar : NULL;
}

sheaf_status sheaf__matmul_create(sheaf_threads *threads, uint32_t isa, sheaf__memory *memory,
                                  sheaf__matmul **out)
{
    uint32_t resolved;
    SHEAF__TRY(sheaf_isa_resolve(isa, &resolved));
    const sheaf__matmul_kernels *kernels = kernels_for(resolved);
    if (kernels == NULL) return SHEAF_E_UNSUPPORTED;
    sheaf__matmul *mm = sheaf__memory_alloc(memory, 1, sizeof *mm);
    if (mm == NULL) return SHEAF_E_NO_MEMORY;
    mm->kernels = kernels;
    mm->threads = threads;
    mm->memory = memory;
    mm->stretches = sheaf__memory_alloc_aligned(memory, sheaf_threads_count(threads),
                                                sizeof *mm->stretches, ALIGN);
    if (mm->stretches == NULL) {
        sheaf__memory_free(memory, mm, 1, sizeof *mm);
        return SHEAF_E_NO_MEMORY;
    }
    *out = mm;
    return SHEAF_OK;
}

static void free_floats(sheaf__matmul *mm, float *floats, uint64_t n)
{
    if (floats != NULL) sheaf__memory_free_aligned(mm->memory, floats, n, sizeof(float), ALIGN);
}

void sheaf__matmul_destroy(sheaf__matmul *mm)
{
    if (mm == NULL) return;
    free_floats(mm, mm->x, mm->x_floats);
    free_floats(mm, mm->panels, mm->panel_floats * sheaf_threads_count(mm->threads));
    sheaf__memory_free_aligned(mm->memory, mm->stretches, sheaf_threads_count(mm->threads),
                               sizeof *mm->stretches, ALIGN);
    sheaf__memory_free(mm->memory, mm, 1, sizeof *mm);
}

uint32_t sheaf__matmul_isa(const sheaf__matmul *mm)
{
    return mm->kernels->isa;
}

static uint64_t padded(uint64_t x, uint64_t multiple)
{
    return sheaf__ceil_div_u64(x, multiple) * multiple;
}

static uint32_t chunk_rows(const sheaf__matmul_kernels *kernels)
{
    return (uint32_t)padded(CHUNK_ROWS, kernels->tile_rows);
}

/* Floats of one packed panel of a whole block. */
static uint64_t panel_size(const sheaf__matmul_kernels *kernels)
{
    return (SHEAF__MATMUL_BLOCK + SHEAF__MATMUL_LANES) * (uint64_t)kernels->tile_cols;
}

static uint64_t x_size(const sheaf__matmul_kernels *kernels, uint32_t m, uint32_t k)
{
    if (kernels->tile_rows == 0) return 0;
    uint64_t rows = sheaf__min_u64(m, chunk_rows(kernels));
    return padded(rows, kernels->tile_rows) * padded(k, SHEAF__MATMUL_LANES);
}

sheaf_status sheaf__matmul_reserve(sheaf__matmul *mm, uint32_t m, uint32_t n, uint32_t k)
{
    const sheaf__matmul_kernels *kernels = mm->kernels;
    uint32_t all_m = m > mm->m ? m : mm->m, all_k = k > mm->k ? k : mm->k;
    uint64_t x_floats = x_size(kernels, all_m, all_k);
    uint64_t panel_floats = mm->panel_floats;
    if (panel_floats == 0 && kernels->tile_rows != 0 && all_m > kernels->stream_rows)
        panel_floats = GROUP_COLS / kernels->tile_cols * panel_size(kernels);

    float *x = mm->x, *panels = mm->panels;
    if (x_floats > mm->x_floats) {
        x = sheaf__memory_alloc_aligned(mm->memory, x_floats, sizeof *x, ALIGN);
        if (x == NULL) return SHEAF_E_NO_MEMORY;
    }
    if (panel_floats != mm->panel_floats) {
        panels = sheaf__memory_alloc_aligned(
            mm->memory, panel_floats * sheaf_threads_count(mm->threads), sizeof *panels, ALIGN);
        if (panels == NULL) {
            if (x != mm->x) free_floats(mm, x, x_floats);
            return SHEAF_E_NO_MEMORY;
        }
    }
    if (x != mm->x) {
        free_floats(mm, mm->x, mm->x_floats);
        mm->x = x;
        mm->x_floats = x_floats;
    }
    mm->panels = panels;
    mm->panel_floats = panel_floats;
    mm->m = all_m;
    mm->n = n > mm->n ? n : mm->n;
    mm->k = all_k;
    return SHEAF_OK;
}

/* ---- few rows: streamed ---- */

typedef struct stream_job {
    const sheaf__matmul_kernels *kernels;
    sheaf__matmul_rows rows;
    stretch *stretches; /* [n_threads] */
    uint32_t n_threads;
} stream_job;

/* Takes outputs [range[0], range[1]) from a stretch: its owner from the front, others from the
 * back. False: nothing is left. */
static bool take_piece(stretch *from, bool owner, uint32_t range[2])
{
    uint64_t left = atomic_load_explicit(&from->left, memory_order_relaxed), rest;
    do {
        uint32_t begin = (uint32_t)(left >> 32), end = (uint32_t)left;
        if (begin >= end) return false;
        bool many = end - begin >= STREAM_PIECES * STREAM_COLS;
        uint32_t cols = many ? STREAM_COLS : LAST_COLS;
        if (cols > end - begin) cols = end - begin;
        range[0] = owner ? begin : end - cols;
        range[1] = range[0] + cols;
        rest = owner ? (uint64_t)range[1] << 32 | end : (uint64_t)begin << 32 | range[0];
    } while (!atomic_compare_exchange_weak_explicit(
        &from->left, &left, rest, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* A thread's share: its own stretch, then whatever others have left. */
static void stream_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)task;
    const stream_job *job = arg;
    uint32_t range[2];
    for (uint32_t i = 0; i < job->n_threads; i++) {
        stretch *from = &job->stretches[(thread + i) % job->n_threads];
        while (take_piece(from, i == 0, range))
            job->kernels->stream(&job->rows, range[0], range[1]);
    }
}

/* Cuts n outputs into a stretch a thread, of whole small pieces but for the last. */
static void cut_streamed(const stream_job *job, uint32_t n)
{
    uint64_t pieces = sheaf__ceil_div_u64(n, LAST_COLS);
    for (uint64_t t = 0; t < job->n_threads; t++) {
        uint64_t begin = t * pieces / job->n_threads * LAST_COLS;
        uint64_t end = (t + 1) * pieces / job->n_threads * LAST_COLS;
        atomic_store_explicit(&job->stretches[t].left, begin << 32 | sheaf__min_u64(end, n),
                              memory_order_relaxed);
    }
}

static void run_streamed(sheaf__matmul *mm, sheaf__matmul_rows rows)
{
    const sheaf__matrix *w = rows.w;
    if (mm->kernels->prepare_x != NULL) {
        uint64_t stride = padded(w->k, SHEAF__MATMUL_LANES);
        mm->kernels->prepare_x(&rows, mm->x, stride);
        rows.x = mm->x;
        rows.x_stride = stride;
    }
    stream_job job = {mm->kernels, rows, mm->stretches, sheaf_threads_count(mm->threads)};
    cut_streamed(&job, w->n);
    uint32_t n_pieces = (uint32_t)sheaf__ceil_div_u64(w->n, LAST_COLS);
    uint32_t n_tasks = job.n_threads < n_pieces ? job.n_threads : n_pieces;
    sheaf__threads_run(mm->threads, stream_task, &job, n_tasks);
}

/* ---- many rows: packed ---- */

/* Packed x: blocks of k one after another, in each the tiles of rows: [block][tile][16,
 * n_steps, tile_rows]. */
typedef struct packed_job {
    const sheaf__matmul_kernels *kernels;
    sheaf__matmul_rows rows; /* of one chunk */
    float *x_packed;
    float *panels; /* [threads, panel_floats] */
    uint64_t panel_floats;
    uint32_t n_tiles;        /* of rows */
    uint32_t tiles_per_task; /* of rows */
    uint32_t n_groups;       /* of outputs */
    uint32_t group_cols;
} packed_job;

static sheaf__matmul_span span_at(uint32_t k, uint32_t begin)
{
    uint64_t size = sheaf__min_u64(k - begin, SHEAF__MATMUL_BLOCK);
    return (sheaf__matmul_span){begin,
                                (uint32_t)sheaf__ceil_div_u64(size, SHEAF__MATMUL_LANES)};
}

static float *packed_x_at(const packed_job *job, sheaf__matmul_span span, uint32_t tile)
{
    uint64_t block_rows = (uint64_t)job->n_tiles * job->kernels->tile_rows;
    uint64_t tile_floats = SHEAF__MATMUL_LANES * span.n_steps * job->kernels->tile_rows;
    return job->x_packed + span.begin * block_rows + tile * tile_floats;
}

static uint32_t rows_of_tile(const packed_job *job, uint32_t tile)
{
    uint32_t first = tile * job->kernels->tile_rows;
    return (uint32_t)sheaf__min_u64(job->rows.m - first, job->kernels->tile_rows);
}

static void pack_x_task(void *arg, uint32_t tile, uint32_t thread)
{
    (void)thread;
    const packed_job *job = arg;
    uint32_t k = job->rows.w->k;
    const float *x = job->rows.x + tile * job->kernels->tile_rows * job->rows.x_stride;
    for (uint64_t begin = 0; begin < k; begin += SHEAF__MATMUL_BLOCK) {
        sheaf__matmul_span span = span_at(k, (uint32_t)begin);
        job->kernels->pack_x(x, job->rows.x_stride, rows_of_tile(job, tile), k, span,
                             packed_x_at(job, span, tile));
    }
}

/* Outputs [cols[0], cols[1]) of the tiles [tiles[0], tiles[1]) of rows, one block of k. */
static void compute_block(const packed_job *job, sheaf__matmul_span span, const float *panels,
                          const uint32_t tiles[2], const uint32_t cols[2])
{
    const sheaf__matmul_kernels *kernels = job->kernels;
    for (uint32_t tile = tiles[0]; tile < tiles[1]; tile += kernels->group_tiles) {
        const float *x = packed_x_at(job, span, tile), *panel = panels;
        uint32_t row = tile * kernels->tile_rows;
        uint32_t n_tiles =
            tiles[1] - tile < kernels->group_tiles ? tiles[1] - tile : kernels->group_tiles;
        uint32_t n_rows =
            (uint32_t)sheaf__min_u64(job->rows.m - row, n_tiles * kernels->tile_rows);
        float *y = job->rows.y + row * job->rows.y_stride;
        for (uint32_t col = cols[0]; col < cols[1]; col += kernels->tile_cols) {
            uint32_t n_cols = (uint32_t)sheaf__min_u64(cols[1] - col, kernels->tile_cols);
            kernels->tiles(x, panel, span, n_rows, n_cols, y + col, job->rows.y_stride);
            panel += panel_size(kernels);
        }
    }
}

static void packed_task(void *arg, uint32_t task, uint32_t thread)
{
    const packed_job *job = arg;
    const sheaf__matmul_kernels *kernels = job->kernels;
    const sheaf__matrix *w = job->rows.w;
    uint32_t col = task % job->n_groups * job->group_cols;
    uint32_t tile = task / job->n_groups * job->tiles_per_task;
    const uint32_t cols[2] = {col,
                              (uint32_t)sheaf__min_u64((uint64_t)col + job->group_cols, w->n)};
    const uint32_t tiles[2] = {
        tile, (uint32_t)sheaf__min_u64(tile + job->tiles_per_task, job->n_tiles)};
    float *panels = job->panels + thread * job->panel_floats;
    for (uint64_t begin = 0; begin < w->k; begin += SHEAF__MATMUL_BLOCK) {
        sheaf__matmul_span span = span_at(w->k, (uint32_t)begin);
        float *panel = panels;
        for (uint32_t c = cols[0]; c < cols[1]; c += kernels->tile_cols) {
            uint32_t n_cols = (uint32_t)sheaf__min_u64(cols[1] - c, kernels->tile_cols);
            kernels->pack_w(w, c, n_cols, span, panel);
            panel += panel_size(kernels);
        }
        compute_block(job, span, panels, tiles, cols);
    }
}

/* Groups of outputs as wide as the scratch allows while every thread gets several; then the
 * rows are cut as often as is still missing. */
static void cut_packed(packed_job *job, uint32_t n_threads)
{
    uint32_t n = job->rows.w->n, width = job->kernels->tile_cols;
    uint64_t wanted = n_threads == 1 ? 1 : TASKS_PER_THREAD * n_threads;
    uint64_t fair = padded(sheaf__ceil_div_u64(n, wanted), width);
    job->group_cols = (uint32_t)sheaf__min_u64(fair, GROUP_COLS);
    job->n_groups = (uint32_t)sheaf__ceil_div_u64(n, job->group_cols);
    uint64_t cuts = sheaf__min_u64(sheaf__ceil_div_u64(wanted, job->n_groups), job->n_tiles);
    job->tiles_per_task = (uint32_t)sheaf__ceil_div_u64(job->n_tiles, cuts);
}

static void run_packed(sheaf__matmul *mm, sheaf__matmul_rows rows)
{
    packed_job job = {.kernels = mm->kernels,
                      .rows = rows,
                      .x_packed = mm->x,
                      .panels = mm->panels,
                      .panel_floats = mm->panel_floats};
    job.n_tiles = (uint32_t)sheaf__ceil_div_u64(rows.m, mm->kernels->tile_rows);
    cut_packed(&job, sheaf_threads_count(mm->threads));
    uint32_t n_cuts = (uint32_t)sheaf__ceil_div_u64(job.n_tiles, job.tiles_per_task);
    sheaf__threads_run(mm->threads, pack_x_task, &job, job.n_tiles);
    sheaf__threads_run(mm->threads, packed_task, &job, job.n_groups * n_cuts);
}

sheaf_status sheaf__matmul_run(sheaf__matmul *mm, const sheaf__matrix *w, const float *x,
                               uint64_t x_stride, uint32_t m, float *y, uint64_t y_stride)
{
    const sheaf__matmul_kernels *kernels = mm->kernels;
    if (w->k == 0 || w->dtype > SHEAF_DTYPE_BF16) return SHEAF_E_INVALID;
    if (m > mm->m || w->n > mm->n || w->k > mm->k) return SHEAF_E_INVALID;
    while (m != 0 && w->n != 0) {
        uint32_t chunk = m;
        if (m > kernels->stream_rows && m > chunk_rows(kernels)) chunk = chunk_rows(kernels);
        sheaf__matmul_rows rows = {w, x, x_stride, chunk, y, y_stride};
        if (chunk <= kernels->stream_rows)
            run_streamed(mm, rows);
        else
            run_packed(mm, rows);
        m -= chunk;
        x += chunk * x_stride;
        y += chunk * y_stride;
    }
    return SHEAF_OK;
}
