/* Tokenizers: what hostile files and texts do, streams of random ids, the byte vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "model/files.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

#define MODEL(fields)                                                                          \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aa\":3,\"<u>\":4},"     \
    "\"merges\":[\"a b\",\"a a\"]" fields "}"
#define SMALL "{" MODEL("") "}"

static sheaf__tokenizer *parse(const char *json)
{
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    if (sheaf__tokenizer_parse("DIR/tokenizer.json", json, strlen(json), &tok, &err) !=
        SHEAF_OK)
        fail_msg("%s\n%s", json, err.text);
    return tok;
}

static sheaf__tokenizer *open_demo(void)
{
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    if (sheaf__tokenizer_open("models/sheaf-demo", &tok, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    return tok;
}

/* The same random numbers everywhere; SHEAF_SEED sets the start. */
static uint64_t seed_state;
static uint32_t random_below(uint32_t n)
{
    seed_state = seed_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((seed_state >> 32) * n) >> 32);
}

static void start_random(void)
{
    const char *given = getenv("SHEAF_SEED");
    seed_state = given != NULL ? strtoull(given, NULL, 0) : 20261129;
    fprintf(stderr, "SHEAF_SEED=%llu\n", (unsigned long long)seed_state);
}

static void check_ids(const sheaf__tokenizer *tok, const char *text, uint64_t size,
                      uint32_t flags, const int32_t *expected, uint32_t n)
{
    sheaf__ids ids = {NULL, 0, 0};
    assert_int_equal(sheaf__tokenizer_encode(tok, text, size, flags, &ids), SHEAF_OK);
    assert_int_equal(ids.n, n);
    if (n != 0) assert_memory_equal(ids.data, expected, n * sizeof *expected);
    sheaf__ids_free(&ids);
}

#define CHECK_IDS(tok, text, flags, ...)                                                       \
    do {                                                                                       \
        const int32_t expected_[] = {__VA_ARGS__};                                             \
        check_ids(tok, text, strlen(text), flags, expected_,                                   \
                  (uint32_t)(sizeof expected_ / sizeof expected_[0]));                         \
    } while (0)

/* ---- files
 * ---------------------------------------------------------------------------------- */

static void broken_files_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        sheaf_status status;
        const char *says;
    } cases[] = {
        {"", SHEAF_E_FORMAT, "DIR/tokenizer.json"},
        {"[]", SHEAF_E_FORMAT, "object"},
        {"{}", SHEAF_E_CONFIG, "model"},
        {"{\"model\":{\"type\":\"Unigram\"}}", SHEAF_E_ARCH, "Unigram"},
        {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", SHEAF_E_FORMAT, "vocab"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", SHEAF_E_FORMAT, "-1"},
        {"{\"model\":{\"vocab\":{\"a\":0.5},\"merges\":[]}}", SHEAF_E_FORMAT, "0.5"},
        {"{\"model\":{\"vocab\":{\"a\":2147483646},\"merges\":[]}}", SHEAF_E_FORMAT,
         "2147483646"},
        {"{\"model\":{\"vocab\":{\"a\":9999999999},\"merges\":[]}}", SHEAF_E_FORMAT,
         "9999999999"},
        {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", SHEAF_E_FORMAT, "two"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", SHEAF_E_FORMAT, "merges[0]"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", SHEAF_E_FORMAT,
         "merges[0]"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", SHEAF_E_FORMAT,
         "merges[0]"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", SHEAF_E_FORMAT, "aa"},
        {"{\"added_tokens\":[{\"id\":3}]," MODEL("") "}", SHEAF_E_FORMAT, "added_tokens[0]"},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"x\"}]," MODEL("") "}", SHEAF_E_FORMAT,
         "taken"},
        {"{\"added_tokens\":[{\"id\":5,\"content\":\"x\",\"special\":1}]," MODEL("") "}",
         SHEAF_E_CONFIG, "special"},
        {"{" MODEL(",\"unk_token\":\"?\"") "}", SHEAF_E_FORMAT, "unk_token"},
        {"{" MODEL(",\"dropout\":0.1") "}", SHEAF_E_ARCH, "dropout"},
        {"{" MODEL(",\"end_of_word_suffix\":\"</w>\"") "}", SHEAF_E_ARCH, "end_of_word"},
        {"{" MODEL(",\"byte_fallback\":3") "}", SHEAF_E_CONFIG, "byte_fallback"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__tokenizer *tok = NULL;
        sheaf_error err = {0};
        sheaf_status status = sheaf__tokenizer_parse("DIR/tokenizer.json", cases[i].json,
                                                     strlen(cases[i].json), &tok, &err);
        if (status != cases[i].status || strstr(err.text, cases[i].says) == NULL)
            fail_msg("%s\ngave %d: %s", cases[i].json, status, err.text);
        assert_null(tok);
        assert_int_equal(err.status, status);
    }
}

