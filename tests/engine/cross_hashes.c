/* cross_hashes.c - the bits that every compiler, processor and instruction set must give.
 *
 * Results are hashed and compared with the committed tests/data/bits.txt, a line a result: its
 * name and the XXH3 of its bytes. Whatever comes in many forms is computed by each form that
 * runs here. Inputs are made from integers alone. A change that is meant to change bits (a new
 * version of the numerics, docs/adr/0003) writes the file anew: SHEAF_WRITE_BITS=1.
 */
#include "testing.h"

#include <math.h>

#include "attn/fixture.h"
#include "base/dmath.h"
#include "base/fmath.h"
#include "base/half.h"
#include "base/hash.h"
#include "engine/sampler.h"
#include "model/ops.h"
#include "model/rig.h"
#include "model/rope.h"
#include "sheaf/codec.h"

#define BITS_FILE "tests/data/bits.txt"
#define MAX_BITS  512

typedef struct bits {
    char name[64];
    uint64_t hash;
    int seen;
} bits;

static bits table[MAX_BITS];
static uint32_t n_bits;
static int writing;
static uint32_t isas[4], n_isas;

/* Compares a result with the file's; when writing, with the first form's. */
static void expect(const char *name, uint32_t isa, const void *data, uint64_t bytes)
{
    uint64_t hash = sheaf__hash64(data, bytes, 0);
    uint32_t i = 0;
    while (i < n_bits && strcmp(table[i].name, name) != 0) i++;
    if (i == n_bits) {
        if (!writing) fail_msg("%s is not in " BITS_FILE, name);
        assert_true(n_bits < MAX_BITS && strlen(name) < sizeof table[i].name);
        strcpy(table[n_bits].name, name);
        table[n_bits++].hash = hash;
    }
    table[i].seen = 1;
    if (table[i].hash != hash)
        fail_msg("%s on %s: %016llx instead of %016llx", name, sheaf_isa_name(isa),
                 (unsigned long long)hash, (unsigned long long)table[i].hash);
}

/* In [-1, 1), 24 bits. */
static float next_number(uint64_t *seed)
{
    return (float)(int32_t)(testing_random(seed) >> 40) * 0x1p-23f - 1.0f;
}

static float *make_numbers(uint64_t seed, uint64_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < n; i++) x[i] = next_number(&seed);
    return x;
}

/* ---- numbers ----------------------------------------------------------------------------- */

/* 65,536 floats: every upper half, odd lower halves, NaN and denormals with them. */
static void codecs_narrow_and_widen_to_the_committed_bits(void **state)
{
    (void)state;
    static const char *const narrowing[] = {"", "codec/narrow-f16", "codec/narrow-bf16"};
    static const char *const widening[] = {"", "codec/widen-f16", "codec/widen-bf16"};
    static float x[65536];
    static uint16_t halves[65536];
    for (uint32_t i = 0; i < 65536; i++)
        x[i] = sheaf__f32_of_bits(i << 16 | (i * 40503u & 0xffffu));
    for (uint32_t codec = SHEAF_CODEC_F16; codec <= SHEAF_CODEC_BF16; codec++) {
        assert_int_equal(
            sheaf_codec_encode(codec, halves, 256, 256, 0, 256, SHEAF_DTYPE_F32, x, 256),
            SHEAF_OK);
        expect(narrowing[codec], SHEAF_ISA_AUTO, halves, sizeof halves);
    }
    for (uint32_t codec = SHEAF_CODEC_F16; codec <= SHEAF_CODEC_BF16; codec++) {
        static float wide[65536];
        for (uint32_t i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
        assert_int_equal(sheaf_codec_decode(codec, halves, 256, 256, 0, 256, wide), SHEAF_OK);
        expect(widening[codec], SHEAF_ISA_AUTO, wide, sizeof wide);
    }
}

/* Rows of many magnitudes, a row of zeros and one with a NaN: segments as stored, and decoded. */
static void quantized_codecs_give_the_committed_bits(void **state)
{
    (void)state;
    enum { ROWS = 64, MOST = 128 };
    static const uint32_t dims[] = {33, 64, 80, 128};
    static unsigned char segment[ROWS * (MOST + 4)];
    static float decoded[ROWS * MOST];
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            const uint32_t dim = dims[i];
            uint64_t bytes;
            float *x = make_numbers(dim, (uint64_t)ROWS * dim);
            for (uint32_t row = 0; row < ROWS; row++)
                for (uint32_t d = 0; d < dim; d++)
                    x[row * dim + d] *= sheaf__f32_of_bits((1 + 4 * row) % 254 << 23);
            memset(x + 5 * dim, 0, dim * sizeof *x);
            x[9 * dim + 3] = NAN;
            assert_int_equal(sheaf_codec_segment_bytes(codec, ROWS, dim, &bytes), SHEAF_OK);
            assert_true(bytes <= sizeof segment);
            assert_int_equal(
                sheaf_codec_encode(codec, segment, ROWS, dim, 0, ROWS, SHEAF_DTYPE_F32, x, dim),
                SHEAF_OK);
            assert_int_equal(sheaf_codec_decode(codec, segment, ROWS, dim, 0, ROWS, decoded),
                             SHEAF_OK);
            for (uint32_t d = 0; d < dim; d++) { /* a NaN's payload is nobody's promise */
                assert_true(isnan(decoded[9 * dim + d]));
                decoded[9 * dim + d] = 0.0f;
            }
            char name[64];
            snprintf(name, sizeof name, "codec/encode-%s-d%u", sheaf_codec_name(codec), dim);
            expect(name, SHEAF_ISA_AUTO, segment, bytes);
            snprintf(name, sizeof name, "codec/decode-%s-d%u", sheaf_codec_name(codec), dim);
            expect(name, SHEAF_ISA_AUTO, decoded, (uint64_t)ROWS * dim * sizeof *decoded);
            free(x);
        }
}

