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
#define TASK_HEADS       8  /* of 1, 2, 4, 8 the fastest (docs/perf-log.md) */
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

static void free_layout(sheaf_attn_plan *plan, sheaf__attn_layout *layout)
{
    sheaf__memory *memory = &plan->memory;
    sheaf__memory_free(memory, layout->items, plan->item_capacity, sizeof *layout->items);
    sheaf__memory_free(memory, layout->tiles, plan->tile_capacity, sizeof *layout->tiles);
    sheaf__memory_free(memory, layout->units, plan->unit_capacity, sizeof *layout->units);
    sheaf__memory_free(memory, layout->members, plan->member_capacity, sizeof *layout->members);
    sheaf__memory_free(memory, layout->tasks, plan->task_capacity, sizeof *layout->tasks);
}

void sheaf_attn_plan_destroy(sheaf_attn_plan *plan)
{
    if (plan == NULL) return;
    sheaf__memory memory = plan->memory;
    sheaf__memory_free_aligned(&memory, plan->workspace, plan->workspace_floats, sizeof(float),
                               SHEAF__ATTN_ALIGN);
    free_layout(plan, &plan->now);
    free_layout(plan, &plan->next);
    memory = plan->memory;
    sheaf__memory_free(&memory, plan->sharers, plan->sharer_capacity, sizeof *plan->sharers);
    sheaf__memory_free(&memory, plan->sets, plan->set_capacity, sizeof *plan->sets);
    sheaf__memory_free(&memory, plan->slots, plan->slot_capacity, sizeof *plan->slots);
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

static sheaf_status check_item(const sheaf_attn_plan *plan, const sheaf_attn_item *item)
{
    if (item->n_queries == 0) return SHEAF_E_INVALID;
    if ((uint64_t)item->n_queries * plan->group > UINT32_MAX / 2) return SHEAF_E_OVERFLOW;
    if ((uint64_t)item->first_pos + item->n_queries > UINT32_MAX) return SHEAF_E_OVERFLOW;
    return SHEAF_OK;
}

/* Positions that some query of the item sees. */
static sheaf__attn_range seen_of(const sheaf_attn_plan *plan, const sheaf_attn_item *item)
{
    uint64_t last = (uint64_t)item->first_pos + item->n_queries - 1;
    uint32_t lo = sheaf__attn_visible(&plan->options, item->first_pos, item->n_tokens).lo;
    uint32_t hi = sheaf__attn_visible(&plan->options, last, item->n_tokens).hi;
    return (sheaf__attn_range){lo < hi ? lo : hi, hi};
}

/* Triples (query, KV head, split) of an item with something seen. */
static uint64_t count_splits(const sheaf_attn_plan *plan, const sheaf_attn_item *item)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < item->n_queries; i++) {
        sheaf__attn_range r =
            sheaf__attn_visible(&plan->options, (uint64_t)item->first_pos + i, item->n_tokens);
        if (r.lo < r.hi) n += (r.hi - 1) / SHEAF__ATTN_SPLIT - r.lo / SHEAF__ATTN_SPLIT + 1;
    }
    return n * plan->options.n_kv_heads;
}

/* --- lists -------------------------------------------------------------------------------- */

/* Grows a list of both layouts, so that either has room for `need`. */
static sheaf_status grow(sheaf__memory *memory, void **now, void **next, uint64_t *capacity,
                         uint64_t need, uint64_t size)
{
    if (need > UINT32_MAX) return SHEAF_E_OVERFLOW;
    if (need <= *capacity) return SHEAF_OK;
    uint64_t more = sheaf__max_u64(need, *capacity * 2);
    void *grown[2] = {sheaf__memory_alloc(memory, more, size), NULL};
    if (grown[0] != NULL) grown[1] = sheaf__memory_alloc(memory, more, size);
    if (grown[1] == NULL) {
        sheaf__memory_free(memory, grown[0], more, size);
        return SHEAF_E_NO_MEMORY;
    }
    void **list[2] = {now, next};
    for (int i = 0; i < 2; i++) {
        if (*list[i] != NULL) memcpy(grown[i], *list[i], *capacity * size);
        sheaf__memory_free(memory, *list[i], *capacity, size);
        *list[i] = grown[i];
    }
    *capacity = more;
    return SHEAF_OK;
}

/* Room for `need` of a list: grow() with the types told. */
#define GROW(plan, list, list_capacity, need, status)                                          \
    do {                                                                                       \
        void *now_ = (plan)->now.list, *next_ = (plan)->next.list;                             \
        status = grow(&(plan)->memory, &now_, &next_, &(plan)->list_capacity, need,            \
                      sizeof *(plan)->now.list);                                               \
        (plan)->now.list = now_;                                                               \
        (plan)->next.list = next_;                                                             \
    } while (0)

