/* attn/cuda/plan.c - a step of the GPU planned, and its layers queued.
 *
 * One table holds all that kernels read of a step (step.h); it is written into pinned memory and travels
 * by one copy. A pinned copy is written again only when the upload before has left it. What kernels
 * write, parts and counters, does not travel.
 */
#include "attn/cuda/plan.h"

#include <cuda.h>
#include <math.h>
#include <string.h>

#include "attn/cuda/describe.h"
#include "base/bits.h"
#include "base/cuda_driver.h"
#include "base/cuda_error.h"
#include "base/status.h"
#include "codec/codec.h"
#include "codec/quantized.h"

#define MAX_HEADS 65536

/* --- room --------------------------------------------------------------------------------- */

/* Nothing that is queued on the stream reads what is given back afterwards. */
static sheaf_status grow_table(sheaf_cuda_plan *plan, uint64_t bytes, void *stream)
{
    if (bytes <= plan->table_capacity) return SHEAF_OK;
    uint64_t grown = sheaf__max_u64(bytes, 2 * plan->table_capacity);
    if (grown < SHEAF__CUDA_LEAST_TABLE) grown = SHEAF__CUDA_LEAST_TABLE;
    uint64_t half =
        sheaf__min_u64(SHEAF__CUDA_STAGING / 2 / grown, SHEAF__CUDA_MOST_COPIES / 2);
    uint32_t n_copies = 2 * (uint32_t)sheaf__max_u64(half, 1);
    void *table = NULL, *staging = NULL;
    SHEAF__TRY(sheaf__cuda_status(cudaStreamSynchronize(stream), "tables", NULL));
    SHEAF__TRY(sheaf__cuda_status(cudaMalloc(&table, grown), "tables", NULL));
    sheaf_status status =
        sheaf__cuda_status(cudaMallocHost(&staging, n_copies * grown), "pinned tables", NULL);
    if (status != SHEAF_OK) {
        (void)cudaFree(table);
        return status;
    }
    (void)cudaFree(plan->table);
    (void)cudaFreeHost(plan->staging);
    plan->table = table;
    plan->staging = staging;
    plan->table_capacity = grown;
    plan->n_copies = n_copies;
    plan->copy = 0;
    return SHEAF_OK;
}

static sheaf_status grow_parts(sheaf_cuda_plan *plan, uint64_t n_parts, void *stream)
{
    uint64_t floats =
        n_parts * plan->options.n_q_heads * sheaf__cuda_part_floats(plan->options.key_dim);
    if (floats <= plan->part_floats) return SHEAF_OK;
    floats = sheaf__max_u64(floats, plan->part_floats + plan->part_floats / 2);
    void *parts = NULL;
    SHEAF__TRY(sheaf__cuda_status(cudaStreamSynchronize(stream), "parts", NULL));
    SHEAF__TRY(sheaf__cuda_status(cudaMalloc(&parts, floats * sizeof(float)), "parts", NULL));
    (void)cudaFree(plan->parts);
    plan->parts = parts;
    plan->part_floats = floats;
    return SHEAF_OK;
}

/* Counters are set to zero here alone: kernels find them so and leave them so. */
static sheaf_status grow_counters(sheaf_cuda_plan *plan, uint64_t n, void *stream)
{
    if (n <= plan->n_counters) return SHEAF_OK;
    n = sheaf__max_u64(n, 2 * plan->n_counters);
    const uint64_t bytes = n * sizeof *plan->counters;
    void *counters = NULL;
    SHEAF__TRY(sheaf__cuda_status(cudaMalloc(&counters, bytes), "counters", NULL));
    sheaf_status status =
        sheaf__cuda_status(cudaMemsetAsync(counters, 0, bytes, stream), "counters", NULL);
    if (status == SHEAF_OK)
        status = sheaf__cuda_status(cudaStreamSynchronize(stream), "counters", NULL);
    if (status != SHEAF_OK) {
        (void)cudaFree(counters);
        return status;
    }
    (void)cudaFree(plan->counters);
    plan->counters = counters;
    plan->n_counters = n;
    return SHEAF_OK;
}

static sheaf__cuda_rules rules_of(const sheaf_cuda_plan *plan)
{
    return (sheaf__cuda_rules){
        .options = &plan->options,
        .n_processors = (uint32_t)plan->n_processors,
        .prefix_min = plan->cuda.prefix_min,
        .tuning = plan->tuning,
    };
}

