/* test_session.c - sequences kept in files and continued by another process: the same bits as a run
 * that began from nothing, and a refusal of everything that is not this model's. */
#include "runs.h"

#include <sys/stat.h>
#include <unistd.h>

#define N_PROMPT 300 /* of a fixture; blocks have 32 tokens */

static char place[64]; /* a directory of our own */
static char file[96];  /* in it */
static int32_t tokens[2 * N_PROMPT];

static int set_up(void **state)
{
    (void)state;
    snprintf(place, sizeof place, "/tmp/sheaf-session-XXXXXX");
    if (mkdtemp(place) == NULL || setenv("XDG_CACHE_HOME", place, 1) != 0) return -1;
    snprintf(file, sizeof file, "%s/kept", place);
    runs_prompt(tokens, 2 * N_PROMPT, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", place);
    return system(command);
}

static void save(sheaf__kv *kv, const sheaf_key *space)
{
    sheaf_error err = {0};
    if (sheaf__session_save(kv, space, file, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static sheaf__kv load(sheaf__model *model, const sheaf_key *space)
{
    sheaf__kv kv = {0};
    sheaf_error err = {0};
    if (sheaf__session_load(model, space, file, &kv, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    return kv;
}

/* Keeps the first n tokens of a text in the file, by a model of its own. */
static void keep_prompt(const char *dir, sheaf__model_options o, const int32_t *text,
                        uint32_t n)
{
    sheaf__model *model = runs_open(dir, o);
    sheaf_key space = runs_space(model, dir);
    sheaf__kv kv;
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, text, n, NULL, NULL), SHEAF_OK);
    save(&kv, &space);
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
}

/* Answers the prompt out of the file, by a model of its own. */
static sheaf__kept expect_continued(const char *dir, sheaf__model_options o,
                                    const int32_t *text, uint32_t n, const runs_answer *cold)
{
    sheaf__model *model = runs_open(dir, o);
    sheaf_key space = runs_space(model, dir);
    sheaf__kv kv = load(model, &space);
    sheaf__kept kept = {0};
    sheaf_error err = {0};
    runs_answer warm = runs_answer_new(model);
    assert_int_equal(sheaf__session_keep(&kv, text, n, &kept), SHEAF_OK);
    if (sheaf__session_fill(model, &kv, text, n, warm.logits, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    assert_int_equal(sheaf__kv_length(&kv), n);
    runs_decode(model, &kv, &warm);
    runs_expect_equal(&warm, cold);
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
    return kept;
}

static runs_answer cold_answer(const char *dir, sheaf__model_options o, const int32_t *text,
                               uint32_t n)
{
    sheaf__model *model = runs_open(dir, o);
    sheaf__kv kv;
    runs_answer cold = runs_cold(model, text, n, &kv);
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
    return cold;
}

/* ---- the same bits ----------------------------------------------------------------------- */

static void a_prompt_goes_on_from_a_file_with_the_same_bits(void **state)
{
    (void)state;
    const struct {
        const char *dir;
        uint32_t codec_k, codec_v;
    } models[] = {{RUNS_QWEN, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},
                  {RUNS_QWEN, SHEAF_CODEC_F32, SHEAF_CODEC_F32},
                  {RUNS_LLAMA, SHEAF_CODEC_F16, SHEAF_CODEC_F16},
                  {RUNS_LLAMA, SHEAF_CODEC_TURBO4, SHEAF_CODEC_INT8},
                  {RUNS_GEMMA, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},
                  {RUNS_GEMMA, SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4},
                  {RUNS_DEMO, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16}};
    const uint32_t kept_lengths[] = {1, 31, 32, 33, 160, N_PROMPT - 1, N_PROMPT};
    for (uint32_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        const sheaf__model_options o = {.codec_k = models[m].codec_k,
                                        .codec_v = models[m].codec_v};
        runs_answer cold = cold_answer(models[m].dir, o, tokens, N_PROMPT);
        bool large = strcmp(models[m].dir, RUNS_DEMO) == 0; /* fewer cases: it takes its time */
        for (uint32_t i = large ? 4 : 0; i < sizeof kept_lengths / sizeof kept_lengths[0];
             i++) {
            uint32_t n = kept_lengths[i], most = n < N_PROMPT ? n : N_PROMPT - 1;
            keep_prompt(models[m].dir, o, tokens, n);
            sheaf__kept kept = expect_continued(models[m].dir, o, tokens, N_PROMPT, &cold);
            assert_int_equal(kept.n_common, n);
            assert_int_equal(kept.n_kept, most);
            assert_false(kept.slid);
        }
        free(cold.logits);
    }
}

static void what_differs_after_a_while_is_run_anew(void **state)
{
    (void)state;
    const char *dirs[] = {RUNS_QWEN, RUNS_LLAMA, RUNS_DEMO};
    const uint32_t common[] = {0, 1, 40, 64, 299};
    const sheaf__model_options o = {.codec_k = SHEAF_CODEC_BF16, .codec_v = SHEAF_CODEC_BF16};
    for (uint32_t m = 0; m < 3; m++) {
        runs_answer cold = cold_answer(dirs[m], o, tokens, N_PROMPT);
        for (uint32_t i = m == 2 ? 3 : 0; i < 5; i++) {
            int32_t other[N_PROMPT + 50];
            runs_prompt(other, N_PROMPT + 50, 1);
            memcpy(other, tokens, common[i] * sizeof *tokens);
            assert_int_not_equal(other[common[i]], tokens[common[i]]);
            keep_prompt(dirs[m], o, other, N_PROMPT + 50);
            sheaf__kept kept = expect_continued(dirs[m], o, tokens, N_PROMPT, &cold);
            assert_int_equal(kept.n_common, common[i]);
            assert_int_equal(kept.n_kept, common[i]);
        }
        free(cold.logits);
    }
}

static void a_file_longer_than_the_prompt_is_cut_back(void **state)
{
    (void)state;
    const char *dirs[] = {RUNS_QWEN, RUNS_DEMO};
    for (uint32_t m = 0; m < 2; m++) {
        runs_answer cold = cold_answer(dirs[m], (sheaf__model_options){0}, tokens, 100);
        keep_prompt(dirs[m], (sheaf__model_options){0}, tokens, N_PROMPT);
        sheaf__kept kept =
            expect_continued(dirs[m], (sheaf__model_options){0}, tokens, 100, &cold);
        assert_int_equal(kept.n_kept, 99);
        free(cold.logits);
    }
}

/* Gemma's windows have 16 positions: whole blocks before the last 16 are not in the file. */
static void a_window_that_has_slid_past_runs_the_prompt_anew(void **state)
{
    (void)state;
    runs_answer cold = cold_answer(RUNS_GEMMA, (sheaf__model_options){0}, tokens, 100);
    keep_prompt(RUNS_GEMMA, (sheaf__model_options){0}, tokens, N_PROMPT);
    sheaf__kept kept =
        expect_continued(RUNS_GEMMA, (sheaf__model_options){0}, tokens, 100, &cold);
    assert_true(kept.slid);
    assert_int_equal(kept.n_common, 100);
    assert_int_equal(kept.n_kept, 0);
    free(cold.logits);
    /* within the blocks that the window still has, it can go back */
    cold = cold_answer(RUNS_GEMMA, (sheaf__model_options){0}, tokens, N_PROMPT - 4);
    kept = expect_continued(RUNS_GEMMA, (sheaf__model_options){0}, tokens, N_PROMPT - 4, &cold);
    assert_false(kept.slid);
    assert_int_equal(kept.n_kept, N_PROMPT - 5);
    free(cold.logits);
}

static void saving_leaves_the_sequence_as_it_is(void **state)
{
    (void)state;
    sheaf__model *model = runs_open(RUNS_GEMMA, (sheaf__model_options){0});
    sheaf_key space = runs_space(model, RUNS_GEMMA);
    sheaf__kv kv, other;
    sheaf_error err = {0};
    runs_answer cold = runs_cold(model, tokens, N_PROMPT, &other),
                warm = runs_answer_new(model);
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, N_PROMPT, warm.logits, NULL),
                     SHEAF_OK);
    runs_counts before = runs_count(model);
    save(&kv, &space);
    runs_counts after = runs_count(model);
    assert_memory_equal(&before, &after, sizeof after);
    assert_int_equal(sheaf__session_save(&kv, &space, "/no-such-directory/f", &err),
                     SHEAF_E_IO);
    assert_non_null(strstr(err.text, "/no-such-directory/f"));
    runs_decode(model, &kv, &warm);
    runs_expect_equal(&warm, &cold);
    free(cold.logits);
    sheaf__kv_destroy(&kv);
    sheaf__kv_destroy(&other);
    sheaf__model_close(model);
}

/* ---- refusals ---------------------------------------------------------------------------- */

/* The file is refused by this model, with a sentence that names it and says `why`. */
static void expect_refused(const char *dir, sheaf__model_options o, sheaf_status wanted,
                           const char *why)
{
    sheaf__model *model = runs_open(dir, o);
    sheaf_key space = runs_space(model, dir);
    sheaf__kv kv = {0}, zero = {0};
    sheaf_error err = {0};
    runs_counts before = runs_count(model);
    sheaf_status status = sheaf__session_load(model, &space, file, &kv, &err);
    if (status != wanted || strncmp(err.text, file, strlen(file)) != 0 ||
        strstr(err.text, why) == NULL)
        fail_msg("status %d, wanted %d and %s: %s", status, wanted, why, err.text);
    assert_memory_equal(&kv, &zero, sizeof kv);
    runs_counts after = runs_count(model);
    assert_memory_equal(&before, &after, sizeof after);
    sheaf__model_close(model);
}

static void a_file_of_another_model_or_layout_is_refused(void **state)
{
    (void)state;
    const sheaf__model_options f32 = {0}, f16 = {.codec_k = SHEAF_CODEC_F16};
    const sheaf__model_options mixed = {.codec_k = SHEAF_CODEC_INT8,
                                        .codec_v = SHEAF_CODEC_TURBO4};
    const sheaf__model_options wide = {.block_tokens = 64}, tiny = {.kv_budget_bytes = 1 << 17};
    keep_prompt(RUNS_QWEN, f32, tokens, N_PROMPT);
    expect_refused(RUNS_LLAMA, f32, SHEAF_E_FOREIGN, "32 numbers in a key, here 16");
    expect_refused(RUNS_QWEN, f16, SHEAF_E_FOREIGN, "f32 and f32, here f16 and f32");
    expect_refused(RUNS_QWEN, mixed, SHEAF_E_FOREIGN, "f32 and f32, here int8 and turbo4");
    expect_refused(RUNS_QWEN, wide, SHEAF_E_FOREIGN, "blocks of 32 tokens; here");
    expect_refused(RUNS_QWEN, tiny, SHEAF_FULL, "room");
    /* the same layout, other weights: only the namespace tells */
    char twin[120], command[700];
    snprintf(twin, sizeof twin, "%s/twin", place);
    snprintf(
        command, sizeof command,
        "mkdir %s && cp " RUNS_QWEN "/*.json " RUNS_QWEN "/model.safetensors %s && "
        "printf 'x' | dd of=%s/model.safetensors bs=1 seek=100000 conv=notrunc 2>/dev/null",
        twin, twin, twin);
    assert_int_equal(system(command), 0);
    expect_refused(twin, f32, SHEAF_E_FOREIGN, "namespace");
}

static void a_model_that_changed_before_it_was_opened_has_no_name(void **state)
{
    (void)state;
    char dir[120], command[700];
    snprintf(dir, sizeof dir, "%s/changing", place);
    snprintf(command, sizeof command,
             "mkdir %s && cp " RUNS_QWEN "/*.json " RUNS_QWEN "/model.safetensors %s", dir,
             dir);
    assert_int_equal(system(command), 0);
    const sheaf__model_options o = {0};
    sheaf__identity id;
    sheaf_key space;
    sheaf_error err = {0};
    assert_int_equal(sheaf__session_name(dir, &o, &id, &err), SHEAF_OK);
    snprintf(command, sizeof command,
             "cp %s/model.safetensors %s/new && mv %s/new %s/model.safetensors", dir, dir, dir,
             dir);
    assert_int_equal(system(command), 0);
    sheaf__model *model = runs_open(dir, o);
    assert_int_equal(sheaf__session_space(model, dir, &id, &space, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, dir));
    sheaf__model_close(model);
}

static void a_file_that_is_not_whole_is_refused(void **state)
{
    (void)state;
    keep_prompt(RUNS_QWEN, (sheaf__model_options){0}, tokens, 40);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    long size = (long)st.st_size;
    char *bytes = malloc((size_t)size);
    FILE *f = fopen(file, "rb");
    assert_true(bytes != NULL && f != NULL);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), size);
    fclose(f);
    const struct {
        long length, flipped; /* -1: none */
        sheaf_status status;
    } cases[] = {{0, -1, SHEAF_E_FORMAT},          {10, -1, SHEAF_E_FORMAT},
                 {size / 2, -1, SHEAF_E_FORMAT},   {size - 1, -1, SHEAF_E_FORMAT},
                 {size, 0, SHEAF_E_FORMAT},        {size, 8, SHEAF_E_FOREIGN},
                 {size, size / 2, SHEAF_E_DAMAGED}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        f = fopen(file, "wb");
        assert_non_null(f);
        if (cases[i].flipped >= 0) bytes[cases[i].flipped] ^= 2;
        assert_int_equal(fwrite(bytes, 1, (size_t)cases[i].length, f), cases[i].length);
        if (cases[i].flipped >= 0) bytes[cases[i].flipped] ^= 2;
        assert_int_equal(fclose(f), 0);
        expect_refused(RUNS_QWEN, (sheaf__model_options){0}, cases[i].status, "");
    }
    free(bytes);
    assert_int_equal(unlink(file), 0);
    expect_refused(RUNS_QWEN, (sheaf__model_options){0}, SHEAF_E_IO, "No such file");
}

static void a_file_with_tokens_that_the_model_lacks_is_refused(void **state)
{
    (void)state;
    sheaf__model *model = runs_open(RUNS_QWEN, (sheaf__model_options){0});
    sheaf_key space = runs_space(model, RUNS_QWEN);
    const int32_t vocab = (int32_t)model->config.vocab;
    const int32_t odd[] = {-1, INT32_MIN, vocab, INT32_MAX};
    const uint32_t places[] = {0, 39};
    sheaf__kv kv;
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__model_prefill(model, &kv, tokens, 40, NULL, NULL), SHEAF_OK);
    int32_t *held = (int32_t *)(uintptr_t)sheaf__kv_tokens(&kv);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t at = places[i / 4];
        held[at] = odd[i % 4];
        save(&kv, &space);
        held[at] = tokens[at];
        expect_refused(RUNS_QWEN, (sheaf__model_options){0}, SHEAF_E_FORMAT, "vocabulary");
    }
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
}

