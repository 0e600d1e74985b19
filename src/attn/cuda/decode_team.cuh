// attn/cuda/decode_team.cuh - the kernel of decode: units, one after another.
//
// Owns: who computes what. A block lives as long as there are units. It has TEAMS teams of four
// warps, and for each two more warps: one brings what the team computes (decode_bring.cuh), one merges. A
// team does one unit at a time for one KV head, a leaf or a chunk each warp; at the end each warp folds
// the four sums of some query heads, in order. Where an item has several units they are parts, and
// whoever leaves the last of them merges them. The first units are dealt, the others are taken by a
// counter, or all are dealt in turn.
#ifndef SHEAF_ATTN_CUDA_DECODE_TEAM_CUH
#define SHEAF_ATTN_CUDA_DECODE_TEAM_CUH

#include "attn/cuda/decode_bring.cuh"
#include "attn/cuda/decode_merge.cuh"

namespace sheaf_cuda
{

// --- the warps that compute ------------------------------------------------------------------

// A warp's ring as it is read. The slot that a unit reads last is kept for its sums.
template <uint32_t C, int D> struct intake {
    ring_of_warp<C, D> ring;
    uint32_t from, phase; // the slot to read
    uint32_t left;        // slots of the unit not read yet

    __device__ __forceinline__ intake(const sheaf__cuda_decode &in, uint32_t team,
                                      uint32_t warp)
        : ring(team, warp, columns_of(in.group), in.slots), from(0), phase(0), left(0)
    {
    }

    __device__ __forceinline__ slot_at wait()
    {
        barrier_wait(ring.bars + FULL + 8 * from, phase);
        return ring.slot(from);
    }

    // Of those that were read.
    __device__ __forceinline__ uint32_t last() const
    {
        return (from == 0 ? ring.n_slots : from) - 1;
    }

    // All lanes, each for what it has read. made: of that
    __device__ __forceinline__ void give_back(const sheaf__cuda_decode &in, uint32_t n,
                                              uint32_t made)
    {
        barrier_arrive(after(in, ring.bars + EMPTY + 8 * n, made));
    }

    __device__ __forceinline__ void next(const sheaf__cuda_decode &in, uint32_t made)
    {
        if (--left != 0) give_back(in, from, made);
        if (++from == ring.n_slots) from = 0, phase ^= 1;
    }

    // All slots, when nothing will come any more. all, at: the team's memory, and its address
    __device__ __forceinline__ room free_room(unsigned char *all, uint32_t at)
    {
        return room{reinterpret_cast<float *>(all + (ring.slots - at)),
                    ring.slots,
                    ring.n_slots * shape<C, D>::SLOT / part_bytes<D>(),
                    ring.bars + FULL + 8 * from,
                    phase,
                    true};
    }
};

// Prepares two of the columns, with ROWS = 1 one; where that is not done in place, it says that they are
// read.
template <uint32_t C, int D, int ROWS>
__device__ __forceinline__ void prepare(const sheaf__cuda_decode &in, unsigned char *memory,
                                        uint32_t at, uint32_t columns, uint32_t warp, int lane)
{
    constexpr int E = D / 32, EACH = 4 * ROWS / (int)WARPS;
    unsigned char *stage = memory + stage_at<C, D>(columns_of(in.group));
    float *scales = reinterpret_cast<float *>(memory + COLUMN_SCALES);
    float x[EACH][E] = {};
    uint32_t made = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t column = warp + WARPS * i;
        if (column >= columns) continue;
        read_query<E>(memory + QUERIES + column * 4 * D, in.io_dtype, lane, x[i]);
#pragma unroll
        for (int k = 0; k < E; k++) made |= __float_as_uint(x[i][k]);
    }
    if constexpr (!shape<C, D>::RAW) barrier_arrive(after(in, at + TAKEN, made));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t column = warp + WARPS * i;
        unsigned char *to = stage + column * stage_bytes<C, D>();
        if (column < columns || shape<C, D>::RAW) {
            stage_query<C, D>(in, x[i], lane, to, scales + column);
            continue;
        }
        for (uint32_t k = 4 * (uint32_t)lane; k < 2 * D; k += 128)
            *reinterpret_cast<uint32_t *>(to + k) = 0;
        if (lane == 0) scales[column] = 1.0f;
    }
}

