/* tests/cache/model_prefix_world.c - what follows each operation of model_prefix.c: every block that the
 * reference knows is looked up, every row of the pool is walked, and all that is told must agree.
 */
#include "model_prefix_world.h"

#define DIM 4 /* numbers of a key, and of a value */

world w;

/* ---- small things ------------------------------------------------------------------------ */

request *world_free_place(void)
{
    for (uint32_t i = 0; i < w.n_places; i++)
        if (w.places[i].seq == NULL && w.places[i].parked == NULL) return &w.places[i];
    return NULL;
}

bool world_has_room_for_a_block(void)
{
    uint32_t counts[2] = {1, 1};
    sheaf_status st = sheaf_pool_can_acquire(w.r.f.pool, counts);
    assert_true(st == SHEAF_OK || st == SHEAF_FULL);
    return st == SHEAF_OK;
}

const void *world_bytes(sheaf_block block)
{
    void *bytes = NULL;
    assert_int_equal(sheaf_pool_address(w.r.f.pool, block, &bytes), SHEAF_OK);
    return bytes;
}

/* Whether the cache names this block. */
static bool is_cached(sheaf_block block)
{
    uint32_t total = 0, by_kind[SHEAF_OWNER_KINDS];
    return block.row != SHEAF_ROW_NONE &&
           sheaf_pool_references(w.r.f.pool, block, &total, by_kind) == SHEAF_OK &&
           by_kind[SHEAF_OWNER_TREE] != 0;
}

bool world_is_cached(const ref_item *item)
{
    if (!item->named) return false;
    bool let_go = ref_whole(item);
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        if (is_cached(item->blocks[g])) return true;
        let_go = let_go && item->blocks[g].row == SHEAF_ROW_NONE;
    }
    sheaf_block blocks[2]; /* a whole block that windows have let go of is known by its key */
    return let_go && sheaf_prefix_find(w.r.cache, &item->key, blocks) == SHEAF_OK;
}

void world_name(ref_item *item, const sheaf_sequence *seq)
{
    uint32_t at = ref_start(item) / REF_BLOCK;
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        const sheaf__table *table = &seq->room.tables[g];
        item->blocks[g] = (sheaf_block){g, SHEAF_ROW_NONE, 0};
        if (at >= table->first_block)
            item->blocks[g] = sheaf__table_block(table, g, at - table->first_block);
    }
    sheaf_key key = w.ref.spaces[item->space];
    for (uint32_t i = 0; i + REF_BLOCK <= item->n; i += REF_BLOCK)
        assert_int_equal(sheaf_key_next(&key, item->tokens + i, REF_BLOCK, &key), SHEAF_OK);
    item->key = key; /* of a tail: the key before it */
    item->named = true;
}