/* ---- functions --------------------------------------------------------------------------- */

static void functions_give_the_committed_bits(void **state)
{
    (void)state;
    enum { N = 16384 };
    static float out[3][N];
    static double wide[6][N];
    uint64_t seed = 1;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t u = i << 18 | (i * 40503u & 0x3ffffu);
        float x = sheaf__f32_of_bits((u & 0x7f800000u) == 0x7f800000u ? u ^ 0x40000000u : u);
        out[0][i] = sheaf__expf(x);
        out[1][i] = sheaf__tanhf(x);
        out[2][i] = sheaf__siluf(x);
        double y = (double)(int64_t)(testing_random(&seed) >> 11) * 0x1p-53; /* [0, 1) */
        sheaf__dsincos((y - 0.5) * 0x1p20, &wide[0][i], &wide[1][i]);
        wide[2][i] = sheaf__dexp((y - 0.5) * 1400.0);
        wide[3][i] = sheaf__dlog(y * (double)(1ull << i % 60));
        wide[4][i] = sheaf__dpow(y + 0x1p-20, (double)(i % 300) * 0.125);
        wide[5][i] = sheaf__dsin((y - 0.5) * 4.0);
    }
    expect("function/exp", SHEAF_ISA_AUTO, out[0], sizeof out[0]);
    expect("function/tanh", SHEAF_ISA_AUTO, out[1], sizeof out[1]);
    expect("function/silu", SHEAF_ISA_AUTO, out[2], sizeof out[2]);
    expect("function/double-sin-cos", SHEAF_ISA_AUTO, wide[0], sizeof wide[0] * 2);
    expect("function/double-exp", SHEAF_ISA_AUTO, wide[2], sizeof wide[2]);
    expect("function/double-log", SHEAF_ISA_AUTO, wide[3], sizeof wide[3]);
    expect("function/double-pow", SHEAF_ISA_AUTO, wide[4], sizeof wide[4]);
    expect("function/double-sin", SHEAF_ISA_AUTO, wide[5], sizeof wide[5]);
}

static void rope_tables_have_the_committed_bits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t head_dim;
        sheaf__rope_config config;
    } ropes[] = {
        {"rope/plain-1e4", 64, {SHEAF__ROPE_PLAIN, 1e4, 0, 0, 0, 0}},
        {"rope/plain-1e6", 128, {SHEAF__ROPE_PLAIN, 1e6, 0, 0, 0, 0}},
        {"rope/linear-8", 256, {SHEAF__ROPE_LINEAR, 1e6, 8, 0, 0, 0}},
        {"rope/llama3-32", 64, {SHEAF__ROPE_LLAMA3, 5e5, 32, 1, 4, 8192}},
    };
    for (uint32_t i = 0; i < sizeof ropes / sizeof ropes[0]; i++) {
        enum { ROWS = 128, STRIDE = 64 };
        static float rows[ROWS][2][128];
        const uint32_t half = ropes[i].head_dim / 2;
        sheaf__memory memory;
        sheaf__rope *rope = NULL;
        sheaf__memory_init(&memory, NULL);
        assert_int_equal(
            sheaf__rope_create(&ropes[i].config, ropes[i].head_dim, &memory, &rope), SHEAF_OK);
        assert_int_equal(sheaf__rope_reserve(rope, ROWS * STRIDE), SHEAF_OK);
        memset(rows, 0, sizeof rows);
        for (uint32_t r = 0; r < ROWS; r++) {
            uint32_t pos = r * STRIDE + r % STRIDE;
            memcpy(rows[r][0], sheaf__rope_cos(rope, pos), half * sizeof(float));
            memcpy(rows[r][1], sheaf__rope_sin(rope, pos), half * sizeof(float));
        }
        sheaf__rope_destroy(rope);
        expect(ropes[i].name, SHEAF_ISA_AUTO, rows, sizeof rows);
    }
}

