/* Operations on rows: every instruction set gives the bits of the text in model/ops.h. */
#include "base/fmath.h"
#include "base/half.h"
#include "model/matmul.h"
#include "model/numbers.h"
#include "model/ops.h"

#define MAX_N  2100
#define CANARY 0x1.5p+77f

static const uint32_t isas[] = {SHEAF_ISA_SCALAR, SHEAF_ISA_AVX2, SHEAF_ISA_AVX512,
                                SHEAF_ISA_NEON};
static const uint32_t sizes[] = {1,  2,  7,  8,   9,   15,  16,   17,   31,   33,
                                 64, 80, 96, 128, 255, 640, 1023, 1024, 1025, 2053};
enum { N_ISAS = 4, N_SIZES = sizeof sizes / sizeof sizes[0] };

/* Numbers, one place behind an aligned address, a canary behind the last. */
typedef struct row {
    float memory[MAX_N + 2];
    float *at;
} row;

static void fill(row *r, uint64_t *seed, uint32_t n, float (*next)(uint64_t *))
{
    r->at = r->memory + 1;
    for (uint32_t i = 0; i < n; i++) r->at[i] = next(seed);
    r->at[n] = CANARY;
}

static void expect_row(const row *r, const float *expected, uint32_t n, const char *what,
                       uint32_t isa)
{
    if (memcmp(r->at, expected, n * sizeof(float)) != 0)
        fail_msg("%s on %s differs, n %u", what, sheaf_isa_name(isa), n);
    assert_true(r->at[n] == CANARY);
}

/* Calls `check` with each table that runs here and each size; says which are missing. */
static void for_each(void (*check)(const sheaf__ops *ops, uint32_t n, uint64_t *seed))
{
    for (uint32_t i = 0; i < N_ISAS; i++) {
        if (!isa_runs_here(isas[i])) continue;
        const sheaf__ops *ops = sheaf__ops_for(isas[i]);
        assert_non_null(ops);
        assert_int_equal(ops->isa, isas[i]);
        for (uint32_t s = 0; s < N_SIZES; s++) {
            uint64_t seed = sizes[s];
            check(ops, sizes[s], &seed);
        }
    }
}

/* Rows whose squares neither overflow nor vanish altogether. */
static float norm_number(uint64_t *seed)
{
    float x = random_odd_number(seed);
    return fabsf(x) > 1.0f ? x * 0x1p-30f : x;
}

static void check_rmsnorm(const sheaf__ops *ops, uint32_t n, uint64_t *seed)
{
    static row x, w, out;
    static float expected[MAX_N];
    fill(&x, seed, n, norm_number);
    fill(&w, seed, n, random_number);
    fill(&out, seed, n, random_number);
    /* the sum of squares is a product of the row with itself */
    sheaf__memory memory;
    sheaf__matmul *mm;
    float sum;
    sheaf__memory_init(&memory, NULL);
    const sheaf__matrix self = {x.at, SHEAF_DTYPE_F32, 1, n};
    assert_int_equal(sheaf__matmul_create(NULL, SHEAF_ISA_SCALAR, &memory, &mm), SHEAF_OK);
    assert_int_equal(sheaf__matmul_reserve(mm, 1, 1, n), SHEAF_OK);
    assert_int_equal(sheaf__matmul_run(mm, &self, x.at, n, 1, &sum, 1), SHEAF_OK);
    sheaf__matmul_destroy(mm);
    volatile float mean = sum / (float)n; /* each step rounded, whatever the compiler */
    volatile float root = sqrtf(mean + 1e-6f), scale = 1.0f / root;
    for (uint32_t i = 0; i < n; i++) {
        volatile float scaled = x.at[i] * scale;
        expected[i] = scaled * w.at[i];
    }
    ops->rmsnorm(x.at, w.at, 1e-6f, n, out.at);
    expect_row(&out, expected, n, "rmsnorm", ops->isa);
    ops->rmsnorm(x.at, w.at, 1e-6f, n, x.at);
    expect_row(&x, expected, n, "rmsnorm in place", ops->isa);
}

static void rmsnorm_has_the_defined_bits(void **state)
{
    (void)state;
    for_each(check_rmsnorm);
}

