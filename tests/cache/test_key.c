/* cache/key.c: keys are those that tools/content_keys.sh computes from the words of docs/format.md. */
#include "testing.h"

#include "cache/fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#include "sheaf/key.h"

static const sheaf_layer one_group[] = {{2, 8, 8, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16}};
/* the second has no values: its codec_v means nothing and is not hashed */
static const sheaf_layer two_groups[] = {{2, 8, 4, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F16},
                                         {1, 16, 0, 32, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16}};

static sheaf_pool *open_pool(const sheaf_layer *layers, uint32_t n, uint32_t block_tokens,
                             uint32_t slab_blocks)
{
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    o.layers = layers, o.n_layers = n, o.block_tokens = block_tokens;
    o.slab_blocks = slab_blocks, o.budget_bytes = 1 << 20;
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf_pool_open(&o, &pool, NULL), SHEAF_OK);
    return pool;
}

/* The key of that name in tests/data/keys.txt. */
static sheaf_key known(const char *name)
{
    FILE *file = fopen("tests/data/keys.txt", "r");
    assert_non_null(file);
    sheaf_key key = {{0}};
    char line[256], hex[65];
    bool found = false;
    size_t length = strlen(name);
    while (!found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, name, length) == 0 && line[length] == ' ' &&
                sscanf(line + length, " %64[0-9a-f]", hex) == 1;
    fclose(file);
    assert_true(found && strlen(hex) == 64);
    for (int i = 0; i < SHEAF_KEY_BYTES; i++) {
        unsigned int byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        key.bytes[i] = (uint8_t)byte;
    }
    return key;
}

static bool same(sheaf_key a, sheaf_key b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void assert_known(sheaf_key key, const char *name)
{
    sheaf_key expected = known(name);
    assert_memory_equal(&key, &expected, sizeof key);
}

static sheaf_key space_of(const sheaf_pool *pool, const sheaf_field *fields, uint32_t n)
{
    sheaf_key key;
    assert_int_equal(sheaf_space_make(pool, fields, n, &key), SHEAF_OK);
    return key;
}

/* ---- content keys -------------------------------------------------------------------------- */

static void keys_of_blocks_are_the_known_ones(void **state)
{
    (void)state;
    static const int32_t first[] = {1, 2, 3, 4}, second[] = {-1, INT32_MAX, 0, 5}, seven = 7;
    int32_t many[32];
    sheaf_key key = {{0}}, ascending, out;
    for (int i = 0; i < 32; i++) ascending.bytes[i] = (uint8_t)i, many[i] = i;
    assert_int_equal(sheaf_key_next(&key, first, 4, &key), SHEAF_OK);
    assert_known(key, "block_one_to_four");
    assert_int_equal(sheaf_key_next(&key, second, 4, &key), SHEAF_OK);
    assert_known(key, "block_after_it");
    assert_int_equal(sheaf_key_next(&ascending, many, 32, &out), SHEAF_OK);
    assert_known(out, "block_of_32");
    assert_int_equal(sheaf_key_next(&ascending, &seven, 1, &out), SHEAF_OK);
    assert_known(out, "block_of_one");
}

static void every_token_and_the_parent_count(void **state)
{
    (void)state;
    int32_t tokens[8] = {5, 6, 7, 8, 9, 10, 11, 12};
    sheaf_key parent = {{0}}, key, other;
    assert_int_equal(sheaf_key_next(&parent, tokens, 8, &key), SHEAF_OK);
    for (int i = 0; i < 8; i++) {
        tokens[i] ^= 1 << 20;
        assert_int_equal(sheaf_key_next(&parent, tokens, 8, &other), SHEAF_OK);
        assert_false(same(key, other));
        tokens[i] ^= 1 << 20;
    }
    assert_int_equal(sheaf_key_next(&parent, tokens, 7, &other), SHEAF_OK);
    assert_false(same(key, other));
    parent.bytes[31] = 1;
    assert_int_equal(sheaf_key_next(&parent, tokens, 8, &other), SHEAF_OK);
    assert_false(same(key, other));
}

static void keys_of_nothing_are_refused(void **state)
{
    (void)state;
    int32_t token = 1;
    sheaf_key key = {{7}}, before = key;
    assert_int_equal(sheaf_key_next(NULL, &token, 1, &key), SHEAF_E_INVALID);
    assert_int_equal(sheaf_key_next(&before, NULL, 1, &key), SHEAF_E_INVALID);
    assert_int_equal(sheaf_key_next(&before, &token, 0, &key), SHEAF_E_INVALID);
    assert_int_equal(sheaf_key_next(&before, &token, 1, NULL), SHEAF_E_INVALID);
    assert_true(same(key, before));
}

/* ---- namespaces ---------------------------------------------------------------------------- */

static void namespaces_are_the_known_ones(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(one_group, 1, 4, 8), *other = open_pool(two_groups, 2, 16, 8);
    sheaf_field fields[] = {{"model", "weights", 7}, {"salt", "pepper", 6}};
    assert_known(space_of(pool, NULL, 0), "space_bare");
    assert_known(space_of(other, NULL, 0), "space_two_groups");
    assert_known(space_of(pool, fields, 2), "space_model_salt");
    fields[1] = (sheaf_field){"salt", NULL, 0};
    assert_known(space_of(pool, fields, 2), "space_empty_salt");
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(other), SHEAF_OK);
}

