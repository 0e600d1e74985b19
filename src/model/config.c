/* model/config.c - what config.json says of a network.
 *
 * Two styles of the same facts:
 *
 *     published checkpoints                      transformers 5
 *     "rope_theta": 500000.0,                    "rope_parameters": {
 *     "rope_scaling": {                              "rope_theta": 500000.0,
 *         "rope_type": "llama3" (or "type"),         "rope_type": "llama3",
 *         "factor": 32.0, ... }                      "factor": 32.0, ... }
 *
 * A setting that would change the arithmetic and is not implemented is refused, never ignored. The
 * limits below keep every product of dimensions far under 64 bits (the largest tensor has at most
 * 2^24 * 2^17 numbers), so the floors above multiply without checks.
 */
#include "model/config.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"
#include "model/json.h"

#define MAX_HIDDEN       (1u << 17)
#define MAX_INTERMEDIATE (1u << 20)
#define MAX_HEADS        1024u
#define MAX_HEAD_DIM     512u
#define MAX_VOCAB        (1u << 24)
#define MAX_POSITIONS    (1u << 24) /* must match model/rope.c */

/* Defaults of the transformers library for fields that old checkpoints leave out. */
#define DEFAULT_THETA        10000.0
#define DEFAULT_EPS          1e-6
#define MISTRAL_WINDOW       4096u
#define GEMMA_HEAD_DIM       256u
#define GEMMA_QUERY_SCALAR   256.0
#define GEMMA_THETA          1e6
#define GEMMA_LOCAL_THETA    10000.0
#define GEMMA_WINDOW         4096u
#define GEMMA_WINDOW_PATTERN 6u /* every sixth layer is global */

static const struct {
    const char *name;
    const char *model_type;
    uint32_t arch;
} architectures[] = {
    {"LlamaForCausalLM", "llama", SHEAF__ARCH_LLAMA},
    {"Qwen3ForCausalLM", "qwen3", SHEAF__ARCH_QWEN3},
    {"Qwen2ForCausalLM", "qwen2", SHEAF__ARCH_QWEN2},
    {"MistralForCausalLM", "mistral", SHEAF__ARCH_MISTRAL},
    {"Gemma3ForCausalLM", "gemma3_text", SHEAF__ARCH_GEMMA3},
};
#define N_ARCHITECTURES (sizeof architectures / sizeof architectures[0])

static sheaf_status refuse(const sheaf__json *at, sheaf_status status, const char *sentence)
{
    char file[SHEAF__BRIEF];
    return sheaf__error_set(at->err, status, "%s: %s", sheaf__path_show(at->file, file),
                            sentence);
}

/* A getter's answer where absence is allowed: the output keeps its default. */
static sheaf_status optional(sheaf_status status)
{
    return status == SHEAF_MISS ? SHEAF_OK : status;
}

static sheaf_status read_architecture(const sheaf__json *at, uint32_t *arch)
{
    const json_t *list = sheaf__json_get(at, "architectures");
    const json_t *first = json_is_string(list) ? list : json_array_get(list, 0);
    const json_t *type = sheaf__json_get(at, "model_type");
    const json_t *found = first != NULL ? first : type;
    if (found == NULL) return sheaf__json_require(at, "architectures");
    const char *text = json_string_value(found);
    for (size_t i = 0; text != NULL && i < N_ARCHITECTURES; i++) {
        const char *known = first != NULL ? architectures[i].name : architectures[i].model_type;
        if (strcmp(text, known) != 0) continue;
        *arch = architectures[i].arch;
        return SHEAF_OK;
    }
    char known[160], shown[SHEAF__BRIEF], file[SHEAF__BRIEF];
    size_t n = 0;
    for (size_t i = 0; i < N_ARCHITECTURES; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i == 0 ? "" : ", ",
                              architectures[i].name);
    return sheaf__error_set(
        at->err, SHEAF_E_ARCH, "%s: architecture %s is not known here; known: %s",
        sheaf__path_show(at->file, file), sheaf__json_show(found, shown), known);
}