static bool same_key(const sheaf_key *a, const sheaf_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static bool same_block(sheaf_block a, sheaf_block b)
{
    return a.row == b.row && (a.row == SHEAF_ROW_NONE || a.generation == b.generation);
}

/* ---- claims ------------------------------------------------------------------------------ */

void world_claim_progress(uint64_t ticket, uint32_t end)
{
    ref_ticket *t = ticket != 0 ? ref_ticket_of(&w.ref, ticket) : NULL;
    end -= end % REF_BLOCK;
    if (t == NULL || end <= t->done) return;
    t->done = end;
    t->progress_ns = w.r.now_ns;
}

void world_claim_refused(uint64_t ticket)
{
    ref_ticket *t = ticket != 0 ? ref_ticket_of(&w.ref, ticket) : NULL;
    if (t != NULL) t->lost = true;
}

void world_drop_ticket(uint64_t id)
{
    ref_ticket *t = ref_ticket_of(&w.ref, id);
    assert_int_equal(sheaf_prefix_drop(w.r.cache, id), t != NULL ? SHEAF_OK : SHEAF_E_STALE);
    if (t != NULL) t->given = false;
}

/* Marks claims that have made no progress for too long. */
static void note_stalled(void)
{
    for (uint32_t i = 0; i < REF_TICKETS; i++) {
        ref_ticket *t = &w.ref.tickets[i];
        if (t->given && t->waits_for == 0 && t->done < t->n &&
            w.r.now_ns - t->progress_ns >= CLAIM_TIMEOUT_NS)
            t->doubtful = true;
    }
}

/* ---- events ------------------------------------------------------------------------------ */

static heard *heard_of(const sheaf_key *key)
{
    for (uint32_t i = 0; i < w.n_heard; i++)
        if (same_key(&w.heard[i].key, key)) return &w.heard[i];
    return NULL;
}

static void hear_stored(const sheaf_event *event)
{
    sheaf_key parent = event->parent;
    uint32_t space = 0;
    while (space < REF_SPACES && !same_key(&w.ref.spaces[space], &parent)) space++;
    if (space == REF_SPACES) {
        const heard *above = heard_of(&parent);
        if (above == NULL) {
            w.event_fault = "stored after what is not there";
            return;
        }
        space = above->space;
    }
    for (uint32_t i = 0; i < event->n_keys; i++) {
        if (heard_of(&event->keys[i]) != NULL || w.n_heard == MAX_KEYS) {
            w.event_fault = "stored what is there";
            return;
        }
        heard *h = &w.heard[w.n_heard++];
        h->key = event->keys[i], h->parent = parent, h->space = space;
        memcpy(h->tokens, event->tokens + i * REF_BLOCK, sizeof h->tokens);
        parent = event->keys[i];
    }
}

static void hear_cleared(const sheaf_event *event)
{
    for (uint32_t i = w.n_heard; i-- > 0;)
        if (event->n_keys == 0 || same_key(&w.ref.spaces[w.heard[i].space], &event->keys[0]))
            w.heard[i] = w.heard[--w.n_heard];
}

/* Called by the library, so a case must not be left from here: what is wrong is told afterwards. */
static void hear(void *ctx, const sheaf_event *event)
{
    (void)ctx;
    if (event->number != ++w.event_number) w.event_fault = "a number is missing";
    if (event->kind == SHEAF_EVENT_STORED) hear_stored(event);
    if (event->kind == SHEAF_EVENT_CLEARED) hear_cleared(event);
    if (event->kind != SHEAF_EVENT_REMOVED) return;
    for (uint32_t i = 0; i < event->n_keys; i++) {
        heard *h = heard_of(&event->keys[i]);
        if (h == NULL)
            w.event_fault = "removed what is not there";
        else
            *h = w.heard[--w.n_heard];
    }
}

/* Who only listens knows every whole block, its tokens and what comes before it. */
static void compare_events(void)
{
    if (w.event_fault != NULL) fail_msg("%s", w.event_fault);
    uint32_t n = 0;
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        const ref_item *item = &w.ref.items[i];
        if (!ref_whole(item)) continue;
        const heard *h = heard_of(&item->key);
        assert_non_null(h);
        assert_int_equal(h->space, item->space);
        assert_memory_equal(h->tokens, item->tokens + item->n - REF_BLOCK, sizeof h->tokens);
        n++;
    }
    assert_int_equal(n, w.n_heard);
    assert_int_equal(rig_stats(&w.r).events, w.event_number);
}

/* ---- opening ----------------------------------------------------------------------------- */

static uint32_t below(uint32_t n)
{
    return random_below(&w.random, n);
}

/* Half of the pools with f32, in tiles of 64 bytes, so that nothing of a block is padding; half with
 * any codecs, of which a block has padding. */
static uint32_t choose_layers(uint32_t kind)
{
    uint32_t window = below(2) == 0 ? 6 : 8, n = kind == 2 ? 3 : 2, mixed = below(2);
    for (uint32_t i = 0; i < n; i++) {
        w.layers[i] = (sheaf_layer){.n_kv_heads = 1 + i / 2, .key_dim = DIM, .value_dim = DIM};
        if (mixed != 0) {
            w.layers[i].codec_k = below(SHEAF_CODEC_COUNT);
            w.layers[i].codec_v = below(SHEAF_CODEC_COUNT);
        }
        if (kind == 1 || (kind == 2 && i == 1)) w.layers[i].window = window;
    }
    w.windowed = kind != 0;
    return n;
}

