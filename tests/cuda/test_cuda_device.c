/* cuda/test_cuda_device.c - the device cuda on a GPU: slabs that come and go, fences, copies,
 * copy-on-write, and streams between devices, byte for byte. */
#include "gpu.h"

#include <cuda_runtime_api.h>
#include <time.h>

#include "cache/device_twins.h"

#define MIB (1ull << 20)

/* ---- pools --------------------------------------------------------------------------------- */

/* Blocks of 64 KiB, 32 a slab of 2 MiB. */
static const sheaf_layer plain_layer = {8, 64, 64, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};

static sheaf_pool *open_on(sheaf_device *device, uint64_t budget, uint32_t slab_blocks)
{
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    o.layers = &plain_layer, o.n_layers = 1;
    o.block_tokens = 32, o.slab_blocks = slab_blocks;
    o.budget_bytes = budget;
    o.device = device;
    if (sheaf_pool_open(&o, &pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return pool;
}

static sheaf_pool_stats stats_of(const sheaf_pool *pool)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_stats_read(pool, &stats), SHEAF_OK);
    return stats;
}

static void take(sheaf_pool *pool, uint32_t n, sheaf_block *blocks)
{
    assert_int_equal(sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
}

static void give(sheaf_pool *pool, uint32_t n, const sheaf_block *blocks)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(sheaf_pool_release(pool, blocks[i], SHEAF_OWNER_HOST), SHEAF_OK);
}

/* Keeps a stream busy for a while: `n` copies of 64 MiB onto itself. */
static void occupy(void *memory, int n, cudaStream_t stream)
{
    char *begin = memory;
    for (int i = 0; i < n; i++)
        assert_int_equal(cudaMemcpyAsync(begin + 64 * MIB, begin, 64 * MIB,
                                         cudaMemcpyDeviceToDevice, stream),
                         cudaSuccess);
}

/* ---- cases --------------------------------------------------------------------------------- */

static void opening_without_a_gpu_says_why(void **state)
{
    (void)state;
    sheaf_cuda_options o = SHEAF_CUDA_OPTIONS_INIT;
    sheaf_device *device = NULL;
    sheaf_error err = {0};
    o.ordinal = 4096;
    assert_int_equal(sheaf_cuda_open(&o, &device, &err), SHEAF_E_UNSUPPORTED);
    assert_null(device);
    fprintf(stderr, "%s\n", err.text);
    assert_true(strlen(err.text) > 20);
    assert_int_equal(sheaf_cuda_open(NULL, &device, &err), SHEAF_E_INVALID);
    assert_int_equal(sheaf_cuda_fence(NULL, NULL, NULL), SHEAF_E_INVALID);
    assert_null(sheaf_cuda_stream(NULL));
}

static void sequences_hold_the_same_bytes_as_in_the_machines_memory(void **state)
{
    (void)state;
    static twins t;
    sheaf_device *device = gpu_open(0);
    sheaf_cuda_info info = gpu_info(device);
    fprintf(stderr, "%s, %llu MiB, granularity %llu KiB\n", info.name,
            (unsigned long long)(info.memory_bytes >> 20),
            (unsigned long long)(info.granularity >> 10));
    uint64_t seed = seed_from_environment((uint64_t)time(NULL));
    twins_open(&t, device, seed);
    twins_run(&t, 120);
    twins_close(&t);
    gpu_close(device);
    device = gpu_open(1);
    assert_int_equal(gpu_info(device).whole_range, 1);
    twins_open(&t, device, seed + 1);
    twins_run(&t, 60);
    twins_close(&t);
    gpu_close(device);
}