/* ---- kernels ----------------------------------------------------------------------------- */

static void operations_on_rows_give_the_committed_bits(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {6, 64, 250, 1030};
    for (uint32_t j = 0; j < n_isas; j++) {
        const sheaf__ops *ops = sheaf__ops_for(isas[j]);
        assert_non_null(ops);
        assert_int_equal(ops->isa, isas[j]);
        for (uint32_t s = 0; s < 4; s++) {
            const uint32_t n = sizes[s];
            float *x = make_numbers(n, 8 * n), *y = make_numbers(n + 1, n);
            for (uint32_t i = 0; i < 8 * n; i++) x[i] *= (float)(1 << i % 7);
            ops->rmsnorm(x, y, 1e-6f, n, x);
            ops->rope(x + n, y, y + n / 2, n);
            ops->silu_mul(x + 2 * n, y, n);
            ops->gelu_mul(x + 3 * n, y, n);
            ops->softcap(x + 4 * n, 30.0f, n);
            ops->add(x + 5 * n, y, n);
            for (uint32_t i = 0; i < 2 * n; i++) { /* halves of any kind but NaN */
                uint16_t h = (uint16_t)((i * 40503u & 0x83ffu) | i % 31 << 10);
                memcpy((unsigned char *)(x + 6 * n) + 2 * i, &h, 2);
            }
            float *wide = malloc(2 * n * sizeof *wide);
            ops->widen(x + 6 * n, SHEAF_DTYPE_F16, n, wide);
            ops->widen(x + 6 * n, SHEAF_DTYPE_BF16, n, wide + n);
            memcpy(x + 6 * n, wide, 2 * n * sizeof *wide);
            char name[64];
            snprintf(name, sizeof name, "operations/n%u", n);
            expect(name, isas[j], x, 8 * n * sizeof *x);
            free(wide);
            free(x);
            free(y);
        }
    }
}

static void check_product(uint32_t isa, uint32_t dtype, uint32_t n, uint32_t k)
{
    static const uint32_t batches[] = {1, 2, 3, 4, 7, 9, 29};
    enum { MOST = 29 };
    float *wide = make_numbers(n * 31 + k, (uint64_t)n * k);
    float *x = make_numbers(n * 37 + k, (uint64_t)MOST * k);
    float *y = malloc((uint64_t)MOST * n * sizeof *y);
    uint16_t *halves = malloc((uint64_t)n * k * 2);
    for (uint64_t i = 0; i < (uint64_t)n * k; i++)
        halves[i] =
            dtype == SHEAF_DTYPE_F16 ? sheaf__f16_of_f32(wide[i]) : sheaf__bf16_of_f32(wide[i]);
    const sheaf__matrix w = {dtype == SHEAF_DTYPE_F32 ? (void *)wide : halves, dtype, n, k};
    sheaf__memory memory;
    sheaf__matmul *mm = NULL;
    sheaf__memory_init(&memory, NULL);
    assert_int_equal(sheaf__matmul_create(NULL, isa, &memory, &mm), SHEAF_OK);
    assert_int_equal(sheaf__matmul_isa(mm), isa);
    assert_int_equal(sheaf__matmul_reserve(mm, MOST, n, k), SHEAF_OK);
    for (uint32_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        const uint32_t m = batches[b];
        char name[64];
        snprintf(name, sizeof name, "product/%s-m%u-n%u-k%u", sheaf_codec_name(dtype), m, n, k);
        assert_int_equal(sheaf__matmul_run(mm, &w, x, k, m, y, n), SHEAF_OK);
        expect(name, isa, y, (uint64_t)m * n * sizeof *y);
    }
    sheaf__matmul_destroy(mm);
    free(halves);
    free(wide);
    free(x);
    free(y);
}

