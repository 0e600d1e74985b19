/* tests/attn/cross_attn.c - one result, to the bit, however it is computed.
 *
 * The measure of every case is the scalar form on the fused path, one thread, all queries at once,
 * over one contiguous buffer.
 */
#include "attn/fixture.h"
#include "odd_fpenv.h"

/* Under sanitizers and emulation, where the scalar form takes ten to thirty times as long, every
 * fourth case. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_EMULATED)
#    define STRIDE 4
#else
#    define STRIDE 1
#endif

static uint32_t isas[4], n_isas;

static sheaf_attn_options options_for(const numbers *n, uint32_t n_q_heads)
{
    sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
    o.n_q_heads = n_q_heads;
    o.n_kv_heads = n->n_kv_heads;
    o.key_dim = n->key_dim;
    o.value_dim = n->value_dim;
    o.isa = SHEAF_ISA_SCALAR;
    return o;
}

static uint64_t out_count(const sheaf_attn_options *o, uint32_t n_queries)
{
    return (uint64_t)n_queries * o->n_q_heads * o->value_dim;
}

/* All of a sequence's queries in one item. */
static float *attend_all(const sheaf_attn_options *o, sheaf_threads *threads, const numbers *n,
                         const sheaf_kv_view *view)
{
    float *q = queries(n, o->n_q_heads, 0, n->n_tokens);
    sheaf_attn_item item = {n->n_tokens, 0, n->n_tokens, 0};
    float *out = attend(o, threads, &item, 1, view, q);
    free(q);
    return out;
}

static float *measure(const sheaf_attn_options *o, const numbers *n)
{
    sheaf_attn_options scalar = *o;
    scalar.isa = SHEAF_ISA_SCALAR;
    scalar.path = SHEAF_ATTN_FUSED;
    layout flat = layout_make(n, (shape){32, 0, 0});
    float *out = attend_all(&scalar, NULL, n, &flat.view);
    assert_true(all_finite(out, out_count(o, n->n_tokens)));
    layout_free(&flat);
    return out;
}

/* The queries [first, first + count), one item, against the measure of all. */
static void expect_part(const sheaf_attn_options *o, sheaf_threads *threads, const numbers *n,
                        const sheaf_kv_view *view, uint32_t first, uint32_t count,
                        const float *all)
{
    float *q = queries(n, o->n_q_heads, first, count);
    sheaf_kv_view cut = *view;
    if (!o->not_causal) cut.n_tokens = first + count; /* what is written at that time */
    sheaf_attn_item item = {count, first, cut.n_tokens, 0};
    float *out = attend(o, threads, &item, 1, &cut, q);
    assert_memory_equal(out, all + out_count(o, first), out_count(o, count) * sizeof *out);
    free(out);
    free(q);
}

static void expect_chunks(const sheaf_attn_options *o, sheaf_threads *threads, const numbers *n,
                          const sheaf_kv_view *view, uint32_t chunk, const float *all)
{
    for (uint32_t first = 0; first < n->n_tokens; first += chunk) {
        uint32_t left = n->n_tokens - first;
        expect_part(o, threads, n, view, first, left < chunk ? left : chunk, all);
    }
}

/* Every instruction set and both paths, whole and in chunks, against the scalar measure. */
static void expect_same_everywhere(const sheaf_attn_options *options, const numbers *n, shape s)
{
    float *all = measure(options, n);
    layout l = layout_make(n, s);
    for (uint32_t i = 0; i < n_isas; i++) {
        for (uint32_t path = SHEAF_ATTN_FUSED; path <= SHEAF_ATTN_GATHER; path++) {
            sheaf_attn_options o = *options;
            o.isa = isas[i];
            o.path = path;
            expect_part(&o, NULL, n, &l.view, 0, n->n_tokens, all);
            uint32_t first = n->n_tokens > 5 ? n->n_tokens - 5 : 0;
            expect_part(&o, NULL, n, &l.view, first, 3, all);
            expect_part(&o, NULL, n, &l.view, n->n_tokens - 1, 1, all);
        }
    }
    layout_free(&l);
    free(all);
}

