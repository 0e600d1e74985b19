/* cache/wire_*.c: parked sequences that leave a pool and come back into another, and streams that are
 * refused. */
#include "cache/wire_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- round trips --------------------------------------------------------------------------- */

/* Saves n sequences of f, loads them into a fresh pool of other slabs, and compares. Consumes them. */
static void there_and_back(fixture *f, sheaf_parked **parked, uint32_t n)
{
    bytes b = save_all(parked, n);
    fixture g;
    fixture_open(&g, f->layers, f->n_layers, 2, 64);
    sheaf_parked *loaded[8];
    uint32_t n_loaded = 0;
    sheaf_error err = {0};
    if (load_all(g.pool, &b, loaded, 8, &n_loaded, &err) != SHEAF_OK) fail_msg("%s", err.text);
    assert_int_equal(n_loaded, n);
    assert_int_equal(b.at, b.n);
    for (uint32_t i = 0; i < n; i++) assert_same_parked(parked[i], loaded[i]);
    assert_whole(&g, NULL);
    sheaf_pool_stats from = held_of(f), to = held_of(&g);
    assert_int_equal(from.blocks_held, to.blocks_held);
    assert_int_equal(from.blocks_shared, to.blocks_shared);
    assert_int_equal(to.owners[SHEAF_OWNER_PARKED], from.owners[SHEAF_OWNER_PARKED]);
    assert_int_equal(to.owners[SHEAF_OWNER_IO], 0);
    bytes again = save_all(loaded, n); /* the same sequences give the same bytes */
    assert_int_equal(again.n, b.n);
    assert_memory_equal(again.data, b.data, b.n);
    for (uint32_t i = 0; i < n; i++) {
        sheaf_sequence *seq = NULL;
        assert_int_equal(sheaf_parked_adopt(loaded[i], &seq), SHEAF_OK);
        assert_holds_its_tokens(&g, seq);
        assert_int_equal(append(&g, seq, 3, 900), SHEAF_OK); /* and goes on */
        assert_holds_its_tokens(&g, seq);
        sheaf_sequence_destroy(seq);
        sheaf_parked_destroy(parked[i]);
    }
    fixture_close(&g);
    free(again.data);
    free(b.data);
}

static void lengths_of(const sheaf_layer *layers, uint32_t n_layers)
{
    static const uint32_t lengths[] = {0, 1, 3, 4, 5, 7, 8, 13, 40};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        fixture f;
        fixture_open(&f, layers, n_layers, 8, 64);
        sheaf_parked *parked = park(sequence_of_length(&f, lengths[i], 10));
        there_and_back(&f, &parked, 1);
        fixture_close(&f);
    }
}

static void sequences_of_every_length_come_back_byte_for_byte(void **state)
{
    (void)state;
    lengths_of(even_layers, N_EVEN);
    lengths_of(odd_layers, N_ODD);
}

static void every_codec_comes_back_byte_for_byte(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < SHEAF_CODEC_COUNT; k++)
        for (uint32_t v = 0; v < SHEAF_CODEC_COUNT; v++) {
            sheaf_layer layer = {2, 5, 6, 0, k, v};
            fixture f;
            fixture_open(&f, &layer, 1, 4, 16);
            sheaf_parked *parked = park(sequence_of_length(&f, 11, 3));
            there_and_back(&f, &parked, 1);
            fixture_close(&f);
        }
}

static void windows_that_have_slid_come_back(void **state)
{
    (void)state;
    for (uint32_t draft = 0; draft < 10; draft += 3) {
        fixture f;
        fixture_open(&f, odd_layers, N_ODD, 4, 64);
        sheaf_sequence *seq = sequence_of_length(&f, 30, 5);
        assert_int_equal(sheaf_sequence_slide(seq, draft), SHEAF_OK);
        assert_true(seq->room.tables[1].first_block > 0);
        sheaf_parked *parked = park(seq);
        there_and_back(&f, &parked, 1);
        fixture_close(&f);
    }
}

