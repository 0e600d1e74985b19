/* cache/evict.c - letting go, until there is room or the limits hold.
 *
 * In the order of leaving, which always begins with a leaf:
 *
 *     1. window blocks of the leaf that a match at its end does not need, if they alone will do
 *     2. the leaf, as far from its end as nobody else holds its blocks; mostly all of it. A leaf that a
 *        sequence holds to its end is used, and goes to the end of the order
 *
 * What nobody holds but stands before something held is left after that. It goes too, since the cache
 * alone keeps it and limits are limits:
 *
 *     3. window blocks of any node: those that no match at its end needs, then the others
 *     4. what of a leaf comes after such blocks, or all of it where they are above: the tree forgets it,
 *        and who holds its blocks keeps them
 *
 * So all that the cache alone holds may go, save what pins keep: what evicting can free is known
 * beforehand by counting.
 */
#include "cache/tree.h"
#include "pool/room.h"

#include "base/bits.h"

/* What evicting is for. */
enum { FOR_CAPACITY, FOR_ROOM, FOR_BYTES };
typedef struct goal {
    sheaf_prefix *cache;
    uint32_t kind;
    uint32_t cause;
    const uint32_t *counts; /* FOR_ROOM: [n_groups] */
    uint64_t most;          /* of bytes that the cache alone may hold, otherwise */
} goal;

static bool reached(const goal *to)
{
    sheaf_pool *pool = to->cache->pool;
    if (to->kind == FOR_ROOM) return sheaf_pool_can_acquire(pool, to->counts) == SHEAF_OK;
    return sheaf__pool_tree_only_bytes(pool) <= to->most;
}

/* ---- parts of a node --------------------------------------------------------------------- */

/* Blocks at the front of a node that a match at its end does not need, in one group. */
static uint32_t unneeded_blocks(const sheaf_prefix *cache, const sheaf__node *node,
                                uint32_t group)
{
    uint32_t first = sheaf__prefix_first_needed(cache, group, sheaf__node_end(node));
    uint32_t start = node->start / cache->block_tokens;
    return first > start ? first - start : 0;
}

/* Drops blocks of window groups that only the cache has until the goal is reached: those that are not
 * needed, or all. True: it is reached. */
static bool drop_window_blocks(const goal *to, sheaf__node *node, bool all)
{
    sheaf_prefix *cache = to->cache;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        if (sheaf__prefix_window(cache, g) == 0) continue;
        uint32_t n = all ? node->n_blocks : unneeded_blocks(cache, node, g);
        for (uint32_t i = 0; i < n; i++) {
            if (!sheaf__tree_alone(cache, node, g, i)) continue;
            sheaf__tree_let_go(cache, node, g, i);
            cache->stats.window_blocks_dropped++;
            cache->stats.evicted_blocks[to->cause]++;
            if (reached(to)) return true;
        }
    }
    return false;
}

/* Where the part of a leaf ends that somebody else holds, in blocks; 0: nobody holds any. */
static uint32_t held_end(const sheaf_prefix *cache, const sheaf__node *leaf)
{
    for (uint32_t i = leaf->n_blocks; i > 0; i--)
        for (uint32_t g = 0; g < cache->n_groups; g++)
            if (sheaf__node_place(leaf, g, i - 1)->state == SHEAF__BLOCK_RESIDENT &&
                !sheaf__tree_alone(cache, leaf, g, i - 1))
                return i;
    return 0;
}

/* Lets go of what nobody else holds at a leaf's end. True: the whole leaf is gone. */
static bool evict_leaf(sheaf_prefix *cache, sheaf__node *leaf, uint32_t cause)
{
    uint32_t keep = held_end(cache, leaf);
    if (keep == 0) {
        sheaf__tree_remove(cache, leaf, cause);
        return true;
    }
    sheaf__tree_shorten(cache, leaf, keep, cause);
    sheaf__ledger_touch(cache, leaf);
    return false;
}

/* ---- looking ahead ----------------------------------------------------------------------- */

