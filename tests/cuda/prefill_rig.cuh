/* tests/cuda/prefill_rig.cuh - a pool of random blocks on the GPU, and attention in double.
 *
 * Owns: what test_prefill.cu and the bench need to call the prefill kernels without sequences: blocks
 * filled directly in their codecs, wherever in a large range; queries; plain double attention.
 */
#ifndef SHEAF_TESTS_CUDA_PREFILL_RIG_CUH
#define SHEAF_TESTS_CUDA_PREFILL_RIG_CUH

#include "attn/cuda/prefill.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rig_ok.cuh"

struct rig_random {
    uint64_t state;
    uint64_t next()
    {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
    uint32_t below(uint32_t n) { return (uint32_t)(next() % n); }
    float uniform() { return (float)(next() >> 40) / 16777216.f; }
    float normal() /* near enough: the sum of four uniform numbers */
    {
        float s = uniform() + uniform() + uniform() + uniform();
        return (s - 2) * 1.7320508f;
    }
};

/* The options and shape of a case. */
struct rig_case {
    uint32_t dim, codec, io, block_tokens, kv_heads, group;
    uint32_t window, not_causal;
    float softcap;
    bool sinks;
};

/* One sequence: its encoded blocks and, for the reference, what they say. */
struct rig_sequence {
    uint32_t n_tokens, first_pos, n_queries;
    std::vector<unsigned char> blocks; /* [n_blocks][row_stride] */
    std::vector<float> k, v;           /* [n_tokens][kv_heads][dim] */
    std::vector<float> q;              /* [n_queries][heads][dim], rounded to io */
};

static inline uint32_t rig_row_bytes(const rig_case &c)
{
    return c.codec == SHEAF_CODEC_INT8     ? c.dim
           : c.codec == SHEAF_CODEC_TURBO4 ? c.dim / 2
                                           : c.dim * 2;
}

static inline uint64_t rig_segment(const rig_case &c)
{
    bool scaled = c.codec == SHEAF_CODEC_INT8 || c.codec == SHEAF_CODEC_TURBO4;
    return (uint64_t)c.block_tokens * (rig_row_bytes(c) + (scaled ? 4 : 0));
}

static inline uint64_t rig_tile(const rig_case &c)
{
    return (rig_segment(c) * c.kv_heads + 63) / 64 * 64;
}

static inline uint64_t rig_row_stride(const rig_case &c)
{
    return 2 * rig_tile(c);
}

static inline sheaf_kv_view rig_view(const rig_case &c, const unsigned char *base)
{
    sheaf_kv_view view;
    memset(&view, 0, sizeof view);
    view.base = base;
    view.row_stride_k = view.row_stride_v = rig_row_stride(c);
    view.v_offset = rig_tile(c);
    view.k_head_stride = view.v_head_stride = rig_segment(c);
    view.block_tokens = c.block_tokens;
    view.n_kv_heads = c.kv_heads;
    view.key_dim = view.value_dim = c.dim;
    view.codec_k = view.codec_v = c.codec;
    return view;
}

static inline float rig_round(uint32_t dtype, float x)
{
    if (dtype == SHEAF_DTYPE_BF16) return __bfloat162float(__float2bfloat16_rn(x));
    if (dtype == SHEAF_DTYPE_F16) return __half2float(__float2half_rn(x));
    return x;
}

static inline void rig_put(uint32_t dtype, unsigned char *at, float x)
{
    __nv_bfloat16 b = __float2bfloat16_rn(x);
    __half h = __float2half_rn(x);
    if (dtype == SHEAF_DTYPE_BF16)
        memcpy(at, &b, 2);
    else if (dtype == SHEAF_DTYPE_F16)
        memcpy(at, &h, 2);
    else
        memcpy(at, &x, 4);
}

static inline float rig_get(uint32_t dtype, const unsigned char *at)
{
    __nv_bfloat16 b;
    __half h;
    float x;
    memcpy(&b, at, 2);
    memcpy(&h, at, 2);
    if (dtype == SHEAF_DTYPE_BF16) return __bfloat162float(b);
    if (dtype == SHEAF_DTYPE_F16) return __half2float(h);
    memcpy(&x, at, 4);
    return x;
}

/* The inverse rotation of turbo4, in double, from its definition in docs/format.md. */
static inline void rig_unrotate(float *x, uint32_t dim)
{
    static const uint64_t signs[4] = {0xe220a8397b1dcdafull, 0x6e789e6aa1b965f4ull,
                                      0x06c45d188009454full, 0xf88bb8a8724c81ecull};
    std::vector<double> y(x, x + dim);
    for (uint32_t h = 1; h < dim; h *= 2)
        for (uint32_t i = 0; i < dim; i++)
            if ((i & h) == 0) {
                double a = y[i], b = y[i + h];
                y[i] = a + b;
                y[i + h] = a - b;
            }
    for (uint32_t i = 0; i < dim; i++)
        x[i] = (float)(y[i] / sqrt((double)dim) * (signs[i / 64] >> i % 64 & 1 ? -1 : 1));
}

/* One row: random codes into a segment, what they say into x: [dim]. */
static inline void rig_fill_row(const rig_case &c, rig_random &random, unsigned char *segment,
                                uint32_t slot, float *x)
{
    static const int levels[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                   6,    18,  31,  44,  58,  75,  96,  127};
    uint32_t bytes = rig_row_bytes(c);
    unsigned char *row = segment + (uint64_t)slot * bytes;
    float scale = (0.5f + random.uniform()) / 60;
    for (uint32_t d = 0; d < c.dim; d++) {
        float normal = random.normal();
        if (c.codec == SHEAF_CODEC_INT8) {
            int level = (int)lrintf(fminf(fmaxf(normal * 50, -127), 127));
            row[d] = (unsigned char)level;
            x[d] = scale * (float)level;
        } else if (c.codec == SHEAF_CODEC_TURBO4) {
            uint32_t code = random.below(16);
            row[d / 2] = (unsigned char)(d % 2 ? (row[d / 2] & 15) | code << 4 : code);
            x[d] = scale * (float)levels[code];
        } else {
            rig_put(c.codec, row + 2 * d, normal);
            x[d] = rig_round(c.codec, normal);
        }
    }
    if (c.codec == SHEAF_CODEC_TURBO4) rig_unrotate(x, c.dim);
    if (c.codec == SHEAF_CODEC_INT8 || c.codec == SHEAF_CODEC_TURBO4)
        memcpy(segment + (uint64_t)c.block_tokens * bytes + 4 * slot, &scale, 4);
}

/* Blocks of n_tokens positions; what is not written is NaN. */
static inline rig_sequence rig_make(const rig_case &c, rig_random &random, uint32_t n_tokens,
                                    uint32_t n_queries)
{
    rig_sequence s;
    s.n_tokens = n_tokens;
    s.n_queries = n_queries;
    s.first_pos = n_tokens - n_queries;
    uint32_t n_blocks = (n_tokens + c.block_tokens - 1) / c.block_tokens;
    s.blocks.assign(n_blocks * rig_row_stride(c), 0xff);
    s.k.resize((uint64_t)n_tokens * c.kv_heads * c.dim);
    s.v.resize(s.k.size());
    for (uint32_t p = 0; p < n_tokens; p++)
        for (uint32_t h = 0; h < c.kv_heads; h++) {
            unsigned char *tile = &s.blocks[p / c.block_tokens * rig_row_stride(c)];
            uint64_t at = ((uint64_t)p * c.kv_heads + h) * c.dim;
            rig_fill_row(c, random, tile + h * rig_segment(c), p % c.block_tokens, &s.k[at]);
            rig_fill_row(c, random, tile + rig_tile(c) + h * rig_segment(c), p % c.block_tokens,
                         &s.v[at]);
        }
    s.q.resize((uint64_t)n_queries * c.kv_heads * c.group * c.dim);
    for (float &x : s.q) x = rig_round(c.io, random.normal());
    return s;
}

/* One query and head a block: everything in double. seen: [lo, hi). */
static __global__ void rig_attend(const float *q, const float *k, const float *v,
                                  const float *sinks, double *out, rig_case c,
                                  uint32_t first_pos, uint32_t n_tokens, double scale)
{
    extern __shared__ double s[];
    __shared__ double top, total;
    uint32_t heads = c.kv_heads * c.group, head = blockIdx.x % heads, kv = head / c.group;
    uint32_t pos = first_pos + blockIdx.x / heads;
    uint32_t hi = c.not_causal ? n_tokens : min(pos + 1, n_tokens);
    uint32_t lo = c.window && pos + 1 > c.window ? pos + 1 - c.window : 0;
    for (uint32_t p = lo + threadIdx.x; p < hi; p += blockDim.x) {
        double sum = 0;
        for (uint32_t d = 0; d < c.dim; d++)
            sum += (double)q[(uint64_t)blockIdx.x * c.dim + d] *
                   (double)k[((uint64_t)p * c.kv_heads + kv) * c.dim + d];
        sum *= scale;
        s[p - lo] = c.softcap > 0 ? c.softcap * tanh(sum / c.softcap) : sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double m = sinks ? sinks[head] : -1e300, l = 0;
        for (uint32_t p = lo; p < hi; p++) m = fmax(m, s[p - lo]);
        for (uint32_t p = lo; p < hi; p++) l += exp(s[p - lo] - m);
        top = m;
        total = l + (sinks ? exp(sinks[head] - m) : 0);
    }
    __syncthreads();
    for (uint32_t d = threadIdx.x; d < c.dim; d += blockDim.x) {
        double sum = 0;
        for (uint32_t p = lo; p < hi; p++)
            sum +=
                exp(s[p - lo] - top) * (double)v[((uint64_t)p * c.kv_heads + kv) * c.dim + d];
        out[(uint64_t)blockIdx.x * c.dim + d] = hi > lo ? sum / total : 0;
    }
}

template <typename T> static T *rig_upload(const std::vector<T> &x)
{
    T *p = NULL;
    RIG_OK(cudaMalloc((void **)&p, (x.size() + 1) * sizeof(T)));
    RIG_OK(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static inline std::vector<double> rig_reference(const rig_case &c, const rig_sequence &s,
                                                const std::vector<float> &sinks)
{
    float *q = rig_upload(s.q), *k = rig_upload(s.k), *v = rig_upload(s.v);
    float *sink = rig_upload(sinks);
    double *out = NULL;
    RIG_OK(cudaMalloc((void **)&out, s.q.size() * sizeof(double)));
    RIG_OK(
        cudaFuncSetAttribute(rig_attend, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
    rig_attend<<<s.n_queries * c.kv_heads * c.group, 128, s.n_tokens * sizeof(double)>>>(
        q, k, v, c.sinks ? sink : NULL, out, c, s.first_pos, s.n_tokens,
        1 / sqrt((double)c.dim));
    RIG_OK(cudaGetLastError());
    std::vector<double> result(s.q.size());
    RIG_OK(
        cudaMemcpy(result.data(), out, result.size() * sizeof(double), cudaMemcpyDeviceToHost));
    cudaFree(q), cudaFree(k), cudaFree(v), cudaFree(sink), cudaFree(out);
    return result;
}

#endif