/* Large enough for pieces that are not gathered, and for lists in several pieces. */
static void large_blocks_come_back_byte_for_byte(void **state)
{
    (void)state;
    sheaf_layer layers[] = {{4, 520, 8, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F32},
                            {2, 999, 16, 6, SHEAF_CODEC_F16, SHEAF_CODEC_F32}};
    fixture f;
    fixture_open(&f, layers, 2, 4, 64);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    for (uint32_t i = 0; i < 9; i++) assert_int_equal(append(&f, seq, 3, 3 * i), SHEAF_OK);
    sheaf_parked *parked = park(seq);
    bytes b = save_all(&parked, 1);
    fixture g;
    fixture_open(&g, layers, 2, 8, 64);
    for (uint64_t step = 0; step < 100000; step = step * 7 + 1) {
        sheaf_parked *loaded = NULL;
        uint32_t n = 0;
        b.step = step;
        assert_int_equal(load_all(g.pool, &b, &loaded, 1, &n, NULL), SHEAF_OK);
        assert_same_parked(parked, loaded);
        sheaf_parked_destroy(loaded);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&g);
    fixture_close(&f);
    free(b.data);
}

static void shared_blocks_are_written_once_and_come_back_shared(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_sequence *a = sequence_of_length(&f, 14, 1), *b = fork_of(a), *c = NULL;
    assert_int_equal(append(&f, b, 9, 200), SHEAF_OK); /* copies the tail */
    c = fork_of(b);
    assert_int_equal(sheaf_sequence_slide(a, 0), SHEAF_OK);
    sheaf_parked *parked[] = {park(a), park(b), park(c)};
    bytes stream = save_all(parked, 3);
    sheaf_wire_info info = SHEAF_WIRE_INFO_INIT;
    sheaf_source from = bytes_source(&stream);
    assert_int_equal(sheaf_wire_scan(&from, NULL, NULL, &info, NULL), SHEAF_OK);
    assert_int_equal(info.blocks[0], 4 + 3); /* a's four; b's own: the tail's copy and two */
    assert_int_equal(info.n_sequences, 3);
    assert_int_equal(info.n_tokens, 14 + 23 + 23);
    free(stream.data);
    there_and_back(&f, parked, 3);
    fixture_close(&f);
}

/* b still shares the block that a was cut inside: it leaves with what b has in it. */
static void a_shared_tail_is_written_as_far_as_the_longest_goes(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 64);
    sheaf_sequence *a = sequence_of_length(&f, 7, 1), *b = fork_of(a);
    sheaf_parked *parked[] = {park(a), park(b)};
    assert_int_equal(sheaf_parked_trim(parked[0], 5), SHEAF_OK);
    bytes stream = save_all(parked, 2);
    fixture g;
    fixture_open(&g, even_layers, N_EVEN, 4, 64);
    sheaf_parked *loaded[2];
    uint32_t n = 0;
    assert_int_equal(load_all(g.pool, &stream, loaded, 2, &n, NULL), SHEAF_OK);
    assert_same_parked(parked[1], loaded[1]);
    assert_int_equal(sheaf_parked_length(loaded[0]), 5);
    assert_int_equal(fixture_stats(&g).blocks_held, 2);
    for (int i = 0; i < 2; i++)
        sheaf_parked_destroy(parked[i]), sheaf_parked_destroy(loaded[i]);
    fixture_close(&f);
    fixture_close(&g);
    free(stream.data);
}

static void pools_of_other_slabs_and_pages_take_it(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, odd_layers, N_ODD, 16, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 21, 1)), *loaded = NULL;
    bytes b = save_all(&parked, 1);
    for (uint32_t slab_blocks = 1; slab_blocks <= 64; slab_blocks *= 4) {
        sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT; /* the system's pages */
        o.layers = odd_layers, o.n_layers = N_ODD, o.block_tokens = 4;
        o.slab_blocks = slab_blocks, o.budget_bytes = 1 << 22;
        sheaf_pool *pool = NULL;
        uint32_t n = 0;
        assert_int_equal(sheaf_pool_open(&o, &pool, NULL), SHEAF_OK);
        assert_int_equal(load_all(pool, &b, &loaded, 1, &n, NULL), SHEAF_OK);
        assert_same_parked(parked, loaded);
        sheaf_parked_destroy(loaded);
        assert_int_equal(sheaf_pool_close(pool), SHEAF_OK);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(b.data);
}

/* ---- what leaves --------------------------------------------------------------------------- */

