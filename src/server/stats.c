/* server/stats.c - GET /health and /v1/cache/stats: the snapshot of all figures, and it as JSON. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "model/utf8.h"
#include "server/figures.h"

#define TEXT_OF(x)   #x
#define DIGITS_OF(x) TEXT_OF(x)
#define VERSION                                                                                \
    DIGITS_OF(SHEAF_VERSION_MAJOR)                                                             \
    "." DIGITS_OF(SHEAF_VERSION_MINOR) "." DIGITS_OF(SHEAF_VERSION_PATCH)

#define REAL_DIGITS 9

static uint32_t state_of(sheaf__server *server)
{
    return atomic_load_explicit(&server->state, memory_order_acquire);
}

/* ---- the snapshot ------------------------------------------------------------------------ */

static uint64_t load(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_relaxed);
}

static void load_all(const _Atomic uint64_t *from, uint64_t *to, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) to[i] = load(&from[i]);
}

static void read_histogram(const sheaf__histogram *h, sheaf__tally *out)
{
    load_all(h->counts, out->counts, SHEAF__MAX_BUCKETS + 1);
    out->sum = load(&h->sum);
}

static void read_metrics(const sheaf__metrics *m, sheaf__figures *f)
{
    for (uint32_t e = 0; e < SHEAF__ENDPOINT_KINDS; e++)
        load_all(m->replies[e], f->replies[e], sizeof f->replies[e] / sizeof f->replies[e][0]);
    load_all(m->finishes, f->finishes, sizeof f->finishes / sizeof f->finishes[0]);
    f->refused_queue = load(&m->refused_queue);
    f->prompt_tokens = load(&m->prompt_tokens);
    f->cached_tokens = load(&m->cached_tokens);
    f->answer_tokens = load(&m->answer_tokens);
    for (uint32_t k = 0; k < SHEAF__TIME_KINDS; k++) read_histogram(&m->times[k], &f->times[k]);
    for (uint32_t k = 0; k < SHEAF__SIZE_KINDS; k++) read_histogram(&m->sizes[k], &f->sizes[k]);
}

/* The number after "NAME:" in /proc/self/status, in bytes; 0: there is none. */
static uint64_t kilobytes_of(const char *text, const char *name)
{
    unsigned long long n;
    const char *line = strstr(text, name);
    return line != NULL && sscanf(line + strlen(name), ": %llu kB", &n) == 1 ? n * 1024 : 0;
}

static void read_process(sheaf__figures *f)
{
    char text[4096];
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL) return;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    f->resident_bytes = kilobytes_of(text, "\nVmRSS");
    f->resident_peak_bytes = kilobytes_of(text, "\nVmHWM");
    if (f->resident_bytes != 0 && f->resident_peak_bytes != 0) f->has |= SHEAF__HAS_PROCESS;
}

static void read_pool(const sheaf_pool *pool, sheaf_prefix *prefix, sheaf__figures *f)
{
    f->pool = (sheaf_pool_stats)SHEAF_POOL_STATS_INIT;
    f->cache = (sheaf_prefix_stats)SHEAF_PREFIX_STATS_INIT;
    if (sheaf_pool_stats_read(pool, &f->pool) != SHEAF_OK ||
        sheaf_prefix_stats_read(prefix, &f->cache) != SHEAF_OK)
        return;
    f->block_tokens = sheaf_pool_block_tokens(pool);
    for (uint32_t g = 0; g < sheaf_pool_groups(pool); g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        if (sheaf_pool_group_info(pool, g, &info) == SHEAF_OK)
            f->block_bytes += info.block_bytes;
    }
    f->has |= SHEAF__HAS_POOL;
}

static void read_engine(sheaf__server *server, sheaf__figures *f)
{
    const sheaf__model *model = server->model;
    sheaf_prefix *prefix = sheaf__engine_prefix(server->engine);
    f->backend = model->pool != NULL ? "paged" : "dense";
    f->n_parameters = model->weights->n_parameters;
    f->weights_bytes_mapped = model->weights->bytes_mapped;
    f->weights_bytes_resident = model->weights->bytes_resident;
    sheaf__engine_stats_read(server->engine, &f->engine);
    sheaf__http_stats_read(server->http, &f->http);
    f->has |= SHEAF__HAS_MODEL | SHEAF__HAS_ENGINE | SHEAF__HAS_HTTP;
    if (model->pool == NULL) f->has |= SHEAF__HAS_DENSE;
    if (model->pool != NULL && prefix != NULL) {
        f->enabled = !server->options.engine.no_prompt_cache;
        read_pool(model->pool, prefix, f);
    }
}

void sheaf__figures_read(sheaf__server *server, sheaf__figures *f)
{
    *f = (sheaf__figures){.version = VERSION, .has = SHEAF__HAS_START};
    f->uptime_ns = sheaf__clock_ns() - server->started_ns;
    f->model = server->options.model_name;
    if (state_of(server) != SHEAF__SERVER_LOADING && server->engine != NULL)
        read_engine(server, f);
    read_metrics(&server->metrics, f);
    read_process(f);
    sheaf__figures_derive(f);
}

