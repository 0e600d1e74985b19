/* server/errors.c - what is wrong with a request, in OpenAI's words. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/utf8.h"
#include "server/http.h"

static const char *type_of(uint32_t status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

/* Clients' words stand in sentences, cut by the size of the place: what is not UTF-8 becomes '?', a
 * character that is cut goes. */
static void mend(char *text)
{
    uint64_t n = strlen(text);
    for (uint64_t at = 0; at < n;) {
        sheaf__utf8_char c = sheaf__utf8_read(text + at, n - at);
        if (c.code == SHEAF__UTF8_ILL && c.cut) {
            text[at] = 0;
            return;
        }
        if (c.code == SHEAF__UTF8_ILL) memset(text + at, '?', c.size);
        at += c.size;
    }
}

bool sheaf__api_error_set(sheaf__api_error *e, uint32_t status, const char *code,
                          const char *param, const char *format, ...)
{
    va_list args;
    *e = (sheaf__api_error){.status = status, .type = type_of(status), .code = code};
    if (param != NULL) snprintf(e->param, sizeof e->param, "%s", param);
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    mend(e->param);
    mend(e->message);
    return false;
}

sheaf_status sheaf__api_error_render(const sheaf__api_error *e, sheaf__text *out)
{
    const char *type = e->type != NULL ? e->type : type_of(e->status);
    json_t *error =
        json_pack("{s:{s:s,s:s,s:s?,s:s?}}", "error", "message", e->message, "type", type,
                  "param", e->param[0] != 0 ? e->param : NULL, "code", e->code);
    char *text = error != NULL ? json_dumps(error, JSON_COMPACT) : NULL;
    json_decref(error);
    if (text == NULL) return SHEAF_E_NO_MEMORY;
    sheaf_status st = sheaf__text_append(out, text, strlen(text));
    free(text);
    return st;
}
