/* tests/server/e2e_soak.c - everything at once, for long: answers asked for streamed and whole, alone and
 * three at a time, clients that leave, preloads with pins, resets, all that looks, and bad requests.
 *
 * Each known answer stays what it was the first time; figures that are looked at in between agree; after
 * it the server is empty and as large as after the first quarter. SHEAF_SOAK_SECONDS (20) is how long,
 * two minutes in .ci/run; for an hour: SHEAF_SOAK_SECONDS=3600 build/release/tests/e2e_soak.
 */
#include "server/known.h"
#include "server/rest.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"

#define COUNT(table)  (sizeof(table) / sizeof(table)[0])
#define COMPLETIONS   "/v1/completions"
#define PRELOAD       "/v1/cache/preload"
#define RESET         "/v1/cache/reset"
#define N_CLIENTS     6
#define SECONDS       20
#define MEMORY_MARGIN (6u << 20)
#define SECOND_NS     1000000000ull

typedef struct client client;

/* Null: all is well; else what was wrong, to be freed. */
typedef char *action(client *c);

struct client {
    pthread_t thread;
    uint64_t seed;
    uint64_t end_ns;
    uint32_t done[8]; /* of each action */
};

static program server;
static char *_Atomic wrong; /* the first that was; all end then */

static uint32_t draw(client *c, uint32_t n)
{
    return (uint32_t)(testing_random(&c->seed) % n);
}

/* ---- what is done ------------------------------------------------------------------------ */

static http_reply ask(const char *method, const char *path, const char *body)
{
    int fd = http_send(server.net.port, method, path, body);
    return fd < 0 ? (http_reply){0} : http_receive(fd);
}

/* Frees body and reply; ok: the status is one that is wanted. */
static char *verdict(const char *path, char *body, http_reply *r, bool ok)
{
    char *said = NULL;
    if (!ok && asprintf(&said, "%s %.300s: %u %.300s", path, body != NULL ? body : "",
                        r->status, r->body != NULL ? r->body : "") < 0)
        said = NULL;
    free(body);
    http_reply_free(r);
    return said;
}

static char *ask_known(client *c)
{
    return known_ask(server.net.port, draw(c, N_KNOWN));
}

/* A body whose prompt begins like some; `others` are its other fields. */
static char *prompt_of(client *c, const char *others)
{
    static const char *const salts[] = {"", "'cache_salt': 'a', ", "'cache_salt': 'b', ",
                                        "'prompt_cache_key': 'soak', "};
    char ids[8 * 400], *at = ids;
    uint32_t n = 2 + draw(c, 398), book = draw(c, 4), own = draw(c, n);
    for (uint32_t i = 0; i < n; i++)
        at += sprintf(at, "%s%u", i == 0 ? "" : ",",
                      300 + (i < own ? (book * 700 + i * 7) % 3000 : draw(c, 3000)));
    return serving_body("{'prompt': [%s], %s%s}", ids, salts[draw(c, 4)], others);
}

static char *ask_any(client *c)
{
    char *body = prompt_of(c, "'max_tokens': 12, 'ignore_eos': true, 'priority': 1");
    http_reply r = ask("POST", COMPLETIONS, body);
    return verdict(COMPLETIONS, body, &r, r.status == 200);
}

static char *leave(client *c)
{
    char *body = prompt_of(c, "'max_tokens': 400, 'ignore_eos': true, 'stream': true, 'n': 2");
    int fd = http_send(server.net.port, "POST", COMPLETIONS, body);
    http_reply none = {0};
    for (uint32_t i = draw(c, 8); fd >= 0 && i > 0; i--)
        if (!http_await(fd, "data: ")) break;
    if (fd >= 0) close(fd);
    return verdict(COMPLETIONS, body, &none, fd >= 0);
}

static char *preload(client *c)
{
    static const char *const pins[] = {"'pin': true", "'pin': 'revocable'", "'pin': false"};
    char *body = prompt_of(c, pins[draw(c, 3)]);
    http_reply r = ask("POST", PRELOAD, body);
    bool full = r.status == 400 && strstr(r.body, "prompt_cache_full") != NULL;
    return verdict(PRELOAD, body, &r, r.status == 200 || full);
}

static char *reset(client *c)
{
    static const char *const what[] = {"{'cache_salt': 'a'}", "{'prompt_cache_key': 'soak'}",
                                       "{'unpin': true}", "{}",
                                       "{'cache_salt': 'b', 'unpin': true}"};
    char *body = serving_body("%s", what[draw(c, COUNT(what))]);
    http_reply r = ask("POST", RESET, body);
    return verdict(RESET, body, &r, r.status == 200);
}

