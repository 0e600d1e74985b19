/* sheaf/prefix.h - the prefix cache: what was computed once is found again by its tokens.
 *
 * Owns: a tree of token runs and one reference to every block in it; matching, publishing, the door
 * of a step, claims. Its accounts and what leaves it are in sheaf/ledger.h. Does not own: running
 * sequences, which only share its blocks.
 *
 *     sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
 *     st = sheaf_prefix_open(pool, &o, &cache, &err);
 *     sheaf_prompt prompt = SHEAF_PROMPT_INIT;
 *     prompt.tokens = ids, prompt.n_tokens = n, prompt.space = space;
 *     sheaf_step step = SHEAF_STEP_INIT;
 *     step.prompt = &prompt, step.n = 512;
 *     st = sheaf_prefix_reserve(cache, &step, 1, NULL);    // match, evict, extend: or SHEAF_FULL
 *     ... write and commit step.reserved tokens from step.match.length on ...
 *     st = sheaf_prefix_publish(cache, &prompt, step.sequence, 0, NULL);   // after each chunk
 *     st = sheaf_prefix_publish(cache, &prompt, step.sequence, SHEAF_PUBLISH_TAIL, NULL);  // at the end
 *     sheaf_sequence_destroy(step.sequence);
 *
 * Tokens are always compared; a hash only finds candidates. Whole blocks are shared; of a block that
 * diverges inside, or is not full, the common positions are copied. The match of a prompt is the
 * longest length L whose blocks are there: in groups without a window all of [0, L), in those with a
 * window w all of [S - w, L), S being the part of L that is in whole blocks. Where a window has let go
 * of some, only the best continuation of the whole blocks is looked at for a copy.
 *
 * A prompt that is in the cache as a whole is shared as a whole. Its last token's query is then
 * computed without writing (its K and V are there), or with max_match = n_tokens - 1 written again
 * into a copy: the same bits.
 */
#ifndef SHEAF_PREFIX_H
#define SHEAF_PREFIX_H

#include "sheaf/cache.h"
#include "sheaf/key.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sheaf_prefix sheaf_prefix;

/* Time for ages and timeouts: nanoseconds that never go back. */
typedef struct sheaf_clock {
    void *ctx;
    uint64_t (*now_ns)(void *ctx);
} sheaf_clock;

struct sheaf_event; /* sheaf/ledger.h */
typedef void sheaf_event_fn(void *ctx, const struct sheaf_event *event);

typedef struct sheaf_prefix_options {
    uint32_t struct_size;
    uint32_t max_entries;      /* 0: any number */
    uint64_t capacity_bytes;   /* of blocks that the cache alone holds; 0: the pool's budget */
    uint64_t ttl_ns;           /* an entry goes so long after its last use; 0: never */
    uint64_t claim_timeout_ns; /* a claim without progress is lost after this; 0: 30 s */
    const sheaf_clock *clock;  /* copied; null: the system's */
    sheaf_event_fn *on_event;  /* null: none. Must not call the library */
    void *on_event_ctx;
} sheaf_prefix_options;
#define SHEAF_PREFIX_OPTIONS_INIT SHEAF_STRUCT_INIT(sheaf_prefix_options)

/* Opens the prefix cache of a pool; one pool has at most one. SHEAF_E_BUSY: it has one.
 * SHEAF_E_INVALID, SHEAF_E_UNSUPPORTED (no SHA-256), SHEAF_E_NO_MEMORY. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_open(sheaf_pool *pool,
                                                    const sheaf_prefix_options *options,
                                                    sheaf_prefix **out, sheaf_error *err);

/* Returns every reference; pins and tickets are void. Null is allowed. O(blocks). */
SHEAF_API void sheaf_prefix_close(sheaf_prefix *cache);

/* ---- matching ---------------------------------------------------------------------------- */

/* What a request is to the cache. Read during calls alone. Priorities: entries of a lower one are
 * evicted first. */
#define SHEAF_PRIORITY_MIN (-3)
#define SHEAF_PRIORITY_MAX 3
typedef struct sheaf_prompt {
    uint32_t struct_size;
    uint32_t n_tokens;
    const int32_t *tokens;  /* [n_tokens] from position 0 on, each >= 0 */
    const sheaf_key *space; /* of sheaf_space_make on this pool */
    uint64_t session;       /* for sheaf_prefix_release_session; 0: none */
    uint64_t ticket;        /* the claim it computes under; 0: none */
    int32_t priority;
    uint32_t max_match; /* positions to match at most; 0: n_tokens */
} sheaf_prompt;
#define SHEAF_PROMPT_INIT SHEAF_STRUCT_INIT(sheaf_prompt)

typedef struct sheaf_match {
    uint32_t struct_size;
    uint32_t length;        /* positions found */
    uint32_t shared;        /* of these, in whole blocks that are shared */
    uint32_t copied;        /* of these, in a block that is copied: length - shared */
    uint32_t cached_tokens; /* what need not be computed: length, at most n_tokens - 1 */
} sheaf_match;
#define SHEAF_MATCH_INIT SHEAF_STRUCT_INIT(sheaf_match)

/* What would be found now. Advice: nothing changes, nothing is counted. O(n_tokens). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_peek(const sheaf_prefix *cache,
                                                    const sheaf_prompt *prompt,
                                                    sheaf_match *out);

/* Finds and holds in one step: a new sequence, the caller's, of the positions that match; an empty
 * one where none do. Counts a lookup, and makes what was found the last used. `match` may be null.
 * When no block can be had for a copy, the copied part is left out. SHEAF_E_NO_MEMORY,
 * SHEAF_E_OVERFLOW. O(n_tokens). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_match(sheaf_prefix *cache,
                                                     const sheaf_prompt *prompt,
                                                     sheaf_sequence **out, sheaf_match *match);

/* The blocks that hold the content of a key, in every group: blocks: [n_groups], with row
 * SHEAF_ROW_NONE in a window group that has let go of it. They are the cache's: retain what is to
 * stay; good until the next call. SHEAF_MISS. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_find(const sheaf_prefix *cache,
                                                    const sheaf_key *key, sheaf_block *blocks);

/* ---- publishing -------------------------------------------------------------------------- */

