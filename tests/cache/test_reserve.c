/* tests/cache/test_reserve.c - a step is reserved as a whole, or nothing has happened. */
#include "door.h"

static sheaf_step new_step(const sheaf_prompt *prompt, uint32_t n)
{
    sheaf_step step = SHEAF_STEP_INIT;
    step.prompt = prompt, step.n = n;
    return step;
}

static sheaf_step next_step(sheaf_sequence *seq, uint32_t n)
{
    sheaf_step step = SHEAF_STEP_INIT;
    step.sequence = seq, step.n = n;
    return step;
}

static sheaf_status reserve(rig *r, sheaf_step *steps, uint32_t n, sheaf_shortage *shortage)
{
    sheaf_status st = sheaf_prefix_reserve(r->cache, steps, n, shortage);
    assert_cache_whole(r);
    return st;
}

/* What no refusal may change. */
typedef struct observed {
    sheaf_prefix_stats cache;
    sheaf_pool_stats pool;
    sheaf_entry entries[16];
    uint32_t n;
} observed;

static void observe(const rig *r, observed *o)
{
    memset(o, 0, sizeof *o);
    o->cache = rig_stats(r);
    o->pool = fixture_stats(&r->f);
    assert_int_equal(sheaf_prefix_entries(r->cache, o->entries, 16, &o->n), SHEAF_OK);
    /* of the refusal itself, of sequences that came and went, and of memory that was kept */
    memset(o->cache.refusals, 0, sizeof o->cache.refusals);
    o->cache.last_refusal = 0;
    o->cache.last_refusal_needed = o->cache.last_refusal_possible = 0;
    o->cache.last_refusal_tokens = 0;
    o->pool.full_answers = o->pool.host_bytes = 0;
}

static void assert_same(const rig *r, const observed *before)
{
    observed now;
    observe(r, &now);
    assert_memory_equal(&now.cache, &before->cache, sizeof now.cache);
    assert_memory_equal(&now.pool, &before->pool, sizeof now.pool);
    assert_int_equal(now.n, before->n);
    assert_memory_equal(now.entries, before->entries, sizeof now.entries);
}

/* Runs what a step has reserved to its end, and compares all of it. */
static void finish(rig *r, sheaf_step *step)
{
    compute(r, step->sequence, step->prompt, step->reserved);
    assert_holds_its_tokens(&r->f, step->sequence);
}

/* ---- what a step gets -------------------------------------------------------------------- */

static void prompts_of_every_length_share_all_that_is_there(void **state)
{
    (void)state;
    const char *words = "abcdefghijklm";
    for (uint32_t n = 1; n <= 13; n++) {
        rig r;
        rig_open(&r, 1, 16, NULL);
        asked t;
        sheaf_prompt *p = ask(&r, &t, words);
        p->n_tokens = n;
        sheaf_step step = new_step(p, 100);
        assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(step.match.length, 0);
        assert_int_equal(step.match.cached_tokens, 0);
        assert_int_equal(step.reserved, n);
        finish(&r, &step);
        assert_int_equal(
            sheaf_prefix_publish(r.cache, p, step.sequence, SHEAF_PUBLISH_TAIL, NULL),
            SHEAF_OK);
        sheaf_sequence_destroy(step.sequence);

        step = new_step(p, 100); /* wholly cached */
        assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(step.match.length, n);
        assert_int_equal(step.match.shared, n / 4 * 4);
        assert_int_equal(step.match.copied, n % 4);
        assert_int_equal(step.match.cached_tokens, n - 1);
        assert_int_equal(step.reserved, 0);
        finish(&r, &step);
        sheaf_sequence_destroy(step.sequence);

        p->max_match = n - 1; /* the last one again; 0 would mean all */
        step = new_step(p, 100);
        assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(step.match.length, n == 1 ? 1 : n - 1);
        assert_int_equal(step.reserved, n == 1 ? 0 : 1);
        finish(&r, &step);
        sheaf_sequence_destroy(step.sequence);
        rig_close(&r);
    }
}

