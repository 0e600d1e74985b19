/* attn/cuda/plan.c - a step of the GPU planned, and its layers queued.
 *
 * One table holds all that kernels read of a step; it is written into pinned memory and travels by one
 * copy. The pinned copy is written again only when the earlier one has left it.
 */
#include "attn/cuda/plan.h"

#include <math.h>
#include <string.h>

#include "attn/cuda/describe.h"
#include "base/bits.h"
#include "base/cuda_error.h"
#include "base/status.h"
#include "codec/quantized.h"

#define MAX_HEADS        65536
#define MAX_BLOCK_TOKENS 1024
#define ALIGN            256

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
    SHEAF__TRY(sheaf__cuda_status(
        cudaEventCreateWithFlags(&plan->uploaded, cudaEventDisableTiming), "event", err));
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
    if (plan->uploaded != NULL) {
        (void)cudaEventSynchronize(plan->uploaded);
        (void)cudaEventDestroy(plan->uploaded);
    }
    (void)cudaFree(plan->sinks);
    (void)cudaFree(plan->parts);
    (void)cudaFree(plan->table);
    (void)cudaFreeHost(plan->staging);
    sheaf__memory memory = plan->memory;
    sheaf__cuda_layout_free(&plan->layout, &memory);
    sheaf__memory_free(&memory, plan->prefill_items, plan->prefill_capacity,
                       sizeof *plan->prefill_items);
    sheaf__memory_free(&memory, plan->items, plan->item_capacity, sizeof *plan->items);
    sheaf__memory_free(&memory, plan, 1, sizeof *plan);
}

void sheaf__cuda_plan_tune(sheaf_cuda_plan *plan, const sheaf__cuda_tuning *tuning)
{
    plan->tuning = *tuning;
}

/* --- checks ------------------------------------------------------------------------------- */

static int same_geometry(const sheaf_kv_view *a, const sheaf_kv_view *b)
{
    return a->base == b->base && a->row_stride_k == b->row_stride_k &&
           a->row_stride_v == b->row_stride_v && a->k_offset == b->k_offset &&
           a->v_offset == b->v_offset && a->k_head_stride == b->k_head_stride &&
           a->v_head_stride == b->v_head_stride && a->block_tokens == b->block_tokens &&
           a->codec_k == b->codec_k && a->codec_v == b->codec_v;
}

/* Checks one item against its view; the positions that its queries see must be held. */
static sheaf_status check_item(const sheaf_cuda_plan *plan, const sheaf_attn_item *item,
                               const sheaf_kv_view *view)
{
    const sheaf_attn_options *o = &plan->options;
    if (item->n_queries == 0) return SHEAF_E_INVALID;
    if ((uint64_t)item->first_pos + item->n_queries > UINT32_MAX) return SHEAF_E_OVERFLOW;
    if (view->n_kv_heads != o->n_kv_heads || view->key_dim != o->key_dim ||
        view->value_dim != o->value_dim || view->n_tokens != item->n_tokens)
        return SHEAF_E_PLAN;
    uint64_t last = (uint64_t)item->first_pos + item->n_queries - 1;
    uint64_t hi = o->not_causal ? item->n_tokens : sheaf__min_u64(item->n_tokens, last + 1);
    uint64_t lo = 0;
    if (o->window != 0 && item->first_pos >= o->window) lo = item->first_pos + 1ull - o->window;
    if (lo >= hi) return SHEAF_OK;
    uint64_t begin = (uint64_t)view->first_block * view->block_tokens;
    uint64_t end = ((uint64_t)view->first_block + view->n_rows) * view->block_tokens;
    return view->base == NULL || lo < begin || hi > end ? SHEAF_E_PLAN : SHEAF_OK;
}

/* --- planning ------------------------------------------------------------------------------ */

static uint64_t place(uint64_t *at, uint64_t n, uint64_t size)
{
    uint64_t here = *at;
    *at = (here + n * size + ALIGN - 1) / ALIGN * ALIGN;
    return here;
}

