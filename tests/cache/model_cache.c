/* tests/cache/model_cache.c - random operations on tiny pools against a naive reference.
 *
 * The reference keeps, for every running and parked sequence, all numbers of K and V of every
 * token in plain arrays, and per group the list of blocks that the rules of sheaf/cache.h give
 * it. A block of the reference is a reference count and, once seen, the row that it must keep
 * while it lives. After each operation: the library's own checks, the counts of the pool and
 * the contents and bytes of the sequence that was touched; now and then those of all.
 *
 * SHEAF_SEED and SHEAF_OPS choose the run.
 */
#include "fixture.h"

#include "cache/sequence.h"

#define MAX_POSITIONS 128
#define MAX_NUMBERS   64 /* of one token, all layers */
#define MAX_LAYERS    4
#define MAX_BLOCKS    64
#define N_SEQUENCES   8
#define OPS_PER_POOL  2000
#define NO_ROW        UINT32_MAX

typedef struct ref_block {
    uint32_t references;
    uint32_t row;
} ref_block;

typedef struct ref_sequence {
    sheaf_sequence *seq;  /* running, or */
    sheaf_parked *parked; /* parked, or neither: a free place */
    uint32_t length, reserved;
    uint32_t written[MAX_LAYERS];
    int32_t tokens[MAX_POSITIONS];
    float numbers[MAX_POSITIONS][MAX_NUMBERS]; /* as stored; layer by layer, K then V */
    uint32_t first_block[2];
    uint32_t n_blocks[2];
    uint32_t blocks[2][MAX_POSITIONS / 4 + 1]; /* indices into world.blocks[group] */
} ref_sequence;

typedef struct world {
    fixture f;
    uint64_t random;
    uint32_t n_layers, n_groups, slab_blocks, n_places;
    uint64_t budget_bytes;
    uint32_t group_of[MAX_LAYERS], offset[MAX_LAYERS];
    uint32_t window[2];
    uint64_t block_bytes[2];
    uint64_t n_full, n_slid;
    sheaf_layer layers[MAX_LAYERS];
    ref_block blocks[2][MAX_BLOCKS];
    ref_sequence sequences[N_SEQUENCES];
} world;

static world w;

/* ---- the reference ----------------------------------------------------------------------- */

static uint32_t ref_new_block(uint32_t g)
{
    for (uint32_t b = 0; b < MAX_BLOCKS; b++)
        if (w.blocks[g][b].references == 0) {
            w.blocks[g][b] = (ref_block){1, NO_ROW};
            return b;
        }
    fail_msg("the reference ran out of blocks");
    return 0;
}

static uint64_t ref_held(uint32_t g)
{
    uint64_t held = 0;
    for (uint32_t b = 0; b < MAX_BLOCKS; b++) held += w.blocks[g][b].references != 0;
    return held;
}

static bool ref_tail_is_shared(const ref_sequence *r, uint32_t g)
{
    return r->n_blocks[g] != 0 && w.blocks[g][r->blocks[g][r->n_blocks[g] - 1]].references > 1;
}

/* Blocks that extending to n reserved positions takes. */
static void ref_need(const ref_sequence *r, uint32_t n, uint32_t counts[2])
{
    for (uint32_t g = 0; g < w.n_groups; g++) {
        counts[g] = 0;
        if (n <= r->reserved) continue;
        uint32_t held = r->first_block[g] + r->n_blocks[g];
        counts[g] = (r->length + n + 3) / 4 - held;
        if (r->reserved == 0 && r->length % 4 != 0) counts[g] += ref_tail_is_shared(r, g);
    }
}

static void ref_extend(ref_sequence *r, uint32_t n)
{
    if (n <= r->reserved) return;
    for (uint32_t g = 0; g < w.n_groups; g++) {
        if (r->reserved == 0 && r->length % 4 != 0 && ref_tail_is_shared(r, g)) {
            uint32_t *tail = &r->blocks[g][r->n_blocks[g] - 1];
            w.blocks[g][*tail].references--;
            *tail = ref_new_block(g);
        }
        while ((r->first_block[g] + r->n_blocks[g]) * 4 < r->length + n)
            r->blocks[g][r->n_blocks[g]++] = ref_new_block(g);
    }
    r->reserved = n;
}

