/* base/log.c - one line, made in a buffer and written whole.
 *
 * Texts may come from strangers: what ends a line, moves a terminal's cursor or is no UTF-8 is
 * escaped. A field that the line has no room for is left out whole, and so are those after it; "cut"
 * then says so. So a line stays what its form promises, however long its fields are.
 */
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_TEXT 256u
#define MAX_LINE 4096u /* PIPE_BUF: a pipe takes so much in one piece */

static const char *const level_names[] = {"debug", "info", "warn", "error"};

/* What ends a line that was cut, by form. */
static const char *const cut_marks[] = {" cut=true\n", ",\"cut\":true}\n"};
#define ROOM_FOR_END 16u /* the longer of them */

typedef struct line {
    char data[MAX_LINE];
    size_t n;
    bool json;
    bool full; /* something did not fit: nothing more is added */
} line;

static void put(line *l, const char *data, size_t n)
{
    if (l->full || n > MAX_LINE - ROOM_FOR_END - l->n) {
        l->full = true;
        return;
    }
    memcpy(l->data + l->n, data, n);
    l->n += n;
}

static void put_string(line *l, const char *text)
{
    put(l, text, strlen(text));
}

/* Bytes of the well-formed character at the start of n > 0 bytes (Unicode, table 3-7); 0: none. */
static size_t character_size(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    size_t size = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || size > n) return 0;
    unsigned char low = 0x80, high = 0xbf;
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < size; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return size;
}

/* The control character or line end at s, a character of `size` bytes; 0: it is none. */
static unsigned control_code(const unsigned char *s, size_t size)
{
    if (size == 1) return s[0] < 0x20 || s[0] == 0x7f ? s[0] : 0;
    if (size == 2 && s[0] == 0xc2 && s[1] < 0xa0) return s[1];
    if (size == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0xa8 || s[2] == 0xa9))
        return 0x2000u | (s[2] & 0x3fu);
    return 0;
}

/* Bytes of the text that are shown: at most MAX_TEXT, not ending inside a character. */
static size_t shown_size(const char *text)
{
    size_t n = strnlen(text, MAX_TEXT + 1);
    if (n <= MAX_TEXT) return n;
    n = MAX_TEXT;
    for (size_t back = 1; back < 4; back++) {
        const unsigned char *s = (const unsigned char *)text + n - back;
        if ((*s & 0xc0) == 0x80) continue;
        size_t size = character_size(s, strnlen((const char *)s, 4));
        return size > back ? n - back : n;
    }
    return n;
}

/* n bytes of text, escaped; `quoted`: between quotes, and those within it escaped. */
static void put_text(line *l, const char *text, size_t n, bool quoted)
{
    const unsigned char *s = (const unsigned char *)text;
    char escape[8];
    if (quoted) put(l, "\"", 1);
    for (size_t i = 0; i < n;) {
        size_t size = character_size(s + i, n - i);
        unsigned code = size > 0 ? control_code(s + i, size) : 0;
        if (size == 0 && l->json) {
            put_string(l, "\\ufffd");
        } else if (size == 0) {
            put(l, escape, (size_t)snprintf(escape, sizeof escape, "\\x%02x", s[i]));
        } else if (code == '\n') {
            put(l, "\\n", 2);
        } else if (code != 0 || (size == 1 && s[i] == 0)) {
            put(l, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", code));
        } else if (quoted && (s[i] == '"' || s[i] == '\\')) {
            escape[0] = '\\', escape[1] = (char)s[i];
            put(l, escape, 2);
        } else {
            put(l, text + i, size);
        }
        i += size > 0 ? size : 1;
    }
    if (quoted) put(l, "\"", 1);
}

/* Whether a value of the text form can stand without quotes. */
static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] >= 0x7f || strchr("\"\\=", text[i]) != NULL) return false;
    return n > 0;
}

static void put_string_value(line *l, const char *text)
{
    if (text == NULL) {
        put_string(l, l->json ? "null" : "-");
        return;
    }
    size_t n = shown_size(text);
    put_text(l, text, n, l->json || !is_plain(text, n));
}

/* Nine digits, and a point whatever the locale; JSON has no number for what is not finite. */
static void put_double(line *l, double value)
{
    char text[40];
    if (!isfinite(value) && l->json) {
        put_string(l, "null");
        return;
    }
    snprintf(text, sizeof text, "%.9g", value);
    for (char *c = text; *c != 0; c++)
        if (*c == ',') *c = '.';
    put_string(l, text);
}

/* The value of one kind. False: there is no such kind, so what follows cannot be read. */
static bool put_value(line *l, const char *kind, va_list *args)
{
    char number[24];
    switch (kind[0]) {
    case 's': put_string_value(l, va_arg(*args, const char *)); return true;
    case 'f': put_double(l, va_arg(*args, double)); return true;
    case 'u': snprintf(number, sizeof number, "%u", va_arg(*args, uint32_t)); break;
    case 'i': snprintf(number, sizeof number, "%d", va_arg(*args, int32_t)); break;
    case 'U':
        snprintf(number, sizeof number, "%llu", (unsigned long long)va_arg(*args, uint64_t));
        break;
    default: return false;
    }
    put_string(l, number);
    return true;
}

static void put_fields(line *l, va_list *args)
{
    const char *name;
    while (!l->full && (name = va_arg(*args, const char *)) != NULL) {
        const char *kind = va_arg(*args, const char *);
        size_t before = l->n;
        put_string(l, l->json ? "," : " ");
        put_text(l, name, shown_size(name), l->json);
        put_string(l, l->json ? ":" : "=");
        bool known = put_value(l, kind, args);
        if (l->full || !known) {
            l->n = before;
            l->full = true;
        }
    }
}

/* Time, level and message: always fit. */
static void put_head(line *l, uint32_t level, const char *message)
{
    struct timespec now;
    struct tm t;
    char stamp[32], head[96];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &t);
    const char *form =
        l->json ? "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"message\":" : "%s.%03ldZ %-5s ";
    snprintf(head, sizeof head, form, stamp, now.tv_nsec / 1000000, level_names[level]);
    put_string(l, head);
    put_text(l, message, shown_size(message), l->json);
}

void sheaf__log_line(const sheaf__log *log, uint32_t level, const char *message, ...)
{
    if (log == NULL || level < log->level || level > SHEAF__LOG_ERROR) return;
    int saved = errno;
    line l;
    l.n = 0, l.full = false, l.json = log->form == SHEAF__LOG_JSON;
    put_head(&l, level, message);
    va_list args;
    va_start(args, message);
    put_fields(&l, &args);
    va_end(args);
    const char *end = l.full ? cut_marks[l.json] : l.json ? "}\n" : "\n";
    memcpy(l.data + l.n, end, strlen(end));
    l.n += strlen(end);
    while (write(log->fd, l.data, l.n) < 0 && errno == EINTR) continue;
    errno = saved;
}
