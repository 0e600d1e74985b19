/* tests/cache/model_prefix.c - prefix cache, ledger and pool together: random operations on tiny pools
 * against a naive reference.
 *
 * The reference (model_prefix_ref.h) says what must be found, and what may leave. After each operation
 * every block that it knows is looked up: what has left must have been allowed to, whole blocks after
 * what comes behind them, the first in the ledger's order first; what is there must be where it was,
 * be found in the length that the rules give, and read as its tokens. All rows of the pool are walked:
 * who holds them is what the statistics say. The events tell the same story. Few tokens and few
 * blocks, so that prefixes meet and every limit is hit often; all codecs, layer by layer.
 *
 * SHEAF_SEED and SHEAF_OPERATIONS choose the run; 1,000,000 is the nightly form.
 */
#include "model_prefix_ref.h"
#include "model_prefix_world.h"

#include "cache/tree.h"

/* ---- prompts ----------------------------------------------------------------------------- */

static uint32_t below(uint32_t n)
{
    return random_below(&w.random, n);
}

/* Tokens of a request: what something begins with, or nothing, and a few more. */
static uint32_t any_tokens(uint32_t *space, int32_t *tokens)
{
    uint32_t n = 0, from = below(10);
    *space = below(REF_SPACES);
    const request *p = &w.places[below(w.n_places)];
    if (from < 6 && w.ref.n_items != 0) {
        const ref_item *item = &w.ref.items[below(w.ref.n_items)];
        n = below(4) != 0 ? item->n : below(item->n + 1);
        memcpy(tokens, item->tokens, n * sizeof *tokens);
        *space = below(16) != 0 ? item->space : *space;
    } else if (from < 8) {
        n = below(p->length + 1);
        memcpy(tokens, p->tokens, n * sizeof *tokens);
        *space = p->space;
    }
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0) n = i; /* a prompt has no nameless token */
    uint32_t more = below(3) == 0 ? below(17) : below(6);
    for (; more > 0 && n < w.max_tokens; more--) tokens[n++] = (int32_t)below(w.alphabet);
    if (n == 0) tokens[n++] = (int32_t)below(w.alphabet);
    return n;
}

static sheaf_prompt any_prompt(request *p, int32_t *tokens)
{
    uint32_t n = any_tokens(&p->space, tokens);
    p->session = below(4), p->priority = below(8) != 0 ? 0 : (int32_t)below(7) - 3;
    p->ticket = 0;
    sheaf_prompt prompt = prompt_of(&w.ref.spaces[p->space], tokens, n);
    prompt.session = p->session, prompt.priority = p->priority;
    if (below(6) == 0) prompt.max_match = 1 + below(n);
    return prompt;
}

static uint32_t limit_of(const sheaf_prompt *prompt)
{
    return prompt->max_match != 0 ? prompt->max_match : prompt->n_tokens;
}

/* ---- matching ---------------------------------------------------------------------------- */

/* A match has the length that the rules give, or, where no block is to be had for the copy, what can
 * be shared. Entries may have expired within the call. */
static void compare_match(uint32_t space, const sheaf_prompt *prompt, const sheaf_match *match,
                          bool may_lack)
{
    const int32_t *tokens = prompt->tokens;
    uint32_t limit = limit_of(prompt), length = match->length;
    uint32_t expected = ref_match(&w.ref, space, tokens, limit, false);
    assert_int_equal(match->shared, length / REF_BLOCK * REF_BLOCK);
    assert_int_equal(match->copied, length - match->shared);
    assert_true(match->cached_tokens ==
                (length == prompt->n_tokens ? prompt->n_tokens - 1 : length));
    assert_true(length <= expected);
    if (w.limits.ttl_ns != 0 || length == expected) return;
    if (w.windowed && length >= ref_match_surely(&w.ref, space, tokens, limit)) return;
    assert_true(may_lack);
    assert_int_equal(length, ref_match(&w.ref, space, tokens, expected, true));
}

static void take_sequence(request *p, sheaf_sequence *seq, const sheaf_prompt *prompt,
                          uint32_t length)
{
    p->seq = seq, p->length = length, p->reserved = 0;
    memcpy(p->tokens, prompt->tokens, length * sizeof *p->tokens);
    ref_use(&w.ref, p->space, p->tokens, length, w.r.now_ns);
}

static void op_match(request *p)
{
    int32_t tokens[REF_POSITIONS];
    sheaf_prompt prompt = any_prompt(p, tokens);
    sheaf_match peek = SHEAF_MATCH_INIT, match = SHEAF_MATCH_INIT;
    sheaf_sequence *seq = NULL;
    assert_int_equal(sheaf_prefix_peek(w.r.cache, &prompt, &peek), SHEAF_OK);
    compare_match(p->space, &prompt, &peek, false);
    bool lacks = !world_has_room_for_a_block();
    assert_int_equal(sheaf_prefix_match(w.r.cache, &prompt, &seq, &match), SHEAF_OK);
    compare_match(p->space, &prompt, &match, lacks);
    take_sequence(p, seq, &prompt, match.length);
    sheaf_prefix_stats now = rig_stats(&w.r);
    assert_int_equal(now.lookups, w.before.lookups + 1);
    assert_int_equal(now.hits, w.before.hits + (match.length != 0));
    assert_int_equal(now.lookup_tokens, w.before.lookup_tokens + prompt.n_tokens);
    assert_int_equal(now.hit_tokens, w.before.hit_tokens + match.length);
    assert_int_equal(now.copied_tokens, w.before.copied_tokens + match.copied);
}

