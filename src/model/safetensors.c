/* model/safetensors.c - the tensors in a safetensors file. */
#include "model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/status.h"
#include "model/json.h"

#define LENGTH_BYTES     8
#define MAX_HEADER_BYTES 100000000u /* as the format's own reader */
#define METADATA         "__metadata__"

static const struct {
    const char *name;
    uint32_t bits;
    uint32_t dtype;
} dtypes[] = {
    {"F32", 32, SHEAF_DTYPE_F32},       {"F16", 16, SHEAF_DTYPE_F16},
    {"BF16", 16, SHEAF_DTYPE_BF16},     {"F64", 64, SHEAF__DTYPE_OTHER},
    {"I64", 64, SHEAF__DTYPE_OTHER},    {"U64", 64, SHEAF__DTYPE_OTHER},
    {"C64", 64, SHEAF__DTYPE_OTHER},    {"I32", 32, SHEAF__DTYPE_OTHER},
    {"U32", 32, SHEAF__DTYPE_OTHER},    {"I16", 16, SHEAF__DTYPE_OTHER},
    {"U16", 16, SHEAF__DTYPE_OTHER},    {"I8", 8, SHEAF__DTYPE_OTHER},
    {"U8", 8, SHEAF__DTYPE_OTHER},      {"BOOL", 8, SHEAF__DTYPE_OTHER},
    {"F8_E4M3", 8, SHEAF__DTYPE_OTHER}, {"F8_E5M2", 8, SHEAF__DTYPE_OTHER},
    {"F8_E8M0", 8, SHEAF__DTYPE_OTHER}, {"F6_E2M3", 6, SHEAF__DTYPE_OTHER},
    {"F6_E3M2", 6, SHEAF__DTYPE_OTHER}, {"F4", 4, SHEAF__DTYPE_OTHER},
};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

/* Where reading stands, for sentences. */
typedef struct reader {
    const char *file;
    const char *tensor;
    const unsigned char *data; /* the first byte after the header */
    uint64_t data_bytes;
    sheaf_error *err;
} reader;

/* "FILE: TENSOR: what". A tensor's name comes from the file: shown as JSON text. */
static sheaf_status refuse(const reader *r, const char *what)
{
    char file[SHEAF__BRIEF], shown[SHEAF__BRIEF];
    json_t *name = json_string(r->tensor);
    sheaf_status status = sheaf__error_set(
        r->err, SHEAF_E_FORMAT, "%s: tensor %s: %s", sheaf__path_show(r->file, file),
        name == NULL ? "?" : sheaf__json_show(name, shown), what);
    json_decref(name);
    return status;
}

static bool whole_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static sheaf_status read_shape(const reader *r, const json_t *shape, sheaf__tensor *t,
                               uint64_t *n_elements)
{
    if (!json_is_array(shape) || json_array_size(shape) > SHEAF__MAX_DIMS)
        return refuse(r, "shape must be a list of at most 8 sizes");
    t->n_dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (!whole_number(json_array_get(shape, i), &t->dims[i]))
            return refuse(r, "a size in shape must be a whole number, not negative");
        if (!sheaf__mul_u64(*n_elements, t->dims[i], n_elements))
            return refuse(r, "shape does not fit 64 bits");
    }
    return SHEAF_OK;
}

static sheaf_status read_tensor(const reader *r, const json_t *entry, sheaf__tensor *t)
{
    if (!json_is_object(entry)) return refuse(r, "must be an object");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    size_t kind = 0;
    while (kind < N_DTYPES && (dtype == NULL || strcmp(dtype, dtypes[kind].name) != 0)) kind++;
    if (kind == N_DTYPES) return refuse(r, "dtype is missing or not known");
    t->dtype = dtypes[kind].dtype;
    t->dtype_name = dtypes[kind].name;

    uint64_t n_elements = 1, bits, begin, end;
    SHEAF__TRY(read_shape(r, json_object_get(entry, "shape"), t, &n_elements));
    if (!sheaf__mul_u64(n_elements, dtypes[kind].bits, &bits) || bits % 8 != 0)
        return refuse(r, "shape and dtype do not make a whole number of bytes in 64 bits");

    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !whole_number(json_array_get(offsets, 0), &begin) ||
        !whole_number(json_array_get(offsets, 1), &end) || begin > end)
        return refuse(r, "data_offsets must be [begin, end]");
    if (end > r->data_bytes) return refuse(r, "data_offsets lie outside the file");
    if (end - begin != bits / 8)
        return refuse(r, "data_offsets hold another number of bytes than shape and dtype say");
    t->data = r->data + begin;
    t->bytes = end - begin;
    return SHEAF_OK;
}

static int by_place(const void *a, const void *b)
{
    const sheaf__tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const sheaf__tensor *)a)->name, ((const sheaf__tensor *)b)->name);
}

/* Reads every entry, with its name copied to `names`; checks overlaps; leaves the list by name. */
static sheaf_status read_entries(reader *r, json_t *header, sheaf__safetensors *s)
{
    char *name_end = s->names;
    const char *key;
    json_t *entry;
    uint64_t n = 0;
    json_object_foreach(header, key, entry)
    {
        if (strcmp(key, METADATA) == 0) continue;
        uint64_t length = strlen(key) + 1;
        memcpy(name_end, key, length);
        s->tensors[n].name = r->tensor = name_end;
        name_end += length;
        SHEAF__TRY(read_tensor(r, entry, &s->tensors[n++]));
    }
    if (n == 0) return SHEAF_OK;
    qsort(s->tensors, n, sizeof *s->tensors, by_place);
    for (uint64_t i = 1; i < n; i++) {
        const sheaf__tensor *before = &s->tensors[i - 1];
        if (before->data + before->bytes <= s->tensors[i].data) continue;
        r->tensor = s->tensors[i].name;
        return refuse(r, "overlaps another tensor");
    }
    qsort(s->tensors, n, sizeof *s->tensors, by_name);
    return SHEAF_OK;
}

