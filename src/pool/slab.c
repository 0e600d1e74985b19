/* pool/slab.c - the slabs of one group and the lists that find the fullest one with room.
 *
 * Blocks are taken from partly used slabs before empty ones, and from the partly used slab with the
 * fewest free rows: so that use gathers in few slabs and the others drain. Inside a slab the lowest
 * free slot is taken, so that blocks taken together lie together.
 */
#include "pool/slab.h"

#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define WORD_BITS 64

/* Committed memory is filled with NaN where checks are complete, so that whoever reads a row
 * before writing it is found out. */
static void poison(const sheaf__device *device, void *addr, uint64_t bytes)
{
#if SHEAF_CHECK >= 2
    device->poison(device->ctx, addr, bytes);
#else
    (void)device, (void)addr, (void)bytes;
#endif
}

static uint64_t slab_words(const sheaf__group *group)
{
    return sheaf__ceil_div_u64(group->layout->slab_blocks, WORD_BITS);
}

/* One for each number of free rows, 0 to slab_blocks, and one for slabs that are set aside. */
static uint32_t n_lists(const sheaf__group *group)
{
    return group->layout->slab_blocks + 2;
}

static uint64_t list_words(const sheaf__group *group)
{
    return sheaf__ceil_div_u64(n_lists(group), WORD_BITS);
}

/* ---- lists --------------------------------------------------------------------------------- */

/* At the list's end, so that slabs committed together are used in the order of their addresses. */
static void list_insert(sheaf__group *group, uint32_t list, uint32_t index)
{
    sheaf__slab *slab = &group->slabs[index];
    uint32_t head = group->heads[list];
    slab->list = list;
    if (head == SHEAF__SLAB_NONE) {
        slab->prev = slab->next = index;
        group->occupied[list / WORD_BITS] |= 1ull << (list % WORD_BITS);
        group->heads[list] = index;
    } else {
        slab->next = head;
        slab->prev = group->slabs[head].prev;
        group->slabs[slab->prev].next = index;
        group->slabs[head].prev = index;
    }
}

static void list_remove(sheaf__group *group, uint32_t index)
{
    sheaf__slab *slab = &group->slabs[index];
    uint32_t list = slab->list;
    if (list == SHEAF__SLAB_NONE) return;
    slab->list = SHEAF__SLAB_NONE;
    if (slab->next == index) {
        group->heads[list] = SHEAF__SLAB_NONE;
        group->occupied[list / WORD_BITS] &= ~(1ull << (list % WORD_BITS));
        return;
    }
    group->slabs[slab->prev].next = slab->next;
    group->slabs[slab->next].prev = slab->prev;
    if (group->heads[list] == index) group->heads[list] = slab->next;
}

/* Puts a committed slab into the list that its free rows call for. */
static void list_update(sheaf__group *group, uint32_t index)
{
    sheaf__slab *slab = &group->slabs[index];
    list_remove(group, index);
    if (slab->n_free == slab->n_rows)
        list_insert(group, group->layout->slab_blocks, index);
    else if (slab->n_free != 0)
        list_insert(group, slab->n_free, index);
}

/* ---- life ---------------------------------------------------------------------------------- */

sheaf_status sheaf__group_open(sheaf__group *group, const sheaf__group_layout *layout,
                               uint32_t max_slabs, const sheaf__device *device,
                               sheaf__memory *memory)
{
    memset(group, 0, sizeof *group);
    group->layout = layout;
    group->retiring = SHEAF_ROW_NONE;
    if (!sheaf__mul_u64(max_slabs, layout->slab_bytes, &group->range_bytes))
        return SHEAF_E_OVERFLOW;
    group->heads = sheaf__memory_alloc(memory, n_lists(group), sizeof group->heads[0]);
    group->occupied = sheaf__memory_alloc(memory, list_words(group), sizeof group->occupied[0]);
    if (group->heads == NULL || group->occupied == NULL) return SHEAF_E_NO_MEMORY;
    for (uint32_t i = 0; i < n_lists(group); i++) group->heads[i] = SHEAF__SLAB_NONE;
    const sheaf_slab_memory *slabs = &device->memory;
    group->base = slabs->reserve(slabs->ctx, group->range_bytes);
    if (group->base == NULL) return SHEAF_E_NO_MEMORY;
    group->max_slabs = max_slabs;
    bool aligned = ((uintptr_t)group->base & (slabs->granularity - 1)) == 0;
    return aligned ? SHEAF_OK : SHEAF_E_INVALID;
}