// Queries of bf16 that are multiplied as bf16: nothing is to be prepared, but the scale's
// sign. Columns beside those of the
// unit get the first one's.
template <int D>
__device__ __forceinline__ void take_as_they_are(queries<BF16, D, 1, 2, false> &to,
                                                 const sheaf__cuda_decode &in, uint32_t at,
                                                 uint32_t columns, int lane)
{
    const uint32_t column = (uint32_t)lane & 7, sign = in.scale < 0.0f ? 0x80008000u : 0;
    const uint32_t from =
        at + QUERIES + (column < columns ? column : 0) * 4 * D + (lane >> 3) * 16;
    uint32_t made = 0;
#pragma unroll
    for (int s = 0; s < D / 16; s += 2) {
        uint32_t x[4];
        load_matrices<false>(x, from + 32 * s);
        to.hi[0][s][0] = x[0] ^ sign, to.hi[0][s][1] = x[1] ^ sign;
        to.hi[0][s + 1][0] = x[2] ^ sign, to.hi[0][s + 1][1] = x[3] ^ sign;
        made |= x[0] | x[1] | x[2] | x[3];
    }
    barrier_arrive(after(in, at + TAKEN, made));
    to.scale[0][0] = to.scale[0][1] = score_scale(in, 1.0f);
}

// A warp's leaves, and its sums into the slot that was read last. all, at: the team's memory, and its
// shared address.
template <uint32_t C, int D, int ROWS, bool PRECISE>
__device__ __forceinline__ void
compute(const sheaf__cuda_decode &in, intake<C, D> &r, const sheaf__cuda_unit &unit,
        const share &mine, const queries<C, D, 1, ROWS, PRECISE> &q, unsigned char *all,
        uint32_t at, uint32_t warp, int lane)
{
    sums<D, 1, ROWS> chunk, now;
    const code_book<C, looks_of<C, 1>()> book(in);
    r.left = (mine.end - mine.first) * 2 * shape<C, D>::HALVES;
    for (uint32_t leaf = mine.first; leaf < mine.end; leaf++) {
        leaf_of<C, D, 1>(now, r, lane, seen_of(leaf, unit.lo, unit.hi), in.softcap, q, book,
                         [&](uint32_t made) { r.next(in, made); });
        if (leaf != mine.first)
            merge_into(chunk, now);
        else
            chunk = now;
    }
    static_assert(shape<C, D>::SLOT >= 8 * D * 4, "no room");
    const uint32_t slot = r.ring.slot(r.last()).data;
    float *to = reinterpret_cast<float *>(all + (slot - at));
    float *ends = reinterpret_cast<float *>(all + ENDS) + 16 * warp;
    __syncwarp(); // all lanes have read it
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int column = 2 * (lane & (2 * ROWS - 1)) + c;
        part_write<C>(to + column * D, ends + 2 * column, chunk, 0, c, lane);
    }
    if (lane == 0) store4(at + SUMS + 4 * warp, slot);
}

// The sums of warps [from, past) for column j, in order.
template <int D>
__device__ __forceinline__ row_sums<D> fold_warps(const unsigned char *all, uint32_t at,
                                                  uint32_t from, uint32_t past, uint32_t j,
                                                  int lane)
{
    row_sums<D> s = {};
    for (uint32_t n = from; n < past; n++) {
        const uint32_t slot = reinterpret_cast<const uint32_t *>(all + SUMS)[n];
        row_sums<D> b;
        b.load(reinterpret_cast<const float *>(all + (slot - at)) + j * D,
               reinterpret_cast<const float *>(all + ENDS) + 16 * n + 2 * j, lane);
        s.fold(n != from, b);
    }
    return s;
}

