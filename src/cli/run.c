/* cli/run.c - `sheaf run`: one prompt, one answer, streamed.
 *
 * With --load-kv the prompt's K and V come out of a file, as far as the prompt begins with the tokens
 * in it; with --save-kv those of prompt and answer go into one. Both can be the same file.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/answer.h"
#include "cli/cli.h"
#include "engine/session.h"

#define DEFAULT_MAX_TOKENS 256

typedef struct run_flags {
    sheaf__model_flags model;
    sheaf__sampler_options sampling;
    sheaf__bending bending;
    const char *prompt;
    const char *file;
    const char *system;
    const char *template_name;
    const char *load_kv;
    const char *save_kv;
    const char *stop;
    uint32_t max_tokens;
    bool chat;
    bool ids;
    bool quiet;
} run_flags;

/* One run's state; everything zero is nothing held. */
typedef struct run_state {
    const run_flags *flags;
    sheaf__progress progress;
    sheaf__model *model;
    sheaf__text prompt;
    sheaf__ids ids;
    sheaf__identity id; /* of the model, with a file of K and V */
    sheaf_key space;    /* of the file */
    sheaf__kv kv;
    bool has_kv;
    sheaf__kept kept;
    sheaf__sampler *sampler;
    float *logits; /* [vocab] */
    sheaf__answer answer;
    sheaf__stream stream;
    sheaf_status stream_status;
    uint64_t prefill_ns, decode_ns;
} run_state;

static void add_prompt_flags(run_flags *f, sheaf__flags *flags)
{
    const uint32_t text = SHEAF__FLAG_TEXT;
    sheaf__flags_add(flags, text, "prompt,p=TEXT", &f->prompt, "the prompt");
    sheaf__flags_add(flags, text, "file,f=FILE", &f->file,
                     "read the prompt from a file; - is standard input");
    sheaf__flags_add(flags, SHEAF__FLAG_SWITCH, "chat", &f->chat,
                     "put the prompt into the model's chat template");
    sheaf__flags_add(flags, text, "system=TEXT", &f->system, "system message; implies --chat");
    sheaf__flags_add(flags, text, "chat-template=NAME", &f->template_name,
                     "a template's name instead of the model's own; implies --chat");
}

static void add_file_flags(run_flags *f, sheaf__flags *flags)
{
    const uint32_t text = SHEAF__FLAG_TEXT;
    sheaf__flags_add(flags, text, "load-kv=FILE", &f->load_kv,
                     "begin with the keys and values in a file");
    sheaf__flags_add(flags, text, "save-kv=FILE", &f->save_kv,
                     "keep those of prompt and answer in a file");
}

static void add_penalty_flags(sheaf__bending *bending, sheaf__flags *flags)
{
    const uint32_t number = SHEAF__FLAG_F32;
    sheaf__flag_range(
        sheaf__flags_add(flags, number, "presence-penalty=X", &bending->presence_penalty,
                         "less likely: tokens that the answer has (-2 to 2, default 0)"),
        -2, 2);
    sheaf__flag_range(
        sheaf__flags_add(flags, number, "frequency-penalty=X", &bending->frequency_penalty,
                         "the same, times how often it has them (-2 to 2, default 0)"),
        -2, 2);
}

static void add_answer_flags(run_flags *f, sheaf__flags *flags)
{
    sheaf__flag_range(sheaf__flags_add(flags, SHEAF__FLAG_U32, "max-tokens,n=N", &f->max_tokens,
                                       "tokens of the answer at most (default 256)"),
                      0, 1 << 24);
    sheaf__sampling_flags_add(&f->sampling, flags);
    add_penalty_flags(&f->bending, flags);
    sheaf__flags_add(flags, SHEAF__FLAG_TEXT, "stop=TEXT", &f->stop,
                     "end the answer before this text");
    sheaf__flags_add(flags, SHEAF__FLAG_SWITCH, "ids", &f->ids,
                     "print token ids instead of text");
    sheaf__flags_add(flags, SHEAF__FLAG_SWITCH, "quiet,q", &f->quiet,
                     "no progress and no figures on standard error");
}