void world_open(uint32_t kind)
{
    const world before = w;
    memset(&w, 0, sizeof w);
    w.random = before.random;
    w.n_full = before.n_full, w.n_refused = before.n_refused;
    w.n_waits = before.n_waits, w.n_restored = before.n_restored;
    w.n_moved = before.n_moved, w.n_revoked = before.n_revoked, w.n_dropped = before.n_dropped;
    memcpy(w.n_left, before.n_left, sizeof w.n_left);
    uint32_t n_layers = choose_layers(kind);
    w.n_blocks = below(4) != 0 ? 4 + below(9) : 12 + below(29);
    w.n_places = 2 + below(N_PLACES - 1);
    w.alphabet = 2 + below(2);
    w.max_tokens = 4 * w.n_blocks < REF_POSITIONS - 16 ? 4 * w.n_blocks : REF_POSITIONS - 16;
    w.limits = (sheaf_prefix_options)SHEAF_PREFIX_OPTIONS_INIT;
    w.limits.claim_timeout_ns = CLAIM_TIMEOUT_NS;
    w.limits.on_event = hear;
    if (below(3) == 0) w.limits.ttl_ns = 20 + below(200);
    if (below(2) == 0) w.limits.capacity_bytes = 2 + below(w.n_blocks);
    if (below(4) == 0) w.limits.max_entries = 1 + below(6);
    w.limits.capacity_bytes *= block_bytes_of(w.layers, n_layers);
    rig_open(&w.r, w.layers, n_layers, 1u << (1 + below(2)), w.n_blocks, &w.limits);
    if (w.limits.capacity_bytes == 0)
        w.limits.capacity_bytes = fixture_stats(&w.r.f).budget_bytes;
    w.ref.n_groups = w.r.n_groups;
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        assert_int_equal(sheaf_pool_group_info(w.r.f.pool, g, &info), SHEAF_OK);
        w.ref.window[g] = info.window;
        w.ref.block_bytes[g] = info.block_bytes;
    }
    static const char *const salts[REF_SPACES] = {"one", "two", ""};
    for (uint32_t i = 0; i < REF_SPACES; i++) w.ref.spaces[i] = rig_space(&w.r, salts[i]);
}

/* ---- before ------------------------------------------------------------------------------ */

/* Whether the cache alone holds a block. */
static bool is_alone(sheaf_block block)
{
    uint32_t total = 0, by_kind[SHEAF_OWNER_KINDS];
    assert_int_equal(sheaf_pool_references(w.r.f.pool, block, &total, by_kind), SHEAF_OK);
    assert_int_equal(by_kind[SHEAF_OWNER_TREE], 1);
    return total == 1;
}

static bool is_of(const sheaf_entry *entry, const ref_item *leaf)
{
    return entry->start + entry->n_tokens == leaf->n && same_key(&entry->key, &leaf->key) &&
           same_key(&entry->space, &w.ref.spaces[leaf->space]);
}

/* Gives every leaf its place in the order; two tails of one length after the same block have none. */
static void note_order(void)
{
    assert_int_equal(sheaf_prefix_entries(w.r.cache, w.entries, REF_ITEMS, &w.n_entries),
                     SHEAF_OK);
    uint32_t n_leaves = 0;
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        ref_item *item = &w.ref.items[i];
        item->order = REF_NO_ORDER;
        if (!ref_is_leaf(&w.ref, item)) continue;
        uint32_t n_found = 0;
        for (uint32_t e = 0; e < w.n_entries; e++)
            if (is_of(&w.entries[e], item)) n_found++, item->order = e;
        assert_true(n_found != 0);
        item->idle = w.entries[item->order].bytes_exclusive == w.entries[item->order].bytes;
        item->entry_start = w.entries[item->order].start;
        if (n_found > 1) item->order = REF_NO_ORDER;
        n_leaves++;
    }
    assert_int_equal(n_leaves, w.n_entries);
}

