/* base/status.c - the one table of status texts. */
#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

static const struct {
    sheaf_status status;
    const char *text;
} texts[] = {
    {SHEAF_OK, "success"},
    {SHEAF_FULL, "no room within the budget"},
    {SHEAF_PENDING, "not finished yet"},
    {SHEAF_MISS, "nothing found"},
    {SHEAF_REFUSED, "not taken: a limit forbids it"},
    {SHEAF_E_INVALID, "invalid argument"},
    {SHEAF_E_NO_MEMORY, "out of memory"},
    {SHEAF_E_OVERFLOW, "a size does not fit"},
    {SHEAF_E_IO, "input or output failed"},
    {SHEAF_E_UNSUPPORTED, "not supported here"},
    {SHEAF_E_BUSY, "still in use"},
    {SHEAF_E_CODEC, "unknown or unusable codec"},
    {SHEAF_E_LAYOUT, "invalid layout"},
    {SHEAF_E_STALE, "stale block handle"},
    {SHEAF_E_NOT_OWNED, "no such reference to the block"},
    {SHEAF_E_CORRUPT, "broken invariant"},
    {SHEAF_E_DEVICE, "the device failed"},
    {SHEAF_E_RANGE, "positions or sizes out of range"},
    {SHEAF_E_UNWRITTEN, "positions not written in every layer"},
    {SHEAF_E_SLID, "positions the window has let go of"},
    {SHEAF_E_SHAPE, "shape or type differs from the layout"},
    {SHEAF_E_FOREIGN, "of another layout, namespace or version"},
    {SHEAF_E_DAMAGED, "a checksum does not match"},
    {SHEAF_E_PLAN, "views differ from the plan"},
    {SHEAF_E_NONFINITE, "a result is not finite"},
    {SHEAF_E_FORMAT, "malformed file"},
    {SHEAF_E_CONFIG, "missing or impossible setting"},
    {SHEAF_E_ARCH, "architecture, tokenizer or template not known"},
    {SHEAF_E_CONTEXT, "longer than the context"},
    {SHEAF_E_CANCELLED, "cancelled"},
    {SHEAF_E_USAGE, "impossible flag or value"},
};

const char *sheaf_status_text(sheaf_status status)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].status == status) return texts[i].text;
    return "unknown status";
}

const char *sheaf_version(void)
{
    return STRINGIFY(SHEAF_VERSION_MAJOR) "." STRINGIFY(SHEAF_VERSION_MINOR) "." STRINGIFY(
        SHEAF_VERSION_PATCH);
}

/* Parts of a sentence may come from a hostile file: control characters, also those that UTF-8 writes
 * as c2 80 to c2 9f, must neither break the line nor steer a terminal. */
static void drop_control_characters(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != 0; c++) {
        bool second = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        if (second) *c++ = '?';
        if (second || *c < 0x20 || *c == 0x7f) *c = '?';
    }
}

sheaf_status sheaf__error_set(sheaf_error *err, sheaf_status status, const char *format, ...)
{
    if (err == NULL) return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    drop_control_characters(err->text);
    return status;
}

void sheaf__assert(int holds, const char *what, const char *file, int line)
{
#if SHEAF_CHECK >= 1
    if (holds) return;
    fprintf(stderr, "sheaf: broken invariant at %s:%d: %s\n", file, line, what);
    abort();
#else
    (void)holds, (void)what, (void)file, (void)line;
#endif
}
