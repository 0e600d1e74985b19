/* attn/gather.c - keys and values decoded into one contiguous buffer first.
 *
 * What engines do whose kernels want dense tensors: every byte is read once more and written in
 * f32. Then the same kernels attend to the buffer, so the bits are those of the fused path. One
 * item at a time, so that the buffer need hold the longest only:
 *
 *     keys    [n_kv_heads, visible, key_dim]
 *     values  [n_kv_heads, visible, value_dim]
 */
#include "attn/paths.h"
#include "base/bits.h"
#include "base/thread.h"

static float *gathered(const sheaf__attn_job *job)
{
    const sheaf__attn_sizes *sizes = &job->plan->sizes;
    return job->plan->workspace + sizes->thread_floats * job->plan->n_threads +
           sizes->part_floats;
}

static uint64_t visible(const sheaf__attn_job *job)
{
    sheaf__attn_range seen = job->plan->items[job->item].seen;
    return seen.hi - seen.lo;
}

/* Position p of a head: where its key (or value) of `dim` numbers lies, floats into the buffer. */
static float *key_at(const sheaf__attn_job *job, uint32_t kv_head, uint64_t p)
{
    return gathered(job) + (kv_head * visible(job) + p) * job->plan->options.key_dim;
}

static float *value_at(const sheaf__attn_job *job, uint32_t kv_head, uint64_t p)
{
    const sheaf_attn_options *o = &job->plan->options;
    return gathered(job) + o->n_kv_heads * visible(job) * o->key_dim +
           (kv_head * visible(job) + p) * o->value_dim;
}

/* Positions of the split that the item's queries see. */
static sheaf__attn_range seen_in_split(const sheaf__attn_job *job, uint32_t split)
{
    sheaf__attn_range seen = job->plan->items[job->item].seen;
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
    const sheaf__attn_range seen = plan->items[job->item].seen;
    uint32_t first_split = seen.lo / SHEAF__ATTN_SPLIT;
    uint32_t n_splits = (seen.hi - 1) / SHEAF__ATTN_SPLIT - first_split + 1;
    uint32_t kv_head = task / n_splits, split = first_split + task % n_splits;
    sheaf__attn_range in = seen_in_split(job, split);
    sheaf__attn_addresses from;
    sheaf__attn_view_addresses(&job->views[job->item], kv_head, split, in.lo, in.hi, &from);
    uint64_t p = (uint64_t)split * SHEAF__ATTN_SPLIT + in.lo - seen.lo;
    for (uint32_t i = in.lo; i < in.hi; i++, p++) {
        plan->kernels->widen(from.codec_k, from.k[i], plan->options.key_dim,
                             key_at(job, kv_head, p));
        plan->kernels->widen(from.codec_v, from.v[i], plan->options.value_dim,
                             value_at(job, kv_head, p));
    }
}

void sheaf__attn_gather(const sheaf__attn_job *job)
{
    const sheaf__attn_range seen = job->plan->items[job->item].seen;
    if (seen.lo == seen.hi) return;
    uint32_t n_splits = (seen.hi - 1) / SHEAF__ATTN_SPLIT - seen.lo / SHEAF__ATTN_SPLIT + 1;
    sheaf__attn_job copy = *job;
    sheaf__threads_run(job->plan->threads, gather_task, &copy,
                       n_splits * job->plan->options.n_kv_heads);
}

void sheaf__attn_gather_addresses(const sheaf__attn_job *job, uint32_t kv_head, uint32_t split,
                                  uint32_t first, uint32_t end, sheaf__attn_addresses *out)
{
    uint64_t origin = (uint64_t)split * SHEAF__ATTN_SPLIT;
    uint32_t lo = job->plan->items[job->item].seen.lo;
    out->codec_k = out->codec_v = SHEAF_CODEC_F32;
    for (uint32_t p = first; p < end; p++) {
        out->k[p] = (const unsigned char *)key_at(job, kv_head, origin + p - lo);
        out->v[p] = (const unsigned char *)value_at(job, kv_head, origin + p - lo);
    }
}
