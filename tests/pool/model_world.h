/* pool/model_world.h - random operations on tiny pools against a naive reference, which keeps every
 * block's references, holder and contents in plain arrays, and says by counting whether a request fits
 * and how many slabs a compaction empties.
 *
 * On any device: its memory is watched, and its fences pass when the model says so. SHEAF_SEED sets
 * the seed (printed); every step verifies the invariants and all contents. */
#ifndef SHEAF_TESTS_MODEL_WORLD_H
#define SHEAF_TESTS_MODEL_WORLD_H

#include "pool/fixture.h"

#include <stdio.h>

#include "pool/holder.h"
#include "sheaf/rows.h"

#define MAX_LIVE   64
#define SLAB       4
#define BLOCK      1024
#define FENCES     6 /* a fence lies at most this far ahead */
#define STALE_KEPT 32

typedef struct model_block {
    sheaf_block handle;
    uint32_t by_kind[SHEAF_OWNER_KINDS];
    uint32_t total;
    uint32_t stamp; /* what its memory holds, in every word */
    uint32_t name;  /* under which the keeper is told of moves; 0: it has no holder */
    uint64_t fence; /* retiring when total is 0 */
} model_block;

typedef struct model {
    sheaf_pool *pool;
    uint32_t n_groups, budget_slabs, slab_blocks;
    model_block blocks[MAX_LIVE]; /* held and retiring */
    uint32_t n;
    sheaf_block stale[STALE_KEPT];
    uint32_t n_stale;
    const sheaf__device *inner; /* where slabs really lie */
    uint64_t passed;            /* fences up to this value have */
    watched_memory watched;
    sheaf__keeper keeper;
    uint64_t fence, random;
    uint32_t stamp, names;
    uint64_t full, taken, moved, emptied;
} model;

static uint32_t draw(model *m, uint32_t below)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((m->random >> 33) % below);
}

static unsigned char *row_of(const model *m, sheaf_block handle)
{
    return sheaf__pool_row(m->pool, handle.group, handle.row);
}

static void stamp(model *m, model_block *block)
{
    uint32_t words[BLOCK / 4];
    block->stamp = ++m->stamp;
    for (uint32_t i = 0; i < BLOCK / 4; i++) words[i] = block->stamp;
    assert_int_equal(sheaf__pool_write(m->pool, row_of(m, block->handle), words, BLOCK),
                     SHEAF_OK);
}

/* A held block, or null when there is none. */
static model_block *draw_held(model *m)
{
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < m->n; i++) n_held += m->blocks[i].total != 0;
    if (n_held == 0) return NULL;
    uint32_t nth = draw(m, n_held);
    for (uint32_t i = 0;; i++)
        if (m->blocks[i].total != 0 && nth-- == 0) return &m->blocks[i];
}

static uint32_t draw_kind_of(model *m, const model_block *block)
{
    uint32_t kind = draw(m, SHEAF_OWNER_KINDS);
    while (block->by_kind[kind] == 0) kind = (kind + 1) % SHEAF_OWNER_KINDS;
    return kind;
}

static void forget_stale(model *m, sheaf_block handle)
{
    m->stale[m->n_stale++ % STALE_KEPT] = handle;
}

static void forget_passed(model *m)
{
    for (uint32_t i = 0; i < m->n;)
        if (m->blocks[i].total == 0 && m->blocks[i].fence <= m->passed)
            m->blocks[i] = m->blocks[--m->n];
        else
            i++;
}

/* Whether the request fits: by counting slabs in use, retiring blocks that have passed aside. Where
 * slabs are several pages, and so may be short, only the pool knows. */
