/* cuda/rig_ok.cuh - for programs that test a GPU: a call of CUDA's that must not fail. */
#ifndef SHEAF_TESTS_CUDA_RIG_OK_CUH
#define SHEAF_TESTS_CUDA_RIG_OK_CUH

#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#define RIG_OK(call)                                                                           \
    do {                                                                                       \
        cudaError_t error_ = (call);                                                           \
        if (error_ != cudaSuccess) {                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));    \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#endif
