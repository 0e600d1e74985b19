/* cache/reserve.c - the door of a step: all that it will write has room, or nothing happens.
 *
 *     check     every step, before anything is touched
 *     hold      new sequences share what matches; the blocks that their tails are copied from
 *               get a reference of kind IO. What is held cannot be evicted, so that counting
 *               what can be evicted comes after it: a match that was idle does not count twice
 *     count     the blocks that extending takes, exactly, by group
 *     room      evict, but only when that will be enough; commit the slabs. Where only the
 *               blocks that tails are copied from are wanting, the tails are left out
 *     take      copy tails, extend every sequence: no block can be wanting any more
 *
 * Whatever goes wrong before the end, all is let go of again and the steps are as they were.
 */
#include <string.h>

#include "base/bits.h"
#include "cache/prefix.h"

/* One step's share. */
struct sheaf__part {
    sheaf_sequence *sequence; /* made here, or the step's */
    uint32_t n;               /* positions to reserve */
    uint32_t made;
    uint32_t extended;
    uint32_t kept;    /* the source of the walk's tail is held */
    sheaf__walk walk; /* of a sequence made here; nodes are good until something is evicted */
};
typedef struct sheaf__part part;

typedef struct door {
    sheaf_prefix *cache;
    const sheaf_step *steps; /* [n_steps] */
    part *parts;             /* [n_steps], the first n_parts of them begun */
    uint32_t n_steps;
    uint32_t n_parts;
    uint64_t need[SHEAF_MAX_GROUPS];
} door;

/* ---- check ------------------------------------------------------------------------------- */

static sheaf_status check_step(const sheaf_prefix *cache, const sheaf_step *step)
{
    if (step->struct_size != sizeof *step) return SHEAF_E_INVALID;
    sheaf_sequence *seq = step->sequence;
    if (seq == NULL)
        return step->prompt != NULL ? sheaf__prompt_check(step->prompt) : SHEAF_E_INVALID;
    if (seq->pool != cache->pool || seq->owner.kind != SHEAF_OWNER_TABLE)
        return SHEAF_E_INVALID;
    if (seq->progress.reserved != 0 || seq->in_step != 0) return SHEAF_E_BUSY;
    seq->in_step = 1;
    return SHEAF_OK;
}

/* Every step by itself, and that no two name one sequence: each is marked meanwhile. */
static sheaf_status check_steps(const sheaf_prefix *cache, const sheaf_step *steps,
                                uint32_t n_steps)
{
    sheaf_status st = SHEAF_OK;
    uint32_t n = 0;
    while (n < n_steps && st == SHEAF_OK) st = check_step(cache, &steps[n++]);
    for (uint32_t i = 0; i < n; i++)
        if (steps[i].sequence != NULL) steps[i].sequence->in_step = 0;
    return st;
}

/* ---- hold -------------------------------------------------------------------------------- */

static void let_tail_go(door *d, part *p)
{
    if (p->kept) sheaf__walk_unkeep(d->cache, &p->walk);
    p->kept = 0;
}

/* What a part made here will reserve after its match. */
static void set_n(const sheaf_step *step, part *p)
{
    uint32_t left = step->prompt->n_tokens - p->walk.length - p->walk.tail;
    p->n = step->n < left ? step->n : left;
}

/* A new sequence of what matches, the tail still to come. */
static sheaf_status match_part(door *d, const sheaf_step *step, part *p)
{
    const sheaf_prompt *prompt = step->prompt;
    sheaf__walk *walk = &p->walk;
    uint32_t limit = prompt->n_tokens;
    if (prompt->max_match != 0 && prompt->max_match < limit) limit = prompt->max_match;
    sheaf__walk_prompt(d->cache, prompt->space, prompt->tokens, limit, walk);
    SHEAF__TRY(sheaf__walk_hold(d->cache, walk, prompt->tokens, &p->sequence));
    p->made = 1;
    set_n(step, p);
    SHEAF__TRY(sheaf__walk_keep(d->cache, walk));
    p->kept = 1;
    return SHEAF_OK;
}

/* ---- count ------------------------------------------------------------------------------- */

/* The row of the partial block that the step's own sequence writes into, or SHEAF_ROW_NONE. */
static uint32_t open_row(const part *p, uint32_t group)
{
    const sheaf_sequence *seq = p->sequence;
    if (p->made || p->n == 0 || seq->progress.length % seq->block_tokens == 0)
        return SHEAF_ROW_NONE;
    const sheaf__table *table = &seq->room.tables[group];
    return table->rows[table->n_blocks - 1];
}

/* Whether earlier steps leave a part its partial block to itself: they share it, and will have
 * copied it by then. O(parts), for shared ones alone. */
static bool left_alone(const door *d, uint32_t index, uint32_t group)
{
    uint32_t row = open_row(&d->parts[index], group), leaving = 0;
    if (row == SHEAF_ROW_NONE || !sheaf__pool_row_shared(d->cache->pool, group, row))
        return false;
    for (uint32_t i = 0; i < index; i++) leaving += open_row(&d->parts[i], group) == row;
    const sheaf__record *record = sheaf__record_for_row(&d->cache->pool->groups[group], row);
    return record->total == leaving + 1;
}