/* ---- sequences --------------------------------------------------------------------------- */

/* Commits m of what is reserved, now and then without names. */
static void commit(request *p, uint32_t m)
{
    int32_t tokens[REF_POSITIONS];
    bool named = below(64) != 0;
    for (uint32_t i = 0; i < m; i++)
        tokens[i] = named ? (int32_t)below(w.alphabet) : SHEAF_TOKEN_NONE;
    write_tokens(&w.r, &w.ref.spaces[p->space], p->seq, tokens, m);
    assert_int_equal(sheaf_sequence_commit(p->seq, m, named ? tokens : NULL), SHEAF_OK);
    memcpy(p->tokens + p->length, tokens, m * sizeof *tokens);
    p->length += m, p->reserved = 0;
}

static void op_extend(request *p)
{
    uint32_t n = below(9);
    if (p->length + n > REF_POSITIONS) return;
    sheaf_status st = sheaf_sequence_extend(p->seq, n);
    assert_true(st == SHEAF_OK || st == SHEAF_FULL);
    w.n_full += st == SHEAF_FULL;
    if (st == SHEAF_OK && n > p->reserved) p->reserved = n;
}

static void op_commit(request *p)
{
    commit(p, below(4) != 0 ? p->reserved : below(p->reserved + 1));
}

static void cut(request *p, uint32_t length)
{
    p->length = length, p->reserved = 0;
}

static void op_truncate(request *p)
{
    uint32_t length =
        below(4) != 0 && p->length > 6 ? p->length - below(6) : below(p->length + 1);
    sheaf_status st = sheaf_sequence_truncate(p->seq, length);
    assert_true(st == SHEAF_OK || (st == SHEAF_E_SLID && w.windowed));
    if (st == SHEAF_OK) cut(p, length);
}

static void op_slide(request *p)
{
    assert_int_equal(sheaf_sequence_slide(p->seq, below(4)),
                     p->reserved != 0 ? SHEAF_E_BUSY : SHEAF_OK);
}

static void op_fork(request *p, request *to)
{
    sheaf_sequence *twin = NULL;
    assert_int_equal(sheaf_sequence_fork(p->seq, &twin),
                     p->reserved != 0 ? SHEAF_E_BUSY : SHEAF_OK);
    if (twin == NULL) return;
    *to = *p;
    to->seq = twin, to->ticket = 0;
}

static void op_park(request *p)
{
    assert_int_equal(sheaf_sequence_park(p->seq, &p->parked),
                     p->reserved != 0 ? SHEAF_E_BUSY : SHEAF_OK);
    if (p->parked != NULL) p->seq = NULL;
}

static void op_adopt(request *p)
{
    assert_int_equal(sheaf_parked_adopt(p->parked, &p->seq), SHEAF_OK);
    p->parked = NULL;
}

static void op_clone(request *p, request *to)
{
    uint32_t length = below(p->length + 1);
    sheaf_sequence *clone = NULL;
    sheaf_status st = sheaf_parked_clone(p->parked, length, &clone);
    assert_true(st == SHEAF_OK || st == SHEAF_FULL || (st == SHEAF_E_SLID && w.windowed));
    if (st != SHEAF_OK) return;
    *to = *p;
    to->parked = NULL, to->seq = clone, to->ticket = 0;
    cut(to, length);
}

/* Whatever it was about: a request ends, or is cancelled with its step open. */
static void op_destroy(request *p)
{
    if (p->ticket != 0) world_drop_ticket(p->ticket);
    sheaf_sequence_destroy(p->seq);
    sheaf_parked_destroy(p->parked);
    memset(p, 0, sizeof *p);
}

/* ---- publishing -------------------------------------------------------------------------- */

static uint32_t blocks_of(uint32_t n)
{
    return (n + REF_BLOCK - 1) / REF_BLOCK;
}

/* Where what a length needs of a group begins, in blocks. */
static uint32_t first_needed(uint32_t g, uint32_t length)
{
    uint32_t window = w.ref.window[g], whole = length - length % REF_BLOCK;
    return window != 0 && whole > window ? (whole - window) / REF_BLOCK : 0;
}

/* Whether the window has let go of a block that a match of `end` needs and that the cache lacks. */
static bool has_a_hole(const request *p, uint32_t end)
{
    for (uint32_t g = 0; g < w.r.n_groups; g++)
        for (uint32_t i = first_needed(g, end); i < p->seq->room.tables[g].first_block; i++) {
            const ref_item *item = ref_find(&w.ref, p->space, p->tokens, (i + 1) * REF_BLOCK);
            if (item == NULL || item->blocks[g].row == SHEAF_ROW_NONE) return true;
        }
    return false;
}

/* Whether all is there already, whatever windows have let go of. */
static bool is_known(const request *p, uint32_t end)
{
    for (uint32_t at = REF_BLOCK; at <= end; at += REF_BLOCK)
        if (ref_find(&w.ref, p->space, p->tokens, at) == NULL) return false;
    return end % REF_BLOCK == 0 || ref_holds(&w.ref, p->space, p->tokens, end) != NULL;
}

/* Bytes of the blocks that a match of this length needs. */
static uint64_t bytes_needed(uint32_t length)
{
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < w.r.n_groups; g++)
        bytes += (blocks_of(length) - first_needed(g, length)) * w.r.block_bytes[g];
    return bytes;
}

