/* model/rope.h: the angles of the reference, near enough to the true functions, on every
 * machine the same bits. */
#include "testing.h"

#include <math.h>

#include "base/hash.h"
#include "model/rope.h"
#include "odd_fpenv.h"

static const sheaf__rope_config plain = {.kind = SHEAF__ROPE_PLAIN, .theta = 1e6};
static const sheaf__rope_config llama3 = {.kind = SHEAF__ROPE_LLAMA3,
                                          .theta = 5e5,
                                          .factor = 32,
                                          .low_freq_factor = 1,
                                          .high_freq_factor = 4,
                                          .original_max_positions = 8192};

static sheaf__rope *make(const sheaf__rope_config *config, uint32_t head_dim,
                         sheaf__memory *memory)
{
    sheaf__rope *rope = NULL;
    sheaf__memory_init(memory, NULL);
    assert_int_equal(sheaf__rope_create(config, head_dim, memory, &rope), SHEAF_OK);
    return rope;
}

/* Every row against f32 frequencies handed in, through libm's double functions. */
static void expect_tables(const sheaf__rope *rope, const float *frequencies, uint32_t half,
                          uint32_t n_positions)
{
    for (uint32_t pos = 0; pos < n_positions; pos++)
        for (uint32_t i = 0; i < half; i++) {
            volatile float angle = (float)pos * frequencies[i];
            assert_true(fabs(sheaf__rope_cos(rope, pos)[i] - cos(angle)) <= 0x1p-24);
            assert_true(fabs(sheaf__rope_sin(rope, pos)[i] - sin(angle)) <= 0x1p-24);
        }
}

static void rows_are_the_cosines_and_sines_of_f32_angles(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__rope *rope = make(&plain, 128, &memory);
    float frequencies[64];
    for (int i = 0; i < 64; i++)
        frequencies[i] = 1.0f / (float)pow(1e6, (double)((float)(2 * i) / 128.0f));
    assert_int_equal(sheaf__rope_reserve(rope, 3000), SHEAF_OK);
    expect_tables(rope, frequencies, 64, 3000);
    sheaf__rope_destroy(rope);
    assert_int_equal(memory.live_bytes, 0);
}

static void linear_scaling_divides_every_frequency(void **state)
{
    (void)state;
    const sheaf__rope_config linear = {.kind = SHEAF__ROPE_LINEAR, .theta = 1e4, .factor = 4};
    sheaf__memory memory;
    sheaf__rope *rope = make(&linear, 32, &memory);
    float frequencies[16];
    for (int i = 0; i < 16; i++)
        frequencies[i] = 1.0f / (float)pow(1e4, (double)((float)(2 * i) / 32.0f)) / 4.0f;
    assert_int_equal(sheaf__rope_reserve(rope, 500), SHEAF_OK);
    expect_tables(rope, frequencies, 16, 500);
    sheaf__rope_destroy(rope);
}

/* Against Llama 3.1's published rule, in double: short waves kept, long ones divided, those
 * between blended. Position 1 shows the frequency itself. */
static void llama3_scaling_keeps_divides_and_blends(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__rope *rope = make(&llama3, 64, &memory);
    assert_int_equal(sheaf__rope_reserve(rope, 2), SHEAF_OK);
    int kept = 0, divided = 0, blended = 0;
    for (int i = 0; i < 32; i++) {
        double frequency = pow(5e5, -2.0 * i / 64),
               wave = 2 * 3.14159265358979323846 / frequency;
        double scaled = frequency;
        if (wave > 8192.0) {
            scaled = frequency / 32;
            divided++;
        } else if (wave >= 8192.0 / 4) {
            double smooth = (8192 / wave - 1) / (4 - 1);
            scaled = (1 - smooth) * frequency / 32 + smooth * frequency;
            blended++;
        } else {
            kept++;
        }
        double sine = sheaf__rope_sin(rope, 1)[i];
        assert_true(fabs(sine - sin(scaled)) <= 2e-6 * sin(scaled));
    }
    assert_true(kept > 0 && divided > 0 && blended > 0);
    sheaf__rope_destroy(rope);
}

static void growing_keeps_rows_where_they_are(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__rope *rope = make(&plain, 64, &memory);
    assert_int_equal(sheaf__rope_reserve(rope, 1), SHEAF_OK);
    const float *row = sheaf__rope_cos(rope, 0);
    uint64_t bytes = memory.live_bytes;
    assert_int_equal(sheaf__rope_reserve(rope, 1024), SHEAF_OK);
    assert_int_equal(memory.live_bytes, bytes);
    assert_int_equal(sheaf__rope_reserve(rope, 20000), SHEAF_OK);
    assert_ptr_equal(sheaf__rope_cos(rope, 0), row);
    assert_true(row[0] == 1.0f && sheaf__rope_sin(rope, 0)[31] == 0.0f);
    /* both sides of a page's edge */
    for (uint32_t pos = 1022; pos < 1027; pos++)
        assert_true(fabs(sheaf__rope_cos(rope, pos)[0] - cos((double)pos)) <= 0x1p-24);
    sheaf__rope_destroy(rope);
    assert_int_equal(memory.live_bytes, 0);
}