static void ref_cut(ref_sequence *r, uint32_t length)
{
    for (uint32_t g = 0; g < w.n_groups; g++) {
        while (r->n_blocks[g] > 0 && (r->first_block[g] + r->n_blocks[g] - 1) * 4 >= length)
            w.blocks[g][r->blocks[g][--r->n_blocks[g]]].references--;
        if (length == 0) r->first_block[g] = 0;
    }
    r->length = length;
    r->reserved = 0;
    for (uint32_t i = 0; i < w.n_layers; i++) r->written[i] = length;
}

static bool ref_slid(const ref_sequence *r, uint32_t length)
{
    for (uint32_t g = 0; g < w.n_groups; g++)
        for (uint32_t pos = 0; pos < length; pos++) {
            bool needed = w.window[g] == 0 || pos + w.window[g] >= length;
            if (needed && pos < r->first_block[g] * 4) return true;
        }
    return false;
}

static void ref_slide(ref_sequence *r, uint32_t draft)
{
    uint32_t shortest = r->length > draft ? r->length - draft : 0;
    for (uint32_t g = 0; g < w.n_groups; g++) {
        if (w.window[g] == 0) continue;
        while (r->n_blocks[g] > 0 && (r->first_block[g] + 1) * 4 + w.window[g] <= shortest) {
            w.blocks[g][r->blocks[g][0]].references--;
            r->first_block[g]++, r->n_blocks[g]--;
            memmove(r->blocks[g], r->blocks[g] + 1, r->n_blocks[g] * sizeof r->blocks[g][0]);
        }
    }
}

/* A second sequence of the first `length` tokens. */
static void ref_share(const ref_sequence *from, uint32_t length, bool copy_tail,
                      ref_sequence *to)
{
    *to = *from;
    to->seq = NULL, to->parked = NULL;
    for (uint32_t g = 0; g < w.n_groups; g++)
        for (uint32_t i = 0; i < to->n_blocks[g]; i++)
            w.blocks[g][to->blocks[g][i]].references++;
    ref_cut(to, length);
    for (uint32_t g = 0; copy_tail && length % 4 != 0 && g < w.n_groups; g++) {
        uint32_t *tail = &to->blocks[g][to->n_blocks[g] - 1];
        w.blocks[g][*tail].references--;
        *tail = ref_new_block(g);
    }
}

/* ---- comparing --------------------------------------------------------------------------- */

static sheaf_sequence *either(const ref_sequence *r)
{
    return r->seq != NULL ? r->seq : sheaf__sequence_of(r->parked);
}

/* Compares gathered [n_kv_heads, end - begin, dim] with the reference. */
static bool same_numbers(const ref_sequence *r, uint32_t layer, uint32_t side, uint32_t begin,
                         uint32_t end, const float *got)
{
    const sheaf_layer *shape = &w.layers[layer];
    uint32_t dim = side == 0 ? shape->key_dim : shape->value_dim;
    uint32_t at = w.offset[layer] + (side == 0 ? 0 : shape->n_kv_heads * shape->key_dim);
    for (uint32_t h = 0; h < shape->n_kv_heads; h++)
        for (uint32_t pos = begin; pos < end; pos++, got += dim)
            if (memcmp(got, &r->numbers[pos][at + h * dim], dim * sizeof *got) != 0)
                return false;
    return true;
}

