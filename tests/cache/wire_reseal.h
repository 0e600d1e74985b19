/* cache/wire_reseal.h - a stream's checksums made to fit its bytes, for tests that forge streams: what
 * is behind the checksums must hold too. */
#ifndef SHEAF_TESTS_WIRE_RESEAL_H
#define SHEAF_TESTS_WIRE_RESEAL_H

#include <stdint.h>
#include <string.h>

#include "base/hash.h"
#include "cache/wire.h"

/* Walks the frames as far as their lengths are possible. */
static inline void wire_reseal(unsigned char *data, uint64_t n)
{
    uint64_t at = SHEAF__WIRE_PROLOGUE, total = 0;
    while (at <= n && n - at >= SHEAF__WIRE_FRAME) {
        uint64_t length, checksum;
        uint32_t kind;
        memcpy(&kind, data + at, sizeof kind);
        memcpy(&length, data + at + 8, sizeof length);
        if (length > n - at - SHEAF__WIRE_FRAME) return;
        if (kind == SHEAF__WIRE_DONE && length == SHEAF__WIRE_DONE_BYTES)
            memcpy(data + at + 16 + length - sizeof total, &total, sizeof total);
        checksum = sheaf__hash64(data + at, 16 + length, 0);
        memcpy(data + at + 16 + length, &checksum, sizeof checksum);
        total = sheaf__hash64(&checksum, sizeof checksum, total);
        at += SHEAF__WIRE_FRAME + length;
    }
}

#endif
