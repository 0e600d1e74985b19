/* Chat templates: rendered as the originals render, recognised by what they contain.
 *
 * tests/data/chat/expected.json and FAMILY.json come from the templates themselves, run by two Jinja
 * interpreters: the first by Jinja2, the others by tools/render_chats.js. */
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
#include "model/chat_form.h"
#include "model/files.h"

#define MOST_MESSAGES 16

/* A row has "text", or "error" where the template raises an exception. */
static void check_rendering(const char *name, const json_t *row)
{
    uint32_t family = 0, n = 0;
    sheaf__message messages[MOST_MESSAGES];
    sheaf_error err = {0};
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
    const char *expected = json_string_value(json_object_get(row, "text"));
    sheaf_status status = sheaf__chat_render(family, messages, n, generate, &out, &err);
    if (status != (expected != NULL ? SHEAF_OK : SHEAF_E_CONFIG))
        fail_msg("%s: %d %s\nrendered: %s", name, status, err.text, out.data);
    if (expected == NULL) {
        assert_non_null(json_object_get(row, "error"));
        assert_non_null(strstr(err.text, name));
        expected = "";
    }
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
    json_array_foreach(rows, i, row)
        check_rendering(json_string_value(json_object_get(row, "family")), row);
    json_decref(rows);
}

static const char *const rendered[] = {
    "chatml",       "qwen3",      "llama3",     "mistral",
    "mistral-v0.1", "mistral-v1", "mistral-v3", "mistral-v3-tekken",
    "gemma"};

#define N_RENDERED (sizeof rendered / sizeof rendered[0])

