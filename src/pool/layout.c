/* pool/layout.c - from a pool's options to the sizes and offsets of its blocks. */
#include "pool/layout.h"

#include <string.h>

#include "base/bits.h"
#include "base/hash.h"
#include "base/status.h"

#define DEFAULT_BLOCK_TOKENS   32
#define MAX_BLOCK_TOKENS       1024
#define DEFAULT_SLAB_BLOCKS    32
#define MAX_SLAB_BLOCKS        65536
#define DEFAULT_MAX_SLAB_BYTES (64ull << 20)

/* ---- checks -------------------------------------------------------------------------------- */

static sheaf_status check_counts(const sheaf_pool_options *options, sheaf_error *err)
{
    if (options->n_layers == 0 || options->n_layers > SHEAF_MAX_LAYERS)
        return sheaf__error_set(err, SHEAF_E_LAYOUT, "n_layers is %u; it must be 1 to %d",
                                options->n_layers, SHEAF_MAX_LAYERS);
    if (options->layers == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "layers is null");
    uint32_t tokens = options->block_tokens, blocks = options->slab_blocks;
    if (tokens != 0 && (!sheaf__is_pow2(tokens) || tokens > MAX_BLOCK_TOKENS))
        return sheaf__error_set(err, SHEAF_E_LAYOUT,
                                "block_tokens is %u; it must be a power of two up to %d",
                                tokens, MAX_BLOCK_TOKENS);
    if (blocks != 0 && (!sheaf__is_pow2(blocks) || blocks > MAX_SLAB_BLOCKS))
        return sheaf__error_set(err, SHEAF_E_LAYOUT,
                                "slab_blocks is %u; it must be a power of two up to %d", blocks,
                                MAX_SLAB_BLOCKS);
    return SHEAF_OK;
}

static sheaf_status check_layer(const sheaf_layer *layer, uint32_t i, sheaf_error *err)
{
    if (layer->n_kv_heads == 0)
        return sheaf__error_set(err, SHEAF_E_LAYOUT, "layers[%u].n_kv_heads is 0", i);
    if (layer->key_dim == 0)
        return sheaf__error_set(err, SHEAF_E_LAYOUT, "layers[%u].key_dim is 0", i);
    if (layer->codec_k >= SHEAF_CODEC_COUNT)
        return sheaf__error_set(err, SHEAF_E_CODEC, "layers[%u].codec_k: no codec %u", i,
                                layer->codec_k);
    if (layer->value_dim != 0 && layer->codec_v >= SHEAF_CODEC_COUNT)
        return sheaf__error_set(err, SHEAF_E_CODEC, "layers[%u].codec_v: no codec %u", i,
                                layer->codec_v);
    if (sheaf_codec_is_quantized(layer->codec_k) && layer->key_dim > SHEAF_CODEC_MAX_DIM)
        return sheaf__error_set(
            err, SHEAF_E_CODEC, "layers[%u].codec_k: %s takes %d numbers a row, not %u", i,
            sheaf_codec_name(layer->codec_k), SHEAF_CODEC_MAX_DIM, layer->key_dim);
    if (sheaf_codec_is_quantized(layer->codec_v) && layer->value_dim > SHEAF_CODEC_MAX_DIM)
        return sheaf__error_set(
            err, SHEAF_E_CODEC, "layers[%u].codec_v: %s takes %d numbers a row, not %u", i,
            sheaf_codec_name(layer->codec_v), SHEAF_CODEC_MAX_DIM, layer->value_dim);
    return SHEAF_OK;
}

/* ---- groups, tiles, slabs ------------------------------------------------------------------ */

/* The group of a window, made if none has it yet; SHEAF_MAX_GROUPS when there is no room. */
static uint32_t group_of_window(sheaf__layout *layout, uint32_t window)
{
    uint32_t g = 0;
    while (g < layout->n_groups && layout->groups[g].window != window) g++;
    if (g == layout->n_groups && g < SHEAF_MAX_GROUPS)
        layout->groups[layout->n_groups++].window = window;
    return g;
}

/* Appends one tile at *end (a multiple of the tile alignment) of a block. */
static sheaf_status place_tile(uint32_t codec, uint32_t block_tokens, uint32_t n_heads,
                               uint32_t dim, uint64_t *segment, uint64_t *end, uint64_t *tiles)
{
    SHEAF__TRY(sheaf_codec_segment_bytes(codec, block_tokens, dim, segment));
    uint64_t tile, unpadded;
    if (!sheaf__mul_u64(*segment, n_heads, &tile) || !sheaf__add_u64(*tiles, tile, &unpadded) ||
        !sheaf__add_u64(*end, tile, &tile) ||
        !sheaf__round_up_u64(tile, SHEAF__TILE_ALIGN, end))
        return SHEAF_E_OVERFLOW;
    *tiles = unpadded;
    return SHEAF_OK;
}

/* Places layer i at the end of its group's block; block_bytes is the end so far. */
static sheaf_status place_layer(sheaf__layout *layout, uint32_t i, const sheaf_layer *layer,
                                sheaf_error *err)
{
    SHEAF__TRY(check_layer(layer, i, err));
    uint32_t g = group_of_window(layout, layer->window);
    if (g == SHEAF_MAX_GROUPS)
        return sheaf__error_set(err, SHEAF_E_LAYOUT,
                                "layers[%u].window is the %dth different one; %d are possible",
                                i, SHEAF_MAX_GROUPS + 1, SHEAF_MAX_GROUPS);
    sheaf__group_layout *group = &layout->groups[g];
    sheaf__layer_layout *place = &layout->layers[i];
    place->layer = *layer;
    if (layer->value_dim == 0) place->layer.codec_v = 0;
    place->group = g;
    place->index = group->n_layers++;
    place->k_offset = group->block_bytes;
    sheaf_status st =
        place_tile(layer->codec_k, layout->block_tokens, layer->n_kv_heads, layer->key_dim,
                   &place->k_segment_bytes, &group->block_bytes, &group->tile_bytes);
    place->v_offset = group->block_bytes;
    if (st == SHEAF_OK && layer->value_dim != 0)
        st = place_tile(layer->codec_v, layout->block_tokens, layer->n_kv_heads,
                        layer->value_dim, &place->v_segment_bytes, &group->block_bytes,
                        &group->tile_bytes);
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "layers[%u]: the block's bytes do not fit 64 bits", i);
    return SHEAF_OK;
}

