/* model/identity.h - the digest that names a model.
 *
 * Owns: a name for what K and V depend on in a model's files, config.json and the weights. Content
 * alone, no paths and no times, so that one model has one name in every process and on every
 * machine. Does not own: the tokenizer and the chat template, which only decide which tokens are
 * asked for; namespaces (sheaf/key.h).
 *
 *     const sheaf__identity_options o = {.kind = SHEAF__IDENTITY_FULL};
 *     st = sheaf__identity_read("DIR", &o, &id, &err);
 *     st = sheaf__identity_space(pool, &id, NULL, 0, &space);
 *
 * QUICK takes milliseconds: it reads headers, and of each tensor samples. Enough where a process
 * shares with itself and its like. FULL reads every byte, once: it is remembered beside the files'
 * inodes and times (model/remember.h). What is kept for others, in files or on other machines, is
 * named by it. docs/format.md has both byte by byte.
 */
#ifndef SHEAF_MODEL_IDENTITY_H
#define SHEAF_MODEL_IDENTITY_H

#include "base/sha256.h"
#include "model/weights.h"
#include "sheaf/key.h"

enum { SHEAF__IDENTITY_QUICK = 0, SHEAF__IDENTITY_FULL = 1 };

typedef struct sheaf__identity {
    unsigned char bytes[SHEAF__SHA256_BYTES];
    unsigned char state[SHEAF__SHA256_BYTES]; /* of the files when read: no part of the name */
} sheaf__identity;

typedef struct sheaf__identity_options {
    uint32_t kind;                /* SHEAF__IDENTITY_... */
    const char *cache_dir;        /* of FULL ones; null: the user's (model/remember.h) */
    sheaf__progress_fn *progress; /* may be null; also called once when all is read */
    void *progress_ctx;
} sheaf__identity_options;

/* path: a directory as sheaf__weights_open takes it, or "random:...", whose name is that of the
 * specification. SHEAF_E_IO: also when the files change while they are read; SHEAF_E_FORMAT;
 * SHEAF_E_NO_MEMORY; SHEAF_E_UNSUPPORTED: no SHA-256. */
sheaf_status sheaf__identity_read(const char *path, const sheaf__identity_options *options,
                                  sheaf__identity *out, sheaf_error *err);

/* Whether the files are still those that were read: with a digest taken before a model is opened and
 * this asked afterwards, the model is the one that the digest names. SHEAF_E_IO: they are not. */
sheaf_status sheaf__identity_unchanged(const char *path, const sheaf__identity *id,
                                       sheaf_error *err);

/* The namespace of what this model computes on this pool: fields "model", and "salt" unless it is
 * null. Rope has no field: its regime is config.json's alone, which the digest covers.
 * SHEAF_E_INVALID: an empty salt. Else as sheaf_space_make. */
sheaf_status sheaf__identity_space(const sheaf_pool *pool, const sheaf__identity *id,
                                   const void *salt, uint64_t salt_bytes, sheaf_key *out);

#endif
