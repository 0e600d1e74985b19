/* cache/sequence.c - a running sequence: growing, shrinking, sharing.
 *
 * Length 14 with 3 more positions reserved, 4 tokens a block, in a group without a window and in
 * one with a window of 6 that has slid:
 *
 *     position    0       4       8       12      16
 *     no window   | block | block | block | block | block |   first_block 0, n_blocks 5
 *     window 6        let go      | block | block | block |   first_block 2, n_blocks 3
 *                                             ^     ^
 *                                        length 14  reserved up to 17
 *
 * Invariants (src/cache/check.c verifies them by number):
 *
 *  1. length <= written[layer] <= length + reserved <= 2^31 - 1 for every layer, and the room
 *     has place for length + reserved.
 *  2. Every group ends alike: first_block + n_blocks is what [0, length + reserved) takes.
 *  3. Nothing that is seen has been let go: first_block * block_tokens is at most
 *     visible_begin(length, window), and 0 without a window or without a position.
 *  4. Every entry names a live block, with a reference of this sequence's kind.
 *  5. Blocks of reserved positions have no other reference: what is shared is never written.
 *  6. A parked sequence has nothing reserved.
 *
 * 3 is also the rule for going back: a cut to `length` is refused when some position in
 * [visible_begin(length, window), length) was let go. Both the last committed position, whose
 * query may be computed again, and the next one then find all that they see.
 */
#include "cache/sequence.h"

#include <string.h>

#include "cache/tiles.h"

/* Drops one reference. The handles are live and the sequence's own, so this cannot fail. */
static void release_block(const sheaf_sequence *seq, sheaf_block block)
{
    sheaf_status st = sheaf__block_release(seq->pool, block, seq->owner.kind);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
}

/* Names every reference to the pool's check. */
static void visit_blocks(const sheaf__owner *owner, sheaf__named_fn *fn, void *ctx)
{
    const sheaf_sequence *seq = SHEAF__CONTAINER(owner, const sheaf_sequence, owner);
    for (uint32_t g = 0; g < seq->n_groups; g++)
        for (uint32_t i = 0; i < seq->room.tables[g].n_blocks; i++)
            fn(ctx, sheaf__table_block(&seq->room.tables[g], g, i));
}

/* ---- life -------------------------------------------------------------------------------- */

