/* tests/engine/gold_codecs.c - what quantized K and V cost the demo model: no recall, and next to no
 * perplexity.
 *
 * Chats of 563 to 2,000 tokens with their answers are run through the network in chunks, which read K
 * and V back from the pool. An answer is recalled where each of its tokens is the likeliest one when
 * its turn comes; perplexity is that of all tokens but the first. bench quality does this for all
 * lengths (docs/perf-log.md).
 */
#include "recall_chats.h"

#include <math.h>

#include "engine/logprobs.h"

#define CHUNK   128
#define N_CHATS 5
#define STEP    5 /* of the chats by length, from the shortest */

typedef struct quality {
    double sum; /* of log-probabilities */
    uint32_t n_tokens, n_right;
} quality;

/* Runs one chat with its answer. */
static void run_chat(sheaf__model *model, const chat *c, float *logits, quality *q)
{
    const uint32_t vocab = model->config.vocab, n = c->ids.n;
    const int32_t *ids = c->ids.data;
    bool right = true;
    sheaf__kv kv;
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    for (uint32_t at = 0; at < n; at += CHUNK) {
        const uint32_t m = n - at < CHUNK ? n - at : CHUNK;
        const sheaf__forward_item item = {&kv, ids + at, m, m, 0};
        assert_int_equal(sheaf__kv_extend(&kv, m), SHEAF_OK);
        assert_int_equal(sheaf__forward_run(model->forward, &item, 1, logits), SHEAF_OK);
        assert_int_equal(sheaf__kv_commit(&kv, m, ids + at), SHEAF_OK);
        for (uint32_t i = 0; i < m && at + i + 1 < n; i++) {
            sheaf__logprobs told;
            const int32_t next = ids[at + i + 1];
            sheaf__logprobs_of(logits + (size_t)i * vocab, vocab, next, 1, &told);
            q->sum += (double)told.value;
            q->n_tokens++;
            if (at + i + 1 >= c->n_prompt && told.top[0].token != next) right = false;
        }
    }
    q->n_right += right;
    sheaf__kv_destroy(&kv);
}

static quality quality_of(json_t *rows, uint32_t codec_k, uint32_t codec_v)
{
    static chat chats[MAX_CHATS];
    const sheaf__model_options o = {
        .codec_k = codec_k, .codec_v = codec_v, .n_threads = 2, .prefill_chunk = CHUNK};
    sheaf__model *model = NULL;
    sheaf_error err = {0};
    quality q = {0};
    assert_int_equal(sheaf__model_open(DEMO, &o, &model, &err), SHEAF_OK);
    float *logits = malloc((size_t)CHUNK * model->config.vocab * sizeof *logits);
    assert_non_null(logits);
    uint32_t n = load_chats(rows, "own", chats);
    assert_true(n > (N_CHATS - 1) * STEP);
    qsort(chats, n, sizeof *chats, by_length);
    for (uint32_t i = 0; i < N_CHATS; i++) {
        chat *c = &chats[i * STEP];
        encode(model, c);
        assert_int_equal(sheaf__tokenizer_encode(model->tokenizer, c->expected,
                                                 strlen(c->expected), SHEAF__ENCODE_PLAIN,
                                                 &c->ids),
                         SHEAF_OK);
        run_chat(model, c, logits, &q);
        sheaf__ids_free(&c->ids);
    }
    fprintf(stderr, "K %s, V %s: %u of %u right, perplexity %.5f\n", sheaf_codec_name(codec_k),
            sheaf_codec_name(codec_v), q.n_right, N_CHATS, exp(-q.sum / q.n_tokens));
    free(logits);
    sheaf__model_close(model);
    return q;
}

static void quantized_kv_keeps_recall_and_perplexity(void **state)
{
    (void)state;
    json_t *rows = load_rows();
    quality f32 = quality_of(rows, SHEAF_CODEC_F32, SHEAF_CODEC_F32);
    quality int8 = quality_of(rows, SHEAF_CODEC_INT8, SHEAF_CODEC_INT8);
    quality turbo4 = quality_of(rows, SHEAF_CODEC_TURBO4, SHEAF_CODEC_TURBO4);
    assert_int_equal(f32.n_right, N_CHATS);
    assert_int_equal(int8.n_right, N_CHATS);
    assert_int_equal(turbo4.n_right, N_CHATS);
    assert_true(exp((f32.sum - int8.sum) / f32.n_tokens) < 1.001);
    assert_true(exp((f32.sum - turbo4.sum) / f32.n_tokens) < 1.03);
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantized_kv_keeps_recall_and_perplexity),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
