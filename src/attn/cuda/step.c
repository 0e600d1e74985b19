/* attn/cuda/step.c - items checked, placed and written.
 *
 * Planning runs once a step on the thread that launches kernels, so all that is done a block is the
 * copy of its row; the rest is done an item, and tables are written once, where they are uploaded from.
 * What a GPU has read is not in the processor's caches as it was: each line written waits for some
 * nanoseconds, and those waits overlap with checks.
 */
#include "attn/cuda/step.h"

#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define ALIGN            256
#define MAX_BLOCK_TOKENS 1024
#define MAX_ITEMS        (1u << 29)
#define MAX_TOKENS                                                                             \
    (UINT32_MAX - MAX_BLOCK_TOKENS)          /* so that the tile after the last has an index */
#define MAX_ROWS    (UINT32_MAX - ROW_ALIGN) /* so that each has an index */
#define ROW_ALIGN   (ALIGN / sizeof(uint32_t))
#define LEAST_BLOCK 16 /* positions, of those that kernels read */
#define LEAST_TILE  64 /* query rows, of all prefill kernels */

/* --- checks ------------------------------------------------------------------------------- */

#define WORDS (sizeof(sheaf_kv_view) / sizeof(uint64_t))

/* The bits of a view that all items of a step share: all but of rows, tokens and window. */
static const sheaf_kv_view shared_bits = {
    .base = (const unsigned char *)UINTPTR_MAX,
    .row_stride_k = UINT64_MAX,
    .row_stride_v = UINT64_MAX,
    .k_offset = UINT64_MAX,
    .v_offset = UINT64_MAX,
    .k_head_stride = UINT64_MAX,
    .v_head_stride = UINT64_MAX,
    .block_tokens = UINT32_MAX,
    .n_kv_heads = UINT32_MAX,
    .key_dim = UINT32_MAX,
    .value_dim = UINT32_MAX,
    .codec_k = UINT32_MAX,
    .codec_v = UINT32_MAX,
};

/* Whether two views differ in rows and tokens alone. Compared as words, which compilers take several of
 * at a time. */
static bool same_geometry(const sheaf_kv_view *a, const sheaf_kv_view *b)
{
    uint64_t x[WORDS], y[WORDS], shared[WORDS], differs = 0;
    _Static_assert(sizeof x == sizeof *a, "a view is whole words, none of them padding");
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    memcpy(shared, &shared_bits, sizeof shared);
    for (size_t i = 0; i < WORDS; i++) differs |= (x[i] ^ y[i]) & shared[i];
    return differs == 0;
}

/* What the options ask of all views, which have the first one's geometry. */
static sheaf_status check_geometry(const sheaf_attn_options *o, const sheaf_kv_view *view)
{
    return view->n_kv_heads != o->n_kv_heads || view->key_dim != o->key_dim ||
                   view->value_dim != o->value_dim
               ? SHEAF_E_PLAN
               : SHEAF_OK;
}

/* Checks one item against its view: all from the first position that a query sees is held, so that a
 * kernel may look up any row of a tile that begins there. */
static sheaf_status check_item(const sheaf_attn_options *o, const sheaf_attn_item *item,
                               const sheaf_kv_view *view, uint32_t shift)
{
    const uint32_t n = item->n_queries, first = item->first_pos, tokens = item->n_tokens;
    if (n == 0) return SHEAF_E_INVALID;
    if ((uint64_t)first + n > MAX_TOKENS || tokens > MAX_TOKENS) return SHEAF_E_OVERFLOW;
    if (view->n_tokens != tokens) return SHEAF_E_PLAN;
    uint32_t blocks = (tokens + (1u << shift) - 1) >> shift;
    if ((uint64_t)view->first_block + view->n_rows < blocks)
        return SHEAF_E_PLAN; /* sheaf/view.h: rows end with n_tokens */
    uint32_t lo = 0, hi = tokens;
    if (!o->not_causal && first + n < hi) hi = first + n;
    if (o->window != 0 && first >= o->window) lo = first + 1 - o->window;
    return lo < hi && (view->base == NULL || lo >> shift < view->first_block) ? SHEAF_E_PLAN
                                                                              : SHEAF_OK;
}

/* --- items --------------------------------------------------------------------------------- */

/* Copies the view's rows; returns their end. */
static uint32_t *put_rows(const sheaf_kv_view *view, uint32_t *to)
{
    const uint32_t n = view->n_rows;
    if (view->rows != NULL)
        memcpy(to, view->rows, n * sizeof *to);
    else
        for (uint32_t r = 0; r < n; r++) to[r] = r;
    return to + n;
}

