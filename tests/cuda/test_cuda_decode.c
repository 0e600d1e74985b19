/* cuda/test_cuda_decode.c - attention of one query a sequence on a GPU, against the reference in
 * double precision, and against itself however a step is cut. */
#include "gpu.h"

#include <time.h>

#include "cuda/decode_world.h"

static uint64_t seed;

static int short_run(void)
{
    return getenv("SHEAF_GPU_SHORT") != NULL;
}

static void need_gpu(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) TESTING_SKIP("no GPU%s", "");
}

static const uint32_t codecs[] = {SHEAF_CODEC_BF16, SHEAF_CODEC_F16, SHEAF_CODEC_INT8,
                                  SHEAF_CODEC_TURBO4};

/* What the issue allows, and room for two more roundings of f16 with int8 and turbo4. */
static double allowed(uint32_t dtype)
{
    return dtype == SHEAF_DTYPE_BF16 ? 3e-3 : dtype == SHEAF_DTYPE_F16 ? 1.5e-3 : 5e-4;
}

static void add_ragged(world *w)
{
    static const uint32_t lengths[] = {1, 17, 63, 64, 65, 256, 255, 700, 1025, 2111};
    for (uint32_t i = 0; i < (short_run() ? 5 : sizeof lengths / sizeof *lengths); i++)
        world_add(w, lengths[i], 0, 0);
    world_upload(w);
}

/* Compares results with the reference, item by item; the worst error. */
static double error_of(const world *w, sheaf_attn_options o, const asked *a,
                       const unsigned char *out)
{
    uint64_t row = (uint64_t)w->n_q_heads * w->dim;
    float *ref = world_reference(w, o, a->dtype, a->first, a->n);
    double worst = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        double e =
            relative_error(out + i * row * dtype_bytes(a->dtype), a->dtype, ref + i * row, row);
        if (!(e <= worst)) worst = e;
        if (!(e == e)) break;
    }
    free(ref);
    return worst;
}

static double worst_error(const world *w, sheaf_attn_options o, asked *a)
{
    unsigned char *out = world_run(w, o, a);
    double worst = error_of(w, o, a, out);
    free(out);
    return worst;
}

static void decode_agrees_with_the_reference(void **state)
{
    (void)state;
    need_gpu();
    int wrong = 0;
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t dim = 64; dim <= (short_run() ? 128 : 256); dim *= 2) {
            world *w = world_make(codecs[c], dim, 8, 2, 32, 256, seed + c + dim);
            add_ragged(w);
            for (uint32_t dtype = short_run() ? c % 3 : 0;
                 dtype < (short_run() ? c % 3 + 1 : 3); dtype++)
                for (uint32_t each = 1; each <= 4; each += 3) {
                    asked a = {.dtype = dtype, .n = w->n_items, .tuning = {.each = each}};
                    double e = worst_error(w, world_options(w), &a);
                    int bad = !(e <= allowed(dtype));
                    print_message("%s dim %u io %s, %u leaves a warp: error %.2e%s\n",
                                  sheaf_codec_name(codecs[c]), dim, sheaf_codec_name(dtype),
                                  each, e, bad ? "  TOO MUCH" : "");
                    wrong += bad;
                }
            world_free(w);
        }
    assert_int_equal(wrong, 0);
}

static void groups_and_blocks_of_all_sizes_are_right(void **state)
{
    (void)state;
    need_gpu();
    static const uint32_t groups[] = {1, 3, 4, 8, 12, 16};
    int wrong = 0;
    for (uint32_t g = short_run() ? 4 : 0; g < 6; g++)
        for (uint32_t c = 0; c < 4; c++) {
            uint32_t bt = 16u << (g + c) % 3;
            world *w = world_make(codecs[c], 128, 2 * groups[g], 2, bt, 512, seed + 31 * g + c);
            add_ragged(w);
            asked a = {.dtype = SHEAF_DTYPE_F32, .n = w->n_items};
            double e = worst_error(w, world_options(w), &a);
            if (!(e <= allowed(a.dtype))) {
                print_message("%s group %u blocks of %u: error %.2e\n",
                              sheaf_codec_name(codecs[c]), groups[g], bt, e);
                wrong++;
            }
            world_free(w);
        }
    assert_int_equal(wrong, 0);
}

