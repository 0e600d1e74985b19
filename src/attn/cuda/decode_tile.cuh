// attn/cuda/decode_tile.cuh - one leaf of 64 positions by one warp, on tensor cores.
//
// Owns: how K and V lie in shared memory, and the order of the arithmetic inside a leaf.
//
// Queries are the columns of every product (8 to a tile; of int8 and turbo4 up to four of them twice,
// decode_bytes.cuh), positions or dimensions the rows:
//
//     S^T [64 positions x 8] = K [64 x D] Q^T [D x 8]           m16n8k16, 4 tiles of 16 positions
//     O^T [D x 8]           += V^T [D x 64] P^T [64 x 8]        m16n8k16, 4 steps of 16 positions
//
// K or V of 32 positions (bf16, f16) or 64 fill a slot. Each row of `ROW` bytes lies there in strips of
// up to 128 bytes, [strip][position], as the copy engine swizzles them (tensor_map.h): so eight rows of
// a product are read without bank conflicts, and so is V, transposed on the way. Scales lie apart.
// Row r of a product's tile i is position 16 i + r.
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
    // Of a multiprocessor, by their registers and rings.
    static constexpr int TEAMS = D == 256 && C != TURBO4 ? 1 : 2;
    static constexpr int OCTETS = D / 64; // of consecutive dimensions that a lane's rows hold
};

// What packing left behind, packed itself.
template <bool HALF>
__device__ __forceinline__ uint32_t pack_rest(float x, float y, uint32_t hi)
{
    float2 h = unpack<HALF>(hi);
    return pack<HALF>(__fsub_rn(x, h.x), __fsub_rn(y, h.y));
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

// Of the two rows of a product that a lane has of each column it goes on with ROWS: both, or one, where
// another lane has the other one (decode_bytes.cuh). The position, inside a leaf, of row f of its tile i.
template <int ROWS> __device__ __forceinline__ int position_of(int lane, int i, int f)
{
    return 16 * i + 8 * (ROWS == 2 ? f : lane >> 1 & 1) + (lane >> 2);
}

// How many looks codes take (decode_bytes.cuh).
template <uint32_t C, int NT> __host__ __device__ constexpr int looks_of()
{
    return C == TURBO4 && NT == 1 ? 2 : 1;
}

// --- numbers as two bytes --------------------------------------------------------------------

// A query's numbers lie in (-2, 2) (stage_query), a weight in [0, 2). Twice QUERY_ONE is the most that a
// high byte of 127, which counts 256 times, and a signed low one can say.
constexpr float QUERY_ONE = 16319.0f, WEIGHT_ONE = 32767.0f;

// --- a warp's queries and sums ---------------------------------------------------------------

// Of quantized codecs the high and the low byte of four numbers a word; of ROWS = 1 the high ones in the
// first four columns, the low ones in the others.
template <uint32_t C, int D, int NT, int ROWS, bool PRECISE> struct queries {
    static constexpr bool LOW = ROWS == 2 && (PRECISE || !shape<C, D>::RAW);
    static constexpr int STEPS = shape<C, D>::STEPS;
    static constexpr bool ORIGIN = looks_of<C, NT>() == 2;
    uint32_t hi[NT][STEPS][2];
    uint32_t lo[LOW ? NT : 1][LOW ? STEPS : 1][2];
    int origin[ORIGIN ? ROWS : 1][4]; // what sums of products begin with
    float scale[NT][2];               // of the lane's columns

    __device__ __forceinline__ int origin_of(int b, int c) const
    {
        return ORIGIN ? origin[b][c] : 0;
    }
};

template <int D, int NT, int ROWS = 2> struct sums {
    float o[NT][D / 64][4][2 * ROWS]; // [octet][dimension pair m, m + 4][row, column]
    float m[NT][2], l[NT][2];
};

// a = a then b, in that order.
template <int D, int NT, int ROWS>
__device__ __forceinline__ void merge_into(sums<D, NT, ROWS> &a, const sums<D, NT, ROWS> &b)
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
                for (int c = 0; c < 2 * ROWS; c++)
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
                                           const queries<C, D, NT, 2, PRECISE> &q)
{
    constexpr bool HALF = shape<C, D>::HALF;
    constexpr int TILES = shape<C, D>::TILES;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
            mma<HALF>(s[n][half * TILES + i], a[i], q.hi[n][step][0], q.hi[n][step][1]);
    if constexpr (queries<C, D, NT, 2, PRECISE>::LOW)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < TILES; i++)
                mma<HALF>(s[n][half * TILES + i], a[i], q.lo[n][step][0], q.lo[n][step][1]);
}

// The steps of bf16 and f16: K rows come as the products take them.
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void scores_raw(float (&s)[NT][4][4], int half, uint32_t slot,
                                           int lane, const queries<C, D, NT, 2, PRECISE> &q)
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

