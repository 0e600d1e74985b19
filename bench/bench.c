/* bench/bench.c - options, head and tables of a bench. */
#include "bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_WIDTH   40
#define COLUMN_WIDTH 18

static void read_line(FILE *from, char *line, size_t size)
{
    line[0] = '\0';
    if (from == NULL || fgets(line, (int)size, from) == NULL) return;
    line[strcspn(line, "\n")] = '\0';
}

static void read_cpu_model(char *model, size_t size)
{
    snprintf(model, size, "unknown processor");
    FILE *info = fopen("/proc/cpuinfo", "r");
    if (info == NULL) return;
    char line[256];
    while (fgets(line, sizeof line, info) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(model, size, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    fclose(info);
}

/* The checkout that the bench is run in, with "+" after it when files differ from it. */
static void read_commit(char *commit, size_t size)
{
    char hash[64], change[64];
    FILE *git = popen("git rev-parse --short=12 HEAD 2>/dev/null", "r");
    read_line(git, hash, sizeof hash);
    if (git != NULL) pclose(git);
    git = popen("git status --porcelain --untracked-files=no 2>/dev/null", "r");
    read_line(git, change, sizeof change);
    if (git != NULL) pclose(git);
    snprintf(commit, size, "%s%s", hash[0] ? hash : "unknown", change[0] ? "+" : "");
}

/* A field of a JSON object: `before`, then the text as a string. */
static void write_field(FILE *to, const char *before, const char *text)
{
    fprintf(to, "%s\"", before);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            fprintf(to, "\\u%04x", (unsigned)*c);
        else
            putc(*c, to);
    }
    putc('"', to);
}

/* Whether the column's title says what the number is. */
static bool is_bare(const bench_column *column)
{
    return strcmp(column->unit, "ratio") == 0 || strcmp(column->unit, "times") == 0;
}

static void write_value(FILE *to, const bench *b, const char *name, const bench_column *column,
                        double value)
{
    char unit[128];
    if (is_bare(column))
        snprintf(unit, sizeof unit, "%s", column->title);
    else
        snprintf(unit, sizeof unit, "%s%s%s", column->unit,
                 column->unit[0] && column->title[0] ? ", " : "", column->title);
    write_field(to, "{\"bench\":", b->name);
    write_field(to, ",\"case\":", name);
    fprintf(to, ",\"value\":%.9g", value);
    write_field(to, ",\"unit\":", unit);
    fprintf(to, "}\n");
    fflush(to);
}

static void print_head(const bench *b, const char *question)
{
    char model[128], commit[80], command[512] = "";
    read_cpu_model(model, sizeof model);
    read_commit(commit, sizeof commit);
    for (int i = 0; i < b->argc; i++) {
        size_t used = strlen(command);
        snprintf(command + used, sizeof command - used, "%s%s", i ? " " : "", b->argv[i]);
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t threads = sheaf_threads_count(b->threads);
    FILE *to = b->json ? stderr : stdout;
    fprintf(to, "bench    %s: %s\n", b->name, question);
    fprintf(to, "machine  %s, %ld cores, %s; %u threads\n", model, cores,
            sheaf_isa_name(b->isa), threads);
    fprintf(to, "commit   %s\ncommand  %s\n", commit, command);
    fflush(to);
}

const char *bench_option_text(bench *b, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < b->argc; i++) {
        if (strcmp(b->argv[i], name) != 0) continue;
        b->used[i] = b->used[i + 1] = true;
        return b->argv[i + 1];
    }
    return otherwise;
}

bool bench_option_flag(bench *b, const char *name)
{
    for (int i = 1; i < b->argc; i++) {
        if (strcmp(b->argv[i], name) != 0) continue;
        b->used[i] = true;
        return true;
    }
    return false;
}

uint32_t bench_option_u32(bench *b, const char *name, uint32_t otherwise)
{
    const char *text = bench_option_text(b, name, NULL);
    if (text == NULL) return otherwise;
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || value > UINT32_MAX) {
        fprintf(stderr, "bench_%s: %s wants a number, not \"%s\"\n", b->name, name, text);
        exit(2);
    }
    return (uint32_t)value;
}

