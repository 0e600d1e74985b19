/* bench/serve_client.h - a client of OpenAI's API over plain HTTP that says when each thing came.
 *
 *     serve_target target;
 *     if (!serve_target_parse(&target, "http://127.0.0.1:8080")) ...
 *     json_t *stats = serve_get(&target, "/v1/cache/stats");
 *     serve_answer a;
 *     serve_stream(&target, "/completions", body, &a);     // waits for the answer's end
 *     double seconds = a.first - a.start;
 *     json_decref(stats), serve_answer_clear(&a);
 *
 * Each call has a connection of its own and blocks; any number of threads may call at once. A server
 * that says nothing for ten minutes is given up.
 */
#ifndef SHEAF_BENCH_SERVE_CLIENT_H
#define SHEAF_BENCH_SERVE_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

typedef struct serve_target {
    char host[256];
    char port[16];
    char base[256];      /* of the API: "/v1" */
    const char *api_key; /* null: none */
} serve_target;

/* An answer as it was streamed. Seconds are those of bench_seconds. */
typedef struct serve_answer {
    uint32_t status; /* of the reply; 0: there was none */
    bool done;       /* the stream came to its end */
    double start;    /* before the connection was made */
    double first;    /* the first event with text or a token; 0: there was none */
    double last;
    char *text; /* [n] and a zero */
    size_t n;
    char *tokens; /* with their log-probabilities as they came, where they were asked for */
    uint64_t n_events;                                    /* with text or a token */
    uint64_t prompt_tokens, answer_tokens, cached_tokens; /* of usage */
    bool has_usage;
    bool has_cached;
    char error[256]; /* the begin of what came instead */
} serve_answer;

/* http://HOST[:PORT][/BASE]; without a base it is "/v1". False: it is none. */
bool serve_target_parse(serve_target *target, const char *url);

/* The JSON at an absolute path; null: there was none, or no status 200. */
json_t *serve_get(const serve_target *target, const char *path);
json_t *serve_post(const serve_target *target, const char *path, const char *body);

/* Posts to a path below the base, and reads the events of the reply. */
void serve_stream(const serve_target *target, const char *path, const char *body,
                  serve_answer *answer);
void serve_answer_clear(serve_answer *answer);

/* A whole number at "a.b"; false: there is none. */
bool serve_number(const json_t *root, const char *path, uint64_t *value);

#endif