static void window_softcap_and_sinks_are_right(void **state)
{
    (void)state;
    need_gpu();
    static const float sinks[8] = {0.5f, -3.0f, 2.0f, 9.0f, 0.0f, 1.0f, -20.0f, 4.0f};
    int wrong = 0;
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t kind = short_run() ? 7 : 0; kind < 8; kind++) {
            world *w = world_make(codecs[c], 128, 8, 2, 32, 256, seed + 7 * kind + c);
            add_ragged(w);
            sheaf_attn_options o = world_options(w);
            if (kind & 1) o.window = 300;
            if (kind & 2) o.softcap = 5.0f;
            if (kind & 4) o.sinks = sinks;
            if (kind % 3 == 1) o.scale = -0.11f;
            asked a = {
                .dtype = SHEAF_DTYPE_F32, .n = w->n_items, .tuning = {.each = c & 1 ? 4 : 1}};
            double e = worst_error(w, o, &a);
            if (!(e <= allowed(a.dtype))) {
                print_message("%s window %u softcap %g sinks %d: error %.2e\n",
                              sheaf_codec_name(codecs[c]), o.window, (double)o.softcap,
                              o.sinks != NULL, e);
                wrong++;
            }
            world_free(w);
        }
    assert_int_equal(wrong, 0);
}

/* V of one leaf may have scales a thousand times apart, and the largest may count least. */
static void values_of_unlike_size_are_right(void **state)
{
    (void)state;
    need_gpu();
    int wrong = 0;
    for (uint32_t c = 0; c < 4; c++) {
        world *w = world_make(codecs[c], 128, 8, 2, 32, 256, seed + 5 * c);
        w->spread = 11;
        add_ragged(w);
        asked a = {.dtype = SHEAF_DTYPE_F32, .n = w->n_items};
        double e = worst_error(w, world_options(w), &a);
        print_message("%s: error %.2e\n", sheaf_codec_name(codecs[c]), e);
        wrong += !(e <= allowed(a.dtype));
        world_free(w);
    }
    assert_int_equal(wrong, 0);
}

/* What has no number comes out where the reference has none, and nowhere else. */
static void what_is_no_number_is_not_lost(void **state)
{
    (void)state;
    need_gpu();
    for (uint32_t c = 0; c < 4; c++) {
        world *w = world_make(codecs[c], 128, 8, 2, 32, 256, seed + 3 * c);
        w->lost_value = 41, w->lost_query = 2;
        add_ragged(w);
        asked a = {.dtype = SHEAF_DTYPE_F32, .n = w->n_items};
        uint64_t n = w->n_items * 8ull * 128, lost = 0;
        unsigned char *out = world_run(w, world_options(w), &a);
        float *ref = world_reference(w, world_options(w), a.dtype, 0, w->n_items);
        for (uint64_t i = 0; i < n; i++) {
            assert_int_equal(!isnan(result_at(out, a.dtype, i)), !isnan(ref[i]));
            lost += isnan(ref[i]) != 0;
        }
        assert_in_range(lost, 1, n / 2);
        free(out);
        free(ref);
        world_free(w);
    }
}

