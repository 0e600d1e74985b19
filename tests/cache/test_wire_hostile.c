/* Forged streams, their checksums made to fit: whatever the numbers say, a reader stays within its
 * pool and takes no more memory than the bytes that came could fill. */
#include "cache/wire_fixture.h"
#include "cache/wire_golden.h"

/* Memory that keeps its largest request. */
static uint64_t largest;

static void *watch_alloc(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx;
    if (size > largest) largest = size;
    void *ptr = NULL;
    return posix_memalign(&ptr, align, size) == 0 ? ptr : NULL;
}

static void watch_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    free(ptr);
}

/* A pool whose budget would hold gigabytes; nothing of it is committed at first. */
static void open_large(fixture *f, const sheaf_layer *layers)
{
    sheaf_allocator allocator = {NULL, watch_alloc, watch_free};
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    o.layers = layers, o.n_layers = N_GOLDEN, o.block_tokens = GOLDEN_TOKENS;
    o.slab_blocks = 32, o.budget_bytes = 8ull << 30, o.allocator = &allocator;
    *f = (fixture){.layers = layers, .n_layers = N_GOLDEN};
    assert_int_equal(sheaf_pool_open(&o, &f->pool, NULL), SHEAF_OK);
}

/* Loads what may be forged. True: it was taken. */
static bool try_load(fixture *f, bytes *b)
{
    sheaf_parked *parked[4];
    uint32_t n = 0;
    sheaf_error err = {0};
    sheaf_source from = bytes_source(b);
    sheaf_status st = sheaf_wire_load(f->pool, NULL, &from, parked, 4, &n, &err);
    from = bytes_source(b);
    sheaf_wire_info info = SHEAF_WIRE_INFO_INIT;
    sheaf_status scanned = sheaf_wire_scan(&from, NULL, NULL, &info, NULL);
    if (st == SHEAF_OK) {
        assert_int_equal(scanned, SHEAF_OK);
        assert_int_equal(n, info.n_sequences);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(sheaf_parked_check(parked[i], NULL), SHEAF_OK);
            sheaf_parked_destroy(parked[i]);
        }
    } else {
        assert_true(st != SHEAF_E_NO_MEMORY && err.status == st && err.text[0] != 0);
        assert_true(st != SHEAF_E_DAMAGED);      /* the checksums do fit */
        assert_null(strstr(err.text, "(null)")); /* codecs without a name */
    }
    assert_int_equal(held_of(f).blocks_held, 0);
    return st == SHEAF_OK;
}

/* Puts odd values at every fourth byte of a stream, one at a time. */
static void forge(const char *path, const sheaf_layer *layers)
{
    static const uint32_t odd[] = {0, 1, 2, 255, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff};
    bytes b = bytes_of_file(path), copy = b;
    assert_true(b.n > 0);
    copy.data = malloc(b.n);
    assert_non_null(copy.data);
    fixture f;
    open_large(&f, layers);
    uint32_t taken = 0, tried = 0;
    largest = 0;
    for (uint64_t at = 0; at + 4 <= b.n; at += 4)
        for (size_t i = 0; i < 10; i++) {
            uint32_t value;
            memcpy(&value, b.data + at, 4);
            value = i < 8 ? odd[i] : i == 8 ? value + 1 : value - 1;
            memcpy(copy.data, b.data, b.n);
            memcpy(copy.data + at, &value, 4);
            wire_reseal(copy.data, copy.n);
            taken += try_load(&f, &copy);
            tried++;
        }
    assert_true(taken > tried / 20); /* tokens and numbers in tiles are anybody's */
    assert_true(taken < tried);
    assert_true(largest <= 256 << 10);
    assert_whole(&f, NULL);
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_OK);
    free(copy.data);
    free(b.data);
}

static void numbers_that_cannot_be_are_refused_behind_right_checksums(void **state)
{
    (void)state;
    forge(GOLDEN_ONE, golden_one);
    forge(GOLDEN_TWO, golden_two);
}

/* ---- counts that would take much ----------------------------------------------------------- */

