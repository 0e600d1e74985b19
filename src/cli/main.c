/* cli/main.c - the program: a table of subcommands. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static const sheaf__command *const commands[] = {
    &sheaf__command_run,     &sheaf__command_chat,     &sheaf__command_serve,
    &sheaf__command_inspect, &sheaf__command_tokenize, &sheaf__command_kv,
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
        if (out->n > SHEAF__MAX_TEXT_BYTES - (uint64_t)got)
            return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: over %u MiB, the most allowed",
                                    name, SHEAF__MAX_TEXT_BYTES >> 20);
        SHEAF__TRY(sheaf__text_append(out, buffer, (uint64_t)got));
    }
}

void sheaf__kv_dtype_flags_add(sheaf__kv_dtypes *values, sheaf__flags *flags)
{
    /* in the order of SHEAF_CODEC_... */
    static const char *const codecs[] = {"f32", "f16", "bf16", "int8", "turbo4", NULL};
    const uint32_t choice = SHEAF__FLAG_CHOICE;
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "kv-dtype=TYPE", &values->both,
                                         "how K and V are stored (default bf16)"),
                        codecs);
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "kv-dtype-k=TYPE", &values->k,
                                         "how K is stored (default: --kv-dtype)"),
                        codecs);
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "kv-dtype-v=TYPE", &values->v,
                                         "how V is stored (default: --kv-dtype)"),
                        codecs);
}

sheaf__kv_name sheaf__cli_kv_name(uint32_t codec_k, uint32_t codec_v)
{
    sheaf__kv_name name;
    const char *k = sheaf_codec_name(codec_k), *v = sheaf_codec_name(codec_v);
    bool same = codec_k == codec_v;
    snprintf(name.text, sizeof name.text, "%s%s%s", k, same ? "" : " and ", same ? "" : v);
    return name;
}

void sheaf__model_flags_add(sheaf__model_flags *values, sheaf__flags *flags)
{
    /* in the order of SHEAF_ISA_..., SHEAF__KV_..., SHEAF_ATTN_... */
    static const char *const isas[] = {"auto", "scalar", "avx2", "avx512", "neon"};
    static const char *const backends[] = {"paged", "dense", NULL};
    static const char *const paths[] = {"fused", "gather", "reference", NULL};
    const uint32_t choice = SHEAF__FLAG_CHOICE, number = SHEAF__FLAG_U32;
    sheaf__flags_add(flags, SHEAF__FLAG_TEXT, "model,m=DIR", &values->path,
                     "Hugging Face directory, or random:NAME[:layers=N]");
    sheaf__flag_range(sheaf__flags_add(flags, number, "threads,t=N", &values->n_threads,
                                       "threads that compute (default: one a processor)"),
                      1, 256);
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "isa=SET", &values->isa,
                                         "instruction set of the kernels"),
                        isas);
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "kv-backend=KIND", &values->kv_backend,
                                         "where K and V live"),
                        backends);
    sheaf__kv_dtype_flags_add(&values->kv_dtypes, flags);
    sheaf__flag_choices(
        sheaf__flags_add(flags, choice, "attn=PATH", &values->attn_path, "attention path"),
        paths);
    sheaf__flag_range(sheaf__flags_add(flags, number, "ctx-size,c=N", &values->ctx_size,
                                       "positions a sequence may have (default: the model's)"),
                      1, 1 << 24);
    sheaf__flag_range(sheaf__flags_add(flags, number, "prefill-chunk=N", &values->prefill_chunk,
                                       "tokens of a prompt run at once (default 512)"),
                      1, 1 << 16);
    sheaf__flags_add(flags, SHEAF__FLAG_SWITCH, "copy-weights", &values->copy_weights,
                     "copy the weights into huge pages");
}

void sheaf__kv_budget_flag_add(uint64_t *value, sheaf__flags *flags)
{
    sheaf__flags_add(flags, SHEAF__FLAG_BYTES, "kv-budget=BYTES", value,
                     "memory for K and V (default: the machine's)");
}

sheaf_status sheaf__cli_need_model(const char *path, sheaf_error *err)
{
    if (path != NULL && path[0] != 0) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_USAGE, "--model: which model? give its directory");
}

sheaf__model_options sheaf__model_flags_options(const sheaf__model_flags *values,
                                                sheaf__progress *progress)
{
    return (sheaf__model_options){
        .n_threads = values->n_threads,
        .isa = values->isa,
        .kv_backend = values->kv_backend,
        .codec_k = sheaf__kv_dtype_k(&values->kv_dtypes),
        .codec_v = sheaf__kv_dtype_v(&values->kv_dtypes),
        .attn_path = values->attn_path,
        .ctx_size = values->ctx_size,
        .prefill_chunk = values->prefill_chunk,
        .kv_budget_bytes = values->kv_budget_bytes,
        .copy_weights = values->copy_weights,
        .progress = sheaf__progress_report,
        .progress_ctx = progress,
    };
}

/* A standard stream that came closed is one that fails: else the next file opened would take its
 * number, and be written to. */
static void hold_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        int failing = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
        if (open("/dev/null", failing) < 0) return;
    }
}

static int show_version(void)
{
    sheaf_error err = {0};
    printf("sheaf %s, instruction set %s\n", sheaf_version(), sheaf_isa_name(sheaf_isa_best()));
    sheaf_status status = sheaf__cli_flush(&err);
    return status == SHEAF_OK ? 0 : sheaf__cli_fail("version", status, &err);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a sentence, not a silent death */
    hold_standard_streams();
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
    if (strcmp(name, "--version") == 0) return show_version();
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i]->run(argc - 1, argv + 1);
    sheaf_error err = {0};
    sheaf__error_set(&err, SHEAF_E_USAGE, "'%.80s': no such command; `sheaf --help` lists them",
                     name);
    fprintf(stderr, "sheaf: %s\n", err.text);
    return SHEAF__EXIT_USAGE;
}
