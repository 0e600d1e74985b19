/* tests/cache/test_ledger.c - limits, the order of leaving, what is held, letting go of what is named. */
#include "rig.h"

/* ---- capacity ---------------------------------------------------------------------------- */

static void the_third_of_two_and_a_half_evicts_the_oldest(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 32, 10);
    const char *texts[] = {"aaaabbbbccccdddd", "eeeeffffgggghhhh", "iiiijjjjkkkkllll"};
    const uint64_t exclusive[] = {4, 8, 8};
    for (uint32_t i = 0; i < 3; i++) {
        cache_text(&r, texts[i]);
        sheaf_prefix_stats stats = rig_stats(&r);
        assert_int_equal(stats.bytes_exclusive, exclusive[i] * BLOCK);
        assert_int_equal(stats.bytes_held, exclusive[i] * BLOCK);
        assert_int_equal(fixture_stats(&r.f).bytes_in_use, exclusive[i] * BLOCK);
    }
    assert_int_equal(found(&r, texts[0]), 0);
    assert_int_equal(found(&r, texts[1]), 16);
    assert_int_equal(found(&r, texts[2]), 16);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_CAPACITY], 1);
    assert_int_equal(rig_stats(&r).evicted_blocks[SHEAF_LEFT_CAPACITY], 4);
    rig_close(&r);
}

static void the_limit_holds_in_whatever_order_sequences_end(void **state)
{
    (void)state;
    const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                   {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const char *texts[] = {"aaaabbbbcccc", "aaaabbbbddddeeee", "ffffgggg"};
    for (uint32_t o = 0; o < 6; o++)
        for (uint64_t capacity = 4; capacity <= 8; capacity++) {
            rig r;
            rig_open_limited(&r, 1, 24, capacity);
            sheaf_sequence *seqs[3];
            for (uint32_t i = 0; i < 3; i++) {
                seqs[i] = typed(&r, texts[i]);
                publish(&r, seqs[i], 0);
            }
            for (uint32_t i = 0; i < 3; i++) {
                sheaf_sequence_destroy(seqs[orders[o][i]]);
                sheaf_prefix_stats stats = rig_stats(&r);
                assert_true(stats.bytes_exclusive <= capacity * BLOCK);
                assert_int_equal(stats.bytes_exclusive, sheaf__pool_tree_only_bytes(r.f.pool));
                assert_cache_whole(&r);
            }
            assert_int_equal(fixture_stats(&r.f).bytes_in_use, rig_stats(&r).bytes_held);
            rig_close(&r);
        }
}

static void an_entry_larger_than_the_capacity_is_refused_alone(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 32, 4);
    cache_text(&r, "aaaabbbb");
    sheaf_sequence *seq = typed(&r, "ccccddddeeeeffffg");
    uint32_t n = 77;
    assert_int_equal(publish_as(&r, seq, 0, 0, SHEAF_PUBLISH_TAIL, &n), SHEAF_REFUSED);
    assert_int_equal(n, 77);
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.refusals[SHEAF_REFUSED_TOO_LARGE], 1);
    assert_int_equal(stats.last_refusal, SHEAF_REFUSED_TOO_LARGE);
    assert_int_equal(stats.last_refusal_needed, 5 * BLOCK);
    assert_int_equal(stats.last_refusal_possible, 4 * BLOCK);
    assert_int_equal(stats.last_refusal_tokens, 17);
    assert_int_equal(publish(&r, seq, 0), 16); /* without the tail it fits */
    assert_int_equal(found(&r, "aaaabbbb"), 8);
    sheaf_sequence_destroy(seq);
    assert_int_equal(found(&r, "aaaabbbb"), 0);
    rig_close(&r);
}

