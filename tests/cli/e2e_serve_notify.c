/* tests/cli/e2e_serve_notify.c - what `sheaf serve` tells a service manager, as systemd would hear it. */
#include "testing.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[PATH_MAX];

/* A manager's socket; `name` begins with @ where it is to be in no file system. */
static int listen_at(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = 40};
    size_t n = strlen(name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && n < sizeof address.sun_path);
    memcpy(address.sun_path, name, n);
    if (name[0] == '@') address.sun_path[0] = 0;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    return fd;
}

static void expect_told(int fd, const char *what)
{
    char text[64];
    ssize_t n = recv(fd, text, sizeof text - 1, 0);
    assert_true(n > 0);
    text[n] = 0;
    assert_string_equal(text, what);
}

static pid_t start(const char *socket_name)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0 ||
        setenv("NOTIFY_SOCKET", socket_name, 1) != 0)
        _exit(126);
    execl(program, "sheaf", "serve", "-m", "models/sheaf-demo", "--port", "0", "--log-level",
          "error", "--kv-cache-budget", "64MiB", (char *)NULL);
    _exit(127);
}

static void is_told_at(const char *name)
{
    int fd = listen_at(name), code = 0;
    pid_t pid = start(name);
    assert_true(pid > 0);
    expect_told(fd, "READY=1");
    assert_int_equal(kill(pid, SIGTERM), 0);
    expect_told(fd, "STOPPING=1");
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    close(fd);
}

static void a_manager_is_told_of_the_start_and_the_end(void **state)
{
    (void)state;
    char name[64];
    snprintf(name, sizeof name, "/tmp/sheaf-test-notify-%d", (int)getpid());
    unlink(name);
    is_told_at(name);
    unlink(name);
}

static void its_socket_may_be_in_no_file_system(void **state)
{
    (void)state;
    char name[64];
    snprintf(name, sizeof name, "@sheaf-test-notify-%d", (int)getpid());
    is_told_at(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manager_is_told_of_the_start_and_the_end),
        cmocka_unit_test(its_socket_may_be_in_no_file_system),
    };
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    char *slash = n > 0 ? memrchr(program, '/', (size_t)n) : NULL;
    if (slash == NULL) return 1;
    strcpy(slash, "/../bin/sheaf"); /* of the same build */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
