/* server/map.c: the texts of /slots and /v1/cache/map, from plain inputs. */
#include "testing.h"

#include <jansson.h>
#include <time.h>

#include "server/map.h"

/* Nanoseconds that this thread has worked. */
static uint64_t worked_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- requests ---------------------------------------------------------------------------- */

static void slots_say_where_each_request_stands(void **state)
{
    (void)state;
    sheaf__served chat = {.id = "req_1", .endpoint = SHEAF__ENDPOINT_CHAT, .asked_ns = 1000000},
                  preload = {.id = "mine \"7\"",
                             .endpoint = SHEAF__ENDPOINT_PRELOAD,
                             .asked_ns = 9000000000};
    const sheaf__request_info infos[] = {
        {.id = 4,
         .ctx = &chat,
         .n_prompt = 100,
         .cached_tokens = 64,
         .n_choices = 3,
         .n_over = 1,
         .n_waiting = 1,
         .n_run = 105,
         .n_told = 12,
         .priority = -2,
         .admitted = true},
        {.id = 5,
         .ctx = &chat,
         .n_prompt = 100,
         .n_choices = 2,
         .n_waiting = 1,
         .n_run = 99,
         .admitted = true},
        {.id = 6,
         .ctx = &chat,
         .n_prompt = 100,
         .n_choices = 2,
         .n_over = 1,
         .n_waiting = 1,
         .n_told = 30,
         .admitted = true},
        {.id = 7, .ctx = &preload, .n_prompt = 8, .n_choices = 1, .n_waiting = 1},
    };
    static const char *const states[] = {"decode", "prefill", "waiting", "queued"};
    sheaf__text text = {0};
    assert_int_equal(sheaf__slots_render(infos, 4, 2501000000, &text), SHEAF_OK);
    static const char first[] =
        "[{\"id\":4,\"request_id\":\"req_1\",\"endpoint\":\"chat\",\"state\":"
        "\"decode\",\"n_prompt\":100,\"cached_tokens\":64,\"n_run\":105,"
        "\"n_told\":12,\"n_choices\":3,\"n_over\":1,\"priority\":-2,"
        "\"age_ms\":2500},";
    assert_memory_equal(text.data, first, sizeof first - 1);
    json_t *list = json_loads(text.data, 0, NULL);
    assert_int_equal(json_array_size(list), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *slot = json_array_get(list, i);
        assert_string_equal(json_string_value(json_object_get(slot, "state")), states[i]);
        assert_int_equal(json_integer_value(json_object_get(slot, "id")), infos[i].id);
    }
    json_t *last = json_array_get(list, 3);
    assert_string_equal(json_string_value(json_object_get(last, "request_id")), "mine \"7\"");
    assert_string_equal(json_string_value(json_object_get(last, "endpoint")), "preload");
    assert_int_equal(json_integer_value(json_object_get(last, "age_ms")), 0); /* not yet */
    json_decref(list);
    sheaf__text_free(&text);
}

static void no_request_is_an_empty_list(void **state)
{
    (void)state;
    sheaf__text text = {0};
    assert_int_equal(sheaf__slots_render(NULL, 0, 1, &text), SHEAF_OK);
    assert_string_equal(text.data, "[]");
    sheaf__text_free(&text);
}

/* ---- blocks ------------------------------------------------------------------------------ */

static void each_row_is_a_character_and_owners_are_runs(void **state)
{
    (void)state;
    sheaf_row rows[10];
    for (uint32_t i = 0; i < 10; i++) rows[i] = (sheaf_row){.state = i};
    uint64_t owners[] = {7, 7, 0, 0, 7, 18446744073709551615u, 8, 8, 8, 0};
    const sheaf__map_group groups[] = {
        {.slab_blocks = 4,
         .n_rows = 10,
         .block_bytes = 8589934592,
         .rows = rows,
         .owners = owners},
        {.slab_blocks = 2},
        {.slab_blocks = 1,
         .n_rows = 1,
         .block_bytes = 64,
         .rows = &rows[2],
         .owners = &owners[2]},
    };
    sheaf__text text = {0};
    assert_int_equal(sheaf__map_render(32, groups, 3, &text), SHEAF_OK);
    assert_string_equal(
        text.data,
        "{\"block_tokens\":32,\"groups\":["
        "{\"group\":0,\"slab_blocks\":4,\"block_bytes\":8589934592,\"rows\":10,"
        "\"states\":\"-.rkcsihtp\","
        "\"owners\":[[0,2,7],[4,1,7],[5,1,18446744073709551615],[6,3,8]]},"
        "{\"group\":1,\"slab_blocks\":2,\"block_bytes\":0,\"rows\":0,\"states\":\"\","
        "\"owners\":[]},"
        "{\"group\":2,\"slab_blocks\":1,\"block_bytes\":64,\"rows\":1,\"states\":\"r\","
        "\"owners\":[]}]}");
    sheaf__text_free(&text);
}

/* Every row another owner's: the longest text that so many rows can have. */
static void a_large_pool_is_told_whole_and_soon(void **state)
{
    (void)state;
    enum { N = 100000 };
    sheaf_row *rows = calloc(N, sizeof *rows);
    uint64_t *owners = calloc(N, sizeof *owners), start = worked_ns();
    assert_true(rows != NULL && owners != NULL);
    for (uint32_t i = 0; i < N; i++) {
        rows[i].state = i % 10;
        owners[i] = i * 1000003u;
    }
    const sheaf__map_group group = {
        .slab_blocks = 32, .n_rows = N, .block_bytes = 1 << 20, .rows = rows, .owners = owners};
    sheaf__text text = {0};
    assert_int_equal(sheaf__map_render(32, &group, 1, &text), SHEAF_OK);
    fprintf(stderr, "%d rows: %.1f ms\n", N, (double)(worked_ns() - start) * 1e-6);
    json_t *root = json_loads(text.data, 0, NULL),
           *told = json_array_get(json_object_get(root, "groups"), 0);
    assert_int_equal(json_string_length(json_object_get(told, "states")), N);
    json_t *runs = json_object_get(told, "owners");
    assert_int_equal(json_array_size(runs), N - 1); /* the first is nobody's */
    for (uint32_t i = 1; i < N; i += 997) {
        json_t *run = json_array_get(runs, i - 1);
        assert_int_equal(json_integer_value(json_array_get(run, 0)), i);
        assert_int_equal(json_integer_value(json_array_get(run, 1)), 1);
        assert_int_equal(json_integer_value(json_array_get(run, 2)), owners[i]);
    }
    json_decref(root);
    sheaf__text_free(&text);
    free(rows);
    free(owners);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_say_where_each_request_stands),
        cmocka_unit_test(no_request_is_an_empty_list),
        cmocka_unit_test(each_row_is_a_character_and_owners_are_runs),
        cmocka_unit_test(a_large_pool_is_told_whole_and_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
