// attn/cuda/decode_kernels.cuh - the kernels of decode and of shared prefixes, for one codec and
// dimension.
//
// Owns: who computes what, and the ring that brings K and V. A warp of decode_units works alone: it
// fills its own ring of half leaves (K, V, K, V, ...) by bulk copies and refills a slot as soon as it
// has read it. The warps of decode_team, one leaf each, do the same and merge at the end. The warps
// of decode_prefix share one ring and hold different query rows.
//
// Shared memory of a ring, in bytes:
//
//     [0, 128)     barriers, one a slot
//     [128, 256)   scales of the columns
//     [256, ...)   the sums of the span, then of the item (also: the queries, before they are packed)
//     slots
#ifndef SHEAF_ATTN_CUDA_DECODE_KERNELS_CUH
#define SHEAF_ATTN_CUDA_DECODE_KERNELS_CUH

#include "attn/cuda/decode_tile.cuh"

namespace sheaf_cuda
{

constexpr int HEAD_BYTES = 256;
constexpr int PREFIX_WARPS = 8;

template <int D> __host__ __device__ constexpr int prefix_columns() // tiles of 8 columns a warp
{
    return D == 256 ? 1 : 2;
}

// sums: 1, or 2 where a unit may have several spans.
template <uint32_t C, int D>
__host__ __device__ constexpr uint32_t ring_bytes(uint32_t slots, uint32_t sums)
{
    return HEAD_BYTES + sums * sums_bytes<D, 1>() + slots * shape<C, D>::SLOT;
}

template <uint32_t C, int D> __host__ __device__ constexpr int prefix_bytes(int slots)
{
    constexpr int NT = prefix_columns<D>();
    return HEAD_BYTES + PREFIX_WARPS * (128 + sums_bytes<D, NT>()) + slots * shape<C, D>::SLOT;
}

// --- numbers in and out ------------------------------------------------------------------------

__device__ __forceinline__ float input(const void *q, uint32_t dtype, uint64_t at)
{
    if (dtype == F32) return static_cast<const float *>(q)[at];
    if (dtype == F16) return __half2float(static_cast<const __half *>(q)[at]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(q)[at]);
}

// Eight consecutive results.
__device__ __forceinline__ void output8(void *out, uint32_t dtype, uint64_t at,
                                        const float (&x)[8])
{
    if (dtype == F32) {
        float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(out) + at);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
    uint4 y;
    if (dtype == F16)
        y = make_uint4(pack<true>(x[0], x[1]), pack<true>(x[2], x[3]), pack<true>(x[4], x[5]),
                       pack<true>(x[6], x[7]));
    else
        y = make_uint4(pack<false>(x[0], x[1]), pack<false>(x[2], x[3]),
                       pack<false>(x[4], x[5]), pack<false>(x[6], x[7]));
    *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(out) + at) = y;
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

// --- queries -------------------------------------------------------------------------------------

// R x, D / 32 consecutive elements a lane (codec/quantized.h).
template <int D>
__device__ __forceinline__ void rotate(float (&x)[D / 32], const uint64_t (&signs)[4], int lane)
{
    constexpr int E = D / 32;
#pragma unroll
    for (int i = 0; i < E; i++) {
        int d = lane * E + i;
        if (signs[d >> 6] >> (d & 63) & 1) x[i] = -x[i];
    }
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

// Packs the queries of NT * 8 columns. row_of(column): the row of q, or negative. stage: room for
// [8][D] floats, scales for 8 * NT; the warp's own.
template <uint32_t C, int D, int NT, bool PRECISE, typename F>
__device__ __forceinline__ void pack_queries(queries<C, D, NT, PRECISE> &to,
                                             const sheaf__cuda_decode &in, int lane, F row_of,
                                             float *stage, float *scales)
{
    constexpr bool HALF = shape<C, D>::HALF;
    constexpr int E = D / 32;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; n++) {
        __syncwarp();
        float all[8][E]; // loaded before any of it is waited for
#pragma unroll
        for (int column = 0; column < 8; column++) {
            const int64_t row = row_of(8 * n + column);
#pragma unroll
            for (int i = 0; i < E; i++)
                all[column][i] =
                    row < 0 ? 0.0f : input(in.q, in.io_dtype, (uint64_t)row * D + lane * E + i);
        }
#pragma unroll
        for (int column = 0; column < 8; column++) {
            float(&x)[E] = all[column];
            float top = 0.0f;
            if constexpr (C == TURBO4) rotate<D>(x, in.signs, lane);
            float unit = 1.0f, inverse = 1.0f;
            if constexpr (HALF) { // a power of two, so that f16 holds the row
#pragma unroll
                for (int i = 0; i < E; i++) top = fmaxf(top, fabsf(x[i]));
#pragma unroll
                for (int h = 1; h < 32; h *= 2) top = fmaxf(top, __shfl_xor_sync(ALL, top, h));
                uint32_t exponent = __float_as_uint(top) & 0x7f800000u;
                if (exponent == 0 || exponent >= 0x7e800000u) exponent = 0x3f800000u;
                unit = __uint_as_float(exponent);
                inverse = __uint_as_float(0x7f000000u - exponent);
            }
#pragma unroll
            for (int i = 0; i < E; i++) stage[column * D + lane * E + i] = x[i] * inverse;
            if (lane == 0)
                scales[8 * n + column] =
                    __fmul_rn(unit, in.softcap != 0.0f ? in.scale : __fmul_rn(in.scale, LOG2E));
        }
        __syncwarp();
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            const float4 x =
                *reinterpret_cast<const float4 *>(stage + g * D + step_dim<C, D>(s, t));
            to.hi[n][s][0] = pack<HALF>(x.x, x.y);
            to.hi[n][s][1] = pack<HALF>(x.z, x.w);
            if constexpr (queries<C, D, NT, PRECISE>::LOW) {
                to.lo[n][s][0] = pack_rest<HALF>(x.x, x.y, to.hi[n][s][0]);
                to.lo[n][s][1] = pack_rest<HALF>(x.z, x.w, to.hi[n][s][1]);
            }
        }
        to.scale[n][0] = scales[8 * n + 2 * t];
        to.scale[n][1] = scales[8 * n + 2 * t + 1];
    }
    __syncwarp();
}

