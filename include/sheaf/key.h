/* sheaf/key.h - names of contents: namespaces and content keys.
 *
 * Owns: the digests by which the same tokens, computed under the same conditions, have the same name
 * in every process and on every machine. Does not own: what they name.
 *
 *     sheaf_field fields[] = {{"model", digest, 32}, {"salt", salt, salt_bytes}};
 *     sheaf_key space, key;
 *     st = sheaf_space_make(pool, fields, 2, &space);          // the namespace
 *     key = space;                                             // the key of no tokens at all
 *     for (i ...) st = sheaf_key_next(&key, tokens + i * 32, 32, &key);
 *
 * All are SHA-256, specified byte by byte in docs/format.md. A key names a block's tokens and all
 * before them, in one namespace: key(i) = SHA-256("sheaf block" | key(i - 1) | tokens of block i).
 */
#ifndef SHEAF_KEY_H
#define SHEAF_KEY_H

#include "sheaf/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF_KEY_BYTES 32

typedef struct sheaf_key {
    uint8_t bytes[SHEAF_KEY_BYTES];
} sheaf_key;

/* One thing that K and V depend on: the model's digest, an adapter's, a rope regime, a client's salt.
 * The tag says which ("model", "adapter", "rope", "salt"); a field that is absent and one that is
 * empty are two things. */
typedef struct sheaf_field {
    const char *tag;  /* 1 to 255 bytes */
    const void *data; /* null when size is 0 */
    uint64_t size;
} sheaf_field;
#define SHEAF_MAX_FIELDS 32

/* The namespace of these fields on a pool: also a digest of its layout with the codecs, of the
 * version of the arithmetic and of the kind of device. Tags and contents are length-framed; the
 * order of the fields does not matter. Two namespaces never share anything.
 * SHEAF_E_INVALID: a tag given twice, empty or too long, or too many fields. Any thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_space_make(const sheaf_pool *pool,
                                                   const sheaf_field *fields, uint32_t n_fields,
                                                   sheaf_key *out);

/* The key of n >= 1 tokens after `parent`; out may be parent. Any thread. SHEAF_E_UNSUPPORTED: the
 * system's libcrypto has no SHA-256. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_key_next(const sheaf_key *parent, const int32_t *tokens,
                                                 uint32_t n, sheaf_key *out);

#ifdef __cplusplus
}
#endif
#endif