/* "-" is standard input elsewhere; keys and values are in files, which are renamed into place. */
static sheaf_status check_name(const char *flag, const char *name, sheaf_error *err)
{
    if (name == NULL || (name[0] != 0 && strcmp(name, "-") != 0)) return SHEAF_OK;
    if (name[0] == 0)
        return sheaf__error_set(err, SHEAF_E_USAGE, "--%s: the file's name is empty", flag);
    return sheaf__error_set(err, SHEAF_E_USAGE,
                            "--%s: '-': needs the name of a file (./- is one)", flag);
}

/* Refuses combinations that say nothing or too much. */
static sheaf_status check_flags(const run_flags *f, sheaf_error *err)
{
    bool has_prompt = f->prompt != NULL || f->file != NULL;
    SHEAF__TRY(sheaf__cli_need_model(f->model.path, err));
    if ((f->prompt != NULL && f->file != NULL) || (!has_prompt && f->load_kv == NULL))
        return sheaf__error_set(err, SHEAF_E_USAGE,
                                "give the prompt with either --prompt or --file");
    if (f->chat && !has_prompt)
        return sheaf__error_set(err, SHEAF_E_USAGE,
                                "a chat template needs a message: --prompt or --file");
    SHEAF__TRY(check_name("load-kv", f->load_kv, err));
    SHEAF__TRY(check_name("save-kv", f->save_kv, err));
    if ((f->load_kv != NULL || f->save_kv != NULL) && f->model.kv_backend == SHEAF__KV_DENSE)
        return sheaf__error_set(
            err, SHEAF_E_USAGE,
            "--%s: the dense backend has no blocks to keep; --kv-backend paged has",
            f->load_kv != NULL ? "load-kv" : "save-kv");
    if (f->stop != NULL && (f->stop[0] == 0 || f->ids))
        return sheaf__error_set(err, SHEAF_E_USAGE, "--stop: %s",
                                f->ids ? "--ids prints no text to stop at"
                                       : "the text is empty");
    if (f->max_tokens == 0 && f->save_kv == NULL)
        return sheaf__error_set(err, SHEAF_E_USAGE,
                                "--max-tokens: 0 is for --save-kv, to keep a prompt alone");
    return SHEAF_OK;
}

static sheaf_status parse(int argc, char **argv, run_flags *f, bool *done, sheaf_error *err)
{
    sheaf__flags flags = {0};
    sheaf__model_flags_add(&f->model, &flags);
    sheaf__kv_budget_flag_add(&f->model.kv_budget_bytes, &flags);
    add_prompt_flags(f, &flags);
    add_file_flags(f, &flags);
    add_answer_flags(f, &flags);
    SHEAF__TRY(sheaf__flags_parse(&sheaf__command_run, &flags, argc, argv, done, err));
    if (*done) return sheaf__cli_flush(err);
    if (f->system != NULL || f->template_name != NULL) f->chat = true;
    return check_flags(f, err);
}

/* ---- the prompt -------------------------------------------------------------------------- */

/* Opens FILE, or standard input for "-", and reads it whole. */
static sheaf_status read_prompt(const char *path, sheaf__text *out, sheaf_error *err)
{
    if (strcmp(path, "-") == 0)
        return sheaf__cli_read_all(STDIN_FILENO, "standard input", out, err);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return sheaf__error_set(err, SHEAF_E_IO, "--file: %.160s: %s", path, strerror(errno));
    sheaf_status status = sheaf__cli_read_all(fileno(file), path, out, err);
    fclose(file);
    return status;
}

static sheaf_status render_chat(run_state *run, const char *text, sheaf_error *err)
{
    const run_flags *f = run->flags;
    uint32_t family = SHEAF__CHAT_NONE, n = 0;
    SHEAF__TRY(sheaf__cli_chat_family(f->model.path, f->template_name, &family, err));
    sheaf__message messages[2];
    if (f->system != NULL) messages[n++] = (sheaf__message){"system", f->system};
    messages[n++] = (sheaf__message){"user", text};
    return sheaf__chat_render(family, messages, n, true, &run->prompt, err);
}

