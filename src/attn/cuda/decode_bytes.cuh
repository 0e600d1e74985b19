// attn/cuda/decode_bytes.cuh - a leaf's products where K and V are stored as int8 or turbo4.
//
// Owns: how codes become signed bytes, and numbers two bytes.
//
// They are products of integers (m16n8k32), exact: K and V as signed bytes; a query is 15 bits and a
// sign, a weight 16 bits, both as a high byte and a low one, whose sums meet as integers. Inside a dot
// product the order of dimensions is free as long as Q follows it: a lane takes consecutive bytes of a K
// row for several steps (step_dim).
//
// Of up to four query heads the high bytes are columns 0 to 3 of a product, the low ones columns 4 to 7
// (ROWS = 1): then lanes t and t + 2 have the halves of two columns, exchange them, and go on with a row
// half each. Of more, high and low bytes are products of their own (ROWS = 2). All sums are the same.
//
// Codes of turbo4 are looked up by `prmt`, which selects among eight bytes by three bits, and where the
// fourth is set gives the byte's sign eight times. So of a code's 16 levels those below zero and those
// above it need two instructions for four codes, and a third one to choose. Where products are few these
// two are multiplied apart instead: below zero with the level less 1 (or -1, the sign, for a code above
// it), above it with the level (or 0). What both give is the level less 1, always; so sums begin with
// those of what levels are multiplied with.
#ifndef SHEAF_ATTN_CUDA_DECODE_BYTES_CUH
#define SHEAF_ATTN_CUDA_DECODE_BYTES_CUH

#include "attn/cuda/decode_tile.cuh"

