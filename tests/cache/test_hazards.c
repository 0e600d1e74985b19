/* tests/cache/test_hazards.c - what goes wrong in KV caches, kept out of pool and prefix cache.
 *
 * The kinds were collected from the public trackers of engines that have such caches. Each line of the
 * table names the case that keeps one out: here, or where it has always been. tools/check_tests.sh
 * looks for every name.
 *
 * Keys and isolation
 *   a collision of hashes is a miss          | a_weak_hash_changes_nothing_but_speed
 *   fields are tagged and length-framed      | fields_are_told_apart_by_tag_and_by_length
 *   new weights, rope, template, adapter     | any_field_that_differs_is_another_namespace
 *   keys depend on no process and machine    | keys_do_not_depend_on_where_they_are_made
 *   a tenant's salt                          | a_salt_meets_itself_and_no_other
 *   what comes back is of this kind, or not  | blocks_of_another_layout_or_namespace_do_not_come_in
 *
 * Boundaries and publication
 *   a prompt wholly in the cache             | wholly_cached_prompts_of_every_length_are_found
 *   and its last query                       | the_last_token_of_a_cached_prompt_can_be_written_again
 *   its blocks still extend the chain        | what_follows_a_cached_prompt_extends_its_chain
 *   recycled blocks vanish from every map    | what_has_left_is_in_no_map_and_maps_are_bounded
 *   nothing is visible before its commit     | nothing_is_found_before_it_is_committed
 *   matching and pinning are one step        | what_has_matched_stays_whatever_is_evicted
 *   "enough?" and "take" are one step        | a_step_counts_the_idle_blocks_that_it_matched
 *   two identical prompts in one step        | two_identical_prompts_in_one_step_make_one_copy
 *   rejected tokens are never published      | rejected_tokens_are_never_found
 *
 * Lifetime
 *   double release, stale handles            | releasing_a_block_twice_is_refused
 *   unlock without lock                      | what_was_given_up_cannot_be_given_up_again
 *   handles of what has left                 | handles_of_what_has_left_are_stale
 *   cancel at every phase                    | cancelling_at_every_phase_returns_to_the_baseline
 *   copies in flight hold a reference        | a_copy_in_flight_holds_what_was_evicted
 *   late completions are harmless            | late_and_repeated_completions_change_nothing
 *   fork inside a block, then diverge        | forks_that_diverge_inside_a_block_leave_each_other_alone
 *   also of what was found                   | a_cached_block_does_not_change_when_borrowers_diverge
 *   a failed step leaves equal lengths    | a_failed_step_leaves_every_group_and_layer_at_the_same_length
 *   also of a batch                          | a_step_that_finds_no_room_changes_nothing
 *
 * Files and hand-off
 *   a failed store is invisible              | what_was_refused_is_not_found
 *   limits count everything, always          | the_capacity_is_kept_at_every_moment
 *
 * Positions and windows
 *   a slid window is not trimmed back        | going_back_is_refused_where_a_window_has_let_go
 *   also of what was found                   | a_match_past_a_window_is_not_cut_into_what_it_lacks
 *   the shorter reusable length decides      | the_group_that_has_less_decides
 *   offsets beyond 2^32                      | offsets_go_beyond_32_bits
 *   rows beyond 2^31                         | rows_far_beyond_four_gigabytes_are_written_and_read
 *   NaN beyond the last slot                 | nan_beyond_the_last_committed_slot_is_never_seen
 *   also in what is copied                   | a_copied_tail_shows_nothing_of_what_came_after
 *
 * Policy
 *   leaves before parents                    | leaves_leave_before_parents
 *   what matched first, then eviction        | what_a_step_matched_is_not_evicted_for_it
 *   an entry larger than the capacity        | an_entry_larger_than_the_capacity_is_refused_at_once
 *   no acquisition fails within a step       | a_reserved_step_needs_nothing_more
 *   an adopted prefix is charged once        | an_adopted_prefix_is_charged_once
 *   pins of queued requests                  | pins_of_queued_requests_can_be_reclaimed
 *   one removal path                         | every_way_out_returns_every_reference
 */
#include "prefix_rig.h"

#include "sheaf/rows.h"
#include "sheaf/wire.h"

static const sheaf_layer plain[2] = {{.n_kv_heads = 1, .key_dim = 4, .value_dim = 4},
                                     {.n_kv_heads = 2, .key_dim = 4, .value_dim = 4}};
static const sheaf_layer mixed[2] = {
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4},
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4, .window = 8}};

/* ---- keys and isolation ------------------------------------------------------------------ */

static sheaf_key space_of(const rig *r, const sheaf_field *fields, uint32_t n)
{
    sheaf_key key;
    assert_int_equal(sheaf_space_make(r->f.pool, fields, n, &key), SHEAF_OK);
    return key;
}