void world_before(void)
{
    w.n_done++;
    w.before = rig_stats(&w.r);
    w.pool_before = fixture_stats(&w.r.f);
    note_order();
    note_stalled();
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        ref_item *item = &w.ref.items[i];
        item->kept = ref_pinned(&w.ref, item, false);
        item->pinned = ref_pinned(&w.ref, item, true);
        for (uint32_t g = 0; g < w.r.n_groups; g++)
            item->alone[g] = item->blocks[g].row != SHEAF_ROW_NONE && is_alone(item->blocks[g]);
    }
    w.nothing_leaves = w.all_leaves = w.all_expire = w.compacted = false;
    w.cleared = 0, w.released = 0;
}

/* ---- what has left ----------------------------------------------------------------------- */

/* Whether a sequence names the block now. */
static bool is_held(sheaf_block block)
{
    for (uint32_t i = 0; i < N_PLACES; i++) {
        const request *p = &w.places[i];
        const sheaf_sequence *seq =
            p->parked != NULL ? sheaf__sequence_of_const(p->parked) : p->seq;
        if (seq == NULL) continue;
        const sheaf__table *table = &seq->room.tables[block.group];
        for (uint32_t b = 0; b < table->n_blocks; b++)
            if (same_block(sheaf__table_block(table, block.group, b), block)) return true;
    }
    return false;
}

/* Whether sequences name all of an item: then nothing is freed by letting go of it. */
static bool is_all_held(const ref_item *item)
{
    bool all = true, any = false;
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        if (item->blocks[g].row == SHEAF_ROW_NONE) continue;
        any = true;
        all = all && is_held(item->blocks[g]);
    }
    return any && all;
}

/* Whether what lies before a block has left too, and was not all held. */
static bool stood_before(const ref_item *item, const bool *gone)
{
    bool any = false;
    for (uint32_t i = 0; i < w.ref.n_items; i++)
        any = any ||
              (gone[i] && ref_is_below(item, &w.ref.items[i]) && !is_all_held(&w.ref.items[i]));
    return any;
}

/* A block that left the cache was not pinned; who is reset or released asks no more. Nor was it held by
 * a sequence, unless it had to be forgotten: so that what lies before it could be freed, or because
 * held entries alone were too many. */
static void judge(uint32_t at, const bool *gone, const sheaf_prefix_stats *now, bool expired)
{
    const ref_item *item = &w.ref.items[at];
    if (w.nothing_leaves) fail_msg("something left that must not");
    if (item->kept) fail_msg("a pinned block left");
    if ((w.cleared >> item->space & 1) != 0 || w.released != 0) return;
    if (expired) assert_true(item->used_ns + w.limits.ttl_ns <= w.r.now_ns);
    bool too_many =
        now->evictions[SHEAF_LEFT_ENTRIES] != w.before.evictions[SHEAF_LEFT_ENTRIES];
    if (is_all_held(item) && !too_many && !stood_before(item, gone))
        fail_msg("a block left that a sequence holds");
}

/* Whether there are more entries that can be this tail's than other tails that can be theirs. */
static bool has_own_entry(const ref_item *item)
{
    uint32_t n_entries = 0, n_others = 0;
    for (uint32_t e = 0; e < w.n_entries; e++) n_entries += is_of(&w.entries[e], item);
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        const ref_item *other = &w.ref.items[i];
        if (other == item || other->n != item->n || other->space != item->space) continue;
        if (same_key(&other->key, &item->key)) n_others += world_is_cached(other);
    }
    return n_entries > n_others;
}

/* A tail has no key: it is there while one of its blocks is. One whose blocks a window group has let
 * go of is known by its entry. */
static bool observe_tail(ref_item *item)
{
    if (w.compacted) return true; /* nothing leaves; item_of() finds the new handles */
    bool there = false;
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        bool cached = is_cached(item->blocks[g]);
        if (!cached && w.ref.window[g] != 0) item->blocks[g].row = SHEAF_ROW_NONE;
        there = there || cached;
    }
    return there || (w.windowed && has_own_entry(item));
}

/* Blocks may have been renewed by compaction where the cache alone held them; a window group may have
 * got, or let go of, one. */
