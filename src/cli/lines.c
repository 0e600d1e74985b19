/* cli/lines.c - the lines that a conversation is typed in.
 *
 * While a line is edited Ctrl-C and Ctrl-Z are keys like others, not signals: a signal that comes
 * between two reads would find nobody waiting, and the line would stay. The terminal is set up before
 * the prompt shows, so that who answers the prompt at once is not read by the rules of the answer.
 */
#include "cli/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HISTORY_LINES 1000
#define PROMPT        "> "

struct sheaf__lines {
    EditLine *edit; /* null: lines come from elsewhere than a terminal */
    History *history;
    FILE *terminal;              /* where editing shows */
    bool dropped;                /* the line, by Ctrl-C */
    char history_path[PATH_MAX]; /* empty: not kept */
    char *line;                  /* [capacity], getline's when not edited */
    size_t capacity;
};

static void no_history(sheaf__lines *lines, const char *why)
{
    fprintf(stderr, "sheaf chat: history: %s%s%s; lines are not kept\n", lines->history_path,
            lines->history_path[0] != 0 ? ": " : "", why);
    lines->history_path[0] = 0;
}

/* Makes the folders of the path, each for its owner alone. False: errno says why. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        bool made = mkdir(path, S_IRWXU) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) return false;
    }
    return true;
}

/* The history in the folder that an environment variable names, or "" where it names none. */
static sheaf_status find_history(const char *variable, const char *within,
                                 char path[static PATH_MAX], sheaf_error *err)
{
    const char *folder = getenv(variable);
    path[0] = 0;
    if (folder == NULL || folder[0] == 0) return SHEAF_OK;
    if (folder[0] != '/')
        return sheaf__error_set(err, SHEAF_E_USAGE, "%s: '%.120s' is not an absolute path",
                                variable, folder);
    int n = snprintf(path, PATH_MAX, "%s/%s", folder, within);
    if (n > 0 && n < PATH_MAX) return SHEAF_OK;
    path[0] = 0;
    return sheaf__error_set(err, SHEAF_E_USAGE, "%s: a path of %d characters is too long",
                            variable, n);
}

static sheaf_status load_history(sheaf__lines *lines, sheaf_error *err)
{
    HistEvent event;
    struct stat info;
    int fd = -1;
    SHEAF__TRY(find_history("XDG_STATE_HOME", "sheaf/history", lines->history_path, err));
    if (lines->history_path[0] == 0)
        SHEAF__TRY(
            find_history("HOME", ".local/state/sheaf/history", lines->history_path, err));
    if (lines->history_path[0] == 0) {
        no_history(lines, "neither XDG_STATE_HOME nor HOME names a folder");
        return SHEAF_OK;
    }
    if (make_folders(lines->history_path))
        fd = open(lines->history_path, O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0 || fstat(fd, &info) != 0)
        no_history(lines, strerror(errno));
    else if (info.st_size != 0 &&
             history(lines->history, &event, H_LOAD, lines->history_path) < 0)
        no_history(lines, "is no history of sheaf's");
    if (fd >= 0) close(fd);
    return SHEAF_OK;
}

/* After each line, so that it is kept however the program ends. */
static void remember(sheaf__lines *lines, const char *line)
{
    HistEvent event;
    if (line[0] == 0) return;
    history(lines->history, &event, H_ENTER, line);
    if (lines->history_path[0] == 0) return;
    if (history(lines->history, &event, H_SAVE, lines->history_path) < 0)
        no_history(lines, "cannot be written");
}

static char *prompt(EditLine *edit)
{
    (void)edit;
    static char text[] = PROMPT;
    return text;
}

static unsigned char drop_line(EditLine *edit, int key)
{
    (void)key;
    sheaf__lines *lines = NULL;
    el_get(edit, EL_CLIENTDATA, &lines);
    lines->dropped = true;
    return CC_NEWLINE;
}

static unsigned char suspend(EditLine *edit, int key)
{
    (void)key;
    el_set(edit, EL_PREP_TERM, 0);
    raise(SIGTSTP);
    el_set(edit, EL_PREP_TERM, 1);
    return CC_REDISPLAY;
}

