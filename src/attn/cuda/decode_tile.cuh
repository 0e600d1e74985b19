// attn/cuda/decode_tile.cuh - one leaf of 64 positions by one warp, on tensor cores.
//
// Owns: how K and V lie in shared memory, and the order of the arithmetic inside a leaf.
//
// Queries are the columns of every product (8 to a tile), positions or dimensions the rows:
//
//     S^T [64 positions x 8] = K [64 x D] Q^T [D x 8]           m16n8k16, 4 tiles of 16 positions
//     O^T [D x 8]           += V^T [D x 64] P^T [64 x 8]        m16n8k16, 4 steps of 16 positions
//
// K or V of 32 positions (bf16, f16) or 64 fill a slot. Each row of `ROW` bytes lies there in strips of
// up to 128 bytes, [strip][position], as the copy engine swizzles them (tensor_map.h): so eight rows of
// a product are read without bank conflicts, and so is V, transposed on the way. Scales lie apart.
// Row r of a product's tile i is position 16 i + r.
//
// int8 and turbo4 are products of integers (m16n8k32), exact: codes as they are, or looked up, are
// signed bytes. A query is 14 bits and a sign, a weight 16 bits, both as two bytes, so two products
// that meet as integers. Inside a dot product the order of dimensions is free as long as Q follows it:
// a lane takes consecutive bytes of a K row for several steps (step_dim).
//
// m, l, o: running maximum (base 2), denominator and sums of a column; letters as in
// FlashAttention.
#ifndef SHEAF_ATTN_CUDA_DECODE_TILE_CUH
#define SHEAF_ATTN_CUDA_DECODE_TILE_CUH

#include "attn/cuda/decode.h"
#include "attn/cuda/instructions.cuh"

