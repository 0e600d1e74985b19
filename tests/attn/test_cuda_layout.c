/* tests/attn/test_cuda_layout.c - how a step of decoding on a GPU is cut: needs no GPU.
 *
 * Random steps are cut in every way; then each position that a query sees is computed once, each part
 * is written once before it is read once, and parts come in ascending order.
 */
#include "testing.h"

#include <time.h>

#include "attn/cuda/layout.h"

#define ITEMS  40
#define BLOCKS 256

typedef struct step {
    sheaf__cuda_shape shape;
    sheaf__cuda_item items[ITEMS];
    sheaf_kv_view views[ITEMS];
    uint32_t rows[ITEMS][BLOCKS];
    uint32_t n;
} step;

static uint32_t below(uint64_t *random, uint32_t n)
{
    return (uint32_t)(testing_random(random) % n);
}

static void random_step(uint64_t *random, step *s)
{
    static const uint32_t each[] = {0, 0, 1, 4};
    static const uint32_t dims[] = {64, 128, 256};
    memset(s, 0, sizeof *s);
    s->n = 1 + below(random, ITEMS);
    s->shape =
        (sheaf__cuda_shape){.n_kv_heads = 1 + below(random, 4),
                            .dim = dims[below(random, 3)],
                            .codec = 1 + below(random, 4),
                            .block_tokens = 16u << below(random, 3),
                            .window = below(random, 3) == 0 ? 1 + below(random, 2000) : 0,
                            .causal = below(random, 4) != 0,
                            .n_processors = 1 + below(random, 132),
                            .prefix_min = below(random, 2) * 1024};
    s->shape.n_q_heads = s->shape.n_kv_heads * (1 + below(random, 16));
    s->shape.tuning.each = each[below(random, 4)];
    s->shape.tuning.spans = below(random, 4);
    s->shape.tuning.slots = below(random, 2) * below(random, 10);
    uint32_t most = BLOCKS * s->shape.block_tokens, shared = below(random, BLOCKS + 1);
    uint32_t query = 0, at = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t n = 1 + below(random, below(random, 4) == 0 ? 300 : most);
        uint32_t same = below(random, 4) == 0 ? below(random, shared + 1) : shared;
        for (uint32_t b = 0; b < BLOCKS; b++) s->rows[i][b] = b < same ? b : (i + 1) * 1000 + b;
        sheaf__cuda_item *item = &s->items[i];
        item->n_queries = below(random, 5) == 0 ? 3 : 1;
        item->n_tokens = n;
        item->first_pos = n - 1;
        item->query_at = query;
        item->n_rows = (n - 1) / s->shape.block_tokens + 1;
        item->rows_at = at;
        s->views[i].rows = s->rows[i];
        query += item->n_queries;
        at += item->n_rows;
    }
}

/* What happens to the positions of one item. */
typedef struct seen {
    unsigned char leaf[BLOCKS * 64 / SHEAF__CUDA_LEAF];
} seen;

/* A step as it was cut, its tables exactly as long as was counted. */
typedef struct cuts {
    sheaf__cuda_layout layout;
    sheaf__cuda_tables to;
} cuts;

static void *table_of(uint32_t n, size_t size)
{
    void *table = malloc(n * size + 1);
    assert_non_null(table);
    memset(table, 0xee, n * size + 1);
    return table;
}

/* Rings leave room for some parts to be merged. */
static void rings_fit(const sheaf__cuda_shape *shape, const sheaf__cuda_layout *l)
{
    uint32_t group = shape->n_q_heads / shape->n_kv_heads;
    assert_in_range(l->slots, 2, 8);
    assert_true(sheaf__cuda_merge_room(shape->codec, shape->dim, group, l->slots) >= 4);
}

static void cut_step(cuts *c, sheaf__memory *memory, const step *s)
{
    sheaf__cuda_layout *l = &c->layout;
    assert_int_equal(sheaf__cuda_layout_set(l, memory, &s->shape, s->items, s->views, s->n),
                     SHEAF_OK);
    rings_fit(&s->shape, l);
    c->to.units = table_of(l->n_units, sizeof *c->to.units);
    c->to.merges = table_of(l->n_merges, sizeof *c->to.merges);
    c->to.prefix_units = table_of(l->n_prefix_units, sizeof *c->to.prefix_units);
    c->to.members = table_of(l->n_members, sizeof *c->to.members);
    sheaf__cuda_layout_write(l, &s->shape, s->items, &c->to);
    assert_int_equal(((unsigned char *)(c->to.units + l->n_units))[0], 0xee);
    assert_int_equal(((unsigned char *)(c->to.merges + l->n_merges))[0], 0xee);
    assert_int_equal(((unsigned char *)(c->to.prefix_units + l->n_prefix_units))[0], 0xee);
    assert_int_equal(((unsigned char *)(c->to.members + l->n_members))[0], 0xee);
}

static void free_tables(cuts *c)
{
    free(c->to.units);
    free(c->to.merges);
    free(c->to.prefix_units);
    free(c->to.members);
}