static void a_chunk_is_reserved_as_asked_and_at_most_what_is_left(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd efgh ijkl mn");
    sheaf_step step = new_step(p, 5);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.reserved, 5);
    finish(&r, &step);
    step.n = 3;
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.reserved, 3);
    finish(&r, &step);
    assert_int_equal(sheaf_sequence_length(step.sequence), 8);
    sheaf_step other = new_step(p, 0); /* matched alone: it asks for no position */
    assert_int_equal(sheaf_prefix_publish(r.cache, p, step.sequence, 0, NULL), SHEAF_OK);
    assert_int_equal(reserve(&r, &other, 1, NULL), SHEAF_OK);
    assert_int_equal(other.match.length, 8);
    assert_int_equal(other.reserved, 0);
    sheaf_sequence_destroy(other.sequence);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void lookups_of_a_step_are_counted(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd ef");
    sheaf_prefix_stats before = rig_stats(&r);
    asked a, b;
    sheaf_step steps[] = {new_step(ask(&r, &a, "abcd efgh"), 8),
                          new_step(ask(&r, &b, "xxxx"), 4)};
    assert_int_equal(reserve(&r, steps, 2, NULL), SHEAF_OK);
    sheaf_prefix_stats after = rig_stats(&r);
    assert_int_equal(after.lookups - before.lookups, 2);
    assert_int_equal(after.hits - before.hits, 1);
    assert_int_equal(after.lookup_tokens - before.lookup_tokens, 12);
    assert_int_equal(after.hit_tokens - before.hit_tokens, 6);
    assert_int_equal(after.copied_tokens - before.copied_tokens, 2);
    assert_int_equal(steps[0].match.length, 6);
    assert_int_equal(steps[0].reserved, 2);
    for (uint32_t i = 0; i < 2; i++) {
        finish(&r, &steps[i]);
        sheaf_sequence_destroy(steps[i].sequence);
    }
    rig_close(&r);
}

static void two_identical_prompts_in_one_step_share_one_copy(void **state)
{
    (void)state;
    for (uint32_t first_to_leave = 0; first_to_leave < 2; first_to_leave++) {
        rig r;
        rig_open(&r, 1, 16, NULL);
        keep_text(&r, "abcd efgh ij");
        asked t;
        sheaf_prompt *p = ask(&r, &t, "abcd efgh ijkl mn");
        sheaf_step steps[] = {new_step(p, 100), new_step(p, 100)};
        assert_int_equal(reserve(&r, steps, 2, NULL), SHEAF_OK);
        assert_int_equal(fixture_stats(&r.f).blocks_held, 3 + 2 + 2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(steps[i].match.length, 10);
            finish(&r, &steps[i]);
        }
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(
                sheaf_prefix_publish(r.cache, p, steps[i].sequence, SHEAF_PUBLISH_TAIL, NULL),
                SHEAF_OK);
        assert_cache_whole(&r);
        sheaf_sequence_destroy(steps[first_to_leave].sequence);
        assert_holds_its_tokens(&r.f, steps[1 - first_to_leave].sequence);
        sheaf_sequence_destroy(steps[1 - first_to_leave].sequence);
        assert_cache_whole(&r);
        assert_int_equal(matches(&r, "abcd efgh ijkl mn"), 14);
        assert_int_equal(fixture_stats(&r.f).blocks_held, 4);
        rig_close(&r);
    }
}

static void two_identical_prompts_that_nobody_has_are_both_right(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd efgh ij");
    sheaf_step steps[] = {new_step(p, 100), new_step(p, 100)};
    assert_int_equal(reserve(&r, steps, 2, NULL), SHEAF_OK);
    for (uint32_t i = 0; i < 2; i++) {
        finish(&r, &steps[i]);
        assert_int_equal(
            sheaf_prefix_publish(r.cache, p, steps[i].sequence, SHEAF_PUBLISH_TAIL, NULL),
            SHEAF_OK);
    }
    assert_int_equal(rig_stats(&r).blocks_held, 3);
    for (uint32_t i = 0; i < 2; i++) sheaf_sequence_destroy(steps[i].sequence);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 3);
    rig_close(&r);
}

/* ---- as a whole or not at all ------------------------------------------------------------ */

