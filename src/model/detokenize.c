/* model/detokenize.c - from ids to text, whole and streamed: one machine for both.
 *
 * The decoders of tokenizer.json come down to what each token's text is, worked out at load,
 * and one of three ways to join them:
 *
 *   byte level   the bytes of all tokens are one text; an ill-formed part becomes U+FFFD. Held
 *                back: up to 3 bytes of a character not complete yet.
 *   pieces       texts, and runs of byte tokens. A run that is well-formed as a whole is text;
 *                in one that is not, every byte is U+FFFD, also those before the fault. So a
 *                run is held back until it ends, or is known to be ill-formed.
 *   join         texts with a space between (a file without decoder).
 */
#include <string.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

/* ---- the table -------------------------------------------------------------------------- */

static sheaf_status replace_all(const sheaf__text *text, const sheaf__replacement *replacement,
                                sheaf__text *out)
{
    uint64_t at = 0;
    out->n = 0;
    for (;;) {
        const char *found =
            memmem(text->data + at, text->n - at, replacement->from.data, replacement->from.n);
        uint64_t end = found == NULL ? text->n : (uint64_t)(found - text->data);
        SHEAF__TRY(sheaf__text_append(out, text->data + at, end - at));
        if (found == NULL) return SHEAF_OK;
        SHEAF__TRY(sheaf__text_append(out, replacement->to.data, replacement->to.n));
        at = end + replacement->from.n;
    }
}