static bool contains(const bytes *b, const void *pattern, size_t size)
{
    for (uint64_t i = 0; i + size <= b->n; i++)
        if (memcmp(b->data + i, pattern, size) == 0) return true;
    return false;
}

/* Positions 5 to 7 held a marker before they were cut off; unused memory is all ones. */
static void what_lies_beyond_the_last_token_never_leaves(void **state)
{
    (void)state;
    static const unsigned char marker[8] = "\x7b\x3c\x5d\x41\x7b\x3c\x5d\x41";
    static const unsigned char ones[16] = {255, 255, 255, 255, 255, 255, 255, 255,
                                           255, 255, 255, 255, 255, 255, 255, 255};
    sheaf_layer layer = {2, 8, 8, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F32};
    fixture f;
    fixture_open(&f, &layer, 1, 4, 16);
    sheaf_sequence *seq = sequence_of_length(&f, 5, 1);
    static source s;
    uint32_t seeds[3] = {1, 2, 3};
    int32_t tokens[3] = {0};
    source_fill(&s, &layer, 0, seeds, 3, SHEAF_DTYPE_F32, SHEAF_TOKEN_MAJOR);
    for (size_t i = 0; i < 3 * 2 * 8; i += 2)
        memcpy(s.k + i, marker, 8), memcpy(s.v + i, marker, 8);
    assert_int_equal(sheaf_sequence_extend(seq, 3), SHEAF_OK);
    assert_int_equal(sheaf_sequence_write(seq, 0, 5, 3, &s.src), SHEAF_OK);
    assert_int_equal(sheaf_sequence_commit(seq, 3, tokens), SHEAF_OK);
    sheaf_sequence *longer = fork_of(seq);
    sheaf_parked *parked = park(longer);
    bytes b = save_all(&parked, 1);
    assert_true(contains(&b, marker, sizeof marker)); /* the search finds it where it is */
    free(b.data);
    sheaf_parked_destroy(parked);
    assert_int_equal(sheaf_sequence_truncate(seq, 5), SHEAF_OK);
    parked = park(seq);
    b = save_all(&parked, 1);
    assert_false(contains(&b, marker, sizeof marker));
    assert_false(contains(&b, ones, sizeof ones));
    there_and_back(&f, &parked, 1);
    fixture_close(&f);
    free(b.data);
}

static void a_sink_that_fails_at_any_byte_ends_the_save(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 9, 1));
    bytes whole = save_all(&parked, 1), part;
    sheaf_pool_stats before = fixture_stats(&f);
    for (uint64_t n = 0; n < whole.n; n++) {
        sheaf_sink sink = bytes_sink(&part);
        sheaf_error err = {0};
        part.fail_after = n;
        assert_int_equal(sheaf_wire_save(&parked, 1, &some_space, &sink, &err),
                         SHEAF_E_CANCELLED);
        assert_int_equal(err.status, SHEAF_E_CANCELLED);
        assert_int_equal(part.n_flushes, 0);
        assert_true(part.n <= n);
        free(part.data);
    }
    sheaf_pool_stats after = fixture_stats(&f);
    assert_memory_equal(&before, &after, sizeof before);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(whole.data);
}

