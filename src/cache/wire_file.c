/* cache/wire_file.c - streams in files: the old file or the new one, never a part.
 *
 *     NAME.sheaf-abcdef   created, locked, written, synchronised
 *         rename       -> NAME
 *     folder              synchronised
 *
 * A lock (flock) on what is being written tells an attempt at work from the remains of one that was
 * killed, since the system drops it with the process. Between creating and locking another attempt may
 * take the file for a remain and remove it; so whoever has the lock looks whether the file still has
 * its name. Where the file system has no such locks, nothing is locked and nothing swept.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/wire.h"

#define MARK     ".sheaf-"
#define LETTERS  6
#define ATTEMPTS 64
#define SHOWN    140 /* of a path in a sentence: its end, and room for the reason */

/* Where a file is to be. */
typedef struct target {
    const char *path; /* as the caller says */
    const char *name; /* its last part */
    int folder;
    int fd; /* of the temporary file; -1: none */
    char temporary[NAME_MAX + 1];
} target;

/* A path as a sentence has room for it. */
static const char *shown(const char *path)
{
    size_t n = strlen(path);
    return n > SHOWN ? path + n - SHOWN : path;
}

static sheaf_status failed(const target *t, const char *what, sheaf_error *err)
{
    return sheaf__error_set(err, SHEAF_E_IO, "%s: %s: %s", shown(t->path), what,
                            strerror(errno));
}

/* ---- temporary files ----------------------------------------------------------------------- */

/* Opens the folder of the path and looks at what is there: a regular file or nothing. A symbolic link
 * would be replaced, not followed: so it is refused. */
static sheaf_status open_folder(target *t, const char *path, sheaf_error *err)
{
    *t = (target){.path = path, .name = path, .folder = -1, .fd = -1};
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX] = ".";
    if (slash != NULL) {
        size_t length = slash == path ? 1 : (size_t)(slash - path);
        if (length >= sizeof folder)
            return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", shown(path),
                                    strerror(ENAMETOOLONG));
        memcpy(folder, path, length);
        folder[length] = 0;
        t->name = slash + 1;
    }
    if (strlen(t->name) > NAME_MAX - (sizeof MARK - 1) - LETTERS)
        return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", shown(path), strerror(ENAMETOOLONG));
    t->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->folder < 0) return failed(t, "its folder", err);
    struct stat st;
    bool there = fstatat(t->folder, t->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (*t->name == 0 || (there && !S_ISREG(st.st_mode)))
        return sheaf__error_set(err, SHEAF_E_IO, "%s: not a regular file", shown(path));
    return SHEAF_OK;
}

/* Whether a name in the folder is a temporary one of the target's. */
static bool is_temporary(const target *t, const char *name)
{
    size_t length = strlen(t->name);
    if (strncmp(name, t->name, length) != 0) return false;
    if (strncmp(name + length, MARK, sizeof MARK - 1) != 0) return false;
    const char *letters = name + length + sizeof MARK - 1;
    return strlen(letters) == LETTERS && strspn(letters, "abcdefghijklmnop") == LETTERS;
}

