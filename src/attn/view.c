/* attn/view.c - views checked against the plan, and positions turned into addresses.
 *
 * All arithmetic on bytes is in 64 bits: a view may span any amount of memory.
 */
#include <string.h>

#include "attn/fetch.h"
#include "attn/paths.h"
#include "base/bits.h"
#include "base/status.h"
#include "codec/codec.h"

#define MAX_BLOCK_TOKENS 1024

sheaf_status sheaf__attn_view_shape(const sheaf_attn_plan *plan, const sheaf_kv_view *view)
{
    const sheaf_attn_options *o = &plan->options;
    if (view->n_kv_heads != o->n_kv_heads || view->key_dim != o->key_dim ||
        view->value_dim != o->value_dim)
        return SHEAF_E_PLAN;
    if (view->codec_k >= SHEAF_CODEC_COUNT || view->codec_v >= SHEAF_CODEC_COUNT)
        return SHEAF_E_PLAN;
    if (!sheaf__is_pow2(view->block_tokens) || view->block_tokens > MAX_BLOCK_TOKENS)
        return SHEAF_E_PLAN;
    return SHEAF_OK;
}

sheaf_status sheaf__attn_view_check(const sheaf_attn_plan *plan,
                                    const sheaf__attn_planned *planned,
                                    const sheaf_kv_view *view)
{
    SHEAF__TRY(sheaf__attn_view_shape(plan, view));
    if (view->n_tokens != planned->item.n_tokens) return SHEAF_E_PLAN;
    if (planned->seen.lo == planned->seen.hi) return SHEAF_OK;
    uint64_t begin = (uint64_t)view->first_block * view->block_tokens;
    uint64_t end = ((uint64_t)view->first_block + view->n_rows) * view->block_tokens;
    if (view->base == NULL || planned->seen.lo < begin || planned->seen.hi > end)
        return SHEAF_E_PLAN;
    return SHEAF_OK;
}

/* One side of a view, K or V, of one KV head. */
typedef struct side {
    const unsigned char *base; /* of the head's segment in row 0 */
    uint64_t row_stride;
    uint64_t row_bytes; /* of a position's codes */
    uint64_t scales;    /* from the start of a segment; 0: there are none */
} side;

static side side_of(const sheaf_kv_view *view, int is_value, uint32_t kv_head)
{
    uint32_t codec = is_value ? view->codec_v : view->codec_k;
    uint64_t offset = is_value ? view->v_offset : view->k_offset;
    uint64_t head_stride = is_value ? view->v_head_stride : view->k_head_stride;
    side s = {.base = view->base + offset + kv_head * head_stride};
    s.row_stride = is_value ? view->row_stride_v : view->row_stride_k;
    s.row_bytes = sheaf__codec_row_bytes(codec, is_value ? view->value_dim : view->key_dim);
    if (sheaf__codec_is_quantized(codec)) s.scales = view->block_tokens * s.row_bytes;
    return s;
}

/* Positions [p, to) of a split, which begin with `slot` of the block in `row`. */
static void resolve(const side *s, uint64_t row, uint32_t slot, uint32_t p, uint32_t to,
                    const unsigned char **at, float *scale)
{
    const unsigned char *segment = s->base + row * s->row_stride;
    const unsigned char *codes = segment + slot * s->row_bytes;
    if (s->scales != 0)
        memcpy(scale + p, segment + s->scales + slot * sizeof *scale, (to - p) * sizeof *scale);
    for (; p < to; p++, codes += s->row_bytes) at[p] = codes;
}

/* Brings near the scales of the block that holds absolute position `at`: those of a split are copied at
 * once, from memory that nothing else fetches. */
static void fetch_scales(const sheaf_kv_view *view, const side *s, uint64_t at)
{
    const uint64_t block = at / view->block_tokens - view->first_block;
    if (s->scales == 0 || block >= view->n_rows) return;
    const uint64_t row = view->rows != NULL ? view->rows[block] : block;
    const unsigned char *from = s->base + row * s->row_stride + s->scales;
    for (uint32_t b = 0; b < view->block_tokens * sizeof(float); b += SHEAF__ATTN_LINE)
        __builtin_prefetch(from + b, 0, 2);
}

void sheaf__attn_view_addresses(const sheaf_kv_view *view, uint32_t kv_head, uint32_t split,
                                uint32_t first, uint32_t end, sheaf__attn_addresses *out)
{
    const side k = side_of(view, 0, kv_head), v = side_of(view, 1, kv_head);
    const uint32_t shift = sheaf__log2(view->block_tokens), mask = view->block_tokens - 1;
    const uint32_t origin = split * SHEAF__ATTN_SPLIT;
    out->codec_k = view->codec_k;
    out->codec_v = view->codec_v;
    for (uint32_t p = first; p < end;) {
        uint32_t block = ((origin + p) >> shift) - view->first_block;
        uint32_t slot = (origin + p) & mask;
        uint64_t row = view->rows != NULL ? view->rows[block] : block;
        uint32_t to = (uint32_t)sheaf__min_u64(end, (uint64_t)p + view->block_tokens - slot);
        resolve(&k, row, slot, p, to, out->k, out->k_scale);
        resolve(&v, row, slot, p, to, out->v, out->v_scale);
        fetch_scales(view, &k, (uint64_t)origin + p + SHEAF__ATTN_SPLIT);
        fetch_scales(view, &v, (uint64_t)origin + p + SHEAF__ATTN_SPLIT);
        p = to;
    }
}
