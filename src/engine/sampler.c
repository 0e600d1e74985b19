/* engine/sampler.c - from logits to a token.
 *
 * Candidates are ranked by one integer each, the rank: the logit's bits, turned so that they
 * order as the numbers do, above the id's complement; a larger rank is a better candidate and
 * no two are equal. All filters keep a run from the top of that ranking, so what is left is
 * told by the rank of its last member alone, the cutoff: no list of survivors is needed, and
 * sums can run over ascending ids, which is an order that no sorting touches. Ranking itself is
 * by a heap that is popped only as far as a filter has to look: top-p of a sure model looks at
 * a few tokens, not at the vocabulary.
 */
#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/fmath.h"
#include "base/fpenv.h"
#include "base/status.h"

#define PHILOX_M0     0xD2511F53u
#define PHILOX_M1     0xCD9E8D57u
#define PHILOX_W0     0x9E3779B9u
#define PHILOX_W1     0xBB67AE85u
#define PHILOX_ROUNDS 10

struct sheaf__sampler {
    sheaf__sampler_options options;
    uint32_t vocab;
    sheaf__memory *memory;
    float *weight; /* [vocab] exp((logit - largest) / temperature); 1 for the largest */
    float *bent;   /* [vocab] the logits, where something bends them */
    uint64_t
        *heap; /* [n_heap] of [vocab] ranks, the best first; before that, counts of tokens */
    uint32_t n_heap;
};

#define KEEP_ALL 0 /* the cutoff below all ranks */

#define BANNED (-100.0f) /* by a bias of this or less */

void sheaf__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* ---- life -------------------------------------------------------------------------------- */

static bool options_valid(const sheaf__sampler_options *o)
{
    return o->temperature >= 0 && isfinite(o->temperature) && o->top_p >= 0 && o->top_p <= 1 &&
           o->min_p >= 0 && o->min_p <= 1;
}

sheaf_status sheaf__sampler_create(const sheaf__sampler_options *options, uint32_t vocab,
                                   sheaf__memory *memory, sheaf__sampler **out)
{
    if (vocab == 0 || vocab > INT32_MAX || !options_valid(options)) return SHEAF_E_INVALID;
    sheaf__sampler *s = sheaf__memory_alloc(memory, 1, sizeof *s);
    if (s == NULL) return SHEAF_E_NO_MEMORY;
    s->options = *options;
    s->vocab = vocab;
    s->memory = memory;
    s->weight = sheaf__memory_alloc(memory, vocab, sizeof *s->weight);
    s->bent = sheaf__memory_alloc(memory, vocab, sizeof *s->bent);
    s->heap = sheaf__memory_alloc(memory, vocab, sizeof *s->heap);
    if (s->weight == NULL || s->bent == NULL || s->heap == NULL) {
        sheaf__sampler_destroy(s);
        return SHEAF_E_NO_MEMORY;
    }
    *out = s;
    return SHEAF_OK;
}

void sheaf__sampler_destroy(sheaf__sampler *s)
{
    if (s == NULL) return;
    sheaf__memory_free(s->memory, s->weight, s->vocab, sizeof *s->weight);
    sheaf__memory_free(s->memory, s->bent, s->vocab, sizeof *s->bent);
    sheaf__memory_free(s->memory, s->heap, s->vocab, sizeof *s->heap);
    sheaf__memory_free(s->memory, s, 1, sizeof *s);
}

sheaf_status sheaf__sampler_check(const sheaf__sampler_options *options)
{
    return options_valid(options) ? SHEAF_OK : SHEAF_E_INVALID;
}

sheaf_status sheaf__sampler_set(sheaf__sampler *s, const sheaf__sampler_options *options)
{
    SHEAF__TRY(sheaf__sampler_check(options));
    s->options = *options;
    return SHEAF_OK;
}

/* ---- bending ----------------------------------------------------------------------------- */

static bool penalises(const sheaf__bending *b)
{
    return b->n_tokens != 0 && (b->presence_penalty != 0 || b->frequency_penalty != 0);
}

static float finite_of(double logit)
{
    if (logit > (double)FLT_MAX) return FLT_MAX;
    return logit < -(double)FLT_MAX ? -FLT_MAX : (float)logit;
}

/* What is banned gets minus infinity, which has no weight. */
static void add_bias(sheaf__sampler *s, const sheaf__bending *b)
{
    uint32_t n_banned = 0;
    for (uint32_t i = 0; i < b->n_bias; i++) n_banned += b->bias[i].value <= BANNED;
    for (uint32_t i = 0; i < b->n_bias; i++) {
        float *logit = &s->bent[b->bias[i].token];
        if (b->bias[i].value <= BANNED && n_banned < s->vocab)
            *logit = -INFINITY;
        else
            *logit = finite_of((double)*logit + (double)b->bias[i].value);
    }
}

static void take_penalties(sheaf__sampler *s, const sheaf__bending *b)
{
    uint64_t *count = s->heap; /* [vocab], good where a token of the answer is */
    for (uint32_t i = 0; i < b->n_tokens; i++) count[b->tokens[i]] = 0;
    for (uint32_t i = 0; i < b->n_tokens; i++) count[b->tokens[i]]++;
    for (uint32_t i = 0; i < b->n_tokens; i++) {
        uint32_t token = (uint32_t)b->tokens[i];
        if (count[token] == 0 || s->bent[token] == -INFINITY) continue;
        s->bent[token] = finite_of((double)s->bent[token] - (double)b->presence_penalty -
                                   (double)b->frequency_penalty * (double)count[token]);
        count[token] = 0; /* once for each */
    }
}

/* ---- ranking ----------------------------------------------------------------------------- */

