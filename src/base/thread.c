/* base/thread.c - a group of threads that share out the tasks of one job.
 *
 * State of a job, all in atomics that carry their own ordering:
 *
 *   open    number of the job that may be joined; 0 between jobs
 *   joined  workers that may be touching the job's fields
 *   next    the next task to deal
 *
 * A worker first counts itself into `joined`, then looks at `open` again: if the job is still open
 * its fields are valid until the worker counts itself out. The caller closes the job and waits
 * for joined == 0 before it touches the fields. Both sides write one variable and then read the
 * other, so these four accesses are sequentially consistent.
 */
#include "base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/fpenv.h"
#include "base/status.h"

#define MAX_THREADS 256
#define SPINS_BEFORE_SLEEP                                                                     \
    4000 /* some tens of microseconds: longer than a gap between layers */
#define SPINS_BEFORE_YIELD 200

struct sheaf_threads {
    uint32_t n_threads;
    sheaf__task_fn *fn;
    void *arg;
    uint32_t n_tasks;
    uint32_t job;
    _Atomic uint32_t open;
    _Atomic uint32_t joined;
    _Atomic uint32_t next;
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct worker {
        pthread_t thread;
        sheaf_threads *group;
        uint32_t index;
    } workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

static void run_tasks(sheaf_threads *group, uint32_t thread)
{
    uint64_t saved = sheaf__fpenv_enter();
    for (;;) {
        uint32_t task = atomic_fetch_add_explicit(&group->next, 1, memory_order_relaxed);
        if (task >= group->n_tasks) break;
        group->fn(group->arg, task, thread);
    }
    sheaf__fpenv_leave(saved);
}

/* Waits until another job than `last` is open, or the group stops. Returns its number, or 0. */
static uint32_t await_job(sheaf_threads *group, uint32_t last)
{
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; spin++) {
        uint32_t open = atomic_load_explicit(&group->open, memory_order_acquire);
        if (open != 0 && open != last) return open;
        if (atomic_load_explicit(&group->stop, memory_order_relaxed)) return 0;
        relax();
    }
    uint32_t open = 0;
    pthread_mutex_lock(&group->mutex);
    atomic_fetch_add(&group->sleepers, 1);
    for (;;) {
        open = atomic_load(&group->open);
        if (open == last) open = 0;
        if (open != 0 || atomic_load(&group->stop)) break;
        pthread_cond_wait(&group->wake, &group->mutex);
    }
    atomic_fetch_sub(&group->sleepers, 1);
    pthread_mutex_unlock(&group->mutex);
    return open;
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    sheaf_threads *group = self->group;
    uint32_t last = 0, job;
    while ((job = await_job(group, last)) != 0) {
        atomic_fetch_add(&group->joined, 1);
        if (atomic_load(&group->open) == job) {
            run_tasks(group, self->index);
            last = job;
        }
        atomic_fetch_sub_explicit(&group->joined, 1, memory_order_release);
    }
    return NULL;
}

static void wake_all(sheaf_threads *group)
{
    pthread_mutex_lock(&group->mutex);
    pthread_cond_broadcast(&group->wake);
    pthread_mutex_unlock(&group->mutex);
}

void sheaf__threads_run(sheaf_threads *group, sheaf__task_fn *fn, void *arg, uint32_t n_tasks)
{
    if (n_tasks == 0) return;
    if (group == NULL || group->n_threads == 1 || n_tasks == 1) {
        uint64_t saved = sheaf__fpenv_enter();
        for (uint32_t task = 0; task < n_tasks; task++) fn(arg, task, 0);
        sheaf__fpenv_leave(saved);
        return;
    }
    group->fn = fn;
    group->arg = arg;
    group->n_tasks = n_tasks;
    atomic_store_explicit(&group->next, 0, memory_order_relaxed);
    group->job = group->job == UINT32_MAX ? 1 : group->job + 1;
    atomic_store(&group->open, group->job);
    if (atomic_load(&group->sleepers) != 0) wake_all(group);
    run_tasks(group, 0);
    atomic_store(&group->open, 0);
    for (uint32_t spin = 0; atomic_load(&group->joined) != 0; spin++) {
        if (spin < SPINS_BEFORE_YIELD)
            relax();
        else
            sched_yield();
    }
}

static void stop_workers(sheaf_threads *group, uint32_t n_started)
{
    atomic_store(&group->stop, true);
    wake_all(group);
    for (uint32_t i = 0; i < n_started; i++) pthread_join(group->workers[i].thread, NULL);
    pthread_cond_destroy(&group->wake);
    pthread_mutex_destroy(&group->mutex);
    free(group);
}

sheaf_status sheaf_threads_create(uint32_t n_threads, sheaf_threads **out)
{
    if (out == NULL || n_threads > MAX_THREADS) return SHEAF_E_INVALID;
    if (n_threads == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n_threads = online < 1 ? 1 : online > MAX_THREADS ? MAX_THREADS : (uint32_t)online;
    }
    uint32_t n_workers = n_threads - 1;
    sheaf_threads *group = calloc(1, sizeof *group + n_workers * sizeof group->workers[0]);
    if (group == NULL) return SHEAF_E_NO_MEMORY;
    group->n_threads = n_threads;
    if (pthread_mutex_init(&group->mutex, NULL) != 0) {
        free(group);
        return SHEAF_E_IO;
    }
    if (pthread_cond_init(&group->wake, NULL) != 0) {
        pthread_mutex_destroy(&group->mutex);
        free(group);
        return SHEAF_E_IO;
    }
    for (uint32_t i = 0; i < n_workers; i++) {
        group->workers[i].group = group;
        group->workers[i].index = i + 1;
        if (pthread_create(&group->workers[i].thread, NULL, worker_main, &group->workers[i]) !=
            0) {
            stop_workers(group, i);
            return SHEAF_E_IO;
        }
    }
    *out = group;
    return SHEAF_OK;
}

void sheaf_threads_destroy(sheaf_threads *threads)
{
    if (threads != NULL) stop_workers(threads, threads->n_threads - 1);
}

uint32_t sheaf_threads_count(const sheaf_threads *threads)
{
    return threads == NULL ? 1 : threads->n_threads;
}