static bool observe_whole(ref_item *item)
{
    sheaf_block blocks[2];
    sheaf_status st = sheaf_prefix_find(w.r.cache, &item->key, blocks);
    if (st == SHEAF_MISS) return false;
    assert_int_equal(st, SHEAF_OK);
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        bool same = same_block(blocks[g], item->blocks[g]);
        bool moved = w.compacted && item->alone[g] && blocks[g].row != SHEAF_ROW_NONE;
        assert_true(same || moved || w.ref.window[g] != 0);
        if (!same && blocks[g].row == SHEAF_ROW_NONE) assert_false(is_held(item->blocks[g]));
        item->blocks[g] = blocks[g];
    }
    return true;
}

/* Looks every item up. */
static void observe(bool *gone)
{
    assert_int_equal(sheaf_prefix_entries(w.r.cache, w.entries, REF_ITEMS, &w.n_entries),
                     SHEAF_OK);
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        ref_item *item = &w.ref.items[i];
        gone[i] = ref_whole(item) ? !observe_whole(item) : !observe_tail(item);
    }
}

/* Whether a leaf could have left first, as it was before the operation: the operation itself may have
 * used it. Of too many, those go first that nobody holds any part of. */
static bool could_leave(const ref_item *item, bool too_many)
{
    if (item->order == REF_NO_ORDER || item->maybe_used_ns == w.r.now_ns) return false;
    if (item->pinned || (too_many && !item->idle)) return false;
    bool alone = true;
    for (uint32_t g = 0; g < w.r.n_groups; g++) alone = alone && item->alone[g];
    return alone;
}

/* Whether a leaf's entry has become one with what was above it, since the branch has gone: it is as old
 * as that now. */
static bool has_grown(const ref_item *item)
{
    for (uint32_t e = 0; e < w.n_entries; e++)
        if (is_of(&w.entries[e], item) && w.entries[e].start < item->entry_start) return true;
    return false;
}

/* Who could leave and stays comes after all that have left, in the order that the ledger gave. */
static void judge_order(const bool *gone, bool too_many)
{
    uint32_t last = 0, first = REF_NO_ORDER;
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        const ref_item *item = &w.ref.items[i];
        if (item->pinned || item->order == REF_NO_ORDER) continue;
        if (gone[i] && item->order > last) last = item->order;
        if (gone[i] || item->order > first) continue;
        if (could_leave(item, too_many) && !has_grown(item)) first = item->order;
    }
    if (first < last) fail_msg("an entry left before one that comes first");
}

/* Blocks that have left for a cause within the operation. */
static uint64_t n_left(const sheaf_prefix_stats *now, uint32_t cause)
{
    return now->evicted_blocks[cause] - w.before.evicted_blocks[cause];
}

static void judge_all(const bool *gone)
{
    sheaf_prefix_stats now = rig_stats(&w.r);
    uint64_t expired = n_left(&now, SHEAF_LEFT_TTL), others = 0;
    for (uint32_t cause = 0; cause < SHEAF_LEFT_KINDS; cause++)
        if (cause != SHEAF_LEFT_TTL) others += n_left(&now, cause);
    bool any = false;
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        if (!gone[i]) continue;
        any = true;
        judge(i, gone, &now, expired != 0 && others == 0);
        for (uint32_t j = 0; j < w.ref.n_items; j++)
            if (!gone[j] && ref_is_below(&w.ref.items[j], &w.ref.items[i]))
                fail_msg("a block left before what comes behind it");
    }
    bool too_many = now.evictions[SHEAF_LEFT_ENTRIES] != w.before.evictions[SHEAF_LEFT_ENTRIES];
    /* An entry may expire after its last block has left. */
    expired += now.evictions[SHEAF_LEFT_TTL] - w.before.evictions[SHEAF_LEFT_TTL];
    if (any && expired == 0 && w.cleared == 0 && w.released == 0) judge_order(gone, too_many);
}