/* What a view shows, read by the view's own rule. */
static void compare_view(const ref_sequence *r, uint32_t layer)
{
    float row[16];
    sheaf_kv_view v;
    assert_int_equal(sheaf_sequence_view(either(r), layer, &v), SHEAF_OK);
    uint32_t g = w.group_of[layer];
    assert_int_equal(v.n_tokens, r->written[layer]);
    assert_int_equal(v.first_block, r->first_block[g]);
    assert_int_equal(v.n_rows, (r->written[layer] + 3) / 4 - r->first_block[g]);
    for (uint32_t i = 0; i < r->n_blocks[g]; i++) { /* reserved ones too */
        ref_block *block = &w.blocks[g][r->blocks[g][i]];
        if (block->row == NO_ROW) block->row = v.rows[i];
        assert_int_equal(block->row, v.rows[i]);
    }
    for (uint32_t pos = v.first_block * 4; pos < v.n_tokens; pos++)
        for (uint32_t h = 0; h < v.n_kv_heads; h++) {
            uint64_t at = v.rows[pos / 4 - v.first_block];
            const float *k = &r->numbers[pos][w.offset[layer]];
            const float *values = k + v.n_kv_heads * v.key_dim;
            assert_int_equal(sheaf_codec_decode(v.codec_k,
                                                v.base + at * v.row_stride_k + v.k_offset +
                                                    h * v.k_head_stride,
                                                4, v.key_dim, pos % 4, 1, row),
                             SHEAF_OK);
            assert_memory_equal(row, k + h * v.key_dim, v.key_dim * sizeof *row);
            if (v.value_dim == 0) continue;
            assert_int_equal(sheaf_codec_decode(v.codec_v,
                                                v.base + at * v.row_stride_v + v.v_offset +
                                                    h * v.v_head_stride,
                                                4, v.value_dim, pos % 4, 1, row),
                             SHEAF_OK);
            assert_memory_equal(row, values + h * v.value_dim, v.value_dim * sizeof *row);
        }
}

static void compare_usage(const ref_sequence *r)
{
    sheaf_usage usage = SHEAF_USAGE_INIT;
    if (r->seq != NULL)
        assert_int_equal(sheaf_sequence_usage(r->seq, &usage), SHEAF_OK);
    else
        assert_int_equal(sheaf_parked_usage(r->parked, &usage), SHEAF_OK);
    uint64_t bytes = 0, exclusive = 0, blocks = 0;
    for (uint32_t g = 0; g < w.n_groups; g++) {
        assert_int_equal(usage.blocks_by_group[g], r->n_blocks[g]);
        blocks += r->n_blocks[g];
        bytes += r->n_blocks[g] * w.block_bytes[g];
        for (uint32_t i = 0; i < r->n_blocks[g]; i++)
            if (w.blocks[g][r->blocks[g][i]].references == 1) exclusive += w.block_bytes[g];
    }
    assert_int_equal(usage.n_tokens, r->length);
    assert_int_equal(usage.blocks, blocks);
    assert_int_equal(usage.bytes, bytes);
    assert_int_equal(usage.bytes_exclusive, exclusive);
}

static void compare_sequence(const ref_sequence *r)
{
    static float k[MAX_POSITIONS * 16], v[MAX_POSITIONS * 16];
    const sheaf_sequence *seq = either(r);
    assert_int_equal(sheaf_sequence_length(seq), r->length);
    assert_int_equal(sheaf_sequence_reserved(seq), r->reserved);
    assert_memory_equal(sheaf_sequence_tokens(seq), r->tokens, r->length * sizeof(int32_t));
    compare_usage(r);
    for (uint32_t layer = 0; layer < w.n_layers; layer++) {
        uint32_t begin, end, window = w.layers[layer].window;
        assert_int_equal(sheaf_sequence_visible(seq, layer, &begin, &end), SHEAF_OK);
        assert_int_equal(end, r->length);
        assert_int_equal(begin, window != 0 && end > window ? end - window : 0);
        assert_int_equal(
            sheaf_sequence_gather_f32(seq, layer, k, MAX_POSITIONS * 16, v, MAX_POSITIONS * 16),
            SHEAF_OK);
        assert_true(same_numbers(r, layer, 0, begin, end, k));
        assert_true(same_numbers(r, layer, 1, begin, end, v));
        compare_view(r, layer);
    }
}

