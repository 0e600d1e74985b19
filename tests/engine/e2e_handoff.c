/* e2e_handoff.c - a prompt is prefilled in one process and answered in another.
 *
 * The program runs itself again as the process that prefills, which shares no memory with this one but
 * a socket. What comes through it is compared with what was there, tile by tile, and the answer
 * with that of a process that did all by itself.
 */
#include "runs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"

#define MAX_PROMPT  1000
#define NEVER       UINT64_MAX
#define BEFORE_LAST (UINT64_MAX - 1) /* dies one byte before the end of the stream */

static const char *program;
static char cache[64]; /* the digests of models lie here, for both processes */

static const sheaf__model_options bf16 = {.codec_k = SHEAF_CODEC_BF16,
                                          .codec_v = SHEAF_CODEC_BF16};
static const sheaf__model_options int8 = {.codec_k = SHEAF_CODEC_INT8,
                                          .codec_v = SHEAF_CODEC_INT8};
static const sheaf__model_options turbo4 = {.codec_k = SHEAF_CODEC_TURBO4,
                                            .codec_v = SHEAF_CODEC_TURBO4};
static const sheaf__model_options mixed = {.codec_k = SHEAF_CODEC_INT8,
                                           .codec_v = SHEAF_CODEC_TURBO4};

/* ---- tiles ------------------------------------------------------------------------------- */

/* The tiles of K or V of a layer. */
typedef struct tiles {
    unsigned char *data; /* [n][n_heads] segments */
    uint32_t n, n_heads, block, codec;
    uint64_t segment;
} tiles;

/* Sets the slots that no token has to zero: levels, and behind all levels the scales. */
static void clear_tail(const tiles *t, uint32_t length)
{
    uint32_t used = length % t->block;
    if (t->n == 0 || used == 0) return;
    unsigned char *last = t->data + (uint64_t)(t->n - 1) * t->n_heads * t->segment;
    uint64_t scale = sheaf_codec_is_quantized(t->codec) ? sizeof(float) : 0;
    uint64_t row = t->segment / t->block - scale, levels = row * t->block;
    for (uint32_t h = 0; h < t->n_heads; h++, last += t->segment) {
        memset(last + row * used, 0, row * (t->block - used));
        memset(last + levels + scale * used, 0, scale * (t->block - used));
    }
}

/* hashes: [n_layers][2]: of the K and the V tiles that the sequence sees. */
static uint64_t *hash_tiles(const sheaf__model *model, const sheaf_sequence *seq)
{
    uint32_t n_layers = model->config.n_layers, block = sheaf_pool_block_tokens(model->pool);
    uint64_t *hashes = calloc(n_layers, 2 * sizeof *hashes);
    assert_non_null(hashes);
    for (uint32_t l = 0; l < n_layers; l++) {
        sheaf_gather_info info = SHEAF_GATHER_INFO_INIT;
        sheaf_layer_info layer = SHEAF_LAYER_INFO_INIT;
        assert_int_equal(sheaf_sequence_gather_raw(seq, l, NULL, 0, NULL, 0, &info), SHEAF_OK);
        assert_int_equal(sheaf_pool_layer_info(model->pool, l, &layer), SHEAF_OK);
        unsigned char *k = malloc(info.k_bytes), *v = malloc(info.v_bytes);
        assert_true(k != NULL && v != NULL && info.n_blocks != 0);
        assert_int_equal(
            sheaf_sequence_gather_raw(seq, l, k, info.k_bytes, v, info.v_bytes, &info),
            SHEAF_OK);
        tiles of_k = {k,     info.n_blocks,          model->config.n_kv_heads,
                      block, model->options.codec_k, layer.k_segment_bytes};
        tiles of_v = {v,     info.n_blocks,          model->config.n_kv_heads,
                      block, model->options.codec_v, layer.v_segment_bytes};
        clear_tail(&of_k, sheaf_sequence_length(seq));
        clear_tail(&of_v, sheaf_sequence_length(seq));
        hashes[2 * l] = sheaf__hash64(k, info.k_bytes, l);
        hashes[2 * l + 1] = sheaf__hash64(v, info.v_bytes, l);
        free(k);
        free(v);
    }
    return hashes;
}

/* ---- the process that prefills ----------------------------------------------------------- */

/* A sink that counts, and one that ends the process in the middle of what it writes. */
typedef struct mortal {
    int fd;
    uint64_t written, dies_at;
} mortal;

static sheaf_status count_bytes(void *ctx, const void *data, uint64_t n)
{
    (void)data;
    ((mortal *)ctx)->written += n;
    return SHEAF_OK;
}

static sheaf_status write_mortally(void *ctx, const void *data, uint64_t n)
{
    mortal *m = ctx;
    bool dies = m->written + n > m->dies_at;
    uint64_t left = dies ? m->dies_at - m->written : n;
    const unsigned char *at = data;
    m->written += left;
    while (left != 0) {
        ssize_t wrote = write(m->fd, at, left);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return SHEAF_E_IO;
        at += wrote;
        left -= (uint64_t)wrote;
    }
    if (dies) raise(SIGKILL);
    return SHEAF_OK;
}

