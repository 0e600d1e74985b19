// attn/cuda/decode_kernels.cuh - what all kernels of decode are made of.
//
// Owns: queries as the products take them, a leaf from slot to sums, and what is left behind:
// parts, merges, results.
#ifndef SHEAF_ATTN_CUDA_DECODE_KERNELS_CUH
#define SHEAF_ATTN_CUDA_DECODE_KERNELS_CUH

#include <cuda.h>

#include "attn/cuda/decode_bytes.cuh"

namespace sheaf_cuda
{

constexpr int WARPS = SHEAF__CUDA_WARPS;
constexpr int PREFIX_WARPS = 8;

template <int D> __host__ __device__ constexpr int prefix_columns() // tiles of 8 columns a warp
{
    return D == 256 ? 1 : 2;
}

// K and V of a layer.
struct maps {
    const CUtensorMap *k, *v;
};

// `x`, known once `made` is. Against bulk copies an arrival at a barrier does not wait for what its
// thread has asked shared memory for: one into that place, if it comes from the second cache, can be
// faster. So what says that something is read is made of what was read.
__device__ __forceinline__ uint32_t after(const sheaf__cuda_decode &in, uint32_t x,
                                          uint32_t made)
{
    return x | (made & in.nothing);
}

// --- copies ----------------------------------------------------------------------------------

// What a lane brings of a slot: a strip of the tokens of one block. Eight lanes fill it.
template <uint32_t C, int D> struct piece {
    using S = shape<C, D>;
    uint32_t strip, first, shift; // its first position in the slot; log2 of its positions
    bool works;

    __device__ __forceinline__ void init(uint32_t block_shift, uint32_t lane)
    {
        constexpr uint32_t most = S::POSITIONS == 64 ? 6 : 5;
        shift = min(block_shift, most);
        const uint32_t groups = S::POSITIONS >> shift;
        strip = lane / groups;
        first = lane % groups << shift;
        works = strip < S::STRIPS;
    }

    // Bytes that come for each lane of strip 0.
    __device__ __forceinline__ uint32_t bytes() const
    {
        return (uint32_t)(S::ROW + (S::RAW ? 0 : 4)) << shift;
    }

    // inside: the first position in its block; segment: of the head in that block
    __device__ __forceinline__ void bring(const CUtensorMap *map, const unsigned char *segment,
                                          uint32_t kv_head, uint32_t row, uint32_t block_shift,
                                          uint32_t inside, slot_at to, uint32_t full) const
    {
        tensor_copy(to.data + strip * S::STRIP + first * S::WIDTH, map, strip * S::WIDTH,
                    inside, kv_head, row, full);
        if constexpr (!S::RAW)
            if (strip == 0)
                bulk_copy(to.scales + 4 * first,
                          segment + ((uint64_t)S::ROW << block_shift) + 4 * inside, 4u << shift,
                          full);
    }
};

// --- numbers in and out ----------------------------------------------------------------------

// E consecutive numbers of q, read past the first cache: the kernel may have begun before what
// writes them ended.
template <int E>
__device__ __forceinline__ void input(const void *q, uint32_t dtype, uint64_t at, float (&x)[E])
{
#pragma unroll
    for (int i = 0; i < E; i += 2) {
        float2 y;
        if (dtype == F32) {
            y = __ldcg(
                reinterpret_cast<const float2 *>(static_cast<const float *>(q) + at + i));
        } else {
            const uint32_t z = __ldcg(
                reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(q) + at + i));
            y = dtype == F16 ? unpack<true>(z) : unpack<false>(z);
        }
        x[i] = y.x, x[i + 1] = y.y;
    }
}

// E consecutive results.
template <int E>
__device__ __forceinline__ void output(void *out, uint32_t dtype, uint64_t at,
                                       const float (&x)[E])
{
#pragma unroll
    for (int i = 0; i < E; i += 2) {
        if (dtype == F32)
            *reinterpret_cast<float2 *>(static_cast<float *>(out) + at + i) =
                make_float2(x[i], x[i + 1]);
        else
            *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(out) + at + i) =
                dtype == F16 ? pack<true>(x[i], x[i + 1]) : pack<false>(x[i], x[i + 1]);
    }
}

