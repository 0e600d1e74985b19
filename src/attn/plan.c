/* attn/plan.c - options checked, and the work of a step laid out.
 *
 * How far a unit is cut into runs depends on the threads alone, never on the numbers: so many
 * tasks that each thread gets several, so few that each streams through its splits. No choice
 * here can be seen in the results.
 */
#include "attn/plan.h"

#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "base/fpenv.h"
#include "base/status.h"

#define MAX_HEADS        65536
#define TASKS_PER_THREAD 4
#define MAX_SHIFT        24 /* 2^24 splits are 2^32 positions */

/* --- life --------------------------------------------------------------------------------- */

static sheaf_status check_options(const sheaf_attn_options *o)
{
    if (o->struct_size != sizeof *o) return SHEAF_E_INVALID;
    if (o->n_kv_heads == 0 || o->n_q_heads == 0 || o->n_q_heads > MAX_HEADS)
        return SHEAF_E_INVALID;
    if (o->n_q_heads % o->n_kv_heads != 0) return SHEAF_E_INVALID;
    if (o->key_dim == 0 || o->key_dim > SHEAF_ATTN_MAX_DIM) return SHEAF_E_INVALID;
    if (o->value_dim == 0 || o->value_dim > SHEAF_ATTN_MAX_DIM) return SHEAF_E_INVALID;
    if (!isfinite(o->scale) || !isfinite(o->softcap) || o->softcap < 0.0f)
        return SHEAF_E_INVALID;
    if (o->path > SHEAF_ATTN_REFERENCE || o->not_causal > 1) return SHEAF_E_INVALID;
    for (uint32_t h = 0; o->sinks != NULL && h < o->n_q_heads; h++)
        if (!isfinite(o->sinks[h])) return SHEAF_E_INVALID;
    return SHEAF_OK;
}

static float default_scale(uint32_t key_dim)
{
    uint64_t saved = sheaf__fpenv_enter();
    volatile float dim = (float)key_dim;      /* so that nothing is computed before enter */
    volatile float scale = 1.0f / sqrtf(dim); /* nor after leave */
    sheaf__fpenv_leave(saved);
    return scale;
}

