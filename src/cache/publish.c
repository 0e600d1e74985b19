/* cache/publish.c - what a sequence has computed becomes part of the tree.
 *
 * What is there already stays. New blocks come where the sequence's tokens and the tree part:
 *
 *     the tree                      published          afterwards
 *     [abcd]                        abcd efgh          [abcd efgh]            at the end of a leaf
 *     [abcd] of another session     abcd efgh          [abcd]--[efgh]         a child
 *     [abcd efgh]                   abcd xxxx          [abcd]--+--[efgh]      split, and a child
 *                                                              +--[xxxx]
 *     [abcd ef]                     abcd efgh ijkl     [abcd efgh ijkl]       a tail is continued: its
 *                                                                             block is replaced
 *
 * A leaf grows only for the session and at the priority that it has, and while no pin names it;
 * otherwise what follows becomes its child. All that can fail comes before anything changes.
 */
#include "cache/tree.h"

#include <string.h>

typedef struct plan {
    sheaf_prefix *cache;
    const sheaf_prompt *prompt;
    sheaf_sequence *seq;
    bool tail;        /* a partial last block too */
    uint32_t n;       /* positions to publish */
    sheaf__path path; /* of the sequence, in the tree */
    uint32_t first;   /* new blocks: [first, end), counted from position 0 */
    uint32_t end;
    sheaf__node *grows; /* a leaf that gets the first n_grown of them; null: none does */
    uint32_t n_grown;
    bool replaces;      /* the first takes the place of a partial last block of `grows` */
    bool splits;        /* path.node, after its path.n_blocks */
    sheaf__node *child; /* made for the rest; null: there is none */
    sheaf__node *root;  /* made for a new namespace */
} plan;

/* ---- what is to be published ------------------------------------------------------------- */

/* Positions: whole blocks, and with p->tail a partial last one, of the tokens that are named. A partial
 * block that is being written stays out: nobody else may hold it. What the tree has too is named. */
static uint32_t count_positions(const plan *p)
{
    const int32_t *tokens = sheaf_sequence_tokens(p->seq);
    uint32_t length = sheaf_sequence_length(p->seq), n = p->path.length;
    while (n < length && tokens[n] != SHEAF_TOKEN_NONE) n++;
    bool whole_only = !p->tail || sheaf_sequence_reserved(p->seq) != 0;
    return whole_only ? n - n % p->cache->block_tokens : n;
}

static bool may_grow(const plan *p, const sheaf__node *leaf)
{
    return sheaf__node_is_leaf(leaf) && leaf->n_pins == 0 &&
           leaf->session == p->prompt->session && leaf->priority == p->prompt->priority;
}

/* Positions of a node's block i. */
static uint32_t positions_in(const plan *p, const sheaf__node *node, uint32_t i)
{
    uint32_t bt = p->cache->block_tokens, rest = node->n_tokens - i * bt;
    return rest < bt ? rest : bt;
}

/* Decides where the new blocks come. */
static void lay_out(plan *p)
{
    const sheaf__path *path = &p->path;
    uint32_t rest = p->n - path->length, bt = p->cache->block_tokens;
    p->first = path->length / bt;
    p->end = sheaf__blocks_of(p->n, bt);
    if (path->near != NULL && path->common == rest)
        p->end = p->first; /* a tail that is there */
    uint32_t n = p->end - p->first;
    if (n == 0) return;
    p->replaces =
        path->near != NULL && path->common == positions_in(p, path->near, path->near_block);
    if (p->replaces) {
        p->grows = path->near;
        p->n_grown = may_grow(p, path->near) ? n : 1;
    } else if (path->node != NULL && path->n_blocks < path->node->n_blocks) {
        p->splits = true;
    } else if (path->node != NULL && may_grow(p, path->node)) {
        p->grows = path->node;
        p->n_grown = n;
    }
}

/* ---- what is refused --------------------------------------------------------------------- */

/* Whether the path has this block in a group. */
static bool path_has(const plan *p, uint32_t group, uint32_t number)
{
    uint32_t bt = p->cache->block_tokens;
    if (number >= p->first) return false;
    const sheaf__node *node = p->path.node;
    while (node->start / bt > number) node = node->parent;
    return sheaf__node_block(node, group, number - node->start / bt).row != SHEAF_ROW_NONE;
}

/* Whether what is published can be matched up to its end: by blocks of the tree and of the sequence,
 * windows have all that they need. */
