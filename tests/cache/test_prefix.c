/* tests/cache/test_prefix.c - publishing and matching: blocks, tails, branches, namespaces, windows. */
#include "rig.h"

#include "cache/tree.h"

/* ---- boundaries -------------------------------------------------------------------------- */

#define LETTERS "abcdefghijklmnopqrstuvwx"

static void every_length_is_found_again_whole(void **state)
{
    (void)state;
    for (uint32_t cached = 1; cached <= 17; cached++) {
        rig r;
        rig_open(&r, 1, 12, NULL);
        char letters[32] = {0};
        memcpy(letters, LETTERS, cached);
        cache_text(&r, letters);
        for (uint32_t asked = 0; asked <= 20; asked++) {
            char prompt[32] = {0};
            memcpy(prompt, LETTERS, asked);
            uint32_t common = asked < cached ? asked : cached;
            assert_matches(&r, prompt, common / 4 * 4, common % 4);
        }
        rig_close(&r);
    }
}

static void cached_tokens_leave_the_last_one_to_compute(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    cache_text(&r, "abcdefgh");
    assert_int_equal(peek(&r, "abcdefgh").length, 8);
    assert_int_equal(peek(&r, "abcdefgh").cached_tokens, 7);
    assert_int_equal(peek(&r, "abcdefghi").cached_tokens, 8);
    assert_int_equal(peek(&r, "xyz").cached_tokens, 0);
    assert_int_equal(peek(&r, "").cached_tokens, 0);
    rig_close(&r);
}

static void max_match_bounds_what_is_found(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    cache_text(&r, "abcdefgh");
    text t = text_of("abcdefgh");
    sheaf_prompt prompt = prompt_of(&r, &t);
    for (uint32_t max = 1; max <= 9; max++) {
        prompt.max_match = max;
        sheaf_sequence *seq = NULL;
        sheaf_match match = SHEAF_MATCH_INIT;
        assert_int_equal(sheaf_prefix_match(r.cache, &prompt, &seq, &match), SHEAF_OK);
        assert_int_equal(match.length, max < 8 ? max : 8);
        assert_int_equal(match.shared, match.length / 4 * 4);
        assert_holds_its_tokens(&r.f, seq);
        sheaf_sequence_destroy(seq);
    }
    rig_close(&r);
}

static void whole_blocks_alone_are_published_without_the_flag(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abc");
    assert_int_equal(publish(&r, seq, 0), 0);
    assert_int_equal(rig_stats(&r).nodes, 0);
    assert_int_equal(rig_stats(&r).spaces, 0);
    type(&r, seq, "defghi");
    assert_int_equal(publish(&r, seq, 0), 8);
    assert_int_equal(found(&r, "abcdefghi"), 8);
    assert_int_equal(publish(&r, seq, SHEAF_PUBLISH_TAIL), 9);
    assert_int_equal(found(&r, "abcdefghi"), 9);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void a_block_that_is_being_written_is_not_published(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcdef");
    assert_int_equal(sheaf_sequence_extend(seq, 1), SHEAF_OK);
    assert_int_equal(publish(&r, seq, SHEAF_PUBLISH_TAIL), 4);
    assert_int_equal(found(&r, "abcdefg"), 4);
    sheaf_sequence_destroy(seq); /* aborted: what was reserved was never there */
    assert_int_equal(found(&r, "abcdefg"), 4);
    rig_close(&r);
}

static void tokens_without_a_name_end_what_is_published(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcdef");
    uint32_t seeds[6] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(sheaf_sequence_extend(seq, 6), SHEAF_OK);
    write_all(&r.f, seq, 6, 6, seeds);
    assert_int_equal(sheaf_sequence_commit(seq, 6, NULL), SHEAF_OK);
    assert_int_equal(publish(&r, seq, 0), 4);
    assert_int_equal(publish(&r, seq, SHEAF_PUBLISH_TAIL), 6);
    sheaf_sequence_destroy(seq);
    assert_matches(&r, "abcdefgh", 4, 2);
    rig_close(&r);
}

/* ---- growing and branching --------------------------------------------------------------- */

static void a_leaf_grows_with_its_sequence(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcd");
    char all[64] = "abcd";
    publish(&r, seq, 0);
    for (uint32_t i = 0; i < 5; i++) {
        char next[5] = {(char)('e' + i), 'p', 'q', 'r', 0};
        strcat(all, next);
        type(&r, seq, next);
        assert_int_equal(publish(&r, seq, 0), strlen(all));
        assert_int_equal(rig_stats(&r).nodes, 1);
        assert_int_equal(rig_stats(&r).blocks_held, 2 + i);
        assert_int_equal(rig_stats(&r).bytes_exclusive, 0);
    }
    sheaf_sequence_destroy(seq);
    assert_int_equal(rig_stats(&r).bytes_exclusive, 6 * BLOCK);
    assert_int_equal(found(&r, all), 24);
    rig_close(&r);
}

static void prompts_that_part_inside_a_block_share_what_is_before(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 24, NULL);
    cache_text(&r, "abcdefghijkl");
    cache_text(&r, "abcdefxhijkl");
    cache_text(&r, "abcdexyz");
    cache_text(&r, "zbcd");
    assert_int_equal(rig_stats(&r).entries, 4);
    assert_int_equal(rig_stats(&r).nodes, 5);
    assert_int_equal(rig_stats(&r).blocks_held, 7);
    assert_matches(&r, "abcdefghijkl", 12, 0);
    assert_matches(&r, "abcdefxhijkl", 12, 0);
    assert_matches(&r, "abcdefxhijkx", 8, 3);
    assert_matches(&r, "abcdefyyyyyy", 4, 2); /* of a sibling */
    assert_matches(&r, "abcdexyyyyyy", 4, 3);
    assert_matches(&r, "abcdyyyy", 4, 0);
    assert_matches(&r, "zbxx", 0, 2);
    assert_matches(&r, "qqqq", 0, 0);
    rig_close(&r);
}

