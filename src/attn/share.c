/* attn/share.c - which items hold the same blocks, so that each is read once for all of them.
 *
 * Sequences that begin alike, forks and those that were found in a prefix cache, hold the same rows up
 * to where they part. They are found here by their rows alone. Sets of items that agree are followed
 * split by split from the first that all hold; where a set parts, each piece of two or more goes
 * on by itself:
 *
 *     rows          0 1 2 3 | 4 5 6 7 | 8 9        {a b c}   one unit over the first split
 *                   0 1 2 3 | 4 5 6 7 | 10         {a b}     one over the second
 *                   0 1 2 3 | 11 12 13 14          {c}       alone: nothing to share
 *
 * Only whole splits are shared, so that no order of arithmetic changes, and only items of few query
 * rows: those of a prefill fill a tile by themselves. Cost: a comparison of each row with another
 * item's, and a hash of the rows of each split in which a set parts.
 */
#include <stdbool.h>
#include <string.h>

#include "attn/plan.h"
#include "base/bits.h"
#include "base/status.h"

#define MAX_SHARER_ROWS (SHEAF__ATTN_ROWS / 2)

/* --- what two views have in common ---------------------------------------------------------- */

static bool same_memory(const sheaf_kv_view *a, const sheaf_kv_view *b)
{
    return a->base == b->base && a->row_stride_k == b->row_stride_k &&
           a->row_stride_v == b->row_stride_v && a->k_offset == b->k_offset &&
           a->v_offset == b->v_offset && a->k_head_stride == b->k_head_stride &&
           a->v_head_stride == b->v_head_stride && a->block_tokens == b->block_tokens &&
           a->codec_k == b->codec_k && a->codec_v == b->codec_v;
}

/* Whether both hold the splits [lo, hi), whole, in the same rows. */
static bool same_rows(const sheaf_kv_view *a, const sheaf_kv_view *b, sheaf__attn_range splits)
{
    if (a->rows == NULL || b->rows == NULL)
        return a->rows == b->rows && a->first_block == b->first_block;
    uint64_t first = (uint64_t)splits.lo * SHEAF__ATTN_SPLIT / a->block_tokens;
    uint64_t end = ((uint64_t)splits.hi * SHEAF__ATTN_SPLIT - 1) / a->block_tokens + 1;
    return memcmp(a->rows + (first - a->first_block), b->rows + (first - b->first_block),
                  (end - first) * sizeof *a->rows) == 0;
}

static uint32_t hash_split(const sheaf_kv_view *view, uint32_t split)
{
    uint64_t first = (uint64_t)split * SHEAF__ATTN_SPLIT / view->block_tokens;
    uint64_t end = ((uint64_t)(split + 1) * SHEAF__ATTN_SPLIT - 1) / view->block_tokens + 1;
    uint64_t h = (split ^ (uintptr_t)view->base) * 0x9e3779b97f4a7c15ull;
    for (uint64_t b = first; b < end && view->rows != NULL; b++)
        h = (h ^ view->rows[b - view->first_block]) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(h >> 32);
}

/* The splits that the view holds from end to end. */
static sheaf__attn_range held_splits(const sheaf_kv_view *view)
{
    uint64_t begin = (uint64_t)view->first_block * view->block_tokens;
    uint64_t end = begin + (uint64_t)view->n_rows * view->block_tokens;
    uint64_t lo = sheaf__ceil_div_u64(begin, SHEAF__ATTN_SPLIT);
    uint64_t hi = sheaf__min_u64(end, view->n_tokens) / SHEAF__ATTN_SPLIT;
    if (view->base == NULL || lo >= hi) return (sheaf__attn_range){0, 0};
    return (sheaf__attn_range){(uint32_t)lo, (uint32_t)hi};
}

/* Whether the view holds them all. */
static bool holds(const sheaf_kv_view *view, sheaf__attn_range splits)
{
    sheaf__attn_range held = held_splits(view);
    return held.lo <= splits.lo && splits.hi <= held.hi;
}

/* --- sets ----------------------------------------------------------------------------------- */