/* Counts what the list will hold, and takes its memory. */
static sheaf_status allocate(json_t *header, sheaf__safetensors *s)
{
    const char *key;
    json_t *entry;
    json_object_foreach(header, key, entry)
    {
        if (strcmp(key, METADATA) == 0) continue;
        s->n_tensors++;
        s->names_bytes += strlen(key) + 1;
    }
    if (s->n_tensors == 0) return SHEAF_OK;
    s->tensors = sheaf__memory_alloc(s->memory, s->n_tensors, sizeof *s->tensors);
    s->names = sheaf__memory_alloc(s->memory, s->names_bytes, 1);
    return s->tensors == NULL || s->names == NULL ? SHEAF_E_NO_MEMORY : SHEAF_OK;
}

static uint64_t read_length(const unsigned char *data)
{
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) length = length << 8 | data[i];
    return length;
}

sheaf_status sheaf__safetensors_parse(const char *name, const unsigned char *data,
                                      uint64_t size, sheaf__memory *memory,
                                      sheaf__safetensors *out, sheaf_error *err)
{
    char shown[SHEAF__BRIEF];
    if (size < LENGTH_BYTES)
        return sheaf__error_set(err, SHEAF_E_FORMAT,
                                "%s: %llu bytes are too few for a safetensors file",
                                sheaf__path_show(name, shown), (unsigned long long)size);
    uint64_t length = read_length(data);
    if (length > size - LENGTH_BYTES || length > MAX_HEADER_BYTES)
        return sheaf__error_set(
            err, SHEAF_E_FORMAT,
            "%s: the header claims %llu bytes; the file has %llu after the length, and %u is "
            "the most allowed",
            sheaf__path_show(name, shown), (unsigned long long)length,
            (unsigned long long)(size - LENGTH_BYTES), MAX_HEADER_BYTES);
    const char *text = (const char *)data + LENGTH_BYTES;
    if (length == 0 || text[0] != '{')
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: the header must begin with {",
                                sheaf__path_show(name, shown));

    json_t *header = NULL;
    sheaf_status status = sheaf__json_parse(name, text, length, &header, err);
    if (status != SHEAF_OK) return status;
    sheaf__safetensors s = {.header_bytes = LENGTH_BYTES + length, .memory = memory};
    reader r = {name, METADATA, data + LENGTH_BYTES + length, size - LENGTH_BYTES - length,
                err};
    const json_t *metadata = json_object_get(header, METADATA);
    if (metadata != NULL && !json_is_object(metadata)) status = refuse(&r, "must be an object");
    if (status == SHEAF_OK) status = allocate(header, &s);
    if (status == SHEAF_OK) status = read_entries(&r, header, &s);
    json_decref(header);
    if (status == SHEAF_OK) {
        *out = s;
    } else {
        if (status == SHEAF_E_NO_MEMORY)
            sheaf__error_set(err, status, "%s: no memory for the list of tensors",
                             sheaf__path_show(name, shown));
        sheaf__safetensors_close(&s);
    }
    return status;
}

sheaf_status sheaf__safetensors_open(const char *path, sheaf__memory *memory,
                                     sheaf__safetensors *out, sheaf_error *err)
{
    sheaf__file file = {0};
    SHEAF__TRY(sheaf__file_map(path, &file, err));
    sheaf_status status =
        sheaf__safetensors_parse(path, file.data, file.size, memory, out, err);
    if (status == SHEAF_OK)
        out->file = file;
    else
        sheaf__file_unmap(&file);
    return status;
}

void sheaf__safetensors_forget(sheaf__safetensors *s)
{
    if (s->memory == NULL) return;
    sheaf__memory_free(s->memory, s->tensors, s->n_tensors, sizeof *s->tensors);
    sheaf__memory_free(s->memory, s->names, s->names_bytes, 1);
    s->tensors = NULL;
    s->names = NULL;
    s->n_tensors = s->names_bytes = 0;
}

void sheaf__safetensors_close(sheaf__safetensors *s)
{
    sheaf__safetensors_forget(s);
    sheaf__file_unmap(&s->file);
}

const sheaf__tensor *sheaf__safetensors_find(const sheaf__safetensors *s, const char *name)
{
    const sheaf__tensor key = {.name = name};
    if (s->n_tensors == 0) return NULL;
    return bsearch(&key, s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
}

const char *sheaf__shape_show(const uint64_t *dims, uint32_t n_dims,
                              char text[static SHEAF__SHAPE_TEXT])
{
    size_t n = (size_t)snprintf(text, SHEAF__SHAPE_TEXT, "[");
    for (uint32_t i = 0; i < n_dims && n < SHEAF__SHAPE_TEXT; i++)
        n += (size_t)snprintf(text + n, SHEAF__SHAPE_TEXT - n, "%s%llu", i == 0 ? "" : ", ",
                              (unsigned long long)dims[i]);
    if (n + 1 < SHEAF__SHAPE_TEXT) strcpy(text + n, "]");
    return text;
}
