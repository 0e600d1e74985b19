/* tests/cli/e2e_inspect.c - what `sheaf inspect` says, against arithmetic of our own, and against
 * sequences that really grow until the budget is full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "model/forward.h"

#define FIXTURES "tests/data/fixtures/"
#define BLOCK    32u

static const char *const models[] = {
    FIXTURES "gemma3",         FIXTURES "gemma3-mixed",  FIXTURES "gemma3-mixed-softcap",
    FIXTURES "gemma3-softcap", FIXTURES "llama3-tied",   FIXTURES "mistral-swa",
    FIXTURES "qwen2-bias",     FIXTURES "qwen3-headdim", FIXTURES "qwen3-untied-gqa1",
    "models/sheaf-demo",
};
#define N_MODELS (sizeof models / sizeof models[0])

static char program[PATH_MAX];

/* One line of the table. */
typedef struct group {
    uint32_t n_layers, window, slab_blocks;
    uint64_t token_bytes, block_bytes, padding, slab_bytes;
} group;

/* What the program said. */
typedef struct report {
    char text[4096];
    uint64_t n_parameters, bytes_mapped, bytes_resident, budget_bytes;
    uint32_t n_groups, n_tokens;
    group groups[SHEAF_MAX_GROUPS];
} report;

/* The number after `label`. */
static uint64_t number_after(const char *text, const char *label)
{
    const char *at = strstr(text, label);
    if (at == NULL) {
        fail_msg("no \"%s\" in:\n%s", label, text);
        return 0;
    }
    at += strlen(label);
    return strtoull(at + strcspn(at, "0123456789"), NULL, 10);
}

static void read_groups(report *r)
{
    const char *line = strstr(r->text, "\ngroup ");
    assert_non_null(line);
    for (line = strchr(line + 1, '\n') + 1; *line != '\n'; line = strchr(line, '\n') + 1) {
        group *g = &r->groups[r->n_groups];
        char window[16];
        uint32_t index;
        assert_int_equal(sscanf(line,
                                "%" SCNu32 "%" SCNu32 "%15s%" SCNu64 "%" SCNu64 "%" SCNu64
                                "%" SCNu32 "%" SCNu64,
                                &index, &g->n_layers, window, &g->token_bytes, &g->block_bytes,
                                &g->padding, &g->slab_blocks, &g->slab_bytes),
                         8);
        assert_int_equal(index, r->n_groups);
        g->window = strcmp(window, "none") == 0 ? 0 : (uint32_t)strtoul(window, NULL, 10);
        r->n_groups++;
    }
}

static void inspect(report *r, const char *model, const char *flags)
{
    char command[2 * PATH_MAX];
    memset(r, 0, sizeof *r);
    snprintf(command, sizeof command, "'%s' inspect -m %s %s", program, model, flags);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    r->text[fread(r->text, 1, sizeof r->text - 1, out)] = 0;
    assert_int_equal(pclose(out), 0);
    r->n_parameters = number_after(r->text, "\nparameters");
    r->bytes_mapped = number_after(strchr(strstr(r->text, "\nweights"), ','), ",");
    r->bytes_resident = number_after(r->text, "mapped,");
    r->budget_bytes = number_after(r->text, "\nbudget");
    r->n_tokens = (uint32_t)number_after(r->text, "one sequence of");
    read_groups(r);
}

