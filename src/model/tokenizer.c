/* model/tokenizer.c - encoding, from text to ids, and the tokenizer's small answers. */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

#define MOST_TEXT ((uint64_t)INT32_MAX) /* bytes of one text, also once normalised */

void sheaf__encoding_open(sheaf__encoding *enc, const sheaf__tokenizer *tok, uint32_t flags,
                          sheaf__ids *ids)
{
    memset(enc, 0, sizeof *enc);
    enc->tok = tok;
    enc->flags = flags;
    enc->ids = ids;
    sheaf__memory_init(&enc->memory, &tok->memory.allocator);
}

void sheaf__encoding_close(sheaf__encoding *enc)
{
    sheaf__memory *memory = &enc->memory;
    for (int i = 0; i < 2; i++) {
        sheaf__text_free(&enc->text[i]);
        sheaf__text_free(&enc->piece_text[i]);
        sheaf__memory_free(memory, enc->pieces[i], enc->pieces_capacity[i],
                           sizeof(sheaf__span));
    }
    sheaf__text_free(&enc->whole);
    sheaf__memory_free(memory, enc->symbols, enc->symbols_capacity, sizeof *enc->symbols);
    sheaf__memory_free(memory, enc->heap, enc->heap_capacity, sizeof *enc->heap);
    sheaf__memory_free(memory, enc->code_points, enc->code_points_capacity,
                       sizeof *enc->code_points);
    sheaf__memory_free(memory, enc->reordered, enc->reordered_capacity, sizeof *enc->reordered);
    sheaf__regex_scratch_free(&enc->scratch);
}

/* A stretch of normalised text that holds no added token. */
static sheaf_status encode_stretch(sheaf__encoding *enc, bool at_start, const char *text,
                                   uint64_t size)
{
    if (size == 0) return SHEAF_OK;
    SHEAF__TRY(sheaf__pretokenize(enc, at_start, &text, size));
    for (uint64_t i = 0; i < enc->n_pieces[0]; i++) {
        sheaf__span piece = enc->pieces[0][i];
        SHEAF__TRY(sheaf__bpe_encode(enc, text + piece.offset, piece.size));
    }
    return SHEAF_OK;
}

typedef sheaf_status stretch_fn(sheaf__encoding *enc, bool at_start, const char *text,
                                uint64_t size);

/* Cuts the text at the added tokens of `set`, pushes those and hands what lies between to
 * `fn`. */
static sheaf_status cut_added(sheaf__encoding *enc, const sheaf__added_set *set, bool at_start,
                              const char *text, uint64_t size, stretch_fn *fn)
{
    sheaf__added_match match;
    uint64_t done = 0, resume = 0;
    while (sheaf__added_next(enc->tok, set, enc->flags, text, size, done, &resume, &match)) {
        if (match.start > done)
            SHEAF__TRY(fn(enc, at_start && done == 0, text + done, match.start - done));
        SHEAF__TRY(sheaf__ids_push(enc->ids, match.id));
        done = match.end;
    }
    if (done >= size) return SHEAF_OK;
    return fn(enc, at_start && done == 0, text + done, size - done);
}

/* A stretch of the text as given that holds no added token looked for before normalisation. */
static sheaf_status encode_raw(sheaf__encoding *enc, bool at_start, const char *text,
                               uint64_t size)
{
    SHEAF__TRY(sheaf__normalize(enc, &text, &size));
    return cut_added(enc, &enc->tok->added_normalized, at_start, text, size, encode_stretch);
}

/* Appends the text with each maximal ill-formed part replaced. */
static sheaf_status replace_ill_formed(const char *text, uint64_t size, sheaf__text *out)
{
    for (uint64_t at = 0; at < size;) {
        uint64_t good = sheaf__utf8_valid_prefix(text + at, size - at);
        SHEAF__TRY(sheaf__text_append(out, text + at, good));
        at += good;
        if (at == size) break;
        SHEAF__TRY(sheaf__text_append(out, SHEAF__REPLACEMENT, SHEAF__REPLACEMENT_SIZE));
        at += sheaf__utf8_read(text + at, size - at).size;
    }
    return SHEAF_OK;
}

static sheaf_status encode_text(sheaf__encoding *enc, const char *text, uint64_t size)
{
    return cut_added(enc, &enc->tok->added, true, text, size, encode_raw);
}

static sheaf_status encode_bytes(const sheaf__tokenizer *tok, const char *text, uint64_t size,
                                 sheaf__ids *ids)
{
    for (uint64_t i = 0; i < size; i++)
        if ((unsigned char)text[i] < tok->n_vocab)
            SHEAF__TRY(sheaf__ids_push(ids, (unsigned char)text[i]));
    return SHEAF_OK;
}

