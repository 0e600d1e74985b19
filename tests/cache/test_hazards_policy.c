/* tests/cache/test_hazards_policy.c - what goes wrong in KV caches, second part: limits, windows and who
 * leaves. The table of all is in test_hazards.c.
 */
#include "prefix_rig.h"

static const sheaf_layer plain[2] = {{.n_kv_heads = 1, .key_dim = 4, .value_dim = 4},
                                     {.n_kv_heads = 2, .key_dim = 4, .value_dim = 4}};
static const sheaf_layer mixed[2] = {
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4},
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4, .window = 8}};

/* ---- limits ------------------------------------------------------------------------------ */

static void what_was_refused_is_not_found(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[8];
    count_up(tokens, 8, 1);
    sheaf_sequence *seq = computed(&r, &space, tokens, 8);
    for (uint64_t nth = 1; nth < 100; nth++) {
        r.f.host.fail_at = r.f.host.n_allocs + nth, r.f.host.fail_on = 1;
        sheaf_status st = publish(&r, &space, seq, SHEAF_PUBLISH_TAIL);
        r.f.host.fail_at = 0;
        if (st == SHEAF_OK) break;
        assert_int_equal(st, SHEAF_E_NO_MEMORY);
        assert_int_equal(peeked(&r, &space, tokens, 8), 0);
        assert_int_equal(rig_stats(&r).blocks_held, 0);
        assert_cache_whole(&r);
        assert_true(nth < 99);
    }
    sheaf_sequence_destroy(seq);
    assert_int_equal(peeked(&r, &space, tokens, 8), 8);
    rig_close(&r);
}

static void the_capacity_is_kept_at_every_moment(void **state)
{
    (void)state;
    sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
    limits.capacity_bytes = 3 * block_bytes_of(plain, 2);
    rig r;
    rig_open(&r, plain, 2, 2, 24, &limits);
    sheaf_key space = rig_space(&r, "");
    sheaf_sequence *seqs[6];
    for (int32_t i = 0; i < 6; i++) { /* what runs is not the cache's alone */
        int32_t tokens[12];
        count_up(tokens, 12, 100 * i);
        seqs[i] = computed(&r, &space, tokens, 12);
        assert_int_equal(publish(&r, &space, seqs[i], 0), SHEAF_OK);
        assert_int_equal(rig_stats(&r).bytes_exclusive, 0);
        assert_int_equal(rig_stats(&r).blocks_held, 3 * (i + 1));
    }
    for (uint32_t i = 0; i < 6; i++) { /* and becomes so when it ends */
        sheaf_sequence_destroy(seqs[i]);
        assert_int_equal(rig_stats(&r).bytes_exclusive, limits.capacity_bytes);
        assert_int_equal(rig_stats(&r).blocks_held, 3 * (6 - i));
        assert_cache_whole(&r);
    }
    limits.capacity_bytes = block_bytes_of(plain, 2);
    assert_int_equal(sheaf_prefix_set_limits(r.cache, &limits), SHEAF_OK);
    assert_true(rig_stats(&r).bytes_exclusive <= limits.capacity_bytes);
    assert_int_equal(rig_stats(&r).evictions[SHEAF_LEFT_PRESSURE], 0);
    rig_close(&r);
}

/* ---- windows ----------------------------------------------------------------------------- */

