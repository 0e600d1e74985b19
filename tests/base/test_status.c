/* base/status.c: the table of texts against the public header itself, and error sentences. */
#include "testing.h"

#include "base/status.h"

#define HEADER "include/sheaf/status.h"

typedef struct code {
    char name[48];
    int value;
} code;

/* The enumerators of sheaf_status as the header's text has them: "SHEAF_OK = 0," and so on, up to
 * the end of that enum. */
static uint32_t read_codes(code *codes, uint32_t room)
{
    FILE *header = fopen(HEADER, "r");
    assert_non_null(header);
    char line[256];
    uint32_t n = 0;
    while (fgets(line, sizeof line, header) != NULL && strstr(line, "sheaf_error {") == NULL) {
        code c;
        if (sscanf(line, " SHEAF_%47[A-Z_] = %d", c.name, &c.value) != 2) continue;
        assert_true(n < room);
        codes[n++] = c;
    }
    fclose(header);
    return n;
}

static void every_status_has_a_text_of_its_own(void **state)
{
    (void)state;
    code codes[100];
    uint32_t n = read_codes(codes, 100);
    assert_true(n >= 27);
    const char *unknown = sheaf_status_text(-9999);
    assert_string_equal(unknown, "unknown status");
    for (uint32_t i = 0; i < n; i++) {
        const char *text = sheaf_status_text(codes[i].value);
        assert_true(text[0] != '\0');
        assert_string_not_equal(text, unknown);
        for (uint32_t k = 0; k < i; k++) {
            assert_int_not_equal(codes[i].value, codes[k].value);
            assert_string_not_equal(text, sheaf_status_text(codes[k].value));
        }
    }
}

static void no_text_exists_without_a_status(void **state)
{
    (void)state;
    code codes[100];
    uint32_t n = read_codes(codes, 100), known = 0;
    for (int value = -200; value <= 200; value++)
        known += strcmp(sheaf_status_text(value), "unknown status") != 0;
    assert_int_equal(known, n);
}

static void faults_are_negative_and_answers_are_not(void **state)
{
    (void)state;
    code codes[100];
    uint32_t n = read_codes(codes, 100);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(codes[i].value < 0, strncmp(codes[i].name, "E_", 2) == 0);
}

static void the_version_is_the_headers(void **state)
{
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", SHEAF_VERSION_MAJOR, SHEAF_VERSION_MINOR,
             SHEAF_VERSION_PATCH);
    assert_string_equal(sheaf_version(), version);
}

static void an_error_carries_status_and_sentence(void **state)
{
    (void)state;
    sheaf_error err = {0};
    assert_int_equal(sheaf__error_set(&err, SHEAF_E_FORMAT, "%s: %d", "file", 7),
                     SHEAF_E_FORMAT);
    assert_int_equal(err.status, SHEAF_E_FORMAT);
    assert_string_equal(err.text, "file: 7");
    assert_int_equal(sheaf__error_set(NULL, SHEAF_E_IO, "nobody listens"), SHEAF_E_IO);
}

static void a_long_sentence_is_cut_and_ended(void **state)
{
    (void)state;
    struct {
        sheaf_error err;
        char after[8];
    } guarded;
    memset(&guarded, 'x', sizeof guarded);
    char longer[600];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    (void)sheaf__error_set(&guarded.err, SHEAF_E_IO, "%s", longer);
    assert_int_equal(strlen(guarded.err.text), sizeof guarded.err.text - 1);
    for (int i = 0; i < 8; i++) assert_int_equal(guarded.after[i], 'x');
}

static void a_sentence_is_one_line_without_control_characters(void **state)
{
    (void)state;
    sheaf_error err = {0};
    (void)sheaf__error_set(&err, SHEAF_E_IO, "%s",
                           "a\nb\x1b[31m\x7f \xc2\x9b"
                           "d \xc3\xa9 \xc2");
    assert_string_equal(err.text, "a?b?[31m? ??d \xc3\xa9 \xc2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text_of_its_own),
        cmocka_unit_test(no_text_exists_without_a_status),
        cmocka_unit_test(faults_are_negative_and_answers_are_not),
        cmocka_unit_test(the_version_is_the_headers),
        cmocka_unit_test(an_error_carries_status_and_sentence),
        cmocka_unit_test(a_long_sentence_is_cut_and_ended),
        cmocka_unit_test(a_sentence_is_one_line_without_control_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
