/* engine/sampler.h - from logits to a token.
 *
 * Owns: bias and penalties, temperature, top-k, top-p, min-p and the random numbers. The generator
 * is counter-based (Philox 4x32-10), keyed by seed and choice, its counter the position: what is drawn
 * depends on nothing that ran before.
 */
#ifndef SHEAF_ENGINE_SAMPLER_H
#define SHEAF_ENGINE_SAMPLER_H

#include "base/memory.h"

typedef struct sheaf__sampler_options {
    float temperature; /* 0: greedy, the lowest id among equal logits */
    float top_p;       /* 0 or 1: off */
    float min_p;       /* 0: off */
    uint32_t top_k;    /* 0: off */
    uint64_t seed;
    uint32_t choice; /* index of the answer among the n of one request */
} sheaf__sampler_options;

/* What is added to the logit of a token wherever it might be picked. */
typedef struct sheaf__bias {
    int32_t token; /* below the vocabulary, each at most once */
    float value;   /* finite; -100 and less: never picked */
} sheaf__bias;

/* What bends the logits before anything else is done with them. */
typedef struct sheaf__bending {
    const sheaf__bias *bias; /* [n_bias] */
    uint32_t n_bias;
    float presence_penalty;  /* finite, as the next */
    float frequency_penalty; /* times how often a token is among `tokens` */
    const int32_t *tokens;   /* [n_tokens]: the answer so far, without its prompt */
    uint32_t n_tokens;
} sheaf__bending;

typedef struct sheaf__sampler sheaf__sampler;

/* SHEAF_E_INVALID: a value outside its range (temperature >= 0 and finite, 0 <= top_p <= 1,
 * 0 <= min_p <= 1), or an empty vocabulary. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__sampler_create(const sheaf__sampler_options *options, uint32_t vocab,
                                   sheaf__memory *memory, sheaf__sampler **out);
void sheaf__sampler_destroy(sheaf__sampler *s);

/* SHEAF_E_INVALID: a value outside its range. Any thread. */
sheaf_status sheaf__sampler_check(const sheaf__sampler_options *options);

/* Picks by other options from now on: one sampler serves any number of answers in turn.
 * SHEAF_E_INVALID: as above, and nothing has changed. */
sheaf_status sheaf__sampler_set(sheaf__sampler *s, const sheaf__sampler_options *options);

/* The token after position `position` (that of the last token in the sequence). logits:
 * [vocab], finite. Order: top-k, temperature, top-p, min-p, draw. Allocates nothing. Candidates
 * are ranked by logit, equal ones by id; each filter keeps a run from the top of that ranking,
 * never less than one:
 *   top-k  the first k
 *   top-p  the fewest whose probabilities sum to at least top_p
 *   min-p  those at least min_p times as probable as the first
 * Probabilities are exp((logit - largest) / temperature) by base/fmath.h, summed in double over
 * ascending ids, so the same token comes out on every machine. */
int32_t sheaf__sampler_pick(sheaf__sampler *s, const float *logits, uint32_t position);

/* The same of bent logits; greedy too. In double, each line rounded to float and kept finite:
 *     logit + bias
 *     logit - presence_penalty - frequency_penalty * count    where count is not 0
 * A token that is banned by its bias is not picked, unless all are: then none is banned.
 * O(vocab + n_bias + n_tokens). Allocates nothing. */
int32_t sheaf__sampler_pick_bent(sheaf__sampler *s, const float *logits,
                                 const sheaf__bending *bending, uint32_t position);

/* Ten rounds of Philox 4x32 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1,
 * 2, 3). */
void sheaf__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
