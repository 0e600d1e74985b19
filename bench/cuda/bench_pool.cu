/* bench/cuda/bench_pool.cu - what committing a slab costs, and how fast whole blocks travel to the
 * host and back, against one plain copy between the same kinds of memory. */
#include <chrono>

#include "cuda/harness.cuh"
#include "sheaf/cuda.h"

/* 28 layers of 8 heads, 128 numbers, bf16: a block of 32 positions is 3.5 MiB, a slab of 32 is 112
 * MiB. */
static sheaf_pool *open_pool(sheaf_device *device, uint64_t budget)
{
    static sheaf_layer layers[28];
    for (int i = 0; i < 28; i++)
        layers[i] = {8, 128, 128, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    sheaf_pool *pool = NULL;
    o.layers = layers, o.n_layers = 28;
    o.block_tokens = 32, o.slab_blocks = 32;
    o.budget_bytes = budget;
    o.device = device;
    SHEAF_OK_OR_EXIT(sheaf_pool_open(&o, &pool, NULL));
    return pool;
}

static double now_us()
{
    using namespace std::chrono;
    return duration<double, std::micro>(steady_clock::now().time_since_epoch()).count();
}

/* Microseconds a slab, of 32 that are committed in one step; and of as many plain allocations. */
static void commit_slabs(sheaf_pool *pool)
{
    uint32_t n = 32 * 32;
    std::vector<sheaf_block> blocks(n);
    double begin = now_us();
    SHEAF_OK_OR_EXIT(sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, blocks.data()));
    double us = (now_us() - begin) / 32;
    begin = now_us();
    for (uint32_t i = 0; i < n; i++)
        SHEAF_OK_OR_EXIT(sheaf_pool_release(pool, blocks[i], SHEAF_OWNER_HOST));
    double back_us = (now_us() - begin) / 32;
    std::vector<void *> plain(32);
    begin = now_us();
    for (void *&p : plain) CUDA_OK(cudaMalloc(&p, 112 << 20));
    double plain_us = (now_us() - begin) / 32;
    for (void *p : plain) CUDA_OK(cudaFree(p));
    printf("commit a slab of 112 MiB %.1f us (plain allocation %.1f us), give back %.1f us\n",
           us, plain_us, back_us);
}

/* GB/s of f's copies of `bytes`, by the clock of the stream. */
template <typename F> static double gbs(harness *h, double bytes, F f)
{
    int repeats = h->repeats;
    h->repeats = 8;
    double us = harness_time(h, f);
    h->repeats = repeats;
    return bytes / us * 1e-3;
}

static void travel(harness *h, sheaf_device *device, sheaf_pool *pool)
{
    const uint32_t n = 128;
    uint32_t take = 4 * n;
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    SHEAF_OK_OR_EXIT(sheaf_pool_group_info(pool, 0, &info));
    std::vector<sheaf_block> all(take), some;
    SHEAF_OK_OR_EXIT(sheaf_pool_acquire(pool, &take, SHEAF_OWNER_HOST, all.data()));
    for (uint32_t i = 0; i < n; i++) some.push_back(all[(i * 149) % take]); /* scattered rows */
    double bytes = (double)n * info.block_bytes;
    void *host = NULL, *plain = NULL;
    SHEAF_OK_OR_EXIT(sheaf_cuda_host_alloc(device, (uint64_t)bytes, &host));
    memset(host, 0x3c, (size_t)bytes);
    CUDA_OK(cudaMalloc(&plain, (size_t)bytes));
    double in = gbs(h, bytes, [&](cudaStream_t s) {
        sheaf_fence fence;
        SHEAF_OK_OR_EXIT(sheaf_cuda_blocks_from_host(pool, some.data(), n, host, s, &fence));
    });
    double out = gbs(h, bytes, [&](cudaStream_t s) {
        sheaf_fence fence;
        SHEAF_OK_OR_EXIT(sheaf_cuda_blocks_to_host(pool, some.data(), n, host, s, &fence));
    });
    double plain_in = gbs(h, bytes, [&](cudaStream_t s) {
        CUDA_OK(cudaMemcpyAsync(plain, host, (size_t)bytes, cudaMemcpyHostToDevice, s));
    });
    double plain_out = gbs(h, bytes, [&](cudaStream_t s) {
        CUDA_OK(cudaMemcpyAsync(host, plain, (size_t)bytes, cudaMemcpyDeviceToHost, s));
    });
    printf("blocks of 3.5 MiB from the host %.1f GB/s, %.0f%% of a plain copy's %.1f (mark "
           "85%%)\n",
           in, 100 * in / plain_in, plain_in);
    printf("blocks of 3.5 MiB to the host   %.1f GB/s, %.0f%% of a plain copy's %.1f (mark "
           "85%%)\n",
           out, 100 * out / plain_out, plain_out);
    CUDA_OK(cudaStreamSynchronize(h->stream));
    sheaf_pool_poll(pool);
    for (const sheaf_block &block : all)
        SHEAF_OK_OR_EXIT(sheaf_pool_release(pool, block, SHEAF_OWNER_HOST));
    CUDA_OK(cudaFree(plain));
    sheaf_cuda_host_free(device, host);
}

void bench_pool(harness *h)
{
    if (!harness_wants(h, "pool")) return;
    sheaf_cuda_options o = SHEAF_CUDA_OPTIONS_INIT;
    sheaf_device *device = NULL;
    o.stream = h->stream;
    SHEAF_OK_OR_EXIT(sheaf_cuda_open(&o, &device, NULL));
    sheaf_pool *pool = open_pool(device, 8ull << 30);
    commit_slabs(pool);
    travel(h, device, pool);
    SHEAF_OK_OR_EXIT(sheaf_pool_close(pool));
    SHEAF_OK_OR_EXIT(sheaf_device_close(device));
}
