// emulated: what the decode kernels ask of the hardware (attn/cuda/instructions.cuh), by machine.h.
#ifndef SHEAF_ATTN_CUDA_INSTRUCTIONS_CUH
#define SHEAF_ATTN_CUDA_INSTRUCTIONS_CUH

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "attn/cuda/tensor_map.h"
#include "base/half.h"
#include "machine.h"

#undef __shared__
#undef __grid_constant__
#undef __launch_bounds__
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define threadIdx emulated::thread
#define blockIdx  emulated::block
#define gridDim   emulated::blocks

namespace sheaf_cuda
{

constexpr uint32_t ALL = 0xffffffffu; // lanes

// --- CUDA's own ------------------------------------------------------------------------------

inline uint32_t __float_as_uint(float x)
{
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}

inline float __uint_as_float(uint32_t x)
{
    float y;
    memcpy(&y, &x, 4);
    return y;
}

inline float __fadd_rn(float x, float y)
{
    return x + y;
}

inline float __fsub_rn(float x, float y)
{
    return x - y;
}

inline float __fmul_rn(float x, float y)
{
    return x * y;
}

inline float __fdiv_rn(float x, float y)
{
    return x / y;
}

inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}

inline int __float2int_rn(float x)
{
    return (int)lrintf(x);
}

inline float __int2float_rn(int x)
{
    return (float)x;
}

template <typename T> T __ldg(const T *p)
{
    return *p;
}

template <typename T> T __ldcg(const T *p)
{
    return *p;
}

inline uint32_t min(uint32_t x, uint32_t y)
{
    return x < y ? x : y;
}

inline uint32_t max(uint32_t x, uint32_t y)
{
    return x < y ? y : x;
}

inline int __ffs(uint32_t x)
{
    return __builtin_ffs((int)x);
}

inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}

inline uint32_t atomicInc(uint32_t *p, uint32_t most)
{
    const uint32_t before = *p;
    *p = before >= most ? 0 : before + 1;
    return before;
}

inline void __syncwarp()
{
    (void)emulated::exchange("", 0);
}

inline void __syncthreads()
{
    emulated::meet(0, 0);
}

// The words that all lanes bring.
struct words_of_all {
    const void *const *all;

    explicit words_of_all(uint32_t mine) : all(emulated::exchange(&mine, sizeof mine)) {}

    uint32_t operator[](uint32_t lane) const
    {
        return *static_cast<const uint32_t *>(all[lane]);
    }
};

template <typename T> T __shfl_sync(uint32_t, T x, int from)
{
    uint32_t word;
    memcpy(&word, &x, 4);
    word = words_of_all(word)[(uint32_t)from & 31];
    memcpy(&x, &word, 4);
    return x;
}

template <typename T> T __shfl_xor_sync(uint32_t all, T x, int by)
{
    return __shfl_sync(all, x, (int)emulated::lane() ^ by);
}

inline uint32_t __ballot_sync(uint32_t, bool x)
{
    const words_of_all words(x);
    uint32_t all = 0;
    for (uint32_t i = 0; i < 32; i++) all |= words[i] << i;
    return all;
}

// --- shared memory ---------------------------------------------------------------------------

inline uint32_t shared_address(const void *p)
{
    return (uint32_t)(static_cast<const unsigned char *>(p) - emulated::shared);
}

inline void barrier_init(uint32_t bar, uint32_t count)
{
    emulated::barrier_init(bar, count);
}

inline void barrier_expect(uint32_t bar, uint32_t bytes)
{
    emulated::barrier_arrive(bar, (int32_t)bytes);
}

inline void barrier_arrive(uint32_t bar)
{
    emulated::barrier_arrive(bar, 0);
}

inline void barrier_wait(uint32_t bar, uint32_t parity)
{
    emulated::barrier_wait(bar, parity);
}

inline void fence_async() {}

inline void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    emulated::store_later(to, from, bytes);
}

inline void bulk_commit() {}

inline void bulk_wait_read()
{
    emulated::finish_stores();
}

inline void bulk_wait()
{
    emulated::finish_stores();
}

inline uint32_t count_shared(uint32_t *p, uint32_t most)
{
    emulated::publish_stores();
    return atomicInc(p, most);
}

inline void fence_async_global() {}

inline void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    emulated::copy_later(to, from, bytes, bar);
}

inline void tensor_copy(uint32_t to, const CUtensorMap *map, uint32_t byte, uint32_t token,
                        uint32_t head, uint32_t row, uint32_t bar)
{
    sheaf__cuda_tiles t;
    memcpy(&t, map, sizeof t);
    const unsigned char *from = static_cast<const unsigned char *>(t.base) +
                                row * t.row_stride + head * t.head_stride +
                                token * t.token_bytes + byte;
    if (byte + t.width > t.token_bytes || token + t.tokens > t.block_tokens ||
        head >= t.n_heads)
        abort(); // beyond the map
    emulated::copy_rows_later(to, from, t.tokens, t.token_bytes, t.width, bar);
}

inline uint32_t load4(uint32_t a)
{
    uint32_t x;
    memcpy(&x, emulated::shared + a, 4);
    return x;
}

inline uint4 load16(uint32_t a)
{
    return uint4{load4(a), load4(a + 4), load4(a + 8), load4(a + 12)};
}

