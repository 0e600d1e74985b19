/* test_safetensors.c - the header's rules, one by one, and files cut or changed at every byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/files.h"
#include "model/safetensors.h"

/* A file in memory of exactly its size: 8 bytes of length, the header, `data_bytes` of 0, 1, 2, ... */
static unsigned char *make_file(const char *header, uint64_t data_bytes, uint64_t *size)
{
    uint64_t length = strlen(header);
    *size = 8 + length + data_bytes;
    unsigned char *file = malloc(*size);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(length >> (8 * i));
    memcpy(file + 8, header, length);
    for (uint64_t i = 0; i < data_bytes; i++) file[8 + length + i] = (unsigned char)i;
    return file;
}

static sheaf_status parse(const unsigned char *data, uint64_t size, sheaf_error *err)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__safetensors file;
    sheaf_status status =
        sheaf__safetensors_parse("DIR/m.safetensors", data, size, &memory, &file, err);
    if (status == SHEAF_OK) {
        for (uint64_t i = 0; i < file.n_tensors; i++) {
            const sheaf__tensor *t = &file.tensors[i];
            assert_true(t->data >= data && t->bytes <= size);
            assert_true((uint64_t)(t->data - data) <= size - t->bytes);
        }
        sheaf__safetensors_close(&file);
    }
    assert_int_equal(memory.live_bytes, 0);
    return status;
}

static void expect(const char *header, uint64_t data_bytes, const char *sentence)
{
    uint64_t size;
    unsigned char *file = make_file(header, data_bytes, &size);
    sheaf_error err = {0};
    sheaf_status status = parse(file, size, &err);
    if (sentence == NULL) {
        if (status != SHEAF_OK) fail_msg("%s: %s", header, err.text);
    } else {
        char whole[256];
        snprintf(whole, sizeof whole, "DIR/m.safetensors: %s", sentence);
        assert_string_equal(err.text, whole);
        assert_int_equal(status, SHEAF_E_FORMAT);
    }
    free(file);
}

static void tensors_are_found_by_name(void **state)
{
    (void)state;
    uint64_t size;
    unsigned char *data =
        make_file("{\"__metadata__\":{\"format\":\"pt\"},"
                  "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                  "\"c\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[16,18]},"
                  "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                  "\"d\":{\"dtype\":\"I8\",\"shape\":[0,5],\"data_offsets\":[18,18]}}   ",
                  18, &size);
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__safetensors file;
    sheaf_error err = {0};
    assert_int_equal(sheaf__safetensors_parse("m", data, size, &memory, &file, &err), SHEAF_OK);
    assert_int_equal(file.n_tensors, 4);
    const sheaf__tensor *b = sheaf__safetensors_find(&file, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, SHEAF_DTYPE_BF16);
    assert_string_equal(b->dtype_name, "BF16");
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[0], 2);
    assert_int_equal(b->dims[1], 3);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(b->data[0], 4);
    assert_int_equal(sheaf__safetensors_find(&file, "a")->dtype, SHEAF_DTYPE_F32);
    assert_int_equal(sheaf__safetensors_find(&file, "c")->dtype, SHEAF_DTYPE_F16);
    assert_int_equal(sheaf__safetensors_find(&file, "c")->n_dims, 0);
    assert_int_equal(sheaf__safetensors_find(&file, "d")->dtype, SHEAF__DTYPE_OTHER);
    assert_int_equal(sheaf__safetensors_find(&file, "d")->bytes, 0);
    assert_null(sheaf__safetensors_find(&file, "e"));
    assert_null(sheaf__safetensors_find(&file, "__metadata__"));
    sheaf__safetensors_close(&file);
    sheaf__safetensors_close(&file);
    assert_null(sheaf__safetensors_find(&file, "a"));
    assert_int_equal(memory.live_bytes, 0);
    free(data);
}

#define TENSOR(dtype, shape, begin, end)                                                       \
    "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end   \
    "]}}"

