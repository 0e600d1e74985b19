/* cache/prefix.h - the tree of a prefix cache, as the files of this floor see it.
 *
 * Runs of tokens, 4 tokens a block; edges are cut at block boundaries, so children of one node differ
 * somewhere inside their first block:
 *
 *     root(space) --- [abcd efgh] --+-- [ijkl mnop qr]     a leaf; its last block is partial
 *                                   +-- [ijkx yz..]        shares "ijk" with its sibling: that much can
 *                                   +-- [stuv]             be copied, never shared
 *
 *     node            tokens  a b c d e f g h      n_tokens 8, n_blocks 2, start 0
 *                     keys    K0      K1           of whole blocks
 *     blocks, group 0         row 4   row 9        without a window: always resident
 *     blocks, group 1         absent  row 2        a window group may have let go of early ones
 *
 * The order of leaving costs nothing to keep: every node is in the list of its priority's level, oldest
 * use first, and whoever is touched is put at the end, then its parent, then its parent's parent. So in
 * its list, or in a list of a higher level, a parent always comes after its children, and the front of
 * the lowest list that is not empty is a leaf.
 *
 *     level -3   (empty)
 *     level  0   leaf X, leaf Y, parent of X, leaf Z, parent of Y and Z, ...
 *     level  2   leaf P, ...
 *
 * Pinned nodes and all above them are in no list. Roots are in none. A node whose level falls because
 * a child of a higher level left goes to where its last use belongs in the lower list.
 *
 * Invariants (sheaf_prefix_check verifies them by number):
 *
 *  1. A node's start is its parent's end, on a block boundary; only a leaf ends inside a block. A node
 *     that is no root has a token.
 *  2. Children of a node are in the order of their tokens, and their first blocks differ, none being a
 *     prefix of another's.
 *  3. In a group without a window every block is resident. A resident block is live, with one reference
 *     of kind TREE for this node, and names this node and its place in it as its holder.
 *  4. keys[i] follows from the key before it and the block's tokens; the index finds exactly the whole
 *     blocks of all nodes.
 *  5. A node is in the list of its effective priority, unless it or a descendant is pinned; each list is
 *     in the order of last use; a parent's level is at least its children's, and in one list it comes
 *     after them.
 *  6. Entries are the nodes without children that are no roots; counts of entries, nodes, tokens, blocks
 *     and bytes, by group, are what the tree says; what was inserted has left, was replaced or is held.
 *  7. n_pins of a node is the number of pins that name it; pinned_below counts the pins on it and on its
 *     descendants, firm_below those of them that cannot be revoked; pinned bytes are those of the
 *     blocks of nodes where pinned_below is not 0, and at most the capacity.
 *  8. Bytes that the cache alone holds are at most the capacity.
 *  9. A waiting ticket names a claim that stands, or is ready.
 */
#ifndef SHEAF_CACHE_PREFIX_H
#define SHEAF_CACHE_PREFIX_H

#include "base/list.h"
#include "base/snapshot.h"
#include "cache/sequence.h"
#include "cache/siblings.h"
#include "pool/holder.h"
#include "sheaf/ledger.h"
#include "sheaf/prefix.h"

/* ---- nodes ------------------------------------------------------------------------------- */

/* What a block of a node is. COMPUTING is told by claims; LOADING and DEMOTING belong to tiers. */
enum {
    SHEAF__BLOCK_ABSENT = 0,
    SHEAF__BLOCK_RESIDENT = 1,
    SHEAF__BLOCK_LOADING = 2,
    SHEAF__BLOCK_DEMOTING = 3
};

#define SHEAF__LEVELS (SHEAF_PRIORITY_MAX - SHEAF_PRIORITY_MIN + 1)

typedef struct sheaf__place {
    uint32_t row; /* SHEAF_ROW_NONE unless resident */
    uint32_t generation;
    uint32_t state; /* SHEAF__BLOCK_... */
} sheaf__place;