void sheaf__group_close(sheaf__group *group, const sheaf__device *device, sheaf__memory *memory)
{
    const sheaf_slab_memory *hooks = &device->memory;
    for (uint64_t i = 0; i < group->slabs_capacity; i++) {
        sheaf__slab *slab = &group->slabs[i];
        if (slab->n_rows != 0)
            hooks->decommit(hooks->ctx, group->base + i * group->layout->slab_bytes,
                            slab->bytes);
        sheaf__memory_free_aligned(memory, slab->records, group->layout->slab_blocks,
                                   sizeof slab->records[0], sizeof slab->records[0]);
        sheaf__memory_free(memory, slab->free_bits, slab_words(group),
                           sizeof slab->free_bits[0]);
    }
    if (group->base != NULL) hooks->release(hooks->ctx, group->base, group->range_bytes);
    sheaf__memory_free(memory, group->slabs, group->slabs_capacity, sizeof group->slabs[0]);
    if (group->layout != NULL) {
        sheaf__memory_free(memory, group->heads, n_lists(group), sizeof group->heads[0]);
        sheaf__memory_free(memory, group->occupied, list_words(group),
                           sizeof group->occupied[0]);
    }
    memset(group, 0, sizeof *group);
}

static sheaf_status prepare_slab(sheaf__group *group, sheaf__slab *slab, sheaf__memory *memory)
{
    uint32_t n_rows = group->layout->slab_blocks;
    slab->list = SHEAF__SLAB_NONE;
    if (slab->free_bits == NULL)
        slab->free_bits =
            sheaf__memory_alloc(memory, slab_words(group), sizeof slab->free_bits[0]);
    if (slab->free_bits == NULL) return SHEAF_E_NO_MEMORY;
    if (slab->records != NULL) return SHEAF_OK;
    slab->records = sheaf__memory_alloc_aligned(memory, n_rows, sizeof slab->records[0],
                                                sizeof slab->records[0]);
    if (slab->records == NULL) return SHEAF_E_NO_MEMORY;
    memset(slab->records, 0, n_rows * sizeof slab->records[0]);
    for (uint32_t i = 0; i < n_rows; i++) slab->records[i].generation = 1;
    return SHEAF_OK;
}

sheaf_status sheaf__group_prepare(sheaf__group *group, uint32_t n_slabs, sheaf__memory *memory)
{
    uint64_t given_back = group->n_slabs - group->first_slab - group->counts.slabs;
    if (n_slabs <= given_back) return SHEAF_OK;
    uint64_t need = group->n_slabs + (n_slabs - given_back);
    void *slabs = group->slabs;
    sheaf_status st = sheaf__memory_grow(memory, &slabs, &group->slabs_capacity, need,
                                         sizeof group->slabs[0]);
    group->slabs = slabs;
    for (uint64_t i = group->n_slabs; st == SHEAF_OK && i < need; i++)
        st = prepare_slab(group, &group->slabs[i], memory);
    return st;
}

/* ---- committing and giving back ------------------------------------------------------------ */

static void count_slab(sheaf__group *group, const sheaf__slab *slab, bool added)
{
    sheaf__counts *counts = &group->counts;
    uint64_t sign = added ? 1 : UINT64_MAX; /* times -1, modulo 2^64 */
    counts->bytes_reserved += sign * slab->bytes;
    counts->capacity += sign * slab->n_rows;
    counts->free += sign * slab->n_rows;
    counts->slabs += sign;
    counts->slabs_empty += sign;
}

static void mark_all_free(sheaf__slab *slab)
{
    uint32_t whole = slab->n_rows / WORD_BITS, rest = slab->n_rows % WORD_BITS;
    memset(slab->free_bits, 0xff, whole * sizeof slab->free_bits[0]);
    if (rest != 0) slab->free_bits[whole] = (1ull << rest) - 1;
    slab->n_free = slab->n_rows;
}

bool sheaf__group_commit(sheaf__group *group, uint32_t n_rows, uint64_t bytes,
                         const sheaf__device *device)
{
    const sheaf_slab_memory *hooks = &device->memory;
    uint32_t index = group->heads[0] != SHEAF__SLAB_NONE ? group->heads[0] : group->n_slabs;
    unsigned char *addr = group->base + index * group->layout->slab_bytes;
    if (hooks->commit(hooks->ctx, addr, bytes) != 0) {
        group->counts.slab_failures++;
        return false;
    }
    sheaf__slab *slab = &group->slabs[index];
    if (index == group->n_slabs)
        group->n_slabs++;
    else
        list_remove(group, index);
    slab->n_rows = n_rows;
    slab->bytes = bytes;
    mark_all_free(slab);
    list_update(group, index);
    count_slab(group, slab, true);
    group->counts.slab_appends++;
    poison(device, addr, bytes);
    return true;
}