// --- exponentials ----------------------------------------------------------------------------

// A maximum or a sum over the lanes that hold the rows of a column, the same in all of them.
template <int ROWS> __device__ __forceinline__ float column_max(float x)
{
    if constexpr (ROWS == 1) x = fmaxf(x, __shfl_xor_sync(ALL, x, 2));
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 4));
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 8));
    return fmaxf(x, __shfl_xor_sync(ALL, x, 16));
}

template <int ROWS> __device__ __forceinline__ float column_sum(float x)
{
    if constexpr (ROWS == 1) x = __fadd_rn(x, __shfl_xor_sync(ALL, x, 2));
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
template <int NT, int ROWS>
__device__ __forceinline__ void cap_logits(float (&s)[NT][4][2 * ROWS],
                                           const float (&scale)[NT][2], float softcap)
{
    const soft_cap cap(softcap);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int c = 0; c < 2 * ROWS; c++)
                s[n][i][c] = cap.of(__fmul_rn(s[n][i][c], scale[n][c & 1]));
}

// Products to what weights are powers of: base-2 logits are these times `factor`. q.scale has no LOG2E
// where there is a soft cap. The result, of quantized codecs: bits that cannot be known before the scales
// are there, and what they were multiplied with.
template <uint32_t C, int D, int NT, int ROWS, bool PRECISE>
__device__ __forceinline__ uint32_t logits(float (&s)[NT][4][2 * ROWS], float (&factor)[NT][2],
                                           slot_at slot, int lane, seen see, float softcap,
                                           const queries<C, D, NT, ROWS, PRECISE> &q)
{
    uint32_t made = 0;
    if constexpr (!shape<C, D>::RAW) { // without this brace nvcc 13.0 drops the next loop, too
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int f = 0; f < ROWS; f++) {
                const float scale =
                    __uint_as_float(load4(slot.scales + 4 * position_of<ROWS>(lane, i, f)));
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
    if (softcap != 0.0f) cap_logits<NT, ROWS>(s, q.scale, softcap);
    if (see.whole) return made;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int f = 0; f < ROWS; f++) {
            const int position = position_of<ROWS>(lane, i, f);
            const bool visible = position >= see.lo && position < see.hi;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (!visible) s[n][i][2 * f + c] = -INFINITY;
        }
    return made;
}

// These to exponentials, their maximum and their sum. A factor is positive. BY_ROWS: rows are summed up
// apart, as they are where two lanes have them.
template <bool BY_ROWS, int D, int NT, int ROWS>
__device__ __forceinline__ void
exponentials(float (&s)[NT][4][2 * ROWS], const float (&factor)[NT][2], sums<D, NT, ROWS> &to)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float m = s[n][0][c], l[2] = {};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int f = 0; f < ROWS; f++) m = fmaxf(m, s[n][i][2 * f + c]);
            m = __fmul_rn(column_max<ROWS>(m), factor[n][c]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int f = 0; f < ROWS; f++) {
                    float p = exp2_fast(__fmaf_rn(s[n][i][2 * f + c], factor[n][c], -m));
                    s[n][i][2 * f + c] = p;
                    l[BY_ROWS ? f : 0] = __fadd_rn(l[BY_ROWS ? f : 0], p);
                }
            to.m[n][c] = m;
            to.l[n][c] = column_sum<ROWS>(BY_ROWS && ROWS == 2 ? __fadd_rn(l[0], l[1]) : l[0]);
        }
}

// --- values ----------------------------------------------------------------------------------

// Of quantized values a word of four high bytes, then one of four low ones; of ROWS = 1 one of those that
// the lane's column holds.
template <int NT, int ROWS, bool LOW> struct weights {
    uint32_t hi[NT][4][ROWS];
    uint32_t lo[LOW ? NT : 1][LOW ? 4 : 1][2]; // of bf16
    float unit[NT][2]; // that the sums of the lane's columns are to be multiplied by
};

template <uint32_t C, int NT, bool LOW>
__device__ __forceinline__ void weigh_raw(weights<NT, 2, LOW> &w, const float (&p)[NT][4][4])
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

template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void value_step(sums<D, NT> &to, int i, int k, int j,
                                           const uint32_t (&a)[4], const weights<NT, 2, LOW> &w)
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
__device__ __forceinline__ void tile_values(sums<D, NT> &to, uint32_t slot, int lane, int i,
                                            int tile, const weights<NT, 2, LOW> &w)
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

// Adds the values of the slot's half of the leaf.
template <uint32_t C, int D, int NT, bool LOW>
__device__ __forceinline__ void values_raw(sums<D, NT> &to, int half, uint32_t slot, int lane,
                                           const weights<NT, 2, LOW> &w)
{
    using S = shape<C, D>;
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
        tile_values<C, D, NT, LOW>(to, slot, lane, i, half * S::TILES + i, w);
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
