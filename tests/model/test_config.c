/* test_config.c - config.json and generation_config.json: both styles, defaults, every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "model/config.h"
#include "model/files.h"

#define FIXTURES "tests/data/fixtures/"
#define KNOWN                                                                                  \
    "LlamaForCausalLM, Qwen3ForCausalLM, Qwen2ForCausalLM, MistralForCausalLM, "               \
    "Gemma3ForCausalLM"

/* A whole Qwen3 config; tests change one field of it. */
static const char base_text[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":128,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":32,\"vocab_size\":320,\"max_position_embeddings\":1024,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,\"tie_word_embeddings\":true,"
    "\"hidden_act\":\"silu\",\"bos_token_id\":0,\"eos_token_id\":1}";

/* The base with the fields of `changes` (a JSON object) in it; a field set to "-" is removed. */
static char *changed(const char *changes)
{
    json_t *base = json_loads(base_text, 0, NULL), *with = json_loads(changes, 0, NULL);
    assert_non_null(base);
    assert_non_null(with);
    const char *key;
    json_t *value;
    json_object_foreach(with, key, value)
    {
        const char *text = json_string_value(value);
        if (text != NULL && strcmp(text, "-") == 0)
            json_object_del(base, key);
        else
            json_object_set(base, key, value);
    }
    char *text = json_dumps(base, 0);
    assert_non_null(text);
    json_decref(with);
    json_decref(base);
    return text;
}

static sheaf_status parse(const char *changes, const char *generation, sheaf__config *out,
                          sheaf_error *err)
{
    char *text = changed(changes);
    sheaf_status status =
        sheaf__config_parse("DIR/config.json", text, strlen(text), generation,
                            generation == NULL ? 0 : strlen(generation), out, err);
    free(text);
    return status;
}

static sheaf__config parsed(const char *changes, const char *generation)
{
    sheaf__config config;
    sheaf_error err = {0};
    sheaf_status status = parse(changes, generation, &config, &err);
    if (status != SHEAF_OK) fail_msg("%s: %s", changes, err.text);
    return config;
}

static void expect_refusal(const char *changes, const char *generation, sheaf_status wanted,
                           const char *sentence)
{
    sheaf__config config, untouched;
    memset(&config, 0xa5, sizeof config);
    memset(&untouched, 0xa5, sizeof untouched);
    sheaf_error err = {0};
    sheaf_status status = parse(changes, generation, &config, &err);
    assert_string_equal(err.text, sentence);
    assert_int_equal(status, wanted);
    assert_int_equal(err.status, wanted);
    assert_memory_equal(&config, &untouched, sizeof config);
    assert_int_equal(parse(changes, generation, &config, NULL), wanted);
}

static void parse_file(const char *dir, const char *name, sheaf__config *out)
{
    uint64_t size;
    char *text = files_read(dir, name, &size);
    sheaf_error err = {0};
    if (sheaf__config_parse(name, text, size, NULL, 0, out, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    free(text);
}

static void both_styles_of_config_are_equal(void **state)
{
    (void)state;
    static const char *const names[] = {
        "llama3-tied",    "qwen3-headdim", "qwen3-untied-gqa1",
        "qwen2-bias",     "mistral-swa",   "gemma3",
        "gemma3-softcap", "gemma3-mixed",  "gemma3-mixed-softcap"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char dir[128];
        snprintf(dir, sizeof dir, FIXTURES "%s", names[i]);
        sheaf__config old_style, new_style;
        parse_file(dir, "config.json", &old_style);
        parse_file(dir, "config_v5.json", &new_style);
        assert_memory_equal(&old_style, &new_style, sizeof old_style);
    }
}

static void a_gemma_config_is_read_field_by_field(void **state)
{
    (void)state;
    sheaf__config c;
    parse_file(FIXTURES "gemma3-mixed-softcap", "config.json", &c);
    assert_int_equal(c.arch, SHEAF__ARCH_GEMMA3);
    assert_true(c.qk_norm && c.block_norms && c.norm_plus_one && c.tied_head && !c.qkv_bias);
    assert_int_equal(c.activation, SHEAF__ACT_GELU_TANH);
    assert_true(c.embedding_scale == sqrtf(96.0f));
    assert_true(c.attn_scale == (float)(1.0 / sqrt(24.0)));
    assert_true(c.attn_softcap == 0 && c.logit_softcap == 5.0f);
    assert_true(c.rope.theta == 1e6 && c.local_rope.theta == 1e4);
    static const uint32_t windows[] = {16, 16, 0, 16};
    assert_memory_equal(c.window, windows, sizeof windows);
}

/* As the published checkpoints are: no layer_types, no tie_word_embeddings, a scaled global rope. */
static void a_gemma_config_has_its_own_defaults(void **state)
{
    (void)state;
    sheaf__config c =
        parsed("{\"architectures\":[\"Gemma3ForCausalLM\"],\"head_dim\":null,"
               "\"hidden_act\":null,\"num_hidden_layers\":7,\"sliding_window\":512,"
               "\"sliding_window_pattern\":3,\"rope_theta\":null,"
               "\"tie_word_embeddings\":null,"
               "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}}",
               NULL);
    static const uint32_t windows[] = {512, 512, 0, 512, 512, 0, 512};
    assert_memory_equal(c.window, windows, sizeof windows);
    assert_int_equal(c.head_dim, 256);
    assert_true(c.tied_head);
    assert_true(c.attn_scale == 1.0f / 16);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_LINEAR);
    assert_int_equal(c.local_rope.kind, SHEAF__ROPE_PLAIN);
    assert_true(c.rope.theta == 1e6 && c.local_rope.theta == 1e4);
}

static void a_mistral_window_is_given_null_or_the_default(void **state)
{
    (void)state;
    sheaf__config c;
    parse_file(FIXTURES "mistral-swa", "config.json", &c);
    for (uint32_t i = 0; i < c.n_layers; i++) assert_int_equal(c.window[i], 32);
    c = parsed("{\"architectures\":[\"MistralForCausalLM\"]}", NULL);
    assert_int_equal(c.window[0], 4096);
    c = parsed("{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":null}", NULL);
    assert_int_equal(c.window[0], 0);
}

static void a_qwen2_config_has_biases_and_no_head_norms(void **state)
{
    (void)state;
    sheaf__config c;
    parse_file(FIXTURES "qwen2-bias", "config.json", &c);
    assert_true(c.qkv_bias && !c.qk_norm && !c.block_norms);
}

static void a_llama_config_is_read_field_by_field(void **state)
{
    (void)state;
    sheaf__config c;
    sheaf_error err;
    assert_int_equal(sheaf__config_read(FIXTURES "llama3-tied", &c, &err), SHEAF_OK);
    assert_int_equal(c.arch, SHEAF__ARCH_LLAMA);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.intermediate, 128);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.vocab, 320);
    assert_int_equal(c.max_positions, 1024);
    assert_true(c.rms_eps == 1e-5f);
    assert_true(c.tied_head);
    assert_false(c.qk_norm);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_LLAMA3);
    assert_true(c.rope.theta == 10000 && c.rope.factor == 8);
    assert_true(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
    assert_int_equal(c.rope.original_max_positions, 64);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos[0], 1);
    assert_int_equal(c.bos, 0);
}

