/* base/file.h - files mapped into memory, read-only. */
#ifndef SHEAF_BASE_FILE_H
#define SHEAF_BASE_FILE_H

#include "sheaf/status.h"

typedef struct sheaf__file {
    const unsigned char *data; /* [size], page-aligned; null when size is 0 */
    uint64_t size;
} sheaf__file;

/* Maps a whole regular file; pages are shared with everyone who maps it. An empty file is allowed.
 * SHEAF_E_IO: `err` names the file and what the system said. */
sheaf_status sheaf__file_map(const char *path, sheaf__file *out, sheaf_error *err);

/* Gives the mapping back; harmless on a zeroed struct. */
void sheaf__file_unmap(sheaf__file *file);

/* Whether something exists at the path. */
int sheaf__file_exists(const char *path);

#endif
