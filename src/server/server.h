/* server/server.h - one model, served: what its parts share, and its life.
 *
 * Owns: the engine's thread, the listener, the table of routes. Does not own: the model, flags, signals.
 *
 *     LOADING --serve--> READY --drain--> DRAINING --stop--> STOPPED    only to the right, also by leaps
 *
 *     st = sheaf__server_open(&options, &server, &err);    // listens; /health says 503 "loading"
 *     st = sheaf__server_serve(server, model, &err);       // the engine runs; /health says 200
 *     sheaf__server_drain(server);                         // no new requests; any thread, any number
 *     sheaf__server_stop(server);                          // those that are there are cancelled
 *     sheaf__server_wait(server, timeout_ms);              // until none is left
 *     sheaf__server_close(server);
 *     sheaf__model_close(model);
 */
#ifndef SHEAF_SERVER_SERVER_H
#define SHEAF_SERVER_SERVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "engine/engine.h"
#include "model/identity.h"
#include "server/api.h"
#include "server/http.h"
#include "server/metrics.h"

/* identity and chat_family may also be set in the server's own copy, once they are known, before it
 * serves. */
typedef struct sheaf__server_options {
    sheaf__http_options http;     /* routes, ready, on_done and ctx are set here */
    sheaf__engine_options engine; /* on_event and space are set here; `prefix` is copied */
    const char *model_path;       /* for /props */
    const char *model_name;       /* served as; null: the last part of the path */
    sheaf__identity identity;     /* of the model */
    uint32_t chat_family;         /* SHEAF__CHAT_...; NONE: chats are refused */
    sheaf__log *log;              /* null: none. Must outlive the server */
    /* of one that is put together before it is sent: with log-probabilities, an echo and many choices a
     * small request may ask for ten thousand times its size; 0: 64 MiB. More is a 400 */
    uint64_t max_reply_bytes;
} sheaf__server_options;

enum {
    SHEAF__SERVER_LOADING = 0,
    SHEAF__SERVER_READY = 1,
    SHEAF__SERVER_DRAINING = 2,
    SHEAF__SERVER_STOPPED = 3
};

typedef struct sheaf__server {
    sheaf__server_options options; /* strings are copies */
    sheaf__model *model;           /* from READY on */
    sheaf__engine *engine;
    sheaf__http *http;
    sheaf__log *log;
    sheaf__metrics metrics;
    _Atomic uint32_t state; /* SHEAF__SERVER_...; only goes up */
    int64_t created;        /* seconds since 1970 */
    uint64_t started_ns;
    sheaf_prefix_options prefix; /* what options.engine.prefix points to, unless it is null */
    pthread_t engine_thread;
    bool engine_runs; /* its thread has been started */
    bool engine_over; /* no request is left and none can come; under `mutex`, as all below */
    bool closing, quiesced;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} sheaf__server;

/* Listens. SHEAF_E_NO_MEMORY; else as sheaf__http_open. */
sheaf_status sheaf__server_open(const sheaf__server_options *options, sheaf__server **out,
                                sheaf_error *err);

/* Starts the engine on a model that outlives the server; once. SHEAF_E_CANCELLED: drained or stopped
 * before: nothing was started. SHEAF_E_IO: no thread; else as sheaf__engine_create. */
sheaf_status sheaf__server_serve(sheaf__server *server, sheaf__model *model, sheaf_error *err);

/* No new connection, no new request of the engine. What runs goes on to its end, and each connection
 * that is there may ask once more for what needs no engine run: /health, statistics. */
void sheaf__server_drain(sheaf__server *server);

/* The same, and what runs is cancelled. */
void sheaf__server_stop(sheaf__server *server);

/* True: the engine has ended, and every exchange has been sent or dropped. timeout_ms 0: looks only. */
bool sheaf__server_wait(sheaf__server *server, uint64_t timeout_ms);

/* Stops, waits for the engine's step and for handlers, and gives everything back. Null is allowed. */
void sheaf__server_close(sheaf__server *server);

/* What an API body is checked against. */
sheaf__api_limits sheaf__server_limits(const sheaf__server *server);

/* What the ctx of every ask points to: the first member of what an endpoint keeps of a request. The
 * server's on_event calls hear, whose value it returns. */
typedef struct sheaf__served sheaf__served;
struct sheaf__served {
    int (*hear)(sheaf__served *served, const sheaf__engine_event *event);
    const char *id;    /* of the exchange; good until DONE */
    uint32_t endpoint; /* SHEAF__ENDPOINT_... */
    uint64_t asked_ns; /* when it was submitted */
};

/* ---- the handlers; ctx is the server ----------------------------------------------------- */

/* answer.c: POST /v1/chat/completions, /v1/completions */
sheaf__http_handler sheaf__serve_chat, sheaf__serve_completion;

/* tools.c: POST /tokenize, /detokenize, /apply-template; GET /v1/models, /props */
sheaf__http_handler sheaf__serve_tokenize, sheaf__serve_detokenize, sheaf__serve_template,
    sheaf__serve_models, sheaf__serve_props;

/* cache_api.c: POST /v1/cache/preload, /v1/cache/reset */
sheaf__http_handler sheaf__serve_preload, sheaf__serve_reset;

/* stats.c, prometheus.c: GET /health, /v1/cache/stats, /metrics */
sheaf__http_handler sheaf__serve_health, sheaf__serve_stats, sheaf__serve_metrics;

/* map.c: GET /slots, /v1/cache/map */
sheaf__http_handler sheaf__serve_slots, sheaf__serve_map;

/* page.c: GET /, and what it needs */
sheaf__http_handler sheaf__serve_page;
extern const sheaf__http_route sheaf__page_routes[]; /* [sheaf__n_page_routes] */
extern const uint32_t sheaf__n_page_routes;

#endif