/* ---- as JSON ----------------------------------------------------------------------------- */

static json_t *text_value(const char *text)
{
    if (text == NULL) return json_null();
    return json_stringn(text, sheaf__utf8_valid_prefix(text, strlen(text)));
}

static json_t *value_of(uint32_t kind, const void *at)
{
    switch (kind) {
    case SHEAF__VALUE_NS: return json_real((double)*(const uint64_t *)at * 1e-9);
    case SHEAF__VALUE_REAL: return json_real(*(const double *)at);
    case SHEAF__VALUE_FLAG: return json_boolean(*(const uint64_t *)at != 0);
    case SHEAF__VALUE_TEXT: return text_value(*(const char *const *)at);
    default: return json_integer((json_int_t) * (const uint64_t *)at);
    }
}

/* How many there are, and their sum. */
static json_t *histogram_of(const sheaf__figure *figure, const sheaf__tally *tally)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= SHEAF__MAX_BUCKETS; i++) n += tally->counts[i];
    return json_pack("{s:I,s:o}", "count", (json_int_t)n, "sum",
                     value_of(figure->kind, &tally->sum));
}

/* An object by the dimension `at` of the figure, of objects by the next. */
static json_t *array_of(const sheaf__figure *figure, uint32_t at, const uint64_t *values)
{
    const sheaf__dimension *by = figure->by[at];
    const sheaf__dimension *next = at == 0 ? figure->by[1] : NULL;
    json_t *object = json_object();
    for (uint32_t i = 0; object != NULL && i < by->n; i++) {
        json_t *value = next != NULL ? array_of(figure, at + 1, values + i * next->n)
                                     : value_of(figure->kind, &values[i]);
        if (json_object_set_new(object, by->values[i], value) == 0) continue;
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* The value goes to the field; "a.b": b in the object a. Both ways the value is taken. */
static int set_field(json_t *root, const char *field, json_t *value)
{
    char outer[64];
    const char *dot = strchr(field, '.');
    if (dot == NULL) return json_object_set_new(root, field, value);
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - field), field);
    json_t *object = json_object_get(root, outer);
    if (object == NULL && json_object_set_new(root, outer, object = json_object()) != 0) {
        json_decref(value);
        return -1;
    }
    return json_object_set_new(object, dot + 1, value);
}

static int add_figure(json_t *root, const sheaf__figure *figure, const sheaf__figures *f)
{
    const void *at = sheaf__figure_at(figure, f);
    if (figure->field == NULL || !sheaf__figure_there(figure, f)) return 0;
    json_t *value = figure->type == SHEAF__FIGURE_HISTOGRAM ? histogram_of(figure, at)
                    : figure->by[0] != NULL                 ? array_of(figure, 0, at)
                                                            : value_of(figure->kind, at);
    return set_field(root, figure->field, value);
}

sheaf_status sheaf__figures_json(const sheaf__figures *f, sheaf__text *out)
{
    sheaf_status st = SHEAF_E_NO_MEMORY;
    char *text = NULL;
    json_t *root = json_object();
    if (root == NULL) return st;
    for (uint32_t s = 0; s < sheaf__n_figure_sections; s++) {
        const sheaf__figure_section *section = &sheaf__figure_sections[s];
        for (uint32_t i = 0; i < section->n; i++)
            if (add_figure(root, &section->figures[i], f) != 0) goto out;
    }
    text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS));
    if (text != NULL) st = sheaf__text_append(out, text, strlen(text));
out:
    free(text);
    json_decref(root);
    return st;
}

/* ---- handlers ---------------------------------------------------------------------------- */

#define SAY(text) text, sizeof text - 1

void sheaf__serve_health(void *ctx, sheaf__exchange *x)
{
    static const char ok[] = "{\"status\":\"ok\"}", loading[] = "{\"status\":\"loading\"}",
                      draining[] = "{\"status\":\"draining\"}";
    uint32_t state = state_of(ctx);
    if (state == SHEAF__SERVER_READY) {
        sheaf__exchange_reply_static(x, 200, "application/json", SAY(ok));
        return;
    }
    sheaf__exchange_add_header(x, "Retry-After", "1");
    if (state == SHEAF__SERVER_LOADING)
        sheaf__exchange_reply_static(x, 503, "application/json", SAY(loading));
    else
        sheaf__exchange_reply_static(x, 503, "application/json", SAY(draining));
}

void sheaf__serve_stats(void *ctx, sheaf__exchange *x)
{
    sheaf__figures f;
    sheaf__text text = {0};
    sheaf__figures_read(ctx, &f);
    if (sheaf__figures_json(&f, &text) == SHEAF_OK) {
        sheaf__exchange_reply(x, 200, "application/json", &text);
    } else {
        sheaf__api_error e;
        sheaf__api_error_set(&e, 503, "no_memory", NULL, "no memory for the statistics");
        sheaf__exchange_fail(x, &e);
    }
    sheaf__text_free(&text);
}
