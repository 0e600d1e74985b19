/* cache/wire_save.c - parked sequences on their way out.
 *
 * Blocks are numbered per group in the order in which the sequences name them; one that is named again
 * keeps its number and is written once. What is written of it reaches as far as the longest of the
 * sequences that name it.
 */
#include <string.h>

#include "base/bits.h"
#include "cache/sequence.h"
#include "cache/wire.h"

/* A block that leaves. */
typedef struct leaving {
    uint32_t row;
    uint32_t generation;
    uint32_t n_slots; /* that some sequence has committed */
} leaving;

/* One group's blocks and the lists that name them. */
typedef struct leaving_group {
    leaving *blocks;   /* [n_entries], of which n_blocks are used */
    uint32_t *numbers; /* [n_entries]: the sequences' lists, one after the other */
    uint64_t n_entries;
    uint64_t n_written; /* of numbers */
    uint32_t n_blocks;
} leaving_group;

typedef struct save {
    sheaf_pool *pool;
    const sheaf__layout *layout;
    sheaf__memory *memory;
    sheaf_parked *const *parked; /* [n] */
    uint32_t n;
    sheaf__wire_head head;
    leaving_group groups[SHEAF_MAX_GROUPS];
    unsigned char *scratch; /* for blocks that are not full */
    uint64_t scratch_bytes;
    sheaf__wire_out out;
} save;

static const sheaf_sequence *sequence_at(const save *s, uint32_t i)
{
    return sheaf__sequence_of_const(s->parked[i]);
}

/* ---- numbers of blocks --------------------------------------------------------------------- */

/* An open table from rows to numbers; slots hold number + 1. */
typedef struct row_table {
    uint32_t *slots; /* [n_slots], a power of two */
    uint64_t n_slots;
} row_table;

/* The slot of a row, or the empty one where it belongs. */
static uint32_t *find_row(const row_table *table, const leaving *blocks, uint32_t row)
{
    uint64_t i = row * 0x9e3779b97f4a7c15u >> 32 & (table->n_slots - 1);
    while (table->slots[i] != 0 && blocks[table->slots[i] - 1].row != row)
        i = (i + 1) & (table->n_slots - 1);
    return &table->slots[i];
}

/* Numbers the blocks of group g in the table of one sequence. */
static void number_blocks(save *s, uint32_t g, const sheaf_sequence *seq,
                          const row_table *table)
{
    leaving_group *group = &s->groups[g];
    const sheaf__table *held = &seq->room.tables[g];
    uint32_t length = seq->progress.length;
    for (uint32_t i = 0; i < held->n_blocks; i++) {
        uint32_t *slot = find_row(table, group->blocks, held->rows[i]);
        if (*slot == 0) {
            group->blocks[group->n_blocks] = (leaving){held->rows[i], held->generations[i], 0};
            *slot = ++group->n_blocks;
        }
        uint32_t number = *slot - 1;
        uint32_t n_slots = length - (held->first_block + i) * s->layout->block_tokens;
        leaving *block = &group->blocks[number];
        block->n_slots = (uint32_t)sheaf__max_u64(
            block->n_slots, sheaf__min_u64(n_slots, s->layout->block_tokens));
        group->numbers[group->n_written++] = number;
    }
}

static sheaf_status number_group(save *s, uint32_t g)
{
    leaving_group *group = &s->groups[g];
    for (uint32_t i = 0; i < s->n; i++)
        group->n_entries += sequence_at(s, i)->room.tables[g].n_blocks;
    if (group->n_entries > UINT32_MAX / 4) return SHEAF_E_OVERFLOW;
    if (group->n_entries == 0) return SHEAF_OK;
    row_table table = {.n_slots = 2ull << sheaf__log2(group->n_entries)};
    if (table.n_slots < 2 * group->n_entries) table.n_slots *= 2;
    table.slots = sheaf__memory_alloc(s->memory, table.n_slots, sizeof *table.slots);
    group->blocks = sheaf__memory_alloc(s->memory, group->n_entries, sizeof *group->blocks);
    group->numbers = sheaf__memory_alloc(s->memory, group->n_entries, sizeof *group->numbers);
    bool whole = table.slots != NULL && group->blocks != NULL && group->numbers != NULL;
    for (uint32_t i = 0; whole && i < s->n; i++) number_blocks(s, g, sequence_at(s, i), &table);
    sheaf__memory_free(s->memory, table.slots, table.n_slots, sizeof *table.slots);
    group->n_written = 0;
    return whole ? SHEAF_OK : SHEAF_E_NO_MEMORY;
}

/* ---- frames -------------------------------------------------------------------------------- */

static uint64_t sequence_bytes(const save *s, const sheaf_sequence *seq)
{
    uint64_t words = 2 + 2 * (uint64_t)s->layout->n_groups + seq->progress.length;
    for (uint32_t g = 0; g < s->layout->n_groups; g++) words += seq->room.tables[g].n_blocks;
    return words * sizeof(uint32_t);
}