static sheaf_status read_sizes(const sheaf__json *at, sheaf__config *c)
{
    const struct {
        const char *field;
        uint32_t max;
        uint32_t *out;
        bool required;
    } fields[] = {
        {"hidden_size", MAX_HIDDEN, &c->hidden, true},
        {"intermediate_size", MAX_INTERMEDIATE, &c->intermediate, true},
        {"num_hidden_layers", SHEAF_MAX_LAYERS, &c->n_layers, true},
        {"num_attention_heads", MAX_HEADS, &c->n_heads, true},
        {"vocab_size", MAX_VOCAB, &c->vocab, true},
        {"max_position_embeddings", MAX_POSITIONS, &c->max_positions, true},
        {"num_key_value_heads", MAX_HEADS, &c->n_kv_heads, false},
        {"head_dim", MAX_HEAD_DIM, &c->head_dim, false},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].required) SHEAF__TRY(sheaf__json_require(at, fields[i].field));
        SHEAF__TRY(
            optional(sheaf__json_u32(at, fields[i].field, 1, fields[i].max, fields[i].out)));
    }
    if (c->n_kv_heads == 0) c->n_kv_heads = c->n_heads;
    char sentence[160];
    if (c->n_heads % c->n_kv_heads != 0) {
        snprintf(sentence, sizeof sentence,
                 "num_attention_heads (%u) must be a multiple of num_key_value_heads (%u)",
                 c->n_heads, c->n_kv_heads);
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    if (c->head_dim == 0 && c->hidden % c->n_heads != 0) {
        snprintf(sentence, sizeof sentence,
                 "head_dim is missing, and hidden_size (%u) is not a multiple of "
                 "num_attention_heads (%u)",
                 c->hidden, c->n_heads);
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    if (c->head_dim == 0) c->head_dim = c->hidden / c->n_heads;
    if (c->head_dim % 2 != 0 || c->head_dim > MAX_HEAD_DIM) {
        snprintf(sentence, sizeof sentence, "head_dim must be even and at most %u, found %u",
                 MAX_HEAD_DIM, c->head_dim);
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    return SHEAF_OK;
}

/* The gated block's activation, which each architecture has but one of. */
static sheaf_status read_activation(const sheaf__json *at, sheaf__config *c)
{
    bool gemma = c->arch == SHEAF__ARCH_GEMMA3;
    const char *field = gemma ? "hidden_activation" : "hidden_act";
    const char *wanted = gemma ? "gelu_pytorch_tanh" : "silu";
    const json_t *act = sheaf__json_get(at, field);
    const char *text = json_string_value(act);
    c->activation = gemma ? SHEAF__ACT_GELU_TANH : SHEAF__ACT_SILU;
    if (act == NULL || (text != NULL && strcmp(text, wanted) == 0)) return SHEAF_OK;
    char sentence[160], shown[SHEAF__BRIEF];
    snprintf(sentence, sizeof sentence, "%s must be \"%s\", found %s", field, wanted,
             sheaf__json_show(act, shown));
    return refuse(at, SHEAF_E_CONFIG, sentence);
}

/* Settings of these architectures that are not implemented. */
static sheaf_status check_unsupported(const sheaf__json *at)
{
    static const char *const must_be_false[] = {"attention_bias", "mlp_bias",
                                                "use_bidirectional_attention"};
    char sentence[160];
    for (size_t i = 0; i < sizeof must_be_false / sizeof must_be_false[0]; i++) {
        bool value = false;
        SHEAF__TRY(optional(sheaf__json_bool(at, must_be_false[i], &value)));
        if (!value) continue;
        snprintf(sentence, sizeof sentence, "%s is true: that is not supported here",
                 must_be_false[i]);
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    if (sheaf__json_get(at, "quantization_config") != NULL)
        return refuse(at, SHEAF_E_CONFIG,
                      "quantization_config is present: quantised weights are not supported "
                      "here");
    return SHEAF_OK;
}

static sheaf_status read_rope_kind(const sheaf__json *at, uint32_t *kind)
{
    const json_t *type = sheaf__json_get(at, "rope_type");
    if (type == NULL) type = sheaf__json_get(at, "type");
    const char *text = json_string_value(type);
    if (type == NULL || (text != NULL && strcmp(text, "default") == 0)) {
        *kind = SHEAF__ROPE_PLAIN;
    } else if (text != NULL && strcmp(text, "linear") == 0) {
        *kind = SHEAF__ROPE_LINEAR;
    } else if (text != NULL && strcmp(text, "llama3") == 0) {
        *kind = SHEAF__ROPE_LLAMA3;
    } else {
        char sentence[160], shown[SHEAF__BRIEF];
        snprintf(sentence, sizeof sentence,
                 "%srope_type %s is not supported; supported: default, linear, llama3",
                 at->within, sheaf__json_show(type, shown));
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    return SHEAF_OK;
}

/* The factors, from rope_scaling or rope_parameters. */
static sheaf_status read_rope_factors(const sheaf__json *at, sheaf__rope_config *rope)
{
    SHEAF__TRY(read_rope_kind(at, &rope->kind));
    if (rope->kind == SHEAF__ROPE_PLAIN) return SHEAF_OK;
    SHEAF__TRY(sheaf__json_require(at, "factor"));
    SHEAF__TRY(sheaf__json_number(at, "factor", 1, 1e6, &rope->factor));
    if (rope->kind == SHEAF__ROPE_LINEAR) return SHEAF_OK;
    SHEAF__TRY(sheaf__json_require(at, "low_freq_factor"));
    SHEAF__TRY(sheaf__json_number(at, "low_freq_factor", 1e-3, 1e6, &rope->low_freq_factor));
    SHEAF__TRY(sheaf__json_require(at, "high_freq_factor"));
    SHEAF__TRY(sheaf__json_number(at, "high_freq_factor", 1e-3, 1e6, &rope->high_freq_factor));
    SHEAF__TRY(sheaf__json_require(at, "original_max_position_embeddings"));
    SHEAF__TRY(sheaf__json_u32(at, "original_max_position_embeddings", 1, MAX_POSITIONS,
                               &rope->original_max_positions));
    if (rope->high_freq_factor > rope->low_freq_factor) return SHEAF_OK;
    char sentence[160];
    snprintf(sentence, sizeof sentence,
             "%shigh_freq_factor (%g) must be larger than low_freq_factor (%g)", at->within,
             rope->high_freq_factor, rope->low_freq_factor);
    return refuse(at, SHEAF_E_CONFIG, sentence);
}

static sheaf_status check_whole_rotation(const sheaf__json *at)
{
    double share = 1;
    SHEAF__TRY(optional(sheaf__json_number(at, "partial_rotary_factor", 1, 1, &share)));
    return SHEAF_OK;
}

/* Everything of one object in the style of transformers 5. */
static sheaf_status read_rope_parameters(const sheaf__json *at, sheaf__rope_config *rope)
{
    SHEAF__TRY(check_whole_rotation(at));
    SHEAF__TRY(optional(sheaf__json_number(at, "rope_theta", 1, 1e12, &rope->theta)));
    return read_rope_factors(at, rope);
}

/* Of all layers; rope->theta holds the default. */
static sheaf_status read_rope(const sheaf__json *at, sheaf__rope_config *rope)
{
    sheaf__json old_style, new_style;
    sheaf_status has_old = sheaf__json_object(at, "rope_scaling", "rope_scaling.", &old_style);
    if (has_old < 0) return has_old;
    sheaf_status has_new =
        sheaf__json_object(at, "rope_parameters", "rope_parameters.", &new_style);
    if (has_new < 0) return has_new;
    if (has_old == SHEAF_OK && has_new == SHEAF_OK)
        return refuse(at, SHEAF_E_CONFIG,
                      "rope_scaling and rope_parameters are both given: which one counts?");
    SHEAF__TRY(check_whole_rotation(at));
    sheaf_status has_theta = sheaf__json_number(at, "rope_theta", 1, 1e12, &rope->theta);
    if (has_theta < 0) return has_theta;
    if (has_old == SHEAF_OK) return read_rope_factors(&old_style, rope);
    if (has_new != SHEAF_OK) return SHEAF_OK;
    if (has_theta == SHEAF_MISS) SHEAF__TRY(sheaf__json_require(&new_style, "rope_theta"));
    return read_rope_parameters(&new_style, rope);
}

/* Gemma: global layers turn as rope says, those with a window as local_rope. */
static sheaf_status read_gemma_rope(const sheaf__json *at, sheaf__config *c)
{
    sheaf__json both, global, local;
    c->rope.theta = GEMMA_THETA;
    c->local_rope.theta = GEMMA_LOCAL_THETA;
    sheaf_status has_new = sheaf__json_object(at, "rope_parameters", "rope_parameters.", &both);
    if (has_new < 0) return has_new;
    if (has_new == SHEAF_MISS) {
        SHEAF__TRY(optional(
            sheaf__json_number(at, "rope_local_base_freq", 1, 1e12, &c->local_rope.theta)));
        return read_rope(at, &c->rope);
    }
    SHEAF__TRY(sheaf__json_require(&both, "full_attention"));
    SHEAF__TRY(sheaf__json_require(&both, "sliding_attention"));
    SHEAF__TRY(sheaf__json_object(&both, "full_attention", "rope_parameters.full_attention.",
                                  &global));
    SHEAF__TRY(sheaf__json_object(&both, "sliding_attention",
                                  "rope_parameters.sliding_attention.", &local));
    SHEAF__TRY(read_rope_parameters(&global, &c->rope));
    return read_rope_parameters(&local, &c->local_rope);
}

/* window[layer] from layer_types, which must name every layer. */
static sheaf_status read_layer_types(const sheaf__json *at, const json_t *types,
                                     uint32_t window, sheaf__config *c)
{
    char sentence[160], shown[SHEAF__BRIEF];
    if (!json_is_array(types) || json_array_size(types) != c->n_layers) {
        snprintf(sentence, sizeof sentence, "layer_types must be a list of %u names",
                 c->n_layers);
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *type = json_array_get(types, i);
        const char *text = json_string_value(type);
        bool full = text != NULL && strcmp(text, "full_attention") == 0;
        bool sliding = text != NULL && strcmp(text, "sliding_attention") == 0;
        if (!full && !sliding) {
            snprintf(sentence, sizeof sentence, "layer_types[%u] %s is not supported", i,
                     sheaf__json_show(type, shown));
            return refuse(at, SHEAF_E_CONFIG, sentence);
        }
        if (sliding && window == 0) {
            snprintf(sentence, sizeof sentence,
                     "layer_types[%u] is \"sliding_attention\", but use_sliding_window is not "
                     "true",
                     i);
            return refuse(at, SHEAF_E_CONFIG, sentence);
        }
        c->window[i] = sliding ? window : 0;
    }
    return SHEAF_OK;
}

/* Mistral: one window for all layers. Where the field is missing the architecture's own counts; null
 * means none. */
static sheaf_status read_mistral_window(const sheaf__json *at, sheaf__config *c)
{
    uint32_t window = 0;
    if (json_object_get(at->object, "sliding_window") == NULL) window = MISTRAL_WINDOW;
    SHEAF__TRY(optional(sheaf__json_u32(at, "sliding_window", 1, MAX_POSITIONS, &window)));
    for (uint32_t i = 0; i < c->n_layers; i++) c->window[i] = window;
    return SHEAF_OK;
}

/* Gemma: local layers have a window, global ones none; which is which is in layer_types, or every
 * so-manieth is global. */
static sheaf_status read_gemma_windows(const sheaf__json *at, sheaf__config *c)
{
    uint32_t window = GEMMA_WINDOW, pattern = GEMMA_WINDOW_PATTERN;
    SHEAF__TRY(optional(sheaf__json_u32(at, "sliding_window", 1, MAX_POSITIONS, &window)));
    const json_t *types = sheaf__json_get(at, "layer_types");
    if (types != NULL) return read_layer_types(at, types, window, c);
    sheaf_status found =
        sheaf__json_u32(at, "sliding_window_pattern", 1, SHEAF_MAX_LAYERS, &pattern);
    if (found == SHEAF_MISS)
        found = sheaf__json_u32(at, "_sliding_window_pattern", 1, SHEAF_MAX_LAYERS, &pattern);
    SHEAF__TRY(optional(found));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->window[i] = (i + 1) % pattern == 0 ? 0 : window;
    return SHEAF_OK;
}

/* Qwen2 and Qwen3: with use_sliding_window, the layers that layer_types names, or those from
 * max_window_layers on, see sliding_window positions. */
static sheaf_status read_windows(const sheaf__json *at, sheaf__config *c)
{
    bool sliding = false;
    uint32_t window = 0;
    SHEAF__TRY(optional(sheaf__json_bool(at, "use_sliding_window", &sliding)));
    if (sliding) {
        SHEAF__TRY(sheaf__json_require(at, "sliding_window"));
        SHEAF__TRY(sheaf__json_u32(at, "sliding_window", 1, MAX_POSITIONS, &window));
    }
    const json_t *types = sheaf__json_get(at, "layer_types");
    if (types != NULL) return read_layer_types(at, types, window, c);
    if (!sliding) return SHEAF_OK;
    uint32_t first = 0;
    SHEAF__TRY(sheaf__json_require(at, "max_window_layers"));
    SHEAF__TRY(sheaf__json_u32(at, "max_window_layers", 0, UINT32_MAX, &first));
    for (uint32_t i = first; i < c->n_layers; i++) c->window[i] = window;
    return SHEAF_OK;
}

static sheaf_status read_eos(const sheaf__json *at, sheaf__config *c)
{
    const json_t *value = sheaf__json_get(at, "eos_token_id");
    if (value == NULL) return SHEAF_MISS;
    bool list = json_is_array(value);
    size_t n = list ? json_array_size(value) : 1;
    const json_t *wrong = n > SHEAF__MAX_EOS ? value : NULL;
    for (size_t i = 0; i < n && wrong == NULL; i++) {
        const json_t *id = list ? json_array_get(value, i) : value;
        json_int_t number = json_integer_value(id);
        if (!json_is_integer(id) || number < 0 || number >= (json_int_t)c->vocab)
            wrong = id;
        else
            c->eos[i] = (int32_t)number;
    }
    if (wrong != NULL) {
        char sentence[200], shown[SHEAF__BRIEF];
        snprintf(
            sentence, sizeof sentence,
            "eos_token_id must be a token id (below vocab_size, %u) or a list of up to %d, "
            "found %s",
            c->vocab, SHEAF__MAX_EOS, sheaf__json_show(wrong, shown));
        return refuse(at, SHEAF_E_CONFIG, sentence);
    }
    c->n_eos = (uint32_t)n;
    return SHEAF_OK;
}

/* The ids of `at` (the file's) or, where `at` has none, those already in the config. */
static sheaf_status read_special_ids(const sheaf__json *at, sheaf__config *c)
{
    uint32_t bos = 0;
    sheaf_status has_bos = sheaf__json_u32(at, "bos_token_id", 0, c->vocab - 1, &bos);
    if (has_bos < 0) return has_bos;
    if (has_bos == SHEAF_OK) c->bos = (int32_t)bos;
    return optional(read_eos(at, c));
}

/* A soft cap: absent, null and 0 mean none. */
static sheaf_status read_softcap(const sheaf__json *at, const char *field, float *out)
{
    double cap = 0;
    SHEAF__TRY(optional(sheaf__json_number(at, field, 0, 1e6, &cap)));
    *out = (float)cap;
    return SHEAF_OK;
}

/* What only Gemma has. */
static sheaf_status read_gemma(const sheaf__json *at, sheaf__config *c)
{
    double scalar = GEMMA_QUERY_SCALAR;
    c->qk_norm = c->block_norms = c->norm_plus_one = true;
    c->embedding_scale = sqrtf((float)c->hidden);
    SHEAF__TRY(optional(sheaf__json_number(at, "query_pre_attn_scalar", 1e-3, 1e9, &scalar)));
    c->attn_scale = (float)(1.0 / sqrt(scalar));
    SHEAF__TRY(read_softcap(at, "attn_logit_softcapping", &c->attn_softcap));
    SHEAF__TRY(read_softcap(at, "final_logit_softcapping", &c->logit_softcap));
    SHEAF__TRY(read_gemma_rope(at, c));
    return read_gemma_windows(at, c);
}

/* What tells the families apart. */
static sheaf_status read_family(const sheaf__json *at, sheaf__config *c)
{
    if (c->arch == SHEAF__ARCH_GEMMA3) return read_gemma(at, c);
    c->rope.theta = DEFAULT_THETA;
    c->qk_norm = c->arch == SHEAF__ARCH_QWEN3;
    c->qkv_bias = c->arch == SHEAF__ARCH_QWEN2;
    SHEAF__TRY(read_rope(at, &c->rope));
    if (c->arch == SHEAF__ARCH_MISTRAL) return read_mistral_window(at, c);
    return c->arch == SHEAF__ARCH_LLAMA ? SHEAF_OK : read_windows(at, c);
}

static sheaf_status read_config(const sheaf__json *at, sheaf__config *c)
{
    SHEAF__TRY(read_architecture(at, &c->arch));
    if (c->arch == SHEAF__ARCH_GEMMA3) {
        c->head_dim = GEMMA_HEAD_DIM;
        c->tied_head = true;
    }
    SHEAF__TRY(read_sizes(at, c));
    SHEAF__TRY(check_unsupported(at));
    SHEAF__TRY(read_activation(at, c));
    double eps = DEFAULT_EPS;
    SHEAF__TRY(optional(sheaf__json_number(at, "rms_norm_eps", 1e-12, 0.1, &eps)));
    c->rms_eps = (float)eps;
    SHEAF__TRY(optional(sheaf__json_bool(at, "tie_word_embeddings", &c->tied_head)));
    SHEAF__TRY(read_family(at, c));
    c->bos = -1;
    return read_special_ids(at, c);
}

/* "DIR/config.json" gives "DIR/generation_config.json". */
static void sibling_name(const char *name, char *out, size_t size)
{
    const char *slash = strrchr(name, '/');
    int n = slash == NULL ? 0 : (int)(slash + 1 - name);
    snprintf(out, size, "%.*sgeneration_config.json", n, name);
}

sheaf_status sheaf__config_parse(const char *name, const char *json, uint64_t size,
                                 const char *generation, uint64_t generation_size,
                                 sheaf__config *out, sheaf_error *err)
{
    sheaf__config config;
    memset(&config, 0, sizeof config); /* padding too: configs are compared as bytes */
    char sibling[PATH_MAX];
    json_t *root = NULL, *second = NULL;
    sheaf_status status = sheaf__json_parse(name, json, size, &root, err);
    if (status != SHEAF_OK) return status;
    sheaf__json at = {name, "", root, err};
    status = read_config(&at, &config);
    if (status == SHEAF_OK && generation != NULL) {
        sibling_name(name, sibling, sizeof sibling);
        status = sheaf__json_parse(sibling, generation, generation_size, &second, err);
        at = (sheaf__json){sibling, "", second, err};
        if (status == SHEAF_OK) status = read_special_ids(&at, &config);
    }
    json_decref(second);
    json_decref(root);
    if (status == SHEAF_OK) memcpy(out, &config, sizeof config);
    return status;
}

sheaf_status sheaf__config_read(const char *dir, sheaf__config *out, sheaf_error *err)
{
    char path[PATH_MAX], second_path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/config.json", dir);
    int m = snprintf(second_path, sizeof second_path, "%s/generation_config.json", dir);
    if (n < 0 || m < 0 || (size_t)m >= sizeof second_path)
        return sheaf__error_set(err, SHEAF_E_IO, "the directory's name is too long");
    sheaf__file file = {0}, second = {0};
    sheaf_status status = sheaf__file_map(path, &file, err);
    const char *generation = NULL;
    if (status == SHEAF_OK && sheaf__file_exists(second_path)) {
        status = sheaf__file_map(second_path, &second, err);
        generation = second.size == 0 ? "" : (const char *)second.data;
    }
    if (status == SHEAF_OK)
        status = sheaf__config_parse(path, (const char *)file.data, file.size, generation,
                                     second.size, out, err);
    sheaf__file_unmap(&second);
    sheaf__file_unmap(&file);
    return status;
}

bool sheaf__config_is_eos(const sheaf__config *config, int32_t token)
{
    for (uint32_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == token) return true;
    return false;
}
