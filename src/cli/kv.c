/* cli/kv.c - `sheaf kv`: what a file of keys and values holds, and whether it is whole.
 *
 * Needs no model and no pool: the stream is read once, front to end, and all that it says of itself
 * is checked on the way (docs/format.md). verify takes constant memory; dump keeps what it shows.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "cache/wire.h"
#include "cli/cli.h"

typedef struct kv_flags {
    const char *action;
    const char *file;
    bool frames;
    bool tokens;
    bool json;
} kv_flags;

/* One frame. */
typedef struct frame {
    char kind[16];
    uint64_t offset;
    uint64_t n_bytes;
} frame;

/* What dump has seen; grows as the stream really comes. */
typedef struct dump {
    const kv_flags *flags;
    sheaf__memory memory;
    sheaf_wire_info info;
    frame *frames; /* [n_frames] */
    uint64_t n_frames, frames_room;
    sheaf__wire_sequence *sequences; /* [n_sequences] */
    uint64_t n_sequences, sequences_room;
    sheaf_key key;     /* of a single block */
    sheaf__ids tokens; /* of all sequences, or the block */
    sheaf_status status;
} dump;

static sheaf_status parse(int argc, char **argv, kv_flags *f, bool *done, sheaf_error *err)
{
    sheaf__flags flags = {0};
    const uint32_t on = SHEAF__FLAG_SWITCH;
    sheaf__flags_word(&flags, "what to do", &f->action);
    sheaf__flags_word(&flags, "FILE", &f->file);
    sheaf__flags_add(&flags, on, "frames", &f->frames, "dump: list every frame");
    sheaf__flags_add(&flags, on, "tokens", &f->tokens, "dump: print the token ids");
    sheaf__flags_add(&flags, on, "json", &f->json, "dump: print JSON");
    SHEAF__TRY(sheaf__flags_parse(&sheaf__command_kv, &flags, argc, argv, done, err));
    if (*done) return sheaf__cli_flush(err);
    bool is_dump = strcmp(f->action, "dump") == 0;
    if (!is_dump && strcmp(f->action, "verify") != 0)
        return sheaf__error_set(err, SHEAF_E_USAGE, "'%.80s': neither dump nor verify",
                                f->action);
    if (is_dump || (!f->frames && !f->tokens && !f->json)) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_USAGE, "--%s: is for dump; verify says one sentence",
                            f->frames   ? "frames"
                            : f->tokens ? "tokens"
                                        : "json");
}

/* ---- reading ----------------------------------------------------------------------------- */

static void on_frame(void *ctx, uint64_t offset, const char *kind, uint64_t n_bytes)
{
    dump *d = ctx;
    void *frames = d->frames;
    if (d->status != SHEAF_OK) return;
    d->status = sheaf__memory_grow(&d->memory, &frames, &d->frames_room, d->n_frames + 1,
                                   sizeof *d->frames);
    if (d->status != SHEAF_OK) return;
    d->frames = frames;
    frame *f = &d->frames[d->n_frames++];
    *f = (frame){.offset = offset, .n_bytes = n_bytes};
    snprintf(f->kind, sizeof f->kind, "%s", kind);
}

static void on_sequence(void *ctx, const sheaf__wire_sequence *sequence)
{
    dump *d = ctx;
    void *sequences = d->sequences;
    if (d->status != SHEAF_OK) return;
    d->status = sheaf__memory_grow(&d->memory, &sequences, &d->sequences_room,
                                   d->n_sequences + 1, sizeof *d->sequences);
    if (d->status != SHEAF_OK) return;
    d->sequences = sequences;
    d->sequences[d->n_sequences++] = *sequence;
}

static void on_key(void *ctx, const sheaf_key *key)
{
    ((dump *)ctx)->key = *key;
}

static void on_tokens(void *ctx, const int32_t *tokens, uint32_t n)
{
    dump *d = ctx;
    for (uint32_t i = 0; i < n && d->status == SHEAF_OK && d->flags->tokens; i++)
        d->status = sheaf__ids_push(&d->tokens, tokens[i]);
}

