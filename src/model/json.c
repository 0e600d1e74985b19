/* model/json.c - small helpers over jansson for files that others wrote. */
#include "model/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define SHOWN_VALUE 48 /* characters of a value in a sentence */

sheaf_status sheaf__json_parse(const char *file, const char *text, uint64_t size, json_t **out,
                               sheaf_error *err)
{
    json_error_t why;
    char shown[SHEAF__BRIEF];
    json_t *root =
        json_loadb(text == NULL ? "" : text, (size_t)size, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        char place[32] = ""; /* of what jansson does not quote, as long keys */
        if (strstr(why.text, " near ") == NULL)
            snprintf(place, sizeof place, " at byte %d", why.position);
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: line %d: %s%s",
                                sheaf__path_show(file, shown), why.line, why.text, place);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: must hold an object",
                                sheaf__path_show(file, shown));
    }
    *out = root;
    return SHEAF_OK;
}

const char *sheaf__json_show(const json_t *value, char text[static SHEAF__BRIEF])
{
    if (json_is_object(value)) return strcpy(text, "an object");
    if (json_is_array(value)) return strcpy(text, "a list");
    char *dump =
        json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    if (dump == NULL) return strcpy(text, "a value");
    if (strlen(dump) <= SHOWN_VALUE)
        strcpy(text, dump);
    else
        snprintf(text, SHEAF__BRIEF, "%.*s...", SHOWN_VALUE, dump);
    free(dump);
    return text;
}

json_t *sheaf__json_get(const sheaf__json *at, const char *field)
{
    json_t *value = json_object_get(at->object, field);
    return json_is_null(value) ? NULL : value;
}

sheaf_status sheaf__json_require(const sheaf__json *at, const char *field)
{
    if (sheaf__json_get(at, field) != NULL) return SHEAF_OK;
    char file[SHEAF__BRIEF];
    return sheaf__error_set(at->err, SHEAF_E_CONFIG, "%s: %s%s is missing",
                            sheaf__path_show(at->file, file), at->within, field);
}

/* "FILE: FIELD must be WHAT, found VALUE". */
static sheaf_status refuse(const sheaf__json *at, const char *field, const char *what,
                           const json_t *value)
{
    char file[SHEAF__BRIEF], shown[SHEAF__BRIEF];
    return sheaf__error_set(at->err, SHEAF_E_CONFIG, "%s: %s%s must be %s, found %s",
                            sheaf__path_show(at->file, file), at->within, field, what,
                            sheaf__json_show(value, shown));
}

sheaf_status sheaf__json_u32(const sheaf__json *at, const char *field, uint32_t min,
                             uint32_t max, uint32_t *out)
{
    const json_t *value = sheaf__json_get(at, field);
    if (value == NULL) return SHEAF_MISS;
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value) || number < (json_int_t)min || number > (json_int_t)max) {
        char what[64];
        snprintf(what, sizeof what, "a whole number from %u to %u", min, max);
        return refuse(at, field, what, value);
    }
    *out = (uint32_t)number;
    return SHEAF_OK;
}

sheaf_status sheaf__json_number(const sheaf__json *at, const char *field, double min,
                                double max, double *out)
{
    const json_t *value = sheaf__json_get(at, field);
    if (value == NULL) return SHEAF_MISS;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= min && number <= max)) {
        char what[64];
        snprintf(what, sizeof what, "a number from %g to %g", min, max);
        return refuse(at, field, what, value);
    }
    *out = number;
    return SHEAF_OK;
}

sheaf_status sheaf__json_bool(const sheaf__json *at, const char *field, bool *out)
{
    const json_t *value = sheaf__json_get(at, field);
    if (value == NULL) return SHEAF_MISS;
    if (!json_is_boolean(value)) return refuse(at, field, "true or false", value);
    *out = json_is_true(value);
    return SHEAF_OK;
}

sheaf_status sheaf__json_string(const sheaf__json *at, const char *field, const char **out)
{
    const json_t *value = sheaf__json_get(at, field);
    if (value == NULL) return SHEAF_MISS;
    if (!json_is_string(value)) return refuse(at, field, "a string", value);
    *out = json_string_value(value);
    return SHEAF_OK;
}

sheaf_status sheaf__json_object(const sheaf__json *at, const char *field, const char *within,
                                sheaf__json *out)
{
    const json_t *value = sheaf__json_get(at, field);
    if (value == NULL) return SHEAF_MISS;
    if (!json_is_object(value)) return refuse(at, field, "an object", value);
    *out = (sheaf__json){at->file, within, value, at->err};
    return SHEAF_OK;
}