static void compare_pool(void)
{
    sheaf_pool_stats stats = fixture_stats(&w.f);
    uint64_t held = 0, shared = 0, bytes = 0, shared_bytes = 0, owners[2] = {0, 0};
    for (uint32_t g = 0; g < w.n_groups; g++)
        for (uint32_t b = 0; b < MAX_BLOCKS; b++) {
            uint32_t references = w.blocks[g][b].references;
            held += references != 0, shared += references > 1;
            bytes += references != 0 ? w.block_bytes[g] : 0;
            shared_bytes += references > 1 ? w.block_bytes[g] : 0;
        }
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        const ref_sequence *r = &w.sequences[i];
        for (uint32_t g = 0; g < w.n_groups; g++) {
            owners[0] += r->seq != NULL ? r->n_blocks[g] : 0;
            owners[1] += r->parked != NULL ? r->n_blocks[g] : 0;
        }
    }
    assert_int_equal(stats.blocks_held, held);
    assert_int_equal(stats.blocks_shared, shared);
    assert_int_equal(stats.bytes_in_use, bytes);
    assert_int_equal(stats.bytes_shared, shared_bytes);
    assert_int_equal(stats.owners[SHEAF_OWNER_TABLE], owners[0]);
    assert_int_equal(stats.owners[SHEAF_OWNER_PARKED], owners[1]);
    assert_int_equal(stats.blocks_acquired - stats.blocks_released, held);
    assert_true(stats.bytes_reserved <= stats.budget_bytes);
    assert_int_equal(stats.bytes_copied_by_growth, 0);
    sheaf_error err = {0};
    if (sheaf_pool_check(w.f.pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        const ref_sequence *r = &w.sequences[i];
        sheaf_status st = SHEAF_OK;
        if (r->seq != NULL) st = sheaf_sequence_check(r->seq, &err);
        if (r->parked != NULL) st = sheaf_parked_check(r->parked, &err);
        if (st != SHEAF_OK) fail_msg("%s", err.text);
    }
}

/* Compares an answer about taking blocks with what the budget allows; true when they were
 * taken. */
static bool took(sheaf_status st, const uint32_t counts[2], sheaf_status advice)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < w.n_groups; g++)
        bytes += (ref_held(g) + counts[g]) * w.block_bytes[g];
    assert_int_equal(st, advice);
    if (bytes > w.budget_bytes)
        assert_int_equal(st, SHEAF_FULL);
    else if (w.slab_blocks == 1)
        assert_int_equal(st, SHEAF_OK);
    w.n_full += st == SHEAF_FULL;
    return st == SHEAF_OK;
}

/* ---- operations -------------------------------------------------------------------------- */

static uint32_t below(uint32_t n)
{
    return random_below(&w.random, n);
}

static void op_extend(ref_sequence *r)
{
    uint32_t n = below(10), counts[2] = {0, 0}, told[2] = {9, 9};
    if (r->length + n > MAX_POSITIONS) return;
    ref_need(r, n, counts);
    assert_int_equal(sheaf_sequence_need_blocks(r->seq, n, told), SHEAF_OK);
    assert_memory_equal(told, counts, w.n_groups * sizeof counts[0]);
    sheaf_status advice = sheaf_pool_can_acquire(w.f.pool, counts);
    if (took(sheaf_sequence_extend(r->seq, n), counts, advice)) ref_extend(r, n);
}

/* Writes [pos, pos + n) of a layer, or is refused. */
static void write_layer(ref_sequence *r, uint32_t layer, uint32_t pos, uint32_t n)
{
    static source s;
    const sheaf_layer *shape = &w.layers[layer];
    uint32_t seeds[MAX_POSITIONS], dtype = below(3), order = below(2);
    for (uint32_t i = 0; i < n; i++) seeds[i] = (uint32_t)random_next(&w.random);
    source_fill(&s, shape, layer, seeds, n, dtype, order);
    bool allowed =
        pos >= r->length && pos <= r->written[layer] && pos + n <= r->length + r->reserved;
    assert_int_equal(sheaf_sequence_write(r->seq, layer, pos, n, &s.src),
                     allowed ? SHEAF_OK : SHEAF_E_RANGE);
    if (!allowed) return;
    if (pos + n > r->written[layer]) r->written[layer] = pos + n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t side = 0, at = w.offset[layer]; side < 2; side++) {
            uint32_t dim = side == 0 ? shape->key_dim : shape->value_dim;
            uint32_t codec = side == 0 ? shape->codec_k : shape->codec_v;
            for (uint32_t h = 0; h < shape->n_kv_heads; h++, at += dim) {
                for (uint32_t d = 0; d < dim; d++)
                    r->numbers[pos + i][at + d] =
                        stored_as(dtype, number_of(seeds[i], layer, side, h, d));
                store_row(codec, dim, &r->numbers[pos + i][at]);
            }
        }
}