namespace sheaf_cuda
{

constexpr uint32_t F32 = 0, F16 = 1, BF16 = 2, INT8 = 3, TURBO4 = 4; // as sheaf/codec.h

template <uint32_t C, int D_> struct shape {
    static constexpr int D = D_;
    static constexpr bool RAW = C == F16 || C == BF16;
    static constexpr bool HALF = C != BF16; // products of f16, or of bytes: queries are scaled
    static constexpr int ROW = RAW ? 2 * D : C == INT8 ? D : D / 2;
    static constexpr int HALVES = RAW ? 2 : 1;    // slots that a leaf's K, or its V, fills
    static constexpr int TILES = 4 / HALVES;      // of 16 positions in a slot
    static constexpr int POSITIONS = 64 / HALVES; // of a slot
    static constexpr int WIDTH = ROW < 128 ? ROW : 128;
    static constexpr int STRIPS = ROW / WIDTH;
    static constexpr int STRIP = POSITIONS * WIDTH;
    static constexpr int SLOT = POSITIONS * ROW;
    static constexpr int SCALES = RAW ? 0 : 256;      // bytes beside a slot
    static constexpr int STEPS = D / (RAW ? 16 : 32); // of a dot product
    // Of a multiprocessor, by their registers and rings. Of two the warps that compute get REGISTERS
    // each, those that help them what is left.
    static constexpr int TEAMS = D == 256 && C != TURBO4 ? 1 : 2;
    static constexpr int REGISTERS = RAW ? 208 : 216;
    static constexpr int HELPER_REGISTERS = RAW ? 88 : 72;
    static constexpr int OCTETS = D / 64; // of consecutive dimensions that a lane's rows hold
};

// What packing left behind, packed itself.
template <bool HALF>
__device__ __forceinline__ uint32_t pack_rest(float x, float y, uint32_t hi)
{
    float2 h = unpack<HALF>(hi);
    return pack<HALF>(__fsub_rn(x, h.x), __fsub_rn(y, h.y));
}

// --- codes to bytes --------------------------------------------------------------------------

// The levels of turbo4, and masks, as the host has given them: what compilers know they make immediates,
// of which an instruction takes one, or move before each use.
template <uint32_t C> struct code_book {
    uint32_t n0, n1, p0, p1; // levels, of codes 0 to 7 and 8 to 15
    uint32_t low, index, sign, bytes;

    __device__ __forceinline__ explicit code_book(const sheaf__cuda_decode &in)
        : n0(in.levels[0]), n1(in.levels[1]), p0(in.levels[2]), p1(in.levels[3]),
          low(in.masks[0]), index(in.masks[1]), sign(in.masks[2]), bytes(in.masks[3])
    {
    }

    // Eight codes as signed levels: codes 0 to 3 in lo, 4 to 7 in hi.
    __device__ __forceinline__ void levels(uint32_t codes, uint32_t &lo, uint32_t &hi) const
    {
        const uint32_t at = codes & index, from = ((codes >> 1) & sign) | bytes;
        lo = permute(permute(n0, n1, at), permute(p0, p1, at), from);
        hi = permute(permute(n0, n1, at >> 16), permute(p0, p1, at >> 16), from >> 16);
    }
};

// Four words as a matrix of bytes, transposed: word j gets byte j of each.
__device__ __forceinline__ void transpose_bytes(uint32_t (&to)[4], const uint32_t (&x)[4])
{
    const uint32_t a = permute(x[0], x[1], 0x5140u), b = permute(x[2], x[3], 0x5140u);
    const uint32_t c = permute(x[0], x[1], 0x7362u), d = permute(x[2], x[3], 0x7362u);
    to[0] = permute(a, b, 0x5410u), to[1] = permute(a, b, 0x7632u);
    to[2] = permute(c, d, 0x5410u), to[3] = permute(c, d, 0x7632u);
}

// --- places ----------------------------------------------------------------------------------

// A slot and its scales, in shared memory.
struct slot_at {
    uint32_t data, scales;
};

// What swizzling adds to the address of byte b of a position: they meet by exclusive or.
template <int WIDTH> __device__ __forceinline__ uint32_t swizzled(int position, int b)
{
    const int row = position * WIDTH / 128 % (WIDTH / 16);
    return (uint32_t)(b ^ (row << 4));
}

// The first dimension that lane t holds in step s of a dot product. Of bf16 and f16 it holds two there
// and two that are 8 on; of the others eight consecutive ones, of a strip those of consecutive bytes.
template <uint32_t C, int D> __device__ __forceinline__ int step_dim(int s, int t)
{
    using S = shape<C, D>;
    if (S::RAW) return 16 * s + 2 * t;
    constexpr int each = D / S::STRIPS / 4;
    return s / (each / 8) * 4 * each + each * t + 8 * (s % (each / 8));
}

// The first of the eight consecutive dimensions that lanes of g hold in octet k of the output. Of
// bf16 and f16 they are no octets: number i + 4f is of dimension 16 * (4k + i) + 8f + g.
__device__ __forceinline__ int octet_dim(int k, int g)
{
    return 8 * (g + 8 * k);
}

// Position, inside a leaf, of row g (+ 8 for f = 1) of its tile i; lanes with g = lane / 4.
__device__ __forceinline__ int position_of(int g, int i, int f)
{
    return 16 * i + 8 * f + g;
}

// --- numbers as two bytes --------------------------------------------------------------------

// A query's numbers lie in (-2, 2) (stage_query), a weight in [0, 2).
constexpr int QUERY_HIGH = 128; // its high byte's worth: the low one is -64 to 63
constexpr float QUERY_ONE = 8000.0f, WEIGHT_ONE = 32767.0f;

// --- a warp's queries and sums ---------------------------------------------------------------

// Of quantized codecs the high and the low byte of four numbers a word.
template <uint32_t C, int D, int NT, bool PRECISE> struct queries {
    static constexpr bool LOW = PRECISE || !shape<C, D>::RAW;
    static constexpr int STEPS = shape<C, D>::STEPS;
    uint32_t hi[NT][STEPS][2];
    uint32_t lo[LOW ? NT : 1][LOW ? STEPS : 1][2];
    float scale[NT][2]; // of the lane's columns 2t and 2t + 1
};

template <int D, int NT> struct sums {
    float o[NT][D / 64][4]
           [4]; // [octet][dimension pair m, m + 4][column, row half as mma gives it]
    float m[NT][2], l[NT][2];
};

// a = a then b, in that order.
template <int D, int NT>
__device__ __forceinline__ void merge_into(sums<D, NT> &a, const sums<D, NT> &b)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float ea[2], eb[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float m = fmaxf(a.m[n][c], b.m[n][c]);
            ea[c] = exp2_fast(__fsub_rn(a.m[n][c], m));
            eb[c] = exp2_fast(__fsub_rn(b.m[n][c], m));
            a.m[n][c] = m;
            a.l[n][c] = __fmaf_rn(b.l[n][c], eb[c], __fmul_rn(a.l[n][c], ea[c]));
        }
#pragma unroll
        for (int k = 0; k < D / 64; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    a.o[n][k][j][c] = __fmaf_rn(b.o[n][k][j][c], eb[c & 1],
                                                __fmul_rn(a.o[n][k][j][c], ea[c & 1]));
    }
}

