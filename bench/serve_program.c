/* bench/serve_program.c - `sheaf serve` of the same build, as a process to be measured. */
#include "serve_program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_FLAGS 32
#define LISTENING "listening on "

/* BUILD/bin/sheaf beside BUILD/bench/bench_serve. */
static bool find_program(char path[PATH_MAX + 16])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n <= 0) return false;
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/../bin/sheaf");
    return true;
}

/* The environment without flags for the server: it runs as the bench says. */
static void forget_flags(void)
{
    char name[128];
    for (char **at = environ; *at != NULL;) {
        size_t n = strcspn(*at, "=");
        if (strncmp(*at, "SHEAF_", 6) != 0 || n >= sizeof name) {
            at++;
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)n, *at);
        if (unsetenv(name) != 0) return;
        at = environ;
    }
}

static _Noreturn void become(const char *path, char *const argv[], int out)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    forget_flags();
    dup2(out, STDOUT_FILENO);
    execv(path, argv);
    fprintf(stderr, "bench_serve: %s: %s\n", path, strerror(errno));
    _exit(127);
}

/* Reads the line that says where it listens. */
static bool read_target(serve_target *target, int out)
{
    char line[256] = "";
    size_t n = 0;
    while (n < sizeof line - 1 && memchr(line, '\n', n) == NULL) {
        ssize_t got = read(out, line + n, sizeof line - 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        n += (size_t)got;
    }
    line[strcspn(line, "\n")] = 0;
    return strncmp(line, LISTENING, strlen(LISTENING)) == 0 &&
           serve_target_parse(target, line + strlen(LISTENING));
}

bool serve_program_start(serve_program *p, const char *const flags[])
{
    static const char *const always[] = {"sheaf", "serve",  "--port",
                                         "0",     "--host", "127.0.0.1"};
    const size_t n_always = sizeof always / sizeof always[0];
    char *argv[MAX_FLAGS + 8] = {NULL}, path[PATH_MAX + 16];
    int out[2];
    *p = (serve_program){0};
    for (size_t i = 0; i < n_always; i++) argv[i] = (char *)(uintptr_t)always[i];
    for (size_t i = 0; i < MAX_FLAGS && flags[i] != NULL; i++)
        argv[n_always + i] = (char *)(uintptr_t)flags[i];
    if (!find_program(path) || pipe2(out, O_CLOEXEC) != 0) return false;
    p->pid = fork();
    if (p->pid == 0) become(path, argv, out[1]);
    close(out[1]);
    bool listens = p->pid > 0 && read_target(&p->target, out[0]);
    close(out[0]);
    return listens;
}

uint64_t serve_program_peak(const serve_program *p)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %llu", &kib) == 1) break;
    if (file != NULL) fclose(file);
    return (uint64_t)kib << 10;
}

bool serve_program_stop(serve_program *p)
{
    int status = -1;
    kill(p->pid, SIGTERM);
    while (waitpid(p->pid, &status, 0) < 0)
        if (errno != EINTR) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