static void a_step_that_does_not_fit_changes_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 8, NULL);
    asked running, a, b;
    sheaf_sequence *seq = run_prompt(&r, ask(&r, &running, "rrrr ss"));
    keep_text(&r, "abcd efgh");
    keep_text(&r, "mnop");
    observed before;
    observe(&r, &before);
    /* 1 for the running one; 3 beside what is shared; 3 */
    sheaf_step steps[] = {next_step(seq, 3), new_step(ask(&r, &a, "abcd efxx yyyy zzzz"), 16),
                          new_step(ask(&r, &b, "bbbb cccc dddd"), 12)};
    sheaf_shortage shortage = SHEAF_SHORTAGE_INIT;
    for (uint32_t again = 0; again < 2; again++) {
        sheaf_status st = again == 0 ? sheaf_prefix_can_reserve(r.cache, steps, 3, &shortage)
                                     : reserve(&r, steps, 3, &shortage);
        assert_int_equal(st, SHEAF_FULL);
        assert_int_equal(shortage.n_groups, 1);
        assert_int_equal(shortage.needed[0], 1 + 3 + 3);
        /* free, "mnop", and "efgh": a tail is not worth a refusal */
        assert_int_equal(shortage.possible[0], 3 + 1 + 1);
        assert_same(&r, &before);
        assert_ptr_equal(steps[0].sequence, seq);
        assert_int_equal(sheaf_sequence_reserved(seq), 0);
        assert_null(steps[1].sequence);
        assert_null(steps[2].sequence);
    }
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.refusals[SHEAF_REFUSED_ROOM], 1); /* advice is not counted */
    assert_int_equal(stats.last_refusal, SHEAF_REFUSED_ROOM);
    assert_int_equal(stats.last_refusal_needed, 7 * BLOCK);
    assert_int_equal(stats.last_refusal_possible, 5 * BLOCK);
    assert_int_equal(stats.last_refusal_tokens, 3 + 12 + 12);

    assert_int_equal(reserve(&r, steps, 2, NULL), SHEAF_OK); /* without the last it just fits */
    assert_int_equal(fixture_stats(&r.f).blocks_held, 8);
    assert_int_equal(matches(&r, "abcd efgh"), 8);
    assert_int_equal(matches(&r, "mnop"), 0);
    sheaf_sequence_destroy(steps[0].sequence);
    sheaf_sequence_destroy(steps[1].sequence);
    rig_close(&r);
}

static void entries_make_room_where_the_system_has_no_memory(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 64, NULL);
    asked a, b, large, small;
    sheaf_sequence *first = run_prompt(&r, ask(&r, &a, "rrrr")); /* one in each of two slabs */
    keep_text(&r, "abcd efgh ijkl");
    sheaf_sequence *second = run_prompt(&r, ask(&r, &b, "ssss"));
    keep_text(&r, "mnop qrst uvwx");
    r.f.slabs.fail_at = r.f.slabs.n_allocs + 1, r.f.slabs.fail_on = 1;
    observed before;
    observe(&r, &before);
    sheaf_step step = new_step(ask(&r, &large, "0123 4567 89.. .... ;;;; :::: !!!!"), 28);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_FULL);
    before.pool.slab_failures++;
    assert_same(&r, &before); /* six would not be enough: nothing has left */
    step = new_step(ask(&r, &small, "0123 4567 89.. ...."), 16);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    finish(&r, &step);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 0);
    assert_int_equal(fixture_stats(&r.f).slabs, 2);
    sheaf_sequence_destroy(step.sequence);
    sheaf_sequence_destroy(first);
    sheaf_sequence_destroy(second);
    rig_close(&r);
}

