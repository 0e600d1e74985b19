/* bench/prefix_move.c - what moves blocks: the wire format, and compaction after churn. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "prefix_rig.h"
#include "sheaf/wire.h"

#define BLOCK RIG_BLOCK_TOKENS

static void system_must(bool done, const char *what)
{
    if (done) return;
    perror(what);
    exit(1);
}

/* ---- saving and loading ------------------------------------------------------------------- */

/* A block as a model of 28 layers has it: 3.5 MiB. */
static const sheaf_layer real_layer = {.n_kv_heads = 8,
                                       .key_dim = 128,
                                       .value_dim = 128,
                                       .codec_k = SHEAF_CODEC_BF16,
                                       .codec_v = SHEAF_CODEC_BF16};
#define REAL_LAYERS   28
#define PIECE_BYTES   (1u << 20) /* what the other end of a pipe takes or gives at once */
#define SHARED_FOLDER "/dev/shm"

typedef struct wire {
    rig r;
    sheaf_parked *parked;
    unsigned char *stream; /* [n_bytes]: what saving writes */
    unsigned char *buffer; /* [n_bytes]: where plain reading puts it */
    uint64_t n_bytes;
    char path[512], aside[520];
    int (*connect)(int ends[2]); /* of streams: ends[0] is read, ends[1] written */
    int fds[2];                  /* this end, and the other thread's */
} wire;

static void plain_write(int fd, const unsigned char *data, uint64_t n)
{
    for (uint64_t at = 0; at < n;) {
        ssize_t did = write(fd, data + at, n - at);
        system_must(did > 0, "write");
        at += (uint64_t)did;
    }
}

static void plain_read(int fd, unsigned char *data, uint64_t n)
{
    for (uint64_t at = 0; at < n;) {
        ssize_t did = read(fd, data + at, n - at);
        system_must(did > 0, "read");
        at += (uint64_t)did;
    }
}

static void save(wire *w, int fd)
{
    rig_must(sheaf_wire_save_fd(&w->parked, 1, &w->r.space, fd, NULL), "save");
}

static void load(wire *w, int fd)
{
    sheaf_parked *loaded = NULL;
    uint32_t n = 0;
    rig_must(sheaf_wire_load_fd(w->r.pool, &w->r.space, fd, &loaded, 1, &n, NULL), "load");
    sheaf_parked_destroy(loaded);
}

static int create_file(const char *path)
{
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    system_must(fd >= 0, path);
    return fd;
}

static void save_to_path(void *arg)
{
    wire *w = arg;
    int fd = create_file(w->path);
    save(w, fd);
    close(fd);
}

static void write_to_path(void *arg)
{
    wire *w = arg;
    int fd = create_file(w->path);
    plain_write(fd, w->stream, w->n_bytes);
    close(fd);
}

static void load_from_path(void *arg)
{
    wire *w = arg;
    int fd = open(w->path, O_RDONLY | O_CLOEXEC);
    system_must(fd >= 0, w->path);
    load(w, fd);
    close(fd);
}

static void read_from_path(void *arg)
{
    wire *w = arg;
    int fd = open(w->path, O_RDONLY | O_CLOEXEC);
    system_must(fd >= 0, w->path);
    plain_read(fd, w->buffer, w->n_bytes);
    close(fd);
}

static void save_file(void *arg)
{
    wire *w = arg;
    rig_must(sheaf_wire_save_file(&w->parked, 1, &w->r.space, w->path, NULL), "save a file");
}

/* As saving a file does: beside it, synchronised, renamed into place. */
static void write_file(void *arg)
{
    wire *w = arg;
    int fd = create_file(w->aside);
    plain_write(fd, w->stream, w->n_bytes);
    system_must(fsync(fd) == 0, "fsync");
    close(fd);
    system_must(rename(w->aside, w->path) == 0, "rename");
}

/* ---- streams: the other end is a thread of this process ------------------------------------- */

static int connect_pipe(int ends[2])
{
    return pipe(ends);
}