static void the_demo_model_config_is_read(void **state)
{
    (void)state;
    sheaf__config c;
    sheaf_error err;
    assert_int_equal(sheaf__config_read("models/sheaf-demo", &c, &err), SHEAF_OK);
    assert_int_equal(c.arch, SHEAF__ARCH_QWEN3);
    assert_int_equal(c.n_layers, 8);
    assert_int_equal(c.head_dim, 64);
    assert_true(c.qk_norm && c.tied_head);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_PLAIN);
    assert_true(c.rope.theta == 1e6);
    /* two of generation_config.json, not the one of config.json */
    assert_int_equal(c.n_eos, 2);
    assert_true(sheaf__config_is_eos(&c, 4095) && sheaf__config_is_eos(&c, 4093));
    assert_false(sheaf__config_is_eos(&c, 4094));
    assert_int_equal(c.bos, 4093);
    for (uint32_t i = 0; i < SHEAF_MAX_LAYERS; i++) assert_int_equal(c.window[i], 0);
}

static void absent_and_null_fields_take_their_defaults(void **state)
{
    (void)state;
    sheaf__config c = parsed("{\"architectures\":[\"LlamaForCausalLM\"],"
                             "\"num_key_value_heads\":\"-\",\"head_dim\":null,"
                             "\"rms_norm_eps\":\"-\",\"rope_theta\":null,\"rope_scaling\":null,"
                             "\"tie_word_embeddings\":\"-\",\"hidden_act\":\"-\","
                             "\"bos_token_id\":null,\"eos_token_id\":null}",
                             NULL);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rms_eps == 1e-6f);
    assert_true(c.rope.theta == 10000);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_PLAIN);
    assert_false(c.tied_head);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
    assert_false(sheaf__config_is_eos(&c, 0));
}

