/* cuda/test_cuda_mixed.c - prefill as it is called: plans of items with one query and with many, against
 * the reference in double precision; and each item against itself alone. */
#include "gpu.h"

#include <time.h>

#include "cuda/decode_world.h"

static uint64_t seed;

static const uint32_t codecs[] = {SHEAF_CODEC_BF16, SHEAF_CODEC_F16, SHEAF_CODEC_INT8,
                                  SHEAF_CODEC_TURBO4};

/* Query `query` of an item: a query of its own, as the type holds it. */
static float query_of(const world *w, uint32_t dtype, uint32_t item, uint32_t query, uint64_t e)
{
    return query_at(w, dtype, item * 1000 + query, (uint32_t)(e / w->dim),
                    (uint32_t)(e % w->dim));
}

static uint32_t queries_before(const world *w, uint32_t item)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < item; i++) n += w->items[i].n_queries;
    return n;
}

/* Queries of items [first, first + n) in f32 and as bytes of the type. */
static uint64_t make_queries(const world *w, uint32_t dtype, uint32_t first, uint32_t n,
                             float **wide, unsigned char **bytes)
{
    uint64_t row = (uint64_t)w->n_q_heads * w->dim, at = 0;
    uint64_t total = (queries_before(w, first + n) - queries_before(w, first)) * row;
    *wide = malloc(total * sizeof **wide);
    *bytes = malloc(total * dtype_bytes(dtype));
    assert_true(*wide != NULL && *bytes != NULL);
    for (uint32_t i = first; i < first + n; i++)
        for (uint32_t q = 0; q < w->items[i].n_queries; q++)
            for (uint64_t e = 0; e < row; e++, at++) {
                float x = (*wide)[at] = query_of(w, dtype, i, q, e);
                uint16_t h =
                    dtype == SHEAF_DTYPE_F16 ? sheaf__f16_of_f32(x) : sheaf__bf16_of_f32(x);
                if (dtype == SHEAF_DTYPE_F32)
                    memcpy(*bytes + 4 * at, &x, 4);
                else
                    memcpy(*bytes + 2 * at, &h, 2);
            }
    return total;
}

/* What the GPU gives for items [first, first + n), and the path it says it took. */
static unsigned char *run(const world *w, const sheaf_attn_options *o, uint32_t dtype,
                          uint32_t first, uint32_t n, uint32_t *path)
{
    sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    sheaf_cuda_report report = SHEAF_CUDA_REPORT_INIT;
    sheaf_cuda_plan *plan = NULL;
    float *wide;
    unsigned char *q;
    uint64_t bytes = make_queries(w, dtype, first, n, &wide, &q) * dtype_bytes(dtype);
    void *gpu_q = NULL, *gpu_out = NULL;
    gpu_ok(cudaMalloc(&gpu_q, bytes));
    gpu_ok(cudaMalloc(&gpu_out, bytes));
    gpu_ok(cudaMemcpy(gpu_q, q, bytes, cudaMemcpyHostToDevice));
    gpu_ok(cudaMemset(gpu_out, 0xff, bytes));
    c.io_dtype = dtype;
    assert_int_equal(sheaf_cuda_plan_create(o, &c, &plan, NULL), SHEAF_OK);
    assert_int_equal(sheaf_cuda_plan_batch(plan, &w->items[first], &w->views[first], n, NULL),
                     SHEAF_OK);
    assert_int_equal(sheaf_cuda_run(plan, &w->views[first], gpu_q, gpu_out, NULL, &report),
                     SHEAF_OK);
    gpu_ok(cudaDeviceSynchronize());
    gpu_ok(cudaMemcpy(q, gpu_out, bytes, cudaMemcpyDeviceToHost));
    sheaf_cuda_plan_destroy(plan);
    gpu_ok(cudaFree(gpu_q));
    gpu_ok(cudaFree(gpu_out));
    free(wide);
    *path = report.path;
    return q;
}

