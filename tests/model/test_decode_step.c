/* tests/model/test_decode_step.c - what a decode step asks of the system: nothing but to wake threads.
 *
 * The steps run in a child whose calls the kernel filters: with one thread it may only write and end,
 * with two its threads may also be woken and yield. pthread_mutex_lock is counted by standing
 * before the C library's.
 */
#include "testing.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/rig.h"

#define DEMO    "models/sheaf-demo"
#define PROMPT  40
#define N_BATCH 3
#define N_STEPS 20

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_EMULATED)
#    define CALLS_OF_ITS_OWN 1
#else
#    define CALLS_OF_ITS_OWN 0
#endif

enum { ENDED_WELL = 0, TOOK_A_LOCK = 3, NO_FILTER = 4 };

static _Atomic uint64_t n_locks;

/* Counts, then locks. */
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*_Atomic real)(pthread_mutex_t *);
    int (*lock)(pthread_mutex_t *) = atomic_load(&real);
    if (lock == NULL) {
        void *found = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        memcpy(&lock, &found, sizeof lock);
        atomic_store(&real, lock);
    }
    atomic_fetch_add(&n_locks, 1);
    return lock(mutex);
}

/* One decode step of all caches together. */
static int decode_step(rig *r, sheaf__kv *kv, float *logits)
{
    sheaf__forward_item items[N_BATCH];
    int32_t token = 7;
    for (uint32_t i = 0; i < N_BATCH; i++) {
        if (sheaf__kv_extend(&kv[i], 1) != SHEAF_OK) return 0;
        items[i] = (sheaf__forward_item){&kv[i], &token, 1, 1, 0};
    }
    if (sheaf__forward_run(r->forward, items, N_BATCH, logits) != SHEAF_OK) return 0;
    for (uint32_t i = 0; i < N_BATCH; i++)
        if (sheaf__kv_commit(&kv[i], 1, &token) != SHEAF_OK) return 0;
    return 1;
}

#define ALLOW(call)                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),                                           \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* From here on any other call ends the process. */
static int forbid_calls(uint32_t n_threads)
{
    struct sock_filter alone[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write),
        ALLOW(SYS_exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_filter waking[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_write),
        ALLOW(SYS_exit_group),
        ALLOW(SYS_futex),
        ALLOW(SYS_sched_yield),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof alone / sizeof *alone, alone};
    if (n_threads > 1) program = (struct sock_fprog){sizeof waking / sizeof *waking, waking};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 0;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) ==
           0;
}

/* In the child: warms up, then decodes from position 41 on, below the end of a block. */
static int steps(uint32_t n_threads)
{
    const rig_options o = {.dir = DEMO, .n_threads = n_threads};
    int32_t tokens[PROMPT];
    rig r;
    rig_open(&r, &o);
    float *logits = malloc(N_BATCH * r.config.vocab * sizeof *logits);
    sheaf__kv kv[N_BATCH];
    for (uint32_t i = 0; i < PROMPT; i++) tokens[i] = (int32_t)(5 + i);
    for (uint32_t i = 0; i < N_BATCH; i++) {
        kv[i] = rig_kv(&r);
        rig_prefill(&r, &kv[i], tokens, PROMPT, logits);
    }
    if (!decode_step(&r, kv, logits)) return 1;
    if (!forbid_calls(n_threads)) return NO_FILTER;
    uint64_t before = atomic_load(&n_locks);
    for (uint32_t i = 0; i < N_STEPS; i++)
        if (!decode_step(&r, kv, logits)) return 1;
    if (n_threads == 1 && atomic_load(&n_locks) != before) return TOOK_A_LOCK;
    return ENDED_WELL;
}

static void expect_quiet(uint32_t n_threads)
{
    if (CALLS_OF_ITS_OWN) TESTING_SKIP("sanitizers and emulators make calls of their own");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) syscall(SYS_exit_group, steps(n_threads));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_FILTER)
        TESTING_SKIP("the system lets no process filter its calls");
    if (WIFSIGNALED(status))
        fail_msg("a step made a system call (signal %d)", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), ENDED_WELL);
}

static void with_one_thread_a_step_takes_no_lock_and_makes_no_call(void **state)
{
    (void)state;
    expect_quiet(1);
}

static void with_two_threads_a_step_does_nothing_but_wake_them(void **state)
{
    (void)state;
    expect_quiet(2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_one_thread_a_step_takes_no_lock_and_makes_no_call),
        cmocka_unit_test(with_two_threads_a_step_does_nothing_but_wake_them),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