/* What is one pointer from a node. */
static void fetch_beside(const sheaf__node *node)
{
    sheaf__node_fetch_body(node);
    sheaf__sibling_fetch(&node->sibling);
}

/* What is two pointers from it: the slot of the first key, the record of the first block. */
static void fetch_far(const sheaf_prefix *cache, const sheaf__node *node)
{
    if (node->n_tokens >= cache->block_tokens) sheaf__index_fetch(cache, node->keys);
    sheaf_block block = sheaf__node_block(node, 0, 0);
    if (block.row != SHEAF_ROW_NONE) {
        const sheaf__record *record = sheaf__record_for_row(&cache->pool->groups[0], block.row);
        __builtin_prefetch(record, 1);
    }
}

/* The order of use is not that of memory: each victim would be waited for, pointer by pointer. So while
 * one goes, the next ones are fetched, each one pointer further than the one after it:
 *
 *     leaf  1  2  3    4  5       6       7  ...  11  12
 *                 far     beside  hint ------------>  node
 */
static void look_ahead(const sheaf_prefix *cache, const sheaf__node *leaf)
{
    const sheaf__list *list = &cache->levels[leaf->level], *use = &leaf->use;
    const sheaf__node *next[SHEAF__AHEAD];
    for (uint32_t i = 0; i < SHEAF__AHEAD; i++) {
        use = use->next;
        if (use == list) return;
        next[i] = SHEAF__CONTAINER(use, const sheaf__node, use);
    }
    const sheaf__node *last = next[SHEAF__AHEAD - 1];
    sheaf__node_fetch(last->ahead != 0 ? (const sheaf__node *)last->ahead : last);
    fetch_beside(next[SHEAF__AHEAD - 2]);
    fetch_far(cache, next[SHEAF__AHEAD - 4]);
}

/* ---- in order ---------------------------------------------------------------------------- */

/* The leaf that leaves first of those that have not been used since a number of use; null: all have.
 * What is passed over is touched, and what is above it: so the held leaves of a low level do not hide
 * the idle ones of a higher, and each is looked at once. */
static sheaf__node *next_leaf(const sheaf_prefix *cache, uint64_t since)
{
    for (uint32_t level = 0; level < SHEAF__LEVELS; level++) {
        const sheaf__list *list = &cache->levels[level];
        if (sheaf__list_empty(list)) continue;
        sheaf__node *first = SHEAF__CONTAINER(list->next, sheaf__node, use);
        if (first->use_order > since) continue;
        SHEAF__ASSERT(sheaf__node_is_leaf(first));
        return first;
    }
    return NULL;
}

/* Steps 1 and 2, until the goal is reached or every leaf is held to its end. */
static void evict_in_order(const goal *to)
{
    sheaf_prefix *cache = to->cache;
    sheaf__node *leaf;
    uint64_t since = cache->n_uses;
    while (!reached(to) && (leaf = next_leaf(cache, since)) != NULL) {
        look_ahead(cache, leaf);
        if (drop_window_blocks(to, leaf, false)) return;
        evict_leaf(cache, leaf, to->cause);
    }
}

/* Step 3. */
static void strip_windows(const goal *to)
{
    sheaf_prefix *cache = to->cache;
    for (int all = 0; all < 2; all++)
        for (uint32_t level = 0; level < SHEAF__LEVELS; level++) {
            sheaf__list *list = &cache->levels[level];
            for (sheaf__list *use = list->next; use != list && !reached(to); use = use->next)
                drop_window_blocks(to, SHEAF__CONTAINER(use, sheaf__node, use), all != 0);
        }
}

/* The first block of a node that only the cache has in some group; n_blocks: there is none. */
static uint32_t first_alone(const sheaf_prefix *cache, const sheaf__node *node)
{
    for (uint32_t i = 0; i < node->n_blocks; i++)
        for (uint32_t g = 0; g < cache->n_groups; g++)
            if (sheaf__tree_alone(cache, node, g, i)) return i;
    return node->n_blocks;
}