namespace sheaf_cuda
{

// --- codes to bytes --------------------------------------------------------------------------

// The levels of turbo4, and masks, as the host has given them: what compilers know they make immediates,
// of which an instruction takes one, or move before each use. LOOKS: the levels are looked up whole, or
// below and above zero apart.
template <uint32_t C, int LOOKS> struct code_book {
    uint32_t n0, n1, p0, p1; // of codes 0 to 7 and 8 to 15
    uint32_t low, index, sign, bytes;

    __device__ __forceinline__ explicit code_book(const sheaf__cuda_decode &in)
        : n0(in.levels[0]), n1(in.levels[1]), p0(in.levels[2]), p1(in.levels[3]),
          low(in.masks[0]), index(in.masks[1]), sign(in.masks[2]), bytes(in.masks[3])
    {
        if constexpr (LOOKS == 2) n0 -= 0x01010101u, n1 -= 0x01010101u; // none is -128
    }

    // Half `half` of eight codes as bytes: with two looks those below zero, or above it.
    __device__ __forceinline__ uint32_t levels(uint32_t codes, int half, int look) const
    {
        if constexpr (LOOKS == 2) {
            const uint32_t at = look == 0 ? codes : codes ^ ~index;
            return permute(look == 0 ? n0 : p0, look == 0 ? n1 : p1, half ? high_half(at) : at);
        }
        const uint32_t at = codes & index, from = ((codes >> 1) & sign) | bytes;
        const uint32_t digits = half ? high_half(at) : at;
        return permute(permute(n0, n1, digits), permute(p0, p1, digits),
                       half ? high_half(from) : from);
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

// --- sums of high and of low bytes -----------------------------------------------------------

// How a lane's sums become numbers: those of the high bytes count 256 times.
template <int ROWS> struct meeting;

template <> struct meeting<2> {
    __device__ __forceinline__ explicit meeting(int) {}

    __device__ __forceinline__ void of(float (&to)[4], const int (&sum)[2][4]) const
    {
#pragma unroll
        for (int c = 0; c < 4; c++) to[c] = __int2float_rn(256 * sum[0][c] + sum[1][c]);
    }
};

// Lanes of t < 2 have the high bytes' sums and go on with the upper rows, those two further the others.
template <> struct meeting<1> {
    // What the lane's own sums of both rows count, and what it is given.
    int first, second, other;
    bool second_row;

    __device__ __forceinline__ explicit meeting(int lane) : second_row((lane & 2) != 0)
    {
        first = second_row ? 0 : 256, second = second_row ? 1 : 0;
        other = second_row ? 256 : 1;
    }

    __device__ __forceinline__ void of(float (&to)[2], const int (&sum)[1][4]) const
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int x = sum[0][c], y = sum[0][2 + c];
            const int given = __shfl_xor_sync(ALL, second_row ? x : y, 2);
            to[c] = __int2float_rn(first * x + second * y + other * given);
        }
    }
};

// Products of columns with ones: what sums begin with where levels are looked up apart.
template <bool SIGNED>
__device__ __forceinline__ void add_ones(int (&sum)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    mma_bytes<SIGNED>(sum, ones, b0, b1);
}

// --- scores ----------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t word(const uint4 &x, int i)
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Eight numbers each of two rows, x and y, those of step s of the ones that were loaded.
template <uint32_t C, int LOOKS>
__device__ __forceinline__ void dot_operand(uint32_t (&a)[4], const uint4 &x, const uint4 &y,
                                            int s, int look, const code_book<C, LOOKS> &book)
{
    if constexpr (C == INT8) {
        a[0] = word(x, 2 * s), a[1] = word(y, 2 * s);
        a[2] = word(x, 2 * s + 1), a[3] = word(y, 2 * s + 1);
    } else {
        a[0] = book.levels(word(x, s), 0, look), a[1] = book.levels(word(y, s), 0, look);
        a[2] = book.levels(word(x, s), 1, look), a[3] = book.levels(word(y, s), 1, look);
    }
}

template <uint32_t C, int D, int NT, int ROWS, bool PRECISE>
__device__ __forceinline__ void scores_quantized(float (&s)[NT][4][2 * ROWS], uint32_t slot,
                                                 int lane,
                                                 const queries<C, D, NT, ROWS, PRECISE> &q,
                                                 const code_book<C, looks_of<C, NT>()> &book)
{
    using S = shape<C, D>;
    const int g = lane >> 2, t = lane & 3;
    constexpr int BYTES = S::WIDTH == 32 ? 8 : 16; // of a row that a lane takes at once
    constexpr int LOADS = S::WIDTH / 4 / BYTES;    // of a strip
    constexpr int STEPS = S::STEPS / LOADS / S::STRIPS;
    const uint32_t at = slot + g * S::WIDTH + swizzled<S::WIDTH>(g, t * S::WIDTH / 4);
    const meeting<ROWS> joined(lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int sum[NT][ROWS][4];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int b = 0; b < ROWS; b++)
#pragma unroll
                for (int c = 0; c < 4; c++) sum[n][b][c] = q.origin_of(b, c);
#pragma unroll
        for (int j = 0; j < LOADS * S::STRIPS; j++) {
            const uint32_t from =
                (at ^ (j % LOADS * BYTES)) + j / LOADS * S::STRIP + 16 * i * S::WIDTH;
            const uint4 x = load_up_to_16<BYTES>(from);
            const uint4 y = load_up_to_16<BYTES>(from + 8 * S::WIDTH);
#pragma unroll
            for (int w = 0; w < STEPS; w++) {
                const int step = STEPS * j + w;
#pragma unroll
                for (int look = 0; look < looks_of<C, NT>(); look++) {
                    uint32_t a[4];
                    dot_operand<C>(a, x, y, w, look, book);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        mma_bytes<true>(sum[n][0], a, q.hi[n][step][0], q.hi[n][step][1]);
                        if constexpr (ROWS == 2)
                            mma_bytes<true>(sum[n][1], a, q.lo[n][step][0], q.lo[n][step][1]);
                    }
                }
            }
        }
#pragma unroll
        for (int n = 0; n < NT; n++) joined.of(s[n][i], sum[n]);
    }
}

// --- weights ---------------------------------------------------------------------------------

// The power of two below the greatest of some numbers, given by their bits without a sign; NaN where one
// of them is no number, or nearly too large for one.
__device__ __forceinline__ uint32_t unit_below(uint32_t top)
{
    const uint32_t exponent = top & 0x7f800000u;
    return exponent >= 0x7f000000u ? 0x7fc00000u : exponent;
}

// The same over the lanes that hold the rows of a column.
template <int ROWS> __device__ __forceinline__ uint32_t column_top(uint32_t x)
{
    if constexpr (ROWS == 1) x = max(x, __shfl_xor_sync(ALL, x, 2));
    x = max(x, __shfl_xor_sync(ALL, x, 4));
    x = max(x, __shfl_xor_sync(ALL, x, 8));
    return max(x, __shfl_xor_sync(ALL, x, 16));
}

