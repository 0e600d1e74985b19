/* cache/wire_fixture.h - streams in memory: sinks that fail, sources that dribble, checksums made to
 * fit; and pools whose blocks are compared byte for byte. */
#ifndef SHEAF_TESTS_WIRE_FIXTURE_H
#define SHEAF_TESTS_WIRE_FIXTURE_H

#include "cache/fixture.h"
#include "cache/sequence.h"
#include "cache/wire.h"
#include "cache/wire_reseal.h"
#include "codec/codec.h"

/* ---- streams in memory ------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char *data; /* [n], of capacity */
    uint64_t n, capacity;
    uint64_t fail_after; /* bytes that a sink takes; what more comes is refused */
    uint32_t n_flushes;
    uint64_t at;   /* of a source */
    uint64_t step; /* bytes a read at most; 0: as many as asked for */
    uint64_t reads;
} bytes;

static inline sheaf_status bytes_write(void *ctx, const void *data, uint64_t n)
{
    bytes *b = ctx;
    if (n > b->fail_after - b->n) return SHEAF_E_CANCELLED;
    if (b->n + n > b->capacity) {
        b->capacity = (b->n + n) * 2;
        b->data = realloc(b->data, b->capacity);
        assert_non_null(b->data);
    }
    if (n != 0) memcpy(b->data + b->n, data, n);
    b->n += n;
    return SHEAF_OK;
}

static inline sheaf_status bytes_flush(void *ctx)
{
    ((bytes *)ctx)->n_flushes++;
    return SHEAF_OK;
}

static inline sheaf_status bytes_read(void *ctx, void *data, uint64_t n, uint64_t *n_read)
{
    bytes *b = ctx;
    assert_true(n > 0);
    uint64_t some = n < b->n - b->at ? n : b->n - b->at;
    if (b->step != 0 && some > b->step) some = b->step;
    if (some != 0) memcpy(data, b->data + b->at, some);
    b->at += some;
    b->reads++;
    *n_read = some;
    return SHEAF_OK;
}

static inline sheaf_sink bytes_sink(bytes *b)
{
    *b = (bytes){.fail_after = UINT64_MAX};
    return (sheaf_sink){b, bytes_write, bytes_flush};
}

static inline sheaf_source bytes_source(bytes *b)
{
    b->at = b->reads = 0;
    return (sheaf_source){b, bytes_read};
}

static inline bytes bytes_of_file(const char *path)
{
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    FILE *file = fopen(path, "rb");
    if (file == NULL) return b;
    unsigned char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) != 0;)
        assert_int_equal(sink.write(sink.ctx, piece, n), SHEAF_OK);
    fclose(file);
    return b;
}

/* ---- saving and loading ------------------------------------------------------------------ */

static const sheaf_key some_space = {{1, 2, 3, 4, 5}};

static inline bytes save_all(sheaf_parked *const *parked, uint32_t n)
{
    bytes b;
    sheaf_sink sink = bytes_sink(&b);
    sheaf_error err = {0};
    sheaf_status st = sheaf_wire_save(parked, n, &some_space, &sink, &err);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
    assert_int_equal(b.n_flushes, 1);
    return b;
}

static inline sheaf_status load_all(sheaf_pool *pool, bytes *b, sheaf_parked **parked,
                                    uint32_t capacity, uint32_t *n, sheaf_error *err)
{
    sheaf_source from = bytes_source(b);
    return sheaf_wire_load(pool, &some_space, &from, parked, capacity, n, err);
}

/* What a refused load must leave as it was. Numbers of all that ever happened are left out, and what
 * memory is kept for later. */
static inline sheaf_pool_stats held_of(const fixture *f)
{
    sheaf_pool_stats all = fixture_stats(f);
    sheaf_pool_stats held = SHEAF_POOL_STATS_INIT;
    held.blocks_held = all.blocks_held;
    held.blocks_retiring = all.blocks_retiring;
    held.blocks_shared = all.blocks_shared;
    held.bytes_in_use = all.bytes_in_use;
    memcpy(held.owners, all.owners, sizeof held.owners);
    return held;
}

