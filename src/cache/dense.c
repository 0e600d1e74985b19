/* cache/dense.c - the cache that engines usually have: one contiguous buffer a sequence.
 *
 * A layer's buffer:
 *
 *     data -> | K head 0: segments 0 .. c-1 | K head 1 | ... | padding | V head 0 | ...
 *
 * with c = capacity / block_tokens. V starts at a multiple of 64 bytes, as a tile does.
 */
#include "cache/dense.h"

#include <string.h>

#include "cache/progress.h"
#include "cache/tiles.h"

#define DEFAULT_CAPACITY 256 /* positions */
#define DATA_ALIGN       64  /* a tile's */

/* One layer's memory for a number of blocks. */
typedef struct buffer {
    unsigned char *data; /* [bytes] */
    uint64_t blocks;
    uint64_t bytes;
    uint64_t v_offset;
} buffer;

typedef struct dense_layer {
    sheaf_layer shape;
    uint64_t k_segment_bytes;
    uint64_t v_segment_bytes;
    buffer now;
    buffer next; /* the larger one, while growing */
} dense_layer;

struct sheaf__dense {
    sheaf__memory *memory;
    sheaf__progress progress;
    uint32_t block_tokens;
    uint32_t capacity_blocks;
    uint64_t bytes_copied;
    int32_t *tokens;     /* [capacity] */
    dense_layer *layers; /* [n_layers] */
};

static void buffer_free(sheaf__memory *memory, buffer *b)
{
    sheaf__memory_free_aligned(memory, b->data, b->bytes, 1, DATA_ALIGN);
    *b = (buffer){0};
}

static sheaf_status buffer_alloc(sheaf__memory *memory, const dense_layer *layer,
                                 uint64_t blocks, buffer *out)
{
    buffer b = {.blocks = blocks};
    uint64_t heads = layer->shape.n_kv_heads, k_bytes, v_bytes;
    if (!sheaf__mul_u64(layer->k_segment_bytes, blocks * heads, &k_bytes) ||
        !sheaf__round_up_u64(k_bytes, DATA_ALIGN, &b.v_offset) ||
        !sheaf__mul_u64(layer->v_segment_bytes, blocks * heads, &v_bytes) ||
        !sheaf__add_u64(b.v_offset, v_bytes, &b.bytes))
        return SHEAF_E_OVERFLOW;
    b.data = sheaf__memory_alloc_aligned(memory, b.bytes, 1, DATA_ALIGN);
    if (b.data == NULL) return SHEAF_E_NO_MEMORY;
#if SHEAF_CHECK >= 2
    memset(b.data, 0xff, b.bytes); /* NaN in every raw codec */
#endif
    *out = b;
    return SHEAF_OK;
}

/* Copies the first `used` blocks of every head; returns the bytes. */
static uint64_t buffer_copy(const dense_layer *layer, const buffer *from, const buffer *to,
                            uint64_t used)
{
    uint64_t k = layer->k_segment_bytes, v = layer->v_segment_bytes;
    for (uint64_t head = 0; used != 0 && head < layer->shape.n_kv_heads; head++) {
        memcpy(to->data + head * to->blocks * k, from->data + head * from->blocks * k,
               used * k);
        memcpy(to->data + to->v_offset + head * to->blocks * v,
               from->data + from->v_offset + head * from->blocks * v, used * v);
    }
    return layer->shape.n_kv_heads * used * (k + v);
}

/* Allocates every layer's next buffer, or none. */
static sheaf_status alloc_next(sheaf__dense *dense, uint64_t blocks)
{
    sheaf_status st = SHEAF_OK;
    for (uint32_t i = 0; i < dense->progress.n_layers && st == SHEAF_OK; i++)
        st = buffer_alloc(dense->memory, &dense->layers[i], blocks, &dense->layers[i].next);
    for (uint32_t i = 0; i < dense->progress.n_layers && st != SHEAF_OK; i++)
        buffer_free(dense->memory, &dense->layers[i].next);
    return st;
}

/* Moves to buffers of `blocks` blocks. All or nothing. */
static sheaf_status resize(sheaf__dense *dense, uint64_t blocks)
{
    uint64_t capacity = blocks * dense->block_tokens;
    int32_t *tokens = sheaf__memory_alloc(dense->memory, capacity, sizeof *tokens);
    if (tokens == NULL) return SHEAF_E_NO_MEMORY;
    sheaf_status st = alloc_next(dense, blocks);
    if (st != SHEAF_OK) {
        sheaf__memory_free(dense->memory, tokens, capacity, sizeof *tokens);
        return st;
    }
    if (dense->progress.length != 0)
        memcpy(tokens, dense->tokens, dense->progress.length * sizeof *tokens);
    sheaf__memory_free(dense->memory, dense->tokens,
                       (uint64_t)dense->capacity_blocks * dense->block_tokens, sizeof *tokens);
    dense->tokens = tokens;
    dense->capacity_blocks = (uint32_t)blocks;
    uint32_t held = dense->progress.length + dense->progress.reserved;
    uint32_t used = sheaf__blocks_of(held, dense->block_tokens);
    for (uint32_t i = 0; i < dense->progress.n_layers; i++) {
        dense_layer *layer = &dense->layers[i];
        dense->bytes_copied += buffer_copy(layer, &layer->now, &layer->next, used);
        buffer_free(dense->memory, &layer->now);
        layer->now = layer->next;
        layer->next = (buffer){0};
    }
    return SHEAF_OK;
}

