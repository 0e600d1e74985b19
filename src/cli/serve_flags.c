/* cli/serve_flags.c - what `sheaf serve` can be told.
 *
 * The budget "auto" is what the machine and its control groups have left, less
 *
 *     the weights   also where they are files in place: pages that are always read should stay
 *     the rest      a fixed part for activations, requests and streams, and a sixteenth against
 *                   surprises
 */
#include "cli/serve_flags.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/available.h"
#include "base/file.h"
#include "model/utf8.h"

#define KEPT_BYTES    (256u << 20)
#define KEPT_SHARE    16
#define RANDOM_PREFIX "random:"

/* ---- the table ---------------------------------------------------------------------------- */

static void add_number(sheaf__flags *flags, const char *spec, uint32_t *value, double min,
                       double max, const char *help)
{
    sheaf__flag_range(sheaf__flags_add(flags, SHEAF__FLAG_U32, spec, value, help), min, max);
}

static void add_bytes(sheaf__flags *flags, const char *spec, uint64_t *value, const char *help)
{
    sheaf__flag_range(sheaf__flags_add(flags, SHEAF__FLAG_BYTES, spec, value, help), 1, 0);
}

static void add_network_flags(sheaf__serve_flags *v, sheaf__flags *flags)
{
    const uint32_t text = SHEAF__FLAG_TEXT, list = SHEAF__FLAG_LIST;
    sheaf__flags_add(flags, text, "host=ADDRESS", &v->host,
                     "address to listen at (default 127.0.0.1)");
    add_number(flags, "port=N", &v->port, 0, UINT16_MAX,
               "port to listen at; 0: any that is free (default 8080)");
    sheaf__flags_add(flags, list, "api-key=KEY", &v->api_keys,
                     "key that clients must show; commas or repeated for more");
    sheaf__flags_add(flags, text, "api-key-file=FILE", &v->api_key_file,
                     "file of such keys, one a line");
    sheaf__flags_add(flags, list, "cors-origin=ORIGIN", &v->origins,
                     "web origin that browsers may call from; commas for more, * for any");
    add_number(flags, "max-connections=N", &v->max_connections, 1, 1 << 16,
               "connections at most (default 512)");
    add_bytes(flags, "max-body-bytes=BYTES", &v->max_body_bytes,
              "of a request's body at most (default 16MiB)");
    add_number(flags, "max-head-bytes=N", &v->max_head_bytes, 1024, 1 << 20,
               "of a request's headers at most (default 32768)");
    add_number(flags, "timeout=SECONDS", &v->timeout_s, 1, 86400,
               "without progress in reading or sending (default 30)");
}

static void add_engine_flags(sheaf__serve_flags *v, sheaf__flags *flags)
{
    static const char *const words[] = {"auto", "none", NULL};
    add_number(flags, "parallel=N", &v->parallel, 1, 4096,
               "requests that run at once (default 8)");
    add_number(flags, "max-queue=N", &v->max_queue, 1, 1 << 20,
               "requests that wait at most (default 256)");
    add_number(flags, "batch-tokens=N", &v->batch_tokens, 2, 1 << 16,
               "tokens run in one step at most (default 512)");
    sheaf__flag *budget =
        sheaf__flags_add(flags, SHEAF__FLAG_BYTES, "kv-cache-budget=BYTES", &v->kv_budget,
                         "memory for K and V: bytes, or (default auto)");
    sheaf__flag_range(budget, 1, 0);
    sheaf__flag_choices(budget, words);
    add_bytes(flags, "prompt-cache-capacity-bytes=BYTES", &v->cache_bytes,
              "that the prompt cache alone may hold (default: the budget)");
    add_number(flags, "prompt-cache-max-entries=N", &v->cache_entries, 1, UINT32_MAX,
               "entries that it may have (default: any number)");
    add_number(flags, "prompt-cache-ttl=SECONDS", &v->cache_ttl_s, 1, UINT32_MAX,
               "that an entry stays after its last use (default: for ever)");
    sheaf__flags_add(flags, SHEAF__FLAG_SWITCH, "no-prompt-cache", &v->no_prompt_cache,
                     "keep nothing of a request, share nothing");
}

static void add_life_flags(sheaf__serve_flags *v, sheaf__flags *flags)
{
    /* in the order of SHEAF__LOG_... */
    static const char *const levels[] = {"debug", "info", "warn", "error", "none"};
    static const char *const forms[] = {"text", "json", NULL};
    const uint32_t text = SHEAF__FLAG_TEXT, choice = SHEAF__FLAG_CHOICE;
    sheaf__flags_add(flags, text, "model-name=NAME", &v->model_name,
                     "name to serve the model as (default: its directory's)");
    sheaf__flags_add(flags, text, "chat-template=NAME", &v->template_name,
                     "a template's name instead of the model's own; none: no chats");
    add_number(flags, "drain-timeout=SECONDS", &v->drain_timeout_s, 0, 86400,
               "for answers to end after SIGTERM; 0: any time (default 30)");
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "log-level=LEVEL", &v->log_level,
                                         "what is worth a line on standard error"),
                        levels);
    sheaf__flag_choices(sheaf__flags_add(flags, choice, "log-format=FORM", &v->log_format,
                                         "how a line is written"),
                        forms);
}