template <int BYTES> uint4 load_up_to_16(uint32_t a)
{
    uint4 x = {load4(a), load4(a + 4), 0, 0};
    if (BYTES == 16) x.z = load4(a + 8), x.w = load4(a + 12);
    return x;
}

inline void store4(uint32_t a, uint32_t x)
{
    memcpy(emulated::shared + a, &x, 4);
}

template <bool TRANSPOSED> void load_matrices(uint32_t (&x)[4], uint32_t a)
{
    const words_of_all at(a);
    const uint32_t row = emulated::lane() / 4, pair = emulated::lane() % 4;
    for (uint32_t m = 0; m < 4; m++) {
        uint16_t h[2];
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t from = TRANSPOSED ? at[8 * m + 2 * pair + i] + 2 * row
                                             : at[8 * m + row] + 2 * (2 * pair + i);
            memcpy(&h[i], emulated::shared + from, 2);
        }
        x[m] = h[0] | (uint32_t)h[1] << 16;
    }
}

// --- arithmetic ------------------------------------------------------------------------------

inline uint32_t high_half(uint32_t x)
{
    return x >> 16;
}

inline float fmax_nan(float x, float y)
{
    return std::isnan(x) || std::isnan(y) ? NAN : x > y ? x : y;
}

inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t x = a | (uint64_t)b << 32;
    uint32_t y = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t digit = selector >> 4 * i,
                       byte = (uint32_t)(x >> 8 * (digit & 7)) & 0xff;
        y |= (digit & 8 ? byte >> 7 ? 0xffu : 0 : byte) << 8 * i;
    }
    return y;
}

inline float exp2_fast(float x)
{
    return exp2f(x);
}

inline float reciprocal_fast(float x)
{
    return 1.0f / x;
}

inline uint32_t transpose8(uint32_t x)
{
    const words_of_all words(x);
    const uint32_t row = emulated::lane() / 4, pair = emulated::lane() % 4;
    uint32_t y = 0;
    for (uint32_t i = 0; i < 2; i++)
        y |= (words[4 * (2 * pair + i) + row / 2] >> 16 * (row % 2) & 0xffff) << 16 * i;
    return y;
}

template <bool HALF> uint32_t pack(float x, float y)
{
    const uint16_t a = HALF ? sheaf__f16_of_f32(x) : sheaf__bf16_of_f32(x);
    const uint16_t b = HALF ? sheaf__f16_of_f32(y) : sheaf__bf16_of_f32(y);
    return a | (uint32_t)b << 16;
}

template <bool HALF> float2 unpack(uint32_t r)
{
    const uint16_t a = (uint16_t)r, b = (uint16_t)(r >> 16);
    return HALF ? float2{sheaf__f32_of_f16(a), sheaf__f32_of_f16(b)}
                : float2{sheaf__f32_of_bf16(a), sheaf__f32_of_bf16(b)};
}

// Numbers are widened by the lanes that hold them.
template <bool HALF> void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    float2 pairs[6];
    for (int i = 0; i < 6; i++) pairs[i] = unpack<HALF>(words[i]);
    const auto all = emulated::exchange(pairs, sizeof pairs);
    const uint32_t g = emulated::lane() / 4, t = emulated::lane() % 4;
    for (uint32_t c = 0; c < 4; c++) {
        const uint32_t row = g + 8 * (c / 2), column = 2 * t + c % 2;
        double sum = d[c];
        for (uint32_t k = 0; k < 8; k++) { // pairs of the depth
            const float2 *x = static_cast<const float2 *>(all[row % 8 * 4 + k % 4]);
            const float2 *y = static_cast<const float2 *>(all[column * 4 + k % 4]);
            const float2 u = x[row / 8 + 2 * (k / 4)], v = y[4 + k / 4];
            sum += (double)u.x * (double)v.x + (double)u.y * (double)v.y;
        }
        d[c] = (float)sum;
    }
}

template <bool SIGNED>
void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const auto all = emulated::exchange(words, sizeof words);
    const uint32_t g = emulated::lane() / 4, t = emulated::lane() % 4;
    for (uint32_t c = 0; c < 4; c++) {
        const uint32_t row = g + 8 * (c / 2), column = 2 * t + c % 2;
        for (uint32_t k = 0; k < 32; k++) {
            const uint32_t *x = static_cast<const uint32_t *>(all[row % 8 * 4 + k % 16 / 4]);
            const uint32_t *y = static_cast<const uint32_t *>(all[column * 4 + k % 16 / 4]);
            const uint32_t u = x[row / 8 + 2 * (k / 16)] >> 8 * (k % 4) & 0xff;
            const uint32_t v = y[4 + k / 16] >> 8 * (k % 4) & 0xff;
            d[c] += (int8_t)u * (SIGNED ? (int)(int8_t)v : (int)v);
        }
    }
}

// --- kernels and their threads ---------------------------------------------------------------

inline void launch_next() {}

inline void wait_for_previous() {}

template <int THREADS> void meet(uint32_t id)
{
    emulated::meet(id, THREADS);
}

template <int N> void grow_registers() {}

template <int N> void shrink_registers() {}

} // namespace sheaf_cuda

#endif
