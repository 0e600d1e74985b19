/* fuzz/fuzz_chat.c - the text of a chat template. One that is recognised renders. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "model/chat.h"
#include "model/chat_form.h"

static void render(uint32_t family)
{
    static const sheaf__message messages[] = {{"user", " q "}, {"assistant", "a"}};
    sheaf__text out = {NULL, 0, 0};
    FUZZ_CHECK(sheaf__chat_render(family, messages, 2, true, &out, NULL) == SHEAF_OK);
    FUZZ_CHECK(out.n == strlen(out.data));
    sheaf__text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_CHECK(text != NULL);
    if (size != 0) memcpy(text, data, size);
    text[size] = 0;
    uint32_t family = SHEAF__CHAT_NONE;
    sheaf_error err = {0};
    sheaf_status status = sheaf__chat_recognise(text, &family, &err);
    FUZZ_CHECK(status == SHEAF_OK || status == SHEAF_E_ARCH);
    FUZZ_CHECK((status == SHEAF_OK) == (family != SHEAF__CHAT_NONE));
    if (status == SHEAF_OK)
        render(family);
    else
        FUZZ_CHECK(strstr(err.text, "--chat-template") != NULL);
    sheaf__text form = {NULL, 0, 0};
    bool speaks = false;
    FUZZ_CHECK(sheaf__chat_form(text, &form, &speaks) == SHEAF_OK);
    FUZZ_CHECK(form.n <= 2 * strlen(text) + 1 && form.n == strlen(form.data));
    sheaf__text_free(&form);
    free(text);
    return 0;
}
