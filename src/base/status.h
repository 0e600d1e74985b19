/* base/status.h - filling error sentences, and the assertion levels.
 *
 * SHEAF_CHECK 0: none. 1: cheap assertions. 2: also the whole-state checks after every public call,
 * and poisoning of freed memory. They assert the library's own bugs only; what files, the network
 * or users hand in is validated and answered.
 */
#ifndef SHEAF_BASE_STATUS_H
#define SHEAF_BASE_STATUS_H

#include <assert.h>

#include "sheaf/status.h"

#ifndef SHEAF_CHECK
#    define SHEAF_CHECK 0
#endif

#ifdef __cplusplus
extern "C" { /* kernels */
#endif

#if SHEAF_CHECK >= 1
#    define SHEAF__ASSERT(condition)                                                           \
        sheaf__assert(!!(condition), #condition, __FILE__, __LINE__)
#else
#    define SHEAF__ASSERT(condition) ((void)sizeof(condition))
#endif

/* Stops a checking build at a broken invariant; never called by release builds. */
void sheaf__assert(int holds, const char *what, const char *file, int line);

/* Writes the sentence to `err` (may be null) and returns `status`, so that a caller can say
 * `return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: ...", path)`. */
sheaf_status sheaf__error_set(sheaf_error *err, sheaf_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns `status` from the calling function unless it is SHEAF_OK. */
#define SHEAF__TRY(expression)                                                                 \
    do {                                                                                       \
        sheaf_status try_status_ = (expression);                                               \
        if (try_status_ != SHEAF_OK) return try_status_;                                       \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
