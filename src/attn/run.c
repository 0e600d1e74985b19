/* attn/run.c - one layer of one step: tasks dealt to threads, runs merged, rows written.
 *
 * Guides: a task walks the splits of its run in ascending order; of each it resolves the positions
 * to addresses, lets the kernel compute the part, and pushes it on its stack. What it leaves of a
 * unit with several tiles is merged tile by tile afterwards. Nothing is allocated:
 * what a task needs lies in its thread's piece of the workspace or on the C stack.
 */
#include <string.h>

#include "attn/merge.h"
#include "attn/paths.h"
#include "base/bits.h"
#include "base/status.h"
#include "base/thread.h"
#include "codec/codec.h"

/* The query rows of a unit, for each head of a task, or of a tile, as kernels want them. */
typedef struct rows {
    const float *q[SHEAF__ATTN_ROWS];
    float *out[SHEAF__ATTN_ROWS];
    float sink[SHEAF__ATTN_ROWS];
    sheaf__attn_range sees[SHEAF__ATTN_ROWS]; /* absolute */
} rows;

/* What they see of one split, each and together, and where it lies. */
typedef struct reach {
    uint32_t lo[SHEAF__ATTN_ROWS];
    uint32_t hi[SHEAF__ATTN_ROWS];
    uint32_t first, end;
    sheaf__attn_addresses at;
} reach;

/* Adds the rows of a tile, for a KV head, from row `to` on. */
static void rows_add(const sheaf__attn_job *job, const sheaf__attn_tile *tile, uint32_t kv_head,
                     uint32_t to, rows *set)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf_attn_options *o = &plan->options;
    for (uint32_t i = 0; i < tile->n_rows; i++) {
        uint32_t r = to + i, head = sheaf__attn_row_head(plan, tile, kv_head, i);
        uint64_t at = sheaf__attn_row_query(plan, tile, i) * o->n_q_heads + head;
        set->q[r] = job->q + at * o->key_dim;
        set->out[r] = job->out + at * o->value_dim;
        set->sink[r] = plan->sinks != NULL ? plan->sinks[head] : 0.0f;
        set->sees[r] = sheaf__attn_row_sees(plan, tile, i);
    }
}

/* The view through which a unit reads: that of any of its items. */
static const sheaf_kv_view *unit_view(const sheaf__attn_job *job, const sheaf__attn_unit *unit)
{
    const sheaf__attn_layout *now = &job->plan->now;
    return &job->views[now->tiles[now->members[unit->first_member].tile].item];
}

static void reach_rows(const rows *set, uint32_t n_rows, uint32_t split, reach *to)
{
    uint64_t from = (uint64_t)split * SHEAF__ATTN_SPLIT, past = from + SHEAF__ATTN_SPLIT;
    to->first = SHEAF__ATTN_SPLIT, to->end = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint64_t lo = sheaf__max_u64(set->sees[r].lo, from);
        uint64_t hi = sheaf__min_u64(set->sees[r].hi, past);
        if (lo >= hi) lo = hi = from;
        to->lo[r] = (uint32_t)(lo - from);
        to->hi[r] = (uint32_t)(hi - from);
        if (lo == hi) continue;
        if (to->lo[r] < to->first) to->first = to->lo[r];
        if (to->hi[r] > to->end) to->end = to->hi[r];
    }
}

static void reach_split(const sheaf__attn_job *job, const sheaf__attn_task *task,
                        const rows *set, uint32_t split, reach *to)
{
    const sheaf__attn_unit *unit = &job->plan->now.units[task->unit];
    reach_rows(set, unit->n_rows, split, to);
    if (job->plan->options.path == SHEAF_ATTN_GATHER)
        sheaf__attn_gather_addresses(job, task->kv_head, split, to->first, to->end, &to->at);
    else
        sheaf__attn_view_addresses(unit_view(job, unit), task->kv_head, split, to->first,
                                   to->end, &to->at);
}

