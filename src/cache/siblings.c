/* cache/siblings.c - the children of a node, in the order of their tokens.
 *
 * A B+ tree (Comer 1979) of twigs, each with up to 21 places. A place of a low twig is a member's, of a
 * higher one a twig's. First tokens lie beside each other, so most steps of a way down read two lines of
 * memory and follow no pointer to tokens.
 *
 * Who is in a place stays there while others come and go, and knows it: the order is kept beside. And
 * nothing above follows when the least member of a twig goes: there, a first token only parts what is
 * before from what is not. So taking a member out changes two lines of memory, and mostly nothing else:
 *
 *     height 1       order   0  1
 *                    first   3         9
 *                            |         +---------------------------+
 *     height 0       order   0  2  1                       order   1  0
 *                    first   3       7       3             first   12      10
 *                            [3 1..] [7 ..]  [3 5..]               [12 ..] [10 ..]
 *
 * Invariants (sheaf__siblings_check verifies them):
 *
 *  - the order names every place once: first those in use, then the free ones
 *  - first of a member's place is its first token. Of a twig's it is none that is less than a member's
 *    before that twig, nor greater than one's below it; of what comes first in a twig it may be any that
 *    is not greater than what comes after
 *  - a twig is not empty; all low twigs are equally far from the root
 *  - with fewer than two members there is no twig
 *
 * Where first tokens are equal, members are compared: a twig's least is found by going down from it.
 *
 * On the way down to insert, full twigs are split, so that the one above has room. A twig goes when it
 * has fallen empty, not before: neighbours are not filled up from each other. Height then follows from
 * what has ever come: to make it one more, ten times as many members have to come; no order of coming
 * and going makes it deep. It is the same in every process.
 */
#include "cache/siblings.h"

#include <stddef.h>
#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define PLACES 21 /* so that all but pointers takes two lines */
#define STRIDE 64 /* tokens compared at once: four cache lines of each side */
#define SPARES 8  /* kept at most when a twig goes */
#define LINE   64 /* bytes that come from memory together */

/* Who is in a place. */
typedef union tenant {
    sheaf__sibling *member; /* of a low twig's */
    sheaf__twig *twig;
} tenant;

struct sheaf__twig {
    sheaf__twig *up; /* null: the root */
    uint8_t place;   /* in it */
    uint8_t height;  /* 0: its places are members' */
    uint8_t n;
    uint8_t order[PLACES]; /* places: [0, n) in order, behind them the free ones */
    int32_t first[PLACES]; /* of a free place the greatest there is */
    tenant in[PLACES];
};
_Static_assert(offsetof(sheaf__twig, in) <= 2 * LINE, "who takes a member out reads two lines");

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

