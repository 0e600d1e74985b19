/* tests/model/test_same_bits.c - same tokens, same bits: logits do not depend on how they were
 * come by.
 *
 * Each case computes the logits of every position of a text in some other way than the plain
 * one (one thread, alone, all at once, fused, paged, fresh blocks) and compares all of them by
 * memcmp. The texts cross the border of an attention split (256 positions) and many of blocks.
 * The demo model and four fixtures (Llama 3 rope without q/k norm; Qwen3 without grouping; Mistral,
 * a window of 32 in all layers; Gemma 3, two groups, one with a window of 16), each codec, and a pair.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/rig.h"
#include "odd_fpenv.h"

#define N_MODELS 5
#define N_TOKENS 290
#define N_RAGGED 5
#define N_PAIRS  6

static const struct {
    const char *dir;
    uint32_t prompt; /* of its golden file, at least N_TOKENS long */
} models[N_MODELS] = {{"models/sheaf-demo", 12},
                      {"tests/data/fixtures/llama3-tied", 4},
                      {"tests/data/fixtures/qwen3-untied-gqa1", 4},
                      {"tests/data/fixtures/mistral-swa", 4},
                      {"tests/data/fixtures/gemma3-mixed", 4}};

/* What K and V are stored as. */
static const struct {
    uint32_t k, v;
} pairs[N_PAIRS] = {
    {SHEAF_CODEC_F32, SHEAF_CODEC_F32},       {SHEAF_CODEC_F16, SHEAF_CODEC_F16},
    {SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},     {SHEAF_CODEC_INT8, SHEAF_CODEC_INT8},
    {SHEAF_CODEC_TURBO4, SHEAF_CODEC_TURBO4}, {SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4}};

/* A text and the logits that the plain way gives, per model and pair. */
typedef struct truth {
    rig_ids text;
    float *logits; /* [N_TOKENS, vocab] */
    uint64_t row;  /* bytes of one position's logits */
} truth;
static truth truths[N_MODELS][N_PAIRS];

/* The quantized codecs with one small model, and the pair with windows, for the sake of time. */
static bool is_run(uint32_t model, uint32_t pair)
{
    return pair < SHEAF_DTYPE_COUNT || model == 1 || (model == 4 && pair == N_PAIRS - 1);
}

typedef void way_fn(const rig_options *options, const truth *t);

static rig_options plain(uint32_t model, uint32_t pair)
{
    return (rig_options){
        .dir = models[model].dir, .codec_k = pairs[pair].k, .codec_v = pairs[pair].v};
}

static int set_up(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MODELS; m++)
        for (uint32_t p = 0; p < N_PAIRS; p++) {
            if (!is_run(m, p)) continue;
            truth *t = &truths[m][p];
            rig_options o = plain(m, p);
            rig r;
            rig_open(&r, &o);
            t->text = rig_prompt(o.dir, models[m].prompt, N_TOKENS);
            assert_int_equal(t->text.n, N_TOKENS);
            t->row = r.config.vocab * sizeof *t->logits;
            t->logits = malloc(N_TOKENS * t->row);
            assert_non_null(t->logits);
            sheaf__kv kv = rig_kv(&r);
            rig_feed(&r, &kv, t->text.data, N_TOKENS, 0, t->logits);
            sheaf__kv_destroy(&kv);
            rig_close(&r);
        }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MODELS; m++)
        for (uint32_t p = 0; p < N_PAIRS; p++) {
            free(truths[m][p].text.data);
            free(truths[m][p].logits);
        }
    return 0;
}

static void with_every_model_and_codec(way_fn *way)
{
    for (uint32_t m = 0; m < N_MODELS; m++)
        for (uint32_t p = 0; p < N_PAIRS; p++) {
            if (!is_run(m, p)) continue;
            rig_options o = plain(m, p);
            way(&o, &truths[m][p]);
        }
}

/* ---- comparing --------------------------------------------------------------------------- */

