/* cache/tiles.c - writing and reading the tiles that a view describes.
 *
 * K and V take the same way, one after the other; a `side` is what differs between them.
 * Positions are cut at block boundaries; inside a block each head's positions are one run of
 * its segment, so a run of n positions costs one codec call per head and block, whatever the
 * source's order:
 *
 *     token-major  [n, n_kv_heads, dim]   head h: n rows of dim, n_kv_heads * dim apart
 *     head-major   [n_kv_heads, n, dim]   head h: n rows of dim, dim apart
 *
 * Heads outside and positions inside is the tile's own order, so the writes are sequential.
 */
#include "cache/tiles.h"

#include <string.h>

#include "base/bits.h"
#include "base/status.h"
#include "codec/codec.h"

/* K or V of a view. */
typedef struct side {
    uint32_t codec;
    uint32_t dim;
    uint64_t offset;
    uint64_t row_stride;
    uint64_t head_stride;
} side;

static side side_k(const sheaf_kv_view *view)
{
    return (side){view->codec_k, view->key_dim, view->k_offset, view->row_stride_k,
                  view->k_head_stride};
}

static side side_v(const sheaf_kv_view *view)
{
    return (side){view->codec_v, view->value_dim, view->v_offset, view->row_stride_v,
                  view->v_head_stride};
}

/* Byte offset from the view's base to head 0's segment of the block that holds a position. */
static uint64_t segment_offset(const sheaf_kv_view *view, const side *s, uint32_t pos)
{
    uint32_t index = pos / view->block_tokens - view->first_block;
    SHEAF__ASSERT(pos / view->block_tokens >= view->first_block);
    uint64_t row = view->rows != NULL ? view->rows[index] : index;
    return s->offset + row * s->row_stride;
}

static uint32_t dtype_bytes(uint32_t dtype)
{
    return dtype == SHEAF_DTYPE_F32 ? 4 : 2;
}

sheaf_status sheaf__tiles_check_source(const sheaf_layer *layer, uint32_t n,
                                       const sheaf_kv_source *src)
{
    if (src == NULL || src->struct_size < sizeof *src) return SHEAF_E_INVALID;
    if (src->n_kv_heads != layer->n_kv_heads || src->key_dim != layer->key_dim ||
        src->value_dim != layer->value_dim)
        return SHEAF_E_SHAPE;
    if (src->dtype > SHEAF_DTYPE_BF16 || src->order > SHEAF_HEAD_MAJOR) return SHEAF_E_SHAPE;
    if (n != 0 && src->k == NULL) return SHEAF_E_INVALID;
    if (n != 0 && src->v == NULL && layer->value_dim != 0) return SHEAF_E_INVALID;
    return SHEAF_OK;
}

/* ---- slab memory that is not the host's ---------------------------------------------------- */

/* Where a tile is worked on: the row itself, or the pool's staging, from where it travels. */
static bool is_host(const sheaf_pool *pool)
{
    return pool == NULL || sheaf__pool_is_host(pool);
}

/* Copies slots [slot, slot + n) of a staged tile to where it belongs: the whole tile at once, or of each
 * head its rows and what the codec keeps beside them. */
static sheaf_status unload(const sheaf_pool *pool, const sheaf_kv_view *view, const side *s,
                           unsigned char *tile, uint32_t slot, uint32_t n)
{
    if (n == view->block_tokens)
        return sheaf__pool_write(pool, tile, pool->staging, view->n_kv_heads * s->head_stride);
    uint64_t row = sheaf__codec_row_bytes(s->codec, s->dim);
    uint64_t scales = view->block_tokens * row;
    for (uint32_t head = 0; head < view->n_kv_heads; head++) {
        uint64_t at = head * s->head_stride + slot * row;
        SHEAF__TRY(sheaf__pool_write(pool, tile + at, pool->staging + at, n * row));
        if (!sheaf__codec_is_quantized(s->codec)) continue;
        at = head * s->head_stride + scales + slot * sizeof(float);
        SHEAF__TRY(sheaf__pool_write(pool, tile + at, pool->staging + at, n * sizeof(float)));
    }
    return SHEAF_OK;
}

/* ---- both ways ----------------------------------------------------------------------------- */

