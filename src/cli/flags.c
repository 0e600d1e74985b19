/* cli/flags.c - command-line flags from a table, and their environment variables. */
#include "cli/flags.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_VALUE  256 /* getopt's return value of --help; flag i returns HELP_VALUE + 1 + i */
#define HELP_COLUMN 27  /* of a flag's help, where none is longer */
#define HELP_LEFT   64
#define PREFIX      "SHEAF_" /* of the environment's variables */

extern char **environ;

sheaf__flag *sheaf__flags_add(sheaf__flags *flags, uint32_t kind, const char *spec, void *value,
                              const char *help)
{
    SHEAF__ASSERT(flags->n < SHEAF__MAX_FLAGS);
    sheaf__flag *flag = &flags->at[flags->n++];
    size_t n = strcspn(spec, ",=");
    snprintf(flag->name, sizeof flag->name, "%.*s", (int)n, spec);
    if (spec[n] == ',') {
        flag->letter = spec[n + 1];
        n += 2;
    }
    if (spec[n] == '=') flag->metavar = spec + n + 1;
    flag->kind = kind;
    flag->value = value;
    flag->help = help;
    return flag;
}

void sheaf__flag_range(sheaf__flag *flag, double min, double max)
{
    flag->min = min;
    flag->max = max;
}

void sheaf__flag_choices(sheaf__flag *flag, const char *const *choices)
{
    for (uint32_t i = 0; i < SHEAF__MAX_CHOICES && choices[i] != NULL; i++)
        flag->choices[i] = choices[i];
}

void sheaf__flags_word(sheaf__flags *flags, const char *name, const char **value)
{
    SHEAF__ASSERT(flags->n_words < SHEAF__MAX_WORDS);
    flags->words[flags->n_words].name = name;
    flags->words[flags->n_words++].value = value;
}

/* ---- names -------------------------------------------------------------------------------- */

/* "max-queue": SHEAF_MAX_QUEUE. */
static void name_variable(const sheaf__flag *flag, char out[static SHEAF__FLAG_LABEL])
{
    char *at = out + sprintf(out, PREFIX);
    for (const char *c = flag->name; *c != 0; c++)
        *at++ = (char)(*c == '-' ? '_' : *c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c);
    *at = 0;
}

static const char *label_of(const sheaf__flag *flag, char out[static SHEAF__FLAG_LABEL])
{
    if (flag->given == SHEAF__GIVEN_ENVIRONMENT)
        name_variable(flag, out);
    else
        snprintf(out, SHEAF__FLAG_LABEL, "--%s", flag->name);
    return out;
}

const char *sheaf__flag_given(const sheaf__flags *flags, const char *name,
                              char label[static SHEAF__FLAG_LABEL])
{
    for (uint32_t i = 0; i < flags->n; i++)
        if (strcmp(flags->at[i].name, name) == 0)
            return flags->at[i].given ? label_of(&flags->at[i], label) : NULL;
    return NULL;
}

/* ---- values ------------------------------------------------------------------------------- */

static sheaf_status refuse(sheaf_error *err, const sheaf__flag *flag, const char *text,
                           const char *wanted)
{
    char label[SHEAF__FLAG_LABEL];
    return sheaf__error_set(err, SHEAF_E_USAGE, "%s: '%.80s' is not %s", label_of(flag, label),
                            text, wanted);
}

static sheaf_status parse_whole(const sheaf__flag *flag, const char *text, uint64_t max,
                                uint64_t *out, sheaf_error *err)
{
    char wanted[96], *end = NULL;
    bool ranged = flag->min != 0 || flag->max != 0;
    uint64_t low = ranged ? (uint64_t)flag->min : 0, high = ranged ? (uint64_t)flag->max : max;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || value < low ||
        value > high) {
        snprintf(wanted, sizeof wanted, "a whole number from %llu to %llu",
                 (unsigned long long)low, (unsigned long long)high);
        return refuse(err, flag, text, wanted);
    }
    *out = value;
    return SHEAF_OK;
}

static sheaf_status parse_number(const sheaf__flag *flag, const char *text, float *out,
                                 sheaf_error *err)
{
    char wanted[96], *end = NULL;
    double value = strtod(text, &end);
    bool plain = text[strspn(text, "0123456789.eE+-")] == 0; /* no blanks, no hexadecimal */
    if (!plain || end == text || *end != 0 || !isfinite(value) || value < flag->min ||
        value > flag->max) {
        snprintf(wanted, sizeof wanted, "a number from %g to %g", flag->min, flag->max);
        return refuse(err, flag, text, wanted);
    }
    *out = (float)value;
    return SHEAF_OK;
}

