/* server/http_net.c - the network's thread: it runs libmicrohttpd, notices clients that leave, wakes
 * suspended connections, and keeps time.
 *
 * libmicrohttpd does not look at a connection while it is suspended, so each one's descriptor lies in
 * our epoll set too, for its client's hanging up alone. It is taken out when the connection closes,
 * before its number can be reused.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/http_private.h"

#define TICK_MS         250 /* how exact the timers are while there are connections */
#define CLOSING_TICK_MS 20

void sheaf__http_poke(sheaf__http *http)
{
    uint64_t one = 1;
    (void)!write(http->event_fd, &one, sizeof one);
}

void sheaf__http_wake(sheaf__exchange *x)
{
    sheaf__http *http = x->http;
    x->wants_wake = false;
    if (x->waking) return;
    x->waking = true;
    sheaf__exchange_retain(x);
    pthread_mutex_lock(&http->lock);
    bool first = http->wakes == NULL;
    x->next_wake = http->wakes;
    http->wakes = x;
    pthread_mutex_unlock(&http->lock);
    if (first) sheaf__http_poke(http);
}

bool sheaf__http_is_closing(sheaf__http *http)
{
    pthread_mutex_lock(&http->lock);
    bool closing = http->closing;
    pthread_mutex_unlock(&http->lock);
    return closing;
}

/* ---- connections ------------------------------------------------------------------------- */

static void name_client(struct MHD_Connection *mhd, char *out, size_t room)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info != NULL ? info->client_addr : NULL;
    socklen_t n = a != NULL && a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                        : sizeof(struct sockaddr_in);
    if (a == NULL || getnameinfo(a, n, out, (socklen_t)room, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = 0;
}

/* A peer that has vanished, or whose window stays shut, ends as a stuck one does: by what it does not
 * acknowledge, or, where nothing is sent, by probes. */
static void set_patience(int fd, uint32_t timeout_s)
{
    int one = 1, idle = timeout_s < 32767 ? (int)timeout_s : 32767;
    int interval = idle / 3 + 1, probes = 3;
    unsigned int ms = timeout_s < UINT32_MAX / 1000 ? timeout_s * 1000 : UINT32_MAX / 2;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
}

static void conn_open(sheaf__http *http, struct MHD_Connection *mhd, void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    sheaf__http_conn *conn = info != NULL ? calloc(1, sizeof *conn) : NULL;
    *context = conn;
    if (conn == NULL) return; /* its first request is refused */
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = conn};
    conn->fd = info->connect_fd;
    conn->idle_since_ns = sheaf__clock_ns();
    name_client(mhd, conn->client, sizeof conn->client);
    set_patience(conn->fd, http->options.timeout_s);
    (void)epoll_ctl(http->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event);
    conn->next = http->conns;
    if (http->conns != NULL) http->conns->prev = conn;
    http->conns = conn;
    pthread_mutex_lock(&http->lock);
    http->n_conns++;
    pthread_mutex_unlock(&http->lock);
}