sheaf_status sheaf__attn_open_unit(sheaf_attn_plan *plan, sheaf__attn_range splits)
{
    sheaf__attn_layout *next = &plan->next;
    sheaf_status st;
    GROW(plan, units, unit_capacity, next->n_units + 1ull, st);
    if (st != SHEAF_OK) return st;
    next->units[next->n_units++] =
        (sheaf__attn_unit){.first_member = next->n_members, .splits = splits};
    return SHEAF_OK;
}

sheaf_status sheaf__attn_join_unit(sheaf_attn_plan *plan, uint32_t tile)
{
    sheaf__attn_layout *next = &plan->next;
    sheaf_status st;
    GROW(plan, members, member_capacity, next->n_members + 1ull, st);
    if (st != SHEAF_OK) return st;
    sheaf__attn_unit *unit = &next->units[next->n_units - 1];
    sheaf__attn_tile *t = &next->tiles[tile];
    uint32_t member = next->n_members++;
    next->members[member] =
        (sheaf__attn_member){tile, next->n_units - 1, unit->n_rows, SHEAF__ATTN_NONE};
    if (t->first_member == SHEAF__ATTN_NONE)
        t->first_member = member;
    else
        next->members[t->last_member].next = member;
    t->last_member = member;
    t->covered = unit->splits.hi;
    unit->n_members++;
    unit->n_rows += t->n_rows;
    return SHEAF_OK;
}

/* --- items and their tiles ---------------------------------------------------------------- */

static sheaf_status add_item(sheaf_attn_plan *plan, const sheaf_attn_item *item,
                             uint64_t first_query)
{
    sheaf__attn_layout *next = &plan->next;
    uint32_t rows = item->n_queries * plan->group;
    uint64_t n_tiles = sheaf__ceil_div_u64(rows, SHEAF__ATTN_ROWS);
    sheaf_status st;
    GROW(plan, tiles, tile_capacity, next->n_tiles + n_tiles, st);
    if (st != SHEAF_OK) return st;
    next->items[next->n_items] = (sheaf__attn_planned){
        *item, seen_of(plan, item), first_query, next->n_tiles, (uint32_t)n_tiles, 0, 0};
    for (uint32_t first = 0; first < rows; first += SHEAF__ATTN_ROWS) {
        uint32_t n = rows - first < SHEAF__ATTN_ROWS ? rows - first : SHEAF__ATTN_ROWS;
        sheaf__attn_tile tile = {
            next->n_items,    first,           n, rows_splits(plan, item, first, n), 0,
            SHEAF__ATTN_NONE, SHEAF__ATTN_NONE};
        tile.covered = tile.splits.lo;
        next->tiles[next->n_tiles++] = tile;
        uint32_t levels = tile.splits.hi > 1 ? sheaf__log2(tile.splits.hi - 1) + 2 : 1;
        if (levels > next->n_levels) next->n_levels = levels;
    }
    next->n_splits += count_splits(plan, item);
    next->n_items++;
    return SHEAF_OK;
}

static sheaf_status add_items(sheaf_attn_plan *plan, const sheaf_attn_item *items,
                              uint32_t n_items)
{
    uint64_t query = 0;
    sheaf_status st;
    for (uint32_t i = 0; i < n_items; i++) SHEAF__TRY(check_item(plan, &items[i]));
    GROW(plan, items, item_capacity, n_items, st);
    for (uint32_t i = 0; st == SHEAF_OK && i < n_items; i++) {
        st = add_item(plan, &items[i], query);
        query += items[i].n_queries;
    }
    return st;
}

/* Each tile gets a unit of its own for what it shares with nobody. */
static sheaf_status add_own_units(sheaf_attn_plan *plan)
{
    sheaf__attn_layout *next = &plan->next;
    next->n_shared_units = next->n_units;
    for (uint32_t i = 0; i < next->n_tiles; i++) {
        const sheaf__attn_tile *tile = &next->tiles[i];
        sheaf__attn_range own = {tile->covered, tile->splits.hi};
        if (own.lo == own.hi && tile->first_member != SHEAF__ATTN_NONE) continue;
        SHEAF__TRY(sheaf__attn_open_unit(plan, own));
        SHEAF__TRY(sheaf__attn_join_unit(plan, i));
        next->units[next->n_units - 1].whole = own.lo == tile->splits.lo;
    }
    return SHEAF_OK;
}

/* --- tasks and parts ---------------------------------------------------------------------- */

/* How many KV heads the rows of all units allow to go together; beside a tile of many rows, such as a
 * prefill's, all go one by one. */
