/* cache/tree.c - nodes with their references, accounts and events.
 *
 * Everything that changes the tree is one of these, and each leaves counts, index, lists and back-
 * pointers right:
 *
 *     attach       a new leaf comes below a node or a root
 *     split        [abcd efgh ijkl]       ->  [abcd] -- [efgh ijkl]
 *     tidy (join)  [abcd] -- [efgh ijkl]  ->  [abcd efgh ijkl], when the upper has no other child
 *     take, let go one block in one place
 *     shorten      a leaf loses its last blocks
 *     take out     a leaf goes: out of siblings, index and lists first, with its event; then its
 *                  references are released. Whatever has to do input or output with a victim's blocks
 *                  comes between the two
 */
#include "cache/tree.h"

#include <string.h>

/* ---- blocks ------------------------------------------------------------------------------ */

/* n blocks more, or less, in places of a node. */
static void account(sheaf_prefix *cache, const sheaf__node *node, uint32_t group, int64_t n)
{
    cache->held_blocks[group] += (uint64_t)n;
    if (node->pinned_below != 0) cache->pinned_blocks[group] += (uint64_t)n;
}

/* Writes a block into a place, and the place into the block's record. */
static void put_block(sheaf_prefix *cache, sheaf__node *node, uint32_t index, sheaf_block block)
{
    *sheaf__node_place(node, block.group, index) =
        (sheaf__place){block.row, block.generation, SHEAF__BLOCK_RESIDENT};
    sheaf__block_set_holder(cache->pool, block, node, index);
}

void sheaf__tree_take(sheaf_prefix *cache, sheaf__node *node, uint32_t index, sheaf_block block)
{
    sheaf_status st = sheaf__block_retain(cache->pool, block, SHEAF_OWNER_TREE);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
    put_block(cache, node, index, block);
    account(cache, node, block.group, 1);
}

void sheaf__tree_let_go(sheaf_prefix *cache, sheaf__node *node, uint32_t group, uint32_t index)
{
    sheaf_block block = sheaf__node_block(node, group, index);
    if (block.row == SHEAF_ROW_NONE) return;
    *sheaf__node_place(node, group, index) =
        (sheaf__place){SHEAF_ROW_NONE, 0, SHEAF__BLOCK_ABSENT};
    account(cache, node, group, -1);
    sheaf_status st = sheaf__block_release(cache->pool, block, SHEAF_OWNER_TREE);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
}

bool sheaf__tree_alone(const sheaf_prefix *cache, const sheaf__node *node, uint32_t group,
                       uint32_t index)
{
    const sheaf__place *place = sheaf__node_place(node, group, index);
    return place->state == SHEAF__BLOCK_RESIDENT &&
           !sheaf__pool_row_shared(cache->pool, group, place->row);
}

/* Lets go of blocks [first, n) in every group; how many there were. */
static uint64_t let_go_from(sheaf_prefix *cache, sheaf__node *node, uint32_t first, uint32_t n)
{
    uint64_t before = 0, after = 0;
    for (uint32_t g = 0; g < cache->n_groups; g++) {
        before += cache->held_blocks[g];
        for (uint32_t i = n; i > first; i--) sheaf__tree_let_go(cache, node, g, i - 1);
        after += cache->held_blocks[g];
    }
    return before - after;
}

/* ---- coming ------------------------------------------------------------------------------ */

void sheaf__tree_attach(sheaf_prefix *cache, sheaf__node *parent, sheaf__node *child)
{
    bool was_entry = parent->parent != NULL && sheaf__node_is_leaf(parent);
    child->parent = parent;
    child->level = (uint16_t)sheaf__level_of_priority(child->priority);
    sheaf__siblings_insert(&parent->children, &cache->twigs, &child->sibling);
    sheaf__order_gain(cache, parent, child);
    sheaf__order_place(cache, child);
    cache->stats.nodes++;
    cache->stats.entries += !was_entry;
}

/* ---- splitting and joining --------------------------------------------------------------- */

/* Copies blocks [from, from + n) of a node to another's place `to` and on. */
static void copy_blocks(const sheaf_prefix *cache, sheaf__node *into, uint32_t to,
                        const sheaf__node *node, uint32_t from, uint32_t n)
{
    uint32_t whole = sheaf__node_whole(cache, node), bt = cache->block_tokens;
    uint32_t n_keys = from + n < whole ? n : whole - from;
    uint32_t end = from + n < node->n_blocks ? (from + n) * bt : node->n_tokens;
    memmove(into->keys + to, node->keys + from, n_keys * sizeof *into->keys);
    memmove(sheaf__node_tokens(into) + (uint64_t)to * bt,
            sheaf__node_tokens(node) + (uint64_t)from * bt,
            (end - from * bt) * sizeof(int32_t));
    for (uint32_t g = 0; g < cache->n_groups; g++)
        memmove(sheaf__node_place(into, g, to), sheaf__node_place(node, g, from),
                n * sizeof(sheaf__place));
}

/* The records of a node's blocks name it as it is now. */
static void renew_holders(sheaf_prefix *cache, sheaf__node *node)
{
    for (uint32_t g = 0; g < cache->n_groups; g++)
        for (uint32_t i = 0; i < node->n_blocks; i++) {
            sheaf_block block = sheaf__node_block(node, g, i);
            if (block.row != SHEAF_ROW_NONE)
                sheaf__block_set_holder(cache->pool, block, node, i);
        }
}

/* What the upper part of a node has from it. */
static void inherit(sheaf__node *upper, const sheaf__node *node)
{
    upper->parent = node->parent;
    upper->before = node->before;
    upper->start = node->start;
    upper->last_use_ns = node->last_use_ns;
    upper->use_order = node->use_order;
    upper->session = node->session;
    upper->priority = node->priority;
    upper->level = node->level;
    upper->child_levels[node->level] = 1;
    upper->pinned_below = node->pinned_below;
    upper->firm_below = node->firm_below;
}