static void a_prompt_of_too_small_a_size_is_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    text t = text_of("abcd");
    sheaf_prompt prompt = prompt_of(&r, &t);
    sheaf_match match = SHEAF_MATCH_INIT;
    sheaf_sequence *seq = typed(&r, "abcd");
    prompt.struct_size = sizeof prompt - 4;
    assert_int_equal(sheaf_prefix_peek(r.cache, &prompt, &match), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_publish(r.cache, &prompt, seq, 0, NULL), SHEAF_E_INVALID);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void what_two_computed_is_kept_once(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *first = typed(&r, "abcdefgh"), *second = typed(&r, "abcdefghijkl");
    assert_int_equal(publish(&r, first, 0), 8);
    assert_int_equal(publish(&r, second, 0), 12);
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.blocks_held, 3);
    assert_int_equal(stats.duplicate_blocks, 2);
    assert_int_equal(stats.inserted_blocks, 3);
    assert_int_equal(stats.inserts, 2);
    assert_int_equal(publish(&r, second, 0),
                     12); /* again: nothing is new, nothing counts twice */
    assert_int_equal(rig_stats(&r).duplicate_blocks, 2);
    assert_holds_its_tokens(&r.f, second);
    sheaf_sequence_destroy(first);
    assert_matches(&r, "abcdefghijkl", 12, 0);
    sheaf_sequence_destroy(second);
    assert_matches(&r, "abcdefghijkl", 12, 0);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 3);
    rig_close(&r);
}

static void a_borrower_diverges_and_the_entry_stays(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    cache_text(&r, "abcdefghij");
    sheaf_match match;
    sheaf_sequence *one = matched(&r, "abcdefghij", &match);
    assert_int_equal(match.length, 10);
    sheaf_sequence *two = matched(&r, "abcdefgzzz", &match);
    assert_int_equal(match.shared, 4);
    assert_int_equal(match.copied, 3);
    type(&r, one, "111");
    type(&r, two, "222222");
    assert_holds_its_tokens(&r.f, one);
    assert_holds_its_tokens(&r.f, two);
    assert_int_equal(publish(&r, one, SHEAF_PUBLISH_TAIL), 13);
    assert_int_equal(publish(&r, two, SHEAF_PUBLISH_TAIL), 13);
    sheaf_sequence_destroy(one);
    sheaf_sequence_destroy(two);
    assert_matches(&r, "abcdefghij111", 12, 1);
    assert_matches(&r, "abcdefg222222", 12, 1);
    rig_close(&r);
}