/* Adds what extending the part will take. */
static sheaf_status count_part(door *d, uint32_t index)
{
    const part *p = &d->parts[index];
    uint32_t counts[SHEAF_MAX_GROUPS];
    SHEAF__TRY(sheaf_sequence_need_blocks(p->sequence, p->walk.tail + p->n, counts));
    for (uint32_t g = 0; g < d->cache->n_groups; g++)
        d->need[g] += counts[g] - left_alone(d, index, g);
    return SHEAF_OK;
}

/* Checks, holds and counts; undo() takes back what has begun, whatever the answer. */
static sheaf_status prepare(door *d)
{
    sheaf_prefix *cache = d->cache;
    SHEAF__TRY(check_steps(cache, d->steps, d->n_steps));
    void *parts = cache->parts;
    SHEAF__TRY(sheaf__memory_grow(sheaf__pool_memory(cache->pool), &parts,
                                  &cache->parts_capacity, d->n_steps, sizeof *cache->parts));
    d->parts = cache->parts = parts;
    for (uint32_t i = 0; i < d->n_steps; i++) {
        const sheaf_step *step = &d->steps[i];
        part *p = &d->parts[d->n_parts++];
        memset(p, 0, sizeof *p);
        p->sequence = step->sequence;
        p->n = step->n;
        if (step->sequence == NULL) SHEAF__TRY(match_part(d, step, p));
        SHEAF__TRY(count_part(d, i));
    }
    return SHEAF_OK;
}

/* Lets go of everything that has begun. */
static void undo(door *d)
{
    for (uint32_t i = 0; i < d->n_parts; i++) {
        part *p = &d->parts[i];
        let_tail_go(d, p);
        if (p->made) sheaf_sequence_destroy(p->sequence);
        if (p->made || !p->extended) continue;
        sheaf_status st = sheaf_sequence_commit(p->sequence, 0, NULL);
        SHEAF__ASSERT(st == SHEAF_OK);
        (void)st;
    }
}

/* ---- room -------------------------------------------------------------------------------- */

/* The need in the pool's terms: what is more than it can count is more than it has. */
static void need_of(const door *d, uint32_t *counts)
{
    for (uint32_t g = 0; g < d->cache->n_groups; g++)
        counts[g] = (uint32_t)sheaf__min_u64(d->need[g], UINT32_MAX);
}

static bool can_have_room(const door *d, bool revoke)
{
    uint32_t counts[SHEAF_MAX_GROUPS];
    need_of(d, counts);
    return sheaf__ledger_can_make_room(d->cache, revoke, counts);
}

/* Gives up the tails, whose sources may then go too, and counts again. */
static sheaf_status leave_tails(door *d)
{
    memset(d->need, 0, sizeof d->need);
    for (uint32_t i = 0; i < d->n_parts; i++) {
        part *p = &d->parts[i];
        let_tail_go(d, p);
        p->walk.tail = 0;
        p->walk.tail_node = NULL;
        if (p->made) set_n(&d->steps[i], p);
        SHEAF__TRY(count_part(d, i));
    }
    return SHEAF_OK;
}

/* Whether there is room or can be made: with the tails, else without them, and by revoking pins last.
 * SHEAF_FULL. */
static sheaf_status find_room(door *d)
{
    if (can_have_room(d, false)) return SHEAF_OK;
    SHEAF__TRY(leave_tails(d));
    return can_have_room(d, true) ? SHEAF_OK : SHEAF_FULL;
}

/* The most blocks of one group that the pool could hand out now. */
static uint64_t most_free(const sheaf_pool *pool, uint32_t group)
{
    uint64_t low = 0, high = UINT32_MAX;
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;
        uint32_t counts[SHEAF_MAX_GROUPS] = {0};
        counts[group] = (uint32_t)middle;
        if (sheaf_pool_can_acquire(pool, counts) == SHEAF_OK)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void find_shortage(const door *d, sheaf_shortage *out)
{
    sheaf_prefix *cache = d->cache;
    *out = (sheaf_shortage)SHEAF_SHORTAGE_INIT;
    out->n_groups = cache->n_groups;
    sheaf__ledger_evictable(cache, true, out->possible);
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        out->needed[g] = d->need[g];
        out->possible[g] += most_free(cache->pool, g);
    }
}

/* Enters the refusal into the ledger. */
static void refuse(const door *d, const sheaf_shortage *shortage)
{
    uint64_t needed = 0, possible = 0, tokens = 0;
    for (uint32_t g = 0; g < d->cache->n_groups; g++) {
        uint64_t bytes = sheaf__pool_layout(d->cache->pool)->groups[g].block_bytes;
        needed += shortage->needed[g] * bytes;
        possible += shortage->possible[g] * bytes;
    }
    for (uint32_t i = 0; i < d->n_parts; i++) tokens += d->parts[i].n;
    sheaf__ledger_refuse(d->cache, SHEAF_REFUSED_ROOM, needed, possible, tokens);
}

