/* model/identity.c - the digest that names a model.
 *
 * Everything variable is framed by its length, so that no two models give the same bytes:
 *
 *     frame(x)  the length of x, 64 bits, little-endian; then x
 *     random    "sheaf model random" frame(specification)
 *     quick     "sheaf model quick" frame(config.json) frame(index) shard...
 *               shard: file's size, 64 bits; frame(header with its length); of each tensor, by name,
 *               frame(samples)
 *     full      "sheaf model full" frame(config.json) frame(index) frame(shard)...
 *
 * The index is empty where there is none. Shards are in the order of their names; the header says
 * where each tensor lies. Samples: the first, the middle and the last 4096 bytes, or all where
 * they are at most three times that.
 */
#include "model/identity.h"

#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "model/remember.h"
#include "model/safetensors.h"
#include "model/shards.h"

#define RANDOM_PREFIX "random:"
#define SAMPLE_BYTES  4096u
#define STEP_BYTES    (8u << 20) /* hashed between two looks at the clock: some milliseconds */
#define PROGRESS_NS   100000000u

/* One digest under way. */
typedef struct reading {
    const sheaf__identity_options *options;
    sheaf__shards shards; /* its names sorted */
    sheaf__sha256 sha;
    uint64_t done, total; /* bytes of files, of a FULL digest */
    uint64_t last_ns;
    sheaf_error *err;
} reading;

/* ---- bytes ------------------------------------------------------------------------------- */

static void add_u64(reading *r, uint64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(value >> 8 * i);
    sheaf__sha256_add(&r->sha, bytes, sizeof bytes);
}

static void report(reading *r)
{
    const sheaf__identity_options *o = r->options;
    if (o->progress != NULL) o->progress(o->progress_ctx, "digest", r->done, r->total);
    r->last_ns = sheaf__clock_ns();
}

static void add_frame(reading *r, const unsigned char *data, uint64_t n)
{
    add_u64(r, n);
    for (uint64_t at = 0; at < n; at += STEP_BYTES) {
        uint64_t step = sheaf__min_u64(STEP_BYTES, n - at);
        sheaf__sha256_add(&r->sha, data + at, step);
        r->done += step;
        if (r->total != 0 && sheaf__clock_ns() - r->last_ns >= PROGRESS_NS) report(r);
    }
}

static sheaf_status add_file(reading *r, const char *path)
{
    sheaf__file file = {0};
    SHEAF__TRY(sheaf__file_map(path, &file, r->err));
    add_frame(r, file.data, file.size);
    sheaf__file_unmap(&file);
    return SHEAF_OK;
}

static void add_samples(reading *r, const sheaf__tensor *t)
{
    if (t->bytes <= 3 * SAMPLE_BYTES) {
        add_frame(r, t->data, t->bytes);
        return;
    }
    add_u64(r, 3 * SAMPLE_BYTES);
    const uint64_t at[] = {0, (t->bytes - SAMPLE_BYTES) / 2, t->bytes - SAMPLE_BYTES};
    for (int i = 0; i < 3; i++) sheaf__sha256_add(&r->sha, t->data + at[i], SAMPLE_BYTES);
}

/* A shard's size, header and samples. */
static sheaf_status add_sketch(reading *r, const char *path)
{
    sheaf__memory memory;
    sheaf__safetensors file = {0};
    sheaf__memory_init(&memory, NULL);
    SHEAF__TRY(sheaf__safetensors_open(path, &memory, &file, r->err));
    add_u64(r, file.file.size);
    add_frame(r, file.file.data, file.header_bytes);
    for (uint64_t i = 0; i < file.n_tensors; i++) add_samples(r, &file.tensors[i]);
    sheaf__safetensors_close(&file);
    return SHEAF_OK;
}

/* ---- files ------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Describes all files as they are now. */
static sheaf_status stamp_files(reading *r, sheaf__stamp *stamp)
{
    char path[PATH_MAX];
    const sheaf__shards *s = &r->shards;
    SHEAF__TRY(sheaf__stamp_begin(stamp));
    sheaf_status status = sheaf__shards_path(s, "config.json", path, r->err);
    if (status == SHEAF_OK) status = sheaf__stamp_add(stamp, path, r->err);
    if (status == SHEAF_OK && s->index != NULL)
        status = sheaf__stamp_add(stamp, s->path, r->err);
    for (uint64_t i = 0; i < s->n && status == SHEAF_OK; i++) {
        status = sheaf__shards_path(s, s->names[i], path, r->err);
        if (status == SHEAF_OK) status = sheaf__stamp_add(stamp, path, r->err);
    }
    sheaf_status ended = sheaf__stamp_end(stamp);
    return status == SHEAF_OK ? ended : status;
}