/* Loading fails so, and the pool is as before. */
static inline void assert_refused(const fixture *f, bytes *b, sheaf_status expected)
{
    sheaf_parked *parked[8];
    uint32_t n = 77;
    sheaf_error err = {0};
    sheaf_pool_stats before = held_of(f);
    sheaf_status st = load_all(f->pool, b, parked, 8, &n, &err);
    if (st != expected) fail_msg("%s: %s", sheaf_status_text(st), err.text);
    assert_int_equal(err.status, expected);
    assert_true(err.text[0] != 0);
    assert_int_equal(n, 77);
    sheaf_pool_stats after = held_of(f);
    assert_memory_equal(&before, &after, sizeof before);
    assert_whole(f, NULL);
}

/* ---- comparing --------------------------------------------------------------------------- */

/* Block i of two tables: the same bytes in n_slots slots of every tile, and zeros behind them in b. */
static inline void assert_same_block(const sheaf_sequence *a, const sheaf_sequence *b,
                                     uint32_t g, uint32_t i, uint32_t n_slots)
{
    const sheaf__layout *layout = sheaf__pool_layout(a->pool);
    const unsigned char *x = sheaf__pool_row(a->pool, g, a->room.tables[g].rows[i]);
    const unsigned char *y = sheaf__pool_row(b->pool, g, b->room.tables[g].rows[i]);
    for (uint32_t l = 0; l < layout->n_layers; l++) {
        const sheaf__layer_layout *place = &layout->layers[l];
        for (uint32_t v = 0; v < 2 && place->group == g; v++) {
            uint64_t segment = v ? place->v_segment_bytes : place->k_segment_bytes;
            uint32_t dim = v ? place->layer.value_dim : place->layer.key_dim;
            uint64_t row =
                sheaf__codec_row_bytes(v ? place->layer.codec_v : place->layer.codec_k, dim);
            uint64_t scales =
                row * layout->block_tokens; /* where they begin, if there are any */
            uint64_t at = v ? place->v_offset : place->k_offset;
            for (uint32_t h = 0; h < place->layer.n_kv_heads; h++, at += segment) {
                for (uint64_t k = 0; k < segment; k++) {
                    uint64_t slot = k < scales ? k / row : (k - scales) / 4;
                    assert_int_equal(y[at + k], slot < n_slots ? x[at + k] : 0);
                }
            }
        }
    }
}

/* Two parked sequences of two pools hold the same. exact: the last block's tail is zero in b. */
static inline void assert_same_parked(const sheaf_parked *x, const sheaf_parked *y)
{
    const sheaf_sequence *a = sheaf__sequence_of_const(x), *b = sheaf__sequence_of_const(y);
    uint32_t length = a->progress.length;
    assert_int_equal(b->progress.length, length);
    assert_memory_equal(a->room.tokens, b->room.tokens, length * sizeof(int32_t));
    for (uint32_t g = 0; g < a->n_groups; g++) {
        assert_int_equal(b->room.tables[g].first_block, a->room.tables[g].first_block);
        assert_int_equal(b->room.tables[g].n_blocks, a->room.tables[g].n_blocks);
        for (uint32_t i = 0; i < a->room.tables[g].n_blocks; i++) {
            uint32_t left = length - (a->room.tables[g].first_block + i) * a->block_tokens;
            assert_same_block(a, b, g, i, left < a->block_tokens ? left : a->block_tokens);
        }
    }
    sheaf_error err;
    if (sheaf_parked_check(y, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static inline sheaf_parked *park(sheaf_sequence *seq)
{
    sheaf_parked *parked = NULL;
    assert_int_equal(sheaf_sequence_park(seq, &parked), SHEAF_OK);
    return parked;
}

static inline sheaf_sequence *fork_of(sheaf_sequence *seq)
{
    sheaf_sequence *twin = NULL;
    assert_int_equal(sheaf_sequence_fork(seq, &twin), SHEAF_OK);
    return twin;
}

/* ---- layouts ----------------------------------------------------------------------------- */

/* Dimensions of which no tile is a multiple of 64 bytes, so that blocks have padding inside. */
static const sheaf_layer odd_layers[] = {{1, 3, 5, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F16},
                                         {2, 7, 0, 6, SHEAF_CODEC_BF16, 0},
                                         {3, 1, 2, 0, SHEAF_CODEC_F16, SHEAF_CODEC_BF16},
                                         {1, 4, 4, 6, SHEAF_CODEC_F16, SHEAF_CODEC_F32}};
#define N_ODD 4

/* Tiles of whole 64 bytes: a block is one run. */
static const sheaf_layer even_layers[] = {{2, 8, 8, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16},
                                          {2, 16, 8, 0, SHEAF_CODEC_F16, SHEAF_CODEC_F32}};
#define N_EVEN 2

#endif