static sheaf_status parse_bytes(const sheaf__flag *flag, const char *text, uint64_t *out,
                                sheaf_error *err)
{
    static const struct {
        const char *suffix;
        unsigned shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    char *end = NULL;
    const uint64_t most = UINT64_MAX - SHEAF__MAX_CHOICES; /* beyond it words are */
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && errno == 0 && value >= (uint64_t)flag->min)
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
            if (strcmp(end, units[i].suffix) == 0 && value <= most >> units[i].shift) {
                *out = (uint64_t)value << units[i].shift;
                return SHEAF_OK;
            }
    char wanted[160];
    snprintf(wanted, sizeof wanted,
             "a number of bytes%s, with KiB, MiB, GiB or TiB after it or nothing",
             flag->min > 0 ? " from 1" : "");
    for (uint32_t i = 0; flag->choices[i] != NULL; i++) {
        if (strcmp(flag->choices[i], text) == 0) {
            *out = UINT64_MAX - i;
            return SHEAF_OK;
        }
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, ", or %s", flag->choices[i]);
    }
    return refuse(err, flag, text, wanted);
}

static sheaf_status parse_choice(const sheaf__flag *flag, const char *text, sheaf_error *err)
{
    char wanted[96] = "one of";
    for (uint32_t i = 0; flag->choices[i] != NULL; i++) {
        if (strcmp(flag->choices[i], text) == 0) {
            *(uint32_t *)flag->value = i;
            return SHEAF_OK;
        }
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, " %s", flag->choices[i]);
    }
    return refuse(err, flag, text, wanted);
}

sheaf_status sheaf__flag_list_add(sheaf__flag_list *list, const char *text, uint64_t n)
{
    char **at = realloc(list->at, (list->n + 1) * sizeof *at);
    if (at != NULL) list->at = at;
    char *copy = at != NULL ? strndup(text, n) : NULL;
    if (copy == NULL) return SHEAF_E_NO_MEMORY;
    list->at[list->n++] = copy;
    return SHEAF_OK;
}

void sheaf__flag_list_free(sheaf__flag_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) free(list->at[i]);
    free(list->at);
    *list = (sheaf__flag_list){0};
}

static sheaf_status parse_list(const sheaf__flag *flag, const char *text, sheaf_error *err)
{
    char label[SHEAF__FLAG_LABEL];
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (n == 0) /* the value may be a secret: it is not shown */
            return sheaf__error_set(err, SHEAF_E_USAGE, "%s: nothing where %s should be",
                                    label_of(flag, label), flag->metavar);
        SHEAF__TRY(sheaf__flag_list_add(flag->value, at, n));
        at += n;
        if (*at == 0) return SHEAF_OK;
    }
}

static sheaf_status parse_switch(const sheaf__flag *flag, const char *text, sheaf_error *err)
{
    if (text == NULL || strcmp(text, "1") == 0)
        *(bool *)flag->value = true;
    else if (strcmp(text, "0") != 0)
        return refuse(err, flag, text, "1 or 0");
    return SHEAF_OK;
}

static sheaf_status parse_value(const sheaf__flag *flag, const char *text, sheaf_error *err)
{
    uint64_t whole;
    switch (flag->kind) {
    case SHEAF__FLAG_SWITCH: return parse_switch(flag, text, err);
    case SHEAF__FLAG_LIST: return parse_list(flag, text, err);
    case SHEAF__FLAG_TEXT: *(const char **)flag->value = text; return SHEAF_OK;
    case SHEAF__FLAG_U32:
        SHEAF__TRY(parse_whole(flag, text, UINT32_MAX, &whole, err));
        *(uint32_t *)flag->value = (uint32_t)whole;
        return SHEAF_OK;
    case SHEAF__FLAG_U64: return parse_whole(flag, text, UINT64_MAX, flag->value, err);
    case SHEAF__FLAG_F32: return parse_number(flag, text, flag->value, err);
    case SHEAF__FLAG_BYTES: return parse_bytes(flag, text, flag->value, err);
    default: return parse_choice(flag, text, err);
    }
}

/* ---- help --------------------------------------------------------------------------------- */

static void write_left(const sheaf__flag *flag, char out[static HELP_LEFT])
{
    char letter[8] = "    ";
    if (flag->letter) snprintf(letter, sizeof letter, "-%c, ", flag->letter);
    snprintf(out, HELP_LEFT, "  %s--%s%s%s", letter, flag->name, flag->metavar ? " " : "",
             flag->metavar ? flag->metavar : "");
}

static void print_help(const sheaf__command *command, const sheaf__flags *flags)
{
    char left[HELP_LEFT];
    size_t column = HELP_COLUMN;
    for (uint32_t i = 0; i < flags->n; i++) {
        write_left(&flags->at[i], left);
        if (strlen(left) > column) column = strlen(left);
    }
    printf("usage: sheaf %s %s\n\n%s\n\n", command->name, command->arguments, command->summary);
    for (uint32_t i = 0; i < flags->n; i++) {
        const sheaf__flag *flag = &flags->at[i];
        write_left(flag, left);
        printf("%-*s %s", (int)column, left, flag->help);
        for (uint32_t c = 0; flag->choices[c] != NULL; c++)
            printf("%s%s", c == 0 ? ": " : ", ", flag->choices[c]);
        printf("\n");
    }
    printf("%-*s show this and stop\n", (int)column, "  -h, --help");
    if (command->details != NULL) printf("\n%s", command->details);
    if (command->environment)
        printf("\nEach flag has an environment variable, which it beats: " PREFIX
               " and its name in capitals, _ for -;\n1 or 0 for one without a value. "
               "--ctx-size is " PREFIX "CTX_SIZE.\n");
}

