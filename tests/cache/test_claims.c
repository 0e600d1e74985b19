/* tests/cache/test_claims.c - nobody computes what another does, and nobody waits for ever. */
#include "door.h"

static sheaf_status claim(rig *r, const char *words, uint32_t have, uint64_t *ticket)
{
    asked t;
    return sheaf_prefix_claim(r->cache, ask(r, &t, words), have, ticket);
}

static uint64_t must_claim(rig *r, const char *words, uint32_t have)
{
    uint64_t ticket = 0;
    assert_int_equal(claim(r, words, have, &ticket), SHEAF_OK);
    assert_true(ticket != 0);
    return ticket;
}

static uint64_t must_wait(rig *r, const char *words, uint32_t have)
{
    uint64_t ticket = 0;
    assert_int_equal(claim(r, words, have, &ticket), SHEAF_PENDING);
    assert_true(ticket != 0);
    return ticket;
}

static sheaf_status poll(rig *r, uint64_t ticket)
{
    assert_cache_whole(r);
    return sheaf_prefix_poll(r->cache, ticket);
}

static void drop(rig *r, uint64_t ticket)
{
    assert_int_equal(sheaf_prefix_drop(r->cache, ticket), SHEAF_OK);
    assert_cache_whole(r);
}

/* As sheaf_prefix_publish tells it. */
static void progress(rig *r, uint64_t ticket, uint32_t end)
{
    sheaf__prefix_enter(r->cache);
    sheaf__claims_progress(r->cache, ticket, end);
    sheaf__prefix_leave(r->cache);
    assert_cache_whole(r);
}

static void open_plain(rig *r)
{
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.claim_timeout_ns = 10 * SECOND;
    rig_open(r, 1, 16, &o);
}

/* ---- who waits, and until when ----------------------------------------------------------- */

static void the_first_to_ask_computes_and_the_next_waits(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh ijkl", 0);
    uint64_t second = must_wait(&r, "abcd efgh ijkl", 0);
    assert_true(second > first);
    assert_int_equal(poll(&r, first), SHEAF_OK);
    assert_int_equal(poll(&r, second), SHEAF_PENDING);
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.claims, 1);
    assert_int_equal(stats.waiters, 1);
    assert_int_equal(stats.waits, 1);
    drop(&r, second);
    drop(&r, first);
    stats = rig_stats(&r);
    assert_int_equal(stats.claims, 0);
    assert_int_equal(stats.waiters, 0);
    assert_int_equal(stats.takeovers, 0);
    rig_close(&r);
}

static void who_waits_is_ready_when_all_that_is_common_is_published(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh ijkl mnop", 0);
    uint64_t two = must_wait(&r, "abcd efgh xxxx", 0);
    uint64_t three = must_wait(&r, "abcd efgh ijkl yyyy", 0);
    progress(&r, first, 4);
    assert_int_equal(poll(&r, two), SHEAF_PENDING);
    progress(&r, first, 7); /* of a block that is not whole nothing can be shared */
    assert_int_equal(poll(&r, two), SHEAF_PENDING);
    drop(&r, must_wait(&r, "abcd efgh", 5));
    progress(&r, first, 8);
    assert_int_equal(rig_stats(&r).waiters, 1);
    assert_int_equal(poll(&r, two), SHEAF_OK);
    assert_int_equal(poll(&r, two), SHEAF_E_STALE);
    assert_int_equal(poll(&r, three), SHEAF_PENDING);
    progress(&r, first, 16);
    assert_int_equal(poll(&r, three), SHEAF_OK);
    drop(&r, first);
    assert_int_equal(rig_stats(&r).takeovers, 0);
    rig_close(&r);
}

static void what_differs_within_the_next_block_is_not_waited_for(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    must_claim(&r, "abcd efgh", 0);
    must_claim(&r, "abcx efgh", 0);
    must_claim(&r, "xbcd efgh", 0);
    must_claim(&r, "abcd efgx", 4); /* the common block is there already */
    must_wait(&r, "abcd efgx", 0);
    must_wait(&r, "abcd", 3); /* in the middle of the block that is being computed */
    rig_close(&r);
}

static void what_is_published_or_before_a_claim_is_not_waited_for(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t late = must_claim(&r, "abcd efgh ijkl", 8);
    uint64_t early = must_claim(&r, "abcd efgh ijkl", 0); /* nobody computes these */
    progress(&r, early, 4);
    must_wait(&r, "abcd efgh ijkl", 4);
    progress(&r, late, 12);
    progress(&r, early, 8);
    must_claim(&r, "abcd efgh ijkl", 4); /* published, and gone again */
    rig_close(&r);
}

