/* test_identity.c - the digest that names a model, and how it is remembered. */
#include "testing.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "model/files.h"
#include "model/identity.h"

#define QUICK SHEAF__IDENTITY_QUICK
#define FULL  SHEAF__IDENTITY_FULL

#define LARGE_BYTES 40000u /* over three samples of 4096 */
#define SMALL_BYTES 256u

/* Where tensors lie in the files that make_model writes is up to the header: the last bytes of the
 * file are the large tensor's. */
typedef struct scene {
    char model[FILES_PATH], twin[FILES_PATH], cache[FILES_PATH];
    uint32_t n_reports; /* of progress: at least one when the files are read */
} scene;

static void make_model(const char *dir)
{
    static unsigned char large[LARGE_BYTES], small[SMALL_BYTES];
    for (uint32_t i = 0; i < LARGE_BYTES; i++) large[i] = (unsigned char)(i * 7 + i / 256);
    for (uint32_t i = 0; i < SMALL_BYTES; i++) small[i] = (unsigned char)i;
    const files_tensor tensors[] = {
        {"a", "F32", 1, {SMALL_BYTES / 4}, small, SMALL_BYTES},
        {"b", "F32", 2, {100, LARGE_BYTES / 400}, large, LARGE_BYTES},
    };
    files_write_text(dir, "config.json", "{\"model_type\": \"llama\"}");
    files_write_safetensors(dir, "model.safetensors", tensors, 2, 0);
}

static int set_up(void **state)
{
    scene *s = calloc(1, sizeof *s);
    files_make_dir(s->model);
    files_make_dir(s->twin);
    files_make_dir(s->cache);
    make_model(s->model);
    make_model(s->twin);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    scene *s = *state;
    files_remove_dir(s->model);
    files_remove_dir(s->twin);
    files_remove_dir(s->cache);
    free(s);
    return 0;
}

static void count_report(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    assert_string_equal(what, "digest");
    assert_true(done <= total);
    ((scene *)ctx)->n_reports++;
}

static sheaf__identity read_at(scene *s, const char *dir, uint32_t kind)
{
    const sheaf__identity_options o = {
        .kind = kind, .cache_dir = s->cache, .progress = count_report, .progress_ctx = s};
    sheaf__identity id;
    sheaf_error err = {0};
    s->n_reports = 0;
    if (sheaf__identity_read(dir, &o, &id, &err) != SHEAF_OK) fail_msg("%s", err.text);
    return id;
}

