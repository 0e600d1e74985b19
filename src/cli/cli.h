/* cli/cli.h - the subcommands, and what they share.
 *
 * Exit codes: 0 done; 1 it failed (a file, memory, a wrong result); 2 it was asked wrongly. Every
 * failure is one sentence on standard error that names the file, flag or field.
 */
#ifndef SHEAF_CLI_CLI_H
#define SHEAF_CLI_CLI_H

#include "cli/flags.h"
#include "cli/progress.h"
#include "engine/generate.h"

#define SHEAF__EXIT_FAILED 1
#define SHEAF__EXIT_USAGE  2

#define SHEAF__MAX_TEXT_BYTES (256u << 20) /* of a prompt: far more than any context holds */

extern const sheaf__command sheaf__command_run;
extern const sheaf__command sheaf__command_chat;
extern const sheaf__command sheaf__command_inspect;
extern const sheaf__command sheaf__command_tokenize;
extern const sheaf__command sheaf__command_kv;
extern const sheaf__command sheaf__command_demo;
extern const sheaf__command sheaf__command_serve;

/* How K and V are stored, as flags say it: codec_k and codec_v are `both` where they are not given
 * (SHEAF_CODEC_COUNT). */
typedef struct sheaf__kv_dtypes {
    uint32_t both;
    uint32_t k;
    uint32_t v;
} sheaf__kv_dtypes;

#define SHEAF__KV_DTYPES_INIT                                                                  \
    {                                                                                          \
        .both = SHEAF_CODEC_BF16, .k = SHEAF_CODEC_COUNT, .v = SHEAF_CODEC_COUNT               \
    }

static inline uint32_t sheaf__kv_dtype_k(const sheaf__kv_dtypes *dtypes)
{
    return dtypes->k < SHEAF_CODEC_COUNT ? dtypes->k : dtypes->both;
}

static inline uint32_t sheaf__kv_dtype_v(const sheaf__kv_dtypes *dtypes)
{
    return dtypes->v < SHEAF_CODEC_COUNT ? dtypes->v : dtypes->both;
}

/* The codecs' names for people: "bf16", or "int8 and turbo4" where K and V differ. */
typedef struct sheaf__kv_name {
    char text[24];
} sheaf__kv_name;

sheaf__kv_name sheaf__cli_kv_name(uint32_t codec_k, uint32_t codec_v);

/* Flags that every command with a model has. */
typedef struct sheaf__model_flags {
    const char *path;
    uint32_t n_threads;
    uint32_t isa;
    uint32_t kv_backend;
    sheaf__kv_dtypes kv_dtypes;
    uint32_t attn_path;
    uint32_t ctx_size;
    uint32_t prefill_chunk;
    uint64_t kv_budget_bytes;
    bool copy_weights;
} sheaf__model_flags;

/* Defaults: all zero but kv_dtypes, which are bf16. */
#define SHEAF__MODEL_FLAGS_INIT                                                                \
    {                                                                                          \
        .kv_dtypes = SHEAF__KV_DTYPES_INIT                                                     \
    }

/* Adds the model flags to a table, all but --kv-budget. */
void sheaf__model_flags_add(sheaf__model_flags *values, sheaf__flags *flags);

/* Adds --kv-budget. */
void sheaf__kv_budget_flag_add(uint64_t *value, sheaf__flags *flags);

/* Of these, --kv-dtype, --kv-dtype-k and --kv-dtype-v alone. */
void sheaf__kv_dtype_flags_add(sheaf__kv_dtypes *values, sheaf__flags *flags);

/* SHEAF_E_USAGE: --model is missing or empty. */
sheaf_status sheaf__cli_need_model(const char *path, sheaf_error *err);

/* The engine's options for them. */
sheaf__model_options sheaf__model_flags_options(const sheaf__model_flags *values,
                                                sheaf__progress *progress);

/* Prints "sheaf NAME: sentence" and returns the exit code that fits the status. */
int sheaf__cli_fail(const char *name, sheaf_status status, const sheaf_error *err);

/* Flushes standard output. SHEAF_E_IO: it is closed or full. */
sheaf_status sheaf__cli_flush(sheaf_error *err);

/* Reads a whole stream. SHEAF_E_IO, SHEAF_E_NO_MEMORY; SHEAF_E_FORMAT: it does not end within
 * SHEAF__MAX_TEXT_BYTES. `name` stands for it in sentences. */
sheaf_status sheaf__cli_read_all(int fd, const char *name, sheaf__text *out, sheaf_error *err);

#endif
