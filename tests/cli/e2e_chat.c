/* tests/cli/e2e_chat.c - `sheaf chat` on a pseudo-terminal: typed lines, Ctrl-C, Ctrl-D, history. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/pty.h"

#define DEMO   "models/sheaf-demo"
#define CTRL_C "\x03"
#define CTRL_D "\x04"
#define UP     "\x1b[A"
#define LEAKS  "LSAN_OPTIONS=suppressions=tests/cli/libedit.supp:print_suppressions=0"
#define SOON   30 /* seconds: answers take far less, but machines are busy and sanitizers slow */

#define CATALOGUE                                                                              \
    "You are sheaf-demo, a tiny model made to test KV caches. Answer from the catalogue.\n\n"  \
    "Item 381: a brass lantern, green, 41 crowns, shelf 12, from Oram.\n"                      \
    "Item 112: a wool lamp, blue, 7 crowns, shelf 40, from Kelden."

static char program[PATH_MAX];
static char folder[64];
static char state_setting[128];
static pty terminal;

/* Starts `sheaf chat` on the demo model with up to 8 arguments more. */
static void launch_chat(const char *const *more)
{
    char *argv[16] = {program, (char[]){"chat"}, (char[]){"-m"}, (char[]){DEMO}};
    for (int i = 0; i < 8 && more[i] != NULL; i++) argv[4 + i] = (char *)(uintptr_t)more[i];
    const char *env[] = {"TERM=vt100", "LC_ALL=C.UTF-8", state_setting, LEAKS, NULL};
    assert_true(pty_start(&terminal, argv, env));
}

/* The same, and waits for the prompt. */
static void start_chat(const char *const *more)
{
    launch_chat(more);
    assert_true(pty_expect(&terminal, "> ", SOON));
}

/* Types a line and waits for a text, and then for the next prompt. */
static void say(const char *line, const char *answer)
{
    pty_send(&terminal, line);
    pty_send(&terminal, "\r");
    assert_true(pty_expect(&terminal, answer, SOON));
    assert_true(pty_expect(&terminal, "> ", SOON));
}

static void end_chat(const char *keys)
{
    pty_send(&terminal, keys);
    assert_int_equal(pty_end(&terminal, SOON), 0);
}

static void rest(long ms)
{
    const struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

static void the_second_turn_prefills_only_what_is_new(void **state)
{
    (void)state;
    unsigned context = 0, kept = 0, prefilled = 0;
    start_chat((const char *[]){"--system", CATALOGUE, NULL});
    say("Where is item 381 kept?", "It is on shelf 12.");
    pty_send(&terminal, "/stats\r");
    assert_true(pty_expect(&terminal, "turns: 1, ", SOON));
    assert_true(pty_expect(&terminal, " held", SOON));
    const char *shown = strstr(terminal.seen, "turns: 1, ");
    assert_int_equal(sscanf(shown, "turns: 1, context: %u of 8192 tokens", &context), 1);
    assert_true(pty_expect(&terminal, "> ", SOON));
    say("What colour is item 112?", "It is blue.");
    pty_send(&terminal, "/stats\r");
    assert_true(pty_expect(&terminal, "turns: 2, ", SOON));
    assert_true(pty_expect(&terminal, " held", SOON));
    shown = strstr(strstr(terminal.seen, "turns: 2, "), "last turn: ");
    assert_int_equal(
        sscanf(shown, "last turn: %u tokens kept, %u prefilled", &kept, &prefilled), 2);
    assert_int_equal(kept, context);
    assert_in_range(prefilled, 5, 30); /* the question, and what the template puts around it */
    end_chat("/quit\r");
}

static void ctrl_c_stops_an_answer_and_the_program_goes_on(void **state)
{
    (void)state;
    start_chat((const char *[]){"--system", CATALOGUE, "--temp", "0.8", "-n", "6000", NULL});
    pty_send(&terminal, "Tell me a story.\r");
    assert_true(pty_expect(&terminal, "story.", SOON));
    assert_true(pty_expect_bytes(&terminal, 40, SOON));
    pty_send(&terminal, CTRL_C);
    assert_true(pty_expect(&terminal, "Stopped.", SOON));
    assert_true(pty_expect(&terminal, "> ", SOON));
    say("/stats", "turns: 1,");
    say("/reset", "forgotten");
    say("Where is item 381 kept?", "shelf");
    end_chat(CTRL_D);
}

/* Some 4,000 tokens; the scalar kernels take many seconds for them. */
static char *long_system(void)
{
    enum { RECORDS = 150, BYTES = 80 };
    char *text = malloc(RECORDS * BYTES + 1), *at = text;
    assert_non_null(text);
    for (int i = 0; i < RECORDS; i++)
        at += sprintf(at, "Item %d: a brass lantern, green, 41 crowns, shelf %d, from Oram.\n",
                      100 + i, i);
    return text;
}

static void ctrl_c_stops_a_prefill_and_the_question_is_taken_back(void **state)
{
    (void)state;
    char *system = long_system();
    start_chat((const char *[]){"--isa", "scalar", "-t", "1", "--prefill-chunk", "16",
                                "--system", system, NULL});
    pty_send(&terminal, "Where is item 101 kept?\r");
    assert_true(pty_expect(&terminal, "kept?", SOON));
    assert_true(pty_expect_signals(&terminal, SOON));
    rest(300);
    pty_send(&terminal, CTRL_C);
    assert_true(pty_expect(&terminal, "taken back", SOON));
    assert_true(pty_expect(&terminal, "> ", SOON));
    say("/stats", "turns: 0,");
    say("/system "
        "Be brief.",
        "is set");
    say("Hello.", "\n");
    say("/stats", "turns: 1,");
    end_chat(CTRL_D);
    free(system);
}

static void ctrl_c_at_the_prompt_clears_the_line(void **state)
{
    (void)state;
    start_chat((const char *[]){NULL});
    pty_send(&terminal, "Where is");
    assert_true(pty_expect(&terminal, "Where is", SOON));
    pty_send(&terminal, CTRL_C);
    assert_true(pty_expect(&terminal, "> ", SOON));
    say("/help", "end, as Ctrl-D does");
    say("/stats", "turns: 0,");
    end_chat(CTRL_D);
}

static void a_line_is_edited(void **state)
{
    (void)state;
    start_chat((const char *[]){NULL});
    say("/hepl\x7f\x7flp", "/reset"); /* two characters are taken back */
    say("tats\x01/s", "turns: 0,");   /* Ctrl-A goes to the beginning */
    say("/frob", "no such command");  /* and a wrong one is a sentence */
    say("/quit now", "takes nothing after it");
    end_chat("/quit\r");
}

static void history_is_recalled_within_and_between_runs(void **state)
{
    (void)state;
    char path[128];
    struct stat info;
    start_chat((const char *[]){"--system", CATALOGUE, NULL});
    say("Where is item 381 kept?", "It is on shelf 12.");
    say(UP, "It is on shelf 12.");
    end_chat(CTRL_D);
    snprintf(path, sizeof path, "%s/sheaf/history", folder);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);

    start_chat((const char *[]){"--system", CATALOGUE, NULL});
    say("/stats", "turns: 0,");
    say(UP UP, "It is on shelf 12.");
    end_chat(CTRL_D);
}

