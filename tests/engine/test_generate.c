/* tests/engine/test_generate.c - opening models, prefill in chunks, decoding batches of
 * answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/generate.h"
#include "odd_fpenv.h"

#define LLAMA "tests/data/fixtures/llama3-tied"
#define QWEN  "tests/data/fixtures/qwen3-headdim"
#define GEMMA "tests/data/fixtures/gemma3-mixed-softcap"
#define VOCAB 320

/* Prompts of any length out of one list. */
static int32_t tokens[400];

static int set_up(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 400; i++) tokens[i] = (int32_t)(3 + (i * 97 + i * i * 5) % 317);
    return 0;
}

static sheaf__model *open_model(const char *path, sheaf__model_options o)
{
    sheaf_error err = {0};
    sheaf__model *model = NULL;
    o.no_tokenizer = true;
    if (o.n_threads == 0) o.n_threads = 1;
    sheaf_status st = sheaf__model_open(path, &o, &model, &err);
    if (st != SHEAF_OK) print_error("%s\n", err.text);
    assert_int_equal(st, SHEAF_OK);
    return model;
}

/* An answer whose prompt, the first n tokens, is in its cache. */
typedef struct asked {
    sheaf__kv kv;
    sheaf__sampler *sampler;
    float logits[VOCAB];
    float all[64 * VOCAB];
} asked;

static sheaf__answer ask(sheaf__model *model, asked *a, uint32_t n, uint32_t max_tokens,
                         sheaf__sampler_options o)
{
    memset(a, 0, sizeof *a);
    assert_int_equal(sheaf__model_new_kv(model, &a->kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &a->kv, tokens, n, a->logits, NULL), SHEAF_OK);
    assert_int_equal(sheaf__sampler_create(&o, VOCAB, &model->memory, &a->sampler), SHEAF_OK);
    return (sheaf__answer){.kv = &a->kv,
                           .sampler = a->sampler,
                           .max_tokens = max_tokens,
                           .logits = a->logits,
                           .all_logits = a->all};
}

static void forget(asked *a, sheaf__answer *answer)
{
    sheaf__kv_destroy(&a->kv);
    sheaf__sampler_destroy(a->sampler);
    sheaf__ids_free(&answer->tokens);
}

static const sheaf__sampler_options greedy = {0};

/* ---- opening ----------------------------------------------------------------------------- */

static void what_cannot_be_opened_is_said_in_a_sentence(void **state)
{
    (void)state;
    const struct {
        const char *path;
        sheaf__model_options options;
        sheaf_status status;
        const char *said;
    } cases[] = {
        {"tests/data/nowhere", {0}, SHEAF_E_IO, "nowhere"},
        {"random:gpt-9", {0}, SHEAF_E_CONFIG, "gpt-9"},
        {LLAMA, {.ctx_size = 1025}, SHEAF_E_CONTEXT, "1024"},
        {LLAMA, {.kv_backend = 2}, SHEAF_E_INVALID, "backend"},
        {LLAMA, {.attn_path = 3}, SHEAF_E_INVALID, "path"},
        {LLAMA, {.isa = 99}, SHEAF_E_INVALID, ""},
        {LLAMA, {.n_threads = 1000}, SHEAF_E_INVALID, "1000 threads"},
        {LLAMA, {.codec_k = 77, .no_tokenizer = true}, SHEAF_E_CODEC, ""},
        {LLAMA, {.block_tokens = 3, .no_tokenizer = true}, SHEAF_E_LAYOUT, ""},
        {LLAMA, {0}, SHEAF_E_IO, "tokenizer.json"},
    };
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__model *model = NULL;
        sheaf_error err = {0};
        assert_int_equal(sheaf__model_open(cases[i].path, &cases[i].options, &model, &err),
                         cases[i].status);
        assert_null(model);
        assert_int_equal(err.status, cases[i].status);
        assert_non_null(strstr(err.text, cases[i].said));
    }
}

