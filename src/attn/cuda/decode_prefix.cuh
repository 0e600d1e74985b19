// attn/cuda/decode_prefix.cuh - shared prefixes.
//
// Owns: the kernel that reads a prefix once for the query rows of all items that share it.
// The warps of a block share one ring and hold different query rows.
#ifndef SHEAF_ATTN_CUDA_DECODE_PREFIX_CUH
#define SHEAF_ATTN_CUDA_DECODE_PREFIX_CUH

#include "attn/cuda/decode_kernels.cuh"

namespace sheaf_cuda
{

// --- the ring --------------------------------------------------------------------------------

constexpr int PREFIX_HEAD = 256; // bytes: barriers

// Beside the slots: barriers, what each warp has, scales.
template <uint32_t C, int D>
__host__ __device__ constexpr uint32_t prefix_slots_at(uint32_t slots)
{
    constexpr int NT = prefix_columns<D>();
    const uint32_t head = PREFIX_HEAD + PREFIX_WARPS * (128 + sums_bytes<D, NT>());
    return (head + slots * shape<C, D>::SCALES + 1023) / 1024 * 1024;
}

template <uint32_t C, int D> __host__ __device__ constexpr uint32_t prefix_bytes(uint32_t slots)
{
    return prefix_slots_at<C, D>(slots) + slots * shape<C, D>::SLOT;
}

// Slots in order: K and V of leaf 0, of leaf 1, ... Eight lanes for each half of a leaf: they know the
// rows of its pieces, and bring them.
template <uint32_t C, int D> struct ring {
    using S = shape<C, D>;
    maps from_maps;
    uint64_t k, v; // offsets of the head in row 0
    piece<C, D> own;
    uint32_t kv_head, rows_at;
    uint32_t shared, slots_at, n_slots; // in shared memory
    uint32_t leaf, end;                 // the next to bring
    uint32_t row, ahead;                // of this lane's piece of that leaf, and of the next
    uint32_t at, part;    // the slot to fill, and with what: the halves of K, then those of V
    uint32_t from, phase; // the slot to read

    __device__ __forceinline__ ring(const sheaf__cuda_decode &in, const maps &given,
                                    uint32_t memory, uint32_t slots, uint32_t head, int lane)
        : from_maps(given), k(in.k_offset + head * in.k_head_stride),
          v(in.v_offset + head * in.v_head_stride), kv_head(head), shared(memory),
          slots_at(memory + prefix_slots_at<C, D>(slots)), n_slots(slots), leaf(0), end(0),
          row(0), ahead(0), at(0), part(0), from(0), phase(0)
    {
        own.init(in.block_shift, lane & 7);
    }

    __device__ __forceinline__ slot_at slot(uint32_t n) const
    {
        constexpr uint32_t head =
            PREFIX_HEAD + PREFIX_WARPS * (128 + sums_bytes<D, prefix_columns<D>()>());
        return slot_at{slots_at + n * S::SLOT, shared + head + n * S::SCALES};
    }

    // First position of this lane's piece of a leaf.
    __device__ __forceinline__ uint32_t position(uint32_t n, int lane) const
    {
        return n * SHEAF__CUDA_LEAF + (lane >> 3) * S::POSITIONS + own.first;
    }

    __device__ __forceinline__ uint32_t row_of(const sheaf__cuda_decode &in, uint32_t n,
                                               int lane) const
    {
        if (!own.works || lane >= 8 * S::HALVES || n >= end) return 0;
        return __ldg(in.rows + (uint32_t)(rows_at + (position(n, lane) >> in.block_shift)));
    }

    __device__ __forceinline__ void begin(const sheaf__cuda_decode &in, uint32_t first,
                                          uint32_t past, int lane)
    {
        leaf = first, end = past;
        row = row_of(in, leaf, lane);
        ahead = row_of(in, leaf + 1, lane);
    }

    // Fills the next slot, if there is something left to bring. The whole warp.
    __device__ __forceinline__ void bring(const sheaf__cuda_decode &in, int lane)
    {
        if (leaf >= end) return;
        const uint32_t bar = shared + 8 * at;
        if (lane == 0) barrier_expect(bar, (S::POSITIONS >> own.shift) * own.bytes());
        __syncwarp();
        if (own.works && (uint32_t)lane >> 3 == part % S::HALVES) {
            const bool values = part >= S::HALVES;
            const uint64_t offset =
                values ? v + row * in.row_stride_v : k + row * in.row_stride_k;
            own.bring(values ? from_maps.v : from_maps.k, in.base + offset, kv_head, row,
                      in.block_shift, position(leaf, lane) & ((1u << in.block_shift) - 1),
                      slot(at), bar);
        }
        skip(in, lane);
    }

    // Leaves the next slot to another warp.
    __device__ __forceinline__ void skip(const sheaf__cuda_decode &in, int lane)
    {
        if (leaf >= end) return;
        if (++at == n_slots) at = 0;
        if (++part < 2 * S::HALVES) return;
        part = 0;
        leaf++;
        row = ahead;
        ahead = row_of(in, leaf + 1, lane);
    }

    // Waits for the oldest slot not read yet.
    __device__ __forceinline__ slot_at wait()
    {
        barrier_wait(shared + 8 * from, phase);
        return slot(from);
    }

    __device__ __forceinline__ void next()
    {
        if (++from == n_slots) from = 0, phase ^= 1;
    }
};

// --- shared prefixes -------------------------------------------------------------------------

// The slot that was read before the last one is filled again once all warps have read it: by
// then they have, mostly. The warps take turns.
template <uint32_t C, int D> struct refill {
    uint32_t empty; // barriers, one a slot
    uint32_t n_slots, at, phase;
    uint32_t n; // slots read

    __device__ __forceinline__ void after_read(const sheaf__cuda_decode &in, ring<C, D> &r,
                                               uint32_t warp, int lane)
    {
        if (n++ == 0) return;
        if (n % PREFIX_WARPS == warp) {
            barrier_wait(empty + 8 * at, phase);
            r.bring(in, lane);
        } else {
            r.skip(in, lane);
        }
        if (++at == n_slots) at = 0, phase ^= 1;
    }
};

// A block: PREFIX_WARPS * NT * 8 query rows of one KV head against some spans.
template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(32 * PREFIX_WARPS, 1)
    decode_prefix(const __grid_constant__ sheaf__cuda_decode in,
                  const __grid_constant__ CUtensorMap map_k,
                  const __grid_constant__ CUtensorMap map_v, const uint32_t slots)
{
    constexpr int NT = prefix_columns<D>();
    extern __shared__ __align__(1024) unsigned char all[];
    const int lane = threadIdx.x & 31, t = lane & 3;
    const uint32_t warp = threadIdx.x >> 5, at = shared_address(all);
    const uint32_t kv_head = blockIdx.x % in.n_kv_heads;
    const sheaf__cuda_prefix_unit unit = in.prefix_units[blockIdx.x / in.n_kv_heads];
    unsigned char *own = all + PREFIX_HEAD + warp * (128 + sums_bytes<D, NT>());
    float *span = reinterpret_cast<float *>(own + 128);
    ring<C, D> r(in, maps{&map_k, &map_v}, at, slots, kv_head, lane);
    r.rows_at = unit.rows_at;
    if (threadIdx.x == 0) {
        for (uint32_t n = 0; n < slots; n++) {
            barrier_init(at + 8 * n, 1);
            barrier_init(at + 128 + 8 * n, 32 * PREFIX_WARPS);
        }
        fence_async();
    }
    __syncthreads();
    r.begin(in, unit.first_span * SHEAF__CUDA_SPAN_LEAVES,
            unit.end_span * SHEAF__CUDA_SPAN_LEAVES, lane);
    if (in.overlap) wait_for_previous(); // only tables were read so far
    if (in.overlap) launch_next();
    for (uint32_t n = 0; n < slots; n++) {
        if (warp == 0)
            r.bring(in, lane);
        else
            r.skip(in, lane);
    }
    refill<C, D> fill = {at + 128, slots, 0, 0, 0};
    const uint32_t n_rows = unit.n_members * in.group;
    const uint32_t first_row = unit.first_row + warp * NT * 8;
    queries<C, D, NT, 2, PRECISE> q;
    uint32_t query = 0; // of column `lane`
    const uint32_t row = first_row + lane;
    if (lane < 8 * NT && row < n_rows)
        query = __ldg(in.members + unit.members_at + row / in.group);
    float *scales = reinterpret_cast<float *>(own);
    unsigned char *stage = own + 128;
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
            stage_query<C, D>(in, x[column], lane, stage + column * stage_bytes<C, D>(),
                              scales + column);
        __syncwarp();
        take_queries<C, D, NT>(q, n, lane, stage, scales);
    }
    __syncwarp();