static int connect_sockets(int ends[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
}

static void *drain(void *arg)
{
    wire *w = arg;
    unsigned char *piece = malloc(PIECE_BYTES);
    while (piece != NULL && read(w->fds[1], piece, PIECE_BYTES) > 0) continue;
    free(piece);
    return NULL;
}

static void *feed(void *arg)
{
    wire *w = arg;
    plain_write(w->fds[1], w->stream, w->n_bytes);
    return NULL;
}

static void with_other(wire *w, void *(*other)(void *), bool writes,
                       void (*work)(wire *w, int fd))
{
    int ends[2];
    pthread_t thread;
    system_must(w->connect(ends) == 0, "connect");
    w->fds[0] = ends[writes ? 1 : 0];
    w->fds[1] = ends[writes ? 0 : 1];
    system_must(pthread_create(&thread, NULL, other, w) == 0, "start a thread");
    work(w, w->fds[0]);
    close(w->fds[0]);
    pthread_join(thread, NULL);
    close(w->fds[1]);
}

static void write_stream(wire *w, int fd)
{
    plain_write(fd, w->stream, w->n_bytes);
}

static void read_stream(wire *w, int fd)
{
    plain_read(fd, w->buffer, w->n_bytes);
}

static void save_to_other(void *arg)
{
    with_other(arg, drain, true, save);
}

static void write_to_other(void *arg)
{
    with_other(arg, drain, true, write_stream);
}

static void load_from_other(void *arg)
{
    with_other(arg, feed, false, load);
}

static void read_from_other(void *arg)
{
    with_other(arg, feed, false, read_stream);
}

/* ---- the table ------------------------------------------------------------------------------ */

static void wire_path(wire *w, const char *folder)
{
    snprintf(w->path, sizeof w->path, "%s/sheaf-bench-%ld.kv", folder, (long)getpid());
    snprintf(w->aside, sizeof w->aside, "%s.plain", w->path);
}

/* Ends with the stream in memory. */
static void wire_open(wire *w, uint64_t seed, uint32_t n_blocks)
{
    *w = (wire){0};
    uint64_t budget = (uint64_t)(n_blocks + 64) * 2 * (4u << 20);
    rig_open(&w->r, &real_layer, REAL_LAYERS, budget, 4, n_blocks, seed);
    int32_t *tokens = malloc((uint64_t)n_blocks * BLOCK * sizeof *tokens);
    system_must(tokens != NULL, "prepare");
    rig_tokens(&w->r, tokens, n_blocks * BLOCK);
    sheaf_sequence *seq = NULL;
    rig_append(&w->r, &seq, tokens, n_blocks * BLOCK);
    rig_must(sheaf_sequence_park(seq, &w->parked), "park");
    free(tokens);
    struct stat info;
    wire_path(w, SHARED_FOLDER);
    save_to_path(w);
    system_must(stat(w->path, &info) == 0, w->path);
    w->n_bytes = (uint64_t)info.st_size;
    w->stream = bench_map(w->n_bytes);
    w->buffer = bench_map(w->n_bytes);
    system_must(w->stream != NULL && w->buffer != NULL, "prepare");
    read_from_path(w);
    memcpy(w->stream, w->buffer, w->n_bytes);
}

static void wire_close(wire *w)
{
    sheaf_parked_destroy(w->parked);
    rig_close(&w->r);
    bench_unmap(w->stream, w->n_bytes);
    bench_unmap(w->buffer, w->n_bytes);
}

static void wire_row(bench *b, wire *w, const char *name, void (*fn)(void *),
                     void (*plain)(void *))
{
    bench_best best;
    bench_compare(b, (double)w->n_bytes, fn, w, plain, w, &best);
    bench_row(b, name, best.rate * 1e-9, best.ceiling * 1e-9, best.ratio);
}

void bench_wire_rows(bench *b, uint64_t seed, const char *folder)
{
    static const bench_column columns[] = {
        {"sheaf", "GB/s"}, {"plain", "GB/s"}, {"sheaf / plain", "ratio"}};
    wire w;
    wire_open(&w, seed, b->quick ? 6 : 20);
    bench_table(b, columns, 3);
    wire_row(b, &w, "save, " SHARED_FOLDER, save_to_path, write_to_path);
    wire_row(b, &w, "load, " SHARED_FOLDER, load_from_path, read_from_path);
    unlink(w.path);
    wire_path(&w, folder);
    wire_row(b, &w, "save, the folder", save_to_path, write_to_path);
    wire_row(b, &w, "load, the folder", load_from_path, read_from_path);
    wire_row(b, &w, "save a file, synchronised", save_file, write_file);
    unlink(w.path);
    w.connect = connect_pipe;
    wire_row(b, &w, "save, pipe", save_to_other, write_to_other);
    wire_row(b, &w, "load, pipe", load_from_other, read_from_other);
    w.connect = connect_sockets;
    wire_row(b, &w, "save, socket pair", save_to_other, write_to_other);
    wire_row(b, &w, "load, socket pair", load_from_other, read_from_other);
    bench_note(b, "%.1f MB: %u tokens, blocks of %.1f MiB; the folder is %s; mark: 0.8",
               (double)w.n_bytes * 1e-6, sheaf_parked_length(w.parked),
               (double)w.r.block_bytes / (1 << 20), folder);
    wire_close(&w);
}

/* ---- churn ---------------------------------------------------------------------------------- */

#define N_REQUESTS 8
#define MIN_BLOCKS 10
#define MAX_BLOCKS 60

typedef struct churn {
    double in_use, reserved,
        after;                  /* MiB: after evicting; reserved before and after compacting */
    double ratio, ratio_before; /* reserved against in use and slack */
    uint64_t moved;
    double seconds;
} churn;

/* Requests take turns, a block each; one that is done is published and another takes its place, until
 * the cache holds n_blocks. */
static void serve(rig *r, uint64_t n_blocks)
{
    sheaf_sequence *seqs[N_REQUESTS] = {NULL};
    uint32_t left[N_REQUESTS] = {0};
    int32_t tokens[BLOCK];
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    do {
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            if (left[i] == 0)
                left[i] =
                    MIN_BLOCKS + (uint32_t)(rig_random(r) % (MAX_BLOCKS - MIN_BLOCKS + 1));
            rig_tokens(r, tokens, BLOCK);
            rig_append(r, &seqs[i], tokens, BLOCK);
            if (--left[i] != 0) continue;
            rig_publish(r, seqs[i]);
            sheaf_sequence_destroy(seqs[i]);
            seqs[i] = NULL;
        }
        rig_must(sheaf_prefix_stats_read(r->cache, &stats), "read statistics");
    } while (stats.blocks_held < n_blocks);
    for (uint32_t i = 0; i < N_REQUESTS; i++) sheaf_sequence_destroy(seqs[i]);
}