// Sums in shared memory: [register][lane].
template <int D, int NT> __host__ __device__ constexpr int sums_bytes()
{
    return (NT * D / 4 + 4 * NT) * 128;
}

template <int D, int NT>
__device__ __forceinline__ void sums_store(float *to, const sums<D, NT> &s, int lane)
{
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
        for (int k = 0; k < D / 64; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    to[(((n * (D / 64) + k) * 4 + j) * 4 + c) * 32 + lane] = s.o[n][k][j][c];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            to[(NT * D / 4 + n * 4 + c) * 32 + lane] = s.m[n][c];
            to[(NT * D / 4 + n * 4 + 2 + c) * 32 + lane] = s.l[n][c];
        }
    }
}

// s = what `from` holds, then s; the lane's own words, so no barrier is needed.
template <int D, int NT>
__device__ __forceinline__ void sums_fold(sums<D, NT> &s, const float *from, int lane)
{
    float ea[NT][2], eb[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float am = from[(NT * D / 4 + n * 4 + c) * 32 + lane];
            float al = from[(NT * D / 4 + n * 4 + 2 + c) * 32 + lane];
            float m = fmaxf(am, s.m[n][c]);
            ea[n][c] = exp2_fast(__fsub_rn(am, m));
            eb[n][c] = exp2_fast(__fsub_rn(s.m[n][c], m));
            s.m[n][c] = m;
            s.l[n][c] = __fmaf_rn(s.l[n][c], eb[n][c], __fmul_rn(al, ea[n][c]));
        }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int k = 0; k < D / 64; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float a = from[(((n * (D / 64) + k) * 4 + j) * 4 + c) * 32 + lane];
                    s.o[n][k][j][c] =
                        __fmaf_rn(s.o[n][k][j][c], eb[n][c & 1], __fmul_rn(a, ea[n][c & 1]));
                }
}

// --- scores ----------------------------------------------------------------------------------

// One step of a slot's tiles against every column.
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void score_step(float (&s)[NT][4][4], int half, int step,
                                           const uint32_t (&a)[shape<C, D>::TILES][4],
                                           const queries<C, D, NT, PRECISE> &q)
{
    constexpr bool HALF = shape<C, D>::HALF;
    constexpr int TILES = shape<C, D>::TILES;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
            mma<HALF>(s[n][half * TILES + i], a[i], q.hi[n][step][0], q.hi[n][step][1]);
    if constexpr (queries<C, D, NT, PRECISE>::LOW)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < TILES; i++)
                mma<HALF>(s[n][half * TILES + i], a[i], q.lo[n][step][0], q.lo[n][step][1]);
}

