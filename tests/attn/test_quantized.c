/* tests/attn/test_quantized.c - attention over int8 and turbo4 against its rule, written out here.
 *
 * The rule is that of sheaf/attn.h: what it computes here shares nothing with the scalar form but
 * exp and the rotation of the codec. Every bit is compared.
 */
#include "attn/fixture.h"
#include "base/fmath.h"
#include "codec/codec.h"

#define MAX_TOKENS 512
#define MAX_DIM    64

/* What one query has seen. */
typedef struct seen {
    float m, l, o[MAX_DIM];
} seen;

static const int turbo4_levels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                      6,    18,  31,  44,  58,  75,  96,  127};

/* Position p's levels and scale in a contiguous buffer of one head. Returns the scale. */
static float levels_of(uint32_t codec, const unsigned char *head, uint32_t block_tokens,
                       uint32_t dim, uint32_t p, int *levels)
{
    uint32_t row = codec == SHEAF_CODEC_INT8 ? dim : (dim + 1) / 2, slot = p % block_tokens;
    const unsigned char *segment =
        head + (size_t)(p / block_tokens) * block_tokens * (row + sizeof(float));
    const unsigned char *codes = segment + (size_t)slot * row;
    for (uint32_t d = 0; d < dim; d++)
        levels[d] = codec == SHEAF_CODEC_INT8 ? (int)(signed char)codes[d]
                                              : turbo4_levels[codes[d / 2] >> d % 2 * 4 & 15];
    float scale;
    memcpy(&scale, segment + (size_t)block_tokens * row + slot * sizeof scale, sizeof scale);
    return scale;
}

/* The levels of a query; returns its unit. */
static float query_levels(uint32_t codec, const float *q, uint32_t dim, int *levels)
{
    float r[MAX_DIM], most = 0.0f;
    memcpy(r, q, dim * sizeof *r);
    if (codec == SHEAF_CODEC_TURBO4) sheaf__turbo4_rotate(r, dim);
    for (uint32_t d = 0; d < dim; d++) most = fmaxf(most, fabsf(r[d]));
    float unit = most / 32767.0f;
    for (uint32_t d = 0; d < dim; d++) {
        double x = unit == 0.0f ? 0.0 : rint((double)(r[d] / unit));
        levels[d] = (int)fmin(fmax(x, -32767.0), 32767.0);
    }
    return unit;
}

