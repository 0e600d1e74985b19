/* base/available.h - how much memory this process may still take.
 *
 * Owns: what the system says of the machine (/proc/meminfo) and of the control groups that the process
 * is in, of both versions. Does not own: what the memory is for. Linux alone.
 */
#ifndef SHEAF_BASE_AVAILABLE_H
#define SHEAF_BASE_AVAILABLE_H

#include "sheaf/status.h"

typedef struct sheaf__available {
    uint64_t bytes;         /* the least of what follows */
    uint64_t machine_bytes; /* without swapping: page cache that can be given back counts */
    uint64_t
        group_bytes; /* of the control group with the least room left; UINT64_MAX: no limit */
} sheaf__available;

/* root: where the file system begins, "" for the system's own. A group's limits (memory.max and
 * memory.high, or memory.limit_in_bytes) bind all groups in it, so they are looked for from the process's
 * group up; of what a group uses, file pages count as given back. SHEAF_E_IO: the machine does not say;
 * what is said of groups and cannot be read is no limit. */
sheaf_status sheaf__available_read(const char *root, sheaf__available *out, sheaf_error *err);

#endif