sheaf_status sheaf__sequence_new(sheaf_pool *pool, uint32_t positions, sheaf_sequence **out)
{
    sheaf__memory *memory = sheaf__pool_memory(pool);
    const sheaf__layout *layout = sheaf__pool_layout(pool);
    uint32_t n_layers = layout->n_layers;
    uint64_t bytes = sizeof(sheaf_sequence) + n_layers * sizeof(uint32_t);
    sheaf_sequence *seq = sheaf__memory_alloc(memory, 1, bytes);
    if (seq == NULL) return SHEAF_E_NO_MEMORY;
    seq->pool = pool;
    seq->n_groups = layout->n_groups;
    seq->block_tokens = layout->block_tokens;
    seq->progress.n_layers = n_layers;
    seq->progress.written = seq->written;
    sheaf_status st =
        sheaf__room_create(memory, seq->n_groups, seq->block_tokens, positions, &seq->room);
    if (st != SHEAF_OK) {
        sheaf__memory_free(memory, seq, 1, bytes);
        return st;
    }
    seq->owner.kind = SHEAF_OWNER_TABLE;
    seq->owner.visit = visit_blocks;
    sheaf__pool_register(pool, &seq->owner);
    *out = seq;
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_create(sheaf_pool *pool, sheaf_sequence **out)
{
    if (pool == NULL || out == NULL) return SHEAF_E_INVALID;
    sheaf_sequence *seq = NULL;
    SHEAF__TRY(sheaf__sequence_new(pool, 0, &seq));
    sheaf__sequence_changed(seq);
    *out = seq;
    return SHEAF_OK;
}

void sheaf_sequence_destroy(sheaf_sequence *seq)
{
    if (seq == NULL) return;
    sheaf_pool *pool = seq->pool;
    sheaf__sequence_cut(seq, 0);
    sheaf__pool_unregister(pool, &seq->owner);
    sheaf__memory *memory = sheaf__pool_memory(pool);
    sheaf__room_destroy(memory, &seq->room);
    uint64_t bytes = sizeof(sheaf_sequence) + seq->progress.n_layers * sizeof(uint32_t);
    sheaf__memory_free(memory, seq, 1, bytes);
    sheaf__pool_publish(pool);
}

uint32_t sheaf_sequence_length(const sheaf_sequence *seq)
{
    return seq->progress.length;
}

uint32_t sheaf_sequence_reserved(const sheaf_sequence *seq)
{
    return seq->progress.reserved;
}

const int32_t *sheaf_sequence_tokens(const sheaf_sequence *seq)
{
    return seq->room.tokens;
}

/* ---- growing ----------------------------------------------------------------------------- */

/* What reserving up to a position takes. */
typedef struct growth {
    uint32_t counts[SHEAF_MAX_GROUPS]; /* blocks, the copy included */
    bool copy_tail[SHEAF_MAX_GROUPS];  /* the partial last block is shared: copy it first */
    uint64_t total;
} growth;

static growth plan_growth(const sheaf_sequence *seq, uint32_t end)
{
    growth plan = {0};
    uint32_t length = seq->progress.length, need = sheaf__blocks_of(end, seq->block_tokens);
    /* With a reservation open the block at `length` is exclusive already (invariant 5). */
    bool tail_opens =
        seq->progress.reserved == 0 && end > length && length % seq->block_tokens != 0;
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        const sheaf__table *table = &seq->room.tables[g];
        uint32_t held = table->first_block + table->n_blocks;
        plan.copy_tail[g] = tail_opens && sheaf__pool_row_shared(
                                              seq->pool, g, table->rows[table->n_blocks - 1]);
        plan.counts[g] = need - held + plan.copy_tail[g];
        plan.total += plan.counts[g];
    }
    return plan;
}

sheaf_status sheaf_sequence_need_blocks(const sheaf_sequence *seq, uint32_t n, uint32_t *counts)
{
    if (seq == NULL || counts == NULL) return SHEAF_E_INVALID;
    uint32_t end;
    SHEAF__TRY(sheaf__progress_end(&seq->progress, n, &end));
    growth plan = plan_growth(seq, end);
    memcpy(counts, plan.counts, seq->n_groups * sizeof *counts);
    return SHEAF_OK;
}

/* Both are live and of one group. A device that fails here is the pool's fault: it hands out nothing
 * any more. */
static void copy_block(const sheaf_sequence *seq, sheaf_block from, sheaf_block fresh)
{
    sheaf_status st = sheaf_pool_copy(seq->pool, from, fresh);
    SHEAF__ASSERT(st == SHEAF_OK || st == SHEAF_E_DEVICE);
    (void)st;
}

/* Puts the blocks in room.fresh where the plan wants them. Nothing here can fail. */
static void attach(sheaf_sequence *seq, const growth *plan)
{
    const sheaf_block *next = seq->room.fresh;
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        sheaf__table *table = &seq->room.tables[g];
        uint32_t n = plan->counts[g];
        if (plan->copy_tail[g]) {
            sheaf_block shared = sheaf__table_block(table, g, table->n_blocks - 1);
            copy_block(seq, shared, *next);
            sheaf__table_set(table, table->n_blocks - 1, *next++);
            release_block(seq, shared);
            n--;
        }
        for (; n > 0; n--) sheaf__table_push(table, *next++);
    }
}

/* Whether a group has fewer rows than that, so that the answer is SHEAF_FULL whatever else holds. */
static bool beyond_range(const sheaf_sequence *seq, const growth *plan)
{
    bool beyond = false;
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        sheaf_status st = sheaf_pool_group_info(seq->pool, g, &info);
        SHEAF__ASSERT(st == SHEAF_OK);
        (void)st;
        beyond = beyond || plan->counts[g] > info.max_rows;
    }
    return beyond;
}

