/* emulated/runtime.cpp - memory is the host's; the GPU has three processors. */
#include "runtime.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "attn/cuda/describe.h"
#include "attn/cuda/prefill.h"
#include "attn/cuda/tensor_map.h"

#define PROCESSORS 3

typedef std::vector<std::function<void()>> works;

static works *captured;

/* Threads of a GPU are slow here: tests do what they do under a sanitizer. */
__attribute__((constructor)) static void run_short()
{
    setenv("SHEAF_GPU_SHORT", "1", 1);
}

void emulated::queue(std::function<void()> work)
{
    if (captured != nullptr)
        captured->push_back(std::move(work));
    else
        work();
}

extern "C" {

cudaError_t cudaMalloc(void **p, size_t n)
{
    *p = aligned_alloc(256, (n + 255) / 256 * 256 + 256);
    if (*p == nullptr) return cudaErrorMemoryAllocation;
    memset(*p, 0xff, n);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t n)
{
    return cudaMalloc(p, n);
}

cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind)
{
    memcpy(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind,
                            cudaStream_t)
{
    emulated::queue([=] { memcpy(to, from, n); });
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t n)
{
    memset(to, value, n);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t)
{
    emulated::queue([=] { memset(to, value, n); });
    return cudaSuccess;
}

/* There is no driver under this runtime. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **found, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    *found = nullptr;
    *result = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    *out = nullptr;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = nullptr;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *out)
{
    *out = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int n)
{
    return n == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr, int)
{
    *out = PROCESSORS;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t)
{
    return "an error of the emulated GPU";
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, enum cudaStreamCaptureMode)
{
    captured = new works;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *out)
{
    *out = reinterpret_cast<cudaGraph_t>(captured);
    captured = nullptr;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    *out = reinterpret_cast<cudaGraphExec_t>(new works(*reinterpret_cast<works *>(graph)));
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t)
{
    for (const auto &work : *reinterpret_cast<works *>(exec)) work();
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete reinterpret_cast<works *>(exec);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete reinterpret_cast<works *>(graph);
    return cudaSuccess;
}

/* A map is what it was made from. */
bool sheaf__cuda_map_tiles(CUtensorMap *map, const sheaf__cuda_tiles *tiles)
{
    static_assert(sizeof *tiles <= sizeof *map, "it holds that");
    memset(map, 0, sizeof *map);
    memcpy(map, tiles, sizeof *tiles);
    return true;
}

/* --- what is not emulated: kernels that are written for the hardware's own tiles ------------ */

sheaf_status sheaf__cuda_kernels_run(uint32_t, sheaf_error *)
{
    return SHEAF_OK;
}

uint32_t sheaf__cuda_prefill_kernel(const sheaf_kv_view *, uint32_t, uint32_t)
{
    return SHEAF__CUDA_PREFILL_BEST;
}

uint32_t sheaf__cuda_prefill_rows(const sheaf_kv_view *, uint32_t, uint32_t)
{
    return 0;
}

sheaf_status sheaf__cuda_prefill_run(const sheaf__cuda_prefill *, void *)
{
    return SHEAF_E_UNSUPPORTED;
}

} // extern "C"