static float *reference(const world *w, sheaf_attn_options o, uint32_t dtype)
{
    sheaf_attn_plan *plan = NULL;
    sheaf_kv_view views[MOST_ITEMS];
    float *wide;
    unsigned char *bytes;
    uint64_t n = make_queries(w, dtype, 0, w->n_items, &wide, &bytes);
    float *out = malloc(n * sizeof *out);
    assert_non_null(out);
    for (uint32_t i = 0; i < w->n_items; i++) {
        views[i] = w->views[i];
        views[i].base = w->host;
    }
    o.path = SHEAF_ATTN_REFERENCE;
    assert_int_equal(sheaf_attn_plan_create(&o, NULL, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_batch(plan, w->items, w->n_items), SHEAF_OK);
    assert_int_equal(sheaf_attn_run(plan, views, wide, out, NULL), SHEAF_OK);
    sheaf_attn_plan_destroy(plan);
    free(wide);
    free(bytes);
    return out;
}

static world *make(uint32_t codec, uint32_t dim)
{
    static const uint32_t lengths[] = {333, 700, 65, 40}, queries[] = {1, 61, 1, 40};
    world *w = world_make(codec, dim, 8, 2, 32, 128, seed + codec + dim);
    for (uint32_t i = 0; i < 4; i++) {
        world_add(w, lengths[i], 0, 0);
        w->items[i].n_queries = queries[i];
        w->items[i].first_pos = lengths[i] - queries[i];
    }
    world_upload(w);
    return w;
}

static void a_mixed_step_is_right_and_its_items_do_not_see_each_other(void **state)
{
    (void)state;
    int n_gpus = 0;
    if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0) TESTING_SKIP("no GPU%s", "");
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t dtype = 0; dtype < 3; dtype++) {
            world *w = make(codecs[c], 64u << (c + dtype) % 3);
            sheaf_attn_options o = world_options(w);
            o.window = c == 1 ? 200 : 0;
            uint32_t path = 0, alone = 0;
            unsigned char *out = run(w, &o, dtype, 0, w->n_items, &path);
            float *ref = reference(w, o, dtype);
            uint64_t row = 8ull * w->dim, size = dtype_bytes(dtype);
            double e = relative_error(out, dtype, ref, queries_before(w, 4) * row);
            print_message("%s dim %u io %s: error %.2e\n", sheaf_codec_name(codecs[c]), w->dim,
                          sheaf_codec_name(dtype), e);
            assert_true(e <= (dtype == SHEAF_DTYPE_F32 ? 5e-4 : 3e-3));
            assert_int_equal(path, SHEAF_CUDA_PREFILL);
            for (uint32_t i = 0; i < w->n_items; i++) {
                unsigned char *one = run(w, &o, dtype, i, 1, &alone);
                assert_memory_equal(one, out + queries_before(w, i) * row * size,
                                    w->items[i].n_queries * row * size);
                assert_int_equal(alone, w->items[i].n_queries == 1 ? SHEAF_CUDA_DECODE
                                                                   : SHEAF_CUDA_PREFILL);
                free(one);
            }
            free(out);
            free(ref);
            world_free(w);
        }
}

static void expect_zeros(const unsigned char *out, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) assert_int_equal(out[i], 0);
}

/* Items of no tokens beside others, then alone and in a pool that has no memory yet. */
static void who_sees_nothing_gets_zeros(void **state)
{
    (void)state;
    int n_gpus = 0;
    if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0) TESTING_SKIP("no GPU%s", "");
    for (uint32_t c = 0; c < 4; c++) {
        world *w = make(codecs[c], 128);
        sheaf_attn_options o = world_options(w);
        const uint32_t dtype = c % 3;
        const uint64_t row = 8ull * w->dim * dtype_bytes(dtype);
        uint32_t path = 0;
        for (uint32_t i = 0; i < 4; i += 3) { /* one query, and 40 */
            w->items[i].first_pos = w->items[i].n_tokens = 0;
            w->views[i].n_tokens = w->views[i].n_rows = 0;
        }
        unsigned char *out = run(w, &o, dtype, 0, 4, &path);
        for (uint32_t i = 0; i < 4; i++) {
            const unsigned char *its = out + queries_before(w, i) * row;
            const uint64_t bytes = w->items[i].n_queries * row;
            unsigned char *alone = run(w, &o, dtype, i, 1, &path);
            assert_memory_equal(its, alone, bytes);
            free(alone);
            if (w->items[i].n_tokens != 0) continue;
            expect_zeros(its, bytes);
            w->views[i].base = NULL;
            w->views[i].rows = NULL;
            alone = run(w, &o, dtype, i, 1, &path);
            expect_zeros(alone, bytes);
            free(alone);
        }
        free(out);
        world_free(w);
    }
}

/* A captured launch keeps the number of queries, also where tiles and tables stay where they were. */
static void other_queries_are_another_generation_and_what_is_wrong_is_refused(void **state)
{
    (void)state;
    int n_gpus = 0;
    if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0) TESTING_SKIP("no GPU%s", "");
    world *w = make(SHEAF_CODEC_BF16, 128);
    sheaf_attn_options o = world_options(w);
    sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    sheaf_cuda_report report = SHEAF_CUDA_REPORT_INIT;
    sheaf_cuda_plan *plan = NULL;
    unsigned char *q = NULL, *out = NULL;
    uint64_t generations[3];
    gpu_ok(cudaMalloc((void **)&q, 1 << 20));
    gpu_ok(cudaMemset(q, 0, 1 << 20));
    gpu_ok(cudaMalloc((void **)&out, 1 << 20));
    c.io_dtype = SHEAF_DTYPE_BF16, c.max_items = 4, c.max_tokens = 1024;
    assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_OK);
    for (uint32_t i = 0; i < 3; i++) {
        w->items[1].n_queries = i == 0 ? 61 : 62; /* two tiles */
        w->items[1].first_pos = 700 - w->items[1].n_queries;
        assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, w->views, 4, NULL), SHEAF_OK);
        assert_int_equal(sheaf_cuda_run(plan, w->views, q, out, NULL, &report), SHEAF_OK);
        generations[i] = report.generation;
    }
    assert_true(generations[0] != generations[1]);
    assert_true(generations[1] == generations[2]);
    assert_int_equal(sheaf_cuda_run(plan, w->views, q + 2, out, NULL, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_cuda_run(plan, w->views, q, out + 8, NULL, NULL), SHEAF_E_INVALID);
    sheaf_kv_view nowhere = w->views[0];
    nowhere.base = NULL;
    assert_int_equal(sheaf_cuda_run(plan, &nowhere, q, out, NULL, NULL), SHEAF_E_PLAN);
    w->items[0].first_pos = 5; /* sees one block of a view that ends too early */
    w->views[0].n_rows = 1;
    assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, w->views, 4, NULL), SHEAF_E_PLAN);
    gpu_ok(cudaDeviceSynchronize());
    sheaf_cuda_plan_destroy(plan);
    gpu_ok(cudaFree(q));
    gpu_ok(cudaFree(out));
    world_free(w);
}