static void same_logits(const truth *t, const float *logits, uint32_t first, uint32_t n)
{
    const char *wanted = (const char *)t->logits + first * t->row, *got = (const char *)logits;
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(got + i * t->row, wanted + i * t->row, t->row) != 0) {
            print_error("the logits of position %u differ\n", first + i);
            fail();
        }
}

/* Feeds the text from where `kv` is up to `end` and compares every logit. */
static void feed_and_compare(rig *r, sheaf__kv *kv, const truth *t, uint32_t end,
                             uint32_t chunk)
{
    uint32_t first = sheaf__kv_length(kv), n = end - first;
    float *logits = malloc(n * t->row);
    assert_non_null(logits);
    rig_feed(r, kv, t->text.data + first, n, chunk, logits);
    same_logits(t, logits, first, n);
    free(logits);
}

/* The whole text through a rig of these options, in chunks. */
static sheaf_attn_report whole_text(const rig_options *o, const truth *t, uint32_t chunk)
{
    sheaf_attn_report report;
    rig r;
    rig_open(&r, o);
    sheaf__kv kv = rig_kv(&r);
    feed_and_compare(&r, &kv, t, N_TOKENS, chunk);
    sheaf__forward_report(r.forward, &report);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
    return report;
}

/* ---- backends, paths, threads, chunks ---------------------------------------------------- */

static void way_backends(const rig_options *options, const truth *t)
{
    for (uint32_t backend = SHEAF__KV_PAGED; backend <= SHEAF__KV_DENSE; backend++)
        for (uint32_t path = SHEAF_ATTN_FUSED; path <= SHEAF_ATTN_GATHER; path++) {
            rig_options o = *options;
            o.backend = backend;
            o.attn_path = path;
            assert_int_equal(whole_text(&o, t, 64).path, path);
        }
}

static void dense_equals_paged_fused_equals_paged_gathered(void **state)
{
    (void)state;
    with_every_model_and_codec(way_backends);
}

static void way_threads(const rig_options *options, const truth *t)
{
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        rig_options o = *options;
        o.n_threads = n_threads;
        assert_int_equal(whole_text(&o, t, 253).n_threads, n_threads);
    }
}

static void one_two_and_three_threads_agree(void **state)
{
    (void)state;
    with_every_model_and_codec(way_threads);
}

