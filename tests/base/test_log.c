/* base/log.c: both forms, hostile texts, lines that are cut, and threads that write at once. */
#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/log.h"

/* A log that writes into a file of its own, and what is in it. */
typedef struct book {
    FILE *file;
    sheaf__log log;
    char text[1 << 20];
    size_t n;
} book;

static book *book_open(uint32_t form)
{
    book *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->file = tmpfile();
    assert_non_null(b->file);
    b->log = (sheaf__log){.fd = fileno(b->file), .level = SHEAF__LOG_DEBUG, .form = form};
    assert_int_equal(fcntl(b->log.fd, F_SETFL, O_APPEND), 0);
    return b;
}

/* What has been written; a line alone comes without its time, which is checked. */
static const char *book_read(book *b)
{
    ssize_t n = pread(b->log.fd, b->text, sizeof b->text - 1, 0);
    assert_true(n >= 0);
    b->n = (size_t)n;
    b->text[n] = 0;
    return b->text;
}

static void book_close(book *b)
{
    fclose(b->file);
    free(b);
}

/* Where the time ends; its form is checked. */
static const char *after_time(const char *text)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ";
    for (size_t i = 0; form[i] != 0; i++) {
        if (form[i] == 'd')
            assert_in_range(text[i], '0', '9');
        else
            assert_int_equal(text[i], form[i]);
    }
    return text + sizeof form - 1;
}

/* Reads one JSON value and steps over it; null: it is none. Strict: no space, ASCII escapes, UTF-8 of no
 * consequence here. */
static const char *skip_string(const char *s)
{
    if (*s++ != '"') return NULL;
    while (*s != '"') {
        if ((unsigned char)*s < 0x20) return NULL;
        if (*s++ != '\\') continue;
        if (*s == 'u') {
            for (int i = 1; i <= 4; i++)
                if (strchr("0123456789abcdefABCDEF", s[i]) == NULL || s[i] == 0) return NULL;
            s += 5;
        } else if (*s == 0 || strchr("\"\\/bfnrt", *s) == NULL) {
            return NULL;
        } else {
            s++;
        }
    }
    return s + 1;
}

static const char *skip_value(const char *s)
{
    static const char *const words[] = {"null", "true", "false"};
    if (*s == '"') return skip_string(s);
    for (size_t i = 0; i < 3; i++)
        if (strncmp(s, words[i], strlen(words[i])) == 0) return s + strlen(words[i]);
    char *end;
    strtod(s, &end);
    return end == s || strspn(s, "+-0123456789.e") < (size_t)(end - s) ? NULL : end;
}

/* Whether the n bytes are one flat object and a line end. */
static bool is_json_line(const char *s, size_t n)
{
    const char *end = s + n;
    if (*s++ != '{') return false;
    for (;;) {
        s = skip_string(s);
        if (s == NULL || *s++ != ':') return false;
        s = skip_value(s);
        if (s == NULL) return false;
        if (*s == '}') return s + 2 == end && s[1] == '\n';
        if (*s++ != ',') return false;
    }
}

static void a_line_of_text_has_time_level_message_and_fields(void **state)
{
    (void)state;
    book *b = book_open(SHEAF__LOG_TEXT);
    sheaf__log_line(&b->log, SHEAF__LOG_INFO, "request done", "id", "s", "req_4f", "status",
                    "u", 200u, "bytes", "U", (uint64_t)1 << 40, "priority", "i", (int32_t)-3,
                    "rate", "f", 0.25, "salt", "s", (const char *)NULL, NULL);
    assert_string_equal(after_time(book_read(b)),
                        " info  request done id=req_4f status=200 bytes=1099511627776 "
                        "priority=-3 rate=0.25 salt=-\n");
    book_close(b);
}