static bool fits(const model *m, const uint32_t *counts)
{
    if (m->slab_blocks != SLAB) return sheaf_pool_can_acquire(m->pool, counts) == SHEAF_OK;
    uint32_t slabs = 0;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        uint32_t used[2 * MAX_LIVE] = {0}, room = 0;
        for (uint32_t i = 0; i < m->n; i++)
            if (m->blocks[i].handle.group == g &&
                (m->blocks[i].total != 0 || m->blocks[i].fence > m->passed))
                used[m->blocks[i].handle.row / SLAB]++;
        for (uint32_t s = 0; s < 2 * MAX_LIVE; s++)
            if (used[s] != 0) {
                slabs++;
                room += SLAB - used[s];
            }
        if (counts[g] > room) slabs += (counts[g] - room + SLAB - 1) / SLAB;
    }
    return slabs <= m->budget_slabs;
}

static void do_acquire(model *m)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0}, total = 0, kind = draw(m, 8);
    if (kind >= SHEAF_OWNER_KINDS) kind = SHEAF_OWNER_TREE;
    for (uint32_t g = 0; g < m->n_groups; g++) total += counts[g] = draw(m, 7);
    if (m->n + total > MAX_LIVE) return;
    sheaf_block taken[SHEAF_MAX_GROUPS * 7];
    bool fit = fits(m, counts), fail = draw(m, 16) == 0;
    if (draw(m, 8) == 0)
        assert_int_equal(sheaf_pool_can_acquire(m->pool, counts), fit ? SHEAF_OK : SHEAF_FULL);
    if (draw(m, 16) == 0 && !fail)
        assert_int_equal(sheaf_pool_presize(m->pool, counts), fit ? SHEAF_OK : SHEAF_FULL);
    if (fail) m->watched.fail_commit = m->watched.commits + 1 + draw(m, 2);
    sheaf_status st = sheaf_pool_acquire(m->pool, counts, kind, taken);
    bool refused = fail && m->watched.commits >= m->watched.fail_commit;
    m->watched.fail_commit = 0;
    assert_int_equal(st, fit && !refused ? SHEAF_OK : SHEAF_FULL);
    if (st == SHEAF_FULL) {
        m->full++;
        return;
    }
    forget_passed(m);
    for (uint32_t i = 0, g = 0, in_group = 0; i < total; i++, in_group++) {
        while (in_group == counts[g]) g++, in_group = 0;
        assert_int_equal(taken[i].group, g);
        for (uint32_t k = 0; k < m->n; k++)
            assert_true(m->blocks[k].handle.group != g ||
                        m->blocks[k].handle.row != taken[i].row);
        model_block *block = &m->blocks[m->n++];
        *block = (model_block){.handle = taken[i], .total = 1};
        block->by_kind[kind] = 1;
        stamp(m, block);
    }
    m->taken += total;
}

static void do_retain(model *m)
{
    model_block *block = draw_held(m);
    if (block == NULL) return;
    uint32_t kind = draw(m, SHEAF_OWNER_KINDS);
    assert_int_equal(sheaf_pool_retain(m->pool, block->handle, kind), SHEAF_OK);
    block->by_kind[kind]++;
    block->total++;
}

/* The last reference of a tree takes the holder with it. */
static void forget_holder(model_block *block)
{
    if (block->by_kind[SHEAF_OWNER_TREE] == 0) block->name = 0;
}

static void do_release(model *m)
{
    model_block *block = draw_held(m);
    if (block == NULL) return;
    uint32_t wrong = draw(m, SHEAF_OWNER_KINDS), kind = draw_kind_of(m, block);
    if (block->by_kind[wrong] == 0)
        assert_int_equal(sheaf_pool_release(m->pool, block->handle, wrong), SHEAF_E_NOT_OWNED);
    uint64_t fence = draw(m, 2) == 0 ? 0 : m->fence + draw(m, FENCES);
    assert_int_equal(
        sheaf_pool_release_after(m->pool, block->handle, kind, (sheaf_fence){fence}), SHEAF_OK);
    block->by_kind[kind]--;
    forget_holder(block);
    if (--block->total != 0) return;
    forget_stale(m, block->handle);
    block->fence = fence;
    if (fence <= m->passed) *block = m->blocks[--m->n];
}