/* The bytes of an item are those of the item alone, however the step is cut. */
static void cutting_a_step_otherwise_changes_no_bit(void **state)
{
    (void)state;
    need_gpu();
    static const sheaf__cuda_tuning cuts[] = {
        {.each = 1},  {.each = 4},   {.each = 1, .slots = 2}, {.each = 4, .slots = 2},
        {.slots = 5}, {.overlap = 2}};
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t dim = 64; dim <= (short_run() ? 128 : 256); dim *= 2) {
            world *w = world_make(codecs[c], dim, 8, 2, 32, 512, seed + 3 * c + dim);
            if (!short_run() || c == 1) world_add(w, 4000, 0, 0);
            add_ragged(w);
            uint32_t dtype = (c + dim / 64) % 3;
            uint64_t bytes = 8ull * dim * dtype_bytes(dtype);
            sheaf_attn_options o = world_options(w);
            if (c & 1) o.window = 3000; /* begins inside a span */
            asked all = {.dtype = dtype, .n = w->n_items};
            unsigned char *whole = world_run(w, o, &all);
            for (uint32_t t = 0; t < sizeof cuts / sizeof *cuts; t++) {
                asked again = {.dtype = dtype, .n = w->n_items, .tuning = cuts[t]};
                unsigned char *out = world_run(w, o, &again);
                assert_memory_equal(out, whole, w->n_items * bytes);
                free(out);
            }
            for (uint32_t i = 0; i < w->n_items; i++) {
                asked one = {.dtype = dtype, .first = i, .n = 1};
                unsigned char *out = world_run(w, o, &one);
                assert_memory_equal(out, whole + i * bytes, bytes);
                free(out);
            }
            free(whole);
            world_free(w);
        }
}

/* One sequence has nothing of its own, one shares nothing. */
static world *world_that_shares(uint32_t codec, uint32_t dim, uint32_t heads, uint32_t tokens,
                                uint32_t n, uint64_t of_seed)
{
    world *w = world_make(codec, dim, heads, 2, tokens, 2048, of_seed);
    w->spread = dim == 64 ? 11 : 0;
    for (uint32_t i = 0; i < n; i++)
        world_add(w, i == 1 ? 2048 : 2048 + (i * 97) % 700 + 1, 2048, 0);
    world_add(w, 1500, 0, 0);
    world_upload(w);
    return w;
}

static void compare_sharing(const world *w, sheaf_attn_options o, uint32_t dtype)
{
    uint32_t n = w->n_items;
    uint64_t bytes = n * (uint64_t)w->n_q_heads * w->dim * dtype_bytes(dtype);
    asked shared = {.dtype = dtype, .n = n, .prefix_min = 1024};
    asked apart = {.dtype = dtype, .n = n, .prefix_min = 1u << 30};
    asked replayed = shared;
    replayed.graph = 1, replayed.tuning.spans = 2;
    unsigned char *a = world_run(w, o, &shared), *b = world_run(w, o, &apart);
    unsigned char *again = world_run(w, o, &replayed);
    assert_int_equal(shared.report.path, SHEAF_CUDA_PREFIX);
    assert_int_equal(shared.report.n_prefixes, 1);
    assert_int_equal(shared.report.prefix_tokens, 2048 * (n - 2));
    assert_int_equal(apart.report.path, SHEAF_CUDA_DECODE);
    assert_memory_equal(a, b, bytes);
    assert_memory_equal(a, again, bytes);
    free(a);
    free(b);
    free(again);
}

static void sharing_a_prefix_changes_no_bit(void **state)
{
    (void)state;
    need_gpu();
    static const float sinks[24] = {0.5f, -3.0f, 2.0f, 9.0f, 0.0f, 1.0f, -20.0f, 4.0f, 1.5f};
    for (uint32_t c = 0; c < 4; c++)
        for (uint32_t dim = 64; dim <= 256; dim *= 2) {
            if (short_run() && dim != 64u << c % 2 && (dim != 256 || c != 2)) continue;
            uint32_t n = short_run() ? (c == 0 ? 12 : 3) : 11 + 13 * c;
            uint32_t heads = dim == 64 || (c == 3 && dim == 256) ? 24 : 8; /* of 2 KV heads */
            world *w = world_that_shares(codecs[c], dim, heads, 16u << (c + dim / 64) % 3, n,
                                         seed + 5 * c + dim);
            sheaf_attn_options o = world_options(w);
            if (c & 1) o.softcap = 5.0f;
            if (c >= 2) o.sinks = sinks;
            if (dim == 128) o.scale = -0.07f;
            for (uint32_t dtype = 0; dtype < 3; dtype++)
                if (!short_run() || dtype == (c == 1 ? SHEAF_DTYPE_BF16 : SHEAF_DTYPE_F32))
                    compare_sharing(w, o, dtype);
            world_free(w);
        }
}