static void the_size_that_an_entry_will_come_to_counts(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 32, 4);
    cache_text(&r, "aaaabbbb");
    sheaf_sequence *seq = typed(&r, "cccc");
    sheaf_prompt prompt = SHEAF_PROMPT_INIT;
    prompt.space = &r.space, prompt.n_tokens = 17;
    assert_int_equal(sheaf_prefix_publish(r.cache, &prompt, seq, 0, NULL), SHEAF_REFUSED);
    prompt.n_tokens = 16;
    assert_int_equal(sheaf_prefix_publish(r.cache, &prompt, seq, 0, NULL), SHEAF_OK);
    assert_int_equal(found(&r, "aaaabbbb"), 8);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void limits_that_change_evict(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 32, 8);
    cache_text(&r, "aaaabbbb");
    cache_text(&r, "ccccdddd");
    cache_text(&r, "eeee");
    sheaf_prefix_options o = limits_of(3, 0, 0);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
    assert_int_equal(rig_stats(&r).bytes_exclusive, 3 * BLOCK);
    assert_int_equal(rig_stats(&r).capacity_bytes, 3 * BLOCK);
    o = limits_of(3, 1, 0);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
    assert_int_equal(rig_stats(&r).entries, 1);
    assert_int_equal(found(&r, "eeee"), 4);
    rig_close(&r);
}

static void limits_below_what_pins_keep_are_refused(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 32, 8);
    cache_text(&r, "aaaabbbb");
    cache_text(&r, "cccc");
    const char *texts[] = {"aaaabbbb", "cccc"};
    uint64_t pins[2];
    for (uint32_t i = 0; i < 2; i++) {
        text t = text_of(texts[i]);
        sheaf_prompt prompt = prompt_of(&r, &t);
        assert_int_equal(sheaf_prefix_pin(r.cache, &prompt, 1, 0, &pins[i], NULL), SHEAF_OK);
    }
    sheaf_prefix_options o = limits_of(2, 0, 0);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_REFUSED);
    o = limits_of(8, 1, 0);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_REFUSED);
    assert_int_equal(rig_stats(&r).capacity_bytes, 8 * BLOCK);
    assert_int_equal(rig_stats(&r).max_entries, 0);
    o = limits_of(3, 2, 0);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
    assert_int_equal(rig_stats(&r).bytes_pinned, 3 * BLOCK);
    rig_close(&r);
}

/* ---- the order of leaving ---------------------------------------------------------------- */

static void the_longest_unused_leaves_first(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_text(&r, "aaaa");
    cache_text(&r, "bbbb");
    cache_text(&r, "cccc");
    assert_matches(&r, "aaaa", 4, 0); /* a hit is a use */
    found(&r, "bbbb");                /* looking is none */
    assert_int_equal(evict(&r, 1), BLOCK);
    assert_int_equal(found(&r, "bbbb"), 0);
    evict(&r, 1);
    assert_int_equal(found(&r, "cccc"), 0);
    assert_int_equal(found(&r, "aaaa"), 4);
    rig_close(&r);
}

static void a_copied_tail_is_a_use_too(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_text(&r, "aaaa");
    cache_text(&r, "bbbb");
    assert_matches(&r, "aaxx", 0, 2);
    evict(&r, 1);
    assert_int_equal(found(&r, "aaaa"), 4);
    assert_int_equal(found(&r, "bbbb"), 0);
    rig_close(&r);
}

static void leaves_go_before_their_parents(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_text(&r, "aaaabbbbcccc");
    cache_text(&r, "aaaabbbbdddd");
    cache_text(&r, "aaaaeeee");
    cache_text(&r, "ffff");
    const char *texts[] = {"aaaabbbbcccc", "aaaabbbbdddd", "aaaaeeee", "ffff"};
    const uint32_t left[][4] = {
        {8, 12, 8, 4}, /* the leaf cccc; bbbb and dddd are joined */
        {4, 4, 8, 4},  /* bbbb dddd */
        {0, 0, 0, 4},  /* aaaa eeee */
        {0, 0, 0, 0},
    };
    const uint64_t nodes[] = {4, 2, 1, 0};
    for (uint32_t i = 0; i < 4; i++) {
        evict(&r, 1);
        for (uint32_t j = 0; j < 4; j++) assert_int_equal(found(&r, texts[j]), left[i][j]);
        assert_int_equal(rig_stats(&r).nodes, nodes[i]);
        assert_int_equal(rig_stats(&r).entries, 3 - i);
    }
    assert_int_equal(rig_stats(&r).spaces, 0);
    rig_close(&r);
}

