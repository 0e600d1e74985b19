/* tests/cache/test_ledger.c - limits, the order of leaving, letting go, and the accounts of it all. */
#include "rig.h"

#include "cache/tree.h"
#include "pool/room.h"

static sheaf_prefix_options limits_of(uint64_t blocks, uint32_t entries, uint64_t ttl_ns)
{
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.capacity_bytes = blocks * BLOCK;
    o.max_entries = entries;
    o.ttl_ns = ttl_ns;
    return o;
}

static void rig_open_limited(rig *r, uint32_t n_layers, uint32_t budget, uint64_t blocks)
{
    sheaf_prefix_options o = limits_of(blocks, 0, 0);
    rig_open(r, n_layers, budget, &o);
}

/* As cache_text, with who and how important. */
static void cache_as(const rig *r, const char *letters, uint64_t session, int32_t priority)
{
    sheaf_sequence *seq = typed(r, letters);
    uint32_t n;
    assert_int_equal(publish_as(r, seq, session, priority, SHEAF_PUBLISH_TAIL, &n), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_cache_whole(r);
}

static uint64_t evict(const rig *r, uint64_t bytes)
{
    uint64_t freed = UINT64_MAX;
    assert_int_equal(sheaf_prefix_evict(r->cache, bytes, &freed), SHEAF_OK);
    assert_cache_whole(r);
    return freed;
}

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

/* ---- windows ----------------------------------------------------------------------------- */

static void window_blocks_that_nobody_needs_go_first(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 32, NULL);
    cache_text(&r, "aaaabbbbccccddddeeee"); /* the window needs blocks 3 and 4 */
    assert_int_equal(rig_stats(&r).blocks_held, 10);
    assert_int_equal(evict(&r, 2 * BLOCK), 2 * BLOCK);
    assert_int_equal(rig_stats(&r).window_blocks_dropped, 2);
    assert_matches(&r, "aaaabbbbccccddddeeee", 20, 0);
    assert_int_equal(evict(&r, BLOCK), BLOCK);
    assert_int_equal(rig_stats(&r).window_blocks_dropped, 3);
    assert_matches(&r, "aaaabbbbccccddddeeee", 20, 0);
    assert_matches(&r, "aaaabbbbccccdddd", 0, 0);
    assert_int_equal(evict(&r, BLOCK), 7 * BLOCK);
    assert_int_equal(rig_stats(&r).nodes, 0);
    rig_close(&r);
}

static void window_blocks_of_a_slid_sequence_do_not_pass_the_limit(void **state)
{
    (void)state;
    for (uint64_t capacity = 0; capacity <= 5; capacity++) {
        rig r;
        rig_open_limited(&r, 2, 32, 20);
        sheaf_sequence *seq = typed(&r, "aaaabbbbccccdddd");
        publish(&r, seq, 0);
        type(&r, seq, "eeeeffff");
        assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK); /* lets go of four */
        assert_int_equal(rig_stats(&r).bytes_exclusive, 4 * BLOCK);
        sheaf_prefix_options o = limits_of(capacity, 0, 0);
        if (capacity == 0) o.capacity_bytes = 1;
        assert_int_equal(sheaf_prefix_set_limits(r.cache, &o), SHEAF_OK);
        assert_cache_whole(&r);
        uint64_t left = capacity < 4 ? capacity : 4;
        assert_int_equal(rig_stats(&r).bytes_exclusive, left * BLOCK);
        assert_int_equal(found(&r, "aaaabbbbccccdddd"), capacity >= 2 ? 16 : 0);
        assert_int_equal(rig_stats(&r).entries, 1);
        assert_holds_its_tokens(&r.f, seq);
        sheaf_sequence_destroy(seq);
        rig_close(&r);
    }
}

/* ---- room -------------------------------------------------------------------------------- */

static bool make_room(const rig *r, uint32_t group0, uint32_t group1)
{
    uint32_t counts[2] = {group0, group1};
    sheaf__prefix_enter(r->cache);
    bool could = sheaf__ledger_can_make_room(r->cache, false, counts);
    bool made = sheaf__ledger_make_room(r->cache, counts);
    sheaf__prefix_leave(r->cache);
    assert_cache_whole(r);
    assert_int_equal(could, made);
    if (made) assert_int_equal(sheaf_pool_can_acquire(r->f.pool, counts), SHEAF_OK);
    return made;
}

static void room_is_made_only_where_it_serves(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 8, NULL);
    cache_text(&r, "aaaabbbb");
    sheaf_sequence *seq = typed(&r, "cccc");
    publish(&r, seq, 0);
    cache_text(&r, "ddddeeee");
    assert_true(make_room(&r, 3, 0)); /* free already */
    assert_int_equal(rig_stats(&r).entries, 3);
    assert_false(make_room(&r, 8, 0)); /* one is held: nothing is evicted for it */
    assert_int_equal(rig_stats(&r).entries, 3);
    assert_true(make_room(&r, 5, 0));
    assert_int_equal(rig_stats(&r).entries, 2);
    assert_true(make_room(&r, 7, 0));
    assert_int_equal(rig_stats(&r).entries, 1);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_PRESSURE], 2);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void slabs_that_fall_empty_serve_another_group(void **state)
{
    (void)state;
    for (uint32_t want = 1; want <= 17; want++) {
        rig r;
        rig_open(&r, 2, 8, NULL); /* 16 blocks in all, 4 a slab */
        cache_text(&r, "aaaabbbbccccddddeeee");
        cache_text(&r, "ffffgggg");
        assert_int_equal(rig_stats(&r).blocks_held, 14);
        assert_int_equal(make_room(&r, want, 0), want <= 16);
        if (want > 16) assert_int_equal(rig_stats(&r).blocks_held, 14);
        rig_close(&r);
    }
}

