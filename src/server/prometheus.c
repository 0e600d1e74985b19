/* server/prometheus.c - GET /metrics: the figures in Prometheus's text format 0.0.4.
 *
 *     # HELP sheaf_cache_hits_total Lookups that found at least one position.
 *     # TYPE sheaf_cache_hits_total counter
 *     sheaf_cache_hits_total 12
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "model/utf8.h"
#include "server/figures.h"

#define CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
#define INFO_HELP    "What runs here, as labels. Always 1."
#define NS_PER_S     1000000000ull

typedef struct writer {
    sheaf__text *out;
    sheaf_status status; /* of the first thing that failed */
} writer;

static void put(writer *w, const char *data, uint64_t n)
{
    if (w->status == SHEAF_OK) w->status = sheaf__text_append(w->out, data, n);
}

/* Short texts of the program's own. */
__attribute__((format(printf, 2, 3))) static void print(writer *w, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    SHEAF__ASSERT(n >= 0 && (size_t)n < sizeof text);
    put(w, text, (uint64_t)n);
}

static void put_head(writer *w, const sheaf__figure *figure)
{
    static const char *const types[] = {"gauge", "counter", "histogram", "gauge"};
    const char *help = figure->type == SHEAF__FIGURE_INFO ? INFO_HELP : figure->help;
    print(w, "# HELP %s %s\n", figure->metric, help);
    print(w, "# TYPE %s %s\n", figure->metric, types[figure->type]);
}

static void put_value(writer *w, uint32_t kind, const void *at)
{
    if (kind == SHEAF__VALUE_REAL) {
        print(w, " %.9g\n", *(const double *)at);
        return;
    }
    unsigned long long n = *(const uint64_t *)at;
    if (kind == SHEAF__VALUE_NS)
        print(w, " %llu.%09llu\n", n / NS_PER_S, n % NS_PER_S);
    else
        print(w, " %llu\n", n);
}

static void put_values(writer *w, const sheaf__figure *figure, const uint64_t *values)
{
    const sheaf__dimension *a = figure->by[0], *b = figure->by[1];
    for (uint32_t i = 0; i < a->n; i++) {
        for (uint32_t k = 0; k < (b != NULL ? b->n : 1); k++) {
            print(w, "%s{%s=\"%s\"", figure->metric, a->label, a->values[i]);
            if (b != NULL) print(w, ",%s=\"%s\"", b->label, b->values[k]);
            put(w, "}", 1);
            put_value(w, figure->kind, values++);
        }
    }
}

/* Buckets hold what is within their bound, those before them included. */
static void put_histogram(writer *w, const sheaf__figure *figure, const sheaf__tally *tally)
{
    uint32_t n;
    uint64_t sum = 0;
    double scale = figure->kind == SHEAF__VALUE_NS ? (double)NS_PER_S : 1;
    const uint64_t *bounds = figure->bounds(figure->bounds_kind, &n);
    for (uint32_t i = 0; i < n; i++) {
        sum += tally->counts[i];
        print(w, "%s_bucket{le=\"%.9g\"} %llu\n", figure->metric, (double)bounds[i] / scale,
              (unsigned long long)sum);
    }
    sum += tally->counts[SHEAF__MAX_BUCKETS];
    print(w, "%s_bucket{le=\"+Inf\"} %llu\n", figure->metric, (unsigned long long)sum);
    print(w, "%s_sum", figure->metric);
    put_value(w, figure->kind, &tally->sum);
    print(w, "%s_count %llu\n", figure->metric, (unsigned long long)sum);
}

/* A text between quotes; what a reader of lines would stumble over is escaped. */
static void put_label(writer *w, const char *label, const char *text, bool first)
{
    print(w, "%s%s=\"", first ? "" : ",", label);
    uint64_t n = text != NULL ? sheaf__utf8_valid_prefix(text, strlen(text)) : 0;
    for (uint64_t i = 0; i < n; i++) {
        if (text[i] == '\n')
            put(w, "\\n", 2);
        else if (text[i] == '\\' || text[i] == '"')
            print(w, "\\%c", text[i]);
        else
            put(w, &text[i], 1);
    }
    put(w, "\"", 1);
}

/* The figures of a section from `at` on whose metric is the same: labels of one line. Returns how many
 * they are. */
static uint32_t put_info(writer *w, const sheaf__figure_section *section, uint32_t at,
                         const sheaf__figures *f)
{
    const sheaf__figure *first = &section->figures[at];
    uint32_t n = 0, n_labels = 0;
    print(w, "%s{", first->metric);
    for (; at + n < section->n; n++) {
        const sheaf__figure *figure = &section->figures[at + n];
        if (figure->metric == NULL || strcmp(figure->metric, first->metric) != 0) break;
        if (!sheaf__figure_there(figure, f)) continue;
        put_label(w, figure->field, *(const char *const *)sheaf__figure_at(figure, f),
                  n_labels++ == 0);
    }
    print(w, "} 1\n");
    return n;
}

static void put_section(writer *w, const sheaf__figure_section *section,
                        const sheaf__figures *f)
{
    for (uint32_t i = 0; i < section->n; i++) {
        const sheaf__figure *figure = &section->figures[i];
        if (figure->metric == NULL || !sheaf__figure_there(figure, f)) continue;
        put_head(w, figure);
        if (figure->type == SHEAF__FIGURE_INFO) {
            i += put_info(w, section, i, f) - 1;
        } else if (figure->type == SHEAF__FIGURE_HISTOGRAM) {
            put_histogram(w, figure, sheaf__figure_at(figure, f));
        } else if (figure->by[0] != NULL) {
            put_values(w, figure, sheaf__figure_at(figure, f));
        } else {
            print(w, "%s", figure->metric);
            put_value(w, figure->kind, sheaf__figure_at(figure, f));
        }
    }
}

sheaf_status sheaf__figures_prometheus(const sheaf__figures *f, sheaf__text *out)
{
    writer w = {.out = out};
    for (uint32_t s = 0; s < sheaf__n_figure_sections; s++)
        put_section(&w, &sheaf__figure_sections[s], f);
    return w.status;
}

void sheaf__serve_metrics(void *ctx, sheaf__exchange *x)
{
    sheaf__figures f;
    sheaf__text text = {0};
    sheaf__figures_read(ctx, &f);
    if (sheaf__figures_prometheus(&f, &text) == SHEAF_OK) {
        sheaf__exchange_reply(x, 200, CONTENT_TYPE, &text);
    } else {
        sheaf__api_error e;
        sheaf__api_error_set(&e, 503, "no_memory", NULL, "no memory for the metrics");
        sheaf__exchange_fail(x, &e);
    }
    sheaf__text_free(&text);
}
