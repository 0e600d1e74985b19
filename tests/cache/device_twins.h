/* cache/device_twins.h - one run of random operations on two pools, one in the machine's memory
 * and one on a device, whose sequences must hold the same bytes throughout.
 *
 * The device is the caller's: a fake one (tests/fake_device.h), or a GPU. Streams saved from
 * either are equal byte for byte, and load into the other.
 */
#ifndef SHEAF_TESTS_DEVICE_TWINS_H
#define SHEAF_TESTS_DEVICE_TWINS_H

#include "cache/wire_fixture.h"

#define TWINS_MAX  6
#define TWINS_ROOM (1u << 16) /* numbers of a gather */

/* Odd and even sizes, windows, and every codec somewhere. */
static const sheaf_layer twin_layers[] = {
    {2, 64, 64, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},
    {1, 3, 5, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F16},
    {2, 7, 0, 6, SHEAF_CODEC_BF16, 0},
    {2, 32, 24, 0, SHEAF_CODEC_COUNT - 1, SHEAF_CODEC_COUNT - 2},
    {3, 33, 16, 6, SHEAF_CODEC_COUNT - 2, SHEAF_CODEC_COUNT - 1},
};
#define N_TWIN_LAYERS 5

typedef struct twins {
    sheaf_pool *pools[2]; /* of the machine, of the device */
    sheaf_sequence *running[TWINS_MAX][2];
    sheaf_parked *parked[TWINS_MAX][2];
    uint64_t random;
    uint64_t n_compared;
} twins;

static inline void twins_open(twins *t, sheaf_device *device, uint64_t seed)
{
    *t = (twins){.random = seed};
    for (int i = 0; i < 2; i++) {
        sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
        sheaf_error err = {0};
        o.layers = twin_layers, o.n_layers = N_TWIN_LAYERS;
        o.block_tokens = 4, o.slab_blocks = 4;
        o.budget_bytes = 256ull << 20;
        o.device = i == 0 ? NULL : device;
        if (sheaf_pool_open(&o, &t->pools[i], &err) != SHEAF_OK) fail_msg("%s", err.text);
    }
}

static inline void twins_close(twins *t)
{
    sheaf_error err;
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < TWINS_MAX; n++) {
            sheaf_sequence_destroy(t->running[n][i]);
            sheaf_parked_destroy(t->parked[n][i]);
        }
        if (sheaf_pool_check(t->pools[i], &err) != SHEAF_OK) fail_msg("%s", err.text);
        assert_int_equal(sheaf_pool_close(t->pools[i]), SHEAF_OK);
    }
}

/* ---- comparing --------------------------------------------------------------------------- */

/* Both sequences: numbers of every layer, and the raw tiles' bytes of positions that are there.
 * */
static inline void twins_compare(twins *t, uint32_t n)
{
    static float numbers[2][2][TWINS_ROOM];
    static unsigned char raw[2][2][4 * TWINS_ROOM];
    if (t->running[n][0] == NULL) return;
    for (uint32_t layer = 0; layer < N_TWIN_LAYERS; layer++) {
        uint32_t begin = 0, end = 0;
        sheaf_gather_info info[2] = {SHEAF_GATHER_INFO_INIT, SHEAF_GATHER_INFO_INIT};
        for (int i = 0; i < 2; i++) {
            const sheaf_sequence *seq = t->running[n][i];
            assert_int_equal(sheaf_sequence_visible(seq, layer, &begin, &end), SHEAF_OK);
            assert_int_equal(sheaf_sequence_gather_f32(seq, layer, numbers[i][0], TWINS_ROOM,
                                                       numbers[i][1], TWINS_ROOM),
                             SHEAF_OK);
            assert_int_equal(sheaf_sequence_gather_raw(seq, layer, raw[i][0], 4 * TWINS_ROOM,
                                                       raw[i][1], 4 * TWINS_ROOM, &info[i]),
                             SHEAF_OK);
        }
        const sheaf_layer *shape = &twin_layers[layer];
        uint64_t visible = (uint64_t)(end - begin) * shape->n_kv_heads;
        assert_memory_equal(numbers[0][0], numbers[1][0], visible * shape->key_dim * 4);
        assert_memory_equal(numbers[0][1], numbers[1][1], visible * shape->value_dim * 4);
        /* whole blocks of committed positions have no byte that nobody wrote */
        uint64_t whole = info[0].n_blocks - (end % 4 != 0);
        assert_int_equal(info[0].n_blocks, info[1].n_blocks);
        if (info[0].n_blocks == 0) continue;
        assert_memory_equal(raw[0][0], raw[1][0], whole * info[0].k_bytes / info[0].n_blocks);
        assert_memory_equal(raw[0][1], raw[1][1], whole * info[0].v_bytes / info[0].n_blocks);
    }
    t->n_compared++;
}

/* Streams of both, equal; then each is loaded into the other's pool in place of what was there.
 * */