/* Whether a longer tail, or a whole block, begins with this one. */
static bool is_continued(const request *p, uint32_t end)
{
    bool any = false;
    for (uint32_t i = 0; i < w.ref.n_items; i++)
        any = any || (ref_has(&w.ref.items[i], p->space, p->tokens, end) &&
                      world_is_cached(&w.ref.items[i]));
    return any;
}

/* Adds to the reference what a publication put into the cache, up to `end`. What was there may have
 * expired at its beginning, and is there again. */
static void add_published(const request *p, uint32_t end)
{
    for (uint32_t at = 0; at < end;) {
        at = at + REF_BLOCK < end ? at + REF_BLOCK : end;
        ref_item *item = ref_find(&w.ref, p->space, p->tokens, at);
        if (item == NULL && at % REF_BLOCK != 0 && is_continued(p, at)) return;
        if (item == NULL) item = ref_add(&w.ref, p->space, p->tokens, at);
        if (!world_is_cached(item)) world_name(item, p->seq);
        if (at == end) item->session = p->session;
    }
}

static void op_publish(request *p)
{
    uint32_t flags = below(3) == 0 ? SHEAF_PUBLISH_TAIL : 0, end = 0, n = 9999;
    while (end < p->length && p->tokens[end] != SHEAF_TOKEN_NONE) end++;
    if (flags == 0 || p->reserved != 0) end -= end % REF_BLOCK;
    sheaf_prompt prompt = prompt_of(&w.ref.spaces[p->space], p->tokens, p->length);
    prompt.session = p->session, prompt.priority = p->priority, prompt.ticket = p->ticket;
    if (below(8) == 0) prompt.n_tokens += below(3 * REF_BLOCK);
    bool hole = !is_known(p, end) && has_a_hole(p, end);
    bool large = bytes_needed(prompt.n_tokens) > w.limits.capacity_bytes;
    sheaf_status st = sheaf_prefix_publish(w.r.cache, &prompt, p->seq, flags, &n);
    if (st == SHEAF_REFUSED) {
        assert_true(hole || large || w.limits.ttl_ns != 0);
        assert_int_equal(n, 9999);
        assert_int_equal(rig_stats(&w.r).last_refusal,
                         large ? SHEAF_REFUSED_TOO_LARGE : SHEAF_REFUSED_SLID);
        w.n_refused++;
        world_claim_refused(p->ticket);
        return;
    }
    assert_int_equal(st, SHEAF_OK);
    assert_false(hole || large);
    assert_int_equal(n, end);
    add_published(p, end);
    ref_use(&w.ref, p->space, p->tokens, end, w.r.now_ns);
    world_claim_progress(p->ticket, end);
}

/* ---- the door of a step ------------------------------------------------------------------ */

typedef struct batch {
    uint32_t n;
    sheaf_step steps[3];
    request *places[3];
    request fresh[3];
    sheaf_prompt prompts[3];
    int32_t tokens[3][REF_POSITIONS];
} batch;

/* A step for a running sequence, or for a free place. False: for neither. */
static bool add_step(batch *b, request *p)
{
    uint32_t i = b->n;
    for (uint32_t j = 0; j < i; j++)
        if (b->places[j] == p) return false;
    if (p->parked != NULL || (p->seq != NULL && p->reserved != 0)) return false;
    b->steps[i] = (sheaf_step)SHEAF_STEP_INIT;
    b->steps[i].n = below(4) != 0 ? below(9) : below(3 * REF_BLOCK);
    b->steps[i].sequence = p->seq;
    b->places[i] = p;
    if (p->seq != NULL) {
        if (p->length + b->steps[i].n > REF_POSITIONS) return false;
        b->fresh[i] = *p;
        b->prompts[i] = prompt_of(&w.ref.spaces[p->space], p->tokens, p->length);
    } else {
        memset(&b->fresh[i], 0, sizeof b->fresh[i]);
        b->prompts[i] = any_prompt(&b->fresh[i], b->tokens[i]);
    }
    b->steps[i].prompt = &b->prompts[i];
    b->n++;
    return true;
}

/* Blocks that a step takes: at least, where tails that cannot be copied are left out, and at most. */
static void need_of(const batch *b, uint32_t i, uint32_t *least, uint32_t *most, bool *spare)
{
    const sheaf_step *step = &b->steps[i];
    if (step->sequence != NULL) {
        uint32_t counts[2] = {0, 0};
        assert_int_equal(sheaf_sequence_need_blocks(step->sequence, step->n, counts), SHEAF_OK);
        uint32_t held = blocks_of(b->fresh[i].length);
        *most += counts[0];
        *least += blocks_of(b->fresh[i].length + step->n) - held;
        return;
    }
    const sheaf_prompt *prompt = step->prompt;
    uint32_t space = b->fresh[i].space;
    uint32_t length = ref_match(&w.ref, space, prompt->tokens, limit_of(prompt), false);
    uint32_t whole = length - length % REF_BLOCK;
    uint32_t left = prompt->n_tokens - length, with_copy = step->n < left ? step->n : left;
    left = prompt->n_tokens - whole;
    uint32_t without = step->n < left ? step->n : left;
    *most += blocks_of(length + with_copy) - whole / REF_BLOCK;
    *least += blocks_of(whole + without) - whole / REF_BLOCK;
    for (uint32_t at = REF_BLOCK; at <= whole; at += REF_BLOCK)
        spare[ref_find(&w.ref, space, prompt->tokens, at) - w.ref.items] = true;
}