static void impossible_arguments_are_refused(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    fixture_open(&g, even_layers, N_EVEN, 4, 16);
    sheaf_parked *both[] = {park(sequence_of_length(&f, 3, 1)),
                            park(sequence_of_length(&g, 3, 1))};
    sheaf_parked *none[] = {both[0], NULL}, *loaded[1];
    bytes b;
    uint32_t n = 0;
    sheaf_sink sink = bytes_sink(&b), mute = {0};
    assert_int_equal(sheaf_wire_save(both, 2, &some_space, &sink, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_save(none, 2, &some_space, &sink, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_save(both, 0, &some_space, &sink, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_save(both, 1, NULL, &sink, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_save(both, 1, &some_space, &mute, NULL), SHEAF_E_INVALID);
    assert_int_equal(b.n, 0);
    sheaf_source from = bytes_source(&b), deaf = {0};
    assert_int_equal(sheaf_wire_load(f.pool, NULL, &deaf, loaded, 1, &n, NULL),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_load(f.pool, NULL, &from, loaded, 0, &n, NULL),
                     SHEAF_E_INVALID);
    assert_int_equal(sheaf_wire_load(NULL, NULL, &from, loaded, 1, &n, NULL), SHEAF_E_INVALID);
    sheaf_parked_destroy(both[0]);
    sheaf_parked_destroy(both[1]);
    fixture_close(&f);
    fixture_close(&g);
}

/* ---- what is refused ----------------------------------------------------------------------- */

static void another_layout_is_refused(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 9, 1));
    bytes b = save_all(&parked, 1);
    for (uint32_t field = 0; field < 6; field++) {
        sheaf_layer layers[N_ODD];
        memcpy(layers, odd_layers, sizeof layers);
        uint32_t *numbers = (uint32_t *)&layers[0];
        numbers[field] = field >= 4 ? 2 : numbers[field] + 1;
        fixture_open(&g, layers, N_ODD, 4, 64);
        assert_refused(&g, &b, SHEAF_E_FOREIGN);
        fixture_close(&g);
    }
    fixture_open(&g, odd_layers, N_ODD - 1, 4, 64);
    assert_refused(&g, &b, SHEAF_E_FOREIGN);
    fixture_close(&g);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(b.data);
}

static void another_namespace_is_refused_unless_any_will_do(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 9, 1)), *loaded = NULL;
    bytes b = save_all(&parked, 1);
    sheaf_key other = some_space;
    other.bytes[31] ^= 1;
    uint32_t n = 0;
    sheaf_source from = bytes_source(&b);
    sheaf_error err = {0};
    assert_int_equal(sheaf_wire_load(f.pool, &other, &from, &loaded, 1, &n, &err),
                     SHEAF_E_FOREIGN);
    assert_non_null(strstr(err.text, "namespace"));
    from = bytes_source(&b);
    assert_int_equal(sheaf_wire_load(f.pool, NULL, &from, &loaded, 1, &n, NULL), SHEAF_OK);
    assert_same_parked(parked, loaded);
    sheaf_parked_destroy(parked);
    sheaf_parked_destroy(loaded);
    fixture_close(&f);
    free(b.data);
}

static void another_version_is_refused(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 9, 1));
    bytes b = save_all(&parked, 1);
    b.data[8] = 2;
    assert_refused(&f, &b, SHEAF_E_FOREIGN);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(b.data);
}

static void more_sequences_than_there_is_room_for_are_refused(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 64);
    sheaf_sequence *a = sequence_of_length(&f, 9, 1);
    sheaf_parked *parked[] = {park(fork_of(a)), park(a)}, *loaded[1];
    bytes b = save_all(parked, 2);
    uint32_t n = 0;
    assert_int_equal(load_all(f.pool, &b, loaded, 1, &n, NULL), SHEAF_E_FORMAT);
    sheaf_parked_destroy(parked[0]);
    sheaf_parked_destroy(parked[1]);
    fixture_close(&f);
    free(b.data);
}

static void a_full_pool_stays_as_it_is(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 30, 1));
    bytes b = save_all(&parked, 1);
    uint64_t head = SHEAF__WIRE_PROLOGUE + SHEAF__WIRE_FRAME + SHEAF__WIRE_HEAD_FIXED +
                    2 * sizeof(sheaf__wire_group) + N_ODD * sizeof(sheaf_layer);
    for (uint32_t blocks = 1; blocks < 8; blocks++) {
        fixture_open(&g, odd_layers, N_ODD, 1, blocks);
        sheaf_sequence *seq = sequence_of_length(&g, 3, 1);
        sheaf_pool_stats before = fixture_stats(&g);
        assert_refused(&g, &b, SHEAF_FULL);
        assert_int_equal(b.at, head); /* it was known from there */
        sheaf_pool_stats after = fixture_stats(&g);
        before.full_answers = after.full_answers = 0;
        assert_memory_equal(&before, &after, sizeof before);
        assert_holds_its_tokens(&g, seq);
        sheaf_sequence_destroy(seq);
        fixture_close(&g);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(b.data);
}