/* A unit lies in one chunk or one span and leaves one part, if any. */
static void unit_computes(const sheaf__cuda_unit *u, const cuts *c, seen *of,
                          unsigned char *parts)
{
    uint32_t leaves = SHEAF__CUDA_WARPS * (u->part_each & 7);
    assert_true(leaves == SHEAF__CUDA_CHUNK_LEAVES || leaves == SHEAF__CUDA_SPAN_LEAVES);
    for (uint32_t leaf = u->first_leaf; leaf < u->end_leaf; leaf++) {
        assert_int_equal(of->leaf[leaf]++, 0);
        assert_int_equal(leaf / leaves, u->first_leaf / leaves);
    }
    if (u->merge == SHEAF__CUDA_NO_MERGE) return;
    assert_true(u->merge < c->layout.n_merges);
    const sheaf__cuda_merge *m = &c->to.merges[u->merge];
    assert_int_equal(m->chunks, leaves == SHEAF__CUDA_CHUNK_LEAVES);
    if (u->first_leaf == u->end_leaf) {
        assert_int_equal(m->n_parts, 0); /* who arrives alone */
        return;
    }
    uint32_t part = u->part_each >> 3;
    assert_true(part < m->n_parts);
    assert_int_equal(u->first_leaf / leaves, m->first + part);
    parts[m->part + part]++;
}

static const sheaf__cuda_item *item_of(const step *s, uint32_t query)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->items[i].query_at == query) return &s->items[i];
    fail_msg("query %u is nobody's", query);
    return NULL;
}

/* Prefix units write one part a span and member, each of a set's query rows once. */
static void prefixes_compute(const step *s, const cuts *c, seen *of, unsigned char *parts)
{
    uint32_t group = s->shape.n_q_heads / s->shape.n_kv_heads;
    for (uint32_t n = 0; n < c->layout.n_prefix_units; n++) {
        const sheaf__cuda_prefix_unit *u = &c->to.prefix_units[n];
        uint32_t end = u->first_row + sheaf__cuda_prefix_rows(s->shape.dim);
        for (uint32_t row = u->first_row; row < end && row < u->n_members * group; row++) {
            if (row % group != 0) continue; /* once a member */
            uint32_t member = row / group, query = c->to.members[u->members_at + member];
            const sheaf__cuda_item *item = item_of(s, query);
            uint32_t i = (uint32_t)(item - s->items);
            for (uint32_t span = u->first_span; span < u->end_span; span++) {
                for (uint32_t leaf = 16 * span; leaf < 16 * span + 16; leaf++)
                    assert_int_equal(of[i].leaf[leaf]++, 0);
                parts[u->part + span * u->n_members + member]++;
                uint32_t first = span * SHEAF__CUDA_SPAN / s->shape.block_tokens;
                uint32_t blocks = SHEAF__CUDA_SPAN / s->shape.block_tokens;
                for (uint32_t b = first; b < first + blocks; b++) {
                    uint32_t owner = 0;
                    while (s->items[owner].rows_at != u->rows_at) owner++;
                    assert_int_equal(s->rows[i][b], s->rows[owner][b]);
                }
            }
        }
    }
}

static void merges_read(const cuts *c, const unsigned char *parts, unsigned char *read)
{
    for (uint32_t n = 0; n < c->layout.n_merges; n++) {
        const sheaf__cuda_merge *m = &c->to.merges[n];
        for (uint32_t span = 0; span < m->prefix_spans; span++) {
            uint32_t part = m->prefix_part + span * m->prefix_stride;
            assert_int_equal(parts[part], 1);
            assert_int_equal(read[part]++, 0);
        }
        for (uint32_t i = 0; i < m->n_parts; i++) {
            assert_int_equal(parts[m->part + i], 1);
            assert_int_equal(read[m->part + i]++, 0);
        }
        if (m->prefix_spans != 0) {
            assert_int_equal(m->first, m->prefix_spans * (m->chunks ? 4 : 1));
        }
    }
}

static void everything_seen_is_computed_once(void **state)
{
    (void)state;
    uint64_t random = testing_seed((uint64_t)time(NULL));
    static step s;
    static seen of[ITEMS];
    static unsigned char parts[ITEMS * BLOCKS * 4], read[ITEMS * BLOCKS * 4];
    sheaf__memory memory;
    cuts c = {0};
    uint32_t shared = 0, chunks = 0, spans = 0;
    sheaf__memory_init(&memory, NULL);
    for (int round = 0; round < 400; round++) {
        random_step(&random, &s);
        memset(of, 0, sizeof of);
        memset(parts, 0, sizeof parts);
        memset(read, 0, sizeof read);
        cut_step(&c, &memory, &s);
        assert_true(c.layout.n_parts <= sizeof parts);
        prefixes_compute(&s, &c, of, parts);
        for (uint32_t n = 0; n < c.layout.n_units; n++) {
            const sheaf__cuda_item *item = item_of(&s, c.to.units[n].query);
            unit_computes(&c.to.units[n], &c, &of[item - s.items], parts);
            chunks += (c.to.units[n].part_each & 7) == 1;
            spans += (c.to.units[n].part_each & 7) == 4;
        }
        merges_read(&c, parts, read);
        for (size_t part = 0; part < sizeof parts; part++)
            assert_int_equal(parts[part], part < c.layout.n_parts);
        assert_memory_equal(parts, read, sizeof parts);
        for (uint32_t i = 0; i < s.n; i++) {
            uint32_t lo, hi;
            sheaf__cuda_item_sees(&s.shape, &s.items[i], &lo, &hi);
            for (uint32_t leaf = 0; leaf < sizeof of[i].leaf; leaf++)
                assert_int_equal(of[i].leaf[leaf], s.items[i].n_queries == 1 &&
                                                       leaf >= lo / 64 && leaf * 64 < hi);
        }
        shared += c.layout.n_sets;
        free_tables(&c);
    }
    assert_true(shared > 0 && chunks > 0 && spans > 0);
    sheaf__cuda_layout_free(&c.layout, &memory);
    assert_int_equal(memory.live_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_seen_is_computed_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