/* What the door has to answer, as counts tell it where there is one group without a window. */
typedef struct expectation {
    bool ok, full; /* neither: it may be either */
} expectation;

static expectation expect(const batch *b)
{
    expectation e = {false, false};
    if (w.r.n_groups != 1 || w.windowed || w.limits.ttl_ns != 0) return e;
    bool spare[REF_ITEMS] = {false};
    uint32_t least = 0, most = 0, tails = 0;
    for (uint32_t i = 0; i < b->n; i++) need_of(b, i, &least, &most, spare);
    for (uint32_t i = 0; i < b->n; i++) tails += b->steps[i].sequence == NULL;
    uint64_t free = w.n_blocks - w.pool_before.blocks_held;
    uint64_t possible = free + ref_may_go(&w.ref, 0, spare);
    /* the block that a tail is copied from may have to stay meanwhile */
    e.ok = most + tails <= possible || most <= free;
    e.full = least > possible;
    return e;
}

/* A reserved step goes on, in part, stays open, or is cancelled. */
static void finish_step(request *p)
{
    uint32_t pick = below(10);
    if (pick < 6)
        commit(p, p->reserved);
    else if (pick < 7)
        commit(p, below(p->reserved + 1));
    else if (pick < 8)
        op_destroy(p);
}

static void take_steps(batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        sheaf_step *step = &b->steps[i];
        request *p = b->places[i];
        uint32_t n = step->n;
        assert_non_null(step->sequence);
        if (p->seq == NULL) {
            compare_match(b->fresh[i].space, step->prompt, &step->match, true);
            uint32_t left = step->prompt->n_tokens - step->match.length;
            n = n < left ? n : left;
            *p = b->fresh[i];
            take_sequence(p, step->sequence, step->prompt, step->match.length);
        }
        assert_ptr_equal(step->sequence, p->seq);
        assert_int_equal(step->reserved, n);
        p->reserved = n;
    }
    for (uint32_t i = 0; i < b->n; i++) finish_step(b->places[i]);
}

static void op_reserve(void)
{
    batch b = {.n = 0};
    uint32_t wanted = 1 + below(3);
    for (uint32_t i = 0; i < wanted; i++) add_step(&b, &w.places[below(w.n_places)]);
    if (b.n == 0) return;
    sheaf_shortage shortage = SHEAF_SHORTAGE_INIT;
    expectation e = expect(&b);
    sheaf_status can = sheaf_prefix_can_reserve(w.r.cache, b.steps, b.n, NULL);
    sheaf_status st = sheaf_prefix_reserve(w.r.cache, b.steps, b.n, &shortage);
    assert_true(st == SHEAF_OK || st == SHEAF_FULL);
    if (w.limits.ttl_ns == 0) assert_int_equal(can, st);
    if (e.ok) assert_int_equal(st, SHEAF_OK);
    if (e.full) assert_int_equal(st, SHEAF_FULL);
    if (st == SHEAF_OK) {
        take_steps(&b);
        return;
    }
    w.n_full++;
    bool lacks = false;
    for (uint32_t g = 0; g < w.r.n_groups; g++)
        lacks = lacks || shortage.needed[g] > shortage.possible[g];
    assert_true(lacks || w.r.n_groups > 1);
    for (uint32_t i = 0; i < b.n; i++) {
        assert_ptr_equal(b.steps[i].sequence, b.places[i]->seq);
        assert_int_equal(b.steps[i].reserved, 0);
    }
    if (w.limits.ttl_ns == 0) w.nothing_leaves = true;
}

/* ---- leaving ----------------------------------------------------------------------------- */

static void op_evict(void)
{
    uint64_t freed = 7, bytes = 1 + below(3) * w.r.all_bytes;
    assert_int_equal(sheaf_prefix_evict(w.r.cache, bytes, &freed), SHEAF_OK);
    sheaf_pool_stats now = fixture_stats(&w.r.f);
    assert_int_equal(freed, w.pool_before.bytes_in_use - now.bytes_in_use);
    if (freed < bytes) w.all_leaves = true;
}

static void op_expire(void)
{
    if (below(2) == 0) w.r.now_ns += 500;
    uint32_t n = 99;
    assert_int_equal(sheaf_prefix_expire(w.r.cache, &n), SHEAF_OK);
    sheaf_prefix_stats now = rig_stats(&w.r);
    assert_int_equal(now.evictions[SHEAF_LEFT_TTL], w.before.evictions[SHEAF_LEFT_TTL] + n);
    if (w.limits.ttl_ns == 0) assert_int_equal(n, 0);
    w.all_expire = true;
}

static void op_reset(void)
{
    bool all = below(4) == 0;
    uint32_t space = below(REF_SPACES), n = 99;
    assert_int_equal(sheaf_prefix_reset(w.r.cache, all ? NULL : &w.ref.spaces[space], &n),
                     SHEAF_OK);
    w.cleared = all ? (1u << REF_SPACES) - 1 : 1u << space;
    for (uint32_t i = 0; i < REF_PINS; i++)
        if (w.ref.pins[i].revocable && (w.cleared >> w.ref.pins[i].space & 1) != 0)
            w.ref.pins[i].stands = false;
    for (uint32_t i = 0; i < REF_TICKETS; i++)
        if ((w.cleared >> w.ref.tickets[i].space & 1) != 0) w.ref.tickets[i].lost = true;
}

