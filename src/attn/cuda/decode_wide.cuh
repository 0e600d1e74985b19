// attn/cuda/decode_wide.cuh - shared prefixes of bf16 and f16, by products of whole warpgroups.
//
// Owns: a kernel that gives the same bits as decode_prefix.cuh, and the queries that units compute for
// themselves. Here 64 query rows are the rows of the products, and K and V their columns:
//
//     S [64 x 64 positions] = Q K^T       D / 16 steps of 16 dimensions
//     O [64 x D]            = P V         4 steps of 16 positions
//
// The steps are those of decode_tile.cuh, in its order. Of 16 products and a sum the hardware makes the
// same bits in either instruction (tests/cuda/test_products.cu), and everything else is done in the same
// order: a thread has the positions 8 j + 2 t and 8 j + 2 t + 1 of two rows, as there two lanes have
// them of a column.
//
// A block has two warpgroups, 64 query rows of one KV head each, and a warp that brings K and V. A
// warpgroup asks for the values of one leaf and the scores of the next together; while the tensor
// cores compute them the other one makes exponentials and merges.
#ifndef SHEAF_ATTN_CUDA_DECODE_WIDE_CUH
#define SHEAF_ATTN_CUDA_DECODE_WIDE_CUH

#include "attn/cuda/decode_kernels.cuh"
#include "attn/cuda/wgmma.cuh"