void sheaf__group_decommit(sheaf__group *group, uint32_t index, const sheaf__device *device)
{
    sheaf__slab *slab = &group->slabs[index];
    SHEAF__ASSERT(slab->n_rows != 0 && slab->n_free == slab->n_rows);
    const sheaf_slab_memory *hooks = &device->memory;
    hooks->decommit(hooks->ctx, group->base + index * group->layout->slab_bytes, slab->bytes);
    count_slab(group, slab, false);
    group->counts.slab_releases++;
    memset(slab->free_bits, 0, slab_words(group) * sizeof slab->free_bits[0]);
    slab->n_rows = slab->n_free = 0;
    slab->bytes = 0;
    list_remove(group, index);
    list_insert(group, 0, index);
}

void sheaf__group_undo_commit(sheaf__group *group, const sheaf__device *device)
{
    sheaf__group_decommit(group, sheaf__group_last_empty(group), device);
    group->counts.slab_appends--;
    group->counts.slab_releases--;
}

/* ---- rows ---------------------------------------------------------------------------------- */

uint32_t sheaf__group_take(sheaf__group *group)
{
    SHEAF__ASSERT(group->counts.free != 0);
    uint64_t word = 0, bits = group->occupied[0] & ~1ull; /* list 0: slabs given back */
    while (bits == 0) bits = group->occupied[++word];
    uint32_t list = (uint32_t)(word * WORD_BITS) + (uint32_t)__builtin_ctzll(bits);
    uint32_t index = group->heads[list];
    sheaf__slab *slab = &group->slabs[index];
    word = 0;
    while (slab->free_bits[word] == 0) word++;
    uint32_t slot =
        (uint32_t)(word * WORD_BITS) + (uint32_t)__builtin_ctzll(slab->free_bits[word]);
    slab->free_bits[word] &= slab->free_bits[word] - 1;
    if (slab->n_free == slab->n_rows) group->counts.slabs_empty--;
    slab->n_free--;
    group->counts.free--;
    list_update(group, index);
    return sheaf__row_at(group, index, slot);
}

void sheaf__group_vacate(sheaf__group *group, uint32_t row, const sheaf__device *device)
{
    uint32_t slot = row & (group->layout->slab_blocks - 1);
    sheaf__slab *slab = sheaf__slab_for_row_mut(group, row);
    poison(device, sheaf__row_address(group, row), group->layout->block_bytes);
    slab->free_bits[slot / WORD_BITS] |= 1ull << (slot % WORD_BITS);
    slab->n_free++;
    group->counts.free++;
}

void sheaf__group_put(sheaf__group *group, uint32_t row, uint64_t slack_slabs,
                      const sheaf__device *device)
{
    uint32_t index = row >> group->layout->slab_shift;
    const sheaf__slab *slab = &group->slabs[index];
    sheaf__group_vacate(group, row, device);
    list_update(group, index);
    if (slab->n_free != slab->n_rows) return;
    group->counts.slabs_empty++;
    bool is_short = slab->n_rows < group->layout->slab_blocks;
    if (is_short || group->counts.slabs_empty > slack_slabs)
        sheaf__group_decommit(group, index, device);
}

/* ---- setting aside ------------------------------------------------------------------------- */

void sheaf__group_set_aside(sheaf__group *group, uint32_t index)
{
    list_remove(group, index);
    list_insert(group, group->layout->slab_blocks + 1, index);
}

bool sheaf__group_put_back(sheaf__group *group, uint32_t index)
{
    const sheaf__slab *slab = &group->slabs[index];
    bool empty = slab->n_free == slab->n_rows;
    list_update(group, index);
    group->counts.slabs_empty += empty;
    return empty;
}

uint32_t sheaf__group_list_below(const sheaf__group *group, uint32_t list)
{
    uint32_t word = list / WORD_BITS;
    uint64_t bits = group->occupied[word] & ((1ull << (list % WORD_BITS)) - 1);
    while (bits == 0 && word != 0) bits = group->occupied[--word];
    if (bits == 0) return 0;
    return word * WORD_BITS + (WORD_BITS - 1) - (uint32_t)__builtin_clzll(bits);
}