static void the_model_type_serves_where_no_architecture_is_listed(void **state)
{
    (void)state;
    sheaf__config c = parsed("{\"architectures\":null,\"model_type\":\"llama\"}", NULL);
    assert_int_equal(c.arch, SHEAF__ARCH_LLAMA);
    expect_refusal("{\"architectures\":[],\"model_type\":\"gpt2\"}", NULL, SHEAF_E_ARCH,
                   "DIR/config.json: architecture \"gpt2\" is not known here; known: " KNOWN);
}

static void whole_numbers_serve_as_theta_and_the_old_type_key_names_a_rope(void **state)
{
    (void)state;
    sheaf__config c = parsed(
        "{\"rope_theta\":10000,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", NULL);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_LINEAR);
    assert_true(c.rope.factor == 4 && c.rope.theta == 10000);
    /* the new key counts where both are given */
    c = parsed("{\"rope_scaling\":{\"type\":\"yarn\",\"rope_type\":\"default\"}}", NULL);
    assert_int_equal(c.rope.kind, SHEAF__ROPE_PLAIN);
}

static void windows_follow_layer_types_or_max_window_layers(void **state)
{
    (void)state;
    sheaf__config c = parsed("{\"use_sliding_window\":true,\"sliding_window\":32,"
                             "\"layer_types\":[\"sliding_attention\",\"full_attention\","
                             "\"sliding_attention\"]}",
                             NULL);
    assert_int_equal(c.window[0], 32);
    assert_int_equal(c.window[1], 0);
    assert_int_equal(c.window[2], 32);
    c = parsed("{\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":1}",
               NULL);
    assert_int_equal(c.window[0], 0);
    assert_int_equal(c.window[1], 16);
    assert_int_equal(c.window[2], 16);
    assert_int_equal(c.window[3], 0);
    c = parsed("{\"use_sliding_window\":false,\"sliding_window\":16,\"max_window_layers\":1}",
               NULL);
    assert_int_equal(c.window[2], 0);
    c = parsed("{\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":28}",
               NULL);
    assert_int_equal(c.window[2], 0);
}

static void end_tokens_come_from_the_generation_config_first(void **state)
{
    (void)state;
    sheaf__config c = parsed("{}", "{\"eos_token_id\":[5,7],\"bos_token_id\":3}");
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 7);
    assert_int_equal(c.bos, 3);
    c = parsed("{\"eos_token_id\":[8,9,10]}", "{\"eos_token_id\":null}");
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos[2], 10);
    assert_int_equal(c.bos, 0);
    expect_refusal("{}", "{\"eos_token_id\":[5,-1]}", SHEAF_E_CONFIG,
                   "DIR/generation_config.json: eos_token_id must be a token id (below "
                   "vocab_size, 320) or a list of up to 16, found -1");
    expect_refusal("{}", "{\"eos_token_id\":\"</s>\"}", SHEAF_E_CONFIG,
                   "DIR/generation_config.json: eos_token_id must be a token id (below "
                   "vocab_size, 320) or a list of up to 16, found \"</s>\"");
    expect_refusal(
        "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", NULL, SHEAF_E_CONFIG,
        "DIR/config.json: eos_token_id must be a token id (below vocab_size, 320) or "
        "a list of up to 16, found a list");
    expect_refusal("{}", "{\"eos_token_id\":[5,320]}", SHEAF_E_CONFIG,
                   "DIR/generation_config.json: eos_token_id must be a token id (below "
                   "vocab_size, 320) or a list of up to 16, found 320");
    expect_refusal("{\"bos_token_id\":320}", NULL, SHEAF_E_CONFIG,
                   "DIR/config.json: bos_token_id must be a whole number from 0 to 319, found "
                   "320");
    expect_refusal("{}", "", SHEAF_E_FORMAT,
                   "DIR/generation_config.json: line 1: '[' or '{' expected near end of file");
    expect_refusal("{}", "[]", SHEAF_E_FORMAT,
                   "DIR/generation_config.json: must hold an object");
}

