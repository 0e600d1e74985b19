// attn/cuda/decode_prefix.cuh - shared prefixes, and the merging of parts.
//
// Owns: the kernel that reads a prefix once for the query rows of all items that share it, and the
// one that merges an item's parts.
#ifndef SHEAF_ATTN_CUDA_DECODE_PREFIX_CUH
#define SHEAF_ATTN_CUDA_DECODE_PREFIX_CUH

#include "attn/cuda/decode_kernels.cuh"

namespace sheaf_cuda
{

// --- shared prefixes ----------------------------------------------------------------------------

// The slot that was read before the last one is filled again once all warps have read it: by then
// they have, mostly. Warp 0 alone.
template <uint32_t C, int D> struct refill {
    uint32_t empty; // barriers, one a slot
    uint32_t n_slots, at, phase;
    bool one_read;

    __device__ __forceinline__ void after_read(ring<C, D> &r, int lane)
    {
        if (!one_read) {
            one_read = true;
            return;
        }
        barrier_wait(empty + 8 * at, phase);
        if (++at == n_slots) at = 0, phase ^= 1;
        r.bring(lane);
    }
};

// A block: PREFIX_WARPS * NT * 8 query rows of one KV head against some spans.
template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(32 * PREFIX_WARPS, 1)
    decode_prefix(const __grid_constant__ sheaf__cuda_decode in, const uint32_t slots)
{
    constexpr int NT = prefix_columns<D>();
    constexpr bool LOW = PRECISE && !shape<C, D>::HALF;
    extern __shared__ __align__(128) unsigned char all[];
    const int lane = threadIdx.x & 31, t = lane & 3;
    const uint32_t warp = threadIdx.x >> 5, at = shared_address(all);
    const uint32_t kv_head = blockIdx.x % in.n_kv_heads;
    const sheaf__cuda_prefix_unit unit = in.prefix_units[blockIdx.x / in.n_kv_heads];
    unsigned char *own = all + HEAD_BYTES + warp * (128 + sums_bytes<D, NT>());
    float *span = reinterpret_cast<float *>(own + 128);
    ring<C, D> r;
    r.init(in, kv_head, at, at + (uint32_t)prefix_bytes<C, D>(0), slots);
    r.rows_at = unit.rows_at;
    r.lo = unit.first_span * SHEAF__CUDA_SPAN, r.hi = unit.end_span * SHEAF__CUDA_SPAN;
    if (threadIdx.x == 0) {
        for (uint32_t n = 0; n < slots; n++) {
            barrier_init(at + 8 * n, 1);
            barrier_init(at + 128 + 8 * n, 32 * PREFIX_WARPS);
        }
        fence_async();
    }
    __syncthreads();
    r.begin(unit.first_span * SHEAF__CUDA_SPAN_LEAVES, unit.end_span * SHEAF__CUDA_SPAN_LEAVES,
            lane);
    if (in.overlap) wait_for_previous(); // only tables were read so far
    if (in.overlap) launch_next();
    if (warp == 0)
        for (uint32_t n = 0; n < slots; n++) r.bring(lane);
    refill<C, D> fill = {at + 128, slots, 0, 0, false};
    const uint32_t n_rows = unit.n_members * in.group;
    const uint32_t first_row = unit.first_row + warp * NT * 8;
    queries<C, D, NT, PRECISE> q;
    auto row_of = [&](int column) -> int64_t {
        const uint32_t row = first_row + (uint32_t)column;
        if (row >= n_rows) return -1;
        const uint32_t query = in.members[unit.members_at + row / in.group];
        return (int64_t)((uint64_t)query * in.n_q_heads + kv_head * in.group + row % in.group);
    };
    pack_queries<C, D, NT, PRECISE>(q, in, lane, row_of, span, reinterpret_cast<float *>(own));

    sums<D, NT> chunk, now;
    const uint32_t end = r.end;
    for (uint32_t leaf = unit.first_span * SHEAF__CUDA_SPAN_LEAVES; leaf < end; leaf++) {
        float s[NT][4][4];
        weights<NT, LOW> w;
        uint32_t slot = r.wait();
        scores<C, D, NT, PRECISE>(s, slot, lane, q);
        logits<C, D, NT, PRECISE>(s, slot, lane, seen{0, SHEAF__CUDA_LEAF, true}, in.softcap,
                                  q);
        barrier_arrive(at + 128 + 8 * r.from);
        r.next();
        if (warp == 0) fill.after_read(r, lane);
        exponentials<D, NT>(s, now);
        slot = r.wait();
        weigh<C, D, NT, LOW>(w, s, slot, lane);
        values<C, D, NT, LOW>(now, slot, lane, w);
        barrier_arrive(at + 128 + 8 * r.from);
        r.next();
        if (warp == 0) fill.after_read(r, lane);
        if (leaf % SHEAF__CUDA_CHUNK_LEAVES != 0)
            merge_into<D, NT>(chunk, now);
        else
            chunk = now;
        if ((leaf + 1) % SHEAF__CUDA_CHUNK_LEAVES != 0) continue;
        if (leaf % SHEAF__CUDA_SPAN_LEAVES >= SHEAF__CUDA_CHUNK_LEAVES)
            sums_fold<D, NT>(chunk, span, lane);
        if ((leaf + 1) % SHEAF__CUDA_SPAN_LEAVES != 0) {
            sums_store<D, NT>(span, chunk, lane);
            continue;
        }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const uint32_t row = first_row + (uint32_t)(8 * n + 2 * t + c);
                if (row >= n_rows) continue;
                const uint64_t part =
                    (uint64_t)unit.part +
                    (uint64_t)(leaf / SHEAF__CUDA_SPAN_LEAVES) * unit.n_members +
                    row / in.group;
                part_write<C, D, NT>(part_at(in, D, part, kv_head * in.group + row % in.group),
                                     chunk, n, c, lane);
            }
    }
}

