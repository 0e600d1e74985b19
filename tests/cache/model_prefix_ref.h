/* tests/cache/model_prefix_ref.h - a prefix cache as naive as its contract: a bag of blocks, each with
 * all tokens up to its end, searched from one end to the other.
 *
 * Owns: what has been published and not seen to leave, pins, claims, and the rules of sheaf/prefix.h
 * and sheaf/ledger.h on them. Does not own: when something leaves. The cache may choose; the
 * reference says which choices the rules allow.
 *
 * An item is one block with its tokens: whole, or a tail that ends inside its block. 4 tokens a block.
 */
#ifndef TESTS_CACHE_MODEL_PREFIX_REF_H
#define TESTS_CACHE_MODEL_PREFIX_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "sheaf/ledger.h"
#include "sheaf/prefix.h"

#define REF_POSITIONS 64
#define REF_ITEMS     256
#define REF_PINS      8
#define REF_TICKETS   16
#define REF_SPACES    3
#define REF_BLOCK     4

typedef struct ref_item {
    uint32_t space;                /* index into ref.spaces */
    uint32_t n;                    /* end of what it holds */
    int32_t tokens[REF_POSITIONS]; /* [n], from position 0 on */
    sheaf_key key;                 /* of a whole block */
    sheaf_block blocks[2];         /* row SHEAF_ROW_NONE: a window group has let go of it */
    bool named;                    /* key and blocks are set */
    uint64_t used_ns;              /* the last time that it surely was used itself */
    uint64_t maybe_used_ns; /* the last time that it may have been, with what is near it */
    uint64_t session;       /* that published it last */
    bool alone[2];          /* before an operation: nobody but the cache held the block */
    bool kept;              /* before an operation: pinned for good */
    bool pinned;            /* before an operation: pinned, maybe to be revoked */
    uint32_t order;         /* before an operation: place in the order of leaving */
    bool idle;              /* before an operation: nobody held any part of its entry */
    uint32_t entry_start;   /* before an operation: where its entry began */
} ref_item;

#define REF_NO_ORDER UINT32_MAX

typedef struct ref_pin {
    bool given;
    bool stands;
    uint64_t id;
    uint64_t owner;
    bool revocable;
    uint32_t space, n;             /* what was pinned */
    uint32_t end;                  /* what is kept: more, once its tail has been continued */
    int32_t tokens[REF_POSITIONS]; /* [end] */
} ref_pin;

typedef struct ref_ticket {
    bool given;
    uint64_t id;
    uint64_t waits_for; /* the claim that covered the next block; 0: a claim itself */
    uint32_t space, n;
    int32_t tokens[REF_POSITIONS]; /* [n], whole blocks */
    uint32_t from;                 /* position of the first block claimed, or waited for */
    uint32_t done;                 /* published up to here */
    uint64_t progress_ns;
    bool lost;     /* of a claim: its namespace was reset, or it was refused */
    bool doubtful; /* of a claim: it has stalled once, so others may have taken over */
} ref_ticket;

typedef struct ref {
    uint32_t n_groups;
    uint32_t window[2]; /* 0: none */
    uint64_t block_bytes[2];
    sheaf_key spaces[REF_SPACES];
    uint32_t n_items;
    ref_item items[REF_ITEMS];
    ref_pin pins[REF_PINS];
    ref_ticket tickets[REF_TICKETS];
} ref;

/* ---- items ------------------------------------------------------------------------------- */

static inline bool ref_whole(const ref_item *item)
{
    return item->n % REF_BLOCK == 0;
}

/* Position of an item's first token. */
static inline uint32_t ref_start(const ref_item *item)
{
    return (item->n - 1) / REF_BLOCK * REF_BLOCK;
}

/* The item of exactly these tokens, or null. */
ref_item *ref_find(ref *r, uint32_t space, const int32_t *tokens, uint32_t n);

/* A new item, with key and blocks for the caller to fill; the ones that it contains are dropped: a tail
 * whose block goes on to be longer is not a thing of its own. */
ref_item *ref_add(ref *r, uint32_t space, const int32_t *tokens, uint32_t n);

/* Forgets items[at]; the last item takes its place. */
void ref_drop(ref *r, uint32_t at);

/* Whether `item` comes later on the way that begins with all of `above`'s tokens. */
bool ref_is_below(const ref_item *item, const ref_item *above);

/* Nothing comes after it. */
bool ref_is_leaf(const ref *r, const ref_item *item);

/* Whether an item has these n tokens in its block, whatever comes after them. */
bool ref_has(const ref_item *item, uint32_t space, const int32_t *tokens, uint32_t n);

/* An item with these n tokens in its block, whatever comes after them in it; null: none. n is not a
 * multiple of the block. */
const ref_item *ref_holds(const ref *r, uint32_t space, const int32_t *tokens, uint32_t n);

/* Such an item whose block is resident in every group; null: none. */
const ref_item *ref_tail(const ref *r, uint32_t space, const int32_t *tokens, uint32_t n);

/* ---- rules ------------------------------------------------------------------------------- */

/* Whether L positions can be had: every block of [0, L), where a window group needs [S - w, L) and S is
 * the part of L in whole blocks. */
bool ref_covers(ref *r, uint32_t space, const int32_t *tokens, uint32_t length);

/* The longest of at most `limit` positions that can be had; whole: in whole blocks alone. */
uint32_t ref_match(ref *r, uint32_t space, const int32_t *tokens, uint32_t limit, bool whole);

/* The length that is found at least where windows have let go of blocks: what the tokens lead to in
 * whole blocks, and of its best continuation what is in common; no other is looked for. */
uint32_t ref_match_surely(ref *r, uint32_t space, const int32_t *tokens, uint32_t limit);

/* Marks what a match or publication of these positions surely uses. */
void ref_use(ref *r, uint32_t space, const int32_t *tokens, uint32_t n, uint64_t now_ns);

/* Whether a standing pin keeps the item; revocable ones count if asked. */
bool ref_pinned(const ref *r, const ref_item *item, bool revocable_too);

/* Bytes that standing pins keep; each block once. */
uint64_t ref_pinned_bytes(const ref *r);

/* Blocks of a group that may be freed, as they were marked before the operation: nobody else's, not
 * pinned for good, nor anything below them. spare: [n_items], those that will be held. */
uint32_t ref_may_go(const ref *r, uint32_t group, const bool *spare);

/* ---- claims ------------------------------------------------------------------------------ */

/* Positions in whole blocks that two runs of tokens have in common. */
uint32_t ref_common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b);

/* The claim that covers the block at `from`, and what follows for longest; null: none. */
ref_ticket *ref_covering(ref *r, uint32_t space, const int32_t *tokens, uint32_t n,
                         uint32_t from);

ref_ticket *ref_ticket_of(ref *r, uint64_t id);

#endif