// --- the ring ------------------------------------------------------------------------------------

// Half leaves in order: K and V of leaf 0, of leaf 1, ... Lanes 0 to 3 bring a piece each.
template <uint32_t C, int D> struct ring {
    using S = shape<C, D>;
    const unsigned char *k, *v; // of the head in row 0
    const uint32_t *rows;
    uint64_t row_stride_k, row_stride_v;
    uint32_t rows_at, block_shift;
    uint32_t lo, hi;         // of the item
    uint32_t bars, slots_at; // in shared memory
    uint32_t n_slots;
    uint32_t leaf, end;   // the next to bring
    uint32_t row, ahead;  // lane p: of piece p of that leaf, and of the next
    uint32_t at, half;    // the slot to fill; 0: K is next
    uint32_t from, phase; // the slot to read

    __device__ __forceinline__ void init(const sheaf__cuda_decode &in, uint32_t head,
                                         uint32_t shared, uint32_t slots, uint32_t n)
    {
        k = in.base + in.k_offset + head * in.k_head_stride;
        v = in.base + in.v_offset + head * in.v_head_stride;
        rows = in.rows;
        row_stride_k = in.row_stride_k, row_stride_v = in.row_stride_v;
        block_shift = in.block_shift;
        bars = shared, slots_at = slots, n_slots = n;
        at = half = from = phase = 0;
    }

    __device__ __forceinline__ bool held(int piece) const
    {
        const uint32_t first = leaf * SHEAF__CUDA_LEAF + 16 * piece;
        return first < hi && first + 16 > lo;
    }

    // Lane p learns where piece p of a leaf lies.
    __device__ __forceinline__ uint32_t row_of(uint32_t n, int lane) const
    {
        const uint32_t first = n * SHEAF__CUDA_LEAF + 16 * lane;
        if (lane >= 4 || n >= end || first >= hi || first + 16 <= lo) return 0;
        return __ldg(rows + (uint32_t)(rows_at + (first >> block_shift)));
    }

    __device__ __forceinline__ void begin(uint32_t first, uint32_t past, int lane)
    {
        leaf = first, end = past;
        row = row_of(leaf, lane);
        ahead = row_of(leaf + 1, lane);
    }

    // Fills the next slot, if there is something left to bring. The whole warp.
    __device__ __forceinline__ void bring(int lane)
    {
        if (leaf >= end) return;
        const uint32_t bar = bars + 8 * at, slot = slots_at + at * S::SLOT;
        constexpr uint32_t each = 16 * S::ROW + (S::RAW ? 0 : 64);
        const bool mine = lane < 4 && held(lane);
        const uint32_t n = __popc(__ballot_sync(ALL, mine));
        if (lane == 0) barrier_expect(bar, n * each);
        __syncwarp();
        if (mine) {
            const uint32_t inside =
                (leaf * SHEAF__CUDA_LEAF + 16 * lane) & ((1u << block_shift) - 1);
            const unsigned char *segment =
                half ? v + row * row_stride_v : k + row * row_stride_k;
            bulk_copy(slot + lane * S::PIECE, segment + inside * S::ROW, 16 * S::ROW, bar);
            if constexpr (!S::RAW)
                bulk_copy(slot + S::SCALES + 64 * lane,
                          segment + ((uint64_t)S::ROW << block_shift) + 4 * inside, 64, bar);
        }
        if (++at == n_slots) at = 0;
        if (half) {
            leaf++;
            row = ahead;
            ahead = row_of(leaf + 1, lane);
        }
        half ^= 1;
    }

    // Waits for the oldest slot not read yet and gives its address.
    __device__ __forceinline__ uint32_t wait()
    {
        barrier_wait(bars + 8 * from, phase);
        return slots_at + from * S::SLOT;
    }

    __device__ __forceinline__ void next()
    {
        if (++from == n_slots) from = 0, phase ^= 1;
    }
};