/* Up to four heads are multiplied otherwise than more of them, and prefixes of many yet otherwise: a head
 * of whichever group is the same, shared and apart, and right. */
static void how_many_heads_there_are_changes_no_bit(void **state)
{
    (void)state;
    need_gpu();
    static const uint32_t groups[] = {16, 4, 7, 1, 2, 3, 5, 8};
    const uint32_t n_groups = short_run() ? 2 : sizeof groups / sizeof *groups;
    const uint32_t n = short_run() ? 3 : 9;
    int wrong = 0;
    for (uint32_t c = 2; c < 4; c++)
        for (uint32_t dim = 64; dim <= 256; dim *= 2) {
            if (short_run() && dim == (c == 2 ? 128 : 64)) continue;
            const uint64_t head = dim * sizeof(float);
            unsigned char *of[sizeof groups / sizeof *groups] = {0};
            for (uint32_t g = 0; g < n_groups; g++) {
                world *w =
                    world_that_shares(codecs[c], dim, 2 * groups[g], 16, n, seed + c + dim);
                sheaf_attn_options o = world_options(w);
                if (dim == 128) o.softcap = 5.0f;
                if (dim == 64) o.window = 2100;
                asked shared = {.dtype = SHEAF_DTYPE_F32, .n = w->n_items, .prefix_min = 1024};
                asked apart = shared;
                apart.prefix_min = 1u << 30;
                of[g] = world_run(w, o, &apart);
                unsigned char *s = world_run(w, o, &shared);
                double e = error_of(w, o, &apart, of[g]);
                if (!(e <= allowed(SHEAF_DTYPE_F32))) {
                    print_message("%s dim %u group %u: error %.2e\n",
                                  sheaf_codec_name(codecs[c]), dim, groups[g], e);
                    wrong++;
                }
                assert_memory_equal(s, of[g], w->n_items * 2ull * groups[g] * head);
                for (uint32_t i = 0; i < w->n_items; i++)
                    assert_memory_equal(of[g] + i * 2ull * groups[g] * head,
                                        of[0] + i * 2ull * groups[0] * head, groups[g] * head);
                free(s);
                world_free(w);
            }
            for (uint32_t g = 0; g < n_groups; g++) free(of[g]);
        }
    assert_int_equal(wrong, 0);
}

static void rows_elsewhere_and_graphs_change_no_bit(void **state)
{
    (void)state;
    need_gpu();
    for (uint32_t c = 0; c < 4; c++) {
        unsigned char *first = NULL;
        uint64_t bytes = 0;
        for (uint32_t layout = 0; layout < 3; layout++) {
            world *w = world_make(codecs[c], 128, 8, 2, 32, 256 << layout, seed + c);
            shuffle(w, seed + 1000 + layout);
            add_ragged(w);
            asked a = {.dtype = SHEAF_DTYPE_BF16, .n = w->n_items, .graph = layout == 1};
            bytes = w->n_items * 8ull * 128 * 2;
            unsigned char *out = world_run(w, world_options(w), &a);
            if (first == NULL) {
                first = out;
            } else {
                assert_memory_equal(out, first, bytes);
                free(out);
            }
            world_free(w);
        }
        free(first);
    }
}

#define RUNS 12