static void every_head_dimension_gives_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1,  2,  7,  8,  9,  15, 16,  17,  24,  31,  32,  33,
                                    40, 48, 64, 72, 80, 96, 112, 128, 192, 250, 256, 512};
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i += STRIDE) {
        numbers n = {.seed = 10 + i, .n_tokens = 70, .n_kv_heads = 1};
        n.key_dim = dims[i];
        n.value_dim = dims[(i * 7 + 3) % (sizeof dims / sizeof dims[0])];
        n.codec_k = i % SHEAF_CODEC_COUNT, n.codec_v = (i * 3 + 1) % SHEAF_CODEC_COUNT;
        sheaf_attn_options o = options_for(&n, 2);
        expect_same_everywhere(&o, &n, (shape){16, 0, 1});
        n.value_dim = n.key_dim;
        o = options_for(&n, 2);
        expect_same_everywhere(&o, &n, (shape){16, 0, 1});
    }
}

/* Few rows and many: one query after so many positions, and six. */
static void expect_pair(const sheaf_attn_options *options, const numbers *n)
{
    layout l = layout_make(n, (shape){32, 0, 1});
    static const uint32_t counts[] = {1, 6};
    for (uint32_t c = 0; c < 2; c++) {
        uint32_t count = counts[c];
        float *q = queries(n, options->n_q_heads, n->n_tokens - count, count);
        sheaf_attn_item item = {count, n->n_tokens - count, n->n_tokens, 0};
        sheaf_attn_options o = *options;
        o.isa = SHEAF_ISA_SCALAR;
        o.path = SHEAF_ATTN_FUSED;
        float *want = attend(&o, NULL, &item, 1, &l.view, q);
        assert_true(all_finite(want, out_count(&o, count)));
        for (uint32_t i = 0; i < n_isas * 2; i++) {
            o.isa = isas[i / 2];
            o.path = i % 2 ? SHEAF_ATTN_GATHER : SHEAF_ATTN_FUSED;
            float *out = attend(&o, NULL, &item, 1, &l.view, q);
            assert_memory_equal(out, want, out_count(&o, count) * sizeof *out);
            free(out);
        }
        free(want);
        free(q);
    }
    layout_free(&l);
}

static void every_pair_of_codecs_gives_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 80, 96, 128, 256, 37};
    static const uint32_t groups[] = {1, 2, 4, 5, 8};
    static const float sinks[8] = {0.5f, -3.0f, 4.0f, 0.0f, -100.0f, 30.0f};
    const uint32_t n_pairs = SHEAF_CODEC_COUNT * SHEAF_CODEC_COUNT;
    for (uint32_t i = 0; i < n_pairs * 6; i += STRIDE) {
        uint32_t pair = i % n_pairs, dim = dims[i / n_pairs];
        numbers n = {
            100 + i, 270, 1, dim, dim, pair % SHEAF_CODEC_COUNT, pair / SHEAF_CODEC_COUNT};
        sheaf_attn_options o = options_for(&n, groups[i % 5]);
        o.window = i % 3 == 1 ? 200 : 0;
        o.softcap = i % 4 == 3 ? 5.0f : 0.0f;
        o.sinks = i % 7 > 3 ? sinks : NULL;
        expect_pair(&o, &n);
    }
}

/* Dimensions around whole vectors, rows around the forms' borders, the pairs of quantized codecs. */
static void quantized_rows_of_odd_shapes_give_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 5, 15, 17, 31, 33, 47, 63, 65, 96, 127, 129};
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 7, 16, 31};
    for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i += STRIDE) {
        numbers n = {.seed = 300 + i, .n_tokens = 37, .n_kv_heads = 1 + i % 2};
        n.key_dim = dims[i], n.value_dim = dims[(i * 5 + 2) % 12];
        n.codec_k = i % 2 ? SHEAF_CODEC_TURBO4 : SHEAF_CODEC_INT8;
        n.codec_v = i / 2 % 2 ? SHEAF_CODEC_TURBO4 : SHEAF_CODEC_INT8;
        sheaf_attn_options o = options_for(&n, n.n_kv_heads * groups[i % 8]);
        o.window = i % 3 == 1 ? 9 : 0;
        o.softcap = i % 3 == 2 ? 2.5f : 0.0f;
        expect_same_everywhere(&o, &n, (shape){8, 0, 1});
    }
}

