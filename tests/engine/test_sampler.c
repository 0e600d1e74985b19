/* tests/engine/test_sampler.c - from logits to a token: filters, ties, randomness. */
#include "testing.h"

#include <float.h>
#include <math.h>

#include "engine/sampler.h"
#include "odd_fpenv.h"

static sheaf__memory memory;

static int set_up(void **state)
{
    (void)state;
    sheaf__memory_init(&memory, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return memory.live_bytes == 0 ? 0 : -1;
}

static sheaf__sampler *sampler(sheaf__sampler_options o, uint32_t vocab)
{
    sheaf__sampler *s = NULL;
    assert_int_equal(sheaf__sampler_create(&o, vocab, &memory, &s), SHEAF_OK);
    return s;
}

/* Known answers of the authors' Random123 library (kat_vectors, philox4x32 10). */
static void philox_gives_its_known_answers(void **state)
{
    (void)state;
    static const uint32_t vectors[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        sheaf__philox(vectors[i], vectors[i] + 4, out);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
}

static void options_outside_their_range_are_refused(void **state)
{
    (void)state;
    const sheaf__sampler_options bad[] = {
        {.temperature = -0.1f}, {.temperature = NAN}, {.temperature = INFINITY},
        {.top_p = -0.1f},       {.top_p = 1.01f},     {.top_p = NAN},
        {.min_p = -0.1f},       {.min_p = 1.01f},     {.min_p = NAN}};
    sheaf__sampler *s = NULL;
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(sheaf__sampler_create(&bad[i], 10, &memory, &s), SHEAF_E_INVALID);
    const sheaf__sampler_options good = {0};
    assert_int_equal(sheaf__sampler_create(&good, 0, &memory, &s), SHEAF_E_INVALID);
    assert_null(s);
}

static void greedy_takes_the_largest_and_the_lowest_id_among_equals(void **state)
{
    (void)state;
    sheaf__sampler *s = sampler((sheaf__sampler_options){.top_k = 2, .seed = 9}, 6);
    const float logits[6] = {-1, 3, 2, 3, -5, 3}, flat[6] = {0};
    for (uint32_t position = 0; position < 20; position++) {
        assert_int_equal(sheaf__sampler_pick(s, logits, position), 1);
        assert_int_equal(sheaf__sampler_pick(s, flat, position), 0);
    }
    sheaf__sampler_destroy(s);
}

/* ---- which candidates are left ----------------------------------------------------------- */

/* The set of ids that 4,000 draws gave, as bits. */
static uint32_t drawn(sheaf__sampler_options o, const float *logits, uint32_t vocab)
{
    sheaf__sampler *s = sampler(o, vocab);
    uint32_t set = 0;
    for (uint32_t position = 0; position < 4000; position++)
        set |= 1u << sheaf__sampler_pick(s, logits, position);
    sheaf__sampler_destroy(s);
    return set;
}

static void top_k_keeps_the_first_k_and_of_equals_the_lowest_ids(void **state)
{
    (void)state;
    const float logits[6] = {1.0f, 1.5f, 1.0f, 1.0f, 2.0f, 0.5f};
    sheaf__sampler_options o = {.temperature = 1};
    const uint32_t wanted[8] = {0x3f, 0x10, 0x12, 0x13, 0x17, 0x1f, 0x3f, 0x3f};
    for (uint32_t k = 0; k < 8; k++) {
        o.top_k = k;
        assert_int_equal(drawn(o, logits, 6), wanted[k]);
    }
}

static void top_p_keeps_the_fewest_that_reach_the_sum(void **state)
{
    (void)state;
    /* probabilities 0.1, 0.4, 0.2, 0.3 */
    const float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    const struct {
        float top_p;
        uint32_t wanted;
    } cases[] = {{0.0f, 0xf},  {1e-9f, 0x2}, {0.39f, 0x2}, {0.41f, 0xa}, {0.69f, 0xa},
                 {0.71f, 0xe}, {0.89f, 0xe}, {0.91f, 0xf}, {1.0f, 0xf}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__sampler_options o = {.temperature = 1, .top_p = cases[i].top_p};
        assert_int_equal(drawn(o, logits, 4), cases[i].wanted);
    }
    const float flat[4] = {0}; /* of equals the lowest ids */
    assert_int_equal(drawn((sheaf__sampler_options){.temperature = 1, .top_p = 0.5f}, flat, 4),
                     0x3);
    assert_int_equal(drawn((sheaf__sampler_options){.temperature = 1, .top_p = 0.51f}, flat, 4),
                     0x7);
}

static void min_p_keeps_what_is_probable_enough_beside_the_first(void **state)
{
    (void)state;
    const float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    const struct {
        float min_p;
        uint32_t wanted;
    } cases[] = {{0.0f, 0xf},  {0.24f, 0xf}, {0.26f, 0xe}, {0.49f, 0xe},
                 {0.51f, 0xa}, {0.74f, 0xa}, {0.76f, 0x2}, {1.0f, 0x2}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__sampler_options o = {.temperature = 1, .min_p = cases[i].min_p};
        assert_int_equal(drawn(o, logits, 4), cases[i].wanted);
    }
}

static void filters_apply_in_the_stated_order(void **state)
{
    (void)state;
    const float logits[4] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.3f)};
    /* top-k first: of 0.4 and 0.3 alone the first has 0.571, so top-p 0.55 keeps one; without
     * top-k it would keep two */
    sheaf__sampler_options o = {.temperature = 1, .top_p = 0.55f};
    assert_int_equal(drawn(o, logits, 4), 0xa);
    o.top_k = 2;
    assert_int_equal(drawn(o, logits, 4), 0x2);
    /* temperature before top-p: at 4 the first has 0.30 only */
    o = (sheaf__sampler_options){.temperature = 4, .top_p = 0.35f};
    assert_int_equal(drawn(o, logits, 4), 0xa);
    o.temperature = 1;
    assert_int_equal(drawn(o, logits, 4), 0x2);
    /* min-p last: it narrows what top-p has left */
    o = (sheaf__sampler_options){.temperature = 1, .top_p = 0.85f, .min_p = 0.6f};
    assert_int_equal(drawn(o, logits, 4), 0xa);
}

