/* cuda/decode_world.h - sequences of random numbers in blocks on both sides, for tests of decode.
 *
 * Rows lie scattered over a range of memory as of many slabs. Slots that no position has been written
 * to hold NaN, and so do rows that nobody owns. A sequence's numbers are a function of its seed, the
 * position and the head; the first `shared` positions take another seed, the same for all.
 */
#ifndef SHEAF_TESTS_CUDA_DECODE_WORLD_H
#define SHEAF_TESTS_CUDA_DECODE_WORLD_H

#include "testing.h"

#include <cuda_runtime_api.h>
#include <math.h>

#include "attn/cuda/plan.h"
#include "base/half.h"
#include "sheaf/sheaf.h"

#define MOST_ITEMS 80
#define MOST_ROWS  16384

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* About normal: the sum of four uniform numbers. */
static inline float normal_at(uint64_t seed)
{
    uint64_t x = mix(seed);
    int sum =
        (int)(x & 0xffff) + (int)(x >> 16 & 0xffff) + (int)(x >> 32 & 0xffff) + (int)(x >> 48);
    return (float)(sum - 131070) / 37837.0f;
}

typedef struct world {
    uint32_t codec, dim, n_q_heads, n_kv_heads, block_tokens, n_rows;
    uint64_t seed, segment, stride, v_offset;
    unsigned char *host, *gpu;
    uint32_t taken;
    uint32_t order[MOST_ROWS]; /* rows in the order in which they are taken */
    uint32_t rows[MOST_ROWS];  /* of all items */
    uint32_t n_items, row_at;
    uint32_t
        spread; /* V is smaller by up to that many powers of two, each position for itself */
    uint32_t lost_value; /* 0, or one more than the position whose V of head 0 is NaN */
    uint32_t lost_query; /* 0, or one more than the item whose query has a NaN in head 0 */
    sheaf_attn_item items[MOST_ITEMS];
    sheaf_kv_view views[MOST_ITEMS]; /* base: the GPU's */
} world;

static inline void gpu_ok(cudaError_t error)
{
    if (error != cudaSuccess) fail_msg("%s", cudaGetErrorString(error));
}

static inline void shuffle(world *w, uint64_t seed)
{
    for (uint32_t i = 0; i < w->n_rows; i++) w->order[i] = i;
    for (uint32_t i = w->n_rows; i > 1; i--) {
        uint32_t j = (uint32_t)(mix(seed + i) % i), r = w->order[i - 1];
        w->order[i - 1] = w->order[j];
        w->order[j] = r;
    }
}

static inline world *world_make(uint32_t codec, uint32_t dim, uint32_t n_q_heads,
                                uint32_t n_kv_heads, uint32_t block_tokens, uint32_t n_rows,
                                uint64_t seed)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_true(n_rows <= MOST_ROWS);
    *w = (world){.codec = codec,
                 .dim = dim,
                 .n_q_heads = n_q_heads,
                 .n_kv_heads = n_kv_heads,
                 .block_tokens = block_tokens,
                 .n_rows = n_rows,
                 .seed = seed};
    assert_int_equal(sheaf_codec_segment_bytes(codec, block_tokens, dim, &w->segment),
                     SHEAF_OK);
    w->v_offset = (w->segment * n_kv_heads + 63) / 64 * 64;
    w->stride = 2 * w->v_offset + 192; /* as if another layer lay between */
    w->host = malloc(n_rows * w->stride);
    assert_non_null(w->host);
    memset(w->host, 0xff, n_rows * w->stride); /* NaN in every codec */
    gpu_ok(cudaMalloc((void **)&w->gpu, n_rows * w->stride));
    shuffle(w, seed);
    return w;
}

static inline void world_free(world *w)
{
    gpu_ok(cudaFree(w->gpu));
    free(w->host);
    free(w);
}

static inline void write_block(world *w, uint32_t row, uint32_t block, uint32_t n_tokens,
                               uint64_t seed)
{
    float x[256];
    for (uint32_t is_value = 0; is_value < 2; is_value++)
        for (uint32_t head = 0; head < w->n_kv_heads; head++)
            for (uint32_t slot = 0; slot < w->block_tokens; slot++) {
                uint64_t pos = (uint64_t)block * w->block_tokens + slot;
                if (pos >= n_tokens) break;
                for (uint32_t d = 0; d < w->dim; d++)
                    x[d] = normal_at(seed ^ (pos << 24) ^ (head << 12) ^ (is_value << 10) ^ d);
                if (is_value && w->spread != 0)
                    for (uint32_t d = 0; d < w->dim; d++)
                        x[d] = ldexpf(x[d], -(int)(mix(seed + pos) % w->spread));
                if (is_value && head == 0 && pos + 1 == w->lost_value)
                    for (uint32_t d = 0; d < w->dim; d++) x[d] = NAN;
                unsigned char *to =
                    w->host + row * w->stride + is_value * w->v_offset + head * w->segment;
                assert_int_equal(sheaf_codec_encode(w->codec, to, w->block_tokens, w->dim, slot,
                                                    1, SHEAF_DTYPE_F32, x, w->dim),
                                 SHEAF_OK);
            }
}