__device__ __forceinline__ uint32_t word(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Eight numbers each of two rows, x and y, those of step s of the ones that were loaded.
template <uint32_t C>
__device__ __forceinline__ void dot_operand(uint32_t (&a)[4], const uint4 &x, const uint4 &y,
                                            int s, const code_book<C> &book)
{
    if constexpr (C == INT8) {
        a[0] = word(x, 2 * s), a[1] = word(y, 2 * s);
        a[2] = word(x, 2 * s + 1), a[3] = word(y, 2 * s + 1);
    } else {
        book.levels(word(x, s), a[0], a[2]);
        book.levels(word(y, s), a[1], a[3]);
    }
}

// The steps of bf16 and f16: K rows come as the products take them.
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores_raw(float (&s)[NT][4][4], int half, uint32_t slot,
                                           int lane, const queries<C, D, NT, PRECISE> &q)
{
    using S = shape<C, D>;
    const uint32_t at = slot + (lane & 15) * 128 + swizzled<128>(lane & 7, (lane >> 4) * 16);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < S::TILES; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[n][half * S::TILES + i][c] = 0.0f;
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
        uint32_t a[S::TILES][4];
#pragma unroll
        for (int i = 0; i < S::TILES; i++)
            load_matrices<false>(a[i],
                                 (at ^ (32 * step & 127)) + step / 4 * S::STRIP + 2048 * i);
        score_step<C, D, NT, PRECISE>(s, half, step, a, q);
    }
}

template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores_quantized(float (&s)[NT][4][4], uint32_t slot, int lane,
                                                 const queries<C, D, NT, PRECISE> &q,
                                                 const code_book<C> &book)
{
    using S = shape<C, D>;
    const int g = lane >> 2, t = lane & 3;
    constexpr int BYTES = S::WIDTH == 32 ? 8 : 16; // of a row that a lane takes at once
    constexpr int LOADS = S::WIDTH / 4 / BYTES;    // of a strip
    constexpr int STEPS = S::STEPS / LOADS / S::STRIPS;
    const uint32_t at = slot + g * S::WIDTH + swizzled<S::WIDTH>(g, t * S::WIDTH / 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int hi[NT][4] = {}, lo[NT][4] = {};
#pragma unroll
        for (int j = 0; j < LOADS * S::STRIPS; j++) {
            const uint32_t from =
                (at ^ (j % LOADS * BYTES)) + j / LOADS * S::STRIP + 16 * i * S::WIDTH;
            const uint4 x = load_up_to_16<BYTES>(from);
            const uint4 y = load_up_to_16<BYTES>(from + 8 * S::WIDTH);
#pragma unroll
            for (int w = 0; w < STEPS; w++) {
                const int step = STEPS * j + w;
                uint32_t a[4];
                dot_operand<C>(a, x, y, w, book);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mma_bytes<true>(hi[n], a, q.hi[n][step][0], q.hi[n][step][1]);
                    mma_bytes<true>(lo[n], a, q.lo[n][step][0], q.lo[n][step][1]);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[n][i][c] = __int2float_rn(QUERY_HIGH * hi[n][c] + lo[n][c]);
    }
}

// s: [tile][...] sums over dimensions, before any scale; those of the slot's half of the leaf
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores(float (&s)[NT][4][4], int half, uint32_t slot, int lane,
                                       const queries<C, D, NT, PRECISE> &q,
                                       const code_book<C> &book)
{
    if constexpr (shape<C, D>::RAW)
        scores_raw<C, D, NT, PRECISE>(s, half, slot, lane, q);
    else
        scores_quantized<C, D, NT, PRECISE>(s, slot, lane, q, book);
}

// A maximum or a sum over the eight lanes that hold the rows of a column, the same in all of
// them.
__device__ __forceinline__ float column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 4));
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 8));
    return fmaxf(x, __shfl_xor_sync(ALL, x, 16));
}

__device__ __forceinline__ float column_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(ALL, x, 4));
    x = __fadd_rn(x, __shfl_xor_sync(ALL, x, 8));
    return __fadd_rn(x, __shfl_xor_sync(ALL, x, 16));
}

// The positions of a leaf that are seen, [lo, hi) of 0 to 64; whole: all of them.
struct seen {
    int lo, hi;
    bool whole;
};

constexpr float LOG2E = 1.4426950408889634f;

// c tanh(x / c), times LOG2E.
struct soft_cap {
    float inner, outer;

    __device__ __forceinline__ explicit soft_cap(float c)
    {
        inner = __fdiv_rn(2.0f * LOG2E, c);
        outer = __fmul_rn(c, LOG2E);
    }

    __device__ __forceinline__ float of(float x) const
    {
        const float e = exp2_fast(__fmul_rn(x, inner));
        const float half = reciprocal_fast(__fadd_rn(e, 1.0f));
        return __fmul_rn(__fmaf_rn(-2.0f, half, 1.0f), outer);
    }
};

