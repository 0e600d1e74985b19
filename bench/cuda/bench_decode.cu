/* bench/cuda/bench_decode.cu - decode against a kernel that only reads the same bytes.
 *
 * 32 query heads, 8 KV heads, dimension 128, blocks of 32, rows shuffled; a pool of several layers,
 * of which one is read. The floor kernel reads the same tiles by plain 16-byte loads.
 */
#include <chrono>

#include "attn/cuda/plan.h"
#include "cuda/harness.cuh"
#include "sheaf/sheaf.h"

namespace
{

constexpr uint32_t HEADS = 8, Q_HEADS = 32, DIM = 128, BLOCK = 32;

/* Numbers that every codec takes for finite ones: bytes of small bf16 and f16 numbers, scales of 1. */
__global__ void fill(unsigned char *to, uint64_t n_rows, uint64_t stride, uint64_t segment,
                     uint32_t codec)
{
    const uint64_t words = n_rows * stride / 4;
    const uint64_t codes = codec == SHEAF_CODEC_INT8 ? BLOCK * DIM : BLOCK * DIM / 2;
    for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < words; i += gridDim.x * 256ull) {
        uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(i >> 9);
        x ^= x >> 13, x *= 0x85ebca6bu, x ^= x >> 16;
        const uint64_t inside = (4 * i) % stride % segment;
        if (codec >= SHEAF_CODEC_INT8) {
            if (inside >= codes) x = 0x3c800000u;
        } else {
            x = (x & 0x807f807fu) | 0x3f003f00u; /* +-0.5 to 1.99 */
        }
        reinterpret_cast<uint32_t *>(to)[i] = x;
    }
}

/* One block a row's tile of K or V; the next one starts early, as those of the library do. */
__global__ void __launch_bounds__(256)
    floor_read(const unsigned char *base, const uint32_t *rows, uint64_t stride, uint64_t tile,
               uint32_t *sink)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const uint4 *from = reinterpret_cast<const uint4 *>(base + rows[blockIdx.x / 2] * stride +
                                                        blockIdx.x % 2 * tile);
    const uint32_t n = (uint32_t)(tile / 16);
    uint32_t sum = 0, i = threadIdx.x;
    for (; i + 7 * 256 < n; i += 8 * 256) {
        uint4 x[8];
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = __ldg(from + i + 256 * k);
#pragma unroll
        for (int k = 0; k < 8; k++) sum ^= x[k].x ^ x[k].y ^ x[k].z ^ x[k].w;
    }
    for (; i < n; i += 256) sum ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (sum == 0x12345678u) *sink = sum;
}

struct setup {
    uint32_t codec, n_items, n_tokens, shared, n_layers;
    uint64_t segment, tile, stride;
    unsigned char *base;
    uint32_t *gpu_rows; /* distinct rows, for the floor */
    uint32_t n_distinct;
    std::vector<uint32_t> rows;
    std::vector<sheaf_attn_item> items;
    std::vector<sheaf_kv_view> views;
    void *q, *out;
    sheaf_cuda_plan *plan;
};

double bytes_of(const setup &s)
{
    return 2.0 * s.n_distinct * s.tile;
}