static void do_transfer(model *m)
{
    model_block *block = draw_held(m);
    if (block == NULL) return;
    uint32_t from = draw_kind_of(m, block), to = draw(m, SHEAF_OWNER_KINDS);
    assert_int_equal(sheaf_pool_transfer(m->pool, block->handle, from, to), SHEAF_OK);
    block->by_kind[from]--;
    block->by_kind[to]++;
    forget_holder(block);
}

static void do_copy(model *m)
{
    model_block *from = draw_held(m), *to = draw_held(m);
    if (from == NULL) return;
    bool same = from->handle.group == to->handle.group;
    assert_int_equal(sheaf_pool_copy(m->pool, from->handle, to->handle),
                     same ? SHEAF_OK : SHEAF_E_INVALID);
    if (same) to->stamp = from->stamp;
}

static void do_fences(model *m)
{
    m->fence++;
    uint64_t passed = m->fence - 1 - draw(m, FENCES);
    if (passed > m->passed) m->passed = passed;
    if (draw(m, 2) == 0) return;
    uint64_t left = sheaf_pool_poll(m->pool);
    forget_passed(m);
    for (uint32_t i = 0; i < m->n; i++) left -= m->blocks[i].total == 0;
    assert_int_equal(left, 0);
}

static void do_stale(model *m)
{
    if (m->n_stale == 0) return;
    uint32_t kept = m->n_stale < STALE_KEPT ? m->n_stale : STALE_KEPT;
    sheaf_block handle = m->stale[draw(m, kept)];
    assert_int_equal(sheaf_pool_release(m->pool, handle, draw(m, SHEAF_OWNER_KINDS)),
                     SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_retain(m->pool, handle, SHEAF_OWNER_HOST), SHEAF_E_STALE);
}

/* Requests end: their lone references become the tree's. */
static void do_cache(model *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        model_block *block = &m->blocks[i];
        if (block->total != 1 || draw(m, 8) == 0) continue;
        uint32_t kind = draw_kind_of(m, block);
        assert_int_equal(sheaf_pool_transfer(m->pool, block->handle, kind, SHEAF_OWNER_TREE),
                         SHEAF_OK);
        block->by_kind[kind]--;
        block->by_kind[SHEAF_OWNER_TREE]++;
    }
}

/* Names, or names anew, about half of what trees hold. */
static void do_hold(model *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        model_block *block = &m->blocks[i];
        if (block->by_kind[SHEAF_OWNER_TREE] == 0 || draw(m, 2) == 0) continue;
        block->name = ++m->names;
        sheaf__block_set_holder(m->pool, block->handle, m, block->name);
    }
}

static void block_moved(sheaf__keeper *keeper, void *holder, uint32_t index, sheaf_block to)
{
    model *m = SHEAF__CONTAINER(keeper, model, keeper);
    uint32_t i = 0;
    assert_ptr_equal(holder, m);
    while (i < m->n && m->blocks[i].name != index) i++;
    assert_true(i < m->n);
    assert_int_equal(m->blocks[i].handle.group, to.group);
    forget_stale(m, m->blocks[i].handle);
    m->blocks[i].handle = to;
    m->moved++;
}

static void settle_nothing(sheaf__keeper *keeper)
{
    (void)keeper;
}

/* How many slabs can be emptied: as many as are wholly movable, and as the free rows of slabs in use
 * are worth. */
