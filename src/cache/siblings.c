/* cache/siblings.c - the children of a node, in the order of their tokens.
 *
 * A B+ tree (Comer 1979) of twigs, each with up to 24 places in order. A place of a low twig is a
 * member; of a higher one it is a twig, and the least member below that. First tokens lie beside each
 * other, so most steps of a way down read two lines of memory and follow no pointer to tokens:
 *
 *     height 1                  first   3         9
 *                               least  [3 1..]   [9 ..]
 *                               below   |         +----------------+
 *     height 0       first   3       3       7             first   9      12
 *                    least  [3 1..] [3 5..] [7 ..]         least  [9 ..] [12 ..]
 *
 * Invariants (sheaf__siblings_check verifies them):
 *
 *  - least and first of a place are those of the first place below it
 *  - a twig is not empty; all low twigs are equally far from the root
 *  - with fewer than two members there is no twig
 *
 * On the way down to insert, full twigs are split, so that the one above has room. A twig goes when it
 * has fallen empty, not before: neighbours are not filled up from each other. Height then follows from
 * what has ever come: to make it one more, twelve times as many members have to come; no order of coming
 * and going makes it deep. It is the same in every process.
 */
#include "cache/siblings.h"

#include <stddef.h>
#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define PLACES 24
#define STRIDE 64 /* tokens compared at once: four cache lines of each side */
#define SPARES 8  /* kept at most when a twig goes */
#define LINE   64 /* bytes that come from memory together */

struct sheaf__twig {
    sheaf__twig *up; /* null: the root */
    uint32_t height; /* 0: its places are members */
    uint32_t n;
    int32_t first[PLACES]; /* from n on the greatest there is */
    sheaf__sibling *least[PLACES];
    sheaf__twig *below[PLACES]; /* unused in low twigs */
};

uint32_t sheaf__tokens_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= STRIDE && memcmp(a + i, b + i, STRIDE * sizeof *a) == 0) i += STRIDE;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* ---- where twigs come from --------------------------------------------------------------- */

sheaf_status sheaf__twigs_reserve(sheaf__twigs *twigs, uint32_t n)
{
    while (twigs->n_spare < n) {
        sheaf__twig *twig = sheaf__memory_alloc_aligned(twigs->memory, 1, sizeof *twig, LINE);
        if (twig == NULL) return SHEAF_E_NO_MEMORY;
        *twigs->host_bytes += sizeof *twig;
        twig->up = twigs->spare;
        twigs->spare = twig;
        twigs->n_spare++;
    }
    return SHEAF_OK;
}

static sheaf__twig *take_spare(sheaf__twigs *twigs)
{
    sheaf__twig *twig = twigs->spare;
    SHEAF__ASSERT(twig != NULL);
    twigs->spare = twig->up;
    twigs->n_spare--;
    return twig;
}

static void free_spares(sheaf__twigs *twigs, uint32_t keep)
{
    while (twigs->n_spare > keep) {
        sheaf__twig *twig = take_spare(twigs);
        *twigs->host_bytes -= sizeof *twig;
        sheaf__memory_free_aligned(twigs->memory, twig, 1, sizeof *twig, LINE);
    }
}

void sheaf__twigs_close(sheaf__twigs *twigs)
{
    SHEAF__ASSERT(twigs->n_used == 0);
    free_spares(twigs, 0);
}

static sheaf__twig *twig_take(sheaf__twigs *twigs, uint32_t height)
{
    sheaf__twig *twig = take_spare(twigs);
    twigs->n_used++;
    twig->up = NULL;
    twig->height = height;
    twig->n = 0;
    for (uint32_t i = 0; i < PLACES; i++) twig->first[i] = INT32_MAX;
    return twig;
}

static void twig_give(sheaf__twigs *twigs, sheaf__twig *twig)
{
    twig->up = twigs->spare;
    twigs->spare = twig;
    twigs->n_spare++;
    twigs->n_used--;
    free_spares(twigs, twigs->n_used == 0 ? 0 : SPARES);
}

/* What a member comes into, or goes out of, is most of a low twig. */
static void fetch(const sheaf__twig *twig)
{
    if (twig == NULL) return;
    for (size_t at = 0; at < offsetof(sheaf__twig, below); at += LINE)
        __builtin_prefetch((const char *)twig + at, 1);
}

/* ---- order ------------------------------------------------------------------------------- */

/* Whether a member comes before tokens[0, n), or is or begins them. */
static bool not_after(const sheaf__sibling *m, const int32_t *tokens, uint32_t n)
{
    uint32_t both = m->n < n ? m->n : n;
    uint32_t common = sheaf__tokens_common(m->tokens, tokens, both);
    if (common == both) return common == m->n;
    return m->tokens[common] < tokens[common];
}