/* Takes over the layers' shapes and the sizes that follow from them. */
static sheaf_status set_layers(sheaf__dense *dense, const sheaf_layer *layers)
{
    for (uint32_t i = 0; i < dense->progress.n_layers; i++) {
        dense_layer *layer = &dense->layers[i];
        layer->shape = layers[i];
        if (layers[i].n_kv_heads == 0 || layers[i].key_dim == 0) return SHEAF_E_INVALID;
        SHEAF__TRY(sheaf_codec_segment_bytes(layers[i].codec_k, dense->block_tokens,
                                             layers[i].key_dim, &layer->k_segment_bytes));
        if (layers[i].value_dim != 0)
            SHEAF__TRY(sheaf_codec_segment_bytes(layers[i].codec_v, dense->block_tokens,
                                                 layers[i].value_dim, &layer->v_segment_bytes));
    }
    return SHEAF_OK;
}

sheaf_status sheaf__dense_create(sheaf__memory *memory, const sheaf_layer *layers,
                                 uint32_t n_layers, uint32_t block_tokens, uint32_t capacity,
                                 sheaf__dense **out)
{
    if (memory == NULL || layers == NULL || out == NULL || n_layers == 0 ||
        n_layers > SHEAF_MAX_LAYERS || !sheaf__is_pow2(block_tokens))
        return SHEAF_E_INVALID;
    if (capacity > INT32_MAX) return SHEAF_E_OVERFLOW;
    sheaf__dense *dense = sheaf__memory_alloc(memory, 1, sizeof *dense);
    if (dense == NULL) return SHEAF_E_NO_MEMORY;
    dense->memory = memory;
    dense->block_tokens = block_tokens;
    dense->progress.n_layers = n_layers;
    dense->layers = sheaf__memory_alloc(memory, n_layers, sizeof *dense->layers);
    dense->progress.written =
        sheaf__memory_alloc(memory, n_layers, sizeof *dense->progress.written);
    sheaf_status st = SHEAF_E_NO_MEMORY;
    if (dense->layers != NULL && dense->progress.written != NULL) {
        st = set_layers(dense, layers);
        uint32_t first = capacity != 0 ? capacity : DEFAULT_CAPACITY;
        if (st == SHEAF_OK) st = resize(dense, sheaf__blocks_of(first, block_tokens));
    }
    if (st != SHEAF_OK) {
        sheaf__dense_destroy(dense);
        return st;
    }
    *out = dense;
    return SHEAF_OK;
}

void sheaf__dense_destroy(sheaf__dense *dense)
{
    if (dense == NULL) return;
    sheaf__memory *memory = dense->memory;
    uint32_t n_layers = dense->progress.n_layers;
    for (uint32_t i = 0; dense->layers != NULL && i < n_layers; i++)
        buffer_free(memory, &dense->layers[i].now);
    sheaf__memory_free(memory, dense->tokens,
                       (uint64_t)dense->capacity_blocks * dense->block_tokens,
                       sizeof *dense->tokens);
    sheaf__memory_free(memory, dense->progress.written, n_layers,
                       sizeof *dense->progress.written);
    sheaf__memory_free(memory, dense->layers, n_layers, sizeof *dense->layers);
    sheaf__memory_free(memory, dense, 1, sizeof *dense);
}

sheaf_status sheaf__dense_extend(sheaf__dense *dense, uint32_t n)
{
    uint32_t end;
    SHEAF__TRY(sheaf__progress_end(&dense->progress, n, &end));
    uint64_t need = sheaf__blocks_of(end, dense->block_tokens);
    uint64_t most = sheaf__blocks_of(INT32_MAX, dense->block_tokens);
    uint64_t doubled = sheaf__min_u64(2ull * dense->capacity_blocks, most);
    if (need > dense->capacity_blocks) SHEAF__TRY(resize(dense, sheaf__max_u64(need, doubled)));
    dense->progress.reserved = end - dense->progress.length;
    return SHEAF_OK;
}

/* The layer as a view whose n_tokens is `end`. */
static sheaf_kv_view view_to(const sheaf__dense *dense, uint32_t index, uint32_t end)
{
    const dense_layer *layer = &dense->layers[index];
    return (sheaf_kv_view){
        .base = layer->now.data,
        .row_stride_k = layer->k_segment_bytes,
        .row_stride_v = layer->v_segment_bytes,
        .v_offset = layer->now.v_offset,
        .k_head_stride = layer->k_segment_bytes * dense->capacity_blocks,
        .v_head_stride = layer->v_segment_bytes * dense->capacity_blocks,
        .n_rows = sheaf__blocks_of(end, dense->block_tokens),
        .block_tokens = dense->block_tokens,
        .n_tokens = end,
        .n_kv_heads = layer->shape.n_kv_heads,
        .key_dim = layer->shape.key_dim,
        .value_dim = layer->shape.value_dim,
        .window = layer->shape.window,
        .codec_k = layer->shape.codec_k,
        .codec_v = layer->shape.codec_v,
    };
}