static void a_match_past_a_window_is_not_cut_into_what_it_lacks(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, mixed, 2, 2, 24, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[24];
    count_up(tokens, 24, 1);
    sheaf_sequence *seq = computed(&r, &space, tokens, 12);
    assert_int_equal(publish(&r, &space, seq, 0), SHEAF_OK);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    assert_int_equal(compute(&r, &space, seq, tokens + 12, 12), SHEAF_OK);
    assert_int_equal(publish(&r, &space, seq, 0), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    seq = matched(&r, &space, tokens, 24);
    assert_int_equal(sheaf_sequence_length(seq), 24);
    assert_computed(&r, &space, seq);
    sheaf_usage usage = SHEAF_USAGE_INIT;
    assert_int_equal(sheaf_sequence_usage(seq, &usage), SHEAF_OK);
    assert_int_equal(usage.blocks_by_group[0], 6);
    for (uint32_t length = 23; length > 0; length--) {
        uint32_t held_from = 4 * (6 - (uint32_t)usage.blocks_by_group[1]);
        sheaf_sequence *twin = NULL;
        assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
        bool covered = (length > 8 ? length - 8 : 0) >= held_from;
        assert_int_equal(sheaf_sequence_truncate(twin, length),
                         covered ? SHEAF_OK : SHEAF_E_SLID);
        assert_computed(&r, &space, twin);
        sheaf_sequence_destroy(twin);
    }
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

/* Publishes tokens [0, 24) of which the window group has kept only what the end needs. */
static void the_group_that_has_less_decides(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, mixed, 2, 2, 24, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[24], others[24];
    count_up(tokens, 24, 1), count_up(others, 24, 1);
    sheaf_sequence *seq = computed(&r, &space, tokens, 24);
    assert_int_equal(publish(&r, &space, seq, 0), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    /* let go of early blocks of the window group, and of nothing else */
    sheaf_prompt prompt = prompt_of(&space, tokens, 24);
    uint64_t pin = 0;
    uint32_t length = 0;
    assert_int_equal(sheaf_prefix_pin(r.cache, &prompt, 1, 0, &pin, &length), SHEAF_OK);
    assert_int_equal(length, 24);
    assert_int_equal(sheaf_prefix_unpin(r.cache, pin), SHEAF_OK);
    uint64_t freed = 0;
    assert_int_equal(sheaf_prefix_evict(r.cache, r.block_bytes[1], &freed), SHEAF_OK);
    assert_true(freed >= r.block_bytes[1]);
    sheaf_key key = space;
    bool held[6];
    for (uint32_t i = 0; i < 6; i++) {
        sheaf_block blocks[2];
        assert_int_equal(sheaf_key_next(&key, tokens + 4 * i, 4, &key), SHEAF_OK);
        assert_int_equal(sheaf_prefix_find(r.cache, &key, blocks), SHEAF_OK);
        assert_int_not_equal(blocks[0].row, SHEAF_ROW_NONE);
        held[i] = blocks[1].row != SHEAF_ROW_NONE;
    }
    assert_true(!held[0] && held[4] && held[5]);
    assert_true(rig_stats(&r).window_blocks_dropped != 0);
    for (uint32_t n = 1; n <= 24; n++) { /* every length is judged by both groups */
        others[n % 24] = 77;
        uint32_t expected = 0;
        for (uint32_t l = 1; l <= n; l++) {
            bool covered = true;
            for (uint32_t i = 0; i < (l + 3) / 4; i++)
                covered = covered && (4 * (i + 1) + 8 <= l || held[i]);
            if (covered) expected = l;
        }
        assert_int_equal(peeked(&r, &space, tokens, n), expected);
        seq = matched(&r, &space, tokens, n);
        assert_int_equal(sheaf_sequence_length(seq), expected);
        assert_computed(&r, &space, seq);
        sheaf_sequence_destroy(seq);
    }
    rig_close(&r);
}

/* Whoever wrote the block had NaN after the position where the borrower leaves. */
static void a_copied_tail_shows_nothing_of_what_came_after(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, ""), key;
    int32_t tokens[8];
    count_up(tokens, 8, 1);
    cache_tokens(&r, &space, tokens, 8);
    assert_int_equal(sheaf_key_next(&space, tokens, 4, &key), SHEAF_OK);
    assert_int_equal(sheaf_key_next(&key, tokens + 4, 4, &key), SHEAF_OK);
    sheaf_block block[2];
    void *bytes = NULL;
    assert_int_equal(sheaf_prefix_find(r.cache, &key, block), SHEAF_OK);
    assert_int_equal(sheaf_pool_address(r.f.pool, block[0], &bytes), SHEAF_OK);
    for (uint32_t layer = 0; layer < 2; layer++) { /* positions 6 and 7 of every head */
        sheaf_layer_info info = SHEAF_LAYER_INFO_INIT;
        assert_int_equal(sheaf_pool_layer_info(r.f.pool, layer, &info), SHEAF_OK);
        for (uint32_t h = 0; h < plain[layer].n_kv_heads; h++) {
            char *k = (char *)bytes + info.k_offset + h * info.k_segment_bytes;
            char *v = (char *)bytes + info.v_offset + h * info.v_segment_bytes;
            memset(k + 2 * 4 * sizeof(float), 0xff, 2 * 4 * sizeof(float));
            memset(v + 2 * 4 * sizeof(float), 0xff, 2 * 4 * sizeof(float));
        }
    }
    tokens[6] = 60, tokens[7] = 61;
    sheaf_sequence *seq = matched(&r, &space, tokens, 8);
    assert_int_equal(sheaf_sequence_length(seq), 6);
    assert_computed(&r, &space, seq);
    assert_int_equal(compute(&r, &space, seq, tokens + 6, 2), SHEAF_OK);
    assert_computed(&r, &space, seq);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

/* ---- policy ------------------------------------------------------------------------------ */

/* A trunk of two blocks under three leaves, the first the oldest. */
static void leaves_leave_before_parents(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 16, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[3][16];
    for (int32_t i = 0; i < 3; i++) {
        count_up(tokens[i], 8, 1);
        count_up(tokens[i] + 8, 8, 100 * (i + 1));
        r.now_ns++;
        cache_tokens(&r, &space, tokens[i], 16);
    }
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t freed = 0;
        for (uint32_t j = 0; j < 3; j++)
            assert_int_equal(peeked(&r, &space, tokens[j], 16), j < i ? 8 : 16);
        assert_int_equal(sheaf_prefix_evict(r.cache, 1, &freed), SHEAF_OK);
        if (i < 2) assert_int_equal(freed, 2 * r.all_bytes);
    }
    evict_all(&r);
    assert_int_equal(rig_stats(&r).blocks_held, 0);
    rig_close(&r);
}

static void what_a_step_matched_is_not_evicted_for_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 1, 6, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[16], others[8];
    count_up(tokens, 16, 1), count_up(others, 8, 100);
    cache_tokens(&r, &space, tokens, 8); /* the oldest, first to leave */
    r.now_ns++;
    cache_tokens(&r, &space, others, 8);
    sheaf_prompt prompt = prompt_of(&space, tokens, 16);
    sheaf_step step = step_of(&prompt, NULL, 8);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.match.length, 8);
    sheaf_step more = step_of(&prompt, NULL, 8);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &more, 1, NULL), SHEAF_OK);
    assert_int_equal(more.match.length, 8);
    assert_int_equal(peeked(&r, &space, others, 8), 0);
    commit_tokens(&r, &space, more.sequence, tokens + 8, 8);
    assert_computed(&r, &space, more.sequence);
    sheaf_sequence_destroy(step.sequence);
    sheaf_sequence_destroy(more.sequence);
    rig_close(&r);
}