static void every_group_size_gives_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 16, 24, 100};
    for (uint32_t i = 0; i < sizeof groups / sizeof groups[0]; i += STRIDE) {
        uint32_t heads = groups[i] == 1 ? 4 : groups[i] > 8 ? 1 : 2;
        numbers n = {120 + i, 100, heads, 32, 32, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
        sheaf_attn_options o = options_for(&n, heads * groups[i]);
        expect_same_everywhere(&o, &n, (shape){32, 0, 1});
    }
}

/* Groups of the sizes that models have, by dimension and quantized pair: all of each with each. */
static void quantized_groups_of_every_dimension_give_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 5, 7, 8, 16}, dims[] = {64, 80, 96, 128, 256};
    for (uint32_t i = 0; i < 6 * 5 * 4; i += STRIDE) {
        uint32_t dim = dims[i / 6 % 5], pair = i / 30;
        numbers n = {400 + i, 41, 1, dim, dim, SHEAF_CODEC_INT8, SHEAF_CODEC_INT8};
        if (pair & 1) n.codec_k = SHEAF_CODEC_TURBO4;
        if (pair & 2) n.codec_v = SHEAF_CODEC_TURBO4;
        sheaf_attn_options o = options_for(&n, groups[i % 6]);
        expect_same_everywhere(&o, &n, (shape){16, 0, 1});
    }
}

static void every_block_size_and_row_order_gives_the_bits_of_one_buffer(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 4, 16, 32, 64, 256, 1024};
    numbers n = {140, 530, 1, 32, 32, SHEAF_CODEC_BF16, SHEAF_CODEC_F16};
    sheaf_attn_options o = options_for(&n, 2);
    float *all = measure(&o, &n);
    for (uint32_t i = 0; i < sizeof tokens / sizeof tokens[0]; i += STRIDE) {
        for (uint32_t shuffled = 0; shuffled < 2; shuffled++) {
            layout l = layout_make(&n, (shape){tokens[i], 0, shuffled});
            for (uint32_t j = 0; j < n_isas; j++) {
                o.isa = isas[j];
                o.path = SHEAF_ATTN_FUSED;
                expect_part(&o, NULL, &n, &l.view, 0, 530, all);
                expect_part(&o, NULL, &n, &l.view, 529, 1, all);
                o.path = SHEAF_ATTN_GATHER;
                expect_part(&o, NULL, &n, &l.view, 0, 530, all);
            }
            layout_free(&l);
        }
    }
    free(all);
}

static void every_chunking_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 32, 100};
    numbers n = {150, 300, 2, 32, 32, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
    sheaf_attn_options o = options_for(&n, 6);
    float *all = measure(&o, &n);
    layout l = layout_make(&n, (shape){32, 0, 1});
    for (uint32_t j = 0; j < n_isas; j++) {
        o.isa = isas[j];
        for (uint32_t i = 0; i < 4; i += STRIDE)
            for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_GATHER; o.path++)
                expect_chunks(&o, NULL, &n, &l.view, chunks[i], all);
    }
    layout_free(&l);
    free(all);
}

