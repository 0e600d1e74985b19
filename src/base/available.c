/* base/available.c - how much memory this process may still take.
 *
 * /proc/self/cgroup has a line a hierarchy, "number:controllers:path": version 2 has no controllers and
 * lies at /sys/fs/cgroup, version 1 has "memory" among them and lies at /sys/fs/cgroup/memory. In a
 * container the path may be the host's, where only its last parts or none exist: folders that are not
 * there have no limits, and the walk ends at the hierarchy's top, which is then the container's own.
 */
#include "base/available.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/status.h"

#define NO_LIMIT UINT64_MAX

/* The names of one version's files. */
typedef struct hierarchy {
    const char *top;
    const char *limits[2]; /* the second may be null */
    const char *usage;
    const char *reclaimable[2]; /* lines of memory.stat */
} hierarchy;

static const hierarchy version_1 = {"/sys/fs/cgroup/memory",
                                    {"memory.limit_in_bytes", NULL},
                                    "memory.usage_in_bytes",
                                    {"total_inactive_file ", "total_active_file "}};
static const hierarchy version_2 = {"/sys/fs/cgroup",
                                    {"memory.max", "memory.high"},
                                    "memory.current",
                                    {"inactive_file ", "active_file "}};

/* Reads a small file whole, zero-terminated. False: it cannot be read. */
static bool read_text(const char *root, const char *path, char *out, size_t capacity)
{
    char name[PATH_MAX];
    if (snprintf(name, sizeof name, "%s%s", root, path) >= (int)sizeof name) return false;
    FILE *file = fopen(name, "re");
    if (file == NULL) return false;
    size_t n = fread(out, 1, capacity - 1, file);
    bool whole = ferror(file) == 0;
    out[n] = 0;
    fclose(file);
    return whole;
}

/* The number after `key` at the beginning of a line; `missing` where there is none. */
static uint64_t value_of(const char *text, const char *key, uint64_t missing)
{
    size_t n = strlen(key);
    for (const char *line = text; line != NULL && *line != 0;) {
        if (strncmp(line, key, n) == 0) {
            char *end = NULL;
            unsigned long long value = strtoull(line + n, &end, 10);
            return end == line + n ? missing : (uint64_t)value;
        }
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return missing;
}

static uint64_t number_in(const char *root, const char *folder, const char *file,
                          uint64_t missing)
{
    char path[PATH_MAX], text[64];
    if (snprintf(path, sizeof path, "%s/%s", folder, file) >= (int)sizeof path) return missing;
    return read_text(root, path, text, sizeof text) ? value_of(text, "", missing) : missing;
}

/* What a group has left; its own limits alone. */
static uint64_t room_of(const char *root, const hierarchy *h, const char *folder)
{
    char path[PATH_MAX], stat[8192];
    uint64_t limit = NO_LIMIT, given_back = 0;
    for (int i = 0; i < 2 && h->limits[i] != NULL; i++)
        limit = sheaf__min_u64(limit, number_in(root, folder, h->limits[i], NO_LIMIT));
    if (limit >= INT64_MAX / 2)
        return NO_LIMIT; /* version 1 says so: the largest page-aligned */
    uint64_t used = number_in(root, folder, h->usage, 0);
    snprintf(path, sizeof path, "%.*s/memory.stat", PATH_MAX - 16, folder);
    if (read_text(root, path, stat, sizeof stat))
        for (int i = 0; i < 2; i++) given_back += value_of(stat, h->reclaimable[i], 0);
    used -= sheaf__min_u64(used, given_back);
    return limit - sheaf__min_u64(limit, used);
}

/* From the group at `path` to the top. */
static uint64_t walk_up(const char *root, const hierarchy *h, const char *path)
{
    char folder[PATH_MAX];
    uint64_t least = NO_LIMIT;
    size_t top = strlen(h->top);
    if (strstr(path, "/..") != NULL) path = ""; /* beyond what this namespace shows */
    if (snprintf(folder, sizeof folder, "%s%s", h->top, path) >= (int)sizeof folder)
        return NO_LIMIT;
    for (;;) {
        least = sheaf__min_u64(least, room_of(root, h, folder));
        char *slash = strrchr(folder, '/');
        if (slash < folder + top) return least;
        *slash = 0;
    }
}

/* Whether `name` is among "a,b,c". */
static bool is_among(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, name, n) == 0 && (at[n] == 0 || at[n] == ',')) return true;
    }
    return false;
}

static uint64_t room_of_groups(const char *root)
{
    char text[8192], *save = NULL;
    uint64_t least = NO_LIMIT;
    if (!read_text(root, "/proc/self/cgroup", text, sizeof text)) return NO_LIMIT;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL) continue;
        *path++ = 0;
        controllers++;
        if (*controllers == 0)
            least = sheaf__min_u64(least, walk_up(root, &version_2, path));
        else if (is_among(controllers, "memory"))
            least = sheaf__min_u64(least, walk_up(root, &version_1, path));
    }
    return least;
}

sheaf_status sheaf__available_read(const char *root, sheaf__available *out, sheaf_error *err)
{
    char text[8192];
    uint64_t kib = NO_LIMIT;
    if (read_text(root, "/proc/meminfo", text, sizeof text))
        kib = value_of(text, "MemAvailable:", NO_LIMIT);
    if (kib >= NO_LIMIT >> 10)
        return sheaf__error_set(err, SHEAF_E_IO,
                                "/proc/meminfo does not say how much memory is available");
    sheaf__available a = {.machine_bytes = kib << 10, .group_bytes = room_of_groups(root)};
    a.bytes = sheaf__min_u64(a.machine_bytes, a.group_bytes);
    *out = a;
    return SHEAF_OK;
}
