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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_are_those_of_xxh3),
        cmocka_unit_test(every_byte_and_the_seed_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
