/* tests/pool/test_limits.c - the limits of the system itself: addresses, data, mappings.
 *
 * Each case runs in a child process, sets a limit there, and asks for more. The child ends with 0
 * when all its claims held; a signal fails the case as well. Under sanitizers, which keep books of
 * their own in mapped memory, limits mean nothing, and the cases skip.
 */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing.h"

#include "pool/fixture.h"

#define MIB (1ull << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#    define SANITIZED 1
#elif defined(__has_feature)
#    if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#        define SANITIZED 1
#    endif
#endif
#ifndef SANITIZED
#    define SANITIZED 0
#endif

/* In the child. */
#define CLAIM(condition)                                                                       \
    do {                                                                                       \
        if (condition) break;                                                                  \
        fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                        \
        return 1;                                                                              \
    } while (0)

static void check_in_child(int (*claims)(void))
{
    if (SANITIZED) TESTING_SKIP("a sanitizer's memory is under no limit of ours");
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) _exit(claims());
    int how = 0;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    if (WIFSIGNALED(how)) fail_msg("the child died of signal %d", WTERMSIG(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

/* A line of a file of /proc: the number after `field`; 0 when there is none. */
static uint64_t proc_number(const char *path, const char *field)
{
    char line[256];
    unsigned long long number = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, strlen(field)) == 0 &&
            sscanf(line + strlen(field), "%llu", &number) == 1)
            break;
    fclose(file);
    return number;
}

/* Bytes of the process: "VmSize:" all addresses, "VmData:" writable ones, "VmRSS:" in memory. */
static uint64_t bytes_of(const char *field)
{
    return proc_number("/proc/self/status", field) * 1024;
}

/* Lets the process have what it has, and `extra` bytes more. Soft: the child may lift it again. */
static bool limit_to(int resource, const char *field, uint64_t extra)
{
    struct rlimit limit;
    uint64_t now = bytes_of(field);
    if (now == 0 || getrlimit(resource, &limit) != 0) return false;
    limit.rlim_cur = now + extra;
    return setrlimit(resource, &limit) == 0;
}

/* Blocks of dim KiB / 32. Empty slabs are given back at once. */
static sheaf_status open_with(uint64_t budget, uint32_t dim, uint32_t slab_blocks,
                              sheaf_pool **out, sheaf_error *err)
{
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, budget);
    layer.key_dim = layer.value_dim = dim;
    options.slab_blocks = slab_blocks;
    options.no_slack = 1;
    return sheaf_pool_open(&options, out, err);
}

/* 1 MiB a slab: few blocks, so that complete checks after each call stay cheap. */
enum { SLAB = 16, MOST_SLABS = 64 };
static sheaf_block blocks[MOST_SLABS * SLAB];

static sheaf_status open_with_budget(uint64_t budget, sheaf_pool **out, sheaf_error *err)
{
    return open_with(budget, 2048, SLAB, out, err);
}

static sheaf_pool_stats read_stats(const sheaf_pool *pool)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    if (sheaf_pool_stats_read(pool, &stats) != SHEAF_OK) memset(&stats, 0, sizeof stats);
    return stats;
}

/* Whether a refused call left all as it was, and the pool sound. */
static bool unchanged(const sheaf_pool *pool, sheaf_pool_stats before)
{
    sheaf_pool_stats after = read_stats(pool);
    before.full_answers = after.full_answers;
    before.slab_failures = after.slab_failures;
    before.host_bytes = after.host_bytes;
    return memcmp(&before, &after, sizeof before) == 0 &&
           sheaf_pool_check(pool, NULL) == SHEAF_OK;
}

static sheaf_status acquire(sheaf_pool *pool, uint32_t n, sheaf_block *list)
{
    return sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, list);
}

static bool release(sheaf_pool *pool, uint32_t n, const sheaf_block *list)
{
    for (uint32_t i = 0; i < n; i++)
        if (sheaf_pool_release(pool, list[i], SHEAF_OWNER_HOST) != SHEAF_OK) return false;
    return true;
}

/* Writes the first and last byte of each block. */
static bool touch(sheaf_pool *pool, uint32_t n, const sheaf_block *list)
{
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    if (sheaf_pool_group_info(pool, 0, &info) != SHEAF_OK) return false;
    for (uint32_t i = 0; i < n; i++) {
        void *addr;
        if (sheaf_pool_address(pool, list[i], &addr) != SHEAF_OK) return false;
        ((unsigned char *)addr)[0] = ((unsigned char *)addr)[info.block_bytes - 1] = 1;
    }
    return true;
}

/* ---- addresses ----------------------------------------------------------------------------- */