/* Tokens cached in one namespace are not found in the other, whichever comes first. */
static void assert_apart(const rig *r, const sheaf_key *a, const sheaf_key *b)
{
    int32_t tokens[8];
    count_up(tokens, 8, 1);
    assert_memory_not_equal(a, b, sizeof *a);
    cache_tokens(r, a, tokens, 8);
    assert_int_equal(peeked(r, b, tokens, 8), 0);
    cache_tokens(r, b, tokens, 7);
    assert_int_equal(peeked(r, a, tokens, 8), 8);
    assert_int_equal(peeked(r, b, tokens, 8), 7);
    sheaf_sequence *seq = matched(r, a, tokens, 8);
    assert_computed(r, a, seq);
    sheaf_sequence_destroy(seq);
    assert_int_equal(sheaf_prefix_reset(r->cache, a, NULL), SHEAF_OK);
    assert_int_equal(peeked(r, a, tokens, 8), 0);
    assert_int_equal(peeked(r, b, tokens, 8), 7);
    assert_int_equal(sheaf_prefix_reset(r->cache, NULL, NULL), SHEAF_OK);
}

static void fields_are_told_apart_by_tag_and_by_length(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_field adapter_x = {"adapter", "x", 1}, salt_x = {"salt", "x", 1};
    sheaf_key a = space_of(&r, &adapter_x, 1), b = space_of(&r, &salt_x, 1);
    assert_apart(&r, &a, &b);
    sheaf_field ab_c[2] = {{"adapter", "ab", 2}, {"salt", "c", 1}};
    sheaf_field a_bc[2] = {{"adapter", "a", 1}, {"salt", "bc", 2}};
    a = space_of(&r, ab_c, 2), b = space_of(&r, a_bc, 2);
    assert_apart(&r, &a, &b);
    sheaf_field empty = {"salt", NULL, 0};
    a = space_of(&r, &empty, 1), b = space_of(&r, NULL, 0);
    assert_apart(&r, &a, &b);
    rig_close(&r);
}

static void any_field_that_differs_is_another_namespace(void **state)
{
    (void)state;
    static const char *const tags[] = {"model", "adapter", "rope", "template", "salt"};
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_field fields[5];
    for (uint32_t i = 0; i < 5; i++) fields[i] = (sheaf_field){tags[i], "generation 1", 12};
    sheaf_key one = space_of(&r, fields, 5);
    for (uint32_t i = 0; i < 5; i++) {
        fields[i].data = "generation 2";
        sheaf_key other = space_of(&r, fields, 5);
        assert_apart(&r, &one, &other);
        fields[i].data = "generation 1";
    }
    sheaf_field last = fields[4];
    fields[4] = fields[0], fields[0] = last;
    sheaf_key same = space_of(&r, fields, 5);
    assert_memory_equal(&same, &one, sizeof one);
    rig_close(&r);
}

static void keys_do_not_depend_on_where_they_are_made(void **state)
{
    (void)state;
    rig a, b, other;
    rig_open(&a, plain, 2, 2, 12, NULL);
    rig_open(&b, plain, 2, 4, 40, NULL);
    rig_open(&other, mixed, 2, 2, 12, NULL);
    int32_t tokens[12];
    count_up(tokens, 12, 1);
    sheaf_key in_a = rig_space(&a, "s"), in_b = rig_space(&b, "s");
    sheaf_key elsewhere = rig_space(&other, "s");
    assert_memory_equal(&in_a, &in_b, sizeof in_a);
    assert_memory_not_equal(&in_a, &elsewhere, sizeof in_a);
    cache_tokens(&a, &in_a, tokens, 12);
    cache_tokens(&b, &in_b, tokens, 12);
    sheaf_key key = in_a;
    for (uint32_t i = 0; i < 12; i += 4) {
        sheaf_block blocks[2];
        assert_int_equal(sheaf_key_next(&key, tokens + i, 4, &key), SHEAF_OK);
        assert_int_equal(sheaf_prefix_find(a.cache, &key, blocks), SHEAF_OK);
        assert_int_equal(sheaf_prefix_find(b.cache, &key, blocks), SHEAF_OK);
    }
    rig_close(&a);
    rig_close(&b);
    rig_close(&other);
}

static void a_salt_meets_itself_and_no_other(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key a = rig_space(&r, "A"), b = rig_space(&r, "B");
    int32_t tokens[8];
    count_up(tokens, 8, 1);
    cache_tokens(&r, &a, tokens, 8);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(peeked(&r, &b, tokens, 8), 0);
        assert_int_equal(peeked(&r, &a, tokens, 8), 8);
    }
    sheaf_prompt prompt = prompt_of(&b, tokens, 8);
    uint64_t pin = 0;
    assert_int_equal(sheaf_prefix_pin(r.cache, &prompt, 1, 0, &pin, NULL), SHEAF_MISS);
    rig_close(&r);
}

