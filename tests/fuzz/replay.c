/* fuzz/replay.c - runs a fuzz target over its committed corpus, one test case a file.
 *
 * The input lies in memory of exactly its size, so that a sanitizer sees any step beyond it.
 */
#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "fuzz/fuzz.h"

#define MAX_CASES 1024

static void replay_file(void **state)
{
    const char *path = *state;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    uint8_t *data = malloc(size == 0 ? 1 : (size_t)size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)size, file), size);
    fclose(file);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

/* The corpus may not be empty, or a lost folder would pass. */
static void the_corpus_has_inputs(void **state)
{
    assert_true(*(const size_t *)*state > 0);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct CMUnitTest *)a)->name, ((const struct CMUnitTest *)b)->name);
}

int main(void)
{
    static struct CMUnitTest tests[MAX_CASES + 1];
    static char paths[MAX_CASES][PATH_MAX];
    size_t n = 0;
    DIR *dir = opendir(SHEAF_FUZZ_CORPUS);
    struct dirent *entry;
    while (dir != NULL && n < MAX_CASES && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        int length = snprintf(paths[n], PATH_MAX, "%s/%s", SHEAF_FUZZ_CORPUS, entry->d_name);
        if (length < 0 || length >= PATH_MAX) continue;
        tests[n] =
            (struct CMUnitTest){strrchr(paths[n], '/') + 1, replay_file, NULL, NULL, paths[n]};
        n++;
    }
    if (dir != NULL) closedir(dir);
    qsort(tests, n, sizeof tests[0], by_name);
    tests[n] =
        (struct CMUnitTest){"the_corpus_has_inputs", the_corpus_has_inputs, NULL, NULL, &n};
    return _cmocka_run_group_tests(SHEAF_FUZZ_CORPUS, tests, n + 1, NULL, NULL);
}