/* What the operation had to make leave has left. */
static void judge_kept(void)
{
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        const ref_item *item = &w.ref.items[i];
        if ((w.cleared >> item->space & 1) != 0) {
            bool kept = false; /* it, or something below it */
            for (uint32_t j = 0; j < w.ref.n_items; j++)
                kept = kept || ((i == j || ref_is_below(&w.ref.items[j], item)) &&
                                ref_pinned(&w.ref, &w.ref.items[j], false));
            assert_true(kept);
        }
        if (!w.all_leaves || !ref_is_leaf(&w.ref, item)) continue;
        bool may_stay = ref_pinned(&w.ref, item, true);
        for (uint32_t g = 0; g < w.r.n_groups; g++)
            may_stay =
                may_stay || item->blocks[g].row == SHEAF_ROW_NONE || !is_alone(item->blocks[g]);
        assert_true(may_stay);
    }
    for (uint32_t e = 0; e < w.n_entries && w.all_expire && w.limits.ttl_ns != 0; e++)
        assert_true(w.entries[e].age_ns < w.limits.ttl_ns || w.entries[e].pinned != 0 ||
                    w.entries[e].bytes_exclusive < w.entries[e].bytes);
}

/* ---- comparing --------------------------------------------------------------------------- */

/* Whether the slots [0, n) of a head's segment hold what these seeds give: [n]. */
static bool segment_reads_as(const void *segment, uint32_t layer, uint32_t side, uint32_t head,
                             const uint32_t *seeds, uint32_t n)
{
    const sheaf_layer *shape = &w.layers[layer];
    uint32_t codec = side == 0 ? shape->codec_k : shape->codec_v;
    float rows[REF_BLOCK * DIM], wanted[DIM];
    assert_int_equal(sheaf_codec_decode(codec, segment, REF_BLOCK, DIM, 0, n, rows), SHEAF_OK);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < DIM; d++)
            wanted[d] = number_of(seeds[i], layer, side, head, d);
        store_row(codec, DIM, wanted);
        if (memcmp(rows + i * DIM, wanted, sizeof wanted) != 0) return false;
    }
    return true;
}

/* Whether the block holds the numbers that an item's tokens give. */
static bool reads_as(const ref_item *item, sheaf_block block)
{
    uint32_t seeds[REF_POSITIONS], start = ref_start(item), n = item->n - start;
    seeds_of(&w.ref.spaces[item->space], item->tokens, item->n, seeds);
    const unsigned char *bytes = world_bytes(block);
    for (uint32_t layer = 0; layer < w.r.f.n_layers; layer++) {
        sheaf_layer_info info = SHEAF_LAYER_INFO_INIT;
        assert_int_equal(sheaf_pool_layer_info(w.r.f.pool, layer, &info), SHEAF_OK);
        if (info.group != block.group) continue;
        for (uint32_t h = 0; h < w.layers[layer].n_kv_heads; h++) {
            const void *k = bytes + info.k_offset + h * info.k_segment_bytes;
            const void *v = bytes + info.v_offset + h * info.v_segment_bytes;
            if (!segment_reads_as(k, layer, 0, h, seeds + start, n) ||
                !segment_reads_as(v, layer, 1, h, seeds + start, n))
                return false;
        }
    }
    return true;
}

typedef struct census {
    uint64_t held[2], alone[2]; /* blocks that the cache names, and it alone */
    uint64_t pinned_bytes;
    uint64_t in_use;
} census;

/* The item whose block this is. After a compaction tails are recognised by what they hold. */
static ref_item *item_of(sheaf_block block)
{
    for (uint32_t i = 0; i < w.ref.n_items; i++)
        if (same_block(w.ref.items[i].blocks[block.group], block)) return &w.ref.items[i];
    for (uint32_t i = 0; i < w.ref.n_items && w.compacted; i++) {
        ref_item *item = &w.ref.items[i];
        if (ref_whole(item) || !item->alone[block.group] || !reads_as(item, block)) continue;
        item->blocks[block.group] = block;
        return item;
    }
    return NULL;
}