/* Everything that HEAD says. */
static sheaf_status describe(save *s, const sheaf_key *space)
{
    sheaf__wire_head_init(&s->head, s->layout);
    s->head.carries = SHEAF__WIRE_SEQUENCES;
    s->head.n_sequences = s->n;
    s->head.space = *space;
    for (uint32_t g = 0; g < s->layout->n_groups; g++) {
        SHEAF__TRY(number_group(s, g));
        s->head.groups[g].n_blocks = s->groups[g].n_blocks;
    }
    if (!sheaf__wire_head_stream_bytes(&s->head, &s->head.n_bytes)) return SHEAF_E_OVERFLOW;
    for (uint32_t i = 0; i < s->n; i++) {
        s->head.n_tokens += sequence_at(s, i)->progress.length;
        s->head.n_bytes += SHEAF__WIRE_FRAME + sequence_bytes(s, sequence_at(s, i));
    }
    s->scratch_bytes = sheaf__wire_scratch_bytes(s->layout);
    s->scratch = sheaf__memory_alloc(s->memory, s->scratch_bytes, 1);
    return s->scratch != NULL ? SHEAF_OK : SHEAF_E_NO_MEMORY;
}

static sheaf_status put_sequence(save *s, const sheaf_sequence *seq)
{
    sheaf__wire_out *out = &s->out;
    const uint32_t front[2] = {seq->progress.length, 0};
    sheaf__wire_out_open(out, SHEAF__WIRE_SEQN, sequence_bytes(s, seq));
    sheaf__wire_out_put(out, front, sizeof front);
    for (uint32_t g = 0; g < s->layout->n_groups; g++) {
        const sheaf__table *table = &seq->room.tables[g];
        const uint32_t held[2] = {table->first_block, table->n_blocks};
        sheaf__wire_out_put(out, held, sizeof held);
    }
    sheaf__wire_out_put(out, seq->room.tokens, seq->progress.length * sizeof(int32_t));
    for (uint32_t g = 0; g < s->layout->n_groups; g++) {
        leaving_group *group = &s->groups[g];
        uint32_t n = seq->room.tables[g].n_blocks;
        if (n != 0)
            sheaf__wire_out_put(out, group->numbers + group->n_written, n * sizeof(uint32_t));
        group->n_written += n;
    }
    return sheaf__wire_out_close(out);
}

static sheaf_status put_all(save *s)
{
    SHEAF__TRY(sheaf__wire_head_put(&s->head, s->layout, &s->out));
    for (uint32_t i = 0; i < s->n; i++) SHEAF__TRY(put_sequence(s, sequence_at(s, i)));
    for (uint32_t g = 0; g < s->layout->n_groups; g++)
        for (uint32_t number = 0; number < s->groups[g].n_blocks; number++) {
            const leaving *leaver = &s->groups[g].blocks[number];
            sheaf_block block = {g, leaver->row, leaver->generation};
            SHEAF__TRY(sheaf__wire_out_block(&s->out, s->pool, block, number, leaver->n_slots,
                                             s->scratch));
        }
    return sheaf__wire_out_finish(&s->out);
}

/* ---- whole --------------------------------------------------------------------------------- */

static void release(save *s)
{
    for (uint32_t g = 0; g < SHEAF_MAX_GROUPS; g++) {
        leaving_group *group = &s->groups[g];
        sheaf__memory_free(s->memory, group->blocks, group->n_entries, sizeof *group->blocks);
        sheaf__memory_free(s->memory, group->numbers, group->n_entries, sizeof *group->numbers);
    }
    sheaf__memory_free(s->memory, s->scratch, s->scratch_bytes, 1);
}

sheaf_status sheaf_wire_save(sheaf_parked *const *parked, uint32_t n, const sheaf_key *space,
                             const sheaf_sink *sink, sheaf_error *err)
{
    if (parked == NULL || n == 0 || space == NULL || sink == NULL || sink->write == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "nothing to save, or nowhere to");
    for (uint32_t i = 0; i < n; i++) {
        if (parked[i] == NULL)
            return sheaf__error_set(err, SHEAF_E_INVALID, "parked sequence %u is null", i);
        if (sheaf__sequence_of_const(parked[i])->pool !=
            sheaf__sequence_of_const(parked[0])->pool)
            return sheaf__error_set(err, SHEAF_E_INVALID,
                                    "parked sequence %u is of another pool than the first", i);
    }
    sheaf_pool *pool = sheaf__sequence_of_const(parked[0])->pool;
    save s = {.pool = pool, .parked = parked, .n = n};
    s.layout = sheaf__pool_layout(pool);
    s.memory = sheaf__pool_memory(pool);
    sheaf_status st = describe(&s, space);
    if (st != SHEAF_OK)
        (void)sheaf__error_set(err, st, "the blocks to be saved cannot be listed: %s",
                               sheaf_status_text(st));
    if (st == SHEAF_OK) {
        st = sheaf__wire_out_begin(&s.out, sink, s.memory, err);
        if (st == SHEAF_OK) st = put_all(&s);
        sheaf__wire_out_end(&s.out);
    }
    release(&s);
    return st;
}
