/* tests/cache/test_pins.c - what is pinned stays, that and no more, until it is given up. */
#include "door.h"

#include "cache/prefix.h"

static sheaf_status pin(rig *r, const char *words, uint64_t owner, uint32_t flags, uint64_t *id,
                        uint32_t *length)
{
    asked t;
    sheaf_status st = sheaf_prefix_pin(r->cache, ask(r, &t, words), owner, flags, id, length);
    assert_cache_whole(r);
    return st;
}

static uint64_t must_pin(rig *r, const char *words, uint64_t owner, uint32_t flags,
                         uint32_t length)
{
    uint64_t id = 0;
    uint32_t pinned = 0;
    assert_int_equal(pin(r, words, owner, flags, &id, &pinned), SHEAF_OK);
    assert_true(id != 0);
    assert_int_equal(pinned, length);
    assert_int_equal(sheaf_prefix_pinned(r->cache, id), SHEAF_OK);
    return id;
}

static void unpin(rig *r, uint64_t id)
{
    assert_int_equal(sheaf_prefix_unpin(r->cache, id), SHEAF_OK);
    assert_cache_whole(r);
}

static void evict_all(rig *r)
{
    assert_int_equal(sheaf_prefix_evict(r->cache, UINT64_MAX, NULL), SHEAF_OK);
    assert_cache_whole(r);
}

static uint64_t pinned_blocks(const rig *r)
{
    return rig_stats(r).bytes_pinned / BLOCK;
}

/* ---- what is kept ------------------------------------------------------------------------ */

static void what_matches_is_kept_and_no_more(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    uint64_t id = must_pin(&r, "abcd efgh xxxx", 1, 0, 8);
    assert_int_equal(pinned_blocks(&r), 2);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 12);
    evict_all(&r);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 8);
    unpin(&r, id);
    assert_int_equal(pinned_blocks(&r), 0);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 8);
    evict_all(&r);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 0);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 0);
    rig_close(&r);
}

static void a_partial_block_is_kept_where_the_entry_ends(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd ef");
    keep_text(&r, "mnop nnnn");
    keep_text(&r, "mnop q"); /* a run of nothing but a partial block */
    keep_text(&r, "xy");
    must_pin(&r, "abcd ef", 1, 0, 6);
    must_pin(&r, "mnop qrst", 1, 0, 5);
    must_pin(&r, "xyz", 1, 0, 2);
    must_pin(&r, "abcd e", 1, 0, 4); /* it ends later than the prompt */
    uint64_t id;
    assert_int_equal(pin(&r, "xz", 1, 0, &id, NULL), SHEAF_MISS);
    assert_int_equal(pin(&r, "x", 1, 0, &id, NULL), SHEAF_MISS);
    assert_int_equal(pinned_blocks(&r), 5);
    evict_all(&r);
    assert_int_equal(matches(&r, "abcd ef"), 6);
    assert_int_equal(matches(&r, "mnop q"), 5);
    assert_int_equal(matches(&r, "xy"), 2);
    rig_close(&r);
}

static void pinning_asks_for_no_more_than_the_prompt_says(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    asked t;
    uint64_t id;
    uint32_t length = 0;
    ask(&r, &t, "abcd efgh ijkl")->max_match = 7;
    assert_int_equal(sheaf_prefix_pin(r.cache, &t.prompt, 1, 0, &id, &length), SHEAF_OK);
    assert_int_equal(length, 4);
    assert_cache_whole(&r);
    t.prompt.space = &r.other;
    assert_int_equal(sheaf_prefix_pin(r.cache, &t.prompt, 1, 0, &id, NULL), SHEAF_MISS);
    rig_close(&r);
}

static void what_several_pin_is_counted_once_and_kept_for_the_last(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    uint64_t long_one = must_pin(&r, "abcd efgh ijkl", 1, 0, 12);
    uint64_t short_one = must_pin(&r, "abcd", 2, 0, 4);
    uint64_t again = must_pin(&r, "abcd efgh ijkl", 2, SHEAF_PIN_REVOCABLE, 12);
    assert_int_equal(pinned_blocks(&r), 3);
    assert_int_equal(rig_stats(&r).pins, 3);
    unpin(&r, long_one);
    assert_int_equal(pinned_blocks(&r), 3);
    unpin(&r, again);
    assert_int_equal(pinned_blocks(&r), 1);
    evict_all(&r);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 4);
    unpin(&r, short_one);
    assert_int_equal(pinned_blocks(&r), 0);
    assert_int_equal(rig_stats(&r).pins, 0);
    rig_close(&r);
}

