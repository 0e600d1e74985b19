/* bench/cuda/bench_prefill.cu - how many TFLOP/s does prefill reach?
 *
 * 32 query heads, 8 KV heads, dimension 128, bf16, blocks of 32, rows shuffled. FLOPs are those of
 * what is seen: 4 x visible x dim x query heads. Every kernel that does the shape gets a row.
 */
#include "../../tests/cuda/prefill_rig.cuh"
#include "harness.cuh"

static __global__ void fill_numbers(uint32_t *words, uint64_t n, uint32_t codec)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += gridDim.x * (uint64_t)blockDim.x) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        float x = (float)(z & 0xffff) / 32768.f - 1,
              y = (float)(z >> 16 & 0xffff) / 32768.f - 1;
        if (codec == SHEAF_CODEC_BF16) {
            __nv_bfloat162 b = __floats2bfloat162_rn(2 * x, 2 * y);
            memcpy(words + i, &b, 4);
        } else if (codec == SHEAF_CODEC_F16) {
            __half2 h = __floats2half2_rn(2 * x, 2 * y);
            memcpy(words + i, &h, 4);
        } else { /* any bytes are codes; read as a scale they are small numbers */
            words[i] = (uint32_t)(z >> 32 & 0x007fffff) | 0x3c000000;
        }
    }
}

/* n_items sequences of n_before written positions and n_queries new ones. */
static void bench_shape(harness *h, const rig_case &c, uint32_t n_items, uint32_t n_before,
                        uint32_t n_queries, const char *what, double mark_tflops)
{
    uint32_t heads = c.kv_heads * c.group, n_tokens = n_before + n_queries;
    uint32_t n_blocks = (n_tokens + c.block_tokens - 1) / c.block_tokens;
    uint64_t bytes = (uint64_t)n_items * n_blocks * rig_row_stride(c);
    uint64_t numbers = (uint64_t)n_items * n_queries * heads * c.dim;
    uint32_t *pool, *q, *out;
    CUDA_OK(cudaMalloc((void **)&pool, bytes));
    CUDA_OK(cudaMalloc((void **)&q, numbers * 2));
    CUDA_OK(cudaMalloc((void **)&out, numbers * 2));
    fill_numbers<<<1024, 256, 0, h->stream>>>(pool, bytes / 4, c.codec);
    fill_numbers<<<1024, 256, 0, h->stream>>>(q, numbers / 2, SHEAF_CODEC_BF16);

    std::vector<uint32_t> rows(n_items * n_blocks);
    rig_random random = {1};
    for (uint32_t i = 0; i < rows.size(); i++) {
        uint32_t at = random.below(i + 1);
        rows[i] = rows[at];
        rows[at] = i;
    }
    std::vector<sheaf__cuda_prefill_item> items(n_items);
    memset(items.data(), 0, n_items * sizeof items[0]);
    for (uint32_t i = 0; i < n_items; i++) {
        items[i].first_query = (uint64_t)i * n_queries;
        items[i].rows_at = (uint64_t)i * n_blocks;
        items[i].n_queries = n_queries;
        items[i].first_pos = n_before;
        items[i].n_tokens = n_tokens;
        items[i].n_rows = n_blocks;
    }
    double visible = (double)n_queries * n_before + 0.5 * n_queries * (n_queries + 1.0);
    double flops = 4 * visible * c.dim * heads * n_items;
    uint32_t *device_rows = rig_upload(rows);
    static const char *const names[] = {"", "mma", "wgmma", "ping-pong"};
    for (uint32_t kernel = 1; kernel <= 3; kernel++) {
        sheaf__cuda_prefill a;
        memset(&a, 0, sizeof a);
        a.view = rig_view(c, (unsigned char *)pool);
        uint32_t tile_rows = sheaf__cuda_prefill_rows(&a.view, c.io, kernel);
        if (tile_rows == 0) continue;
        std::vector<uint32_t> tiles(
            sheaf__cuda_prefill_tiles(items.data(), n_items, c.group, tile_rows, NULL));
        a.n_tiles =
            sheaf__cuda_prefill_tiles(items.data(), n_items, c.group, tile_rows, tiles.data());
        sheaf__cuda_prefill_item *device_items = rig_upload(items);
        uint32_t *device_tiles = rig_upload(tiles);
        a.items = device_items, a.tile_item = device_tiles, a.rows = device_rows;
        a.q = q, a.out = out, a.n_q_heads = heads, a.io_dtype = c.io;
        a.scale = 1 / sqrtf((float)c.dim), a.kernel = kernel;
        double us = harness_time(
            h, [&](cudaStream_t s) { SHEAF_OK_OR_EXIT(sheaf__cuda_prefill_run(&a, s)); });
        char line[96], note[64];
        snprintf(line, sizeof line, "prefill %s, %s", what, names[kernel]);
        double tflops = flops / us * 1e-6;
        snprintf(note, sizeof note, "%.0f TFLOP/s, %.2f of the matrix ceiling", tflops,
                 h->mma_tflops > 0 ? tflops / h->mma_tflops : 0);
        harness_row(h, line, us, mark_tflops > 0 ? flops / mark_tflops * 1e-6 : 0, 0, note);
        cudaFree(device_items), cudaFree(device_tiles);
    }
    cudaFree(pool), cudaFree(q), cudaFree(out), cudaFree(device_rows);
}

void bench_prefill(harness *h)
{
    if (!harness_wants(h, "prefill")) return;
    rig_case c;
    memset(&c, 0, sizeof c);
    c.dim = 128, c.codec = SHEAF_CODEC_BF16, c.io = SHEAF_DTYPE_BF16;
    c.block_tokens = 32, c.kv_heads = 8, c.group = 4;
    bench_shape(h, c, 4, 4096, 512, "4 x 512 on 4k", 550);
    bench_shape(h, c, 4, 0, 2048, "4 x 2048 on 0", 0);
    bench_shape(h, c, 1, 16384, 2048, "1 x 2048 on 16k", 0);
    c.codec = SHEAF_CODEC_F16;
    bench_shape(h, c, 4, 4096, 512, "f16, 4 x 512 on 4k", 0);
    c.codec = SHEAF_CODEC_INT8;
    bench_shape(h, c, 4, 4096, 512, "int8, 4 x 512 on 4k", 0);
    c.codec = SHEAF_CODEC_TURBO4;
    bench_shape(h, c, 4, 4096, 512, "turbo4, 4 x 512 on 4k", 0);
    c.codec = SHEAF_CODEC_BF16, c.dim = 64;
    bench_shape(h, c, 4, 4096, 512, "dim 64, 4 x 512 on 4k", 0);
    c.dim = 256;
    bench_shape(h, c, 4, 4096, 512, "dim 256, 4 x 512 on 4k", 0);
}