static void a_claim_of_less_than_a_block_hinders_nobody(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t one = must_claim(&r, "a", 0), three = must_claim(&r, "abc", 0);
    uint64_t whole = must_claim(&r, "abcd", 0), over = must_wait(&r, "abcde", 0);
    uint64_t past = must_claim(&r, "abcde", 4), end = must_claim(&r, "abcde", 5);
    uint64_t tickets[] = {one, three, whole, past, end};
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(poll(&r, tickets[i]), SHEAF_OK);
    progress(&r, one, 1);
    progress(&r, whole, 4);
    assert_int_equal(poll(&r, over), SHEAF_OK);
    for (uint32_t i = 0; i < 5; i++) drop(&r, tickets[i]);
    rig_close(&r);
}

static void two_namespaces_never_wait_for_each_other(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    asked t;
    uint64_t ticket;
    must_claim(&r, "abcd efgh", 0);
    ask(&r, &t, "abcd efgh")->space = &r.other;
    assert_int_equal(sheaf_prefix_claim(r.cache, &t.prompt, 0, &ticket), SHEAF_OK);
    assert_int_equal(sheaf_prefix_claim(r.cache, &t.prompt, 0, &ticket), SHEAF_PENDING);
    rig_close(&r);
}

static void of_several_claims_the_one_that_covers_most_is_waited_for(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 2; order++) {
        rig r;
        open_plain(&r);
        const char *words[] = {"abcd efgh ijkl xxxx", "abcd efgh ijkl mnop"};
        uint64_t before = must_claim(&r, words[order], 0);
        progress(&r, before, 8);
        /* what it has published has been evicted again, for all that a newcomer knows */
        uint64_t after = must_claim(&r, words[1 - order], 4);
        uint64_t less = order == 0 ? before : after, more = order == 0 ? after : before;
        uint64_t waits = must_wait(&r, "abcd efgh ijkl mnop", 8);
        drop(&r, less);
        progress(&r, more, 12);
        assert_int_equal(poll(&r, waits), SHEAF_PENDING);
        progress(&r, more, 16);
        assert_int_equal(poll(&r, waits), SHEAF_OK);
        rig_close(&r);
    }
}

/* ---- taking over ------------------------------------------------------------------------- */

static void a_dropped_claim_is_taken_over(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh", 0);
    uint64_t a = must_wait(&r, "abcd efgh", 0), b = must_wait(&r, "abcd efgh", 0);
    progress(&r, first, 4);
    drop(&r, first);
    assert_int_equal(rig_stats(&r).takeovers, 1);
    assert_int_equal(poll(&r, a), SHEAF_OK);
    uint64_t taken = must_claim(&r, "abcd efgh", 4);
    assert_int_equal(poll(&r, b), SHEAF_OK);
    b = must_wait(&r, "abcd efgh", 4);
    progress(&r, taken, 8);
    assert_int_equal(poll(&r, b), SHEAF_OK);
    rig_close(&r);
}

static void a_stalled_claim_is_taken_over(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh", 0);
    r.now += 9 * SECOND;
    uint64_t waits = must_wait(&r, "abcd efgh", 0);
    progress(&r, first, 4);
    r.now += 10 * SECOND - 1;
    progress(&r, first, 4); /* told again: no progress */
    progress(&r, first, 3);
    assert_int_equal(poll(&r, waits), SHEAF_PENDING);
    r.now += 1;
    assert_int_equal(poll(&r, waits), SHEAF_OK);
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.takeovers, 1);
    assert_int_equal(stats.claims, 0);

    uint64_t taken = must_claim(&r, "abcd efgh", 4);
    progress(&r, first, 8); /* late: it is the other's now */
    waits = must_wait(&r, "abcd efgh", 4);
    assert_int_equal(poll(&r, waits), SHEAF_PENDING);
    assert_int_equal(poll(&r, first), SHEAF_MISS);
    assert_int_equal(poll(&r, first), SHEAF_E_STALE);
    assert_int_equal(poll(&r, taken), SHEAF_OK);
    rig_close(&r);
}