static void every_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    numbers n = {160, 1700, 2, 16, 16, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
    layout l = layout_make(&n, (shape){32, 0, 1});
    for (uint32_t j = 0; j < n_isas; j++) {
        sheaf_attn_options o = options_for(&n, 4);
        o.isa = isas[j];
        float *q = queries(&n, 4, 1650, 50);
        sheaf_attn_item item = {50, 1650, 1700, 0}, last = {1, 1699, 1700, 0};
        float *alone = attend(&o, NULL, &item, 1, &l.view, q);
        for (uint32_t n_threads = 1; n_threads <= 5; n_threads += n_threads < 3 ? 1 : STRIDE) {
            sheaf_threads *threads = NULL;
            assert_int_equal(sheaf_threads_create(n_threads, &threads), SHEAF_OK);
            for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_GATHER; o.path++) {
                float *out = attend(&o, threads, &item, 1, &l.view, q);
                assert_memory_equal(out, alone, out_count(&o, 50) * sizeof *out);
                free(out);
                out = attend(&o, threads, &last, 1, &l.view, q + 49 * 4 * 16);
                assert_memory_equal(out, alone + out_count(&o, 49),
                                    out_count(&o, 1) * sizeof *out);
                free(out);
            }
            o.path = SHEAF_ATTN_FUSED;
            sheaf_threads_destroy(threads);
        }
        free(alone);
        free(q);
    }
    layout_free(&l);
}

/* Few rows of many KV heads may go together: eight and three here, fewer with more threads. */
static void many_heads_give_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {4, 16, 32, 64, 512}, counts[] = {1, 2, 5};
    sheaf_threads *threads = NULL;
    assert_int_equal(sheaf_threads_create(3, &threads), SHEAF_OK);
    for (uint32_t i = 0; i < 15; i += STRIDE) {
        const uint32_t count = counts[i % 3], tokens = 530 + i * 11;
        numbers n = {400 + i,
                     tokens,
                     11,
                     48,
                     32,
                     i % SHEAF_CODEC_COUNT,
                     i % 2 ? SHEAF_CODEC_BF16 : i * 2 % SHEAF_CODEC_COUNT};
        layout l = layout_make(&n, (shape){blocks[i / 3], 0, 1});
        sheaf_attn_options o = options_for(&n, 22);
        o.window = i % 4 == 1 ? 300 : 0;
        float *q = queries(&n, 22, tokens - count, count);
        sheaf_attn_item item = {count, tokens - count, tokens, 0};
        float *want = attend(&o, NULL, &item, 1, &l.view, q);
        for (uint32_t j = 0; j < n_isas * 2; j++) {
            o.isa = isas[j / 2];
            float *out = attend(&o, j % 2 ? threads : NULL, &item, 1, &l.view, q);
            assert_memory_equal(out, want, out_count(&o, count) * sizeof *out);
            free(out);
        }
        free(want);
        free(q);
        layout_free(&l);
    }
    sheaf_threads_destroy(threads);
}

static void a_sequence_alone_gives_the_bits_it_has_in_a_ragged_batch(void **state)
{
    (void)state;
    enum { N = 7 };
    static const uint32_t lengths[N] = {1, 31, 32, 257, 300, 600, 512};
    static const uint32_t counts[N] = {1, 31, 1, 5, 40, 1, 17};
    numbers n[N];
    layout l[N];
    sheaf_kv_view views[N];
    sheaf_attn_item items[N];
    for (uint32_t i = 0; i < N; i++) {
        n[i] = (numbers){170 + i,
                         lengths[i],
                         2,
                         32,
                         16,
                         i % SHEAF_CODEC_COUNT,
                         (i * 2 + 1) % SHEAF_CODEC_COUNT};
        l[i] = layout_make(&n[i], (shape){1u << (i % 6), 0, i % 2});
        views[i] = l[i].view;
        items[i] = (sheaf_attn_item){counts[i], lengths[i] - counts[i], lengths[i], 0};
    }
    sheaf_attn_options o = options_for(&n[0], 4);
    size_t stride = 4 * 32;
    float *q = malloc(96 * stride * sizeof *q), *to = q;
    for (uint32_t i = 0; i < N; i++) {
        float *own = queries(&n[i], 4, items[i].first_pos, counts[i]);
        memcpy(to, own, counts[i] * stride * sizeof *q);
        to += counts[i] * stride;
        free(own);
    }
    sheaf_threads *threads = NULL;
    assert_int_equal(sheaf_threads_create(3, &threads), SHEAF_OK);
    for (uint32_t j = 0; j < n_isas; j++) {
        o.isa = isas[j];
        for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_GATHER; o.path++) {
            float *batch = attend(&o, threads, items, N, views, q);
            uint32_t at = 0;
            for (uint32_t i = 0; i < N; at += counts[i++]) {
                float *alone = attend(&o, NULL, &items[i], 1, &views[i], q + at * stride);
                assert_memory_equal(alone, batch + out_count(&o, at),
                                    out_count(&o, counts[i]) * sizeof *alone);
                free(alone);
            }
            free(batch);
        }
    }
    sheaf_threads_destroy(threads);
    for (uint32_t i = 0; i < N; i++) layout_free(&l[i]);
    free(q);
}