static void op_release_session(void)
{
    w.released = 1 + below(3);
    uint32_t n = 99;
    assert_int_equal(sheaf_prefix_release_session(w.r.cache, w.released, &n), SHEAF_OK);
    assert_true(n <= w.before.nodes);
}

static void op_set_limits(void)
{
    sheaf_prefix_options limits = SHEAF_PREFIX_OPTIONS_INIT;
    uint64_t blocks = below(3) == 0 ? 0 : 1 + below(w.n_blocks);
    limits.capacity_bytes = blocks * w.r.all_bytes;
    limits.max_entries = below(3) == 0 ? 1 + below(8) : 0;
    limits.ttl_ns = w.limits.ttl_ns;
    uint64_t capacity = blocks != 0 ? limits.capacity_bytes : w.pool_before.budget_bytes;
    uint64_t pinned = 0; /* entries at most that pins alone would leave */
    for (uint32_t i = 0; i < REF_PINS; i++)
        pinned += w.ref.pins[i].given && w.ref.pins[i].stands;
    sheaf_status st = sheaf_prefix_set_limits(w.r.cache, &limits);
    bool over = ref_pinned_bytes(&w.ref) > capacity;
    if (over) assert_int_equal(st, SHEAF_REFUSED);
    if (st == SHEAF_REFUSED) {
        assert_true(over || (limits.max_entries != 0 && pinned > limits.max_entries));
        w.nothing_leaves = true;
        return;
    }
    assert_int_equal(st, SHEAF_OK);
    w.limits = limits;
    w.limits.capacity_bytes = capacity;
}

/* ---- pins -------------------------------------------------------------------------------- */

/* What is pinned of a match: whole blocks, and a tail that is the end of its entry. */
static uint32_t pinned_part(uint32_t space, const int32_t *tokens, uint32_t length)
{
    uint32_t whole = length - length % REF_BLOCK;
    return whole == length || ref_find(&w.ref, space, tokens, length) != NULL ? length : whole;
}

static void op_pin(ref_pin *pin)
{
    ref_pin made = {.given = true, .stands = true, .owner = below(3), .revocable = below(2)};
    uint64_t id = 0, bytes_before = ref_pinned_bytes(&w.ref);
    uint32_t n = any_tokens(&made.space, made.tokens), length = 0;
    sheaf_prompt prompt = prompt_of(&w.ref.spaces[made.space], made.tokens, n);
    sheaf_status st = sheaf_prefix_pin(w.r.cache, &prompt, made.owner,
                                       made.revocable ? SHEAF_PIN_REVOCABLE : 0, &id, &length);
    uint32_t match = ref_match(&w.ref, made.space, made.tokens, n, false);
    made.n = pinned_part(made.space, made.tokens, match);
    made.id = id;
    if (st == SHEAF_OK && w.windowed) made.n = length;
    made.end = made.n;
    *pin = made;
    uint64_t bytes = ref_pinned_bytes(&w.ref);
    if (st != SHEAF_OK) pin->given = false;
    if (w.limits.ttl_ns != 0 && st == SHEAF_MISS) return;
    if (made.n == 0) {
        assert_int_equal(st, SHEAF_MISS);
    } else if (st == SHEAF_REFUSED) {
        assert_true(w.windowed || bytes > w.limits.capacity_bytes);
        assert_true(bytes > bytes_before);
    } else {
        assert_int_equal(st, SHEAF_OK);
        assert_int_equal(length, made.n);
        assert_true(length <= match);
        assert_true(bytes <= w.limits.capacity_bytes);
        ref_use(&w.ref, made.space, made.tokens, 0, 0);
    }
}

static void op_unpin(ref_pin *pin)
{
    if (below(6) == 0) {
        uint32_t n = 99, expected = 0;
        uint64_t owner = pin->owner;
        for (uint32_t i = 0; i < REF_PINS; i++) {
            ref_pin *each = &w.ref.pins[i];
            if (!each->given || each->owner != owner) continue;
            expected++, each->given = false;
        }
        assert_int_equal(sheaf_prefix_unpin_owner(w.r.cache, owner, &n), SHEAF_OK);
        assert_int_equal(n, expected);
        return;
    }
    assert_int_equal(sheaf_prefix_unpin(w.r.cache, pin->id), SHEAF_OK);
    assert_int_equal(sheaf_prefix_unpin(w.r.cache, pin->id), SHEAF_E_STALE);
    pin->given = false;
}

static void op_pins(void)
{
    ref_pin *pin = &w.ref.pins[below(REF_PINS)];
    if (pin->given)
        op_unpin(pin);
    else if (below(2) == 0)
        op_pin(pin);
}

/* ---- claims ------------------------------------------------------------------------------ */

/* A claim or a place to wait for these tokens, as the claims in the reference have it; one that has
 * stalled may be taken over or not. */
