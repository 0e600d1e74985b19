/* tests/attn/test_reference.c - the oracle against a softmax written here, and the fast paths
 * against the oracle.
 *
 * Bound of the fast paths: relative error (norm of the difference over norm) below 1e-6 in f32
 * arithmetic, whatever the codec, since widening is exact and both read the same stored numbers.
 */
#include "attn/fixture.h"

#define ORACLE_BOUND 1e-7 /* the oracle rounds once, to f32 */
#define FAST_BOUND   1e-6

/* One query row over all positions, each weighed or not: weights first, in one pass per use. */
static void naive_row(const sheaf_attn_options *o, const numbers *n, const float *q,
                      uint32_t head, uint32_t pos, double *weights, float *out)
{
    uint32_t group = o->n_q_heads / o->n_kv_heads;
    double scale = o->scale != 0.0f ? (double)o->scale : 1.0 / sqrt(n->key_dim), total = 0.0;
    for (uint32_t p = 0; p < n->n_tokens; p++) {
        weights[p] = 0.0;
        if (!o->not_causal && p > pos) continue;
        if (o->window != 0 && p + o->window <= pos) continue;
        double s = 0.0;
        for (uint32_t d = 0; d < n->key_dim; d++)
            s += (double)q[d] * (double)stored(n->codec_k, key_number(n, p, head / group, d));
        s *= scale;
        if (o->softcap != 0.0f) s = (double)o->softcap * tanh(s / (double)o->softcap);
        weights[p] = exp(s); /* the numbers here are small enough without a maximum */
        total += weights[p];
    }
    if (o->sinks != NULL) total += exp((double)o->sinks[head]);
    for (uint32_t d = 0; d < n->value_dim; d++) {
        double sum = 0.0;
        for (uint32_t p = 0; p < n->n_tokens; p++)
            sum += weights[p] / total *
                   (double)stored(n->codec_v, value_number(n, p, head / group, d));
        out[d] = (float)sum;
    }
}

static float *naive(const sheaf_attn_options *o, const numbers *n, const float *q)
{
    size_t rows = (size_t)n->n_tokens * o->n_q_heads;
    float *out = malloc(rows * n->value_dim * sizeof *out);
    double *weights = malloc(n->n_tokens * sizeof *weights);
    for (size_t r = 0; r < rows; r++)
        naive_row(o, n, q + r * n->key_dim, (uint32_t)(r % o->n_q_heads),
                  (uint32_t)(r / o->n_q_heads), weights, out + r * n->value_dim);
    free(weights);
    return out;
}

static const float sinks[6] = {0.5f, -3.0f, 4.0f, 0.0f, -100.0f, 7.0f};

/* Case i of a spread over all options. */
static void make_case(uint32_t i, numbers *n, sheaf_attn_options *o)
{
    *n = (numbers){300 + i, 290, 2, i % 2 ? 64 : 20, i % 3 ? 32 : 10, i % 3, (i + i / 3) % 3};
    *o = (sheaf_attn_options)SHEAF_ATTN_OPTIONS_INIT;
    o->n_q_heads = 6;
    o->n_kv_heads = 2;
    o->key_dim = n->key_dim;
    o->value_dim = n->value_dim;
    o->window = i % 4 == 1 ? 40 : i % 4 == 2 ? 256 : 0;
    o->softcap = i % 5 == 2 ? 3.0f : 0.0f;
    o->scale = i % 3 == 1 ? 0.2f : 0.0f;
    o->not_causal = i % 6 == 5;
    o->sinks = i % 4 < 2 ? sinks : NULL;
}

#define N_CASES 12

static void the_reference_agrees_with_a_plain_softmax(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_CASES; i++) {
        numbers n;
        sheaf_attn_options o;
        make_case(i, &n, &o);
        o.path = SHEAF_ATTN_REFERENCE;
        float *q = queries(&n, o.n_q_heads, 0, n.n_tokens), *want = naive(&o, &n, q);
        sheaf_attn_item item = {n.n_tokens, 0, n.n_tokens, 0};
        for (uint32_t shuffled = 0; shuffled < 2; shuffled++) {
            layout l = layout_make(&n, (shape){16, 0, shuffled});
            float *out = attend(&o, NULL, &item, 1, &l.view, q);
            double error =
                relative_error(out, want, (uint64_t)n.n_tokens * o.n_q_heads * n.value_dim);
            if (error >= ORACLE_BOUND) fail_msg("case %u: relative error %g", i, error);
            free(out);
            layout_free(&l);
        }
        free(want);
        free(q);
    }
}

static void the_fast_paths_are_within_the_bound_of_the_reference(void **state)
{
    (void)state;
    uint32_t isas[4], n_isas = isas_here(isas);
    double worst = 0.0;
    for (uint32_t i = 0; i < N_CASES; i++) {
        numbers n;
        sheaf_attn_options o;
        make_case(i, &n, &o);
        float *q = queries(&n, o.n_q_heads, 0, n.n_tokens);
        sheaf_attn_item item = {n.n_tokens, 0, n.n_tokens, 0};
        layout l = layout_make(&n, (shape){32, 0, 1});
        o.path = SHEAF_ATTN_REFERENCE;
        float *want = attend(&o, NULL, &item, 1, &l.view, q);
        for (uint32_t j = 0; j < n_isas; j++) {
            o.isa = isas[j];
            o.path = SHEAF_ATTN_FUSED;
            float *out = attend(&o, NULL, &item, 1, &l.view, q);
            double error =
                relative_error(out, want, (uint64_t)n.n_tokens * o.n_q_heads * n.value_dim);
            if (error >= FAST_BOUND) fail_msg("case %u: relative error %g", i, error);
            if (error > worst) worst = error;
            free(out);
        }
        free(want);
        layout_free(&l);
        free(q);
    }
    fprintf(stderr, "# worst relative error %.2g\n", worst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_agrees_with_a_plain_softmax),
        cmocka_unit_test(the_fast_paths_are_within_the_bound_of_the_reference),
    };
    return cmocka_run_group_tests_name("test_reference", tests, NULL, NULL);
}