/* A head that promises, and nothing after it. */
static bytes promise(const fixture *f, uint64_t n_blocks, uint32_t n_sequences,
                     uint64_t n_bytes)
{
    const sheaf__layout *layout = sheaf__pool_layout(f->pool);
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    sheaf__wire_head head;
    sheaf__wire_head_init(&head, layout);
    head.n_sequences = n_sequences;
    head.space = some_space;
    head.n_tokens = n_blocks * layout->block_tokens;
    head.n_bytes = n_bytes;
    for (uint32_t g = 0; g < head.n_groups; g++) head.groups[g].n_blocks = n_blocks;
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    sheaf__wire_out out;
    assert_int_equal(sheaf__wire_out_begin(&out, &sink, &memory, NULL), SHEAF_OK);
    assert_int_equal(sheaf__wire_head_put(&head, layout, &out), SHEAF_OK);
    /* a sequence that begins, of as many tokens as can be */
    uint32_t n_tokens = (uint32_t)head.n_tokens, n = (uint32_t)n_blocks;
    uint32_t front[] = {n_tokens, 0, 0, n, 0, n};
    uint64_t words = 2 + 2 * head.n_groups + n_tokens + head.n_groups * n_blocks;
    sheaf__wire_out_open(&out, SHEAF__WIRE_SEQN, words * 4);
    sheaf__wire_out_put(&out, front, (2 + 2 * head.n_groups) * 4);
    sheaf__wire_out_put(&out, &head, 64);
    assert_int_equal(sink.write(sink.ctx, out.buffer, out.n_buffered), SHEAF_OK);
    sheaf__wire_out_end(&out);
    return b;
}

static void a_promise_takes_no_memory(void **state)
{
    (void)state;
    fixture f;
    open_large(&f, golden_one);
    sheaf_pool_stats before = fixture_stats(&f);
    for (uint64_t n_blocks = 64; n_blocks < 1u << 29; n_blocks *= 16) {
        bytes b = promise(&f, n_blocks, 1, UINT64_MAX);
        uint32_t counts[] = {(uint32_t)n_blocks};
        bool fits = sheaf_pool_can_acquire(f.pool, counts) == SHEAF_OK;
        largest = 0;
        assert_refused(&f, &b, fits ? SHEAF_E_FORMAT : SHEAF_FULL);
        assert_true(largest <= 128 << 10);
        free(b.data);
    }
    sheaf_pool_stats after = fixture_stats(&f);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_OK);
}

/* A head of one block, and a sequence of many that really comes. */
static void more_than_the_head_counts_takes_no_memory(void **state)
{
    (void)state;
    fixture f;
    open_large(&f, golden_one);
    bytes b = promise(&f, 1 << 18, 1, UINT64_MAX);
    const uint64_t one = 1, more = 1 << 20;
    memcpy(b.data + SHEAF__WIRE_PROLOGUE + 16 + SHEAF__WIRE_HEAD_FIXED +
               offsetof(sheaf__wire_group, n_blocks),
           &one, sizeof one);
    b.data = realloc(b.data, b.n + more);
    assert_non_null(b.data);
    memset(b.data + b.n, 0, more);
    b.n += more;
    wire_reseal(b.data, b.n);
    largest = 0;
    assert_refused(&f, &b, SHEAF_E_FORMAT);
    assert_true(largest <= 128 << 10);
    free(b.data);
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_OK);
}

static void counts_beyond_the_streams_bytes_are_refused(void **state)
{
    (void)state;
    fixture f;
    open_large(&f, golden_one);
    bytes b = promise(&f, 1000, 1, 5000);
    assert_refused(&f, &b, SHEAF_E_FORMAT);
    free(b.data);
    b = promise(&f, UINT64_MAX / 3, 1, UINT64_MAX);
    assert_refused(&f, &b, SHEAF_E_FORMAT);
    free(b.data);
    b = promise(&f, 1, 9, UINT64_MAX);
    assert_refused(&f, &b, SHEAF_E_FORMAT);
    free(b.data);
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_OK);
}

/* A stream of 40 blocks, cut after each one: at most twice as many were taken as came. */
static void no_more_blocks_are_taken_than_have_come(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, even_layers, N_EVEN, 8, 64);
    fixture_open(&g, even_layers, N_EVEN, 8, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 160, 1)), *loaded = NULL;
    bytes b = save_all(&parked, 1);
    uint64_t block = SHEAF__WIRE_FRAME + SHEAF__WIRE_BLOCK_HEAD +
                     sheaf__pool_layout(f.pool)->groups[0].tile_bytes;
    uint64_t first = b.n - SHEAF__WIRE_FRAME - SHEAF__WIRE_DONE_BYTES - 40 * block;
    for (uint64_t came = 0; came < 40; came++) {
        sheaf_pool_stats before = fixture_stats(&g);
        uint32_t n = 0;
        b.n = first + came * block + block / 2;
        assert_int_equal(load_all(g.pool, &b, &loaded, 1, &n, NULL), SHEAF_E_FORMAT);
        sheaf_pool_stats after = fixture_stats(&g);
        uint64_t taken = after.blocks_acquired - before.blocks_acquired;
        assert_true(taken > came && taken <= 2 * came + 1);
        assert_int_equal(after.blocks_held, 0);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    fixture_close(&g);
    free(b.data);
}

