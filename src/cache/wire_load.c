/* cache/wire_load.c - parked sequences on their way in.
 *
 * Nothing is taken because a count says so: lists grow as their bytes arrive, and the pool's blocks are
 * taken as many at a time as have arrived before. But where several groups come near the budget, all are
 * taken at once: the last slab of a group that comes first could reach into what another needs. Until
 * the last frame has been checked
 *
 *  - blocks have one reference of kind IO, and
 *  - sequences are registered but empty: their tables count no block, and have in `rows` the
 *    numbers that the stream gives to blocks.
 *
 * Then both are joined, which cannot fail. Giving up frees both.
 */
#include <string.h>

#include "base/bits.h"
#include "cache/sequence.h"
#include "cache/wire.h"

/* A block that has been named, and may have arrived. */
typedef struct arrival {
    sheaf_block block;
    uint32_t index; /* in every table that names it */
} arrival;

typedef struct load {
    sheaf_pool *pool;
    const sheaf__layout *layout;
    sheaf__memory *memory;
    sheaf_error *err;
    sheaf__wire_in in;
    sheaf__wire_head head;
    sheaf_sequence **sequences; /* [n_sequences] */
    uint64_t sequences_capacity;
    uint32_t n_sequences;
    arrival *arrivals[SHEAF_MAX_GROUPS]; /* [n_named] */
    uint64_t capacities[SHEAF_MAX_GROUPS];
    uint64_t n_named[SHEAF_MAX_GROUPS];
    uint64_t n_taken[SHEAF_MAX_GROUPS];
    uint64_t n_tokens;
    uint32_t *words; /* tokens and lists of the sequence that is read */
    uint64_t words_capacity;
} load;

static sheaf_status no_memory(const load *l)
{
    return sheaf__error_set(l->err, SHEAF_E_NO_MEMORY, "no host memory for what is loaded");
}

/* ---- sequences ----------------------------------------------------------------------------- */

/* Reads n words, growing the room for them as they come. */
static sheaf_status get_words(load *l, uint64_t n)
{
    const uint64_t most = SHEAF__WIRE_BUFFER / sizeof(uint32_t);
    for (uint64_t done = 0; done < n;) {
        uint64_t piece = sheaf__min_u64(n - done, most);
        void *words = l->words;
        sheaf_status st = sheaf__memory_grow(l->memory, &words, &l->words_capacity,
                                             done + piece, sizeof *l->words);
        l->words = words;
        if (st != SHEAF_OK) return no_memory(l);
        SHEAF__TRY(sheaf__wire_in_get(&l->in, l->words + done, piece * sizeof *l->words));
        done += piece;
    }
    return sheaf__wire_in_close(&l->in);
}

/* Takes one number of a list: entry `index` of a table names it. */
static sheaf_status name_block(load *l, uint32_t g, uint32_t number, uint32_t index)
{
    uint64_t before = l->n_named[g];
    SHEAF__TRY(sheaf__wire_in_name(&l->in, &l->head, g, number, &l->n_named[g]));
    if (number == before) {
        void *arrivals = l->arrivals[g];
        sheaf_status st = sheaf__memory_grow(l->memory, &arrivals, &l->capacities[g],
                                             before + 1, sizeof *l->arrivals[g]);
        l->arrivals[g] = arrivals;
        if (st != SHEAF_OK) {
            l->n_named[g] = before;
            return no_memory(l);
        }
        l->arrivals[g][number].index = index;
    }
    if (l->arrivals[g][number].index != index)
        return sheaf__wire_in_wrong(&l->in, "a block is named at two places");
    return SHEAF_OK;
}

/* An empty sequence with the tokens, and the lists in its tables. */
static sheaf_status keep_sequence(load *l, const sheaf__wire_sequence *from)
{
    void *sequences = l->sequences;
    sheaf_status st = sheaf__memory_grow(l->memory, &sequences, &l->sequences_capacity,
                                         l->n_sequences + 1ull, sizeof *l->sequences);
    l->sequences = sequences;
    sheaf_sequence *seq = NULL;
    if (st == SHEAF_OK) st = sheaf__sequence_new(l->pool, from->n_tokens, &seq);
    if (st != SHEAF_OK) return no_memory(l);
    l->sequences[l->n_sequences++] = seq;
    seq->progress.length = from->n_tokens;
    if (from->n_tokens == 0) return SHEAF_OK; /* no word came */
    memcpy(seq->room.tokens, l->words, from->n_tokens * sizeof *seq->room.tokens);
    const uint32_t *numbers = l->words + from->n_tokens;
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        seq->room.tables[g].first_block = from->held[g].first;
        for (uint32_t i = 0; i < from->held[g].n; i++) {
            seq->room.tables[g].rows[i] = *numbers;
            SHEAF__TRY(name_block(l, g, *numbers++, from->held[g].first + i));
        }
    }
    return SHEAF_OK;
}

