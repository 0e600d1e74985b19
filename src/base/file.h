/* base/file.h - files mapped into memory, read-only; and their names in sentences. */
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

/* Room for a path, a name or a value in a sentence. */
#define SHEAF__BRIEF 112

/* A path as a sentence shows it: whole, or its end after "..." where the sentence would otherwise
 * lose what it has to say. */
const char *sheaf__path_show(const char *path, char text[static SHEAF__BRIEF]);

#endif