static void unknown_components_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *part, *says;
    } cases[] = {
        {"\"normalizer\":{\"type\":\"Lowercase\"}", "normalizer.Lowercase"},
        {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
         "{\"type\":\"Precompiled\"}]}",
         "normalizer.Precompiled"},
        {"\"pre_tokenizer\":{\"type\":\"Whitespace\"}", "pre_tokenizer.Whitespace"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\","
         "\"add_prefix_space\":false},{\"type\":\"Digits\"}]}",
         "after ByteLevel"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},"
         "\"behavior\":\"Sideways\"}",
         "Sideways"},
        {"\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"\"},"
         "\"behavior\":\"Isolated\"}",
         "empty"},
        {"\"post_processor\":{\"type\":\"RobertaProcessing\"}", "RobertaProcessing"},
        {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}", "without"},
        {"\"decoder\":{\"type\":\"WordPiece\"}", "decoder.WordPiece"},
        {"\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}", "Strip"},
        {"\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
         "{\"type\":\"ByteFallback\"}]}",
         "ByteFallback is not known in this place"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[1024];
        snprintf(json, sizeof json, "{%s," MODEL("") "}", cases[i].part);
        sheaf__tokenizer *tok = NULL;
        sheaf_error err = {0};
        sheaf_status status =
            sheaf__tokenizer_parse("DIR/tokenizer.json", json, strlen(json), &tok, &err);
        if (status != SHEAF_E_ARCH || strstr(err.text, cases[i].says) == NULL)
            fail_msg("%s\ngave %d: %s", json, status, err.text);
    }
}

static void sequences_nested_without_end_are_refused(void **state)
{
    (void)state;
    char json[8192] = "{\"normalizer\":";
    for (int i = 0; i < 100; i++) strcat(json, "{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 100; i++) strcat(json, "]}");
    strcat(json, "," MODEL("") "}");
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    assert_int_equal(sheaf__tokenizer_parse("x", json, strlen(json), &tok, &err),
                     SHEAF_E_FORMAT);
}

static sheaf_status parse_pattern(const char *pattern, sheaf__tokenizer **tok, sheaf_error *err)
{
    char json[1024];
    snprintf(json, sizeof json,
             "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
             "\"behavior\":\"Isolated\"}," MODEL("") "}",
             pattern);
    return sheaf__tokenizer_parse("x", json, strlen(json), tok, err);
}

/* Each means something else to the reference's engine, or nothing to ours. */
static void patterns_that_would_match_otherwise_are_refused(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "[a[b]]",
        "[a&&b]",
        "(?m:a.b)",
        "\\\\bword",
        "a{1,3}+",
        "\\\\y",
        "a\\\\",
        "(*UTF)a",
        "(a",
        "[a",
        "\\\\u12",
        "[^\\\\W]",
        "[]a]",
        "a{",
        "(?<=a*)b",
        "\\\\Qa",
        "\\\\p{NoSuchThing}",
        "(?~ab)",
        "\\\\N",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        sheaf__tokenizer *tok = NULL;
        sheaf_error err = {0};
        sheaf_status status = parse_pattern(patterns[i], &tok, &err);
        if (status != SHEAF_E_ARCH) fail_msg("%s gave %d: %s", patterns[i], status, err.text);
    }
}