namespace sheaf_cuda
{

constexpr int WIDE_ROWS = 64, WIDE_GROUPS = 2;
constexpr int WIDE_THREADS = 128 * (WIDE_GROUPS + 1);
// What a thread gets at the launch, and then those that compute and the rest. More than there is would
// be waited for without end.
constexpr int WIDE_GIVEN = 65536 / WIDE_THREADS / 8 * 8, WIDE_REGISTERS = 240, WIDE_FEW = 24;
static_assert(WIDE_GROUPS * WIDE_REGISTERS + WIDE_FEW <= (WIDE_GROUPS + 1) * WIDE_GIVEN,
              "too many");

// In shared memory, from an address aligned to 1024 bytes: barriers (full, empty, [STAGES] each; queries
// have come, [WIDE_GROUPS]), what scores of the rows are multiplied by, queries [WIDE_GROUPS][high,
// low], K and V [STAGES] each, sums of the span so far [WIDE_GROUPS]: queries come there, too, and parts
// leave from there.
template <uint32_t C, int D, bool PRECISE> struct wide {
    static constexpr bool LOW_QUERIES = PRECISE;
    static constexpr bool LOW_WEIGHTS = PRECISE && C == BF16;
    static constexpr uint32_t STAGES = PRECISE ? 2 : 3;
    static constexpr uint32_t OPERAND = 64 * D * 2;                 // bytes of 64 rows
    static constexpr uint32_t STRIP = 64 * 128;                     // of 64 numbers of them
    static constexpr uint32_t EMPTY = 32, ASKED = 64, SCALES = 128; // bytes
    static constexpr uint32_t QUERIES = 1024;
    static constexpr uint32_t OF_GROUP = (LOW_QUERIES ? 2 : 1) * OPERAND;
    static constexpr uint32_t KEYS = QUERIES + WIDE_GROUPS * OF_GROUP;
    static constexpr uint32_t VALUES = KEYS + STAGES * OPERAND;
    static constexpr uint32_t SPANS = VALUES + STAGES * OPERAND;
    static constexpr uint32_t SPAN_BYTES = (D / 2 + 4) * 512; // of a group; and of its parts
    static constexpr uint32_t BYTES = SPANS + WIDE_GROUPS * SPAN_BYTES;
    static_assert(BYTES <= SHEAF__CUDA_MAX_SHARED, "no room");
    static_assert(8 * STAGES <= EMPTY, "no room");
    static_assert(64 * 4 * D <= SPAN_BYTES, "no room for queries as they come");
};

// --- the warp that brings --------------------------------------------------------------------

// Eight lanes for each half of a leaf.
template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ void bring_leaves(const sheaf__cuda_decode &in, const maps &from,
                                             const sheaf__cuda_prefix_unit &unit,
                                             uint32_t kv_head, uint32_t at, int lane)
{
    using W = wide<C, D, PRECISE>;
    using S = shape<C, D>;
    piece<C, D> own;
    own.init(in.block_shift, lane & 7);
    const bool works = own.works && lane < 8 * S::HALVES;
    const uint32_t first = (lane >> 3) * S::POSITIONS + own.first; // of the leaf
    const uint32_t place = own.strip * W::STRIP + first * S::WIDTH;
    const uint32_t end = unit.end_span * SHEAF__CUDA_SPAN_LEAVES;
    auto row_of = [&](uint32_t leaf) -> uint32_t {
        if (!works || leaf >= end) return 0;
        const uint32_t position = leaf * SHEAF__CUDA_LEAF + first;
        return __ldg(in.rows + (uint32_t)(unit.rows_at + (position >> in.block_shift)));
    };
    auto bring = [&](const CUtensorMap *map, uint32_t leaf, uint32_t row, uint32_t to,
                     uint32_t full) {
        if (works)
            tensor_copy(to + place, map, own.strip * S::WIDTH,
                        (leaf * SHEAF__CUDA_LEAF + first) & ((1u << in.block_shift) - 1),
                        kv_head, row, full);
    };
    uint32_t leaf = unit.first_span * SHEAF__CUDA_SPAN_LEAVES;
    const uint32_t steps = end - leaf + 1;
    uint32_t row = 0, next = row_of(leaf);
    // A query's own position lies in the last leaf, if in any: what comes first is settled.
    const uint32_t early = in.settled ? W::STAGES : 0;
    for (uint32_t n = 0; n < steps; n++, leaf++) { // V of a leaf and K of the next
        const uint32_t stage = n % W::STAGES, full = at + 8 * stage;
        const uint32_t ahead = row_of(leaf + 1);
        const bool values = n != 0, keys = leaf < end;
        if (in.overlap && n == early) wait_for_previous();
        barrier_wait(at + W::EMPTY + 8 * stage, (n / W::STAGES & 1) ^ 1);
        if (lane == 0) barrier_expect(full, (values && keys ? 2 : 1) * W::OPERAND);
        __syncwarp();
        if (keys) bring(from.k, leaf, next, at + W::KEYS + stage * W::OPERAND, full);
        if (values) bring(from.v, leaf - 1, row, at + W::VALUES + stage * W::OPERAND, full);
        row = next, next = ahead;
    }
}

// --- queries ---------------------------------------------------------------------------------

// Asks for sixteen rows of q, which lie in `to` (and at its shared address) once the barrier says so, a
// row every 4 D bytes. first: of the set; all warps of a group ask.
template <int D>
__device__ __forceinline__ uint32_t ask_queries(const sheaf__cuda_decode &in,
                                                const sheaf__cuda_prefix_unit &unit,
                                                uint32_t kv_head, uint32_t first, uint32_t to,
                                                uint32_t full, int lane)
{
    const uint32_t n_rows = unit.n_members * in.group, row = first + lane;
    const uint32_t n = first < n_rows ? min(16u, n_rows - first) : 0;
    const uint32_t bytes = D * (in.io_dtype == F32 ? 4 : 2);
    uint64_t of_q = 0;
    if (lane < (int)n) {
        const uint32_t member = row / in.group;
        const uint64_t query = __ldg(in.members + unit.members_at + member);
        of_q = query * in.n_q_heads + kv_head * in.group + row - member * in.group;
    }
    if (lane == 0) barrier_expect(full, n * bytes);
    if (in.overlap) wait_for_previous(); // only tables were read so far
    if (in.overlap) launch_next();       // it reads what this kernel may read by now
    __syncwarp();
    if (lane < (int)n)
        bulk_copy(to + lane * 4 * D, static_cast<const unsigned char *>(in.q) + of_q * bytes,
                  bytes, full);
    return n;
}

// Prepares n of them, and zeros for the rest of sixteen. to: of the warp's first row.
template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ void take_rows(const sheaf__cuda_decode &in,
                                          const unsigned char *from, uint32_t n,
                                          unsigned char *to, float *scales, int lane)
{
    using W = wide<C, D, PRECISE>;
    constexpr int E = D / 32;
    const int d = lane * E;
#pragma unroll 4
    for (uint32_t row = 0; row < 16; row++) {
        float x[E] = {};
        if (row < n) read_query<E>(from + row * 4 * D, in.io_dtype, lane, x);
        const float by = scale_query<C, D>(in, x, lane);
        if (lane == 0) scales[row] = by;
        unsigned char *at =
            to + d / 64 * W::STRIP + row * 128 + swizzled<128>((int)row & 7, d % 64 * 2);
#pragma unroll
        for (int e = 0; e < E; e += 2) {
            const uint32_t high = pack<C == F16>(x[e], x[e + 1]);
            *reinterpret_cast<uint32_t *>(at + 2 * e) = high;
            if constexpr (W::LOW_QUERIES)
                *reinterpret_cast<uint32_t *>(at + W::OPERAND + 2 * e) =
                    pack_rest<C == F16>(x[e], x[e + 1], high);
        }
    }
}

// --- a leaf ----------------------------------------------------------------------------------

// Of a thread's two rows, 8 apart, what was merged so far. o: number 4 j + 2 h + c is of dimension
// 8 j + 2 t + c of row h; so are a leaf's.
template <int D> struct wide_sums {
    float o[D / 2], m[2], l[2];
};

// a = a then b, in that order.
template <int D>
__device__ __forceinline__ void merge_rows(wide_sums<D> &a, const float (&o)[D / 2],
                                           const float (&m)[2], const float (&l)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float top = fmaxf(a.m[h], m[h]);
        const float ea = exp2_fast(__fsub_rn(a.m[h], top));
        const float eb = exp2_fast(__fsub_rn(m[h], top));
        a.m[h] = top;
        a.l[h] = __fmaf_rn(l[h], eb, __fmul_rn(a.l[h], ea));
#pragma unroll
        for (int i = 2 * h; i < D / 2; i += 4)
#pragma unroll
            for (int c = 0; c < 2; c++)
                a.o[i + c] = __fmaf_rn(o[i + c], eb, __fmul_rn(a.o[i + c], ea));
    }
}

