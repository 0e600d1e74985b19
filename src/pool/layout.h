/* pool/layout.h - what a block is made of: sizes and offsets, all bytes real and 64-bit.
 *
 * Owns: the rules by which layers form groups, tiles form blocks and blocks form slabs, and the
 * fingerprint. Does not own: memory other than the layer array it allocates.
 *
 *   block of a group:   | layer a: K tile, V tile | layer b: K tile, V tile | ... | padding |
 *                         ^ every tile starts at a multiple of 64 bytes        ^ block_bytes
 */
#ifndef SHEAF_POOL_LAYOUT_H
#define SHEAF_POOL_LAYOUT_H

#include "base/memory.h"
#include "sheaf/pool.h"

#define SHEAF__TILE_ALIGN 64

typedef struct sheaf__layer_layout {
    sheaf_layer layer;
    uint32_t group;
    uint32_t index; /* among the layers of its group, in order */
    uint64_t k_offset;
    uint64_t v_offset;
    uint64_t k_segment_bytes; /* one head: also the stride from head to head */
    uint64_t v_segment_bytes;
} sheaf__layer_layout;

typedef struct sheaf__group_layout {
    uint32_t n_layers;
    uint32_t window;
    uint32_t slab_blocks;
    uint32_t slab_shift; /* slab_blocks == 1 << slab_shift */
    uint64_t tile_bytes; /* of all tiles of a block, unpadded */
    uint64_t block_bytes;
    uint64_t slab_bytes;
} sheaf__group_layout;

typedef struct sheaf__layout {
    uint32_t n_layers;
    uint32_t n_groups;
    uint32_t block_tokens;
    uint32_t block_shift; /* block_tokens == 1 << block_shift */
    uint64_t granularity; /* of the slab memory */
    uint64_t fingerprint;
    sheaf__layer_layout *layers; /* [n_layers] */
    sheaf__group_layout groups[SHEAF_MAX_GROUPS];
} sheaf__layout;

/* Fills *out from complete options (see sheaf_pool_open for the statuses). `granularity` is a power
 * of two of at least SHEAF__TILE_ALIGN. Allocates the layer array from `memory`. */
sheaf_status sheaf__layout_create(const sheaf_pool_options *options, uint64_t granularity,
                                  sheaf__memory *memory, sheaf__layout *out, sheaf_error *err);
void sheaf__layout_destroy(sheaf__layout *layout, sheaf__memory *memory);

/* Bytes of a slab of n_rows blocks, a multiple of the granularity. n_rows <= slab_blocks. */
uint64_t sheaf__layout_slab_bytes(const sheaf__layout *layout, uint32_t group, uint64_t n_rows);

#endif
