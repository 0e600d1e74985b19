/* cache/wire_file.c: under a file's name there is the old stream or the new one, whatever happens. */
#include "cache/wire_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], file[96];
static int lock_error; /* 0: locks are those of the system */

/* In place of the C library's: fails as on a file system without such locks. */
int flock(int fd, int operation)
{
    errno = lock_error;
    return lock_error != 0 ? -1 : (int)syscall(SYS_flock, fd, operation);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sheaf-wire-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(file, sizeof file, "%s/session.kv", folder);
    return 0;
}

/* Names in the folder; all but the file's own are removed on the way if asked. */
static uint32_t count_others(bool clear)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    uint32_t n = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[512];
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "session.kv") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (clear) unlink(path);
        n++;
    }
    closedir(dir);
    return n;
}

static int remove_folder(void **state)
{
    (void)state;
    count_others(true);
    unlink(file);
    return rmdir(folder);
}

static void assert_file_is(const bytes *expected)
{
    bytes found = bytes_of_file(file);
    assert_int_equal(found.n, expected->n);
    assert_memory_equal(found.data, expected->data, found.n);
    free(found.data);
}

static void save_there(sheaf_parked *parked)
{
    sheaf_error err = {0};
    sheaf_status st = sheaf_wire_save_file(&parked, 1, &some_space, file, &err);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
}

static sheaf_status load_there(sheaf_pool *pool, sheaf_parked **loaded, sheaf_error *err)
{
    uint32_t n = 0;
    return sheaf_wire_load_file(pool, &some_space, file, loaded, 1, &n, err);
}

/* ---- right ones ---------------------------------------------------------------------------- */

static void a_file_is_written_whole_and_for_its_owner_alone(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    fixture_open(&g, odd_layers, N_ODD, 8, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 11, 1)), *loaded = NULL;
    bytes stream = save_all(&parked, 1);
    mode_t mask = umask(0);
    save_there(parked);
    umask(mask);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_file_is(&stream);
    assert_int_equal(count_others(false), 0);
    assert_int_equal(load_there(g.pool, &loaded, NULL), SHEAF_OK);
    assert_same_parked(parked, loaded);
    sheaf_parked_destroy(parked);
    sheaf_parked_destroy(loaded);
    fixture_close(&f);
    fixture_close(&g);
    free(stream.data);
}

static void a_name_without_a_folder_is_in_the_current_one(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 5, 1));
    char before[4096];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    sheaf_status st = sheaf_wire_save_file(&parked, 1, &some_space, "session.kv", NULL);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(st, SHEAF_OK);
    assert_int_equal(access(file, R_OK), 0);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

/* ---- attempts that end in the middle ------------------------------------------------------- */

/* Saves in a process that may write `limit` bytes to a file; killed: the system ends it there. */
static int save_with_limit(sheaf_parked *parked, uint64_t limit, bool killed)
{
    pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit most = {limit, limit}, none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        setrlimit(RLIMIT_FSIZE, &most);
        signal(SIGXFSZ, killed ? SIG_DFL : SIG_IGN);
        sheaf_error err = {0};
        sheaf_status st = sheaf_wire_save_file(&parked, 1, &some_space, file, &err);
        bool named = strstr(err.text, "session.kv: ") != NULL && strstr(err.text, "large");
        _exit(st == SHEAF_OK ? 0 : st == SHEAF_E_IO && named ? 1 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) return -WTERMSIG(status);
    return WEXITSTATUS(status);
}

static void an_attempt_killed_at_any_byte_leaves_the_old_file(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *old = park(sequence_of_length(&f, 3, 1));
    sheaf_parked *new = park(sequence_of_length(&f, 6, 50));
    bytes before = save_all(&old, 1), after = save_all(&new, 1);
    save_there(old);
    for (uint64_t limit = 0; limit < after.n; limit += 1 + after.n / 100) {
        assert_int_equal(save_with_limit(new, limit, true), -SIGXFSZ);
        assert_file_is(&before);
        assert_int_equal(count_others(false), 1); /* the last one's; earlier ones are swept */
    }
    assert_int_equal(save_with_limit(new, after.n, true), 0);
    assert_file_is(&after);
    assert_int_equal(count_others(false), 0);
    sheaf_parked_destroy(old);
    sheaf_parked_destroy(new);
    fixture_close(&f);
    free(before.data);
    free(after.data);
}

