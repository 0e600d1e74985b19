/* tests/cache/door.h - what the tests of claims, pins, the door of a step, events and entries
 * add to the rig: prompts that are asked for by a text with blanks between its blocks, and
 * steps that run them. */
#ifndef TESTS_CACHE_DOOR_H
#define TESTS_CACHE_DOOR_H

#include "rig.h"

#define SECOND 1000000000ull

/* A prompt and its tokens. */
typedef struct asked {
    sheaf_prompt prompt;
    int32_t tokens[128];
} asked;

static inline sheaf_prompt *ask(const rig *r, asked *a, const char *words)
{
    uint32_t n = 0;
    for (const char *c = words; *c != 0; c++)
        if (*c != ' ') a->tokens[n++] = *c;
    a->prompt = (sheaf_prompt)SHEAF_PROMPT_INIT;
    a->prompt.tokens = a->tokens;
    a->prompt.n_tokens = n;
    a->prompt.space = &r->space;
    return &a->prompt;
}

/* Writes and commits n reserved positions of a sequence, as a prompt has them. */
static inline void compute(const rig *r, sheaf_sequence *seq, const sheaf_prompt *prompt,
                           uint32_t n)
{
    uint32_t from = sheaf_sequence_length(seq);
    if (n == 0) return;
    write_all(&r->f, seq, from, n, (const uint32_t *)prompt->tokens + from);
    assert_int_equal(sheaf_sequence_commit(seq, n, prompt->tokens + from), SHEAF_OK);
}

/* A sequence of the whole prompt, through the door. */
static inline sheaf_sequence *run_prompt(const rig *r, const sheaf_prompt *prompt)
{
    sheaf_step step = SHEAF_STEP_INIT;
    step.prompt = prompt, step.n = prompt->n_tokens;
    assert_int_equal(sheaf_prefix_reserve(r->cache, &step, 1, NULL), SHEAF_OK);
    compute(r, step.sequence, prompt, step.reserved);
    assert_int_equal(sheaf_sequence_length(step.sequence), prompt->n_tokens);
    return step.sequence;
}

/* Computes a prompt and leaves it to the cache, its partial block too. */
static inline void keep(const rig *r, const sheaf_prompt *prompt)
{
    sheaf_sequence *seq = run_prompt(r, prompt);
    assert_int_equal(sheaf_prefix_publish(r->cache, prompt, seq, SHEAF_PUBLISH_TAIL, NULL),
                     SHEAF_OK);
    sheaf_sequence_destroy(seq);
}

static inline void keep_text(const rig *r, const char *words)
{
    asked a;
    keep(r, ask(r, &a, words));
}

/* Positions that would match now. */
static inline uint32_t matches(const rig *r, const char *words)
{
    asked a;
    sheaf_match match = SHEAF_MATCH_INIT;
    assert_int_equal(sheaf_prefix_peek(r->cache, ask(r, &a, words), &match), SHEAF_OK);
    return match.length;
}

#endif