/* Whether only the cache has some block of what is above a leaf and not pinned. */
static bool stands_on_own_blocks(const sheaf_prefix *cache, const sheaf__node *leaf)
{
    for (const sheaf__node *node = leaf->parent; node != NULL && node->pinned_below == 0;
         node = node->parent)
        if (first_alone(cache, node) < node->n_blocks) return true;
    return false;
}

/* Step 4. */
static void forget_held(const goal *to)
{
    sheaf_prefix *cache = to->cache;
    sheaf__node *leaf;
    uint64_t since = cache->n_uses;
    while (!reached(to) && (leaf = next_leaf(cache, since)) != NULL) {
        uint32_t keep = first_alone(cache, leaf);
        if (keep > 0) sheaf__tree_shorten(cache, leaf, keep, to->cause);
        if (keep == 0 || (!reached(to) && stands_on_own_blocks(cache, leaf)))
            sheaf__tree_remove(cache, leaf, to->cause);
        else
            sheaf__ledger_touch(cache, leaf);
    }
}

static void evict(const goal *to)
{
    evict_in_order(to);
    if (!reached(to)) strip_windows(to);
    if (!reached(to)) forget_held(to);
}

/* ---- limits ------------------------------------------------------------------------------ */

/* Entries that nobody holds go first; when only held ones are left, the tree forgets them. */
static void limit_entries(sheaf_prefix *cache)
{
    uint64_t since = cache->n_uses;
    while (cache->stats.entries > cache->limits.max_entries) {
        sheaf__node *leaf = next_leaf(cache, since);
        bool all_held = leaf == NULL;
        if (all_held) leaf = sheaf__order_first(cache);
        if (leaf == NULL) return;
        if (all_held || held_end(cache, leaf) == 0)
            sheaf__tree_remove(cache, leaf, SHEAF_LEFT_ENTRIES);
        else
            sheaf__ledger_touch(cache, leaf);
    }
}

void sheaf__ledger_settle(sheaf_prefix *cache)
{
    goal to = {.cache = cache, .kind = FOR_CAPACITY, .cause = SHEAF_LEFT_CAPACITY};
    to.most = cache->limits.capacity_bytes;
    if (cache->stats.entries > cache->limits.max_entries) limit_entries(cache);
    if (!reached(&to)) evict(&to);
}

uint64_t sheaf__evict_bytes(sheaf_prefix *cache, uint64_t bytes)
{
    uint64_t before = sheaf__pool_tree_only_bytes(cache->pool);
    goal to = {.cache = cache, .kind = FOR_BYTES, .cause = SHEAF_LEFT_PRESSURE};
    to.most = before > bytes ? before - bytes : 0;
    evict(&to);
    return before - sheaf__pool_tree_only_bytes(cache->pool);
}

/* Whether a node has not been used for the time to live. What was passed over was touched after `now`. */
static bool is_over(const sheaf_prefix *cache, const sheaf__node *node, uint64_t now)
{
    return node->last_use_ns <= now && now - node->last_use_ns >= cache->limits.ttl_ns;
}

/* The leaf whose time is over that leaves first; null: there is none. The front of a list is its longest
 * unused, and of a node whose time is over the children's is too: the lowest such front is a leaf. */
static sheaf__node *first_expired(const sheaf_prefix *cache, uint64_t now)
{
    for (uint32_t level = 0; level < SHEAF__LEVELS; level++) {
        const sheaf__list *list = &cache->levels[level];
        if (sheaf__list_empty(list)) continue;
        sheaf__node *first = SHEAF__CONTAINER(list->next, sheaf__node, use);
        if (!is_over(cache, first, now)) continue;
        SHEAF__ASSERT(sheaf__node_is_leaf(first));
        return first;
    }
    return NULL;
}

