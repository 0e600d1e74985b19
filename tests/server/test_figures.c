/* server/figures.c: the table, both texts made from it, and the documents that name what is in it. */
#include "testing.h"

#include <jansson.h>

#include "server/figures.h"
#include "server/metrics_text.h"

#define DOCUMENT  "docs/statistics.md"
#define DASHBOARD "contrib/grafana/sheaf.json"

typedef void figure_fn(const sheaf__figure *figure, void *arg);

static void for_each(figure_fn *fn, void *arg)
{
    for (uint32_t s = 0; s < sheaf__n_figure_sections; s++)
        for (uint32_t i = 0; i < sheaf__figure_sections[s].n; i++)
            fn(&sheaf__figure_sections[s].figures[i], arg);
}

static uint32_t n_values(const sheaf__figure *figure)
{
    if (figure->type == SHEAF__FIGURE_HISTOGRAM)
        return SHEAF__MAX_BUCKETS + 2; /* the sum too */
    return (figure->by[0] != NULL ? figure->by[0]->n : 1) *
           (figure->by[1] != NULL ? figure->by[1]->n : 1);
}

/* ---- figures that differ from each other ------------------------------------------------- */

static void fill_one(const sheaf__figure *figure, void *arg)
{
    static uint64_t next = 1000;
    char *at = (char *)arg + figure->offset;
    if (figure->kind == SHEAF__VALUE_TEXT) {
        *(const char **)(void *)at = figure->field;
        return;
    }
    for (uint32_t i = 0; i < n_values(figure); i++, at += sizeof(uint64_t)) {
        next += 7;
        if (figure->kind == SHEAF__VALUE_REAL)
            *(double *)(void *)at = (double)next / 8192;
        else if (figure->kind == SHEAF__VALUE_FLAG)
            *(uint64_t *)(void *)at = 1;
        else if (figure->kind == SHEAF__VALUE_NS && figure->type != SHEAF__FIGURE_HISTOGRAM)
            *(uint64_t *)(void *)at = next * 1000000;
        else
            *(uint64_t *)(void *)at = next;
    }
    if (figure->type != SHEAF__FIGURE_HISTOGRAM) return;
    uint32_t n; /* counts that no bound belongs to stay 0 */
    figure->bounds(figure->bounds_kind, &n);
    sheaf__tally *tally = (void *)((char *)arg + figure->offset);
    memset(&tally->counts[n], 0, (SHEAF__MAX_BUCKETS - n) * sizeof tally->counts[0]);
}

static sheaf__figures filled(void)
{
    static sheaf__figures f; /* as it was filled the first time */
    if (f.has == 0) for_each(fill_one, &f);
    f.has = UINT32_MAX;
    return f;
}

static char *text_of(sheaf_status (*render)(const sheaf__figures *, sheaf__text *),
                     const sheaf__figures *f)
{
    sheaf__text text = {0};
    assert_int_equal(render(f, &text), SHEAF_OK);
    return text.data;
}

static json_t *json_of(const sheaf__figures *f)
{
    char *text = text_of(sheaf__figures_json, f);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    assert_true(json_is_object(root));
    return root;
}

/* The field, also one within an object; null: it is not there. */
static json_t *field_of(json_t *root, const char *field)
{
    char outer[64];
    const char *dot = strchr(field, '.');
    if (dot == NULL) return json_object_get(root, field);
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - field), field);
    return json_object_get(json_object_get(root, outer), dot + 1);
}

/* ---- the table --------------------------------------------------------------------------- */

typedef struct names {
    const char *fields[256], *metrics[256];
    uint32_t n_fields, n_metrics;
} names;

static void check_names(const sheaf__figure *figure, void *arg)
{
    names *n = arg;
    assert_true(figure->field != NULL || figure->metric != NULL);
    if (figure->field != NULL) {
        for (uint32_t i = 0; i < n->n_fields; i++)
            assert_string_not_equal(figure->field, n->fields[i]);
        n->fields[n->n_fields++] = figure->field;
    }
    if (figure->metric == NULL) return;
    bool same = n->n_metrics > 0 && strcmp(n->metrics[n->n_metrics - 1], figure->metric) == 0;
    if (same && figure->type == SHEAF__FIGURE_INFO) return;
    for (uint32_t i = 0; i < n->n_metrics; i++)
        assert_string_not_equal(figure->metric, n->metrics[i]);
    n->metrics[n->n_metrics++] = figure->metric;
    assert_memory_equal(figure->metric, "sheaf_", 6);
}