static void a_pinned_entry_may_be_branched_from_and_continued(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    uint64_t whole = must_pin(&r, "abcd efgh ijkl", 1, 0, 12);
    keep_text(&r, "abcd xxxx");
    assert_int_equal(pinned_blocks(&r), 3);
    keep_text(&r, "abcd efgh ijkl mnop q");
    assert_int_equal(pinned_blocks(&r), 3);
    evict_all(&r);
    assert_int_equal(matches(&r, "abcd efgh ijkl mnop"), 12);
    assert_int_equal(matches(&r, "abcd xxxx"), 4);
    unpin(&r, whole);
    evict_all(&r);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 0);

    keep_text(&r, "abcd ef");
    whole = must_pin(&r, "abcd ef", 1, 0, 6);
    keep_text(&r, "abcd efgh ijkl"); /* its partial block becomes a whole one */
    assert_cache_whole(&r);
    evict_all(&r);
    assert_true(matches(&r, "abcd efgh ijkl") >= 6);
    unpin(&r, whole);
    assert_int_equal(pinned_blocks(&r), 0);
    rig_close(&r);
}

static void window_blocks_of_what_is_pinned_stay_too(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 16, NULL);
    keep_text(&r, "abcd efgh ijkl mnop");
    uint64_t held = rig_stats(&r).blocks_held;
    must_pin(&r, "abcd efgh ijkl mnop", 1, 0, 16);
    evict_all(&r);
    assert_int_equal(rig_stats(&r).blocks_held, held);
    assert_int_equal(rig_stats(&r).bytes_pinned, rig_stats(&r).bytes_held);
    assert_int_equal(matches(&r, "abcd efgh ijkl mnop"), 16);
    rig_close(&r);
}

/* The tokens lead further than a window's blocks do: into a node below the pinned one. */
static void what_a_window_has_let_go_of_ends_what_is_pinned(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 16, NULL);
    asked a, b, c;
    ask(&r, &a, "abcd efgh")->session = 1;
    keep(&r, &a.prompt);
    sheaf_sequence *first = run_prompt(&r, ask(&r, &c, "abcd"));
    sheaf_prompt *p = ask(&r, &b, "abcd efgh ijkl mnop");
    p->session = 2;
    sheaf_sequence *last = run_prompt(&r, p);
    assert_int_equal(sheaf_prefix_publish(r.cache, p, last, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf_sequence_slide(last, 0), SHEAF_OK);
    evict_all(&r); /* the second block of the window group: nobody else has it */
    assert_int_equal(matches(&r, "abcd efgh ijkl mnop"), 16);
    assert_int_equal(matches(&r, "abcd efgh ijkl xxxx"), 4);
    uint64_t id = must_pin(&r, "abcd efgh ijkl xxxx", 1, 0, 4);
    assert_int_equal(rig_stats(&r).bytes_pinned, 2 * BLOCK);
    sheaf_sequence_destroy(first);
    sheaf_sequence_destroy(last);
    evict_all(&r);
    assert_int_equal(matches(&r, "abcd efgh ijkl mnop"), 4);
    unpin(&r, id);
    rig_close(&r);
}

/* ---- limits ------------------------------------------------------------------------------ */

