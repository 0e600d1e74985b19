/* cache/match.c - how far tokens lead into the tree, and taking hold of what is found.
 *
 * Down from the namespace's root by whole blocks; tokens are compared, always. Where the tokens and
 * the tree part, one block may still begin alike: it cannot be shared, but copied.
 *
 *     tokens     a b c d e f g h i j k l m n
 *     tree      [abcd efgh]--+--[ijkl mnop]    whole: "ijkl"; then 2 positions in common with "mnop"
 *                            +--[ijkx]
 *
 * In a group with a window w the length L needs positions [L - w, L) alone: on the way down every
 * group keeps where its unbroken run of resident blocks began, and the last block's end that all
 * windows allow is the answer. A tail counts only after a length that is the path's whole.
 */
#include "cache/tree.h"

#include <string.h>

/* ---- the way down ------------------------------------------------------------------------ */

/* Where each group's unbroken run of resident blocks began, in blocks. */
typedef struct runs {
    uint32_t begin[SHEAF_MAX_GROUPS];
    bool windows; /* some group has one: otherwise every block is resident */
} runs;

static bool any_window(const sheaf_prefix *cache)
{
    bool any = false;
    for (uint32_t g = 0; g < cache->n_groups; g++)
        any = any || sheaf__prefix_window(cache, g) != 0;
    return any;
}

/* Goes over the first n blocks of a node; moves out->whole to the last end that windows allow. */
static void follow_runs(const sheaf_prefix *cache, const sheaf__node *node, uint32_t n,
                        runs *run, sheaf__path *out)
{
    uint32_t bt = cache->block_tokens, base = node->start / bt;
    if (!run->windows) {
        out->whole = node->start + n * bt;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = (base + i + 1) * bt;
        bool allowed = true;
        for (uint32_t g = 0; g < cache->n_groups; g++) {
            if (sheaf__node_place(node, g, i)->state != SHEAF__BLOCK_RESIDENT)
                run->begin[g] = base + i + 1;
            uint32_t begin = sheaf__visible_begin(end, sheaf__prefix_window(cache, g));
            allowed = allowed && (uint64_t)run->begin[g] * bt <= begin;
        }
        if (allowed) out->whole = end;
    }
}

/* The child that begins with the next block; null: the best of them is `near`. */
static sheaf__node *next_child(const sheaf_prefix *cache, const sheaf__node *node,
                               const int32_t *tokens, uint32_t rest, sheaf__path *out)
{
    uint32_t bt = cache->block_tokens;
    sheaf__node *child = sheaf__node_of_sibling(
        sheaf__siblings_nearest(&node->children, tokens, rest < bt ? rest : bt, &out->common));
    if (child != NULL && out->common == bt) return child;
    out->near = child;
    out->near_block = 0;
    return NULL;
}

void sheaf__path_find(const sheaf_prefix *cache, const sheaf_key *space, const int32_t *tokens,
                      uint32_t limit, sheaf__path *out)
{
    uint32_t bt = cache->block_tokens;
    runs run = {.windows = any_window(cache)};
    *out = (sheaf__path){.root = sheaf__space_find(cache, space)};
    if (out->root == NULL) return;
    sheaf__node *at = out->root;
    for (;;) {
        uint32_t rest = limit - out->length;
        const int32_t *next = tokens + out->length;
        sheaf__node *child = next_child(cache, at, next, rest, out);
        if (child == NULL) return;
        uint32_t n = rest < child->n_tokens ? rest : child->n_tokens;
        uint32_t same =
            bt + sheaf__tokens_common(sheaf__node_tokens(child) + bt, next + bt, n - bt);
        out->node = child;
        out->n_blocks = same / bt;
        out->common = same % bt;
        out->length += out->n_blocks * bt;
        follow_runs(cache, child, out->n_blocks, &run, out);
        if (out->n_blocks < child->n_blocks) {
            out->near = out->common != 0 ? child : NULL;
            out->near_block = out->n_blocks;
            return;
        }
        at = child;
    }
}

/* ---- walks ------------------------------------------------------------------------------- */

/* The handles of a node's block in every group. False: not resident in all. */
static bool sources_of(const sheaf_prefix *cache, const sheaf__node *node, uint32_t index,
                       sheaf_block *sources)
{
    bool all = true;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        sources[g] = sheaf__node_block(node, g, index);
        all = all && sources[g].row != SHEAF_ROW_NONE;
    }
    return all;
}

void sheaf__walk_prompt(const sheaf_prefix *cache, const sheaf_key *space,
                        const int32_t *tokens, uint32_t limit, sheaf__walk *out)
{
    sheaf__path path;
    sheaf__path_find(cache, space, tokens, limit, &path);
    *out = (sheaf__walk){.node = path.node, .n_blocks = path.n_blocks, .length = path.whole};
    if (path.whole != path.length || path.near == NULL) return;
    if (!sources_of(cache, path.near, path.near_block, out->tail_source)) return;
    out->tail = path.common;
    out->tail_node = path.near;
    out->tail_block = path.near_block;
}