static sheaf_status send_parked(sheaf_parked *parked, const sheaf_key *space, int fd,
                                uint64_t dies_at, sheaf_error *err)
{
    if (dies_at == NEVER) return sheaf_wire_save_fd(&parked, 1, space, fd, err);
    mortal m = {fd, 0, dies_at};
    if (dies_at == BEFORE_LAST) {
        const sheaf_sink counting = {&m, count_bytes, NULL};
        sheaf_status status = sheaf_wire_save(&parked, 1, space, &counting, err);
        if (status != SHEAF_OK) return status;
        m.dies_at = m.written - 1;
        m.written = 0;
    }
    const sheaf_sink sink = {&m, write_mortally, NULL};
    return sheaf_wire_save(&parked, 1, space, &sink, err);
}

/* prefill DIR N FD DIES-AT K V: sends the first N tokens' blocks, then the hashes of all tiles. */
static int prefill_main(char **argv)
{
    const char *dir = argv[2];
    uint32_t n = (uint32_t)strtoul(argv[3], NULL, 10);
    int fd = atoi(argv[4]);
    const sheaf__model_options o = {.codec_k = (uint32_t)atoi(argv[6]),
                                    .codec_v = (uint32_t)atoi(argv[7])};
    sheaf_error err = {0};
    sheaf__model *model = runs_open(dir, o);
    sheaf_key space = runs_space(model, dir);
    sheaf__kv kv;
    int32_t tokens[MAX_PROMPT];
    sheaf_parked *parked = NULL;
    runs_prompt(tokens, n, 0);
    sheaf_status status = sheaf__model_new_kv(model, &kv);
    if (status == SHEAF_OK) status = sheaf__model_prefill(model, &kv, tokens, n, NULL, &err);
    if (status != SHEAF_OK) goto failed;
    uint64_t *hashes = hash_tiles(model, kv.sequence);
    size_t size = 2 * sizeof *hashes * model->config.n_layers;
    status = sheaf_sequence_park(kv.sequence, &parked);
    if (status == SHEAF_OK)
        status = send_parked(parked, &space, fd, strtoull(argv[5], NULL, 10), &err);
    if (status == SHEAF_OK && write(fd, hashes, size) != (ssize_t)size) status = SHEAF_E_IO;
    free(hashes);
    sheaf_parked_destroy(parked);
    if (status != SHEAF_OK) goto failed;
    sheaf__model_close(model);
    return 0;
failed:
    fprintf(stderr, "the process that prefills: %s\n",
            err.text[0] != 0 ? err.text : sheaf_status_text(status));
    return 1;
}

