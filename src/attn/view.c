/* attn/view.c - views checked against the plan, and positions turned into addresses.
 *
 * All arithmetic on bytes is in 64 bits: a view may span any amount of memory.
 */
#include "attn/paths.h"
#include "base/bits.h"

#define MAX_BLOCK_TOKENS 1024

sheaf_status sheaf__attn_view_check(const sheaf_attn_plan *plan,
                                    const sheaf__attn_planned *planned,
                                    const sheaf_kv_view *view)
{
    const sheaf_attn_options *o = &plan->options;
    if (view->n_kv_heads != o->n_kv_heads || view->key_dim != o->key_dim ||
        view->value_dim != o->value_dim || view->n_tokens != planned->item.n_tokens)
        return SHEAF_E_PLAN;
    if (view->codec_k > SHEAF_CODEC_BF16 || view->codec_v > SHEAF_CODEC_BF16)
        return SHEAF_E_PLAN;
    if (!sheaf__is_pow2(view->block_tokens) || view->block_tokens > MAX_BLOCK_TOKENS)
        return SHEAF_E_PLAN;
    if (planned->seen.lo == planned->seen.hi) return SHEAF_OK;
    uint64_t begin = (uint64_t)view->first_block * view->block_tokens;
    uint64_t end = ((uint64_t)view->first_block + view->n_rows) * view->block_tokens;
    if (view->base == NULL || planned->seen.lo < begin || planned->seen.hi > end)
        return SHEAF_E_PLAN;
    return SHEAF_OK;
}

void sheaf__attn_view_addresses(const sheaf_kv_view *view, uint32_t kv_head, uint32_t split,
                                uint32_t first, uint32_t end, sheaf__attn_addresses *out)
{
    const uint64_t k_bytes = (uint64_t)view->key_dim * sheaf__attn_number_bytes(view->codec_k);
    const uint64_t v_bytes =
        (uint64_t)view->value_dim * sheaf__attn_number_bytes(view->codec_v);
    const uint32_t shift = sheaf__log2(view->block_tokens), mask = view->block_tokens - 1;
    const uint32_t origin = split * SHEAF__ATTN_SPLIT;
    out->codec_k = view->codec_k;
    out->codec_v = view->codec_v;
    for (uint32_t p = first; p < end;) {
        uint32_t block = ((origin + p) >> shift) - view->first_block;
        uint32_t slot = (origin + p) & mask;
        uint64_t row = view->rows != NULL ? view->rows[block] : block;
        const unsigned char *k = view->base + row * view->row_stride_k + view->k_offset +
                                 kv_head * view->k_head_stride + slot * k_bytes;
        const unsigned char *v = view->base + row * view->row_stride_v + view->v_offset +
                                 kv_head * view->v_head_stride + slot * v_bytes;
        uint32_t to = (uint32_t)sheaf__min_u64(end, (uint64_t)p + view->block_tokens - slot);
        for (; p < to; p++, k += k_bytes, v += v_bytes) out->k[p] = k, out->v[p] = v;
    }
}
