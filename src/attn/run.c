/* attn/run.c - one layer of one step: tasks dealt to threads, runs merged, rows written.
 *
 * Guides: a task walks the splits of its run in ascending order; of each it resolves the positions
 * to addresses, lets the kernel compute the part, and pushes it on its stack. Nothing is allocated:
 * what a task needs lies in its thread's piece of the workspace or on the C stack.
 */
#include <string.h>

#include "attn/merge.h"
#include "attn/paths.h"
#include "base/bits.h"
#include "base/status.h"
#include "base/thread.h"

/* The query rows of a unit as kernels want them. */
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

static void rows_set(const sheaf__attn_job *job, const sheaf__attn_unit *unit, rows *set)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf_attn_options *o = &plan->options;
    for (uint32_t r = 0; r < unit->n_rows; r++) {
        uint32_t head = sheaf__attn_row_head(plan, unit, r);
        uint64_t at = sheaf__attn_row_query(plan, unit, r) * o->n_q_heads + head;
        set->q[r] = job->q + at * o->key_dim;
        set->out[r] = job->out + at * o->value_dim;
        set->sink[r] = plan->sinks != NULL ? plan->sinks[head] : 0.0f;
        set->sees[r] = sheaf__attn_row_sees(plan, unit, r);
    }
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

static void reach_split(const sheaf__attn_job *job, const sheaf__attn_unit *unit,
                        const rows *set, uint32_t split, reach *to)
{
    reach_rows(set, unit->n_rows, split, to);
    if (job->plan->options.path == SHEAF_ATTN_GATHER)
        sheaf__attn_gather_addresses(job, unit->kv_head, split, to->first, to->end, &to->at);
    else
        sheaf__attn_view_addresses(&job->views[unit->item], unit->kv_head, split, to->first,
                                   to->end, &to->at);
}

static void finish(const sheaf__attn_job *job, const sheaf__attn_unit *unit, const rows *set,
                   sheaf__attn_part part)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_rows to = {
        .n_rows = unit->n_rows,
        .value_dim = plan->options.value_dim,
        .o_stride = plan->o_stride,
        .codec_v = job->views[unit->item].codec_v,
        .sinks = plan->sinks != NULL ? set->sink : NULL,
        .out = set->out,
    };
    plan->kernels->finish(&to, part);
}

static sheaf__attn_part run_part(const sheaf_attn_plan *plan, const sheaf__attn_unit *unit,
                                 uint32_t run)
{
    float *parts = plan->workspace + plan->sizes.thread_floats * plan->n_threads;
    uint64_t each = sheaf__attn_part_floats(unit->n_rows, plan->o_stride);
    return sheaf__attn_part_at(parts + unit->part + run * each, unit->n_rows);
}

/* Pushes the parts of the task's splits. */
static void walk_splits(const sheaf__attn_job *job, const sheaf__attn_task *task,
                        const rows *set, float *scratch, sheaf__attn_stack *stack)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf_attn_options *o = &plan->options;
    const sheaf__attn_unit *unit = &plan->units[task->unit];
    reach reaches[2]; /* of this split and of the next */
    sheaf__attn_split in = {
        .n_rows = unit->n_rows,
        .key_dim = o->key_dim,
        .value_dim = o->value_dim,
        .o_stride = plan->o_stride,
        .codec_k = job->views[unit->item].codec_k,
        .scale = o->scale,
        .softcap = o->softcap,
        .q = set->q,
        .scratch = scratch,
    };
    plan->kernels->pack(&in);
    reach_split(job, unit, set, task->first_split, &reaches[0]);
    for (uint32_t split = task->first_split; split < task->end_split; split++) {
        const reach *now = &reaches[(split - task->first_split) % 2];
        reach *next = &reaches[(split - task->first_split + 1) % 2];
        in.n_next = 0;
        if (split + 1 < task->end_split) {
            reach_split(job, unit, set, split + 1, next);
            in.next_k = next->at.k + next->first;
            in.n_next = next->end - next->first;
        }
        in.lo = now->lo, in.hi = now->hi;
        in.first = now->first, in.end = now->end;
        in.k = now->at.k, in.v = now->at.v;
        in.codec_k = now->at.codec_k, in.codec_v = now->at.codec_v;
        in.k_scale = now->at.k_scale, in.v_scale = now->at.v_scale;
        plan->kernels->split(&in, stack->leaf);
        sheaf__attn_stack_push(stack, split);
    }
}