/* ---- tails ------------------------------------------------------------------------------- */

static void a_tail_is_superseded_by_what_continues_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    cache_text(&r, "abcde");
    assert_int_equal(fixture_stats(&r.f).blocks_held, 2);
    cache_text(&r, "abcdefg"); /* a longer tail */
    assert_int_equal(rig_stats(&r).nodes, 1);
    assert_int_equal(rig_stats(&r).tokens, 7);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 2);
    cache_text(&r, "abcdef"); /* a shorter one: nothing new */
    assert_int_equal(rig_stats(&r).tokens, 7);
    assert_matches(&r, "abcdefgh", 4, 3);
    cache_text(&r, "abcdefghijklm"); /* a whole block, and more */
    assert_int_equal(rig_stats(&r).nodes, 1);
    assert_int_equal(rig_stats(&r).tokens, 13);
    assert_int_equal(fixture_stats(&r.f).blocks_held, 4);
    assert_matches(&r, "abcdefghijklmn", 12, 1);
    rig_close(&r);
}

static void a_tail_of_the_first_block_keeps_its_place_among_siblings(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 24, NULL);
    cache_text(&r, "b");
    cache_text(&r, "a");
    cache_text(&r, "c");
    cache_text(&r, "bz");
    cache_text(&r, "bzzzbbbb");
    cache_text(&r, "bzzx");
    assert_int_equal(rig_stats(&r).entries, 4);
    assert_matches(&r, "bzzzbb", 4, 2);
    assert_matches(&r, "bzzx", 4, 0);
    assert_matches(&r, "a", 0, 1);
    rig_close(&r);
}

static void a_tail_of_another_session_is_continued_too(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcdef");
    uint32_t n;
    assert_int_equal(publish_as(&r, seq, 1, 0, SHEAF_PUBLISH_TAIL, &n), SHEAF_OK);
    sheaf_sequence *other = typed(&r, "abcdefghijkl");
    assert_int_equal(publish_as(&r, other, 2, 0, 0, &n), SHEAF_OK);
    assert_cache_whole(&r);
    assert_int_equal(rig_stats(&r).nodes, 2);
    assert_int_equal(rig_stats(&r).entries, 1);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(other);
    assert_matches(&r, "abcdefghijkl", 12, 0);
    rig_close(&r);
}

static void a_longer_tail_in_the_same_block_takes_its_place(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefg"), *shorter = NULL;
    assert_int_equal(sheaf_sequence_fork(seq, &shorter), SHEAF_OK);
    assert_int_equal(sheaf_sequence_truncate(shorter, 5), SHEAF_OK);
    assert_int_equal(publish(&r, shorter, SHEAF_PUBLISH_TAIL), 5);
    assert_int_equal(publish(&r, seq, SHEAF_PUBLISH_TAIL), 7); /* the block that the tree has */
    assert_int_equal(rig_stats(&r).tokens, 7);
    sheaf_sequence_destroy(seq);
    type(&r, shorter, "zz"); /* copies it first */
    sheaf_sequence_destroy(shorter);
    assert_matches(&r, "abcdefgh", 4, 3);
    rig_close(&r);
}

static void a_tail_is_left_out_when_no_block_can_be_had(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 4, NULL);
    sheaf_sequence *holder = typed(&r, "abcdefgh");
    publish(&r, holder, 0);
    sheaf_sequence *more = typed(&r, "12345678");
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "abcdefgx", &match);
    assert_int_equal(match.shared, 4);
    assert_int_equal(match.copied, 0);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(more);
    seq = matched(&r, "abcdefgx", &match);
    assert_int_equal(match.copied, 3);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(holder);
    rig_close(&r);
}

static void making_room_for_a_tail_does_not_evict_its_source(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 4, NULL);
    cache_text(&r, "abcd");
    cache_text(&r, "12345678");
    sheaf_sequence *last = typed(&r, "zzzz"); /* the pool is full */
    sheaf_match match;
    sheaf_sequence *seq = matched(&r, "abcx", &match); /* the source is the only other leaf */
    assert_int_equal(match.copied, 3);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(last);
    assert_int_equal(found(&r, "abcd"), 4);
    assert_true(found(&r, "12345678") < 8);
    rig_close(&r);
}

