/* test_scheduler.c - the rules of an engine, one by one, on a small model. */
#include <math.h>

#include "engine/engines.h"
#include "testing.h"

#define BLOCK 8

static const sheaf__model_options SMALL = {.block_tokens = BLOCK, .slab_blocks = 1};

/* A pool with room for so many tokens. */
static sheaf__model_options room_for(uint32_t tokens)
{
    sheaf__model_options m = SMALL;
    m.kv_budget_bytes = host_budget(RUNS_LLAMA, m, tokens);
    return m;
}

static void open_small(host *h, sheaf__engine_options e)
{
    host_open(h, RUNS_LLAMA, SMALL, e);
}

/* ---- what is told ------------------------------------------------------------------------ */

static void a_request_is_told_its_tokens_and_its_end(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    open_small(&h, (sheaf__engine_options){0});
    host_submit(&h, &a, (want){.n = 40, .kind = 1, .max_tokens = 9});
    host_submit(&h, &b, (want){.n = 21, .kind = 2, .max_tokens = 9, .seed = 7});
    host_idle(&h);
    host_expect(&h, &a);
    host_expect(&h, &b);
    assert_int_equal(a.cached, 0);
    assert_int_equal(a.n_computed, 40 + 8);
    sheaf__engine_stats stats = host_stats(&h);
    assert_int_equal(stats.finished, 2);
    assert_int_equal(stats.tokens_computed, 40 + 8 + 21 + 8);
    assert_int_equal(stats.tokens_told, 18);
    assert_int_equal(stats.steps, 9);
    host_close(&h);
}

static void a_token_that_ends_the_text_stops_it_untold(void **state)
{
    (void)state;
    static host h;
    static asked a;
    int32_t alone[ENGINES_TOKENS];
    open_small(&h, (sheaf__engine_options){0});
    host_ask(&h, &a, (want){.n = 30, .kind = 3, .max_tokens = 12, .seed = 5});
    assert_int_equal(host_alone(&h, &a, 0, alone), 12);
    uint32_t first = 0; /* where the token that ends it comes first */
    while (alone[first] != alone[6]) first++;
    h.model->config.n_eos = 1;
    h.model->config.eos[0] = alone[6];
    host_submit(&h, &a, (want){.n = 30, .kind = 3, .max_tokens = 12, .seed = 5});
    host_idle(&h);
    assert_true(a.done && !a.broken);
    assert_int_equal(a.finish[0], SHEAF__FINISH_STOP);
    assert_int_equal(a.n_tokens[0], first);
    assert_memory_equal(a.tokens[0], alone, first * sizeof *alone);
    host_close(&h);
}

static void the_end_of_the_context_ends_an_answer(void **state)
{
    (void)state;
    static host h;
    static asked a, b, c;
    sheaf__model_options m = SMALL;
    m.ctx_size = 48;
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){0});
    host_submit(&h, &a, (want){.n = 40, .kind = 1, .max_tokens = 30});
    host_submit(&h, &b, (want){.n = 40, .kind = 1, .max_tokens = 0});
    host_submit(&h, &c, (want){.n = 48, .kind = 2, .max_tokens = 30});
    host_idle(&h);
    host_expect(&h, &a);
    host_expect(&h, &c);
    assert_int_equal(a.n_tokens[0], 9);
    assert_int_equal(c.n_tokens[0], 1);
    assert_true(b.done && !b.broken);
    assert_int_equal(b.finish[0], SHEAF__FINISH_LENGTH);
    assert_int_equal(b.n_tokens[0], 9);
    assert_memory_equal(a.tokens[0], b.tokens[0], sizeof a.tokens[0]);
    host_close(&h);
}

static void a_prompt_found_whole_is_not_computed_again(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    open_small(&h, (sheaf__engine_options){0});
    for (uint32_t n = BLOCK - 1; n <= 3 * BLOCK + 1; n++) {
        want w = {.n = n, .kind = n, .max_tokens = 5};
        host_submit(&h, &a, w);
        host_idle(&h);
        host_submit(&h, &b, w);
        host_idle(&h);
        host_expect(&h, &b);
        assert_int_equal(b.cached, n - 1);
        assert_int_equal(b.n_computed, 4); /* its answer's, the last token not */
    }
    host_close(&h);
}

