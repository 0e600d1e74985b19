/* cli/serve.c - `sheaf serve`: one model behind HTTP, from its loading to its last answer.
 *
 * The signals SIGINT and SIGTERM are blocked in every thread; the main one waits for them, since that
 * is all that it does. A model is loaded by a thread of its own, which wakes the main one by SIGUSR1.
 *
 *     listening, /health says 503 --loaded--> serving --signal--> draining --all answered--> ends
 *                     |                                              |
 *                   signal: ends at once                           signal, or too long: what runs is cut
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/answer.h"
#include "cli/serve_flags.h"

#define PROGRESS_NS   5000000000u
#define LOOK_NS       20000000 /* between two looks at whether a drain has ended */
#define LAST_WORDS_MS 1000     /* for the ends of answers that were cut */
#define RANDOM_PREFIX "random:"
#define NO_TEMPLATE   "none"

typedef struct serve_state {
    const sheaf__serve_flags *flags;
    sheaf__log log;
    sheaf__server *server;
    sheaf__model *model;
    sigset_t signals;
    pthread_t main_thread, loader;
    _Atomic bool loaded; /* or failed to */
    sheaf_status status; /* of loading */
    sheaf_error err;
    uint64_t told_ns; /* when progress was told last */
} serve_state;

/* ---- the service manager ------------------------------------------------------------------ */

/* Tells it what has been reached, where it wants to know: a datagram to $NOTIFY_SOCKET, as sd_notify(3)
 * describes. */
static void notify(const char *what)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || (path[0] != '/' && path[0] != '@')) return;
    size_t n = strlen(path);
    if (n >= sizeof address.sun_path) return;
    memcpy(address.sun_path, path, n);
    if (path[0] == '@') address.sun_path[0] = 0; /* in no file system */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    (void)!sendto(fd, what, strlen(what), MSG_NOSIGNAL, (struct sockaddr *)&address, size);
    close(fd);
}

/* ---- loading ------------------------------------------------------------------------------ */

static bool is_random(const char *path)
{
    return strncmp(path, RANDOM_PREFIX, strlen(RANDOM_PREFIX)) == 0;
}

static void report(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    serve_state *s = ctx;
    uint64_t now = sheaf__clock_ns();
    if (done >= total || now - s->told_ns < PROGRESS_NS) return;
    s->told_ns = now;
    sheaf__log_line(&s->log, SHEAF__LOG_INFO, "loading", "what", "s", what, "bytes", "U", done,
                    "of", "U", total, NULL);
}

static sheaf_status settle_budget(serve_state *s, sheaf__model_options *o, sheaf_error *err)
{
    sheaf__kv_room room;
    SHEAF__TRY(sheaf__serve_room(s->flags, &room, err));
    o->kv_budget_bytes = room.budget_bytes;
    if (room.is_auto)
        sheaf__log_line(&s->log, SHEAF__LOG_INFO, "memory for keys and values chosen", "bytes",
                        "U", room.budget_bytes, "available", "U", room.available_bytes,
                        "weights", "U", room.weights_bytes, "kept_free", "U", room.kept_bytes,
                        NULL);
    return SHEAF_OK;
}

static sheaf_status settle_chats(serve_state *s, uint32_t *family, sheaf_error *err)
{
    const char *path = s->flags->model.path, *name = s->flags->template_name;
    *family = SHEAF__CHAT_NONE;
    if (name != NULL && strcmp(name, NO_TEMPLATE) == 0) return SHEAF_OK;
    if (name != NULL) return sheaf__chat_from_name(name, family, err);
    if (is_random(path)) return SHEAF_OK;
    sheaf_status status = sheaf__chat_detect(path, family, err);
    return status == SHEAF_MISS ? SHEAF_OK : status;
}

