/* model/files.c - files that tests of loading make. */
#include "model/files.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void join(char path[static FILES_PATH * 2], const char *dir, const char *name)
{
    int n = snprintf(path, FILES_PATH * 2, "%s/%s", dir, name);
    assert_true(n > 0 && n < FILES_PATH * 2);
}

void files_make_dir(char dir[static FILES_PATH])
{
    const char *base = getenv("TMPDIR");
    int n = snprintf(dir, FILES_PATH, "%s/sheaf-test-XXXXXX", base == NULL ? "/tmp" : base);
    assert_true(n > 0 && n < FILES_PATH);
    assert_non_null(mkdtemp(dir));
}

void files_remove_dir(const char *dir)
{
    DIR *list = opendir(dir);
    assert_non_null(list);
    struct dirent *entry;
    while ((entry = readdir(list)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            files_remove(dir, entry->d_name);
    closedir(list);
    assert_int_equal(rmdir(dir), 0);
}

void files_remove(const char *dir, const char *name)
{
    char path[FILES_PATH * 2];
    join(path, dir, name);
    assert_int_equal(remove(path), 0);
}

void files_write(const char *dir, const char *name, const void *data, uint64_t size)
{
    char path[FILES_PATH * 2];
    join(path, dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (size != 0) assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void files_write_text(const char *dir, const char *name, const char *text)
{
    files_write(dir, name, text, strlen(text));
}

char *files_read(const char *dir, const char *name, uint64_t *size)
{
    char path[FILES_PATH * 2];
    join(path, dir, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long n = ftell(file);
    assert_true(n >= 0);
    rewind(file);
    char *data = malloc((size_t)n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, file), n);
    fclose(file);
    data[n] = 0;
    *size = (uint64_t)n;
    return data;
}

void files_copy(const char *from, const char *name, const char *dir, const char *as)
{
    uint64_t size;
    char *data = files_read(from, name, &size);
    files_write(dir, as, data, size);
    free(data);
}

void files_write_safetensors(const char *dir, const char *name, const files_tensor *tensors,
                             uint32_t n, uint32_t pad)
{
    uint64_t total = 0, room = 8 + 2 + pad;
    for (uint32_t i = 0; i < n; i++) {
        total += tensors[i].bytes;
        room += strlen(tensors[i].name) + 160;
    }
    char *file = malloc(room + total);
    assert_non_null(file);
    uint64_t at = 8, offset = 0;
    at += (uint64_t)sprintf(file + at, "{");
    for (uint32_t i = 0; i < n; i++) {
        const files_tensor *t = &tensors[i];
        at += (uint64_t)sprintf(file + at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                                i == 0 ? "" : ",", t->name, t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++)
            at += (uint64_t)sprintf(file + at, "%s%llu", d == 0 ? "" : ",",
                                    (unsigned long long)t->dims[d]);
        at += (uint64_t)sprintf(file + at, "],\"data_offsets\":[%llu,%llu]}",
                                (unsigned long long)offset,
                                (unsigned long long)(offset + t->bytes));
        offset += t->bytes;
    }
    at += (uint64_t)sprintf(file + at, "}");
    memset(file + at, ' ', pad);
    at += pad;
    uint64_t header = at - 8;
    for (int i = 0; i < 8; i++) file[i] = (char)(header >> (8 * i));
    for (uint32_t i = 0; i < n; i++) {
        memcpy(file + at, tensors[i].data, tensors[i].bytes);
        at += tensors[i].bytes;
    }
    files_write(dir, name, file, at);
    free(file);
}