/* ---- take -------------------------------------------------------------------------------- */

static sheaf_status copy_tail(door *d, uint32_t index)
{
    const part *p = &d->parts[index];
    const int32_t *tokens = d->steps[index].prompt->tokens;
    return sheaf__walk_copy_tail(d->cache, &p->walk, tokens, p->sequence);
}

static sheaf_status take(door *d)
{
    sheaf_prefix *cache = d->cache;
    uint32_t counts[SHEAF_MAX_GROUPS];
    SHEAF__TRY(find_room(d));
    need_of(d, counts);
    for (uint32_t i = 0; i < d->n_parts; i++)
        if (d->parts[i].made) sheaf__walk_touch(cache, &d->parts[i].walk);
    if (!sheaf__ledger_make_room(cache, counts)) return SHEAF_FULL;
    SHEAF__TRY(sheaf__ledger_presize(cache, counts));
    for (uint32_t i = 0; i < d->n_parts; i++) {
        part *p = &d->parts[i];
        if (p->walk.tail != 0) SHEAF__TRY(copy_tail(d, i));
        let_tail_go(d, p);
        SHEAF__TRY(sheaf_sequence_extend(p->sequence, p->n));
        p->extended = 1;
    }
    return SHEAF_OK;
}

/* ---- calls ------------------------------------------------------------------------------- */

static void tell_match(sheaf_prefix *cache, const part *p, sheaf_step *step)
{
    const sheaf__walk *walk = &p->walk;
    sheaf_match match = SHEAF_MATCH_INIT;
    match.length = walk->length + walk->tail;
    match.shared = walk->length;
    match.copied = walk->tail;
    match.cached_tokens = match.length;
    if (match.length == step->prompt->n_tokens && match.length != 0) match.cached_tokens--;
    sheaf__walk_count(cache, step->prompt, &match);
    step->match = match;
}

static void hand_over(const door *d, sheaf_step *steps)
{
    for (uint32_t i = 0; i < d->n_steps; i++) {
        const part *p = &d->parts[i];
        if (p->made) tell_match(d->cache, p, &steps[i]);
        steps[i].sequence = p->sequence;
        steps[i].reserved = p->n;
    }
}

static sheaf_status check_call(const sheaf_prefix *cache, const sheaf_step *steps,
                               uint32_t n_steps, const sheaf_shortage *shortage)
{
    if (cache == NULL || (steps == NULL && n_steps != 0)) return SHEAF_E_INVALID;
    if (shortage != NULL && shortage->struct_size < sizeof shortage->struct_size)
        return SHEAF_E_INVALID;
    return SHEAF_OK;
}

/* Ends a call that was not served: what was lacking is found out while all is still held. */
static void turn_away(door *d, sheaf_status st, bool enter, sheaf_shortage *out)
{
    sheaf_shortage shortage;
    if (st == SHEAF_FULL) {
        find_shortage(d, &shortage);
        if (enter) refuse(d, &shortage);
        sheaf_status given =
            out != NULL ? sheaf__struct_give(out, &shortage, sizeof shortage) : SHEAF_OK;
        SHEAF__ASSERT(given == SHEAF_OK);
        (void)given;
    }
    undo(d);
    sheaf__pool_publish(d->cache->pool);
}

sheaf_status sheaf_prefix_reserve(sheaf_prefix *cache, sheaf_step *steps, uint32_t n_steps,
                                  sheaf_shortage *shortage)
{
    SHEAF__TRY(check_call(cache, steps, n_steps, shortage));
    door d = {.cache = cache, .steps = steps, .n_steps = n_steps};
    sheaf__prefix_enter(cache);
    sheaf__ledger_expire(cache);
    sheaf_status st = prepare(&d);
    if (st == SHEAF_OK) st = take(&d);
    if (st == SHEAF_OK)
        hand_over(&d, steps);
    else
        turn_away(&d, st, true, shortage);
    sheaf__prefix_leave(cache);
    return st;
}

sheaf_status sheaf_prefix_can_reserve(sheaf_prefix *cache, const sheaf_step *steps,
                                      uint32_t n_steps, sheaf_shortage *shortage)
{
    SHEAF__TRY(check_call(cache, steps, n_steps, shortage));
    door d = {.cache = cache, .steps = steps, .n_steps = n_steps};
    sheaf__prefix_enter(cache);
    sheaf_status st = prepare(&d);
    if (st == SHEAF_OK) st = find_room(&d);
    turn_away(&d, st, false, shortage);
    sheaf__prefix_leave(cache);
    return st;
}

void sheaf__reserve_close(sheaf_prefix *cache)
{
    sheaf__memory_free(sheaf__pool_memory(cache->pool), cache->parts, cache->parts_capacity,
                       sizeof *cache->parts);
    cache->parts = NULL;
    cache->parts_capacity = 0;
}
