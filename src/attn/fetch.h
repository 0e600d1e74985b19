/* attn/fetch.h - bringing keys and values near before they are read.
 *
 * Decoding reads a split's keys, then its values, then the next split's keys, each position once and
 * each head's part of a block in another place: too short for the processor to guess what follows.
 * So each position that is read fetches two others of that order:
 *
 *     read          near: every line, into L1      far: every second line, into L2
 *     p             p + NEAR                       p + FAR
 *
 * A core can wait for some 16 lines in L1 at a time, too few for the memory's speed times its delay,
 * and for many more in L2, which also brings a line's neighbour.
 */
#ifndef SHEAF_ATTN_FETCH_H
#define SHEAF_ATTN_FETCH_H

#include <stddef.h>

#include "attn/kernels.h"

#define SHEAF__ATTN_NEAR 16
#define SHEAF__ATTN_FAR  128
#define SHEAF__ATTN_LINE 64 /* bytes */

/* Bytes [from, to) of the two rows. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch(const unsigned char *near, const unsigned char *far, size_t from, size_t to)
{
    for (size_t b = from; b < to; b += 2 * SHEAF__ATTN_LINE) __builtin_prefetch(far + b, 0, 2);
    for (size_t b = from; b < to; b += SHEAF__ATTN_LINE) __builtin_prefetch(near + b, 0, 3);
}

/* The row that is read `ahead` positions after key p, [first, end). */
static inline const unsigned char *sheaf__attn_after_key(const sheaf__attn_split *in,
                                                         uint32_t p, uint32_t ahead)
{
    uint32_t next = p + ahead;
    if (next < in->end) return in->k[next];
    next = in->first + (next - in->end);
    return in->v[next < in->end ? next : in->end - 1];
}

/* The same after value p. */
static inline const unsigned char *sheaf__attn_after_value(const sheaf__attn_split *in,
                                                           uint32_t p, uint32_t ahead)
{
    uint32_t next = p + ahead;
    if (next < in->end) return in->v[next];
    next -= in->end;
    if (in->n_next == 0) return in->v[in->end - 1];
    return in->next_k[next < in->n_next ? next : in->n_next - 1];
}

/* While key p is read: bytes [from, to) of what comes. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch_after_key(const sheaf__attn_split *in, uint32_t p, size_t from, size_t to)
{
    sheaf__attn_fetch(sheaf__attn_after_key(in, p, SHEAF__ATTN_NEAR),
                      sheaf__attn_after_key(in, p, SHEAF__ATTN_FAR), from, to);
}

/* While value p is read. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch_after_value(const sheaf__attn_split *in, uint32_t p, size_t from, size_t to)
{
    sheaf__attn_fetch(sheaf__attn_after_value(in, p, SHEAF__ATTN_NEAR),
                      sheaf__attn_after_value(in, p, SHEAF__ATTN_FAR), from, to);
}

#endif
