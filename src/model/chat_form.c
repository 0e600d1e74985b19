/* model/chat_form.c - the tags of a Jinja template, copied in one spelling.
 *
 * Not a parser: a tag ends at the first closing mark outside quotes, as it does in every template
 * that is known here. One for which that is wrong leaves text over, and is taken to speak.
 */
#include "model/chat_form.h"

#include <string.h>

#include "base/status.h"

/* What stands beside a stretch of text between tags. */
enum { EDGE = 0, STRIPS = '-', PRINT = '}', BLOCK = '%' };

typedef struct copier {
    const char *at;
    sheaf__text *form;
    char before; /* the tag that ended last, as above */
} copier;

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next opening mark, or the end. */
static const char *find_tag(const char *at)
{
    for (; *at != 0; at++)
        if (at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#')) break;
    return at;
}

/* Whether text between tags is rendered, in part or whole. */
static bool is_rendered(const char *text, uint64_t n, char before, char after)
{
    for (uint64_t i = 0; i < n; i++)
        if (!is_blank(text[i])) return true;
    if (before == STRIPS || after == STRIPS) return false;
    bool line_starts = before == EDGE;
    if (n != 0 && before == BLOCK && text[0] == '\n') {
        text++, n--;
        line_starts = true;
    }
    if (n != 0 && after == EDGE && text[n - 1] == '\n') n--;
    uint64_t kept = n;
    while (kept != 0 && (text[kept - 1] == ' ' || text[kept - 1] == '\t')) kept--;
    bool whole_line = kept == 0 ? line_starts : text[kept - 1] == '\n';
    return (after == BLOCK && whole_line ? kept : n) != 0;
}

static sheaf_status put(copier *c, const char *text, uint64_t n)
{
    return sheaf__text_append(c->form, text, n);
}

static sheaf_status copy_quoted(copier *c)
{
    char quote = *c->at++;
    SHEAF__TRY(put(c, "'", 1));
    while (*c->at != 0 && *c->at != quote) {
        uint64_t n = c->at[0] == '\\' && c->at[1] != 0 ? 2 : 1;
        if (*c->at == '\n')
            SHEAF__TRY(put(c, "\\n", 2));
        else if (*c->at == '\'')
            SHEAF__TRY(put(c, "\\'", 2));
        else
            SHEAF__TRY(put(c, c->at, n));
        c->at += n;
    }
    if (*c->at != 0) c->at++;
    return put(c, "'", 1);
}

/* `at` is inside a tag that `kind`, { or %, opened. */
static sheaf_status copy_tag(copier *c, char kind)
{
    char end = kind == '{' ? PRINT : BLOCK;
    SHEAF__TRY(put(c, (const char[]){'{', kind}, 2));
    while (*c->at != 0) {
        const char *at = c->at;
        bool strips = at[0] == '-' && at[1] == end && at[2] == '}';
        if (*at == '\'' || *at == '"') {
            SHEAF__TRY(copy_quoted(c));
        } else if (strips || (at[0] == end && at[1] == '}')) {
            c->before = strips ? STRIPS : end;
            c->at += strips ? 3 : 2;
            return put(c, (const char[]){end, '}'}, 2);
        } else {
            if (!is_blank(*at)) SHEAF__TRY(put(c, at, 1));
            c->at++;
        }
    }
    return SHEAF_OK;
}

static void skip_comment(copier *c)
{
    const char *end = strstr(c->at, "#}");
    if (end == NULL) end = c->at + strlen(c->at);
    c->before = end != c->at && end[-1] == '-' ? STRIPS : BLOCK;
    c->at = *end == 0 ? end : end + 2;
}

sheaf_status sheaf__chat_form(const char *template_text, sheaf__text *form, bool *speaks)
{
    copier c = {template_text, form, EDGE};
    *speaks = false;
    SHEAF__TRY(put(&c, "", 0));
    for (;;) {
        const char *tag = find_tag(c.at);
        char after = EDGE;
        if (*tag != 0) after = tag[2] == '-' ? STRIPS : tag[1] == '{' ? PRINT : BLOCK;
        if (is_rendered(c.at, (uint64_t)(tag - c.at), c.before, after)) *speaks = true;
        if (*tag == 0) return SHEAF_OK;
        c.at = tag + (after == STRIPS ? 3 : 2);
        if (tag[1] == '#')
            skip_comment(&c);
        else
            SHEAF__TRY(copy_tag(&c, tag[1]));
    }
}
