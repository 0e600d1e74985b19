// attn/cuda/decode_tile.cuh - one leaf of 64 positions by one warp, on tensor cores.
//
// Owns: how K and V lie in shared memory, and the order of the arithmetic inside a leaf.
//
// Queries are the columns of every product (8 to a tile), positions or dimensions the rows:
//
//     S^T [64 positions x 8] = K [64 x D] Q^T [D x 8]           m16n8k16, 4 tiles of 16 positions
//     O^T [D x 8]           += V^T [D x 64] P^T [64 x 8]        m16n8k16, 4 steps of 16 positions
//
// Bulk copies bring consecutive positions of a head (a piece), contiguous, no swizzle.
//
//     bf16, f16      4 to a piece, 8 pieces to a slot: half a leaf. Pieces are 16 bytes apart beyond
//                    their size: ldmatrix takes a row of 16 bytes from each of the eight, which begin
//                    in different banks. Row r = j + 8f of tile i of a slot is row 2i + f of piece j;
//                    V is transposed as it is loaded.
//     int8, turbo4   16 to a piece, 4 pieces to a slot: a leaf. Pieces are 32 bytes apart beyond their
//                    size. Row r = 2t + e + 8f of tile i is row 4i + 2f + e of piece t ^ 2e, by which
//                    reads of 16 bytes are free of bank conflicts for rows of 128 bytes and more: K rows
//                    2t and 2t + 1 lie 64 bytes apart, and the positions that one lane pairs for V come
//                    from the piece of its t. Inside a dot product the order of dimensions is free as
//                    long as Q follows it: a lane takes 16 consecutive bytes of a K row for several
//                    steps (step_dim).
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
    static constexpr bool HALF = C != BF16; // products of f16
    static constexpr int ROW = RAW ? 2 * D : C == INT8 ? D : D / 2;
    static constexpr int HALVES = RAW ? 2 : 1; // slots that a leaf's K, or its V, fills
    static constexpr int TILES = 4 / HALVES;   // of 16 positions in a slot
    static constexpr int PIECES = RAW ? 8 : 4; // of a slot
    static constexpr int ROWS = RAW ? 4 : 16;  // positions of a piece
    static constexpr int PIECE = ROWS * ROW + (RAW ? 16 : 32);
    static constexpr int SCALES = PIECES * PIECE;
    static constexpr int SLOT = SCALES + (RAW ? 0 : 256);
    static constexpr int STEPS = D / 16;
    // of a multiprocessor, by their registers
    static constexpr int TEAMS = RAW || D == 256 ? 2 : 3;
    static constexpr int OCTETS = D / 64; // of consecutive dimensions that a lane's rows hold
};

// What packing left behind, packed itself.
template <bool HALF>
__device__ __forceinline__ uint32_t pack_rest(float x, float y, uint32_t hi)
{
    float2 h = unpack<HALF>(hi);
    return pack<HALF>(__fsub_rn(x, h.x), __fsub_rn(y, h.y));
}

// --- codes to numbers ------------------------------------------------------------------------

// Bytes 0, 1 and 2, 3 of biased levels (level + 128) as f16.
__device__ __forceinline__ void widen(uint32_t u, uint32_t &lo, uint32_t &hi)
{
    const uint32_t magic = 0x64646464u, bias = 0x64806480u; // 1024 + u; 1024 + 128
    uint32_t a = permute(u, magic, 0x4140u), b = permute(u, magic, 0x4342u);
    __half2 x =
        __hsub2(*reinterpret_cast<__half2 *>(&a), *reinterpret_cast<const __half2 *>(&bias));
    __half2 y =
        __hsub2(*reinterpret_cast<__half2 *>(&b), *reinterpret_cast<const __half2 *>(&bias));
    lo = *reinterpret_cast<uint32_t *>(&x);
    hi = *reinterpret_cast<uint32_t *>(&y);
}

// Eight codes of turbo4 as biased levels: codes 0 to 3 in lo, 4 to 7 in hi.
__device__ __forceinline__ void levels(uint32_t codes, uint32_t &lo, uint32_t &hi)
{
    const uint32_t n0 = 0x46352001u,
                   n1 = 0x7a6e6154u; // codes 0 to 7: -127 -96 ... -6, plus 128
    const uint32_t p0 = 0xac9f9286u, p1 = 0xffe0cbbau; // codes 8 to 15: 6 18 ... 127, plus 128
    uint32_t index = codes & 0x77777777u;
    uint32_t sign = ((codes >> 1) & 0x44444444u) | 0x32103210u;
    lo = permute(permute(n0, n1, index), permute(p0, p1, index), sign);
    hi = permute(permute(n0, n1, index >> 16), permute(p0, p1, index >> 16), sign >> 16);
}