static sheaf_status push_all(sheaf__ids *ids, const int32_t *added, uint32_t n, uint32_t flags)
{
    if ((flags & SHEAF__ENCODE_POST_PROCESS) == 0) return SHEAF_OK;
    for (uint32_t i = 0; i < n; i++) SHEAF__TRY(sheaf__ids_push(ids, added[i]));
    return SHEAF_OK;
}

sheaf_status sheaf__tokenizer_encode(const sheaf__tokenizer *tok, const char *text,
                                     uint64_t size, uint32_t flags, sheaf__ids *ids)
{
    uint32_t n_before = ids->n;
    sheaf__text clean = {NULL, 0, 0};
    sheaf_status status = size > MOST_TEXT ? SHEAF_E_OVERFLOW : SHEAF_OK;
    if (status == SHEAF_OK && tok->bytes_only) {
        status = encode_bytes(tok, text, size, ids);
    } else if (status == SHEAF_OK) {
        sheaf__encoding enc;
        sheaf__encoding_open(&enc, tok, flags, ids);
        if (sheaf__utf8_valid_prefix(text, size) != size) {
            status = replace_ill_formed(text, size, &clean);
            text = clean.data;
            size = clean.n;
            if (size > MOST_TEXT) status = SHEAF_E_OVERFLOW;
        }
        if (status == SHEAF_OK) status = push_all(ids, tok->before, tok->n_before, flags);
        if (status == SHEAF_OK) status = encode_text(&enc, text, size);
        if (status == SHEAF_OK) status = push_all(ids, tok->after, tok->n_after, flags);
        sheaf__encoding_close(&enc);
    }
    sheaf__text_free(&clean);
    if (status != SHEAF_OK) ids->n = n_before;
    return status;
}

uint32_t sheaf__tokenizer_vocab(const sheaf__tokenizer *tok)
{
    return tok->n_vocab;
}

int32_t sheaf__tokenizer_find(const sheaf__tokenizer *tok, const char *token)
{
    return sheaf__vocab_find(&tok->vocab, token, strlen(token));
}

bool sheaf__tokenizer_is_special(const sheaf__tokenizer *tok, int32_t id)
{
    return sheaf__vocab_has(&tok->vocab, id) &&
           (tok->vocab.flags[id] & SHEAF__TOKEN_SPECIAL) != 0;
}

sheaf_status sheaf__tokenizer_open_bytes(uint32_t vocab, sheaf__tokenizer **out,
                                         sheaf_error *err)
{
    sheaf__tokenizer *tok = calloc(1, sizeof *tok);
    if (tok == NULL || vocab > INT32_MAX) {
        free(tok);
        return sheaf__error_set(err, tok == NULL ? SHEAF_E_NO_MEMORY : SHEAF_E_INVALID,
                                "a vocabulary of %u bytes and ids was not made", vocab);
    }
    sheaf__memory_init(&tok->memory, NULL);
    tok->bytes_only = true;
    tok->n_vocab = vocab;
    tok->unk_id = SHEAF__NO_ID;
    tok->decode.kind = SHEAF__DECODE_BYTE_LEVEL;
    *out = tok;
    return SHEAF_OK;
}

void sheaf__tokenizer_close(sheaf__tokenizer *tok)
{
    if (tok == NULL) return;
    sheaf__memory *memory = &tok->memory;
    sheaf__vocab_free(&tok->vocab, memory);
    sheaf__merges_free(&tok->merges, memory);
    sheaf__added_free(&tok->added, memory);
    sheaf__added_free(&tok->added_normalized, memory);
    for (uint32_t i = 0; i < tok->n_normalize; i++) {
        sheaf__regex_free(tok->normalize[i].regex);
        sheaf__text_free(&tok->normalize[i].literal);
        sheaf__text_free(&tok->normalize[i].content);
    }
    for (uint32_t i = 0; i < tok->n_pretokenize; i++) {
        sheaf__regex_free(tok->pretokenize[i].regex);
        sheaf__text_free(&tok->pretokenize[i].literal);
    }
    sheaf__decode_table *decode = &tok->decode;
    sheaf__text_free(&decode->mark);
    sheaf__text_free(&decode->strip_char);
    sheaf__memory_free(memory, decode->bytes, decode->bytes_capacity, 1);
    sheaf__memory_free(memory, decode->texts, tok->vocab.n_ids, sizeof *decode->texts);
    free(tok);
}