static void every_family_refuses_what_its_template_refuses(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_RENDERED; f++) {
        char path[128];
        json_error_t why;
        snprintf(path, sizeof path, "tests/data/chat/%s.json", rendered[f]);
        json_t *root = json_load_file(path, 0, &why);
        if (root == NULL) fail_msg("%s: %s", path, why.text);
        const char *name = json_string_value(json_object_get(root, "family"));
        assert_string_equal(name, rendered[f]);
        json_t *row, *rows = json_object_get(root, "rows");
        assert_int_equal(json_array_size(rows), 48);
        size_t i;
        json_array_foreach(rows, i, row) check_rendering(name, row);
        json_decref(root);
    }
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
static void mistral_and_gemma_want_a_message(void **state)
{
    (void)state;
    for (uint32_t family = SHEAF__CHAT_MISTRAL; family <= SHEAF__CHAT_GEMMA; family++) {
        sheaf__text out = {NULL, 0, 0};
        sheaf_error err = {0};
        bool open = family == SHEAF__CHAT_MISTRAL || family == SHEAF__CHAT_MISTRAL_V01;
        assert_int_equal(sheaf__chat_render(family, NULL, 0, true, &out, &err),
                         open ? SHEAF_OK : SHEAF_E_CONFIG);
        if (open)
            assert_string_equal(out.data, "<s>");
        else
            assert_non_null(strstr(err.text, sheaf__chat_name(family)));
        sheaf__text_free(&out);
    }
}

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
    for (uint32_t family = SHEAF__CHAT_CHATML; family <= SHEAF__CHAT_GEMMA; family++) {
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
    assert_non_null(strstr(err.text, "chatml, gemma, llama3, llama3.1, mistral"));
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

static void a_form_has_one_spelling(void **state)
{
    (void)state;
    static const struct {
        const char *text, *form;
        bool speaks;
    } cases[] = {
        {"", "", false},
        {"{{ a + \"b c\" }}", "{{a+'b c'}}", false},
        {"{{- a -}}{%- b -%}{#- c -#}", "{{a}}{%b%}", false},
        {"{{ \"it's\" }}{{ 'it\\'s' }}", "{{'it\\'s'}}{{'it\\'s'}}", false},
        {"{{ 'x\ny' + '\\n' }}", "{{'x\\ny'+'\\n'}}", false},
        {"{{ '}}' }}{% '%}' %}", "{{'}}'}}{%'%}'%}", false},
        {"{{ a - 1 }}{{ a }}", "{{a-1}}{{a}}", false},
        /* what is between tags: nothing is rendered of these */
        {"{{ a }}\n", "{{a}}", false},
        {"{{ a }} \n\t{{- b }}", "{{a}}{{b}}", false},
        {"{{ a -}} \n\n{{ b }}", "{{a}}{{b}}", false},
        {"{% a %}\n  {% b %}\n", "{%a%}{%b%}", false},
        {" \t{% a %}{# c #}\n{{ b }}", "{%a%}{{b}}", false},
        /* and of these something */
        {"x", "", true},
        {" ", "", true},
        {" {{ a }}", "{{a}}", true},
        {"{{ a }}\n{{ b }}", "{{a}}{{b}}", true},
        {"{{ a }}\n  {% b %}", "{{a}}{%b%}", true},
        {"{% a %}  {% b %}", "{%a%}{%b%}", true},
        {"{% a %}\n\n{% b %}", "{%a%}{%b%}", true},
        {"{% a %}\n {{ b }}", "{%a%}{{b}}", true},
        {"{{ a }}\n\n", "{{a}}", true},
        {"{{- a -}} x {{- b }}", "{{a}}{{b}}", true},
        {"{ a }", "", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__text form = {NULL, 0, 0};
        bool speaks = !cases[i].speaks;
        assert_int_equal(sheaf__chat_form(cases[i].text, &form, &speaks), SHEAF_OK);
        assert_string_equal(form.data, cases[i].form);
        if (speaks != cases[i].speaks) fail_msg("case %zu, %s", i, cases[i].text);
        sheaf__text_free(&form);
    }
}

#define TEMPLATES "tests/data/chat/templates"

/* Templates of the families that are recognised part by part: written for this test, and rendering
 * what the published ones render. SHEAF_CHAT_TEMPLATES: a folder of published ones. */
static const char *const written[] = {"mistral",    "mistral-v0.1",      "mistral-v1",
                                      "mistral-v3", "mistral-v3-tekken", "gemma"};

#define N_WRITTEN (sizeof written / sizeof written[0])

static char *read_template(const char *dir, const char *family)
{
    char name[64];
    uint64_t size;
    snprintf(name, sizeof name, "%s.jinja", family);
    return files_read(dir, name, &size);
}

static void check_recognised(const char *text, const char *name)
{
    uint32_t family = SHEAF__CHAT_NONE;
    sheaf_error err = {0};
    if (sheaf__chat_recognise(text, &family, &err) != SHEAF_OK)
        fail_msg("%s: %s", name, err.text);
    assert_string_equal(sheaf__chat_name(family), name);
}

static void templates_are_recognised_part_by_part(void **state)
{
    (void)state;
    const char *published = getenv("SHEAF_CHAT_TEMPLATES");
    for (size_t i = 0; i < N_WRITTEN; i++) {
        char *text = read_template(TEMPLATES, written[i]);
        check_recognised(text, written[i]);
        free(text);
        if (published == NULL) continue;
        text = read_template(published, written[i]);
        check_recognised(text, written[i]);
        free(text);
    }
    if (published == NULL) fprintf(stderr, "NOT CHECKED: no SHEAF_CHAT_TEMPLATES\n");
}

/* `text` with its first `from` turned into `to`; release with free. */
static char *with_change(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("the template has no %s", from);
    size_t before = (size_t)(at - text), size = strlen(text) + strlen(to) + 1;
    char *changed = malloc(size);
    assert_non_null(changed);
    snprintf(changed, size, "%.*s%s%s", (int)before, text, to, at + strlen(from));
    return changed;
}

static void a_template_that_is_nearly_known_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *family, *from, *to;
    } changes[] = {
        {"mistral", "' [/INST]'", "'[/INST]'"},
        {"mistral", "'[INST] '", "'[INST]  '"},
        {"mistral", "message['content'] + eos", "' ' + message['content'] + eos"},
        {"mistral", "message['content'] + eos_token", "message['content'] | trim + eos_token"},
        {"mistral", "{{ bos_token }}", ""},
        {"mistral", "{{ bos_token }}", "{{ bos_token }}{{ 'Hello. ' }}"},
        {"mistral", "{{ bos_token }}", "{{ bos_token }}Hello."},
        {"mistral", "{{ bos_token }}\n{%- for", "{{ bos_token }}\n{% for"},
        {"mistral", "{%- if", "{% if messages[0]['role'] == 'system' %}{% endif %}{% if"},
        {"mistral-v0.1", "}}{% for", "}} {% for"},
        {"mistral-v0.1", "-#}", "#} "},
        {"mistral-v0.1", "eos_token + \" \"", "eos_token + \"  \""},
        {"mistral-v1", "loop.first", "loop.last"},
        {"mistral-v1", "\\n\\n", "\\n"},
        {"mistral-v1", "messages[0]['content']", "messages[0]['content'] | trim"},
        {"mistral-v1", "{% set rest = messages %}", "{% set system_message = 'Be good.' %}"},
        {"mistral-v3", "|trim", ""},
        {"mistral-v3", "{{- bos_token }}", ""},
        {"mistral-v3", "loop.last and system_message", "loop.first and system_message"},
        {"mistral-v3", "[/INST]", " [/INST]"},
        {"mistral-v3-tekken", "[INST]", "[INST] "},
        {"mistral-v3-tekken", "message[\"content\"] + eos", "message[\"content\"]|trim + eos"},
        {"gemma", " + '\n\n'", " + '\n'"},
        {"gemma", "message['content'] | trim", "message['content']"},
        {"gemma", "messages[0]['content']", "messages[0]['content'] | trim"},
        {"gemma", "\"model\"", "\"assistant\""},
        {"gemma", "<end_of_turn>\\n", "<end_of_turn>"},
        {"gemma", "loop.first", "loop.last"},
        {"gemma", "{{ bos_token }}", ""},
        {"gemma", "prefix = \"\"", "prefix = \"Be good.\""},
        {"gemma", "\n    {{- '<end", "\n    {{ '<end"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *text = read_template(TEMPLATES, changes[i].family);
        char *changed = with_change(text, changes[i].from, changes[i].to);
        uint32_t family = SHEAF__CHAT_NONE;
        sheaf_error err = {0};
        if (sheaf__chat_recognise(changed, &family, &err) != SHEAF_E_ARCH)
            fail_msg("%s, %s: taken", changes[i].family, changes[i].from);
        assert_int_equal(family, SHEAF__CHAT_NONE);
        assert_non_null(strstr(err.text, "--chat-template"));
        free(changed);
        free(text);
    }
}

static void blanks_quotes_and_comments_do_not_matter(void **state)
{
    (void)state;
    static const struct {
        const char *family, *from, *to;
    } changes[] = {
        {"mistral", "{{ bos_token }}", "{#- a {{ comment }} -#}\n{{bos_token-}} "},
        {"mistral", "{%- for message", "{%-   for\n\tmessage"},
        {"mistral", "'[INST] '", "\"[INST] \""},
        {"mistral-v1", "{% set system_message", "\t{%set system_message"},
        {"mistral-v3", "'{\"type\": \"function\", ", "'{{\"it\\'s\": \"%}\", "},
        {"gemma", "'\n\n'", "'\\n\\n'"},
        {"gemma", "{%- endif -%}\n", "{%- endif %}\n"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char *text = read_template(TEMPLATES, changes[i].family);
        char *changed = with_change(text, changes[i].from, changes[i].to);
        check_recognised(changed, changes[i].family);
        free(changed);
        free(text);
    }
}

/* A reproducible next number. */
static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

static void check_any_template(const char *text)
{
    uint32_t family = SHEAF__CHAT_NONE;
    sheaf_error err = {0};
    sheaf_status status = sheaf__chat_recognise(text, &family, &err);
    if (status == SHEAF_OK) {
        assert_true(family > SHEAF__CHAT_NONE && family <= SHEAF__CHAT_GEMMA);
        return;
    }
    assert_int_equal(status, SHEAF_E_ARCH);
    assert_int_equal(family, SHEAF__CHAT_NONE);
    assert_non_null(strstr(err.text, "--chat-template"));
}

static void damaged_templates_are_answered(void **state)
{
    (void)state;
    const char *given = getenv("SHEAF_SEED");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 0) : 20240607;
    fprintf(stderr, "SHEAF_SEED=%llu\n", (unsigned long long)seed);
    static const char marks[] = "{}%#-'\"\\ \n[I<x";
    for (uint32_t round = 0; round < 6000; round++) {
        char *text = read_template(TEMPLATES, written[round % N_WRITTEN]);
        size_t n = strlen(text);
        char *exact = malloc(n + 1); /* so that a sanitizer sees a step beyond it */
        assert_non_null(exact);
        memcpy(exact, text, n + 1);
        for (uint32_t i = draw(&seed, 4); i-- > 0;)
            exact[draw(&seed, (uint32_t)n)] = marks[draw(&seed, sizeof marks - 1)];
        if (round % 3 == 0) exact[draw(&seed, (uint32_t)n)] = 0;
        check_any_template(exact);
        free(exact);
        free(text);
    }
}

static void a_huge_template_is_answered(void **state)
{
    (void)state;
    static const char *const repeated[] = {"{{", "{%- '",           "[INST]",
                                           "{#", "<start_of_turn>", "'\\"};
    const size_t size = 8u << 20;
    char *text = malloc(size + 1);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof repeated / sizeof repeated[0]; i++) {
        size_t n = strlen(repeated[i]);
        memcpy(text, "[INST]", 6);
        for (size_t at = 6; at < size; at++) text[at] = repeated[i][at % n];
        text[size] = 0;
        uint32_t family = SHEAF__CHAT_NONE;
        assert_int_equal(sheaf__chat_recognise(text, &family, NULL), SHEAF_E_ARCH);
    }
    free(text);
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
    files_write_text(dir, "tokenizer_config.json", "{\"chat_template\": 7}");
    check_detected(dir, SHEAF_E_FORMAT, SHEAF__CHAT_NONE);
    files_write_text(dir, "tokenizer_config.json",
                     "{\"chat_template\": [{\"name\": \"default\", \"template\": {}}]}");
    check_detected(dir, SHEAF_E_FORMAT, SHEAF__CHAT_NONE);
    files_write_text(dir, "tokenizer_config.json", "[]");
    check_detected(dir, SHEAF_E_FORMAT, SHEAF__CHAT_NONE);
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

/* How often `token` begins or stands in a conversation's ids. */
static uint32_t count_token(const sheaf__tokenizer *tok, uint32_t family, uint32_t encode,
                            const char *token)
{
    static const sheaf__message messages[] = {{"user", "q"}, {"assistant", "a"}, {"user", "r"}};
    sheaf__text text = {NULL, 0, 0};
    sheaf__ids ids = {NULL, 0, 0};
    assert_int_equal(sheaf__chat_render(family, messages, 3, true, &text, NULL), SHEAF_OK);
    assert_int_equal(sheaf__tokenizer_encode(tok, text.data, text.n, encode, &ids), SHEAF_OK);
    int32_t id = sheaf__tokenizer_find(tok, token);
    assert_true(id >= 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < ids.n; i++) n += ids.data[i] == id;
    if (n != 0) assert_int_equal(ids.data[0], id);
    sheaf__ids_free(&ids);
    sheaf__text_free(&text);
    return n;
}

/* A tokenizer whose post-processor puts `bos` before every text. */
static sheaf__tokenizer *open_with_bos(const char *dir, const char *bos)
{
    static const char format[] =
        "{\"added_tokens\": [{\"id\": 1, \"content\": \"%s\", \"special\": true}],"
        " \"post_processor\": {\"type\": \"TemplateProcessing\","
        " \"single\": [{\"SpecialToken\": {\"id\": \"%s\", \"type_id\": 0}},"
        "              {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}],"
        " \"special_tokens\": {\"%s\": {\"id\": \"%s\", \"ids\": [1], \"tokens\": [\"%s\"]}}},"
        " \"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0},"
        " \"merges\": []}}";
    char text[1024];
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    snprintf(text, sizeof text, format, bos, bos, bos, bos, bos);
    files_write_text(dir, "tokenizer.json", text);
    if (sheaf__tokenizer_open(dir, &tok, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return tok;
}

static void a_conversation_begins_with_one_bos_or_none(void **state)
{
    (void)state;
    static const struct {
        uint32_t family;
        const char *bos;
        uint32_t n;
    } cases[] = {
        {SHEAF__CHAT_CHATML, "<s>", 0},
        {SHEAF__CHAT_QWEN3, "<|endoftext|>", 0},
        {SHEAF__CHAT_LLAMA3, "<|begin_of_text|>", 1},
        {SHEAF__CHAT_LLAMA31, "<|begin_of_text|>", 1},
        {SHEAF__CHAT_MISTRAL, "<s>", 1},
        {SHEAF__CHAT_MISTRAL_V01, "<s>", 1},
        {SHEAF__CHAT_MISTRAL_V1, "<s>", 1},
        {SHEAF__CHAT_MISTRAL_V3, "<s>", 1},
        {SHEAF__CHAT_MISTRAL_V3_TEKKEN, "<s>", 1},
        {SHEAF__CHAT_GEMMA, "<bos>", 1},
    };
    char dir[FILES_PATH];
    files_make_dir(dir);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__tokenizer *tok = open_with_bos(dir, cases[i].bos);
        uint32_t family = cases[i].family, n = cases[i].n;
        assert_int_equal(count_token(tok, family, SHEAF__ENCODE_PLAIN, cases[i].bos), n);
        assert_int_equal(count_token(tok, family, SHEAF__ENCODE_POST_PROCESS, cases[i].bos),
                         n + 1); /* what it would be */
        sheaf__tokenizer_close(tok);
    }
    files_remove_dir(dir);
}

static void real_tokenizers_give_one_bos_or_none(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        uint32_t family;
        const char *token;
        uint32_t n;
    } cases[] = {
        {"models/sheaf-demo", SHEAF__CHAT_CHATML, "<|endoftext|>", 0},
        {"../shared/tokenizers/qwen3", SHEAF__CHAT_QWEN3, "<|endoftext|>", 0},
        {"../shared/tokenizers/mistral-v0.1", SHEAF__CHAT_MISTRAL, "<s>", 1},
        {"../shared/tokenizers/mistral-v0.1", SHEAF__CHAT_MISTRAL_V1, "<s>", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__tokenizer *tok = NULL;
        if (!sheaf__file_exists(cases[i].dir)) {
            fprintf(stderr, "NOT CHECKED: no %s\n", cases[i].dir);
            continue;
        }
        assert_int_equal(sheaf__tokenizer_open(cases[i].dir, &tok, NULL), SHEAF_OK);
        assert_int_equal(count_token(tok, cases[i].family, SHEAF__ENCODE_PLAIN, cases[i].token),
                         cases[i].n);
        sheaf__tokenizer_close(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_renders_as_its_template_does),
        cmocka_unit_test(every_family_refuses_what_its_template_refuses),
        cmocka_unit_test(no_messages_give_the_opening_alone),
        cmocka_unit_test(mistral_and_gemma_want_a_message),
        cmocka_unit_test(llama3_trims_what_python_calls_space),
        cmocka_unit_test(an_unknown_role_is_refused_and_nothing_written),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_known_ones),
        cmocka_unit_test(templates_are_told_apart_by_what_they_contain),
        cmocka_unit_test(a_form_has_one_spelling),
        cmocka_unit_test(templates_are_recognised_part_by_part),
        cmocka_unit_test(a_template_that_is_nearly_known_is_refused),
        cmocka_unit_test(blanks_quotes_and_comments_do_not_matter),
        cmocka_unit_test(damaged_templates_are_answered),
        cmocka_unit_test(a_huge_template_is_answered),
        cmocka_unit_test(a_template_is_found_wherever_models_keep_it),
        cmocka_unit_test(real_models_are_recognised),
        cmocka_unit_test(a_conversation_begins_with_one_bos_or_none),
        cmocka_unit_test(real_tokenizers_give_one_bos_or_none),
    };
    return cmocka_run_group_tests_name("test_chat", tests, NULL, NULL);
}