static void an_entry_larger_than_the_capacity_is_refused_at_once(void **state)
{
    (void)state;
    sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
    limits.capacity_bytes = 3 * block_bytes_of(plain, 2);
    rig r;
    rig_open(&r, plain, 2, 2, 24, &limits);
    sheaf_key space = rig_space(&r, "");
    int32_t small[8], large[16];
    count_up(small, 8, 1), count_up(large, 16, 100);
    cache_tokens(&r, &space, small, 8);
    sheaf_sequence *seq = computed(&r, &space, large, 16);
    assert_int_equal(publish(&r, &space, seq, 0), SHEAF_REFUSED);
    sheaf_prefix_stats now = rig_stats(&r);
    assert_int_equal(now.last_refusal, SHEAF_REFUSED_TOO_LARGE);
    assert_int_equal(now.last_refusal_needed, 4 * r.all_bytes);
    assert_int_equal(now.last_refusal_possible, 3 * r.all_bytes);
    assert_int_equal(now.blocks_held, 2);
    /* its first chunk too, when it is said what it will come to */
    assert_int_equal(sheaf_sequence_truncate(seq, 8), SHEAF_OK);
    sheaf_prompt prompt = prompt_of(&space, large, 16);
    assert_int_equal(sheaf_prefix_publish(r.cache, &prompt, seq, 0, NULL), SHEAF_REFUSED);
    sheaf_sequence_destroy(seq);
    assert_int_equal(peeked(&r, &space, small, 8), 8);
    assert_int_equal(peeked(&r, &space, large, 16), 0);
    now = rig_stats(&r);
    for (uint32_t cause = 0; cause < SHEAF_LEFT_KINDS; cause++)
        assert_int_equal(now.evictions[cause], 0);
    assert_int_equal(now.refusals[SHEAF_REFUSED_TOO_LARGE], 2);
    rig_close(&r);
}