static uint32_t count_victims(const model *m)
{
    uint32_t victims = 0;
    for (uint32_t g = 0; g < m->n_groups; g++) {
        uint32_t used[2 * MAX_LIVE] = {0}, fixed[2 * MAX_LIVE] = {0}, room = 0, loose = 0;
        for (uint32_t i = 0; i < m->n; i++) {
            if (m->blocks[i].handle.group != g) continue;
            used[m->blocks[i].handle.row / SLAB]++;
            fixed[m->blocks[i].handle.row / SLAB] +=
                m->blocks[i].total != 1 || m->blocks[i].name == 0;
        }
        for (uint32_t s = 0; s < 2 * MAX_LIVE; s++) {
            room += used[s] != 0 ? SLAB - used[s] : 0;
            loose += used[s] != 0 && fixed[s] == 0;
        }
        victims += loose < room / SLAB ? loose : room / SLAB;
    }
    return victims;
}

static void do_compact(model *m)
{
    forget_passed(m);
    bool countable = m->slab_blocks == SLAB;
    uint32_t before = countable ? count_victims(m) : 0;
    uint32_t most = draw(m, 3) == 0 ? MAX_LIVE : draw(m, 4);
    uint64_t moved = m->moved;
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    sheaf_status st = sheaf_pool_compact(m->pool, most, &done);
    assert_true(st == SHEAF_OK || (st == SHEAF_PENDING && done.blocks_moved == most));
    assert_int_equal(m->moved - moved, done.blocks_moved);
    m->emptied += done.slabs_emptied;
    assert_int_equal(stats_of(m->pool).slabs_empty, 0);
    if (!countable) return;
    assert_int_equal(before - done.slabs_emptied, count_victims(m));
    assert_int_equal(st, count_victims(m) == 0 ? SHEAF_OK : SHEAF_PENDING);
}