// --- places ----------------------------------------------------------------------------------

// The first of the four consecutive dimensions that lane t holds in step s of a dot product;
// of bf16 and f16, of its first two, and the others are 8 on.
template <uint32_t C, int D> __device__ __forceinline__ int step_dim(int s, int t)
{
    if (shape<C, D>::RAW) return 16 * s + 2 * t;
    if (C == INT8) return 16 * (t + 4 * (s >> 2)) + 4 * (s & 3);
    if (D == 64) return 16 * t + 4 * s;
    return 32 * (t + 4 * (s >> 3)) + 4 * (s & 7);
}

// The first of the eight consecutive dimensions that lanes of g hold in octet k of the output.
// Of bf16 and f16 they are no octets: number i + 4f is of dimension 16 * (4k + i) + 8f + g.
template <uint32_t C, int D> __device__ __forceinline__ int octet_dim(int k, int g)
{
    if (C == INT8) return D == 64 ? 8 * g : 16 * (g + 8 * (k >> 1)) + 8 * (k & 1);
    return D / 8 * g + 8 * k;
}

// Position, inside a leaf, of row g (+ 8 for f = 1) of its tile i; lanes with g = lane / 4.
template <uint32_t C, int D> __device__ __forceinline__ int position_of(int g, int i, int f)
{
    if (shape<C, D>::RAW) return 32 * (i / 2) + 4 * g + 2 * (i % 2) + f;
    const int t = g >> 1, e = g & 1;
    return 16 * (t ^ (2 * e)) + 4 * i + 2 * f + e;
}

// --- a warp's queries and sums ---------------------------------------------------------------

template <uint32_t C, int D, int NT, bool PRECISE> struct queries {
    static constexpr bool LOW = PRECISE || C == TURBO4;
    uint32_t hi[NT][D / 16][2];
    uint32_t lo[LOW ? NT : 1][LOW ? D / 16 : 1][2];
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

// Four numbers each of two rows, x and y, the w-th of those that were loaded.
template <uint32_t C>
__device__ __forceinline__ void dot_operand(uint32_t (&a)[4], const uint4 &x, const uint4 &y,
                                            int w)
{
    if constexpr (C == INT8) {
        widen(word(x, w) ^ 0x80808080u, a[0], a[2]);
        widen(word(y, w) ^ 0x80808080u, a[1], a[3]);
    } else {
        uint32_t x0, x1, y0, y1;
        levels(word(x, w >> 1), x0, x1);
        levels(word(y, w >> 1), y0, y1);
        widen(w & 1 ? x1 : x0, a[0], a[2]);
        widen(w & 1 ? y1 : y0, a[1], a[3]);
    }
}

// The steps of bf16 and f16: K rows come as the products take them.
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores_raw(float (&s)[NT][4][4], int half, uint32_t slot,
                                           int lane, const queries<C, D, NT, PRECISE> &q)
{
    using S = shape<C, D>;
    const uint32_t at =
        slot + (lane & 7) * S::PIECE + (lane >> 3 & 1) * S::ROW + (lane >> 4) * 16;
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
        uint32_t a[S::TILES][4];
#pragma unroll
        for (int i = 0; i < S::TILES; i++)
            load_matrices<false>(a[i], at + 2 * i * S::ROW + 32 * step);
        score_step<C, D, NT, PRECISE>(s, half, step, a, q);
    }
}

template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores_quantized(float (&s)[NT][4][4], uint32_t slot, int lane,
                                                 const queries<C, D, NT, PRECISE> &q)
{
    using S = shape<C, D>;
    const int g = lane >> 2, t = lane & 3;
    constexpr int BYTES = S::ROW >= 64 ? 16 : 8;         // of a row that a lane takes at once
    constexpr int STEPS = S::STEPS * 4 * BYTES / S::ROW; // of a dot product in them
    const uint32_t at =
        slot + ((g >> 1) ^ (2 * (g & 1))) * S::PIECE + (g & 1) * S::ROW + t * BYTES;
#pragma unroll
    for (int j = 0; j < S::ROW / (4 * BYTES); j++) {
        uint4 x[4], y[4];
        uint32_t a[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t from = at + 4 * i * S::ROW + 4 * j * BYTES;
            x[i] = load_up_to_16<BYTES>(from);
            y[i] = load_up_to_16<BYTES>(from + 2 * S::ROW);
        }
#pragma unroll
        for (int w = 0; w < STEPS; w++) {
#pragma unroll
            for (int i = 0; i < 4; i++) dot_operand<C>(a[i], x[i], y[i], w);
            score_step<C, D, NT, PRECISE>(s, 0, STEPS * j + w, a, q);
        }
    }
}

