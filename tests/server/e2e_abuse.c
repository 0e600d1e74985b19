/* tests/server/e2e_abuse.c - clients that leave at any moment, read nothing, send half of something or
 * very slowly: nothing of them stays, and whoever asks well beside them is told what is right.
 *
 * Guests come 24 at a time, each with a phase in which it leaves:
 *
 *     UPLOAD    a part of a request has been sent
 *     QUEUED    at once after it, behind all others
 *     PREFILL   a little later, while its long prompt is run or waits for it
 *     TOKENS    after some events of its stream
 *     END       when the reply begins or its last token is told, before the end of it
 *
 * They leave by closing, by a reset, or by ending their side and waiting for the server's.
 */
#include "server/known.h"
#include "server/rest.h"
#include "server/web.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMPLETIONS   "/v1/completions"
#define N_AT_ONCE     24
#define N_GUESTS      3000
#define N_WARM        500
#define N_SLOW        6
#define N_STALLED     3
#define N_WELL        3
#define TIMEOUT_S     "3"
#define MEMORY_MARGIN (4u << 20)
#define GUEST_MS      30000 /* no guest takes longer, leaving included */

enum { UPLOAD, QUEUED, PREFILL, TOKENS, END, LEAVING, N_PHASES };
static const char *const phases[] = {"UPLOAD", "QUEUED", "PREFILL", "TOKENS", "END"};

typedef struct guest {
    int fd; /* -1: none */
    uint32_t phase;
    uint64_t leave_ms; /* at the latest, by web_ms; LEAVING: it is a fault then */
    uint32_t n_events; /* to be read before it leaves */
    char tail[16];     /* of what came, so that marks on a border are seen */
} guest;

static uint64_t seed;
static program server;
static guest guests[N_AT_ONCE];
static uint32_t n_left[N_PHASES];

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(testing_random(&seed) % n);
}

/* ---- what is sent ------------------------------------------------------------------------ */

static char *body_of(uint32_t n_prompt, uint32_t n_answer, bool stream)
{
    char ids[8 * 512], *at = ids;
    assert_true(n_prompt > 0 && n_prompt <= 512);
    for (uint32_t i = 0; i < n_prompt; i++)
        at += sprintf(at, "%s%u", i == 0 ? "" : ",", 300 + draw(3000));
    return serving_body("{'prompt': [%s], 'max_tokens': %u, 'ignore_eos': true, 'stream': %s, "
                        "'n': %u, 'seed': 1, 'prompt_cache_key': 'abuse'}",
                        ids, n_answer, stream ? "true" : "false", 1 + draw(8) / 7);
}