/* Exponential at one position; slow at every position, which the clock ends. */
static void a_hostile_pattern_is_an_error_and_not_a_hang(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        uint64_t size;
    } cases[] = {{"(a+)+$", 100},
                 {"(a|aa)+$", 100},
                 {"(?=.)[ax]*[ay]*[bc]", 4000},
                 {"(?=.)[ax]*[bc]", 100000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__tokenizer *tok = NULL;
        sheaf_error err = {0};
        if (parse_pattern(cases[i].pattern, &tok, &err) != SHEAF_OK) fail_msg("%s", err.text);
        char *text = malloc(cases[i].size);
        assert_non_null(text);
        memset(text, 'a', cases[i].size);
        text[cases[i].size - 1] = '!';
        sheaf__ids ids = {NULL, 0, 0};
        assert_int_equal(sheaf__ids_push(&ids, 7), SHEAF_OK);
        assert_int_equal(sheaf__tokenizer_encode(tok, text, cases[i].size, 0, &ids),
                         SHEAF_E_UNSUPPORTED);
        assert_int_equal(ids.n, 1);
        sheaf__ids_free(&ids);
        free(text);
        sheaf__tokenizer_close(tok);
    }
}

static void an_absent_file_is_an_io_error(void **state)
{
    (void)state;
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    assert_int_equal(sheaf__tokenizer_open("models/no-such-model", &tok, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "models/no-such-model/tokenizer.json"));
}

/* ---- encoding
 * ------------------------------------------------------------------------------- */

static void merges_go_by_rank_and_then_from_the_left(void **state)
{
    (void)state;
    sheaf__tokenizer *tok = parse(SMALL);
    assert_int_equal(sheaf__tokenizer_vocab(tok), 5);
    assert_int_equal(sheaf__tokenizer_find(tok, "ab"), 2);
    assert_int_equal(sheaf__tokenizer_find(tok, "abc"), -1);
    CHECK_IDS(tok, "aab", 0, 0, 2);
    CHECK_IDS(tok, "aaa", 0, 3, 0);
    CHECK_IDS(tok, "aaaab", 0, 3, 0, 2);
    check_ids(tok, "", 0, 0, NULL, 0);
    sheaf__tokenizer_close(tok);
}

static void special_tokens_in_text_are_text_when_asked(void **state)
{
    (void)state;
    sheaf__tokenizer *tok = open_demo();
    int32_t end = sheaf__tokenizer_find(tok, "<|im_end|>");
    assert_true(end >= 0 && sheaf__tokenizer_is_special(tok, end));
    assert_false(sheaf__tokenizer_is_special(tok, 0));
    assert_false(sheaf__tokenizer_is_special(tok, -1));
    assert_false(sheaf__tokenizer_is_special(tok, INT32_MAX));
    CHECK_IDS(tok, "<|im_end|><|im_end|>", SHEAF__ENCODE_PLAIN, end, end);
    sheaf__ids ids = {NULL, 0, 0};
    assert_int_equal(
        sheaf__tokenizer_encode(tok, "<|im_end|>", 10, SHEAF__ENCODE_NO_SPECIAL, &ids),
        SHEAF_OK);
    for (uint32_t i = 0; i < ids.n; i++) assert_int_not_equal(ids.data[i], end);
    sheaf__text text = {NULL, 0, 0};
    assert_int_equal(sheaf__tokenizer_decode(tok, ids.data, ids.n, true, &text), SHEAF_OK);
    assert_string_equal(text.data, "<|im_end|>");
    sheaf__text_free(&text);
    sheaf__ids_free(&ids);
    sheaf__tokenizer_close(tok);
}

