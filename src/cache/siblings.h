/* cache/siblings.h - the children of a node, in the order of their tokens.
 *
 * Owns: a balanced search tree (AVL) whose links lie in its members; nothing is allocated. Does
 * not own: the members, nor the tokens that they point to.
 *
 *     sheaf__siblings_insert(&parent->children, &child->sibling);
 *     sheaf__sibling *near = sheaf__siblings_nearest(&parent->children, tokens, n, &common);
 *
 * The order is lexicographic. The member that has the longest prefix in common with a query is its
 * neighbour in that order, so one way down from the root meets it.
 */
#ifndef SHEAF_CACHE_SIBLINGS_H
#define SHEAF_CACHE_SIBLINGS_H

#include <stdint.h>

typedef struct sheaf__sibling sheaf__sibling;
struct sheaf__sibling {
    sheaf__sibling *up, *left, *right;
    const int32_t *tokens; /* [n], n > 0, compared; no member's are a prefix of another's */
    uint32_t n;
    int32_t first; /* tokens[0], so that few comparisons follow the pointer */
    uint32_t left_height, right_height; /* of its two sides */
};

/* All zeros: an empty one. */
typedef struct sheaf__siblings {
    sheaf__sibling *root;
    uint32_t count;
} sheaf__siblings;

/* How many of the first n tokens of a and b are the same before the first that differs. */
uint32_t sheaf__tokens_common(const int32_t *a, const int32_t *b, uint32_t n);

/* Adds a member whose tokens and n are set. O(log count) comparisons. */
void sheaf__siblings_insert(sheaf__siblings *siblings, sheaf__sibling *sibling);

/* Takes a member out. */
void sheaf__siblings_remove(sheaf__siblings *siblings, sheaf__sibling *sibling);

/* Puts `by` in the place of a member: its tokens begin as the member's do. */
void sheaf__siblings_replace(sheaf__siblings *siblings, sheaf__sibling *sibling,
                             sheaf__sibling *by);

/* The member with the most tokens in common with tokens[0, n), and how many these are; null when
 * none has one. */
sheaf__sibling *sheaf__siblings_nearest(const sheaf__siblings *siblings, const int32_t *tokens,
                                        uint32_t n, uint32_t *common);

/* The first in order, and the next; null: none. */
sheaf__sibling *sheaf__siblings_first(const sheaf__siblings *siblings);
sheaf__sibling *sheaf__siblings_next(const sheaf__sibling *sibling);

#endif