static void products_give_the_committed_bits(void **state)
{
    (void)state;
    for (uint32_t j = 0; j < n_isas; j++)
        for (uint32_t dtype = SHEAF_DTYPE_F32; dtype <= SHEAF_DTYPE_BF16; dtype++) {
            check_product(isas[j], dtype, 37, 70);
            check_product(isas[j], dtype, 5, 2100);
        }
}

typedef struct attn_case {
    uint32_t n_tokens, n_q_heads, n_kv_heads, key_dim, value_dim, codec_k, codec_v;
    uint32_t n_queries, window;
    float softcap;
    int with_sinks;
} attn_case;

static void check_attention(const attn_case *c, uint32_t isa)
{
    static const float sinks[8] = {0.5f, -3.0f, 4.0f, 0.0f, -100.0f, 30.0f, 1.0f, -1.0f};
    numbers n = {c->n_tokens,  c->n_tokens, c->n_kv_heads, c->key_dim,
                 c->value_dim, c->codec_k,  c->codec_v};
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = c->n_q_heads;
    o.n_kv_heads = c->n_kv_heads;
    o.key_dim = c->key_dim;
    o.value_dim = c->value_dim;
    o.window = c->window;
    o.softcap = c->softcap;
    o.sinks = c->with_sinks ? sinks : NULL;
    o.isa = isa;
    o.path = SHEAF_ATTN_FUSED;
    layout l = layout_make(&n, (shape){16, 0, 1});
    uint32_t first = c->n_tokens - c->n_queries;
    float *q = queries(&n, c->n_q_heads, first, c->n_queries);
    sheaf_attn_item item = {c->n_queries, first, c->n_tokens, 0};
    float *out = attend(&o, NULL, &item, 1, &l.view, q);
    char name[64];
    snprintf(name, sizeof name, "attention/%s-%s-d%u-%u-h%u-%u-t%u-q%u-w%u%s%s",
             sheaf_codec_name(c->codec_k), sheaf_codec_name(c->codec_v), c->key_dim,
             c->value_dim, c->n_q_heads, c->n_kv_heads, c->n_tokens, c->n_queries, c->window,
             c->softcap != 0.0f ? "-cap" : "", c->with_sinks ? "-sinks" : "");
    expect(name, isa, out, (uint64_t)c->n_queries * c->n_q_heads * c->value_dim * sizeof *out);
    layout_free(&l);
    free(out);
    free(q);
}

static void attention_gives_the_committed_bits(void **state)
{
    (void)state;
    static const attn_case cases[] = {
        {1, 1, 1, 64, 64, SHEAF_CODEC_F32, SHEAF_CODEC_F32, 1, 0, 0.0f, 0},
        {40, 4, 2, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 40, 0, 0.0f, 0},
        {300, 4, 2, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 1, 0, 0.0f, 0},
        {300, 4, 2, 64, 64, SHEAF_CODEC_F16, SHEAF_CODEC_F16, 3, 0, 0.0f, 0},
        {300, 4, 2, 64, 64, SHEAF_CODEC_F32, SHEAF_CODEC_F32, 20, 0, 0.0f, 0},
        {530, 8, 1, 128, 128, SHEAF_CODEC_BF16, SHEAF_CODEC_F16, 1, 0, 0.0f, 0},
        {530, 8, 1, 128, 128, SHEAF_CODEC_F16, SHEAF_CODEC_BF16, 9, 0, 0.0f, 1},
        {1100, 2, 1, 32, 32, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 2, 0, 0.0f, 0},
        {1100, 2, 2, 16, 16, SHEAF_CODEC_F32, SHEAF_CODEC_BF16, 17, 0, 5.0f, 1},
        {300, 6, 2, 96, 80, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 5, 0, 0.0f, 0},
        {300, 3, 3, 250, 9, SHEAF_CODEC_F16, SHEAF_CODEC_F16, 5, 0, 0.0f, 0},
        {300, 2, 1, 7, 33, SHEAF_CODEC_BF16, SHEAF_CODEC_F32, 30, 0, 0.0f, 0},
        {300, 8, 2, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 1, 100, 0.0f, 0},
        {300, 8, 2, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 12, 100, 0.0f, 0},
        {600, 4, 1, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 12, 257, 0.0f, 1},
        {300, 4, 2, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 4, 0, 1.5f, 0},
        {300, 4, 2, 64, 64, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, 20, 16, 20.0f, 1},
        {300, 4, 2, 64, 64, SHEAF_CODEC_INT8, SHEAF_CODEC_INT8, 1, 0, 0.0f, 0},
        {530, 8, 1, 128, 128, SHEAF_CODEC_INT8, SHEAF_CODEC_INT8, 20, 0, 0.0f, 1},
        {300, 4, 2, 64, 64, SHEAF_CODEC_TURBO4, SHEAF_CODEC_TURBO4, 1, 0, 0.0f, 0},
        {530, 8, 1, 128, 128, SHEAF_CODEC_TURBO4, SHEAF_CODEC_TURBO4, 20, 0, 0.0f, 1},
        {600, 6, 2, 96, 80, SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4, 5, 257, 0.0f, 0},
        {300, 3, 3, 250, 9, SHEAF_CODEC_TURBO4, SHEAF_CODEC_F16, 30, 0, 5.0f, 0},
        {300, 2, 1, 7, 33, SHEAF_CODEC_BF16, SHEAF_CODEC_TURBO4, 30, 0, 0.0f, 1},
    };
    for (uint32_t j = 0; j < n_isas; j++)
        for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            check_attention(&cases[i], isas[j]);
}

