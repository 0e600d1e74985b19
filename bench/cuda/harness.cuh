/* bench/cuda/harness.cuh - what all benches of the GPU share: timing with a cold cache, and one
 * table.
 *
 * A bench file defines a function `void bench_xxx(harness *h)` and is called by bench_cuda.cu.
 * Times are medians of 30, each begun with an L2 full of other bytes; what is measured "in a
 * graph" is one replay. Every figure is a row of the table and, with its particulars, of the log.
 *
 *     void bench_xxx(harness *h)
 *     {
 *         if (!harness_wants(h, "xxx")) return;
 *         double us = harness_time(h, [&](cudaStream_t s) { kernel<<<n, 256, 0, s>>>(...); });
 *         double in_graph = harness_time_graph(h, [&](cudaStream_t s) { ... });
 *         harness_row(h, "append 128 tokens", in_graph, 2.5, bytes, "graph");
 *     }
 */
#ifndef SHEAF_BENCH_CUDA_HARNESS_CUH
#define SHEAF_BENCH_CUDA_HARNESS_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#define CUDA_OK(call)                                                                          \
    do {                                                                                       \
        cudaError_t error_ = (call);                                                           \
        if (error_ != cudaSuccess) {                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));    \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

#define SHEAF_OK_OR_EXIT(call)                                                                 \
    do {                                                                                       \
        sheaf_status st_ = (call);                                                             \
        if (st_ != SHEAF_OK) {                                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, sheaf_status_text(st_));        \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

struct harness {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    unsigned char *flush; /* [flush_bytes], more than the L2 holds */
    size_t flush_bytes;
    int repeats;       /* 30 */
    double copy_tbs;   /* ceilings of this run: bytes read and written by a copy, */
    double read_tbs;   /* bytes read by a kernel that only reads */
    double mma_tflops; /* bf16 matrix product */
    std::vector<std::string> wanted; /* names of benches; empty: all */
};

/* Whether a bench was asked for. */
static inline bool harness_wants(const harness *h, const char *name)
{
    return h->wanted.empty() ||
           std::find(h->wanted.begin(), h->wanted.end(), name) != h->wanted.end();
}

/* Fills the L2 with bytes that nobody asks for again. */
static inline void harness_cold(harness *h, int round)
{
    CUDA_OK(cudaMemsetAsync(h->flush, round & 0x7f, h->flush_bytes, h->stream));
}

static inline double harness_median(std::vector<float> &ms)
{
    std::sort(ms.begin(), ms.end());
    size_t n = ms.size();
    return n % 2 ? ms[n / 2] : 0.5 * (ms[n / 2 - 1] + ms[n / 2]);
}

/* Microseconds of what f queues on the stream; `times`: how often f does its work in one call. */
template <typename F> static double harness_time(harness *h, F f, int times = 1)
{
    std::vector<float> ms;
    for (int i = 0; i < 3; i++) f(h->stream);
    for (int i = 0; i < h->repeats; i++) {
        float t;
        harness_cold(h, i);
        CUDA_OK(cudaEventRecord(h->begin, h->stream));
        f(h->stream);
        CUDA_OK(cudaEventRecord(h->end, h->stream));
        CUDA_OK(cudaEventSynchronize(h->end));
        CUDA_OK(cudaEventElapsedTime(&t, h->begin, h->end));
        ms.push_back(t);
    }
    CUDA_OK(cudaGetLastError());
    return harness_median(ms) * 1e3 / times;
}

/* The same of one replay of a graph that holds f's work. */
template <typename F> static double harness_time_graph(harness *h, F f, int times = 1)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    f(h->stream);
    CUDA_OK(cudaStreamSynchronize(h->stream));
    CUDA_OK(cudaStreamBeginCapture(h->stream, cudaStreamCaptureModeThreadLocal));
    f(h->stream);
    CUDA_OK(cudaStreamEndCapture(h->stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    double us = harness_time(
        h, [&](cudaStream_t s) { CUDA_OK(cudaGraphLaunch(exec, s)); }, times);
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaGraphDestroy(graph));
    return us;
}

/* One row: microseconds, the mark to reach (0: none) and the bytes that must move, of which comes
 * the speed and its share of this run's read ceiling. */
static inline void harness_row(harness *h, const char *what, double us, double mark_us,
                               double bytes, const char *note)
{
    double tbs = us > 0 ? bytes / us * 1e-6 : 0;
    double share = h->read_tbs > 0 ? 100 * tbs / h->read_tbs : 0;
    printf("%-46s %9.2f us", what, us);
    if (mark_us > 0)
        printf("  mark %8.1f %s", mark_us, us <= mark_us ? "met   " : "missed");
    else
        printf("  %20s", "");
    if (bytes > 0) printf(" %6.3f TB/s %5.1f%% of read", tbs, share);
    printf("  %s\n", note);
    fflush(stdout);
}

/* The benches, each in its own file. */
void bench_pool(harness *h);    /* copies of whole blocks, committing slabs */
void bench_append(harness *h);  /* append and gather */
void bench_decode(harness *h);  /* decode, quantized caches, shared prefixes, plan */
void bench_prefill(harness *h); /* prefill */

#endif