/* The longest match counts; what it rules out is not looked for inside it. */
static void an_added_token_that_is_turned_down_hides_those_inside(void **state)
{
    (void)state;
    sheaf__tokenizer *tok =
        parse("{\"added_tokens\":[{\"id\":5,\"content\":\"?ba\",\"single_word\":true},"
              "{\"id\":6,\"content\":\"ba\"}]," MODEL("") "}");
    CHECK_IDS(tok, "?bab", 0, 1, 2);
    CHECK_IDS(tok, "?ba b", 0, 5, 1);
    CHECK_IDS(tok, "bab", 0, 6, 1);
    sheaf__tokenizer_close(tok);
}

/* Every code point once. */
static char *all_characters(uint64_t *size, uint32_t *n)
{
    char *text = malloc(0x110000 * 4);
    assert_non_null(text);
    *size = 0;
    *n = 0;
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xd800 && code <= 0xdfff) continue;
        *size += sheaf__utf8_write(code, text + *size);
        ++*n;
    }
    return text;
}

/* Removes what the pattern matches; each character left is an unknown token. Unicode has 25
 * characters of White_Space; U+180E was one until version 6.3. */
static void patterns_know_the_25_spaces_of_unicode(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        bool spaces_go;
    } cases[] = {{"\\\\s", true},   {"[\\\\s]", true},    {"[^\\\\S]", true},
                 {"\\\\S+", false}, {"[^\\\\s]+", false}, {"[\\\\S]+", false}};
    static const char spaces[] =
        "\t\n\v\f\r \xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80\xe2\x80\x81\xe2\x80\x82\xe2\x80"
        "\x83\xe2\x80\x84\xe2\x80\x85\xe2\x80\x86\xe2\x80\x87\xe2\x80\x88\xe2\x80\x89\xe2\x80"
        "\x8a\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80";
    uint64_t size;
    uint32_t n;
    char *text = all_characters(&size, &n);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},"
                 "\"behavior\":\"Removed\"},\"model\":{\"vocab\":{\"<u>\":0},\"merges\":[],"
                 "\"unk_token\":\"<u>\"}}",
                 cases[i].pattern);
        sheaf__tokenizer *tok = parse(json);
        sheaf__ids ids = {NULL, 0, 0};
        assert_int_equal(sheaf__tokenizer_encode(tok, text, size, 0, &ids), SHEAF_OK);
        assert_int_equal(ids.n, cases[i].spaces_go ? n - 25 : 25);
        ids.n = 0;
        assert_int_equal(sheaf__tokenizer_encode(tok, spaces, sizeof spaces - 1, 0, &ids),
                         SHEAF_OK);
        assert_int_equal(ids.n, cases[i].spaces_go ? 0 : 25);
        sheaf__ids_free(&ids);
        sheaf__tokenizer_close(tok);
    }
    free(text);
}

/* Unicode's own example of maximal subparts (chapter 3.9, tables 3-8 to 3-11). */
static void ill_formed_text_becomes_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *given, *cleaned;
    } cases[] = {
        {"a\xff", "a\xef\xbf\xbd"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
         "\xef\xbf\xbd\x41"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x91\x92\x93\xff\x41",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x41"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x41"},
        {"\xe2\x82", "\xef\xbf\xbd"},
    };
    sheaf__tokenizer *tok = open_demo();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sheaf__ids ids = {NULL, 0, 0};
        sheaf__text text = {NULL, 0, 0};
        assert_int_equal(
            sheaf__tokenizer_encode(tok, cases[i].given, strlen(cases[i].given), 0, &ids),
            SHEAF_OK);
        assert_int_equal(sheaf__tokenizer_decode(tok, ids.data, ids.n, false, &text), SHEAF_OK);
        assert_string_equal(text.data, cases[i].cleaned);
        sheaf__ids_free(&ids);
        sheaf__text_free(&text);
    }
    sheaf__tokenizer_close(tok);
}