static void foresight_agrees_with_what_evicting_brings(void **state)
{
    (void)state;
    uint64_t seed = seed_from_environment(5);
    for (uint32_t life = 0; life < 400; life++) {
        rig r;
        rig_open(&r, 2, 4 + random_below(&seed, 8), NULL);
        sheaf_sequence *held[3] = {NULL};
        for (uint32_t i = 0; i < 6; i++) {
            uint32_t n = 1 + random_below(&seed, 14);
            sheaf_sequence *seq = NULL;
            assert_int_equal(sheaf_sequence_create(r.f.pool, &seq), SHEAF_OK);
            if (append(&r.f, seq, n, 100 * random_below(&seed, 3)) == SHEAF_OK)
                assert_int_equal(publish_as(&r, seq, 0, 0, SHEAF_PUBLISH_TAIL, NULL), SHEAF_OK);
            uint32_t slot = random_below(&seed, 3);
            if (held[slot] != NULL) sheaf_sequence_destroy(held[slot]);
            held[slot] = seq;
        }
        sheaf_prefix_stats before = rig_stats(&r);
        if (!make_room(&r, random_below(&seed, 20), random_below(&seed, 20)))
            assert_int_equal(rig_stats(&r).blocks_held, before.blocks_held);
        for (uint32_t i = 0; i < 3; i++) sheaf_sequence_destroy(held[i]);
        rig_close(&r);
    }
}

/* ---- compaction and the check ------------------------------------------------------------ */

static void moved_blocks_are_found_where_they_are(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    cache_text(&r, "aaaabbbbccccdddd"); /* a slab of four */
    cache_text(&r, "aaaaeeeeffffgggg");
    cache_text(&r, "hhhhiiii");
    assert_matches(&r, "aaaaeeeeffffgggg", 16, 0);
    assert_matches(&r, "hhhhiiii", 8, 0);
    evict(&r, 1);
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    assert_int_equal(sheaf_pool_compact(r.f.pool, 64, &done), SHEAF_OK);
    assert_cache_whole(&r);
    assert_true(done.blocks_moved > 0);
    assert_matches(&r, "aaaaeeeeffffgggg", 16, 0);
    assert_matches(&r, "hhhhiiii", 8, 0);
    rig_close(&r);
}

static void assert_broken(const rig *r, const char *number)
{
    sheaf_error err = {0};
    assert_int_equal(sheaf_prefix_check(r->cache, &err), SHEAF_E_CORRUPT);
    if (strstr(err.text, number) == NULL) fail_msg("%s, not: %s", number, err.text);
}

static void the_check_names_what_is_broken(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    cache_text(&r, "aaaabbbb");
    cache_text(&r, "aaaacccc");
    sheaf__node *leaf = sheaf__nodes_first(r.cache), *parent = leaf->parent;
    leaf->start++, assert_broken(&r, "invariant 1"), leaf->start--;
    leaf->tokens[0] = 'x', assert_broken(&r, "invariant 4"), leaf->tokens[0] = 'b';
    leaf->tokens[0] = 'c', assert_broken(&r, "invariant"), leaf->tokens[0] = 'b';
    leaf->places[0].generation++, assert_broken(&r, "invariant 3");
    leaf->places[0].generation--;
    leaf->keys[0].bytes[3]++, assert_broken(&r, "invariant 4"), leaf->keys[0].bytes[3]--;
    leaf->use_order += 100, assert_broken(&r, "invariant 5"), leaf->use_order -= 100;
    leaf->priority++, assert_broken(&r, "invariant 5"), leaf->priority--;
    parent->child_levels[0]++, assert_broken(&r, "invariant 5"), parent->child_levels[0]--;
    r.cache->stats.tokens++, assert_broken(&r, "invariant 6"), r.cache->stats.tokens--;
    r.cache->held_blocks[0]++, assert_broken(&r, "invariant 6"), r.cache->held_blocks[0]--;
    r.cache->pinned_blocks[0]++, assert_broken(&r, "invariant 7");
    r.cache->pinned_blocks[0]--;
    uint64_t capacity = r.cache->limits.capacity_bytes;
    r.cache->limits.capacity_bytes = 1, assert_broken(&r, "invariant 8");
    r.cache->limits.capacity_bytes = capacity;
    rig_close(&r);
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
        cmocka_unit_test(lower_priorities_leave_first),
        cmocka_unit_test(a_parent_is_as_important_as_its_children),
        cmocka_unit_test(who_falls_a_level_comes_where_its_last_use_belongs),
        cmocka_unit_test(a_held_entry_shrinks_to_what_is_held),
        cmocka_unit_test(what_is_held_is_used_as_long_as_it_is),
        cmocka_unit_test(what_stands_before_held_blocks_does_not_pass_the_limit),
        cmocka_unit_test(the_number_of_entries_is_limited),
        cmocka_unit_test(entries_go_when_their_time_is_over),
        cmocka_unit_test(what_is_held_does_not_expire),
        cmocka_unit_test(a_session_lets_go_of_what_it_published_last),
        cmocka_unit_test(a_reset_returns_every_reference_also_of_what_is_held),
        cmocka_unit_test(closing_returns_every_reference),
        cmocka_unit_test(window_blocks_that_nobody_needs_go_first),
        cmocka_unit_test(window_blocks_of_a_slid_sequence_do_not_pass_the_limit),
        cmocka_unit_test(room_is_made_only_where_it_serves),
        cmocka_unit_test(slabs_that_fall_empty_serve_another_group),
        cmocka_unit_test(foresight_agrees_with_what_evicting_brings),
        cmocka_unit_test(moved_blocks_are_found_where_they_are),
        cmocka_unit_test(the_check_names_what_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