static void slabs_come_and_go_within_the_budget(void **state)
{
    (void)state;
    static sheaf_block blocks[1024];
    sheaf_device *device = gpu_open(0);
    sheaf_pool *pool = open_on(device, 64 * MIB, 32);
    uint64_t random = seed_from_environment((uint64_t)time(NULL));
    uint32_t n = 0, per_slab = 32;
    assert_true(stats_of(pool).bytes_address >= 64 * MIB);
    for (int step = 0; step < 2000; step++) {
        uint32_t wanted = 1 + random_below(&random, 100);
        if (random_below(&random, 2) == 0 && n + wanted <= 1024) {
            sheaf_status st = sheaf_pool_acquire(pool, &wanted, SHEAF_OWNER_HOST, blocks + n);
            if (st == SHEAF_OK) n += wanted;
            assert_true(st == SHEAF_OK || st == SHEAF_FULL);
        } else {
            for (; wanted != 0 && n != 0; wanted--) {
                uint32_t i = random_below(&random, n);
                give(pool, 1, &blocks[i]);
                blocks[i] = blocks[--n];
            }
        }
        sheaf_pool_stats stats = stats_of(pool);
        assert_true(stats.bytes_reserved + gpu_info(device).bytes_leaving <= 64 * MIB);
        assert_int_equal(stats.blocks_held, n);
        if (step % 100 == 0) assert_int_equal(sheaf_pool_check(pool, NULL), SHEAF_OK);
    }
    give(pool, n, blocks);
    sheaf_pool_stats stats = stats_of(pool);
    sheaf_cuda_info info = gpu_info(device);
    assert_true(stats.slab_releases > 10);
    assert_int_equal(info.slabs_mapped + info.slabs_kept, stats.slab_appends);
    assert_int_equal(stats.bytes_copied_by_growth, 0);
    assert_int_equal(stats.slabs, 1); /* the slack */
    assert_int_equal(per_slab * (64 * MIB / stats.bytes_reserved), 1024);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    assert_int_equal(gpu_info(device).bytes_leaving, 0);
    gpu_close(device);
}

static void memory_is_returned_to_the_card(void **state)
{
    (void)state;
    static sheaf_block blocks[16384];
    size_t before = 0, during = 0, after = 0, all;
    sheaf_device *device = gpu_open(0);
    sheaf_pool *pool = open_on(device, 2048 * MIB, 32);
    assert_int_equal(cudaMemGetInfo(&before, &all), cudaSuccess);
    take(pool, 16384, blocks); /* 1 GiB */
    assert_int_equal(cudaMemGetInfo(&during, &all), cudaSuccess);
    give(pool, 16384, blocks);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(sheaf_pool_poll(pool), 0); /* what has passed goes */
    assert_int_equal(gpu_info(device).bytes_leaving, 0);
    sheaf_fence fence;
    assert_int_equal(sheaf_cuda_fence(device, NULL, &fence), SHEAF_OK);
    assert_int_equal(sheaf_cuda_wait(device, fence, NULL), SHEAF_OK);
    assert_int_equal(sheaf_pool_release_after(pool, blocks[0], SHEAF_OWNER_HOST, fence),
                     SHEAF_E_STALE);
    assert_int_equal(cudaMemGetInfo(&after, &all), cudaSuccess);
    if (!gpu_is_watched()) { /* else several programs share the card at once */
        assert_true(before - during >= 1024 * MIB);
        assert_true(before - after <= 16 * MIB);
    }
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    gpu_close(device);
}

static void a_slab_never_leaves_under_work_that_was_queued_before(void **state)
{
    (void)state;
    static sheaf_block blocks[64];
    sheaf_device *device = gpu_open(0);
    sheaf_pool *pool = open_on(device, 64 * MIB, 32);
    cudaStream_t stream = sheaf_cuda_stream(device);
    void *memory = NULL, *there = NULL;
    unsigned char *pinned = NULL;
    assert_int_equal(cudaMalloc(&memory, 128 * MIB), cudaSuccess);
    assert_int_equal(sheaf_cuda_host_alloc(device, 65536, (void **)&pinned), SHEAF_OK);
    take(pool, 64, blocks);
    assert_int_equal(sheaf_pool_address(pool, blocks[63], &there), SHEAF_OK);
    assert_int_equal(cudaMemsetAsync(there, 0x5a, 65536, stream), cudaSuccess);
    occupy(memory, 200, stream); /* some 5 ms */
    assert_int_equal(cudaMemcpyAsync(pinned, there, 65536, cudaMemcpyDeviceToHost, stream),
                     cudaSuccess);
    give(pool, 64, blocks); /* one slab stays as slack, the other leaves */
    sheaf_cuda_info info = gpu_info(device);
    assert_int_equal(info.bytes_leaving, 2 * MIB);
    assert_int_equal(stats_of(pool).slabs, 1);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    for (int i = 0; i < 65536; i++) assert_int_equal(pinned[i], 0x5a);
    take(pool, 64,
         blocks); /* the same slab again: it had not been unmapped yet, or is mapped anew */
    give(pool, 64, blocks);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    sheaf_cuda_host_free(device, pinned);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    gpu_close(device);
}

