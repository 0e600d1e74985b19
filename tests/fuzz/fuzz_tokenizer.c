/* fuzz/fuzz_tokenizer.c - tokenizer.json and, after a zero byte, a text to encode with it. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "model/tokenizer.h"
#include "model/utf8.h"

#define MOST_TEXT                                                                              \
    512 /* a hostile pattern costs a second once it is slow enough to be stopped */

/* Decodes whole and as a stream; both must be the same well-formed text. */
static void check_decode(const sheaf__tokenizer *tok, const sheaf__ids *ids, bool skip_special)
{
    sheaf__text whole = {NULL, 0, 0}, streamed = {NULL, 0, 0};
    sheaf__detokenizer d;
    FUZZ_CHECK(sheaf__tokenizer_decode(tok, ids->data, ids->n, skip_special, &whole) ==
               SHEAF_OK);
    sheaf__detokenizer_init(&d, tok, skip_special);
    for (uint32_t i = 0; i < ids->n; i++) {
        FUZZ_CHECK(sheaf__detokenizer_push(&d, ids->data[i], &streamed) == SHEAF_OK);
        FUZZ_CHECK(sheaf__utf8_valid_prefix(streamed.data, streamed.n) == streamed.n);
    }
    FUZZ_CHECK(sheaf__detokenizer_finish(&d, &streamed) == SHEAF_OK);
    FUZZ_CHECK(whole.n == streamed.n);
    FUZZ_CHECK(whole.n == 0 || memcmp(whole.data, streamed.data, whole.n) == 0);
    sheaf__text_free(&whole);
    sheaf__text_free(&streamed);
}

static void use(const sheaf__tokenizer *tok, const char *text, size_t size)
{
    sheaf__ids ids = {NULL, 0, 0};
    if (size > MOST_TEXT) size = MOST_TEXT;
    sheaf_status status =
        sheaf__tokenizer_encode(tok, text, size, SHEAF__ENCODE_POST_PROCESS, &ids);
    FUZZ_CHECK(status == SHEAF_OK || status == SHEAF_E_UNSUPPORTED ||
               status == SHEAF_E_OVERFLOW);
    FUZZ_CHECK(status == SHEAF_OK || ids.n == 0);
    for (uint32_t i = 0; i < ids.n; i++)
        FUZZ_CHECK(ids.data[i] >= 0 && (uint32_t)ids.data[i] < sheaf__tokenizer_vocab(tok));
    check_decode(tok, &ids, false);
    ids.n = 0;
    for (uint32_t i = 0; i < size; i++) /* ids that no text gives */
        FUZZ_CHECK(sheaf__ids_push(&ids, (unsigned char)text[i] - 2) == SHEAF_OK);
    check_decode(tok, &ids, true);
    sheaf__ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size == 0 ? NULL : memchr(data, 0, size);
    size_t first = zero == NULL ? size : (size_t)(zero - data);
    sheaf__tokenizer *tok = NULL;
    sheaf_error err = {0};
    sheaf_status status =
        sheaf__tokenizer_parse("DIR/tokenizer.json", (const char *)data, first, &tok, &err);
    FUZZ_CHECK(status <= SHEAF_OK);
    if (status != SHEAF_OK) {
        FUZZ_CHECK(tok == NULL && err.status == status && err.text[0] != 0);
        return 0;
    }
    if (zero != NULL) use(tok, (const char *)zero + 1, size - first - 1);
    sheaf__tokenizer_close(tok);
    return 0;
}