static uint64_t rows_room(uint64_t n)
{
    return (n + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

/* Counts the rows and finds their place: they end at row_room. */
static sheaf_status place_rows(sheaf__cuda_step *step, const sheaf_kv_view *views,
                               uint32_t n_items)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < n_items; i++) rows += views[i].n_rows;
    if (rows > MAX_ROWS) return SHEAF_E_OVERFLOW;
    if (rows > step->row_room)
        step->row_room =
            rows_room(sheaf__max_u64(rows, sheaf__min_u64(2 * step->row_room, MAX_ROWS)));
    step->places.begin = (step->row_room - rows) * sizeof(uint32_t);
    return SHEAF_OK;
}

/* Where rows are copied ahead, or null. */
static uint32_t *rows_ahead(const sheaf__cuda_step *step)
{
    if (step->ahead == NULL || step->ahead_bytes < step->row_room * sizeof(uint32_t))
        return NULL;
    return (uint32_t *)(void *)(step->ahead + step->places.begin);
}

/* Sets the items; their rows lie one item's after another's. */
static sheaf_status set_items(sheaf__cuda_step *step, const sheaf_attn_options *o,
                              const sheaf_attn_item *items, const sheaf_kv_view *views,
                              uint32_t n_items)
{
    const uint32_t shift = sheaf__log2(views[0].block_tokens);
    uint32_t *ahead = rows_ahead(step), n_prefill = 0;
    uint32_t rows_at = (uint32_t)(step->places.begin / sizeof(uint32_t));
    uint64_t queries = 0;
    SHEAF__TRY(check_geometry(o, &views[0]));
    for (uint32_t i = 0; i < n_items; i++) {
        const sheaf_kv_view *view = &views[i];
        SHEAF__TRY(check_item(o, &items[i], view, shift));
        if (!same_geometry(&views[0], view)) return SHEAF_E_PLAN;
        if (ahead != NULL) ahead = put_rows(view, ahead);
        uint32_t at = (items[i].first_pos >> shift) - view->first_block;
        bool held = view->rows != NULL && at < view->n_rows;
        step->items[i] = (sheaf__cuda_item){
            .rows_at = rows_at,
            .first_block = view->first_block,
            .n_rows = view->n_rows,
            .n_tokens = items[i].n_tokens,
            .n_queries = items[i].n_queries,
            .first_pos = items[i].first_pos,
            .query_at = (uint32_t)queries,
            .first_row = held ? view->rows[at] : at,
        };
        rows_at += view->n_rows;
        queries += items[i].n_queries;
        n_prefill += items[i].n_queries != 1;
    }
    /* kernels count rows of queries and heads in 32 bits */
    if (queries > INT32_MAX / o->n_q_heads) return SHEAF_E_OVERFLOW;
    step->rows_in = ahead != NULL ? step->ahead : NULL;
    step->n_queries = (uint32_t)queries;
    step->n_prefill = n_prefill;
    return SHEAF_OK;
}

/* --- cutting ------------------------------------------------------------------------------- */

uint32_t sheaf__cuda_prefill_tiles(sheaf__cuda_prefill_item *items, uint32_t n_items,
                                   uint32_t group, uint32_t tile_rows, uint32_t *tile_item)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        uint64_t rows = (uint64_t)items[i].n_queries * group;
        items[i].first_tile = n;
        items[i].n_tiles = (uint32_t)sheaf__ceil_div_u64(rows, tile_rows);
        for (uint32_t t = 0; tile_item != NULL && t < items[i].n_tiles; t++)
            tile_item[n + t] = i;
        n += items[i].n_tiles;
    }
    return n;
}

/* No more blocks than a launch takes. */
static sheaf_status check_blocks(uint64_t n, uint64_t each)
{
    return n * each > INT32_MAX ? SHEAF_E_OVERFLOW : SHEAF_OK;
}

/* Cuts the queries of items that have several into tiles. */
static sheaf_status cut_prefill(sheaf__cuda_step *step, sheaf__memory *memory,
                                const sheaf__cuda_rules *rules, uint32_t n_items)
{
    const sheaf_attn_options *o = rules->options;
    void *array = step->prefill_items;
    SHEAF__TRY(sheaf__memory_grow(memory, &array, &step->prefill_capacity, n_items,
                                  sizeof *step->prefill_items));
    step->prefill_items = array;
    sheaf__cuda_prefill_item *to = array;
    for (uint32_t i = 0; i < n_items; i++) {
        const sheaf__cuda_item *item = &step->items[i];
        if (item->n_queries == 1) continue;
        *to++ = (sheaf__cuda_prefill_item){
            .first_query = item->query_at,
            .rows_at = item->rows_at,
            .n_queries = item->n_queries,
            .first_pos = item->first_pos,
            .n_tokens = item->n_tokens,
            .first_block = item->first_block,
            .n_rows = item->n_rows,
        };
    }
    step->can_run = step->can_run && rules->prefill_rows != 0;
    if (rules->prefill_rows == 0) return SHEAF_OK;
    step->n_tiles =
        sheaf__cuda_prefill_tiles(step->prefill_items, step->n_prefill,
                                  o->n_q_heads / o->n_kv_heads, rules->prefill_rows, NULL);
    return check_blocks(step->n_tiles, o->n_kv_heads);
}