static sheaf_status write_side(const sheaf_kv_view *view, const side *s, uint32_t pos,
                               uint32_t n, const sheaf_kv_source *src,
                               const unsigned char *numbers, const sheaf_pool *pool)
{
    uint64_t size = dtype_bytes(src->dtype);
    bool token_major = src->order == SHEAF_TOKEN_MAJOR;
    uint64_t stride = token_major ? (uint64_t)view->n_kv_heads * s->dim : s->dim;
    uint64_t head_step = (token_major ? s->dim : (uint64_t)n * s->dim) * size;
    /* A token's rows in their own type, as decoding appends them, cost less than a call each. */
    const bool plain = s->codec == src->dtype;
    const uint64_t row = s->dim * size;
    for (uint32_t done = 0; done < n;) {
        uint32_t slot = (pos + done) % view->block_tokens;
        uint32_t run = (uint32_t)sheaf__min_u64(view->block_tokens - slot, n - done);
        /* The view is read-only for kernels; here its holder writes its own blocks. */
        unsigned char *tile =
            (unsigned char *)(uintptr_t)view->base + segment_offset(view, s, pos + done);
        unsigned char *segment = is_host(pool) ? tile : pool->staging;
        const unsigned char *from = numbers + done * stride * size;
        for (uint32_t head = 0; head < view->n_kv_heads; head++) {
            if (plain && run == 1) {
                memcpy(segment + slot * row, from, row);
            } else {
                sheaf_status st =
                    sheaf_codec_encode(s->codec, segment, view->block_tokens, s->dim, slot, run,
                                       src->dtype, from, stride);
                SHEAF__ASSERT(st == SHEAF_OK);
                (void)st;
            }
            segment += s->head_stride;
            from += head_step;
        }
        if (!is_host(pool)) SHEAF__TRY(unload(pool, view, s, tile, slot, run));
        done += run;
    }
    return SHEAF_OK;
}

sheaf_status sheaf__tiles_write(const sheaf_kv_view *view, uint32_t pos, uint32_t n,
                                const sheaf_kv_source *src, const sheaf_pool *pool)
{
    side k = side_k(view), v = side_v(view);
    SHEAF__TRY(write_side(view, &k, pos, n, src, src->k, pool));
    if (view->value_dim != 0) SHEAF__TRY(write_side(view, &v, pos, n, src, src->v, pool));
    return SHEAF_OK;
}

static sheaf_status read_side(const sheaf_kv_view *view, const side *s, uint32_t begin,
                              uint32_t end, float *to, const sheaf_pool *pool)
{
    uint64_t head_step = (uint64_t)(end - begin) * s->dim;
    for (uint32_t pos = begin; pos < end;) {
        uint32_t slot = pos % view->block_tokens;
        uint32_t run = (uint32_t)sheaf__min_u64(view->block_tokens - slot, end - pos);
        const unsigned char *segment = view->base + segment_offset(view, s, pos);
        if (!is_host(pool)) {
            uint64_t bytes = view->n_kv_heads * s->head_stride;
            SHEAF__TRY(sheaf__pool_read(pool, pool->staging, segment, bytes));
            segment = pool->staging;
        }
        for (uint32_t head = 0; head < view->n_kv_heads; head++) {
            sheaf_status st =
                sheaf_codec_decode(s->codec, segment, view->block_tokens, s->dim, slot, run,
                                   to + head * head_step + (uint64_t)(pos - begin) * s->dim);
            SHEAF__ASSERT(st == SHEAF_OK);
            (void)st;
            segment += s->head_stride;
        }
        pos += run;
    }
    return SHEAF_OK;
}

sheaf_status sheaf__tiles_read(const sheaf_kv_view *view, uint32_t begin, uint32_t end,
                               float *k, float *v, const sheaf_pool *pool)
{
    side key = side_k(view), value = side_v(view);
    if (k != NULL) SHEAF__TRY(read_side(view, &key, begin, end, k, pool));
    if (v != NULL && view->value_dim != 0)
        SHEAF__TRY(read_side(view, &value, begin, end, v, pool));
    return SHEAF_OK;
}

/* Whether heads * visible * dim fits 64 bits and `capacity`. */
static bool fits(uint32_t n_kv_heads, uint32_t visible, uint32_t dim, uint64_t capacity)
{
    uint64_t need;
    return sheaf__mul_u64((uint64_t)n_kv_heads * visible, dim, &need) && need <= capacity;
}

sheaf_status sheaf__tiles_check_room(const sheaf_layer *layer, uint32_t visible, const float *k,
                                     uint64_t k_capacity, const float *v, uint64_t v_capacity)
{
    if (k != NULL && !fits(layer->n_kv_heads, visible, layer->key_dim, k_capacity))
        return SHEAF_E_RANGE;
    if (v != NULL && !fits(layer->n_kv_heads, visible, layer->value_dim, v_capacity))
        return SHEAF_E_RANGE;
    return SHEAF_OK;
}