void sheaf__walk_touch(sheaf_prefix *cache, const sheaf__walk *walk)
{
    if (walk->tail_node != NULL)
        sheaf__ledger_touch(cache, walk->tail_node);
    else if (walk->length != 0)
        sheaf__ledger_touch(cache, walk->node);
}

/* ---- holding ----------------------------------------------------------------------------- */

typedef bool block_fn(void *ctx, uint32_t number, sheaf_block block);

/* Calls fn for the blocks that a sequence of this length needs, the last one first, until it returns
 * false: number is the block's, from position 0 on. */
static bool for_needed(const sheaf_prefix *cache, const sheaf__walk *walk, block_fn *fn,
                       void *ctx)
{
    uint32_t bt = cache->block_tokens;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        uint32_t first =
            sheaf__visible_begin(walk->length, sheaf__prefix_window(cache, g)) / bt;
        const sheaf__node *node = walk->node;
        for (uint32_t number = walk->length / bt; number > first; number--) {
            while (node->start / bt >= number) node = node->parent;
            sheaf_block block = sheaf__node_block(node, g, number - 1 - node->start / bt);
            if (!fn(ctx, number - 1, block)) return false;
        }
    }
    return true;
}

static bool has_room(void *ctx, uint32_t number, sheaf_block block)
{
    (void)number;
    const sheaf__record *record = sheaf__pool_live(ctx, block);
    SHEAF__ASSERT(record != NULL);
    return record->total < UINT32_MAX;
}

/* Adds a reference of the sequence's. Its tables are as long as they will be. */
static bool hold_block(void *ctx, uint32_t number, sheaf_block block)
{
    sheaf_sequence *seq = ctx;
    sheaf__table *table = &seq->room.tables[block.group];
    sheaf_status st = sheaf__block_retain(seq->pool, block, SHEAF_OWNER_TABLE);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
    sheaf__table_set(table, number - table->first_block, block);
    return true;
}

sheaf_status sheaf__walk_hold(sheaf_prefix *cache, const sheaf__walk *walk,
                              const int32_t *tokens, sheaf_sequence **out)
{
    if (!for_needed(cache, walk, has_room, cache->pool)) return SHEAF_E_OVERFLOW;
    sheaf_sequence *seq = NULL;
    uint32_t bt = cache->block_tokens;
    SHEAF__TRY(sheaf__sequence_new(cache->pool, walk->length + walk->tail, &seq));
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        sheaf__table *table = &seq->room.tables[g];
        table->first_block =
            sheaf__visible_begin(walk->length, sheaf__prefix_window(cache, g)) / bt;
        table->n_blocks = walk->length / bt - table->first_block;
    }
    for_needed(cache, walk, hold_block, seq);
    if (walk->length != 0)
        memcpy(seq->room.tokens, tokens, walk->length * sizeof *seq->room.tokens);
    sheaf__progress_settle(&seq->progress, walk->length);
    sheaf__sequence_changed(seq);
    *out = seq;
    return SHEAF_OK;
}

/* ---- the tail ---------------------------------------------------------------------------- */

static void unkeep_first(sheaf_prefix *cache, const sheaf__walk *walk, uint32_t n)
{
    for (uint32_t g = 0; g < n; g++) {
        sheaf_status st =
            sheaf__block_release(cache->pool, walk->tail_source[g], SHEAF_OWNER_IO);
        SHEAF__ASSERT(st == SHEAF_OK);
        (void)st;
    }
}

sheaf_status sheaf__walk_keep(sheaf_prefix *cache, const sheaf__walk *walk)
{
    for (uint32_t g = 0; walk->tail != 0 && g < cache->n_groups; g++) {
        sheaf_status st =
            sheaf__block_retain(cache->pool, walk->tail_source[g], SHEAF_OWNER_IO);
        if (st == SHEAF_OK) continue;
        unkeep_first(cache, walk, g);
        return st;
    }
    return SHEAF_OK;
}

void sheaf__walk_unkeep(sheaf_prefix *cache, const sheaf__walk *walk)
{
    if (walk->tail != 0) unkeep_first(cache, walk, cache->n_groups);
}

sheaf_status sheaf__walk_copy_tail(sheaf_prefix *cache, const sheaf__walk *walk,
                                   const int32_t *tokens, sheaf_sequence *seq)
{
    if (walk->tail == 0) return SHEAF_OK;
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    sheaf_block fresh[SHEAF_MAX_GROUPS];
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        if (sheaf__pool_live(cache->pool, walk->tail_source[g]) == NULL) return SHEAF_E_STALE;
        counts[g] = 1;
    }
    SHEAF__TRY(sheaf_pool_acquire(cache->pool, counts, SHEAF_OWNER_TABLE, fresh));
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        sheaf_status st = sheaf_pool_copy(cache->pool, walk->tail_source[g], fresh[g]);
        SHEAF__ASSERT(st == SHEAF_OK ||
                      st == SHEAF_E_DEVICE); /* the latter: the pool's fault */
        (void)st;
        sheaf__table_push(&seq->room.tables[g], fresh[g]);
    }
    memcpy(seq->room.tokens + walk->length, tokens + walk->length,
           walk->tail * sizeof *seq->room.tokens);
    sheaf__progress_settle(&seq->progress, walk->length + walk->tail);
    sheaf__sequence_changed(seq);
    return SHEAF_OK;
}

