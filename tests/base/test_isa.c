/* base/isa.c against what the kernel says of the processor. */
#include "testing.h"

#include "sheaf/status.h"

#if defined(__x86_64__)
static int has_flag(const char *flags, const char *name)
{
    char padded[32];
    snprintf(padded, sizeof padded, " %s ", name);
    return strstr(flags, padded) != NULL;
}
#endif

static void the_best_is_what_the_processor_has(void **state)
{
    (void)state;
#if defined(__x86_64__)
    FILE *info = fopen("/proc/cpuinfo", "r");
    if (info == NULL) TESTING_SKIP("/proc/cpuinfo is absent");
    static char line[8192];
    int found = 0;
    while (!found && fgets(line, sizeof line, info) != NULL)
        found = strncmp(line, "flags", 5) == 0;
    fclose(info);
    if (!found) TESTING_SKIP("/proc/cpuinfo names no flags");
    line[strcspn(line, "\n")] = ' ';
    int avx2 = has_flag(line, "avx2") && has_flag(line, "fma") && has_flag(line, "f16c");
    int avx512 = avx2 && has_flag(line, "avx512f") && has_flag(line, "avx512bw") &&
                 has_flag(line, "avx512dq") && has_flag(line, "avx512vl");
    assert_int_equal(sheaf_isa_best(), avx512 ? SHEAF_ISA_AVX512
                                       : avx2 ? SHEAF_ISA_AVX2
                                              : SHEAF_ISA_SCALAR);
#else
    assert_int_equal(sheaf_isa_best(), SHEAF_ISA_NEON);
#endif
}

static void auto_resolves_to_the_best(void **state)
{
    (void)state;
    uint32_t resolved = 99;
    assert_int_equal(sheaf_isa_resolve(SHEAF_ISA_AUTO, &resolved), SHEAF_OK);
    assert_int_equal(resolved, sheaf_isa_best());
    assert_int_equal(sheaf_isa_resolve(sheaf_isa_best(), &resolved), SHEAF_OK);
    assert_int_equal(resolved, sheaf_isa_best());
}

static void what_the_processor_lacks_is_refused(void **state)
{
    (void)state;
    uint32_t resolved = 99;
#if defined(__x86_64__)
    assert_int_equal(sheaf_isa_resolve(SHEAF_ISA_NEON, &resolved), SHEAF_E_UNSUPPORTED);
    if (sheaf_isa_best() != SHEAF_ISA_AVX512)
        assert_int_equal(sheaf_isa_resolve(SHEAF_ISA_AVX512, &resolved), SHEAF_E_UNSUPPORTED);
#else
    assert_int_equal(sheaf_isa_resolve(SHEAF_ISA_AVX2, &resolved), SHEAF_E_UNSUPPORTED);
#endif
    assert_int_equal(resolved, 99);
}

static void impossible_numbers_are_refused(void **state)
{
    (void)state;
    uint32_t resolved = 99;
    assert_int_equal(sheaf_isa_resolve(SHEAF_ISA_NEON + 1, &resolved), SHEAF_E_INVALID);
    assert_int_equal(sheaf_isa_resolve(UINT32_MAX, &resolved), SHEAF_E_INVALID);
    assert_int_equal(sheaf_isa_resolve(SHEAF_ISA_AUTO, NULL), SHEAF_E_INVALID);
    assert_int_equal(resolved, 99);
}

static void each_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(sheaf_isa_name(SHEAF_ISA_AUTO), "auto");
    assert_string_equal(sheaf_isa_name(SHEAF_ISA_SCALAR), "scalar");
    assert_string_equal(sheaf_isa_name(SHEAF_ISA_AVX2), "avx2");
    assert_string_equal(sheaf_isa_name(SHEAF_ISA_AVX512), "avx512");
    assert_string_equal(sheaf_isa_name(SHEAF_ISA_NEON), "neon");
    assert_string_equal(sheaf_isa_name(5), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_is_what_the_processor_has),
        cmocka_unit_test(auto_resolves_to_the_best),
        cmocka_unit_test(what_the_processor_lacks_is_refused),
        cmocka_unit_test(impossible_numbers_are_refused),
        cmocka_unit_test(each_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
