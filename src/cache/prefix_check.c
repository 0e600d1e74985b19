/* cache/prefix_check.c - whether the invariants of a prefix cache hold.
 *
 * The numbers must match src/cache/prefix.h.
 */
#include "cache/tree.h"

#include <string.h>

static sheaf_status broken(sheaf_error *err, uint32_t number, const char *what, uint64_t where)
{
    return sheaf__error_set(err, SHEAF_E_CORRUPT, "prefix invariant %u: %s %llu", number, what,
                            (unsigned long long)where);
}

/* What all nodes come to. */
typedef struct sums {
    uint64_t nodes, entries, spaces, tokens, whole_blocks, listed;
    uint64_t held[SHEAF_MAX_GROUPS];
    uint64_t pinned[SHEAF_MAX_GROUPS];
} sums;

/* 1. */
static sheaf_status check_extent(const sheaf_prefix *cache, const sheaf__node *node,
                                 sheaf_error *err)
{
    uint32_t bt = cache->block_tokens;
    if (node->parent == NULL)
        return node->start == 0 && node->n_tokens == 0 && node->n_blocks == 0
                   ? SHEAF_OK
                   : broken(err, 1, "a root with tokens:", node->n_tokens);
    if (node->start != sheaf__node_end(node->parent))
        return broken(err, 1, "a node does not begin where its parent ends, at", node->start);
    if (node->n_tokens == 0) return broken(err, 1, "a node without a token at", node->start);
    if (node->n_tokens % bt != 0 && !sheaf__node_is_leaf(node))
        return broken(err, 1, "a parent ends inside a block, at", sheaf__node_end(node));
    if (node->n_blocks != sheaf__blocks_of(node->n_tokens, bt) ||
        node->n_blocks > node->capacity_blocks)
        return broken(err, 1, "blocks are miscounted at", node->start);
    return SHEAF_OK;
}

/* 2, and that children know their parent. */
static sheaf_status check_children(const sheaf_prefix *cache, const sheaf__node *node,
                                   sheaf_error *err)
{
    const sheaf__node *before = NULL;
    uint32_t n = 0, bt = cache->block_tokens;
    for (const sheaf__node *child = sheaf__node_first_child(node); child != NULL;
         before = child, child = sheaf__node_next_sibling(child), n++) {
        uint32_t own = child->n_tokens < bt ? child->n_tokens : bt;
        const void *tokens =
            sheaf__node_place(child, cache->n_groups, 0); /* behind all places */
        if (child->parent != node || child->sibling.tokens != tokens || child->sibling.n != own)
            return broken(err, 2, "a child is entered wrongly at", child->start);
        if (before == NULL) continue;
        uint32_t both = before->sibling.n < own ? before->sibling.n : own;
        const int32_t *a = before->sibling.tokens, *b = child->sibling.tokens;
        uint32_t common = sheaf__tokens_common(a, b, both);
        if (common == both || a[common] > b[common])
            return broken(err, 2, "children out of order, or one a prefix of another, at",
                          child->start);
    }
    if (!sheaf__siblings_check(&node->children))
        return broken(err, 2, "children are not found in their order, of", node->start);
    return n == node->children.count ? SHEAF_OK
                                     : broken(err, 2, "children are miscounted at", n);
}

/* 3. */
static sheaf_status check_places(const sheaf_prefix *cache, const sheaf__node *node, sums *sum,
                                 sheaf_error *err)
{
    for (uint32_t g = 0; g < cache->n_groups; g++)
        for (uint32_t i = 0; i < node->n_blocks; i++) {
            sheaf_block block = sheaf__node_block(node, g, i);
            if (block.row == SHEAF_ROW_NONE) {
                if (sheaf__prefix_window(cache, g) == 0)
                    return broken(err, 3, "a block is absent in a group without a window:", g);
                continue;
            }
            const sheaf__record *record = sheaf__pool_live(cache->pool, block);
            uint32_t index = 0;
            if (record == NULL || record->by_kind[SHEAF_OWNER_TREE] != 1)
                return broken(err, 3, "not one reference of the tree to row", block.row);
            if (sheaf__block_holder(cache->pool, block, &index) != node || index != i)
                return broken(err, 3, "its holder is another: row", block.row);
            sum->held[g]++;
            sum->pinned[g] += node->pinned_below != 0;
        }
    return SHEAF_OK;
}

