/* test_engine_prompts.c - prompts for their own sake: put into the cache, pinned, told of. */
#include "engine/engines.h"
#include "testing.h"

#define BLOCK 8

static const sheaf__model_options SMALL = {.block_tokens = BLOCK, .slab_blocks = 1};

/* An ask that samples nothing. */
static void ask_prompt(host *h, asked *a, want w)
{
    host_ask(h, a, w);
    a->ask.kind = SHEAF__ASK_PROMPT;
}

static void expect_run(const asked *a, uint32_t cached, uint32_t n_computed)
{
    assert_true(a->done && !a->broken);
    for (uint32_t c = 0; c < (a->ask.n_choices == 0 ? 1 : a->ask.n_choices); c++) {
        assert_int_equal(a->finish[c], SHEAF__FINISH_LENGTH);
        assert_int_equal(a->n_tokens[c], 0);
    }
    assert_int_equal(a->cached, cached);
    assert_int_equal(a->n_computed, n_computed);
}

static uint64_t evict_all(host *h)
{
    uint64_t freed = 0;
    assert_int_equal(sheaf_prefix_evict(h->engine->prefix, UINT64_MAX, &freed), SHEAF_OK);
    return freed;
}

/* ---- put into the cache ------------------------------------------------------------------ */

static void put_and_ask(const char *dir, sheaf__engine_options o)
{
    static host h;
    static asked a, b, c;
    host_open(&h, dir, SMALL, o);
    for (uint32_t n = 1; n <= 70; n += n < 4 * BLOCK ? 1 : 19) {
        const want w = {.n = n, .kind = n, .max_tokens = 4};
        ask_prompt(&h, &a, w);
        ask_prompt(&h, &b, (want){.n = n, .kind = n, .n_choices = n % 3});
        host_send(&h, &a);
        host_idle(&h);
        expect_run(&a, 0, n);
        host_send(&h, &b);
        host_idle(&h);
        expect_run(&b, n - 1, 0);
        host_submit(&h, &c, w);
        host_idle(&h);
        host_expect(&h, &c);
        assert_int_equal(c.cached, n - 1);
    }
    assert_int_equal(host_stats(&h).failed + host_stats(&h).cancelled, 0);
    host_close(&h);
}

static void a_prompt_is_put_into_the_cache_with_its_tail(void **state)
{
    (void)state;
    put_and_ask(RUNS_LLAMA, (sheaf__engine_options){0});
    put_and_ask(RUNS_LLAMA, (sheaf__engine_options){.batch_tokens = 7});
    put_and_ask(RUNS_GEMMA, (sheaf__engine_options){.prefill_chunk = 12});
}

/* Its last token is told and never run: it counts for nothing. */
static void an_answer_that_just_fits_is_kept(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    sheaf_prefix_options p = SHEAF_PREFIX_OPTIONS_INIT;
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    p.capacity_bytes = 5 * host_budget(RUNS_LLAMA, SMALL, BLOCK);
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.prefix = &p});
    host_submit(&h, &a, (want){.n = 5 * BLOCK - 2, .kind = 1, .max_tokens = 3});
    host_idle(&h);
    host_expect(&h, &a);
    assert_int_equal(sheaf_prefix_stats_read(h.engine->prefix, &stats), SHEAF_OK);
    for (uint32_t i = 0; i < SHEAF_REFUSED_KINDS; i++) assert_int_equal(stats.refusals[i], 0);
    host_ask(&h, &b, (want){.n = 5 * BLOCK, .kind = 1, .max_tokens = 1});
    memcpy(b.prompt + 5 * BLOCK - 2, a.tokens[0], 2 * sizeof *b.prompt);
    host_send(&h, &b);
    host_idle(&h);
    host_expect(&h, &b);
    assert_int_equal(b.cached, 5 * BLOCK - 1);
    host_close(&h);
}

/* ---- pinned ------------------------------------------------------------------------------ */

static void what_is_pinned_stays(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    uint32_t n = 0;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    ask_prompt(&h, &a, (want){.n = 43, .kind = 1});
    a.ask.pin = true;
    a.ask.pin_owner = 9;
    host_send(&h, &a);
    host_idle(&h);
    expect_run(&a, 0, 43);
    assert_int_not_equal(a.pin, 0);
    assert_int_equal(a.pinned_tokens, 43);
    assert_int_equal(sheaf_prefix_pinned(h.engine->prefix, a.pin), SHEAF_OK);
    host_submit(&h, &b, (want){.n = 40, .kind = 2, .max_tokens = 2});
    host_idle(&h);
    assert_int_equal(b.pin, 0);
    assert_true(evict_all(&h) > 0);
    host_submit(&h, &b, (want){.n = 60, .kind = 2, .shared = 0, .max_tokens = 2});
    host_idle(&h);
    assert_int_equal(b.cached, 0);
    host_submit(&h, &b, (want){.n = 43, .kind = 1, .max_tokens = 5});
    host_idle(&h);
    host_expect(&h, &b);
    assert_int_equal(b.cached, 42);
    assert_int_equal(sheaf_prefix_unpin_owner(h.engine->prefix, 9, &n), SHEAF_OK);
    assert_int_equal(n, 1);
    evict_all(&h);
    host_submit(&h, &b, (want){.n = 43, .kind = 1, .max_tokens = 5});
    host_idle(&h);
    assert_int_equal(b.cached, 0);
    host_close(&h);
}

