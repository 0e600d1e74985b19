/* model/gold_tokenizer.c - ids and texts as the reference implementation of tokenizer.json
 * gives.
 *
 * tests/data/tokenizers/ holds 110 texts for each of four tokenizers; the tokenizers themselves
 * are not in the repository and are skipped where they are absent. The demo model's own is.
 * synthetic.json holds small tokenizers of our own, one for each component and odd case, and
 * their rows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

typedef struct gold_case {
    const char *dir; /* holds tokenizer.json */
    const char *env; /* when dir is null: the variable that names it */
    const char *expected;
    size_t least_rows;
} gold_case;

static const gold_case demo = {"models/sheaf-demo", NULL,
                               "models/sheaf-demo/tokenizer_golden.jsonl", 28};
static const gold_case tinystories = {"../shared/models/TinyStories-656K", NULL,
                                      "tests/data/tokenizers/tinystories656k.json", 110};
static const gold_case mistral = {"../shared/tokenizers/mistral-v0.1", NULL,
                                  "tests/data/tokenizers/mistral.json", 110};
static const gold_case qwen3 = {"../shared/tokenizers/qwen3", NULL,
                                "tests/data/tokenizers/qwen3.json", 110};
static const gold_case llama31 = {NULL, "SHEAF_LLAMA31_TOKENIZER",
                                  "tests/data/tokenizers/llama31.json", 110};

