/* attn/cuda/layout.c - the cutting itself.
 *
 * Small batches are cut into chunks, four warps each, until every multiprocessor has some; larger
 * ones into units that one warp computes alone, long enough that few parts are left behind. An item
 * that fits one unit needs no merging.
 *
 * Sets: items whose first rows are the same block are compared with the first such item, a span at
 * a time. What they share ends where the shortest agreement ends; an item that agrees for less than
 * half of the others' stays alone.
 */
#include "attn/cuda/layout.h"

#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define NONE            UINT32_MAX
#define DEFAULT_PREFIX  (2 * SHEAF__CUDA_SPAN)
#define DEFAULT_MEMBERS 4 /* of a set: fewer gain nothing */
#define WARPS_AT_ONCE   4 /* of a multiprocessor, by the rings that fit its shared memory */
#define MAX_SHARED      (227 * 1024) /* bytes of a block, of compute capability 9.0 */

typedef struct set {
    uint32_t leader, spans, n_members, part;
} set;

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* --- sets --------------------------------------------------------------------------------- */

/* Spans of two items that lie in the same rows, up to `most`. */
static uint32_t spans_alike(const sheaf__cuda_shape *shape, const sheaf_kv_view *a,
                            const sheaf_kv_view *b, uint32_t most)
{
    uint32_t blocks = SHEAF__CUDA_SPAN / shape->block_tokens, n = 0;
    if (a->rows == b->rows) return most;
    while (n < most &&
           memcmp(a->rows + n * blocks, b->rows + n * blocks, blocks * sizeof *a->rows) == 0)
        n++;
    return n;
}

/* Whole spans from position 0 on that the item sees. */
static uint32_t spans_seen(const sheaf__cuda_shape *shape, const sheaf__cuda_item *item)
{
    uint32_t lo, hi;
    sheaf__cuda_item_sees(shape, item, &lo, &hi);
    return lo == 0 && item->first_block == 0 ? hi / SHEAF__CUDA_SPAN : 0;
}

/* Puts item i into a set: links[n_items + i] its set or NONE. table: [2^bits] of sets. */
static void join(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                 const sheaf__cuda_item *items, const sheaf_kv_view *views, uint32_t i,
                 uint32_t bits, uint32_t least)
{
    set *sets = (set *)(void *)l->sets;
    uint32_t *table = l->links, *own = &l->links[((uint64_t)1 << bits) + i];
    int can = views[i].rows != NULL && items[i].n_queries == 1;
    uint32_t seen = can ? spans_seen(shape, &items[i]) : 0;
    *own = NONE;
    if (seen < least || seen == 0) return;
    uint32_t at = (views[i].rows[0] * 2654435769u) >> (32 - bits);
    while (table[at] != NONE && views[sets[table[at]].leader].rows[0] != views[i].rows[0])
        at = (at + 1) & ((1u << bits) - 1);
    if (table[at] == NONE) {
        table[at] = l->n_sets;
        sets[l->n_sets++] = (set){i, seen, 1, 0};
        *own = table[at];
        return;
    }
    set *s = &sets[table[at]];
    uint32_t alike =
        spans_alike(shape, &views[s->leader], &views[i], seen < s->spans ? seen : s->spans);
    if (alike < least || (s->n_members > 1 && alike < s->spans / 2)) return;
    s->spans = alike;
    s->n_members++;
    *own = table[at];
}

static void lay_set(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                    const sheaf__cuda_item *items, uint32_t n_items, uint32_t index,
                    const uint32_t *own)
{
    set *s = (set *)(void *)l->sets + index;
    uint32_t rows = s->n_members * (shape->n_q_heads / shape->n_kv_heads);
    uint32_t each = sheaf__cuda_prefix_rows(shape->dim);
    s->part = (uint32_t)l->n_parts;
    l->n_parts += (uint64_t)s->spans * s->n_members;
    for (uint32_t first = 0; first < rows; first += each)
        for (uint32_t span = 0; span < s->spans; span++)
            l->prefix_units[l->n_prefix_units++] = (sheaf__cuda_prefix_unit){
                .rows_at = items[s->leader].rows_at,
                .first_span = span,
                .end_span = span + 1,
                .members_at = l->n_members,
                .n_members = s->n_members,
                .first_row = first,
                .part = s->part,
            };
    for (uint32_t i = s->leader; i < n_items; i++)
        if (own[i] == index) l->members[l->n_members++] = items[i].query_at;
    l->prefix_tokens += (uint64_t)(s->n_members - 1) * s->spans * SHEAF__CUDA_SPAN;
}

