/* model/remember.c - a digest kept beside the inodes and times of the files it was made of.
 *
 * The file is named after the files' devices and inodes, so that a model that changes in place
 * replaces its own. It is written under one fixed name beside it and renamed. What has that name
 * before, a killed writer's or another kind of file, is removed and never opened. Of two writers that
 * meet there one may put the other's part into place: both write the same bytes, and a reader that
 * sees a part of them finds that the sum does not match.
 */
#include "model/remember.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"

#define HEX_BYTES   (2 * SHEAF__SHA256_BYTES)
#define HEADING     "sheaf model digest 1\nfiles "
#define TEXT_BYTES  (sizeof HEADING - 1 + HEX_BYTES + sizeof "\ndigest \n" - 1 + HEX_BYTES)
#define WHOLE_BYTES (TEXT_BYTES + sizeof "sum \n" - 1 + HEX_BYTES)

/* Ticks of the clocks that files are stamped with: 10 ms at most on Linux; two seconds on file systems
 * that keep no parts of a second. */
#define FINE_TICK_NS   20000000
#define COARSE_TICK_NS 2000000000

#ifdef __APPLE__
#    define MTIME(st) ((st).st_mtimespec)
#    define CTIME(st) ((st).st_ctimespec)
#else
#    define MTIME(st) ((st).st_mtim)
#    define CTIME(st) ((st).st_ctim)
#endif

/* ---- stamps ------------------------------------------------------------------------------ */

sheaf_status sheaf__stamp_begin(sheaf__stamp *stamp)
{
    *stamp = (sheaf__stamp){.settled = true};
    SHEAF__TRY(sheaf__sha256_begin(&stamp->places));
    sheaf_status status = sheaf__sha256_begin(&stamp->states);
    if (status == SHEAF_OK) return SHEAF_OK;
    sheaf_status ended = sheaf__sha256_end(&stamp->places, stamp->place);
    (void)ended; /* nothing of it is wanted */
    return status;
}

/* Whether the time is so long ago that what happens now gets another. */
static bool is_past(struct timespec then)
{
    struct timespec now = {0};
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return false;
    int64_t seconds = (int64_t)now.tv_sec - then.tv_sec;
    if (seconds < 0 || seconds > 1000) return seconds > 0;
    int64_t ago = seconds * 1000000000 + now.tv_nsec - then.tv_nsec;
    return ago > (then.tv_nsec == 0 ? COARSE_TICK_NS : FINE_TICK_NS);
}

sheaf_status sheaf__stamp_add(sheaf__stamp *stamp, const char *path, sheaf_error *err)
{
    struct stat st;
    char shown[SHEAF__BRIEF];
    if (stat(path, &st) != 0)
        return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", sheaf__path_show(path, shown),
                                strerror(errno));
    const int64_t place[] = {(int64_t)st.st_dev, (int64_t)st.st_ino};
    const int64_t state[] = {(int64_t)st.st_size, MTIME(st).tv_sec, MTIME(st).tv_nsec,
                             CTIME(st).tv_sec, CTIME(st).tv_nsec};
    sheaf__sha256_add(&stamp->places, place, sizeof place);
    sheaf__sha256_add(&stamp->states, place, sizeof place);
    sheaf__sha256_add(&stamp->states, state, sizeof state);
    stamp->bytes += (uint64_t)st.st_size;
    if (!is_past(MTIME(st)) || !is_past(CTIME(st))) stamp->settled = false;
    return SHEAF_OK;
}

sheaf_status sheaf__stamp_end(sheaf__stamp *stamp)
{
    sheaf_status places = sheaf__sha256_end(&stamp->places, stamp->place);
    sheaf_status states = sheaf__sha256_end(&stamp->states, stamp->state);
    return places != SHEAF_OK ? places : states;
}

/* ---- the file ---------------------------------------------------------------------------- */

/* Writes 64 digits and a zero byte. */
static void write_hex(const unsigned char bytes[SHEAF__SHA256_BYTES], char *text)
{
    for (int i = 0; i < SHEAF__SHA256_BYTES; i++) sprintf(text + 2 * i, "%02x", bytes[i]);
}

static bool read_hex(const char *text, unsigned char bytes[SHEAF__SHA256_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < SHEAF__SHA256_BYTES; i++) {
        const char *high = memchr(digits, text[2 * i], 16);
        const char *low = memchr(digits, text[2 * i + 1], 16);
        if (high == NULL || low == NULL) return false;
        bytes[i] = (unsigned char)((high - digits) << 4 | (low - digits));
    }
    return true;
}

