// attn/cuda/instructions.cuh - what the decode kernels ask of the hardware, a function each.
//
// Owns: all inline assembly of decode but the products of warpgroups (wgmma.cuh), so that the kernels'
// own code runs wherever these are given another meaning (tests/cuda/emulated).
#ifndef SHEAF_ATTN_CUDA_INSTRUCTIONS_CUH
#define SHEAF_ATTN_CUDA_INSTRUCTIONS_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace sheaf_cuda
{

constexpr uint32_t ALL = 0xffffffffu; // lanes

// --- shared memory ---------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// From shared memory; kept in the second cache rather than what is read once. bulk_wait: all that this
// thread has stored so is there; bulk_wait_read: all up to its last bulk_commit has been read.
__device__ __forceinline__ void bulk_store(void *to, uint32_t from, uint32_t bytes)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(
            to),
        "r"(from), "r"(bytes), "l"(policy)
        : "memory");
}

__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ __forceinline__ void bulk_wait()
{
    bulk_commit();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// One more at `p`, after `most` 0 again; the result: how many there were. What this thread has stored,
// and waited for, is there for whoever counts later; and of those who have counted before, for this
// thread. Of and for its warp by a __syncwarp before and after.
__device__ __forceinline__ uint32_t count_shared(uint32_t *p, uint32_t most)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(p), "r"(most)
                 : "memory");
    return before;
}

// And for this thread's bulk copies.
__device__ __forceinline__ void fence_async_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes,
                                          uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

// Tokens of one block, by a map of a layer's K or V (tensor_map.h). Read once: the first to leave the
// second cache.
__device__ __forceinline__ void tensor_copy(uint32_t to, const CUtensorMap *map, uint32_t byte,
                                            uint32_t token, uint32_t head, uint32_t row,
                                            uint32_t bar)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
                 "l"(map), "r"(byte), "r"(token), "r"(head), "r"(row), "r"(bar), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ uint4 load16(uint32_t a)
{
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(a));
    return x;
}

// Four matrices of 8 rows of 16 bytes, lane 8m + j giving the address of row j of matrix m.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t a)
{
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(a));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(a));
}

__device__ __forceinline__ uint32_t load4(uint32_t a)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(a));
    return x;
}

// 8 or 16 bytes, the rest 0.
template <int BYTES> __device__ __forceinline__ uint4 load_up_to_16(uint32_t a)
{
    if constexpr (BYTES == 16) return load16(a);
    uint4 x = make_uint4(0, 0, 0, 0);
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(a));
    return x;
}

__device__ __forceinline__ void store4(uint32_t a, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(a), "r"(x) : "memory");
}

// A digit of 8 and more gives the byte's sign eight times; the upper four digits are ignored. By
// __byte_perm the selector would be masked first.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t x;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(selector));
    return x;
}

// x >> 16, by the half that multiplies: shifts, `prmt` and logic share the other one.
__device__ __forceinline__ uint32_t high_half(uint32_t x)
{
    uint32_t y;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0x0100u), "r"(0u));
    return y;
}

// The greater one; NaN where one of them is no number.
__device__ __forceinline__ float fmax_nan(float x, float y)
{
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ uint32_t transpose8(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

template <bool HALF>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1)
{
    if constexpr (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Products of signed bytes a with signed or unsigned bytes b, exact: D = A B + D, 16 x 32 by 32 x 8.
template <bool SIGNED>
__device__ __forceinline__ void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1)
{
    if constexpr (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two numbers rounded into one register, x in its low half.
template <bool HALF> __device__ __forceinline__ uint32_t pack(float x, float y)
{
    uint32_t r;
    if constexpr (HALF)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

template <bool HALF> __device__ __forceinline__ float2 unpack(uint32_t r)
{
    if constexpr (HALF) return __half22float2(*reinterpret_cast<const __half2 *>(&r));
    return make_float2(__uint_as_float(r << 16), __uint_as_float(r & 0xffff0000u));
}

// --- kernels and their threads ---------------------------------------------------------------

__device__ __forceinline__ void launch_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void wait_for_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Waits until THREADS threads are at barrier `id`, 1 to 15.
template <int THREADS> __device__ __forceinline__ void meet(uint32_t id)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

template <int N> __device__ __forceinline__ void grow_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N));
}

template <int N> __device__ __forceinline__ void shrink_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N));
}

} // namespace sheaf_cuda

#endif