static void salts_and_no_prompt_cache_share_nothing(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    want w = {.n = 40, .kind = 1, .max_tokens = 4};
    open_small(&h, (sheaf__engine_options){0});
    for (uint32_t i = 0; i < 3; i++) {
        w.salt = i == 1 ? "b" : "a";
        host_submit(&h, &a[i], w);
        host_idle(&h);
        host_expect(&h, &a[i]);
    }
    assert_int_equal(a[0].cached, 0);
    assert_int_equal(a[1].cached, 0);
    assert_int_equal(a[2].cached, 39);
    host_close(&h);

    open_small(&h, (sheaf__engine_options){.no_prompt_cache = true});
    for (uint32_t i = 0; i < 2; i++) {
        host_submit(&h, &a[i], w);
        host_idle(&h);
        host_expect(&h, &a[i]);
        assert_int_equal(a[i].cached, 0);
    }
    host_close(&h);
}

static void choices_are_forked_from_one_prompt(void **state)
{
    (void)state;
    static host h;
    static asked a;
    open_small(&h, (sheaf__engine_options){0});
    host_submit(&h, &a,
                (want){.n = 43, .kind = 4, .max_tokens = 20, .n_choices = 3, .seed = 11});
    host_idle(&h);
    host_expect(&h, &a);
    assert_int_equal(a.n_computed, 43 + 3 * 19);
    assert_true(memcmp(a.tokens[0], a.tokens[1], sizeof a.tokens[0]) != 0);
    assert_true(memcmp(a.tokens[1], a.tokens[2], sizeof a.tokens[0]) != 0);
    host_close(&h);
}

/* ---- fairness ---------------------------------------------------------------------------- */

static void prompts_take_turns(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    open_small(&h, (sheaf__engine_options){.batch_tokens = 16, .prefill_chunk = 16});
    for (uint32_t i = 0; i < 3; i++)
        host_submit(&h, &a[i], (want){.n = 160, .kind = i + 1, .max_tokens = 2});
    for (uint32_t step = 1; step <= 27; step++) {
        assert_true(sheaf__engine_step(h.engine));
        uint32_t least = UINT32_MAX, most = 0;
        SHEAF__FOR_REQUESTS(h.engine, at)
        {
            uint32_t ran = (uint32_t)sheaf__request_of(at)->n_computed;
            least = ran < least ? ran : least;
            most = ran > most ? ran : most;
        }
        assert_true(most - least <= 16);
    }
    host_idle(&h);
    for (uint32_t i = 0; i < 3; i++) host_expect(&h, &a[i]);
    host_close(&h);
}

static void answers_go_on_while_a_prompt_is_run(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    open_small(&h, (sheaf__engine_options){.batch_tokens = 16, .prefill_chunk = 16});
    host_submit(&h, &a, (want){.n = 10, .kind = 1, .max_tokens = 25});
    assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &b, (want){.n = 300, .kind = 2, .max_tokens = 2});
    for (uint32_t i = 2; i < 20; i++) {
        uint64_t rows = host_stats(&h).rows;
        assert_true(sheaf__engine_step(h.engine));
        assert_int_equal(a.n_tokens[0], i);
        assert_int_equal(host_stats(&h).rows - rows, 16); /* one of these is the answer's */
    }
    host_idle(&h);
    host_expect(&h, &a);
    host_expect(&h, &b);
    host_close(&h);
}

static void more_answers_than_a_batch_starve_nobody(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    open_small(&h, (sheaf__engine_options){.batch_tokens = 4});
    host_submit(&h, &a, (want){.n = 4, .kind = 1, .max_tokens = 30, .n_choices = 7, .seed = 3});
    assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &b, (want){.n = 20, .kind = 2, .max_tokens = 2});
    while (!a.done) {
        uint64_t rows = host_stats(&h).rows;
        assert_true(sheaf__engine_step(h.engine));
        assert_true(host_stats(&h).rows - rows <= 4);
        uint32_t least = UINT32_MAX, most = 0;
        for (uint32_t c = 0; c < 7; c++) {
            least = a.n_tokens[c] < least ? a.n_tokens[c] : least;
            most = a.n_tokens[c] > most ? a.n_tokens[c] : most;
        }
        assert_true(most - least <= 1);
    }
    host_idle(&h);
    assert_int_equal(b.place, 1);
    host_expect(&h, &a);
    host_expect(&h, &b);
    host_close(&h);
}

