/* test_weights.c - weights from one file, from shards, copied, and random. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/half.h"
#include "model/files.h"
#include "model/safetensors.h"
#include "model/weights.h"

#define FIXTURES    "tests/data/fixtures/"
#define TINYSTORIES "../shared/models/TinyStories-656K"
#define MAX_LIST    64

static void read_config(const char *dir, sheaf__config *config)
{
    sheaf_error err = {0};
    if (sheaf__config_read(dir, config, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static sheaf__weights *opened(const char *dir, const sheaf__config *config,
                              const sheaf__weights_options *options)
{
    const sheaf__weights_options none = {0};
    sheaf__weights *w = NULL;
    sheaf_error err = {0};
    if (sheaf__weights_open(dir, config, options == NULL ? &none : options, &w, &err) !=
        SHEAF_OK)
        fail_msg("%s", err.text);
    return w;
}

static void expect_refusal(const char *dir, const sheaf__config *config, sheaf_status wanted,
                           const char *file, const char *sentence)
{
    const sheaf__weights_options options = {0};
    sheaf__weights *w = NULL;
    sheaf_error err = {0};
    sheaf_status status = sheaf__weights_open(dir, config, &options, &w, &err);
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s%s", dir, file, sentence);
    assert_string_equal(err.text, whole);
    assert_int_equal(status, wanted);
    assert_int_equal(err.status, wanted);
    assert_null(w);
    assert_int_equal(sheaf__weights_open(dir, config, &options, &w, NULL), wanted);
}

static uint64_t matrix_bytes(const sheaf__matrix *m)
{
    return (uint64_t)m->n * m->k * (m->dtype == SHEAF_DTYPE_F32 ? 4 : 2);
}

/* All matrices and norms of a network, in one order. */
static uint32_t list_matrices(const sheaf__weights *w, uint32_t n_layers,
                              const sheaf__matrix *list[MAX_LIST])
{
    uint32_t n = 0;
    list[n++] = &w->embedding;
    list[n++] = &w->head;
    for (uint32_t i = 0; i < n_layers; i++) {
        const sheaf__layer_weights *l = &w->layers[i];
        const sheaf__matrix *of_layer[] = {&l->q,    &l->k,  &l->v,   &l->o,
                                           &l->gate, &l->up, &l->down};
        for (uint32_t j = 0; j < 7; j++) list[n++] = of_layer[j];
    }
    assert_true(n <= MAX_LIST);
    return n;
}

static void assert_norms_equal(const float *a, const float *b, uint32_t n)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a != NULL) assert_memory_equal(a, b, n * sizeof *a);
}

static void assert_same_numbers(const sheaf__weights *a, const sheaf__weights *b,
                                const sheaf__config *c)
{
    const sheaf__matrix *of_a[MAX_LIST], *of_b[MAX_LIST];
    uint32_t n = list_matrices(a, c->n_layers, of_a);
    list_matrices(b, c->n_layers, of_b);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(of_a[i]->dtype, of_b[i]->dtype);
        assert_int_equal(of_a[i]->n, of_b[i]->n);
        assert_int_equal(of_a[i]->k, of_b[i]->k);
        assert_memory_equal(of_a[i]->data, of_b[i]->data, matrix_bytes(of_a[i]));
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const sheaf__layer_weights *x = &a->layers[i], *y = &b->layers[i];
        assert_norms_equal(x->attn_norm, y->attn_norm, c->hidden);
        assert_norms_equal(x->mlp_norm, y->mlp_norm, c->hidden);
        assert_norms_equal(x->q_norm, y->q_norm, c->head_dim);
        assert_norms_equal(x->k_norm, y->k_norm, c->head_dim);
    }
    assert_norms_equal(a->final_norm, b->final_norm, c->hidden);
    assert_int_equal(a->n_parameters, b->n_parameters);
}

/* The tensors of a fixture, to be written again in another way. */
typedef struct listing {
    sheaf__memory memory;
    sheaf__safetensors file;
    files_tensor tensors[MAX_LIST];
    uint32_t n;
} listing;