static void a_newcomer_takes_over_what_has_stalled(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh", 0);
    uint64_t waits = must_wait(&r, "abcd", 0);
    r.now += 10 * SECOND;
    uint64_t second = must_claim(&r, "abcd efgh", 0);
    assert_int_equal(rig_stats(&r).takeovers, 1);
    assert_int_equal(poll(&r, waits), SHEAF_OK);
    drop(&r, first); /* lost, and not asked for yet: still a ticket */
    assert_int_equal(sheaf_prefix_drop(r.cache, first), SHEAF_E_STALE);
    assert_int_equal(poll(&r, second), SHEAF_OK);
    rig_close(&r);
}

static void a_stalled_claim_is_lost_to_its_holder_too(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh", 0);
    r.now += 10 * SECOND;
    assert_int_equal(poll(&r, first), SHEAF_MISS);
    assert_int_equal(rig_stats(&r).takeovers, 0); /* nobody waited */
    uint64_t done = must_claim(&r, "abcd efgh", 0);
    progress(&r, done, 8);
    r.now += 100 * SECOND;
    assert_int_equal(poll(&r, done), SHEAF_OK); /* nothing is left to compute */
    rig_close(&r);
}

static void a_reset_loses_the_claims_of_its_namespace(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    asked t;
    uint64_t here = must_claim(&r, "abcd", 0), waits = must_wait(&r, "abcd", 0), there;
    ask(&r, &t, "abcd")->space = &r.other;
    assert_int_equal(sheaf_prefix_claim(r.cache, &t.prompt, 0, &there), SHEAF_OK);
    assert_int_equal(sheaf_prefix_reset(r.cache, &r.space, NULL), SHEAF_OK);
    assert_int_equal(poll(&r, waits), SHEAF_OK);
    assert_int_equal(poll(&r, here), SHEAF_MISS);
    assert_int_equal(poll(&r, there), SHEAF_OK);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
    assert_int_equal(poll(&r, there), SHEAF_MISS);
    assert_int_equal(rig_stats(&r).takeovers, 0);
    rig_close(&r);
}

/* ---- late, repeated and missing calls ---------------------------------------------------- */

static void repeated_late_and_unknown_calls_change_nothing(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t first = must_claim(&r, "abcd efgh", 0);
    drop(&r, first);
    uint64_t second = must_claim(&r, "abcd efgh", 0);
    uint64_t waits = must_wait(&r, "abcd efgh", 0);
    assert_true(second > first); /* an id never comes again */
    sheaf_prefix_stats before = rig_stats(&r);
    progress(&r, first, 8);
    progress(&r, 0, 8);
    progress(&r, waits, 8); /* of one who computes nothing */
    progress(&r, 999, 8);
    uint64_t unknown[] = {first, 0, 999, UINT64_MAX};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(poll(&r, unknown[i]), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_drop(r.cache, unknown[i]), SHEAF_E_STALE);
    }
    sheaf_prefix_stats after = rig_stats(&r);
    assert_memory_equal(&before, &after, sizeof after);
    assert_int_equal(poll(&r, waits), SHEAF_PENDING);
    assert_int_equal(poll(&r, second), SHEAF_OK);
    rig_close(&r); /* with both tickets still there */
}