static void a_line_of_json_has_the_same(void **state)
{
    (void)state;
    book *b = book_open(SHEAF__LOG_JSON);
    sheaf__log_line(&b->log, SHEAF__LOG_ERROR, "request done", "id", "s", "req_4f", "status",
                    "u", 4294967295u, "bytes", "U", UINT64_MAX, "priority", "i", INT32_MIN,
                    "rate", "f", 0.25, "none", "f", (double)NAN, "salt", "s",
                    (const char *)NULL, NULL);
    const char *text = book_read(b);
    assert_memory_equal(text, "{\"time\":\"", 9);
    assert_string_equal(
        after_time(text + 9),
        "\",\"level\":\"error\",\"message\":\"request done\",\"id\":\"req_4f\","
        "\"status\":4294967295,\"bytes\":18446744073709551615,"
        "\"priority\":-2147483648,\"rate\":0.25,\"none\":null,\"salt\":null}\n");
    assert_true(is_json_line(text, b->n));
    book_close(b);
}

static void lines_below_the_level_are_dropped(void **state)
{
    (void)state;
    book *b = book_open(SHEAF__LOG_TEXT);
    b->log.level = SHEAF__LOG_WARN;
    sheaf__log_line(&b->log, SHEAF__LOG_DEBUG, "a", NULL);
    sheaf__log_line(&b->log, SHEAF__LOG_INFO, "b", NULL);
    sheaf__log_line(&b->log, SHEAF__LOG_WARN, "c", NULL);
    sheaf__log_line(&b->log, SHEAF__LOG_ERROR, "d", NULL);
    const char *text = after_time(book_read(b));
    assert_memory_equal(text, " warn  c\n", 9);
    assert_string_equal(after_time(text + 9), " error d\n");
    b->log.level = SHEAF__LOG_NONE;
    sheaf__log_line(&b->log, SHEAF__LOG_ERROR, "e", NULL);
    sheaf__log_line(&b->log, SHEAF__LOG_NONE, "f", NULL);
    sheaf__log_line(NULL, SHEAF__LOG_ERROR, "g", NULL);
    size_t n = b->n;
    book_read(b);
    assert_int_equal(b->n, n);
    book_close(b);
}