static void extreme_logits_and_temperatures_are_harmless(void **state)
{
    (void)state;
    const float logits[4] = {-3.0e38f, 3.0e38f, 2.9e38f, -1.0f};
    assert_int_equal(drawn((sheaf__sampler_options){.temperature = 1e-30f}, logits, 4), 0x2);
    assert_int_equal(
        drawn((sheaf__sampler_options){.temperature = 1, .top_p = 0.9f}, logits, 4), 0x2);
    const float close[2] = {1.0f, 1.00001f};
    assert_int_equal(drawn((sheaf__sampler_options){.temperature = 1e-9f}, close, 2), 0x2);
    assert_int_equal(drawn((sheaf__sampler_options){.temperature = 1e9f}, close, 2), 0x3);
    const float one[1] = {-7};
    assert_int_equal(drawn((sheaf__sampler_options){.temperature = 1}, one, 1), 0x1);
}

/* ---- randomness -------------------------------------------------------------------------- */

/* 60,000 draws from 12 candidates: chi-square with 11 degrees of freedom is below 31.26 in
 * 99.9%. */
static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { N = 12, DRAWS = 60000 };
    float logits[N];
    double p[N], sum = 0, chi = 0;
    uint32_t count[N] = {0};
    for (uint32_t i = 0; i < N; i++) logits[i] = 0.37f * (float)(i * 7 % N) - 1.0f;
    for (uint32_t i = 0; i < N; i++) sum += p[i] = exp(logits[i] / 0.8);
    sheaf__sampler *s =
        sampler((sheaf__sampler_options){.temperature = 0.8f, .seed = 20240607}, N);
    for (uint32_t position = 0; position < DRAWS; position++)
        count[sheaf__sampler_pick(s, logits, position)]++;
    for (uint32_t i = 0; i < N; i++) {
        double expected = DRAWS * p[i] / sum, d = count[i] - expected;
        chi += d * d / expected;
    }
    assert_true(chi < 31.26);
    assert_true(chi > 1.0); /* and not suspiciously even */
    sheaf__sampler_destroy(s);
}

static void record(sheaf__sampler_options o, const float *logits, int32_t *picks, uint32_t n)
{
    sheaf__sampler *s = sampler(o, 64);
    for (uint32_t i = 0; i < n; i++) picks[i] = sheaf__sampler_pick(s, logits, i);
    sheaf__sampler_destroy(s);
}

