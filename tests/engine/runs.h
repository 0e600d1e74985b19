/* runs.h - models without their tokenizer, made-up prompts, and greedy answers with all their logits. */
#ifndef SHEAF_TESTS_ENGINE_RUNS_H
#define SHEAF_TESTS_ENGINE_RUNS_H

#include "testing.h"

#include "engine/session.h"

#define RUNS_DEMO   "models/sheaf-demo"
#define RUNS_QWEN   "tests/data/fixtures/qwen3-headdim"
#define RUNS_GEMMA  "tests/data/fixtures/gemma3-mixed"
#define RUNS_LLAMA  "tests/data/fixtures/llama3-tied"
#define RUNS_ANSWER 12 /* tokens */

static inline sheaf__model *runs_open(const char *dir, sheaf__model_options o)
{
    sheaf_error err = {0};
    sheaf__model *model = NULL;
    o.no_tokenizer = true;
    if (o.n_threads == 0) o.n_threads = 1;
    if (sheaf__model_open(dir, &o, &model, &err) != SHEAF_OK) fail_msg("%s", err.text);
    model->config.n_eos = 0; /* answers go on to their length */
    return model;
}

/* The namespace of its sequences. */
static inline sheaf_key runs_space(const sheaf__model *model, const char *dir)
{
    sheaf__identity id;
    sheaf_key space = {{0}};
    sheaf_error err = {0};
    sheaf_status status = sheaf__session_name(dir, &model->options, &id, &err);
    if (status == SHEAF_OK) status = sheaf__session_space(model, dir, &id, &space, &err);
    if (status != SHEAF_OK) fail_msg("%s", err.text);
    return space;
}

/* tokens[0, n), all in a vocabulary of 320; another `kind` is another text. */
static inline void runs_prompt(int32_t *tokens, uint32_t n, uint32_t kind)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(3 + (i * 97 + i * i * 5 + kind * 41) % 317);
}

/* What a run gave. */
typedef struct runs_answer {
    uint64_t bytes; /* of all logits */
    float *
        logits; /* [1 + RUNS_ANSWER, vocab]: of the prompt's last token, then of each answer token */
    int32_t tokens[RUNS_ANSWER];
} runs_answer;

/* Answers from the first row of a->logits, which is filled. */
static inline void runs_decode(sheaf__model *model, sheaf__kv *kv, runs_answer *a)
{
    const sheaf__sampler_options greedy = {0};
    uint32_t vocab = model->config.vocab;
    sheaf_error err = {0};
    sheaf__answer answer = {
        .kv = kv, .max_tokens = RUNS_ANSWER, .all_logits = a->logits + vocab};
    float *last = malloc(vocab * sizeof *last);
    assert_non_null(last);
    memcpy(last, a->logits, vocab * sizeof *last);
    answer.logits = last;
    assert_int_equal(sheaf__sampler_create(&greedy, vocab, &model->memory, &answer.sampler),
                     SHEAF_OK);
    if (sheaf__model_decode(model, &answer, 1, NULL, NULL, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    assert_int_equal(answer.tokens.n, RUNS_ANSWER);
    memcpy(a->tokens, answer.tokens.data, sizeof a->tokens);
    sheaf__sampler_destroy(answer.sampler);
    sheaf__ids_free(&answer.tokens);
    free(last);
}

static inline runs_answer runs_answer_new(const sheaf__model *model)
{
    runs_answer a = {.bytes = (1 + RUNS_ANSWER) * model->config.vocab * sizeof(float)};
    a.logits = calloc(1, a.bytes);
    assert_non_null(a.logits);
    return a;
}

/* The prompt, then an answer, in a cache that begins with nothing. kv is the caller's. */
static inline runs_answer runs_cold(sheaf__model *model, const int32_t *tokens, uint32_t n,
                                    sheaf__kv *kv)
{
    sheaf_error err = {0};
    runs_answer a = runs_answer_new(model);
    assert_int_equal(sheaf__model_new_kv(model, kv), SHEAF_OK);
    if (sheaf__model_prefill(model, kv, tokens, n, a.logits, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    runs_decode(model, kv, &a);
    return a;
}

/* The same to the bit? Frees `a`. */
static inline void runs_expect_equal(runs_answer *a, const runs_answer *wanted)
{
    assert_int_equal(a->bytes, wanted->bytes);
    assert_memory_equal(a->tokens, wanted->tokens, sizeof a->tokens);
    if (memcmp(a->logits, wanted->logits, a->bytes) != 0) fail_msg("other logits");
    free(a->logits);
}

/* ---- what a refusal must leave alone ----------------------------------------------------- */

/* The pool's counts that a failed load could disturb. */
typedef struct runs_counts {
    uint64_t blocks_held, bytes_in_use;
} runs_counts;

static inline runs_counts runs_count(const sheaf__model *model)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    sheaf_error err = {0};
    if (sheaf_pool_check(model->pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    assert_int_equal(sheaf_pool_stats_read(model->pool, &stats), SHEAF_OK);
    return (runs_counts){stats.blocks_held, stats.bytes_in_use};
}

#endif