/* Writes n_rows finished rows of one item. */
static void finish(const sheaf__attn_job *job, uint32_t item, uint32_t n_rows, const rows *set,
                   sheaf__attn_part part)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_rows to = {
        .n_rows = n_rows,
        .value_dim = plan->options.value_dim,
        .o_stride = plan->o_stride,
        .codec_v = job->views[item].codec_v,
        .sinks = plan->sinks != NULL ? set->sink : NULL,
        .out = set->out,
    };
    plan->kernels->finish(&to, part);
}

/* Where part i that a unit leaves of a KV head lies. */
static sheaf__attn_part part_of(const sheaf_attn_plan *plan, const sheaf__attn_unit *unit,
                                uint32_t kv_head, uint32_t i)
{
    float *parts = plan->workspace + plan->now.thread_floats * plan->n_threads + unit->part;
    uint64_t each = sheaf__attn_part_floats(unit->n_rows, plan->o_stride);
    return sheaf__attn_part_at(parts + ((uint64_t)kv_head * unit->n_parts + i) * each,
                               unit->n_rows);
}

/* How many positions of a head to read before those of the next. */
static uint32_t piece_of(const sheaf_kv_view *view, uint32_t n_heads)
{
    uint32_t least = view->block_tokens > 16 ? view->block_tokens : 16;
    return n_heads > 1 && least < SHEAF__ATTN_SPLIT ? least : SHEAF__ATTN_SPLIT;
}

/* The fixed part of what kernels take. */
static sheaf__attn_split split_of(const sheaf__attn_job *job, const sheaf__attn_task *task,
                                  const rows *set, float *scratch)
{
    const sheaf_attn_options *o = &job->plan->options;
    const sheaf__attn_unit *unit = &job->plan->now.units[task->unit];
    const sheaf_kv_view *view = unit_view(job, unit);
    return (sheaf__attn_split){
        .n_rows = unit->n_rows,
        .n_heads = task->n_heads,
        .piece = piece_of(view, task->n_heads),
        .k_head_stride = view->k_head_stride,
        .v_head_stride = view->v_head_stride,
        .key_dim = o->key_dim,
        .value_dim = o->value_dim,
        .o_stride = job->plan->o_stride,
        .scale = o->scale,
        .softcap = o->softcap,
        .q = set->q,
        .scratch = scratch,
    };
}

/* Leaves the node that the stack has as part i of the task's unit, for each of its heads. */
static void leave_part(const sheaf_attn_plan *plan, const sheaf__attn_task *task, uint32_t i,
                       sheaf__attn_stack *stack)
{
    const sheaf__attn_unit *unit = &plan->now.units[task->unit];
    const uint64_t n = unit->n_rows, numbers = n * plan->o_stride;
    const sheaf__attn_part from = sheaf__attn_stack_fold(stack);
    for (uint32_t h = 0; h < task->n_heads; h++) {
        sheaf__attn_part to = part_of(plan, unit, task->kv_head + h, i);
        memcpy(to.m, from.m + h * n, n * sizeof(float));
        memcpy(to.l, from.l + h * n, n * sizeof(float));
        memcpy(to.o, from.o + h * numbers, numbers * sizeof(float));
    }
}