/* Of two groups neither is given slabs that reach into what the other needs. */
static void a_pool_of_just_that_size_takes_it(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 30, 1)), *loaded = NULL;
    bytes b = save_all(&parked, 1);
    for (uint32_t slab_blocks = 1; slab_blocks <= 64; slab_blocks *= 2)
        for (uint32_t blocks = 8; blocks <= 80; blocks += 3) {
            fixture_open(&g, odd_layers, N_ODD, slab_blocks, blocks);
            sheaf_error err = {0};
            uint32_t n = 0;
            if (load_all(g.pool, &b, &loaded, 1, &n, &err) != SHEAF_OK)
                fail_msg("slabs of %u, a budget of %u: %s", slab_blocks, blocks, err.text);
            assert_same_parked(parked, loaded);
            sheaf_parked_destroy(loaded);
            fixture_close(&g);
        }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(b.data);
}

/* The system gives no memory for the nth slab, although the budget has room. */
static void a_pool_that_gets_no_slab_stays_as_it_is(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, odd_layers, N_ODD, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 30, 1));
    bytes b = save_all(&parked, 1);
    for (uint32_t nth = 1; nth <= 8; nth++) {
        fixture_open(&g, odd_layers, N_ODD, 1, 64);
        g.slabs.fail_at = nth, g.slabs.fail_on = 1;
        assert_refused(&g, &b, SHEAF_FULL);
        fixture_close(&g);
    }
    sheaf_parked_destroy(parked);
    fixture_close(&f);
    free(b.data);
}

static void a_source_is_read_no_byte_beyond_the_end(void **state)
{
    (void)state;
    fixture f, g;
    fixture_open(&f, even_layers, N_EVEN, 4, 64);
    fixture_open(&g, even_layers, N_EVEN, 4, 64);
    sheaf_parked *parked = park(sequence_of_length(&f, 9, 1)), *first = NULL, *second = NULL;
    bytes b = save_all(&parked, 1);
    sheaf_sink more = {&b, bytes_write, NULL};
    uint64_t one = b.n;
    assert_int_equal(sheaf_wire_save(&parked, 1, &some_space, &more, NULL), SHEAF_OK);
    sheaf_source from = bytes_source(&b);
    uint32_t n = 0;
    assert_int_equal(sheaf_wire_load(g.pool, NULL, &from, &first, 1, &n, NULL), SHEAF_OK);
    assert_int_equal(b.at, one);
    assert_int_equal(sheaf_wire_load(g.pool, NULL, &from, &second, 1, &n, NULL), SHEAF_OK);
    assert_int_equal(b.at, b.n);
    assert_same_parked(parked, first);
    assert_same_parked(parked, second);
    sheaf_parked_destroy(parked);
    sheaf_parked_destroy(first);
    sheaf_parked_destroy(second);
    fixture_close(&f);
    fixture_close(&g);
    free(b.data);
}

static sheaf_status read_wrongly(void *ctx, void *data, uint64_t n, uint64_t *n_read)
{
    (void)data;
    *n_read = n + 1;
    return *(sheaf_status *)ctx;
}

static void a_source_that_fails_or_lies_is_told(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_status says = SHEAF_E_CANCELLED;
    sheaf_source from = {&says, read_wrongly};
    sheaf_parked *loaded = NULL;
    uint32_t n = 0;
    assert_int_equal(sheaf_wire_load(f.pool, NULL, &from, &loaded, 1, &n, NULL),
                     SHEAF_E_CANCELLED);
    says = SHEAF_OK;
    assert_int_equal(sheaf_wire_load(f.pool, NULL, &from, &loaded, 1, &n, NULL), SHEAF_E_IO);
    fixture_close(&f);
}

/* ---- descriptors --------------------------------------------------------------------------- */

static void on_alarm(int number)
{
    (void)number;
}

/* Interrupts every operation again and again. */
static void alarms(bool on)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* not restarted */
    struct itimerval often = {{0, on ? 500 : 0}, {0, on ? 500 : 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
}

static void over(int ends[2], fixture *f, sheaf_parked *parked)
{
    assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarms(true);
        close(ends[0]);
        sheaf_status st = sheaf_wire_save_fd(&parked, 1, &some_space, ends[1], NULL);
        alarms(false);
        _exit(st == SHEAF_OK ? 0 : 1);
    }
    close(ends[1]);
    fixture g;
    fixture_open(&g, f->layers, f->n_layers, 8, 256);
    sheaf_parked *loaded = NULL;
    uint32_t n = 0;
    sheaf_error err = {0};
    int status;
    alarms(true);
    sheaf_status st = sheaf_wire_load_fd(g.pool, &some_space, ends[0], &loaded, 1, &n, &err);
    alarms(false);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
    assert_same_parked(parked, loaded);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sheaf_parked_destroy(loaded);
    fixture_close(&g);
    close(ends[0]);
}

