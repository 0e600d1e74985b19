// attn/cuda/decode_bring.cuh - the warp that brings what a team computes: the unit, its queries, K and V,
// all of the next unit while the last is still being computed.
#ifndef SHEAF_ATTN_CUDA_DECODE_BRING_CUH
#define SHEAF_ATTN_CUDA_DECODE_BRING_CUH

#include "attn/cuda/decode_shared.cuh"

namespace sheaf_cuda
{

__device__ __forceinline__ sheaf__cuda_unit unit_of(uint32_t words)
{
    uint32_t x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = __shfl_sync(ALL, words, i);
    return sheaf__cuda_unit{x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]};
}

// What a unit's positions are, for the warp that brings them.
struct extent {
    uint32_t lo, hi, rows_at;
    share mine;

    __device__ __forceinline__ extent(const sheaf__cuda_unit &unit, int lane)
        : lo(unit.lo), hi(unit.hi), rows_at(unit.rows_at), mine(unit, (uint32_t)lane >> 3)
    {
    }

    __device__ __forceinline__ bool has(uint32_t leaf) const
    {
        return leaf >= mine.first && leaf < mine.end;
    }
};

// Eight lanes for each warp of the team.
template <uint32_t C, int D> struct supply {
    using S = shape<C, D>;
    ring_of_warp<C, D> ring; // of the lane's warp
    piece<C, D> own;
    uint32_t at, round; // the slot to fill; of its barrier
    uint32_t early;     // slots of the unit that were filled before its queries could be read
    // Of the lane's pieces of a leaf, and of the next one.
    uint32_t row[S::HALVES], ahead[S::HALVES];

    __device__ __forceinline__ supply(const sheaf__cuda_decode &in, uint32_t team, int lane)
        : ring(team, (uint32_t)lane >> 3, columns_of(in.group), in.slots), at(0), round(0),
          early(0)
    {
        own.init(in.block_shift, lane & 7);
    }

    __device__ __forceinline__ uint32_t position(uint32_t leaf, int half) const
    {
        return leaf * SHEAF__CUDA_LEAF + half * S::POSITIONS + own.first;
    }

    // Whether the lane's piece has positions that are seen.
    __device__ __forceinline__ bool held(const extent &e, uint32_t leaf, int half) const
    {
        const uint32_t first = position(leaf, half);
        return own.works && e.has(leaf) && first < e.hi && first + (1u << own.shift) > e.lo;
    }

    __device__ __forceinline__ void look_ahead(const sheaf__cuda_decode &in, const extent &e,
                                               uint32_t leaf)
    {
#pragma unroll
        for (int half = 0; half < S::HALVES; half++) {
            ahead[half] = 0;
            if (held(e, leaf, half))
                ahead[half] = __ldg(
                    in.rows + (uint32_t)(e.rows_at + (position(leaf, half) >> in.block_shift)));
        }
    }

    __device__ __forceinline__ void look_first(const sheaf__cuda_decode &in,
                                               const sheaf__cuda_unit &unit, int lane)
    {
        const extent e(unit, lane);
        look_ahead(in, e, e.mine.begin);
    }

    __device__ __forceinline__ void advance()
    {
#pragma unroll
        for (int half = 0; half < S::HALVES; half++) row[half] = ahead[half];
    }

    // One slot of each warp that has this leaf; any: the lane's has, and it is wanted.
    __device__ __forceinline__ void bring(const sheaf__cuda_decode &in, const extent &e,
                                          const CUtensorMap *map, uint64_t offset,
                                          uint64_t stride, uint32_t kv_head, uint32_t leaf,
                                          int half, bool any, int lane)
    {
        const bool has = any && held(e, leaf, half);
        const uint32_t full = ring.bars + FULL + 8 * at;
        if (any) barrier_wait(ring.bars + EMPTY + 8 * at, round ^ 1);
        const uint32_t strip0 = __ballot_sync(ALL, has && own.strip == 0);
        if (any && (lane & 7) == 0)
            barrier_expect(full, __popc(strip0 >> lane & 0xff) * own.bytes());
        __syncwarp();
        if (has)
            own.bring(map, in.base + offset + row[half] * stride, kv_head, row[half],
                      in.block_shift, position(leaf, half) & ((1u << in.block_shift) - 1),
                      ring.slot(at), full);
        if (any && ++at == ring.n_slots) at = 0, round ^= 1;
    }

    // K and V of a leaf. EARLY: those slots that come before the unit's queries, else all but them.
    template <bool EARLY>
    __device__ __forceinline__ void leaf(const sheaf__cuda_decode &in, const maps &from,
                                         const extent &e, uint32_t leaf, uint32_t kv_head,
                                         int lane)
    {
        const uint64_t k = in.k_offset + kv_head * in.k_head_stride;
        const uint64_t v = in.v_offset + kv_head * in.v_head_stride;
        const uint32_t done = leaf == e.mine.begin ? early : 0;
#pragma unroll
        for (uint32_t i = 0; i < 2 * S::HALVES; i++) {
            const bool values = i >= S::HALVES;
            bring(in, e, values ? from.v : from.k, values ? v : k,
                  values ? in.row_stride_v : in.row_stride_k, kv_head, leaf, i % S::HALVES,
                  e.has(leaf) && EARLY == (i < done), lane);
        }
    }

    // Of the first unit, what no kernel of the step writes may be read before those ahead have ended:
    // positions before the query's own (sheaf/cuda_attn.h).
    __device__ __forceinline__ void begin_early(const sheaf__cuda_decode &in, const maps &from,
                                                const extent &e, uint32_t kv_head, int lane)
    {
        const bool settled = (e.mine.begin + 1) * SHEAF__CUDA_LEAF < e.hi;
        early = in.settled && settled && e.has(e.mine.begin) ? min(ring.n_slots, 2u * S::HALVES)
                                                             : 0;
        leaf<true>(in, from, e, e.mine.begin, kv_head, lane);
    }
};

