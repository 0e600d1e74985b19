// emulated: the warpgroup matrix product (attn/cuda/wgmma.cuh), by machine.h.
#ifndef SHEAF_ATTN_CUDA_WGMMA_CUH
#define SHEAF_ATTN_CUDA_WGMMA_CUH

#include "attn/cuda/instructions.cuh"

inline uint64_t wgmma_descriptor(uint32_t address, uint32_t tile_bytes)
{
    return address | (uint64_t)tile_bytes << 32;
}

inline uint64_t wgmma_moved(uint64_t descriptor, uint32_t bytes)
{
    return descriptor + bytes;
}

// Products are there at once.
inline void wgmma_fence() {}

inline void wgmma_commit() {}

template <int PENDING> void wgmma_wait() {}

template <int N> void wgmma_pin(float (&)[N]) {}

namespace sheaf_cuda
{

// Two numbers that lie side by side in a swizzled tile, at an address that swizzling moves.
template <bool F16> float2 swizzled_pair(uint32_t at)
{
    return unpack<F16>(load4(at ^ (at >> 3 & 0x70)));
}

// Number n of row k, along N.
template <bool F16> float number_along_n(uint64_t b, uint32_t k, uint32_t n)
{
    const uint32_t at = (uint32_t)b + n / 64 * (uint32_t)(b >> 32) + k / 8 * 1024 +
                        k % 8 * 128 + n % 64 / 2 * 4;
    const float2 pair = swizzled_pair<F16>(at);
    return n % 2 == 0 ? pair.x : pair.y;
}

} // namespace sheaf_cuda

// A sum in the order of mma (instructions.cuh).
template <int N, bool F16> void wgmma_shared(float (&d)[N], uint64_t a, uint64_t b, int more)
{
    const uint32_t g = emulated::lane() / 4, t = emulated::lane() % 4;
    const uint32_t warp = emulated::thread.x / 32 % 4;
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t row = 16 * warp + g + 8 * (i / 2 % 2),
                       column = i / 4 * 8 + 2 * t + i % 2;
        double sum = more ? d[i] : 0.0f;
        for (uint32_t k = 0; k < 8; k++) {
            const float2 u = sheaf_cuda::swizzled_pair<F16>((uint32_t)a + row * 128 + 4 * k);
            const float2 v = sheaf_cuda::swizzled_pair<F16>((uint32_t)b + column * 128 + 4 * k);
            sum += (double)u.x * (double)v.x + (double)u.y * (double)v.y;
        }
        d[i] = (float)sum;
    }
}

template <int N, bool F16>
void wgmma_registers(float (&d)[N], const uint32_t (&a)[4], uint64_t b, int more)
{
    float2 pairs[4];
    for (int i = 0; i < 4; i++) pairs[i] = sheaf_cuda::unpack<F16>(a[i]);
    const auto all = emulated::exchange(pairs, sizeof pairs);
    const uint32_t g = emulated::lane() / 4, t = emulated::lane() % 4;
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t half = i / 2 % 2, column = i / 4 * 8 + 2 * t + i % 2;
        double sum = more ? d[i] : 0.0f;
        for (uint32_t k = 0; k < 8; k++) {
            const float2 u =
                static_cast<const float2 *>(all[4 * g + k % 4])[half + 2 * (k / 4)];
            const float x = sheaf_cuda::number_along_n<F16>(b, 2 * k, column);
            const float y = sheaf_cuda::number_along_n<F16>(b, 2 * k + 1, column);
            sum += (double)u.x * (double)x + (double)u.y * (double)y;
        }
        d[i] = (float)sum;
    }
}

#endif
