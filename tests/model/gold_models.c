/* tests/model/gold_models.c - the fixtures' logits and continuations, as transformers computed
 * them.
 *
 * tests/data/fixtures: five prompts of 1, 7, 33, 120 and 300 ids each, logits of the last
 * position in f32, and 16 greedy tokens (tests/data/README.md). Both styles of config.json are
 * read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/rig.h"

#define TOLERANCE 1e-4
#define N_GREEDY  16

static const char *const fixtures[] = {
    "tests/data/fixtures/llama3-tied",         "tests/data/fixtures/qwen3-headdim",
    "tests/data/fixtures/qwen3-untied-gqa1",   "tests/data/fixtures/qwen2-bias",
    "tests/data/fixtures/mistral-swa",         "tests/data/fixtures/gemma3",
    "tests/data/fixtures/gemma3-softcap",      "tests/data/fixtures/gemma3-mixed",
    "tests/data/fixtures/gemma3-mixed-softcap"};
#define N_FIXTURES (sizeof fixtures / sizeof fixtures[0])

static void check_prompt(rig *r, const char *dir, uint32_t index, const json_t *prompt)
{
    uint32_t vocab = r->config.vocab;
    float *logits = calloc(vocab, sizeof *logits), *wanted = calloc(vocab, sizeof *wanted);
    int32_t greedy[N_GREEDY];
    assert_non_null(logits);
    assert_non_null(wanted);
    const json_t *values = json_object_get(prompt, "last_logits");
    const json_t *continuation = json_object_get(prompt, "greedy");
    assert_int_equal(json_array_size(values), vocab);
    assert_int_equal(json_array_size(continuation), N_GREEDY);
    for (uint32_t i = 0; i < vocab; i++)
        wanted[i] = (float)json_real_value(json_array_get(values, i));

    rig_ids ids = rig_prompt(dir, index, UINT32_MAX);
    sheaf__kv kv = rig_kv(r);
    rig_prefill(r, &kv, ids.data, ids.n, logits);
    double error = rig_error(logits, wanted, vocab);
    fprintf(stderr, "%s: %u tokens, relative error %.2e\n", dir, ids.n, error);
    assert_true(error < TOLERANCE);
    rig_greedy(r, &kv, logits, N_GREEDY, greedy);
    for (uint32_t i = 0; i < N_GREEDY; i++)
        assert_int_equal(greedy[i], json_integer_value(json_array_get(continuation, i)));

    sheaf__kv_destroy(&kv);
    free(ids.data);
    free(logits);
    free(wanted);
}

/* The goldens of `fixture` from the model in `dir`. */
static void check_model(const char *fixture, const char *dir, uint32_t backend)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden.json", fixture);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const json_t *prompts = json_object_get(root, "prompts");
    assert_int_equal(json_array_size(prompts), 5);
    const rig_options o = {.dir = dir, .backend = backend};
    rig r;
    rig_open(&r, &o);
    for (uint32_t i = 0; i < 5; i++) check_prompt(&r, fixture, i, json_array_get(prompts, i));
    rig_close(&r);
    json_decref(root);
}

static void fixtures_match_transformers_from_the_paged_cache(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FIXTURES; i++)
        check_model(fixtures[i], fixtures[i], SHEAF__KV_PAGED);
}

static void fixtures_match_transformers_from_the_dense_cache(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FIXTURES; i++)
        check_model(fixtures[i], fixtures[i], SHEAF__KV_DENSE);
}

static void link_file(const char *from_dir, const char *from, const char *to_dir,
                      const char *to)
{
    char source[512], target[512];
    snprintf(source, sizeof source, "%s/%s", from_dir, from);
    snprintf(target, sizeof target, "%s/%s", to_dir, to);
    char *absolute = realpath(source, NULL);
    assert_non_null(absolute);
    assert_int_equal(symlink(absolute, target), 0);
    free(absolute);
}

static void unlink_file(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void fixtures_match_with_the_newer_config(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_FIXTURES; i++) {
        char dir[] = "/tmp/sheaf-gold-XXXXXX";
        assert_non_null(mkdtemp(dir));
        link_file(fixtures[i], "config_v5.json", dir, "config.json");
        link_file(fixtures[i], "model.safetensors", dir, "model.safetensors");
        check_model(fixtures[i], dir, SHEAF__KV_PAGED);
        unlink_file(dir, "config.json");
        unlink_file(dir, "model.safetensors");
        assert_int_equal(rmdir(dir), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixtures_match_transformers_from_the_paged_cache),
        cmocka_unit_test(fixtures_match_transformers_from_the_dense_cache),
        cmocka_unit_test(fixtures_match_with_the_newer_config),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