static void higher_priorities_are_admitted_first(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    open_small(&h, (sheaf__engine_options){.parallel = 1});
    for (uint32_t i = 0; i < 3; i++)
        host_submit(&h, &a[i],
                    (want){.n = 20, .kind = i + 1, .max_tokens = 3, .priority = (int32_t)i});
    host_idle(&h);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(a[i].place, 3 - i);
        host_expect(&h, &a[i]);
    }
    host_close(&h);
}

static void no_more_run_than_are_allowed(void **state)
{
    (void)state;
    static host h;
    static asked a[5];
    open_small(&h, (sheaf__engine_options){.parallel = 2});
    for (uint32_t i = 0; i < 5; i++)
        host_submit(&h, &a[i],
                    (want){.n = 20, .kind = i + 1, .max_tokens = 4, .n_choices = 2, .seed = 1});
    while (sheaf__engine_step(h.engine)) assert_true(host_stats(&h).running <= 2);
    host_idle(&h);
    for (uint32_t i = 0; i < 5; i++) host_expect(&h, &a[i]);
    host_close(&h);
}

/* ---- sharing while it is computed -------------------------------------------------------- */

static void a_shared_prefix_is_computed_once(void **state)
{
    (void)state;
    static host h;
    static asked a[6];
    open_small(&h, (sheaf__engine_options){.batch_tokens = 32, .prefill_chunk = 32});
    for (uint32_t i = 0; i < 6; i++)
        host_submit(&h, &a[i], (want){.n = 206, .kind = i + 1, .shared = 200, .max_tokens = 3});
    assert_true(sheaf__engine_step(h.engine));
    assert_int_equal(host_stats(&h).running, 1); /* the others wait, and hold nothing */
    host_idle(&h);
    for (uint32_t i = 0; i < 6; i++) {
        host_expect(&h, &a[i]);
        assert_true(a[i].cached >= (i == 0 ? 0 : 200));
    }
    assert_int_equal(host_stats(&h).tokens_computed, 200 + 6 * (6 + 2));
    host_close(&h);
}

static void a_waiter_takes_over_from_who_is_cancelled(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    open_small(&h, (sheaf__engine_options){.batch_tokens = 32, .prefill_chunk = 32});
    for (uint32_t i = 0; i < 3; i++)
        host_submit(&h, &a[i], (want){.n = 206, .kind = i + 1, .shared = 200, .max_tokens = 3});
    for (uint32_t i = 0; i < 3; i++) assert_true(sheaf__engine_step(h.engine));
    assert_int_equal(sheaf__engine_cancel(h.engine, a[0].id), SHEAF_OK);
    assert_true(sheaf__engine_step(h.engine));
    assert_int_equal(host_stats(&h).running, 1);
    host_idle(&h);
    assert_int_equal(a[0].finish[0], SHEAF__FINISH_CANCELLED);
    host_expect(&h, &a[1]);
    host_expect(&h, &a[2]);
    assert_int_equal(a[1].cached, 96);
    assert_int_equal(host_stats(&h).tokens_computed, 200 + 2 * (6 + 2));
    host_close(&h);
}

static uint64_t takeovers(const host *h)
{
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    assert_int_equal(sheaf_prefix_stats_read(h->engine->prefix, &stats), SHEAF_OK);
    return stats.takeovers;
}

static void a_waiter_takes_over_from_who_is_preempted(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    host_open(&h, RUNS_LLAMA, room_for(256),
              (sheaf__engine_options){.batch_tokens = 5, .prefill_chunk = 4});
    host_submit(&h, &a[0], (want){.n = 20, .kind = 1, .max_tokens = 52, .priority = 2});
    while (a[0].n_tokens[0] == 0) assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &a[1], (want){.n = 206, .kind = 2, .shared = 200, .max_tokens = 3});
    assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &a[2],
                (want){.n = 206, .kind = 3, .shared = 200, .max_tokens = 3, .priority = 1});
    while (host_stats(&h).preemptions == 0) {
        assert_true(sheaf__engine_step(h.engine));
        assert_int_equal(takeovers(&h), host_stats(&h).preemptions);
    }
    host_idle(&h);
    for (uint32_t i = 0; i < 3; i++) host_expect(&h, &a[i]);
    /* the oldest ended before it needed the room; what was computed until then is found */
    assert_true(a[2].cached >= 160 && a[2].cached < 200);
    assert_int_equal(host_stats(&h).preemptions, 1);
    assert_in_range(host_stats(&h).tokens_computed, 71 + 200 + 2 * 8, 71 + 200 + BLOCK + 2 * 8);
    host_close(&h);
}