/* Adds a sequence of n positions whose first `shared` whole blocks are those of item 0. first_block
 * blocks are no longer held. */
static inline void world_add(world *w, uint32_t n, uint32_t shared, uint32_t first_block)
{
    uint32_t i = w->n_items++, blocks = (n + w->block_tokens - 1) / w->block_tokens;
    assert_true(i < MOST_ITEMS);
    uint32_t *rows = &w->rows[w->row_at];
    for (uint32_t b = first_block; b < blocks; b++) {
        int common = i > 0 && (b + 1) * w->block_tokens <= shared;
        uint32_t row = common ? w->views[0].rows[b] : w->order[w->taken++];
        assert_true(w->taken < w->n_rows && w->row_at < MOST_ROWS);
        if (!common)
            write_block(w, row, b, n,
                        mix(w->seed + 77 + ((b + 1) * w->block_tokens <= shared ? 0 : i)));
        w->rows[w->row_at++] = row;
    }
    w->items[i] = (sheaf_attn_item){.n_queries = 1, .first_pos = n - 1, .n_tokens = n};
    w->views[i] = (sheaf_kv_view){.base = w->gpu,
                                  .rows = rows,
                                  .row_stride_k = w->stride,
                                  .row_stride_v = w->stride,
                                  .k_offset = 0,
                                  .v_offset = w->v_offset,
                                  .k_head_stride = w->segment,
                                  .v_head_stride = w->segment,
                                  .n_rows = blocks - first_block,
                                  .first_block = first_block,
                                  .block_tokens = w->block_tokens,
                                  .n_tokens = n,
                                  .n_kv_heads = w->n_kv_heads,
                                  .key_dim = w->dim,
                                  .value_dim = w->dim,
                                  .codec_k = w->codec,
                                  .codec_v = w->codec};
}

static inline void world_upload(world *w)
{
    gpu_ok(cudaMemcpy(w->gpu, w->host, w->n_rows * w->stride, cudaMemcpyHostToDevice));
}

/* The query number of an item, a head and a dimension, as the type holds it. */
static inline float query_at(const world *w, uint32_t dtype, uint32_t item, uint32_t head,
                             uint32_t d)
{
    float x = 1.5f * normal_at(w->seed ^ 0x5151u ^ ((uint64_t)(item * 997 + 1) << 32) ^
                               (head << 10) ^ d);
    if (item + 1 == w->lost_query && head == 0 && d == 5) x = NAN;
    if (dtype == SHEAF_DTYPE_BF16) return sheaf__f32_of_bf16(sheaf__bf16_of_f32(x));
    if (dtype == SHEAF_DTYPE_F16) return sheaf__f32_of_f16(sheaf__f16_of_f32(x));
    return x;
}

static inline uint64_t dtype_bytes(uint32_t dtype)
{
    return dtype == SHEAF_DTYPE_F32 ? 4 : 2;
}

static inline sheaf_attn_options world_options(const world *w)
{
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = w->n_q_heads, o.n_kv_heads = w->n_kv_heads;
    o.key_dim = o.value_dim = w->dim;
    return o;
}

/* The reference in double precision, of items [first, first + n): [n, n_q_heads, dim]. */
static inline float *world_reference(const world *w, sheaf_attn_options o, uint32_t dtype,
                                     uint32_t first, uint32_t n)
{
    uint64_t row = (uint64_t)w->n_q_heads * w->dim;
    float *q = malloc(n * row * sizeof *q), *out = malloc(n * row * sizeof *out);
    sheaf_kv_view views[MOST_ITEMS];
    assert_true(q != NULL && out != NULL);
    for (uint32_t i = 0; i < n; i++) {
        views[i] = w->views[first + i];
        views[i].base = w->host;
        for (uint64_t e = 0; e < row; e++)
            q[i * row + e] =
                query_at(w, dtype, first + i, (uint32_t)(e / w->dim), (uint32_t)(e % w->dim));
    }
    o.path = SHEAF_ATTN_REFERENCE;
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_batch(plan, &w->items[first], n), SHEAF_OK);
    assert_int_equal(sheaf_attn_run(plan, views, q, out, NULL), SHEAF_OK);
    sheaf_attn_plan_destroy(plan);
    free(q);
    return out;
}