// --- merging --------------------------------------------------------------------------------

constexpr int MERGE_EACH = 4; // spans of a thread in one round

struct part_sum {
    float o, m, l;
};

__device__ __forceinline__ void part_fold(part_sum &a, bool &any, const part_sum &b)
{
    if (!any) {
        a = b;
        any = true;
        return;
    }
    const float m = fmaxf(a.m, b.m);
    const float ea = exp2_fast(__fsub_rn(a.m, m)), eb = exp2_fast(__fsub_rn(b.m, m));
    a.o = __fmaf_rn(b.o, eb, __fmul_rn(a.o, ea));
    a.l = __fmaf_rn(b.l, eb, __fmul_rn(a.l, ea));
    a.m = m;
}

// The parts of one span, [first, first + n) of the list.
struct span_parts {
    uint64_t first;
    uint32_t n;
};

__device__ __forceinline__ span_parts parts_of(const sheaf__cuda_merge &job, uint32_t span)
{
    if (span < job.prefix_spans)
        return {(uint64_t)job.prefix_part + (uint64_t)span * job.prefix_stride, 1};
    if (job.kind == SHEAF__CUDA_WHOLE) return {job.part, 1};
    if (job.kind == SHEAF__CUDA_SPANS) return {(uint64_t)job.part + (span - job.first), 1};
    const uint32_t from = max(job.first, 4 * span),
                   to = min(job.first + job.n_parts, 4 * span + 4);
    return {(uint64_t)job.part + (from - job.first), to - from};
}

// R^-1 x over D threads of the block; all threads call.
template <int D>
__device__ __forceinline__ float unrotate(float x, float *words, const uint64_t (&signs)[4])
{
    const int d = threadIdx.x;
    for (int h = 1; h < D; h *= 2) {
        if (threadIdx.y == 0) words[d] = x;
        __syncthreads();
        if (threadIdx.y == 0) x = d & h ? words[d ^ h] - x : x + words[d ^ h];
        __syncthreads();
    }
    x *= D == 64 ? 0.125f : D == 128 ? 0.08838834764831845f : 0.0625f;
    return signs[d >> 6] >> (d & 63) & 1 ? -x : x;
}