/* Writes the whole of a parked sequence of these tokens. */
static void save_tokens(const rig *r, const sheaf_key *space, const int32_t *tokens, uint32_t n,
                        stream *to)
{
    to->n = to->at = 0;
    sheaf_sink sink = {to, stream_write, NULL};
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_park(computed(r, space, tokens, n), &parked), SHEAF_OK);
    assert_int_equal(sheaf_wire_save(&parked, 1, space, &sink, NULL), SHEAF_OK);
    sheaf_parked_destroy(parked);
}

static void blocks_of_another_layout_or_namespace_do_not_come_in(void **state)
{
    (void)state;
    static stream s;
    rig r, other;
    rig_open(&r, plain, 2, 2, 12, NULL);
    rig_open(&other, mixed, 2, 2, 12, NULL);
    sheaf_key a = rig_space(&r, "A"), b = rig_space(&r, "B"), foreign = rig_space(&other, "A");
    int32_t tokens[10];
    count_up(tokens, 10, 1);
    save_tokens(&r, &a, tokens, 10, &s);
    sheaf_source from = {&s, stream_read};
    sheaf_parked *parked = NULL;
    uint32_t n = 0;
    assert_int_equal(sheaf_wire_load(r.f.pool, &b, &from, &parked, 1, &n, NULL),
                     SHEAF_E_FOREIGN);
    s.at = 0;
    assert_int_equal(sheaf_wire_load(other.f.pool, &foreign, &from, &parked, 1, &n, NULL),
                     SHEAF_E_FOREIGN);
    s.at = 0;
    assert_int_equal(sheaf_wire_load(other.f.pool, NULL, &from, &parked, 1, &n, NULL),
                     SHEAF_E_FOREIGN);
    assert_null(parked);
    assert_int_equal(fixture_stats(&r.f).bytes_in_use, 0);
    s.at = 0;
    assert_int_equal(sheaf_wire_load(r.f.pool, &a, &from, &parked, 1, &n, NULL), SHEAF_OK);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_parked_adopt(parked, &seq), SHEAF_OK);
    assert_computed(&r, &a, seq);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
    rig_close(&other);
}

/* ---- boundaries and publication ---------------------------------------------------------- */

static const uint32_t lengths[] = {1, 3, 4, 5, 8, 12};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static void wholly_cached_prompts_of_every_length_are_found(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        uint32_t n = lengths[i];
        rig r;
        rig_open(&r, plain, 2, 2, 8, NULL);
        sheaf_key space = rig_space(&r, "");
        int32_t tokens[12];
        count_up(tokens, n, 1);
        cache_tokens(&r, &space, tokens, n);
        sheaf_prompt prompt = prompt_of(&space, tokens, n);
        sheaf_match match = SHEAF_MATCH_INIT;
        sheaf_sequence *seq = NULL;
        assert_int_equal(sheaf_prefix_match(r.cache, &prompt, &seq, &match), SHEAF_OK);
        assert_int_equal(match.length, n);
        assert_int_equal(match.shared, n - n % 4);
        assert_int_equal(match.copied, n % 4);
        assert_int_equal(match.cached_tokens, n - 1);
        assert_int_equal(sheaf_sequence_length(seq), n);
        assert_computed(&r, &space, seq);
        sheaf_sequence_destroy(seq);
        rig_close(&r);
    }
}