static void lawful_headers_are_accepted(void **state)
{
    (void)state;
    expect("{}", 0, NULL);
    expect("{}  \n", 3, NULL);
    expect("{\"__metadata__\":{}}", 0, NULL);
    expect(TENSOR("F64", "[2]", 0, 16), 16, NULL);
    expect(TENSOR("F4", "[4]", 0, 2), 2, NULL);
    expect(TENSOR("F6_E2M3", "[4]", 0, 3), 3, NULL);
    expect(TENSOR("BOOL", "[1,1,1,1,1,1,1,1]", 0, 1), 1, NULL);
    /* bytes that no tensor names: before, between and after */
    expect(TENSOR("U8", "[2]", 1, 3), 9, NULL);
    /* an own key more than the format has */
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"note\":0}}", 1,
           NULL);
}

static void headers_that_lie_about_sizes_are_refused(void **state)
{
    (void)state;
    expect(TENSOR("F32", "[2]", 0, 8), 7, "tensor \"a\": data_offsets lie outside the file");
    expect(TENSOR("F32", "[2]", 0, 4), 8,
           "tensor \"a\": data_offsets hold another number of bytes than shape and dtype say");
    expect(TENSOR("F32", "[2]", 8, 0), 8, "tensor \"a\": data_offsets must be [begin, end]");
    expect(TENSOR("F32", "[2]", -1, 7), 8, "tensor \"a\": data_offsets must be [begin, end]");
    expect(TENSOR("F32", "[2]", 0, 9223372036854775807), 8,
           "tensor \"a\": data_offsets lie outside the file");
    expect(TENSOR("F32", "[4611686018427387904,4611686018427387904]", 0, 8), 8,
           "tensor \"a\": shape does not fit 64 bits");
    expect(TENSOR("F32", "[1152921504606846976]", 0, 8), 8,
           "tensor \"a\": shape and dtype do not make a whole number of bytes in 64 bits");
    expect(TENSOR("F4", "[3]", 0, 1), 8,
           "tensor \"a\": shape and dtype do not make a whole number of bytes in 64 bits");
    expect(TENSOR("F32", "[-2]", 0, 8), 8,
           "tensor \"a\": a size in shape must be a whole number, not negative");
    expect(TENSOR("F32", "[2.0]", 0, 8), 8,
           "tensor \"a\": a size in shape must be a whole number, not negative");
    expect(TENSOR("U8", "[1,1,1,1,1,1,1,1,1]", 0, 1), 1,
           "tensor \"a\": shape must be a list of at most 8 sizes");
    expect(TENSOR("U8", "7", 0, 7), 7, "tensor \"a\": shape must be a list of at most 8 sizes");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
           8, "tensor \"b\": overlaps another tensor");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
           8, "tensor \"b\": overlaps another tensor");
}

static void malformed_headers_are_refused(void **state)
{
    (void)state;
    expect("", 0, "the header must begin with {");
    expect(" {}", 0, "the header must begin with {");
    expect("[]", 0, "the header must begin with {");
    expect("{", 0, "line 1: string or '}' expected near end of file");
    expect("{\"a\":7}", 0, "tensor \"a\": must be an object");
    expect("{\"__metadata__\":7}", 0, "tensor \"__metadata__\": must be an object");
    expect("{\"a\":{}}", 0, "tensor \"a\": dtype is missing or not known");
    expect(TENSOR("F33", "[1]", 0, 4), 4, "tensor \"a\": dtype is missing or not known");
    expect("{\"a\":{\"dtype\":\"U8\"}}", 0,
           "tensor \"a\": shape must be a list of at most 8 sizes");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1,
           "tensor \"a\": data_offsets must be [begin, end]");
    expect("{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}",
           1, "line 1: duplicate object key near '\"a\"'");
    expect("{\"\\u001b[31m\":7}", 0, "tensor \"\\u001B[31m\": must be an object");
}

