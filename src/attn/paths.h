/* attn/paths.h - what a run of a plan works on, and the ways to do it. */
#ifndef SHEAF_ATTN_PATHS_H
#define SHEAF_ATTN_PATHS_H

#include "attn/plan.h"

/* One call of sheaf_attn_run. */
typedef struct sheaf__attn_job {
    const sheaf_attn_plan *plan;
    const sheaf_kv_view *views; /* [n_items] */
    const float *q;             /* [queries, n_q_heads, key_dim] */
    float *out;                 /* [queries, n_q_heads, value_dim] */
    uint32_t item;              /* the one being gathered */
} sheaf__attn_job;

/* Addresses of the keys and values of one KV head. */
typedef struct sheaf__attn_addresses {
    uint32_t codec_k;
    uint32_t codec_v;
    const unsigned char *k[SHEAF__ATTN_SPLIT];
    const unsigned char *v[SHEAF__ATTN_SPLIT];
    float k_scale[SHEAF__ATTN_SPLIT]; /* where the codec is quantized */
    float v_scale[SHEAF__ATTN_SPLIT];
} sheaf__attn_addresses;

/* Whether the view is as the item was planned and holds every position that a query sees. */
sheaf_status sheaf__attn_view_check(const sheaf_attn_plan *plan,
                                    const sheaf__attn_planned *planned,
                                    const sheaf_kv_view *view);

/* Sets the addresses, and scales, of the positions [first, end) of a split, in place. */
void sheaf__attn_view_addresses(const sheaf_kv_view *view, uint32_t kv_head, uint32_t split,
                                uint32_t first, uint32_t end, sheaf__attn_addresses *out);

/* The same for what the workspace holds of the item being gathered. */
void sheaf__attn_gather_addresses(const sheaf__attn_job *job, uint32_t kv_head, uint32_t split,
                                  uint32_t first, uint32_t end, sheaf__attn_addresses *out);

/* Brings what the queries of the item see into the workspace. */
void sheaf__attn_gather(const sheaf__attn_job *job);

/* SHEAF_ATTN_REFERENCE, all of it. */
void sheaf__attn_reference(const sheaf__attn_job *job);

/* Query row r of a tile: its query's index in q and out, and, of a KV head, its query head. */
static inline uint64_t sheaf__attn_row_query(const sheaf_attn_plan *plan,
                                             const sheaf__attn_tile *tile, uint32_t r)
{
    return plan->now.items[tile->item].first_query + (tile->first_row + r) / plan->group;
}

static inline uint32_t sheaf__attn_row_head(const sheaf_attn_plan *plan,
                                            const sheaf__attn_tile *tile, uint32_t kv_head,
                                            uint32_t r)
{
    return kv_head * plan->group + (tile->first_row + r) % plan->group;
}

/* What query row r of a tile sees, in absolute positions. */
static inline sheaf__attn_range sheaf__attn_row_sees(const sheaf_attn_plan *plan,
                                                     const sheaf__attn_tile *tile, uint32_t r)
{
    const sheaf_attn_item *item = &plan->now.items[tile->item].item;
    uint64_t pos = (uint64_t)item->first_pos + (tile->first_row + r) / plan->group;
    return sheaf__attn_visible(&plan->options, pos, item->n_tokens);
}

#endif