static void set_keys(sheaf__lines *lines)
{
    EditLine *edit = lines->edit;
    el_set(edit, EL_CLIENTDATA, lines);
    el_set(edit, EL_SETTY, "-d", "-isig", NULL);
    el_set(edit, EL_ADDFN, "sheaf-drop-line", "Forget the line", drop_line);
    el_set(edit, EL_ADDFN, "sheaf-suspend", "Suspend the program", suspend);
    el_set(edit, EL_BIND, "^C", "sheaf-drop-line", NULL);
    el_set(edit, EL_BIND, "^Z", "sheaf-suspend", NULL);
    el_set(edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
}

/* Bytes beyond ASCII are taken for UTF-8 also where the environment names no locale. */
static void set_characters(void)
{
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
}

static sheaf_status open_editor(sheaf__lines *lines, sheaf_error *err)
{
    HistEvent event;
    set_characters();
    lines->terminal = isatty(STDOUT_FILENO) ? stdout : stderr;
    lines->history = history_init();
    lines->edit = el_init("sheaf", stdin, lines->terminal, stderr);
    if (lines->history == NULL || lines->edit == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory for editing lines");
    history(lines->history, &event, H_SETSIZE, HISTORY_LINES);
    history(lines->history, &event, H_SETUNIQUE, 1);
    el_set(lines->edit, EL_PROMPT, prompt);
    el_set(lines->edit, EL_EDITOR, "emacs");
    el_set(lines->edit, EL_SIGNAL, 1);
    el_set(lines->edit, EL_HIST, history, lines->history);
    set_keys(lines);
    el_source(lines->edit, NULL);
    return load_history(lines, err);
}

sheaf_status sheaf__lines_open(sheaf__lines **out, sheaf_error *err)
{
    sheaf__lines *lines = calloc(1, sizeof *lines);
    if (lines == NULL) return SHEAF_E_NO_MEMORY;
    sheaf_status status = isatty(STDIN_FILENO) ? open_editor(lines, err) : SHEAF_OK;
    if (status == SHEAF_OK)
        *out = lines;
    else
        sheaf__lines_close(lines);
    return status;
}

void sheaf__lines_close(sheaf__lines *lines)
{
    if (lines == NULL) return;
    if (lines->edit != NULL) el_end(lines->edit);
    if (lines->history != NULL) history_end(lines->history);
    free(lines->line);
    free(lines);
}

bool sheaf__lines_are_typed(const sheaf__lines *lines)
{
    return lines->edit != NULL;
}

static sheaf_status failed(sheaf_error *err)
{
    return sheaf__error_set(err, SHEAF_E_IO, "standard input: %s", strerror(errno));
}

/* An edited line. libedit says -1 and EINTR when a signal came while it waited. */
static sheaf_status next_edited(sheaf__lines *lines, const char **line, sheaf_error *err)
{
    int n = -1;
    lines->dropped = false;
    errno = 0;
    el_set(lines->edit, EL_PREP_TERM, 1);
    const char *got = el_gets(lines->edit, &n);
    if (lines->dropped || (got == NULL && n < 0 && errno == EINTR)) {
        fputs("^C\n", lines->terminal);
        return SHEAF_E_CANCELLED;
    }
    if (got == NULL && n < 0 && errno != 0 && errno != EIO) return failed(err);
    if (got == NULL) {
        fputc('\n', lines->terminal);
        return SHEAF_MISS;
    }
    char *copy = strndup(got, strcspn(got, "\r\n"));
    if (copy == NULL) return SHEAF_E_NO_MEMORY;
    free(lines->line);
    *line = lines->line = copy;
    remember(lines, copy);
    return SHEAF_OK;
}

static sheaf_status next_plain(sheaf__lines *lines, const char **line, sheaf_error *err)
{
    errno = 0;
    ssize_t n = getline(&lines->line, &lines->capacity, stdin);
    if (n < 0) return feof(stdin) ? SHEAF_MISS : failed(err);
    if (n > 0 && lines->line[n - 1] == '\n') lines->line[--n] = 0;
    if (n > 0 && lines->line[n - 1] == '\r') lines->line[--n] = 0;
    if (strlen(lines->line) != (size_t)n)
        return sheaf__error_set(err, SHEAF_E_FORMAT,
                                "standard input: a line with a zero byte was skipped");
    *line = lines->line;
    return SHEAF_OK;
}

sheaf_status sheaf__lines_next(sheaf__lines *lines, const char **line, sheaf_error *err)
{
    return lines->edit != NULL ? next_edited(lines, line, err) : next_plain(lines, line, err);
}
