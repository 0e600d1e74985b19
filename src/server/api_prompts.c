/* server/api_prompts.c - prompts: a text, tokens, or a list of these. */
#include <stdio.h>
#include <stdlib.h>

#include "server/api_parts.h"

#define FORMS "a string, an array of token ids, or an array of these"

bool sheaf__api_read_tokens(const sheaf__fields *f, const char *name, const json_t *list,
                            uint32_t vocab, sheaf__api_prompt *out)
{
    size_t n = json_array_size(list);
    if (n > INT32_MAX) return sheaf__field_fail(f, name, "invalid_value", "is too long");
    out->tokens = malloc((n != 0 ? n : 1) * sizeof *out->tokens);
    if (out->tokens == NULL) return sheaf__fields_no_memory(f);
    out->n_tokens = (uint32_t)n;
    for (uint32_t i = 0; i < out->n_tokens; i++) {
        const json_t *value = json_array_get(list, i);
        int64_t token = json_is_integer(value) ? json_integer_value(value) : -1;
        if (token >= 0 && token < vocab) {
            out->tokens[i] = (int32_t)token;
            continue;
        }
        char element[64], what[64];
        snprintf(element, sizeof element, "%s[%u]", name, i);
        snprintf(what, sizeof what, "a token id from 0 to %u", vocab - 1);
        return sheaf__field_refuse(f, element, what, value);
    }
    return true;
}

/* One prompt: a string or an array of tokens. */
static bool read_prompt(const sheaf__fields *f, const char *name, const json_t *value,
                        uint32_t vocab, sheaf__api_prompt *out)
{
    if (json_is_string(value)) {
        *out = (sheaf__api_prompt){.text = json_string_value(value),
                                   .n_bytes = json_string_length(value)};
        return true;
    }
    if (!json_is_array(value) || json_array_size(value) == 0)
        return sheaf__field_refuse(f, name, "a string or an array of at least one token id",
                                   value);
    return sheaf__api_read_tokens(f, name, value, vocab, out);
}

bool sheaf__api_read_prompts(const sheaf__fields *f, uint32_t vocab, uint32_t max_prompts,
                             sheaf__api_prompt **prompts, uint32_t *n)
{
    const json_t *value = sheaf__field_get(f, "prompt");
    if (value == NULL) return sheaf__field_missing(f, "prompt", FORMS);
    const json_t *first = json_array_get(value, 0);
    bool many = json_is_string(first) || json_is_array(first);
    if (!json_is_string(value) && first == NULL)
        return sheaf__field_refuse(f, "prompt", FORMS, value);
    size_t n_prompts = many ? json_array_size(value) : 1;
    if (n_prompts > max_prompts) {
        char rest[96];
        snprintf(rest, sizeof rest, "has %zu prompts, but at most %u are answered at once",
                 n_prompts, max_prompts);
        return sheaf__field_fail(f, "prompt", "invalid_value", rest);
    }
    *prompts = calloc(n_prompts, sizeof **prompts);
    if (*prompts == NULL) return sheaf__fields_no_memory(f);
    *n = (uint32_t)n_prompts;
    if (!many) return read_prompt(f, "prompt", value, vocab, *prompts);
    for (uint32_t i = 0; i < *n; i++) {
        char name[32];
        snprintf(name, sizeof name, "prompt[%u]", i);
        if (!read_prompt(f, name, json_array_get(value, i), vocab, &(*prompts)[i]))
            return false;
    }
    return true;
}
