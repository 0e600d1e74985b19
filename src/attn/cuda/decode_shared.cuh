// attn/cuda/decode_shared.cuh - what a team's memory holds, and who of it reads what.
//
// In order, aligned to 1024 bytes:
//
//     what the enumeration below lists
//     queries, a column every 4 D bytes, as they come, and prepared in place as floats; of quantized
//     codecs prepared behind them, as bytes
//     two parts, on their way: a column every D + 4 floats
//     a warp:  128 bytes of barriers, and scales of its slots
//     room for parts to be merged: what is left, up to
//     a warp:  slots: K, V, K, V, ... of its leaves. When a unit ends, its sums lie in the slot that it
//              read last: [8 columns][D] floats
#ifndef SHEAF_ATTN_CUDA_DECODE_SHARED_CUH
#define SHEAF_ATTN_CUDA_DECODE_SHARED_CUH

#include "attn/cuda/decode_kernels.cuh"

namespace sheaf_cuda
{

// Byte offsets in a team's memory. A unit is kept in one of UNITS places until the warp that merges,
// which may lag behind, has read it; the part that it ends with in one of PARTS.
constexpr uint32_t UNITS = 4, UNIT_BYTES = 96, PARTS = 2;
enum {
    ASKED = 0,  // barrier: a unit's queries have come
    TAKEN = 8,  // and have been read, and the unit before has ended
    TOLD = 16,  // [UNITS] a unit is written down
    READ = 48,  // [UNITS] it may be overwritten
    MADE = 80,  // [PARTS] a part lies in shared memory
    GONE = 96,  // [PARTS] and no longer needs to
    SUMS = 112, // [WARPS] where each warp's sums lie
    UNITS_AT = 128,
    ENDS = UNITS_AT + UNITS * UNIT_BYTES, // [WARPS][8][2] floats
    COLUMN_SCALES = ENDS + 256,
    FETCHED = COLUMN_SCALES + 32, // barrier: parts to be merged have come
    QUERIES = COLUMN_SCALES + 128,
    FULL = 0, // of a warp's ring: barriers, one a slot
    EMPTY = 64,
};

template <int D> __host__ __device__ constexpr uint32_t part_bytes()
{
    return (D + 4) * 4;
}

// Where queries are prepared in a team's memory: in place, or where nothing comes by copies, so that
// these need not wait until what was written is seen.
template <uint32_t C, int D> __host__ __device__ constexpr uint32_t stage_at(uint32_t columns)
{
    return QUERIES + (shape<C, D>::RAW ? 0 : 4 * D * columns);
}

template <uint32_t C, int D> __host__ __device__ constexpr uint32_t parts_at(uint32_t columns)
{
    return stage_at<C, D>(columns) + 8 * stage_bytes<C, D>();
}

template <uint32_t C, int D> __host__ __device__ constexpr uint32_t rings_at(uint32_t columns)
{
    return parts_at<C, D>(columns) + (PARTS * columns * part_bytes<D>() + 127) / 128 * 128;
}

// Of a warp's ring beside its slots.
template <uint32_t C, int D> __host__ __device__ constexpr uint32_t ring_bytes(uint32_t slots)
{
    return 128 + slots * shape<C, D>::SCALES;
}

template <uint32_t C, int D>
__host__ __device__ constexpr uint32_t room_at(uint32_t columns, uint32_t slots)
{
    return rings_at<C, D>(columns) + WARPS * ring_bytes<C, D>(slots);
}

template <uint32_t C, int D> __host__ __device__ constexpr uint32_t team_bytes()
{
    return SHEAF__CUDA_MAX_SHARED / shape<C, D>::TEAMS / 1024 * 1024;
}

template <uint32_t C, int D> __host__ __device__ constexpr uint32_t slots_at(uint32_t slots)
{
    return team_bytes<C, D>() - WARPS * slots * shape<C, D>::SLOT;
}

// Query heads that a unit is computed for, at most.
__host__ __device__ constexpr uint32_t columns_of(uint32_t group)
{
    return group < 8 ? group : 8;
}

// Warps beside those that compute.
template <int TEAMS> __host__ __device__ constexpr uint32_t helpers()
{
    return 2 * TEAMS;
}

template <int TEAMS> __host__ __device__ constexpr int threads_of()
{
    return 32 * (int)(helpers<TEAMS>() + WARPS * TEAMS);
}

// A warp's ring, by shared addresses.
template <uint32_t C, int D> struct ring_of_warp {
    uint32_t bars, slots, n_slots;

    __device__ __forceinline__ ring_of_warp(uint32_t team, uint32_t warp, uint32_t columns,
                                            uint32_t n)
        : bars(team + rings_at<C, D>(columns) + warp * ring_bytes<C, D>(n)),
          slots(team + slots_at<C, D>(n) + warp * n * shape<C, D>::SLOT), n_slots(n)
    {
    }

    __device__ __forceinline__ slot_at slot(uint32_t n) const
    {
        return slot_at{slots + n * shape<C, D>::SLOT, bars + 128 + n * shape<C, D>::SCALES};
    }
};

__device__ __forceinline__ uint32_t n_tasks(const sheaf__cuda_decode &in)
{
    return in.n_units * ((in.group + 7) / 8) * in.n_kv_heads;
}

// Which unit a task is, and for which heads. Heads first.
struct task {
    uint32_t kv_head, tile, unit;

    __device__ __forceinline__ task(const sheaf__cuda_decode &in, uint32_t n)
    {
        const uint32_t tiles = (in.group + 7) / 8, rest = n / in.n_kv_heads;
        kv_head = n % in.n_kv_heads, tile = rest % tiles, unit = rest / tiles;
    }
};

// The leaves of a unit that are a warp's: of [begin, begin + each) those in [first, end).
struct share {
    uint32_t begin, first, end, each;

    __device__ __forceinline__ share(const sheaf__cuda_unit &unit, uint32_t warp)
    {
        each = unit.part_each & 7;
        begin = (unit.first_leaf & ~(WARPS * each - 1)) + warp * each;
        first = max(unit.first_leaf, begin);
        end = min(unit.end_leaf, begin + each);
    }
};

__device__ __forceinline__ void wait_until_told(uint32_t team, uint32_t n)
{
    barrier_wait(team + TOLD + 8 * (n % UNITS), n / UNITS & 1);
}

// A unit as it was told: read anew wherever it is wanted, so that registers need not hold it.
struct told {
    uint32_t at; // shared

    __device__ __forceinline__ told(uint32_t team, uint32_t n)
        : at(team + UNITS_AT + UNIT_BYTES * (n % UNITS))
    {
    }

    __device__ __forceinline__ uint4 words(int i) const { return load16(at + 16 * i); }

    __device__ __forceinline__ bool alive() const { return words(4).z != 0; }

    __device__ __forceinline__ sheaf__cuda_unit unit() const
    {
        const uint4 a = words(0), b = words(1);
        return sheaf__cuda_unit{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    }

    __device__ __forceinline__ sheaf__cuda_merge merge() const
    {
        const uint4 a = words(2), b = words(3);
        return sheaf__cuda_merge{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    }

    // Of the unit's columns.
    __device__ __forceinline__ uint32_t first_head(const sheaf__cuda_decode &in) const
    {
        const uint4 a = words(4);
        return a.x * in.group + 8 * a.y;
    }

    __device__ __forceinline__ uint32_t columns(const sheaf__cuda_decode &in) const
    {
        return min(8u, in.group - 8 * words(4).y);
    }
};

} // namespace sheaf_cuda

#endif