// A unit is written down for the team, once its place is free: lane i has word i of it and, from 8 on,
// of its merge.
__device__ __forceinline__ void tell(uint32_t team, uint32_t n, uint32_t words, uint32_t merge,
                                     const task &t, bool alive, int lane)
{
    barrier_wait(team + READ + 8 * (n % UNITS), (n / UNITS & 1) ^ 1);
    if (lane >= 8 && lane < 16) words = merge;
    if (lane == 16) words = t.kv_head;
    if (lane == 17) words = t.tile;
    if (lane == 18) words = alive;
    if (lane < 19) store4(team + UNITS_AT + UNIT_BYTES * (n % UNITS) + 4 * lane, words);
    barrier_arrive(team + TOLD + 8 * (n % UNITS)); // each lane, for its own words
}

// The queries of a unit's columns, on their way to the team.
template <int D>
__device__ __forceinline__ void ask(const sheaf__cuda_decode &in, uint32_t team, uint32_t query,
                                    const task &t, int lane)
{
    const uint32_t columns = min(8u, in.group - 8 * t.tile);
    const uint32_t bytes = D * (in.io_dtype == F32 ? 4 : 2);
    if (lane == 0) barrier_expect(team + ASKED, columns * bytes);
    __syncwarp();
    const uint64_t row =
        (uint64_t)query * in.n_q_heads + t.kv_head * in.group + 8 * t.tile + lane;
    if (lane < (int)columns)
        bulk_copy(team + QUERIES + lane * D * 4,
                  static_cast<const unsigned char *>(in.q) + row * bytes, bytes, team + ASKED);
}

// The words of a task's unit, a lane each.
__device__ __forceinline__ uint32_t unit_words(const sheaf__cuda_decode &in, uint32_t number,
                                               int lane)
{
    if (number >= n_tasks(in) || lane >= 8) return 0;
    return __ldg(reinterpret_cast<const uint32_t *>(in.units + task(in, number).unit) + lane);
}

// And of its merge, in lanes 8 to 15: apart, so that nothing else waits for them.
__device__ __forceinline__ uint32_t merge_words(const sheaf__cuda_decode &in, uint32_t words,
                                                int lane)
{
    const uint32_t merge = __shfl_sync(ALL, words, 6);
    if (lane < 8 || lane >= 16 || merge >= in.n_merges) return 0;
    return __ldg(reinterpret_cast<const uint32_t *>(in.merges + merge) + lane - 8);
}

__device__ __forceinline__ uint32_t first_task(uint32_t team)
{
    return team * gridDim.x + blockIdx.x;
}

// words: of the first unit. Memory is slow while all of it is busy: what a unit begins with is asked for
// while the last one is still being brought, one thing after each of its leaves.
template <uint32_t C, int D>
__device__ __forceinline__ void bring_units(const sheaf__cuda_decode &in, const maps &from,
                                            uint32_t memory, uint32_t team, uint32_t words,
                                            int lane)
{
    const uint32_t tasks = n_tasks(in), dealt = gridDim.x * shape<C, D>::TEAMS;
    supply<C, D> s(in, memory, lane);
    uint32_t number = first_task(team), n = 0;
    uint32_t merge = merge_words(in, words, lane);
    // Of the unit that follows, where that is known.
    uint32_t following = in.dealt ? unit_words(in, number + dealt, lane) : 0;
    bool looked = false; // ahead, at the unit's first leaf
    for (; number < tasks; n++) {
        const task t(in, number);
        const sheaf__cuda_unit unit = unit_of(words);
        const extent e(unit, lane);
        const uint32_t each = e.mine.each;
        if (!looked) s.look_ahead(in, e, e.mine.begin);
        s.advance();
        if (n == 0 && in.waits == SHEAF__CUDA_WAITS_FIRST) {
            s.begin_early(in, from, e, t.kv_head, lane);
            wait_for_previous(); // only tables and what is settled were read so far
        }
        barrier_wait(memory + TAKEN, (n & 1) ^ 1);
        ask<D>(in, memory, unit.query, t, lane);
        if (in.dealt) {
            tell(memory, n, words, merge, t, true, lane);
            number += dealt;
            words = following, merge = merge_words(in, words, lane);
            following = unit_words(in, number + dealt, lane);
            looked = number < tasks;
            if (looked) s.look_first(in, unit_of(words), lane);
            s.template leaf<false>(in, from, e, e.mine.begin, t.kv_head, lane);
            s.early = 0;
            continue;
        }
        uint32_t next = 0;
        if (lane == 0) next = dealt + atomicInc(in.taken, tasks - 1);
        tell(memory, n, words, merge, t, true, lane);
        for (uint32_t i = 0; i < each; i++) {
            const bool ends = i + 1 == each;
            looked = ends && each != 1 && number < tasks; // the next one's number by now
            if (!ends) s.look_ahead(in, e, e.mine.begin + i + 1);
            if (looked) s.look_first(in, unit_of(words), lane);
            s.template leaf<false>(in, from, e, e.mine.begin + i, t.kv_head, lane);
            if (!ends) s.advance();
            if (i == 0) {
                number = __shfl_sync(ALL, next, 0);
                words = unit_words(in, number, lane);
            }
            if (i == (each == 1 ? 0 : 1)) merge = merge_words(in, words, lane);
        }
        s.early = 0;
    }
    barrier_wait(memory + TAKEN, (n & 1) ^ 1);
    tell(memory, n, 0, 0, task(in, 0), false, lane);
}

} // namespace sheaf_cuda

#endif