static sheaf_status make_ids(run_state *run, sheaf_error *err)
{
    const run_flags *f = run->flags;
    sheaf__text file = {0};
    const char *text = f->prompt;
    uint64_t size = text ? strlen(text) : 0;
    sheaf_status status = SHEAF_OK;
    if (f->file != NULL) {
        status = read_prompt(f->file, &file, err);
        text = file.data ? file.data : "";
        size = file.n;
    }
    if (status == SHEAF_OK && f->chat && memchr(text, 0, size) != NULL)
        status = sheaf__error_set(err, SHEAF_E_USAGE,
                                  "%s: a zero byte, which no message can hold", f->file);
    uint32_t encode = SHEAF__ENCODE_POST_PROCESS;
    if (status == SHEAF_OK && f->chat) {
        status = render_chat(run, text, err);
        text = run->prompt.data;
        size = run->prompt.n;
        encode = SHEAF__ENCODE_PLAIN;
    }
    if (status == SHEAF_OK)
        status = sheaf__tokenizer_encode(run->model->tokenizer, text, size, encode, &run->ids);
    if (status == SHEAF_OK && run->ids.n == 0)
        status = sheaf__error_set(err, SHEAF_E_USAGE, "--%s: the prompt is empty",
                                  f->file != NULL ? "file" : "prompt");
    sheaf__text_free(&file);
    return status;
}

/* ---- files of K and V -------------------------------------------------------------------- */

/* Whether a file can be put there, before there is much work to lose. */
static sheaf_status check_target(const char *path, sheaf_error *err)
{
    struct stat st;
    char directory[PATH_MAX] = ".", shown[SHEAF__BRIEF];
    const char *end = strrchr(path, '/'), *why = NULL;
    bool there = lstat(path, &st) == 0;
    if (!there && errno != ENOENT) why = strerror(errno);
    if (there && !S_ISREG(st.st_mode))
        why = S_ISDIR(st.st_mode) ? strerror(EISDIR) : "not a regular file";
    if (end != NULL) snprintf(directory, sizeof directory, "%.*s", (int)(end - path) + 1, path);
    if (why == NULL && access(directory, W_OK | X_OK) != 0) why = strerror(errno);
    if (why == NULL) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", sheaf__path_show(path, shown), why);
}

/* Whether a file can be loaded at all, before a model is read for it. */
static sheaf_status check_loaded(const char *path, sheaf_error *err)
{
    char shown[SHEAF__BRIEF];
    if (access(path, R_OK) == 0) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_IO, "%s: %s", sheaf__path_show(path, shown),
                            strerror(errno));
}

/* The saved tokens are the prompt where none is given. */
static sheaf_status take_saved_ids(run_state *run, sheaf_error *err)
{
    const int32_t *tokens = sheaf__kv_tokens(&run->kv);
    uint32_t n = sheaf__kv_length(&run->kv);
    char shown[SHEAF__BRIEF];
    if (n == 0)
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: holds no token to go on from",
                                sheaf__path_show(run->flags->load_kv, shown));
    for (uint32_t i = 0; i < n; i++) SHEAF__TRY(sheaf__ids_push(&run->ids, tokens[i]));
    return SHEAF_OK;
}

static void say_kept(const run_state *run)
{
    const char *file = run->flags->load_kv;
    if (run->flags->quiet) return;
    if (run->kept.slid)
        fprintf(stderr,
                "%s: a window has let go of what the first %u tokens need; the prompt is run "
                "from its beginning\n",
                file, run->kept.n_common);
    else
        fprintf(stderr, "%u of %u prompt tokens from %s\n", run->kept.n_kept, run->ids.n, file);
}

