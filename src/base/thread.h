/* base/thread.h - a group of threads that share out the tasks of one job.
 *
 * The calling thread works too. Tasks are dealt one by one from a counter, so results must not
 * depend on who runs which: all arithmetic in Sheaf is defined per task. Idle workers spin briefly,
 * then sleep. A worker that wakes late finds the job closed and does not delay it.
 */
#ifndef SHEAF_BASE_THREAD_H
#define SHEAF_BASE_THREAD_H

#include "sheaf/status.h"

/* One task. thread: 0 (the caller) to count - 1, for per-thread scratch memory. */
typedef void sheaf__task_fn(void *arg, uint32_t task, uint32_t thread);

/* Runs fn(arg, 0 .. n_tasks - 1, ...) and returns when all are done, in the default floating-point
 * environment. `threads` null: the calling thread alone. One call at a time per group. */
void sheaf__threads_run(sheaf_threads *threads, sheaf__task_fn *fn, void *arg,
                        uint32_t n_tasks);

#endif
