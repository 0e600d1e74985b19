/* cache/gather.c - what a sequence holds, copied out: encoded tiles, or f32 numbers.
 *
 * Only committed positions that the last one sees. A raw gather takes the blocks that hold
 * them, in order, by maximal runs of adjacent rows:
 *
 *     rows 7 8 9 | 3 4 | 12     three runs
 *
 * The source of a run is one stride; where a tile is the whole block it is one span.
 */
#include "cache/sequence.h"
#include "cache/tiles.h"

/* One kind of tile of a layer. */
typedef struct tiles {
    uint64_t offset; /* in the block */
    uint64_t bytes;
} tiles;

/* Copies the tiles of n adjacent rows, the first at `from`. */
static sheaf_status copy_run(const sheaf_pool *pool, unsigned char *to,
                             const unsigned char *from, uint32_t n, uint64_t row_stride,
                             const tiles *t)
{
    if (t->bytes == row_stride)
        return sheaf__pool_read(pool, to, from + t->offset, n * t->bytes);
    for (uint32_t i = 0; i < n; i++)
        SHEAF__TRY(sheaf__pool_read(pool, to + i * t->bytes, from + i * row_stride + t->offset,
                                    t->bytes));
    return SHEAF_OK;
}

/* Rows of rows[0 .. n) that are adjacent to the first, itself included. */
static uint32_t run_length(const uint32_t *rows, uint32_t n)
{
    uint32_t run = 1;
    while (run < n && rows[run] == rows[run - 1] + 1) run++;
    return run;
}

sheaf_status sheaf_sequence_gather_raw(const sheaf_sequence *seq, uint32_t layer, void *k,
                                       uint64_t k_capacity, void *v, uint64_t v_capacity,
                                       sheaf_gather_info *info)
{
    uint32_t begin, end;
    SHEAF__TRY(sheaf_sequence_visible(seq, layer, &begin, &end));
    sheaf_kv_view view = sheaf__sequence_view_to(seq, layer, end);
    uint32_t first = begin / view.block_tokens;
    const uint32_t *rows = view.rows + (first - view.first_block);
    tiles key = {view.k_offset, view.n_kv_heads * view.k_head_stride};
    tiles value = {view.v_offset, view.n_kv_heads * view.v_head_stride};
    sheaf_gather_info full = SHEAF_GATHER_INFO_INIT;
    full.n_blocks = begin < end ? sheaf__blocks_of(end, view.block_tokens) - first : 0;
    full.first_slot = begin % view.block_tokens;
    full.k_bytes = full.n_blocks * key.bytes;
    full.v_bytes = full.n_blocks * value.bytes;
    if (k != NULL && full.k_bytes > k_capacity) return SHEAF_E_RANGE;
    if (v != NULL && full.v_bytes > v_capacity) return SHEAF_E_RANGE;
    if (info != NULL && info->struct_size < sizeof info->struct_size) return SHEAF_E_INVALID;
    for (uint32_t i = 0, run; i < full.n_blocks; i += run, full.n_runs++) {
        run = run_length(rows + i, full.n_blocks - i);
        const unsigned char *from = view.base + rows[i] * view.row_stride_k;
        if (k != NULL)
            SHEAF__TRY(copy_run(seq->pool, (unsigned char *)k + i * key.bytes, from, run,
                                view.row_stride_k, &key));
        if (v != NULL)
            SHEAF__TRY(copy_run(seq->pool, (unsigned char *)v + i * value.bytes, from, run,
                                view.row_stride_v, &value));
    }
    return info != NULL ? sheaf__struct_give(info, &full, sizeof full) : SHEAF_OK;
}

sheaf_status sheaf_sequence_gather_f32(const sheaf_sequence *seq, uint32_t layer, float *k,
                                       uint64_t k_capacity, float *v, uint64_t v_capacity)
{
    uint32_t begin, end;
    SHEAF__TRY(sheaf_sequence_visible(seq, layer, &begin, &end));
    const sheaf_layer *shape = &sheaf__pool_layout(seq->pool)->layers[layer].layer;
    SHEAF__TRY(sheaf__tiles_check_room(shape, end - begin, k, k_capacity, v, v_capacity));
    sheaf_kv_view view = sheaf__sequence_view_to(seq, layer, end);
    return sheaf__tiles_read(&view, begin, end, k, v, seq->pool);
}