/* Below U+0300 nothing is composed, so byte level gives back what it got. */
static void random_bytes_never_fail_and_latin_text_returns(void **state)
{
    (void)state;
    start_random();
    sheaf__tokenizer *tok = open_demo();
    for (int round = 0; round < 2000; round++) {
        char given[256];
        uint64_t n = 0;
        bool latin = round % 2 == 0;
        for (uint32_t left = random_below(60); left > 0; left--) {
            if (latin)
                n += sheaf__utf8_write(random_below(0x300), given + n);
            else
                given[n++] = (char)random_below(256);
        }
        sheaf__ids ids = {NULL, 0, 0};
        sheaf__text text = {NULL, 0, 0};
        assert_int_equal(sheaf__tokenizer_encode(tok, given, n, 0, &ids), SHEAF_OK);
        assert_int_equal(sheaf__tokenizer_decode(tok, ids.data, ids.n, false, &text), SHEAF_OK);
        assert_int_equal(sheaf__utf8_valid_prefix(text.data, text.n), text.n);
        if (latin) {
            assert_int_equal(text.n, n);
            if (n != 0) assert_memory_equal(text.data, given, n);
        }
        sheaf__ids_free(&ids);
        sheaf__text_free(&text);
    }
    sheaf__tokenizer_close(tok);
}

/* A piece without cuts and marks without order are quadratic in naive forms. The time limit of
 * the test is the check. */
static void a_long_text_of_one_kind_takes_no_quadratic_time(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\xcc\xa3\xcc\x87\xcd\x85\xcc\x81"};
    sheaf__tokenizer *tokens[] = {
        parse(SMALL), open_demo(),
        parse("{\"normalizer\":{\"type\":\"NFKC\"}," MODEL(",\"unk_token\":\"<u>\"") "}")};
    const uint64_t size = 400000;
    char *text = malloc(size + 8);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t unit = strlen(units[u]);
        for (uint64_t i = 0; i < size; i += unit) memcpy(text + i, units[u], unit);
        for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++) {
            sheaf__ids ids = {NULL, 0, 0};
            assert_int_equal(sheaf__tokenizer_encode(tokens[t], text, size, 0, &ids), SHEAF_OK);
            if (t == 0) assert_int_equal(ids.n, u == 0 ? size / 2 : 0);
            sheaf__ids_free(&ids);
        }
    }
    free(text);
    for (size_t t = 0; t < sizeof tokens / sizeof tokens[0]; t++)
        sheaf__tokenizer_close(tokens[t]);
}

/* ---- decoding
 * ------------------------------------------------------------------------------- */

static void check_stream(const sheaf__tokenizer *tok, const int32_t *ids, uint32_t n,
                         bool skip_special)
{
    sheaf__text whole = {NULL, 0, 0}, streamed = {NULL, 0, 0};
    sheaf__detokenizer d;
    assert_int_equal(sheaf__tokenizer_decode(tok, ids, n, skip_special, &whole), SHEAF_OK);
    sheaf__detokenizer_init(&d, tok, skip_special);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(sheaf__detokenizer_push(&d, ids[i], &streamed), SHEAF_OK);
        assert_int_equal(sheaf__utf8_valid_prefix(streamed.data, streamed.n), streamed.n);
    }
    assert_int_equal(sheaf__detokenizer_finish(&d, &streamed), SHEAF_OK);
    assert_int_equal(whole.n, streamed.n);
    if (whole.n != 0) assert_memory_equal(whole.data, streamed.data, whole.n);
    sheaf__text_free(&whole);
    sheaf__text_free(&streamed);
}