/* A larger room for positions up to `end`, if the sequence's own is too small. A hopeless request
 * must not cost gigabytes of host memory first. SHEAF_E_NO_MEMORY. */
static sheaf_status make_room(const sheaf_sequence *seq, uint32_t end, const growth *plan,
                              sheaf__room *larger)
{
    if (end <= seq->room.capacity || beyond_range(seq, plan)) return SHEAF_OK;
    uint64_t doubled = sheaf__min_u64(2ull * seq->room.capacity, INT32_MAX);
    uint32_t capacity = (uint32_t)sheaf__max_u64(end, doubled);
    return sheaf__room_create(sheaf__pool_memory(seq->pool), seq->n_groups, seq->block_tokens,
                              capacity, larger);
}

sheaf_status sheaf_sequence_extend(sheaf_sequence *seq, uint32_t n)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    uint32_t end;
    SHEAF__TRY(sheaf__progress_end(&seq->progress, n, &end));
    growth plan = plan_growth(seq, end);
    sheaf__room larger = {0};
    SHEAF__TRY(make_room(seq, end, &plan, &larger));
    sheaf__room *room = larger.words != NULL ? &larger : &seq->room;
    sheaf__memory *memory = sheaf__pool_memory(seq->pool);
    sheaf_status st = SHEAF_OK;
    if (plan.total != 0)
        st = sheaf_pool_acquire(seq->pool, plan.counts, SHEAF_OWNER_TABLE, room->fresh);
    if (st != SHEAF_OK) {
        sheaf__room_destroy(memory, &larger);
        return st;
    }
    if (room == &larger) sheaf__room_replace(memory, &seq->room, &larger, seq->progress.length);
    attach(seq, &plan);
    seq->progress.reserved = end - seq->progress.length;
    sheaf__sequence_changed(seq);
    return SHEAF_OK;
}

#if SHEAF_CHECK >= 1
/* Asserts invariant 5 for the blocks that hold [pos, pos + n). */
static void assert_exclusive(const sheaf_sequence *seq, uint32_t group, uint32_t pos,
                             uint32_t n)
{
    const sheaf__table *table = &seq->room.tables[group];
    uint32_t last = (pos + n - 1) / seq->block_tokens - table->first_block;
    for (uint32_t i = pos / seq->block_tokens - table->first_block; i <= last; i++) {
        const sheaf__record *record =
            sheaf__pool_live(seq->pool, sheaf__table_block(table, group, i));
        SHEAF__ASSERT(record != NULL && record->total == 1);
    }
}
#endif

sheaf_status sheaf_sequence_write(sheaf_sequence *seq, uint32_t layer, uint32_t pos, uint32_t n,
                                  const sheaf_kv_source *src)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    if (layer >= seq->progress.n_layers) return SHEAF_E_INVALID;
    const sheaf__layer_layout *place = &sheaf__pool_layout(seq->pool)->layers[layer];
    SHEAF__TRY(sheaf__tiles_check_source(&place->layer, n, src));
    SHEAF__TRY(sheaf__progress_may_write(&seq->progress, layer, pos, n));
    if (n == 0) return SHEAF_OK;
    sheaf_kv_view view = sheaf__sequence_view_to(seq, layer, pos + n);
#if SHEAF_CHECK >= 1
    assert_exclusive(seq, place->group, pos, n);
#endif
    SHEAF__TRY(sheaf__tiles_write(&view, pos, n, src, seq->pool));
    sheaf__progress_wrote(&seq->progress, layer, pos + n);
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_wrote(sheaf_sequence *seq, uint32_t layer, uint32_t pos, uint32_t n)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__progress_may_write(&seq->progress, layer, pos, n));
    sheaf__progress_wrote(&seq->progress, layer, pos + n);
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_commit(sheaf_sequence *seq, uint32_t n, const int32_t *tokens)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__progress_may_commit(&seq->progress, n));
    int32_t *to = seq->room.tokens + seq->progress.length;
    for (uint32_t i = 0; i < n; i++) to[i] = tokens != NULL ? tokens[i] : SHEAF_TOKEN_NONE;
    sheaf__sequence_cut(seq, seq->progress.length + n);
    sheaf__sequence_changed(seq);
    return SHEAF_OK;
}