/* ---- namespaces, keys -------------------------------------------------------------------- */

static void two_namespaces_never_meet(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    cache_text(&r, "abcdefgh");
    sheaf_key first = r.space;
    r.space = r.other;
    assert_matches(&r, "abcdefgh", 0, 0);
    cache_text(&r, "abcdefgh");
    assert_int_equal(rig_stats(&r).spaces, 2);
    assert_int_equal(rig_stats(&r).blocks_held, 4);
    uint32_t n;
    assert_int_equal(sheaf_prefix_reset(r.cache, &first, &n), SHEAF_OK);
    assert_int_equal(n, 1);
    assert_matches(&r, "abcdefgh", 8, 0);
    r.space = first;
    assert_matches(&r, "abcdefgh", 0, 0);
    rig_close(&r);
}

static void a_sequence_is_not_published_in_a_second_namespace(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefgh");
    publish(&r, seq, 0);
    sheaf_key first = r.space;
    r.space = r.other;
    assert_int_equal(publish_as(&r, seq, 0, 0, 0, NULL), SHEAF_E_FOREIGN);
    assert_cache_whole(&r);
    assert_int_equal(rig_stats(&r).spaces, 1);
    r.space = first;
    sheaf_sequence_destroy(seq);
    assert_matches(&r, "abcdefgh", 8, 0);
    rig_close(&r);
}

static uint64_t the_same_for_all(const sheaf_key *key)
{
    (void)key;
    return 7;
}

/* A life with splits, joins and removals; what it came to. */
static sheaf_prefix_stats life_under_this_hash(void)
{
    rig r;
    rig_open(&r, 1, 16, NULL);
    const char *texts[] = {"abcdefghijkl", "abcdefghxxxx", "abcdyyyyzzzz", "12345678",
                           "abcdefgh5678", "abcdyyyy",     "0000",         "abcdefghijkl"};
    for (uint32_t i = 0; i < 8; i++) {
        r.space = i % 3 == 2 ? space_of(&r, "b") : space_of(&r, "a");
        cache_text(&r, texts[i]);
        for (uint32_t j = 0; j < 8; j++) found(&r, texts[j]);
        if (i == 5) assert_int_equal(sheaf_prefix_evict(r.cache, 4 * BLOCK, NULL), SHEAF_OK);
        assert_cache_whole(&r);
    }
    sheaf_key key = r.space;
    text t = text_of("abcdefghijkl");
    sheaf_block block;
    for (uint32_t i = 0; i < 12; i += 4) {
        assert_int_equal(sheaf_key_next(&key, t.tokens + i, 4, &key), SHEAF_OK);
        assert_int_equal(sheaf_prefix_find(r.cache, &key, &block), SHEAF_OK);
    }
    key.bytes[31] ^= 1;
    assert_int_equal(sheaf_prefix_find(r.cache, &key, &block), SHEAF_MISS);
    sheaf_prefix_stats stats = rig_stats(&r);
    rig_close(&r);
    return stats;
}

static void a_weak_hash_changes_nothing_but_speed(void **state)
{
    (void)state;
    uint64_t (*strong)(const sheaf_key *) = sheaf__index_hash;
    sheaf_prefix_stats before = life_under_this_hash();
    sheaf__index_hash = the_same_for_all;
    sheaf_prefix_stats after = life_under_this_hash();
    sheaf__index_hash = strong;
    assert_memory_equal(&before, &after, sizeof before);
}

static void a_key_finds_its_blocks_while_they_are_cached(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefgh");
    publish(&r, seq, 0);
    text t = text_of("abcdefgh");
    sheaf_key key;
    sheaf_block block;
    assert_int_equal(sheaf_key_next(&r.space, t.tokens, 4, &key), SHEAF_OK);
    assert_int_equal(sheaf_key_next(&key, t.tokens + 4, 4, &key), SHEAF_OK);
    assert_int_equal(sheaf_prefix_find(r.cache, &key, &block), SHEAF_OK);
    assert_int_equal(block.row, seq->room.tables[0].rows[1]);
    assert_int_equal(sheaf_pool_retain(r.f.pool, block, SHEAF_OWNER_HOST), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(r.f.pool, block, SHEAF_OWNER_HOST), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_find(r.cache, &key, &block), SHEAF_MISS);
    rig_close(&r);
}

