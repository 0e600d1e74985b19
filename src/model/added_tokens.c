/* model/added_tokens.c - finding added tokens in text: leftmost, and of those the longest. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

sheaf_status sheaf__added_push(sheaf__added_set *set, sheaf__memory *memory, const char *text,
                               uint64_t size, int32_t id)
{
    if (size == 0) return SHEAF_OK;
    if (set->bytes.n + size > UINT32_MAX) return SHEAF_E_OVERFLOW;
    void *grown = set->items;
    SHEAF__TRY(
        sheaf__memory_grow(memory, &grown, &set->capacity, set->n + 1, sizeof *set->items));
    set->items = grown;
    sheaf__span span = {(uint32_t)set->bytes.n, (uint32_t)size};
    SHEAF__TRY(sheaf__text_append(&set->bytes, text, size));
    set->items[set->n++] = (sheaf__added){span, id};
    unsigned char first = (unsigned char)text[0];
    set->first_bytes[first / 32] |= 1u << first % 32;
    return SHEAF_OK;
}

void sheaf__added_free(sheaf__added_set *set, sheaf__memory *memory)
{
    sheaf__text_free(&set->bytes);
    sheaf__memory_free(memory, set->items, set->capacity, sizeof *set->items);
}

static int compare_texts(const sheaf__added_set *set, const sheaf__added *a,
                         const sheaf__added *b)
{
    uint32_t least = a->text.size < b->text.size ? a->text.size : b->text.size;
    int order =
        memcmp(set->bytes.data + a->text.offset, set->bytes.data + b->text.offset, least);
    if (order != 0) return order;
    return a->text.size < b->text.size ? -1 : a->text.size > b->text.size;
}

static void sift(sheaf__added_set *set, uint64_t at, uint64_t n)
{
    for (uint64_t child; (child = 2 * at + 1) < n; at = child) {
        sheaf__added *items = set->items;
        if (child + 1 < n && compare_texts(set, &items[child], &items[child + 1]) < 0) child++;
        if (compare_texts(set, &items[at], &items[child]) >= 0) return;
        sheaf__added moved = items[at];
        items[at] = items[child];
        items[child] = moved;
    }
}

/* A heap sort: the C library's takes no context. */
void sheaf__added_sort(sheaf__added_set *set)
{
    for (uint64_t i = set->n / 2; i-- > 0;) sift(set, i, set->n);
    for (uint64_t n = set->n; n > 1;) {
        sheaf__added last = set->items[--n];
        set->items[n] = set->items[0];
        set->items[0] = last;
        sift(set, 0, n);
    }
}

/* Narrows [*low, *high), all of which share `depth` bytes with the text, to those whose next
 * byte is `byte`. One that has no next byte comes first and is left behind. */
static void narrow(const sheaf__added_set *set, uint32_t depth, unsigned char byte,
                   uint64_t *low, uint64_t *high)
{
    uint64_t ends[2];
    for (uint32_t side = 0; side < 2; side++) { /* first not below byte; first above it */
        uint64_t a = *low, b = *high;
        while (a < b) {
            uint64_t middle = a + (b - a) / 2;
            const sheaf__span *s = &set->items[middle].text;
            int next = s->size > depth ? (unsigned char)set->bytes.data[s->offset + depth] : -1;
            if (next < (int)byte + (int)side)
                a = middle + 1;
            else
                b = middle;
        }
        ends[side] = a;
    }
    *low = ends[0];
    *high = ends[1];
}

/* The longest added token that opens the text. */
static const sheaf__added *longest_at(const sheaf__added_set *set, const char *text,
                                      uint64_t size)
{
    const sheaf__added *found = NULL;
    uint64_t low = 0, high = set->n;
    for (uint32_t depth = 0; low < high; depth++) {
        if (depth > 0 && set->items[low].text.size == depth) found = &set->items[low];
        if (depth >= size) break;
        narrow(set, depth, (unsigned char)text[depth], &low, &high);
    }
    return found;
}

/* Unicode's \w: alphabetic, marks, decimal digits, connectors and the two joiners. Alphabetic
 * adds to letters and letter numbers only marks and the circled letters below. */
static bool is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
    }
    return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
           (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
           (code >= 0x1f170 && code <= 0x1f189);
}

static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

static uint64_t start_of_last(const char *text, uint64_t end)
{
    do end--;
    while (end > 0 && ((unsigned char)text[end] & 0xc0u) == 0x80);
    return end;
}

static bool stands_alone(const char *text, uint64_t size, uint64_t start, uint64_t end)
{
    if (start > 0) {
        uint64_t before = start_of_last(text, start);
        if (is_word(sheaf__utf8_read(text + before, start - before).code)) return false;
    }
    return end == size || !is_word(sheaf__utf8_read(text + end, size - end).code);
}

bool sheaf__added_next(const sheaf__tokenizer *tok, const sheaf__added_set *set,
                       uint32_t encode_flags, const char *text, uint64_t size, uint64_t emitted,
                       uint64_t *resume, sheaf__added_match *match)
{
    if (set->n == 0) return false;
    for (uint64_t at = *resume; at < size; at++) {
        unsigned char first = (unsigned char)text[at];
        if ((set->first_bytes[first / 32] >> first % 32 & 1u) == 0) continue;
        const sheaf__added *found = longest_at(set, text + at, size - at);
        if (found == NULL) continue;
        uint64_t start = at, end = at + found->text.size;
        at = end - 1; /* what is turned down below is not looked into again */
        unsigned char flags = tok->vocab.flags[found->id];
        if ((encode_flags & SHEAF__ENCODE_NO_SPECIAL) && (flags & SHEAF__TOKEN_SPECIAL))
            continue;
        if ((flags & SHEAF__TOKEN_SINGLE_WORD) && !stands_alone(text, size, start, end))
            continue;
        *resume = end;
        while ((flags & SHEAF__TOKEN_LSTRIP) && start > emitted) {
            uint64_t before = start_of_last(text, start);
            if (!is_space(sheaf__utf8_read(text + before, start - before).code)) break;
            start = before;
        }
        while ((flags & SHEAF__TOKEN_RSTRIP) && end < size) {
            sheaf__utf8_char c = sheaf__utf8_read(text + end, size - end);
            if (!is_space(c.code)) break;
            end += c.size;
        }
        *match = (sheaf__added_match){start, end, found->id};
        return true;
    }
    return false;
}
