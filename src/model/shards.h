/* model/shards.h - which files hold a model's weights.
 *
 * One file:  DIR/model.safetensors
 * Shards:    DIR/model.safetensors.index.json   {"weight_map": {"NAME": "SHARD", ...}}
 *            DIR/SHARD ...
 *
 * A shard's name comes from a file and must be a plain file name: it never leads out of DIR.
 */
#ifndef SHEAF_MODEL_SHARDS_H
#define SHEAF_MODEL_SHARDS_H

#include <jansson.h>
#include <limits.h>

#include "sheaf/status.h"

#define SHEAF__MAX_SHARDS 1024u

typedef struct sheaf__shards {
    const char *dir;     /* the caller's, who keeps it */
    char path[PATH_MAX]; /* the single file, or the index */
    json_t *index;       /* null for a single file */
    const json_t *map;   /* in `index`: tensor to shard; null for a single file */
    uint64_t n;          /* files: 1, or one a shard */
    const char *names[SHEAF__MAX_SHARDS]; /* [n] in DIR, in the index's order; borrowed */
} sheaf__shards;

/* Finds them. SHEAF_E_IO: neither of the two is there. SHEAF_E_FORMAT: the index names no shard, too
 * many, or one that is no plain file name. Closed also after a failure. */
sheaf_status sheaf__shards_read(const char *dir, sheaf__shards *out, sheaf_error *err);

/* DIR/FILE. SHEAF_E_IO: too long. */
sheaf_status sheaf__shards_path(const sheaf__shards *s, const char *file,
                                char path[static PATH_MAX], sheaf_error *err);

/* Harmless on a zeroed struct. */
void sheaf__shards_close(sheaf__shards *s);

#endif
