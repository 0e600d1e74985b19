// attn/cuda/decode_kernels.cuh - the kernel of decode, for one codec and dimension.
//
// Owns: who computes what, and the ring that brings K and V. A block of four warps (a team)
// computes one unit for one KV head, a leaf or a chunk each warp. Each warp fills its own
// ring (K, V, K, V, ...) by bulk copies and refills a slot as soon as it has read it. At the
// end each warp folds the four sums of some query heads, in order; where an item has several
// units, whichever warp leaves the last part of a head merges them.
//
// Shared memory of a block: scales of the columns (128 bytes), their queries ([8][D] floats)
// before each warp packs them; then, a warp:
//
//     [0, 128)     barriers, one a slot
//     [128, ...)   slots; once all is read, its sums: [8 columns][D + 4] floats, o, then m and l
#ifndef SHEAF_ATTN_CUDA_DECODE_KERNELS_CUH
#define SHEAF_ATTN_CUDA_DECODE_KERNELS_CUH

#include "attn/cuda/decode_tile.cuh"

namespace sheaf_cuda
{

constexpr int HEAD_BYTES = 256;
constexpr int PREFIX_WARPS = 8;

constexpr int WARPS = SHEAF__CUDA_WARPS;
constexpr int MERGE_AT_ONCE = 8; // parts on their way

template <int D> __host__ __device__ constexpr int prefix_columns() // tiles of 8 columns a warp
{
    return D == 256 ? 1 : 2;
}

constexpr int BARRIER_BYTES = 128;

template <uint32_t C, int D> __host__ __device__ constexpr uint32_t ring_bytes(uint32_t slots)
{
    return BARRIER_BYTES + slots * shape<C, D>::SLOT;
}

// Of what all warps of a team share.
template <int D> __host__ __device__ constexpr uint32_t team_bytes()
{
    return 128 + 8 * D * 4;
}

template <uint32_t C, int D> __host__ __device__ constexpr int prefix_bytes(int slots)
{
    constexpr int NT = prefix_columns<D>();
    return HEAD_BYTES + PREFIX_WARPS * (128 + sums_bytes<D, NT>()) + slots * shape<C, D>::SLOT;
}

// What the host reckons with (decode.h).
template <uint32_t C, int D> constexpr bool host_agrees(uint32_t slots)
{
    return sheaf__cuda_teams(C, D) == shape<C, D>::TEAMS &&
           sheaf__cuda_team_bytes(C, D, slots) ==
               team_bytes<D>() + WARPS * ring_bytes<C, D>(slots) &&
           sheaf__cuda_prefix_rows(D) == 8 * PREFIX_WARPS * prefix_columns<D>() &&
           sheaf__cuda_part_floats(D) == D + 4;
}

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

// Prepares it. to: [D] floats; scale: what its scores are multiplied by. One warp.
template <uint32_t C, int D>
__device__ __forceinline__ void stage_query(const sheaf__cuda_decode &in, float (&x)[D / 32],
                                            int lane, float *to, float *scale)
{
    constexpr int E = D / 32;
    if constexpr (C == TURBO4) {
        change_signs<D>(x, in.signs, lane);
        transform<D>(x, lane);
    }
    float unit = 1.0f, inverse = 1.0f;
    if constexpr (shape<C, D>::HALF) { // a power of two, so that f16 holds the row
        float top = 0.0f;
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
    for (int i = 0; i < E; i++) to[lane * E + i] = x[i] * inverse;
    if (lane == 0)
        *scale = __fmul_rn(unit, in.softcap != 0.0f ? in.scale : __fmul_rn(in.scale, LOG2E));
}

// Takes the queries of eight columns, tile n of the warp's. stage: [8][D] floats, scales: [8]
template <uint32_t C, int D, int NT, bool PRECISE>
__device__ __forceinline__ void take_queries(queries<C, D, NT, PRECISE> &to, int n, int lane,
                                             const float *stage, const float *scales)
{
    constexpr bool HALF = shape<C, D>::HALF;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        const float *from = stage + g * D + step_dim<C, D>(s, t);
        const float2 x = *reinterpret_cast<const float2 *>(from);
        const float2 y = *reinterpret_cast<const float2 *>(from + (shape<C, D>::RAW ? 8 : 2));
        to.hi[n][s][0] = pack<HALF>(x.x, x.y);
        to.hi[n][s][1] = pack<HALF>(y.x, y.y);
        if constexpr (queries<C, D, NT, PRECISE>::LOW) {
            to.lo[n][s][0] = pack_rest<HALF>(x.x, x.y, to.hi[n][s][0]);
            to.lo[n][s][1] = pack_rest<HALF>(y.x, y.y, to.hi[n][s][1]);
        }
    }
    to.scale[n][0] = scales[2 * t];
    to.scale[n][1] = scales[2 * t + 1];
}

// --- the ring --------------------------------------------------------------------------------

// Slots in order: K and V of leaf 0, of leaf 1, ... Lane p of the first PIECES * HALVES
// knows where piece p of a leaf lies; those of a half bring its pieces.
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
    uint32_t row, ahead;  // of this lane's piece of that leaf, and of the next
    uint32_t at, part;    // the slot to fill, and with what: the halves of K, then those of V
    uint32_t from, phase; // the slot to read

