/* Chat templates: rendered as the originals render, recognised by what they contain.
 *
 * tests/data/chat/expected.json comes from the templates themselves, run by a Jinja
 * interpreter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

#include "base/file.h"
#include "model/chat.h"
#include "model/files.h"

#define MOST_MESSAGES 16

static void check_rendering(const json_t *row)
{
    uint32_t family = 0, n = 0;
    sheaf__message messages[MOST_MESSAGES];
    sheaf_error err = {0};
    const char *name = json_string_value(json_object_get(row, "family"));
    assert_int_equal(sheaf__chat_from_name(name, &family, &err), SHEAF_OK);
    assert_string_equal(sheaf__chat_name(family), name);
    size_t i;
    json_t *m;
    json_array_foreach(json_object_get(row, "messages"), i, m)
    {
        assert_true(n < MOST_MESSAGES);
        messages[n].role = json_string_value(json_array_get(m, 0));
        messages[n++].content = json_string_value(json_array_get(m, 1));
    }
    sheaf__text out = {NULL, 0, 0};
    assert_int_equal(sheaf__text_append(&out, "before", 6), SHEAF_OK);
    bool generate = json_is_true(json_object_get(row, "generate"));
    assert_int_equal(sheaf__chat_render(family, messages, n, generate, &out, &err), SHEAF_OK);
    const char *expected = json_string_value(json_object_get(row, "text"));
    if (strcmp(out.data + 6, expected) != 0)
        fail_msg("%s\nexpected: %s\nrendered: %s", name, expected, out.data + 6);
    sheaf__text_free(&out);
}

static void every_family_renders_as_its_template_does(void **state)
{
    (void)state;
    json_error_t why;
    json_t *rows = json_load_file("tests/data/chat/expected.json", 0, &why);
    if (rows == NULL) fail_msg("%s", why.text);
    assert_int_equal(json_array_size(rows), 200);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) check_rendering(row);
    json_decref(rows);
}

static void no_messages_give_the_opening_alone(void **state)
{
    (void)state;
    static const struct {
        uint32_t family;
        const char *text;
    } cases[] = {
        {SHEAF__CHAT_CHATML, "<|im_start|>assistant\n"},
        {SHEAF__CHAT_QWEN3, "<|im_start|>assistant\n"},
        {SHEAF__CHAT_LLAMA3, "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__text out = {NULL, 0, 0};
        assert_int_equal(sheaf__chat_render(cases[i].family, NULL, 0, true, &out, NULL),
                         SHEAF_OK);
        assert_string_equal(out.data, cases[i].text);
        sheaf__text_free(&out);
    }
}

/* What Jinja's trim takes and others do not, and what it leaves. */
static void llama3_trims_what_python_calls_space(void **state)
{
    (void)state;
    sheaf__message m = {"user",
                        "\xc2\x85\x1c\xe3\x80\x80 \xe2\x80\x8b x\xef\xbb\xbf \xc2\xa0\x1f"};
    sheaf__text out = {NULL, 0, 0};
    assert_int_equal(sheaf__chat_render(SHEAF__CHAT_LLAMA3, &m, 1, false, &out, NULL),
                     SHEAF_OK);
    assert_string_equal(out.data,
                        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
                        "\xe2\x80\x8b x\xef\xbb\xbf<|eot_id|>");
    sheaf__text_free(&out);
    m.content = "\x80\x80 \x85"; /* not UTF-8: kept */
    assert_int_equal(sheaf__chat_render(SHEAF__CHAT_LLAMA3, &m, 1, false, &out, NULL),
                     SHEAF_OK);
    assert_non_null(strstr(out.data, "\n\n\x80\x80 \x85<|eot_id|>"));
    sheaf__text_free(&out);
}

static void an_unknown_role_is_refused_and_nothing_written(void **state)
{
    (void)state;
    sheaf__message m[] = {{"user", "q"}, {"tool", "42"}};
    for (uint32_t family = SHEAF__CHAT_CHATML; family <= SHEAF__CHAT_LLAMA31; family++) {
        sheaf__text out = {NULL, 0, 0};
        sheaf_error err = {0};
        assert_int_equal(sheaf__text_append(&out, "x", 1), SHEAF_OK);
        assert_int_equal(sheaf__chat_render(family, m, 2, true, &out, &err), SHEAF_E_CONFIG);
        assert_string_equal(out.data, "x");
        assert_non_null(strstr(err.text, "tool"));
        sheaf__text_free(&out);
    }
    assert_int_equal(sheaf__chat_render(SHEAF__CHAT_NONE, m, 1, true, NULL, NULL),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf__chat_render(99, m, 1, true, NULL, NULL), SHEAF_E_INVALID);
}

static void an_unknown_name_is_refused_with_the_known_ones(void **state)
{
    (void)state;
    uint32_t family = 77;
    sheaf_error err = {0};
    assert_int_equal(sheaf__chat_from_name("alpaca", &family, &err), SHEAF_E_USAGE);
    assert_int_equal(family, 77);
    assert_non_null(strstr(err.text, "chatml, llama3, llama3.1, qwen3"));
    assert_int_equal(sheaf__chat_from_name("none", &family, &err), SHEAF_E_USAGE);
    assert_string_equal(sheaf__chat_name(12345), "none");
}