/* ---- windows ----------------------------------------------------------------------------- */

static void a_match_past_the_window_needs_the_last_blocks_alone(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 16, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefghijklmnop");
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK); /* blocks 0 and 1 of the window */
    assert_int_equal(publish(&r, seq, 0), 16);
    sheaf_sequence_destroy(seq);
    assert_int_equal(rig_stats(&r).blocks_held, 6);
    assert_matches(&r, "abcdefghijklmnop", 16, 0);
    assert_matches(&r, "abcdefghijklmnoz", 0, 0); /* 12 needs positions from 6 on */
    assert_matches(&r, "abcdefghzzzz", 0, 0);
    rig_close(&r);
}

static void blocks_that_a_window_let_go_of_are_filled_in_later(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 20, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefghijklmnop");
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    publish(&r, seq, 0);
    sheaf_sequence *whole = typed(&r, "abcdefghijkl");
    assert_int_equal(publish(&r, whole, 0), 12);
    assert_int_equal(rig_stats(&r).blocks_held, 8);
    sheaf_sequence_destroy(seq);
    sheaf_sequence_destroy(whole);
    for (uint32_t n = 1; n <= 16; n++) {
        char prompt[32] = {0};
        memcpy(prompt, "abcdefghijklmnop", n);
        assert_matches(&r, prompt, n / 4 * 4, n % 4);
    }
    rig_close(&r);
}

static void what_could_not_be_matched_is_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 16, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefghij");
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK); /* 8 needs position 2 */
    assert_int_equal(publish_as(&r, seq, 0, 0, 0, NULL), SHEAF_REFUSED);
    assert_cache_whole(&r);
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.refusals[SHEAF_REFUSED_SLID], 1);
    assert_int_equal(stats.last_refusal, SHEAF_REFUSED_SLID);
    assert_int_equal(stats.last_refusal_tokens, 8);
    assert_int_equal(stats.nodes, 0);
    type(&r, seq, "klmn");
    assert_int_equal(publish(&r, seq, 0), 12); /* positions from 6 on are there */
    sheaf_sequence_destroy(seq);
    assert_matches(&r, "abcdefghijkl", 12, 0);
    rig_close(&r);
}

static void a_slid_sequence_continues_what_the_tree_has(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 16, NULL);
    sheaf_sequence *seq = typed(&r, "abcdefgh");
    publish(&r, seq, 0);
    type(&r, seq, "ijkl");
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    assert_int_equal(publish(&r, seq, 0), 12);
    type(&r, seq, "m");
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    assert_int_equal(publish(&r, seq, SHEAF_PUBLISH_TAIL), 13);
    sheaf_sequence_destroy(seq);
    assert_matches(&r, "abcdefgz", 4, 3);
    assert_matches(&r, "abcdefghijklmz", 12, 1);
    sheaf_match match;
    seq = matched(&r, "abcdefghijklm", &match);
    assert_int_equal(seq->room.tables[1].first_block, 1); /* only what the length needs */
    type(&r, seq, "nopqrstu");
    assert_holds_its_tokens(&r.f, seq);
    assert_int_equal(publish(&r, seq, SHEAF_PUBLISH_TAIL), 21);
    sheaf_sequence_destroy(seq);
    assert_matches(&r, "abcdefghijklmnopqrstu", 20, 1);
    rig_close(&r);
}

/* ---- opening, arguments ------------------------------------------------------------------ */

static void a_pool_has_one_prefix_cache(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    sheaf_prefix *second = NULL;
    sheaf_error err = {0};
    assert_int_equal(sheaf_prefix_open(r.f.pool, &o, &second, &err), SHEAF_E_BUSY);
    assert_int_equal(err.status, SHEAF_E_BUSY);
    assert_null(second);
    assert_int_equal(sheaf_pool_close(r.f.pool), SHEAF_E_BUSY);
    sheaf_prefix_close(r.cache);
    assert_int_equal(sheaf_prefix_open(r.f.pool, &o, &r.cache, &err), SHEAF_OK);
    sheaf_prefix_close(NULL);
    rig_close(&r);
}