/* ---- models ------------------------------------------------------------------------------ */

static void random_weights_have_the_committed_bits(void **state)
{
    (void)state;
    sheaf__config config;
    sheaf_error err = {0};
    sheaf__weights *weights = NULL;
    assert_int_equal(sheaf__config_read("tests/data/fixtures/llama3-tied", &config, &err),
                     SHEAF_OK);
    const sheaf__weights_options o = {.random_seed = 7};
    assert_int_equal(sheaf__weights_random(&config, &o, &weights, &err), SHEAF_OK);
    const sheaf__matrix *e = &weights->embedding, *d = &weights->layers[1].down;
    expect("random-weights/embedding", SHEAF_ISA_AUTO, e->data, (uint64_t)e->n * e->k * 2);
    expect("random-weights/down", SHEAF_ISA_AUTO, d->data, (uint64_t)d->n * d->k * 2);
    sheaf__weights_close(weights);
}

static void sampled_sequences_are_the_committed_ones(void **state)
{
    (void)state;
    enum { VOCAB = 1000, DRAWS = 200 };
    static const struct {
        const char *name;
        sheaf__sampler_options options;
    } samplers[] = {
        {"sampler/plain", {.temperature = 1.0f, .seed = 1}},
        {"sampler/top-k", {.temperature = 0.7f, .top_k = 20, .seed = 2, .choice = 3}},
        {"sampler/top-p", {.temperature = 1.3f, .top_p = 0.9f, .seed = 3}},
        {"sampler/all", {.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 50}},
    };
    float *logits = make_numbers(5, VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] *= 8.0f;
    for (uint32_t s = 0; s < sizeof samplers / sizeof samplers[0]; s++) {
        sheaf__memory memory;
        sheaf__sampler *sampler = NULL;
        int32_t drawn[DRAWS];
        sheaf__memory_init(&memory, NULL);
        assert_int_equal(sheaf__sampler_create(&samplers[s].options, VOCAB, &memory, &sampler),
                         SHEAF_OK);
        for (uint32_t i = 0; i < DRAWS; i++) drawn[i] = sheaf__sampler_pick(sampler, logits, i);
        sheaf__sampler_destroy(sampler);
        expect(samplers[s].name, SHEAF_ISA_AUTO, drawn, sizeof drawn);
    }
    free(logits);
}

/* Logits of the prompt's first tokens at once, and of the last two one by one. */
static void check_model(const char *name, const char *dir, uint32_t codec, uint32_t prompt,
                        uint32_t limit, uint32_t isa)
{
    rig_ids text = rig_prompt(dir, prompt, limit);
    const rig_options o = {.dir = dir, .isa = isa, .codec_k = codec, .codec_v = codec};
    rig r;
    rig_open(&r, &o);
    uint64_t vocab = r.config.vocab, bytes = text.n * vocab * sizeof(float);
    float *logits = malloc(bytes);
    assert_non_null(logits);
    sheaf__kv kv = rig_kv(&r);
    uint32_t chunk = text.n - 2;
    rig_feed(&r, &kv, text.data, chunk, 0, logits);
    rig_feed(&r, &kv, text.data + chunk, 2, 1, logits + chunk * vocab);
    sheaf_attn_report report;
    sheaf__forward_report(r.forward, &report);
    assert_int_equal(report.isa, isa);
    expect(name, isa, logits, bytes);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
    free(logits);
    free(text.data);
}