static sheaf_status get_sequence(load *l)
{
    sheaf__wire_sequence sequence;
    SHEAF__TRY(sheaf__wire_in_open_sequence(&l->in, &l->head, &sequence, &l->n_tokens));
    SHEAF__TRY(get_words(l, l->in.left / sizeof *l->words));
    return keep_sequence(l, &sequence);
}

/* ---- blocks -------------------------------------------------------------------------------- */

/* What the stream has of each group, and in all. */
static uint64_t count_blocks(const load *l, uint32_t *counts)
{
    uint64_t sum = 0;
    for (uint32_t g = 0; g < l->head.n_groups; g++)
        sum += counts[g] = (uint32_t)l->head.groups[g].n_blocks;
    return sum;
}

static sheaf_status no_room(const load *l, sheaf_status st)
{
    uint32_t counts[SHEAF_MAX_GROUPS];
    return sheaf__error_set(l->err, st, "the pool has no room for the %llu blocks saved",
                            (unsigned long long)count_blocks(l, counts));
}

/* Whether the pool could take them all, so that a stream that does not fit is refused by its head. */
static sheaf_status check_room(const load *l)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    count_blocks(l, counts);
    sheaf_status st = sheaf_pool_can_acquire(l->pool, counts);
    return st == SHEAF_OK ? SHEAF_OK : no_room(l, st);
}

/* Whether groups that are taken one after the other might keep room from each other: each commits less
 * than one slab more than it needs. */
static bool is_tight(const load *l)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    if (l->head.n_groups == 1) return false;
    count_blocks(l, counts);
    for (uint32_t g = 0; g < l->head.n_groups; g++) {
        uint32_t slab = l->layout->groups[g].slab_blocks;
        if (counts[g] > UINT32_MAX - slab) return true;
        counts[g] += slab;
    }
    return sheaf_pool_can_acquire(l->pool, counts) != SHEAF_OK;
}

/* Takes all blocks of all groups. */
static sheaf_status take_all(load *l)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    uint64_t n = count_blocks(l, counts);
    if (n == 0) return SHEAF_OK;
    sheaf_block *blocks = sheaf__memory_alloc(l->memory, n, sizeof *blocks), *next = blocks;
    if (blocks == NULL) return no_memory(l);
    sheaf_status st = sheaf_pool_acquire(l->pool, counts, SHEAF_OWNER_IO, blocks);
    for (uint32_t g = 0; st == SHEAF_OK && g < l->head.n_groups; g++)
        while (l->n_taken[g] < counts[g]) l->arrivals[g][l->n_taken[g]++].block = *next++;
    sheaf__memory_free(l->memory, blocks, n, sizeof *blocks);
    return st == SHEAF_OK ? SHEAF_OK : no_room(l, st);
}

/* Takes blocks of a group: as many as it has already, at least one. */
static sheaf_status take_blocks(load *l, uint32_t g, sheaf_block *blocks, uint32_t most)
{
    uint64_t n = sheaf__max_u64(1, l->n_taken[g]);
    n = sheaf__min_u64(sheaf__min_u64(n, most), l->n_named[g] - l->n_taken[g]);
    uint32_t counts[SHEAF_MAX_GROUPS] = {0};
    counts[g] = (uint32_t)n;
    sheaf_status st = sheaf_pool_acquire(l->pool, counts, SHEAF_OWNER_IO, blocks);
    if (st != SHEAF_OK)
        return sheaf__error_set(l->err, st, "the pool has no room for block %llu of group %u",
                                (unsigned long long)l->n_taken[g], g);
    for (uint64_t i = 0; i < n; i++) l->arrivals[g][l->n_taken[g]++].block = blocks[i];
    return SHEAF_OK;
}

static sheaf_status get_blocks(load *l, uint32_t g)
{
    sheaf_block blocks[256];
    for (uint64_t number = 0; number < l->n_named[g]; number++) {
        if (number == l->n_taken[g])
            SHEAF__TRY(take_blocks(l, g, blocks, sizeof blocks / sizeof blocks[0]));
        SHEAF__TRY(sheaf__wire_in_block(&l->in, &l->head, l->pool, l->arrivals[g][number].block,
                                        number));
    }
    return SHEAF_OK;
}

/* ---- whole --------------------------------------------------------------------------------- */