/* Neither slabs nor host memory is asked for between the door and the commit. */
static void a_reserved_step_needs_nothing_more(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, mixed, 2, 1, 6, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[3][12];
    for (int32_t i = 0; i < 3; i++) count_up(tokens[i], 12, 100 * i + 1);
    cache_tokens(&r, &space, tokens[0], 10);
    cache_tokens(&r, &space, tokens[1], 6);
    sheaf_prompt prompts[3];
    sheaf_step steps[3];
    for (uint32_t i = 0; i < 3; i++) {
        prompts[i] = prompt_of(&space, tokens[i], i == 0 ? 12 : 8);
        steps[i] = step_of(&prompts[i], NULL, 12);
    }
    assert_int_equal(sheaf_prefix_reserve(r.cache, steps, 2, NULL), SHEAF_OK);
    r.f.host.fail_at = r.f.slabs.fail_at = 1;
    r.f.host.fail_on = r.f.slabs.fail_on = 1;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t length = sheaf_sequence_length(steps[i].sequence);
        commit_tokens(&r, &space, steps[i].sequence, tokens[i] + length, steps[i].reserved);
        assert_computed(&r, &space, steps[i].sequence);
    }
    r.f.host.fail_at = r.f.slabs.fail_at = 0;
    for (uint32_t i = 0; i < 2; i++) sheaf_sequence_destroy(steps[i].sequence);
    rig_close(&r);
}

static void an_adopted_prefix_is_charged_once(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[12];
    count_up(tokens, 12, 1);
    cache_tokens(&r, &space, tokens, 12);
    uint64_t bytes = 3 * r.all_bytes;
    assert_int_equal(rig_stats(&r).bytes_exclusive, bytes);
    sheaf_sequence *borrowers[3];
    for (uint32_t i = 0; i < 3; i++) {
        borrowers[i] = matched(&r, &space, tokens, 12);
        assert_int_equal(publish(&r, &space, borrowers[i], SHEAF_PUBLISH_TAIL), SHEAF_OK);
        sheaf_prefix_stats now = rig_stats(&r);
        assert_int_equal(fixture_stats(&r.f).bytes_in_use, bytes);
        assert_int_equal(fixture_stats(&r.f).bytes_shared, bytes);
        assert_int_equal(now.bytes_held, bytes);
        assert_int_equal(now.bytes_exclusive, 0);
        sheaf_usage usage = SHEAF_USAGE_INIT;
        assert_int_equal(sheaf_sequence_usage(borrowers[i], &usage), SHEAF_OK);
        assert_int_equal(usage.bytes, bytes);
        assert_int_equal(usage.bytes_exclusive, 0);
    }
    for (uint32_t i = 0; i < 3; i++) sheaf_sequence_destroy(borrowers[i]);
    assert_int_equal(rig_stats(&r).bytes_exclusive, bytes);
    rig_close(&r);
}