sheaf_status sheaf__dense_write(sheaf__dense *dense, uint32_t layer, uint32_t pos, uint32_t n,
                                const sheaf_kv_source *src)
{
    if (layer >= dense->progress.n_layers) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__tiles_check_source(&dense->layers[layer].shape, n, src));
    SHEAF__TRY(sheaf__progress_may_write(&dense->progress, layer, pos, n));
    if (n == 0) return SHEAF_OK;
    sheaf_kv_view view = view_to(dense, layer, pos + n);
    SHEAF__TRY(sheaf__tiles_write(&view, pos, n, src, NULL));
    sheaf__progress_wrote(&dense->progress, layer, pos + n);
    return SHEAF_OK;
}

sheaf_status sheaf__dense_commit(sheaf__dense *dense, uint32_t n, const int32_t *tokens)
{
    SHEAF__TRY(sheaf__progress_may_commit(&dense->progress, n));
    uint32_t length = dense->progress.length;
    for (uint32_t i = 0; i < n; i++)
        dense->tokens[length + i] = tokens != NULL ? tokens[i] : SHEAF_TOKEN_NONE;
    sheaf__progress_settle(&dense->progress, length + n);
    return SHEAF_OK;
}

sheaf_status sheaf__dense_truncate(sheaf__dense *dense, uint32_t length)
{
    if (length > dense->progress.length) return SHEAF_E_RANGE;
    sheaf__progress_settle(&dense->progress, length);
    return SHEAF_OK;
}

sheaf_status sheaf__dense_fork(const sheaf__dense *dense, sheaf__dense **out)
{
    if (dense->progress.reserved != 0) return SHEAF_E_BUSY;
    uint32_t n_layers = dense->progress.n_layers;
    sheaf_layer *shapes = sheaf__memory_alloc(dense->memory, n_layers, sizeof *shapes);
    if (shapes == NULL) return SHEAF_E_NO_MEMORY;
    for (uint32_t i = 0; i < n_layers; i++) shapes[i] = dense->layers[i].shape;
    sheaf__dense *twin = NULL;
    uint32_t length = dense->progress.length;
    sheaf_status st = sheaf__dense_create(dense->memory, shapes, n_layers, dense->block_tokens,
                                          length, &twin);
    sheaf__memory_free(dense->memory, shapes, n_layers, sizeof *shapes);
    if (st != SHEAF_OK) return st;
    for (uint32_t i = 0; i < n_layers; i++)
        buffer_copy(&dense->layers[i], &dense->layers[i].now, &twin->layers[i].now,
                    sheaf__blocks_of(length, dense->block_tokens));
    memcpy(twin->tokens, dense->tokens, length * sizeof *twin->tokens);
    sheaf__progress_settle(&twin->progress, length);
    *out = twin;
    return SHEAF_OK;
}

sheaf_status sheaf__dense_view(const sheaf__dense *dense, uint32_t layer, sheaf_kv_view *out)
{
    if (layer >= dense->progress.n_layers) return SHEAF_E_INVALID;
    *out = view_to(dense, layer, dense->progress.written[layer]);
    return SHEAF_OK;
}

sheaf_status sheaf__dense_gather_f32(const sheaf__dense *dense, uint32_t layer, float *k,
                                     uint64_t k_capacity, float *v, uint64_t v_capacity)
{
    if (layer >= dense->progress.n_layers) return SHEAF_E_INVALID;
    const sheaf_layer *shape = &dense->layers[layer].shape;
    uint32_t end = dense->progress.length;
    uint32_t begin = sheaf__visible_begin(end, shape->window);
    SHEAF__TRY(sheaf__tiles_check_room(shape, end - begin, k, k_capacity, v, v_capacity));
    sheaf_kv_view view = view_to(dense, layer, end);
    return sheaf__tiles_read(&view, begin, end, k, v, NULL);
}

uint32_t sheaf__dense_length(const sheaf__dense *dense)
{
    return dense->progress.length;
}

uint32_t sheaf__dense_reserved(const sheaf__dense *dense)
{
    return dense->progress.reserved;
}

const int32_t *sheaf__dense_tokens(const sheaf__dense *dense)
{
    return dense->tokens;
}

uint64_t sheaf__dense_bytes(const sheaf__dense *dense)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < dense->progress.n_layers; i++) bytes += dense->layers[i].now.bytes;
    return bytes;
}

uint64_t sheaf__dense_bytes_copied(const sheaf__dense *dense)
{
    return dense->bytes_copied;
}