/* When cccc has left, aaaa and bbbb are one entry where one session published both. */
static void an_entry_whose_branch_has_gone_is_as_old_as_what_was_above_it(void **state)
{
    (void)state;
    for (uint64_t session = 0; session < 2; session++) {
        rig r;
        rig_open_limited(&r, 1, 32, 2);
        cache_as(&r, "aaaa", 0, 0);
        cache_as(&r, "aaaabbbb", session, 0);
        sheaf_match match;
        sheaf_sequence *seq = matched(&r, "aaaa", &match);
        type(&r, seq, "cccc");
        assert_int_equal(publish_as(&r, seq, 0, -1, 0, NULL), SHEAF_OK);
        cache_text(&r, "dddd");
        assert_matches(&r, "aaaa", 4, 0); /* bbbb, dddd, aaaa: the longest unused first */
        assert_int_equal(rig_stats(&r).nodes, 4);
        sheaf_sequence_destroy(seq); /* four blocks, of which two may stay */
        assert_cache_whole(&r);
        assert_int_equal(found(&r, "aaaacccc"), 4);
        assert_int_equal(found(&r, "aaaabbbb"), session == 0 ? 8 : 4);
        assert_int_equal(found(&r, "dddd"), session == 0 ? 0 : 4);
        assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_CAPACITY], 2);
        rig_close(&r);
    }
}

static void lower_priorities_leave_first(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_as(&r, "aaaa", 0, 1);
    cache_as(&r, "bbbb", 0, SHEAF_PRIORITY_MAX);
    cache_as(&r, "cccc", 0, SHEAF_PRIORITY_MIN);
    cache_as(&r, "dddd", 0, 0);
    const char *order[] = {"cccc", "dddd", "aaaa", "bbbb"};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(found(&r, order[i]), 4);
        evict(&r, 1);
        assert_int_equal(found(&r, order[i]), 0);
    }
    rig_close(&r);
}

static void a_parent_is_as_important_as_its_children(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_as(&r, "aaaa", 0, -1);
    cache_as(&r, "aaaabbbb", 0, 2); /* a child: its parent keeps its own priority for later */
    cache_as(&r, "cccc", 0, 1);
    cache_as(&r, "dddd", 0, -1);
    assert_int_equal(rig_stats(&r).nodes, 4);
    evict(&r, 1);
    assert_int_equal(found(&r, "dddd"), 0);
    evict(&r, 1);
    assert_int_equal(found(&r, "cccc"), 0);
    cache_as(&r, "eeee", 0, -1);
    assert_int_equal(found(&r, "aaaabbbb"), 8);
    evict(&r, 1); /* eeee: the only one at its level */
    assert_int_equal(found(&r, "eeee"), 0);
    evict(&r, 1);
    assert_int_equal(found(&r, "aaaabbbb"), 4);
    rig_close(&r);
}

static void publishing_again_raises_a_priority_and_never_lowers_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_as(&r, "aaaa", 0, -1);
    cache_as(&r, "bbbb", 0, 1);
    cache_as(&r, "aaaa", 0, 2);
    cache_as(&r, "bbbb", 0, -1);
    cache_as(&r, "cccc", 0, 0);
    const char *order[] = {"cccc", "bbbb", "aaaa"};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(found(&r, order[i]), 4);
        evict(&r, 1);
        assert_int_equal(found(&r, order[i]), 0);
    }
    rig_close(&r);
}

static void who_falls_a_level_comes_where_its_last_use_belongs(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_as(&r, "aaaa", 0, 0);
    cache_as(&r, "bbbb", 0, 0);
    cache_as(&r, "aaaacccc", 1, 1);
    cache_as(&r, "dddd", 0, 0);
    assert_int_equal(sheaf_prefix_release_session(r.cache, 1, NULL), SHEAF_OK);
    assert_cache_whole(&r);
    evict(&r, 1);
    assert_int_equal(found(&r, "bbbb"), 0);
    evict(&r, 1);
    assert_int_equal(found(&r, "aaaa"), 0); /* used with its child, before dddd */
    assert_int_equal(found(&r, "dddd"), 4);
    rig_close(&r);
}