static void the_last_token_of_a_cached_prompt_can_be_written_again(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        uint32_t n = lengths[i];
        rig r;
        rig_open(&r, plain, 2, 2, 8, NULL);
        sheaf_key space = rig_space(&r, "");
        int32_t tokens[12];
        count_up(tokens, n, 1);
        cache_tokens(&r, &space, tokens, n);
        sheaf_prompt prompt = prompt_of(&space, tokens, n);
        if (n > 1) prompt.max_match = n - 1;
        sheaf_sequence *seq = NULL;
        assert_int_equal(sheaf_prefix_match(r.cache, &prompt, &seq, NULL), SHEAF_OK);
        if (n > 1) {
            assert_int_equal(sheaf_sequence_length(seq), n - 1);
            assert_int_equal(compute(&r, &space, seq, tokens + n - 1, 1), SHEAF_OK);
        }
        assert_computed(&r, &space, seq);
        assert_int_equal(publish(&r, &space, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
        assert_int_equal(rig_stats(&r).blocks_held, (n + 3) / 4);
        sheaf_sequence_destroy(seq);
        assert_int_equal(peeked(&r, &space, tokens, n), n);
        rig_close(&r);
    }
}

static void what_follows_a_cached_prompt_extends_its_chain(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        uint32_t n = lengths[i];
        rig r;
        rig_open(&r, plain, 2, 2, 12, NULL);
        sheaf_key space = rig_space(&r, "");
        int32_t tokens[20];
        count_up(tokens, n + 8, 1);
        cache_tokens(&r, &space, tokens, n);
        sheaf_sequence *seq = matched(&r, &space, tokens, n);
        assert_int_equal(compute(&r, &space, seq, tokens + n, 8), SHEAF_OK);
        assert_int_equal(publish(&r, &space, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
        sheaf_sequence_destroy(seq);
        seq = matched(&r, &space, tokens, n + 8);
        assert_int_equal(sheaf_sequence_length(seq), n + 8);
        assert_computed(&r, &space, seq);
        sheaf_sequence_destroy(seq);
        assert_int_equal(rig_stats(&r).entries, 1);
        sheaf_key key = space;
        for (uint32_t at = 0; at + 4 <= n + 8; at += 4) {
            sheaf_block blocks[2];
            assert_int_equal(sheaf_key_next(&key, tokens + at, 4, &key), SHEAF_OK);
            assert_int_equal(sheaf_prefix_find(r.cache, &key, blocks), SHEAF_OK);
        }
        rig_close(&r);
    }
}

static void what_has_left_is_in_no_map_and_maps_are_bounded(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 6, NULL);
    sheaf_key space = rig_space(&r, ""), key;
    uint64_t most = 0;
    for (int32_t i = 0; i < 4000; i++) {
        int32_t tokens[10];
        count_up(tokens, 10, 16 * i);
        sheaf_prompt prompt = prompt_of(&space, tokens, 10);
        sheaf_step step = step_of(&prompt, NULL, 10);
        assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
        assert_int_equal(step.match.length, 0);
        commit_tokens(&r, &space, step.sequence, tokens, 10);
        assert_int_equal(publish(&r, &space, step.sequence, SHEAF_PUBLISH_TAIL), SHEAF_OK);
        sheaf_sequence_destroy(step.sequence);
        if (i >= 2) { /* the first of the one before the last has made room */
            count_up(tokens, 10, 16 * (i - 2));
            assert_int_equal(peeked(&r, &space, tokens, 10), 0);
            sheaf_block blocks[2];
            assert_int_equal(sheaf_key_next(&space, tokens, 4, &key), SHEAF_OK);
            assert_int_equal(sheaf_prefix_find(r.cache, &key, blocks), SHEAF_MISS);
        }
        uint64_t host_bytes = fixture_stats(&r.f).host_bytes;
        if (i < 100 && host_bytes > most) most = host_bytes;
        assert_true(i < 100 || host_bytes <= most);
    }
    assert_true(rig_stats(&r).evictions[SHEAF_LEFT_PRESSURE] >= 3000);
    evict_all(&r);
    assert_int_equal(rig_stats(&r).nodes, 0);
    assert_int_equal(rig_stats(&r).spaces, 0);
    rig_close(&r);
}

static void nothing_is_found_before_it_is_committed(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[12];
    count_up(tokens, 12, 1);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(r.f.pool, &seq), SHEAF_OK);
    assert_int_equal(compute(&r, &space, seq, tokens, 4), SHEAF_OK);
    assert_int_equal(sheaf_sequence_extend(seq, 8), SHEAF_OK);
    write_tokens(&r, &space, seq, tokens + 4, 8);
    sheaf_prompt prompt = prompt_of(&space, tokens, 12);
    sheaf_status st = sheaf_prefix_publish(r.cache, &prompt, seq, 0, NULL);
    assert_true(st == SHEAF_OK || st == SHEAF_E_BUSY);
    assert_int_equal(peeked(&r, &space, tokens, 12), st == SHEAF_OK ? 4 : 0);
    sheaf_sequence_destroy(seq); /* in the middle of it */
    assert_int_equal(peeked(&r, &space, tokens, 12), st == SHEAF_OK ? 4 : 0);
    rig_close(&r);
}

