/* cache/table.h - the host memory of one sequence: its token ids and its tables.
 *
 * Owns: the one allocation behind them. Does not own: the blocks that the tables name.
 *
 * A room has place for `capacity` positions in every group:
 *
 *     | tokens [capacity] | fresh handles | rows, generations of group 0 | of group 1 | ...
 *
 * One allocation, so that growing fails or succeeds as a whole: a larger room is made first,
 * the blocks are taken, and only then are the contents moved. `fresh` is where
 * sheaf_pool_acquire puts what a step takes, at most one block more in each group than
 * positions fill.
 */
#ifndef SHEAF_CACHE_TABLE_H
#define SHEAF_CACHE_TABLE_H

#include "base/memory.h"
#include "sheaf/pool.h"

/* One group's ordered rows. Entry i holds positions (first_block + i) * block_tokens and on. */
typedef struct sheaf__table {
    uint32_t *rows;        /* [n_blocks]; plain, as kernels read them */
    uint32_t *generations; /* [n_blocks] */
    uint32_t first_block;  /* blocks before rows[0], no longer held */
    uint32_t n_blocks;
} sheaf__table;

typedef struct sheaf__room {
    uint32_t *words; /* [n_words], the allocation */
    uint64_t n_words;
    uint32_t capacity;  /* positions */
    int32_t *tokens;    /* [capacity] */
    sheaf_block *fresh; /* [n_groups * (blocks of capacity + 1)] */
    sheaf__table tables[SHEAF_MAX_GROUPS];
} sheaf__room;

/* An empty room for at least `positions`, at most 2^31 - 1. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__room_create(sheaf__memory *memory, uint32_t n_groups, uint32_t block_tokens,
                                uint32_t positions, sheaf__room *out);
void sheaf__room_destroy(sheaf__memory *memory, sheaf__room *room);

/* Puts `larger` in place of `room`, with its tables and its first n_tokens tokens. */
void sheaf__room_replace(sheaf__memory *memory, sheaf__room *room, const sheaf__room *larger,
                         uint32_t n_tokens);

/* The handle of entry i of group `group`. */
sheaf_block sheaf__table_block(const sheaf__table *table, uint32_t group, uint32_t i);

/* Sets entry i. */
void sheaf__table_set(sheaf__table *table, uint32_t i, sheaf_block block);

/* Adds an entry at the end; the room has place. */
void sheaf__table_push(sheaf__table *table, sheaf_block block);

/* Forgets the first n entries: they count as let go. */
void sheaf__table_drop(sheaf__table *table, uint32_t n);

#endif