static void check_rope(const sheaf__ops *ops, uint32_t half, uint64_t *seed)
{
    static row x, cosines, sines;
    static float expected[MAX_N];
    uint32_t n = 2 * half;
    if (n > MAX_N) return;
    fill(&x, seed, n, random_odd_number);
    fill(&cosines, seed, half, random_number);
    fill(&sines, seed, half, random_number);
    for (uint32_t i = 0; i < half; i++) {
        float a = x.at[i], b = x.at[i + half], c = cosines.at[i], s = sines.at[i];
        volatile float ac = a * c, bc = b * c;
        expected[i] = fmaf(-b, s, ac);
        expected[i + half] = fmaf(a, s, bc);
    }
    ops->rope(x.at, cosines.at, sines.at, n);
    expect_row(&x, expected, n, "rope", ops->isa);
}

static void rope_has_the_defined_bits(void **state)
{
    (void)state;
    for_each(check_rope);
}

static float gate_number(uint64_t *seed)
{
    float x = random_odd_number(seed);
    return testing_random(seed) % 2 ? x * 100.0f : x; /* beyond both ends of exp */
}

static void check_silu_mul(const sheaf__ops *ops, uint32_t n, uint64_t *seed)
{
    static row gate, up;
    static float expected[MAX_N];
    fill(&gate, seed, n, gate_number);
    fill(&up, seed, n, random_number);
    for (uint32_t i = 0; i < n; i++) {
        volatile float silu = sheaf__siluf(gate.at[i]);
        expected[i] = silu * up.at[i];
    }
    ops->silu_mul(gate.at, up.at, n);
    expect_row(&gate, expected, n, "silu_mul", ops->isa);
}

/* Numbers on both sides of the border of tanh's two forms, and beyond its end. */
static float tanh_number(uint64_t *seed)
{
    float x = random_number(seed);
    return testing_random(seed) % 2 ? x * 40.0f : x * 0.7f;
}

static void check_gelu_mul(const sheaf__ops *ops, uint32_t n, uint64_t *seed)
{
    static row gate, up;
    static float expected[MAX_N];
    fill(&gate, seed, n, tanh_number);
    fill(&up, seed, n, random_number);
    for (uint32_t i = 0; i < n; i++) {
        float x = gate.at[i];
        volatile float square = x * x, cubic = 0.044715f * square, half = 0.5f * x;
        volatile float angle = 0.797884583f * fmaf(cubic, x, x);
        volatile float one_and = 1.0f + sheaf__tanhf(angle), gelu = half * one_and;
        expected[i] = gelu * up.at[i];
    }
    ops->gelu_mul(gate.at, up.at, n);
    expect_row(&gate, expected, n, "gelu_mul", ops->isa);
}

static void gelu_has_the_defined_bits(void **state)
{
    (void)state;
    for_each(check_gelu_mul);
}

/* Against the double-precision function: gelu is a smooth curve, its form here rounds a few times. */
static void gelu_is_near_the_function(void **state)
{
    (void)state;
    for (double x = -12; x <= 12; x += 0.001) {
        float gate = (float)x, one = 1.0f;
        double g = gate, u = sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
        sheaf__ops_for(SHEAF_ISA_SCALAR)->gelu_mul(&gate, &one, 1);
        assert_true(fabs(gate - 0.5 * g * (1 + tanh(u))) <= 1e-6 * (1 + fabs(g)));
    }
}

static void check_softcap(const sheaf__ops *ops, uint32_t n, uint64_t *seed)
{
    static row x;
    static float expected[MAX_N];
    static const float caps[] = {30.0f, 5.0f, 0.25f};
    for (uint32_t c = 0; c < 3; c++) {
        fill(&x, seed, n, tanh_number);
        for (uint32_t i = 0; i < n; i++) {
            volatile float ratio = x.at[i] / caps[c];
            expected[i] = caps[c] * sheaf__tanhf(ratio);
        }
        ops->softcap(x.at, caps[c], n);
        expect_row(&x, expected, n, "softcap", ops->isa);
    }
}

static void softcap_has_the_defined_bits(void **state)
{
    (void)state;
    for_each(check_softcap);
}

static void silu_has_the_defined_bits(void **state)
{
    (void)state;
    for_each(check_silu_mul);
}