static void conn_close(sheaf__http *http, sheaf__http_conn *conn)
{
    if (conn == NULL) return;
    (void)epoll_ctl(http->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
    if (conn->next != NULL) conn->next->prev = conn->prev;
    if (conn->prev != NULL)
        conn->prev->next = conn->next;
    else
        http->conns = conn->next;
    free(conn);
    http->n_closed++;
    pthread_mutex_lock(&http->lock);
    http->n_conns--;
    pthread_mutex_unlock(&http->lock);
}

void sheaf__http_connected(void *http, struct MHD_Connection *mhd, void **context,
                           enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        conn_open(http, mhd, context);
    else {
        conn_close(http, *context);
        *context = NULL;
    }
}

static void conn_hung_up(sheaf__http *http, sheaf__http_conn *conn)
{
    conn->hung_up = true;
    http->nudge = true;
    if (conn->x != NULL) sheaf__exchange_leave(conn->x);
}

/* Where the end of what a client sends came together with its last bytes, libmicrohttpd reads those and
 * waits for an event to come, which has been. Shutting the half that is shut makes another. */
static void nudge(sheaf__http *http)
{
    http->nudge = false;
    for (sheaf__http_conn *conn = http->conns; conn != NULL; conn = conn->next) {
        bool reads = conn->x == NULL || conn->x->phase < SHEAF__PHASE_RUNNING ||
                     conn->x->phase == SHEAF__PHASE_LINGER;
        if (conn->hung_up && reads) shutdown(conn->fd, SHUT_RD);
    }
}

/* ---- wakes ------------------------------------------------------------------------------- */

static void wake_all(sheaf__http *http)
{
    pthread_mutex_lock(&http->lock);
    sheaf__exchange *x = http->wakes;
    http->wakes = NULL;
    pthread_mutex_unlock(&http->lock);
    while (x != NULL) {
        sheaf__exchange *next = x->next_wake;
        pthread_mutex_lock(&x->lock);
        x->waking = false;
        bool stuck = x->stuck;
        pthread_mutex_unlock(&x->lock);
        if (stuck) sheaf__exchange_leave(x);
        sheaf__exchange_resume(x);
        sheaf__exchange_release(x);
        x = next;
    }
}

/* ---- time -------------------------------------------------------------------------------- */

static void conn_tick(sheaf__http *http, sheaf__http_conn *conn, uint64_t now_ns)
{
    const sheaf__http_options *o = &http->options;
    const uint64_t second = 1000000000u;
    sheaf__exchange *x = conn->x;
    if (x == NULL) { /* bytes that never make a request line */
        if (now_ns - conn->idle_since_ns >
            (o->timeout_s + (uint64_t)o->upload_timeout_s) * second)
            shutdown(conn->fd, SHUT_RDWR);
    } else if (x->phase <= SHEAF__PHASE_BODY) {
        if (now_ns - x->started_ns > o->upload_timeout_s * second) sheaf__http_cut_slow(x);
    } else if (x->phase == SHEAF__PHASE_LINGER) {
        if (now_ns > x->linger_until_ns) shutdown(conn->fd, SHUT_RDWR);
    } else
        sheaf__exchange_keep_alive(x, now_ns);
}

/* Once the server closes: handlers are told at once, what is being sent has a moment to go. */
static void conn_finish(sheaf__http *http, sheaf__http_conn *conn, uint64_t now_ns)
{
    if (conn->x != NULL) sheaf__exchange_leave(conn->x);
    if (conn->x == NULL || conn->x->phase < SHEAF__PHASE_RUNNING ||
        now_ns - http->close_seen_ns > SHEAF__HTTP_FLUSH_NS)
        shutdown(conn->fd, SHUT_RDWR);
}

static void tick(sheaf__http *http, bool closing)
{
    uint64_t now_ns = sheaf__clock_ns();
    if (closing && http->close_seen_ns == 0) http->close_seen_ns = now_ns;
    http->nudge = true;
    for (sheaf__http_conn *conn = http->conns; conn != NULL; conn = conn->next) {
        if (closing)
            conn_finish(http, conn, now_ns);
        else
            conn_tick(http, conn, now_ns);
    }
}

/* ---- the thread -------------------------------------------------------------------------- */

/* Does what other threads asked for: false when the thread is to end. */
static bool obey(sheaf__http *http, bool *closing)
{
    pthread_mutex_lock(&http->lock);
    bool quiesce = http->quiesce && !http->quiet;
    bool stop = http->stop;
    *closing = http->closing;
    pthread_mutex_unlock(&http->lock);
    if (quiesce) {
        int fd = MHD_quiesce_daemon(http->daemon);
        if (fd >= 0) close(fd);
        pthread_mutex_lock(&http->lock);
        http->listen_fd = -1;
        http->quiet = true;
        pthread_cond_broadcast(&http->changed);
        pthread_mutex_unlock(&http->lock);
    }
    return !stop;
}

/* How long to sleep, in milliseconds. */
static int patience(sheaf__http *http, bool closing)
{
    unsigned long long mhd_ms = 0;
    int ms = closing ? CLOSING_TICK_MS : http->conns != NULL ? TICK_MS : -1;
    if (MHD_get_timeout(http->daemon, &mhd_ms) == MHD_YES && (ms < 0 || mhd_ms < (unsigned)ms))
        ms = (int)mhd_ms;
    return ms;
}

/* Waits for events and sees to those that are ours. */
static void wait_events(sheaf__http *http, int ms)
{
    struct epoll_event events[64];
    uint64_t pokes;
    int n = epoll_wait(http->epoll_fd, events, 64, ms);
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &http->event_fd)
            (void)!read(http->event_fd, &pokes, sizeof pokes);
        else if (events[i].data.ptr != http) /* the set of libmicrohttpd's */
            conn_hung_up(http, events[i].data.ptr);
    }
}

void *sheaf__http_network(void *arg)
{
    sheaf__http *http = arg;
    uint64_t ticked_ns = 0, n_closed = 0;
    bool closing = false;
    while (obey(http, &closing)) {
        /* where a connection has closed there is room for another, and only a run of libmicrohttpd
         * has it listen again */
        wait_events(http, n_closed != http->n_closed ? 0 : patience(http, closing));
        n_closed = http->n_closed;
        wake_all(http);
        uint64_t now_ns = sheaf__clock_ns();
        uint64_t every_ns = (closing ? CLOSING_TICK_MS : TICK_MS) * 1000000u;
        if (now_ns - ticked_ns >= every_ns) {
            tick(http, closing);
            ticked_ns = now_ns;
        }
        MHD_run(http->daemon);
        if (http->nudge) nudge(http);
    }
    return NULL;
}
