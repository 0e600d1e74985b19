/* server/api_fields.c - the fields of a request's body, by type, each with its sentence. */
#include "server/api_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/json.h"
#include "model/utf8.h"

#define SHOWN_NAME  64  /* bytes of a client's word in a sentence */
#define SHOWN_VALUE 32  /* bytes of a string that is shown whole */
#define NAME_SIZE   128 /* of a field with what it is within */

/* Values take up to 70 times the memory of their text: a body of many is refused before it is parsed.
 * These many take 90 MiB. */
#define MAX_VALUES     (1u << 20) /* with the names of members */
#define MAX_CONTAINERS (1u << 16) /* objects and arrays */

/* ---- sentences ---------------------------------------------------------------------------- */

/* Bytes of a client's text that a sentence quotes: whole characters of well-formed UTF-8. */
static int quoted(const char *text)
{
    return (int)sheaf__utf8_valid_prefix(text, strnlen(text, SHOWN_NAME));
}

static const char *full_name(const sheaf__fields *f, const char *name, char out[NAME_SIZE])
{
    snprintf(out, NAME_SIZE, "%s%.*s", f->within, quoted(name), name);
    return out;
}

static const char *show(const json_t *value, char text[static SHEAF__BRIEF])
{
    if (json_is_array(value)) return strcpy(text, "an array");
    if (json_is_string(value) && json_string_length(value) > SHOWN_VALUE) {
        snprintf(text, SHEAF__BRIEF, "a string of %zu bytes", json_string_length(value));
        return text;
    }
    return sheaf__json_show(value, text);
}

bool sheaf__field_refuse(const sheaf__fields *f, const char *name, const char *what,
                         const json_t *value)
{
    char full[NAME_SIZE], shown[SHEAF__BRIEF];
    full_name(f, name, full);
    return sheaf__api_error_set(f->error, 400, "invalid_value", full, "%s must be %s, found %s",
                                full, what, show(value, shown));
}

bool sheaf__field_missing(const sheaf__fields *f, const char *name, const char *what)
{
    char full[NAME_SIZE];
    full_name(f, name, full);
    return sheaf__api_error_set(f->error, 400, "missing_required_parameter", full,
                                "%s is required: %s", full, what);
}

bool sheaf__field_fail(const sheaf__fields *f, const char *name, const char *code,
                       const char *rest)
{
    char full[NAME_SIZE];
    full_name(f, name, full);
    return sheaf__api_error_set(f->error, 400, code, full, "%s %s", full, rest);
}

bool sheaf__fields_no_memory(const sheaf__fields *f)
{
    return sheaf__api_error_set(f->error, 500, NULL, NULL,
                                "there is no memory to read the request");
}

/* ---- the body ----------------------------------------------------------------------------- */

/* Where the string that opens at `at` is closed, or n. */
static uint64_t string_end(const char *body, uint64_t n, uint64_t at)
{
    for (at++; at < n && body[at] != '"'; at++)
        if (body[at] == '\\') at++;
    return at;
}

/* Whether so few values are in a text that it may be parsed. Of one that is not JSON, as many as are
 * read before that is noticed. */
static bool is_light(const char *body, uint64_t n)
{
    uint64_t n_values = 1, n_containers = 0;
    for (uint64_t at = 0; at < n; at++) {
        if (body[at] == '"')
            at = string_end(body, n, at);
        else if (body[at] == ',' || body[at] == ':')
            n_values++;
        else if (body[at] == '[' || body[at] == '{')
            n_containers++;
    }
    return n_values <= MAX_VALUES && n_containers <= MAX_CONTAINERS;
}

bool sheaf__body_parse(const char *body, uint64_t n, sheaf__api_error *error, json_t **root)
{
    json_error_t why;
    if (n == 0)
        return sheaf__api_error_set(error, 400, "invalid_json", NULL,
                                    "the body is empty: a JSON object is expected");
    if (!is_light(body, n))
        return sheaf__api_error_set(
            error, 413, "request_too_large", NULL,
            "the body has more than %u values and names or %u objects and arrays", MAX_VALUES,
            MAX_CONTAINERS);
    json_t *value = json_loadb(body, (size_t)n,
                               JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (value == NULL && json_error_code(&why) == json_error_out_of_memory)
        return sheaf__api_error_set(error, 500, NULL, NULL,
                                    "there is no memory to read the request");
    if (value == NULL)
        return sheaf__api_error_set(error, 400, "invalid_json", NULL,
                                    "the body is not valid JSON: line %d, column %d: %s",
                                    why.line, why.column, why.text);
    if (!json_is_object(value)) {
        char shown[SHEAF__BRIEF];
        sheaf__api_error_set(error, 400, "invalid_json", NULL,
                             "the body must be a JSON object, found %s", show(value, shown));
        json_decref(value);
        return false;
    }
    *root = value;
    return true;
}

/* ---- what may be said --------------------------------------------------------------------- */

static const char *type_name(json_type type)
{
    switch (type) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    default: return "true or false";
    }
}