/* More than a pipe or a socket takes at once, by descriptors that do not block; a block is more than is
 * handed on or received at once. */
static void pipes_and_sockets_carry_it_interrupted_and_short(void **state)
{
    (void)state;
    sheaf_layer layers[] = {{9, 1000, 30, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F32}};
    fixture f;
    fixture_open(&f, layers, 1, 8, 256);
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_sequence_create(f.pool, &seq), SHEAF_OK);
    for (uint32_t i = 0; i < 200; i++) assert_int_equal(append(&f, seq, 1, i), SHEAF_OK);
    sheaf_parked *parked = park(seq);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    over(ends, &f, parked);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    over(ends, &f, parked);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

static void a_peer_that_has_gone_is_an_error_and_no_signal(void **state)
{
    (void)state;
    fixture f;
    fixture_open(&f, even_layers, N_EVEN, 4, 16);
    sheaf_parked *parked = park(sequence_of_length(&f, 9, 1)), *loaded = NULL;
    int ends[2];
    uint32_t n = 0;
    sheaf_error err = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    close(ends[0]);
    assert_int_equal(sheaf_wire_save_fd(&parked, 1, &some_space, ends[1], &err), SHEAF_E_IO);
    assert_non_null(strstr(err.text, "pipe"));
    assert_int_equal(sheaf_wire_load_fd(f.pool, NULL, ends[1], &loaded, 1, &n, &err),
                     SHEAF_E_FORMAT);
    close(ends[1]);
    assert_int_equal(sheaf_wire_load_fd(f.pool, NULL, ends[1], &loaded, 1, &n, &err),
                     SHEAF_E_IO);
    assert_non_null(strstr(err.text, "descriptor"));
    sheaf_sink sink = sheaf_sink_of_fd(&ends[1]);
    sheaf_source from = sheaf_source_of_fd(&ends[1]);
    assert_int_equal(sheaf_wire_save(&parked, 1, &some_space, &sink, &err), SHEAF_E_IO);
    assert_int_equal(sheaf_wire_load(f.pool, NULL, &from, &loaded, 1, &n, &err), SHEAF_E_IO);
    sheaf_parked_destroy(parked);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_of_every_length_come_back_byte_for_byte),
        cmocka_unit_test(every_codec_comes_back_byte_for_byte),
        cmocka_unit_test(windows_that_have_slid_come_back),
        cmocka_unit_test(large_blocks_come_back_byte_for_byte),
        cmocka_unit_test(shared_blocks_are_written_once_and_come_back_shared),
        cmocka_unit_test(a_shared_tail_is_written_as_far_as_the_longest_goes),
        cmocka_unit_test(pools_of_other_slabs_and_pages_take_it),
        cmocka_unit_test(what_lies_beyond_the_last_token_never_leaves),
        cmocka_unit_test(a_sink_that_fails_at_any_byte_ends_the_save),
        cmocka_unit_test(impossible_arguments_are_refused),
        cmocka_unit_test(another_layout_is_refused),
        cmocka_unit_test(another_namespace_is_refused_unless_any_will_do),
        cmocka_unit_test(another_version_is_refused),
        cmocka_unit_test(more_sequences_than_there_is_room_for_are_refused),
        cmocka_unit_test(a_full_pool_stays_as_it_is),
        cmocka_unit_test(a_pool_of_just_that_size_takes_it),
        cmocka_unit_test(a_pool_that_gets_no_slab_stays_as_it_is),
        cmocka_unit_test(a_source_is_read_no_byte_beyond_the_end),
        cmocka_unit_test(a_source_that_fails_or_lies_is_told),
        cmocka_unit_test(pipes_and_sockets_carry_it_interrupted_and_short),
        cmocka_unit_test(a_peer_that_has_gone_is_an_error_and_no_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
