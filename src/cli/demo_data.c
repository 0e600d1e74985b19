/* cli/demo_data.c - the demo's questions, from eval_recall.jsonl. */
#include "cli/demo_data.h"

#include <jansson.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"

static bool read_messages(json_t *list, sheaf__demo_chat *chat)
{
    size_t n = json_array_size(list);
    if (n == 0 || n > SHEAF__DEMO_MAX_MESSAGES) return false;
    for (size_t i = 0; i < n; i++) {
        json_t *message = json_array_get(list, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        const char *content = json_string_value(json_object_get(message, "content"));
        if (role == NULL || content == NULL) return false;
        chat->messages[i] = (sheaf__message){role, content};
    }
    chat->n_messages = (uint32_t)n;
    return true;
}

/* One line of the file. SHEAF_MISS: a chat of another group. */
static sheaf_status read_line(const char *path, const char *line, size_t size,
                              sheaf__demo_chat *out, sheaf_error *err)
{
    json_error_t why;
    sheaf__demo_chat chat = {0};
    json_t *root = json_loadb(line, size, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: %s", path, why.text);
    const char *group = json_string_value(json_object_get(root, "group"));
    if (group == NULL || strcmp(group, "shared") != 0) {
        json_decref(root);
        return SHEAF_MISS;
    }
    chat.json = root;
    chat.expected = json_string_value(json_object_get(root, "expected"));
    if (chat.expected == NULL || !read_messages(json_object_get(root, "messages"), &chat)) {
        json_decref(root);
        return sheaf__error_set(err, SHEAF_E_FORMAT,
                                "%s: a chat without messages or expected answer", path);
    }
    *out = chat;
    return SHEAF_OK;
}

sheaf_status sheaf__demo_read(const char *path, uint32_t n, sheaf__demo_chat *chats,
                              sheaf_error *err)
{
    sheaf__file file = {0};
    SHEAF__TRY(sheaf__file_map(path, &file, err));
    uint32_t found = 0;
    sheaf_status status = SHEAF_OK;
    uint64_t at = 0;
    while (at < file.size && found < n) {
        const char *line = (const char *)file.data + at;
        const char *end = memchr(line, '\n', file.size - at);
        size_t size = end != NULL ? (size_t)(end - line) : (size_t)(file.size - at);
        at += size + 1;
        if (size == 0) continue;
        status = read_line(path, line, size, &chats[found], err);
        if (status < 0) break;
        found += status == SHEAF_OK;
    }
    if (status >= 0 && found < n)
        status = sheaf__error_set(err, SHEAF_E_USAGE,
                                  "%s: holds %u chats of group shared, %u are wanted", path,
                                  found, n);
    sheaf__file_unmap(&file);
    if (status >= 0) return SHEAF_OK;
    for (uint32_t i = 0; i < found; i++) sheaf__demo_chat_close(&chats[i]);
    return status;
}

void sheaf__demo_chat_close(sheaf__demo_chat *chat)
{
    json_decref(chat->json);
    *chat = (sheaf__demo_chat){0};
}