static void texts_cannot_break_a_line_of_text(void **state)
{
    (void)state;
    static const struct {
        const char *value, *shown;
    } cases[] = {
        {"plain/1.0", "plain/1.0"},
        {"", "\"\""},
        {"two words", "\"two words\""},
        {"a=b", "\"a=b\""},
        {"say \"hi\" \\", "\"say \\\"hi\\\" \\\\\""},
        {"one\ntwo\r", "\"one\\ntwo\\u000d\""},
        {"\x1b[2J\x7f", "\"\\u001b[2J\\u007f\""},
        {"\xc2\x9b"
         "2J\xe2\x80\xa8",
         "\"\\u009b2J\\u2028\""},
        {"na\xc3\xafve \xf0\x9f\x98\x80", "\"na\xc3\xafve \xf0\x9f\x98\x80\""},
        {"\xff\xc0\xaf\xed\xa0\x80", "\"\\xff\\xc0\\xaf\\xed\\xa0\\x80\""},
        {"cut \xe2\x82", "\"cut \\xe2\\x82\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        book *b = book_open(SHEAF__LOG_TEXT);
        char expected[256];
        snprintf(expected, sizeof expected, " info  m v=%s\n", cases[i].shown);
        sheaf__log_line(&b->log, SHEAF__LOG_INFO, "m", "v", "s", cases[i].value, NULL);
        assert_string_equal(after_time(book_read(b)), expected);
        book_close(b);
    }
}

static void texts_cannot_break_a_line_of_json(void **state)
{
    (void)state;
    static const struct {
        const char *value, *shown;
    } cases[] = {
        {"", ""},
        {"say \"hi\" \\", "say \\\"hi\\\" \\\\"},
        {"one\ntwo\r\t\x01", "one\\ntwo\\u000d\\u0009\\u0001"},
        {"\x1b[2J\x7f", "\\u001b[2J\\u007f"},
        {"na\xc3\xafve \xf0\x9f\x98\x80", "na\xc3\xafve \xf0\x9f\x98\x80"},
        {"\xff\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},
        {"\xf4\x90\x80\x80\xe0\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        book *b = book_open(SHEAF__LOG_JSON);
        char expected[256];
        snprintf(expected, sizeof expected,
                 "\",\"level\":\"info\",\"message\":\"%s\",\"v\":\"%s\"}\n", cases[i].shown,
                 cases[i].shown);
        sheaf__log_line(&b->log, SHEAF__LOG_INFO, cases[i].value, "v", "s", cases[i].value,
                        NULL);
        assert_string_equal(after_time(book_read(b) + 9), expected);
        assert_true(is_json_line(b->text, b->n));
        book_close(b);
    }
}

static void every_byte_leaves_one_line(void **state)
{
    (void)state;
    for (uint32_t form = SHEAF__LOG_TEXT; form <= SHEAF__LOG_JSON; form++) {
        for (int c = 1; c < 256; c++) {
            book *b = book_open(form);
            char value[] = {'a', (char)c, 'b', 0};
            sheaf__log_line(&b->log, SHEAF__LOG_INFO, value, value, "s", value, NULL);
            const char *text = book_read(b);
            assert_ptr_equal(strchr(text, '\n'), text + b->n - 1);
            for (size_t i = 0; i + 1 < b->n; i++)
                assert_in_range((unsigned char)text[i], 0x20, 0x7e);
            if (form == SHEAF__LOG_JSON) assert_true(is_json_line(text, b->n));
            book_close(b);
        }
    }
}

static void a_text_is_cut_at_256_bytes_and_not_inside_a_character(void **state)
{
    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        book *b = book_open(SHEAF__LOG_JSON);
        char value[400] = "", expected[700];
        memset(value, 'x', shift);
        while (strlen(value) < 300) strcat(value, "\xf0\x9f\x98\x80");
        size_t whole = shift + (256 - shift) / 4 * 4;
        snprintf(expected, sizeof expected, "\",\"level\":\"info\",\"message\":\"%.*s\"}\n",
                 (int)whole, value);
        sheaf__log_line(&b->log, SHEAF__LOG_INFO, value, NULL);
        assert_string_equal(after_time(book_read(b) + 9), expected);
        book_close(b);
    }
}

static void a_text_that_is_no_utf8_is_cut_at_256_bytes_too(void **state)
{
    (void)state;
    book *b = book_open(SHEAF__LOG_TEXT);
    char value[400];
    memset(value, 0x80, sizeof value - 1);
    value[sizeof value - 1] = 0;
    sheaf__log_line(&b->log, SHEAF__LOG_INFO, value, NULL);
    assert_int_equal(strlen(after_time(book_read(b))), 7 + 256 * 4 + 1);
    book_close(b);
}

/* Fields of every length up to the edge: none is half there. */
static void a_line_that_is_cut_keeps_its_form(void **state)
{
    (void)state;
    uint64_t seed = testing_seed(0x10c);
    for (uint32_t round = 0; round < 400; round++) {
        book *b = book_open(round % 2);
        char v[5][300];
        for (size_t i = 0; i < 5; i++) {
            size_t n = 100 + testing_random(&seed) % 200;
            for (size_t k = 0; k < n; k++)
                v[i][k] = (char)(1 + testing_random(&seed) % (round % 3 == 0 ? 31 : 255));
            v[i][n] = 0;
        }
        sheaf__log_line(&b->log, SHEAF__LOG_INFO, v[0], "a", "s", v[1], "b", "s", v[2], "c",
                        "s", v[3], "d", "s", v[4], "e", "u", 7u, NULL);
        const char *text = book_read(b);
        assert_in_range(b->n, 1, 4096);
        assert_ptr_equal(strchr(text, '\n'), text + b->n - 1);
        const char *mark = round % 2 ? ",\"cut\":true}\n" : " cut=true\n";
        const char *last = round % 2 ? ",\"e\":7}\n" : " e=7\n";
        bool cut = strcmp(text + b->n - strlen(mark), mark) == 0;
        assert_true(cut || strcmp(text + b->n - strlen(last), last) == 0);
        if (round % 6 == 0) assert_true(cut); /* six bytes for each of theirs */
        if (round % 2) assert_true(is_json_line(text, b->n));
        book_close(b);
    }
}

static void an_unknown_kind_ends_the_line(void **state)
{
    (void)state;
    book *b = book_open(SHEAF__LOG_JSON);
    sheaf__log_line(&b->log, SHEAF__LOG_INFO, "m", "a", "u", 1u, "b", "?", 2u, NULL);
    assert_string_equal(after_time(book_read(b) + 9),
                        "\",\"level\":\"info\",\"message\":\"m\",\"a\":1,\"cut\":true}\n");
    book_close(b);
}

static void errno_is_left_alone(void **state)
{
    (void)state;
    sheaf__log closed = {.fd = -1};
    errno = ENOENT;
    sheaf__log_line(&closed, SHEAF__LOG_ERROR, "nobody reads this", NULL);
    assert_int_equal(errno, ENOENT);
}

#define WRITERS 4
#define LINES   500

typedef struct writer {
    pthread_t thread;
    sheaf__log *log;
    uint32_t number;
} writer;

static void *write_lines(void *arg)
{
    writer *w = arg;
    char text[200];
    memset(text, 'a' + (int)w->number, sizeof text - 1);
    text[sizeof text - 1] = 0;
    for (uint32_t i = 0; i < LINES; i++)
        sheaf__log_line(w->log, SHEAF__LOG_INFO, text, "writer", "u", w->number, "line", "u", i,
                        NULL);
    return NULL;
}

static void lines_of_several_threads_stay_whole(void **state)
{
    (void)state;
    book *b = book_open(SHEAF__LOG_JSON);
    writer writers[WRITERS];
    uint32_t next[WRITERS] = {0};
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (writer){.log = &b->log, .number = i};
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_lines, &writers[i]), 0);
    }
    for (uint32_t i = 0; i < WRITERS; i++) pthread_join(writers[i].thread, NULL);
    for (const char *s = book_read(b); *s != 0;) {
        size_t n = strcspn(s, "\n") + 1;
        assert_true(is_json_line(s, n));
        uint32_t number, line;
        const char *fields = strstr(s, "\"writer\":");
        assert_non_null(fields);
        assert_int_equal(sscanf(fields, "\"writer\":%u,\"line\":%u}", &number, &line), 2);
        assert_in_range(number, 0, WRITERS - 1);
        assert_int_equal(line, next[number]++);
        s += n;
    }
    for (uint32_t i = 0; i < WRITERS; i++) assert_int_equal(next[i], LINES);
    book_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_of_text_has_time_level_message_and_fields),
        cmocka_unit_test(a_line_of_json_has_the_same),
        cmocka_unit_test(lines_below_the_level_are_dropped),
        cmocka_unit_test(texts_cannot_break_a_line_of_text),
        cmocka_unit_test(texts_cannot_break_a_line_of_json),
        cmocka_unit_test(every_byte_leaves_one_line),
        cmocka_unit_test(a_text_is_cut_at_256_bytes_and_not_inside_a_character),
        cmocka_unit_test(a_text_that_is_no_utf8_is_cut_at_256_bytes_too),
        cmocka_unit_test(a_line_that_is_cut_keeps_its_form),
        cmocka_unit_test(an_unknown_kind_ends_the_line),
        cmocka_unit_test(errno_is_left_alone),
        cmocka_unit_test(lines_of_several_threads_stay_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
