/* test_admission.c - who may enter beside what runs, and when. */
#include "engine/engines.h"
#include "testing.h"

#define BLOCK 8

static sheaf__model_options room_for(const char *dir, uint32_t tokens)
{
    sheaf__model_options m = {.block_tokens = BLOCK, .slab_blocks = 1};
    m.kv_budget_bytes = host_budget(dir, m, tokens);
    return m;
}

static sheaf_group_info group_of(host *h, bool windowed)
{
    for (uint32_t g = 0;; g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        assert_int_equal(sheaf_pool_group_info(h->model->pool, g, &info), SHEAF_OK);
        if ((info.window != 0) == windowed) return info;
    }
}

/* ---- the longest prompt ------------------------------------------------------------------ */

/* The longest prompt that is taken is run to its end, and one token more is refused at once. */
static void take_longest(const sheaf__model_options *m, const char *dir)
{
    static host h;
    static asked a;
    sheaf_error err = {0};
    host_open(&h, dir, *m, (sheaf__engine_options){0});
    uint32_t n = h.engine->max_prompt;
    assert_in_range(n, 1, ENGINES_PROMPT - 1);
    host_ask(&h, &a, (want){.n = n + 1, .kind = 1, .max_tokens = 1});
    assert_int_equal(sheaf__engine_submit(h.engine, &a.ask, &a.id, &err), SHEAF_E_CONTEXT);
    host_submit(&h, &a, (want){.n = n, .kind = 1, .max_tokens = 1});
    host_idle(&h);
    host_expect(&h, &a);
    host_close(&h);
}

static void the_longest_prompt_that_is_taken_has_room(void **state)
{
    (void)state;
    static host h;
    for (uint32_t tokens = BLOCK; tokens < 120; tokens += 21) {
        sheaf__model_options m = room_for(RUNS_LLAMA, tokens);
        take_longest(&m, RUNS_LLAMA);
        for (uint32_t block = 4; block <= 16; block *= 2) {
            m = (sheaf__model_options){.block_tokens = block, .slab_blocks = 1};
            host_open(&h, RUNS_GEMMA, m, (sheaf__engine_options){0});
            sheaf_group_info all = group_of(&h, false), seen = group_of(&h, true);
            host_close(&h);
            for (uint32_t more = 0; more < 2; more++) { /* blocks, for what a window sees */
                uint64_t n_seen = (seen.window + block - 1) / block + more;
                m.kv_budget_bytes = n_seen * seen.slab_bytes +
                                    (tokens + block - 1) / block * (uint64_t)all.slab_bytes;
                take_longest(&m, RUNS_GEMMA);
            }
        }
    }
}

/* Slabs of more than a block: what a window sees must not keep more of them than it needs. */
static void windows_in_few_slabs_have_room_for_the_longest_prompt(void **state)
{
    (void)state;
    static host h;
    for (uint32_t slab = 2; slab <= 8; slab *= 2)
        for (uint32_t tokens = 40; tokens < 120; tokens += 21) {
            sheaf__model_options m = {.block_tokens = 4, .slab_blocks = slab};
            host_open(&h, RUNS_GEMMA, m, (sheaf__engine_options){0});
            sheaf_group_info all = group_of(&h, false), seen = group_of(&h, true);
            host_close(&h);
            uint64_t n_seen = (seen.window / 4 + slab) / slab,
                     n_all = (tokens / 4 + slab) / slab;
            m.kv_budget_bytes = n_seen * seen.slab_bytes + n_all * all.slab_bytes;
            take_longest(&m, RUNS_GEMMA);
        }
}

/* ---- room -------------------------------------------------------------------------------- */

static void prompts_that_cannot_end_together_do_not_begin_together(void **state)
{
    (void)state;
    static host h;
    static asked a[4];
    host_open(&h, RUNS_LLAMA, room_for(RUNS_LLAMA, 448),
              (sheaf__engine_options){.batch_tokens = 32, .prefill_chunk = 16});
    for (uint32_t i = 0; i < 4; i++)
        host_submit(&h, &a[i], (want){.n = 200, .kind = i + 1, .max_tokens = 4});
    while (sheaf__engine_step(h.engine)) assert_true(host_stats(&h).running <= 2);
    host_idle(&h);
    for (uint32_t i = 0; i < 4; i++) {
        host_expect(&h, &a[i]);
        assert_int_equal(a[i].place, i + 1);
        assert_int_equal(a[i].n_computed, 200 + 3); /* nothing twice */
    }
    assert_int_equal(host_stats(&h).preemptions, 0);
    host_close(&h);
}

static void who_waits_for_anothers_blocks_keeps_nobody_out(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    host_open(&h, RUNS_LLAMA, room_for(RUNS_LLAMA, 256),
              (sheaf__engine_options){.batch_tokens = 16, .prefill_chunk = 8});
    for (uint32_t i = 0; i < 2; i++) /* the second alone would have no room beside the first */
        host_submit(&h, &a[i], (want){.n = 166, .kind = i + 1, .shared = 160, .max_tokens = 4});
    host_submit(&h, &a[2], (want){.n = 20, .kind = 3, .max_tokens = 4});
    while (!a[2].done) assert_true(sheaf__engine_step(h.engine));
    assert_true(!a[0].done && !a[1].admitted);
    host_idle(&h);
    for (uint32_t i = 0; i < 3; i++) host_expect(&h, &a[i]);
    assert_int_equal(a[1].cached, 160);
    assert_int_equal(host_stats(&h).preemptions, 0);
    host_close(&h);
}

static void who_waits_for_room_claims_nothing(void **state)
{
    (void)state;
    static host h;
    static asked a[2];
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    host_open(&h, RUNS_LLAMA, room_for(RUNS_LLAMA, 104), (sheaf__engine_options){0});
    for (uint32_t i = 0; i < 2; i++)
        host_submit(&h, &a[i], (want){.n = 60, .kind = i + 1, .max_tokens = 20});
    while (!a[0].done) {
        assert_true(sheaf__engine_step(h.engine));
        assert_int_equal(sheaf_prefix_stats_read(h.engine->prefix, &stats), SHEAF_OK);
        assert_int_equal(stats.claims + stats.waiters, 0); /* the first one's prompt is there */
    }
    host_idle(&h);
    for (uint32_t i = 0; i < 2; i++) host_expect(&h, &a[i]);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_prompt_that_is_taken_has_room),
        cmocka_unit_test(windows_in_few_slabs_have_room_for_the_longest_prompt),
        cmocka_unit_test(prompts_that_cannot_end_together_do_not_begin_together),
        cmocka_unit_test(who_waits_for_anothers_blocks_keeps_nobody_out),
        cmocka_unit_test(who_waits_for_room_claims_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
