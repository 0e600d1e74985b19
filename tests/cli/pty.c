/* tests/cli/pty.c - a program on a pseudo-terminal of its own, typed at and watched. */
#include "cli/pty.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool pty_start(pty *p, char *const argv[], const char *const env[])
{
    const struct winsize size = {.ws_row = 40, .ws_col = 200};
    p->n = p->mark = 0;
    p->at_end = false;
    p->pid = forkpty(&p->fd, NULL, NULL, &size);
    if (p->pid < 0) return false;
    if (p->pid != 0) return true;
    for (; *env != NULL; env++) putenv((char *)(size_t)*env);
    execv(argv[0], argv);
    perror(argv[0]);
    _exit(127);
}

void pty_send(pty *p, const char *keys)
{
    size_t n = strlen(keys);
    while (n != 0) {
        ssize_t written = write(p->fd, keys, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return; /* the next expectation fails */
        keys += written;
        n -= (size_t)written;
    }
}

/* Takes what comes within the time. False: nothing did. A terminal whose program has gone says EIO. */
static bool take(pty *p, double seconds)
{
    struct pollfd waits = {.fd = p->fd, .events = POLLIN};
    if (p->at_end || p->n == PTY_SEEN_BYTES) return false;
    int ready = poll(&waits, 1, seconds < 0 ? 0 : (int)(seconds * 1000) + 1);
    if (ready < 0) return errno == EINTR;
    if (ready == 0) return false;
    ssize_t got = read(p->fd, p->seen + p->n, PTY_SEEN_BYTES - p->n);
    if (got <= 0) {
        p->at_end = true;
        return false;
    }
    for (ssize_t i = 0; i < got; i++, p->n++)
        if (p->seen[p->n] == 0) p->seen[p->n] = '?';
    p->seen[p->n] = 0;
    return true;
}

static bool wait_for(pty *p, const char *text, size_t n_more, double seconds)
{
    double end = now() + seconds;
    for (;;) {
        const char *found = text != NULL ? strstr(p->seen + p->mark, text) : NULL;
        if (found != NULL) p->mark = (size_t)(found - p->seen) + strlen(text);
        if (text == NULL && p->n - p->mark >= n_more) p->mark = p->n, found = p->seen;
        if (found != NULL) return true;
        if (now() < end && !p->at_end) {
            take(p, end - now());
            continue;
        }
        fprintf(stderr, "no \"%s\" within %.0f s, but:\n%s\n", text ? text : "output", seconds,
                p->seen + p->mark);
        return false;
    }
}

bool pty_expect(pty *p, const char *text, double seconds)
{
    p->seen[p->n] = 0;
    return wait_for(p, text, 0, seconds);
}

bool pty_expect_bytes(pty *p, size_t n, double seconds)
{
    return wait_for(p, NULL, n, seconds);
}

bool pty_expect_signals(pty *p, double seconds)
{
    double end = now() + seconds;
    struct termios t;
    while (now() < end && tcgetattr(p->fd, &t) == 0) {
        if ((t.c_lflag & ISIG) != 0) return true;
        take(p, 0.01);
    }
    fprintf(stderr, "the terminal does not send signals\n");
    return false;
}

int pty_end(pty *p, double seconds)
{
    double end = now() + seconds;
    int status = 0;
    while (!p->at_end && now() < end) take(p, end - now());
    if (!p->at_end) kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
    close(p->fd);
    p->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