// What a sink and the denominator make of sums: multiply by it.
__device__ __forceinline__ float finish_factor(const float *sinks, uint32_t head, float m,
                                               float l)
{
    float a = 1.0f;
    if (sinks != nullptr) {
        float sink = __fmul_rn(sinks[head], LOG2E), top = fmaxf(m, sink);
        a = exp2_fast(__fsub_rn(m, top));
        l = __fmaf_rn(l, a, exp2_fast(__fsub_rn(sink, top)));
    }
    return __fdiv_rn(a, l);
}

// --- queries ---------------------------------------------------------------------------------

// turbo4's signs, D / 32 consecutive elements a lane.
template <int D>
__device__ __forceinline__ void change_signs(float (&x)[D / 32], const uint64_t (&signs)[4],
                                             int lane)
{
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const int d = lane * (D / 32) + i;
        if (signs[d >> 6] >> (d & 63) & 1) x[i] = -x[i];
    }
}

// Its transform, which undoes itself (codec/quantized.h): R x is that of x with its signs
// changed.
template <int D> __device__ __forceinline__ void transform(float (&x)[D / 32], int lane)
{
    constexpr int E = D / 32;
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
            if (!(i & h)) {
                float a = x[i], b = x[i + h];
                x[i] = a + b, x[i + h] = a - b;
            }
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int i = 0; i < E; i++) {
            float other = __shfl_xor_sync(ALL, x[i], h);
            x[i] = lane & h ? other - x[i] : x[i] + other;
        }
    constexpr float norm = D == 64 ? 0.125f : D == 128 ? 0.08838834764831845f : 0.0625f;
#pragma unroll
    for (int i = 0; i < E; i++) x[i] *= norm;
}

// One column's query, D / 32 consecutive numbers a lane. row: of q, or negative for none.
template <int D>
__device__ __forceinline__ void load_query(const sheaf__cuda_decode &in, int64_t row, int lane,
                                           float (&x)[D / 32])
{
    if (row >= 0) {
        input<D / 32>(in.q, in.io_dtype, (uint64_t)row * D + lane * (D / 32), x);
        return;
    }
#pragma unroll
    for (int i = 0; i < D / 32; i++) x[i] = 0.0f;
}

// E consecutive numbers of a query that lies in shared memory.
template <int E>
__device__ __forceinline__ void read_query(const unsigned char *from, uint32_t dtype, int lane,
                                           float (&x)[E])
{
#pragma unroll
    for (int i = 0; i < E; i += 2) {
        float2 y;
        if (dtype == F32) {
            y = reinterpret_cast<const float2 *>(from)[(lane * E + i) / 2];
        } else {
            const uint32_t z = reinterpret_cast<const uint32_t *>(from)[(lane * E + i) / 2];
            y = dtype == F16 ? unpack<true>(z) : unpack<false>(z);
        }
        x[i] = y.x, x[i + 1] = y.y;
    }
}

// What scores are multiplied by, of queries in parts of `unit`. It is positive: queries have its sign.
__device__ __forceinline__ float score_scale(const sheaf__cuda_decode &in, float unit)
{
    const float scale = fabsf(in.scale);
    const float by = __fmul_rn(unit, in.softcap != 0.0f ? scale : __fmul_rn(scale, LOG2E));
    return by == 0.0f ? 1e-45f : by; // times minus infinity it must not be NaN
}

