/* cache/check.c - what a sequence holds in real bytes, and whether its invariants hold.
 *
 * The numbers of the invariants must match src/cache/sequence.c.
 */
#include "cache/sequence.h"

/* ---- usage ------------------------------------------------------------------------------- */

sheaf_status sheaf__sequence_usage_of(const sheaf_sequence *seq, sheaf_usage *out)
{
    sheaf_usage usage = SHEAF_USAGE_INIT;
    usage.n_tokens = seq->progress.length;
    usage.host_bytes = sizeof *seq + seq->progress.n_layers * sizeof seq->written[0] +
                       seq->room.n_words * sizeof *seq->room.words;
    const sheaf__layout *layout = sheaf__pool_layout(seq->pool);
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        const sheaf__table *table = &seq->room.tables[g];
        uint64_t exclusive = 0;
        for (uint32_t i = 0; i < table->n_blocks; i++)
            exclusive += !sheaf__pool_row_shared(seq->pool, g, table->rows[i]);
        usage.blocks_by_group[g] = table->n_blocks;
        usage.blocks += table->n_blocks;
        usage.bytes += table->n_blocks * layout->groups[g].block_bytes;
        usage.bytes_exclusive += exclusive * layout->groups[g].block_bytes;
    }
    return sheaf__struct_give(out, &usage, sizeof usage);
}

sheaf_status sheaf_sequence_usage(const sheaf_sequence *seq, sheaf_usage *out)
{
    if (seq == NULL || out == NULL) return SHEAF_E_INVALID;
    return sheaf__sequence_usage_of(seq, out);
}

/* ---- invariants -------------------------------------------------------------------------- */

static sheaf_status broken(sheaf_error *err, uint32_t number, const char *what, uint32_t where)
{
    return sheaf__error_set(err, SHEAF_E_CORRUPT, "sequence invariant %u: %s %u", number, what,
                            where);
}

/* 1 and 6. */
static sheaf_status check_progress(const sheaf_sequence *seq, sheaf_error *err)
{
    const sheaf__progress *progress = &seq->progress;
    uint64_t end = (uint64_t)progress->length + progress->reserved;
    if (end > INT32_MAX || end > seq->room.capacity)
        return broken(err, 1, "positions end beyond the room of", seq->room.capacity);
    for (uint32_t i = 0; i < progress->n_layers; i++)
        if (progress->written[i] < progress->length || progress->written[i] > end)
            return broken(err, 1, "written positions out of range in layer", i);
    if (seq->owner.kind == SHEAF_OWNER_PARKED && progress->reserved != 0)
        return broken(err, 6, "parked with reserved positions:", progress->reserved);
    return SHEAF_OK;
}

/* 2 and 3. */
static sheaf_status check_extent(const sheaf_sequence *seq, uint32_t group, sheaf_error *err)
{
    const sheaf__table *table = &seq->room.tables[group];
    uint32_t length = seq->progress.length, end = length + seq->progress.reserved;
    if (table->first_block + table->n_blocks != sheaf__blocks_of(end, seq->block_tokens))
        return broken(err, 2, "table ends elsewhere than the positions in group", group);
    uint64_t held_from = (uint64_t)table->first_block * seq->block_tokens;
    if (held_from > sheaf__visible_begin(length, sheaf__sequence_window(seq, group)))
        return broken(err, 3, "visible positions were let go in group", group);
    return SHEAF_OK;
}

/* 4 and 5. */
static sheaf_status check_blocks(const sheaf_sequence *seq, uint32_t group, sheaf_error *err)
{
    const sheaf__table *table = &seq->room.tables[group];
    uint32_t first_reserved = seq->progress.length / seq->block_tokens;
    for (uint32_t i = 0; i < table->n_blocks; i++) {
        uint32_t total = 0, by_kind[SHEAF_OWNER_KINDS] = {0};
        sheaf_block block = sheaf__table_block(table, group, i);
        sheaf_status st = sheaf_pool_references(seq->pool, block, &total, by_kind);
        if (st != SHEAF_OK || by_kind[seq->owner.kind] == 0)
            return broken(err, 4, "no reference of this sequence's kind to row", block.row);
        bool reserved = seq->progress.reserved != 0 && table->first_block + i >= first_reserved;
        if (reserved && total != 1)
            return broken(err, 5, "reserved positions in a shared block, row", block.row);
    }
    return SHEAF_OK;
}

sheaf_status sheaf__sequence_check_of(const sheaf_sequence *seq, sheaf_error *err)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(check_progress(seq, err));
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        SHEAF__TRY(check_extent(seq, g, err));
        SHEAF__TRY(check_blocks(seq, g, err));
    }
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_check(const sheaf_sequence *seq, sheaf_error *err)
{
    return sheaf__sequence_check_of(seq, err);
}

void sheaf__sequence_changed(const sheaf_sequence *seq)
{
    sheaf__pool_publish(seq->pool);
#if SHEAF_CHECK >= 2
    SHEAF__ASSERT(sheaf__sequence_check_of(seq, NULL) == SHEAF_OK);
    SHEAF__ASSERT(sheaf_pool_check(seq->pool, NULL) == SHEAF_OK);
#endif
}