static void list_tensors(const char *dir, listing *l)
{
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    sheaf__memory_init(&l->memory, NULL);
    sheaf_error err = {0};
    if (sheaf__safetensors_open(path, &l->memory, &l->file, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    l->n = (uint32_t)l->file.n_tensors;
    assert_true(l->n <= MAX_LIST);
    for (uint32_t i = 0; i < l->n; i++) {
        const sheaf__tensor *t = &l->file.tensors[i];
        assert_true(t->n_dims <= 2);
        l->tensors[i] =
            (files_tensor){t->name, t->dtype_name, t->n_dims, {0, 0}, t->data, t->bytes};
        memcpy(l->tensors[i].dims, t->dims, sizeof l->tensors[i].dims);
    }
}

static files_tensor *find_tensor(listing *l, const char *name)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (strcmp(l->tensors[i].name, name) == 0) return &l->tensors[i];
    fail_msg("%s is not in the fixture", name);
    return NULL;
}

static void drop_tensor(listing *l, const char *name)
{
    files_tensor *t = find_tensor(l, name);
    *t = l->tensors[--l->n];
}

/* A temporary directory with a fixture's tensors listed. */
typedef struct rig {
    char dir[FILES_PATH];
    sheaf__config config;
    listing list;
} rig;

static void rig_begin(rig *r, const char *fixture)
{
    files_make_dir(r->dir);
    read_config(fixture, &r->config);
    list_tensors(fixture, &r->list);
}

static void rig_write(rig *r, uint32_t pad)
{
    files_write_safetensors(r->dir, "model.safetensors", r->list.tensors, r->list.n, pad);
}

static void rig_end(rig *r)
{
    sheaf__safetensors_close(&r->list.file);
    files_remove_dir(r->dir);
}

static void the_demo_model_is_used_in_place(void **state)
{
    (void)state;
    sheaf__config config;
    read_config("models/sheaf-demo", &config);
    sheaf__weights *w = opened("models/sheaf-demo", &config, NULL);
    assert_int_equal(w->n_parameters, 5772544);
    assert_int_equal(w->bytes_mapped, 11554752);
    /* 8 layers of 2 * 256 + 2 * 64, and 256: and the structs around them, no copy of a matrix */
    uint64_t norms = (8 * (2 * 256 + 2 * 64) + 256) * sizeof(float);
    assert_true(w->bytes_resident >= norms && w->bytes_resident < norms + 4096);
    assert_ptr_equal(w->embedding.data, w->head.data);
    assert_int_equal(w->head.n, 4096);
    assert_int_equal(w->head.k, 256);
    assert_int_equal(w->layers[7].down.n, 256);
    assert_int_equal(w->layers[7].down.k, 512);
    assert_int_equal(w->layers[7].k.n, 128);
    assert_int_equal(w->layers[0].q.dtype, SHEAF_DTYPE_BF16);
    assert_non_null(w->layers[7].q_norm);
    sheaf__weights_close(w);
    sheaf__weights_close(NULL);
}

static void fixtures_open_with_their_parameters_counted(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t n_parameters;
        bool tied, qk_norm;
    } list[] = {{"llama3-tied", 94528, true, false},
                {"qwen3-headdim", 119232, true, true},
                {"qwen3-untied-gqa1", 209504, false, true}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, FIXTURES "%s", list[i].name);
        sheaf__config config;
        read_config(dir, &config);
        sheaf__weights *w = opened(dir, &config, NULL);
        assert_int_equal(w->n_parameters, list[i].n_parameters);
        assert_int_equal(w->head.data == w->embedding.data, list[i].tied);
        assert_int_equal(w->layers[1].q_norm != NULL, list[i].qk_norm);
        sheaf__weights_close(w);
    }
}