static void windows_caps_and_sinks_give_the_bits_of_the_scalar_form(void **state)
{
    (void)state;
    static const float sinks[6] = {0.5f, -3.0f, 4.0f, 0.0f, -100.0f, 30.0f};
    static const uint32_t windows[] = {0, 1, 2, 16, 100, 255, 256, 257, 299, 300, 5000};
    for (uint32_t i = 0; i < sizeof windows / sizeof windows[0]; i += STRIDE) {
        numbers n = {200 + i, 300, 2, 32, 24, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
        sheaf_attn_options o = options_for(&n, 6);
        o.window = windows[i];
        o.softcap = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.5f : 20.0f;
        o.scale = i % 2 ? 0.0f : 0.7f;
        o.sinks = i % 4 < 2 ? sinks : NULL;
        o.not_causal = i % 5 == 4;
        expect_same_everywhere(&o, &n, (shape){16, 0, 1});
    }
}

static void blocks_before_the_window_need_not_be_held(void **state)
{
    (void)state;
    static const uint32_t firsts[] = {1, 8, 15, 16, 17, 24, 31};
    numbers n = {220, 560, 2, 32, 32, SHEAF_CODEC_BF16, SHEAF_CODEC_F32};
    sheaf_attn_options o = options_for(&n, 4);
    for (uint32_t i = 0; i < sizeof firsts / sizeof firsts[0]; i += STRIDE) {
        uint32_t held = firsts[i] * 16, first = 545;
        o.window = first - held + 1; /* the first query sees just what is held */
        float *all = measure(&o, &n);
        layout l = layout_make(&n, (shape){16, firsts[i], i % 2});
        for (uint32_t j = 0; j < n_isas; j++) {
            o.isa = isas[j];
            for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_GATHER; o.path++) {
                expect_part(&o, NULL, &n, &l.view, first, 15, all);
                expect_part(&o, NULL, &n, &l.view, 559, 1, all);
            }
        }
        layout_free(&l);
        free(all);
    }
}

static void an_odd_floating_point_environment_changes_no_bit(void **state)
{
    (void)state;
    numbers n = {230, 300, 1, 32, 32, SHEAF_CODEC_F32, SHEAF_CODEC_F32};
    sheaf_attn_options o = options_for(&n, 2);
    float *all = measure(&o, &n);
    layout l = layout_make(&n, (shape){32, 0, 1});
    float *q = queries(&n, 2, 0, n.n_tokens);
    sheaf_attn_item item = {n.n_tokens, 0, n.n_tokens, 0};
    sheaf_threads *threads = NULL;
    assert_int_equal(sheaf_threads_create(2, &threads), SHEAF_OK);
    for (uint32_t j = 0; j < n_isas; j++) {
        o.isa = isas[j];
        for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_GATHER; o.path++) {
            fpenv_set(ODD_FPENV);
            float *out = attend(&o, threads, &item, 1, &l.view, q);
            uint32_t after = fpenv_now();
            fpenv_set(DEFAULT_FPENV);
            assert_int_equal(after, ODD_FPENV);
            assert_memory_equal(out, all, out_count(&o, n.n_tokens) * sizeof *out);
            free(out);
        }
    }
    sheaf_threads_destroy(threads);
    layout_free(&l);
    free(q);
    free(all);
}

