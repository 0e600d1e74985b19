/* model/remember.h - a digest kept beside the inodes and times of the files it was made of.
 *
 * Owns: one small file a model under the user's cache directory, disposable at any time. What is
 * damaged, of other files, of another version or another user's is as if it was not there. Does
 * not own: the digest.
 *
 *     sheaf__stamp stamp;
 *     st = sheaf__stamp_begin(&stamp);
 *     st = sheaf__stamp_add(&stamp, path, err);            // of each file, in order
 *     st = sheaf__stamp_end(&stamp);
 *     if (!sheaf__remember_find(NULL, &stamp, digest)) {
 *         ... read the files ...
 *         sheaf__remember_store(NULL, &stamp, digest);
 *     }
 */
#ifndef SHEAF_MODEL_REMEMBER_H
#define SHEAF_MODEL_REMEMBER_H

#include <stdbool.h>

#include "base/sha256.h"

/* A list of files, as the system describes them. */
typedef struct sheaf__stamp {
    sheaf__sha256 places, states;
    unsigned char place[SHEAF__SHA256_BYTES]; /* over each file's device and inode */
    unsigned char state[SHEAF__SHA256_BYTES]; /* over these, its size, mtime and ctime */
    uint64_t bytes;                           /* of all files */
    bool settled; /* no file is so new that a change could leave its times as they are */
} sheaf__stamp;

/* SHEAF_E_UNSUPPORTED, SHEAF_E_NO_MEMORY. Ended also after a failure of `add`. */
sheaf_status sheaf__stamp_begin(sheaf__stamp *stamp);

/* SHEAF_E_IO: `err` names the file. */
sheaf_status sheaf__stamp_add(sheaf__stamp *stamp, const char *path, sheaf_error *err);
sheaf_status sheaf__stamp_end(sheaf__stamp *stamp);

/* Finds the digest that was stored for files of this state. dir: null for
 * ${XDG_CACHE_HOME:-$HOME/.cache}/sheaf. */
bool sheaf__remember_find(const char *dir, const sheaf__stamp *stamp,
                          unsigned char digest[SHEAF__SHA256_BYTES]);

/* Stores it for these files, in place of what was stored for them; nothing where the directory
 * cannot be made or written, or the stamp is not settled. */
void sheaf__remember_store(const char *dir, const sheaf__stamp *stamp,
                           const unsigned char digest[SHEAF__SHA256_BYTES]);

#endif
