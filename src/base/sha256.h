/* base/sha256.h - SHA-256, for names of contents: what has the same digest is taken for the same.
 *
 * Owns: the door to libcrypto, whose algorithm is fetched once a process. Does not own: what a digest
 * means.
 *
 *     sheaf__sha256 sha;
 *     SHEAF__TRY(sheaf__sha256_begin(&sha));
 *     sheaf__sha256_add(&sha, data, size);                // any number of times
 *     SHEAF__TRY(sheaf__sha256_end(&sha, digest));        // always: it gives the state back
 */
#ifndef SHEAF_BASE_SHA256_H
#define SHEAF_BASE_SHA256_H

#include <stdbool.h>

#include "sheaf/status.h"

#define SHEAF__SHA256_BYTES 32

typedef struct sheaf__sha256 {
    void *state;
    bool failed;
} sheaf__sha256;

/* Whether the system's libcrypto has SHA-256: SHEAF_OK or SHEAF_E_UNSUPPORTED. The first call, or
 * sheaf__sha256_begin, loads it. Any thread. */
SHEAF_WARN sheaf_status sheaf__sha256_ready(void);

/* Begins a digest. Any thread; each digest belongs to one. SHEAF_E_UNSUPPORTED; SHEAF_E_NO_MEMORY:
 * there is nothing to end. */
SHEAF_WARN sheaf_status sheaf__sha256_begin(sheaf__sha256 *sha);
void sheaf__sha256_add(sheaf__sha256 *sha, const void *data, uint64_t size);

/* SHEAF_E_UNSUPPORTED: libcrypto failed on the way; `digest` is as before. */
SHEAF_WARN sheaf_status sheaf__sha256_end(sheaf__sha256 *sha,
                                          unsigned char digest[SHEAF__SHA256_BYTES]);

/* All at once. */
SHEAF_WARN sheaf_status sheaf__sha256_of(const void *data, uint64_t size,
                                         unsigned char digest[SHEAF__SHA256_BYTES]);

#endif