// Whether the warps that compute merge, too, once unit n ends, a head each: when nothing follows. Their
// rings are free, then. Unit n + 1 has been told.
__device__ __forceinline__ bool merge_themselves(uint32_t team, uint32_t n)
{
    return !told(team, n + 1).alive();
}

// Warps of a team, [from, past), that have leaves of a unit.
struct busy_warps {
    uint32_t from, past;

    __device__ __forceinline__ busy_warps(const sheaf__cuda_unit &unit)
    {
        const uint32_t shift = (unit.part_each & 7) >> 1; // of 1 or 4 leaves
        const uint32_t skipped = unit.first_leaf >> shift & ~(WARPS - 1u);
        from = (unit.first_leaf >> shift) - skipped;
        past = unit.first_leaf < unit.end_leaf ? ((unit.end_leaf - 1) >> shift) + 1 - skipped
                                               : from;
    }
};

// Counts parts of some heads that this warp has stored. Bit i of the result: of head + i it was the last
// part, and all can be read by bulk copies.
__device__ __forceinline__ uint32_t count_parts(const sheaf__cuda_decode &in,
                                                const sheaf__cuda_merge &job, uint32_t merge,
                                                uint32_t head, uint32_t n_heads, int lane)
{
    __syncwarp();
    const uint32_t most = max(job.n_parts, 1u) - 1;
    uint32_t before = 0;
    if (lane < (int)n_heads)
        before = count_shared(in.arrived + (uint64_t)merge * in.n_q_heads + head + lane, most);
    const uint32_t last = __ballot_sync(ALL, lane < (int)n_heads && before == most);
    if (last != 0) {
        __syncwarp();
        fence_async_global();
    }
    return last;
}

// Where unit n's part of column j lies until it has left.
template <uint32_t C, int D>
__device__ __forceinline__ uint32_t place_of_part(const sheaf__cuda_decode &in, uint32_t n,
                                                  uint32_t j)
{
    const uint32_t columns = columns_of(in.group);
    return parts_at<C, D>(columns) + (n % PARTS * columns + j) * part_bytes<D>();
}

// The end of unit n: its parts or results, once all four warps have their sums. Parts go to the warp that
// merges, or, when nothing follows, where all are: memory is idle then, and waiting for stores is quick.
// One fence for all that this warp has written to shared memory: its sums, and its parts.
template <uint32_t C, int D>
__device__ __forceinline__ void end_unit(const sheaf__cuda_decode &in, intake<C, D> &r,
                                         const told &about, unsigned char *all, uint32_t at,
                                         uint32_t team, uint32_t warp, uint32_t n, int lane)
{
    const bool merges = merge_themselves(at, n);
    const sheaf__cuda_unit unit = about.unit();
    const sheaf__cuda_merge job = about.merge();
    const share mine(unit, warp);
    const busy_warps busy(unit);
    const bool some = busy.from < busy.past, parts = unit.merge != SHEAF__CUDA_NO_MERGE;
    const uint32_t columns = about.columns(in), head = about.first_head(in) + warp;
    row_sums<D> s[8 / WARPS];
    uint32_t made = 0;
#pragma unroll
    for (int i = 0; i < 8 / WARPS; i++) {
        const uint32_t j = warp + WARPS * i;
        if (j >= columns) continue;
        s[i] = fold_warps<D>(all, at, busy.from, busy.past, j, lane);
        made |= s[i].made();
        if (parts && !merges)
            s[i].store(reinterpret_cast<float *>(all + place_of_part<C, D>(in, n, j)), lane);
        else if (parts && some)
            s[i].store(part_at(in, D, job.part + (unit.part_each >> 3), head + WARPS * i),
                       lane);
    }
    fence_async();
    __syncwarp();
    meet<32 * WARPS>(after(in, team + 1, made));
    if (mine.first < mine.end) r.give_back(in, r.last(), 0);
    if (parts && !merges) return;
    room free = r.free_room(all, at);
#pragma unroll
    for (int i = 0; i < 8 / WARPS; i++) {
        if (warp + WARPS * i >= columns) continue;
        const uint32_t h = head + WARPS * i;
        if (!parts)
            leave_or_zero<C, D>(in, s[i], some, unit.query, h, lane);
        else if (count_parts(in, job, unit.merge, h, 1, lane) != 0)
            merge_heads<C, D>(in, job, unit.query, h, 1, 1, free, lane);
    }
}