/* ---- no room ----------------------------------------------------------------------------- */

static void the_youngest_is_preempted_and_gives_the_same(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    host_open(&h, RUNS_LLAMA, room_for(160), (sheaf__engine_options){0});
    for (uint32_t i = 0; i < 3; i++)
        host_submit(&h, &a[i],
                    (want){.n = 40, .kind = i + 1, .max_tokens = 60, .seed = i == 1 ? 9 : 0});
    bool seen = false;
    while (sheaf__engine_step(h.engine)) {
        host_check(&h);
        if (seen || host_stats(&h).preemptions == 0) continue;
        seen = true;
        SHEAF__FOR_REQUESTS(h.engine, at)
        {
            const sheaf__request *request = sheaf__request_of(at);
            bool runs = request->choices[0].state == SHEAF__CHOICE_RUNNING;
            assert_int_equal(runs, request->id != a[2].id);
        }
    }
    host_idle(&h);
    assert_true(seen);
    for (uint32_t i = 0; i < 3; i++) {
        host_expect(&h, &a[i]);
        assert_int_equal(a[i].place, i + 1);
    }
    assert_int_equal(a[0].n_computed, 40 + 59); /* never anything twice */
    host_close(&h);
}

static void room_for_one_serves_all_the_oldest_first(void **state)
{
    (void)state;
    static const uint32_t batches[] = {512, 100,
                                       64}; /* tokens: of all prompts, of two, of one */
    static host h;
    static asked a[6];
    for (uint32_t b = 0; b < 3; b++) {
        host_open(&h, RUNS_LLAMA, room_for(104),
                  (sheaf__engine_options){.batch_tokens = batches[b]});
        for (uint32_t i = 0; i < 6; i++)
            host_submit(&h, &a[i], (want){.n = 60, .kind = i + 1, .max_tokens = 40});
        host_idle(&h);
        for (uint32_t i = 0; i < 6; i++) {
            host_expect(&h, &a[i]);
            assert_int_equal(a[i].place, i + 1);
        }
        host_close(&h);
    }
}

static void nobody_overtakes_one_that_waits_for_room(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    host_open(&h, RUNS_LLAMA, room_for(104), (sheaf__engine_options){0});
    host_submit(&h, &a[0], (want){.n = 60, .kind = 1, .max_tokens = 20});
    host_submit(&h, &a[1], (want){.n = 60, .kind = 2, .max_tokens = 20});
    host_submit(&h, &a[2], (want){.n = 6, .kind = 3, .max_tokens = 20});
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(sheaf__engine_step(h.engine));
        assert_int_equal(host_stats(&h).running, 1);
        assert_int_equal(host_stats(&h).waiting, 2);
        assert_int_equal(a[2].n_tokens[0], 0);
    }
    host_idle(&h);
    for (uint32_t i = 0; i < 3; i++) host_expect(&h, &a[i]);
    host_close(&h);
}

static void a_waiting_high_priority_goes_before_a_lower_one(void **state)
{
    (void)state;
    static host h;
    static asked a[4];
    host_open(&h, RUNS_LLAMA, room_for(104), (sheaf__engine_options){0});
    for (uint32_t i = 0; i < 3; i++) /* one runs, two wait for room */
        host_submit(&h, &a[i], (want){.n = 60, .kind = i + 1, .max_tokens = 20});
    for (uint32_t i = 0; i < 3; i++) assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &a[3], (want){.n = 60, .kind = 4, .max_tokens = 20, .priority = 3});
    host_idle(&h);
    for (uint32_t i = 0; i < 4; i++) host_expect(&h, &a[i]);
    assert_int_equal(a[0].place, 1); /* who runs is not turned out */
    assert_int_equal(a[3].place, 2);
    assert_int_equal(a[1].place, 3);
    assert_int_equal(a[2].place, 4);
    assert_int_equal(host_stats(&h).preemptions, 0);
    host_close(&h);
}