static void tags_and_contents_are_framed(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(one_group, 1, 4, 8);
    sheaf_field ab_c = {"ab", "c", 1}, a_bc = {"a", "bc", 2};
    assert_known(space_of(pool, &ab_c, 1), "space_ab_c");
    assert_known(space_of(pool, &a_bc, 1), "space_a_bc");
    assert_false(same(space_of(pool, &ab_c, 1), space_of(pool, &a_bc, 1)));
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

static void a_field_of_another_tag_is_another_field(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(one_group, 1, 4, 8);
    sheaf_field adapter = {"adapter", "x", 1}, salt = {"salt", "x", 1};
    assert_false(same(space_of(pool, &adapter, 1), space_of(pool, &salt, 1)));
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

static void absent_and_empty_are_two_things(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(one_group, 1, 4, 8);
    sheaf_field fields[] = {{"model", "weights", 7}, {"salt", NULL, 0}};
    assert_false(same(space_of(pool, fields, 1), space_of(pool, fields, 2)));
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

static void the_order_of_fields_does_not_matter(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(one_group, 1, 4, 8);
    static const char *const tags[] = {"salt", "a", "model", "aa", "rope", "\xc3\xa9", "b"};
    sheaf_field fields[7];
    sheaf_key first = {{0}};
    for (uint32_t turn = 0; turn < 7; turn++) {
        for (uint32_t i = 0; i < 7; i++)
            fields[i] = (sheaf_field){tags[(i * 3 + turn) % 7], tags[(i * 3 + turn) % 7], 1};
        sheaf_key key = space_of(pool, fields, 7);
        if (turn == 0) first = key;
        assert_true(same(key, first));
    }
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

static void the_whole_layout_counts_and_nothing_of_the_slabs(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(two_groups, 2, 16, 8);
    sheaf_key key = space_of(pool, NULL, 0);
    sheaf_pool *twin = open_pool(two_groups, 2, 16, 4); /* other slabs, the same blocks */
    assert_true(same(space_of(twin, NULL, 0), key));
    assert_int_equal(sheaf_pool_close(twin), SHEAF_OK);
    twin = open_pool(two_groups, 2, 8, 8);
    assert_false(same(space_of(twin, NULL, 0), key));
    assert_int_equal(sheaf_pool_close(twin), SHEAF_OK);
    for (uint32_t field = 0; field < 6; field++) {
        sheaf_layer layers[2] = {two_groups[0], two_groups[1]};
        uint32_t *numbers = (uint32_t *)&layers[0];
        numbers[field] = field >= 4 ? 2 : numbers[field] + 1;
        twin = open_pool(layers, 2, 16, 8);
        assert_false(same(space_of(twin, NULL, 0), key));
        assert_int_equal(sheaf_pool_close(twin), SHEAF_OK);
    }
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

static void impossible_fields_are_refused(void **state)
{
    (void)state;
    sheaf_pool *pool = open_pool(one_group, 1, 4, 8);
    char longest[256] = {0}, too_long[257] = {0}, tags[SHEAF_MAX_FIELDS + 1][4];
    memset(longest, 't', 255);
    memset(too_long, 't', 256);
    sheaf_key out = {{9}}, before = out;
    const sheaf_field wrong[][2] = {{{"a", "x", 1}, {"a", "y", 1}},
                                    {{"", "x", 1}, {"a", "y", 1}},
                                    {{NULL, "x", 1}, {"a", "y", 1}},
                                    {{too_long, "x", 1}, {"a", "y", 1}},
                                    {{"b", NULL, 1}, {"a", "y", 1}}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(sheaf_space_make(pool, wrong[i], 2, &out), SHEAF_E_INVALID);
    sheaf_field many[SHEAF_MAX_FIELDS + 1];
    for (uint32_t i = 0; i <= SHEAF_MAX_FIELDS; i++) {
        snprintf(tags[i], sizeof tags[i], "%u", i);
        many[i] = (sheaf_field){tags[i], NULL, 0};
    }
    assert_int_equal(sheaf_space_make(pool, many, SHEAF_MAX_FIELDS + 1, &out), SHEAF_E_INVALID);
    assert_int_equal(sheaf_space_make(pool, NULL, 1, &out), SHEAF_E_INVALID);
    assert_int_equal(sheaf_space_make(NULL, many, 1, &out), SHEAF_E_INVALID);
    assert_int_equal(sheaf_space_make(pool, many, 1, NULL), SHEAF_E_INVALID);
    assert_true(same(out, before));
    many[0].tag = longest;
    assert_int_equal(sheaf_space_make(pool, many, SHEAF_MAX_FIELDS, &out), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

/* ---- another process ----------------------------------------------------------------------- */

/* A namespace and a chain of blocks under it. */
static sheaf_key some_chain(void)
{
    sheaf_pool *pool = open_pool(two_groups, 2, 16, 8);
    sheaf_field fields[] = {{"model", "digest", 6}, {"adapter", "x", 1}};
    sheaf_key key = space_of(pool, fields, 2);
    for (int32_t i = 0; i < 10; i++)
        assert_int_equal(sheaf_key_next(&key, &i, 1, &key), SHEAF_OK);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    return key;
}

/* A fresh start of the program, so that addresses and all that is drawn at a start differ. */
static void two_processes_compute_equal_keys(void **state)
{
    (void)state;
#ifdef SHEAF_EMULATED
    TESTING_SKIP("an emulated program cannot start itself");
#endif
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 1);
        execl("/proc/self/exe", "test_key", "chain", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    sheaf_key theirs = {{0}}, ours = some_chain();
    assert_int_equal(read(ends[0], &theirs, sizeof theirs), sizeof theirs);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_memory_equal(&theirs, &ours, sizeof ours);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "chain") == 0) {
        sheaf_key key = some_chain();
        return write(1, &key, sizeof key) == sizeof key ? 0 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_blocks_are_the_known_ones),
        cmocka_unit_test(every_token_and_the_parent_count),
        cmocka_unit_test(keys_of_nothing_are_refused),
        cmocka_unit_test(namespaces_are_the_known_ones),
        cmocka_unit_test(tags_and_contents_are_framed),
        cmocka_unit_test(a_field_of_another_tag_is_another_field),
        cmocka_unit_test(absent_and_empty_are_two_things),
        cmocka_unit_test(the_order_of_fields_does_not_matter),
        cmocka_unit_test(the_whole_layout_counts_and_nothing_of_the_slabs),
        cmocka_unit_test(impossible_fields_are_refused),
        cmocka_unit_test(two_processes_compute_equal_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
