/* tests/server/rest.c - a server that rests. */
#include "server/rest.h"

#include <dirent.h>
#include <unistd.h>

#include "base/clock.h"

#define PATIENCE_NS 60000000000ull
#define MOMENT_US   5000

static uint32_t count_descriptors(const program *p, bool sockets)
{
    char path[64], to[8];
    uint32_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)p->pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        ssize_t got = readlinkat(dirfd(dir), e->d_name, to, 7);
        n += !sockets || (got == 7 && memcmp(to, "socket:", 7) == 0);
    }
    closedir(dir);
    return n;
}

/* The connection that asked last goes, too: the one that listens is left. */
static void await_one_socket(const program *p)
{
    for (uint64_t start = sheaf__clock_ns(); count_descriptors(p, true) != 1;) {
        if (sheaf__clock_ns() - start > PATIENCE_NS) fail_msg("it has sockets still");
        usleep(MOMENT_US);
    }
}

/* The connection that asks is one itself. */
static bool rests(json_t *stats)
{
    return number_at(stats, "requests_running") == 0 &&
           number_at(stats, "requests_waiting") == 0 && number_at(stats, "connections") == 1 &&
           number_at(stats, "exchanges") <= 1;
}

static json_t *await_rest(const program *p)
{
    for (uint64_t start = sheaf__clock_ns();;) {
        json_t *stats = serving_get(&p->net, "/v1/cache/stats", 200);
        if (rests(stats)) return stats;
        if (sheaf__clock_ns() - start > PATIENCE_NS)
            fail_msg("it does not come to rest: %s", json_dumps(stats, JSON_COMPACT));
        json_decref(stats);
        usleep(MOMENT_US);
    }
}

static int64_t sum_of(json_t *stats, const char *name)
{
    const char *key;
    json_t *value;
    int64_t sum = 0;
    json_object_foreach(json_object_get(stats, name), key, value) sum +=
        json_integer_value(value);
    return sum;
}

static void check_equal(json_t *stats, const char *what, int64_t a, int64_t b)
{
    if (a != b)
        fail_msg("%s: %lld, %lld; %s", what, (long long)a, (long long)b,
                 json_dumps(stats, JSON_COMPACT));
}

static void check_figures(json_t *stats)
{
    check_equal(stats, "blocks held, blocks of the cache",
                number_at(stats, "paged_blocks_live"), number_at(stats, "blocks"));
    check_equal(stats, "blocks inserted and not left, blocks of the cache",
                number_at(stats, "inserted_blocks") - sum_of(stats, "evicted_blocks") -
                    number_at(stats, "replaced_blocks"),
                number_at(stats, "blocks"));
    check_equal(stats, "blocks acquired and not released, held",
                number_at(stats, "blocks_acquired") - number_at(stats, "blocks_released"),
                number_at(stats, "paged_blocks_live"));
    check_equal(stats, "slabs appended and not released, there",
                number_at(stats, "slab_appends") - number_at(stats, "slab_releases"),
                number_at(stats, "slabs"));
    check_equal(stats, "blocks live, free and retiring, allocated",
                number_at(stats, "paged_blocks_live") + number_at(stats, "paged_blocks_free") +
                    number_at(stats, "paged_blocks_retiring"),
                number_at(stats, "paged_blocks_allocated"));
    check_equal(stats, "claims, waiters", number_at(stats, "claims"), 0);
    check_equal(stats, "waiters, none", number_at(stats, "waiters"), 0);
    check_equal(stats, "requests that failed, none", number_at(stats, "requests.failed"), 0);
    check_equal(stats, "bytes queued, none", number_at(stats, "queued_bytes"), 0);
    assert_true(number_at(stats, "hits") <= number_at(stats, "lookups"));
    assert_true(number_at(stats, "hit_tokens") <= number_at(stats, "lookup_tokens"));
    assert_true(number_at(stats, "paged_bytes_reserved") <= number_at(stats, "budget_bytes"));
    assert_true(number_at(stats, "bytes_exclusive") <= number_at(stats, "capacity_bytes"));
}

static void check_empty(json_t *stats)
{
    static const char *const none[] = {"blocks", "entries",      "tokens",           "bytes",
                                       "pins",   "bytes_pinned", "paged_blocks_live"};
    for (uint32_t i = 0; i < sizeof none / sizeof none[0]; i++)
        check_equal(stats, none[i], number_at(stats, none[i]), 0);
}

rest rest_wait(const program *p)
{
    json_t *stats = await_rest(p);
    check_figures(stats);
    json_decref(stats);
    json_decref(serving_post(&p->net, "/v1/cache/reset", 200, "{'unpin': true}"));
    stats = await_rest(p);
    check_figures(stats);
    check_empty(stats);
    json_decref(stats);
    await_one_socket(p);
    return (rest){program_memory(p, "RssAnon:"), count_descriptors(p, false)};
}

void rest_compare(const rest *before, const rest *after, uint64_t margin)
{
    print_message("# %.1f MiB resident, before it %.1f; %u descriptors, %u\n",
                  (double)after->memory / (1 << 20), (double)before->memory / (1 << 20),
                  after->descriptors, before->descriptors);
    assert_int_equal(after->descriptors, before->descriptors);
    assert_true(after->memory <= before->memory + margin);
}