static bool same(const sheaf__identity *a, const sheaf__identity *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

/* Changes a byte of a file where it lies. */
static void flip(const char *dir, const char *name, long from_end)
{
    char path[2 * FILES_PATH];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

/* Waits until the times of the files are past. */
static void let_settle(void)
{
    const struct timespec wait = {.tv_nsec = 40000000};
    assert_int_equal(nanosleep(&wait, NULL), 0);
}

/* ---- content ----------------------------------------------------------------------------- */

static void the_same_content_elsewhere_has_the_same_digest(void **state)
{
    scene *s = *state;
    for (uint32_t kind = QUICK; kind <= FULL; kind++) {
        sheaf__identity here = read_at(s, s->model, kind), there = read_at(s, s->twin, kind);
        assert_true(same(&here, &there));
    }
    sheaf__identity quick = read_at(s, s->model, QUICK), full = read_at(s, s->model, FULL);
    assert_false(same(&quick, &full));
}

static void
a_changed_byte_changes_the_full_digest_always_and_the_quick_one_where_sampled(void **state)
{
    scene *s = *state;
    const struct {
        const char *name;
        long from_end;
        bool sampled;
    } cases[] = {
        {"model.safetensors", 1, true},
        {"model.safetensors", 4096, true},
        {"model.safetensors", 4097, false},
        {"model.safetensors", LARGE_BYTES / 2, true},
        {"model.safetensors", LARGE_BYTES / 4, false},
        {"model.safetensors", LARGE_BYTES - 4095, true},
        {"model.safetensors", LARGE_BYTES - 4096, false},
        {"model.safetensors", LARGE_BYTES, true},
        {"model.safetensors", LARGE_BYTES + SMALL_BYTES / 2, true},
        {"config.json", 3, true},
    };
    sheaf__identity quick = read_at(s, s->model, QUICK), full = read_at(s, s->model, FULL);
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        flip(s->twin, cases[i].name, cases[i].from_end);
        sheaf__identity changed = read_at(s, s->twin, FULL);
        assert_false(same(&full, &changed));
        changed = read_at(s, s->twin, QUICK);
        assert_int_equal(!same(&quick, &changed), cases[i].sampled);
        flip(s->twin, cases[i].name, cases[i].from_end);
        changed = read_at(s, s->twin, FULL);
        assert_true(same(&full, &changed));
    }
}

static void a_byte_beyond_all_tensors_changes_both(void **state)
{
    scene *s = *state;
    sheaf__identity quick = read_at(s, s->model, QUICK), full = read_at(s, s->model, FULL);
    uint64_t size = 0;
    char *bytes = files_read(s->twin, "model.safetensors", &size);
    files_write(s->twin, "model.safetensors", bytes, size + 1); /* files_read ends in a zero */
    free(bytes);
    sheaf__identity longer = read_at(s, s->twin, QUICK);
    assert_false(same(&quick, &longer));
    longer = read_at(s, s->twin, FULL);
    assert_false(same(&full, &longer));
}

static void shards_are_read_in_the_order_of_their_names(void **state)
{
    scene *s = *state;
    const char *index[] = {"{\"weight_map\": {\"a\": \"one\", \"b\": \"two\"}}",
                           "{\"weight_map\": {\"b\": \"two\", \"a\": \"one\"}}"};
    sheaf__identity digests[2], whole = read_at(s, s->model, FULL), changed;
    files_remove(s->twin, "model.safetensors");
    files_copy(s->model, "model.safetensors", s->twin, "one");
    files_copy(s->model, "model.safetensors", s->twin, "two");
    flip(s->twin, "two", 1);
    for (int i = 0; i < 2; i++) {
        files_write_text(s->twin, "model.safetensors.index.json", index[i]);
        digests[i] = read_at(s, s->twin, FULL);
        assert_false(same(&digests[i], &whole));
        sheaf__identity quick = read_at(s, s->twin, QUICK);
        flip(s->twin, "one", 1);
        changed = read_at(s, s->twin, QUICK);
        assert_false(same(&quick, &changed));
        flip(s->twin, "one", 1);
    }
    assert_false(same(&digests[0], &digests[1])); /* the index decides which tensor is used */
}

static void a_random_model_is_named_by_its_specification(void **state)
{
    scene *s = *state;
    sheaf__identity a = read_at(s, "random:qwen3-0.6b", FULL), b = a, other = a;
    b = read_at(s, "random:qwen3-0.6b", QUICK);
    assert_true(same(&a, &b));
    other = read_at(s, "random:qwen3-0.6b:layers=1", FULL);
    assert_false(same(&a, &other));
    assert_int_equal(s->n_reports, 0);
}

static void files_that_changed_since_are_told_from_those_that_were_read(void **state)
{
    scene *s = *state;
    sheaf_error err = {0};
    for (uint32_t kind = QUICK; kind <= FULL; kind++)
        for (uint32_t again = 0; again < 2; again++) { /* read, and remembered */
            let_settle();
            sheaf__identity id = read_at(s, s->model, kind);
            assert_int_equal(sheaf__identity_unchanged(s->model, &id, &err), SHEAF_OK);
            assert_int_equal(sheaf__identity_unchanged(s->twin, &id, &err), SHEAF_E_IO);
            assert_non_null(strstr(err.text, "changed"));
            if (again == 0) continue;
            flip(s->model, "model.safetensors", 100);
            flip(s->model, "model.safetensors", 100);
            assert_int_equal(sheaf__identity_unchanged(s->model, &id, NULL), SHEAF_E_IO);
        }
    sheaf__identity id = read_at(s, "random:qwen3-0.6b", FULL);
    assert_int_equal(sheaf__identity_unchanged("random:qwen3-0.6b", &id, &err), SHEAF_OK);
}

static void what_cannot_be_read_is_named(void **state)
{
    scene *s = *state;
    const sheaf__identity_options o = {.kind = FULL, .cache_dir = s->cache};
    sheaf__identity id, before;
    memset(&id, 7, sizeof id);
    before = id;
    sheaf_error err = {0};
    files_remove(s->twin, "config.json");
    assert_int_equal(sheaf__identity_read(s->twin, &o, &id, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "config.json"));
    assert_int_equal(sheaf__identity_read("tests/data/nowhere", &o, &id, &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "nowhere"));
    assert_int_equal(sheaf__identity_read(s->twin, &o, &id, NULL), SHEAF_E_IO);
    assert_true(same(&id, &before));
    files_write_text(s->twin, "config.json", "{}"); /* for who removes it */
}

/* ---- remembering ------------------------------------------------------------------------- */

/* The one file in the cache. */
static void cache_name(const scene *s, char name[static FILES_PATH])
{
    char command[2 * FILES_PATH];
    snprintf(command, sizeof command, "ls -A %s", s->cache);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_non_null(fgets(name, FILES_PATH, list));
    name[strcspn(name, "\n")] = 0;
    char more[16];
    assert_null(fgets(more, sizeof more, list));
    assert_int_equal(pclose(list), 0);
}

static void forge_sum(char *text, uint64_t size)
{
    unsigned char sum[SHEAF__SHA256_BYTES];
    char *at = strstr(text, "sum ");
    assert_non_null(at);
    assert_int_equal(sheaf__sha256_of(text, (uint64_t)(at - text), sum), SHEAF_OK);
    assert_int_equal(size - (uint64_t)(at - text), 4 + 64 + 1);
    for (int i = 0; i < SHEAF__SHA256_BYTES; i++) sprintf(at + 4 + 2 * i, "%02x", sum[i]);
    at[4 + 64] = '\n';
}

/* Remembers another digest than the files', so that one can see where an answer comes from. */
static sheaf__identity remember_zeros(scene *s)
{
    char name[FILES_PATH];
    uint64_t size = 0;
    let_settle();
    sheaf__identity full = read_at(s, s->model, FULL), zeros = {.bytes = {0}};
    assert_int_equal(s->n_reports, 1);
    cache_name(s, name);
    char *text = files_read(s->cache, name, &size), *digest = strstr(text, "digest ");
    digest = strstr(digest + 1, "digest "); /* the first is of the heading */
    assert_non_null(digest);
    memset(digest + 7, '0', 64);
    forge_sum(text, size);
    files_write(s->cache, name, text, size);
    free(text);
    sheaf__identity found = read_at(s, s->model, FULL);
    assert_int_equal(s->n_reports, 0);
    assert_true(same(&found, &zeros));
    return full;
}

static void expect_read_anew(scene *s, const sheaf__identity *full)
{
    sheaf__identity found = read_at(s, s->model, FULL);
    assert_int_equal(s->n_reports, 1);
    assert_true(same(&found, full));
}

static void a_remembered_digest_is_found_without_reading_the_files(void **state)
{
    scene *s = *state;
    char name[FILES_PATH], path[2 * FILES_PATH];
    struct stat st;
    remember_zeros(s);
    cache_name(s, name);
    snprintf(path, sizeof path, "%s/%s", s->cache, name);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    sheaf__identity quick = read_at(s, s->model, QUICK), zeros = {.bytes = {0}};
    assert_false(same(&quick, &zeros)); /* only FULL ones are remembered */
}

static void a_file_that_was_replaced_is_read_anew(void **state)
{
    scene *s = *state;
    char from[2 * FILES_PATH], to[2 * FILES_PATH];
    sheaf__identity full = remember_zeros(s);
    snprintf(from, sizeof from, "%s/model.safetensors", s->twin);
    snprintf(to, sizeof to, "%s/model.safetensors", s->model);
    assert_int_equal(rename(from, to), 0);
    expect_read_anew(s, &full);
    files_copy(s->model, "model.safetensors", s->twin, "model.safetensors");
}

static void a_file_that_was_touched_is_read_anew(void **state)
{
    scene *s = *state;
    char path[2 * FILES_PATH];
    sheaf__identity full = remember_zeros(s);
    struct stat st;
    snprintf(path, sizeof path, "%s/config.json", s->model);
    assert_int_equal(stat(path, &st), 0);
    const struct timespec old[] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0); /* changes ctime alone */
    expect_read_anew(s, &full);
}

