/* attn/fixture.h - sequences of known numbers, laid out in any way by hand.
 *
 * Every number is a function of (seed, position, head, element), so that two layouts of one
 * sequence hold the same bits and a chunk of queries is a part of all of them. Whatever is not a
 * written number is poisoned with NaN.
 */
#ifndef SHEAF_TEST_ATTN_FIXTURE_H
#define SHEAF_TEST_ATTN_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bits.h"
#include "sheaf/attn.h"

/* The numbers of one sequence in one layer. */
typedef struct numbers {
    uint64_t seed;
    uint32_t n_tokens;
    uint32_t n_kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t codec_k;
    uint32_t codec_v;
} numbers;

/* Memory that a view looks at. */
typedef struct layout {
    unsigned char *memory;
    uint32_t *rows;
    sheaf_kv_view view;
} layout;

/* How to lay a sequence out. */
typedef struct shape {
    uint32_t block_tokens;
    uint32_t first_block; /* blocks before are not held */
    uint32_t shuffled;    /* rows in random order with gaps; else a contiguous buffer */
} shape;

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* In [-1, 1), 20 bits. */
static inline float number_at(uint64_t seed, uint32_t pos, uint32_t head, uint32_t d)
{
    uint64_t h = mix(seed ^ mix(pos ^ mix(((uint64_t)head << 32) | d)));
    return (float)((double)(h >> 44) / 524288.0 - 1.0);
}

static inline uint64_t segment_bytes(uint32_t codec, uint32_t block_tokens, uint32_t dim)
{
    uint64_t bytes = 0;
    assert_int_equal(sheaf_codec_segment_bytes(codec, block_tokens, dim, &bytes), SHEAF_OK);
    return bytes;
}

static inline float key_number(const numbers *n, uint32_t pos, uint32_t head, uint32_t d)
{
    return number_at(n->seed * 4 + 1, pos, head, d) * 2.0f;
}

static inline float value_number(const numbers *n, uint32_t pos, uint32_t head, uint32_t d)
{
    return number_at(n->seed * 4 + 2, pos, head, d);
}

/* q: [n, n_q_heads, key_dim] of the positions first and on. */
static inline float *queries(const numbers *n, uint32_t n_q_heads, uint32_t first,
                             uint32_t count)
{
    float *q = malloc((size_t)count * n_q_heads * n->key_dim * sizeof *q), *to = q;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t h = 0; h < n_q_heads; h++)
            for (uint32_t d = 0; d < n->key_dim; d++)
                *to++ = number_at(n->seed * 4 + 3, first + i, h, d) * 2.0f;
    return q;
}

/* All of one position's key or value. row: [SHEAF_ATTN_MAX_DIM] */
static inline void key_row(const numbers *n, uint32_t pos, uint32_t head, float *row)
{
    for (uint32_t d = 0; d < n->key_dim; d++) row[d] = key_number(n, pos, head, d);
}

static inline void value_row(const numbers *n, uint32_t pos, uint32_t head, float *row)
{
    for (uint32_t d = 0; d < n->value_dim; d++) row[d] = value_number(n, pos, head, d);
}

static inline void write_position(const numbers *n, const sheaf_kv_view *view, uint32_t pos)
{
    uint64_t block = pos / view->block_tokens - view->first_block;
    uint64_t at = view->rows ? view->rows[block] : block;
    uint32_t bt = view->block_tokens;
    unsigned char *base = (unsigned char *)(uintptr_t)view->base;
    float row[SHEAF_ATTN_MAX_DIM];
    for (uint32_t h = 0; h < n->n_kv_heads; h++) {
        unsigned char *k =
            base + at * view->row_stride_k + view->k_offset + h * view->k_head_stride;
        unsigned char *v =
            base + at * view->row_stride_v + view->v_offset + h * view->v_head_stride;
        key_row(n, pos, h, row);
        assert_int_equal(sheaf_codec_encode(n->codec_k, k, bt, n->key_dim, pos % bt, 1,
                                            SHEAF_DTYPE_F32, row, n->key_dim),
                         SHEAF_OK);
        value_row(n, pos, h, row);
        assert_int_equal(sheaf_codec_encode(n->codec_v, v, bt, n->value_dim, pos % bt, 1,
                                            SHEAF_DTYPE_F32, row, n->value_dim),
                         SHEAF_OK);
    }
}