/* Runs queued without waiting use the same workspace one after another. */
static void layers_in_a_row_do_not_disturb_each_other(void **state)
{
    (void)state;
    need_gpu();
    const uint32_t most = short_run() ? 3 : 40, runs = short_run() ? 4 : RUNS;
    for (uint32_t n = 1; n <= most; n += short_run() ? 2 : 13) {
        world *w = world_make(SHEAF_CODEC_BF16, 128, 8, 2, 32, 2048, seed + n);
        for (uint32_t i = 0; i < n; i++)
            world_add(w, 2048 + 31 * i + 1, n > most / 2 ? 2048 : 0, 0);
        world_upload(w);
        uint64_t bytes = n * 8ull * 128 * 2;
        sheaf_attn_options o = world_options(w);
        sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
        sheaf_cuda_plan *plan = NULL;
        cudaStream_t stream;
        unsigned char *all, *got = malloc(2 * bytes);
        asked a = {.dtype = SHEAF_DTYPE_BF16, .n = n},
              b = {.dtype = SHEAF_DTYPE_BF16, .first = 9, .n = n};
        void *q[2] = {queries_on_gpu(w, &a), queries_on_gpu(w, &b)};
        c.io_dtype = SHEAF_DTYPE_BF16, c.prefix_min = 1024;
        assert_non_null(got);
        assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_OK);
        gpu_ok(cudaStreamCreate(&stream));
        gpu_ok(cudaMalloc((void **)&all, runs * bytes));
        assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, w->views, n, stream), SHEAF_OK);
        for (int alone = 1; alone >= 0; alone--) {
            for (uint32_t r = 0; r < runs; r++) {
                assert_int_equal(
                    sheaf_cuda_run(plan, w->views, q[r % 2], all + r * bytes, stream, NULL),
                    SHEAF_OK);
                if (alone) gpu_ok(cudaStreamSynchronize(stream));
            }
            gpu_ok(cudaStreamSynchronize(stream));
            if (alone) gpu_ok(cudaMemcpy(got, all, 2 * bytes, cudaMemcpyDeviceToHost));
            for (uint32_t r = 0; r < runs; r++) {
                unsigned char *one = malloc(bytes);
                assert_non_null(one);
                gpu_ok(cudaMemcpy(one, all + r * bytes, bytes, cudaMemcpyDeviceToHost));
                assert_memory_equal(one, got + r % 2 * bytes, bytes);
                free(one);
            }
            gpu_ok(cudaMemset(all, 0xff, runs * bytes));
        }
        assert_memory_not_equal(got, got + bytes, bytes);
        sheaf_cuda_plan_destroy(plan);
        gpu_ok(cudaStreamDestroy(stream));
        gpu_ok(cudaFree(all));
        gpu_ok(cudaFree(q[0]));
        gpu_ok(cudaFree(q[1]));
        free(got);
        world_free(w);
    }
}

/* Many runs of a step that gives every team several units, whose K and V lie in the second cache: a slot
 * of a ring that is filled again before all of it is read, or a part read before it is there, shows in
 * some run or other, of a thousand or so. Two slots a ring, or chunks, where fewer would show it. */