static void defaults_are_filled_in(void **state)
{
    (void)state;
    sheaf__model *model = open_model(LLAMA, (sheaf__model_options){0});
    assert_int_equal(model->options.ctx_size, 1024);
    assert_int_equal(model->options.prefill_chunk, 512);
    assert_int_equal(model->options.isa, sheaf_isa_best());
    assert_non_null(model->pool);
    sheaf__model_close(model);
    model = open_model(LLAMA, (sheaf__model_options){.kv_backend = SHEAF__KV_DENSE});
    assert_null(model->pool);
    sheaf__model_close(model);
    sheaf__model_close(NULL);
}

static void a_random_model_answers_in_bytes(void **state)
{
    (void)state;
    const sheaf__model_options o = {.ctx_size = 64, .codec_k = SHEAF_CODEC_BF16};
    sheaf__model *model = NULL;
    sheaf_error err = {0};
    assert_int_equal(sheaf__model_open("random:qwen3-0.6b:layers=1", &o, &model, &err),
                     SHEAF_OK);
    sheaf__ids ids = {0};
    assert_int_equal(sheaf__tokenizer_encode(model->tokenizer, "abc", 3, 0, &ids), SHEAF_OK);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.data[2], 'c');
    float *logits = calloc(model->config.vocab, sizeof *logits);
    assert_non_null(logits);
    sheaf__kv kv;
    sheaf__sampler *sampler = NULL;
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, ids.data, 3, logits, NULL), SHEAF_OK);
    assert_int_equal(
        sheaf__sampler_create(&greedy, model->config.vocab, &model->memory, &sampler),
        SHEAF_OK);
    sheaf__answer a = {.kv = &kv, .sampler = sampler, .max_tokens = 3, .logits = logits};
    model->config.n_eos = 0;
    assert_int_equal(sheaf__model_decode(model, &a, 1, NULL, NULL, &err), SHEAF_OK);
    assert_int_equal(a.tokens.n, 3);
    sheaf__ids_free(&a.tokens);
    sheaf__ids_free(&ids);
    sheaf__sampler_destroy(sampler);
    sheaf__kv_destroy(&kv);
    free(logits);
    sheaf__model_close(model);
}

/* Opened and asked in an odd environment, Gemma (whose settings and norms are computed while it opens)
 * gives the bits of the default one; the caller's environment comes back. */
static void a_model_opened_in_an_odd_environment_gives_the_same_bits(void **state)
{
    (void)state;
    sheaf__model *plain = open_model(GEMMA, (sheaf__model_options){0});
    static asked a, b;
    sheaf__answer x = ask(plain, &a, 40, 1, greedy);
    fpenv_set(ODD_FPENV);
    sheaf__model *odd = open_model(GEMMA, (sheaf__model_options){0});
    uint32_t after = fpenv_now();
    sheaf__answer y = ask(odd, &b, 40, 1, greedy);
    fpenv_set(DEFAULT_FPENV);
    assert_int_equal(after, ODD_FPENV);
    assert_memory_equal(&plain->config, &odd->config, sizeof plain->config);
    assert_memory_equal(a.logits, b.logits, sizeof a.logits);
    forget(&a, &x);
    forget(&b, &y);
    sheaf__model_close(plain);
    sheaf__model_close(odd);
}

/* ---- prefill ----------------------------------------------------------------------------- */

typedef struct told {
    uint32_t n;
    uint64_t done[32], total[32];
} told;

static void note_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    told *t = ctx;
    if (strcmp(what, "prefill") != 0) return;
    assert_true(t->n < 32);
    t->done[t->n] = done;
    t->total[t->n++] = total;
}

static void prefill_goes_in_chunks_and_tells_how_far_it_is(void **state)
{
    (void)state;
    told t = {0};
    sheaf__model *model = open_model(LLAMA, (sheaf__model_options){.prefill_chunk = 16,
                                                                   .progress = note_progress,
                                                                   .progress_ctx = &t});
    sheaf__model *whole = open_model(LLAMA, (sheaf__model_options){0});
    static asked a, b;
    sheaf__answer x = ask(model, &a, 40, 1, greedy), y = ask(whole, &b, 40, 1, greedy);
    /* at the beginning of each chunk and after each of its two layers */
    const uint64_t done[9] = {0, 8, 16, 16, 24, 32, 32, 36, 40};
    assert_int_equal(model->config.n_layers, 2);
    assert_int_equal(t.n, 9);
    assert_memory_equal(t.done, done, sizeof done);
    for (uint32_t i = 0; i < t.n; i++) assert_int_equal(t.total[i], 40);
    assert_memory_equal(a.logits, b.logits, sizeof a.logits);
    assert_int_equal(sheaf__kv_length(&a.kv), 40);
    forget(&a, &x);
    forget(&b, &y);
    sheaf__model_close(model);
    sheaf__model_close(whole);
}