static void pins_that_leave_no_room_are_told(void **state)
{
    (void)state;
    static host h;
    static asked a, b, c;
    sheaf__model_options m = SMALL;
    m.kv_budget_bytes = host_budget(RUNS_LLAMA, m, 96);
    for (uint32_t revocable = 0; revocable < 2; revocable++) {
        host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){0});
        ask_prompt(&h, &a, (want){.n = 64, .kind = 1});
        a.ask.pin = true;
        a.ask.pin_flags = revocable ? SHEAF_PIN_REVOCABLE : 0;
        host_send(&h, &a);
        host_idle(&h);
        assert_int_equal(a.pinned_tokens, 64);
        host_submit(&h, &b, (want){.n = 64, .kind = 2, .max_tokens = 4});
        host_submit(&h, &c, (want){.n = 16, .kind = 3, .max_tokens = 4});
        host_idle(&h);
        host_expect(&h, &c); /* the queue goes on */
        assert_int_equal(sheaf_prefix_pinned(h.engine->prefix, a.pin),
                         revocable ? SHEAF_MISS : SHEAF_OK);
        if (revocable) {
            host_expect(&h, &b);
        } else {
            assert_true(b.done && !b.broken);
            assert_int_equal(b.finish[0], SHEAF__FINISH_ERROR);
            assert_int_equal(b.status, SHEAF_FULL);
        }
        host_close(&h);
    }
}

static void a_pin_beyond_the_capacity_is_refused(void **state)
{
    (void)state;
    static host h;
    static asked a;
    sheaf_error err = {0};
    char numbers[2][32];
    sheaf_prefix_options p = SHEAF_PREFIX_OPTIONS_INIT;
    uint64_t block = host_budget(RUNS_LLAMA, SMALL, BLOCK);
    p.capacity_bytes = 5 * block;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.prefix = &p});
    ask_prompt(&h, &a, (want){.n = 5 * BLOCK + 1, .kind = 1});
    a.ask.pin = true;
    assert_int_equal(sheaf__engine_submit(h.engine, &a.ask, &a.id, &err), SHEAF_REFUSED);
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_group_info(h.model->pool, 0, &info), SHEAF_OK);
    snprintf(numbers[0], sizeof numbers[0], "%llu", 6ull * info.block_bytes);
    snprintf(numbers[1], sizeof numbers[1], "%llu", 5ull * block);
    assert_non_null(strstr(err.text, numbers[0]));
    assert_non_null(strstr(err.text, numbers[1]));
    a.ask.pin = false; /* without it, it is run: nobody wants it kept */
    host_send(&h, &a);
    host_idle(&h);
    expect_run(&a, 0, 5 * BLOCK + 1);
    host_close(&h);
}

static void a_pin_that_finds_no_place_beside_others_is_none(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    sheaf_prefix_options p = SHEAF_PREFIX_OPTIONS_INIT;
    p.capacity_bytes = 5 * host_budget(RUNS_LLAMA, SMALL, BLOCK);
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.prefix = &p});
    ask_prompt(&h, &a, (want){.n = 5 * BLOCK, .kind = 1});
    ask_prompt(&h, &b, (want){.n = 5 * BLOCK, .kind = 2});
    a.ask.pin = b.ask.pin = true;
    host_send(&h, &a);
    host_send(&h, &b);
    host_idle(&h);
    expect_run(&b, 0, 5 * BLOCK);
    assert_int_equal(a.pinned_tokens, 5 * BLOCK);
    assert_int_equal(b.pin, 0);
    assert_int_equal(b.pinned_tokens, 0);
    host_close(&h);
}

static void pins_of_something_else_are_refused(void **state)
{
    (void)state;
    static host h;
    static asked a;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_ask(&h, &a, (want){.n = 20, .kind = 1});
    a.ask.pin = true;
    assert_int_equal(sheaf__engine_submit(h.engine, &a.ask, &a.id, NULL), SHEAF_E_INVALID);
    ask_prompt(&h, &a, (want){.n = 20, .kind = 1});
    a.ask.pin = true;
    a.ask.pin_flags = 2;
    assert_int_equal(sheaf__engine_submit(h.engine, &a.ask, &a.id, NULL), SHEAF_E_INVALID);
    host_close(&h);
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.no_prompt_cache = true});
    a.ask.pin_flags = 0;
    assert_int_equal(sheaf__engine_submit(h.engine, &a.ask, &a.id, NULL), SHEAF_E_UNSUPPORTED);
    host_close(&h);
}