__device__ __forceinline__ seen seen_of(uint32_t leaf, uint32_t lo, uint32_t hi)
{
    const uint32_t first = leaf * SHEAF__CUDA_LEAF;
    seen s;
    s.lo = lo > first ? (int)(lo - first) : 0;
    s.hi = hi - first < SHEAF__CUDA_LEAF ? (int)(hi - first) : SHEAF__CUDA_LEAF;
    s.whole = s.lo == 0 && s.hi == SHEAF__CUDA_LEAF;
    return s;
}

// One leaf from the warp's own ring.
template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ void leaf_of(sums<D, 1> &to, ring<C, D> &r, uint32_t leaf, int lane,
                                        float softcap, const queries<C, D, 1, PRECISE> &q)
{
    constexpr bool LOW = PRECISE && !shape<C, D>::HALF;
    float s[1][4][4];
    weights<1, LOW> w;
    const seen see = seen_of(leaf, r.lo, r.hi);
    uint32_t slot = r.wait();
    scores<C, D, 1, PRECISE>(s, slot, lane, q);
    logits<C, D, 1, PRECISE>(s, slot, lane, see, softcap, q);
    __syncwarp();
    r.next();
    r.bring(lane);
    exponentials<D, 1>(s, to);
    slot = r.wait();
    if (!see.whole) clean<C, D>(slot, lane, see);
    weigh<C, D, 1, LOW>(w, s, slot, lane);
    values<C, D, 1, LOW>(to, slot, lane, w);
    __syncwarp();
    r.next();
    r.bring(lane);
}

// --- what is left behind ----------------------------------------------------------------------

