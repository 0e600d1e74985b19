/* tests/server/rest.h - a server that rests, after whatever was done to it: nothing is left of it.
 *
 *     rest before = rest_wait(&p);                     // ... a load of the same kind, then
 *     rest after = rest_wait(&p);
 *     rest_compare(&before, &after, 8 << 20);
 */
#ifndef SHEAF_TESTS_SERVER_REST_H
#define SHEAF_TESTS_SERVER_REST_H

#include "server/program.h"

typedef struct rest {
    uint64_t memory;      /* resident and its own (RssAnon) */
    uint32_t descriptors; /* open */
} rest;

/* Waits until no request and no other connection is there, at most 60 s. Asserts that the figures are
 * those of such a server, that the prompt cache has what was inserted and has not left, and, after a
 * reset, that no block is held by anybody. */
rest rest_wait(const program *p);

/* No descriptor more, and at most so much more memory; prints both. */
void rest_compare(const rest *before, const rest *after, uint64_t margin);

#endif
