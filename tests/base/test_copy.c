/* base/copy.h: every alignment and length, and nothing beside them. */
#include "testing.h"

#include "base/copy.h"

enum { ROOM = 3 * 4096, GUARD = 64 };

static void compare(uint64_t to, uint64_t from, uint64_t size)
{
    static _Alignas(64) unsigned char in[ROOM], out[ROOM];
    for (uint64_t i = 0; i < ROOM; i++) in[i] = (unsigned char)(i * 7 + i / 256);
    memset(out, 0xee, sizeof out);
    sheaf__copy_past(out + GUARD + to, in + from, size);
    assert_memory_equal(out + GUARD + to, in + from, size);
    for (uint64_t i = 0; i < GUARD + to; i++) assert_int_equal(out[i], 0xee);
    for (uint64_t i = GUARD + to + size; i < ROOM; i++) assert_int_equal(out[i], 0xee);
}

static void small_and_large_pieces_arrive_whole(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 63, 64, 4095, 4096, 4097, 4160, 8192, 8301};
    for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (uint64_t to = 0; to < 64; to += to < 4 ? 1 : 15)
            for (uint64_t from = 0; from < 64; from += from < 2 ? 1 : 31)
                compare(to, from, sizes[i]);
    compare(3, 5, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_and_large_pieces_arrive_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
