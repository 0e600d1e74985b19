/* metrics_text.c - see metrics_text.h. */
#include "server/metrics_text.h"

#include "testing.h"

#include <math.h>

#define MAX_NAMES 2048
#define NAME      256

typedef struct reader {
    char families[MAX_NAMES][NAME]; /* [n_families]; the last is the one that is read */
    uint32_t n_families;
    char samples[MAX_NAMES][NAME]; /* [n_samples] */
    uint32_t n_samples;
    char type[16];                      /* of the family; "": HELP alone has been read */
    double bound, cumulative, infinite; /* of the histogram; infinite -1: not there yet */
    bool has_sum, has_count;
} reader;

static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
static const char letters_digits[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

static size_t name_size(const char *s)
{
    return *s != 0 && strchr(letters, *s) != NULL ? strspn(s, letters_digits) : 0;
}

static bool is_new(char (*names)[NAME], uint32_t *n, const char *name, size_t size)
{
    assert_true(size > 0 && size < NAME);
    assert_true(*n < MAX_NAMES);
    memcpy(names[*n], name, size);
    names[*n][size] = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (strcmp(names[i], names[*n]) == 0) return false;
    (*n)++;
    return true;
}

static void end_family(reader *r)
{
    if (strcmp(r->type, "histogram") != 0) return;
    assert_true(r->infinite >= 0);
    assert_true(r->has_sum);
    assert_true(r->has_count);
}

static void read_help(reader *r, const char *line)
{
    size_t n = name_size(line);
    end_family(r);
    assert_true(is_new(r->families, &r->n_families, line, n));
    assert_int_equal(line[n], ' ');
    assert_in_range(line[n + 1], '!', '~'); /* it says something */
    for (const char *s = line + n; *s != '\n'; s++) assert_true(*s != '\\');
    r->type[0] = 0;
}

static void read_type(reader *r, const char *line)
{
    char name[NAME], end;
    assert_true(r->n_families > 0);
    assert_string_equal(r->type, "");
    assert_int_equal(sscanf(line, "%255s %15s%c", name, r->type, &end), 3);
    assert_int_equal(end, '\n');
    assert_string_equal(name, r->families[r->n_families - 1]);
    bool counter = strcmp(r->type, "counter") == 0;
    assert_true(counter || strcmp(r->type, "gauge") == 0 || strcmp(r->type, "histogram") == 0);
    size_t n = strlen(name);
    assert_int_equal(counter, n > 6 && strcmp(name + n - 6, "_total") == 0);
    r->bound = -INFINITY;
    r->cumulative = 0;
    r->infinite = -1;
    r->has_sum = r->has_count = false;
}

/* {name="value",...}; where it ends. */
static const char *read_labels(const char *s)
{
    do {
        s++;
        size_t n = name_size(s);
        assert_true(n > 0);
        s += n;
        assert_true(s[0] == '=' && s[1] == '"');
        for (s += 2; *s != '"'; s++) {
            assert_true(*s != '\n');
            if (*s != '\\') continue;
            s++;
            assert_true(*s == '\\' || *s == '"' || *s == 'n');
        }
        s++;
    } while (*s == ',');
    assert_int_equal(*s, '}');
    return s + 1;
}

static void read_bucket(reader *r, const char *labels, double value)
{
    char *end;
    assert_memory_equal(labels, "{le=\"", 5);
    double bound = strtod(labels + 5, &end);
    assert_int_equal(*end, '"');
    assert_true(bound > r->bound);
    assert_true(value >= r->cumulative);
    r->bound = bound;
    r->cumulative = value;
    if (isinf(bound)) r->infinite = value;
}

static void read_sample(reader *r, const char *line)
{
    size_t n = name_size(line);
    const char *end = line[n] == '{' ? read_labels(line + n) : line + n, *family;
    assert_true(is_new(r->samples, &r->n_samples, line, (size_t)(end - line)));
    char *after;
    assert_int_equal(*end, ' ');
    double value = strtod(end + 1, &after);
    assert_true(after > end + 1 && *after == '\n');
    assert_true(r->n_families > 0 && r->type[0] != 0);
    family = r->families[r->n_families - 1];
    size_t n_family = strlen(family);
    assert_true(n >= n_family && memcmp(line, family, n_family) == 0);
    if (strcmp(r->type, "histogram") != 0) {
        assert_int_equal(n, n_family);
        if (strcmp(r->type, "counter") == 0) assert_true(value >= 0);
        return;
    }
    const char *suffix = line + n_family;
    if (n - n_family == 7 && memcmp(suffix, "_bucket", 7) == 0) {
        read_bucket(r, line + n, value);
    } else if (n - n_family == 4 && memcmp(suffix, "_sum", 4) == 0) {
        r->has_sum = true;
    } else {
        assert_true(n - n_family == 6 && memcmp(suffix, "_count", 6) == 0);
        assert_true(value == r->infinite);
        r->has_count = true;
    }
}

void metrics_text_check(const char *text)
{
    static reader r;
    memset(&r, 0, sizeof r);
    for (const char *line = text, *end; *line != 0; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        if (strncmp(line, "# HELP ", 7) == 0)
            read_help(&r, line + 7);
        else if (strncmp(line, "# TYPE ", 7) == 0)
            read_type(&r, line + 7);
        else
            read_sample(&r, line);
    }
    end_family(&r);
    assert_true(r.n_samples > 0);
}

bool metrics_text_find(const char *text, const char *sample, double *value)
{
    size_t n = strlen(sample);
    for (const char *line = text; *line != 0; line = strchr(line, '\n') + 1) {
        if (strncmp(line, sample, n) != 0 || line[n] != ' ') continue;
        *value = strtod(line + n + 1, NULL);
        return true;
    }
    return false;
}

double metrics_text_value(const char *text, const char *sample)
{
    double value = 0;
    if (!metrics_text_find(text, sample, &value)) fail_msg("there is no %s", sample);
    return value;
}
