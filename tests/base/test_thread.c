/* base/thread.c: each task once, whoever runs it; clean under the thread sanitizer. */
#include "testing.h"

#include <stdatomic.h>
#include <unistd.h>

#include "base/thread.h"
#include "odd_fpenv.h"

#define MOST_THREADS 8
#define MOST_TASKS   1000

/* What one job sees. `runs` is plain memory on purpose: task i alone touches runs[i], and the caller
 * reads it afterwards, so the thread sanitizer checks that the job's end orders the two. */
typedef struct job {
    uint32_t runs[MOST_TASKS];
    uint32_t n_threads;
    _Atomic uint32_t inside[MOST_THREADS]; /* tasks running now under that thread number */
    _Atomic uint32_t faults;
} job;

static void count_task(void *arg, uint32_t task, uint32_t thread)
{
    job *j = arg;
    if (thread >= j->n_threads || atomic_fetch_add(&j->inside[thread], 1) != 0)
        atomic_fetch_add(&j->faults, 1);
    j->runs[task]++;
    if (thread < j->n_threads) atomic_fetch_sub(&j->inside[thread], 1);
}

static void check_job(sheaf_threads *threads, uint32_t n_tasks)
{
    static job j;
    memset(&j, 0, sizeof j);
    j.n_threads = sheaf_threads_count(threads);
    sheaf__threads_run(threads, count_task, &j, n_tasks);
    for (uint32_t i = 0; i < MOST_TASKS; i++) assert_int_equal(j.runs[i], i < n_tasks);
    assert_int_equal(j.faults, 0);
}

static sheaf_threads *create(uint32_t n)
{
    sheaf_threads *threads = NULL;
    assert_int_equal(sheaf_threads_create(n, &threads), SHEAF_OK);
    assert_int_equal(sheaf_threads_count(threads), n);
    return threads;
}

static void each_task_runs_once_on_any_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 999, MOST_TASKS};
    for (uint32_t n = 1; n <= MOST_THREADS; n++) {
        sheaf_threads *threads = create(n);
        for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            check_job(threads, sizes[i]);
        sheaf_threads_destroy(threads);
    }
}

static void jobs_of_fewer_tasks_than_threads_are_whole(void **state)
{
    (void)state;
    sheaf_threads *threads = create(MOST_THREADS);
    for (uint32_t round = 0; round < 50; round++)
        for (uint32_t n = 0; n < MOST_THREADS; n++) check_job(threads, n);
    sheaf_threads_destroy(threads);
}

static void add_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    uint64_t *sums = arg;
    sums[task] += task + 1;
}

/* A worker that wakes late must neither run a task of a later job with the fields of an earlier one
 * nor hold the later one up. */
static void thousands_of_tiny_jobs_follow_each_other(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 4; n++) {
        sheaf_threads *threads = create(n);
        uint64_t sums[2][8] = {{0}}, expected[2][8] = {{0}};
        for (uint32_t i = 0; i < 6000; i++) {
            uint32_t n_tasks = 1 + i % 7;
            sheaf__threads_run(threads, add_task, sums[i & 1], n_tasks);
            for (uint32_t t = 0; t < n_tasks; t++) expected[i & 1][t] += t + 1;
        }
        assert_memory_equal(sums, expected, sizeof sums);
        sheaf_threads_destroy(threads);
    }
}

static void workers_that_sleep_wake_up_again(void **state)
{
    (void)state;
    sheaf_threads *threads = create(4);
    for (uint32_t i = 0; i < 20; i++) {
        usleep(3000); /* long past the spinning */
        check_job(threads, 100);
    }
    sheaf_threads_destroy(threads);
}

/* Tasks that wait for each other: they end only if two threads really run at the same time. */
static void meet_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)task, (void)thread;
    _Atomic uint32_t *arrived = arg;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2) usleep(100);
}

static void two_threads_run_at_the_same_time(void **state)
{
    (void)state;
    sheaf_threads *threads = create(2);
    for (int i = 0; i < 20; i++) {
        _Atomic uint32_t arrived = 0;
        sheaf__threads_run(threads, meet_task, &arrived, 2);
        assert_int_equal(arrived, 2);
    }
    sheaf_threads_destroy(threads);
}

static void without_a_group_the_caller_does_the_work(void **state)
{
    (void)state;
    assert_int_equal(sheaf_threads_count(NULL), 1);
    check_job(NULL, 100);
    sheaf_threads_destroy(NULL);
}

static void two_groups_do_not_disturb_each_other(void **state)
{
    (void)state;
    sheaf_threads *a = create(2), *b = create(3);
    for (int i = 0; i < 200; i++) {
        check_job(a, 5);
        check_job(b, 9);
    }
    sheaf_threads_destroy(a);
    check_job(b, 50);
    sheaf_threads_destroy(b);
}

static void groups_come_and_go(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        sheaf_threads *threads = create(1 + i % MOST_THREADS);
        if (i % 2) check_job(threads, i);
        sheaf_threads_destroy(threads);
    }
}

static void impossible_numbers_of_threads_are_refused(void **state)
{
    (void)state;
    sheaf_threads *threads = (sheaf_threads *)&threads;
    assert_int_equal(sheaf_threads_create(257, &threads), SHEAF_E_INVALID);
    assert_int_equal(sheaf_threads_create(2, NULL), SHEAF_E_INVALID);
    assert_ptr_equal(threads, &threads);
}

static void zero_means_one_thread_a_processor(void **state)
{
    (void)state;
    sheaf_threads *threads = NULL;
    assert_int_equal(sheaf_threads_create(0, &threads), SHEAF_OK);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    assert_int_equal(sheaf_threads_count(threads), online > 256 ? 256 : online);
    sheaf_threads_destroy(threads);
}

typedef struct environments {
    unsigned seen[64];
} environments;

static void note_environment(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    ((environments *)arg)->seen[task] = fpenv_now();
    usleep(200); /* so that others get some */
}

static void check_environment(sheaf_threads *threads, uint32_t n_tasks)
{
    environments e = {{0}};
    fpenv_set(ODD_FPENV);
    sheaf__threads_run(threads, note_environment, &e, n_tasks);
    unsigned after = fpenv_now();
    fpenv_set(DEFAULT_FPENV);
    assert_int_equal(after, ODD_FPENV);
    for (uint32_t i = 0; i < n_tasks; i++) assert_int_equal(e.seen[i], DEFAULT_FPENV);
}

/* A thread inherits its maker's environment, so the group is made in an odd one. */
static void tasks_run_in_the_default_environment_and_the_callers_is_restored(void **state)
{
    (void)state;
    fpenv_set(ODD_FPENV);
    sheaf_threads *threads = create(4);
    check_environment(threads, 64);
    check_environment(threads, 1);
    check_environment(NULL, 3);
    sheaf_threads_destroy(threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_once_on_any_number_of_threads),
        cmocka_unit_test(jobs_of_fewer_tasks_than_threads_are_whole),
        cmocka_unit_test(thousands_of_tiny_jobs_follow_each_other),
        cmocka_unit_test(workers_that_sleep_wake_up_again),
        cmocka_unit_test(two_threads_run_at_the_same_time),
        cmocka_unit_test(without_a_group_the_caller_does_the_work),
        cmocka_unit_test(two_groups_do_not_disturb_each_other),
        cmocka_unit_test(groups_come_and_go),
        cmocka_unit_test(impossible_numbers_of_threads_are_refused),
        cmocka_unit_test(zero_means_one_thread_a_processor),
        cmocka_unit_test(tasks_run_in_the_default_environment_and_the_callers_is_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
