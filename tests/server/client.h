/* tests/server/client.h - clients that ask at the same time, and what each of them was told.
 *
 *     client c[2] = {{.path = "/v1/completions", .body = serving_body("{'prompt': 'a'}")},
 *                    {.path = "/v1/completions", .body = serving_body("{'prompt': 'b'}")}};
 *     clients_run(port, c, 2);
 *     json_t *told = client_told(&c[0]);             // the same for a stream and a whole reply
 *     json_decref(told);
 *     clients_free(c, 2);
 *
 * A client is a thread with a blocking socket of its own.
 */
#ifndef SHEAF_TESTS_SERVER_CLIENT_H
#define SHEAF_TESTS_SERVER_CLIENT_H

#include <pthread.h>

#include "server/servers.h"

typedef struct client {
    const char *path;
    char *body;             /* owned */
    bool leaves;            /* goes away, and has no reply */
    uint32_t leaves_events; /* after about so many events, */
    uint32_t leaves_us;     /* and so long after them */
    http_reply reply;       /* filled in, as the following */
    pthread_t thread;
    uint16_t port;
} client;

/* A client of its own thread begins; clients_join waits for the end of what it asked. */
void client_begin(uint16_t port, client *c);
void clients_join(client *clients, uint32_t n);

/* All at once. */
void clients_run(uint16_t port, client *clients, uint32_t n);
void clients_free(client *clients, uint32_t n);

/* What a reply with status 200 says, streamed or whole:
 *     {"choices": [{"text": ..., "finish_reason": ..., "logprobs": {LIST: [...], ...}}, ...],
 *      "usage": {...}}
 * choices by their index; of log-probabilities all lists, empty where there are none. A stream has usage
 * where it was asked for. */
json_t *client_told(const client *c);

#endif