/* Removes a temporary file that nobody is writing. */
static void sweep_one(const target *t, const char *name)
{
    int fd = openat(t->folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(t->folder, name, 0);
    close(fd);
}

static void sweep(const target *t)
{
    int fd = openat(t->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (folder == NULL) {
        if (fd >= 0) close(fd);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (is_temporary(t, entry->d_name)) sweep_one(t, entry->d_name);
    closedir(folder);
}

/* Tries one name. True: it is made, locked and still there. Else errno says why, EEXIST: taken. */
static bool create_one(target *t, uint64_t random)
{
    int length = snprintf(t->temporary, sizeof t->temporary, "%s" MARK, t->name);
    for (int i = 0; i < LETTERS; i++, random >>= 4)
        t->temporary[length + i] = (char)('a' + (random & 15));
    t->temporary[length + LETTERS] = 0;
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    t->fd = openat(t->folder, t->temporary, flags, 0600);
    if (t->fd < 0) return false;
    struct stat st;
    bool swept = flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!swept && fstat(t->fd, &st) == 0 && st.st_nlink != 0) return true;
    close(t->fd);
    t->fd = -1;
    errno = EEXIST;
    return false;
}

static sheaf_status create_temporary(target *t, sheaf_error *err)
{
    uint64_t random = sheaf__clock_ns() ^ (uint64_t)getpid() << 32;
    for (int i = 0; i < ATTEMPTS; i++) {
        random = sheaf__hash64(&random, sizeof random, (uint64_t)(uintptr_t)t);
        if (create_one(t, random)) return SHEAF_OK;
        if (errno != EEXIST) break;
    }
    return failed(t, "a new file beside it", err);
}

/* ---- saving -------------------------------------------------------------------------------- */

/* Puts the whole temporary file into place. */
static sheaf_status settle(target *t, sheaf_error *err)
{
    if (fsync(t->fd) != 0) return failed(t, "synchronising", err);
    if (renameat(t->folder, t->temporary, t->folder, t->name) != 0)
        return failed(t, "putting it into place", err);
    t->temporary[0] = 0;
    /* some file systems do not synchronise folders and say so */
    if (fsync(t->folder) != 0 && errno != EINVAL && errno != ENOTSUP)
        return failed(t, "synchronising its folder", err);
    return SHEAF_OK;
}

static void close_target(const target *t)
{
    if (t->fd >= 0 && t->temporary[0] != 0) unlinkat(t->folder, t->temporary, 0);
    if (t->fd >= 0) close(t->fd);
    if (t->folder >= 0) close(t->folder);
}

/* Puts the path before a sentence about a stream. */
static sheaf_status about(const char *path, const sheaf__wire_fd *file, sheaf_status st,
                          const sheaf_error *inner, sheaf_error *err)
{
    const char *what = file->error != 0 ? strerror(file->error) : inner->text;
    return sheaf__error_set(err, st, "%s: %s", shown(path), what);
}

static sheaf_status save(target *t, sheaf_parked *const *parked, uint32_t n,
                         const sheaf_key *space, sheaf_error *err)
{
    sweep(t);
    SHEAF__TRY(create_temporary(t, err));
    sheaf__wire_fd file = {t->fd, 0};
    sheaf_sink sink = sheaf__wire_fd_sink(&file);
    sheaf_error inner = {0};
    sheaf_status st = sheaf_wire_save(parked, n, space, &sink, &inner);
    if (st != SHEAF_OK) return about(t->path, &file, st, &inner, err);
    return settle(t, err);
}

sheaf_status sheaf_wire_save_file(sheaf_parked *const *parked, uint32_t n,
                                  const sheaf_key *space, const char *path, sheaf_error *err)
{
    if (path == NULL) return sheaf__error_set(err, SHEAF_E_INVALID, "no file is named");
    target t;
    sheaf_status st = open_folder(&t, path, err);
    if (st == SHEAF_OK) st = save(&t, parked, n, space, err);
    close_target(&t);
    return st;
}

/* ---- loading ------------------------------------------------------------------------------- */

/* Opens a regular file and tells its size. */
static sheaf_status open_file(const char *path, int *fd, uint64_t *n_bytes, sheaf_error *err)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not hold us up */
    if (file < 0)
        return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", shown(path), strerror(errno));
    struct stat st;
    sheaf_status status = SHEAF_OK;
    if (fstat(file, &st) != 0)
        status = sheaf__error_set(err, SHEAF_E_IO, "%s: %s", shown(path), strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = sheaf__error_set(err, SHEAF_E_IO, "%s: not a regular file", shown(path));
    else if (st.st_size == 0)
        status = sheaf__error_set(err, SHEAF_E_FORMAT, "%s: the file is empty", shown(path));
    if (status != SHEAF_OK) {
        close(file);
        return status;
    }
    *fd = file;
    *n_bytes = (uint64_t)st.st_size;
    return SHEAF_OK;
}

sheaf_status sheaf_wire_load_file(sheaf_pool *pool, const sheaf_key *space, const char *path,
                                  sheaf_parked **parked, uint32_t capacity, uint32_t *n,
                                  sheaf_error *err)
{
    if (pool == NULL || path == NULL || parked == NULL || capacity == 0 || n == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "nothing to load from, or nowhere to");
    sheaf__wire_fd file = {-1, 0};
    uint64_t n_bytes = 0;
    SHEAF__TRY(open_file(path, &file.fd, &n_bytes, err));
    sheaf_source source = sheaf__wire_fd_source(&file);
    const sheaf__wire_places places = {parked, capacity, n};
    sheaf_error inner = {0};
    sheaf_status st = sheaf__wire_load(pool, space, &source, n_bytes, &places, &inner);
    close(file.fd);
    return st == SHEAF_OK ? st : about(path, &file, st, &inner, err);
}