static bool can_be_matched(const plan *p)
{
    for (uint32_t g = 0; g < p->cache->n_groups; g++) {
        uint32_t first = sheaf__prefix_first_needed(p->cache, g, p->n);
        for (uint32_t i = first; i < p->seq->room.tables[g].first_block; i++)
            if (!path_has(p, g, i)) return false;
    }
    return true;
}

static sheaf_status refuse(const plan *p)
{
    sheaf_prefix *cache = p->cache;
    uint32_t n = p->n > p->prompt->n_tokens ? p->n : p->prompt->n_tokens;
    uint64_t bytes = sheaf__prefix_entry_bytes(cache, n),
             capacity = cache->limits.capacity_bytes;
    if (bytes > capacity)
        return sheaf__ledger_refuse(cache, SHEAF_REFUSED_TOO_LARGE, bytes, capacity, n);
    if (p->first != p->end && !can_be_matched(p))
        return sheaf__ledger_refuse(cache, SHEAF_REFUSED_SLID, bytes, capacity, p->n);
    return SHEAF_OK;
}

/* ---- all that can fail ------------------------------------------------------------------- */

/* The sequence's block of this number; with row SHEAF_ROW_NONE when it has let go of it. */
static sheaf_block block_of(const plan *p, uint32_t group, uint32_t number)
{
    const sheaf__table *table = &p->seq->room.tables[group];
    if (number < table->first_block || number >= table->first_block + table->n_blocks)
        return (sheaf_block){group, SHEAF_ROW_NONE, 0};
    return sheaf__table_block(table, group, number - table->first_block);
}

/* Whether the block is the partial one whose place it takes: one sequence has gone on in it, and of
 * another it was the tail. */
static bool is_replaced(const plan *p, sheaf_block block)
{
    if (!p->replaces) return false;
    return sheaf__node_block(p->path.near, block.group, p->path.near_block).row == block.row;
}

/* A block may be taken once: what the tree names already, it names for other tokens. */
static sheaf_status may_take(const plan *p, sheaf_block block)
{
    const sheaf__record *record = sheaf__pool_live(p->cache->pool, block);
    SHEAF__ASSERT(record != NULL);
    if (is_replaced(p, block)) return SHEAF_OK;
    if (record->by_kind[SHEAF_OWNER_TREE] != 0) return SHEAF_E_FOREIGN;
    return record->total < UINT32_MAX ? SHEAF_OK : SHEAF_E_OVERFLOW;
}

static sheaf_status check_blocks(const plan *p)
{
    for (uint32_t g = 0; g < p->cache->n_groups; g++)
        for (uint32_t i = p->first; i < p->end; i++) {
            sheaf_block block = block_of(p, g, i);
            if (block.row != SHEAF_ROW_NONE) SHEAF__TRY(may_take(p, block));
        }
    return SHEAF_OK;
}

/* Where in `grows` the new blocks begin. */
static uint32_t grows_at(const plan *p)
{
    return p->grows->n_blocks - p->replaces;
}

/* Twigs that a child takes: below a node that is split it is one of two. */
static uint32_t twigs_needed(const plan *p)
{
    if (p->splits) return 1;
    const sheaf__node *parent = p->grows != NULL ? p->grows : p->path.node;
    if (parent == NULL) parent = p->path.root;
    return parent != NULL ? sheaf__siblings_need(&parent->children) : 0;
}

static sheaf_status get_memory(plan *p)
{
    sheaf_prefix *cache = p->cache;
    uint32_t n = p->end - p->first;
    if (p->grows != NULL)
        SHEAF__TRY(sheaf__node_reserve(cache, p->grows, grows_at(p) + p->n_grown));
    if (n > p->n_grown) {
        p->child = sheaf__node_create(cache, n - p->n_grown);
        if (p->child == NULL) return SHEAF_E_NO_MEMORY;
        SHEAF__TRY(sheaf__twigs_reserve(&cache->twigs, twigs_needed(p)));
    }
    if (p->path.root == NULL) {
        p->root = sheaf__node_create(cache, 0);
        if (p->root == NULL) return SHEAF_E_NO_MEMORY;
        SHEAF__TRY(sheaf__space_reserve(cache));
    }
    return sheaf__index_reserve(cache, n);
}

/* The keys of the new whole blocks, where they will be needed; nobody looks there yet. Their slots are
 * fetched meanwhile. */