/* Opens FILE, or takes standard input for "-". */
static sheaf_status open_file(const char *path, int *fd, sheaf_error *err)
{
    *fd = STDIN_FILENO;
    if (strcmp(path, "-") == 0) return SHEAF_OK;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd >= 0) return SHEAF_OK;
    char shown[SHEAF__BRIEF];
    const char *why = strerror(errno);
    return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", sheaf__path_show(path, shown), why);
}

/* Whether the file ends where its stream does; a pipe may go on with what is another's. */
static sheaf_status check_end(const char *name, int fd, uint64_t n_bytes, sheaf_error *err)
{
    char beyond;
    ssize_t got;
    if (fd == STDIN_FILENO) return SHEAF_OK;
    do got = read(fd, &beyond, 1);
    while (got < 0 && errno == EINTR);
    if (got == 0) return SHEAF_OK;
    if (got < 0) return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", name, strerror(errno));
    return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: at byte %llu: bytes after the stream",
                            name, (unsigned long long)n_bytes);
}

static sheaf_status scan(dump *d, const char *name, int fd, sheaf_error *err)
{
    bool keeps = strcmp(d->flags->action, "dump") == 0;
    const sheaf__wire_hooks hooks = {.ctx = d,
                                     .on_frame = keeps ? on_frame : NULL,
                                     .on_sequence = keeps ? on_sequence : NULL,
                                     .on_key = keeps ? on_key : NULL,
                                     .on_tokens = keeps ? on_tokens : NULL};
    sheaf__wire_fd file = {fd, 0};
    sheaf_source source = sheaf__wire_fd_source(&file);
    sheaf_error why = {0};
    sheaf_status status = sheaf__wire_scan(&source, &hooks, &d->info, &why);
    if (file.error != 0)
        return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", name, strerror(file.error));
    if (status != SHEAF_OK)
        return sheaf__error_set(err, status, "%s: %s", name,
                                why.text[0] != 0 ? why.text : sheaf_status_text(status));
    if (d->status != SHEAF_OK)
        return sheaf__error_set(err, d->status, "%s: no memory for what there is to show",
                                name);
    return check_end(name, fd, d->info.n_bytes, err);
}

/* ---- showing ----------------------------------------------------------------------------- */

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static uint64_t n_blocks(const sheaf_wire_info *info)
{
    uint64_t n = 0;
    for (uint32_t g = 0; g < info->n_groups; g++) n += info->blocks[g];
    return n;
}

static void write_hex(const sheaf_key *key, char text[static 2 * SHEAF_KEY_BYTES + 1])
{
    for (int i = 0; i < SHEAF_KEY_BYTES; i++) sprintf(text + 2 * i, "%02x", key->bytes[i]);
}

static void show_frames(const dump *d)
{
    printf("\n      offset         bytes  kind\n");
    for (uint64_t i = 0; i < d->n_frames; i++)
        printf("%12llu  %12llu  %s\n", (unsigned long long)d->frames[i].offset,
               (unsigned long long)d->frames[i].n_bytes, d->frames[i].kind);
}

/* Frames of one kind follow each other: a line for each run of them. */
static void show_kinds(const dump *d)
{
    printf("\n      offset         bytes  frames  kind\n");
    for (uint64_t i = 0, end; i < d->n_frames; i = end) {
        uint64_t bytes = 0;
        for (end = i; end < d->n_frames && strcmp(d->frames[end].kind, d->frames[i].kind) == 0;
             end++)
            bytes += d->frames[end].n_bytes;
        printf("%12llu  %12llu  %6llu  %s\n", (unsigned long long)d->frames[i].offset,
               (unsigned long long)bytes, (unsigned long long)(end - i), d->frames[i].kind);
    }
}

/* n ids of `tokens`, from number `at` on. */
static void show_tokens(const dump *d, uint64_t at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) printf(i == 0 ? "%d" : " %d", d->tokens.data[at + i]);
    putchar('\n');
}