static void a_step_gives_the_same_bits_every_time(void **state)
{
    (void)state;
    need_gpu();
    static const struct {
        uint32_t codec, dim, heads, dtype, shared, rounds;
        sheaf__cuda_tuning tuning;
    } kinds[] = {
        {SHEAF_CODEC_BF16, 128, 24, SHEAF_DTYPE_BF16, 0, 10, {.slots = 2}},
        {SHEAF_CODEC_BF16, 128, 24, SHEAF_DTYPE_BF16, 0, 10, {.each = 1}},
        {SHEAF_CODEC_BF16, 64, 24, SHEAF_DTYPE_F32, 0, 2, {.slots = 2}},
        {SHEAF_CODEC_F16, 128, 24, SHEAF_DTYPE_F16, 0, 2, {.each = 1, .slots = 4}},
        {SHEAF_CODEC_BF16, 256, 24, SHEAF_DTYPE_BF16, 1, 1, {0}},
        {SHEAF_CODEC_INT8, 128, 24, SHEAF_DTYPE_BF16, 0, 2, {0}},
        {SHEAF_CODEC_INT8, 128, 8, SHEAF_DTYPE_BF16, 0, 4, {.slots = 2}},
        {SHEAF_CODEC_INT8, 256, 24, SHEAF_DTYPE_BF16, 1, 1, {0}},
        {SHEAF_CODEC_TURBO4, 128, 24, SHEAF_DTYPE_BF16, 0, 4, {.slots = 2}},
        {SHEAF_CODEC_TURBO4, 128, 8, SHEAF_DTYPE_BF16, 0, 10, {.slots = 2}},
        {SHEAF_CODEC_TURBO4, 64, 8, SHEAF_DTYPE_F32, 1, 2, {0}},
    };
    const uint32_t n_kinds = short_run() ? 1 : sizeof kinds / sizeof kinds[0];
    const uint32_t runs = short_run() ? 2 : 300, n = short_run() ? 2 : 50;
    uint32_t differ = 0;
    for (uint32_t k = 0; k < n_kinds; k++) {
        world *w =
            world_that_shares(kinds[k].codec, kinds[k].dim, kinds[k].heads, 16, n, seed + k);
        uint64_t bytes =
            w->n_items * (uint64_t)w->n_q_heads * w->dim * dtype_bytes(kinds[k].dtype);
        sheaf_attn_options o = world_options(w);
        sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
        sheaf_cuda_plan *plan = NULL;
        cudaStream_t stream;
        asked a = {.dtype = kinds[k].dtype, .n = w->n_items};
        void *q = queries_on_gpu(w, &a);
        unsigned char *all, *got = malloc(runs * bytes), *first = malloc(bytes);
        const uint32_t rounds = short_run() ? 1 : kinds[k].rounds;
        uint32_t wrong = 0;
        c.io_dtype = kinds[k].dtype, c.prefix_min = kinds[k].shared ? 1024 : 1u << 30;
        assert_non_null(got), assert_non_null(first);
        assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_OK);
        sheaf__cuda_plan_tune(plan, &kinds[k].tuning);
        gpu_ok(cudaStreamCreate(&stream));
        gpu_ok(cudaMalloc((void **)&all, runs * bytes));
        assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, w->views, w->n_items, stream),
                         SHEAF_OK);
        for (uint32_t round = 0; round < rounds; round++) {
            for (uint32_t r = 0; r < runs; r++)
                assert_int_equal(
                    sheaf_cuda_run(plan, w->views, q, all + r * bytes, stream, NULL), SHEAF_OK);
            gpu_ok(cudaStreamSynchronize(stream));
            gpu_ok(cudaMemcpy(got, all, runs * bytes, cudaMemcpyDeviceToHost));
            if (round == 0) memcpy(first, got, bytes);
            for (uint32_t r = 0; r < runs; r++)
                wrong += memcmp(first, got + r * bytes, bytes) != 0;
        }
        if (wrong != 0)
            print_message("%s dim %u, kind %u: %u of %u runs differ\n",
                          sheaf_codec_name(kinds[k].codec), w->dim, k, wrong, rounds * runs);
        differ += wrong;
        sheaf_cuda_plan_destroy(plan);
        gpu_ok(cudaStreamDestroy(stream));
        gpu_ok(cudaFree(all));
        gpu_ok(cudaFree(q));
        free(got), free(first);
        world_free(w);
    }
    assert_int_equal(differ, 0);
}

#define STEPS 40

/* A plan that goes from step to step, nothing waited for, gives what a new plan gives for each of them:
 * tables of all sizes, prefixes now and then, counters where they were not before. */
