/* tests/attn/test_reference.c - the oracle against a softmax written here, and the fast paths
 * against the oracle.
 *
 * Bounds of the fast paths: relative error (norm of the difference over norm) below 1e-6 in f32
 * arithmetic where the keys are raw, whatever the values, since both read the same stored numbers;
 * below 5e-5 where the keys are quantized: the query is rounded to 16 bits then. The reference reads
 * what sheaf_codec_decode gives: turbo4 rotated back, and rounded by that.
 */
#include "attn/fixture.h"

#define ORACLE_BOUND 1e-7 /* the oracle rounds once, to f32 */
#define FAST_BOUND   1e-6
#define LEVELS_BOUND 5e-5

/* The numbers of one KV head as the codec stores them: [n_tokens, dim] */
static double *stored_numbers(const numbers *n, int is_value, uint32_t kv_head)
{
    uint32_t dim = is_value ? n->value_dim : n->key_dim;
    uint32_t codec = is_value ? n->codec_v : n->codec_k;
    double *all = malloc((size_t)n->n_tokens * dim * sizeof *all), *to = all;
    for (uint32_t p = 0; p < n->n_tokens; p++) {
        float row[64];
        unsigned char segment[64 * 4 + 4];
        if (is_value)
            value_row(n, p, kv_head, row);
        else
            key_row(n, p, kv_head, row);
        assert_int_equal(
            sheaf_codec_encode(codec, segment, 1, dim, 0, 1, SHEAF_DTYPE_F32, row, dim),
            SHEAF_OK);
        assert_int_equal(sheaf_codec_decode(codec, segment, 1, dim, 0, 1, row), SHEAF_OK);
        for (uint32_t d = 0; d < dim; d++) *to++ = (double)row[d];
    }
    return all;
}

/* One query row over all positions, each weighed or not. k, v: [n_tokens, dim] */
static void naive_row(const sheaf_attn_options *o, const numbers *n, const float *q,
                      uint32_t head, uint32_t pos, const double *k, const double *v, float *out)
{
    double scale = o->scale != 0.0f ? (double)o->scale : 1.0 / sqrt(n->key_dim), total = 0.0;
    double sums[64] = {0};
    for (uint32_t p = 0; p < n->n_tokens; p++) {
        if (!o->not_causal && p > pos) continue;
        if (o->window != 0 && p + o->window <= pos) continue;
        double s = 0.0;
        for (uint32_t d = 0; d < n->key_dim; d++)
            s += (double)q[d] * k[(size_t)p * n->key_dim + d];
        s *= scale;
        if (o->softcap != 0.0f) s = (double)o->softcap * tanh(s / (double)o->softcap);
        double weight = exp(s); /* the numbers here are small enough without a maximum */
        total += weight;
        for (uint32_t d = 0; d < n->value_dim; d++)
            sums[d] += weight * v[(size_t)p * n->value_dim + d];
    }
    if (o->sinks != NULL) total += exp((double)o->sinks[head]);
    for (uint32_t d = 0; d < n->value_dim; d++) out[d] = (float)(sums[d] / total);
}

/* q: [count, n_q_heads, key_dim], of the last `count` positions. */
static float *naive(const sheaf_attn_options *o, const numbers *n, const float *q,
                    uint32_t count)
{
    uint32_t group = o->n_q_heads / o->n_kv_heads;
    float *out = malloc((size_t)count * o->n_q_heads * n->value_dim * sizeof *out);
    for (uint32_t head = 0; head < o->n_q_heads; head++) {
        double *k = stored_numbers(n, 0, head / group), *v = stored_numbers(n, 1, head / group);
        for (uint32_t i = 0; i < count; i++) {
            size_t row = (size_t)i * o->n_q_heads + head;
            naive_row(o, n, q + row * n->key_dim, head, n->n_tokens - count + i, k, v,
                      out + row * n->value_dim);
        }
        free(k), free(v);
    }
    return out;
}

static const float sinks[6] = {0.5f, -3.0f, 4.0f, 0.0f, -100.0f, 7.0f};

/* Case i of a spread over all options. */
static void make_case(uint32_t i, numbers *n, sheaf_attn_options *o)
{
    *n = (numbers){300 + i, i % 4 < 3 ? 1500 : 40, 2, i % 2 ? 64 : 20, i % 3 ? 32 : 10,
                   i % 5,   (i + i / 5) % 5};
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

#define N_CASES   30
#define N_QUERIES 40

static void the_reference_agrees_with_a_plain_softmax(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_CASES; i++) {
        numbers n;
        sheaf_attn_options o;
        make_case(i, &n, &o);
        o.path = SHEAF_ATTN_REFERENCE;
        float *q = queries(&n, o.n_q_heads, n.n_tokens - N_QUERIES, N_QUERIES);
        float *want = naive(&o, &n, q, N_QUERIES);
        sheaf_attn_item item = {N_QUERIES, n.n_tokens - N_QUERIES, n.n_tokens, 0};
        for (uint32_t shuffled = 0; shuffled < 2; shuffled++) {
            layout l = layout_make(&n, (shape){16, 0, shuffled});
            float *out = attend(&o, NULL, &item, 1, &l.view, q);
            double error =
                relative_error(out, want, (uint64_t)N_QUERIES * o.n_q_heads * n.value_dim);
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
    double worst[2] = {0.0, 0.0};
    for (uint32_t i = 0; i < N_CASES; i++) {
        numbers n;
        sheaf_attn_options o;
        make_case(i, &n, &o);
        float *q = queries(&n, o.n_q_heads, n.n_tokens - N_QUERIES, N_QUERIES);
        sheaf_attn_item item = {N_QUERIES, n.n_tokens - N_QUERIES, n.n_tokens, 0};
        layout l = layout_make(&n, (shape){32, 0, 1});
        o.path = SHEAF_ATTN_REFERENCE;
        float *want = attend(&o, NULL, &item, 1, &l.view, q);
        int levels = n.codec_k >= SHEAF_CODEC_INT8;
        for (uint32_t j = 0; j < n_isas; j++) {
            o.isa = isas[j];
            o.path = SHEAF_ATTN_FUSED;
            float *out = attend(&o, NULL, &item, 1, &l.view, q);
            double error =
                relative_error(out, want, (uint64_t)N_QUERIES * o.n_q_heads * n.value_dim);
            if (error >= (levels ? LEVELS_BOUND : FAST_BOUND))
                fail_msg("case %u: relative error %g", i, error);
            if (error > worst[levels]) worst[levels] = error;
            free(out);
        }
        free(want);
        layout_free(&l);
        free(q);
    }
    fprintf(stderr, "# worst relative error %.2g, quantized keys %.2g\n", worst[0], worst[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_agrees_with_a_plain_softmax),
        cmocka_unit_test(the_fast_paths_are_within_the_bound_of_the_reference),
    };
    return cmocka_run_group_tests_name("test_reference", tests, NULL, NULL);
}
