/* tests/model/test_cached_query.c - queries of positions whose K and V are in the cache already.
 *
 * Each case asks a cache for logits of positions that were committed before, and compares them by
 * memcmp with those that came out when the positions were run for the first time: in both
 * backends, with one group and with two, however the cache was filled, whatever else is in the
 * batch. Nothing may be reserved, written, copied or taken for it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/rig.h"

#define LLAMA "tests/data/fixtures/llama3-tied"
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_EMULATED)
#    define FEWER 1 /* without the demo model, which takes minutes there */
#else
#    define FEWER 0
#endif
#define N_MODELS 6
#define N_TOKENS 290 /* past the border of an attention split (256) */

static const struct {
    const char *dir;
    uint32_t prompt; /* of its golden file, at least N_TOKENS long */
    uint32_t codec_k, codec_v;
} models[N_MODELS] = {
    {"models/sheaf-demo", 12, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},
    {LLAMA, 4, SHEAF_CODEC_F32, SHEAF_CODEC_F32},
    {"tests/data/fixtures/qwen3-headdim", 4, SHEAF_CODEC_F16, SHEAF_CODEC_F16},
    {"tests/data/fixtures/mistral-swa", 4, SHEAF_CODEC_F32, SHEAF_CODEC_F32},
    {"tests/data/fixtures/gemma3-mixed", 4, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},
    {"tests/data/fixtures/gemma3-mixed", 4, SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4}};

/* A text, and the logits that it gives when run for the first time. */
typedef struct truth {
    rig_options options; /* of the plain way: one thread, paged, fused */
    rig_ids text;
    float *logits; /* [N_TOKENS, vocab] */
    uint64_t vocab;
} truth;
static truth truths[N_MODELS];

static int set_up(void **state)
{
    (void)state;
    for (uint32_t m = 0; m < N_MODELS; m++) {
        truth *t = &truths[m];
        t->options = (rig_options){
            .dir = models[m].dir, .codec_k = models[m].codec_k, .codec_v = models[m].codec_v};
        rig r;
        rig_open(&r, &t->options);
        t->text = rig_prompt(models[m].dir, models[m].prompt, N_TOKENS);
        assert_int_equal(t->text.n, N_TOKENS);
        t->vocab = r.config.vocab;
        t->logits = malloc(N_TOKENS * t->vocab * sizeof *t->logits);
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
    for (uint32_t m = 0; m < N_MODELS; m++) {
        free(truths[m].text.data);
        free(truths[m].logits);
    }
    return 0;
}

static void same_logits(const truth *t, const float *logits, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(logits + i * t->vocab, t->logits + (first + i) * t->vocab,
                   t->vocab * sizeof *logits) != 0) {
            print_error("%s: the logits of position %u differ\n", t->options.dir, first + i);
            fail();
        }
}

/* What a query must leave as it was. */
typedef struct footprint {
    uint32_t length, reserved, n_rows;
    sheaf_pool_stats stats;
} footprint;

static footprint footprint_of(const rig *r, const sheaf__kv *kv)
{
    footprint f = {.length = sheaf__kv_length(kv), .reserved = sheaf__kv_reserved(kv)};
    for (uint32_t layer = 0; layer < r->config.n_layers; layer++) {
        sheaf_kv_view view;
        assert_int_equal(sheaf__kv_view(kv, layer, &view), SHEAF_OK);
        assert_int_equal(view.n_tokens, f.length);
        f.n_rows += view.n_rows;
    }
    f.stats = (sheaf_pool_stats)SHEAF_POOL_STATS_INIT;
    if (r->pool != NULL) assert_int_equal(sheaf_pool_stats_read(r->pool, &f.stats), SHEAF_OK);
    return f;
}