static sheaf_status grow_table(sheaf_cuda_plan *plan, uint64_t bytes)
{
    if (bytes <= plan->table_capacity) return SHEAF_OK;
    uint64_t grown = sheaf__max_u64(bytes, 2 * plan->table_capacity);
    void *table = NULL, *staging = NULL;
    SHEAF__TRY(sheaf__cuda_status(cudaMalloc(&table, grown), "tables", NULL));
    sheaf_status status =
        sheaf__cuda_status(cudaMallocHost(&staging, grown), "pinned tables", NULL);
    if (status != SHEAF_OK) {
        (void)cudaFree(table);
        return status;
    }
    (void)cudaFree(plan->table); /* waits for what still reads it */
    (void)cudaFreeHost(plan->staging);
    plan->table = table;
    plan->staging = staging;
    plan->table_capacity = grown;
    return SHEAF_OK;
}

static sheaf_status grow_parts(sheaf_cuda_plan *plan, uint64_t n_parts)
{
    uint64_t floats =
        n_parts * plan->options.n_q_heads * sheaf__cuda_part_floats(plan->options.key_dim);
    if (floats <= plan->part_floats) return SHEAF_OK;
    floats = sheaf__max_u64(floats, plan->part_floats + plan->part_floats / 2);
    void *parts = NULL;
    SHEAF__TRY(sheaf__cuda_status(cudaMalloc(&parts, floats * sizeof(float)), "parts", NULL));
    (void)cudaFree(plan->parts);
    plan->parts = parts;
    plan->part_floats = floats;
    return SHEAF_OK;
}

/* Sets the items; their rows lie one item's after another's. */
static sheaf_status set_items(sheaf_cuda_plan *plan, const sheaf_attn_item *items,
                              const sheaf_kv_view *views, uint32_t n_items, uint64_t *n_rows,
                              uint64_t *n_queries)
{
    void *array = plan->items;
    SHEAF__TRY(sheaf__memory_grow(&plan->memory, &array, &plan->item_capacity, n_items,
                                  sizeof *plan->items));
    plan->items = array;
    *n_rows = *n_queries = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        SHEAF__TRY(check_item(plan, &items[i], &views[i]));
        if (i != 0 && !same_geometry(&views[0], &views[i])) return SHEAF_E_PLAN;
        uint32_t at = items[i].first_pos / views[i].block_tokens - views[i].first_block;
        bool held = views[i].rows != NULL && at < views[i].n_rows;
        plan->items[i] = (sheaf__cuda_item){
            .rows_at = (uint32_t)*n_rows,
            .first_block = views[i].first_block,
            .n_rows = views[i].n_rows,
            .n_tokens = items[i].n_tokens,
            .n_queries = items[i].n_queries,
            .first_pos = items[i].first_pos,
            .query_at = (uint32_t)*n_queries,
            .first_row = held ? views[i].rows[at] : at,
        };
        *n_rows += views[i].n_rows;
        *n_queries += items[i].n_queries;
    }
    return *n_rows > UINT32_MAX || *n_queries > UINT32_MAX ? SHEAF_E_OVERFLOW : SHEAF_OK;
}