static void fences_pass_in_the_order_of_their_streams(void **state)
{
    (void)state;
    sheaf_device *device = gpu_open(0);
    void *memory = NULL;
    cudaStream_t other;
    sheaf_fence slow, quick, more[200];
    assert_int_equal(cudaMalloc(&memory, 128 * MIB), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
    occupy(memory, 400, sheaf_cuda_stream(device));
    assert_int_equal(sheaf_cuda_fence(device, NULL, &slow), SHEAF_OK);
    assert_int_equal(sheaf_cuda_fence(device, other, &quick), SHEAF_OK);
    assert_true(quick.value > slow.value);
    assert_int_equal(sheaf_cuda_wait(device, quick, NULL), SHEAF_OK);
    assert_int_equal(sheaf_cuda_passed(device, quick), SHEAF_OK);
    if (!gpu_is_watched()) assert_int_equal(sheaf_cuda_passed(device, slow), SHEAF_PENDING);
    for (int i = 0; i < 200; i++)
        assert_int_equal(sheaf_cuda_fence(device, i % 2 ? other : NULL, &more[i]), SHEAF_OK);
    assert_int_equal(sheaf_cuda_wait(device, slow, other), SHEAF_OK); /* the stream waits */
    assert_int_equal(sheaf_cuda_wait(device, more[198], NULL), SHEAF_OK);
    assert_int_equal(sheaf_cuda_passed(device, slow), SHEAF_OK);
    sheaf_fence never = {more[199].value + 1};
    assert_int_equal(sheaf_cuda_passed(device, never), SHEAF_E_INVALID);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    gpu_close(device);
}

static void a_block_retires_until_its_fence_has_passed(void **state)
{
    (void)state;
    sheaf_block blocks[32], again[32];
    sheaf_device *device = gpu_open(0);
    sheaf_pool *pool = open_on(device, 2 * MIB, 32); /* one slab */
    void *memory = NULL;
    sheaf_fence fence;
    uint32_t n = 32;
    assert_int_equal(cudaMalloc(&memory, 128 * MIB), cudaSuccess);
    take(pool, 32, blocks);
    occupy(memory, 400, sheaf_cuda_stream(device));
    assert_int_equal(sheaf_cuda_fence(device, NULL, &fence), SHEAF_OK);
    for (int i = 0; i < 32; i++)
        assert_int_equal(sheaf_pool_release_after(pool, blocks[i], SHEAF_OWNER_HOST, fence),
                         SHEAF_OK);
    if (!gpu_is_watched()) {
        assert_int_equal(stats_of(pool).blocks_retiring, 32);
        assert_int_equal(sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, again), SHEAF_FULL);
    }
    assert_int_equal(sheaf_cuda_wait(device, fence, NULL), SHEAF_OK);
    assert_int_equal(sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, again), SHEAF_OK);
    give(pool, 32, again);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    gpu_close(device);
}