/* silu(x) * 1 over every 1024th float from -128 to 128 and both ends of exp. */
static void silu_has_the_defined_bits_over_its_range(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float x[N], one[N], expected[N];
    for (uint32_t i = 0; i < N; i++) one[i] = 1.0f;
    for (uint32_t isa = 0; isa < N_ISAS; isa++) {
        if (!isa_runs_here(isas[isa])) continue;
        for (uint32_t bits = 0; bits < 0x43000000u; bits += 1024 * N) {
            for (uint32_t i = 0; i < N; i++) {
                uint32_t sign = i % 2 ? 0x80000000u : 0;
                x[i] = sheaf__f32_of_bits((bits + 1024 * i) | sign);
                expected[i] = sheaf__siluf(x[i]);
            }
            x[0] = 87.0f;
            x[1] = 87.00001f;
            x[2] = -88.0f;
            x[3] = -88.00001f;
            for (uint32_t i = 0; i < 4; i++) expected[i] = sheaf__siluf(x[i]);
            sheaf__ops_for(isas[isa])->silu_mul(x, one, N);
            assert_memory_equal(x, expected, sizeof x);
        }
    }
}

static void check_add(const sheaf__ops *ops, uint32_t n, uint64_t *seed)
{
    static row x, y;
    static float expected[MAX_N];
    fill(&x, seed, n, random_odd_number);
    fill(&y, seed, n, random_odd_number);
    for (uint32_t i = 0; i < n; i++) expected[i] = x.at[i] + y.at[i];
    ops->add(x.at, y.at, n);
    expect_row(&x, expected, n, "add", ops->isa);
}

static void addition_has_the_defined_bits(void **state)
{
    (void)state;
    for_each(check_add);
}

/* All 65,536 halves, NaN and denormals with them, from an odd address, in pieces of every size. */
static void widening_is_exact(void **state)
{
    (void)state;
    static unsigned char halves[2 * 65536 + 1];
    static float expected[65536], out[65536 + 1];
    for (uint32_t d = SHEAF_DTYPE_F16; d <= SHEAF_DTYPE_BF16; d++) {
        for (uint32_t h = 0; h < 65536; h++) {
            uint16_t half = (uint16_t)h;
            memcpy(halves + 1 + 2 * h, &half, 2);
            expected[h] =
                d == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(half) : sheaf__f32_of_bf16(half);
        }
        for (uint32_t i = 0; i < N_ISAS; i++) {
            if (!isa_runs_here(isas[i])) continue;
            const sheaf__ops *ops = sheaf__ops_for(isas[i]);
            uint32_t n = 1;
            for (uint32_t at = 0; at < 65536; at += n, n = n % 40 + 1) {
                if (n > 65536 - at) n = 65536 - at;
                out[at + n] = CANARY;
                ops->widen(halves + 1 + 2 * at, d, n, out + at);
                assert_true(out[at + n] == CANARY);
            }
            assert_memory_equal(out, expected, sizeof expected);
            ops->widen(expected, SHEAF_DTYPE_F32, 65536, out);
            assert_memory_equal(out, expected, sizeof expected);
        }
    }
}

static void rmsnorm_is_close_to_double_precision(void **state)
{
    (void)state;
    static float x[MAX_N], w[MAX_N], out[MAX_N];
    uint64_t seed = 7;
    for (uint32_t i = 0; i < MAX_N; i++) {
        x[i] = random_number(&seed);
        w[i] = random_number(&seed);
    }
    sheaf__ops_for(sheaf_isa_best())->rmsnorm(x, w, 1e-5f, MAX_N, out);
    double sum = 0;
    for (uint32_t i = 0; i < MAX_N; i++) sum += (double)x[i] * x[i];
    double scale = 1.0 / sqrt(sum / MAX_N + (double)1e-5f);
    for (uint32_t i = 0; i < MAX_N; i++) {
        double exact = x[i] * scale * w[i];
        assert_true(fabs(out[i] - exact) <= 1e-6 * fabs(exact));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_has_the_defined_bits),
        cmocka_unit_test(rope_has_the_defined_bits),
        cmocka_unit_test(silu_has_the_defined_bits),
        cmocka_unit_test(gelu_has_the_defined_bits),
        cmocka_unit_test(gelu_is_near_the_function),
        cmocka_unit_test(softcap_has_the_defined_bits),
        cmocka_unit_test(silu_has_the_defined_bits_over_its_range),
        cmocka_unit_test(addition_has_the_defined_bits),
        cmocka_unit_test(widening_is_exact),
        cmocka_unit_test(rmsnorm_is_close_to_double_precision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
