/* attn/cuda/wgmma.cuh - Hopper's warpgroup matrix product.
 *
 * Owns: that instruction of sm_90a, its operands and its order, each behind one function. Every statement
 * is the instruction of the same name in the PTX manual.
 *
 * Shared-memory operands are tiles of 64 numbers (128 bytes) a row, 16-byte pieces of a row permuted
 * by the row's low three bits (the 128-byte swizzle), tiles aligned to 1024 bytes:
 *
 *     K (rows are N, numbers along K)    8 rows every 1024 bytes; the next 16 numbers of K 32 bytes on
 *     V (rows are K, numbers along N)    8 rows every 1024 bytes; the next 64 numbers of N a tile on
 */
#ifndef SHEAF_ATTN_CUDA_WGMMA_CUH
#define SHEAF_ATTN_CUDA_WGMMA_CUH

#include <stdint.h>

/* clang-format off */
/* The accumulators: their names in the text of an instruction, and as its operands. */
#define SHEAF_WGMMA_NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SHEAF_WGMMA_NAMES_64 \
    SHEAF_WGMMA_NAMES_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SHEAF_WGMMA_NAMES_128 \
    SHEAF_WGMMA_NAMES_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SHEAF_WGMMA_4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SHEAF_WGMMA_16(i) \
    SHEAF_WGMMA_4(i), SHEAF_WGMMA_4(i + 4), SHEAF_WGMMA_4(i + 8), SHEAF_WGMMA_4(i + 12)
#define SHEAF_WGMMA_32    SHEAF_WGMMA_16(0), SHEAF_WGMMA_16(16)
#define SHEAF_WGMMA_64    SHEAF_WGMMA_32, SHEAF_WGMMA_16(32), SHEAF_WGMMA_16(48)
#define SHEAF_WGMMA_128 \
    SHEAF_WGMMA_64, SHEAF_WGMMA_16(64), SHEAF_WGMMA_16(80), SHEAF_WGMMA_16(96), SHEAF_WGMMA_16(112)

/* n accumulators a thread, for 2n columns. A and B in shared memory: operands a, b, more. */
#define SHEAF_WGMMA_SS(n, columns, type, a_name, b_name, more_name) \
    asm volatile("{\n.reg .pred p;\n" \
    "setp.ne.b32 p, " more_name ", 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " \
    "{" SHEAF_WGMMA_NAMES_##n "}, " \
    a_name ", " b_name ", p, 1, 1, 0, 0;\n}\n" \
    : SHEAF_WGMMA_##n \
    : "l"(a), "l"(b), "r"(more))

/* A in registers: operands a[0] to a[3], b, more. */
#define SHEAF_WGMMA_RS(n, columns, type, a_names, b_name, more_name) \
    asm volatile("{\n.reg .pred p;\n" \
    "setp.ne.b32 p, " more_name ", 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " \
    "{" SHEAF_WGMMA_NAMES_##n "}, " \
    "{" a_names "}, " b_name ", p, 1, 1, 1;\n}\n" \
    : SHEAF_WGMMA_##n \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more))

#define SHEAF_WGMMA_SS_64(type)  SHEAF_WGMMA_SS(32, "64", type, "%32", "%33", "%34")
#define SHEAF_WGMMA_SS_128(type) SHEAF_WGMMA_SS(64, "128", type, "%64", "%65", "%66")
#define SHEAF_WGMMA_RS_64(type)  SHEAF_WGMMA_RS(32, "64", type, "%32, %33, %34, %35", "%36", "%37")
#define SHEAF_WGMMA_RS_128(type) SHEAF_WGMMA_RS(64, "128", type, "%64, %65, %66, %67", "%68", "%69")
#define SHEAF_WGMMA_RS_256(type) \
    SHEAF_WGMMA_RS(128, "256", type, "%128, %129, %130, %131", "%132", "%133")
/* clang-format on */

/* Descriptor of a swizzled tile at a shared address; tile_bytes: from one 64-number column to the
 * next, for operands along N. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address,
                                                            uint32_t tile_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(tile_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same so many bytes further on, which is inside the block's memory. */
static __device__ __forceinline__ uint64_t wgmma_moved(uint64_t descriptor, uint32_t bytes)
{
    return (descriptor & 0xffffffff00000000u) | ((uint32_t)descriptor + (bytes >> 4));
}

static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving accesses of accumulators over a fence or wait. */
template <int N> static __device__ __forceinline__ void wgmma_pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* d[64 x 2N] (+)= A B, both in shared memory, numbers along K contiguous. more == 0: d = A B. */
template <int N, bool F16>
static __device__ __forceinline__ void wgmma_shared(float (&d)[N], uint64_t a, uint64_t b,
                                                    int more)
{
    if constexpr (N == 32 && F16) SHEAF_WGMMA_SS_64("f16");
    if constexpr (N == 32 && !F16) SHEAF_WGMMA_SS_64("bf16");
    if constexpr (N == 64 && F16) SHEAF_WGMMA_SS_128("f16");
    if constexpr (N == 64 && !F16) SHEAF_WGMMA_SS_128("bf16");
}

/* d[64 x 2N] (+)= A B, A in registers, B in shared memory with numbers along N contiguous. */
template <int N, bool F16>
static __device__ __forceinline__ void wgmma_registers(float (&d)[N], const uint32_t (&a)[4],
                                                       uint64_t b, int more)
{
    if constexpr (N == 32 && F16) SHEAF_WGMMA_RS_64("f16");
    if constexpr (N == 32 && !F16) SHEAF_WGMMA_RS_64("bf16");
    if constexpr (N == 64 && F16) SHEAF_WGMMA_RS_128("f16");
    if constexpr (N == 64 && !F16) SHEAF_WGMMA_RS_128("bf16");
    if constexpr (N == 128 && F16) SHEAF_WGMMA_RS_256("f16");
    if constexpr (N == 128 && !F16) SHEAF_WGMMA_RS_256("bf16");
}

#endif
