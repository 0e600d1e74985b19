/* tests/engine/test_logprobs.c - log-probabilities against sums in long double. */
#include "testing.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "engine/logprobs.h"
#include "odd_fpenv.h"

static long double naive(const float *logits, uint32_t vocab, uint32_t token)
{
    long double largest = logits[0], sum = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > largest) largest = logits[i];
    for (uint32_t i = 0; i < vocab; i++) sum += expl((long double)logits[i] - largest);
    return (long double)logits[token] - (largest + logl(sum));
}

/* Is a likelier than b, or first among equals? */
static bool before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* All of them, the likeliest first. */
static void rank(const float *logits, uint32_t vocab, uint32_t *ids)
{
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t at = i;
        for (; at != 0 && before(logits, i, ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

static void check_near(float value, long double wanted)
{
    assert_true(value <= 0);
    assert_true(fabsl((long double)value - wanted) <= 3e-7L + fabsl(wanted) * 1.2e-7L);
}

static void random_rows_give_what_long_double_gives(void **state)
{
    (void)state;
    enum { MOST = 700 };
    uint64_t random = testing_seed(20261130);
    float logits[MOST];
    uint32_t ids[MOST];
    for (int round = 0; round < 400; round++) {
        uint32_t vocab = 1 + (uint32_t)(testing_random(&random) % MOST);
        uint32_t n_top = (uint32_t)(testing_random(&random) % (SHEAF__MAX_TOP + 1));
        uint32_t token = (uint32_t)(testing_random(&random) % vocab);
        bool coarse = testing_random(&random) % 2 == 0; /* then many are equal */
        float scale = (float)(1 + testing_random(&random) % 40);
        for (uint32_t i = 0; i < vocab; i++) {
            float unit = (float)(testing_random(&random) >> 40) * 0x1p-24f;
            logits[i] = coarse ? floorf(unit * 8) * scale / 8 : (unit - 0.5f) * scale;
        }
        sheaf__logprobs out;
        sheaf__logprobs_of(logits, vocab, (int32_t)token, n_top, &out);
        rank(logits, vocab, ids);
        check_near(out.value, naive(logits, vocab, token));
        assert_int_equal(out.n_top, n_top < vocab ? n_top : vocab);
        for (uint32_t i = 0; i < out.n_top; i++) {
            assert_int_equal(out.top[i].token, ids[i]);
            check_near(out.top[i].value, naive(logits, vocab, ids[i]));
            if (ids[i] == token) assert_true(out.top[i].value == out.value);
        }
    }
}

static void equal_tokens_are_told_by_id(void **state)
{
    (void)state;
    const float logits[6] = {-0.0f, 1, 0, 1, -0.0f, 1};
    const int32_t wanted[6] = {1, 3, 5, 0, 2, 4};
    sheaf__logprobs out;
    for (uint32_t n = 0; n <= 6; n++) {
        sheaf__logprobs_of(logits, 6, 0, n, &out);
        assert_int_equal(out.n_top, n);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(out.top[i].token, wanted[i]);
    }
}

static void no_more_are_told_than_there_are(void **state)
{
    (void)state;
    const float logits[3] = {1, 3, 2};
    sheaf__logprobs out;
    sheaf__logprobs_of(logits, 3, 1, SHEAF__MAX_TOP, &out);
    assert_int_equal(out.n_top, 3);
    assert_int_equal(out.top[0].token, 1);
    assert_int_equal(out.top[2].token, 0);
    sheaf__logprobs_of(logits, 1, 0, 5, &out); /* a vocabulary of one token is sure of it */
    assert_int_equal(out.n_top, 1);
    assert_true(out.value == 0 && out.top[0].value == 0);
}

static void finite_logits_give_finite_numbers(void **state)
{
    (void)state;
    const float apart[3] = {-FLT_MAX, FLT_MAX, FLT_MAX}, far[2] = {-1e4f, 1e4f},
                low[2] = {-FLT_MAX, -FLT_MAX};
    sheaf__logprobs out;
    sheaf__logprobs_of(apart, 3, 0, 3, &out);
    assert_true(out.value == -FLT_MAX && out.top[2].value == -FLT_MAX);
    assert_true(out.top[0].value <= 0 && isfinite(out.top[0].value));
    sheaf__logprobs_of(far, 2, 0, 1, &out);
    assert_true(out.value == -2e4f && out.top[0].value == 0);
    sheaf__logprobs_of(low, 2, 1, 0, &out);
    assert_true(out.value <= 0 && isfinite(out.value));
}

/* The same on every machine, compiler and instruction set. */
static void numbers_equal_the_committed_ones(void **state)
{
    (void)state;
    float logits[1000];
    for (int i = 0; i < 1000; i++) logits[i] = (float)(i * 377 % 1000) * 0.013f - 4;
    sheaf__logprobs out;
    sheaf__logprobs_of(logits, 1000, 17, 2, &out);
    assert_true(out.value == -0x1.809e14p+3f);
    assert_true(out.top[0].value == -0x1.165aep+2f);
    assert_true(out.top[1].value == -0x1.172fep+2f);
}

static void the_callers_rounding_mode_changes_nothing(void **state)
{
    (void)state;
    float logits[500];
    for (int i = 0; i < 500; i++) logits[i] = (float)(i * 29 % 64) * 0.3f;
    sheaf__logprobs a = {0}, b = {0};
    for (int32_t token = 0; token < 500; token += 7) {
        sheaf__logprobs_of(logits, 500, token, 20, &a);
        fpenv_set(ODD_FPENV);
        sheaf__logprobs_of(logits, 500, token, 20, &b);
        uint32_t now = fpenv_now();
        fpenv_set(DEFAULT_FPENV);
        assert_int_equal(now, ODD_FPENV);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_give_what_long_double_gives),
        cmocka_unit_test(equal_tokens_are_told_by_id),
        cmocka_unit_test(no_more_are_told_than_there_are),
        cmocka_unit_test(finite_logits_give_finite_numbers),
        cmocka_unit_test(numbers_equal_the_committed_ones),
        cmocka_unit_test(the_callers_rounding_mode_changes_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