static sheaf_status make_keys(plan *p)
{
    uint32_t bt = p->cache->block_tokens, whole = p->n / bt;
    const int32_t *tokens = sheaf_sequence_tokens(p->seq);
    const sheaf_key *before = p->prompt->space;
    if (p->path.node != NULL) before = &p->path.node->keys[p->path.n_blocks - 1];
    for (uint32_t i = p->first; i < whole; i++) {
        uint32_t n = i - p->first;
        sheaf_key *key =
            n < p->n_grown ? &p->grows->keys[grows_at(p) + n] : &p->child->keys[n - p->n_grown];
        SHEAF__TRY(sheaf_key_next(before, tokens + (uint64_t)i * bt, bt, key));
        sheaf__index_fetch(p->cache, key);
        before = key;
    }
    return SHEAF_OK;
}

static sheaf_status prepare(plan *p)
{
    if (p->first == p->end) return SHEAF_OK;
    sheaf__node *upper = NULL;
    sheaf_status st = check_blocks(p);
    if (st == SHEAF_OK) st = get_memory(p);
    if (st == SHEAF_OK) st = make_keys(p);
    if (st == SHEAF_OK && p->splits)
        st = sheaf__tree_split(p->cache, p->path.node, p->path.n_blocks, &upper);
    if (st == SHEAF_OK) {
        if (upper != NULL) p->path.node = upper;
        return SHEAF_OK;
    }
    if (p->child != NULL) sheaf__node_destroy(p->cache, p->child);
    if (p->root != NULL) sheaf__node_destroy(p->cache, p->root);
    return st;
}

/* ---- all that cannot --------------------------------------------------------------------- */

/* Pinned bytes never pass the capacity: a window's block that would make them is left out. */
static bool has_place(const sheaf_prefix *cache, const sheaf__node *node, uint32_t group)
{
    if (node->pinned_below == 0 || sheaf__prefix_window(cache, group) == 0) return true;
    uint64_t bytes = sheaf__prefix_block_bytes(cache, group);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        bytes += cache->pinned_blocks[g] * sheaf__prefix_block_bytes(cache, g);
    return bytes <= cache->limits.capacity_bytes;
}

/* Writes the sequence's blocks from `number` on into places [at, at + n) of a node. */
static void fill(plan *p, sheaf__node *node, uint32_t at, uint32_t number, uint32_t n)
{
    sheaf_prefix *cache = p->cache;
    uint32_t bt = cache->block_tokens, from = number * bt;
    uint32_t end = from + n * bt < p->n ? from + n * bt : p->n;
    memcpy(sheaf__node_tokens(node) + (uint64_t)at * bt, sheaf_sequence_tokens(p->seq) + from,
           (end - from) * sizeof(int32_t));
    cache->stats.tokens += at * bt + (end - from) - node->n_tokens;
    cache->stats.inserted_tokens += at * bt + (end - from) - node->n_tokens;
    sheaf__node_set_length(cache, node, at * bt + (end - from));
    for (uint32_t g = 0; g < cache->n_groups; g++)
        for (uint32_t i = 0; i < n; i++) {
            sheaf_block block = block_of(p, g, number + i);
            *sheaf__node_place(node, g, at + i) =
                (sheaf__place){SHEAF_ROW_NONE, 0, SHEAF__BLOCK_ABSENT};
            if (block.row == SHEAF_ROW_NONE || !has_place(cache, node, g)) continue;
            sheaf__tree_take(cache, node, at + i, block);
            cache->stats.inserted_blocks++;
        }
}

/* Enters the whole blocks among places [at, n_blocks) of a node, and tells. */
static void announce(sheaf_prefix *cache, sheaf__node *node, uint32_t at)
{
    uint32_t whole = sheaf__node_whole(cache, node);
    if (whole <= at) return;
    sheaf__index_insert(cache, node, at, whole - at);
    sheaf__event_stored(cache, node, at, whole - at);
}

static void grow_leaf(plan *p)
{
    uint32_t at = grows_at(p);
    for (uint32_t g = 0; p->replaces && g < p->cache->n_groups; g++) {
        bool there = sheaf__node_block(p->grows, g, at).row != SHEAF_ROW_NONE;
        p->cache->stats.replaced_blocks += there;
        sheaf__tree_let_go(p->cache, p->grows, g, at);
    }
    fill(p, p->grows, at, p->first, p->n_grown);
    announce(p->cache, p->grows, at);
}

static sheaf__node *root_of(plan *p)
{
    if (p->root == NULL) return p->path.root;
    p->root->before = *p->prompt->space;
    sheaf__space_insert(p->cache, p->root);
    return p->root;
}