/* All that is reserved, in every layer. */
static void write_layers(ref_sequence *r)
{
    for (uint32_t layer = 0; layer < w.n_layers; layer++)
        write_layer(r, layer, r->length, r->reserved);
}

static void op_write(ref_sequence *r)
{
    if (below(4) != 0) {
        write_layers(r);
        return;
    }
    uint32_t layer = below(w.n_layers), reach = r->written[layer] - r->length + 2;
    uint32_t pos = r->length + below(reach);
    if (r->length > 0 && below(8) == 0) pos = r->length - 1;
    write_layer(r, layer, pos, below(r->reserved + 2));
}

static void op_commit(ref_sequence *r)
{
    int32_t tokens[MAX_POSITIONS];
    uint32_t m = below(3) != 0 ? r->reserved : below(r->reserved + 2);
    bool named = below(4) != 0;
    for (uint32_t i = 0; i < m; i++) tokens[i] = (int32_t)below(1000);
    sheaf_status expected = m > r->reserved ? SHEAF_E_RANGE : SHEAF_OK;
    for (uint32_t layer = 0; expected == SHEAF_OK && layer < w.n_layers; layer++)
        if (r->written[layer] < r->length + m) expected = SHEAF_E_UNWRITTEN;
    assert_int_equal(sheaf_sequence_commit(r->seq, m, named ? tokens : NULL), expected);
    if (expected != SHEAF_OK) return;
    for (uint32_t i = 0; i < m; i++)
        r->tokens[r->length + i] = named ? tokens[i] : SHEAF_TOKEN_NONE;
    ref_cut(r, r->length + m);
}

/* What an engine does. */
static void op_step(ref_sequence *r)
{
    op_extend(r);
    write_layers(r);
    op_commit(r);
}

/* A length to go back to, more often a near one. */
static uint32_t any_length(const ref_sequence *r)
{
    uint32_t back = below(8) != 0 ? below(6) : below(r->length + 1);
    if (below(16) == 0) return r->length + 1;
    return back < r->length ? r->length - back : 0;
}

static sheaf_status expected_cut(const ref_sequence *r, uint32_t length)
{
    if (length > r->length) return SHEAF_E_RANGE;
    if (!ref_slid(r, length)) return SHEAF_OK;
    w.n_slid++;
    return SHEAF_E_SLID;
}

static void op_truncate(ref_sequence *r)
{
    uint32_t length = any_length(r);
    sheaf_status expected = expected_cut(r, length);
    assert_int_equal(sheaf_sequence_truncate(r->seq, length), expected);
    if (expected == SHEAF_OK) ref_cut(r, length);
}

static void op_slide(ref_sequence *r)
{
    uint32_t draft = below(6);
    sheaf_status expected = r->reserved != 0 ? SHEAF_E_BUSY : SHEAF_OK;
    assert_int_equal(sheaf_sequence_slide(r->seq, draft), expected);
    if (expected == SHEAF_OK) ref_slide(r, draft);
}

static void op_fork(ref_sequence *r, ref_sequence *place)
{
    sheaf_sequence *twin = NULL;
    sheaf_status expected = r->reserved != 0 ? SHEAF_E_BUSY : SHEAF_OK;
    assert_int_equal(sheaf_sequence_fork(r->seq, &twin), expected);
    if (expected != SHEAF_OK) return;
    ref_share(r, r->length, false, place);
    place->seq = twin;
}