/* One search. */
typedef struct search {
    sheaf_attn_plan *plan;
    const sheaf_kv_view *views;
    uint32_t n_sets; /* on the stack plan->sets: disjoint, so never more than sharers */
} search;

static const sheaf_kv_view *view_of(const search *s, uint32_t sharer)
{
    const sheaf_attn_plan *plan = s->plan;
    return &s->views[plan->next.tiles[plan->sharers[sharer].tile].item];
}

/* Links the items that may share into one list. Returns how many there are. */
static uint32_t collect(const search *s)
{
    sheaf_attn_plan *plan = s->plan;
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->next.n_items; i++) {
        const sheaf__attn_planned *item = &plan->next.items[i];
        const sheaf__attn_tile *tile = &plan->next.tiles[item->first_tile];
        if (item->n_tiles > 1 || tile->n_rows > MAX_SHARER_ROWS) continue;
        sheaf__attn_range held = held_splits(&s->views[i]);
        uint32_t lo = held.lo > tile->splits.lo ? held.lo : tile->splits.lo;
        uint32_t hi = held.hi < tile->splits.hi ? held.hi : tile->splits.hi;
        if (lo >= hi) continue;
        plan->sharers[n] = (sheaf__attn_sharer){item->first_tile, {lo, hi}, n + 1, 0};
        n++;
    }
    if (n > 0) plan->sharers[n - 1].next = SHEAF__ATTN_NONE;
    return n;
}

/* The place of a sharer in the table: that of one which agrees with it in `split`, or an empty one. */
static uint32_t *find_slot(const search *s, uint32_t sharer, uint32_t split, uint32_t mask)
{
    const sheaf__attn_sharer *all = s->plan->sharers;
    const sheaf_kv_view *view = view_of(s, sharer);
    const sheaf__attn_range here = {split, split + 1};
    for (uint32_t i = hash_split(view, split) & mask;; i = (i + 1) & mask) {
        uint32_t *slot = &s->plan->slots[i];
        if (*slot == SHEAF__ATTN_NONE) return slot;
        const sheaf_kv_view *other = view_of(s, *slot);
        if (all[*slot].splits.lo == all[sharer].splits.lo && same_memory(view, other) &&
            same_rows(view, other, here))
            return slot;
    }
}

/* Parts a list of n sharers, those that reach beyond `split`, by their rows there
 * (SHEAF__ATTN_NONE: each in its own first one), and pushes the sets of two and more. */
static void part(search *s, uint32_t first, uint32_t n, uint32_t split)
{
    sheaf__attn_sharer *all = s->plan->sharers;
    uint32_t n_slots = 2, begin = s->n_sets, next;
    while (n_slots < 2 * n) n_slots *= 2;
    memset(s->plan->slots, 0xff, n_slots * sizeof *s->plan->slots);
    for (uint32_t i = first; i != SHEAF__ATTN_NONE; i = next) {
        next = all[i].next;
        uint32_t at = split == SHEAF__ATTN_NONE ? all[i].splits.lo : split;
        if (all[i].splits.hi <= at) continue;
        uint32_t *slot = find_slot(s, i, at, n_slots - 1);
        if (*slot == SHEAF__ATTN_NONE) {
            *slot = i;
            all[i].n = 1;
            all[i].next = SHEAF__ATTN_NONE;
            s->plan->sets[s->n_sets++] = (sheaf__attn_set){i, at};
        } else {
            all[*slot].n++;
            all[i].next = all[*slot].next;
            all[*slot].next = i;
        }
    }
    uint32_t kept = begin;
    for (uint32_t i = begin; i < s->n_sets; i++)
        if (all[s->plan->sets[i].first].n > 1) s->plan->sets[kept++] = s->plan->sets[i];
    s->n_sets = kept;
}

/* The first split in which not all of a set agree, or which not all reach. */
static uint32_t end_of(const search *s, sheaf__attn_set set)
{
    const sheaf__attn_sharer *all = s->plan->sharers;
    const sheaf_kv_view *leader = view_of(s, set.first);
    uint32_t end = all[set.first].splits.hi;
    for (uint32_t i = all[set.first].next; i != SHEAF__ATTN_NONE; i = all[i].next) {
        const sheaf_kv_view *view = view_of(s, i);
        if (all[i].splits.hi < end) end = all[i].splits.hi;
        uint32_t at = set.from + 1;
        while (at < end && same_rows(leader, view, (sheaf__attn_range){at, at + 1})) at++;
        end = at;
    }
    return end;
}