// Prepares it where it is; the result: what its scores are multiplied by. One warp.
template <uint32_t C, int D>
__device__ __forceinline__ float scale_query(const sheaf__cuda_decode &in, float (&x)[D / 32],
                                             int lane)
{
    constexpr int E = D / 32;
    if constexpr (C == TURBO4) {
        change_signs<D>(x, in.signs, lane);
        transform<D>(x, lane);
    }
    float unit = 1.0f, inverse = 1.0f;
    if constexpr (shape<C, D>::HALF) { // a power of two, so that f16, or 15 bits, hold the row
        uint32_t top = 0;
#pragma unroll
        for (int i = 0; i < E; i++) top = max(top, __float_as_uint(x[i]) & 0x7fffffffu);
#pragma unroll
        for (int h = 1; h < 32; h *= 2) top = max(top, __shfl_xor_sync(ALL, top, h));
        uint32_t exponent = unit_below(top);
        if (exponent == 0) exponent = 0x3f800000u;
        unit = __uint_as_float(exponent);
        inverse = __uint_as_float(0x7f000000u - exponent);
        if (exponent == 0x7fc00000u) inverse = 0.0f; // the scale says that it is no number
    }
#pragma unroll
    for (int i = 0; i < E; i++) x[i] *= in.scale < 0.0f ? -inverse : inverse;
    if constexpr (!shape<C, D>::RAW) unit = __fdiv_rn(unit, QUERY_ONE);
    return score_scale(in, unit);
}

// Of a column's query, prepared; 16 beside them where columns would lie in the same banks.
template <uint32_t C, int D> __host__ __device__ constexpr uint32_t stage_bytes()
{
    return shape<C, D>::RAW ? 4 * D : 2 * D + 16;
}

// N numbers of a query, 2 or 4, as high and low bytes.
template <int N>
__device__ __forceinline__ void bytes_of(const float *x, uint32_t &hi, uint32_t &lo)
{
    hi = lo = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int y = __float2int_rn(__fmul_rn(x[i], QUERY_ONE));
        const int low = ((y + 128) & 255) - 128;
        hi |= ((uint32_t)((y - low) / 256) & 0xff) << 8 * i;
        lo |= ((uint32_t)low & 0xff) << 8 * i;
    }
}

// Prepares a query for others to read. to: a column of stage_bytes: D floats, or D high bytes, then D low
// ones.
template <uint32_t C, int D>
__device__ __forceinline__ void stage_query(const sheaf__cuda_decode &in, float (&x)[D / 32],
                                            int lane, unsigned char *to, float *scale)
{
    constexpr int E = D / 32;
    const float by = scale_query<C, D>(in, x, lane);
    if constexpr (shape<C, D>::RAW) {
#pragma unroll
        for (int i = 0; i < E; i++) reinterpret_cast<float *>(to)[lane * E + i] = x[i];
    } else {
        constexpr int N = E < 4 ? E : 4;
#pragma unroll
        for (int i = 0; i < E; i += N) {
            uint32_t hi, lo;
            bytes_of<N>(x + i, hi, lo);
            if constexpr (N == 2) {
                reinterpret_cast<uint16_t *>(to)[lane] = (uint16_t)hi;
                reinterpret_cast<uint16_t *>(to + D)[lane] = (uint16_t)lo;
            } else {
                reinterpret_cast<uint32_t *>(to)[(lane * E + i) / 4] = hi;
                reinterpret_cast<uint32_t *>(to + D)[(lane * E + i) / 4] = lo;
            }
        }
    }
    if (lane == 0) *scale = by;
}