static void impossible_arguments_are_refused(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    asked t;
    uint64_t ticket = 7;
    sheaf_prompt *p = ask(&r, &t, "abcd");
    assert_int_equal(sheaf_prefix_claim(NULL, p, 0, &ticket), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_claim(r.cache, NULL, 0, &ticket), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_claim(r.cache, p, 0, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_claim(r.cache, p, 5, &ticket), SHEAF_E_INVALID);
    p->space = NULL;
    assert_int_equal(sheaf_prefix_claim(r.cache, p, 0, &ticket), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_poll(NULL, 1), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_drop(NULL, 1), SHEAF_E_INVALID);
    assert_int_equal(ticket, 7);
    assert_int_equal(rig_stats(&r).claims, 0);
    rig_close(&r);
}

/* ---- with what is really computed -------------------------------------------------------- */

static void what_is_claimed_is_not_found_before_it_is_published(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd efgh ij");
    assert_int_equal(sheaf_prefix_claim(r.cache, p, 0, &p->ticket), SHEAF_OK);
    uint64_t waits = must_wait(&r, "abcd efgh ij", 0);
    assert_int_equal(matches(&r, "abcd efgh ij"), 0);

    sheaf_step step = SHEAF_STEP_INIT;
    step.prompt = p, step.n = 4;
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd efgh ij"), 0); /* reserved */
    compute(&r, step.sequence, p, 4);
    assert_int_equal(matches(&r, "abcd efgh ij"), 0); /* committed */
    assert_int_equal(sheaf_prefix_publish(r.cache, p, step.sequence, 0, NULL), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd efgh ij"), 4);
    assert_int_equal(poll(&r, waits), SHEAF_PENDING);

    step.n = 6;
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    compute(&r, step.sequence, p, 6);
    assert_int_equal(sheaf_prefix_publish(r.cache, p, step.sequence, 0, NULL), SHEAF_OK);
    assert_int_equal(poll(&r, waits), SHEAF_OK);
    assert_int_equal(matches(&r, "abcd efgh ij"), 8);
    drop(&r, p->ticket);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void nobody_waits_for_what_was_refused(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 16, 2);
    asked t;
    sheaf_prompt *p = ask(&r, &t, "abcd efgh ijkl");
    assert_int_equal(sheaf_prefix_claim(r.cache, p, 0, &p->ticket), SHEAF_OK);
    uint64_t waits = must_wait(&r, "abcd efgh ijkl", 0);
    sheaf_sequence *seq = run_prompt(&r, p);
    assert_int_equal(sheaf_prefix_publish(r.cache, p, seq, 0, NULL), SHEAF_REFUSED);
    assert_int_equal(poll(&r, waits), SHEAF_OK);
    assert_int_equal(rig_stats(&r).takeovers, 1);
    assert_int_equal(poll(&r, p->ticket), SHEAF_MISS);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

/* Whatever happens to claims, everyone who keeps asking gets to compute or to find. */
static void nobody_waits_for_ever(void **state)
{
    (void)state;
    rig r;
    open_plain(&r);
    uint64_t random = seed_from_environment(0x5eaf), tickets[12] = {0};
    char words[12][24];
    for (uint32_t i = 0; i < 12; i++)
        for (uint32_t c = 0; c < 24; c++)
            words[i][c] = c == 23 ? 0 : (char)('a' + random_below(&random, 8) / 7);
    for (uint32_t op = 0; op < 4000; op++) {
        uint32_t i = random_below(&random, 12), what = random_below(&random, 8);
        r.now += random_below(&random, SECOND);
        if (tickets[i] == 0) {
            sheaf_status st = claim(&r, words[i], random_below(&random, 23), &tickets[i]);
            assert_true(st == SHEAF_OK || st == SHEAF_PENDING);
        } else if (what == 0) {
            drop(&r, tickets[i]);
            tickets[i] = 0;
        } else if (what < 4) {
            progress(&r, tickets[i], random_below(&random, 24));
        } else {
            sheaf_status st = poll(&r, tickets[i]);
            assert_int_not_equal(st, SHEAF_E_STALE);
            bool stands = st == SHEAF_PENDING;
            if (st == SHEAF_OK) stands = sheaf_prefix_poll(r.cache, tickets[i]) == SHEAF_OK;
            if (!stands) tickets[i] = 0;
        }
    }
    r.now += 100 * SECOND;
    for (uint32_t i = 0; i < 12; i++)
        if (tickets[i] != 0) assert_int_not_equal(poll(&r, tickets[i]), SHEAF_PENDING);
    assert_int_equal(rig_stats(&r).waiters, 0);
    assert_true(rig_stats(&r).takeovers > 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_to_ask_computes_and_the_next_waits),
        cmocka_unit_test(who_waits_is_ready_when_all_that_is_common_is_published),
        cmocka_unit_test(what_differs_within_the_next_block_is_not_waited_for),
        cmocka_unit_test(what_is_published_or_before_a_claim_is_not_waited_for),
        cmocka_unit_test(a_claim_of_less_than_a_block_hinders_nobody),
        cmocka_unit_test(two_namespaces_never_wait_for_each_other),
        cmocka_unit_test(of_several_claims_the_one_that_covers_most_is_waited_for),
        cmocka_unit_test(a_dropped_claim_is_taken_over),
        cmocka_unit_test(a_stalled_claim_is_taken_over),
        cmocka_unit_test(a_newcomer_takes_over_what_has_stalled),
        cmocka_unit_test(a_stalled_claim_is_lost_to_its_holder_too),
        cmocka_unit_test(a_reset_loses_the_claims_of_its_namespace),
        cmocka_unit_test(repeated_late_and_unknown_calls_change_nothing),
        cmocka_unit_test(impossible_arguments_are_refused),
        cmocka_unit_test(what_is_claimed_is_not_found_before_it_is_published),
        cmocka_unit_test(nobody_waits_for_what_was_refused),
        cmocka_unit_test(nobody_waits_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