static inline uint64_t rank_of(const float *logits, uint32_t id)
{
    uint32_t bits = sheaf__bits_of_f32(logits[id] + 0.0f); /* + 0: -0 ties with +0 */
    uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)ordered << 32 | ~id;
}

static inline uint32_t id_of(uint64_t rank)
{
    return ~(uint32_t)rank;
}

static void heap_sink(sheaf__sampler *s, uint32_t at)
{
    uint64_t *heap = s->heap, rank = heap[at];
    for (;;) {
        uint64_t child = 2ull * at + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && heap[child + 1] > heap[child]) child++;
        if (heap[child] < rank) break;
        heap[at] = heap[child];
        at = (uint32_t)child;
    }
    heap[at] = rank;
}

/* A heap of all candidates down to the cutoff. */
static void heap_fill(sheaf__sampler *s, const float *logits, uint64_t cutoff)
{
    s->n_heap = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        uint64_t rank = rank_of(logits, i);
        if (rank >= cutoff) s->heap[s->n_heap++] = rank;
    }
    for (uint32_t i = s->n_heap / 2; i-- > 0;) heap_sink(s, i);
}

static uint64_t heap_pop(sheaf__sampler *s)
{
    uint64_t top = s->heap[0];
    s->heap[0] = s->heap[--s->n_heap];
    if (s->n_heap != 0) heap_sink(s, 0);
    return top;
}

static uint32_t find_largest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* ---- filters ----------------------------------------------------------------------------- */

static uint64_t keep_top_k(sheaf__sampler *s, const float *logits)
{
    uint64_t cutoff = KEEP_ALL;
    if (s->options.top_k == 0 || s->options.top_k >= s->vocab) return cutoff;
    heap_fill(s, logits, cutoff);
    for (uint32_t i = 0; i < s->options.top_k; i++) cutoff = heap_pop(s);
    return cutoff;
}

/* Weights of the candidates down to the cutoff, 0 for the others; returns their sum. */
SHEAF__WITH_FMA static double weigh(sheaf__sampler *s, const float *logits, float largest,
                                    uint64_t cutoff)
{
    const float temperature = s->options.temperature;
    double sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        float w = 0;
        if (rank_of(logits, i) >= cutoff) w = sheaf__expf((logits[i] - largest) / temperature);
        s->weight[i] = w;
        sum += w;
    }
    return sum;
}

/* Raises the cutoff so that the fewest candidates are left that hold top_p of `sum`. */
static uint64_t keep_top_p(sheaf__sampler *s, const float *logits, double sum, uint64_t cutoff)
{
    if (s->options.top_p == 0 || s->options.top_p == 1) return cutoff;
    heap_fill(s, logits, cutoff);
    double wanted = (double)s->options.top_p * sum, held = 0;
    while (s->n_heap != 0 && held < wanted) {
        cutoff = heap_pop(s);
        held += s->weight[id_of(cutoff)];
    }
    return cutoff;
}

/* Takes away the weights below the cutoff or min_p; returns the sum of what is left. */
static double narrow(sheaf__sampler *s, const float *logits, uint64_t cutoff)
{
    double sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (s->weight[i] < s->options.min_p || rank_of(logits, i) < cutoff) s->weight[i] = 0;
        sum += s->weight[i];
    }
    return sum;
}

/* ---- drawing ----------------------------------------------------------------------------- */

/* A number in [0, 1), of 53 bits. */
static double draw_unit(const sheaf__sampler_options *o, uint32_t position)
{
    const uint32_t counter[4] = {position, o->choice, 0, 0};
    const uint32_t key[2] = {(uint32_t)o->seed, (uint32_t)(o->seed >> 32)};
    uint32_t bits[4];
    sheaf__philox(counter, key, bits);
    uint64_t wide = ((uint64_t)bits[0] << 32 | bits[1]) >> 11;
    return (double)wide * 0x1p-53;
}

/* The first id whose running sum passes a share `u` of the whole. */
static uint32_t draw(const sheaf__sampler *s, double u, double sum)
{
    double wanted = u * sum, held = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (s->weight[i] == 0) continue;
        held += s->weight[i];
        last = i;
        if (held > wanted) break;
    }
    return last;
}

static uint32_t pick(sheaf__sampler *s, const float *logits, uint32_t position)
{
    uint32_t best = find_largest(logits, s->vocab);
    if (s->options.temperature == 0) return best;
    uint64_t cutoff = keep_top_k(s, logits);
    double sum = weigh(s, logits, logits[best], cutoff);
    cutoff = keep_top_p(s, logits, sum, cutoff);
    sum = narrow(s, logits, cutoff);
    return draw(s, draw_unit(&s->options, position), sum);
}

int32_t sheaf__sampler_pick(sheaf__sampler *s, const float *logits, uint32_t position)
{
    uint64_t saved = sheaf__fpenv_enter();
    uint32_t picked = pick(s, logits, position);
    sheaf__fpenv_leave(saved);
    return (int32_t)picked;
}

int32_t sheaf__sampler_pick_bent(sheaf__sampler *s, const float *logits,
                                 const sheaf__bending *bending, uint32_t position)
{
    bool penalty = penalises(bending);
    if (bending->n_bias == 0 && !penalty) return sheaf__sampler_pick(s, logits, position);
    uint64_t saved = sheaf__fpenv_enter();
    memcpy(s->bent, logits, s->vocab * sizeof *logits);
    add_bias(s, bending);
    if (penalty) take_penalties(s, bending);
    uint32_t picked = pick(s, s->bent, position);
    sheaf__fpenv_leave(saved);
    return (int32_t)picked;
}
