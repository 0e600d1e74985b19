// attn/cuda/decode_prefix.cuh - shared prefixes, and the launches of decode.
//
// Owns: the kernel that reads a prefix once for the query rows of all items that share it.
// The warps of a block share one ring and hold different query rows.
#ifndef SHEAF_ATTN_CUDA_DECODE_PREFIX_CUH
#define SHEAF_ATTN_CUDA_DECODE_PREFIX_CUH

#include "attn/cuda/decode_kernels.cuh"
#include "attn/cuda/launch.cuh"

namespace sheaf_cuda
{

// --- shared prefixes -------------------------------------------------------------------------

// The slot that was read before the last one is filled again once all warps have read it: by
// then they have, mostly. The warps take turns.
template <uint32_t C, int D> struct refill {
    uint32_t empty; // barriers, one a slot
    uint32_t n_slots, at, phase;
    uint32_t n; // slots read

    __device__ __forceinline__ void after_read(ring<C, D> &r, uint32_t warp, int lane)
    {
        if (n++ == 0) return;
        if (n % PREFIX_WARPS == warp) {
            barrier_wait(empty + 8 * at, phase);
            r.bring(lane);
        } else {
            r.skip(lane);
        }
        if (++at == n_slots) at = 0, phase ^= 1;
    }
};

// A block: PREFIX_WARPS * NT * 8 query rows of one KV head against some spans.
template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(32 * PREFIX_WARPS, 1)
    decode_prefix(const __grid_constant__ sheaf__cuda_decode in, const uint32_t slots)
{
    constexpr int NT = prefix_columns<D>();
    extern __shared__ __align__(128) unsigned char all[];
    const int lane = threadIdx.x & 31, t = lane & 3;
    const uint32_t warp = threadIdx.x >> 5, at = shared_address(all);
    const uint32_t kv_head = blockIdx.x % in.n_kv_heads;
    const sheaf__cuda_prefix_unit unit = in.prefix_units[blockIdx.x / in.n_kv_heads];
    unsigned char *own = all + HEAD_BYTES + warp * (128 + sums_bytes<D, NT>());
    float *span = reinterpret_cast<float *>(own + 128);
    ring<C, D> r;
    r.init(in, at, at + (uint32_t)prefix_bytes<C, D>(0), slots);
    r.of_head(in, kv_head);
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
    for (uint32_t n = 0; n < slots; n++) {
        if (warp == 0)
            r.bring(lane);
        else
            r.skip(lane);
    }
    refill<C, D> fill = {at + 128, slots, 0, 0, 0};
    const uint32_t n_rows = unit.n_members * in.group;
    const uint32_t first_row = unit.first_row + warp * NT * 8;
    queries<C, D, NT, PRECISE> q;
    uint32_t query = 0; // of column `lane`
    const uint32_t row = first_row + lane;
    if (lane < 8 * NT && row < n_rows)
        query = __ldg(in.members + unit.members_at + row / in.group);
    float *scales = reinterpret_cast<float *>(own);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float x[8][D / 32]; // loaded before any of it is waited for
#pragma unroll
        for (int column = 0; column < 8; column++) {
            const uint32_t at = first_row + 8 * n + column;
            const uint64_t first =
                (uint64_t)__shfl_sync(ALL, query, 8 * n + column) * in.n_q_heads;
            load_query<D>(
                in, at < n_rows ? (int64_t)(first + kv_head * in.group + at % in.group) : -1,
                lane, x[column]);
        }
        __syncwarp();
#pragma unroll
        for (int column = 0; column < 8; column++)
            stage_query<C, D>(in, x[column], lane, span + column * D, scales + column);
        __syncwarp();
        take_queries<C, D, NT, PRECISE>(q, n, lane, span, scales);
    }
    __syncwarp();

    sums<D, NT> chunk, now;
    const uint32_t end = r.end;
    for (uint32_t leaf = unit.first_span * SHEAF__CUDA_SPAN_LEAVES; leaf < end; leaf++) {
        leaf_of<C, D, NT, PRECISE>(now, r, lane, seen{0, SHEAF__CUDA_LEAF, true}, in.softcap, q,
                                   [&] {
                                       barrier_arrive(at + 128 + 8 * r.from);
                                       r.next();
                                       fill.after_read(r, warp, lane);
                                   });
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

// --- launches --------------------------------------------------------------------------------

template <uint32_t C, int D, bool PRECISE>
static cudaError_t run(const sheaf__cuda_decode &in, cudaStream_t stream)
{
    static_assert(host_agrees<C, D>(2) && host_agrees<C, D>(3), "decode.h says otherwise");
    const uint32_t tiles = (in.group + 7) / 8;
    const bool early = in.overlap != 0;
    sheaf__cuda_decode units = in;
    units.waits = early ? SHEAF__CUDA_WAITS_FIRST : SHEAF__CUDA_WAITS_NEVER;
    if (in.n_prefix_units != 0) {
        constexpr uint32_t slots = (D == 256 ? 2 : 4) * shape<C, D>::HALVES;
        if (early) units.waits = SHEAF__CUDA_WAITS_LAST;
        cudaError_t error = launch(decode_prefix<C, D, PRECISE>,
                                   in.n_prefix_units * in.n_kv_heads, dim3(32 * PREFIX_WARPS),
                                   prefix_bytes<C, D>((int)slots), stream, early, in, slots);
        if (error != cudaSuccess) return error;
    }
    return launch(decode_team<C, D, PRECISE>, in.n_units * tiles * in.n_kv_heads,
                  dim3(32 * WARPS), team_bytes<D>() + WARPS * ring_bytes<C, D>(in.slots),
                  stream, early, units);
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