// s = what `from` holds, then s; and to it. Every thread its own numbers, [four of them][thread].
template <int D> __device__ __forceinline__ void fold_rows(wide_sums<D> &s, const float4 *from)
{
    const float4 ends = from[D / 8 * 128];
    const float m[2] = {ends.x, ends.y}, l[2] = {ends.z, ends.w};
    float ea[2], eb[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float top = fmaxf(m[h], s.m[h]);
        ea[h] = exp2_fast(__fsub_rn(m[h], top));
        eb[h] = exp2_fast(__fsub_rn(s.m[h], top));
        s.m[h] = top;
        s.l[h] = __fmaf_rn(s.l[h], eb[h], __fmul_rn(l[h], ea[h]));
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        const float4 x = from[j * 128];
        s.o[4 * j] = __fmaf_rn(s.o[4 * j], eb[0], __fmul_rn(x.x, ea[0]));
        s.o[4 * j + 1] = __fmaf_rn(s.o[4 * j + 1], eb[0], __fmul_rn(x.y, ea[0]));
        s.o[4 * j + 2] = __fmaf_rn(s.o[4 * j + 2], eb[1], __fmul_rn(x.z, ea[1]));
        s.o[4 * j + 3] = __fmaf_rn(s.o[4 * j + 3], eb[1], __fmul_rn(x.w, ea[1]));
    }
}

template <int D> __device__ __forceinline__ void store_rows(float4 *to, const wide_sums<D> &s)
{
#pragma unroll
    for (int j = 0; j < D / 8; j++)
        to[j * 128] = make_float4(s.o[4 * j], s.o[4 * j + 1], s.o[4 * j + 2], s.o[4 * j + 3]);
    to[D / 8 * 128] = make_float4(s.m[0], s.m[1], s.l[0], s.l[1]);
}

// Scores to exponentials, their maxima and sums.
__device__ __forceinline__ void soften_rows(float (&s)[32], const float (&scale)[2],
                                            float softcap, float (&m)[2], float (&l)[2])
{
    float factor[2] = {scale[0], scale[1]};
    if (softcap != 0.0f) {
        const soft_cap cap(softcap);
        factor[0] = factor[1] = 1.0f;
#pragma unroll
        for (int i = 0; i < 32; i++) s[i] = cap.of(__fmul_rn(s[i], scale[i / 2 % 2]));
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = s[2 * h], sum[2];
#pragma unroll
        for (int i = 2 * h; i < 32; i += 4) top = fmaxf(fmaxf(top, s[i]), s[i + 1]);
        top = fmaxf(top, __shfl_xor_sync(ALL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(ALL, top, 2));
        m[h] = __fmul_rn(top, factor[h]);
#pragma unroll
        for (int i = 2 * h; i < 32; i += 4)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                s[i + c] = exp2_fast(__fmaf_rn(s[i + c], factor[h], -m[h]));
                sum[c] = i == 2 * h ? s[i + c] : __fadd_rn(sum[c], s[i + c]);
            }
        float all = __fadd_rn(sum[0], sum[1]);
        all = __fadd_rn(all, __shfl_xor_sync(ALL, all, 1));
        l[h] = __fadd_rn(all, __shfl_xor_sync(ALL, all, 2));
    }
}

// Exponentials as the products take them, four steps of 16 positions.
template <bool LOW> struct wide_weights {
    uint32_t high[4][4], low[LOW ? 4 : 1][4];
};

