/* tests/cli/pty.h - a program on a pseudo-terminal of its own, typed at and watched.
 *
 *     pty p = {0};
 *     pty_start(&p, argv, env);
 *     if (pty_expect(&p, "> ", 10)) pty_send(&p, "/quit\r");
 *     int code = pty_end(&p, 10);
 */
#ifndef SHEAF_TESTS_CLI_PTY_H
#define SHEAF_TESTS_CLI_PTY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PTY_SEEN_BYTES (1u << 20)

typedef struct pty {
    pid_t pid; /* 0: none */
    int fd;
    bool at_end;
    size_t n;    /* bytes seen */
    size_t mark; /* those before it have been expected */
    char seen[PTY_SEEN_BYTES + 1];
} pty;

/* Starts argv[0] as the leader of a session whose terminal it is; `env` are settings "NAME=value" on
 * top of the environment, up to a null. */
bool pty_start(pty *p, char *const argv[], const char *const env[]);

void pty_send(pty *p, const char *keys);

/* Waits until `text` has come after what was expected before. False: it did not within the time, or
 * the program ended; what came since is printed to standard error. */
bool pty_expect(pty *p, const char *text, double seconds);

/* Waits until the program takes Ctrl-C for a signal: it edits no line. */
bool pty_expect_signals(pty *p, double seconds);

/* Waits for n bytes more, whatever they are. */
bool pty_expect_bytes(pty *p, size_t n, double seconds);

/* Waits for the program's end. Its exit code; -1: it did not end in time and was killed, or died of a
 * signal. Frees all. */
int pty_end(pty *p, double seconds);

#endif