/* Takes the room that the options ask for. */
static sheaf_status take_room(sheaf_cuda_plan *plan)
{
    if (plan->cuda.max_items == 0 || plan->cuda.max_tokens == 0) return SHEAF_OK;
    const sheaf__cuda_rules rules = rules_of(plan);
    sheaf__cuda_room room;
    SHEAF__TRY(
        sheaf__cuda_step_room(&rules, plan->cuda.max_items, plan->cuda.max_tokens, &room));
    plan->step.row_room = room.n_rows;
    SHEAF__TRY(grow_table(plan, room.table_bytes, NULL));
    SHEAF__TRY(grow_counters(plan, room.n_counters, NULL));
    return grow_parts(plan, room.n_parts, NULL);
}

/* --- life --------------------------------------------------------------------------------- */

static sheaf_status check_options(const sheaf_attn_options *o, const sheaf_cuda_attn_options *c)
{
    if (o->struct_size != sizeof *o || c->struct_size != sizeof *c) return SHEAF_E_INVALID;
    if (o->n_kv_heads == 0 || o->n_q_heads == 0 || o->n_q_heads > MAX_HEADS)
        return SHEAF_E_INVALID;
    if (o->n_q_heads % o->n_kv_heads != 0 || o->not_causal > 1) return SHEAF_E_INVALID;
    if (!isfinite(o->scale) || !isfinite(o->softcap) || o->softcap < 0.0f)
        return SHEAF_E_INVALID;
    for (uint32_t h = 0; o->sinks != NULL && h < o->n_q_heads; h++)
        if (!isfinite(o->sinks[h])) return SHEAF_E_INVALID;
    if (c->io_dtype > SHEAF_DTYPE_BF16) return SHEAF_E_INVALID;
    if (o->key_dim != o->value_dim ||
        (o->key_dim != 64 && o->key_dim != 128 && o->key_dim != 256))
        return SHEAF_E_UNSUPPORTED;
    return SHEAF_OK;
}

static sheaf_status open_gpu(sheaf_cuda_plan *plan, const float *sinks, sheaf_error *err)
{
    int ordinal = (int)plan->cuda.ordinal;
    SHEAF__TRY(sheaf__cuda_kernels_run(plan->cuda.ordinal, err));
    SHEAF__TRY(sheaf__cuda_status(cudaSetDevice(ordinal), "no such GPU", err));
    SHEAF__TRY(sheaf__cuda_status(
        cudaDeviceGetAttribute(&plan->n_processors, cudaDevAttrMultiProcessorCount, ordinal),
        "processors", err));
    for (int half = 0; half < 2; half++)
        SHEAF__TRY(sheaf__cuda_status(
            cudaEventCreateWithFlags(&plan->left[half], cudaEventDisableTiming), "event", err));
    SHEAF__TRY(take_room(plan));
    if (sinks == NULL) return SHEAF_OK;
    uint64_t bytes = plan->options.n_q_heads * sizeof *sinks;
    void *to = NULL;
    SHEAF__TRY(sheaf__cuda_status(cudaMalloc(&to, bytes), "sinks", err));
    plan->sinks = to;
    return sheaf__cuda_status(cudaMemcpy(to, sinks, bytes, cudaMemcpyHostToDevice), "sinks",
                              err);
}