/* One query over the positions [lo, hi) of a split. */
static seen naive_split(const sheaf_attn_options *o, const sheaf_kv_view *v, const float *q,
                        uint32_t lo, uint32_t hi)
{
    int a[MAX_DIM], b[MAX_DIM];
    float s[SHEAF_ATTN_SPLIT_TOKENS], lanes[16] = {0};
    float unit = query_levels(v->codec_k, q, v->key_dim, a);
    seen out = {-INFINITY, 0.0f, {0}};
    for (uint32_t p = lo; p < hi; p++) {
        float scale = levels_of(v->codec_k, v->base, v->block_tokens, v->key_dim, p, b);
        int64_t sum = 0;
        for (uint32_t d = 0; d < v->key_dim; d++) sum += (int64_t)a[d] * b[d];
        volatile float dot = (float)sum * scale, factor = unit * o->scale;
        s[p - lo] = dot * factor;
        if (o->softcap != 0.0f) s[p - lo] = o->softcap * sheaf__tanhf(s[p - lo] / o->softcap);
        out.m = fmaxf(out.m, s[p - lo]);
    }
    for (uint32_t p = lo; p < hi; p++) {
        float weight = sheaf__expf(s[p - lo] - out.m);
        float scale =
            levels_of(v->codec_v, v->base + v->v_offset, v->block_tokens, v->value_dim, p, b);
        volatile float w = weight * scale;
        lanes[p % 16] += weight;
        for (uint32_t d = 0; d < v->value_dim; d++) out.o[d] = fmaf(w, (float)b[d], out.o[d]);
    }
    for (uint32_t half = 8; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    out.l = lanes[0];
    return out;
}

/* The query at position `pos` over two splits at most. */
static void naive(const sheaf_attn_options *o, const sheaf_kv_view *v, const float *q,
                  uint32_t pos, float *out)
{
    uint32_t first = pos + 1 < SHEAF_ATTN_SPLIT_TOKENS ? pos + 1 : SHEAF_ATTN_SPLIT_TOKENS;
    seen a = naive_split(o, v, q, 0, first);
    if (pos >= SHEAF_ATTN_SPLIT_TOKENS) {
        seen b = naive_split(o, v, q, SHEAF_ATTN_SPLIT_TOKENS, pos + 1);
        float m = fmaxf(a.m, b.m), x = sheaf__expf(a.m - m), y = sheaf__expf(b.m - m);
        volatile float l = a.l * x;
        a.l = fmaf(b.l, y, l);
        for (uint32_t d = 0; d < v->value_dim; d++) {
            volatile float left = a.o[d] * x;
            a.o[d] = fmaf(b.o[d], y, left);
        }
        a.m = m;
    }
    for (uint32_t d = 0; d < v->value_dim; d++) out[d] = a.o[d] / a.l;
    if (v->codec_v == SHEAF_CODEC_TURBO4) sheaf__turbo4_unrotate(out, v->value_dim);
}

static void every_instruction_set_follows_the_rule(void **state)
{
    (void)state;
    uint32_t isas[4], n_isas = isas_here(isas);
    static const uint32_t dims[][2] = {{64, 64}, {33, 7}, {8, 16}, {48, 64}, {1, 1}, {40, 63}};
    for (uint32_t i = 0; i < 24; i++) {
        numbers n = {i + 1, i % 3 ? 410 : 70, 1, dims[i % 6][0], dims[i % 6][1], 0, 0};
        n.codec_k = i & 1 ? SHEAF_CODEC_TURBO4 : SHEAF_CODEC_INT8;
        n.codec_v = i / 6 & 1 ? SHEAF_CODEC_TURBO4 : SHEAF_CODEC_INT8;
        layout l = layout_make(&n, (shape){32, 0, 0});
        float *q = queries(&n, 1, 0, n.n_tokens), *want = malloc(n.n_tokens * MAX_DIM * 4);
        if (i % 4 == 0) memset(q + 3 * n.key_dim, 0, n.key_dim * sizeof *q); /* no unit */
        sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
        o.n_q_heads = o.n_kv_heads = 1;
        o.key_dim = n.key_dim, o.value_dim = n.value_dim;
        o.scale = 0.37f;
        o.softcap = i % 5 == 4 ? 3.0f : 0.0f;
        for (uint32_t p = 0; p < n.n_tokens; p++)
            naive(&o, &l.view, q + (size_t)p * n.key_dim, p, want + (size_t)p * n.value_dim);
        for (uint32_t j = 0; j < n_isas; j++) {
            sheaf_attn_item item = {n.n_tokens, 0, n.n_tokens, 0};
            o.isa = isas[j];
            float *out = attend(&o, NULL, &item, 1, &l.view, q);
            assert_memory_equal(out, want, (size_t)n.n_tokens * n.value_dim * sizeof *out);
            free(out);
        }
        free(q), free(want);
        layout_free(&l);
    }
}

/* A row that held a NaN has a scale of NaN: who sees it gets NaN, who does not is not touched. */
static void a_poisoned_row_shows_only_where_it_is_seen(void **state)
{
    (void)state;
    uint32_t isas[4], n_isas = isas_here(isas);
    for (uint32_t i = 0; i < 2 * n_isas; i++) {
        uint32_t codec = i % 2 ? SHEAF_CODEC_TURBO4 : SHEAF_CODEC_INT8;
        numbers n = {9, 60, 1, 32, 32, codec, codec};
        layout l = layout_make(&n, (shape){16, 0, 1});
        float *q = queries(&n, 2, 0, 60), bad[32] = {[7] = NAN};
        sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
        o.n_q_heads = 2, o.n_kv_heads = 1, o.key_dim = o.value_dim = 32;
        o.isa = isas[i / 2];
        sheaf_attn_item item = {60, 0, 60, 0};
        float *clean = attend(&o, NULL, &item, 1, &l.view, q);
        unsigned char *v = l.memory + l.rows[2] * l.view.row_stride_v + l.view.v_offset;
        assert_int_equal(sheaf_codec_encode(codec, v, 16, 32, 8, 1, SHEAF_DTYPE_F32, bad, 32),
                         SHEAF_OK); /* position 40 */
        float *out = attend(&o, NULL, &item, 1, &l.view, q);
        assert_memory_equal(out, clean, 40 * 64 * sizeof *out);
        for (uint32_t d = 40 * 64; d < 60 * 64; d++) assert_true(isnan(out[d]));
        free(clean), free(out), free(q);
        layout_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_follows_the_rule),
        cmocka_unit_test(a_poisoned_row_shows_only_where_it_is_seen),
    };
    return cmocka_run_group_tests_name("test_quantized", tests, NULL, NULL);
}