sheaf_status sheaf__tree_split(sheaf_prefix *cache, sheaf__node *node, uint32_t at,
                               sheaf__node **out)
{
    SHEAF__ASSERT(at > 0 && at < node->n_blocks);
    sheaf__node *upper = sheaf__node_create(cache, at);
    if (upper == NULL) return SHEAF_E_NO_MEMORY;
    uint32_t n_tokens = at * cache->block_tokens;
    inherit(upper, node);
    copy_blocks(cache, upper, 0, node, 0, at);
    sheaf__node_set_length(cache, upper, n_tokens);
    sheaf__siblings_replace(&node->parent->children, &node->sibling, &upper->sibling);
    sheaf__index_rename(cache, node, upper, 0, at);

    node->before = upper->keys[at - 1];
    copy_blocks(cache, node, 0, node, at, node->n_blocks - at);
    sheaf__node_set_length(cache, node, node->n_tokens - n_tokens);
    node->start += n_tokens;
    node->parent = upper;
    sheaf__siblings_insert(&upper->children, &cache->twigs, &node->sibling);
    if (node->pinned_below == 0) sheaf__list_insert(node->use.next, &upper->use);
    renew_holders(cache, upper);
    renew_holders(cache, node);
    cache->stats.nodes++;
    *out = upper;
    return SHEAF_OK;
}

/* Whether nothing tells a node from its only child but that they are two. */
static bool joinable(const sheaf__node *node)
{
    if (node->parent == NULL || node->children.count != 1 || node->n_pins != 0) return false;
    const sheaf__node *child = sheaf__node_first_child(node);
    return child->session == node->session && child->priority == node->priority;
}

/* The child takes the node's blocks and its place, in the tree and in the order of leaving. */
static void join(sheaf_prefix *cache, sheaf__node *node)
{
    sheaf__node *child = sheaf__node_first_child(node);
    uint32_t n = node->n_blocks;
    if (sheaf__node_reserve(cache, child, n + child->n_blocks) != SHEAF_OK) return;
    copy_blocks(cache, child, n, child, 0, child->n_blocks);
    copy_blocks(cache, child, 0, node, 0, n);
    child->before = node->before;
    child->start = node->start;
    child->parent = node->parent;
    sheaf__node_set_length(cache, child, node->n_tokens + child->n_tokens);
    sheaf__siblings_replace(&node->parent->children, &node->sibling, &child->sibling);
    sheaf__index_rename(cache, node, child, 0, n);
    child->last_use_ns = node->last_use_ns;
    child->use_order = node->use_order;
    if (node->pinned_below == 0) {
        sheaf__list_remove(&child->use);
        sheaf__list_insert(&node->use, &child->use);
        sheaf__list_remove(&node->use);
    }
    renew_holders(cache, child);
    sheaf__node_destroy(cache, node);
    cache->stats.nodes--;
}

void sheaf__tree_tidy(sheaf_prefix *cache, sheaf__node *node)
{
    if (joinable(node)) {
        join(cache, node);
        return;
    }
    if (node->parent != NULL || !sheaf__node_is_leaf(node)) return;
    sheaf__space_remove(cache, node);
    sheaf__node_destroy(cache, node);
}

/* ---- leaving ----------------------------------------------------------------------------- */

void sheaf__tree_shorten(sheaf_prefix *cache, sheaf__node *leaf, uint32_t keep, uint32_t cause)
{
    uint32_t n = leaf->n_blocks, whole = sheaf__node_whole(cache, leaf);
    SHEAF__ASSERT(sheaf__node_is_leaf(leaf) && keep > 0);
    if (keep >= n) return;
    if (whole > keep) {
        sheaf__event_removed(cache, leaf, keep, whole - keep, cause);
        sheaf__index_remove(cache, leaf, keep, whole - keep);
    }
    cache->stats.tokens -= leaf->n_tokens - keep * cache->block_tokens;
    sheaf__node_set_length(cache, leaf, keep * cache->block_tokens);
    cache->stats.evicted_blocks[cause] += let_go_from(cache, leaf, keep, n);
}

void sheaf__tree_take_out(sheaf_prefix *cache, sheaf__node *leaf, uint32_t cause)
{
    sheaf__node *parent = leaf->parent;
    uint32_t whole = sheaf__node_whole(cache, leaf);
    SHEAF__ASSERT(sheaf__node_is_leaf(leaf) && leaf->pinned_below == 0);
    if (whole > 0) {
        sheaf__event_removed(cache, leaf, 0, whole, cause);
        sheaf__index_remove(cache, leaf, 0, whole);
    }
    sheaf__list_remove(&leaf->use);
    sheaf__siblings_remove(&parent->children, &cache->twigs, &leaf->sibling);
    sheaf__order_lose(cache, parent, leaf);
    cache->stats.nodes--;
    cache->stats.tokens -= leaf->n_tokens;
    bool parent_is_entry = parent->parent != NULL && sheaf__node_is_leaf(parent);
    cache->stats.entries -= !parent_is_entry;
    cache->stats.evictions[cause]++;

    cache->stats.evicted_blocks[cause] += let_go_from(cache, leaf, 0, leaf->n_blocks);
    sheaf__node_destroy(cache, leaf);
}

void sheaf__tree_remove(sheaf_prefix *cache, sheaf__node *leaf, uint32_t cause)
{
    sheaf__node *parent = leaf->parent;
    sheaf__tree_take_out(cache, leaf, cause);
    sheaf__tree_tidy(cache, parent);
}