static void claim_tokens(request *p, ref_ticket *t)
{
    sheaf_prompt prompt = prompt_of(&w.ref.spaces[t->space], t->tokens, t->n);
    const ref_ticket *other = ref_covering(&w.ref, t->space, t->tokens, t->n, t->from);
    sheaf_status st = sheaf_prefix_claim(w.r.cache, &prompt, p->length, &t->id);
    assert_true(st == SHEAF_OK || (st == SHEAF_PENDING && other != NULL));
    if (other != NULL && !other->doubtful) assert_int_equal(st, SHEAF_PENDING);
    assert_null(ref_ticket_of(&w.ref, t->id));
    if (st == SHEAF_PENDING) {
        t->waits_for = other->id, w.n_waits++;
        t->doubtful = other->doubtful; /* it may be another that covers the block */
    } else
        p->ticket = t->id;
    t->given = true;
}

static ref_ticket *free_ticket(void)
{
    for (uint32_t i = 0; i < REF_TICKETS; i++)
        if (!w.ref.tickets[i].given) {
            memset(&w.ref.tickets[i], 0, sizeof w.ref.tickets[i]);
            return &w.ref.tickets[i];
        }
    return NULL;
}

/* Claims what a running sequence will come to. */
static void op_claim(request *p)
{
    ref_ticket *t = free_ticket();
    if (t == NULL || p->ticket != 0) return;
    t->space = p->space, t->progress_ns = w.r.now_ns, t->n = p->length;
    memcpy(t->tokens, p->tokens, p->length * sizeof *t->tokens);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->tokens[i] < 0) return;
    for (uint32_t more = below(12); more > 0 && t->n < REF_POSITIONS; more--)
        t->tokens[t->n++] = (int32_t)below(w.alphabet);
    if (t->n == 0) return;
    t->from = t->done = p->length - p->length % REF_BLOCK;
    claim_tokens(p, t);
    t->n -= t->n % REF_BLOCK;
}

/* Claims a prompt that waits for its turn, often one like another's. */
static void op_claim_queued(void)
{
    request queued = {0};
    ref_ticket *t = free_ticket();
    if (t == NULL) return;
    t->n = any_tokens(&t->space, t->tokens);
    const ref_ticket *like = &w.ref.tickets[below(REF_TICKETS)];
    if (like->given && like->n != 0) {
        t->space = like->space, t->n = like->n;
        memcpy(t->tokens, like->tokens, like->n * sizeof *t->tokens);
    }
    t->progress_ns = w.r.now_ns;
    claim_tokens(&queued, t);
    t->n -= t->n % REF_BLOCK;
}

static void forget_ticket(ref_ticket *t)
{
    for (uint32_t i = 0; i < N_PLACES; i++)
        if (w.places[i].ticket == t->id) w.places[i].ticket = 0;
    t->given = false;
}

/* Of a place to wait: whether what it waits for goes on. */
static void poll_waiting(ref_ticket *t, sheaf_status st)
{
    if (t->doubtful) return;
    const ref_ticket *claim = ref_ticket_of(&w.ref, t->waits_for);
    bool over = claim == NULL || claim->lost ||
                claim->done >= ref_common(claim->tokens, claim->n, t->tokens, t->n);
    if (over)
        assert_int_equal(st, SHEAF_OK);
    else if (!claim->doubtful)
        assert_int_equal(st, SHEAF_PENDING);
}

static void op_poll(void)
{
    ref_ticket *t = &w.ref.tickets[below(REF_TICKETS)];
    if (!t->given) {
        assert_int_equal(sheaf_prefix_poll(w.r.cache, 1u << 30), SHEAF_E_STALE);
        return;
    }
    sheaf_status st = sheaf_prefix_poll(w.r.cache, t->id);
    if (t->waits_for != 0) {
        assert_true(st == SHEAF_OK || st == SHEAF_PENDING);
        poll_waiting(t, st);
        if (st == SHEAF_PENDING) return;
    } else {
        assert_true(st == SHEAF_OK || st == SHEAF_MISS);
        if (!t->doubtful) assert_int_equal(st, t->lost ? SHEAF_MISS : SHEAF_OK);
        if (st == SHEAF_OK) return;
    }
    assert_int_equal(sheaf_prefix_poll(w.r.cache, t->id), SHEAF_E_STALE);
    assert_int_equal(sheaf_prefix_drop(w.r.cache, t->id), SHEAF_E_STALE);
    forget_ticket(t);
}

static void op_drop(void)
{
    ref_ticket *t = &w.ref.tickets[below(REF_TICKETS)];
    if (!t->given) return;
    world_drop_ticket(t->id);
    forget_ticket(t);
}

/* ---- moving and leaving the process ------------------------------------------------------ */

static void op_compact(void)
{
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    uint32_t max_blocks = below(6);
    sheaf_status st = sheaf_pool_compact(w.r.f.pool, max_blocks, &done);
    assert_true(st == SHEAF_OK || st == SHEAF_PENDING);
    assert_true(done.blocks_moved <= max_blocks);
    sheaf_pool_stats now = fixture_stats(&w.r.f);
    assert_int_equal(now.blocks_held, w.pool_before.blocks_held);
    assert_int_equal(now.bytes_reserved, w.pool_before.bytes_reserved - done.bytes_returned);
    w.n_moved += done.blocks_moved;
    w.compacted = done.blocks_moved != 0;
    w.nothing_leaves = true;
}

