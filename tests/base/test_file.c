/* base/file.c: what maps, and what is refused with a sentence that names the file. */
#include "testing.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static char folder[] = "/tmp/sheaf-test-file-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_file(const char *text, size_t size)
{
    unlink(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void expect_refused(const char *name, const char *reason)
{
    sheaf__file out = {(const unsigned char *)folder, 7};
    sheaf_error err = {0};
    assert_int_equal(sheaf__file_map(name, &out, &err), SHEAF_E_IO);
    assert_true(out.data == (const unsigned char *)folder && out.size == 7);
    assert_int_equal(err.status, SHEAF_E_IO);
    assert_non_null(strstr(err.text, name));
    assert_non_null(strstr(err.text, reason));
    assert_int_equal(sheaf__file_map(name, &out, NULL), SHEAF_E_IO);
}

static void a_file_is_mapped_whole(void **state)
{
    (void)state;
    static char big[20000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 7);
    write_file(big, sizeof big);
    sheaf__file file = {0};
    assert_int_equal(sheaf__file_map(path, &file, NULL), SHEAF_OK);
    assert_true(file.size == sizeof big && (uintptr_t)file.data % 4096 == 0);
    assert_memory_equal(file.data, big, sizeof big);
    assert_true(sheaf__file_exists(path));
    sheaf__file_unmap(&file);
    assert_true(file.data == NULL && file.size == 0);
    sheaf__file_unmap(&file);
}

static void an_empty_file_is_allowed(void **state)
{
    (void)state;
    write_file("", 0);
    sheaf__file file = {(const unsigned char *)folder, 7};
    assert_int_equal(sheaf__file_map(path, &file, NULL), SHEAF_OK);
    assert_true(file.data == NULL && file.size == 0);
    sheaf__file_unmap(&file);
}

static void a_missing_file_is_named(void **state)
{
    (void)state;
    unlink(path);
    assert_false(sheaf__file_exists(path));
    expect_refused(path, "No such file");
}

static void a_folder_is_refused(void **state)
{
    (void)state;
    expect_refused(folder, "not a regular file");
}

static void a_pipe_is_refused_without_waiting_for_it(void **state)
{
    (void)state;
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(path, "not a regular file");
    unlink(path);
}

static void a_device_is_refused(void **state)
{
    (void)state;
    expect_refused("/dev/zero", "not a regular file");
}

static void a_path_too_long_is_refused(void **state)
{
    (void)state;
    static char name[6000];
    memset(name, 'a', sizeof name - 1);
    sheaf__file out = {0};
    sheaf_error err;
    assert_int_equal(sheaf__file_map(name, &out, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "...aaa"));
    assert_non_null(strstr(err.text, "aaa: File name too long"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_mapped_whole),
        cmocka_unit_test(an_empty_file_is_allowed),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(a_folder_is_refused),
        cmocka_unit_test(a_pipe_is_refused_without_waiting_for_it),
        cmocka_unit_test(a_device_is_refused),
        cmocka_unit_test(a_path_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