static void a_header_length_is_compared_with_the_file_first(void **state)
{
    (void)state;
    static const unsigned char huge[10] = {0, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'};
    static const unsigned char by_one[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    sheaf_error err = {0};
    assert_int_equal(parse(huge, sizeof huge, &err), SHEAF_E_FORMAT);
    assert_string_equal(err.text,
                        "DIR/m.safetensors: the header claims 9223372036854775808 bytes; the "
                        "file has 2 after the length, and 100000000 is the most allowed");
    assert_int_equal(parse(by_one, sizeof by_one, &err), SHEAF_E_FORMAT);
    assert_int_equal(parse(huge, 7, &err), SHEAF_E_FORMAT);
    assert_string_equal(err.text,
                        "DIR/m.safetensors: 7 bytes are too few for a safetensors file");
    assert_int_equal(parse(NULL, 0, &err), SHEAF_E_FORMAT);
    assert_int_equal(parse(NULL, 0, NULL), SHEAF_E_FORMAT);
}

static const char small_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}";

/* The copy has exactly the bytes that are left, so that a sanitizer sees a step beyond them. */
static void a_file_cut_short_anywhere_is_refused(void **state)
{
    (void)state;
    uint64_t size;
    unsigned char *whole = make_file(small_header, 20, &size);
    for (uint64_t n = 0; n < size; n++) {
        unsigned char *cut = malloc(n == 0 ? 1 : n);
        assert_non_null(cut);
        memcpy(cut, whole, n);
        assert_int_equal(parse(cut, n, NULL), SHEAF_E_FORMAT);
        free(cut);
    }
    assert_int_equal(parse(whole, size, NULL), SHEAF_OK);
    free(whole);
}

static void any_changed_byte_is_refused_or_harmless(void **state)
{
    (void)state;
    uint64_t size;
    unsigned char *file = make_file(small_header, 20, &size);
    unsigned refused = 0, accepted = 0;
    for (uint64_t i = 0; i < 8 + sizeof small_header - 1; i++) {
        unsigned char was = file[i];
        for (unsigned value = 0; value < 256; value++) {
            file[i] = (unsigned char)value;
            sheaf_status status = parse(file, size, NULL);
            assert_true(status == SHEAF_OK || status == SHEAF_E_FORMAT);
            if (status == SHEAF_OK)
                accepted++;
            else
                refused++;
        }
        file[i] = was;
    }
    assert_true(refused > accepted && accepted > 0);
    free(file);
}

static void a_file_is_mapped_and_given_back(void **state)
{
    (void)state;
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__safetensors file;
    sheaf_error err = {0};
    assert_int_equal(
        sheaf__safetensors_open("models/sheaf-demo/model.safetensors", &memory, &file, &err),
        SHEAF_OK);
    assert_int_equal(file.file.size, 11554752);
    assert_int_equal(file.n_tensors, 90);
    sheaf__safetensors_forget(&file);
    assert_int_equal(memory.live_bytes, 0);
    assert_non_null(file.file.data);
    sheaf__safetensors_close(&file);
    assert_null(file.file.data);
    assert_int_equal(sheaf__safetensors_open("no/such.safetensors", &memory, &file, &err),
                     SHEAF_E_IO);
    assert_string_equal(err.text, "no/such.safetensors: No such file or directory");
    assert_int_equal(
        sheaf__safetensors_open("models/sheaf-demo/config.json", &memory, &file, &err),
        SHEAF_E_FORMAT);
}

static void shapes_are_shown_as_lists(void **state)
{
    (void)state;
    char text[SHEAF__SHAPE_TEXT];
    const uint64_t dims[8] = {4096,       256,        UINT64_MAX, UINT64_MAX,
                              UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    assert_string_equal(sheaf__shape_show(dims, 0, text), "[]");
    assert_string_equal(sheaf__shape_show(dims, 2, text), "[4096, 256]");
    assert_true(strlen(sheaf__shape_show(dims, 8, text)) < SHEAF__SHAPE_TEXT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name),
        cmocka_unit_test(lawful_headers_are_accepted),
        cmocka_unit_test(headers_that_lie_about_sizes_are_refused),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(a_header_length_is_compared_with_the_file_first),
        cmocka_unit_test(a_file_cut_short_anywhere_is_refused),
        cmocka_unit_test(any_changed_byte_is_refused_or_harmless),
        cmocka_unit_test(a_file_is_mapped_and_given_back),
        cmocka_unit_test(shapes_are_shown_as_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
