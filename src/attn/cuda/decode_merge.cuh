// attn/cuda/decode_merge.cuh - the parts of an item, merged by whoever left the last of them.
//
// Parts come from the second cache by bulk copies, as many at once as there is room for: were they
// loaded, a few at a time, each few would take as long as all.
#ifndef SHEAF_ATTN_CUDA_DECODE_MERGE_CUH
#define SHEAF_ATTN_CUDA_DECODE_MERGE_CUH

#include "attn/cuda/decode_shared.cuh"

namespace sheaf_cuda
{

// Shared memory for parts, of one query head each, one after another.
struct room {
    const float *parts;
    uint32_t at, n;      // its address; parts that it holds
    uint32_t bar, phase; // a barrier, of one arrival: they have come
    bool fenced;         // nothing was read or written there since a fence
};

template <uint32_t C, int D>
__host__ __device__ constexpr int32_t room_of(uint32_t columns, uint32_t slots)
{
    return ((int32_t)slots_at<C, D>(slots) - (int32_t)room_at<C, D>(columns, slots)) /
           (int32_t)part_bytes<D>();
}

// s, then n parts that lie one after another. Four of them are loaded before the first is waited for.
template <int D>
__device__ __forceinline__ void fold_parts(row_sums<D> &s, bool some, const float *from,
                                           uint32_t n, int lane)
{
    constexpr int EACH = D + 4; // floats
#pragma unroll 1
    for (; n >= 4; n -= 4, from += 4 * EACH) {
        row_sums<D> part[4];
#pragma unroll
        for (int i = 0; i < 4; i++) part[i].load(from + i * EACH, from + i * EACH + D, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) s.fold(some || i != 0, part[i]);
        some = true;
    }
#pragma unroll 1
    for (; n != 0; n--, from += EACH) {
        row_sums<D> part;
        part.load(from, from + D, lane);
        s.fold(some, part);
        some = true;
    }
}

// All parts of heads [head, head + n_heads), in order, to the results of some (bit i: head + i). One
// warp.
template <uint32_t C, int D>
__device__ __forceinline__ void
merge_heads(const sheaf__cuda_decode &in, const sheaf__cuda_merge &job, uint32_t query,
            uint32_t head, uint32_t n_heads, uint32_t heads, room &to, int lane)
{
    const uint32_t n = job.prefix_spans + job.n_parts, wanted = n * n_heads;
    const uint64_t each = (uint64_t)in.n_q_heads * (D + 4); // floats of a part
    const float *prefix = part_at(in, D, job.prefix_part, head);
    const float *own = part_at(in, D, job.part, head) - job.prefix_spans * each;
    row_sums<D> all = {}, span = {};
    bool any = false, in_span = false;
    uint32_t h = 0, p = 0;
    for (uint32_t done = 0; done < wanted; done += to.n) {
        const uint32_t now = min(to.n, wanted - done);
        if (!to.fenced) fence_async(); // what was here has been read
        to.fenced = false;
        __syncwarp();
        if (lane == 0) barrier_expect(to.bar, now * part_bytes<D>());
        __syncwarp();
        for (uint32_t i = (uint32_t)lane; i < now; i += 32) {
            const uint32_t asked_head = (done + i) / n, asked = (done + i) % n;
            const float *from = asked < job.prefix_spans
                                    ? prefix + asked * job.prefix_stride * each
                                    : own + asked * each;
            bulk_copy(to.at + i * part_bytes<D>(), from + asked_head * (D + 4), part_bytes<D>(),
                      to.bar);
        }
        barrier_wait(to.bar, to.phase);
        to.phase ^= 1;
        for (uint32_t i = 0; i < now;) {
            const bool chunks = p >= job.prefix_spans && job.chunks != 0;
            uint32_t run = (chunks || job.chunks == 0 ? n : job.prefix_spans) - p;
            if (chunks) run = min(run, 4 - (job.first + p - job.prefix_spans) % 4); // of a span
            const bool ends = run <= now - i;
            if (!ends) run = now - i;
            row_sums<D> s = chunks ? span : all;
            fold_parts<D>(s, chunks ? in_span : any, to.parts + i * (D + 4), run, lane);
            i += run, p += run;
            if (chunks) {
                span = s, in_span = !ends;
                if (!ends) continue;
                all.fold(any, s);
            } else {
                all = s;
            }
            any = p != n;
            if (any) continue;
            if (heads >> h & 1) leave<C, D>(in, all, query, head + h, lane);
            h++, p = 0;
        }
    }
}

} // namespace sheaf_cuda

#endif
