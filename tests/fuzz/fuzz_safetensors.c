/* fuzz/fuzz_safetensors.c - a whole safetensors file. */
#include "fuzz/fuzz.h"

#include "model/safetensors.h"

static void check(const sheaf__safetensors *file, const uint8_t *data, size_t size)
{
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        const sheaf__tensor *t = &file->tensors[i];
        FUZZ_CHECK(t->data >= data && t->bytes <= size &&
                   (size_t)(t->data - data) <= size - t->bytes);
        FUZZ_CHECK(t->n_dims <= SHEAF__MAX_DIMS && t->dtype_name != NULL);
        FUZZ_CHECK(sheaf__safetensors_find(file, t->name) == t);
        char shape[SHEAF__SHAPE_TEXT];
        FUZZ_CHECK(sheaf__shape_show(t->dims, t->n_dims, shape)[0] == '[');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__safetensors file;
    sheaf_error err = {0};
    sheaf_status status =
        sheaf__safetensors_parse("DIR/model.safetensors", data, size, &memory, &file, &err);
    if (status == SHEAF_OK) {
        check(&file, data, size);
        sheaf__safetensors_close(&file);
    } else {
        FUZZ_CHECK(status == SHEAF_E_FORMAT && err.status == status && err.text[0] != 0);
    }
    FUZZ_CHECK(memory.live_bytes == 0);
    return 0;
}