    __device__ __forceinline__ void init(const sheaf__cuda_decode &in, uint32_t shared,
                                         uint32_t slots, uint32_t n)
    {
        rows = in.rows;
        row_stride_k = in.row_stride_k, row_stride_v = in.row_stride_v;
        block_shift = in.block_shift;
        bars = shared, slots_at = slots, n_slots = n;
        leaf = end = at = part = from = phase = 0;
    }

    __device__ __forceinline__ void of_head(const sheaf__cuda_decode &in, uint32_t head)
    {
        k = in.base + in.k_offset + head * in.k_head_stride;
        v = in.base + in.v_offset + head * in.v_head_stride;
    }

    // Whether this lane's piece of a leaf has positions that are seen.
    __device__ __forceinline__ bool held(uint32_t n, int lane) const
    {
        const uint32_t first = n * SHEAF__CUDA_LEAF + S::ROWS * lane;
        return lane < S::PIECES * S::HALVES && n < end && first < hi && first + S::ROWS > lo;
    }

    __device__ __forceinline__ uint32_t row_of(uint32_t n, int lane) const
    {
        if (!held(n, lane)) return 0;
        const uint32_t first = n * SHEAF__CUDA_LEAF + S::ROWS * lane;
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
        constexpr uint32_t each = S::ROWS * (S::ROW + (S::RAW ? 0 : 4));
        const bool mine = held(leaf, lane) && (uint32_t)lane / S::PIECES == part % S::HALVES;
        const uint32_t n = __popc(__ballot_sync(ALL, mine));
        if (lane == 0) barrier_expect(bar, n * each);
        __syncwarp();
        if (mine) {
            const uint32_t inside =
                (leaf * SHEAF__CUDA_LEAF + S::ROWS * lane) & ((1u << block_shift) - 1);
            const unsigned char *segment =
                part >= S::HALVES ? v + row * row_stride_v : k + row * row_stride_k;
            bulk_copy(slot + lane % S::PIECES * S::PIECE, segment + inside * S::ROW,
                      S::ROWS * S::ROW, bar);
            if constexpr (!S::RAW)
                bulk_copy(slot + S::SCALES + 4 * S::ROWS * lane,
                          segment + ((uint64_t)S::ROW << block_shift) + 4 * inside, 4 * S::ROWS,
                          bar);
        }
        skip(lane);
    }

