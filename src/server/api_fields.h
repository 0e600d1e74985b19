/* server/api_fields.h - the fields of a request's body, by type, each with its sentence.
 *
 * Owns: parsing a body strictly, typed getters that check a range, the rule for fields that nobody here
 * reads (ignored, refused by name, unknown). Does not own: what the fields mean.
 *
 *     sheaf__fields f = {"", root, error};
 *     double top_p = 1;
 *     if (!sheaf__fields_known(&f, known, N_KNOWN)) return false;
 *     if (!sheaf__field_number(&f, "top_p", 0, 1, &top_p)) return false;      // absent: stays 1
 *
 * A getter leaves its output alone where the field is absent or null. It returns false with *error
 * filled in (a 400) where the field holds something else than it should.
 */
#ifndef SHEAF_SERVER_API_FIELDS_H
#define SHEAF_SERVER_API_FIELDS_H

#include <jansson.h>

#include "server/http.h"

/* An object of a body, and where sentences about it go. Borrows everything. */
typedef struct sheaf__fields {
    const char *within; /* "", or what stands before its fields' names: "messages[3]." */
    json_t *object;
    sheaf__api_error *error;
} sheaf__fields;

/* What is done about a field. */
enum {
    SHEAF__FIELD_READ = 0,    /* a reader takes it */
    SHEAF__FIELD_IGNORED = 1, /* it has no effect; its type is checked */
    SHEAF__FIELD_NEUTRAL = 2  /* refused, but for null and the values that ask for nothing */
};

typedef struct sheaf__known {
    const char *name;
    uint32_t how;
    json_type type;      /* ignored: JSON_TRUE stands for a boolean */
    const char *neutral; /* JSON, with commas between: "\"none\", \"auto\""; "": null alone */
} sheaf__known;

/* Parses a body that must be one object; release *root with json_decref. Zero bytes in strings are
 * allowed, as \u0000. False: a 400 that gives line and column, a 413 for more values than are parsed,
 * or a 500 without memory. */
bool sheaf__body_parse(const char *body, uint64_t n, sheaf__api_error *error, json_t **root);

/* False: a field is not in the table, or it is and may not be said. */
bool sheaf__fields_known(const sheaf__fields *f, const sheaf__known *known, uint32_t n_known);

/* The field's value, or null where it is absent or null. Borrowed. */
const json_t *sheaf__field_get(const sheaf__fields *f, const char *name);

/* "NAME must be WHAT, found VALUE". `name` may be an element: "prompt[3]". Returns false. */
bool sheaf__field_refuse(const sheaf__fields *f, const char *name, const char *what,
                         const json_t *value);

/* "NAME is required: WHAT". Returns false. */
bool sheaf__field_missing(const sheaf__fields *f, const char *name, const char *what);

/* "NAME" and a sentence's rest, as a 400 with a code. Returns false. */
bool sheaf__field_fail(const sheaf__fields *f, const char *name, const char *code,
                       const char *rest);

/* A 500: there is no memory. Returns false. */
bool sheaf__fields_no_memory(const sheaf__fields *f);

bool sheaf__field_bool(const sheaf__fields *f, const char *name, bool *out);

/* Limits included. */
bool sheaf__field_number(const sheaf__fields *f, const char *name, double min, double max,
                         double *out);

/* A whole number; 3.0 is one, too. */
bool sheaf__field_integer(const sheaf__fields *f, const char *name, int64_t min, int64_t max,
                          int64_t *out);

/* A text of min to max bytes without zero bytes. Borrowed from the body. */
bool sheaf__field_string(const sheaf__fields *f, const char *name, uint32_t min, uint32_t max,
                         const char **out);

/* The same for a value: `name` is what the sentence calls it. */
bool sheaf__value_string(const sheaf__fields *f, const char *name, const json_t *value,
                         uint32_t min, uint32_t max, const char **out);
bool sheaf__value_integer(const sheaf__fields *f, const char *name, const json_t *value,
                          int64_t min, int64_t max, int64_t *out);

#endif