/* Copies the tail, with room made for it if there is none. When there is none to be made without
 * revoking a pin, or the source cannot be kept, the sequence goes without. SHEAF_E_NO_MEMORY. */
static sheaf_status add_tail(sheaf_prefix *cache, const sheaf__walk *walk,
                             const int32_t *tokens, sheaf_sequence *seq)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    for (uint32_t g = 0; g < cache->n_groups; g++) counts[g] = 1;
    if (sheaf__walk_keep(cache, walk) != SHEAF_OK) return SHEAF_OK;
    sheaf_status st = sheaf__walk_copy_tail(cache, walk, tokens, seq);
    if (st == SHEAF_FULL && sheaf__ledger_can_make_room(cache, false, counts) &&
        sheaf__ledger_make_room(cache, counts))
        st = sheaf__walk_copy_tail(cache, walk, tokens, seq);
    sheaf__walk_unkeep(cache, walk);
    return st == SHEAF_FULL ? SHEAF_OK : st;
}

/* ---- the calls --------------------------------------------------------------------------- */

static uint32_t limit_of(const sheaf_prompt *prompt)
{
    bool less = prompt->max_match != 0 && prompt->max_match < prompt->n_tokens;
    return less ? prompt->max_match : prompt->n_tokens;
}

static sheaf_match match_of(const sheaf_prompt *prompt, uint32_t shared, uint32_t copied)
{
    sheaf_match match = SHEAF_MATCH_INIT;
    match.shared = shared;
    match.copied = copied;
    match.length = shared + copied;
    match.cached_tokens = match.length;
    if (match.length == prompt->n_tokens && match.length != 0) match.cached_tokens--;
    return match;
}

sheaf_status sheaf_prefix_peek(const sheaf_prefix *cache, const sheaf_prompt *prompt,
                               sheaf_match *out)
{
    if (cache == NULL || out == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__prompt_check(prompt));
    sheaf__walk walk;
    sheaf__walk_prompt(cache, prompt->space, prompt->tokens, limit_of(prompt), &walk);
    sheaf_match match = match_of(prompt, walk.length, walk.tail);
    return sheaf__struct_give(out, &match, sizeof match);
}

static sheaf_status find_and_hold(sheaf_prefix *cache, const sheaf_prompt *prompt,
                                  sheaf_sequence **out, sheaf_match *match)
{
    sheaf__walk walk;
    sheaf_sequence *seq = NULL;
    sheaf__walk_prompt(cache, prompt->space, prompt->tokens, limit_of(prompt), &walk);
    SHEAF__TRY(sheaf__walk_hold(cache, &walk, prompt->tokens, &seq));
    sheaf__walk_touch(cache, &walk);
    sheaf_status st = add_tail(cache, &walk, prompt->tokens, seq);
    if (st != SHEAF_OK) {
        sheaf_sequence_destroy(seq);
        return st;
    }
    *match = match_of(prompt, walk.length, sheaf_sequence_length(seq) - walk.length);
    sheaf__walk_count(cache, prompt, match);
    *out = seq;
    return SHEAF_OK;
}

void sheaf__walk_count(sheaf_prefix *cache, const sheaf_prompt *prompt,
                       const sheaf_match *match)
{
    sheaf_prefix_stats *stats = &cache->stats;
    stats->lookups++;
    stats->hits += match->length != 0;
    stats->lookup_tokens += prompt->n_tokens;
    stats->hit_tokens += match->length;
    stats->copied_tokens += match->copied;
}

sheaf_status sheaf_prefix_match(sheaf_prefix *cache, const sheaf_prompt *prompt,
                                sheaf_sequence **out, sheaf_match *match)
{
    if (cache == NULL || out == NULL) return SHEAF_E_INVALID;
    if (match != NULL && match->struct_size < sizeof match->struct_size) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__prompt_check(prompt));
    sheaf_match found;
    sheaf__prefix_enter(cache);
    sheaf__ledger_expire(cache);
    sheaf_status st = find_and_hold(cache, prompt, out, &found);
    sheaf__prefix_leave(cache);
    if (st != SHEAF_OK || match == NULL) return st;
    return sheaf__struct_give(match, &found, sizeof found);
}

sheaf_status sheaf_prefix_find(const sheaf_prefix *cache, const sheaf_key *key,
                               sheaf_block *blocks)
{
    if (cache == NULL || key == NULL || blocks == NULL) return SHEAF_E_INVALID;
    uint32_t index;
    const sheaf__node *node = sheaf__index_find(cache, key, &index);
    if (node == NULL) return SHEAF_MISS;
    sources_of(cache, node, index, blocks);
    return SHEAF_OK;
}