/* Starts it, with `fd` as its end; closes that here. */
static pid_t start_prefill(const char *dir, const sheaf__model_options *o, uint32_t n, int fd,
                           uint64_t dies_at)
{
    char count[16], end[16], death[24], k[16], v[16];
    snprintf(k, sizeof k, "%u", o->codec_k);
    snprintf(v, sizeof v, "%u", o->codec_v);
    snprintf(count, sizeof count, "%u", n);
    snprintf(end, sizeof end, "%d", fd);
    snprintf(death, sizeof death, "%llu", (unsigned long long)dies_at);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(100);
        execl(program, program, "prefill", dir, count, end, death, k, v, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(close(fd), 0);
    return child;
}

/* ---- the process that decodes ------------------------------------------------------------ */

static void expect_the_same_tiles(const sheaf__model *model, const sheaf_sequence *seq, int fd)
{
    size_t size = 2 * sizeof(uint64_t) * model->config.n_layers, got = 0;
    uint64_t *here = hash_tiles(model, seq), *there = calloc(1, size);
    assert_non_null(there);
    while (got < size) {
        ssize_t n = read(fd, (char *)there + got, size - got);
        assert_true(n > 0);
        got += (size_t)n;
    }
    assert_memory_equal(here, there, size);
    free(here);
    free(there);
}

/* Takes the sequence from the socket, and answers as a process does that ran the prompt itself. */
static void expect_handed_over(const char *dir, const sheaf__model_options *o, uint32_t n,
                               int fd)
{
    int32_t tokens[MAX_PROMPT];
    runs_prompt(tokens, n, 0);
    sheaf__model *model = runs_open(dir, *o), *alone = runs_open(dir, *o);
    sheaf__kv kv = {0}, own;
    runs_answer cold = runs_cold(alone, tokens, n, &own), warm = runs_answer_new(model);
    sheaf_key space = runs_space(model, dir);
    sheaf_error err = {0};
    sheaf_parked *parked = NULL;
    uint32_t n_parked = 0;
    if (sheaf_wire_load_fd(model->pool, &space, fd, &parked, 1, &n_parked, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n_parked, 1);
    assert_int_equal(sheaf_parked_length(parked), n);
    assert_memory_equal(sheaf_parked_tokens(parked), tokens, n * sizeof *tokens);
    assert_int_equal(sheaf_parked_adopt(parked, &kv.sequence), SHEAF_OK);
    expect_the_same_tiles(model, kv.sequence, fd);
    assert_int_equal(sheaf__model_logits(model, &kv, warm.logits, &err), SHEAF_OK);
    runs_decode(model, &kv, &warm);
    runs_expect_equal(&warm, &cold);
    free(cold.logits);
    sheaf__kv_destroy(&kv);
    sheaf__kv_destroy(&own);
    sheaf__model_close(model);
    sheaf__model_close(alone);
}

static void expect_exit(pid_t child, int signal)
{
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    if (signal != 0)
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == signal);
    else
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

/* ends[0] is ours alone. */
static void make_pair(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_not_equal(fcntl(ends[0], F_SETFD, FD_CLOEXEC), -1);
}

static void a_prompt_prefilled_elsewhere_is_answered_here(void **state)
{
    (void)state;
    const struct {
        const char *dir;
        const sheaf__model_options *o;
        uint32_t n;
    } cases[] = {
        {RUNS_DEMO, &bf16, 64},    {RUNS_DEMO, &bf16, 301},    {RUNS_GEMMA, &bf16, 1},
        {RUNS_GEMMA, &bf16, 64},   {RUNS_GEMMA, &bf16, 301},   {RUNS_GEMMA, &bf16, 1000},
        {RUNS_GEMMA, &int8, 301},  {RUNS_GEMMA, &turbo4, 301}, {RUNS_GEMMA, &mixed, 1},
        {RUNS_GEMMA, &mixed, 301}, {RUNS_DEMO, &mixed, 101}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int ends[2];
        make_pair(ends);
        pid_t child = start_prefill(cases[i].dir, cases[i].o, cases[i].n, ends[1], NEVER);
        expect_handed_over(cases[i].dir, cases[i].o, cases[i].n, ends[0]);
        close(ends[0]);
        expect_exit(child, 0);
    }
}

static void tcp_carries_it_too(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int there = socket(AF_INET, SOCK_STREAM, 0);
    if (door < 0 || there < 0 || bind(door, (struct sockaddr *)&at, size) != 0 ||
        listen(door, 1) != 0 || getsockname(door, (struct sockaddr *)&at, &size) != 0 ||
        connect(there, (struct sockaddr *)&at, size) != 0)
        TESTING_SKIP("no TCP on this machine: %s", strerror(errno));
    int here = accept(door, NULL, NULL);
    assert_true(here >= 0 && fcntl(here, F_SETFD, FD_CLOEXEC) != -1);
    close(door);
    pid_t child = start_prefill(RUNS_DEMO, &bf16, 301, there, NEVER);
    expect_handed_over(RUNS_DEMO, &bf16, 301, here);
    close(here);
    expect_exit(child, 0);
}

static void a_process_killed_while_it_sends_leaves_nothing_behind(void **state)
{
    (void)state;
    const char *dirs[] = {RUNS_DEMO, RUNS_GEMMA};
    const uint64_t deaths[] = {0, 1, 16, 700, 9000, BEFORE_LAST};
    const uint32_t n = 101;
    int32_t tokens[MAX_PROMPT];
    runs_prompt(tokens, n, 0);
    for (uint32_t m = 0; m < 2; m++) {
        sheaf__model *model = runs_open(dirs[m], m == 0 ? bf16 : mixed);
        sheaf__kv own, again;
        sheaf_key space = runs_space(model, dirs[m]);
        sheaf_error err = {0};
        runs_answer cold = runs_cold(model, tokens, n, &own);
        runs_counts before = runs_count(model);
        for (uint32_t i = m == 0 ? 4 : 0; i < sizeof deaths / sizeof deaths[0]; i++) {
            int ends[2];
            uint32_t n_parked = 7;
            sheaf_parked *parked = NULL;
            make_pair(ends);
            pid_t child =
                start_prefill(dirs[m], m == 0 ? &bf16 : &mixed, n, ends[1], deaths[i]);
            sheaf_status status =
                sheaf_wire_load_fd(model->pool, &space, ends[0], &parked, 1, &n_parked, &err);
            if (status != SHEAF_E_FORMAT) fail_msg("%d: %s", status, err.text);
            assert_null(parked);
            assert_int_equal(n_parked, 7);
            close(ends[0]);
            expect_exit(child, SIGKILL);
            runs_counts after = runs_count(model);
            assert_memory_equal(&before, &after, sizeof after);
        }
        runs_answer warm = runs_cold(model, tokens, n, &again);
        runs_expect_equal(&warm, &cold);
        free(cold.logits);
        sheaf__kv_destroy(&own);
        sheaf__kv_destroy(&again);
        sheaf__model_close(model);
    }
}

static int set_up(void **state)
{
    (void)state;
    snprintf(cache, sizeof cache, "/tmp/sheaf-handoff-XXXXXX");
    return mkdtemp(cache) == NULL || setenv("XDG_CACHE_HOME", cache, 1) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", cache);
    return system(command);
}

int main(int argc, char **argv)
{
    program = argv[0];
    signal(SIGPIPE, SIG_IGN);
    if (argc == 8 && strcmp(argv[1], "prefill") == 0) return prefill_main(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_prefilled_elsewhere_is_answered_here),
        cmocka_unit_test(tcp_carries_it_too),
        cmocka_unit_test(a_process_killed_while_it_sends_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