static sheaf_status get_all(load *l, const sheaf_key *space, uint64_t n_bytes,
                            uint32_t capacity)
{
    SHEAF__TRY(sheaf__wire_head_get(&l->head, &l->in));
    SHEAF__TRY(
        sheaf__wire_head_suits(&l->head, SHEAF__WIRE_SEQUENCES, l->layout, space, l->err));
    if (n_bytes != 0 && n_bytes != l->head.n_bytes)
        return sheaf__error_set(
            l->err, SHEAF_E_FORMAT, "it has %llu bytes; the stream in it has %llu",
            (unsigned long long)n_bytes, (unsigned long long)l->head.n_bytes);
    if (l->head.n_sequences > capacity)
        return sheaf__error_set(l->err, SHEAF_E_FORMAT,
                                "the stream carries %u sequences; there is room for %u",
                                l->head.n_sequences, capacity);
    SHEAF__TRY(check_room(l));
    for (uint32_t i = 0; i < l->head.n_sequences; i++) SHEAF__TRY(get_sequence(l));
    SHEAF__TRY(sheaf__wire_in_named_all(&l->in, &l->head, l->n_tokens, l->n_named));
    if (is_tight(l)) SHEAF__TRY(take_all(l));
    for (uint32_t g = 0; g < l->head.n_groups; g++) SHEAF__TRY(get_blocks(l, g));
    return sheaf__wire_in_finish(&l->in);
}

/* The handles are live and their counts far from full: neither of these fails. */
static void retain(load *l, sheaf_block block)
{
    sheaf_status st = sheaf__block_retain(l->pool, block, SHEAF_OWNER_PARKED);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
}

static void release_all(load *l)
{
    for (uint32_t g = 0; g < SHEAF_MAX_GROUPS; g++)
        for (uint64_t i = 0; i < l->n_taken[g]; i++) {
            sheaf_status st =
                sheaf__block_release(l->pool, l->arrivals[g][i].block, SHEAF_OWNER_IO);
            SHEAF__ASSERT(st == SHEAF_OK);
            (void)st;
        }
}

/* Joins a sequence and its blocks. */
static void join(load *l, sheaf_sequence *seq)
{
    uint32_t n_blocks = sheaf__blocks_of(seq->progress.length, seq->block_tokens);
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        sheaf__table *table = &seq->room.tables[g];
        table->n_blocks = n_blocks - table->first_block;
        for (uint32_t i = 0; i < table->n_blocks; i++) {
            sheaf_block block = l->arrivals[g][table->rows[i]].block;
            retain(l, block);
            sheaf__table_set(table, i, block);
        }
    }
    sheaf__progress_settle(&seq->progress, seq->progress.length);
    seq->owner.kind = SHEAF_OWNER_PARKED;
}

static void free_lists(load *l)
{
    for (uint32_t g = 0; g < SHEAF_MAX_GROUPS; g++)
        sheaf__memory_free(l->memory, l->arrivals[g], l->capacities[g], sizeof *l->arrivals[g]);
    sheaf__memory_free(l->memory, l->words, l->words_capacity, sizeof *l->words);
    sheaf__memory_free(l->memory, l->sequences, l->sequences_capacity, sizeof *l->sequences);
}

static void hand_out(load *l, sheaf_parked **parked, uint32_t *n)
{
    for (uint32_t i = 0; i < l->n_sequences; i++) join(l, l->sequences[i]);
    release_all(l);
    for (uint32_t i = 0; i < l->n_sequences; i++) {
        parked[i] = (sheaf_parked *)(void *)l->sequences[i];
        sheaf__sequence_changed(l->sequences[i]);
    }
    *n = l->n_sequences;
}

static void give_up(load *l)
{
    release_all(l);
    for (uint32_t i = 0; i < l->n_sequences; i++) sheaf_sequence_destroy(l->sequences[i]);
}

sheaf_status sheaf__wire_load(sheaf_pool *pool, const sheaf_key *space,
                              const sheaf_source *source, uint64_t n_bytes,
                              const sheaf__wire_places *places, sheaf_error *err)
{
    load l = {.pool = pool, .err = err};
    l.layout = sheaf__pool_layout(pool);
    l.memory = sheaf__pool_memory(pool);
    sheaf_status st = sheaf__wire_in_begin(&l.in, source, l.memory, err);
    if (st == SHEAF_OK) st = get_all(&l, space, n_bytes, places->capacity);
    if (st == SHEAF_OK)
        hand_out(&l, places->parked, places->n);
    else
        give_up(&l);
    free_lists(&l);
    sheaf__wire_head_free(&l.head, l.memory);
    sheaf__wire_in_end(&l.in);
    sheaf__pool_publish(pool);
    return st;
}

sheaf_status sheaf_wire_load(sheaf_pool *pool, const sheaf_key *space,
                             const sheaf_source *source, sheaf_parked **parked,
                             uint32_t capacity, uint32_t *n, sheaf_error *err)
{
    if (pool == NULL || source == NULL || source->read == NULL || parked == NULL ||
        capacity == 0 || n == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "nothing to load from, or nowhere to");
    const sheaf__wire_places places = {parked, capacity, n};
    return sheaf__wire_load(pool, space, source, 0, &places, err);
}