// s: [tile][...] sums over dimensions, before any scale; those of the slot's half of the leaf
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores(float (&s)[NT][4][4], int half, uint32_t slot, int lane,
                                       const queries<C, D, NT, PRECISE> &q)
{
    constexpr int TILES = shape<C, D>::TILES;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[n][half * TILES + i][c] = 0.0f;
    if constexpr (shape<C, D>::RAW)
        scores_raw<C, D, NT, PRECISE>(s, half, slot, lane, q);
    else
        scores_quantized<C, D, NT, PRECISE>(s, slot, lane, q);
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

// c tanh(x / c), times LOG2E, of all; apart, so that its code does not lie among what always
// runs.
template <int NT>
__device__ __forceinline__ void cap_logits(float (&s)[NT][4][4], float softcap)
{
    const float inner = __fdiv_rn(2.0f * LOG2E, softcap), outer = __fmul_rn(softcap, LOG2E);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const float e = exp2_fast(__fmul_rn(s[n][i][c], inner));
                const float half = reciprocal_fast(__fadd_rn(e, 1.0f));
                s[n][i][c] = __fmul_rn(__fmaf_rn(-2.0f, half, 1.0f), outer);
            }
}

// Products to base-2 logits. q.scale has no LOG2E where there is a soft cap.
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void logits(float (&s)[NT][4][4], uint32_t slot, int lane, seen see,
                                       float softcap, const queries<C, D, NT, PRECISE> &q)
{
    const int g = lane >> 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
            float scale = 1.0f;
            if constexpr (!shape<C, D>::RAW)
                scale = __uint_as_float(
                    load4(slot + shape<C, D>::SCALES + 4 * position_of<C, D>(g, i, f)));
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float x = s[n][i][2 * f + c];
                    if constexpr (!shape<C, D>::RAW) x = __fmul_rn(x, scale);
                    s[n][i][2 * f + c] = __fmul_rn(x, q.scale[n][c]);
                }
        }
    if (softcap != 0.0f) cap_logits<NT>(s, softcap);
    if (see.whole) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
            const int position = position_of<C, D>(g, i, f);
            const bool visible = position >= see.lo && position < see.hi;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (!visible) s[n][i][2 * f + c] = -INFINITY;
        }
}

// Logits to exponentials, their maximum and their sum.
template <int D, int NT>
__device__ __forceinline__ void exponentials(float (&s)[NT][4][4], sums<D, NT> &to)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float m = s[n][0][c], l = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) m = fmaxf(fmaxf(m, s[n][i][c]), s[n][i][2 + c]);
            m = column_max(m);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    float p = exp2_fast(__fsub_rn(s[n][i][2 * f + c], m));
                    s[n][i][2 * f + c] = p;
                    l = __fadd_rn(l, p);
                }
            to.m[n][c] = m;
            to.l[n][c] = column_sum(l);
        }
}

// --- values ----------------------------------------------------------------------------------

template <int NT, bool LOW> struct weights {
    uint32_t hi[NT][4][2];
    uint32_t lo[LOW ? NT : 1][LOW ? 4 : 1][2];
    float unit; // that the sums are to be multiplied by
};

// Weights of quantized values are p * scale / unit, unit the power of two below the greatest
// scale.
template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void weigh(weights<NT, LOW> &w, float (&p)[NT][4][4], uint32_t slot,
                                      int lane)
{
    constexpr bool HALF = shape<C, D>::HALF;
    const int g = lane >> 2;
    w.unit = 1.0f;
    if constexpr (!shape<C, D>::RAW) {
        float scale[4][2], top = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int f = 0; f < 2; f++) {
                scale[i][f] = __uint_as_float(
                    load4(slot + shape<C, D>::SCALES + 4 * position_of<C, D>(g, i, f)));
                top = fmaxf(top, scale[i][f]);
            }
        uint32_t exponent = __float_as_uint(column_max(top)) & 0x7f800000u;
        if (exponent == 0 || exponent >= 0x7e800000u) exponent = 0x3f800000u;
        w.unit = __uint_as_float(exponent);
        const float inverse = __uint_as_float(0x7f000000u - exponent);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    p[n][i][c] = __fmul_rn(p[n][i][c], __fmul_rn(scale[i][c >> 1], inverse));
    }
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
    const uint32_t at =
        slot + (lane & 7) * S::PIECE + (2 * i + (lane >> 4)) * S::ROW + (lane >> 3 & 1) * 16;
