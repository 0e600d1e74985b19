/* model/open_weights.c - weights from the safetensors files of a directory.
 *
 * One file:  DIR/model.safetensors
 * Shards:    DIR/model.safetensors.index.json   {"weight_map": {"NAME": "SHARD", ...}}
 *            DIR/SHARD ...
 *
 * A shard's name comes from a file and must be a plain file name: it never leads out of DIR.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/status.h"
#include "model/json.h"
#include "model/weights_private.h"

#define SINGLE     "model.safetensors"
#define INDEX      "model.safetensors.index.json"
#define MAX_SHARDS 1024u

/* Where tensors are looked up while opening. */
typedef struct source {
    struct sheaf__weights_private *p; /* its files: one, or one a shard */
    const char *dir;
    char path[PATH_MAX];           /* the single file, or the index */
    json_t *index;                 /* null for a single file */
    const json_t *map;             /* in `index`: tensor to shard */
    uint64_t n_shards;             /* 0 for a single file */
    const char *names[MAX_SHARDS]; /* [n_shards], borrowed from `index` */
    sheaf_error *err;
} source;

static sheaf_status make_path(const source *s, const char *file, char path[static PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/%s", s->dir, file);
    if (n >= 0 && n < PATH_MAX) return SHEAF_OK;
    return sheaf__error_set(s->err, SHEAF_E_IO, "the path of %s is too long", file);
}

static sheaf_status allocate_files(source *s, uint64_t n)
{
    s->p->files = sheaf__memory_alloc(&s->p->memory, n, sizeof *s->p->files);
    if (s->p->files == NULL)
        return sheaf__error_set(s->err, SHEAF_E_NO_MEMORY, "no memory for the list of files");
    s->p->n_files = n;
    return SHEAF_OK;
}

/* Adds the shard of one weight_map entry unless it is known. */
static sheaf_status add_shard(source *s, const json_t *value)
{
    char file[SHEAF__BRIEF], shown[SHEAF__BRIEF];
    const char *name = json_string_value(value);
    if (name == NULL || name[0] == 0 || strchr(name, '/') != NULL || strstr(name, "..") != NULL)
        return sheaf__error_set(s->err, SHEAF_E_FORMAT,
                                "%s: weight_map: a shard must be a plain file name, found %s",
                                sheaf__path_show(s->path, file),
                                sheaf__json_show(value, shown));
    for (uint64_t i = s->n_shards; i > 0; i--)
        if (strcmp(s->names[i - 1], name) == 0) return SHEAF_OK;
    if (s->n_shards == MAX_SHARDS)
        return sheaf__error_set(s->err, SHEAF_E_FORMAT, "%s: weight_map names over %u shards",
                                sheaf__path_show(s->path, file), MAX_SHARDS);
    s->names[s->n_shards++] = name;
    return SHEAF_OK;
}

static sheaf_status read_index(source *s)
{
    sheaf__file file = {0};
    SHEAF__TRY(sheaf__file_map(s->path, &file, s->err));
    sheaf_status status =
        sheaf__json_parse(s->path, (const char *)file.data, file.size, &s->index, s->err);
    sheaf__file_unmap(&file);
    if (status != SHEAF_OK) return status;
    sheaf__json at = {s->path, "", s->index, s->err}, map;
    SHEAF__TRY(sheaf__json_require(&at, "weight_map"));
    SHEAF__TRY(sheaf__json_object(&at, "weight_map", "weight_map.", &map));
    s->map = map.object;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s->map, key, value)
        SHEAF__TRY(add_shard(s, value));
    if (s->n_shards != 0) return SHEAF_OK;
    char shown[SHEAF__BRIEF];
    return sheaf__error_set(s->err, SHEAF_E_FORMAT, "%s: weight_map is empty",
                            sheaf__path_show(s->path, shown));
}

static sheaf_status open_files(source *s)
{
    SHEAF__TRY(make_path(s, SINGLE, s->path));
    if (sheaf__file_exists(s->path)) {
        SHEAF__TRY(allocate_files(s, 1));
        return sheaf__safetensors_open(s->path, &s->p->memory, &s->p->files[0], s->err);
    }
    SHEAF__TRY(make_path(s, INDEX, s->path));
    if (!sheaf__file_exists(s->path)) {
        char dir[SHEAF__BRIEF];
        return sheaf__error_set(s->err, SHEAF_E_IO, "%s: holds neither " SINGLE " nor " INDEX,
                                sheaf__path_show(s->dir, dir));
    }
    SHEAF__TRY(read_index(s));
    SHEAF__TRY(allocate_files(s, s->n_shards));
    for (uint64_t i = 0; i < s->n_shards; i++) {
        char path[PATH_MAX];
        SHEAF__TRY(make_path(s, s->names[i], path));
        SHEAF__TRY(sheaf__safetensors_open(path, &s->p->memory, &s->p->files[i], s->err));
    }
    return SHEAF_OK;
}