static void write_shards(rig *r, uint32_t n_shards, const char *index_extra)
{
    char index[16384], name[64];
    int at = snprintf(index, sizeof index, "{\"metadata\":{},\"weight_map\":{");
    for (uint32_t i = 0; i < r->list.n; i++)
        at +=
            snprintf(index + at, sizeof index - (size_t)at, "%s\"%s\":\"model-%u.safetensors\"",
                     i == 0 ? "" : ",", r->list.tensors[i].name, i % n_shards);
    snprintf(index + at, sizeof index - (size_t)at, "%s}}", index_extra);
    files_write_text(r->dir, "model.safetensors.index.json", index);
    for (uint32_t s = 0; s < n_shards; s++) {
        files_tensor part[MAX_LIST];
        uint32_t n = 0;
        for (uint32_t i = s; i < r->list.n; i += n_shards) part[n++] = r->list.tensors[i];
        snprintf(name, sizeof name, "model-%u.safetensors", s);
        files_write_safetensors(r->dir, name, part, n, s);
    }
}

static void shards_give_the_numbers_of_the_single_file(void **state)
{
    (void)state;
    rig r;
    rig_begin(&r, FIXTURES "qwen3-untied-gqa1");
    sheaf__weights *single = opened(FIXTURES "qwen3-untied-gqa1", &r.config, NULL);
    for (uint32_t n_shards = 1; n_shards <= 3; n_shards++) {
        write_shards(&r, n_shards, "");
        sheaf__weights *sharded = opened(r.dir, &r.config, NULL);
        assert_same_numbers(single, sharded, &r.config);
        assert_true(sharded->bytes_mapped > 2 * sharded->n_parameters);
        sheaf__weights_close(sharded);
    }
    sheaf__weights_close(single);
    rig_end(&r);
}

static void shard_names_never_lead_out_of_the_directory(void **state)
{
    (void)state;
    static const char *const names[] = {"\"../model.safetensors\"",
                                        "\"/etc/passwd\"",
                                        "\"a/b.safetensors\"",
                                        "\"..\"",
                                        "\"\"",
                                        "7",
                                        "null"};
    rig r;
    rig_begin(&r, FIXTURES "llama3-tied");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char extra[64], sentence[128];
        snprintf(extra, sizeof extra, ",\"more\":%s", names[i]);
        snprintf(sentence, sizeof sentence,
                 ": weight_map: a shard must be a plain file name, found %s", names[i]);
        write_shards(&r, 2, extra);
        expect_refusal(r.dir, &r.config, SHEAF_E_FORMAT, "/model.safetensors.index.json",
                       sentence);
    }
    rig_end(&r);
}

static void an_index_that_does_not_match_its_shards_is_refused(void **state)
{
    (void)state;
    static const char index[] = "/model.safetensors.index.json";
    rig r;
    rig_begin(&r, FIXTURES "llama3-tied");
    write_shards(&r, 2, "");
    files_tensor keep = r.list.tensors[0];
    files_write_safetensors(r.dir, "model-1.safetensors", &keep, 1, 0);
    const sheaf__weights_options options = {0};
    sheaf__weights *w = NULL;
    sheaf_error err = {0};
    assert_int_equal(sheaf__weights_open(r.dir, &r.config, &options, &w, &err), SHEAF_E_FORMAT);
    assert_non_null(strstr(err.text, " is not in the shard that weight_map names"));
    files_remove(r.dir, "model-1.safetensors");
    expect_refusal(r.dir, &r.config, SHEAF_E_IO, "/model-1.safetensors",
                   ": No such file or directory");
    files_write_text(r.dir, index + 1, "{\"weight_map\":{}}");
    expect_refusal(r.dir, &r.config, SHEAF_E_FORMAT, index, ": weight_map is empty");
    files_write_text(r.dir, index + 1, "{}");
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, index, ": weight_map is missing");
    files_write_text(r.dir, index + 1, "{\"weight_map\":[]}");
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, index,
                   ": weight_map must be an object, found a list");
    files_write_text(r.dir, index + 1, "{\"weight_map\":");
    expect_refusal(r.dir, &r.config, SHEAF_E_FORMAT, index,
                   ": line 1: unexpected token near end of file");
    files_write_text(r.dir, index + 1, "{\"weight_map\":{\"x\":\"model-0.safetensors\"}}");
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, index,
                   ": tensor model.embed_tokens.weight is missing");
    rig_end(&r);
}

