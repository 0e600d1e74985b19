/* engine/logprobs.h - the log-probability of a token, and of the likeliest ones beside it.
 *
 * Owns: the definition, in an order of its own, so that the same numbers come out on every machine.
 * Of the model's logits as they are: before temperature, penalties, bias and filters. A function of the
 * row of logits alone.
 */
#ifndef SHEAF_ENGINE_LOGPROBS_H
#define SHEAF_ENGINE_LOGPROBS_H

#include "sheaf/status.h"

#define SHEAF__MAX_TOP 20

typedef struct sheaf__logprobs {
    float value; /* of the token itself: at most 0 */
    uint32_t n_top;
    struct {
        int32_t token;
        float value;
    } top[SHEAF__MAX_TOP]; /* [n_top], the likeliest first, equal ones by id */
} sheaf__logprobs;

/* logits: [vocab], finite; token below vocab; n_top at most SHEAF__MAX_TOP, and fewer are told where the
 * vocabulary is smaller.
 *   logit - (largest + log(sum of exp(logit - largest)))
 * by base/fmath.h and base/dmath.h, summed in double over ascending ids. Allocates nothing. */
void sheaf__logprobs_of(const float *logits, uint32_t vocab, int32_t token, uint32_t n_top,
                        sheaf__logprobs *out);

#endif