static void a_draw_depends_on_seed_choice_and_position_alone(void **state)
{
    (void)state;
    enum { N = 200 };
    float logits[64] = {0};
    int32_t a[N], b[N];
    sheaf__sampler_options o = {.temperature = 1, .seed = 0x123456789abcdef0u};
    record(o, logits, a, N);
    record(o, logits, b, N);
    assert_memory_equal(a, b, sizeof a);
    sheaf__sampler *s = sampler(o, 64); /* any order, anything between */
    for (uint32_t i = N; i-- > 0;) {
        sheaf__sampler_pick(s, logits, i * 13 + 1000);
        assert_int_equal(sheaf__sampler_pick(s, logits, i), a[i]);
    }
    sheaf__sampler_destroy(s);
    const sheaf__sampler_options others[] = {
        {.temperature = 1, .seed = 0x123456789abcdef1u},
        {.temperature = 1, .seed = 0x023456789abcdef0u},
        {.temperature = 1, .seed = 0x123456789abcdef0u, .choice = 1}};
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t equal = 0;
        record(others[i], logits, b, N);
        for (uint32_t t = 0; t < N; t++) equal += a[t] == b[t];
        assert_true(equal < 20); /* 3 expected of 200 by chance */
    }
}

/* A committed sequence: the same on every machine, compiler and instruction set. */
static void picks_equal_the_committed_ones(void **state)
{
    (void)state;
    static const int32_t wanted[16] = {37, 44, 22, 6, 24, 35, 4,  55,
                                       55, 22, 22, 4, 4,  44, 11, 44};
    float logits[64];
    int32_t picks[16];
    for (int i = 0; i < 64; i++) logits[i] = (float)(i * 29 % 64) * 0.125f;
    record((sheaf__sampler_options){.temperature = 0.9f,
                                    .top_k = 40,
                                    .top_p = 0.95f,
                                    .min_p = 0.02f,
                                    .seed = 42,
                                    .choice = 3},
           logits, picks, 16);
    assert_memory_equal(picks, wanted, sizeof picks);
}

static void the_callers_rounding_mode_changes_nothing(void **state)
{
    (void)state;
    enum { N = 300 };
    float logits[64];
    int32_t a[N], b[N];
    for (int i = 0; i < 64; i++) logits[i] = (float)(i * 29 % 64) * 0.3f;
    sheaf__sampler_options o = {.temperature = 0.7f, .top_p = 0.9f, .seed = 5};
    record(o, logits, a, N);
    fpenv_set(ODD_FPENV);
    record(o, logits, b, N);
    fpenv_set(DEFAULT_FPENV);
    assert_memory_equal(a, b, sizeof a);
}

/* ---- bent logits ------------------------------------------------------------------------- */

static int32_t greedy_of(const float *logits, uint32_t vocab, sheaf__bending b)
{
    sheaf__sampler *s = sampler((sheaf__sampler_options){0}, vocab);
    int32_t picked = sheaf__sampler_pick_bent(s, logits, &b, 0);
    sheaf__sampler_destroy(s);
    return picked;
}

static void penalties_count_what_the_answer_has(void **state)
{
    (void)state;
    const float logits[4] = {3, 2.5f, 2, 0};
    const int32_t once[1] = {0}, often[6] = {0, 1, 1, 0, 1, 1};
    sheaf__bending b = {.presence_penalty = 0.4f, .tokens = once, .n_tokens = 1};
    assert_int_equal(greedy_of(logits, 4, b), 0);
    b.presence_penalty = 0.6f;
    assert_int_equal(greedy_of(logits, 4, b), 1);
    b.n_tokens = 0; /* nothing has been answered */
    assert_int_equal(greedy_of(logits, 4, b), 0);
    b = (sheaf__bending){.frequency_penalty = 0.3f, .tokens = often, .n_tokens = 6};
    assert_int_equal(greedy_of(logits, 4, b), 0); /* 2.4, 1.3, 2, 0 */
    b.frequency_penalty = 0.6f;
    assert_int_equal(greedy_of(logits, 4, b), 2); /* 1.8, 0.1, 2, 0 */
    b.frequency_penalty = -0.6f;
    assert_int_equal(greedy_of(logits, 4, b), 1); /* 4.2, 4.9, 2, 0 */
    b.frequency_penalty = 0;
    b.presence_penalty = 3;
    assert_int_equal(greedy_of(logits, 4, b), 2); /* the same for each, however often */
}

