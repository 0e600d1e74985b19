/* engine/reply_text.c - an answer's text on its way out: whole characters, and no stop text in it.
 *
 * Each stop text is searched for by itself (Knuth, Morris, Pratt): after each byte it is known how
 * much of its start the text ends with. The smallest place where such a start begins, or where a
 * complete stop text does, divides what is certain from what is held back:
 *
 *     text       ...given out | E  N  D  .  E  N
 *     stops      "END.END"      *--*--*--*--*--*      may yet be completed: all of it is held back
 *                "D."                 *--*            complete, and waits for the one before it
 *
 * Places are counted in `held`, whose start moves as text is given out.
 */
#include "engine/reply_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct sheaf__stop_search {
    const char *text;
    uint64_t size;
    uint64_t n_matched; /* bytes of its start that the text ends with; less than size */
    uint64_t *borders;  /* [size] of the first i + 1 bytes: the longest end that is a start */
};

#define NOWHERE UINT64_MAX

void sheaf__reply_text_init(sheaf__reply_text *t, const sheaf__tokenizer *tok,
                            const char *const *stops, uint32_t n_stops)
{
    *t = (sheaf__reply_text){.stops = stops, .n_stops = n_stops, .stop_at = NOWHERE};
    sheaf__detokenizer_init(&t->detokenizer, tok, true);
}

void sheaf__reply_text_free(sheaf__reply_text *t)
{
    if (t->searches != NULL)
        for (uint32_t i = 0; i < t->n_stops; i++) free(t->searches[i].borders);
    free(t->searches);
    t->searches = NULL;
    sheaf__text_free(&t->held);
    sheaf__detokenizer_free(&t->detokenizer);
}

/* ---- one stop text ----------------------------------------------------------------------- */

/* How much of the start is there after `byte`, when n_matched bytes were there before it. */
static uint64_t advance(const sheaf__stop_search *s, uint64_t n_matched, char byte)
{
    while (n_matched != 0 && s->text[n_matched] != byte) n_matched = s->borders[n_matched - 1];
    return n_matched + (s->text[n_matched] == byte);
}

static sheaf_status search_open(sheaf__stop_search *s, const char *text)
{
    s->text = text;
    s->size = strlen(text);
    SHEAF__ASSERT(s->size != 0);
    s->borders = calloc(s->size, sizeof *s->borders);
    if (s->borders == NULL) return SHEAF_E_NO_MEMORY;
    for (uint64_t i = 1; i < s->size; i++)
        s->borders[i] = advance(s, s->borders[i - 1], text[i]);
    return SHEAF_OK;
}

static sheaf_status open_searches(sheaf__reply_text *t)
{
    if (t->searches != NULL || t->n_stops == 0) return SHEAF_OK;
    t->searches = calloc(t->n_stops, sizeof *t->searches);
    if (t->searches == NULL) return SHEAF_E_NO_MEMORY;
    for (uint32_t i = 0; i < t->n_stops; i++)
        SHEAF__TRY(search_open(&t->searches[i], t->stops[i]));
    return SHEAF_OK;
}

/* ---- all of them ------------------------------------------------------------------------- */

/* Takes in the byte of `held` before `end`. */
static void search_byte(sheaf__reply_text *t, uint64_t end)
{
    for (uint32_t i = 0; i < t->n_stops; i++) {
        sheaf__stop_search *s = &t->searches[i];
        s->n_matched = advance(s, s->n_matched, t->held.data[end - 1]);
        if (s->n_matched < s->size) continue;
        if (end - s->size < t->stop_at) t->stop_at = end - s->size;
        s->n_matched = 0; /* it will not come before this place again */
    }
}

/* Where the first start of a stop text begins that `held` ends with. */
static uint64_t pending_from(const sheaf__reply_text *t)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < t->n_stops; i++)
        if (t->searches[i].n_matched > longest) longest = t->searches[i].n_matched;
    return t->held.n - longest;
}

/* Gives out what comes before `end`. */
static sheaf_status give(sheaf__reply_text *t, uint64_t end, sheaf__text *out)
{
    if (end == 0) return SHEAF_OK;
    SHEAF__TRY(sheaf__text_append(out, t->held.data, end));
    memmove(t->held.data, t->held.data + end, t->held.n - end);
    t->held.n -= end;
    if (t->stop_at != NOWHERE) t->stop_at -= end;
    return SHEAF_OK;
}

/* Searches what has been decoded since `held` had n bytes, and gives out what is certain: nothing
 * but a complete stop text is pending when the answer `ends`. */
static sheaf_status settle(sheaf__reply_text *t, uint64_t n, bool ends, sheaf__text *out)
{
    while (n < t->held.n) search_byte(t, ++n);
    uint64_t certain = ends ? t->held.n : pending_from(t);
    t->stopped = t->stop_at <= certain;
    return give(t, t->stopped ? t->stop_at : certain, out);
}

sheaf_status sheaf__reply_text_push(sheaf__reply_text *t, int32_t token, sheaf__text *out,
                                    bool *stopped)
{
    SHEAF__ASSERT(!t->stopped);
    if (t->n_stops == 0) {
        SHEAF__TRY(sheaf__detokenizer_push(&t->detokenizer, token, out));
        *stopped = false;
        return SHEAF_OK;
    }
    uint64_t n = t->held.n;
    SHEAF__TRY(open_searches(t));
    SHEAF__TRY(sheaf__detokenizer_push(&t->detokenizer, token, &t->held));
    SHEAF__TRY(settle(t, n, false, out));
    *stopped = t->stopped;
    return SHEAF_OK;
}

sheaf_status sheaf__reply_text_finish(sheaf__reply_text *t, sheaf__text *out)
{
    if (t->stopped) return SHEAF_OK;
    if (t->n_stops == 0) return sheaf__detokenizer_finish(&t->detokenizer, out);
    uint64_t n = t->held.n;
    SHEAF__TRY(open_searches(t));
    SHEAF__TRY(sheaf__detokenizer_finish(&t->detokenizer, &t->held));
    return settle(t, n, true, out);
}