static void every_required_field_is_missed_by_name(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "architectures",       "hidden_size", "intermediate_size",      "num_hidden_layers",
        "num_attention_heads", "vocab_size",  "max_position_embeddings"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char changes[96], sentence[128];
        snprintf(changes, sizeof changes, "{\"%s\":\"-\"}", fields[i]);
        snprintf(sentence, sizeof sentence, "DIR/config.json: %s is missing", fields[i]);
        expect_refusal(changes, NULL, SHEAF_E_CONFIG, sentence);
    }
}

typedef struct refusal {
    const char *changes;
    sheaf_status status;
    const char *sentence; /* after "DIR/config.json: " */
} refusal;

static void expect_refusals(const refusal *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char sentence[256];
        snprintf(sentence, sizeof sentence, "DIR/config.json: %s", list[i].sentence);
        expect_refusal(list[i].changes, NULL, list[i].status, sentence);
    }
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    static const refusal list[] = {
        {"{\"num_attention_heads\":-3}", SHEAF_E_CONFIG,
         "num_attention_heads must be a whole number from 1 to 1024, found -3"},
        {"{\"num_attention_heads\":4.0}", SHEAF_E_CONFIG,
         "num_attention_heads must be a whole number from 1 to 1024, found 4.0"},
        {"{\"num_hidden_layers\":0}", SHEAF_E_CONFIG,
         "num_hidden_layers must be a whole number from 1 to 1024, found 0"},
        {"{\"num_hidden_layers\":1025}", SHEAF_E_CONFIG,
         "num_hidden_layers must be a whole number from 1 to 1024, found 1025"},
        {"{\"hidden_size\":\"64\"}", SHEAF_E_CONFIG,
         "hidden_size must be a whole number from 1 to 131072, found \"64\""},
        {"{\"intermediate_size\":[128]}", SHEAF_E_CONFIG,
         "intermediate_size must be a whole number from 1 to 1048576, found a list"},
        {"{\"vocab_size\":4294967616}", SHEAF_E_CONFIG,
         "vocab_size must be a whole number from 1 to 16777216, found 4294967616"},
        {"{\"max_position_embeddings\":{}}", SHEAF_E_CONFIG,
         "max_position_embeddings must be a whole number from 1 to 16777216, found an object"},
        {"{\"num_key_value_heads\":3}", SHEAF_E_CONFIG,
         "num_attention_heads (4) must be a multiple of num_key_value_heads (3)"},
        {"{\"head_dim\":33}", SHEAF_E_CONFIG,
         "head_dim must be even and at most 512, found 33"},
        {"{\"head_dim\":514}", SHEAF_E_CONFIG,
         "head_dim must be a whole number from 1 to 512, found 514"},
        {"{\"head_dim\":null,\"hidden_size\":66}", SHEAF_E_CONFIG,
         "head_dim is missing, and hidden_size (66) is not a multiple of "
         "num_attention_heads (4)"},
        {"{\"head_dim\":null,\"hidden_size\":8192}", SHEAF_E_CONFIG,
         "head_dim must be even and at most 512, found 2048"},
        {"{\"rms_norm_eps\":0}", SHEAF_E_CONFIG,
         "rms_norm_eps must be a number from 1e-12 to 0.1, found 0"},
        {"{\"bos_token_id\":-2}", SHEAF_E_CONFIG,
         "bos_token_id must be a whole number from 0 to 319, found -2"},
    };
    expect_refusals(list, sizeof list / sizeof list[0]);
}