// Takes the queries of eight columns, tile n of the warp's; with ROWS = 1 of four, twice. stage:
// [8][stage_bytes], scales: [8]
template <uint32_t C, int D, int NT, int ROWS, bool PRECISE>
__device__ __forceinline__ void take_queries(queries<C, D, NT, ROWS, PRECISE> &to, int n,
                                             int lane, const unsigned char *stage,
                                             const float *scales)
{
    constexpr bool HALF = shape<C, D>::HALF;
    const int g = lane >> 2, t = lane & 3;
    const unsigned char *column = stage + (ROWS == 2 ? g : g & 3) * stage_bytes<C, D>();
#pragma unroll
    for (int s = 0; s < shape<C, D>::STEPS; s++) {
        if constexpr (!shape<C, D>::RAW) {
            const unsigned char *bytes = column + step_dim<C, D>(s, t);
            if (ROWS == 1 && g >= 4) bytes += D;
            const uint2 hi = *reinterpret_cast<const uint2 *>(bytes);
            to.hi[n][s][0] = hi.x, to.hi[n][s][1] = hi.y;
            if constexpr (ROWS == 2) {
                const uint2 lo = *reinterpret_cast<const uint2 *>(bytes + D);
                to.lo[n][s][0] = lo.x, to.lo[n][s][1] = lo.y;
            }
            continue;
        }
        const float *from = reinterpret_cast<const float *>(column) + step_dim<C, D>(s, t);
        const float2 x = *reinterpret_cast<const float2 *>(from);
        const float2 y = *reinterpret_cast<const float2 *>(from + 8);
        to.hi[n][s][0] = pack<HALF>(x.x, x.y);
        to.hi[n][s][1] = pack<HALF>(y.x, y.y);
        if constexpr (queries<C, D, NT, ROWS, PRECISE>::LOW) {
            to.lo[n][s][0] = pack_rest<HALF>(x.x, x.y, to.hi[n][s][0]);
            to.lo[n][s][1] = pack_rest<HALF>(y.x, y.y, to.hi[n][s][1]);
        }
    }
    const int first = ROWS == 2 ? 2 * t : 2 * (t & 1);
    to.scale[n][0] = scales[first];
    to.scale[n][1] = scales[first + 1];
    if constexpr (queries<C, D, NT, ROWS, PRECISE>::ORIGIN) {
#pragma unroll
        for (int b = 0; b < ROWS; b++) {
            int sum[4] = {};
#pragma unroll
            for (int s = 0; s < shape<C, D>::STEPS; s++)
                add_ones<true>(sum, b ? to.lo[n][s][0] : to.hi[n][s][0],
                               b ? to.lo[n][s][1] : to.hi[n][s][1]);
#pragma unroll
            for (int c = 0; c < 4; c++) to.origin[b][c] = sum[c];
        }
    }
}

// --- a leaf ---------------------------------------------------------------------------------

__device__ __forceinline__ seen seen_of(uint32_t leaf, uint32_t lo, uint32_t hi)
{
    const uint32_t first = leaf * SHEAF__CUDA_LEAF;
    seen s;
    s.lo = lo > first ? (int)(lo - first) : 0;
    s.hi = hi - first < SHEAF__CUDA_LEAF ? (int)(hi - first) : SHEAF__CUDA_LEAF;
    s.whole = s.lo == 0 && s.hi == SHEAF__CUDA_LEAF;
    return s;
}

// Queries, a leaf's products with the slot's half of K, or its values: bits that cannot be known before
// all that they were made of, of the slot read last, is there.
template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ uint32_t made_of(const queries<C, D, 1, 2, PRECISE> &q)
{
    uint32_t x = __float_as_uint(q.scale[0][0]) | __float_as_uint(q.scale[0][1]);
#pragma unroll
    for (int s = 0; s < shape<C, D>::STEPS; s++) x |= q.hi[0][s][0] | q.hi[0][s][1];
    return x;
}

template <uint32_t C, int D, int NT>
__device__ __forceinline__ uint32_t made_of(const float (&s)[NT][4][4], int half)
{
    constexpr int TILES = shape<C, D>::TILES;
    uint32_t x = 0;
#pragma unroll
    for (int i = 0; i < TILES; i++) x |= __float_as_uint(s[0][half * TILES + i][0]);
    return x;
}

template <uint32_t C, int D, int NT, int ROWS>
__device__ __forceinline__ uint32_t made_of(const sums<D, NT, ROWS> &to)
{
    uint32_t x = 0;
#pragma unroll
    for (int k = 0; k < shape<C, D>::OCTETS; k++)
#pragma unroll
        for (int j = 0; j < (shape<C, D>::RAW ? 4 : 1); j++)
            x |= __float_as_uint(to.o[0][k][j][0]);
    return x;
}

