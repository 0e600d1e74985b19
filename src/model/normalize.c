/* model/normalize.c - the normalizer: Unicode forms, prefixes and replacements.
 *
 * Forms are made by utf8proc's tables. The order of combining marks is made here: utf8proc's
 * own sorts by neighbours, which a text of nothing but marks turns into hours.
 */
#include <string.h>

#include <utf8proc.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/tokenizer_parts.h"
#include "model/utf8.h"

#define SHORT_RUN 24u /* marks sorted by insertion; longer runs are counted */

/* Whether a form leaves every text below this lead byte as it is: U+0300 for NFC, U+00C0 for
 * NFD and U+0080 for the two compatibility forms (U+00A0 is the first that they change). */
static bool form_is_met(uint32_t form, const char *text, uint64_t size)
{
    unsigned char limit = form == SHEAF__FORM_NFC   ? 0xcc
                          : form == SHEAF__FORM_NFD ? 0xc3
                                                    : 0xc2;
    for (uint64_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= limit) return false;
    return true;
}

static uint32_t combining_class(int32_t code)
{
    return (uint32_t)utf8proc_get_property(code)->combining_class;
}

/* Sorts `n` marks by class, equal ones staying in order. */
static sheaf_status order_run(sheaf__encoding *enc, int32_t *run, uint64_t n)
{
    if (n <= SHORT_RUN) {
        for (uint64_t i = 1; i < n; i++) {
            int32_t moved = run[i];
            uint64_t at = i;
            for (; at > 0 && combining_class(run[at - 1]) > combining_class(moved); at--)
                run[at] = run[at - 1];
            run[at] = moved;
        }
        return SHEAF_OK;
    }
    void *grown = enc->reordered;
    SHEAF__TRY(sheaf__memory_grow(&enc->memory, &grown, &enc->reordered_capacity, n,
                                  sizeof *enc->reordered));
    enc->reordered = grown;
    uint64_t next[257] = {0}; /* [class]: where the next mark of that class goes */
    for (uint64_t i = 0; i < n; i++) next[combining_class(run[i]) + 1]++;
    for (uint32_t c = 0; c < 256; c++) next[c + 1] += next[c];
    for (uint64_t i = 0; i < n; i++) enc->reordered[next[combining_class(run[i])]++] = run[i];
    memcpy(run, enc->reordered, n * sizeof *run);
    return SHEAF_OK;
}

static sheaf_status order_marks(sheaf__encoding *enc, int32_t *codes, uint64_t n)
{
    for (uint64_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (combining_class(codes[i]) == 0) continue;
        while (end < n && combining_class(codes[end]) != 0) end++;
        SHEAF__TRY(order_run(enc, codes + i, end - i));
    }
    return SHEAF_OK;
}

/* Fully decomposes the text into enc->code_points; *n of them. */
static sheaf_status decompose(sheaf__encoding *enc, utf8proc_option_t options, const char *text,
                              uint64_t size, uint64_t *n)
{
    *n = 0;
    for (uint64_t at = 0; at < size;) {
        sheaf__utf8_char c = sheaf__utf8_read(text + at, size - at);
        at += c.size;
        void *grown = enc->code_points;
        SHEAF__TRY(sheaf__memory_grow(&enc->memory, &grown, &enc->code_points_capacity, *n + 32,
                                      sizeof *enc->code_points));
        enc->code_points = grown;
        int boundary = 0;
        utf8proc_ssize_t made = utf8proc_decompose_char(
            (utf8proc_int32_t)c.code, enc->code_points + *n,
            (utf8proc_ssize_t)(enc->code_points_capacity - *n), options, &boundary);
        if (made < 0 || (uint64_t)made > enc->code_points_capacity - *n)
            return SHEAF_E_UNSUPPORTED;
        *n += (uint64_t)made;
    }
    return SHEAF_OK;
}

static sheaf_status normalize_form(sheaf__encoding *enc, uint32_t form, const char *text,
                                   uint64_t size, sheaf__text *out)
{
    bool compatible = form == SHEAF__FORM_NFKC || form == SHEAF__FORM_NFKD;
    bool composed = form == SHEAF__FORM_NFC || form == SHEAF__FORM_NFKC;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (compatible) options |= UTF8PROC_COMPAT;
    uint64_t n = 0;
    SHEAF__TRY(decompose(enc, options, text, size, &n));
    SHEAF__TRY(order_marks(enc, enc->code_points, n));
    if (composed) {
        options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
        utf8proc_ssize_t kept =
            utf8proc_normalize_utf32(enc->code_points, (utf8proc_ssize_t)n, options);
        if (kept < 0) return SHEAF_E_UNSUPPORTED;
        n = (uint64_t)kept;
    }
    for (uint64_t i = 0; i < n; i++) {
        char bytes[4];
        uint32_t length = sheaf__utf8_write((uint32_t)enc->code_points[i], bytes);
        SHEAF__TRY(sheaf__text_append(out, bytes, length));
    }
    return SHEAF_OK;
}

static sheaf_status replace(sheaf__encoding *enc, const sheaf__normalize_step *step,
                            const char *text, uint64_t size, sheaf__text *out)
{
    sheaf__pattern_scan scan;
    SHEAF__TRY(sheaf__pattern_begin(&scan, enc, step->regex, &step->literal, text, size));
    uint64_t done = 0, start = 0, end = 0;
    sheaf_status status;
    while ((status = sheaf__pattern_next(&scan, &start, &end)) == SHEAF_OK) {
        SHEAF__TRY(sheaf__text_append(out, text + done, start - done));
        SHEAF__TRY(sheaf__text_append(out, step->content.data, step->content.n));
        if (out->n > INT32_MAX) return SHEAF_E_OVERFLOW;
        done = end;
    }
    if (status != SHEAF_MISS) return status;
    return sheaf__text_append(out, text + done, size - done);
}

sheaf_status sheaf__normalize(sheaf__encoding *enc, const char **text, uint64_t *size)
{
    for (uint32_t i = 0; i < enc->tok->n_normalize; i++) {
        const sheaf__normalize_step *step = &enc->tok->normalize[i];
        sheaf__text *out = &enc->text[enc->text[0].data == *text && *text != NULL];
        if (*size == 0) continue;
        out->n = 0;
        switch (step->kind) {
        case SHEAF__NORMALIZE_FORM:
            if (form_is_met(step->form, *text, *size)) continue;
            SHEAF__TRY(normalize_form(enc, step->form, *text, *size, out));
            break;
        case SHEAF__NORMALIZE_PREPEND:
            SHEAF__TRY(sheaf__text_append(out, step->content.data, step->content.n));
            SHEAF__TRY(sheaf__text_append(out, *text, *size));
            break;
        default: SHEAF__TRY(replace(enc, step, *text, *size, out)); break;
        }
        if (out->n > INT32_MAX) return SHEAF_E_OVERFLOW;
        *text = out->data;
        *size = out->n;
    }
    return SHEAF_OK;
}