static void what_is_newer_than_the_clock_can_tell_is_not_remembered(void **state)
{
    scene *s = *state;
    char path[2 * FILES_PATH];
    const struct timespec ahead[] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW},
                                     {.tv_sec = 4000000000}};
    snprintf(path, sizeof path, "%s/config.json", s->model);
    assert_int_equal(utimensat(AT_FDCWD, path, ahead, 0), 0);
    let_settle();
    sheaf__identity full = read_at(s, s->model, FULL);
    expect_read_anew(s, &full);
}

static void a_damaged_or_foreign_memory_is_ignored(void **state)
{
    scene *s = *state;
    char name[FILES_PATH], path[2 * FILES_PATH];
    uint64_t size = 0;
    sheaf__identity full = remember_zeros(s);
    cache_name(s, name);
    snprintf(path, sizeof path, "%s/%s", s->cache, name);
    char *good = files_read(s->cache, name, &size), *bad = malloc(size + 1);
    assert_non_null(bad);
    for (uint64_t i = 0; i <= size; i++) { /* each byte flipped, and one more at the end */
        memcpy(bad, good, size + 1);
        bad[i] ^= 1;
        files_write(s->cache, name, bad, i == size ? size + 1 : size);
        expect_read_anew(s, &full);
    }
    for (uint64_t i = 0; i < size; i += 13) {
        files_write(s->cache, name, good, i);
        expect_read_anew(s, &full);
    }
    memcpy(bad, good, size); /* of other files, in all form */
    char *files = strstr(bad, "files ");
    files[6] = files[6] == '0' ? '1' : '0';
    forge_sum(bad, size);
    files_write(s->cache, name, bad, size);
    expect_read_anew(s, &full);
    files_write(s->cache, name, good, size);
    assert_int_equal(chmod(path, 0622), 0);
    expect_read_anew(s, &full);
    free(good);
    free(bad);
}