static void the_bits_are_the_same_in_every_build(void **state)
{
    (void)state;
    static float rows[2][4096][2][32];
    const sheaf__rope_config *configs[2] = {&plain, &llama3};
    for (int c = 0; c < 2; c++) {
        sheaf__memory memory;
        fpenv_set(ODD_FPENV);
        sheaf__rope *rope = make(configs[c], 64, &memory);
        assert_int_equal(sheaf__rope_reserve(rope, 4096), SHEAF_OK);
        fpenv_set(DEFAULT_FPENV);
        for (uint32_t pos = 0; pos < 4096; pos++) {
            memcpy(rows[c][pos][0], sheaf__rope_cos(rope, pos), sizeof rows[c][pos][0]);
            memcpy(rows[c][pos][1], sheaf__rope_sin(rope, pos), sizeof rows[c][pos][1]);
        }
        sheaf__rope_destroy(rope);
    }
    /* computed once with gcc 12 -O3; the same with -O0, with clang 14, and without hardware FMA */
    assert_true(sheaf__hash64(rows, sizeof rows, 0) == 0x31c3c257f416ac57u);
}

static void impossible_configs_are_refused(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__rope *rope = NULL;
    sheaf__memory_init(&memory, NULL);
    sheaf__rope_config bad[6] = {plain, plain, llama3, llama3, llama3, plain};
    bad[0].theta = 0;
    bad[1].kind = 9;
    bad[2].factor = -1;
    bad[3].high_freq_factor = 1;
    bad[4].original_max_positions = 0;
    bad[5].theta = INFINITY;
    for (int i = 0; i < 6; i++)
        assert_int_equal(sheaf__rope_create(&bad[i], 64, &memory, &rope), SHEAF_E_INVALID);
    assert_int_equal(sheaf__rope_create(&plain, 63, &memory, &rope), SHEAF_E_INVALID);
    assert_int_equal(sheaf__rope_create(&plain, 0, &memory, &rope), SHEAF_E_INVALID);
    assert_null(rope);
    rope = make(&plain, 2, &memory);
    assert_int_equal(sheaf__rope_reserve(rope, (1u << 24) + 1), SHEAF_E_INVALID);
    sheaf__rope_destroy(rope);
    sheaf__rope_destroy(NULL);
}

static int n_until_failure;

static void *failing_alloc(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx;
    if (n_until_failure-- == 0) return NULL;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void plain_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx;
    (void)size;
    (void)align;
    free(ptr);
}

static void rows_that_were_ready_survive_a_failed_allocation(void **state)
{
    (void)state;
    const sheaf_allocator failing = {NULL, failing_alloc, plain_free};
    int n_failures = 0;
    for (int fail_at = 0;; fail_at++) {
        sheaf__memory memory;
        sheaf__rope *rope = NULL;
        sheaf__memory_init(&memory, &failing);
        n_until_failure = fail_at;
        bool made = sheaf__rope_create(&plain, 16, &memory, &rope) == SHEAF_OK;
        bool first = made && sheaf__rope_reserve(rope, 1000) == SHEAF_OK;
        bool all = first && sheaf__rope_reserve(rope, 12000) == SHEAF_OK;
        n_until_failure = -1;
        if (first) assert_true(sheaf__rope_cos(rope, 0)[0] == 1.0f);
        if (made) assert_int_equal(sheaf__rope_reserve(rope, 12000), SHEAF_OK);
        if (made) assert_true(sheaf__rope_cos(rope, 11999)[0] < 1.0f);
        sheaf__rope_destroy(rope);
        assert_int_equal(memory.live_bytes, 0);
        if (all) break;
        n_failures++;
    }
    assert_true(n_failures >= 2 + 2 + 11);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_cosines_and_sines_of_f32_angles),
        cmocka_unit_test(linear_scaling_divides_every_frequency),
        cmocka_unit_test(llama3_scaling_keeps_divides_and_blends),
        cmocka_unit_test(growing_keeps_rows_where_they_are),
        cmocka_unit_test(the_bits_are_the_same_in_every_build),
        cmocka_unit_test(impossible_configs_are_refused),
        cmocka_unit_test(rows_that_were_ready_survive_a_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