static void pins_never_pass_the_capacity(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.capacity_bytes = 3ull * BLOCK;
    rig_open(&r, 1, 16, &o);
    keep_text(&r, "abcd efgh");
    uint64_t kept = must_pin(&r, "abcd efgh", 1, 0, 8), id = 99;
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd mnop qrst");
    sheaf_sequence *seq = run_prompt(&r, p); /* runs: not the cache's alone */
    assert_int_equal(sheaf_prefix_publish(r.cache, p, seq, 0, NULL), SHEAF_OK);
    sheaf_prefix_stats before = rig_stats(&r);
    assert_int_equal(pin(&r, "abcd mnop qrst", 1, 0, &id, NULL), SHEAF_REFUSED);
    sheaf_prefix_stats after = rig_stats(&r);
    assert_int_equal(id, 99);
    assert_int_equal(after.refusals[SHEAF_REFUSED_PINS], 1);
    assert_int_equal(after.last_refusal, SHEAF_REFUSED_PINS);
    assert_int_equal(after.last_refusal_needed, 4 * BLOCK);
    assert_int_equal(after.last_refusal_possible, 3 * BLOCK);
    assert_int_equal(after.last_refusal_tokens, 12);
    assert_int_equal(after.nodes, before.nodes);
    assert_int_equal(after.pins, 1);
    assert_int_equal(after.bytes_pinned, before.bytes_pinned);

    must_pin(&r, "abcd mnop", 1, 0, 8); /* this much more fits */
    assert_int_equal(rig_stats(&r).bytes_pinned, o.capacity_bytes);
    sheaf_sequence_destroy(seq);
    assert_cache_whole(&r);
    assert_int_equal(matches(&r, "abcd efgh"), 8);
    assert_int_equal(matches(&r, "abcd mnop qrst"), 8); /* the rest had to go */
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
    o.capacity_bytes--;
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_REFUSED);
    unpin(&r, kept);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
    rig_close(&r);
}

static void pins_outlast_the_time_to_live(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.ttl_ns = 10 * SECOND;
    rig_open(&r, 1, 16, &o);
    keep_text(&r, "abcd efgh");
    keep_text(&r, "mnop");
    uint64_t id = must_pin(&r, "abcd", 1, 0, 4);
    r.now += 20 * SECOND;
    assert_int_equal(sheaf_prefix_expire(r.cache, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd efgh"), 4);
    assert_int_equal(matches(&r, "mnop"), 0);
    unpin(&r, id); /* used until now */
    assert_int_equal(sheaf_prefix_expire(r.cache, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd"), 4);
    r.now += 20 * SECOND;
    assert_int_equal(sheaf_prefix_expire(r.cache, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd"), 0);
    rig_close(&r);
}

/* ---- giving up --------------------------------------------------------------------------- */

static void unpinning_what_is_not_pinned_is_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh");
    uint64_t gone = must_pin(&r, "abcd", 1, 0, 4), ticket;
    unpin(&r, gone);
    uint64_t id = must_pin(&r, "abcd", 1, 0, 4);
    assert_int_not_equal(id, gone);
    asked t;
    assert_int_equal(sheaf_prefix_claim(r.cache, ask(&r, &t, "qqqq"), 0, &ticket), SHEAF_OK);
    sheaf_prefix_stats before = rig_stats(&r);
    uint64_t wrong[] = {gone, ticket, 0, 999, UINT64_MAX};
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(sheaf_prefix_unpin(r.cache, wrong[i]), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_pinned(r.cache, wrong[i]), SHEAF_E_STALE);
    }
    assert_int_equal(sheaf_prefix_drop(r.cache, id), SHEAF_E_STALE); /* a pin is no ticket */
    assert_int_equal(sheaf_prefix_poll(r.cache, id), SHEAF_E_STALE);
    sheaf_prefix_stats after = rig_stats(&r);
    assert_memory_equal(&before, &after, sizeof after);
    assert_int_equal(sheaf_prefix_pinned(r.cache, id), SHEAF_OK);
    rig_close(&r); /* with the pin */
}

static void an_owner_gives_up_all_its_own(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh");
    keep_text(&r, "mnop");
    must_pin(&r, "abcd", 7, 0, 4);
    uint64_t other = must_pin(&r, "mnop", 8, 0, 4);
    must_pin(&r, "abcd efgh", 7, SHEAF_PIN_REVOCABLE, 8);
    uint32_t n = 0;
    assert_int_equal(sheaf_prefix_unpin_owner(r.cache, 7, &n), SHEAF_OK);
    assert_int_equal(n, 2);
    assert_cache_whole(&r);
    assert_int_equal(sheaf_prefix_unpin_owner(r.cache, 7, &n), SHEAF_OK);
    assert_int_equal(n, 0);
    assert_int_equal(sheaf_prefix_pinned(r.cache, other), SHEAF_OK);
    assert_int_equal(rig_stats(&r).pins, 1);
    assert_int_equal(pinned_blocks(&r), 1);
    rig_close(&r);
}

static void pins_are_revoked_oldest_first_and_only_as_needed(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 8, NULL);
    keep_text(&r, "aaaa bbbb");
    keep_text(&r, "cccc dddd");
    keep_text(&r, "eeee ffff");
    keep_text(&r, "gggg hhhh");
    uint64_t second = must_pin(&r, "eeee ffff", 1, 0, 8); /* cannot be revoked */
    uint64_t first = must_pin(&r, "cccc dddd", 1, SHEAF_PIN_REVOCABLE, 8);
    uint64_t third = must_pin(&r, "aaaa bbbb", 1, SHEAF_PIN_REVOCABLE, 8);
    asked t;
    sheaf_sequence *two = run_prompt(&r, ask(&r, &t, "nnnn oooo"));
    assert_int_equal(rig_stats(&r).pins_revoked, 0); /* what nobody pinned goes first */
    assert_int_equal(matches(&r, "gggg hhhh"), 0);
    sheaf_sequence *more = run_prompt(&r, ask(&r, &t, "pppp"));
    assert_int_equal(rig_stats(&r).pins_revoked, 1);
    assert_int_equal(sheaf_prefix_pinned(r.cache, first), SHEAF_MISS);
    assert_int_equal(sheaf_prefix_pinned(r.cache, second), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pinned(r.cache, third), SHEAF_OK);
    assert_cache_whole(&r);

    sheaf_step step = SHEAF_STEP_INIT; /* more than even all revocable pins would give */
    step.prompt = ask(&r, &t, "qqqq rrrr ssss tttt uuuu"), step.n = 20;
    sheaf_shortage shortage = SHEAF_SHORTAGE_INIT;
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, &shortage), SHEAF_FULL);
    assert_int_equal(shortage.needed[0], 5);
    assert_int_equal(shortage.possible[0], 3);
    assert_int_equal(sheaf_prefix_pinned(r.cache, third), SHEAF_OK);
    assert_int_equal(matches(&r, "aaaa bbbb"), 8);

    unpin(&r, first); /* revoked, and given up like any other */
    assert_int_equal(sheaf_prefix_pinned(r.cache, first), SHEAF_E_STALE);
    assert_int_equal(sheaf_prefix_unpin(r.cache, first), SHEAF_E_STALE);
    sheaf_sequence_destroy(two);
    sheaf_sequence_destroy(more);
    rig_close(&r);
}

static void no_pin_is_revoked_for_a_copy(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 6, NULL);
    keep_text(&r, "aaaa bbbb");
    keep_text(&r, "cccc dddd");
    uint64_t pin = must_pin(&r, "cccc dddd", 1, SHEAF_PIN_REVOCABLE, 8);
    asked t;
    sheaf_sequence *running = run_prompt(&r, ask(&r, &t, "nnnn oooo"));
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaabbxx", &match);
    assert_int_equal(match.shared, 4);
    assert_int_equal(match.copied, 0);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pin), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(running);
    rig_close(&r);
}