template <uint32_t C, int D, int ROWS, bool PRECISE>
__device__ __forceinline__ void compute_units(const sheaf__cuda_decode &in, unsigned char *all,
                                              uint32_t at, uint32_t team, uint32_t warp,
                                              int lane)
{
    intake<C, D> r(in, at, warp);
    for (uint32_t n = 0;; n++) {
        const told about(at, n);
        wait_until_told(at, n);
        if (!about.alive()) return;
        barrier_wait(at + ASKED, n & 1);
        queries<C, D, 1, ROWS, PRECISE> q;
        if constexpr (C == BF16 && !PRECISE) {
            take_as_they_are<D>(q, in, at, about.columns(in), lane);
        } else {
            prepare<C, D, ROWS>(in, all, at, about.columns(in), warp, lane);
            meet<32 * WARPS>(team + 1);
            take_queries<C, D, 1>(q, 0, lane, all + stage_at<C, D>(columns_of(in.group)),
                                  reinterpret_cast<float *>(all + COLUMN_SCALES));
            if constexpr (shape<C, D>::RAW) { // prepared where others come
                fence_async();
                barrier_arrive(after(in, at + TAKEN, made_of(q)));
            }
        }
        const share mine(about.unit(), warp);
        if (mine.first < mine.end)
            compute<C, D>(in, r, about.unit(), mine, q, all, at, warp, lane);
        meet<32 * WARPS>(team + 1);
        if (n == 0 && in.waits != SHEAF__CUDA_WAITS_NEVER) wait_for_previous();
        wait_until_told(at, n + 1);
        barrier_wait(at + GONE + 8 * (n % PARTS), (n / PARTS & 1) ^ 1);
        end_unit<C, D>(in, r, about, all, at, team, warp, n, lane);
        __syncwarp();
        if (lane == 0) barrier_arrive(at + MADE + 8 * (n % PARTS));
    }
}

// --- the warp that merges --------------------------------------------------------------------

template <uint32_t C, int D>
__device__ __forceinline__ void merge_units(const sheaf__cuda_decode &in, unsigned char *all,
                                            uint32_t at, int lane)
{
    const uint32_t columns_most = columns_of(in.group);
    room own = {reinterpret_cast<float *>(all + room_at<C, D>(columns_most, in.slots)),
                at + room_at<C, D>(columns_most, in.slots),
                (uint32_t)room_of<C, D>(columns_most, in.slots),
                at + FETCHED,
                0,
                true};
    for (uint32_t n = 0;; n++) {
        const told about(at, n);
        wait_until_told(at, n);
        if (!about.alive()) return;
        const sheaf__cuda_unit unit = about.unit();
        const sheaf__cuda_merge job = about.merge();
        const uint32_t columns = about.columns(in), head = about.first_head(in);
        barrier_wait(at + MADE + 8 * (n % PARTS), n / PARTS & 1);
        const bool mine = unit.merge != SHEAF__CUDA_NO_MERGE && !merge_themselves(at, n);
        barrier_arrive(at + READ + 8 * (n % UNITS));
        if (n == 0 && in.waits != SHEAF__CUDA_WAITS_NEVER) wait_for_previous();
        uint32_t last = 0;
        if (mine) {
            if (unit.first_leaf < unit.end_leaf && lane == 0) {
                bulk_store(part_at(in, D, job.part + (unit.part_each >> 3), head),
                           at + place_of_part<C, D>(in, n, 0), columns * part_bytes<D>());
                bulk_wait();
            }
            last = count_parts(in, job, unit.merge, head, columns, lane);
        }
        if (lane == 0) barrier_arrive(at + GONE + 8 * (n % PARTS));
        if (last != 0) merge_heads<C, D>(in, job, unit.query, head, columns, last, own, lane);
    }
}