/* A path of any length leaves room for the reason. */
static void the_reason_is_told_with_a_long_path_too(void **state)
{
    (void)state;
    sheaf__model *model = runs_open(RUNS_QWEN, (sheaf__model_options){0});
    sheaf_key space = runs_space(model, RUNS_QWEN);
    sheaf__kv kv = {0};
    sheaf_error err = {0};
    char path[900] = "";
    for (int i = 0; i < 40; i++) strcat(path, "a-long-folder-name/");
    strcat(path, "kept");
    assert_int_equal(sheaf__session_load(model, &space, path, &kv, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "name/kept: No such file"));
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__session_save(&kv, &space, path, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "No such file"));
    sheaf__kv_destroy(&kv);
    sheaf__model_close(model);
}

static void a_dense_cache_has_nothing_to_keep(void **state)
{
    (void)state;
    sheaf__model *model =
        runs_open(RUNS_QWEN, (sheaf__model_options){.kv_backend = SHEAF__KV_DENSE});
    sheaf__identity id;
    sheaf_key space;
    sheaf_error err = {0};
    assert_int_equal(sheaf__session_name(RUNS_QWEN, &model->options, &id, &err), SHEAF_OK);
    assert_int_equal(sheaf__session_space(model, RUNS_QWEN, &id, &space, &err),
                     SHEAF_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "dense"));
    sheaf__model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_goes_on_from_a_file_with_the_same_bits),
        cmocka_unit_test(what_differs_after_a_while_is_run_anew),
        cmocka_unit_test(a_file_longer_than_the_prompt_is_cut_back),
        cmocka_unit_test(a_window_that_has_slid_past_runs_the_prompt_anew),
        cmocka_unit_test(saving_leaves_the_sequence_as_it_is),
        cmocka_unit_test(a_file_of_another_model_or_layout_is_refused),
        cmocka_unit_test(a_model_that_changed_before_it_was_opened_has_no_name),
        cmocka_unit_test(a_file_that_is_not_whole_is_refused),
        cmocka_unit_test(a_file_with_tokens_that_the_model_lacks_is_refused),
        cmocka_unit_test(the_reason_is_told_with_a_long_path_too),
        cmocka_unit_test(a_dense_cache_has_nothing_to_keep),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
