/* cli/serve_flags.h - what `sheaf serve` can be told, by flags, the environment and a file of keys.
 *
 * Owns: the table, which combinations are refused, how much memory "auto" is. Does not own: serving.
 */
#ifndef SHEAF_CLI_SERVE_FLAGS_H
#define SHEAF_CLI_SERVE_FLAGS_H

#include "base/log.h"
#include "cli/cli.h"
#include "server/server.h"

/* --kv-cache-budget's words, in the order of its choices. */
#define SHEAF__BUDGET_AUTO UINT64_MAX
#define SHEAF__BUDGET_NONE (UINT64_MAX - 1)

/* Zero is the default that the servers' options have, but for those named in the initialiser. */
typedef struct sheaf__serve_flags {
    sheaf__model_flags model;
    const char *host, *model_name, *template_name;
    uint32_t port; /* 0: any */
    sheaf__flag_list api_keys, origins;
    const char *api_key_file;
    uint32_t parallel, max_queue, batch_tokens;
    uint64_t kv_budget; /* bytes, or SHEAF__BUDGET_... */
    uint64_t cache_bytes;
    uint32_t cache_entries, cache_ttl_s;
    bool no_prompt_cache;
    uint64_t max_body_bytes;
    uint32_t max_head_bytes, max_connections, timeout_s;
    uint32_t drain_timeout_s; /* 0: for ever */
    uint32_t log_level, log_format;
} sheaf__serve_flags;

#define SHEAF__SERVE_FLAGS_INIT                                                                \
    {                                                                                          \
        .model = SHEAF__MODEL_FLAGS_INIT, .host = "127.0.0.1", .port = 8080,                   \
        .kv_budget = SHEAF__BUDGET_AUTO, .drain_timeout_s = 30, .log_level = SHEAF__LOG_INFO   \
    }

/* As sheaf__flags_parse; what is not supported together is SHEAF_E_USAGE. *flags is left filled in, and
 * the list of keys has those of the file too. SHEAF_E_IO: of that file. */
sheaf_status sheaf__serve_flags_parse(int argc, char **argv, sheaf__serve_flags *out,
                                      sheaf__flags *flags, bool *done, sheaf_error *err);
void sheaf__serve_flags_free(sheaf__serve_flags *values);

/* How a budget came to be. */
typedef struct sheaf__kv_room {
    uint64_t budget_bytes; /* 0: the machine's memory */
    bool is_auto;          /* the rest is known */
    uint64_t available_bytes, weights_bytes, kept_bytes;
} sheaf__kv_room;

/* Settles the budget for keys and values. SHEAF_E_NO_MEMORY: "auto", and nothing is left; else as the
 * model's files say. */
sheaf_status sheaf__serve_room(const sheaf__serve_flags *values, sheaf__kv_room *out,
                               sheaf_error *err);

/* The server's options; what they point to is the flags'. *cache: where the prompt cache's limits go. */
sheaf__server_options sheaf__serve_options(const sheaf__serve_flags *values,
                                           sheaf_prefix_options *cache);

#endif