/* Room for the logits of a whole text and another. */
static float *room_for_logits(const truth *t)
{
    float *logits = malloc(2 * N_TOKENS * t->vocab * sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* Asks for the last n positions alone, and compares. */
static void query_and_compare(rig *r, sheaf__kv *kv, const truth *t, uint32_t n)
{
    float *logits = room_for_logits(t);
    uint32_t first = sheaf__kv_length(kv) - n;
    footprint before = footprint_of(r, kv);
    const sheaf__forward_item item = {kv, t->text.data + first, n, n, n};
    assert_int_equal(sheaf__forward_run(r->forward, &item, 1, logits), SHEAF_OK);
    same_logits(t, logits, first, n);
    footprint after = footprint_of(r, kv);
    assert_memory_equal(&after, &before, sizeof after);
    free(logits);
}

typedef void way_fn(const truth *t, const rig_options *options);

/* In both backends, with the models from `first` on. */
static void with_caches(way_fn *way, uint32_t first)
{
    for (uint32_t m = first; m < N_MODELS; m++)
        for (uint32_t backend = SHEAF__KV_PAGED; backend <= SHEAF__KV_DENSE; backend++) {
            rig_options o = truths[m].options;
            o.backend = backend;
            way(&truths[m], &o);
        }
}

static void with_every_cache(way_fn *way)
{
    with_caches(way, FEWER);
}

static void with_every_fixture(way_fn *way)
{
    with_caches(way, 1); /* the demo model takes longer than all of them */
}

/* ---- the last position, and several ------------------------------------------------------ */

/* The lengths where a block begins, ends or is complete, and those where a split is. */
static void way_lengths(const truth *t, const rig_options *options)
{
    static const uint32_t lengths[] = {1, 31, 32, 33, 96, 255, 256, 257, N_TOKENS};
    rig r;
    rig_open(&r, options);
    sheaf__kv kv = rig_kv(&r);
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t at = sheaf__kv_length(&kv);
        rig_feed(&r, &kv, t->text.data + at, lengths[i] - at, 50, NULL);
        query_and_compare(&r, &kv, t, 1);
        query_and_compare(&r, &kv, t, 1);
    }
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void the_last_position_gives_its_logits_again_at_every_kind_of_length(void **state)
{
    (void)state;
    with_every_cache(way_lengths);
}

static void way_several(const truth *t, const rig_options *options)
{
    static const uint32_t counts[] = {2, 31, 34, 35, 257, N_TOKENS};
    rig r;
    rig_open(&r, options);
    sheaf__kv kv = rig_kv(&r);
    rig_feed(&r, &kv, t->text.data, N_TOKENS, 97, NULL);
    for (uint32_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        query_and_compare(&r, &kv, t, counts[i]);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void several_last_positions_give_theirs(void **state)
{
    (void)state;
    with_every_fixture(way_several);
}

static void way_threads(const truth *t, const rig_options *options)
{
    for (uint32_t path = SHEAF_ATTN_FUSED; path <= SHEAF_ATTN_GATHER; path++)
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
            rig_options o = *options;
            o.n_threads = n_threads;
            o.attn_path = path;
            o.block_tokens = 4;
            rig r;
            rig_open(&r, &o);
            sheaf__kv kv = rig_kv(&r);
            rig_feed(&r, &kv, t->text.data, N_TOKENS - 1, 0, NULL);
            query_and_compare(&r, &kv, t, 1);
            query_and_compare(&r, &kv, t, 20);
            sheaf__kv_destroy(&kv);
            rig_close(&r);
        }
}

static void any_threads_path_and_block_size_agree(void **state)
{
    (void)state;
    with_every_fixture(way_threads);
}

/* ---- beside what is new ------------------------------------------------------------------ */

/* One item: positions 140 to 169 are there, the 31 after them are not. */
static void way_then_new(const truth *t, const rig_options *options)
{
    rig r;
    rig_open(&r, options);
    sheaf__kv kv = rig_kv(&r);
    float *logits = room_for_logits(t);
    rig_feed(&r, &kv, t->text.data, 170, 64, NULL);
    assert_int_equal(sheaf__kv_extend(&kv, 31), SHEAF_OK);
    const sheaf__forward_item item = {&kv, t->text.data + 140, 61, 61, 30};
    assert_int_equal(sheaf__forward_run(r.forward, &item, 1, logits), SHEAF_OK);
    same_logits(t, logits, 140, 61);
    assert_int_equal(sheaf__kv_commit(&kv, 31, t->text.data + 170), SHEAF_OK);
    rig_feed(&r, &kv, t->text.data + 201, N_TOKENS - 201, 40, logits);
    same_logits(t, logits, 201, N_TOKENS - 201);
    sheaf__kv_destroy(&kv);
    free(logits);
    rig_close(&r);
}

static void an_item_may_go_on_from_cached_tokens_to_new_ones(void **state)
{
    (void)state;
    with_every_fixture(way_then_new);
}

/* Prefill, queries of one and of many cached positions, decoding, and both kinds in one item. */
static void way_mixed(const truth *t, const rig_options *options)
{
    static const struct {
        uint32_t length, n_new, n_cached;
    } parts[] = {{0, 77, 0}, {288, 0, 1}, {150, 1, 0}, {270, 0, 40}, {33, 30, 5}, {32, 0, 1}};
    enum { N = sizeof parts / sizeof parts[0] };
    rig_options o = *options;
    o.n_threads = 2;
    rig r;
    rig_open(&r, &o);
    sheaf__kv kv[N];
    sheaf__forward_item items[N];
    for (uint32_t i = 0; i < N; i++) {
        kv[i] = rig_kv(&r);
        if (parts[i].length != 0) rig_feed(&r, &kv[i], t->text.data, parts[i].length, 0, NULL);
        assert_int_equal(sheaf__kv_extend(&kv[i], parts[i].n_new), SHEAF_OK);
        uint32_t n = parts[i].n_cached + parts[i].n_new;
        items[i] =
            (sheaf__forward_item){&kv[i], t->text.data + parts[i].length - parts[i].n_cached, n,
                                  n, parts[i].n_cached};
    }
    float *logits = room_for_logits(t), *at = logits;
    assert_int_equal(sheaf__forward_run(r.forward, items, N, logits), SHEAF_OK);
    for (uint32_t i = 0; i < N; i++) {
        same_logits(t, at, parts[i].length - parts[i].n_cached, items[i].n_tokens);
        at += items[i].n_tokens * t->vocab;
        sheaf__kv_destroy(&kv[i]);
    }
    free(logits);
    rig_close(&r);
}

static void a_batch_may_mix_them_with_ordinary_items(void **state)
{
    (void)state;
    with_every_cache(way_mixed);
}

/* A fork that shares a partial last block is asked while its twin writes on in the same batch. */
static void way_twin(const truth *t, const rig_options *options)
{
    rig r;
    rig_open(&r, options);
    sheaf__kv kv = rig_kv(&r), twin;
    float *logits = room_for_logits(t);
    rig_feed(&r, &kv, t->text.data, 270, 0, NULL);
    assert_int_equal(sheaf__kv_fork(&kv, &twin), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&twin, 20), SHEAF_OK);
    const sheaf__forward_item items[2] = {{&twin, t->text.data + 270, 20, 20, 0},
                                          {&kv, t->text.data + 260, 10, 10, 10}};
    assert_int_equal(sheaf__forward_run(r.forward, items, 2, logits), SHEAF_OK);
    same_logits(t, logits, 270, 20);
    same_logits(t, logits + 20 * t->vocab, 260, 10);
    sheaf__kv_destroy(&twin);
    query_and_compare(&r, &kv, t, 1);
    sheaf__kv_destroy(&kv);
    free(logits);
    rig_close(&r);
}

static void a_shared_block_is_read_where_it_is(void **state)
{
    (void)state;
    with_every_fixture(way_twin);
}

/* ---- windows ----------------------------------------------------------------------------- */

static uint32_t smallest_window(const rig *r)
{
    uint32_t window = 0;
    for (uint32_t i = 0; i < r->config.n_layers; i++)
        if (r->config.window[i] != 0 && (window == 0 || r->config.window[i] < window))
            window = r->config.window[i];
    return window;
}

/* Positions that see what slid away are refused, the others answer. */
static void way_slid(const truth *t, const rig_options *options)
{
    rig_options o = *options;
    o.block_tokens = 4;
    rig r;
    rig_open(&r, &o);
    uint32_t window = smallest_window(&r);
    sheaf__kv kv = rig_kv(&r);
    float logits[1];
    rig_feed(&r, &kv, t->text.data, 200, 0, NULL);
    assert_int_equal(sheaf__kv_slide(&kv, 3), SHEAF_OK);
    for (uint32_t n = 1; n <= 4; n++) query_and_compare(&r, &kv, t, n);
    /* held from 197 - window rounded down to a block of 4 on; query 200 - n sees 201 - n - window */
    uint32_t possible = 201 - window - (197 - window) / 4 * 4;
    bool slid = window != 0 && o.backend == SHEAF__KV_PAGED;
    if (slid) query_and_compare(&r, &kv, t, possible);
    uint32_t n = possible + 1;
    const sheaf__forward_item item = {&kv, t->text.data + 200 - n, n, 0, n};
    footprint before = footprint_of(&r, &kv);
    assert_int_equal(sheaf__forward_run(r.forward, &item, 1, logits),
                     slid ? SHEAF_E_SLID : SHEAF_OK);
    footprint after = footprint_of(&r, &kv);
    assert_memory_equal(&after, &before, sizeof after);
    rig_feed(&r, &kv, t->text.data + 200, 30, 0, NULL);
    query_and_compare(&r, &kv, t, 30);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void what_a_window_let_go_of_is_refused(void **state)
{
    (void)state;
    with_every_fixture(way_slid);
}

/* ---- refusals ---------------------------------------------------------------------------- */

static void expect(rig *r, const sheaf__forward_item *item, sheaf_status wanted)
{
    float logits[320], untouched[320];
    memset(logits, 0x5a, sizeof logits);
    memcpy(untouched, logits, sizeof logits);
    assert_int_equal(sheaf__forward_run(r->forward, item, 1, logits), wanted);
    assert_memory_equal(logits, untouched, sizeof logits);
}

static void refusals_of(uint32_t backend)
{
    const truth *t = &truths[1];
    rig_options o = t->options;
    o.backend = backend;
    rig r;
    rig_open(&r, &o);
    sheaf__kv kv = rig_kv(&r);
    const int32_t *ids = t->text.data;
    rig_feed(&r, &kv, ids, 20, 0, NULL);
    int32_t other[2] = {ids[18], ids[19] + 1};
    footprint before = footprint_of(&r, &kv);
    sheaf__forward_item item = {&kv, ids, 21, 1, 21};
    expect(&r, &item, SHEAF_E_RANGE); /* there are 20 */
    item = (sheaf__forward_item){&kv, ids + 18, 2, 1, 3};
    expect(&r, &item, SHEAF_E_INVALID); /* more cached than tokens */
    item = (sheaf__forward_item){&kv, other, 2, 1, 2};
    expect(&r, &item, SHEAF_E_INVALID); /* the cache has another token there */
    item = (sheaf__forward_item){&kv, ids + 17, 2, 1, 2};
    expect(&r, &item, SHEAF_E_INVALID); /* not its last ones */
    item = (sheaf__forward_item){&kv, ids + 18, 3, 1, 2};
    expect(&r, &item, SHEAF_E_RANGE); /* the third is not reserved */
    footprint after = footprint_of(&r, &kv);
    assert_memory_equal(&after, &before, sizeof after);
    assert_int_equal(sheaf__kv_extend(&kv, 1), SHEAF_OK);
    item = (sheaf__forward_item){&kv, ids + 18, 2, 1, 2};
    expect(&r, &item, SHEAF_E_BUSY);
    assert_int_equal(sheaf__kv_commit(&kv, 0, NULL), SHEAF_OK);
    query_and_compare(&r, &kv, t, 2);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void what_cannot_be_asked_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    refusals_of(SHEAF__KV_PAGED);
    refusals_of(SHEAF__KV_DENSE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_position_gives_its_logits_again_at_every_kind_of_length),
        cmocka_unit_test(several_last_positions_give_theirs),
        cmocka_unit_test(any_threads_path_and_block_size_agree),
        cmocka_unit_test(an_item_may_go_on_from_cached_tokens_to_new_ones),
        cmocka_unit_test(a_batch_may_mix_them_with_ordinary_items),
        cmocka_unit_test(a_shared_block_is_read_where_it_is),
        cmocka_unit_test(what_a_window_let_go_of_is_refused),
        cmocka_unit_test(what_cannot_be_asked_is_refused_and_changes_nothing),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