bool bench_begin(bench *b, const char *name, const char *question, int argc, char **argv)
{
    *b = (bench){.name = name, .argc = argc, .argv = argv, .isa = sheaf_isa_best()};
    if (argc > BENCH_MAX_ARGS) {
        fprintf(stderr, "bench_%s: too many arguments\n", name);
        return false;
    }
    b->json = bench_option_flag(b, "--json");
    b->tiny = bench_option_flag(b, "--tiny");
    b->quick = bench_option_flag(b, "--quick") || b->tiny;
    const char *save = bench_option_text(b, "--save", NULL);
    if (save != NULL && (b->save = fopen(save, "w")) == NULL) {
        fprintf(stderr, "bench_%s: %s cannot be written\n", name, save);
        return false;
    }
    sheaf_status status =
        sheaf_threads_create(bench_option_u32(b, "--threads", 0), &b->threads);
    if (status != SHEAF_OK) {
        fprintf(stderr, "bench_%s: threads: %s\n", name, sheaf_status_text(status));
        return false;
    }
    if (!bench_option_flag(b, "--no-head"))
        print_head(b, question); /* a bench's own children */
    return true;
}

int bench_end(bench *b)
{
    int code = 0;
    for (int i = 1; i < b->argc; i++) {
        if (b->used[i]) continue;
        fprintf(stderr, "bench_%s: argument \"%s\" was not understood\n", b->name, b->argv[i]);
        code = 2;
    }
    if (b->save != NULL && fclose(b->save) != 0) {
        fprintf(stderr, "bench_%s: what was measured cannot be saved\n", b->name);
        code = 1;
    }
    bench_unmap(b->memory, b->memory_bytes);
    sheaf_threads_destroy(b->threads);
    return code;
}

void bench_table(bench *b, const bench_column *columns, uint32_t n_columns)
{
    b->columns = columns;
    b->n_columns = n_columns < BENCH_MAX_COLUMNS ? n_columns : BENCH_MAX_COLUMNS;
    if (b->json) return;
    printf("\n%-*s", NAME_WIDTH, "");
    for (uint32_t i = 0; i < b->n_columns; i++) printf(" %*s", COLUMN_WIDTH, columns[i].title);
    printf("\n%-*s", NAME_WIDTH, "case");
    for (uint32_t i = 0; i < b->n_columns; i++) printf(" %*s", COLUMN_WIDTH, columns[i].unit);
    printf("\n");
    fflush(stdout);
}

static void print_cell(double value)
{
    if (isnan(value))
        printf(" %*s", COLUMN_WIDTH, "-");
    else
        printf(" %*.*f", COLUMN_WIDTH,
               fabs(value) < 10     ? 3
               : fabs(value) < 1000 ? 1
                                    : 0,
               value);
}

void bench_row(bench *b, const char *name, ...)
{
    va_list values;
    va_start(values, name);
    if (!b->json) printf("%-*s", NAME_WIDTH, name);
    for (uint32_t i = 0; i < b->n_columns; i++) {
        double value = va_arg(values, double);
        if (!b->json) print_cell(value);
        if (isnan(value)) continue;
        if (b->json) write_value(stdout, b, name, &b->columns[i], value);
        if (b->save != NULL) write_value(b->save, b, name, &b->columns[i], value);
    }
    va_end(values);
    if (!b->json) printf("\n");
    fflush(stdout);
}

uint64_t bench_size(const bench *b, uint64_t usual, uint64_t quick, uint64_t tiny)
{
    return b->tiny ? tiny : b->quick ? quick : usual;
}

void bench_note(bench *b, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(b->json ? stderr : stdout, "%s\n", text);
    fflush(stdout);
}
