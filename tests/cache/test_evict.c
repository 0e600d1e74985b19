/* tests/cache/test_evict.c - what eviction frees: window blocks, room for a step, whole slabs; blocks
 * that move; whether the check sees what is broken. */
#include "rig.h"

#include "cache/tree.h"

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

static void an_entry_keeps_what_its_tail_is_matched_with(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 32, NULL);
    cache_text(&r, "aaaabbbbccccddddee"); /* 16 before the tail needs positions from 10 on */
    assert_int_equal(evict(&r, 2 * BLOCK), 2 * BLOCK);
    assert_int_equal(rig_stats(&r).window_blocks_dropped, 2);
    assert_matches(&r, "aaaabbbbccccddddee", 16, 2);
    rig_close(&r);
}

static void held_entries_of_a_low_priority_do_not_hide_others(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    cache_as(&r, "aaaa", 0, -1);
    cache_as(&r, "bbbb", 0, 0);
    cache_as(&r, "cccc", 0, 1);
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "aaaa", &match);
    assert_int_equal(evict(&r, 1), BLOCK);
    assert_int_equal(found(&r, "bbbb"), 0);
    assert_int_equal(found(&r, "cccc"), 4);
    assert_int_equal(evict(&r, UINT64_MAX), BLOCK);
    assert_int_equal(found(&r, "aaaa"), 4);
    sheaf_sequence_destroy(seq);
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

/* ---- the memory of nodes ----------------------------------------------------------------- */

/* An entry of one block for each number. */
static void cache_number(const rig *r, uint32_t number)
{
    const char letters[5] = {(char)('!' + number % 90), (char)('!' + number / 90 % 90),
                             (char)('!' + number / 8100), '.', 0};
    sheaf_sequence *seq = typed(r, letters); /* unchecked: that goes over all entries */
    assert_int_equal(publish_as(r, seq, 0, 0, 0, NULL), SHEAF_OK);
    sheaf_sequence_destroy(seq);
}

static void host_memory_follows_the_number_of_entries(void **state)
{
    (void)state;
#if SHEAF_CHECK >= 2
    enum { MANY = 60 }; /* each call goes over all of them */
#else
    enum { MANY = 9000 }; /* two huge pages of nodes, and more */
#endif
    rig r;
    rig_open(&r, 1, MANY, NULL);
    uint64_t full[2], empty[2];
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < MANY; i++) cache_number(&r, i);
        assert_cache_whole(&r);
        full[round] = rig_stats(&r).host_bytes;
        assert_int_equal(evict(&r, (MANY - 1) * BLOCK), (MANY - 1) * BLOCK);
        uint64_t one = rig_stats(&r).host_bytes;
        for (uint32_t i = 0; i < 40; i++) { /* comes and goes, and nothing with it */
            cache_number(&r, i);
            assert_int_equal(evict(&r, BLOCK), BLOCK);
            assert_true(rig_stats(&r).host_bytes <= one);
        }
        evict(&r, UINT64_MAX);
        assert_int_equal(rig_stats(&r).nodes, 0);
        empty[round] = rig_stats(&r).host_bytes;
    }
    assert_true(full[0] == full[1] && empty[0] == empty[1]);
    assert_true(full[0] - empty[0] >= MANY * sizeof(sheaf__node));
    assert_true(full[0] - empty[0] <= 2 * MANY * 1024 + 2 * SHEAF__HUGE_PAGE);
    rig_close(&r);
}

/* ---- compaction and the check ------------------------------------------------------------ */

static const sheaf__node *n_later(const sheaf_prefix *cache, const sheaf__node *node,
                                  uint32_t n)
{
    const sheaf__list *list = &cache->levels[node->level], *use = &node->use;
    while (n-- != 0 && use != list) use = use->next;
    return use == list ? NULL : SHEAF__CONTAINER(use, const sheaf__node, use);
}

/* Nothing but speed hangs on hints, so only here it is seen whether they are right. */
static void who_leaves_later_is_known_some_uses_before(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    for (char c = 'a'; c < 'q'; c++) cache_text(&r, (char[]){c, c, c, c, 0});
    assert_int_equal(found(&r, "cccc"), 4);
    sheaf_match match;
    sheaf_sequence_destroy(matched(&r, "cccc", &match)); /* now it is the last one */
    const sheaf__node *first = sheaf__order_first(r.cache);
    for (uint32_t i = 0; i < 16; i++) {
        const sheaf__node *node = n_later(r.cache, first, i);
        const sheaf__node *later = n_later(r.cache, node, SHEAF__AHEAD);
        if (i < 2) /* c was between */
            assert_ptr_equal(n_later(r.cache, node, SHEAF__AHEAD - 1), node->ahead);
        else
            assert_int_equal((uintptr_t)later, node->ahead);
    }
    rig_close(&r);
}

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
    int32_t *tokens = sheaf__node_tokens(leaf);
    tokens[0] = 'x', assert_broken(&r, "invariant 4"), tokens[0] = 'b';
    tokens[0] = 'c', assert_broken(&r, "invariant"), tokens[0] = 'b';
    sheaf__node_place(leaf, 0, 0)->generation++, assert_broken(&r, "invariant 3");
    sheaf__node_place(leaf, 0, 0)->generation--;
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
        cmocka_unit_test(window_blocks_that_nobody_needs_go_first),
        cmocka_unit_test(an_entry_keeps_what_its_tail_is_matched_with),
        cmocka_unit_test(held_entries_of_a_low_priority_do_not_hide_others),
        cmocka_unit_test(window_blocks_of_a_slid_sequence_do_not_pass_the_limit),
        cmocka_unit_test(room_is_made_only_where_it_serves),
        cmocka_unit_test(slabs_that_fall_empty_serve_another_group),
        cmocka_unit_test(host_memory_follows_the_number_of_entries),
        cmocka_unit_test(foresight_agrees_with_what_evicting_brings),
        cmocka_unit_test(who_leaves_later_is_known_some_uses_before),
        cmocka_unit_test(moved_blocks_are_found_where_they_are),
        cmocka_unit_test(the_check_names_what_is_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