#pragma unroll
    for (int k = 0; k < S::OCTETS; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4];
            load_matrices<true>(a, at + 32 * (4 * k + j));
            value_step<C, D, NT, LOW>(to, tile, k, j, a, w);
        }
}

// Eight dimensions of two positions as pairs: d[j] = (first, second) of dimension j.
template <uint32_t C>
__device__ __forceinline__ void pairs(uint32_t (&d)[8], const uint32_t (&x)[2],
                                      const uint32_t (&y)[2])
{
    if constexpr (C == INT8) {
#pragma unroll
        for (int w = 0; w < 2; w++) {
            uint32_t a = x[w] ^ 0x80808080u, b = y[w] ^ 0x80808080u;
            widen(permute(a, b, 0x5140u), d[4 * w], d[4 * w + 1]);
            widen(permute(a, b, 0x7362u), d[4 * w + 2], d[4 * w + 3]);
        }
    } else {
        const uint32_t low = 0x0f0f0f0fu;
        uint32_t even = (x[0] & low) | ((y[0] << 4) & ~low);
        uint32_t odd = ((x[0] >> 4) & low) | (y[0] & ~low);
        uint32_t u0, u1;
        levels(even, u0, u1);
        widen(u0, d[0], d[2]), widen(u1, d[4], d[6]);
        levels(odd, u0, u1);
        widen(u0, d[1], d[3]), widen(u1, d[5], d[7]);
    }
}

template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void values_quantized(sums<D, NT> &to, uint32_t at, int i,
                                                 const weights<NT, LOW> &w,
                                                 const int (&piece)[2])
{
    using S = shape<C, D>;
    constexpr int WORDS = C == INT8 ? 2 : 1; // of an octet
    constexpr int BYTES =
        C == INT8 && D > 64 ? 16 : S::ROW / 8; // of a row that a lane takes at once
    constexpr int EACH = BYTES / (4 * WORDS);  // octets in them
#pragma unroll
    for (int v = 0; v < S::OCTETS / EACH; v++) {
        uint4 x[2][2];
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t from = at + piece[e] + (4 * i + 2 * f + e) * S::ROW + 128 * v;
                x[f][e] = load_up_to_16<BYTES>(from);
            }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            uint32_t d[2][8];
#pragma unroll
            for (int f = 0; f < 2; f++) {
                const uint32_t first[2] = {word(x[f][0], WORDS * k),
                                           word(x[f][0], (WORDS * k + 1) & 3)};
                const uint32_t second[2] = {word(x[f][1], WORDS * k),
                                            word(x[f][1], (WORDS * k + 1) & 3)};
                pairs<C>(d[f], first, second);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t a[4] = {d[0][j], d[0][j + 4], d[1][j], d[1][j + 4]};
                value_step<C, D, NT, LOW>(to, i, EACH * v + k, j, a, w);
            }
        }
    }
}

// Adds the values of the slot's half of the leaf.
template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void values(sums<D, NT> &to, int half, uint32_t slot, int lane,
                                       const weights<NT, LOW> &w)
{
    using S = shape<C, D>;
    const int g = lane >> 2, t = lane & 3;
    const int piece[2] = {t * S::PIECE, (t ^ 2) * S::PIECE};
    const uint32_t at = slot + g * (C == INT8 && D > 64 ? 16 : S::ROW / 8);
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
    for (int i = 0; i < S::TILES; i++) {
        if constexpr (S::RAW)
            values_raw<C, D, NT, LOW>(to, slot, lane, i, half * S::TILES + i, w);
        else
            values_quantized<C, D, NT, LOW>(to, at, i, w, piece);
    }
    if constexpr (!S::RAW) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < S::OCTETS; k++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        to.o[n][k][j][c] = __fmul_rn(to.o[n][k][j][c], w.unit);
    }
}

// Zeroes what is not seen of V in a slot: it may hold anything, and 0 * NaN is NaN.
template <uint32_t C, int D>
__device__ __forceinline__ void clean(int half, uint32_t slot, int lane, seen see)
{
    using S = shape<C, D>;
    for (int p = 0; p < S::PIECES * S::ROWS; p++) {
        const int position = S::PIECES * S::ROWS * half + p;
        if (position >= see.lo && position < see.hi) continue;
        if constexpr (S::RAW) {
            for (int b = 4 * lane; b < S::ROW; b += 128)
                store4(slot + p / S::ROWS * S::PIECE + p % S::ROWS * S::ROW + b, 0);
        } else if (lane == 0) {
            store4(slot + S::SCALES + 4 * p, 0);
        }
    }
    fence_async();
    __syncwarp();
}

} // namespace sheaf_cuda

#endif