sheaf_status sheaf__attn_plan_create(const sheaf_attn_options *options, sheaf_threads *threads,
                                     const sheaf_allocator *allocator, sheaf_attn_plan **out)
{
    if (options == NULL || out == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(check_options(options));
    uint32_t isa;
    SHEAF__TRY(sheaf_isa_resolve(options->isa, &isa));
    const sheaf__attn_kernels *kernels = sheaf__attn_kernels_of(isa);
    if (kernels == NULL) return SHEAF_E_UNSUPPORTED;

    sheaf__memory memory;
    sheaf__memory_init(&memory, allocator);
    sheaf_attn_plan *plan = sheaf__memory_alloc(&memory, 1, sizeof *plan);
    if (plan == NULL) return SHEAF_E_NO_MEMORY;
    if (options->sinks != NULL) {
        plan->sinks = sheaf__memory_alloc(&memory, options->n_q_heads, sizeof *plan->sinks);
        if (plan->sinks == NULL) {
            sheaf__memory_free(&memory, plan, 1, sizeof *plan);
            return SHEAF_E_NO_MEMORY;
        }
        memcpy(plan->sinks, options->sinks, options->n_q_heads * sizeof *plan->sinks);
    }
    plan->memory = memory;
    plan->options = *options;
    plan->options.isa = isa;
    plan->options.sinks = plan->sinks;
    if (options->scale == 0.0f) plan->options.scale = default_scale(options->key_dim);
    plan->threads = threads;
    plan->n_threads = sheaf_threads_count(threads);
    plan->group = options->n_q_heads / options->n_kv_heads;
    plan->o_stride = sheaf__attn_padded(options->value_dim);
    plan->kernels = kernels;
    *out = plan;
    return SHEAF_OK;
}

sheaf_status sheaf_attn_plan_create(const sheaf_attn_options *options, sheaf_threads *threads,
                                    sheaf_attn_plan **out)
{
    return sheaf__attn_plan_create(options, threads, NULL, out);
}

void sheaf_attn_plan_destroy(sheaf_attn_plan *plan)
{
    if (plan == NULL) return;
    sheaf__memory memory = plan->memory;
    sheaf__memory_free_aligned(&memory, plan->workspace, plan->workspace_floats, sizeof(float),
                               SHEAF__ATTN_ALIGN);
    sheaf__memory_free(&memory, plan->tasks, plan->task_capacity, sizeof *plan->tasks);
    sheaf__memory_free(&memory, plan->units, plan->unit_capacity, sizeof *plan->units);
    sheaf__memory_free(&memory, plan->items, plan->item_capacity, sizeof *plan->items);
    sheaf__memory_free(&memory, plan->sinks, plan->options.n_q_heads, sizeof *plan->sinks);
    sheaf__memory_free(&memory, plan, 1, sizeof *plan);
}

/* --- sizes -------------------------------------------------------------------------------- */

sheaf__attn_range sheaf__attn_visible(const sheaf_attn_options *options, uint64_t pos,
                                      uint32_t n_tokens)
{
    uint64_t lo = 0, hi = n_tokens;
    if (!options->not_causal) hi = sheaf__min_u64(hi, pos + 1);
    if (options->window != 0 && pos >= options->window) lo = pos + 1 - options->window;
    lo = sheaf__min_u64(lo, hi);
    return (sheaf__attn_range){(uint32_t)lo, (uint32_t)hi};
}

uint64_t sheaf__attn_part_floats(uint32_t n_rows, uint32_t o_stride)
{
    return 2ull * sheaf__attn_padded(n_rows) + (uint64_t)n_rows * o_stride;
}

sheaf__attn_part sheaf__attn_part_at(float *floats, uint32_t n_rows)
{
    uint32_t padded = sheaf__attn_padded(n_rows);
    return (sheaf__attn_part){floats, floats + padded, floats + 2ull * padded};
}

/* The splits that the query rows [first, first + n) of a KV head see, together. */
static sheaf__attn_range rows_splits(const sheaf_attn_plan *plan, const sheaf_attn_item *item,
                                     uint32_t first, uint32_t n)
{
    uint64_t a = (uint64_t)item->first_pos + first / plan->group;
    uint64_t b = (uint64_t)item->first_pos + (first + n - 1) / plan->group;
    uint32_t lo = sheaf__attn_visible(&plan->options, a, item->n_tokens).lo;
    uint32_t hi = sheaf__attn_visible(&plan->options, b, item->n_tokens).hi;
    if (lo >= hi) return (sheaf__attn_range){0, 0};
    return (sheaf__attn_range){lo / SHEAF__ATTN_SPLIT, (hi - 1) / SHEAF__ATTN_SPLIT + 1};
}

static uint32_t runs_of(sheaf__attn_range splits, uint32_t shift)
{
    if (splits.lo == splits.hi) return 1; /* somebody has to write the zeros */
    return ((splits.hi - 1) >> shift) - (splits.lo >> shift) + 1;
}

static uint32_t rows_of(const sheaf_attn_plan *plan, const sheaf_attn_item *item)
{
    return item->n_queries * plan->group;
}

static uint32_t tile_rows(uint32_t rows, uint32_t first)
{
    return rows - first < SHEAF__ATTN_ROWS ? rows - first : SHEAF__ATTN_ROWS;
}

static sheaf_status check_item(const sheaf_attn_plan *plan, const sheaf_attn_item *item)
{
    if (item->n_queries == 0) return SHEAF_E_INVALID;
    if ((uint64_t)item->n_queries * plan->group > UINT32_MAX / 2) return SHEAF_E_OVERFLOW;
    if ((uint64_t)item->first_pos + item->n_queries > UINT32_MAX) return SHEAF_E_OVERFLOW;
    return SHEAF_OK;
}

/* Adds one item's units and splits; the latter weighed by what one thread does in one go. */
static void measure_item(const sheaf_attn_plan *plan, const sheaf_attn_item *item,
                         uint64_t *n_units, uint64_t *work, sheaf__attn_sizes *sizes)
{
    const sheaf_attn_options *o = &plan->options;
    uint32_t rows = rows_of(plan, item);
    for (uint32_t first = 0; first < rows; first += SHEAF__ATTN_ROWS) {
        sheaf__attn_range splits = rows_splits(plan, item, first, tile_rows(rows, first));
        *n_units += o->n_kv_heads;
        *work += (uint64_t)o->n_kv_heads * (splits.hi - splits.lo);
        uint32_t levels = splits.hi > 1 ? sheaf__log2(splits.hi - 1) + 2 : 1;
        if (levels > sizes->n_levels) sizes->n_levels = levels;
    }
    for (uint32_t i = 0; i < item->n_queries; i++) {
        sheaf__attn_range r =
            sheaf__attn_visible(o, (uint64_t)item->first_pos + i, item->n_tokens);
        if (r.lo < r.hi)
            sizes->n_splits += (uint64_t)o->n_kv_heads *
                               ((r.hi - 1) / SHEAF__ATTN_SPLIT - r.lo / SHEAF__ATTN_SPLIT + 1);
    }
}

/* The longest runs that still give every thread several tasks. */
static uint32_t choose_shift(const sheaf_attn_plan *plan, uint64_t work)
{
    if (plan->n_threads == 1) return MAX_SHIFT;
    uint64_t longest = work / ((uint64_t)plan->n_threads * TASKS_PER_THREAD);
    return longest < 2 ? 0 : (uint32_t)sheaf__min_u64(sheaf__log2(longest), MAX_SHIFT);
}

/* Counts the tasks, and the floats of the parts that runs leave behind. */
static void count_tasks(const sheaf_attn_plan *plan, const sheaf_attn_item *item,
                        uint32_t shift, uint64_t *n_tasks, uint64_t *part_floats)
{
    uint32_t rows = rows_of(plan, item);
    for (uint32_t first = 0; first < rows; first += SHEAF__ATTN_ROWS) {
        uint32_t n = tile_rows(rows, first);
        uint64_t runs = runs_of(rows_splits(plan, item, first, n), shift);
        *n_tasks += runs * plan->options.n_kv_heads;
        if (runs > 1)
            *part_floats +=
                runs * plan->options.n_kv_heads * sheaf__attn_part_floats(n, plan->o_stride);
    }
}

/* Positions that some query of the item sees. */
static sheaf__attn_range seen_of(const sheaf_attn_plan *plan, const sheaf_attn_item *item)
{
    uint64_t last = (uint64_t)item->first_pos + item->n_queries - 1;
    uint32_t lo = sheaf__attn_visible(&plan->options, item->first_pos, item->n_tokens).lo;
    uint32_t hi = sheaf__attn_visible(&plan->options, last, item->n_tokens).hi;
    return (sheaf__attn_range){lo < hi ? lo : hi, hi};
}

/* What the paths need of the workspace. */
static void size_workspace(const sheaf_attn_plan *plan, const sheaf_attn_item *items,
                           sheaf__attn_sizes *sizes)
{
    const sheaf_attn_options *o = &plan->options;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < sizes->n_items; i++) {
        sheaf__attn_range seen = seen_of(plan, &items[i]);
        longest = sheaf__max_u64(longest, seen.hi - seen.lo);
    }
    sizes->thread_floats =
        sheaf__attn_scratch_floats(o->key_dim, o->value_dim) +
        (sizes->n_levels + 1) * sheaf__attn_part_floats(SHEAF__ATTN_ROWS, plan->o_stride);
    if (o->path == SHEAF_ATTN_GATHER)
        sizes->gather_floats = longest * o->n_kv_heads *
                               (sheaf__attn_gathered_floats(o->key_dim) +
                                sheaf__attn_gathered_floats(o->value_dim));
    if (o->path == SHEAF_ATTN_REFERENCE) {
        sizes->part_floats = 0;
        sizes->thread_floats = (longest * 2 + SHEAF__ATTN_PAD) & ~(SHEAF__ATTN_PAD - 1ull);
    }
}