static void who_fall_together_come_where_their_last_uses_belong(void **state)
{
    (void)state;
    enum { N = 45 };
    rig r;
    rig_open(&r, 1, 4 * N, NULL);
    for (int i = 0; i < N; i++) {
        r.now += 10;
        char letter = (char)('0' + i * 17 % N), alone[] = "....", below[] = "....xxxx";
        memset(alone, letter, 4), memset(below, letter, 4);
        cache_as(&r, alone, 0, i % 2);
        if (i % 3 != 0) cache_as(&r, below, 1, 2 + i % 5 / 4);
    }
    uint32_t n;
    assert_int_equal(sheaf_prefix_release_session(r.cache, 1, &n), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(n, N / 3 * 2);
    sheaf_entry entries[N];
    assert_int_equal(sheaf_prefix_entries(r.cache, entries, N, &n), SHEAF_OK);
    assert_int_equal(n, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(entries[i].priority, i > N / 2);
        if (i != 0 && i != N / 2 + 1) assert_true(entries[i].age_ns < entries[i - 1].age_ns);
    }
    rig_close(&r);
}

/* ---- what is held ------------------------------------------------------------------------ */

static void a_held_entry_shrinks_to_what_is_held(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_text(&r, "aaaabbbbccccdd");
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaabbbb", &match);
    assert_int_equal(match.length, 8);
    assert_int_equal(evict(&r, UINT64_MAX), 2 * BLOCK);
    assert_int_equal(found(&r, "aaaabbbbccccdd"), 8);
    assert_int_equal(rig_stats(&r).entries, 1);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_PRESSURE], 0);
    assert_int_equal(rig_stats(&r).evicted_blocks[SHEAF_LEFT_PRESSURE], 2);
    assert_holds_its_tokens(&r.f, seq);
    sheaf_sequence_destroy(seq);
    assert_int_equal(evict(&r, UINT64_MAX), 2 * BLOCK);
    assert_int_equal(rig_stats(&r).entries, 0);
    rig_close(&r);
}

static void what_is_held_is_used_as_long_as_it_is(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_text(&r, "aaaa");
    cache_text(&r, "bbbb");
    cache_text(&r, "cccc");
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaa", &match);
    assert_matches(&r, "bbbb", 4, 0);
    evict(&r, 1);
    assert_int_equal(found(&r, "cccc"), 0);
    assert_int_equal(evict(&r, 1), BLOCK); /* passes aaaa, which is used thereby */
    assert_int_equal(found(&r, "bbbb"), 0);
    cache_text(&r, "dddd");
    sheaf_sequence_destroy(seq);
    assert_int_equal(found(&r, "aaaa"), 4);
    rig_close(&r);
}

/* Two computed the same first block; the tree has the one's first, the other's second. */
static void what_stands_before_held_blocks_does_not_pass_the_limit(void **state)
{
    (void)state;
    rig r;
    rig_open_limited(&r, 1, 32, 2);
    sheaf_sequence *one = typed(&r, "aaaa"), *two = typed(&r, "aaaabbbb");
    publish(&r, one, 0);
    publish(&r, two, 0);
    sheaf_sequence_destroy(one); /* its block is the cache's alone */
    assert_int_equal(rig_stats(&r).bytes_exclusive, BLOCK);
    sheaf_prefix_options o = limits_of(0, 0, 0);
    o.capacity_bytes = BLOCK - 1;
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
    assert_int_equal(rig_stats(&r).bytes_exclusive, 0);
    assert_int_equal(found(&r, "aaaabbbb"), 0);
    assert_holds_its_tokens(&r.f, two);
    sheaf_sequence_destroy(two);
    rig_close(&r);
}