static sheaf_status load(serve_state *s, sheaf_error *err)
{
    const char *path = s->flags->model.path;
    sheaf__server_options *shared = &s->server->options;
    sheaf__identity_options quick = {.kind = SHEAF__IDENTITY_QUICK};
    sheaf__model_options o = sheaf__model_flags_options(&s->flags->model, NULL);
    o.progress = report;
    o.progress_ctx = s;
    SHEAF__TRY(settle_chats(s, &shared->chat_family, err));
    SHEAF__TRY(settle_budget(s, &o, err));
    SHEAF__TRY(sheaf__identity_read(path, &quick, &shared->identity, err));
    SHEAF__TRY(sheaf__model_open(path, &o, &s->model, err));
    SHEAF__TRY(sheaf__identity_unchanged(path, &shared->identity, err));
    return sheaf__server_serve(s->server, s->model, err);
}

static void *load_thread(void *arg)
{
    serve_state *s = arg;
    s->status = load(s, &s->err);
    atomic_store(&s->loaded, true);
    pthread_kill(s->main_thread, SIGUSR1);
    return NULL;
}

/* ---- signals ------------------------------------------------------------------------------ */

static void block_signals(serve_state *s)
{
    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGINT);
    sigaddset(&s->signals, SIGTERM);
    sigaddset(&s->signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &s->signals, NULL);
}

/* Waits for a signal that ends the server. Returns 0 instead when `loading`, and that is over. */
static int await_signal(serve_state *s, bool loading)
{
    for (;;) {
        int got = sigwaitinfo(&s->signals, NULL);
        if (got == SIGINT || got == SIGTERM) return got;
        if (loading && atomic_load(&s->loaded)) return 0;
    }
}

/* Whether one has come within a moment. */
static bool is_signalled(serve_state *s)
{
    const struct timespec moment = {.tv_nsec = LOOK_NS};
    int got = sigtimedwait(&s->signals, NULL, &moment);
    return got == SIGINT || got == SIGTERM;
}

/* ---- life --------------------------------------------------------------------------------- */

static sheaf_status load_model(serve_state *s, sheaf_error *err)
{
    int failed = pthread_create(&s->loader, NULL, load_thread, s);
    if (failed != 0)
        return sheaf__error_set(err, SHEAF_E_IO, "no thread to load the model: %s",
                                strerror(failed));
    if (await_signal(s, true) != 0) {
        sheaf__log_line(&s->log, SHEAF__LOG_INFO, "stopped while loading", NULL);
        _exit(0); /* nobody has been answered, and loading knows no way back */
    }
    pthread_join(s->loader, NULL);
    *err = s->err;
    return s->status;
}

/* The address as others may call it: an IPv6 one in brackets, and of all addresses this machine's. */
static void make_url(const serve_state *s, char *out, size_t size)
{
    const char *host = s->flags->host;
    if (strcmp(host, "0.0.0.0") == 0) host = "127.0.0.1";
    if (strcmp(host, "::") == 0) host = "::1";
    bool six = strchr(host, ':') != NULL;
    snprintf(out, size, "http://%s%.200s%s:%u", six ? "[" : "", host, six ? "]" : "",
             sheaf__http_port(s->server->http));
}

static void say_loading(const serve_state *s)
{
    char url[256];
    make_url(s, url, sizeof url);
    sheaf__log_line(&s->log, SHEAF__LOG_INFO, "loading", "model", "s", s->flags->model.path,
                    "url", "s", url, NULL);
}

static sheaf_status say_ready(serve_state *s, uint64_t start_ns, sheaf_error *err)
{
    char url[256];
    const sheaf__model_options *o = &s->model->options;
    make_url(s, url, sizeof url);
    sheaf__log_line(&s->log, SHEAF__LOG_INFO, "serving", "model", "s",
                    s->server->options.model_name, "url", "s", url, "ms", "f",
                    (double)(sheaf__clock_ns() - start_ns) * 1e-6, "context", "u", o->ctx_size,
                    "kv_budget_bytes", "U", o->kv_budget_bytes, "threads", "u", o->n_threads,
                    "isa", "s", sheaf_isa_name(o->isa), NULL);
    if (s->server->options.chat_family == SHEAF__CHAT_NONE)
        sheaf__log_line(&s->log, SHEAF__LOG_WARN,
                        "the model has no chat template: chats are refused", NULL);
    printf("listening on %s\n", url);
    SHEAF__TRY(sheaf__cli_flush(err));
    notify("READY=1");
    return SHEAF_OK;
}