static void a_file_system_without_room_leaves_the_old_file(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *old = park(sequence_of_length(&f, 3, 1));
    sheaf_parked *new = park(sequence_of_length(&f, 6, 50));
    bytes before = save_all(&old, 1), after = save_all(&new, 1);
    save_there(old);
    for (uint64_t limit = 0; limit < after.n; limit += 1 + after.n / 20) {
        assert_int_equal(save_with_limit(new, limit, false), 1);
        assert_file_is(&before);
        assert_int_equal(count_others(false), 0);
    }
    sheaf_parked_destroy(old);
    sheaf_parked_destroy(new);
    fixture_close(&f);
    free(before.data);
    free(after.data);
}

/* What another process is writing, and what only looks alike. */
static void an_attempt_at_work_and_files_of_others_are_left_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"session.kv.sheaf-abcdef", "session.kv.sheaf-abcde",
                                        "session.kv.sheaf-abcdez", "session.kv2.sheaf-abcdef",
                                        "session.kv.sheaf-aaaaaa"};
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 3, 1));
    int fds[5];
    for (int i = 0; i < 5; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        fds[i] = open(path, O_WRONLY | O_CREAT, 0600);
        assert_true(fds[i] >= 0);
    }
    assert_int_equal(flock(fds[0], LOCK_EX), 0);
    save_there(parked);
    assert_int_equal(count_others(false), 4); /* the last one was nobody's */
    for (int i = 0; i < 5; i++) close(fds[i]);
    save_there(parked);
    assert_int_equal(count_others(true), 3);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

static void a_file_system_without_locks_takes_it_too(void **state)
{
    (void)state;
    static const int errors[] = {ENOSYS, ENOLCK, EOPNOTSUPP};
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 3, 1));
    bytes stream = save_all(&parked, 1);
    for (int i = 0; i < 3; i++) {
        lock_error = errors[i];
        sheaf_status st = sheaf_wire_save_file(&parked, 1, &some_space, file, NULL);
        lock_error = 0;
        assert_int_equal(st, SHEAF_OK);
        assert_file_is(&stream);
        assert_int_equal(count_others(false), 0);
        assert_int_equal(unlink(file), 0);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(stream.data);
}

/* ---- impossible ones ----------------------------------------------------------------------- */

static void assert_save_fails(sheaf_parked *parked, const char *path, sheaf_status expected)
{
    sheaf_error err = {0};
    assert_int_equal(sheaf_wire_save_file(&parked, 1, &some_space, path, &err), expected);
    assert_int_equal(err.status, expected);
    assert_true(err.text[0] != 0);
    if (path != NULL && strlen(path) < 100) assert_non_null(strstr(err.text, path));
}

/* A link stays one, whether it leads anywhere or not. */
static void a_symbolic_link_is_not_replaced(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 3, 1));
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/link", folder);
    assert_int_equal(symlink("session.kv", path), 0);
    for (int there = 0; there < 2; there++) {
        if (there != 0) save_there(parked);
        assert_save_fails(parked, path, SHEAF_E_IO);
        assert_int_equal(lstat(path, &st), 0);
        assert_true(S_ISLNK(st.st_mode));
        assert_int_equal(access(file, F_OK), there - 1);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

static void places_that_cannot_be_written_are_told(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 3, 1));
    char path[8192], fifo[256];
    assert_save_fails(parked, folder, SHEAF_E_IO);
    assert_save_fails(parked, "/dev/null", SHEAF_E_IO);
    assert_save_fails(parked, "", SHEAF_E_IO);
    snprintf(path, sizeof path, "%s/", folder);
    assert_save_fails(parked, path, SHEAF_E_IO);
    snprintf(path, sizeof path, "%s/none/session.kv", folder);
    assert_save_fails(parked, path, SHEAF_E_IO);
    snprintf(path, sizeof path, "%s/%0250d", folder, 7);
    assert_save_fails(parked, path, SHEAF_E_IO);
    memset(path, '/', sizeof path - 1);
    path[sizeof path - 1] = 0;
    path[sizeof path - 2] = 'x';
    assert_save_fails(parked, path, SHEAF_E_IO);
    assert_save_fails(parked, NULL, SHEAF_E_INVALID);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_save_fails(parked, fifo, SHEAF_E_IO);
    assert_int_equal(unlink(fifo), 0);
    assert_int_equal(count_others(false), 0);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