static sheaf_status measure(const sheaf_attn_plan *plan, const sheaf_attn_item *items,
                            uint32_t n_items, sheaf__attn_sizes *out)
{
    sheaf__attn_sizes sizes = {.n_items = n_items, .n_levels = 1};
    uint64_t n_units = 0, n_tasks = 0, work = 0;
    for (uint32_t i = 0; i < n_items; i++) SHEAF__TRY(check_item(plan, &items[i]));
    for (uint32_t i = 0; i < n_items; i++)
        measure_item(plan, &items[i], &n_units, &work, &sizes);
    sizes.run_shift = choose_shift(plan, work);
    for (uint32_t i = 0; i < n_items; i++)
        count_tasks(plan, &items[i], sizes.run_shift, &n_tasks, &sizes.part_floats);
    if (n_tasks > UINT32_MAX || n_units > UINT32_MAX) return SHEAF_E_OVERFLOW;
    sizes.n_units = (uint32_t)n_units;
    sizes.n_tasks = (uint32_t)n_tasks;
    size_workspace(plan, items, &sizes);
    *out = sizes;
    return SHEAF_OK;
}

/* --- layout ------------------------------------------------------------------------------- */

/* The workspace grows by half at least, so that a context that grows token by token seldom asks. */
static sheaf_status grow_workspace(sheaf_attn_plan *plan, const sheaf__attn_sizes *sizes)
{
    uint64_t need;
    if (!sheaf__mul_u64(sizes->thread_floats, plan->n_threads, &need) ||
        !sheaf__add_u64(need, sizes->part_floats, &need) ||
        !sheaf__add_u64(need, sizes->gather_floats, &need))
        return SHEAF_E_OVERFLOW;
    if (need <= plan->workspace_floats) return SHEAF_OK;
    need = sheaf__max_u64(need, plan->workspace_floats + plan->workspace_floats / 2);
    float *grown =
        sheaf__memory_alloc_aligned(&plan->memory, need, sizeof *grown, SHEAF__ATTN_ALIGN);
    if (grown == NULL) return SHEAF_E_NO_MEMORY;
    sheaf__memory_free_aligned(&plan->memory, plan->workspace, plan->workspace_floats,
                               sizeof *grown, SHEAF__ATTN_ALIGN);
    plan->workspace = grown;
    plan->workspace_floats = need;
    return SHEAF_OK;
}

