/* sheaf/ledger.h - the accounts of a prefix cache: what it holds, what leaves it and why.
 *
 * Owns: limits, pins, eviction, release, the counters, the events, and the list of entries. Does not
 * own: finding and publishing (sheaf/prefix.h), the pool's own budget (sheaf/pool.h).
 *
 *     sheaf_prefix_stats s = SHEAF_PREFIX_STATS_INIT;
 *     st = sheaf_prefix_stats_read(cache, &s);        // any thread
 *     st = sheaf_prefix_pin(cache, &prompt, owner, SHEAF_PIN_REVOCABLE, &pin, NULL);
 *     st = sheaf_prefix_evict(cache, bytes, &freed);
 *     st = sheaf_prefix_reset(cache, NULL, NULL);
 *
 * Each block counts once, in its real bytes: `held` when the cache names it, `exclusive` when nobody
 * else does. capacity_bytes bounds the exclusive bytes, always: also when a sequence ends and leaves
 * its blocks to the cache alone. An entry is the run of a leaf up to the last branch above it, or to
 * where another session or priority published; it leaves as a whole: lowest priority first, then the
 * longest unused, leaves before parents. A use of a part is one of the whole: an entry whose branch has
 * gone, and which is one with what was above it, is as old as that. What a running sequence holds stays,
 * and is used as long as it is held: such an entry loses its end alone. Blocks of a window group that no
 * match at the entry's end or at a branch needs may go before the entry.
 *
 * All that is exclusive may go, save what pins keep. Where such blocks stand before some that a
 * sequence holds, and nothing else is left, the cache forgets the entry: the sequence keeps its blocks.
 * So is an entry that is held forgotten when max_entries leaves no other.
 */
#ifndef SHEAF_LEDGER_H
#define SHEAF_LEDGER_H

#include "sheaf/prefix.h"
#include "sheaf/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- limits and leaving ------------------------------------------------------------------ */

/* Changes the limits (as in sheaf_prefix_options; its other fields are ignored) and evicts what they
 * ask for. SHEAF_REFUSED: pins hold more than capacity_bytes or max_entries; nothing has changed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_set_limits(sheaf_prefix *cache,
                                                          const sheaf_prefix_options *limits);

/* Evicts entries, as the order has them, until `bytes` of blocks have become free or nothing more
 * may go. *freed (may be null): what has. Amortised O(1) an entry and block; more where an entry becomes
 * one with what was above its branch (O(its blocks)), and for entries that sequences hold to their end,
 * which are passed over once a call. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_evict(sheaf_prefix *cache, uint64_t bytes,
                                                     uint64_t *freed);

/* Lets go of entries whose time to live is over; matching and publishing do it too. n: may be null,
 * as below. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_expire(sheaf_prefix *cache, uint32_t *n_entries);

/* Lets go of everything in one namespace (a client's salt is part of it), or of everything when
 * `space` is null; revocable pins there are revoked, what other pins hold stays. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_reset(sheaf_prefix *cache,
                                                     const sheaf_key *space,
                                                     uint32_t *n_entries);

/* Lets go of the entries that this session published last, up to what others use. SHEAF_E_INVALID:
 * session 0. O(nodes), times their logarithm where priorities fall. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_release_session(sheaf_prefix *cache,
                                                               uint64_t session,
                                                               uint32_t *n_entries);

/* ---- pins -------------------------------------------------------------------------------- */

enum { SHEAF_PIN_REVOCABLE = 1 };

/* Keeps what matches the prompt now (whole blocks; a partial one where the entry ends) from leaving,
 * until unpinned. Revocable pins are given up, oldest first, before a step is refused for want of room.
 * owner: the caller's own number. *length: positions pinned; may be null. Pinned bytes count whole
 * against the capacity: SHEAF_REFUSED when they would pass it. SHEAF_MISS: nothing matches.
 * SHEAF_E_NO_MEMORY. O(what matches). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_pin(sheaf_prefix *cache,
                                                   const sheaf_prompt *prompt, uint64_t owner,
                                                   uint32_t flags, uint64_t *pin,
                                                   uint32_t *length);

/* SHEAF_OK: it stands. SHEAF_MISS: it was revoked, or reset. SHEAF_E_STALE: never given, or
 * unpinned. O(pins). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_pinned(const sheaf_prefix *cache, uint64_t pin);

/* SHEAF_E_STALE: as above; nothing has changed. A revoked pin is unpinned like any other.
 * O(pins + what it kept). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_unpin(sheaf_prefix *cache, uint64_t pin);

/* Unpins all of an owner's; *n of them. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_unpin_owner(sheaf_prefix *cache, uint64_t owner,
                                                           uint32_t *n);

/* ---- accounts ---------------------------------------------------------------------------- */

/* Why something left. */
enum {
    SHEAF_LEFT_CAPACITY = 0, /* capacity_bytes */
    SHEAF_LEFT_ENTRIES = 1,  /* max_entries */
    SHEAF_LEFT_TTL = 2,
    SHEAF_LEFT_PRESSURE = 3, /* a step, or sheaf_prefix_evict, needed room */
    SHEAF_LEFT_RESET = 4,    /* reset, release, close */
    SHEAF_LEFT_KINDS = 5
};