/* The stride from row to row with which a slab of `slab_blocks` rows is whole pages: since both
 * are powers of two, a multiple of their quotient. */
static bool row_stride(uint64_t bytes, uint64_t granularity, uint32_t slab_blocks,
                       uint64_t *stride, uint64_t *slab_bytes)
{
    uint64_t multiple = sheaf__max_u64(SHEAF__TILE_ALIGN, granularity / slab_blocks);
    return sheaf__round_up_u64(bytes, multiple, stride) &&
           sheaf__mul_u64(*stride, slab_blocks, slab_bytes);
}

static sheaf_status size_slabs(sheaf__layout *layout, uint32_t g, uint32_t wanted,
                               sheaf_error *err)
{
    sheaf__group_layout *group = &layout->groups[g];
    uint32_t blocks = wanted != 0 ? wanted : DEFAULT_SLAB_BLOCKS;
    uint64_t stride = 0, bytes = 0;
    bool fits = row_stride(group->block_bytes, layout->granularity, blocks, &stride, &bytes);
    while (wanted == 0 && blocks > 1 && (!fits || bytes > DEFAULT_MAX_SLAB_BYTES)) {
        blocks /= 2;
        fits = row_stride(group->block_bytes, layout->granularity, blocks, &stride, &bytes);
    }
    if (!fits)
        return sheaf__error_set(err, SHEAF_E_OVERFLOW,
                                "group %u: a slab of %u blocks does not fit 64 bits", g,
                                blocks);
    group->slab_blocks = blocks;
    group->slab_shift = sheaf__log2(blocks);
    group->block_bytes = stride;
    group->slab_bytes = bytes;
    return SHEAF_OK;
}

/* ---- fingerprint --------------------------------------------------------------------------- */

static unsigned char *put_field(unsigned char *p, char tag, uint32_t value)
{
    *p++ = (unsigned char)tag;
    for (int i = 0; i < 4; i++) *p++ = (unsigned char)(value >> (8 * i));
    return p;
}

/* Each layer's record is hashed with the digest so far as its seed: the records have one length,
 * and the first one carries their number. */
static uint64_t fingerprint(const sheaf__layout *layout)
{
    static const char version[] = "sheaf layout 1";
    unsigned char record[64], *end = record;
    memcpy(end, version, sizeof version);
    end = put_field(end + sizeof version, 't', layout->block_tokens);
    end = put_field(end, 'n', layout->n_layers);
    uint64_t digest = sheaf__hash64(record, (uint64_t)(end - record), 0);
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        const sheaf_layer *layer = &layout->layers[i].layer;
        end = put_field(record, 'h', layer->n_kv_heads);
        end = put_field(end, 'k', layer->key_dim);
        end = put_field(end, 'v', layer->value_dim);
        end = put_field(end, 'w', layer->window);
        end = put_field(end, 'K', layer->codec_k);
        end = put_field(end, 'V', layer->codec_v);
        digest = sheaf__hash64(record, (uint64_t)(end - record), digest);
    }
    return digest;
}

/* ---- whole --------------------------------------------------------------------------------- */

static sheaf_status place_all(sheaf__layout *layout, const sheaf_pool_options *options,
                              sheaf_error *err)
{
    for (uint32_t i = 0; i < layout->n_layers; i++)
        SHEAF__TRY(place_layer(layout, i, &options->layers[i], err));
    for (uint32_t g = 0; g < layout->n_groups; g++)
        SHEAF__TRY(size_slabs(layout, g, options->slab_blocks, err));
    return SHEAF_OK;
}

sheaf_status sheaf__layout_create(const sheaf_pool_options *options, uint64_t granularity,
                                  sheaf__memory *memory, sheaf__layout *out, sheaf_error *err)
{
    SHEAF__TRY(check_counts(options, err));
    sheaf__layout layout = {.n_layers = options->n_layers, .granularity = granularity};
    layout.block_tokens = options->block_tokens ? options->block_tokens : DEFAULT_BLOCK_TOKENS;
    layout.block_shift = sheaf__log2(layout.block_tokens);
    layout.layers = sheaf__memory_alloc(memory, layout.n_layers, sizeof layout.layers[0]);
    if (layout.layers == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory for %u layers",
                                layout.n_layers);
    sheaf_status st = place_all(&layout, options, err);
    if (st != SHEAF_OK) {
        sheaf__layout_destroy(&layout, memory);
        return st;
    }
    layout.fingerprint = fingerprint(&layout);
    *out = layout;
    return SHEAF_OK;
}

void sheaf__layout_destroy(sheaf__layout *layout, sheaf__memory *memory)
{
    sheaf__memory_free(memory, layout->layers, layout->n_layers, sizeof layout->layers[0]);
    layout->layers = NULL;
}

uint64_t sheaf__layout_slab_bytes(const sheaf__layout *layout, uint32_t group, uint64_t n_rows)
{
    uint64_t mask = layout->granularity - 1;
    return (n_rows * layout->groups[group].block_bytes + mask) & ~mask;
}