/* NAME.new is written first: what is there already is neither opened, waited for nor written to. */
static void what_lies_where_it_is_written_is_replaced(void **state)
{
    scene *s = *state;
    char name[FILES_PATH], path[2 * FILES_PATH], beside[2 * FILES_PATH + 4],
        other[FILES_PATH * 2];
    struct stat st;
    sheaf__identity full = remember_zeros(s), found;
    cache_name(s, name);
    snprintf(path, sizeof path, "%s/%s", s->cache, name);
    snprintf(beside, sizeof beside, "%s.new", path);
    snprintf(other, sizeof other, "%s/other", s->model);
    files_write_text(s->model, "other", "another's");
    for (int kind = 0; kind < 3; kind++) {
        assert_int_equal(unlink(path), 0);
        assert_int_equal(kind == 0   ? mkfifo(beside, 0600)
                         : kind == 1 ? link(other, beside)
                                     : symlink(other, beside),
                         0);
        alarm(30);
        expect_read_anew(s, &full);
        alarm(0);
        found = read_at(s, s->model, FULL);
        assert_int_equal(s->n_reports, 0);
        assert_true(same(&found, &full));
        assert_int_not_equal(lstat(beside, &st), 0);
    }
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, strlen("another's"));
}

static void a_cache_that_cannot_be_written_is_no_error(void **state)
{
    scene *s = *state;
    const char *dirs[] = {"tests/data/nowhere/at/all", "CONTRIBUTING.md", "/dev/null"};
    sheaf__identity full = read_at(s, s->model, FULL), id;
    for (int i = 0; i < 3; i++) {
        const sheaf__identity_options o = {.kind = FULL, .cache_dir = dirs[i]};
        assert_int_equal(sheaf__identity_read(s->model, &o, &id, NULL), SHEAF_OK);
        assert_true(same(&full, &id));
    }
}