sheaf_status sheaf_cuda_plan_create(const sheaf_attn_options *options,
                                    const sheaf_cuda_attn_options *cuda, sheaf_cuda_plan **out,
                                    sheaf_error *err)
{
    sheaf_cuda_attn_options defaults = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    if (options == NULL || out == NULL) return SHEAF_E_INVALID;
    if (cuda == NULL) cuda = &defaults;
    SHEAF__TRY(check_options(options, cuda));
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf_cuda_plan *plan = sheaf__memory_alloc(&memory, 1, sizeof *plan);
    if (plan == NULL) return SHEAF_E_NO_MEMORY;
    plan->memory = memory;
    plan->options = *options;
    plan->options.sinks = NULL;
    plan->cuda = *cuda;
    if (options->scale == 0.0f) plan->options.scale = 1.0f / sqrtf((float)options->key_dim);
    int before = 0;
    sheaf_status status = sheaf__cuda_status(cudaGetDevice(&before), "no GPU", err);
    if (status == SHEAF_OK) {
        status = open_gpu(plan, options->sinks, err);
        (void)cudaSetDevice(before);
    }
    if (status != SHEAF_OK) {
        sheaf_cuda_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return SHEAF_OK;
}

void sheaf_cuda_plan_destroy(sheaf_cuda_plan *plan)
{
    if (plan == NULL) return;
    (void)cudaFree(plan->sinks);
    (void)cudaFree(plan->parts);
    (void)cudaFree(plan->counters);
    (void)cudaFree(plan->table); /* waits for all that still reads it */
    (void)cudaFreeHost(plan->staging);
    for (int half = 0; half < 2; half++)
        if (plan->left[half] != NULL) (void)cudaEventDestroy(plan->left[half]);
    sheaf__memory memory = plan->memory;
    sheaf__cuda_step_free(&plan->step, &memory);
    sheaf__memory_free(&memory, plan, 1, sizeof *plan);
}

void sheaf__cuda_plan_tune(sheaf_cuda_plan *plan, const sheaf__cuda_tuning *tuning)
{
    plan->tuning = *tuning;
}

/* --- planning ------------------------------------------------------------------------------ */

static unsigned char *next_copy(const sheaf_cuda_plan *plan)
{
    return plan->staging + plan->copy * plan->table_capacity;
}

/* Waits until the next pinned copy may be written, and gives it to the step. */
static sheaf_status look_ahead(sheaf_cuda_plan *plan)
{
    plan->step.ahead = NULL;
    if (plan->staging == NULL) return SHEAF_OK;
    const uint32_t half = plan->n_copies / 2, copy = plan->copy;
    if (copy % half == 0) /* written last one round ago */
        SHEAF__TRY(
            sheaf__cuda_status(cudaEventSynchronize(plan->left[copy / half]), "upload", NULL));
    plan->step.ahead = next_copy(plan);
    plan->step.ahead_bytes = plan->table_capacity;
    return SHEAF_OK;
}

typedef CUresult copy_fn(CUdeviceptr, const void *, size_t, CUstream);

/* Queues the upload of a pinned copy of the table. What was not written of it no kernel reads. */
static sheaf_status send(const sheaf_cuda_plan *plan, const unsigned char *copy, void *stream)
{
    const sheaf__cuda_places *at = &plan->step.places;
    uint64_t begin = at->begin, size = at->bytes - begin;
    if (size > SHEAF__CUDA_BRIEF_UPLOAD && size < SHEAF__CUDA_LEAST_UPLOAD) {
        size =
            SHEAF__CUDA_LEAST_UPLOAD; /* more of what lies before, else of what lies behind */
        begin = at->bytes > size ? at->bytes - size : 0;
    }
    unsigned char *to = plan->table + begin;
    static void *kept = NULL;
    copy_fn *driver = NULL; /* a little less than the runtime's copy */
    if (sheaf__cuda_kept_call(&kept, "cuMemcpyHtoDAsync", &driver) &&
        driver((CUdeviceptr)(uintptr_t)to, copy + begin, size, stream) == CUDA_SUCCESS)
        return SHEAF_OK;
    /* the runtime can do what a thread without a context cannot, and says what is wrong */
    return sheaf__cuda_status(
        cudaMemcpyAsync(to, copy + begin, size, cudaMemcpyHostToDevice, stream), "upload",
        NULL);
}

/* Writes the table into the next pinned copy and queues its upload. */
static sheaf_status upload(sheaf_cuda_plan *plan, const sheaf_kv_view *views, void *stream)
{
    SHEAF__TRY(grow_table(plan, plan->step.places.bytes, stream));
    const uint32_t half = plan->n_copies / 2, copy = plan->copy;
    sheaf__cuda_step_write(&plan->step, views, next_copy(plan));
    SHEAF__TRY(send(plan, next_copy(plan), stream));
    if (copy % half == half - 1) {
        sheaf_status status = sheaf__cuda_status(
            cudaEventRecord(plan->left[copy / half], stream), "upload", NULL);
        if (status != SHEAF_OK) { /* no event says when what was queued has left */
            (void)cudaStreamSynchronize(stream);
            return status;
        }
    }
    plan->copy = (copy + 1) % plan->n_copies;
    return SHEAF_OK;
}

/* What launches are told that does not depend on the layer. */
static void set_launch(sheaf_cuda_plan *plan)
{
    const sheaf__cuda_step *step = &plan->step;
    const sheaf__cuda_layout *l = &step->layout;
    const sheaf_attn_options *o = &plan->options;
    const sheaf__cuda_places *at = &step->places;
    unsigned char *table = plan->table;
    sheaf__cuda_launch launch;
    memset(&launch, 0, sizeof launch); /* it is compared with the last one as bytes */
    launch.places = *at;
    launch.places.begin = launch.places.bytes = 0;
    launch.table = table;
    launch.n_items = step->n_items, launch.n_queries = step->n_queries;
    launch.n_prefill = step->n_prefill, launch.n_tiles = step->n_tiles;
    sheaf__cuda_decode *d = &launch.decode;
    d->parts = plan->parts;
    d->sinks = plan->sinks;
    d->rows = (const uint32_t *)(const void *)table;
    d->units = (const sheaf__cuda_unit *)(const void *)(table + at->units);
    d->merges = (const sheaf__cuda_merge *)(const void *)(table + at->merges);
    d->prefix_units = (const sheaf__cuda_prefix_unit *)(const void *)(table + at->prefix_units);
    d->members = (const uint32_t *)(const void *)(table + at->members);
    d->scale = o->scale, d->softcap = o->softcap;
    d->n_units = l->n_units, d->n_merges = l->n_merges, d->n_prefix_units = l->n_prefix_units;
    d->n_q_heads = o->n_q_heads, d->n_kv_heads = o->n_kv_heads;
    d->group = o->n_q_heads / o->n_kv_heads;
    d->block_shift = sheaf__log2(plan->geometry.block_tokens);
    d->codec = plan->geometry.codec_k, d->dim = o->key_dim, d->io_dtype = plan->cuda.io_dtype;
    d->arrived = plan->counters;
    d->taken = d->arrived + (uint64_t)l->n_merges * o->n_q_heads;
    d->n_blocks = (uint32_t)plan->n_processors;
    d->slots = l->slots;
    d->overlap = l->overlap;
    d->dealt = l->all_chunks;
    d->settled = !o->not_causal; /* else a query's own position is not known to kernels */
    memcpy(d->signs, sheaf__turbo4_signs, sizeof d->signs);
    static const uint32_t masks[4] = SHEAF__CUDA_MASKS;
    memcpy(d->levels, sheaf__turbo4_levels, sizeof d->levels);
    memcpy(d->masks, masks, sizeof d->masks);
    if (memcmp(&launch, &plan->launched, sizeof launch) != 0) plan->generation++;
    plan->launched = launch;
}

static sheaf_status make_step(sheaf_cuda_plan *plan, const sheaf_attn_item *items,
                              const sheaf_kv_view *views, uint32_t n_items, void *stream)
{
    sheaf__cuda_rules rules = rules_of(plan);
    rules.decodes = sheaf__cuda_decode_check(&views[0], plan->cuda.io_dtype) == SHEAF_OK;
    const uint32_t kernel =
        sheaf__cuda_prefill_kernel(&views[0], plan->cuda.io_dtype, SHEAF__CUDA_PREFILL_BEST);
    plan->prefill_kernel = kernel;
    rules.prefill_rows = sheaf__cuda_prefill_rows(&views[0], plan->cuda.io_dtype, kernel);
    SHEAF__TRY(look_ahead(plan));
    SHEAF__TRY(sheaf__cuda_step_set(&plan->step, &plan->memory, &rules, items, views, n_items));
    SHEAF__TRY(grow_parts(plan, plan->step.layout.n_parts, stream));
    SHEAF__TRY(grow_counters(plan, sheaf__cuda_step_counters(&plan->step), stream));
    return upload(plan, views, stream);
}

sheaf_status sheaf_cuda_plan_batch(sheaf_cuda_plan *plan, const sheaf_attn_item *items,
                                   const sheaf_kv_view *views, uint32_t n_items, void *stream)
{
    if (plan == NULL || items == NULL || views == NULL || n_items == 0) return SHEAF_E_INVALID;
    const uint64_t row_room = plan->step.row_room;
    sheaf_status status = make_step(plan, items, views, n_items, stream);
    if (status != SHEAF_OK) {
        plan->step.n_items = 0;
        plan->step.row_room = row_room;
        return status;
    }
    plan->geometry = views[0];
    set_launch(plan);
    return SHEAF_OK;
}

/* --- layers -------------------------------------------------------------------------------- */

static sheaf_status check_layer(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer)
{
    const sheaf_kv_view *g = &plan->geometry;
    if (plan->step.n_items == 0) return SHEAF_E_PLAN;
    if (layer->n_kv_heads != g->n_kv_heads || layer->key_dim != g->key_dim ||
        layer->value_dim != g->value_dim || layer->block_tokens != g->block_tokens)
        return SHEAF_E_PLAN;
    return layer->base == NULL && g->base != NULL ? SHEAF_E_PLAN : SHEAF_OK;
}

sheaf_status sheaf__cuda_plan_tables(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                                     sheaf__cuda_batch *out)
{
    SHEAF__TRY(check_layer(plan, layer));
    *out = (sheaf__cuda_batch){
        .items = (const void *)(plan->table + plan->step.places.items),
        .rows = (const void *)plan->table,
        .host = plan->step.items,
        .n_items = plan->step.n_items,
        .n_queries = plan->step.n_queries,
        .window = plan->options.window,
        .causal = !plan->options.not_causal,
    };
    return SHEAF_OK;
}

static void fill_report(const sheaf_cuda_plan *plan, sheaf_cuda_report *report)
{
    report->path = plan->step.path;
    report->n_prefixes = plan->step.layout.n_sets;
    report->n_parts = plan->step.layout.n_parts;
    report->prefix_tokens = plan->step.layout.prefix_tokens;
    report->workspace_bytes =
        plan->part_floats * sizeof(float) + plan->table_capacity +
        plan->n_counters * sizeof *plan->counters +
        (plan->sinks != NULL ? plan->options.n_q_heads * sizeof(float) : 0);
    report->generation = plan->generation;
}

static sheaf_status run_prefill(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                                const void *q, void *out, void *stream)
{
    const sheaf_attn_options *o = &plan->options;
    const unsigned char *table = plan->table;
    const sheaf__cuda_prefill p = {
        .view = *layer,
        .q = q,
        .out = out,
        .items = (const void *)(table + plan->step.places.prefill_items),
        .tile_item = (const void *)(table + plan->step.places.tile_item),
        .rows = (const void *)table,
        .sinks = plan->sinks,
        .n_tiles = plan->step.n_tiles,
        .n_q_heads = o->n_q_heads,
        .io_dtype = plan->cuda.io_dtype,
        .window = o->window,
        .not_causal = o->not_causal,
        .scale = o->scale,
        .softcap = o->softcap,
        .kernel = plan->prefill_kernel,
    };
    return sheaf__cuda_prefill_run(&p, stream);
}

static sheaf_status run_decode(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                               const void *q, void *out, void *stream)
{
    SHEAF__TRY(sheaf__cuda_decode_check(layer, plan->cuda.io_dtype));
    sheaf__cuda_decode d = plan->launched.decode;
    d.base = layer->base;
    d.row_stride_k = layer->row_stride_k, d.row_stride_v = layer->row_stride_v;
    d.k_offset = layer->k_offset, d.v_offset = layer->v_offset;
    d.k_head_stride = layer->k_head_stride, d.v_head_stride = layer->v_head_stride;
    d.q = q, d.out = out;
    return sheaf__cuda_decode_run(&d, stream);
}

sheaf_status sheaf_cuda_run(sheaf_cuda_plan *plan, const sheaf_kv_view *layer, const void *q,
                            void *out, void *stream, sheaf_cuda_report *report)
{
    if (plan == NULL || layer == NULL || q == NULL || out == NULL) return SHEAF_E_INVALID;
    if (report != NULL && report->struct_size != sizeof *report) return SHEAF_E_INVALID;
    if (((uintptr_t)q | (uintptr_t)out) % 16 != 0) return SHEAF_E_INVALID;
    SHEAF__TRY(check_layer(plan, layer));
    const sheaf__cuda_step *step = &plan->step;
    if (!step->can_run || layer->codec_k != plan->geometry.codec_k) return SHEAF_E_UNSUPPORTED;
    if (step->n_prefill != 0) SHEAF__TRY(run_prefill(plan, layer, q, out, stream));
    if (step->n_prefill != step->n_items) SHEAF__TRY(run_decode(plan, layer, q, out, stream));
    if (report != NULL) fill_report(plan, report);
    return SHEAF_OK;
}