static sheaf__tokenizer *open_or_skip(const gold_case *gold)
{
    const char *dir = gold->dir != NULL ? gold->dir : getenv(gold->env);
    char path[4096];
    if (dir != NULL) snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (dir == NULL || !sheaf__file_exists(path)) {
        fprintf(stderr, "SKIPPED: no tokenizer.json in %s for %s\n",
                dir != NULL ? dir : gold->env, gold->expected);
        skip();
    }
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    if (sheaf__tokenizer_open(dir, &tok, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return tok;
}

static void check_ids(const json_t *row, const sheaf__ids *ids)
{
    const json_t *expected = json_object_get(row, "ids");
    bool same = json_array_size(expected) == ids->n;
    for (uint32_t i = 0; same && i < ids->n; i++)
        same = json_integer_value(json_array_get(expected, i)) == ids->data[i];
    if (same) return;
    char *shown = json_dumps(row, JSON_ENSURE_ASCII);
    fprintf(stderr, "expected %s\nfound   ", shown);
    for (uint32_t i = 0; i < ids->n; i++) fprintf(stderr, " %d", ids->data[i]);
    fprintf(stderr, "\n");
    free(shown);
    fail();
}

static void check_text(const json_t *row, const char *field, const char *how,
                       const sheaf__text *text)
{
    const json_t *expected = json_object_get(row, field);
    size_t n = json_string_length(expected);
    if (n == text->n && (n == 0 || memcmp(json_string_value(expected), text->data, n) == 0))
        return;
    char *shown = json_dumps(row, JSON_ENSURE_ASCII);
    fprintf(stderr, "expected %s\n%s %s\n", shown, how, text->n ? text->data : "nothing");
    free(shown);
    fail();
}

/* Decodes whole and as a stream, whose every step must end between characters. */
static void check_decoding(const sheaf__tokenizer *tok, const json_t *row, const char *field,
                           const sheaf__ids *ids)
{
    bool skip_special = strcmp(field, "decoded_skip") == 0;
    sheaf__text whole = {NULL, 0, 0}, streamed = {NULL, 0, 0};
    assert_int_equal(sheaf__tokenizer_decode(tok, ids->data, ids->n, skip_special, &whole),
                     SHEAF_OK);
    check_text(row, field, "decoded ", &whole);

    sheaf__detokenizer d;
    sheaf__detokenizer_init(&d, tok, skip_special);
    for (uint32_t i = 0; i < ids->n; i++) {
        assert_int_equal(sheaf__detokenizer_push(&d, ids->data[i], &streamed), SHEAF_OK);
        assert_int_equal(sheaf__utf8_valid_prefix(streamed.data, streamed.n), streamed.n);
    }
    assert_int_equal(sheaf__detokenizer_finish(&d, &streamed), SHEAF_OK);
    check_text(row, field, "streamed", &streamed);
    sheaf__text_free(&whole);
    sheaf__text_free(&streamed);
}

static void check_row(const sheaf__tokenizer *tok, const json_t *row, uint32_t flags)
{
    const json_t *given = json_object_get(row, "text");
    sheaf__ids ids = {NULL, 0, 0};
    if (given != NULL) {
        assert_int_equal(sheaf__tokenizer_encode(tok, json_string_value(given),
                                                 json_string_length(given), flags, &ids),
                         SHEAF_OK);
        check_ids(row, &ids);
    } else { /* ids that no text gives */
        size_t i;
        json_t *id;
        json_array_foreach(json_object_get(row, "ids"), i, id)
            assert_int_equal(sheaf__ids_push(&ids, (int32_t)json_integer_value(id)), SHEAF_OK);
    }
    check_decoding(tok, row, "decoded", &ids);
    if (json_object_get(row, "decoded_skip") != NULL)
        check_decoding(tok, row, "decoded_skip", &ids);
    sheaf__ids_free(&ids);
}

/* One array of rows, or a row a line. */
static json_t *load_rows(const char *path)
{
    sheaf__file file = {NULL, 0};
    sheaf_error err = {0};
    if (sheaf__file_map(path, &file, &err) != SHEAF_OK) fail_msg("%s", err.text);
    const char *text = (const char *)file.data;
    json_error_t why;
    json_t *rows = json_loadb(text, file.size, JSON_ALLOW_NUL, &why);
    if (rows == NULL) {
        rows = json_array();
        for (uint64_t at = 0; at < file.size;) {
            const char *end = memchr(text + at, '\n', file.size - at);
            uint64_t n = end == NULL ? file.size - at : (uint64_t)(end - text) - at;
            json_t *row = json_loadb(text + at, n, JSON_ALLOW_NUL, &why);
            if (row == NULL) fail_msg("%s: %s", path, why.text);
            json_array_append_new(rows, row);
            at += n + 1;
        }
    }
    sheaf__file_unmap(&file);
    return rows;
}

static void every_row_encodes_and_decodes_as_expected(void **state)
{
    const gold_case *gold = *state;
    sheaf__tokenizer *tok = open_or_skip(gold);
    json_t *rows = load_rows(gold->expected);
    assert_true(json_array_size(rows) >= gold->least_rows);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) check_row(tok, row, SHEAF__ENCODE_PLAIN);
    json_decref(rows);
    sheaf__tokenizer_close(tok);
}

static void small_tokenizers_of_every_component_do_as_expected(void **state)
{
    (void)state;
    json_t *all = load_rows("tests/data/tokenizers/synthetic.json");
    assert_int_equal(json_array_size(all), 36);
    size_t i, r, n_rows = 0;
    json_t *each, *row;
    json_array_foreach(all, i, each)
    {
        const char *name = json_string_value(json_object_get(each, "name"));
        char *text = json_dumps(json_object_get(each, "tokenizer"), JSON_COMPACT);
        sheaf__tokenizer *tok = NULL;
        sheaf_error err = {0};
        if (sheaf__tokenizer_parse(name, text, strlen(text), &tok, &err) != SHEAF_OK)
            fail_msg("%s", err.text);
        json_array_foreach(json_object_get(each, "rows"), r, row)
        {
            check_row(tok, row, SHEAF__ENCODE_POST_PROCESS);
            n_rows++;
        }
        sheaf__tokenizer_close(tok);
        free(text);
    }
    assert_true(n_rows > 1000);
    json_decref(all);
}

#define GOLD(name)                                                                             \
    {                                                                                          \
#        name "_rows_encode_and_decode_as_expected",                                           \
            every_row_encodes_and_decodes_as_expected, NULL, NULL,                             \
            (void *)(uintptr_t) & (name)                                                       \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        GOLD(demo),    GOLD(tinystories),
        GOLD(mistral), GOLD(qwen3),
        GOLD(llama31), cmocka_unit_test(small_tokenizers_of_every_component_do_as_expected)};
    return cmocka_run_group_tests_name("gold_tokenizer", tests, NULL, NULL);
}