/* Bytes that byte-level characters stand for; a token with any other character is itself. */
static sheaf_status unmap_bytes(const sheaf__text *text, sheaf__text *out)
{
    out->n = 0;
    for (uint64_t at = 0; at < text->n;) {
        sheaf__utf8_char c = sheaf__utf8_read(text->data + at, text->n - at);
        int byte = sheaf__byte_level_byte(c.code);
        if (byte < 0) {
            out->n = 0;
            return sheaf__text_append(out, text->data, text->n);
        }
        char written = (char)byte;
        SHEAF__TRY(sheaf__text_append(out, &written, 1));
        at += c.size;
    }
    return SHEAF_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte that "<0x..>" names, or -1. */
static int fallback_byte(const sheaf__text *text)
{
    const char *s = text->data;
    if (text->n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    if (s[3] == '+' && low >= 0) return low; /* the reference's number parser takes a sign */
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static sheaf_status append_decoded(sheaf__tokenizer *tok, int32_t id, const sheaf__text *text)
{
    sheaf__decode_table *table = &tok->decode;
    if (table->n_bytes + text->n > UINT32_MAX) return SHEAF_E_OVERFLOW;
    void *grown = table->bytes;
    SHEAF__TRY(sheaf__memory_grow(&tok->memory, &grown, &table->bytes_capacity,
                                  table->n_bytes + text->n, 1));
    table->bytes = grown;
    if (text->n != 0) memcpy(table->bytes + table->n_bytes, text->data, text->n);
    table->texts[id] = (sheaf__span){(uint32_t)table->n_bytes, (uint32_t)text->n};
    table->n_bytes += text->n;
    return SHEAF_OK;
}

static sheaf_status fill_one(sheaf__tokenizer *tok, int32_t id, bool byte_fallback,
                             const sheaf__replacement *replacements, uint32_t n_replacements,
                             sheaf__text work[2])
{
    uint32_t now = 0;
    work[0].n = 0;
    SHEAF__TRY(sheaf__text_append(&work[0], sheaf__vocab_text(&tok->vocab, id),
                                  tok->vocab.texts[id].size));
    for (uint32_t i = 0; i < n_replacements; i++, now ^= 1)
        SHEAF__TRY(replace_all(&work[now], &replacements[i], &work[now ^ 1]));
    if (tok->decode.kind == SHEAF__DECODE_BYTE_LEVEL) {
        SHEAF__TRY(unmap_bytes(&work[now], &work[now ^ 1]));
        now ^= 1;
    }
    int byte = byte_fallback ? fallback_byte(&work[now]) : -1;
    if (byte >= 0) {
        char written = (char)byte;
        tok->vocab.flags[id] |= SHEAF__TOKEN_BYTE;
        work[now].n = 0;
        SHEAF__TRY(sheaf__text_append(&work[now], &written, 1));
    }
    return append_decoded(tok, id, &work[now]);
}

sheaf_status sheaf__decode_table_fill(sheaf__tokenizer *tok, bool byte_fallback,
                                      const sheaf__replacement *replacements,
                                      uint32_t n_replacements)
{
    sheaf__text work[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
    sheaf_status status = SHEAF_OK;
    if (tok->vocab.n_ids == 0) return SHEAF_OK;
    tok->decode.texts =
        sheaf__memory_alloc(&tok->memory, tok->vocab.n_ids, sizeof *tok->decode.texts);
    if (tok->decode.texts == NULL) return SHEAF_E_NO_MEMORY;
    for (uint64_t id = 0; id < tok->vocab.n_ids && status == SHEAF_OK; id++)
        if (tok->vocab.flags[id] != 0)
            status =
                fill_one(tok, (int32_t)id, byte_fallback, replacements, n_replacements, work);
    sheaf__text_free(&work[0]);
    sheaf__text_free(&work[1]);
    return status;
}

/* ---- the machine ------------------------------------------------------------------------ */

void sheaf__detokenizer_init(sheaf__detokenizer *d, const sheaf__tokenizer *tok,
                             bool skip_special)
{
    *d = (sheaf__detokenizer){.tok = tok, .skip_special = skip_special};
    d->strip = tok->decode.strip;
}

void sheaf__detokenizer_free(sheaf__detokenizer *d)
{
    sheaf__text_free(&d->held);
    d->n_checked = 0;
    d->ill_formed_run = false;
}

/* Text that is final, but for what the whole loses at its start. */
static sheaf_status emit(sheaf__detokenizer *d, const char *data, uint64_t n, sheaf__text *out)
{
    const sheaf__text *strip_char = &d->tok->decode.strip_char;
    while (d->strip > 0 && n > 0) {
        if (n < strip_char->n || memcmp(data, strip_char->data, strip_char->n) != 0) {
            d->strip = 0;
            break;
        }
        data += strip_char->n;
        n -= strip_char->n;
        d->strip--;
    }
    return sheaf__text_append(out, data, n);
}

static sheaf_status emit_replacements(sheaf__detokenizer *d, uint64_t n, sheaf__text *out)
{
    for (uint64_t i = 0; i < n; i++)
        SHEAF__TRY(emit(d, SHEAF__REPLACEMENT, SHEAF__REPLACEMENT_SIZE, out));
    return SHEAF_OK;
}

/* Byte level: emits what of `held` is decided. */
static sheaf_status emit_decided(sheaf__detokenizer *d, bool ends, sheaf__text *out)
{
    uint64_t at = 0;
    while (at < d->held.n) {
        const char *text = d->held.data + at;
        uint64_t good = sheaf__utf8_valid_prefix(text, d->held.n - at);
        SHEAF__TRY(emit(d, text, good, out));
        at += good;
        if (at == d->held.n) break;
        sheaf__utf8_char c = sheaf__utf8_read(d->held.data + at, d->held.n - at);
        if (c.cut && !ends) break;
        SHEAF__TRY(emit_replacements(d, 1, out));
        at += c.size;
    }
    if (at != 0) memmove(d->held.data, d->held.data + at, d->held.n - at);
    d->held.n -= at;
    return SHEAF_OK;
}

/* Pieces: the run of byte tokens is over. */
static sheaf_status end_run(sheaf__detokenizer *d, sheaf__text *out)
{
    if (d->held.n != 0) {
        if (d->n_checked == d->held.n)
            SHEAF__TRY(emit(d, d->held.data, d->held.n, out));
        else
            SHEAF__TRY(emit_replacements(d, d->held.n, out));
    }
    d->held.n = 0;
    d->n_checked = 0;
    d->ill_formed_run = false;
    return SHEAF_OK;
}

static sheaf_status push_run_byte(sheaf__detokenizer *d, const char *byte, sheaf__text *out)
{
    if (d->ill_formed_run) return emit_replacements(d, 1, out);
    SHEAF__TRY(sheaf__text_append(&d->held, byte, 1));
    const char *tail = d->held.data + d->n_checked;
    uint64_t n_tail = d->held.n - d->n_checked;
    sheaf__utf8_char c = sheaf__utf8_read(tail, n_tail);
    if (c.code != SHEAF__UTF8_ILL) d->n_checked += c.size;
    if (c.code != SHEAF__UTF8_ILL || c.cut) return SHEAF_OK;
    SHEAF__TRY(emit_replacements(d, d->held.n, out));
    d->held.n = 0;
    d->n_checked = 0;
    d->ill_formed_run = true;
    return SHEAF_OK;
}

/* Metaspace: the first token as the vocabulary writes it, without its marks. */
static sheaf_status emit_unmarked(sheaf__detokenizer *d, int32_t id, sheaf__text *out)
{
    const sheaf__text *mark = &d->tok->decode.mark;
    const char *text = sheaf__vocab_text(&d->tok->vocab, id);
    uint64_t n = d->tok->vocab.texts[id].size;
    for (uint64_t at = 0; at < n;) {
        const char *found = memmem(text + at, n - at, mark->data, mark->n);
        uint64_t end = found == NULL ? n : (uint64_t)(found - text);
        SHEAF__TRY(emit(d, text + at, end - at, out));
        if (found == NULL) break;
        at = end + mark->n;
    }
    return SHEAF_OK;
}

static sheaf_status push_piece(sheaf__detokenizer *d, int32_t id, bool first, sheaf__text *out)
{
    const sheaf__decode_table *table = &d->tok->decode;
    const char *text = table->bytes + table->texts[id].offset;
    if (d->tok->vocab.flags[id] & SHEAF__TOKEN_BYTE) return push_run_byte(d, text, out);
    SHEAF__TRY(end_run(d, out));
    if (first && table->drop_mark_of_first) return emit_unmarked(d, id, out);
    if (table->kind == SHEAF__DECODE_JOIN && !first) SHEAF__TRY(emit(d, " ", 1, out));
    return emit(d, text, table->texts[id].size, out);
}

sheaf_status sheaf__detokenizer_push(sheaf__detokenizer *d, int32_t id, sheaf__text *text)
{
    const sheaf__tokenizer *tok = d->tok;
    if (tok->bytes_only) {
        char byte = (char)id;
        if (id < 0 || id > 255 || (uint32_t)id >= tok->n_vocab) return SHEAF_OK;
        SHEAF__TRY(sheaf__text_append(&d->held, &byte, 1));
        return emit_decided(d, false, text);
    }
    if (!sheaf__vocab_has(&tok->vocab, id)) return SHEAF_OK;
    if (d->skip_special && (tok->vocab.flags[id] & SHEAF__TOKEN_SPECIAL)) return SHEAF_OK;
    bool first = !d->started;
    d->started = true;
    if (tok->decode.kind != SHEAF__DECODE_BYTE_LEVEL) return push_piece(d, id, first, text);
    const sheaf__span *span = &tok->decode.texts[id];
    SHEAF__TRY(sheaf__text_append(&d->held, tok->decode.bytes + span->offset, span->size));
    return emit_decided(d, false, text);
}

sheaf_status sheaf__detokenizer_finish(sheaf__detokenizer *d, sheaf__text *text)
{
    bool bytes = d->tok->decode.kind == SHEAF__DECODE_BYTE_LEVEL;
    sheaf_status status = bytes ? emit_decided(d, true, text) : end_run(d, text);
    sheaf__detokenizer_free(d);
    return status;
}

sheaf_status sheaf__tokenizer_decode(const sheaf__tokenizer *tok, const int32_t *ids,
                                     uint32_t n, bool skip_special, sheaf__text *text)
{
    uint64_t n_before = text->n;
    sheaf__detokenizer d;
    sheaf__detokenizer_init(&d, tok, skip_special);
    sheaf_status status = SHEAF_OK;
    for (uint32_t i = 0; i < n && status == SHEAF_OK; i++)
        status = sheaf__detokenizer_push(&d, ids[i], text);
    if (status == SHEAF_OK) status = sheaf__detokenizer_finish(&d, text);
    sheaf__detokenizer_free(&d);
    if (status != SHEAF_OK) {
        text->n = n_before;
        if (text->data != NULL) text->data[n_before] = 0;
    }
    return status;
}

sheaf_status sheaf__tokenizer_bytes(const sheaf__tokenizer *tok, int32_t id, sheaf__text *text)
{
    if (tok->bytes_only) {
        char byte = (char)id;
        if (id < 0 || id > 255 || (uint32_t)id >= tok->n_vocab) return SHEAF_OK;
        return sheaf__text_append(text, &byte, 1);
    }
    if (!sheaf__vocab_has(&tok->vocab, id)) return SHEAF_OK;
    const sheaf__span *span = &tok->decode.texts[id];
    return sheaf__text_append(text, tok->decode.bytes + span->offset, span->size);
}
