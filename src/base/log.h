/* base/log.h - structured log lines, whole ones, from any thread.
 *
 * Owns: levels, the two forms, writing a line in one piece. Does not own: what is worth a line.
 *
 *     sheaf__log log = {.fd = STDERR_FILENO, .level = SHEAF__LOG_INFO};
 *     sheaf__log_line(&log, SHEAF__LOG_INFO, "request done", "id", "s", id, "status", "u", 200u, NULL);
 *
 *     text   2026-11-30T01:02:03.456Z info  request done id=req_4f status=200
 *     json   {"time":"2026-11-30T01:02:03.456Z","level":"info","message":"request done",
 *             "id":"req_4f","status":200}                                          (on one line)
 */
#ifndef SHEAF_BASE_LOG_H
#define SHEAF_BASE_LOG_H

#include <stdint.h>

enum {
    SHEAF__LOG_DEBUG = 0,
    SHEAF__LOG_INFO = 1,
    SHEAF__LOG_WARN = 2,
    SHEAF__LOG_ERROR = 3,
    SHEAF__LOG_NONE = 4
};
enum { SHEAF__LOG_TEXT = 0, SHEAF__LOG_JSON = 1 };

typedef struct sheaf__log {
    int fd;
    uint32_t level; /* lines below it are dropped */
    uint32_t form;  /* SHEAF__LOG_TEXT, SHEAF__LOG_JSON */
} sheaf__log;

/* One line, written by one write(2). Then triples up to a null: a name, a kind, a value: "s" const char *
 * (null is allowed), "u" uint32_t, "U" uint64_t, "i" int32_t, "f" double. Texts are cut at 256 bytes,
 * a line at 4096: fields that it has no room for are left out, and "cut" is true. Bytes that could break
 * a line or its form are escaped. `log` null: nothing. errno stays. Any thread. */
void sheaf__log_line(const sheaf__log *log, uint32_t level, const char *message, ...)
    __attribute__((sentinel));

#endif
