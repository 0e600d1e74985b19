/* sheaf/rows.h - the rows of a pool, seen and tidied: a map of every block's state, and compaction.
 *
 * Owns: looking at all rows at once, and moving blocks so that slabs fall empty. Does not own: who
 * holds what (sheaf/pool.h), what is evicted (sheaf/ledger.h).
 *
 *     sheaf_row rows[256];
 *     st = sheaf_pool_map(pool, group, first, 256, rows);        // draw them
 *     sheaf_compaction done = SHEAF_COMPACTION_INIT;
 *     st = sheaf_pool_compact(pool, 64, &done);                  // SHEAF_PENDING: there is more to do
 */
#ifndef SHEAF_ROWS_H
#define SHEAF_ROWS_H

#include "sheaf/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a row is. With several owners the state is SHARED, whoever they are. */
enum {
    SHEAF_ROW_ABSENT = 0,   /* no memory behind it */
    SHEAF_ROW_FREE = 1,     /* committed, nobody's */
    SHEAF_ROW_RUNNING = 2,  /* one running sequence's */
    SHEAF_ROW_PARKED = 3,   /* one parked sequence's */
    SHEAF_ROW_CACHED = 4,   /* the prefix cache's alone */
    SHEAF_ROW_SHARED = 5,   /* more than one owner's */
    SHEAF_ROW_IO = 6,       /* a copy, save or load in flight, alone */
    SHEAF_ROW_HOST = 7,     /* the embedder's alone */
    SHEAF_ROW_RETIRING = 8, /* waits for a fence */
    SHEAF_ROW_PINNED =
        9 /* in the prefix cache and pinned there (sheaf_prefix_map alone says so) */
};

typedef struct sheaf_row {
    uint32_t state;
    uint32_t references;
    uint32_t generation; /* of the handle that is valid, while the block is held */
} sheaf_row;

/* Fills rows[0, n) for rows [first_row, first_row + n) of a group. Rows that the group will never
 * have are ABSENT. SHEAF_E_INVALID: no such group. Owner thread. O(n). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_map(const sheaf_pool *pool, uint32_t group,
                                                 uint32_t first_row, uint32_t n,
                                                 sheaf_row *rows);

/* One past the last row of the slabs that a group ever had: the end of its map. 0: no such group. */
SHEAF_API uint32_t sheaf_pool_rows(const sheaf_pool *pool, uint32_t group);

/* What a compaction did. */
typedef struct sheaf_compaction {
    uint32_t struct_size;
    uint32_t slabs_emptied;
    uint64_t blocks_moved;
    uint64_t bytes_moved;
    uint64_t bytes_returned; /* slabs given back to the system */
} sheaf_compaction;
#define SHEAF_COMPACTION_INIT SHEAF_STRUCT_INIT(sheaf_compaction)

/* Moves at most max_blocks blocks that only a prefix cache owns out of the emptiest slabs into the
 * free rows of others, and gives the emptied slabs back, the slack and presized slabs too. As many
 * slabs are emptied as the free rows of the others allow. Content, keys and counts stay; handles that
 * the cache holds are renewed, others of moved blocks (sheaf_prefix_find gives some) are stale. Never
 * commits memory. Slabs with a block that cannot be moved (a sequence's, an embedder's) stay. Not
 * between the planning and the running of attention: views name rows.
 * SHEAF_OK: nothing is left to do. SHEAF_PENDING: max_blocks came first. `out` may be null; it is
 * filled after both. SHEAF_E_INVALID: pool is null, or struct_size is not set.
 * O(max_blocks + slabs). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_compact(sheaf_pool *pool, uint32_t max_blocks,
                                                     sheaf_compaction *out);

#ifdef __cplusplus
}
#endif
#endif
