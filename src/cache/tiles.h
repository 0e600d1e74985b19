/* cache/tiles.h - writing and reading the tiles that a view describes.
 *
 * Owns: the way from a caller's arrays into encoded tiles and back, one text for paged and
 * dense views, so that equal numbers give equal bytes in both. Does not own: who may write
 * where.
 */
#ifndef SHEAF_CACHE_TILES_H
#define SHEAF_CACHE_TILES_H

#include "pool/pool.h"
#include "sheaf/cache.h"

/* Compares a source of n positions with the layer. SHEAF_E_INVALID: a null where numbers should
 * be, or no struct_size. SHEAF_E_SHAPE: heads, dimensions, dtype or order. */
sheaf_status sheaf__tiles_check_source(const sheaf_layer *layer, uint32_t n,
                                       const sheaf_kv_source *src);

/* Encodes positions [pos, pos + n); the view's rows cover them and their memory may be written.
 * src: as sheaf__tiles_check_source has accepted it. pool: whose rows they are, through whose
 * device they are then written; null: they are memory like any other. SHEAF_E_DEVICE. */
SHEAF_WARN sheaf_status sheaf__tiles_write(const sheaf_kv_view *view, uint32_t pos, uint32_t n,
                                           const sheaf_kv_source *src, const sheaf_pool *pool);

/* Decodes [begin, end): k: [n_kv_heads, end - begin, key_dim], v: [n_kv_heads, end - begin,
 * value_dim]; either may be null. pool: as above. SHEAF_E_DEVICE. */
SHEAF_WARN sheaf_status sheaf__tiles_read(const sheaf_kv_view *view, uint32_t begin,
                                          uint32_t end, float *k, float *v,
                                          const sheaf_pool *pool);

/* Whether the two arrays have room for `visible` positions of a layer; capacities in floats, a
 * null array needs none. SHEAF_E_RANGE. */
sheaf_status sheaf__tiles_check_room(const sheaf_layer *layer, uint32_t visible, const float *k,
                                     uint64_t k_capacity, const float *v, uint64_t v_capacity);

#endif
