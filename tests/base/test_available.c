/* base/available.c: what the machine says, and what each control group on the way up leaves, out of a
 * tree that is written for each case. */
#include "testing.h"

#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/available.h"

#define MIB    ((uint64_t)1 << 20)
#define GROUP2 "/sys/fs/cgroup"
#define GROUP1 "/sys/fs/cgroup/memory"

static char root[64];

/* Writes root/path, and the folders that it needs. */
static void put(const char *path, const char *format, ...)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *at = name + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        assert_true(mkdir(name, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    va_list args;
    va_start(args, format);
    assert_true(vfprintf(file, format, args) >= 0);
    va_end(args);
    assert_int_equal(fclose(file), 0);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/sheaf-test-available-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    put("/proc/meminfo",
        "MemTotal:  16000000 kB\nMemFree: 1000 kB\nMemAvailable:   8388608 kB\n");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* What is read, in MiB; of groups UINT64_MAX where there is no limit. */
static void expect(uint64_t bytes_mib, uint64_t group_mib)
{
    sheaf__available a = {0};
    sheaf_error err = {0};
    assert_int_equal(sheaf__available_read(root, &a, &err), SHEAF_OK);
    assert_int_equal(a.bytes / MIB, bytes_mib);
    assert_int_equal(a.machine_bytes, 8192 * MIB);
    assert_int_equal(a.group_bytes, group_mib == UINT64_MAX ? group_mib : group_mib * MIB);
}

static void put_group(const char *folder, uint64_t max_mib, uint64_t used_mib,
                      uint64_t file_mib)
{
    char path[256];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    put(path, "%llu\n", (unsigned long long)(max_mib * MIB));
    snprintf(path, sizeof path, "%s/memory.current", folder);
    put(path, "%llu\n", (unsigned long long)(used_mib * MIB));
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    put(path, "anon 77\nfile 88\ninactive_file %llu\nactive_file %llu\nworkingset_refault 3\n",
        (unsigned long long)(file_mib * MIB - MIB), (unsigned long long)MIB);
}

static void without_groups_the_machine_decides(void **state)
{
    (void)state;
    expect(8192, UINT64_MAX);
    put("/proc/self/cgroup", "0::/\n");
    expect(8192, UINT64_MAX);
}

static void a_limit_less_what_is_used_is_left(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/system.slice/sheaf.service\n");
    put_group(GROUP2 "/system.slice/sheaf.service", 4096, 1000, 300);
    expect(4096 - 700, 4096 - 700);
}

static void the_tightest_group_on_the_way_up_decides(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put_group(GROUP2 "/a/b/c", 4096, 100, 1);
    put_group(GROUP2 "/a", 2048, 1500, 1);
    expect(2048 - 1499, 2048 - 1499);
    put_group(GROUP2, 900, 901, 1); /* the top has limits in a container */
    expect(0, 0);
}

static void a_group_without_a_limit_says_max(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/a/b\n");
    put(GROUP2 "/a/b/memory.max", "max\n");
    put(GROUP2 "/a/memory.max", "max\n");
    expect(8192, UINT64_MAX);
    put(GROUP2 "/a/b/memory.high", "%llu\n", (unsigned long long)(512 * MIB));
    put(GROUP2 "/a/b/memory.current", "%llu\n", (unsigned long long)(12 * MIB));
    expect(500, 500);
}

static void version_one_is_known_too(void **state)
{
    (void)state;
    put("/proc/self/cgroup",
        "12:cpuset:/elsewhere\n5:cpu,memory,io:/docker/0123\n0::/system.slice\n");
    put(GROUP1 "/memory.limit_in_bytes", "9223372036854771712\n");
    put(GROUP1 "/docker/0123/memory.limit_in_bytes", "%llu\n",
        (unsigned long long)(2048 * MIB));
    put(GROUP1 "/docker/0123/memory.usage_in_bytes", "%llu\n", (unsigned long long)(600 * MIB));
    put(GROUP1 "/docker/0123/memory.stat",
        "cache 1\ninactive_file 5\ntotal_inactive_file %llu\n",
        (unsigned long long)(100 * MIB));
    expect(2048 - 500, 2048 - 500);
}

static void in_a_container_the_path_may_be_the_hosts(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/host/path/that/is/not/here\n");
    put_group(GROUP2, 1024, 25, 1);
    expect(1000, 1000);
    put("/proc/self/cgroup", "0::/../../sibling\n");
    expect(1000, 1000);
}

static void odd_lines_are_no_limit(void **state)
{
    (void)state;
    char longest[3000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    put("/proc/self/cgroup", "\n::\n1:memory\nmemory\n0::/%s/%s\n:::::\n3:memoryish:/a\n",
        longest, longest);
    put(GROUP1 "/a/memory.limit_in_bytes", "1\n");
    put(GROUP2 "/memory.max", "many\n");
    expect(8192, UINT64_MAX);
}

static void a_machine_that_does_not_say_is_an_error(void **state)
{
    (void)state;
    sheaf__available a = {.bytes = 7};
    sheaf_error err = {0};
    put("/proc/meminfo", "MemTotal: 5 kB\n");
    assert_int_equal(sheaf__available_read(root, &a, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "/proc/meminfo"));
    assert_int_equal(a.bytes, 7);
}

static void this_machine_says(void **state)
{
    (void)state;
    sheaf__available a = {0};
    sheaf_error err = {0};
    if (access("/proc/meminfo", R_OK) != 0) TESTING_SKIP("no /proc here");
    assert_int_equal(sheaf__available_read("", &a, &err), SHEAF_OK);
    assert_true(a.bytes > 0 && a.bytes <= a.machine_bytes && a.bytes <= a.group_bytes);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(without_groups_the_machine_decides),
        CASE(a_limit_less_what_is_used_is_left),
        CASE(the_tightest_group_on_the_way_up_decides),
        CASE(a_group_without_a_limit_says_max),
        CASE(version_one_is_known_too),
        CASE(in_a_container_the_path_may_be_the_hosts),
        CASE(odd_lines_are_no_limit),
        CASE(a_machine_that_does_not_say_is_an_error),
        CASE(this_machine_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
