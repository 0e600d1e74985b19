/* server/api_messages.c - the messages of a conversation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api_parts.h"

/* `annotations`, `refusal` and their like stand in answers, which clients send back as they came. */
static const sheaf__known message_fields[] = {
    {.name = "role"},
    {.name = "content"},
    {.name = "name", .how = SHEAF__FIELD_IGNORED, .type = JSON_STRING},
    {.name = "refusal", .how = SHEAF__FIELD_NEUTRAL, .neutral = ""},
    {.name = "annotations", .how = SHEAF__FIELD_NEUTRAL, .neutral = "[]"},
    {.name = "audio", .how = SHEAF__FIELD_NEUTRAL, .neutral = ""},
    {.name = "tool_calls", .how = SHEAF__FIELD_NEUTRAL, .neutral = "[]"},
    {.name = "function_call", .how = SHEAF__FIELD_NEUTRAL, .neutral = ""},
};

static const sheaf__known part_fields[] = {
    {.name = "type"},
    {.name = "text"},
};

/* A `developer` is a `system` to the models here. */
static bool read_role(const sheaf__fields *m, const char **role)
{
    static const char *const roles[][2] = {{"system", "system"},
                                           {"developer", "system"},
                                           {"user", "user"},
                                           {"assistant", "assistant"}};
    const char *said = NULL;
    if (!sheaf__field_string(m, "role", 0, UINT32_MAX, &said)) return false;
    if (said == NULL)
        return sheaf__field_missing(m, "role", "system, developer, user or assistant");
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        if (strcmp(said, roles[i][0]) != 0) continue;
        *role = roles[i][1];
        return true;
    }
    return sheaf__field_refuse(m, "role", "system, developer, user or assistant",
                               sheaf__field_get(m, "role"));
}

/* The text of one part of a content. */
static bool read_part(const sheaf__fields *m, json_t *part, size_t index, const char **text)
{
    char name[32], within[64];
    snprintf(name, sizeof name, "content[%zu]", index);
    if (!json_is_object(part)) return sheaf__field_refuse(m, name, "a part with a type", part);
    snprintf(within, sizeof within, "%s%s.", m->within, name);
    sheaf__fields p = {within, part, m->error};
    const char *type = NULL;
    if (!sheaf__field_string(&p, "type", 0, UINT32_MAX, &type)) return false;
    if (type == NULL) return sheaf__field_missing(&p, "type", "\"text\"");
    if (strcmp(type, "text") != 0)
        return sheaf__field_refuse(&p, "type", "\"text\", the only kind of part served here",
                                   sheaf__field_get(&p, "type"));
    if (!sheaf__fields_known(&p, part_fields, sizeof part_fields / sizeof part_fields[0]))
        return false;
    if (!sheaf__field_string(&p, "text", 0, UINT32_MAX, text)) return false;
    return *text != NULL || sheaf__field_missing(&p, "text", "a string");
}

/* The parts of a content, one after the other, in place of them. */
static bool join_parts(const sheaf__fields *m, json_t *parts, const char **content)
{
    sheaf__text joined = {NULL, 0, 0};
    bool ok = json_array_size(parts) != 0;
    if (!ok) sheaf__field_refuse(m, "content", "a string or a list of parts", parts);
    for (size_t i = 0; ok && i < json_array_size(parts); i++) {
        const char *text = NULL;
        ok = read_part(m, json_array_get(parts, i), i, &text);
        if (ok && sheaf__text_append(&joined, text, strlen(text)) != SHEAF_OK)
            ok = sheaf__fields_no_memory(m);
    }
    if (ok) {
        json_t *string = json_stringn(joined.n != 0 ? joined.data : "", (size_t)joined.n);
        *content = json_string_value(string);
        if (json_object_set_new(m->object, "content", string) != 0)
            ok = sheaf__fields_no_memory(m);
    }
    sheaf__text_free(&joined);
    return ok;
}

static bool read_content(const sheaf__fields *m, const char **content)
{
    json_t *value = json_object_get(m->object, "content");
    if (value == NULL)
        return sheaf__field_missing(m, "content", "a string or a list of text parts");
    if (json_is_array(value)) return join_parts(m, value, content);
    if (!json_is_string(value))
        return sheaf__field_refuse(m, "content", "a string or a list of text parts", value);
    return sheaf__field_string(m, "content", 0, UINT32_MAX, content);
}

bool sheaf__api_read_messages(const sheaf__fields *f, sheaf__message **messages, uint32_t *n)
{
    const json_t *list = sheaf__field_get(f, "messages");
    if (list == NULL)
        return sheaf__field_missing(f, "messages", "an array of at least one message");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return sheaf__field_refuse(f, "messages", "an array of at least one message", list);
    *messages = calloc(json_array_size(list), sizeof **messages);
    if (*messages == NULL) return sheaf__fields_no_memory(f);
    *n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < *n; i++) {
        json_t *message = json_array_get(list, i);
        char within[32];
        snprintf(within, sizeof within, "messages[%u]", i);
        if (!json_is_object(message))
            return sheaf__field_refuse(f, within, "an object with role and content", message);
        strcat(within, ".");
        sheaf__fields m = {within, message, f->error};
        if (!read_role(&m, &(*messages)[i].role) ||
            !sheaf__fields_known(&m, message_fields,
                                 sizeof message_fields / sizeof message_fields[0]) ||
            !read_content(&m, &(*messages)[i].content))
            return false;
    }
    return true;
}
