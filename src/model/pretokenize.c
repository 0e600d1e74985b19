/* model/pretokenize.c - the pre-tokenizer: cutting a text into the pieces that merges stay
 * inside.
 *
 * Each step takes the pieces of the one before. A split looks at one piece at a time, alone:
 * what stands before or after it does not exist for the pattern.
 */
#include <string.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"

sheaf_status sheaf__pattern_begin(sheaf__pattern_scan *scan, sheaf__encoding *enc,
                                  const sheaf__regex *regex, const sheaf__text *literal,
                                  const char *text, uint64_t size)
{
    scan->literal = regex == NULL ? literal : NULL;
    if (regex != NULL)
        return sheaf__regex_scan_begin(&scan->regex, regex, &enc->scratch, text, size);
    scan->regex = (sheaf__regex_scan){NULL, NULL, text, size, 0, 0, 0, 0};
    return SHEAF_OK;
}

sheaf_status sheaf__pattern_next(sheaf__pattern_scan *scan, uint64_t *start, uint64_t *end)
{
    if (scan->literal == NULL) return sheaf__regex_scan_next(&scan->regex, start, end);
    sheaf__regex_scan *s = &scan->regex;
    const char *found =
        memmem(s->text + s->at, s->size - s->at, scan->literal->data, scan->literal->n);
    if (found == NULL) return SHEAF_MISS;
    *start = (uint64_t)(found - s->text);
    *end = *start + scan->literal->n;
    s->at = *end;
    return SHEAF_OK;
}

static sheaf_status push_piece(sheaf__encoding *enc, uint32_t list, uint64_t start,
                               uint64_t end)
{
    if (start == end) return SHEAF_OK;
    uint64_t n = enc->n_pieces[list];
    if (n == enc->pieces_capacity[list]) {
        void *grown = enc->pieces[list];
        SHEAF__TRY(sheaf__memory_grow(&enc->memory, &grown, &enc->pieces_capacity[list], n + 1,
                                      sizeof(sheaf__span)));
        enc->pieces[list] = grown;
    }
    enc->pieces[list][n] = (sheaf__span){(uint32_t)start, (uint32_t)(end - start)};
    enc->n_pieces[list] = n + 1;
    return SHEAF_OK;
}

/* A piece that may still grow by the stretch after it. */
typedef struct open_piece {
    uint64_t start, end;
    bool open, was_match;
} open_piece;

static bool joins(uint32_t behavior, bool was_match, bool is_match)
{
    switch (behavior) {
    case SHEAF__SPLIT_CONTIGUOUS: return was_match == is_match;
    case SHEAF__SPLIT_WITH_PREVIOUS: return is_match && !was_match;
    case SHEAF__SPLIT_WITH_NEXT: return was_match && !is_match;
    default: return false;
    }
}

/* One stretch of text, matched by the pattern or lying between matches. */
static sheaf_status add_stretch(sheaf__encoding *enc, const sheaf__pretokenize_step *step,
                                open_piece *piece, sheaf__span stretch, bool is_match)
{
    is_match = is_match != step->invert;
    if (step->behavior == SHEAF__SPLIT_REMOVED && is_match) return SHEAF_OK;
    uint64_t start = stretch.offset, end = (uint64_t)stretch.offset + stretch.size;
    if (piece->open && joins(step->behavior, piece->was_match, is_match)) {
        piece->end = end;
    } else {
        if (piece->open) SHEAF__TRY(push_piece(enc, 1, piece->start, piece->end));
        piece->start = start;
        piece->end = end;
    }
    piece->open = true;
    piece->was_match = is_match;
    return SHEAF_OK;
}

static sheaf__span stretch_of(uint64_t base, uint64_t start, uint64_t end)
{
    return (sheaf__span){(uint32_t)(base + start), (uint32_t)(end - start)};
}

