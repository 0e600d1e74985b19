/* pool/compact.c - moves blocks out of scattered slabs, so that these fall empty.
 *
 * A slab can be emptied when every row that it holds is movable: one reference, of a tree's node that
 * can be told. Which of these are victims is decided for a group at once, after its empty slabs have
 * gone back, so that all its free rows lie in slabs in use:
 *
 *     slab       0         1         2         3         4
 *              [######..][#.......][##......][########][=####...]      # movable   = not
 *     free        2         7         6         0         3            room: 18 rows
 *
 *     emptying a slab uses up its free rows and, elsewhere, as many as it holds: its n_rows in all.
 *     So slabs are victims, emptiest first, while their n_rows together are at most the room:
 *     1 and 2 (16 of 18). Their three blocks go to the fullest of the others: 0, 0, then 4
 *
 * Taking whole slabs in any order would empty equally many; the emptiest first moves the least. Short
 * slabs come last, with what room is left: they return least. A full slab is a victim too where those
 * that cannot be emptied have the room. The blocks that a victim holds always fit, so none is begun
 * in vain, and when max_blocks cuts a plan short the next call goes on with it: victims have only
 * become emptier, the others fuller, and their free rows are as many.
 *
 * While victims are set aside, taking a row takes it from the fullest slab that stays.
 */
#include "base/status.h"
#include "pool/holder.h"
#include "sheaf/rows.h"

/* Gives back all empty slabs, the slack too. */
static void give_back_empty(sheaf_pool *pool, sheaf__group *group, sheaf_compaction *done)
{
    while (group->counts.slabs_empty != 0) {
        uint32_t last = sheaf__group_last_empty(group);
        done->bytes_returned += group->slabs[last].bytes;
        sheaf__group_decommit(group, last, &pool->device);
    }
}

/* ---- choosing ------------------------------------------------------------------------------ */

/* Sets a slab aside if it can be emptied, is short or not as asked, and the room suffices. */
static void consider(sheaf__group *group, uint32_t index, bool is_short, uint64_t *room)
{
    const sheaf__slab *slab = &group->slabs[index];
    if (slab->n_movable != slab->n_rows - slab->n_free) return;
    if ((slab->n_rows < group->layout->slab_blocks) != is_short || slab->n_rows > *room) return;
    *room -= slab->n_rows;
    sheaf__group_set_aside(group, index);
}

static void consider_list(sheaf__group *group, uint32_t list, bool is_short, uint64_t *room)
{
    uint32_t index = group->heads[list], last = group->slabs[index].prev;
    for (bool more = true; more;) {
        uint32_t next = group->slabs[index].next;
        more = index != last;
        consider(group, index, is_short, room);
        index = next;
    }
}

/* Sets the victims aside, the first to be emptied first. No slab is empty. */
static void choose_victims(sheaf__group *group)
{
    uint64_t room = group->counts.free;
    for (int is_short = 0; is_short <= 1; is_short++) {
        uint32_t list = group->layout->slab_blocks;
        while ((list = sheaf__group_list_below(group, list)) != 0)
            consider_list(group, list, is_short, &room);
        for (uint32_t i = group->first_slab; i < group->n_slabs && room != 0; i++)
            if (group->slabs[i].list == SHEAF__SLAB_NONE)
                consider(group, i, is_short, &room); /* without a free row */
    }
}

/* ---- moving -------------------------------------------------------------------------------- */

/* The block keeps its one reference, in a row of another slab and under another handle. */
static void move_block(sheaf_pool *pool, uint32_t g, uint32_t from)
{
    sheaf__group *group = &pool->groups[g];
    uint32_t to = sheaf__group_take(group);
    sheaf__record *was = sheaf__record_for_row(group, from);
    sheaf__record *is = sheaf__record_for_row(group, to);
    /* a failed copy is the pool's fault: nothing of it is handed out any more */
    (void)!sheaf__pool_copy_row(pool, g, from, to);
    is->state = SHEAF__ROW_HELD;
    is->total = is->by_kind[SHEAF_OWNER_TREE] = 1;
    is->holder = was->holder;
    is->holder_index = was->holder_index;
    sheaf__slab_for_row_mut(group, to)->n_movable++;
    was->state = SHEAF__ROW_FREE;
    was->total = was->by_kind[SHEAF_OWNER_TREE] = 0;
    was->holder = NULL;
    was->generation = sheaf__generation_after(was->generation);
    sheaf__slab_for_row_mut(group, from)->n_movable--;
    sheaf__group_vacate(group, from, &pool->device);
    pool->keeper->moved(pool->keeper, is->holder, is->holder_index,
                        (sheaf_block){g, to, is->generation});
}

/* Moves at most `most` blocks out of a victim; returns how many. O(slab_blocks / 64 + moves). */
static uint64_t empty_slab(sheaf_pool *pool, uint32_t g, uint32_t index, uint64_t most)
{
    sheaf__group *group = &pool->groups[g];
    const sheaf__slab *slab = &group->slabs[index];
    uint64_t moved = 0;
    for (uint32_t word = 0; word * 64 < slab->n_rows && moved < most; word++) {
        uint32_t rows = slab->n_rows - word * 64;
        uint64_t held = ~slab->free_bits[word] & (rows < 64 ? (1ull << rows) - 1 : UINT64_MAX);
        for (; held != 0 && moved < most; held &= held - 1, moved++) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(held);
            move_block(pool, g, sheaf__row_at(group, index, slot));
        }
    }
    return moved;
}

/* Returns whether all its victims are empty now. */
static bool compact_group(sheaf_pool *pool, uint32_t g, uint32_t max_blocks,
                          sheaf_compaction *done)
{
    sheaf__group *group = &pool->groups[g];
    bool complete = true;
    uint32_t index;
    give_back_empty(pool, group, done);
    if (pool->keeper != NULL) choose_victims(group);
    while ((index = sheaf__group_first_aside(group)) != SHEAF__SLAB_NONE) {
        uint64_t moved = empty_slab(pool, g, index, max_blocks - done->blocks_moved);
        done->blocks_moved += moved;
        done->bytes_moved += moved * group->layout->block_bytes;
        bool empty = sheaf__group_put_back(group, index);
        done->slabs_emptied += empty;
        complete = complete && empty;
    }
    give_back_empty(pool, group, done);
    return complete;
}

sheaf_status sheaf_pool_compact(sheaf_pool *pool, uint32_t max_blocks, sheaf_compaction *out)
{
    if (pool == NULL || (out != NULL && out->struct_size < sizeof out->struct_size))
        return SHEAF_E_INVALID;
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    bool complete = true;
    sheaf__pool_enter(pool);
    sheaf__pool_collect(pool);
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        complete = compact_group(pool, g, max_blocks, &done) && complete;
    sheaf__pool_leave(pool);
    if (out != NULL) SHEAF__TRY(sheaf__struct_give(out, &done, sizeof done));
    return complete ? SHEAF_OK : SHEAF_PENDING;
}