static int refuse_address_range(uint64_t budget)
{
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    CLAIM(limit_to(RLIMIT_AS, "VmSize:", 64 * MIB));
    CLAIM(open_with_budget(budget, &pool, &err) == SHEAF_E_NO_MEMORY);
    CLAIM(pool == NULL && err.status == SHEAF_E_NO_MEMORY);
    CLAIM(strstr(err.text, "address range") != NULL);
    uint64_t before = bytes_of("VmSize:");
    CLAIM(open_with_budget(budget, &pool, NULL) == SHEAF_E_NO_MEMORY);
    CLAIM(bytes_of("VmSize:") <= before + MIB / 4); /* nothing stays reserved */

    CLAIM(open_with_budget(16 * MIB, &pool, &err) == SHEAF_OK); /* what fits is served */
    CLAIM(acquire(pool, 16 * SLAB, blocks) == SHEAF_OK && touch(pool, 16 * SLAB, blocks));
    CLAIM(release(pool, 16 * SLAB, blocks) && sheaf_pool_close(pool) == SHEAF_OK);
    return 0;
}

static int refuse_a_terabyte(void)
{
    return refuse_address_range(1ull << 40);
}

static int refuse_the_machine(void)
{
    return refuse_address_range(0);
}

static void a_budget_beyond_the_address_limit_is_answered_at_open(void **state)
{
    (void)state;
    check_in_child(refuse_a_terabyte);
}

static void a_machine_larger_than_the_address_limit_is_answered_at_open(void **state)
{
    (void)state;
    check_in_child(refuse_the_machine);
}

/* The second group's range does not fit: the first one's must go back. */
static int refuse_the_second_range(void)
{
    sheaf_layer layers[2];
    sheaf_pool_options options = tiny_options(layers, 2, 16 * MIB); /* 2 ranges of 32 MiB */
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    CLAIM(limit_to(RLIMIT_AS, "VmSize:", 48 * MIB));
    for (int i = 0; i < 100; i++) {
        CLAIM(sheaf_pool_open(&options, &pool, &err) == SHEAF_E_NO_MEMORY && pool == NULL);
        CLAIM(strstr(err.text, "group 1") != NULL);
    }
    return 0;
}

static void a_range_refused_after_another_gives_that_back(void **state)
{
    (void)state;
    check_in_child(refuse_the_second_range);
}

/* ---- memory of slabs ----------------------------------------------------------------------- */

/* Commits and gives back all slabs once, so that their records exist and the limit meets slabs
 * alone; then lets `n_slabs` and a half be committed. */
static sheaf_pool *open_limited(uint32_t n_slabs)
{
    sheaf_pool *pool = NULL;
    if (open_with_budget(MOST_SLABS * MIB, &pool, NULL) != SHEAF_OK ||
        acquire(pool, MOST_SLABS * SLAB, blocks) != SHEAF_OK ||
        !release(pool, MOST_SLABS * SLAB, blocks) ||
        !limit_to(RLIMIT_DATA, "VmData:", n_slabs * MIB + MIB / 2))
        return NULL;
    return pool;
}

static int commit_until_full(void)
{
    sheaf_pool *pool = open_limited(8);
    CLAIM(pool != NULL && read_stats(pool).slabs == 0);
    uint32_t n = 0;
    sheaf_status st;
    sheaf_pool_stats before;
    do {
        before = read_stats(pool);
        st = acquire(pool, SLAB, blocks + n * SLAB);
    } while (st == SHEAF_OK && ++n < MOST_SLABS);
    CLAIM(st == SHEAF_FULL && n == 8);
    CLAIM(unchanged(pool, before));
    CLAIM(read_stats(pool).slab_failures == 1 && read_stats(pool).full_answers == 1);
    CLAIM(touch(pool, n * SLAB, blocks));

    CLAIM(release(pool, SLAB, blocks)); /* a slab given back is a slab to have again */
    CLAIM(read_stats(pool).slabs == 7);
    CLAIM(acquire(pool, SLAB, blocks) == SHEAF_OK && touch(pool, SLAB, blocks));
    CLAIM(
        limit_to(RLIMIT_DATA, "VmData:", 4 * MIB)); /* and so is what the system grants later */
    CLAIM(acquire(pool, 3 * SLAB, blocks + n * SLAB) == SHEAF_OK);
    CLAIM(release(pool, (n + 3) * SLAB, blocks) && sheaf_pool_close(pool) == SHEAF_OK);
    return 0;
}

static void slabs_that_the_system_refuses_are_full(void **state)
{
    (void)state;
    check_in_child(commit_until_full);
}