/* ---- what is refused ---------------------------------------------------------------------- */

/* The first of the flags of the prompt cache's limits that was given, or null. */
static const char *cache_limit(const sheaf__flags *flags, char label[static SHEAF__FLAG_LABEL])
{
    static const char *const names[] = {"prompt-cache-capacity-bytes",
                                        "prompt-cache-max-entries", "prompt-cache-ttl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (sheaf__flag_given(flags, names[i], label) != NULL) return label;
    return NULL;
}

static sheaf_status check_empty(const char *name, const char *value, sheaf_error *err)
{
    if (value == NULL || value[0] != 0) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_USAGE, "--%s: is empty", name);
}

/* As browsers say it in Origin, which is compared whole: "https://example.org:8443". */
static sheaf_status check_origins(const sheaf__flag_list *origins, const sheaf__flags *flags,
                                  sheaf_error *err)
{
    char label[SHEAF__FLAG_LABEL] = "";
    (void)sheaf__flag_given(flags, "cors-origin", label);
    for (uint32_t i = 0; i < origins->n; i++) {
        const char *origin = origins->at[i], *host = strstr(origin, "://");
        bool good = strcmp(origin, "*") == 0 || strcmp(origin, "null") == 0 ||
                    (host != NULL && host != origin && host[3] != 0 &&
                     strpbrk(host + 3, "/?# ") == NULL);
        if (!good)
            return sheaf__error_set(err, SHEAF_E_USAGE,
                                    "%s: '%.160s' is not like https://example.org, without a "
                                    "path; nor is it *",
                                    label, origin);
    }
    return SHEAF_OK;
}

/* JSON, which names the model, is UTF-8. */
static sheaf_status check_name(const char *name, sheaf_error *err)
{
    if (name == NULL || sheaf__utf8_valid_prefix(name, strlen(name)) == strlen(name))
        return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_USAGE, "--model-name: is not UTF-8");
}

static sheaf_status check(const sheaf__serve_flags *v, const sheaf__flags *flags,
                          sheaf_error *err)
{
    char label[SHEAF__FLAG_LABEL], other[SHEAF__FLAG_LABEL];
    bool dense = v->model.kv_backend == SHEAF__KV_DENSE;
    SHEAF__TRY(sheaf__cli_need_model(v->model.path, err));
    SHEAF__TRY(check_empty("host", v->host, err));
    SHEAF__TRY(check_empty("model-name", v->model_name, err));
    SHEAF__TRY(check_empty("api-key-file", v->api_key_file, err));
    SHEAF__TRY(check_name(v->model_name, err));
    SHEAF__TRY(check_origins(&v->origins, flags, err));
    if (v->no_prompt_cache && cache_limit(flags, label) != NULL)
        return sheaf__error_set(err, SHEAF_E_USAGE, "%s: there is nothing to limit with %s",
                                label, sheaf__flag_given(flags, "no-prompt-cache", other));
    if (dense && cache_limit(flags, label) != NULL)
        return sheaf__error_set(err, SHEAF_E_USAGE, "%s: the dense backend has no prompt cache",
                                label);
    if (dense && v->kv_budget != SHEAF__BUDGET_NONE &&
        sheaf__flag_given(flags, "kv-cache-budget", label) != NULL)
        return sheaf__error_set(err, SHEAF_E_USAGE,
                                "%s: the dense backend has no budget; --kv-backend paged has",
                                label);
    if (v->batch_tokens != 0 && v->batch_tokens < v->model.prefill_chunk)
        return sheaf__error_set(err, SHEAF_E_USAGE, "%s: %u are less than the %u of %s",
                                sheaf__flag_given(flags, "batch-tokens", label),
                                v->batch_tokens, v->model.prefill_chunk,
                                sheaf__flag_given(flags, "prefill-chunk", other));
    return SHEAF_OK;
}

/* ---- the file of keys --------------------------------------------------------------------- */

static sheaf_status take_lines(const sheaf__text *text, sheaf__flag_list *keys)
{
    for (uint64_t at = 0; at < text->n;) {
        const char *line = text->data + at, *end = memchr(line, '\n', text->n - at);
        uint64_t n = end != NULL ? (uint64_t)(end - line) : text->n - at;
        at += n + 1;
        while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == ' ')) n--;
        if (n > 0) SHEAF__TRY(sheaf__flag_list_add(keys, line, n));
    }
    return SHEAF_OK;
}

