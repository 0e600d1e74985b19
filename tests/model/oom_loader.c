/* oom_loader.c - every allocation of opening and making weights fails once, alone and with all that
 * follow: the answer is SHEAF_E_NO_MEMORY, and nothing leaks. jansson's own are not failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/files.h"
#include "model/weights.h"

#define FIXTURE "tests/data/fixtures/llama3-tied"

typedef struct failing {
    uint64_t count;   /* allocations asked for */
    uint64_t fail_at; /* 0: none */
    bool from_then_on;
    uint64_t live;
} failing;

static void *failing_alloc(void *ctx, uint64_t size, uint64_t align)
{
    failing *f = ctx;
    f->count++;
    bool fails = f->from_then_on ? f->count >= f->fail_at : f->count == f->fail_at;
    if (f->fail_at != 0 && fails) return NULL;
    void *ptr = NULL;
    if (posix_memalign(&ptr, align, size) != 0) return NULL;
    f->live += size;
    return ptr;
}

static void failing_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)align;
    ((failing *)ctx)->live -= size;
    free(ptr);
}

typedef struct trial {
    const char *dir; /* null: random weights */
    bool copy;
} trial;

static sheaf_status run(const trial *t, const sheaf__config *config, failing *f)
{
    const sheaf_allocator allocator = {f, failing_alloc, failing_free};
    const sheaf__weights_options options = {.copy_to_huge_pages = t->copy,
                                            .allocator = &allocator};
    sheaf__weights *const untouched = (sheaf__weights *)(void *)f;
    sheaf__weights *w = untouched;
    sheaf_error err = {0};
    sheaf_status status = t->dir == NULL
                              ? sheaf__weights_random(config, &options, &w, &err)
                              : sheaf__weights_open(t->dir, config, &options, &w, &err);
    if (status == SHEAF_OK) {
        assert_int_equal(w->bytes_resident, f->live);
        sheaf__weights_close(w);
    } else {
        assert_int_equal(status, SHEAF_E_NO_MEMORY);
        assert_int_equal(err.status, SHEAF_E_NO_MEMORY);
        assert_ptr_equal(w, untouched);
    }
    assert_int_equal(f->live, 0);
    return status;
}

static void fail_each(const trial *t, uint64_t at_least)
{
    sheaf__config config;
    sheaf_error err;
    assert_int_equal(sheaf__config_read(FIXTURE, &config, &err), SHEAF_OK);
    failing whole = {0};
    assert_int_equal(run(t, &config, &whole), SHEAF_OK);
    assert_true(whole.count >= at_least);
    for (uint64_t n = 1; n <= whole.count; n++)
        for (int onwards = 0; onwards < 2; onwards++) {
            failing f = {.fail_at = n, .from_then_on = onwards != 0};
            assert_int_equal(run(t, &config, &f), SHEAF_E_NO_MEMORY);
        }
}

static void opening_one_file_survives_every_failure(void **state)
{
    (void)state;
    fail_each(&(trial){.dir = FIXTURE}, 7);
}

static void copying_survives_every_failure(void **state)
{
    (void)state;
    fail_each(&(trial){.dir = FIXTURE, .copy = true}, 8);
}

static void making_random_weights_survives_every_failure(void **state)
{
    (void)state;
    fail_each(&(trial){.dir = NULL}, 5);
}

static void opening_shards_survives_every_failure(void **state)
{
    (void)state;
    char dir[FILES_PATH];
    files_make_dir(dir);
    files_copy(FIXTURE, "model.safetensors", dir, "a.safetensors");
    files_copy(FIXTURE, "model.safetensors", dir, "b.safetensors");
    static const char *const names[] = {
        "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj"};
    char index[4096];
    int at = snprintf(index, sizeof index,
                      "{\"weight_map\":{\"model.embed_tokens.weight\":\"a.safetensors\","
                      "\"model.norm.weight\":\"b.safetensors\"");
    for (int layer = 0; layer < 2; layer++)
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
            at += snprintf(index + at, sizeof index - (size_t)at,
                           ",\"model.layers.%d.%s.weight\":\"%c.safetensors\"", layer, names[i],
                           i % 2 == 0 ? 'a' : 'b');
    snprintf(index + at, sizeof index - (size_t)at, "}}");
    files_write_text(dir, "model.safetensors.index.json", index);
    fail_each(&(trial){.dir = dir}, 9);
    fail_each(&(trial){.dir = dir, .copy = true}, 10);
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_one_file_survives_every_failure),
        cmocka_unit_test(copying_survives_every_failure),
        cmocka_unit_test(making_random_weights_survives_every_failure),
        cmocka_unit_test(opening_shards_survives_every_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