/* ---- shrinking and sharing --------------------------------------------------------------- */

uint32_t sheaf__sequence_window(const sheaf_sequence *seq, uint32_t group)
{
    return sheaf__pool_layout(seq->pool)->groups[group].window;
}

sheaf_status sheaf__sequence_covers(const sheaf_sequence *seq, uint32_t length)
{
    if (length > seq->progress.length) return SHEAF_E_RANGE;
    if (length == 0) return SHEAF_OK;
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        uint64_t held_from = (uint64_t)seq->room.tables[g].first_block * seq->block_tokens;
        if (sheaf__visible_begin(length, sheaf__sequence_window(seq, g)) < held_from)
            return SHEAF_E_SLID;
    }
    return SHEAF_OK;
}

void sheaf__sequence_cut(sheaf_sequence *seq, uint32_t length)
{
    uint32_t keep = sheaf__blocks_of(length, seq->block_tokens);
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        sheaf__table *table = &seq->room.tables[g];
        while (table->n_blocks > 0 && table->first_block + table->n_blocks > keep) {
            sheaf_block last = sheaf__table_block(table, g, table->n_blocks - 1);
            table->n_blocks--;
            release_block(seq, last);
        }
        if (length == 0) table->first_block = 0;
    }
    if (seq->compared > length) seq->compared = length;
    sheaf__progress_settle(&seq->progress, length);
}

sheaf_status sheaf_sequence_truncate(sheaf_sequence *seq, uint32_t length)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__sequence_covers(seq, length));
    sheaf__sequence_cut(seq, length);
    sheaf__sequence_changed(seq);
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_slide(sheaf_sequence *seq, uint32_t max_draft)
{
    if (seq == NULL) return SHEAF_E_INVALID;
    if (seq->progress.reserved != 0) return SHEAF_E_BUSY;
    uint32_t length = seq->progress.length;
    uint32_t shortest = length > max_draft ? length - max_draft : 0;
    for (uint32_t g = 0; g < seq->n_groups; g++) {
        sheaf__table *table = &seq->room.tables[g];
        uint32_t begin = sheaf__visible_begin(shortest, sheaf__sequence_window(seq, g));
        uint32_t first = begin / seq->block_tokens;
        if (first <= table->first_block) continue;
        uint32_t n = first - table->first_block;
        for (uint32_t i = 0; i < n; i++) release_block(seq, sheaf__table_block(table, g, i));
        sheaf__table_drop(table, n);
    }
    sheaf__sequence_changed(seq);
    return SHEAF_OK;
}

/* Adds references to the blocks of [0, whole * block_tokens) that `from` holds to an empty
 * twin. SHEAF_E_OVERFLOW: too many of a block; the twin has those taken so far. */
static sheaf_status share_blocks(const sheaf_sequence *from, uint32_t whole, sheaf_sequence *to)
{
    for (uint32_t g = 0; g < from->n_groups; g++) {
        const sheaf__table *source = &from->room.tables[g];
        sheaf__table *table = &to->room.tables[g];
        table->first_block = whole == 0 ? 0 : source->first_block;
        for (uint32_t i = 0; source->first_block + i < whole; i++) {
            sheaf_block block = sheaf__table_block(source, g, i);
            SHEAF__TRY(sheaf__block_retain(from->pool, block, SHEAF_OWNER_TABLE));
            sheaf__table_push(table, block);
        }
    }
    return SHEAF_OK;
}