/* ---- told of ----------------------------------------------------------------------------- */

static void each_position_of_a_prompt_is_told_once(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.batch_tokens = 48});
    const uint32_t lengths[] = {1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 31, 32, 33, 34, 65, 150};
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        want w = {.n = lengths[i], .kind = i, .max_tokens = 3};
        host_submit(&h, &a, w);
        host_idle(&h);
        w.tells_prompt = true;
        w.n_choices = 1 + i % 3;
        w.seed = i;
        host_submit(&h, &b, w); /* the prompt is in the cache, and is run all the same */
        host_idle(&h);
        host_expect(&h, &b);
        assert_int_equal(b.cached, 0);
        uint32_t ran = w.n == 1 ? 0 : w.n; /* of one token there is nothing to tell */
        assert_int_equal(b.n_computed, ran + 2 * w.n_choices);
        host_submit(&h, &a, (want){.n = lengths[i], .kind = i, .max_tokens = 3});
        host_idle(&h);
        host_expect(&h, &a);
        assert_int_equal(a.cached, lengths[i] - 1); /* what was run is found by others */
    }
    host_close(&h);
}

static void a_prompt_alone_is_told_of(void **state)
{
    (void)state;
    static host h;
    static asked a;
    host_open(&h, RUNS_GEMMA, SMALL, (sheaf__engine_options){0});
    for (uint32_t n = 1; n < 100; n += 33) {
        ask_prompt(&h, &a, (want){.n = n, .kind = 1, .tells_prompt = true});
        host_send(&h, &a);
        host_idle(&h);
        expect_run(&a, 0, n);
        assert_int_equal(a.n_prompt_told, n - 1);
    }
    host_close(&h);
}

static void few_rows_a_step_have_their_logits_kept(void **state)
{
    (void)state;
    static host h;
    static asked a[4];
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.batch_tokens = 128});
    for (uint32_t i = 0; i < 4; i++)
        host_submit(
            &h, &a[i],
            (want){.n = 100, .kind = i, .shared = 60, .max_tokens = 3, .tells_prompt = i != 2});
    host_idle(&h);
    for (uint32_t i = 0; i < 4; i++) host_expect(&h, &a[i]);
    assert_in_range(h.engine->logits_rows, 32, 32 + 4);
    host_close(&h);
}

static void what_was_told_before_a_preemption_is_not_told_again(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    sheaf__model_options m = SMALL;
    m.kv_budget_bytes = host_budget(RUNS_LLAMA, m, 128);
    uint32_t in_the_middle = 0;
    for (uint32_t evict = 0; evict < 2; evict++) {
        host_open(&h, RUNS_LLAMA, m,
                  (sheaf__engine_options){.batch_tokens = 8, .prefill_chunk = 8});
        host_submit(&h, &a, (want){.n = 30, .kind = 1, .max_tokens = 60});
        while (a.n_tokens[0] < 20) assert_true(sheaf__engine_step(h.engine));
        host_submit(&h, &b, (want){.n = 72, .kind = 2, .max_tokens = 9, .tells_prompt = true});
        while (sheaf__engine_step(h.engine)) {
            if (host_stats(&h).preemptions == 0 || b.n_prompt_told == 71) continue;
            in_the_middle += b.n_prompt_told > 8;
            if (evict) evict_all(&h);
        }
        host_idle(&h);
        assert_int_not_equal(host_stats(&h).preemptions, 0);
        host_expect(&h, &a);
        host_expect(&h, &b);
        assert_int_equal(b.cached, 0);
        host_close(&h);
    }
    assert_int_not_equal(in_the_middle, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_is_put_into_the_cache_with_its_tail),
        cmocka_unit_test(an_answer_that_just_fits_is_kept),
        cmocka_unit_test(what_is_pinned_stays),
        cmocka_unit_test(pins_that_leave_no_room_are_told),
        cmocka_unit_test(a_pin_beyond_the_capacity_is_refused),
        cmocka_unit_test(a_pin_that_finds_no_place_beside_others_is_none),
        cmocka_unit_test(pins_of_something_else_are_refused),
        cmocka_unit_test(each_position_of_a_prompt_is_told_once),
        cmocka_unit_test(a_prompt_alone_is_told_of),
        cmocka_unit_test(few_rows_a_step_have_their_logits_kept),
        cmocka_unit_test(what_was_told_before_a_preemption_is_not_told_again),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
