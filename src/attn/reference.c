/* attn/reference.c - attention as a textbook writes it, in double precision.
 *
 * The oracle of the tests: one query row after the other, positions in order, no splits. It shares
 * with the other paths the options and the list of tiles, and nothing that computes; what blocks hold
 * is decoded by sheaf_codec_decode.
 */
#include <math.h>

#include "attn/paths.h"
#include "base/status.h"
#include "base/thread.h"

/* Position p's key (or value) in a view, decoded. Returns [dim] in `row`. */
static const float *decode(const sheaf_kv_view *view, int is_value, uint32_t head, uint32_t p,
                           float *row)
{
    uint64_t block = p / view->block_tokens - view->first_block;
    uint64_t at = view->rows ? view->rows[block] : block;
    const unsigned char *segment =
        view->base + at * (is_value ? view->row_stride_v : view->row_stride_k) +
        (is_value ? view->v_offset : view->k_offset) +
        head * (is_value ? view->v_head_stride : view->k_head_stride);
    sheaf_status st = sheaf_codec_decode(
        is_value ? view->codec_v : view->codec_k, segment, view->block_tokens,
        is_value ? view->value_dim : view->key_dim, p % view->block_tokens, 1, row);
    SHEAF__ASSERT(st == SHEAF_OK); /* the view was checked */
    (void)st;
    return row;
}

/* s: [sees.hi - sees.lo]; sink: null if there is none */
static void attend(const sheaf_attn_options *o, const sheaf_kv_view *view, uint32_t kv_head,
                   sheaf__attn_range sees, const float *q, const float *sink, double *s,
                   float *out)
{
    float row[SHEAF_ATTN_MAX_DIM];
    double mean[SHEAF_ATTN_MAX_DIM] = {0};
    uint32_t n = sees.hi - sees.lo;
    double top = sink != NULL ? (double)*sink : -INFINITY, sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const float *k = decode(view, 0, kv_head, sees.lo + i, row);
        double dot = 0.0;
        for (uint32_t d = 0; d < o->key_dim; d++) dot += (double)q[d] * (double)k[d];
        s[i] = dot * (double)o->scale;
        if (o->softcap != 0.0f) s[i] = (double)o->softcap * tanh(s[i] / (double)o->softcap);
        if (s[i] > top) top = s[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        s[i] = exp(s[i] - top);
        sum += s[i];
    }
    if (sink != NULL) sum += exp((double)*sink - top);
    for (uint32_t i = 0; i < n; i++) {
        const float *v = decode(view, 1, kv_head, sees.lo + i, row);
        for (uint32_t d = 0; d < o->value_dim; d++) mean[d] += s[i] * (double)v[d];
    }
    for (uint32_t d = 0; d < o->value_dim; d++) out[d] = n == 0 ? 0.0f : (float)(mean[d] / sum);
}

static void tile_task(void *arg, uint32_t task, uint32_t thread)
{
    const sheaf__attn_job *job = arg;
    const sheaf_attn_plan *plan = job->plan;
    const sheaf_attn_options *o = &plan->options;
    const sheaf__attn_tile *tile = &plan->now.tiles[task / o->n_kv_heads];
    const uint32_t kv_head = task % o->n_kv_heads;
    void *scores = plan->workspace + thread * plan->now.thread_floats;
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        uint32_t head = sheaf__attn_row_head(plan, tile, kv_head, r);
        uint64_t at = sheaf__attn_row_query(plan, tile, r) * o->n_q_heads + head;
        attend(o, &job->views[tile->item], kv_head, sheaf__attn_row_sees(plan, tile, r),
               job->q + at * o->key_dim, plan->sinks ? &plan->sinks[head] : NULL, scores,
               job->out + at * o->value_dim);
    }
}

void sheaf__attn_reference(const sheaf__attn_job *job)
{
    sheaf__attn_job copy = *job;
    sheaf__threads_run(job->plan->threads, tile_task, &copy,
                       job->plan->now.n_tiles * job->plan->options.n_kv_heads);
}