static void what_no_call_accepts_is_invalid(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    sheaf_sequence *seq = typed(&r, "abcd"), *out = NULL;
    text t = text_of("abcd");
    sheaf_prompt good = prompt_of(&r, &t), bad[6];
    for (uint32_t i = 0; i < 6; i++) bad[i] = good;
    bad[0].struct_size = 0, bad[1].space = NULL, bad[2].tokens = NULL;
    bad[3].priority = 4, bad[4].priority = -4, bad[5].tokens = (const int32_t[]){1, -1, 1, 1};
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(sheaf_prefix_match(r.cache, &bad[i], &out, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_match(r.cache, NULL, &out, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_match(r.cache, &good, NULL, NULL), SHEAF_E_INVALID);
    sheaf_match match = {0};
    assert_int_equal(sheaf_prefix_match(r.cache, &good, &out, &match), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_peek(r.cache, &good, &match), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_publish(r.cache, &bad[1], seq, 0, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_publish(r.cache, &good, seq, 2, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_publish(r.cache, &good, NULL, 0, NULL), SHEAF_E_INVALID);
    assert_null(out);
    assert_int_equal(rig_stats(&r).lookups, 0);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

static void lookups_and_hits_are_counted(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 12, NULL);
    cache_text(&r, "abcdefgh");
    found(&r, "abcd"); /* looking is not counted */
    assert_matches(&r, "abcdefxx", 4, 2);
    assert_matches(&r, "zzzz", 0, 0);
    sheaf_prefix_stats stats = rig_stats(&r);
    assert_int_equal(stats.lookups, 2);
    assert_int_equal(stats.hits, 1);
    assert_int_equal(stats.lookup_tokens, 12);
    assert_int_equal(stats.hit_tokens, 6);
    assert_int_equal(stats.copied_tokens, 2);
    assert_int_equal(stats.inserted_tokens, 8);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_is_found_again_whole),
        cmocka_unit_test(cached_tokens_leave_the_last_one_to_compute),
        cmocka_unit_test(max_match_bounds_what_is_found),
        cmocka_unit_test(whole_blocks_alone_are_published_without_the_flag),
        cmocka_unit_test(a_block_that_is_being_written_is_not_published),
        cmocka_unit_test(tokens_without_a_name_end_what_is_published),
        cmocka_unit_test(a_leaf_grows_with_its_sequence),
        cmocka_unit_test(prompts_that_part_inside_a_block_share_what_is_before),
        cmocka_unit_test(a_prompt_of_too_small_a_size_is_refused),
        cmocka_unit_test(what_two_computed_is_kept_once),
        cmocka_unit_test(a_borrower_diverges_and_the_entry_stays),
        cmocka_unit_test(a_tail_is_superseded_by_what_continues_it),
        cmocka_unit_test(a_tail_of_the_first_block_keeps_its_place_among_siblings),
        cmocka_unit_test(a_tail_of_another_session_is_continued_too),
        cmocka_unit_test(a_longer_tail_in_the_same_block_takes_its_place),
        cmocka_unit_test(a_tail_is_left_out_when_no_block_can_be_had),
        cmocka_unit_test(making_room_for_a_tail_does_not_evict_its_source),
        cmocka_unit_test(two_namespaces_never_meet),
        cmocka_unit_test(a_sequence_is_not_published_in_a_second_namespace),
        cmocka_unit_test(a_weak_hash_changes_nothing_but_speed),
        cmocka_unit_test(a_key_finds_its_blocks_while_they_are_cached),
        cmocka_unit_test(a_match_past_the_window_needs_the_last_blocks_alone),
        cmocka_unit_test(blocks_that_a_window_let_go_of_are_filled_in_later),
        cmocka_unit_test(what_could_not_be_matched_is_refused),
        cmocka_unit_test(a_slid_sequence_continues_what_the_tree_has),
        cmocka_unit_test(a_pool_has_one_prefix_cache),
        cmocka_unit_test(what_no_call_accepts_is_invalid),
        cmocka_unit_test(lookups_and_hits_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
