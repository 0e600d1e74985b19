/* bench/cuda/bench_append.cu - what appending a token to each of 128 sequences costs, and how fast
 * tiles are gathered, against bytes that must move. 32 query heads, 8 KV heads, dimension 128, blocks
 * of 32, rows shuffled. */
#include "cuda/harness.cuh"
#include "sheaf/cuda_attn.h"

#define ITEMS  128
#define TOKENS 4096 /* of an item */
#define LAYERS 28   /* appended to in turn, where one launch is a mean of many */

typedef struct scene {
    unsigned char *pool;
    uint64_t row_stride;
    std::vector<uint32_t> rows;
    std::vector<sheaf_kv_view> views;
    std::vector<sheaf_attn_item> items;
    sheaf_cuda_plan *plan;
    void *k, *v;
} scene;

static void scene_open(harness *h, scene *s, uint32_t codec)
{
    uint64_t segment = 0;
    uint32_t blocks = TOKENS / 32, n_rows = ITEMS * blocks;
    SHEAF_OK_OR_EXIT(sheaf_codec_segment_bytes(codec, 32, 128, &segment));
    s->row_stride = 16 * segment;
    CUDA_OK(cudaMalloc(&s->pool, n_rows * s->row_stride));
    CUDA_OK(cudaMemset(s->pool, 0x3c, n_rows * s->row_stride));
    CUDA_OK(cudaMalloc(&s->k, ITEMS * 8 * 128 * 4));
    CUDA_OK(cudaMalloc(&s->v, ITEMS * 8 * 128 * 4));
    std::vector<float> numbers(ITEMS * 8 * 128);
    for (size_t i = 0; i < numbers.size(); i++)
        numbers[i] = (float)((i * 2654435761u) >> 8 & 0xffff) / 32768.0f - 1.0f;
    CUDA_OK(cudaMemcpy(s->k, numbers.data(), numbers.size() * 4, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(s->v, numbers.data(), numbers.size() * 4, cudaMemcpyHostToDevice));
    s->rows.resize(n_rows);
    for (uint32_t i = 0; i < n_rows; i++) s->rows[i] = i;
    for (uint32_t i = n_rows - 1; i > 0; i--) {
        uint32_t k = (uint32_t)((i * 2862933555777941757ull + 3037000493ull) >> 33) % (i + 1);
        std::swap(s->rows[i], s->rows[k]);
    }
    for (uint32_t i = 0; i < ITEMS; i++) {
        sheaf_kv_view view = {};
        view.base = s->pool;
        view.rows = &s->rows[(size_t)i * blocks];
        view.row_stride_k = view.row_stride_v = s->row_stride;
        view.v_offset = 8 * segment;
        view.k_head_stride = view.v_head_stride = segment;
        view.n_rows = blocks, view.block_tokens = 32, view.n_tokens = TOKENS - i % 32;
        view.n_kv_heads = 8, view.key_dim = view.value_dim = 128;
        view.codec_k = view.codec_v = codec;
        s->views.push_back(view);
        sheaf_attn_item item = {};
        item.n_queries = 1, item.first_pos = view.n_tokens - 1, item.n_tokens = view.n_tokens;
        s->items.push_back(item);
    }
    sheaf_attn_options options = SHEAF_ATTN_OPTIONS_INIT;
    sheaf_cuda_attn_options cuda = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    options.n_q_heads = 32, options.n_kv_heads = 8;
    options.key_dim = options.value_dim = 128;
    cuda.io_dtype = SHEAF_DTYPE_BF16;
    SHEAF_OK_OR_EXIT(sheaf_cuda_plan_create(&options, &cuda, &s->plan, NULL));
    SHEAF_OK_OR_EXIT(
        sheaf_cuda_plan_batch(s->plan, s->items.data(), s->views.data(), ITEMS, h->stream));
}

static void scene_close(scene *s)
{
    sheaf_cuda_plan_destroy(s->plan);
    CUDA_OK(cudaFree(s->pool));
    CUDA_OK(cudaFree(s->k));
    CUDA_OK(cudaFree(s->v));
}

/* Nothing: what a launch in a graph costs. */
__global__ void idle() {}

static void appends(harness *h, uint32_t codec, uint32_t dtype, double mark)
{
    scene s = {};
    scene_open(h, &s, codec);
    sheaf_cuda_source source = SHEAF_CUDA_SOURCE_INIT;
    source.dtype = dtype, source.k = s.k, source.v = s.v;
    auto append = [&](cudaStream_t stream) {
        SHEAF_OK_OR_EXIT(sheaf_cuda_append(s.plan, &s.views[0], &source, stream));
    };
    const char *from = dtype == SHEAF_DTYPE_BF16 ? "bf16" : "f32";
    double bytes = 2.0 * ITEMS * 8 * (128 * (dtype == SHEAF_DTYPE_BF16 ? 2 : 4)) +
                   (double)ITEMS * s.row_stride / 32;
    char what[64];
    snprintf(what, sizeof what, "append 128 tokens, %s to %s", from, sheaf_codec_name(codec));
    harness_row(h, what, harness_time_graph(h, append), mark, bytes, "graph of one");
    double mean = harness_time_graph(
        h,
        [&](cudaStream_t stream) {
            for (int i = 0; i < LAYERS; i++) append(stream);
        },
        LAYERS);
    harness_row(h, what, mean, 0, bytes, "mean of 28 in a graph, warm");
    scene_close(&s);
}

static void gathers(harness *h, uint32_t codec)
{
    scene s = {};
    scene_open(h, &s, codec);
    double bytes = (double)ITEMS * (TOKENS / 32) * s.row_stride;
    unsigned char *out;
    void *k[ITEMS], *v[ITEMS];
    CUDA_OK(cudaMalloc(&out, (size_t)bytes));
    for (int i = 0; i < ITEMS; i++) {
        k[i] = out + (size_t)i * (TOKENS / 32) * s.row_stride;
        v[i] = (unsigned char *)k[i] + (TOKENS / 32) * s.row_stride / 2;
    }
    double us = harness_time(h, [&](cudaStream_t stream) {
        SHEAF_OK_OR_EXIT(sheaf_cuda_gather(s.plan, &s.views[0], k, v, stream));
    });
    char what[64];
    snprintf(what, sizeof what, "gather 128 x 4k, %s", sheaf_codec_name(codec));
    harness_row(h, what, us, 0, 2 * bytes, "bytes read and written");
    printf("  %.1f%% of a copy's speed\n", 100 * 2 * bytes / us * 1e-6 / h->copy_tbs);
    CUDA_OK(cudaFree(out));
    scene_close(&s);
}

void bench_append(harness *h)
{
    if (!harness_wants(h, "append")) return;
    double empty = harness_time_graph(h, [&](cudaStream_t s) { idle<<<1, 32, 0, s>>>(); });
    harness_row(h, "an empty kernel", empty, 0, 0, "graph of one");
    appends(h, SHEAF_CODEC_BF16, SHEAF_DTYPE_BF16, 2.5);
    appends(h, SHEAF_CODEC_BF16, SHEAF_DTYPE_F32, 0);
    appends(h, SHEAF_CODEC_INT8, SHEAF_DTYPE_BF16, 0);
    appends(h, SHEAF_CODEC_TURBO4, SHEAF_DTYPE_BF16, 0);
    gathers(h, SHEAF_CODEC_BF16);
    gathers(h, SHEAF_CODEC_INT8);
}