static void read_config(const char *model, sheaf__config *c)
{
    sheaf_error err = {0};
    if (sheaf__config_read(model, c, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static uint64_t parameters_of(const sheaf__config *c)
{
    uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    uint64_t layer = 2 * c->hidden * (q + kv) + 3ull * c->hidden * c->intermediate;
    layer += (c->block_norms ? 4ull : 2ull) * c->hidden;
    if (c->qk_norm) layer += 2 * c->head_dim;
    if (c->qkv_bias) layer += q + 2 * kv;
    uint64_t embedding = (uint64_t)c->vocab * c->hidden;
    return c->n_layers * layer + c->hidden + (c->tied_head ? 1 : 2) * embedding;
}

static void parameters_and_bytes_are_those_of_the_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        report r;
        sheaf__config c;
        struct stat info;
        char path[256];
        inspect(&r, models[i], "");
        read_config(models[i], &c);
        snprintf(path, sizeof path, "%s/model.safetensors", models[i]);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(r.n_parameters, parameters_of(&c));
        assert_int_equal(r.bytes_mapped, info.st_size);
        assert_in_range(r.bytes_resident, 4 * c.hidden, r.bytes_mapped);
        assert_int_equal(number_after(r.text, "context"), c.max_positions);
        assert_int_equal(number_after(r.text, " layers, hidden"), c.hidden);
        assert_int_equal(number_after(r.text, "attention"), c.n_heads);
    }
}

static uint64_t row_bytes(uint32_t codec, uint32_t dim)
{
    uint64_t bytes = 0;
    assert_int_equal(sheaf_codec_segment_bytes(codec, 1, dim, &bytes), SHEAF_OK);
    return bytes;
}

/* The bytes of every group, K and V being stored so. */
static void check_sizes(const char *model, const char *flags, uint32_t codec_k,
                        uint32_t codec_v)
{
    report r;
    sheaf__config c;
    uint32_t n_layers = 0;
    inspect(&r, model, flags);
    read_config(model, &c);
    for (uint32_t g = 0; g < r.n_groups; g++) {
        const group *said = &r.groups[g];
        uint32_t n = 0;
        for (uint32_t i = 0; i < c.n_layers; i++) n += c.window[i] == said->window;
        uint64_t token = 1ull * n * c.n_kv_heads *
                         (row_bytes(codec_k, c.head_dim) + row_bytes(codec_v, c.head_dim));
        assert_int_equal(said->n_layers, n);
        assert_int_equal(said->token_bytes, token);
        assert_int_equal(said->block_bytes, BLOCK * token + said->padding);
        assert_int_equal(said->slab_bytes, said->slab_blocks * said->block_bytes);
        assert_int_equal(said->slab_bytes % 4096, 0);
        n_layers += n;
    }
    assert_int_equal(n_layers, c.n_layers);
}

static void bytes_of_keys_and_values_are_those_of_the_layers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        check_sizes(models[i], "", SHEAF_CODEC_BF16, SHEAF_CODEC_BF16);
        check_sizes(models[i], "--kv-dtype f32", SHEAF_CODEC_F32, SHEAF_CODEC_F32);
        check_sizes(models[i], "--kv-dtype int8", SHEAF_CODEC_INT8, SHEAF_CODEC_INT8);
        check_sizes(models[i], "--kv-dtype f16 --kv-dtype-v turbo4", SHEAF_CODEC_F16,
                    SHEAF_CODEC_TURBO4);
        check_sizes(models[i], "--kv-dtype-k int8", SHEAF_CODEC_INT8, SHEAF_CODEC_BF16);
    }
}

static void local_and_global_layers_are_two_groups(void **state)
{
    (void)state;
    report r;
    inspect(&r, FIXTURES "gemma3", "");
    assert_int_equal(r.n_groups, 2);
    assert_int_equal(r.groups[0].n_layers, 3);
    assert_int_equal(r.groups[0].window, 16);
    assert_int_equal(r.groups[1].n_layers, 1);
    assert_int_equal(r.groups[1].window, 0);
}

/* ---- growing ----------------------------------------------------------------------------- */