static void settings_not_implemented_are_refused_by_name(void **state)
{
    (void)state;
    static const refusal list[] = {
        {"{\"architectures\":[\"Gemma2ForCausalLM\"]}", SHEAF_E_ARCH,
         "architecture \"Gemma2ForCausalLM\" is not known here; known: " KNOWN},
        {"{\"architectures\":[17]}", SHEAF_E_ARCH,
         "architecture 17 is not known here; known: " KNOWN},
        {"{\"attention_bias\":true}", SHEAF_E_CONFIG,
         "attention_bias is true: that is not supported here"},
        {"{\"mlp_bias\":true}", SHEAF_E_CONFIG, "mlp_bias is true: that is not supported here"},
        {"{\"mlp_bias\":1}", SHEAF_E_CONFIG, "mlp_bias must be true or false, found 1"},
        {"{\"hidden_act\":\"gelu\"}", SHEAF_E_CONFIG,
         "hidden_act must be \"silu\", found \"gelu\""},
        {"{\"use_bidirectional_attention\":true}", SHEAF_E_CONFIG,
         "use_bidirectional_attention is true: that is not supported here"},
        {"{\"architectures\":[\"Gemma3ForCausalLM\"],\"hidden_activation\":\"relu\"}",
         SHEAF_E_CONFIG, "hidden_activation must be \"gelu_pytorch_tanh\", found \"relu\""},
        {"{\"architectures\":[\"Gemma3ForCausalLM\"],\"query_pre_attn_scalar\":0}",
         SHEAF_E_CONFIG, "query_pre_attn_scalar must be a number from 0.001 to 1e+09, found 0"},
        {"{\"architectures\":[\"Gemma3ForCausalLM\"],\"final_logit_softcapping\":-1}",
         SHEAF_E_CONFIG, "final_logit_softcapping must be a number from 0 to 1e+06, found -1"},
        {"{\"architectures\":[\"Gemma3ForCausalLM\"],\"rope_parameters\":{}}", SHEAF_E_CONFIG,
         "rope_parameters.full_attention is missing"},
        {"{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":0}", SHEAF_E_CONFIG,
         "sliding_window must be a whole number from 1 to 16777216, found 0"},
        {"{\"quantization_config\":{\"bits\":4}}", SHEAF_E_CONFIG,
         "quantization_config is present: quantised weights are not supported here"},
        {"{\"partial_rotary_factor\":0.5}", SHEAF_E_CONFIG,
         "partial_rotary_factor must be a number from 1 to 1, found 0.5"},
        {"{\"tie_word_embeddings\":\"yes\"}", SHEAF_E_CONFIG,
         "tie_word_embeddings must be true or false, found \"yes\""},
        {"{\"use_sliding_window\":true}", SHEAF_E_CONFIG, "sliding_window is missing"},
        {"{\"use_sliding_window\":true,\"sliding_window\":0}", SHEAF_E_CONFIG,
         "sliding_window must be a whole number from 1 to 16777216, found 0"},
        {"{\"use_sliding_window\":true,\"sliding_window\":8}", SHEAF_E_CONFIG,
         "max_window_layers is missing"},
        {"{\"layer_types\":[\"full_attention\"]}", SHEAF_E_CONFIG,
         "layer_types must be a list of 3 names"},
        {"{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\"]}",
         SHEAF_E_CONFIG, "layer_types[1] \"linear_attention\" is not supported"},
        {"{\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
         SHEAF_E_CONFIG,
         "layer_types[2] is \"sliding_attention\", but use_sliding_window is not true"},
    };
    expect_refusals(list, sizeof list / sizeof list[0]);
}