/* Whether a value is one of those in a list of JSON values with commas between. */
static bool is_one_of(const json_t *value, const char *list)
{
    char text[96];
    snprintf(text, sizeof text, "[%s]", list);
    json_t *values = json_loads(text, 0, NULL);
    bool found = false;
    for (size_t i = 0; i < json_array_size(values) && !found; i++)
        found = json_equal(json_array_get(values, i), value);
    json_decref(values);
    return found;
}

static bool may_be_said(const sheaf__fields *f, const sheaf__known *known, const json_t *value)
{
    if (json_is_null(value) || known->how == SHEAF__FIELD_READ) return true;
    if (known->how == SHEAF__FIELD_IGNORED) {
        bool right = known->type == JSON_TRUE ? json_is_boolean(value)
                                              : json_typeof(value) == known->type;
        return right || sheaf__field_refuse(f, known->name, type_name(known->type), value);
    }
    if (is_one_of(value, known->neutral)) return true;
    char rest[192];
    snprintf(rest, sizeof rest, "is not supported by this server: leave it out%s%s",
             known->neutral[0] != 0 ? ", or say " : "", known->neutral);
    return sheaf__field_fail(f, known->name, "unsupported_parameter", rest);
}

bool sheaf__fields_known(const sheaf__fields *f, const sheaf__known *known, uint32_t n_known)
{
    const char *name;
    json_t *value;
    json_object_foreach(f->object, name, value)
    {
        uint32_t i = 0;
        while (i < n_known && strcmp(known[i].name, name) != 0) i++;
        if (i < n_known) {
            if (!may_be_said(f, &known[i], value)) return false;
            continue;
        }
        char full[NAME_SIZE];
        full_name(f, name, full);
        return sheaf__api_error_set(f->error, 400, "unknown_parameter", full,
                                    "Unrecognized request argument supplied: %s", full);
    }
    return true;
}

/* ---- getters ------------------------------------------------------------------------------ */

const json_t *sheaf__field_get(const sheaf__fields *f, const char *name)
{
    const json_t *value = json_object_get(f->object, name);
    return json_is_null(value) ? NULL : value;
}

bool sheaf__field_bool(const sheaf__fields *f, const char *name, bool *out)
{
    const json_t *value = sheaf__field_get(f, name);
    if (value == NULL) return true;
    if (!json_is_boolean(value)) return sheaf__field_refuse(f, name, "true or false", value);
    *out = json_is_true(value);
    return true;
}

bool sheaf__field_number(const sheaf__fields *f, const char *name, double min, double max,
                         double *out)
{
    const json_t *value = sheaf__field_get(f, name);
    if (value == NULL) return true;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max)) {
        char what[64];
        snprintf(what, sizeof what, "a number from %g to %g", min, max);
        return sheaf__field_refuse(f, name, what, value);
    }
    *out = number;
    return true;
}

/* Whether a value is a whole number that an int64 holds; then *out is it. */
static bool whole(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double number = json_real_value(value);
    if (!json_is_real(value) || number != floor(number) || fabs(number) >= 0x1p63) return false;
    *out = (int64_t)number;
    return true;
}

bool sheaf__value_integer(const sheaf__fields *f, const char *name, const json_t *value,
                          int64_t min, int64_t max, int64_t *out)
{
    int64_t number = 0;
    if (!whole(value, &number) || number < min || number > max) {
        char what[80];
        snprintf(what, sizeof what, "a whole number from %" PRId64 " to %" PRId64, min, max);
        return sheaf__field_refuse(f, name, what, value);
    }
    *out = number;
    return true;
}

bool sheaf__field_integer(const sheaf__fields *f, const char *name, int64_t min, int64_t max,
                          int64_t *out)
{
    const json_t *value = sheaf__field_get(f, name);
    return value == NULL || sheaf__value_integer(f, name, value, min, max, out);
}

bool sheaf__value_string(const sheaf__fields *f, const char *name, const json_t *value,
                         uint32_t min, uint32_t max, const char **out)
{
    size_t n = json_string_length(value);
    if (!json_is_string(value) || n < min || n > max) {
        char what[64] = "a string";
        if (max != UINT32_MAX)
            snprintf(what, sizeof what, "a string of %u to %u bytes", min, max);
        return sheaf__field_refuse(f, name, what, value);
    }
    if (strlen(json_string_value(value)) != n)
        return sheaf__field_fail(f, name, "invalid_value",
                                 "must not hold the character U+0000");
    *out = json_string_value(value);
    return true;
}

bool sheaf__field_string(const sheaf__fields *f, const char *name, uint32_t min, uint32_t max,
                         const char **out)
{
    const json_t *value = sheaf__field_get(f, name);
    return value == NULL || sheaf__value_string(f, name, value, min, max, out);
}