template <uint32_t C, bool LOW>
__device__ __forceinline__ void weigh_rows(wide_weights<LOW> &p, const float (&s)[32])
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float x = s[8 * k + 2 * i], y = s[8 * k + 2 * i + 1];
            p.high[k][i] = pack<C == F16>(x, y);
            if constexpr (LOW) p.low[k][i] = pack_rest<C == F16>(x, y, p.high[k][i]);
        }
}

// Asks for S = Q K^T. Descriptors of both.
template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ void ask_scores(float (&s)[32], uint64_t queries, uint64_t keys)
{
    using W = wide<C, D, PRECISE>;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const uint32_t at = d / 64 * W::STRIP + d % 64 * 2;
        const uint64_t k = wgmma_moved(keys, at);
        wgmma_shared<32, C == F16>(s, wgmma_moved(queries, at), k, d > 0);
        if constexpr (W::LOW_QUERIES)
            wgmma_shared<32, C == F16>(s, wgmma_moved(queries, W::OPERAND + at), k, 1);
    }
    wgmma_commit();
}

// Asks for O = P V. values: a descriptor.
template <uint32_t C, int D, bool LOW>
__device__ __forceinline__ void ask_values(float (&o)[D / 2], const wide_weights<LOW> &p,
                                           uint64_t values)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint64_t v = wgmma_moved(values, 16 * 128 * k);
        wgmma_registers<D / 2, C == F16>(o, p.high[k], v, k > 0);
        if constexpr (LOW) wgmma_registers<D / 2, C == F16>(o, p.low[k], v, 1);
    }
    wgmma_commit();
}

// --- a warpgroup -----------------------------------------------------------------------------

// A span's sums of the warp's 16 rows: as parts into its shared memory, and on their way from there.
template <int D>
__device__ __forceinline__ void leave_rows(unsigned char *all, uint32_t memory,
                                           const row_run &run, const wide_sums<D> &s, int lane)
{
    constexpr uint32_t BYTES = (D + 4) * 4; // of a part
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *row = reinterpret_cast<float *>(all + (g + 8 * h) * BYTES);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            *reinterpret_cast<float2 *>(row + 8 * j + 2 * t) =
                make_float2(s.o[4 * j + 2 * h], s.o[4 * j + 2 * h + 1]);
        if (t == 0) *reinterpret_cast<float2 *>(row + D) = make_float2(s.m[h], s.l[h]);
    }
    run.leave(memory, BYTES, lane);
}

