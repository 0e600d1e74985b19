/* fuzz/fuzz_config.c - config.json and, after a zero byte, generation_config.json. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "model/config.h"

static void check(const sheaf__config *c)
{
    FUZZ_CHECK(c->n_layers >= 1 && c->n_layers <= SHEAF_MAX_LAYERS);
    FUZZ_CHECK(c->n_heads >= 1 && c->n_kv_heads >= 1 && c->n_heads % c->n_kv_heads == 0);
    FUZZ_CHECK(c->head_dim >= 2 && c->head_dim <= 512 && c->head_dim % 2 == 0);
    FUZZ_CHECK(c->hidden >= 1 && c->intermediate >= 1 && c->vocab >= 1);
    FUZZ_CHECK(c->max_positions >= 1);
    FUZZ_CHECK(c->rms_eps > 0 && c->rope.theta >= 1);
    FUZZ_CHECK(c->rope.kind == SHEAF__ROPE_PLAIN || c->rope.factor >= 1);
    FUZZ_CHECK(c->n_eos <= SHEAF__MAX_EOS && c->bos >= -1);
    for (uint32_t i = 0; i < c->n_eos; i++) FUZZ_CHECK(c->eos[i] >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size == 0 ? NULL : memchr(data, 0, size);
    size_t first = zero == NULL ? size : (size_t)(zero - data);
    const char *second = zero == NULL ? NULL : (const char *)zero + 1;
    sheaf__config config;
    sheaf_error err = {0};
    sheaf_status status =
        sheaf__config_parse("DIR/config.json", (const char *)data, first, second,
                            zero == NULL ? 0 : size - first - 1, &config, &err);
    FUZZ_CHECK(status <= SHEAF_OK);
    if (status == SHEAF_OK)
        check(&config);
    else
        FUZZ_CHECK(err.status == status && err.text[0] != 0);
    return 0;
}