static void a_directory_without_weights_says_what_it_lacks(void **state)
{
    (void)state;
    rig r;
    rig_begin(&r, FIXTURES "llama3-tied");
    expect_refusal(r.dir, &r.config, SHEAF_E_IO, "",
                   ": holds neither model.safetensors nor model.safetensors.index.json");
    files_write_text(r.dir, "model.safetensors", "");
    expect_refusal(r.dir, &r.config, SHEAF_E_FORMAT, "/model.safetensors",
                   ": 0 bytes are too few for a safetensors file");
    rig_end(&r);
}

static void misaligned_tensors_give_the_same_numbers(void **state)
{
    (void)state;
    rig r;
    rig_begin(&r, FIXTURES "qwen3-headdim");
    sheaf__weights *whole = opened(FIXTURES "qwen3-headdim", &r.config, NULL);
    unsigned misaligned = 0;
    for (uint32_t pad = 0; pad < 4; pad++) {
        rig_write(&r, pad);
        sheaf__weights *w = opened(r.dir, &r.config, NULL);
        misaligned += (uintptr_t)w->embedding.data % 2 != 0;
        assert_same_numbers(whole, w, &r.config);
        sheaf__weights_close(w);
    }
    assert_int_equal(misaligned, 2);
    sheaf__weights_close(whole);
    rig_end(&r);
}

static void a_layers_tensor_without_a_place_is_refused(void **state)
{
    (void)state;
    static const unsigned char zeros[2] = {0, 0};
    static const char *const harmless[] = {"model.layers.0.self_attn.rotary_emb.inv_freq",
                                           "vision.layers.9.weight", "lm_head.bias"};
    static const char *const wrong[] = {"model.layers.0.self_attn.q_norm.weight",
                                        "layers.2.input_layernorm.weight"};
    rig r;
    rig_begin(&r, FIXTURES "llama3-tied");
    uint32_t n = r.list.n++;
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        r.list.tensors[n] = (files_tensor){harmless[i], "BF16", 1, {1, 0}, zeros, 2};
        rig_write(&r, 0);
        sheaf__weights_close(opened(r.dir, &r.config, NULL));
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char sentence[160];
        snprintf(sentence, sizeof sentence,
                 ": tensor %s has no place in the network that config.json describes",
                 wrong[i]);
        r.list.tensors[n] = (files_tensor){wrong[i], "BF16", 1, {1, 0}, zeros, 2};
        rig_write(&r, 0);
        expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, "/model.safetensors", sentence);
    }
    rig_end(&r);
}

static void names_without_the_model_prefix_are_found(void **state)
{
    (void)state;
    rig r;
    rig_begin(&r, FIXTURES "qwen3-untied-gqa1");
    for (uint32_t i = 0; i < r.list.n; i++)
        if (strncmp(r.list.tensors[i].name, "model.", 6) == 0) r.list.tensors[i].name += 6;
    rig_write(&r, 0);
    sheaf__weights *whole = opened(FIXTURES "qwen3-untied-gqa1", &r.config, NULL);
    sheaf__weights *w = opened(r.dir, &r.config, NULL);
    assert_same_numbers(whole, w, &r.config);
    sheaf__weights_close(w);
    sheaf__weights_close(whole);
    rig_end(&r);
}

static void a_tied_network_may_store_its_matrix_as_the_head(void **state)
{
    (void)state;
    rig r;
    rig_begin(&r, FIXTURES "llama3-tied");
    find_tensor(&r.list, "model.embed_tokens.weight")->name = "lm_head.weight";
    rig_write(&r, 0);
    sheaf__weights *whole = opened(FIXTURES "llama3-tied", &r.config, NULL);
    sheaf__weights *w = opened(r.dir, &r.config, NULL);
    assert_same_numbers(whole, w, &r.config);
    sheaf__weights_close(w);
    sheaf__weights_close(whole);
    r.config.tied_head = false;
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, "/model.safetensors",
                   ": tensor model.embed_tokens.weight is missing");
    rig_end(&r);
}

