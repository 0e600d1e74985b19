/* server/api_sampling.c - what a request says about sampling, streaming and the prompt cache. */
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api_parts.h"
#include "sheaf/prefix.h"

#define MAX_BIASES 1024

static bool read_float(const sheaf__fields *f, const char *name, double min, double max,
                       float *out)
{
    double number = (double)*out;
    if (!sheaf__field_number(f, name, min, max, &number)) return false;
    *out = (float)number;
    return true;
}

/* top_p 0 asks for the likeliest token alone, which the smallest number gives: the sampler's 0 is
 * "off". top_k is off by -1, too, as elsewhere. */
static bool read_filters(const sheaf__fields *f, uint32_t vocab, sheaf__completion *out)
{
    sheaf__sampler_options *s = &out->sampler;
    int64_t top_k = 0, seed = 0;
    s->temperature = 1, s->top_p = 1;
    if (!read_float(f, "temperature", 0, 2, &s->temperature) ||
        !read_float(f, "top_p", 0, 1, &s->top_p) || !read_float(f, "min_p", 0, 1, &s->min_p) ||
        !read_float(f, "presence_penalty", -2, 2, &out->presence_penalty) ||
        !read_float(f, "frequency_penalty", -2, 2, &out->frequency_penalty) ||
        !sheaf__field_integer(f, "top_k", -1, vocab, &top_k) ||
        !sheaf__field_integer(f, "seed", INT64_MIN, INT64_MAX, &seed))
        return false;
    if (s->top_p < FLT_MIN) s->top_p = FLT_MIN;
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    s->seed = (uint64_t)seed;
    out->has_seed = sheaf__field_get(f, "seed") != NULL;
    return true;
}

/* A token id as a key: decimal digits, no zero before others, so that each has one form. -1: none. */
static int64_t token_of(const char *key, uint32_t vocab)
{
    int64_t token = 0;
    if (key[0] == 0 || (key[0] == '0' && key[1] != 0)) return -1;
    for (; *key != 0; key++) {
        if (*key < '0' || *key > '9') return -1;
        token = token * 10 + (*key - '0');
        if (token >= vocab) return -1;
    }
    return token;
}

static bool read_bias(const sheaf__fields *f, uint32_t vocab, sheaf__completion *out)
{
    const json_t *value = sheaf__field_get(f, "logit_bias");
    char what[64];
    if (value == NULL) return true;
    size_t n = json_object_size(value);
    snprintf(what, sizeof what, "an object of at most %d token ids", MAX_BIASES);
    if (!json_is_object(value) || n > MAX_BIASES)
        return sheaf__field_refuse(f, "logit_bias", what, value);
    if (n == 0) return true;
    out->bias = calloc(n, sizeof *out->bias);
    if (out->bias == NULL) return sheaf__fields_no_memory(f);
    sheaf__fields biases = {"logit_bias.", json_object_get(f->object, "logit_bias"), f->error};
    const char *key;
    json_t *number;
    json_object_foreach(biases.object, key, number)
    {
        int64_t token = token_of(key, vocab);
        if (token < 0) {
            snprintf(what, sizeof what, "is no token id from 0 to %u", vocab - 1);
            return sheaf__field_fail(&biases, key, "invalid_value", what);
        }
        if (json_is_null(number))
            return sheaf__field_refuse(&biases, key, "a number from -100 to 100", number);
        sheaf__bias *bias = &out->bias[out->n_bias];
        bias->token = (int32_t)token;
        if (!read_float(&biases, key, -100, 100, &bias->value)) return false;
        out->n_bias++;
    }
    return true;
}

static bool read_stops(const sheaf__fields *f, sheaf__completion *out)
{
    const json_t *value = sheaf__field_get(f, "stop");
    if (value == NULL) return true;
    if (json_is_string(value)) {
        out->n_stops = 1;
        return sheaf__value_string(f, "stop", value, 1, SHEAF__API_MAX_NAME, &out->stops[0]);
    }
    if (!json_is_array(value) || json_array_size(value) > SHEAF__MAX_STOPS) {
        char what[64];
        snprintf(what, sizeof what, "a string or an array of at most %d strings",
                 SHEAF__MAX_STOPS);
        return sheaf__field_refuse(f, "stop", what, value);
    }
    for (uint32_t i = 0; i < json_array_size(value); i++) {
        char name[32];
        snprintf(name, sizeof name, "stop[%u]", i);
        if (!sheaf__value_string(f, name, json_array_get(value, i), 1, SHEAF__API_MAX_NAME,
                                 &out->stops[i]))
            return false;
        out->n_stops++;
    }
    return true;
}

static bool read_stream(const sheaf__fields *f, sheaf__completion *out)
{
    static const sheaf__known known[] = {
        {.name = "include_usage"},
        {.name = "include_obfuscation", .how = SHEAF__FIELD_IGNORED, .type = JSON_TRUE},
    };
    if (!sheaf__field_bool(f, "stream", &out->stream)) return false;
    const json_t *value = sheaf__field_get(f, "stream_options");
    if (value == NULL) return true;
    if (!json_is_object(value))
        return sheaf__field_refuse(f, "stream_options", "an object", value);
    if (!out->stream)
        return sheaf__field_fail(f, "stream_options", "invalid_value",
                                 "is only allowed when stream is true");
    sheaf__fields options = {"stream_options.", json_object_get(f->object, "stream_options"),
                             f->error};
    return sheaf__fields_known(&options, known, sizeof known / sizeof known[0]) &&
           sheaf__field_bool(&options, "include_usage", &out->include_usage);
}

uint32_t sheaf__api_max_choices(const sheaf__api_limits *limits)
{
    return limits->max_choices != 0 ? limits->max_choices : 128;
}

bool sheaf__api_read_sampling(const sheaf__fields *f, const sheaf__api_limits *limits,
                              sheaf__completion *out)
{
    int64_t n = 1;
    if (!read_filters(f, limits->vocab, out) || !read_bias(f, limits->vocab, out) ||
        !read_stops(f, out) || !sheaf__field_bool(f, "ignore_eos", &out->ignore_eos) ||
        !read_stream(f, out) ||
        !sheaf__field_integer(f, "n", 1, sheaf__api_max_choices(limits), &n))
        return false;
    out->n = (uint32_t)n;
    return true;
}

/* ---- the prompt cache --------------------------------------------------------------------- */

bool sheaf__api_read_cache(const sheaf__fields *f, sheaf__completion *out)
{
    const char *key = NULL;
    int64_t priority = 0;
    if (!sheaf__field_string(f, "cache_salt", 1, SHEAF__API_MAX_NAME, &out->cache_salt) ||
        !sheaf__field_string(f, "prompt_cache_key", 1, SHEAF__API_MAX_NAME, &key) ||
        !sheaf__field_integer(f, "priority", SHEAF_PRIORITY_MIN, SHEAF_PRIORITY_MAX, &priority))
        return false;
    out->priority = (int32_t)priority;
    if (key == NULL) return true;
    out->session = sheaf__api_session(key);
    return out->session != 0 || sheaf__fields_no_memory(f);
}
