/* cli/main.c - the program: a table of subcommands. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static const sheaf__command *const commands[] = {
    &sheaf__command_run,
    &sheaf__command_tokenize,
    &sheaf__command_demo,
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_usage(FILE *out)
{
    fprintf(out, "usage: sheaf COMMAND [flags]\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\nflags:\n  -h, --help     show this and stop\n"
                 "      --version  show the version and the instruction set in use\n\n"
                 "`sheaf COMMAND --help` shows a command's flags.\n");
}

int sheaf__cli_fail(const char *name, sheaf_status status, const sheaf_error *err)
{
    const char *text = err != NULL && err->text[0] != 0 ? err->text : sheaf_status_text(status);
    fprintf(stderr, "sheaf %s: %s\n", name, text);
    return status == SHEAF_E_USAGE ? SHEAF__EXIT_USAGE : SHEAF__EXIT_FAILED;
}

sheaf_status sheaf__cli_flush(sheaf_error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_IO, "standard output: %s", strerror(errno));
}

sheaf_status sheaf__cli_read_all(int fd, const char *name, sheaf__text *out, sheaf_error *err)
{
    char buffer[65536];
    for (;;) {
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got == 0) return SHEAF_OK;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", name, strerror(errno));
        SHEAF__TRY(sheaf__text_append(out, buffer, (uint64_t)got));
    }
}

void sheaf__model_flags_add(sheaf__model_flags *values, sheaf__flag *flags, uint32_t *n)
{
    const sheaf__flag all[SHEAF__N_MODEL_FLAGS] = {
        {"model",
         'm',
         SHEAF__FLAG_TEXT,
         "DIR",
         "Hugging Face directory, or random:NAME[:layers=N]",
         &values->path,
         0,
         0,
         {0},
         NULL},
        {"threads",
         't',
         SHEAF__FLAG_U32,
         "N",
         "threads that compute (default: one a processor)",
         &values->n_threads,
         1,
         256,
         {0},
         NULL},
        {"isa",
         0,
         SHEAF__FLAG_CHOICE,
         "SET",
         "instruction set of the kernels",
         &values->isa,
         0,
         0,
         {"auto", "scalar", "avx2", "avx512", "neon"},
         NULL},
        {"kv-backend",
         0,
         SHEAF__FLAG_CHOICE,
         "KIND",
         "where K and V live",
         &values->kv_backend,
         0,
         0,
         {"paged", "dense"},
         NULL},
        {"kv-dtype",
         0,
         SHEAF__FLAG_CHOICE,
         "TYPE",
         "how K and V are stored (default bf16)",
         &values->kv_dtype,
         0,
         0,
         {"f32", "f16", "bf16"},
         NULL},
        {"attn",
         0,
         SHEAF__FLAG_CHOICE,
         "PATH",
         "attention path",
         &values->attn_path,
         0,
         0,
         {"fused", "gather", "reference"},
         NULL},
        {"ctx-size",
         'c',
         SHEAF__FLAG_U32,
         "N",
         "positions a sequence may have (default: the model's)",
         &values->ctx_size,
         1,
         1 << 24,
         {0},
         NULL},
        {"prefill-chunk",
         0,
         SHEAF__FLAG_U32,
         "N",
         "tokens of a prompt run at once (default 512)",
         &values->prefill_chunk,
         1,
         1 << 16,
         {0},
         NULL},
        {"kv-budget",
         0,
         SHEAF__FLAG_BYTES,
         "BYTES",
         "memory for K and V (default: the machine's)",
         &values->kv_budget_bytes,
         0,
         0,
         {0},
         NULL},
        {"copy-weights",
         0,
         SHEAF__FLAG_SWITCH,
         NULL,
         "copy the weights into huge pages",
         &values->copy_weights,
         0,
         0,
         {0},
         NULL},
    };
    memcpy(flags + *n, all, sizeof all);
    *n += SHEAF__N_MODEL_FLAGS;
}

sheaf__model_options sheaf__model_flags_options(const sheaf__model_flags *values,
                                                sheaf__progress *progress)
{
    return (sheaf__model_options){
        .n_threads = values->n_threads,
        .isa = values->isa,
        .kv_backend = values->kv_backend,
        .codec_k = values->kv_dtype,
        .codec_v = values->kv_dtype,
        .attn_path = values->attn_path,
        .ctx_size = values->ctx_size,
        .prefill_chunk = values->prefill_chunk,
        .kv_budget_bytes = values->kv_budget_bytes,
        .copy_weights = values->copy_weights,
        .progress = sheaf__progress_report,
        .progress_ctx = progress,
    };
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a sentence, not a silent death */
    if (argc < 2) {
        print_usage(stderr);
        return SHEAF__EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        sheaf_error err = {0};
        sheaf_status status = sheaf__cli_flush(&err);
        return status == SHEAF_OK ? 0 : sheaf__cli_fail("help", status, &err);
    }
    if (strcmp(name, "--version") == 0) {
        printf("sheaf %s, instruction set %s\n", sheaf_version(),
               sheaf_isa_name(sheaf_isa_best()));
        return fflush(stdout) == 0 ? 0 : SHEAF__EXIT_FAILED;
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i]->run(argc - 1, argv + 1);
    fprintf(stderr, "sheaf: '%.80s': no such command; `sheaf --help` lists them\n", name);
    return SHEAF__EXIT_USAGE;
}
