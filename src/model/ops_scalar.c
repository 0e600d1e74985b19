/* model/ops_scalar.c - the operations on rows, word for word as model/ops.h defines them. */
#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "base/half.h"
#include "model/ops_tables.h"

/* The dot of x with itself, in the order of a matrix product. */
static float sum_of_squares(const float *x, uint32_t n)
{
    float sum = 0.0f;
    for (uint64_t begin = 0; begin < n; begin += 1024) {
        uint64_t end = n - begin > 1024 ? begin + 1024 : n;
        float lane[16];
        for (uint32_t i = 0; i < 16; i++) lane[i] = 0.0f;
        for (uint64_t step = begin; step < end; step += 16)
            for (uint32_t i = 0; i < 16; i++) {
                float a = step + i < end ? x[step + i] : 0.0f;
                lane[i] = fmaf(a, a, lane[i]);
            }
        for (uint32_t half = 8; half != 0; half /= 2)
            for (uint32_t i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
        sum = begin == 0 ? lane[0] : sum + lane[0];
    }
    return sum;
}

static void rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *out)
{
    float mean = sum_of_squares(x, n) / (float)n;
    float scale = 1.0f / sqrtf(mean + eps);
    for (uint32_t i = 0; i < n; i++) {
        float scaled = x[i] * scale;
        out[i] = scaled * w[i];
    }
}

static void rope(float *x, const float *cos, const float *sin, uint32_t dim)
{
    uint32_t half = dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(-b, sin[i], a * cos[i]);
        x[i + half] = fmaf(a, sin[i], b * cos[i]);
    }
}

static void silu_mul(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float silu = sheaf__siluf(gate[i]);
        gate[i] = silu * up[i];
    }
}

static void gelu_mul(float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float x = gate[i], square = x * x;
        float u = fmaf(0.044715f * square, x, x);
        float gelu = (0.5f * x) * (1.0f + sheaf__tanhf(0.797884583f * u));
        gate[i] = gelu * up[i];
    }
}

static void softcap(float *x, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = cap * sheaf__tanhf(x[i] / cap);
}

static void add(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] + y[i];
}

static void widen(const void *src, uint32_t dtype, uint32_t n, float *out)
{
    const unsigned char *from = src;
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(out, src, n * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * (uint64_t)i, sizeof half);
        out[i] = dtype == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(half) : sheaf__f32_of_bf16(half);
    }
}

const sheaf__ops sheaf__ops_scalar = {
    .isa = SHEAF_ISA_SCALAR,
    .rmsnorm = rmsnorm,
    .rope = rope,
    .silu_mul = silu_mul,
    .gelu_mul = gelu_mul,
    .softcap = softcap,
    .add = add,
    .widen = widen,
};
