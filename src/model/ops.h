/* model/ops.h - the network's operations on rows, in the defined order, per instruction set.
 *
 * Owns: RMSNorm, rotary embedding, gated SiLU, additions, widening of rows. All give the same
 * bits on every instruction set (docs/adr/0003). Does not own the floating-point environment:
 * callers are tasks of sheaf__threads_run, or stand between sheaf__fpenv_enter and leave.
 */
#ifndef SHEAF_MODEL_OPS_H
#define SHEAF_MODEL_OPS_H

#include "sheaf/status.h"

/* One table of functions an instruction set. n: numbers in a row. */
typedef struct sheaf__ops {
    uint32_t isa;

    /* out[i] = (x[i] * s) * w[i], s = 1 / sqrtf(sum / n + eps); sum of squares in the order of
     * a matrix product's dot (model/matmul.h). out may be x. */
    void (*rmsnorm)(const float *x, const float *w, float eps, uint32_t n, float *out);

    /* Rotates pairs (i, i + dim/2) of one head in place: a' = fma(-b, sin, a * cos),
     * b' = fma(a, sin, b * cos). cos, sin: [dim/2]. */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t dim);

    /* gate[i] = silu(gate[i]) * up[i] */
    void (*silu_mul)(float *gate, const float *up, uint32_t n);

    /* gate[i] = gelu(gate[i]) * up[i], by the tanh form; all in single precision:
     * c = x * x; u = fma(0.044715 * c, x, x); t = tanh(0.797884583 * u); gelu = (0.5 * x) * (1 + t) */
    void (*gelu_mul)(float *gate, const float *up, uint32_t n);

    /* x[i] = cap * tanh(x[i] / cap) */
    void (*softcap)(float *x, float cap, uint32_t n);

    /* x[i] = x[i] + y[i] */
    void (*add)(float *x, const float *y, uint32_t n);

    /* Widens a row of `dtype` exactly. src may be misaligned. */
    void (*widen)(const void *src, uint32_t dtype, uint32_t n, float *out);
} sheaf__ops;

/* The table of an instruction set already resolved; never null for one the processor has. */
const sheaf__ops *sheaf__ops_for(uint32_t isa);

#endif