static void a_step_gives_up_a_copy_before_a_pin(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 6, NULL);
    keep_text(&r, "aaaa bbbb");
    keep_text(&r, "cccc dddd");
    uint64_t pin = must_pin(&r, "cccc dddd", 1, SHEAF_PIN_REVOCABLE, 8);
    asked t, u;
    sheaf_sequence *running = run_prompt(&r, ask(&r, &t, "nnnn oooo"));
    sheaf_step step = SHEAF_STEP_INIT;
    step.prompt = ask(&r, &u, "aaaa bbxx"), step.n = 8;
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.match.shared, 4);
    assert_int_equal(step.match.copied, 0);
    assert_int_equal(step.reserved, 4);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pin), SHEAF_OK);
    sheaf_sequence_destroy(step.sequence);
    sheaf_sequence_destroy(running);
    rig_close(&r);
}

static void a_reset_revokes_what_can_be_revoked_in_its_namespace(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    asked t;
    ask(&r, &t, "abcd efgh")->space = &r.other;
    keep(&r, &t.prompt);
    uint64_t elsewhere;
    assert_int_equal(
        sheaf_prefix_pin(r.cache, &t.prompt, 1, SHEAF_PIN_REVOCABLE, &elsewhere, NULL),
        SHEAF_OK);
    uint64_t soft = must_pin(&r, "abcd efgh ijkl", 1, SHEAF_PIN_REVOCABLE, 12);
    uint64_t hard = must_pin(&r, "abcd", 1, 0, 4);
    assert_int_equal(sheaf_prefix_reset(r.cache, &r.space, NULL), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(sheaf_prefix_pinned(r.cache, soft), SHEAF_MISS);
    assert_int_equal(sheaf_prefix_pinned(r.cache, hard), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pinned(r.cache, elsewhere), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd efgh ijkl"), 4);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pinned(r.cache, elsewhere), SHEAF_MISS);
    assert_int_equal(rig_stats(&r).pins_revoked, 2);
    assert_int_equal(pinned_blocks(&r), 1);
    unpin(&r, hard);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 0);
    rig_close(&r);
}

static void all_pins_of_a_namespace_are_given_up_whoever_owns_them(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    asked t;
    ask(&r, &t, "abcd efgh")->space = &r.other;
    keep(&r, &t.prompt);
    uint64_t elsewhere;
    assert_int_equal(sheaf_prefix_pin(r.cache, &t.prompt, 1, 0, &elsewhere, NULL), SHEAF_OK);
    uint64_t mine = must_pin(&r, "abcd", 1, 0, 4);
    uint64_t yours = must_pin(&r, "abcd efgh", 2, SHEAF_PIN_REVOCABLE, 8);
    assert_int_equal(sheaf__pins_forget(r.cache, &r.space), 2);
    assert_cache_whole(&r);
    assert_int_equal(sheaf_prefix_pinned(r.cache, mine), SHEAF_E_STALE);
    assert_int_equal(sheaf_prefix_pinned(r.cache, yours), SHEAF_E_STALE);
    assert_int_equal(sheaf_prefix_pinned(r.cache, elsewhere), SHEAF_OK);
    must_pin(&r, "abcd efgh", 2, SHEAF_PIN_REVOCABLE, 8);
    assert_int_equal(sheaf_prefix_reset(r.cache, &r.space, NULL), SHEAF_OK);
    assert_int_equal(sheaf__pins_forget(r.cache, &r.space), 1); /* a revoked one */
    assert_int_equal(sheaf__pins_forget(r.cache, NULL), 1);
    assert_int_equal(sheaf__pins_forget(r.cache, NULL), 0);
    assert_cache_whole(&r);
    assert_int_equal(pinned_blocks(&r), 0);
    rig_close(&r);
}

static void impossible_arguments_are_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd");
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd");
    uint64_t id;
    uint32_t n;
    assert_int_equal(sheaf_prefix_pin(NULL, p, 1, 0, &id, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_pin(r.cache, NULL, 1, 0, &id, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_pin(r.cache, p, 1, 2, &id, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_pin(r.cache, p, 1, 0, NULL, NULL), SHEAF_E_INVALID);
    p->space = NULL;
    assert_int_equal(sheaf_prefix_pin(r.cache, p, 1, 0, &id, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_pinned(NULL, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_unpin(NULL, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_unpin_owner(NULL, 1, &n), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_unpin_owner(r.cache, 1, NULL), SHEAF_E_INVALID);
    assert_int_equal(rig_stats(&r).pins, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_matches_is_kept_and_no_more),
        cmocka_unit_test(a_partial_block_is_kept_where_the_entry_ends),
        cmocka_unit_test(pinning_asks_for_no_more_than_the_prompt_says),
        cmocka_unit_test(what_several_pin_is_counted_once_and_kept_for_the_last),
        cmocka_unit_test(a_pinned_entry_may_be_branched_from_and_continued),
        cmocka_unit_test(window_blocks_of_what_is_pinned_stay_too),
        cmocka_unit_test(what_a_window_has_let_go_of_ends_what_is_pinned),
        cmocka_unit_test(pins_never_pass_the_capacity),
        cmocka_unit_test(pins_outlast_the_time_to_live),
        cmocka_unit_test(unpinning_what_is_not_pinned_is_refused),
        cmocka_unit_test(an_owner_gives_up_all_its_own),
        cmocka_unit_test(pins_are_revoked_oldest_first_and_only_as_needed),
        cmocka_unit_test(no_pin_is_revoked_for_a_copy),
        cmocka_unit_test(a_step_gives_up_a_copy_before_a_pin),
        cmocka_unit_test(a_reset_revokes_what_can_be_revoked_in_its_namespace),
        cmocka_unit_test(all_pins_of_a_namespace_are_given_up_whoever_owns_them),
        cmocka_unit_test(impossible_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