static void random_ids_stream_as_they_decode(void **state)
{
    (void)state;
    static const char *const dirs[] = {"models/sheaf-demo",
                                       "../shared/models/TinyStories-656K"};
    start_random();
    for (size_t m = 0; m < 2; m++) {
        sheaf__tokenizer *tok = NULL;
        if (!sheaf__file_exists(dirs[m])) {
            fprintf(stderr, "NOT CHECKED: no %s\n", dirs[m]);
            continue;
        }
        assert_int_equal(sheaf__tokenizer_open(dirs[m], &tok, NULL), SHEAF_OK);
        for (int round = 0; round < 4000; round++) {
            int32_t ids[24];
            uint32_t n = random_below(24);
            for (uint32_t i = 0; i < n; i++) { /* bytes, any token, and none */
                uint32_t range = random_below(2) ? 262 : sheaf__tokenizer_vocab(tok) + 4;
                ids[i] = (int32_t)random_below(range) - 2;
            }
            check_stream(tok, ids, n, random_below(2));
        }
        sheaf__tokenizer_close(tok);
    }
}

#define FALLBACK                                                                               \
    "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"           \
    "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"     \
    "\"model\":{\"vocab\":{\"<0xC3>\":0,\"<0xA9>\":1,\"<0xFF>\":2,\"<0x41>\":3,\" \":4,"       \
    "\"x\":5},\"merges\":[]}}"

static void check_steps(const sheaf__tokenizer *tok, const int32_t *ids,
                        const char *const *after, uint32_t n)
{
    sheaf__text text = {NULL, 0, 0};
    sheaf__detokenizer d;
    sheaf__detokenizer_init(&d, tok, false);
    assert_int_equal(sheaf__text_append(&text, "", 0), SHEAF_OK);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(sheaf__detokenizer_push(&d, ids[i], &text), SHEAF_OK);
        assert_string_equal(text.data, after[i]);
    }
    assert_int_equal(sheaf__detokenizer_finish(&d, &text), SHEAF_OK);
    assert_string_equal(text.data, after[n]);
    sheaf__text_free(&text);
}