// Of all; apart, so that its code does not lie among what always runs.
template <int NT>
__device__ __forceinline__ void cap_logits(float (&s)[NT][4][4], const float (&scale)[NT][2],
                                           float softcap)
{
    const soft_cap cap(softcap);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                s[n][i][c] = cap.of(__fmul_rn(s[n][i][c], scale[n][c & 1]));
}

// Products to what weights are powers of: base-2 logits are these times `factor`. q.scale has no LOG2E
// where there is a soft cap. The result, of quantized codecs: bits that cannot be known before the scales
// are there, and what they were multiplied with.
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ uint32_t logits(float (&s)[NT][4][4], float (&factor)[NT][2],
                                           slot_at slot, int lane, seen see, float softcap,
                                           const queries<C, D, NT, PRECISE> &q)
{
    const int g = lane >> 2;
    uint32_t made = 0;
    if constexpr (!shape<C, D>::RAW) { // without this brace nvcc 13.0 drops the next loop, too
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                const float scale =
                    __uint_as_float(load4(slot.scales + 4 * position_of(g, i, f)));
#pragma unroll
                for (int n = 0; n < NT; n++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        s[n][i][2 * f + c] = __fmul_rn(s[n][i][2 * f + c], scale);
                made |= __float_as_uint(s[0][i][2 * f]);
            }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) factor[n][c] = softcap != 0.0f ? 1.0f : q.scale[n][c];
    if (softcap != 0.0f) cap_logits<NT>(s, q.scale, softcap);
    if (see.whole) return made;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
            const int position = position_of(g, i, f);
            const bool visible = position >= see.lo && position < see.hi;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (!visible) s[n][i][2 * f + c] = -INFINITY;
        }
    return made;
}

// These to exponentials, their maximum and their sum. A factor is positive.
template <int D, int NT>
__device__ __forceinline__ void exponentials(float (&s)[NT][4][4], const float (&factor)[NT][2],
                                             sums<D, NT> &to)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float m = s[n][0][c], l = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) m = fmaxf(fmaxf(m, s[n][i][c]), s[n][i][2 + c]);
            m = __fmul_rn(column_max(m), factor[n][c]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    float p = exp2_fast(__fmaf_rn(s[n][i][2 * f + c], factor[n][c], -m));
                    s[n][i][2 * f + c] = p;
                    l = __fadd_rn(l, p);
                }
            to.m[n][c] = m;
            to.l[n][c] = column_sum(l);
        }
}

// --- values ----------------------------------------------------------------------------------

// Of quantized values a word of four high bytes, then one of four low ones.
template <int NT, bool LOW> struct weights {
    uint32_t hi[NT][4][2];
    uint32_t lo[LOW ? NT : 1][LOW ? 4 : 1][2];
    float unit[NT][2]; // that the sums of the lane's columns are to be multiplied by
};

template <uint32_t C, int NT, bool LOW>
__device__ __forceinline__ void weigh_raw(weights<NT, LOW> &w, const float (&p)[NT][4][4])
{
    constexpr bool HALF = C == F16;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                uint32_t x = pack<HALF>(p[n][i][2 * f], p[n][i][2 * f + 1]);
                w.hi[n][i][f] = transpose8(x);
                if constexpr (LOW)
                    w.lo[n][i][f] =
                        transpose8(pack_rest<HALF>(p[n][i][2 * f], p[n][i][2 * f + 1], x));
            }
}

// The power of two below the greatest of some numbers, given by their bits without a sign; NaN where one
// of them is no number, or nearly too large for one.
__device__ __forceinline__ uint32_t unit_below(uint32_t top)
{
    const uint32_t exponent = top & 0x7f800000u;
    return exponent >= 0x7f000000u ? 0x7fc00000u : exponent;
}

// The same over the eight lanes that hold the rows of a column.
__device__ __forceinline__ uint32_t column_top(uint32_t x)
{
    x = max(x, __shfl_xor_sync(ALL, x, 4));
    x = max(x, __shfl_xor_sync(ALL, x, 8));
    return max(x, __shfl_xor_sync(ALL, x, 16));
}

