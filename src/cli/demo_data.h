/* cli/demo_data.h - the demo's questions: chats with expected answers, from eval_recall.jsonl. */
#ifndef SHEAF_CLI_DEMO_DATA_H
#define SHEAF_CLI_DEMO_DATA_H

#include "model/chat.h"

#define SHEAF__DEMO_MAX_MESSAGES 32

typedef struct sheaf__demo_chat {
    sheaf__message messages[SHEAF__DEMO_MAX_MESSAGES]; /* strings owned by the chat's json */
    uint32_t n_messages;
    const char *expected;
    void *json;
} sheaf__demo_chat;

/* Reads the first n chats of group "shared" (all have one system prompt). SHEAF_E_IO, SHEAF_E_FORMAT;
 * SHEAF_E_USAGE: the file has fewer. On success the caller closes each. */
sheaf_status sheaf__demo_read(const char *path, uint32_t n, sheaf__demo_chat *chats,
                              sheaf_error *err);
void sheaf__demo_chat_close(sheaf__demo_chat *chat);

#endif