// The integer nearest to x * y, of two the even one, in the low half of the result, where it is below
// 2^16: of floats from 2^23 on the last bit is worth 1.
__device__ __forceinline__ uint32_t near_integer(float x, float y)
{
    return __float_as_uint(__fmaf_rn(x, y, 12582912.0f));
}

// Rows of 16-bit weights to columns of bytes.
template <int NT>
__device__ __forceinline__ void weights_to_columns(weights<NT, 2, false> &w, int n,
                                                   const uint32_t (&x)[4][2], int)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t first = transpose8(x[i][0]), second = transpose8(x[i][1]);
        w.hi[n][i][0] = permute(first, second, 0x7531u);
        w.hi[n][i][1] = permute(first, second, 0x6420u);
    }
}

// Transposed, lanes of g < 4 have a column's weights of the upper rows, those of g + 4 of the lower ones;
// they keep high and low bytes and exchange the others.
template <int NT>
__device__ __forceinline__ void weights_to_columns(weights<NT, 1, false> &w, int n,
                                                   const uint32_t (&x)[4][1], int lane)
{
    const bool second_row = lane >= 16;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t first = transpose8(x[i][0]), second = transpose8(x[i + 1][0]);
        const uint32_t own = permute(first, second, second_row ? 0x6420u : 0x7531u);
        const uint32_t given =
            __shfl_xor_sync(ALL, permute(first, second, second_row ? 0x7531u : 0x6420u), 16);
        w.hi[n][i][0] = permute(own, given, second_row ? 0x1054u : 0x5410u);
        w.hi[n][i + 1][0] = permute(own, given, second_row ? 0x3276u : 0x7632u);
    }
}

// Weights of quantized values are p * scale / unit in parts of WEIGHT_ONE, unit the power of two below
// the greatest p * scale of the column.
template <uint32_t C, int D, int NT, int ROWS>
__device__ __forceinline__ void weigh_quantized(weights<NT, ROWS, false> &w,
                                                const float (&p)[NT][4][2 * ROWS], slot_at slot,
                                                int lane)
{
    float scale[4][ROWS];
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int f = 0; f < ROWS; f++)
            scale[i][f] =
                __uint_as_float(load4(slot.scales + 4 * position_of<ROWS>(lane, i, f)));
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float x[4][2 * ROWS], inverse[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float top = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int f = 0; f < ROWS; f++) {
                    x[i][2 * f + c] = __fmul_rn(p[n][i][2 * f + c], scale[i][f]);
                    top = fmax_nan(top, fabsf(x[i][2 * f + c]));
                }
            uint32_t unit = unit_below(column_top<ROWS>(__float_as_uint(top) & 0x7fffffffu));
            if (unit < 0x08000000u) unit = 0x3f800000u; // so small that nothing is left
            inverse[c] = __fmul_rn(__uint_as_float(0x7f000000u - unit), WEIGHT_ONE);
            w.unit[n][c] = __fmul_rn(__uint_as_float(unit), 1.0f / WEIGHT_ONE);
        }
        uint32_t rows[4][ROWS];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int f = 0; f < ROWS; f++)
                rows[i][f] = permute(near_integer(x[i][2 * f], inverse[0]),
                                     near_integer(x[i][2 * f + 1], inverse[1]), 0x5410u);
        weights_to_columns(w, n, rows, lane);
    }
}

// --- values ----------------------------------------------------------------------------------

// An octet of dimensions of the lane's four positions of a tile: of int8 byte p of word d is position p's
// number d; of turbo4 such codes, two dimensions a word: 0 and 2, 1 and 3, 4 and 6, 5 and 7. at: of the
// first two positions.
template <uint32_t C, int D, int LOOKS>
__device__ __forceinline__ void octet_load(uint32_t (&to)[C == INT8 ? 8 : 4],
                                           const uint32_t (&at)[2],
                                           const code_book<C, LOOKS> &book)
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
        uint32_t lo[4], hi[4];
        transpose_bytes(lo, x);
        transpose_bytes(hi, y);