static double reserved_ratio(const rig *r, const sheaf_pool_stats *stats)
{
    return (double)stats->bytes_reserved / (double)(stats->bytes_in_use + r->slab_bytes);
}

static void churn_once(uint64_t n_blocks, uint64_t seed, churn *out)
{
    rig r;
    rig_open(&r, &real_layer, 1, (n_blocks + 1024) * (128u << 10), 32, 1, seed);
    serve(&r, n_blocks);
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    rig_must(sheaf_pool_stats_read(r.pool, &stats), "read statistics");
    rig_must(sheaf_prefix_evict(r.cache, stats.bytes_in_use / 4 * 3, NULL), "evict");
    rig_must(sheaf_pool_stats_read(r.pool, &stats), "read statistics");
    *out = (churn){.in_use = (double)stats.bytes_in_use / (1 << 20),
                   .reserved = (double)stats.bytes_reserved / (1 << 20),
                   .ratio_before = reserved_ratio(&r, &stats)};
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    sheaf_status status;
    double start = rig_cpu_seconds();
    do {
        status = sheaf_pool_compact(r.pool, 64, &done);
        out->moved += done.blocks_moved;
    } while (status == SHEAF_PENDING);
    out->seconds = rig_cpu_seconds() - start;
    rig_must(status, "compact");
    rig_must(sheaf_pool_stats_read(r.pool, &stats), "read statistics");
    out->after = (double)stats.bytes_reserved / (1 << 20);
    out->ratio = reserved_ratio(&r, &stats);
    rig_close(&r);
}

/* Seconds of a memcpy of a block from one random place to another. */
static double copy_block(uint64_t n_blocks, uint64_t n_copies, uint64_t seed)
{
    const uint64_t bytes = 128u << 10;
    rig r = {.random = seed};
    unsigned char *memory = bench_map(2 * n_blocks * bytes);
    system_must(memory != NULL, "prepare");
    double start = rig_cpu_seconds();
    for (uint64_t i = 0; i < n_copies; i++) {
        uint64_t from = rig_random(&r) % n_blocks, to = n_blocks + rig_random(&r) % n_blocks;
        memcpy(memory + to * bytes, memory + from * bytes, bytes);
    }
    double seconds = rig_cpu_seconds() - start;
    bench_unmap(memory, 2 * n_blocks * bytes);
    return seconds / (double)n_copies;
}

void bench_churn_rows(bench *b, uint64_t seed)
{
    static const bench_column columns[] = {
        {"in use", "MiB"},           {"reserved", "MiB"},        {"compacted", "MiB"},
        {"of use + slack", "ratio"}, {"before", "ratio"},        {"a moved block", "us"},
        {"memcpy of one", "us"},     {"moved / memcpy", "ratio"}};
    const uint64_t n_blocks = b->quick ? 600 : 1945;
    bench_table(b, columns, 8);
    churn worst = {0};
    double moved = INFINITY, copied = INFINITY;
    for (uint32_t i = 0; i < (b->quick ? 2u : 5u); i++) {
        churn c;
        churn_once(n_blocks, seed + i, &c);
        moved = fmin(moved, c.seconds / (double)c.moved);
        copied = fmin(copied, copy_block(n_blocks, c.moved, seed + i));
        if (c.ratio > worst.ratio) worst = c;
    }
    bench_row(b, "8 interleaved requests, to a quarter", worst.in_use, worst.reserved,
              worst.after, worst.ratio, worst.ratio_before, moved * 1e6, copied * 1e6,
              moved / copied);
    bench_note(
        b,
        "the worst of %u runs and the quickest move; %llu blocks of 128 KiB moved in it; "
        "mark: 1.25",
        b->quick ? 2u : 5u, (unsigned long long)worst.moved);
}