static void a_prompt_that_cannot_be_run_leaves_the_cache_alone(void **state)
{
    (void)state;
    sheaf__model *model =
        open_model(LLAMA, (sheaf__model_options){.ctx_size = 50, .prefill_chunk = 8});
    sheaf__kv kv;
    sheaf_error err = {0};
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 30, NULL, &err), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 21, NULL, &err), SHEAF_E_CONTEXT);
    assert_non_null(strstr(err.text, "21"));
    assert_non_null(strstr(err.text, "50"));
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 0, NULL, &err), SHEAF_E_INVALID);
    int32_t bad[10];
    memcpy(bad, tokens, sizeof bad);
    bad[9] = VOCAB; /* in the second chunk */
    assert_int_equal(sheaf__model_prefill(model, &kv, bad, 10, NULL, &err), SHEAF_E_INVALID);
    assert_non_null(strstr(err.text, "320"));
    bad[9] = -1;
    assert_int_equal(sheaf__model_prefill(model, &kv, bad, 10, NULL, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf__kv_length(&kv), 30);
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 20, NULL, &err), SHEAF_OK);
    assert_int_equal(sheaf__kv_length(&kv), 50);
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
}

/* Decodes greedily from the logits in `a`, up to 20 tokens. */
static void decode_20(sheaf__model *model, sheaf__answer *x)
{
    x->max_tokens = 20;
    x->finish = SHEAF__FINISH_NONE;
    assert_int_equal(sheaf__model_decode(model, x, 1, NULL, NULL, NULL), SHEAF_OK);
}

static void a_cached_prompt_tells_its_logits_and_goes_on_as_if_just_run(void **state)
{
    (void)state;
    const char *paths[] = {LLAMA, QWEN, GEMMA};
    for (uint32_t i = 0; i < 6; i++) {
        sheaf__model *model =
            open_model(paths[i / 2], (sheaf__model_options){.kv_backend = i % 2});
        model->config.n_eos = 0;
        static asked a, b;
        sheaf__answer x = ask(model, &a, 64, 1, greedy), y = ask(model, &b, 64, 1, greedy);
        memset(b.logits, 0, sizeof b.logits);
        assert_int_equal(sheaf__model_logits(model, &b.kv, b.logits, NULL), SHEAF_OK);
        assert_memory_equal(b.logits, a.logits, sizeof b.logits);
        assert_int_equal(sheaf__kv_length(&b.kv), 64);
        assert_int_equal(sheaf__kv_reserved(&b.kv), 0);
        decode_20(model, &x);
        decode_20(model, &y);
        assert_memory_equal(a.all, b.all, 20 * VOCAB * sizeof(float));
        forget(&a, &x);
        forget(&b, &y);
        sheaf__model_close(model);
    }
}

static void logits_that_cannot_be_told_are_refused(void **state)
{
    (void)state;
    sheaf__model *model = open_model(LLAMA, (sheaf__model_options){0});
    sheaf__kv kv;
    float logits[VOCAB], before[VOCAB];
    sheaf_error err = {0};
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_logits(model, &kv, logits, &err), SHEAF_E_INVALID);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 10, before, NULL), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&kv, 3), SHEAF_OK);
    assert_int_equal(sheaf__model_logits(model, &kv, logits, &err), SHEAF_E_BUSY);
    assert_non_null(strstr(err.text, "position 9"));
    assert_int_equal(sheaf__kv_commit(&kv, 0, NULL), SHEAF_OK);
    assert_int_equal(sheaf__model_logits(model, &kv, logits, &err), SHEAF_OK);
    assert_memory_equal(logits, before, sizeof logits);
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
}

/* A block of 32 positions takes 16 KiB here, and so does a slab of one block. */
#define BLOCK_BYTES (32u * 2 * 2 * 2 * 16 * 4)