/* Cuts the contexts of items of one query into units. */
static sheaf_status cut_decode(sheaf__cuda_step *step, sheaf__memory *memory,
                               const sheaf__cuda_rules *rules, const sheaf_kv_view *views,
                               uint32_t n_items)
{
    const sheaf_attn_options *o = rules->options;
    step->can_run = step->can_run && rules->decodes;
    if (!rules->decodes) return SHEAF_OK;
    step->shape = (sheaf__cuda_shape){
        .n_q_heads = o->n_q_heads,
        .n_kv_heads = o->n_kv_heads,
        .dim = o->key_dim,
        .codec = views[0].codec_k,
        .block_tokens = views[0].block_tokens,
        .window = o->window,
        .causal = !o->not_causal,
        .n_processors = rules->n_processors,
        .prefix_min = rules->prefix_min,
        .tuning = rules->tuning,
    };
    SHEAF__TRY(sheaf__cuda_layout_set(&step->layout, memory, &step->shape, step->items, views,
                                      n_items));
    /* a unit is a task for each KV head and 8 query heads; kernels count them in 32 bits */
    SHEAF__TRY(check_blocks(step->layout.n_units,
                            o->n_kv_heads * ((o->n_q_heads / o->n_kv_heads + 7ull) / 8)));
    SHEAF__TRY(check_blocks(step->layout.n_prefix_units, o->n_kv_heads));
    return check_blocks(step->layout.n_merges, o->n_q_heads);
}

/* --- places -------------------------------------------------------------------------------- */