/* The text of a digest, WHOLE_BYTES and a zero byte: heading, files, digest, and a sum over all that
 * stands before it. */
static bool write_text(const sheaf__stamp *stamp,
                       const unsigned char digest[SHEAF__SHA256_BYTES],
                       char text[static WHOLE_BYTES + 1])
{
    char files[HEX_BYTES + 1], shown[HEX_BYTES + 1], checked[HEX_BYTES + 1];
    unsigned char sum[SHEAF__SHA256_BYTES];
    write_hex(stamp->state, files);
    write_hex(digest, shown);
    int n = snprintf(text, WHOLE_BYTES + 1, HEADING "%s\ndigest %s\n", files, shown);
    SHEAF__ASSERT(n == (int)TEXT_BYTES);
    if (sheaf__sha256_of(text, (uint64_t)n, sum) != SHEAF_OK) return false;
    write_hex(sum, checked);
    snprintf(text + n, WHOLE_BYTES + 1 - (size_t)n, "sum %s\n", checked);
    return true;
}

/* `directory` as the caller or the environment names it. False: there is none. */
static bool name_directory(const char *dir, char path[static PATH_MAX], bool make)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char parent[PATH_MAX];
    int n;
    if (dir != NULL) return snprintf(path, PATH_MAX, "%s", dir) < PATH_MAX;
    if (base != NULL && base[0] == '/') /* a relative one is to be ignored, says its standard */
        n = snprintf(parent, sizeof parent, "%s", base);
    else if (home != NULL && home[0] == '/')
        n = snprintf(parent, sizeof parent, "%s/.cache", home);
    else
        return false;
    if (n >= PATH_MAX || snprintf(path, PATH_MAX, "%s/sheaf", parent) >= PATH_MAX) return false;
    if (make && mkdir(parent, 0700) != 0 && errno != EEXIST) return false;
    return !make || mkdir(path, 0700) == 0 || errno == EEXIST;
}

/* DIRECTORY/model-PLACE and a suffix. */
static bool name_file(const char *directory, const sheaf__stamp *stamp, const char *suffix,
                      char path[static PATH_MAX])
{
    char place[HEX_BYTES + 1];
    write_hex(stamp->place, place);
    return snprintf(path, PATH_MAX, "%s/model-%.32s%s", directory, place, suffix) < PATH_MAX;
}

/* Reads a file of exactly WHOLE_BYTES that is this user's alone to write. */
static bool read_file(const char *path, char text[static WHOLE_BYTES])
{
    char beyond;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return false;
    bool good = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
                (st.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
                read(fd, text, WHOLE_BYTES) == (ssize_t)WHOLE_BYTES &&
                read(fd, &beyond, 1) == 0;
    close(fd);
    return good;
}

bool sheaf__remember_find(const char *dir, const sheaf__stamp *stamp,
                          unsigned char digest[SHEAF__SHA256_BYTES])
{
    char directory[PATH_MAX], path[PATH_MAX], found[WHOLE_BYTES], wanted[WHOLE_BYTES + 1];
    unsigned char held[SHEAF__SHA256_BYTES];
    if (!name_directory(dir, directory, false) || !name_file(directory, stamp, "", path))
        return false;
    if (!read_file(path, found)) return false;
    if (!read_hex(found + TEXT_BYTES - 1 - HEX_BYTES, held)) return false;
    if (!write_text(stamp, held, wanted) || memcmp(found, wanted, WHOLE_BYTES) != 0)
        return false;
    memcpy(digest, held, sizeof held);
    return true;
}

void sheaf__remember_store(const char *dir, const sheaf__stamp *stamp,
                           const unsigned char digest[SHEAF__SHA256_BYTES])
{
    char directory[PATH_MAX], path[PATH_MAX], beside[PATH_MAX], text[WHOLE_BYTES + 1];
    if (!stamp->settled || !write_text(stamp, digest, text)) return;
    if (!name_directory(dir, directory, true) || !name_file(directory, stamp, "", path) ||
        !name_file(directory, stamp, ".new", beside))
        return;
    (void)unlink(beside);
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    bool written = write(fd, text, WHOLE_BYTES) == (ssize_t)WHOLE_BYTES;
    if (close(fd) != 0) written = false;
    if (!written || rename(beside, path) != 0) (void)unlink(beside);
}
