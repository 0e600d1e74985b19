/* cli/chat.c - `sheaf chat`: a conversation, line by line.
 *
 * Answers go to standard output, all else to standard error. Ctrl-C stops the answer that is being
 * made; where the lines are not typed it ends the program, as it ends others.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/lines.h"

typedef struct chat_flags {
    sheaf__model_flags model;
    sheaf__sampler_options sampling;
    const char *system;
    const char *template_name;
    uint32_t max_tokens;
    bool quiet;
} chat_flags;

typedef struct chat_state {
    const chat_flags *flags;
    sheaf__progress progress;
    sheaf__model *model;
    sheaf__conversation conversation;
    sheaf__lines *lines;
    bool ended;  /* by /quit */
    bool failed; /* a line was not answered */
} chat_state;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static sheaf_status parse(int argc, char **argv, chat_flags *f, bool *done, sheaf_error *err)
{
    sheaf__flags flags = {0};
    sheaf__model_flags_add(&f->model, &flags);
    sheaf__kv_budget_flag_add(&f->model.kv_budget_bytes, &flags);
    sheaf__flags_add(&flags, SHEAF__FLAG_TEXT, "system=TEXT", &f->system, "system message");
    sheaf__flags_add(&flags, SHEAF__FLAG_TEXT, "chat-template=NAME", &f->template_name,
                     "a template's name instead of the model's own");
    sheaf__flag_range(sheaf__flags_add(&flags, SHEAF__FLAG_U32, "max-tokens,n=N",
                                       &f->max_tokens,
                                       "tokens of an answer at most (default: as fit)"),
                      1, 1 << 24);
    sheaf__sampling_flags_add(&f->sampling, &flags);
    sheaf__flags_add(&flags, SHEAF__FLAG_SWITCH, "quiet,q", &f->quiet,
                     "no progress and no greeting on standard error");
    SHEAF__TRY(sheaf__flags_parse(&sheaf__command_chat, &flags, argc, argv, done, err));
    if (*done) return sheaf__cli_flush(err);
    return sheaf__cli_need_model(f->model.path, err);
}

/* ---- commands ---------------------------------------------------------------------------- */

/* `rest` is what follows the command's name and a space; empty when nothing does. */
typedef sheaf_status command_fn(chat_state *chat, const char *rest, sheaf_error *err);

static double a_second(uint32_t n, uint64_t ns)
{
    return ns == 0 ? 0.0 : n / ((double)ns * 1e-9);
}

static sheaf_status show_stats(chat_state *chat, const char *rest, sheaf_error *err)
{
    (void)rest, (void)err;
    const sheaf__conversation *c = &chat->conversation;
    const sheaf__turn *t = &c->last;
    fprintf(stderr, "turns: %u, context: %u of %u tokens\n", c->n_turns,
            sheaf__kv_length(&c->kv), chat->model->options.ctx_size);
    fprintf(stderr,
            "last turn: %u tokens kept, %u prefilled in %.2f s (%.0f a second), %u decoded in "
            "%.2f s (%.1f a second)\n",
            t->n_kept, t->n_prefilled, (double)t->prefill_ns * 1e-9,
            a_second(t->n_prefilled, t->prefill_ns), t->n_decoded, (double)t->decode_ns * 1e-9,
            a_second(t->n_decoded, t->decode_ns));
    sheaf__cli_print_kv(stderr, chat->model, &c->kv);
    return SHEAF_OK;
}

static sheaf_status reset(chat_state *chat, const char *rest, sheaf_error *err)
{
    (void)rest, (void)err;
    SHEAF__TRY(sheaf__conversation_reset(&chat->conversation));
    fprintf(stderr, "The conversation is forgotten.\n");
    return SHEAF_OK;
}

static sheaf_status set_system(chat_state *chat, const char *rest, sheaf_error *err)
{
    (void)err;
    bool none = rest[0] == 0;
    SHEAF__TRY(sheaf__conversation_system(&chat->conversation, none ? NULL : rest));
    fprintf(stderr,
            none ? "There is no system message now.\n" : "The system message is set.\n");
    return SHEAF_OK;
}

static sheaf_status quit(chat_state *chat, const char *rest, sheaf_error *err)
{
    (void)rest, (void)err;
    chat->ended = true;
    return SHEAF_OK;
}

static command_fn show_help;

static const struct {
    const char *name, *argument, *help;
    command_fn *run;
} commands[] = {
    {"/stats", "", "what the conversation holds, and what the last turn did", show_stats},
    {"/reset", "", "forget the conversation; the system message stays", reset},
    {"/system", " TEXT", "set the system message; without a text: have none", set_system},
    {"/help", "", "this", show_help},
    {"/quit", "", "end, as Ctrl-D does", quit},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static sheaf_status show_help(chat_state *chat, const char *rest, sheaf_error *err)
{
    (void)chat, (void)rest, (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        char left[32];
        snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].argument);
        fprintf(stderr, "  %-13s %s\n", left, commands[i].help);
    }
    fprintf(stderr,
            "Ctrl-C stops an answer, and at the prompt clears the line. A line that begins "
            "with a space is never a command.\n");
    return SHEAF_OK;
}

static sheaf_status run_command(chat_state *chat, const char *line, sheaf_error *err)
{
    size_t n = strcspn(line, " ");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != n || strncmp(commands[i].name, line, n) != 0) continue;
        const char *rest = line + n + strspn(line + n, " ");
        if (rest[0] != 0 && commands[i].argument[0] == 0)
            return sheaf__error_set(err, SHEAF_E_USAGE, "%s takes nothing after it",
                                    commands[i].name);
        return commands[i].run(chat, rest, err);
    }
    return sheaf__error_set(err, SHEAF_E_USAGE, "'%.80s': no such command; /help lists them",
                            line);
}

