/* cache/siblings.h - the children of a node, in the order of their tokens.
 *
 * Owns: a search tree of twigs (a B+ tree) that name the members, and where twigs come from. Does not
 * own: the members, nor the tokens that they point to.
 *
 *     SHEAF__TRY(sheaf__twigs_reserve(&twigs, sheaf__siblings_need(&parent->children)));
 *     sheaf__siblings_insert(&parent->children, &twigs, &child->sibling);
 *     sheaf__sibling *near = sheaf__siblings_nearest(&parent->children, tokens, n, &common);
 *
 * The order is lexicographic. The member that has the longest prefix in common with a query is its
 * neighbour in that order, so one way down from the root meets it.
 */
#ifndef SHEAF_CACHE_SIBLINGS_H
#define SHEAF_CACHE_SIBLINGS_H

#include <stdbool.h>

#include "base/memory.h"

typedef struct sheaf__twig sheaf__twig;

typedef struct sheaf__sibling {
    sheaf__twig *in;       /* that names it; null: it is alone, or nobody's */
    const int32_t *tokens; /* [n], n > 0, compared; no member's are a prefix of another's */
    uint32_t n;
    uint32_t place; /* in the twig */
} sheaf__sibling;

/* All zeros: an empty one. With less than two members it has no twig. */
typedef struct sheaf__siblings {
    sheaf__twig *root;
    sheaf__sibling *alone; /* the only member; null when there are more, or none */
    uint32_t count;
} sheaf__siblings;

/* Where the twigs of any number of siblings come from, some of them in advance. */
typedef struct sheaf__twigs {
    sheaf__memory *memory;
    uint64_t *host_bytes; /* counts them too */
    sheaf__twig *spare;   /* [n_spare], each has the next as the one above it */
    uint32_t n_spare;
    uint64_t n_used;
} sheaf__twigs;

/* Makes n twigs spare. SHEAF_E_NO_MEMORY: nothing but the number of spare ones has changed. */
SHEAF_WARN sheaf_status sheaf__twigs_reserve(sheaf__twigs *twigs, uint32_t n);

/* Frees those that are spare; none is used. */
void sheaf__twigs_close(sheaf__twigs *twigs);

/* How many of the first n tokens of a and b are the same before the first that differs. */
uint32_t sheaf__tokens_common(const int32_t *a, const int32_t *b, uint32_t n);

/* As many twigs as the next insertion may take. */
uint32_t sheaf__siblings_need(const sheaf__siblings *siblings);

/* Adds a member whose tokens and n are set; what it needs is spare. O(log count) comparisons. */
void sheaf__siblings_insert(sheaf__siblings *siblings, sheaf__twigs *twigs,
                            sheaf__sibling *sibling);

/* Takes a member out. */
void sheaf__siblings_remove(sheaf__siblings *siblings, sheaf__twigs *twigs,
                            sheaf__sibling *sibling);

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

/* Has the processor fetch what taking a member out will touch. */
void sheaf__sibling_fetch(const sheaf__sibling *sibling);

/* Whether all is as it should be. O(count) comparisons. */
SHEAF_WARN bool sheaf__siblings_check(const sheaf__siblings *siblings);

#endif