static void the_tinystories_model_opens(void **state)
{
    (void)state;
    if (!sheaf__file_exists(TINYSTORIES "/model.safetensors")) {
        fprintf(stderr, "skipped: " TINYSTORIES " is not there\n");
        skip();
    }
    sheaf__config config;
    read_config(TINYSTORIES, &config);
    sheaf__weights *w = opened(TINYSTORIES, &config, NULL);
    assert_int_equal(w->n_parameters, 656000);
    assert_int_equal(w->embedding.dtype, SHEAF_DTYPE_F32);
    assert_ptr_equal(w->embedding.data, w->head.data);
    sheaf__weights_close(w);
}

static void missing_and_misshapen_tensors_are_named(void **state)
{
    (void)state;
    static const char file[] = "/model.safetensors";
    rig r;
    rig_begin(&r, FIXTURES "qwen3-untied-gqa1");
    files_tensor *q = find_tensor(&r.list, "model.layers.1.self_attn.q_proj.weight");
    q->dims[0] = 48, q->dims[1] = 192;
    rig_write(&r, 0);
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, file,
                   ": model.layers.1.self_attn.q_proj.weight has shape [48, 192], wanted "
                   "[96, 96]");
    q->dims[0] = q->dims[1] = 96;
    q->dtype = "I16";
    rig_write(&r, 0);
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, file,
                   ": model.layers.1.self_attn.q_proj.weight holds I16, wanted F32, F16 or "
                   "BF16");
    q->dtype = "BF16";
    files_tensor *norm = find_tensor(&r.list, "model.norm.weight");
    norm->n_dims = 2, norm->dims[0] = 1, norm->dims[1] = 96;
    rig_write(&r, 0);
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, file,
                   ": model.norm.weight has shape [1, 96], wanted [96]");
    norm->n_dims = 1, norm->dims[0] = 96;
    drop_tensor(&r.list, "lm_head.weight");
    rig_write(&r, 0);
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, file,
                   ": tensor lm_head.weight is missing, and tie_word_embeddings is not true");
    r.config.tied_head = true;
    drop_tensor(&r.list, "model.layers.0.self_attn.k_norm.weight");
    rig_write(&r, 0);
    expect_refusal(r.dir, &r.config, SHEAF_E_CONFIG, file,
                   ": tensor model.layers.0.self_attn.k_norm.weight is missing");
    rig_end(&r);
}

static void norms_of_every_type_are_widened_exactly(void **state)
{
    (void)state;
    enum { N = 64 };
    rig r;
    rig_begin(&r, FIXTURES "llama3-tied");
    float f32[N];
    uint16_t f16[N], bf16[N];
    for (int i = 0; i < N; i++) {
        f32[i] = (float)(i - 20) / 3.0f;
        f16[i] = sheaf__f16_of_f32(f32[i]);
        bf16[i] = sheaf__bf16_of_f32(f32[i]);
    }
    files_tensor *a = find_tensor(&r.list, "model.norm.weight");
    files_tensor *b = find_tensor(&r.list, "model.layers.0.input_layernorm.weight");
    files_tensor *c = find_tensor(&r.list, "model.layers.1.post_attention_layernorm.weight");
    a->dtype = "F32", a->data = f32, a->bytes = sizeof f32;
    b->dtype = "F16", b->data = f16, b->bytes = sizeof f16;
    c->dtype = "BF16", c->data = bf16, c->bytes = sizeof bf16;
    rig_write(&r, 1);
    sheaf__weights *w = opened(r.dir, &r.config, NULL);
    for (int i = 0; i < N; i++) {
        assert_true(w->final_norm[i] == f32[i]);
        assert_true(w->layers[0].attn_norm[i] == sheaf__f32_of_f16(f16[i]));
        assert_true(w->layers[1].mlp_norm[i] == sheaf__f32_of_bf16(bf16[i]));
    }
    sheaf__weights_close(w);
    rig_end(&r);
}