static void what_is_matched_is_held_before_others_are_evicted(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 8, NULL);
    keep_text(&r, "aaaa bbbb cccc dddd"); /* the oldest: first to go otherwise */
    keep_text(&r, "eeee ffff gggg hhhh");
    asked t;
    sheaf_step step = new_step(ask(&r, &t, "aaaa bbbb cccc dddd iiii jjjj"), 8);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.match.length, 16);
    finish(&r, &step);
    assert_int_equal(matches(&r, "aaaa bbbb cccc dddd"), 16);
    assert_true(matches(&r, "eeee ffff gggg hhhh") <= 8);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void what_a_step_matches_is_used_before_it_evicts(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 8, NULL);
    keep_text(&r, "aaaa bbbb cccc dddd"); /* the oldest, and only its first block matches */
    keep_text(&r, "eeee ffff gggg hhhh");
    asked t;
    sheaf_step step = new_step(ask(&r, &t, "aaaa xxxx"), 4);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "aaaa bbbb cccc dddd"), 16);
    assert_true(matches(&r, "eeee ffff gggg hhhh") <= 12);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void held_entries_of_a_low_priority_do_not_hide_idle_ones_of_a_higher(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 6, NULL);
    asked a;
    sheaf_prompt *p = ask(&r, &a, "aaaa bbbb");
    p->priority = -1;
    sheaf_sequence *held = run_prompt(&r, p);
    assert_int_equal(sheaf_prefix_publish(r.cache, p, held, 0, NULL), SHEAF_OK);
    ask(&r, &a, "cccc dddd eeee ffff")->priority = 2;
    keep(&r, &a.prompt);
    sheaf_step step = new_step(ask(&r, &a, "gggg hhhh"), 8);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "aaaa bbbb"), 8);
    sheaf_sequence_destroy(held);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void an_idle_match_is_not_counted_as_room(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 8, NULL);
    keep_text(&r, "aaaa bbbb cccc dddd");
    keep_text(&r, "eeee ffff gggg");
    observed before;
    observe(&r, &before);
    asked t;
    sheaf_shortage shortage = SHEAF_SHORTAGE_INIT;
    /* 4 of it are idle in the cache; 5 more are needed, and 1 + 3 can be had */
    sheaf_step step = new_step(ask(&r, &t, "aaaa bbbb cccc dddd iiii jjjj kkkk llll m"), 100);
    assert_int_equal(sheaf_prefix_can_reserve(r.cache, &step, 1, NULL), SHEAF_FULL);
    assert_int_equal(reserve(&r, &step, 1, &shortage), SHEAF_FULL);
    assert_int_equal(shortage.needed[0], 5);
    assert_int_equal(shortage.possible[0], 4);
    assert_same(&r, &before);
    step.n = 16;
    assert_int_equal(sheaf_prefix_can_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_same(&r, &before);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 8);
    finish(&r, &step);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void the_source_of_a_copy_outlives_the_eviction_for_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 5, NULL);
    keep_text(&r, "abcd efgh ijkl");
    asked t;
    /* shares "abcd", copies "ef", and needs both blocks that are free and "ijkl" too */
    sheaf_step step = new_step(ask(&r, &t, "abcd efxx yyyy zzzz"), 100);
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.match.length, 6);
    assert_int_equal(step.match.copied, 2);
    finish(&r, &step);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 8);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void a_prompt_that_fills_the_pool_goes_without_a_copy(void **state)
{
    (void)state;
    const char *prompts[] = {"abcd efgh ijkl mn", "abcd efgh ijkl mnop", "abcd efgh ijkl mnxx"};
    for (uint32_t i = 0; i < 3; i++) {
        rig r;
        rig_open(&r, 1, 4, NULL);
        keep_text(&r, "abcd efgh ijkl mn");
        asked a;
        sheaf_step step = new_step(ask(&r, &a, prompts[i]), 100);
        assert_int_equal(sheaf_prefix_can_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(step.match.length, 12);
        assert_int_equal(step.match.copied, 0);
        assert_int_equal(step.match.cached_tokens, 12);
        assert_int_equal(step.reserved, i == 0 ? 2 : 4);
        finish(&r, &step);
        sheaf_sequence_destroy(step.sequence);
        rig_close(&r);
    }
}

static void forks_that_share_a_partial_block_need_a_copy_less(void **state)
{
    (void)state;
    for (uint32_t watcher = 0; watcher < 2; watcher++) {
        rig r;
        rig_open(&r, 1, 3 + watcher, NULL);
        sheaf_sequence *a = sequence_of_length(&r.f, 6, 'a'), *b, *c = NULL;
        assert_int_equal(sheaf_sequence_fork(a, &b), SHEAF_OK);
        if (watcher) assert_int_equal(sheaf_sequence_fork(a, &c), SHEAF_OK);
        sheaf_step steps[] = {next_step(a, 1), next_step(b, 1)};
        sheaf_shortage shortage = SHEAF_SHORTAGE_INIT;
        sheaf_step more[] = {next_step(a, 1), next_step(b, 3)};
        assert_int_equal(reserve(&r, more, 2, &shortage), SHEAF_FULL);
        assert_int_equal(shortage.needed[0], 2 + watcher);
        assert_int_equal(shortage.possible[0], 1 + watcher);
        assert_int_equal(reserve(&r, steps, 2, NULL), SHEAF_OK);
        assert_int_equal(fixture_stats(&r.f).blocks_held, 3 + watcher);
        assert_int_equal(steps[0].reserved + steps[1].reserved, 2);
        sheaf_sequence_destroy(a);
        sheaf_sequence_destroy(b);
        sheaf_sequence_destroy(c);
        rig_close(&r);
    }
}

static void groups_are_counted_each_for_itself(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 6, NULL);
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd efgh ijkl mnop");
    sheaf_sequence *seq = run_prompt(&r, p);
    assert_int_equal(sheaf_prefix_publish(r.cache, p, seq, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_int_equal(sheaf_prefix_evict(r.cache, 2 * BLOCK, NULL), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(matches(&r, "abcd efgh ijkl mnop"), 16); /* what its end needs is there */
    observed before;
    observe(&r, &before);
    sheaf_step step = new_step(ask(&r, &t, "abcd efgh ijkl mnop qrst uvwx yzab"), 100);
    sheaf_shortage shortage = SHEAF_SHORTAGE_INIT;
    sheaf_status st = reserve(&r, &step, 1, &shortage);
    if (st == SHEAF_FULL) {
        assert_int_equal(shortage.n_groups, 2);
        assert_int_equal(shortage.needed[0], 3);
        assert_int_equal(shortage.needed[1], 3);
        assert_same(&r, &before);
        step.n = 8;
        st = reserve(&r, &step, 1, NULL);
    }
    assert_int_equal(st, SHEAF_OK);
    assert_int_equal(step.match.length, 16);
    finish(&r, &step);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void a_small_match_leaves_the_large_entry_whole(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl mnop qr");
    for (uint32_t i = 0; i < 20; i++) {
        asked t;
        sheaf_step step = new_step(ask(&r, &t, "abcd exxx yyyy"), 100);
        assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(step.match.length, 5);
        finish(&r, &step);
        sheaf_sequence_destroy(step.sequence);
    }
    assert_int_equal(matches(&r, "abcd efgh ijkl mnop qr"), 18);
    sheaf_sequence *seq;
    asked t;
    assert_int_equal(
        sheaf_prefix_match(r.cache, ask(&r, &t, "abcd efgh ijkl mnop qr"), &seq, NULL),
        SHEAF_OK);
    assert_holds_its_tokens(&r.f, seq);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

/* ---- what is no step --------------------------------------------------------------------- */

static void a_sequence_is_in_a_step_once_and_with_nothing_reserved(void **state)
{
    (void)state;
    rig r, other;
    rig_open(&r, 1, 16, NULL);
    rig_open(&other, 1, 16, NULL);
    sheaf_sequence *a = sequence_of_length(&r.f, 6, 'a'), *b = sequence_of_length(&r.f, 3, 'm');
    sheaf_sequence *foreign = sequence_of_length(&other.f, 6, 'a');
    asked t;
    keep_text(&r, "abcd");
    observed before;
    observe(&r, &before);
    sheaf_prompt *p = ask(&r, &t, "abcd efgh");
    sheaf_step twice[] = {next_step(a, 1), next_step(b, 1), new_step(p, 9), next_step(a, 1)};
    assert_int_equal(reserve(&r, twice, 4, NULL), SHEAF_E_BUSY);
    assert_int_equal(sheaf_prefix_can_reserve(r.cache, twice, 4, NULL), SHEAF_E_BUSY);
    sheaf_step strange[] = {next_step(a, 1), next_step(foreign, 1)};
    assert_int_equal(reserve(&r, strange, 2, NULL), SHEAF_E_INVALID);
    sheaf_step empty[] = {next_step(a, 1), SHEAF_STEP_INIT};
    assert_int_equal(reserve(&r, empty, 2, NULL), SHEAF_E_INVALID);
    sheaf_step unset[] = {next_step(a, 1), next_step(b, 1)};
    unset[1].struct_size = 0;
    assert_int_equal(reserve(&r, unset, 2, NULL), SHEAF_E_INVALID);
    sheaf_step huge[] = {next_step(b, 1), next_step(a, UINT32_MAX)};
    assert_int_equal(reserve(&r, huge, 2, NULL), SHEAF_E_OVERFLOW);
    huge[1].n = INT32_MAX - 6;
    assert_int_equal(reserve(&r, huge, 2, NULL), SHEAF_FULL);
    sheaf_shortage unset_shortage = {0};
    assert_int_equal(reserve(&r, huge, 2, &unset_shortage), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_reserve(NULL, huge, 1, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_reserve(r.cache, NULL, 1, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_reserve(r.cache, NULL, 0, NULL), SHEAF_OK);
    assert_same(&r, &before);

    assert_int_equal(reserve(&r, twice, 3, NULL), SHEAF_OK); /* the marks are gone */
    assert_int_equal(reserve(&r, twice, 1, NULL), SHEAF_E_BUSY);
    assert_int_equal(sheaf_sequence_reserved(a), 1);
    sheaf_sequence_destroy(a);
    sheaf_sequence_destroy(b);
    sheaf_sequence_destroy(twice[2].sequence);
    sheaf_sequence_destroy(foreign);
    rig_close(&other);
    rig_close(&r);
}

static void a_decode_step_allocates_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    asked t;
    sheaf_sequence *seq = run_prompt(&r, ask(&r, &t, "abcd e"));
    uint64_t allocs = r.f.host.n_allocs, slabs = r.f.slabs.n_allocs;
    for (uint32_t i = 0; i < 10; i++) {
        sheaf_step step = next_step(seq, 1);
        assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
        uint32_t seed = 'f' + i;
        write_all(&r.f, seq, 5 + i, 1, &seed);
        assert_int_equal(sheaf_sequence_commit(seq, 1, (const int32_t *)&seed), SHEAF_OK);
    }
    assert_int_equal(r.f.host.n_allocs, allocs);
    assert_int_equal(r.f.slabs.n_allocs, slabs);
    assert_holds_its_tokens(&r.f, seq);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void what_has_outlived_its_time_is_not_matched(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.ttl_ns = 10 * SECOND;
    rig_open(&r, 1, 8, &o);
    keep_text(&r, "abcd efgh");
    asked a;
    sheaf_step step = new_step(ask(&r, &a, "abcd efgh"), 8);
    r.now += 10 * SECOND;
    assert_int_equal(reserve(&r, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.match.length, 0);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_TTL], 1);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_of_every_length_share_all_that_is_there),
        cmocka_unit_test(a_chunk_is_reserved_as_asked_and_at_most_what_is_left),
        cmocka_unit_test(lookups_of_a_step_are_counted),
        cmocka_unit_test(two_identical_prompts_in_one_step_share_one_copy),
        cmocka_unit_test(two_identical_prompts_that_nobody_has_are_both_right),
        cmocka_unit_test(a_step_that_does_not_fit_changes_nothing),
        cmocka_unit_test(entries_make_room_where_the_system_has_no_memory),
        cmocka_unit_test(what_is_matched_is_held_before_others_are_evicted),
        cmocka_unit_test(what_a_step_matches_is_used_before_it_evicts),
        cmocka_unit_test(held_entries_of_a_low_priority_do_not_hide_idle_ones_of_a_higher),
        cmocka_unit_test(an_idle_match_is_not_counted_as_room),
        cmocka_unit_test(the_source_of_a_copy_outlives_the_eviction_for_it),
        cmocka_unit_test(a_prompt_that_fills_the_pool_goes_without_a_copy),
        cmocka_unit_test(forks_that_share_a_partial_block_need_a_copy_less),
        cmocka_unit_test(groups_are_counted_each_for_itself),
        cmocka_unit_test(a_small_match_leaves_the_large_entry_whole),
        cmocka_unit_test(a_sequence_is_in_a_step_once_and_with_nothing_reserved),
        cmocka_unit_test(a_decode_step_allocates_nothing),
        cmocka_unit_test(what_has_outlived_its_time_is_not_matched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