/* How many places begin with what is not after tokens[0, n), n > 0. */
static uint32_t n_not_after(const sheaf__twig *twig, const int32_t *tokens, uint32_t n)
{
    uint32_t low = 0, high = 0;
    for (uint32_t i = 0; i < PLACES; i++) {
        low += twig->first[i] < tokens[0];
        high += twig->first[i] <= tokens[0];
    }
    if (high > twig->n) high = twig->n;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (not_after(twig->least[middle], tokens, n))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- places ------------------------------------------------------------------------------ */

static uint32_t place_of(const sheaf__sibling *m)
{
    uint32_t i = 0;
    while (m->in->least[i] != m) i++;
    return i;
}

static uint32_t place_in(const sheaf__twig *up, const sheaf__twig *twig)
{
    uint32_t i = 0;
    while (up->below[i] != twig) i++;
    return i;
}

/* Moves places [from, n) of a twig by some to the right, or to the left. */
static void shift(sheaf__twig *twig, uint32_t from, int32_t by)
{
    uint32_t n = twig->n - from, to = from + (uint32_t)by;
    memmove(twig->first + to, twig->first + from, n * sizeof twig->first[0]);
    memmove(twig->least + to, twig->least + from, n * sizeof twig->least[0]);
    if (twig->height != 0)
        memmove(twig->below + to, twig->below + from, n * sizeof twig->below[0]);
    twig->n += (uint32_t)by;
}

/* Who is in a place knows it. */
static void name(sheaf__twig *twig, uint32_t i)
{
    if (twig->height == 0)
        twig->least[i]->in = twig;
    else
        twig->below[i]->up = twig;
}

/* Puts a member, or a twig and the least below it, into place i; there is room. */
static void put(sheaf__twig *twig, uint32_t i, sheaf__sibling *least, sheaf__twig *below)
{
    shift(twig, i, 1);
    twig->first[i] = least->tokens[0];
    twig->least[i] = least;
    if (below != NULL) twig->below[i] = below;
    name(twig, i);
}

static void cut(sheaf__twig *twig, uint32_t i)
{
    shift(twig, i + 1, -1);
    twig->first[twig->n] = INT32_MAX;
}

/* The first place of a twig has changed: those above it follow. */
static void renew(sheaf__twig *twig)
{
    for (uint32_t i = 0; i == 0 && twig->up != NULL; twig = twig->up) {
        i = place_in(twig->up, twig);
        twig->up->least[i] = twig->least[0];
        twig->up->first[i] = twig->first[0];
    }
}

/* ---- coming ------------------------------------------------------------------------------ */

uint32_t sheaf__siblings_need(const sheaf__siblings *siblings)
{
    if (siblings->count == 0) return 0;
    return siblings->root == NULL ? 1 : siblings->root->height + 2;
}

/* Moves the upper half of a full twig into a new one beside it; there is room above. The new one. */
static sheaf__twig *split(sheaf__siblings *siblings, sheaf__twigs *twigs, sheaf__twig *twig)
{
    if (twig->up == NULL) {
        siblings->root = twig_take(twigs, twig->height + 1);
        put(siblings->root, 0, twig->least[0], twig);
    }
    sheaf__twig *beside = twig_take(twigs, twig->height);
    for (uint32_t i = PLACES / 2; i < PLACES; i++) {
        beside->first[beside->n] = twig->first[i];
        beside->least[beside->n] = twig->least[i];
        if (twig->height != 0) beside->below[beside->n] = twig->below[i];
        name(beside, beside->n++);
        twig->first[i] = INT32_MAX;
    }
    twig->n = PLACES / 2;
    put(twig->up, place_in(twig->up, twig) + 1, beside->least[0], beside);
    return beside;
}

void sheaf__siblings_insert(sheaf__siblings *siblings, sheaf__twigs *twigs,
                            sheaf__sibling *sibling)
{
    sibling->in = NULL;
    if (siblings->count++ == 0) {
        siblings->alone = sibling;
        return;
    }
    if (siblings->root == NULL) {
        siblings->root = twig_take(twigs, 0);
        put(siblings->root, 0, siblings->alone, NULL);
        siblings->alone = NULL;
    }
    for (sheaf__twig *at = siblings->root;;) {
        if (at->n == PLACES) {
            sheaf__twig *beside = split(siblings, twigs, at);
            if (not_after(beside->least[0], sibling->tokens, sibling->n)) at = beside;
        }
        uint32_t i = n_not_after(at, sibling->tokens, sibling->n);
        if (at->height != 0) {
            at = at->below[i == 0 ? 0 : i - 1];
            continue;
        }
        put(at, i, sibling, NULL);
        if (i == 0) renew(at);
        return;
    }
}

/* ---- going ------------------------------------------------------------------------------- */

/* A root above one twig alone goes, and with one member left all do. */
static void lower_root(sheaf__siblings *siblings, sheaf__twigs *twigs)
{
    if (siblings->count == 1) siblings->alone = siblings->root->least[0];
    while (siblings->root != NULL && siblings->root->n == 1) {
        sheaf__twig *root = siblings->root;
        siblings->root = root->height != 0 ? root->below[0] : NULL;
        if (siblings->root != NULL) siblings->root->up = NULL;
        twig_give(twigs, root);
    }
    if (siblings->alone != NULL) siblings->alone->in = NULL;
}

void sheaf__siblings_remove(sheaf__siblings *siblings, sheaf__twigs *twigs,
                            sheaf__sibling *sibling)
{
    sheaf__twig *at = sibling->in;
    siblings->count--;
    if (at == NULL) {
        siblings->alone = NULL;
        return;
    }
    uint32_t i = place_of(sibling);
    sibling->in = NULL;
    cut(at, i);
    while (at->n == 0) { /* the root is not: there was another member */
        sheaf__twig *up = at->up;
        i = place_in(up, at);
        cut(up, i);
        twig_give(twigs, at);
        at = up;
    }
    if (i == 0) renew(at);
    if (siblings->root->n == 1) lower_root(siblings, twigs);
}

void sheaf__siblings_replace(sheaf__siblings *siblings, sheaf__sibling *sibling,
                             sheaf__sibling *by)
{
    by->in = sibling->in;
    if (by->in == NULL) {
        siblings->alone = by;
        return;
    }
    uint32_t i = place_of(sibling);
    by->in->least[i] = by;
    if (i == 0) renew(by->in);
    sibling->in = NULL;
}

/* ---- finding ----------------------------------------------------------------------------- */

/* The better of two, for tokens[0, n): how much it has in common is in *most. */
static sheaf__sibling *better(sheaf__sibling *best, sheaf__sibling *m, const int32_t *tokens,
                              uint32_t n, uint32_t *most)
{
    uint32_t both = m->n < n ? m->n : n;
    uint32_t same = sheaf__tokens_common(m->tokens, tokens, both);
    if (same <= *most) return best;
    *most = same;
    return m;
}

/* The neighbours are looked at only where their first tokens, which twigs have, are the query's. */
sheaf__sibling *sheaf__siblings_nearest(const sheaf__siblings *siblings, const int32_t *tokens,
                                        uint32_t n, uint32_t *common)
{
    sheaf__sibling *before = siblings->alone, *after = NULL, *best = NULL;
    *common = 0;
    if (n == 0) return NULL;
    for (const sheaf__twig *at = siblings->root; at != NULL;) {
        uint32_t i = n_not_after(at, tokens, n);
        before = i != 0 && at->first[i - 1] == tokens[0] ? at->least[i - 1] : NULL;
        if (i != at->n) after = at->first[i] == tokens[0] ? at->least[i] : NULL;
        at = at->height != 0 ? at->below[i == 0 ? 0 : i - 1] : NULL;
        fetch(at);
    }
    if (before != NULL) best = better(best, before, tokens, n, common);
    if (after != NULL) best = better(best, after, tokens, n, common);
    return best;
}

sheaf__sibling *sheaf__siblings_first(const sheaf__siblings *siblings)
{
    return siblings->root != NULL ? siblings->root->least[0] : siblings->alone;
}

sheaf__sibling *sheaf__siblings_next(const sheaf__sibling *sibling)
{
    const sheaf__twig *at = sibling->in;
    if (at == NULL) return NULL;
    uint32_t i = place_of(sibling) + 1;
    while (i == at->n && at->up != NULL) {
        i = place_in(at->up, at) + 1;
        at = at->up;
    }
    return i != at->n ? at->least[i] : NULL;
}

void sheaf__sibling_fetch(const sheaf__sibling *sibling)
{
    fetch(sibling->in);
}

/* ---- checking ---------------------------------------------------------------------------- */

static bool place_is_right(const sheaf__twig *twig, uint32_t i)
{
    const sheaf__sibling *m = twig->least[i];
    if (twig->first[i] != m->tokens[0]) return false;
    if (i != 0 && !not_after(twig->least[i - 1], m->tokens, m->n)) return false;
    if (twig->height == 0) return m->in == twig;
    const sheaf__twig *below = twig->below[i];
    return below->up == twig && below->height + 1 == twig->height && below->n != 0 &&
           below->least[0] == m;
}

/* The twigs in the order of the members: down to the first, and from each to the one after it. */
bool sheaf__siblings_check(const sheaf__siblings *siblings)
{
    const sheaf__twig *at = siblings->root;
    uint32_t n = at == NULL && siblings->alone != NULL, i = 0;
    if ((at == NULL) != (siblings->count < 2)) return false;
    if (at == NULL) return n == siblings->count && (n == 0 || siblings->alone->in == NULL);
    if (at->up != NULL || siblings->alone != NULL) return false;
    for (;;) {
        if (i == at->n) {
            if (at->up == NULL) return n == siblings->count;
            i = place_in(at->up, at) + 1;
            at = at->up;
        } else if (!place_is_right(at, i)) {
            return false;
        } else if (at->height == 0) {
            n++, i++;
        } else {
            at = at->below[i];
            i = 0;
        }
    }
}