// --- the kernel ------------------------------------------------------------------------------

// One warp.
template <uint32_t C, int D>
__device__ __forceinline__ void init_team(uint32_t at, uint32_t columns, uint32_t slots,
                                          int lane)
{
    if (lane < WARPS) {
        const ring_of_warp<C, D> ring(at, lane, columns, slots);
        for (uint32_t n = 0; n < slots; n++) {
            barrier_init(ring.bars + FULL + 8 * n, 1);
            barrier_init(ring.bars + EMPTY + 8 * n, 32);
        }
        fence_async();
    }
    if (lane != WARPS) return;
    barrier_init(at + ASKED, 1);
    barrier_init(at + FETCHED, 1);
    barrier_init(at + TAKEN, 32 * WARPS);
    for (uint32_t n = 0; n < UNITS; n++) {
        barrier_init(at + TOLD + 8 * n, 32);
        barrier_init(at + READ + 8 * n, 32);
    }
    for (uint32_t n = 0; n < PARTS; n++) {
        barrier_init(at + MADE + 8 * n, WARPS);
        barrier_init(at + GONE + 8 * n, 1);
    }
    fence_async();
}

// Of two teams the warps that compute get so many registers each, those that help them what is left of
// 168 each, which is what is launched with.
template <uint32_t C, int ROWS> __host__ __device__ constexpr int registers()
{
    return ROWS == 1 ? 184 : shape<C, 64>::RAW ? 208 : 216;
}

template <uint32_t C, int ROWS> __host__ __device__ constexpr int registers_of_helpers()
{
    return ROWS == 1 ? 136 : shape<C, 64>::RAW ? 88 : 72;
}

// Warps t and TEAMS + t bring and merge for team t.
template <uint32_t C, int D, int ROWS, bool PRECISE>
__global__ void __launch_bounds__(threads_of<shape<C, D>::TEAMS>(), 1)
    decode_team(const __grid_constant__ sheaf__cuda_decode in,
                const __grid_constant__ CUtensorMap map_k,
                const __grid_constant__ CUtensorMap map_v)
{
    using S = shape<C, D>;
    constexpr int TEAMS = S::TEAMS;
    constexpr uint32_t HELPERS = helpers<TEAMS>();
    extern __shared__ __align__(1024) unsigned char all[];
    const int lane = threadIdx.x & 31;
    constexpr uint32_t BYTES = team_bytes<C, D>();
    const uint32_t warp = threadIdx.x >> 5;
    if (in.overlap) launch_next();
    const uint32_t words = warp < TEAMS ? unit_words(in, first_task(warp), lane) : 0;
    if (warp < TEAMS)
        init_team<C, D>(shared_address(all) + warp * BYTES, columns_of(in.group), in.slots,
                        lane);
    __syncthreads();
    if (warp < HELPERS) {
        static_assert(8 * registers<C, ROWS>() + 4 * registers_of_helpers<C, ROWS>() <=
                          12 * 168,
                      "setmaxnreg would wait for ever");
        if constexpr (TEAMS == 2) shrink_registers<registers_of_helpers<C, ROWS>()>();
        const uint32_t team = warp % TEAMS, at = shared_address(all) + team * BYTES;
        if (warp < TEAMS)
            bring_units<C, D>(in, maps{&map_k, &map_v}, at, team, words, lane);
        else
            merge_units<C, D>(in, all + team * BYTES, at, lane);
    } else {
        if constexpr (TEAMS == 2) grow_registers<registers<C, ROWS>()>();
        const uint32_t team = (warp - HELPERS) / WARPS;
        unsigned char *own = all + team * BYTES;
        compute_units<C, D, ROWS, PRECISE>(in, own, shared_address(own), team,
                                           (warp - HELPERS) % WARPS, lane);
    }
}

} // namespace sheaf_cuda

#endif
