/* bench/cuda/main_prefill.cu - the prefill bench as a program of its own. */
#include "ceiling_matrix.cuh"

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("SKIPPED: no GPU\n");
        return 77;
    }
    harness h = {};
    h.repeats = 30;
    h.flush_bytes = 256u << 20;
    CUDA_OK(cudaStreamCreate(&h.stream));
    CUDA_OK(cudaEventCreate(&h.begin));
    CUDA_OK(cudaEventCreate(&h.end));
    CUDA_OK(cudaMalloc((void **)&h.flush, h.flush_bytes));
    h.mma_tflops = ceiling_matrix(&h);
    printf("matrix ceiling, bf16: %.0f TFLOP/s\n", h.mma_tflops);
    bench_prefill(&h);
    return 0;
}