/* Pushes the parts of the task's splits; leaves those of its nodes, if its unit leaves any. */
static void walk_splits(const sheaf__attn_job *job, const sheaf__attn_task *task,
                        const rows *set, float *scratch, sheaf__attn_stack *stack)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_unit *unit = &plan->now.units[task->unit];
    const sheaf__attn_range all = task->splits;
    uint32_t shift = plan->now.run_shift, part = task->first_part;
    uint32_t node_end = sheaf__attn_first_node(unit, shift, all).end;
    reach reaches[2]; /* of this split and of the next */
    sheaf__attn_split in = split_of(job, task, set, scratch);
    reach_split(job, task, set, all.lo, &reaches[0]);
    in.codec_k = reaches[0].at.codec_k; /* gathered keys are f32 */
    plan->kernels->pack(&in);
    for (uint32_t split = all.lo; split < all.hi; split++) {
        const reach *now = &reaches[(split - all.lo) % 2];
        reach *next = &reaches[(split - all.lo + 1) % 2];
        in.n_next = 0;
        if (split + 1 < all.hi) {
            reach_split(job, task, set, split + 1, next);
            in.next_k = next->at.k + next->first;
            in.n_next = next->end - next->first;
        }
        in.lo = now->lo, in.hi = now->hi;
        in.first = now->first, in.end = now->end;
        in.k = now->at.k, in.v = now->at.v;
        in.codec_k = now->at.codec_k, in.codec_v = now->at.codec_v;
        in.k_scale = now->at.k_scale, in.v_scale = now->at.v_scale;
        plan->kernels->split(&in, stack->leaf);
        sheaf__attn_stack_push(stack, split, 0);
        if (split + 1 < node_end || unit->n_parts == 0) continue;
        leave_part(plan, task, part++, stack);
        if (node_end < all.hi)
            node_end =
                sheaf__attn_first_node(unit, shift, (sheaf__attn_range){node_end, all.hi}).end;
    }
}

static void attend_heads(const sheaf__attn_job *job, const sheaf__attn_task *task,
                         float *scratch)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_layout *now = &plan->now;
    const sheaf__attn_unit *unit = &now->units[task->unit];
    const sheaf__attn_member *members = &now->members[unit->first_member];
    const uint32_t n_rows = task->n_heads * unit->n_rows;
    rows set;
    for (uint32_t h = 0; h < task->n_heads; h++)
        for (uint32_t i = 0; i < unit->n_members; i++)
            rows_add(job, &now->tiles[members[i].tile], task->kv_head + h,
                     h * unit->n_rows + members[i].first_row, &set);
    sheaf__attn_stack stack;
    sheaf__attn_stack_init(
        &stack, plan, n_rows,
        scratch + sheaf__attn_scratch_floats(plan->options.key_dim, plan->options.value_dim),
        now->n_levels);
    uint32_t item = now->tiles[members[0].tile].item;
    if (task->splits.lo == task->splits.hi) {
        memset(stack.leaf.l, 0, n_rows * sizeof *stack.leaf.l);
        finish(job, item, n_rows, &set, stack.leaf);
        return;
    }
    walk_splits(job, task, &set, scratch, &stack);
    if (unit->n_parts == 0) finish(job, item, n_rows, &set, sheaf__attn_stack_fold(&stack));
}

static void attend_task(void *arg, uint32_t index, uint32_t thread)
{
    const sheaf__attn_job *job = arg;
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_layout *now = &plan->now;
    uint32_t first =
        plan->options.path == SHEAF_ATTN_GATHER ? now->items[job->item].first_task : 0;
    const sheaf__attn_task *task = &now->tasks[first + index];
    const sheaf_kv_view *view = unit_view(job, &now->units[task->unit]);
    float *scratch = plan->workspace + thread * now->thread_floats;
    if (!sheaf__codec_is_quantized(view->codec_k) &&
        !sheaf__codec_is_quantized(view->codec_v)) {
        attend_heads(job, task, scratch);
        return;
    }
    sheaf__attn_task one = *task; /* scales are found head by head */
    one.n_heads = 1;
    for (uint32_t h = 0; h < task->n_heads; h++, one.kv_head++)
        attend_heads(job, &one, scratch);
}

