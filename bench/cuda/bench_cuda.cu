/* bench/cuda/bench_cuda.cu - ceilings of this GPU, then the benches that are asked for (all).
 *
 *     bench_cuda [pool] [append] [decode] [prefill]
 *
 * Ceilings are measured first, by plain kernels in the same run: bytes that a copy reads and writes,
 * bytes that a kernel only reads, and a bf16 product by the tensor cores' own instruction on
 * registers.
 */
#include <mma.h>

#include "cuda/harness.cuh"
#include "sheaf/status.h"

#define CEILING_BYTES (2ull << 30)

__global__ void __launch_bounds__(512) fill(uint4 *to, size_t n)
{
    for (size_t i = blockIdx.x * 512ull + threadIdx.x; i < n; i += gridDim.x * 512ull) {
        uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(i >> 7);
        to[i] = make_uint4(x, x * 747796405u, x ^ 0x9e3779b9u, x + 12345u);
    }
}

__global__ void __launch_bounds__(512) copy(uint4 *to, const uint4 *from, size_t n)
{
    size_t step = gridDim.x * 512ull, i = blockIdx.x * 512ull + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
        to[i] = a, to[i + step] = b, to[i + 2 * step] = c, to[i + 3 * step] = d;
    }
    for (; i < n; i += step) to[i] = from[i];
}

__global__ void __launch_bounds__(512) read_only(uint32_t *sink, const uint4 *from, size_t n)
{
    size_t step = gridDim.x * 512ull, i = blockIdx.x * 512ull + threadIdx.x;
    uint32_t sum = 0;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __ldcs(&from[i + k * step]);
#pragma unroll
        for (int k = 0; k < 8; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < n; i += step) sum += from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
    if (sum == 0x12345678u) *sink = sum; /* so that the loads stay */
}

/* The same, a block a piece: 16 loads of 16 bytes a thread, all on their way before the first is used. */
__global__ void __launch_bounds__(256) read_pieces(uint32_t *sink, const uint4 *from)
{
    const uint4 *piece = from + blockIdx.x * (256ull * 16) + threadIdx.x;
    uint32_t sum = 0;
    uint4 v[16];
#pragma unroll
    for (int k = 0; k < 16; k++) v[k] = __ldcs(&piece[k * 256]);
#pragma unroll
    for (int k = 0; k < 16; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    if (sum == 0x12345678u) *sink = sum;
}

/* Random bf16 numbers of 0.5 to 1 in registers, multiplied over and over. */
__global__ void __launch_bounds__(256) multiply(float *out, int rounds)
{
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a[4];
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b[4];
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c[4];
    for (int k = 0; k < 4; k++) {
        wmma::fill_fragment(c[k], 0.0f);
        for (int i = 0; i < a[k].num_elements; i++)
            a[k].x[i] =
                __float2bfloat16(0.5f + (float)((threadIdx.x * 37 + i * 11) % 61) / 128);
        for (int i = 0; i < b[k].num_elements; i++)
            b[k].x[i] = __float2bfloat16(0.5f + (float)((threadIdx.x * 53 + i * 7) % 59) / 128);
    }
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < 4; k++) wmma::mma_sync(c[k], a[k], b[(k + r) % 4], c[k]);
    for (int k = 0; k < 4; k++)
        if (c[k].x[0] == -1.0f) out[threadIdx.x] = c[k].x[0];
}

static void measure_ceilings(harness *h)
{
    uint4 *a, *b;
    uint32_t *sink;
    size_t n = CEILING_BYTES / sizeof *a;
    int sm = 0;
    CUDA_OK(cudaDeviceGetAttribute(&sm, cudaDevAttrMultiProcessorCount, 0));
    CUDA_OK(cudaMalloc(&a, CEILING_BYTES));
    CUDA_OK(cudaMalloc(&b, CEILING_BYTES));
    CUDA_OK(cudaMalloc(&sink, 4096));
    fill<<<sm * 4, 512, 0, h->stream>>>(a, n);
    double best_copy = 1e30, best_read = 1e30;
    for (int per_sm = 2; per_sm <= 4; per_sm++) {
        best_copy = std::min(best_copy, harness_time(h, [&](cudaStream_t s) {
                                 copy<<<sm * per_sm, 512, 0, s>>>(b, a, n);
                             }));
        best_read = std::min(best_read, harness_time(h, [&](cudaStream_t s) {
                                 read_only<<<sm * per_sm, 512, 0, s>>>(sink, a, n);
                             }));
    }
    best_read = std::min(best_read, harness_time(h, [&](cudaStream_t s) {
                             read_pieces<<<(unsigned)(n / (256 * 16)), 256, 0, s>>>(sink, a);
                         }));
    double driver = harness_time(h, [&](cudaStream_t s) {
        CUDA_OK(cudaMemcpyAsync(b, a, CEILING_BYTES, cudaMemcpyDeviceToDevice, s));
    });
    best_copy = std::min(best_copy, driver);
    const int rounds = 4096;
    double us = harness_time(
        h, [&](cudaStream_t s) { multiply<<<sm * 4, 256, 0, s>>>((float *)sink, rounds); });
    h->copy_tbs = 2.0 * CEILING_BYTES / best_copy * 1e-6;
    h->read_tbs = 1.0 * CEILING_BYTES / best_read * 1e-6;
    h->mma_tflops = 2.0 * 16 * 16 * 16 * 4 * rounds * 8 * sm * 4 / us * 1e-6;
    printf("ceilings: copy %.3f TB/s, read %.3f TB/s, bf16 by mma.sync %.0f TFLOP/s\n",
           h->copy_tbs, h->read_tbs, h->mma_tflops);
    CUDA_OK(cudaFree(a));
    CUDA_OK(cudaFree(b));
    CUDA_OK(cudaFree(sink));
}

int main(int argc, char **argv)
{
    harness h = {};
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("no GPU: nothing is measured\n");
        return 0;
    }
    for (int i = 1; i < argc; i++) h.wanted.push_back(argv[i]);
    h.repeats = 30;
    h.flush_bytes = 256ull << 20;
    CUDA_OK(cudaStreamCreateWithFlags(&h.stream, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreate(&h.begin));
    CUDA_OK(cudaEventCreate(&h.end));
    CUDA_OK(cudaMalloc(&h.flush, h.flush_bytes));
    cudaDeviceProp properties;
    CUDA_OK(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors, sheaf %s; medians of %d, cold L2\n", properties.name,
           properties.multiProcessorCount, sheaf_version(), h.repeats);
    measure_ceilings(&h);
    bench_pool(&h);
    bench_append(&h);
    bench_decode(&h);
    return 0;
}
