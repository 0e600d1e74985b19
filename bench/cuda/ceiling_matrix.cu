/* bench/cuda/ceiling_matrix.cu - the tensor cores' speed with nothing in their way: products of random
 * bf16 numbers that lie in registers and shared memory, over and over. */
#include "ceiling_matrix.cuh"

#include "attn/cuda/prefill_wgmma.cuh"

#define TILE_BYTES (64 * 256 * 2)

static __global__ void __launch_bounds__(256, 1) multiply_only(float *out, int rounds)
{
    extern __shared__ unsigned char raw[];
    unsigned char *tile = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    uint32_t state = threadIdx.x * 2654435761u + blockIdx.x;
    for (int i = threadIdx.x; i < TILE_BYTES / 4; i += 256) {
        state = state * 1664525u + 1013904223u; /* two numbers of size 1 to 2, either sign */
        ((uint32_t *)tile)[i] = (state & 0x807f807fu) | 0x3f803f80u;
    }
    fence_proxy();
    __syncthreads();
    float d[128];
    uint32_t a[4];
    for (int i = 0; i < 128; i++) d[i] = 0;
    for (int i = 0; i < 4; i++) a[i] = ((uint32_t *)tile)[threadIdx.x * 4 + i];
    uint64_t b = wgmma_descriptor(shared_address(tile), 64 * 128);
    wgmma_pin(d);
    for (int r = 0; r < rounds; r++) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_registers<128, false>(d, a, b + k * (16 * 128 / 16), 1);
        wgmma_commit();
        wgmma_wait<0>();
    }
    wgmma_pin(d);
    float sum = 0;
    for (int i = 0; i < 128; i++) sum += d[i];
    out[blockIdx.x * 256 + threadIdx.x] = sum;
}

double ceiling_matrix(harness *h)
{
    int processors = 0, rounds = 4000;
    float *out = NULL;
    CUDA_OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    CUDA_OK(cudaMalloc((void **)&out, (size_t)processors * 256 * sizeof(float)));
    CUDA_OK(cudaFuncSetAttribute(multiply_only, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 TILE_BYTES + 1024));
    double us = harness_time(h, [&](cudaStream_t s) {
        multiply_only<<<processors, 256, TILE_BYTES + 1024, s>>>(out, rounds);
    });
    CUDA_OK(cudaFree(out));
    /* blocks x warpgroups x rounds x products x 2 M N K */
    return (double)processors * 2 * rounds * 4 * 2 * 64 * 256 * 16 / us * 1e-6;
}