static inline void twins_exchange(twins *t, uint32_t n)
{
    bytes streams[2];
    for (int i = 0; i < 2; i++) streams[i] = save_all(&t->parked[n][i], 1);
    assert_int_equal(streams[0].n, streams[1].n);
    assert_memory_equal(streams[0].data, streams[1].data, streams[0].n);
    for (int i = 0; i < 2; i++) {
        uint32_t n_loaded = 0;
        sheaf_error err = {0};
        sheaf_parked_destroy(t->parked[n][i]);
        sheaf_status st =
            load_all(t->pools[i], &streams[1 - i], &t->parked[n][i], 1, &n_loaded, &err);
        if (st != SHEAF_OK) fail_msg("%s", err.text);
        assert_int_equal(n_loaded, 1);
    }
    for (int i = 0; i < 2; i++) free(streams[i].data);
}

/* ---- operations -------------------------------------------------------------------------- */

static inline void twins_append(twins *t, uint32_t n, uint32_t count)
{
    static source s;
    uint32_t seeds[64];
    int32_t tokens[64];
    uint32_t dtype = random_below(&t->random, 3), order = random_below(&t->random, 2);
    for (uint32_t i = 0; i < count; i++) {
        seeds[i] = (uint32_t)random_next(&t->random);
        tokens[i] = (int32_t)(seeds[i] >> 1);
    }
    for (int i = 0; i < 2; i++) {
        sheaf_sequence *seq = t->running[n][i];
        assert_int_equal(sheaf_sequence_extend(seq, count), SHEAF_OK);
        uint32_t pos = sheaf_sequence_length(seq);
        for (uint32_t layer = 0; layer < N_TWIN_LAYERS; layer++) {
            source_fill(&s, &twin_layers[layer], layer, seeds, count, dtype, order);
            assert_int_equal(sheaf_sequence_write(seq, layer, pos, count, &s.src), SHEAF_OK);
        }
        assert_int_equal(sheaf_sequence_commit(seq, count, tokens), SHEAF_OK);
    }
}

/* On a running pair. */
static inline void twins_run_step(twins *t, uint32_t n, uint32_t other)
{
    uint32_t length = sheaf_sequence_length(t->running[n][0]);
    uint32_t cut = random_below(&t->random, length + 1), what = random_below(&t->random, 10);
    bool free_place = t->running[other][0] == NULL && t->parked[other][0] == NULL;
    if (what < 4 && length < 60) {
        twins_append(t, n, 1 + random_below(&t->random, 24));
        return;
    }
    for (int i = 0; i < 2; i++) {
        sheaf_sequence **seq = &t->running[n][i];
        sheaf_status st = SHEAF_OK;
        if (what <= 5 && free_place)
            st = sheaf_sequence_fork(*seq, &t->running[other][i]);
        else if (what == 6)
            st = sheaf_sequence_truncate(*seq, cut);
        else if (what == 7)
            st = sheaf_sequence_slide(*seq, 2);
        else if (what == 8) {
            st = sheaf_sequence_park(*seq, &t->parked[n][i]);
            *seq = NULL;
        } else if (what == 9) {
            sheaf_sequence_destroy(*seq);
            *seq = NULL;
        }
        assert_true(st == SHEAF_OK || (what == 6 && st == SHEAF_E_SLID));
    }
}

/* On a parked pair. */
static inline void twins_parked_step(twins *t, uint32_t n, uint32_t other)
{
    uint32_t length = sheaf_parked_length(t->parked[n][0]);
    uint32_t cut = random_below(&t->random, length + 1), what = random_below(&t->random, 4);
    bool free_place = t->running[other][0] == NULL && t->parked[other][0] == NULL;
    if (what == 0) twins_exchange(t, n);
    for (int i = 0; i < 2; i++) {
        sheaf_status st = SHEAF_OK;
        if (what == 1 && free_place)
            st = sheaf_parked_clone(t->parked[n][i], cut, &t->running[other][i]);
        else if (what == 2) {
            st = sheaf_parked_adopt(t->parked[n][i], &t->running[n][i]);
            t->parked[n][i] = NULL;
        } else if (what == 3) {
            sheaf_parked_destroy(t->parked[n][i]);
            t->parked[n][i] = NULL;
        }
        assert_true(st == SHEAF_OK || (what == 1 && st == SHEAF_E_SLID));
    }
}

/* Random operations; every pair is compared now and then, and at the end. */
static inline void twins_run(twins *t, uint32_t n_steps)
{
    for (uint32_t step = 0; step < n_steps; step++) {
        uint32_t n = random_below(&t->random, TWINS_MAX);
        uint32_t other = random_below(&t->random, TWINS_MAX);
        if (t->parked[n][0] != NULL)
            twins_parked_step(t, n, other);
        else if (t->running[n][0] != NULL)
            twins_run_step(t, n, other);
        else
            for (int i = 0; i < 2; i++)
                assert_int_equal(sheaf_sequence_create(t->pools[i], &t->running[n][i]),
                                 SHEAF_OK);
        if (random_below(&t->random, 3) == 0) twins_compare(t, n);
    }
    for (uint32_t n = 0; n < TWINS_MAX; n++) twins_compare(t, n);
    assert_true(t->n_compared > n_steps / 10);
}

#endif