/* ---- the command line ---------------------------------------------------------------------- */

/* getopt's tables. letters: 2 characters a flag, and ":h". */
static void fill_getopt(const sheaf__flags *flags, struct option *options, char *letters)
{
    char *at = letters + sprintf(letters, ":h");
    for (uint32_t i = 0; i < flags->n; i++) {
        const sheaf__flag *flag = &flags->at[i];
        int has_value = flag->kind == SHEAF__FLAG_SWITCH ? no_argument : required_argument;
        options[i] = (struct option){flag->name, has_value, NULL, HELP_VALUE + 1 + (int)i};
        if (flag->letter) at += sprintf(at, "%c%s", flag->letter, has_value ? ":" : "");
    }
    options[flags->n] = (struct option){"help", no_argument, NULL, HELP_VALUE};
}

static sheaf__flag *find_flag(sheaf__flags *flags, int got)
{
    if (got > HELP_VALUE) return &flags->at[got - HELP_VALUE - 1];
    uint32_t i = 0;
    while (flags->at[i].letter != got) i++;
    return &flags->at[i];
}

/* What getopt says is wrong: `got` is '?' or ':'. */
static sheaf_status refuse_flag(int got, char **argv, sheaf_error *err)
{
    bool letter = optopt > 0 && optopt < HELP_VALUE; /* maybe one of a bundle */
    char name[4] = {'-', (char)optopt, 0};
    const char *why = "no such flag, or not unique";
    if (got == ':')
        why = "needs a value";
    else if (optopt >= HELP_VALUE)
        why = "takes no value";
    return sheaf__error_set(err, SHEAF_E_USAGE, "%.120s: %s", letter ? name : argv[optind - 1],
                            why);
}

static sheaf_status take_words(const sheaf__command *command, const sheaf__flags *flags,
                               int argc, char **argv, sheaf_error *err)
{
    for (uint32_t i = 0; i < flags->n_words; i++) {
        if (optind == argc)
            return sheaf__error_set(err, SHEAF_E_USAGE, "%s is missing; usage: sheaf %s %s",
                                    flags->words[i].name, command->name, command->arguments);
        *flags->words[i].value = argv[optind++];
    }
    if (optind < argc)
        return sheaf__error_set(err, SHEAF_E_USAGE, "'%.120s': unexpected argument",
                                argv[optind]);
    return SHEAF_OK;
}

/* Of flags that the command line does not give. */
static sheaf_status take_environment(sheaf__flags *flags, sheaf_error *err)
{
    char name[SHEAF__FLAG_LABEL];
    for (uint32_t i = 0; i < flags->n; i++) {
        sheaf__flag *flag = &flags->at[i];
        name_variable(flag, name);
        const char *text = getenv(name);
        if (text == NULL || flag->given != SHEAF__GIVEN_NOT) continue;
        flag->given = SHEAF__GIVEN_ENVIRONMENT;
        SHEAF__TRY(parse_value(flag, text, err));
    }
    return SHEAF_OK;
}

sheaf_status sheaf__flags_parse(const sheaf__command *command, sheaf__flags *flags, int argc,
                                char **argv, bool *done, sheaf_error *err)
{
    struct option options[SHEAF__MAX_FLAGS + 2] = {{0}};
    char letters[2 * SHEAF__MAX_FLAGS + 4];
    fill_getopt(flags, options, letters);
    optind = 1;
    opterr = 0;
    int got;
    while ((got = getopt_long(argc, argv, letters, options, NULL)) != -1) {
        if (got == HELP_VALUE || got == 'h') {
            print_help(command, flags);
            *done = true;
            return SHEAF_OK;
        }
        if (got == '?' || got == ':') return refuse_flag(got, argv, err);
        sheaf__flag *flag = find_flag(flags, got);
        flag->given = SHEAF__GIVEN_FLAG;
        SHEAF__TRY(parse_value(flag, optarg, err));
    }
    SHEAF__TRY(take_words(command, flags, argc, argv, err));
    return command->environment ? take_environment(flags, err) : SHEAF_OK;
}

void sheaf__flags_unknown(const sheaf__flags *flags, void (*fn)(void *ctx, const char *name),
                          void *ctx)
{
    for (char **at = environ; *at != NULL; at++) {
        char found[64], name[SHEAF__FLAG_LABEL];
        if (strncmp(*at, PREFIX, strlen(PREFIX)) != 0) continue;
        snprintf(found, sizeof found, "%.*s", (int)strcspn(*at, "="), *at);
        uint32_t i = 0;
        for (; i < flags->n; i++) {
            name_variable(&flags->at[i], name);
            if (strcmp(name, found) == 0) break;
        }
        if (i == flags->n) fn(ctx, found);
    }
}