/* Values so small that products underflow to -0, denormals, and a later +0 would show. */
static void denormal_products_and_signed_zeros_keep_their_bits(void **state)
{
    (void)state;
    numbers n = {240, 340, 1, 16, 32, SHEAF_CODEC_F32, SHEAF_CODEC_F32};
    sheaf_attn_options o = options_for(&n, 3);
    o.scale = 30.0f; /* weights down to nothing */
    layout flat = layout_make(&n, (shape){32, 0, 0}), paged = layout_make(&n, (shape){4, 0, 1});
    for (uint32_t p = 0; p < n.n_tokens; p++) {
        for (uint32_t d = 0; d < 32; d++) {
            float x = value_number(&n, p, 0, d) * 1e-37f;
            if (mix(p * 32 + d) % 3 == 0) x = copysignf(0.0f, x);
            uint64_t row = paged.view.rows[p / 4];
            memcpy(flat.memory + flat.view.v_offset + ((size_t)p * 32 + d) * 4, &x, 4);
            memcpy(paged.memory + row * paged.view.row_stride_v + paged.view.v_offset +
                       ((size_t)(p % 4) * 32 + d) * 4,
                   &x, 4);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        o.window =
            i * 50; /* with one, rows of a tile lack the first split and merge it unchanged */
        o.isa = SHEAF_ISA_SCALAR;
        o.path = SHEAF_ATTN_FUSED;
        float *all = attend_all(&o, NULL, &n, &flat.view);
        uint64_t negative_zeros = 0;
        for (uint64_t j = 0; j < out_count(&o, n.n_tokens); j++)
            negative_zeros += all[j] == 0.0f && signbit(all[j]);
        assert_true(negative_zeros > 0);
        for (uint32_t j = 0; j < n_isas; j++) {
            o.isa = isas[j];
            for (o.path = SHEAF_ATTN_FUSED; o.path <= SHEAF_ATTN_GATHER; o.path++) {
                expect_chunks(&o, NULL, &n, &paged.view, 340, all);
                expect_chunks(&o, NULL, &n, &paged.view, 6, all);
                expect_chunks(&o, NULL, &n, &paged.view, 1, all);
            }
        }
        free(all);
    }
    layout_free(&flat);
    layout_free(&paged);
}

static int group_setup(void **state)
{
    (void)state;
    n_isas = isas_here(isas);
    return n_isas == 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_dimension_gives_the_bits_of_the_scalar_form),
        cmocka_unit_test(every_pair_of_codecs_gives_the_bits_of_the_scalar_form),
        cmocka_unit_test(quantized_rows_of_odd_shapes_give_the_bits_of_the_scalar_form),
        cmocka_unit_test(every_group_size_gives_the_bits_of_the_scalar_form),
        cmocka_unit_test(quantized_groups_of_every_dimension_give_the_bits_of_the_scalar_form),
        cmocka_unit_test(every_block_size_and_row_order_gives_the_bits_of_one_buffer),
        cmocka_unit_test(every_chunking_gives_the_same_bits),
        cmocka_unit_test(every_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(many_heads_give_the_bits_of_the_scalar_form),
        cmocka_unit_test(a_sequence_alone_gives_the_bits_it_has_in_a_ragged_batch),
        cmocka_unit_test(windows_caps_and_sinks_give_the_bits_of_the_scalar_form),
        cmocka_unit_test(blocks_before_the_window_need_not_be_held),
        cmocka_unit_test(an_odd_floating_point_environment_changes_no_bit),
        cmocka_unit_test(denormal_products_and_signed_zeros_keep_their_bits),
    };
    return cmocka_run_group_tests_name("cross_attn", tests, group_setup, NULL);
}
