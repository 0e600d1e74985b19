/* cache/siblings.c - the children of a node, in the order of their tokens.
 *
 *              [ijkx]                 A treap: in order from left to right, and no member heavier
 *             /      \                than the one above it. Weights are random numbers of a fixed
 *        [ijab]      [stuv]           seed, so that whoever chooses tokens does not choose the
 *             \                       shape, and the shape is the same in every process.
 *            [ijkm]
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

/* xorshift32 (Marsaglia 2003) */
static uint32_t next_weight(sheaf__siblings *siblings)
{
    uint32_t x = siblings->random != 0 ? siblings->random : 0x9e3779b9u;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    siblings->random = x;
    return x;
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
}

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
    sibling->weight = next_weight(siblings);
    siblings->count++;
    while (sibling->up != NULL && sibling->up->weight < sibling->weight)
        lift(siblings, sibling);
}

void sheaf__siblings_remove(sheaf__siblings *siblings, sheaf__sibling *sibling)
{
    while (sibling->left != NULL && sibling->right != NULL)
        lift(siblings,
             sibling->left->weight > sibling->right->weight ? sibling->left : sibling->right);
    sheaf__sibling *below = sibling->left != NULL ? sibling->left : sibling->right;
    *link_to(siblings, sibling) = below;
    if (below != NULL) below->up = sibling->up;
    sibling->up = sibling->left = sibling->right = NULL;
    siblings->count--;
}

void sheaf__siblings_replace(sheaf__siblings *siblings, sheaf__sibling *sibling,
                             sheaf__sibling *by)
{
    *link_to(siblings, sibling) = by;
    by->up = sibling->up;
    by->left = sibling->left;
    by->right = sibling->right;
    by->weight = sibling->weight;
    if (by->left != NULL) by->left->up = by;
    if (by->right != NULL) by->right->up = by;
    sibling->up = sibling->left = sibling->right = NULL;
}

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