/* Finds the sets; afterwards own[i] is an item's set, or NONE. */
static sheaf_status find_sets(sheaf__cuda_layout *l, sheaf__memory *memory,
                              const sheaf__cuda_shape *shape, const sheaf__cuda_item *items,
                              const sheaf_kv_view *views, uint32_t n_items, uint32_t **out)
{
    uint32_t bits = sheaf__log2(2ull * n_items) + 1;
    uint32_t least = shape->prefix_min != 0 ? shape->prefix_min : DEFAULT_PREFIX;
    uint32_t members = shape->prefix_min != 0 ? 2 : DEFAULT_MEMBERS;
    least = ceil_div(least, SHEAF__CUDA_SPAN);
    void *links = l->links, *sets = l->sets;
    SHEAF__TRY(sheaf__memory_grow(memory, &links, &l->link_capacity,
                                  ((uint64_t)1 << bits) + n_items, sizeof *l->links));
    l->links = links;
    SHEAF__TRY(sheaf__memory_grow(memory, &sets, &l->set_capacity, n_items, sizeof(set)));
    l->sets = sets;
    uint32_t *own = l->links + ((uint64_t)1 << bits);
    *out = own;
    memset(l->links, 0xff, (((uint64_t)1 << bits) + n_items) * sizeof *l->links);
    if (n_items < members) return SHEAF_OK;
    for (uint32_t i = 0; i < n_items; i++) join(l, shape, items, views, i, bits, least);
    uint64_t units = 0;
    for (uint32_t n = 0; n < l->n_sets; n++) {
        const set *s = (set *)(void *)l->sets + n;
        uint32_t rows = s->n_members * (shape->n_q_heads / shape->n_kv_heads);
        if (s->n_members >= members)
            units += (uint64_t)s->spans * ceil_div(rows, sheaf__cuda_prefix_rows(shape->dim));
    }
    if (units > UINT32_MAX / 2) return SHEAF_E_OVERFLOW;
    void *prefix = l->prefix_units, *member = l->members;
    SHEAF__TRY(sheaf__memory_grow(memory, &prefix, &l->prefix_capacity, units,
                                  sizeof *l->prefix_units));
    l->prefix_units = prefix;
    SHEAF__TRY(
        sheaf__memory_grow(memory, &member, &l->member_capacity, n_items, sizeof *l->members));
    l->members = member;
    uint32_t kept = 0;
    for (uint32_t n = 0; n < l->n_sets; n++) {
        set *s = (set *)(void *)l->sets + n;
        if (s->n_members >= members) {
            lay_set(l, shape, items, n_items, n, own);
            kept++;
        } else {
            s->spans = 0;
        }
    }
    l->n_sets = kept;
    return SHEAF_OK;
}

/* --- units -------------------------------------------------------------------------------- */

typedef struct extent {
    uint32_t lo, hi; /* positions seen */
    uint32_t first_leaf, end_leaf;
    uint32_t first_chunk, end_chunk;
    const set *shared; /* or null */
} extent;

static extent extent_of(const sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                        const sheaf__cuda_item *item, uint32_t of_set)
{
    extent e = {0};
    sheaf__cuda_item_sees(shape, item, &e.lo, &e.hi);
    const set *s = of_set != NONE ? (const set *)(const void *)l->sets + of_set : NULL;
    if (s != NULL && s->spans != 0) e.shared = s;
    e.first_leaf =
        e.shared != NULL ? s->spans * SHEAF__CUDA_SPAN_LEAVES : e.lo / SHEAF__CUDA_LEAF;
    e.end_leaf = e.lo < e.hi ? (e.hi - 1) / SHEAF__CUDA_LEAF + 1 : e.first_leaf;
    if (e.end_leaf < e.first_leaf) e.end_leaf = e.first_leaf;
    e.first_chunk = e.first_leaf / SHEAF__CUDA_CHUNK_LEAVES;
    e.end_chunk = e.end_leaf > e.first_leaf ? (e.end_leaf - 1) / SHEAF__CUDA_CHUNK_LEAVES + 1
                                            : e.first_chunk;
    return e;
}

