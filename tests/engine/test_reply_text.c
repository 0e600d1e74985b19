/* tests/engine/test_reply_text.c - an answer's text: the same from any pieces, cut at the first stop. */
#include "testing.h"

#include "engine/reply_text.h"
#include "model/utf8.h"

#define ACUTE "\xc3\xa9" /* e with an acute accent */

/* Byte tokens, texts that overlap, one that is special. */
#define PIECES                                                                                 \
    "{\"added_tokens\":[{\"id\":12,\"content\":\"<end>\",\"special\":true}],"                  \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"            \
    "{\"type\":\"Fuse\"}]},"                                                                   \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"<0xC3>\":0,\"<0xA9>\":1,\"<0xFF>\":2,"           \
    "\"<0x61>\":3,\"a\":4,\"b\":5,\"ab\":6,\"aab\":7,\"" ACUTE "\":8,\"b" ACUTE "a\":9,"       \
    "\"abababab\":10,\"c\":11,\"<end>\":12},\"merges\":[]}}"
#define N_PIECES 13

static sheaf__tokenizer *bytes, *pieces, *demo;

static int open_tokenizers(void **state)
{
    (void)state;
    sheaf_error err = {0};
    if (sheaf__tokenizer_open_bytes(256, &bytes, &err) != SHEAF_OK ||
        sheaf__tokenizer_parse("PIECES", PIECES, strlen(PIECES), &pieces, &err) != SHEAF_OK ||
        sheaf__tokenizer_open("models/sheaf-demo", &demo, &err) != SHEAF_OK) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int close_tokenizers(void **state)
{
    (void)state;
    sheaf__tokenizer_close(bytes);
    sheaf__tokenizer_close(pieces);
    sheaf__tokenizer_close(demo);
    return 0;
}

/* Each character of `input` a byte; after each of them what has been given out by then is `after`, a
 * bar between; then what the end makes of it. */
static void check_steps(const char *input, const char *const *stops, uint32_t n_stops,
                        const char *steps, bool stops_at_last)
{
    sheaf__reply_text t;
    sheaf__text out = {NULL, 0, 0}, told = {NULL, 0, 0};
    bool stopped = false;
    sheaf__reply_text_init(&t, bytes, stops, n_stops);
    for (const char *c = input; *c != 0; c++) {
        assert_false(stopped);
        assert_int_equal(sheaf__reply_text_push(&t, (unsigned char)*c, &out, &stopped),
                         SHEAF_OK);
        assert_int_equal(sheaf__text_append(&told, out.data, out.n), SHEAF_OK);
        assert_int_equal(sheaf__text_append(&told, "|", 1), SHEAF_OK);
        out.n = 0;
    }
    assert_true(stopped == stops_at_last);
    assert_int_equal(sheaf__reply_text_finish(&t, &out), SHEAF_OK);
    assert_int_equal(sheaf__text_append(&told, out.data, out.n), SHEAF_OK);
    assert_string_equal(told.data, steps);
    sheaf__text_free(&out);
    sheaf__text_free(&told);
    sheaf__reply_text_free(&t);
}

#define CHECK_STEPS(input, steps, stops_at_last, ...)                                          \
    do {                                                                                       \
        const char *const stops_[] = {__VA_ARGS__};                                            \
        check_steps(input, stops_, (uint32_t)(sizeof stops_ / sizeof stops_[0]), steps,        \
                    stops_at_last);                                                            \
    } while (0)

static void without_stops_text_goes_out_as_it_comes(void **state)
{
    (void)state;
    check_steps("abc", NULL, 0, "a|b|c|", false);
    check_steps("", NULL, 0, "", false);
    check_steps("a" ACUTE "b", NULL, 0, "a||" ACUTE "|b|", false);
    check_steps("a\xc3", NULL, 0, "a||\xef\xbf\xbd", false);
}

static void a_stop_text_is_left_out_with_all_after_it(void **state)
{
    (void)state;
    CHECK_STEPS("aEND", "a||||", true, "END");
    CHECK_STEPS("END", "|||", true, "END"); /* at the very start */
    CHECK_STEPS("aaX", "a|a||", true, "X");
}

static void a_stop_text_that_is_not_completed_is_given_out(void **state)
{
    (void)state;
    CHECK_STEPS("aENb", "a|||ENb|", false, "END");
    CHECK_STEPS("aEN", "a|||EN", false, "END"); /* at the end */
    CHECK_STEPS("", "", false, "END");
}

static void a_stop_text_may_begin_inside_of_one_that_fails(void **state)
{
    (void)state;
    CHECK_STEPS("aaab", "||a||", true, "aab");
    CHECK_STEPS("abaabab", "|||aba||||", true, "abab");
    CHECK_STEPS("ababac", "|||ab|||", true, "abac");
}

static void of_several_stop_texts_the_first_to_begin_cuts(void **state)
{
    (void)state;
    CHECK_STEPS("xabcd", "x|||||", true, "bc", "abcd"); /* bc waits for abcd */
    CHECK_STEPS("xabce", "x||||a|", true, "bc", "abcd");
    CHECK_STEPS("xabc", "x||||a", false, "bc", "abcd"); /* the end decides it */
    CHECK_STEPS("xab", "x|||", true, "ab", "abab");     /* the shorter is enough */
    CHECK_STEPS("xab", "x|||", true, "b", "ab", "ab");
}

static void stop_texts_of_several_bytes_a_character_are_found(void **state)
{
    (void)state;
    CHECK_STEPS("a" ACUTE "b", "a||||", true, ACUTE "b");
    CHECK_STEPS("a\xc3\xa8", "a||\xc3\xa8|", false, ACUTE); /* the same first byte */
    CHECK_STEPS("a\xff", "a||", true, "\xef\xbf\xbd");      /* what became of a bad byte */
    CHECK_STEPS("a\xc3", "a||", false, "\xef\xbf\xbd");     /* at the end alone */
}

/* ---- any pieces -------------------------------------------------------------------------- */

/* What is certain of text[0, n): up to the first place where a stop text is, or may become complete
 * (unless the answer ends). */
static uint64_t certain_of(const char *text, uint64_t n, const char *const *stops,
                           uint32_t n_stops, bool ends, bool *stopped)
{
    *stopped = false;
    for (uint64_t at = 0; at < n; at++) {
        bool begins = false;
        for (uint32_t i = 0; i < n_stops; i++) {
            uint64_t size = strlen(stops[i]), left = n - at;
            if (memcmp(text + at, stops[i], size < left ? size : left) != 0) continue;
            *stopped |= size <= left;
            begins = true;
        }
        if (*stopped || (begins && !ends)) return at;
    }
    return n;
}

/* Pushes all; after each token exactly what is certain is out. */
static void check_against_naive(const sheaf__tokenizer *tok, const int32_t *ids, uint32_t n,
                                const char *const *stops, uint32_t n_stops)
{
    sheaf__text plain = {NULL, 0, 0}, out = {NULL, 0, 0};
    sheaf__detokenizer d;
    sheaf__reply_text t;
    bool stopped = false, wanted = false;
    sheaf__detokenizer_init(&d, tok, true);
    sheaf__reply_text_init(&t, tok, stops, n_stops);
    for (uint32_t i = 0; i < n && !stopped; i++) {
        assert_int_equal(sheaf__detokenizer_push(&d, ids[i], &plain), SHEAF_OK);
        assert_int_equal(sheaf__reply_text_push(&t, ids[i], &out, &stopped), SHEAF_OK);
        uint64_t certain = certain_of(plain.data, plain.n, stops, n_stops, false, &wanted);
        assert_true(stopped == wanted);
        assert_int_equal(out.n, certain);
        if (certain != 0) assert_memory_equal(out.data, plain.data, certain);
        assert_int_equal(sheaf__utf8_valid_prefix(out.data, out.n), out.n);
    }
    /* and at the end the whole, decoded at once, up to the first stop text */
    plain.n = 0;
    assert_int_equal(sheaf__tokenizer_decode(tok, ids, n, true, &plain), SHEAF_OK);
    assert_int_equal(sheaf__reply_text_finish(&t, &out), SHEAF_OK);
    uint64_t certain = certain_of(plain.data, plain.n, stops, n_stops, true, &wanted);
    assert_true(t.stopped == wanted);
    assert_int_equal(out.n, certain);
    if (certain != 0) assert_memory_equal(out.data, plain.data, certain);
    sheaf__reply_text_free(&t);
    sheaf__detokenizer_free(&d);
    sheaf__text_free(&plain);
    sheaf__text_free(&out);
}

#define MOST_STOPS 5
#define STOP_BYTES 64

/* Stop texts of few characters, so that they overlap and begin often. */
static uint32_t make_stops(uint64_t *state, char stops[MOST_STOPS][STOP_BYTES],
                           const char **list)
{
    static const char *const chars[] = {"a", "b", ACUTE, "\xef\xbf\xbd", "c"};
    uint32_t n = (uint32_t)(testing_random(state) % (MOST_STOPS + 1));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t length = 1 + testing_random(state) % 8;
        uint64_t kinds = 2 + testing_random(state) % 4;
        stops[i][0] = 0;
        for (uint64_t c = 0; c < length; c++)
            strcat(stops[i], chars[testing_random(state) % kinds]);
        list[i] = stops[i];
    }
    return n;
}

static void random_answers_are_cut_as_a_naive_search_cuts_them(void **state)
{
    (void)state;
    static const char alphabet[] = "aaabbb\xc3\xa9\xa9\xffz";
    uint64_t random = testing_seed(20261130);
    char stops[MOST_STOPS][STOP_BYTES];
    const char *list[MOST_STOPS];
    for (int round = 0; round < 10000; round++) {
        int32_t ids[48];
        uint32_t n = (uint32_t)(testing_random(&random) % 48);
        uint32_t n_stops = make_stops(&random, stops, list);
        for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(testing_random(&random) % N_PIECES);
        check_against_naive(pieces, ids, n, list, n_stops);
        for (uint32_t i = 0; i < n; i++)
            ids[i] = (unsigned char)alphabet[testing_random(&random) % (sizeof alphabet - 1)];
        check_against_naive(bytes, ids, n, list, n_stops);
    }
}

static void random_tokens_of_a_real_vocabulary_are_cut_likewise(void **state)
{
    (void)state;
    static const char *const stops[] = {"e", " the", "th", "\n", "\xef\xbf\xbd\xef\xbf\xbd"};
    uint64_t random = testing_seed(20261130);
    uint32_t vocab = sheaf__tokenizer_vocab(demo);
    for (int round = 0; round < 4000; round++) {
        int32_t ids[24];
        uint32_t n = (uint32_t)(testing_random(&random) % 24);
        for (uint32_t i = 0; i < n; i++) { /* bytes, any token, and none */
            uint64_t range = testing_random(&random) % 2 == 0 ? 262 : vocab + 4;
            ids[i] = (int32_t)(testing_random(&random) % range) - 2;
        }
        check_against_naive(demo, ids, n, stops + testing_random(&random) % 5, 1);
    }
}

/* One text, in tokens of every size: "abababab" is token 10, or four of 6, or eight of 4 and 5. */
static void any_split_of_a_text_gives_the_same(void **state)
{
    (void)state;
    static const char *const stops[] = {"babb", "bb" ACUTE};
    static const int32_t splits[][12] = {
        {10, 9, 8, -1},
        {6, 6, 6, 6, 5, 8, 4, 8, -1},
        {4, 5, 4, 5, 4, 5, 4, 5, 9, 8, -1},
        {3, 5, 6, 10 /* longer: another text */, -1},
        {10, 5, 0, 1, 4, 0, 1, -1},
    };
    for (uint32_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        sheaf__reply_text t;
        sheaf__text out = {NULL, 0, 0};
        bool stopped = false;
        sheaf__reply_text_init(&t, pieces, stops, 2);
        for (const int32_t *id = splits[i]; *id >= 0 && !stopped; id++)
            assert_int_equal(sheaf__reply_text_push(&t, *id, &out, &stopped), SHEAF_OK);
        assert_int_equal(sheaf__reply_text_finish(&t, &out), SHEAF_OK);
        assert_true(stopped == (i != 3));
        assert_string_equal(out.data, i == 3 ? "abababababab" : "ababa");
        sheaf__text_free(&out);
        sheaf__reply_text_free(&t);
    }
}

static void a_special_token_is_no_text(void **state)
{
    (void)state;
    static const char *const stops[] = {"ab"};
    const int32_t ids[] = {4, 12, 5}, end[] = {12};
    check_against_naive(pieces, ids, 3, stops, 1);
    check_against_naive(pieces, end, 1, stops, 1);
}

/* A long stop text that nearly comes, again and again, must not cost its square. */
static void a_hostile_stop_text_costs_its_length_alone(void **state)
{
    (void)state;
    enum { N = 200000 };
    char *stop = malloc(N + 1);
    sheaf__reply_text t;
    sheaf__text out = {NULL, 0, 0};
    bool stopped = false;
    assert_non_null(stop);
    memset(stop, 'a', N);
    stop[N - 1] = 'b', stop[N] = 0;
    const char *const stops[] = {stop, stop + 1, "ab", stop + N / 2};
    sheaf__reply_text_init(&t, pieces, stops, 2);
    for (uint32_t i = 0; i < N / 2; i++)
        assert_int_equal(sheaf__reply_text_push(&t, 4, &out, &stopped), SHEAF_OK);
    assert_int_equal(out.n, 0);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(sheaf__reply_text_push(&t, 11, &out, &stopped), SHEAF_OK);
        for (uint32_t k = 0; k < N / 100; k++)
            assert_int_equal(sheaf__reply_text_push(&t, 4, &out, &stopped), SHEAF_OK);
    }
    assert_false(stopped);
    assert_int_equal(sheaf__reply_text_finish(&t, &out), SHEAF_OK);
    assert_int_equal(out.n, N / 2 + 100 + N / 100 * 100);
    sheaf__text_free(&out);
    sheaf__reply_text_free(&t);
    free(stop);
}