static uint32_t most_heads(const sheaf_attn_plan *plan)
{
    const sheaf__attn_layout *next = &plan->next;
    if (plan->options.path != SHEAF_ATTN_FUSED) return 1;
    uint32_t rows = 1;
    for (uint32_t i = 0; i < next->n_units; i++)
        if (next->units[i].n_rows > rows) rows = next->units[i].n_rows;
    if (rows >= plan->kernels->together) return 1;
    uint64_t heads = sheaf__min_u64(SHEAF__ATTN_ROWS / rows, TASK_HEADS);
    return (uint32_t)sheaf__min_u64(heads, plan->options.n_kv_heads);
}

/* The largest tasks that still give every thread several: of many heads first, then of long runs. */
static void choose_tasks(sheaf_attn_plan *plan)
{
    sheaf__attn_layout *next = &plan->next;
    next->task_heads = most_heads(plan);
    next->run_shift = MAX_SHIFT;
    if (plan->n_threads == 1) return;
    uint64_t work = 0;
    for (uint32_t i = 0; i < next->n_units; i++)
        work += next->units[i].splits.hi - next->units[i].splits.lo;
    work *= plan->options.n_kv_heads;
    uint64_t largest = work / ((uint64_t)plan->n_threads * TASKS_PER_THREAD);
    if (largest < 1) largest = 1;
    next->task_heads = (uint32_t)sheaf__min_u64(next->task_heads, largest);
    largest /= next->task_heads;
    next->run_shift = (uint32_t)sheaf__min_u64(sheaf__log2(largest), MAX_SHIFT);
}

static uint32_t count_nodes(const sheaf__attn_unit *unit, uint32_t shift,
                            sheaf__attn_range splits)
{
    uint32_t n = 0;
    for (; splits.lo < splits.hi; n++)
        splits.lo = sheaf__attn_first_node(unit, shift, splits).end;
    return n;
}

/* Says where the parts of each unit lie, and counts the tasks. */
static void place_parts(sheaf_attn_plan *plan, uint64_t *n_tasks)
{
    sheaf__attn_layout *next = &plan->next;
    const uint32_t heads = plan->options.n_kv_heads, shift = next->run_shift;
    for (uint32_t i = 0; i < next->n_units; i++) {
        sheaf__attn_unit *unit = &next->units[i];
        uint32_t n_runs = 0, n_parts = 0;
        sheaf__attn_range run = {unit->splits.lo, unit->splits.lo};
        for (; run.hi < unit->splits.hi; n_runs++) {
            run = sheaf__attn_run_at(unit, shift, run.hi);
            n_parts += count_nodes(unit, shift, run);
        }
        if (unit->n_members > 1)
            next->n_shared_splits += (uint64_t)heads * (unit->splits.hi - unit->splits.lo);
        *n_tasks +=
            sheaf__ceil_div_u64(heads, next->task_heads) * (uint64_t)(n_runs > 0 ? n_runs : 1);
        if (unit->whole && n_runs <= 1) continue; /* its task finishes the rows */
        unit->n_parts = n_parts;
        unit->part = next->part_floats;
        next->part_floats +=
            (uint64_t)heads * n_parts * sheaf__attn_part_floats(unit->n_rows, plan->o_stride);
    }
}

/* Cuts a unit into its tasks for the KV heads from `head` on. */
static void cut_unit(sheaf__attn_layout *next, uint32_t index, uint32_t head, uint32_t n_heads)
{
    const sheaf__attn_unit *unit = &next->units[index];
    sheaf__attn_task task = {index, head, n_heads, 0, unit->splits};
    do {
        if (unit->splits.lo < unit->splits.hi)
            task.splits = sheaf__attn_run_at(unit, next->run_shift, task.splits.lo);
        next->tasks[next->n_tasks++] = task;
        if (unit->n_parts > 0)
            task.first_part += count_nodes(unit, next->run_shift, task.splits);
        task.splits.lo = task.splits.hi;
    } while (task.splits.lo < unit->splits.hi);
}

/* What is shared first. Of an item the units of a KV head lie together, so that threads meet in the
 * same keys; the last rows, which see most, go first. */