static void a_run_of_bytes_is_held_until_it_is_decided(void **state)
{
    (void)state;
    sheaf__tokenizer *tok = parse(FALLBACK);
    check_steps(
        tok, (const int32_t[]){4, 4, 0, 1, 5, 3},
        (const char *const[]){"", " ", " ", " ", " \xc3\xa9x", " \xc3\xa9x", " \xc3\xa9xA"}, 6);
    /* a fault takes the whole run, and is told at once */
    check_steps(tok, (const int32_t[]){3, 2, 3, 5},
                (const char *const[]){"", "\xef\xbf\xbd\xef\xbf\xbd",
                                      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
                                      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx",
                                      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"},
                4);
    check_steps(tok, (const int32_t[]){5, 3, 0},
                (const char *const[]){"x", "x", "x", "x\xef\xbf\xbd\xef\xbf\xbd"}, 3);
    sheaf__tokenizer_close(tok);
}

static void a_stream_may_be_left_without_an_end(void **state)
{
    (void)state;
    sheaf__tokenizer *tok = parse(FALLBACK);
    sheaf__text text = {NULL, 0, 0};
    sheaf__detokenizer d;
    sheaf__detokenizer_init(&d, tok, false);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(sheaf__detokenizer_push(&d, 3, &text), SHEAF_OK);
    assert_int_equal(text.n, 0);
    sheaf__detokenizer_free(&d);
    sheaf__detokenizer_free(&d);
    sheaf__text_free(&text);
    sheaf__tokenizer_close(tok);
}

static void the_byte_vocabulary_is_bytes(void **state)
{
    (void)state;
    sheaf__tokenizer *tok = NULL;
    assert_int_equal(sheaf__tokenizer_open_bytes(300, &tok, NULL), SHEAF_OK);
    assert_int_equal(sheaf__tokenizer_vocab(tok), 300);
    CHECK_IDS(tok, "A\xff\xc3\xa9", SHEAF__ENCODE_POST_PROCESS, 65, 255, 0xc3, 0xa9);
    check_steps(tok, (const int32_t[]){65, 299, -1, 0xc3, 0xa9, 0xc3},
                (const char *const[]){"A", "A", "A", "A", "A\xc3\xa9", "A\xc3\xa9",
                                      "A\xc3\xa9\xef\xbf\xbd"},
                6);
    assert_int_equal(sheaf__tokenizer_find(tok, "A"), -1);
    assert_false(sheaf__tokenizer_is_special(tok, 65));
    sheaf__tokenizer_close(tok);
    assert_int_equal(sheaf__tokenizer_open_bytes(UINT32_MAX, &tok, NULL), SHEAF_E_INVALID);
}

/* Whatever cuts characters in two: the bytes of all tokens are the text. */
static void the_bytes_of_tokens_join_to_the_text(void **state)
{
    (void)state;
    const char *text = "a price of 5 \xe2\x82\xac, \xf0\x9f\x90\x9f\xf0\x9f\x90\x9f<|im_end|>";
    sheaf__tokenizer *toks[2] = {open_demo(), NULL};
    assert_int_equal(sheaf__tokenizer_open_bytes(300, &toks[1], NULL), SHEAF_OK);
    for (uint32_t t = 0; t < 2; t++) {
        sheaf__ids ids = {NULL, 0, 0};
        sheaf__text joined = {NULL, 0, 0};
        assert_int_equal(sheaf__tokenizer_encode(toks[t], text, strlen(text), 0, &ids),
                         SHEAF_OK);
        for (uint32_t i = 0; i < ids.n; i++)
            assert_int_equal(sheaf__tokenizer_bytes(toks[t], ids.data[i], &joined), SHEAF_OK);
        assert_string_equal(joined.data, text);
        uint64_t n = joined.n;
        assert_int_equal(sheaf__tokenizer_bytes(toks[t], -1, &joined), SHEAF_OK);
        assert_int_equal(sheaf__tokenizer_bytes(toks[t], INT32_MAX, &joined), SHEAF_OK);
        assert_int_equal(sheaf__tokenizer_bytes(toks[1], 299, &joined), SHEAF_OK);
        assert_int_equal(joined.n, n);
        sheaf__text_free(&joined);
        sheaf__ids_free(&ids);
        sheaf__tokenizer_close(toks[t]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_files_are_refused_with_a_sentence),
        cmocka_unit_test(unknown_components_are_refused_by_name),
        cmocka_unit_test(sequences_nested_without_end_are_refused),
        cmocka_unit_test(patterns_that_would_match_otherwise_are_refused),
        cmocka_unit_test(a_hostile_pattern_is_an_error_and_not_a_hang),
        cmocka_unit_test(an_absent_file_is_an_io_error),
        cmocka_unit_test(merges_go_by_rank_and_then_from_the_left),
        cmocka_unit_test(special_tokens_in_text_are_text_when_asked),
        cmocka_unit_test(an_added_token_that_is_turned_down_hides_those_inside),
        cmocka_unit_test(patterns_know_the_25_spaces_of_unicode),
        cmocka_unit_test(ill_formed_text_becomes_replacement_characters),
        cmocka_unit_test(random_bytes_never_fail_and_latin_text_returns),
        cmocka_unit_test(a_long_text_of_one_kind_takes_no_quadratic_time),
        cmocka_unit_test(random_ids_stream_as_they_decode),
        cmocka_unit_test(a_run_of_bytes_is_held_until_it_is_decided),
        cmocka_unit_test(a_stream_may_be_left_without_an_end),
        cmocka_unit_test(the_byte_vocabulary_is_bytes),
        cmocka_unit_test(the_bytes_of_tokens_join_to_the_text),
    };
    return cmocka_run_group_tests_name("test_tokenizer", tests, NULL, NULL);
}