static void the_cache_is_where_the_environment_says(void **state)
{
    scene *s = *state;
    const sheaf__identity_options o = {
        .kind = FULL, .progress = count_report, .progress_ctx = s};
    sheaf__identity id;
    char deep[2 * FILES_PATH], name[FILES_PATH];
    snprintf(deep, sizeof deep, "%s/deep", s->cache);
    assert_int_equal(setenv("XDG_CACHE_HOME", "not/absolute", 1), 0);
    assert_int_equal(setenv("HOME", deep, 1), 0); /* not there: nothing is made */
    let_settle();
    assert_int_equal(sheaf__identity_read(s->model, &o, &id, NULL), SHEAF_OK);
    assert_int_not_equal(access(deep, F_OK), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", deep, 1), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(sheaf__identity_read(s->model, &o, &id, NULL), SHEAF_OK);
    assert_int_equal(s->n_reports, 2); /* the third found it */
    snprintf(name, sizeof name, "rm -r %.400s", deep);
    assert_int_equal(system(name), 0);
}

/* ---- namespaces -------------------------------------------------------------------------- */

static void a_namespace_tells_models_and_salts_apart(void **state)
{
    scene *s = *state;
    const sheaf_layer layer = {.n_kv_heads = 1, .key_dim = 8, .value_dim = 8};
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    o.layers = &layer;
    o.n_layers = 1;
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf_pool_open(&o, &pool, NULL), SHEAF_OK);
    sheaf__identity full = read_at(s, s->model, FULL), quick = read_at(s, s->model, QUICK);
    sheaf_key keys[5], again;
    assert_int_equal(sheaf__identity_space(pool, &full, NULL, 0, &keys[0]), SHEAF_OK);
    assert_int_equal(sheaf__identity_space(pool, &quick, NULL, 0, &keys[1]), SHEAF_OK);
    assert_int_equal(sheaf__identity_space(pool, &full, "a", 1, &keys[2]), SHEAF_OK);
    assert_int_equal(sheaf__identity_space(pool, &full, "b", 1, &keys[3]), SHEAF_OK);
    assert_int_equal(sheaf__identity_space(pool, &full, "ab", 2, &keys[4]), SHEAF_OK);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(&keys[i], &keys[j], sizeof again);
    assert_int_equal(sheaf__identity_space(pool, &full, "a", 1, &again), SHEAF_OK);
    assert_memory_equal(&again, &keys[2], sizeof again);
    assert_int_equal(sheaf__identity_space(pool, &full, "", 0, &again), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_same_content_elsewhere_has_the_same_digest),
        CASE(a_changed_byte_changes_the_full_digest_always_and_the_quick_one_where_sampled),
        CASE(a_byte_beyond_all_tensors_changes_both),
        CASE(shards_are_read_in_the_order_of_their_names),
        CASE(a_random_model_is_named_by_its_specification),
        CASE(files_that_changed_since_are_told_from_those_that_were_read),
        CASE(what_cannot_be_read_is_named),
        CASE(a_remembered_digest_is_found_without_reading_the_files),
        CASE(a_file_that_was_replaced_is_read_anew),
        CASE(a_file_that_was_touched_is_read_anew),
        CASE(what_is_newer_than_the_clock_can_tell_is_not_remembered),
        CASE(a_damaged_or_foreign_memory_is_ignored),
        CASE(what_lies_where_it_is_written_is_replaced),
        CASE(a_cache_that_cannot_be_written_is_no_error),
        CASE(the_cache_is_where_the_environment_says),
        CASE(a_namespace_tells_models_and_salts_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