static void show_sequences(const dump *d)
{
    uint64_t at = 0;
    if (d->n_sequences != 0) printf("\nsequence        tokens  blocks\n");
    for (uint64_t i = 0; i < d->n_sequences; i++) {
        const sheaf__wire_sequence *s = &d->sequences[i];
        printf("%8llu  %12u  ", (unsigned long long)i, s->n_tokens);
        for (uint32_t g = 0; g < d->info.n_groups; g++) {
            printf(g == 0 ? "" : ", ");
            if (s->held[g].n == 0)
                printf("none");
            else
                printf("%u to %u", s->held[g].first, s->held[g].first + s->held[g].n - 1);
        }
        putchar('\n');
        if (d->flags->tokens) show_tokens(d, at, s->n_tokens);
        at += s->n_tokens;
    }
}

static void show_text(const dump *d)
{
    const sheaf_wire_info *info = &d->info;
    bool is_block = info->kind == SHEAF__WIRE_BLOCK;
    char name[2 * SHEAF_KEY_BYTES + 1];
    write_hex(is_block ? &d->key : &info->space, name);
    printf("format     version %u, %s\n", info->version,
           is_block ? "a single block" : "parked sequences");
    printf("%s  %s\n", is_block ? "key      " : "namespace", name);
    printf("layout     %016llx: %u layer%s, %u group%s, blocks of %u tokens\n",
           (unsigned long long)info->layout_fingerprint, info->n_layers, plural(info->n_layers),
           info->n_groups, plural(info->n_groups), info->block_tokens);
    printf("contents   %u sequence%s, %llu token%s, %llu block%s, %llu bytes in %u frames\n",
           info->n_sequences, plural(info->n_sequences), (unsigned long long)info->n_tokens,
           plural(info->n_tokens), (unsigned long long)n_blocks(info), plural(n_blocks(info)),
           (unsigned long long)info->n_bytes, info->n_frames);
    printf("\ngroup  window      blocks  bytes/block\n");
    for (uint32_t g = 0; g < info->n_groups; g++) {
        char window[16] = "none";
        if (info->windows[g] != 0) snprintf(window, sizeof window, "%u", info->windows[g]);
        printf("%5u  %6s  %10llu  %11llu\n", g, window, (unsigned long long)info->blocks[g],
               (unsigned long long)info->block_bytes[g]);
    }
    show_sequences(d);
    if (is_block && d->flags->tokens) {
        printf("\ntokens\n");
        show_tokens(d, 0, d->tokens.n);
    }
    if (d->flags->frames)
        show_frames(d);
    else
        show_kinds(d);
}

static json_t *groups_json(const dump *d)
{
    json_t *list = json_array();
    for (uint32_t g = 0; g < d->info.n_groups; g++)
        json_array_append_new(list, json_pack("{s:I, s:I, s:I}", "window",
                                              (json_int_t)d->info.windows[g], "n_blocks",
                                              (json_int_t)d->info.blocks[g], "block_bytes",
                                              (json_int_t)d->info.block_bytes[g]));
    return list;
}

/* The blocks of each group that a sequence holds. */
static json_t *held_json(const sheaf__wire_sequence *s, uint32_t n_groups)
{
    json_t *list = json_array();
    for (uint32_t g = 0; g < n_groups; g++)
        json_array_append_new(list, json_pack("{s:I, s:I}", "first_block",
                                              (json_int_t)s->held[g].first, "n_blocks",
                                              (json_int_t)s->held[g].n));
    return list;
}

static json_t *tokens_json(const dump *d, uint64_t at, uint64_t n)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(d->tokens.data[at + i]));
    return list;
}

static json_t *sequences_json(const dump *d)
{
    json_t *list = json_array();
    uint64_t at = 0;
    for (uint64_t i = 0; i < d->n_sequences; i++) {
        const sheaf__wire_sequence *s = &d->sequences[i];
        json_t *one = json_pack("{s:I, s:o}", "n_tokens", (json_int_t)s->n_tokens, "groups",
                                held_json(s, d->info.n_groups));
        if (d->flags->tokens)
            json_object_set_new(one, "tokens", tokens_json(d, at, s->n_tokens));
        at += s->n_tokens;
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *frames_json(const dump *d)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < d->n_frames; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "kind", d->frames[i].kind,
                                              "offset", (json_int_t)d->frames[i].offset,
                                              "bytes", (json_int_t)d->frames[i].n_bytes));
    return list;
}