typedef struct sheaf__node sheaf__node;
/* In lines of memory: who goes through siblings or lists reads the first, who evicts a leaf the first
 * two. */
struct sheaf__node {
    sheaf__sibling sibling; /* among the parent's children; holds the tokens for comparing */
    sheaf__list use;        /* in a list of the ledger, or alone */

    sheaf__node *parent; /* null: a root */
    uintptr_t ahead; /* where a node used somewhat later is or was; 0: unknown. Only to fetch */
    sheaf__siblings children;
    sheaf_key *keys;    /* [n_tokens / block_tokens]; what is behind it: node.c */
    uint64_t use_order; /* number of its last use; lists are in this order */
    uint32_t start;     /* position of tokens[0] */
    uint32_t n_tokens;
    uint32_t n_blocks; /* a partial last one counts */
    uint32_t capacity_blocks;
    uint32_t pinned_below;
    uint16_t level; /* the highest of its own and its children's */
    uint16_t slot;  /* node.c: in its chunk */

    int32_t priority; /* its own */
    uint32_t n_pins;

    uint64_t last_use_ns;
    uint64_t session; /* that published it last */
    uint32_t firm_below;
    uint32_t child_levels[SHEAF__LEVELS]; /* children by level */

    sheaf_key before; /* key before the first token; of a root, the namespace */
};

_Static_assert(offsetof(sheaf__node, last_use_ns) == 128,
               "who evicts reads two lines of 64 bytes");

/* ---- the cache --------------------------------------------------------------------------- */

/* Limits, defaults filled in. */
typedef struct sheaf__limits {
    uint64_t capacity_bytes;
    uint64_t max_entries; /* UINT64_MAX: any */
    uint64_t ttl_ns;      /* UINT64_MAX: never */
} sheaf__limits;

struct sheaf_prefix {
    sheaf__owner owner;   /* in the pool's registry, kind TREE */
    sheaf__keeper keeper; /* the pool asks it to settle when exclusive bytes may have grown */
    sheaf_pool *pool;
    uint32_t n_groups;
    uint32_t block_tokens;
    uint32_t inside; /* a call is at work: settling waits for its end */

    /* node.c */
    sheaf__list chunks;         /* those with room for a node */
    struct sheaf__chunk *spare; /* of these, one that is empty; null: none */
    uint64_t n_slots;           /* nodes that all chunks have place for */
    uint64_t n_slots_used;
    sheaf__twigs twigs; /* siblings.h: of the tree, and of the tickets */

    /* spaces.c, index.c: tables that only find candidates */
    sheaf__node **spaces; /* [spaces_capacity], roots by the hash of their namespace */
    uint64_t spaces_capacity;
    uint64_t n_spaces;
    struct sheaf__index *index; /* content key to node and block */

    /* ledger.c */
    sheaf__limits limits;
    sheaf__list levels[SHEAF__LEVELS];
    sheaf__list fallen[SHEAF__LEVELS]; /* while falling: nodes that will be in these levels */
    bool falling;
    sheaf_clock clock;
    uint64_t n_uses; /* ever; numbers them */
    uint64_t held_blocks[SHEAF_MAX_GROUPS];
    uint64_t pinned_blocks[SHEAF_MAX_GROUPS];
    sheaf_prefix_stats stats; /* counters and counts; completed and published by ledger.c */
    sheaf__snapshot snapshot;
    _Atomic uint64_t snapshot_words[sizeof(sheaf_prefix_stats) / sizeof(uint64_t)];

    /* pins.c, claims.c, reserve.c */
    sheaf__list pins;        /* oldest first, revoked ones too */
    sheaf__list claims;      /* tickets of both kinds, oldest first */
    sheaf__siblings tickets; /* the same, by id */
    uint64_t next_id;        /* of pins and tickets; from 1 */
    uint64_t claim_timeout_ns;
    struct sheaf__part *parts; /* [parts_capacity], scratch of the door; see reserve.c */
    uint64_t parts_capacity;