static void rope_settings_are_checked(void **state)
{
    (void)state;
    static const refusal list[] = {
        {"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", SHEAF_E_CONFIG,
         "rope_scaling.rope_type \"yarn\" is not supported; supported: default, linear, "
         "llama3"},
        {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", SHEAF_E_CONFIG,
         "rope_scaling.rope_type \"dynamic\" is not supported; supported: default, linear, "
         "llama3"},
        {"{\"rope_scaling\":{\"rope_type\":3}}", SHEAF_E_CONFIG,
         "rope_scaling.rope_type 3 is not supported; supported: default, linear, llama3"},
        {"{\"rope_scaling\":\"linear\"}", SHEAF_E_CONFIG,
         "rope_scaling must be an object, found \"linear\""},
        {"{\"rope_scaling\":{\"rope_type\":\"linear\"}}", SHEAF_E_CONFIG,
         "rope_scaling.factor is missing"},
        {"{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0.5}}", SHEAF_E_CONFIG,
         "rope_scaling.factor must be a number from 1 to 1e+06, found 0.5"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}}", SHEAF_E_CONFIG,
         "rope_scaling.low_freq_factor is missing"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}}",
         SHEAF_E_CONFIG, "rope_scaling.high_freq_factor is missing"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}}",
         SHEAF_E_CONFIG, "rope_scaling.original_max_position_embeddings is missing"},
        {"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}}",
         SHEAF_E_CONFIG,
         "rope_scaling.high_freq_factor (4) must be larger than low_freq_factor (4)"},
        {"{\"rope_theta\":0}", SHEAF_E_CONFIG,
         "rope_theta must be a number from 1 to 1e+12, found 0"},
        {"{\"rope_theta\":\"-\",\"rope_parameters\":{\"rope_type\":\"default\"}}",
         SHEAF_E_CONFIG, "rope_parameters.rope_theta is missing"},
        {"{\"rope_theta\":\"-\",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}",
         SHEAF_E_CONFIG, "rope_parameters.rope_theta is missing"},
        {"{\"rope_parameters\":{\"rope_theta\":1e4},\"rope_scaling\":{\"type\":\"default\"}}",
         SHEAF_E_CONFIG, "rope_scaling and rope_parameters are both given: which one counts?"},
        {"{\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.25}}",
         SHEAF_E_CONFIG,
         "rope_parameters.partial_rotary_factor must be a number from 1 to 1, found 0.25"},
    };
    expect_refusals(list, sizeof list / sizeof list[0]);
}

static void parse_bytes(const char *text, uint64_t size, sheaf_status wanted,
                        const char *sentence)
{
    sheaf__config config;
    sheaf_error err = {0};
    assert_int_equal(sheaf__config_parse("DIR/config.json", text, size, NULL, 0, &config, &err),
                     wanted);
    if (sentence != NULL) assert_string_equal(err.text, sentence);
}

static void text_that_is_not_an_object_is_refused(void **state)
{
    (void)state;
    parse_bytes(NULL, 0, SHEAF_E_FORMAT,
                "DIR/config.json: line 1: '[' or '{' expected near end of file");
    parse_bytes("[1]", 3, SHEAF_E_FORMAT, "DIR/config.json: must hold an object");
    parse_bytes("{\"a\":1,\"a\":2}", 13, SHEAF_E_FORMAT,
                "DIR/config.json: line 1: duplicate object key near '\"a\"'");
    parse_bytes("{} x", 4, SHEAF_E_FORMAT,
                "DIR/config.json: line 1: end of file expected near 'x'");
    parse_bytes("{\"a\x1b[31m\":1}", 11, SHEAF_E_FORMAT, NULL);
}

static void sentences_carry_no_control_characters(void **state)
{
    (void)state;
    sheaf__config config;
    sheaf_error err = {0};
    const char text[] = "{\"a\":\"\x1b[31m\"}";
    assert_int_equal(
        sheaf__config_parse("config.json", text, sizeof text - 1, NULL, 0, &config, &err),
        SHEAF_E_FORMAT);
    for (const char *c = err.text; *c != 0; c++) assert_true((unsigned char)*c >= 0x20);
    assert_int_equal(parse("{\"hidden_act\":\"\\u001b[31m\"}", NULL, &config, &err),
                     SHEAF_E_CONFIG);
    assert_string_equal(err.text, "DIR/config.json: hidden_act must be \"silu\", found "
                                  "\"\\u001B[31m\"");
}

