/* cache/tree.h - what the files that keep the tree of a prefix cache know of each other.
 *
 * Owns: the floors within the tree. Each may use those above it in this list:
 *
 *     siblings  children in the order of their tokens
 *     node      a node's memory; going through all nodes
 *     index     content keys to nodes            spaces   namespaces to roots
 *     order     levels, and lists by last use
 *     tree      nodes with references, accounts and events: split, join, take, let go
 *     match, publish, evict, ledger, prefix
 *
 * What the whole floor may call is in cache/prefix.h.
 */
#ifndef SHEAF_CACHE_TREE_H
#define SHEAF_CACHE_TREE_H

#include "cache/prefix.h"

/* ---- node.c ------------------------------------------------------------------------------ */

/* Host memory of the tree and its index, counted in stats.host_bytes. As sheaf__memory_alloc. */
void *sheaf__prefix_alloc(sheaf_prefix *cache, uint64_t n, uint64_t size);
void sheaf__prefix_free(sheaf_prefix *cache, void *ptr, uint64_t n, uint64_t size);

/* A node alone, of no tokens, with place for n_blocks (0: a root). Null: no memory. */
sheaf__node *sheaf__node_create(sheaf_prefix *cache, uint32_t n_blocks);
void sheaf__node_destroy(sheaf_prefix *cache, sheaf__node *node);

/* Has the processor fetch a node and what an eviction needs of a body behind it; then, once that is
 * there, of one elsewhere. */
void sheaf__node_fetch(const sheaf__node *node);
void sheaf__node_fetch_body(const sheaf__node *node);

/* Makes place for n_blocks in all. SHEAF_E_NO_MEMORY: nothing has changed. */
SHEAF_WARN sheaf_status sheaf__node_reserve(sheaf_prefix *cache, sheaf__node *node,
                                            uint32_t n_blocks);

/* The counts and the sibling follow from n_tokens. */
void sheaf__node_set_length(const sheaf_prefix *cache, sheaf__node *node, uint32_t n_tokens);

/* Its blocks that are whole. */
static inline uint32_t sheaf__node_whole(const sheaf_prefix *cache, const sheaf__node *node)
{
    return node->n_tokens / cache->block_tokens;
}

/* The key of all tokens before its block i. */
static inline const sheaf_key *sheaf__node_key_before(const sheaf__node *node, uint32_t i)
{
    return i == 0 ? &node->before : &node->keys[i - 1];
}

/* ---- index.c ----------------------------------------------------------------------------- */

/* The hash of both tables. A test puts a weak one here before it opens a cache: nothing but speed may
 * change. */
extern uint64_t (*sheaf__index_hash)(const sheaf_key *key);

SHEAF_WARN sheaf_status sheaf__index_open(sheaf_prefix *cache);
void sheaf__index_close(sheaf_prefix *cache);

/* Room for n more. SHEAF_E_NO_MEMORY: nothing has changed. */
SHEAF_WARN sheaf_status sheaf__index_reserve(sheaf_prefix *cache, uint64_t n);

/* Enters or takes out whole blocks [first, first + n) of a node; reserved before. */
void sheaf__index_insert(sheaf_prefix *cache, sheaf__node *node, uint32_t first, uint32_t n);
void sheaf__index_remove(sheaf_prefix *cache, const sheaf__node *node, uint32_t first,
                         uint32_t n);

/* Whole blocks [first, first + n) of `node`, entered for `from`, are this node's from now on. */
void sheaf__index_rename(sheaf_prefix *cache, const sheaf__node *from, sheaf__node *node,
                         uint32_t first, uint32_t n);

/* The node and the block of a content key; null: nobody has it. */
sheaf__node *sheaf__index_find(const sheaf_prefix *cache, const sheaf_key *key,
                               uint32_t *block);
uint64_t sheaf__index_count(const sheaf_prefix *cache);

/* Has the processor fetch the slot of a key that is there. */
void sheaf__index_fetch(const sheaf_prefix *cache, const sheaf_key *key);

/* ---- spaces.c ---------------------------------------------------------------------------- */

sheaf__node *sheaf__space_find(const sheaf_prefix *cache, const sheaf_key *space);

/* Room for one more. SHEAF_E_NO_MEMORY: nothing has changed. */
SHEAF_WARN sheaf_status sheaf__space_reserve(sheaf_prefix *cache);
void sheaf__space_insert(sheaf_prefix *cache, sheaf__node *root);
void sheaf__space_remove(sheaf_prefix *cache, const sheaf__node *root);

/* Removes and destroys all roots without children. */
void sheaf__space_sweep(sheaf_prefix *cache);

/* All roots: the first, and the one after. Null: no more. */
sheaf__node *sheaf__space_first(const sheaf_prefix *cache);
sheaf__node *sheaf__space_next(const sheaf_prefix *cache, const sheaf__node *root);

/* ---- order.c ----------------------------------------------------------------------------- */

static inline uint32_t sheaf__level_of_priority(int32_t priority)
{
    return (uint32_t)(priority - SHEAF_PRIORITY_MIN);
}