static inline layout layout_make(const numbers *n, shape s)
{
    layout out = {0};
    sheaf_kv_view *v = &out.view;
    uint64_t bt = s.block_tokens,
             k_segment = segment_bytes(n->codec_k, s.block_tokens, n->key_dim),
             v_segment = segment_bytes(n->codec_v, s.block_tokens, n->value_dim), bytes;
    v->n_rows = (uint32_t)((n->n_tokens + bt - 1) / bt) - s.first_block;
    v->first_block = s.first_block;
    v->block_tokens = s.block_tokens;
    v->n_tokens = n->n_tokens;
    v->n_kv_heads = n->n_kv_heads;
    v->key_dim = n->key_dim;
    v->value_dim = n->value_dim;
    v->codec_k = n->codec_k;
    v->codec_v = n->codec_v;
    if (s.shuffled) {
        v->k_offset = 64;
        v->v_offset = 64 + (k_segment * n->n_kv_heads + 63) / 64 * 64;
        v->k_head_stride = k_segment;
        v->v_head_stride = v_segment;
        uint64_t row = v->v_offset + v_segment * n->n_kv_heads + 64;
        v->row_stride_k = v->row_stride_v = (row + 63) / 64 * 64;
        uint32_t places = v->n_rows * 2 + 3;
        out.rows = malloc(places * sizeof *out.rows);
        for (uint32_t i = 0; i < places; i++) out.rows[i] = i;
        for (uint32_t i = places - 1; i > 0; i--) {
            uint32_t j = (uint32_t)(mix(n->seed * 77 + i) % (i + 1)), t = out.rows[i];
            out.rows[i] = out.rows[j], out.rows[j] = t;
        }
        v->rows = out.rows;
        bytes = places * v->row_stride_k;
    } else {
        v->row_stride_k = k_segment;
        v->row_stride_v = v_segment;
        v->k_head_stride = k_segment * v->n_rows;
        v->v_head_stride = v_segment * v->n_rows;
        v->v_offset = v->k_head_stride * n->n_kv_heads;
        bytes = v->v_offset + v->v_head_stride * n->n_kv_heads;
    }
    out.memory = malloc(bytes);
    memset(out.memory, 0xff, bytes); /* NaN in every codec */
    v->base = out.memory;
    for (uint32_t p = s.first_block * s.block_tokens; p < n->n_tokens; p++)
        write_position(n, v, p);
    return out;
}

static inline void layout_free(layout *l)
{
    free(l->memory);
    free(l->rows);
}

/* Plans and runs one call; asserts that the path and instruction set asked for were used.
 * Returns [queries, n_q_heads, value_dim], to be freed. */
static inline float *attend(const sheaf_attn_options *o, sheaf_threads *threads,
                            const sheaf_attn_item *items, uint32_t n_items,
                            const sheaf_kv_view *views, const float *q)
{
    sheaf_attn_plan *plan = NULL;
    assert_int_equal(sheaf_attn_plan_create(o, threads, &plan), SHEAF_OK);
    assert_int_equal(sheaf_attn_plan_batch(plan, items, n_items), SHEAF_OK);
    uint64_t n_queries = 0;
    for (uint32_t i = 0; i < n_items; i++) n_queries += items[i].n_queries;
    uint64_t count = n_queries * o->n_q_heads * o->value_dim;
    float *out = malloc(count * sizeof *out);
    memset(out, 0xff, count * sizeof *out);
    sheaf_attn_report report = SHEAF_ATTN_REPORT_INIT;
    assert_int_equal(sheaf_attn_run(plan, views, q, out, &report), SHEAF_OK);
    uint32_t isa;
    assert_int_equal(sheaf_isa_resolve(o->isa, &isa), SHEAF_OK);
    assert_int_equal(report.isa, isa);
    assert_int_equal(report.path, o->path);
    assert_int_equal(report.n_threads, sheaf_threads_count(threads));
    sheaf_attn_plan_destroy(plan);
    return out;
}

static inline int all_finite(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

/* norm(a - b) / norm(b) */
static inline double relative_error(const float *a, const float *b, uint64_t n)
{
    double difference = 0.0, norm = 0.0;
    for (uint64_t i = 0; i < n; i++) {
        double e = (double)a[i] - (double)b[i];
        difference += e * e;
        norm += (double)b[i] * (double)b[i];
    }
    return norm == 0.0 ? (difference == 0.0 ? 0.0 : INFINITY) : sqrt(difference / norm);
}

/* The instruction sets to test: [at most 4], those the processor lacks named on stderr. */
static inline uint32_t isas_here(uint32_t isas[4])
{
    uint32_t n = 0;
    for (uint32_t isa = SHEAF_ISA_SCALAR; isa <= SHEAF_ISA_NEON; isa++) {
        uint32_t resolved;
        if (sheaf_isa_resolve(isa, &resolved) == SHEAF_OK) {
            isas[n++] = isa;
            fprintf(stderr, "# instruction set %s: runs\n", sheaf_isa_name(isa));
        } else {
            fprintf(stderr, "# instruction set %s: NOT HERE, skipped\n", sheaf_isa_name(isa));
        }
    }
    return n;
}

#endif
