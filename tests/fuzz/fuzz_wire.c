/* fuzz/fuzz_wire.c - a stream of saved keys and values. The first byte says how it is read: bit 0, its
 * checksums are made to fit first, so that what is behind them is reached; bit 1, by a pool of two
 * groups; bit 2, in small pieces; bit 3, through damage to numbers alone: the rest of the input are
 * places and values in a stream that is right; bit 4, of a single block; bit 5, by a pool of quantized
 * layers.
 */
#include "fuzz/fuzz.h"

#include <string.h>

#include "cache/wire_golden.h"
#include "cache/wire_reseal.h"

typedef struct stream {
    const uint8_t *data; /* [size] */
    size_t size, at, step;
} stream;

static sheaf_status stream_read(void *ctx, void *data, uint64_t n, uint64_t *n_read)
{
    stream *s = ctx;
    size_t some = s->size - s->at;
    FUZZ_CHECK(n > 0);
    if (some > n) some = n;
    if (some > s->step) some = s->step;
    if (some != 0) memcpy(data, s->data + s->at, some);
    s->at += some;
    *n_read = some;
    return SHEAF_OK;
}

static sheaf_source source_of(stream *s)
{
    s->at = 0;
    return (sheaf_source){s, stream_read};
}

enum { TWO = 2, PIECES = 4, DAMAGE = 8, BLOCK = 16, QUANT = 32 }; /* bits of the first byte */

static const sheaf_layer *layers_of(uint8_t how)
{
    return how & TWO ? golden_two : how & QUANT ? golden_quant : golden_one;
}

static const char *golden_of(uint8_t how)
{
    if (how & TWO) return how & BLOCK ? GOLDEN_BLOCK : GOLDEN_TWO;
    return how & QUANT ? GOLDEN_QUANT : GOLDEN_ONE;
}

static sheaf_pool *open_pool(uint8_t how)
{
    sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
    sheaf_pool *pool = NULL;
    o.layers = layers_of(how), o.n_layers = N_GOLDEN;
    o.block_tokens = GOLDEN_TOKENS, o.slab_blocks = 4, o.budget_bytes = 1 << 20;
    FUZZ_CHECK(sheaf_pool_open(&o, &pool, NULL) == SHEAF_OK);
    return pool;
}

static void check_status(sheaf_status st, const sheaf_error *err)
{
    FUZZ_CHECK(st == SHEAF_OK || st == SHEAF_FULL || st == SHEAF_E_FORMAT ||
               st == SHEAF_E_DAMAGED || st == SHEAF_E_FOREIGN);
    FUZZ_CHECK(st == SHEAF_OK || (err->status == st && err->text[0] != 0));
}

/* Whatever a stream says of levels and scales, they decode. Consumes it. */
static void decode(sheaf_parked *parked, uint8_t how)
{
    sheaf_sequence *seq = NULL;
    FUZZ_CHECK(sheaf_parked_adopt(parked, &seq) == SHEAF_OK);
    for (uint32_t l = 0; l < N_GOLDEN; l++) {
        const sheaf_layer *layer = &layers_of(how)[l];
        uint32_t begin = 0, end = 0;
        FUZZ_CHECK(sheaf_sequence_visible(seq, l, &begin, &end) == SHEAF_OK);
        uint64_t n = (uint64_t)(end - begin) * layer->n_kv_heads;
        uint64_t n_k = n * layer->key_dim, n_v = n * layer->value_dim;
        float *k = malloc((n_k + 1) * sizeof *k), *v = malloc((n_v + 1) * sizeof *v);
        FUZZ_CHECK(k != NULL && v != NULL);
        FUZZ_CHECK(sheaf_sequence_gather_f32(seq, l, k, n_k, v, n_v) == SHEAF_OK);
        free(k);
        free(v);
    }
    sheaf_sequence_destroy(seq);
}

/* What a pool loads, a scan finds right. */
static bool load(sheaf_pool *pool, stream *s, uint8_t how)
{
    sheaf_parked *parked[4];
    uint32_t n = 0;
    sheaf_error err = {0};
    sheaf_source from = source_of(s);
    sheaf_status st = sheaf_wire_load(pool, NULL, &from, parked, 4, &n, &err);
    check_status(st, &err);
    for (uint32_t i = 0; i < n; i++) {
        FUZZ_CHECK(sheaf_parked_check(parked[i], &err) == SHEAF_OK);
        decode(parked[i], how);
    }
    return st == SHEAF_OK;
}

static bool load_block(sheaf_pool *pool, stream *s)
{
    sheaf_block blocks[SHEAF_MAX_GROUPS];
    int32_t tokens[GOLDEN_TOKENS];
    sheaf_error err = {0};
    sheaf_source from = source_of(s);
    sheaf_status st = sheaf_wire_load_block(pool, NULL, &from, blocks, tokens, &err);
    check_status(st, &err);
    for (uint32_t g = 0; st == SHEAF_OK && g < sheaf_pool_groups(pool); g++)
        if (blocks[g].row != SHEAF_ROW_NONE)
            FUZZ_CHECK(sheaf_pool_release(pool, blocks[g], SHEAF_OWNER_HOST) == SHEAF_OK);
    return st == SHEAF_OK;
}

/* Whether the pool took it. */
static bool feed(stream *s, uint8_t how)
{
    sheaf_pool *pool = open_pool(how);
    bool sequences = load(pool, s, how), block = load_block(pool, s);
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    FUZZ_CHECK(sheaf_pool_stats_read(pool, &stats) == SHEAF_OK && stats.blocks_held == 0);
    FUZZ_CHECK(sheaf_pool_check(pool, NULL) == SHEAF_OK);
    FUZZ_CHECK(sheaf_pool_close(pool) == SHEAF_OK);
    sheaf_wire_info info = SHEAF_WIRE_INFO_INIT;
    sheaf_error err = {0};
    sheaf_source from = source_of(s);
    sheaf_status st = sheaf_wire_scan(&from, NULL, NULL, &info, &err);
    check_status(st, &err);
    FUZZ_CHECK(!(sequences && block) && (st == SHEAF_OK || !(sequences || block)));
    FUZZ_CHECK(st != SHEAF_OK || info.n_bytes == s->at);
    return sequences || block;
}

/* A committed stream of the pool's layout; the program runs from the repository's root. */
static size_t read_golden(const char *path, uint8_t *data, size_t capacity)
{
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file != NULL);
    size_t n = fread(data, 1, capacity, file);
    FUZZ_CHECK(n > 0 && n < capacity);
    fclose(file);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    uint8_t how = data[0], golden[2048];
    size_t n = size - 1;
    uint8_t *copy = malloc(n + sizeof golden);
    FUZZ_CHECK(copy != NULL);
    memcpy(copy, data + 1, n);
    if (how & DAMAGE) {
        n = read_golden(golden_of(how), golden, sizeof golden);
        memcpy(copy, golden, n);
        for (size_t i = 1; i + 4 <= size; i += 4)
            copy[(data[i] | (size_t)data[i + 1] << 8) % n] = data[i + 2] ^ data[i + 3];
    }
    if (how & 1) wire_reseal(copy, n);
    stream s = {copy, n, 0, how & PIECES ? 7 : SIZE_MAX};
    bool taken = feed(&s, how);
    FUZZ_CHECK(taken || !(how & DAMAGE) || size > 1); /* nothing has hurt it */
    free(copy);
    return 0;
}
