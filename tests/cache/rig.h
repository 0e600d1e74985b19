/* tests/cache/rig.h - a small pool with a prefix cache, whose prompts are texts: a letter is a token,
 * four make a block. */
#ifndef TESTS_CACHE_RIG_H
#define TESTS_CACHE_RIG_H

#include "fixture.h"

#include "cache/prefix.h"
#include "sheaf/ledger.h"

/* One group; and a second one with a window of 6. */
static const sheaf_layer one_group[] = {{.n_kv_heads = 1, .key_dim = 4, .value_dim = 4}};
static const sheaf_layer two_groups[] = {
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4},
    {.n_kv_heads = 1, .key_dim = 4, .value_dim = 4, .window = 6},
};
#define BLOCK 128 /* bytes of a block in each of these groups */

typedef struct rig {
    fixture f;
    sheaf_prefix *cache;
    uint64_t now; /* of the clock */
    sheaf_key space;
    sheaf_key other;
} rig;

static inline uint64_t rig_now(void *ctx)
{
    return ((const rig *)ctx)->now;
}

static inline sheaf_key space_of(const rig *r, const char *salt)
{
    sheaf_key space;
    sheaf_field field = {"salt", salt, strlen(salt)};
    assert_int_equal(sheaf_space_make(r->f.pool, &field, 1, &space), SHEAF_OK);
    return space;
}

static inline sheaf_status rig_try_open_cache(rig *r, const sheaf_prefix_options *options)
{
    sheaf_prefix_options o = *options;
    sheaf_clock clock = {r, rig_now};
    o.clock = &clock;
    return sheaf_prefix_open(r->f.pool, &o, &r->cache, NULL);
}

/* budget: blocks of every group together. n_layers: 1, or 2 for two groups. */
static inline void rig_open(rig *r, uint32_t n_layers, uint32_t budget,
                            const sheaf_prefix_options *options)
{
    memset(r, 0, sizeof *r);
    fixture_open(&r->f, n_layers == 1 ? one_group : two_groups, n_layers, 4, budget);
    r->now = 1000;
    r->space = space_of(r, "a");
    r->other = space_of(r, "b");
    sheaf_prefix_options none = SHEAF_PREFIX_OPTIONS_INIT;
    assert_int_equal(rig_try_open_cache(r, options != NULL ? options : &none), SHEAF_OK);
}