static void a_banned_token_is_never_picked(void **state)
{
    (void)state;
    const float logits[4] = {5, 5, -3e38f, 5}, flat[4] = {0};
    const sheaf__bias bias[4] = {{1, -100}, {0, -200}, {3, -1e30f}, {2, -100}};
    const int32_t tokens[2] = {1, 2};
    const sheaf__sampler_options hot = {.temperature = 3e38f, .seed = 4};
    sheaf__bending b = {
        .bias = bias, .n_bias = 3, .presence_penalty = 2, .tokens = tokens, .n_tokens = 2};
    assert_int_equal(greedy_of(logits, 4, b), 2);
    sheaf__sampler *s = sampler(hot, 4);
    for (uint32_t i = 0; i < 2000; i++)
        assert_int_equal(sheaf__sampler_pick_bent(s, logits, &b, i), 2);
    b.n_bias = 2;
    for (uint32_t i = 0; i < 2000; i++)
        assert_true(sheaf__sampler_pick_bent(s, flat, &b, i) >= 2);
    sheaf__sampler_destroy(s);
    b.n_bias = 4;                               /* all: none is */
    assert_int_equal(greedy_of(flat, 4, b), 1); /* -102, the others -200, -1e30 and -102 */
}

static void a_bias_is_added_before_everything(void **state)
{
    (void)state;
    const float logits[5] = {1, 9, 4, 2, 3};
    const sheaf__bias bias[2] = {{3, 100}, {0, 5}};
    const sheaf__bending b = {.bias = bias, .n_bias = 2};
    assert_int_equal(greedy_of(logits, 5, b), 3);
    sheaf__sampler *s = sampler((sheaf__sampler_options){.temperature = 1.5f, .top_k = 2}, 5);
    for (uint32_t i = 0; i < 2000; i++)
        assert_int_equal(sheaf__sampler_pick_bent(s, logits, &b, i), 3);
    sheaf__sampler_destroy(s);
}

static void bent_logits_stay_finite(void **state)
{
    (void)state;
    const float logits[3] = {FLT_MAX, FLT_MAX, -FLT_MAX};
    const sheaf__bias bias[2] = {{1, FLT_MAX}, {2, -99}};
    const int32_t tokens[3] = {0, 1, 1};
    sheaf__bending b = {.bias = bias, .n_bias = 2, .tokens = tokens, .n_tokens = 3};
    assert_int_equal(greedy_of(logits, 3, b), 0); /* equal again */
    b.frequency_penalty = -FLT_MAX;
    assert_int_equal(greedy_of(logits, 3, b), 0);
    b.frequency_penalty = FLT_MAX;
    assert_int_equal(greedy_of(logits, 3, b), 0); /* 0, -FLT_MAX, -FLT_MAX */
    sheaf__sampler *s = sampler((sheaf__sampler_options){.temperature = 1}, 3);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(sheaf__sampler_pick_bent(s, logits, &b, i), 0);
    sheaf__sampler_destroy(s);
}

enum { BENT_VOCAB = 40, BENT_TOKENS = 60 };

/* Each token by itself, looking through the whole answer. */
static void bend_naively(float *logits, const sheaf__bending *b)
{
    for (int32_t t = 0; t < BENT_VOCAB; t++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < b->n_bias; i++)
            if (b->bias[i].token == t)
                logits[t] = b->bias[i].value <= -100 ? -1e30f : logits[t] + b->bias[i].value;
        for (uint32_t i = 0; i < b->n_tokens; i++) count += b->tokens[i] == t;
        if (count != 0 && logits[t] != -1e30f)
            logits[t] = (float)((double)logits[t] - (double)b->presence_penalty -
                                (double)b->frequency_penalty * count);
    }
}

