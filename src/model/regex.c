/* model/regex.c - from Oniguruma's syntax to PCRE2's, and bounded matching.
 *
 * The reference implementation matches with Oniguruma in its Ruby syntax. PCRE2 with UTF and
 * UCP agrees with it except where the translation below steps in:
 *
 *     \s \S      PCRE2 counts U+180E as a space, Unicode does not: written out as a class
 *     \w \W      Unicode's word characters, marks and connectors included
 *     \h \H \v   hexadecimal digits and the vertical tab
 *     {,n}       from none to n
 *     \uHHHH     a code point
 *     ^ $        at every line: by compile option
 *     [a[b]] && (?m) \b {n,m}+   another meaning, or none: refused
 *
 * Limits: PCRE2 bounds the steps of one attempt at one position. That leaves a pattern which is
 * slow at every position of a long text, so positions are searched in windows, and between
 * windows and every few matches the thread's processor time is held against a bound that honest
 * patterns stay under by a factor of hundreds.
 */
#include "model/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/utf8.h"

#define MATCH_LIMIT      10000000u /* steps at one position: PCRE2's own default */
#define HEAP_LIMIT_KIB   65536u
#define JIT_STACK_FIRST  32768u
#define JIT_STACK_MOST   1048576u
#define WINDOW           64u /* positions searched in one call */
#define CALLS_PER_CHECK  64u
#define TIME_BASE_NS     1000000000u
#define TIME_PER_BYTE_NS 4000u

#define SPACE_SET                                                                              \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE_SET                                                                          \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"   \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"             \
    "\\x{3001}-\\x{10ffff}"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

struct sheaf__regex {
    pcre2_code *code;
};

/* The pattern being translated. */
typedef struct translation {
    const char *pattern; /* [size] */
    uint64_t size, at;
    sheaf__text out;
    const char *refused; /* what PCRE2 would read otherwise */
} translation;

static sheaf_status put(translation *t, const char *text)
{
    return sheaf__text_append(&t->out, text, strlen(text));
}

