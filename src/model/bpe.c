/* model/bpe.c - byte-pair merges of one piece of text.
 *
 * The piece starts as one symbol a character (or byte), in a doubly linked list over an array.
 * A heap holds the merges that neighbours allow, lowest rank first, then leftmost. A merge
 * taken from the heap may have been overtaken: it counts only if the two symbols now at its
 * place still merge into the same token. Each merge removes a symbol and adds at most two
 * candidates, so a piece of n characters costs O(n log n), whatever its content.
 */
#include <string.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

/* GPT-2's table: printable bytes of Latin-1 are themselves, the other 68 follow from U+0100. */
static bool prints(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

uint32_t sheaf__byte_level_char(unsigned char byte)
{
    if (prints(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    if (byte <= 160) return 256u + 33 + (byte - 127u);
    return 256u + 67; /* 173, the soft hyphen */
}

int sheaf__byte_level_byte(uint32_t code)
{
    if (code < 256) return prints(code) ? (int)code : -1;
    if (code <= 256 + 32) return (int)(code - 256);
    if (code < 256 + 67) return (int)(code - 256 - 33 + 127);
    return code == 256 + 67 ? 173 : -1;
}

static sheaf_status push_symbol(sheaf__encoding *enc, int32_t id)
{
    if (enc->n_symbols >= INT32_MAX) return SHEAF_E_OVERFLOW;
    if (enc->n_symbols == enc->symbols_capacity) {
        void *grown = enc->symbols;
        SHEAF__TRY(sheaf__memory_grow(&enc->memory, &grown, &enc->symbols_capacity,
                                      enc->n_symbols + 1, sizeof *enc->symbols));
        enc->symbols = grown;
    }
    int32_t at = (int32_t)enc->n_symbols++;
    enc->symbols[at] = (sheaf__symbol){id, at - 1, at + 1};
    return SHEAF_OK;
}

/* A character that no token stands for: its bytes, if each has a token, else the unknown token.
 * *unk_pending: an unknown token is owed; it is paid when the next known character comes. */
static sheaf_status push_unknown(sheaf__encoding *enc, const char *text, uint32_t size,
                                 bool *unk_pending)
{
    const sheaf__tokenizer *tok = enc->tok;
    bool fallback = tok->byte_fallback;
    for (uint32_t i = 0; i < size && fallback; i++)
        fallback = tok->fallback_ids[(unsigned char)text[i]] != SHEAF__NO_ID;
    if (fallback) {
        for (uint32_t i = 0; i < size; i++)
            SHEAF__TRY(push_symbol(enc, tok->fallback_ids[(unsigned char)text[i]]));
        return SHEAF_OK;
    }
    if (tok->unk_id == SHEAF__NO_ID) return SHEAF_OK;
    if (*unk_pending && !tok->fuse_unk) SHEAF__TRY(push_symbol(enc, tok->unk_id));
    *unk_pending = true;
    return SHEAF_OK;
}

static sheaf_status push_symbols(sheaf__encoding *enc, const char *piece, uint64_t size)
{
    const sheaf__tokenizer *tok = enc->tok;
    bool unk_pending = false;
    enc->n_symbols = 0;
    for (uint64_t at = 0, step; at < size; at += step) {
        char mapped[4];
        const char *text = piece + at;
        uint32_t length;
        int32_t id;
        if (tok->byte_level) {
            step = 1;
            id = tok->byte_ids[(unsigned char)*text];
            length = sheaf__utf8_write(sheaf__byte_level_char((unsigned char)*text), mapped);
            text = mapped;
        } else {
            length = sheaf__utf8_size(*text);
            step = length;
            id = sheaf__vocab_find(&tok->vocab, text, length);
        }
        if (id == SHEAF__NO_ID) {
            SHEAF__TRY(push_unknown(enc, text, length, &unk_pending));
            continue;
        }
        if (unk_pending) SHEAF__TRY(push_symbol(enc, tok->unk_id));
        unk_pending = false;
        SHEAF__TRY(push_symbol(enc, id));
    }
    if (unk_pending) SHEAF__TRY(push_symbol(enc, tok->unk_id));
    if (enc->n_symbols != 0) enc->symbols[enc->n_symbols - 1].next = -1;
    return SHEAF_OK;
}

/* ---- heap: four children to a node, which lie in one or two cache lines ----------------- */

static void sift_down(sheaf__candidate *heap, uint64_t n, uint64_t at)
{
    sheaf__candidate moved = heap[at];
    for (uint64_t first; (first = 4 * at + 1) < n;) {
        uint64_t end = sheaf__min_u64(first + 4, n), least = first;
        for (uint64_t child = first + 1; child < end; child++)
            if (heap[child].order < heap[least].order) least = child;
        if (heap[least].order >= moved.order) break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = moved;
}

static void sift_up(sheaf__candidate *heap, uint64_t at)
{
    sheaf__candidate moved = heap[at];
    for (; at > 0 && heap[(at - 1) / 4].order > moved.order; at = (at - 1) / 4)
        heap[at] = heap[(at - 1) / 4];
    heap[at] = moved;
}

static sheaf_status push_candidate(sheaf__encoding *enc, int32_t at, bool sorted)
{
    int32_t next = enc->symbols[at].next;
    const sheaf__merge *merge =
        sheaf__merges_find(&enc->tok->merges, enc->symbols[at].id, enc->symbols[next].id);
    if (merge == NULL) return SHEAF_OK;
    if (enc->n_heap == enc->heap_capacity) {
        void *grown = enc->heap;
        SHEAF__TRY(sheaf__memory_grow(&enc->memory, &grown, &enc->heap_capacity,
                                      enc->n_heap + 1, sizeof *enc->heap));
        enc->heap = grown;
    }
    enc->heap[enc->n_heap] =
        (sheaf__candidate){(uint64_t)merge->rank << 32 | (uint32_t)at, merge->id};
    enc->n_heap++;
    if (sorted) sift_up(enc->heap, enc->n_heap - 1);
    return SHEAF_OK;
}

/* Merges symbols whose candidates are in the heap until none is left. */
static sheaf_status drain_heap(sheaf__encoding *enc)
{
    sheaf__symbol *symbols = enc->symbols;
    for (uint64_t i = (enc->n_heap + 2) / 4; i-- > 0;) sift_down(enc->heap, enc->n_heap, i);
    while (enc->n_heap != 0) {
        sheaf__candidate top = enc->heap[0];
        enc->heap[0] = enc->heap[--enc->n_heap];
        if (enc->n_heap != 0) sift_down(enc->heap, enc->n_heap, 0);
        int32_t at = (int32_t)(uint32_t)top.order, next = symbols[at].next;
        if (symbols[at].id == SHEAF__NO_ID || next < 0) continue;
        const sheaf__merge *merge =
            sheaf__merges_find(&enc->tok->merges, symbols[at].id, symbols[next].id);
        if (merge == NULL || merge->id != top.id) continue;
        symbols[at].id = top.id;
        symbols[at].next = symbols[next].next;
        symbols[next].id = SHEAF__NO_ID;
        if (symbols[at].next >= 0) symbols[symbols[at].next].prev = at;
        if (symbols[at].prev >= 0) SHEAF__TRY(push_candidate(enc, symbols[at].prev, true));
        if (symbols[at].next >= 0) SHEAF__TRY(push_candidate(enc, at, true));
    }
    return SHEAF_OK;
}

/* Stretch by stretch, cut where no merge can cross: a small heap stays in the cache. */
static sheaf_status merge_symbols(sheaf__encoding *enc)
{
    enc->n_heap = 0;
    for (uint64_t i = 0; i + 1 < enc->n_symbols; i++) {
        const sheaf__symbol *s = &enc->symbols[i];
        if (sheaf__merges_may_cross(&enc->tok->merges, s[0].id, s[1].id))
            SHEAF__TRY(push_candidate(enc, (int32_t)i, false));
        else if (enc->n_heap != 0)
            SHEAF__TRY(drain_heap(enc));
    }
    return drain_heap(enc);
}

/* The token that is the whole piece. */
static sheaf_status find_whole(sheaf__encoding *enc, const char *piece, uint64_t size,
                               int32_t *id)
{
    const sheaf__tokenizer *tok = enc->tok;
    if (!tok->byte_level) {
        *id = sheaf__vocab_find(&tok->vocab, piece, size);
        return SHEAF_OK;
    }
    sheaf__text *mapped = &enc->whole;
    mapped->n = 0;
    for (uint64_t i = 0; i < size; i++) {
        char out[4];
        uint32_t n = sheaf__utf8_write(sheaf__byte_level_char((unsigned char)piece[i]), out);
        SHEAF__TRY(sheaf__text_append(mapped, out, n));
    }
    *id = sheaf__vocab_find(&tok->vocab, mapped->data, mapped->n);
    return SHEAF_OK;
}

sheaf_status sheaf__bpe_encode(sheaf__encoding *enc, const char *piece, uint64_t size)
{
    if (size == 0) return SHEAF_OK;
    if (enc->tok->ignore_merges) {
        int32_t id = SHEAF__NO_ID;
        SHEAF__TRY(find_whole(enc, piece, size, &id));
        if (id != SHEAF__NO_ID) return sheaf__ids_push(enc->ids, id);
    }
    SHEAF__TRY(push_symbols(enc, piece, size));
    SHEAF__TRY(merge_symbols(enc));
    for (int32_t at = enc->n_symbols != 0 ? 0 : -1; at >= 0; at = enc->symbols[at].next)
        SHEAF__TRY(sheaf__ids_push(enc->ids, enc->symbols[at].id));
    return SHEAF_OK;
}