/* Loads what was saved; a damaged stream changes nothing. */
static void restore(const request *const *saved, uint32_t n_saved, const stream *saved_as)
{
    sheaf_parked *loaded[2] = {NULL, NULL};
    uint32_t n = 0;
    static stream again;
    again = *saved_as;
    sheaf_source from = {&again, stream_read};
    uint64_t in_use = fixture_stats(&w.r.f).bytes_in_use;
    sheaf_error err = {0};
    sheaf_status st =
        sheaf_wire_load(w.r.f.pool, &w.ref.spaces[saved[0]->space], &from, loaded, 2, &n, &err);
    if (st != SHEAF_OK) {
        assert_int_equal(st, SHEAF_FULL);
        assert_int_equal(fixture_stats(&w.r.f).bytes_in_use, in_use);
        return;
    }
    assert_int_equal(n, n_saved);
    for (uint32_t i = 0; i < n; i++) {
        request p = *saved[i];
        assert_int_equal(sheaf_parked_adopt(loaded[i], &p.seq), SHEAF_OK);
        p.parked = NULL, p.ticket = 0;
        assert_int_equal(sheaf_sequence_length(p.seq), p.length);
        world_compare_sequence(&p);
        request *to = world_free_place();
        if (to != NULL && below(2) == 0)
            *to = p;
        else
            sheaf_sequence_destroy(p.seq);
    }
    w.n_restored += n;
}

static void restore_damaged(const stream *saved_as, uint32_t space)
{
    sheaf_parked *loaded[2] = {NULL, NULL};
    uint32_t n = 7;
    static stream hurt;
    hurt = *saved_as;
    uint32_t at = below((uint32_t)hurt.n);
    if (below(2) == 0)
        hurt.n = at;
    else
        hurt.bytes[at] = (uint8_t)(hurt.bytes[at] ^ (1u << below(8)));
    sheaf_source from = {&hurt, stream_read};
    sheaf_status st =
        sheaf_wire_load(w.r.f.pool, &w.ref.spaces[space], &from, loaded, 2, &n, NULL);
    assert_true(st == SHEAF_E_FORMAT || st == SHEAF_E_DAMAGED || st == SHEAF_E_FOREIGN ||
                st == SHEAF_FULL);
    assert_true(n == 7 && loaded[0] == NULL);
}

static void op_save(request *p)
{
    static stream saved_as;
    const request *saved[2] = {p, NULL};
    sheaf_parked *parked[2] = {p->parked, NULL};
    uint32_t n = 1;
    const request *q = &w.places[below(w.n_places)];
    if (q != p && q->parked != NULL && q->space == p->space)
        saved[n] = q, parked[n++] = q->parked;
    saved_as.n = saved_as.at = 0;
    sheaf_sink sink = {&saved_as, stream_write, NULL};
    assert_int_equal(sheaf_wire_save(parked, n, &w.ref.spaces[p->space], &sink, NULL),
                     SHEAF_OK);
    if (below(4) == 0)
        restore_damaged(&saved_as, p->space);
    else
        restore(saved, n, &saved_as);
}

/* A whole block leaves and comes back as the embedder's own. */
static void op_send_block(void)
{
    static stream saved_as;
    ref_item *item = w.ref.n_items != 0 ? &w.ref.items[below(w.ref.n_items)] : NULL;
    if (item == NULL || !ref_whole(item)) return;
    sheaf_key parent = w.ref.spaces[item->space];
    if (item->n > REF_BLOCK)
        parent = ref_find(&w.ref, item->space, item->tokens, item->n - REF_BLOCK)->key;
    saved_as.n = saved_as.at = 0;
    sheaf_sink sink = {&saved_as, stream_write, NULL};
    const int32_t *tokens = item->tokens + item->n - REF_BLOCK;
    assert_int_equal(
        sheaf_wire_save_block(w.r.f.pool, item->blocks, &parent, tokens, &sink, NULL),
        SHEAF_OK);
    sheaf_block got[2];
    int32_t got_tokens[REF_BLOCK];
    sheaf_source from = {&saved_as, stream_read};
    sheaf_status st =
        sheaf_wire_load_block(w.r.f.pool, &item->key, &from, got, got_tokens, NULL);
    if (st == SHEAF_FULL) return;
    assert_int_equal(st, SHEAF_OK);
    assert_memory_equal(got_tokens, tokens, sizeof got_tokens);
    for (uint32_t g = 0; g < w.r.n_groups; g++) {
        assert_int_equal(got[g].row == SHEAF_ROW_NONE, item->blocks[g].row == SHEAF_ROW_NONE);
        if (got[g].row == SHEAF_ROW_NONE) continue;
        assert_memory_equal(world_bytes(got[g]), world_bytes(item->blocks[g]),
                            w.r.block_bytes[g]);
        assert_int_equal(sheaf_pool_release(w.r.f.pool, got[g], SHEAF_OWNER_HOST), SHEAF_OK);
    }
}

/* ---- the run ----------------------------------------------------------------------------- */

static void op_on_running(request *p)
{
    request *to = world_free_place();
    uint32_t pick = below(100);
    if (pick < 6)
        op_extend(p);
    else if (pick < 16)
        op_commit(p);
    else if (pick < 40)
        op_publish(p);
    else if (pick < 44)
        op_slide(p);
    else if (pick < 48)
        op_truncate(p);
    else if (pick < 51 && to != NULL)
        op_fork(p, to);
    else if (pick < 55)
        op_park(p);
    else if (pick < 70)
        op_claim(p);
    else
        op_destroy(p);
}

static void op_on_parked(request *p)
{
    request *to = world_free_place();
    uint32_t pick = below(10);
    if (pick < 3)
        op_save(p);
    else if (pick < 4 && to != NULL)
        op_clone(p, to);
    else if (pick < 8)
        op_destroy(p);
    else
        op_adopt(p);
}

