/* cli/flags.h - command-line flags from a table, and their environment variables.
 *
 * Owns: parsing (over getopt_long), range checks, the sentence for each bad value, and the help text:
 * all three come from the same table, so they cannot differ. Where a command says so, each flag has an
 * environment variable of its name, "--max-queue" that of SHEAF_MAX_QUEUE, with the same values; a
 * switch's is 1 or 0. What the command line gives beats the environment.
 */
#ifndef SHEAF_CLI_FLAGS_H
#define SHEAF_CLI_FLAGS_H

#include <stdbool.h>

#include "base/status.h"

enum {
    SHEAF__FLAG_SWITCH = 0, /* bool: set to true */
    SHEAF__FLAG_TEXT = 1,   /* const char *: points into argv */
    SHEAF__FLAG_U32 = 2,    /* uint32_t, min to max */
    SHEAF__FLAG_U64 = 3,    /* uint64_t */
    SHEAF__FLAG_F32 = 4,    /* float, min to max */
    SHEAF__FLAG_BYTES =
        5, /* uint64_t with an optional suffix KiB to TiB; choice i: UINT64_MAX - i */
    SHEAF__FLAG_CHOICE = 6, /* uint32_t: index into choices */
    SHEAF__FLAG_LIST = 7    /* sheaf__flag_list: what is between commas; each use adds */
};

#define SHEAF__MAX_FLAGS   64
#define SHEAF__MAX_CHOICES 5
#define SHEAF__MAX_WORDS   2

/* Texts that one flag was given. Starts from zero. */
typedef struct sheaf__flag_list {
    char **at; /* [n] */
    uint32_t n;
} sheaf__flag_list;

enum { SHEAF__GIVEN_NOT = 0, SHEAF__GIVEN_FLAG = 1, SHEAF__GIVEN_ENVIRONMENT = 2 };

typedef struct sheaf__flag {
    char name[32];       /* without dashes */
    char letter;         /* 0: none */
    const char *metavar; /* null for a switch */
    uint32_t kind;
    const char *help;
    void *value;                                 /* written when the flag is given */
    uint32_t given;                              /* SHEAF__GIVEN_... */
    double min, max;                             /* both 0: any; of BYTES min alone, 0 or 1 */
    const char *choices[SHEAF__MAX_CHOICES + 1]; /* null-terminated */
} sheaf__flag;

/* A table of flags; starts from zero. */
typedef struct sheaf__flags {
    uint32_t n;
    sheaf__flag at[SHEAF__MAX_FLAGS];
    uint32_t n_words;
    struct {
        const char *name;
        const char **value;
    } words[SHEAF__MAX_WORDS];
} sheaf__flags;

/* Adds a flag. spec: "name", "name,l" (a letter), either with "=METAVAR" unless it is a switch. Returns
 * it for sheaf__flag_range or its choices. */
sheaf__flag *sheaf__flags_add(sheaf__flags *flags, uint32_t kind, const char *spec, void *value,
                              const char *help);
void sheaf__flag_range(sheaf__flag *flag, double min, double max);

/* Adds a text to a list: a copy. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__flag_list_add(sheaf__flag_list *list, const char *text, uint64_t n);
void sheaf__flag_list_free(sheaf__flag_list *list);

/* choices: up to SHEAF__MAX_CHOICES texts, and a null where they are fewer. */
void sheaf__flag_choices(sheaf__flag *flag, const char *const *choices);

/* Asks for a word without dashes, after those asked for before; all must be given. `name` stands for
 * it in sentences. Points into argv. */
void sheaf__flags_word(sheaf__flags *flags, const char *name, const char **value);

/* A subcommand: `sheaf NAME`. */
typedef struct sheaf__command {
    const char *name;
    const char *arguments; /* after the name in the usage line */
    const char *summary;
    const char *details; /* after the flags; may be null */
    int (*run)(int argc, char **argv);
    bool environment; /* each flag has a variable */
} sheaf__command;

/* Parses argv against the table, then the environment where the command has one. On --help prints the
 * help to standard output and sets *done. Words that no one asked for are refused. SHEAF_E_USAGE: `err`
 * holds the sentence, which names the flag or the variable. SHEAF_E_NO_MEMORY: of a list. */
sheaf_status sheaf__flags_parse(const sheaf__command *command, sheaf__flags *flags, int argc,
                                char **argv, bool *done, sheaf_error *err);

/* What the user gave, "--max-queue" or "SHEAF_MAX_QUEUE", as sentences name it. Null: nothing. */
#define SHEAF__FLAG_LABEL 48
const char *sheaf__flag_given(const sheaf__flags *flags, const char *name,
                              char label[static SHEAF__FLAG_LABEL]);

/* Calls fn with each variable's name that begins as a flag's would and is none's. */
void sheaf__flags_unknown(const sheaf__flags *flags, void (*fn)(void *ctx, const char *name),
                          void *ctx);

#endif