static void way_chunks(const rig_options *options, const truth *t)
{
    static const uint32_t chunks[] = {1, 7, 32, 100, N_TOKENS};
    for (uint32_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
        whole_text(options, t, chunks[i]);
}

static void prefill_in_any_chunks_equals_all_at_once_equals_decoding(void **state)
{
    (void)state;
    with_every_model_and_codec(way_chunks);
}

static void way_tiny_blocks(const rig_options *options, const truth *t)
{
    rig_options o = *options;
    o.block_tokens = 4;
    whole_text(&o, t, 33);
    o.backend = SHEAF__KV_DENSE;
    whole_text(&o, t, 33);
    o.block_tokens = 1024;
    whole_text(&o, t, 33);
}

static void blocks_of_4_tokens_equal_blocks_of_32(void **state)
{
    (void)state;
    with_every_model_and_codec(way_tiny_blocks);
}

/* ---- ragged batches ---------------------------------------------------------------------- */

/* Every item walks the text at its own pace (some in chunks, some token by token), all in one
 * batch a step, until the slowest is through its share. */
static void way_ragged(const rig_options *options, const truth *t)
{
    static const uint32_t paces[N_RAGGED] = {1, 13, 40, 1, 97};
    static const uint32_t starts[N_RAGGED] = {250, 5, 0, 30, 100};
    rig_options o = *options;
    o.n_threads = 2;
    rig r;
    rig_open(&r, &o);
    sheaf__kv kv[N_RAGGED];
    for (uint32_t i = 0; i < N_RAGGED; i++) {
        kv[i] = rig_kv(&r);
        rig_feed(&r, &kv[i], t->text.data, starts[i], 0, NULL);
    }
    float *logits = malloc(N_RAGGED * N_TOKENS * t->row);
    assert_non_null(logits);
    for (uint32_t step = 0; step < 20; step++) {
        sheaf__forward_item items[N_RAGGED];
        uint32_t first[N_RAGGED], n_items = 0;
        for (uint32_t i = 0; i < N_RAGGED; i++) {
            uint32_t at = sheaf__kv_length(&kv[i]), left = N_TOKENS - at;
            uint32_t n = left < paces[i] ? left : paces[i];
            if (n == 0) continue;
            first[n_items] = at;
            items[n_items++] = (sheaf__forward_item){&kv[i], t->text.data + at, n, n, 0};
            assert_int_equal(sheaf__kv_extend(&kv[i], n), SHEAF_OK);
        }
        assert_int_equal(sheaf__forward_run(r.forward, items, n_items, logits), SHEAF_OK);
        const float *at = logits;
        for (uint32_t i = 0; i < n_items; i++) {
            const sheaf__forward_item *item = &items[i];
            same_logits(t, at, first[i], item->n_tokens);
            at += item->n_tokens * (t->row / sizeof *at);
            assert_int_equal(sheaf__kv_commit(item->kv, item->n_tokens, item->tokens),
                             SHEAF_OK);
        }
    }
    free(logits);
    for (uint32_t i = 0; i < N_RAGGED; i++) sheaf__kv_destroy(&kv[i]);
    rig_close(&r);
}

static void alone_equals_in_a_ragged_batch(void **state)
{
    (void)state;
    with_every_model_and_codec(way_ragged);
}

/* ---- sharing ----------------------------------------------------------------------------- */

/* Forks in the middle of a block; the parent is led astray first, so that a write into a shared
 * tail would show. Both forms of cache. */
static void way_fork(const rig_options *options, const truth *t)
{
    for (uint32_t backend = SHEAF__KV_PAGED; backend <= SHEAF__KV_DENSE; backend++) {
        rig_options o = *options;
        o.backend = backend;
        rig r;
        rig_open(&r, &o);
        sheaf__kv parent = rig_kv(&r), twin, third;
        rig_feed(&r, &parent, t->text.data, 150, 0, NULL);
        assert_int_equal(sheaf__kv_fork(&parent, &twin), SHEAF_OK);
        assert_int_equal(sheaf__kv_fork(&twin, &third), SHEAF_OK);
        rig_feed(&r, &parent, t->text.data, 90, 0,
                 NULL); /* other tokens than the text has here */
        feed_and_compare(&r, &twin, t, 200, 1);
        feed_and_compare(&r, &third, t, N_TOKENS, 0);
        assert_int_equal(sheaf__kv_truncate(&parent, 150), SHEAF_OK);
        feed_and_compare(&r, &parent, t, N_TOKENS, 45);
        feed_and_compare(&r, &twin, t, N_TOKENS, 0);
        sheaf__kv_destroy(&twin);
        sheaf__kv_destroy(&parent);
        sheaf__kv_destroy(&third);
        rig_close(&r);
    }
}

static void forked_equals_unshared(void **state)
{
    (void)state;
    with_every_model_and_codec(way_fork);
}

/* Two forks of one prompt, which share its blocks, in one batch. */
static void way_fork_batch(const rig_options *options, const truth *t)
{
    rig r;
    rig_open(&r, options);
    sheaf__kv kv[2] = {rig_kv(&r)};
    rig_feed(&r, &kv[0], t->text.data, 270, 0, NULL);
    assert_int_equal(sheaf__kv_fork(&kv[0], &kv[1]), SHEAF_OK);
    float *logits = malloc(2 * 7 * t->row);
    assert_non_null(logits);
    sheaf__forward_item items[2];
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(sheaf__kv_extend(&kv[i], 7), SHEAF_OK);
        items[i] = (sheaf__forward_item){&kv[i], t->text.data + 270, 7, 7, 0};
    }
    assert_int_equal(sheaf__forward_run(r.forward, items, 2, logits), SHEAF_OK);
    same_logits(t, logits, 270, 7);
    same_logits(t, logits + 7 * (t->row / sizeof *logits), 270, 7);
    free(logits);
    sheaf__kv_destroy(&kv[0]);
    sheaf__kv_destroy(&kv[1]);
    rig_close(&r);
}

