/* base/file.c - files mapped into memory, read-only. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

#define SHOWN_PATH                                                                             \
    160 /* characters of a path in a sentence: its end, and room for the reason */

/* "PATH: why". */
static sheaf_status refuse(sheaf_error *err, const char *path, const char *why)
{
    size_t n = strlen(path);
    bool is_long = n > SHOWN_PATH;
    return sheaf__error_set(err, SHEAF_E_IO, "%s%s: %s", is_long ? "..." : "",
                            is_long ? path + n - SHOWN_PATH : path, why);
}

sheaf_status sheaf__file_map(const char *path, sheaf__file *out, sheaf_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not hold us up */
    if (fd < 0) return refuse(err, path, strerror(errno));
    struct stat st;
    sheaf_status status = SHEAF_OK;
    sheaf__file file = {NULL, 0};
    if (fstat(fd, &st) != 0) {
        status = refuse(err, path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        status = refuse(err, path, "not a regular file");
    } else if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            status = refuse(err, path, strerror(errno));
        } else {
            file.data = data;
            file.size = (uint64_t)st.st_size;
        }
    }
    close(fd);
    if (status == SHEAF_OK) *out = file;
    return status;
}

void sheaf__file_unmap(sheaf__file *file)
{
    if (file->data != NULL) munmap((void *)(uintptr_t)file->data, file->size);
    file->data = NULL;
    file->size = 0;
}

int sheaf__file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

const char *sheaf__path_show(const char *path, char text[static SHEAF__BRIEF])
{
    size_t n = strlen(path);
    if (n < SHEAF__BRIEF)
        memcpy(text, path, n + 1);
    else
        snprintf(text, SHEAF__BRIEF, "...%s", path + n - (SHEAF__BRIEF - 4));
    return text;
}
