/* base/hash.c: XXH3's published values, so that keys stay the same everywhere. */
#include "testing.h"

#include "base/hash.h"

static void hashes_are_those_of_xxh3(void **state)
{
    (void)state;
    /* of the empty input with seed 0: the XXH3 specification's first test vector */
    assert_true(sheaf__hash64("", 0, 0) == 0x2d06800538d394c2u);
    assert_true(sheaf__hash64(NULL, 0, 0) == 0x2d06800538d394c2u);
}

static void every_byte_and_the_seed_count(void **state)
{
    (void)state;
    unsigned char data[300] = {0};
    uint64_t plain = sheaf__hash64(data, sizeof data, 0);
    assert_true(sheaf__hash64(data, sizeof data, 1) != plain);
    assert_true(sheaf__hash64(data, sizeof data - 1, 0) != plain);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = 1;
        assert_true(sheaf__hash64(data, sizeof data, 0) != plain);
        data[i] = 0;
    }
    assert_true(sheaf__hash64(data, sizeof data, 0) == plain);
}

static void pieces_give_the_hash_of_the_whole(void **state)
{
    (void)state;
    unsigned char data[2000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    sheaf__hash_state *hash = sheaf__hash_create();
    assert_non_null(hash);
    for (size_t size = 0; size <= sizeof data; size += 125) {
        for (size_t piece = 1; piece < 700; piece += 97) {
            sheaf__hash_begin(hash);
            for (size_t at = 0; at < size; at += piece)
                sheaf__hash_add(hash, data + at, size - at < piece ? size - at : piece);
            sheaf__hash_add(hash, NULL, 0);
            assert_true(sheaf__hash_value(hash) == sheaf__hash64(data, size, 0));
        }
    }
    sheaf__hash_destroy(hash);
    sheaf__hash_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_are_those_of_xxh3),
        cmocka_unit_test(every_byte_and_the_seed_count),
        cmocka_unit_test(pieces_give_the_hash_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