/* Starts with XDG_STATE_HOME set to `state_home`, and sees the program go on. */
static void goes_on_without_history(const char *state_home)
{
    snprintf(state_setting, sizeof state_setting, "XDG_STATE_HOME=%s", state_home);
    start_chat((const char *[]){NULL});
    assert_non_null(strstr(terminal.seen, "; lines are not kept"));
    say("/stats", "turns: 0,");
    end_chat(CTRL_D);
    snprintf(state_setting, sizeof state_setting, "XDG_STATE_HOME=%s", folder);
}

static void a_history_that_cannot_be_kept_is_one_sentence(void **state)
{
    (void)state;
    goes_on_without_history("/dev/null/nowhere");
}

static void a_relative_state_folder_is_refused(void **state)
{
    (void)state;
    snprintf(state_setting, sizeof state_setting, "XDG_STATE_HOME=here/and/there");
    launch_chat((const char *[]){NULL});
    assert_true(pty_expect(&terminal,
                           "XDG_STATE_HOME: 'here/and/there' is not an absolute path", SOON));
    assert_int_equal(pty_end(&terminal, SOON), 2);
    snprintf(state_setting, sizeof state_setting, "XDG_STATE_HOME=%s", folder);
}

static void a_file_that_is_no_history_is_left_alone(void **state)
{
    (void)state;
    char other[100], path[128], line[32] = "";
    snprintf(other, sizeof other, "%s/other", folder);
    assert_int_equal(mkdir(other, 0700), 0);
    snprintf(path, sizeof path, "%s/sheaf", other);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/sheaf/history", other);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("precious\n", file);
    fclose(file);
    goes_on_without_history(other);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_string_equal(line, "precious\n");
}

static int set_up(void **state)
{
    (void)state;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return -1;
    program[n] = 0;
    char *slash = strrchr(program, '/'); /* BUILD/tests/e2e_chat */
    strcpy(slash, "/../bin/sheaf");
    strcpy(folder, "/tmp/sheaf-chat-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(state_setting, sizeof state_setting, "XDG_STATE_HOME=%s", folder);
    return setenv("HOME", folder, 1);
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_turn_prefills_only_what_is_new),
        cmocka_unit_test(ctrl_c_stops_an_answer_and_the_program_goes_on),
        cmocka_unit_test(ctrl_c_stops_a_prefill_and_the_question_is_taken_back),
        cmocka_unit_test(ctrl_c_at_the_prompt_clears_the_line),
        cmocka_unit_test(a_line_is_edited),
        cmocka_unit_test(history_is_recalled_within_and_between_runs),
        cmocka_unit_test(a_history_that_cannot_be_kept_is_one_sentence),
        cmocka_unit_test(a_relative_state_folder_is_refused),
        cmocka_unit_test(a_file_that_is_no_history_is_left_alone),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