#define LAYERS  12
#define DECODED 5

/* Numbers that LAYERS steps append, bf16: [LAYERS][DECODED][2][128], on the GPU. */
static unsigned char *numbers_on_gpu(uint64_t from)
{
    const uint64_t n = LAYERS * DECODED * 256;
    uint16_t *here = malloc(n * 2);
    void *there = NULL;
    assert_non_null(here);
    for (uint64_t i = 0; i < n; i++) here[i] = sheaf__bf16_of_f32(normal_at(from + i));
    gpu_ok(cudaMalloc(&there, n * 2));
    gpu_ok(cudaMemcpy(there, here, n * 2, cudaMemcpyHostToDevice));
    free(here);
    return there;
}

/* Layers in a row, each with its own position appended just before: what lies before that is read ahead
 * of the append's end, it itself is not. */
static void what_a_step_appends_is_seen(void **state)
{
    (void)state;
    int n_gpus = 0;
    if (cudaGetDeviceCount(&n_gpus) != cudaSuccess || n_gpus == 0) TESTING_SKIP("no GPU%s", "");
    static const uint32_t lengths[DECODED] = {64, 65, 1, 700, 2049};
    const uint64_t bytes = DECODED * 8 * 128 * 2, each = DECODED * 256 * 2;
    for (uint32_t c = 0; c < 4; c++) {
        world *w = world_make(codecs[c], 128, 8, 2, 32, 256, seed + c);
        for (uint32_t i = 0; i < DECODED; i++) world_add(w, lengths[i], 0, 0);
        world_upload(w);
        sheaf_attn_options o = world_options(w);
        sheaf_cuda_attn_options g = SHEAF_CUDA_ATTN_OPTIONS_INIT;
        sheaf_cuda_plan *plan = NULL;
        cudaStream_t stream;
        unsigned char *k = numbers_on_gpu(seed), *v = numbers_on_gpu(~seed), *out;
        unsigned char *got = malloc(2 * LAYERS * bytes);
        asked a = {.dtype = SHEAF_DTYPE_BF16, .n = DECODED};
        void *q = queries_on_gpu(w, &a);
        assert_non_null(got);
        g.io_dtype = SHEAF_DTYPE_BF16;
        assert_int_equal(sheaf_cuda_plan_create(&o, &g, &plan, NULL), SHEAF_OK);
        gpu_ok(cudaStreamCreate(&stream));
        gpu_ok(cudaMalloc((void **)&out, LAYERS * bytes));
        assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, w->views, DECODED, stream),
                         SHEAF_OK);
        for (int alone = 0; alone < 2; alone++) {
            gpu_ok(cudaMemset(out, 0xff, LAYERS * bytes));
            for (uint32_t l = 0; l < LAYERS; l++) {
                sheaf_cuda_source from = SHEAF_CUDA_SOURCE_INIT;
                from.dtype = SHEAF_DTYPE_BF16, from.k = k + l * each, from.v = v + l * each;
                assert_int_equal(sheaf_cuda_append(plan, w->views, &from, stream), SHEAF_OK);
                if (alone) gpu_ok(cudaStreamSynchronize(stream));
                assert_int_equal(
                    sheaf_cuda_run(plan, w->views, q, out + l * bytes, stream, NULL), SHEAF_OK);
                if (alone) gpu_ok(cudaStreamSynchronize(stream));
            }
            gpu_ok(cudaStreamSynchronize(stream));
            gpu_ok(cudaMemcpy(got + alone * LAYERS * bytes, out, LAYERS * bytes,
                              cudaMemcpyDeviceToHost));
        }
        assert_memory_equal(got, got + LAYERS * bytes, LAYERS * bytes);
        assert_memory_not_equal(got, got + bytes, bytes);
        sheaf_cuda_plan_destroy(plan);
        gpu_ok(cudaStreamDestroy(stream));
        gpu_ok(cudaFree(out));
        gpu_ok(cudaFree(q));
        gpu_ok(cudaFree(k));
        gpu_ok(cudaFree(v));
        free(got);
        world_free(w);
    }
}

int main(void)
{
    const char *given = getenv("SHEAF_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mixed_step_is_right_and_its_items_do_not_see_each_other),
        cmocka_unit_test(who_sees_nothing_gets_zeros),
        cmocka_unit_test(what_a_step_appends_is_seen),
        cmocka_unit_test(other_queries_are_another_generation_and_what_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