static void forks_in_one_batch_equal_unshared(void **state)
{
    (void)state;
    with_every_model_and_codec(way_fork_batch);
}

static void way_park(const rig_options *options, const truth *t)
{
    rig r;
    rig_open(&r, options);
    sheaf__kv kv = rig_kv(&r), other = rig_kv(&r);
    sheaf_parked *parked = NULL;
    rig_feed(&r, &kv, t->text.data, 141, 0, NULL);
    assert_int_equal(sheaf_sequence_park(kv.sequence, &parked), SHEAF_OK);
    rig_feed(&r, &other, t->text.data + 9, 60, 0, NULL); /* life goes on meanwhile */
    assert_int_equal(sheaf_parked_adopt(parked, &kv.sequence), SHEAF_OK);
    sheaf__kv_destroy(&other);
    feed_and_compare(&r, &kv, t, N_TOKENS, 50);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void parked_and_adopted_equals_never_parked(void **state)
{
    (void)state;
    with_every_model_and_codec(way_park);
}

static void way_clone(const rig_options *options, const truth *t)
{
    static const uint32_t lengths[] = {32, 33, 157, 257, 270};
    rig r;
    rig_open(&r, options);
    sheaf__kv kv = rig_kv(&r);
    sheaf_parked *parked = NULL;
    rig_feed(&r, &kv, t->text.data, 270, 0, NULL);
    assert_int_equal(sheaf_sequence_park(kv.sequence, &parked), SHEAF_OK);
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        sheaf__kv clone = {.backend = SHEAF__KV_PAGED};
        assert_int_equal(sheaf_parked_clone(parked, lengths[i], &clone.sequence), SHEAF_OK);
        feed_and_compare(&r, &clone, t, N_TOKENS, 0);
        sheaf__kv_destroy(&clone);
    }
    sheaf_parked_destroy(parked);
    rig_close(&r);
}

static void cloned_to_an_odd_length_equals_cold(void **state)
{
    (void)state;
    with_every_model_and_codec(way_clone);
}

/* ---- where blocks lie -------------------------------------------------------------------- */

#define N_FILLERS 96

static void check_scattered(const rig *r, const sheaf__kv *kv)
{
    sheaf_kv_view view;
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf__kv_view(kv, 0, &view), SHEAF_OK);
    uint32_t descents = 0;
    for (uint32_t i = 1; i < view.n_rows; i++) descents += view.rows[i] < view.rows[i - 1];
    assert_true(descents > 2);
    assert_int_equal(sheaf_pool_stats_read(r->pool, &stats), SHEAF_OK);
    assert_true(stats.slabs > 2);
}

/* Fills several slabs with sequences of one block, lets go of them in an odd order while the
 * text is fed, so that it gets used rows, out of order, from many slabs. */