/* What one run on the GPU is asked. */
typedef struct asked {
    uint32_t dtype, first, n, prefix_min;
    sheaf__cuda_tuning tuning;
    int graph;
    sheaf_cuda_report report;
} asked;

static inline void *queries_on_gpu(const world *w, const asked *a)
{
    uint64_t row = (uint64_t)w->n_q_heads * w->dim, bytes = a->n * row * dtype_bytes(a->dtype);
    unsigned char *q = malloc(bytes);
    void *gpu = NULL;
    assert_non_null(q);
    for (uint64_t e = 0; e < a->n * row; e++) {
        float x = query_at(w, a->dtype, a->first + (uint32_t)(e / row),
                           (uint32_t)(e % row / w->dim), (uint32_t)(e % w->dim));
        uint16_t h = a->dtype == SHEAF_DTYPE_F16 ? sheaf__f16_of_f32(x) : sheaf__bf16_of_f32(x);
        if (a->dtype == SHEAF_DTYPE_F32)
            memcpy(q + 4 * e, &x, 4);
        else
            memcpy(q + 2 * e, &h, 2);
    }
    gpu_ok(cudaMalloc(&gpu, bytes));
    gpu_ok(cudaMemcpy(gpu, q, bytes, cudaMemcpyHostToDevice));
    free(q);
    return gpu;
}

static inline void replay(sheaf_cuda_plan *plan, const sheaf_kv_view *layer, const void *q,
                          void *out, cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    gpu_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(sheaf_cuda_run(plan, layer, q, out, stream, NULL), SHEAF_OK);
    gpu_ok(cudaStreamEndCapture(stream, &graph));
    gpu_ok(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) gpu_ok(cudaGraphLaunch(exec, stream));
    gpu_ok(cudaStreamSynchronize(stream));
    gpu_ok(cudaGraphExecDestroy(exec));
    gpu_ok(cudaGraphDestroy(graph));
}

/* The bytes that the GPU gives for items [first, first + n); the output is poisoned before. */
static inline unsigned char *world_run(const world *w, sheaf_attn_options o, asked *a)
{
    sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    sheaf_cuda_plan *plan = NULL;
    sheaf_error err = {0};
    cudaStream_t stream;
    uint64_t bytes = (uint64_t)a->n * w->n_q_heads * w->dim * dtype_bytes(a->dtype);
    unsigned char *out = malloc(bytes);
    void *gpu = NULL, *q = queries_on_gpu(w, a);
    c.io_dtype = a->dtype, c.prefix_min = a->prefix_min;
    if (sheaf_cuda_plan_create(&o, &c, &plan, &err) != SHEAF_OK) fail_msg("%s", err.text);
    sheaf__cuda_plan_tune(plan, &a->tuning);
    gpu_ok(cudaStreamCreate(&stream));
    gpu_ok(cudaMalloc(&gpu, bytes));
    gpu_ok(cudaMemset(gpu, 0xff, bytes));
    assert_int_equal(
        sheaf_cuda_plan_batch(plan, &w->items[a->first], &w->views[a->first], a->n, stream),
        SHEAF_OK);
    a->report = (sheaf_cuda_report)SHEAF_CUDA_REPORT_INIT;
    assert_int_equal(sheaf_cuda_run(plan, &w->views[a->first], q, gpu, stream, &a->report),
                     SHEAF_OK);
    gpu_ok(cudaStreamSynchronize(stream));
    if (a->graph) {
        gpu_ok(cudaMemset(gpu, 0xff, bytes));
        replay(plan, &w->views[a->first], q, gpu, stream);
    }
    gpu_ok(cudaMemcpy(out, gpu, bytes, cudaMemcpyDeviceToHost));
    sheaf_cuda_plan_destroy(plan);
    gpu_ok(cudaStreamDestroy(stream));
    gpu_ok(cudaFree(gpu));
    gpu_ok(cudaFree(q));
    return out;
}

static inline float result_at(const unsigned char *out, uint32_t dtype, uint64_t e)
{
    float x;
    uint16_t h;
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(&x, out + 4 * e, 4);
        return x;
    }
    memcpy(&h, out + 2 * e, 2);
    return dtype == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(h) : sheaf__f32_of_bf16(h);
}

/* |out - ref| / |ref| over n numbers; NaN where a result is not finite. */
static inline double relative_error(const unsigned char *out, uint32_t dtype, const float *ref,
                                    uint64_t n)
{
    double error = 0, norm = 0;
    for (uint64_t e = 0; e < n; e++) {
        double d = (double)result_at(out, dtype, e) - (double)ref[e];
        error += d * d;
        norm += (double)ref[e] * (double)ref[e];
    }
    return sqrt(error / norm);
}

#endif
