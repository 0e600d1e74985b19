/* tests/cache/model_prefix_world.h - the state of model_prefix.c, and the comparing that follows each of
 * its operations.
 *
 * Owns: the pool and cache under test beside their reference, the running and parked sequences, what
 * was seen before the operation, and the events heard. Does not own: the operations.
 */
#ifndef TESTS_CACHE_MODEL_PREFIX_WORLD_H
#define TESTS_CACHE_MODEL_PREFIX_WORLD_H

#include "prefix_rig.h"

#include "model_prefix_ref.h"
#include "sheaf/rows.h"
#include "sheaf/wire.h"

#define N_PLACES         6
#define N_KINDS          3
#define OPS_PER_POOL     800
#define CLAIM_TIMEOUT_NS 1000
#define MAX_KEYS         512

/* A request: running, parked, or neither, which is a free place. */
typedef struct request {
    sheaf_sequence *seq;
    sheaf_parked *parked;
    uint32_t space;
    uint32_t length, reserved;
    int32_t tokens[REF_POSITIONS]; /* [length] */
    uint64_t session;
    uint64_t ticket;
    int32_t priority;
} request;

/* A key that events have stored and not removed. */
typedef struct heard {
    sheaf_key key, parent;
    uint32_t space;
    int32_t tokens[REF_BLOCK];
} heard;

typedef struct world {
    rig r;
    ref ref;
    uint64_t random;
    uint64_t n_done; /* operations in this pool, for who looks for a failure */
    sheaf_layer layers[3];
    bool windowed;
    uint32_t n_blocks; /* of every group together, that the budget has room for */
    uint32_t n_places, alphabet, max_tokens;
    sheaf_prefix_options limits; /* with defaults filled in */
    request places[N_PLACES];

    /* before the operation */
    sheaf_prefix_stats before;
    sheaf_pool_stats pool_before;
    uint32_t n_entries;
    sheaf_entry entries[REF_ITEMS];

    /* what the operation says about what may leave */
    bool nothing_leaves;
    bool all_leaves; /* nothing that may go is left */
    bool all_expire; /* and nothing that is too old */
    bool compacted;
    uint32_t cleared;  /* bit s: namespace s was reset */
    uint64_t released; /* a session; 0: none */

    /* events */
    uint64_t event_number;
    const char *event_fault; /* what is wrong with one; null: nothing */
    uint32_t n_heard;
    heard heard[MAX_KEYS];

    /* what the run has met */
    uint32_t n_full, n_refused, n_waits, n_restored;
    uint64_t n_moved, n_revoked, n_dropped, n_left[SHEAF_LEFT_KINDS];
} world;

extern world w;

/* A pool of one group (kind 0), of one with a window (1), of two groups (2); all else is random. */
void world_open(uint32_t kind);

/* Around each operation. */
void world_before(void);
void world_after(void);

/* A place with nothing in it; null: none. */
request *world_free_place(void);

/* Whether one block of every group can be taken without evicting. */
bool world_has_room_for_a_block(void);

/* Sets an item's key, and its blocks as the sequence that was published names them. */
void world_name(ref_item *item, const sheaf_sequence *seq);

/* Whether the cache has it still: only what has a time to live may have left within a call. */
bool world_is_cached(const ref_item *item);

/* The bytes of a live block. */
const void *world_bytes(sheaf_block block);

/* Length, tokens and numbers of a sequence are the place's. */
void world_compare_sequence(const request *p);

/* The claim has published up to `end`; 0: none. */
void world_claim_progress(uint64_t ticket, uint32_t end);

/* The claim is lost: what was computed under it was not taken; 0: none. */
void world_claim_refused(uint64_t ticket);

/* Drops a claim or a place to wait, if it stands. */
void world_drop_ticket(uint64_t id);

#endif
