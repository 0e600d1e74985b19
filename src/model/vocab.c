/* model/vocab.c - the tables of tokens and merges, by open addressing. What hashes alike is
 * compared. */
#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"

#define LEAST_SLOTS 16u

/* A power of two with room for twice n. */
static bool slots_for(uint64_t n, uint64_t *out)
{
    uint64_t doubled, slots = LEAST_SLOTS;
    if (!sheaf__mul_u64(n, 2, &doubled) || doubled > (uint64_t)1 << 40) return false;
    while (slots < doubled) slots *= 2;
    *out = slots;
    return true;
}

sheaf_status sheaf__vocab_init(sheaf__vocab *vocab, sheaf__memory *memory, uint64_t n_ids,
                               uint64_t n_tokens, uint64_t n_bytes)
{
    if (n_bytes > UINT32_MAX || !slots_for(n_tokens, &vocab->n_slots)) return SHEAF_E_OVERFLOW;
    vocab->n_ids = n_ids;
    vocab->bytes_capacity = n_bytes + 1;
    vocab->bytes = sheaf__memory_alloc(memory, vocab->bytes_capacity, 1);
    vocab->texts = sheaf__memory_alloc(memory, n_ids, sizeof *vocab->texts);
    vocab->flags = sheaf__memory_alloc(memory, n_ids, sizeof *vocab->flags);
    vocab->slots = sheaf__memory_alloc(memory, vocab->n_slots, sizeof *vocab->slots);
    if (vocab->bytes == NULL || vocab->slots == NULL) return SHEAF_E_NO_MEMORY;
    if (n_ids != 0 && (vocab->texts == NULL || vocab->flags == NULL)) return SHEAF_E_NO_MEMORY;
    for (uint64_t i = 0; i < vocab->n_slots; i++) vocab->slots[i].id = SHEAF__NO_ID;
    return SHEAF_OK;
}

void sheaf__vocab_free(sheaf__vocab *vocab, sheaf__memory *memory)
{
    sheaf__memory_free(memory, vocab->bytes, vocab->bytes_capacity, 1);
    sheaf__memory_free(memory, vocab->texts, vocab->n_ids, sizeof *vocab->texts);
    sheaf__memory_free(memory, vocab->flags, vocab->n_ids, sizeof *vocab->flags);
    sheaf__memory_free(memory, vocab->slots, vocab->n_slots, sizeof *vocab->slots);
}

/* The slot that holds the text, or the free one where it would go. */
static sheaf__vocab_slot *vocab_slot(const sheaf__vocab *vocab, const char *text, uint64_t size,
                                     uint32_t hash)
{
    uint64_t mask = vocab->n_slots - 1;
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        sheaf__vocab_slot *slot = &vocab->slots[i];
        if (slot->id == SHEAF__NO_ID) return slot;
        if (slot->hash != hash || vocab->texts[slot->id].size != size) continue;
        if (memcmp(sheaf__vocab_text(vocab, slot->id), text, size) == 0) return slot;
    }
}

int32_t sheaf__vocab_find(const sheaf__vocab *vocab, const char *text, uint64_t size)
{
    if (vocab->slots == NULL) return SHEAF__NO_ID;
    return vocab_slot(vocab, text, size, (uint32_t)sheaf__hash64(text, size, 0))->id;
}

bool sheaf__vocab_insert(sheaf__vocab *vocab, int32_t id, const char *text, uint64_t size)
{
    SHEAF__ASSERT(id >= 0 && (uint64_t)id < vocab->n_ids);
    SHEAF__ASSERT(size < vocab->bytes_capacity - vocab->n_bytes);
    uint32_t hash = (uint32_t)sheaf__hash64(text, size, 0);
    sheaf__vocab_slot *slot = vocab_slot(vocab, text, size, hash);
    if (slot->id != SHEAF__NO_ID || sheaf__vocab_has(vocab, id)) return false;
    *slot = (sheaf__vocab_slot){hash, id};
    memcpy(vocab->bytes + vocab->n_bytes, text, size);
    vocab->texts[id] = (sheaf__span){(uint32_t)vocab->n_bytes, (uint32_t)size};
    vocab->flags[id] = SHEAF__TOKEN_PRESENT;
    vocab->n_bytes += size;
    return true;
}

sheaf_status sheaf__merges_init(sheaf__merges *merges, sheaf__memory *memory, uint64_t n)
{
    if (!slots_for(n, &merges->n_slots)) return SHEAF_E_OVERFLOW;
    merges->slots = sheaf__memory_alloc(memory, merges->n_slots, sizeof *merges->slots);
    if (merges->slots == NULL) return SHEAF_E_NO_MEMORY;
    for (uint64_t i = 0; i < merges->n_slots; i++) merges->slots[i].left = SHEAF__NO_ID;
    return SHEAF_OK;
}

void sheaf__merges_free(sheaf__merges *merges, sheaf__memory *memory)
{
    sheaf__memory_free(memory, merges->slots, merges->n_slots, sizeof *merges->slots);
}

/* The slot that holds the pair, or the free one where it would go. */
static sheaf__merge *merge_slot(const sheaf__merges *merges, int32_t left, int32_t right)
{
    uint64_t mask = merges->n_slots - 1;
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9e3779b97f4a7c15u; /* 2^64 over the golden ratio: the high bits are well mixed */
    for (uint64_t i = (key >> 32) & mask;; i = (i + 1) & mask) {
        sheaf__merge *slot = &merges->slots[i];
        if (slot->left == SHEAF__NO_ID) return slot;
        if (slot->left == left && slot->right == right) return slot;
    }
}

void sheaf__merges_set(sheaf__merges *merges, sheaf__merge merge)
{
    *merge_slot(merges, merge.left, merge.right) = merge;
}

const sheaf__merge *sheaf__merges_find(const sheaf__merges *merges, int32_t left, int32_t right)
{
    const sheaf__merge *slot = merge_slot(merges, left, right);
    return slot->left == SHEAF__NO_ID ? NULL : slot;
}
