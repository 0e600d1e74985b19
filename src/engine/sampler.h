/* engine/sampler.h - from logits to a token.
 *
 * Owns: temperature, top-k, top-p, min-p and the random numbers. The generator is counter-based
 * (Philox 4x32-10), keyed by seed and choice, its counter the position: what is drawn depends on
 * nothing that ran before.
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

typedef struct sheaf__sampler sheaf__sampler;

/* SHEAF_E_INVALID: a value outside its range (temperature >= 0, 0 <= top_p <= 1, 0 <= min_p <= 1). */
sheaf_status sheaf__sampler_create(const sheaf__sampler_options *options, uint32_t vocab,
                                   sheaf__memory *memory, sheaf__sampler **out);
void sheaf__sampler_destroy(sheaf__sampler *s);

/* The token after position `position` (that of the last token in the sequence). logits: [vocab], finite.
 * Order: top-k, temperature, top-p, min-p, draw. Allocates nothing. */
int32_t sheaf__sampler_pick(sheaf__sampler *s, const float *logits, uint32_t position);

#endif