static sheaf_pool *open_pool(const sheaf__config *c, sheaf_layer *layers, uint64_t budget_bytes)
{
    sheaf_pool *pool = NULL;
    sheaf_error err = {0};
    sheaf__forward_layout(c, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16, layers);
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    o.layers = layers;
    o.n_layers = c->n_layers;
    o.budget_bytes = budget_bytes;
    if (sheaf_pool_open(&o, &pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return pool;
}

/* Makes the sequence one token longer, as decoding does. */
static sheaf_status grow(sheaf_sequence *seq, const sheaf_layer *layers, uint32_t n_layers)
{
    static const float zeros[4096];
    uint32_t at = sheaf_sequence_length(seq);
    sheaf_status st = sheaf_sequence_extend(seq, 1);
    for (uint32_t i = 0; i < n_layers && st == SHEAF_OK; i++) {
        const sheaf_layer *l = &layers[i];
        sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
        assert_true((uint64_t)l->n_kv_heads * l->key_dim <= 4096);
        src.dtype = SHEAF_DTYPE_F32;
        src.n_kv_heads = l->n_kv_heads;
        src.key_dim = l->key_dim;
        src.value_dim = l->value_dim;
        src.k = src.v = zeros;
        st = sheaf_sequence_write(seq, i, at, 1, &src);
    }
    if (st == SHEAF_OK) st = sheaf_sequence_commit(seq, 1, NULL);
    return st == SHEAF_OK ? sheaf_sequence_slide(seq, 0) : st;
}

/* Grows a sequence until the pool is full. With several groups the slabs of `most` tokens are taken at
 * once before: taken as they come, a group may have got a longer one than it needs. */
static uint32_t grow_until_full(const char *model, const report *r)
{
    sheaf__config c;
    sheaf_layer layers[64];
    sheaf_sequence *seq = NULL;
    read_config(model, &c);
    assert_true(c.n_layers <= 64);
    sheaf_pool *pool = open_pool(&c, layers, r->budget_bytes);
    if (r->n_groups > 1) {
        uint32_t counts[SHEAF_MAX_GROUPS];
        for (uint32_t g = 0; g < r->n_groups; g++) {
            uint32_t window = r->groups[g].window, need = (r->n_tokens + BLOCK - 1) / BLOCK;
            uint32_t most = window == 0 ? need : (window + BLOCK - 1) / BLOCK + 1;
            counts[g] = need < most ? need : most;
        }
        assert_int_equal(sheaf_pool_presize(pool, counts), SHEAF_OK);
    }
    assert_int_equal(sheaf_sequence_create(pool, &seq), SHEAF_OK);
    sheaf_status st;
    do st = grow(seq, layers, c.n_layers);
    while (st == SHEAF_OK);
    assert_int_equal(st, SHEAF_FULL);
    uint32_t n = sheaf_sequence_length(seq);
    sheaf_sequence_destroy(seq);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    return n;
}

/* Budgets from two blocks on, odd ones and whole slabs. Windows of all layers never fill one that has
 * room for them: what fits then is the largest sequence there can be. */
static void exactly_as_many_tokens_fit_as_are_said(void **state)
{
    (void)state;
    static const char *const budgets[] = {"64KiB", "100001", "224KiB", "1MiB"};
    for (size_t i = 0; i < N_MODELS - 1; i++)
        for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
            report r;
            char flags[64];
            snprintf(flags, sizeof flags, "--budget %s", budgets[b]);
            inspect(&r, models[i], flags);
            if (r.n_tokens == INT32_MAX - 1u) {
                assert_true(r.n_groups == 1 && r.groups[0].window != 0);
                continue;
            }
            uint32_t grown = grow_until_full(models[i], &r);
            if (grown != r.n_tokens)
                fail_msg("%s in %s: %u said, %u fit", models[i], budgets[b], r.n_tokens, grown);
        }
}

static void a_random_model_is_not_made(void **state)
{
    (void)state;
    report r;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    inspect(&r, "random:llama-3.2-1b", "--budget 1GiB");
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_int_equal(r.n_parameters, 1235814400); /* of the published model */
    assert_int_equal(r.bytes_mapped, 0);
    assert_in_range(r.bytes_resident, 2 * r.n_parameters, 2 * r.n_parameters + (1 << 20));
    assert_int_equal(r.groups[0].token_bytes, 16 * 2 * 8 * 64 * 2);
    assert_int_equal(r.n_tokens, (1 << 30) / (16 * 2 * 8 * 64 * 2));
    assert_true(end.tv_sec - begin.tv_sec <= 5); /* making them takes longer on any machine */
}

static int set_up(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return -1;
    program[n] = 0;
    char *slash = strrchr(program, '/'); /* BUILD/tests/e2e_inspect */
    strcpy(slash, "/../bin/sheaf");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_and_bytes_are_those_of_the_files),
        cmocka_unit_test(bytes_of_keys_and_values_are_those_of_the_layers),
        cmocka_unit_test(local_and_global_layers_are_two_groups),
        cmocka_unit_test(exactly_as_many_tokens_fit_as_are_said),
        cmocka_unit_test(a_random_model_is_not_made),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