// Weights of quantized values are p * scale / unit in parts of WEIGHT_ONE, unit the power of two below
// the greatest p * scale of the column.
template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void weigh_quantized(weights<NT, LOW> &w, const float (&p)[NT][4][4],
                                                slot_at slot, int lane)
{
    const int g = lane >> 2;
    float scale[4][2];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int f = 0; f < 2; f++)
            scale[i][f] = __uint_as_float(load4(slot.scales + 4 * position_of(g, i, f)));
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float x[4][4], inverse[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t top = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    x[i][2 * f + c] = __fmul_rn(p[n][i][2 * f + c], scale[i][f]);
                    top = max(top, __float_as_uint(x[i][2 * f + c]) & 0x7fffffffu);
                }
            uint32_t unit = unit_below(column_top(top));
            if (unit < 0x08000000u) unit = 0x3f800000u; // so small that nothing is left
            inverse[c] = __fmul_rn(__uint_as_float(0x7f000000u - unit), WEIGHT_ONE);
            w.unit[n][c] = __fmul_rn(__uint_as_float(unit), 1.0f / WEIGHT_ONE);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t turned[2];
#pragma unroll
            for (int f = 0; f < 2; f++) {
                const int a = __float2int_rn(__fmul_rn(x[i][2 * f], inverse[0]));
                const int b = __float2int_rn(__fmul_rn(x[i][2 * f + 1], inverse[1]));
                turned[f] = transpose8(permute((uint32_t)a, (uint32_t)b, 0x5410u));
            }
            w.hi[n][i][0] = permute(turned[0], turned[1], 0x7531u);
            w.hi[n][i][1] = permute(turned[0], turned[1], 0x6420u);
        }
    }
}

template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void weigh(weights<NT, LOW> &w, const float (&p)[NT][4][4],
                                      slot_at slot, int lane)
{
    if constexpr (shape<C, D>::RAW)
        weigh_raw<C, NT, LOW>(w, p);
    else
        weigh_quantized<C, D, NT, LOW>(w, p, slot, lane);
}

template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void value_step(sums<D, NT> &to, int i, int k, int j,
                                           const uint32_t (&a)[4], const weights<NT, LOW> &w)
{
    constexpr bool HALF = shape<C, D>::HALF;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        mma<HALF>(to.o[n][k][j], a, w.hi[n][i][0], w.hi[n][i][1]);
        if constexpr (LOW) mma<HALF>(to.o[n][k][j], a, w.lo[n][i][0], w.lo[n][i][1]);
    }
}

// Tile i of a slot, `tile` of the leaf.
template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void values_raw(sums<D, NT> &to, uint32_t slot, int lane, int i,
                                           int tile, const weights<NT, LOW> &w)
{
    using S = shape<C, D>;
    const uint32_t at = slot + 2048 * i + (lane >> 4) * 1024 + (lane & 7) * 128 +
                        swizzled<128>(lane & 7, (lane >> 3 & 1) * 16);
#pragma unroll
    for (int k = 0; k < S::OCTETS; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4];
            load_matrices<true>(a, (at ^ (32 * j)) + k * S::STRIP);
            value_step<C, D, NT, LOW>(to, tile, k, j, a, w);
        }
}

// An octet of the lane's four positions of a tile, byte p of word d being position p's number d. at:
// of the first two.
template <uint32_t C, int D>
__device__ __forceinline__ void octet_load(uint32_t (&lo)[4], uint32_t (&hi)[4],
                                           const uint32_t (&at)[2], const code_book<C> &book)
{
    uint32_t x[4], y[4];
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const uint32_t from = at[r & 1] + r / 2 * 8 * shape<C, D>::WIDTH;
        if constexpr (C == INT8) {
            const uint4 z = load_up_to_16<8>(from);
            x[r] = z.x, y[r] = z.y;
        } else {
            x[r] = load4(from);
        }
    }
    if constexpr (C == INT8) {
        transpose_bytes(lo, x);
        transpose_bytes(hi, y);
    } else { // two positions to a byte, then four codes of a dimension side by side
        const uint32_t low = book.low;
        const uint32_t even = (x[0] & low) | ((x[1] << 4) & ~low);
        const uint32_t odd = ((x[0] >> 4) & low) | (x[1] & ~low);
        const uint32_t even2 = (x[2] & low) | ((x[3] << 4) & ~low);
        const uint32_t odd2 = ((x[2] >> 4) & low) | (x[3] & ~low);
        book.levels(permute(even, even2, 0x5140u), lo[0], lo[2]);
        book.levels(permute(odd, odd2, 0x5140u), lo[1], lo[3]);
        book.levels(permute(even, even2, 0x7362u), hi[0], hi[2]);
        book.levels(permute(odd, odd2, 0x7362u), hi[1], hi[3]);
    }
}