static void no_name_is_there_twice(void **state)
{
    (void)state;
    names n = {0};
    for_each(check_names, &n);
    assert_in_range(n.n_fields, 80, 256);
}

static void check_form(const sheaf__figure *figure, void *arg)
{
    (void)arg;
    const char *metric = figure->metric, *unit = figure->unit;
    assert_non_null(figure->help);
    assert_null(strpbrk(figure->help, "\n\\|"));
    assert_int_equal(figure->help[strlen(figure->help) - 1], '.');
    if (metric == NULL) return;
    if (strcmp(unit, "bytes") == 0) assert_non_null(strstr(metric, "_bytes"));
    if (strcmp(unit, "seconds") == 0) assert_non_null(strstr(metric, "_seconds"));
    if (strcmp(unit, "ratio") == 0) assert_non_null(strstr(metric, "_ratio"));
    if (figure->kind == SHEAF__VALUE_NS) assert_string_equal(unit, "seconds");
    assert_int_equal(figure->bounds != NULL, figure->type == SHEAF__FIGURE_HISTOGRAM);
}

static void every_figure_says_what_it_is(void **state)
{
    (void)state;
    for_each(check_form, NULL);
}

/* What an operator is promised by name. */
static void the_ledger_is_told_whole(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "enabled",
        "backend",
        "block_size",
        "entries",
        "bytes",
        "bytes_exclusive",
        "bytes_pinned",
        "capacity_bytes",
        "max_entries",
        "ttl_seconds",
        "hits",
        "lookups",
        "hit_rate",
        "hit_tokens",
        "lookup_tokens",
        "inserts",
        "evictions_lru",
        "evictions_ttl",
        "evictions.pressure",
        "refusals.too_large",
        "last_refusal.reason",
        "paged_blocks_allocated",
        "paged_blocks_live",
        "paged_blocks_free",
        "paged_blocks_shared",
        "paged_bytes_reserved",
        "paged_bytes_in_use",
        "slab_appends",
        "slab_releases",
        "bytes_copied_by_growth",
        "fragmentation",
        "slab_occupancy",
        "blocks_by_owner.running",
        "budget_bytes",
        "tokens_computed",
        "tokens_reused",
        "preemptions",
        "waits",
        "takeovers",
        "requests_running",
        "requests_waiting",
        "weights_bytes_resident",
        "resident_bytes",
        "uptime_seconds",
    };
    sheaf__figures f = filled();
    json_t *root = json_of(&f);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (field_of(root, fields[i]) == NULL) fail_msg("%s is missing", fields[i]);
    json_decref(root);
}

/* ---- both texts -------------------------------------------------------------------------- */

typedef struct both {
    sheaf__figures f;
    json_t *root;
    char *metrics;
} both;

static both both_open(uint32_t has)
{
    both b = {.f = filled()};
    b.f.has = has;
    b.root = json_of(&b.f);
    b.metrics = text_of(sheaf__figures_prometheus, &b.f);
    metrics_text_check(b.metrics);
    return b;
}

static void both_close(both *b)
{
    json_decref(b->root);
    free(b->metrics);
}

static double expected(const sheaf__figure *figure, const uint64_t *at)
{
    if (figure->kind == SHEAF__VALUE_REAL) return *(const double *)(const void *)at;
    return (double)*at * (figure->kind == SHEAF__VALUE_NS ? 1e-9 : 1);
}

static void check_value(const sheaf__figure *figure, const uint64_t *at, json_t *value,
                        const char *metrics, const char *sample)
{
    double want = expected(figure, at);
    if (figure->field != NULL) {
        double got = json_is_boolean(value) ? (double)json_boolean_value(value) * want
                                            : json_number_value(value);
        assert_non_null(value);
        assert_true(got > want * (1 - 1e-8) && got < want * (1 + 1e-8));
    }
    if (figure->metric != NULL) {
        double got = metrics_text_value(metrics, sample);
        assert_true(got > want * (1 - 1e-8) && got < want * (1 + 1e-8));
    }
}

