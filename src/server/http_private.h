/* server/http_private.h - what the files of the HTTP server share.
 *
 *     http.c          opening, closing, statistics
 *     http_listen.c   the listening socket
 *     http_net.c      the network's thread: libmicrohttpd's events, clients that leave, timers
 *     http_request.c  from a request's head to the call of its handler
 *     http_exchange.c replies and streams
 *     http_headers.c  the headers of requests and of replies
 *     http_workers.c  the threads that run handlers
 *
 * libmicrohttpd is run by a thread of ours (its epoll descriptor lies in an epoll set of ours, with the
 * connections' descriptors, watched for clients that leave, and an eventfd): so connections, phases and
 * timers belong to one thread and need no lock, and nothing of libmicrohttpd is called by another
 * thread. Others touch an exchange only under its lock, and then wake the network:
 *
 *     phase    HEAD --> BODY --> RUNNING --> SENDING --> (done)
 *                |        |
 *                +--------+----> LINGER: refused amid the request; the rest is read and dropped
 *
 * An exchange lives as long as one of these holds a reference: the network, until libmicrohttpd is done
 * with the request; the handler, until it gives the exchange back; libmicrohttpd's response; the list of
 * wakes. Order of locks: an exchange's, then the server's.
 */
#ifndef SHEAF_SERVER_HTTP_PRIVATE_H
#define SHEAF_SERVER_HTTP_PRIVATE_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/sha256.h"
#include "server/http.h"

#define SHEAF__HTTP_ID_BYTES 65 /* of a request's id, with its zero */
#define SHEAF__HTTP_MAX_QUEUED                                                                 \
    (4u << 20) /* bytes of a stream: a client with more to read is stuck */
#define SHEAF__HTTP_LINGER_NS 2000000000u /* reading on after a refusal, so that it is read */
#define SHEAF__HTTP_FLUSH_NS  250000000u  /* what is being sent when the server closes */
#define SHEAF__HTTP_SMALL     65536u      /* bytes of a reply that there is always room for */
#define SHEAF__HTTP_BODIES    16u         /* times max_body_bytes: all bodies together */

/* A socket that libmicrohttpd serves. The network's thread alone. */
typedef struct sheaf__http_conn sheaf__http_conn;
struct sheaf__http_conn {
    sheaf__http_conn *next, *prev;
    sheaf__exchange *x; /* the request under way; null: none */
    int fd;
    bool hung_up;           /* its client will send no more, or has left */
    uint64_t idle_since_ns; /* without a request */
    char client[64];
};

enum {
    SHEAF__PHASE_HEAD = 0,    /* the request line is there */
    SHEAF__PHASE_BODY = 1,    /* the head is there */
    SHEAF__PHASE_RUNNING = 2, /* the handler has it */
    SHEAF__PHASE_SENDING = 3, /* libmicrohttpd has the reply */
    SHEAF__PHASE_LINGER = 4   /* refused and half closed */
};

/* A reply: whole, or the head of a stream. */
typedef struct sheaf__http_reply {
    uint32_t status; /* 0: none yet */
    bool stream;
    char content_type[96];
    sheaf__text headers; /* "name\0value\0" ... */
    sheaf__text body;    /* its own, or: */
    const void *data;    /* [n] */
    uint64_t n;
    uint64_t counted; /* of it, in the server's reply_bytes */
} sheaf__http_reply;

struct sheaf__exchange {
    sheaf__http *http;
    _Atomic uint32_t refs;

    /* the network's thread alone */
    struct MHD_Connection *mhd; /* null: libmicrohttpd is done with it */
    sheaf__http_conn *conn;     /* as mhd */
    uint32_t phase;
    bool suspended;
    bool let_go;                /* before a handler had it, without a reply */
    const char *allowed_origin; /* for CORS: null: none */
    sheaf__api_error refusal;   /* status 0: none; what is said once the body has been read */
    uint64_t started_ns, linger_until_ns;
    uint64_t received, sent; /* bytes of the bodies */

    /* written before the handler is called, then constant */
    const sheaf__http_route *route;
    char id[SHEAF__HTTP_ID_BYTES];
    char method[16], path[192];
    sheaf__text query; /* "name\0value\0" ... */
    char *body;        /* [body_bytes + 1]; null: none. Given back with the exchange */
    uint64_t body_bytes, body_capacity;
    sheaf__exchange *next_job;

    pthread_mutex_t lock; /* and what it guards: */
    sheaf__http_reply reply;
    bool dispatched, given_back;
    bool ended;      /* the stream: nothing follows */
    bool left;       /* its client; what is written is dropped */
    bool stuck;      /* its client does not read; the network's thread has yet to see to it */
    bool wants_wake; /* suspended until something happens */
    bool waking;     /* in the list of wakes */
    sheaf__exchange *next_wake;
    char *queue; /* of the stream: [queue_end], read up to queue_start */
    uint64_t queue_start, queue_end, queue_capacity;
    const char *keepalive;
    uint64_t written_ns; /* last time */
    void (*on_left)(void *ctx);
    void *on_left_ctx;
};

struct sheaf__http {
    sheaf__http_options options;                       /* its own copies */
    unsigned char (*key_digests)[SHEAF__SHA256_BYTES]; /* [n_api_keys] */
    struct MHD_Daemon *daemon;
    char mhd_said[256]; /* while opening */
    int listen_fd;      /* libmicrohttpd's; -1 once quiet */
    int epoll_fd, event_fd;
    uint16_t port;
    bool loopback; /* only this machine can connect */
    pthread_t thread;
    pthread_t *workers; /* [n_workers] */
    uint32_t n_workers; /* that run */
    uint64_t id_seed;
    _Atomic uint64_t queued_bytes, body_bytes, reply_bytes;

