/* server/metrics.c: what lands in which bucket, and threads that add at once. */
#include "testing.h"

#include <pthread.h>

#include "server/metrics.h"

static void bounds_ascend(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < SHEAF__TIME_KINDS + SHEAF__SIZE_KINDS; kind++) {
        uint32_t n;
        const uint64_t *bounds = kind < SHEAF__TIME_KINDS
                                     ? sheaf__metrics_time_bounds(kind, &n)
                                     : sheaf__metrics_size_bounds(kind - SHEAF__TIME_KINDS, &n);
        assert_in_range(n, 1, SHEAF__MAX_BUCKETS);
        assert_true(bounds[0] > 0);
        for (uint32_t i = 1; i < n; i++) assert_true(bounds[i] > bounds[i - 1]);
    }
}

static void a_value_on_a_bound_is_within_it(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < SHEAF__TIME_KINDS; kind++) {
        sheaf__metrics m = {0};
        uint32_t n;
        uint64_t sum = 0;
        const uint64_t *bounds = sheaf__metrics_time_bounds(kind, &n);
        for (uint32_t i = 0; i < n; i++) {
            sheaf__metrics_time(&m, kind, bounds[i]);
            sheaf__metrics_time(&m, kind, bounds[i] + 1);
            sum += 2 * bounds[i] + 1;
        }
        sheaf__metrics_time(&m, kind, 0);
        assert_int_equal(m.times[kind].counts[0], 2);
        for (uint32_t i = 1; i < n; i++) assert_int_equal(m.times[kind].counts[i], 2);
        for (uint32_t i = n; i < SHEAF__MAX_BUCKETS; i++)
            assert_int_equal(m.times[kind].counts[i], 0);
        assert_int_equal(m.times[kind].counts[SHEAF__MAX_BUCKETS], 1);
        assert_int_equal(m.times[kind].sum, sum);
    }
}

static void sizes_are_counted_beside_times(void **state)
{
    (void)state;
    sheaf__metrics m = {0};
    sheaf__metrics_size(&m, SHEAF__SIZE_PROMPT, 1);
    sheaf__metrics_size(&m, SHEAF__SIZE_PROMPT, 3);
    sheaf__metrics_size(&m, SHEAF__SIZE_ANSWER, 1u << 30);
    assert_int_equal(m.sizes[SHEAF__SIZE_PROMPT].counts[0], 1);
    assert_int_equal(m.sizes[SHEAF__SIZE_PROMPT].counts[2], 1);
    assert_int_equal(m.sizes[SHEAF__SIZE_PROMPT].sum, 4);
    assert_int_equal(m.sizes[SHEAF__SIZE_ANSWER].counts[SHEAF__MAX_BUCKETS], 1);
}

static void replies_are_counted_by_endpoint_and_hundreds(void **state)
{
    (void)state;
    static const struct {
        uint32_t endpoint, status, row, column;
    } cases[] = {
        {SHEAF__ENDPOINT_CHAT, 200, SHEAF__ENDPOINT_CHAT, 2},
        {SHEAF__ENDPOINT_CHAT, 400, SHEAF__ENDPOINT_CHAT, 4},
        {SHEAF__ENDPOINT_COMPLETION, 429, SHEAF__ENDPOINT_COMPLETION, 4},
        {SHEAF__ENDPOINT_PRELOAD, 503, SHEAF__ENDPOINT_PRELOAD, 5},
        {SHEAF__ENDPOINT_OTHER, 499, SHEAF__ENDPOINT_OTHER, 0}, /* left before a reply */
        {SHEAF__ENDPOINT_OTHER, 0, SHEAF__ENDPOINT_OTHER, 0},
        {77, 999, SHEAF__ENDPOINT_OTHER, 0},
    };
    uint64_t expected[SHEAF__ENDPOINT_KINDS][6] = {{0}};
    sheaf__metrics m = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__metrics_reply(&m, cases[i].endpoint, cases[i].status);
        expected[cases[i].row][cases[i].column]++;
    }
    for (uint32_t e = 0; e < SHEAF__ENDPOINT_KINDS; e++)
        for (uint32_t h = 0; h < 6; h++) assert_int_equal(m.replies[e][h], expected[e][h]);
}

#define ADDERS 4
#define TIMES  20000

static void *add_times(void *arg)
{
    for (uint64_t i = 0; i < TIMES; i++) {
        sheaf__metrics_time(arg, SHEAF__TIME_REQUEST, i * 1000000);
        sheaf__metrics_reply(arg, SHEAF__ENDPOINT_CHAT, 200);
    }
    return NULL;
}

static void nothing_is_lost_between_threads(void **state)
{
    (void)state;
    static sheaf__metrics m;
    pthread_t threads[ADDERS];
    for (uint32_t i = 0; i < ADDERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_times, &m), 0);
    for (uint32_t i = 0; i < ADDERS; i++) pthread_join(threads[i], NULL);
    uint64_t n = 0;
    for (uint32_t i = 0; i <= SHEAF__MAX_BUCKETS; i++)
        n += m.times[SHEAF__TIME_REQUEST].counts[i];
    assert_int_equal(n, ADDERS * TIMES);
    assert_int_equal(m.times[SHEAF__TIME_REQUEST].sum,
                     (uint64_t)ADDERS * TIMES * (TIMES - 1) / 2 * 1000000);
    assert_int_equal(m.replies[SHEAF__ENDPOINT_CHAT][2], ADDERS * TIMES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_ascend),
        cmocka_unit_test(a_value_on_a_bound_is_within_it),
        cmocka_unit_test(sizes_are_counted_beside_times),
        cmocka_unit_test(replies_are_counted_by_endpoint_and_hundreds),
        cmocka_unit_test(nothing_is_lost_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