static void verify(model *m)
{
    uint64_t held = 0, shared = 0, owners[SHEAF_OWNER_KINDS] = {0};
    uint64_t tree_only[SHEAF_MAX_GROUPS] = {0};
    for (uint32_t i = 0; i < m->n; i++) {
        model_block *block = &m->blocks[i];
        uint32_t total, by_kind[SHEAF_OWNER_KINDS];
        if (block->total == 0) continue;
        assert_int_equal(sheaf_pool_references(m->pool, block->handle, &total, by_kind),
                         SHEAF_OK);
        assert_int_equal(total, block->total);
        assert_memory_equal(by_kind, block->by_kind, sizeof by_kind);
        uint32_t name = 0;
        void *holder = sheaf__block_holder(m->pool, block->handle, &name);
        assert_ptr_equal(holder, block->name != 0 ? m : NULL);
        assert_int_equal(name, block->name);
        tree_only[block->handle.group] += total == by_kind[SHEAF_OWNER_TREE];
        uint32_t words[BLOCK / 4];
        assert_int_equal(sheaf__pool_read(m->pool, words, row_of(m, block->handle), BLOCK),
                         SHEAF_OK);
        for (uint32_t w = 0; w < BLOCK / 4; w += 51) assert_int_equal(words[w], block->stamp);
        for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++) owners[k] += by_kind[k];
        held++;
        shared += total > 1;
    }
    for (uint32_t g = 0; g < m->n_groups; g++)
        assert_int_equal(sheaf__pool_tree_only(m->pool, g), tree_only[g]);
    sheaf_pool_stats s = stats_of(m->pool);
    assert_int_equal(s.blocks_held, held);
    assert_int_equal(s.blocks_shared, shared);
    assert_memory_equal(s.owners, owners, sizeof owners);
    assert_int_equal(s.bytes_reserved, m->watched.committed_bytes);
    assert_true(s.bytes_reserved <= s.budget_bytes);
    assert_int_equal(s.bytes_copied_by_growth, 0);
    sheaf_error err = {0};
    if (sheaf__pool_check_rows(m->pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

static uint64_t seed(void)
{
    const char *text = getenv("SHEAF_SEED");
    uint64_t value = text != NULL ? strtoull(text, NULL, 0) : 20261;
    fprintf(stderr, "model_pool: SHEAF_SEED=%llu\n", (unsigned long long)value);
    return value;
}

static void drain(model *m)
{
    m->passed = UINT64_MAX;
    sheaf_pool_poll(m->pool);
    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t k = 0; k < SHEAF_OWNER_KINDS; k++)
            for (uint32_t r = 0; r < m->blocks[i].by_kind[k]; r++)
                assert_int_equal(sheaf_pool_release(m->pool, m->blocks[i].handle, k), SHEAF_OK);
    assert_int_equal(stats_of(m->pool).blocks_held, 0);
    close_pool(m->pool);
    assert_int_equal(m->watched.misuse, 0);
    assert_int_equal(m->watched.n_committed + m->watched.n_reserved, 0);
}

/* ---- the device: the inner one, but for what the model wants to rule ------------------------ */

static sheaf_status pass_copy(void *ctx, void *to, const void *from, uint64_t bytes)
{
    const sheaf__device *inner = ((model *)ctx)->inner;
    return inner->copy(inner->ctx, to, from, bytes);
}

static sheaf_status pass_read(void *ctx, void *to, const void *from, uint64_t bytes)
{
    const sheaf__device *inner = ((model *)ctx)->inner;
    return inner->read(inner->ctx, to, from, bytes);
}

static sheaf_status pass_write(void *ctx, void *to, const void *from, uint64_t bytes)
{
    const sheaf__device *inner = ((model *)ctx)->inner;
    return inner->write(inner->ctx, to, from, bytes);
}

static void leave_untouched(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx, (void)addr, (void)bytes;
}

static bool model_fence_passed(void *ctx, sheaf_fence fence)
{
    return fence.value <= ((model *)ctx)->passed;
}

static sheaf__device device_of(model *m, const sheaf__device *inner)
{
    sheaf__device device = *inner;
    m->inner = inner;
    device.memory = watch_memory(&m->watched);
    m->watched.system = inner->memory;
    m->watched.granularity = device.memory.granularity = inner->memory.granularity;
    device.ctx = m;
    device.copy = pass_copy;
    device.read = inner->read != NULL ? pass_read : NULL;
    device.write = inner->write != NULL ? pass_write : NULL;
    device.poison = leave_untouched;
    device.fence_passed = model_fence_passed;
    device.settle = NULL;
    return device;
}

/* budget_slabs: of SLAB blocks each, in granules of the device's memory. */
static void run(const sheaf__device *inner, uint32_t n_groups, uint32_t slab_blocks,
                uint32_t budget_slabs, uint32_t slack, uint32_t steps)
{
    static model m;
    static void (*const operations[])(model *) = {
        do_acquire, do_acquire, do_retain,   do_release, do_release, do_release, do_release,
        do_copy,    do_fences,  do_transfer, do_cache,   do_hold,    do_compact, do_stale};
    uint32_t n_operations = sizeof operations / sizeof operations[0];
    memset(&m, 0, sizeof m);
    m.random = seed() + n_groups * 1000003u + slack;
    m.n_groups = n_groups;
    m.budget_slabs = budget_slabs;
    m.slab_blocks = slab_blocks;
    m.fence = FENCES;
    sheaf_layer layers[SHEAF_MAX_GROUPS];
    sheaf__device device = device_of(&m, inner);
    sheaf_pool_options options =
        tiny_options(layers, n_groups, budget_slabs * device.memory.granularity);
    options.slab_blocks = slab_blocks;
    options.slack_slabs = slack;
    options.no_slack = 1;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &m.pool, NULL), SHEAF_OK);
    m.keeper = (sheaf__keeper){block_moved, settle_nothing};
    assert_int_equal(sheaf__pool_set_keeper(m.pool, &m.keeper), SHEAF_OK);
    for (uint32_t i = 0; i < steps; i++) {
        operations[draw(&m, n_operations)](&m);
        verify(&m);
    }
    assert_true(m.full > steps / 1000 && m.taken > steps / 10); /* both sides were met */
    assert_true(m.emptied != 0 || slab_blocks != SLAB);
    drain(&m);
}

#endif