static void templates_are_told_apart_by_what_they_contain(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        sheaf_status status;
        uint32_t family;
    } cases[] = {
        {"{{ '<|im_start|>' + m.role }}", SHEAF_OK, SHEAF__CHAT_CHATML},
        {"{{ '<|im_start|>system\\n' + x }} last_query_index </think>", SHEAF_OK,
         SHEAF__CHAT_QWEN3},
        {"{{ '<|start_header_id|>' }} | trim", SHEAF_OK, SHEAF__CHAT_LLAMA3},
        {"{{ '<|start_header_id|>' }} | trim Cutting Knowledge Date: ", SHEAF_OK,
         SHEAF__CHAT_LLAMA31},
        {"{{ '<|im_start|>system\\nYou are Qwen.<|im_end|>' }}", SHEAF_E_ARCH, 0},
        {"{{ '<|im_start|>system\nYou are helpful.<|im_end|>' }}", SHEAF_E_ARCH, 0},
        {"{{ '<|im_start|>' + m.content | trim }}", SHEAF_E_ARCH, 0},
        {"{{ '<|im_start|>assistant\\n<think>\\n' }} last_query_index </think>", SHEAF_E_ARCH,
         0},
        {"{{ '<|im_start|>' }} m.split('</think>')", SHEAF_E_ARCH, 0},
        {"{{ '<|start_header_id|>' }}", SHEAF_E_ARCH, 0},
        {"{{ '[INST] ' + m.content }}", SHEAF_E_ARCH, 0},
        {"", SHEAF_E_ARCH, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t family = 0;
        sheaf_error err = {0};
        if (sheaf__chat_recognise(cases[i].text, &family, &err) != cases[i].status)
            fail_msg("case %zu: %s", i, err.text);
        assert_int_equal(family, cases[i].family);
        if (cases[i].status != SHEAF_OK) assert_non_null(strstr(err.text, "--chat-template"));
    }
}

static void check_detected(const char *dir, sheaf_status status, uint32_t family)
{
    uint32_t found = SHEAF__CHAT_NONE;
    sheaf_error err = {0};
    if (sheaf__chat_detect(dir, &found, &err) != status) fail_msg("%s: %s", dir, err.text);
    assert_int_equal(found, family);
}

static void a_template_is_found_wherever_models_keep_it(void **state)
{
    (void)state;
    char dir[FILES_PATH];
    files_make_dir(dir);
    check_detected(dir, SHEAF_MISS, SHEAF__CHAT_NONE);
    files_write_text(dir, "tokenizer_config.json",
                     "{\"model_max_length\": 1000000000000000019884624838656}");
    check_detected(dir, SHEAF_MISS, SHEAF__CHAT_NONE);
    files_write_text(dir, "tokenizer_config.json", "{\"chat_template\": \"<|im_start|>\"}");
    check_detected(dir, SHEAF_OK, SHEAF__CHAT_CHATML);
    files_write_text(dir, "tokenizer_config.json",
                     "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"[INST]\"}, "
                     "{\"name\": \"default\", \"template\": \"<|im_start|>\"}]}");
    check_detected(dir, SHEAF_OK, SHEAF__CHAT_CHATML);
    files_write_text(
        dir, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"tools\", \"template\": \"[INST]\"}, 7]}");
    check_detected(dir, SHEAF_MISS, SHEAF__CHAT_NONE);
    files_write_text(dir, "tokenizer_config.json", "{\"chat_template\": ");
    check_detected(dir, SHEAF_E_FORMAT, SHEAF__CHAT_NONE);
    files_write_text(dir, "chat_template.jinja", "<|start_header_id|> | trim");
    check_detected(dir, SHEAF_OK, SHEAF__CHAT_LLAMA3);
    files_write_text(dir, "chat_template.jinja", "");
    check_detected(dir, SHEAF_E_ARCH, SHEAF__CHAT_NONE);
    files_remove_dir(dir);
}

static void real_models_are_recognised(void **state)
{
    (void)state;
    check_detected("models/sheaf-demo", SHEAF_OK, SHEAF__CHAT_CHATML);
    static const struct {
        const char *dir;
        sheaf_status status;
        uint32_t family;
    } others[] = {{"../shared/tokenizers/qwen3", SHEAF_OK, SHEAF__CHAT_QWEN3},
                  {"../shared/tokenizers/mistral-v0.1", SHEAF_MISS, SHEAF__CHAT_NONE}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (sheaf__file_exists(others[i].dir))
            check_detected(others[i].dir, others[i].status, others[i].family);
        else
            fprintf(stderr, "NOT CHECKED: no %s\n", others[i].dir);
    }
    const char *llama = getenv("SHEAF_LLAMA31_TOKENIZER");
    if (llama != NULL) check_detected(llama, SHEAF_OK, SHEAF__CHAT_LLAMA3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_renders_as_its_template_does),
        cmocka_unit_test(no_messages_give_the_opening_alone),
        cmocka_unit_test(llama3_trims_what_python_calls_space),
        cmocka_unit_test(an_unknown_role_is_refused_and_nothing_written),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_known_ones),
        cmocka_unit_test(templates_are_told_apart_by_what_they_contain),
        cmocka_unit_test(a_template_is_found_wherever_models_keep_it),
        cmocka_unit_test(real_models_are_recognised),
    };
    return cmocka_run_group_tests_name("test_chat", tests, NULL, NULL);
}