static void a_copy_holds_the_same_numbers_and_no_file(void **state)
{
    (void)state;
    sheaf__config config;
    read_config("models/sheaf-demo", &config);
    sheaf__weights *mapped = opened("models/sheaf-demo", &config, NULL);
    uint64_t matrices = 2 * (mapped->n_parameters - (8 * (2 * 256 + 2 * 64) + 256));
    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        sheaf__weights_options options = {.copy_to_huge_pages = true};
        assert_int_equal(sheaf_threads_create(n_threads, &options.threads), SHEAF_OK);
        sheaf__weights *copy = opened("models/sheaf-demo", &config, &options);
        assert_same_numbers(mapped, copy, &config);
        assert_int_equal(copy->bytes_mapped, 0);
        assert_true(copy->bytes_resident >= mapped->bytes_resident + matrices &&
                    copy->bytes_resident < mapped->bytes_resident + matrices + 8192);
        assert_int_equal((uintptr_t)copy->embedding.data % (2 << 20), 0);
        assert_int_equal((uintptr_t)copy->layers[3].up.data % 64, 0);
        assert_ptr_equal(copy->embedding.data, copy->head.data);
        sheaf__weights_close(copy);
        sheaf_threads_destroy(options.threads);
    }
    sheaf__weights_close(mapped);
}

/* A geometry whose tensors end within a word of four numbers, and span several chunks. */
static sheaf__config odd_config(void)
{
    sheaf__config c = {.arch = SHEAF__ARCH_QWEN3,
                       .n_layers = 2,
                       .hidden = 1030,
                       .intermediate = 523,
                       .n_heads = 3,
                       .n_kv_heads = 1,
                       .head_dim = 6,
                       .vocab = 1501,
                       .max_positions = 64,
                       .rms_eps = 1e-6f,
                       .qk_norm = true,
                       .bos = -1};
    return c;
}

static sheaf__weights *made(const sheaf__config *config, uint64_t seed, uint32_t n_threads)
{
    sheaf__weights_options options = {.random_seed = seed};
    assert_int_equal(sheaf_threads_create(n_threads, &options.threads), SHEAF_OK);
    sheaf__weights *w = NULL;
    sheaf_error err = {0};
    if (sheaf__weights_random(config, &options, &w, &err) != SHEAF_OK) fail_msg("%s", err.text);
    sheaf_threads_destroy(options.threads);
    return w;
}

/* The rule of model/random_weights.c, one number at a time. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint16_t reference_number(uint64_t seed, uint64_t tensor, uint64_t e, float std)
{
    const uint64_t golden = 0x9e3779b97f4a7c15ull;
    uint64_t key = mix(mix(seed) + (tensor + 1) * golden);
    uint64_t word = mix(key + (e / 4 + 1) * golden);
    int32_t h = (int32_t)((word >> (16 * (e % 4))) & 0xffff);
    if (h >= 32768) h -= 65536;
    float step = std * 1.7320508f / 32768.0f;
    return sheaf__bf16_of_f32(((float)h + 0.5f) * step);
}

static void assert_reference(const sheaf__matrix *m, uint64_t seed, uint64_t tensor, float std)
{
    const uint16_t *found = m->data;
    uint64_t n = (uint64_t)m->n * m->k;
    for (uint64_t e = 0; e < n; e++)
        if (found[e] != reference_number(seed, tensor, e, std))
            fail_msg("tensor %d, number %d", (int)tensor, (int)e);
}

static void random_weights_depend_on_the_seed_alone(void **state)
{
    (void)state;
    sheaf__config config = odd_config();
    sheaf__weights *one = made(&config, 7, 1);
    for (uint32_t n_threads = 2; n_threads <= 3; n_threads++) {
        sheaf__weights *many = made(&config, 7, n_threads);
        assert_same_numbers(one, many, &config);
        sheaf__weights_close(many);
    }
    sheaf__weights *other = made(&config, 8, 2);
    assert_true(memcmp(one->head.data, other->head.data, 4096) != 0);
    sheaf__weights_close(other);
    sheaf__weights_close(one);
    /* no seed is seed 1 */
    sheaf__weights *none = made(&config, 0, 1), *first = made(&config, 1, 1);
    assert_same_numbers(none, first, &config);
    sheaf__weights_close(first);
    sheaf__weights_close(none);
}