static void what_has_matched_stays_whatever_is_evicted(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[10];
    count_up(tokens, 10, 1);
    cache_tokens(&r, &space, tokens, 10);
    sheaf_sequence *seq = matched(&r, &space, tokens, 10);
    evict_all(&r);
    assert_computed(&r, &space, seq);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
    assert_int_equal(sheaf_sequence_length(seq), 10);
    assert_computed(&r, &space, seq);
    assert_int_equal(rig_stats(&r).blocks_held, 0);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

/* A pool of 4 blocks, 2 of which the cache holds. */
static void a_step_counts_the_idle_blocks_that_it_matched(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 1, 4, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[20], others[16];
    count_up(tokens, 20, 1);
    count_up(others, 16, 100);
    cache_tokens(&r, &space, tokens, 8);
    sheaf_prompt prompt = prompt_of(&space, tokens, 20);
    sheaf_step step = step_of(&prompt, NULL, 12);
    sheaf_shortage lacks = SHEAF_SHORTAGE_INIT;
    assert_int_equal(sheaf_prefix_can_reserve(r.cache, &step, 1, NULL), SHEAF_FULL);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, &lacks), SHEAF_FULL);
    assert_int_equal(lacks.needed[0], 3);
    assert_int_equal(lacks.possible[0], 2);
    assert_int_equal(peeked(&r, &space, tokens, 20), 8);
    step.n = 8;
    assert_int_equal(sheaf_prefix_can_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(step.match.length, 8);
    sheaf_sequence_destroy(step.sequence);
    prompt = prompt_of(&space, others, 16); /* all of the pool, where none of it matches */
    step = step_of(&prompt, NULL, 16);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    assert_int_equal(peeked(&r, &space, tokens, 20), 0);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void two_identical_prompts_in_one_step_make_one_copy(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 2; first++) {
        rig r;
        rig_open(&r, plain, 2, 2, 12, NULL);
        sheaf_key space = rig_space(&r, "");
        int32_t tokens[12];
        count_up(tokens, 12, 1);
        sheaf_prompt prompt = prompt_of(&space, tokens, 10);
        sheaf_step steps[2] = {step_of(&prompt, NULL, 10), step_of(&prompt, NULL, 10)};
        assert_int_equal(sheaf_prefix_reserve(r.cache, steps, 2, NULL), SHEAF_OK);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(steps[i].match.length + steps[i].reserved, 10);
            commit_tokens(&r, &space, steps[i].sequence, tokens + steps[i].match.length,
                          steps[i].reserved);
        }
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(publish(&r, &space, steps[i].sequence, 0), SHEAF_OK);
        assert_int_equal(rig_stats(&r).blocks_held, 2);
        assert_int_equal(rig_stats(&r).duplicate_blocks, 2);
        sheaf_sequence *stays = steps[1 - first].sequence;
        sheaf_sequence_destroy(steps[first].sequence);
        assert_computed(&r, &space, stays);
        assert_int_equal(compute(&r, &space, stays, tokens + 10, 2), SHEAF_OK);
        assert_int_equal(publish(&r, &space, stays, SHEAF_PUBLISH_TAIL), SHEAF_OK);
        assert_computed(&r, &space, stays);
        sheaf_sequence_destroy(stays);
        assert_int_equal(rig_stats(&r).blocks_held, 3);
        sheaf_sequence *seq = matched(&r, &space, tokens, 12);
        assert_int_equal(sheaf_sequence_length(seq), 12);
        assert_computed(&r, &space, seq);
        sheaf_sequence_destroy(seq);
        rig_close(&r);
    }
}

