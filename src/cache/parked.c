/* cache/parked.c - a parked sequence: blocks held, nothing running.
 *
 *     running --park--> parked --adopt--> running      consumes; references change their kind
 *                       parked --clone--> running      any length; the parked one stays
 *                       parked --trim--->  parked      the tail goes
 *
 * The invariants are those of src/cache/sequence.c.
 */
#include "cache/sequence.h"

/* Turns every reference into one of kind `to`. Cannot fail: the handles are its own. */
static void relabel(sheaf_sequence *seq, uint32_t to)
{
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        const sheaf__table *table = &seq->room.tables[g];
        for (uint32_t i = 0; i < table->n_blocks; i++) {
            sheaf_status st = sheaf__block_transfer(seq->pool, sheaf__table_block(table, g, i),
                                                    seq->owner.kind, to);
            SHEAF__ASSERT(st == SHEAF_OK);
            (void)st;
        }
    }
    seq->owner.kind = to;
    sheaf__sequence_changed(seq);
}

sheaf_status sheaf_sequence_park(sheaf_sequence *seq, sheaf_parked **out)
{
    if (seq == NULL || out == NULL) return SHEAF_E_INVALID;
    if (seq->progress.reserved != 0) return SHEAF_E_BUSY;
    relabel(seq, SHEAF_OWNER_PARKED);
    *out = (sheaf_parked *)(void *)seq;
    return SHEAF_OK;
}

sheaf_status sheaf_parked_adopt(sheaf_parked *parked, sheaf_sequence **out)
{
    if (parked == NULL || out == NULL) return SHEAF_E_INVALID;
    sheaf_sequence *seq = sheaf__sequence_of(parked);
    relabel(seq, SHEAF_OWNER_TABLE);
    *out = seq;
    return SHEAF_OK;
}

sheaf_status sheaf_parked_clone(sheaf_parked *parked, uint32_t length, sheaf_sequence **out)
{
    if (parked == NULL || out == NULL) return SHEAF_E_INVALID;
    const sheaf_sequence *seq = sheaf__sequence_of(parked);
    SHEAF__TRY(sheaf__sequence_covers(seq, length));
    return sheaf__sequence_duplicate(seq, length, true, out);
}

sheaf_status sheaf_parked_trim(sheaf_parked *parked, uint32_t length)
{
    if (parked == NULL) return SHEAF_E_INVALID;
    return sheaf_sequence_truncate(sheaf__sequence_of(parked), length);
}

void sheaf_parked_destroy(sheaf_parked *parked)
{
    sheaf_sequence_destroy(sheaf__sequence_of(parked));
}

uint32_t sheaf_parked_length(const sheaf_parked *parked)
{
    return sheaf__sequence_of_const(parked)->progress.length;
}

const int32_t *sheaf_parked_tokens(const sheaf_parked *parked)
{
    return sheaf__sequence_of_const(parked)->room.tokens;
}

sheaf_status sheaf_parked_usage(const sheaf_parked *parked, sheaf_usage *out)
{
    if (parked == NULL || out == NULL) return SHEAF_E_INVALID;
    return sheaf__sequence_usage_of(sheaf__sequence_of_const(parked), out);
}

sheaf_status sheaf_parked_check(const sheaf_parked *parked, sheaf_error *err)
{
    return sheaf__sequence_check_of(sheaf__sequence_of_const(parked), err);
}