uint32_t sheaf__ledger_expire(sheaf_prefix *cache)
{
    if (cache->limits.ttl_ns == UINT64_MAX) return 0;
    uint64_t now = sheaf__prefix_now(cache);
    uint32_t n = 0;
    for (sheaf__node *leaf; (leaf = first_expired(cache, now)) != NULL;)
        n += evict_leaf(cache, leaf, SHEAF_LEFT_TTL);
    return n;
}

/* ---- room -------------------------------------------------------------------------------- */

static bool unpinned(const void *ctx, const sheaf__record *record)
{
    (void)ctx;
    const sheaf__node *node = record->holder;
    return sheaf__record_tree_only(record) && node->pinned_below == 0;
}

static bool not_firm(const void *ctx, const sheaf__record *record)
{
    (void)ctx;
    const sheaf__node *node = record->holder;
    return sheaf__record_tree_only(record) && node->firm_below == 0;
}

void sheaf__ledger_evictable(sheaf_prefix *cache, bool revoke, uint64_t *blocks)
{
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        blocks[g] = sheaf__pool_tree_only(cache->pool, g);
        if (blocks[g] == 0 || cache->pinned_blocks[g] == 0) continue;
        blocks[g] = sheaf__room_count(cache->pool, g, revoke ? not_firm : unpinned, NULL);
    }
}

/* Without looking at rows: at least as many will be released as the cache alone has, less all that
 * are pinned. */
static bool surely(sheaf_prefix *cache, const uint32_t *counts)
{
    uint64_t freed[SHEAF_MAX_GROUPS];
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        uint64_t alone = sheaf__pool_tree_only(cache->pool, g);
        uint64_t pinned = cache->pinned_blocks[g];
        freed[g] = alone > pinned ? alone - pinned : 0;
    }
    return sheaf__room_surely(cache->pool, counts, freed);
}

bool sheaf__ledger_can_make_room(sheaf_prefix *cache, bool revoke, const uint32_t *counts)
{
    if (surely(cache, counts)) return true;
    return sheaf__room_after(cache->pool, counts, revoke ? not_firm : unpinned, NULL);
}

bool sheaf__ledger_make_room(sheaf_prefix *cache, const uint32_t *counts)
{
    goal to = {.cache = cache, .kind = FOR_ROOM, .cause = SHEAF_LEFT_PRESSURE};
    to.counts = counts;
    if (reached(&to)) return true;
    if (!sheaf__ledger_can_make_room(cache, false, counts)) {
        if (!sheaf__ledger_can_make_room(cache, true, counts)) return false;
        while (!sheaf__ledger_can_make_room(cache, false, counts))
            if (!sheaf__pins_revoke_oldest(cache)) return false;
    }
    evict(&to);
    return reached(&to);
}

/* Bytes of the rows that the slabs of now lack for counts[g] blocks of each group. */
static uint64_t bytes_missing(const sheaf_prefix *cache, const uint32_t *counts)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        uint64_t n_free = cache->pool->groups[g].counts.free;
        if (counts[g] > n_free)
            bytes += (counts[g] - n_free) * sheaf__prefix_block_bytes(cache, g);
    }
    return bytes;
}

/* Whether the slabs of now will do once all has left that may. */
static bool slabs_suffice(sheaf_prefix *cache, const uint32_t *counts)
{
    uint64_t freed[SHEAF_MAX_GROUPS];
    bool enough = true;
    sheaf__ledger_evictable(cache, false, freed);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        enough = enough && cache->pool->groups[g].counts.free + freed[g] >= counts[g];
    return enough;
}

sheaf_status sheaf__ledger_presize(sheaf_prefix *cache, const uint32_t *counts)
{
    sheaf_status st = sheaf_pool_presize(cache->pool, counts);
    if (st != SHEAF_FULL || !slabs_suffice(cache, counts)) return st;
    do
        if (sheaf__evict_bytes(cache, bytes_missing(cache, counts)) == 0) return SHEAF_FULL;
    while ((st = sheaf_pool_presize(cache->pool, counts)) == SHEAF_FULL);
    return st;
}