/* Cuts one piece of list 0 into pieces of list 1. */
static sheaf_status split_piece(sheaf__encoding *enc, const sheaf__pretokenize_step *step,
                                const char *text, sheaf__span whole)
{
    sheaf__pattern_scan scan;
    open_piece piece = {0, 0, false, false};
    SHEAF__TRY(sheaf__pattern_begin(&scan, enc, step->regex, &step->literal,
                                    text + whole.offset, whole.size));
    uint64_t done = 0, start = 0, end = 0;
    sheaf_status status;
    while ((status = sheaf__pattern_next(&scan, &start, &end)) == SHEAF_OK) {
        if (start > done)
            SHEAF__TRY(
                add_stretch(enc, step, &piece, stretch_of(whole.offset, done, start), false));
        SHEAF__TRY(add_stretch(enc, step, &piece, stretch_of(whole.offset, start, end), true));
        done = end;
    }
    if (status != SHEAF_MISS) return status;
    if (done < whole.size)
        SHEAF__TRY(
            add_stretch(enc, step, &piece, stretch_of(whole.offset, done, whole.size), false));
    return piece.open ? push_piece(enc, 1, piece.start, piece.end) : SHEAF_OK;
}

static sheaf_status append_marked(sheaf__text *out, const sheaf__text *mark, const char *text,
                                  uint64_t size)
{
    for (uint64_t at = 0; at < size;) {
        const char *space = memchr(text + at, ' ', size - at);
        uint64_t end = space == NULL ? size : (uint64_t)(space - text);
        SHEAF__TRY(sheaf__text_append(out, text + at, end - at));
        if (space == NULL) break;
        SHEAF__TRY(sheaf__text_append(out, mark->data, mark->n));
        at = end + 1;
    }
    return SHEAF_OK;
}

/* Writes every piece anew, with the mark in front where the scheme wants it and it is not
 * there. */
static sheaf_status prefix_pieces(sheaf__encoding *enc, const sheaf__pretokenize_step *step,
                                  bool at_start, const char **text)
{
    sheaf__text *out = &enc->piece_text[enc->piece_text[0].data == *text && *text != NULL];
    const sheaf__text *mark = &step->literal;
    out->n = 0;
    for (uint64_t i = 0; i < enc->n_pieces[0]; i++) {
        sheaf__span piece = enc->pieces[0][i];
        const char *from = *text + piece.offset;
        uint64_t start = out->n;
        bool has_mark = (piece.size >= mark->n && memcmp(from, mark->data, mark->n) == 0) ||
                        (step->replace_spaces && from[0] == ' ');
        bool wanted = step->scheme == SHEAF__PREFIX_ALWAYS ||
                      (step->scheme == SHEAF__PREFIX_FIRST && at_start && i == 0);
        if (wanted && !has_mark) SHEAF__TRY(sheaf__text_append(out, mark->data, mark->n));
        if (step->replace_spaces)
            SHEAF__TRY(append_marked(out, mark, from, piece.size));
        else
            SHEAF__TRY(sheaf__text_append(out, from, piece.size));
        if (out->n > INT32_MAX) return SHEAF_E_OVERFLOW;
        SHEAF__TRY(push_piece(enc, 1, start, out->n));
    }
    *text = out->data;
    return SHEAF_OK;
}

static void swap_lists(sheaf__encoding *enc)
{
    sheaf__span *pieces = enc->pieces[0];
    uint64_t n = enc->n_pieces[0], capacity = enc->pieces_capacity[0];
    enc->pieces[0] = enc->pieces[1];
    enc->n_pieces[0] = enc->n_pieces[1];
    enc->pieces_capacity[0] = enc->pieces_capacity[1];
    enc->pieces[1] = pieces;
    enc->n_pieces[1] = n;
    enc->pieces_capacity[1] = capacity;
}

sheaf_status sheaf__pretokenize(sheaf__encoding *enc, bool at_start, const char **text,
                                uint64_t size)
{
    enc->n_pieces[0] = 0;
    SHEAF__TRY(push_piece(enc, 0, 0, size));
    for (uint32_t i = 0; i < enc->tok->n_pretokenize; i++) {
        const sheaf__pretokenize_step *step = &enc->tok->pretokenize[i];
        enc->n_pieces[1] = 0;
        if (step->kind == SHEAF__PRETOKENIZE_PREFIX) {
            SHEAF__TRY(prefix_pieces(enc, step, at_start, text));
        } else {
            for (uint64_t p = 0; p < enc->n_pieces[0]; p++)
                SHEAF__TRY(split_piece(enc, step, *text, enc->pieces[0][p]));
        }
        swap_lists(enc);
    }
    return SHEAF_OK;
}