static sheaf_status put_class(translation *t, bool in_class, const char *open, const char *set)
{
    if (in_class) return put(t, set);
    SHEAF__TRY(put(t, open));
    SHEAF__TRY(put(t, set));
    return put(t, "]");
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static sheaf_status translate_code_point(translation *t)
{
    if (t->at + 6 > t->size) {
        t->refused = "\\u";
        return SHEAF_OK;
    }
    const char *digits = t->pattern + t->at + 2;
    for (int i = 0; i < 4; i++)
        if (!is_hex(digits[i])) t->refused = "\\u";
    SHEAF__TRY(put(t, "\\x{"));
    SHEAF__TRY(sheaf__text_append(&t->out, digits, 4));
    t->at += 6;
    return put(t, "}");
}

/* Copies \p{...}, \x{...}, \k<...> with what belongs to them, or one escaped character. */
static sheaf_status copy_escape(translation *t)
{
    uint64_t end = t->at + 1 + sheaf__utf8_size(t->pattern[t->at + 1]);
    if (end < t->size && t->pattern[end] == '{' && strchr("pPxo", t->pattern[t->at + 1])) {
        const char *close = memchr(t->pattern + end, '}', t->size - end);
        if (close != NULL) end = (uint64_t)(close - t->pattern) + 1;
    }
    SHEAF__TRY(sheaf__text_append(&t->out, t->pattern + t->at, end - t->at));
    t->at = end;
    return SHEAF_OK;
}

static sheaf_status translate_escape(translation *t, bool in_class)
{
    if (t->at + 1 >= t->size) {
        t->refused = "a lone backslash";
        return SHEAF_OK;
    }
    char c = t->pattern[t->at + 1];
    if (c == 'u') return translate_code_point(t);
    if (strchr("sSwWhHv", c) == NULL || c == 0) {
        if (!in_class && (c == 'b' || c == 'B')) t->refused = "\\b";
        if (c == 'M' || c == 'C' || c == 'c' || c == 'y' || c == 'Y')
            t->refused = "\\M, \\C or \\y";
        if (c == 'Q' || c == 'E' || c == 'N' || c == 'O') t->refused = "\\Q, \\N or \\O";
        return copy_escape(t);
    }
    t->at += 2;
    switch (c) {
    case 's': return put_class(t, in_class, "[", SPACE_SET);
    case 'S': return in_class ? put(t, NOT_SPACE_SET) : put_class(t, false, "[^", SPACE_SET);
    case 'w': return put_class(t, in_class, "[", WORD_SET);
    case 'h': return put_class(t, in_class, "[", "0-9a-fA-F");
    case 'v': return put(t, "\\x0b");
    default: break;
    }
    if (in_class) {
        t->refused = "\\W or \\H inside a class";
        return SHEAF_OK;
    }
    return put_class(t, false, "[^", c == 'W' ? WORD_SET : "0-9a-fA-F");
}

/* From '[' to its ']'. */
static sheaf_status translate_class(translation *t)
{
    SHEAF__TRY(put(t, "["));
    t->at++;
    if (t->at < t->size && t->pattern[t->at] == '^') {
        SHEAF__TRY(put(t, "^"));
        t->at++;
    }
    if (t->at < t->size && t->pattern[t->at] == ']') t->refused = "a class that opens with ]";
    while (t->at < t->size && t->pattern[t->at] != ']') {
        const char *s = t->pattern + t->at;
        uint64_t left = t->size - t->at;
        if (*s == '\\') {
            SHEAF__TRY(translate_escape(t, true));
            if (t->refused != NULL) return SHEAF_OK;
            continue;
        }
        if (*s == '[') t->refused = "a class inside a class";
        if (left > 1 && s[0] == '&' && s[1] == '&') t->refused = "&& inside a class";
        uint64_t size = sheaf__utf8_size(*s);
        SHEAF__TRY(sheaf__text_append(&t->out, s, size));
        t->at += size;
    }
    if (t->at >= t->size) {
        t->refused = "a class that does not end";
        return SHEAF_OK;
    }
    t->at++;
    return put(t, "]");
}

/* '(' and, for (?...), the characters up to the one that ends its head. */
static void check_group(translation *t)
{
    const char *s = t->pattern + t->at;
    uint64_t left = t->size - t->at;
    if (left > 1 && s[1] == '*') t->refused = "(*";
    if (left < 3 || s[1] != '?') return;
    if (strchr(":=!>", s[2]) != NULL && s[2] != 0) return;
    if (s[2] == '<' && left > 3) return;
    for (uint64_t i = 2; i < left && s[i] != ')' && s[i] != ':'; i++)
        if (strchr("ix-", s[i]) == NULL || s[i] == 0) t->refused = "an option or group (?...)";
}

static sheaf_status translate_quantifier(translation *t)
{
    const char *close = memchr(t->pattern + t->at, '}', t->size - t->at);
    if (close == NULL) {
        t->refused = "a lone {";
        return SHEAF_OK;
    }
    uint64_t end = (uint64_t)(close - t->pattern) + 1;
    if (end < t->size && t->pattern[end] == '+') t->refused = "+ after {n,m}";
    SHEAF__TRY(put(t, t->pattern[t->at + 1] == ',' ? "{0" : "{"));
    SHEAF__TRY(sheaf__text_append(&t->out, t->pattern + t->at + 1, end - t->at - 1));
    t->at = end;
    return SHEAF_OK;
}

static sheaf_status translate(translation *t)
{
    while (t->at < t->size && t->refused == NULL) {
        char c = t->pattern[t->at];
        if (c == '\\') {
            SHEAF__TRY(translate_escape(t, false));
        } else if (c == '[') {
            SHEAF__TRY(translate_class(t));
        } else if (c == '{') {
            SHEAF__TRY(translate_quantifier(t));
        } else {
            if (c == '(') check_group(t);
            uint64_t size = sheaf__utf8_size(c);
            SHEAF__TRY(sheaf__text_append(&t->out, t->pattern + t->at, size));
            t->at += size;
        }
    }
    return SHEAF_OK;
}

static sheaf_status compile(const char *where, const sheaf__text *pattern, pcre2_code **out,
                            sheaf_error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) return SHEAF_E_NO_MEMORY;
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)(pattern->n != 0 ? pattern->data : ""), pattern->n,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &code,
                      &offset, context);
    pcre2_compile_context_free(context);
    if (compiled == NULL) {
        PCRE2_UCHAR message[128];
        if (pcre2_get_error_message(code, message, sizeof message) < 0) message[0] = 0;
        return sheaf__error_set(err, SHEAF_E_ARCH, "%s: pattern refused at %llu: %s", where,
                                (unsigned long long)offset, (const char *)message);
    }
    /* without JIT (none on this processor, or no executable memory) matching only is slower */
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    *out = compiled;
    return SHEAF_OK;
}