static void nesting_beyond_the_limit_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 8);
    assert_non_null(text);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', DEPTH);
    parse_bytes(text, DEPTH + 5, SHEAF_E_FORMAT, NULL);
    free(text);
}

static void a_config_cut_short_anywhere_is_refused(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < sizeof base_text - 1; n++)
        parse_bytes(base_text, n, SHEAF_E_FORMAT, NULL);
    parse_bytes(base_text, sizeof base_text - 1, SHEAF_OK, NULL);
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    sheaf__config config;
    sheaf_error err = {0};
    assert_int_equal(sheaf__config_read("tests/data/no-such-model", &config, &err), SHEAF_E_IO);
    assert_string_equal(err.text,
                        "tests/data/no-such-model/config.json: No such file or directory");
    char dir[5000];
    memset(dir, 'x', sizeof dir - 1);
    dir[sizeof dir - 1] = 0;
    assert_int_equal(sheaf__config_read(dir, &config, &err), SHEAF_E_IO);
}

static void files_of_a_directory_are_read_together(void **state)
{
    (void)state;
    char dir[FILES_PATH];
    files_make_dir(dir);
    files_write_text(dir, "config.json", base_text);
    sheaf__config config;
    sheaf_error err = {0};
    assert_int_equal(sheaf__config_read(dir, &config, &err), SHEAF_OK);
    assert_int_equal(config.eos[0], 1);
    files_write_text(dir, "generation_config.json", "{\"eos_token_id\":9}");
    assert_int_equal(sheaf__config_read(dir, &config, &err), SHEAF_OK);
    assert_int_equal(config.eos[0], 9);
    files_write_text(dir, "generation_config.json", "");
    assert_int_equal(sheaf__config_read(dir, &config, &err), SHEAF_E_FORMAT);
    files_write_text(dir, "config.json", "");
    assert_int_equal(sheaf__config_read(dir, &config, &err), SHEAF_E_FORMAT);
    files_remove_dir(dir);
}

static void a_long_path_keeps_its_end_and_the_field(void **state)
{
    (void)state;
    char name[400];
    memset(name, 'd', sizeof name);
    strcpy(name + sizeof name - 20, "/config.json");
    sheaf__config config;
    sheaf_error err = {0};
    assert_int_equal(sheaf__config_parse(name, "{}", 2, NULL, 0, &config, &err),
                     SHEAF_E_CONFIG);
    assert_true(strncmp(err.text, "...ddd", 6) == 0);
    assert_non_null(strstr(err.text, "ddd/config.json: architectures is missing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_styles_of_config_are_equal),
        cmocka_unit_test(a_llama_config_is_read_field_by_field),
        cmocka_unit_test(a_gemma_config_is_read_field_by_field),
        cmocka_unit_test(a_gemma_config_has_its_own_defaults),
        cmocka_unit_test(a_mistral_window_is_given_null_or_the_default),
        cmocka_unit_test(a_qwen2_config_has_biases_and_no_head_norms),
        cmocka_unit_test(the_demo_model_config_is_read),
        cmocka_unit_test(absent_and_null_fields_take_their_defaults),
        cmocka_unit_test(the_model_type_serves_where_no_architecture_is_listed),
        cmocka_unit_test(whole_numbers_serve_as_theta_and_the_old_type_key_names_a_rope),
        cmocka_unit_test(windows_follow_layer_types_or_max_window_layers),
        cmocka_unit_test(end_tokens_come_from_the_generation_config_first),
        cmocka_unit_test(every_required_field_is_missed_by_name),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(settings_not_implemented_are_refused_by_name),
        cmocka_unit_test(rope_settings_are_checked),
        cmocka_unit_test(text_that_is_not_an_object_is_refused),
        cmocka_unit_test(sentences_carry_no_control_characters),
        cmocka_unit_test(nesting_beyond_the_limit_is_refused),
        cmocka_unit_test(a_config_cut_short_anywhere_is_refused),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(files_of_a_directory_are_read_together),
        cmocka_unit_test(a_long_path_keeps_its_end_and_the_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