static void pins_of_queued_requests_can_be_reclaimed(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 1, 6, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[3][8], others[16];
    uint64_t pins[3];
    for (int32_t i = 0; i < 3; i++) {
        count_up(tokens[i], 8, 100 * i + 1);
        cache_tokens(&r, &space, tokens[i], 8);
        sheaf_prompt prompt = prompt_of(&space, tokens[i], 8);
        assert_int_equal(sheaf_prefix_pin(r.cache, &prompt, 1, i == 0 ? 0 : SHEAF_PIN_REVOCABLE,
                                          &pins[i], NULL),
                         SHEAF_OK);
    }
    evict_all(&r);
    assert_int_equal(rig_stats(&r).blocks_held, 6);
    count_up(others, 16, 1000);
    sheaf_prompt prompt = prompt_of(&space, others, 16);
    sheaf_step step = step_of(&prompt, NULL, 8);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pins[0]), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pins[1]), SHEAF_MISS);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pins[2]), SHEAF_OK);
    sheaf_sequence_destroy(step.sequence);
    step = step_of(&prompt, NULL, 16);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pins[2]), SHEAF_MISS);
    sheaf_sequence *seq = step.sequence;
    step = step_of(&prompt, NULL, 1); /* the first pin is not one of those */
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_FULL);
    assert_int_equal(sheaf_prefix_pinned(r.cache, pins[0]), SHEAF_OK);
    assert_int_equal(peeked(&r, &space, tokens[0], 8), 8);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(sheaf_prefix_unpin(r.cache, pins[i]), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

enum {
    BY_PRESSURE,
    BY_STEP,
    BY_TTL,
    BY_RESET,
    BY_SPACE,
    BY_SESSION,
    BY_LIMITS,
    BY_CLOSE,
    N_WAYS
};

static void let_go(rig *r, uint32_t way, const sheaf_key *space)
{
    sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
    int32_t tokens[48];
    count_up(tokens, 48, 1000);
    sheaf_prompt prompt = prompt_of(space, tokens, 48);
    sheaf_step step = step_of(&prompt, NULL, 48);
    limits.capacity_bytes = 1;
    r->now_ns += 1000000;
    if (way == BY_PRESSURE) evict_all(r);
    if (way == BY_STEP) {
        assert_int_equal(sheaf_prefix_reserve(r->cache, &step, 1, NULL), SHEAF_OK);
        sheaf_sequence_destroy(step.sequence);
    }
    if (way == BY_TTL) assert_int_equal(sheaf_prefix_expire(r->cache, NULL), SHEAF_OK);
    if (way == BY_RESET) assert_int_equal(sheaf_prefix_reset(r->cache, NULL, NULL), SHEAF_OK);
    if (way == BY_SPACE) assert_int_equal(sheaf_prefix_reset(r->cache, space, NULL), SHEAF_OK);
    if (way == BY_SESSION)
        assert_int_equal(sheaf_prefix_release_session(r->cache, 5, NULL), SHEAF_OK);
    if (way == BY_LIMITS)
        assert_int_equal(sheaf_prefix_set_limits(r->cache, &limits), SHEAF_OK);
}

static void every_way_out_returns_every_reference(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < N_WAYS; way++) {
        sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
        limits.ttl_ns = 1000;
        rig r;
        rig_open(&r, mixed, 2, 2, 12, &limits);
        sheaf_key space = rig_space(&r, "");
        for (uint32_t n = 3; n < 14; n += 5) { /* a trunk with leaves that end anywhere */
            int32_t tokens[14];
            count_up(tokens, 14, 1);
            tokens[n - 1] = 90;
            sheaf_sequence *seq = computed(&r, &space, tokens, n);
            sheaf_prompt prompt = prompt_of(&space, tokens, n);
            prompt.session = 5;
            assert_int_equal(
                sheaf_prefix_publish(r.cache, &prompt, seq, SHEAF_PUBLISH_TAIL, NULL),
                SHEAF_OK);
            sheaf_sequence_destroy(seq);
        }
        assert_true(rig_stats(&r).entries == 3);
        let_go(&r, way, &space);
        if (way != BY_CLOSE) {
            sheaf_prefix_stats now = rig_stats(&r);
            assert_int_equal(now.blocks_held, 0);
            assert_int_equal(now.entries, 0);
            assert_int_equal(now.tokens, 0);
            assert_int_equal(now.bytes_exclusive, 0);
            assert_int_equal(fixture_stats(&r.f).bytes_in_use, 0);
        }
        rig_close(&r);
    }
}

/* One block that two namespaces were told of belongs to one of them at most. */
static void a_sequence_is_published_in_one_namespace(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key a = rig_space(&r, "A"), b = rig_space(&r, "B");
    int32_t tokens[10];
    count_up(tokens, 10, 1);
    sheaf_sequence *seq = computed(&r, &a, tokens, 10);
    assert_int_equal(publish(&r, &a, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
    sheaf_status st = publish(&r, &b, seq, SHEAF_PUBLISH_TAIL);
    assert_int_equal(st, SHEAF_E_FOREIGN);
    assert_cache_whole(&r);
    sheaf_sequence_destroy(seq);
    assert_int_equal(peeked(&r, &b, tokens, 10), 0);
    assert_int_equal(peeked(&r, &a, tokens, 10), 10);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_refused_is_not_found),
        cmocka_unit_test(the_capacity_is_kept_at_every_moment),
        cmocka_unit_test(a_match_past_a_window_is_not_cut_into_what_it_lacks),
        cmocka_unit_test(the_group_that_has_less_decides),
        cmocka_unit_test(a_copied_tail_shows_nothing_of_what_came_after),
        cmocka_unit_test(leaves_leave_before_parents),
        cmocka_unit_test(what_a_step_matched_is_not_evicted_for_it),
        cmocka_unit_test(an_entry_larger_than_the_capacity_is_refused_at_once),
        cmocka_unit_test(a_reserved_step_needs_nothing_more),
        cmocka_unit_test(an_adopted_prefix_is_charged_once),
        cmocka_unit_test(pins_of_queued_requests_can_be_reclaimed),
        cmocka_unit_test(every_way_out_returns_every_reference),
        cmocka_unit_test(a_sequence_is_published_in_one_namespace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