static void random_bendings_pick_as_naive_ones(void **state)
{
    (void)state;
    uint64_t random = testing_seed(20261130);
    const sheaf__sampler_options all[] = {{0},
                                          {.temperature = 1, .seed = 3},
                                          {.temperature = 0.7f, .top_p = 0.8f, .seed = 4},
                                          {.temperature = 2, .top_k = 5, .min_p = 0.1f}};
    sheaf__sampler *s = sampler(all[0], BENT_VOCAB);
    for (uint32_t round = 0; round < 20000; round++) {
        float logits[BENT_VOCAB], naive[BENT_VOCAB];
        sheaf__bias bias[BENT_VOCAB / 2];
        int32_t tokens[BENT_TOKENS];
        for (uint32_t i = 0; i < BENT_VOCAB; i++)
            naive[i] = logits[i] = (float)(testing_random(&random) % 97) * 0.11f;
        for (uint32_t i = 0; i < BENT_TOKENS; i++)
            tokens[i] = (int32_t)(testing_random(&random) % (1 + round % BENT_VOCAB));
        for (uint32_t i = 0; i < BENT_VOCAB / 2; i++) {
            float value = (float)(testing_random(&random) % 120) * 0.1f - 6;
            bias[i] = (sheaf__bias){(int32_t)(2 * i), i % 5 == 0 ? -100 : value};
        }
        sheaf__bending b = {bias, 0, 0, 0, tokens, 0};
        if (round % 2 != 0) b.n_bias = (uint32_t)(testing_random(&random) % (BENT_VOCAB / 2));
        if (round % 3 != 0) b.presence_penalty = (float)(testing_random(&random) % 40) / 7 - 2;
        if (round % 5 != 0) b.frequency_penalty = (float)(testing_random(&random) % 9) / 7;
        b.n_tokens = (uint32_t)(testing_random(&random) % BENT_TOKENS);
        bend_naively(naive, &b);
        assert_int_equal(sheaf__sampler_set(s, &all[round % 4]), SHEAF_OK);
        int32_t bent = sheaf__sampler_pick_bent(s, logits, &b, round);
        assert_int_equal(bent, sheaf__sampler_pick(s, naive, round));
    }
    sheaf__sampler_destroy(s);
}

static void the_rounding_mode_does_not_bend(void **state)
{
    (void)state;
    float logits[64];
    int32_t tokens[64], a[300], b[300];
    sheaf__bias bias[64];
    for (int32_t i = 0; i < 64; i++) {
        logits[i] = (float)(i * 29 % 64) * 0.3f;
        tokens[i] = i * i % 50;
        bias[i] = (sheaf__bias){i, (float)i / 3};
    }
    const sheaf__bending bending = {bias, 64, 0.1f, 0.7f, tokens, 64};
    sheaf__sampler *s = sampler((sheaf__sampler_options){.temperature = 4, .seed = 5}, 64);
    for (uint32_t i = 0; i < 300; i++) a[i] = sheaf__sampler_pick_bent(s, logits, &bending, i);
    fpenv_set(ODD_FPENV);
    for (uint32_t i = 0; i < 300; i++) b[i] = sheaf__sampler_pick_bent(s, logits, &bending, i);
    fpenv_set(DEFAULT_FPENV);
    assert_memory_equal(a, b, sizeof a);
    sheaf__sampler_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_its_known_answers),
        cmocka_unit_test(options_outside_their_range_are_refused),
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_among_equals),
        cmocka_unit_test(top_k_keeps_the_first_k_and_of_equals_the_lowest_ids),
        cmocka_unit_test(top_p_keeps_the_fewest_that_reach_the_sum),
        cmocka_unit_test(min_p_keeps_what_is_probable_enough_beside_the_first),
        cmocka_unit_test(filters_apply_in_the_stated_order),
        cmocka_unit_test(extreme_logits_and_temperatures_are_harmless),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(a_draw_depends_on_seed_choice_and_position_alone),
        cmocka_unit_test(picks_equal_the_committed_ones),
        cmocka_unit_test(the_callers_rounding_mode_changes_nothing),
        cmocka_unit_test(penalties_count_what_the_answer_has),
        cmocka_unit_test(a_banned_token_is_never_picked),
        cmocka_unit_test(a_bias_is_added_before_everything),
        cmocka_unit_test(bent_logits_stay_finite),
        cmocka_unit_test(random_bendings_pick_as_naive_ones),
        cmocka_unit_test(the_rounding_mode_does_not_bend),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