/* Of "aaaa" -- "bbbb cccc dddd" sequences hold bbbb and dddd. */
static void a_leaf_is_forgotten_from_the_first_block_that_nobody_holds(void **state)
{
    (void)state;
    for (uint64_t capacity = 0; capacity <= 2; capacity++) {
        rig r;
        rig_open(&r, 1, 32, NULL);
        const char *texts[] = {"aaaa", "aaaabbbb", "aaaabbbbcccc", "aaaabbbbccccdddd"};
        sheaf_sequence *seqs[4];
        for (uint32_t i = 0; i < 4; i++) {
            seqs[i] = typed(&r, texts[i]);
            assert_int_equal(publish_as(&r, seqs[i], 1 + (i > 0), 0, 0, NULL), SHEAF_OK);
        }
        sheaf_sequence_destroy(seqs[0]);
        sheaf_sequence_destroy(seqs[2]);
        assert_int_equal(rig_stats(&r).bytes_exclusive, 2 * BLOCK);
        sheaf_prefix_options o = limits_of(capacity, 0, 0);
        if (capacity == 0) o.capacity_bytes = 1;
        assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
        assert_cache_whole(&r);
        assert_int_equal(rig_stats(&r).bytes_exclusive, capacity * BLOCK);
        const uint32_t left[] = {0, 8, 16};
        assert_int_equal(found(&r, texts[3]), left[capacity]);
        assert_holds_its_tokens(&r.f, seqs[3]);
        sheaf_sequence_destroy(seqs[1]);
        sheaf_sequence_destroy(seqs[3]);
        rig_close(&r);
    }
}

/* ---- other limits ------------------------------------------------------------------------ */

static void the_number_of_entries_is_limited(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = limits_of(20, 2, 0);
    rig_open(&r, 1, 32, &o);
    cache_text(&r, "aaaabbbb");
    cache_text(&r, "aaaacccc");
    cache_text(&r, "dddd");
    assert_int_equal(rig_stats(&r).entries, 2);
    assert_int_equal(found(&r, "aaaabbbb"), 4);
    assert_int_equal(found(&r, "aaaacccc"), 8);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_ENTRIES], 1);
    sheaf_match match;
    sheaf_sequence *one = matched(&r, "aaaacccc", &match);
    sheaf_sequence *two = matched(&r, "dddd", &match);
    sheaf_sequence *three = typed(&r, "eeee");
    publish(&r, three, 0); /* all three are held: the tree forgets the one used first */
    assert_int_equal(rig_stats(&r).entries, 2);
    assert_int_equal(found(&r, "aaaacccc"), 0);
    assert_int_equal(found(&r, "dddd"), 4);
    assert_int_equal(found(&r, "eeee"), 4);
    assert_holds_its_tokens(&r.f, one);
    cache_text(&r, "ffff");
    assert_int_equal(rig_stats(&r).entries, 2);
    sheaf_sequence_destroy(one);
    sheaf_sequence_destroy(two);
    sheaf_sequence_destroy(three);
    rig_close(&r);
}

static void entries_go_when_their_time_is_over(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = limits_of(20, 0, 100);
    rig_open(&r, 1, 32, &o);
    cache_text(&r, "aaaabbbb");
    r.now += 60;
    cache_as(&r, "cccc", 0, 3);
    cache_text(&r, "aaaadddd"); /* aaaa is used again */
    r.now += 40;
    uint32_t n = 77;
    assert_int_equal(sheaf_prefix_expire(r.cache, &n), SHEAF_OK);
    assert_int_equal(n, 1);
    assert_int_equal(found(&r, "aaaabbbb"), 4);
    assert_int_equal(found(&r, "aaaadddd"), 8);
    r.now += 30;
    assert_matches(&r, "cccc", 4, 0); /* at 70 of its 100 */
    r.now += 30;
    assert_matches(&r, "aaaadddd", 0, 0); /* matching looks at the time too */
    assert_int_equal(found(&r, "cccc"), 4);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_TTL], 2);
    rig_close(&r);
}

static void a_level_that_falls_while_entries_expire_is_looked_at_again(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = limits_of(20, 0, 100);
    rig_open(&r, 1, 32, &o);
    cache_as(&r, "aaaa", 1, 1);
    cache_as(&r, "aaaabbbb", 2, -1);
    cache_as(&r, "aaaabbbbcccc", 3, 2);
    r.now += 100;
    uint32_t n;
    assert_int_equal(sheaf_prefix_expire(r.cache, &n), SHEAF_OK);
    assert_int_equal(n, 3);
    assert_int_equal(rig_stats(&r).nodes, 0);
    rig_close(&r);
}