/* Blocks to the host, into other blocks, and back: equal; in flight they are held. */
static void blocks_travel_to_the_host_and_back(void **state)
{
    (void)state;
    enum { N = 200, BYTES = 65536 };
    static sheaf_block a[N], b[N];
    sheaf_device *device = gpu_open(0);
    sheaf_pool *pool = open_on(device, 64 * MIB, 32);
    unsigned char *out = NULL, *back = NULL;
    void *memory = NULL;
    uint64_t random = seed_from_environment((uint64_t)time(NULL));
    sheaf_fence fence;
    assert_int_equal(sheaf_cuda_host_alloc(device, N * BYTES, (void **)&out), SHEAF_OK);
    assert_int_equal(sheaf_cuda_host_alloc(device, N * BYTES, (void **)&back), SHEAF_OK);
    for (uint64_t i = 0; i < N * BYTES / 8; i++) ((uint64_t *)out)[i] = random_next(&random);
    memset(back, 0, N * BYTES);
    take(pool, N, a);
    take(pool, N, b);
    for (uint32_t i = 0; i < N; i += 1 + i % 3) { /* some runs, some single rows */
        uint32_t k = random_below(&random, N);
        sheaf_block swap = a[i];
        a[i] = a[k], a[k] = swap;
    }
    assert_int_equal(cudaMalloc(&memory, 128 * MIB), cudaSuccess);
    occupy(memory, 200, sheaf_cuda_stream(device));
    assert_int_equal(sheaf_cuda_blocks_from_host(pool, a, N, out, NULL, &fence), SHEAF_OK);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(sheaf_pool_copy(pool, a[i], b[i]), SHEAF_OK);
    assert_int_equal(sheaf_cuda_blocks_to_host(pool, b, N, back, NULL, &fence), SHEAF_OK);
    assert_int_equal(stats_of(pool).owners[SHEAF_OWNER_IO], 2 * N);
    give(pool, N, a); /* the owner leaves while they are on their way */
    give(pool, N, b);
    assert_int_equal(stats_of(pool).blocks_held, 2 * N);
    if (!gpu_is_watched()) assert_int_equal(sheaf_pool_close(pool), SHEAF_E_BUSY);
    assert_int_equal(sheaf_cuda_wait(device, fence, NULL), SHEAF_OK);
    assert_memory_equal(out, back, N * BYTES);
    assert_int_equal(sheaf_pool_poll(pool), 0);
    assert_int_equal(stats_of(pool).blocks_held, 0);
    assert_int_equal(sheaf_cuda_blocks_to_host(pool, a, 1, back, NULL, &fence), SHEAF_E_STALE);
    assert_int_equal(sheaf_cuda_blocks_to_host(NULL, a, 1, back, NULL, &fence),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    sheaf_cuda_host_free(device, out);
    sheaf_cuda_host_free(device, back);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    gpu_close(device);
}

static void a_budget_larger_than_the_card_ends_with_full(void **state)
{
    (void)state;
    if (gpu_is_watched())
        TESTING_SKIP(
            "a sanitizer counts what the driver refuses, on purpose here, as an error");
    sheaf_device *device = gpu_open(0);
    uint64_t card = gpu_info(device).memory_bytes;
    sheaf_pool *pool = open_on(device, 2 * card, 32768);
    uint32_t n = (uint32_t)(card / 65536) + 1024; /* more than the card has */
    sheaf_block *blocks = malloc(n * sizeof *blocks);
    assert_non_null(blocks);
    assert_int_equal(sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, blocks), SHEAF_FULL);
    sheaf_pool_stats stats = stats_of(pool);
    assert_int_equal(stats.slab_failures, 1);
    assert_int_equal(stats.slabs, 0);
    n = 64; /* and the pool goes on */
    assert_int_equal(sheaf_pool_acquire(pool, &n, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    give(pool, n, blocks);
    free(blocks);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    gpu_close(device);
}

static void one_gpu_serves_many_pools_and_is_busy_while_they_are_open(void **state)
{
    (void)state;
    sheaf_device *device = gpu_open(0);
    sheaf_pool *a = open_on(device, 16 * MIB, 32), *b = open_on(device, 16 * MIB, 32);
    sheaf_block block;
    take(a, 1, &block);
    assert_int_equal(sheaf_device_close(device), SHEAF_E_BUSY);
    give(a, 1, &block);
    assert_int_equal(sheaf_pool_close(a), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(b), SHEAF_OK);
    gpu_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_without_a_gpu_says_why),
        cmocka_unit_test(sequences_hold_the_same_bytes_as_in_the_machines_memory),
        cmocka_unit_test(slabs_come_and_go_within_the_budget),
        cmocka_unit_test(memory_is_returned_to_the_card),
        cmocka_unit_test(a_slab_never_leaves_under_work_that_was_queued_before),
        cmocka_unit_test(fences_pass_in_the_order_of_their_streams),
        cmocka_unit_test(a_block_retires_until_its_fence_has_passed),
        cmocka_unit_test(blocks_travel_to_the_host_and_back),
        cmocka_unit_test(a_budget_larger_than_the_card_ends_with_full),
        cmocka_unit_test(one_gpu_serves_many_pools_and_is_busy_while_they_are_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
