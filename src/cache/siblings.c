/* cache/siblings.c - the children of a node, in the order of their tokens.
 *
 *              [ijkx]                 An AVL tree (Adelson-Velsky and Landis 1962): in order from left to
 *             /      \                right, and the two sides of a member differ in height by one at
 *        [ijab]      [stuv]           most. No order of coming and going makes it deep: who chooses
 *             \                       tokens would know the random numbers of a treap, whose shape must
 *            [ijkm]                   be the same in every process.
 */
#include "cache/siblings.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"

#define STRIDE 64 /* tokens compared at once: four cache lines of each side */

uint32_t sheaf__tokens_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= STRIDE && memcmp(a + i, b + i, STRIDE * sizeof *a) == 0) i += STRIDE;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* How many of the first n tokens of a member are the same as tokens. */
static uint32_t common_with(const sheaf__sibling *m, const int32_t *tokens, uint32_t n)
{
    if (n == 0 || m->first != tokens[0]) return 0;
    return 1 + sheaf__tokens_common(m->tokens + 1, tokens + 1, n - 1);
}

/* Whether tokens[0, n), of which `common` are the same as the member's, come before it. */
static bool comes_before(const int32_t *tokens, uint32_t common, const sheaf__sibling *m)
{
    return tokens[common] < (common == 0 ? m->first : m->tokens[common]);
}

/* ---- the shape --------------------------------------------------------------------------- */

/* A member keeps the heights of its two sides, so that going up looks at nobody beside the way. */
static uint32_t height_of(const sheaf__sibling *m)
{
    if (m == NULL) return 0;
    return 1 + (m->left_height > m->right_height ? m->left_height : m->right_height);
}

/* The link that leads to a member. */
static sheaf__sibling **link_to(sheaf__siblings *siblings, const sheaf__sibling *sibling)
{
    sheaf__sibling *up = sibling->up;
    if (up == NULL) return &siblings->root;
    return up->left == sibling ? &up->left : &up->right;
}

/* Lifts a member above the one over it:
 *
 *        up               m
 *       /  \            /   \
 *      m    c    ->    a     up         and its mirror image
 *     / \                   /  \
 *    a   b                 b    c
 */
static void lift(sheaf__siblings *siblings, sheaf__sibling *m)
{
    sheaf__sibling *up = m->up, *inner;
    *link_to(siblings, up) = m;
    m->up = up->up;
    if (up->left == m) {
        inner = up->left = m->right;
        up->left_height = m->right_height;
        m->right = up;
        m->right_height = height_of(up);
    } else {
        inner = up->right = m->left;
        up->right_height = m->left_height;
        m->left = up;
        m->left_height = height_of(up);
    }
    if (inner != NULL) inner->up = up;
    up->up = m;
}

/* A side of `at` has changed: from it upwards, lifts where one side is two higher than the other, as far
 * as heights change. A step or two, amortised. */
static void balance(sheaf__siblings *siblings, sheaf__sibling *at)
{
    while (at != NULL) {
        bool lefter = at->left_height > at->right_height + 1;
        if (lefter || at->right_height > at->left_height + 1) {
            at = lefter ? at->left : at->right;
            sheaf__sibling *inner = lefter ? at->right : at->left;
            if (lefter ? at->right_height > at->left_height
                       : at->left_height > at->right_height) {
                lift(siblings, inner);
                at = inner;
            }
            lift(siblings, at);
        }
        sheaf__sibling *up = at->up;
        if (up == NULL) return;
        uint32_t *kept = up->left == at ? &up->left_height : &up->right_height;
        uint32_t height = height_of(at);
        if (*kept == height) return;
        *kept = height;
        at = up;
    }
}

/* ---- coming and going -------------------------------------------------------------------- */

void sheaf__siblings_insert(sheaf__siblings *siblings, sheaf__sibling *sibling)
{
    sheaf__sibling *up = NULL, **link = &siblings->root;
    while (*link != NULL) {
        up = *link;
        uint32_t both = up->n < sibling->n ? up->n : sibling->n;
        uint32_t common = common_with(up, sibling->tokens, both);
        SHEAF__ASSERT(common < both);
        link = comes_before(sibling->tokens, common, up) ? &up->left : &up->right;
    }
    *link = sibling;
    sibling->up = up;
    sibling->left = sibling->right = NULL;
    sibling->left_height = sibling->right_height = 0;
    sibling->first = sibling->tokens[0];
    siblings->count++;
    balance(siblings, sibling);
}

/* Puts what is below a member, on one side at most, in its place. */
static void close_gap(sheaf__siblings *siblings, sheaf__sibling *m)
{
    sheaf__sibling *up = m->up, *below = m->left != NULL ? m->left : m->right;
    if (up == NULL)
        siblings->root = below;
    else if (up->left == m)
        up->left = below, up->left_height--;
    else
        up->right = below, up->right_height--;
    if (below != NULL) below->up = up;
}

void sheaf__siblings_remove(sheaf__siblings *siblings, sheaf__sibling *sibling)
{
    sheaf__sibling *from = sibling->up; /* the lowest below which something has changed */
    if (sibling->left != NULL && sibling->right != NULL) {
        sheaf__sibling *next = sheaf__siblings_next(sibling); /* has no left */
        from = next->up != sibling ? next->up : next;
        close_gap(siblings, next);
        sheaf__siblings_replace(siblings, sibling, next);
    } else {
        close_gap(siblings, sibling);
        sibling->up = sibling->left = sibling->right = NULL;
    }
    siblings->count--;
    balance(siblings, from);
}

void sheaf__siblings_replace(sheaf__siblings *siblings, sheaf__sibling *sibling,
                             sheaf__sibling *by)
{
    *link_to(siblings, sibling) = by;
    by->up = sibling->up;
    by->left = sibling->left;
    by->right = sibling->right;
    by->left_height = sibling->left_height;
    by->right_height = sibling->right_height;
    by->first = by->tokens[0];
    if (by->left != NULL) by->left->up = by;
    if (by->right != NULL) by->right->up = by;
    sibling->up = sibling->left = sibling->right = NULL;
}

/* ---- finding ----------------------------------------------------------------------------- */

sheaf__sibling *sheaf__siblings_nearest(const sheaf__siblings *siblings, const int32_t *tokens,
                                        uint32_t n, uint32_t *common)
{
    sheaf__sibling *best = NULL, *at = siblings->root;
    uint32_t most = 0;
    while (at != NULL) {
        uint32_t both = at->n < n ? at->n : n;
        uint32_t same = common_with(at, tokens, both);
        if (same > most) best = at, most = same;
        if (same == both) break; /* one is a prefix of the other: nobody has more in common */
        at = comes_before(tokens, same, at) ? at->left : at->right;
    }
    *common = most;
    return best;
}

sheaf__sibling *sheaf__siblings_first(const sheaf__siblings *siblings)
{
    sheaf__sibling *at = siblings->root;
    while (at != NULL && at->left != NULL) at = at->left;
    return at;
}

sheaf__sibling *sheaf__siblings_next(const sheaf__sibling *sibling)
{
    if (sibling->right != NULL) {
        sheaf__sibling *at = sibling->right;
        while (at->left != NULL) at = at->left;
        return at;
    }
    while (sibling->up != NULL && sibling->up->right == sibling) sibling = sibling->up;
    return sibling->up;
}
