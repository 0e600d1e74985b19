/* model/json.h - small helpers over jansson for files that others wrote.
 *
 * Owns: strict parsing (no duplicate keys, jansson's depth limit), typed getters that check a range
 * and say file and field when something is wrong. Does not own: what the fields mean.
 *
 *     json_t *root;
 *     st = sheaf__json_parse("DIR/config.json", text, size, &root, err);
 *     sheaf__json at = {.file = "DIR/config.json", .within = "", .object = root, .err = err};
 *     st = sheaf__json_u32(&at, "num_hidden_layers", 1, 1024, &layers);      // SHEAF_MISS: absent
 *
 * A getter returns SHEAF_OK and sets its output; SHEAF_MISS where the field is absent or null;
 * SHEAF_E_CONFIG with a sentence where it is something else. The output is set on SHEAF_OK only.
 */
#ifndef SHEAF_MODEL_JSON_H
#define SHEAF_MODEL_JSON_H

#include <jansson.h>
#include <stdbool.h>

#include "base/file.h"
#include "sheaf/status.h"

/* An object inside a file, and where sentences about it go. Borrows everything. */
typedef struct sheaf__json {
    const char *file;     /* as sentences name it */
    const char *within;   /* "", or the enclosing field and a dot: "rope_scaling." */
    const json_t *object; /* an object */
    sheaf_error *err;     /* may be null */
} sheaf__json;

/* Parses a file whose root is an object; release with json_decref.
 * SHEAF_E_FORMAT: the sentence gives the line and what jansson said. */
sheaf_status sheaf__json_parse(const char *file, const char *text, uint64_t size, json_t **out,
                               sheaf_error *err);

/* The field's value, or null where it is absent or null. Borrowed. */
json_t *sheaf__json_get(const sheaf__json *at, const char *field);

/* SHEAF_E_CONFIG: the field is absent or null. */
sheaf_status sheaf__json_require(const sheaf__json *at, const char *field);

/* A whole number written as one (1e3 and 1000.0 are not). */
sheaf_status sheaf__json_u32(const sheaf__json *at, const char *field, uint32_t min,
                             uint32_t max, uint32_t *out);

/* Any number; limits included. */
sheaf_status sheaf__json_number(const sheaf__json *at, const char *field, double min,
                                double max, double *out);
sheaf_status sheaf__json_bool(const sheaf__json *at, const char *field, bool *out);

/* Borrowed from the parsed file. */
sheaf_status sheaf__json_string(const sheaf__json *at, const char *field, const char **out);

/* The object in a field, as a place of its own whose sentences name both; `within` is
 * "FIELD." and must outlive it. */
sheaf_status sheaf__json_object(const sheaf__json *at, const char *field, const char *within,
                                sheaf__json *out);

/* A value as a sentence shows it: the JSON text of a scalar, shortened and in ASCII; "an object". */
const char *sheaf__json_show(const json_t *value, char text[static SHEAF__BRIEF]);

#endif
