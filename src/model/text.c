/* model/text.c - growing arrays of ids and of bytes. */
#include <string.h>

#include "base/bits.h"
#include "base/memory.h"
#include "base/status.h"
#include "model/tokenizer.h"

sheaf_status sheaf__ids_push(sheaf__ids *ids, int32_t id)
{
    if (ids->n == ids->capacity) {
        if (ids->n >= INT32_MAX) return SHEAF_E_OVERFLOW;
        sheaf__memory memory;
        sheaf__memory_init(&memory, NULL);
        void *data = ids->data;
        uint64_t capacity = ids->capacity;
        SHEAF__TRY(
            sheaf__memory_grow(&memory, &data, &capacity, capacity + 1, sizeof *ids->data));
        ids->data = data;
        ids->capacity = (uint32_t)capacity;
    }
    ids->data[ids->n++] = id;
    return SHEAF_OK;
}

void sheaf__ids_free(sheaf__ids *ids)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__memory_free(&memory, ids->data, ids->capacity, sizeof *ids->data);
    *ids = (sheaf__ids){NULL, 0, 0};
}

sheaf_status sheaf__text_append(sheaf__text *text, const char *data, uint64_t n)
{
    uint64_t need;
    if (!sheaf__add_u64(text->n, n, &need) || !sheaf__add_u64(need, 1, &need))
        return SHEAF_E_OVERFLOW;
    if (need > text->capacity) {
        sheaf__memory memory;
        sheaf__memory_init(&memory, NULL);
        void *grown = text->data;
        SHEAF__TRY(sheaf__memory_grow(&memory, &grown, &text->capacity, need, 1));
        text->data = grown;
    }
    if (n != 0) memcpy(text->data + text->n, data, n);
    text->n += n;
    text->data[text->n] = 0;
    return SHEAF_OK;
}

void sheaf__text_free(sheaf__text *text)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__memory_free(&memory, text->data, text->capacity, 1);
    *text = (sheaf__text){NULL, 0, 0};
}