void open_setup(setup &s, uint32_t codec, uint32_t n_items, uint32_t n_tokens, uint32_t shared,
                uint32_t n_layers, uint32_t prefix_min)
{
    s.codec = codec, s.n_items = n_items, s.n_tokens = n_tokens, s.shared = shared;
    s.n_layers = n_layers;
    SHEAF_OK_OR_EXIT(sheaf_codec_segment_bytes(codec, BLOCK, DIM, &s.segment));
    s.tile = HEADS * s.segment;
    s.stride = 2 * s.tile * n_layers;
    const uint32_t blocks = (n_tokens + BLOCK - 1) / BLOCK, common = shared / BLOCK;
    s.n_distinct = common + n_items * (blocks - common);
    std::vector<uint32_t> order(s.n_distinct);
    for (uint32_t i = 0; i < s.n_distinct; i++) order[i] = i;
    uint64_t x = 88172645463325252ull;
    for (uint32_t i = s.n_distinct; i > 1; i--) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        std::swap(order[i - 1], order[x % i]);
    }
    CUDA_OK(cudaMalloc(&s.base, s.n_distinct * s.stride));
    fill<<<2048, 256>>>(s.base, s.n_distinct, s.stride, s.segment, codec);
    CUDA_OK(cudaMalloc(&s.gpu_rows, s.n_distinct * 4));
    CUDA_OK(cudaMemcpy(s.gpu_rows, order.data(), s.n_distinct * 4, cudaMemcpyHostToDevice));
    s.rows.resize((size_t)n_items * blocks);
    uint32_t at = common;
    for (uint32_t i = 0; i < n_items; i++)
        for (uint32_t b = 0; b < blocks; b++)
            s.rows[(size_t)i * blocks + b] = b < common ? order[b] : order[at++];
    s.items.resize(n_items), s.views.resize(n_items);
    for (uint32_t i = 0; i < n_items; i++) {
        s.items[i] = sheaf_attn_item{1, n_tokens - 1, n_tokens, 0};
        sheaf_kv_view v = {};
        v.base = s.base, v.rows = &s.rows[(size_t)i * blocks];
        v.row_stride_k = v.row_stride_v = s.stride, v.v_offset = s.tile;
        v.k_head_stride = v.v_head_stride = s.segment;
        v.n_rows = blocks, v.block_tokens = BLOCK, v.n_tokens = n_tokens;
        v.n_kv_heads = HEADS, v.key_dim = v.value_dim = DIM, v.codec_k = v.codec_v = codec;
        s.views[i] = v;
    }
    const size_t io = (size_t)n_items * Q_HEADS * DIM * 2;
    CUDA_OK(cudaMalloc(&s.q, io));
    CUDA_OK(cudaMalloc(&s.out, io));
    fill<<<64, 256>>>(static_cast<unsigned char *>(s.q), 1, io, io, SHEAF_CODEC_BF16);
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = Q_HEADS, o.n_kv_heads = HEADS, o.key_dim = o.value_dim = DIM;
    sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    c.io_dtype = SHEAF_DTYPE_BF16, c.prefix_min = prefix_min;
    SHEAF_OK_OR_EXIT(sheaf_cuda_plan_create(&o, &c, &s.plan, nullptr));
    CUDA_OK(cudaDeviceSynchronize());
}

void close_setup(setup &s)
{
    CUDA_OK(cudaDeviceSynchronize());
    sheaf_cuda_plan_destroy(s.plan);
    CUDA_OK(cudaFree(s.base));
    CUDA_OK(cudaFree(s.gpu_rows));
    CUDA_OK(cudaFree(s.q));
    CUDA_OK(cudaFree(s.out));
}

void plan_with(harness *h, setup &s, const sheaf__cuda_tuning &t)
{
    sheaf__cuda_plan_tune(s.plan, &t);
    SHEAF_OK_OR_EXIT(
        sheaf_cuda_plan_batch(s.plan, s.items.data(), s.views.data(), s.n_items, h->stream));
}

/* Microseconds of one layer: a graph that visits every layer of the pool, which of several no cache
 * holds. */
double time_run(harness *h, setup &s)
{
    return harness_time_graph(
        h,
        [&](cudaStream_t stream) {
            for (uint32_t layer = 0; layer < s.n_layers; layer++) {
                sheaf_kv_view v = s.views[0];
                v.k_offset += layer * 2 * s.tile, v.v_offset += layer * 2 * s.tile;
                SHEAF_OK_OR_EXIT(sheaf_cuda_run(s.plan, &v, s.q, s.out, stream, nullptr));
            }
        },
        (int)s.n_layers);
}

void launch_floor(const setup &s, const unsigned char *layer, cudaStream_t stream)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2 * s.n_distinct), config.blockDim = dim3(256);
    config.stream = stream, config.attrs = &early, config.numAttrs = 1;
    CUDA_OK(cudaLaunchKernelEx(&config, floor_read, layer,
                               static_cast<const uint32_t *>(s.gpu_rows), s.stride, s.tile,
                               static_cast<uint32_t *>(s.out)));
}

double time_floor(harness *h, setup &s)
{
    return harness_time_graph(
        h,
        [&](cudaStream_t stream) {
            for (uint32_t layer = 0; layer < s.n_layers; layer++)
                launch_floor(s, s.base + layer * 2 * s.tile, stream);
        },
        (int)s.n_layers);
}