static sheaf_status add_files(reading *r)
{
    char path[PATH_MAX];
    const sheaf__shards *s = &r->shards;
    bool full = r->options->kind == SHEAF__IDENTITY_FULL;
    const char *tag = full ? "sheaf model full" : "sheaf model quick";
    sheaf__sha256_add(&r->sha, tag, strlen(tag));
    SHEAF__TRY(sheaf__shards_path(s, "config.json", path, r->err));
    SHEAF__TRY(add_file(r, path));
    if (s->index != NULL)
        SHEAF__TRY(add_file(r, s->path));
    else
        add_frame(r, NULL, 0);
    for (uint64_t i = 0; i < s->n; i++) {
        SHEAF__TRY(sheaf__shards_path(s, s->names[i], path, r->err));
        SHEAF__TRY(full ? add_file(r, path) : add_sketch(r, path));
    }
    return SHEAF_OK;
}

/* Runs `add` between the beginning and the end of a digest. */
static sheaf_status digest(reading *r, sheaf_status (*add)(reading *r), sheaf__identity *out)
{
    sheaf__identity id = *out;
    SHEAF__TRY(sheaf__sha256_begin(&r->sha));
    sheaf_status status = add(r);
    sheaf_status ended = sheaf__sha256_end(&r->sha, id.bytes);
    if (status == SHEAF_OK) status = ended;
    if (status == SHEAF_OK) *out = id;
    return status;
}

static sheaf_status changed(const char *dir, sheaf_error *err)
{
    char shown[SHEAF__BRIEF];
    return sheaf__error_set(err, SHEAF_E_IO, "%s: its files changed while they were read",
                            sheaf__path_show(dir, shown));
}

static sheaf_status digest_files(reading *r, sheaf__identity *out)
{
    const sheaf__identity_options *o = r->options;
    bool full = o->kind == SHEAF__IDENTITY_FULL;
    sheaf__stamp before, after;
    sheaf__identity id = {.bytes = {0}};
    SHEAF__TRY(stamp_files(r, &before));
    if (!full || !sheaf__remember_find(o->cache_dir, &before, id.bytes)) {
        if (full) r->total = before.bytes;
        r->last_ns = sheaf__clock_ns();
        SHEAF__TRY(digest(r, add_files, &id));
        SHEAF__TRY(stamp_files(r, &after));
        if (memcmp(before.state, after.state, sizeof after.state) != 0)
            return changed(r->shards.dir, r->err);
        if (full) report(r);
        if (full) sheaf__remember_store(o->cache_dir, &before, id.bytes);
    }
    memcpy(id.state, before.state, sizeof id.state);
    *out = id;
    return SHEAF_OK;
}

static sheaf_status compare_state(reading *r, sheaf__identity *id)
{
    sheaf__stamp now;
    SHEAF__TRY(stamp_files(r, &now));
    if (memcmp(now.state, id->state, sizeof id->state) == 0) return SHEAF_OK;
    return changed(r->shards.dir, r->err);
}

static sheaf_status add_specification(reading *r)
{
    static const char tag[] = "sheaf model random";
    sheaf__sha256_add(&r->sha, tag, sizeof tag - 1);
    add_frame(r, (const unsigned char *)r->shards.dir, strlen(r->shards.dir));
    return SHEAF_OK;
}

static bool is_random(const char *path)
{
    return strncmp(path, RANDOM_PREFIX, strlen(RANDOM_PREFIX)) == 0;
}

/* Lists the files of a directory for `what`. */
static sheaf_status with_files(const char *path, const sheaf__identity_options *options,
                               sheaf_status (*what)(reading *r, sheaf__identity *id),
                               sheaf__identity *id, sheaf_error *err)
{
    reading *r = calloc(1, sizeof *r);
    if (r == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory for a model's digest");
    r->options = options;
    r->err = err;
    sheaf_status status = sheaf__shards_read(path, &r->shards, err);
    if (status == SHEAF_OK) {
        qsort(r->shards.names, r->shards.n, sizeof *r->shards.names, by_name);
        status = what(r, id);
    }
    sheaf__shards_close(&r->shards);
    free(r);
    return status;
}

sheaf_status sheaf__identity_read(const char *path, const sheaf__identity_options *options,
                                  sheaf__identity *out, sheaf_error *err)
{
    if (!is_random(path)) return with_files(path, options, digest_files, out, err);
    reading r = {.options = options, .shards = {.dir = path}, .err = err};
    sheaf__identity id = {.bytes = {0}};
    SHEAF__TRY(digest(&r, add_specification, &id));
    *out = id;
    return SHEAF_OK;
}

sheaf_status sheaf__identity_unchanged(const char *path, const sheaf__identity *id,
                                       sheaf_error *err)
{
    sheaf__identity read = *id;
    return is_random(path) ? SHEAF_OK : with_files(path, NULL, compare_state, &read, err);
}

sheaf_status sheaf__identity_space(const sheaf_pool *pool, const sheaf__identity *id,
                                   const void *salt, uint64_t salt_bytes, sheaf_key *out)
{
    if (salt != NULL && salt_bytes == 0) return SHEAF_E_INVALID;
    const sheaf_field fields[] = {{"model", id->bytes, sizeof id->bytes},
                                  {"salt", salt, salt_bytes}};
    return sheaf_space_make(pool, fields, salt == NULL ? 1 : 2, out);
}