// One leaf. release: says of the slot waited for last that it is read, by what was made of it.
template <uint32_t C, int D, int NT, int ROWS, bool PRECISE, typename R, typename F>
__device__ __forceinline__ void leaf_of(sums<D, NT, ROWS> &to, R &r, int lane, seen see,
                                        float softcap,
                                        const queries<C, D, NT, ROWS, PRECISE> &q,
                                        const code_book<C, looks_of<C, NT>()> &book, F release)
{
    using S = shape<C, D>;
    float s[NT][4][2 * ROWS], factor[NT][2];
    slot_at slot = {};
    if constexpr (S::RAW) {
        constexpr bool LOW = PRECISE && !S::HALF;
        weights<NT, 2, LOW> w;
#pragma unroll
        for (int half = 0; half < S::HALVES; half++) {
            slot = r.wait();
            scores_raw<C, D, NT, PRECISE>(s, half, slot.data, lane, q);
            release(made_of<C, D, NT>(s, half));
        }
        (void)logits<C, D, NT>(s, factor, slot, lane, see, softcap, q);
        exponentials<false>(s, factor, to);
        weigh_raw<C, NT, LOW>(w, s);
#pragma unroll
        for (int half = 0; half < S::HALVES; half++) {
            slot = r.wait();
            if (!see.whole) clean<C, D>(half, slot, lane, see);
            values_raw<C, D, NT, LOW>(to, half, slot.data, lane, w);
            release(made_of<C>(to));
        }
    } else {
        weights<NT, ROWS, false> w;
        slot = r.wait();
        scores_quantized<C, D, NT>(s, slot.data, lane, q, book);
        release(logits<C, D, NT>(s, factor, slot, lane, see, softcap, q));
        exponentials<true>(s, factor, to);
        slot = r.wait();
        if (!see.whole) clean<C, D>(0, slot, lane, see);
        weigh_quantized<C, D, NT>(w, s, slot, lane);
        values_quantized<C, D, NT>(to, slot.data, lane, w, book);
        release(made_of<C>(to));
    }
}

// --- what is left behind ---------------------------------------------------------------------

__device__ __forceinline__ float *part_at(const sheaf__cuda_decode &in, int dim, uint64_t part,
                                          uint32_t head)
{
    return in.parts + (part * in.n_q_heads + head) * (uint32_t)(dim + 4);
}

// Of a shared prefix: the query rows of a warp that follow its row `lane` and are of the same member,
// that row included. Their parts lie side by side. n is 0 where there are none, or another lane has
// them.
struct row_run {
    uint32_t n;
    float *to; // of span 0

    __device__ __forceinline__ row_run(const sheaf__cuda_decode &in,
                                       const sheaf__cuda_prefix_unit &unit, int dim,
                                       uint32_t kv_head, uint32_t first, uint32_t of_warp,
                                       uint32_t lane)
        : n(0), to(nullptr)
    {
        const uint32_t n_rows = unit.n_members * in.group, row = first + lane;
        if (lane >= of_warp || row >= n_rows) return;
        const uint32_t member = row / in.group, head = row - member * in.group;
        if (lane != 0 && head != 0) return;
        n = min(min(in.group - head, of_warp - lane), n_rows - row);
        to = part_at(in, dim, (uint64_t)unit.part + member, kv_head * in.group + head);
    }

    // They leave, from where all rows of the warp lie as parts of so many bytes: as bulk copies, because
    // they are read by such, and what is stored otherwise these need not see.
    __device__ __forceinline__ void leave(uint32_t from, uint32_t bytes, int lane) const
    {
        fence_async();
        __syncwarp();
        if (n != 0) bulk_store(to, from + lane * bytes, n * bytes);
        bulk_commit();
    }
};

// The lane's column c of tile n: D sums, and m and l where `ends` says.
template <uint32_t C, int D, int NT, int ROWS>
__device__ __forceinline__ void part_write(float *to, float *ends, const sums<D, NT, ROWS> &s,
                                           int n, int c, int lane)
{
    const int g = lane >> 2, low = lane >> 1 & 1;
#pragma unroll
    for (int k = 0; k < D / 64; k++) {
        const auto &o = s.o[n][k];
        if constexpr (shape<C, D>::RAW) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                to[16 * (4 * k + j) + g] = o[j][c];
                to[16 * (4 * k + j) + 8 + g] = o[j][2 + c];
            }
        } else {
            float4 *octet = reinterpret_cast<float4 *>(to + octet_dim(k, g));
#pragma unroll
            for (int f = 0; f < ROWS; f++)
                octet[ROWS == 2 ? f : low] = make_float4(o[0][2 * f + c], o[1][2 * f + c],
                                                         o[2][2 * f + c], o[3][2 * f + c]);
        }
    }
    if (g == 0 && (ROWS == 2 || !low)) ends[0] = s.m[n][c], ends[1] = s.l[n][c];
}

