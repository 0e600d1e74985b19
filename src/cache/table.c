/* cache/table.c - the host memory of one sequence: its token ids and its tables. */
#include "cache/table.h"

#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define MIN_CAPACITY 64 /* positions: a short chat turn, a few hundred bytes */

_Static_assert(sizeof(sheaf_block) == 3 * sizeof(uint32_t),
               "a handle is three words of a room");

sheaf_status sheaf__room_create(sheaf__memory *memory, uint32_t n_groups, uint32_t block_tokens,
                                uint32_t positions, sheaf__room *out)
{
    /* At most 2^31 positions and 8 groups: far from 64 bits. */
    uint64_t capacity = sheaf__max_u64(positions, MIN_CAPACITY);
    uint64_t blocks = sheaf__ceil_div_u64(capacity, block_tokens);
    uint64_t n_fresh = n_groups * (blocks + 1);
    sheaf__room room = {.capacity = (uint32_t)capacity};
    room.n_words = capacity + 3 * n_fresh + 2 * n_groups * blocks;
    room.words = sheaf__memory_alloc(memory, room.n_words, sizeof *room.words);
    if (room.words == NULL) return SHEAF_E_NO_MEMORY;
    room.tokens = (int32_t *)room.words;
    room.fresh = (sheaf_block *)(void *)(room.words + capacity);
    uint32_t *next = room.words + capacity + 3 * n_fresh;
    for (uint32_t g = 0; g < n_groups; g++, next += 2 * blocks) {
        room.tables[g].rows = next;
        room.tables[g].generations = next + blocks;
    }
    *out = room;
    return SHEAF_OK;
}

void sheaf__room_destroy(sheaf__memory *memory, sheaf__room *room)
{
    sheaf__memory_free(memory, room->words, room->n_words, sizeof *room->words);
    *room = (sheaf__room){0};
}

void sheaf__room_replace(sheaf__memory *memory, sheaf__room *room, const sheaf__room *larger,
                         uint32_t n_tokens)
{
    sheaf__room next = *larger;
    memcpy(next.tokens, room->tokens, n_tokens * sizeof *next.tokens);
    for (uint32_t g = 0; g < SHEAF_MAX_GROUPS; g++) {
        const sheaf__table *from = &room->tables[g];
        sheaf__table *to = &next.tables[g];
        to->first_block = from->first_block;
        to->n_blocks = from->n_blocks;
        if (from->n_blocks == 0) continue;
        memcpy(to->rows, from->rows, from->n_blocks * sizeof *to->rows);
        memcpy(to->generations, from->generations, from->n_blocks * sizeof *to->generations);
    }
    sheaf__room_destroy(memory, room);
    *room = next;
}

sheaf_block sheaf__table_block(const sheaf__table *table, uint32_t group, uint32_t i)
{
    SHEAF__ASSERT(i < table->n_blocks);
    return (sheaf_block){group, table->rows[i], table->generations[i]};
}

void sheaf__table_set(sheaf__table *table, uint32_t i, sheaf_block block)
{
    SHEAF__ASSERT(i < table->n_blocks);
    table->rows[i] = block.row;
    table->generations[i] = block.generation;
}

void sheaf__table_push(sheaf__table *table, sheaf_block block)
{
    table->n_blocks++;
    sheaf__table_set(table, table->n_blocks - 1, block);
}

void sheaf__table_drop(sheaf__table *table, uint32_t n)
{
    SHEAF__ASSERT(n <= table->n_blocks);
    table->n_blocks -= n;
    table->first_block += n;
    memmove(table->rows, table->rows + n, table->n_blocks * sizeof *table->rows);
    memmove(table->generations, table->generations + n,
            table->n_blocks * sizeof *table->generations);
}
