/* model/shards.c - which files hold a model's weights. */
#include "model/shards.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "model/json.h"

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

sheaf_status sheaf__shards_path(const sheaf__shards *s, const char *file,
                                char path[static PATH_MAX], sheaf_error *err)
{
    int n = snprintf(path, PATH_MAX, "%s/%s", s->dir, file);
    if (n >= 0 && n < PATH_MAX) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_IO, "the path of %s is too long", file);
}

/* Adds the shard of one weight_map entry unless it is known. */
static sheaf_status add_shard(sheaf__shards *s, const json_t *value, sheaf_error *err)
{
    char file[SHEAF__BRIEF], shown[SHEAF__BRIEF];
    const char *name = json_string_value(value);
    if (name == NULL || name[0] == 0 || strchr(name, '/') != NULL || strstr(name, "..") != NULL)
        return sheaf__error_set(
            err, SHEAF_E_FORMAT, "%s: weight_map: a shard must be a plain file name, found %s",
            sheaf__path_show(s->path, file), sheaf__json_show(value, shown));
    for (uint64_t i = s->n; i > 0; i--)
        if (strcmp(s->names[i - 1], name) == 0) return SHEAF_OK;
    if (s->n == SHEAF__MAX_SHARDS)
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: weight_map names over %u shards",
                                sheaf__path_show(s->path, file), SHEAF__MAX_SHARDS);
    s->names[s->n++] = name;
    return SHEAF_OK;
}

static sheaf_status read_index(sheaf__shards *s, sheaf_error *err)
{
    sheaf__file file = {0};
    SHEAF__TRY(sheaf__file_map(s->path, &file, err));
    sheaf_status status =
        sheaf__json_parse(s->path, (const char *)file.data, file.size, &s->index, err);
    sheaf__file_unmap(&file);
    if (status != SHEAF_OK) return status;
    sheaf__json at = {s->path, "", s->index, err}, map;
    SHEAF__TRY(sheaf__json_require(&at, "weight_map"));
    SHEAF__TRY(sheaf__json_object(&at, "weight_map", "weight_map.", &map));
    s->map = map.object;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)s->map, key, value)
        SHEAF__TRY(add_shard(s, value, err));
    if (s->n != 0) return SHEAF_OK;
    char shown[SHEAF__BRIEF];
    return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: weight_map is empty",
                            sheaf__path_show(s->path, shown));
}

sheaf_status sheaf__shards_read(const char *dir, sheaf__shards *s, sheaf_error *err)
{
    s->dir = dir;
    s->index = NULL;
    s->map = NULL;
    s->n = 0;
    SHEAF__TRY(sheaf__shards_path(s, SINGLE, s->path, err));
    if (sheaf__file_exists(s->path)) {
        s->names[s->n++] = SINGLE;
        return SHEAF_OK;
    }
    SHEAF__TRY(sheaf__shards_path(s, INDEX, s->path, err));
    if (sheaf__file_exists(s->path)) return read_index(s, err);
    char shown[SHEAF__BRIEF];
    return sheaf__error_set(err, SHEAF_E_IO, "%s: holds neither " SINGLE " nor " INDEX,
                            sheaf__path_show(dir, shown));
}

void sheaf__shards_close(sheaf__shards *s)
{
    json_decref(s->index);
    s->index = NULL;
    s->map = NULL;
    s->n = 0;
}
