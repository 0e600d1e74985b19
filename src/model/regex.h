/* model/regex.h - the patterns of tokenizer files, matched by PCRE2.
 *
 * Owns: translating a pattern from the syntax that the files use (Oniguruma, Ruby flavour), and
 * limits that turn a hostile pattern into an error. Does not own: what is done with the
 * matches. A pattern is read-only once compiled; a scan belongs to one thread.
 */
#ifndef SHEAF_MODEL_REGEX_H
#define SHEAF_MODEL_REGEX_H

#include "model/tokenizer.h"

typedef struct sheaf__regex sheaf__regex;

/* SHEAF_E_ARCH: something that PCRE2 does not do, or does otherwise (`where` opens the
 * sentence). SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__regex_compile(const char *where, const char *pattern, uint64_t size,
                                  sheaf__regex **out, sheaf_error *err);
void sheaf__regex_free(sheaf__regex *regex); /* null is allowed */

/* What matching needs for itself; any pattern, one thread. Start from zero. */
typedef struct sheaf__regex_scratch {
    void *match_data, *context, *jit_stack;
} sheaf__regex_scratch;
void sheaf__regex_scratch_free(sheaf__regex_scratch *scratch);

/* A scan over one text: matches from left to right that do not overlap; an empty match right
 * after the last one is passed over. */
typedef struct sheaf__regex_scan {
    const sheaf__regex *regex;
    sheaf__regex_scratch *scratch;
    const char *text; /* [size], well-formed UTF-8 */
    uint64_t size;
    uint64_t at;         /* where to search next */
    uint64_t last_end;   /* of the last match; UINT64_MAX: none */
    uint64_t n_calls;    /* of the matcher */
    uint64_t started_ns; /* of this thread's processor time; 0: not asked yet */
} sheaf__regex_scan;
sheaf_status sheaf__regex_scan_begin(sheaf__regex_scan *scan, const sheaf__regex *regex,
                                     sheaf__regex_scratch *scratch, const char *text,
                                     uint64_t size);

/* The next match as [*start, *end). SHEAF_MISS: no more. SHEAF_E_UNSUPPORTED: the pattern needs
 * more work on this text than the limits allow. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__regex_scan_next(sheaf__regex_scan *scan, uint64_t *start, uint64_t *end);

#endif
