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

/* The same order walked by whole rows, for a kernel that reads every byte once and soon: lines come
 * into L1 past the caches that other data needs. What is read first was fetched by the split
 * before. */
#define SHEAF__ATTN_AHEAD_BYTES 8192

typedef struct sheaf__attn_ahead {
    const unsigned char *const *rows; /* [left], then those of the next stage */
    uint32_t left;
    uint32_t bytes; /* of a row */
    uint32_t next;  /* 1: the values, 2: the next split's keys, 3: nothing */
    uint32_t skip;  /* rows that lie ahead when the reading begins */
    uint32_t k_bytes;
    uint32_t v_bytes;
    const sheaf__attn_split *in;
} sheaf__attn_ahead;

static inline sheaf__attn_ahead sheaf__attn_ahead_begin(const sheaf__attn_split *in,
                                                        uint32_t k_bytes, uint32_t v_bytes)
{
    uint32_t n = in->end - in->first, skip = SHEAF__ATTN_AHEAD_BYTES / k_bytes;
    if (skip > n) skip = n;
    return (sheaf__attn_ahead){
        in->k + in->first + skip, n - skip, k_bytes, 1, skip, k_bytes, v_bytes, in};
}

/* Goes on to the next stage. */
static __attribute__((noinline, unused)) void sheaf__attn_ahead_turn(sheaf__attn_ahead *a)
{
    if (a->next == 1) {
        a->rows = a->in->v + a->in->first;
        a->left = a->in->end - a->in->first;
        a->bytes = a->v_bytes;
    } else if (a->next == 2) {
        a->rows = a->in->next_k;
        a->left = a->in->n_next < a->skip ? a->in->n_next : a->skip;
        a->bytes = a->k_bytes;
    }
    if (a->next < 3) a->next++;
}

/* Fetches the next n rows. */
static inline void sheaf__attn_ahead_fetch(sheaf__attn_ahead *a, uint32_t n)
{
    for (; n > 0; n--) {
        while (a->left == 0) {
            if (a->next == 3) return;
            sheaf__attn_ahead_turn(a);
        }
        const unsigned char *row = *a->rows++;
        a->left--;
        for (uint32_t b = 0; b < a->bytes; b += SHEAF__ATTN_LINE)
            __builtin_prefetch(row + b, 0, 0);
    }
}

#endif