/* A whole request. */
static char *request_of(char *body)
{
    char *request = NULL;
    assert_true(asprintf(&request,
                         "POST " COMPLETIONS
                         " HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                         strlen(body), body) > 0);
    free(body);
    return request;
}

/* ---- guests ------------------------------------------------------------------------------ */

static void begin(guest *g)
{
    static const uint32_t share[] = {UPLOAD, UPLOAD,  QUEUED,  QUEUED, QUEUED,
                                     QUEUED, PREFILL, PREFILL, TOKENS, END};
    *g = (guest){.phase = share[draw(10)]};
    char *request = NULL;
    switch (g->phase) {
    case UPLOAD:
    case QUEUED: request = request_of(body_of(1 + draw(300), 100, draw(2) == 0)); break;
    case PREFILL: request = request_of(body_of(100 + draw(400), 100, draw(2) == 0)); break;
    case TOKENS:
        g->n_events = 1 + draw(6);
        request = request_of(body_of(1 + draw(40), 2000, true));
        break;
    default:
        g->n_events = draw(4); /* its last, or the mark after it; 0: the reply's first byte */
        request = request_of(body_of(1 + draw(40), 1 + draw(3), g->n_events > 0));
        break;
    }
    uint64_t n = strlen(request);
    g->fd = web_connect(server.net.port);
    g->leave_ms = web_ms() + (g->phase == PREFILL  ? draw(60)
                              : g->phase < PREFILL ? draw(4)
                                                   : GUEST_MS);
    web_send_bytes(g->fd, request, g->phase == UPLOAD ? draw((uint32_t)n) : n);
    free(request);
}

static void leave(guest *g)
{
    n_left[g->phase]++;
    const struct linger at_once = {1, 0};
    switch (draw(4)) {
    case 0: /* waits until the server has understood */
        shutdown(g->fd, SHUT_WR);
        g->phase = LEAVING;
        g->leave_ms = web_ms() + GUEST_MS;
        return;
    case 1: setsockopt(g->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once); break;
    default: break;
    }
    close(g->fd);
    g->fd = -1;
}

/* Reads what is there, and counts events; false: the server has closed. */
static bool read_some(guest *g)
{
    char data[4096 + sizeof g->tail];
    size_t kept = strlen(g->tail);
    memcpy(data, g->tail, kept);
    ssize_t got = recv(g->fd, data + kept, 4096 - 1, MSG_DONTWAIT);
    if (got <= 0) return false;
    data[kept + (size_t)got] = 0;
    for (const char *at = data; (at = strstr(at, "data: ")) != NULL; at += 6, kept = 0)
        if (g->n_events > 0) g->n_events--;
    const char *end = data + strlen(data);
    size_t keep = (size_t)(end - data) < 5 ? (size_t)(end - data) : 5; /* less than a mark */
    memcpy(g->tail, end - keep, keep + 1);
    return true;
}

static void go_on(guest *g, bool readable)
{
    bool over = web_ms() >= g->leave_ms;
    if (readable && !read_some(g)) { /* a reply that was whole, or understood */
        if (g->phase != LEAVING) n_left[g->phase]++;
        close(g->fd);
        g->fd = -1;
        return;
    }
    if (over && g->phase >= TOKENS) fail_msg("a guest in phase %u waits in vain", g->phase);
    bool told = readable && g->phase >= TOKENS && g->n_events == 0;
    if (g->phase != LEAVING && (over || told)) leave(g);
}

/* ---- slow ones, beside the guests -------------------------------------------------------- */

static struct {
    int fd;
    char *request;
    uint64_t n, sent, next_ms;
} slow[N_SLOW];

static void slow_begin(uint32_t i)
{
    slow[i].request = request_of(
        serving_body("{'prompt': 'It was%*s', 'max_tokens': 3, 'temperature': 0}", 400, ""));
    slow[i].n = strlen(slow[i].request);
    slow[i].sent = slow[i].next_ms = 0;
    slow[i].fd = web_connect(server.net.port);
}

static void slow_go_on(uint32_t i, bool all)
{
    uint64_t n = all ? slow[i].n : 1 + draw(4);
    if (slow[i].sent == slow[i].n || (!all && web_ms() < slow[i].next_ms)) return;
    if (n > slow[i].n - slow[i].sent) n = slow[i].n - slow[i].sent;
    assert_true(web_send_bytes(slow[i].fd, slow[i].request + slow[i].sent, n));
    slow[i].sent += n;
    slow[i].next_ms = web_ms() + 100;
}

/* The rest of each at once. */
static void slow_hurry(void)
{
    for (uint32_t i = 0; i < N_SLOW; i++) slow_go_on(i, true);
}

/* Each is told the same as the others. */
static void slow_end(void)
{
    char *first = NULL;
    for (uint32_t i = 0; i < N_SLOW; i++) {
        web_reply r;
        assert_true(web_read(slow[i].fd, &r));
        if (r.status != 200) fail_msg("a slow client: %d %s", r.status, r.body);
        json_t *said = json_loads(r.body, 0, NULL);
        const char *text = text_at(said, "choices.0.text");
        if (first == NULL) first = strdup(text);
        assert_string_equal(text, first);
        json_decref(said);
        web_reply_free(&r);
        close(slow[i].fd);
        free(slow[i].request);
    }
    free(first);
}

/* Who says half of something and then nothing, or reads nothing of what was asked for. */
static int stalled[3 * N_STALLED];

static void stalled_begin(void)
{
    for (uint32_t i = 0; i < 3 * N_STALLED; i++) {
        stalled[i] = web_connect(server.net.port);
        if (i % 3 == 0) continue; /* not a byte */
        if (i % 3 == 1) {
            web_send(stalled[i], "POST " COMPLETIONS " HTTP/1.1\r\nHost: x\r\nContent-Len");
            continue;
        }
        int little = 4096;
        setsockopt(stalled[i], SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
        char *request =
            request_of(serving_body("{'prompt': 'It was', 'max_tokens': 7000, 'logprobs': 20, "
                                    "'stream': true, 'ignore_eos': true}"));
        web_send(stalled[i], request);
        free(request);
    }
}

/* The server has got rid of them by itself. */
static void stalled_end(void)
{
    rest_wait(&server);
    for (uint32_t i = 0; i < 3 * N_STALLED; i++) close(stalled[i]);
}

/* ---- who asks well ----------------------------------------------------------------------- */

static atomic_bool enough;
typedef struct undisturbed {
    pthread_t thread;
    uint32_t first, n;
    char *wrong;
} undisturbed;

static void *ask_well(void *arg)
{
    undisturbed *u = arg;
    while (!atomic_load(&enough) && u->wrong == NULL)
        u->wrong = known_ask(server.net.port, (u->first + u->n++) % N_KNOWN);
    return NULL;
}

/* ---- cases ------------------------------------------------------------------------------- */

static void entertain(uint32_t n)
{
    struct pollfd fds[N_AT_ONCE];
    uint32_t n_begun = 0, n_there;
    for (uint32_t i = 0; i < N_AT_ONCE; i++) guests[i].fd = -1;
    do {
        n_there = 0;
        for (uint32_t i = 0; i < N_AT_ONCE; i++) {
            if (guests[i].fd < 0 && n_begun < n) {
                begin(&guests[i]);
                n_begun++;
            }
            fds[i] = (struct pollfd){.fd = guests[i].fd, .events = POLLIN};
            n_there += guests[i].fd >= 0;
        }
        poll(fds, N_AT_ONCE, 2);
        for (uint32_t i = 0; i < N_AT_ONCE; i++)
            if (guests[i].fd >= 0) go_on(&guests[i], fds[i].revents != 0);
        for (uint32_t i = 0; i < N_SLOW; i++) slow_go_on(i, false);
    } while (n_there > 0);
}

/* A round of n guests, with slow and stalled ones and some who ask well beside them; how many answers
 * these got goes to *n_right. */
static rest round_of(uint32_t n, uint32_t *n_right)
{
    undisturbed well[N_WELL];
    atomic_store(&enough, false);
    for (uint32_t i = 0; i < N_SLOW; i++) slow_begin(i);
    stalled_begin();
    for (uint32_t i = 0; i < N_WELL; i++) {
        well[i] = (undisturbed){.first = i * N_KNOWN / N_WELL};
        assert_int_equal(pthread_create(&well[i].thread, NULL, ask_well, &well[i]), 0);
    }
    entertain(n);
    slow_hurry(); /* before anybody is waited for: they have TIMEOUT_S from one piece to the next */
    atomic_store(&enough, true);
    *n_right = 0;
    for (uint32_t i = 0; i < N_WELL; i++) {
        pthread_join(well[i].thread, NULL);
        if (well[i].wrong != NULL) fail_msg("%s", well[i].wrong);
        *n_right += well[i].n;
    }
    slow_end();
    stalled_end();
    return rest_wait(&server);
}

static uint32_t guests_asked(void)
{
    const char *text = getenv("SHEAF_GUESTS");
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : N_GUESTS;
}

static void nothing_stays_of_thousands_who_leave_at_any_moment(void **state)
{
    (void)state;
    uint32_t n = guests_asked(), n_right;
    program_start(&server,
                  (const char *[]){"-m", SERVERS_DEMO, "--kv-cache-budget", "24MiB",
                                   "--timeout", TIMEOUT_S, "--batch-tokens", "64",
                                   "--prefill-chunk", "32", "--log-level", "warn", NULL});
    known_open(&server);
    rest before = round_of(n < N_WARM ? n : N_WARM, &n_right);
    memset(n_left, 0, sizeof n_left);
    int64_t cancelled = program_figure(&server, "requests.cancelled");
    rest after = round_of(n, &n_right);
    cancelled = program_figure(&server, "requests.cancelled") - cancelled;
    for (uint32_t i = 0; i < LEAVING; i++)

        print_message("# %u left in phase %s\n", n_left[i], phases[i]);
    print_message("# %lld of the engine's requests cancelled; %u right answers beside them\n",
                  (long long)cancelled, n_right);
    rest_compare(&before, &after, MEMORY_MARGIN);
    assert_true(cancelled > n / 12); /* a tenth leave amid tokens */
    assert_true(n_right > 0);
    char *log = program_log(&server);
    if (strstr(log, " error ") != NULL) fail_msg("%s", log);
    free(log);
    known_close();
    program_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stays_of_thousands_who_leave_at_any_moment),
    };
    seed = testing_seed(5);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