static uint64_t place(uint64_t *at, uint64_t n, uint64_t size)
{
    uint64_t here = *at;
    *at = (here + n * size + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
    return here;
}

uint64_t sheaf__cuda_step_counters(const sheaf__cuda_step *step)
{
    return (uint64_t)step->layout.n_merges * step->shape.n_q_heads + 1;
}

static void place_tables(sheaf__cuda_step *step, uint32_t n_items)
{
    const sheaf__cuda_layout *l = &step->layout;
    sheaf__cuda_places *at = &step->places;
    at->bytes = step->row_room * sizeof(uint32_t);
    at->items = place(&at->bytes, n_items, sizeof *step->items);
    at->prefill_items = place(&at->bytes, step->n_prefill, sizeof *step->prefill_items);
    at->tile_item = place(&at->bytes, step->n_tiles, sizeof(uint32_t));
    at->units = place(&at->bytes, l->n_units, sizeof(sheaf__cuda_unit));
    at->merges = place(&at->bytes, l->n_merges, sizeof(sheaf__cuda_merge));
    at->prefix_units = place(&at->bytes, l->n_prefix_units, sizeof(sheaf__cuda_prefix_unit));
    at->members = place(&at->bytes, l->n_members, sizeof(uint32_t));
}

static sheaf_status cut_step(sheaf__cuda_step *step, sheaf__memory *memory,
                             const sheaf__cuda_rules *rules, const sheaf_attn_item *items,
                             const sheaf_kv_view *views, uint32_t n_items)
{
    void *array = step->items;
    SHEAF__TRY(place_rows(step, views, n_items));
    SHEAF__TRY(
        sheaf__memory_grow(memory, &array, &step->item_capacity, n_items, sizeof *step->items));
    step->items = array;
    SHEAF__TRY(set_items(step, rules->options, items, views, n_items));
    step->can_run = 1;
    if (step->n_prefill != 0) SHEAF__TRY(cut_prefill(step, memory, rules, n_items));
    if (step->n_prefill != n_items) SHEAF__TRY(cut_decode(step, memory, rules, views, n_items));
    place_tables(step, n_items);
    step->path = step->n_prefill != 0       ? SHEAF_CUDA_PREFILL
                 : step->layout.n_sets != 0 ? SHEAF_CUDA_PREFIX
                                            : SHEAF_CUDA_DECODE;
    step->n_items = n_items;
    return SHEAF_OK;
}

static void clear(sheaf__cuda_step *step)
{
    step->n_items = step->n_queries = step->n_prefill = step->n_tiles = 0;
    step->can_run = step->path = 0;
    step->rows_in = NULL;
    sheaf__cuda_layout_clear(&step->layout);
}

sheaf_status sheaf__cuda_step_set(sheaf__cuda_step *step, sheaf__memory *memory,
                                  const sheaf__cuda_rules *rules, const sheaf_attn_item *items,
                                  const sheaf_kv_view *views, uint32_t n_items)
{
    clear(step);
    if (items == NULL || views == NULL || n_items == 0) return SHEAF_E_INVALID;
    if (n_items > MAX_ITEMS) return SHEAF_E_OVERFLOW;
    if (!sheaf__is_pow2(views[0].block_tokens) || views[0].block_tokens > MAX_BLOCK_TOKENS)
        return SHEAF_E_PLAN;
    const uint64_t row_room = step->row_room;
    sheaf_status status = cut_step(step, memory, rules, items, views, n_items);
    if (status != SHEAF_OK) {
        clear(step);
        step->row_room = row_room; /* refused views may claim any number of rows */
    }
    return status;
}

void sheaf__cuda_step_free(sheaf__cuda_step *step, sheaf__memory *memory)
{
    sheaf__cuda_layout_free(&step->layout, memory);
    sheaf__memory_free(memory, step->prefill_items, step->prefill_capacity,
                       sizeof *step->prefill_items);
    sheaf__memory_free(memory, step->items, step->item_capacity, sizeof *step->items);
}

/* --- the table ----------------------------------------------------------------------------- */

void sheaf__cuda_step_write(sheaf__cuda_step *step, const sheaf_kv_view *views,
                            unsigned char *table)
{
    const sheaf__cuda_places *at = &step->places;
    memcpy(table + at->items, step->items, step->n_items * sizeof *step->items);
    if (step->n_prefill != 0) {
        memcpy(table + at->prefill_items, step->prefill_items,
               step->n_prefill * sizeof *step->prefill_items);
        uint32_t *tile_item = (uint32_t *)(void *)(table + at->tile_item);
        for (uint32_t i = 0; step->n_tiles != 0 && i < step->n_prefill; i++)
            for (uint32_t t = 0; t < step->prefill_items[i].n_tiles; t++) *tile_item++ = i;
    }
    if (step->layout.n_items != 0) {
        const sheaf__cuda_tables to = {
            .units = (void *)(table + at->units),
            .merges = (void *)(table + at->merges),
            .prefix_units = (void *)(table + at->prefix_units),
            .members = (void *)(table + at->members),
        };
        sheaf__cuda_layout_write(&step->layout, &step->shape, step->items, &to);
    }
    if (step->rows_in == table) return;
    uint32_t *to = (uint32_t *)(void *)(table + at->begin);
    for (uint32_t i = 0; i < step->n_items; i++) to = put_rows(&views[i], to);
}

/* --- room ---------------------------------------------------------------------------------- */

sheaf_status sheaf__cuda_step_room(const sheaf__cuda_rules *rules, uint64_t max_items,
                                   uint64_t max_tokens, sheaf__cuda_room *out)
{
    const sheaf_attn_options *o = rules->options;
    if (max_items > MAX_ITEMS || max_tokens > UINT32_MAX) return SHEAF_E_OVERFLOW;
    uint64_t n = max_items, group = o->n_q_heads / o->n_kv_heads;
    uint64_t blocks = max_tokens / LEAST_BLOCK + 1, spans = max_tokens / SHEAF__CUDA_SPAN + 1;
    uint64_t chunks = max_tokens / (SHEAF__CUDA_LEAF * SHEAF__CUDA_CHUNK_LEAVES) + 1;
    uint64_t tiles = max_tokens * group / LEAST_TILE + 1, bytes = 0, all;
    if (!sheaf__mul_u64(n, 64 * (blocks + tiles + chunks + spans * (group + 1) + o->n_q_heads),
                        &all) ||
        all > INT64_MAX)
        return SHEAF_E_OVERFLOW;
    out->n_rows = rows_room(sheaf__min_u64(n * blocks, MAX_ROWS));
    out->n_counters = n * o->n_q_heads + 1;
    (void)place(&bytes, out->n_rows, sizeof(uint32_t));
    (void)place(&bytes, n, sizeof(sheaf__cuda_item));
    (void)place(&bytes, n, sizeof(sheaf__cuda_prefill_item));
    (void)place(&bytes, n * tiles, sizeof(uint32_t));
    (void)place(&bytes, n * chunks, sizeof(sheaf__cuda_unit));
    (void)place(&bytes, n, sizeof(sheaf__cuda_merge));
    /* of each set: its spans for each tile of its query rows */
    (void)place(&bytes, n * spans * (group / sheaf__cuda_prefix_rows(o->key_dim) + 1),
                sizeof(sheaf__cuda_prefix_unit));
    (void)place(&bytes, n, sizeof(uint32_t));
    out->table_bytes = bytes;
    /* a part a chunk, where a step's spans are few (layout.c); else a part a span, begun and ended
     * anywhere */
    uint64_t small = 2ull * rules->n_processors / (o->n_kv_heads * ((group + 7) / 8));
    out->n_parts = sheaf__min_u64(n * chunks, small + 1) + n * (spans + 1);
    return SHEAF_OK;
}