static void check_array(const sheaf__figure *figure, const both *b)
{
    const sheaf__dimension *one = figure->by[0], *two = figure->by[1];
    const uint64_t *at = sheaf__figure_at(figure, &b->f);
    json_t *object = field_of(b->root, figure->field);
    char sample[256];
    for (uint32_t i = 0; i < one->n; i++) {
        json_t *value = json_object_get(object, one->values[i]);
        if (two == NULL) {
            snprintf(sample, sizeof sample, "%s{%s=\"%s\"}", figure->metric, one->label,
                     one->values[i]);
            check_value(figure, at++, value, b->metrics, sample);
        }
        for (uint32_t k = 0; two != NULL && k < two->n; k++) {
            snprintf(sample, sizeof sample, "%s{%s=\"%s\",%s=\"%s\"}", figure->metric,
                     one->label, one->values[i], two->label, two->values[k]);
            check_value(figure, at++, json_object_get(value, two->values[k]), b->metrics,
                        sample);
        }
    }
}

static void check_histogram(const sheaf__figure *figure, const both *b)
{
    const sheaf__tally *tally = sheaf__figure_at(figure, &b->f);
    json_t *object = field_of(b->root, figure->field);
    char sample[256];
    uint32_t n_bounds;
    uint64_t n = 0, within = 0;
    const uint64_t *bounds = figure->bounds(figure->bounds_kind, &n_bounds);
    for (uint32_t i = 0; i <= SHEAF__MAX_BUCKETS; i++) n += tally->counts[i];
    for (uint32_t i = 0; i < n_bounds; i++) {
        within += tally->counts[i];
        snprintf(sample, sizeof sample, "%s_bucket{le=\"%.9g\"}", figure->metric,
                 (double)bounds[i] / (figure->kind == SHEAF__VALUE_NS ? 1e9 : 1));
        assert_true(metrics_text_value(b->metrics, sample) == (double)within);
    }
    snprintf(sample, sizeof sample, "%s_sum", figure->metric);
    check_value(figure, &tally->sum, json_object_get(object, "sum"), b->metrics, sample);
    assert_int_equal(json_integer_value(json_object_get(object, "count")), n);
}

static void check_told(const sheaf__figure *figure, void *arg)
{
    const both *b = arg;
    if (figure->type == SHEAF__FIGURE_HISTOGRAM)
        check_histogram(figure, b);
    else if (figure->by[0] != NULL)
        check_array(figure, b);
    else if (figure->kind == SHEAF__VALUE_TEXT)
        assert_string_equal(json_string_value(field_of(b->root, figure->field)), figure->field);
    else
        check_value(figure, sheaf__figure_at(figure, &b->f), field_of(b->root, figure->field),
                    b->metrics, figure->metric);
}

static void both_texts_tell_the_same(void **state)
{
    (void)state;
    both b = both_open(UINT32_MAX);
    for_each(check_told, &b);
    assert_non_null(strstr(b.metrics, "sheaf_info{version=\"version\",model=\"model\","
                                      "backend=\"backend\"} 1\n"));
    both_close(&b);
}

static void check_absent(const sheaf__figure *figure, void *arg)
{
    const both *b = arg;
    bool there = sheaf__figure_there(figure, &b->f);
    if (figure->field != NULL)
        assert_int_equal(field_of(b->root, figure->field) != NULL, there);
    if (figure->metric == NULL || figure->type == SHEAF__FIGURE_INFO) return;
    char head[256];
    snprintf(head, sizeof head, "# TYPE %s ", figure->metric);
    assert_int_equal(strstr(b->metrics, head) != NULL, there);
}

static void what_is_not_there_is_not_told(void **state)
{
    (void)state;
    for (uint32_t bit = 0; bit < 8; bit++) {
        both b = both_open(UINT32_MAX & ~(1u << bit));
        for_each(check_absent, &b);
        both_close(&b);
    }
    both b = both_open(0); /* while a model is loaded */
    for_each(check_absent, &b);
    assert_non_null(strstr(b.metrics, "sheaf_info{version=\"version\",model=\"model\"} 1\n"));
    both_close(&b);
}