template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void values_quantized(sums<D, NT> &to, uint32_t slot, int lane,
                                                 const weights<NT, LOW> &w,
                                                 const code_book<C> &book)
{
    using S = shape<C, D>;
    constexpr int OCTETS = 64 * S::ROW / D; // bytes of those of all lanes
    const int g = lane >> 2, t = lane & 3;
    uint32_t at[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
        at[e] = slot + (2 * t + e) * S::WIDTH +
                swizzled<S::WIDTH>(2 * t + e, octet_dim(0, g) * S::ROW / D);
#pragma unroll
    for (int k = 0; k < S::OCTETS; k++) {
        uint32_t lo[4][4], hi[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t from[2];
#pragma unroll
            for (int e = 0; e < 2; e++)
                from[e] = (at[e] ^ (k * OCTETS % S::WIDTH)) + k * OCTETS / S::WIDTH * S::STRIP +
                          16 * i * S::WIDTH;
            octet_load<C, D>(lo[i], hi[i], from, book);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t a[4] = {lo[0][j], hi[0][j], lo[1][j], hi[1][j]};
            const uint32_t b[4] = {lo[2][j], hi[2][j], lo[3][j], hi[3][j]};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                int high[4] = {}, rest[4] = {};
                mma_bytes<false>(high, a, w.hi[n][0][0], w.hi[n][1][0]);
                mma_bytes<false>(rest, a, w.hi[n][0][1], w.hi[n][1][1]);
                mma_bytes<false>(high, b, w.hi[n][2][0], w.hi[n][3][0]);
                mma_bytes<false>(rest, b, w.hi[n][2][1], w.hi[n][3][1]);
#pragma unroll
                for (int c = 0; c < 4; c++)
                    to.o[n][k][j][c] =
                        __fmul_rn(__int2float_rn(256 * high[c] + rest[c]), w.unit[n][c & 1]);
            }
        }
    }
}

// Adds the values of the slot's half of the leaf.
template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void values(sums<D, NT> &to, int half, uint32_t slot, int lane,
                                       const weights<NT, LOW> &w, const code_book<C> &book)
{
    using S = shape<C, D>;
    if constexpr (!S::RAW) {
        values_quantized<C, D, NT, LOW>(to, slot, lane, w, book);
    } else {
        if (half == 0)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int k = 0; k < S::OCTETS; k++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
#pragma unroll
                        for (int c = 0; c < 4; c++) to.o[n][k][j][c] = 0.0f;
#pragma unroll
        for (int i = 0; i < S::TILES; i++)
            values_raw<C, D, NT, LOW>(to, slot, lane, i, half * S::TILES + i, w);
    }
}

// Zeroes what is not seen of V in a slot: it may hold anything, and 0 * NaN is NaN.
template <uint32_t C, int D>
__device__ __forceinline__ void clean(int half, slot_at slot, int lane, seen see)
{
    using S = shape<C, D>;
    for (int p = 0; p < S::POSITIONS; p++) {
        const int position = S::POSITIONS * half + p;
        if (position >= see.lo && position < see.hi) continue;
        if constexpr (S::RAW) {
            for (int strip = 0; strip < S::STRIPS; strip++)
                store4(slot.data + strip * S::STRIP + p * S::WIDTH + 4 * lane, 0);
        } else if (lane == 0) {
            store4(slot.scales + 4 * p, 0);
        }
    }
    fence_async();
    __syncwarp();
}

} // namespace sheaf_cuda

#endif
