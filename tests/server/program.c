/* server/program.c - the real `sheaf serve`, as a process of its own. */
#include "server/program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_FLAGS   32
#define LISTENING   "listening on http://127.0.0.1:"
#define PATIENCE_NS 60000000000ull
#define MOMENT_US   2000

/* The program beside the folder of this one: BUILD/tests/NAME. */
static const char *find_program(void)
{
    static char path[PATH_MAX + 16];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    assert_true(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/../bin/sheaf");
    return path;
}

static _Noreturn void become(const char *path, char *const argv[], int out, int log)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC); /* whatever this test was given */
    dup2(nothing, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(path, argv);
    _exit(127);
}

/* Reads the line that says where it listens. */
static uint16_t read_port(const program *p, int out)
{
    char line[256] = "";
    size_t n = 0;
    while (n < sizeof line - 1 && strchr(line, '\n') == NULL) {
        ssize_t got = read(out, line + n, sizeof line - 1 - n);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
        line[n] = 0;
    }
    if (strncmp(line, LISTENING, strlen(LISTENING)) != 0)
        fail_msg("it does not listen: %s", program_log(p));
    return (uint16_t)strtoul(line + strlen(LISTENING), NULL, 10);
}

void program_start(program *p, const char *const flags[])
{
    char *argv[MAX_FLAGS + 8] = {(char[]){"sheaf"}, (char[]){"serve"},  (char[]){"--port"},
                                 (char[]){"0"},     (char[]){"--host"}, (char[]){"127.0.0.1"}};
    const char *path = find_program();
    int out[2];
    for (int i = 0; flags[i] != NULL; i++) {
        assert_true(i < MAX_FLAGS);
        argv[6 + i] = (char *)(uintptr_t)flags[i];
    }
    FILE *file = tmpfile();
    assert_non_null(file);
    *p = (program){.log = fcntl(fileno(file), F_DUPFD_CLOEXEC, 0)};
    fclose(file);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    p->pid = fork();
    if (p->pid == 0) become(path, argv, out[1], p->log);
    close(out[1]);
    assert_true(p->pid > 0);
    p->net.port = read_port(p, out[0]);
    close(out[0]);
}

void program_stop(program *p)
{
    int status = -1;
    kill(p->pid, SIGTERM);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("it ended with 0x%x: %s", (unsigned)status, program_log(p));
    close(p->log);
    *p = (program){0};
}

char *program_log(const program *p)
{
    struct stat file; /* no seeking: the place is the program's too */
    assert_int_equal(fstat(p->log, &file), 0);
    char *text = calloc((size_t)file.st_size + 1, 1);
    assert_non_null(text);
    assert_int_equal(pread(p->log, text, (size_t)file.st_size, 0), file.st_size);
    return text;
}

int64_t program_figure(const program *p, const char *path)
{
    json_t *stats = serving_get(&p->net, "/v1/cache/stats", 200);
    int64_t value = number_at(stats, path);
    json_decref(stats);
    return value;
}

void program_idle(const program *p)
{
    for (uint64_t start = sheaf__clock_ns();;) {
        json_t *stats = serving_get(&p->net, "/v1/cache/stats", 200);
        int64_t busy =
            number_at(stats, "requests_running") + number_at(stats, "requests_waiting");
        int64_t replies = number_at(stats, "exchanges") - 1; /* this one */
        json_decref(stats);
        if (busy == 0 && replies == 0) return;
        if (sheaf__clock_ns() - start > PATIENCE_NS)
            fail_msg("%lld requests are there, and %lld replies are not whole", (long long)busy,
                     (long long)replies);
        usleep(MOMENT_US);
    }
}

uint64_t program_memory(const program *p, const char *line)
{
    char path[64], text[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(text, sizeof text, file) != NULL)
        if (strncmp(text, line, strlen(line)) == 0)
            kib = strtoull(text + strlen(line), NULL, 10);
    fclose(file);
    assert_true(kib > 0);
    return kib << 10;
}

bool program_forget_peak(const program *p)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/clear_refs", (int)p->pid);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0) close(fd);
    return done;
}
