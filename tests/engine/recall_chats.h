/* tests/engine/recall_chats.h - the demo model's evaluation chats (models/sheaf-demo/TRAINING.md), with
 * the answer that has to come out, word for word. */
#ifndef SHEAF_TESTS_RECALL_CHATS_H
#define SHEAF_TESTS_RECALL_CHATS_H

#include "testing.h"

#include <jansson.h>

#include "engine/generate.h"

#define DEMO         "models/sheaf-demo"
#define MAX_CHATS    180
#define MAX_MESSAGES 16

typedef struct chat {
    const json_t *row;
    const char *expected;
    uint32_t n_prompt; /* as the file says */
    sheaf__ids ids;
} chat;

/* Whether the reference gives this answer itself: in bf16, or if not tried, in f32. */
static inline bool reference_right(const json_t *row)
{
    const json_t *ok = json_object_get(row, "hf_bf16_ok");
    if (json_is_null(ok) || ok == NULL) ok = json_object_get(row, "torch_fp32_ok");
    return json_is_true(ok);
}

static inline uint32_t load_chats(json_t *rows, const char *group, chat *chats)
{
    uint32_t n = 0;
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        if (strcmp(json_string_value(json_object_get(row, "group")), group) != 0) continue;
        if (!reference_right(row)) continue;
        assert_true(n < MAX_CHATS);
        chats[n++] = (chat){
            .row = row,
            .expected = json_string_value(json_object_get(row, "expected")),
            .n_prompt = (uint32_t)json_integer_value(json_object_get(row, "prompt_tokens"))};
    }
    return n;
}

static inline int by_length(const void *a, const void *b)
{
    const chat *x = a, *y = b;
    return (x->n_prompt > y->n_prompt) - (x->n_prompt < y->n_prompt);
}

static inline json_t *load_rows(void)
{
    FILE *file = fopen(DEMO "/eval_recall.jsonl", "r");
    assert_non_null(file);
    json_t *rows = json_array(), *row;
    while ((row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL)) != NULL)
        assert_int_equal(json_array_append_new(rows, row), 0);
    fclose(file);
    return rows;
}

/* Renders and encodes; the number of tokens is as the file says. */
static inline void encode(const sheaf__model *model, chat *c)
{
    sheaf__message messages[MAX_MESSAGES];
    sheaf__text text = {0};
    const json_t *list = json_object_get(c->row, "messages");
    uint32_t n = (uint32_t)json_array_size(list);
    assert_in_range(n, 1, MAX_MESSAGES);
    for (uint32_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, i);
        messages[i].role = json_string_value(json_object_get(message, "role"));
        messages[i].content = json_string_value(json_object_get(message, "content"));
    }
    assert_int_equal(sheaf__chat_render(SHEAF__CHAT_CHATML, messages, n, true, &text, NULL),
                     SHEAF_OK);
    assert_int_equal(sheaf__tokenizer_encode(model->tokenizer, text.data, text.n,
                                             SHEAF__ENCODE_PLAIN, &c->ids),
                     SHEAF_OK);
    assert_int_equal(c->ids.n, c->n_prompt);
    sheaf__text_free(&text);
}

#endif