/* Tensors are numbered embedding, then each layer's norms (4 here) and its 7 matrices, final norm,
 * head. */
static void random_weights_follow_the_written_rule(void **state)
{
    (void)state;
    sheaf__config config = odd_config();
    sheaf__weights *w = made(&config, 7, 2);
    assert_reference(&w->embedding, 7, 0, 0.02f);
    assert_reference(&w->layers[0].q, 7, 5, 1.0f / sqrtf(1030.0f));
    assert_reference(&w->layers[1].down, 7, 22, 1.0f / sqrtf(523.0f));
    assert_reference(&w->head, 7, 24, 1.0f / sqrtf(1030.0f));
    sheaf__weights_close(w);
}

static void assert_spread(const sheaf__matrix *m, double wanted_std)
{
    const uint16_t *h = m->data;
    uint64_t n = (uint64_t)m->n * m->k;
    double sum = 0, squares = 0, largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        double x = sheaf__f32_of_bf16(h[i]);
        sum += x;
        squares += x * x;
        if (x > largest) largest = x;
    }
    double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    assert_true(mean < 0.02 * wanted_std && mean > -0.02 * wanted_std);
    assert_true(variance > 0.97 * wanted_std * wanted_std &&
                variance < 1.03 * wanted_std * wanted_std);
    assert_true(largest <= 1.75 * wanted_std);
}

static void random_weights_are_spread_as_promised(void **state)
{
    (void)state;
    sheaf__config config = odd_config();
    sheaf__weights *w = made(&config, 3, 2);
    assert_spread(&w->embedding, 0.02);
    assert_spread(&w->head, 0.031159); /* 1 / sqrt(1030) */
    assert_spread(&w->layers[1].up, 0.031159);
    assert_spread(&w->layers[1].down, 0.043727); /* 1 / sqrt(523) */
    assert_true(memcmp(w->layers[0].gate.data, w->layers[0].up.data, 4096) != 0);
    assert_true(memcmp(w->layers[0].up.data, w->layers[1].up.data, 4096) != 0);
    for (uint32_t i = 0; i < config.hidden; i++) assert_true(w->final_norm[i] == 1.0f);
    for (uint32_t i = 0; i < config.head_dim; i++) assert_true(w->layers[1].k_norm[i] == 1.0f);
    sheaf__weights_close(w);
}

static void the_size_of_random_weights_is_known_before_they_are_made(void **state)
{
    (void)state;
    for (int bias = 0; bias < 2; bias++) {
        sheaf__config c = {0};
        sheaf_error err = {0};
        uint64_t n_parameters = 0, bytes_resident = 0;
        assert_int_equal(sheaf__weights_random_config("random:qwen3-0.6b:layers=1", &c, &err),
                         SHEAF_OK);
        c.hidden = 36, c.intermediate = 44, c.n_heads = 2, c.n_kv_heads = 1, c.head_dim = 10;
        c.vocab = 71, c.qkv_bias = bias, c.tied_head = bias;
        sheaf__weights *w = made(&c, 1, 1);
        assert_int_equal(sheaf__weights_random_size(&c, &n_parameters, &bytes_resident, &err),
                         SHEAF_OK);
        assert_int_equal(n_parameters, w->n_parameters);
        assert_int_equal(bytes_resident, w->bytes_resident);
        sheaf__weights_close(w);
    }
}