template <uint32_t C, int D, bool PRECISE>
__device__ __forceinline__ void
compute_rows(const sheaf__cuda_decode &in, const sheaf__cuda_prefix_unit &unit,
             uint32_t kv_head, uint32_t group, unsigned char *all, uint32_t at, int lane)
{
    using W = wide<C, D, PRECISE>;
    constexpr uint32_t STAGES = W::STAGES;
    const uint32_t first_row = unit.first_row + WIDE_ROWS * group;
    const uint32_t warp = threadIdx.x / 32 % 4, own = 16 * warp + lane / 4; // of the group
    float *scales = reinterpret_cast<float *>(all + W::SCALES) + WIDE_ROWS * group;
    const uint32_t span_at = W::SPANS + W::SPAN_BYTES * group;
    float4 *span = reinterpret_cast<float4 *>(all + span_at) + threadIdx.x % 128;
    const uint32_t asked = at + W::ASKED + 8 * group, rows_at = span_at + 16 * warp * 4 * D;
    const uint32_t n_rows =
        ask_queries<D>(in, unit, kv_head, first_row + 16 * warp, at + rows_at, asked, lane);
    row_run run(in, unit, D, kv_head, first_row + 16 * warp, 16, lane);
    const uint64_t each = (uint64_t)unit.n_members * in.n_q_heads * (D + 4);
    if (run.n != 0) run.to += unit.first_span * each;
    barrier_wait(asked, 0);
    take_rows<C, D, PRECISE>(in, all + rows_at, n_rows,
                             all + W::QUERIES + group * W::OF_GROUP + 16 * warp * 128,
                             scales + 16 * warp, lane);
    fence_async();
    meet<128>(group + 1);
    const float scale[2] = {scales[own], scales[own + 8]};
    const uint64_t queries = wgmma_descriptor(at + W::QUERIES + group * W::OF_GROUP, 16);
    const uint64_t keys = wgmma_descriptor(at + W::KEYS, 16);
    const uint64_t values = wgmma_descriptor(at + W::VALUES, W::STRIP);
    float m[2], l[2]; // of the leaf whose weights p are
    wide_weights<W::LOW_WEIGHTS> p;
    const uint32_t n_leaves =
        (unit.end_span - unit.first_span) * (uint32_t)SHEAF__CUDA_SPAN_LEAVES;
    // Of the next step: values of a leaf, scores of the one after it.
    uint32_t stage = 0, phase = 0;
    auto release = [&] {
        __syncwarp();
        if (lane == 0) barrier_arrive(at + W::EMPTY + 8 * stage);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    {
        float s[32];
        barrier_wait(at, 0);
        wgmma_fence();
        ask_scores<C, D, PRECISE>(s, queries, keys);
        wgmma_wait<0>();
        wgmma_pin(s);
        release();
        soften_rows(s, scale, in.softcap, m, l);
        weigh_rows<C>(p, s);
    }
    // Values of a leaf to o, scores of the next one to weights. After the last leaf there are scores,
    // too, of anything, and nobody wants them.
    auto leaf = [&](float(&o)[D / 2]) {
        float s[32];
        barrier_wait(at + 8 * stage, phase);
        wgmma_fence();
        ask_scores<C, D, PRECISE>(s, queries, wgmma_moved(keys, stage * W::OPERAND));
        ask_values<C, D>(o, p, wgmma_moved(values, stage * W::OPERAND));
        wgmma_wait<0>();
        wgmma_pin(s);
        wgmma_pin(o);
        release();
        soften_rows(s, scale, in.softcap, m, l);
        weigh_rows<C>(p, s);
    };
    for (uint32_t i = 0; i < n_leaves / SHEAF__CUDA_CHUNK_LEAVES; i++) {
        constexpr uint32_t CHUNKS = SHEAF__CUDA_SPAN_LEAVES / SHEAF__CUDA_CHUNK_LEAVES;
        wide_sums<D> chunk;
#pragma unroll
        for (int h = 0; h < 2; h++) chunk.m[h] = m[h], chunk.l[h] = l[h];
        leaf(chunk.o);
#pragma unroll 1
        for (int j = 1; j < SHEAF__CUDA_CHUNK_LEAVES; j++) {
            const float m_now[2] = {m[0], m[1]}, l_now[2] = {l[0], l[1]};
            float o[D / 2];
            leaf(o);
            merge_rows<D>(chunk, o, m_now, l_now);
        }
        if (i % CHUNKS != 0) {
            fold_rows<D>(chunk, span);
        } else { // what leaves from there has been read
            bulk_wait_read();
            meet<128>(group + 1);
        }
        if (i % CHUNKS != CHUNKS - 1) {
            store_rows<D>(span, chunk);
        } else {
            meet<128>(group + 1); // all have read what they folded
            const uint32_t parts_at = span_at + warp * 16 * (D + 4) * 4;
            leave_rows<D>(all + parts_at, at + parts_at, run, chunk, lane);
            if (run.n != 0) run.to += each;
        }
    }
    bulk_wait();
}

// --- the kernel ------------------------------------------------------------------------------

template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    decode_wide(const __grid_constant__ sheaf__cuda_decode in,
                const __grid_constant__ CUtensorMap map_k,
                const __grid_constant__ CUtensorMap map_v)
{
    using W = wide<C, D, PRECISE>;
    extern __shared__ __align__(1024) unsigned char all[];
    const int lane = threadIdx.x & 31;
    const uint32_t at = shared_address(all), group = __shfl_sync(ALL, threadIdx.x / 128, 0);
    const uint32_t kv_head = blockIdx.x % in.n_kv_heads;
    const sheaf__cuda_prefix_unit unit = in.prefix_units[blockIdx.x / in.n_kv_heads];
    const uint32_t n_rows = unit.n_members * in.group - unit.first_row;
    const uint32_t busy = n_rows <= WIDE_ROWS ? 1 : WIDE_GROUPS; // groups that have rows
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < W::STAGES; i++) {
            barrier_init(at + 8 * i, 1);
            barrier_init(at + W::EMPTY + 8 * i, 4 * busy);
        }
        for (uint32_t i = 0; i < WIDE_GROUPS; i++) barrier_init(at + W::ASKED + 8 * i, 4);
        fence_async();
    }
    __syncthreads();
    if (group == WIDE_GROUPS) {
        shrink_registers<WIDE_FEW>();
        if (threadIdx.x / 32 == 4 * WIDE_GROUPS)
            bring_leaves<C, D, PRECISE>(in, maps{&map_k, &map_v}, unit, kv_head, at, lane);
    } else if (group < busy) {
        grow_registers<WIDE_REGISTERS>();
        compute_rows<C, D, PRECISE>(in, unit, kv_head, group, all, at, lane);
    }
}

} // namespace sheaf_cuda

#endif