// One query head's sums, D / 32 consecutive dimensions a lane; m and l in all of them.
template <int D> struct row_sums {
    static constexpr int E = D / 32;
    float o[E], m, l;

    __device__ __forceinline__ void load(const float *from, const float *ends, int lane)
    {
        if constexpr (E % 4 == 0)
#pragma unroll
            for (int i = 0; i < E; i += 4) {
                const float4 x = *reinterpret_cast<const float4 *>(from + lane * E + i);
                o[i] = x.x, o[i + 1] = x.y, o[i + 2] = x.z, o[i + 3] = x.w;
            }
        else {
            const float2 x = *reinterpret_cast<const float2 *>(from + lane * E);
            o[0] = x.x, o[1] = x.y;
        }
        const float2 ml = *reinterpret_cast<const float2 *>(ends);
        m = ml.x, l = ml.y;
    }

    // Bits that cannot be known before all of it is.
    __device__ __forceinline__ uint32_t made() const
    {
        uint32_t x = __float_as_uint(m) | __float_as_uint(l);
#pragma unroll
        for (int i = 0; i < E; i++) x |= __float_as_uint(o[i]);
        return x;
    }

    // A part, for others to read.
    __device__ __forceinline__ void store(float *to, int lane) const
    {
        if constexpr (E % 4 == 0)
#pragma unroll
            for (int i = 0; i < E; i += 4)
                *reinterpret_cast<float4 *>(to + lane * E + i) =
                    make_float4(o[i], o[i + 1], o[i + 2], o[i + 3]);
        else
            *reinterpret_cast<float2 *>(to + lane * E) = make_float2(o[0], o[1]);
        if (lane == 0) *reinterpret_cast<float2 *>(to + D) = make_float2(m, l);
    }

    // These, then b; `any`: these are something already.
    __device__ __forceinline__ void fold(bool any, const row_sums &b)
    {
        if (!any) {
            *this = b;
            return;
        }
        const float top = fmaxf(m, b.m);
        const float ea = exp2_fast(__fsub_rn(m, top)), eb = exp2_fast(__fsub_rn(b.m, top));
#pragma unroll
        for (int i = 0; i < E; i++) o[i] = __fmaf_rn(b.o[i], eb, __fmul_rn(o[i], ea));
        l = __fmaf_rn(b.l, eb, __fmul_rn(l, ea));
        m = top;
    }
};

// Sums to the result of a head, row `at` of out.
template <uint32_t C, int D>
__device__ __forceinline__ void leave(const sheaf__cuda_decode &in, row_sums<D> &s,
                                      uint64_t query, uint32_t head, int lane)
{
    const float factor = finish_factor(in.sinks, head, s.m, s.l);
#pragma unroll
    for (int i = 0; i < D / 32; i++) s.o[i] = __fmul_rn(s.o[i], factor);
    if constexpr (C == TURBO4) {
        transform<D>(s.o, lane);
        change_signs<D>(s.o, in.signs, lane);
    }
    output<D / 32>(in.out, in.io_dtype, (query * in.n_q_heads + head) * D + lane * (D / 32),
                   s.o);
}

// The same of sums that may be of nothing: a query that sees nothing.
template <uint32_t C, int D>
__device__ __forceinline__ void leave_or_zero(const sheaf__cuda_decode &in, row_sums<D> &s,
                                              bool some, uint64_t query, uint32_t head,
                                              int lane)
{
    if (some)
        leave<C, D>(in, s, query, head, lane);
    else
        output<D / 32>(in.out, in.io_dtype, (query * in.n_q_heads + head) * D + lane * (D / 32),
                       s.o);
}

} // namespace sheaf_cuda

#endif