static void op_park(ref_sequence *r)
{
    sheaf_parked *parked = NULL;
    sheaf_status expected = r->reserved != 0 ? SHEAF_E_BUSY : SHEAF_OK;
    assert_int_equal(sheaf_sequence_park(r->seq, &parked), expected);
    if (expected != SHEAF_OK) return;
    r->seq = NULL, r->parked = parked;
}

static void op_adopt(ref_sequence *r)
{
    assert_int_equal(sheaf_parked_adopt(r->parked, &r->seq), SHEAF_OK);
    r->parked = NULL;
}

static void op_clone(ref_sequence *r, ref_sequence *place)
{
    uint32_t length = any_length(r), counts[2] = {0, 0};
    sheaf_sequence *clone = NULL;
    sheaf_status expected = expected_cut(r, length);
    if (expected == SHEAF_OK && length % 4 != 0) counts[0] = counts[1] = 1;
    sheaf_status advice = sheaf_pool_can_acquire(w.f.pool, counts);
    sheaf_status st = sheaf_parked_clone(r->parked, length, &clone);
    if (expected != SHEAF_OK) {
        assert_int_equal(st, expected);
        return;
    }
    if (!took(st, counts, advice)) return;
    ref_share(r, length, true, place);
    place->seq = clone;
}

static void op_trim(ref_sequence *r)
{
    uint32_t length = any_length(r);
    sheaf_status expected = expected_cut(r, length);
    assert_int_equal(sheaf_parked_trim(r->parked, length), expected);
    if (expected == SHEAF_OK) ref_cut(r, length);
}

static void op_destroy(ref_sequence *r)
{
    if (r->seq != NULL) sheaf_sequence_destroy(r->seq);
    if (r->parked != NULL) sheaf_parked_destroy(r->parked);
    ref_cut(r, 0);
    r->seq = NULL, r->parked = NULL;
}

static void op_create(ref_sequence *place)
{
    memset(place, 0, sizeof *place);
    assert_int_equal(sheaf_sequence_create(w.f.pool, &place->seq), SHEAF_OK);
}

static void op_on_running(ref_sequence *r, ref_sequence *place)
{
    uint32_t pick = below(100);
    if (pick < 10)
        op_extend(r);
    else if (pick < 20)
        op_write(r);
    else if (pick < 30)
        op_commit(r);
    else if (pick < 40)
        op_slide(r);
    else if (pick < 45)
        op_truncate(r);
    else if (pick < 50)
        op_park(r);
    else if (pick < 51)
        op_destroy(r);
    else if (pick < 56 && place != NULL)
        op_fork(r, place);
    else
        op_step(r);
}

static void op_on_parked(ref_sequence *r, ref_sequence *place)
{
    uint32_t pick = below(10);
    if (pick < 1)
        op_trim(r);
    else if (pick < 2)
        op_destroy(r);
    else if (pick < 6 && place != NULL)
        op_clone(r, place);
    else
        op_adopt(r);
}

static void one_operation(void)
{
    ref_sequence *place = NULL, *r = &w.sequences[below(w.n_places)];
    for (uint32_t i = 0; i < w.n_places && place == NULL; i++)
        if (w.sequences[i].seq == NULL && w.sequences[i].parked == NULL)
            place = &w.sequences[i];
    if (r->seq != NULL)
        op_on_running(r, place);
    else if (r->parked != NULL)
        op_on_parked(r, place);
    else
        op_create(r);
    /* a block that the reference let go of may come back with another row */
    for (uint32_t g = 0; g < w.n_groups; g++)
        for (uint32_t b = 0; b < MAX_BLOCKS; b++)
            if (w.blocks[g][b].references == 0) w.blocks[g][b].row = NO_ROW;
    compare_pool();
    if (r->seq != NULL || r->parked != NULL) compare_sequence(r);
    if (place != NULL && place != r && place->seq != NULL) compare_sequence(place);
}