static void small_models_give_the_committed_logits(void **state)
{
    (void)state;
    static const char *const dirs[] = {"llama3-tied", "qwen3-headdim", "qwen3-untied-gqa1",
                                       "qwen2-bias",  "mistral-swa",   "gemma3-mixed-softcap"};
    for (uint32_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
        for (uint32_t j = 0; j < n_isas; j++) {
            char dir[96], name[64];
            snprintf(dir, sizeof dir, "tests/data/fixtures/%s", dirs[i]);
            snprintf(name, sizeof name, "logits/%s", dirs[i]);
            check_model(name, dir, SHEAF_CODEC_BF16, 3, 60, isas[j]);
        }
}

static void the_demo_model_gives_the_committed_logits(void **state)
{
    (void)state;
    for (uint32_t j = 0; j < n_isas; j++)
        check_model("logits/demo", "models/sheaf-demo", SHEAF_CODEC_BF16, 0, 48, isas[j]);
}

static void models_with_quantized_caches_give_the_committed_logits(void **state)
{
    (void)state;
    for (uint32_t codec = SHEAF_CODEC_INT8; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (uint32_t j = 0; j < n_isas; j++) {
            char name[64];
            snprintf(name, sizeof name, "logits/demo-%s", sheaf_codec_name(codec));
            check_model(name, "models/sheaf-demo", codec, 0, 48, isas[j]);
            snprintf(name, sizeof name, "logits/gemma3-mixed-softcap-%s",
                     sheaf_codec_name(codec));
            check_model(name, "tests/data/fixtures/gemma3-mixed-softcap", codec, 3, 60,
                        isas[j]);
        }
}

/* ---- the file ---------------------------------------------------------------------------- */

static void every_line_of_the_file_is_checked(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_bits; i++)
        if (!table[i].seen) fail_msg("nothing computes %s any more", table[i].name);
    assert_true(n_bits > 80); /* a file cut short */
}

static int read_file(void **state)
{
    (void)state;
    n_isas = isas_here(isas);
    const char *text = getenv("SHEAF_WRITE_BITS");
    writing = text != NULL && strcmp(text, "1") == 0;
    if (writing) return n_isas == 0;
    FILE *file = fopen(BITS_FILE, "r");
    if (file == NULL) return 1;
    char line[160];
    unsigned long long hash;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#') continue;
        if (n_bits == MAX_BITS || sscanf(line, "%63s %llx", table[n_bits].name, &hash) != 2) {
            fclose(file);
            return 1;
        }
        table[n_bits++].hash = hash;
    }
    fclose(file);
    return n_isas == 0;
}

static int write_file(void **state)
{
    (void)state;
    if (!writing) return 0;
    FILE *file = fopen(BITS_FILE, "w");
    if (file == NULL) return 1;
    fprintf(file,
            "# What every build must compute: a result and the XXH3 of its bytes. Checked and\n"
            "# written by tests/engine/cross_hashes.c.\n");
    for (uint32_t i = 0; i < n_bits; i++)
        fprintf(file, "%s %016llx\n", table[i].name, (unsigned long long)table[i].hash);
    return fclose(file) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_narrow_and_widen_to_the_committed_bits),
        cmocka_unit_test(quantized_codecs_give_the_committed_bits),
        cmocka_unit_test(functions_give_the_committed_bits),
        cmocka_unit_test(rope_tables_have_the_committed_bits),
        cmocka_unit_test(operations_on_rows_give_the_committed_bits),
        cmocka_unit_test(products_give_the_committed_bits),
        cmocka_unit_test(attention_gives_the_committed_bits),
        cmocka_unit_test(random_weights_have_the_committed_bits),
        cmocka_unit_test(sampled_sequences_are_the_committed_ones),
        cmocka_unit_test(small_models_give_the_committed_logits),
        cmocka_unit_test(the_demo_model_gives_the_committed_logits),
        cmocka_unit_test(models_with_quantized_caches_give_the_committed_logits),
        cmocka_unit_test(every_line_of_the_file_is_checked),
    };
    return cmocka_run_group_tests(tests, read_file, write_file);
}
