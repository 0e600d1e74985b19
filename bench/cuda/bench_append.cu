/* bench/cuda/bench_append.cu - what appending a token to each of 128 sequences costs, and how fast
 * tiles are gathered, against bytes that must move. 32 query heads, 8 KV heads, dimension 128, blocks
 * of 32, rows shuffled. */
#include "cuda/harness.cuh"
#include "sheaf/cuda_attn.h"

#define ITEMS   128
#define TOKENS  512 /* of an item */
#define LAYERS  28  /* appended to in turn, each with numbers of its own */
#define NUMBERS (ITEMS * 8 * 128)

typedef struct scene {
    unsigned char *pool;
    uint64_t row_stride, layer_bytes;
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
    s->layer_bytes = 16 * segment;
    s->row_stride = LAYERS * s->layer_bytes;
    CUDA_OK(cudaMalloc(&s->pool, n_rows * s->row_stride));
    CUDA_OK(cudaMemset(s->pool, 0x3c, n_rows * s->row_stride));
    CUDA_OK(cudaMalloc(&s->k, LAYERS * NUMBERS * 4ull));
    CUDA_OK(cudaMalloc(&s->v, LAYERS * NUMBERS * 4ull));
    std::vector<float> numbers(LAYERS * (size_t)NUMBERS);
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
    uint32_t size = dtype == SHEAF_DTYPE_BF16 ? 2 : 4;
    auto append = [&](cudaStream_t stream, uint64_t layer) {
        sheaf_kv_view view = s.views[0];
        sheaf_cuda_source source = SHEAF_CUDA_SOURCE_INIT;
        view.k_offset += layer * s.layer_bytes, view.v_offset += layer * s.layer_bytes;
        source.dtype = dtype;
        source.k = (unsigned char *)s.k + layer * NUMBERS * size;
        source.v = (unsigned char *)s.v + layer * NUMBERS * size;
        SHEAF_OK_OR_EXIT(sheaf_cuda_append(s.plan, &view, &source, stream));
    };
    double bytes = 2.0 * NUMBERS * size + (double)ITEMS * s.layer_bytes / 32;
    char what[64];
    snprintf(what, sizeof what, "append 128 tokens, %s to %s", size == 2 ? "bf16" : "f32",
             sheaf_codec_name(codec));
    double one = harness_time_graph(h, [&](cudaStream_t stream) { append(stream, 0); });
    harness_row(h, what, one, 0, bytes, "graph of one");
    double mean = harness_time_graph(
        h,
        [&](cudaStream_t stream) {
            for (uint64_t layer = 0; layer < LAYERS; layer++) append(stream, layer);
        },
        LAYERS);
    harness_row(h, what, mean, mark, bytes, "mean of 28 layers in a graph");
    scene_close(&s);
}

static void gathers(harness *h, uint32_t codec)
{
    scene s = {};
    scene_open(h, &s, codec);
    uint64_t item_bytes = TOKENS / 32 * s.layer_bytes;
    double bytes = (double)ITEMS * item_bytes;
    unsigned char *out;
    void *k[ITEMS], *v[ITEMS];
    CUDA_OK(cudaMalloc(&out, (size_t)bytes));
    for (int i = 0; i < ITEMS; i++) {
        k[i] = out + i * item_bytes;
        v[i] = (unsigned char *)k[i] + item_bytes / 2;
    }
    double us = harness_time(h, [&](cudaStream_t stream) {
        SHEAF_OK_OR_EXIT(sheaf_cuda_gather(s.plan, &s.views[0], k, v, stream));
    });
    char what[64];
    snprintf(what, sizeof what, "gather 128 x 512, %s", sheaf_codec_name(codec));
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
    empty = harness_time_graph(
        h,
        [&](cudaStream_t s) {
            for (int i = 0; i < LAYERS; i++) idle<<<1, 32, 0, s>>>();
        },
        LAYERS);
    harness_row(h, "an empty kernel", empty, 0, 0, "mean of 28 in a graph");
    appends(h, SHEAF_CODEC_BF16, SHEAF_DTYPE_BF16, 2.5);
    appends(h, SHEAF_CODEC_BF16, SHEAF_DTYPE_F32, 0);
    appends(h, SHEAF_CODEC_INT8, SHEAF_DTYPE_BF16, 0);
    appends(h, SHEAF_CODEC_TURBO4, SHEAF_DTYPE_BF16, 0);
    gathers(h, SHEAF_CODEC_BF16);
    gathers(h, SHEAF_CODEC_INT8);
}