static void choices_that_do_not_fit_together_follow_each_other(void **state)
{
    (void)state;
    static host h;
    static asked a;
    host_open(&h, RUNS_LLAMA, room_for(112), (sheaf__engine_options){0});
    host_submit(&h, &a,
                (want){.n = 50, .kind = 1, .max_tokens = 50, .n_choices = 4, .seed = 2});
    host_idle(&h);
    assert_true(host_stats(&h).preemptions > 0);
    host_expect(&h, &a);
    host_close(&h);
}

static void who_is_alone_and_has_no_room_ends_with_length(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    int32_t alone[ENGINES_TOKENS];
    host_open(&h, RUNS_LLAMA, room_for(64), (sheaf__engine_options){0});
    host_submit(&h, &a, (want){.n = 40, .kind = 1, .max_tokens = 60});
    host_submit(&h, &b, (want){.n = 30, .kind = 2, .max_tokens = 8});
    host_idle(&h);
    assert_true(a.done && !a.broken);
    assert_int_equal(a.finish[0], SHEAF__FINISH_LENGTH);
    assert_int_equal(host_alone(&h, &a, 0, alone), 60);
    uint32_t room = h.engine->max_prompt + 1 - 40; /* the last token needs no position */
    assert_int_equal(a.n_tokens[0], room);
    assert_memory_equal(a.tokens[0], alone, room * sizeof *alone);
    host_expect(&h, &b);
    host_close(&h);
}

static void a_window_keeps_what_it_sees_alone(void **state)
{
    (void)state;
    static host h;
    static asked a[4];
    sheaf__model_options m = SMALL;
    m.kv_budget_bytes = host_budget(RUNS_GEMMA, m, 144);
    host_open(&h, RUNS_GEMMA, m, (sheaf__engine_options){.prefill_chunk = 24});
    for (uint32_t i = 0; i < 4; i++)
        host_submit(&h, &a[i],
                    (want){.n = 70, .kind = i + 1, .shared = 50, .max_tokens = 40, .seed = i});
    while (sheaf__engine_step(h.engine)) host_check(&h);
    for (uint32_t i = 0; i < 4; i++) host_expect(&h, &a[i]);
    host_close(&h);
}

/* ---- refused ----------------------------------------------------------------------------- */

static void refuse(host *h, sheaf__ask ask, sheaf_status wanted, const char *sentence)
{
    sheaf_error err = {0};
    uint64_t id = 77;
    assert_int_equal(sheaf__engine_submit(h->engine, &ask, &id, &err), wanted);
    assert_int_equal(id, 77);
    if (strstr(err.text, sentence) == NULL) fail_msg("%s", err.text);
}

static void what_cannot_be_served_is_refused_at_once(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    char sentence[64];
    sheaf__model_options m = room_for(64);
    m.ctx_size = 200;
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){.max_queue = 2});
    host_ask(&h, &a, (want){.n = 201, .kind = 1, .max_tokens = 1});
    refuse(&h, a.ask, SHEAF_E_CONTEXT, "201 tokens is beyond the context of 200");
    a.ask.n_tokens = 150;
    snprintf(sentence, sizeof sentence, "150 tokens is more than the KV cache has room for: %u",
             h.engine->max_prompt);
    assert_true(h.engine->max_prompt >= 64 && h.engine->max_prompt < 150);
    refuse(&h, a.ask, SHEAF_E_CONTEXT, sentence);
    a.ask.n_tokens = 0;
    refuse(&h, a.ask, SHEAF_E_INVALID, "no tokens");
    a.ask.n_tokens = 10;
    a.ask.priority = 9;
    refuse(&h, a.ask, SHEAF_E_INVALID, "priority 9");
    a.ask.priority = 0;
    a.ask.sampler.top_p = 2;
    refuse(&h, a.ask, SHEAF_E_INVALID, "sampling");
    a.ask.sampler.top_p = 0;
    a.ask.n_choices = 1000;
    refuse(&h, a.ask, SHEAF_E_INVALID, "1000 choices");
    a.ask.n_choices = 1;
    a.prompt[3] = 100000;
    refuse(&h, a.ask, SHEAF_E_INVALID, "token 100000 (number 3)");
    host_submit(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 3});
    host_submit(&h, &b, (want){.n = 20, .kind = 2, .max_tokens = 3});
    refuse(&h, a.ask, SHEAF_FULL, "2 requests wait");
    assert_true(sheaf__engine_step(h.engine)); /* both are admitted */
    sheaf__engine_drain(h.engine);
    refuse(&h, a.ask, SHEAF_E_CANCELLED, "no more requests");
    host_idle(&h);
    host_expect(&h, &a);
    host_expect(&h, &b);
    host_close(&h);
}

