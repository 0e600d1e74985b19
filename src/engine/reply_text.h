/* engine/reply_text.h - an answer's text on its way out: whole characters, and no stop text in it.
 *
 * Owns: streaming decoding, the search for stop texts, holding back what may yet become one. Does not
 * own: tokens, sockets.
 *
 *     st = sheaf__reply_text_init(&t, tokenizer, stops, n_stops);
 *     st = sheaf__reply_text_push(&t, token, &out, &stopped);    // each token; out: what is certain
 *     st = sheaf__reply_text_finish(&t, &out);                   // at the end, unless it has stopped
 *     sheaf__reply_text_free(&t);
 *
 * What is given out, joined, is the decoded answer up to where the first stop text in it begins (of
 * several that begin at one place it does not matter which: all of it is left out), whatever the pieces
 * that it came in. So a complete one waits while a longer one that began before it may yet be completed.
 */
#ifndef SHEAF_ENGINE_REPLY_TEXT_H
#define SHEAF_ENGINE_REPLY_TEXT_H

#include "model/tokenizer.h"

typedef struct sheaf__stop_search sheaf__stop_search;

typedef struct sheaf__reply_text {
    sheaf__detokenizer detokenizer;
    const char *const *stops; /* [n_stops], none empty; the caller's, good as long as this */
    uint32_t n_stops;
    bool stopped; /* a stop text has been met, in `finish` too */
    /* decoded, not given out: the longest end of it that begins a stop text */
    sheaf__text held;
    uint64_t stop_at;             /* where in `held` the first complete stop text begins */
    sheaf__stop_search *searches; /* [n_stops]; null until the first push */
} sheaf__reply_text;

/* stops: UTF-8. Special tokens are no text. */
void sheaf__reply_text_init(sheaf__reply_text *t, const sheaf__tokenizer *tok,
                            const char *const *stops, uint32_t n_stops);

/* Appends to `out` what the token makes certain, whole characters. *stopped: a stop text is complete
 * and none can begin before it; nothing may be pushed after it. SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW: fit
 * for `free` only. O(bytes * n_stops), and what is held may be moved. */
sheaf_status sheaf__reply_text_push(sheaf__reply_text *t, int32_t token, sheaf__text *out,
                                    bool *stopped);

/* Appends what was held back (U+FFFD for an incomplete character; a stop text that only this completes
 * counts). Nothing after a stop. */
sheaf_status sheaf__reply_text_finish(sheaf__reply_text *t, sheaf__text *out);
void sheaf__reply_text_free(sheaf__reply_text *t);

#endif