/* Slots of a ring: as wished, or what the shared memory holds. */
static uint32_t slots_of(const sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                         uint32_t wish)
{
    while (wish > 1 &&
           l->warps * sheaf__cuda_ring_bytes(shape->codec, shape->dim, wish, l->sums) >
               MAX_SHARED)
        wish--;
    return wish;
}

/* Chunks of a unit, from those of the whole step; and how warps and rings are laid out. */
static uint32_t unit_chunks(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                            uint64_t chunks)
{
    const sheaf__cuda_tuning *t = &shape->tuning;
    uint32_t group = shape->n_q_heads / shape->n_kv_heads;
    uint64_t tasks = chunks * shape->n_kv_heads * ceil_div(group, 8);
    l->team = t->team != 0 ? t->team == 1 : tasks <= 2ull * shape->n_processors;
    l->overlap = t->overlap != 2;
    l->sums = 1;
    if (l->team) {
        l->warps = 4;
        l->slots = slots_of(l, shape, 2);
        return 1;
    }
    uint32_t each = t->unit_chunks;
    if (each == 0) {
        uint64_t most = tasks / ((uint64_t)shape->n_processors * WARPS_AT_ONCE);
        each = most < 2 ? 1 : most < 4 ? 2 : 4;
    }
    l->warps = t->warps != 0 ? t->warps : 1;
    l->sums = each > 4 || each == 3 ? 2 : 1; /* three chunks may lie in two spans */
    l->slots = slots_of(l, shape,
                        t->slots != 0                      ? t->slots
                        : shape->codec <= SHEAF_CODEC_BF16 ? 3
                                                           : 2);
    return each;
}

/* Cuts one item: units from chunks that are multiples of `each`, and what there is to merge. */
static void lay_item(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                     const sheaf__cuda_item *item, extent e, uint32_t each, uint32_t row)
{
    sheaf__cuda_merge *merge = &l->merges[l->n_merges];
    sheaf__cuda_unit unit = {
        .rows_at = item->rows_at - item->first_block,
        .lo = e.lo,
        .hi = e.hi,
        .query = item->query_at,
        .first_leaf = e.first_leaf,
        .end_leaf = e.end_leaf,
        .part = (uint32_t)l->n_parts,
        .kind = SHEAF__CUDA_FINAL,
    };
    uint32_t units =
        e.end_chunk > e.first_chunk ? ceil_div(e.end_chunk, each) - e.first_chunk / each : 0;
    *merge = (sheaf__cuda_merge){.query = item->query_at, .part = unit.part};
    if (units <= 1 && e.shared == NULL) {
        if (units == 0 || shape->codec != SHEAF_CODEC_TURBO4) {
            l->units[l->n_units++] = unit;
            return;
        }
        unit.kind = merge->kind = SHEAF__CUDA_WHOLE;
        merge->n_parts = 1;
    } else if (each < 4) {
        unit.kind = merge->kind = SHEAF__CUDA_CHUNK;
        merge->first = e.first_chunk;
        merge->n_parts = e.end_chunk - e.first_chunk;
    } else {
        unit.kind = merge->kind = SHEAF__CUDA_SPANS;
        merge->first = e.first_chunk / 4;
        merge->n_parts = units != 0 ? (e.end_chunk - 1) / 4 + 1 - merge->first : 0;
    }
    if (e.shared != NULL) {
        merge->prefix_part = e.shared->part + row;
        merge->prefix_spans = e.shared->spans;
        merge->prefix_stride = e.shared->n_members;
    }
    uint32_t own_spans =
        merge->kind == SHEAF__CUDA_CHUNK ? ceil_div(merge->n_parts, 4) + 1 : merge->n_parts;
    if (merge->prefix_spans + own_spans > l->merge_spans)
        l->merge_spans = merge->prefix_spans + own_spans;
    l->n_merges++;
    for (uint32_t chunk = e.first_chunk; chunk < e.end_chunk; l->n_units++) {
        uint32_t past = (chunk / each + 1) * each;
        if (past > e.end_chunk) past = e.end_chunk;
        unit.first_leaf =
            chunk == e.first_chunk ? e.first_leaf : chunk * SHEAF__CUDA_CHUNK_LEAVES;
        unit.end_leaf = past == e.end_chunk ? e.end_leaf : past * SHEAF__CUDA_CHUNK_LEAVES;
        unit.part = (uint32_t)l->n_parts;
        if (unit.kind == SHEAF__CUDA_CHUNK) unit.part += chunk - e.first_chunk;
        if (unit.kind == SHEAF__CUDA_SPANS) unit.part += chunk / 4 - merge->first;
        l->units[l->n_units] = unit;
        chunk = past;
    }
    l->n_parts += merge->n_parts;
}

