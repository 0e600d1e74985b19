/* engine/logprobs.c - the log-probability of a token, and of the likeliest ones beside it. */
#include "engine/logprobs.h"

#include <float.h>
#include <stdbool.h>

#include "base/dmath.h"
#include "base/fmath.h"
#include "base/fpenv.h"
#include "base/status.h"

/* The n likeliest ids, the likeliest first, equal ones by id; n at most vocab. Most tokens are compared
 * with the last of them and left. */
static void find_top(const float *logits, uint32_t vocab, uint32_t n, uint32_t *top)
{
    uint32_t held = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        if (held == n && !(logits[id] > logits[top[n - 1]])) continue;
        uint32_t at = held < n ? held++ : n - 1;
        for (; at != 0 && logits[id] > logits[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = id;
    }
}

/* log(sum of exp(logit - largest)): at least 0, the largest one's share being 1. */
SHEAF__WITH_FMA static double log_of_sum(const float *logits, uint32_t vocab, float largest)
{
    double sum = 0;
    for (uint32_t id = 0; id < vocab; id++) sum += sheaf__expf(logits[id] - largest);
    return sheaf__dlog(sum);
}

/* Logits of both signs near the end of what a float holds are further apart than one can hold. */
static float logprob_of(float logit, double normalizer)
{
    double value = (double)logit - normalizer;
    return value < -(double)FLT_MAX ? -FLT_MAX : (float)value;
}

void sheaf__logprobs_of(const float *logits, uint32_t vocab, int32_t token, uint32_t n_top,
                        sheaf__logprobs *out)
{
    SHEAF__ASSERT(token >= 0 && (uint32_t)token < vocab && n_top <= SHEAF__MAX_TOP);
    uint64_t saved = sheaf__fpenv_enter();
    uint32_t top[SHEAF__MAX_TOP];
    out->n_top = n_top < vocab ? n_top : vocab;
    find_top(logits, vocab, out->n_top == 0 ? 1 : out->n_top, top);
    float largest = logits[top[0]];
    double normalizer = (double)largest + log_of_sum(logits, vocab, largest);
    out->value = logprob_of(logits[token], normalizer);
    for (uint32_t i = 0; i < out->n_top; i++) {
        out->top[i].token = (int32_t)top[i];
        out->top[i].value = logprob_of(logits[top[i]], normalizer);
    }
    sheaf__fpenv_leave(saved);
}