    static_assert(8 * NT * (D + 4) * 4 <= sums_bytes<D, NT>(), "no room for parts");
    row_run run(in, unit, D, kv_head, first_row, 8 * NT, lane);
    const uint64_t each = (uint64_t)unit.n_members * in.n_q_heads * (D + 4);
    if (run.n != 0) run.to += unit.first_span * each;
    sums<D, NT> chunk, now;
    const code_book<C, looks_of<C, NT>()> book(in);
    const uint32_t end = r.end;
    for (uint32_t leaf = unit.first_span * SHEAF__CUDA_SPAN_LEAVES; leaf < end; leaf++) {
        leaf_of<C, D, NT>(now, r, lane, seen{0, SHEAF__CUDA_LEAF, true}, in.softcap, q, book,
                          [&](uint32_t made) {
                              barrier_arrive(after(in, at + 128 + 8 * r.from, made));
                              r.next();
                              fill.after_read(in, r, warp, lane);
                          });
        if (leaf % SHEAF__CUDA_CHUNK_LEAVES != 0)
            merge_into(chunk, now);
        else
            chunk = now;
        if ((leaf + 1) % SHEAF__CUDA_CHUNK_LEAVES != 0) continue;
        if (leaf % SHEAF__CUDA_SPAN_LEAVES >= SHEAF__CUDA_CHUNK_LEAVES) {
            sums_fold<D, NT>(chunk, span, lane);
        } else { // what leaves from there has been read
            bulk_wait_read();
            __syncwarp();
        }
        if ((leaf + 1) % SHEAF__CUDA_SPAN_LEAVES != 0) {
            sums_store<D, NT>(span, chunk, lane);
            continue;
        }
        __syncwarp(); // all have read what they folded
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float *to = span + (8 * n + 2 * t + c) * (D + 4);
                part_write<C>(to, to + D, chunk, n, c, lane);
            }
        run.leave(shared_address(span), (D + 4) * 4, lane);
        if (run.n != 0) run.to += each;
    }
    bulk_wait();
}

} // namespace sheaf_cuda

#endif