static void wishes_out_of_range_are_refused(void **state)
{
    (void)state;
    static host h;
    static asked a;
    static sheaf__bias bias[SHEAF__MAX_BIAS + 1];
    open_small(&h, (sheaf__engine_options){0});
    host_ask(&h, &a, (want){.n = 10, .kind = 1, .max_tokens = 1});
    sheaf__ask ask = a.ask;
    ask.kind = 2;
    refuse(&h, ask, SHEAF_E_INVALID, "unknown kind: 2");
    ask = a.ask;
    ask.n_top = SHEAF__MAX_TOP + 1;
    refuse(&h, ask, SHEAF_E_INVALID, "21 likeliest tokens");
    ask = a.ask;
    ask.presence_penalty = NAN;
    refuse(&h, ask, SHEAF_E_INVALID, "penalty");
    ask.presence_penalty = 0;
    ask.frequency_penalty = -INFINITY;
    refuse(&h, ask, SHEAF_E_INVALID, "penalty");
    ask = a.ask;
    ask.n_bias = 2;
    refuse(&h, ask, SHEAF_E_INVALID, "no tokens");
    ask.bias = bias;
    bias[0] = (sheaf__bias){5, 1};
    bias[1] = (sheaf__bias){5, 2};
    refuse(&h, ask, SHEAF_E_INVALID, "two biases for token 5");
    bias[1].token = (int32_t)h.model->config.vocab;
    refuse(&h, ask, SHEAF_E_INVALID, "outside the vocabulary");
    bias[1].token = -1;
    refuse(&h, ask, SHEAF_E_INVALID, "token -1");
    bias[1] = (sheaf__bias){6, INFINITY};
    refuse(&h, ask, SHEAF_E_INVALID, "bias of token 6");
    ask.n_bias = SHEAF__MAX_BIAS + 1;
    refuse(&h, ask, SHEAF_E_INVALID, "1025 tokens");
    host_close(&h);
}

static void what_an_engine_cannot_do_is_refused(void **state)
{
    (void)state;
    static host h;
    sheaf_error err = {0};
    sheaf__engine *engine = NULL;
    open_small(&h, (sheaf__engine_options){0});
    sheaf__engine_options o = h.engine->options;
    assert_int_equal(sheaf__engine_create(h.model, &o, &engine, &err), SHEAF_E_BUSY);
    o.batch_tokens = 1;
    o.prefill_chunk = 1;
    assert_int_equal(sheaf__engine_create(h.model, &o, &engine, &err), SHEAF_E_INVALID);
    o.batch_tokens = 4;
    o.prefill_chunk = 5;
    assert_int_equal(sheaf__engine_create(h.model, &o, &engine, &err), SHEAF_E_INVALID);
    o.on_event = NULL;
    assert_int_equal(sheaf__engine_create(h.model, &o, &engine, &err), SHEAF_E_INVALID);
    assert_null(engine);
    host_close(&h);
}

/* ---- leaving ----------------------------------------------------------------------------- */

/* Where the choices of what is live stand, one bit each. */
static uint32_t phases(const host *h)
{
    uint32_t seen = 0;
    SHEAF__FOR_REQUESTS(h->engine, at)
    {
        const sheaf__request *request = sheaf__request_of(at);
        for (uint32_t i = 0; i < request->n_choices; i++) {
            const sheaf__choice *choice = &request->choices[i];
            switch (choice->state) {
            case SHEAF__CHOICE_HELD: seen |= 1; break;
            case SHEAF__CHOICE_WAITING:
                seen |= request->admitted ? 2 : choice->ticket != 0 ? 4 : 8;
                break;
            case SHEAF__CHOICE_RUNNING:
                if (sheaf__choice_left(choice) == 1)
                    seen |= 16;
                else
                    seen |= sheaf__choice_tells_prompt(choice) ? 32 : 64;
                break;
            default: seen |= 128;
            }
        }
    }
    return seen;
}

static void expect_at_rest(const host *h)
{
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    host_check(h);
    assert_int_equal(host_held(h), 0);
    assert_int_equal(sheaf_prefix_stats_read(h->engine->prefix, &stats), SHEAF_OK);
    assert_int_equal(stats.claims + stats.waiters, 0);
}