static sheaf__model_options tight(uint32_t n_blocks)
{
    return (sheaf__model_options){.slab_blocks = 1,
                                  .prefill_chunk = 32,
                                  .kv_budget_bytes = (uint64_t)n_blocks * BLOCK_BYTES};
}

static void a_prompt_that_finds_no_room_keeps_the_chunks_before(void **state)
{
    (void)state;
    sheaf__model *model = open_model(LLAMA, tight(3));
    sheaf__kv kv;
    sheaf_error err = {0};
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 120, NULL, &err), SHEAF_FULL);
    assert_non_null(strstr(err.text, "96 of 120"));
    assert_int_equal(sheaf__kv_length(&kv), 96);
    assert_int_equal(sheaf__kv_reserved(&kv), 0);
    assert_memory_equal(sheaf_sequence_tokens(kv.sequence), tokens, 96 * sizeof *tokens);
    assert_int_equal(sheaf_sequence_check(kv.sequence, &err), SHEAF_OK);
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
}

/* ---- decode ------------------------------------------------------------------------------ */

static void a_batch_gives_each_what_it_gets_alone(void **state)
{
    (void)state;
    enum { N = 4 };
    static asked together[N], alone;
    const uint32_t lengths[N] = {1, 33, 300, 90}, max_tokens[N] = {20, 7, 30, 1};
    const sheaf__sampler_options options[N] = {greedy,
                                               {.temperature = 1, .seed = 4},
                                               {.temperature = 2, .top_k = 50, .seed = 4},
                                               {.temperature = 1, .seed = 4, .choice = 1}};
    for (uint32_t backend = SHEAF__KV_PAGED; backend <= SHEAF__KV_DENSE; backend++) {
        sheaf__model *model =
            open_model(QWEN, (sheaf__model_options){.kv_backend = backend, .n_threads = 2});
        model->config.n_eos = 0;
        sheaf__answer answers[N];
        for (uint32_t i = 0; i < N; i++)
            answers[i] = ask(model, &together[i], lengths[i], max_tokens[i], options[i]);
        assert_int_equal(sheaf__model_decode(model, answers, N, NULL, NULL, NULL), SHEAF_OK);
        for (uint32_t i = 0; i < N; i++) {
            sheaf__answer a = ask(model, &alone, lengths[i], max_tokens[i], options[i]);
            assert_int_equal(sheaf__model_decode(model, &a, 1, NULL, NULL, NULL), SHEAF_OK);
            assert_int_equal(answers[i].finish, SHEAF__FINISH_LENGTH);
            assert_int_equal(answers[i].tokens.n, max_tokens[i]);
            assert_int_equal(a.tokens.n, max_tokens[i]);
            assert_memory_equal(answers[i].tokens.data, a.tokens.data,
                                max_tokens[i] * sizeof *a.tokens.data);
            assert_memory_equal(together[i].all, alone.all,
                                max_tokens[i] * VOCAB * sizeof(float));
            assert_int_equal(sheaf__kv_length(&alone.kv), lengths[i] + max_tokens[i] - 1);
            forget(&alone, &a);
        }
        for (uint32_t i = 0; i < N; i++) forget(&together[i], &answers[i]);
        sheaf__model_close(model);
    }
}

static void an_answer_ends_before_the_token_that_ends_a_text(void **state)
{
    (void)state;
    sheaf__model *model = open_model(QWEN, (sheaf__model_options){0});
    static asked a;
    model->config.n_eos = 0;
    sheaf__answer x = ask(model, &a, 33, 12, greedy);
    assert_int_equal(sheaf__model_decode(model, &x, 1, NULL, NULL, NULL), SHEAF_OK);
    int32_t free_run[12];
    memcpy(free_run, x.tokens.data, sizeof free_run);
    forget(&a, &x);

    uint32_t at = 0; /* where the last token comes first */
    while (free_run[at] != free_run[11]) at++;
    model->config.n_eos = 1;
    model->config.eos[0] = free_run[at];
    x = ask(model, &a, 33, 12, greedy);
    assert_int_equal(sheaf__model_decode(model, &x, 1, NULL, NULL, NULL), SHEAF_OK);
    assert_int_equal(x.finish, SHEAF__FINISH_STOP);
    assert_int_equal(x.tokens.n, at);
    assert_int_equal(sheaf__kv_length(&a.kv), 33 + at);
    assert_int_equal(sheaf__kv_reserved(&a.kv), 0);
    /* what is finished is left alone */
    assert_int_equal(sheaf__model_decode(model, &x, 1, NULL, NULL, NULL), SHEAF_OK);
    assert_int_equal(x.tokens.n, at);
    forget(&a, &x);
    x = ask(model, &a, 33, 0, greedy);
    assert_int_equal(sheaf__model_decode(model, &x, 1, NULL, NULL, NULL), SHEAF_OK);
    assert_int_equal(x.finish, SHEAF__FINISH_LENGTH);
    assert_int_equal(x.tokens.n, 0);
    forget(&a, &x);
    sheaf__model_close(model);
}