    /* events.c */
    sheaf_event_fn *on_event;
    void *on_event_ctx;
};

/* ---- prefix.c ---------------------------------------------------------------------------- */

/* Bytes of the blocks that a match of n positions needs. Any thread. */
uint64_t sheaf__prefix_entry_bytes(const sheaf_prefix *cache, uint32_t n);

/* Every public call that changes the cache stands between these two: leave() brings limits, counts and
 * both snapshots up to date, and at SHEAF_CHECK 2 verifies everything. They nest. */
void sheaf__prefix_enter(sheaf_prefix *cache);
void sheaf__prefix_leave(sheaf_prefix *cache);
uint64_t sheaf__prefix_now(const sheaf_prefix *cache);

/* struct_size, space, tokens, priority. SHEAF_E_INVALID. */
SHEAF_WARN sheaf_status sheaf__prompt_check(const sheaf_prompt *prompt);

/* ---- node.c: nodes as data; no accounts, no references ----------------------------------- */

static inline uint32_t sheaf__node_end(const sheaf__node *node)
{
    return node->start + node->n_tokens;
}

/* [n_tokens] */
static inline int32_t *sheaf__node_tokens(const sheaf__node *node)
{
    return (int32_t *)node->sibling.tokens; /* which lie in the node's own memory */
}

/* Places are [n_groups][capacity_blocks], behind the keys. */
static inline sheaf__place *sheaf__node_place(const sheaf__node *node, uint32_t group,
                                              uint32_t block)
{
    sheaf__place *places = (sheaf__place *)(void *)(node->keys + node->capacity_blocks);
    return &places[(uint64_t)group * node->capacity_blocks + block];
}

/* The handle of a resident block; with row SHEAF_ROW_NONE when it is not resident. */
static inline sheaf_block sheaf__node_block(const sheaf__node *node, uint32_t group,
                                            uint32_t block)
{
    const sheaf__place *place = sheaf__node_place(node, group, block);
    if (place->state != SHEAF__BLOCK_RESIDENT) return (sheaf_block){group, SHEAF_ROW_NONE, 0};
    return (sheaf_block){group, place->row, place->generation};
}

static inline bool sheaf__node_is_leaf(const sheaf__node *node)
{
    return node->children.count == 0;
}

static inline sheaf__node *sheaf__node_of_sibling(sheaf__sibling *sibling)
{
    return sibling == NULL ? NULL : SHEAF__CONTAINER(sibling, sheaf__node, sibling);
}

/* The first child in the order of tokens, and the next sibling; null: none. */
static inline sheaf__node *sheaf__node_first_child(const sheaf__node *node)
{
    return sheaf__node_of_sibling(sheaf__siblings_first(&node->children));
}

static inline sheaf__node *sheaf__node_next_sibling(const sheaf__node *node)
{
    return sheaf__node_of_sibling(sheaf__siblings_next(&node->sibling));
}

/* Every node of every namespace once, children before their parent, roots included: first, and next
 * of one that may be taken out or joined once it was asked for (a root may not). Null: no more. */
sheaf__node *sheaf__nodes_first(const sheaf_prefix *cache);
sheaf__node *sheaf__nodes_next(const sheaf_prefix *cache, const sheaf__node *node);

/* ---- tree.c: nodes with their references, accounts and events ---------------------------- */

/* Cuts a node before its block `at` (0 < at < n_blocks): the upper part is a new node, *upper,
 * and `node` keeps its children, pins and identity. SHEAF_E_NO_MEMORY: nothing has changed. */
SHEAF_WARN sheaf_status sheaf__tree_split(sheaf_prefix *cache, sheaf__node *node, uint32_t at,
                                          sheaf__node **upper);

/* The one way out of the tree: takes a childless, unpinned node out, with its blocks, for `cause`. A
 * parent that is left with one child is joined with it where memory allows; an empty root goes too. */