static sheaf__twig *twig_take(sheaf__twigs *twigs, uint8_t height)
{
    sheaf__twig *twig = take_spare(twigs);
    twigs->n_used++;
    twig->up = NULL;
    twig->height = height;
    twig->n = 0;
    for (uint8_t i = 0; i < PLACES; i++) {
        twig->order[i] = i;
        twig->first[i] = INT32_MAX;
    }
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

/* All of a twig but its pointers. */
static void fetch(const sheaf__twig *twig)
{
    if (twig == NULL) return;
    __builtin_prefetch(twig, 1);
    __builtin_prefetch((const char *)twig + LINE, 1);
}

/* ---- order ------------------------------------------------------------------------------- */

static tenant tenant_at(const sheaf__twig *twig, uint32_t i)
{
    return twig->in[twig->order[i]];
}

/* The least member of what is number i in order. */
static sheaf__sibling *least_at(const sheaf__twig *twig, uint32_t i)
{
    for (; twig->height != 0; i = 0) twig = tenant_at(twig, i).twig;
    return tenant_at(twig, i).member;
}

static const sheaf__sibling *greatest_at(const sheaf__twig *twig, uint32_t i)
{
    for (; twig->height != 0; i = twig->n - 1u) twig = tenant_at(twig, i).twig;
    return tenant_at(twig, i).member;
}

/* Whether a member comes before tokens[0, n), or is or begins them. */
static bool not_after(const sheaf__sibling *m, const int32_t *tokens, uint32_t n)
{
    uint32_t both = m->n < n ? m->n : n;
    uint32_t common = sheaf__tokens_common(m->tokens, tokens, both);
    if (common == both) return common == m->n;
    return m->tokens[common] < tokens[common];
}

/* How many in order begin with what is not after tokens[0, n), n > 0. */
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
        if (not_after(least_at(twig, middle), tokens, n))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The way down when i in order are not after what is looked for. */
static sheaf__twig *below(const sheaf__twig *twig, uint32_t i)
{
    return tenant_at(twig, i == 0 ? 0 : i - 1).twig;
}

/* ---- places ------------------------------------------------------------------------------ */

/* Which number in order a place has. */
static uint32_t number_of(const sheaf__twig *twig, uint32_t place)
{
    const uint8_t *at = memchr(twig->order, (int)place, PLACES);
    SHEAF__ASSERT(at != NULL);
    return (uint32_t)(at - twig->order);
}

/* Gives a free place, number i in order, to a member or to a twig. */
static void put(sheaf__twig *twig, uint32_t i, int32_t first, tenant who)
{
    uint8_t place = twig->order[twig->n];
    memmove(twig->order + i + 1, twig->order + i, twig->n - i);
    twig->order[i] = place;
    twig->n++;
    twig->first[place] = first;
    twig->in[place] = who;
    if (twig->height == 0) {
        who.member->in = twig;
        who.member->place = place;
    } else {
        who.twig->up = twig;
        who.twig->place = place;
    }
}

/* Frees the place that is number i in order. */
static void cut(sheaf__twig *twig, uint32_t i)
{
    uint8_t place = twig->order[i];
    twig->n--;
    memmove(twig->order + i, twig->order + i + 1, twig->n - i);
    twig->order[twig->n] = place;
    twig->first[place] = INT32_MAX;
}

/* ---- coming ------------------------------------------------------------------------------ */

uint32_t sheaf__siblings_need(const sheaf__siblings *siblings)
{
    if (siblings->count == 0) return 0;
    return siblings->root == NULL ? 1 : siblings->root->height + 2;
}

/* Moves the upper half of a full twig into a new one beside it; there is room above. What came into the
 * lower half since may be less than the first token that is noted above, if it comes first there. */
static void split(sheaf__siblings *siblings, sheaf__twigs *twigs, sheaf__twig *twig)
{
    if (twig->up == NULL) {
        siblings->root = twig_take(twigs, (uint8_t)(twig->height + 1));
        put(siblings->root, 0, twig->first[twig->order[0]], (tenant){.twig = twig});
    }
    sheaf__twig *beside = twig_take(twigs, twig->height), *up = twig->up;
    for (uint32_t i = PLACES / 2; i < PLACES; i++) {
        uint8_t place = twig->order[i];
        put(beside, beside->n, twig->first[place], twig->in[place]);
        twig->first[place] = INT32_MAX;
    }
    twig->n = PLACES / 2;
    int32_t first = twig->first[twig->order[0]];
    if (up->first[twig->place] > first) up->first[twig->place] = first;
    uint32_t after = number_of(up, twig->place) + 1;
    put(up, after, beside->first[beside->order[0]], (tenant){.twig = beside});
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
        put(siblings->root, 0, siblings->alone->tokens[0], (tenant){.member = siblings->alone});
        siblings->alone = NULL;
    }
    for (sheaf__twig *at = siblings->root;;) {
        if (at->n == PLACES) {
            split(siblings, twigs, at);
            at = below(at->up, n_not_after(at->up, sibling->tokens, sibling->n));
        }
        uint32_t i = n_not_after(at, sibling->tokens, sibling->n);
        if (at->height != 0) {
            at = below(at, i);
            continue;
        }
        put(at, i, sibling->tokens[0], (tenant){.member = sibling});
        return;
    }
}

/* ---- going ------------------------------------------------------------------------------- */

