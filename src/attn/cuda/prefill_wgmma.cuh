/* attn/cuda/prefill_wgmma.cuh - what the fast prefill kernel asks of the hardware beside wgmma.cuh.
 *
 * Owns: mbarriers, tensor copies and the like, an instruction a function.
 */
#ifndef SHEAF_ATTN_CUDA_PREFILL_WGMMA_CUH
#define SHEAF_ATTN_CUDA_PREFILL_WGMMA_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "attn/cuda/wgmma.cuh"

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

static __device__ __forceinline__ void tensor_copy(uint32_t to, const CUtensorMap *map,
                                                   uint32_t barrier, int column, int token,
                                                   int head, int row)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(token), "r"(head), "r"(row)
                 : "memory");
}

/* Ordinary stores to shared memory become visible to the tensor cores and the copy engine. */
static __device__ __forceinline__ void fence_proxy(void)
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

static __device__ __forceinline__ void barrier_sync(int barrier, int threads)
{
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(int barrier, int threads)
{
    asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

template <int N> static __device__ __forceinline__ void registers_grow(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_shrink(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

#endif