/* Cuts the queries of items that have several into tiles. */
static sheaf_status lay_prefill(sheaf_cuda_plan *plan, const sheaf_kv_view *view,
                                uint32_t n_items)
{
    void *array = plan->prefill_items;
    SHEAF__TRY(sheaf__memory_grow(&plan->memory, &array, &plan->prefill_capacity, n_items,
                                  sizeof *plan->prefill_items));
    plan->prefill_items = array;
    for (uint32_t i = 0; i < n_items; i++) {
        const sheaf__cuda_item *item = &plan->items[i];
        if (item->n_queries == 1) continue;
        plan->prefill_items[plan->n_prefill++] = (sheaf__cuda_prefill_item){
            .first_query = item->query_at,
            .rows_at = item->rows_at,
            .n_queries = item->n_queries,
            .first_pos = item->first_pos,
            .n_tokens = item->n_tokens,
            .first_block = item->first_block,
            .n_rows = item->n_rows,
        };
    }
    uint32_t rows =
        sheaf__cuda_prefill_rows(view, plan->cuda.io_dtype, SHEAF__CUDA_PREFILL_BEST);
    uint32_t group = plan->options.n_q_heads / plan->options.n_kv_heads;
    if (rows == 0)
        plan->can_run = 0;
    else
        plan->n_tiles =
            sheaf__cuda_prefill_tiles(plan->prefill_items, plan->n_prefill, group, rows, NULL);
    return SHEAF_OK;
}

/* Cuts the items' contexts into units. */
static sheaf_status lay_decode(sheaf_cuda_plan *plan, const sheaf_kv_view *views,
                               uint32_t n_items)
{
    const sheaf_attn_options *o = &plan->options;
    const sheaf__cuda_shape shape = {
        .n_q_heads = o->n_q_heads,
        .n_kv_heads = o->n_kv_heads,
        .dim = o->key_dim,
        .codec = views[0].codec_k,
        .block_tokens = views[0].block_tokens,
        .window = o->window,
        .causal = !o->not_causal,
        .n_processors = (uint32_t)plan->n_processors,
        .prefix_min = plan->cuda.prefix_min,
        .tuning = plan->tuning,
    };
    if (sheaf__cuda_decode_check(&views[0], plan->cuda.io_dtype) != SHEAF_OK) {
        plan->can_run = 0;
        return SHEAF_OK;
    }
    SHEAF__TRY(sheaf__cuda_layout_set(&plan->layout, &plan->memory, &shape, plan->items, views,
                                      n_items));
    return grow_parts(plan, plan->layout.n_parts);
}

static sheaf__cuda_places places_of(const sheaf_cuda_plan *plan, uint32_t n_items,
                                    uint64_t n_rows)
{
    const sheaf__cuda_layout *l = &plan->layout;
    sheaf__cuda_places at = {0};
    at.items = place(&at.bytes, n_items, sizeof *plan->items);
    at.prefill_items = place(&at.bytes, plan->n_prefill, sizeof *plan->prefill_items);
    at.tile_item = place(&at.bytes, plan->n_tiles, sizeof(uint32_t));
    at.units = place(&at.bytes, l->n_units, sizeof *l->units);
    at.merges = place(&at.bytes, l->n_merges, sizeof *l->merges);
    at.prefix_units = place(&at.bytes, l->n_prefix_units, sizeof *l->prefix_units);
    at.members = place(&at.bytes, l->n_members, sizeof *l->members);
    at.rows = place(&at.bytes, n_rows, sizeof(uint32_t));
    return at;
}

static void put(unsigned char *to, const void *from, uint64_t n, uint64_t size)
{
    if (n != 0) memcpy(to, from, n * size);
}

/* Writes the table into the pinned memory. */
static void write_table(sheaf_cuda_plan *plan, const sheaf__cuda_places *at,
                        const sheaf_kv_view *views, uint32_t n_items)
{
    const sheaf__cuda_layout *l = &plan->layout;
    unsigned char *to = plan->staging;
    put(to + at->items, plan->items, n_items, sizeof *plan->items);
    put(to + at->units, l->units, l->n_units, sizeof *l->units);
    put(to + at->merges, l->merges, l->n_merges, sizeof *l->merges);
    put(to + at->prefix_units, l->prefix_units, l->n_prefix_units, sizeof *l->prefix_units);
    put(to + at->members, l->members, l->n_members, sizeof *l->members);
    put(to + at->prefill_items, plan->prefill_items, plan->n_prefill,
        sizeof *plan->prefill_items);
    uint32_t *tile_item = (uint32_t *)(void *)(to + at->tile_item);
    for (uint32_t i = 0; plan->n_tiles != 0 && i < plan->n_prefill; i++)
        for (uint32_t t = 0; t < plan->prefill_items[i].n_tiles; t++) *tile_item++ = i;
    uint32_t *rows = (uint32_t *)(void *)(to + at->rows);
    for (uint32_t i = 0; i < n_items; i++) {
        uint32_t n = views[i].n_rows;
        if (views[i].rows != NULL)
            put((unsigned char *)rows, views[i].rows, n, sizeof *rows);
        else
            for (uint32_t r = 0; r < n; r++) rows[r] = r;
        rows += n;
    }
}