sheaf_status sheaf__sequence_duplicate(const sheaf_sequence *from, uint32_t length,
                                       bool copy_tail, sheaf_sequence **out)
{
    sheaf_sequence *twin = NULL;
    SHEAF__TRY(sheaf__sequence_new(from->pool, length, &twin));
    copy_tail = copy_tail && length % from->block_tokens != 0;
    uint32_t whole = sheaf__blocks_of(length, from->block_tokens) - copy_tail;
    growth plan = {0};
    for (uint32_t g = 0; g < from->n_groups; g++) plan.counts[g] = copy_tail;
    sheaf_status st = share_blocks(from, whole, twin);
    if (st == SHEAF_OK && copy_tail)
        st = sheaf_pool_acquire(from->pool, plan.counts, SHEAF_OWNER_TABLE, twin->room.fresh);
    if (st != SHEAF_OK) {
        sheaf_sequence_destroy(twin);
        return st;
    }
    for (uint32_t g = 0; copy_tail && g < from->n_groups; g++) {
        const sheaf__table *source = &from->room.tables[g];
        uint32_t tail = whole - source->first_block;
        twin->room.tables[g].first_block = source->first_block;
        copy_block(from, sheaf__table_block(source, g, tail), twin->room.fresh[g]);
        sheaf__table_push(&twin->room.tables[g], twin->room.fresh[g]);
    }
    memcpy(twin->room.tokens, from->room.tokens, length * sizeof *twin->room.tokens);
    twin->compared = from->compared < length ? from->compared : length;
    sheaf__progress_settle(&twin->progress, length);
    sheaf__sequence_changed(twin);
    *out = twin;
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_fork(sheaf_sequence *seq, sheaf_sequence **out)
{
    if (seq == NULL || out == NULL) return SHEAF_E_INVALID;
    if (seq->progress.reserved != 0) return SHEAF_E_BUSY;
    return sheaf__sequence_duplicate(seq, seq->progress.length, false, out);
}

/* ---- views ------------------------------------------------------------------------------- */

sheaf_kv_view sheaf__sequence_view_to(const sheaf_sequence *seq, uint32_t layer, uint32_t end)
{
    const sheaf__layout *layout = sheaf__pool_layout(seq->pool);
    const sheaf__layer_layout *place = &layout->layers[layer];
    const sheaf__table *table = &seq->room.tables[place->group];
    uint64_t block_bytes = layout->groups[place->group].block_bytes;
    return (sheaf_kv_view){
        .base = sheaf_pool_base(seq->pool, place->group),
        .rows = table->rows,
        .row_stride_k = block_bytes,
        .row_stride_v = block_bytes,
        .k_offset = place->k_offset,
        .v_offset = place->v_offset,
        .k_head_stride = place->k_segment_bytes,
        .v_head_stride = place->v_segment_bytes,
        .n_rows = sheaf__blocks_of(end, seq->block_tokens) - table->first_block,
        .first_block = table->first_block,
        .block_tokens = seq->block_tokens,
        .n_tokens = end,
        .n_kv_heads = place->layer.n_kv_heads,
        .key_dim = place->layer.key_dim,
        .value_dim = place->layer.value_dim,
        .window = place->layer.window,
        .codec_k = place->layer.codec_k,
        .codec_v = place->layer.codec_v,
    };
}

sheaf_status sheaf_sequence_view(const sheaf_sequence *seq, uint32_t layer, sheaf_kv_view *out)
{
    if (seq == NULL || out == NULL || layer >= seq->progress.n_layers) return SHEAF_E_INVALID;
    *out = sheaf__sequence_view_to(seq, layer, seq->progress.written[layer]);
    return SHEAF_OK;
}

sheaf_status sheaf_sequence_visible(const sheaf_sequence *seq, uint32_t layer, uint32_t *begin,
                                    uint32_t *end)
{
    if (seq == NULL || begin == NULL || end == NULL) return SHEAF_E_INVALID;
    if (layer >= seq->progress.n_layers) return SHEAF_E_INVALID;
    uint32_t window = sheaf__pool_layout(seq->pool)->layers[layer].layer.window;
    *begin = sheaf__visible_begin(seq->progress.length, window);
    *end = seq->progress.length;
    return SHEAF_OK;
}