static void count_row(census *c, uint32_t g, uint32_t at, const sheaf_row *row, uint32_t marked)
{
    if (row->state == SHEAF_ROW_ABSENT || row->state == SHEAF_ROW_FREE) {
        assert_int_equal(marked, row->state);
        return;
    }
    sheaf_block block = {g, at, row->generation};
    uint32_t total = 0, by_kind[SHEAF_OWNER_KINDS];
    assert_int_equal(sheaf_pool_references(w.r.f.pool, block, &total, by_kind), SHEAF_OK);
    assert_int_equal(row->references, total);
    c->in_use += w.r.block_bytes[g];
    bool cached = by_kind[SHEAF_OWNER_TREE] != 0;
    assert_int_equal(row->state == SHEAF_ROW_SHARED, total > 1);
    assert_int_equal(row->state == SHEAF_ROW_CACHED, cached && total == 1);
    if (marked == SHEAF_ROW_PINNED) {
        assert_true(cached);
        c->pinned_bytes += w.r.block_bytes[g];
    } else
        assert_int_equal(marked, row->state);
    if (!cached) return;
    assert_int_equal(by_kind[SHEAF_OWNER_TREE], 1);
    c->held[g]++;
    c->alone[g] += total == 1;
    const ref_item *item = item_of(block);
    if (item == NULL) fail_msg("the cache holds a block of which nobody knows");
    if (!reads_as(item, block)) fail_msg("a block holds what its tokens do not give");
}

static void count_rows(census *c)
{
    sheaf_row rows[256], marked[256];
    memset(c, 0, sizeof *c);
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        uint32_t n = sheaf_pool_rows(w.r.f.pool, g);
        assert_true(n <= 256);
        assert_int_equal(sheaf_pool_map(w.r.f.pool, g, 0, n, rows), SHEAF_OK);
        assert_int_equal(sheaf_prefix_map(w.r.cache, g, 0, n, marked), SHEAF_OK);
        for (uint32_t i = 0; i < n; i++) count_row(c, g, i, &rows[i], marked[i].state);
        uint64_t resident = 0;
        for (uint32_t i = 0; i < w.ref.n_items; i++)
            resident += w.ref.items[i].blocks[g].row != SHEAF_ROW_NONE;
        assert_int_equal(c->held[g], resident);
    }
}

/* The statistics are what the rows say, and keep the limits. */
static void compare_stats(void)
{
    census c;
    count_rows(&c);
    sheaf_prefix_stats now = rig_stats(&w.r);
    sheaf_pool_stats pool = fixture_stats(&w.r.f);
    uint64_t held = 0, exclusive = 0, tokens = 0, spaces = 0;
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        held += c.held[g] * w.r.block_bytes[g];
        exclusive += c.alone[g] * w.r.block_bytes[g];
    }
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        tokens += w.ref.items[i].n - ref_start(&w.ref.items[i]);
        spaces |= 1ull << w.ref.items[i].space;
    }
    assert_int_equal(now.blocks_held, c.held[0] + c.held[1]);
    assert_int_equal(pool.owners[SHEAF_OWNER_TREE], now.blocks_held);
    assert_int_equal(now.bytes_held, held);
    assert_int_equal(now.bytes_exclusive, exclusive);
    assert_int_equal(now.bytes_pinned, c.pinned_bytes);
    if (!w.windowed) assert_int_equal(now.bytes_pinned, ref_pinned_bytes(&w.ref));
    assert_int_equal(now.tokens, tokens);
    assert_int_equal(now.spaces, (spaces & 1) + (spaces >> 1 & 1) + (spaces >> 2));
    assert_int_equal(pool.bytes_in_use, c.in_use);
    assert_int_equal(now.capacity_bytes, w.limits.capacity_bytes);
    assert_true(now.bytes_exclusive <= now.capacity_bytes);
    assert_true(now.bytes_pinned <= now.capacity_bytes);
    assert_true(pool.bytes_reserved <= pool.budget_bytes);
    assert_int_equal(pool.bytes_copied_by_growth, 0);
}

/* The list of entries adds up, in the order of priority and age, and keeps max_entries, but for what
 * cannot leave. */