/* ---- turns ------------------------------------------------------------------------------- */

/* What the turn came to, where that is more than an answer. */
static void tell_outcome(uint32_t outcome)
{
    static const char *const texts[] = {
        [SHEAF__TURN_DONE] = NULL,
        [SHEAF__TURN_STOPPED] = "Stopped.",
        [SHEAF__TURN_TAKEN_BACK] =
            "Stopped before the answer began; the question is taken back.",
        [SHEAF__TURN_MAX_TOKENS] = "Stopped by --max-tokens.",
        [SHEAF__TURN_CONTEXT_FULL] =
            "The context is full; the conversation is kept, /reset forgets it.",
    };
    if (texts[outcome] != NULL) fprintf(stderr, "%s\n", texts[outcome]);
}

static bool is_full(sheaf_status status)
{
    return status == SHEAF_FULL || status == SHEAF_E_CONTEXT || status == SHEAF_E_NO_MEMORY;
}

static sheaf_status ask(chat_state *chat, const char *line, sheaf_error *err)
{
    uint32_t outcome = SHEAF__TURN_DONE;
    sheaf_error why = {0};
    sheaf_status status = sheaf__conversation_ask(&chat->conversation, line, &outcome, &why);
    sheaf__progress_end(&chat->progress);
    if (status == SHEAF_OK) {
        tell_outcome(outcome);
        return SHEAF_OK;
    }
    const char *text = why.text[0] != 0 ? why.text : sheaf_status_text(status);
    return sheaf__error_set(err, status, "%.180s%s", text,
                            is_full(status) ? "; the conversation is kept, /reset forgets it"
                                            : "");
}

/* Standard output is gone, or the lines are: there is no going on. */
static bool is_fatal(sheaf_status status)
{
    return status == SHEAF_E_IO;
}

static sheaf_status take_line(chat_state *chat, sheaf_error *err)
{
    const char *line = NULL;
    interrupted = 0; /* before the line: a Ctrl-C right after it is meant for the answer */
    sheaf_status status = sheaf__lines_next(chat->lines, &line, err);
    if (status == SHEAF_E_CANCELLED) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    if (line[0] == 0) return SHEAF_OK;
    return line[0] == '/' ? run_command(chat, line, err) : ask(chat, line, err);
}

static sheaf_status converse(chat_state *chat, sheaf_error *err)
{
    while (!chat->ended) {
        sheaf_error why = {0};
        sheaf_status status = take_line(chat, &why);
        if (status == SHEAF_MISS) break;
        if (status != SHEAF_OK && is_fatal(status)) {
            *err = why;
            return status;
        }
        if (status == SHEAF_OK) continue;
        sheaf__cli_fail("chat", status, &why);
        chat->failed = true;
    }
    return SHEAF_OK;
}

/* ---- opening ----------------------------------------------------------------------------- */

static sheaf_status start(chat_state *chat, sheaf_error *err)
{
    const chat_flags *f = chat->flags;
    sheaf__conversation *c = &chat->conversation;
    uint32_t family = SHEAF__CHAT_NONE;
    SHEAF__TRY(sheaf__cli_chat_family(f->model.path, f->template_name, &family, err));
    sheaf__model_options options = sheaf__model_flags_options(&f->model, &chat->progress);
    SHEAF__TRY(sheaf__model_open(f->model.path, &options, &chat->model, err));
    sheaf__progress_end(&chat->progress);
    chat->model->options.progress = NULL; /* of prefill it would see slices only */
    c->model = chat->model;
    c->family = family;
    c->max_tokens = f->max_tokens;
    c->stop = &interrupted;
    c->progress = sheaf__progress_report;
    c->progress_ctx = &chat->progress;
    SHEAF__TRY(sheaf__conversation_init(c, &f->sampling));
    SHEAF__TRY(sheaf__conversation_system(c, f->system));
    SHEAF__TRY(sheaf__lines_open(&chat->lines, err));
    if (!sheaf__lines_are_typed(chat->lines)) return SHEAF_OK;
    struct sigaction action = {.sa_handler =
                                   on_interrupt}; /* no SA_RESTART: reading must end */
    sigaction(SIGINT, &action, NULL);
    if (!f->quiet)
        fprintf(stderr, "%s, %u positions. /help lists the commands, Ctrl-D ends.\n",
                f->model.path, chat->model->options.ctx_size);
    return SHEAF_OK;
}

static int chat_main(int argc, char **argv)
{
    chat_flags flags = {.model = SHEAF__MODEL_FLAGS_INIT};
    chat_state chat = {.flags = &flags};
    sheaf_error err = {0};
    bool done = false;
    sheaf_status status = parse(argc, argv, &flags, &done, &err);
    if (status == SHEAF_OK && !done) {
        chat.progress.quiet = flags.quiet;
        status = start(&chat, &err);
        if (status == SHEAF_OK) status = converse(&chat, &err);
        sheaf__progress_end(&chat.progress);
    }
    bool typed = chat.lines != NULL && sheaf__lines_are_typed(chat.lines);
    sheaf__lines_close(chat.lines);
    sheaf__conversation_close(&chat.conversation);
    sheaf__model_close(chat.model);
    if (status != SHEAF_OK) return sheaf__cli_fail("chat", status, &err);
    return chat.failed && !typed ? SHEAF__EXIT_FAILED : 0;
}

const sheaf__command sheaf__command_chat = {
    .name = "chat",
    .arguments = "-m DIR [flags]",
    .summary = "converse, keeping K and V between turns",
    .details =
        "Each line is a message; /help lists the commands among them. Ctrl-C stops an answer,\n"
        "Ctrl-D ends. Where standard input is not a terminal its lines are answered in turn.\n",
    .run = chat_main,
};