    /* the network's thread alone */
    sheaf__http_conn *conns;
    uint64_t n_ids;
    uint64_t n_closed;      /* connections */
    bool nudge;             /* some connection may wait for an end that has come */
    uint64_t close_seen_ns; /* 0: not closing */

    pthread_mutex_t lock; /* and what it guards: */
    pthread_cond_t changed;
    uint64_t n_conns, n_exchanges;
    sheaf__exchange *wakes;
    sheaf__exchange *jobs, **jobs_end;
    bool thread_runs;
    bool quiesce, quiet; /* asked for, done */
    bool closing;        /* nothing new is begun */
    bool stop;           /* the network's thread ends */
};

/* http_listen.c. A bound, listening, non-blocking socket. As sheaf__http_open. */
sheaf_status sheaf__http_listen(const sheaf__http_options *options, int *fd, uint16_t *port,
                                bool *loopback, sheaf_error *err);

/* http_net.c */
void *sheaf__http_network(void *http);    /* the thread */
void sheaf__http_poke(sheaf__http *http); /* wakes it. Any thread */
void sheaf__http_wake(
    sheaf__exchange *x); /* has it look at x, whose lock is held. Any thread */
void sheaf__http_connected(void *http, struct MHD_Connection *mhd, void **context,
                           enum MHD_ConnectionNotificationCode what);
bool sheaf__http_is_closing(sheaf__http *http); /* any thread */

/* http_request.c: what libmicrohttpd calls. */
void *sheaf__http_request_line(void *http, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result sheaf__http_access(void *http, struct MHD_Connection *mhd, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *n, void **context);
void sheaf__http_completed(void *http, struct MHD_Connection *mhd, void **context,
                           enum MHD_RequestTerminationCode how);

/* Says what is wrong (what is already known to be, before *e) straight to the socket, amid the request,
 * and lingers. */
void sheaf__http_cut(sheaf__exchange *x, const sheaf__api_error *e);
void sheaf__http_cut_slow(sheaf__exchange *x);

/* http_exchange.c */
sheaf__exchange *sheaf__exchange_create(sheaf__http *http);
void sheaf__exchange_retain(sheaf__exchange *x);
void sheaf__exchange_release(sheaf__exchange *x);
void sheaf__exchange_suspend(sheaf__exchange *x); /* the network's thread, its lock held */
void sheaf__exchange_resume(sheaf__exchange *x);  /* the network's thread */

/* The client has left: unless the exchange has been given back, the handler is told. The network's
 * thread. */
void sheaf__exchange_leave(sheaf__exchange *x);

/* Gives it back without a reply: for a client that has left before its handler was called. */
void sheaf__exchange_drop(sheaf__exchange *x);

void sheaf__exchange_drop_body(sheaf__exchange *x); /* of the request */

/* Fills in the reply for an error; nobody gives the exchange back. The network's thread. */
void sheaf__exchange_refuse(sheaf__exchange *x, const sheaf__api_error *e);
enum MHD_Result sheaf__exchange_send(sheaf__exchange *x); /* hands the reply to libmicrohttpd */
void sheaf__exchange_keep_alive(sheaf__exchange *x, uint64_t now_ns);

/* http_headers.c: what matters of a request's headers; strings are libmicrohttpd's. */
typedef struct sheaf__http_head {
    const char *authorization, *origin, *request_id, *asked_method, *asked_headers;
    const char *host, *fetch_site;
    uint64_t content_length;
    bool has_body;  /* by Content-Length over 0, or Transfer-Encoding */
    bool chunked;   /* of unknown length */
    bool ambiguous; /* where it ends: lengths that contradict, codings not known */
    bool expects;   /* 100-continue */
} sheaf__http_head;
void sheaf__http_head_read(struct MHD_Connection *mhd, sheaf__http_head *head);

/* Whether a key is good; always, where none is asked for. */
bool sheaf__http_key_is_good(const sheaf__http *http, const char *authorization);

/* Whom a browser asks for, where that is the page of a stranger: he could not read the reply, but needs
 * none to fill or empty a cache. By Origin; and where only this machine can connect also by a Host
 * that is none of this machine's, a stranger's name that leads here. Null: nobody, or keys decide. */
const char *sheaf__http_stranger(const sheaf__http *http, const sheaf__http_head *head);

/* The value to allow an origin with; null: it is not allowed. */
const char *sheaf__http_allowed_origin(const sheaf__http *http, const char *origin);

/* Calls fn for each header of the reply that libmicrohttpd does not make. */
typedef void sheaf__http_header_fn(void *ctx, const char *name, const char *value);
void sheaf__http_reply_headers(const sheaf__exchange *x, sheaf__http_header_fn *fn, void *ctx);

/* Appends "name\0value\0". */
sheaf_status sheaf__http_pair_add(sheaf__text *pairs, const char *name, const char *value);
const char *sheaf__http_pair_find(const sheaf__text *pairs, const char *name); /* null: none */

/* http_workers.c */
sheaf_status sheaf__http_workers_start(sheaf__http *http);
void sheaf__http_workers_stop(
    sheaf__http *http); /* closing is set: those that wait are refused */
void sheaf__http_run_later(sheaf__exchange *x); /* its handler, by a worker */

#endif
