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

#define STRIDE 64 /* tokens compared at once: four cache lines of each side */

uint32_t sheaf__tokens_common(const int32_t *a, const int32_t *b, uint32_t n)
{
    uint32_t i = 0;
    while (n - i >= STRIDE && memcmp(a + i, b + i, STRIDE * sizeof *a) == 0) i += STRIDE;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

/* Whether a comes before b. */
static bool before(const sheaf__sibling *a, const sheaf__sibling *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n;
    uint32_t common = sheaf__tokens_common(a->tokens, b->tokens, n);
    return common < n ? a->tokens[common] < b->tokens[common] : a->n < b->n;
}

/* ---- the shape --------------------------------------------------------------------------- */

static uint32_t height_of(const sheaf__sibling *m)
{
    return m != NULL ? m->height : 0;
}

static void measure(sheaf__sibling *m)
{
    uint32_t left = height_of(m->left), right = height_of(m->right);
    m->height = 1 + (left > right ? left : right);
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
    sheaf__sibling *up = m->up;
    *link_to(siblings, up) = m;
    m->up = up->up;
    sheaf__sibling **inner = up->left == m ? &m->right : &m->left;
    if (up->left == m)
        up->left = *inner;
    else
        up->right = *inner;
    if (*inner != NULL) (*inner)->up = up;
    *inner = up;
    up->up = m;
    measure(up);
    measure(m);
}

/* Measures a member and all above it, and lifts where one side is two higher than the other. */
static void balance(sheaf__siblings *siblings, sheaf__sibling *at)
{
    for (; at != NULL; at = at->up) {
        uint32_t left = height_of(at->left), right = height_of(at->right);
        bool lefter = left > right + 1;
        if (lefter || right > left + 1) {
            at = lefter ? at->left : at->right;
            sheaf__sibling *inner = lefter ? at->right : at->left;
            if (height_of(inner) > height_of(lefter ? at->left : at->right)) {
                lift(siblings, inner);
                at = inner;
            }
            lift(siblings, at);
        }
        measure(at);
    }
}

/* ---- coming and going -------------------------------------------------------------------- */

void sheaf__siblings_insert(sheaf__siblings *siblings, sheaf__sibling *sibling)
{
    sheaf__sibling *up = NULL, **link = &siblings->root;
    while (*link != NULL) {
        up = *link;
        link = before(sibling, up) ? &up->left : &up->right;
    }
    *link = sibling;
    sibling->up = up;
    sibling->left = sibling->right = NULL;
    siblings->count++;
    balance(siblings, sibling);
}

/* Puts what is below a member, on one side at most, in its place. */
static void close_gap(sheaf__siblings *siblings, sheaf__sibling *m)
{
    sheaf__sibling *below = m->left != NULL ? m->left : m->right;
    *link_to(siblings, m) = below;
    if (below != NULL) below->up = m->up;
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
    by->height = sibling->height;
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
        uint32_t same = sheaf__tokens_common(at->tokens, tokens, both);
        if (same > most) best = at, most = same;
        if (same == both) break; /* one is a prefix of the other: nobody has more in common */
        at = tokens[same] < at->tokens[same] ? at->left : at->right;
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