static void a_name_cannot_break_the_texts(void **state)
{
    (void)state;
    sheaf__figures f = filled();
    f.model = "a \"b\" \\ c\nd \xc3\xa9 \xff rest";
    char *metrics = text_of(sheaf__figures_prometheus, &f);
    metrics_text_check(metrics);
    assert_non_null(strstr(metrics, "model=\"a \\\"b\\\" \\\\ c\\nd \xc3\xa9 \","));
    free(metrics);
    json_t *root = json_of(&f);
    assert_string_equal(json_string_value(field_of(root, "model")),
                        "a \"b\" \\ c\nd \xc3\xa9 ");
    json_decref(root);
}

/* ---- what is made of others -------------------------------------------------------------- */

static void rates_and_sums_follow_their_parts(void **state)
{
    (void)state;
    sheaf__figures f = {0};
    sheaf__figures_derive(&f);
    assert_true(f.hit_rate == 0 && f.token_hit_rate == 0 && f.fragmentation == 0 &&
                f.slab_occupancy == 0);
    assert_int_equal(f.has, 0);
    f.cache.lookups = 8, f.cache.hits = 6;
    f.cache.lookup_tokens = 1000, f.cache.hit_tokens = 250;
    for (uint32_t i = 0; i < SHEAF_LEFT_KINDS; i++) f.cache.evictions[i] = 1u << i;
    f.pool.slabs = 8, f.pool.slabs_least = 2;
    f.pool.blocks_capacity = 64, f.pool.blocks_held = 16;
    f.cache.last_refusal = SHEAF_REFUSED_PINS;
    sheaf__figures_derive(&f);
    assert_true(f.hit_rate == 0.75);
    assert_true(f.token_hit_rate == 0.25);
    assert_true(f.fragmentation == 0.75);
    assert_true(f.slab_occupancy == 0.25);
    assert_int_equal(f.evictions_lru, 1 + 2 + 8); /* capacity, entries, pressure */
    assert_int_equal(f.has, SHEAF__HAS_REFUSAL);
    assert_string_equal(f.last_refusal, "pins");
}

/* ---- documents --------------------------------------------------------------------------- */

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("%s cannot be read", path);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 20) - 1, file), 1, (1 << 20) - 2);
    fclose(file);
    return text;
}

static void put(sheaf__text *out, const char *text)
{
    assert_int_equal(sheaf__text_append(out, text, strlen(text)), SHEAF_OK);
}

/* A line of the document: | field | metric | type | unit | help | */
static void put_line(sheaf__text *out, const sheaf__figure *figure)
{
    static const char *const types[] = {"gauge", "counter", "histogram", "text"};
    char cell[256];
    if (figure->field != NULL)
        snprintf(cell, sizeof cell, "| `%s` | ", figure->field);
    else
        snprintf(cell, sizeof cell, "| | ");
    put(out, cell);
    if (figure->metric != NULL) {
        snprintf(cell, sizeof cell, "`%s`", figure->metric);
        put(out, cell);
    }
    if (figure->metric != NULL && figure->type == SHEAF__FIGURE_INFO) {
        snprintf(cell, sizeof cell, " `{%s}`", figure->field);
        put(out, cell);
    } else if (figure->by[0] != NULL) {
        snprintf(cell, sizeof cell, " `{%s%s%s}`", figure->by[0]->label,
                 figure->by[1] != NULL ? "," : "",
                 figure->by[1] != NULL ? figure->by[1]->label : "");
        put(out, cell);
    }
    snprintf(cell, sizeof cell, " | %s | %s | ", types[figure->type], figure->unit);
    put(out, cell);
    put(out, figure->help);
    for (uint32_t d = 0; d < 2 && figure->by[d] != NULL; d++) {
        snprintf(cell, sizeof cell, " %s:", figure->by[d]->label);
        put(out, cell);
        for (uint32_t i = 0; i < figure->by[d]->n; i++) {
            snprintf(cell, sizeof cell, "%s `%s`", i != 0 ? "," : "", figure->by[d]->values[i]);
            put(out, cell);
        }
        put(out, ".");
    }
    put(out, " |\n");
}