/* Makes the cache, out of the file where there is one, and the prompt's ids. */
static sheaf_status make_kv(run_state *run, sheaf_error *err)
{
    const run_flags *f = run->flags;
    bool has_prompt = f->prompt != NULL || f->file != NULL;
    if (has_prompt) SHEAF__TRY(make_ids(run, err));
    if (f->load_kv != NULL || f->save_kv != NULL)
        SHEAF__TRY(sheaf__session_space(run->model, f->model.path, &run->id, &run->space, err));
    if (f->load_kv == NULL)
        SHEAF__TRY(sheaf__model_new_kv(run->model, &run->kv));
    else
        SHEAF__TRY(sheaf__session_load(run->model, &run->space, f->load_kv, &run->kv, err));
    run->has_kv = true;
    if (!has_prompt) SHEAF__TRY(take_saved_ids(run, err));
    if (f->load_kv == NULL) return SHEAF_OK;
    SHEAF__TRY(sheaf__session_keep(&run->kv, run->ids.data, run->ids.n, &run->kept));
    sheaf__progress_end(&run->progress);
    say_kept(run);
    return SHEAF_OK;
}

/* An answer's last token was not run, where it ended by length: what goes on from the file would lack
 * it. It is left out where the context has no room for it. */
static sheaf_status save_kv(run_state *run, sheaf_error *err)
{
    uint32_t length = sheaf__kv_length(&run->kv), n_answer = run->answer.tokens.n;
    if (length < run->ids.n + n_answer && length < run->model->options.ctx_size)
        SHEAF__TRY(sheaf__model_prefill(run->model, &run->kv,
                                        run->answer.tokens.data + n_answer - 1, 1, NULL, err));
    return sheaf__session_save(&run->kv, &run->space, run->flags->save_kv, err);
}

/* ---- the answer -------------------------------------------------------------------------- */

/* Streams a token. Non-zero stops the answer: at its stop text, or standard output is gone. */
static int on_token(void *ctx, uint32_t answer, int32_t token)
{
    (void)answer;
    run_state *run = ctx;
    sheaf__progress_end(&run->progress);
    if (run->flags->ids) {
        printf(run->answer.tokens.n > 1 ? " %d" : "%d", token);
        run->stream_status = sheaf__cli_flush(NULL);
    } else {
        run->stream_status = sheaf__stream_token(&run->stream, token);
    }
    return run->stream_status != SHEAF_OK || run->stream.reply.stopped;
}

static sheaf_status finish_stream(run_state *run, sheaf_error *err)
{
    if (!run->flags->ids)
        return sheaf__stream_end(&run->stream, run->stream_status == SHEAF_OK, err);
    putchar('\n');
    return sheaf__cli_flush(err);
}

static void print_figures(const run_state *run)
{
    const sheaf__model *model = run->model;
    double prefill_s = (double)run->prefill_ns * 1e-9, decode_s = (double)run->decode_ns * 1e-9;
    uint32_t n_answer = run->answer.tokens.n, n_run = run->ids.n - run->kept.n_kept;
    fprintf(stderr,
            "prompt %u tokens in %.2f s (%.0f a second), answer %u tokens in %.2f s (%.1f a "
            "second)%s\n",
            n_run, prefill_s, n_run / prefill_s, n_answer, decode_s,
            decode_s > 0 ? n_answer / decode_s : 0.0,
            run->answer.finish == SHEAF__FINISH_LENGTH ? ", stopped by length" : "");
    uint32_t isa = SHEAF_ISA_AUTO;
    if (sheaf_isa_resolve(run->flags->model.isa, &isa) != SHEAF_OK) return;
    fprintf(stderr, "%u threads, %s, ", sheaf_threads_count(model->threads),
            sheaf_isa_name(isa));
    sheaf__cli_print_kv(stderr, model, &run->kv);
}