    // Leaves the next slot to another warp.
    __device__ __forceinline__ void skip(int lane)
    {
        if (leaf >= end) return;
        if (++at == n_slots) at = 0;
        if (++part < 2 * S::HALVES) return;
        part = 0;
        leaf++;
        row = ahead;
        ahead = row_of(leaf + 1, lane);
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

// One leaf. release: says of the slot waited for last that it is read.
template <uint32_t C, int D, int NT, bool PRECISE, typename F>
__device__ __forceinline__ void leaf_of(sums<D, NT> &to, ring<C, D> &r, int lane, seen see,
                                        float softcap, const queries<C, D, NT, PRECISE> &q,
                                        F release)
{
    using S = shape<C, D>;
    constexpr bool LOW = PRECISE && !S::HALF;
    float s[NT][4][4];
    weights<NT, LOW> w;
    uint32_t slot = 0;
#pragma unroll
    for (int half = 0; half < S::HALVES; half++) {
        slot = r.wait();
        scores<C, D, NT, PRECISE>(s, half, slot, lane, q);
        if constexpr (S::RAW) release();
    }
    logits<C, D, NT, PRECISE>(s, slot, lane, see, softcap, q);
    if constexpr (!S::RAW) release();
    exponentials<D, NT>(s, to);
#pragma unroll
    for (int half = 0; half < S::HALVES; half++) {
        if (half == 0 && S::RAW) weigh<C, D, NT, LOW>(w, s, 0, lane);
        slot = r.wait();
        if (!see.whole) clean<C, D>(half, slot, lane, see);
        if (half == 0 && !S::RAW) weigh<C, D, NT, LOW>(w, s, slot, lane);
        values<C, D, NT, LOW>(to, half, slot, lane, w);
        release();
    }
}

// --- what is left behind ---------------------------------------------------------------------

__device__ __forceinline__ float *part_at(const sheaf__cuda_decode &in, int dim, uint64_t part,
                                          uint32_t head)
{
    return in.parts + (part * in.n_q_heads + head) * (uint32_t)(dim + 4);
}

template <uint32_t C, int D, int NT>
__device__ __forceinline__ void part_write(float *to, const sums<D, NT> &s, int n, int c,
                                           int lane)
{
    const int g = lane >> 2;
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
            float4 *octet = reinterpret_cast<float4 *>(to + octet_dim<C, D>(k, g));
            octet[0] = make_float4(o[0][c], o[1][c], o[2][c], o[3][c]);
            octet[1] = make_float4(o[0][2 + c], o[1][2 + c], o[2][2 + c], o[3][2 + c]);
        }
    }
    if (g == 0) to[D] = s.m[n][c], to[D + 1] = s.l[n][c];
}