static int commit_some_of_many(void)
{
    sheaf_pool *pool = open_limited(8);
    CLAIM(pool != NULL && acquire(pool, 3 * SLAB, blocks) == SHEAF_OK);
    sheaf_pool_stats before = read_stats(pool);
    uint64_t data = bytes_of("VmData:");
    uint32_t count = 7 * SLAB; /* five of these seven slabs are given, then no more */
    CLAIM(acquire(pool, count, blocks + 3 * SLAB) == SHEAF_FULL && unchanged(pool, before));
    CLAIM(sheaf_pool_presize(pool, &count) == SHEAF_FULL && unchanged(pool, before));
    CLAIM(bytes_of("VmData:") <= data + MIB / 4);
    CLAIM(acquire(pool, 5 * SLAB, blocks + 3 * SLAB) == SHEAF_OK);
    CLAIM(touch(pool, 8 * SLAB, blocks) && release(pool, 8 * SLAB, blocks));
    CLAIM(sheaf_pool_close(pool) == SHEAF_OK);
    return 0;
}

static void a_request_that_the_system_serves_in_part_takes_nothing(void **state)
{
    (void)state;
    check_in_child(commit_some_of_many);
}

/* ---- host memory --------------------------------------------------------------------------- */

/* The ranges are reserved, so that slabs can still be committed; their records cannot be had. */
static int end_host_memory(void)
{
    enum { ROWS = 64, MOST = 512 * ROWS }; /* 64 KiB a slab, and 3 KiB of records */
    static sheaf_block taken[MOST];
    sheaf_pool *pool = NULL;
    CLAIM(open_with(32 * MIB, 32, ROWS, &pool, NULL) == SHEAF_OK);
    CLAIM(limit_to(RLIMIT_AS, "VmSize:", MIB / 4));
    uint32_t n = 0;
    sheaf_status st;
    sheaf_pool_stats before;
    do {
        before = read_stats(pool);
        st = acquire(pool, ROWS, taken + n);
    } while (st == SHEAF_OK && (n += ROWS) < MOST);
    CLAIM(st == SHEAF_E_NO_MEMORY && n > 0);
    CLAIM(unchanged(pool, before));
    CLAIM(touch(pool, n, taken) && release(pool, n, taken));
    CLAIM(sheaf_pool_close(pool) == SHEAF_OK);
    return 0;
}

static void records_that_the_system_refuses_are_no_memory(void **state)
{
    (void)state;
    check_in_child(end_host_memory);
}

/* ---- mappings ------------------------------------------------------------------------------ */

/* Every other slab is given back, which splits the range into more mappings than a process may
 * have. From there on slabs are given back in place: their pages go, all the same. */
static int give_back_without_mappings(void)
{
    enum { ROWS = 4, SLABS = 80000, LAST = 8000 }; /* a page a slab; the last ones are used */
    static sheaf_block all[SLABS * ROWS];
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, (uint64_t)SLABS * PAGE);
    options.no_slack = 1;
    sheaf_pool *pool = NULL;
    sheaf_block *last = all + (SLABS - LAST) * ROWS;
    CLAIM(sheaf_pool_open(&options, &pool, NULL) == SHEAF_OK);
    CLAIM(acquire(pool, SLABS * ROWS, all) == SHEAF_OK && touch(pool, LAST * ROWS, last));
    uint64_t resident = bytes_of("VmRSS:");
    for (uint32_t s = 0; s < SLABS; s += 2) CLAIM(release(pool, ROWS, all + s * ROWS));
    CLAIM(read_stats(pool).bytes_reserved == SLABS / 2 * (uint64_t)PAGE);
    CLAIM(bytes_of("VmRSS:") + LAST / 2 * PAGE * 9 / 10 < resident);

    for (uint32_t s = 0; s < SLABS; s += 2)
        CLAIM(acquire(pool, ROWS, all + s * ROWS) == SHEAF_OK);
    CLAIM(touch(pool, LAST * ROWS, last) && sheaf_pool_check(pool, NULL) == SHEAF_OK);
    CLAIM(release(pool, SLABS * ROWS, all) && sheaf_pool_close(pool) == SHEAF_OK);
    return 0;
}

static void slabs_go_back_when_there_is_no_mapping_to_spare(void **state)
{
    (void)state;
    uint64_t most = proc_number("/proc/sys/vm/max_map_count", "");
    if (most == 0 || most > 70000)
        TESTING_SKIP("a process may have %llu mappings here", (unsigned long long)most);
#if SHEAF_CHECK >= 2
    TESTING_SKIP("80,000 slabs take too long with all checks");
#endif
    check_in_child(give_back_without_mappings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_beyond_the_address_limit_is_answered_at_open),
        cmocka_unit_test(a_machine_larger_than_the_address_limit_is_answered_at_open),
        cmocka_unit_test(a_range_refused_after_another_gives_that_back),
        cmocka_unit_test(slabs_that_the_system_refuses_are_full),
        cmocka_unit_test(a_request_that_the_system_serves_in_part_takes_nothing),
        cmocka_unit_test(records_that_the_system_refuses_are_no_memory),
        cmocka_unit_test(slabs_go_back_when_there_is_no_mapping_to_spare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