static void random_names_give_published_geometries(void **state)
{
    (void)state;
    sheaf__config c;
    sheaf_error err = {0};
    assert_int_equal(sheaf__weights_random_config("random:qwen3-0.6b", &c, &err), SHEAF_OK);
    assert_int_equal(c.n_layers, 28);
    assert_int_equal(c.hidden, 1024);
    assert_int_equal(c.head_dim, 128);
    assert_true(c.qk_norm && c.tied_head && c.rope.theta == 1e6);
    assert_int_equal(sheaf__weights_random_config("random:llama-3.2-1b:layers=3", &c, &err),
                     SHEAF_OK);
    assert_int_equal(c.n_layers, 3);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_LLAMA3);
    assert_int_equal(c.rope.original_max_positions, 8192);
    static const char *const wrong[] = {"qwen3-0.6b",
                                        "random:",
                                        "random:qwen3",
                                        "random:qwen3-0.6bx",
                                        "random:qwen3-0.6b:layers=",
                                        "random:qwen3-0.6b:layers=0",
                                        "random:qwen3-0.6b:layers=-1",
                                        "random:qwen3-0.6b:layers= 1",
                                        "random:qwen3-0.6b:layers=1025",
                                        "random:qwen3-0.6b:layers=2x",
                                        "random:qwen3-0.6b:layers=99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char sentence[256];
        snprintf(sentence, sizeof sentence,
                 "%s: no such random model; known: random:qwen3-0.6b[:layers=N], "
                 "random:llama-3.2-1b[:layers=N], N from 1 to 1024",
                 wrong[i]);
        assert_int_equal(sheaf__weights_random_config(wrong[i], &c, &err), SHEAF_E_CONFIG);
        assert_string_equal(err.text, sentence);
    }
}

typedef struct progress {
    unsigned calls;
    uint64_t done, total;
} progress;

static void on_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    progress *p = ctx;
    assert_string_equal(what, "making random weights");
    assert_true(done >= p->done && done <= total);
    p->done = done;
    p->total = total;
    p->calls++;
}

static void a_large_model_reports_its_progress(void **state)
{
    (void)state;
    sheaf__config config;
    sheaf_error err = {0};
    assert_int_equal(sheaf__weights_random_config("random:qwen3-0.6b:layers=1", &config, &err),
                     SHEAF_OK);
    progress p = {0};
    sheaf__weights_options options = {.progress = on_progress, .progress_ctx = &p};
    sheaf__weights *w = NULL;
    uint64_t begin = sheaf__clock_ns();
    assert_int_equal(sheaf__weights_random(&config, &options, &w, &err), SHEAF_OK);
    uint64_t took = sheaf__clock_ns() - begin;
    /* 151,936 * 1,024 + 1,024, and a layer of 15,730,944 */
    assert_int_equal(w->n_parameters, 171314432);
    /* one a tenth of a second at most, and the last */
    if (p.calls != 0) assert_true(p.done == p.total && p.total > 2 * 171300000u);
    assert_true(p.calls <= 1 + took / 100000000);
    sheaf__weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_model_is_used_in_place),
        cmocka_unit_test(fixtures_open_with_their_parameters_counted),
        cmocka_unit_test(shards_give_the_numbers_of_the_single_file),
        cmocka_unit_test(shard_names_never_lead_out_of_the_directory),
        cmocka_unit_test(an_index_that_does_not_match_its_shards_is_refused),
        cmocka_unit_test(a_directory_without_weights_says_what_it_lacks),
        cmocka_unit_test(misaligned_tensors_give_the_same_numbers),
        cmocka_unit_test(a_layers_tensor_without_a_place_is_refused),
        cmocka_unit_test(names_without_the_model_prefix_are_found),
        cmocka_unit_test(a_tied_network_may_store_its_matrix_as_the_head),
        cmocka_unit_test(the_tinystories_model_opens),
        cmocka_unit_test(missing_and_misshapen_tensors_are_named),
        cmocka_unit_test(norms_of_every_type_are_widened_exactly),
        cmocka_unit_test(a_copy_holds_the_same_numbers_and_no_file),
        cmocka_unit_test(random_weights_depend_on_the_seed_alone),
        cmocka_unit_test(random_weights_follow_the_written_rule),
        cmocka_unit_test(random_weights_are_spread_as_promised),
        cmocka_unit_test(the_size_of_random_weights_is_known_before_they_are_made),
        cmocka_unit_test(random_names_give_published_geometries),
        cmocka_unit_test(a_large_model_reports_its_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