/* 4. */
static sheaf_status check_keys(const sheaf_prefix *cache, const sheaf__node *node,
                               sheaf_error *err)
{
    uint32_t bt = cache->block_tokens, whole = sheaf__node_whole(cache, node);
    const sheaf__node *parent = node->parent;
    if (parent != NULL &&
        memcmp(&node->before, sheaf__node_key_before(parent, parent->n_blocks),
               sizeof node->before) != 0)
        return broken(err, 4, "a node's chain is not its parent's, at", node->start);
    for (uint32_t i = 0; i < whole; i++) {
        sheaf_key key;
        uint32_t block = UINT32_MAX;
        SHEAF__TRY(sheaf_key_next(sheaf__node_key_before(node, i),
                                  sheaf__node_tokens(node) + (uint64_t)i * bt, bt, &key));
        if (memcmp(&key, &node->keys[i], sizeof key) != 0)
            return broken(err, 4, "a key does not follow from its tokens, at", node->start);
        if (sheaf__index_find(cache, &key, &block) != node || block != i)
            return broken(err, 4, "the index does not find a block at", node->start);
    }
    return SHEAF_OK;
}

/* ---- 5: the order of leaving ------------------------------------------------------------- */

/* Whether `later` comes after `node` in their list, among those of the same number of use. */
static bool follows(const sheaf_prefix *cache, const sheaf__node *node,
                    const sheaf__node *later)
{
    const sheaf__list *list = &cache->levels[node->level];
    for (const sheaf__list *use = node->use.next; use != list; use = use->next) {
        if (use == &later->use) return true;
        if (SHEAF__CONTAINER(use, const sheaf__node, use)->use_order > later->use_order) break;
    }
    return false;
}

static sheaf_status check_levels(const sheaf_prefix *cache, const sheaf__node *node,
                                 sheaf_error *err)
{
    uint32_t counts[SHEAF__LEVELS] = {0}, level = sheaf__level_of_priority(node->priority);
    for (const sheaf__node *child = sheaf__node_first_child(node); child != NULL;
         child = sheaf__node_next_sibling(child)) {
        counts[child->level]++;
        if (child->level > level) level = child->level;
    }
    if (memcmp(counts, node->child_levels, sizeof counts) != 0 || level != node->level)
        return broken(err, 5, "a level is not what the children say, at", node->start);
    const sheaf__node *parent = node->parent;
    bool listed = !sheaf__list_empty(&node->use);
    if (listed != (parent != NULL && node->pinned_below == 0))
        return broken(err, 5, "pinned and listed, or neither, at", node->start);
    if (!listed || parent->parent == NULL || parent->pinned_below != 0) return SHEAF_OK;
    if (parent->use_order < node->use_order ||
        (parent->use_order == node->use_order && parent->level == node->level &&
         !follows(cache, node, parent)))
        return broken(err, 5, "a parent comes before its child, at", node->start);
    return SHEAF_OK;
}

static sheaf_status check_lists(const sheaf_prefix *cache, sums *sum, sheaf_error *err)
{
    for (uint32_t level = 0; level < SHEAF__LEVELS; level++) {
        const sheaf__list *list = &cache->levels[level];
        uint64_t order = 0, use_ns = 0;
        for (const sheaf__list *use = list->next; use != list; use = use->next) {
            const sheaf__node *node = SHEAF__CONTAINER(use, const sheaf__node, use);
            if (node->level != level)
                return broken(err, 5, "a node in the list of another level:", level);
            if (node->use_order < order || node->last_use_ns < use_ns)
                return broken(err, 5, "a list out of order of use: level", level);
            order = node->use_order;
            use_ns = node->last_use_ns;
            sum->listed++;
        }
    }
    return SHEAF_OK;
}