/* Adds the units of a set over some splits: as few as hold its rows, and as equal as can be. */
static sheaf_status emit(const search *s, uint32_t first, sheaf__attn_range splits)
{
    sheaf_attn_plan *plan = s->plan;
    const sheaf__attn_sharer *all = plan->sharers;
    uint64_t rows = 0;
    for (uint32_t i = first; i != SHEAF__ATTN_NONE; i = all[i].next) {
        const sheaf__attn_tile *tile = &plan->next.tiles[all[i].tile];
        rows += tile->n_rows;
        if (tile->covered == splits.lo) continue;
        SHEAF__TRY(sheaf__attn_open_unit(plan, (sheaf__attn_range){tile->covered, splits.lo}));
        SHEAF__TRY(sheaf__attn_join_unit(plan, all[i].tile));
    }
    uint64_t n_units = sheaf__ceil_div_u64(rows, SHEAF__ATTN_ROWS);
    uint64_t enough = sheaf__ceil_div_u64(rows, n_units), in_unit = enough;
    for (uint32_t i = first; i != SHEAF__ATTN_NONE; i = all[i].next) {
        uint32_t n_rows = plan->next.tiles[all[i].tile].n_rows;
        if (in_unit >= enough || in_unit + n_rows > SHEAF__ATTN_ROWS) {
            SHEAF__TRY(sheaf__attn_open_unit(plan, splits));
            in_unit = 0;
        }
        SHEAF__TRY(sheaf__attn_join_unit(plan, all[i].tile));
        in_unit += n_rows;
    }
    return SHEAF_OK;
}

sheaf_status sheaf__attn_share(sheaf_attn_plan *plan, const sheaf_kv_view *views)
{
    search s = {plan, views, 0};
    uint64_t n_items = plan->next.n_items;
    void *sharers = plan->sharers, *sets = plan->sets, *slots = plan->slots;
    sheaf_status st = sheaf__memory_grow(&plan->memory, &sharers, &plan->sharer_capacity,
                                         n_items, sizeof *plan->sharers);
    plan->sharers = sharers;
    if (st == SHEAF_OK)
        st = sheaf__memory_grow(&plan->memory, &sets, &plan->set_capacity, n_items,
                                sizeof *plan->sets);
    plan->sets = sets;
    if (st == SHEAF_OK)
        st = sheaf__memory_grow(&plan->memory, &slots, &plan->slot_capacity, 4 * n_items,
                                sizeof *plan->slots);
    plan->slots = slots;
    if (st != SHEAF_OK) return st;

    uint32_t n = collect(&s);
    if (n < 2) return SHEAF_OK;
    part(&s, 0, n, SHEAF__ATTN_NONE);
    while (s.n_sets > 0) {
        sheaf__attn_set set = plan->sets[--s.n_sets];
        uint32_t end = end_of(&s, set);
        SHEAF__TRY(emit(&s, set.first, (sheaf__attn_range){set.from, end}));
        part(&s, set.first, plan->sharers[set.first].n, end);
    }
    return SHEAF_OK;
}

sheaf_status sheaf__attn_shared_check(const sheaf_attn_plan *plan, const sheaf_kv_view *views)
{
    const sheaf__attn_layout *now = &plan->now;
    for (uint32_t u = 0; u < now->n_shared_units; u++) {
        const sheaf__attn_unit *unit = &now->units[u];
        const sheaf__attn_member *members = &now->members[unit->first_member];
        const sheaf_kv_view *leader = &views[now->tiles[members[0].tile].item];
        for (uint32_t i = 1; i < unit->n_members; i++) {
            const sheaf_kv_view *view = &views[now->tiles[members[i].tile].item];
            if (!holds(leader, unit->splits) || !holds(view, unit->splits) ||
                !same_memory(leader, view) || !same_rows(leader, view, unit->splits))
                return SHEAF_E_PLAN;
        }
    }
    return SHEAF_OK;
}
