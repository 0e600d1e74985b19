/* attn/gather.c - keys and values decoded into one contiguous buffer first.
 *
 * What engines do whose kernels want dense tensors: every byte is read once more and written in
 * f32. Quantized codes are copied as they are, with their scales. Then the same kernels attend to
 * the buffer, so the bits are those of the fused path. One item at a time, so that the buffer need
 * hold the longest only; heads of keys, then heads of values, each in dim + 1 floats a position:
 *
 *     raw        [visible, dim] f32
 *     quantized  [visible, bytes of a row] codes, in the room of [visible, dim] f32; then
 *                [visible] f32 scales
 */
#include <string.h>

#include "attn/paths.h"
#include "base/bits.h"
#include "base/thread.h"
#include "codec/codec.h"

static float *gathered(const sheaf__attn_job *job)
{
    const sheaf__attn_layout *now = &job->plan->now;
    return job->plan->workspace + now->thread_floats * job->plan->n_threads + now->part_floats;
}

static uint64_t visible(const sheaf__attn_job *job)
{
    sheaf__attn_range seen = job->plan->now.items[job->item].seen;
    return seen.hi - seen.lo;
}

/* One side, K or V, of one KV head in the buffer. */
typedef struct run {
    unsigned char *rows; /* a position after the other */
    float *scales;       /* [visible]; null: the codec is raw, the rows f32 */
    uint64_t row_bytes;
    uint32_t codec; /* in the blocks */
    uint32_t dim;
} run;

static run run_of(const sheaf__attn_job *job, int is_value, uint32_t kv_head)
{
    const sheaf_attn_options *o = &job->plan->options;
    const sheaf_kv_view *view = &job->views[job->item];
    run r = {.codec = is_value ? view->codec_v : view->codec_k};
    r.dim = is_value ? o->value_dim : o->key_dim;
    float *floats = gathered(job) + kv_head * visible(job) * sheaf__attn_gathered_floats(r.dim);
    if (is_value)
        floats += o->n_kv_heads * visible(job) * sheaf__attn_gathered_floats(o->key_dim);
    r.rows = (unsigned char *)floats;
    r.row_bytes = (uint64_t)r.dim * sizeof(float);
    if (sheaf__codec_is_quantized(r.codec)) {
        r.row_bytes = sheaf__codec_row_bytes(r.codec, r.dim);
        r.scales = floats + visible(job) * r.dim;
    }
    return r;
}

/* Takes the positions [in.lo, in.hi) of a split to place p and on. */
static void take(const run *to, const sheaf__attn_kernels *kernels, sheaf__attn_range in,
                 const unsigned char *const *from, const float *scales, uint64_t p)
{
    unsigned char *row = to->rows + p * to->row_bytes;
    for (uint32_t i = in.lo; i < in.hi; i++, row += to->row_bytes) {
        if (to->scales != NULL)
            memcpy(row, from[i], to->row_bytes);
        else
            kernels->widen(to->codec, from[i], to->dim, (float *)(void *)row);
    }
    if (to->scales != NULL)
        memcpy(to->scales + p, scales + in.lo, (in.hi - in.lo) * sizeof *scales);
}

/* Positions of the split that the item's queries see. */
static sheaf__attn_range seen_in_split(const sheaf__attn_job *job, uint32_t split)
{
    sheaf__attn_range seen = job->plan->now.items[job->item].seen;
    uint64_t origin = (uint64_t)split * SHEAF__ATTN_SPLIT;
    return (sheaf__attn_range){
        (uint32_t)(sheaf__max_u64(seen.lo, origin) - origin),
        (uint32_t)(sheaf__min_u64(seen.hi, origin + SHEAF__ATTN_SPLIT) - origin)};
}

/* Task: one split of one KV head. */
static void gather_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const sheaf__attn_job *job = arg;
    const sheaf_attn_plan *plan = job->plan;
    const sheaf__attn_range seen = plan->now.items[job->item].seen;
    uint32_t first_split = seen.lo / SHEAF__ATTN_SPLIT;
    uint32_t n_splits = (seen.hi - 1) / SHEAF__ATTN_SPLIT - first_split + 1;
    uint32_t kv_head = task / n_splits, split = first_split + task % n_splits;
    sheaf__attn_range in = seen_in_split(job, split);
    sheaf__attn_addresses from;
    sheaf__attn_view_addresses(&job->views[job->item], kv_head, split, in.lo, in.hi, &from);
    uint64_t p = (uint64_t)split * SHEAF__ATTN_SPLIT + in.lo - seen.lo;
    const run keys = run_of(job, 0, kv_head), values = run_of(job, 1, kv_head);
    take(&keys, plan->kernels, in, from.k, from.k_scale, p);
    take(&values, plan->kernels, in, from.v, from.v_scale, p);
}

void sheaf__attn_gather(const sheaf__attn_job *job)
{
    const sheaf__attn_range seen = job->plan->now.items[job->item].seen;
    if (seen.lo == seen.hi) return;
    uint32_t n_splits = (seen.hi - 1) / SHEAF__ATTN_SPLIT - seen.lo / SHEAF__ATTN_SPLIT + 1;
    sheaf__attn_job copy = *job;
    sheaf__threads_run(job->plan->threads, gather_task, &copy,
                       n_splits * job->plan->options.n_kv_heads);
}

/* Positions [first, end) of a split, whose first lies at place p. Returns the codec there. */
static uint32_t resolve(const run *from, uint32_t first, uint32_t end, uint64_t p,
                        const unsigned char **at, float *scales)
{
    const unsigned char *row = from->rows + p * from->row_bytes;
    for (uint32_t i = first; i < end; i++, row += from->row_bytes) at[i] = row;
    if (from->scales == NULL) return SHEAF_CODEC_F32;
    memcpy(scales + first, from->scales + p, (end - first) * sizeof *scales);
    return from->codec;
}

void sheaf__attn_gather_addresses(const sheaf__attn_job *job, uint32_t kv_head, uint32_t split,
                                  uint32_t first, uint32_t end, sheaf__attn_addresses *out)
{
    uint64_t p =
        (uint64_t)split * SHEAF__ATTN_SPLIT + first - job->plan->now.items[job->item].seen.lo;
    const run keys = run_of(job, 0, kv_head), values = run_of(job, 1, kv_head);
    out->codec_k = resolve(&keys, first, end, p, out->k, out->k_scale);
    out->codec_v = resolve(&values, first, end, p, out->v, out->v_scale);
}