/* No two blocks of the reference have one row, and every sequence is as it should be. */
static void compare_all(void)
{
    for (uint32_t i = 0; i < N_SEQUENCES; i++)
        if (w.sequences[i].seq != NULL || w.sequences[i].parked != NULL)
            compare_sequence(&w.sequences[i]);
    for (uint32_t g = 0; g < w.n_groups; g++)
        for (uint32_t a = 0; a < MAX_BLOCKS; a++)
            for (uint32_t b = 0; b < a; b++)
                assert_true(w.blocks[g][a].row == NO_ROW ||
                            w.blocks[g][a].row != w.blocks[g][b].row);
}

/* ---- pools ------------------------------------------------------------------------------- */

/* Layers of one group (without or with a window) or of two. */
static void choose_layers(bool mixed_codecs)
{
    uint32_t kind = below(3);
    w.n_groups = kind == 2 ? 2 : 1;
    w.n_layers = w.n_groups + below(2) + 1;
    uint32_t window = 1 + below(9);
    for (uint32_t i = 0, at = 0; i < w.n_layers; i++) {
        w.layers[i] = (sheaf_layer){
            .n_kv_heads = 1 + below(2), .key_dim = 1 + below(4), .value_dim = below(4)};
        w.group_of[i] = kind == 2 ? i % 2 : 0;
        w.layers[i].window = kind == 1 || w.group_of[i] == 1 ? window : 0;
        w.window[w.group_of[i]] = w.layers[i].window;
        if (mixed_codecs) {
            w.layers[i].codec_k = below(SHEAF_CODEC_COUNT);
            w.layers[i].codec_v = below(SHEAF_CODEC_COUNT);
        }
        w.offset[i] = at;
        at += w.layers[i].n_kv_heads * (w.layers[i].key_dim + w.layers[i].value_dim);
        assert_true(at <= MAX_NUMBERS);
    }
}

static void one_pool(uint64_t n_ops, bool mixed_codecs)
{
    uint64_t random = w.random;
    memset(&w, 0, sizeof w);
    w.random = random;
    choose_layers(mixed_codecs);
    w.slab_blocks = 1u << below(3);
    w.n_places = 1 + below(N_SEQUENCES);
    fixture_open(&w.f, w.layers, w.n_layers, w.slab_blocks, 4 + below(9));
    w.budget_bytes = fixture_stats(&w.f).budget_bytes;
    for (uint32_t g = 0; g < w.n_groups; g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        assert_int_equal(sheaf_pool_group_info(w.f.pool, g, &info), SHEAF_OK);
        w.block_bytes[g] = info.block_bytes;
        assert_int_equal(info.window, w.window[g]);
    }
    for (uint64_t i = 0; i < n_ops; i++) {
        one_operation();
        if (i % 64 == 0) compare_all();
    }
    compare_all();
    for (uint32_t i = 0; i < N_SEQUENCES; i++) op_destroy(&w.sequences[i]);
    compare_pool();
    assert_int_equal(fixture_stats(&w.f).bytes_in_use, 0);
    fixture_close(&w.f);
}

static void run(uint64_t seed, bool mixed_codecs, uint64_t share)
{
    const char *text = getenv("SHEAF_OPS");
    uint64_t n_ops = (text != NULL ? strtoull(text, NULL, 0) : 100000) / share;
    uint64_t n_full = 0, n_slid = 0;
    w.random = seed;
    for (uint64_t done = 0; done < n_ops; done += OPS_PER_POOL) {
        one_pool(sheaf__min_u64(OPS_PER_POOL, n_ops - done), mixed_codecs);
        n_full += w.n_full, n_slid += w.n_slid;
    }
    fprintf(stderr, "%llu operations: %llu full, %llu slid\n", (unsigned long long)n_ops,
            (unsigned long long)n_full, (unsigned long long)n_slid);
    if (n_ops >= 20000) assert_true(n_full > n_ops / 200 && n_slid > n_ops / 2000);
}

static void random_operations_agree_with_plain_arrays(void **state)
{
    (void)state;
    run(seed_from_environment(1), false, 1);
}

static void so_they_do_with_half_floats_of_both_kinds(void **state)
{
    (void)state;
    run(2026, true, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_agree_with_plain_arrays),
        cmocka_unit_test(so_they_do_with_half_floats_of_both_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