enum { SHEAF_PUBLISH_TAIL = 1 };

/* Makes the sequence's committed whole blocks part of the cache, with SHEAF_PUBLISH_TAIL also a
 * partial last one (not while a reservation is open); what is there already stays as it is. Of `prompt`
 * the namespace, session, ticket and priority count, and n_tokens: where it is more than the sequence
 * has, the size that the entry will come to. Tokens are the sequence's own, up to the first
 * SHEAF_TOKEN_NONE. What ends where the publication does is the session's from now on; nothing gets a
 * lower priority than it had.
 * Evicts what the limits ask for. *n_published (may be null): positions of it now in the cache.
 * SHEAF_REFUSED: nothing was published, the claim of its ticket is lost, and the ledger says why.
 * Larger than the capacity: of the blocks that a match of the whole entry needs. Slid: what is new could
 * not be matched to its end, since a window has let go of blocks that the cache lacks too; otherwise
 * blocks are published without those that windows have let go of, and who has them later fills them in.
 * SHEAF_E_FOREIGN: a block is in the cache for other tokens or in another namespace: nothing was.
 * SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW: nothing was.
 * O(tokens of the sequence) for comparing, plus the new blocks, and where it parts from an entry the
 * blocks that the entry has after that. O(tickets) more when others wait for what a claim has
 * published. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_publish(sheaf_prefix *cache,
                                                       const sheaf_prompt *prompt,
                                                       sheaf_sequence *seq, uint32_t flags,
                                                       uint32_t *n_published);

/* ---- the door of a step ------------------------------------------------------------------ */

/* One request's part of a step. With a sequence: `n` positions are reserved. Without one: `prompt`
 * is matched, and the smaller of `n` and what is left of it is reserved. */
typedef struct sheaf_step {
    uint32_t struct_size;
    uint32_t n;
    const sheaf_prompt *prompt;
    sheaf_sequence *sequence; /* in: null or running, nothing reserved. out: running */
    uint32_t reserved;        /* out: positions reserved */
    sheaf_match match;        /* out: of a sequence made here; struct_size need not be set */
} sheaf_step;
#define SHEAF_STEP_INIT SHEAF_STRUCT_INIT(sheaf_step)

/* What SHEAF_FULL lacked, in blocks a group. */
typedef struct sheaf_shortage {
    uint32_t struct_size;
    uint32_t n_groups;
    uint64_t needed[SHEAF_MAX_GROUPS];   /* by the whole step */
    uint64_t possible[SHEAF_MAX_GROUPS]; /* free now, or freed by evicting all that may go */
} sheaf_shortage;
#define SHEAF_SHORTAGE_INIT SHEAF_STRUCT_INIT(sheaf_shortage)

/* Reserves a whole step or nothing: matches and holds, then evicts what is needed, revoking
 * revocable pins last, then extends every sequence. After it no acquisition of the step can fail.
 * Where there is no room else, the copied parts of matches are left out before a pin is revoked.
 * SHEAF_FULL: no eviction would help, and none was made; *shortage (may be null) is written. The
 * steps are as they were; a sequence may have got a copy of a shared partial block.
 * SHEAF_E_BUSY: a sequence has a reservation, or two steps name one. SHEAF_E_INVALID,
 * SHEAF_E_OVERFLOW, SHEAF_E_NO_MEMORY: nothing has changed but what was evicted. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_reserve(sheaf_prefix *cache, sheaf_step *steps,
                                                       uint32_t n_steps,
                                                       sheaf_shortage *shortage);

/* SHEAF_OK or SHEAF_FULL as sheaf_prefix_reserve would answer now. Advice; changes nothing. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_can_reserve(sheaf_prefix *cache,
                                                           const sheaf_step *steps,
                                                           uint32_t n_steps,
                                                           sheaf_shortage *shortage);

/* ---- claims: nobody computes what another is computing ----------------------------------- */

/* Claims the prompt's whole blocks from position `have` on (what its sequence holds) for the caller
 * to compute; put the ticket into the prompt when publishing, and drop it at the end.
 * SHEAF_OK: claimed. SHEAF_PENDING: another claim covers the next block; *ticket is a place to wait:
 * poll it while other work runs. SHEAF_E_INVALID: `have` is beyond the prompt. SHEAF_E_NO_MEMORY.
 * O(tickets + claims * tokens in common). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_claim(sheaf_prefix *cache,
                                                     const sheaf_prompt *prompt, uint32_t have,
                                                     uint64_t *ticket);

/* Of a waiting ticket. SHEAF_PENDING: the other is still computing. SHEAF_OK: what is common has been
 * published, or the other is gone, was dropped or refused, or stalled past the timeout: the ticket is
 * void; match again, and claim again (which is the take-over). Of a claim: SHEAF_OK, it stands;
 * SHEAF_MISS, it was lost, and is void. SHEAF_E_STALE: no such ticket. Never waits. O(log tickets), or
 * O(tickets) when others wait and a claim is lost. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_poll(sheaf_prefix *cache, uint64_t ticket);

/* Drops a ticket of either kind: the request is done, preempted or gone. Waiters of a claim take over.
 * SHEAF_E_STALE: no such ticket. Costs as much. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_drop(sheaf_prefix *cache, uint64_t ticket);

#ifdef __cplusplus
}
#endif
#endif
