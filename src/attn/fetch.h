/* attn/fetch.h - bringing keys and values near before they are read.
 *
 * Decoding reads a split's keys, then its values, then the next split's keys, each position once and
 * each head's part of a block in another place: too short for the processor to guess what follows.
 * So each position that is read fetches two others of that order:
 *
 *     read          near: every line, into L1      far: every second line, into L2
 *     p             p + NEAR                       p + FAR
 *
 * AVX2 fetches every line of quantized keys far, and of raw keys and of values one line at a time between
 * multiplications, PACED positions ahead.
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

/* Lines of which one is fetched far. QUANTIZED, on AVX2: the short rows of those codecs ask for few
 * anyway, and do not wait for a second line that the first did not bring along. */
#define SHEAF__ATTN_EACH           2
#define SHEAF__ATTN_EACH_QUANTIZED 1

/* Bytes [from, to) of the two rows. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch(const unsigned char *near, const unsigned char *far, size_t from, size_t to)
{
    for (size_t b = from; b < to; b += SHEAF__ATTN_EACH * SHEAF__ATTN_LINE)
        __builtin_prefetch(far + b, 0, 2);
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

/* Rows that are read NEAR and FAR positions after n others, [n] addresses each. */
typedef struct sheaf__attn_ahead {
    const unsigned char *const *near;
    const unsigned char *const *far;
} sheaf__attn_ahead;

static inline const unsigned char *const *
sheaf__attn_after_keys(const sheaf__attn_split *in, uint32_t p, uint32_t n, uint32_t ahead)
{
    uint32_t next = p + ahead;
    if (next + n <= in->end) return in->k + next;
    if (next < in->end) return in->k + p;
    next = in->first + (next - in->end);
    return next + n <= in->end ? in->v + next : in->k + p;
}

/* What to fetch while keys [p, p + n) are read, all in [first, end). Where what follows is not n rows
 * in one piece, these themselves, which are near: for a few positions of a split nothing comes early. */
static inline sheaf__attn_ahead sheaf__attn_ahead_of_keys(const sheaf__attn_split *in,
                                                          uint32_t p, uint32_t n)
{
    return (sheaf__attn_ahead){sheaf__attn_after_keys(in, p, n, SHEAF__ATTN_NEAR),
                               sheaf__attn_after_keys(in, p, n, SHEAF__ATTN_FAR)};
}

/* Lines of a row that begin in its bytes [from, to): all, into L1. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch_near(const unsigned char *row, size_t from, size_t to)
{
    const size_t line = SHEAF__ATTN_LINE;
    for (size_t b = (from + line - 1) & ~(line - 1); b < to; b += line)
        __builtin_prefetch(row + b, 0, 3);
}

/* Every `each`-th one, into L2. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch_far(const unsigned char *row, size_t from, size_t to, const size_t each)
{
    const size_t step = each * SHEAF__ATTN_LINE;
    for (size_t b = (from + step - 1) & ~(step - 1); b < to; b += step)
        __builtin_prefetch(row + b, 0, 2);
}

/* n whole rows of both distances. */
static inline __attribute__((always_inline)) void
sheaf__attn_fetch_ahead(sheaf__attn_ahead ahead, uint32_t n, size_t bytes, const size_t each)
{
    for (uint32_t i = 0; i < n; i++) {
        sheaf__attn_fetch_far(ahead.far[i], 0, bytes, each);
        sheaf__attn_fetch_near(ahead.near[i], 0, bytes);
    }
}

/* --- evenly ------------------------------------------------------------------------------- */

/* Where arithmetic takes about as long as reading, what is fetched in bursts waits for the line before
 * it and holds up what follows. So the form for few rows of AVX2 asks for one row PACED positions ahead
 * for each that it reads, line by line between its multiplications. Several heads' keys go by pieces:
 *
 *     keys of piece 0: head 0, head 1, .., of piece 1: head 0, ..; values alike; the next split's keys
 */
#define SHEAF__ATTN_PACED 32 /* the fastest of 8 to 64 (docs/perf-log.md) */

/* n rows to fetch: [n] addresses, and what their head adds to these. */
typedef struct sheaf__attn_next {
    const unsigned char *const *rows;
    uint64_t offset;
} sheaf__attn_next;

/* A position of a head, past all pieces counted on. */
typedef struct sheaf__attn_place {
    uint32_t head;
    uint32_t p;
} sheaf__attn_place;

/* What is read PACED positions after it, be it keys or values. */
static inline sheaf__attn_place sheaf__attn_place_after(const sheaf__attn_split *in,
                                                        sheaf__attn_place at)
{
    uint32_t begin = at.p & ~(in->piece - 1), i = at.p - begin + SHEAF__ATTN_PACED;
    for (; i >= in->piece; i -= in->piece) {
        if (++at.head < in->n_heads) continue;
        at.head = 0;
        begin += in->piece;
    }
    return (sheaf__attn_place){at.head, begin + i};
}

static inline uint32_t sheaf__attn_past(const sheaf__attn_split *in)
{
    return (in->end + in->piece - 1) & ~(in->piece - 1);
}

/* What to fetch while n keys of a head from p on are read, which lie in one piece and in [first, end).
 * Where what follows is not n rows in one piece, these themselves, which are near. */
static inline sheaf__attn_next sheaf__attn_next_keys(const sheaf__attn_split *in, uint32_t head,
                                                     uint32_t p, uint32_t n)
{
    sheaf__attn_place next = sheaf__attn_place_after(in, (sheaf__attn_place){head, p});
    const uint32_t past = sheaf__attn_past(in);
    const int values = next.p >= past;
    if (values) next.p = (in->first & ~(in->piece - 1)) + (next.p - past);
    if (next.p < in->first || next.p + n > in->end)
        return (sheaf__attn_next){in->k + p, head * in->k_head_stride};
    if (values) return (sheaf__attn_next){in->v + next.p, next.head * in->v_head_stride};
    return (sheaf__attn_next){in->k + next.p, next.head * in->k_head_stride};
}

/* The same for values. */
static inline sheaf__attn_next sheaf__attn_next_values(const sheaf__attn_split *in,
                                                       uint32_t head, uint32_t p, uint32_t n)
{
    const sheaf__attn_place next = sheaf__attn_place_after(in, (sheaf__attn_place){head, p});
    const uint32_t past = sheaf__attn_past(in);
    if (next.p >= past && next.p - past + n <= in->n_next)
        return (sheaf__attn_next){in->next_k + (next.p - past), next.head * in->k_head_stride};
    if (next.p < in->first || next.p + n > in->end)
        return (sheaf__attn_next){in->v + p, head * in->v_head_stride};
    return (sheaf__attn_next){in->v + next.p, next.head * in->v_head_stride};
}

#endif