static void cancelling_at_every_phase_returns_every_block(void **state)
{
    (void)state;
    static host h;
    static asked a[5], b;
    uint32_t seen = 0;
    host_open(&h, RUNS_LLAMA, room_for(160),
              (sheaf__engine_options){.parallel = 4, .batch_tokens = 16, .prefill_chunk = 16});
    for (uint32_t steps = 0; steps < 45; steps++) {
        for (uint32_t i = 0; i < 5; i++)
            host_submit(&h, &a[i],
                        (want){.n = 50,
                               .kind = i + 1,
                               .shared = i < 2 ? 48 : 0, /* one of two waits */
                               .max_tokens = 20,
                               .n_choices = i == 2 ? 3 : 1,
                               .tells_prompt = i == 3,
                               .seed = 1});
        for (uint32_t i = 0; i < steps; i++) (void)sheaf__engine_step(h.engine);
        seen |= phases(&h);
        for (uint32_t i = 0; i < 5; i++)
            if (!a[i].done) assert_int_equal(sheaf__engine_cancel(h.engine, a[i].id), SHEAF_OK);
        (void)sheaf__engine_step(h.engine);
        expect_at_rest(&h);
        for (uint32_t i = 0; i < 5; i++) {
            assert_true(a[i].done && !a[i].broken);
            assert_int_equal(sheaf__engine_cancel(h.engine, a[i].id), SHEAF_MISS);
        }
        if (steps % 2 == 0)
            assert_int_equal(sheaf_prefix_reset(h.engine->prefix, NULL, NULL), SHEAF_OK);
    }
    assert_int_equal(seen, 255); /* every phase there is */
    host_submit(&h, &b, (want){.n = 50, .kind = 1, .max_tokens = 20});
    host_idle(&h);
    host_expect(&h, &b);
    host_close(&h);
}

static void destroying_an_engine_ends_what_is_left(void **state)
{
    (void)state;
    static host h;
    static asked a[3];
    open_small(&h, (sheaf__engine_options){.parallel = 1});
    for (uint32_t i = 0; i < 3; i++)
        host_submit(&h, &a[i], (want){.n = 20, .kind = i, .max_tokens = 9});
    assert_true(sheaf__engine_step(h.engine));
    host_close(&h);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(a[i].done && !a[i].broken);
        assert_int_equal(a[i].finish[0], SHEAF__FINISH_CANCELLED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_told_its_tokens_and_its_end),
        cmocka_unit_test(a_token_that_ends_the_text_stops_it_untold),
        cmocka_unit_test(the_end_of_the_context_ends_an_answer),
        cmocka_unit_test(a_prompt_found_whole_is_not_computed_again),
        cmocka_unit_test(salts_and_no_prompt_cache_share_nothing),
        cmocka_unit_test(choices_are_forked_from_one_prompt),
        cmocka_unit_test(prompts_take_turns),
        cmocka_unit_test(answers_go_on_while_a_prompt_is_run),
        cmocka_unit_test(more_answers_than_a_batch_starve_nobody),
        cmocka_unit_test(higher_priorities_are_admitted_first),
        cmocka_unit_test(no_more_run_than_are_allowed),
        cmocka_unit_test(a_shared_prefix_is_computed_once),
        cmocka_unit_test(a_waiter_takes_over_from_who_is_cancelled),
        cmocka_unit_test(a_waiter_takes_over_from_who_is_preempted),
        cmocka_unit_test(the_youngest_is_preempted_and_gives_the_same),
        cmocka_unit_test(room_for_one_serves_all_the_oldest_first),
        cmocka_unit_test(nobody_overtakes_one_that_waits_for_room),
        cmocka_unit_test(a_waiting_high_priority_goes_before_a_lower_one),
        cmocka_unit_test(choices_that_do_not_fit_together_follow_each_other),
        cmocka_unit_test(who_is_alone_and_has_no_room_ends_with_length),
        cmocka_unit_test(a_window_keeps_what_it_sees_alone),
        cmocka_unit_test(what_cannot_be_served_is_refused_at_once),
        cmocka_unit_test(wishes_out_of_range_are_refused),
        cmocka_unit_test(what_an_engine_cannot_do_is_refused),
        cmocka_unit_test(cancelling_at_every_phase_returns_every_block),
        cmocka_unit_test(destroying_an_engine_ends_what_is_left),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