sheaf_status sheaf__regex_compile(const char *where, const char *pattern, uint64_t size,
                                  sheaf__regex **out, sheaf_error *err)
{
    translation t = {pattern, size, 0, {NULL, 0, 0}, NULL};
    sheaf__regex *regex = calloc(1, sizeof *regex);
    sheaf_status status = regex == NULL ? SHEAF_E_NO_MEMORY : translate(&t);
    if (status == SHEAF_OK && t.refused != NULL)
        status = sheaf__error_set(err, SHEAF_E_ARCH, "%s: pattern uses %s, which is not known",
                                  where, t.refused);
    if (status == SHEAF_OK) status = compile(where, &t.out, &regex->code, err);
    sheaf__text_free(&t.out);
    if (status != SHEAF_OK) {
        free(regex);
        return status;
    }
    *out = regex;
    return SHEAF_OK;
}

void sheaf__regex_free(sheaf__regex *regex)
{
    if (regex == NULL) return;
    pcre2_code_free(regex->code);
    free(regex);
}

static sheaf_status scratch_open(sheaf__regex_scratch *scratch)
{
    if (scratch->match_data != NULL) return SHEAF_OK;
    if (scratch->context == NULL) scratch->context = pcre2_match_context_create(NULL);
    if (scratch->context == NULL) return SHEAF_E_NO_MEMORY;
    (void)pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    (void)pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    if (scratch->jit_stack == NULL)
        scratch->jit_stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, NULL);
    /* null where the library was built without JIT */
    if (scratch->jit_stack != NULL)
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->jit_stack);
    scratch->match_data = pcre2_match_data_create(1, NULL);
    return scratch->match_data != NULL ? SHEAF_OK : SHEAF_E_NO_MEMORY;
}

void sheaf__regex_scratch_free(sheaf__regex_scratch *scratch)
{
    pcre2_match_data_free(scratch->match_data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->jit_stack);
    *scratch = (sheaf__regex_scratch){NULL, NULL, NULL};
}

sheaf_status sheaf__regex_scan_begin(sheaf__regex_scan *scan, const sheaf__regex *regex,
                                     sheaf__regex_scratch *scratch, const char *text,
                                     uint64_t size)
{
    SHEAF__TRY(scratch_open(scratch));
    *scan = (sheaf__regex_scan){regex, scratch, text, size, 0, UINT64_MAX, 0, 0};
    return SHEAF_OK;
}

/* Processor time, not time of day: a busy machine must not make an honest pattern fail. */
static uint64_t thread_ns(void)
{
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool out_of_time(sheaf__regex_scan *scan)
{
    uint64_t now = thread_ns();
    if (scan->started_ns == 0) scan->started_ns = now;
    return now - scan->started_ns > TIME_BASE_NS + scan->size * TIME_PER_BYTE_NS;
}

static uint64_t character_start(const char *text, uint64_t size, uint64_t at)
{
    while (at < size && ((unsigned char)text[at] & 0xc0u) == 0x80) at++;
    return at;
}

/* One match whose start is at or after scan->at; scan->at moves over positions without one. */
static sheaf_status search(sheaf__regex_scan *scan, uint64_t *start, uint64_t *end)
{
    while (scan->at <= scan->size) {
        if (scan->n_calls++ % CALLS_PER_CHECK == 0 && out_of_time(scan))
            return SHEAF_E_UNSUPPORTED;
        uint64_t window = sheaf__min_u64(scan->at + WINDOW, scan->size);
        window = character_start(scan->text, scan->size, window);
        (void)pcre2_set_offset_limit(scan->scratch->context, window);
        int found =
            pcre2_match(scan->regex->code, (PCRE2_SPTR)scan->text, scan->size, scan->at,
                        PCRE2_NO_UTF_CHECK, scan->scratch->match_data, scan->scratch->context);
        if (found == PCRE2_ERROR_NOMATCH) {
            if (window == scan->size) return SHEAF_MISS;
            scan->at = window;
            scan->n_calls = 0; /* a window is dear: ask the clock at once */
            continue;
        }
        if (found == PCRE2_ERROR_NOMEMORY) return SHEAF_E_NO_MEMORY;
        if (found < 0) return SHEAF_E_UNSUPPORTED;
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(scan->scratch->match_data);
        if (ends[1] < ends[0]) return SHEAF_E_UNSUPPORTED; /* \K in a look-ahead */
        *start = ends[0];
        *end = ends[1];
        return SHEAF_OK;
    }
    return SHEAF_MISS;
}

sheaf_status sheaf__regex_scan_next(sheaf__regex_scan *scan, uint64_t *start, uint64_t *end)
{
    for (;;) {
        SHEAF__TRY(search(scan, start, end));
        if (*end != *start || *end != scan->last_end) break;
        if (scan->at >= scan->size) return SHEAF_MISS;
        scan->at += sheaf__utf8_size(scan->text[scan->at]);
    }
    scan->at = *end;
    scan->last_end = *end;
    return SHEAF_OK;
}