static sheaf_status show_json(const dump *d)
{
    const sheaf_wire_info *info = &d->info;
    bool is_block = info->kind == SHEAF__WIRE_BLOCK;
    char name[2 * SHEAF_KEY_BYTES + 1], layout[17];
    write_hex(is_block ? &d->key : &info->space, name);
    snprintf(layout, sizeof layout, "%016llx", (unsigned long long)info->layout_fingerprint);
    json_t *root =
        json_pack("{s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "version",
                  (json_int_t)info->version, "kind", is_block ? "block" : "sequences",
                  is_block ? "key" : "namespace", name, "layout", layout, "n_layers",
                  (json_int_t)info->n_layers, "block_tokens", (json_int_t)info->block_tokens,
                  "n_tokens", (json_int_t)info->n_tokens, "n_bytes", (json_int_t)info->n_bytes,
                  "n_frames", (json_int_t)info->n_frames, "groups", groups_json(d));
    if (root == NULL) return SHEAF_E_NO_MEMORY;
    if (!is_block) json_object_set_new(root, "sequences", sequences_json(d));
    if (is_block && d->flags->tokens)
        json_object_set_new(root, "tokens", tokens_json(d, 0, d->tokens.n));
    if (d->flags->frames) json_object_set_new(root, "frames", frames_json(d));
    int failed = json_dumpf(root, stdout, JSON_COMPACT);
    json_decref(root);
    putchar('\n');
    return failed && !ferror(stdout) ? SHEAF_E_NO_MEMORY
                                     : SHEAF_OK; /* flushing says the rest */
}

static sheaf_status show(const dump *d, const char *name)
{
    const sheaf_wire_info *info = &d->info;
    if (d->flags->json) return show_json(d);
    if (strcmp(d->flags->action, "dump") == 0)
        show_text(d);
    else
        printf("%s: whole, %llu token%s in %llu block%s, %llu bytes in %u frames\n", name,
               (unsigned long long)info->n_tokens, plural(info->n_tokens),
               (unsigned long long)n_blocks(info), plural(n_blocks(info)),
               (unsigned long long)info->n_bytes, info->n_frames);
    return SHEAF_OK;
}

static int kv_main(int argc, char **argv)
{
    kv_flags flags = {0};
    dump d = {.flags = &flags, .info = SHEAF_WIRE_INFO_INIT};
    sheaf_error err = {0};
    bool done = false;
    int fd = STDIN_FILENO;
    sheaf__memory_init(&d.memory, NULL);
    sheaf_status status = parse(argc, argv, &flags, &done, &err);
    if (status == SHEAF_OK && !done) {
        char shown[SHEAF__BRIEF];
        bool piped = strcmp(flags.file, "-") == 0;
        const char *name = piped ? "standard input" : sheaf__path_show(flags.file, shown);
        status = open_file(flags.file, &fd, &err);
        if (status == SHEAF_OK) status = scan(&d, name, fd, &err);
        if (status == SHEAF_OK) status = show(&d, name);
        if (status == SHEAF_OK) status = sheaf__cli_flush(&err);
    }
    if (fd > STDIN_FILENO) close(fd);
    sheaf__memory_free(&d.memory, d.frames, d.frames_room, sizeof *d.frames);
    sheaf__memory_free(&d.memory, d.sequences, d.sequences_room, sizeof *d.sequences);
    sheaf__ids_free(&d.tokens);
    return status == SHEAF_OK ? 0 : sheaf__cli_fail("kv", status, &err);
}

const sheaf__command sheaf__command_kv = {
    .name = "kv",
    .arguments = "dump|verify FILE [flags]",
    .summary = "show or check a file of keys and values",
    .details =
        "FILE is what `sheaf run --save-kv` writes; - is standard input. verify says in one\n"
        "sentence that the file is whole, or where it is not.\n",
    .run = kv_main,
};