static sheaf_status grow(sheaf_attn_plan *plan, const sheaf__attn_sizes *sizes)
{
    void *items = plan->items, *units = plan->units, *tasks = plan->tasks;
    sheaf_status status = sheaf__memory_grow(&plan->memory, &items, &plan->item_capacity,
                                             sizes->n_items, sizeof *plan->items);
    plan->items = items;
    if (status == SHEAF_OK)
        status = sheaf__memory_grow(&plan->memory, &units, &plan->unit_capacity, sizes->n_units,
                                    sizeof *plan->units);
    plan->units = units;
    if (status == SHEAF_OK)
        status = sheaf__memory_grow(&plan->memory, &tasks, &plan->task_capacity, sizes->n_tasks,
                                    sizeof *plan->tasks);
    plan->tasks = tasks;
    return status != SHEAF_OK ? status : grow_workspace(plan, sizes);
}

/* Cuts a unit into its runs, the tasks from `task` on. Returns the next task. */
static uint32_t lay_unit(sheaf_attn_plan *plan, uint32_t unit, sheaf__attn_range splits,
                         uint32_t task, uint64_t *part)
{
    sheaf__attn_unit *u = &plan->units[unit];
    uint32_t shift = plan->sizes.run_shift;
    u->first_run = splits.lo >> shift;
    u->n_runs = runs_of(splits, shift);
    u->part = *part;
    if (u->n_runs > 1) *part += u->n_runs * sheaf__attn_part_floats(u->n_rows, plan->o_stride);
    for (uint32_t run = 0; run < u->n_runs; run++) {
        uint64_t from = (uint64_t)(u->first_run + run) << shift, to = from + (1ull << shift);
        plan->tasks[task++] =
            (sheaf__attn_task){unit, run, (uint32_t)sheaf__max_u64(from, splits.lo),
                               (uint32_t)sheaf__min_u64(to, splits.hi)};
    }
    return task;
}

/* Units of a KV head lie together, so that threads meet in the same keys; the last rows, which
 * see most, go first. */
static void lay_out(sheaf_attn_plan *plan, const sheaf_attn_item *items)
{
    uint32_t unit = 0, task = 0;
    uint64_t query = 0, part = 0;
    for (uint32_t i = 0; i < plan->sizes.n_items; i++) {
        sheaf__attn_planned *planned = &plan->items[i];
        *planned = (sheaf__attn_planned){items[i], seen_of(plan, &items[i]), query, task, 0};
        uint32_t rows = rows_of(plan, &items[i]);
        uint32_t tiles = (uint32_t)sheaf__ceil_div_u64(rows, SHEAF__ATTN_ROWS);
        for (uint32_t head = 0; head < plan->options.n_kv_heads; head++)
            for (uint32_t tile = tiles; tile-- > 0;) {
                uint32_t first = tile * SHEAF__ATTN_ROWS, n = tile_rows(rows, first);
                plan->units[unit] = (sheaf__attn_unit){
                    .item = i, .kv_head = head, .first_row = first, .n_rows = n};
                sheaf__attn_range splits = rows_splits(plan, &items[i], first, n);
                task = lay_unit(plan, unit++, splits, task, &part);
            }
        planned->n_tasks = task - planned->first_task;
        query += items[i].n_queries;
    }
}

sheaf_status sheaf_attn_plan_batch(sheaf_attn_plan *plan, const sheaf_attn_item *items,
                                   uint32_t n_items)
{
    if (plan == NULL || items == NULL || n_items == 0) return SHEAF_E_INVALID;
    sheaf__attn_sizes sizes;
    SHEAF__TRY(measure(plan, items, n_items, &sizes));
    SHEAF__TRY(grow(plan, &sizes));
    plan->sizes = sizes;
    lay_out(plan, items);
    return SHEAF_OK;
}