// One query head's sums, D / 32 consecutive dimensions a lane; m and l in all of them.
template <int D> struct row_sums {
    static constexpr int E = D / 32;
    float o[E], m, l;

    __device__ __forceinline__ void load(const float *from, int lane)
    {
#pragma unroll
        for (int i = 0; i < E; i += 2) {
            const float2 x = *reinterpret_cast<const float2 *>(from + lane * E + i);
            o[i] = x.x, o[i + 1] = x.y;
        }
        const float2 ml = *reinterpret_cast<const float2 *>(from + D);
        m = ml.x, l = ml.y;
    }

    __device__ __forceinline__ void store(float *to, int lane) const
    {
#pragma unroll
        for (int i = 0; i < E; i += 2)
            *reinterpret_cast<float2 *>(to + lane * E + i) = make_float2(o[i], o[i + 1]);
        if (lane == 0) *reinterpret_cast<float2 *>(to + D) = make_float2(m, l);
    }

    // A part, past the first cache: others have written it, and the same place a layer before.
    __device__ __forceinline__ void load_part(const float *from, int lane)
    {
#pragma unroll
        for (int i = 0; i < E; i += 2) {
            const float2 x = __ldcg(reinterpret_cast<const float2 *>(from + lane * E + i));
            o[i] = x.x, o[i + 1] = x.y;
        }
        const float2 ml = __ldcg(reinterpret_cast<const float2 *>(from + D));
        m = ml.x, l = ml.y;
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

// All parts of one head, in order. One warp.
template <int D>
__device__ __forceinline__ row_sums<D>
merge_parts(const sheaf__cuda_decode &in, const sheaf__cuda_merge &job, uint32_t head, int lane)
{
    const uint32_t n = job.prefix_spans + job.n_parts;
    row_sums<D> all, span;
    bool any = false, in_span = false;
    for (uint32_t base = 0; base < n; base += MERGE_AT_ONCE) {
        row_sums<D> part[MERGE_AT_ONCE];
#pragma unroll
        for (int i = 0; i < MERGE_AT_ONCE; i++) {
            const uint32_t p = base + i;
            if (p >= n) continue;
            const uint64_t at = p < job.prefix_spans
                                    ? job.prefix_part + (uint64_t)p * job.prefix_stride
                                    : (uint64_t)job.part + (p - job.prefix_spans);
            part[i].load_part(part_at(in, D, at, head), lane);
        }
#pragma unroll
        for (int i = 0; i < MERGE_AT_ONCE; i++) {
            const uint32_t p = base + i, own = p - job.prefix_spans;
            if (p >= n) continue;
            span.fold(in_span, part[i]);
            in_span = p >= job.prefix_spans && job.chunks != 0 && p + 1 < n &&
                      (job.first + own + 1) % 4 != 0;
            if (in_span) continue;
            all.fold(any, span);
            any = true;
        }
    }
    return all;
}

__device__ __forceinline__ sheaf__cuda_unit unit_load(const sheaf__cuda_unit *from)
{
    const uint4 a = __ldg(reinterpret_cast<const uint4 *>(from));
    const uint4 b = __ldg(reinterpret_cast<const uint4 *>(from) + 1);
    return sheaf__cuda_unit{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

// --- the kernel ------------------------------------------------------------------------------

// Which unit a block does, and for which heads. Heads first.
struct task {
    uint32_t kv_head, tile, unit;

    __device__ __forceinline__ task(const sheaf__cuda_decode &in, uint32_t n)
    {
        const uint32_t tiles = (in.group + 7) / 8, rest = n / in.n_kv_heads;
        kv_head = n % in.n_kv_heads, tile = rest % tiles, unit = rest / tiles;
    }
};

// The leaves of a unit that are a warp's.
struct share {
    uint32_t first, end, each;

    __device__ __forceinline__ share(const sheaf__cuda_unit &unit, uint32_t warp)
    {
        each = unit.part_each & 7;
        const uint32_t begin = unit.first_leaf & ~(WARPS * each - 1);
        first = max(unit.first_leaf, begin + warp * each);
        end = min(unit.end_leaf, begin + (warp + 1) * each);
    }
};

// Leaves a part of one head. Whether it is the last of the item's: then all its parts can be
// read.
__device__ __forceinline__ bool arrive_last(const sheaf__cuda_decode &in,
                                            const sheaf__cuda_unit &unit, uint32_t n_units,
                                            uint32_t head, int lane)
{
    uint32_t before = 0;
    __syncwarp();
    if (lane == 0) {
        __threadfence();
        before =
            atomicInc(in.arrived + (uint64_t)unit.merge * in.n_q_heads + head, n_units - 1);
        __threadfence();
    }
    __syncwarp();
    return __shfl_sync(ALL, before, 0) == n_units - 1;
}

// What a unit ends with: a part, or results. sums: of warp 0, the next warp's `bytes` on;
// those of warps [from, past) are there.
template <uint32_t C, int D>
__device__ __forceinline__ void
end_unit(const sheaf__cuda_decode &in, const sheaf__cuda_unit &unit,
         const sheaf__cuda_merge &job, uint32_t head, uint32_t j, const unsigned char *sums,
         uint32_t bytes, uint32_t from, uint32_t past, int lane)
{
    row_sums<D> s = {};
    for (uint32_t n = from; n < past; n++) {
        row_sums<D> b;
        b.load(reinterpret_cast<const float *>(sums + n * bytes) + j * (D + 4), lane);
        s.fold(n != from, b);
    }
    if (unit.merge != SHEAF__CUDA_NO_MERGE) {
        if (from < past) s.store(part_at(in, D, job.part + (unit.part_each >> 3), head), lane);
        if (!arrive_last(in, unit, max(job.n_parts, 1u), head, lane)) return;
        s = merge_parts<D>(in, job, head, lane);
    } else if (from == past) { // a query that sees nothing
        output<D / 32>(in.out, in.io_dtype,
                       ((uint64_t)unit.query * in.n_q_heads + head) * D + lane * (D / 32), s.o);
        return;
    }
    leave<C, D>(in, s, unit.query, head, lane);
}

template <uint32_t C, int D, bool PRECISE>
__global__ void __launch_bounds__(32 * WARPS, shape<C, D>::TEAMS)
    decode_team(const __grid_constant__ sheaf__cuda_decode in)
{
    extern __shared__ __align__(128) unsigned char all[];
    const int lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5, bytes = ring_bytes<C, D>(in.slots);
    if (in.overlap) launch_next();
    const task t(in, blockIdx.x);
    const sheaf__cuda_unit unit = unit_load(in.units + t.unit);
    const share mine(unit, warp);
    float *scales = reinterpret_cast<float *>(all), *stage = scales + 32;
    unsigned char *rings = all + team_bytes<D>(), *own = rings + warp * bytes;
    ring<C, D> r;
    r.init(in, shared_address(own), shared_address(own) + BARRIER_BYTES, in.slots);
    r.of_head(in, t.kv_head);
    r.rows_at = unit.rows_at, r.lo = unit.lo, r.hi = unit.hi;
    if (lane == 0) {
        for (uint32_t n = 0; n < in.slots; n++) barrier_init(r.bars + 8 * n, 1);
        fence_async();
    }
    if (mine.first < mine.end) r.begin(mine.first, mine.end, lane);
    __syncwarp();
    if (in.waits == SHEAF__CUDA_WAITS_FIRST)
        wait_for_previous(); // only tables were read so far
    for (uint32_t n = 0; n < in.slots; n++) r.bring(lane);
    float x[8 / WARPS][D / 32]; // loaded before any of it is waited for
#pragma unroll
    for (int i = 0; i < 8 / WARPS; i++) {
        const uint32_t j = 8 * t.tile + warp + WARPS * i;
        const uint64_t row = (uint64_t)unit.query * in.n_q_heads + t.kv_head * in.group + j;
        load_query<D>(in, j < in.group ? (int64_t)row : -1, lane, x[i]);
    }
#pragma unroll
    for (int i = 0; i < 8 / WARPS; i++) {
        const uint32_t column = warp + WARPS * i;
        stage_query<C, D>(in, x[i], lane, stage + column * D, scales + column);
    }
    __syncthreads();
    if (mine.first < mine.end) {
        queries<C, D, 1, PRECISE> q;
        sums<D, 1> chunk, now;
        take_queries<C, D, 1, PRECISE>(q, 0, lane, stage, scales);
        for (uint32_t leaf = mine.first; leaf < mine.end; leaf++) {
            leaf_of<C, D, 1, PRECISE>(now, r, lane, seen_of(leaf, unit.lo, unit.hi), in.softcap,
                                      q, [&] {
                                          __syncwarp();
                                          r.next();
                                          r.bring(lane);
                                      });
            if (leaf != mine.first)
                merge_into<D, 1>(chunk, now);
            else
                chunk = now;
        }
        static_assert(2 * shape<C, D>::SLOT >= 8 * (D + 4) * 4, "no room");
#pragma unroll
        for (int c = 0; c < 2; c++)
            part_write<C, D, 1>(reinterpret_cast<float *>(own + BARRIER_BYTES) +
                                    (2 * (lane & 3) + c) * (D + 4),
                                chunk, 0, c, lane);
    }
    sheaf__cuda_merge job = {};
    if (unit.merge != SHEAF__CUDA_NO_MERGE) job = in.merges[unit.merge];
    __syncthreads();
    if (in.waits == SHEAF__CUDA_WAITS_LAST) wait_for_previous();
    const uint32_t skipped = unit.first_leaf / mine.each & ~(WARPS - 1u);
    const uint32_t from = unit.first_leaf / mine.each - skipped;
    const uint32_t past =
        unit.first_leaf < unit.end_leaf ? (unit.end_leaf - 1) / mine.each + 1 - skipped : from;
    const uint32_t columns = min(8u, in.group - 8 * t.tile);
    for (uint32_t j = warp; j < columns; j += WARPS)
        end_unit<C, D>(in, unit, job, t.kv_head * in.group + 8 * t.tile + j, j,
                       rings + BARRIER_BYTES, bytes, from, past, lane);
}

} // namespace sheaf_cuda

#endif