/* Writes the table and queues its copy. */
static sheaf_status upload(sheaf_cuda_plan *plan, const sheaf_kv_view *views, uint32_t n_items,
                           uint64_t n_rows, void *stream)
{
    const sheaf__cuda_places at = places_of(plan, n_items, n_rows);
    SHEAF__TRY(sheaf__cuda_status(cudaEventSynchronize(plan->uploaded), "upload", NULL));
    SHEAF__TRY(grow_table(plan, at.bytes));
    write_table(plan, &at, views, n_items);
    SHEAF__TRY(sheaf__cuda_status(
        cudaMemcpyAsync(plan->table, plan->staging, at.bytes, cudaMemcpyHostToDevice, stream),
        "upload", NULL));
    SHEAF__TRY(sheaf__cuda_status(cudaEventRecord(plan->uploaded, stream), "upload", NULL));
    plan->places = at;
    return SHEAF_OK;
}

/* What a launch is told that does not depend on the layer. */
static void set_launch(sheaf_cuda_plan *plan)
{
    const sheaf__cuda_layout *l = &plan->layout;
    const sheaf_attn_options *o = &plan->options;
    const sheaf__cuda_places *at = &plan->places;
    unsigned char *table = plan->table;
    sheaf__cuda_decode d;
    memset(&d, 0, sizeof d);
    d.parts = plan->parts;
    d.sinks = plan->sinks;
    d.rows = (const uint32_t *)(const void *)(table + at->rows);
    d.units = (const sheaf__cuda_unit *)(const void *)(table + at->units);
    d.merges = (const sheaf__cuda_merge *)(const void *)(table + at->merges);
    d.prefix_units = (const sheaf__cuda_prefix_unit *)(const void *)(table + at->prefix_units);
    d.members = (const uint32_t *)(const void *)(table + at->members);
    d.scale = o->scale, d.softcap = o->softcap;
    d.n_units = l->n_units, d.n_merges = l->n_merges, d.n_prefix_units = l->n_prefix_units;
    d.n_q_heads = o->n_q_heads, d.n_kv_heads = o->n_kv_heads;
    d.group = o->n_q_heads / o->n_kv_heads;
    d.block_shift = sheaf__log2(plan->geometry.block_tokens);
    d.codec = plan->geometry.codec_k, d.dim = o->key_dim, d.io_dtype = plan->cuda.io_dtype;
    d.merge_spans = l->merge_spans;
    d.team = l->team, d.slots = l->slots, d.warps = l->warps, d.sums = l->sums;
    d.overlap = l->overlap;
    memcpy(d.signs, sheaf__turbo4_signs, sizeof d.signs);
    if (memcmp(&d, &plan->launched, sizeof d) != 0) plan->generation++;
    plan->launched = d;
}

