/* cache/wire_fd.c - sinks and sources on file descriptors of any kind. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bits.h"
#include "cache/wire.h"

#define MOST_AT_ONCE (1ull << 30) /* the system takes less than 2 GiB at once */

/* Waits until a descriptor that does not block can go on. False: it never will. */
static bool wait_for(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    do n = poll(&p, 1, -1);
    while (n < 0 && errno == EINTR);
    return n == 1 && (p.revents & POLLNVAL) == 0;
}

/* Whether the operation that has just failed is to be tried again. */
static bool again(int fd, short events)
{
    if (errno == EINTR) return true;
    return (errno == EAGAIN || errno == EWOULDBLOCK) && wait_for(fd, events);
}

/* A socket whose peer has gone says so here, and raises no signal. */
static ssize_t write_some(int fd, const void *data, size_t n)
{
    ssize_t done = send(fd, data, n, MSG_NOSIGNAL);
    return done < 0 && errno == ENOTSOCK ? write(fd, data, n) : done;
}

/* Returns 0, or errno. */
static int write_all(int fd, const void *data, uint64_t n)
{
    const unsigned char *from = data;
    while (n != 0) {
        ssize_t done = write_some(fd, from, sheaf__min_u64(n, MOST_AT_ONCE));
        if (done < 0 && again(fd, POLLOUT)) continue;
        if (done <= 0) return done < 0 && errno != 0 ? errno : EIO;
        from += done;
        n -= (uint64_t)done;
    }
    return 0;
}

static int read_some(int fd, void *data, uint64_t n, uint64_t *n_read)
{
    for (;;) {
        ssize_t done = read(fd, data, sheaf__min_u64(n, MOST_AT_ONCE));
        if (done < 0 && again(fd, POLLIN)) continue;
        if (done < 0) return errno != 0 ? errno : EIO;
        *n_read = (uint64_t)done;
        return 0;
    }
}

/* ---- public ones --------------------------------------------------------------------------- */

static sheaf_status sink_write(void *ctx, const void *data, uint64_t n)
{
    return write_all(*(const int *)ctx, data, n) == 0 ? SHEAF_OK : SHEAF_E_IO;
}

static sheaf_status source_read(void *ctx, void *data, uint64_t n, uint64_t *n_read)
{
    return read_some(*(const int *)ctx, data, n, n_read) == 0 ? SHEAF_OK : SHEAF_E_IO;
}

sheaf_sink sheaf_sink_of_fd(const int *fd)
{
    return (sheaf_sink){(void *)(uintptr_t)fd, sink_write, NULL};
}

sheaf_source sheaf_source_of_fd(const int *fd)
{
    return (sheaf_source){(void *)(uintptr_t)fd, source_read};
}

/* ---- with what the system said ------------------------------------------------------------- */

static sheaf_status file_write(void *ctx, const void *data, uint64_t n)
{
    sheaf__wire_fd *file = ctx;
    file->error = write_all(file->fd, data, n);
    return file->error == 0 ? SHEAF_OK : SHEAF_E_IO;
}

static sheaf_status file_read(void *ctx, void *data, uint64_t n, uint64_t *n_read)
{
    sheaf__wire_fd *file = ctx;
    file->error = read_some(file->fd, data, n, n_read);
    return file->error == 0 ? SHEAF_OK : SHEAF_E_IO;
}

sheaf_sink sheaf__wire_fd_sink(sheaf__wire_fd *file)
{
    return (sheaf_sink){file, file_write, NULL};
}

sheaf_source sheaf__wire_fd_source(sheaf__wire_fd *file)
{
    return (sheaf_source){file, file_read};
}

sheaf_status sheaf_wire_save_fd(sheaf_parked *const *parked, uint32_t n, const sheaf_key *space,
                                int fd, sheaf_error *err)
{
    sheaf__wire_fd file = {fd, 0};
    sheaf_sink sink = sheaf__wire_fd_sink(&file);
    sheaf_status st = sheaf_wire_save(parked, n, space, &sink, err);
    if (file.error != 0)
        return sheaf__error_set(err, st, "writing the stream: %s", strerror(file.error));
    return st;
}

sheaf_status sheaf_wire_load_fd(sheaf_pool *pool, const sheaf_key *space, int fd,
                                sheaf_parked **parked, uint32_t capacity, uint32_t *n,
                                sheaf_error *err)
{
    sheaf__wire_fd file = {fd, 0};
    sheaf_source source = sheaf__wire_fd_source(&file);
    sheaf_status st = sheaf_wire_load(pool, space, &source, parked, capacity, n, err);
    if (file.error != 0)
        return sheaf__error_set(err, st, "reading the stream: %s", strerror(file.error));
    return st;
}