static void an_answer_ends_where_the_context_does(void **state)
{
    (void)state;
    sheaf__model *model = open_model(QWEN, (sheaf__model_options){.ctx_size = 40});
    static asked a, b;
    model->config.n_eos = 0;
    sheaf__answer x[2] = {ask(model, &a, 33, 50, greedy), ask(model, &b, 40, 50, greedy)};
    assert_int_equal(sheaf__model_decode(model, x, 2, NULL, NULL, NULL), SHEAF_OK);
    assert_int_equal(x[0].finish, SHEAF__FINISH_LENGTH);
    assert_int_equal(x[0].tokens.n, 8); /* the last has no position of its own */
    assert_int_equal(sheaf__kv_length(&a.kv), 40);
    assert_int_equal(x[1].finish, SHEAF__FINISH_LENGTH);
    assert_int_equal(x[1].tokens.n, 1);
    forget(&a, &x[0]);
    forget(&b, &x[1]);
    sheaf__model_close(model);
}

typedef struct heard {
    uint32_t n[2];
    int32_t last[2];
    uint32_t stop_answer, stop_after;
} heard;

static int listen(void *ctx, uint32_t answer, int32_t token)
{
    heard *h = ctx;
    h->n[answer]++;
    h->last[answer] = token;
    return answer == h->stop_answer && h->n[answer] == h->stop_after;
}

static void the_listener_hears_every_token_and_may_end_an_answer(void **state)
{
    (void)state;
    sheaf__model *model = open_model(QWEN, (sheaf__model_options){0});
    static asked a, b;
    model->config.n_eos = 0;
    heard h = {.stop_answer = 1, .stop_after = 3};
    sheaf__answer x[2] = {ask(model, &a, 33, 9, greedy), ask(model, &b, 40, 9, greedy)};
    assert_int_equal(sheaf__model_decode(model, x, 2, listen, &h, NULL), SHEAF_OK);
    assert_int_equal(x[0].finish, SHEAF__FINISH_LENGTH);
    assert_int_equal(h.n[0], 9);
    assert_int_equal(h.last[0], x[0].tokens.data[8]);
    assert_int_equal(x[1].finish, SHEAF__FINISH_CANCELLED);
    assert_int_equal(x[1].tokens.n, 3);
    assert_int_equal(h.n[1], 3);
    assert_int_equal(sheaf__kv_reserved(&b.kv), 0);
    assert_int_equal(sheaf__kv_length(&b.kv), 42);
    forget(&a, &x[0]);
    forget(&b, &x[1]);
    sheaf__model_close(model);
}