void sheaf__cuda_layout_clear(sheaf__cuda_layout *l)
{
    l->n_units = l->n_merges = l->n_prefix_units = l->n_members = l->n_sets = l->merge_spans =
        0;
    l->team = l->slots = l->warps = l->sums = l->overlap = 0;
    l->n_parts = l->prefix_tokens = 0;
}

sheaf_status sheaf__cuda_layout_set(sheaf__cuda_layout *l, sheaf__memory *memory,
                                    const sheaf__cuda_shape *shape,
                                    const sheaf__cuda_item *items, const sheaf_kv_view *views,
                                    uint32_t n_items)
{
    uint32_t *own;
    sheaf__cuda_layout_clear(l);
    SHEAF__TRY(find_sets(l, memory, shape, items, views, n_items, &own));
    uint64_t chunks = 0, n_units = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].n_queries != 1) continue;
        extent e = extent_of(l, shape, &items[i], own[i]);
        chunks += e.end_chunk - e.first_chunk;
    }
    uint32_t each = unit_chunks(l, shape, chunks);
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].n_queries != 1) continue;
        extent e = extent_of(l, shape, &items[i], own[i]);
        n_units += e.end_chunk > e.first_chunk
                       ? ceil_div(e.end_chunk, each) - e.first_chunk / each
                       : 1;
    }
    if (n_units > INT32_MAX || chunks + l->n_parts > INT32_MAX) return SHEAF_E_OVERFLOW;
    void *units = l->units, *merges = l->merges;
    SHEAF__TRY(
        sheaf__memory_grow(memory, &units, &l->unit_capacity, n_units, sizeof *l->units));
    l->units = units;
    SHEAF__TRY(
        sheaf__memory_grow(memory, &merges, &l->merge_capacity, n_items, sizeof *l->merges));
    l->merges = merges;
    set *sets = (set *)(void *)l->sets;
    uint32_t *taken = l->links; /* the table of sets is done with: members counted per set */
    memset(taken, 0, n_items * sizeof *taken);
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].n_queries != 1) continue;
        extent e = extent_of(l, shape, &items[i], own[i]);
        uint32_t row = e.shared != NULL ? taken[e.shared - sets]++ : 0;
        lay_item(l, shape, &items[i], e, each, row);
    }
    return SHEAF_OK;
}

void sheaf__cuda_layout_free(sheaf__cuda_layout *l, sheaf__memory *memory)
{
    sheaf__memory_free(memory, l->units, l->unit_capacity, sizeof *l->units);
    sheaf__memory_free(memory, l->merges, l->merge_capacity, sizeof *l->merges);
    sheaf__memory_free(memory, l->prefix_units, l->prefix_capacity, sizeof *l->prefix_units);
    sheaf__memory_free(memory, l->members, l->member_capacity, sizeof *l->members);
    sheaf__memory_free(memory, l->links, l->link_capacity, sizeof *l->links);
    sheaf__memory_free(memory, l->sets, l->set_capacity, sizeof(set));
}