static void attend_task(void *arg, uint32_t index, uint32_t thread)
{
    const sheaf__attn_job *job = arg;
    const sheaf_attn_plan *plan = job->plan;
    uint32_t first =
        plan->options.path == SHEAF_ATTN_GATHER ? plan->items[job->item].first_task : 0;
    const sheaf__attn_task *task = &plan->tasks[first + index];
    const sheaf__attn_unit *unit = &plan->units[task->unit];
    float *scratch = plan->workspace + thread * plan->sizes.thread_floats;
    rows set;
    rows_set(job, unit, &set);
    sheaf__attn_stack stack;
    sheaf__attn_stack_init(
        &stack, plan, unit->n_rows,
        scratch + sheaf__attn_scratch_floats(plan->options.key_dim, plan->options.value_dim),
        plan->sizes.n_levels);
    if (task->first_split == task->end_split) {
        memset(stack.leaf.l, 0, unit->n_rows * sizeof *stack.leaf.l);
        finish(job, unit, &set, stack.leaf);
        return;
    }
    walk_splits(job, task, &set, scratch, &stack);
    sheaf__attn_part part = sheaf__attn_stack_fold(&stack);
    if (unit->n_runs == 1) {
        finish(job, unit, &set, part);
        return;
    }
    memcpy(run_part(plan, unit, task->run).m, part.m,
           sheaf__attn_part_floats(unit->n_rows, plan->o_stride) * sizeof(float));
}

/* Merges the runs of a unit that has several. */
static void merge_task(void *arg, uint32_t index, uint32_t thread)
{
    (void)thread;
    const sheaf__attn_job *job = arg;
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_unit *unit = &plan->units[index];
    if (unit->n_runs == 1) return;
    rows set;
    rows_set(job, unit, &set);
    sheaf__attn_stack stack;
    sheaf__attn_stack_init(&stack, plan, unit->n_rows, NULL, 0);
    for (uint32_t run = 0; run < unit->n_runs; run++) {
        stack.leaf = run_part(plan, unit, run);
        sheaf__attn_stack_push(&stack, unit->first_run + run);
    }
    finish(job, unit, &set, sheaf__attn_stack_fold(&stack));
}

static void attend(sheaf__attn_job *job)
{
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_sizes *sizes = &plan->sizes;
    if (plan->options.path == SHEAF_ATTN_GATHER) {
        for (job->item = 0; job->item < sizes->n_items; job->item++) {
            sheaf__attn_gather(job);
            sheaf__threads_run(plan->threads, attend_task, job, plan->items[job->item].n_tasks);
        }
    } else {
        sheaf__threads_run(plan->threads, attend_task, job, sizes->n_tasks);
    }
    if (sizes->n_tasks > sizes->n_units)
        sheaf__threads_run(plan->threads, merge_task, job, sizes->n_units);
}

static void fill_report(const sheaf_attn_plan *plan, sheaf_attn_report *report)
{
    int reference = plan->options.path == SHEAF_ATTN_REFERENCE;
    report->path = plan->options.path;
    report->isa = plan->options.isa;
    report->n_threads = plan->n_threads;
    report->n_tasks = reference ? plan->sizes.n_units : plan->sizes.n_tasks;
    report->n_splits = reference ? 0 : plan->sizes.n_splits;
    report->workspace_bytes = plan->workspace_floats * sizeof(float);
}

sheaf_status sheaf_attn_run(sheaf_attn_plan *plan, const sheaf_kv_view *views, const float *q,
                            float *out, sheaf_attn_report *report)
{
    if (plan == NULL || views == NULL || q == NULL || out == NULL) return SHEAF_E_INVALID;
    if (report != NULL && report->struct_size != sizeof *report) return SHEAF_E_INVALID;
    if (plan->sizes.n_items == 0) return SHEAF_E_PLAN;
    for (uint32_t i = 0; i < plan->sizes.n_items; i++)
        SHEAF__TRY(sheaf__attn_view_check(plan, &plan->items[i], &views[i]));
    sheaf__attn_job job = {plan, views, q, out, 0};
    if (plan->options.path == SHEAF_ATTN_REFERENCE)
        sheaf__attn_reference(&job);
    else
        attend(&job);
    if (report != NULL) fill_report(plan, report);
    return SHEAF_OK;
}