static void rejected_tokens_are_never_found(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t drafted[12], accepted[12];
    count_up(drafted, 12, 1);
    count_up(accepted, 12, 1);
    for (uint32_t i = 6; i < 12; i++) accepted[i] = 50 + (int32_t)i;
    sheaf_sequence *seq = computed(&r, &space, drafted, 12);
    assert_int_equal(sheaf_sequence_truncate(seq, 6), SHEAF_OK); /* before it is published */
    assert_int_equal(publish(&r, &space, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
    assert_int_equal(peeked(&r, &space, drafted, 12), 6);
    assert_int_equal(compute(&r, &space, seq, accepted + 6, 6), SHEAF_OK);
    assert_computed(&r, &space, seq);
    assert_int_equal(publish(&r, &space, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
    assert_int_equal(peeked(&r, &space, drafted, 12), 6);
    assert_int_equal(peeked(&r, &space, accepted, 12), 12);
    /* after it: the cache keeps its own, and the sequence goes on elsewhere */
    assert_int_equal(sheaf_sequence_truncate(seq, 6), SHEAF_OK);
    assert_int_equal(compute(&r, &space, seq, drafted + 6, 6), SHEAF_OK);
    assert_int_equal(sheaf_sequence_truncate(seq, 9), SHEAF_OK);
    assert_computed(&r, &space, seq);
    assert_int_equal(publish(&r, &space, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_int_equal(peeked(&r, &space, drafted, 12), 9);
    seq = matched(&r, &space, accepted, 12);
    assert_int_equal(sheaf_sequence_length(seq), 12);
    assert_computed(&r, &space, seq);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

/* ---- lifetime ---------------------------------------------------------------------------- */

static void what_was_given_up_cannot_be_given_up_again(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[8];
    count_up(tokens, 8, 1);
    cache_tokens(&r, &space, tokens, 8);
    sheaf_prompt prompt = prompt_of(&space, tokens, 8);
    uint64_t pin = 0, other = 0, ticket = 0;
    assert_int_equal(sheaf_prefix_pin(r.cache, &prompt, 1, 0, &pin, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_pin(r.cache, &prompt, 1, 0, &other, NULL), SHEAF_OK);
    assert_int_equal(sheaf_prefix_claim(r.cache, &prompt, 0, &ticket), SHEAF_OK);
    assert_int_equal(sheaf_prefix_unpin(r.cache, pin), SHEAF_OK);
    assert_int_equal(sheaf_prefix_drop(r.cache, ticket), SHEAF_OK);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(sheaf_prefix_unpin(r.cache, pin), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_pinned(r.cache, pin), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_drop(r.cache, ticket), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_poll(r.cache, ticket), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_unpin(r.cache, 0), SHEAF_E_STALE);
        assert_int_equal(sheaf_prefix_drop(r.cache, 0), SHEAF_E_STALE);
    }
    evict_all(&r); /* the other pin has not been touched */
    assert_int_equal(peeked(&r, &space, tokens, 8), 8);
    assert_int_equal(sheaf_prefix_pinned(r.cache, other), SHEAF_OK);
    rig_close(&r);
}

static void handles_of_what_has_left_are_stale(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, ""), key;
    int32_t tokens[4];
    count_up(tokens, 4, 1);
    assert_int_equal(sheaf_key_next(&space, tokens, 4, &key), SHEAF_OK);
    cache_tokens(&r, &space, tokens, 4);
    sheaf_block block[2], again[2];
    assert_int_equal(sheaf_prefix_find(r.cache, &key, block), SHEAF_OK);
    evict_all(&r);
    cache_tokens(&r, &space, tokens, 4); /* the same row, most likely */
    assert_int_equal(sheaf_prefix_find(r.cache, &key, again), SHEAF_OK);
    void *bytes = NULL;
    assert_int_equal(sheaf_pool_retain(r.f.pool, block[0], SHEAF_OWNER_HOST), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_address(r.f.pool, block[0], &bytes), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_release(r.f.pool, block[0], SHEAF_OWNER_TREE), SHEAF_E_STALE);
    assert_int_equal(peeked(&r, &space, tokens, 4), 4);
    rig_close(&r);
}

enum { MATCHED, RESERVED, WRITTEN, COMMITTED, PUBLISHED, PINNED, SAVED, LOADED, N_PHASES };

/* A request that is cancelled once it has come to a phase. */
static void run_until(rig *r, const sheaf_key *space, const int32_t *tokens, uint32_t n,
                      uint32_t phase, stream *saved)
{
    sheaf_prompt prompt = prompt_of(space, tokens, n);
    sheaf_sequence *seq = NULL;
    sheaf_parked *parked = NULL;
    uint64_t ticket = 0, pin = 0;
    sheaf_status st = sheaf_prefix_claim(r->cache, &prompt, 0, &ticket);
    assert_true(st == SHEAF_OK || st == SHEAF_PENDING);
    prompt.ticket = ticket;
    assert_int_equal(sheaf_prefix_match(r->cache, &prompt, &seq, NULL), SHEAF_OK);
    sheaf_step step = step_of(&prompt, seq, n - sheaf_sequence_length(seq));
    if (phase >= RESERVED)
        assert_int_equal(sheaf_prefix_reserve(r->cache, &step, 1, NULL), SHEAF_OK);
    if (phase == WRITTEN)
        write_tokens(r, space, seq, tokens + sheaf_sequence_length(seq), step.reserved / 2);
    if (phase >= COMMITTED)
        commit_tokens(r, space, seq, tokens + sheaf_sequence_length(seq), step.reserved);
    if (phase >= PUBLISHED)
        assert_int_equal(sheaf_prefix_publish(r->cache, &prompt, seq, SHEAF_PUBLISH_TAIL, NULL),
                         SHEAF_OK);
    if (phase >= PINNED) { /* less than a block may be the front of a longer tail */
        st = sheaf_prefix_pin(r->cache, &prompt, 7, 0, &pin, NULL);
        assert_true(st == SHEAF_OK || (st == SHEAF_MISS && n < 4));
    }
    if (phase >= SAVED) {
        saved->n = saved->at = 0;
        sheaf_sink sink = {saved, stream_write, NULL};
        assert_int_equal(sheaf_sequence_park(seq, &parked), SHEAF_OK);
        assert_int_equal(sheaf_wire_save(&parked, 1, space, &sink, NULL), SHEAF_OK);
        seq = NULL;
    }
    if (phase >= LOADED) {
        sheaf_source from = {saved, stream_read};
        uint32_t n_loaded = 0;
        saved->n /= 2; /* the other end has died */
        sheaf_parked *loaded = NULL;
        st = sheaf_wire_load(r->f.pool, space, &from, &loaded, 1, &n_loaded, NULL);
        assert_true(st == SHEAF_E_FORMAT || st == SHEAF_FULL);
    }
    sheaf_sequence_destroy(seq);
    sheaf_parked_destroy(parked);
    uint32_t n_pins = 0;
    assert_int_equal(sheaf_prefix_unpin_owner(r->cache, 7, &n_pins), SHEAF_OK);
    assert_int_equal(n_pins, pin != 0);
    assert_int_equal(sheaf_prefix_drop(r->cache, ticket), SHEAF_OK);
}

static void cancelling_at_every_phase_returns_to_the_baseline(void **state)
{
    (void)state;
    static stream saved;
    rig r;
    rig_open(&r, plain, 2, 2, 12, NULL);
    sheaf_key space = rig_space(&r, "");
    uint64_t random = seed_from_environment(8), host_bytes = 0;
    for (uint32_t i = 0; i < 4000; i++) {
        int32_t tokens[20];
        uint32_t n = 1 + random_below(&random, 20);
        for (uint32_t j = 0; j < n; j++) tokens[j] = (int32_t)random_below(&random, 2);
        run_until(&r, &space, tokens, n, random_below(&random, N_PHASES), &saved);
        sheaf_pool_stats pool = fixture_stats(&r.f);
        sheaf_prefix_stats now = rig_stats(&r);
        assert_int_equal(pool.owners[SHEAF_OWNER_TABLE], 0);
        assert_int_equal(pool.owners[SHEAF_OWNER_PARKED], 0);
        assert_int_equal(pool.bytes_in_use, now.bytes_exclusive);
        assert_int_equal(now.bytes_held, now.bytes_exclusive);
        assert_true(now.claims == 0 && now.waiters == 0 && now.pins == 0);
        assert_int_equal(now.bytes_pinned, 0);
        if (i % 100 != 0) continue;
        assert_cache_whole(&r);
        assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
        assert_int_equal(fixture_stats(&r.f).bytes_in_use, 0);
        if (i == 1000) host_bytes = fixture_stats(&r.f).host_bytes;
        if (i > 1000) assert_int_equal(fixture_stats(&r.f).host_bytes, host_bytes);
    }
    rig_close(&r);
}

static void a_copy_in_flight_holds_what_was_evicted(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 4, NULL);
    sheaf_key space = rig_space(&r, ""), key;
    int32_t tokens[8], others[16];
    count_up(tokens, 8, 1);
    count_up(others, 16, 100);
    cache_tokens(&r, &space, tokens, 4);
    assert_int_equal(sheaf_key_next(&space, tokens, 4, &key), SHEAF_OK);
    sheaf_block block[2];
    assert_int_equal(sheaf_prefix_find(r.cache, &key, block), SHEAF_OK);
    assert_int_equal(sheaf_pool_retain(r.f.pool, block[0], SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(rig_stats(&r).bytes_exclusive, 0);
    assert_int_equal(sheaf_prefix_reset(r.cache, NULL, NULL), SHEAF_OK);
    sheaf_prompt prompt = prompt_of(&space, others, 16);
    sheaf_step step = step_of(&prompt, NULL, 16);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_FULL);
    void *bytes = NULL;
    assert_int_equal(sheaf_pool_address(r.f.pool, block[0], &bytes), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(r.f.pool, block[0], SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(sheaf_prefix_reserve(r.cache, &step, 1, NULL), SHEAF_OK);
    sheaf_sequence_destroy(step.sequence);
    rig_close(&r);
}

static void late_and_repeated_completions_change_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, plain, 2, 2, 8, NULL);
    sheaf_key space = rig_space(&r, ""), key;
    int32_t tokens[4];
    count_up(tokens, 4, 1);
    cache_tokens(&r, &space, tokens, 4);
    assert_int_equal(sheaf_key_next(&space, tokens, 4, &key), SHEAF_OK);
    sheaf_block block[2];
    assert_int_equal(sheaf_prefix_find(r.cache, &key, block), SHEAF_OK);
    assert_int_equal(sheaf_pool_retain(r.f.pool, block[0], SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(r.f.pool, block[0], SHEAF_OWNER_IO), SHEAF_OK);
    assert_int_equal(sheaf_pool_release(r.f.pool, block[0], SHEAF_OWNER_IO), SHEAF_E_NOT_OWNED);
    assert_int_equal(peeked(&r, &space, tokens, 4), 4);
    evict_all(&r);
    assert_int_equal(sheaf_pool_release(r.f.pool, block[0], SHEAF_OWNER_IO), SHEAF_E_STALE);
    /* a publication after the claim was lost is one like any other */
    sheaf_prompt prompt = prompt_of(&space, tokens, 4);
    sheaf_sequence *seq = computed(&r, &space, tokens, 4);
    assert_int_equal(sheaf_prefix_claim(r.cache, &prompt, 0, &prompt.ticket), SHEAF_OK);
    assert_int_equal(sheaf_prefix_drop(r.cache, prompt.ticket), SHEAF_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(sheaf_prefix_publish(r.cache, &prompt, seq, 0, NULL), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_int_equal(rig_stats(&r).blocks_held, 1);
    rig_close(&r);
}

static void a_cached_block_does_not_change_when_borrowers_diverge(void **state)
{
    (void)state;
    for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++) {
        sheaf_layer layers[1] = {{.n_kv_heads = 2,
                                  .key_dim = 8,
                                  .value_dim = 8,
                                  .codec_k = codec,
                                  .codec_v = codec}};
        rig r;
        rig_open(&r, layers, 1, 2, 16, NULL);
        sheaf_key space = rig_space(&r, "");
        int32_t tokens[8], left[8], right[8];
        count_up(tokens, 8, 1);
        memcpy(left, tokens, sizeof left), memcpy(right, tokens, sizeof right);
        count_up(left + 6, 2, 60), count_up(right + 6, 2, 80);
        cache_tokens(&r, &space, tokens, 8);
        sheaf_sequence *a = matched(&r, &space, left, 8), *b = matched(&r, &space, right, 8);
        sheaf_sequence *twin = NULL;
        assert_int_equal(sheaf_sequence_length(a), 6);
        assert_int_equal(sheaf_sequence_fork(a, &twin), SHEAF_OK);
        assert_int_equal(compute(&r, &space, a, left + 6, 2), SHEAF_OK);
        assert_int_equal(compute(&r, &space, twin, tokens + 6, 1), SHEAF_OK);
        assert_int_equal(compute(&r, &space, b, right + 6, 2), SHEAF_OK);
        sheaf_sequence *own = matched(&r, &space, tokens, 8);
        assert_int_equal(sheaf_sequence_length(own), 8);
        assert_computed(&r, &space, a);
        assert_computed(&r, &space, twin);
        assert_computed(&r, &space, b);
        assert_computed(&r, &space, own);
        sheaf_sequence_destroy(a);
        sheaf_sequence_destroy(twin);
        sheaf_sequence_destroy(b);
        sheaf_sequence_destroy(own);
        rig_close(&r);
    }
}

static void a_step_that_finds_no_room_changes_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, mixed, 2, 1, 4, NULL);
    sheaf_key space = rig_space(&r, "");
    int32_t tokens[24], others[24];
    count_up(tokens, 24, 1), count_up(others, 24, 100);
    cache_tokens(&r, &space, tokens, 6);
    sheaf_sequence *running = computed(&r, &space, others, 5);
    sheaf_prompt prompts[2] = {prompt_of(&space, others, 5), prompt_of(&space, tokens, 24)};
    sheaf_step steps[2] = {step_of(&prompts[0], running, 1), step_of(&prompts[1], NULL, 18)};
    uint64_t in_use = fixture_stats(&r.f).bytes_in_use;
    assert_int_equal(sheaf_prefix_reserve(r.cache, steps, 2, NULL), SHEAF_FULL);
    assert_int_equal(fixture_stats(&r.f).bytes_in_use, in_use);
    assert_int_equal(sheaf_sequence_length(running), 5);
    assert_int_equal(sheaf_sequence_reserved(running), 0);
    assert_ptr_equal(steps[0].sequence, running);
    assert_null(steps[1].sequence);
    assert_true(steps[0].reserved == 0 && steps[1].reserved == 0);
    assert_int_equal(peeked(&r, &space, tokens, 24), 6);
    assert_int_equal(rig_stats(&r).last_refusal, SHEAF_REFUSED_ROOM);
    assert_computed(&r, &space, running);
    sheaf_sequence_destroy(running);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_told_apart_by_tag_and_by_length),
        cmocka_unit_test(any_field_that_differs_is_another_namespace),
        cmocka_unit_test(keys_do_not_depend_on_where_they_are_made),
        cmocka_unit_test(a_salt_meets_itself_and_no_other),
        cmocka_unit_test(blocks_of_another_layout_or_namespace_do_not_come_in),
        cmocka_unit_test(wholly_cached_prompts_of_every_length_are_found),
        cmocka_unit_test(the_last_token_of_a_cached_prompt_can_be_written_again),
        cmocka_unit_test(what_follows_a_cached_prompt_extends_its_chain),
        cmocka_unit_test(what_has_left_is_in_no_map_and_maps_are_bounded),
        cmocka_unit_test(nothing_is_found_before_it_is_committed),
        cmocka_unit_test(what_has_matched_stays_whatever_is_evicted),
        cmocka_unit_test(a_step_counts_the_idle_blocks_that_it_matched),
        cmocka_unit_test(two_identical_prompts_in_one_step_make_one_copy),
        cmocka_unit_test(rejected_tokens_are_never_found),
        cmocka_unit_test(what_was_given_up_cannot_be_given_up_again),
        cmocka_unit_test(handles_of_what_has_left_are_stale),
        cmocka_unit_test(cancelling_at_every_phase_returns_to_the_baseline),
        cmocka_unit_test(a_copy_in_flight_holds_what_was_evicted),
        cmocka_unit_test(late_and_repeated_completions_change_nothing),
        cmocka_unit_test(a_cached_block_does_not_change_when_borrowers_diverge),
        cmocka_unit_test(a_step_that_finds_no_room_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