static void what_is_held_does_not_expire(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = limits_of(20, 0, 100);
    rig_open(&r, 1, 32, &o);
    cache_text(&r, "aaaabbbb");
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaa", &match);
    r.now += 1000;
    uint32_t n = 77;
    assert_int_equal(sheaf_prefix_expire(r.cache, &n), SHEAF_OK);
    assert_int_equal(n, 0);
    assert_int_equal(found(&r, "aaaabbbb"), 4);
    sheaf_sequence_destroy(seq);
    r.now += 99;
    assert_int_equal(sheaf_prefix_expire(r.cache, &n), SHEAF_OK);
    assert_int_equal(found(&r, "aaaa"), 4);
    r.now += 1;
    assert_int_equal(sheaf_prefix_expire(r.cache, &n), SHEAF_OK);
    assert_int_equal(n, 1);
    rig_close(&r);
}

/* A clock that moves with every look at it, as the system's does. */
static uint64_t moving_now(void *ctx)
{
    uint64_t *now = ctx;
    assert_true(++*now < 100000); /* nobody looks at it for ever */
    return *now;
}

static void what_is_held_is_looked_at_once_while_time_goes_on(void **state)
{
    (void)state;
    rig r;
    uint64_t now = 0;
    sheaf_clock clock = {&now, moving_now};
    sheaf_prefix_options o = limits_of(20, 0, 1000);
    rig_open(&r, 1, 32, &o);
    sheaf_prefix_close(r.cache);
    o.clock = &clock;
    assert_int_equal(sheaf_prefix_open(r.f.pool, &o, &r.cache, NULL), SHEAF_OK);
    cache_text(&r, "aaaabbbb");
    cache_text(&r, "ccccdddd");
    sheaf_match match;
    sheaf_sequence *held = matched(&r, "aaaabbbb", &match);
    now += 2000;
    uint32_t n = 77;
    assert_int_equal(sheaf_prefix_expire(r.cache, &n), SHEAF_OK);
    assert_int_equal(n, 1);
    assert_int_equal(found(&r, "aaaabbbb"), 8);
    assert_int_equal(found(&r, "ccccdddd"), 0);
    sheaf_sequence_destroy(held);
    rig_close(&r);
}

/* ---- letting go of what is named --------------------------------------------------------- */