static void add_child(plan *p)
{
    sheaf__node *child = p->child, *parent = p->grows != NULL ? p->grows : p->path.node;
    if (parent == NULL) parent = root_of(p);
    uint32_t whole = sheaf__node_whole(p->cache, parent);
    child->before = *sheaf__node_key_before(parent, whole);
    child->start = sheaf__node_end(parent);
    child->session = p->prompt->session;
    child->priority = p->prompt->priority;
    fill(p, child, 0, p->first + p->n_grown, p->end - p->first - p->n_grown);
    sheaf__tree_attach(p->cache, parent, child);
    announce(p->cache, child, 0);
}

/* Blocks of the path: counts those that the sequence has twice, each once in its life, and takes those
 * that a window group of the tree lacks. */
static bool compare_path(plan *p)
{
    sheaf_prefix *cache = p->cache;
    uint32_t n = p->path.n_blocks, compared = p->seq->compared / cache->block_tokens;
    bool filled = false;
    for (sheaf__node *node = p->path.node; node != NULL && node->parent != NULL;
         node = node->parent, n = node->n_blocks)
        for (uint32_t g = 0; g < cache->n_groups; g++)
            for (uint32_t i = 0; i < n; i++) {
                sheaf_block has = sheaf__node_block(node, g, i);
                uint32_t number = node->start / cache->block_tokens + i;
                sheaf_block block = block_of(p, g, number);
                if (block.row == SHEAF_ROW_NONE || block.row == has.row) continue;
                if (has.row != SHEAF_ROW_NONE) {
                    cache->stats.duplicate_blocks += number >= compared;
                } else if (may_take(p, block) == SHEAF_OK && has_place(cache, node, g)) {
                    sheaf__tree_take(cache, node, i, block);
                    cache->stats.inserted_blocks++;
                    filled = true;
                }
            }
    return filled;
}

/* The node where the published positions end. */
static sheaf__node *last_node(const plan *p)
{
    if (p->child != NULL) return p->child;
    if (p->grows != NULL) return p->grows;
    return p->path.length < p->n ? p->path.near : p->path.node;
}

/* Whose it is from now on: a node that ends where the publication does is its session's. A node never
 * gets a lower priority. */
static void sign(plan *p, sheaf__node *node)
{
    if (sheaf__node_end(node) == p->n) node->session = p->prompt->session;
    if (node->priority < p->prompt->priority) node->priority = p->prompt->priority;
    sheaf__ledger_touch(p->cache, node);
    sheaf__order_relevel(p->cache, node); /* used last, so found at once in the new list */
}

static sheaf_status publish(plan *p)
{
    sheaf__path_find(p->cache, p->prompt->space, sheaf_sequence_tokens(p->seq),
                     sheaf_sequence_length(p->seq), &p->path);
    p->n = count_positions(p);
    lay_out(p);
    SHEAF__TRY(refuse(p));
    SHEAF__TRY(prepare(p));
    bool added = compare_path(p) || p->first != p->end;
    if (p->grows != NULL) grow_leaf(p);
    if (p->child != NULL) add_child(p);
    p->cache->stats.inserts += added;
    p->seq->compared = p->n;
    sheaf__node *last = last_node(p);
    if (last != NULL) sign(p, last);
    sheaf__claims_progress(p->cache, p->prompt->ticket, p->n);
    return SHEAF_OK;
}

/* ---- the call ---------------------------------------------------------------------------- */

sheaf_status sheaf_prefix_publish(sheaf_prefix *cache, const sheaf_prompt *prompt,
                                  sheaf_sequence *seq, uint32_t flags, uint32_t *n_published)
{
    if (cache == NULL || seq == NULL || seq->pool != cache->pool) return SHEAF_E_INVALID;
    if (prompt == NULL || prompt->struct_size < sizeof *prompt) return SHEAF_E_INVALID;
    if (prompt->space == NULL || prompt->priority < SHEAF_PRIORITY_MIN ||
        prompt->priority > SHEAF_PRIORITY_MAX || (flags & ~(uint32_t)SHEAF_PUBLISH_TAIL) != 0)
        return SHEAF_E_INVALID;
    plan p = {.cache = cache, .prompt = prompt, .seq = seq};
    p.tail = (flags & SHEAF_PUBLISH_TAIL) != 0;
    sheaf__prefix_enter(cache);
    sheaf__ledger_expire(cache);
    sheaf_status st = publish(&p);
    if (st == SHEAF_REFUSED) sheaf__claims_refused(cache, prompt->ticket);
    sheaf__prefix_leave(cache);
    if (st == SHEAF_OK && n_published != NULL) *n_published = p.n;
    return st;
}
