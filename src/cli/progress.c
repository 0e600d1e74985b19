/* cli/progress.c - what takes over a second says how far it is, on standard error. */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define FIRST_AFTER_NS   1000000000u
#define TERMINAL_STEP_NS 100000000u
#define PLAIN_STEP_NS    10000000000u

void sheaf__progress_report(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    sheaf__progress *progress = ctx;
    if (progress->quiet) return;
    uint64_t now = sheaf__clock_ns();
    if (progress->what == NULL || strcmp(progress->what, what) != 0) {
        sheaf__progress_end(progress);
        progress->what = what;
        progress->start_ns = now;
    }
    if (done >= total) {
        sheaf__progress_end(progress);
        return;
    }
    bool terminal = isatty(STDERR_FILENO);
    uint64_t step = terminal ? TERMINAL_STEP_NS : PLAIN_STEP_NS;
    if (now - progress->start_ns < FIRST_AFTER_NS) return;
    if (progress->shown_ns != 0 && now - progress->shown_ns < step) return;
    progress->shown_ns = now;
    double share = 100.0 * (double)done / (double)total;
    fprintf(stderr, terminal ? "\r%s %.0f%% \033[K" : "%s %.0f%%\n", what, share);
    fflush(stderr);
}

void sheaf__progress_end(sheaf__progress *progress)
{
    if (progress->shown_ns != 0 && isatty(STDERR_FILENO)) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    progress->shown_ns = 0;
    progress->what = NULL;
}