sheaf_status sheaf_cuda_plan_batch(sheaf_cuda_plan *plan, const sheaf_attn_item *items,
                                   const sheaf_kv_view *views, uint32_t n_items, void *stream)
{
    if (plan == NULL || items == NULL || views == NULL || n_items == 0) return SHEAF_E_INVALID;
    if (!sheaf__is_pow2(views[0].block_tokens) || views[0].block_tokens > MAX_BLOCK_TOKENS)
        return SHEAF_E_PLAN;
    uint64_t n_rows, n_queries;
    plan->n_items = 0;
    SHEAF__TRY(set_items(plan, items, views, n_items, &n_rows, &n_queries));
    plan->n_prefill = plan->n_tiles = 0;
    plan->can_run = 1;
    sheaf__cuda_layout_clear(&plan->layout);
    if (n_queries != n_items) SHEAF__TRY(lay_prefill(plan, &views[0], n_items));
    if (plan->n_prefill != n_items) SHEAF__TRY(lay_decode(plan, views, n_items));
    SHEAF__TRY(upload(plan, views, n_items, n_rows, stream));
    plan->path = plan->n_prefill != 0       ? SHEAF_CUDA_PREFILL
                 : plan->layout.n_sets != 0 ? SHEAF_CUDA_PREFIX
                                            : SHEAF_CUDA_DECODE;
    plan->geometry = views[0];
    plan->n_items = n_items;
    plan->n_queries = (uint32_t)n_queries;
    set_launch(plan);
    return SHEAF_OK;
}

/* --- layers -------------------------------------------------------------------------------- */

static sheaf_status check_layer(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer)
{
    const sheaf_kv_view *g = &plan->geometry;
    if (plan->n_items == 0) return SHEAF_E_PLAN;
    if (layer->n_kv_heads != g->n_kv_heads || layer->key_dim != g->key_dim ||
        layer->value_dim != g->value_dim || layer->block_tokens != g->block_tokens)
        return SHEAF_E_PLAN;
    return SHEAF_OK;
}

sheaf_status sheaf__cuda_plan_tables(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                                     sheaf__cuda_batch *out)
{
    SHEAF__TRY(check_layer(plan, layer));
    *out = (sheaf__cuda_batch){
        .items = (const sheaf__cuda_item *)(const void *)(plan->table + plan->places.items),
        .rows = (const uint32_t *)(const void *)(plan->table + plan->places.rows),
        .host = plan->items,
        .n_items = plan->n_items,
        .n_queries = plan->n_queries,
        .window = plan->options.window,
        .causal = !plan->options.not_causal,
    };
    return SHEAF_OK;
}

static void fill_report(const sheaf_cuda_plan *plan, sheaf_cuda_report *report)
{
    report->path = plan->path;
    report->n_prefixes = plan->layout.n_sets;
    report->n_parts = plan->layout.n_parts;
    report->prefix_tokens = plan->layout.prefix_tokens;
    report->workspace_bytes = plan->part_floats * sizeof(float) + plan->table_capacity;
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
        .items = (const void *)(table + plan->places.prefill_items),
        .tile_item = (const void *)(table + plan->places.tile_item),
        .rows = (const void *)(table + plan->places.rows),
        .sinks = plan->sinks,
        .n_tiles = plan->n_tiles,
        .n_q_heads = o->n_q_heads,
        .io_dtype = plan->cuda.io_dtype,
        .window = o->window,
        .not_causal = o->not_causal,
        .scale = o->scale,
        .softcap = o->softcap,
    };
    return sheaf__cuda_prefill_run(&p, stream);
}

static sheaf_status run_decode(const sheaf_cuda_plan *plan, const sheaf_kv_view *layer,
                               const void *q, void *out, void *stream)
{
    SHEAF__TRY(sheaf__cuda_decode_check(layer, plan->cuda.io_dtype));
    sheaf__cuda_decode d = plan->launched;
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
    SHEAF__TRY(check_layer(plan, layer));
    if (!plan->can_run || layer->codec_k != plan->geometry.codec_k) return SHEAF_E_UNSUPPORTED;
    if (plan->n_prefill != 0) SHEAF__TRY(run_prefill(plan, layer, q, out, stream));
    if (plan->n_prefill != plan->n_items) SHEAF__TRY(run_decode(plan, layer, q, out, stream));
    if (report != NULL) fill_report(plan, report);
    return SHEAF_OK;
}
