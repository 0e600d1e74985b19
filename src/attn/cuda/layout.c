/* attn/cuda/layout.c - the cutting itself.
 *
 * A unit is a chunk, a leaf each warp of its team, or a span, a chunk each warp: spans leave fewer
 * parts, chunks keep more multiprocessors busy. Small steps and short contexts are cut into chunks. An
 * item that fits one unit needs no merging.
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
#define CHUNK_SHIFT     2 /* log2 of leaves */
#define SPAN_SHIFT      4
#define FEW_CHUNKS      1 /* of an item: it is cut into chunks; and of turbo4, which */
#define FEW_OF_TURBO4   2 /* waits for products more than for memory */
#define MAX_SLOTS       4 /* of a ring */
#define MOST_SLOTS      8 /* that it has barriers for */
#define LEAST_ROOM      4 /* for parts to be merged */
#define FEW_TIMES       3 /* that the parts of a merge may have to come in */

/* Items whose first spans lie in the same rows. */
struct sheaf__cuda_set {
    uint32_t leader, spans, n_members;
    uint32_t part, members_at;
    uint32_t taken; /* members that have their places */
};

/* How one item is cut. */
struct sheaf__cuda_cut {
    uint32_t lo, hi; /* positions seen */
    uint32_t first_leaf, end_leaf;
    uint32_t set;     /* or NONE */
    uint32_t shift;   /* log2 of the leaves of a unit */
    uint32_t n_units; /* at least 1 */
    uint32_t n_parts; /* 0: one unit leaves the result, or its set has all there is */
};

typedef struct sheaf__cuda_set set;
typedef struct sheaf__cuda_cut cut;
typedef uint32_t four __attribute__((vector_size(16)));