/* Why something was not taken. */
enum {
    SHEAF_REFUSED_NONE = 0,
    SHEAF_REFUSED_TOO_LARGE = 1, /* the entry is, or will be, larger than the capacity */
    SHEAF_REFUSED_SLID = 2,      /* a window has let go of blocks that nobody published */
    SHEAF_REFUSED_PINS = 3,      /* pins would pass the capacity */
    SHEAF_REFUSED_ROOM = 4,      /* a step: no room in the pool */
    SHEAF_REFUSED_KINDS = 5
};

typedef struct sheaf_prefix_stats {
    uint32_t struct_size;
    uint32_t last_refusal;          /* its reason, and details: */
    uint64_t last_refusal_needed;   /* bytes */
    uint64_t last_refusal_possible; /* bytes */
    uint64_t last_refusal_tokens;
    uint64_t capacity_bytes; /* limits */
    uint64_t max_entries;
    uint64_t ttl_ns;
    uint64_t entries; /* now */
    uint64_t nodes;
    uint64_t spaces;
    uint64_t tokens;          /* cached */
    uint64_t blocks_held;     /* named by the cache */
    uint64_t bytes_held;      /* of these */
    uint64_t bytes_exclusive; /* named by the cache alone; at most capacity_bytes */
    uint64_t bytes_pinned;    /* kept by pins */
    uint64_t host_bytes;      /* of the tree and its index */
    uint64_t pins;
    uint64_t claims;
    uint64_t waiters;
    uint64_t lookups; /* ever */
    uint64_t hits;    /* lookups that found a position */
    uint64_t lookup_tokens;
    uint64_t hit_tokens;
    uint64_t copied_tokens; /* of these, in copied blocks */
    uint64_t inserts;       /* publications that added something */
    uint64_t inserted_blocks;
    uint64_t inserted_tokens;
    uint64_t duplicate_blocks; /* published, and there already */
    uint64_t replaced_blocks;  /* partial ones whose place what continues them has taken */
    uint64_t evictions[SHEAF_LEFT_KINDS];      /* entries, by cause */
    uint64_t evicted_blocks[SHEAF_LEFT_KINDS]; /* blocks let go, window blocks too: with
                                                  those replaced, all inserted but not held */
    uint64_t window_blocks_dropped;            /* before their entry */
    uint64_t refusals[SHEAF_REFUSED_KINDS];
    uint64_t pins_revoked;
    uint64_t waits;     /* claims answered with SHEAF_PENDING */
    uint64_t takeovers; /* claims lost to a waiter: dropped, or stalled */
    uint64_t events;    /* number of the last one */
} sheaf_prefix_stats;
#define SHEAF_PREFIX_STATS_INIT SHEAF_STRUCT_INIT(sheaf_prefix_stats)

/* A consistent snapshot as after the last call that changed the cache. Any thread, without a lock.
 * bytes_exclusive follows the pool: sequences that end change it. SHEAF_E_INVALID: struct_size. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_stats_read(const sheaf_prefix *cache,
                                                          sheaf_prefix_stats *out);

typedef struct sheaf_entry {
    uint32_t n_tokens; /* of its run alone */
    uint32_t start;    /* position of the run's first token */
    int32_t priority;
    uint32_t pinned; /* non-zero: a pin keeps it or a part of it */
    uint64_t bytes;  /* of its blocks */
    uint64_t bytes_exclusive;
    uint64_t age_ns; /* since its last use */
    uint64_t session;
    sheaf_key space;
    sheaf_key key; /* of its last whole block; the namespace when it has none */
} sheaf_entry;

/* The entries in the order in which they would leave: at most `capacity` of them into out[].
 * *n: how many there are. Owner thread. O(entries' blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_entries(const sheaf_prefix *cache,
                                                       sheaf_entry *out, uint32_t capacity,
                                                       uint32_t *n);

/* As sheaf_pool_map, and rows that pins keep are SHEAF_ROW_PINNED. Owner thread. O(n, and what each
 * pin keeps). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_map(const sheaf_prefix *cache, uint32_t group,
                                                   uint32_t first_row, uint32_t n,
                                                   sheaf_row *rows);

/* ---- events ------------------------------------------------------------------------------ */

enum {
    SHEAF_EVENT_STORED = 0,  /* blocks can be found from now on */
    SHEAF_EVENT_REMOVED = 1, /* no longer */
    SHEAF_EVENT_CLEARED = 2  /* everything of the namespace keys[0]; n_keys 0: of all */
};

/* Called within the call that changes the cache; pointers are good during the callback. Events are
 * numbered from 1 without a gap: who misses one asks for everything again. Whole blocks alone. */
typedef struct sheaf_event {
    uint32_t struct_size;
    uint32_t kind;
    uint64_t number;
    sheaf_key parent;      /* STORED: the key before keys[0] */
    const sheaf_key *keys; /* [n_keys], in order */
    const int32_t *tokens; /* STORED: [n_keys * block_tokens] */
    uint32_t n_keys;
    uint32_t cause; /* REMOVED: SHEAF_LEFT_... */
} sheaf_event;
#define SHEAF_EVENT_INIT SHEAF_STRUCT_INIT(sheaf_event)

/* Verifies the numbered invariants at the top of src/cache/prefix.h. SHEAF_E_CORRUPT: `err` names
 * the first that is broken. O(blocks). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_prefix_check(const sheaf_prefix *cache,
                                                     sheaf_error *err);

#ifdef __cplusplus
}
#endif
#endif