static void an_answer_may_be_left_in_the_middle(void **state)
{
    (void)state;
    static const char *const stops[] = {"END", "abc"};
    sheaf__reply_text t;
    sheaf__text out = {NULL, 0, 0};
    bool stopped;
    sheaf__reply_text_init(&t, bytes, stops, 2);
    sheaf__reply_text_free(&t);
    sheaf__reply_text_init(&t, bytes, stops, 2);
    assert_int_equal(sheaf__reply_text_push(&t, 'E', &out, &stopped), SHEAF_OK);
    assert_int_equal(sheaf__reply_text_push(&t, 0xc3, &out, &stopped), SHEAF_OK);
    assert_int_equal(out.n, 0);
    sheaf__reply_text_free(&t);
    sheaf__reply_text_free(&t);
    sheaf__text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_stops_text_goes_out_as_it_comes),
        cmocka_unit_test(a_stop_text_is_left_out_with_all_after_it),
        cmocka_unit_test(a_stop_text_that_is_not_completed_is_given_out),
        cmocka_unit_test(a_stop_text_may_begin_inside_of_one_that_fails),
        cmocka_unit_test(of_several_stop_texts_the_first_to_begin_cuts),
        cmocka_unit_test(stop_texts_of_several_bytes_a_character_are_found),
        cmocka_unit_test(random_answers_are_cut_as_a_naive_search_cuts_them),
        cmocka_unit_test(random_tokens_of_a_real_vocabulary_are_cut_likewise),
        cmocka_unit_test(any_split_of_a_text_gives_the_same),
        cmocka_unit_test(a_special_token_is_no_text),
        cmocka_unit_test(a_hostile_stop_text_costs_its_length_alone),
        cmocka_unit_test(an_answer_may_be_left_in_the_middle),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