void row(harness *h, const char *what, double us, double mark, setup &s, double floor,
         const char *cut)
{
    char note[128];
    snprintf(note, sizeof note, "%5.1f%% of floor  %s", 100 * floor / us, cut);
    harness_row(h, what, us, mark, bytes_of(s), note);
}

/* A run of the planned step, with what the plan made of it. */
void row_of_plan(harness *h, const char *what, double mark, setup &s, double floor)
{
    const sheaf__cuda_layout *l = &s.plan->step.layout;
    char cut[96];
    snprintf(cut, sizeof cut, "%u units, %u slots a warp%s", l->n_units, l->slots,
             l->overlap ? "" : ", no overlap");
    row(h, what, time_run(h, s), mark, s, floor, cut);
}

/* The choice of the plan, then the cuts given by hand, of which nothing is asked. mark: microseconds, or
 * a share of the floor's speed. */
void compare(harness *h, const char *what, uint32_t codec, uint32_t n_items, uint32_t n_tokens,
             uint32_t n_layers, double mark, const std::vector<sheaf__cuda_tuning> &cuts)
{
    setup s = {};
    open_setup(s, codec, n_items, n_tokens, 0, n_layers, 1u << 30);
    const double floor = time_floor(h, s);
    row(h, what, floor, 0, s, floor, "floor kernel");
    plan_with(h, s, sheaf__cuda_tuning{});
    row_of_plan(h, what, mark > 1 ? mark : floor / mark, s, floor);
    for (const sheaf__cuda_tuning &t : cuts) {
        plan_with(h, s, t);
        row_of_plan(h, what, 0, s, floor);
    }
    close_setup(s);
}

void shared_prefix(harness *h)
{
    setup s = {};
    open_setup(s, SHEAF_CODEC_BF16, 64, 16384 + 256, 16384, 28, 0);
    const double floor = time_floor(h, s);
    plan_with(h, s, sheaf__cuda_tuning{});
    row(h, "64 sharing 16k, 256 own", floor, 0, s, floor, "floor kernel");
    row_of_plan(h, "64 sharing 16k, 256 own", 70, s, floor);
    close_setup(s);
}

/* Microseconds of planning on the host, median of many. */
void plan_time(harness *h)
{
    setup s = {};
    open_setup(s, SHEAF_CODEC_BF16, 64, 4096, 0, 1, 0);
    std::vector<float> us;
    for (int i = 0; i < 300; i++) {
        auto begin = std::chrono::steady_clock::now();
        plan_with(h, s, sheaf__cuda_tuning{});
        auto end = std::chrono::steady_clock::now();
        us.push_back(std::chrono::duration<float, std::micro>(end - begin).count());
        CUDA_OK(cudaStreamSynchronize(h->stream));
    }
    harness_row(h, "plan on the host, 64 x 4k", harness_median(us), 5.0, 0, "with its upload");
    close_setup(s);
}

} // namespace

void bench_decode(harness *h)
{
    if (!harness_wants(h, "decode")) return;
    const uint32_t b = SHEAF_CODEC_BF16;
    const sheaf__cuda_tuning chunks = {1, 0, 0, 0}, spans = {4, 0, 0, 0}, two = {0, 2, 0, 0},
                             after = {0, 0, 2, 0};
    compare(h, "decode 1 x 4k bf16", b, 1, 4096, 28, 9, {after, spans, two});
    compare(h, "decode 8 x 4k bf16", b, 8, 4096, 28, 36, {after, chunks, two});
    compare(h, "decode 1 x 32k bf16", b, 1, 32768, 28, 36, {chunks, two});
    compare(h, "decode 32 x 4k bf16", b, 32, 4096, 28, 125, {two});
    compare(h, "decode 64 x 4k bf16, one layer", b, 64, 4096, 1, 0.96, {});
    compare(h, "decode 64 x 4k bf16", b, 64, 4096, 28, 0.96, {chunks, two});
    compare(h, "decode 128 x 4k bf16", b, 128, 4096, 1, 0.97, {});
    compare(h, "decode 32 x 16k bf16", b, 32, 16384, 1, 0.97, {});
    compare(h, "decode 64 x 4k int8", SHEAF_CODEC_INT8, 64, 4096, 28, 135, {chunks});
    compare(h, "decode 64 x 4k turbo4", SHEAF_CODEC_TURBO4, 64, 4096, 28, 90, {chunks});
    shared_prefix(h);
    plan_time(h);
}