static uint32_t ceil_div(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

/* --- sets --------------------------------------------------------------------------------- */

/* Spans of two items that lie in the same rows, up to `most`. */
static uint32_t spans_alike(const sheaf__cuda_shape *shape, const sheaf_kv_view *a,
                            const sheaf_kv_view *b, uint32_t most)
{
    size_t blocks = SHEAF__CUDA_SPAN / shape->block_tokens;
    if (a->rows == b->rows || memcmp(a->rows, b->rows, most * blocks * sizeof *a->rows) == 0)
        return most;
    uint32_t n = 0;
    while (memcmp(a->rows + n * blocks, b->rows + n * blocks, blocks * sizeof *a->rows) == 0)
        n++;
    return n;
}

/* Whole spans from position 0 on that the item sees, of rows that may be shared. */
static uint32_t spans_seen(const sheaf__cuda_item *item, const sheaf_kv_view *view,
                           const cut *c)
{
    if (view->rows == NULL || item->n_queries != 1 || item->first_block != 0 || c->lo != 0)
        return 0;
    return c->hi / SHEAF__CUDA_SPAN;
}

/* Puts item i into a set where it shares enough; a set is made when a second item has its first row.
 * table: [2^bits] of items, by their first row. */
static void join(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                 const sheaf_kv_view *views, uint32_t i, uint32_t seen)
{
    uint32_t bits = l->table_bits, row = views[i].rows[0], first,
             at = (row * 2654435769u) >> (32 - bits);
    while ((first = l->table[at]) != NONE && views[first].rows[0] != row)
        at = (at + 1) & ((1u << bits) - 1);
    if (first == NONE) {
        l->table[at] = i;
        return;
    }
    cut *leader = &l->cuts[first];
    if (leader->set == NONE) {
        leader->set = l->n_sets;
        l->sets[l->n_sets++] =
            (set){.leader = first, .spans = leader->hi / SHEAF__CUDA_SPAN, .n_members = 1};
    }
    set *s = &l->sets[leader->set];
    uint32_t alike =
        spans_alike(shape, &views[first], &views[i], seen < s->spans ? seen : s->spans);
    if (alike < l->least_spans || (s->n_members > 1 && alike < s->spans / 2)) return;
    s->spans = alike;
    s->n_members++;
    l->cuts[i].set = leader->set;
}

/* Blocks of the query rows of a set, a multiprocessor each at once. */
static uint64_t row_tiles(const sheaf__cuda_shape *shape, const set *s)
{
    uint64_t rows = (uint64_t)s->n_members * (shape->n_q_heads / shape->n_kv_heads);
    return sheaf__ceil_div_u64(rows, sheaf__cuda_prefix_rows(shape->dim));
}

/* Cuts the sets' spans so that one round of blocks does them all: what a block begins with, loading
 * queries, then comes once. units: were it a unit a span */
static void cut_prefixes(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape, uint64_t units)
{
    l->unit_spans =
        (uint32_t)sheaf__ceil_div_u64(units * shape->n_kv_heads, shape->n_processors);
    if (shape->tuning.spans != 0) l->unit_spans = shape->tuning.spans;
    l->n_prefix_units = 0;
    for (uint32_t n = 0; n < l->n_found; n++) {
        const set *s = &l->sets[n];
        if (s->spans != 0)
            l->n_prefix_units +=
                (uint32_t)row_tiles(shape, s) * ceil_div(s->spans, l->unit_spans);
    }
}

/* Of the sets those of enough members keep their spans; each gets places for parts and members. */
static sheaf_status place_sets(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                               uint32_t members)
{
    const uint64_t group = shape->n_q_heads / shape->n_kv_heads;
    uint64_t units = 0;
    l->n_found = l->n_sets;
    l->n_sets = 0;
    for (uint32_t n = 0; n < l->n_found; n++) {
        set *s = &l->sets[n];
        if (s->n_members < members) {
            s->spans = 0;
            continue;
        }
        units += s->spans * row_tiles(shape, s);
        s->part = (uint32_t)l->n_parts;
        l->n_parts += (uint64_t)s->spans * s->n_members;
        if (units > INT32_MAX || l->n_parts > INT32_MAX || s->n_members * group > UINT32_MAX)
            return SHEAF_E_OVERFLOW;
        s->members_at = l->n_members;
        l->n_members += s->n_members;
        l->prefix_tokens += (uint64_t)(s->n_members - 1) * s->spans * SHEAF__CUDA_SPAN;
        l->n_sets++;
    }
    if (units != 0) cut_prefixes(l, shape, units);
    return SHEAF_OK;
}

/* Room for sets of n items, and an empty table. */
static sheaf_status begin_sets(sheaf__cuda_layout *l, sheaf__memory *memory, uint32_t n)
{
    l->table_bits = sheaf__log2(2ull * n) + 1;
    void *table = l->table, *sets = l->sets;
    SHEAF__TRY(sheaf__memory_grow(memory, &table, &l->table_capacity,
                                  (uint64_t)1 << l->table_bits, sizeof *l->table));
    l->table = table;
    SHEAF__TRY(sheaf__memory_grow(memory, &sets, &l->set_capacity, n, sizeof *l->sets));
    l->sets = sets;
    memset(l->table, 0xff, sizeof *l->table << l->table_bits);
    return SHEAF_OK;
}

/* --- items -------------------------------------------------------------------------------- */

/* Slots of a ring. For chunks, a leaf each warp, and of small codecs four, for spans of bf16 three, as
 * far as there is room; two where that leaves more of it for parts. Those of the longest merge come in
 * FEW_TIMES at most, for each takes microseconds; where no team has a second unit, into the rings. */
static uint32_t slots_of(const sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                         uint64_t most_parts)
{
    const uint32_t group = shape->n_q_heads / shape->n_kv_heads;
    const uint64_t teams = shape->n_processors * sheaf__cuda_teams(shape->codec, shape->dim);
    uint32_t slots = l->all_chunks || shape->codec > SHEAF_CODEC_BF16 ? MAX_SLOTS : 3;
    int64_t wanted = LEAST_ROOM;
    if ((uint64_t)l->n_units * ceil_div(group, 8) * shape->n_kv_heads > teams)
        wanted = (int64_t)(most_parts * sheaf__cuda_columns(group) / FEW_TIMES);
    if (wanted < LEAST_ROOM) wanted = LEAST_ROOM;
    if (shape->tuning.slots != 0) slots = shape->tuning.slots, wanted = LEAST_ROOM;
    if (slots > MOST_SLOTS) slots = MOST_SLOTS;
    if (slots < 2) slots = 2;
    while (slots > 2 && sheaf__cuda_merge_room(shape->codec, shape->dim, group, slots) < wanted)
        slots--;
    return slots;
}

/* Units of 2^shift leaves that the item's leaves lie in. */
static uint32_t units_of(const cut *c, uint32_t shift)
{
    if (c->end_leaf == c->first_leaf) return 1; /* of nothing */
    return ((c->end_leaf - 1) >> shift) - (c->first_leaf >> shift) + 1;
}

/* Leaves [first, end) of the item, of those that it sees; none where there are none. */
static void set_leaves(cut *c, uint32_t first)
{
    uint32_t end = c->lo < c->hi ? (c->hi - 1) / SHEAF__CUDA_LEAF + 1 : 0;
    c->first_leaf = first;
    c->end_leaf = end > first ? end : first;
}

/* What the items see, as if none shared anything, and the sets that they make; each cut has its set, or
 * NONE. */
static sheaf_status see_items(sheaf__cuda_layout *l, sheaf__memory *memory,
                              const sheaf__cuda_shape *shape, const sheaf__cuda_item *items,
                              const sheaf_kv_view *views, uint32_t n_items)
{
    const uint32_t least = shape->prefix_min != 0 ? shape->prefix_min : DEFAULT_PREFIX;
    const uint32_t members = shape->prefix_min != 0 ? 2 : DEFAULT_MEMBERS;
    bool begun = false;
    l->least_spans = ceil_div(least, SHEAF__CUDA_SPAN);
    for (uint32_t i = 0; i < n_items; i++) {
        cut *c = &l->cuts[i];
        uint32_t lo, hi;
        sheaf__cuda_item_sees(shape, &items[i], &lo, &hi);
        c->lo = lo, c->hi = hi;
        set_leaves(c, lo / SHEAF__CUDA_LEAF);
        c->set = NONE;
        if (n_items < members) continue;
        uint32_t seen = spans_seen(&items[i], &views[i], c);
        if (seen < l->least_spans) continue;
        if (!begun) SHEAF__TRY(begin_sets(l, memory, n_items));
        begun = true;
        join(l, shape, views, i, seen);
    }
    return l->n_sets != 0 ? place_sets(l, shape, members) : SHEAF_OK;
}

/* Takes what sets compute from their members. */
static void take_prefixes(sheaf__cuda_layout *l)
{
    for (uint32_t i = 0; i < l->n_items; i++) {
        cut *c = &l->cuts[i];
        if (c->set == NONE) continue;
        uint32_t spans = l->sets[c->set].spans;
        if (spans != 0)
            set_leaves(c, spans * SHEAF__CUDA_SPAN_LEAVES);
        else
            c->set = NONE; /* too small a set */
    }
}

/* Whether spans would leave most multiprocessors idle. */
static bool is_small(const sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                     const sheaf__cuda_item *items)
{
    const uint64_t heads = shape->n_kv_heads;
    const uint64_t each = 2 * heads * ceil_div(shape->n_q_heads / shape->n_kv_heads, 8);
    uint64_t spans = 0;
    for (uint32_t i = 0; i < l->n_items; i++) {
        if (items[i].n_queries != 1) continue;
        spans += units_of(&l->cuts[i], SPAN_SHIFT);
        if (spans * each >= shape->n_processors) return false;
    }
    return true;
}

/* Counts the units, parts and merges of the items. most_parts: that one merge has */
static sheaf_status count_units(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                                const sheaf__cuda_item *items, uint64_t *most_parts)
{
    const uint32_t each = shape->tuning.each;
    const bool small = each != 0 ? each == 1 : is_small(l, shape, items);
    const uint32_t few = each != 0                            ? 0
                         : shape->codec == SHEAF_CODEC_TURBO4 ? FEW_OF_TURBO4
                                                              : FEW_CHUNKS;
    uint64_t n_units = 0;
    l->all_chunks = 1;
    for (uint32_t i = 0; i < l->n_items; i++) {
        if (items[i].n_queries != 1) continue;
        cut *c = &l->cuts[i];
        bool chunks = small || units_of(c, CHUNK_SHIFT) <= few;
        c->shift = chunks ? CHUNK_SHIFT : SPAN_SHIFT;
        if (!chunks) l->all_chunks = 0;
        c->n_units = units_of(c, c->shift);
        c->n_parts = 0;
        n_units += c->n_units;
        if (c->n_units == 1 && c->set == NONE) continue;
        c->n_parts = c->end_leaf != c->first_leaf ? c->n_units : 0;
        l->n_parts += c->n_parts;
        uint64_t parts = c->n_parts + (c->set != NONE ? l->sets[c->set].spans : 0);
        if (parts > *most_parts) *most_parts = parts;
        l->n_merges++;
    }
    if (n_units > INT32_MAX / 8 || l->n_parts > INT32_MAX) return SHEAF_E_OVERFLOW;
    l->n_units = (uint32_t)n_units;
    return SHEAF_OK;
}

void sheaf__cuda_layout_clear(sheaf__cuda_layout *l)
{
    l->n_units = l->n_merges = l->n_prefix_units = l->n_members = l->n_sets = 0;
    l->n_items = l->n_found = l->slots = l->overlap = l->all_chunks = 0;
    l->n_parts = l->prefix_tokens = 0;
}

sheaf_status sheaf__cuda_layout_set(sheaf__cuda_layout *l, sheaf__memory *memory,
                                    const sheaf__cuda_shape *shape,
                                    const sheaf__cuda_item *items, const sheaf_kv_view *views,
                                    uint32_t n_items)
{
    sheaf__cuda_layout_clear(l);
    void *cuts = l->cuts;
    SHEAF__TRY(sheaf__memory_grow(memory, &cuts, &l->cut_capacity, n_items, sizeof *l->cuts));
    l->cuts = cuts;
    SHEAF__TRY(see_items(l, memory, shape, items, views, n_items));
    l->n_items = n_items;
    if (l->n_found != 0) take_prefixes(l);
    l->overlap = shape->tuning.overlap != 2;
    uint64_t most_parts = 0;
    SHEAF__TRY(count_units(l, shape, items, &most_parts));
    l->slots = slots_of(l, shape, most_parts);
    return SHEAF_OK;
}

void sheaf__cuda_layout_free(sheaf__cuda_layout *l, sheaf__memory *memory)
{
    sheaf__memory_free(memory, l->table, l->table_capacity, sizeof *l->table);
    sheaf__memory_free(memory, l->sets, l->set_capacity, sizeof *l->sets);
    sheaf__memory_free(memory, l->cuts, l->cut_capacity, sizeof *l->cuts);
}

/* --- tables ------------------------------------------------------------------------------- */

/* The prefix units of the sets, their members' queries after one another. */
static void write_sets(const sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                       const sheaf__cuda_item *items, const sheaf__cuda_tables *to)
{
    uint32_t group = shape->n_q_heads / shape->n_kv_heads;
    uint32_t each = sheaf__cuda_prefix_rows(shape->dim);
    sheaf__cuda_prefix_unit *unit = to->prefix_units;
    for (uint32_t n = 0; n < l->n_found; n++) {
        set *s = &l->sets[n];
        s->taken = 0;
        if (s->spans == 0) continue;
        for (uint32_t first = 0; first < s->n_members * group; first += each)
            for (uint32_t span = 0; span < s->spans; span += l->unit_spans)
                *unit++ = (sheaf__cuda_prefix_unit){
                    .rows_at = items[s->leader].rows_at,
                    .first_span = span,
                    .end_span = (uint32_t)sheaf__min_u64(span + l->unit_spans, s->spans),
                    .members_at = s->members_at,
                    .n_members = s->n_members,
                    .first_row = first,
                    .part = s->part,
                };
    }
}

/* The units of a cut, ascending: all but the first begin at multiples of their leaves. Each is written
 * by halves of 16 bytes, of which the first is the same for all. */
static sheaf__cuda_unit *write_units(const sheaf__cuda_item *item, const cut *c, uint32_t merge,
                                     sheaf__cuda_unit *to)
{
    const uint32_t leaves = 1u << c->shift, part_each = leaves / SHEAF__CUDA_WARPS;
    const uint32_t end = ((c->first_leaf >> c->shift) + 1) << c->shift;
    const sheaf__cuda_unit *past = to + c->n_units;
    const four same = {item->rows_at - item->first_block, c->lo, c->hi, item->query_at};
    const four next = {leaves, leaves, 0, 8};
    four own = {end - leaves, end, merge, part_each};
    for (sheaf__cuda_unit *unit = to; unit < past; unit++, own += next) {
        memcpy(&unit->rows_at, &same, sizeof same);
        memcpy(&unit->first_leaf, &own, sizeof own);
    }
    to->first_leaf = c->first_leaf;
    to += c->n_units;
    to[-1].end_leaf = c->end_leaf;
    return to;
}

void sheaf__cuda_layout_write(sheaf__cuda_layout *l, const sheaf__cuda_shape *shape,
                              const sheaf__cuda_item *items, const sheaf__cuda_tables *to)
{
    sheaf__cuda_unit *unit = to->units;
    sheaf__cuda_merge *merge = to->merges;
    uint32_t part = 0;
    if (l->n_found != 0) write_sets(l, shape, items, to);
    for (uint32_t n = 0; n < l->n_found; n++)
        part += l->sets[n].spans != 0 ? l->sets[n].spans * l->sets[n].n_members : 0;
    for (uint32_t i = 0; i < l->n_items; i++) {
        if (items[i].n_queries != 1) continue;
        const cut *c = &l->cuts[i];
        uint32_t index = SHEAF__CUDA_NO_MERGE;
        if (c->n_units > 1 || c->set != NONE) {
            index = (uint32_t)(merge - to->merges);
            *merge = (sheaf__cuda_merge){.part = part,
                                         .n_parts = c->n_parts,
                                         .first = c->first_leaf >> c->shift,
                                         .chunks = c->shift == CHUNK_SHIFT};
            if (c->set != NONE) {
                set *s = &l->sets[c->set];
                to->members[s->members_at + s->taken] = items[i].query_at;
                merge->prefix_part = s->part + s->taken++;
                merge->prefix_spans = s->spans;
                merge->prefix_stride = s->n_members;
            }
            merge++;
        }
        unit = write_units(&items[i], c, index, unit);
        part += c->n_parts;
    }
}