static void compare_entries(void)
{
    note_order();
    sheaf_prefix_stats now = rig_stats(&w.r);
    assert_int_equal(now.entries, w.n_entries);
    for (uint32_t e = 0; e < w.n_entries; e++) {
        const sheaf_entry *entry = &w.entries[e];
        assert_true(entry->bytes_exclusive <= entry->bytes);
        bool may_go = entry->pinned == 0 && entry->bytes_exclusive == entry->bytes;
        if (w.limits.max_entries != 0 && w.n_entries > w.limits.max_entries)
            assert_false(may_go);
    }
    for (uint32_t i = 0; i < w.ref.n_items; i++) {
        const ref_item *item = &w.ref.items[i];
        if (item->order == REF_NO_ORDER) continue;
        const sheaf_entry *entry = &w.entries[item->order];
        assert_true(entry->age_ns <= w.r.now_ns - item->used_ns);
        uint64_t bytes = 0;
        for (uint32_t j = 0; j < w.ref.n_items; j++) {
            const ref_item *part = &w.ref.items[j];
            if ((part != item && !ref_is_below(item, part)) || part->n <= entry->start)
                continue;
            for (uint32_t g = 0; g < w.r.n_groups; g++)
                if (part->blocks[g].row != SHEAF_ROW_NONE) bytes += w.r.block_bytes[g];
        }
        assert_int_equal(entry->bytes, bytes);
    }
}

void world_compare_sequence(const request *p)
{
    const sheaf_sequence *seq =
        p->parked != NULL ? sheaf__sequence_of_const(p->parked) : p->seq;
    assert_int_equal(sheaf_sequence_length(seq), p->length);
    assert_int_equal(sheaf_sequence_reserved(seq), p->reserved);
    assert_memory_equal(sheaf_sequence_tokens(seq), p->tokens, p->length * sizeof *p->tokens);
    assert_computed(&w.r, &w.ref.spaces[p->space], seq);
}

/* Standing pins keep what they were given for; revocable ones go oldest first. */
static void compare_pins(void)
{
    uint64_t stand = 0, youngest_gone = 0, now_revoked = 0;
    for (uint32_t i = 0; i < REF_PINS; i++) {
        ref_pin *pin = &w.ref.pins[i];
        if (!pin->given) continue;
        bool stood = pin->stands;
        pin->stands = sheaf_prefix_pinned(w.r.cache, pin->id) == SHEAF_OK;
        if (!pin->stands) assert_true(pin->revocable);
        if (!stood) assert_false(pin->stands);
        if (stood && !pin->stands) now_revoked++;
        if (stood && !pin->stands && pin->id > youngest_gone) youngest_gone = pin->id;
        stand += pin->stands;
        if (!pin->stands) continue;
        const sheaf_key *space = &w.ref.spaces[pin->space];
        uint32_t found = peeked(&w.r, space, pin->tokens, pin->n);
        if (w.windowed) /* another tail as near may hide it, which has no block */
            assert_true(found >= pin->n - pin->n % REF_BLOCK);
        else
            assert_int_equal(found, pin->n);
    }
    for (uint32_t i = 0; i < REF_PINS; i++)
        if (w.ref.pins[i].given && w.ref.pins[i].stands && w.ref.pins[i].revocable)
            assert_true(w.ref.pins[i].id > youngest_gone);
    sheaf_prefix_stats now = rig_stats(&w.r);
    assert_int_equal(now.pins, stand);
    if (w.cleared == 0) assert_int_equal(now.pins_revoked - w.before.pins_revoked, now_revoked);
}

void world_after(void)
{
    bool gone[REF_ITEMS] = {false};
    observe(gone);
    judge_all(gone);
    for (uint32_t i = w.ref.n_items; i-- > 0;)
        if (gone[i]) ref_drop(&w.ref, i);
    compare_pins();
    compare_stats();
    compare_entries();
    judge_kept();
    compare_events();
    for (uint32_t i = 0; i < N_PLACES; i++)
        if (w.places[i].seq != NULL || w.places[i].parked != NULL)
            world_compare_sequence(&w.places[i]);
    assert_cache_whole(&w.r);
}