/* The node's level follows from its priority and its children's levels; those above it follow. */
void sheaf__order_relevel(sheaf_prefix *cache, sheaf__node *node);

/* A parent has got a child, or lost one. */
void sheaf__order_gain(sheaf_prefix *cache, sheaf__node *parent, const sheaf__node *child);
void sheaf__order_lose(sheaf_prefix *cache, sheaf__node *parent, const sheaf__node *child);

/* Puts a node into its list where its last use belongs, unless it is pinned. */
void sheaf__order_place(sheaf_prefix *cache, sheaf__node *node);

/* Between these two, nodes whose level falls wait, and then come where their last use belongs, all at
 * once: for who takes many out. O(those that fell * log, and the lists that they fell to). */
void sheaf__order_fall_begin(sheaf_prefix *cache);
void sheaf__order_fall_end(sheaf_prefix *cache);

/* How many uses later the node is of which a node has a hint, mostly. */
#define SHEAF__AHEAD 6

/* The node that leaves first, which is a leaf. Null: all are pinned, or there is none. */
sheaf__node *sheaf__order_first(const sheaf_prefix *cache);

/* ---- tree.c ------------------------------------------------------------------------------ */

/* A new node, filled and with its blocks taken, becomes the child of a parent, or a root's, for which
 * the twigs are reserved. */
void sheaf__tree_attach(sheaf_prefix *cache, sheaf__node *parent, sheaf__node *child);

/* Adds a reference to a block and names it in an empty place. It has room for one. */
void sheaf__tree_take(sheaf_prefix *cache, sheaf__node *node, uint32_t index,
                      sheaf_block block);

/* Lets go of the block in a place, if there is one. */
void sheaf__tree_let_go(sheaf_prefix *cache, sheaf__node *node, uint32_t group, uint32_t index);

/* Lets go of a leaf's blocks from `keep` (not 0) on. */
void sheaf__tree_shorten(sheaf_prefix *cache, sheaf__node *leaf, uint32_t keep, uint32_t cause);

/* As sheaf__tree_remove, but leaves what is above as it is: to be tidied later. */
void sheaf__tree_take_out(sheaf_prefix *cache, sheaf__node *leaf, uint32_t cause);

/* Removes a root without children; joins a node with its only child where that loses nothing and
 * memory allows. The node may be gone after it, the child is not. */
void sheaf__tree_tidy(sheaf_prefix *cache, sheaf__node *node);

/* Whether only the cache has the block in this place. */
bool sheaf__tree_alone(const sheaf_prefix *cache, const sheaf__node *node, uint32_t group,
                       uint32_t index);

/* ---- match.c ----------------------------------------------------------------------------- */

/* How far tokens lead into the tree, whatever windows ask for. */
typedef struct sheaf__path {
    sheaf__node *root;   /* of the namespace; null: nothing is cached in it */
    sheaf__node *node;   /* the deepest node of which a whole block matches; null: none */
    uint32_t n_blocks;   /* of that node, whole blocks that match */
    uint32_t length;     /* positions in whole blocks that match */
    uint32_t whole;      /* the longest length in whole blocks that windows allow */
    sheaf__node *near;   /* where the block with most in common after `length` is; null: none */
    uint32_t near_block; /* in that node */
    uint32_t common;     /* positions in common with it */
} sheaf__path;

void sheaf__path_find(const sheaf_prefix *cache, const sheaf_key *space, const int32_t *tokens,
                      uint32_t limit, sheaf__path *out);

/* ---- prefix.c ---------------------------------------------------------------------------- */

/* The window of a group; 0: none. */
uint32_t sheaf__prefix_window(const sheaf_prefix *cache, uint32_t group);
uint64_t sheaf__prefix_block_bytes(const sheaf_prefix *cache, uint32_t group);

/* The first block that a match of this length needs in a group: what the whole blocks of it see. */
uint32_t sheaf__prefix_first_needed(const sheaf_prefix *cache, uint32_t group, uint32_t length);

/* The caller's options in this version's form. SHEAF_E_INVALID. */
SHEAF_WARN sheaf_status sheaf__prefix_read_options(const sheaf_prefix_options *from,
                                                   sheaf_prefix_options *to, sheaf_error *err);

/* The limits that options ask for, defaults filled in. */
sheaf__limits sheaf__prefix_limits(const sheaf_pool *pool, const sheaf_prefix_options *options);

/* ---- evict.c ----------------------------------------------------------------------------- */

/* Evicts until `bytes` of blocks have become free; what has. */
uint64_t sheaf__evict_bytes(sheaf_prefix *cache, uint64_t bytes);

/* ---- ledger.c ---------------------------------------------------------------------------- */

/* Lets go of everything; nothing is pinned. */
void sheaf__ledger_clear(sheaf_prefix *cache);

/* Completes the statistics and makes them what any thread reads. */
void sheaf__ledger_publish(sheaf_prefix *cache);

#endif