static sheaf_status read_keys(const char *path, sheaf__flag_list *keys, sheaf_error *err)
{
    char shown[SHEAF__BRIEF];
    sheaf__text text = {0};
    uint32_t before = keys->n;
    sheaf__path_show(path, shown);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sheaf__error_set(err, SHEAF_E_IO, "--api-key-file: %s: %s", shown,
                                strerror(errno));
    sheaf_status status = sheaf__cli_read_all(fd, shown, &text, err);
    close(fd);
    if (status == SHEAF_OK) status = take_lines(&text, keys);
    if (status == SHEAF_OK && keys->n == before)
        status = sheaf__error_set(err, SHEAF_E_USAGE, "--api-key-file: %s: has no key", shown);
    sheaf__text_free(&text);
    return status;
}

sheaf_status sheaf__serve_flags_parse(int argc, char **argv, sheaf__serve_flags *out,
                                      sheaf__flags *flags, bool *done, sheaf_error *err)
{
    sheaf__model_flags_add(&out->model, flags);
    add_network_flags(out, flags);
    add_engine_flags(out, flags);
    add_life_flags(out, flags);
    SHEAF__TRY(sheaf__flags_parse(&sheaf__command_serve, flags, argc, argv, done, err));
    if (*done) return sheaf__cli_flush(err);
    SHEAF__TRY(check(out, flags, err));
    return out->api_key_file != NULL ? read_keys(out->api_key_file, &out->api_keys, err)
                                     : SHEAF_OK;
}

void sheaf__serve_flags_free(sheaf__serve_flags *values)
{
    sheaf__flag_list_free(&values->api_keys);
    sheaf__flag_list_free(&values->origins);
}

/* ---- the budget --------------------------------------------------------------------------- */

/* What the weights will take. Files are only mapped: no page of them is read. */
static sheaf_status weigh(const char *path, uint64_t *bytes, sheaf_error *err)
{
    sheaf__config config;
    if (strncmp(path, RANDOM_PREFIX, strlen(RANDOM_PREFIX)) == 0) {
        uint64_t n_parameters;
        SHEAF__TRY(sheaf__weights_random_config(path, &config, err));
        return sheaf__weights_random_size(&config, &n_parameters, bytes, err);
    }
    const sheaf__weights_options options = {0};
    sheaf__weights *weights = NULL;
    SHEAF__TRY(sheaf__config_read(path, &config, err));
    SHEAF__TRY(sheaf__weights_open(path, &config, &options, &weights, err));
    *bytes = weights->bytes_mapped + weights->bytes_resident;
    sheaf__weights_close(weights);
    return SHEAF_OK;
}

sheaf_status sheaf__serve_room(const sheaf__serve_flags *values, sheaf__kv_room *out,
                               sheaf_error *err)
{
    sheaf__kv_room room = {.budget_bytes = values->kv_budget};
    sheaf__available available;
    if (values->kv_budget == SHEAF__BUDGET_NONE || values->model.kv_backend == SHEAF__KV_DENSE)
        room.budget_bytes = 0;
    else if (values->kv_budget == SHEAF__BUDGET_AUTO) {
        room.is_auto = true;
        SHEAF__TRY(sheaf__available_read("", &available, err));
        SHEAF__TRY(weigh(values->model.path, &room.weights_bytes, err));
        room.available_bytes = available.bytes;
        room.kept_bytes = KEPT_BYTES + available.bytes / KEPT_SHARE;
        uint64_t taken = room.weights_bytes + room.kept_bytes;
        if (available.bytes <= taken)
            return sheaf__error_set(
                err, SHEAF_E_NO_MEMORY,
                "--kv-cache-budget auto: of %llu MiB available the weights take %llu and %llu "
                "are kept free: give a number of bytes",
                (unsigned long long)available.bytes >> 20,
                (unsigned long long)room.weights_bytes >> 20,
                (unsigned long long)room.kept_bytes >> 20);
        room.budget_bytes = available.bytes - taken;
    }
    *out = room;
    return SHEAF_OK;
}

/* ---- the server's options ----------------------------------------------------------------- */

sheaf__server_options sheaf__serve_options(const sheaf__serve_flags *values,
                                           sheaf_prefix_options *cache)
{
    *cache = (sheaf_prefix_options)SHEAF_PREFIX_OPTIONS_INIT;
    cache->capacity_bytes = values->cache_bytes;
    cache->max_entries = values->cache_entries;
    cache->ttl_ns = (uint64_t)values->cache_ttl_s * 1000000000;
    return (sheaf__server_options){
        .http = {.host = values->host,
                 .port = (uint16_t)values->port,
                 .any_port = values->port == 0,
                 .api_keys = (const char *const *)values->api_keys.at,
                 .n_api_keys = values->api_keys.n,
                 .origins = (const char *const *)values->origins.at,
                 .n_origins = values->origins.n,
                 .max_body_bytes = values->max_body_bytes,
                 .max_head_bytes = values->max_head_bytes,
                 .max_connections = values->max_connections,
                 .timeout_s = values->timeout_s},
        .engine = {.parallel = values->parallel,
                   .max_queue = values->max_queue,
                   .batch_tokens = values->batch_tokens,
                   .prefill_chunk = values->model.prefill_chunk,
                   .no_prompt_cache = values->no_prompt_cache,
                   .prefix = cache},
        .model_path = values->model.path,
        .model_name = values->model_name};
}