/* Figures that are of one moment agree. */
static bool agree(const http_reply *r)
{
    json_t *s = json_loadb(r->body, r->n, 0, NULL);
    static const char *const names[] = {"paged_blocks_live",
                                        "paged_blocks_free",
                                        "paged_blocks_retiring",
                                        "paged_blocks_allocated",
                                        "paged_bytes_in_use",
                                        "block_bytes",
                                        "hits",
                                        "lookups"};
    json_int_t v[COUNT(names)];
    for (size_t i = 0; i < COUNT(names); i++)
        v[i] = json_integer_value(json_object_get(s, names[i]));
    json_decref(s);
    return v[0] + v[1] + v[2] == v[3] && v[4] == v[0] * v[5] && v[5] > 0 && v[6] <= v[7];
}

static char *look(client *c)
{
    static const char *const paths[] = {"/v1/cache/stats", "/metrics", "/slots",
                                        "/v1/cache/map",   "/health",  "/props",
                                        "/v1/models",      "/"};
    uint32_t i = draw(c, COUNT(paths));
    http_reply r = ask("GET", paths[i], NULL);
    return verdict(paths[i], NULL, &r, r.status == 200 && r.n > 0 && (i > 0 || agree(&r)));
}

static char *ask_badly(client *c)
{
    static const struct {
        const char *path, *body;
        uint32_t status;
    } bad[] = {{COMPLETIONS, "{'prompt': 'a'", 400},
               {COMPLETIONS, "{'prompt': 'a', 'n': 0}", 400},
               {"/v1/chat/completions", "{'messages': []}", 400},
               {PRELOAD, "{'prompt': 3}", 400},
               {RESET, "{'unpin': 3}", 400},
               {COMPLETIONS, "{'prompt': 'a', 'model': 'another'}", 404},
               {"/nothing", "{}", 404},
               {"/health", "{}", 405}};
    uint32_t i = draw(c, COUNT(bad));
    char *body = serving_body("%s", bad[i].body);
    http_reply r = ask("POST", bad[i].path, body);
    bool shaped = r.body != NULL && strstr(r.body, "\"error\"") != NULL;
    return verdict(bad[i].path, body, &r, r.status == bad[i].status && shaped);
}

static const struct {
    const char *name;
    action *act;
    uint32_t weight;
} actions[] = {
    {"known answers", ask_known, 45}, {"other answers", ask_any, 10}, {"left", leave, 20},
    {"preloads", preload, 4},         {"resets", reset, 2},           {"looks", look, 14},
    {"bad requests", ask_badly, 5}};

/* ---- clients ----------------------------------------------------------------------------- */

static void *live(void *arg)
{
    client *c = arg;
    while (sheaf__clock_ns() < c->end_ns && atomic_load(&wrong) == NULL) {
        uint32_t i = 0, at = draw(c, 100);
        while (at >= actions[i].weight) at -= actions[i++].weight;
        char *said = actions[i].act(c), *none = NULL;
        c->done[i]++;
        if (said != NULL && !atomic_compare_exchange_strong(&wrong, &none, said)) free(said);
    }
    return NULL;
}

/* All at once for so long; then at rest. */
static rest soak(double seconds, uint64_t *seed)
{
    client clients[N_CLIENTS] = {0};
    uint64_t end_ns = sheaf__clock_ns() + (uint64_t)(seconds * (double)SECOND_NS);
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        clients[i].seed = testing_random(seed);
        clients[i].end_ns = end_ns;
        assert_int_equal(pthread_create(&clients[i].thread, NULL, live, &clients[i]), 0);
    }
    for (uint32_t i = 0; i < N_CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    if (wrong != NULL) fail_msg("%s", wrong);
    for (uint32_t i = 0; i < COUNT(actions); i++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < N_CLIENTS; j++) n += clients[j].done[i];
        print_message("# %.0f s: %u %s\n", seconds, n, actions[i].name);
    }
    return rest_wait(&server);
}

static void a_mixed_load_for_long_changes_nothing(void **state)
{
    (void)state;
    uint64_t seed = testing_seed(8);
    const char *text = getenv("SHEAF_SOAK_SECONDS");
    double seconds = text != NULL ? strtod(text, NULL) : SECONDS;
    program_start(&server, (const char *[]){"-m", SERVERS_DEMO, "--kv-cache-budget", "5MiB",
                                            "--prompt-cache-capacity-bytes", "2MiB",
                                            "--prompt-cache-ttl", "2", "--parallel", "6",
                                            "--batch-tokens", "96", "--prefill-chunk", "64",
                                            "--log-level", "warn", NULL});
    known_open(&server);
    rest before = soak(seconds / 4, &seed);
    rest after = soak(seconds * 3 / 4, &seed);
    print_message("# %lld preemptions, %lld entries evicted for room, %lld cancelled, "
                  "%lld tokens reused\n",
                  (long long)program_figure(&server, "preemptions"),
                  (long long)program_figure(&server, "evictions_lru"),
                  (long long)program_figure(&server, "requests.cancelled"),
                  (long long)program_figure(&server, "tokens_reused"));
    rest_compare(&before, &after, MEMORY_MARGIN);
    char *log = program_log(&server);
    if (strstr(log, " error ") != NULL) fail_msg("%s", log);
    free(log);
    known_close();
    program_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_mixed_load_for_long_changes_nothing)};
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
