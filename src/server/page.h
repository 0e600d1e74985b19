/* server/page.h - the files of the page at "/", as cmake/embed.cmake put them into the program. */
#ifndef SHEAF_SERVER_PAGE_H
#define SHEAF_SERVER_PAGE_H

#include "server/server.h"

typedef struct sheaf__page_file {
    const char *path; /* of its route */
    const char *content_type;
    const char *tag; /* quoted, of its contents */
    const unsigned char *data;
    uint64_t n;
} sheaf__page_file;

extern const sheaf__page_file sheaf__page_files[]; /* [sheaf__n_page_routes] */

#endif
