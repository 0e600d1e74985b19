/* model/open_weights.c - weights from the safetensors files of a directory. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/status.h"
#include "model/json.h"
#include "model/shards.h"
#include "model/weights_private.h"

/* Where tensors are looked up while opening. */
typedef struct source {
    struct sheaf__weights_private *p; /* its files: as `shards` lists them */
    sheaf__shards shards;
    sheaf_error *err;
} source;

static sheaf_status open_files(source *s, const char *dir)
{
    SHEAF__TRY(sheaf__shards_read(dir, &s->shards, s->err));
    uint64_t n = s->shards.n;
    s->p->files = sheaf__memory_alloc(&s->p->memory, n, sizeof *s->p->files);
    if (s->p->files == NULL)
        return sheaf__error_set(s->err, SHEAF_E_NO_MEMORY, "no memory for the list of files");
    s->p->n_files = n;
    for (uint64_t i = 0; i < n; i++) {
        char path[PATH_MAX];
        SHEAF__TRY(sheaf__shards_path(&s->shards, s->shards.names[i], path, s->err));
        SHEAF__TRY(sheaf__safetensors_open(path, &s->p->memory, &s->p->files[i], s->err));
    }
    return SHEAF_OK;
}

/* Finds a tensor by its full name. SHEAF_MISS: no file claims it. */
static sheaf_status find_exact(const source *s, const char *name, const sheaf__tensor **out)
{
    const sheaf__safetensors *file = &s->p->files[0];
    const sheaf__shards *shards = &s->shards;
    if (shards->map != NULL) {
        const char *shard = json_string_value(json_object_get(shards->map, name));
        if (shard == NULL) return SHEAF_MISS;
        uint64_t i = 0;
        while (strcmp(shards->names[i], shard) != 0) i++;
        file = &s->p->files[i];
    }
    *out = sheaf__safetensors_find(file, name);
    if (*out != NULL) return SHEAF_OK;
    if (shards->map == NULL) return SHEAF_MISS;
    char shown[SHEAF__BRIEF];
    return sheaf__error_set(s->err, SHEAF_E_FORMAT,
                            "%s: %s is not in the shard that weight_map names",
                            sheaf__path_show(s->shards.path, shown), name);
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
                                sheaf__path_show(s->shards.path, file), t->name,
                                sheaf__shape_show(t->dims, t->n_dims, found),
                                sheaf__shape_show(want, n_dims, wanted));
    if (t->dtype == SHEAF__DTYPE_OTHER)
        return sheaf__error_set(s->err, SHEAF_E_CONFIG,
                                "%s: %s holds %s, wanted F32, F16 or BF16",
                                sheaf__path_show(s->shards.path, file), t->name, t->dtype_name);
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
                                sheaf__path_show(s->shards.path, file), head ? "" : "model.",
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

/* A tensor's name without "model." if it is part of a layer's arithmetic, else null: some checkpoints
 * keep the rotation's frequencies, which config.json tells too. */
static const char *name_in_layer(const sheaf__tensor *t)
{
    const char *name = strncmp(t->name, "model.", 6) == 0 ? t->name + 6 : t->name;
    bool counts = strncmp(name, "layers.", 7) == 0 && strstr(name, ".rotary_emb.") == NULL;
    return counts ? name : NULL;
}

static bool has_slot(const struct sheaf__weights_private *p, const char *name)
{
    uint64_t i = 0;
    while (i < p->n_slots && strcmp(p->slots[i].name, name) != 0) i++;
    return i < p->n_slots;
}

/* A layer's tensor that has no place would silently be left out of the arithmetic: the files are of
 * another architecture, or of more layers, than config.json says. */
static sheaf_status check_leftovers(const source *s)
{
    const struct sheaf__weights_private *p = s->p;
    uint64_t n_slots = 0, n_tensors = 0;
    for (uint64_t i = 0; i < p->n_slots; i++)
        n_slots += strncmp(p->slots[i].name, "layers.", 7) == 0;
    for (uint64_t f = 0; f < p->n_files; f++)
        for (uint64_t i = 0; i < p->files[f].n_tensors; i++)
            n_tensors += name_in_layer(&p->files[f].tensors[i]) != NULL;
    if (n_tensors == n_slots) return SHEAF_OK;
    for (uint64_t f = 0; f < p->n_files; f++)
        for (uint64_t i = 0; i < p->files[f].n_tensors; i++) {
            const sheaf__tensor *t = &p->files[f].tensors[i];
            const char *name = name_in_layer(t);
            if (name == NULL || has_slot(p, name)) continue;
            char file[SHEAF__BRIEF];
            return sheaf__error_set(
                s->err, SHEAF_E_CONFIG,
                "%s: tensor %.80s has no place in the network that config.json describes",
                sheaf__path_show(s->shards.path, file), t->name);
        }
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
    source s = {.p = p, .err = err};
    sheaf_status status = open_files(&s, dir);
    for (uint64_t i = 0; i < p->n_slots && status == SHEAF_OK; i++)
        status = resolve(&s, config, &p->slots[i]);
    if (status == SHEAF_OK) status = check_leftovers(&s);
    sheaf__shards_close(&s.shards);
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