static inline void assert_cache_whole(const rig *r)
{
    sheaf_error err = {0};
    if (sheaf_prefix_check(r->cache, &err) != SHEAF_OK) fail_msg("%s", err.text);
    if (sheaf_pool_check(r->f.pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static inline sheaf_prefix_stats rig_stats(const rig *r)
{
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    assert_int_equal(sheaf_prefix_stats_read(r->cache, &stats), SHEAF_OK);
    return stats;
}

/* All sequences have been destroyed: after closing nobody holds anything. */
static inline void rig_close(rig *r)
{
    assert_cache_whole(r);
    sheaf_prefix_close(r->cache);
    assert_int_equal(fixture_stats(&r->f).blocks_held, 0);
    fixture_close(&r->f);
}

/* ---- prompts ----------------------------------------------------------------------------- */

typedef struct text {
    int32_t tokens[128];
    uint32_t n;
} text;

static inline text text_of(const char *letters)
{
    text t = {{0}, (uint32_t)strlen(letters)};
    assert_true(t.n <= 128);
    for (uint32_t i = 0; i < t.n; i++) t.tokens[i] = letters[i];
    return t;
}

static inline sheaf_prompt prompt_of(const rig *r, const text *t)
{
    sheaf_prompt prompt = SHEAF_PROMPT_INIT;
    prompt.tokens = t->tokens, prompt.n_tokens = t->n, prompt.space = &r->space;
    return prompt;
}

/* Extends, writes and commits these letters. */
static inline void type(const rig *r, sheaf_sequence *seq, const char *letters)
{
    text t = text_of(letters);
    assert_int_equal(sheaf_sequence_extend(seq, t.n), SHEAF_OK);
    write_all(&r->f, seq, sheaf_sequence_length(seq), t.n, (const uint32_t *)t.tokens);
    assert_int_equal(sheaf_sequence_commit(seq, t.n, t.tokens), SHEAF_OK);
}

static inline sheaf_sequence *typed(const rig *r, const char *letters)
{
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(r->f.pool, &seq), SHEAF_OK);
    type(r, seq, letters);
    return seq;
}

/* Publishes under a prompt that says who; what it answers. *n: positions. */
static inline sheaf_status publish_as(const rig *r, sheaf_sequence *seq, uint64_t session,
                                      int32_t priority, uint32_t flags, uint32_t *n)
{
    sheaf_prompt prompt = SHEAF_PROMPT_INIT;
    prompt.space = &r->space, prompt.session = session, prompt.priority = priority;
    return sheaf_prefix_publish(r->cache, &prompt, seq, flags, n);
}

/* Publishes whole blocks, or with the tail; how many positions. */
static inline uint32_t publish(const rig *r, sheaf_sequence *seq, uint32_t flags)
{
    uint32_t n = UINT32_MAX;
    assert_int_equal(publish_as(r, seq, 0, 0, flags, &n), SHEAF_OK);
    assert_cache_whole(r);
    return n;
}

/* Computes, publishes with the tail, and ends. */
static inline void cache_text(const rig *r, const char *letters)
{
    sheaf_sequence *seq = typed(r, letters);
    assert_int_equal(publish(r, seq, SHEAF_PUBLISH_TAIL), strlen(letters));
    sheaf_sequence_destroy(seq);
    assert_cache_whole(r);
}

/* ---- limits ------------------------------------------------------------------------------ */

static inline sheaf_prefix_options limits_of(uint64_t blocks, uint32_t entries, uint64_t ttl_ns)
{
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.capacity_bytes = blocks * BLOCK;
    o.max_entries = entries;
    o.ttl_ns = ttl_ns;
    return o;
}

static inline void rig_open_limited(rig *r, uint32_t n_layers, uint32_t budget, uint64_t blocks)
{
    sheaf_prefix_options o = limits_of(blocks, 0, 0);
    rig_open(r, n_layers, budget, &o);
}

/* As cache_text, with who and how important. */
static inline void cache_as(const rig *r, const char *letters, uint64_t session,
                            int32_t priority)
{
    sheaf_sequence *seq = typed(r, letters);
    uint32_t n;
    assert_int_equal(publish_as(r, seq, session, priority, SHEAF_PUBLISH_TAIL, &n), SHEAF_OK);
    sheaf_sequence_destroy(seq);
    assert_cache_whole(r);
}

static inline uint64_t evict(const rig *r, uint64_t bytes)
{
    uint64_t freed = UINT64_MAX;
    assert_int_equal(sheaf_prefix_evict(r->cache, bytes, &freed), SHEAF_OK);
    assert_cache_whole(r);
    return freed;
}

/* ---- finding ----------------------------------------------------------------------------- */

/* What is found of a text, without a trace. */
static inline sheaf_match peek(const rig *r, const char *letters)
{
    text t = text_of(letters);
    sheaf_prompt prompt = prompt_of(r, &t);
    sheaf_match match = SHEAF_MATCH_INIT;
    assert_int_equal(sheaf_prefix_peek(r->cache, &prompt, &match), SHEAF_OK);
    return match;
}

static inline uint32_t found(const rig *r, const char *letters)
{
    return peek(r, letters).length;
}

/* Matches; the sequence holds exactly what its tokens name. */
static inline sheaf_sequence *matched(const rig *r, const char *letters, sheaf_match *match)
{
    text t = text_of(letters);
    sheaf_prompt prompt = prompt_of(r, &t);
    sheaf_sequence *seq = NULL;
    *match = (sheaf_match)SHEAF_MATCH_INIT;
    assert_int_equal(sheaf_prefix_match(r->cache, &prompt, &seq, match), SHEAF_OK);
    assert_int_equal(sheaf_sequence_length(seq), match->length);
    assert_memory_equal(sheaf_sequence_tokens(seq), t.tokens, match->length * sizeof(int32_t));
    assert_holds_its_tokens(&r->f, seq);
    assert_cache_whole(r);
    return seq;
}

/* Matches and ends; whole blocks and copied positions are as said. */
static inline void assert_matches(const rig *r, const char *letters, uint32_t shared,
                                  uint32_t copied)
{
    sheaf_match match;
    sheaf_sequence *seq = matched(r, letters, &match);
    assert_int_equal(match.shared, shared);
    assert_int_equal(match.copied, copied);
    assert_int_equal(match.length, shared + copied);
    sheaf_sequence_destroy(seq);
}

#endif