/* Finds a tensor by its full name. SHEAF_MISS: no file claims it. */
static sheaf_status find_exact(const source *s, const char *name, const sheaf__tensor **out)
{
    const sheaf__safetensors *file = &s->p->files[0];
    if (s->map != NULL) {
        const char *shard = json_string_value(json_object_get(s->map, name));
        if (shard == NULL) return SHEAF_MISS;
        uint64_t i = 0;
        while (strcmp(s->names[i], shard) != 0) i++;
        file = &s->p->files[i];
    }
    *out = sheaf__safetensors_find(file, name);
    if (*out != NULL) return SHEAF_OK;
    if (s->map == NULL) return SHEAF_MISS;
    char shown[SHEAF__BRIEF];
    return sheaf__error_set(s->err, SHEAF_E_FORMAT,
                            "%s: %s is not in the shard that weight_map names",
                            sheaf__path_show(s->path, shown), name);
}

/* Finds a tensor with or without the prefix of the causal models. */
static sheaf_status find(const source *s, const char *name, const sheaf__tensor **out)
{
    char full[96];
    snprintf(full, sizeof full, "model.%s", name);
    sheaf_status status = find_exact(s, full, out);
    return status == SHEAF_MISS ? find_exact(s, name, out) : status;
}

static sheaf_status check_tensor(const source *s, const sheaf__slot *slot,
                                 const sheaf__tensor *t)
{
    char file[SHEAF__BRIEF], found[SHEAF__SHAPE_TEXT], wanted[SHEAF__SHAPE_TEXT];
    bool vector = slot->matrix == NULL;
    const uint64_t dims[2] = {slot->rows, slot->cols};
    const uint64_t *want = vector ? dims + 1 : dims;
    uint32_t n_dims = vector ? 1 : 2;
    if (t->n_dims != n_dims || memcmp(t->dims, want, n_dims * sizeof *want) != 0)
        return sheaf__error_set(s->err, SHEAF_E_CONFIG, "%s: %s has shape %s, wanted %s",
                                sheaf__path_show(s->path, file), t->name,
                                sheaf__shape_show(t->dims, t->n_dims, found),
                                sheaf__shape_show(want, n_dims, wanted));
    if (t->dtype == SHEAF__DTYPE_OTHER)
        return sheaf__error_set(s->err, SHEAF_E_CONFIG,
                                "%s: %s holds %s, wanted F32, F16 or BF16",
                                sheaf__path_show(s->path, file), t->name, t->dtype_name);
    return SHEAF_OK;
}

static void widen(const sheaf__tensor *t, float *to)
{
    uint64_t size = sheaf__dtype_bytes(t->dtype), n = t->bytes / size;
    if (t->dtype == SHEAF_DTYPE_F32) {
        memcpy(to, t->data, t->bytes);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, t->data + i * size, sizeof half);
        to[i] =
            t->dtype == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(half) : sheaf__f32_of_bf16(half);
    }
}

static sheaf_status resolve(const source *s, const sheaf__config *config, sheaf__slot *slot)
{
    const sheaf__tensor *t = NULL;
    sheaf_status status = find(s, slot->name, &t);
    if (status == SHEAF_MISS && slot->kind == SHEAF__SLOT_EMBEDDING && config->tied_head)
        status = find(s, "lm_head.weight", &t);
    if (status == SHEAF_MISS) {
        char file[SHEAF__BRIEF];
        bool head = strcmp(slot->name, "lm_head.weight") == 0;
        return sheaf__error_set(s->err, SHEAF_E_CONFIG, "%s: tensor %s%s is missing%s",
                                sheaf__path_show(s->path, file), head ? "" : "model.",
                                slot->name,
                                head ? ", and tie_word_embeddings is not true" : "");
    }
    if (status != SHEAF_OK) return status;
    SHEAF__TRY(check_tensor(s, slot, t));
    if (slot->matrix != NULL) {
        *slot->matrix = (sheaf__matrix){t->data, t->dtype, slot->rows, slot->cols};
        return SHEAF_OK;
    }
    widen(t, slot->vector);
    bool plus_one = slot->kind == SHEAF__SLOT_NORM && config->norm_plus_one;
    for (uint32_t i = 0; plus_one && i < slot->cols; i++) slot->vector[i] += 1.0f;
    return SHEAF_OK;
}

static void copy_chunk(const void *ctx, const sheaf__slot *slot, uint32_t index, uint64_t begin,
                       uint64_t n, unsigned char *to)
{
    (void)ctx, (void)index;
    memcpy(to, (const unsigned char *)slot->matrix->data + begin, n);
}

sheaf_status sheaf__weights_open(const char *dir, const sheaf__config *config,
                                 const sheaf__weights_options *options, sheaf__weights **out,
                                 sheaf_error *err)
{
    sheaf__weights *w = NULL;
    SHEAF__TRY(sheaf__weights_begin(config, options, &w, err));
    struct sheaf__weights_private *p = w->private_;
    source s = {.p = p, .dir = dir, .err = err};
    sheaf_status status = open_files(&s);
    for (uint64_t i = 0; i < p->n_slots && status == SHEAF_OK; i++)
        status = resolve(&s, config, &p->slots[i]);
    json_decref(s.index);
    if (status == SHEAF_OK && options->copy_to_huge_pages) {
        const sheaf__fill fill = {copy_chunk, NULL, "copying weights"};
        status = sheaf__weights_fill(w, &fill, options, err);
        for (uint64_t i = 0; i < p->n_files && status == SHEAF_OK; i++)
            sheaf__safetensors_close(&p->files[i]);
    }
    if (status != SHEAF_OK) {
        sheaf__weights_close(w);
        return status;
    }
    sheaf__weights_finish(w);
    *out = w;
    return SHEAF_OK;
}
