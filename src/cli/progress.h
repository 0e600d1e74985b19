/* cli/progress.h - what takes over a second says how far it is, on standard error.
 *
 * On a terminal one line is rewritten and wiped at the end; elsewhere a plain line every ten seconds.
 */
#ifndef SHEAF_CLI_PROGRESS_H
#define SHEAF_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sheaf__progress {
    bool quiet;
    const char *what; /* the work under way, as last reported */
    uint64_t start_ns;
    uint64_t shown_ns; /* when last shown; 0: not shown */
} sheaf__progress;

/* A sheaf__progress_fn: `ctx` is a sheaf__progress. */
void sheaf__progress_report(void *ctx, const char *what, uint64_t done, uint64_t total);

/* Wipes the line, if one is shown. */
void sheaf__progress_end(sheaf__progress *progress);

#endif
