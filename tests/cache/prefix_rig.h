/* tests/cache/prefix_rig.h - a tiny pool with a prefix cache on it, for tests of both together.
 *
 * The numbers of a position are a function of its namespace and of all tokens up to it, as K and V of
 * a model are: a block that is found under a wrong prefix, in a wrong namespace or at a wrong place
 * shows in what a sequence gathers. Time stands still unless a test moves it.
 */
#ifndef TESTS_CACHE_PREFIX_RIG_H
#define TESTS_CACHE_PREFIX_RIG_H

#include "fixture.h"

#include "cache/sequence.h"
#include "sheaf/ledger.h"
#include "sheaf/prefix.h"

#define RIG_POSITIONS 256

typedef struct rig {
    fixture f;
    sheaf_prefix *cache;
    uint64_t now_ns;
    uint64_t host_bytes; /* of the pool, before the cache was opened */
    uint32_t n_groups;
    uint64_t block_bytes[2];
    uint64_t all_bytes; /* of one block of every group */
} rig;

static inline uint64_t rig_now(void *ctx)
{
    return ((const rig *)ctx)->now_ns;
}

/* A pool of `budget_blocks` blocks of every group together, and a cache with these limits. */
static inline void rig_open(rig *r, const sheaf_layer *layers, uint32_t n_layers,
                            uint32_t slab_blocks, uint32_t budget_blocks,
                            const sheaf_prefix_options *limits)
{
    memset(r, 0, sizeof *r);
    fixture_open(&r->f, layers, n_layers, slab_blocks, budget_blocks);
    r->now_ns = 1000;
    r->n_groups = sheaf_pool_groups(r->f.pool);
    assert_true(r->n_groups <= 2);
    for (uint32_t g = 0; g < r->n_groups; g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        assert_int_equal(sheaf_pool_group_info(r->f.pool, g, &info), SHEAF_OK);
        r->block_bytes[g] = info.block_bytes;
        r->all_bytes += info.block_bytes;
    }
    r->host_bytes = fixture_stats(&r->f).host_bytes;
    sheaf_clock clock = {r, rig_now};
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    if (limits != NULL) o = *limits;
    o.clock = &clock;
    sheaf_error err = {0};
    if (sheaf_prefix_open(r->f.pool, &o, &r->cache, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static inline void assert_cache_whole(const rig *r)
{
    sheaf_error err = {0};
    if (sheaf_prefix_check(r->cache, &err) != SHEAF_OK) fail_msg("%s", err.text);
    if (sheaf_pool_check(r->f.pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

/* Closes the cache, after which nothing but sequences may hold a block. */
static inline void rig_close_cache(rig *r)
{
    assert_cache_whole(r);
    sheaf_prefix_close(r->cache);
    r->cache = NULL;
    assert_int_equal(fixture_stats(&r->f).owners[SHEAF_OWNER_TREE], 0);
}

/* Closes both; nothing is left. */
static inline void rig_close(rig *r)
{
    rig_close_cache(r);
    assert_int_equal(fixture_stats(&r->f).bytes_in_use, 0);
    fixture_close(&r->f);
}

static inline sheaf_prefix_stats rig_stats(const rig *r)
{
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    assert_int_equal(sheaf_prefix_stats_read(r->cache, &stats), SHEAF_OK);
    return stats;
}

/* The namespace of a client's salt. */
static inline sheaf_key rig_space(const rig *r, const char *salt)
{
    sheaf_field field = {"salt", salt, strlen(salt)};
    sheaf_key key = {{0}};
    assert_int_equal(sheaf_space_make(r->f.pool, &field, 1, &key), SHEAF_OK);
    return key;
}

static inline sheaf_prompt prompt_of(const sheaf_key *space, const int32_t *tokens, uint32_t n)
{
    sheaf_prompt prompt = SHEAF_PROMPT_INIT;
    prompt.space = space, prompt.tokens = tokens, prompt.n_tokens = n;
    return prompt;
}

/* ---- contents ---------------------------------------------------------------------------- */

/* seeds: [n], of the positions of these tokens. */
static inline void seeds_of(const sheaf_key *space, const int32_t *tokens, uint32_t n,
                            uint32_t *seeds)
{
    uint64_t chain;
    memcpy(&chain, space->bytes, sizeof chain);
    for (uint32_t i = 0; i < n; i++) {
        chain = mix64(chain ^ (uint32_t)tokens[i]);
        seeds[i] = (uint32_t)chain;
    }
}

/* Writes the first n reserved positions as what these tokens give: [n]. */
static inline void write_tokens(const rig *r, const sheaf_key *space, sheaf_sequence *seq,
                                const int32_t *tokens, uint32_t n)
{
    int32_t all[RIG_POSITIONS];
    uint32_t seeds[RIG_POSITIONS], length = sheaf_sequence_length(seq);
    assert_true(length + n <= RIG_POSITIONS);
    memcpy(all, sheaf_sequence_tokens(seq), length * sizeof *all);
    memcpy(all + length, tokens, n * sizeof *all);
    seeds_of(space, all, length + n, seeds);
    if (n != 0) write_all(&r->f, seq, length, n, seeds + length);
}

/* Writes and commits n reserved positions. */
static inline void commit_tokens(const rig *r, const sheaf_key *space, sheaf_sequence *seq,
                                 const int32_t *tokens, uint32_t n)
{
    write_tokens(r, space, seq, tokens, n);
    assert_int_equal(sheaf_sequence_commit(seq, n, tokens), SHEAF_OK);
}

/* Extends by n tokens, writes and commits them. */
static inline sheaf_status compute(const rig *r, const sheaf_key *space, sheaf_sequence *seq,
                                   const int32_t *tokens, uint32_t n)
{
    sheaf_status st = sheaf_sequence_extend(seq, n);
    if (st != SHEAF_OK) return st;
    commit_tokens(r, space, seq, tokens, n);
    return SHEAF_OK;
}

/* A new sequence of these tokens, computed without looking into the cache. */
static inline sheaf_sequence *computed(const rig *r, const sheaf_key *space,
                                       const int32_t *tokens, uint32_t n)
{
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(r->f.pool, &seq), SHEAF_OK);
    assert_int_equal(compute(r, space, seq, tokens, n), SHEAF_OK);
    return seq;
}

static inline sheaf_status publish(const rig *r, const sheaf_key *space, sheaf_sequence *seq,
                                   uint32_t flags)
{
    sheaf_prompt prompt =
        prompt_of(space, sheaf_sequence_tokens(seq), sheaf_sequence_length(seq));
    return sheaf_prefix_publish(r->cache, &prompt, seq, flags, NULL);
}

/* Computes these tokens, puts them into the cache with their tail, and lets the sequence go. */
static inline void cache_tokens(const rig *r, const sheaf_key *space, const int32_t *tokens,
                                uint32_t n)
{
    sheaf_sequence *seq = computed(r, space, tokens, n);
    assert_int_equal(publish(r, space, seq, SHEAF_PUBLISH_TAIL), SHEAF_OK);
    sheaf_sequence_destroy(seq);
}

/* Positions that would be found. */
static inline uint32_t peeked(const rig *r, const sheaf_key *space, const int32_t *tokens,
                              uint32_t n)
{
    sheaf_prompt prompt = prompt_of(space, tokens, n);
    sheaf_match match = SHEAF_MATCH_INIT;
    assert_int_equal(sheaf_prefix_peek(r->cache, &prompt, &match), SHEAF_OK);
    assert_int_equal(match.shared + match.copied, match.length);
    assert_int_equal(match.cached_tokens, n != 0 && match.length == n ? n - 1 : match.length);
    return match.length;
}

/* A sequence of what matches. */
static inline sheaf_sequence *matched(const rig *r, const sheaf_key *space,
                                      const int32_t *tokens, uint32_t n)
{
    sheaf_prompt prompt = prompt_of(space, tokens, n);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_prefix_match(r->cache, &prompt, &seq, NULL), SHEAF_OK);
    return seq;
}

/* What the sequence shows in every layer is what its tokens give in this namespace. */
static inline void assert_computed(const rig *r, const sheaf_key *space,
                                   const sheaf_sequence *seq)
{
    static float k[1 << 14], v[1 << 14];
    uint32_t seeds[RIG_POSITIONS], length = sheaf_sequence_length(seq);
    assert_true(length <= RIG_POSITIONS);
    seeds_of(space, sheaf_sequence_tokens(seq), length, seeds);
    for (uint32_t layer = 0; layer < r->f.n_layers; layer++) {
        const sheaf_layer *shape = &r->f.layers[layer];
        uint32_t begin, end;
        assert_int_equal(sheaf_sequence_visible(seq, layer, &begin, &end), SHEAF_OK);
        assert_int_equal(end, length);
        assert_int_equal(sheaf_sequence_gather_f32(seq, layer, k, 1 << 14, v, 1 << 14),
                         SHEAF_OK);
        assert_true(gathered_equals(k, shape, layer, 0, seeds, NULL, begin, end));
        assert_true(gathered_equals(v, shape, layer, 1, seeds, NULL, begin, end));
    }
    assert_whole(&r->f, seq);
}

/* ---- small things ------------------------------------------------------------------------ */

/* tokens: [n], first, first + 1, ... */
static inline void count_up(int32_t *tokens, uint32_t n, int32_t first)
{
    for (uint32_t i = 0; i < n; i++) tokens[i] = first + (int32_t)i;
}

static inline sheaf_step step_of(const sheaf_prompt *prompt, sheaf_sequence *seq, uint32_t n)
{
    sheaf_step step = SHEAF_STEP_INIT;
    step.prompt = prompt, step.sequence = seq, step.n = n;
    return step;
}

/* Evicts all that may go. */
static inline void evict_all(const rig *r)
{
    assert_int_equal(sheaf_prefix_evict(r->cache, UINT64_MAX, NULL), SHEAF_OK);
}

/* A stream in memory: what was written is read again from `at` on, in pieces of odd sizes, as a socket
 * may give it. */
typedef struct stream {
    uint64_t n, at;
    uint8_t bytes[1 << 16];
} stream;

static inline sheaf_status stream_write(void *ctx, const void *data, uint64_t n)
{
    stream *s = ctx;
    assert_true(s->n + n <= sizeof s->bytes);
    memcpy(s->bytes + s->n, data, n);
    s->n += n;
    return SHEAF_OK;
}

static inline sheaf_status stream_read(void *ctx, void *data, uint64_t n, uint64_t *n_read)
{
    stream *s = ctx;
    uint64_t left = s->n - s->at, piece = n > 61 ? n - n / 3 : n;
    *n_read = piece < left ? piece : left;
    memcpy(data, s->bytes + s->at, *n_read);
    s->at += *n_read;
    return SHEAF_OK;
}

#endif