static void put_table(sheaf__text *out, const sheaf__figure_section *section)
{
    put(out, "| field | metric | type | unit | what it is |\n|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < section->n; i++) put_line(out, &section->figures[i]);
}

static const sheaf__figure_section *section_of(const char *line, size_t n)
{
    for (uint32_t s = 0; s < sheaf__n_figure_sections; s++) {
        const char *title = sheaf__figure_sections[s].title;
        if (n == strlen(title) + 3 && memcmp(line, "## ", 3) == 0 &&
            memcmp(line + 3, title, n - 3) == 0)
            return &sheaf__figure_sections[s];
    }
    return NULL;
}

/* The document with its tables as they should be. */
static void the_document_has_the_tables_lines(void **state)
{
    (void)state;
    char *document = read_file(DOCUMENT);
    sheaf__text wanted = {0};
    const sheaf__figure_section *section = NULL;
    uint32_t n_tables = 0;
    for (const char *line = document, *end; *line != 0; line = end + 1) {
        end = strchr(line, '\n');
        assert_non_null(end);
        if (memcmp(line, "## ", 3) == 0) section = section_of(line, (size_t)(end - line));
        bool in_table = section != NULL && line[0] == '|';
        if (in_table && memcmp(line, "| field ", 8) == 0) {
            put_table(&wanted, section);
            n_tables++;
        } else if (!in_table) {
            assert_int_equal(sheaf__text_append(&wanted, line, (uint64_t)(end - line) + 1),
                             SHEAF_OK);
        }
    }
    assert_int_equal(n_tables, sheaf__n_figure_sections);
    if (getenv("SHEAF_WRITE_STATISTICS") != NULL) {
        FILE *file = fopen(DOCUMENT, "wb");
        assert_non_null(file);
        fputs(wanted.data, file);
        fclose(file);
    } else if (strcmp(wanted.data, document) != 0) {
        fail_msg("%s is not as the table: SHEAF_WRITE_STATISTICS=1 writes it", DOCUMENT);
    }
    sheaf__text_free(&wanted);
    free(document);
}

typedef struct search {
    const char *name;
    size_t n;
    bool found;
} search;

static void look_for(const sheaf__figure *figure, void *arg)
{
    static const char *const parts[] = {"", "_bucket", "_sum", "_count"};
    search *s = arg;
    char name[256];
    if (figure->metric == NULL) return;
    bool histogram = figure->type == SHEAF__FIGURE_HISTOGRAM;
    for (uint32_t i = 0; i < (histogram ? 4 : 1); i++) {
        snprintf(name, sizeof name, "%s%s", figure->metric, parts[i]);
        s->found |= strlen(name) == s->n && memcmp(name, s->name, s->n) == 0;
    }
}

/* Every word of a file that begins like a metric is one. Returns how many there are. */
static uint32_t check_words(const char *path)
{
    uint32_t n_words = 0;
    char *text = read_file(path);
    for (char *at = text; (at = strstr(at, "sheaf_")) != NULL; n_words++) {
        search s = {.name = at, .n = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_")};
        for_each(look_for, &s);
        if (!s.found) fail_msg("%s: %.*s is no metric", path, (int)s.n, at);
        at += s.n;
    }
    free(text);
    return n_words;
}

static void every_metric_that_is_named_exists(void **state)
{
    (void)state;
    assert_true(check_words(DOCUMENT) > 80);
    assert_true(check_words(DASHBOARD) > 30);
}

static void the_dashboard_is_json_with_a_query_in_each_panel(void **state)
{
    (void)state;
    json_t *root = json_load_file(DASHBOARD, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(root));
    size_t i, k;
    json_t *panel, *target, *panels = json_object_get(root, "panels");
    assert_true(json_array_size(panels) >= 12);
    json_array_foreach(panels, i, panel)
    {
        json_t *targets = json_object_get(panel, "targets");
        if (strcmp(json_string_value(json_object_get(panel, "type")), "row") == 0) continue;
        assert_true(json_array_size(targets) > 0);
        assert_non_null(json_object_get(panel, "title"));
        json_array_foreach(targets, k, target) assert_non_null(
            strstr(json_string_value(json_object_get(target, "expr")), "sheaf_"));
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_name_is_there_twice),
        cmocka_unit_test(every_figure_says_what_it_is),
        cmocka_unit_test(the_ledger_is_told_whole),
        cmocka_unit_test(both_texts_tell_the_same),
        cmocka_unit_test(what_is_not_there_is_not_told),
        cmocka_unit_test(a_name_cannot_break_the_texts),
        cmocka_unit_test(rates_and_sums_follow_their_parts),
        cmocka_unit_test(the_document_has_the_tables_lines),
        cmocka_unit_test(every_metric_that_is_named_exists),
        cmocka_unit_test(the_dashboard_is_json_with_a_query_in_each_panel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