static void a_session_lets_go_of_what_it_published_last(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_as(&r, "aaaabbbb", 1, 0);
    cache_as(&r, "aaaabbbbcccc", 2, 0);
    cache_as(&r, "aaaadddd", 1, 0);
    cache_as(&r, "eeee", 1, 0);
    cache_as(&r, "eeee", 2, 0);
    uint32_t n;
    assert_int_equal(sheaf_prefix_release_session(r.cache, 0, &n), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_release_session(r.cache, 1, &n), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(n, 1);
    assert_int_equal(found(&r, "aaaadddd"), 4);
    assert_int_equal(found(&r, "aaaabbbbcccc"), 12); /* another uses it */
    assert_int_equal(found(&r, "eeee"), 4);
    assert_int_equal(sheaf_prefix_release_session(r.cache, 2, &n), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(n, 2);
    assert_int_equal(found(&r, "aaaabbbbcccc"), 8);
    assert_int_equal(sheaf_prefix_release_session(r.cache, 1, &n), SHEAF_OK);
    assert_int_equal(rig_stats(&r).nodes, 0);
    assert_int_equal(rig_stats(&r).spaces, 0);
    rig_close(&r);
}

static void a_reset_returns_every_reference_also_of_what_is_held(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 32, NULL);
    cache_text(&r, "aaaabbbbcccc");
    cache_text(&r, "aaaabbbbdd");
    sheaf_key first = r.space;
    r.space = r.other;
    cache_text(&r, "aaaaeeee");
    r.space = first;
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaabbbbcccc", &match);
    uint32_t n;
    assert_int_equal(sheaf_prefix_reset(r.cache, &first, &n), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(n, 3); /* when both leaves have gone, their parent is one */
    assert_int_equal(rig_stats(&r).spaces, 1);
    assert_int_equal(found(&r, "aaaabbbbcccc"), 0);
    assert_holds_its_tokens(&r.f, seq);
    assert_int_equal(publish(&r, seq, 0), 12); /* and can come again */
    assert_int_equal(found(&r, "aaaabbbbcccc"), 12);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, &n), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(rig_stats(&r).nodes, 0);
    assert_int_equal(fixture_stats(&r.f).owners[SHEAF_OWNER_TREE], 0);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void a_reset_forgets_every_namespace(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 40; n++) {
        rig r;
        rig_open(&r, 1, 48, NULL);
        for (uint32_t i = 0; i < n; i++) {
            char salt[2] = {(char)('A' + i), 0};
            r.space = space_of(&r, salt);
            cache_text(&r, "aaaa");
        }
        assert_int_equal(rig_stats(&r).spaces, n);
        uint32_t gone;
        assert_int_equal(sheaf_prefix_reset(r.cache, NULL, &gone), SHEAF_OK);
        assert_cache_whole(&r);
        assert_int_equal(gone, n);
        assert_int_equal(rig_stats(&r).spaces, 0);
        rig_close(&r);
    }
}

static void closing_returns_every_reference(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 32, NULL);
    cache_text(&r, "aaaabbbbcccc");
    cache_text(&r, "aaaadddd");
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaabbbb", &match);
    sheaf_prefix_close(r.cache);
    assert_int_equal(fixture_stats(&r.f).owners[SHEAF_OWNER_TREE], 0);
    assert_holds_its_tokens(&r.f, seq);
    sheaf_sequence_destroy(seq);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 0);
    fixture_close(&r.f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_third_of_two_and_a_half_evicts_the_oldest),
        cmocka_unit_test(the_limit_holds_in_whatever_order_sequences_end),
        cmocka_unit_test(an_entry_larger_than_the_capacity_is_refused_alone),
        cmocka_unit_test(the_size_that_an_entry_will_come_to_counts),
        cmocka_unit_test(limits_that_change_evict),
        cmocka_unit_test(limits_below_what_pins_keep_are_refused),
        cmocka_unit_test(the_longest_unused_leaves_first),
        cmocka_unit_test(a_copied_tail_is_a_use_too),
        cmocka_unit_test(leaves_go_before_their_parents),
        cmocka_unit_test(an_entry_whose_branch_has_gone_is_as_old_as_what_was_above_it),
        cmocka_unit_test(lower_priorities_leave_first),
        cmocka_unit_test(a_parent_is_as_important_as_its_children),
        cmocka_unit_test(publishing_again_raises_a_priority_and_never_lowers_it),
        cmocka_unit_test(who_falls_a_level_comes_where_its_last_use_belongs),
        cmocka_unit_test(who_fall_together_come_where_their_last_uses_belong),
        cmocka_unit_test(a_held_entry_shrinks_to_what_is_held),
        cmocka_unit_test(what_is_held_is_used_as_long_as_it_is),
        cmocka_unit_test(what_stands_before_held_blocks_does_not_pass_the_limit),
        cmocka_unit_test(a_leaf_is_forgotten_from_the_first_block_that_nobody_holds),
        cmocka_unit_test(the_number_of_entries_is_limited),
        cmocka_unit_test(entries_go_when_their_time_is_over),
        cmocka_unit_test(a_level_that_falls_while_entries_expire_is_looked_at_again),
        cmocka_unit_test(what_is_held_does_not_expire),
        cmocka_unit_test(what_is_held_is_looked_at_once_while_time_goes_on),
        cmocka_unit_test(a_session_lets_go_of_what_it_published_last),
        cmocka_unit_test(a_reset_returns_every_reference_also_of_what_is_held),
        cmocka_unit_test(a_reset_forgets_every_namespace),
        cmocka_unit_test(closing_returns_every_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
