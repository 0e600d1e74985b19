/* server/page.c - the page at "/": chat, live requests, the pool drawn, from the program's own memory. */
#include "server/page.h"

#include <string.h>

/* Nothing from elsewhere, nothing written into the document, and in nobody's frame. */
static const char policy[] =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static const sheaf__page_file *file_at(const char *path)
{
    for (uint32_t i = 0; i < sheaf__n_page_routes; i++) {
        if (strcmp(sheaf__page_files[i].path, path) == 0) return &sheaf__page_files[i];
    }
    return NULL;
}

/* Whether If-None-Match names the tag: "a", W/"b", or *. */
static bool client_has(const char *names, const char *tag)
{
    return names != NULL && (strcmp(names, "*") == 0 || strstr(names, tag) != NULL);
}

void sheaf__serve_page(void *ctx, sheaf__exchange *x)
{
    (void)ctx;
    const sheaf__page_file *file = file_at(sheaf__exchange_path(x));
    if (file == NULL) {
        sheaf__api_error e;
        sheaf__api_error_set(&e, 404, NULL, NULL, "There is no such page.");
        sheaf__exchange_fail(x, &e);
        return;
    }
    sheaf__exchange_add_header(x, "ETag", file->tag);
    sheaf__exchange_add_header(x, "Cache-Control", "no-cache"); /* kept, and asked about */
    sheaf__exchange_add_header(x, "Content-Security-Policy", policy);
    sheaf__exchange_add_header(x, "Referrer-Policy", "no-referrer");
    if (client_has(sheaf__exchange_header(x, "If-None-Match"), file->tag)) {
        sheaf__exchange_reply_static(x, 304, file->content_type, "", 0);
    } else {
        sheaf__exchange_reply_static(x, 200, file->content_type, file->data, file->n);
    }
}