static void a_step_that_finds_no_room_can_be_taken_up_again(void **state)
{
    (void)state;
    enum { N = 2, MAX = 40 };
    static asked a[N], wide[N], hog;
    const uint32_t lengths[N] = {60, 31};
    const sheaf__sampler_options o = {.temperature = 1.5f, .seed = 11};
    sheaf__model *roomy = open_model(LLAMA, (sheaf__model_options){0});
    sheaf__model *model = open_model(LLAMA, tight(5));
    roomy->config.n_eos = model->config.n_eos = 0;
    sheaf__answer x[N], y[N], z = ask(model, &hog, 30, 1, greedy);
    for (uint32_t i = 0; i < N; i++) {
        x[i] = ask(model, &a[i], lengths[i], MAX, o);
        y[i] = ask(roomy, &wide[i], lengths[i], MAX, o);
    }
    sheaf_error err = {0};
    heard h = {.stop_answer = 9};
    /* 2 + 1 + 1 blocks of 5 are held; the second answer takes the fifth, the first none */
    assert_int_equal(sheaf__model_decode(model, x, N, listen, &h, &err), SHEAF_FULL);
    assert_int_equal(err.status, SHEAF_FULL);
    assert_int_equal(x[0].tokens.n, 4);
    assert_int_equal(x[1].tokens.n, 4);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(sheaf__kv_length(&a[i].kv), lengths[i] + 4);
        assert_int_equal(sheaf__kv_reserved(&a[i].kv), 0);
        assert_int_equal(x[i].finish, SHEAF__FINISH_NONE);
        assert_int_equal(sheaf_sequence_check(a[i].kv.sequence, &err), SHEAF_OK);
    }
    assert_int_equal(sheaf__model_decode(model, x, N, listen, &h, NULL), SHEAF_FULL);
    assert_int_equal(h.n[0], 4);
    forget(&hog, &z);
    assert_int_equal(sheaf__model_decode(model, x, N, listen, &h, NULL), SHEAF_FULL);
    assert_true(x[1].tokens.n > 4);
    sheaf__kv_destroy(&a[1].kv); /* one gives up, the other goes on */
    assert_int_equal(sheaf__model_decode(model, x, 1, listen, &h, NULL), SHEAF_OK);
    assert_int_equal(sheaf__model_decode(roomy, y, N, NULL, NULL, NULL), SHEAF_OK);
    assert_int_equal(h.n[0], MAX);
    assert_memory_equal(x[0].tokens.data, y[0].tokens.data, MAX * sizeof(int32_t));
    assert_memory_equal(x[1].tokens.data, y[1].tokens.data, x[1].tokens.n * sizeof(int32_t));
    assert_memory_equal(a[0].all, wide[0].all, MAX * VOCAB * sizeof(float));
    for (uint32_t i = 0; i < N; i++) {
        forget(&a[i], &x[i]);
        forget(&wide[i], &y[i]);
    }
    sheaf__model_close(model);
    sheaf__model_close(roomy);
}

static void answers_that_cannot_be_decoded_are_refused(void **state)
{
    (void)state;
    sheaf__model *model = open_model(QWEN, (sheaf__model_options){0});
    static asked a;
    sheaf__answer x[2];
    x[0] = x[1] = ask(model, &a, 10, 5, greedy);
    assert_int_equal(sheaf__model_decode(model, x, 2, NULL, NULL, NULL), SHEAF_E_INVALID);
    sheaf__kv empty;
    assert_int_equal(sheaf__model_new_kv(model, &empty), SHEAF_OK);
    x[1].kv = &empty;
    assert_int_equal(sheaf__model_decode(model, x, 2, NULL, NULL, NULL), SHEAF_E_INVALID);
    assert_int_equal(x[0].tokens.n, 0);
    assert_int_equal(sheaf__model_decode(model, x, 0, NULL, NULL, NULL), SHEAF_OK);
    sheaf__kv_destroy(&empty);
    forget(&a, &x[0]);
    sheaf__model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_opened_is_said_in_a_sentence),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(a_random_model_answers_in_bytes),
        cmocka_unit_test(a_model_opened_in_an_odd_environment_gives_the_same_bits),
        cmocka_unit_test(prefill_goes_in_chunks_and_tells_how_far_it_is),
        cmocka_unit_test(a_prompt_that_cannot_be_run_leaves_the_cache_alone),
        cmocka_unit_test(a_prompt_that_finds_no_room_keeps_the_chunks_before),
        cmocka_unit_test(a_cached_prompt_tells_its_logits_and_goes_on_as_if_just_run),
        cmocka_unit_test(logits_that_cannot_be_told_are_refused),
        cmocka_unit_test(a_batch_gives_each_what_it_gets_alone),
        cmocka_unit_test(an_answer_ends_before_the_token_that_ends_a_text),
        cmocka_unit_test(an_answer_ends_where_the_context_does),
        cmocka_unit_test(the_listener_hears_every_token_and_may_end_an_answer),
        cmocka_unit_test(a_step_that_finds_no_room_can_be_taken_up_again),
        cmocka_unit_test(answers_that_cannot_be_decoded_are_refused),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, NULL);
}