/* A root above one twig alone goes, and with one member left all do. */
static void lower_root(sheaf__siblings *siblings, sheaf__twigs *twigs)
{
    if (siblings->count == 1) siblings->alone = least_at(siblings->root, 0);
    while (siblings->root != NULL && siblings->root->n == 1) {
        sheaf__twig *root = siblings->root;
        siblings->root = root->height != 0 ? tenant_at(root, 0).twig : NULL;
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
    sibling->in = NULL;
    cut(at, number_of(at, sibling->place));
    while (at->n == 0) { /* the root is not: there was another member */
        sheaf__twig *up = at->up;
        cut(up, number_of(up, at->place));
        twig_give(twigs, at);
        at = up;
    }
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
    by->place = sibling->place;
    by->in->in[by->place].member = by;
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

/* The least member of what is number i in order, unless it cannot begin with a token: null. */
static sheaf__sibling *least_with(const sheaf__twig *twig, uint32_t i, int32_t token)
{
    return twig->first[twig->order[i]] == token ? least_at(twig, i) : NULL;
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
        before = i != 0 ? least_with(at, i - 1, tokens[0]) : NULL;
        if (i != at->n) after = least_with(at, i, tokens[0]);
        at = at->height != 0 ? below(at, i) : NULL;
        fetch(at);
    }
    if (before != NULL) best = better(best, before, tokens, n, common);
    if (after != NULL) best = better(best, after, tokens, n, common);
    return best;
}

sheaf__sibling *sheaf__siblings_first(const sheaf__siblings *siblings)
{
    return siblings->root != NULL ? least_at(siblings->root, 0) : siblings->alone;
}

sheaf__sibling *sheaf__siblings_next(const sheaf__sibling *sibling)
{
    const sheaf__twig *at = sibling->in;
    if (at == NULL) return NULL;
    uint32_t i = number_of(at, sibling->place) + 1;
    while (i == at->n && at->up != NULL) {
        i = number_of(at->up, at->place) + 1;
        at = at->up;
    }
    return i != at->n ? least_at(at, i) : NULL;
}

void sheaf__sibling_fetch(const sheaf__sibling *sibling)
{
    fetch(sibling->in);
}

/* ---- checking ---------------------------------------------------------------------------- */

static bool order_is_right(const sheaf__twig *twig)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < PLACES; i++) {
        uint8_t place = twig->order[i];
        if (place >= PLACES || (i >= twig->n && twig->first[place] != INT32_MAX)) return false;
        named |= 1u << place;
    }
    return named == (1u << PLACES) - 1;
}

/* Of number i in order: that it knows its place, and that the first token there parts it from what comes
 * before. */
static bool place_is_right(const sheaf__twig *twig, uint32_t i)
{
    uint8_t place = twig->order[i];
    int32_t first = twig->first[place];
    const sheaf__sibling *least = least_at(twig, i);
    if (i != 0) {
        const sheaf__sibling *before = greatest_at(twig, i - 1);
        if (!not_after(before, least->tokens, least->n) || first > least->tokens[0] ||
            first < before->tokens[0] || first < twig->first[twig->order[i - 1]])
            return false;
    }
    if (twig->height == 0)
        return least->in == twig && least->place == place && first == least->tokens[0];
    const sheaf__twig *low = twig->in[place].twig;
    return low->up == twig && low->place == place && low->height + 1 == twig->height &&
           low->n != 0 && order_is_right(low);
}

/* The twigs in the order of the members: down to the first, and from each to the one after it. */
bool sheaf__siblings_check(const sheaf__siblings *siblings)
{
    const sheaf__twig *at = siblings->root;
    uint32_t n = at == NULL && siblings->alone != NULL, i = 0;
    if ((at == NULL) != (siblings->count < 2)) return false;
    if (at == NULL) return n == siblings->count && (n == 0 || siblings->alone->in == NULL);
    if (at->up != NULL || siblings->alone != NULL || !order_is_right(at)) return false;
    for (;;) {
        if (i == at->n) {
            if (at->up == NULL) return n == siblings->count;
            i = number_of(at->up, at->place) + 1;
            at = at->up;
        } else if (!place_is_right(at, i)) {
            return false;
        } else if (at->height == 0) {
            n++, i++;
        } else {
            at = tenant_at(at, i).twig;
            i = 0;
        }
    }
}
