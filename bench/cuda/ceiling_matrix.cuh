/* bench/cuda/ceiling_matrix.cuh - bf16 TFLOP/s of this run's GPU, the ceiling of prefill. */
#ifndef SHEAF_BENCH_CUDA_CEILING_MATRIX_CUH
#define SHEAF_BENCH_CUDA_CEILING_MATRIX_CUH

#include "harness.cuh"

/* What goes into harness.mma_tflops. */
double ceiling_matrix(harness *h);

#endif
