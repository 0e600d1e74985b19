// attn/cuda/decode_launch.cuh - the launches of decode.
#ifndef SHEAF_ATTN_CUDA_DECODE_LAUNCH_CUH
#define SHEAF_ATTN_CUDA_DECODE_LAUNCH_CUH

#include "attn/cuda/decode_prefix.cuh"
#include "attn/cuda/decode_team.cuh"
#include "attn/cuda/decode_wide.cuh"
#include "attn/cuda/launch.cuh"
#include "attn/cuda/tensor_map.h"

namespace sheaf_cuda
{

// What the host reckons with (decode.h).
template <uint32_t C, int D> constexpr bool host_agrees(uint32_t group, uint32_t slots)
{
    return sheaf__cuda_teams(C, D) == shape<C, D>::TEAMS &&
           sheaf__cuda_team_bytes(C, D) == team_bytes<C, D>() &&
           sheaf__cuda_columns(group) == columns_of(group) &&
           sheaf__cuda_merge_room(C, D, group, slots) ==
               room_of<C, D>(columns_of(group), slots) &&
           sheaf__cuda_prefix_rows(D) == 8 * PREFIX_WARPS * prefix_columns<D>() &&
           sheaf__cuda_part_floats(D) == D + 4;
}

// K or V of the layer. A pool that holds nothing has no address, and nothing is read.
template <uint32_t C, int D>
static bool map_layer(CUtensorMap *map, const sheaf__cuda_decode &in, bool values)
{
    using S = shape<C, D>;
    const uint32_t block_tokens = 1u << in.block_shift;
    sheaf__cuda_tiles tiles = {};
    tiles.base = in.base != nullptr ? in.base + (values ? in.v_offset : in.k_offset) : in.q;
    tiles.head_stride = values ? in.v_head_stride : in.k_head_stride;
    tiles.row_stride = values ? in.row_stride_v : in.row_stride_k;
    tiles.n_heads = in.n_kv_heads, tiles.block_tokens = block_tokens;
    tiles.token_bytes = S::ROW, tiles.width = S::WIDTH;
    tiles.tokens = block_tokens < S::POSITIONS ? block_tokens : S::POSITIONS;
    return sheaf__cuda_map_tiles(map, &tiles);
}

template <uint32_t C, int D, bool PRECISE>
static cudaError_t run_prefixes(const sheaf__cuda_decode &in, const CUtensorMap &map_k,
                                const CUtensorMap &map_v, cudaStream_t stream)
{
    using S = shape<C, D>;
    const uint32_t blocks = in.n_prefix_units * in.n_kv_heads;
    const bool early = in.overlap != 0;
    if constexpr (S::RAW && D != 256) {
        static_assert(sheaf__cuda_prefix_rows(D) == WIDE_GROUPS * WIDE_ROWS, "they are cut so");
        return launch(decode_wide<C, D, PRECISE>, blocks, dim3(WIDE_THREADS),
                      wide<C, D, PRECISE>::BYTES, stream, early, in, map_k, map_v);
    } else {
        constexpr uint32_t slots = (D == 256 ? 2 : 4) * S::HALVES;
        static_assert(prefix_bytes<C, D>(slots) <= SHEAF__CUDA_MAX_SHARED, "no room");
        return launch(decode_prefix<C, D, PRECISE>, blocks, dim3(32 * PREFIX_WARPS),
                      prefix_bytes<C, D>(slots), stream, early, in, map_k, map_v, slots);
    }
}

// ROWS: decode_bytes.cuh.
template <uint32_t C, int D, int ROWS, bool PRECISE>
static cudaError_t run_units(const sheaf__cuda_decode &units, const CUtensorMap &map_k,
                             const CUtensorMap &map_v, cudaStream_t stream)
{
    constexpr uint32_t TEAMS = shape<C, D>::TEAMS;
    const uint32_t tasks = units.n_units * ((units.group + 7) / 8) * units.n_kv_heads;
    const bool early = units.overlap != 0;
    // Half of the multiprocessors where their teams suffice: on the others the next layer's kernel reads
    // while this one ends.
    const uint32_t half = units.n_blocks / 2;
    uint32_t blocks = tasks < units.n_blocks ? tasks : units.n_blocks;
    if (early && tasks > half && tasks <= TEAMS * half) blocks = half;
    return launch(decode_team<C, D, ROWS, PRECISE>, blocks, dim3(threads_of<(int)TEAMS>()),
                  TEAMS * team_bytes<C, D>(), stream, early, units, map_k, map_v);
}

template <uint32_t C, int D, bool PRECISE>
static cudaError_t run(const sheaf__cuda_decode &in, cudaStream_t stream)
{
    static_assert(host_agrees<C, D>(1, 4) && host_agrees<C, D>(4, 3) && host_agrees<C, D>(9, 2),
                  "decode.h says otherwise");
    const bool early = in.overlap != 0;
    CUtensorMap map_k, map_v;
    if (!map_layer<C, D>(&map_k, in, false) || !map_layer<C, D>(&map_v, in, true))
        return cudaErrorNotSupported;
    sheaf__cuda_decode units = in;
    units.waits = early ? SHEAF__CUDA_WAITS_FIRST : SHEAF__CUDA_WAITS_NEVER;
    if (in.n_prefix_units != 0) {
        if (early) units.waits = SHEAF__CUDA_WAITS_LAST;
        cudaError_t error = run_prefixes<C, D, PRECISE>(in, map_k, map_v, stream);
        if (error != cudaSuccess) return error;
    }
    if constexpr (!shape<C, D>::RAW)
        if (in.group <= 4) return run_units<C, D, 1, PRECISE>(units, map_k, map_v, stream);
    return run_units<C, D, 2, PRECISE>(units, map_k, map_v, stream);
}

template <uint32_t C>
static cudaError_t run_codec(const sheaf__cuda_decode &in, cudaStream_t stream)
{
    // f16 holds P well enough for any output, and queries in two parts cost next to nothing; int8 and
    // turbo4 are multiplied as bytes
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