/* Until all is answered, a second signal, or the timeout; the latter two cut what runs. */
static void drain(serve_state *s)
{
    uint64_t start = sheaf__clock_ns();
    uint64_t limit_ns = (uint64_t)s->flags->drain_timeout_s * 1000000000;
    notify("STOPPING=1");
    sheaf__server_drain(s->server);
    sheaf__log_line(&s->log, SHEAF__LOG_INFO, "draining", NULL);
    while (!sheaf__server_wait(s->server, 0)) {
        bool signalled = is_signalled(s);
        bool late = limit_ns != 0 && sheaf__clock_ns() - start > limit_ns;
        if (!signalled && !late) continue;
        sheaf__log_line(&s->log, SHEAF__LOG_WARN, "stopping", "why", "s",
                        signalled ? "a second signal" : "draining took too long", NULL);
        sheaf__server_stop(s->server);
        (void)sheaf__server_wait(s->server, LAST_WORDS_MS);
        break;
    }
    sheaf__log_line(&s->log, SHEAF__LOG_INFO, "stopped", "ms", "f",
                    (double)(sheaf__clock_ns() - start) * 1e-6, NULL);
}

static sheaf_status serve(serve_state *s, sheaf_error *err)
{
    sheaf_prefix_options cache;
    sheaf__server_options options = sheaf__serve_options(s->flags, &cache);
    uint64_t start = sheaf__clock_ns();
    options.log = &s->log;
    s->main_thread = pthread_self();
    block_signals(s); /* before there is another thread */
    SHEAF__TRY(sheaf__server_open(&options, &s->server, err));
    say_loading(s);
    SHEAF__TRY(load_model(s, err));
    SHEAF__TRY(say_ready(s, start, err));
    int got = await_signal(s, false);
    sheaf__log_line(&s->log, SHEAF__LOG_INFO, "signal", "name", "s", sigabbrev_np(got), NULL);
    drain(s);
    return SHEAF_OK;
}

/* ---- starting ----------------------------------------------------------------------------- */

static void warn_unknown(void *ctx, const char *name)
{
    serve_state *s = ctx;
    sheaf__log_line(&s->log, SHEAF__LOG_WARN, "no flag has this environment variable", "name",
                    "s", name, NULL);
}

/* What a sensible person might not have meant. */
static void warn_flags(serve_state *s, const sheaf__flags *flags)
{
    static const char *const loopback[] = {"127.", "::1", "localhost"};
    bool local = false;
    for (size_t i = 0; i < sizeof loopback / sizeof loopback[0]; i++)
        local |= strncmp(s->flags->host, loopback[i], strlen(loopback[i])) == 0;
    sheaf__flags_unknown(flags, warn_unknown, s);
    if (!local && s->flags->api_keys.n == 0)
        sheaf__log_line(&s->log, SHEAF__LOG_WARN,
                        "others than this machine may ask, and no --api-key is asked for",
                        "host", "s", s->flags->host, NULL);
}

static int serve_main(int argc, char **argv)
{
    sheaf__serve_flags values = SHEAF__SERVE_FLAGS_INIT;
    sheaf__flags flags = {0};
    serve_state s = {.flags = &values};
    sheaf_error err = {0};
    bool done = false;
    sheaf_status status = sheaf__serve_flags_parse(argc, argv, &values, &flags, &done, &err);
    if (status == SHEAF_OK && !done) {
        s.log = (sheaf__log){STDERR_FILENO, values.log_level, values.log_format};
        warn_flags(&s, &flags);
        status = serve(&s, &err);
    }
    sheaf__server_close(s.server);
    sheaf__model_close(s.model);
    sheaf__serve_flags_free(&values);
    return status == SHEAF_OK ? 0 : sheaf__cli_fail("serve", status, &err);
}

const sheaf__command sheaf__command_serve = {
    .name = "serve",
    .arguments = "-m DIR [flags]",
    .summary = "answer many clients over HTTP, as OpenAI's servers do",
    .details =
        "SIGTERM or SIGINT: what runs is answered to its end; a second one ends it at once.\n",
    .run = serve_main,
    .environment = true,
};
