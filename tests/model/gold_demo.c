/* tests/model/gold_demo.c - trained models against their references, f32 weights and f32 KV.
 *
 *  - models/sheaf-demo/golden.jsonl: 20 prompts of 5 to 5,940 ids: highest logits of the last
 *    position, and 32 greedy tokens (transformers, f32; the weights are bf16, widened exactly)
 *  - ../shared/models/goldens.json: TinyStories-656K, not in the repository: skipped if absent
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "model/rig.h"

#define DEMO         "models/sheaf-demo"
#define STORIES      "../shared/models/TinyStories-656K"
#define STORIES_GOLD "../shared/models/goldens.json"
#define TOLERANCE    1e-4
#define N_THREADS    2
#define MAX_TOP      10
#define MAX_GREEDY   256

/* The relative error of the logits listed as [[id, logit], ...]. */
static double top_error(const json_t *top, const float *logits)
{
    float got[MAX_TOP], wanted[MAX_TOP];
    uint32_t n = (uint32_t)json_array_size(top);
    assert_in_range(n, 1, MAX_TOP);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(top, i);
        got[i] = logits[json_integer_value(json_array_get(pair, 0))];
        wanted[i] = (float)json_real_value(json_array_get(pair, 1));
    }
    return rig_error(got, wanted, n);
}

static int32_t *ids_of(const json_t *list, uint32_t *n)
{
    *n = (uint32_t)json_array_size(list);
    assert_true(*n > 0);
    int32_t *ids = calloc(*n, sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

/* Prefills `ids`, compares the highest logits, then the continuation. */
static void check(rig *r, const json_t *ids, const json_t *top, const json_t *greedy)
{
    uint32_t n, n_wanted;
    int32_t *prompt = ids_of(ids, &n), *wanted = ids_of(greedy, &n_wanted), got[MAX_GREEDY];
    float *logits = calloc(r->config.vocab, sizeof *logits);
    assert_non_null(logits);
    assert_in_range(n_wanted, 1, MAX_GREEDY);
    sheaf__kv kv = rig_kv(r);
    rig_prefill(r, &kv, prompt, n, logits);
    double error = top_error(top, logits);
    rig_greedy(r, &kv, logits, n_wanted, got);
    fprintf(stderr, "%s: %u tokens, relative error of the highest logits %.2e\n",
            r->options.dir, n, error);
    assert_true(error < TOLERANCE);
    assert_memory_equal(got, wanted, n_wanted * sizeof *wanted);
    sheaf__kv_destroy(&kv);
    free(logits);
    free(prompt);
    free(wanted);
}

static void the_demo_model_matches_transformers(void **state)
{
    (void)state;
    FILE *file = fopen(DEMO "/golden.jsonl", "r");
    assert_non_null(file);
    const rig_options o = {.dir = DEMO, .n_threads = N_THREADS};
    rig r;
    rig_open(&r, &o);
    uint32_t n_prompts = 0;
    json_t *row;
    while ((row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        check(&r, json_object_get(row, "ids"), json_object_get(row, "top10"),
              json_object_get(row, "greedy32"));
        json_decref(row);
        n_prompts++;
    }
    assert_int_equal(n_prompts, 20);
    rig_close(&r);
    fclose(file);
}

static void tinystories_matches_its_goldens(void **state)
{
    (void)state;
    if (!sheaf__file_exists(STORIES_GOLD) || !sheaf__file_exists(STORIES "/config.json")) {
        fprintf(stderr, "SKIPPED: %s is not here\n", STORIES);
        skip();
    }
    json_t *root = json_load_file(STORIES_GOLD, 0, NULL);
    assert_non_null(root);
    const json_t *gold = json_object_get(root, "TinyStories-656K");
    const rig_options o = {.dir = STORIES};
    rig r;
    rig_open(&r, &o);
    check(&r, json_object_get(gold, "prompt_ids"), json_object_get(gold, "top5_after_prompt"),
          json_object_get(gold, "greedy"));
    rig_close(&r);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model_matches_transformers),
        cmocka_unit_test(tinystories_matches_its_goldens),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