static void way_fragmented(const rig_options *options, const truth *t)
{
    rig_options o = *options;
    o.block_tokens = 4;
    o.slab_blocks = 8;
    rig r;
    rig_open(&r, &o);
    sheaf__kv fillers[N_FILLERS], kv = rig_kv(&r);
    for (uint32_t i = 0; i < N_FILLERS; i++) {
        fillers[i] = rig_kv(&r);
        rig_feed(&r, &fillers[i], t->text.data + i, 4, 0, NULL);
    }
    for (uint32_t i = 0; i < N_FILLERS; i++) {
        sheaf__kv_destroy(&fillers[i * 37 % N_FILLERS]); /* 37 and 96 have no common factor */
        uint32_t end = (i + 1) * N_TOKENS / N_FILLERS;
        feed_and_compare(&r, &kv, t, end, 0);
    }
    check_scattered(&r, &kv);
    sheaf__kv twin = rig_kv(&r);
    feed_and_compare(&r, &twin, t, N_TOKENS, 0);
    sheaf__kv_destroy(&twin);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

/* A layer with a window, or the number of layers. */
static uint32_t windowed_layer(const rig *r)
{
    uint32_t layer = 0;
    while (layer < r->config.n_layers && r->config.window[layer] == 0) layer++;
    return layer;
}

/* Blocks that a window has left go back after every step, and other sequences' tokens are written into
 * them at once. */
static void way_slide(const rig_options *options, const truth *t)
{
    rig_options o = *options;
    o.block_tokens = 4;
    o.slab_blocks = 8;
    rig r;
    rig_open(&r, &o);
    uint32_t layer = windowed_layer(&r), window = r.config.window[layer];
    sheaf__kv kv = rig_kv(&r), other = rig_kv(&r);
    for (uint32_t end = 0; layer < r.config.n_layers && end < N_TOKENS;) {
        end = end + 7 < N_TOKENS ? end + 7 : N_TOKENS;
        feed_and_compare(&r, &kv, t, end, end % 2 ? 1 : 0);
        assert_int_equal(sheaf__kv_slide(&kv, 3), SHEAF_OK);
        sheaf_kv_view view;
        assert_int_equal(sheaf__kv_view(&kv, layer, &view), SHEAF_OK);
        assert_true(view.n_rows <= (window + 3) / 4 + 2);
        assert_int_equal(view.first_block, end > window + 3 ? (end - window - 3) / 4 : 0);
        rig_feed(&r, &other, t->text.data + end / 2, 3, 0, NULL);
        assert_int_equal(sheaf_pool_check(r.pool, NULL), SHEAF_OK);
        assert_int_equal(sheaf_sequence_check(kv.sequence, NULL), SHEAF_OK);
        if (end < 200) continue;
        assert_int_equal(sheaf__kv_truncate(&kv, end - 2), SHEAF_OK); /* rejected drafts */
        feed_and_compare(&r, &kv, t, end, 0);
        assert_int_equal(sheaf__kv_truncate(&kv, end / 2), SHEAF_E_SLID);
    }
    sheaf__kv_destroy(&other);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void a_window_that_slides_equals_one_that_keeps_all(void **state)
{
    (void)state;
    with_every_model_and_codec(way_slide);
}

static void fragmented_rows_equal_fresh_ones(void **state)
{
    (void)state;
    with_every_model_and_codec(way_fragmented);
}

/* ---- the caller's floating-point environment --------------------------------------------- */

static void way_odd_environment(const rig_options *options, const truth *t)
{
    rig_options o = *options;
    o.n_threads = 2;
    rig r;
    rig_open(&r, &o);
    sheaf__kv kv = rig_kv(&r);
    float *logits = malloc(N_TOKENS * t->row);
    assert_non_null(logits);
    fpenv_set(ODD_FPENV);
    rig_feed(&r, &kv, t->text.data, N_TOKENS, 120, logits);
    uint32_t left = fpenv_now();
    fpenv_set(DEFAULT_FPENV);
    assert_int_equal(left, ODD_FPENV);
    same_logits(t, logits, 0, N_TOKENS);
    free(logits);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void entry_with_flush_to_zero_and_odd_rounding_changes_nothing(void **state)
{
    (void)state;
    with_every_model_and_codec(way_odd_environment);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_equals_paged_fused_equals_paged_gathered),
        cmocka_unit_test(one_two_and_three_threads_agree),
        cmocka_unit_test(prefill_in_any_chunks_equals_all_at_once_equals_decoding),
        cmocka_unit_test(blocks_of_4_tokens_equal_blocks_of_32),
        cmocka_unit_test(alone_equals_in_a_ragged_batch),
        cmocka_unit_test(forked_equals_unshared),
        cmocka_unit_test(forks_in_one_batch_equal_unshared),
        cmocka_unit_test(parked_and_adopted_equals_never_parked),
        cmocka_unit_test(cloned_to_an_odd_length_equals_cold),
        cmocka_unit_test(fragmented_rows_equal_fresh_ones),
        cmocka_unit_test(a_window_that_slides_equals_one_that_keeps_all),
        cmocka_unit_test(entry_with_flush_to_zero_and_odd_rounding_changes_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
