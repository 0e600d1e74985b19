/* model/files.h - files that tests of loading make: temporary directories, whole files in memory,
 * safetensors files written from a list. Every function fails the test when the system refuses.
 */
#ifndef SHEAF_TESTS_MODEL_FILES_H
#define SHEAF_TESTS_MODEL_FILES_H

#include <stdbool.h>
#include <stdint.h>

/* Makes a directory of its own under $TMPDIR or /tmp. */
#define FILES_PATH 512
void files_make_dir(char dir[static FILES_PATH]);

/* Removes the directory and the files in it. */
void files_remove_dir(const char *dir);

/* DIR/NAME gets exactly these bytes. */
void files_write(const char *dir, const char *name, const void *data, uint64_t size);
void files_write_text(const char *dir, const char *name, const char *text);
void files_remove(const char *dir, const char *name);

/* Copies FROM/NAME to DIR/AS. */
void files_copy(const char *from, const char *name, const char *dir, const char *as);

/* The whole file, with a zero byte after it; release with free. */
char *files_read(const char *dir, const char *name, uint64_t *size);

/* A tensor to write. */
typedef struct files_tensor {
    const char *name;
    const char *dtype;
    uint32_t n_dims;
    uint64_t dims[2];
    const void *data;
    uint64_t bytes;
} files_tensor;

/* Writes a safetensors file; `pad` spaces after the header move every tensor. */
void files_write_safetensors(const char *dir, const char *name, const files_tensor *tensors,
                             uint32_t n, uint32_t pad);

#endif
