/* tests/server/servers.h - a server on a small model, and requests to it over plain sockets.
 *
 *     serving s;
 *     serving_open(&s, NULL);                            // models/sheaf-demo, on a port of its own
 *     json_t *reply = serving_post(&s, "/v1/completions", 200, "{'prompt': 'a', 'max_tokens': %d}", 4);
 *     json_t *events = serving_stream(&s, "/v1/completions", "{'prompt': 'a', 'stream': true}");
 *     json_decref(reply), json_decref(events);
 *     serving_close(&s);                                 // nothing is left
 *
 * Bodies are written with ' for ". All failures are failed assertions of the running case: call from its
 * thread alone; other threads use http_send and http_receive, which assert nothing.
 */
#ifndef SHEAF_TESTS_SERVER_SERVERS_H
#define SHEAF_TESTS_SERVER_SERVERS_H

#include "testing.h"

#include <jansson.h>

#include "server/server.h"

#define SERVERS_DEMO "models/sheaf-demo"

typedef struct serving {
    sheaf__model *model;
    sheaf__server *server;
    uint16_t port;
} serving;

/* Zero is the default. */
typedef struct serving_options {
    const char *dir; /* of the model; null: the demo's */
    bool no_chat;    /* no template, whatever the model has */
    sheaf__model_options model;
    sheaf__server_options server;
} serving_options;

/* Ready when it returns. `options` may be null. */
void serving_open(serving *s, const serving_options *options);

/* Then no sequence is left, and no table holds a block. */
void serving_close(serving *s);

sheaf__engine_stats serving_stats(const serving *s);

/* Waits until the engine has nothing to do; at most 20 s. */
void serving_idle(const serving *s);

/* Waits until so many requests hold blocks; at most 20 s. */
void serving_running(const serving *s, uint64_t n);

/* ---- over sockets ------------------------------------------------------------------------ */

typedef struct http_reply {
    uint32_t status; /* 0: there was none */
    char *all;       /* head and body as they came */
    char *body;      /* [n], zero-terminated, out of its chunks */
    size_t n;
} http_reply;

/* A connection with one request sent, which asks for the connection to be closed; -1: there is none.
 * body null: none. */
int http_send(uint16_t port, const char *method, const char *path, const char *body);

/* All that comes until the end, and closes it. */
http_reply http_receive(int fd);
void http_reply_free(http_reply *reply);

/* Reads until `text` has come; false: the end came first. The connection stays. */
bool http_await(int fd, const char *text);

http_reply serving_ask(const serving *s, const char *method, const char *path,
                       const char *body);

/* The reply's JSON; its status must be this one. */
json_t *serving_get(const serving *s, const char *path, uint32_t status);
json_t *serving_post(const serving *s, const char *path, uint32_t status, const char *format,
                     ...) __attribute__((format(printf, 4, 5)));

/* The events of a stream in an array; "[DONE]" is a string in it. */
json_t *serving_stream(const serving *s, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same of a reply that is there. */
json_t *http_events(const http_reply *reply);

/* What a body says, with " for '. Free it. */
char *serving_body(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- looking into JSON ------------------------------------------------------------------- */

/* What stands at a path like "choices.0.message.content"; null: nothing does. Borrowed. */
json_t *json_at(json_t *root, const char *path);

/* The same; nothing there fails. */
const char *text_at(json_t *root, const char *path);
int64_t number_at(json_t *root, const char *path);

#endif