/* ---- contradictions that no single number makes -------------------------------------------- */

/* The first frame of a kind; its payload is 16 bytes on. */
static uint64_t find_frame(const bytes *b, uint32_t kind)
{
    uint64_t at = SHEAF__WIRE_PROLOGUE, length;
    while (memcmp(b->data + at, &kind, sizeof kind) != 0) {
        memcpy(&length, b->data + at + 8, sizeof length);
        at += SHEAF__WIRE_FRAME + length;
        assert_true(at < b->n);
    }
    return at;
}

/* A frame with a checksum of its own that is right: the one over all tells. */
static void a_frame_in_the_place_of_another_is_noticed(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, golden_one, N_GOLDEN, 4, 32);
    bytes b = bytes_of_file(GOLDEN_ONE);
    uint64_t at = find_frame(&b, SHEAF__WIRE_BLCK), length, checksum;
    memcpy(&length, b.data + at + 8, sizeof length);
    b.data[at + 16 + SHEAF__WIRE_BLOCK_HEAD] ^= 1;
    checksum = sheaf__hash64(b.data + at, 16 + length, 0);
    memcpy(b.data + at + 16 + length, &checksum, sizeof checksum);
    assert_refused(&f, &b, SHEAF_E_DAMAGED);
    fixture_close(&f);
    free(b.data);
}

/* A sequence whose window group begins later than what its last position sees; all that follows from
 * it is made to fit. */
static void a_sequence_without_what_it_sees_is_refused(void **state)
{
    (void)state;
    static const sheaf_layer window = {1, 4, 4, 6, SHEAF_CODEC_F16, SHEAF_CODEC_F16};
    static const sheaf_layer narrow = {1, 4, 4, 2, SHEAF_CODEC_F16, SHEAF_CODEC_F16};
    fixture f, g;
    fixture_open(&f, &narrow, 1, 4, 32); /* in it that is right */
    sheaf_sequence *seq = sequence_of_length(&f, 12, 1);
    assert_int_equal(sheaf_sequence_slide(seq, 0), SHEAF_OK);
    assert_int_equal(seq->room.tables[0].first_block, 2);
    sheaf_parked *parked = park(seq);
    bytes b = save_all(&parked, 1);
    fixture_open(&g, &window, 1, 4, 32);
    const uint32_t six = 6;
    const uint64_t fingerprint = sheaf_pool_fingerprint(g.pool);
    unsigned char *head = b.data + SHEAF__WIRE_PROLOGUE + 16;
    memcpy(head + offsetof(sheaf__wire_head, fingerprint), &fingerprint, sizeof fingerprint);
    memcpy(head + SHEAF__WIRE_HEAD_FIXED, &six, sizeof six);
    memcpy(head + SHEAF__WIRE_HEAD_FIXED + sizeof(sheaf__wire_group) + 12, &six, sizeof six);
    wire_reseal(b.data, b.n);
    sheaf_wire_info info = SHEAF_WIRE_INFO_INIT;
    sheaf_source from = bytes_source(&b);
    sheaf_error err = {0};
    assert_int_equal(sheaf_wire_scan(&from, NULL, NULL, &info, &err), SHEAF_E_FORMAT);
    assert_non_null(strstr(err.text, "holds other blocks"));
    assert_refused(&g, &b, SHEAF_E_FORMAT);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    fixture_close(&g);
    free(b.data);
}

static void what_is_no_stream_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "s", "sheaf", "\x89SHEAF\n",
                                        "{\"a\": 1, \"b\": 2, \"c\": [3, 4, 5, 6]}"};
    fixture f;
    open_large(&f, golden_one);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bytes b;
        sheaf_sink sink = bytes_sink(&b);
        assert_int_equal(sink.write(sink.ctx, texts[i], strlen(texts[i])), SHEAF_OK);
        assert_refused(&f, &b, SHEAF_E_FORMAT);
        free(b.data);
    }
    assert_int_equal(sheaf_pool_close(f.pool), SHEAF_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_that_cannot_be_are_refused_behind_right_checksums),
        cmocka_unit_test(a_promise_takes_no_memory),
        cmocka_unit_test(more_than_the_head_counts_takes_no_memory),
        cmocka_unit_test(counts_beyond_the_streams_bytes_are_refused),
        cmocka_unit_test(no_more_blocks_are_taken_than_have_come),
        cmocka_unit_test(a_frame_in_the_place_of_another_is_noticed),
        cmocka_unit_test(a_sequence_without_what_it_sees_is_refused),
        cmocka_unit_test(what_is_no_stream_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