/* ---- 6 to 8: sums ------------------------------------------------------------------------ */

/* 7, of one node. */
static sheaf_status check_pins(const sheaf__node *node, sheaf_error *err)
{
    uint64_t pinned = node->n_pins, firm = 0;
    for (const sheaf__node *child = sheaf__node_first_child(node); child != NULL;
         child = sheaf__node_next_sibling(child)) {
        pinned += child->pinned_below;
        firm += child->firm_below;
    }
    if (node->pinned_below != pinned || node->firm_below < firm ||
        node->firm_below > firm + node->n_pins)
        return broken(err, 7, "pins below are miscounted at", node->start);
    return SHEAF_OK;
}

static sheaf_status check_sums(const sheaf_prefix *cache, const sums *sum, sheaf_error *err)
{
    const sheaf_prefix_stats *stats = &cache->stats;
    uint64_t pinned_bytes = 0;
    if (sum->nodes != stats->nodes || sum->entries != stats->entries ||
        sum->tokens != stats->tokens || sum->spaces != cache->n_spaces)
        return broken(err, 6, "counts are not the tree's; nodes", sum->nodes);
    if (sum->whole_blocks != sheaf__index_count(cache))
        return broken(err, 4, "the index has more than the tree's", sum->whole_blocks);
    uint64_t held = stats->inserted_blocks - stats->replaced_blocks;
    for (uint32_t i = 0; i < SHEAF_LEFT_KINDS; i++) held -= stats->evicted_blocks[i];
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        held -= sum->held[g];
        if (sum->held[g] != cache->held_blocks[g])
            return broken(err, 6, "blocks are not the tree's in group", g);
        if (sum->pinned[g] != cache->pinned_blocks[g])
            return broken(err, 7, "pinned blocks are miscounted in group", g);
        pinned_bytes += sum->pinned[g] * sheaf__prefix_block_bytes(cache, g);
    }
    if (pinned_bytes > cache->limits.capacity_bytes)
        return broken(err, 7, "pins pass the capacity; bytes", pinned_bytes);
    uint64_t alone = sheaf__pool_tree_only_bytes(cache->pool);
    if (alone > cache->limits.capacity_bytes)
        return broken(err, 8, "the capacity is passed; bytes", alone);
    if (held != 0)
        return broken(err, 6, "blocks that came and went are not those held; off by", held);
    return SHEAF_OK;
}

static sheaf_status check_node(const sheaf_prefix *cache, const sheaf__node *node, sums *sum,
                               sheaf_error *err)
{
    SHEAF__TRY(check_extent(cache, node, err));
    SHEAF__TRY(check_children(cache, node, err));
    SHEAF__TRY(check_places(cache, node, sum, err));
    SHEAF__TRY(check_keys(cache, node, err));
    SHEAF__TRY(check_levels(cache, node, err));
    SHEAF__TRY(check_pins(node, err));
    sum->spaces += node->parent == NULL;
    sum->nodes += node->parent != NULL;
    sum->entries += node->parent != NULL && sheaf__node_is_leaf(node);
    sum->tokens += node->n_tokens;
    sum->whole_blocks += sheaf__node_whole(cache, node);
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_check(const sheaf_prefix *cache, sheaf_error *err)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    sums sum = {0};
    uint64_t unpinned = 0;
    for (const sheaf__node *node = sheaf__nodes_first(cache); node != NULL;
         node = sheaf__nodes_next(cache, node)) {
        SHEAF__TRY(check_node(cache, node, &sum, err));
        unpinned += node->parent != NULL && node->pinned_below == 0;
    }
    SHEAF__TRY(check_lists(cache, &sum, err));
    if (sum.listed != unpinned) return broken(err, 5, "nodes in lists:", sum.listed);
    SHEAF__TRY(check_sums(cache, &sum, err));
    SHEAF__TRY(sheaf__pins_check(cache, err));
    return sheaf__claims_check(cache, err);
}