__device__ __forceinline__ float *part_at(const sheaf__cuda_decode &in, int dim, uint64_t part,
                                          uint32_t head)
{
    return in.parts + (part * in.n_q_heads + head) * (uint32_t)(dim + 4);
}

// Eight dimensions of one column.
template <int D, int NT>
__device__ __forceinline__ void octet(float (&x)[8], const sums<D, NT> &s, int n, int k, int c)
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x[j] = s.o[n][k][j][c];
        x[4 + j] = s.o[n][k][j][2 + c];
    }
}

template <uint32_t C, int D, int NT>
__device__ __forceinline__ void part_write(float *to, const sums<D, NT> &s, int n, int c,
                                           int lane)
{
    const int g = lane >> 2;
#pragma unroll
    for (int k = 0; k < D / 64; k++) {
        float x[8];
        octet(x, s, n, k, c);
        float4 *o = reinterpret_cast<float4 *>(to + octet_dim<C, D>(k, g));
        o[0] = make_float4(x[0], x[1], x[2], x[3]);
        o[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
    if (g == 0) to[D] = s.m[n][c], to[D + 1] = s.l[n][c];
}

// Writes the columns of one KV head's tile: a part, or the result.
template <uint32_t C, int D>
__device__ __forceinline__ void
leave(const sheaf__cuda_decode &in, const sheaf__cuda_unit &unit, uint64_t part,
      const sums<D, 1> &s, uint32_t kv_head, uint32_t tile, int lane)
{
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const uint32_t j = 8 * tile + 2 * t + c;
        if (j >= in.group) continue;
        const uint32_t head = kv_head * in.group + j;
        if (unit.kind != SHEAF__CUDA_FINAL) {
            part_write<C, D, 1>(part_at(in, D, part, head), s, 0, c, lane);
            continue;
        }
        const float factor = finish_factor(in.sinks, head, s.m[0][c], s.l[0][c]);
        const uint64_t row = ((uint64_t)unit.query * in.n_q_heads + head) * D;
#pragma unroll
        for (int k = 0; k < D / 64; k++) {
            float x[8];
            octet(x, s, 0, k, c);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = __fmul_rn(x[i], factor);
            output8(in.out, in.io_dtype, row + octet_dim<C, D>(k, g), x);
        }
    }
}

__device__ __forceinline__ sheaf__cuda_unit unit_load(const sheaf__cuda_unit *from)
{
    const uint4 a = __ldg(reinterpret_cast<const uint4 *>(from));
    const uint4 b = __ldg(reinterpret_cast<const uint4 *>(from) + 1);
    return sheaf__cuda_unit{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// The result of a query that sees nothing. One warp.
template <int D>
__device__ __forceinline__ void leave_zeros(const sheaf__cuda_decode &in, uint32_t query,
                                            uint32_t kv_head, uint32_t tile, int lane)
{
    const float zeros[8] = {};
    const uint32_t end = min(in.group, 8 * tile + 8);
    for (uint32_t j = 8 * tile; j < end; j++)
        if (lane < D / 8)
            output8(in.out, in.io_dtype,
                    ((uint64_t)query * in.n_q_heads + kv_head * in.group + j) * D + 8 * lane,
                    zeros);
}

__device__ __forceinline__ void launch_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// What a warp or a team needs before its first leaf: the ring filled, then the queries packed.
template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ void
unit_begin(const sheaf__cuda_decode &in, const sheaf__cuda_unit &unit, uint32_t first,
           uint32_t end, uint32_t kv_head, uint32_t tile, unsigned char *shared, int lane,
           ring<C, D> &r, queries<C, D, 1, PRECISE> &q)
{
    const uint32_t at = shared_address(shared);
    r.init(in, kv_head, at, at + ring_bytes<C, D>(0, in.sums), in.slots);
    r.rows_at = unit.rows_at, r.lo = unit.lo, r.hi = unit.hi;
    if (lane == 0) {
        for (uint32_t n = 0; n < in.slots; n++) barrier_init(at + 8 * n, 1);
        fence_async();
    }
    r.begin(first, end, lane);
    __syncwarp();
    if (in.waits == SHEAF__CUDA_WAITS_FIRST)
        wait_for_previous(); // only tables were read so far
    for (uint32_t n = 0; n < in.slots; n++) r.bring(lane);
    auto row_of = [&](int column) -> int64_t {
        const uint32_t j = 8 * tile + column;
        if (j >= in.group) return -1;
        return (int64_t)((uint64_t)unit.query * in.n_q_heads + kv_head * in.group + j);
    };
    pack_queries<C, D, 1, PRECISE>(q, in, lane, row_of,
                                   reinterpret_cast<float *>(shared + HEAD_BYTES),
                                   reinterpret_cast<float *>(shared + 128));
}

// --- kernels ---------------------------------------------------------------------------------

// in.warps units a block, a warp each; units * tiles * heads, heads first.
template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(128)
    decode_units(const __grid_constant__ sheaf__cuda_decode in)
{
    extern __shared__ __align__(128) unsigned char all[];
    const int lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5, tiles = (in.group + 7) / 8;
    const uint32_t task = blockIdx.x * in.warps + warp;
    if (in.overlap) launch_next();
    const uint32_t kv_head = task % in.n_kv_heads, rest = task / in.n_kv_heads;
    const uint32_t tile = rest % tiles, index = rest / tiles;
    if (index >= in.n_units) return;
    unsigned char *shared = all + warp * ring_bytes<C, D>(in.slots, in.sums);
    float *span = reinterpret_cast<float *>(shared + HEAD_BYTES);
    float *item = span + sums_bytes<D, 1>() / 4;
    const sheaf__cuda_unit unit = unit_load(in.units + index);
    if (unit.first_leaf == unit.end_leaf) {
        if (in.waits != SHEAF__CUDA_WAITS_NEVER) wait_for_previous();
        leave_zeros<D>(in, unit.query, kv_head, tile, lane);
        return;
    }
    ring<C, D> r;
    queries<C, D, 1, PRECISE> q;
    unit_begin<C, D, PRECISE>(in, unit, unit.first_leaf, unit.end_leaf, kv_head, tile, shared,
                              lane, r, q);
    sums<D, 1> chunk, now;
    bool in_chunk = false, in_span = false, in_item = false;
    const uint32_t first_chunk = unit.first_leaf / SHEAF__CUDA_CHUNK_LEAVES;
    const uint32_t first_span = unit.first_leaf / SHEAF__CUDA_SPAN_LEAVES;
    for (uint32_t leaf = unit.first_leaf; leaf < unit.end_leaf; leaf++) {
        leaf_of<C, D, PRECISE>(now, r, leaf, lane, in.softcap, q);
        if (in_chunk)
            merge_into<D, 1>(chunk, now);
        else
            chunk = now;
        const bool last = leaf + 1 == unit.end_leaf;
        in_chunk = !last && (leaf + 1) % SHEAF__CUDA_CHUNK_LEAVES != 0;
        if (in_chunk) continue;
        uint32_t part = unit.part;
        if (unit.kind == SHEAF__CUDA_CHUNK) {
            part += leaf / SHEAF__CUDA_CHUNK_LEAVES - first_chunk;
        } else {
            if (in_span) sums_fold<D, 1>(chunk, span, lane);
            in_span = !last && (leaf + 1) % SHEAF__CUDA_SPAN_LEAVES != 0;
            if (in_span) {
                sums_store<D, 1>(span, chunk, lane);
                continue;
            }
            if (unit.kind == SHEAF__CUDA_SPANS) {
                part += leaf / SHEAF__CUDA_SPAN_LEAVES - first_span;
            } else {
                if (in_item) sums_fold<D, 1>(chunk, item, lane);
                in_item = true;
                if (!last) {
                    sums_store<D, 1>(item, chunk, lane);
                    continue;
                }
            }
        }
        leave<C, D>(in, unit, part, chunk, kv_head, tile, lane);
    }
    if (in.waits == SHEAF__CUDA_WAITS_LAST) wait_for_previous();
}

// Four warps a unit of one chunk, a leaf each.
template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(128)
    decode_team(const __grid_constant__ sheaf__cuda_decode in)
{
    extern __shared__ __align__(128) unsigned char all[];
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const uint32_t warp = threadIdx.x >> 5, tiles = (in.group + 7) / 8;
    if (in.overlap) launch_next();
    const uint32_t kv_head = blockIdx.x % in.n_kv_heads, rest = blockIdx.x / in.n_kv_heads;
    const uint32_t tile = rest % tiles, index = rest / tiles;
    const uint32_t bytes = ring_bytes<C, D>(in.slots, in.sums);
    unsigned char *shared = all + warp * bytes;
    const sheaf__cuda_unit unit = unit_load(in.units + index);
    if (unit.first_leaf == unit.end_leaf) {
        if (in.waits != SHEAF__CUDA_WAITS_NEVER) wait_for_previous();
        if (warp == 0) leave_zeros<D>(in, unit.query, kv_head, tile, lane);
        return;
    }
    const uint32_t leaf = (unit.first_leaf & ~3u) + warp;
    if (leaf >= unit.first_leaf && leaf < unit.end_leaf) {
        ring<C, D> r;
        queries<C, D, 1, PRECISE> q;
        sums<D, 1> now;
        unit_begin<C, D, PRECISE>(in, unit, leaf, leaf + 1, kv_head, tile, shared, lane, r, q);
        leaf_of<C, D, PRECISE>(now, r, leaf, lane, in.softcap, q);
        sums_store<D, 1>(reinterpret_cast<float *>(shared + HEAD_BYTES), now, lane);
    }
    __syncthreads();
    // Each warp merges some octets of one column a lane: its words of the four leaves, in order.
    for (uint32_t job = warp; job < 2 * (D / 64); job += 4) {
        const int k = (int)(job >> 1), c = (int)(job & 1);
        const uint32_t j = 8 * tile + 2 * t + c;
        float x[8], m = 0.0f, l = 0.0f;
        for (uint32_t n = unit.first_leaf; n < unit.end_leaf; n++) {
            const float *from =
                reinterpret_cast<const float *>(all + (n & 3) * bytes + HEAD_BYTES);
            const float bm = from[(D / 4 + c) * 32 + lane],
                        bl = from[(D / 4 + 2 + c) * 32 + lane];
            const bool only = n == unit.first_leaf;
            const float top = only ? bm : fmaxf(m, bm);
            const float ea = exp2_fast(__fsub_rn(m, top)), eb = exp2_fast(__fsub_rn(bm, top));
            l = only ? bl : __fmaf_rn(bl, eb, __fmul_rn(l, ea));
            m = top;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float b = from[((k * 4 + (i & 3)) * 4 + c + 2 * (i >> 2)) * 32 + lane];
                x[i] = only ? b : __fmaf_rn(b, eb, __fmul_rn(x[i], ea));
            }
        }
        if (j >= in.group) continue;
        const uint32_t head = kv_head * in.group + j;
        const int dim = octet_dim<C, D>(k, g);
        if (unit.kind != SHEAF__CUDA_FINAL) {
            float *to = part_at(in, D, unit.part, head);
            reinterpret_cast<float4 *>(to + dim)[0] = make_float4(x[0], x[1], x[2], x[3]);
            reinterpret_cast<float4 *>(to + dim)[1] = make_float4(x[4], x[5], x[6], x[7]);
            if (g == 0 && k == 0) to[D] = m, to[D + 1] = l;
            continue;
        }
        const float factor = finish_factor(in.sinks, head, m, l);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = __fmul_rn(x[i], factor);
        output8(in.out, in.io_dtype, ((uint64_t)unit.query * in.n_q_heads + head) * D + dim, x);
    }
    if (in.waits == SHEAF__CUDA_WAITS_LAST) wait_for_previous();
}

} // namespace sheaf_cuda

#endif
