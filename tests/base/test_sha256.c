/* base/sha256.c: published digests, in one piece and in many, and a libcrypto without the algorithm. */
#include "testing.h"

#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sha256.h"

static void assert_digest(const unsigned char digest[SHEAF__SHA256_BYTES], const char *hex)
{
    char text[2 * SHEAF__SHA256_BYTES + 1];
    for (int i = 0; i < SHEAF__SHA256_BYTES; i++) sprintf(text + 2 * i, "%02x", digest[i]);
    assert_string_equal(text, hex);
}

/* FIPS 180-4's examples, and the digest of nothing. */
static const struct {
    const char *text, *hex;
} known[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};
#define N_KNOWN (sizeof known / sizeof known[0])

static void digests_are_those_of_the_standard(void **state)
{
    (void)state;
    unsigned char digest[SHEAF__SHA256_BYTES];
    for (size_t i = 0; i < N_KNOWN; i++) {
        uint64_t size = strlen(known[i].text);
        assert_int_equal(sheaf__sha256_of(known[i].text, size, digest), SHEAF_OK);
        assert_digest(digest, known[i].hex);
    }
}

static void pieces_give_the_digest_of_the_whole(void **state)
{
    (void)state;
    sheaf__sha256 sha;
    unsigned char digest[SHEAF__SHA256_BYTES], piece[1000];
    memset(piece, 'a', sizeof piece);
    assert_int_equal(sheaf__sha256_begin(&sha), SHEAF_OK);
    uint64_t left = 1000000; /* FIPS 180-4: a million times the letter a */
    for (uint64_t n = 1; left > 0; n = n % sizeof piece + 1) {
        uint64_t part = n < left ? n : left;
        sheaf__sha256_add(&sha, piece, part);
        sheaf__sha256_add(&sha, NULL, 0);
        left -= part;
    }
    assert_int_equal(sheaf__sha256_end(&sha, digest), SHEAF_OK);
    assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void digests_at_the_same_time_do_not_meet(void **state)
{
    (void)state;
    sheaf__sha256 sha[N_KNOWN];
    for (size_t i = 0; i < N_KNOWN; i++)
        assert_int_equal(sheaf__sha256_begin(&sha[i]), SHEAF_OK);
    for (size_t i = 0; i < N_KNOWN; i++)
        sheaf__sha256_add(&sha[i], known[i].text, strlen(known[i].text));
    for (size_t i = 0; i < N_KNOWN; i++) {
        unsigned char digest[SHEAF__SHA256_BYTES];
        assert_int_equal(sheaf__sha256_end(&sha[i], digest), SHEAF_OK);
        assert_digest(digest, known[i].hex);
    }
}

static void *digest_often(void *wrong)
{
    unsigned char first[SHEAF__SHA256_BYTES], digest[SHEAF__SHA256_BYTES];
    *(bool *)wrong = sheaf__sha256_of("abc", 3, first) != SHEAF_OK;
    for (int i = 0; i < 2000; i++) {
        bool same = sheaf__sha256_of("abc", 3, digest) == SHEAF_OK &&
                    memcmp(digest, first, sizeof digest) == 0;
        if (!same) *(bool *)wrong = true;
    }
    return NULL;
}

static void several_threads_digest_at_once(void **state)
{
    (void)state;
    pthread_t threads[4];
    bool wrong[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, digest_often, &wrong[i]), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_false(wrong[i]);
    }
}

/* ---- a libcrypto without SHA-256 ----------------------------------------------------------- */

/* What the program answers when it is started with the word "ready". */
static int say_ready(void)
{
    sheaf__sha256 sha;
    unsigned char digest[SHEAF__SHA256_BYTES];
    sheaf_status ready = sheaf__sha256_ready();
    if (sheaf__sha256_begin(&sha) != ready) return 100;
    if (ready == SHEAF_OK && sheaf__sha256_end(&sha, digest) != SHEAF_OK) return 101;
    return -ready;
}

static int exit_code_with(const char *config)
{
    char file[] = "/tmp/sheaf-openssl-XXXXXX", setting[64], *argv[] = {"test", "ready", NULL};
    int fd = mkstemp(file), status = 0;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, config, strlen(config)), (ssize_t)strlen(config));
    close(fd);
    snprintf(setting, sizeof setting, "OPENSSL_CONF=%s", file);
    char *env[] = {setting, NULL};
    pid_t child;
    int started = posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv, env);
    if (started == 0) assert_int_equal(waitpid(child, &status, 0), child);
    unlink(file);
    assert_int_equal(started, 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_system_without_the_algorithm_is_told(void **state)
{
    (void)state;
#ifdef SHEAF_EMULATED
    TESTING_SKIP("an emulated program cannot start itself");
#endif
    /* the base provider has encoders and no digest */
    assert_int_equal(exit_code_with("openssl_conf = all\n[all]\nproviders = some\n"
                                    "[some]\nbase = base\n[base]\nactivate = 1\n"),
                     -SHEAF_E_UNSUPPORTED);
    assert_int_equal(exit_code_with(""), SHEAF_OK);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "ready") == 0) return say_ready();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_the_standard),
        cmocka_unit_test(pieces_give_the_digest_of_the_whole),
        cmocka_unit_test(digests_at_the_same_time_do_not_meet),
        cmocka_unit_test(several_threads_digest_at_once),
        cmocka_unit_test(a_system_without_the_algorithm_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