void sheaf__tree_remove(sheaf_prefix *cache, sheaf__node *leaf, uint32_t cause);

/* ---- match.c ----------------------------------------------------------------------------- */

/* How far a prompt leads into the tree. Nodes are good until something is evicted or published;
 * the source of the tail stays good while it is held (sheaf__walk_keep). */
typedef struct sheaf__walk {
    sheaf__node *node; /* the deepest node of which a whole block matches; null: none */
    uint32_t n_blocks; /* of that node, whole blocks that match */
    uint32_t length;   /* positions in whole blocks that can be shared, after the window rule */
    uint32_t tail;     /* positions after `length` that can be copied from one block */
    sheaf__node *tail_node; /* where that block is; null when tail is 0 */
    uint32_t tail_block;
    sheaf_block tail_source[SHEAF_MAX_GROUPS]; /* that block in every group */
} sheaf__walk;

/* Reads only. limit: at most so many positions. O(limit + log of the siblings). */
void sheaf__walk_prompt(const sheaf_prefix *cache, const sheaf_key *space,
                        const int32_t *tokens, uint32_t limit, sheaf__walk *out);

/* A running sequence that shares the whole blocks of a walk, without the tail.
 * SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW. */
SHEAF_WARN sheaf_status sheaf__walk_hold(sheaf_prefix *cache, const sheaf__walk *walk,
                                         const int32_t *tokens, sheaf_sequence **out);

/* What was found is used now. */
void sheaf__walk_touch(sheaf_prefix *cache, const sheaf__walk *walk);

/* Counts a lookup and what came of it. */
void sheaf__walk_count(sheaf_prefix *cache, const sheaf_prompt *prompt,
                       const sheaf_match *match);

/* Between these two the source of the tail stays, whatever is evicted (a reference of kind IO).
 * Harmless without a tail. SHEAF_E_OVERFLOW, SHEAF_E_STALE: nothing is kept. */
SHEAF_WARN sheaf_status sheaf__walk_keep(sheaf_prefix *cache, const sheaf__walk *walk);
void sheaf__walk_unkeep(sheaf_prefix *cache, const sheaf__walk *walk);

/* Adds the tail of a walk to the sequence that holds the rest: acquires a block in every group and
 * copies. Uses of the walk its lengths and the tail's source, which is still held. SHEAF_FULL,
 * SHEAF_E_NO_MEMORY, SHEAF_E_STALE (the source has gone): the sequence is as before. */
SHEAF_WARN sheaf_status sheaf__walk_copy_tail(sheaf_prefix *cache, const sheaf__walk *walk,
                                              const int32_t *tokens, sheaf_sequence *seq);

/* ---- order.c, evict.c, ledger.c: who leaves, and accounts ---------------------------------- */

/* The node and all above it are used now; who is pinned, or is so no longer, leaves or enters its
 * list. */
void sheaf__ledger_touch(sheaf_prefix *cache, sheaf__node *node);

/* A pin (firm: one that cannot be revoked) names the node, or does so no longer: counts it on the
 * node and all above, keeps the pinned blocks, and touches. */
void sheaf__ledger_pin(sheaf_prefix *cache, sheaf__node *node, bool firm);
void sheaf__ledger_unpin(sheaf_prefix *cache, sheaf__node *node, bool firm);

/* Evicts until the limits hold. Calls nothing of the pool but releases. */
void sheaf__ledger_settle(sheaf_prefix *cache);

/* Lets go of what has not been used for the time to live. Returns how many entries left. */
uint32_t sheaf__ledger_expire(sheaf_prefix *cache);

/* Blocks a group that the cache alone holds and no pin keeps: what evicting all that may go would
 * free. revoke: revocable pins count as gone. O(1) without pins, else O(rows). */
void sheaf__ledger_evictable(sheaf_prefix *cache, bool revoke, uint64_t *blocks);