#pragma unroll
        for (int d = 0; d < 4; d++) to[d] = lo[d], to[4 + d] = hi[d];
    } else { // two positions to a byte, then four codes of a dimension side by side
        const uint32_t low = book.low;
        const uint32_t even = (x[0] & low) | ((x[1] << 4) & ~low);
        const uint32_t odd = ((x[0] >> 4) & low) | (x[1] & ~low);
        const uint32_t even2 = (x[2] & low) | ((x[3] << 4) & ~low);
        const uint32_t odd2 = ((x[2] >> 4) & low) | (x[3] & ~low);
        to[0] = permute(even, even2, 0x5140u), to[1] = permute(odd, odd2, 0x5140u);
        to[2] = permute(even, even2, 0x7362u), to[3] = permute(odd, odd2, 0x7362u);
    }
}

// Its dimension d.
template <uint32_t C, int LOOKS>
__device__ __forceinline__ uint32_t octet_bytes(const uint32_t (&octet)[C == INT8 ? 8 : 4],
                                                int d, int look,
                                                const code_book<C, LOOKS> &book)
{
    if constexpr (C == INT8)
        return octet[d];
    else
        return book.levels(octet[d / 4 * 2 + d % 2], d / 2 % 2, look);
}

// What every sum of a leaf's values begins with.
template <uint32_t C, int NT, int ROWS>
__device__ __forceinline__ void value_origins(int (&to)[NT][ROWS][4],
                                              const weights<NT, ROWS, false> &w)
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int b = 0; b < ROWS; b++) {
#pragma unroll
            for (int c = 0; c < 4; c++) to[n][b][c] = 0;
            if constexpr (looks_of<C, NT>() == 2) {
#pragma unroll
                for (int i = 0; i < 4; i += 2)
                    add_ones<false>(to[n][b], w.hi[n][i][b], w.hi[n][i + 1][b]);
            }
        }
}

template <uint32_t C, int D, int NT, int ROWS>
__device__ __forceinline__ void values_quantized(sums<D, NT, ROWS> &to, uint32_t slot, int lane,
                                                 const weights<NT, ROWS, false> &w,
                                                 const code_book<C, looks_of<C, NT>()> &book)
{
    using S = shape<C, D>;
    constexpr int OCTETS = 64 * S::ROW / D; // bytes of those of all lanes
    const int g = lane >> 2, t = lane & 3;
    const meeting<ROWS> joined(lane);
    int origins[NT][ROWS][4];
    value_origins<C>(origins, w);
    uint32_t at[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
        at[e] = slot + (2 * t + e) * S::WIDTH +
                swizzled<S::WIDTH>(2 * t + e, octet_dim(0, g) * S::ROW / D);
#pragma unroll
    for (int k = 0; k < S::OCTETS; k++) {
        uint32_t octets[4][C == INT8 ? 8 : 4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t from[2];
#pragma unroll
            for (int e = 0; e < 2; e++)
                from[e] = (at[e] ^ (k * OCTETS % S::WIDTH)) + k * OCTETS / S::WIDTH * S::STRIP +
                          16 * i * S::WIDTH;
            octet_load<C, D>(octets[i], from, book);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int sum[NT][ROWS][4];
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int b = 0; b < ROWS; b++)
#pragma unroll
                    for (int c = 0; c < 4; c++) sum[n][b][c] = origins[n][b][c];
#pragma unroll
            for (int look = 0; look < looks_of<C, NT>(); look++)
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const uint32_t a[4] = {octet_bytes<C>(octets[i], j, look, book),
                                           octet_bytes<C>(octets[i], 4 + j, look, book),
                                           octet_bytes<C>(octets[i + 1], j, look, book),
                                           octet_bytes<C>(octets[i + 1], 4 + j, look, book)};
#pragma unroll
                    for (int n = 0; n < NT; n++)
#pragma unroll
                        for (int b = 0; b < ROWS; b++)
                            mma_bytes<false>(sum[n][b], a, w.hi[n][i][b], w.hi[n][i + 1][b]);
                }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float x[2 * ROWS];
                joined.of(x, sum[n]);
#pragma unroll
                for (int c = 0; c < 2 * ROWS; c++)
                    to.o[n][k][j][c] = __fmul_rn(x[c], w.unit[n][c & 1]);
            }
        }
    }
}

} // namespace sheaf_cuda

#endif