/* Decodes and streams. */
static sheaf_status write_answer(run_state *run, sheaf_error *err)
{
    sheaf__model *model = run->model;
    uint64_t start = sheaf__clock_ns();
    sheaf__stream_begin(&run->stream, model->tokenizer, run->flags->stop);
    run->answer.kv = &run->kv;
    run->answer.sampler = run->sampler;
    run->answer.max_tokens = run->flags->max_tokens;
    run->answer.logits = run->logits;
    run->answer.bending = run->flags->bending;
    sheaf_status status = sheaf__model_decode(model, &run->answer, 1, on_token, run, err);
    run->decode_ns = sheaf__clock_ns() - start;
    /* what was said so far ends in a whole line, also when it broke off */
    sheaf_status ended = finish_stream(run, status == SHEAF_OK ? err : NULL);
    return status != SHEAF_OK ? status : ended;
}

static sheaf_status answer_prompt(run_state *run, sheaf_error *err)
{
    sheaf__model *model = run->model;
    uint32_t vocab = model->config.vocab;
    SHEAF__TRY(
        sheaf__sampler_create(&run->flags->sampling, vocab, &model->memory, &run->sampler));
    SHEAF__TRY(make_kv(run, err));
    run->logits = malloc(vocab * sizeof *run->logits);
    if (run->logits == NULL) return SHEAF_E_NO_MEMORY;
    uint64_t start = sheaf__clock_ns();
    SHEAF__TRY(
        sheaf__session_fill(model, &run->kv, run->ids.data, run->ids.n, run->logits, err));
    run->prefill_ns = sheaf__clock_ns() - start;
    sheaf__progress_end(&run->progress);
    if (run->flags->max_tokens != 0) SHEAF__TRY(write_answer(run, err));
    return run->flags->save_kv == NULL ? SHEAF_OK : save_kv(run, err);
}

static sheaf_status open_model(run_state *run, const sheaf__model_options *options,
                               sheaf_error *err)
{
    const run_flags *f = run->flags;
    if (f->load_kv != NULL) SHEAF__TRY(check_loaded(f->load_kv, err));
    if (f->save_kv != NULL) SHEAF__TRY(check_target(f->save_kv, err));
    if (f->save_kv != NULL || f->load_kv != NULL)
        SHEAF__TRY(sheaf__session_name(f->model.path, options, &run->id, err));
    return sheaf__model_open(f->model.path, options, &run->model, err);
}

static void run_close(run_state *run)
{
    sheaf__ids_free(&run->answer.tokens);
    sheaf__ids_free(&run->ids);
    sheaf__text_free(&run->prompt);
    sheaf__stream_free(&run->stream);
    sheaf__sampler_destroy(run->sampler);
    if (run->has_kv) sheaf__kv_destroy(&run->kv);
    free(run->logits);
    sheaf__model_close(run->model);
}

static int run_main(int argc, char **argv)
{
    run_flags flags = {.model = SHEAF__MODEL_FLAGS_INIT, .max_tokens = DEFAULT_MAX_TOKENS};
    run_state run = {.flags = &flags};
    sheaf_error err = {0};
    bool done = false;
    sheaf_status status = parse(argc, argv, &flags, &done, &err);
    if (status == SHEAF_OK && !done) {
        run.progress.quiet = flags.quiet;
        sheaf__model_options options = sheaf__model_flags_options(&flags.model, &run.progress);
        status = open_model(&run, &options, &err);
        if (status == SHEAF_OK) status = answer_prompt(&run, &err);
        sheaf__progress_end(&run.progress);
        if (status == SHEAF_OK && !flags.quiet) print_figures(&run);
    }
    run_close(&run);
    return status == SHEAF_OK ? 0 : sheaf__cli_fail("run", status, &err);
}

const sheaf__command sheaf__command_run = {
    .name = "run",
    .arguments = "-m DIR -p TEXT [flags]",
    .summary = "answer one prompt, streamed",
    .details =
        "The prompt is continued as it stands; --chat puts it into the model's chat template.\n"
        "The answer goes to standard output, progress and figures to standard error.\n"
        "With --load-kv and no prompt, the tokens in the file are continued; -n 0 with "
        "--save-kv\n"
        "keeps a prompt without an answer.\n",
    .run = run_main,
};