static sheaf_status add_tasks(sheaf_attn_plan *plan)
{
    sheaf__attn_layout *next = &plan->next;
    const uint32_t heads = plan->options.n_kv_heads;
    uint64_t n_tasks = 0;
    sheaf_status st;
    if ((uint64_t)next->n_tiles * heads > UINT32_MAX) return SHEAF_E_OVERFLOW; /* of a merge */
    choose_tasks(plan);
    place_parts(plan, &n_tasks);
    GROW(plan, tasks, task_capacity, n_tasks, st);
    if (st != SHEAF_OK) return st;
    const uint32_t step = next->task_heads;
    for (uint32_t unit = 0; unit < next->n_shared_units; unit++)
        for (uint32_t head = 0; head < heads; head += step)
            cut_unit(next, unit, head, heads - head < step ? heads - head : step);
    for (uint32_t i = 0; i < next->n_items; i++) {
        sheaf__attn_planned *item = &next->items[i];
        item->first_task = next->n_tasks;
        for (uint32_t head = 0; head < heads; head += step)
            for (uint32_t tile = item->n_tiles; tile-- > 0;) {
                uint32_t last = next->tiles[item->first_tile + tile].last_member;
                uint32_t unit = next->members[last].unit;
                if (unit < next->n_shared_units) continue;
                cut_unit(next, unit, head, heads - head < step ? heads - head : step);
            }
        item->n_tasks = next->n_tasks - item->first_task;
    }
    return SHEAF_OK;
}

/* --- workspace ---------------------------------------------------------------------------- */

/* What the paths need of the workspace. */
static void size_workspace(sheaf_attn_plan *plan)
{
    const sheaf_attn_options *o = &plan->options;
    sheaf__attn_layout *next = &plan->next;
    uint64_t longest = 0;
    for (uint32_t i = 0; i < next->n_items; i++) {
        sheaf__attn_range seen = next->items[i].seen;
        longest = sheaf__max_u64(longest, seen.hi - seen.lo);
    }
    next->thread_floats =
        sheaf__attn_scratch_floats(o->key_dim, o->value_dim) +
        (next->n_levels + 1) * sheaf__attn_part_floats(SHEAF__ATTN_ROWS, plan->o_stride);
    if (o->path == SHEAF_ATTN_GATHER)
        next->gather_floats = longest * o->n_kv_heads *
                              (sheaf__attn_gathered_floats(o->key_dim) +
                               sheaf__attn_gathered_floats(o->value_dim));
    if (o->path == SHEAF_ATTN_REFERENCE) {
        next->part_floats = 0;
        next->thread_floats = (longest * 2 + SHEAF__ATTN_PAD) & ~(SHEAF__ATTN_PAD - 1ull);
    }
}

/* The workspace grows by half at least, so that a context that grows token by token seldom asks. */
static sheaf_status grow_workspace(sheaf_attn_plan *plan)
{
    const sheaf__attn_layout *next = &plan->next;
    uint64_t need;
    if (!sheaf__mul_u64(next->thread_floats, plan->n_threads, &need) ||
        !sheaf__add_u64(need, next->part_floats, &need) ||
        !sheaf__add_u64(need, next->gather_floats, &need))
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

/* --- the whole ---------------------------------------------------------------------------- */

/* An empty layout with the lists of `old`. */
static sheaf__attn_layout emptied(const sheaf__attn_layout *old)
{
    return (sheaf__attn_layout){
        .n_levels = 1,
        .items = old->items,
        .tiles = old->tiles,
        .units = old->units,
        .members = old->members,
        .tasks = old->tasks,
    };
}

/* views: null if nothing is to be shared */
static sheaf_status plan_step(sheaf_attn_plan *plan, const sheaf_attn_item *items,
                              const sheaf_kv_view *views, uint32_t n_items)
{
    plan->next = emptied(&plan->next);
    SHEAF__TRY(add_items(plan, items, n_items));
    if (views != NULL && n_items > 1) SHEAF__TRY(sheaf__attn_share(plan, views));
    SHEAF__TRY(add_own_units(plan));
    SHEAF__TRY(add_tasks(plan));
    size_workspace(plan);
    SHEAF__TRY(grow_workspace(plan));
    sheaf__attn_layout planned = plan->next;
    plan->next = plan->now;
    plan->now = planned;
    return SHEAF_OK;
}

sheaf_status sheaf_attn_plan_batch(sheaf_attn_plan *plan, const sheaf_attn_item *items,
                                   uint32_t n_items)
{
    if (plan == NULL || items == NULL || n_items == 0) return SHEAF_E_INVALID;
    return plan_step(plan, items, NULL, n_items);
}

sheaf_status sheaf_attn_plan_views(sheaf_attn_plan *plan, const sheaf_attn_item *items,
                                   const sheaf_kv_view *views, uint32_t n_items)
{
    if (plan == NULL || items == NULL || views == NULL || n_items == 0) return SHEAF_E_INVALID;
    for (uint32_t i = 0; i < n_items; i++) SHEAF__TRY(sheaf__attn_view_shape(plan, &views[i]));
    int fused = plan->options.path == SHEAF_ATTN_FUSED;
    return plan_step(plan, items, fused ? views : NULL, n_items);
}
