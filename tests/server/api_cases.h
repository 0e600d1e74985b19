/* tests/server/api_cases.h - bodies that must be refused, as tables. */
#ifndef SHEAF_TESTS_API_CASES_H
#define SHEAF_TESTS_API_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/utf8.h"
#include "server/api.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

static const sheaf__api_limits limits = {"demo", 1000, 512, 0};

/* What is said beside a question or a prompt, and what is answered. */
typedef struct refusal {
    const char *said;
    const char *param;   /* null: none */
    const char *message; /* somewhere in it */
} refusal;

typedef bool reader(const char *body, uint64_t n, const sheaf__api_limits *limits,
                    sheaf__completion *out, sheaf__api_error *error);

#define QUESTION "\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]"
#define PROMPT   "\"prompt\": \"once\""

/* {SOURCE, SAID}; said "": {SOURCE}. To be freed. */
static inline char *body_of(const char *source, const char *said)
{
    size_t n = strlen(source) + strlen(said) + 8;
    char *body = malloc(n);
    assert_non_null(body);
    snprintf(body, n, "{%s%s%s}", source, source[0] != 0 && said[0] != 0 ? ", " : "", said);
    return body;
}

/* An error with everything that errors have. */
static inline void check_error(const sheaf__api_error *e, const char *body, uint32_t status,
                               const char *param, const char *message)
{
    if (e->status != status || strcmp(e->param, param != NULL ? param : "") != 0 ||
        strstr(e->message, message) == NULL)
        fail_msg("%s: %u, param '%s': %s", body, e->status, e->param, e->message);
    assert_non_null(e->type);
    assert_int_equal(sheaf__utf8_valid_prefix(e->message, strlen(e->message)),
                     strlen(e->message));
}

/* Each is a 400, and leaves nothing behind. */
static inline void check_refusals(reader *read, const char *source, const refusal *table,
                                  size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sheaf__completion c = {.n = 77};
        sheaf__api_error e = {0};
        char *body = body_of(source, table[i].said);
        if (read(body, strlen(body), &limits, &c, &e)) fail_msg("%s was accepted", body);
        check_error(&e, body, 400, table[i].param, table[i].message);
        assert_int_equal(c.n, 77);
        free(body);
    }
}

/* Read as it must be; to be freed. */
static inline sheaf__completion accepted(reader *read, const char *source, const char *said)
{
    sheaf__completion c = {0};
    sheaf__api_error e = {0};
    char *body = body_of(source, said);
    if (!read(body, strlen(body), &limits, &c, &e)) fail_msg("%s: %s", body, e.message);
    free(body);
    return c;
}

#endif