/* Whether the pool could serve counts[g] of each group now, or after evicting all that may go. */
bool sheaf__ledger_can_make_room(sheaf_prefix *cache, bool revoke, const uint32_t *counts);

/* Evicts until the pool can serve counts[g] of each group. False: it cannot be; nothing was evicted.
 * Revokes pins last, and no more than it takes. What a sequence holds is not freed by it, but may
 * be forgotten by the tree where nothing else can free what lies before it. */
bool sheaf__ledger_make_room(sheaf_prefix *cache, const uint32_t *counts);

/* Commits the slabs for counts[g] blocks of each group, for which there is room. Where the system has no
 * memory for them, evicts until the slabs that are there will do, if that is enough. SHEAF_FULL: it is
 * not, and nothing was evicted; or the system took back what it was given. SHEAF_E_NO_MEMORY. */
SHEAF_WARN sheaf_status sheaf__ledger_presize(sheaf_prefix *cache, const uint32_t *counts);

/* Counts a refusal and keeps its details. Returns SHEAF_REFUSED. */
sheaf_status sheaf__ledger_refuse(sheaf_prefix *cache, uint32_t reason, uint64_t needed,
                                  uint64_t possible, uint64_t tokens);

/* ---- pins.c ------------------------------------------------------------------------------ */

/* Revokes the oldest revocable pin. False: there is none. */
bool sheaf__pins_revoke_oldest(sheaf_prefix *cache);

/* Revokes the pins of a namespace (null: of all) that can be. */
void sheaf__pins_revoke_space(sheaf_prefix *cache, const sheaf_key *space);

/* Unpins all of a namespace (null: of all), whoever owns them, and forgets those that were revoked.
 * Returns how many pins are gone. The owner's thread, as a public call. O(pins * depth). */
uint32_t sheaf__pins_forget(sheaf_prefix *cache, const sheaf_key *space);

/* Forgets all pins, when the cache closes; the nodes stand. */
void sheaf__pins_close(sheaf_prefix *cache);

/* Verifies invariant 7 as far as pins tell: each names a node, which counts it. */
SHEAF_WARN sheaf_status sheaf__pins_check(const sheaf_prefix *cache, sheaf_error *err);

/* Calls fn once for each node that a pin names, in the order in which they were pinned.
 * O(pins), or the square of those that name nodes that others name too. */
void sheaf__pins_visit(const sheaf_prefix *cache,
                       void (*fn)(void *ctx, const sheaf__node *node), void *ctx);

/* ---- claims.c ---------------------------------------------------------------------------- */

/* The claim has published up to position `end`; harmless for 0 and for what is lost. */
void sheaf__claims_progress(sheaf_prefix *cache, uint64_t ticket, uint32_t end);

/* What the claim computes was refused: it is lost, since who waits would wait in vain. Harmless as
 * above. */
void sheaf__claims_refused(sheaf_prefix *cache, uint64_t ticket);

/* Claims of a namespace (null: of all) are lost, and who waits for them is ready. */
void sheaf__claims_reset(sheaf_prefix *cache, const sheaf_key *space);

/* Forgets all tickets, when the cache closes. */
void sheaf__claims_close(sheaf_prefix *cache);

/* Verifies invariant 9. */
SHEAF_WARN sheaf_status sheaf__claims_check(const sheaf_prefix *cache, sheaf_error *err);

/* ---- reserve.c --------------------------------------------------------------------------- */

/* Frees the door's scratch, at close. */
void sheaf__reserve_close(sheaf_prefix *cache);

/* ---- events.c: numbered, and handed to the callback if there is one ---------------------- */

void sheaf__event_stored(sheaf_prefix *cache, const sheaf__node *node, uint32_t first_block,
                         uint32_t n_blocks);
void sheaf__event_removed(sheaf_prefix *cache, const sheaf__node *node, uint32_t first_block,
                          uint32_t n_blocks, uint32_t cause);
void sheaf__event_cleared(sheaf_prefix *cache, const sheaf_key *space);

#endif