static void steps_of_one_plan_are_those_of_new_ones(void **state)
{
    (void)state;
    need_gpu();
    const uint32_t most = short_run() ? 5 : 44, steps = short_run() ? 6 : STEPS;
    world *w = world_make(SHEAF_CODEC_BF16, 64, 8, 2, 16, 8192, seed + 11);
    for (uint32_t i = 0; i < most; i++)
        world_add(w, 1024 + (short_run() ? 40 * i : (i * 331) % 1500) + 1, 1024, 0);
    world_upload(w);
    sheaf_attn_options o = world_options(w);
    sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    c.io_dtype = SHEAF_DTYPE_BF16, c.prefix_min = 1024;
    sheaf_cuda_plan *plan = NULL;
    cudaStream_t stream;
    unsigned char *all;
    void *q[STEPS];
    asked a[STEPS];
    const uint64_t row = 8ull * 64 * 2, bytes = most * row;
    assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_OK);
    gpu_ok(cudaStreamCreate(&stream));
    gpu_ok(cudaMalloc((void **)&all, steps * bytes));
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t n = 1 + (uint32_t)(mix(seed + i) % (i % 3 == 0 ? most : 4));
        a[i] = (asked){.dtype = SHEAF_DTYPE_BF16,
                       .first = (uint32_t)(mix(seed + 100 + i) % (most - n + 1)),
                       .n = n,
                       .prefix_min = 1024};
        q[i] = queries_on_gpu(w, &a[i]);
    }
    gpu_ok(cudaStreamSynchronize(NULL));
    for (uint32_t i = 0; i < steps; i++) {
        const sheaf_kv_view *views = &w->views[a[i].first];
        assert_int_equal(
            sheaf_cuda_plan_batch(plan, &w->items[a[i].first], views, a[i].n, stream),
            SHEAF_OK);
        for (int layer = 0; layer < 2; layer++)
            assert_int_equal(sheaf_cuda_run(plan, views, q[i], all + i * bytes, stream, NULL),
                             SHEAF_OK);
    }
    gpu_ok(cudaStreamSynchronize(stream));
    unsigned char *got = malloc(bytes);
    assert_non_null(got);
    for (uint32_t i = 0; i < steps; i++) {
        gpu_ok(cudaMemcpy(got, all + i * bytes, a[i].n * row, cudaMemcpyDeviceToHost));
        unsigned char *alone = world_run(w, o, &a[i]);
        assert_memory_equal(got, alone, a[i].n * row);
        free(alone);
        gpu_ok(cudaFree(q[i]));
    }
    free(got);
    sheaf_cuda_plan_destroy(plan);
    gpu_ok(cudaStreamDestroy(stream));
    gpu_ok(cudaFree(all));
    world_free(w);
}

static void what_kernels_do_not_read_is_refused(void **state)
{
    (void)state;
    need_gpu();
    world *w = world_make(SHEAF_CODEC_BF16, 64, 4, 2, 32, 16, seed);
    world_add(w, 40, 0, 0);
    world_upload(w);
    sheaf_attn_options o = world_options(w);
    sheaf_cuda_attn_options c = SHEAF_CUDA_ATTN_OPTIONS_INIT;
    sheaf_cuda_plan *plan = NULL;
    o.key_dim = 96;
    assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_E_UNSUPPORTED);
    o.key_dim = 64, o.n_q_heads = 5;
    assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_E_INVALID);
    o.n_q_heads = 4;
    assert_int_equal(sheaf_cuda_plan_create(&o, &c, &plan, NULL), SHEAF_OK);
    assert_int_equal(sheaf_cuda_run(plan, &w->views[0], w->gpu, w->gpu, NULL, NULL),
                     SHEAF_E_PLAN);
    sheaf_kv_view view = w->views[0];
    view.n_rows = 1;
    assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, &view, 1, NULL), SHEAF_E_PLAN);
    view = w->views[0];
    view.codec_k = SHEAF_CODEC_F32;
    assert_int_equal(sheaf_cuda_plan_batch(plan, w->items, &view, 1, NULL), SHEAF_OK);
    assert_int_equal(sheaf_cuda_run(plan, &view, w->gpu, w->gpu, NULL, NULL),
                     SHEAF_E_UNSUPPORTED);
    sheaf_cuda_plan_destroy(plan);
    world_free(w);
}

int main(void)
{
    const char *given = getenv("SHEAF_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_agrees_with_the_reference),
        cmocka_unit_test(groups_and_blocks_of_all_sizes_are_right),
        cmocka_unit_test(window_softcap_and_sinks_are_right),
        cmocka_unit_test(values_of_unlike_size_are_right),
        cmocka_unit_test(what_is_no_number_is_not_lost),
        cmocka_unit_test(cutting_a_step_otherwise_changes_no_bit),
        cmocka_unit_test(sharing_a_prefix_changes_no_bit),
        cmocka_unit_test(how_many_heads_there_are_changes_no_bit),
        cmocka_unit_test(rows_elsewhere_and_graphs_change_no_bit),
        cmocka_unit_test(layers_in_a_row_do_not_disturb_each_other),
        cmocka_unit_test(a_step_gives_the_same_bits_every_time),
        cmocka_unit_test(steps_of_one_plan_are_those_of_new_ones),
        cmocka_unit_test(what_kernels_do_not_read_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