/* Pushes the rows that a tile has in the parts of one of its units. */
static void push_parts(const sheaf_attn_plan *plan, const sheaf__attn_member *member,
                       uint32_t kv_head, sheaf__attn_stack *stack)
{
    const sheaf__attn_unit *unit = &plan->now.units[member->unit];
    const uint32_t shift = plan->now.run_shift, row = member->first_row;
    uint32_t part = 0;
    sheaf__attn_range run = {0, unit->splits.lo};
    while (run.hi < unit->splits.hi) {
        run = sheaf__attn_run_at(unit, shift, run.hi);
        for (sheaf__attn_range left = run; left.lo < left.hi; part++) {
            sheaf__attn_node node = sheaf__attn_first_node(unit, shift, left);
            sheaf__attn_part from = part_of(plan, unit, kv_head, part);
            stack->leaf = (sheaf__attn_part){from.m + row, from.l + row,
                                             from.o + (size_t)row * plan->o_stride};
            sheaf__attn_stack_push(stack, left.lo, node.level);
            left.lo = node.end;
        }
    }
}

/* Merges what the units of a tile have left. */
static void merge_task(void *arg, uint32_t index, uint32_t thread)
{
    (void)thread;
    const sheaf__attn_job *job = arg;
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_layout *now = &plan->now;
    const sheaf__attn_tile *tile = &now->tiles[index / plan->options.n_kv_heads];
    const uint32_t kv_head = index % plan->options.n_kv_heads;
    const sheaf__attn_member *member = &now->members[tile->first_member];
    if (now->units[member->unit].n_parts == 0) return; /* finished by its task */
    rows set;
    rows_add(job, tile, kv_head, 0, &set);
    sheaf__attn_stack stack;
    sheaf__attn_stack_init(&stack, plan, tile->n_rows, NULL, 0);
    for (;; member = &now->members[member->next]) {
        push_parts(plan, member, kv_head, &stack);
        if (member->next == SHEAF__ATTN_NONE) break;
    }
    finish(job, tile->item, tile->n_rows, &set, sheaf__attn_stack_fold(&stack));
}

static void attend(sheaf__attn_job *job)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_layout *now = &plan->now;
    if (plan->options.path == SHEAF_ATTN_GATHER) {
        for (job->item = 0; job->item < now->n_items; job->item++) {
            sheaf__attn_gather(job);
            sheaf__threads_run(plan->threads, attend_task, job, now->items[job->item].n_tasks);
        }
    } else {
        sheaf__threads_run(plan->threads, attend_task, job, now->n_tasks);
    }
    if (now->part_floats > 0)
        sheaf__threads_run(plan->threads, merge_task, job,
                           now->n_tiles * plan->options.n_kv_heads);
}

static void fill_report(const sheaf_attn_plan *plan, sheaf_attn_report *report)
{
    int reference = plan->options.path == SHEAF_ATTN_REFERENCE;
    report->path = plan->options.path;
    report->isa = plan->options.isa;
    report->n_threads = plan->n_threads;
    report->n_tasks =
        reference ? (uint64_t)plan->now.n_tiles * plan->options.n_kv_heads : plan->now.n_tasks;
    report->n_splits = reference ? 0 : plan->now.n_splits;
    report->workspace_bytes = plan->workspace_floats * sizeof(float);
    report->n_shared_splits = plan->now.n_shared_splits;
}

sheaf_status sheaf_attn_run(sheaf_attn_plan *plan, const sheaf_kv_view *views, const float *q,
                            float *out, sheaf_attn_report *report)
{
    if (plan == NULL || views == NULL || q == NULL || out == NULL) return SHEAF_E_INVALID;
    if (report != NULL && report->struct_size != sizeof *report) return SHEAF_E_INVALID;
    if (plan->now.n_items == 0) return SHEAF_E_PLAN;
    for (uint32_t i = 0; i < plan->now.n_items; i++)
        SHEAF__TRY(sheaf__attn_view_check(plan, &plan->now.items[i], &views[i]));
    SHEAF__TRY(sheaf__attn_shared_check(plan, views));
    sheaf__attn_job job = {plan, views, q, out, 0};
    if (plan->options.path == SHEAF_ATTN_REFERENCE)
        sheaf__attn_reference(&job);
    else
        attend(&job);
    if (report != NULL) fill_report(plan, report);
    return SHEAF_OK;
}