static void op_on_cache(void)
{
    static void (*const ops[])(void) = {
        op_evict, op_evict,      op_expire,       op_set_limits, op_pins,
        op_pins,  op_compact,    op_compact,      op_poll,       op_poll,
        op_drop,  op_send_block, op_claim_queued,
    };
    uint32_t pick = below(40);
    if (pick == 0)
        op_reset();
    else if (pick <= 2)
        op_release_session();
    else
        ops[pick % 13]();
}

/* What a scheduler does after a step. */
static void publish_some(void)
{
    for (uint32_t i = 0; i < w.n_places; i++) {
        if (w.places[i].seq == NULL || below(2) == 0) continue;
        w.r.now_ns++;
        world_before();
        op_publish(&w.places[i]);
        world_after();
    }
}

static void one_operation(void)
{
    w.r.now_ns += below(16) != 0 ? 1 + below(5) : below(400);
    request *p = &w.places[below(w.n_places)];
    uint32_t pick = below(100);
    world_before();
    if (pick < 25)
        op_on_cache();
    else if (pick < 50)
        op_reserve();
    else if (p->seq != NULL)
        op_on_running(p);
    else if (p->parked != NULL)
        op_on_parked(p);
    else
        op_match(p);
    world_after();
    if (pick >= 25 && pick < 50) publish_some();
    int32_t tokens[REF_POSITIONS];
    request any = {0};
    sheaf_prompt prompt = any_prompt(&any, tokens);
    sheaf_match match = SHEAF_MATCH_INIT;
    assert_int_equal(sheaf_prefix_peek(w.r.cache, &prompt, &match), SHEAF_OK);
    compare_match(any.space, &prompt, &match, false);
}

/* One pool of random shape, from open to close. */
static void one_pool(uint32_t kind, uint32_t n_ops)
{
    world_open(kind);
    for (uint32_t i = 0; i < n_ops; i++) one_operation();
    for (uint32_t i = 0; i < N_PLACES; i++) {
        world_before();
        op_destroy(&w.places[i]);
        world_after();
    }
    sheaf_prefix_stats stats = rig_stats(&w.r);
    for (uint32_t cause = 0; cause < SHEAF_LEFT_KINDS; cause++)
        w.n_left[cause] += stats.evictions[cause];
    w.n_revoked += stats.pins_revoked, w.n_dropped += stats.window_blocks_dropped;
    rig_close(&w.r);
}

/* What the run has met, so that one that meets nothing does not pass. */
static void tell(uint64_t n_ops)
{
    fprintf(stderr,
            "%llu operations: %u full, %u refused, %u waits, %u restored, %u moved; left",
            (unsigned long long)n_ops, w.n_full, w.n_refused, w.n_waits, w.n_restored,
            (unsigned)w.n_moved);
    for (uint32_t cause = 0; cause < SHEAF_LEFT_KINDS; cause++)
        fprintf(stderr, " %u", (unsigned)w.n_left[cause]);
    fprintf(stderr, ", %u pins revoked, %u window blocks dropped\n", (unsigned)w.n_revoked,
            (unsigned)w.n_dropped);
}

static void run(uint64_t seed, uint32_t kind, uint32_t share)
{
    const char *text = getenv("SHEAF_OPERATIONS");
    uint64_t n_ops = (text != NULL ? strtoull(text, NULL, 0) : 50000) / N_KINDS / share;
    memset(&w, 0, sizeof w);
    w.random = seed ^ mix64(kind);
    for (uint64_t done = 0; done < n_ops; done += OPS_PER_POOL)
        one_pool(kind, (uint32_t)(n_ops - done < OPS_PER_POOL ? n_ops - done : OPS_PER_POOL));
    tell(n_ops);
    if (n_ops < 10000) return;
    assert_true(w.n_full > n_ops / 200 && w.n_refused > n_ops / 1000);
    for (uint32_t cause = 0; cause < SHEAF_LEFT_KINDS; cause++)
        assert_true(w.n_left[cause] > n_ops / 4000);
    assert_true(w.n_waits > n_ops / 2000 && w.n_revoked > n_ops / 4000);
    assert_true(w.n_moved > n_ops / 2000 && w.n_restored > n_ops / 1000);
    assert_true(kind == 0 || w.n_dropped > n_ops / 2000);
}

static void one_group_behaves_as_the_reference(void **state)
{
    (void)state;
    run(seed_from_environment(4), 0, 1);
}

static void a_group_with_a_window_behaves_as_the_reference(void **state)
{
    (void)state;
    run(seed_from_environment(4), 1, 1);
}

static void two_groups_behave_as_the_reference(void **state)
{
    (void)state;
    run(seed_from_environment(4), 2, 1);
}

static uint64_t two_values(const sheaf_key *key)
{
    return key->bytes[0] & 1;
}

static void a_weak_hash_changes_nothing(void **state)
{
    (void)state;
    uint64_t (*strong)(const sheaf_key *key) = sheaf__index_hash;
    sheaf__index_hash = two_values;
    run(4, 2, 8);
    sheaf__index_hash = strong;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group_behaves_as_the_reference),
        cmocka_unit_test(a_group_with_a_window_behaves_as_the_reference),
        cmocka_unit_test(two_groups_behave_as_the_reference),
        cmocka_unit_test(a_weak_hash_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
