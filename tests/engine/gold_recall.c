/* tests/engine/gold_recall.c - the demo model answers its evaluation chats out of bf16 KV.
 *
 * models/sheaf-demo/eval_recall.jsonl: chats of 625 to 7,319 tokens with the answer that has to
 * come out, word for word (TRAINING.md). Chosen here: 36 of the group that shares one system
 * prompt, prefilled once and forked, and 26 others of all lengths, the shortest ones and the
 * longest among them. All are decoded in ragged batches.
 */
#include "recall_chats.h"

#define N_SHARED    36
#define SHORT_OWN   45 /* of those sorted by length, the first so many are taken more often */
#define SHORT_STEP  3
#define LONG_STEP   7
#define MAX_ANSWER  120
#define BATCH       6 /* caches of long chats held at a time */
#define LEAST_RIGHT 60

/* ---- answering --------------------------------------------------------------------------- */

static bool is_right(const sheaf__model *model, const chat *c, const sheaf__answer *a)
{
    sheaf__text text = {0};
    assert_int_equal(
        sheaf__tokenizer_decode(model->tokenizer, a->tokens.data, a->tokens.n, true, &text),
        SHEAF_OK);
    const char *said = text.data ? text.data : "";
    bool right = a->finish == SHEAF__FINISH_STOP && strcmp(said, c->expected) == 0;
    if (!right)
        fprintf(stderr, "chat %lld (%u tokens): said \"%s\", expected \"%s\"\n",
                json_integer_value(json_object_get(c->row, "id")), c->n_prompt, said,
                c->expected);
    sheaf__text_free(&text);
    return right;
}

/* Answers n chats in one batch; each goes on from a fork of `prefix` (may be null). */
static uint32_t answer_batch(sheaf__model *model, chat *chats, uint32_t n, sheaf__kv *prefix)
{
    const sheaf__sampler_options greedy = {0};
    uint32_t vocab = model->config.vocab, right = 0;
    uint32_t shared = prefix ? sheaf__kv_length(prefix) : 0;
    sheaf__answer *answers = calloc(n, sizeof *answers);
    sheaf__kv *kv = calloc(n, sizeof *kv);
    float *logits = calloc((size_t)n * vocab, sizeof *logits);
    sheaf__sampler *sampler = NULL;
    assert_true(answers != NULL && kv != NULL && logits != NULL);
    assert_int_equal(sheaf__sampler_create(&greedy, vocab, &model->memory, &sampler), SHEAF_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (prefix != NULL)
            assert_int_equal(sheaf__kv_fork(prefix, &kv[i]), SHEAF_OK);
        else
            assert_int_equal(sheaf__model_new_kv(model, &kv[i]), SHEAF_OK);
        answers[i] = (sheaf__answer){.kv = &kv[i],
                                     .sampler = sampler,
                                     .max_tokens = MAX_ANSWER,
                                     .logits = logits + (size_t)i * vocab};
        assert_int_equal(sheaf__model_prefill(model, &kv[i], chats[i].ids.data + shared,
                                              chats[i].ids.n - shared, answers[i].logits, NULL),
                         SHEAF_OK);
    }
    assert_int_equal(sheaf__model_decode(model, answers, n, NULL, NULL, NULL), SHEAF_OK);
    for (uint32_t i = 0; i < n; i++) {
        right += is_right(model, &chats[i], &answers[i]);
        sheaf__ids_free(&answers[i].tokens);
        sheaf__kv_destroy(&kv[i]);
    }
    sheaf__sampler_destroy(sampler);
    free(answers);
    free(kv);
    free(logits);
    return right;
}

/* The tokens that all chats begin with, all of their system prompt at least. */
static uint32_t common_prefix(const chat *chats, uint32_t n)
{
    uint32_t length = chats[0].ids.n - 1;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t same = 0;
        while (same < length && same + 1 < chats[i].ids.n &&
               chats[i].ids.data[same] == chats[0].ids.data[same])
            same++;
        length = same;
    }
    return length;
}

static uint32_t answer_shared(sheaf__model *model, json_t *rows)
{
    static chat chats[MAX_CHATS];
    assert_true(load_chats(rows, "shared", chats) >= N_SHARED);
    for (uint32_t i = 0; i < N_SHARED; i++) encode(model, &chats[i]);
    uint32_t length = common_prefix(chats, N_SHARED);
    assert_true(length > 3600);
    sheaf__kv prefix;
    assert_int_equal(sheaf__model_new_kv(model, &prefix), SHEAF_OK);
    assert_int_equal(
        sheaf__model_prefill(model, &prefix, chats[0].ids.data, length, NULL, NULL), SHEAF_OK);
    uint32_t right = answer_batch(model, chats, N_SHARED, &prefix);
    for (uint32_t i = 0; i < N_SHARED; i++) sheaf__ids_free(&chats[i].ids);
    sheaf__kv_destroy(&prefix);
    return right;
}

static uint32_t answer_own(sheaf__model *model, json_t *rows, uint32_t *n_chosen)
{
    static chat all[MAX_CHATS], chosen[MAX_CHATS];
    uint32_t n = load_chats(rows, "own", all), n_right = 0;
    qsort(all, n, sizeof *all, by_length);
    *n_chosen = 0;
    for (uint32_t i = 0; i < n; i += i < SHORT_OWN ? SHORT_STEP : LONG_STEP)
        chosen[(*n_chosen)++] = all[i];
    chosen[*n_chosen - 1] = all[n - 1]; /* the longest */
    for (uint32_t at = 0; at < *n_chosen; at += BATCH) {
        uint32_t m = *n_chosen - at < BATCH ? *n_chosen - at : BATCH;
        for (uint32_t i = 0; i < m; i++) encode(model, &chosen[at + i]);
        n_right += answer_batch(model, chosen + at, m, NULL);
        for (uint32_t i = 0; i < m; i++) sheaf__ids_free(&chosen[at + i].ids);
    }
    return n_right;
}

static void the_demo_model_recalls_from_bf16_kv(void **state)
{
    (void)state;
    const sheaf__model_options o = {
        .codec_k = SHEAF_CODEC_BF16, .codec_v = SHEAF_CODEC_BF16, .n_threads = 2};
    sheaf__model *model = NULL;
    sheaf_error err = {0};
    assert_int_equal(sheaf__model_open(DEMO, &o, &model, &err), SHEAF_OK);
    json_t *rows = load_rows();
    uint32_t n_own, right_shared = answer_shared(model, rows);
    uint32_t right_own = answer_own(model, rows, &n_own);
    fprintf(stderr, "recall: %u of %u with a shared prompt, %u of %u with their own\n",
            right_shared, N_SHARED, right_own, n_own);
    assert_true(right_shared + right_own >= LEAST_RIGHT);
    json_decref(rows);
    sheaf__model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model_recalls_from_bf16_kv),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