/* As a user who is not root, whom no mode stops. */
static void a_folder_that_cannot_be_written_is_told(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 3, 1));
    assert_int_equal(chmod(folder, 0555), 0);
    pid_t child = fork();
    int status;
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && setuid(65534) != 0) _exit(2);
        sheaf_error err = {0};
        sheaf_status st = sheaf_wire_save_file(&parked, 1, &some_space, file, &err);
        _exit(st == SHEAF_E_IO && strstr(err.text, file) != NULL ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(chmod(folder, 0700), 0);
    assert_int_equal(count_others(false), 0);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

static void put_file(const void *data, uint64_t n, const char *mode)
{
    FILE *out = fopen(file, mode);
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

static void files_that_are_no_whole_stream_are_told_by_name(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 6, 1)), *loaded = NULL;
    bytes stream = save_all(&parked, 1);
    sheaf_error err = {0};
    sheaf_pool_stats before = held_of(&f);
    unlink(file);
    assert_int_equal(load_there(f.pool, &loaded, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, file));
    put_file("", 0, "wb");
    assert_int_equal(load_there(f.pool, &loaded, &err), SHEAF_E_FORMAT);
    assert_non_null(strstr(err.text, "empty"));
    put_file(stream.data, stream.n, "wb");
    put_file("x", 1, "ab");
    assert_int_equal(load_there(f.pool, &loaded, &err), SHEAF_E_FORMAT);
    assert_non_null(strstr(err.text, file));
    put_file(stream.data, stream.n - 1, "wb");
    assert_int_equal(load_there(f.pool, &loaded, &err), SHEAF_E_FORMAT);
    stream.data[stream.n / 2] ^= 1;
    put_file(stream.data, stream.n, "wb");
    assert_int_equal(load_there(f.pool, &loaded, &err), SHEAF_E_DAMAGED);
    assert_non_null(strstr(err.text, file));
    unlink(file);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_int_equal(load_there(f.pool, &loaded, &err), SHEAF_E_IO);
    uint32_t n;
    assert_int_equal(sheaf_wire_load_file(f.pool, NULL, folder, &loaded, 1, &n, &err),
                     SHEAF_E_IO);
    assert_int_equal(sheaf_wire_load_file(f.pool, NULL, NULL, &loaded, 1, &n, &err),
                     SHEAF_E_INVALID);
    sheaf_pool_stats after = held_of(&f);
    assert_memory_equal(&before, &after, sizeof before);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(stream.data);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_file_is_written_whole_and_for_its_owner_alone),
        IN_FOLDER(a_name_without_a_folder_is_in_the_current_one),
        IN_FOLDER(an_attempt_killed_at_any_byte_leaves_the_old_file),
        IN_FOLDER(a_file_system_without_room_leaves_the_old_file),
        IN_FOLDER(an_attempt_at_work_and_files_of_others_are_left_alone),
        IN_FOLDER(a_file_system_without_locks_takes_it_too),
        IN_FOLDER(a_symbolic_link_is_not_replaced),
        IN_FOLDER(places_that_cannot_be_written_are_told),
        IN_FOLDER(a_folder_that_cannot_be_written_is_told),
        IN_FOLDER(files_that_are_no_whole_stream_are_told_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