// A block an item and query head: [D] x [several spans at a time].
template <int D>
__global__ void __launch_bounds__(512)
    decode_merge(const __grid_constant__ sheaf__cuda_decode in, const bool rotated)
{
    extern __shared__ __align__(16) float words[]; // [threads y * MERGE_EACH][D + 2]
    const uint32_t head = blockIdx.x % in.n_q_heads;
    const int d = threadIdx.x;
    if (in.overlap) launch_next();
    if (in.overlap) wait_for_previous();
    const sheaf__cuda_merge job = in.merges[blockIdx.x / in.n_q_heads];
    if (job.kind == SHEAF__CUDA_FINAL) return;
    uint32_t own = job.first, past = job.first + job.n_parts;
    if (job.kind == SHEAF__CUDA_CHUNK) own /= 4, past = (past + 3) / 4;
    const uint32_t begin = job.prefix_spans != 0 ? 0 : own;
    const uint32_t round = blockDim.y * MERGE_EACH;
    part_sum all = {0.0f, 0.0f, 0.0f};
    bool any = false;
    for (uint32_t base = begin; base < past; base += round) {
        part_sum part[MERGE_EACH][4];
        span_parts of[MERGE_EACH];
#pragma unroll
        for (int r = 0; r < MERGE_EACH; r++) {
            const uint32_t span = base + threadIdx.y * MERGE_EACH + r;
            of[r] = span < past ? parts_of(job, span) : span_parts{0, 0};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (i >= (int)of[r].n) continue;
                const float *from = part_at(in, D, of[r].first + i, head);
                const float2 ml = *reinterpret_cast<const float2 *>(from + D);
                part[r][i] = {from[d], ml.x, ml.y};
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < MERGE_EACH; r++) {
            part_sum sum = {0.0f, 0.0f, 0.0f};
            bool some = false;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < (int)of[r].n) part_fold(sum, some, part[r][i]);
            float *to = words + (threadIdx.y * MERGE_EACH + r) * (D + 2);
            to[d] = sum.o;
            if (d == 0) to[D] = sum.m, to[D + 1] = sum.l;
        }
        __syncthreads();
        const uint32_t n = min(round, past - base);
        if (threadIdx.y == 0)
            for (uint32_t s = 0; s < n; s++) {
                const float *from = words + s * (D + 2);
                part_fold(all, any, part_sum{from[d], from[D], from[D + 1]});
            }
    }
    float x = __fmul_rn(all.o, finish_factor(in.sinks, head, all.m, all.l));
    __syncthreads();
    if (rotated) x = unrotate<D>(x, words, in.signs);
    if (threadIdx.y != 0) return;
    const uint64_t at = ((uint64_t)job.query * in.n_q_heads + head) * D + d;
    if (in.io_dtype == F32)
        static_cast<float *>(in.out)[at] = x;
    else if (in.io_dtype == F16)
        static_cast<__half *>(in.out)[at] = __float2half_rn(x);
    else
        static_cast<__nv_bfloat16 *>(in.out)[at] = __float2bfloat16_rn(x);
}

// --- launches ---------------------------------------------------------------------------------

template <typename K, typename... A>
static cudaError_t launch(K kernel, uint32_t grid, dim3 block, size_t shared,
                          cudaStream_t stream, bool early, A... args)
{
    if (shared > 48 * 1024) {
        cudaError_t error = cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error != cudaSuccess) return error;
    }
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid), config.blockDim = block;
    config.dynamicSmemBytes = shared, config.stream = stream;
    config.attrs = &attribute, config.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

template <uint32_t C, int D, bool PRECISE>
static cudaError_t run(const sheaf__cuda_decode &in, cudaStream_t stream)
{
    const uint32_t tiles = (in.group + 7) / 8;
    const bool early = in.overlap != 0;
    sheaf__cuda_decode units = in;
    units.waits = early ? SHEAF__CUDA_WAITS_FIRST : SHEAF__CUDA_WAITS_NEVER;
    if (in.n_prefix_units != 0) {
        const uint32_t slots = D == 256 ? 2 : 4;
        if (early) units.waits = SHEAF__CUDA_WAITS_LAST;
        cudaError_t error = launch(decode_prefix<C, D, PRECISE>,
                                   in.n_prefix_units * in.n_kv_heads, dim3(32 * PREFIX_WARPS),
                                   prefix_bytes<C, D>((int)slots), stream, early, in, slots);
        if (error != cudaSuccess) return error;
    }
    if (in.n_units != 0) {
        const uint32_t tasks = in.n_units * tiles * in.n_kv_heads;
        const size_t bytes = (size_t)ring_bytes<C, D>(in.slots, in.sums) * in.warps;
        cudaError_t error =
            in.team ? launch(decode_team<C, D, PRECISE>, tasks, dim3(128), bytes, stream, early,
                             units)
                    : launch(decode_units<C, D, PRECISE>, (tasks + in.warps - 1) / in.warps,
                             dim3(32 * in.warps), bytes, stream, early, units);
        if (error != cudaSuccess) return error;
    }
    if (in.n_merges == 0) return cudaSuccess;
    uint32_t groups = (in.merge_spans + MERGE_EACH - 1) / MERGE_EACH;
    if (groups > 512 / D) groups = 512 / D;
    return launch(decode_merge<D>, in.n_merges * in.n_q_heads, dim3(D, groups),
                  (size_t)groups * MERGE_EACH * (D + 2) * sizeof(float), stream, early, in,
                  C == TURBO4);
}

template <uint32_t C>
static cudaError_t run_codec(const sheaf__cuda_decode &in, cudaStream_t stream)
{
    // f16 holds P well enough for any output, and queries in two parts cost next to nothing
    if constexpr (C == BF16) {
        if (in.io_dtype == BF16 && in.dim == 64) return run<C, 64, false>(in, stream);
        if (in.io_dtype == BF16 && in.dim == 128) return run<C, 128, false>(in, stream);
        if (in.io_dtype == BF16) return run<C, 256, false>(in, stream);
    }
    if (in.dim == 64) return run<C, 64, true>(in, stream);
    if (in.dim == 128) return run<C, 128, true>(in, stream);
    return run<C, 256, true>(in, stream);
}

} // namespace sheaf_cuda

#endif
